"""The command line of `mayhem`: what it prints, its exit codes, and that what it says is so."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import tempfile
import time

import pytest

from mayhem_test import (Proc, Sleeper, StateDir, agent_path, is_stopped, mayhem_path, run_agent, run_mayhem,
                         wait_until)

COMMANDS = ["doctor", "halt", "leases", "inject", "release", "recover", "janitor", "resume", "status", "faults",
            "explain", "version", "help"]


def read_json(done, code=0):
    """The one object on stdout; with the exit code that was expected."""
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    lines = done.stdout.splitlines()
    assert len(lines) == 1, done.stdout
    answer = json.loads(lines[0])
    assert next(iter(answer)) == "v" and answer["v"] == 1
    return answer


def read_error(done, code, reason):
    """An error as text: one line with its code, then at most a remedy."""
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and lines[0].endswith(f"[{reason}]"), done.stderr
    return done.stderr


class Running:
    """A `mayhem` that is still there: its own session, output in files."""

    def __init__(self, *args, state, env=None, prefix=()):
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        full = {**os.environ, "MAYHEM_AGENT": agent_path(), "MAYHEM_STATE_DIR": str(state), **(env or {})}
        self.popen = subprocess.Popen([*prefix, mayhem_path(), *map(str, args)], stdin=subprocess.DEVNULL,
                                      stdout=self.out, stderr=self.err, env=full, start_new_session=True)
        self.pid = self.popen.pid

    def _text(self, file):
        return os.pread(file.fileno(), 1 << 20, 0).decode()

    @property
    def stdout(self):
        return self._text(self.out)

    @property
    def stderr(self):
        return self._text(self.err)

    @property
    def returncode(self):
        return self.popen.returncode

    def wait(self, timeout=20):
        self.popen.wait(timeout)
        return self

    def signal(self, signo):
        self.popen.send_signal(signo)

    def close(self):
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait(5)
        self.out.close()
        self.err.close()


@pytest.fixture
def mayhem(state):
    """mayhem(*args) runs it to its end, with a state directory of the test's."""
    return lambda *args, **kw: run_mayhem(*args, **{"state": state, **kw})


@pytest.fixture
def running(state):
    """running(*args) starts one; ended with the test."""
    started = []

    def start(*args, **kw):
        started.append(Running(*args, **{"state": state, **kw}))
        return started[-1]

    yield start
    for one in started:
        one.close()


def only_lease(state):
    found = state.leases()
    assert len(found) == 1, found
    return next(iter(found.values()))


def holder_of(state):
    """Pid of the holder of the only lease, or None."""
    holder = only_lease(state).body.get("holder") or {}
    return holder.get("identity", holder).get("pid")


# -- words, help, errors


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(mayhem, command):
    asked, option = mayhem("help", command), mayhem(command, "--help")
    assert asked.returncode == option.returncode == 0
    assert asked.stdout == option.stdout and asked.stderr == ""
    assert asked.stdout.startswith(f"usage: mayhem {command}") and "EXAMPLE: mayhem " in asked.stdout
    assert all(len(line) <= 100 for line in asked.stdout.splitlines())


def test_help_lists_every_command(mayhem):
    answer = read_json(mayhem("help", "--json"))
    assert [c["name"] for c in answer["commands"]] == COMMANDS
    text = mayhem("help").stdout
    assert all(re.search(rf"^  {c} ", text, re.MULTILINE) for c in COMMANDS)


def test_nothing_said_is_a_usage_error(mayhem):
    done = mayhem()
    assert done.returncode == 2 and done.stdout.startswith("mayhem breaks")


@pytest.mark.parametrize("argv, code, reason, hint", [
    (["injekt"], 2, "usage", "inject"),
    (["re"], 10, "usage.ambiguous", "recover"),
    (["re", "--json", "x"], 10, "usage.ambiguous", "recover"),
    (["inject"], 2, "usage", "help inject"),
    (["inject", "proc.pause", "--pidd", "1"], 2, "usage", "--pid"),
    (["inject", "proc.pause", "--pid"], 2, "usage", "N"),
    (["inject", "proc.pause", "--pid", "x"], 2, "usage", "x"),
    (["inject", "proc.pause", "--pid", "12", "--process", "a"], 2, "usage", "more than one"),
    (["inject", "proc.pause"], 2, "usage", "--pid"),
    (["inject", "proc.pause", "--pid", "12", "scope"], 2, "usage", "key=value"),
    (["inject", "proc.pause", "--pid", "12", "--for", "soon"], 2, "usage", "10s"),
    (["inject", "proc.puase", "--pid", "12"], 4, "fault.unknown", "proc.pause"),
    (["inject", "proc.pause", "--pid", "12", "--for", "0"], 4, "params.range", "600"),
    (["inject", "proc.pause", "--pid", "12", "--for", "11m"], 4, "params.range", "600"),
    (["inject", "proc.pause", "--pid", "12", "scpe=tree"], 4, "params.unknown", "scope"),
    (["inject", "proc.pause", "--pid", "12", "scope=all"], 4, "params.range", "tree"),
    (["inject", "process.stop", "--pid", "12", "grace=-1"], 4, "params.type", "grace"),
    (["inject", "process.stop", "--pid", "12", "escalate=maybe"], 4, "params.type", "escalate"),
    (["inject", "proc.pause", "--pid", "4194304000"], 5, "target.protected", ""),
    (["inject", "proc.pause", "--process", "no-such-name"], 6, "target.gone", "comm"),
    (["inject", "proc.pause", "--host", "web1", "--pid", "12"], 2, "transport.host", "ssh:"),
    (["inject", "proc.pause", "--host", "ssh:-oProxyCommand=x", "--pid", "12"], 2, "transport.word", ""),
    (["inject", "proc.pause", "--host", "ssh:h", "--process", "a"], 2, "usage", "--pid"),
    (["leases", "extra"], 2, "usage", "extra"),
    (["leases", "--json=1"], 2, "usage", "no value"),
    (["leases", "--log-level", "loud"], 2, "usage", "debug"),
    (["leases", "--state="], 2, "usage", "empty"),
    (["release"], 2, "usage", "LEASE"),
    (["release", "l-99999999"], 4, "lease.unknown", ""),
    (["release", "l-1", "--surrender"], 2, "usage", "--note"),
    (["explain", "target_drif"], 4, "catalogue.unknown", "target_drift"),
    (["faults", "proc.puase"], 4, "fault.unknown", "proc.pause"),
    (["help", "injekt"], 2, "usage", "inject"),
])
def test_errors(mayhem, argv, code, reason, hint):
    if "--json" not in argv:
        assert hint in read_error(mayhem(*argv), code, reason)
    error = read_json(mayhem(*argv, "--json"), code)["error"]
    assert set(error) == {"code", "reason", "message", "remedy", "exit"}
    assert error["reason"] == reason and error["exit"] == code and error["message"]
    assert hint in f"{error['message']} {error['remedy']}"


