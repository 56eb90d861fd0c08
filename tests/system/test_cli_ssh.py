"""`mayhem` over ssh to a host of its own network: faults there, sudo there, the cable pulled."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time

import pytest

from mayhem_test import Sleeper, agent_path, mayhem_path, run_mayhem, wait_until
from mayhem_test.lab import Hosts


@pytest.fixture(scope="module")
def lab():
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with Hosts(1, [agent_path()]) as hosts:
        yield hosts


@pytest.fixture(autouse=True)
def connections_end(lab, nothing_left):
    """Connections are kept for the next command; the last one of a test closes them."""
    yield
    lab.run("sh", "-c", f"for s in {lab.env['XDG_RUNTIME_DIR']}/mayhem/*; do [ ! -S $s ] || ssh -O exit -S $s any; done",
            check=False)


@pytest.fixture
def target(lab, nothing_left):
    """A sleeper on h1, of its login user."""
    with Sleeper(prefix=lab.on(1, 2000)) as s:
        yield s


def remote(lab, host, *args, timeout=60):
    return run_mayhem("--host", f"ssh:{host}", *args, prefix=lab.prefix, env=lab.env, timeout=timeout)


class Running:
    """A `mayhem` on the controller's side that is still there. Its output goes to files: a connection
    that is kept holds a pipe open as long as it lives."""

    def __init__(self, lab, host, *args):
        env = {**os.environ, **lab.env}
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.popen = subprocess.Popen([*lab.prefix, mayhem_path(), "--host", f"ssh:{host}", *map(str, args)],
                                      stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, env=env,
                                      start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait(5)
        self.out.close()
        self.err.close()

    def signal(self, signo):
        self.popen.send_signal(signo)

    def end(self, timeout=60):
        self.popen.wait(timeout)
        out, err = (os.pread(f.fileno(), 1 << 20, 0).decode() for f in (self.out, self.err))
        return subprocess.CompletedProcess([], self.popen.returncode, out, err)


def test_inject_over_ssh(lab, target):
    done = remote(lab, "h1", "inject", "proc.pause", "--pid", target.pid, "--for", "300ms", "--json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    lease = json.loads(done.stdout)["lease"]
    assert lease["state"] == "released" and lease["target"]["start_ticks"] == target.start_ticks
    assert lease["owner"] == "uid:2000" and lease["host"]["hostname"] == "h1"
    assert not target.stopped


def test_with_sudo_there(lab, nothing_left):
    with Sleeper(prefix=lab.on(1)) as roots:
        refused = remote(lab, "h1", "inject", "proc.pause", "--pid", roots.pid)
        assert refused.returncode in (5, 6) and not roots.stopped, (refused.returncode, refused.stderr)
        done = remote(lab, "h1", "--sudo", "inject", "proc.pause", "--pid", roots.pid, "--for", "100ms", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["lease"]["owner"] == "uid:0"


def test_without_sudo_there(lab, target):
    done = remote(lab, "plain-h1", "--sudo", "inject", "proc.pause", "--pid", target.pid)
    assert done.returncode == 8 and "[agent.sudo]" in done.stderr and "NOPASSWD" in done.stderr, done.stderr


def test_one_connection_serves_many_commands(lab):
    remote(lab, "h1", "leases")
    start = time.monotonic()
    for _ in range(5):
        assert remote(lab, "h1", "leases").returncode == 0
    assert (time.monotonic() - start) / 5 < 0.5
    assert remote(lab, "h1", "version", "--with-agent").returncode == 0
    listed = lab.run("sh", "-c", f"ls {lab.env['XDG_RUNTIME_DIR']}/mayhem")
    assert len(getattr(listed, "stdout", listed).split()) == 1


def test_a_signal_undoes_over_ssh(lab, target):
    with Running(lab, "h1", "inject", "proc.pause", "--pid", target.pid, "--for", "60s") as run:
        wait_until(lambda: target.stopped, 10)
        run.signal(signal.SIGINT)
        done = run.end()
    assert done.returncode == 6 and "[cancelled]" in done.stderr and not target.stopped


def test_detach_and_release_over_ssh(lab, target):
    done = remote(lab, "h1", "inject", "proc.pause", "--pid", target.pid, "--for", "60s", "--detach")
    assert done.returncode == 0 and target.stopped, done.stderr
    words = re.search(r"^sooner: mayhem (.*)$", done.stdout, re.MULTILINE).group(1).split()
    assert words[:2] == ["--host", "ssh:h1"]
    assert remote(lab, "h1", *words[2:]).returncode == 0
    assert not target.stopped


def test_the_cable_is_pulled(lab, target):
    """No FIN arrives anywhere: the agent misses the controller, the controller misses the agent."""
    with Running(lab, "h1", "inject", "proc.pause", "--pid", target.pid, "--for", "120s") as run:
        wait_until(lambda: target.stopped, 10)
        lab.cut(1)
        cut = time.monotonic()
        try:
            wait_until(lambda: not target.stopped, 25)
            undone = time.monotonic() - cut
            done = run.end(40)
        finally:
            lab.mend(1)
    assert 10 < undone < 20, undone
    assert done.returncode == 8 and "[agent.lost]" in done.stderr, done.stderr
    assert re.search(r"l-\d{8} is undone by its holder, at the latest at \d{4}-", done.stderr)


def test_recover_and_doctor_over_ssh(lab):
    assert remote(lab, "h1", "recover", "--json").returncode == 0
    done = remote(lab, "h1", "doctor", "--json")
    assert json.loads(done.stdout)["host"] == "h1"
