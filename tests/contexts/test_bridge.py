"""The bridge to Jupyter kernels, where the host has jupyter_client and a kernel; Python's own stands for all.

By night also with those of kernels/requirements.txt."""

import importlib.util
import os
import subprocess

import pytest

from paddock_testing import drivers
from paddock_testing import run as paddock


@pytest.fixture(scope="module", params=["host", "kernels"] if paddock.NIGHTLY else ["host"])
def bridge(request, languages, tmp_path_factory):
    argv = languages["bridge"].argv
    if request.param == "kernels":
        install = subprocess.run([os.path.join(drivers.ROOT, "tests/contexts/install")], check=False,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert install.returncode == 0, install.stdout
        argv = [os.path.join(drivers.ROOT, "build-contexts/kernels/bin/python"), *argv[1:]]
    else:
        for module in ("jupyter_client", "ipykernel"):
            if importlib.util.find_spec(module) is None:
                pytest.skip(f"there is no {module} on this host")
    home = tmp_path_factory.mktemp("home")
    driver = drivers.Driver(languages["bridge"], argv=argv, cwd=home, env={"HOME": str(home), "OF_THE_CONTEXT": "there"})
    yield driver
    driver.requests.close()     # the kernel is ended by the bridge
    driver.process.wait(paddock.seconds(60))
    driver.close()


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


def test_a_host_without_jupyter_says_127(languages, tmp_path):
    (tmp_path / "jupyter_client.py").write_text("raise ImportError")
    driver = drivers.Driver(languages["bridge"], env={"PYTHONPATH": str(tmp_path)}, wait=False)
    assert driver.process.wait(paddock.seconds(30)) == 127
    driver.stop()
