/* SPDX-License-Identifier: Apache-2.0 */
/* Exclusion and records of a store, between processes as agents are. */
#include "unit.h"

#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "lease/claim.h"
#include "lease/store.h"

struct fixture {
	char *path;
	struct lease_store s;
};

/* Claims in the store's own directory: the host's place belongs to real agents. */
static int open_store(const char *path, struct lease_store *s)
{
	struct err err = {0};

	if (lease_store_open(path, true, s, &err) < 0)
		return -1;
	close_now(&s->hostclaimsfd);
	return 0;
}

static int set_up(void **state)
{
	static struct fixture f;

	f.path = unit_temp_make();
	*state = &f;
	return open_store(f.path, &f.s);
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	lease_store_close(&f->s);
	unit_temp_remove(f->path);
	free(f->path);
	return 0;
}

static void make(struct fixture *f, struct lease *l, struct lease_file *file, const char *resource)
{
	struct err err = {0};

	assert_int_equal(lease_init(l), 0);
	strcpy(l->run_id, "r-1");
	strcpy(l->fault_id, "proc.pause");
	l->undo_kind = UNDO_RECORDED;
	strcpy(l->boot_id, f->s.boot_id);
	json_array_append_new(l->resources, json_string(resource));
	if (lease_file_create(&f->s, "", l, file, &err) < 0)
		fail_msg("%s", err.text);
}

static void one_holder_each(void **state)
{
	struct fixture *f = *state;
	_lease_ struct lease a, b;
	_lease_file_ struct lease_file fa = LEASE_FILE_INIT, fb = LEASE_FILE_INIT;
	struct lease_conflict c = {0};
	struct err err = {0};

	make(f, &a, &fa, "proc:1:stop");
	make(f, &b, &fb, "proc:1:stop");
	assert_string_equal(a.id, "l-00000001");
	assert_string_equal(b.id, "l-00000002");
	assert_int_equal(lease_claim(&f->s, &a, &c, &err), 0);
	assert_int_equal(lease_claim(&f->s, &a, &c, &err), 0); /* its own again is fine */
	assert_int_equal(lease_claim(&f->s, &b, &c, &err), -EBUSY);
	assert_string_equal(err.code, "resource_conflict");
	assert_non_null(strstr(err.text, a.key));
	assert_non_null(strstr(err.remedy, a.key));
	assert_string_equal(c.key, a.key);
	assert_string_equal(c.resource, "proc:1:stop");
	assert_true(c.ours);
	assert_false(c.abandoned); /* we hold its lock */
	/* The loser gives back nothing of the winner's. */
	lease_unclaim(&f->s, &b);
	assert_int_equal(lease_claim(&f->s, &b, &c, &err), -EBUSY);
	lease_unclaim(&f->s, &a);
	assert_int_equal(lease_claim(&f->s, &b, &c, &err), 0);
}

static void all_or_none(void **state)
{
	struct fixture *f = *state;
	_lease_ struct lease a, b, third;
	_lease_file_ struct lease_file fa = LEASE_FILE_INIT, fb = LEASE_FILE_INIT,
				       ft = LEASE_FILE_INIT;
	struct lease_conflict c = {0};
	struct err err = {0};

	make(f, &a, &fa, "second");
	make(f, &b, &fb, "first");
	make(f, &third, &ft, "first");
	json_array_append_new(b.resources, json_string("second"));
	assert_int_equal(lease_claim(&f->s, &a, &c, &err), 0);
	assert_int_equal(lease_claim(&f->s, &b, &c, &err), -EBUSY);
	assert_int_equal(lease_claim(&f->s, &third, &c, &err), 0); /* `first` was given back */
}

