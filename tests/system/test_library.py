"""The library's own promises: targets are what they say, and a reused pid is seen to be one."""

import hashlib
import os
import signal
import subprocess

import pytest

from mayhem_test import Nginx, Redis, Sleeper, User, is_stopped, leftovers, start_ticks, thread_states, wait_until
from mayhem_test.records import canonical, read_log


def test_sleeper_stops_with_all_threads(sleepers):
    target = sleepers(1, threads=3)[0]
    assert len(thread_states(target.pid)) == 4
    assert not target.stopped
    target.stop()
    assert target.stopped
    target.cont()
    assert target.kill() == -signal.SIGKILL
    assert not is_stopped(target.pid)


def test_nginx_serves_by_workers_while_its_master_is_stopped(nginx):
    assert nginx.answers()
    nginx.stop()
    assert nginx.answers()  # which is why a paused service means all of its processes
    for pid in nginx.workers():
        os.kill(pid, signal.SIGSTOP)
    wait_until(nginx.family_stopped)
    assert not nginx.answers()


def test_redis(redis):
    assert redis.answers()
    redis.stop()
    assert not redis.answers()


def test_targets_of_an_ordinary_user(user):
    with Nginx(user=user) as nginx, Redis(user=user) as redis, Sleeper(prefix=user.prefix) as sleeper:
        for target in (nginx, redis, sleeper):
            assert os.stat(f"/proc/{target.pid}").st_uid == user.uid


def test_forced_reuse_keeps_pid_and_mostly_ticks(reuser):
    equal = 0
    for _ in range(20):
        pid, ticks = reuser.spawn()
        assert start_ticks(pid) == ticks
        again, later = reuser.replace(pid)
        assert again == pid
        equal += later == ticks
        assert reuser.signals(pid) == []
        reuser.kill(pid)
    assert equal >= 10


def test_a_stranger_knows_what_it_got(reuser):
    pid, _ = reuser.spawn()
    os.kill(pid, signal.SIGCONT)
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: reuser.signals(pid) == ["18", "15"] or reuser.signals(pid) == ["15", "18"])
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: "stopped" in reuser.signals(pid))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "killed:9" in reuser.signals(pid))
    reuser.kill(pid)


def test_a_stranger_may_differ(reuser, tmp_path):
    from mayhem_test import helper
    copy = tmp_path / "other"
    copy.write_bytes(open(helper("pidreuse"), "rb").read())
    copy.chmod(0o755)
    pid, _ = reuser.spawn()
    exe = os.readlink(f"/proc/{pid}/exe")
    reuser.replace(pid, exe=copy)
    assert os.readlink(f"/proc/{pid}/exe") == str(copy) != exe
    reuser.replace(pid, uid=1234)
    assert os.stat(f"/proc/{pid}").st_uid == 1234


def test_v1_view(v1_view):
    text = subprocess.run([*v1_view, "cat", "/proc/self/mountinfo"], capture_output=True, text=True, check=True).stdout
    assert "- cgroup2 " not in text and "- cgroup " in text


def test_user_prefix_keeps_the_pid_and_drops_all(user):
    with Sleeper(prefix=user.prefix) as s:
        status = open(f"/proc/{s.pid}/status", encoding="ascii").read()
        assert f"Uid:\t{user.uid}\t{user.uid}" in status and "CapEff:\t0000000000000000" in status


def test_leftovers_are_seen(nothing_left):
    process = subprocess.Popen(["sh", "-c", "setsid sleep 987 & echo $!"], stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    process.stdout.close()
    process.wait()
    wait_until(lambda: any(line.startswith(f"{pid} sleep: sleep 987") for line in leftovers()))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not leftovers())


def _line(seq, body):
    text = canonical(body)
    return b'{"format":"mayhem.lease/1","seq":%d,"sha256":"%s","body":%s}\n' % (
        seq, hashlib.sha256(text).hexdigest().encode(), text)


def test_records_merge_and_ignore_a_torn_line(tmp_path):
    path = tmp_path / "l-00000001.log"
    path.write_bytes(_line(1, {"id": "l-00000001", "state": "pending", "params": {}}) + _line(2, {"state": "active"})
                     + b'{"format":"mayhem.le' + bytes(100))
    lease = read_log(path)
    assert lease.state == "active" and lease.moves == ["pending", "active"] and lease.id == "l-00000001"
    path.write_bytes(_line(1, {"id": "l-00000001"}).replace(b"l-00000001", b"l-00000002"))
    with pytest.raises(ValueError, match="checksum"):
        read_log(path)


def test_user_is_cleaned_up():
    u = User()
    assert u.runtime.stat().st_uid == u.uid
    u.remove()
    assert not u.base.exists()
