"""What a crash left, and what recovery makes of it: real records of real crashes, and those records changed."""

import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess

import pytest

from mayhem_test import (Agent, Proc, RpcError, Sleeper, StateDir, agent_path, cgroup_marks, cgroup_mounts, is_stopped,
                         run_agent, start_ticks, wait_until)
from mayhem_test.records import canonical, lease as read_lease, read_log

CAPACITY = 32 << 10
NOWHERE = "00000000-0000-0000-0000-000000000000"


def crash(agent, leases):
    """Holders and agent killed, the agent without a chance to recover anything."""
    agent.signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(agent.pid))
    for lease in leases:
        os.kill(lease["holder"]["pid"], signal.SIGKILL)
    agent.kill()
    wait_until(lambda: not any(start_ticks(lease["holder"]["pid"]) for lease in leases))


@pytest.fixture
def crashed(agents, sleeper):
    """(state directory, lease as it was, its record's path): the sleeper stands, nobody is left."""
    agent = agents(StateDir())
    lease = agent.inject(sleeper.pid)
    crash(agent, [lease])
    path = agent.state / "leases" / f"{lease['id']}.log"
    assert read_log(path).state == "active" and sleeper.stopped
    return agent.state, lease, path


def recover(state, *words, code=0):
    """`recover --json`: the report, with the exit code that was expected."""
    done = run_agent("recover", "--json", *words, state=state)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    report = json.loads(done.stdout)
    assert report["exit"] == code and report["v"] == 1
    return report


def line_of(seq, body, form="mayhem.lease/1"):
    text = canonical(body)
    head = f'{{"format":"{form}","seq":{seq},"sha256":"{hashlib.sha256(text).hexdigest()}","body":'
    return head.encode() + text + b"}\n"


def write_record(path, lines, torn=b"", form="mayhem.lease/1"):
    data = b"".join(line_of(n, body, form) for n, body in enumerate(lines, 1)) + torn
    path.write_bytes(data + bytes(max(0, CAPACITY - len(data))))
    os.chmod(path, 0o600)


def rewrite(path, change, form="mayhem.lease/1"):
    """The same record after change(body) for each line."""
    bodies = [line["body"] for line in read_log(path).lines]
    for body in bodies:
        change(body)
    write_record(path, bodies, form=form)


def snapshot(state):
    """Everything below a state directory: names, contents, times, modes."""
    found = {}
    for folder, dirs, files in os.walk(state):
        for name in dirs + files:
            path = os.path.join(folder, name)
            st = os.lstat(path)
            found[path] = (st.st_ino, st.st_mode, st.st_size, st.st_mtime_ns,
                           open(path, "rb").read() if stat.S_ISREG(st.st_mode) else None)
    return found


# -- what it does


def test_undoes_from_the_record(crashed, sleeper):
    state, lease, _ = crashed
    report = recover(state)
    assert report["leases"] == [{"id": lease["id"], "run_id": lease["run_id"], "found": "holder_gone", "did": "undone",
                                 "state": "released", "release_mechanism": "recovery", "remedy": [],
                                 "escalation_notes": None}]
    assert not sleeper.stopped
    record = read_lease(state, lease["id"])
    assert record.in_ended and record.moves == ["pending", "active", "releasing", "released"]
    assert [o["effect"] for o in record["observations"] if o["phase"] == "after"] == ["absent"]
    assert recover(state)["leases"] == []


def test_plan_changes_nothing(crashed, sleeper):
    state, lease, _ = crashed
    before, marks = snapshot(state), cgroup_marks(state.store)
    report = recover(state, "--plan")
    assert report["plan"] is True
    assert [(x["found"], x["did"], x["state"]) for x in report["leases"]] == [("holder_gone", "would_undo", "active")]
    assert snapshot(state) == before and cgroup_marks(state.store) == marks and sleeper.stopped
    recover(state)
    assert not sleeper.stopped


def test_plan_makes_no_state_directory(tmp_path):
    os.chmod(tmp_path, 0o700)
    assert run_agent("recover", "--plan", state=tmp_path / "none").returncode == 8
    assert not (tmp_path / "none").exists()


