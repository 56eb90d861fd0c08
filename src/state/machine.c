/* SPDX-License-Identifier: Apache-2.0 */
#include "state/machine.h"

#include "base/text.h"

const char *state_name(const struct state_machine *m, int state)
{
	return state >= 0 && state < m->n_states ? m->names[state] : "?";
}

int state_from_name(const struct state_machine *m, const char *name, int *ret)
{
	for (int i = 0; i < m->n_states; i++)
		if (text_equal(m->names[i], name)) {
			*ret = i;
			return 0;
		}
	return -EINVAL;
}

int state_check_move(const struct state_machine *m, int from, int to, struct err *err)
{
	if (from >= 0 && from < m->n_states && to >= 0 && to < m->n_states &&
		m->next_mask[from] & 1u << to)
		return 0;
	return err_set(err, "store.failed", 0, "move", "a %s cannot go from %s to %s", m->what,
		state_name(m, from), state_name(m, to));
}
