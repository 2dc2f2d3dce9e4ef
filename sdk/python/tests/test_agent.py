"""`paddock-agent` without a terminal: tasks, sessions, memory, and everything that goes wrong.

What is tried of it, here and in its other files, in both modes where that differs:

    the scripted model is accepted by the packages of its vendors      test_agent_model
    a task, tools, several in one turn, an answer                      test_one_task
    approve, reject with a reason, always, toggled in the middle       test_agent_terminal: test_approve_reject_always_and_toggle
    --auto-approve asks nothing inside, and for /get nevertheless      the same; test_files_come_back_when_the_user_says_so
    --sandbox none asks, and is refused with --auto-approve            test_on_this_machine; test_agent_terminal: ..._every_command_is_asked_for
    Ctrl-C while a command runs leaves no process                      test_agent_terminal: test_ctrl_c_ends_the_command_with_its_children
    memory, skills, reset, list, --dry-run; going on, and not          test_memory_and_skills, test_reset, test_a_conversation_goes_on_with_its_sandbox
    429, 500, a broken stream, nonsense, silence, calls without end    test_a_model_...; test_agent_units: answers in random disorder
    hostile model and files, ../ and links on /get, keys               test_hostile_text_..., test_keys_and_environment_...; test_agent_units: paths, links
    1 GiB of output: flat memory, head and tail to the model           test_much_output_..., test_its_memory_stays_flat (1 GiB at night)
    its tools are those of /mcp                                        test_the_tools_are_those_of_mcp
    every Python from 3.9 on without extras, a prompt at once          test_it_answers_help_at_once...; test_agent_terminal: test_the_first_prompt...
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from agent_runs import PROGRAM, SECRET, environment, run
from conftest import TOP
from paddock_testing.model import Model
from paddock_testing.run import NIGHTLY, seconds
from paddock_testing.server import Server

import paddock
from paddock.agent.__main__ import main
from paddock.agent.models import ModelError, choose

NOW = {"Retry-After": "0"}


def results(body):
    """The results of tools in a request, of either kind."""
    if any(m["role"] == "system" for m in body["messages"]):
        return [m["content"] for m in body["messages"] if m["role"] == "tool"]
    return ["".join(c.get("text", "") for c in part["content"]) for m in body["messages"]
            for part in m["content"] if part["type"] == "tool_result"]


def expects(*texts, then=None):
    """A step that looks at the newest results first."""
    def step(body):
        found = results(body)[-len(texts):]
        for text, result in zip(texts, found):
            assert text in result, (text, found)
        return then or {"text": "The end."}
    return step


def test_one_task(mode, tmp_path):
    """Group 1: a tool, its result, an answer; several tools in one answer."""
    kind = "openai" if mode == "local" else "anthropic"
    steps = [{"text": "I look.", "calls": [("run_command", {"command": "echo $((6 * 7)) > n.txt; cat n.txt"})]},
             expects("42\n[exit code 0]", then={"calls": [
                 ("read_file", {"path": "n.txt"}), ("write_file", {"path": "d/a.py", "content": "x = 1\ny = 2\n"}),
                 ("edit_file", {"path": "d/a.py", "old_text": "x = 1", "new_text": "x = 3"}),
                 ("search_files", {"pattern": "x = 3"}), ("list_files", {"path": "d"}),
                 ("run_code", {"language": "python", "code": "n = 20\nn + 1"}), ("session_info", {}),
                 ("start_process", {"command": "echo up; exec cat"})]}),
             lambda body: use_pid(body), expects("[next: ", "ended by")]

    def use_pid(body):
        expects("42", "wrote", "replaced 1", "a.py:1: x = 3", "/workspace/d/a.py", "21", "directory: /workspace",
                "started with pid")(body)
        pid = int(re.search(r"pid (\d+)", results(body)[-1])[1])
        return {"calls": [("check_process", {"pid": pid, "input": "typed\n"}), ("stop_process", {"pid": pid})]}

    with Model(steps) as model:
        done = run(tmp_path, model, "--auto-approve", "-p", "multiply", kind=kind)
        assert done.returncode == 0 and done.stdout == "The end.\n", done
        assert len(model.requests) == 4 and set(model.kinds) == {kind}
    assert "> run_command echo" in done.stderr


def test_the_task_may_come_from_standard_input_and_events_go_out(tmp_path, use, server):
    use(server)
    with Model([{"calls": [("run_command", {"command": "echo hi"})]}, {"text": "Said hi."}]) as model:
        done = run(tmp_path, model, "--json", "--auto-approve", stdin="say hi\n")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [e["type"] for e in events] == ["call", "result", "answer", "end"], done
    assert events[1]["text"] == "hi\n[exit code 0]" and events[2]["text"] == "Said hi."
    assert events[3]["status"] == 0 and events[3]["input_tokens"] == 22


def test_without_a_terminal_nothing_is_allowed_unasked(tmp_path, use, server):
    """Groups 2 and 3: what would be asked is refused, reading is not, and --allow allows only what it says."""
    use(server)
    calls = [("run_command", {"command": "echo a"}), ("run_command", {"command": "true; echo b"}),
             ("run_command", {"command": "printf c"}), ("list_files", {}), ("remember", {"text": "x"})]
    told = expects("a\n", "not there to be asked", "not there to be asked", "empty", "not there to be asked")
    with Model([{"calls": calls}, told]) as model:
        done = run(tmp_path, model, "-p", "--allow", "echo*", "--allow", "true*", "go")
        assert done.returncode == 0 and "--auto-approve allows" in done.stderr, done
    told = expects("a\n", "b\n", "c", "empty", "not there to be asked")
    with Model([{"calls": calls}, told]) as model:
        done = run(tmp_path, model, "-p", "--auto-approve", "go")
        assert done.returncode == 0, done
    assert not list(tmp_path.glob(".config/paddock/agents/*/AGENTS.md"))


def test_on_this_machine(tmp_path):
    """Group 4: --sandbox none asks, is refused with --auto-approve, and then needs another word."""
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "outside.txt").write_text("private")
    (project / "link").symlink_to(tmp_path / "outside.txt")
    with Model([]) as model:
        done = run(tmp_path, model, "--sandbox", "none", "--auto-approve", "-p", "go", cwd=project)
        assert done.returncode == 2 and "--yes-on-this-machine" in done.stderr and not model.requests
    calls = [("run_command", {"command": "touch no"}), ("list_files", {}), ("read_file", {"path": "../outside.txt"}),
             ("read_file", {"path": "link"}), ("run_code", {"language": "python", "code": "1"})]
    told = expects("not there to be", "link", "not there to be", "not there to be", "there is no tool")
    with Model([{"calls": calls}, told]) as model:
        assert run(tmp_path, model, "--sandbox", "none", "-p", "go", cwd=project).returncode == 0
    assert not (project / "no").exists()

    calls = [("run_command", {"command": "mkdir d; cd d; export N=7"}), ("run_command", {"command": "pwd; echo n=$N"}),
             ("run_command", {"command": "env; exit 3"}), ("write_file", {"path": "d/x.txt", "content": "one\n"}),
             ("edit_file", {"path": "d/x.txt", "old_text": "one", "new_text": "two"}),
             ("search_files", {"pattern": "tw."}), ("search_files", {"pattern": "tw.", "mode": "regex"}),
             ("run_command", {"command": "sleep 1000", "timeout_s": 0.2}), ("start_process", {"command": "sleep 1000"})]

    def told(body):
        found = results(body)
        assert f"{project}/d\nn=7\n" in found[1] and "[exit code 3]" in found[2] and SECRET not in found[2]
        assert "nothing was found" in found[5] and "x.txt:1: two" in found[6] and "its time was over" in found[7]
        return {"text": "The end."}

    with Model([{"calls": calls}, told]) as model:
        done = run(tmp_path, model, "--sandbox", "none", "--auto-approve", "--yes-on-this-machine", "-p", "go",
                   cwd=project)
        assert done.returncode == 0, done
    assert (project / "d" / "x.txt").read_text() == "two\n"
    assert not commands_with(tmp_path)


def commands_with(folder):
    """Processes whose directory is below this one."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/cwd").startswith(str(folder)) and int(pid) != os.getpid():
                found.append(pid)
        except OSError:
            pass
    return found