@pytest.mark.parametrize("short, full", [("v", "version"), ("versi", "version"), ("e", "explain"), ("j", "janitor")])
def test_unique_prefixes(mayhem, short, full):
    extra = {"j": ["--plan"]}.get(short, [])
    assert mayhem(short, *extra).stdout == mayhem(full, *extra).stdout


def test_options_stand_anywhere(mayhem):
    first, last = mayhem("--json", "version"), mayhem("version", "--json")
    assert first.stdout == last.stdout
    assert read_json(first)["protocol"] == "mayhem/1"


def test_version_starts_no_other_program(mayhem):
    env = {"MAYHEM_AGENT": "/nonexistent"}
    assert re.fullmatch(r"mayhem \d+\.\d+\.\d+, protocol mayhem/1\n", mayhem("version", env=env).stdout)
    assert mayhem("--version", env=env).returncode == 0
    read_error(mayhem("version", "--with-agent", env=env), 8, "agent.missing")


def test_version_of_the_agent(mayhem):
    answer = read_json(mayhem("version", "--with-agent", "--json"))
    assert answer["mayhem"] == answer["agent"]


def test_explain_knows_every_reason(mayhem):
    reasons = read_json(mayhem("explain", "--json"))["reasons"]
    codes = [r["code"] for r in reasons]
    assert codes == sorted(codes) and len(codes) == len(set(codes)) > 40
    for r in reasons:
        one = mayhem("explain", r["code"])
        assert one.returncode == 0 and one.stdout.startswith(f"{r['code']}, exit code {r['exit']}\n")
        assert all(len(line) <= 80 for line in one.stdout.splitlines())


# -- inject


def test_inject_pauses_and_undoes(running, state, sleeper):
    start = time.monotonic()
    run = running("inject", "proc.pause", "--pid", sleeper.pid, "--for", "700ms", "--json")
    wait_until(lambda: sleeper.stopped)
    seen = time.monotonic()
    wait_until(lambda: not sleeper.stopped)
    held = time.monotonic() - seen
    answer = read_json(run.wait())
    assert time.monotonic() - start < 5 and 0.5 < held < 1.5
    assert answer["status"] == "completed" and answer["reason"] is None and answer["dirty"] == []
    lease = answer["lease"]
    assert lease["state"] == "released" and lease["release_mechanism"] == "normal"
    assert lease["target"]["pid"] == sleeper.pid and lease["target"]["start_ticks"] == sleeper.start_ticks
    assert {o["phase"] for o in lease["observations"]} >= {"during", "after"}
    assert answer["run_id"] == lease["run_id"] and answer["run_id"].startswith("r-inject-")
    assert only_lease(state).state == "released"


