"""`paddock-agent` in a terminal: questions and answers, keys, interrupts, files that come back."""

import os
import time

import pytest
from agent_runs import Talk
from paddock_testing.model import Model
from paddock_testing.run import NIGHTLY, seconds, wait_for
from test_agent import commands_with, expects, results

import paddock

QUESTION = r"allow this\? .*: $"


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    return folder


def test_approve_reject_always_and_toggle(tmp_path, mode):
    """Group 2."""
    steps = [{"calls": [("run_command", {"command": "echo first"}), ("run_command", {"command": "echo second"}),
                        ("run_command", {"command": "echo third; true"})]},
             expects("first\n", "second\n", "says: use printf",
                     then={"calls": [("write_file", {"path": "a", "content": "x\n"}),
                                     ("run_command", {"command": "echo fourth; true"})]}),
             expects("does not allow this", "fourth",
                     then={"calls": [("run_command", {"command": "true; true"}), ("remember", {"text": "likes tabs"})]}),
             expects("[exit code 0]", "kept", then={"text": "All done."}),
             {"calls": [("run_command", {"command": "true && true"})]}, expects("does not allow")]
    with Model(steps) as model, Talk(tmp_path, model, "begin") as talk:
        assert "echo first" in talk.expect(QUESTION)
        talk.send("a")
        assert "always" not in talk.expect(r"echo second")  # not asked again
        assert "echo third; true" in talk.expect(QUESTION)
        talk.send("use printf")
        talk.expect(QUESTION)
        talk.send("n")
        talk.expect(QUESTION)
        talk.press(b"\x14")  # Ctrl-T
        talk.expect("everything in the sandbox is allowed")
        # What leaves the sandbox is asked for nevertheless.
        assert "likes tabs" in talk.expect(QUESTION)
        talk.send("y")
        talk.expect("All done.")
        talk.prompt()
        talk.press(b"\x1b[Z")  # Shift-Tab
        talk.expect("calls are asked for")
        talk.send("again")
        talk.expect(QUESTION)
        talk.send("no")
        talk.expect("The end.")
        talk.prompt()
        talk.press(b"\x04")
        assert talk.end() == 0
    assert (tmp_path / ".config/paddock/agents/agent/AGENTS.md").read_text() == "- likes tabs\n"


