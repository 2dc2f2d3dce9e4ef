"""The shell of a session's next line, started in advance: it only saves time.

Inside a sandbox a shell that waits is told by its command line. A line that ran in it has its pid.
"""

import contextlib
import json
import re
import time
from pathlib import Path

import pytest

from helpers import Box, Later
from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.run import wait_for
from paddock_testing.server import Server, check_error

# Of those of its own user: some providers show the processes of others.
PIDS = "/proc/[0-9]*/cmdline | cut -d/ -f3 | while read -r pid; do [ ! -O /proc/$pid ] || echo $pid; done"
FIND = f"grep -lz '[p]roc/self/fd/0 &&' {PIDS}"


def waiting(box):
    """Pids of the shells that wait: of none or one."""
    return [int(pid) for pid in box.exec(argv=["sh", "-c", FIND])["stdout"].split()]


def await_shell(box):
    found = wait_for(lambda: waiting(box), 20, "a shell waits")
    assert len(found) == 1, found
    return found[0]


def await_none(box, limit=20):
    wait_for(lambda: not waiting(box), limit, "no shell waits")


def prepare(box):
    """A line, and then the shell of the next one. After a shell that failed, as on a busy machine it may
    (see run_in_it), there is a pause of a second or more: a line in it is followed by none until it is over."""
    deadline = time.monotonic() + paddock.seconds(20)
    while time.monotonic() < deadline:
        box.out("true")
        with contextlib.suppress(AssertionError):
            wait_for(lambda: waiting(box), 1, "a shell waits")
            break
    return await_shell(box)


def run_in_it(box, line, tries=20):
    """The result of a line that ran in the shell that waited. On a busy machine that may not begin
    within the server's patience (100 ms), and another one runs the line: then once more."""
    for _ in range(tries):
        pid = prepare(box)
        result = box.exec(line)
        if result["pid"] == pid:
            return result
    raise AssertionError(f"in {tries} tries it did not run in the shell that waited: {result}")


def stop(box, pid):
    """Returns when it is: on a busy machine a shell may take a line after the signal was sent."""
    box.exec(argv=["kill", "-STOP", str(pid)])
    wait_for(lambda: "T (stopped)" in box.exec(argv=["cat", f"/proc/{pid}/status"])["stdout"], 10,
             "it is stopped")


@pytest.fixture
def box(api, make_sandbox):
    return Box(api, make_sandbox())


@pytest.fixture(scope="module")
def resting(api):
    """A sandbox that runs one line and rests while the other tests take their time."""
    made = Box(api, api.post("/v1/sandboxes").json()["id"])
    prepare(made)
    yield made, time.monotonic()
    api.delete(made.base)


@pytest.fixture(scope="module", autouse=True)
def rest_first(resting):
    return resting


# ---- what it is ----

def test_the_next_line_runs_in_it(box):
    # SECONDS counts the beginnings of seconds.
    result = run_in_it(box, "echo $$ $# $((SECONDS / 10)); cat; pwd")
    pid = result["pid"]
    assert result["stdout"] == f"{pid} 0 0\n/workspace\n"
    assert result["stderr"] == "" and result["state"] == "updated"
    assert await_shell(box) != pid, "and another one waits"


def test_nobody_sees_it(api, box):
    """Neither lists nor counts, history, metrics nor the audit log know a shell that waits."""
    before = {p["process_id"] for p in box.processes()}
    ran = [box.exec("true")["process_id"], box.exec("true")["process_id"]]
    shell = await_shell(box)
    listed = [p for p in box.processes() if p["process_id"] not in before]
    lines = [p for p in listed if p["command"] == "true"]
    assert [p["process_id"] for p in lines] == ran
    assert all(not p["running"] for p in listed)
    assert box.get()["processes"] == 0
    wait_for(lambda: api.get(f"{box.base}/metrics").json()["pids"] == 1, 10, "init, and nobody else")
    check_error(api.get(f"{box.base}/processes/{shell}"), 404, "not_found")


