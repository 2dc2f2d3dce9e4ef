"""exec: one command, its result or its events, what it leaves and how it is ended."""

import base64
import hashlib
import http.client
import json
import os
import time
from pathlib import Path

import pytest

from helpers import Box, Later, collect, read_events, stream_exec, together
from paddock_testing import battery
from paddock_testing.files import Files
from paddock_testing.run import seconds, wait_for
from paddock_testing.server import check_error

FIELDS = {
    "exit_code", "signal", "stdout", "stderr", "stdout_truncated", "stderr_truncated", "timed_out",
    "stopped_by", "state", "execution_time_ms", "cpu_time_ms", "max_rss_bytes", "process_id", "pid",
    "stdout_bytes", "stderr_bytes"}


@pytest.fixture
def box(api, sandbox):
    return Box(api, sandbox)


# ---- the result ----


def test_the_record(box):
    result = box.exec("echo out; echo err >&2; exit 7")
    assert set(result) == FIELDS
    assert result["exit_code"] == 7 and result["signal"] is None
    assert result["stdout"] == "out\n" and result["stderr"] == "err\n"
    assert result["stdout_bytes"] == 4 and result["stderr_bytes"] == 4
    assert result["stdout_truncated"] is False and result["stderr_truncated"] is False
    assert result["timed_out"] is False and result["stopped_by"] is None
    assert result["state"] == "updated"
    assert result["execution_time_ms"] > 0 and result["cpu_time_ms"] >= 0
    assert result["max_rss_bytes"] > 0
    assert len(result["process_id"]) == 32 and result["pid"] > 1


def test_the_process_id_is_in_a_header(box):
    answer = box.ask("true")
    assert answer.headers["X-Process-Id"] == answer.json()["process_id"]
    assert "Idempotent-Replayed" not in answer.headers


def test_argv_is_taken_as_it_is(box):
    result = box.exec(argv=["printf", "%s|", "a b", "$HOME", "*", "", "ä"])
    assert result["stdout"] == "a b|$HOME|*||ä|" and result["state"] is None


def test_words_in_the_place_of_a_line_are_told_where_they_belong(box):
    answer = box.ask(["true"])
    assert answer.status == 400 and answer.json()["error"]["message"] == "command: is a line for bash; a list of words is argv"


def test_signals(box):
    result = box.exec("kill -SEGV $$")
    assert result["exit_code"] is None and result["signal"] == "SIGSEGV"
    assert result["stopped_by"] is None


def test_standard_input(box):
    assert box.exec("cat", stdin="äöü\nx")["stdout"] == "äöü\nx"
    assert box.exec("wc -c", timeout_s=60)["stdout"] == "0\n", "without input it is empty"
    data = os.urandom(700_000)
    result = box.exec("sha256sum", stdin_base64=base64.b64encode(data).decode())
    assert result["stdout"].split()[0] == hashlib.sha256(data).hexdigest()
    assert box.exec("wc -c", stdin="x" * 40_000)["stdout"] == "40000\n"


def test_environment_directory_and_user(box):
    out = box.out('echo "$A|$B|$PWD|$HOME|$(id -un)"', env={"A": "1 2", "B": "ä"}, cwd="/tmp")
    assert out == "1 2|ä|/tmp|/home/user|user\n"
    assert box.out('echo "$A|$HOME|$USER|$(id -u)"', user="root") == "|/root|root|0\n"
    # Another user's values are not the session's.
    assert box.out('echo "$HOME $USER"') == "/home/user user\n"


def test_a_directory_that_is_not_there(box):
    error = check_error(box.ask("true", cwd="/nowhere/at/all"), 400)
    assert "/nowhere/at/all" in error["message"]


def test_commands_that_cannot_be_started(box):
    check_error(box.ask(argv=["no-such-program"]), 400, "no_command", says="no-such-program")
    check_error(box.ask(argv=["/etc/passwd"]), 400, "not_executable", says="/etc/passwd")
    # A line is bash's business.
    result = box.exec("no-such-program")
    assert result["exit_code"] == 127 and "not found" in result["stderr"]
    # As events the request has been answered already: the end says so.
    with stream_exec(box.api, box.base, {"argv": ["no-such-program"]}) as answer:
        out, err, end = collect(read_events(answer))
    assert out == err == b"" and end["error"]["code"] == "no_command"
    assert end["exit_code"] is None


def test_bytes_that_are_no_text(box):
    result = box.exec(r"printf 'a\xff\xfeb\0c'")
    assert result["stdout"] == "a\ufffd\ufffdb\0c" and result["stdout_bytes"] == 6
    assert box.output(result["process_id"]).body == b"a\xff\xfeb\0c"


