"""Real targets, known exactly: a process is its pidfd, and only what we started is ever killed."""

import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from .sandbox import helper
from .waiting import children, descendants, wait_until


def _stat_fields(path):
    """Fields of a stat file from the third (state) on; None when the process is gone."""
    try:
        with open(path, "rb") as f:
            return f.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def start_ticks(pid):
    """Field 22 of /proc/PID/stat, or None."""
    fields = _stat_fields(f"/proc/{pid}/stat")
    return int(fields[19]) if fields else None


def boot_id():
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def thread_states(pid):
    """{tid: state letter} of every thread; empty when gone."""
    states = {}
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):
            fields = _stat_fields(f"/proc/{pid}/task/{tid}/stat")
            if fields:
                states[int(tid)] = fields[0].decode()
    except (FileNotFoundError, ProcessLookupError):
        pass
    return states


def is_stopped(pid):
    """Every thread is stopped by a signal. A process that is gone is not stopped."""
    states = thread_states(pid)
    return bool(states) and all(s == "T" for s in states.values())


def is_alive(pid):
    """There, and not a zombie. Of a process known by pid alone: prefer Proc.alive."""
    fields = _stat_fields(f"/proc/{pid}/stat")
    return bool(fields) and fields[0] not in (b"Z", b"X")


def identity(pid):
    """What a test may know of a process: {pid, start_ticks, boot_id, pidfs_inode}."""
    fd = os.pidfd_open(pid)
    try:
        return {"pid": pid, "start_ticks": start_ticks(pid), "boot_id": boot_id(),
                "pidfs_inode": os.fstat(fd).st_ino}
    finally:
        os.close(fd)


class Proc:
    """A process started here, in its own session. `close()` (or leaving `with`) ends it and its descendants."""

    def __init__(self, argv, *, prefix=(), env=None, cwd=None, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                 stderr=subprocess.DEVNULL):
        full = dict(os.environ)
        full.update(env or {})
        self.popen = subprocess.Popen([*prefix, *map(str, argv)], stdin=stdin, stdout=stdout, stderr=stderr,
                                      env=full, cwd=cwd, start_new_session=True)
        self.pid = self.popen.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.start_ticks = start_ticks(self.pid)
        self._family = {}

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def signal(self, signo):
        signal.pidfd_send_signal(self.pidfd, signo)

    def stop(self):
        self.signal(signal.SIGSTOP)
        wait_until(lambda: self.stopped, what=f"{self.pid} stopped")

    def cont(self):
        self.signal(signal.SIGCONT)
        wait_until(lambda: not self.stopped, what=f"{self.pid} running")

    @property
    def stopped(self):
        return is_stopped(self.pid)

    @property
    def alive(self):
        return not select.select([self.pidfd], [], [], 0)[0]

    @property
    def ended_by(self):
        """None while alive; else as subprocess says it: exit code, or -signal."""
        return self.popen.poll()

    def family(self):
        """Pids of the process and all its descendants, alive."""
        return [self.pid, *(p for p in descendants(self.pid) if is_alive(p))]

    def family_stopped(self):
        return all(is_stopped(p) for p in self.family())

    def kill(self, timeout=5):
        """SIGKILL, and reaped."""
        self.signal(signal.SIGKILL)
        return self.popen.wait(timeout)

    def _collect(self):
        for pid in descendants(self.pid):
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            if pid in descendants(self.pid):  # the descriptor is of the one we meant
                self._family.setdefault((pid, start_ticks(pid)), fd)
            if fd not in self._family.values():
                os.close(fd)

    def close(self):
        if self.pidfd < 0:
            return
        self._collect()
        for fd in [self.pidfd, *self._family.values()]:
            try:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.popen.wait(5)
        for fd in self._family.values():
            select.select([fd], [], [], 5)
            os.close(fd)
        os.close(self.pidfd)
        self.pidfd = -1
        self._family = {}


