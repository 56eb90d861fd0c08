"""A declared tool that is at work when its holder dies: nothing of it may act after the lease was undone."""

import json
import os
import signal
import time

import pytest

from mayhem_test import RpcError, run_agent, wait_until

# What the tool does late is done by a child of a child; one knows the tool's pid, and that is not enough.
SHAPES = {
    "itself": "sleep 0.7; touch FLAG",
    "child": "(sleep 0.7; touch FLAG) & wait",
    "own_session": "setsid sh -c 'sleep 0.7; touch FLAG' & wait",
    "left_behind": "setsid sh -c 'sleep 0.7; touch FLAG' & sleep 0.5",
}


@pytest.fixture
def flag(tmp_path):
    return tmp_path / "FLAG"


def start(agent, flag, shape):
    """Starts an injection whose tool is at work, far from done, when this returns: (request, lease key)."""
    script = f"touch {flag}.began; " + SHAPES[shape].replace("FLAG", str(flag))
    op = {"op": "tool.undo", "args": {"inject_argv": json.dumps(["sh", "-c", script]),
                                      "undo_argv": json.dumps(["rm", "-f", str(flag)])}}
    lease = agent.declared("l-00000001", "net.latency", [op])
    number = agent.start("task.execute", fault_id="net.latency", lease=lease, phase="inject")
    wait_until(lambda: os.path.exists(f"{flag}.began"))
    (key,) = agent.records()
    assert agent.record(key).state == "active"
    return number, key


def quiet(agent, key, flag):
    """At a safe end, and it stays as it was when the tool would have been done long ago."""
    record = wait_until(lambda: (r := agent.record(key)).at_safe_end and r, what="a safe end")
    end = time.monotonic() + 1.2
    try:
        wait_until(flag.exists, end - time.monotonic())
    except AssertionError:
        return record
    raise AssertionError(f"{record}, and then the tool acted")


@pytest.mark.parametrize("shape", SHAPES)
def test_holder_killed(agent, flag, shape):
    _, key = start(agent, flag, shape)
    os.kill(agent.holder_pid(key), signal.SIGKILL)
    assert quiet(agent, key, flag).state == "released"


@pytest.mark.parametrize("shape", ["child", "own_session"])
def test_agent_killed(agent, flag, shape):
    _, key = start(agent, flag, shape)
    agent.kill()
    quiet(agent, key, flag)


@pytest.mark.parametrize("shape", SHAPES)
def test_both_killed(agent, state, flag, shape):
    _, key = start(agent, flag, shape)
    agent.signal(signal.SIGSTOP)
    os.kill(agent.holder_pid(key), signal.SIGKILL)
    agent.kill()
    assert run_agent("recover", state=state).returncode == 0
    quiet(agent, key, flag)


@pytest.mark.parametrize("shape", ["child", "own_session"])
def test_cancelled(agent, flag, shape):
    number, key = start(agent, flag, shape)
    (task,) = [t for t in agent.request("task.status")["tasks"] if t["state"] == "running"]
    assert agent.request("task.cancel", task_id=task["task_id"])["state"] == "cancelled"
    try:
        assert agent.result(number)["ok"] is False
    except RpcError as refused:
        assert refused.reason == "cancelled"
    quiet(agent, key, flag)


@pytest.mark.parametrize("shape", ["own_session"])
def test_holder_killed_v1(agents, state, flag, shape, v1_view):
    agent = agents(state, prefix=v1_view)
    _, key = start(agent, flag, shape)
    os.kill(agent.holder_pid(key), signal.SIGKILL)
    quiet(agent, key, flag)
