"""Everything at once, at random: sessions, holders and commands killed and stopped in the middle of what they do.

Whatever happened, once the last session has ended and recovery has run every target is as it was: those
that ran run, those that somebody had stopped before stand. $MAYHEM_SEED repeats a run.
"""

import json
import os
import random
import signal
import time

import pytest

from mayhem_test import RpcError, SessionEnded, StateDir, run_agent, start_ticks, wait_until
from mayhem_test.records import leases

SEED = int(os.environ.get("MAYHEM_SEED", "0")) or random.randrange(1, 1 << 32)
TORTURE_S = float(os.environ.get("MAYHEM_CHAOS_SECONDS", "120"))
CLAIMS = "/run/mayhem/claims"


class Chaos:
    """One state directory, three sessions, twelve targets of which two are stopped by hand."""

    def __init__(self, agents, sleepers, rng):
        self.make, self.rng = agents, rng
        self.state = StateDir()
        self.targets = sleepers(12, threads=1)
        for t in self.targets[:2]:
            t.stop()
        self.sessions = []
        self.counts = {}

    def session(self):
        while len(self.sessions) < 3:
            self.sessions.append(self.make(self.state, handshake=False))
        return self.rng.choice(self.sessions)

    def drop(self, session):
        self.sessions.remove(session)

    def some_lease(self):
        live = [r for r in leases(self.state).values() if not r.at_safe_end]
        return self.rng.choice(live) if live else None

    # What may happen. Nothing here waits for an answer: requests overlap with whatever comes next.

    def inject(self):
        s, rng = self.session(), self.rng
        lease = s.native(rng.choice(self.targets).pid, duration_ms=rng.choice([20, 200, 5000]),
                         ttl=rng.choice([0.1, 1, 60]), survive=rng.random() < 0.3)
        s.start("task.execute", fault_id="proc.pause", lease=lease)

    def release(self):
        lease = self.some_lease()
        if lease:
            self.session().start("lease.release", lease_id=lease.id)

    def extend(self):
        lease = self.some_lease()
        if lease:
            self.session().start("lease.extend", lease_id=lease.id, ttl_seconds=self.rng.choice([0.05, 5]))

    def kill_holder(self):
        lease = self.some_lease()
        pid = lease and lease.holder_pid
        if pid and start_ticks(pid) == lease["holder"]["start_ticks"]:
            os.kill(pid, signal.SIGKILL)

    def kill_session(self):
        s = self.session()
        s.kill()
        self.drop(s)

    def end_session(self):
        s = self.session()
        s.close_stdin()
        self.drop(s)

    def stop_session(self):
        self.session().signal(signal.SIGSTOP)

    def continue_sessions(self):
        for s in self.sessions:
            s.signal(signal.SIGCONT)

    def recover(self):
        done = run_agent("recover", state=self.state)
        assert done.returncode == 0, (done.stdout, done.stderr)

    def halt(self):
        assert run_agent("halt", state=self.state).returncode == 0
        assert run_agent("resume", state=self.state).returncode == 0

    def read(self):
        for s in self.sessions:
            s.pump()

    def run(self, seconds):
        acts = ([self.inject] * 40 + [self.release] * 8 + [self.extend] * 4 + [self.kill_holder] * 6 + [self.read] * 10
                + [self.kill_session, self.end_session, self.stop_session, self.continue_sessions, self.continue_sessions,
                   self.recover, self.halt])
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            act = self.rng.choice(acts)
            try:
                act()
            except (SessionEnded, BrokenPipeError, ProcessLookupError, TimeoutError, RpcError):
                pass  # whoever it was for is gone or stands still
            self.counts[act.__name__] = self.counts.get(act.__name__, 0) + 1

    def settle(self):
        self.continue_sessions()
        for s in self.sessions:
            s.close_stdin()
        for s in self.sessions:
            assert s.wait_exit(30) == 0, s.stderr[-2000:]
        self.halt()
        done = run_agent("recover", "--json", state=self.state)
        assert done.returncode == 0, (done.stdout, done.stderr)


def assert_as_before(chaos):
    wait_until(lambda: not [t for t in chaos.targets[2:] if t.stopped], 5, "what ran runs again")
    assert [t.stopped for t in chaos.targets[:2]] == [True, True], "what somebody else had stopped was continued"
    records = leases(chaos.state)
    open_ = [r for r in records.values() if not r.at_safe_end]
    assert open_ == [], open_
    ends = {}
    for r in records.values():
        ends[r.mechanism] = ends.get(r.mechanism, 0) + 1
        if r.body["target"]["pid"] in [t.pid for t in chaos.targets[:2]]:
            assert "active" not in r.moves, r
    print(f"seed {SEED}: {chaos.counts}; leases ended {ends}")
    assert not os.listdir(chaos.state / "aside")
    for name in os.listdir(CLAIMS):  # a holder that was killed after its last write leaves one: it holds nothing
        claim = read_claim(os.path.join(CLAIMS, name))
        if claim.get("state_dir") == str(chaos.state):
            assert records[claim["lease"]].at_safe_end


def read_claim(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (FileNotFoundError, ValueError):  # given back meanwhile; the lock
        return {}


def chaos_for(seconds, agents, sleepers):
    chaos = Chaos(agents, sleepers, random.Random(SEED))
    print(f"MAYHEM_SEED={SEED}")
    chaos.run(seconds)
    chaos.settle()
    assert_as_before(chaos)


def test_a_few_seconds(as_root, agents, sleepers):
    chaos_for(4, agents, sleepers)


@pytest.mark.torture
def test_minutes(as_root, agents, sleepers):
    chaos_for(TORTURE_S, agents, sleepers)