def test_a_live_lease_is_left(agent, sleeper):
    lease = agent.inject(sleeper.pid)
    report = recover(agent.state)
    assert [(x["found"], x["did"]) for x in report["leases"]] == [("alive", "left")]
    assert sleeper.stopped and agent.release(lease["id"])["ok"] is True


def test_two_at_once_do_the_work_once(agents, sleepers):
    targets = sleepers(30)
    agent = agents(StateDir())
    leases = [agent.inject(t.pid) for t in targets]
    crash(agent, leases)
    both = [Proc([agent_path(), "recover", "--json", "--state", str(agent.state)], stdout=subprocess.PIPE)
            for _ in range(2)]
    undone = 0
    for proc in both:
        text = proc.popen.stdout.read()
        assert proc.popen.wait(20) == 0, text
        proc.popen.stdout.close()
        undone += json.loads(text)["counts"]["undone"]
        proc.close()
    assert undone == 30
    assert not any(t.stopped for t in targets)
    for lease in leases:
        record = read_lease(agent.state, lease["id"])
        assert (record.moves, record.mechanism) == (["pending", "active", "releasing", "released"], "recovery")


def test_a_pending_one_never_took_effect(crashed, sleeper):
    """Killed between claim and `active`: nothing was changed, and what was not is not undone."""
    state, lease, path = crashed
    write_record(path, [read_log(path).lines[0]["body"]])
    report = recover(state)
    assert [(x["state"], x["release_mechanism"]) for x in report["leases"]] == [("expired", "failed_to_apply")]
    assert sleeper.stopped  # by whom, no record says
    sleeper.cont()


# -- records that are torn, damaged, or not ours to judge


@pytest.mark.parametrize("whole", [1, 2, 3])
def test_torn_at_every_byte_of_the_last_line(crashed, sleeper, whole):
    """What was whole before it counts: pending alone is expired, anything from active on is undone."""
    state, _, path = crashed
    bodies = [line["body"] for line in read_log(path).lines]
    bodies.append({"state": "releasing", "release_mechanism": "normal"})
    bodies = bodies[:whole + 1]
    length = len(line_of(whole + 1, bodies[-1]))
    path.unlink()
    for cut in range(length):
        key = f"l-{cut + 1:08d}"
        lines = [{**body, "id": key} if "id" in body else body for body in bodies]
        torn = line_of(whole + 1, lines[-1])[:cut]
        write_record(path.parent / f"{key}.log", lines[:-1], torn)
    plan = recover(state, "--plan")
    assert plan["unreadable"] == [] and plan["counts"]["seen"] == length
    expected = "pending" if whole == 1 else "active"
    assert {x["state"] for x in plan["leases"]} == {expected}
    report = recover(state)
    ends = ("expired", "failed_to_apply") if whole == 1 else ("released", "recovery")
    assert {(x["state"], x["release_mechanism"]) for x in report["leases"]} == {ends}
    assert sleeper.stopped == (whole == 1)
    # The line that was torn is written over, not appended to.
    for name in sorted(os.listdir(state / "ended"))[::97]:
        assert read_log(state / "ended" / name).state == ends[0]
    print(f"{length} lengths of a line after {whole}")


def test_a_damaged_record_is_kept_aside(crashed, sleeper):
    state, lease, path = crashed
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    report = recover(state, code=7)
    kept = report["unreadable"]
    assert len(kept) == 1 and kept[0]["path"] == f"leases/{lease['id']}.log" and "damaged" in kept[0]["why"]
    assert (state / kept[0]["kept_as"]).read_bytes() == data and not path.exists()
    assert sleeper.stopped, "it cannot be known whose this is"
    assert report["counts"]["unreadable"] == 1
    sleeper.cont()


def test_damage_does_not_keep_the_others_from_being_undone(agents, sleepers):
    targets = sleepers(3)
    agent = agents(StateDir())
    leases = [agent.inject(t.pid) for t in targets]
    crash(agent, leases)
    (agent.state / "leases" / f"{leases[1]['id']}.log").write_bytes(b"rubbish\n" + bytes(CAPACITY - 8))
    report = recover(agent.state, code=7)
    assert report["counts"]["undone"] == 2 and report["counts"]["unreadable"] == 1
    assert [t.stopped for t in targets] == [False, True, False]
    targets[1].cont()


