"""The R driver, where the host has R."""

import os
import shutil

import pytest

from paddock_testing import run as paddock


@pytest.fixture(params=["own", "foreign"])
def r(start, request):
    """Once with streams that R can open, once with those of another user, which it cannot."""
    if not shutil.which("Rscript"):
        pytest.skip("there is no R on this host")
    if request.param == "own":
        return start("r")
    if os.geteuid() != 0:
        pytest.skip("needs root")
    return start("r", user=65534, cwd="/")


def test_cells(r):
    cell = r.run("x <- 5\ncat('out\\n')\nmessage('err')\nx + 1")
    assert cell.order[0][1]["count"] == 1
    assert cell.stdout == "out\n" and cell.stderr == "err\n" and cell.text == "[1] 6"
    assert r.run("f <- function() x; f()").text == "[1] 5"
    assert r.run("1; 2").results == [{"text/plain": "[1] 1"}, {"text/plain": "[1] 2"}]
    assert r.run("invisible(3)").results == []
    assert r.run("").end["ok"]
    assert r.run("warning('careful'); 7").stderr == "Warning message:\ncareful\n"
    assert r.run("c('ä', '😀')").text == '[1] "ä"  "😀"'
    assert r.run("cat('a\\x1eb')").stdout == "a\x1eb"
    assert r.run("system('echo child; cat')").stdout == "child\n"
    assert r.ready["version"][0].isdigit()


def test_what_is_printed(r):
    cell = r.run("y <- print('Hello'); print(1:2)\nprint(c(a = 1))\ny")
    assert cell.stdout == '[1] "Hello"\n[1] 1 2\na \n1 \n' and cell.text == '[1] "Hello"'
    assert r.run("print(invisible('quiet'))").stdout == '[1] "quiet"\n'
    cell = r.run("print({ cat('before\\n'); stop('no') })")
    assert cell.error["value"] == "no" and cell.stdout == "before\n"
    assert r.run("print(quote(a + b)); print(1L, digits = 3)").stdout == "a + b\n[1] 1\n"
    assert not r.run("print()").end["ok"]
    assert r.run("print(1)").stdout == "[1] 1\n"


def test_errors(r):
    cell = r.run("stop('no')")
    assert cell.error["value"] == "no" and not cell.end["ok"]
    assert r.run("x <- (").error is not None
    assert r.run("no_such_name").error["value"] == "object 'no_such_name' not found"
    assert r.run("sink('/dev/null'); stop('in a sink')").error["value"] == "in a sink"
    assert r.run("cat('on')").stdout == "on"


def test_variables_of_one_cell_are_put_back(r):
    r.run("Sys.setenv(KEPT = 'old')")
    code = "cat(Sys.getenv('KEPT'), Sys.getenv('NEW', 'none'))"
    assert r.run(code, env={"KEPT": "a", "NEW": "b\nc"}).stdout == "a b\nc"
    assert r.run(code).stdout == "old none"


def test_an_interrupt_ends_the_cell_and_keeps_the_variables(r):
    r.run("kept <- 1")
    request = r.start("cat('go\\n'); repeat {}")
    r.wait_for_output(b"go\n")
    r.interrupt()
    assert r.collect(request).error["name"] == "Interrupt"
    r.interrupt()
    assert r.run("kept").text == "[1] 1"


def test_damaged_and_repeated_requests_are_left_out(r):
    r.run("runs <- 0")
    r.send_again_and_damaged("runs <- runs + 1")
    assert r.run("runs").text == "[1] 1"


def test_long_code_and_text(r):
    assert r.run("cat(nchar('" + "x" * 100000 + "'))").stdout == "100000"
    cell = r.run("strrep('a', 3000000)")
    assert cell.end["truncated"] and len(cell.text) < 1_100_000


def test_the_end_of_the_requests_is_the_end_of_the_driver(r):
    r.requests.shutdown(1)
    assert r.process.wait(paddock.seconds(30)) == 0
