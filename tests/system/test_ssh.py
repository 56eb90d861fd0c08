"""Another host over real ssh: the same session, a cut cable, a login user with sudo."""

import json
import os
import signal
import subprocess

import pytest

from mayhem_test import Agent, Sleeper, agent_path, helper, is_stopped, leases, mayhem_path, wait_until
from mayhem_test.lab import Hosts

STATE = "/var/lib/mayhem"       # root's default on a host
DRILL_STATE = ".local/state/mayhem"


@pytest.fixture(scope="module")
def lab():
    if os.geteuid() != 0:
        pytest.skip("the hosts lab needs root")
    with Hosts(2, [agent_path(), helper("sleeper")]) as hosts:
        yield hosts


@pytest.fixture(autouse=True)
def connections(lab, nothing_left):
    """A kept ssh connection would outlive its test by ten minutes; what a cut one left on the host, by more."""
    yield
    for i in (1, 2):
        lab.mend(i)
    lab.end_connections()


def target_on(lab, i, uid=None):
    return Sleeper(prefix=lab.on(i, uid))


def records(lab, i, folder=STATE):
    """The records on a host, by the file system of that host."""
    return leases(lab.path_on(i, folder))


def only_record(lab, i, folder=STATE, match=lambda r: True):
    found = [r for r in records(lab, i, folder).values() if match(r)]
    return found[-1] if found else None


def of_pid(pid):
    return lambda r: r["target"].get("pid") == pid


def mayhem(lab, *args, **kw):
    """`mayhem ARGS` on the controller's side."""
    return lab.run(mayhem_path(), *args, check=False, **kw)


def mayhem_start(lab, *args):
    return subprocess.Popen([*lab.prefix, mayhem_path(), *map(str, args)], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                            env={**os.environ, **lab.env})


def ended(lab, pid, *mechanisms, folder=STATE, timeout=5):
    record = wait_until(lambda: (r := only_record(lab, 1, folder, of_pid(pid))) and r.at_safe_end and r, timeout, "a safe end")
    assert record.state == "released" and record.mechanism in mechanisms, record
    return record


def parent(pid):
    with open(f"/proc/{pid}/stat", "rb") as f:
        return int(f.read().rpartition(b")")[2].split()[1])


# -- a raw session over ssh


@pytest.fixture
def session(lab, connections):
    """An agent on h1 as root through ssh, with a heartbeat of a second."""
    argv = [*lab.prefix, "ssh", "-o", "BatchMode=yes", "root-h1", "--", "mayhem-agent", "serve"]
    with Agent(state=STATE, argv=argv) as agent:
        agent.hello = agent.handshake(heartbeat_s=1)
        yield agent


def test_session_over_ssh(lab, session):
    assert session.hello["host"]["hostname"] == "h1"
    with target_on(lab, 1) as target:
        lease = session.inject(target.pid)
        assert target.stopped and lease["host"]["hostname"] == "h1"
        assert session.release(lease["id"])["ok"] is True
        assert not target.stopped
        ended(lab, target.pid, "normal")
    assert session.eof() == 0


def test_cut_cable_is_undone_by_heartbeat(lab, session):
    with target_on(lab, 1) as target:
        session.inject(target.pid, duration_ms=300000, ttl=360)
        end = 4  # pings: longer than three heartbeats, and it holds as long as somebody speaks
        for _ in range(end * 4):
            session.ping()
            assert target.stopped
            try:
                wait_until(lambda: not target.stopped, 0.25)
            except AssertionError:
                continue
            pytest.fail("undone although the controller is there")
        lab.cut(1)
        assert target.stopped
        wait_until(lambda: not target.stopped, 6)
        ended(lab, target.pid, "agent_lost")
        wait_until(lambda: not lab.agents_on(1))
        session.kill()  # ssh would wait for its dead connection for minutes


def test_controller_killed(lab, session):
    with target_on(lab, 1) as target:
        session.inject(target.pid)
        session.kill()
        wait_until(lambda: not target.stopped, 5)
        ended(lab, target.pid, "agent_lost")


def test_session_of_ssh_ended_by_the_host(lab, session):
    """The host's own sshd child dies: its agent reads the end."""
    with target_on(lab, 1) as target:
        session.inject(target.pid)
        parents = {pid: parent(pid) for pid in lab.agents_on(1)}
        (above,) = set(parents.values()) - set(parents)  # holders are children of their agent
        assert open(f"/proc/{above}/comm", encoding="ascii").read() == "sshd\n"
        fd = os.pidfd_open(above)
        assert above in parents.values() and set(parents) <= set(lab.agents_on(1))
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)
        wait_until(lambda: not target.stopped, 5)
        ended(lab, target.pid, "agent_lost")


# -- the command line


def inject(lab, pid, *args, host="ssh:root-h1", seconds="60s"):
    return mayhem_start(lab, "inject", "proc.pause", "--pid", pid, "--for", seconds, "--host", host, *args)


def test_inject_to_its_end(lab):
    with target_on(lab, 1) as target:
        process = inject(lab, target.pid, "--json", seconds="1s")
        wait_until(lambda: target.stopped, 10)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0, (out, err)
        assert not target.stopped
        answer = json.loads(out.splitlines()[-1])
        assert answer["v"] == 1
        ended(lab, target.pid, "normal")


