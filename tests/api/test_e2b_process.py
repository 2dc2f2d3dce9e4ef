"""process.Process at the E2B door, in the bytes that go over the wire."""

import base64
import hashlib
import http.client
import json
import os
import random
import signal
import struct
import threading
import time

import pytest

from e2b_rpc import Broken, Rpc, b64, envelope, token_of
from helpers import Box, Later, together
from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.server import Server

KILLED = {"exitCode": -1, "status": "signal: killed", "error": "signal: killed"}
GOOD = {"exited": True, "status": "exit status 0"}


@pytest.fixture
def rpc(server, api, sandbox):
    return Rpc(api, sandbox, token_of(server, sandbox))


@pytest.fixture(scope="module", autouse=True)
def long_ago(request, server, api):
    """A command that has ended when the tests begin; the last of them asks for it again."""
    if not any("forgotten" in item.name for item in request.session.items):
        yield None
        return
    sandbox = api.post("/v1/sandboxes", json={}).json()["id"]
    rpc = Rpc(api, sandbox, token_of(server, sandbox))
    yield rpc, rpc.run("exit 6", tag="old")["pid"], time.monotonic()
    api.delete(f"/v1/sandboxes/{sandbox}")


def wait_gone(rpc, pid):
    paddock.wait_for(lambda: pid not in rpc.pids(), 20, f"process {pid} ends")


# ---- Start ----


def test_run_tells_everything(rpc):
    done = rpc.run("echo out; echo err >&2; exit 3")
    assert done["pid"] > 1
    assert (done["stdout"], done["stderr"]) == (b"out\n", b"err\n")
    assert done["end"] == {"exitCode": 3, "exited": True, "status": "exit status 3",
                           "error": "exit status 3"}
    assert done["error"] is None


def test_success_leaves_defaults_out(rpc):
    assert rpc.run("true")["end"] == GOOD


@pytest.mark.parametrize("name,text", [
    ("KILL", "killed"), ("TERM", "terminated"), ("SEGV", "segmentation fault"),
    ("INT", "interrupt"), ("USR1", "user defined signal 1")])
def test_a_signal_is_named_as_go_does(rpc, name, text):
    assert rpc.run(f"kill -{name} $$")["end"] == {
        "exitCode": -1, "status": f"signal: {text}", "error": f"signal: {text}"}


def test_a_short_answer_is_one_piece(rpc):
    """So it has a length; one that takes longer cannot have."""
    def has_length(line):
        with rpc.start(process={"cmd": "/bin/bash", "args": ["-c", line]}) as stream:
            stream.start()
            assert stream.rest()["stdout"] == b"hi\n"
            return stream.answer.getheader("Content-Length") is not None

    # On a busy machine not every command is as quick as it could be.
    assert any(has_length("echo hi") for _ in range(20))
    assert not has_length("sleep 0.5; echo hi")


def test_the_start_of_a_long_one_is_told_at_once(rpc):
    begun = time.monotonic()
    with rpc.start("sleep 20") as stream:
        pid = stream.start()
        assert time.monotonic() - begun < paddock.seconds(5)
        assert rpc.out(f"kill -0 {pid} && echo there") == "there\n"
        rpc.signal(pid=pid)


def test_environment_and_defaults(server, api, make_sandbox):
    sandbox = make_sandbox(env={"FROM": "sandbox", "KEPT": "yes"})
    rpc = Rpc(api, sandbox, token_of(server, sandbox))
    text = rpc.out("env", process={"envs": {"FROM": "request", "EMPTY": "", "UMLAUT": "äöü=x"}})
    env = dict(line.split("=", 1) for line in text.splitlines())
    assert env["FROM"] == "request" and env["KEPT"] == "yes"
    assert env["EMPTY"] == "" and env["UMLAUT"] == "äöü=x"
    assert (env["HOME"], env["USER"], env["LOGNAME"]) == ("/home/user", "user", "user")
    assert env["E2B_SANDBOX"] == "true" and env["E2B_SANDBOX_ID"] == sandbox
    assert "/usr/bin" in env["PATH"].split(":")
    assert rpc.out("echo $E2B_SANDBOX", process={"envs": {"E2B_SANDBOX": "mine"}}) == "mine\n"