def test_head_and_tail_are_kept(box):
    result = box.exec("seq 1 5000", output_max_bytes=1000)
    whole = "".join(f"{n}\n" for n in range(1, 5001))
    assert result["stdout_truncated"] is True and result["stderr_truncated"] is False
    assert result["stdout_bytes"] == len(whole)
    text = result["stdout"]
    head, _, rest = text.partition("\n[... ")
    note, _, tail = rest.partition(" ...]\n")
    assert whole.startswith(head) and whole.endswith(tail)
    assert 900 <= len(head) + len(tail) <= 1000
    assert str(len(whole) - len(head) - len(tail)) in note
    # The rest is where the note says.
    query = "?" + note.split("output?")[1]
    assert box.output(result["process_id"], query).text == whole[len(head):]
    nothing = box.exec("echo abc", output_max_bytes=0)
    assert nothing["stdout_truncated"] is True and nothing["stdout"].startswith("\n[... 4 bytes")


def test_characters_are_not_cut_in_two(box):
    result = box.exec("for i in $(seq 400); do printf 'ä€😀'; done", output_max_bytes=1001)
    assert result["stdout_truncated"] and "\ufffd" not in result["stdout"]


def test_what_the_spool_forgot_is_told(box):
    """More than spool_max_bytes, but less than the answer could hold: the head is missing."""
    result = box.exec("head -c 3000000 /dev/zero | tr '\\0' x; echo END",
                      spool_max_bytes=65536, output_max_bytes=8_000_000)
    assert result["stdout_bytes"] == 3_000_004
    assert result["stdout_truncated"] is True
    assert result["stdout"].endswith("xEND\n") and "bytes are left out" in result["stdout"]
    assert len(result["stdout"]) < 3_000_000


# ---- time ----


def test_a_timeout_ends_the_tree_and_nothing_else(box):
    other = box.start("sleep 4242")["process_id"]
    left = box.exec("sleep 4343 & echo started")
    assert left["stdout"] == "started\n"
    since = time.monotonic()
    result = box.exec("trap '' TERM INT HUP; (setsid sleep 4444 &) ; sleep 4545 & echo begun; wait",
                      timeout_s=seconds(1))
    assert time.monotonic() - since < seconds(15)
    assert result["timed_out"] is True and result["stopped_by"] == "timeout"
    assert result["signal"] == "SIGKILL" and result["exit_code"] is None
    assert result["stdout"] == "begun\n", "what it said is in the answer"
    assert result["state"] == "kept"
    for gone in ("4444", "4545"):
        wait_for(lambda gone=gone: not box.is_there(f"sleep {gone}"), 10, "the tree ends")
    assert box.is_there("sleep 4242") and box.process(other)["running"]
    assert box.is_there("sleep 4343"), "the child of an earlier command was ended"
    assert box.out("echo on") == "on\n"


def test_no_timeout(box):
    assert box.out("sleep 1.2; echo x", timeout_s=0) == "x\n"
    result = box.exec("sleep 100", timeout_s=0.2)
    assert result["timed_out"] and result["execution_time_ms"] >= 150


@pytest.mark.parametrize("events", [False, True])
def test_a_client_that_leaves_ends_the_tree(box, events):
    box.start("sleep 4242")
    headers = {"Accept": "text/event-stream"} if events else {}
    body = {"command": "(setsid sleep 4646 &); sleep 4747; echo never > /workspace/never"}
    if events:
        answer = box.api.stream("POST", f"{box.base}/exec", json=body, headers=headers)
        wait_for(lambda: box.is_there("sleep 4646"), 10, "it runs")
        answer.close()
    else:
        connection = http.client.HTTPConnection(box.api.host, box.api.port)
        connection.request("POST", f"{box.base}/exec", json.dumps(body),
                           {"Content-Type": "application/json", "X-API-Key": box.api.key})
        wait_for(lambda: box.is_there("sleep 4646"), 10, "it runs")
        connection.close()
    wait_for(lambda: not box.is_there("sleep 4[67]"), 10, "the whole tree ends")
    assert box.is_there("sleep 4242"), "another command was ended as well"
    ended, = [p for p in box.processes() if "never" in p["command"]]
    assert box.wait(ended["process_id"])["stopped_by"] == "abandoned"
    assert box.exec("test -e /workspace/never")["exit_code"] == 1