def test_inject_says_what_it_does(mayhem, sleeper):
    done = mayhem("inject", "proc.pause", "--pid", sleeper.pid, "--for", "300ms")
    assert done.returncode == 0, done.stderr
    assert re.match(rf"proc\.pause on process {sleeper.pid} \(sleeper\): undone, and seen to be", done.stdout)
    lease = re.search(r"^lease (l-\d{8}) released \(normal\)$", done.stdout, re.MULTILINE).group(1)
    # One line an event, RFC 3339 first, no colour where there is no terminal.
    assert all(re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z ", line) for line in done.stderr.splitlines())
    assert f"{lease} active\n" in done.stderr and f"{lease} released\n" in done.stderr
    assert "process.stopped 0 before, 1 during, 0 after" in done.stdout
    assert "\033" not in done.stdout + done.stderr


def test_quiet_says_nothing_before_the_end(mayhem, sleeper):
    done = mayhem("-q", "inject", "proc.pause", "--pid", sleeper.pid, "--for", "100ms")
    assert done.returncode == 0 and done.stderr == "" and "released" in done.stdout


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_undoes(running, sleeper, state, signo):
    run = running("inject", "proc.pause", "--pid", sleeper.pid, "--for", "60s")
    wait_until(lambda: sleeper.stopped)
    run.signal(signo)
    run.wait(5)
    assert not sleeper.stopped
    assert run.returncode == 6 and "[cancelled]" in run.stderr and "undone" in run.stderr
    assert only_lease(state).state == "released"


def agent_of(run):
    """Pid of the agent that a running `mayhem` started."""
    with open(f"/proc/{run.pid}/task/{run.pid}/children", encoding="ascii") as f:
        agent, = map(int, f.read().split())
    return agent


def test_impatience(running, sleeper, state):
    """More signals than needed change nothing but how long is waited; an agent that hangs holds nobody."""
    run = running("inject", "proc.pause", "--pid", sleeper.pid, "--for", "60s")
    wait_until(lambda: sleeper.stopped)
    agent = agent_of(run)
    os.kill(agent, signal.SIGSTOP)
    end = time.monotonic() + 10
    while run.popen.poll() is None and time.monotonic() < end:
        run.signal(signal.SIGINT)
        time.sleep(0.05)
    assert run.returncode in (6, 8), run.stderr
    os.kill(agent, signal.SIGCONT)
    wait_until(lambda: not sleeper.stopped, 3)
    wait_until(lambda: only_lease(state).at_safe_end, 3)


def test_a_signal_in_json(running, sleeper):
    run = running("inject", "proc.pause", "--pid", sleeper.pid, "--for", "60s", "--json")
    wait_until(lambda: sleeper.stopped)
    run.signal(signal.SIGINT)
    answer = read_json(run.wait(5), 6)
    assert answer["status"] == "aborted" and answer["reason"] == "cancelled"
    assert answer["lease"]["state"] == "released" and answer["exit"] == 6


def test_a_signal_at_every_moment(running, sleeper, state):
    """Wherever it comes, the target runs again and no lease is live once the command is gone."""
    for delay_ms in range(0, 24, 2):
        run = running("inject", "proc.pause", "--pid", sleeper.pid, "--for", "30s")
        time.sleep(delay_ms / 1000)
        run.signal(signal.SIGINT)
        run.wait(10)
        assert run.returncode in (6, -signal.SIGINT), (delay_ms, run.returncode, run.stderr)
        wait_until(lambda: not is_stopped(sleeper.pid), 2)
        wait_until(lambda: all(lease.at_safe_end for lease in state.leases().values()), 2)


def test_hangup_is_ignored_under_nohup(running, sleeper):
    run = running("inject", "proc.pause", "--pid", sleeper.pid, "--for", "1s",
                  prefix=["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"])
    wait_until(lambda: sleeper.stopped)
    run.signal(signal.SIGHUP)
    assert run.wait().returncode == 0, run.stderr


def test_killed_controller_is_undone_by_the_agent(running, sleeper, state):
    run = running("inject", "proc.pause", "--pid", sleeper.pid, "--for", "60s")
    wait_until(lambda: sleeper.stopped)
    killed = time.monotonic()
    run.signal(signal.SIGKILL)
    wait_until(lambda: not sleeper.stopped, 2)
    assert time.monotonic() - killed < 1
    wait_until(lambda: only_lease(state).at_safe_end, 2)


def test_stopped_controller_keeps_nothing_waiting(running, sleeper):
    """The agent's side keeps time: a stopped controller prolongs nothing."""
    run = running("inject", "proc.pause", "--pid", sleeper.pid, "--for", "500ms")
    wait_until(lambda: sleeper.stopped)
    run.signal(signal.SIGSTOP)
    wait_until(lambda: not sleeper.stopped, 2)
    run.signal(signal.SIGCONT)
    assert run.wait().returncode == 0


def test_detach_release(mayhem, sleeper, state):
    done = mayhem("inject", "proc.pause", "--pid", sleeper.pid, "--for", "60s", "--detach")
    assert done.returncode == 0, done.stderr
    assert sleeper.stopped
    lease = re.search(r"lease (l-\d{8}), until \d\d:\d\d:\d\d[+-]\d{4}\n", done.stdout).group(1)
    assert f"\nsooner: mayhem release {lease}\n" in done.stdout
    listed = read_json(mayhem("leases", "--json"))
    assert listed["state_dir"] == str(state) and listed["next"] is None
    assert [(x["id"], x["state"]) for x in listed["leases"]] == [(lease, "active")]
    assert sleeper.stopped, "looking at it must not end it"
    table = mayhem("leases").stdout
    assert lease in table and "proc.pause" in table and str(sleeper.pid) in table
    run = listed["leases"][0]["run_id"]
    assert lease in mayhem("leases", "--run", run).stdout
    assert mayhem("leases", "--run", "r-other").stdout == "no lease\n"
    released = mayhem("release", lease)
    assert released.returncode == 0 and "released" in released.stdout, released.stderr
    assert not sleeper.stopped
    assert mayhem("leases").stdout == "no lease\n"
    assert lease in mayhem("leases", "--all").stdout
    again = read_json(mayhem("release", lease, "--json"))
    assert again["lease"]["state"] == "released" and again["ok"] is True


def test_detach_ends_by_itself(mayhem, sleeper, state):
    answer = read_json(mayhem("inject", "proc.pause", "--pid", sleeper.pid, "--for", "600ms", "--detach", "--json"))
    assert answer["status"] == "running" and answer["lease"]["survive"] is True
    assert answer["release"] == ["mayhem", "release", answer["lease"]["id"]]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", answer["ends_at"])
    wait_until(lambda: not sleeper.stopped, 3)
    wait_until(lambda: only_lease(state).mechanism == "normal")


def test_dry_run_changes_nothing(mayhem, sleeper, state):
    argv = ["inject", "proc.pause", "--pid", sleeper.pid, "--for", "30s", "scope=tree", "--dry-run"]
    done = mayhem(*argv)
    assert done.returncode == 0, done.stderr
    assert "nothing has been changed" in done.stdout and f"process {sleeper.pid} (sleeper)" in done.stdout
    assert "at the latest after 2m" in done.stdout
    plan = read_json(mayhem(*argv, "--json"))
    step = plan["steps"][0]
    assert step["fault_id"] == "proc.pause" and step["duration_ms"] == 30000 and step["ttl_seconds"] == 120
    assert step["target"]["start_ticks"] == sleeper.start_ticks and step["params"] == {"scope": "tree"}
    assert step["undo_kind"] == "recorded" and all(gate["ok"] for gate in plan["gates"])
    assert plan["plan_sha256"] == read_json(mayhem(*argv, "--json"))["plan_sha256"]
    assert not sleeper.stopped and state.leases() == {}


def test_kill_and_stop_are_irreversible(mayhem, sleepers):
    for fault, signo in (("process.kill", signal.SIGKILL), ("process.stop", signal.SIGTERM)):
        victim, = sleepers(1)
        answer = read_json(mayhem("inject", fault, "--pid", victim.pid, "--for", "2s", "--json"))
        assert answer["lease"]["state"] == "released" and answer["lease"]["undo_kind"] == "irreversible"
        wait_until(lambda: victim.ended_by == -signo)
    victim, = sleepers(1)
    done = mayhem("inject", "process.kill", "--pid", victim.pid)
    assert "nothing to undo" in done.stdout


def test_a_target_by_name(mayhem, sleepers, tmp_path):
    name = tmp_path / f"s{os.getpid() % 10**6}"
    name.write_bytes(open("/bin/sleep", "rb").read())
    name.chmod(0o755)
    with Proc([name, "1000"]) as one:
        done = read_json(mayhem("inject", "proc.pause", "--process", name.name, "--for", "100ms", "--json"))
        assert done["lease"]["target"]["pid"] == one.pid
        with Proc([name, "1000"]) as two:
            text = read_error(mayhem("inject", "proc.pause", "--process", name.name), 4, "target.ambiguous")
            assert str(one.pid) in text and str(two.pid) in text
            assert not one.stopped and not two.stopped
    read_error(mayhem("inject", "proc.pause", "--process", name.name), 6, "target.gone")


@pytest.mark.parametrize("pid, code, reason", [
    ("1", 5, "target.protected"), ("0", 5, "target.protected"), ("-1", 5, "target.protected"),
    ("-2147483648", 5, "target.protected"), ("2", 5, "target.protected"),
])
def test_protected_targets(mayhem, state, pid, code, reason):
    if pid == "2" and open("/proc/2/comm").read() != "kthreadd\n":
        pytest.skip("no kernel threads are seen in this pid namespace")
    read_error(mayhem("inject", "proc.pause", "--pid", pid), code, reason)
    assert state.leases() == {}


def test_our_own_processes_are_protected(running, mayhem, sleeper, state):
    run = running("inject", "proc.pause", "--pid", sleeper.pid, "--for", "60s")
    wait_until(lambda: sleeper.stopped)
    holder = wait_until(lambda: holder_of(state))
    read_error(mayhem("inject", "proc.pause", "--pid", holder), 5, "target.protected")
    # The session's own chain: this test is an ancestor of that agent.
    read_error(mayhem("inject", "proc.pause", "--pid", os.getpid()), 5, "target.protected")
    run.signal(signal.SIGINT)
    run.wait()


def test_a_stopped_process_is_refused_and_stays_stopped(mayhem, sleeper):
    sleeper.stop()
    done = mayhem("inject", "proc.pause", "--pid", sleeper.pid)
    assert done.returncode == 6 and re.search(r"\[(resource_conflict|no_effect)\]", done.stderr), done.stderr
    assert sleeper.stopped
    sleeper.cont()


def test_a_held_target_is_a_conflict(running, mayhem, sleeper):
    run = running("inject", "proc.pause", "--pid", sleeper.pid, "--for", "60s")
    wait_until(lambda: sleeper.stopped)
    text = read_error(mayhem("inject", "proc.pause", "--pid", sleeper.pid), 6, "resource_conflict")
    assert re.search(r"l-\d{8}|stopped", text)
    assert sleeper.stopped
    run.signal(signal.SIGINT)
    assert run.wait().returncode == 6


def test_a_target_that_ends_meanwhile(running, sleeper):
    run = running("inject", "proc.pause", "--pid", sleeper.pid, "--for", "60s", "--json")
    wait_until(lambda: sleeper.stopped)
    sleeper.kill()
    answer = read_json(run.wait(10), 6)
    assert answer["reason"] == "target_gone" and answer["lease"]["state"] == "released"


def test_an_effect_that_is_taken_away(running, sleeper, state):
    """Somebody continues the target: the fault did not last, and that is no success."""
    run = running("inject", "proc.pause", "--pid", sleeper.pid, "--for", "2500ms", "--json")
    wait_until(lambda: sleeper.stopped and only_lease(state).body.get("injected_at"))
    sleeper.cont()
    answer = read_json(run.wait(10), 6)
    assert answer["reason"] == "no_effect" and answer["lease"]["release_mechanism"] == "normal"


def test_a_target_that_is_gone(mayhem):
    with Sleeper() as s:
        pid = s.pid
    read_error(mayhem("inject", "proc.pause", "--pid", pid), 6, "target.gone")


@pytest.mark.parametrize("target", [["--service", "web"], ["--container", "web"], ["--unit", "nginx.service"],
                                    ["--host", "local"]])
def test_kinds_that_are_not_there_yet_are_refused_by_name(mayhem, target):
    text = read_error(mayhem("inject", "proc.pause", *target), 4, "target.kind")
    assert target[0].strip("-") in text


# -- what stands between plan and injection

SHIM = r"""#!/usr/bin/python3
# Speaks for the agent, and does one thing when the controller injects.
import json, os, signal, subprocess, sys
agent = subprocess.Popen([{agent!r}, *sys.argv[1:]], stdin=subprocess.PIPE, bufsize=0)
if sys.argv[1] != "serve":
    sys.exit(agent.wait())
for line in sys.stdin.buffer:
    frame = json.loads(line)
    if frame.get("params", {{}}).get("phase") == "inject":
{action}
    agent.stdin.write(json.dumps(frame).encode() + b"\n")
agent.stdin.close()
sys.exit(agent.wait())
"""


def shim(folder, action):
    path = folder / "agent"
    path.write_text(SHIM.format(agent=agent_path(), action="\n".join(f"        {a}" for a in action.splitlines())))
    path.chmod(0o755)
    return str(path)


def test_drift_is_refused(mayhem, sleeper, state, tmp_path):
    agent = shim(tmp_path, 'frame["params"]["lease"]["target"]["start_ticks"] += 1')
    read_error(mayhem("--agent", agent, "inject", "proc.pause", "--pid", sleeper.pid), 6, "target_drift")
    assert not sleeper.stopped and all(lease.at_safe_end for lease in state.leases().values())


def test_the_identity_of_the_plan_is_sent(mayhem, sleeper, tmp_path):
    agent = shim(tmp_path, f'open({str(tmp_path / "sent")!r}, "w").write(json.dumps(frame))')
    assert mayhem("--agent", agent, "inject", "proc.pause", "--pid", sleeper.pid, "--for", "50ms").returncode == 0
    lease = json.loads((tmp_path / "sent").read_text())["params"]["lease"]
    boot = open("/proc/sys/kernel/random/boot_id").read().strip()
    assert lease["target"]["start_ticks"] == sleeper.start_ticks and lease["target"]["boot_id"] == boot
    assert lease["ttl_seconds"] == 120 and lease["survive"] is False


def test_gone_between_plan_and_injection(mayhem, sleeper, tmp_path):
    agent = shim(tmp_path, f"os.kill({sleeper.pid}, signal.SIGKILL)\n"
                           f"while os.path.exists('/proc/{sleeper.pid}') and ' Z ' not in "
                           f"open('/proc/{sleeper.pid}/stat').read(): pass")
    done = mayhem("--agent", agent, "inject", "proc.pause", "--pid", sleeper.pid)
    assert done.returncode == 6 and re.search(r"\[(target.gone|target_gone|target_drift)\]", done.stderr), done.stderr


def test_policy_refuses(mayhem, sleeper, tmp_path):
    """A policy file narrows; the agent answers, the command tells which file and key."""
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"format": "mayhem.agent/1", "denied_faults": ["proc"]}))
    agent = tmp_path / "agent"
    agent.write_text(f"#!/bin/sh\nexec {agent_path()} \"$@\" --policy {policy}\n")
    agent.chmod(0o755)
    text = read_error(mayhem("--agent", agent, "inject", "proc.pause", "--pid", sleeper.pid), 5, "policy.denied")
    assert "policy" in text and "denied_faults" in text
    assert not sleeper.stopped