def test_users_and_their_homes(rpc):
    assert rpc.out("id -un; pwd") == "user\n/home/user\n"
    root = Rpc(rpc.client, rpc.sandbox, rpc.token, user="root")
    assert root.out("id -un; pwd; echo $HOME") == "root\n/root\n/root\n"
    user = Rpc(rpc.client, rpc.sandbox, rpc.token, user="user")
    assert user.out("id -un") == "user\n"
    other = Rpc(rpc.client, rpc.sandbox, rpc.token, user="mallory")
    assert other.refused("true") == {"code": "unauthenticated",
                                     "message": "invalid username: 'mallory'"}


def test_directories(rpc):
    rpc.out("mkdir -p ~/deep/er")
    assert rpc.out("pwd", process={"cwd": "/tmp"}) == "/tmp\n"
    assert rpc.out("pwd", process={"cwd": "~/deep"}) == "/home/user/deep\n"
    assert rpc.out("pwd", process={"cwd": "deep/er"}) == "/home/user/deep/er\n"
    assert rpc.refused("true", process={"cwd": "/no/such"}) == {
        "code": "invalid_argument", "message": "cwd '/no/such' does not exist"}
    assert rpc.refused("true", process={"cwd": "/etc/passwd"})["code"] == "invalid_argument"


def test_a_command_is_words_not_a_line(rpc):
    done = rpc.run(process={"cmd": "printf", "args": ["%s|", "a b", "$HOME", "", "*"]})
    assert done["stdout"] == b"a b|$HOME||*|"
    error = rpc.refused(process={"cmd": "no-such-program"})
    assert error["code"] == "invalid_argument" and "no-such-program" in error["message"]
    error = rpc.refused(process={"cmd": "/etc/passwd"})
    assert error["code"] == "invalid_argument" and "/etc/passwd" in error["message"]


def test_no_stdin_is_an_empty_one(rpc):
    done = rpc.run("cat; readlink /proc/self/fd/0")
    assert done["end"] == GOOD and done["stdout"] == b"/dev/null\n"


def test_output_is_exact(rpc):
    """Every byte value, in pieces that are no larger than promised."""
    size = 40_000_000
    line = f"head -c {size} /dev/urandom >/tmp/it; sha256sum </tmp/it >&2; cat /tmp/it"
    done = rpc.run(line)
    assert done["end"] == GOOD
    assert len(done["stdout"]) == size
    assert hashlib.sha256(done["stdout"]).hexdigest() == done["stderr"].split()[0].decode()
    assert 16384 < done["largest"] <= 32768


def test_a_client_that_reads_slowly_loses_nothing(server, api, make_sandbox):
    """More than a spool keeps: the command waits for its reader."""
    size = 200_000_000
    sandbox = make_sandbox()
    rpc = Rpc(api, sandbox, token_of(server, sandbox))
    with rpc.start(f"head -c {size} /dev/zero | tr '\\0' 'x'; echo end") as stream:
        stream.start()
        time.sleep(3)
        seen = 0
        while (event := stream.event()) and event[0] == "data":
            seen += len(base64.b64decode(event[1]["stdout"]))
        assert seen == size + 4 and event == ("end", GOOD), (seen, event, stream.error)


def test_a_child_in_the_background_holds_nobody_up(rpc):
    begun = time.monotonic()
    done = rpc.run("sleep 30 & echo left")
    assert done["stdout"] == b"left\n" and done["end"] == GOOD
    assert time.monotonic() - begun < paddock.seconds(10)


def test_many_at_once(rpc):
    results = together(50, lambda n: rpc.run(f"echo {n}; exit {n % 5}"))
    assert [r["stdout"] for r in results] == [f"{n}\n".encode() for n in range(50)]
    assert [r["end"].get("exitCode", 0) for r in results] == [n % 5 for n in range(50)]


# ---- time ----


def test_time_over_ends_the_whole_tree(rpc):
    box = Box(rpc.client, rpc.sandbox)
    with rpc.start("echo a; setsid sleep 4242 & sleep 4242", timeout_ms=int(paddock.seconds(1000))) as stream:
        stream.start()
        done = stream.rest()
    assert done["stdout"] == b"a\n" and done["end"] is None
    assert done["error"]["code"] == "deadline_exceeded"
    paddock.wait_for(lambda: rpc.pids() == [], 5, "it is not listed any more")
    paddock.wait_for(lambda: not box.is_there("^sleep 4242"), 5, "the tree is gone")


