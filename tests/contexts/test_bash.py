"""The bash driver: cells in one shell."""

import pytest

from paddock_testing import drivers
from paddock_testing import run as paddock


@pytest.fixture
def bash(start):
    return start("bash")


def test_a_cell(bash):
    cell = bash.run("echo out; echo err >&2")
    assert cell.order[0][1]["count"] == 1
    assert cell.order[1:3] == [("stdout", "out\n"), ("stderr", "err\n")]
    assert cell.end["ok"] and bash.ready["version"][0].isdigit()
    assert bash.run("true").order[0][1]["count"] == 2


def test_what_stays(bash, tmp_path):
    bash.run("name=n; declare -A map=([k]=v); REPLY=r; code=c")
    assert bash.run("echo $name ${map[k]} $REPLY $code $# $1").stdout == "n v r c 0\n"
    bash.run("x=5; f() { echo \"f $x\"; }; alias a='echo aliased'; cd /; a=(1 '2 3')")
    assert bash.run("f; a; pwd; printf '%s|' \"${a[@]}\"").stdout == "f 5\naliased\n/\n1|2 3|"


@pytest.mark.parametrize("code, status", [("false", 1), ("(exit 7)", 7), ("if", 1), ("no_such_command_", 127)])
def test_a_status_is_an_error(bash, code, status):
    cell = bash.run(code)
    assert cell.error["name"] == "ExitStatus" and cell.error["value"] in (f"exit status {status}", "exit status 2")
    assert not cell.end["ok"]
    assert bash.run("echo on").stdout == "on\n"


def test_variables_of_one_cell_are_put_back(start):
    bash = start("bash", env={"KEPT": "old"})
    show = "echo \"$KEPT ${NEW-none}\"; printenv NEW"
    assert bash.run(show + " || true", env={"KEPT": "a 'b'", "NEW": "c\nd"}).stdout == "a 'b' c\nd\nc\nd\n"
    assert bash.run(show + " || true").stdout == "old none\n"


def test_options_of_the_code_are_its_own(bash):
    assert bash.run("set -u; echo set").end["ok"]
    assert bash.run("set -x; true").stderr.endswith("+ true\n")
    assert "+ echo traced" in bash.run("echo traced").stderr
    assert "__pd" not in bash.run("set +x; echo $-").stderr.replace("set +x", "")
    assert "u" in bash.run("echo $-").stdout
    assert bash.run("IFS=,; x=a,b; echo $x").stdout == "a b\n"
    assert bash.run("printf() { echo mine; }; read() { :; }; echo still").stdout == "still\n"
    assert bash.run("echo here").stdout == "here\n"


@pytest.mark.parametrize("code", ["set -e; false; echo no", "set -u; echo $no_such; echo no"])
def test_code_that_leaves_the_shell_has_an_end(start, code):
    bash = start("bash")
    cell = bash.run("echo first; " + code)
    assert cell.stdout == "first\n" and cell.error["name"] == "ExitStatus" and not cell.end["ok"]
    assert bash.process.wait(paddock.seconds(30)) != 0


@pytest.mark.parametrize("code", ["exit 3", "f() { exit 3; echo no; }; f; echo no", "(exit 3) || exit; echo no",
                                  "for i in 1 2; do [ $i = 1 ] && exit 3; echo no; done"])
def test_exit_ends_the_cell_and_keeps_the_variables(bash, code):
    bash.run("kept=1")
    cell = bash.run("echo first; " + code)
    assert cell.stdout == "first\n" and cell.error["value"] == "exit status 3"
    assert bash.run("echo $kept; (exit 4); echo $?; x=$(exit 5) || echo $?").stdout == "1\n4\n5\n"
    assert bash.run("exit 0").end["ok"]


def test_children_have_none_of_the_drivers_descriptors(bash):
    assert len(bash.run("ls /proc/self/fd").stdout.split()) == 4
    assert bash.run("cat").stdout == ""


@pytest.mark.parametrize("code", [
    "echo go; sleep 1000", "echo go; while :; do :; done", "f() { while :; do :; done; }; echo go; f; echo no",
    "echo go; sleep 1000; echo no", "g() { f; echo no; }; f() { sleep 1000; echo no; }; echo go; g; echo no",
    "echo go; (while :; do :; done); echo no", "echo go; while sleep 0.01; do :; done", "echo go; sleep 1000 | cat; echo no"])
