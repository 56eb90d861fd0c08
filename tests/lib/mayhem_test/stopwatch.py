"""When a target stopped and ran again, as the kernel tells its parent: us.

    with Stopwatch() as watch:
        …
        t0 = time.monotonic()
        agent.kill()
        late_ms = watch.until_running(target.pid, t0)

It takes stops and continues of all our children, by waitid(); deaths are left to whoever waits for them.
"""

import os
import threading
import time

from .waiting import wait_until


class Stopwatch:
    """Stops and continues of our children: .events is {pid: [(time.monotonic(), "stopped"|"running")]}."""

    PAUSE_S = 0.0002

    def __init__(self):
        self.events = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._over.set()
        self._thread.join()

    def _run(self):
        while not self._over.is_set():
            try:
                seen = os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
            except ChildProcessError:
                seen = None
            if seen is None:
                time.sleep(self.PAUSE_S)
                continue
            what = "running" if seen.si_code == os.CLD_CONTINUED else "stopped"
            self.events.setdefault(seen.si_pid, []).append((time.monotonic(), what))

    def _first(self, pid, what, since):
        return next((t for t, seen in self.events.get(pid, []) if seen == what and t >= since), None)

    def until_running(self, pid, since, timeout=5):
        """Milliseconds from a moment to the next time that it ran again."""
        t = wait_until(lambda: self._first(pid, "running", since), timeout, f"{pid} runs again")
        return (t - since) * 1000

    def stood(self, pid, timeout=5):
        """Milliseconds that its last stop took."""
        since = wait_until(lambda: next((t for t, seen in reversed(self.events.get(pid, [])) if seen == "stopped"), None),
                           timeout, f"{pid} stopped")
        return self.until_running(pid, since, timeout)

    def count(self, pid, what):
        return sum(seen == what for _, seen in self.events.get(pid, []))
