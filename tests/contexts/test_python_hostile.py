"""The Python driver and code that is careless with what both share: streams, descriptors, the stack, memory, signals."""

import os
import random
import time
import types

import pytest

from paddock_testing import drivers
from paddock_testing import run as paddock


@pytest.mark.parametrize("code", [
    "import os; fd = os.open('/dev/null', os.O_WRONLY); os.dup2(fd, 1); os.dup2(fd, 2); print('gone')",
    "import os; os.close(1); os.close(2)",
    "import os; os.closerange(0, 3)",
    "import sys; sys.stdout = None; sys.stderr = None",
    "import sys; sys.stdout.close(); sys.stderr.close()",
    "import sys, io; sys.stdout = io.StringIO(); print('kept')",
    "import sys; del sys.stdout",
    "import sys\nclass S:\n    def write(self, text): pass\n    def flush(self): 1/0\nsys.stdout = S()",
    "import sys\nclass S:\n    def __getattribute__(self, name): raise OSError(name)\nsys.stdout = S()",
    "import fcntl, os\nfor n in (1, 2): fcntl.fcntl(n, fcntl.F_SETFL, os.O_NONBLOCK)",
    "import sys, threading; threading.stack_size(65536); sys.setrecursionlimit(60)",
    "import json, os; json.dumps = os.write = None",
    "import sys; sys.modules.clear()",
    "import gc; gc.disable()\nimport signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL);",
])
def test_what_a_cell_breaks_for_itself_does_not_break_the_next_event(python, code):
    assert [kind for kind in python.run(code).kinds() if kind not in ("stdout", "stderr", "error")] == ["start", "end"]
    cell = python.run("x = 5")
    assert cell.kinds()[0] == "start" and cell.kinds()[-1] == "end"


@pytest.mark.parametrize("code", [
    "import os; os.close(1); os.close(2)", "import sys; sys.stdout = None", "import sys; sys.stdout.close()",
    "import fcntl, os\nfcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK)"])
def test_the_next_cell_finds_its_streams_again(python, code):
    python.run(code)
    cell = python.run("print('here')\nimport sys; print('there', file=sys.stderr)\n!echo child")
    assert cell.stdout == "here\nchild\n" and cell.stderr == "there\n"


def test_text_with_marks_of_its_own(python):
    cell = python.run(r"print('a\x1eb', end=''); display(1); print('\x1e\x1er1 5\x1e'); print('\x1e', end='')")
    assert cell.stdout == "a\x1eb\x1e\x1er1 5\x1e\n\x1e"
    assert cell.kinds() == ["start", "stdout", "result", "stdout", "end"]


def test_characters_that_are_none(python):
    cell = python.run(r"print('\ud800', '\x00')" + "\n" + r"raise ValueError('\udfff\x00ä')")
    assert cell.stdout == "\\ud800 \x00\n"
    assert cell.error["value"] == "\\udfff\x00ä"
    assert python.run(r"['\ud83d', '\U0001f600']").main["application/json"] == ["\\ud83d", "\U0001f600"]
    assert python.run(r"{'\ud800': 1}").main["application/json"] == {"\\ud800": 1}


def test_numbers_that_json_has_not(python):
    assert python.run("[float('nan'), float('inf'), -float('inf'), 1.5, 10**30]").main["application/json"] == [
        None, None, None, 1.5, 10**30]


@pytest.mark.parametrize("body, name", [
    ("def __repr__(self): raise ValueError('no')", "ValueError"),
    ("def __repr__(self): return 5", "TypeError"),
    ("def __repr__(self): return self.__repr__()", "RecursionError"),
    ("def __getattr__(self, name): raise KeyError(name)", None),
    ("def __getattr__(self, name): return self", None),
    ("__class__ = property(lambda self: 1/0)", None),
    ("def _repr_html_(self): raise ValueError('no')", None),
    ("def _repr_html_(self): return 5", None),
    ("def _repr_mimebundle_(self, **_): return 5", None),
    ("def _repr_png_(self): return 'text', {}", None)])
def test_objects_that_cannot_be_shown(python, body, name):
    cell = python.run(f"class Odd:\n    {body}\nOdd()")
    assert cell.error is None
    assert "Odd" in cell.text
    if name:
        assert name in cell.text
    assert "text/html" not in cell.main


def test_an_error_whose_text_fails(python):
    cell = python.run("class Odd(Exception):\n    def __str__(self): raise ValueError('no')\nraise Odd")
    assert cell.error["name"] == "Odd"
    assert "ValueError" in cell.error["value"]