# -- agents that are not well


def fake_agent(folder, script):
    path = folder / "agent"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("script, code, reason", [
    ("exit 0", 8, "agent.lost"),
    ("exit 8", 8, "agent.lost"),
    ("exit 3", 3, "agent.config"),
    ("exit 127", 8, "agent.missing"),
    ("kill -9 $$", 8, "agent.lost"),
    ("echo hello", 8, "agent.protocol"),
    ("echo '[1,2]'", 8, "agent.protocol"),
    ("echo '{\"id\":1}'; cat", 8, "agent.protocol"),
    ("head -c 2000000 /dev/zero; cat", 8, "agent.protocol"),
    ("echo '{\"id\":1,\"error\":{\"code\":-32001,\"message\":\"no\",\"data\":{\"reason\":\"host.halted\"}}}'; cat >/dev/null",
     5, "host.halted"),
])
def test_sick_agents(mayhem, sleeper, tmp_path, script, code, reason):
    agent = fake_agent(tmp_path, script)
    read_error(mayhem("--agent", agent, "inject", "proc.pause", "--pid", sleeper.pid), code, reason)


def test_an_agent_that_is_killed(running, sleeper, state):
    run = running("inject", "proc.pause", "--pid", sleeper.pid, "--for", "60s")
    wait_until(lambda: sleeper.stopped)
    os.kill(agent_of(run), signal.SIGKILL)
    run.wait(5)
    assert run.returncode == 8 and "[agent.lost]" in run.stderr
    wait_until(lambda: not sleeper.stopped, 2)
    wait_until(lambda: only_lease(state).at_safe_end, 2)
    # Killed between making a cgroup and the process for it, it leaves an empty one for the next start.
    assert run_agent("recover", state=state).returncode == 0