static void abandoned_and_stale(void **state)
{
	struct fixture *f = *state;
	_lease_ struct lease a, b;
	_lease_file_ struct lease_file fa = LEASE_FILE_INIT, fb = LEASE_FILE_INIT;
	struct lease_conflict c = {0};
	struct err err = {0};

	make(f, &a, &fa, "r");
	make(f, &b, &fb, "r");
	assert_int_equal(lease_claim(&f->s, &a, &c, &err), 0);
	lease_file_close(&fa); /* its holder died */
	assert_int_equal(lease_claim(&f->s, &b, &c, &err), -EBUSY);
	assert_true(c.abandoned);
	/* At a safe end it stands in nobody's way, whether it gave its claim back or not. */
	{
		_lease_ struct lease again = {0};

		assert_int_equal(lease_file_open(&f->s, a.key, &fa, &again, &err), 0);
		assert_int_equal(lease_move(&again, LEASE_EXPIRED, &err), 0);
		assert_int_equal(lease_file_write(&f->s, &fa, &again, &err), 0);
		assert_int_equal(lease_file_retire(&f->s, &fa, &err), 0);
	}
	assert_int_equal(lease_claim(&f->s, &b, &c, &err), 0);
}

static void of_another_boot(void **state)
{
	struct fixture *f = *state;
	_lease_ struct lease a, b;
	_lease_file_ struct lease_file fa = LEASE_FILE_INIT, fb = LEASE_FILE_INIT;
	struct lease_conflict c = {0};
	struct err err = {0};
	char boot[PROC_BOOT_ID_SIZE];

	make(f, &a, &fa, "r");
	make(f, &b, &fb, "r");
	memcpy(boot, f->s.boot_id, sizeof(boot));
	f->s.boot_id[0] = f->s.boot_id[0] == '0' ? '1' : '0';
	assert_int_equal(lease_claim(&f->s, &a, &c, &err), 0);
	memcpy(f->s.boot_id, boot, sizeof(boot));
	assert_int_equal(lease_claim(&f->s, &b, &c, &err), 0);
}

#define RACERS 8
#define ROUNDS 25

/* Of a lease that ended without giving it back: everybody may take it over, and only one does. */
static void leave_stale_claim(struct fixture *f, const char *resource)
{
	_lease_ struct lease l;
	_lease_file_ struct lease_file file = LEASE_FILE_INIT;
	struct lease_conflict c = {0};
	struct err err = {0};

	make(f, &l, &file, resource);
	assert_int_equal(lease_claim(&f->s, &l, &c, &err), 0);
	assert_int_equal(lease_move(&l, LEASE_EXPIRED, &err), 0);
	assert_int_equal(lease_file_write(&f->s, &file, &l, &err), 0);
	assert_int_equal(lease_file_retire(&f->s, &file, &err), 0);
}

/* Many processes for one resource, again and again: one wins each round, and no id is given twice. */
static void one_winner_of_many(void **state)
{
	struct fixture *f = *state;
	char ids[RACERS * ROUNDS][LEASE_ID_SIZE];
	size_t n_ids = 0;

	for (int round = 0; round < ROUNDS; round++) {
		int gate[2], out[2], won = 0;
		char resource[32];

		snprintf(resource, sizeof(resource), "r:%d", round);
		leave_stale_claim(f, resource);
		assert_int_equal(pipe(gate), 0);
		assert_int_equal(pipe(out), 0);
		for (int i = 0; i < RACERS; i++) {
			pid_t pid = fork();

			if (pid == 0) {
				struct lease_store s;
				struct lease l;
				struct lease_file file = LEASE_FILE_INIT;
				struct lease_conflict c = {0};
				char said[LEASE_ID_SIZE + 1] = {0}, go;

				close(gate[1]);
				if (open_store(f->path, &s) < 0 || read(gate[0], &go, 1) != 0)
					_exit(1);
				f->s = s;
				make(f, &l, &file, resource);
				said[0] = lease_claim(&s, &l, &c, NULL) == 0 ? 'w' : 'l';
				memcpy(said + 1, l.id, LEASE_ID_SIZE);
				if (write(out[1], said, sizeof(said)) != sizeof(said))
					_exit(1);
				/* Held until all have tried, as a holder would. */
				close(out[1]);
				while (read(gate[0], &go, 1) > 0)
					;
				pause();
			}
			assert_true(pid > 0);
			ids[n_ids][0] = '\0';
			memcpy(ids[n_ids] + LEASE_ID_SIZE - sizeof(pid), &pid, sizeof(pid));
			n_ids++;
		}
		close(gate[0]);
		close(gate[1]);
		close(out[1]);
		for (int i = 0; i < RACERS; i++) {
			char said[LEASE_ID_SIZE + 1];

			assert_int_equal(read(out[0], said, sizeof(said)), sizeof(said));
			won += said[0] == 'w';
			for (size_t k = 0; k < n_ids; k++)
				assert_string_not_equal(ids[k], said + 1);
			strcpy(ids[n_ids - RACERS + (size_t)i], said + 1);
		}
		close(out[0]);
		for (int i = 0; i < RACERS; i++) {
			pid_t pid;

			memcpy(&pid, ids[n_ids - RACERS + (size_t)i] + LEASE_ID_SIZE - sizeof(pid),
				sizeof(pid));
			kill(pid, SIGKILL);
			assert_int_equal(waitpid(pid, NULL, 0), pid);
		}
		assert_int_equal(won, 1);
	}
}

