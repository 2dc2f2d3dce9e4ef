"""The parts of the agent that take foreign input, by themselves: text, approval, conversations, paths, answers."""

import json
import os
import random
import signal
import threading

import pytest
from paddock_testing.model import anthropic_events, openai_chunks
from paddock_testing.run import rounds

from paddock import _cancel
from paddock.agent.approve import Approver, prefix_of
from paddock.agent.host import HostBackend
from paddock.agent.models import AnthropicReader, ModelError, OpenAIReader, arguments_of
from paddock.agent.project import Change, Project, ProjectError, _parts
from paddock.agent.store import Store, StoreError, Thread
from paddock.agent.text import Kept, cut, one_line, plain

STEP = {"text": "I look at it.", "calls": [("run_command", {"command": "ls"}), ("read_file", {"path": "a"})]}


# ---- text ----

def test_nothing_that_a_terminal_obeys_is_shown():
    for code in [*range(0x20), *range(0x7f, 0xa0), 0x202e, 0x2066, 0x200b, 0xfeff, 0xe0041, 0xd800]:
        shown = plain(f"a{chr(code)}b")
        assert shown == f"a{chr(code)}b" if chr(code) in "\n\t" else chr(code) not in shown, hex(code)
    assert plain("x\r\ny\rz äß漢") == "x\ny\nz äß漢"
    assert one_line("a\nb\x1b[2J") == "a b\\x1b[2J" and len(one_line("x" * 10 ** 6)) == 160
    assert "left out" in cut("x" * 1000, 100) and len(cut("x" * 1000, 100)) < 200 and cut("abc", 100) == "abc"


def test_of_much_output_head_and_tail_are_kept():
    chance = random.Random(7)
    for _ in range(rounds(300, 10000)):
        data = bytes(chance.randrange(65, 91) for _ in range(chance.randrange(60)))
        kept, at = Kept(20), 0
        while at < len(data):
            size = chance.randrange(1, 30)
            kept.add(data[at:at + size])
            at += size
        if len(data) <= 20:
            assert kept.text() == data.decode()
        else:
            text = kept.text()
            assert text.startswith(data[:10].decode()) and text.endswith(data[-10:].decode())
            assert f"{len(data) - 20} bytes left out" in text


# ---- approval ----

@pytest.mark.parametrize(("command", "prefix"), [
    ("pytest -q", "pytest"), ("git status", "git status"), ("python3 -c 'x'", "python3 -c"), ("ls", "ls"),
    ("pytest; rm -rf /", None), ("pytest && x", None), ("pytest | sh", None), ("pytest $(x)", None), ("pytest `x`", None),
    ("pytest > /x", None), ("pytest\nrm x", None), ("PATH=/x pytest", None), ("pytest 'x", None), ("", None),
    ("pytest & x", None), ("pytest <(x)", None), ("{ pytest", None)])
def test_what_always_allows(command, prefix):
    assert prefix_of(command) == prefix


def test_always_is_for_that_kind_alone():
    approver = Approver()
    approver.always(approver.question("run_command", {"command": "pytest -q"}))
    assert approver.question("run_command", {"command": "pytest x"}) is None
    for command in ("pytest; ls", "pytestx", "ls", "pytest -q | sh"):
        assert approver.question("run_command", {"command": command}), command
    assert approver.question("write_file", {"path": "a", "content": ""})
    approver.always(approver.question("run_command", {"command": "a; b"}))
    assert approver.question("run_command", {"command": "a; b"}) is None
    assert approver.question("run_command", {"command": "a; b; c"})


def test_what_leaves_the_sandbox_is_always_asked_for():
    approver = Approver(auto=True, allow=["*"])
    assert approver.question("run_command", {"command": "x; y"}) is None
    for name in ("remember", "preview_port"):
        question = approver.question(name, {})
        assert question.leaves and not question.kind
        approver.always(question)
        assert approver.question(name, {})
    here = Approver(is_host=True)
    assert here.question("read_file", {"path": "a"}) is None
    assert here.question("read_file", {"path": "/etc/shadow"}, is_outside=True)
    assert not here.question("run_command", {"command": "ls"}).kind