def test_a_mock_has_no_pictures(python):
    cell = python.run("from unittest.mock import MagicMock; MagicMock()")
    assert set(cell.main) == {"text/plain"}


def test_deep_and_endless_values(python):
    assert python.run("x = []; x.append(x); x").main == {"text/plain": "[[...]]"}
    cell = python.run("x = []\nfor _ in range(100000): x = [x]\nx")
    assert cell.end["ok"] and "RecursionError" in cell.text
    assert python.run("del x").end["ok"]


def test_recursion_that_displays_at_every_depth(python):
    """The stack may end at any instruction of the driver; every event is whole all the same."""
    cell = python.run("def f(n):\n    display(n)\n    f(n + 1)\nf(0)")
    assert cell.error["name"] == "RecursionError"
    shown = [int(result["text/plain"]) for result in cell.results]
    assert len(shown) > 50 and shown == list(range(len(shown)))
    assert python.run("1").text == "1"


def test_long_values_are_cut(python):
    cell = python.run("'a' * 3000000 + 'z'")
    assert cell.end["truncated"] is True
    assert len(cell.text) < 1_100_000 and "characters left out" in cell.text
    assert cell.text.startswith("'aaa") and cell.text.endswith("az'")
    assert "truncated" not in python.run("1").end


def test_a_result_is_16_mib_at_most_and_a_cell_64(python):
    cell = python.run("display({'text/html': 'h' * (17 << 20), 'text/plain': 'p'}, raw=True)")
    assert cell.results == [{"text/plain": "p"}] and cell.end["truncated"]
    cell = python.run("for _ in range(6): display({'text/html': 'h' * (15 << 20)}, raw=True)", limit=90)
    assert len(cell.results) == 4 and cell.end["truncated"]


def test_more_values_than_are_sent(python):
    cell = python.run("list(range(1000001))", limit=90)
    assert set(cell.main) == {"text/plain"} and cell.end["truncated"]


def test_a_process_that_ends_itself(start):
    python = start("python")
    python.send({"op": "run", "code": "import os; print('last'); os.write(1, b'words'); os._exit(7)"})
    assert python.event()[0]["type"] == "start"
    with pytest.raises(drivers.Ended):
        python.event()
    while python.open[0]:
        python.fill(time.monotonic() + paddock.seconds(30))
    assert python.data[0] == b"last\nwords"
    assert python.process.wait(paddock.seconds(30)) == 7


@pytest.mark.parametrize("last, status, told", [
    ("pass", 0, ""), ("sys.exit(3)", 3, ""), ("sys.exit('no')", 1, "no"), ("1/0", 1, "ZeroDivisionError"),
    ("os.kill(os.getpid(), 15)", 15, ""), ("display([2])", 0, "")])
def test_a_child_of_the_code_ends_with_the_cell(python, last, status, told):
    """It is no second driver: it says nothing for this one, and takes no request."""
    cell = python.run(f"import os, sys\nx = 1\npid = os.fork()\nif not pid:\n    x = 2\n    {last}\n"
                      "else:\n    ended = os.waitpid(pid, 0)[1]\npid > 0")
    assert cell.kinds()[0] == "start" and cell.kinds()[-1] == "end" and cell.text == "True"
    assert told in cell.stderr and cell.stdout == ("[2]\n" if "display" in last else "")
    assert python.run("os.WEXITSTATUS(ended) or os.WTERMSIG(ended)").text == str(status)
    assert [python.run("x, os.fork() >= 0").text for _ in range(5)] == ["(1, True)"] * 5


def test_a_child_that_a_signal_handler_forks_takes_no_request(python):
    """The driver waits for requests meanwhile."""
    python.run("import os, signal\nmade = []\ndef ring(*_): made.append(os.fork())\nsignal.signal(signal.SIGALRM, ring)")
    for number in range(1, 4):
        python.run("signal.setitimer(signal.ITIMER_REAL, 0.01)")
        paddock.wait_for(lambda n=number: python.run("len(made)").text == str(n), 20, "it rang")
    assert [python.run("all(made)").text for _ in range(10)] == ["True"] * 10


def test_code_that_closes_all_descriptors_ends_the_driver(python):
    python.send({"op": "run", "code": "import os; os.closerange(3, 1 << 16)"})
    assert python.process.wait(paddock.seconds(30)) is not None


def test_a_driver_that_cannot_go_on_ends(python):
    python.send({"op": "run", "code": "import builtins; builtins.len = builtins.memoryview = None"})
    assert python.process.wait(paddock.seconds(30)) is not None


