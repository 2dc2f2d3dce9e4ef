"""Processes: in the background, with a terminal, their input, and their output from any offset."""

import hashlib
import http.client
import os
import re
import time

import pytest

from helpers import Box, Later, collect, read_events, together
from paddock_testing.run import seconds, settled, wait_for
from paddock_testing.server import Server, check_error

FIELDS = {
    "process_id", "pid", "command", "running", "exit_code", "signal", "stopped_by", "timed_out",
    "started_at", "ended_at", "pty", "background", "stdin_open", "stdout_bytes", "stderr_bytes",
    "stdout_first", "stderr_first", "forgotten", "execution_time_ms", "cpu_time_ms", "max_rss_bytes"}


@pytest.fixture
def box(api, sandbox):
    return Box(api, sandbox)


def events_of(box, process, last=None):
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
    answer = box.api.stream("GET", f"{box.base}/processes/{process}/output?follow=true",
                            headers=headers)
    assert answer.status == 200
    return answer


# ---- start, list, inspect ----


def test_a_background_process(box):
    since = time.monotonic()
    p = box.start("echo out; echo err >&2; until [ -e told ]; do sleep 0.05; done; exit 4")
    assert time.monotonic() - since < seconds(5)
    assert set(p) == FIELDS
    assert p["running"] is True and p["exit_code"] is None and p["ended_at"] is None
    assert p["background"] is True and p["pty"] is False and p["stdin_open"] is False
    assert p["pid"] > 1 and len(p["process_id"]) == 32 and p["command"].startswith("echo out")
    assert box.process(p["pid"])["process_id"] == p["process_id"], "a pid will do"
    assert box.get()["processes"] == 1
    box.exec(argv=["touch", "told"])
    end = box.wait(p["process_id"])
    assert set(end) == FIELDS and end["exit_code"] == 4 and end["ended_at"] > end["started_at"]
    assert end["stdout_bytes"] == 4 and end["stderr_bytes"] == 4
    assert box.output(p["process_id"]).body == b"out\n"
    assert box.output(p["process_id"], "?stream=stderr").body == b"err\n"
    assert box.get()["processes"] == 0


def test_the_list_is_in_order(box):
    assert box.processes() == []
    ids = [box.start(f"echo {n}")["process_id"] for n in range(3)]
    ids.append(box.exec("echo fg")["process_id"])
    assert [p["process_id"] for p in box.processes()] == ids
    assert [p["background"] for p in box.processes()] == [True, True, True, False]


def test_it_stays_when_its_request_is_over(box):
    p = box.start("sleep 0.5; echo later > /workspace/f")
    box.api.close()
    assert box.wait(p["pid"])["exit_code"] == 0
    assert box.out("cat f") == "later\n"


def test_starts_that_fail(box):
    url = f"{box.base}/processes"
    check_error(box.api.post(url, json={"argv": ["no-such-program"]}), 400, "no_command")
    check_error(box.api.post(url, json={"argv": ["/etc/passwd"]}), 400, "not_executable")


def test_processes_that_are_not_there(box):
    for name in ("1", "999999", "x", "0", "-1", "a" * 32, "%20", "0x7"):
        for method, tail in (("GET", ""), ("DELETE", ""), ("GET", "/output"), ("POST", "/stdin")):
            check_error(box.api.request(method, f"{box.base}/processes/{name}{tail}"), 404,
                        "not_found")
        check_error(box.signal(name, "SIGTERM"), 404)


def test_a_started_process_has_a_time(box):
    p = box.start("sleep 1000", timeout_s=0.5)
    end = box.wait(p["process_id"])
    assert end["stopped_by"] == "timeout" and end["timed_out"] is True


def test_a_retried_start_makes_one(box):
    url, key = f"{box.base}/processes", {"Idempotency-Key": "p"}
    body = {"command": "echo x >> /workspace/counter; sleep 0.3"}
    answers = together(5, lambda _: box.api.post(url, json=body, headers=key))
    assert {a.status for a in answers} == {201}
    assert len({a.json()["process_id"] for a in answers}) == 1
    assert sum("Idempotent-Replayed" in a.headers for a in answers) == 4
    box.wait(answers[0].json()["process_id"])
    assert box.out("wc -l < /workspace/counter") == "1\n"
    check_error(box.api.post(url, json={"command": "true"}, headers=key), 409, "conflict")


