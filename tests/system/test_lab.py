"""The labs are what they say: real engines, real hosts. The machine has its own, in tests/vm."""

import os
import subprocess

import pytest

from mayhem_test import Sleeper, helper, is_stopped, wait_until
from mayhem_test.lab import Engines, Hosts


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