def test_the_audit_log_has_the_lines_alone():
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as server:
        api = server.client()
        box = Box(api, api.post("/v1/sandboxes").json()["id"])
        for n in range(5):
            box.out(f"echo line-{n}")
            await_shell(box)
        api.close()

        def log():
            return "".join(p.read_text() for p in (Path(server.state_dir) / "server").glob("audit*")
                           if p.is_file())

        wait_for(lambda: "line-4" in log(), 10, "it is written")
        events = [json.loads(row) for row in log().splitlines()]
        assert sum("line-" in json.dumps(event) for event in events) == 5
        assert "trap" not in log() and "/proc/self/fd/0 &&" not in log()


@pytest.mark.parametrize("body", [
    {"cwd": "/tmp"}, {"env": {"A": "b"}}, {"user": "root"}, {"stdin": "text"},
    {"file_size_bytes": 1 << 20}])
def test_a_request_of_its_own_kind_has_its_own_shell(box, body):
    pid = prepare(box)
    result = box.exec("echo $PWD $A $(cat)", **body)
    assert result["exit_code"] == 0 and result["pid"] != pid, result
    assert await_shell(box) == pid, "it waits on"


@pytest.mark.parametrize("line", ["set -ex; true", "set -o xtrace; true", ": " + "x" * 16000,
                                  "echo $BASH_EXECUTION_STRING"])
def test_a_line_that_would_notice_has_its_own_shell(box, line):
    pid = prepare(box)
    assert box.exec(line)["pid"] != pid
    assert await_shell(box) == pid


def test_another_environment_has_another_shell(api, box):
    pid = prepare(box)
    assert api.put(f"{box.base}/env", json={"env": {"NEW": "1"}}).status == 200
    result = box.exec("echo $NEW")
    assert result["stdout"] == "1\n" and result["pid"] != pid
    assert await_shell(box) != pid
    result = run_in_it(box, "echo $NEW $$")
    assert result["stdout"] == f"1 {result['pid']}\n"


def test_a_shell_that_is_slow_to_end_is_followed_by_another(api, box):
    """The line that cannot use it is over before it is."""
    pid = prepare(box)
    stop(box, pid)
    assert api.put(f"{box.base}/env", json={"env": {"NEW": "1"}}).status == 200
    assert box.out("echo $NEW") == "1\n"
    wait_for(lambda: len(found := waiting(box)) == 1 and found != [pid], 20, "another one waits, alone")


def test_a_variable_that_changes_how_bash_starts(api, box):
    """A file that bash reads when it starts is read when the line starts, as ever."""
    box.exec(argv=["sh", "-c", "echo 'echo from-start; cd /tmp' > start"])
    prepare(box)
    assert api.put(f"{box.base}/env", json={"env": {"BASH_ENV": "/workspace/start"}}).status == 200
    assert box.out("pwd") == "from-start\n/tmp\n"


# ---- a line means the same ----