# ---- signals ----


def test_signals(box):
    p = box.start("trap 'echo got it' USR1; trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done")
    box.wait_output(p["pid"], b"ready")
    assert box.signal(p["pid"], "SIGUSR1").status == 204
    box.wait_output(p["pid"], b"got it")
    assert box.signal(p["pid"], 15).status == 204
    assert box.wait(p["process_id"])["exit_code"] == 9
    check_error(box.signal(p["process_id"], "TERM"), 409, "conflict")


def test_kill_takes_the_whole_tree(box):
    p = box.start("(setsid sleep 5151 &); sleep 5252 & wait")
    wait_for(lambda: box.is_there("sleep 5151") and box.is_there("sleep 5252"), 10, "they run")
    assert box.api.delete(f"{box.base}/processes/{p['process_id']}").status == 204
    end = box.process(p["process_id"])
    assert end["running"] is False and end["signal"] == "SIGKILL" and end["stopped_by"] == "killed"
    wait_for(lambda: not box.is_there("sleep 5[12]"), 10, "the tree ends")
    assert box.api.delete(f"{box.base}/processes/{p['process_id']}").status == 204, "again is fine"
    other = box.start("(setsid sleep 5353 &); sleep 5454")
    wait_for(lambda: box.is_there("sleep 5353"), 10, "it runs")
    assert box.signal(other["process_id"], "SIGKILL").status == 204
    wait_for(lambda: not box.is_there("sleep 5[34]"), 10, "the tree ends")


# ---- input ----


def test_standard_input(box):
    p = box.start("cat; echo end", stdin=True)
    assert p["stdin_open"] is True
    assert box.write(p["pid"], b"one\n").status == 204
    box.wait_output(p["pid"], b"one\n")
    assert box.write(p["pid"], b"\x00\xfftwo\n").status == 204
    assert box.write(p["pid"], b"", "?close=true").status == 204
    assert box.wait(p["process_id"])["exit_code"] == 0
    assert box.output(p["process_id"]).body == b"one\n\x00\xfftwo\nend\n"
    check_error(box.write(p["process_id"], b"x"), 409, "conflict")


def test_input_that_is_closed_or_was_never_open(box):
    p = box.start("sleep 100")
    check_error(box.write(p["pid"], b"x"), 409, "conflict", says="stdin")
    check_error(box.write(p["pid"], b"", "?close=true"), 409, "conflict")
    q = box.start("cat >/dev/null; sleep 100", stdin=True)
    assert box.write(q["pid"], b"x", "?close=true").status == 204
    assert box.process(q["pid"])["stdin_open"] is False
    check_error(box.write(q["pid"], b"y"), 409, "conflict")


def test_a_megabyte_of_input(box):
    data = bytes(range(256)) * 8192
    p = box.start("sha256sum", stdin=True)
    assert box.write(p["pid"], data, "?close=true").status == 204
    box.wait(p["process_id"])
    assert box.output(p["process_id"]).text.split()[0] == hashlib.sha256(data).hexdigest()


# ---- terminals ----


def test_a_terminal(box):
    p = box.start("stty size; tty; read line; echo \"<$line>\"; trap 'stty size; exit' WINCH; "
                  "echo ready; while :; do sleep 0.05; done", pty=True, rows=33, cols=101)
    assert p["pty"] is True and p["stdin_open"] is True
    box.wait_output(p["pid"], b"33 101\r\n")
    box.wait_output(p["pid"], b"/dev/pts/")
    assert box.write(p["pid"], b"hello\r").status == 204
    box.wait_output(p["pid"], b"<hello>\r\n")
    box.wait_output(p["pid"], b"ready")
    answer = box.api.post(f"{box.base}/processes/{p['pid']}/resize", json={"rows": 50, "cols": 132})
    assert answer.status == 204, answer
    box.wait_output(p["pid"], b"50 132\r\n")
    assert box.wait(p["process_id"])["exit_code"] == 0
    assert box.process(p["process_id"])["stderr_bytes"] == 0