def test_a_missing_agent(mayhem, tmp_path):
    read_error(mayhem("--agent", tmp_path / "none", "leases"), 8, "agent.missing")
    read_error(mayhem("--agent", tmp_path / "none", "doctor"), 8, "agent.missing")


def test_a_closed_stdout_is_no_death(state, sleeper):
    """`mayhem … | head -c0`: nobody reads, and the fault is undone all the same."""
    reader, writer = os.pipe()
    os.close(reader)
    env = {**os.environ, "MAYHEM_AGENT": agent_path(), "MAYHEM_STATE_DIR": str(state)}
    done = subprocess.run([mayhem_path(), "inject", "proc.pause", "--pid", str(sleeper.pid), "--for", "100ms"],
                          stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.DEVNULL, env=env, timeout=20,
                          check=False)
    os.close(writer)
    assert done.returncode == 1 and not sleeper.stopped
    assert only_lease(state).state == "released"


# -- what could not be undone

DIRTY = {"id": "l-00000007", "run_id": "r-x", "fault_id": "proc.pause", "owner": "uid:0", "state": "dirty",
         "target": {"kind": "process", "pid": 4711, "comm": "store"}, "duration_ms": 1000, "ttl_seconds": 120,
         "created_at": "2026-01-02T03:04:05.678Z", "injected_at": "2026-01-02T03:04:05.700Z", "released_at": None,
         "release_mechanism": "normal", "escalation_notes": "process 4711 does not continue", "observations": [],
         "undo_kind": "recorded", "remedy": [["kill", "-CONT", "4711"], ["mayhem-agent", "recover", "--state", "/a b"]]}

