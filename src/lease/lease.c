/* SPDX-License-Identifier: Apache-2.0 */
#include "lease/lease.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"

static const char *const state_names[LEASE_STATE_MAX] = {"pending", "active", "releasing",
	"released", "expired", "orphaned", "dirty"};

static const unsigned next_states[LEASE_STATE_MAX] = {
	[LEASE_PENDING] = 1 << LEASE_ACTIVE | 1 << LEASE_EXPIRED,
	[LEASE_ACTIVE] = 1 << LEASE_RELEASING | 1 << LEASE_ORPHANED,
	[LEASE_ORPHANED] = 1 << LEASE_RELEASING,
	[LEASE_RELEASING] = 1 << LEASE_RELEASED | 1 << LEASE_DIRTY,
	[LEASE_DIRTY] = 1 << LEASE_RELEASING | 1 << LEASE_EXPIRED,
};

const struct state_machine lease_machine = {"lease", state_names, next_states, LEASE_STATE_MAX};

static const char *const end_names[LEASE_END_MAX] = {"", "normal", "deadline", "halted",
	"cancelled", "agent_lost", "recovery", "reboot", "target_gone", "kept_faulted",
	"failed_to_apply", "resource_conflict", "no_effect", "manual"};

const char *lease_end_name(enum lease_end e)
{
	return end_names[e];
}

int lease_init(struct lease *l)
{
	memset(l, 0, sizeof(*l));
	l->duration_ms = -1;
	l->target = json_null();
	l->targets = json_array();
	l->params = json_object();
	l->undo_ops = json_array();
	l->verify_probes = json_array();
	l->resources = json_array();
	l->observations = json_array();
	l->remedy = json_array();
	return l->targets && l->params && l->undo_ops && l->verify_probes && l->resources &&
			l->observations && l->remedy
		? 0
		: -ENOMEM;
}

void lease_free(struct lease *l)
{
	json_decref(l->target);
	json_decref(l->targets);
	json_decref(l->params);
	json_decref(l->undo_ops);
	json_decref(l->verify_probes);
	json_decref(l->resources);
	json_decref(l->observations);
	json_decref(l->remedy);
	memset(l, 0, sizeof(*l));
}

int lease_move(struct lease *l, enum lease_state to, struct err *err)
{
	int r = state_check_move(&lease_machine, (int)l->state, (int)to, err);

	if (r < 0)
		return r;
	l->state = to;
	if (lease_is_safe(l))
		l->released_ms = clock_utc_ms();
	return 0;
}

static int broken(const char *rule, const char *why, struct err *err)
{
	return err_set(err, "lease.shape", 0, rule, "[%s] %s", rule, why);
}

int lease_check(const struct lease *l, struct err *err)
{
	bool undoable = json_array_size(l->undo_ops) || l->undo_kind != UNDO_RECORDED;
	bool changed = l->state == LEASE_ACTIVE || l->state == LEASE_RELEASING ||
		l->state == LEASE_RELEASED || l->state == LEASE_DIRTY || l->state == LEASE_ORPHANED;

	if (!text_has_prefix(l->id, "l-") || (!l->declared && !lease_id_is_native(l->id)))
		return broken("lease_id_prefix", "a lease's id is `l-` and eight digits", err);
	if (changed && !undoable)
		return broken("undo_required_before_active", "nothing says how to undo it", err);
	if (l->state == LEASE_RELEASED && !json_array_size(l->verify_probes) && !l->verified_by[0])
		return broken("verify_required_before_release", "nothing says how to look at it",
			err);
	if (l->state == LEASE_DIRTY && (!l->notes[0] || !json_array_size(l->remedy)))
		return broken("dirty_requires_escalation_notes",
			"a dirty lease says what remains and how to mend it", err);
	if (l->injected_ms && l->injected_ms < l->created_ms)
		return broken("lease_time_ordering", "it was injected before it was created", err);
	if (l->released_ms && !lease_is_safe(l))
		return broken("lease_time_ordering", "a release time belongs to a safe end", err);
	return 0;
}

bool lease_id_is_native(const char *id)
{
	return text_has_prefix(id, "l-") && strlen(id) == 10 && strspn(id + 2, "0123456789") == 8;
}

void lease_declared_key(const char *run_id, const char *id, char ret[static LEASE_KEY_SIZE])
{
	char both[LEASE_TEXT_SIZE + LEASE_ID_SIZE + 1], hex[HASH_HEX_SIZE];
	size_t len = strlen(run_id);

	memcpy(both, run_id, len + 1);
	memcpy(both + len + 1, id, strlen(id));
	hash_hex(both, len + 1 + strlen(id), hex);
	snprintf(ret, LEASE_KEY_SIZE, "d-%.32s", hex);
}

int lease_add_observation(struct lease *l, json_t *observation)
{
	if (!observation || json_array_append_new(l->observations, observation) < 0)
		return -ENOMEM;
	while (json_array_size(l->observations) > LEASE_OBSERVATIONS_MAX) {
		/* The first one says how things were before: it stays. */
		json_array_remove(l->observations, 1);
		l->dropped++;
	}
	return 0;
}

int lease_add_undo(struct lease *l, const char *op, json_t *args, bool is_volatile)
{
	json_t *entry = json_pack("{s:s, s:o, s:b, s:b}", "op", op, "args", args, "volatile",
		is_volatile, "idempotent", true);

	return !entry || json_array_append_new(l->undo_ops, entry) < 0 ? -ENOMEM : 0;
}

int lease_add_remedy(struct lease *l, const char *const *argv)
{
	json_t *list = json_array();

	for (size_t i = 0; argv[i]; i++)
		json_array_append_new(list, json_string(argv[i]));
	return json_array_append_new(l->remedy, list) < 0 ? -ENOMEM : 0;
}
