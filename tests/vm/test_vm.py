"""On Debian 6.1: no pidfs, pure cgroup v2, the static agent; and a host that is reset in the middle.

The machine is emulated: what takes milliseconds on a real one takes tens of them here. Limits are wide, and
what is measured elsewhere is not measured here.
"""

import base64
import hashlib
import json
import subprocess

import pytest

from mayhem_test import agent_path, helper, wait_until
from mayhem_test.lab import Disk, Machine
from mayhem_test.records import canonical
from mayhem_test.sandbox import ROOT

STATE = "/tmp/s"
SAFE = ("released", "expired")


def static_agent():
    """The agent under test, or the release where that one is not static (a sanitizer's cannot be)."""
    for path in (agent_path(), str(ROOT / "build" / "mayhem-agent")):
        headers = subprocess.run(["readelf", "-lW", path], capture_output=True, text=True, check=False).stdout
        if headers and "INTERP" not in headers:
            return path
    pytest.skip("no static mayhem-agent in this tree nor in build/")


def files():
    return [static_agent(), helper("sleeper"), helper("pidreuse")]


@pytest.fixture(scope="module")
def vm():
    with Machine(files()) as machine:
        yield machine


@pytest.fixture
def state(vm):
    """A fresh state directory in the machine; afterwards nothing of its store may be left there."""
    vm.sh(f"rm -rf {STATE} && mkdir -m 0700 {STATE}")
    yield STATE
    vm.run(f"for p in $(pidof sleeper); do kill -KILL $p; done; for p in $(pidof mayhem-agent); do kill -CONT $p; done")
    left = "! pidof mayhem-agent && ! find /sys/fs/cgroup -mindepth 3 -path '*/mayhem/*' -type d | grep ."
    try:
        vm.wait_sh(left, 5)
    finally:
        vm.run("for p in $(pidof mayhem-agent); do kill -KILL $p; done")


@pytest.fixture
def agent(vm, state):
    with vm.agent(state) as a:
        yield a


def only(vm, state, **kw):
    """The one record there is."""
    records = vm.leases(state, **kw)
    assert len(records) == 1, records
    return next(iter(records.values()))


def recover(vm, state):
    status, text = vm.run(f"/t/mayhem-agent recover --json --state {state} 2>/tmp/recover.err", timeout=60)
    assert text.startswith("{"), (status, text, vm.run("cat /tmp/recover.err"))
    report = json.loads(text)
    assert report["exit"] == status, report
    return report


def running(vm, pid):
    wait_until(lambda: not vm.is_stopped(pid), 10, f"{pid} runs again", interval=0.02)


def ended(vm, state, *mechanisms):
    record = wait_until(lambda: (r := only(vm, state, spares=True)).at_safe_end and r, 10, "a safe end", interval=0.05)
    assert record.state == "released" and record.mechanism in mechanisms, record
    assert record.body["verified_by"] or record.body["verify_probes"], record.body
    return record


def test_pause_and_release(vm, agent, state):
    pid = vm.sleeper()
    lease = agent.inject(pid)
    assert vm.is_stopped(pid)
    record = only(vm, state)
    assert record.state == "active" and record["injected_at"]
    holder = record["holder"]
    assert holder["mechanism"] == "cgroup"
    assert vm.sh(f"cat /proc/{record.holder_pid}/cgroup").endswith(holder["cgroup"])
    assert agent.release(lease["id"])["ok"] is True
    assert not vm.is_stopped(pid)
    assert ended(vm, state, "normal").moves == ["pending", "active", "releasing", "released"]


def test_duration_ends_by_itself(vm, agent, state):
    pid = vm.sleeper()
    agent.inject(pid, duration_ms=500)
    running(vm, pid)
    ended(vm, state, "normal")


def test_end_of_the_channel(vm, agent, state):
    pid = vm.sleeper()
    agent.inject(pid)
    agent.close_stdin()
    running(vm, pid)
    ended(vm, state, "agent_lost")


def test_agent_killed(vm, agent, state):
    pid = vm.sleeper()
    agent.inject(pid)
    vm.sh(f"kill -KILL {agent.inner}")
    running(vm, pid)
    ended(vm, state, "agent_lost")


def test_holder_killed(vm, agent, state):
    pid = vm.sleeper()
    agent.inject(pid)
    vm.sh(f"kill -KILL {only(vm, state).holder_pid}")
    running(vm, pid)
    ended(vm, state, "recovery")
    assert agent.ping()["owned_leases"] == 0


