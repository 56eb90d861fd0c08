"""Declared leases on real containers, the way a controller of 0.5.1 sends them.

The engine is a real Podman in the engines lab (`make torture`: and a real Docker); all of it happens in a view
with cgroup v1 alone.
"""

import itertools
import json
import os
import shutil
import signal

import pytest

from mayhem_test import RpcError, StateDir, is_alive, is_stopped, run_agent, wait_until
from mayhem_test.lab import Engines

_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["podman", pytest.param("docker", marks=pytest.mark.torture)])
def lab(request):
    if os.geteuid() != 0:
        pytest.skip("the engines lab needs root")
    with Engines(request.param) as engines:
        yield engines


class Container:
    """A running container: .name, .id, .pid (of its init, as the host sees it)."""

    def __init__(self, lab, image=None, argv=()):
        self.lab, self.name = lab, f"web{next(_numbers)}"
        self.create(image, argv)

    def create(self, image=None, argv=()):
        self.id = self.lab.run_container(self.name, *argv, image=image)
        self.pid = self.lab.init_pid(self.name)

    def remove(self):
        self.lab.remove_container(self.name)

    def sh(self, command):
        """The exit status of a shell command inside."""
        return self.lab.engine("exec", self.name, "sh", "-c", command, check=False).returncode


@pytest.fixture
def container(lab, nothing_left):
    c = Container(lab)
    yield c
    c.remove()


@pytest.fixture
def python(lab, nothing_left):
    c = Container(lab, image=lab.python_image)
    yield c
    c.remove()


@pytest.fixture
def agent(lab, agents, state):
    return agents(state, prefix=lab.prefix, env=lab.env)


def lease_id():
    return f"l-{next(_numbers):08d}"


def op(name, **args):
    return {"op": name, "args": args}


def on(container, **args):
    """Args of an op in container mode."""
    return {"cont": container.name, "engine": container.lab.kind, **args}


def pause(agent, container, **lease):
    return agent.declared(lease_id(), "proc.pause", [op("signal.cont", pid="0", **on(container))], **lease)


def record(agent, lease):
    """A declared lease's record: the one whose body carries its id and run."""
    return next(r for r in agent.records().values() if r.id == lease["id"] and r["run_id"] == agent.run_id)


# -- signal


def test_pause_and_undo(agent, container):
    lease = pause(agent, container)
    answer = agent.execute(lease)
    assert answer["ok"] is True and answer["state"] == "done" and answer["lease"]["state"] == "active", answer
    assert is_stopped(container.pid)
    assert record(agent, lease).key.startswith("d-")
    again = agent.execute(lease)
    assert again["ok"] is True and again["lease"]["state"] == "active"  # as stored; nothing is injected twice
    answer = agent.execute(lease, phase="undo")
    assert answer["ok"] is True and answer["lease"]["state"] == "released", answer
    assert not is_stopped(container.pid) and is_alive(container.pid)
    assert answer["lease"]["verified_by"]
    assert agent.execute(lease, phase="undo")["ok"] is True  # asking again answers the same
    assert record(agent, lease).moves == ["pending", "active", "releasing", "released"]


def test_undone_by_id_not_by_name(agent, container):
    lease = pause(agent, container)
    assert agent.execute(lease)["ok"] is True
    container.remove()
    container.create()
    assert is_alive(container.pid)
    os.kill(container.pid, signal.SIGSTOP)  # somebody else's business, which an undo by name would end
    wait_until(lambda: is_stopped(container.pid))
    try:
        answer = agent.execute(lease, phase="undo")
        assert is_stopped(container.pid)
        assert answer["ok"] is True and answer["lease"]["state"] == "released", answer
        assert answer["lease"]["release_mechanism"] == "target_gone"
    finally:
        os.kill(container.pid, signal.SIGCONT)


