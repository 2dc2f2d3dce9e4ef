"""The Java driver, where the host has a JDK. One driver for all of it: a JVM takes long to start."""

import os
import shutil

import pytest

from paddock_testing import drivers
from paddock_testing import run as paddock


@pytest.fixture(scope="module")
def java(languages, tmp_path_factory):
    if not shutil.which("jshell"):
        pytest.skip("there is no JDK on this host")
    place = tmp_path_factory.mktemp("java")
    driver = drivers.Driver(languages["java"], cwd=place, env={"TMPDIR": str(place), "OF_THE_BOX": "yes"})
    assert os.listdir(place) == []      # the source is not left there
    yield driver
    driver.stop()


def test_cells(java):
    cell = java.run("int x = 5;\nSystem.out.println(\"out\");\nSystem.err.print(\"err\");\nx + 1", limit=60)
    assert cell.text == "6" and cell.end["ok"]
    assert [event["text"] for event in cell.all("stdout")] == ["out", "\n"]
    assert [event["text"] for event in cell.all("stderr")] == ["err"]
    assert java.run("x").text == "5"
    assert java.run("int twice(int n) { return 2 * n; }\ntwice(x)").text == "10"
    assert java.run("\"ä😀\"").text == "\"ä😀\""
    assert java.run("import java.util.List;\nList.of(1, 2)").text == "[1, 2]"
    assert java.run("").end["ok"]
    assert java.run("int y = 7;").results == []


@pytest.mark.parametrize("code, name", [
    ("throw new IllegalStateException(\"no\")", "IllegalStateException"), ("int wrong = \"a\";", "CompilationException"),
    ("nothing()", "CompilationException"), ("1 / 0", "ArithmeticException")])
def test_errors(java, code, name):
    cell = java.run("int kept = 3;\n" + code)
    assert cell.error["name"] == name and not cell.end["ok"]
    assert java.run("kept").text == "3"


def test_memory_is_told(java):
    before = java.ready["memory"]
    assert before > 8 << 20
    assert java.run("var held = new ArrayList<byte[]>(); for (int i = 0; i < 8; i++) held.add(new byte[8 << 20]);").end["memory"] > before + (48 << 20)


def test_variables_are_properties(java):
    code = "System.getProperty(\"OF_THE_BOX\") + System.getProperty(\"NEW\")"
    assert java.run(code, env={"OF_THE_BOX": "a", "NEW": "b"}).text == "\"ab\""
    assert java.run(code).text == "\"yesnull\""


def test_an_interrupt_ends_the_cell_and_keeps_the_variables(java):
    java.run("int kept = 4;")
    request = java.start("Thread.sleep(1000000);")
    java.interrupt()
    assert java.collect(request).error["name"] == "Interrupt"
    assert java.run("kept").text == "4"


def test_a_late_interrupt_does_not_hit_the_next_cell(java):
    """The server sends `settle` first, when it has interrupted the cell before."""
    java.run("int kept2 = 1;")
    for number in range(20):
        java.run("1")
        java.interrupt()
        java.send({"code": ""}, request=f"settle-{number}")
        cell = java.run("for (int i = 0; i < 3; i++) Thread.sleep(1);\nkept2")
        assert cell.error is None and cell.text == "1", (number, cell.error)
    java.send({"code": ""}, request="settle-twice")     # one that never comes is not waited for for ever
    assert java.run("kept2").text == "1"


def test_damaged_and_repeated_requests_are_left_out(java):
    java.run("int runs = 0;")
    java.send_again_and_damaged("runs++;")
    assert java.run("runs").text == "1"


def test_threads_that_print_when_their_cell_is_over(java):
    """Whatever they print belongs to a cell that runs, or to none."""
    java.run("var stop = new java.util.concurrent.atomic.AtomicBoolean();\n"
             "for (int i = 0; i < 3; i++) new Thread(() -> { while (!stop.get()) System.out.print('x'); }).start();")
    for _ in range(paddock.rounds(30, 500)):
        assert java.run("1 + 1").text == "2"
    java.run("stop.set(true);")
    assert java.run("1 + 1").text == "2"


def test_streams_that_are_gone(java):
    java.run("int kept3 = 5; System.setOut(null);")
    told = java.run("System.out.print('a');").all("stdout")
    assert [event["text"] for event in told] == ["a"]
    assert java.run("kept3").text == "5"


def test_long_text(java):
    cell = java.run("\"a\".repeat(3000000)")
    assert cell.text is not None and len(cell.text) < 1_100_000


def test_a_host_without_java_says_127(languages, tmp_path):
    (tmp_path / "sh").symlink_to("/bin/sh")
    driver = drivers.Driver(languages["java"], argv=[str(tmp_path / "sh"), *languages["java"].argv[1:]],
                            env={"PATH": str(tmp_path)}, wait=False)
    assert driver.process.wait(paddock.seconds(30)) == 127
    driver.stop()
