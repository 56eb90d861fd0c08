"""The labs are what they say: real engines, real hosts, a kernel whose disk loses what was not synced."""

import os
import signal
import subprocess

import pytest

from mayhem_test import Sleeper, helper, is_stopped, wait_until
from mayhem_test.lab import Disk, Engines, Hosts, Machine


@pytest.mark.parametrize("kind", ["podman", pytest.param("docker", marks=pytest.mark.torture)])
def test_engine(kind, as_root):
    with Engines(kind) as lab:
        name = "web1"
        cid = lab.run_container(name)
        assert len(cid) == 64
        assert lab.engine("exec", name, "echo", "hello") == "hello"
        pid = lab.init_pid(name)
        lab.engine("kill", "--signal", "STOP", name)
        wait_until(lambda: is_stopped(pid))
        lab.engine("kill", "--signal", "CONT", name)
        wait_until(lambda: not is_stopped(pid))
        lab.run_container("py1", image=lab.python_image)
        assert lab.engine("exec", "py1", "python", "-c", "import os, time, signal; print(6 * 7)") == "42"
        assert "cgroup2" not in lab.run("cat", "/proc/mounts")
    assert not os.path.exists(f"/proc/{pid}")


def test_hosts(as_root):
    machine_passwd = open("/etc/passwd", encoding="utf-8").read()
    with Hosts(2, [helper("sleeper")]) as lab:
        assert lab.run("ssh", "h1", "hostname; id -un; sudo -n -- id -un").split() == ["h1", "drill", "root"]
        assert lab.run("ssh", "root-h2", "hostname; id -un").split() == ["h2", "root"]
        assert lab.run("ssh", "plain-h1", "sudo -n id", check=False).returncode != 0
        assert lab.run("ssh", "h1", "cat /etc/machine-id") != lab.run("ssh", "h2", "cat /etc/machine-id")
        with Sleeper(prefix=lab.on(1)) as target:
            assert os.readlink(f"/proc/{target.pid}/ns/net") != os.readlink("/proc/self/ns/net")
        lab.cut(1)
        with pytest.raises(subprocess.TimeoutExpired):
            lab.run("ssh", "h1", "true", timeout=1)
        assert lab.run("ssh", "h2", "hostname") == "h2"
        lab.mend(1)
        assert lab.run("ssh", "h1", "hostname") == "h1"
        assert open("/etc/passwd", encoding="utf-8").read() == machine_passwd


def test_a_reset_machine_loses_what_was_not_synced():
    with Disk() as disk:
        with Machine(disk=disk) as vm:
            vm.sh("echo one >/state/synced; echo one >/state/unsynced; sync /state/synced")
            assert vm.sh("cat /state/synced /state/unsynced").split() == ["one", "one"]
            vm.reset()
            assert vm.popen.returncode == -signal.SIGKILL
        with Machine(disk=disk) as vm:
            assert vm.sh("cat /state/synced") == "one"
            assert vm.run("grep one /state/unsynced")[0] != 0


def test_machine_is_pure_v2_without_pidfs():
    with Machine([helper("sleeper")]) as vm:
        assert vm.sh("uname -r").startswith("6.1.")
        assert vm.sh("grep -o '^[^ ]* [^ ]* cgroup[2]*' /proc/mounts") == "cg /sys/fs/cgroup cgroup2"
        pid = vm.sleeper()
        vm.sh(f"kill -STOP {pid}")
        wait_until(lambda: vm.is_stopped(pid))
        assert vm.run("cat /nowhere") == (1, "cat: can't open '/nowhere': No such file or directory\n")


def test_machine_runs_a_script_to_its_end():
    with Machine(script="echo hello; exit 3\n") as vm:
        assert vm.finish() == 3
        assert "hello" in vm.text
