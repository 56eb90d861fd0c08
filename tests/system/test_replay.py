"""A session of mayhem-cli 0.5.1 replayed: frames as its controller writes them, and what it expects to hear.

The frames lie in data/session-0.5.1.ndjson; @PID@ and the like stand for what differs from run to run.
They are sent one after the other, each after its answer, and then again all at once from a file, as
whoever recorded them would.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from mayhem_test import Sleeper, StateDir, agent_path, is_stopped, leases, start_ticks, wait_until

FRAMES = Path(__file__).parent / "data" / "session-0.5.1.ndjson"


class World:
    """The processes and the directory that the frames name."""

    def __init__(self, sleepers, tmp_path):
        self.web, self.last = sleepers(2)
        gone = Sleeper()
        gone.close()
        self.dir = tmp_path
        self.values = {"@PID@": self.web.pid, "@TICKS@": start_ticks(self.web.pid), "@PID2@": self.last.pid,
                       "@TICKS2@": start_ticks(self.last.pid), "@GONE@": gone.pid, "@DIR@": tmp_path}

    def frames(self):
        text = FRAMES.read_text()
        for word, value in self.values.items():
            text = text.replace(word, str(value))
        return text


@pytest.fixture
def world(sleepers, tmp_path):
    return World(sleepers, tmp_path)


def check(replies, strays, world):
    """Everything that a 0.5.1 controller relies on, by the ids of the frames."""
    def result(number, ok=None):
        assert "error" not in replies[number], replies[number]
        r = replies[number]["result"]
        if ok is not None:
            assert r["ok"] is ok and r["state"] == "done" and isinstance(r["detail"], str), r
        return r

    def error(number, code, words):
        e = replies[number]["error"]
        assert e["code"] == code and words in e["message"], e

    assert all(r["jsonrpc"] == "2.0" for r in replies.values())
    hello = result(1)
    assert hello["protocol"] == "mayhem/1" and hello["agent_id"] and hello["agent_version"] and "proc" in hello["roles"]
    caps = result(2)
    assert {"proc", "process"} <= set(caps["faults"]) and caps["faults"] == sorted(caps["faults"])
    pong = result(3)
    assert pong["pong"] is True and pong["inflight"] == 0 and pong["owned_leases"] == 0

    pause = result(4, ok=True)
    assert pause["task_id"] == "t-000001" and pause["lease"]["id"] == "l-00000042" and pause["lease"]["state"] == "active"
    assert pause["lease"]["created_at"] > "2026-01-03"  # the controller's own times are accepted and ignored
    for number in (5, 6):
        status = result(number)
        assert status["tasks"] == [{"task_id": "t-000001", "state": "done", "detail": pause["detail"]}]
        assert [w["lease_id"] for w in status["watchdog"]] == ["l-00000042"] and 100 < status["watchdog"][0]["expires_in_s"] <= 120
        assert status["compensated"] == []
    assert result(7, ok=True)["lease"]["state"] == "released"
    assert result(8, ok=True)["lease"]["state"] == "released"  # asked again, the same

    assert "pid-reuse guard" in result(9, ok=False)["detail"]
    assert result(9)["lease"]["state"] == "expired"
    result(10, ok=True)  # there is nothing to undo
    result(11, ok=False)
    result(12, ok=False)
    gone = result(13, ok=False)
    assert "gone" in gone["detail"] and gone["reason"] == "target_gone"
    assert "unplannable" in result(14, ok=False)["detail"]

    assert result(15, ok=True)["lease"]["state"] == "active"
    undone = result(16, ok=True)["lease"]
    assert undone["state"] == "released" and undone["verified_by"] == "undo.exit_status"
    failed = result(17, ok=False)
    assert "no space of ours" in failed["detail"] and failed["reason"] == "failed_to_apply"
    for number in (18, 19, 20):
        assert result(number, ok=True)["lease"]["state"] == "active"
    result(21, ok=False)  # a payload without payload and marker
    error(22, -32602, "quantum.flip")
    result(23, ok=True)
    for number in (24, 25):
        r = replies[number]
        assert r["error"]["code"] == -32602 if "error" in r else r["result"]["ok"] is False

    error(26, -32601, "no such method:")
    error(27, -32602, "`lease_id`")
    error(28, -32602, "`run_id` and `agent_id`")
    error(29, -32602, "`agent_id`")  # before the method is looked up
    assert [s["error"]["code"] for s in strays] == [-32700, -32600]
    assert strays[0]["error"]["message"].startswith("bad json:")
    error(32, -32600, "`extra`")
    assert result(33) == {"task_id": "t-000099", "state": "unknown"}
    assert result(34, ok=True)["lease"]["state"] == "active"
    assert result("last")["pong"] is True
    assert set(replies) == {*range(1, 30), 32, 33, 34, "last"}


def check_left(state, world):
    """Everything that was live at EOF was undone."""
    assert not world.web.stopped and not world.last.stopped
    assert list(world.dir.iterdir()) == []
    records = leases(state)
    assert records and all(r.at_safe_end for r in records.values())
    assert all(key.startswith("d-") for key in records)  # its numbers never meet ours


def test_one_by_one(agents, state, world):
    agent = agents(state, handshake=False)
    replies, strays = {}, []
    for line in world.frames().splitlines():
        agent.send_raw(line.encode() + b"\n")
        try:
            frame = json.loads(line)
        except ValueError:
            frame = []
        if isinstance(frame, list):
            strays.append(agent.stray())
            continue
        if "method" not in frame or "id" not in frame:
            continue
        replies[frame["id"]] = agent.wait(frame["id"])
        if frame["id"] == 4:
            assert world.web.stopped
        elif frame["id"] in (7, 9):
            assert not world.web.stopped
        elif frame["id"] == 15:
            assert (world.dir / "latency").exists()
        elif frame["id"] == 16:
            assert not (world.dir / "latency").exists()
        elif frame["id"] == 20:
            assert sorted(p.name for p in world.dir.iterdir()) == ["cpu.throttle", "fs.read_only", "process.crash_loop"]
        elif frame["id"] == 34:
            assert world.last.stopped
    check(replies, strays, world)
    assert agent.eof() == 0
    check_left(state, world)


def test_all_at_once(state, world, tmp_path_factory):
    """From a file to a file: no answer depends on when the next frame comes, but tallies do."""
    folder = tmp_path_factory.mktemp("replay")
    (folder / "in").write_text(world.frames())
    with (folder / "in").open("rb") as stdin, (folder / "out").open("wb") as stdout:
        done = subprocess.run([agent_path(), "serve", "--state", str(state)], stdin=stdin, stdout=stdout,
                              stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    frames = [json.loads(line) for line in (folder / "out").read_text().splitlines()]
    replies = {f["id"]: f for f in frames if f["id"] is not None}
    strays = [f for f in frames if f["id"] is None]
    # These say how things stand at that moment, which is another one here.
    for number in (5, 6):
        assert set(replies[number]["result"]) == {"tasks", "watchdog", "compensated", "next"}
        del replies[number]
    assert replies.pop(3)["result"]["pong"] is True
    assert [replies[n]["result"]["ok"] for n in (4, 7, 8, 15, 16, 34)] == [True] * 6
    assert replies[4]["result"]["lease"]["state"] == "active"
    assert replies[9]["result"]["ok"] is False and "pid-reuse guard" in replies[9]["result"]["detail"]
    assert [s["error"]["code"] for s in strays] == [-32700, -32600]
    assert set(replies) == {1, 2, 4, *range(7, 30), 32, 33, 34, "last"}
    check_left(state, world)


def test_roles_as_the_controller_gives_them(agents, state, world):
    """0.5.1 starts its agent with --roles proc,fs, and both programs of it know those."""
    agent = agents(state, roles="proc,fs", handshake=False)
    assert agent.handshake()["roles"] == ["proc", "fs"]
    op = [{"op": "signal.cont", "args": {"pid": str(world.web.pid)}}]
    assert agent.execute(agent.declared("l-00000001", "proc.pause", op))["ok"] and world.web.stopped


def test_a_time_to_live_ends_it(agents, state, world):
    agent = agents(state, handshake=False)
    op = [{"op": "signal.cont", "args": {"pid": str(world.web.pid)}}]
    assert agent.execute(agent.declared("l-00000001", "proc.pause", op, ttl=0.2))["ok"]
    wait_until(lambda: not is_stopped(world.web.pid))
    wait_until(lambda: agent.request("task.status")["compensated"] == [{"lease_id": "l-00000001", "state": "expired"}])


def test_stop_and_kill_are_delivered(agents, state, world, sleepers):
    agent = agents(state, handshake=False)
    for n, fault in enumerate(("process.stop", "process.kill")):
        target = sleepers(1)[0]
        lease = agent.declared(f"l-0000000{n}", fault, [{"op": "noop.resume", "args": {"pid": str(target.pid)}}])
        assert agent.execute(lease)["ok"]
        assert target.popen.wait(5) == (-15, -9)[n]
        assert agent.execute(lease, "undo")["ok"]


def test_a_killed_agent_leaves_it_to_its_holders(agents, state, world):
    """What 0.5.1 could not: SIGKILL of the agent undoes a declared pause as well."""
    agent = agents(state, handshake=False)
    op = [{"op": "signal.cont", "args": {"pid": str(world.web.pid), "boot_time": str(start_ticks(world.web.pid))}}]
    assert agent.execute(agent.declared("l-00000042", "proc.pause", op))["ok"] and world.web.stopped
    agent.kill()
    wait_until(lambda: not world.web.stopped)
