"""The Python driver: cells, their text, values and errors, and lines that are not quite Python."""

import os
import shutil
import signal
import subprocess

import pytest

from paddock_testing import drivers
from paddock_testing import run as paddock


def test_a_cell_has_a_start_its_text_a_result_and_an_end(python):
    cell = python.run("print('hello')\n6 * 7")
    assert [kind for kind, _ in cell.order] == ["start", "stdout", "result", "end"]
    assert cell.order[0][1]["count"] == 1
    assert cell.order[1][1] == "hello\n"
    assert cell.text == "42"
    assert cell.end["ok"] is True
    assert python.run("1").order[0][1]["count"] == 2


def test_ready_tells_the_version(python):
    version = python.run("import sys; '%d.%d.%d' % sys.version_info[:3]").text
    assert f"'{python.ready['version']}'" == version
    assert python.ready["seq"] == 1 and "id" not in python.ready


def test_variables_stay(python):
    python.run("x = 1\ndef f(): return x + 1")
    assert python.run("f()").text == "2"
    assert python.run("_ + 1").text == "3"
    assert python.run("__name__").text == "'__main__'"


@pytest.mark.parametrize("code, shown", [
    ("5;", None), ("5 ; # quiet", None), ("(5);", None), ("(5\n);", None), ("5 # loud;", "5"), ("'a;'", "'a;'"),
    ("None", None), ("x = 5", None), ("5\n", "5"), ("5\n# note", "5"), ("", None), ("# nothing", None),
    ("'text'", "'text'"), ("5; 6", "6"), ("'ä';", None), ("'ä', 1;", None), ("if True:\n    5", None)])
def test_the_last_expression_is_shown(python, code, shown):
    cell = python.run(code)
    assert cell.text == shown
    assert cell.end["ok"]


def test_text_results_and_the_text_of_children_keep_their_order(python):
    cell = python.run("""
import os, subprocess, sys
print("one")
display(1)
subprocess.run(["echo", "two"])
display(2)
os.write(1, b"three\\n")
print("four", end="")
display(3)
print("five", file=sys.stderr)
os.system("echo six >&2")
display(4)
sys.stdout.buffer.write(b"seven");
""")
    flat = [value if isinstance(value, str) else value["data"]["text/plain"]
            for kind, value in cell.order if kind in ("stdout", "stderr", "result")]
    assert flat == ["one\n", "1", "two\n", "2", "three\nfour", "3", "five\nsix\n", "4", "seven"]


def test_an_error_has_its_name_its_value_and_the_frames_of_the_cells(python):
    python.run("def f():\n    return 1 / 0")
    cell = python.run("x = 1\nf()")
    error = cell.error
    assert (error["name"], error["value"]) == ("ZeroDivisionError", "division by zero")
    assert 'File "<cell 2>", line 2' in error["traceback"]
    assert 'File "<cell 1>", line 2' in error["traceback"]
    assert "return 1 / 0" in error["traceback"]
    assert "paddock" not in error["traceback"]
    assert cell.end["ok"] is False
    assert python.run("x").text == "1"


def test_a_cell_that_does_not_parse(python):
    cell = python.run("print('no')\ndef f(:\n")
    assert cell.error["name"] == "SyntaxError"
    assert "line 2" in cell.error["traceback"]
    assert cell.stdout == ""


