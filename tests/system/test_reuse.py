"""A pid is reused while its lease is live, with equal start ticks: whoever has it now is never signalled.

Each round: a target is born right after a clock tick began, paused, killed, and a stranger is born with
its pid before the tick is over. The stranger takes every signal by sigwaitinfo, so that not one is lost.
$MAYHEM_REUSE_ROUNDS rounds with equal ticks each (200). With sanitizers an injection takes longer than a
tick; there 40 rounds count, whatever their ticks.
"""

import os
import signal
import time

import pytest

from mayhem_test import Reuser, StateDir, is_stopped, run_agent, start_ticks, wait_until

SANITIZED = os.environ.get("MAYHEM_TREE") == "sanitizer"
ROUNDS = int(os.environ.get("MAYHEM_REUSE_ROUNDS", "40" if SANITIZED else "200"))
LIMIT_S = 120


class Rounds:
    """Counts what happened, and goes on until enough rounds had equal ticks."""

    def __init__(self, what):
        self.what, self.all, self.equal = what, 0, 0
        self.end = time.monotonic() + LIMIT_S

    def __iter__(self):
        while (self.all if SANITIZED else self.equal) < ROUNDS and time.monotonic() < self.end:
            yield self.all
            self.all += 1
        print(f"{self.what}: {self.equal} rounds with equal start ticks of {self.all}, no stranger signalled")
        assert (self.all if SANITIZED else self.equal) >= ROUNDS, f"only {self.equal} of {self.all} rounds had equal ticks in {LIMIT_S} s"


@pytest.fixture
def reusers(as_root):
    """One helper bears at most 64 children at a time; strangers are kept until the end of the round."""
    with Reuser() as r:
        yield r


def freeze(pid):
    """Stops a holder, so that what follows is over before it looks."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(pid), interval=0.0001)


def assert_untouched(reuser, pid):
    assert reuser.signals(pid) == [] and not is_stopped(pid)


@pytest.mark.parametrize("end", ["seen", "released"])
def test_by_a_live_holder(agent, reusers, end):
    """seen: the holder learns that its target is gone. released: it is told to undo, whatever it has seen."""
    rounds = Rounds(f"live holder, {end}")
    for _ in rounds:
        pid, ticks = reusers.spawn()
        lease = agent.inject(pid)
        holder = lease["holder"]["pid"]
        os.kill(holder, signal.SIGSTOP)
        again, later = reusers.replace(pid)
        assert again == pid
        rounds.equal += ticks == later
        if end == "released":
            number = agent.start("lease.release", lease_id=lease["id"])
        os.kill(holder, signal.SIGCONT)
        if end == "released":
            assert agent.result(number)["ok"] is True
        else:
            assert agent.wait_state(lease["id"], "released").mechanism == "target_gone"
        assert_untouched(reusers, pid)
        reusers.kill(pid)


def test_by_recover_from_the_record(agents, reusers):
    rounds = Rounds("recover from the record")
    state = StateDir()
    for _ in rounds:
        agent = agents(state)
        pid, ticks = reusers.spawn()
        lease = agent.inject(pid)
        holder = lease["holder"]["pid"]
        os.kill(holder, signal.SIGSTOP)
        again, later = reusers.replace(pid)
        assert again == pid
        rounds.equal += ticks == later
        agent.signal(signal.SIGSTOP)
        os.kill(holder, signal.SIGKILL)
        agent.kill()
        wait_until(lambda: start_ticks(holder) is None, interval=0.0001)
        assert agent.record(lease["id"]).state == "active"
        done = run_agent("recover", state=state)
        assert done.returncode == 0, (done.stdout, done.stderr)
        record = agent.record(lease["id"])
        assert (record.state, record.mechanism) == ("released", "recovery")
        assert_untouched(reusers, pid)
        reusers.kill(pid)
        agent.close()
    state.remove()


def test_by_an_agent_that_recovers_its_dead_holder(agent, reusers):
    """The same by the recoverer that a live agent starts; fewer rounds, the code is recovery's."""
    for _ in range(20):
        pid, _ = reusers.spawn()
        lease = agent.inject(pid)
        holder = lease["holder"]["pid"]
        os.kill(holder, signal.SIGSTOP)
        reusers.replace(pid)
        os.kill(holder, signal.SIGKILL)
        assert agent.wait_state(lease["id"], "released").mechanism == "recovery"
        assert_untouched(reusers, pid)
        reusers.kill(pid)


def test_a_declared_lease(agent, reusers):
    """It names pid and boot_time alone; what is signalled is what was held when it was injected."""
    for n in range(20):
        pid, ticks = reusers.spawn()
        ops = [{"op": "signal.cont", "args": {"pid": str(pid), "boot_time": str(ticks)}}]
        lease = agent.declared(f"l-{n + 1:08d}", "proc.pause", ops)
        assert agent.execute(lease)["ok"] is True
        reusers.replace(pid)
        assert agent.execute(lease, phase="undo")["ok"] is True
        assert_untouched(reusers, pid)
        reusers.kill(pid)


@pytest.mark.parametrize("fault", ["process.stop", "process.kill", "proc.pause"])
def test_between_plan_and_injection(agent, reusers, fault):
    """The controller planned for another: refused where start ticks tell, and nothing is sent."""
    for _ in range(20):
        pid, ticks = reusers.spawn()
        _, later = reusers.replace(pid)
        if later == ticks:
            ticks -= 1
        target = {"kind": "process", "pid": pid, "start_ticks": ticks}
        with pytest.raises(Exception) as refused:
            agent.execute(agent.native(pid, fault, target=target))
        assert refused.value.reason == "target_drift"
        assert_untouched(reusers, pid)
        reusers.kill(pid)


def test_the_holders_pid_is_reused(agent, sleeper, reusers):
    """Halt, release and recovery signal a holder too: never whoever has its pid now."""
    lease = agent.inject(sleeper.pid)
    holder = lease["holder"]["pid"]
    agent.signal(signal.SIGSTOP)
    agent.signal(signal.SIGKILL)
    os.kill(holder, signal.SIGSTOP)
    os.kill(holder, signal.SIGKILL)
    agent.kill()
    wait_until(lambda: start_ticks(holder) is None)
    reusers.adopt(holder)
    if agent.record(lease["id"]).state == "active":
        for command in ("halt", "resume", "recover"):
            run_agent(command, state=agent.state)
    assert_untouched(reusers, holder)
    assert not sleeper.stopped
    assert not [a for a in [agent.record(lease["id"])] if a.state != "released"]