def test_threads_may_display(python):
    cell = python.run("""
import threading
def show(n):
    for i in range(50):
        display(n * 1000 + i)
threads = [threading.Thread(target=show, args=(n,)) for n in range(8)]
for t in threads: t.start()
for t in threads: t.join()
""")
    shown = [int(result["text/plain"]) for result in cell.results]
    assert sorted(shown) == sorted(n * 1000 + i for n in range(8) for i in range(50))
    for n in range(8):
        assert [s for s in shown if s // 1000 == n] == [n * 1000 + i for i in range(50)]


def test_signal_handlers_may_display(python):
    """SIGALRM again and again, whose handler displays while the cell does."""
    cell = python.run("""
import signal
rings = 0
def ring(*_):
    global rings
    rings += 1
    display({"ring": rings})
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.0005)
n = 0
while rings < 100:
    display(n)
    n += 1
signal.setitimer(signal.ITIMER_REAL, 0)
(n, rings)
""", limit=60)
    n, rings = (int(x) for x in cell.text.strip("()").split(","))
    assert [r["application/json"]["ring"] for r in cell.results if "application/json" in r][:100] == list(range(1, 101))
    assert [int(r["text/plain"]) for r in cell.results if r["text/plain"].isdigit()] == list(range(n))
    assert rings >= 100


def test_an_alarm_that_raises_between_cells(python):
    """Handlers of the code's own run in the driver, too, when it waits."""
    python.run("import signal\ndef ring(*_): raise TimeoutError('late')\nsignal.signal(signal.SIGALRM, ring)\n")
    dice = random.Random(1)
    for n in range(paddock.rounds(100, 2000)):
        cell = python.run(f"signal.setitimer(signal.ITIMER_REAL, {dice.random() / 1000 + 1e-5})")
        assert [kind for kind in cell.kinds() if kind not in ("result", "error")] == ["start", "end"]


def test_interrupts_while_events_are_written(python):
    """At any moment of a cell that only writes events: each arrives once and whole, in order, and the cell ends."""
    dice = random.Random(1)
    for _ in range(paddock.rounds(60, 2000)):
        request = python.start("n = 0\nwhile True:\n    display(n)\n    print(n)\n    n += 1")
        pause = time.monotonic() + dice.random() * 0.004
        while time.monotonic() < pause:
            pass
        python.interrupt()
        cell = python.collect(request)
        assert cell.error["name"] == "KeyboardInterrupt"
        shown = [int(result["text/plain"]) for result in cell.results]
        assert shown == list(range(len(shown)))
        lines = cell.stdout.splitlines()
        assert lines == [str(n) for n in range(len(lines))]
        assert 0 <= len(shown) - len(lines) <= 1


def test_an_exception_at_every_instruction_of_an_event(languages):
    """The parts of the driver that write an event, stopped at each instruction in turn: what was begun is finished later."""
    source = languages["python"].driver.split(b"\f")[0]
    driver = types.ModuleType("driver")
    driver.TEXT = languages["python"].driver
    exec(compile(source, "driver", "exec"), driver.__dict__)
    watched = {driver.Events.send.__code__, driver.Events.drain.__code__, driver.Event.frame.__code__,
               driver.Event.write.__code__}
    stopped = 0
    for instruction in range(100000):
        if not stop_at(driver, watched, instruction):
            break
        stopped += 1
    assert stopped > 100


def stop_at(driver, watched, instruction):
    """Sends one event with an exception at an instruction, then another; False if there are not so many instructions."""
    import sys
    pipes = [os.pipe() for _ in range(3)]
    events = driver.Events(*(far for _, far in pipes))
    left = [instruction]
    was_raised = []

    def trace(frame, kind, argument):
        if frame.f_code not in watched:
            return None
        frame.f_trace_opcodes = True
        if kind == "opcode":
            left[0] -= 1
            if left[0] < 0 and not was_raised:
                was_raised.append(1)
                raise KeyboardInterrupt
        return trace

    first, second = driver.Event("result", "one", ',"n":1'), driver.Event("result", "two", ',"n":2')
    sys.settrace(trace)
    try:
        events.send(first)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    events.settle()
    events.send(first)      # as a caller that cannot know does: it is not written twice
    events.send(second)

    for _, far in pipes:
        os.close(far)
    read = []
    for near, _ in pipes:
        with open(near, "rb") as file:
            read.append(file.read())
    marks = b"\x1eone 1\x1e\x1etwo 2\x1e"
    lines = b'{"type":"result","seq":1,"id":"one","n":1}\n{"type":"result","seq":2,"id":"two","n":2}\n'
    assert read == [marks, marks, lines], instruction
    return bool(was_raised)