def test_time_runs_on_when_the_client_has_left(rpc):
    with rpc.start("sleep 4243", timeout_ms=int(paddock.seconds(2000))) as stream:
        pid = stream.start()
    assert pid in rpc.pids()
    wait_gone(rpc, pid)
    with rpc.connect(pid=pid) as stream:
        assert stream.start() == pid
        assert stream.rest()["end"] == KILLED


def test_time_of_connect_ends_the_stream_alone(rpc):
    with rpc.start("sleep 4244") as first:
        pid = first.start()
        with rpc.connect(pid=pid, headers={"Connect-Timeout-Ms": str(int(paddock.seconds(1000)))}) as second:
            assert second.start() == pid
            assert second.rest()["error"]["code"] == "deadline_exceeded"
        assert pid in rpc.pids()
        rpc.signal(pid=pid)
        assert first.rest()["end"] == KILLED


def test_keepalives(rpc):
    began = time.monotonic()
    with rpc.start("sleep 4; echo x", headers={"Keepalive-Ping-Interval": "1"}) as stream:
        kinds = []
        while (message := stream.message()) is not None:
            kinds += list(message["event"])
    assert kinds[0] == "start" and kinds[-1] == "end"
    assert [kind for kind in kinds if kind != "keepalive"] == ["start", "data", "end"]
    assert 2 <= kinds.count("keepalive") <= time.monotonic() - began + 1
    assert stream.error is None


# ---- leaving and coming back ----


def test_who_leaves_ends_nothing(rpc):
    with rpc.start("for i in $(seq 1000); do echo $i; sleep 0.05; done", tag="it") as stream:
        pid = stream.start()
        stream.until(b"1\n")
    time.sleep(0.3)
    row, = rpc.list()
    assert row["pid"] == pid and row["tag"] == "it"
    assert row["config"] == {"cmd": "/bin/bash",
                             "args": ["-l", "-c",
                                      "for i in $(seq 1000); do echo $i; sleep 0.05; done"]}
    with rpc.connect(tag="it") as stream:
        assert stream.start() == pid
        # Not from the beginning, and without a gap.
        first = stream.until(b"\n").split()
        assert int(first[0]) > 1
        more = stream.until(b"\n").split()
        assert int(more[0]) == int(first[-1]) + 1
        assert rpc.signal(pid=pid).status == 200
        assert stream.rest()["end"] == KILLED


def test_two_see_the_same(rpc):
    with rpc.start("read go; echo $go", stdin=True) as first:
        pid = first.start()
        with rpc.connect(pid=pid) as second:
            assert second.start() == pid
            rpc.call("SendInput", {"process": {"pid": pid}, "input": {"stdin": b64("yes\n")}})
            assert first.rest()["stdout"] == second.rest()["stdout"] == b"yes\n"


def test_output_without_a_reader_blocks_nobody(rpc):
    with rpc.start("head -c 300000000 /dev/zero; touch /tmp/done; sleep 4245") as stream:
        pid = stream.start()
    paddock.wait_for(lambda: rpc.out("ls /tmp/done 2>/dev/null || echo no") == "/tmp/done\n", 60,
                     "the output is written")
    assert rpc.signal(pid=pid).status == 200


def test_a_late_connect_hears_of_the_end(rpc):
    done = rpc.run("echo long gone; exit 7")
    with rpc.connect(pid=done["pid"]) as stream:
        assert stream.start() == done["pid"]
        late = stream.rest()
    assert late["stdout"] == b"" and late["end"]["exitCode"] == 7


def test_what_is_not_there(rpc):
    with rpc.connect(pid=4000000) as stream:
        assert stream.event() is None
        assert stream.error == {"code": "not_found",
                                "message": "process with pid 4000000 not found"}
    with rpc.connect(tag="nobody") as stream:
        assert stream.event() is None
        assert stream.error == {"code": "not_found",
                                "message": "process with tag nobody not found"}
    for method, more in (("SendSignal", {"signal": "SIGNAL_SIGKILL"}), ("CloseStdin", {}),
                         ("SendInput", {"input": {"stdin": ""}}),
                         ("Update", {"pty": {"size": {"cols": 1, "rows": 1}}})):
        rpc.fails(method, {"process": {"pid": 4000000}, **more}, 404, "not_found")


# ---- signals ----


