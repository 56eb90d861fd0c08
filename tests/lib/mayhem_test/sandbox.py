"""Where the binaries are, state directories, other users, other views of the machine, and what is left."""

import atexit
import json
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

from .waiting import descendants, reap_orphans

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534


def build_dir():
    """$MAYHEM_BUILD, default `build`; relative to the top of the tree."""
    return ROOT / os.environ.get("MAYHEM_BUILD", "build")


def _program(name):
    path = build_dir() / name
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(f"{path} is missing; build it, or name another tree by MAYHEM_BUILD")
    return str(path)


def agent_path():
    return _program("mayhem-agent")


def mayhem_path():
    return _program("mayhem")


_helpers = {}


def helper(name):
    """A helper program of tests/helpers: the built one, else compiled here, once."""
    if name not in _helpers:
        built = build_dir() / "tests" / "helpers" / name
        source = ROOT / "tests" / "helpers" / f"{name}.c"
        if os.access(built, os.X_OK) and built.stat().st_mtime >= source.stat().st_mtime:
            _helpers[name] = str(built)
        else:
            out = tempfile.mkdtemp(prefix="mayhem-helper-")
            atexit.register(shutil.rmtree, out, ignore_errors=True)
            os.chmod(out, 0o755)  # other users run it too
            path = os.path.join(out, name)
            subprocess.run([os.environ.get("CC", "cc"), "-std=gnu17", "-O2", "-Wall", "-Wextra", "-static",
                            "-o", path, str(source)], check=True)
            _helpers[name] = path
    return _helpers[name]


class User:
    """An ordinary user to run as: User() is nobody. `prefix` goes before an argv (the pid stays), `env`
    is what a login of theirs would have; their runtime directory is made and removed with us."""

    def __init__(self, uid=NOBODY, gid=None):
        self.uid = uid
        self.gid = gid if gid is not None else uid
        self.base = Path(tempfile.mkdtemp(prefix="mayhem-user-"))
        os.chmod(self.base, 0o755)
        self.home = self.base / "home"
        self.runtime = self.base / "run"
        for path in (self.home, self.runtime):
            path.mkdir(mode=0o700)
            os.chown(path, self.uid, self.gid)

    @property
    def prefix(self):
        if os.getuid() == self.uid:
            return []
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups",
                "--inh-caps=-all", "--ambient-caps=-all", "--"]

    @property
    def env(self):
        try:
            name = pwd.getpwuid(self.uid).pw_name
        except KeyError:
            name = str(self.uid)
        return {"HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.runtime), "USER": name, "LOGNAME": name}

    def remove(self):
        shutil.rmtree(self.base, ignore_errors=True)


def v1_only():
    """An argv prefix: the command sees no cgroup v2 (root only). The pid stays, all is one exec chain.
    None where the machine has nothing but v2."""
    if not any(kind == "cgroup" for kind, _ in cgroup_mounts()):
        return None
    v2 = [path for kind, path in cgroup_mounts() if kind == "cgroup2"]
    script = "".join(f"umount {path} && " for path in v2) + 'exec "$@"'
    return ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"]


class StateDir:
    """A fresh state directory, 0700, right below a sticky /tmp; `owner` is a User or None."""

    def __init__(self, owner=None, parent=None):
        self.path = Path(tempfile.mkdtemp(prefix="mayhem-state-", dir=parent))
        if owner:
            os.chown(self.path, owner.uid, owner.gid)

    def __fspath__(self):
        return str(self.path)

    def __str__(self):
        return str(self.path)

    def __truediv__(self, name):
        return self.path / name

    @property
    def store(self):
        """The store's random name, or None while there is none yet."""
        try:
            return json.loads((self.path / "store.json").read_text())["store"]
        except (FileNotFoundError, ValueError, KeyError):
            return None

    def leases(self, check=True):
        from .records import leases
        return leases(self.path, check)

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)


def cgroup_mounts():
    """[(cgroup|cgroup2, path)], as this process sees them."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        for line in f:
            before, _, after = line.partition(" - ")
            kind = after.split()[0]
            if kind in ("cgroup", "cgroup2"):
                found.append((kind, before.split()[4]))
    return found


def cgroup_marks(store):
    """Directories that carry a store's mark below any cgroup mount, wherever the agent was put."""
    found = []
    for _, mount in cgroup_mounts():
        for folder, names, _ in os.walk(mount):
            if os.path.basename(folder) == "mayhem":
                if store in names:
                    found.append(os.path.join(folder, store))
                names.clear()
    return found


def leftovers(before=()):
    """Living descendants of this test process that were not there before, as text."""
    reap_orphans()
    found = []
    for pid in descendants(os.getpid()):
        if pid in before:
            continue
        try:
            with open(f"/proc/{pid}/stat", "rb") as f:
                stat = f.read().decode(errors="replace")
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                cmdline = f.read().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if stat.rpartition(")")[2].split()[0] != "Z":
            found.append(f"{pid} {stat.partition('(')[2].rpartition(')')[0]}: {cmdline}".strip())
    return found


def _run(argv, prefix, env, timeout, stdin):
    full = dict(os.environ)
    full.update(env or {})
    return subprocess.run([*prefix, *argv], stdin=stdin, capture_output=True, text=True, timeout=timeout,
                          env=full, check=False)


def run_agent(*args, state=None, prefix=(), env=None, timeout=30):
    """`mayhem-agent ARGS [--state DIR]` to its end; has .returncode, .stdout, .stderr."""
    argv = [agent_path(), *map(str, args)]
    if state is not None:
        argv += ["--state", str(state)]
    return _run(argv, prefix, env, timeout, subprocess.DEVNULL)


def run_mayhem(*args, state=None, prefix=(), env=None, timeout=30):
    """`mayhem ARGS` to its end, with our agent and its own state directory."""
    full = {"MAYHEM_AGENT": agent_path()}
    if state is not None:
        full["MAYHEM_STATE_DIR"] = str(state)
    full.update(env or {})
    return _run([mayhem_path(), *map(str, args)], prefix, full, timeout, subprocess.DEVNULL)