def test_damage_is_reported_by_a_session_too(crashed, agents, sleeper):
    """Its start recovers what it can, and it serves."""
    state, _, path = crashed
    path.write_bytes(b"{}\n" + bytes(CAPACITY - 3))
    agent = agents(state)
    sleeper.cont()
    assert agent.release(agent.inject(sleeper.pid)["id"])["ok"] is True
    assert len(os.listdir(state / "aside")) == 1


def test_a_newer_format_is_left(crashed, sleeper):
    state, _, path = crashed
    rewrite(path, lambda body: None, form="mayhem.lease/2")
    data = path.read_bytes()
    for _ in range(2):
        report = recover(state, code=7)
        assert [x["kept_as"] for x in report["unreadable"]] == [None] and "newer" in report["unreadable"][0]["why"]
        assert path.read_bytes() == data and sleeper.stopped
    sleeper.cont()


@pytest.mark.parametrize("what", ["machine", "pidns", "timens"])
def test_of_somewhere_else_is_left(crashed, sleeper, what):
    """A state directory that moved, or is shared with a container: reported, exit 7, until recovered there."""
    state, lease, path = crashed

    def change(body):
        if what == "machine" and "host" in body:
            body["host"]["machine_id"] = "f" * 32
        elif what in body:
            body[what] += 1

    here = path.read_bytes()
    rewrite(path, change)
    data = path.read_bytes()
    for words in ([], ["--plan"], ["--sweep"]):
        report = recover(state, *words, code=7)
        assert [(x["found"], x["did"], x["state"]) for x in report["leases"]] == [("elsewhere", "left", "active")]
    assert path.read_bytes() == data and sleeper.stopped
    path.write_bytes(here)
    recover(state)
    assert not sleeper.stopped


def test_of_another_boot(crashed, sleeper):
    """What it stopped went with that boot; whoever has the pid now is left as it is."""
    state, lease, path = crashed

    def change(body):
        for owner in (body, body.get("target") or {}, body.get("holder") or {}, *(
                op["args"] for op in body.get("undo_ops") or [])):
            if "boot_id" in owner:
                owner["boot_id"] = NOWHERE

    rewrite(path, change)
    report = recover(state)
    assert [(x["found"], x["did"], x["state"], x["release_mechanism"]) for x in report["leases"]] == [
        ("other_boot", "undone", "released", "reboot")]
    assert sleeper.stopped
    sleeper.cont()


# -- what cannot be told, and what stays broken


def test_dirty_with_a_remedy_that_works_then_surrendered(crashed, agents, sleeper):
    """Its target's identity cannot be told (no boot in the op): untouched, said, and mended by hand."""
    state, lease, path = crashed

    def change(body):
        for op in body.get("undo_ops") or []:
            op["args"]["boot_id"] = ""

    rewrite(path, change)
    report = recover(state, code=7)
    entry = report["leases"][0]
    assert (entry["found"], entry["did"], entry["state"]) == ("unverifiable", "marked_dirty", "dirty")
    assert sleeper.stopped and entry["remedy"] and entry["escalation_notes"]
    record = read_lease(state, lease["id"])
    assert record.state == "dirty" and record["remedy"] == entry["remedy"] and not record.in_ended
    # Again: tried again, and as loud.
    assert recover(state, code=7)["counts"]["dirty"] == 1
    # Dirty keeps its claim: the process is nobody else's to touch.
    agent = agents(state)
    answer = agent.execute(agent.native(sleeper.pid))
    assert answer["reason"] == "resource_conflict" and lease["id"] in answer["detail"]
    with pytest.raises(RpcError) as refused:
        agent.request("lease.release", lease_id=lease["id"], surrender=True)
    assert refused.value.code == -32602, "a surrender needs a note"
    # By hand.
    subprocess.run(entry["remedy"][0], check=True)
    wait_until(lambda: not sleeper.stopped)
    answer = agent.request("lease.release", lease_id=lease["id"], surrender=True, note="continued by hand")
    assert (answer["lease"]["state"], answer["lease"]["release_mechanism"]) == ("expired", "manual")
    assert "continued by hand" in answer["lease"]["escalation_notes"]
    assert recover(state)["leases"] == []
    assert agent.release(agent.inject(sleeper.pid)["id"])["ok"] is True


