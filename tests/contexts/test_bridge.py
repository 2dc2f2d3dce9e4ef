"""The bridge to Jupyter kernels, where the host has jupyter_client and a kernel; Python's own stands for all.

By night also with those of kernels/requirements.txt, one of which is a kernel of bash."""

import ast
import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess

import pytest

from paddock_testing import drivers
from paddock_testing import run as paddock


def installed(languages):
    """The bridge's argv with what tests/contexts/install has brought."""
    install = subprocess.run([os.path.join(drivers.ROOT, "tests/contexts/install")], check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert install.returncode == 0, install.stdout
    return [os.path.join(drivers.ROOT, "build-contexts/kernels/bin/python"), *languages["bridge"].argv[1:]]


def start_bridge(languages, argv, home):
    return drivers.Driver(languages["bridge"], argv=argv, cwd=home, env={"HOME": str(home), "OF_THE_CONTEXT": "there"})


def stop_bridge(driver):
    driver.requests.close()     # the kernel is ended by the bridge
    driver.process.wait(paddock.seconds(60))
    driver.close()


@pytest.fixture(scope="module", params=["host", "kernels"] if paddock.NIGHTLY else ["host"])
def bridge(request, languages, tmp_path_factory):
    argv = languages["bridge"].argv
    if request.param == "kernels":
        argv = installed(languages)
    else:
        for module in ("jupyter_client", "ipykernel"):
            if importlib.util.find_spec(module) is None:
                pytest.skip(f"there is no {module} on this host")
    driver = start_bridge(languages, argv, tmp_path_factory.mktemp("home"))
    yield driver
    stop_bridge(driver)


def run(bridge, code, kernel="python3"):
    return bridge.run(code, kernel=kernel, limit=120)


def test_a_kernel_that_is_not_there(bridge):
    cell = run(bridge, "1", kernel="cobol")
    assert cell.error["name"] == "NoSuchKernel" and "python3" in cell.error["value"]


def test_cells(bridge):
    cell = run(bridge, "import sys\nx = 5\nprint('out')\nprint('err', file=sys.stderr)\nx + 1")
    assert cell.error is None, cell.error
    assert "".join(event["text"] for event in cell.all("stdout")) == "out\n"
    assert "".join(event["text"] for event in cell.all("stderr")) == "err\n"
    assert cell.text == "6"
    assert run(bridge, "x").text == "5"


def test_what_the_bridge_itself_logs_is_in_no_cell(bridge):
    """A kernel of Python can write there as a child of the bridge could."""
    cell = run(bridge, "import os; open(f'/proc/{os.getppid()}/fd/2', 'w').write('logged\\n'); 7")
    assert cell.text == "7" and cell.stderr == ""


def test_results_and_errors(bridge):
    cell = run(bridge, "from IPython.display import HTML, display\ndisplay(HTML('<b>'))\n1/0")
    assert cell.results[0]["text/html"] == "<b>"
    assert cell.error["name"] == "ZeroDivisionError"


def test_an_interrupt_ends_the_cell_and_keeps_the_variables(bridge):
    run(bridge, "kept = 1")
    request = bridge.send({"op": "run", "code": "print('go')\nwhile True: pass", "kernel": "python3"})
    while bridge.event(60)[0]["type"] != "stdout":
        pass
    bridge.interrupt()
    events = [bridge.event(60)[0] for _ in range(2)]
    assert [event["type"] for event in events] == ["error", "end"] and events[0]["name"] == "KeyboardInterrupt"
    assert events[0]["id"] == request
    assert run(bridge, "kept").text == "1"


def test_variables(bridge):
    """The context's are there from the start; those of a cell for that cell alone."""
    assert run(bridge, "import os; os.environ['OF_THE_CONTEXT']").text == "'there'"
    code = "[os.environ.get(name) for name in ('OF_THE_CONTEXT', 'OF_THE_CELL')]"
    cell = bridge.run(code, kernel="python3", env={"OF_THE_CONTEXT": "other", "OF_THE_CELL": "'\\{}\n\u00e4"}, limit=120)
    assert cell.text == repr(["other", "'\\{}\nä"])
    assert run(bridge, code).text == "['there', None]"
    cell = bridge.run("1/0", kernel="python3", env={"OF_THE_CELL": "x"}, limit=120)
    assert cell.error["name"] == "ZeroDivisionError"
    assert run(bridge, code).text == "['there', None]"
    assert run(bridge, "'before' in dir(), 'name' in dir()").text == "(False, False)"


ODD = "'\"\\$HOME `id` #{1} ${x} %s \n\u00e4\U0001f600"

# Programs that write a variable, or "none", and a mark behind it.
WRITERS = {
    "bash": (["bash", "-c"], "printf '%%s\x1e' \"${%s-none}\""),
    "javascript": (["node", "-e"], "process.stdout.write((process.env['%s'] ?? 'none') + '\x1e')"),
    "julia": (["julia", "-e"], 'print(get(ENV, "%s", "none"), "\x1e")'),
    "perl": (["perl", "-e"], "print(($ENV{'%s'} // 'none') . '\x1e');"),
    "r": (["Rscript", "--vanilla", "-e"], "cat(Sys.getenv('%s', 'none'), '\x1e', sep = '')"),
    "ruby": (["ruby", "-e"], "print(ENV.fetch('%s', 'none'), '\x1e')"),
}


def setters():
    """SETTERS, setter and the classes of the driver, without what must be imported."""
    with open(os.path.join(drivers.ROOT, "src/contexts/bridge.py"), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    wanted = [node for node in tree.body
              if isinstance(node, ast.FunctionDef) and node.name in ("quoted_by", "setter")
              or isinstance(node, ast.ClassDef)
              or isinstance(node, ast.Assign) and node.targets[0].id in ("JAVASCRIPT", "SETTERS", "START_S")]
    names = {"ast": ast, "contextlib": contextlib, "json": json, "re": re, "shlex": shlex}
    exec(compile(ast.Module(wanted, []), "bridge.py", "exec"), names)  # pylint: disable=exec-used
    return names


def test_every_language_has_a_writer():
    assert set(setters()["SETTERS"]) == {*WRITERS, "typescript"}


@pytest.mark.parametrize("language", WRITERS)
def test_code_that_sets_variables_and_puts_them_back(language):
    """Run by the language's own interpreter, as its kernel would."""
    argv, write = WRITERS[language]
    if not shutil.which(argv[0]):
        pytest.skip(f"there is no {argv[0]} on this host")
    setter = setters()["setter"]
    code = []
    for back in (False, True):
        code += [setter(language, name, ODD, back) for name in ("OLD", "NEW")]
        code += [write % name for name in ("OLD", "NEW", "PADDOCK_WAS_NEW")]
    done = subprocess.run([*argv, "\n".join(code)], capture_output=True, check=True,
                          env=drivers.clean({"OLD": "as it was"}), timeout=paddock.seconds(60))
    assert done.stdout.decode().split("\x1e") == [ODD, ODD, "none", "as it was", "none", "none", ""], done.stderr


@pytest.mark.parametrize("name", ["", "A B", "x;id", "a=b", "\u00e4", "9"])
def test_names_that_are_none(name):
    with pytest.raises(ValueError):
        setters()["setter"]("bash", name, "x", False)


class Bash:
    """The client of a kernel of bash: it keeps what it was told, and refuses a variable, or hangs at it."""

    def __init__(self, refused=None, hangs=False):
        self.lines, self.refused, self.hangs = [], refused, hangs

    def execute(self, code, **_):
        refused = self.refused is not None and f"export {self.refused}=" in code
        if refused and self.hangs:
            self.lines.append(code)
            self.refused = None
            raise TimeoutError("the kernel does not answer")
        if not refused:
            self.lines.append(code)
        return {"content": {"status": "error" if refused else "ok", "evalue": "readonly variable"}}

    def variables(self):
        done = subprocess.run(["bash", "-c", "\n".join([*self.lines, "env -0"])], capture_output=True, check=True,
                              env=drivers.clean({"OLD": "as it was"}), timeout=paddock.seconds(60))
        return {name: value for name, _, value in (each.partition("=") for each in done.stdout.decode().split("\0"))
                if name in ("OLD", "SECRET", "LAST") or "PADDOCK" in name}


@pytest.mark.parametrize("wanted, refused, hangs, error", [
    ({"OLD": "other", "SECRET": "s3", "LAST": "x"}, None, False, None),     # the control
    ({"OLD": "other", "SECRET": "s3", "LAST": "x"}, "LAST", False, "has not set LAST: readonly"),
    ({"LAST": "x", "SECRET": "s3", "OLD": "other"}, "OLD", False, "has not set OLD"),
    ({"OLD": "other", "SECRET": "s3", "LAST": "x"}, "LAST", True, "does not answer"),
    ({"OLD": "other", "SECRET": "s3", "no name": "x"}, None, False, "is no name"),
])
def test_where_one_variable_cannot_be_set_none_stays(wanted, refused, hangs, error):
    bridge = object.__new__(setters()["Bridge"])
    bridge.language, bridge.client, inside = "bash", Bash(refused, hangs), None
    try:
        with bridge.variables(wanted):
            inside = bridge.client.variables()
    except (ValueError, TimeoutError) as told:
        assert error and error in str(told), told
    assert (inside is None) == (error is not None)
    assert inside is None or inside == {**wanted, "PADDOCK_WAS_OLD": "as it was"}
    assert bridge.client.variables() == {"OLD": "as it was"}


@pytest.mark.parametrize("wanted", [{"OF_THE_CELL": "s3", "A=B": "x"}, {"A=B": "x", "OF_THE_CELL": "s3"},
                                    {"OF_THE_CONTEXT": "other", "OF_THE_CELL": "s3", "C": "\0"}])
def test_a_kernel_of_python_refuses_all_variables_or_none(bridge, wanted):
    code = "import os; [os.environ.get(name) for name in ('OF_THE_CONTEXT', 'OF_THE_CELL')]"
    assert bridge.run(code, kernel="python3", env={"OF_THE_CELL": "s3"}, limit=120).text == "['there', 's3']"
    cell = bridge.run(code, kernel="python3", env=wanted, limit=120)
    assert cell.error["name"] == "NotSet" and cell.text is None and not cell.end["ok"]
    assert run(bridge, code).text == "['there', None]"


if paddock.NIGHTLY:

    def test_variables_of_a_kernel_of_bash(languages, tmp_path):
        argv = installed(languages)
        described = tmp_path / ".local/share/jupyter/kernels/shell"
        described.mkdir(parents=True)
        (described / "kernel.json").write_text(json.dumps({
            "argv": [argv[0], "-m", "bash_kernel", "-f", "{connection_file}"], "display_name": "Bash", "language": "bash"}))
        driver = start_bridge(languages, argv, tmp_path)
        show = 'echo "$OF_THE_CONTEXT-${OF_THE_CELL-none}-${PADDOCK_WAS_OF_THE_CELL-none}"'

        def said(**env):
            cell = driver.run(show, kernel="bash", env=env, limit=120)
            assert cell.error is None, cell.error
            return "".join(event["text"] for event in cell.all("stdout"))

        assert said() == "there-none-none\n"
        assert said(OF_THE_CONTEXT="other", OF_THE_CELL="it's $HOME") == "other-it's $HOME-none\n"
        assert said() == "there-none-none\n"
        stop_bridge(driver)


def test_memory_is_told(bridge):
    assert run(bridge, "x = bytearray(b'x') * (40 << 20)").end["memory"] > 60 << 20
    assert run(bridge, "del x").end["memory"] < 60 << 20


def test_a_host_without_jupyter_says_127(languages, tmp_path):
    (tmp_path / "jupyter_client.py").write_text("raise ImportError")
    driver = drivers.Driver(languages["bridge"], env={"PYTHONPATH": str(tmp_path)}, wait=False)
    assert driver.process.wait(paddock.seconds(30)) == 127
    driver.stop()
