"""Command policies of a session: refusals name the command, and nothing of the line runs."""

import pytest

from helpers import Box, metric, read_events
from paddock_testing.server import check_error


@pytest.fixture(scope="module")
def restricted(api):
    made = api.post("/v1/sandboxes", json={"profile": "restricted"})
    assert made.status == 201, made
    yield Box(api, made.json()["id"])
    api.delete(f"/v1/sandboxes/{made.json()['id']}")


def test_the_profile_brings_its_policy(restricted):
    info = restricted.get()
    assert info["profile"] == "restricted" and info["policy"] == "restricted"
    made = restricted.api.post("/v1/sandboxes", json={"template": "restricted"}).json()
    assert made["profile"] == "restricted" and made["policy"] == "restricted"
    restricted.api.delete(f"/v1/sandboxes/{made['id']}")


@pytest.mark.parametrize("command,name", [
    ("rm -rf /workspace/x", "rm"), ("cat a | rm b", "rm"), ("ls; (mv a b)", "mv"),
    ("echo $(curl http://x)", "curl"), ("echo `wget x`", "wget"), ("A=1 dd if=/dev/zero", "dd"),
    ("env X=1 ssh host", "ssh"), ("find . | xargs rm", "rm"), ("find . -exec rm {} ;", "rm"),
    ("sudo ls", "sudo"), ("ls && if true; then rm x; fi", "rm"), ("r\\m x", "rm"),
    ("$'\\x72m' x", "rm"), ("/bin/rm x", "/bin/rm"), ("bash -c 'rm x'", "rm"),
    ("touch /workspace/mark; rm x", "touch"), ("echo <(rm x)", "rm"), ("nohup rm x", "rm"),
    ("vi x", "vi"), ("git status", "git")])
def test_refused_commands_are_named(restricted, command, name):
    error = check_error(restricted.ask(command), 403, "policy")
    assert f"'{name}'" in error["message"], error
    answer = restricted.api.post(f"{restricted.base}/processes", json={"command": command})
    assert f"'{name}'" in check_error(answer, 403, "policy")["message"]


@pytest.mark.parametrize("command", [
    "$cmd x", "$(echo rm) x", "r? x", "echo hi | sh", "eval \"$x\"", "source x", "alias ls=rm",
    "echo (", "cat <<E", "python3 -c 1 | bash"])
def test_what_cannot_be_judged_is_refused(restricted, command):
    check_error(restricted.ask(command), 403, "policy")


def test_nothing_of_a_refused_line_runs(restricted):
    check_error(restricted.ask("echo x > /workspace/mark; rm y"), 403, "policy")
    result = restricted.exec("ls /workspace")
    assert result["stdout"] == "" and result["exit_code"] == 0


def test_allowed_commands_run(restricted):
    out = restricted.out("for i in 3 1 2; do echo $i; done | sort | head -2 | tr '\\n' ' '")
    assert out == "1 2 "
    assert restricted.out("echo '{\"a\":[1,2]}' > f; python3 -c 'print(6*7)'; "
                          "find . -type f -exec grep -c a {} +").split() == ["42", "1"]


def test_argv_is_judged_too(restricted):
    assert "'rm'" in check_error(restricted.ask(argv=["rm", "x"]), 403, "policy")["message"]
    check_error(restricted.ask(argv=["env", "rm", "x"]), 403, "policy")
    check_error(restricted.ask(argv=["bash", "-c", "rm x"]), 403, "policy")
    assert restricted.exec(argv=["echo", "rm"])["stdout"] == "rm\n"


def test_variables_that_bash_runs_are_refused(restricted):
    for name in ("BASH_ENV", "PS4", "PROMPT_COMMAND"):
        check_error(restricted.ask("echo x", env={name: "$(rm x)"}), 403, "policy", says=name)
        check_error(restricted.api.put(f"{restricted.base}/env", json={"env": {name: "x"}}), 403,
                    "policy")
    assert restricted.out("echo $A", env={"A": "1"}) == "1\n"


def test_the_denied_programs_are_not_there_either(restricted):
    """The wall behind the rail: python3 may start what it likes, but finds nothing."""
    code = ("import shutil; print([n for n in 'rm mv dd sudo curl wget ssh'.split() "
            "if shutil.which(n)])")
    assert restricted.exec(argv=["python3", "-c", code])["stdout"] == "[]\n"
    # And what is written cannot be run.
    code = ("import os, shutil, subprocess\nopen('/workspace/p', 'w').write('#!/bin/sh\\necho ran')\n"
            "os.chmod('/workspace/p', 0o755)\ntry:\n    subprocess.run(['/workspace/p'])\n"
            "except PermissionError: print('refused')")
    assert restricted.exec(argv=["python3", "-c", code])["stdout"] == "refused\n"


def test_lists_of_ones_own(api, make_sandbox):
    allow = Box(api, make_sandbox(policy={"mode": "allow", "commands": ["ls", "wc"]}))
    assert allow.get()["policy"] == {"mode": "allow", "commands": ["ls", "wc"]}
    assert allow.out("ls / | wc -l").strip().isdigit()
    error = check_error(allow.ask("cat x"), 403, "policy")
    assert "'cat'" in error["message"] and "ls" in error["message"]
    deny = Box(api, make_sandbox(policy={"mode": "deny", "commands": ["git", "rm"]}))
    assert deny.out("touch a; mv a b; ls") == "b\n"
    check_error(deny.ask("rm b"), 403, "policy", says="'rm'")
    check_error(deny.ask("cd /; command /usr/bin/git x"), 403, "policy", says="'git'")


def test_refusals_are_counted_and_audited(restricted):
    api = restricted.api
    before = metric(api, "paddock_limit_violations_total", limit="policy")
    check_error(restricted.ask("rm secret-file"), 403, "policy")
    assert metric(api, "paddock_limit_violations_total", limit="policy") == before + 1
    events = api.get(f"{restricted.base}/events").json()["events"]
    assert events[-1]["action"] == "exec" and events[-1]["result"] == "policy"


def test_as_events_a_refusal_is_an_error_as_well(restricted):
    answer = restricted.api.stream("POST", f"{restricted.base}/exec", json={"command": "rm x"},
                                   headers={"Accept": "text/event-stream"})
    assert answer.status == 403
    assert b'"policy"' in answer.read()
    answer.close()
    answer = restricted.api.stream("POST", f"{restricted.base}/exec", json={"command": "echo x"},
                                   headers={"Accept": "text/event-stream"})
    assert [e.name for e in read_events(answer)] == ["stdout", "exit"]
    answer.close()