def test_files_come_back_when_the_user_says_so(tmp_path, project, mode):
    """Groups 3 and 8: --auto-approve still asks for /get, and what is hostile stays there."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (project / "out").symlink_to(victim)
    (project / "mine.txt").write_text("mine\n")
    attack = ("echo two > a.txt; mkdir -p .git/hooks sub out; echo evil > .git/hooks/pre-commit; echo new > sub/new.sh; "
              "chmod +x sub/new.sh; ln -s /etc/passwd link; echo evil > out/file; mkfifo pipe; echo theirs > mine.txt")
    with Model([{"calls": [("run_command", {"command": attack})]}, expects("exit code 0"), {"text": "unused"}]) as model, \
            Talk(tmp_path, model, "--put", str(project), "--auto-approve", "change") as talk:
        talk.expect("The end.")
        talk.prompt()
        (project / "mine.txt").write_text("changed by the user\n")
        talk.send("/diff")
        shown = talk.prompt()
        assert "-one\n+two" in shown and "stays in the sandbox: link: is a symlink" in shown
        assert ".git/hooks/pre-commit: not a path" in shown
        talk.send("/get")
        talk.expect(r"write 4 files .*\? \[y\]es, \[n\]o: $")
        talk.send("n")
        talk.prompt()
        assert (project / "a.txt").read_text() == "one\n"
        talk.send("/get")
        talk.expect(r"write 4 files .*\? \[y\]es, \[n\]o: $")
        talk.send("y")
        shown = talk.prompt()
        assert "mine.txt: was changed here, too" in shown and "out/file: " in shown and "2 files were written" in shown
        assert (project / "a.txt").read_text() == "two\n" and os.access(project / "sub" / "new.sh", os.X_OK)
        assert (project / "mine.txt").read_text() == "changed by the user\n"
        assert not list(victim.iterdir()) and not (project / ".git").exists()
        assert not os.path.lexists(project / "link") and not os.path.lexists(project / "pipe")
        assert not list(project.glob("**/.paddock-*"))
        talk.send("/quit")
        if mode == "local":
            talk.expect(r"write 2 files .*\? \[y\]es, \[n\]o: $")
            talk.send("n")
        assert talk.end() == 0


def test_ctrl_c_ends_the_command_with_its_children(tmp_path, mode):
    """Group 5."""
    mark = f"{os.getpid()}.{time.monotonic_ns() % 10 ** 6}"
    command = f"sleep 9{mark} & sleep 8{mark}; echo never"
    steps = [{"calls": [("run_command", {"command": command, "timeout_s": 600})]},
             lambda body: {"text": f"Heard: {results(body)[-1]}"}]
    with Model(steps) as model, Talk(tmp_path, model, "--auto-approve", "wait") as talk:
        wait_for(lambda: len(sleeps(mark)) == 2, 30, "the command runs")
        talk.press(b"\x03")
        talk.expect("interrupted")
        talk.prompt()
        wait_for(lambda: not sleeps(mark), 30, "nothing of it is left")
        talk.send("what happened?")
        talk.expect(r"Heard: \[interrupted by the user\]")
        talk.prompt()
        talk.press(b"\x03")
        talk.expect("Ctrl-C again leaves")
        talk.prompt()
        talk.press(b"\x03")
        assert talk.end() == 0


def sleeps(mark):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[0] == b"sleep" and len(words) > 1 and mark.encode() in words[1]:
            found.append(pid)
    return found


def test_ctrl_c_ends_a_silent_model_and_a_question(tmp_path, use, server):
    use(server)
    steps = [{"silent": True}, {"calls": [("run_command", {"command": "true"})]}, {"text": "Still here."}]
    with Model(steps) as model, Talk(tmp_path, model) as talk:
        talk.prompt()
        talk.send("hello")
        wait_for(lambda: model.requests, 30, "the model was asked")
        talk.press(b"\x03")
        talk.expect("interrupted")
        talk.prompt()
        talk.send("again")
        talk.asked(QUESTION)
        talk.press(b"\x03")
        talk.expect("interrupted")
        talk.prompt()
        talk.send("well?")
        talk.expect("Still here.")
        assert talk.child.poll() is None
        talk.prompt()
        talk.press(b"\x04")
        assert talk.end() == 0


def test_on_this_machine_every_command_is_asked_for(tmp_path, project):
    """Group 4, in a terminal."""
    steps = [{"calls": [("run_command", {"command": "touch made"}), ("run_command", {"command": "touch made"}),
                        ("edit_file", {"path": "a.txt", "old_text": "one", "new_text": "two"})]},
             expects("exit code 0", "does not allow", "replaced 1")]
    with Model(steps) as model, Talk(tmp_path, model, "--sandbox", "none", "go", cwd=project) as talk:
        talk.expect("there is no sandbox")
        assert "always" not in talk.expect(QUESTION)
        talk.send("y")
        talk.expect(QUESTION)
        assert (project / "made").exists()
        talk.send("/auto")
        talk.expect("--yes-on-this-machine")
        talk.expect(QUESTION)
        talk.send("n")
        assert "-one\n    +two" in talk.expect(QUESTION)
        talk.send("y")
        talk.expect("The end.")
        talk.prompt()
        assert (project / "a.txt").read_text() == "two\n"
        talk.send("/undo")
        talk.expect("is as it was before")
        talk.prompt()
        assert (project / "a.txt").read_text() == "one\n"
        talk.send("!pwd")
        talk.expect(str(project))
        talk.prompt()
        talk.send("/quit")
        assert talk.end() == 0
    assert not commands_with(tmp_path)


def test_the_commands_of_the_user(tmp_path, use, server):
    use(server)
    steps = [{"text": "One."}, {"text": "Two."}]
    with Model(steps) as model, Talk(tmp_path, model) as talk:
        for line, says in [("/help", "/undo +take"), ("/fly", "'/fly' is no command"), ("/get", "no directory was sent"),
                           ("/undo", "no change"), ("!echo $((6*7)); exit 3", "42\n.*exit code 3"), ("/ports", "nothing listens"),
                           ("/model", "anthropic:claude"), ("/model x", "anthropic:NAME or"), ("first", "One."),
                           ("/tokens", "11 tokens were sent, 7 received"), ("/clear", "a new conversation"), ("second", "Two."),
                           ("!printf '\\033[31mred'", r"\\x1b\[31mred")]:
            talk.prompt()
            talk.send(line)
            talk.expect(f"(?s){says}")
        assert len(model.requests[-1]["messages"]) == 1
        talk.prompt()
        talk.send("/quit")
        assert talk.end() == 0
    assert len(list(tmp_path.glob(".config/paddock/agents/agent/threads/*.jsonl"))) == 2


def test_two_agents_do_not_write_one_conversation(tmp_path, use, server):
    use(server)
    with Model([{"text": "One."}, {"text": "Two."}]) as model, Talk(tmp_path, model, "hello") as talk:
        talk.expect("One.")
        talk.prompt()
        with Talk(tmp_path, model, "-c", "me, too") as second:
            second.expect("is open in another agent")
            assert second.end() == 1
        talk.send("/quit")
        assert talk.end() == 0


def test_the_first_prompt_comes_at_once(tmp_path, use, server):
    """Group 11: within half a second on an idle machine; the sandbox is made with the first message."""
    use(server)
    before = count_boxes()
    took = []
    with Model([]) as model:
        for _ in range(3 if NIGHTLY else 1):
            began = time.monotonic()
            with Talk(tmp_path, model) as talk:
                talk.prompt()
                took.append(time.monotonic() - began)
                talk.press(b"\x04")
                assert talk.end() == 0
    assert count_boxes() <= before
    if NIGHTLY:
        assert min(took) < seconds(0.5), took


def count_boxes():
    return len(paddock.Sandbox.list(metadata={"made_by": "paddock-agent"}, state="running"))
