"""The main lines again where no cgroup v2 is to be seen: only v1 hierarchies, as on older hosts."""

import os

import pytest

from mayhem_test import cgroup_marks, cgroup_mounts
from mayhem_test.mainlines import MainLines, Where, assert_released


class TestInV1View(MainLines):
    @pytest.fixture
    def where(self, v1_view):
        return Where(prefix=v1_view)

    def test_holders_are_in_a_v1_cgroup(self, here, target):
        lease = here.inject(target.pid)
        holder = lease["holder"]
        assert holder["mechanism"] == "cgroup" and holder["cgroup"].startswith("/mayhem/"), holder
        with open(f"/proc/{holder['pid']}/cgroup", encoding="utf-8") as f:
            lines = f.read().splitlines()
        assert [line for line in lines if line.endswith(holder["cgroup"]) and not line.startswith("0:")], lines
        assert [line for line in lines if line.startswith("0:") and "/mayhem/" in line] == []
        v1 = [path for kind, path in cgroup_mounts() if kind == "cgroup"]
        assert [m for m in cgroup_marks(here.state.store) if any(m.startswith(path) for path in v1)]
        assert_released(here, lease["id"])

    def test_sweep(self, where, here, target):
        """Killed without cgroup.kill: frozen first where that can be, so that nothing forks meanwhile."""
        here.ping()
        lease = here.inject(target.pid)
        mark = cgroup_marks(here.state.store)[0]
        with where.sleeper() as stray:
            nonce = "ab" * 16
            os.mkdir(f"{mark}/{nonce}")
            with open(f"{mark}/{nonce}/cgroup.procs", "w", encoding="ascii") as f:
                f.write(str(stray.pid))
            assert where.run_agent("recover", state=here.state).returncode == 0 and stray.alive
            assert where.run_agent("recover", "--sweep", state=here.state).returncode == 0
            assert stray.popen.wait(5) == -9 and not os.path.exists(f"{mark}/{nonce}")
        assert target.stopped
        assert_released(here, lease["id"])

    def test_frozen(self, here, target):
        """The v1 freezer is looked at when it is all there is."""
        mounts = [path for kind, path in cgroup_mounts() if kind == "cgroup" and path.endswith("/freezer")]
        if not mounts:
            pytest.skip("no v1 freezer on this machine")
        folder = f"{mounts[0]}/test-{os.getpid()}-v1view"
        os.mkdir(folder)
        try:
            for name, text in (("cgroup.procs", str(target.pid)), ("freezer.state", "FROZEN")):
                with open(f"{folder}/{name}", "w", encoding="ascii") as f:
                    f.write(text)
            answer = here.execute(here.native(target.pid))
            assert answer["reason"] == "resource_conflict" and "frozen" in answer["detail"], answer
        finally:
            with open(f"{folder}/freezer.state", "w", encoding="ascii") as f:
                f.write("THAWED")
            with open(f"{mounts[0]}/cgroup.procs", "w", encoding="ascii") as f:
                f.write(str(target.pid))
            os.rmdir(folder)
