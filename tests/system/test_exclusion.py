"""One fault for one resource: whoever comes second changes nothing and is told who has it.

$MAYHEM_RACE_ROUNDS rounds for each pair of agents (1,000; 200 with sanitizers).
"""

import json
import os
import signal
import time

import pytest

from mayhem_test import StateDir, cgroup_marks, is_stopped, run_agent, start_ticks, wait_until
from mayhem_test.stopwatch import Stopwatch

SANITIZED = os.environ.get("MAYHEM_TREE") == "sanitizer"
ROUNDS = int(os.environ.get("MAYHEM_RACE_ROUNDS", "200" if SANITIZED else "1000"))
LIMIT_S = 200
CLAIMS = "/run/mayhem/claims"


def race(agents, pid, params=None):
    """Both ask at once: [(agent, answer)] of the winners and of the losers."""
    numbers = [(a, a.start("task.execute", fault_id="proc.pause", lease=a.native(pid, params=params))) for a in agents]
    answers = [(a, a.result(n)) for a, n in numbers]
    return [x for x in answers if x[1]["ok"]], [x for x in answers if not x[1]["ok"]]


def assert_lost(answer, winner):
    """The loser's answer: by name who has it, and a record that never was active."""
    lease = answer["lease"]
    assert answer["reason"] == "resource_conflict", answer
    assert winner["lease"]["id"] in answer["detail"], answer["detail"]
    assert (lease["state"], lease["release_mechanism"], lease["injected_at"]) == ("expired", "resource_conflict", None)


@pytest.mark.parametrize("stores", ["two", "one"])
def test_race(agents, sleeper, stores):
    """Who wins lets go before the next round; the kernel counts how often the target stopped."""
    first = agents(StateDir())
    second = agents(StateDir() if stores == "two" else first.state)
    wins = {first.pid: 0, second.pid: 0}
    begun = time.monotonic()
    with Stopwatch() as watch:
        for n in range(ROUNDS):
            assert time.monotonic() < begun + LIMIT_S, f"only {n} rounds in {LIMIT_S} s"
            # Whoever is asked first has a head start: each half the time.
            winners, losers = race((first, second) if n % 2 else (second, first), sleeper.pid)
            assert len(winners) == 1 and len(losers) == 1, (winners, losers)
            assert_lost(losers[0][1], winners[0][1])
            assert sleeper.stopped, "the loser continued what the winner stopped"
            if n % 50 == 0:
                loser, answer = losers[0]
                assert loser.record(answer["lease"]["id"]).moves == ["pending", "expired"]
            agent, answer = winners[0]
            assert agent.release(answer["lease"]["id"])["ok"] is True
            wins[agent.pid] += 1
        wait_until(lambda: not sleeper.stopped)
        stops = watch.count(sleeper.pid, "stopped")
    print(f"{ROUNDS} rounds in {time.monotonic() - begun:.1f} s, {stores} state directories: "
          f"won {' and '.join(map(str, wins.values()))}")
    assert sum(wins.values()) == ROUNDS
    assert stops <= ROUNDS  # two stops so near each other that we see one are one


def test_a_tree_takes_all_or_nothing(agents, nginx):
    """One worker is held by another lease: the tree is not touched at all."""
    holder, other = agents(StateDir()), agents(StateDir())
    worker = nginx.workers()[0]
    held = holder.inject(worker)
    winners, losers = race([other], nginx.pid, {"scope": "tree"})
    assert winners == []
    assert_lost(losers[0][1], {"lease": held})
    assert [p for p in nginx.family() if is_stopped(p)] == [worker]
    # And what the tree claimed before it met the worker is free again.
    mine = other.inject(nginx.pid)
    assert other.release(mine["id"])["ok"] and holder.release(held["id"])["ok"]
    assert nginx.answers()


def test_a_race_of_trees(agents, nginx):
    """Overlapping trees from both ends, 50 rounds."""
    first, second = agents(StateDir()), agents(StateDir())
    for _ in range(50):
        winners, losers = race((first, second), nginx.pid, {"scope": "tree"})
        assert len(winners) == 1, (winners, losers)
        assert_lost(losers[0][1], winners[0][1])
        agent, answer = winners[0]
        assert agent.release(answer["lease"]["id"])["ok"] is True
        assert [p for p in nginx.family() if is_stopped(p)] == []


def test_the_same_agent_twice(agent, sleeper):
    lease = agent.inject(sleeper.pid)
    answer = agent.execute(agent.native(sleeper.pid))
    assert_lost(answer, {"lease": lease})
    assert sleeper.stopped and agent.release(lease["id"])["ok"] is True


def test_kill_needs_no_claim_on_a_pause(agents, sleeper):
    """Irreversible faults hold nothing; the pause ends because its target did."""
    a, b = agents(StateDir()), agents(StateDir())
    lease = a.inject(sleeper.pid)
    assert b.execute(b.native(sleeper.pid, "process.kill"))["ok"] is True
    assert a.wait_state(lease["id"], "released").mechanism == "target_gone"


def test_the_highest_number_is_not_the_end(agent, agents, sleeper):
    """A controller may name its lease; the numbers below are still there for the others, now and later."""
    for session in (agent, agents(agent.state)):
        for wanted in ("l-99999999" if session is agent else None, None, None):
            lease = session.inject(sleeper.pid, **{"id": wanted})
            assert lease["id"] == wanted or wanted is None
            assert session.release(lease["id"])["ok"] is True
    numbers = sorted(agent.records())
    assert len(numbers) == 6 and numbers[-1] == "l-99999999" and numbers[-2] < "l-00000100"


# -- what a claim is worth when its lease is over


