"""The labs of tests/lab as objects: a container engine, a fleet, a virtual machine.

    with Engines("podman") as lab:
        cid = lab.run_container("web", "sleep", "1000")
        agent = Agent(prefix=lab.prefix, env=lab.env)      # sees that engine

    with Hosts(2, [agent_path()]) as lab:
        lab.run("ssh", "h1", "hostname")
        Sleeper(prefix=lab.on(1))                          # a target on h1
        lab.cut(1)

    with Disk() as disk, Machine([agent_path()], disk) as vm:
        vm.sh("mount")                                     # a command in there; its output
        agent = vm.agent("/state/s")                       # an Agent in there
        vm.reset()                                         # and everything unsynced is lost
"""

import base64
import io
import itertools
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from .agent import Agent
from .procs import is_alive
from .records import leases
from .sandbox import ROOT
from .waiting import children, wait_until

_LAB = ROOT / "tests" / "lab"


class _Lab:
    """A lab script that says NAME=VALUE lines and `ready`, and ends with its stdin."""

    def __init__(self, script, *args, timeout=60):
        self._stderr = tempfile.TemporaryFile()
        self.popen = subprocess.Popen([str(_LAB / script), *map(str, args)], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=self._stderr, bufsize=0, start_new_session=True)
        self.values = {}
        try:
            said = self._say_ready(script, time.monotonic() + timeout)
        except BaseException:
            self.close()
            raise
        for line in said.splitlines():
            name, _, value = line.partition("=")
            self.values[name] = value
        self.pid = int(self.values["pid"])

    def _say_ready(self, script, end):
        said = b""
        while not said.endswith(b"ready\n"):
            if not select.select([self.popen.stdout], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"{script}: not ready in time: {self.stderr}")
            data = os.read(self.popen.stdout.fileno(), 65536)
            if not data:
                raise RuntimeError(f"{script} ended: {self.stderr}")
            said += data
        return said.decode()

    @property
    def stderr(self):
        return os.pread(self._stderr.fileno(), 1 << 20, 0).decode(errors="replace")

    @property
    def prefix(self):
        """Before an argv: inside the lab. The pid stays."""
        return ["/usr/bin/nsenter", f"--target={self.pid}", "--mount", "--net", "--"]

    @property
    def env(self):
        return {}

    def run(self, *argv, check=True, timeout=60, stdin=subprocess.DEVNULL):
        """A command inside, to its end; its stdout, stripped, or with check=False the CompletedProcess."""
        done = subprocess.run([*self.prefix, *map(str, argv)], stdin=stdin, capture_output=True, text=True,
                              timeout=timeout, env={**os.environ, **self.env}, check=False)
        if not check:
            return done
        assert done.returncode == 0, f"{argv}: exit {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def close(self):
        if self.popen.stdin and not self.popen.stdin.closed:
            self.popen.stdin.close()
            try:
                self.popen.wait(60)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait(5)
                raise
            finally:
                self.popen.stdout.close()
                self._stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class Engines(_Lab):
    """A real container engine; kind is podman or docker."""

    def __init__(self, kind="podman"):
        super().__init__("engines.sh", kind)
        self.kind, self.sock = kind, self.values["SOCK"]
        self.image, self.python_image = self.values["IMAGE"], self.values["PYTHON_IMAGE"]

    @property
    def env(self):
        return {"PATH": self.values["PATH"]}

    def engine(self, *args, **kw):
        return self.run(self.kind, *args, **kw)

    def run_container(self, name, *argv, image=None, args=()):
        """Starts a container; its full id."""
        return self.engine("run", "-d", "--name", name, *args, image or self.image, *(argv or ("sleep", "1000")))

    def remove_container(self, name):
        self.engine("kill", name, check=False)
        self.engine("rm", "-f", name, check=False)

    def init_pid(self, name):
        """The host's pid of a container's init."""
        return int(self.engine("inspect", "-f", "{{.State.Pid}}", name))