def test_only_a_dirty_lease_is_surrendered(agent, agents, sleeper):
    lease = agent.inject(sleeper.pid)
    other = agents(agent.state)
    with pytest.raises(RpcError):
        other.request("lease.release", lease_id=lease["id"], surrender=True, note="no")
    assert sleeper.stopped and agent.record(lease["id"]).state == "active"
    assert agent.release(lease["id"])["ok"] is True


def test_a_session_with_a_dirty_lease_ends_with_7(crashed, agents, sleeper):
    state, lease, path = crashed
    rewrite(path, lambda body: [op["args"].update(boot_id="") for op in body.get("undo_ops") or []])
    agent = agents(state)
    assert agent.request("lease.release", lease_id=lease["id"])["ok"] is False
    assert sleeper.stopped
    sleeper.cont()
    assert agent.request("lease.release", lease_id=lease["id"], surrender=True, note="by hand")["ok"] is True


# -- holders past their end


def past_deadline(path):
    """Moves the deadline in a live holder's record into the past; not one byte longer or shorter."""
    data = path.read_bytes()
    for raw in data.rstrip(b"\0").splitlines():
        body = raw[raw.index(b',"body":') + 8:-1]
        if b'"deadline_boottime_ms":' not in body:
            continue
        number = body.split(b'"deadline_boottime_ms":')[1].split(b",")[0].split(b"}")[0]
        changed = body.replace(b'"deadline_boottime_ms":' + number,
                               b'"deadline_boottime_ms":' + b"1" + b"0" * (len(number) - 1))
        line = raw.replace(body, changed).replace(hashlib.sha256(body).hexdigest().encode(),
                                                  hashlib.sha256(changed).hexdigest().encode())
        data = data.replace(raw, line)
    with open(path, "r+b") as f:  # the same file: its lock is the holder's
        f.write(data)


def test_overdue_holder_that_still_hears(agent, sleeper):
    """Stopped by somebody past its deadline: told to end, it ends its fault itself."""
    lease = agent.inject(sleeper.pid)
    holder = lease["holder"]["pid"]
    os.kill(holder, signal.SIGSTOP)
    wait_until(lambda: is_stopped(holder))
    past_deadline(agent.state / "leases" / f"{lease['id']}.log")
    report = recover(agent.state, "--plan")
    assert [(x["found"], x["did"]) for x in report["leases"]] == [("overdue", "would_undo")]
    assert sleeper.stopped
    recover(agent.state)
    assert not sleeper.stopped
    assert agent.wait_state(lease["id"], "released")


def test_overdue_holder_that_hears_nothing(as_root, agent, sleeper):
    """Frozen: five seconds after SIGTERM it is killed with its cgroup, and its fault undone from the record."""
    v2 = [path for kind, path in cgroup_mounts() if kind == "cgroup2"]
    lease = agent.inject(sleeper.pid)
    leaf = v2 and v2[0] + lease["holder"]["cgroup"]
    if not v2 or not os.path.exists(f"{leaf}/cgroup.freeze"):
        assert agent.release(lease["id"])["ok"] is True
        pytest.skip("holders are not in a v2 cgroup here")
    with open(f"{leaf}/cgroup.freeze", "w", encoding="ascii") as f:
        f.write("1")
    wait_until(lambda: "frozen 1" in open(f"{leaf}/cgroup.events", encoding="ascii").read())
    past_deadline(agent.state / "leases" / f"{lease['id']}.log")
    report = recover(agent.state)
    # Its agent is there as well, and may have been quicker to recover it.
    record = agent.wait_state(lease["id"], "released")
    assert record.mechanism == "recovery" and not sleeper.stopped, report


# -- sweep