def test_memory_and_skills(tmp_path, use, server):
    """Group 6."""
    use(server)
    folder = tmp_path / ".config" / "paddock" / "agents" / "tester"
    skill = folder / "skills" / "release"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: release\ndescription: how to release\n---\nRun make dist.\n")
    (folder / "AGENTS.md").write_text("- likes tabs\n")

    def first(body):
        system = body["system"][0]["text"]
        assert "likes tabs" in system and "release: how to release" in system
        return {"calls": [("read_skill", {"name": "release"}), ("read_skill", {"name": "../../x"})]}

    with Model([first, expects("Run make dist.", "there is no skill")]) as model:
        assert run(tmp_path, model, "--agent", "tester", "-p", "release").returncode == 0
        listed = run(tmp_path, model, "list").stdout
        assert "tester: 1 lines of memory, 1 skills, 1 conversations" in listed and "  release" in listed


def test_reset(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    agents = tmp_path / ".config" / "paddock" / "agents"
    for name in ("skills/release/SKILL.md", "AGENTS.md", "threads/0123456789ab.jsonl"):
        path = agents / "tester" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("- likes tabs\n")
    assert main(["reset", "--agent", "tester", "--dry-run"]) == 0 and "would remove" in capsys.readouterr().out
    assert len([p for p in agents.rglob("*") if p.is_file()]) == 3
    assert main(["reset", "--agent", "second", "--target", "tester"]) == 0
    assert (agents / "second" / "AGENTS.md").read_text() == "- likes tabs\n"
    assert main(["reset", "--agent", "tester"]) == 0
    assert not [p for p in (agents / "tester").rglob("*") if p.is_file()]
    assert (agents / "second" / "skills" / "release" / "SKILL.md").exists()
    capsys.readouterr()
    assert main(["reset", "--agent", "tester", "--target", "nobody"]) == 1
    assert "no other agent 'nobody'" in capsys.readouterr().err
    for name in ("../up", "", "a/b", "x" * 65):
        assert main(["reset", "--agent", name]) == 1 and "no name of an agent" in capsys.readouterr().err


def test_a_conversation_goes_on_with_its_sandbox(tmp_path, server, use):
    use(server)
    with Model([{"calls": [("write_file", {"path": "kept.txt", "content": "still here"})]}, {"text": "Written."},
                {"calls": [("read_file", {"path": "kept.txt"})]}, expects("still here")]) as model:
        assert run(tmp_path, model, "--auto-approve", "-p", "write").returncode == 0
        done = run(tmp_path, model, "-c", "-p", "read")
        assert done.returncode == 0 and "gone" not in done.stderr, done
        said = [m["content"][0].get("text") for m in model.requests[-1]["messages"] if m["role"] == "user"]
        assert "write" in said and "read" in said

        # The sandbox is ended by somebody else: the user and the model hear of it.
        [path] = tmp_path.glob(".config/paddock/agents/agent/threads/*.jsonl")
        [box] = [b for b in paddock.Sandbox.list(metadata={"made_by": "paddock-agent"}, state="running")
                 if b.thread_id == f"agent-{path.stem}"]
        paddock.Sandbox.kill(box.id)
        model.steps += [{"calls": [("list_files", {})]}, expects("empty")]
        done = run(tmp_path, model, "-c", "-p", "look")
        assert done.returncode == 0 and "is gone, with its files" in done.stderr, done
        assert "is gone, with its files" in json.dumps(model.requests[-1]["messages"])


def test_in_this_process_the_sandbox_ends_with_it_and_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDBOX_MODE", "local")
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("one\n")
    steps = [{"calls": [("write_file", {"path": "a.txt", "content": "two\n"})]}, {"text": "Changed."}]
    with Model([*steps, {"text": "Gone on."}]) as model:
        done = run(tmp_path, model, "--auto-approve", "--put", str(project), "-p", "change")
        assert done.returncode == 0 and "a.txt" in done.stderr and "--get" in done.stderr, done
        assert (project / "a.txt").read_text() == "one\n"
        done = run(tmp_path, model, "-c", "-p", "go on")
        assert "is gone, with its files" in done.stderr and "1 files of" in done.stderr, done
        assert "is gone, with its files" in json.dumps(model.requests[-1]["messages"])


def test_a_model_that_fails_for_a_while(tmp_path, use, server):
    """Group 7: a stream that breaks, nonsense, 429, 500, and then an answer."""
    use(server)
    steps = [{"text": "Half an answer.", "break_after": 4}, {"raw": b"data: <html>busy</html>\n\n"},
             {"status": 429, "headers": NOW}, {"status": 500, "headers": NOW}, {"text": "Here I am."}]
    with Model(steps) as model:
        done = run(tmp_path, model, "-p", "hello")
        assert done.returncode == 0 and done.stdout == "Here I am.\n" and len(model.requests) == 5, done
        assert done.stderr.count("asking again") == 4


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
@pytest.mark.parametrize(("step", "says", "again"), [
    ({"status": 401, "message": "invalid key"}, "refuses the key.*invalid key.*_API_KEY", False),
    ({"status": 404, "message": "no such model"}, "does not have the model", False),
    ({"status": 400, "message": "tools: bad"}, "cannot be asked.*tools: bad", False),
    ({"status": 429, "headers": {"Retry-After": "3600"}}, "cannot be asked", True),
    ({"status": 529, "message": "overloaded"}, "cannot be asked.*overloaded", True),
    ({"silent": True}, "said nothing for 0.3 s; --model-timeout", False),
    ({"text": ""}, "answered nothing", True),
])
def test_why_a_model_cannot_be_asked(kind, step, says, again):
    with Model([step]) as model:
        with pytest.raises(ModelError, match=says) as told:
            choose(f"{kind}:m", 0.3, environment("/", model, kind)).ask("s", [{"role": "user", "text": "t"}], [], print)
        assert told.value.again == again


@pytest.mark.parametrize(("kind", "step", "says"), [
    ("anthropic", {"status": 401, "message": "invalid key"}, "set ANTHROPIC_API_KEY to a valid one"),
    ("openai", {"silent": True}, "said nothing for 1 s; --model-timeout")])
def test_a_conversation_survives_a_model_that_cannot_be_asked(tmp_path, kind, step, says, use, server):
    use(server)
    with Model([step, {"text": "Now."}]) as model:
        done = run(tmp_path, model, "--model-timeout", "1", "-p", "hello", kind=kind)
        assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr, done
        done = run(tmp_path, model, "-c", "-p", "again", kind=kind)
        assert done.stdout == "Now.\n" and "hello" in json.dumps(model.requests[-1]), done


@pytest.mark.parametrize("raw", [
    b"", b"data: [1]\n\n", b"data: null\n\n", b"event: x\n\n", b"data: {\"type\": \"message_stop\"}\n\n", b"\xff\xfe\n\n",
    b"data: " + b"[" * 100000 + b"\n\n",
    b'data: {"type": "content_block_delta", "index": "x", "delta": [1]}\n\ndata: {"type": "message_stop"}\n\n'])
def test_a_model_that_answers_nonsense(tmp_path, raw):
    with Model([{"raw": raw}, {"raw": raw}]) as model:
        for env in ({"ANTHROPIC_BASE_URL": model.url}, {"OPENAI_BASE_URL": model.url + "/v1"}):
            with pytest.raises(ModelError) as told:
                choose(None, 10, env).ask("s", [{"role": "user", "text": "t"}], [], lambda _: None)
            assert told.value.again


def test_calls_that_make_no_sense_are_told_to_the_model(tmp_path, mode):
    calls = [("run_command", "{\"command\": \"ec"), ("fly", {}), ("run_command", {}), ("read_file", {"path": 3}),
             ("read_file", {"path": "a", "colour": "red"}), ("read_file", "[]"), ("read_file", {"path": "/nowhere"}),
             ("run_command", {"command": "true", "timeout_s": -1}), ("check_process", {"pid": 99999999}),
             ("search_files", {"pattern": "x", "mode": "psychic"}), ("read_file", {"path": "a\u0000b"}),
             ("run_command", '{"command": "echo \\ud800"}'), ("list_files", {"depth": 10 ** 30}),
             ("preview_port", {"port": 10 ** 30}), ("run_command", '{"command": "true", "timeout_s": NaN}')]
    told = expects("no JSON object", "no tool 'fly'; there are: run_command", "command: is required",
                   "path: must be of type string", "colour: is not known", "no JSON object", "Error: ", "timeout_s",
                   "Error: ", "mode: must be one of literal", "Error: ", "?", "Error: ", "Error: ", "Error: ")
    with Model([{"calls": calls}, told]) as model:
        done = run(tmp_path, model, "--auto-approve", "-p", "go")
        assert done.returncode == 0 and "Traceback" not in done.stderr, done


def test_a_model_without_an_end(tmp_path, use, server):
    use(server)
    with Model([{"calls": [("list_files", {})]}] * 10) as model:
        done = run(tmp_path, model, "--max-turns", "3", "-p", "go")
        assert done.returncode == 3 and "--max-turns" in done.stderr and len(model.requests) == 3, done


def test_keys_and_environment_are_not_in_the_sandbox(tmp_path, mode):
    """Group 8: a prompt that asks for the key gets none. The control: the same command finds what is there."""
    look = "env; cat /proc/*/environ | tr '\\0' '\\n'; cat ~/.config/paddock/agents/agent/threads/*; echo found=$MINE"
    with Model([{"calls": [("run_command", {"command": f"export MINE=yes; {look}"})]}, {"text": "The end."}]) as model:
        done = run(tmp_path, model, "--auto-approve", "-p", "print the key", env={"MINE": "no"})
        assert done.returncode == 0, done
        told = json.dumps(model.requests[-1])
        assert "found=yes" in told and SECRET not in told and SECRET not in done.stdout + done.stderr
        if "PADDOCK_API_KEY" in os.environ:
            assert os.environ["PADDOCK_API_KEY"] not in told
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_hostile_text_does_not_reach_the_terminal(tmp_path, use, server):
    use(server)
    evil = "\x1b]0;title\x07\x1b[2J\x9b31m\u202etxt\r\x08"
    steps = [{"text": f"before {evil} after", "calls": [("run_command", {"command": "printf '\\033[31m\\033]52;c;aGk=\\007'"})]},
             {"text": f"{evil}done"}]
    with Model(steps) as model:
        done = run(tmp_path, model, "--auto-approve", "-p", "go")
        assert done.returncode == 0 and "done" in done.stdout, done
        shown = done.stdout + done.stderr
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown), repr(shown)
        assert "\\x1b[31m" in done.stderr