static void the_lock_decides(void **state)
{
	struct fixture *f = *state;
	_lease_ struct lease a, b = {0};
	_lease_file_ struct lease_file fa = LEASE_FILE_INIT, fb = LEASE_FILE_INIT;
	struct err err = {0};

	make(f, &a, &fa, "r");
	assert_int_equal(lease_is_locked(&f->s, a.key), 1);
	assert_int_equal(lease_file_open(&f->s, a.key, &fb, &b, &err), -EBUSY);
	assert_string_equal(err.code, "lease.in_use");
	assert_int_equal(lease_file_open(&f->s, "l-00000099", &fb, &b, &err), -ENOENT);
	assert_int_equal(lease_peek(&f->s, a.key, &b, &err), 0); /* without the lock */
	lease_free(&b);
	lease_file_close(&fa);
	assert_int_equal(lease_is_locked(&f->s, a.key), 0);
	assert_int_equal(lease_file_open(&f->s, a.key, &fb, &b, &err), 0);
}

static void declared_leases_are_claimed_once(void **state)
{
	struct fixture *f = *state;
	_lease_file_ struct lease_file fa = LEASE_FILE_INIT, fb = LEASE_FILE_INIT;
	_lease_ struct lease l;
	struct err err = {0};

	assert_int_equal(lease_init(&l), 0);
	l.declared = true;
	strcpy(l.id, "l-mine");
	strcpy(l.run_id, "r-1");
	lease_declared_key(l.run_id, l.id, l.key);
	assert_int_equal(lease_file_create(&f->s, "", &l, &fa, &err), 0);
	assert_int_equal(lease_file_create(&f->s, "", &l, &fb, &err), -EEXIST);
	assert_string_equal(err.code, "lease.in_use");
	assert_int_equal(fb.fd, -1);
}

/* Only what changed is written, what is illegal is not. */
static void writes(void **state)
{
	struct fixture *f = *state;
	_lease_ struct lease l, back = {0};
	_lease_file_ struct lease_file file = LEASE_FILE_INIT;
	struct err err = {0};
	size_t first, second;

	make(f, &l, &file, "r");
	first = file.rec.end;
	assert_int_equal(lease_move(&l, LEASE_ACTIVE, &err), 0);
	assert_int_equal(lease_file_write(&f->s, &file, &l, &err), -EINVAL); /* no undo ops */
	assert_int_equal(file.rec.end, first);
	assert_int_equal(lease_add_undo(&l, "signal.cont", json_pack("{s:s}", "pid", "1"), true),
		0);
	assert_int_equal(lease_file_write(&f->s, &file, &l, &err), 0);
	second = file.rec.end;
	assert_int_equal(lease_move(&l, LEASE_RELEASING, &err), 0);
	assert_int_equal(lease_file_write(&f->s, &file, &l, &err), 0);
	assert_true(file.rec.end - second < 250);
	assert_int_equal(lease_peek(&f->s, l.key, &back, &err), 0);
	assert_int_equal(back.state, LEASE_RELEASING);
	assert_int_equal(json_array_size(back.undo_ops), 1);
}

