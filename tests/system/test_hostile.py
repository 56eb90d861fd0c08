"""What no controller of good will would do: a clear answer each, the session alive where it may be, nothing left behind."""

import json
import os
import random
import resource
import select
import signal
import subprocess
import time

import pytest

from mayhem_test import Agent, RpcError, SessionEnded, Sleeper, StateDir, agent_path, leases, start_ticks, wait_until

MIB = 1 << 20
OURS = b'"params":{"run_id":"r","agent_id":"a"}'
PING = b'{"id":1,"method":"health.ping",' + OURS + b"}\n"
SANITIZED = os.environ.get("MAYHEM_TREE") == "sanitizer" or "san" in os.environ.get("MAYHEM_BUILD", "")
GENEROUS = 4 if SANITIZED else 1


def padded(size, number=1):
    """A ping that is exactly so many bytes long, without its LF."""
    head, tail = b'{"id":%d,"method":"health.ping",' % number + OURS[:-1] + b',"x":"', b'"}}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


def error_of(frame):
    return frame["error"]["code"], frame["error"]["data"]["reason"]


def alive(agent):
    assert agent.ping()["pong"] is True
    return True


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


# -- frames


def test_blank_lines_are_ignored(agent):
    agent.send_raw(b"\n\r\n \t \n\n" * 1000)
    assert alive(agent) and agent.strays == []


def test_a_line_of_one_byte(agent):
    for byte in (b"x", b"{", b"0", b'"', b"\0", b"\xff", b"]"):
        agent.send_raw(byte + b"\n")
        assert error_of(agent.stray()) in ((-32700, "frame.json"), (-32600, "frame.shape"))
    assert alive(agent)


def test_the_longest_line_and_one_more(agent):
    agent.send_raw(padded(MIB, 501) + b"\n")
    assert error_of(agent.wait(501)) == (-32602, "params.unknown")  # read as a whole, to its `x`
    for size in (MIB + 1, 2 * MIB, 5 * MIB):
        agent.send_raw(padded(size) + b"\n")
        assert error_of(agent.stray()) == (-32600, "frame.too_long")
        assert alive(agent) and agent.strays == []
    assert resident(agent.pid) < 12 * MIB * GENEROUS * 4


def test_a_long_line_is_told_before_its_end_and_skipped_to_it(agent):
    for _ in range(20):
        agent.send_raw(b"x" * 65536)
    assert error_of(agent.stray()) == (-32600, "frame.too_long")
    agent.send_raw(PING.replace(b"\n", b" still that line\n"))
    assert alive(agent) and agent.strays == []


def test_byte_by_byte(agent):
    for byte in b'{"id":"slow","method":"health.ping",' + OURS + b"}\n":
        agent.send_raw(bytes([byte]))
    assert agent.wait("slow")["result"]["pong"] is True