def kill_both(vm, agent, state):
    """In an order in which neither can undo anything."""
    record = only(vm, state)
    vm.sh(f"kill -STOP {agent.inner} && kill -KILL {record.holder_pid} {agent.inner}")
    vm.wait_sh("! pidof mayhem-agent")
    return record


def test_both_killed_then_recover(vm, agent, state):
    pid = vm.sleeper()
    agent.inject(pid)
    record = kill_both(vm, agent, state)
    assert vm.is_stopped(pid)
    plan = json.loads(vm.run(f"/t/mayhem-agent recover --plan --json --state {state}")[1])
    assert plan["leases"][0]["did"] == "would_undo" and vm.is_stopped(pid)
    report = recover(vm, state)
    assert report["exit"] == 0 and report["leases"][0]["did"] == "undone", report
    assert report["leases"][0]["id"] == record.id
    assert not vm.is_stopped(pid)
    ended(vm, state, "recovery")


def test_both_killed_then_the_next_session(vm, agent, state):
    pid = vm.sleeper()
    agent.inject(pid)
    kill_both(vm, agent, state)
    with vm.agent(state):
        running(vm, pid)
        ended(vm, state, "recovery")


# -- the pid is somebody else's now


@pytest.fixture
def reuse(vm):
    """Speaks to a pidreuse in the machine."""
    vm.sh("rm -f /tmp/ri /tmp/ro; mkfifo /tmp/ri /tmp/ro; setsid /t/pidreuse </tmp/ri >/tmp/ro 3>&- & "
          "exec 5>/tmp/ri; exec 6</tmp/ro")

    def ask(line):
        answer = vm.sh(f"echo {line} >&5; read -r a <&6; echo $a").split()
        assert answer[0] == "ok", answer
        return answer[1:]

    vm.sh("cp -p /t/pidreuse /tmp/other; mkdir -p /sys/fs/cgroup/elsewhere")
    yield ask
    vm.sh("exec 5>&-; exec 6<&-")
    vm.wait_sh("! pidof pidreuse other", 5)
    vm.sh("rmdir /sys/fs/cgroup/elsewhere")


# UID EXE CGROUP of the stranger; `-` is as the target was.
STRANGERS = {"exe": "- /tmp/other -", "uid": "1234 - -", "cgroup": "- - /sys/fs/cgroup/elsewhere"}


@pytest.mark.parametrize("differs", STRANGERS)
def test_reused_pid_live_holder(vm, agent, state, reuse, differs):
    for _ in range(3):
        pid, _ = reuse("spawn")
        lease = agent.inject(int(pid))
        assert vm.is_stopped(pid)
        reuse(f"replace {pid} {STRANGERS[differs]}")
        wait_until(lambda: vm.leases(state)[lease["id"]].at_safe_end, 10, "a safe end", interval=0.05)
        assert vm.leases(state)[lease["id"]].mechanism == "target_gone"
        assert reuse(f"signals {pid}") == []
        reuse(f"kill {pid}")


def age(vm, state, before, after):
    """Makes a record believe that its target began at the tick at which the stranger did: two processes of one pid
    and one tick, which on an emulated machine would come about once in a long while."""
    (path,) = vm.sh(f"ls {state}/leases/*.log").split()
    size = vm.sh(f"wc -c <{path}")
    lines = []
    for line in only(vm, state).lines:
        text = json.dumps(line["body"])
        text = text.replace(f'"start_ticks": {before}', f'"start_ticks": {after}')
        text = text.replace(f'"start_ticks": "{before}"', f'"start_ticks": "{after}"')
        body = json.loads(text)
        lines.append(json.dumps({**line, "sha256": hashlib.sha256(canonical(body)).hexdigest(), "body": body},
                                separators=(",", ":"), ensure_ascii=False))
    vm.sh(f": >{path} && truncate -s {size} {path}")
    data = base64.b64encode(("\n".join(lines) + "\n").encode()).decode()
    vm.sh(f"echo {data} | base64 -d | dd of={path} conv=notrunc 2>/dev/null")
    assert only(vm, state)["target"]["start_ticks"] == after