def test_detached_goes_on(box):
    answer = box.ask("sleep 0.5; echo done; echo x > /workspace/mark", detached=True)
    assert answer.status == 202, answer
    started = answer.json()
    assert set(started) == {"process_id", "pid"} and started["pid"] > 1
    end = box.wait(started["process_id"])
    assert end["exit_code"] == 0 and end["background"] is True
    assert box.output(started["process_id"]).body == b"done\n"
    assert box.out("cat /workspace/mark") == "x\n"


def test_detached_has_a_time_as_well(box):
    started = box.ask("sleep 4848", detached=True, timeout_s=0.5).json()
    end = box.wait(started["process_id"])
    assert end["stopped_by"] == "timeout" and end["timed_out"] is True


# ---- events ----


def test_events(box):
    line = ("told() { until [ -e $1 ]; do sleep 0.02; done; }; "
            "echo one; told 1; echo two >&2; told 2; printf 'ä\\xff'; exit 3")
    with stream_exec(box.api, box.base, {"command": line}) as answer:
        assert answer.getheader("X-Process-Id")
        stream, events = read_events(answer), []
        for told in ("1", "2"):
            events.append(next(stream))
            box.exec(argv=["touch", told])
        events += stream
    assert [e.name for e in events[:2]] == ["stdout", "stderr"] and events[-1].name == "exit"
    assert [e.id for e in events[:2]] == ["4.0", "4.4"] and events[-1].id == "7.4"
    assert events[0].data == {"text": "one\n"} and events[1].data == {"text": "two\n"}
    assert b"".join(e.bytes for e in events[2:-1]) == "ä".encode() + b"\xff"
    assert "base64" in events[-2].data
    end = events[-1].data
    assert end["exit_code"] == 3 and end["stdout_bytes"] == 7 and end["state"] == "updated"
    assert set(end) == FIELDS - {"stdout", "stderr", "stdout_truncated", "stderr_truncated"}


def test_events_come_while_it_runs(box):
    with stream_exec(box.api, box.base, {"command": "echo now; sleep 30"}) as answer:
        events = read_events(answer)
        since = time.monotonic()
        assert next(events).data == {"text": "now\n"}
        assert time.monotonic() - since < seconds(10)


def test_a_timeout_in_a_stream(box):
    with stream_exec(box.api, box.base,
                     {"command": "echo x; sleep 4949", "timeout_s": seconds(1)}) as answer:
        out, _, end = collect(read_events(answer))
    assert out == b"x\n" and end["stopped_by"] == "timeout" and end["timed_out"] is True
    wait_for(lambda: not box.is_there("sleep 4949"), 10, "it ends")


def test_a_large_stream_is_whole(box):
    with stream_exec(box.api, box.base, {"command": "seq 1 400000; seq 1 200000 >&2"}) as answer:
        out, err, end = collect(read_events(answer))
    assert out == b"".join(b"%d\n" % n for n in range(1, 400001))
    assert err == b"".join(b"%d\n" % n for n in range(1, 200001))
    assert end["stdout_bytes"] == len(out) and end["stderr_bytes"] == len(err)


# ---- retries ----


def count(box):
    return box.out("cat /workspace/counter 2>/dev/null | wc -l").strip()


def test_a_retry_gets_the_stored_result(box):
    body = "echo x >> /workspace/counter; echo out; exit 5"
    first = box.ask(body, headers={"Idempotency-Key": "k1"})
    again = box.ask(body, headers={"Idempotency-Key": "k1"})
    assert first.json() == again.json() and first.json()["exit_code"] == 5
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert count(box) == "1"
    check_error(box.ask("echo other", headers={"Idempotency-Key": "k1"}), 409, "conflict", says="k1")
    assert count(box) == "1"
    # Another sandbox has keys of its own.
    assert box.ask(body, headers={"Idempotency-Key": "k2"}).status == 200
    assert count(box) == "2"


def test_concurrent_retries_run_once(box):
    answers = together(8, lambda _: box.ask("echo x >> /workspace/counter; sleep 0.5; echo $$",
                                            headers={"Idempotency-Key": "c"}))
    assert {a.status for a in answers} == {200}
    assert len({a.json()["process_id"] for a in answers}) == 1
    assert len({a.json()["stdout"] for a in answers}) == 1
    assert count(box) == "1"