def test_inject_interrupted(lab):
    with target_on(lab, 1) as target:
        process = inject(lab, target.pid)
        wait_until(lambda: target.stopped, 10)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 6, (out, err)
        assert not target.stopped
        ended(lab, target.pid, "normal", "cancelled")


def test_inject_with_its_cable_cut(lab):
    with target_on(lab, 1) as target:
        process = inject(lab, target.pid, seconds="300s")
        wait_until(lambda: target.stopped, 10)
        lab.cut(1)
        assert target.stopped
        wait_until(lambda: not target.stopped, 25)  # three heartbeats of five seconds, and a little
        ended(lab, target.pid, "agent_lost")
        assert process.wait(25) == 8
        # And whoever reads its output sees the end of it, though ssh still waits for its dead connection.
        _, err = process.communicate(timeout=10)
        assert "root-h1" in err, err


def test_terminal_signals_reach_the_controller_alone(lab):
    """ssh runs in a session of its own: SIGINT to the group of `mayhem` does not cut the channel under it."""
    with target_on(lab, 1) as target:
        process = inject(lab, target.pid)
        wait_until(lambda: target.stopped, 10)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 6, (out, err)
        ended(lab, target.pid, "normal", "cancelled")


def test_leases_and_release_from_here(lab):
    with target_on(lab, 1) as target:
        done = mayhem(lab, "inject", "proc.pause", "--pid", target.pid, "--for", "300s", "--detach", "--json",
                      "--host", "ssh:root-h1")
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert target.stopped
        listed = json.loads(mayhem(lab, "leases", "--json", "--host", "ssh:root-h1").stdout)
        lease = next(l for l in listed["leases"] if l["target"].get("pid") == target.pid)
        assert lease["state"] == "active" and lease["survive"] is True
        done = mayhem(lab, "release", lease["id"], "--host", "ssh:root-h1")
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert not target.stopped
    assert json.loads(mayhem(lab, "leases", "--json", "--host", "ssh:root-h2").stdout)["leases"] == []


def test_own_process_without_root(lab):
    with target_on(lab, 1, uid=2000) as target:
        process = inject(lab, target.pid, host="ssh:h1", seconds="1s")
        wait_until(lambda: target.stopped, 10)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0, (out, err)
        folder = lab.run("sh", "-c", "echo ~drill") + "/" + DRILL_STATE
        ended(lab, target.pid, "normal", folder=folder)


def test_roots_process_needs_sudo(lab):
    with target_on(lab, 1) as target:
        done = mayhem(lab, "inject", "proc.pause", "--pid", target.pid, "--for", "1s", "--host", "ssh:h1")
        assert done.returncode != 0 and not target.stopped, (done.stdout, done.stderr)
        process = inject(lab, target.pid, "--sudo", host="ssh:h1", seconds="1s")
        wait_until(lambda: target.stopped, 10)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0, (out, err)
        assert ended(lab, target.pid, "normal")["owner"] == "uid:0"


def test_sudo_agent_ends_when_the_controller_dies(lab):
    with target_on(lab, 1) as target:
        process = inject(lab, target.pid, "--sudo", host="ssh:h1")
        wait_until(lambda: target.stopped, 10)
        process.kill()
        process.communicate()
        wait_until(lambda: not target.stopped, 20)
        ended(lab, target.pid, "agent_lost")
        wait_until(lambda: not lab.agents_on(1))


def test_sudo_refused_shows_the_line(lab):
    with target_on(lab, 1) as target:
        done = mayhem(lab, "inject", "proc.pause", "--pid", target.pid, "--sudo", "--host", "ssh:plain-h1")
        assert done.returncode == 8, (done.stdout, done.stderr)
        assert "NOPASSWD" in done.stderr and not target.stopped, done.stderr


def test_unreachable_and_missing(lab):
    lab.cut(2)
    done = mayhem(lab, "leases", "--host", "ssh:root-h2", timeout=30)
    assert done.returncode == 8, (done.stdout, done.stderr)
    done = mayhem(lab, "leases", "--host", "ssh:root-h1", "--agent", "no-such-agent")
    assert done.returncode == 8 and "no-such-agent" in done.stderr, (done.stdout, done.stderr)
    for word in ("a b", "$(id)", "x;id"):
        done = mayhem(lab, "leases", "--host", "ssh:root-h1", "--agent", word)
        assert done.returncode in (2, 3, 4), (done.returncode, done.stdout, done.stderr)


def test_two_hosts_at_once(lab):
    with target_on(lab, 1) as one, target_on(lab, 2) as two:
        first, second = inject(lab, one.pid, seconds="2s"), inject(lab, two.pid, host="ssh:root-h2", seconds="2s")
        wait_until(lambda: is_stopped(one.pid) and is_stopped(two.pid), 10)
        for process in (first, second):
            out, err = process.communicate(timeout=20)
            assert process.returncode == 0, (out, err)
        assert only_record(lab, 1, match=of_pid(one.pid))["host"] != only_record(lab, 2, match=of_pid(two.pid))["host"]