def test_kill_is_done_when_it_is_answered(rpc):
    box = Box(rpc.client, rpc.sandbox)
    with rpc.start("trap '' TERM; setsid sleep 4246 & while :; do sleep 0.1; done") as stream:
        pid = stream.start()
        paddock.wait_for(lambda: box.is_there("^sleep 4246"), 10, "the child runs")
        assert rpc.signal("SIGTERM", pid=pid).status == 200
        assert pid in rpc.pids(), "it does not mind SIGTERM"
        assert rpc.signal("SIGKILL", pid=pid).status == 200
        assert pid not in rpc.pids()
        assert not box.is_there("^sleep 4246")
        assert stream.rest()["end"] == KILLED
    rpc.fails("SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}, 404,
              "not_found", f"process with pid {pid} not found")


def test_term_and_numbers(rpc):
    with rpc.start("sleep 4247") as stream:
        pid = stream.start()
        rpc.fails("SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_UNSPECIFIED"}, 400,
                  "invalid_argument", "signal")
        rpc.fails("SendSignal", {"process": {"pid": pid}, "signal": 1}, 400, "invalid_argument")
        rpc.fails("SendSignal", {"process": {"pid": pid}}, 400, "invalid_argument")
        rpc.call("SendSignal", {"process": {"pid": str(pid)}, "signal": 15})
        assert stream.rest()["end"]["status"] == "signal: terminated"


# ---- input ----


def test_input_and_its_end(rpc):
    data = bytes(range(256)) * 1000
    with rpc.start("cat", stdin=None) as stream:  # absent: there is one
        pid = {"pid": stream.start()}
        rpc.call("SendInput", {"process": pid, "input": {"stdin": ""}})
        rpc.call("SendInput", {"process": pid, "input": {"stdin": b64(data)}})
        rpc.fails("SendInput", {"process": pid, "input": {"pty": b64("x")}}, 400,
                  "invalid_argument")
        rpc.call("CloseStdin", {"process": pid})
        done = stream.rest()
    assert done["stdout"] == data and done["end"] == GOOD


def test_closing_twice_is_fine(rpc):
    with rpc.start("cat >/dev/null; sleep 4248", stdin=True) as stream:
        pid = stream.start()
        rpc.call("CloseStdin", {"process": {"pid": pid}})
        rpc.call("CloseStdin", {"process": {"pid": pid}})
        rpc.fails("SendInput", {"process": {"pid": pid}, "input": {"stdin": b64("x")}}, 400,
                  "invalid_argument", "stdin")
        rpc.signal(pid=pid)


def test_input_for_one_that_has_none(rpc):
    with rpc.start("sleep 4249", stdin=False) as stream:
        pid = stream.start()
        rpc.fails("SendInput", {"process": {"pid": pid}, "input": {"stdin": b64("x")}}, 400,
                  "invalid_argument")
        rpc.signal(pid=pid)


def test_input_that_nobody_reads_is_given_up(rpc):
    with rpc.start("sleep 4250", stdin=True) as stream:
        pid = stream.start()
        rpc.fails("SendInput", {"process": {"pid": pid}, "input": {"stdin": b64(b"x" * 200000)}},
                  504, "deadline_exceeded", headers={"Connect-Timeout-Ms": "500"})
        rpc.signal(pid=pid)


def test_input_as_a_stream(rpc):
    with rpc.start("cat", stdin=True) as stream:
        pid = {"pid": stream.start()}
        parts = [{"start": {"process": pid}}, {"keepalive": {}},
                 {"data": {"input": {"stdin": b64("one\n")}}},
                 {"data": {"input": {"stdin": b64("two\n")}}}]
        body = b"".join(envelope(part) for part in parts)
        with rpc.stream("StreamInput", body, raw=True) as answer:
            assert answer.message() == {} and answer.message() is None and answer.error is None
        for wrong in (envelope(parts[0])[:-1], b"", envelope(parts[2]), envelope(parts[0]) + envelope(b"{"),
                      envelope(parts[0]) + envelope(parts[2], flags=1)):
            with rpc.stream("StreamInput", wrong, raw=True) as answer:
                assert answer.message() is None
                assert answer.error["code"] == "invalid_argument", wrong
        rpc.call("CloseStdin", {"process": pid})
        assert stream.rest()["stdout"] == b"one\ntwo\n"


# ---- terminals ----