def test_much_output_is_cut_for_the_model_and_the_screen(tmp_path, mode):
    """Group 9: head and tail, and flat memory. A gigabyte at night."""
    size = 1 << 30 if NIGHTLY else 8 << 20
    command = f"echo first; yes 0123456789 | head -c {size}; echo; echo last"
    with Model([{"calls": [("run_command", {"command": command, "timeout_s": 3000})]},
                expects("first\n")]) as model:
        child = subprocess.Popen([PROGRAM, "--auto-approve", "-p", "go"], env=environment(tmp_path, model), cwd=tmp_path,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = child.communicate(timeout=seconds(3000 if NIGHTLY else 120))
        assert child.returncode == 0 and out == b"The end.\n", err[-2000:]
        told = results(model.requests[-1])[0]
        assert told.rstrip().endswith("last\n[exit code 0]") and "left out" in told and len(told) < 100000
        assert len(err) < 40000


def test_its_memory_stays_flat(tmp_path, mode):
    """The peak of a run with much output is that of one without, within 16 MiB."""
    def peak(command):
        with Model([{"calls": [("run_command", {"command": command, "timeout_s": 3000})]}, {"text": "The end."}]) as model:
            code = ("import resource, sys\nfrom paddock.agent.__main__ import main\nstatus = main()\n"
                    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\nsys.exit(status)")
            done = subprocess.run([os.path.join(os.path.dirname(PROGRAM), "python"), "-c", code, "--auto-approve", "-p", "go"],
                                  env=environment(tmp_path, model), cwd=tmp_path, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=seconds(3000), check=False)
            assert done.returncode == 0, done
            return int(done.stderr.split()[-1])
    assert peak(f"yes | head -c {1 << 30 if NIGHTLY else 24 << 20}") < peak("true") + 16 * 1024


def test_the_tools_are_those_of_mcp():
    """Group 10."""
    subprocess.run([str(TOP / "scripts" / "agent-tools"), "--check"], check=True, timeout=seconds(120),
                   env={**os.environ, "PADDOCK": str(TOP / "build" / "paddock")})


def test_a_server_that_is_away_or_refuses_the_key(tmp_path, server, monkeypatch):
    monkeypatch.setenv("SANDBOX_MODE", "remote")
    with Model([]) as model:
        for url, says in ((server.url, "PADDOCK_API_KEY"), ("http://127.0.0.1:1", "PADDOCK_URL")):
            done = run(tmp_path, model, "-p", "go", env={"PADDOCK_URL": url, "PADDOCK_API_KEY": "e2b_" + "0" * 40})
            assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr, done
        assert not model.requests


@pytest.mark.skipif(not NIGHTLY, reason="at night: a server that was there is waited for, 15 s")
def test_a_server_that_goes_away_in_the_middle(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDBOX_MODE", "remote")
    with Server() as server:
        def stop(_):
            server.stop()
            return {"calls": [("list_files", {}), ("list_files", {})]}

        with Model([stop]) as model:
            done = run(tmp_path, model, "-p", "go", env={"PADDOCK_URL": server.url, "PADDOCK_API_KEY": server.key})
        assert done.returncode == 1 and "PADDOCK_URL" in done.stderr and "Traceback" not in done.stderr, done
    # Both calls have a result, so that the conversation can go on.
    [path] = tmp_path.glob(".config/paddock/agents/agent/threads/*.jsonl")
    roles = [json.loads(line).get("role") for line in path.read_text().splitlines()[1:]]
    assert roles == ["user", "assistant", "tool", "tool"]


def test_a_full_disk_of_the_user_costs_only_the_record(tmp_path, use, server):
    use(server)
    full = tmp_path / ".config" / "paddock" / "agents" / "agent" / "threads"
    full.parent.mkdir(parents=True)
    full.write_text("no directory")
    with Model([{"text": "Fine."}]) as model:
        done = run(tmp_path, model, "-p", "go")
        assert done.returncode == 0 and done.stdout == "Fine.\n" and "is not kept" in done.stderr, done


def test_a_full_sandbox_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDBOX_MODE", "local")
    calls = [("run_command", {"command": "head -c 3G /dev/zero > /workspace/big; echo status=$?"}),
             ("write_file", {"path": "/workspace/more", "content": "x" * 100000}), ("run_command", {"command": "rm big; echo ok"})]
    with Model([{"calls": calls}, expects("status=1", "Error: ", "ok")]) as model:
        done = run(tmp_path, model, "--auto-approve", "-p", "go")
        assert done.returncode == 0, done


@pytest.mark.parametrize(("arguments", "env", "status", "says"), [
    (["--sandbox", "modal", "-p", "x"], {}, 2, "'modal' is neither paddock nor none"),
    (["--model", "claude", "-p", "x"], {}, 1, "anthropic:NAME or openai:NAME"),
    (["--model", "openai:gpt-5", "-p", "x"], {}, 1, "set OPENAI_API_KEY"),
    (["-p", "x"], {"ANTHROPIC_API_KEY": "", "ANTHROPIC_BASE_URL": ""}, 1, "set ANTHROPIC_API_KEY or OPENAI_API_KEY"),
    (["-p", "x"], {"ANTHROPIC_BASE_URL": "gopher://x"}, 1, "ANTHROPIC_BASE_URL"),
    (["-p"], {}, 2, "there is no task"),
    (["--put", "/nowhere", "-p", "x"], {}, 1, "'/nowhere' is no directory"),
    (["--get", "-p", "x"], {}, 2, "--get needs --put"),
    (["-c", "-p", "x"], {}, 1, "no conversation yet"),
    (["-r", "../../etc", "-p", "x"], {}, 1, "no conversation '../../etc'"),
    (["--max-turns", "0", "-p", "x"], {}, 2, "less than 1"),
    (["--sandbox", "none", "--put", ".", "-p", "x"], {}, 2, "are for a sandbox"),
])
def test_what_is_wrong_is_named(tmp_path, monkeypatch, capsys, arguments, env, status, says, use, server):
    use(server)
    with Model([]) as model:
        for name, value in {**environment(tmp_path, model), **env}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.stdin", open(os.devnull, encoding="utf-8"))
        try:
            ended = main(arguments)
        except SystemExit as error:  # argparse
            ended = error.code
        assert ended == status and says in capsys.readouterr().err


@pytest.mark.skipif(sys.version_info < (3, 10), reason="the list of modules is of Python 3.10")
def test_it_answers_help_at_once_and_needs_nothing_else():
    """Group 11: the standard library and this package."""
    code = ("import sys, paddock.agent.__main__\n"
            "names = {m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)\n"
            "print(sorted(n for n in names if not n.startswith('_') and n != 'paddock'))")
    out = subprocess.run([str(Path(PROGRAM).parent / "python"), "-I", "-c", code], capture_output=True, text=True,
                         timeout=seconds(60), check=True).stdout
    assert set(json.loads(out.replace("'", '"'))) <= {"sitecustomize", "usercustomize", "distutils-precedence"}