class Hosts(_Lab):
    """Hosts h1 … hN with sshd; self.prefix is the controller's side of the bridge."""

    def __init__(self, n=1, files=()):
        super().__init__("hosts.sh", n, *files)

    @property
    def env(self):
        return {"XDG_RUNTIME_DIR": self.values["XDG_RUNTIME_DIR"]}

    def on(self, i=1, uid=None):
        """Before an argv: on host i. The pid stays."""
        user = [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
        return ["/usr/bin/nsenter", f"--target={self.values[f'h{i}']}", "--mount", "--net", "--uts", "--", *user]

    def run_on(self, i, *argv, **kw):
        """A command on host i, as root, not through ssh."""
        done = subprocess.run([*self.on(i), *map(str, argv)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=kw.pop("timeout", 60), check=False)
        assert done.returncode == 0 or not kw.pop("check", True), f"{argv}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def agents_on(self, i):
        """Pids of an agent's processes on host i: those that are in its network, for pids are the machine's."""
        def network(pid):
            try:
                return os.readlink(f"/proc/{pid}/ns/net")
            except OSError:
                return None

        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                comm = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            if comm in ("mayhem-agent\n", "mh-holder\n") and network(pid) == network(self.values[f"h{i}"]) and is_alive(pid):
                found.append(int(pid))
        return found

    def path_on(self, i, path):
        """A path as host i sees it, for this process to open."""
        return Path(f"/proc/{self.values[f'h{i}']}/root") / str(path).lstrip("/")

    def cut(self, i=1):
        """Pulls the cable: no FIN, no RST."""
        self.run("ip", "link", "set", f"h{i}", "down")

    def end_connections(self):
        """Ends what ssh keeps open for a next command, and sessions on the hosts whose cable was cut."""
        for path in Path(f"/proc/{self.pid}/root{self.env['XDG_RUNTIME_DIR']}/mayhem").glob("*"):
            self.run("ssh", "-O", "exit", "-o", f"ControlPath={self.env['XDG_RUNTIME_DIR']}/mayhem/{path.name}", "any",
                     check=False)
        for name, listener in self.values.items():
            if name.startswith("h") and name[1:].isdigit():
                for pid in children(int(listener)):
                    fd = os.pidfd_open(pid)
                    if pid in children(int(listener)):
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                    os.close(fd)

    def mend(self, i=1):
        self.run("ip", "link", "set", f"h{i}", "up")


class Disk:
    """A disk image that outlives a Machine."""

    def __init__(self, mib=64):
        self.folder = Path(tempfile.mkdtemp(prefix="mayhem-disk-"))
        self.path = self.folder / "disk"
        subprocess.run([str(_LAB / "vm.sh"), "disk", str(self.path), str(mib)], check=True)

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


# Runs in the machine: reads commands from channel 1, one a line, and answers each with its exit status, the
# length of its output, and that. In the shell itself, so that a command may open descriptors for later ones.
_SERVER = r"""
until [ -c /dev/vport0p30 ]; do usleep 5000; done
exec 3<>/dev/vport0p1
echo READY
while :; do
	if ! read -r line <&3; then usleep 5000; continue; fi
	eval "$line" >/tmp/.out 2>&1 </dev/null
	echo "$? $(wc -c </tmp/.out)" >&3
	cat /tmp/.out >&3
done
"""

# A transport: joins stdin and stdout to a unix socket.
_CONNECT = """
import os, select, socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
while True:
    for fd in select.select([0, s], [], [])[0]:
        data = os.read(fd if fd == 0 else s.fileno(), 65536)
        if not data: sys.exit()
        if fd == 0: s.sendall(data)
        else: os.write(1, data)
"""


class Machine:
    """A virtual machine with files beside it in /t; its console is .text.

    Without `script` it serves sh(); with one, that is all it runs (see vm.sh) and finish() awaits its end."""

    def __init__(self, files=(), disk=None, script=None, timeout=90):
        self.folder = Path(tempfile.mkdtemp(prefix="mayhem-vm-"))
        self.text = ""
        self._shell = None
        self._ports = itertools.cycle(range(2, 31))
        try:
            (self.folder / "run").write_text(script or _SERVER)
            subprocess.run([str(_LAB / "vm.sh"), "initrd", str(self.folder / "initrd"), str(self.folder / "run"),
                            *map(str, files)], check=True, timeout=300)
            # It must not spin on when the test run is killed.
            argv = ["setpriv", "--pdeathsig", "KILL", str(_LAB / "vm.sh"), "boot", str(self.folder / "initrd")]
            if disk:
                argv.append(str(disk.path))
            self.popen = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                          stderr=subprocess.STDOUT, bufsize=0, start_new_session=True,
                                          env={**os.environ, "VM_PORTS": str(self.folder)})
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self.pidfd = os.pidfd_open(self.popen.pid)
        if script is None:
            try:
                self.expect("READY", timeout)
                self._shell = socket.socket(socket.AF_UNIX)
                self._shell.connect(str(self.folder / "1"))
                self.sh("true", timeout=30)
            except BaseException:
                self.close()
                raise

    # -- the console

    def _read(self, timeout):
        if not select.select([self.popen.stdout], [], [], max(0, timeout))[0]:
            return False
        data = os.read(self.popen.stdout.fileno(), 65536)
        self.text += data.decode(errors="replace").replace("\r", "")
        return bool(data)

    def expect(self, prefix, timeout=60):
        """Reads the console until a line begins with prefix; the rest of that line, stripped."""
        end = time.monotonic() + timeout
        while True:
            for line in self.text.split("\n")[:-1]:
                if line.startswith(prefix):
                    return line[len(prefix):].strip()
            left = end - time.monotonic()
            if left <= 0 or (not self._read(left) and self.popen.poll() is not None):
                raise AssertionError(f"no line {prefix!r} on the console:\n{self.text}")

    def finish(self, timeout=120):
        """Waits for the script's end; its exit status."""
        code = int(self.expect("rc=", timeout))
        self.popen.wait(20)
        return code

    # -- inside

    def run(self, command, timeout=20):
        """A shell command (one line) in there: (exit status, output)."""
        self._shell.settimeout(timeout)
        self._shell.sendall(command.encode() + b"\n")
        answer = b""
        while b"\n" not in answer:
            answer += self._receive(command)
        head, _, output = answer.partition(b"\n")
        status, length = map(int, head.split())
        while len(output) < length:
            output += self._receive(command)
        return status, output.decode(errors="replace")

    def _receive(self, command):
        try:
            data = self._shell.recv(65536)
        except TimeoutError:
            data = b""
        if not data:
            self._read(0)
            raise AssertionError(f"in the machine, {command}: no answer; console:\n{self.text}")
        return data

    def sh(self, command, timeout=20):
        """The stripped output of a command that must succeed."""
        status, output = self.run(command, timeout)
        assert status == 0, f"in the machine, {command}: exit {status}: {output}"
        return output.strip()

    def wait_sh(self, command, timeout=10):
        """Until a command succeeds."""
        wait_until(lambda: self.run(command)[0] == 0, timeout, command, interval=0.02)

    def sleeper(self, before=""):
        """Starts a sleeper with three more threads; its pid."""
        return int(self.sh(f"{before} setsid /t/sleeper 3 >/dev/null 3>&- & echo $!"))

    def is_stopped(self, pid):
        states = self.sh(f"cat /proc/{pid}/task/*/stat").splitlines()
        return all(line.rpartition(")")[2].split()[0] == "T" for line in states)

    def agent(self, state, args=(), handshake=True):
        """Starts the agent on a state directory; close() ends the channel, .inner is its pid in there."""
        port = next(self._ports)
        agent = Agent(state=state, argv=[sys.executable, "-c", _CONNECT, str(self.folder / str(port))])
        words = " ".join(map(shlex.quote, ["serve", "--state", state, *args]))
        # Until the machine has heard of our side, whoever reads there reads the end at once.
        self.sh(f"while timeout 0.1 cat </dev/vport0p{port}; do :; done")
        # The channel cannot be opened twice, hence one descriptor for both.
        agent.inner = int(self.sh(f"setsid /t/mayhem-agent {words} <>/dev/vport0p{port} >&0 2>>/tmp/agent.log 3>&- & echo $!"))
        if handshake:
            agent.handshake()
        return agent

    def leases(self, state, **kw):
        """The records of a state directory in there, as records.leases() reads them."""
        for attempt in range(5):
            text = self.sh(f"cd {state} && tar -cf - leases ended 2>/dev/null | gzip | base64; cd /")
            with tempfile.TemporaryDirectory() as folder:
                try:
                    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(text))) as tar:
                        tar.extractall(folder)
                except tarfile.ReadError:  # a record was cut to its length while tar read it
                    if attempt == 4:
                        raise
                    continue
                return leases(folder, **kw)

    # -- its end

    def reset(self):
        """The host is gone, in the middle of whatever it did."""
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.popen.wait(10)
        while self._read(0):
            pass

    def close(self):
        if self.pidfd < 0:
            return
        if self.popen.poll() is None:
            self.reset()
        if self._shell:
            self._shell.close()
        self.popen.stdout.close()
        os.close(self.pidfd)
        self.pidfd = -1
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
