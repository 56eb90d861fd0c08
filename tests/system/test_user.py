"""What an ordinary user may do: everything that needs no root, to their own processes."""

import os
import subprocess

import pytest

from mayhem_test import Proc, RpcError, Sleeper, StateDir, User, helper, is_stopped, run_agent, wait_until
from mayhem_test.mainlines import MainLines, Where, assert_released


@pytest.fixture
def someone(nothing_left):
    """Nobody, when we are root; else whoever we are."""
    user = User() if os.geteuid() == 0 else User(os.getuid(), os.getgid())
    yield user
    user.remove()


class TestAsUser(MainLines):
    @pytest.fixture
    def where(self, someone):
        return Where(user=someone)

    def test_what_is_enforced_is_said(self, here, target):
        """No cgroup of ours without a delegated one: then the receipt does not claim one."""
        lease = here.inject(target.pid)
        holder = lease["holder"]
        if holder["mechanism"] == "cgroup":
            assert holder["cgroup"] and "process_tree" in holder["enforced"]
        else:
            assert holder["cgroup"] in ("", None) and "process_tree" in holder["degraded"], holder
        assert set(holder["enforced"]) | set(holder["degraded"]) == set(holder["required"])
        assert_released(here, lease["id"])

    def test_claims_are_the_users(self, here, target, someone):
        lease = here.inject(target.pid)
        claims = someone.runtime / "mayhem" / "claims"
        assert [p for p in claims.iterdir() if not p.name.startswith(".")]
        assert_released(here, lease["id"])
        assert not [p for p in claims.iterdir() if not p.name.startswith(".")]

    @pytest.mark.parametrize("fault", ["proc.pause", "process.stop", "process.kill"])
    def test_roots_process(self, as_root, here, fault):
        """The kernel says no: nothing happens, and it is not called a success."""
        with Sleeper() as theirs:
            try:
                answer = here.execute(here.native(theirs.pid, fault))
            except RpcError as refused:
                assert refused.code == -32001 and refused.message
            else:
                assert answer["ok"] is False and answer["detail"], answer
                assert answer["lease"]["state"] in ("expired", "released"), answer
            assert theirs.alive and not theirs.stopped

    def test_a_tree_with_roots_process_in_it(self, as_root, here, someone):
        """As sudo beneath a shell: what could be stopped is continued, and it is a failure."""
        script = '"$0" >/dev/null & exec setpriv --reuid=$1 --regid=$1 --clear-groups -- "$0"'
        with Proc(["sh", "-c", script, helper("sleeper"), someone.uid], stdout=subprocess.PIPE) as mine:
            mine.popen.stdout.readline()
            mine.popen.stdout.close()
            wait_until(lambda: len(mine.family()) == 2 and os.stat(f"/proc/{mine.pid}").st_uid == someone.uid)
            theirs = mine.family()[1]
            assert os.stat(f"/proc/{theirs}").st_uid == 0
            answer = here.execute(here.native(mine.pid, params={"scope": "tree"}))
            assert (answer["ok"], answer["reason"]) == (False, "failed_to_apply"), answer
            assert answer["lease"]["state"] in ("expired", "released"), answer
            assert not mine.stopped and not is_stopped(theirs)

    def test_roots_state_directory(self, as_root, where):
        state = StateDir()
        for command in ("serve", "recover", "halt"):
            done = where.run_agent(command, state=state)
            assert done.returncode == 8 and "[store.failed]" in done.stderr, (done.returncode, done.stderr)

    def test_root_does_not_recover_a_users_lease(self, as_root, agents, where, target):
        """Listed for root, and never touched: the record and what it says are the user's."""
        agent = where.agent(agents)
        lease = agent.inject(target.pid)
        done = run_agent("recover", state=agent.state)
        assert done.returncode == 8 and target.stopped, (done.returncode, done.stdout)
        assert_released(agent, lease["id"])

    def test_without_a_runtime_directory(self, agents, someone, target):
        """No place that is the user's alone on this host: claims are kept in the state directory."""
        state = StateDir(someone)
        agent = agents(state, user=someone, env={"XDG_RUNTIME_DIR": ""})
        lease = agent.inject(target.pid)
        assert os.listdir(state / "claims")
        answer = agent.execute(agent.native(target.pid))
        assert answer["reason"] == "resource_conflict" and lease["id"] in answer["detail"]
        assert_released(agent, lease["id"])

    def test_default_state_directory(self, where, someone, target):
        """~/.local/state/mayhem, made private."""
        done = where.run_agent("recover")
        assert done.returncode == 0, done.stderr
        path = someone.home / ".local" / "state" / "mayhem"
        assert path.stat().st_mode & 0o777 == 0o700 and path.stat().st_uid == someone.uid
        wait_until(lambda: (path / "store.json").exists())
