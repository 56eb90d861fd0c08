"""Waiting for a condition, and reaping what was orphaned to us.

The test process is a child subreaper (see conftest.py): a holder whose agent was killed becomes our
child. An init would reap it; so do we, at every poll, but never a process that somebody here waits
for through subprocess.
"""

import ctypes
import os
import subprocess
import time
import weakref

_PR_SET_CHILD_SUBREAPER = 36

_popens = weakref.WeakSet()
_reserved = set()  # pids waited for by other means
_popen_init = subprocess.Popen.__init__


def _remember(self, *args, **kwargs):
    _popens.add(self)
    _popen_init(self, *args, **kwargs)


subprocess.Popen.__init__ = _remember


def become_subreaper():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def children(pid):
    """Direct children of a process, of all its threads."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as f:
                found += [int(p) for p in f.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def descendants(pid):
    found, todo = [], [pid]
    while todo:
        for child in children(todo.pop()):
            found.append(child)
            todo.append(child)
    return found


def _is_zombie(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rpartition(b")")[2].split()[0] == b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def reap_orphans():
    """Reaps dead processes that became our children; returns how many."""
    ours = {p.pid for p in _popens if getattr(p, "pid", None) and p.returncode is None} | _reserved
    count = 0
    for pid in children(os.getpid()):
        if pid not in ours and _is_zombie(pid):
            try:
                os.waitpid(pid, os.WNOHANG)
                count += 1
            except ChildProcessError:
                pass
    return count


def wait_until(predicate, timeout=5.0, what=None, interval=0.001):
    """Polls until predicate() is true and returns its value; AssertionError after timeout seconds."""
    end = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= end:
            name = what or getattr(predicate, "__qualname__", repr(predicate))
            raise AssertionError(f"not within {timeout} s: {name} (last: {value!r})")
        reap_orphans()
        time.sleep(interval)
        interval = min(interval * 1.2, 0.02)