# Answers each method with what the test gives it, and ends with status 7 as an agent does that is left dirty.
PUPPET = """#!/usr/bin/python3
import json, sys
answers = json.loads({answers!r})
for line in sys.stdin:
    frame = json.loads(line)
    params = frame["params"]
    key = params.get("phase") or frame["method"]
    with open({log!r}, "a") as log:
        log.write(json.dumps([frame["method"], params]) + "\\n")
    print(json.dumps({{"jsonrpc": "2.0", "id": frame["id"], "result": answers.get(key, {{}})}}), flush=True)
sys.exit({code})
"""


@pytest.fixture
def puppet(tmp_path):
    """puppet(answers) is the path of an agent that answers so; puppet.asked() is what it was asked."""
    log = tmp_path / "asked"

    def make(answers, code=7):
        path = tmp_path / "puppet"
        path.write_text(PUPPET.format(answers=json.dumps(answers), log=str(log), code=code))
        path.chmod(0o755)
        return str(path)

    make.asked = lambda: [json.loads(line) for line in log.read_text().splitlines()]
    return make


def test_a_dirty_lease_is_told_with_its_remedy(mayhem, puppet, sleeper):
    task = {"task_id": "t-000001", "state": "done", "ok": True, "reason": None, "detail": "stopped"}
    live = {**DIRTY, "state": "active"}
    agent = puppet({"check": {**task, "lease": live}, "inject": {**task, "lease": live},
                    "lease.list": {"leases": [DIRTY], "next": None}})
    done = mayhem("--agent", agent, "inject", "proc.pause", "--pid", sleeper.pid)
    assert done.returncode == 7 and "[undo_failed]" in done.stderr
    assert "process 4711 does not continue" in done.stderr
    assert "\n  kill -CONT 4711\n  mayhem-agent recover --state '/a b'\n" in done.stderr
    answer = read_json(mayhem("--agent", agent, "inject", "proc.pause", "--pid", sleeper.pid, "--json"), 7)
    assert answer["dirty"] == ["l-00000007"] and answer["reason"] == "undo_failed" and answer["exit"] == 7
    done = mayhem("--agent", agent, "leases")
    assert done.returncode == 0 and "dirty" in done.stdout and "\n  kill -CONT 4711\n" in done.stderr


def test_release_of_a_dirty_lease(mayhem, puppet):
    agent = puppet({"lease.release": {"lease": DIRTY, "ok": False, "reason": "undo_failed"}})
    done = mayhem("--agent", agent, "release", "l-00000007")
    assert done.returncode == 7 and "dirty" in done.stdout and "\n  kill -CONT 4711\n" in done.stderr
    answer = read_json(mayhem("--agent", agent, "release", "l-00000007", "--json"), 7)
    assert answer["ok"] is False and answer["reason"] == "undo_failed" and answer["exit"] == 7


def test_surrender(mayhem, puppet):
    agent = puppet({"lease.release": {"lease": {**DIRTY, "state": "expired", "release_mechanism": "manual"},
                                      "ok": True, "reason": None}}, code=0)
    done = mayhem("--agent", agent, "release", "l-00000007", "--surrender", "--note", "continued by hand")
    assert done.returncode == 0 and "expired (manual)" in done.stdout
    method, params = puppet.asked()[-1]
    assert method == "lease.release" and params["surrender"] is True and params["note"] == "continued by hand"
    assert params["lease_id"] == "l-00000007" and params["run_id"].startswith("r-release-")


def test_only_a_dirty_lease_is_surrendered(mayhem, sleeper, state):
    assert mayhem("inject", "proc.pause", "--pid", sleeper.pid, "--for", "60s", "--detach").returncode == 0
    lease = only_lease(state).id
    done = mayhem("release", lease, "--surrender", "--note", "x")
    assert done.returncode != 0 and sleeper.stopped and "[lease.in_use]" in done.stderr, done.stderr
    assert mayhem("release", lease).returncode == 0


# -- the other commands


