"""Pytest fixtures. A conftest.py takes them with `from mayhem_test.fixtures import *`."""

import os

import pytest

from .agent import Agent
from .procs import Nginx, Redis, Reuser, Sleeper
from .sandbox import StateDir, User, cgroup_marks, leftovers, v1_only
from .waiting import become_subreaper, descendants, wait_until

__all__ = ["nothing_left", "state", "agent", "agents", "sleeper", "sleepers", "nginx", "redis", "reuser", "user",
           "v1_view", "as_root", "_lab_session"]


@pytest.fixture(scope="session", autouse=True)
def _lab_session():
    become_subreaper()


@pytest.fixture(autouse=True)
def nothing_left(_lab_session):
    """After each test: no process that it started is alive, no cgroup of its stores is left.

    The test's own fixtures are torn down before this looks. Yields a list: a StateDir that a test makes by
    itself may be appended to have its marks looked for too."""
    before = set(descendants(os.getpid()))
    made = []
    init = StateDir.__init__
    remove = StateDir.remove
    stores = set()

    def remember(self, *args, **kw):
        init(self, *args, **kw)
        made.append(self)

    def forget(self):
        if self.store:
            stores.add(self.store)
        remove(self)

    StateDir.__init__, StateDir.remove = remember, forget
    try:
        yield made
    finally:
        StateDir.__init__, StateDir.remove = init, remove
        stores |= {s.store for s in made if s.store}
        for s in made:
            s.remove()
    # A holder that has written its result may need a moment for its exit.
    try:
        wait_until(lambda: not leftovers(before), 3)
    except AssertionError:
        pytest.fail(f"processes left: {leftovers(before)}")
    def left():
        return [folder for store in stores for m in cgroup_marks(store) for folder, _, _ in os.walk(m)]

    try:
        wait_until(lambda: not left(), 2)
    except AssertionError:
        pytest.fail(f"cgroups left: {left()}")


@pytest.fixture
def state(nothing_left):
    """A fresh state directory."""
    directory = StateDir()
    yield directory
    directory.remove()


@pytest.fixture
def agents(nothing_left):
    """agents(**kw) starts a further Agent; all are closed at the end, last first."""
    started = []

    def start(*args, handshake=True, **kw):
        agent = Agent(*args, **kw)
        started.append(agent)
        if handshake:
            agent.handshake(**(handshake if isinstance(handshake, dict) else {}))
        return agent

    yield start
    for agent in reversed(started):
        agent.close()


@pytest.fixture
def agent(agents, state):
    """An agent on `state`, after its handshake."""
    return agents(state)


@pytest.fixture
def sleepers(nothing_left):
    """sleepers(n) starts n Sleepers; ended with the test."""
    started = []

    def start(n=1, **kw):
        new = [Sleeper(**kw) for _ in range(n)]
        started.extend(new)
        return new

    yield start
    for proc in started:
        proc.close()


@pytest.fixture
def sleeper(sleepers):
    return sleepers(1)[0]


@pytest.fixture
def nginx(nothing_left):
    with Nginx() as server:
        yield server


@pytest.fixture
def redis(nothing_left):
    with Redis() as server:
        yield server


@pytest.fixture
def reuser(as_root):
    with Reuser() as r:
        yield r


@pytest.fixture
def as_root(nothing_left):
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def user(as_root):
    """An ordinary user to run things as."""
    u = User()
    yield u
    u.remove()


@pytest.fixture
def v1_view(as_root):
    """An argv prefix under which no cgroup v2 is seen."""
    prefix = v1_only()
    if prefix is None:
        pytest.skip("no cgroup v1 on this machine")
    return prefix
