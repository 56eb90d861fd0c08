"""proc.pause on real programs: asked from outside before, during and after, and what it must refuse."""

import contextlib
import ctypes
import fcntl
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import termios
import time

import pytest

from mayhem_test import (Proc, RpcError, StateDir, cgroup_mounts, helper, is_stopped, thread_states, wait_until)
from mayhem_test.waiting import children, descendants

PTRACE_SEIZE = 0x4206
PF_KTHREAD = 0x200000


def observed(lease, phase):
    """Effects and counts that a lease has of one phase."""
    return [(o["effect"], o["value"], o["asked"]) for o in lease["observations"] if o["phase"] == phase]


def assert_released(agent, lease_id, processes=1, mechanism="normal"):
    answer = agent.release(lease_id)
    assert answer["ok"] is True, answer
    lease = answer["lease"]
    assert (lease["state"], lease["release_mechanism"]) == ("released", mechanism)
    assert observed(lease, "before") == [("absent", 0, processes)]
    assert observed(lease, "during")[0] == ("present", processes, processes)
    assert observed(lease, "after") == [("absent", 0, processes)]
    record = agent.record(lease_id)
    # A record that was made anew because it had to be larger begins with all that was known.
    assert record.moves[-3:] == ["active", "releasing", "released"] and record.in_ended
    return lease


def assert_conflict(agent, pid, text, **kw):
    """Refused by check: a result, an expired lease, and not one signal sent."""
    answer = agent.execute(agent.native(pid, **kw))
    assert (answer["ok"], answer["reason"]) == (False, "resource_conflict"), answer
    assert text in answer["detail"], answer["detail"]
    assert (answer["lease"]["state"], answer["lease"]["release_mechanism"]) == ("expired", "resource_conflict")
    assert agent.record(answer["lease"]["id"]).moves == ["pending", "expired"]


def assert_protected(agent, pid, fault="proc.pause"):
    with pytest.raises(RpcError) as refused:
        agent.execute(agent.native(pid, fault))
    assert (refused.value.code, refused.value.reason) == (-32001, "target.protected"), refused.value
    assert refused.value.stage and refused.value.remedy


# -- what it does


def test_sleeper(agent, sleeper):
    lease = agent.inject(sleeper.pid)
    assert sleeper.stopped
    assert lease["state"] == "active" and lease["injected_at"]
    assert lease["target"]["pid"] == sleeper.pid and lease["target"]["start_ticks"] == sleeper.start_ticks
    assert_released(agent, lease["id"])
    assert not sleeper.stopped and sleeper.alive


def test_active_is_on_disk_before_the_target_is_touched(agent, sleeper):
    """Looked at the moment it stands: undo is there already, the time of injection is not needed for it."""
    for n in range(1, 21):
        number = agent.start("task.execute", fault_id="proc.pause", lease=agent.native(sleeper.pid))
        wait_until(lambda: sleeper.stopped, interval=0)
        record = agent.record(f"l-{n:08d}")
        assert record.state == "active"
        assert record["undo_ops"][0]["args"]["pid"] == str(sleeper.pid)
        first = next(line["body"] for line in record.lines if line["body"].get("state") == "active")
        assert first["undo_ops"] and not first.get("injected_at")
        assert_released(agent, agent.result(number)["lease"]["id"])


def test_the_result_is_on_disk_before_the_holder_exits(agent, sleeper):
    for _ in range(20):
        lease = agent.inject(sleeper.pid)
        holder = os.pidfd_open(agent.holder_pid(lease["id"]))
        number = agent.start("lease.release", lease_id=lease["id"])
        select.select([holder], [], [], 5)
        assert agent.record(lease["id"]).state == "released"
        os.close(holder)
        assert agent.result(number)["ok"] is True


def test_nginx_and_all_its_workers(agent, nginx):
    family = nginx.family()
    assert len(family) == 3 and nginx.answers()
    lease = agent.inject(nginx.pid, params={"scope": "tree"})
    assert [pid for pid in family if not is_stopped(pid)] == []
    assert not nginx.answers()
    assert {op["args"]["pid"] for op in lease["undo_ops"]} == {str(pid) for pid in family}
    assert_released(agent, lease["id"], 3)
    assert nginx.answers() and nginx.family() == family