def test_interrupting_a_terminal(box):
    p = box.start(argv=["bash", "--norc"], pty=True)
    box.write(p["pid"], b"echo answer-$((6*7)); sleep 1000\n")
    box.wait_output(p["pid"], b"answer-42")
    wait_for(lambda: box.is_there("sleep 1000"), 10, "it sleeps")
    box.write(p["pid"], b"\x03")
    box.write(p["pid"], b"echo back-$((1+1))\n")
    # Until bash reads by itself a ^D would be the terminal's.
    wait_for(lambda: b"$ " in box.output(p["pid"]).body.partition(b"back-2\r\n")[2], 20, "it asks for more")
    check_error(box.write(p["pid"], b"", "?close=true"), 400, "invalid", says="^D")
    box.write(p["pid"], b"\x04")
    assert box.wait(p["process_id"])["running"] is False


def test_resize_needs_a_terminal(box):
    p = box.start("sleep 100")
    check_error(box.api.post(f"{box.base}/processes/{p['pid']}/resize",
                             json={"rows": 1, "cols": 1}), 400, "invalid", says="terminal")


# ---- output ----


def test_offsets(box):
    p = box.start("printf 0123456789; sleep 100")
    box.wait_output(p["pid"], b"9")
    answer = box.output(p["pid"])
    assert answer.body == b"0123456789" and answer.headers["X-Next-Offset"] == "10"
    assert answer.headers["X-First-Offset"] == "0" and answer.headers["X-Running"] == "true"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    answer = box.output(p["pid"], "?offset=4&limit=3")
    assert answer.body == b"456" and answer.headers["X-Next-Offset"] == "7"
    answer = box.output(p["pid"], "?offset=10")
    assert answer.body == b"" and answer.headers["X-Next-Offset"] == "10"
    assert box.output(p["pid"], "?offset=99").headers["X-Next-Offset"] == "99"
    assert box.output(p["pid"], "?limit=0").body == b""
    head = box.api.request("HEAD", f"{box.base}/processes/{p['pid']}/output")
    assert head.status == 200 and head.body == b"" and head.headers["Content-Length"] == "10"


def test_follow(box):
    p = box.start("echo 1; until [ -e told ]; do sleep 0.05; done; echo 2; echo 3; echo 4; echo no >&2")
    answer = box.api.stream("GET", f"{box.base}/processes/{p['pid']}/output?follow=true")
    assert answer.status == 200
    assert answer.readline() == b"1\n"
    assert box.process(p["process_id"])["running"], "the first line came only at the end"
    box.exec(argv=["touch", "told"])
    assert answer.read() == b"2\n3\n4\n"
    answer.close()
    assert box.output(p["process_id"], "?follow=true&stream=stderr").body == b"no\n"
    assert box.output(p["process_id"], "?follow=true&offset=2&limit=3").body == b"2\n3"


def test_leaving_a_follower_ends_nothing(box):
    p = box.start("echo x; sleep 0.7; echo y")
    for _ in range(3):
        answer = box.api.stream("GET", f"{box.base}/processes/{p['pid']}/output?follow=true")
        assert answer.readline() == b"x\n"
        answer.close()
    assert box.wait(p["process_id"])["exit_code"] == 0
    assert box.output(p["process_id"]).body == b"x\ny\n"


def test_several_followers_see_the_same(box):
    p = box.start("for i in $(seq 2000); do echo line $i; done; sleep 0.5; echo end")
    want = b"".join(b"line %d\n" % n for n in range(1, 2001)) + b"end\n"

    def follow(number):
        if number % 2:
            return box.output(p["process_id"], "?follow=true").body
        with events_of(box, p["process_id"]) as answer:
            return collect(read_events(answer))[0]

    assert together(6, follow) == [want] * 6