def test_recover_mends_what_a_crash_left(running, mayhem, sleeper, state):
    run = running("inject", "proc.pause", "--pid", sleeper.pid, "--for", "60s")
    wait_until(lambda: sleeper.stopped)
    holder = wait_until(lambda: holder_of(state))
    agent = agent_of(run)
    # Stopped first, so that neither sees the other die.
    os.kill(agent, signal.SIGSTOP)
    os.kill(holder, signal.SIGSTOP)
    for pid in (run.pid, agent, holder):
        os.kill(pid, signal.SIGKILL)
    run.wait()
    wait_until(lambda: not os.path.exists(f"/proc/{holder}") or " Z " in open(f"/proc/{holder}/stat").read())
    assert sleeper.stopped
    plan = read_json(mayhem("recover", "--plan", "--json"))
    assert plan["plan"] is True and sleeper.stopped
    assert [(x["id"], x["did"]) for x in plan["leases"]] == [(only_lease(state).id, "would_undo")]
    report = read_json(mayhem("recover", "--json"))
    assert report["counts"]["undone"] == 1 and report["exit"] == 0
    assert report["leases"][0]["release_mechanism"] == "recovery"
    assert not sleeper.stopped
    text = mayhem("janitor", "--sweep")
    assert text.returncode == 0 and re.search(r"^\d+ seen, 0 undone", text.stdout, re.MULTILINE)


def test_halt_and_resume(running, mayhem, sleeper):
    run = running("inject", "proc.pause", "--pid", sleeper.pid, "--for", "60s")
    wait_until(lambda: sleeper.stopped)
    done = mayhem("halt", "--reason", "a drill of the drill")
    assert done.returncode == 0 and "halted: 1 ended, 0 still live, 0 dirty" in done.stdout, done.stderr
    wait_until(lambda: not sleeper.stopped, 2)
    run.wait(5)
    assert run.returncode == 6 and "[host.halted]" in run.stderr
    text = read_error(mayhem("inject", "proc.pause", "--pid", sleeper.pid), 5, "host.halted")
    assert "resume" in text
    assert read_json(mayhem("halt", "--json"))["v"] == 1
    assert mayhem("resume").returncode == 0
    assert mayhem("inject", "proc.pause", "--pid", sleeper.pid, "--for", "50ms").returncode == 0


def test_faults(mayhem):
    answer = read_json(mayhem("faults", "--json"))
    ids = [fault["id"] for fault in answer["faults"]]
    assert ids == sorted(ids) and {"proc.pause", "process.kill", "process.stop"} <= set(ids)
    for fault in answer["faults"]:
        assert {"id", "risk", "max_duration_s", "targets", "undo_kind", "executable", "params"} <= set(fault)
        one = mayhem("faults", fault["id"])
        assert one.returncode == 0 and one.stdout.startswith(fault["id"])
        assert all(p["name"] in one.stdout for p in fault["params"])
    table = mayhem("faults").stdout
    assert all(i in table for i in ids)
    assert len(read_json(mayhem("faults", "proc.pause", "--json"))["faults"]) == 1


def test_doctor(mayhem, state):
    report = read_json(mayhem("doctor", "--json"))
    assert {"ok", "kernel", "cgroup", "privileges", "state_dir", "checks"} <= set(report)
    assert report["ok"] is True and report["state_dir"]["path"] == str(state)
    text = mayhem("doctor")
    assert text.returncode == 0 and text.stdout.startswith("host ") and "\nok        state" in text.stdout


def test_doctor_says_when_nothing_can_be_broken(mayhem, tmp_path):
    done = mayhem("doctor", "--state", "/proc/nowhere")
    assert done.returncode in (8, 9), (done.returncode, done.stdout, done.stderr)


def test_status(mayhem, sleeper, state):
    assert mayhem("inject", "proc.pause", "--pid", sleeper.pid, "--for", "50ms").returncode == 0
    done = mayhem("status")
    assert done.returncode == 0 and only_lease(state).id in done.stdout and str(state) in done.stdout, done.stdout
    assert read_json(mayhem("status", "--json"))["v"] == 1


# -- terminals


def on_terminal(argv, env, until, timeout=10):
    """Runs argv on a terminal of its own; what it printed, and its exit code."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(argv[0], argv, env)
    text = b""
    end = time.monotonic() + timeout
    while time.monotonic() < end and not until(text.decode(errors="replace")):
        if select.select([fd], [], [], 0.1)[0]:
            try:
                text += os.read(fd, 65536)
            except OSError:
                break
    return pid, fd, text.decode(errors="replace")


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_gets_colour_and_a_live_line(state, sleeper, no_color):
    env = {**os.environ, "MAYHEM_AGENT": agent_path(), "MAYHEM_STATE_DIR": str(state), "TERM": "xterm"}
    env.pop("NO_COLOR", None)
    if no_color:
        env["NO_COLOR"] = "1"
    argv = [mayhem_path(), "inject", "proc.pause", "--pid", str(sleeper.pid), "--for", "60s"]
    pid, fd, text = on_terminal(argv, env, lambda t: "Ctrl-C undoes it" in t and "until" in t)
    assert "until" in text and sleeper.stopped, text
    os.write(fd, b"\x03")  # as typed
    rest = b""
    while True:
        try:
            rest += os.read(fd, 65536)
        except OSError:
            break
    os.close(fd)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 6 and not sleeper.stopped
    assert (b"\033[31merror:" in rest) is not no_color, rest


# -- other users, sudo, ssh


def test_as_an_ordinary_user(user, nothing_left):
    state = StateDir(user)
    nothing_left.append(state)
    with Sleeper(prefix=user.prefix) as own, Sleeper() as foreign:
        kw = {"state": state, "prefix": user.prefix, "env": user.env}
        answer = read_json(run_mayhem("inject", "proc.pause", "--pid", own.pid, "--for", "100ms", "--json", **kw))
        assert answer["lease"]["state"] == "released"
        done = run_mayhem("inject", "proc.pause", "--pid", foreign.pid, **kw)
        assert done.returncode in (5, 6) and not foreign.stopped, (done.returncode, done.stderr)
        assert run_mayhem("doctor", **kw).returncode == 0


def test_sudo_on_this_host(as_root, sleeper, state, tmp_path):
    """The words that are run, by a sudo of the test's own."""
    log = tmp_path / "words"
    sudo = tmp_path / "sudo"
    sudo.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >>{log}\nshift 2\nexec env -u MAYHEM_STATE_DIR \"$@\"\n")
    sudo.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = run_mayhem("--sudo", "inject", "proc.pause", "--pid", sleeper.pid, "--for", "50ms", state=state, env=env)
    assert done.returncode == 0, done.stderr
    assert log.read_text().splitlines() == ["-n", "--", agent_path(), "serve", "--state", str(state)]
    assert only_lease(state).state == "released"