def test_nginx_master_alone_keeps_serving(agent, nginx):
    lease = agent.inject(nginx.pid)
    assert nginx.stopped and nginx.answers()  # said so: one process was asked for, one is stopped
    assert_released(agent, lease["id"])


def test_redis(agent, redis):
    assert redis.answers()
    lease = agent.inject(redis.pid)
    assert len(thread_states(redis.pid)) > 1 and redis.stopped
    assert not redis.answers()
    assert_released(agent, lease["id"])
    assert redis.answers()


def test_every_thread_stops(agent, sleepers):
    target = sleepers(1, threads=16)[0]
    lease = agent.inject(target.pid)
    assert thread_states(target.pid) and set(thread_states(target.pid).values()) == {"T"}
    assert len(thread_states(target.pid)) == 17
    assert_released(agent, lease["id"])
    assert "T" not in thread_states(target.pid).values()


def test_duration_ends_it(agent, sleeper):
    lease = agent.inject(sleeper.pid, duration_ms=50)
    record = agent.wait_state(lease["id"], "released")
    assert record.mechanism == "normal" and not sleeper.stopped


DIE_WITH_PARENT = "import ctypes, os, signal, sys, time; ctypes.CDLL(None).prctl(1, 9)\n"
# A master whose workers each bear a short-lived child again and again, as shells and old servers do.
FORKER = DIE_WITH_PARENT + """
for n in range(3):
    if not os.fork():
        ctypes.CDLL(None).prctl(1, 9)
        while True:
            child = os.fork()
            if not child:
                ctypes.CDLL(None).prctl(1, 9)
                time.sleep(0.005)
                os._exit(0)
            os.waitpid(child, 0)
while True:
    signal.pause()
"""
# A chain: each process bears the next at once, faster than anybody can list them; 400 of them.
CHAIN = """
import os, signal, time
for n in range(400):
    if os.fork():
        while True:
            signal.pause()
    time.sleep(0.0005)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("attempt", range(5))
def test_a_tree_that_forks_while_it_is_stopped(agent, attempt):
    with Proc([sys.executable, "-c", FORKER]) as forker:
        wait_until(lambda: len(forker.family()) >= 5)
        lease = agent.inject(forker.pid, params={"scope": "tree"})
        family = forker.family()
        assert [pid for pid in family if not is_stopped(pid)] == []
        recorded = {int(op["args"]["pid"]) for op in lease["undo_ops"]}
        assert set(family) <= recorded
        before = time.monotonic()
        wait_until(lambda: time.monotonic() > before + 0.05)  # ten lives of a child
        assert forker.family() == family
        assert agent.release(lease["id"])["ok"] is True
        wait_until(lambda: set(forker.family()) - recorded, what="new children")
        assert [pid for pid in forker.family() if is_stopped(pid)] == []


@contextlib.contextmanager
def whole_group(proc):
    """Kills a process with its group at the end: at once, so that none forks meanwhile."""
    try:
        yield
    finally:
        os.killpg(proc.pid, signal.SIGKILL)


def test_a_tree_that_grows_faster_than_it_can_be_stopped(agent):
    with Proc([sys.executable, "-c", CHAIN]) as chain, whole_group(chain):
        wait_until(lambda: len(descendants(chain.pid)) > 20)
        answer = agent.execute(agent.native(chain.pid, params={"scope": "tree"}))
        if not answer["ok"]:
            assert answer["reason"] == "failed_to_apply", answer
            assert answer["lease"]["state"] == "released", answer
        else:
            assert [pid for pid in chain.family() if not is_stopped(pid)] == []
            assert agent.release(answer["lease"]["id"])["ok"] is True
        assert [pid for pid in chain.family() if is_stopped(pid)] == []


def test_a_tree_of_many_is_written_as_it_is_found(agent):
    """More than a record takes at first: it is given a larger one, with all of them in it."""
    script = "import os, signal\nfor n in range(150):\n    if not os.fork():\n        break\nsignal.pause()"
    with Proc([sys.executable, "-c", script]) as many, whole_group(many):
        wait_until(lambda: len(many.family()) == 151)
        lease = agent.inject(many.pid, params={"scope": "tree"})
        assert many.family_stopped() and len(agent.record(lease["id"])["undo_ops"]) == 151
        assert agent.record(lease["id"]).path.stat().st_size > 32 << 10
        assert_released(agent, lease["id"], 151)
        assert not any(map(is_stopped, many.family()))


def test_of_a_tree_only_what_ran_is_taken(agent, nginx):
    """One worker was stopped by somebody else before: refused as a whole, and it stays stopped."""
    worker = nginx.workers()[0]
    os.kill(worker, signal.SIGSTOP)
    wait_until(lambda: is_stopped(worker))
    assert_conflict(agent, nginx.pid, f"process {worker}", params={"scope": "tree"})
    assert [pid for pid in nginx.family() if is_stopped(pid)] == [worker]


def test_continued_by_somebody_else_is_seen(agent, sleeper):
    lease = agent.inject(sleeper.pid)
    sleeper.cont()
    record = wait_until(lambda: (r := agent.record(lease["id"])) and ("absent", 0, 1) in observed(r, "during") and r)
    assert record.state == "active"
    sleeper.stop()  # by hand, and so not ours to continue
    assert agent.release(lease["id"])["ok"] is True
    assert sleeper.stopped


def test_target_that_ends_while_paused(agent, sleeper):
    lease = agent.inject(sleeper.pid)
    sleeper.kill()
    record = agent.wait_state(lease["id"], "released")
    assert record.mechanism == "target_gone"


@pytest.mark.parametrize("name", [b"a b", b") S 1 (", b"((", b"))", b"x) T 1 1", b"\\", b"\"'\"", b"%s%n",
                                  b"new\nline", b"return\r", b"tab\there", b"\x01\x7f", "ümläut".encode(),
                                  b"\xff\xfe", b"half \xc3", b"a" * 15], ids=range(16))
def test_odd_names(agent, tmp_path, name):
    """The name of a program is any bytes; also those that are no text must not keep a fault from it, or an undo."""
    path = os.path.join(os.fsencode(tmp_path), name)
    shutil.copy(os.fsencode(helper("sleeper")), path)
    with Proc([os.fsdecode(path)], stdout=subprocess.PIPE) as target:
        assert target.popen.stdout.readline()
        target.popen.stdout.close()
        with open(f"/proc/{target.pid}/comm", "rb") as f:
            assert f.read() == name + b"\n"
        lease = agent.inject(target.pid)
        assert target.stopped
        assert_released(agent, lease["id"])
        assert not target.stopped


def test_in_a_pid_namespace(as_root, agent):
    """Seen from here by a pid of ours; stopped as a tree with all that is in it."""
    with Proc(["unshare", "-p", "--fork", "--kill-child", helper("sleeper")], stdout=subprocess.PIPE) as outer:
        assert outer.popen.stdout.readline() == b"1\n"
        outer.popen.stdout.close()
        init = outer.family()[1]
        lease = agent.inject(init)
        assert is_stopped(init) and not outer.stopped
        assert_released(agent, lease["id"])
        lease = agent.inject(outer.pid, params={"scope": "tree"})
        assert outer.family_stopped()
        assert_released(agent, lease["id"], 2)


def test_a_parent_that_waits_in_vfork(agent):
    """It cannot stop before its child lets it: both stand when the child does, and both go on."""
    with Proc([helper("vforker")], stdout=subprocess.PIPE) as parent:
        child = int(parent.popen.stdout.readline())
        assert set(thread_states(parent.pid).values()) == {"D"}
        lease = agent.inject(parent.pid, params={"scope": "tree"})
        assert is_stopped(child) and set(thread_states(parent.pid).values()) == {"D"}
        assert agent.release(lease["id"])["ok"] is True
        assert not is_stopped(child)
        os.kill(child, signal.SIGTERM)  # the parent comes out of vfork: no stop may be waiting for it
        assert parent.popen.stdout.readline() == b"went on\n"
        assert parent.popen.wait(5) == 0
        parent.popen.stdout.close()


# -- what it refuses


def test_stopped_already_is_refused_and_stays_stopped(agent, sleeper):
    sleeper.stop()
    assert_conflict(agent, sleeper.pid, "stopped already")
    assert sleeper.stopped
    assert agent.eof() == 0
    assert sleeper.stopped


def test_one_stopped_thread_of_many_is_enough(agent, sleepers):
    target = sleepers(1, threads=3)[0]
    target.stop()
    assert_conflict(agent, target.pid, "stopped already")
    assert target.stopped


def test_traced(agent, sleeper):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    assert libc.ptrace(PTRACE_SEIZE, sleeper.pid, None, None) == 0, os.strerror(ctypes.get_errno())
    assert_conflict(agent, sleeper.pid, "traced")
    assert set(thread_states(sleeper.pid).values()) == {"S"}


def freezers():
    """{name: (directory to make cgroups in, freeze, frozen?)} of the freezers that this machine has."""
    found = {}
    for kind, mount in cgroup_mounts():
        if kind == "cgroup2":
            found["v2"] = mount
        elif os.path.exists(f"{mount}/cgroup.procs") and mount.rstrip("/").endswith("freezer"):
            found["v1"] = mount
    return found


@contextlib.contextmanager
def frozen_cgroup(kind, nested=False):
    """A cgroup that is frozen, and the directory whose cgroup.procs takes processes."""
    if kind not in freezers():
        pytest.skip(f"this machine has no {kind} freezer")
    top = os.path.join(freezers()[kind], f"test-{os.getpid()}-frozen")
    folder = os.path.join(top, "below") if nested else top
    switch, value, calm = (("cgroup.freeze", "1", "0") if kind == "v2" else ("freezer.state", "FROZEN", "THAWED"))
    os.makedirs(folder)

    def write(name, text, where=top):
        with open(os.path.join(where, name), "w", encoding="ascii") as f:
            f.write(text)

    def frozen():
        with open(os.path.join(top, "cgroup.events" if kind == "v2" else "freezer.state"), encoding="ascii") as f:
            text = f.read()
        return "frozen 1" in text or text == "FROZEN\n"

    def take(pid):
        write("cgroup.procs", str(pid), folder)
        write(switch, value)
        wait_until(frozen)

    try:
        yield take
    finally:
        write(switch, calm)
        for path in dict.fromkeys([folder, top]):
            for pid in open(os.path.join(path, "cgroup.procs"), encoding="ascii").read().split():
                with open(os.path.join(freezers()[kind], "cgroup.procs"), "w", encoding="ascii") as f:
                    f.write(pid)
            os.rmdir(path)


@pytest.mark.parametrize("nested", [False, True], ids=["itself", "ancestor"])
@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_frozen(as_root, agent, sleeper, kind, nested):
    with frozen_cgroup(kind, nested) as take:
        take(sleeper.pid)
        assert_conflict(agent, sleeper.pid, "frozen")
    wait_until(lambda: set(thread_states(sleeper.pid).values()) == {"S"})


def test_foreground_of_a_terminal(agent):
    ours, theirs = pty.openpty()

    def take_terminal():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    target = subprocess.Popen([helper("sleeper")], stdin=theirs, stdout=subprocess.PIPE, start_new_session=True,
                              preexec_fn=take_terminal)
    try:
        target.stdout.readline()
        assert_conflict(agent, target.pid, "foreground of a terminal")
        assert not is_stopped(target.pid)
    finally:
        target.kill()
        target.wait()
        target.stdout.close()
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("fault", ["proc.pause", "process.stop", "process.kill"])
@pytest.mark.parametrize("pid", [1, 0, -1, -(1 << 31), 1 << 31, (1 << 63) - 1])
def test_no_process_of_anybodys(agent, pid, fault):
    assert_protected(agent, pid, fault)


@pytest.mark.parametrize("fault", ["proc.pause", "process.stop", "process.kill"])
def test_kernel_threads(agent, fault):
    with open("/proc/2/stat", "rb") as f:
        flags = int(f.read().rpartition(b")")[2].split()[6])
    if not flags & PF_KTHREAD:
        pytest.skip("pid 2 is no kernel thread here")
    assert_protected(agent, 2, fault)
    for pid in children(2)[:3]:
        assert_protected(agent, pid, fault)


@pytest.mark.parametrize("fault", ["proc.pause", "process.stop", "process.kill"])
def test_the_agent_its_ancestors_and_its_holders(agent, sleeper, fault):
    lease = agent.inject(sleeper.pid)
    for pid in (agent.pid, os.getpid(), os.getppid(), agent.holder_pid(lease["id"])):
        if pid > 1:
            assert_protected(agent, pid, fault)
    assert agent.alive and sleeper.stopped
    assert_released(agent, lease["id"])


def test_another_sessions_holder(agents, agent, sleeper):
    lease = agent.inject(sleeper.pid)
    other = agents(StateDir())
    for pid in (agent.pid, agent.holder_pid(lease["id"])):
        assert_protected(other, pid)
        assert_protected(other, pid, "process.kill")
    assert_released(agent, lease["id"])


def test_a_tree_with_the_agent_in_it(agent, sleeper):
    """Not by the back door either: a tree that the agent is in has an ancestor as its root."""
    with pytest.raises(RpcError) as refused:
        agent.execute(agent.native(os.getpid(), params={"scope": "tree"}))
    assert refused.value.reason == "target.protected"


def test_a_tree_with_another_agent_in_it(agent, agents):
    """A shell that holds an agent of its own: stopping it would stop a holder and its undo."""
    inner_state = StateDir()
    script = 'exec 3<&0; "$@" <&3 & wait'
    inner = agents(inner_state, prefix=["sh", "-c", script, "sh"])
    shell = inner.pid
    wait_until(lambda: any("mayhem-agent" in open(f"/proc/{p}/comm").read() for p in children(shell)))
    target = Proc([helper("sleeper")])
    try:
        for busy in (False, True):
            lease = inner.inject(target.pid) if busy else None
            answer = agent.execute(agent.native(shell, params={"scope": "tree"}))
            assert answer["ok"] is False and "Mayhem's own" in answer["detail"], answer
            assert agent.record(answer["lease"]["id"]).moves == ["pending", "expired"]
            assert [p for p in descendants(shell) if is_stopped(p)] == []
        assert inner.release(lease["id"])["ok"] is True
    finally:
        target.close()


def test_of_another_boot_or_start_is_drift(agent, sleeper):
    for wrong in ({"start_ticks": sleeper.start_ticks + 1}, {"boot_id": "00000000-0000-0000-0000-000000000000"}):
        with pytest.raises(RpcError) as refused:
            agent.execute(agent.native(0, target={"kind": "process", "pid": sleeper.pid, **wrong}))
        assert (refused.value.code, refused.value.reason) == (-32001, "target_drift")
    assert not sleeper.stopped


def test_gone_already(agent, sleeper):
    sleeper.kill()
    with pytest.raises(RpcError) as refused:
        agent.execute(agent.native(sleeper.pid))
    assert (refused.value.code, refused.value.reason) == (-32001, "target.gone")


def test_a_zombie(agent):
    zombie = subprocess.Popen(["true"])
    wait_until(lambda: open(f"/proc/{zombie.pid}/stat", "rb").read().rpartition(b") ")[2][:1] == b"Z")
    try:
        with pytest.raises(RpcError) as refused:
            agent.execute(agent.native(zombie.pid))
        assert (refused.value.code, refused.value.reason) == (-32001, "target.gone")
    finally:
        zombie.wait()


def test_a_thread_is_no_process(agent, sleepers):
    target = sleepers(1, threads=2)[0]
    for tid in thread_states(target.pid):
        if tid != target.pid:
            with pytest.raises(RpcError) as refused:
                agent.execute(agent.native(tid))
            assert refused.value.code == -32001 and refused.value.reason in ("target.gone", "target.unverifiable")
    assert not target.stopped


def test_check_changes_nothing(agent, sleeper):
    answer = agent.execute(agent.native(sleeper.pid), phase="check")
    assert answer["ok"] is True, answer
    assert not sleeper.stopped and agent.records() == {}
    sleeper.stop()
    answer = agent.execute(agent.native(sleeper.pid), phase="check")
    assert (answer["ok"], answer["reason"]) == (False, "resource_conflict")
    assert sleeper.stopped and agent.records() == {}