LINES = [
    "true", "false", "exit 7", "exit", "exit 300", "(exit 9)", "false || exit", ": ; exit 5 # c", " ",
    "# only a comment", "\n\n  echo spaced  \n", "echo hello", "echo out; echo err >&2",
    "nosuchprogram_x", "echo a\nnosuch_y\necho b", "ls /nonexistent_x", "cd /nonexistent_dir",
    "cd /usr && export A='b c' D=$'x\\ny'", "echo $A \"$D\" $PWD $OLDPWD; cd /workspace",
    "export -n A; unset D; declare -x E=1; F=2", "echo ${A-none} ${D-none} $E ${F-none}",
    "unset PATH; /bin/true", "export PATH=/usr/bin:/bin", "export HOME=/tmp; echo ~",
    "echo \"$0 $# $* $-\"", "echo $_", "echo $? $LINENO\necho $LINENO", "f() { echo $LINENO; return 3; }; f",
    "return 4; echo after", "break", "echo 'it'\\''s' \"q\" `echo b` $(echo s)", "echo \\\\ '\\' \"\\$\"",
    "echo \u00fcn\u00efcode \u2713 \u0001 \u007f | od -c", "x=5; echo $((x*2))", "echo $(( 1/0 )); echo after",
    "set -e; false; echo no", "set -u; echo $UNSET_VAR; echo no", "set -o pipefail; false | true",
    "set -v; echo a\necho b", "trap 'echo err' ERR; false", "trap 'echo dbg' DEBUG; true", "trap",
    "trap 'echo mine' EXIT", "trap 'echo usr' USR1; kill -USR1 $$; echo on", "kill -9 $$", "kill -TERM $$",
    "exec /bin/echo replaced", "exec 2>&1; nosuch; echo $?", "exec 3>&1; echo three >&3",
    "cat", "read v; echo \"[$v] $?\"", "cat <<E\nhere $E\nE", "cat <<'E'\nhere $E\nE\necho after", "cat <<E\nopen",
    "cat <<< word", "cat < /nonexistent; echo $?", "sleep 0.1 & echo bg", "sleep 0.1 & wait; echo $?", "jobs; wait; echo $?",
    "coproc cat; echo $?", "true | false | true; echo ${PIPESTATUS[*]}", "printf '%s\\n' a{1..3}",
    "for i in 1 2 3; do [ $i = 2 ] && break; echo $i; done", "if", "echo a\nif\necho b", "${bad", "echo 'open", "echo a )",
    "shopt -s expand_aliases; alias zz='echo alias'\nzz", "shopt -s nullglob; echo /none*", "shopt | md5sum", "set -o | md5sum",
    "source /nonexistent", "echo 'echo sourced $LINENO' > s; . ./s; rm s", "eval 'echo deep; exit 3'",
    "echo \"[$BASH_SOURCE] [${FUNCNAME[0]}] $BASH_LINENO $BASH_SUBSHELL $BASH_COMMAND\"", "caller; echo $?",
    "declare -p REPLY line 2>&1", "echo $((SECONDS / 10)) $SHLVL", "typeset -i n=08", "command -v ls; type -t cd; hash",
    "history | wc -l", "umask; ulimit -a | md5sum", "ls /proc/$$/fd", "test -t 0; echo $?; test -p /dev/stdin; echo $?",
    "readlink /proc/$$/fd/0", "(ulimit -f 1; head -c 4096 /dev/zero > big) 2>&-; r=$?; rm -f big; echo $r", "echo $(echo $BASH_SUBSHELL)",
    "set a b; echo $#; shift; echo $1", "getopts a o -a; echo $o", "function g { local x=1; echo $x; }; g; declare -F",
    "export -f nosuch_f; echo $?", "set +x; echo no trace", "env | grep -v '^_=' | sort", "python3 -c 'print(1); import sys; sys.exit(4)'",
    "head -c 300000 /dev/zero | tr '\\0' x", "yes | head -3", "[[ -o errexit ]]; echo $?", "exit 3 &\nwait $!; echo $?",
]

COMPARED = ("exit_code", "signal", "timed_out", "stopped_by", "state", "stdout", "stderr")


def level(result):
    """What differs and is documented: a syntax error names `eval`, where it would name `-c`."""
    seen = {key: result[key] for key in COMPARED}
    seen["stderr"] = re.sub(r"^(/bin/bash: )(eval|-c): ", r"\1", seen["stderr"], flags=re.M)
    return seen


@pytest.fixture(scope="module")
def plain():
    """A sandbox of a server that prepares no shells."""
    with Server({"requests_per_s": 0, "creates_per_s": 0, "prepared_shell": "off"}) as server:
        api = server.client()
        yield Box(api, api.post("/v1/sandboxes").json()["id"])
        api.close()


@pytest.fixture(scope="module")
def prompt(api):
    """One of the server that does. Both go through the same lines, one after the other."""
    made = Box(api, api.post("/v1/sandboxes").json()["id"])
    yield made
    api.delete(made.base)


@pytest.mark.parametrize("line", LINES)
def test_a_line_means_the_same(plain, prompt, line):
    for _ in range(20):  # see run_in_it
        pid = prepare(prompt)
        plain.out("true")  # as often as the other: what it exported is the session's by now
        here, there = prompt.exec(line), plain.exec(line)
        assert level(here) == level(there)
        assert prompt.env() == plain.env(), "the state that it left"
        if here["pid"] == pid:
            return
    raise AssertionError("it did not run in the shell that waited")


# ---- when it fails ----

def test_killed_while_it_waits(box):
    pid = prepare(box)
    box.exec(argv=["kill", "-9", str(pid)])
    await_none(box)
    assert box.out("echo again") == "again\n"
    assert prepare(box) != pid


