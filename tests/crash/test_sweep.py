"""Agent, holder, both: killed, or failed, at every system call; see sweep/main.c.

The agent is $MAYHEM_BUILD/mayhem-agent (default `build`, relative to the top of the tree), the sweep
$MAYHEM_BUILD/tests/crash/sweep. Torture draws its points by $MAYHEM_SEED, $MAYHEM_SWEEP_RANDOM of them.
"""

import json
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("MAYHEM_BUILD", "build")
SESSIONS = ("pause-release", "pause-undo", "pause-duration", "pause-eof")
ORPHANS = ("orphan-serve", "orphan-recover")


@pytest.fixture
def root():
    """Where the workers have their state directories; kept when a point failed, for a look."""
    path = Path(tempfile.mkdtemp(prefix="mayhem-sweep-"))
    yield path
    if any(path.glob("failed-*")):
        print(f"the state of what failed is in {path}")
    else:
        shutil.rmtree(path)


@pytest.fixture
def sweep(root):
    """sweep(*args): runs it, prints the figures and what failed, returns its account."""

    def run(*args):
        done = subprocess.run([BUILD / "tests/crash/sweep", "--agent", BUILD / "mayhem-agent",
                               "--state-root", root, "--json", *args],
                              capture_output=True, text=True, timeout=1200, check=False)
        assert done.returncode in (0, 1), done.stderr
        account = json.loads(done.stdout)
        print(f"{' '.join(args)}: {account['swept']} points swept, {account['per_minute']:.0f} a "
              f"minute, {account['missed']} missed, {account['dirty']} left dirty, the target was "
              f"back after {account['slowest_ms']:.1f} ms at most")
        again = [f"--scenario {f['scenario']} --point {f['point']} ({f['call']}): {f['why']}"
                 for f in account["failures"]]
        assert not again, f"{len(again)} points failed:\n" + "\n".join(again[:40])
        assert not account["litter_names"], "ended records kept the name of a spare"
        assert not account["litter_marks"], "stores left their cgroup"
        return account

    return run


def assert_swept(account, least):
    """A holder looks after its fault now and then: how often is a matter of time, so the last calls of
    the longest recording are not reached every time."""
    assert account["swept"] >= least
    assert account["missed"] <= account["swept"] / 8


@pytest.mark.parametrize("fresh", (False, True), ids=("warm", "fresh"))
@pytest.mark.parametrize("role", ("agent", "holder"))
def test_killed_at_every_call(sweep, role, fresh):
    account = sweep("--role", role, "--action", "kill", *["--fresh"] * fresh)
    assert_swept(account, 60)


def test_both_killed_at_every_call_of_either(sweep):
    assert_swept(sweep("--role", "both", "--action", "both"), 200)


@pytest.mark.parametrize("role", ("clerk", "recover"))
def test_other_children_killed_at_every_call(sweep, role):
    sweep("--role", role, "--action", "kill", "--fresh")


@pytest.mark.parametrize("error", ("ENOSPC", "EIO", "EMFILE", "ENOMEM", "EINTR"))
def test_every_call_on_the_store_fails(sweep, error):
    """Once, and from there on: a full disk stays full."""
    assert_swept(sweep("--role", "all", "--action", f"error={error}"), 20)
    if error != "EINTR":
        assert_swept(sweep("--role", "all", "--action", f"error={error}+"), 20)


@pytest.mark.parametrize("scenario", SESSIONS[1:])
def test_other_ends_of_a_lease(sweep, scenario):
    assert_swept(sweep("--scenario", scenario, "--role", "holder", "--action", "all"), 200)


@pytest.mark.parametrize("scenario", ORPHANS)
def test_recovery_killed_at_every_call(sweep, scenario):
    """Whoever mends is killed, and failed, in turn: the next recovery mends."""
    assert_swept(sweep("--scenario", scenario, "--role", "all", "--action", "all"), 100)


@pytest.mark.torture
def test_random_points(sweep):
    seed = int(os.environ.get("MAYHEM_SEED") or random.randrange(2**32))
    count = int(os.environ.get("MAYHEM_SWEEP_RANDOM", 1000))
    print(f"MAYHEM_SEED={seed} MAYHEM_SWEEP_RANDOM={count}")
    account = sweep("--scenario", "all", "--role", "all", "--action", "all", "--calls", "all",
                    "--random", str(count), "--seed", str(seed))
    assert_swept(account, count * 9 // 10)


@pytest.mark.torture
@pytest.mark.parametrize("scenario", SESSIONS + ORPHANS)
def test_every_point_of_every_process(sweep, scenario):
    assert_swept(sweep("--scenario", scenario, "--role", "all", "--action", "all",
                       "--calls", "all"), 500)
