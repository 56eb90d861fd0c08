"""An agent session as a controller sees it: NDJSON JSON-RPC over two pipes, one thread, nothing hidden.

Nothing is read unless a call waits for something: a test of "a controller that never reads" just
does not ask. Replies are matched by id; frames without a known id are kept in `.strays`, events in
`.events`.
"""

import itertools
import json
import os
import select
import signal
import subprocess
import tempfile
import time

from .sandbox import StateDir, agent_path
from .waiting import wait_until

_numbers = itertools.count(1)


class RpcError(Exception):
    """An error reply: .code, .message, .reason, .stage, .remedy, .data."""

    def __init__(self, error):
        self.code, self.message = error["code"], error["message"]
        self.data = error.get("data") or {}
        self.reason, self.stage, self.remedy = (self.data.get(k) for k in ("reason", "stage", "remedy"))
        super().__init__(f"{self.code} {self.reason}: {self.message}")


class SessionEnded(Exception):
    """The agent closed its stdout (or stdin) before what was waited for came."""


class Agent:
    """`mayhem-agent serve` in its own session.

    state    a StateDir (or path) to use; made and removed here when absent
    user     a User to run as; prefix: an argv before the agent's (the pid must stay, as exec does)
    argv     the whole command instead (a transport)
    """

    def __init__(self, state=None, *, roles=None, policy=None, args=(), prefix=(), user=None, env=None, argv=None,
                 run_id=None, agent_id="ctl"):
        self._own_state = state is None
        self.state = state if state is not None else StateDir(user)
        self.run_id = run_id or f"r-test-{os.getpid():x}-{next(_numbers):x}"
        self.agent_id = agent_id
        if argv is None:
            argv = [*prefix, *(user.prefix if user else ()), agent_path(), "serve", "--state", str(self.state)]
            if roles is not None:
                argv += ["--roles", roles]
            if policy is not None:
                argv += ["--policy", str(policy)]
            argv += map(str, args)
        full = dict(os.environ)
        full.update(user.env if user else {})
        full.update(env or {})
        self._stderr = tempfile.TemporaryFile()
        self.popen = subprocess.Popen(list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
                                      bufsize=0, env=full, start_new_session=True)
        self.pid = self.popen.pid
        self.pidfd = os.pidfd_open(self.pid)
        self._in, self._out = self.popen.stdin.fileno(), self.popen.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._buffer = bytearray()
        self._eof = False
        self._ids = itertools.count(1)
        self.replies, self.strays, self.events, self.logs = {}, [], [], []
        self.bad_lines = []

    # -- the pipe

    @property
    def stderr(self):
        """All that the agent wrote to stderr so far."""
        return os.pread(self._stderr.fileno(), 1 << 24, 0).decode(errors="replace")

    def _fail(self, what):
        code = self.popen.poll()
        raise SessionEnded(f"{what}; agent {'exit ' + str(code) if code is not None else 'alive'}; stderr:\n{self.stderr[-4000:]}")

    def _take(self, line):
        try:
            frame = json.loads(line)
        except ValueError:
            self.bad_lines.append(bytes(line))
            return
        if isinstance(frame, dict) and frame.get("method") == "event.emit":
            self.events.append(frame["params"])
        elif isinstance(frame, dict) and frame.get("method") == "log.emit":
            self.logs.append(frame["params"])
        elif isinstance(frame, dict) and frame.get("id") is not None:
            self.replies[frame["id"]] = frame
        else:
            self.strays.append(frame)

    def _read(self):
        try:
            data = os.read(self._out, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._eof = True
            return
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            self._take(bytes(self._buffer[:end]))
            del self._buffer[:end + 1]

    def pump(self, timeout=0.0):
        """Reads what is there, waiting at most timeout for the first of it; whether stdout is still open."""
        if not self._eof and select.select([self._out], [], [], timeout)[0]:
            self._read()
        return not self._eof

    def _pump_until(self, ready, timeout, what):
        end = time.monotonic() + timeout
        while not ready():
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{what}: not within {timeout} s; stderr:\n{self.stderr[-4000:]}")
            if not self.pump(left) and not ready():
                self._fail(what)

    def send_raw(self, data, timeout=10, read=True):
        """Writes bytes as they are. Reads meanwhile (unless told not to), so that nobody blocks for ever."""
        view = memoryview(data)
        end = time.monotonic() + timeout
        while view:
            wanted = [self._out] if read and not self._eof else []
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{len(view)} bytes not taken within {timeout} s")
            r, w, _ = select.select(wanted, [self._in], [], left)
            if r:
                self._read()
            if w:
                try:
                    view = view[os.write(self._in, view[:1 << 16]):]
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    self._fail("write")

    def send(self, frame):
        self.send_raw(json.dumps(frame, separators=(",", ":")).encode() + b"\n")

    # -- requests

    def _params(self, params):
        return {"run_id": self.run_id, "agent_id": self.agent_id, **params}

    def start(self, method, params=None, **kw):
        """Sends a request and returns its id; its reply is had by wait(id)."""
        number = next(self._ids)
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": self._params({**(params or {}), **kw})})
        return number

    def wait(self, number, timeout=10):
        """The reply frame to an id, as it came."""
        self._pump_until(lambda: number in self.replies, timeout, f"reply {number}")
        return self.replies.pop(number)

    def result(self, number, timeout=10):
        frame = self.wait(number, timeout)
        if "error" in frame:
            raise RpcError(frame["error"])
        return frame["result"]

    def request(self, method, params=None, timeout=10, **kw):
        """The result of a request; RpcError where it was refused."""
        return self.result(self.start(method, params, **kw), timeout)

    def notify(self, method, params=None, **kw):
        self.send({"jsonrpc": "2.0", "method": method, "params": {**(params or {}), **kw}})

    def stray(self, timeout=5):
        """The next frame that answers no known id (id null): errors of framing."""
        self._pump_until(lambda: self.strays, timeout, "a frame without id")
        return self.strays.pop(0)

    def event(self, match=lambda event: True, timeout=5):
        """The first event that matches, kept or to come (handshake with events=True)."""
        self._pump_until(lambda: any(map(match, self.events)), timeout, "an event")
        return next(e for e in self.events if match(e))

    # -- the protocol's words

    def handshake(self, **kw):
        return self.request("handshake", kw)

    def ping(self, timeout=10):
        return self.request("health.ping", timeout=timeout)

    def native(self, pid, fault="proc.pause", params=None, duration_ms=None, ttl=120, target=None, **lease):
        """The lease of a native injection on a process. Keys in `lease` are added or, when None, left out."""
        body = {"run_id": self.run_id, "fault_id": fault, "owner_agent": self.agent_id,
                "target": target or {"kind": "process", "pid": pid}, "params": params or {}, "ttl_seconds": ttl}
        if duration_ms is not None:
            body["duration_ms"] = duration_ms
        body.update(lease)
        return {k: v for k, v in body.items() if v is not None}

    def declared(self, lease_id, fault, ops, ttl=45, targets=("proc-web",), **lease):
        """The lease of a declared injection; ops = [{op, args}]."""
        return {"id": lease_id, "run_id": self.run_id, "fault_id": fault, "owner_agent": self.agent_id,
                "targets": list(targets), "ttl_seconds": ttl, "undo_ops": ops, **lease}

    def execute(self, lease, phase="inject", timeout=15):
        """task.execute to its end: the result, whatever `ok` says."""
        return self.request("task.execute", {"fault_id": lease["fault_id"], "lease": lease, "phase": phase}, timeout)

    def inject(self, pid, fault="proc.pause", timeout=15, **kw):
        """Injects natively and returns the lease as stored; AssertionError unless ok."""
        answer = self.execute(self.native(pid, fault, **kw), timeout=timeout)
        assert answer["ok"] is True, answer
        return answer["lease"]

    def release(self, lease_id, timeout=15):
        return self.request("lease.release", timeout=timeout, lease_id=lease_id)

    def extend(self, lease_id, ttl_seconds):
        return self.request("lease.extend", lease_id=lease_id, ttl_seconds=ttl_seconds)

    def lease_list(self, **kw):
        return self.request("lease.list", kw)["leases"]

    # -- the disk

    def records(self, check=True):
        from .records import leases
        return leases(str(self.state), check)

    def record(self, key, check=True):
        from .records import lease
        found = lease(str(self.state), key, check)
        if found is None:
            raise KeyError(key)
        return found

    def wait_state(self, key, *states, timeout=5):
        """Waits until a lease's record says one of the states; the record."""
        from .records import lease

        def there():
            record = lease(str(self.state), key)
            return record if record and record.state in states else None
        return wait_until(there, timeout, f"{key} is {' or '.join(states)}")

    def holder_pid(self, key):
        return self.record(key).holder_pid

    # -- its end

    @property
    def alive(self):
        return not select.select([self.pidfd], [], [], 0)[0]

    def signal(self, signo):
        signal.pidfd_send_signal(self.pidfd, signo)

    def kill(self):
        """SIGKILL, and reaped."""
        if self.popen.returncode is None:
            self.signal(signal.SIGKILL)
        return self.popen.wait(5)

    def close_stdin(self):
        if not self.popen.stdin.closed:
            self.popen.stdin.close()
            self._in = -1

    def eof(self, timeout=15):
        """Ends the session: closes stdin, reads to the end; the exit code."""
        self.close_stdin()
        return self.wait_exit(timeout)

    def wait_exit(self, timeout=15, read=True):
        """The exit code; reads stdout meanwhile so that a full pipe keeps nobody."""
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"agent {self.pid} still there after {timeout} s; stderr:\n{self.stderr[-4000:]}")
            watch = [self.pidfd] + ([self._out] if read and not self._eof else [])
            got = select.select(watch, [], [], left)[0]
            if self._out in got:
                self._read()
            if self.pidfd in got:
                while read and not self._eof and select.select([self._out], [], [], 0)[0]:
                    self._read()
                return self.popen.wait(5)

    def close(self):
        """For the end of a test: whatever state it is in, nothing of it stays."""
        if self.pidfd < 0:
            return
        try:
            if self.popen.returncode is None:
                self.signal(signal.SIGCONT)
                try:
                    self.eof(10)
                except TimeoutError:
                    self.kill()
        finally:
            for stream in (self.popen.stdin, self.popen.stdout, self._stderr):
                if stream and not stream.closed:
                    stream.close()
            os.close(self.pidfd)
            self.pidfd = -1
            if self._own_state:
                self.state.remove()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