def test_killed_at_the_moment_of_its_line(box):
    """A killer who never rests: whether before, with or after the line, it runs once or is killed."""
    box.out("cat > killer <<'E'\nimport os, signal, time\nwhile True:\n"
            "    for p in filter(str.isdigit, os.listdir('/proc')):\n"
            "        try:\n"
            "            if b'/proc/self/fd/0 &&' in open(f'/proc/{p}/cmdline', 'rb').read():\n"
            "                os.kill(int(p), signal.SIGKILL)\n"
            "        except OSError: pass\n"
            "    time.sleep(0.001)\nE")
    killer = box.start("exec python3 killer")
    ran = 0
    for n in range(60):
        result = box.exec(f"echo {n} >> ran; echo {n}")
        if result["exit_code"] == 0:
            assert result["stdout"] == f"{n}\n"
            ran += 1
        else:
            assert result["signal"] in (9, "SIGKILL", "KILL"), result
    box.signal(killer["process_id"], "KILL")
    box.wait(killer["process_id"])
    lines = box.out("cat ran").split()
    assert len(lines) == len(set(lines)), "no line ran twice"
    assert len(lines) >= ran


def test_stopped_while_it_waits(box):
    """Its line runs elsewhere, once; the shell is killed."""
    pid = prepare(box)
    stop(box, pid)
    began = time.monotonic()
    result = box.exec("echo $$ >> ran; cat ran; cd /tmp")
    assert result["exit_code"] == 0 and result["state"] == "updated", result
    assert result["stdout"].split() != [str(pid)] and len(result["stdout"].split()) == 1
    assert time.monotonic() - began < paddock.seconds(10)
    wait_for(lambda: box.exec(argv=["test", "-e", f"/proc/{pid}"])["exit_code"] == 1, 10, "it is gone")
    assert box.out("pwd; wc -l < /workspace/ran") == "/tmp\n1\n"
    listed = [p for p in box.processes() if "cat ran" in p["command"]]
    assert [p["process_id"] for p in listed] == [result["process_id"]]


def test_stopped_with_everybody_else(box):
    prepare(box)
    box.exec("kill -STOP -1", env={"A": "b"}, timeout_s=2)
    assert box.exec("echo alive")["stdout"] == "alive\n"


def test_stopped_and_continued_again_and_again(box):
    """The text is taken back or the shell has it: never both."""
    box.out("cat > stopper <<'E'\nimport os, signal, time\nwhile True:\n"
            "    for p in filter(str.isdigit, os.listdir('/proc')):\n"
            "        try:\n"
            "            if b'/proc/self/fd/0 &&' in open(f'/proc/{p}/cmdline', 'rb').read():\n"
            "                os.kill(int(p), signal.SIGSTOP)\n"
            "                time.sleep(0.098)\n"
            "                os.kill(int(p), signal.SIGCONT)\n"
            "        except OSError: pass\n"
            "    time.sleep(0.001)\nE")
    stopper = box.start("exec python3 stopper")
    for n in range(40):
        result = box.exec(f"echo {n} >> ran; echo {n}", timeout_s=20)
        assert result["exit_code"] == 0 and result["stdout"] == f"{n}\n", result
    box.signal(stopper["process_id"], "KILL")
    assert box.out("cat ran").split() == [str(n) for n in range(40)]


def test_two_lines_at_once(box):
    for _ in range(20):  # see run_in_it
        pid = prepare(box)
        first = Later(lambda: box.exec("echo $$; until [ -e go ]; do sleep 0.02; done; cd /tmp"))
        found = wait_for(lambda: [p for p in box.processes() if p["running"]], 10, "the first runs")
        if found[0]["pid"] == pid:
            break
        box.exec(argv=["touch", "/workspace/go"])
        first.get()
        box.out("cd /workspace; rm go")
    second = box.exec("echo $$; cd /usr")
    assert second["state"] != "updated" and second["stdout"] != f"{pid}\n"
    box.exec(argv=["touch", "/workspace/go"])
    assert first.get()["stdout"] == f"{pid}\n" and box.out("pwd") == "/tmp\n"