def test_a_terminal(rpc):
    with rpc.stream("Start", {"process": {"cmd": "/bin/bash", "args": ["-i", "-l"],
                                          "envs": {"TERM": "xterm-256color"}},
                              "pty": {"size": {"cols": 120, "rows": 40}}}) as stream:
        pid = {"pid": stream.start()}

        def say(text):
            rpc.call("SendInput", {"process": pid, "input": {"pty": b64(text)}})

        say("stty size\n")
        assert b"40 120" in stream.until(b"40 120", "pty")
        rpc.call("Update", {"process": pid, "pty": {"size": {"cols": 66, "rows": 22}}})
        say("stty size; tty\n")
        assert b"22 66" in stream.until(b"/dev/", "pty")  # both may come in one event
        rpc.fails("CloseStdin", {"process": pid}, 400, "invalid_argument")
        rpc.fails("SendInput", {"process": pid, "input": {"stdin": b64("x")}}, 400,
                  "invalid_argument")
        say("head -c 300000 /dev/zero | tr '\\0' z; exit 5\n")
        done = stream.rest()
    assert done["pty"].count(b"z") >= 300000 and done["largest"] <= 16384
    assert done["end"]["exitCode"] == 5 and done["stdout"] == b""


def test_no_terminal_has_no_size(rpc):
    with rpc.start("sleep 4251") as stream:
        pid = stream.start()
        rpc.fails("Update", {"process": {"pid": pid}, "pty": {"size": {"cols": 9, "rows": 9}}},
                  400, "invalid_argument")
        rpc.signal(pid=pid)


# ---- List ----


def test_list(rpc):
    assert rpc.call("List", {}) == {"processes": []}
    request = {"process": {"cmd": "sleep", "args": ["4252"], "envs": {"A": "1"}, "cwd": "/tmp"},
               "tag": "x\u2028y\"z", "stdin": False}
    with rpc.stream("Start", request) as stream, rpc.start("sleep 4253") as other:
        pid, second = stream.start(), other.start()
        rows = {row["pid"]: row for row in rpc.list()}
        assert set(rows) == {pid, second}
        assert rows[pid] == {"pid": pid, "config": request["process"], "tag": request["tag"]}
        assert "tag" not in rows[second]
        assert rpc.signal(tag=request["tag"]).status == 200
        assert rpc.pids() == [second]
        rpc.signal(pid=second)
    assert rpc.list() == []


def test_list_of_what_was_started_elsewhere(rpc):
    box = Box(rpc.client, rpc.sandbox)
    pid = box.start("sleep 4254; true")["pid"]
    row, = rpc.list()
    assert row == {"pid": pid,
                   "config": {"cmd": "/bin/bash", "args": ["-c", "sleep 4254; true"]}}
    assert rpc.signal(pid=pid).status == 200


def test_a_command_longer_than_its_note(rpc):
    """It runs; what List cannot tell is left out."""
    done = rpc.run(process={"cmd": "/bin/bash", "args": ["-c", "echo ${#0}", "x" * 100000]})
    assert done["stdout"] == b"100000\n"
    error = rpc.refused(process={"cmd": "/bin/echo", "args": ["x" * 100000, "y" * 100000]})
    assert error["code"] in ("resource_exhausted", "invalid_argument"), error


# ---- the policy of a session ----


def test_policy_judges_the_line(server, api, make_sandbox):
    sandbox = make_sandbox(template="restricted", policy="restricted")
    rpc = Rpc(api, sandbox, token_of(server, sandbox))
    assert rpc.out("echo fine | cat") == "fine\n"
    for line in ("wget http://x/", "echo a; nc -l 1", "echo $(curl x)"):
        error = rpc.refused(line)
        assert error["code"] == "permission_denied", (line, error)
    assert rpc.refused(process={"cmd": "wget"})["code"] == "permission_denied"
    assert rpc.refused("true", process={"envs": {"BASH_ENV": "/tmp/x"}})[
        "code"] == "permission_denied"
    assert rpc.list() == []


# ---- doors that stay shut ----


def test_no_token_no_command(rpc):
    for token in (None, rpc.token[:-1] + ("0" if rpc.token[-1] != "0" else "1"), "x",
                  rpc.token.replace(rpc.sandbox, "a" * 20)):
        stranger = Rpc(rpc.client, rpc.sandbox, token)
        assert stranger.refused("touch /tmp/was-here")["code"] == "unauthenticated"
        stranger.fails("List", {}, 401, "unauthenticated")
    assert rpc.out("ls /tmp/was-here 2>&1 || true").startswith("ls: cannot access")