def test_sudo_that_refuses(mayhem, sleeper, tmp_path):
    sudo = tmp_path / "sudo"
    sudo.write_text("#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    sudo.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "USER": "alice"}
    text = read_error(mayhem("--sudo", "inject", "proc.pause", "--pid", sleeper.pid, env=env), 8, "agent.sudo")
    assert "alice ALL=(root) NOPASSWD:" in text


# Does what sshd does with the words: joins them with blanks and gives them to a shell.
FAKE_SSH = r"""#!/bin/sh
printf '%s\n' "$@" >{log}
while [ "$1" != -- ]; do shift; done
shift
exec sh -c "$*"
"""


@pytest.fixture
def fake_ssh(tmp_path):
    path = tmp_path / "bin"
    path.mkdir()
    log = tmp_path / "words"
    (path / "ssh").write_text(FAKE_SSH.format(log=log))
    (path / "ssh").chmod(0o755)
    os.symlink(agent_path(), path / "mayhem-agent")
    return {"PATH": f"{path}:{os.environ['PATH']}"}, log


def test_words_sent_by_ssh(mayhem, sleeper, fake_ssh):
    env, log = fake_ssh
    argv = ["--host", "ssh:web1", "inject", "proc.pause", "--pid", sleeper.pid, "--for", "50ms"]
    done = mayhem(*argv, env={**env, "XDG_RUNTIME_DIR": ""})
    assert done.returncode == 0, done.stderr
    assert log.read_text().splitlines() == ["-o", "BatchMode=yes", "web1", "--", "mayhem-agent", "serve"]


def test_one_connection_for_many_commands(mayhem, fake_ssh):
    env, log = fake_ssh
    with tempfile.TemporaryDirectory(prefix="run-", dir="/tmp") as runtime:
        done = mayhem("--host", "ssh:alice@web1", "--sudo", "--agent", "/opt/m/mayhem-agent", "leases",
                      env={**env, "XDG_RUNTIME_DIR": runtime})
        assert done.returncode == 8  # there is none at that path
        assert log.read_text().splitlines() == [
            "-o", "BatchMode=yes", "-o", "ControlMaster=auto", "-o", "ControlPersist=600", "-o",
            f"ControlPath={runtime}/mayhem/%C", "alice@web1", "--", "sudo", "-n", "--", "/opt/m/mayhem-agent", "serve"]
        assert os.stat(f"{runtime}/mayhem").st_mode & 0o777 == 0o700


@pytest.mark.parametrize("words", [
    ["halt", "--reason", "two words"], ["halt", "--reason", "$(id)"], ["halt", "--reason", "a;b"],
    ["--agent", "/opt/my agent", "leases"], ["halt", "--reason", "a'b"], ["halt", "--reason", "`id`"]])
def test_words_that_a_shell_would_read_are_not_sent(mayhem, fake_ssh, words):
    env, log = fake_ssh
    read_error(mayhem("--host", "ssh:web1", *words, env=env), 2, "transport.word")
    assert not log.exists()


def test_the_state_directory_is_not_sent_to_other_hosts(mayhem, fake_ssh):
    env, log = fake_ssh
    mayhem("--host", "ssh:web1", "--state", "/somewhere", "recover", "--plan", env=env)
    assert "--state" not in log.read_text().splitlines()


def test_what_a_detached_fault_says_about_its_place(mayhem, sleeper, fake_ssh, state):
    env, _ = fake_ssh
    done = mayhem("--host", "ssh:web1", "inject", "proc.pause", "--pid", sleeper.pid, "--for", "30s", "--detach", env=env)
    assert done.returncode == 0, done.stderr
    command = re.search(r"^sooner: (.*)$", done.stdout, re.MULTILINE).group(1).split()
    assert command == ["mayhem", "--host", "ssh:web1", "release", only_lease(state).id]
    assert mayhem(*command[1:], env=env).returncode == 0
    assert not sleeper.stopped


def test_a_host_that_does_not_answer(mayhem):
    if not os.access("/usr/bin/ssh", os.X_OK):
        pytest.skip("no ssh here")
    read_error(mayhem("--host", "ssh:nowhere.invalid", "leases", timeout=60), 8, "agent.unreachable")


def test_the_agents_own_words_are_the_same(state):
    """What the command line runs is what the agent's own command line does."""
    assert run_agent("version").returncode == 0
    assert run_agent("recover", "--json", state=state).returncode == 0
