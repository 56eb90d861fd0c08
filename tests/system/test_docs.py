"""What is written down agrees with what is built: reason codes, options, methods, examples."""

import json
import re
import shlex
import subprocess

import pytest

from mayhem_test import Sleeper, run_mayhem
from mayhem_test.sandbox import ROOT

SRC = ROOT / "src"
TABLE = SRC / "cmd/reason.c"
PROTOCOL = (ROOT / "docs/protocol.md").read_text()

STRING = r'"((?:[^"\\\n]|\\.)*)"'


def sources():
    return sorted(p for p in SRC.rglob("*.c") if p != TABLE)


def reasons():
    done = run_mayhem("explain", "--json")
    return {r["code"]: r for r in json.loads(done.stdout)["reasons"]}


def codes_set_in_sources():
    """{code: file} of every reason that is written as a literal where an error is made."""
    found = {}
    for path in sources():
        text = path.read_text()
        for match in re.finditer(rf"\berr_set\(\s*[^,\"]+,\s*{STRING}", text):
            found[match.group(1)] = path.name
        for match in re.finditer(rf"^#define \w*CODE\w* {STRING}", text, re.MULTILINE):
            found[match.group(1)] = path.name
    return found


def documented_reasons():
    section = PROTOCOL.partition("## Reason codes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (\d+) \| ([AC]+) \| (.+) \|$", section, re.MULTILINE)
    return {code: (int(code_exit), who) for code, code_exit, who, _ in rows}


def test_every_reason_that_is_given_is_explained():
    known = reasons()
    missing = {code: where for code, where in codes_set_in_sources().items() if code not in known}
    assert not missing


# For faults whose undo outlives a boot; the catalogue has none yet.
NOT_GIVEN_YET = {"store.volatile"}


def test_every_reason_that_is_explained_is_given():
    text = "\n".join(p.read_text() for p in sources())
    literals = set(re.findall(STRING, text))
    assert not [code for code in reasons() if code not in literals | NOT_GIVEN_YET]


def test_the_protocols_document_lists_every_reason():
    documented = documented_reasons()
    assert {code: r["exit"] for code, r in reasons().items()} == {c: e for c, (e, _) in documented.items()}


def test_the_protocols_document_says_who_gives_a_reason():
    house = "\n".join(p.read_text() for p in sources() if "cmd" not in p.parts or "agent" in p.parts)
    agent_only = {code for code, (_, who) in documented_reasons().items() if who == "A"}
    controller = re.compile(r"src/(cmd/[^/]+|rpc/(client|oneshot|transport))\.c$")
    mine = "\n".join(p.read_text() for p in sources() if controller.search(str(p)))
    for code in agent_only - NOT_GIVEN_YET:
        assert f'"{code}"' in house, code
    for code, (_, who) in documented_reasons().items():
        if who == "C":
            assert f'"{code}"' in mine, code


def methods_of_the_agent():
    text = (SRC / "rpc/agent_methods.c").read_text()
    return set(re.findall(r'\{"([a-z.]+)", \w+, (?:true|false),', text))


def test_the_protocols_document_lists_every_method():
    table = PROTOCOL.partition("## Methods")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `([a-z.]+)`", table, re.MULTILINE))
    assert documented == methods_of_the_agent() != set()


def documented_result(method):
    row = re.search(rf"^\| `{re.escape(method)}` \|.*\| (.*) \|$", PROTOCOL, re.MULTILINE).group(1)
    return set(re.findall(r"`(\w+)`", re.sub(r"[{\[].*?[}\]]", "", row)))


def test_the_protocols_document_shows_what_is_answered(agents, state, sleeper):
    agent = agents(state, handshake=False)
    for method in ("handshake", "capabilities.query", "task.status", "lease.list", "health.ping"):
        keys = documented_result(method)
        if method == "capabilities.query":
            keys -= {"executable", "reason"}  # of its entries
        assert set(agent.request(method)) == keys, method
    lease = agent.inject(sleeper.pid)
    shape = PROTOCOL.partition("    lease     {")[2].partition("\n\n")[0]
    assert set(lease) == set(re.findall(r'"(\w+)":', re.sub(r"\{[^{}]*\}", "", re.sub(r"\{[^{}]*\}", "", shape))))
    assert set(agent.release(lease["id"])) == documented_result("lease.release")


def test_the_manual_names_every_command_and_option():
    manual = (ROOT / "man/mayhem.1").read_text()
    for command in json.loads(run_mayhem("help", "--json").stdout)["commands"]:
        assert re.search(rf"\b{command['name']}\b", manual), command["name"]
        for option in command["options"]:
            assert f"Fl -{option['name']}" in manual, option["name"]
    text = run_mayhem("help").stdout
    for option in re.findall(r"--([a-z-]+)", text.partition("Everywhere:")[2]):
        assert f"Fl -{option}" in manual or option == "podman", option


@pytest.mark.parametrize("page", ["mayhem.1", "mayhem-agent.8"])
def test_the_manuals_are_well_formed(page):
    try:
        done = subprocess.run(["groff", "-mdoc", "-Tutf8", "-ww", "-z", ROOT / "man" / page], capture_output=True,
                              text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no groff")
    assert done.returncode == 0 and done.stderr == ""


def examples():
    done = run_mayhem("help", "--json")
    return [(c["name"], e) for c in json.loads(done.stdout)["commands"] for e in c["examples"]]


def test_every_example_of_the_help_runs(state):
    """As it stands, but for the pid and the name of a lease that is there."""
    shown = examples()
    assert {name for name, _ in shown} == {c["name"] for c in
                                           json.loads(run_mayhem("help", "--json").stdout)["commands"]}
    for name, example in shown:
        argv = shlex.split(example)
        assert argv[0] == "mayhem"
        with Sleeper() as target:
            lease = None
            if "l-00000001" in argv:
                done = run_mayhem("inject", "proc.pause", "--pid", target.pid, "--for", "60s", "--detach", "--json",
                                  state=state)
                lease = json.loads(done.stdout)["lease"]["id"]
            argv = [str(target.pid) if word == "4711" else lease if word == "l-00000001" else word for word in argv]
            done = run_mayhem(*argv[1:], state=state)
            assert done.returncode == 0, (example, done.stdout, done.stderr)
            if name == "inject" and "--detach" in argv:
                held = json.loads(run_mayhem("leases", "--json", state=state).stdout)["leases"]
                assert run_mayhem("release", held[0]["id"], state=state).returncode == 0
        if name == "halt":
            assert run_mayhem("resume", state=state).returncode == 0