def test_malformed_envelopes(rpc):
    good = {"process": {"cmd": "/bin/true"}}
    data = json.dumps(good).encode()
    wrong = [b"", b"\0", b"\0\0\0\0", envelope(good)[:-1], envelope(good) + b"x",
             envelope(good) + envelope(good), envelope(good, flags=1), envelope(good, flags=2),
             envelope(good, flags=0x80), data, struct.pack(">BI", 0, 0xffffffff) + data,
             struct.pack(">BI", 0, len(data) - 1) + data, envelope(b""), envelope(b"null"),
             envelope(b"[]"), envelope(b"{"), envelope(b"\xff\xfe"), envelope(b'{"process":{}}'),
             envelope(b"[" * 100000), envelope(b'{"a":' * 5000)]
    for body in wrong:
        with rpc.stream("Start", body, raw=True) as stream:
            assert stream.message() is None
            code = stream.error["code"]
        assert code in ("invalid_argument", "resource_exhausted"), (body[:60], stream.error)
    # A positive control: the same bytes, well formed, by way of chunks.
    with rpc.stream("Start", iter([envelope(good)[:3], envelope(good)[3:]]), raw=True) as stream:
        stream.start()
        assert stream.rest()["end"] == GOOD


@pytest.mark.parametrize("message", [
    {"process": "x"}, {"process": {"cmd": 1}}, {"process": {"cmd": ""}},
    {"process": {"cmd": "true", "args": "x"}}, {"process": {"cmd": "true", "args": [1]}},
    {"process": {"cmd": "true", "envs": []}}, {"process": {"cmd": "true", "envs": {"A B": "x"}}},
    {"process": {"cmd": "true", "envs": {"A": 1}}}, {"process": {"cmd": "tr\0ue"}},
    {"process": {"cmd": "true", "cwd": "x" * 5000}}, {"process": {"cmd": "true"}, "tag": 5},
    {"process": {"cmd": "true"}, "stdin": "yes"}, {"process": {"cmd": "true"}, "pty": 1},
    {"process": {"cmd": "true"}, "pty": {"size": {"cols": -1}}},
    {"process": {"cmd": "true"}, "pty": {"size": {"rows": 70000}}},
    {"process": {"cmd": "true", "args": ["x"] * 20000}}, {}])
def test_hostile_json(rpc, message):
    with rpc.stream("Start", message) as stream:
        assert stream.message() is None
        assert stream.error["code"] == "invalid_argument", stream.error


def test_members_from_the_future_are_fine(rpc):
    with rpc.stream("Start", {"process": {"cmd": "/bin/true", "nice": 5}, "more": {"a": [1]},
                              "tag": None}) as stream:
        stream.start()
        assert stream.rest()["end"] == GOOD


@pytest.mark.parametrize("message", [
    {"process": {}}, {"process": {"pid": 1, "tag": "x"}}, {"process": {"pid": -1}},
    {"process": {"pid": "x"}}, {"process": {"pid": 1.5}}, {"process": []}, {},
    {"process": {"pid": 5000000000}}])
def test_selectors_that_are_none(rpc, message):
    rpc.fails("CloseStdin", message, 400, "invalid_argument")


def test_base64_that_is_none(rpc):
    with rpc.start("cat", stdin=True) as stream:
        pid = stream.start()
        for text in ("x", "eA", "eA= =", "e\n", "====", 5):
            rpc.fails("SendInput", {"process": {"pid": pid}, "input": {"stdin": text}}, 400,
                      "invalid_argument")
        rpc.signal(pid=pid)


def test_types_and_methods(rpc):
    rpc.fails("List", {}, 400, "invalid_argument", headers={"Content-Type": "application/proto"})
    with rpc.stream("Start", {"process": {"cmd": "true"}},
                    headers={"Content-Type": "application/json"}) as stream:
        assert stream.message() is None and stream.error["code"] == "invalid_argument"
    for value in ("x", "-1", "1e3", "99999999999999999999999"):
        assert rpc.refused("true", headers={"Connect-Timeout-Ms": value})[
            "code"] == "invalid_argument"
    connection = http.client.HTTPConnection(rpc.client.host, rpc.client.port,
                                            timeout=paddock.seconds(20))
    connection.request("GET", "/process.Process/List", headers=rpc.headers("application/json"))
    assert connection.getresponse().status in (404, 405)
    connection.close()