# ---- conversations ----

def test_a_conversation_that_was_cut_is_read_as_far_as_it_goes(tmp_path):
    store = Store("a", tmp_path)
    thread = Thread.begin(store)
    thread.add({"role": "user", "text": "go"})
    thread.add({"role": "assistant", "text": "", "calls": [
        {"id": "1", "name": "x", "arguments": "{}"}, {"id": "2", "name": "x", "arguments": "{}"}]})
    thread.add({"role": "tool", "id": "1", "text": "done", "error": False})
    thread.close()
    data = thread.path.read_bytes()
    assert thread.path.stat().st_mode & 0o777 == 0o600
    for size in range(len(data) + 1):
        thread.path.write_bytes(data[:size])
        again = Thread.load(thread.path)
        again.close()
        for n, message in enumerate(again.messages):
            ids = [c["id"] for c in message.get("calls", [])]
            assert [m["id"] for m in again.messages[n + 1:n + 1 + len(ids)]] == ids
    assert [m["role"] for m in again.messages] == ["user", "assistant", "tool", "tool"]


def test_foreign_lines_in_a_conversation_are_left_out(tmp_path):
    path = tmp_path / "0123456789ab.jsonl"
    good = {"role": "user", "text": "hello"}
    bad = [None, [], "x", {"role": "user"}, {"role": "root", "text": "x"}, {"role": "tool", "text": "x"},
           {"role": "assistant", "text": "x", "calls": [1]}, {"role": "assistant", "text": "x", "calls": [{"id": 1}]},
           {"role": "tool", "id": "nobody asked", "text": "x"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in [{}, *bad, good]) + "\xff{")
    assert Thread.peek(path).messages == [good]


def test_one_conversation_has_one_agent(tmp_path):
    thread = Thread.begin(Store("a", tmp_path))
    thread.add({"role": "user", "text": "go"})
    with pytest.raises(StoreError, match="open in another agent"):
        Thread.load(thread.path)
    thread.close()
    Thread.load(thread.path).close()


def test_a_disk_that_is_full_is_told_and_nothing_raises(tmp_path):
    thread = Thread.begin(Store("a", tmp_path))
    thread.add({"role": "user", "text": "go"})
    full = open("/dev/full", "a", encoding="utf-8")  # noqa: SIM115  (the conversation closes it)
    thread._file, mine = full, thread._file
    thread.add({"role": "user", "text": "more"})
    mine.close()
    assert "No space left" in thread.problem and len(thread.messages) == 2
    thread.add({"role": "user", "text": "and more"})
    assert len(thread.messages) == 3


# ---- files ----

@pytest.mark.parametrize("path", [
    "", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/.", ".git/config", "a/.git/hooks/x", "a/.GIT/x", ".git",
    ".git. /x", "a\0b", ".."])
def test_paths_that_are_not_for_this_machine(path, tmp_path):
    assert _parts(path) is None
    project = Project(tmp_path, tmp_path / "base")
    [problem] = project.get([Change(path, "new", b"x", False)])
    assert "not a path" in problem and not [p for p in tmp_path.iterdir() if p.name != "base"]


def test_links_are_not_followed_and_foreign_changes_not_overwritten(tmp_path):
    folder, outside = tmp_path / "p", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "file").write_text("safe")
    (folder / "dir").symlink_to(outside)
    (folder / "link").symlink_to(outside / "file")
    (folder / "mine").write_text("mine")
    os.mkfifo(folder / "pipe")
    project = Project(folder, tmp_path / "base")
    names = ["dir/file", "dir/new", "link", "mine", "pipe"]
    assert len(project.get([Change(n, "changed", b"evil", False) for n in names])) == 5
    assert (outside / "file").read_text() == "safe" and len(list(outside.iterdir())) == 1
    assert (folder / "mine").read_text() == "mine"
    # The control: what is new, and not in the way of anything, is written.
    assert project.get([Change("new/file", "new", b"good", True)]) == []
    assert (folder / "new" / "file").read_bytes() == b"good" and os.access(folder / "new" / "file", os.X_OK)
    # A file that is too deep to be listed is not taken for one that was removed.
    deep = "/".join(["d"] * 20)
    project._hashes[deep] = "0"
    project._list = lambda: iter([])
    assert [c.path for c in project.difference().changes] == ["new/file"]
    # Known from then on: it may be changed and removed.
    assert project.get([Change("new/file", "removed", b"", False)]) == [] and not (folder / "new" / "file").exists()
    with pytest.raises(ProjectError, match="no directory"):
        Project(folder / "mine", tmp_path / "base")