@pytest.mark.parametrize("deep", [b"[" * 10_000, b'{"a":' * 10_000, b"[" * 10_000 + b"]" * 10_000,
                                  b'{"id":1,"method":"health.ping","params":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001])
def test_nested_deep(agent, deep):
    agent.send_raw(deep + b"\n")
    assert error_of(agent.stray()) == (-32700, "frame.json")
    assert alive(agent)


@pytest.mark.parametrize("text", [
    b'{"id":1,"method":"\xff"}', b'{"id":1,"method":"\xc0\xaf"}', b'{"id":1,"method":"\xed\xa0\x80"}',
    b'{"id":1,"method":"\xf4\x90\x80\x80"}', b'{"id":1,"method":"a\0b"}', b"\xfe\xff\0{", b'\xef\xbb\xbf{"id":1}',
    b'{"id":1,"method":"\\ud800"}', b'{"id":1,"id":2,"method":"health.ping"}',
    b'{"id":1,"method":"health.ping","params":{"run_id":"r","run_id":"r","agent_id":"a"}}',
    b'{"id":1,"method":"health.ping","params":{"a":{"b":{"c":1,"c":1}}}}',
    b'{"id":9223372036854775808,"method":"x"}', b'{"id":1e999,"method":"x"}', b'{"id":1,"n":' + b"9" * 10_000 + b"}",
    b'{"id":NaN,"method":"x"}', b'{"id":Infinity}', b'{"id":01}', b"{'id':1}", b'{"id":1,}', b'{"id":1} {"id":2}',
])
def test_what_is_not_json(agent, text):
    agent.send_raw(text + b"\n")
    assert error_of(agent.stray()) == (-32700, "frame.json")
    assert alive(agent)


def test_numbers_at_their_ends(agent, sleeper):
    """As parameters, where a double or a cast would bend them."""
    for ttl in ("1e308", "-0.0", "4.9e-324", "9223372036854775807", "-9223372036854775808", "0.00049"):
        lease = json.dumps(agent.native(sleeper.pid)).replace('"ttl_seconds": 120', f'"ttl_seconds": {ttl}')
        agent.send_raw(f'{{"id":"n","method":"task.execute","params":{{"run_id":"r","agent_id":"a","fault_id":"proc.pause",'
                       f'"lease":{lease}}}}}\n'.encode())
        assert error_of(agent.wait("n")) == (-32602, "params.range"), ttl
    for pid in (4294967296 + sleeper.pid, -4294967296 + sleeper.pid, 2**63 - 1, -2**63):
        with pytest.raises(RpcError) as e:  # none of them becomes the sleeper
            agent.execute(agent.native(pid))
        assert e.value.reason == "target.protected"
        assert agent.execute(agent.declared(f"l-{abs(pid)}", "proc.pause",
                                            [{"op": "x", "args": {"pid": str(pid)}}]))["ok"] is False
    assert not sleeper.stopped


def test_strings_at_their_ends(agent, sleeper, tmp_path):
    """Ids, names and paths that are long, odd, or mean something to a file system."""
    ops = [{"op": "signal.cont", "args": {"pid": str(sleeper.pid)}}]
    for lease_id in ("l-../../../../tmp/x", "l-" + "x" * 77, "l-\u202e", "l- ", "l-%s%n", "l-'$(touch x)'"):
        answer = agent.execute(agent.declared(lease_id, "proc.pause", ops))
        assert answer["ok"] and answer["lease"]["id"] == lease_id
        assert agent.execute(agent.declared(lease_id, "proc.pause", ops), "undo")["ok"]
    for lease_id in ("l-" + "x" * 78, "l-a\nb", "l-"):
        with pytest.raises(RpcError) as e:
            agent.execute(agent.declared(lease_id, "proc.pause", ops))
        assert e.value.reason == "lease.shape"
    names = set(os.listdir(f"{agent.state}/leases")) | set(os.listdir(f"{agent.state}/ended"))
    assert all(n.startswith((".spare-", "d-")) for n in names)


# -- much at once


def test_thousands_of_requests_at_once(agent):
    frames = b"".join(b'{"id":%d,"method":"health.ping",%s}\n' % (n, OURS) for n in range(10_000))
    agent.send_raw(frames, timeout=60)
    for n in range(10_000):
        assert agent.wait(n)["result"]["pong"] is True


def test_thousands_of_errors_at_once(agent):
    """Their answers are longer than they are: none is lost for want of room."""
    count = 60_000
    agent.send_raw(b"1\n" * count, timeout=60, read=False)
    wait_until(lambda: agent.pump(1) and len(agent.strays) == count, 60)
    assert all(error_of(s) == (-32600, "frame.shape") for s in agent.strays)
    agent.strays.clear()
    assert alive(agent)


def test_hundreds_of_lists_at_once(agent, sleepers):
    for n, target in enumerate(sleepers(4)):
        ops = [{"op": "signal.cont", "args": {"pid": str(target.pid), "filler": "x" * 50_000}}]
        assert agent.execute(agent.declared(f"l-{n}", "proc.pause", ops))["ok"]
    numbers = [agent.start("lease.list") for _ in range(100)]
    started = time.monotonic()
    assert alive(agent) and time.monotonic() - started < 2 * GENEROUS
    for number in numbers:
        assert len(agent.result(number, timeout=60)["leases"]) == 4


def test_hundreds_of_injections_at_once(agent, sleepers):
    targets = sleepers(20)
    numbers = []
    for _ in range(10):
        for t in targets:
            numbers.append(agent.start("task.execute", fault_id="proc.pause", lease=agent.native(t.pid)))
    won = [agent.result(n, timeout=60) for n in numbers]
    assert sum(a["ok"] for a in won) == 20  # one each
    assert {a["reason"] for a in won if not a["ok"]} == {"resource_conflict"}
    assert all(t.stopped for t in targets)
    assert agent.eof(60) == 0
    assert not any(t.stopped for t in targets)


# -- pipes that break, or do not move


def test_a_controller_that_never_reads(agents, state, sleepers):
    """The queue has an end: stdin is not read any more, memory stays bounded, and faults end in time."""
    short, long = sleepers(2)
    agent = agents(state, handshake={"events": True})
    agent.inject(short.pid, duration_ms=1500)
    agent.inject(long.pid, duration_ms=60000)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 64 * MIB:
            agent.send_raw(b'{"id":"%s","method":"no.such.method",%s}\n' % (b"i" * 200, OURS) * 100, timeout=2, read=False)
            sent += 30_000
    assert 1 * MIB < sent < 16 * MIB
    assert resident(agent.pid) < 24 * MIB * GENEROUS * 4
    wait_until(lambda: not short.stopped, 5)
    assert leases(state)["l-00000001"].mechanism == "normal"
    assert long.stopped
    # When it reads again everything is there, and the session goes on behind the line that was cut.
    agent.send_raw(b"\n", timeout=60)
    assert agent.ping(timeout=60)["pong"] is True and agent.bad_lines == []
    # But for events: how many were dropped is told, and their numbers are missing.
    dropped = agent.event(lambda e: e["kind"] == "dropped")["count"]
    numbers = [e["seq"] for e in agent.events]
    assert dropped > 0 and numbers == sorted(numbers) and numbers[-1] == len(numbers) + dropped
    assert agent.eof() == 0 and not long.stopped


def test_a_controller_that_never_reads_and_leaves(agents, state, sleeper):
    agent = agents(state)
    agent.inject(sleeper.pid)
    with pytest.raises(TimeoutError):
        agent.send_raw(PING * 1_000_000, timeout=1, read=False)
    agent.popen.stdout.close()
    agent.close_stdin()
    agent._eof = True
    assert agent.wait_exit(read=False) in (0, 7)
    assert not sleeper.stopped


def test_a_controller_that_never_reads_while_we_are_told_to_end(agents, state, sleeper):
    """Undone at once, and then nobody waits long for a reader."""
    agent = agents(state)
    agent.inject(sleeper.pid)
    with pytest.raises(TimeoutError):
        agent.send_raw(PING * 1_000_000, timeout=1, read=False)
    agent.signal(signal.SIGTERM)
    wait_until(lambda: not sleeper.stopped, 5)
    assert agent.wait_exit(timeout=20, read=False) == 0


def test_stdout_closed_while_nothing_is_said(agents, state, sleeper):
    """A reader that goes away is the end of the session, also when there is nothing to write to it."""
    agent = agents(state)
    agent.inject(sleeper.pid)
    agent.popen.stdout.close()
    agent._eof = True
    wait_until(lambda: not sleeper.stopped, 5)
    assert agent.wait_exit(read=False) == 0
    assert leases(state)["l-00000001"].mechanism == "agent_lost"


def test_stdout_closed_costs_no_time(agents, state, sleeper):
    """A surviving lease keeps nobody: the agent does not spin on the error of a pipe."""
    agent = agents(state, handshake={"survive": True})
    lease = agent.inject(sleeper.pid)
    agent.popen.stdout.close()
    agent._eof = True
    assert agent.wait_exit(read=False) == 0
    assert sleeper.stopped
    other = agents(state)
    assert other.release(lease["id"])["ok"]


def test_stdout_closed_at_the_next_answer(agents, state, sleeper):
    agent = agents(state)
    agent.inject(sleeper.pid)
    agent.popen.stdout.close()
    agent._eof = True
    try:
        agent.send_raw(PING * 10)
    except SessionEnded:
        pass
    assert agent.wait_exit(read=False) == 0 and not sleeper.stopped


def start(state, tmp_path, stdin, redirect="", limits=(), text=b""):
    """An agent by a shell that redirects; (exit code, stdout)."""
    script = f'exec "$@" {redirect}'
    (tmp_path / "in").write_bytes(text)
    with open(stdin or tmp_path / "in", "rb") as source, (tmp_path / "out").open("wb") as out, \
            (tmp_path / "err").open("wb") as err:
        done = subprocess.run(["sh", "-c", script, "sh", *limits, agent_path(), "serve", "--state", str(state)],
                              stdin=source, stdout=out, stderr=err, timeout=60, check=False)
    return done.returncode, (tmp_path / "out").read_text()


def inject_frame(pid, number=7):
    return json.dumps({"id": number, "method": "task.execute", "params": {
        "run_id": "r", "agent_id": "a", "fault_id": "proc.pause",
        "lease": {"target": {"kind": "process", "pid": pid}}}}).encode() + b"\n"


def test_stdin_is_a_file(state, tmp_path, sleeper):
    code, out = start(state, tmp_path, None, text=PING + inject_frame(sleeper.pid) + b'{"half":')
    frames = {f["id"]: f for f in map(json.loads, out.splitlines())}
    assert code == 0 and set(frames) == {1, 7}
    assert frames[7]["result"]["ok"] is True and not sleeper.stopped
    assert all(r.state == "released" for r in leases(state).values())


@pytest.mark.parametrize("stdin, redirect", [("/dev/null", ""), (None, ""), (None, "<&-"), ("/dev/null", ">&-"), (None, ">/dev/full")])
def test_nothing_to_read_or_nowhere_to_write(state, tmp_path, stdin, redirect):
    code, out = start(state, tmp_path, stdin, redirect, text=b"" if redirect != ">/dev/full" else PING)
    assert code == 0 and out == ""


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full", "2>/dev/null"])
def test_stderr_closed(state, tmp_path, sleeper, redirect):
    """What is logged then goes nowhere, and above all not into a file or a socket that took its number."""
    noise = b"".join(inject_frame(sleeper.pid, n) for n in range(2, 30))
    code, out = start(state, tmp_path, None, redirect, text=PING + noise)
    frames = {f["id"]: f for f in map(json.loads, out.splitlines())}
    assert code == 0 and set(frames) == set(range(1, 30))
    assert any(frames[n]["result"]["ok"] for n in range(2, 30))  # one wins the race; later ones may come when it is over
    assert not sleeper.stopped and (tmp_path / "err").read_text() == ""
    assert all(r.at_safe_end for r in leases(state).values())


@pytest.mark.parametrize("closed", ["0", "1", "2", "0 1 2"])
def test_no_descriptor_takes_the_place_of_a_stream(state, sleeper, closed):
    """What is missing among 0 to 2 is /dev/null, in the agent as in its holders; else the log would go into a record."""
    redirects = " ".join(f"{n}{'<' if n == '0' else '>'}&-" for n in closed.split())
    argv = ["sh", "-c", f'exec "$@" {redirects}', "sh", agent_path(), "serve", "--state", str(state)]
    popen = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             start_new_session=True)
    try:
        if "0" not in closed:
            popen.stdin.write(inject_frame(sleeper.pid))
            popen.stdin.flush()
            wait_until(lambda: sleeper.stopped)
            holder = next(iter(leases(state).values())).holder_pid
            for pid in (popen.pid, holder):
                for number in closed.split() if pid == popen.pid else "012":
                    assert os.readlink(f"/proc/{pid}/fd/{number}") == "/dev/null"
        popen.stdin.close()
        assert popen.wait(10) == 0
        assert not sleeper.stopped
    finally:
        popen.kill()
        popen.wait(5)


def test_stderr_that_nobody_reads(state, sleepers):
    """A full pipe behind stderr holds nobody up."""
    r, w = os.pipe()
    os.set_blocking(w, False)
    try:
        while True:
            os.write(w, b"x" * 4096)
    except BlockingIOError:
        pass
    os.set_blocking(w, True)
    targets = sleepers(3)
    popen = subprocess.Popen([agent_path(), "serve", "--state", str(state), "--log-level", "debug"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=w, start_new_session=True)
    try:
        for n, t in enumerate(targets):
            popen.stdin.write(inject_frame(t.pid, n))
        popen.stdin.flush()
        answers = [json.loads(popen.stdout.readline()) for _ in targets]
        for record in leases(state).values():  # each of these deaths is a line of the log
            os.kill(record.holder_pid, signal.SIGKILL)
        wait_until(lambda: not any(t.stopped for t in targets), 5)
        popen.communicate(timeout=30)
    finally:
        popen.kill()
        popen.wait(5)
        os.close(r)
        os.close(w)
    assert popen.returncode == 0
    assert all(a["result"]["ok"] for a in answers)
    assert not any(t.stopped for t in targets)


# -- a poor host


@pytest.mark.parametrize("files", [3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 40])
def test_few_descriptors(state, tmp_path, sleepers, files):
    """It serves, or says why not; an injection that finds no descriptor is refused, and nothing stays."""
    targets = sleepers(4)
    text = PING + b"".join(inject_frame(t.pid, n) for n, t in enumerate(targets, 10))
    code, out = start(state, tmp_path, None, limits=["prlimit", f"--nofile={files}:{files}"], text=text)
    if code not in (0, 7):
        said = (tmp_path / "err").read_text()
        assert code in (8, 127) and ("error" in said or "shared libraries" in said), (code, said)
        assert [json.loads(line)["id"] for line in out.splitlines()] in ([], [1])  # a ping comes before the store
    else:
        frames = {f["id"]: f for f in map(json.loads, out.splitlines())}
        assert set(frames) == {1, 10, 11, 12, 13}, (out, (tmp_path / "err").read_text())
        for number in range(10, 14):
            frame = frames[number]
            if "error" in frame:
                assert frame["error"]["code"] in (-32000, -32001, -32603) and frame["error"]["message"], frame
            elif not frame["result"]["ok"]:
                assert frame["result"]["reason"], frame
    assert not any(t.stopped for t in targets)
    assert all(r.at_safe_end for r in leases(state).values())


@pytest.mark.skipif(SANITIZED, reason="a sanitizer maps more than any such limit")
@pytest.mark.parametrize("mib", [2, 3, 4, 5, 6, 8, 12])
def test_little_memory(state, tmp_path, sleepers, mib):
    targets = sleepers(3)
    text = PING + b"".join(inject_frame(t.pid, n) for n, t in enumerate(targets, 10)) + padded(MIB) + b"\n" + PING
    code, out = start(state, tmp_path, None, limits=["prlimit", f"--as={mib * MIB}"], text=text)
    for line in out.splitlines():
        json.loads(line)
    assert code in (0, 7, 8) or code >= 126, (code, (tmp_path / "err").read_text())
    wait_until(lambda: not any(t.stopped for t in targets), 5)


def test_two_sessions_on_one_pipe_end_are_no_riddle(state, tmp_path, sleeper):
    """stdin and stdout may be one socket."""
    import socket
    ours, theirs = socket.socketpair()
    popen = subprocess.Popen([agent_path(), "serve", "--state", str(state)], stdin=theirs, stdout=theirs,
                             stderr=subprocess.DEVNULL, start_new_session=True)
    theirs.close()
    try:
        ours.settimeout(10)
        ours.sendall(inject_frame(sleeper.pid))
        got = b""
        while not got.endswith(b"\n"):
            got += ours.recv(65536)
        assert json.loads(got)["result"]["ok"] is True and sleeper.stopped
        ours.close()
        assert popen.wait(10) == 0 and not sleeper.stopped
    finally:
        popen.kill()
        popen.wait(5)
        ours.close()


# -- at random


ODD = [None, True, False, 0, -1, 1, 2**31, 2**63 - 1, -2**63, 0.5, -0.0, 1e308, "", "x", "l-", "l-00000001", "t-000001", "proc.pause",
       "process.kill", "net", "inject", "undo", "verify", "observe", "check", "mayhem/1", "a\nb", "\u202e", "x" * 300, [], {}, [None],
       [[]], {"": None}, {"kind": "process"}, {"kind": "host"}, ["x"] * 50]
KNOWN = {-32700, -32600, -32601, -32602, -32000, -32001}


def templates(agent, pid):
    ops = [{"op": "signal.cont", "args": {"pid": str(pid), "boot_time": str(start_ticks(pid))}}]
    leases_ = [agent.native(pid, duration_ms=50), agent.native(pid, "process.stop", params={"grace": 0.01, "escalate": False}),
               agent.declared("l-7", "proc.pause", ops, ttl=0.05), agent.declared("l-8", "no.op", [{"op": "noop", "args": {}}], ttl=0.05),
               {"id": "l-00000001"}]
    yield "handshake", {"owner": "o", "session": "s", "protocols": ["mayhem/1"], "events": False,
                        "capabilities": {"allowed_faults": [], "capabilities": ["fault_inject", "fault_undo"]}}
    yield "capabilities.query", {"limit": 2, "after": "proc.pause"}
    yield "health.ping", {}
    for lease in leases_:
        for phase in ("check", "inject", "observe", "undo", "verify"):
            yield "task.execute", {"fault_id": lease.get("fault_id", "proc.pause"), "lease": lease, "phase": phase}
    yield "task.status", {"task_id": "t-000001", "limit": 3, "after": "t-000002"}
    yield "task.cancel", {"task_id": "t-000001"}
    yield "lease.list", {"state": "active", "mine": True, "limit": 3, "after": "l-00000003", "run": "r"}
    yield "lease.extend", {"lease_id": "l-00000001", "ttl_seconds": 1}
    yield "lease.release", {"lease_id": "l-00000001", "surrender": False, "note": "n"}


def bent(value, rng, depth=0):
    """The value with one thing in it changed, taken away or added."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        value = dict(value)
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            del value[key]
        elif rng.random() < 0.1:
            value[rng.choice(["surprise", "pid", "id", "target", "undo_ops", ""])] = rng.choice(ODD)
        else:
            value[key] = bent(value[key], rng, depth + 1)
        return value
    if isinstance(value, list) and value and rng.random() < 0.7:
        value = list(value)
        value[rng.randrange(len(value))] = bent(rng.choice(value), rng, depth + 1)
        return value
    return rng.choice(ODD)


def at_random(agents, state, sleeper, rng, rounds):
    agent = agents(state, handshake=False)
    frames = list(templates(agent, sleeper.pid))
    for _ in range(rounds):
        sent = {}
        for number in range(1, 41):
            method, params = rng.choice(frames)
            params = agent._params(params)
            if rng.random() < 0.8:
                params = bent(params, rng)
            if not isinstance(params, dict) or params.get("heartbeat_s") or params.get("survive") is True or \
                    isinstance(params.get("lease"), dict) and params["lease"].get("survive") is True:
                continue  # these end the session, or outlive it, as they should
            if params.get("fault_id") in ("process.kill", "process.stop") and params.get("phase") != "check":
                continue  # and these end the target
            if isinstance(params.get("capabilities"), dict):
                params["capabilities"] = {}
            sent[number] = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        agent.send_raw(b"".join(json.dumps(f).encode() + b"\n" for f in sent.values()), timeout=30)
        for number, frame in sent.items():
            reply = agent.wait(number, timeout=60)
            if "error" in reply:
                assert reply["error"]["code"] in KNOWN and reply["error"]["data"]["reason"], (frame, reply)
        assert agent.strays == [] and agent.replies == {} and alive(agent)
    assert agent.eof(60) == 0, agent.stderr
    assert sleeper.alive and not sleeper.stopped and all(r.at_safe_end for r in leases(state).values())


def test_a_little_at_random(agents, state, sleeper):
    at_random(agents, state, sleeper, random.Random(7), 15)


@pytest.mark.torture
def test_much_at_random(agents, state, sleepers):
    rng = random.Random(int(os.environ.get("MAYHEM_SEED", "1")))
    for _ in range(20):
        at_random(agents, state, sleepers(1)[0], rng, 50)