def test_a_retry_attaches_to_the_running_one(box):
    body = {"command": "echo x >> /workspace/counter; for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done"}
    key = {"Idempotency-Key": "r"}
    answer = stream_exec(box.api, box.base, body, key)
    events = read_events(answer)
    first = next(events)
    answer.close()
    with stream_exec(box.api, box.base, body, {**key, "Last-Event-ID": first.id}) as answer:
        assert answer.getheader("Idempotent-Replayed") == "true"
        out, _, end = collect(read_events(answer))
    assert first.bytes + out == b"1\n2\n3\n4\n5\n6\n" and end["exit_code"] == 0
    assert count(box) == "1"
    # And once more when it is long over, from the start and from the end.
    with stream_exec(box.api, box.base, body, key) as answer:
        assert collect(read_events(answer))[0] == b"1\n2\n3\n4\n5\n6\n"
    with stream_exec(box.api, box.base, body, {**key, "Last-Event-ID": "12.0"}) as answer:
        assert collect(read_events(answer))[0] == b""


def test_a_key_keeps_it_running_but_not_beyond_its_time(box):
    answer = stream_exec(box.api, box.base, {"command": "echo on; sleep 4141", "timeout_s": 2},
                         {"Idempotency-Key": "t"})
    process = answer.getheader("X-Process-Id")
    next(read_events(answer))
    answer.close()
    end = box.wait(process)
    assert end["stopped_by"] == "timeout", "it ended with its client in spite of the key"
    assert end["execution_time_ms"] >= 2000


# ---- what a command leaves to the next ----


def test_directory_and_variables_are_kept(box):
    assert box.exec("mkdir -p /tmp/d; cd /tmp/d; export A='1 2' B=$'x\\ny\\'\"$`\\\\'; C=no")["state"] == \
        "updated"
    assert box.out('printf "%s|%s|%s|%s" "$PWD" "$A" "$B" "$C"') == "/tmp/d|1 2|x\ny'\"$`\\|"
    env = box.env()
    assert env["cwd"] == "/tmp/d" and env["env"] == {"A": "1 2", "B": "x\ny'\"$`\\"}
    assert box.exec("unset A; exit 3")["state"] == "updated", "it does not depend on the exit code"
    assert "A" not in box.env()["env"]
    # A variable or directory of one request is not the session's.
    assert box.out('echo "$A$PWD"', env={"A": "once"}, cwd="/var") == "once/var\n"
    assert "A" not in box.env()["env"]


def test_argv_changes_nothing(box):
    box.exec(argv=["bash", "-c", "cd /tmp; export A=1"])
    assert box.env() == {"env": {}, "cwd": "/workspace"}


@pytest.mark.parametrize("end", ["exec true", "trap 'true' EXIT", "kill -KILL $$"])
def test_state_that_cannot_be_learned_is_kept(box, end):
    box.exec("export KEEP=1; cd /tmp")
    assert box.exec(f"export LOST=1; cd /var; {end}")["state"] == "kept"
    assert box.env() == {"env": {"KEEP": "1"}, "cwd": "/tmp"}
    assert box.out('echo "$KEEP$LOST $PWD"') == "1 /tmp\n"


def test_a_directory_that_went_away(box):
    box.exec("mkdir /tmp/gone; cd /tmp/gone")
    assert box.exec(argv=["rmdir", "/tmp/gone"], cwd="/")["exit_code"] == 0
    check_error(box.ask("pwd"), 400, "invalid", says="/tmp/gone")
    assert box.api.put(f"{box.base}/env", json={"cwd": "/workspace"}).status == 200
    assert box.out("pwd") == "/workspace\n"


def test_what_changes_how_programs_are_loaded_is_never_kept(box):
    names = ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "BASH_ENV", "ENV", "IFS", "PS4",
             "GCONV_PATH", "PROMPT_COMMAND", "GLIBC_TUNABLES"]
    box.exec("export GOOD=1; " + "; ".join(f"export {n}=/tmp/x" for n in names))
    assert box.env()["env"] == {"GOOD": "1"}
    result = box.exec("f() { echo pwned; }; export -f f; export GOOD=2")
    assert result["exit_code"] == 0
    assert box.env()["env"] in ({"GOOD": "1"}, {"GOOD": "2"})
    assert box.out("env | grep -c BASH_FUNC || true") == "0\n"


def test_a_state_full_of_nonsense(box):
    """The state comes from inside: whatever is written there, the next command runs."""
    for trick in ("printf '/x\\0declare -x A=\"1\\0' >&63",
                  "head -c 3000000 /dev/zero >&63", "printf 'relative\\0\\0' >&63",
                  "printf '/tmp\\0declare -x 1A=\"x\"\\n\\0' >&63", "exec 63>&-"):
        box.exec(trick, timeout_s=1)
        assert box.out("echo ok", timeout_s=20) == "ok\n", trick


def test_commands_at_the_same_time(box):
    answers = together(8, lambda n: box.exec(f"sleep 0.2; echo {n}"))
    assert [a["stdout"] for a in answers] == [f"{n}\n" for n in range(8)]