@pytest.mark.parametrize("change", ["rm -r /workspace/d", "rm -r d; mkdir d", "chmod 0 d"])
def test_its_directory_changed(box, change):
    """As a shell that starts now would find it: the error of today, or the new directory."""
    box.out("mkdir d; cd d")
    pid = prepare(box)
    box.exec(argv=["sh", "-c", change], cwd="/workspace")
    answer = box.ask("touch here; echo $$")
    if "mkdir" in change:
        assert answer.json()["exit_code"] == 0 and answer.json()["pid"] != pid
        assert box.exec(argv=["ls", "/workspace/d"], cwd="/")["stdout"] == "here\n"
    else:
        check_error(answer, 400, "invalid", says="/workspace/d")


def test_a_link_that_points_elsewhere(box):
    box.out("mkdir one two; ln -s one link; cd link")
    await_shell(box)
    box.exec(argv=["ln", "-sfn", "two", "link"], cwd="/workspace")
    box.out("touch here")
    assert box.exec(argv=["ls", "one", "two"], cwd="/workspace")["stdout"] == "one:\n\ntwo:\nhere\n"


def test_its_sandbox_is_nearly_full(api, make_sandbox):
    box = Box(api, make_sandbox(limits={"pids": 20}))
    pid = prepare(box)
    more = box.start("for i in {1..16}; do sleep 1000 & done; wait")
    wait_for(lambda: api.get(f"{box.base}/metrics").json()["pids"] >= 17, 10, "they run")
    wait_for(lambda: not box.exec(argv=["test", "-e", f"/proc/{pid}"])["exit_code"] == 0, 10, "gone")
    time.sleep(1.1)  # figures may be a second old
    box.out("true")
    box.out("true")
    assert box.exec("true")["stopped_by"] is None
    assert box.exec(argv=["sh", "-c", "grep -z '[p]roc/self/fd/0 &&' /proc/[0-9]*/cmdline"])["exit_code"]
    box.signal(more["process_id"], "KILL")
    wait_for(lambda: box.exec("true") and waiting(box), 20, "one waits again")


def test_its_sandbox_is_nearly_out_of_memory(api, make_sandbox):
    """No shell waits at nine tenths of the memory; it would be the first to be missed."""
    limit = 128 << 20
    box = Box(api, make_sandbox(limits={"memory_bytes": limit}))
    pid = prepare(box)

    def used():
        return api.get(f"{box.base}/metrics").json()["memory_bytes"]

    held = []

    def fill(size):
        before = used()
        held.append(box.start(f"head -c {size} /dev/zero | tail -c {size} | sleep 1000")["process_id"])
        wait_for(lambda: used() >= before + size * 0.9, 20, f"{size} bytes are held")

    def lowest():
        """Without what commands take that are just beginning or ending."""
        return min(used() for _ in range(20))

    def fill_up():
        while lowest() < limit * 0.92:
            fill(3 << 20)
        wait_for(lambda: box.exec(argv=["test", "-e", f"/proc/{pid}"])["exit_code"] != 0, 20, "gone")

    fill(80 << 20)
    fill_up()

    # Each line that ends would have another one made.
    shown = 0
    for n in range(20):
        assert box.out(f"echo {n}") == f"{n}\n"
        wait_for(lambda: box.get()["processes"] == len(held), 20, "the line has ended")
        if found := waiting(box):
            assert lowest() < limit * 0.9, (n, found)
            pid = found[0]
            fill_up()  # the kernel took some of it away
        else:
            shown += 1
        if shown == 3:
            break
    assert shown == 3
    for process in held:
        box.signal(process, "KILL")
    wait_for(lambda: box.exec("true") and waiting(box), 20, "one waits again")


# ---- time-outs and trees ----

@pytest.mark.parametrize("line", ["sleep 60", "sleep 60 & sleep 61 & wait", "trap '' TERM; sleep 60",
                                  "setsid sleep 60; sleep 60"])
def test_time_out_takes_the_tree(box, line):
    prepare(box)
    result = box.exec(line, timeout_s=0.3)
    assert result["timed_out"] and result["stopped_by"] == "timeout", result
    wait_for(lambda: not box.exec(argv=["sh", "-c", f"grep -lz '^slee[p]' {PIDS}"])["stdout"],
             10, "no sleep is left")
    assert box.out("echo on") == "on\n"


def test_killed_by_its_id(box):
    prepare(box)
    line = Later(lambda: box.exec("sleep 60 & sleep 60"))
    found = wait_for(lambda: [p for p in box.processes() if p["running"]], 10, "it runs")
    assert box.signal(found[0]["process_id"], "KILL").status in (200, 204)
    assert line.get()["stopped_by"] == "killed"