/* A lease whose lines are long gets a larger file before it is used, with name and lock. */
static void long_leases_grow(void **state)
{
	struct fixture *f = *state;
	_lease_ struct lease l, back = {0};
	_lease_file_ struct lease_file file = LEASE_FILE_INIT;
	struct err err = {0};
	char text[200];

	make(f, &l, &file, "r");
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	for (int i = 0; i < 1000; i++)
		lease_add_undo(&l, "signal.cont", json_pack("{s:s}", "pid", text), true);
	assert_int_equal(lease_move(&l, LEASE_ACTIVE, &err), 0);
	if (lease_file_write(&f->s, &file, &l, &err) < 0)
		fail_msg("%s", err.text);
	assert_true(file.rec.capacity > RECORD_CAPACITY);
	assert_int_equal(lease_is_locked(&f->s, l.key), 1);
	assert_int_equal(lease_move(&l, LEASE_RELEASING, &err), 0);
	assert_int_equal(lease_file_write(&f->s, &file, &l, &err), 0);
	assert_int_equal(lease_peek(&f->s, l.key, &back, &err), 0);
	assert_int_equal(json_array_size(back.undo_ops), 1000);
	assert_int_equal(back.state, LEASE_RELEASING);
}

/* A full record drops what was seen on the way, and never refuses its end. */
static void the_end_always_fits(void **state)
{
	struct fixture *f = *state;
	_lease_ struct lease l, back = {0};
	_lease_file_ struct lease_file file = LEASE_FILE_INIT;
	struct err err = {0};
	char text[600];

	make(f, &l, &file, "r");
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	lease_add_undo(&l, "signal.cont", json_pack("{s:s}", "pid", "1"), true);
	json_array_append_new(l.verify_probes, json_pack("{s:s}", "probe", "p"));
	assert_int_equal(lease_move(&l, LEASE_ACTIVE, &err), 0);
	do {
		l.deadline_boottime_ms++;
		assert_int_equal(lease_file_write(&f->s, &file, &l, &err), 0);
	} while (file.rec.end + 2 * RECORD_RESERVE < file.rec.capacity);
	for (int i = 0; i < LEASE_OBSERVATIONS_MAX; i++)
		lease_add_observation(&l, json_pack("{s:i, s:s}", "n", i, "text", text));
	assert_int_equal(lease_move(&l, LEASE_RELEASING, &err), 0);
	assert_int_equal(lease_file_write(&f->s, &file, &l, &err), 0);
	assert_int_equal(lease_move(&l, LEASE_RELEASED, &err), 0);
	assert_int_equal(lease_file_write(&f->s, &file, &l, &err), 0);
	assert_int_equal(lease_file_retire(&f->s, &file, &err), 0);
	assert_int_equal(lease_peek(&f->s, l.key, &back, &err), 0);
	assert_int_equal(back.state, LEASE_RELEASED);
	assert_int_equal(json_array_size(back.observations), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(one_holder_each, set_up, tear_down),
		cmocka_unit_test_setup_teardown(all_or_none, set_up, tear_down),
		cmocka_unit_test_setup_teardown(abandoned_and_stale, set_up, tear_down),
		cmocka_unit_test_setup_teardown(of_another_boot, set_up, tear_down),
		cmocka_unit_test_setup_teardown(one_winner_of_many, set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_lock_decides, set_up, tear_down),
		cmocka_unit_test_setup_teardown(declared_leases_are_claimed_once, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(writes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(long_leases_grow, set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_end_always_fits, set_up, tear_down),
	};

	return cmocka_run_group_tests_name("claim", tests, NULL, NULL);
}
