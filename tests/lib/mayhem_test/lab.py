"""The labs of tests/lab as objects: a container engine, a fleet, a virtual machine.

    with Engines("podman") as lab:
        cid = lab.run_container("web", "sleep", "1000")
        agent = Agent(prefix=lab.prefix, env=lab.env)      # sees that engine

    with Hosts(2, [agent_path()]) as lab:
        lab.run("ssh", "h1", "hostname")
        Sleeper(prefix=lab.on(1))                          # a target on h1
        lab.cut(1)

    with Machine(script, files, disk) as vm:               # script runs in there; see vm.sh
        vm.expect("READY"); vm.reset()
"""

import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from .sandbox import ROOT

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
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--"]

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
        env = {"PATH": self.values["PATH"]}
        if self.values["DOCKER_HOST"]:
            env["DOCKER_HOST"] = self.values["DOCKER_HOST"]
        return env

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
        return ["nsenter", f"--target={self.values[f'h{i}']}", "--mount", "--net", "--uts", "--", *user]

    def run_on(self, i, *argv, **kw):
        """A command on host i, as root, not through ssh."""
        done = subprocess.run([*self.on(i), *map(str, argv)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=kw.pop("timeout", 60), check=False)
        assert done.returncode == 0 or not kw.pop("check", True), f"{argv}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def path_on(self, i, path):
        """A path as host i sees it, for this process to open."""
        return Path(f"/proc/{self.values[f'h{i}']}/root") / str(path).lstrip("/")

    def cut(self, i=1):
        """Pulls the cable: no FIN, no RST."""
        self.run("ip", "link", "set", f"h{i}", "down")

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


class Machine:
    """A virtual machine that runs a script (text) with files beside it in /t; its console is .text.

    send(line) types a line; the console echoes it, so scripts say `stty -echo` first."""

    def __init__(self, script, files=(), disk=None):
        self.folder = Path(tempfile.mkdtemp(prefix="mayhem-vm-"))
        self.text = ""
        try:
            (self.folder / "run").write_text(script)
            subprocess.run([str(_LAB / "vm.sh"), "initrd", str(self.folder / "initrd"), str(self.folder / "run"),
                            *map(str, files)], check=True, timeout=300)
            # It must not spin on when the test run is killed.
            argv = ["setpriv", "--pdeathsig", "KILL", str(_LAB / "vm.sh"), "boot", str(self.folder / "initrd")]
            if disk:
                argv.append(str(disk.path))
            self.popen = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                          bufsize=0, start_new_session=True)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self.pidfd = os.pidfd_open(self.popen.pid)

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

    def send(self, line):
        self.popen.stdin.write(line.encode() + b"\n")

    def finish(self, timeout=120):
        """Waits for the script's end; its exit status."""
        code = int(self.expect("rc=", timeout))
        self.popen.wait(20)
        return code

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
        self.popen.stdin.close()
        self.popen.stdout.close()
        os.close(self.pidfd)
        self.pidfd = -1
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