# ---- answers ----

def read_all(reader, events):
    for event in events:
        reader.event(event)
    return reader.finish()


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
def test_answers_in_random_disorder_are_read_or_refused(kind):
    """Thousands of streams with values replaced, left out and doubled: an answer, or ModelError, never another error."""
    if kind == "anthropic":
        make, whole = AnthropicReader, [{"type": n, **d} for n, d in anthropic_events(STEP, "m")]
    else:
        make, whole = OpenAIReader, list(openai_chunks(STEP, "m", True))
    answer = read_all(make(lambda _: None), whole)
    assert [c.name for c in answer.calls] == ["run_command", "read_file"] and answer.input_tokens == 11
    assert [arguments_of(c.arguments) for c in answer.calls] == [{"command": "ls"}, {"path": "a"}]
    chance = random.Random(13)
    odd = [None, -1, 10 ** 30, True, 1.5, "x", "\ud800", [], [[]], {}, {"text": 3}, [None, {}]]

    def broken(value, depth=0):
        if chance.random() < 0.06:
            return chance.choice(odd)
        if isinstance(value, dict):
            return {k: broken(v, depth + 1) for k, v in value.items() if chance.random() > 0.03}
        return [broken(v, depth + 1) for v in value] if isinstance(value, list) else value

    for _ in range(rounds(3000, 100000)):
        events = [e for e in (broken(e) for e in whole for _ in range(chance.choice([1, 1, 1, 2]))) if isinstance(e, dict)]
        for read in (lambda: read_all(make(lambda _: None), events), lambda: make(lambda _: None).whole(chance.choice(events))
                     if events else None):
            try:
                read()
            except ModelError:
                pass


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", "nul", "{", "[" * 100000, '{"a": 1}', '"x"', "\x00"])
def test_arguments_are_an_object_or_nothing(text):
    assert arguments_of(text) in ({}, {"a": 1}, None)


# ---- this machine ----

def test_a_command_on_this_machine_is_cut_timed_and_cancelled(tmp_path):
    host = HostBackend(tmp_path, {"PATH": os.environ["PATH"], "OPENAI_API_KEY": "sk"})
    done = host.exec("", "echo head; yes | head -c 3000000; echo tail; echo error >&2; exit 4", output_max_bytes=1000)
    assert done.exit_code == 4 and done.stderr == "error\n" and len(done.stdout) < 1200
    assert done.stdout.startswith("head\n") and done.stdout.endswith("tail\n") and "left out" in done.stdout
    assert "sk" not in host.exec("", "env").stdout
    assert host.exec("", "exec >&- 2>&-; sleep 1000", timeout_s=0.2).timed_out
    # A child that holds the pipe does not hold the call.
    done = host.exec("", "sleep 1000 & echo $!", timeout_s=500)
    assert done.exit_code == 0
    os.kill(int(done.stdout), signal.SIGKILL)

    token, outcome = _cancel.CancelToken(), []

    def call():
        try:
            _cancel.call_with(token, lambda: host.exec("", "echo on; sleep 1000", timeout_s=None,
                                                       on_stdout=lambda _: token_ready.set()))
        except _cancel.Cancelled:
            outcome.append("cancelled")

    token_ready = threading.Event()
    thread = threading.Thread(target=call)
    thread.start()
    assert token_ready.wait(60)
    token.cancel()
    thread.join(60)
    assert outcome == ["cancelled"] and host.end("")
