"""The wire: every method, every error by its code and reason, order, paging, events, and the end of a session."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from mayhem_test import (Agent, Proc, RpcError, SessionEnded, StateDir, agent_path, is_stopped, reap_orphans, run_agent,
                         start_ticks, wait_until)

DELAYS = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: None)\nprint('r', flush=True)\ntime.sleep(1e6)"
GONE = 999_999  # above pid_max of a test machine, or at least nobody


class Stubborn(Proc):
    """A process that notices SIGTERM and stays."""

    def __init__(self):
        super().__init__([sys.executable, "-c", DELAYS], stdout=subprocess.PIPE)
        self.popen.stdout.readline()


@pytest.fixture
def stubborn(nothing_left):
    with Stubborn() as target:
        yield target


def refused(agent, code, reason, method, params=None, **kw):
    """The request is refused with this code and reason, and the session goes on."""
    with pytest.raises(RpcError) as e:
        agent.request(method, params, **kw)
    assert (e.value.code, e.value.reason) == (code, reason), e.value
    assert e.value.message and e.value.stage
    assert agent.ping()["pong"] is True
    return e.value


def execute(agent, lease, fault="proc.pause", phase=None, **kw):
    params = {"fault_id": fault, "lease": lease, **({"phase": phase} if phase else {}), **kw}
    return {k: v for k, v in params.items() if v is not None}


def pause_op(pid, **args):
    return [{"op": "signal.cont", "args": {"pid": str(pid), **args}}]


# -- handshake, capabilities, ping


def test_handshake(agents, state):
    agent = agents(state, handshake=False)
    answer = agent.handshake(owner="alice", session="s-1", protocols=["mayhem/0", "mayhem/1"], survive=False,
                             heartbeat_s=0, events=False, capabilities={}, authority={})
    assert answer["protocol"] == "mayhem/1"
    assert answer["roles"] == ["proc", "fs", "res", "net", "engine", "host", "job"]
    assert answer["agent_version"].count(".") == 2
    host = answer["host"]
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        assert host["boot_id"] == f.read().strip()
    assert (host["hostname"], host["kernel"], host["arch"]) == (os.uname().nodename, os.uname().release, os.uname().machine)
    assert abs(answer["clock_ms"] - time.time() * 1000) < 5000
    # Unique: host, boot, pid, start.
    assert str(agent.pid) in answer["agent_id"] and str(start_ticks(agent.pid)) in answer["agent_id"]
    assert host["hostname"] in answer["agent_id"] and host["boot_id"][:8] in answer["agent_id"]


def test_owner_of_leases(agents, state, sleeper):
    assert agents(StateDir()).inject(sleeper.pid)["owner"] == f"uid:{os.getuid()}"
    agent = agents(state, handshake={"owner": "alice"})
    other = Stubborn()
    try:
        assert agent.inject(other.pid)["owner"] == "alice"
        assert [l["owner"] for l in agent.lease_list(mine=True)] == ["alice"]
    finally:
        agent.eof()
        other.close()


@pytest.mark.parametrize("params, reason", [
    ({"protocols": ["mayhem/2"]}, "params.range"),
    ({"protocols": []}, "params.range"),
    ({"protocols": "mayhem/1"}, "params.type"),
    ({"heartbeat_s": -1}, "params.range"),
    ({"heartbeat_s": 3601}, "params.range"),
    ({"heartbeat_s": 1.5}, "params.type"),
    ({"heartbeat_s": "1"}, "params.type"),
    ({"events": 1}, "params.type"),
    ({"survive": "yes"}, "params.type"),
    ({"owner": ""}, "params.range"),
    ({"owner": 7}, "params.type"),
    ({"owner": "x" * 256}, "params.type"),
    ({"session": "a\nb"}, "params.type"),
    ({"capabilities": []}, "params.type"),
    ({"capabilities": {"max_leases": 1}}, "params.type"),
    ({"capabilities": {"allowed_faults": "proc"}}, "params.type"),
    ({"caps": {}}, "params.unknown"),
])
def test_handshake_refuses(agent, params, reason):
    refused(agent, -32602, reason, "handshake", params)


def test_a_refused_handshake_changes_nothing(agents, state, sleeper):
    agent = agents(state, handshake=False)
    refused(agent, -32602, "params.type", "handshake", events=True, survive=True, heartbeat_s=1, owner=7)
    agent.handshake()
    lease = agent.inject(sleeper.pid)
    assert lease["survive"] is False and lease["owner"] == f"uid:{os.getuid()}"
    assert agent.events == []


def test_capabilities_query(agent):
    answer = agent.request("capabilities.query")
    assert answer["faults"] == sorted(answer["faults"]) and {"proc", "process", "net"} <= set(answer["faults"])
    catalog = {f["id"]: f for f in answer["catalog"]}
    pause = catalog["proc.pause"]
    assert pause["executable"] is True and pause["reason"] is None and pause["undo_kind"] == "recorded"
    assert pause["targets"] == ["process", "service", "container"]
    assert {p["name"] for p in pause["params"]} == {"scope"}
    assert answer["kernel"]["release"] == os.uname().release
    assert answer["next"] is None


def test_capabilities_query_by_pages(agent):
    whole = [f["id"] for f in agent.request("capabilities.query")["catalog"]]
    paged, after = [], None
    for _ in range(len(whole) + 1):
        page = agent.request("capabilities.query", {"limit": 1, **({"after": after} if after else {})})
        assert len(page["catalog"]) == 1
        paged.append(page["catalog"][0]["id"])
        after = page["next"]
        if after is None:
            break
    assert paged == whole
    refused(agent, -32602, "params.range", "capabilities.query", limit=0)
    refused(agent, -32602, "params.range", "capabilities.query", limit=501)


def test_ping(agent, sleeper):
    assert agent.ping() | {"clock_ms": 0} == {"pong": True, "inflight": 0, "owned_leases": 0, "clock_ms": 0}
    agent.inject(sleeper.pid)
    pong = agent.ping()
    assert (pong["inflight"], pong["owned_leases"]) == (0, 1)
    assert abs(pong["clock_ms"] - time.time() * 1000) < 5000


# -- errors that every method shares


@pytest.mark.parametrize("params, reason, word", [
    ({}, "params.missing", "`run_id` and `agent_id`"),
    ({"run_id": "r"}, "params.missing", "`agent_id`"),
    ({"agent_id": "a"}, "params.missing", "`run_id`"),
    ({"run_id": "", "agent_id": "a"}, "params.type", "`run_id`"),
    ({"run_id": 7, "agent_id": "a"}, "params.type", "`run_id`"),
    ({"run_id": "r", "agent_id": None}, "params.type", "`agent_id`"),
    ({"run_id": "x" * 256, "agent_id": "a"}, "params.range", "`run_id`"),
    ({"run_id": "a\nb", "agent_id": "a"}, "params.range", "`run_id`"),
])
@pytest.mark.parametrize("method", ["health.ping", "no.such.method"])
def test_correlation_keys_come_first(agent, method, params, reason, word):
    agent.send({"id": "c", "method": method, "params": params})
    error = agent.wait("c")["error"]
    assert (error["code"], error["data"]["reason"]) == (-32602, reason)
    assert word in error["message"]


@pytest.mark.parametrize("method", ["", "ping", "health", "Health.Ping", "job.launch", "job.list", "job.output",
                                    "job.kill", "job.ack", "exec.run", "approval.list", "approval.decide", "x" * 5000])
def test_unknown_methods(agent, method):
    error = refused(agent, -32601, "method.unknown", method)
    assert error.message.startswith("no such method:")


@pytest.mark.parametrize("method", ["health.ping", "capabilities.query", "task.status", "task.cancel", "lease.list",
                                    "lease.extend", "lease.release", "handshake", "task.execute"])
def test_unknown_parameters_are_named(agent, method):
    full = {"lease_id": "l-00000001", "task_id": "t-000001", "ttl_seconds": 5} if "lease." in method else {}
    if method == "task.cancel":
        full = {"task_id": "t-000001"}
    if method == "lease.list":
        full = {}
    full.pop("task_id", None) if method != "task.cancel" else None
    if method == "lease.release":
        full.pop("ttl_seconds")
    error = refused(agent, -32602, "params.unknown", method, {**full, "surprise": 1})
    assert "`surprise`" in error.message


def test_ids_come_back_as_they_were(agent):
    for number in (0, -1, 2**63 - 1, -2**63, "", "a", "1", "é\u0001"):
        agent.send({"id": number, "method": "health.ping", "params": {"run_id": "r", "agent_id": "a"}})
        reply = agent.wait(number)
        assert reply["id"] == number and type(reply["id"]) is type(number)
        assert reply["jsonrpc"] == "2.0" and "error" not in reply


def test_notifications_and_responses_are_never_answered(agent, sleeper):
    agent.notify("health.ping", run_id="r", agent_id="a")
    agent.notify("no.such.thing")
    agent.notify("log.emit", anything=[1, 2])
    agent.notify("task.execute", execute(agent, agent.native(sleeper.pid)) | {"run_id": "r", "agent_id": "a"})
    agent.send({"id": 5, "result": {}})
    agent.send({"id": 6, "error": {"code": 1, "message": "x"}})
    agent.send({})
    agent.ping()
    assert agent.strays == [] and agent.replies == {} and not sleeper.stopped
    assert agent.ping()["owned_leases"] == 0


# -- task.execute, native


def test_inject_observe_undo(agent, sleeper):
    answer = agent.execute(agent.native(sleeper.pid, duration_ms=60000))
    assert re.fullmatch(r"t-\d{6}", answer["task_id"])
    assert (answer["state"], answer["ok"], answer["reason"]) == ("done", True, None)
    lease = answer["lease"]
    assert lease["state"] == "active" and lease["id"] == "l-00000001" and lease["injected_at"] >= lease["created_at"]
    assert lease["target"]["pid"] == sleeper.pid and lease["target"]["start_ticks"] == start_ticks(sleeper.pid)
    assert answer["observation"]["effect"] == "present" and answer["observation"]["value"] == 1
    assert sleeper.stopped
    assert agent.record(lease["id"]).state == "active"

    seen = agent.execute({"id": lease["id"], "fault_id": "proc.pause"}, "observe")
    assert seen["ok"] and seen["observation"]["effect"] == "present"

    undone = agent.execute({"id": lease["id"], "fault_id": "proc.pause"}, "undo")
    assert undone["ok"] and undone["lease"]["state"] == "released" and not sleeper.stopped
    assert undone["lease"]["release_mechanism"] == "normal"
    verified = agent.execute({"id": lease["id"], "fault_id": "proc.pause"}, "verify")
    assert verified["ok"] and verified["observation"]["effect"] == "absent"


def test_undo_asked_again_answers_the_same(agent, sleeper):
    lease = agent.inject(sleeper.pid)
    first = agent.execute({"id": lease["id"], "fault_id": "proc.pause"}, "undo")
    second = agent.execute({"id": lease["id"], "fault_id": "proc.pause"}, "undo")
    assert (first["ok"], second["ok"]) == (True, True)
    assert first["lease"] == second["lease"]
    assert agent.release(lease["id"])["lease"] == first["lease"]
    assert first["task_id"] != second["task_id"]


def test_check_changes_nothing(agent, sleeper):
    answer = agent.execute(agent.native(sleeper.pid), "check")
    assert answer["ok"] is True and not sleeper.stopped and agent.records() == {}
    sleeper.stop()
    answer = agent.execute(agent.native(sleeper.pid), "check")
    assert answer["ok"] is False and answer["reason"] in ("no_effect", "resource_conflict")
    assert agent.records() == {} and agent.ping()["owned_leases"] == 0


def test_verify_of_a_live_lease_says_that_the_effect_is_there(agent, sleeper):
    lease = agent.inject(sleeper.pid)
    answer = agent.execute({"id": lease["id"], "fault_id": "proc.pause"}, "verify")
    assert (answer["ok"], answer["reason"]) == (False, "verify_failed")
    assert sleeper.stopped and answer["observation"]["effect"] == "present"


def test_duration_and_deadline(agent, sleepers):
    short, long = sleepers(2)
    first = agent.inject(short.pid, duration_ms=150)
    second = agent.inject(long.pid, ttl=0.15)
    assert agent.wait_state(first["id"], "released").mechanism == "normal"
    assert agent.wait_state(second["id"], "released").mechanism == "deadline"
    assert second["ttl_seconds"] == 0.15 and second["duration_ms"] == 600_000
    assert not short.stopped and not long.stopped


def test_extend(agent, sleeper):
    lease = agent.inject(sleeper.pid, ttl=1)
    answer = agent.extend(lease["id"], 120)
    assert answer["ok"] and answer["lease"]["deadline_boottime_ms"] > lease["deadline_boottime_ms"] + 100_000
    assert agent.record(lease["id"])["deadline_boottime_ms"] == answer["lease"]["deadline_boottime_ms"]
    assert agent.extend(lease["id"], 0.2)["ok"]  # shorter is an extension as well: from now
    assert agent.wait_state(lease["id"], "released").mechanism == "deadline"


@pytest.mark.parametrize("ttl, reason", [(0, "params.range"), (-1, "params.range"), (661, "params.range"),
                                         (1e300, "params.range"), ("5", "params.type"), (None, "params.type"),
                                         (True, "params.type")])
def test_extend_refuses(agent, sleeper, ttl, reason):
    lease = agent.inject(sleeper.pid)
    refused(agent, -32602, reason, "lease.extend", lease_id=lease["id"], ttl_seconds=ttl)


def test_lease_ids_that_are_none(agent):
    for method in ("lease.extend", "lease.release"):
        more = {"ttl_seconds": 5} if method == "lease.extend" else {}
        refused(agent, -32602, "params.missing", method, more)
        refused(agent, -32602, "params.type", method, lease_id=7, **more)
        for bad in ("", "x", "l-1", "../../etc/passwd", "l-0000000/", "d-zz", "l-00000001.log"):
            refused(agent, -32602, "lease.unknown", method, lease_id=bad, **more)
    refused(agent, -32602, "lease.unknown", "lease.release", lease_id="l-00000099")
    refused(agent, -32001, "lease.not_yours", "lease.extend", lease_id="l-00000099", ttl_seconds=5)
    for phase in ("undo", "verify"):
        refused(agent, -32602, "lease.unknown", "task.execute",
                execute(agent, {"id": "l-00000099"}, phase=phase))
    refused(agent, -32001, "lease.not_yours", "task.execute", execute(agent, {"id": "l-00000099"}, phase="observe"))
    refused(agent, -32602, "params.missing", "task.execute", execute(agent, None, phase="undo"))


def test_leases_of_other_sessions(agents, agent, sleeper):
    lease = agent.inject(sleeper.pid)
    other = agents(agent.state)
    refused(other, -32001, "lease.not_yours", "lease.extend", lease_id=lease["id"], ttl_seconds=5)
    refused(other, -32001, "lease.not_yours", "task.execute", execute(other, {"id": lease["id"]}, phase="observe"))
    assert [l["id"] for l in other.lease_list()] == [lease["id"]]
    answer = other.release(lease["id"])
    assert answer["ok"] and answer["lease"]["state"] == "released" and not sleeper.stopped
    assert agent.alive
    assert agent.execute({"id": lease["id"], "fault_id": "proc.pause"}, "undo")["ok"]


@pytest.mark.parametrize("change, code, reason", [
    ({"fault": None}, -32602, "params.missing"),
    ({"fault": ""}, -32602, "params.type"),
    ({"fault": 7}, -32602, "params.type"),
    ({"fault": "proc.puase"}, -32602, "fault.unknown"),
    ({"fault": "no.such"}, -32602, "fault.unknown"),
    ({"phase": "injct"}, -32602, "params.range"),
    ({"phase": 1}, -32602, "params.type"),
    ({"phase": None, "surprise": 1}, -32602, "params.unknown"),
])
def test_tasks_refused_by_their_parameters(agent, sleeper, change, code, reason):
    fault = change.pop("fault", "proc.pause")
    phase = change.pop("phase", None)
    lease = agent.native(sleeper.pid, fault_id=None)
    params = {"fault_id": fault, "lease": lease, "phase": phase, **change}
    refused(agent, code, reason, "task.execute", {k: v for k, v in params.items() if v is not None})
    assert agent.records() == {} and not sleeper.stopped


LEASES_REFUSED = [
    ({"fault_id": "process.kill"}, "lease.shape"),  # the task says proc.pause
    ({"surprise": 1}, "lease.shape"),
    ({"id": "x-1"}, "lease.shape"),
    ({"id": "l-1"}, "lease.shape"),
    ({"id": 7}, "lease.shape"),
    ({"run_id": ""}, "lease.shape"),
    ({"run_id": "x" * 256}, "lease.shape"),
    ({"owner_agent": "a\nb"}, "lease.shape"),
    ({"targets": "proc-web"}, "lease.shape"),
    ({"targets": [1]}, "lease.shape"),
    ({"targets": ["a\nb"]}, "lease.shape"),
    ({"survive": 1}, "lease.shape"),
    ({"undo_ops": []}, "lease.shape"),  # both native and declared
    ({"target": None}, "lease.shape"),  # neither
    ({"target": "4711"}, "target.kind"),
    ({"target": {"pid": 4711}}, "target.kind"),
    ({"target": {"kind": "pod"}}, "target.kind"),
    ({"target": {"kind": "host"}}, "target.kind"),
    ({"target": {"kind": "container", "engine": "podman", "id": "0" * 64}}, "target.kind"),
    ({"target": {"kind": "process"}}, "params.missing"),
    ({"target": {"kind": "process", "pid": "4711"}}, "params.type"),
    ({"target": {"kind": "process", "pid": 1.5}}, "params.type"),
    ({"target": {"kind": "process", "pid": 4711, "name": "x"}}, "params.unknown"),
    ({"target": {"kind": "process", "pid": 4711, "start_ticks": "1"}}, "params.type"),
    ({"target": {"kind": "process", "pid": 4711, "boot_id": 1}}, "params.type"),
    ({"params": []}, "params.type"),
    ({"params": {"scope": "all"}}, "params.range"),
    ({"params": {"scope": 1}}, "params.type"),
    ({"params": {"scoop": "tree"}}, "params.unknown"),
    ({"duration_ms": 0}, "params.range"),
    ({"duration_ms": -1}, "params.range"),
    ({"duration_ms": 600_001}, "params.range"),
    ({"duration_ms": 2**63 - 1}, "params.range"),
    ({"duration_ms": 1.5}, "params.type"),
    ({"duration_ms": "10s"}, "params.type"),
    ({"ttl_seconds": 0}, "params.range"),
    ({"ttl_seconds": -1}, "params.range"),
    ({"ttl_seconds": 661}, "params.range"),
    ({"ttl_seconds": 0.0001}, "params.range"),
    ({"ttl_seconds": 1e300}, "params.range"),
    ({"ttl_seconds": "120"}, "params.type"),
    ({"ttl_seconds": True}, "params.type"),
]


def test_leases_refused(agent, sleeper):
    for change, reason in LEASES_REFUSED:
        lease = {k: v for k, v in (agent.native(sleeper.pid) | change).items() if v is not None}
        try:
            refused(agent, -32602, reason, "task.execute", execute(agent, lease))
        except AssertionError as e:
            raise AssertionError(f"{change}: {e}") from e
    for nothing in ("x", [], 7):
        refused(agent, -32602, "lease.shape", "task.execute", execute(agent, nothing))
    refused(agent, -32602, "params.missing", "task.execute", {"fault_id": "proc.pause"})
    assert agent.records() == {} and not sleeper.stopped


def test_parameters_of_stop(agent, sleeper):
    for change, reason in [({"grace": -1}, "params.range"), ({"grace": 301}, "params.range"), ({"grace": "x"}, "params.type"),
                           ({"grace": "400s"}, "params.range"), ({"grace": []}, "params.type"),
                           ({"escalate": "true"}, "params.type"), ({"escalate": 1}, "params.type")]:
        refused(agent, -32602, reason, "task.execute",
                execute(agent, agent.native(sleeper.pid, "process.stop", params=change), "process.stop"))
    assert sleeper.popen.poll() is None


def test_protected_targets(agent, sleeper):
    holder = agent.holder_pid(agent.inject(sleeper.pid)["id"])
    kthread = next((int(p) for p in os.listdir("/proc") if p.isdigit() and _is_kernel_thread(int(p))), None)
    pids = [1, 0, -1, -agent.pid, 2**31, 2**40, agent.pid, os.getpid(), holder] + ([kthread] if kthread else [])
    for pid in pids:
        error = refused(agent, -32001, "target.protected", "task.execute", execute(agent, agent.native(pid)))
        assert error.remedy
    assert len(agent.records()) == 1


def test_protected_targets_of_declared_leases(agent, sleeper):
    """A declared lease may name a pid as well: what is protected is so for it too."""
    holder = agent.holder_pid(agent.inject(sleeper.pid)["id"])
    for pid in (agent.pid, os.getpid(), holder):
        for fault in ("proc.pause", "process.kill"):
            refused(agent, -32001, "target.protected", "task.execute",
                    execute(agent, agent.declared(f"l-{pid}", fault, pause_op(pid)), fault))
    # These are answered as 0.5.1 did.
    for pid in (1, 0, -1, -agent.pid, 2**31):
        answer = agent.execute(agent.declared(f"l-{pid}", "process.kill", pause_op(pid)))
        assert answer["ok"] is False and answer["lease"]["state"] == "expired"


def _is_kernel_thread(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return int(f.read().rpartition(b")")[2].split()[6]) & 0x00200000
    except OSError:
        return False


def test_targets_that_are_not_there(agent, sleeper):
    sleeper.kill()
    refused(agent, -32001, "target.gone", "task.execute", execute(agent, agent.native(sleeper.pid)))


def test_drift(agent, sleeper):
    for more in ({"start_ticks": start_ticks(sleeper.pid) + 1}, {"boot_id": "0" * 8 + "-0000-4000-8000-" + "0" * 12}):
        lease = agent.native(sleeper.pid, target={"kind": "process", "pid": sleeper.pid, **more})
        assert refused(agent, -32001, "target_drift", "task.execute", execute(agent, lease)).remedy
    assert agent.records() == {} and not sleeper.stopped
    lease = agent.native(sleeper.pid, target={"kind": "process", "pid": sleeper.pid, "start_ticks": start_ticks(sleeper.pid)})
    assert agent.execute(lease)["ok"]


def test_what_happens_after_a_record_is_a_result(agents, agent, sleeper):
    first = agent.inject(sleeper.pid)
    answer = agent.execute(agent.native(sleeper.pid))
    assert (answer["ok"], answer["reason"]) == (False, "resource_conflict")
    assert answer["lease"]["state"] == "expired" and answer["lease"]["release_mechanism"] == "resource_conflict"
    agent.release(first["id"])
    assert not sleeper.stopped
    sleeper.stop()
    answer = agent.execute(agent.native(sleeper.pid))
    assert answer["ok"] is False and answer["reason"] in ("no_effect", "resource_conflict")
    assert answer["lease"]["state"] == "expired"
    assert sleeper.stopped  # as it was


def test_stop_without_effect(agent, stubborn):
    answer = agent.execute(agent.native(stubborn.pid, "process.stop", params={"grace": 0.1}))
    assert (answer["ok"], answer["reason"]) == (False, "no_effect")
    assert answer["lease"]["state"] == "released" and stubborn.popen.poll() is None


def test_kill_is_released_at_once(agent, sleeper):
    answer = agent.execute(agent.native(sleeper.pid, "process.kill"))
    assert answer["ok"] and answer["lease"]["state"] == "released" and answer["lease"]["undo_kind"] == "irreversible"
    assert sleeper.popen.wait(5) == -signal.SIGKILL


# -- order and concurrency


def test_a_ping_is_answered_while_an_injection_runs(agent, stubborn):
    lease = agent.native(stubborn.pid, "process.stop", params={"grace": 60})
    running = agent.start("task.execute", execute(agent, lease, "process.stop"))
    wait_until(lambda: any(r.state == "active" for r in agent.records().values()))
    started = time.monotonic()
    pong = agent.ping()
    assert time.monotonic() - started < 1 and (pong["inflight"], pong["owned_leases"]) == (1, 1)
    status = agent.request("task.status")
    assert [t["state"] for t in status["tasks"]] == ["running"]
    assert [w["task_id"] for w in status["watchdog"]] == ["t-000001"]
    assert running not in agent.replies
    stubborn.popen.kill()
    answer = agent.result(running)
    assert answer["ok"] and answer["task_id"] == "t-000001"
    assert agent.ping()["inflight"] == 0


def test_cancel_interrupts_and_undoes(agent, stubborn):
    lease = agent.native(stubborn.pid, "process.stop", params={"grace": 60})
    running = agent.start("task.execute", execute(agent, lease, "process.stop"))
    wait_until(lambda: agent.ping()["owned_leases"] == 1)
    wait_until(lambda: any(r.state == "active" for r in agent.records().values()))
    started = time.monotonic()
    assert agent.request("task.cancel", task_id="t-000001") == {"task_id": "t-000001", "state": "cancelled"}
    assert time.monotonic() - started < 5
    answer = agent.result(running)
    assert (answer["state"], answer["ok"], answer["reason"]) == ("cancelled", False, "cancelled")
    assert answer["lease"]["state"] == "released" and answer["lease"]["release_mechanism"] == "cancelled"
    assert agent.request("task.status", task_id="t-000001")["tasks"][0]["state"] == "cancelled"


def test_cancel_of_an_injected_fault_undoes_it(agent, sleeper):
    task = agent.execute(agent.native(sleeper.pid))["task_id"]
    assert agent.request("task.cancel", task_id=task) == {"task_id": task, "state": "cancelled"}
    assert not sleeper.stopped
    assert agent.record("l-00000001").mechanism == "cancelled"


def test_cancel_of_nothing(agent):
    assert agent.request("task.cancel", task_id="t-000099") == {"task_id": "t-000099", "state": "unknown"}
    assert agent.request("task.cancel", task_id="")["state"] == "unknown"
    refused(agent, -32602, "params.missing", "task.cancel")
    refused(agent, -32602, "params.type", "task.cancel", task_id=1)


def test_requests_on_one_lease_are_served_in_order(agent, sleepers):
    """Inject, undo, inject, undo … of one declared lease, sent at once: each is served after the one before."""
    target = sleepers(1)[0]
    numbers = []
    lease = agent.declared("l-00000042", "proc.pause", pause_op(target.pid))
    for _ in range(5):
        for phase in ("inject", "undo"):
            numbers.append(agent.start("task.execute", execute(agent, lease, phase=phase)))
    for n, number in enumerate(numbers):
        answer = agent.result(number)
        assert answer["ok"] is True, (n, answer)
        assert answer["lease"]["state"] == ("released" if n % 2 else "active"), (n, answer)
    assert not target.stopped


def test_release_waits_for_the_injection_before_it(agent, sleepers):
    for target in sleepers(10):
        lease = agent.declared(f"l-{target.pid:08}", "proc.pause", pause_op(target.pid))
        first = agent.start("task.execute", execute(agent, lease))
        second = agent.start("task.execute", execute(agent, lease, phase="undo"))
        assert agent.result(first)["ok"] is True
        assert agent.result(second)["ok"] is True
        assert not target.stopped


def test_the_same_declared_lease_again_injects_nothing(agent, sleeper):
    lease = agent.declared("l-00000042", "proc.pause", pause_op(sleeper.pid))
    first = agent.execute(lease)
    again = agent.execute(lease)
    assert first["ok"] and again["ok"] and again["lease"] == first["lease"]
    assert len(agent.records()) == 1 and agent.ping()["owned_leases"] == 1
    # Also while the first is not done yet.
    other = agent.declared("l-00000043", "no.op", [{"op": "noop", "args": {}}])
    numbers = [agent.start("task.execute", execute(agent, other, "no.op")) for _ in range(5)]
    answers = [agent.result(n) for n in numbers]
    assert all(a["ok"] and a["lease"]["state"] == "active" for a in answers)
    assert len(agent.records()) == 2


def test_a_native_lease_may_bring_its_id(agent, sleepers):
    one, two, three = sleepers(3)
    lease = agent.native(one.pid, id="l-00000041")
    assert agent.execute(lease)["lease"]["id"] == "l-00000041"
    assert refused(agent, -32602, "lease.in_use", "task.execute",
                   execute(agent, agent.native(two.pid, id="l-00000041"))) and not two.stopped
    assert agent.inject(three.pid)["id"] != "l-00000041"
    # In order, like any other requests on one lease.
    first = agent.start("task.execute", execute(agent, agent.native(two.pid, id="l-00000050")))
    second = agent.start("task.execute", execute(agent, {"id": "l-00000050"}, phase="undo"))
    assert agent.result(first)["ok"] and agent.result(second)["lease"]["state"] == "released"
    assert not two.stopped


def test_check_of_a_declared_lease(agent, sleeper):
    good = agent.declared("l-1", "proc.pause", pause_op(sleeper.pid, boot_time=str(start_ticks(sleeper.pid))))
    assert agent.execute(good, "check")["ok"] is True
    wrong = agent.execute(agent.declared("l-1", "proc.pause", pause_op(sleeper.pid, boot_time="1")), "check")
    assert wrong["ok"] is False and "pid-reuse guard" in wrong["detail"]
    assert agent.records() == {} and not sleeper.stopped


def test_observe_and_verify_of_a_declared_lease(agent, sleeper):
    lease = agent.declared("l-1", "proc.pause", pause_op(sleeper.pid))
    assert agent.execute(lease)["ok"]
    assert agent.execute(lease, "observe")["observation"]["effect"] == "present"
    assert agent.execute(lease, "verify")["ok"] is False
    assert agent.execute(lease, "undo")["ok"] and agent.execute(lease, "verify")["ok"] is True


@pytest.mark.parametrize("ops", ["x", {}, [1], [{}], [{"op": 1}], [{"op": "x", "args": []}], [{"op": "x", "args": {"pid": 4711}}],
                                 [{"op": "x", "args": {"pid": None}}], [{"op": "x", "surprise": 1}],
                                 [{"op": "x", "args": {"engine": "/bin/sh", "cont": "c"}}],
                                 [{"op": "x", "args": {"engine": "unix:///etc/passwd", "cont": "c"}}],
                                 [{"op": "x", "args": {"full_id": "c"}}], [{"op": "x", "args": {"pidfs_inode": "7"}}],
                                 [{"op": "x"}] * 257])
def test_undo_ops_refused(agent, ops):
    refused(agent, -32602, "lease.shape", "task.execute", execute(agent, agent.declared("l-1", "proc.pause", ops)))
    assert agent.records() == {}


@pytest.mark.parametrize("argv", ["", "x", "{}", "[]", "[1]", '[""]', '["@engine"]', '["true", "@cont"]', json.dumps(["true"] * 65)])
def test_commands_refused(agent, argv):
    """What is no argv is not run, and no shell would be asked to make one of it."""
    for key in ("inject_argv", "undo_argv"):
        ops = [{"op": "tool", "args": {"inject_argv": '["true"]', key: argv}}]
        try:
            answer = agent.execute(agent.declared("l-1", "net.latency", ops))
        except RpcError as e:
            assert (e.code, e.reason) == (-32602, "lease.shape")
        else:
            assert answer["ok"] is False and answer["lease"]["state"] == "expired", answer
    assert all(r.state == "expired" for r in agent.records().values())


def test_commands_get_no_shell_and_little_else(agent, tmp_path):
    """stdin empty, PATH and HOME alone, the words as they are."""
    out = tmp_path / "out"
    script = 'printf "%s|" "$0" "$@" > "$0"; env | cut -d= -f1 | sort | tr "\n" "," >> "$0"; wc -c >> "$0"'
    ops = [{"op": "tool", "args": {"inject_argv": json.dumps(["sh", "-c", script, str(out), "$(id)", "a b", ";", "*"]),
                                   "undo_argv": '["true"]'}}]
    assert agent.execute(agent.declared("l-1", "net.latency", ops))["ok"]
    words, rest = out.read_text().rsplit("|", 1)
    assert words.split("|")[1:] == ["$(id)", "a b", ";", "*"]
    assert set(rest.split("\n")[0].rstrip("0").split(",")) - {"_", "PWD", "SHLVL", "OLDPWD", ""} == {"HOME", "PATH"}
    assert rest.strip().endswith("0")


def test_a_command_that_hangs_is_cancelled(agent, tmp_path):
    ops = [{"op": "tool", "args": {"inject_argv": json.dumps(["sh", "-c", f"touch {tmp_path}/began; sleep 1000"]),
                                   "undo_argv": json.dumps(["touch", f"{tmp_path}/undone"])}}]
    number = agent.start("task.execute", execute(agent, agent.declared("l-1", "net.latency", ops), "net.latency"))
    wait_until(lambda: (tmp_path / "began").exists())
    assert agent.request("task.cancel", task_id="t-000001")["state"] == "cancelled"
    answer = agent.result(number)
    assert (answer["ok"], answer["reason"]) == (False, "cancelled")
    assert answer["lease"]["state"] == "released" and (tmp_path / "undone").exists()


def test_keys_of_declared_leases_hold_the_run(agents, agent, sleepers):
    """One controller's numbers never meet another's, nor ours."""
    one, two, native = sleepers(3)
    other = agents(agent.state)
    assert agent.execute(agent.declared("l-00000001", "proc.pause", pause_op(one.pid)))["ok"]
    assert other.execute(other.declared("l-00000001", "proc.pause", pause_op(two.pid)))["ok"]
    assert agent.inject(native.pid)["id"] == "l-00000001"
    assert len(agent.records()) == 3
    # The same run and id, live in another session: in use.
    third = agents(agent.state, run_id=agent.run_id)
    refused(third, -32602, "lease.in_use", "task.execute",
            execute(third, third.declared("l-00000001", "proc.pause", pause_op(one.pid))))
    assert one.stopped and two.stopped and native.stopped


# -- lists


def test_lease_list(agents, agent, sleepers):
    leases = [agent.inject(t.pid) for t in sleepers(5)]
    agent.release(leases[0]["id"])
    ids = [l["id"] for l in leases]
    assert [l["id"] for l in agent.lease_list()] == ids[::-1]
    assert [l["id"] for l in agent.lease_list(state="active")] == ids[:0:-1]
    assert [l["id"] for l in agent.lease_list(state="released")] == ids[:1]
    assert agent.lease_list(run="r-none") == [] and len(agent.lease_list(run=agent.run_id)) == 5
    assert len(agent.lease_list(mine=True)) == 5 and len(agent.lease_list(mine=False)) == 5
    paged, after = [], None
    while True:
        page = agent.request("lease.list", {"limit": 2, **({"after": after} if after else {})})
        paged += [l["id"] for l in page["leases"]]
        after = page["next"]
        if after is None:
            break
        assert len(page["leases"]) == 2
    assert paged == ids[::-1]
    for params, reason in [({"limit": 0}, "params.range"), ({"limit": 501}, "params.range"), ({"limit": "2"}, "params.type"),
                           ({"state": "alive"}, "params.range"), ({"state": 1}, "params.type"), ({"mine": 1}, "params.type"),
                           ({"after": 1}, "params.type"), ({"what": 1}, "params.unknown")]:
        refused(agent, -32602, reason, "lease.list", params)


def test_task_status(agent, sleepers):
    tasks = [agent.execute(agent.native(t.pid))["task_id"] for t in sleepers(5)]
    agent.release("l-00000001")
    status = agent.request("task.status")
    assert [t["task_id"] for t in status["tasks"]] == tasks[::-1]
    assert all(set(t) == {"task_id", "state", "detail"} and t["state"] == "done" for t in status["tasks"])
    assert status["compensated"] == [{"lease_id": "l-00000001", "state": "expired"}]
    assert {w["lease_id"] for w in status["watchdog"]} == {f"l-{n:08}" for n in range(2, 6)}
    assert all(100 < w["expires_in_s"] <= 120 and w["state"] == "active" for w in status["watchdog"])
    paged, after = [], None
    while True:
        page = agent.request("task.status", {"limit": 2, **({"after": after} if after else {})})
        paged += [t["task_id"] for t in page["tasks"]]
        after = page["next"]
        if after is None:
            break
    assert paged == tasks[::-1]
    assert [t["task_id"] for t in agent.request("task.status", task_id=tasks[2])["tasks"]] == [tasks[2]]
    assert agent.request("task.status", task_id="t-999999")["tasks"] == []
    for params, reason in [({"limit": 0}, "params.range"), ({"limit": 501}, "params.range"), ({"limit": 1.5}, "params.type"),
                           ({"task_id": 1}, "params.type"), ({"what": 1}, "params.unknown")]:
        refused(agent, -32602, reason, "task.status", params)


def test_long_lists_come_in_frames(agents, state, sleepers):
    """However much is asked for, no answer is longer than a frame: the rest is behind `next`."""
    agent = agents(state)
    filler = [f"node-{n}-" + "x" * 200 for n in range(1000)]
    total = 12
    for n, target in enumerate(sleepers(total)):
        answer = agent.execute(agent.declared(f"l-{n:08}", "proc.pause", pause_op(target.pid), targets=filler))
        assert answer["ok"], answer
    seen, after, pages = set(), None, 0
    while True:
        page = agent.request("lease.list", {"limit": 500, **({"after": after} if after else {})}, timeout=30)
        seen |= {l["id"] for l in page["leases"]}
        pages += 1
        after = page["next"]
        if after is None:
            break
        assert pages < 20
    assert len(seen) == total and pages > 1


def test_a_lease_longer_than_a_frame(agent, sleepers):
    """Answered without its lists, and said so; it is listed, undone and forgotten like any other."""
    small, large = sleepers(2)
    assert agent.inject(small.pid)
    head = len(json.dumps(agent.declared("l-big", "proc.pause", pause_op(large.pid, filler=""))))
    lease = agent.declared("l-big", "proc.pause", pause_op(large.pid, filler="x" * ((1 << 20) - head - 300)))
    answer = agent.execute(lease)
    assert answer["ok"] and large.stopped
    assert answer["lease"]["shortened"] is True and answer["lease"]["undo_ops"] == [] and answer["lease"]["state"] == "active"
    listed, after = [], None
    for _ in range(5):
        page = agent.request("lease.list", {"after": after} if after else {})
        listed += page["leases"]
        after = page["next"]
        if after is None:
            break
    assert {l["id"] for l in listed} == {"l-00000001", "l-big"} and after is None
    assert agent.execute(lease, "undo")["lease"]["state"] == "released" and not large.stopped
    assert len(next(r for r in agent.records().values() if r.id == "l-big")["undo_ops"][0]["args"]["filler"]) > 1_000_000


# -- events


def test_events(agents, state, sleeper):
    agent = agents(state, handshake={"events": True})
    lease = agent.inject(sleeper.pid)
    agent.release(lease["id"])
    agent.event(lambda e: e.get("to") == "released")
    moves = [(e["from"], e["to"]) for e in agent.events if e["kind"] == "lease.moved" and e["lease_id"] == lease["id"]]
    assert moves[-1][1] == "released" and ("pending", "active") in moves
    assert all(a[1] == b[0] for a, b in zip(moves, moves[1:]))  # a chain
    assert [e["seq"] for e in agent.events] == list(range(1, len(agent.events) + 1))
    assert any(e["kind"] == "observation" and e["observation"]["effect"] == "present" for e in agent.events)
    assert next(e for e in agent.events if e.get("to") == "released")["mechanism"] == "normal"
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", e["at"]) for e in agent.events)


def test_no_events_unless_asked_for(agent, sleeper):
    agent.release(agent.inject(sleeper.pid)["id"])
    agent.ping()
    assert agent.events == []


def test_a_target_that_ends_is_told(agents, state, sleeper):
    agent = agents(state, handshake={"events": True})
    lease = agent.inject(sleeper.pid)
    sleeper.kill()
    event = agent.event(lambda e: e.get("to") == "released")
    assert (event["lease_id"], event["mechanism"]) == (lease["id"], "target_gone")


# -- what a session may do


# Never today, and not tomorrow should it be midnight.
CLOSED = time.strftime("%a", time.gmtime(time.time() - 3 * 86400)).lower()


def policy(tmp_path, **keys):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(keys))
    return path


@pytest.mark.parametrize("keys, reason", [
    ({"allowed_faults": ["net"]}, "agent.capability.denied"),
    ({"capabilities": []}, "agent.capability.denied"),
    ({"capabilities": ["fault_undo"]}, "agent.capability.denied"),
    ({"allowed_resources": ["nobody"]}, "agent.capability.denied"),
    ({"denied_faults": ["proc"]}, "policy.denied"),
    ({"max_leases": 0}, "policy.denied"),
    ({"max_duration_s": 5}, "policy.denied"),
    ({"windows": [{"days": CLOSED}]}, "policy.denied"),
    ({"approve": ["proc.pause"]}, "approval.required"),
])
def test_policy_refuses(agents, state, sleeper, tmp_path, keys, reason):
    agent = agents(state, policy=policy(tmp_path, **keys))
    error = refused(agent, -32001, reason, "task.execute", execute(agent, agent.native(sleeper.pid, duration_ms=10000)))
    assert "policy.json" in error.message and error.remedy
    assert agent.records() == {} and not sleeper.stopped


def test_policy_of_risk(agents, state, sleeper, tmp_path):
    agent = agents(state, policy=policy(tmp_path, risk_ceiling="low"))
    refused(agent, -32001, "risk.ceiling", "task.execute", execute(agent, agent.native(sleeper.pid, "process.kill"), "process.kill"))
    assert sleeper.popen.poll() is None
    assert agent.inject(sleeper.pid)["state"] == "active"


def test_policy_protects(agents, state, sleeper, tmp_path):
    with open(f"/proc/{sleeper.pid}/comm", encoding="utf-8") as f:
        name = f.read().strip()
    agent = agents(state, policy=policy(tmp_path, protected=[f"process:{name}"]))
    refused(agent, -32001, "target.protected", "task.execute", execute(agent, agent.native(sleeper.pid)))
    refused(agent, -32001, "target.protected", "task.execute",
            execute(agent, agent.declared("l-1", "proc.pause", pause_op(sleeper.pid))))
    assert not sleeper.stopped


def test_policy_of_commands(agents, state, tmp_path):
    agent = agents(state, policy=policy(tmp_path, capabilities=["fault_inject", "fault_undo"]))
    op = [{"op": "tool", "args": {"inject_argv": json.dumps(["touch", str(tmp_path / "ran")])}}]
    refused(agent, -32001, "agent.capability.denied", "task.execute",
            execute(agent, agent.declared("l-1", "net.latency", op), "net.latency"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"max_lease":1}', '{"max_leases":-1}'])
def test_a_policy_that_does_not_read_is_no_policy(state, tmp_path, text):
    path = tmp_path / "policy.json"
    path.write_text(text)
    done = run_agent("serve", "--policy", path, state=state)
    assert done.returncode == 3 and done.stdout == "" and "policy.json" in done.stderr and "[config.policy]" in done.stderr
    done = run_agent("serve", "--policy", tmp_path / "none.json", state=state)
    assert done.returncode == 3


def test_a_handshake_narrows(agents, state, sleepers, tmp_path):
    one, two = sleepers(2)
    agent = agents(state, policy=policy(tmp_path, allowed_faults=["proc.pause", "process"]))
    assert agent.inject(one.pid)["state"] == "active"
    agent.handshake(capabilities={"allowed_faults": ["process.kill", "net"], "capabilities": ["fault_inject"]})
    error = refused(agent, -32001, "agent.capability.denied", "task.execute", execute(agent, agent.native(two.pid)))
    assert "handshake" in error.message
    # What it holds it may always undo.
    assert agent.release("l-00000001")["ok"]


def test_undo_of_others_needs_the_right(agents, agent, sleeper):
    lease = agent.inject(sleeper.pid)
    other = agents(agent.state, handshake={"capabilities": {"capabilities": ["fault_inject"]}})
    refused(other, -32001, "agent.capability.denied", "lease.release", lease_id=lease["id"])
    refused(other, -32001, "agent.capability.denied", "task.execute", execute(other, {"id": lease["id"]}, phase="undo"))
    assert sleeper.stopped


def test_roles(agents, state, sleeper):
    agent = agents(state, roles="fs, net", handshake=False)
    assert agent.handshake()["roles"] == ["fs", "net"]
    answer = agent.request("capabilities.query")
    assert "proc" not in answer["faults"] and {"net", "fs", "fd", "disk"} <= set(answer["faults"])
    assert all(f["executable"] is False and f["reason"] == "role.denied" for f in answer["catalog"])
    refused(agent, -32001, "role.denied", "task.execute", execute(agent, agent.native(sleeper.pid)))
    refused(agent, -32001, "role.denied", "task.execute",
            execute(agent, agent.declared("l-1", "proc.pause", pause_op(sleeper.pid))))
    done = run_agent("serve", "--roles", "prock", state=state)
    assert done.returncode == 2 and "prock" in done.stderr and done.stdout == ""


def test_a_halted_host(agent, sleepers):
    one, two = sleepers(2)
    agent.inject(one.pid)
    assert run_agent("halt", state=agent.state).returncode == 0
    wait_until(lambda: not one.stopped)
    refused(agent, -32001, "host.halted", "task.execute", execute(agent, agent.native(two.pid)))
    assert agent.wait_state("l-00000001", "released").mechanism == "halted"
    assert run_agent("resume", state=agent.state).returncode == 0
    assert agent.inject(two.pid)["state"] == "active"


# -- the end


def test_eof_undoes_everything(agent, sleepers):
    targets = sleepers(5)
    for t in targets:
        agent.inject(t.pid)
    assert agent.eof() == 0
    assert not any(t.stopped for t in targets)
    records = agent.records()
    assert len(records) == 5 and all(r.state == "released" and r.mechanism == "agent_lost" and r.in_ended for r in records.values())


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it(agent, sleepers, stubborn, signo):
    one, two = sleepers(2)
    agent.inject(one.pid)
    running = agent.start("task.execute", execute(agent, agent.native(stubborn.pid, "process.stop", params={"grace": 60}), "process.stop"))
    wait_until(lambda: any(r.state == "active" for r in agent.records().values() if r["fault_id"] == "process.stop"))
    started = time.monotonic()
    agent.signal(signo)
    assert agent.wait_exit() == 0
    assert time.monotonic() - started < 5  # it did not wait for the grace
    assert not one.stopped
    assert agent.replies[running]["result"]["ok"] is False  # answered all the same


def test_what_came_before_eof_is_answered(agents, state, sleepers):
    agent = agents(state)
    targets = sleepers(3)
    numbers = [agent.start("task.execute", execute(agent, agent.native(t.pid))) for t in targets]
    numbers += [agent.start("health.ping"), agent.start("lease.list"), agent.start("no.such")]
    agent.send_raw(b'{"id":77,"method":"health.ping","params":{"run_id":"r"')
    assert agent.eof() == 0
    assert set(agent.replies) == set(numbers) and agent.strays == []
    assert all(agent.replies[n]["result"]["ok"] for n in numbers[:3])
    assert not any(t.stopped for t in targets)


def test_requests_before_the_first_recovery_are_answered(agents, state, sleeper):
    agent = agents(state, handshake=False)
    numbers = [agent.start("task.execute", execute(agent, agent.native(sleeper.pid))), agent.start("handshake")]
    agent.close_stdin()
    assert agent.wait_exit() == 0
    assert agent.replies[numbers[0]]["result"]["ok"] and agent.replies[numbers[1]]["result"]["protocol"] == "mayhem/1"
    assert not sleeper.stopped


def test_dirty_leases_are_an_exit_code(agents, state, tmp_path):
    agent = agents(state)
    flag = tmp_path / "flag"
    op = [{"op": "tool", "args": {"inject_argv": json.dumps(["touch", str(flag)]), "undo_argv": '["false"]'}}]
    assert agent.execute(agent.declared("l-00000007", "net.latency", op))["ok"]
    undone = agent.execute(agent.declared("l-00000007", "net.latency", op), "undo")
    assert undone["ok"] is False and undone["reason"] == "undo_failed"
    assert undone["lease"]["state"] == "dirty" and undone["lease"]["escalation_notes"] and undone["lease"]["remedy"]
    assert {"lease_id": "l-00000007", "state": "dirty"} in agent.request("task.status")["compensated"]
    assert agent.eof() == 7
    # Mended by hand and said so: surrendered.
    second = agents(state)
    key = next(iter(second.records()))
    refused(second, -32602, "params.missing", "lease.release", lease_id=key, surrender=True)
    answer = second.request("lease.release", lease_id=key, surrender=True, note="removed by hand")
    assert answer["ok"] and answer["lease"]["state"] == "expired"
    assert second.eof() in (0, 7)
    assert agents(state).eof() == 0


def test_heartbeat(agents, state, sleeper):
    agent = agents(state, handshake={"heartbeat_s": 1})
    agent.inject(sleeper.pid)
    for _ in range(4):  # while it hears of us it stays
        time.sleep(1)
        agent.notify("log.emit")
    assert agent.alive and sleeper.stopped
    wait_until(lambda: not sleeper.stopped, 6)
    assert agent.wait_exit() == 0
    assert agent.record("l-00000001").mechanism == "agent_lost"


def test_no_heartbeat_unless_asked_for(agent, sleeper):
    agent.inject(sleeper.pid)
    time.sleep(1)
    assert agent.alive and sleeper.stopped


def test_survivors_stay(agents, state, sleepers):
    stays, goes = sleepers(2)
    agent = agents(state, handshake={"survive": True})
    first = agent.inject(stays.pid)
    agent.inject(goes.pid, survive=False)
    assert first["survive"] is True
    assert agent.eof() == 0
    assert stays.stopped and not goes.stopped
    other = agents(state)
    assert other.release(first["id"])["ok"] and not stays.stopped


def test_a_second_session_works_while_the_first_ends(agents, state, sleepers):
    one, two = sleepers(2)
    first, second = agents(state), agents(state)
    first.inject(one.pid)
    second.inject(two.pid)
    assert first.eof() == 0
    assert not one.stopped and two.stopped
