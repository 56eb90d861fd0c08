"""The virtual machine is what it says: another kernel, and a disk that loses what was not synced."""

import signal

from mayhem_test import helper, wait_until
from mayhem_test.lab import Disk, Machine


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