# ---- env ----


def test_the_environment_by_itself(box):
    put = box.api.put(f"{box.base}/env", json={"env": {"A": "1", "B": "2"}, "cwd": "/tmp"})
    assert put.status == 200 and put.json() == {"env": {"A": "1", "B": "2"}, "cwd": "/tmp"}
    put = box.api.put(f"{box.base}/env", json={"env": {"A": None, "C": ""}})
    assert put.json() == {"env": {"B": "2", "C": ""}, "cwd": "/tmp"}
    assert box.out('echo "$A|$B|${C-unset}|$PWD"') == "|2||/tmp\n"


# ---- why it was stopped ----


def test_out_of_memory(api, make_sandbox):
    box = Box(api, make_sandbox(limits={"memory_bytes": 64 << 20}))
    result = box.exec("exec python3 -c 'x = bytearray(300 << 20)'", timeout_s=120)
    assert result["stopped_by"] == "oom" and result["signal"] == "SIGKILL", result
    assert box.out("echo on") == "on\n"

    # What was killed in a line that went well all the same is not told, and no other command's fault.
    well = box.exec("python3 -c 'x = bytearray(300 << 20)'; true", timeout_s=120)
    assert (well["exit_code"], well["stopped_by"]) == (0, None), well
    assert box.exec("false")["stopped_by"] is None


def test_too_many_processes(api, make_sandbox):
    box = Box(api, make_sandbox(limits={"pids": 24}))
    # Not with bash, which tries again until there is room.
    result = box.exec(argv=["python3", "-c", "import os, time\n"
                            "for i in range(60):\n"
                            "    if os.fork() == 0: time.sleep(60)"], timeout_s=120)
    assert result["exit_code"] == 1 and "BlockingIOError" in result["stderr"], result
    assert result["stopped_by"] == "pids", result


def test_a_full_disk(api, make_sandbox):
    box = Box(api, make_sandbox(limits={"disk_bytes": 16 << 20}))
    result = box.exec("head -c 40000000 /dev/zero > /workspace/big", timeout_s=120)
    assert result["exit_code"] not in (0, None)
    # The kernel's words for a full image; and, where project quotas keep the limit, for those.
    assert "No space" in result["stderr"] or "quota exceeded" in result["stderr"], result
    assert result["stopped_by"] == "disk", result


def test_a_file_that_may_not_grow(box):
    result = box.exec(argv=["dd", "if=/dev/zero", "of=/workspace/f", "bs=1000", "count=100"],
                      file_size_bytes=5000)
    assert result["signal"] == "SIGXFSZ" and result["stopped_by"] == "output", result


def test_a_forbidden_system_call(box, fixtures):
    """The filter kills for a call of another instruction set, and the answer says so."""
    if not battery.has_i386():
        pytest.skip("no 32-bit entry on this machine")
    Files(box.api, box.id).put("probe", Path(fixtures.probe).read_bytes(), mode="755")
    result = box.exec(argv=["./probe", "i386"])
    assert result["signal"] == "SIGSYS" and result["stopped_by"] == "syscall", result
    # A call that is refused with an error stops nothing.
    result = box.exec(argv=["./probe", "call", "bpf", "0", "z:128", "128"])
    assert result["exit_code"] == 1 and result["stopped_by"] is None, result


def test_killed_by_another_request(box):
    job = Later(lambda: box.exec("echo go; sleep 4000", timeout_s=60))
    process = wait_for(lambda: [p for p in box.processes() if p["running"] and p["pid"]], 10,
                       "it runs")[0]
    box.wait_output(process["process_id"], b"go")
    assert box.api.delete(f"{box.base}/processes/{process['process_id']}").status == 204
    result = job.get()
    assert result["stopped_by"] == "killed" and result["signal"] == "SIGKILL"
    assert result["stdout"] == "go\n"


def test_deleting_the_sandbox_ends_an_exec(box):
    job = Later(lambda: box.ask("echo go; sleep 4000", timeout_s=60))
    wait_for(lambda: [p for p in box.processes() if p["running"] and p["pid"]], 10, "it runs")
    assert box.api.delete(box.base).status == 204
    answer = job.get()
    if answer.status == 200:
        assert answer.json()["signal"] == "SIGKILL"
    else:
        check_error(answer, (404, 410))


def test_a_silent_stream_has_a_heartbeat(silence):
    text = silence["exec"].get(60)
    before, _, after = text.partition(b"event: stdout\n")
    assert before.startswith(b": heartbeat\n\n") and b"event: exit\n" in after