def test_sweep(as_root, agent, sleeper, sleepers):
    """A leaf beneath our mark that belongs to no lease: reported, and ended only when asked to."""
    mine = agent.inject(sleeper.pid)
    mark = cgroup_marks(agent.state.store)[0]
    stray = sleepers(1)[0]
    nonce = "ab" * 16
    os.mkdir(f"{mark}/{nonce}")
    with open(f"{mark}/{nonce}/cgroup.procs", "w", encoding="ascii") as f:
        f.write(str(stray.pid))
    report = recover(agent.state)
    assert [(o["kind"], o["name"], o["removed"]) for o in report["orphans"]] == [
        ("cgroup", f"mayhem/{agent.state.store}/{nonce}", False)]
    assert stray.alive
    report = recover(agent.state, "--sweep")
    assert [o["removed"] for o in report["orphans"]] == [True]
    assert stray.popen.wait(5) == -signal.SIGKILL and not os.path.exists(f"{mark}/{nonce}")
    assert sleeper.stopped and agent.record(mine["id"]).state == "active"
    assert agent.release(mine["id"])["ok"] is True


def test_empty_leaves_go_without_asking(as_root, agent):
    agent.ping()
    wait_until(lambda: cgroup_marks(agent.state.store))
    mark = cgroup_marks(agent.state.store)[0]
    os.mkdir(f"{mark}/{'cd' * 16}")
    assert recover(agent.state)["orphans"] == []
    assert not os.path.exists(f"{mark}/{'cd' * 16}")


# -- the disk


def in_private_mounts(script):
    """An argv prefix: the command in mounts of its own, after a script. The pid stays."""
    return ["unshare", "-m", "--propagation", "private", "sh", "-c", f'{script} && exec "$@"', "sh"]


def inside(agent, path):
    """A path as the agent sees it."""
    return f"/proc/{agent.pid}/root{path}"


def test_a_full_disk_refuses_faults_and_stops_no_undo(as_root, agents, sleepers):
    state = StateDir()
    targets = sleepers(20)
    agent = agents(state, prefix=in_private_mounts(f"mount -t tmpfs -o size=400k,mode=700 tmpfs {state}"))
    first = agent.inject(targets[0].pid)
    with open(inside(agent, f"{state}/junk"), "wb", buffering=0) as f:
        with pytest.raises(OSError):
            for _ in range(10000):
                f.write(bytes(4096))
    refused = None
    held = [first]
    for target in targets[1:]:  # the agent has a few records ready; then there are none
        try:
            answer = agent.execute(agent.native(target.pid))
        except RpcError as error:
            refused = error
            assert not target.stopped
            break
        if not answer["ok"]:
            assert answer["reason"] == "store.failed"
            assert not target.stopped
            refused = answer
            break
        held.append(answer["lease"])
    assert refused, "a fault was taken without a record"
    if isinstance(refused, RpcError):
        assert (refused.code, refused.reason) == (-32000, "store.failed"), refused
    agent.ping()
    for lease in held:
        assert agent.release(lease["id"])["ok"] is True
    assert not any(t.stopped for t in targets)
    os.unlink(inside(agent, f"{state}/junk"))
    assert agent.release(agent.inject(targets[1].pid)["id"])["ok"] is True


def test_a_disk_that_is_full_from_the_start(as_root, sleeper):
    state = StateDir()
    prefix = in_private_mounts(f"mount -t tmpfs -o size=8k,mode=700 tmpfs {state} && "
                               f"{{ head -c 1M /dev/zero >{state}/junk 2>/dev/null || true; }}")
    done = run_agent("serve", state=state, prefix=prefix)
    assert done.returncode == 8 and "[store.failed]" in done.stderr and str(state) in done.stderr, done.stderr


def test_a_read_only_state_directory(as_root, crashed, sleeper):
    """Nothing could be recorded: no session; a plan needs no writing."""
    state, _, _ = crashed
    prefix = in_private_mounts(f"mount --bind {state} {state} && mount -o remount,bind,ro {state}")
    plan = run_agent("recover", "--plan", state=state, prefix=prefix)
    assert plan.returncode == 0 and "would_undo" in plan.stdout, (plan.stdout, plan.stderr)
    with Agent(state, prefix=prefix) as agent:
        agent.handshake()
        other = Sleeper()
        try:
            with pytest.raises(RpcError) as refused:
                agent.execute(agent.native(other.pid))
            assert refused.value.reason == "store.failed", refused.value
            assert not other.stopped
        finally:
            other.close()
        # What is left from the crash is put back all the same: the target matters, then the record.
        wait_until(lambda: not sleeper.stopped)
    assert recover(state)["counts"]["dirty"] == 0


