"""Seen on the host: the metrics file, and what `status` shows of others' state directories."""

import json
import os

import pytest

from mayhem_test import Agent, run_agent, wait_until


def test_metrics_file(tmp_path, sleeper):
    """Live leases and ends by fault, written by rename, where the policy names a file."""
    path = tmp_path / "mayhem.prom"
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"format": "mayhem.agent/1", "metrics_file": str(path)}))
    live = f'mayhem_lease_active{{fault="proc.pause",target="process:sleeper:{sleeper.pid}",run='
    with Agent(policy=policy) as agent:
        agent.handshake()
        lease = agent.inject(sleeper.pid, duration_ms=60000)
        wait_until(lambda: path.exists() and any(line.split(",target")[0] == live.split(",target")[0]
                                                 for line in path.read_text().splitlines()))
        assert f'run="{lease["run_id"]}",owner="{lease["owner"]}"}} 1' in path.read_text()
        agent.release(lease["id"])
        wait_until(lambda: 'mayhem_leases_total{fault="proc.pause",end="normal"} 1' in path.read_text())
        assert "mayhem_lease_active" not in path.read_text()
    assert [name for name in os.listdir(tmp_path) if name.startswith("mayhem.prom")] == ["mayhem.prom"]


def test_root_sees_the_leases_of_others(as_root, user, nothing_left):
    """And only sees them: recovering is for their owner."""
    from mayhem_test import Sleeper, StateDir

    state = StateDir(user)
    nothing_left.append(state)
    with Sleeper(prefix=user.prefix) as target, Agent(state, user=user) as agent:
        agent.handshake()
        lease = agent.inject(target.pid, duration_ms=60000)
        done = run_agent("status", "--json", state=state)
        (store,) = [s for s in json.loads(done.stdout)["stores"] if s["state_dir"] == str(state)]
        assert store["readable"] and [seen["id"] for seen in store["leases"]] == [lease["id"]]
        assert run_agent("recover", state=state).returncode == 8
        assert target.stopped
        agent.release(lease["id"])


@pytest.fixture
def as_root():
    if os.geteuid() != 0:
        pytest.skip("needs root")
