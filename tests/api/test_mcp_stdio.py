"""`paddock mcp`: what comes in on its input, what goes out, and what is left when it has ended."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import time

import pytest

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.mcp import Http, Stdio, initialize, own_servers, result_of
from paddock_testing.run import seconds, settled, wait_for
from paddock_testing.server import free_port


@pytest.fixture
def env(server):
    return {"PADDOCK_URL": server.url, "PADDOCK_API_KEY": server.key}


@pytest.fixture
def stdio(env):
    with Stdio(env=env) as mcp:
        yield mcp


def boxes(api):
    return {s["id"] for s in api.get("/v1/sandboxes?limit=1000").json()["sandboxes"]}


def of_directory(name):
    """Processes that have to do with a private server."""
    return [p for p in host.pids() if any(name in word for word in host.command_line(p))]


def result(message):
    assert "result" in message and not message["result"]["isError"], message
    return message["result"]["structuredContent"]


def test_a_whole_session(api, stdio):
    before = boxes(api)
    stdio.request("initialize", initialize(), id=0)
    assert stdio.answer(0)["result"]["serverInfo"]["name"] == "paddock"
    stdio.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    stdio.request("tools/list", id="t")
    assert len(stdio.answer("t")["result"]["tools"]) == 13
    stdio.call("run_command", id=-3, command="echo hi > f; echo done")
    assert result(stdio.answer(-3))["stdout"] == "done\n"
    stdio.call("read_file", id=4, path="f")
    assert result(stdio.answer(4))["content"] == "hi\n"
    assert len(boxes(api) - before) == 1
    assert stdio.close() == 0
    assert not boxes(api) - before, "the sandbox ends with the input"


@pytest.mark.parametrize("line, code", [
    (b"nonsense", -32700), (b"{", -32700), (b"\xff", -32700), (b"[]", -32600),
    (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600), (b"5", -32700),
    (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600)])
def test_lines_that_are_no_messages(stdio, line, code):
    stdio.send(line)
    answer = stdio.next()
    assert answer["id"] is None and answer["error"]["code"] == code, answer
    stdio.request("ping", id=2)
    assert stdio.answer(2)["result"] == {}


def test_messages_that_the_server_refuses(stdio):
    stdio.send({"jsonrpc": "1.0", "id": 1, "method": "ping"})
    assert stdio.answer(1)["error"]["code"] == -32600
    stdio.request("nothing", id=2)
    assert stdio.answer(2)["error"]["code"] == -32601
    stdio.call("nothing", id=3)
    assert stdio.answer(3)["error"]["code"] == -32602


def test_ends_of_lines(stdio):
    ping = b'{"jsonrpc":"2.0","id":%d,"method":"ping"}'
    stdio.send(b"\r\n\n  \n" + ping % 1, b"\r\n")
    assert stdio.next()["id"] is None  # blanks are no message
    assert stdio.answer(1)["result"] == {}
    stdio.send(ping % 2 + b"\n" + ping % 3 + b"\n" + ping % 4)
    assert {stdio.next()["id"] for _ in range(3)} == {2, 3, 4}
    stdio.send((ping % 5)[:10], b"")
    time.sleep(0.1)
    stdio.send((ping % 5)[10:], b"")  # the end of the input ends the line
    assert stdio.close() == 0
    assert stdio.answer(5)["result"] == {}


def test_long_lines(stdio):
    stdio.call("write_file", id=1, path="big", content="x" * (2 << 20))
    assert result(stdio.answer(1))["bytes"] == 2 << 20
    stdio.request("resources/read", {"uri": "file:///workspace/big"}, id=2)
    assert len(stdio.answer(2)["result"]["contents"][0]["text"]) == 2 << 20
    stdio.send(b"x" * (9 << 20))
    answer = stdio.next()
    assert answer["id"] is None and answer["error"]["code"] == -32600, answer
    stdio.request("ping", id=3)
    assert stdio.answer(3)["result"] == {}


def test_progress_and_cancellation(stdio):
    stdio.request("tools/call", {"name": "run_command", "_meta": {"progressToken": "p"},
                                 "arguments": {"command": "echo working; sleep 1000"}}, id="c")
    notice = stdio.next()
    while "message" not in notice["params"]:  # until it has begun
        assert notice["method"] == "notifications/progress", notice
        notice = stdio.next()
    assert notice["method"] == "notifications/progress", notice
    assert notice["params"]["progressToken"] == "p" and notice["params"]["message"] == "working"
    stdio.send({"jsonrpc": "2.0", "method": "notifications/cancelled",
                "params": {"requestId": "c"}})
    assert stdio.answer("c", 10)["result"]["isError"]
    wait_for(lambda: none_runs(stdio, "sleep 1000"), 20, "it ends")


numbers = itertools.count(1000)


def none_runs(stdio, words):
    """Does no command with these words run in its sandbox?"""
    number = next(numbers)
    stdio.call("run_command", id=number, command=f"ps -eo args | grep -c '^{words}'")
    return result(stdio.answer(number))["stdout"] == "0\n"


def test_a_cancellation_overtakes_what_waits(api, stdio):
    before = boxes(api)
    count = 40  # more than go at once
    for number in range(count):
        stdio.call("run_command", id=number, command="sleep 300")
    box, = wait_for(lambda: boxes(api) - before, 20, "there is a sandbox")
    # Those that go at once have begun: one that is on its way cannot be cancelled yet.
    wait_for(lambda: api.get(f"/v1/sandboxes/{box}").json()["processes"], 20, "one runs")
    settled(lambda: api.get(f"/v1/sandboxes/{box}").json()["processes"])
    for number in range(count):
        stdio.send({"jsonrpc": "2.0", "method": "notifications/cancelled",
                    "params": {"requestId": number}})
    stdio.request("ping", id="p")
    assert stdio.answer("p", 20)["result"] == {}
    wait_for(lambda: none_runs(stdio, "sleep 300"), 20, "they end")
    # Also those that were still waiting do not run.
    time.sleep(1)
    assert none_runs(stdio, "sleep 300")


def test_many_calls(stdio):
    for number in range(200):
        stdio.call("run_command", id=number, command=f"echo {number}")
    answers = [stdio.next(60) for _ in range(200)]
    assert {m["id"]: result(m)["stdout"] for m in answers} == {n: f"{n}\n" for n in range(200)}


def test_two_clients_with_one_thread(env):
    with Stdio("--thread", "shared one", env=env) as a, Stdio("--thread", "shared one", env=env) as b:
        a.call("write_file", path="f", content="by a")
        assert result(a.answer())
        b.call("read_file", path="f")
        assert result(b.answer())["content"] == "by a"
    with Stdio("--thread", "shared one", env=env) as c:
        c.call("read_file", path="f")
        assert result(c.answer())["content"] == "by a", "a thread stays"


def test_the_input_ends_while_a_command_runs(api, env):
    before = boxes(api)
    with Stdio(env=env) as mcp:
        mcp.call("run_command", id=1, command="sleep 1; echo late")
        assert mcp.close() == 0
        assert result(mcp.answer(1))["stdout"] == "late\n", "who pipes messages in gets the answers"
    assert not boxes(api) - before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_sandbox(api, env, number):
    before = boxes(api)
    with Stdio(env=env) as mcp:
        mcp.call("run_command", id=1, command="sleep 1000")
        wait_for(lambda: boxes(api) - before, 20, "the sandbox is there")
        mcp.process.send_signal(number)
        assert mcp.process.wait(seconds(10)) == 0
    wait_for(lambda: not boxes(api) - before, 10, "the sandbox ends")


def test_a_signal_is_heard_while_too_many_messages_wait(env):
    with Stdio(env=env) as mcp:
        for number in range(1100):
            mcp.call("run_command", id=number, command="sleep 1000")
        tasks = f"/proc/{mcp.process.pid}/task"
        wait_for(lambda: len(os.listdir(tasks)) > 1024, 60, "no further message has room")
        mcp.process.terminate()
        assert mcp.process.wait(seconds(10)) == 0


def test_nobody_reads_any_more(api, env):
    before = boxes(api)
    child = subprocess.Popen([paddock.PADDOCK, "mcp"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, env=paddock.clean_environment(env))
    try:
        child.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":'
                          b'"run_command","arguments":{"command":"sleep 1000"}}}\n')
        child.stdin.flush()
        wait_for(lambda: boxes(api) - before, 20, "the sandbox is there")
        child.stdout.close()
        child.wait(seconds(10))
    finally:
        child.kill()
        child.wait()
    wait_for(lambda: not boxes(api) - before, 10, "the sandbox ends")


def test_a_signal_cancels_what_runs_in_a_thread(server, env):
    with Stdio("--thread", "stays", env=env) as mcp:
        mcp.call("run_command", id=1, command="echo > begun; exec sleep 7777")
        box = Http(server, query="?thread=stays")

        def sleeps():
            found = box.call("run_command", command="ps -eo args | grep -c '^sleep 7777' || true")
            return int(result_of(found)["stdout"])

        wait_for(lambda: sleeps() == 1, 20, "it runs")
        mcp.process.terminate()
        assert mcp.process.wait(seconds(10)) == 0
        wait_for(lambda: sleeps() == 0, 10, "it is ended")
        assert result_of(box.call("list_files"))["entries"][0]["name"] == "begun"
    box.end()


def test_no_server(env):
    with Stdio(env={**env, "PADDOCK_URL": f"http://127.0.0.1:{free_port()}"}) as mcp:
        mcp.request("initialize", initialize(), id=1)
        answer = mcp.answer(1)
        assert answer["error"]["code"] == -32603 and "127.0.0.1" in answer["error"]["message"]
        assert mcp.close() == 125
        assert b"127.0.0.1" in mcp.errors


def test_a_wrong_key(env):
    with Stdio(env={**env, "PADDOCK_API_KEY": "e2b_" + "0" * 40}) as mcp:
        mcp.request("initialize", initialize(), id=1)
        assert "error" in mcp.answer(1)


def test_wrong_options():
    for words in (["--nothing"], ["word"], ["--thread"], ["--thread", ""], ["--thread", "x" * 129]):
        done = subprocess.run([paddock.PADDOCK, "mcp", *words], stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=seconds(10))
        assert done.returncode == 2 and done.stderr.startswith(b"paddock: "), done


# ---- a server of its own ----


@contextlib.contextmanager
def alone(*words):
    """A `paddock mcp` without a server, and the name of the directory of the one it starts."""
    with Stdio(*words, env={"PADDOCK_STATE_DIR": "", "PADDOCK_RUN_DIR": ""}) as mcp:
        mcp.call("run_command", id=1, command="echo there; sleep 0")
        assert result(mcp.answer(1))["stdout"] == "there\n"
        # Others may start such servers at the same time.
        below = " ".join(word for p in host.descendants(mcp.process.pid) for word in host.command_line(p))
        name, = set(re.findall(r"/(paddock-mcp-\w+)", below)) & own_servers()
        yield mcp, name


def check_all_gone(name):
    wait_for(lambda: not of_directory(name), 20, "its processes end")
    wait_for(lambda: name not in own_servers(), 20, "its files go")


@pytest.mark.parametrize("how", ["close", "SIGTERM", "SIGINT", "SIGHUP", "SIGKILL"])
def test_a_private_server_ends_with_it(how):
    with alone() as (mcp, name):
        # The control: there is something that could be left behind.
        mine = of_directory(name)
        assert any("serve" in host.command_line(p) for p in mine), mine
        assert any("keeper" in host.command_line(p) for p in mine), mine
        sleep = ["sleep", f"5555.{os.getpid()}"]  # nobody else's
        mcp.call("run_command", id=2, command=" ".join(sleep))
        wait_for(lambda: any(host.command_line(p) == sleep for p in host.pids()), 10, "a command runs")
        if how == "close":
            mcp.send({"jsonrpc": "2.0", "method": "notifications/cancelled",
                      "params": {"requestId": 2}})
            assert mcp.close() == 0
            assert not of_directory(name) and name not in own_servers(), "nothing, at once"
        else:
            mcp.process.send_signal(getattr(signal, how))
            mcp.process.wait(seconds(10))
        check_all_gone(name)
        assert not any(host.command_line(p) == sleep for p in host.pids())


def test_a_private_server_is_private():
    with alone() as (mcp, name):
        socket = f"/tmp/{name}/paddock.sock"
        done = subprocess.run([paddock.PADDOCK, "ls"], capture_output=True, timeout=seconds(20),
                              env=paddock.clean_environment({"PADDOCK_URL": f"unix:{socket}",
                                                             "PADDOCK_API_KEY": "wrong"}))
        assert done.returncode == 125, done
        for pid in of_directory(name):
            with contextlib.suppress(ProcessLookupError):
                assert "PADDOCK_API_KEY" not in " ".join(host.command_line(pid))


def test_two_private_servers():
    with alone() as (a, one), alone() as (b, two):
        assert one != two
        a.call("write_file", id=5, path="f", content="a")
        assert result(a.answer(5))
        b.call("read_file", id=5, path="f")
        assert b.answer(5)["result"]["isError"]


def test_a_private_server_that_dies():
    with alone() as (mcp, name):
        for pid in of_directory(name):
            if "serve" in host.command_line(pid):
                with contextlib.suppress(ProcessLookupError):  # one ends with the other
                    os.kill(pid, signal.SIGKILL)
        mcp.request("ping", id=3)
        assert mcp.answer(3)["error"]["code"] == -32603
        mcp.close()
        check_all_gone(name)