def test_a_stream_is_taken_up_with_every_byte_once(box):
    """Breaks the stream off again and again, at every place, and goes on with the last id. Each line of input lets
    it write more to either stream: there are at least two events for who has read all."""
    p = box.start("for i in $(seq 300); do [ $((i % 30)) = 1 ] && read; echo out $i; echo err $i >&2; "
                  "printf '\\xe2\\x82'; printf '\\xac\\xff'; done", stdin=True)
    got = {"stdout": b"", "stderr": b""}
    last, end, breaks = None, None, 0
    while end is None:
        if breaks < 10:
            assert box.write(p["pid"], b"\n").status == 204
        answer = events_of(box, p["process_id"], last)
        taken = 0
        for event in read_events(answer):
            if event.name == "exit":
                end = event.data
                break
            got[event.name] += event.bytes
            last = event.id
            assert last == f"{len(got['stdout'])}.{len(got['stderr'])}"
            taken += 1
            if taken == 1 + breaks % (2 if breaks < 10 else 4):
                break
        answer.close()
        breaks += 1
        assert breaks < 3000
    assert got["stdout"] == b"".join(b"out %d\n\xe2\x82\xac\xff" % n for n in range(1, 301))
    assert got["stderr"] == b"".join(b"err %d\n" % n for n in range(1, 301))
    assert end["stdout_bytes"] == len(got["stdout"]) and breaks > 10


def test_the_oldest_output_is_forgotten(box):
    p = box.start("head -c 4000000 /dev/zero | tr '\\0' x; echo END; sleep 100",
                  spool_max_bytes=65536)
    wait_for(lambda: box.process(p["pid"])["stdout_bytes"] == 4_000_004, 20, "all is written")
    info = box.process(p["pid"])
    first = info["stdout_first"]
    assert 4_000_004 - 65536 - (2 << 20) <= first <= 4_000_004 - 65536, info
    check_error(box.output(p["pid"]), 400, "invalid", "offset", str(first))
    check_error(box.output(p["pid"], "?follow=true"), 400, "invalid", "offset", str(first))
    answer = box.output(p["pid"], f"?offset={first}")
    assert answer.body.endswith(b"xEND\n") and len(answer.body) == 4_000_004 - first
    assert answer.headers["X-First-Offset"] == str(first)
    # As events they begin with what there is, and the id tells where.
    with events_of(box, p["pid"]) as events:
        event = next(read_events(events))
        assert int(event.id.split(".")[0]) == first + len(event.bytes)
    # A process of which everything was taken forgets nothing early.
    q = box.exec("echo short", spool_max_bytes=65536)
    assert box.process(q["process_id"])["stdout_first"] == 0


def test_what_is_forgotten_while_it_is_read_is_never_wrong(box):
    """Broken off, or told: but no byte that was not written."""
    p = box.start("exec yes", spool_max_bytes=65536)
    began = time.monotonic()
    answers = 0
    while time.monotonic() - began < 1.5 or (not answers and time.monotonic() - began < seconds(30)):
        first = box.process(p["pid"])["stdout_first"]
        for query in (f"?offset={first}", f"?offset={first}&follow=true&limit=3000000"):
            try:
                answer = box.output(p["pid"], query)
            except (http.client.HTTPException, OSError):
                continue  # broken off
            if answer.status == 200:
                assert not answer.body.strip(b"y\n"), "bytes that nobody wrote"
                answers += 1
        with events_of(box, p["pid"]) as answer:
            event = next(read_events(answer))
            assert not event.bytes.strip(b"y\n")
    assert answers
    box.signal(p["pid"], "SIGKILL")


def test_back_pressure_loses_nothing(box):
    p = box.start("seq 1 300000; echo END", spool_max_bytes=65536, back_pressure=True)
    wait_for(lambda: box.process(p["pid"])["stdout_bytes"] >= 65536, 20, "it has written enough")
    settled(lambda: box.process(p["pid"])["stdout_bytes"])
    held = box.process(p["pid"])
    assert held["running"] and held["stdout_first"] == 0, held
    assert held["stdout_bytes"] < 1_000_000, "it was not held back"
    body = box.output(p["process_id"], "?follow=true").body
    assert body == b"".join(b"%d\n" % n for n in range(1, 300001)) + b"END\n"
    assert box.wait(p["process_id"])["exit_code"] == 0


