"""Agent, holder, both: killed, or failed, at every system call; see sweep/main.c.

The agent is $MAYHEM_BUILD/mayhem-agent (default `build`, relative to the top of the tree), the sweep
$MAYHEM_BUILD/tests/crash/sweep. On the sanitizer tree, whose agent starts slowly, each sweep is a draw of
$MAYHEM_SWEEP_SAMPLE points; torture draws $MAYHEM_SWEEP_RANDOM more of all. Both by MAYHEM_SEED.
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
SEED = int(os.environ.get("MAYHEM_SEED") or random.randrange(2**32))
SAMPLE = int(os.environ.get("MAYHEM_SWEEP_SAMPLE", 200))
RANDOM = int(os.environ.get("MAYHEM_SWEEP_RANDOM", 1000))
SAMPLED = os.environ.get("MAYHEM_TREE") == "sanitizer"
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
    """sweep(*args): runs it, prints the figures, fails with what failed in a form to be run again."""

    def run(*args, draw=SAMPLE if SAMPLED else 0):
        drawn = ["--random", str(draw), "--seed", str(SEED)] if draw else []
        done = subprocess.run([BUILD / "tests/crash/sweep", "--agent", BUILD / "mayhem-agent",
                               "--state-root", root, "--json", "--deadline-ms", "10000", *args, *drawn],
                              capture_output=True, text=True, timeout=1800, check=False)
        assert done.returncode in (0, 1), done.stderr
        account = json.loads(done.stdout)
        print(f"{' '.join([*args, *drawn])}: {account['swept']} points swept, "
              f"{account['per_minute']:.0f} a minute, {account['missed']} missed, "
              f"{account['dirty']} left dirty, the target was back after {account['slowest_ms']:.1f} ms "
              "at most")
        again = [f"--scenario {f['scenario']} --point {f['point']} ({f['call']}): {f['why']}"
                 for f in account["failures"]]
        assert not again, f"{len(again)} points failed:\n" + "\n".join(again[:40])
        assert not account["litter_names"], "ended records kept the name of a spare"
        assert not account["litter_marks"], "stores left their cgroup"
        # A holder looks after its fault now and then. How often is a matter of time: the last calls of
        # the longest recording are not reached every time.
        assert account["missed"] <= account["swept"] / 5
        return account["swept"]

    return run


def least(points):
    """What a sweep of all points comes to; a draw is as large as it is."""
    return SAMPLE / 2 if SAMPLED else points


@pytest.mark.parametrize("role", ("agent", "holder"))
def test_killed_at_every_call(sweep, role):
    assert sweep("--role", role, "--action", "kill") >= least(200)


def test_both_killed_at_every_call_of_either(sweep):
    assert sweep("--role", "both", "--action", "both") >= least(400)


def test_every_call_on_the_store_fails(sweep):
    """Of every process, with each error: once, and from there on, as a full disk stays full."""
    assert sweep("--role", "all", "--action", "errors") >= least(500)


@pytest.mark.parametrize("scenario", ORPHANS)
@pytest.mark.parametrize("action", ("kill", "errors"))
def test_recovery_killed_and_failed_at_every_call(sweep, scenario, action):
    """Whoever mends an orphaned lease dies in turn: the next recovery mends it. What recovery reads grows
    with what a store holds: only in a new one each time is call N the same call."""
    assert sweep("--scenario", scenario, "--role", "all", "--action", action, "--fresh") >= least(300)


def test_every_end_of_a_lease(sweep):
    """By request, undo, duration and the end of the session: a draw of all their points."""
    assert sweep("--scenario", ",".join(SESSIONS), "--role", "all", "--action", "all",
                 draw=2 * SAMPLE) >= SAMPLE


@pytest.mark.torture
def test_random_points(sweep):
    print(f"MAYHEM_SEED={SEED} MAYHEM_SWEEP_RANDOM={RANDOM}")
    # AddressSanitizer ends a process whose mmap fails; the agent alone does not.
    calls = "store" if SAMPLED else "all"
    assert sweep("--scenario", "all", "--role", "all", "--action", "all", "--calls", calls,
                 draw=RANDOM) >= RANDOM * 8 // 10


@pytest.mark.torture
@pytest.mark.parametrize("scenario", SESSIONS + ORPHANS)
def test_every_point_of_every_process(sweep, scenario):
    assert sweep("--scenario", scenario, "--role", "all", "--action", "all", "--fresh") >= least(1000)