def spoil(path, how):
    if how == "mode":
        os.chmod(path, 0o750)
    elif how == "owner":
        os.chown(path, 65534, 65534)
    elif how == "link":
        os.rename(path, f"{path}.real")
        os.symlink(f"{path}.real", path)
    elif how == "file":
        shutil.rmtree(path)
        path.write_text("no directory")
    elif how == "parent":
        os.chmod(path.parent, 0o777)
    elif how == "store":
        (path / "store.json").write_text("{")
    elif how == "format":
        store = json.loads((path / "store.json").read_text())
        (path / "store.json").write_text(json.dumps({**store, "format": 99}))
    elif how == "leases":
        os.rename(path / "leases", path / "real")
        os.symlink("real", path / "leases")


@pytest.mark.parametrize("command", ["serve", "recover", "halt"])
@pytest.mark.parametrize("how", ["mode", "owner", "link", "file", "parent", "store", "format", "leases"])
def test_a_state_directory_that_cannot_be_trusted(as_root, tmp_path, how, command):
    os.chmod(tmp_path, 0o755)
    path = tmp_path / "state"
    assert run_agent("recover", state=path).returncode == 0
    spoil(path, how)
    done = run_agent(command, state=path)
    assert done.returncode == 8, (done.returncode, done.stdout, done.stderr)
    assert "[store.failed]" in done.stderr and str(path) in done.stderr, done.stderr


@pytest.mark.parametrize("what", ["fifo", "folder", "link", "socket", "foreign"])
def test_strange_things_among_the_records(as_root, agents, sleeper, what, tmp_path):
    """Neither waited for nor followed; reported, and the session serves."""
    state = StateDir()
    assert run_agent("recover", state=state).returncode == 0
    path = state / "leases" / "l-00000007.log"
    secret = tmp_path / "secret"
    secret.write_text("not ours\n")
    if what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "link":
        path.symlink_to(secret)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(path))
    else:
        path.write_bytes(bytes(CAPACITY))
        os.chown(path, 65534, 65534)
    report = recover(state, code=7)
    assert [x["path"] for x in report["unreadable"]] == ["leases/l-00000007.log"], report
    assert secret.read_text() == "not ours\n"
    agent = agents(state)
    assert agent.release(agent.inject(sleeper.pid)["id"])["ok"] is True


# -- descriptors


@pytest.mark.parametrize("n", [20, 24, 32])
def test_few_descriptors(agents, sleepers, n):
    """Faults as long as there are some, then a refusal that says so; the session lives and lets go of all."""
    targets = sleepers(20)
    agent = agents(StateDir(), prefix=["prlimit", f"--nofile={n}:{n}", "--"])
    held, refused = [], None
    for target in targets:
        try:
            answer = agent.execute(agent.native(target.pid))
        except RpcError as error:
            refused = error
            break
        if not answer["ok"]:
            refused = answer
            break
        held.append(answer["lease"])
    assert refused and (held or n < 24)
    text = refused.message if isinstance(refused, RpcError) else refused["detail"]
    assert "too many open files" in text.lower(), text
    print(f"{len(held)} leases with {n} descriptors, then: {text}")
    assert [t.stopped for t in targets] == [True] * len(held) + [False] * (20 - len(held))
    agent.ping()
    for lease in held:
        assert agent.release(lease["id"])["ok"] is True
    if held:
        assert agent.release(agent.inject(targets[-1].pid)["id"])["ok"] is True
    assert agent.eof() == 0


@pytest.mark.parametrize("n", [4, 6, 8, 10, 12])
def test_fewer_descriptors_than_it_needs_to_start(state, n):
    done = run_agent("serve", state=state, prefix=["prlimit", f"--nofile={n}:{n}", "--"])
    assert done.returncode in (0, 8), (done.returncode, done.stderr)
    assert done.returncode == 0 or "too many open files" in done.stderr.lower(), done.stderr