# ---- the sandbox and the server come and go ----


def test_a_killed_sandbox_cuts_the_stream(server, api, make_sandbox):
    sandbox = make_sandbox()
    rpc = Rpc(api, sandbox, token_of(server, sandbox))
    with rpc.start("echo here; sleep 4255") as stream:
        stream.start()
        stream.until(b"here\n")
        assert api.delete(f"/v1/sandboxes/{sandbox}").status == 204
        with pytest.raises(Broken):
            stream.rest()
    answer = rpc.unary("List", {})
    assert answer.status == 502 and answer.json()["code"] == 502, answer


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_restart_loses_no_command(how):
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as server:
        api = server.client()
        sandbox = api.post("/v1/sandboxes", json={}).json()["id"]
        rpc = Rpc(api, sandbox, token_of(server, sandbox))
        line = "while read x; do echo got $x; done; echo over"
        with rpc.start(line, stdin=True, tag="kept", process={"envs": {"A": "b"}}) as stream:
            pid = stream.start()
            before = rpc.list()
            if how == "kill":
                server.kill()
            else:
                server.stop()
            with pytest.raises(Broken):
                stream.rest()
        server.start()
        assert rpc.list() == before
        with rpc.connect(tag="kept") as stream:
            assert stream.start() == pid
            rpc.call("SendInput", {"process": {"pid": pid}, "input": {"stdin": b64("one\n")}})
            assert stream.until(b"got one\n") == b"got one\n"
            rpc.call("CloseStdin", {"process": {"tag": "kept"}})
            assert stream.rest()["stdout"] == b"over\n"
        assert rpc.list() == []
        with rpc.connect(pid=pid) as stream:
            assert stream.start() == pid and stream.rest()["end"] == GOOD


def test_who_knows_a_pid_finds_it_after_a_kill():
    """The daemon is killed as soon as the start was told. Twenty at a time."""
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as server:
        api = server.client()
        sandbox = api.post("/v1/sandboxes", json={}).json()["id"]
        rpc = Rpc(api, sandbox, token_of(server, sandbox))
        streams = together(20, lambda n: rpc.start(f"sleep 4{n:03}", tag=f"t{n}"))
        pids = [stream.start() for stream in streams]
        server.kill()
        for stream in streams:
            stream.close()
        server.start()
        assert sorted(rpc.pids()) == sorted(pids)
        for n, pid in enumerate(pids):
            with rpc.connect(tag=f"t{n}") as stream:
                assert stream.start() == pid
            assert rpc.signal(pid=pid).status == 200
        assert rpc.list() == []


def test_numbers_of_a_sandbox_that_is_slow_after_a_kill():
    """Its init stands still for a second: a list waits for the numbers of what it has. The daemon that was killed had
    just asked for them as well: the rest of that answer, which comes first, says nothing of the whole."""
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as server:
        api = server.client()
        for _ in range(paddock.rounds(5, 50)):
            sandbox = api.post("/v1/sandboxes", json={}).json()["id"]
            rpc = Rpc(api, sandbox, token_of(server, sandbox))
            word = f"4{random.randrange(10**8)}"
            with rpc.start(f"exec sleep {word}") as first:
                pids = [first.start()]
                found, = paddock.wait_for(lambda: host.with_word(word), 10, "it runs")
                init = host.jail_init(found)
                streams = together(20, lambda n: rpc.start(f"sleep 4{n:03}"))
                pids += [stream.start() for stream in streams]
                server.kill()
                os.kill(init, signal.SIGSTOP)
                again = threading.Timer(1, os.kill, (init, signal.SIGCONT))
                again.start()
                for stream in streams:
                    stream.close()
            try:
                server.start()
                assert sorted(rpc.pids()) == sorted(pids)
            finally:
                again.join()
            assert api.delete(f"/v1/sandboxes/{sandbox}").status == 204


def test_an_end_is_forgotten_after_half_a_minute(long_ago):
    rpc, pid, ended = long_ago
    time.sleep(max(0, 31 - (time.monotonic() - ended)))
    for selector in ({"pid": pid}, {"tag": "old"}):
        with rpc.connect(**selector) as stream:
            assert stream.event() is None
            assert stream.error["code"] == "not_found"