def test_container_gone_ends_it(agent, container):
    lease = pause(agent, container)
    assert agent.execute(lease)["ok"] is True
    container.remove()
    wait_until(lambda: record(agent, lease).at_safe_end)
    assert record(agent, lease).mechanism == "target_gone"


def test_restarted_container_is_no_target(lab, agent, container):
    """The same id, another init: whoever stopped that one, it was not this lease."""
    lease = pause(agent, container)
    assert agent.execute(lease)["ok"] is True
    lab.engine("kill", container.name)
    wait_until(lambda: record(agent, lease).at_safe_end)
    lab.engine("start", container.name)
    pid = lab.init_pid(container.name)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(pid))
    assert agent.execute(lease, phase="undo")["lease"]["release_mechanism"] == "target_gone"
    assert is_stopped(pid)


def test_looking_at_it_runs_no_engine(lab, agents, state, container, tmp_path):
    log, wrapper = tmp_path / "log", tmp_path / lab.kind
    real = shutil.which(lab.kind, path=lab.env["PATH"])
    wrapper.write_text(f'#!/bin/sh\necho "$@" >>{log}\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    agent = agents(state, prefix=lab.prefix, env={**lab.env, "PATH": f"{tmp_path}:{lab.env['PATH']}"})
    lease = pause(agent, container)
    assert agent.execute(lease)["ok"] is True
    ran = log.read_text()
    assert "kill --signal SIGSTOP" in ran
    assert agent.execute(lease, phase="observe")["observation"]["effect"] == "present"
    os.kill(container.pid, signal.SIGCONT)
    wait_until(lambda: record(agent, lease)["observations"][-1]["effect"] == "absent")  # seen by the holder itself
    assert log.read_text() == ran
    assert agent.execute(lease, phase="undo")["ok"] is True


@pytest.mark.parametrize("fault, signo", [("process.kill", 9), ("process.stop", 15)])
def test_kill_and_stop(lab, agent, fault, signo):
    # An init without a handler drops SIGTERM, so this one has one.
    container = Container(lab, argv=("sh", "-c", "trap 'exit 15' TERM; while :; do sleep 0.1; done"))
    try:
        lease = agent.declared(lease_id(), fault, [op("container.restart", pid="0", **on(container))])
        answer = agent.execute(lease)
        assert answer["ok"] is True, answer
        wait_until(lambda: not is_alive(container.pid))
        state = wait_until(lambda: lab.engine("inspect", "-f", "{{.State.ExitCode}} {{.State.Status}}", container.name))
        assert state.split()[0] == {9: "137", 15: "15"}[signo], state
        assert agent.execute(lease, phase="undo")["ok"] is True
    finally:
        container.remove()


def test_ttl_ends_it(agent, container):
    lease = pause(agent, container, ttl=1)
    assert agent.execute(lease)["ok"] is True
    assert is_stopped(container.pid)
    wait_until(lambda: not is_stopped(container.pid), 8)
    wait_until(lambda: record(agent, lease).state == "released")
    assert record(agent, lease).mechanism == "deadline"
    compensated = wait_until(lambda: agent.request("task.status")["compensated"])
    assert [c["state"] for c in compensated if c["lease_id"] == lease["id"]] == ["expired"]


def test_agent_killed(agent, container):
    lease = pause(agent, container)
    assert agent.execute(lease)["ok"] is True
    agent.kill()
    wait_until(lambda: not is_stopped(container.pid), 10)
    wait_until(lambda: record(agent, lease).at_safe_end)
    assert record(agent, lease).mechanism == "agent_lost"


def test_end_of_session(agent, container):
    lease = pause(agent, container)
    assert agent.execute(lease)["ok"] is True
    assert agent.eof() == 0
    assert not is_stopped(container.pid)
    assert record(agent, lease).mechanism == "agent_lost"


def test_holder_killed(agent, container):
    lease = pause(agent, container)
    assert agent.execute(lease)["ok"] is True
    os.kill(record(agent, lease).holder_pid, signal.SIGKILL)
    wait_until(lambda: not is_stopped(container.pid), 10)
    wait_until(lambda: record(agent, lease).at_safe_end)
    assert record(agent, lease).mechanism == "recovery"


def test_both_killed_then_recover(lab, agent, container):
    lease = pause(agent, container)
    assert agent.execute(lease)["ok"] is True
    agent.signal(signal.SIGSTOP)
    os.kill(record(agent, lease).holder_pid, signal.SIGKILL)
    agent.kill()
    assert is_stopped(container.pid)
    done = run_agent("recover", "--json", state=agent.state, prefix=lab.prefix, env=lab.env)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert json.loads(done.stdout)["counts"]["undone"] == 1
    assert not is_stopped(container.pid)
    assert record(agent, lease).mechanism == "recovery"


def test_engine_that_is_not_there(lab, agents, state, container):
    agent = agents(state, prefix=lab.prefix, env={**lab.env, "PATH": "/nowhere"})
    lease = pause(agent, container)
    answer = agent.execute(lease)
    assert answer["ok"] is False and answer["reason"] == "failed_to_apply", answer
    assert not is_stopped(container.pid)
    assert answer["lease"]["state"] == "expired"


def test_container_that_is_not_there(lab, agent):
    lease = agent.declared(lease_id(), "proc.pause", [op("signal.cont", pid="0", cont="nobody1", engine=lab.kind)])
    answer = agent.execute(lease)
    assert answer["ok"] is False and answer["lease"]["state"] == "expired", answer


@pytest.mark.parametrize("engine", ["rkt", "/usr/bin/podman", "podman;id", "unix:relative", "unix:///run/not/listed"])
def test_engine_that_is_none(agent, container, engine):
    lease = agent.declared(lease_id(), "proc.pause", [op("signal.cont", pid="0", cont=container.name, engine=engine)])
    with pytest.raises(RpcError) as refused:
        agent.execute(lease)
    assert refused.value.code == -32602, refused.value
    assert not is_stopped(container.pid)


@pytest.mark.parametrize("name", ["-a", "--all", "a b", "x;id", ""])
def test_names_are_no_options(agent, container, name):
    """A container's name goes to the engine's command line; it must not become a word of its own."""
    lease = agent.declared(lease_id(), "process.kill", [op("signal.cont", pid="0", cont=name, engine=container.lab.kind)])
    try:
        assert agent.execute(lease)["ok"] is False
    except RpcError as refused:
        assert refused.code == -32602
    assert is_alive(container.pid)


def test_engine_by_its_socket(lab, agents, state, container, tmp_path):
    policy = tmp_path / "agent.json"
    policy.write_text(json.dumps({"format": "mayhem.agent/1", "engines": [f"unix://{lab.sock}"]}))
    # A host of Podman has no docker command; where this one has, it is not in the agent's PATH.
    path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"} if lab.kind == "podman" else {}
    agent = agents(state, prefix=lab.prefix, env={**lab.env, **path}, policy=policy)
    args = {"cont": container.name, "engine": f"unix://{lab.sock}", "pid": "0"}
    lease = agent.declared(lease_id(), "proc.pause", [op("signal.cont", **args)])
    answer = agent.execute(lease)
    assert answer["ok"] is True, answer
    assert is_stopped(container.pid)
    assert agent.execute(lease, phase="undo")["ok"] is True
    assert not is_stopped(container.pid)


def test_unknown_family_and_unplannable(agent, container):
    lease = agent.declared(lease_id(), "weird.thing", [op("signal.cont", pid="0", **on(container))])
    with pytest.raises(RpcError) as refused:
        agent.execute(lease)
    assert (refused.value.code, refused.value.reason) == (-32602, "fault.unknown")
    lease = agent.declared(lease_id(), "proc.dance", [op("signal.cont", pid="0", **on(container))])
    answer = agent.execute(lease)
    assert answer["ok"] is False and "unplannable" in answer["detail"], answer


# -- payload

PAYLOAD = """
import os, time
open('/tmp/marker', 'w').write(str(os.getpid()))
open('/tmp/marker.data', 'w').write('x')
while True: time.sleep(0.1)
"""


def payload(agent, container, code=PAYLOAD, marker="/tmp/marker"):
    return agent.declared(lease_id(), "mem.exhaust", [op("payload.kill", payload=code, marker=marker, **on(container))])


def marked(container):
    """The host's pid of the payload: in the container's init's pid namespace, by its command line."""
    namespace = os.readlink(f"/proc/{container.pid}/ns/pid")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") == namespace:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    if b"/tmp/marker.data" in f.read():
                        return int(pid)
        except OSError:
            continue
    return None


def test_payload(agent, python):
    lease = payload(agent, python)
    answer = agent.execute(lease)
    assert answer["ok"] is True, answer
    pid = wait_until(lambda: marked(python))
    wait_until(lambda: python.sh("test -e /tmp/marker.data") == 0)
    answer = agent.execute(lease, phase="undo")
    assert answer["ok"] is True and answer["lease"]["state"] == "released", answer
    assert not is_alive(pid)
    assert python.sh("test -e /tmp/marker || test -e /tmp/marker.data") != 0
    assert agent.execute(lease, phase="undo")["ok"] is True


def test_payload_ends_with_the_agent(agent, python):
    lease = payload(agent, python)
    assert agent.execute(lease)["ok"] is True
    pid = wait_until(lambda: marked(python))
    agent.kill()
    wait_until(lambda: not is_alive(pid), 10)
    wait_until(lambda: record(agent, lease).at_safe_end, 10)


def test_payload_needs_a_python(agent, container):
    answer = agent.execute(payload(agent, container))
    assert answer["ok"] is False, answer
    assert answer["lease"]["state"] in ("expired", "released"), answer
    assert container.sh("test -e /tmp/marker") != 0


def test_payload_needs_shell_exec(lab, agents, state, python, tmp_path):
    policy = tmp_path / "agent.json"
    policy.write_text(json.dumps({"format": "mayhem.agent/1", "capabilities": ["fault_inject", "fault_undo"]}))
    agent = agents(state, prefix=lab.prefix, env=lab.env, policy=policy)
    with pytest.raises(RpcError) as refused:
        agent.execute(payload(agent, python))
    assert (refused.value.code, refused.value.reason) == (-32001, "agent.capability.denied")
    assert marked(python) is None
    lease = pause(agent, python)  # a signal needs none
    assert agent.execute(lease)["ok"] is True
    assert agent.execute(lease, phase="undo")["ok"] is True


# -- tool


def tool(agent, fault, inject, undo, **args):
    return agent.declared(lease_id(), fault, [op("tool.undo", inject_argv=json.dumps(inject), undo_argv=json.dumps(undo),
                                                 **args)])


@pytest.mark.parametrize("fault", ["net.latency", "disk.fill", "cpu.throttle", "fs.read_only", "process.crash_loop"])
def test_tool(agent, container, fault):
    inside = ["@engine", "exec", "@cont", "sh", "-c"]
    lease = tool(agent, fault, [*inside, "echo $0 >/tmp/flag; cat >>/tmp/flag"], [*inside, "rm /tmp/flag"],
                 **on(container))
    answer = agent.execute(lease)
    assert answer["ok"] is True, answer
    assert container.sh("test -s /tmp/flag") == 0
    answer = agent.execute(lease, phase="undo")
    assert answer["ok"] is True and answer["lease"]["state"] == "released", answer
    assert container.sh("test -e /tmp/flag") != 0
    assert agent.execute(lease, phase="undo")["ok"] is True


def test_tool_changes_a_limit_and_puts_it_back(lab, agent, container):
    lab.engine("update", "--cpus", "1", container.name)
    folder = f"/sys/fs/cgroup/cpu{lab.run('sed', '-n', 's/^[0-9]*:cpu://p', f'/proc/{container.pid}/cgroup')}"

    def quota():
        with open(f"{folder}/cpu.cfs_quota_us", encoding="ascii") as f:
            return int(f.read())

    before = quota()
    assert before == 100000
    lease = tool(agent, "cpu.throttle", ["@engine", "update", "--cpus", "0.25", "@cont"],
                 ["@engine", "update", "--cpus", "1", "@cont"], **on(container))
    assert agent.execute(lease)["ok"] is True
    assert quota() == 25000
    assert agent.execute(lease, phase="undo")["ok"] is True
    assert quota() == before


def test_tool_that_fails(agent, container):
    lease = tool(agent, "net.latency", ["sh", "-c", "echo out; printf %300s x | tr ' ' y >&2; exit 3"], ["true"],
                 **on(container))
    answer = agent.execute(lease)
    assert answer["ok"] is False and answer["reason"] == "failed_to_apply", answer
    assert "y" * 190 in answer["detail"] and "y" * 201 not in answer["detail"], answer
    lease = tool(agent, "net.latency", ["/no/such/program"], ["true"])
    answer = agent.execute(lease)
    assert answer["ok"] is False and answer["lease"]["state"] in ("expired", "released"), answer


def test_tool_whose_undo_fails_is_dirty(agent, container):
    lease = tool(agent, "net.latency", ["true"], ["sh", "-c", "echo broken >&2; exit 3"], **on(container))
    assert agent.execute(lease)["ok"] is True
    answer = agent.execute(lease, phase="undo", )
    assert answer["ok"] is False and answer["lease"]["state"] == "dirty", answer
    assert "broken" in json.dumps(answer["lease"]["escalation_notes"])
    assert answer["lease"]["remedy"], answer
    assert agent.ping()["pong"] is True  # the session lives
    assert agent.eof(60) == 7


def test_tool_without_a_container_keeps_no_placeholder(agent):
    lease = tool(agent, "net.latency", ["touch", "/tmp/@cont"], ["rm", "/tmp/@cont"])
    try:
        answer = agent.execute(lease)
        assert answer["ok"] is False, answer
    except RpcError as refused:
        assert refused.code in (-32602, -32001)
    assert not os.path.exists("/tmp/@cont")


def test_tool_gets_no_shell_and_no_stdin(agent, tmp_path):
    out = tmp_path / "out"
    lease = tool(agent, "dns.failure", ["sh", "-c", f"cat >{out}; echo \"$0 $1\" >>{out}", "$(id)", ";id"], ["rm", str(out)])
    answer = agent.execute(lease)
    assert answer["ok"] is True, answer
    assert out.read_text() == "$(id) ;id\n"
    assert agent.execute(lease, phase="undo")["ok"] is True
    assert not out.exists()


def test_a_talkative_tool_is_cut(agent):
    lease = tool(agent, "net.latency", ["sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' z; head -c 5000000 /dev/zero >&2"],
                 ["true"])
    assert agent.execute(lease, )["ok"] is True
    assert agent.execute(lease, phase="undo")["ok"] is True
    assert all(os.path.getsize(r.path) < 4 << 20 for r in agent.records().values())


# -- natively, a container is refused until there is an engine client


def test_native_fault_on_a_container_is_refused_by_name(agent, container):
    target = {"kind": "container", "engine": container.lab.kind, "id": container.id}
    with pytest.raises(RpcError) as refused:
        agent.execute(agent.native(None, target=target))
    assert refused.value.code == -32602 and "container" in refused.value.message
    assert not is_stopped(container.pid)


def test_state_is_where_it_was_said(agent, container, nothing_left):
    other = StateDir()
    nothing_left.append(other)
    assert agent.execute(pause(agent, container))["ok"] is True
    assert other.leases() == {} and len(agent.records()) == 1
