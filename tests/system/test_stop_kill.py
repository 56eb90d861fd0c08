"""process.stop and process.kill on real programs: gone is seen from outside, and nothing is called so that is not."""

import signal
import subprocess
import sys

import pytest

from mayhem_test import Proc, helper, is_alive, wait_until


def observed(lease, phase):
    return [(o["metric"], o["effect"], o["value"]) for o in lease["observations"] if o["phase"] == phase]


def assert_gone(agent, answer):
    """The lease of an irreversible fault that had its effect: over, measured before, during and after."""
    assert answer["ok"] is True, answer
    lease = answer["lease"]
    assert (lease["state"], lease["release_mechanism"], lease["undo_kind"]) == ("released", "normal", "irreversible")
    assert observed(lease, "before") == [("process.gone", "absent", 0)]
    assert observed(lease, "during") == [("process.gone", "present", 1)]
    assert agent.record(lease["id"]).moves == ["pending", "active", "releasing", "released"]


CATCHER = [sys.executable, "-c", """
import signal
signal.signal(signal.SIGTERM, lambda *_: None)
print(flush=True)
while True:
    signal.pause()
"""]
IGNORER = ["sh", "-c", "trap '' TERM; exec \"$0\"", helper("sleeper")]


def ready(argv):
    """The program, once it has said its line."""
    target = Proc(argv, stdout=subprocess.PIPE)
    target.popen.stdout.readline()
    target.popen.stdout.close()
    return target


def test_kill_sleeper(agent, sleeper):
    assert_gone(agent, agent.execute(agent.native(sleeper.pid, "process.kill")))
    assert sleeper.popen.wait(5) == -signal.SIGKILL


def test_kill_redis(agent, redis):
    assert redis.answers()
    assert_gone(agent, agent.execute(agent.native(redis.pid, "process.kill")))
    assert not redis.answers() and redis.popen.wait(5) == -signal.SIGKILL


def test_kill_an_nginx_worker(agent, nginx):
    """Its own master is the supervisor: a new one comes, and the page was never gone for long."""
    workers = nginx.workers()
    assert_gone(agent, agent.execute(agent.native(workers[0], "process.kill")))
    assert not is_alive(workers[0])
    wait_until(lambda: len(nginx.workers()) == 2 and workers[0] not in nginx.workers())
    assert nginx.answers()


def test_kill_one_that_is_stopped(agent, sleeper):
    sleeper.stop()
    assert_gone(agent, agent.execute(agent.native(sleeper.pid, "process.kill")))
    assert sleeper.popen.wait(5) == -signal.SIGKILL


def test_kill_all_threads(agent, sleepers):
    target = sleepers(1, threads=8)[0]
    assert_gone(agent, agent.execute(agent.native(target.pid, "process.kill")))
    assert target.popen.wait(5) == -signal.SIGKILL


def test_stop_sleeper(agent, sleeper):
    assert_gone(agent, agent.execute(agent.native(sleeper.pid, "process.stop")))
    assert sleeper.popen.wait(5) == -signal.SIGTERM


def test_stop_nginx(agent, nginx):
    workers = nginx.workers()
    assert nginx.answers()
    assert_gone(agent, agent.execute(agent.native(nginx.pid, "process.stop")))
    assert not nginx.answers() and nginx.popen.wait(5) == 0
    wait_until(lambda: not any(map(is_alive, workers)))


def test_stop_redis(agent, redis):
    assert redis.answers()
    assert_gone(agent, agent.execute(agent.native(redis.pid, "process.stop")))
    assert not redis.answers() and redis.popen.wait(5) == 0


def test_who_ignores_sigterm_is_not_called_stopped(agent):
    with ready(IGNORER) as target:
        answer = agent.execute(agent.native(target.pid, "process.stop"))
        assert (answer["ok"], answer["reason"]) == (False, "no_effect"), answer
        assert (answer["lease"]["state"], answer["lease"]["release_mechanism"]) == ("expired", "no_effect")
        assert agent.record(answer["lease"]["id"]).moves == ["pending", "expired"]
        assert target.alive


def test_who_ignores_sigterm_is_killed_when_asked_to(agent):
    with ready(IGNORER) as target:
        answer = agent.execute(agent.native(target.pid, "process.stop", params={"escalate": True, "grace": "50ms"}))
        assert_gone(agent, answer)
        assert target.popen.wait(5) == -signal.SIGKILL


@pytest.mark.parametrize("escalate", [False, True])
def test_who_catches_sigterm_and_stays(agent, escalate):
    """It cannot be known before; it is seen after the grace."""
    with ready(CATCHER) as target:
        answer = agent.execute(agent.native(target.pid, "process.stop", params={"escalate": escalate, "grace": "100ms"}))
        if escalate:
            assert_gone(agent, answer)
            assert target.popen.wait(5) == -signal.SIGKILL
        else:
            assert (answer["ok"], answer["reason"]) == (False, "no_effect"), answer
            assert (answer["lease"]["state"], answer["lease"]["release_mechanism"]) == ("released", "no_effect")
            assert target.alive


def test_stop_one_that_is_stopped(agent, sleeper):
    """It would see SIGTERM only when somebody continues it: not ours to say, not called stopped."""
    sleeper.stop()
    answer = agent.execute(agent.native(sleeper.pid, "process.stop"))
    assert (answer["ok"], answer["reason"]) == (False, "no_effect"), answer
    assert sleeper.stopped and sleeper.alive
    answer = agent.execute(agent.native(sleeper.pid, "process.stop", params={"escalate": True, "grace": "50ms"}))
    assert_gone(agent, answer)


def test_stop_init_of_a_pid_namespace(as_root, agent):
    """The kernel drops SIGTERM for an init without a handler."""
    with Proc(["unshare", "-p", "--fork", "--kill-child", helper("sleeper")], stdout=subprocess.PIPE) as outer:
        assert outer.popen.stdout.readline() == b"1\n"
        outer.popen.stdout.close()
        init = wait_until(lambda: outer.family()[1:])[0]
        answer = agent.execute(agent.native(init, "process.stop"))
        assert (answer["ok"], answer["reason"]) == (False, "no_effect"), answer
        assert "init of its pid namespace" in answer["detail"]
        assert is_alive(init)


def test_cancel_while_it_is_watched(agent):
    """A stop whose grace is long: cancelled, it ends at once, and the target that stayed is left alone."""
    with ready(CATCHER) as target:
        lease = agent.native(target.pid, "process.stop", params={"grace": "60s"})
        number = agent.start("task.execute", fault_id="process.stop", lease=lease)
        task = wait_until(lambda: [t for t in agent.request("task.status")["tasks"] if t["state"] == "running"])[0]
        wait_until(lambda: any(r.state == "active" for r in agent.records().values()))
        assert agent.request("task.cancel", task_id=task["task_id"])["state"] == "cancelled"
        answer = agent.result(number)
        assert (answer["ok"], answer["reason"]) == (False, "cancelled")
        assert answer["lease"]["release_mechanism"] == "cancelled" and target.alive