@pytest.mark.parametrize("equal_ticks", [False, True], ids=["as_it_comes", "equal_ticks"])
@pytest.mark.parametrize("differs", STRANGERS)
def test_reused_pid_from_the_record(vm, agent, state, reuse, differs, equal_ticks):
    pid, ticks = reuse("spawn")
    agent.inject(int(pid))
    kill_both(vm, agent, state)
    _, later = reuse(f"replace {pid} {STRANGERS[differs]}")
    if equal_ticks:
        age(vm, state, int(ticks), int(later))
    report = recover(vm, state)
    assert reuse(f"signals {pid}") == []
    record = only(vm, state)
    if record.state == "dirty":
        assert report["exit"] == 7 and record.body["remedy"] and record.body["escalation_notes"], record.body
    else:
        assert report["exit"] == 0 and record.state == "released", record
    reuse(f"kill {pid}")
    # Whatever it was, with nobody at that pid the matter can be closed.
    assert recover(vm, state)["exit"] == 0
    assert only(vm, state).state in SAFE


# -- the host is reset

PLACES = {
    "disk": ("/state/s", "true"),
    "overlay": ("/ov/s", "mkdir -p /state/upper /state/work /lower /ov && "
                         "mount -t overlay -o lowerdir=/lower,upperdir=/state/upper,workdir=/state/work ov /ov"),
}


@pytest.fixture
def disk():
    with Disk() as d:
        yield d


def booted(disk, place):
    machine = Machine(files(), disk)
    try:
        state, mount = PLACES[place]
        machine.sh(mount)
        machine.sh(f"mkdir -p -m 0700 {state} && chmod 0700 {state}")
        return machine, state
    except BaseException:
        machine.close()
        raise


@pytest.mark.parametrize("place, by", [("disk", "recover"), ("disk", "serve"), ("overlay", "recover")])
def test_reset_in_the_middle_of_a_lease(disk, place, by):
    vm, state = booted(disk, place)
    with vm, vm.agent(state) as agent:
        before = agent.inject(vm.sleeper())
        assert agent.release(before["id"])["ok"] is True
        pid = vm.sleeper()
        lease = agent.inject(pid, duration_ms=60000)
        vm.reset()  # nothing else in between: what is not durable now was not when it said "active"
    vm, state = booted(disk, place)
    with vm:
        records = vm.leases(state, spares=True)
        assert set(records) == {before["id"], lease["id"]}
        record = records[lease["id"]]
        assert record.state == "active" and record["injected_at"], record
        assert record["undo_ops"] and record["target"]["pid"] == pid
        # What was released was said to be, and stays.
        assert records[before["id"]].moves == ["pending", "active", "releasing", "released"]
        stranger = vm.sleeper()
        vm.sh(f"kill -STOP {stranger}")  # of another boot: whatever its pid, not ours to continue
        if by == "recover":
            report = recover(vm, state)
            assert report["exit"] == 0, report
            assert [(one["id"], one["found"], one["did"]) for one in report["leases"]] == \
                [(lease["id"], "other_boot", "undone")]  # the other one was at a safe end already
        else:
            with vm.agent(state):
                wait_until(lambda: vm.leases(state, spares=True)[lease["id"]].at_safe_end, 10, "a safe end")
        records = vm.leases(state)
        assert records[lease["id"]].state == "released" and records[lease["id"]].mechanism == "reboot"
        assert records[before["id"]].in_ended and records[before["id"]].mechanism == "normal"
        assert vm.is_stopped(stranger)
        assert recover(vm, state)["leases"] == []


def check(vm, state, said):
    report = recover(vm, state)
    assert report["exit"] == 0 and not report["unreadable"], report
    records = vm.leases(state)
    assert set(said) <= set(records)
    assert all(record.at_safe_end for record in records.values())
    assert all(records[key].mechanism == "normal" for key, what in said.items() if what == "released")


def test_many_resets_at_any_moment(disk):
    """The machine dies while injections and releases go on, wherever it just is. What was said is true after."""
    said = {}
    for round_ in range(2):
        vm, state = booted(disk, "disk")
        with vm:
            check(vm, state, said)
            with vm.agent(state) as agent:
                pid = vm.sleeper()
                for _ in range(5 + 6 * round_):
                    lease = agent.inject(pid)
                    said[lease["id"]] = "active"
                    assert agent.release(lease["id"])["ok"] is True
                    said[lease["id"]] = "released"
                agent.start("task.execute", fault_id="proc.pause", phase="inject", lease=agent.native(pid))
                vm.reset()  # unanswered
    vm, state = booted(disk, "disk")
    with vm:
        check(vm, state, said)
