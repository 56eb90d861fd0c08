"""Children that the kernel kills at birth: a launcher whose own cgroup was killed before."""

import os
import pathlib

import pytest

from mayhem_test import Agent

MOUNTS = (pathlib.Path("/sys/fs/cgroup/unified"), pathlib.Path("/sys/fs/cgroup"))
V2 = next((p for p in MOUNTS if (p / "cgroup.controllers").exists()), None)


@pytest.fixture
def killed_cgroup():
    if V2 is None or not os.access(V2, os.W_OK):
        pytest.skip("needs a cgroup v2 in which folders may be made")
    path = V2 / f"mayhem-test-{os.getpid()}"
    path.mkdir()
    (path / "cgroup.kill").write_text("1")
    yield path
    path.rmdir()


def test_an_agent_in_a_cgroup_that_was_killed_moves_once(killed_cgroup, sleeper):
    enter = ["sh", "-c", f'echo 0 >{killed_cgroup}/cgroup.procs && exec "$@"', "sh"]
    with Agent(prefix=enter) as agent:
        agent.handshake()
        lease = agent.inject(sleeper.pid, duration_ms=60000)
        where = pathlib.Path(f"/proc/{agent.pid}/cgroup").read_text()
        assert killed_cgroup.name not in where
        assert agent.release(lease["id"])["ok"]