def orphaned(agents, pid):
    """A store whose holder and agent were killed: its lease active, its target stopped."""
    agent = agents(StateDir())
    lease = agent.inject(pid)
    agent.signal(signal.SIGSTOP)
    os.kill(lease["holder"]["pid"], signal.SIGKILL)
    agent.kill()
    wait_until(lambda: start_ticks(lease["holder"]["pid"]) is None)
    return agent, lease


def test_anothers_orphan_is_named_and_left(agents, sleeper):
    """Recovery of another store is not ours: refused, with the command that frees it."""
    dead, lease = orphaned(agents, sleeper.pid)
    other = agents(StateDir())
    answer = other.execute(other.native(sleeper.pid))
    assert_lost(answer, {"lease": lease})
    assert str(dead.state) in answer["detail"]
    assert sleeper.stopped and dead.record(lease["id"]).state == "active"
    assert run_agent("recover", state=dead.state).returncode == 0
    mine = other.inject(sleeper.pid)
    assert other.release(mine["id"])["ok"] is True


def test_our_own_orphan_is_mended_first(agents, sleeper):
    dead, lease = orphaned(agents, sleeper.pid)
    agent = agents(dead.state)  # its start recovers
    assert agent.record(lease["id"]).state in ("active", "releasing", "released")
    mine = agent.inject(sleeper.pid)
    assert agent.record(lease["id"]).mechanism == "recovery"
    assert agent.release(mine["id"])["ok"] is True and not sleeper.stopped


def test_a_store_that_is_gone_holds_nothing(agents, sleeper):
    dead, _ = orphaned(agents, sleeper.pid)
    store = dead.state.store
    dead.state.remove()
    sleeper.cont()
    other = agents(StateDir())
    assert other.release(other.inject(sleeper.pid)["id"])["ok"] is True
    for mark in cgroup_marks(store):  # nobody else ever will
        for leaf in os.scandir(mark):
            if leaf.is_dir():
                os.rmdir(leaf)
        os.rmdir(mark)


def claims_of(state):
    """Claim files that name a state directory."""
    found = []
    for name in os.listdir(CLAIMS):
        try:
            with open(os.path.join(CLAIMS, name), encoding="utf-8") as f:
                text = f.read()
        except FileNotFoundError:  # somebody's, given back meanwhile
            continue
        if text and json.loads(text)["state_dir"] == str(state):
            found.append(name)
    return found


def test_claims_are_given_back(as_root, agent, nginx):
    lease = agent.inject(nginx.pid, params={"scope": "tree"})
    assert len(claims_of(agent.state)) == 3
    assert agent.release(lease["id"])["ok"] is True
    assert claims_of(agent.state) == []


def test_a_claim_of_another_boot_is_stale(as_root, agent, sleeper):
    lease = agent.inject(sleeper.pid)
    name = claims_of(agent.state)[0]
    with open(os.path.join(CLAIMS, name), encoding="utf-8") as f:
        claim = json.load(f)
    assert agent.release(lease["id"])["ok"] is True
    claim.update(boot_id="00000000-0000-0000-0000-000000000000", lease="l-00000099")
    with open(os.path.join(CLAIMS, name), "w", encoding="utf-8") as f:
        json.dump(claim, f)
    again = agent.inject(sleeper.pid)
    assert agent.release(again["id"])["ok"] is True and claims_of(agent.state) == []


# -- two state directories on one host


@pytest.fixture
def two(agents, sleepers):
    """Two stores, each with a live holder: [(agent, lease, target)]."""
    result = []
    for target in sleepers(2):
        agent = agents(StateDir())
        result.append((agent, agent.inject(target.pid), target))
    return result


@pytest.mark.parametrize("command", [["recover"], ["recover", "--sweep"], ["recover", "--plan"], ["halt"]],
                         ids=["recover", "sweep", "plan", "halt"])
def test_commands_leave_the_other_store_alone(two, command):
    (ours, our_lease, our_target), (theirs, their_lease, their_target) = two
    holder, ticks = their_lease["holder"]["pid"], start_ticks(their_lease["holder"]["pid"])
    done = run_agent(*command, "--json", state=ours.state)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert str(theirs.state.store) not in done.stdout
    assert start_ticks(holder) == ticks and their_target.stopped
    assert theirs.record(their_lease["id"]).state == "active"
    # Ours lives as well, except after a halt: recovery never takes a lock that somebody has.
    assert our_target.stopped == (command != ["halt"])
    assert theirs.release(their_lease["id"])["ok"] is True


def test_an_orphan_of_theirs_is_not_recovered_by_ours(two):
    """Nor its cgroup swept: both are reported by its own store alone."""
    (ours, _, _), (theirs, lease, target) = two
    theirs.signal(signal.SIGSTOP)
    os.kill(lease["holder"]["pid"], signal.SIGKILL)
    theirs.kill()
    done = run_agent("recover", "--sweep", "--json", state=ours.state)
    assert done.returncode == 0 and theirs.state.store not in done.stdout
    assert target.stopped and theirs.record(lease["id"]).state == "active"
    done = run_agent("recover", "--sweep", "--json", state=theirs.state)
    assert done.returncode == 0 and json.loads(done.stdout)["counts"]["undone"] == 1
    assert not target.stopped


def test_the_end_of_one_session_leaves_the_other_store_alone(two):
    (ours, our_lease, our_target), (theirs, their_lease, their_target) = two
    assert ours.eof() == 0 and not our_target.stopped
    assert their_target.stopped and theirs.record(their_lease["id"]).state == "active"
    assert theirs.release(their_lease["id"])["ok"] is True
    assert ours.record(our_lease["id"]).state == "released"
