"""The examples of README.md, docs/api.md and docs/cli.md do what they show."""

import re
import time
from pathlib import Path

import pytest

from paddock_testing import run as paddock

from pages import Example, Shell, examples, matches

TOP = Path(__file__).resolve().parents[2]
ADDRESS = "127.0.0.1:8090"

# The name of a key stands for one; the tests' server has its own.
SETTING_A_KEY = re.compile(r"export PADDOCK_API_KEY=e2b_\.\.\.")
# Numbers of another machine, or those of processes.
VAGUE = re.compile(r"run --json|paddock port \"\$id\"$|text/event-stream")
# Goes on until somebody ends it: it must have something to say and no error.
ENDLESS = re.compile(r"follow=true|files/watch")
STATUS = {"build/paddock run --timeout 500ms -- sleep 60": 124}


@pytest.fixture
def shell(checkout, environment):
    s = Shell(checkout, environment)
    yield s
    s.close()


def page(name, server):
    text = (TOP / name).read_text(encoding="utf-8")
    return text.replace(ADDRESS, f"{server.host}:{server.port}")


def run_until_it_listens(shell, command, fits):
    """A server that an example has just started needs a moment, in which a reader would look on."""
    deadline = time.monotonic() + paddock.seconds(15)
    while True:
        status, said = shell.run(command, limit=180)
        waits = "nothing listens on port" in said or ("paddock port" in command and not fits(said))
        if not waits or time.monotonic() > deadline:
            return status, said
        time.sleep(0.2)


def play(shell, found):
    """Types every example; all that went wrong, with the page's line."""
    wrong = []
    for example in found:
        if SETTING_A_KEY.match(example.command):
            continue
        command = example.command
        fits = lambda text, e=example: not e.shown or matches(
            e.shown, text, bool(VAGUE.search(e.command)))
        if ENDLESS.search(command):
            for patience in (2, 10, 40):  # the others for a busy machine
                status, said = shell.run(f"{{ {command}; }} & __p=$!; sleep {patience}; kill $__p; "
                                         "wait $__p; (exit 0)", limit=180)
                if fits(said):
                    break
        else:
            status, said = run_until_it_listens(shell, command, fits)
        want = STATUS.get(example.command, 0)
        if status != want:
            wrong.append(f"line {example.line}: {example.command}\nstatus {status}, not {want}: {said}")
        elif '{"error":' in said:
            wrong.append(f"line {example.line}: {example.command}\n{said}")
        elif not fits(said):
            wrong.append(f"line {example.line}: {example.command}\nshown:\n"
                         + "\n".join(example.shown) + f"\nsaid:\n{said}")
    return wrong


def test_readme(shell, server):
    found = examples(page("README.md", server))
    assert len(found) > 10
    wrong = play(shell, found)
    assert not wrong, "\n\n".join(wrong)


def test_api_page(shell, server):
    text = page("docs/api.md", server)
    setup = re.search(r"^    export PADDOCK_API_KEY=.*?\n((?:    .*\n)+)", text, re.M)
    assert setup, "the block that names U, api and json is gone"
    status, said = shell.run("\n".join(l[4:] for l in setup[1].splitlines()))
    assert status == 0, said
    found = examples(text)
    assert len(found) > 12
    # The first sandbox is deleted at the end of its section; the next sections have one of their own.
    at = next(i for i, e in enumerate(found) if e.command.startswith("api -X DELETE"))
    wrong = play(shell, found[:at + 1])
    again = found[0]
    wrong += play(shell, [Example(again.line, again.command, [])] + found[at + 1:])
    assert not wrong, "\n\n".join(wrong)


def cli_commands():
    """The commands of the table in docs/cli.md, one by one."""
    text = (TOP / "docs/cli.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`paddock .*?) \|", text, re.M)
    return [c for row in rows for c in re.findall(r"`(paddock [^`]*)`", row)]


# Needs a terminal, a model, or a client that speaks to it; tests/api and the Python package's tests have them.
INTERACTIVE = ("paddock shell", "paddock mcp", "paddock top", "paddock agent")


def test_cli_page(shell):
    shell.run('paddock() { build/paddock "$@"; }; touch data.csv app.py Makefile; echo "6 * 7" >cell.py; echo sk-123456789 >key.txt; '
              'printf "all:\\n\\tsleep 30\\n" >Makefile')
    commands = cli_commands()
    assert len(commands) > 12
    status, sandbox = shell.run("build/paddock create")
    assert status == 0, sandbox
    sandbox = sandbox.strip()
    shell.run(f"paddock cp app.py {sandbox}:; paddock cp Makefile {sandbox}:; "
              f"paddock exec {sandbox} -- mkdir -p src out; "
              # Where the page's `cd src` leads.
              f"paddock cp Makefile {sandbox}:src/")
    pid = ""
    wrong = []
    for command in commands:
        if command.startswith(INTERACTIVE):
            continue
        command = command.replace("ID...", "ID").replace(" [--profile dev] [--memory 1G] ...",
                                                         " --profile dev --memory 1G")
        command = re.sub(r"\bID\b", sandbox, command)
        command = re.sub(r"\bPID\b", pid, command)
        if "logs -f" in command:
            command = f"{{ {command}; }} & __p=$!; sleep 1; kill $__p; wait $__p; (exit 0)"
        status, said = shell.run(command)
        if command.startswith("paddock exec -d"):
            pid = said.strip()
        if status:
            wrong.append(f"{command}\nstatus {status}: {said}")
    # A snapshot outlives its sandbox and the server; the page's `rm` stands for any.
    status, said = shell.run("paddock snapshot rm before-tests")
    assert status == 0, said
    assert not wrong, "\n\n".join(wrong)


def test_cli_examples(shell, server):
    shell.run('paddock() { build/paddock "$@"; }; echo a,b >in.csv; id=$(paddock create)')
    found = examples(page("docs/cli.md", server))
    assert len(found) >= 5
    wrong = play(shell, found)
    assert not wrong, "\n\n".join(wrong)


def test_the_player_can_fail():
    text = "    $ echo a\n    a\n    $ echo b \\\n        c\n    b ... d\n\ntext\n\n    no example\n"
    found = examples(text)
    assert [(e.command, e.shown) for e in found] == [
        ("echo a", ["a"]), ("echo b \\\n    c", ["b ... d"])]
    assert matches(["a"], "a\n") and not matches(["a"], "b\n") and not matches(["a"], "a\nb\n")
    assert matches(["b ... d"], "b c d") and not matches(["b ... d"], "b c")
    assert matches(['{"a":1.5,', ' "b":2}'], '{"a":2,"b":33}', vague=True)
    assert not matches(['{"a":1}'], '{"c":1}', vague=True)