def test_back_pressure_keeps_what_was_not_read(box):
    """Spools forget by the megabyte: what stands just before one must not go with it."""
    p = box.start("seq 1 1000000", spool_max_bytes=65536, back_pressure=True)["process_id"]
    body = b""
    for mark in ((1 << 20) - 1, (2 << 20) - 1, (3 << 20) - 1):
        while len(body) < mark:
            answer = box.output(p, f"?offset={len(body)}&limit={min(60000, mark - len(body))}")
            assert answer.status == 200, answer
            body += answer.body
        # Until it is held back; it may overshoot by what the pipe had.
        wait_for(lambda: box.process(p)["stdout_bytes"] - len(body) >= 65536, 10, "it is held back")
        time.sleep(0.1)
    body += box.output(p, f"?follow=true&offset={len(body)}").body
    assert body == b"".join(b"%d\n" % n for n in range(1, 1000001))


def test_output_goes_on_behind_the_end(box):
    """A child that outlives the command still writes to its output."""
    p = box.start("(sleep 0.6; echo child) & echo parent")
    assert box.wait(p["process_id"])["exit_code"] == 0
    wait_for(lambda: box.output(p["process_id"]).body == b"parent\nchild\n", 10,
             "what the child writes")


def test_following_one_that_is_paused(box):
    p = box.start("echo x; until [ -e told ]; do sleep 0.05; done; echo y")
    box.wait_output(p["pid"], b"x")
    assert box.api.post(f"{box.base}/pause").status == 200
    job = Later(lambda: box.output(p["process_id"], "?follow=true").body)
    time.sleep(1)
    assert not job.done
    assert box.api.post(f"{box.base}/resume").status == 200
    box.exec(argv=["touch", "told"])
    assert job.get() == b"x\ny\n"


def test_deleting_the_sandbox_ends_its_followers(box):
    p = box.start("echo x; sleep 1000")
    answer = box.api.stream("GET", f"{box.base}/processes/{p['pid']}/output?follow=true")
    assert answer.read(2) == b"x\n"
    job = Later(answer.read)
    assert box.api.delete(box.base).status == 204
    try:
        assert job.get(20) == b""
    except Exception as error:  # broken off is an answer, too; hanging is not
        assert "IncompleteRead" in type(error).__name__, error


# ---- what is kept in all ----


def spools(server):
    """What the spools take on the disk."""
    total = 0
    for entry in os.scandir(os.path.join(server.state_dir, "server", "spool")):
        try:
            total += entry.stat().st_blocks * 512
        except FileNotFoundError:
            pass  # forgotten just now
    return total


def test_a_tenant_cannot_fill_the_disk_with_output():
    """A sandbox that ends many commands with output, and runs many that write without end."""
    limit = 4 << 20
    with Server({"output_kept_bytes": limit, "pool_max": 0}) as server:
        client = server.client()
        box = Box(client, client.post("/v1/sandboxes", json={}).json()["id"])
        ended = []
        for n in range(20):
            answer = box.exec("head -c 1000000 /dev/zero | tr '\\0' x")
            assert answer["stdout_bytes"] == 1_000_000 and answer["exit_code"] == 0
            ended.append(answer["process_id"])
            wait_for(lambda: spools(server) <= limit, 10, "the oldest is forgotten")
        first, last = box.process(ended[0]), box.process(ended[-1])
        assert first["forgotten"] is True and last["forgotten"] is False
        assert first["stdout_bytes"] == first["stdout_first"] == 1_000_000
        check_error(box.output(ended[0]), 400, "invalid", "offset", "1000000")
        assert box.output(ended[-1]).body == b"x" * 1_000_000
        text = client.get("/metrics").body.decode()
        assert int(re.search(r"^paddock_outputs_forgotten_total (\d+)", text, re.M)[1]) >= 15
        assert 0 < int(re.search(r"^paddock_output_kept_bytes (\d+)", text, re.M)[1]) <= limit

        running = [box.start("yes")["pid"] for n in range(16)]
        wait_for(lambda: all(box.process(p)["stdout_bytes"] > limit for p in running), 60,
                 "each has written more than all may keep")
        for n in range(20):
            assert spools(server) <= limit * 5 / 4 + 16 * (2 << 20), n
            time.sleep(0.05)
        assert all(box.process(p)["running"] for p in running)
        assert box.output(running[0], "?offset=%d" % box.process(running[0])["stdout_bytes"])
