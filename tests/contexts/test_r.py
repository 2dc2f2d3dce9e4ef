"""The R driver, where the host has R."""

import base64
import os
import shutil
import signal

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


def test_memory_is_told(r):
    before = r.ready["memory"]
    assert before > 4 << 20
    assert r.run("large <- rep(1, 5e6)").end["memory"] > before + (35 << 20)
    r.run("rm(large); invisible(gc())")


def test_plots(r):
    if r.run("unname(capabilities('png'))").text != "[1] TRUE":
        assert r.run("plot(1); file.exists('Rplots.pdf')").results == [{"text/plain": "[1] FALSE"}]
        return
    cell = r.run("plot(1:3); plot(3:1); cat('drawn')", limit=60)
    assert cell.stdout == "drawn" and [sorted(found) for found in cell.results] == [["image/png", "text/plain"]] * 2
    pictures = [base64.b64decode(found["image/png"], validate=True) for found in cell.results]
    assert all(picture.startswith(b"\x89PNG") and picture[-8:-4] == b"IEND" for picture in pictures)
    assert pictures[0] != pictures[1]
    assert r.run("1").results == [{"text/plain": "[1] 1"}]      # they are shown once
    assert len(r.run("plot(1); invisible(dev.off()); plot(2)").results) == 2
    cell = r.run("plot(1); stop('no')")
    assert cell.error["value"] == "no" and cell.results == []
    assert r.run("invisible(2)").results == []

    # A device of the code's own stays, and is its own business.
    assert r.run("mine <- tempfile(); pdf(mine); plot(1)").results == []
    assert r.run("invisible(dev.off()); file.exists(mine)").text == "[1] TRUE"
    assert r.run("file.exists('Rplots.pdf')").text == "[1] FALSE"


def test_a_driver_removes_what_killed_ones_have_left(start, tmp_path):
    if not shutil.which("Rscript"):
        pytest.skip("there is no R on this host")
    first = start("r", env={"TMPDIR": str(tmp_path)})
    left = first.run("cat(tempdir())").stdout
    os.killpg(first.pid, signal.SIGKILL)
    first.process.wait(paddock.seconds(30))
    assert os.path.isdir(left)
    other = start("r", env={"TMPDIR": str(tmp_path)})
    third = start("r", env={"TMPDIR": str(tmp_path)})
    assert third.run("cat(tempdir())").stdout != left and not os.path.exists(left)
    assert os.path.isdir(other.run("cat(tempdir())").stdout)    # the living keep theirs


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


@pytest.mark.parametrize("code", [
    "sum <- function(a, b) a + b; tail <- head <- function(x) x", "c <- paste <- sprintf <- function(...) stop('mine')",
    "rm(list = ls(all.names = TRUE))", "attach(list(paste0 = function(...) 'e', file = 5))", "detach('package:utils')",
    "print.default <- format <- nchar <- function(...) stop('no')"])
def test_what_code_defines_or_removes_does_not_keep_the_driver_from_its_work(start, code):
    if not shutil.which("Rscript"):
        pytest.skip("there is no R on this host")
    driver = start("r")
    assert driver.run("ls(all.names = TRUE)").text == "character(0)"
    driver.run(code)
    assert driver.run("cat('here\\n')", env={"NEW": "a"}).stdout == "here\n"
    assert driver.run("stop('x')").error["value"] == "x"


def test_a_child_that_the_code_forks_is_no_driver(start):
    if not shutil.which("Rscript"):
        pytest.skip("there is no R on this host")
    driver = start("r")
    cell = driver.run("p <- parallel:::mcfork(); if (inherits(p, 'masterProcess')) 'child' else 'parent'")
    assert [r["text/plain"] for r in cell.results] == ['[1] "parent"']
    assert [driver.run("1 + 1").text for _ in range(3)] == ["[1] 2"] * 3


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