class Sleeper(Proc):
    """A process that does nothing. `threads` > 0: that many more threads."""

    def __init__(self, *, threads=0, **kw):
        super().__init__([helper("sleeper"), threads], stdout=subprocess.PIPE, **kw)
        self.popen.stdout.readline()  # all threads run
        self.popen.stdout.close()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def http_get(port, host="127.0.0.1", timeout=0.3, path="/"):
    """Body of an answer, or None where none came within the time."""
    end = time.monotonic() + timeout
    data = b""
    try:
        with socket.create_connection((host, port), timeout=timeout) as s:
            s.sendall(f"GET {path} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
            while True:
                s.settimeout(max(0.001, end - time.monotonic()))
                part = s.recv(65536)
                if not part:
                    break
                data += part
    except OSError:
        return None
    head, sep, body = data.partition(b"\r\n\r\n")
    return body if sep and b" 200 " in head.split(b"\r\n")[0] else None


def redis_ping(port, host="127.0.0.1", timeout=0.3):
    """Whether a PONG came within the time."""
    try:
        with socket.create_connection((host, port), timeout=timeout) as s:
            s.settimeout(timeout)
            s.sendall(b"PING\r\n")
            return s.recv(64) == b"+PONG\r\n"
    except OSError:
        return False


class _Server(Proc):
    """A server in a directory of its own, answering before the constructor returns."""

    def __init__(self, argv, folder, **kw):
        self.folder = folder
        self.log = open(folder / "out.log", "wb")
        super().__init__(argv, stdout=self.log, stderr=self.log, **kw)
        try:
            wait_until(self.answers, 10, f"{argv[0]} answers", interval=0.005)
        except BaseException:
            print((folder / "out.log").read_text(errors="replace"))
            self.close()
            raise

    def answers(self, timeout=0.3):
        raise NotImplementedError

    def close(self):
        super().close()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _folder(user):
    folder = Path(tempfile.mkdtemp(prefix="mayhem-server-"))
    if user:
        os.chown(folder, user.uid, user.gid)
    return folder


class Nginx(_Server):
    """nginx with a master and workers; answers `pong` at its port."""

    def __init__(self, *, workers=2, user=None, **kw):
        folder = _folder(user)
        self.port = free_port()
        conf = folder / "nginx.conf"
        conf.write_text(f"""daemon off; {'' if user else 'user root;'}
worker_processes {workers};
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{ listen 127.0.0.1:{self.port}; location / {{ return 200 "pong\\n"; }} }}
}}
""")
        prefix = kw.pop("prefix", user.prefix if user else ())
        super().__init__([shutil.which("nginx", path="/usr/sbin:/usr/bin"), "-e", "stderr", "-p", folder, "-c", conf],
                         folder, prefix=prefix, **kw)
        wait_until(lambda: len(self.workers()) == workers, what="nginx has its workers")

    def workers(self):
        return [p for p in children(self.pid) if is_alive(p)]

    def answers(self, timeout=0.3):
        return http_get(self.port, timeout=timeout) == b"pong\n"


class Redis(_Server):
    """redis-server without persistence at its port."""

    def __init__(self, *, user=None, **kw):
        folder = _folder(user)
        self.port = free_port()
        prefix = kw.pop("prefix", user.prefix if user else ())
        super().__init__([shutil.which("redis-server", path="/usr/bin"), "--bind", "127.0.0.1", "--port", self.port,
                          "--dir", folder, "--save", "", "--appendonly", "no", "--daemonize", "no"],
                         folder, prefix=prefix, **kw)

    def answers(self, timeout=0.3):
        return redis_ping(self.port, timeout=timeout)


class Reuser:
    """Forces the reuse of a pid (root only), by tests/helpers/pidreuse.c.

        reuser = Reuser()
        pid, ticks = reuser.spawn()              # a target, born right after a tick began
        …                                        # inject on pid
        pid, ticks2 = reuser.replace(pid)        # killed, reaped, and a stranger born with the same pid
        assert reuser.signals(pid) == []         # what the stranger got; "stopped" and "killed:9" too
        reuser.close()

    replace(pid, uid=…, exe=PATH_OF_A_COPY, cgroup=DIR) makes the stranger differ. adopt(pid) waits for a
    pid that somebody else's child has to become free, and takes it.
    """

    def __init__(self):
        self.popen = subprocess.Popen([helper("pidreuse")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      start_new_session=True, text=True, bufsize=1)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def _ask(self, line):
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()
        answer = self.popen.stdout.readline().split()
        if not answer or answer[0] != "ok":
            raise OSError(f"pidreuse: {line}: {' '.join(answer) or 'no answer'}")
        return answer[1:]

    def _pair(self, line):
        pid, ticks = self._ask(line)
        return int(pid), int(ticks)

    def spawn(self):
        return self._pair("spawn")

    def replace(self, pid, *, uid=None, exe=None, cgroup=None):
        return self._pair(f"replace {pid} {uid if uid is not None else '-'} {exe or '-'} {cgroup or '-'}")

    def adopt(self, pid):
        return self._pair(f"adopt {pid}")

    def signals(self, pid):
        return self._ask(f"signals {pid}")

    def kill(self, pid):
        self._ask(f"kill {pid}")

    def close(self):
        self.popen.stdin.close()  # it kills its children and ends
        self.popen.wait(5)
        self.popen.stdout.close()