@pytest.mark.parametrize("code, name", [
    ("raise SystemExit", None), ("import sys; sys.exit(0)", None), ("exit(3)", "SystemExit"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt"), ("raise GeneratorExit", "GeneratorExit")])
def test_ways_to_leave_a_cell(python, code, name):
    cell = python.run(code)
    assert (cell.error and cell.error["name"]) == name
    assert python.run("1").text == "1"


def test_variables_of_one_cell_are_put_back(start):
    python = start("python", env={"KEPT": "old"})
    code = "import os; os.environ['KEPT'], os.environ.get('NEW')"
    assert python.run(code, env={"KEPT": "one", "NEW": "two"}).text == "('one', 'two')"
    assert python.run(code).text == "('old', None)"
    assert python.run("!echo $NEW", env={"NEW": "for children"}).stdout == "for children\n"
    assert python.run("1/0", env={"NEW": "x"}).error["name"] == "ZeroDivisionError"
    assert python.run(code).text == "('old', None)"


def test_the_driver_cannot_be_confused_by_files_of_its_directory(start, tmp_path):
    for name in ("json", "types", "linecache", "tokenize", "collections", "traceback", "select", "signal"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the sandbox')")
    (tmp_path / "mine.py").write_text("value = 5")
    python = start("python")
    assert python.run("import mine; mine.value").text == "5"
    assert python.run("1/0").error["name"] == "ZeroDivisionError"


def test_code_does_not_see_how_the_driver_is_kept_from_them(start):
    look = "import os, sys; os.environ.get('PYTHONSAFEPATH'), sys.path[0]"
    assert start("python").run(look).text == "(None, '')"
    assert start("python", env={"PYTHONSAFEPATH": "1"}).run(look).text == "('1', '')"    # the code's own


def test_input_fails_at_once(python):
    assert python.run("input()").error["name"] == "EOFError"
    assert python.run("!cat").end["ok"]


def test_children_have_none_of_the_drivers_descriptors(python):
    cell = python.run("!ls /proc/self/fd | tr '\\n' ' '")
    assert cell.stdout.split()[:3] == ["0", "1", "2"]
    assert len(cell.stdout.split()) <= 4    # ls has the directory open


def test_future_imports_hold_for_the_cells_that_follow(python):
    python.run("from __future__ import annotations")
    assert python.run("def f(x: nothing): pass\nf.__annotations__").text == "{'x': 'nothing'}"


# ---- top-level await ----

def test_top_level_await(python):
    python.run("import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x + 1")
    assert python.run("await f(1)").text == "2"
    assert python.run("x = await f(2)\ny = x + 1\ny").text == "4"
    assert python.run("async with asyncio.Lock() as l: print('in')").stdout == "in\n"
    assert python.run("await f('a')").error["name"] == "TypeError"
    assert python.run("asyncio.run(f(5))").text == "6"


def test_tasks_go_on_in_the_next_cell_that_awaits(python):
    python.run("import asyncio\nasync def later():\n    await asyncio.sleep(0.01)\n    print('done')\n"
               "task = asyncio.ensure_future(later())\nawait asyncio.sleep(0)")
    assert "done" in python.run("await task").stdout


# ---- lines that are not quite Python ----

def test_commands(python):
    assert python.run("!echo out; echo err >&2").order[1:3] == [("stdout", "out\n"), ("stderr", "err\n")]
    assert python.run("x = !printf 'a\\nb'\nx").text == "['a', 'b']"
    assert python.run("x.n, x.s").text == "('a\\nb', 'a b')"
    assert python.run("for i in range(2):\n    !echo number {i} $i {i + 1} $HOME ${HOME}").stdout == (
        f"number 0 0 1 {drivers.HOME} {drivers.HOME}\nnumber 1 1 2 {drivers.HOME} {drivers.HOME}\n")
    assert python.run("!exit 3\n_exit_code").text == "3"
    assert python.run("!echo a b | awk '{print $2}'").stdout == "b\n"
    assert python.run("def f(word):\n    !echo $word\nf('local')").stdout == "local\n"
    assert python.run("!echo 'it''s' \"quoted\"").stdout == "its quoted\n"
    assert python.run("text = '''\n!not a command\n%not a magic\n'''\n!echo \"$text\"").stdout == (
        "\n!not a command\n%not a magic\n\n")


def test_cells_that_are_indented_as_a_whole(python):
    assert python.run("    x = 1\n    if x:\n        x += 1\n    x").text == "2"
    assert python.run("\n  !echo in\n  3").text == "3"


def test_magics(python, tmp_path):
    assert python.run("%pwd").text == repr(str(tmp_path))
    python.run("%cd /")
    assert python.run("import os; os.getcwd()").text == "'/'"
    assert python.run("%env A=5\nos.environ['A']").text == "'5'"
    assert python.run("%matplotlib inline\n7").text == "7"
    timed = python.run("%time 1 + 1")
    assert timed.text == "2" and "Wall time" in timed.stdout
    assert "per loop" in python.run("%timeit pass").stdout
    assert python.run(f"%%writefile {tmp_path}/f\nline\n").stdout == f"Writing {tmp_path}/f\n"
    assert (tmp_path / "f").read_text() == "line\n"
    assert python.run("%%bash\necho a\necho b").stdout == "a\nb\n"
    assert python.run("%%bash\nexit 4").error["name"] == "CalledProcessError"
    assert python.run("%%time\nx = 1\nx + 5").text == "6"
    captured = python.run("%%capture got\nprint('hidden')")
    assert captured.stdout == "" and python.run("got.stdout").text == "'hidden\\n'"
    assert python.run("%%html\n<b>x</b>").results == [{"text/html": "<b>x</b>", "text/plain": "<b>x</b>"}]
    assert "Python 3" in python.run("%pip --version").stdout + "Python 3"


def test_an_error_below_a_magic_has_the_lines_of_the_cell(python):
    cell = python.run("!true\nx = 1\n1/0")
    assert 'File "<cell 1>", line 3' in cell.error["traceback"]


# ---- interrupts ----

@pytest.mark.parametrize("code", [
    "import time\nprint('go')\ntime.sleep(1000)", "print('go')\nwhile True: pass",
    "import asyncio\nprint('go')\nawait asyncio.sleep(1000)", "print('go')\n!sleep 1000",
    "import sys\nprint('go'); sys.stdout.flush()\nx = !sleep 1000",
    "import subprocess\nprint('go')\nsubprocess.run(['sleep', '1000'])",
    "class R:\n    def __repr__(self):\n        print('go')\n        while True: pass\nR()",
    "class E(Exception):\n    def __str__(self):\n        print('go')\n        while True: pass\nraise E()",
])
def test_an_interrupt_ends_the_cell_and_keeps_the_variables(python, code):
    python.run("kept = 1")
    request = python.start(code)
    python.wait_for_output(b"go\n")
    cell = python.interrupt_until_end(request)
    assert cell.error["name"] in ("KeyboardInterrupt", "E")
    assert python.run("kept").text == "1"


def test_an_interrupt_between_cells_does_nothing(python):
    for _ in range(20):
        python.interrupt()
        assert python.run("1").text == "1"


def test_an_interrupt_right_behind_the_start_is_heeded(python):
    for _ in range(50):
        request = python.start("while True: pass")
        python.interrupt()
        assert python.collect(request).error["name"] == "KeyboardInterrupt"


def test_an_interrupt_that_the_code_handles(python):
    request = python.start("import time\ntry:\n    while True: time.sleep(0.01)\nexcept KeyboardInterrupt:\n    print('caught')")
    python.interrupt()
    cell = python.collect(request)
    # It may come before the try begins.
    assert cell.error is None and cell.stdout == "caught\n" or cell.error["name"] == "KeyboardInterrupt"
    python.run("import signal; signal.signal(signal.SIGINT, lambda *_: print('own'))")
    request = python.start("while True: pass")
    python.interrupt()
    assert python.collect(request).error["name"] == "KeyboardInterrupt"


# ---- requests ----

def test_damaged_and_repeated_requests_are_left_out(python):
    python.run("runs = 0")
    first = python.send({"op": "run", "code": "runs += 1"})
    line = python.sent_line
    python.collect(first)
    name, crc, data = line.split()
    wrong_crc = b"%08x" % (int(crc, 16) ^ 1)
    for bad in (line, b"\n", b"x\n", b"a b c d\n", b"new " + wrong_crc + b" " + data + b"\n",
                b"new2 zzzz " + data + b"\n", b"new3 " + crc + b" !!!\n", b"\xff\xfe 00 00\n",
                b"new4 " + crc + b" " + data[:-8] + b"\n"):
        python.requests.sendall(bad)
    assert python.run("runs").text == "1"


def test_an_id_is_forgotten_after_64_others(python):
    python.run("runs = 0")
    first = python.send({"op": "run", "code": "runs += 1"})
    line = python.sent_line
    python.collect(first)
    for _ in range(62):
        python.run("0;")
    python.requests.sendall(line)
    assert python.run("runs").text == "1"
    python.run("0;")
    python.requests.sendall(line)
    python.collect(first)
    assert python.run("runs").text == "2"


def test_requests_in_pieces_and_at_once(python):
    one, first = python.line({"op": "run", "code": "1"})
    two, second = python.line({"op": "run", "code": "2"})
    for i in range(len(first)):
        python.requests.sendall(first[i:i + 1])
    assert python.collect(one).text == "1"
    three, third = python.line({"op": "run", "code": "3"})
    python.requests.sendall(second + third)
    assert python.collect(two).text == "2"
    assert python.collect(three).text == "3"


def test_a_late_interrupt_does_not_hit_the_next_cell(python):
    """The server sends `settle` first, when it has interrupted the cell before. Here the signal comes behind that."""
    for _ in range(20):
        python.run("1")
        python.send({"op": "settle"})
        python.interrupt()
        cell = python.run("for i in range(100000): pass\n7")
        assert cell.error is None and cell.text == "7", cell.error
    request = python.start("print('go')\nwhile True: pass")
    python.wait_for_output(b"go")
    python.interrupt()
    assert python.collect(request).error["name"] == "KeyboardInterrupt"
    python.send({"op": "settle"})
    assert python.run("1").text == "1"


@pytest.mark.parametrize("fields", [{}, {"op": "nonsense"}, {"op": ["run"]}])
def test_a_request_that_is_not_known_is_refused(python, fields):
    answer = python.collect(python.send(fields), until=("refused",))
    assert "there are run, import, fork and settle" in answer.end["why"]
    assert python.run("1").text == "1"


@pytest.mark.parametrize("fields", [{"op": "run"}, {"op": "run", "code": 5}, {"op": "run", "code": "1", "env": {"a": 5}},
                                    {"op": "run", "code": "1", "env": {"a=": "\0"}}, {"op": "run", "code": "\0"},
                                    {"op": "run", "code": "'\ud800'.x"}])
def test_a_request_with_wrong_fields_is_an_error_of_its_cell(python, fields):
    cell = python.collect(python.send(fields))
    assert cell.error is not None
    assert python.run("1").text == "1"


def test_the_end_of_the_requests_is_the_end_of_the_driver(python):
    python.requests.shutdown(1)
    assert python.process.wait(paddock.seconds(30)) == 0


def test_import_makes_warm_and_does_not_count(python):
    cell = python.collect(python.send({"op": "import", "modules": ["decimal", "no_such_module", "fractions"]}))
    assert cell.order[0][1]["count"] == 0
    assert cell.error["name"] == "ModuleNotFoundError"
    cell = python.run("import sys; 'fractions' in sys.modules")
    assert cell.text == "True" and cell.order[0][1]["count"] == 1


# ---- other versions ----

@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13", "3.14"])
def test_other_versions_of_python(start, version):
    """The heart of the driver with every Python that the host has: Debian has one, developers often more."""
    found = shutil.which(f"python{version}")
    if not found or subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode:
        pytest.skip(f"there is no python{version} on this host")
    found = subprocess.run([found, "-c", "import sys; print(sys.executable)"], check=True, capture_output=True,
                           text=True).stdout.strip()
    language = drivers.languages()["python"]
    python = start("python", argv=[found, *language.argv[1:]])
    assert python.ready["version"].startswith(version)
    assert python.run("print('a')\n[1, 2]").main == {"application/json": [1, 2], "text/plain": "[1, 2]"}
    assert python.run("import asyncio\nawait asyncio.sleep(0, 5)").text == "5"
    assert python.run("x = !echo a\nx").text == "['a']"
    assert python.run("  1/0").error["name"] == "ZeroDivisionError"
    request = python.start("while True: pass")
    os.kill(python.pid, signal.SIGINT)
    assert python.collect(request).error["name"] == "KeyboardInterrupt"
    child = python.fork()
    assert child.run("x").text == "['a']"
    child.stop()
