/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "lease/lease.h"
#include "state/machine.h"

/* The moves of a lease, written down a second time. */
static const struct {
	enum lease_state from, to;
} legal[] = {
	{LEASE_PENDING, LEASE_ACTIVE},
	{LEASE_PENDING, LEASE_EXPIRED},
	{LEASE_ACTIVE, LEASE_RELEASING},
	{LEASE_ACTIVE, LEASE_ORPHANED},
	{LEASE_ORPHANED, LEASE_RELEASING},
	{LEASE_RELEASING, LEASE_RELEASED},
	{LEASE_RELEASING, LEASE_DIRTY},
	{LEASE_DIRTY, LEASE_RELEASING},
	{LEASE_DIRTY, LEASE_EXPIRED},
};

static bool is_legal(int from, int to)
{
	for (size_t i = 0; i < sizeof(legal) / sizeof(*legal); i++)
		if ((int)legal[i].from == from && (int)legal[i].to == to)
			return true;
	return false;
}

static void every_move(void **state)
{
	(void)state;
	for (int from = 0; from < LEASE_STATE_MAX; from++)
		for (int to = 0; to < LEASE_STATE_MAX; to++) {
			struct err err = {0};
			int r = state_check_move(&lease_machine, from, to, &err);

			if (is_legal(from, to)) {
				assert_int_equal(r, 0);
				continue;
			}
			assert_int_equal(r, -EINVAL);
			assert_string_equal(err.code, "store.failed");
			assert_non_null(strstr(err.text, state_name(&lease_machine, from)));
			assert_non_null(strstr(err.text, state_name(&lease_machine, to)));
		}
}

static void no_such_state(void **state)
{
	static const int nonsense[] = {-1, LEASE_STATE_MAX, 31, 32, 1000, INT_MAX, INT_MIN};
	int s = 7;

	(void)state;
	for (size_t i = 0; i < sizeof(nonsense) / sizeof(*nonsense); i++) {
		assert_true(state_check_move(&lease_machine, nonsense[i], LEASE_ACTIVE, NULL) < 0);
		assert_true(state_check_move(&lease_machine, LEASE_PENDING, nonsense[i], NULL) < 0);
		assert_string_equal(state_name(&lease_machine, nonsense[i]), "?");
	}
	assert_int_equal(state_from_name(&lease_machine, "Active", &s), -EINVAL);
	assert_int_equal(state_from_name(&lease_machine, "", &s), -EINVAL);
	assert_int_equal(s, 7);
	for (int i = 0; i < LEASE_STATE_MAX; i++) {
		assert_int_equal(state_from_name(&lease_machine, state_name(&lease_machine, i), &s),
			0);
		assert_int_equal(s, i);
	}
}

/* The lease's own move function: a refused move leaves it as it was, a safe end has its time. */
static void a_lease_moves(void **state)
{
	(void)state;
	for (int from = 0; from < LEASE_STATE_MAX; from++)
		for (int to = 0; to < LEASE_STATE_MAX; to++) {
			struct lease l = {.state = (enum lease_state)from};
			int r = lease_move(&l, (enum lease_state)to, NULL);

			assert_int_equal(r == 0, is_legal(from, to));
			assert_int_equal(l.state, r == 0 ? to : from);
			assert_int_equal(l.released_ms != 0, r == 0 && lease_is_safe(&l));
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_move),
		cmocka_unit_test(no_such_state),
		cmocka_unit_test(a_lease_moves),
	};

	return cmocka_run_group_tests_name("machine", tests, NULL, NULL);
}