# ---- pause, copies, restarts ----

def test_pause_gives_it_up(api, box):
    pid = prepare(box)
    assert api.post(f"{box.base}/pause").status in (200, 204)
    assert api.post(f"{box.base}/resume").status in (200, 204)
    assert not waiting(box)
    assert box.exec("true")["pid"] != pid
    await_shell(box)


def test_pause_of_one_that_is_stopped(api, box):
    pid = prepare(box)
    stop(box, pid)
    assert api.post(f"{box.base}/pause").status in (200, 204)
    assert api.post(f"{box.base}/resume").status in (200, 204)
    assert not waiting(box) and box.out("echo on") == "on\n"


@pytest.mark.parametrize("copy", ["snapshots", "fork"])
def test_copies_give_it_up(api, box, copy):
    prepare(box)
    answer = api.post(f"/sandboxes/{box.id}/{copy}", json={})
    assert answer.status in (200, 201), answer
    assert not waiting(box)
    made = answer.json()
    if copy == "fork":
        made = made[0] if isinstance(made, list) else made
        api.delete(f"/sandboxes/{made.get('sandboxID') or made['sandbox']['sandboxID']}")
    else:
        api.delete(f"/templates/{made['snapshotID']}")


def test_sleep_gives_it_up(api, box):
    prepare(box)
    assert api.post(f"/sandboxes/{box.id}/pause", json={"memory": False}).status == 204
    assert api.post(f"{box.base}/resume").status in (200, 204)
    assert not waiting(box) and box.out("echo on") == "on\n"


@pytest.mark.parametrize("stopped", [False, True])
def test_the_next_server_ends_it(stopped):
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as server:
        api = server.client()
        box = Box(api, api.post("/v1/sandboxes").json()["id"])
        pid = prepare(box)
        if stopped:
            stop(box, pid)
        listed = len(box.processes())
        server.kill()
        server.start()
        api.close()
        box = Box(server.client(), box.id)
        assert len(box.processes()) <= listed and not any(p["running"] for p in box.processes())
        wait_for(lambda: pid not in waiting(box), 20, "it is gone")
        assert box.out("echo on") == "on\n"
        prepare(box)


def await_stash(server, box, pid):
    """Until the keeper has the streams of a command: all that the next server knows them by."""
    pipes = set(box.exec(argv=["readlink", *(f"/proc/{pid}/fd/{n}" for n in (1, 2, 63))])["stdout"].split())
    assert len(pipes) == 3, pipes
    wait_for(lambda: pipes <= {target for keeper in server.keepers() for target in host.descriptors(keeper).values()},
             10, "the keeper has its streams")


def test_a_line_goes_on_through_a_restart():
    """The byte with which it began is no part of its state."""
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as server:
        api = server.client()
        box = Box(api, api.post("/v1/sandboxes").json()["id"])
        for _ in range(20):  # see run_in_it
            pid = prepare(box)
            Later(lambda: box.exec("cd /tmp; export KEPT=1; until [ -e go ]; do sleep 0.02; done; "
                                   "rm go; echo out"))
            found = wait_for(lambda: [p for p in box.processes() if p["running"]], 10, "it runs")
            if found[0]["pid"] == pid:
                break
            box.exec(argv=["touch", "/tmp/go"], cwd="/tmp")
            box.wait(found[0]["process_id"])
        assert found[0]["pid"] == pid
        wait_for(lambda: server.rows("SELECT 1 FROM processes WHERE id = ?",
                                     bytes.fromhex(found[0]["process_id"])), 10, "its row is written")
        await_stash(server, box, pid)
        server.kill()
        server.start()
        box = Box(server.client(), box.id)
        box.exec(argv=["touch", "/tmp/go"], cwd="/tmp")
        assert box.wait(found[0]["process_id"])["exit_code"] == 0
        assert box.out("echo $PWD $KEPT") == "/tmp 1\n"


def test_it_is_given_up_after_a_while(resting):
    """Last in this file: others have taken most of the 30 s."""
    box, since = resting
    await_none(box, 45)
    assert time.monotonic() - since > 25