def test_an_interrupt_ends_the_cell_and_keeps_the_variables(bash, code):
    bash.run("kept=1")
    request = bash.start(code)
    bash.wait_for_output(b"go\n")
    cell = bash.interrupt_until_end(request)
    assert cell.stdout == "go\n"
    assert cell.error["name"] == "Interrupt"
    assert bash.run("echo $kept").stdout == "1\n"
    assert bash.run("f() { echo f; }; f; echo g").stdout == "f\ng\n"


def test_interrupts_at_any_moment(bash):
    for n in range(paddock.rounds(30, 500)):
        bash.interrupt()
        request = bash.start("while :; do :; done")
        bash.interrupt()
        assert bash.collect(request).error["name"] == "Interrupt"


def test_memory_is_told(bash):
    before = bash.ready["memory"]
    assert 1 << 18 < before < 16 << 20
    assert bash.run("printf -v text %8000000s").end["memory"] > before + (7 << 20)
    assert bash.run("unset text; false").end["memory"] < before + (4 << 20)


def test_damaged_and_repeated_requests_are_left_out(bash):
    bash.run("runs=0")
    first = bash.send({"code": "runs=$((runs + 1))"})
    line = bash.sent_line
    bash.collect(first)
    name, crc, data = line.split()
    for bad in (line, b"\n", b"x\n", b"new " + crc[:-1] + b"0 " + data + b"\n", b"new2 zzzzzzzz " + data + b"\n",
                b"new3 " + crc + b" !!!\n", b"bad$id " + crc + b" " + data + b"\n", b"new4 " + crc + b" " + data[:-4] + b"\n"):
        if bad != b"new " + crc + b" " + data + b"\n":
            bash.requests.sendall(bad)
    assert bash.run("echo $runs").stdout == "1\n"


@pytest.mark.parametrize("code", ["printf 'ä€😀'", ": " + "x" * 5000 + "; printf long", "printf %s 'a\x1eb'", "printf '%s' '\x7f'",
                                  "printf a # ends in a comment", "cat <<E\nhere\nE", ""])
def test_text(bash, code):
    assert bash.run(code).end["ok"]


def test_text_arrives_as_it_is(bash):
    assert bash.run("printf 'ä€😀\\x1e'").stdout == "ä€😀\x1e"
    assert bash.run("echo \"" + "ä" * 4000 + "\"").stdout == "ä" * 4000 + "\n"


@pytest.mark.parametrize("code", [
    "PATH=/nowhere", "unset PATH", "base64() { return 1; }; gzip() { return 1; }", "printf() { :; }; eval() { :; }; read() { :; }",
    "readonly code=1 crc=1 i=1 bit=1 id=1 entry=1 name=1 status=1 line=1", "IFS=x", "set -f; shopt -s nullglob failglob"])
def test_what_code_changes_does_not_keep_the_driver_from_its_work(bash, code):
    bash.run(code)
    for more in ("echo here", "# " + "x" * 3000 + "\necho here"):
        assert bash.run(more, env={"name": "b"}).stdout == "here\n"


def test_a_host_without_base64_says_127(languages, tmp_path):
    (tmp_path / "bash").symlink_to("/bin/bash")
    driver = drivers.Driver(languages["bash"], argv=[str(tmp_path / "bash"), *languages["bash"].argv[1:]],
                            env={"PATH": str(tmp_path)}, wait=False)
    assert driver.process.wait(paddock.seconds(30)) == 127
    driver.stop()


def test_code_that_closes_its_streams(bash):
    bash.run("exec 1>&- 2>&-")
    assert bash.run("true").kinds() == ["start", "end"]


def test_the_end_of_the_requests_is_the_end_of_the_driver(bash):
    bash.requests.shutdown(1)
    assert bash.process.wait(paddock.seconds(30)) is not None


def test_a_process_that_ends_itself(bash):
    bash.send({"code": "kill -9 $$"})
    assert bash.event()[0]["type"] == "start"
    with pytest.raises(drivers.Ended):
        bash.event()
