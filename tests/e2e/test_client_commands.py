"""The commands that talk to a server, against one that answers what the test says."""

import base64
import io
import json
import os
import signal
import subprocess
import tarfile
import threading

import pytest

from paddock_testing import run as paddock
from paddock_testing.fake_server import FakeServer
from paddock_testing.server import free_port

ID = "k3v9x2m7q1w8e5r6t0y4"
KEY = "e2b_" + "0123456789" * 4
PROCESS = "0123456789abcdef" * 2
SANDBOX = {
    "id": ID, "state": "running", "end_cause": None, "user_id": None, "thread_id": None,
    "profile": "strict", "isolation": "full", "metadata": {"project": "demo"}, "processes": 1,
    "created_at": "2026-01-02T03:04:05.678Z", "expires_at": "2099-01-02T03:04:05.678Z",
    "limits": {"memory_bytes": 536870912}, "recreated": False,
}
END = {"exit_code": 0, "signal": None, "timed_out": False, "stopped_by": None}


@pytest.fixture
def server():
    with FakeServer() as s:
        yield s


def environment(server):
    return paddock.clean_environment({"PADDOCK_URL": server.url, "PADDOCK_API_KEY": KEY})


def call(server, *arguments, stdin=b"", **options):
    given = {"stdin": stdin} if stdin is None or isinstance(stdin, int) else {"input": stdin}
    return subprocess.run([paddock.PADDOCK, *map(str, arguments)], capture_output=True, check=False,
                          timeout=paddock.seconds(20), env=environment(server), **given, **options)


def refused(result, status, *words):
    text = result.stderr.decode()
    assert result.returncode == status, (result.returncode, text)
    assert result.stdout == b"" and text.startswith("paddock: ") and text.count("\n") == 1, text
    for word in words:
        assert word in text


def events(*items, headers=(("X-Process-Id", PROCESS),)):
    def answer(c):
        c.begin("text/event-stream", headers)
        for kind, data, number in items:
            c.event(kind, data, number)
        c.end_chunks()
    return answer


def body_of(server, number=-1):
    return json.loads(server.calls[number][3])


# ---- the way to the server ----


def test_the_key_goes_in_a_header_and_nowhere_else(server):
    server.on("GET", "/v1/sandboxes", (200, {"sandboxes": [], "next_cursor": None}))
    result = call(server, "ls")
    assert result.returncode == 0
    method, target, headers, _ = server.calls[0]
    assert headers["Authorization"] == "Bearer " + KEY
    assert KEY not in target and KEY.encode() not in result.stdout + result.stderr


def test_no_server_is_told_with_its_address():
    env = paddock.clean_environment({"PADDOCK_URL": "http://127.0.0.1:1"})
    result = subprocess.run([paddock.PADDOCK, "ls"], capture_output=True, env=env, check=False,
                            timeout=paddock.seconds(20))
    refused(result, 125, "http://127.0.0.1:1", "PADDOCK_URL")


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://a b", "unix:relative", "http://u:p@h"])
def test_a_wrong_url_is_refused(url):
    env = paddock.clean_environment({"PADDOCK_URL": url})
    result = subprocess.run([paddock.PADDOCK, "ls"], capture_output=True, env=env, check=False,
                            timeout=paddock.seconds(20))
    refused(result, 125, "PADDOCK_URL")


def test_a_key_with_a_line_end_makes_no_header(server):
    env = {**environment(server), "PADDOCK_API_KEY": "e2b_x\r\nX-Evil: 1"}
    result = subprocess.run([paddock.PADDOCK, "ls"], capture_output=True, env=env, check=False,
                            timeout=paddock.seconds(20))
    refused(result, 125, "PADDOCK_API_KEY")
    assert b"Evil" not in result.stderr and server.calls == []


def test_the_servers_message_is_shown_escaped(server):
    error = {"code": "capacity", "message": "full \x1b]0;x\x07\nsecond line", "details": {}}
    server.on("POST", "/v1/sandboxes", (503, {"error": error}))
    refused(call(server, "create"), 125, "full \\x1b]0;x\\x07\\x0asecond line")


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nno!",
    b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"SMTP ready\r\n",
    b"",
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\n<p>!",
    b'HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{"sandboxes": 1}',
])
def test_an_answer_that_makes_no_sense_is_an_error(server, answer):
    def raw(c):
        c.wfile.write(answer)
        c.close_connection = True
    server.on("GET", "/v1/sandboxes", raw)
    refused(call(server, "ls"), 125)


# ---- ls, create, rm ----


def test_ls_reads_every_page_and_escapes_names(server):
    pages = {
        "": ([{**SANDBOX, "user_id": "ann\x1b[2J", "thread_id": "t"}], "c/1"),
        "cursor=c%2F1": ([{**SANDBOX, "id": "a" * 20, "state": "gone", "end_cause": "idle"}], None),
    }

    def page(c):
        cursor = "&".join(p for p in c.query.split("&") if p.startswith("cursor="))
        found, following = pages[cursor]
        c.answer(200, {"sandboxes": found, "next_cursor": following})
    server.on("GET", "/v1/sandboxes", page)
    lines = call(server, "ls", "-a", "--metadata", "a b=c&d").stdout.decode().splitlines()
    assert lines[0].split()[:3] == ["ID", "STATE", "USER/THREAD"]
    assert lines[1].split()[:3] == [ID, "running", "ann\\x1b[2J/t"] and "project=demo" in lines[1]
    assert lines[2].split()[:2] == ["a" * 20, "idle"]
    assert "metadata.a%20b=c%26d" in server.calls[0][1] and "state=all" in server.calls[0][1]
    assert call(server, "ls", "-q").stdout.decode().split() == [ID, "a" * 20]
    listed = json.loads(call(server, "ls", "--json").stdout)
    assert [s["id"] for s in listed["sandboxes"]] == [ID, "a" * 20]


def test_create_says_what_was_asked_for(server):
    server.on("POST", "/v1/sandboxes", (201, SANDBOX))
    result = call(server, "create", "--memory", "256M", "--cpu", "0.5", "--pids=64", "-e", "A=b=c",
                  "--metadata", "k=v", "--idle-timeout", "90s", "--policy", "allow:ls,cat",
                  "--idempotency-key", "again")
    assert result.stdout.decode() == ID + "\n"
    assert body_of(server) == {
        "limits": {"memory_bytes": 268435456, "cpu": 0.5, "pids": 64}, "env": {"A": "b=c"},
        "metadata": {"k": "v"}, "idle_timeout_s": 90,
        "policy": {"mode": "allow", "commands": ["ls", "cat"]},
    }
    assert server.calls[0][2]["Idempotency-Key"] == "again"


def test_create_by_session_tells_of_a_fresh_one(server):
    server.on("PUT", "/v1/sessions/a%20b/c%2Fd", (201, {**SANDBOX, "recreated": True}))
    result = call(server, "create", "--session", "a b/c/d", "--auto-retry")
    assert result.stdout.decode() == ID + "\n" and b"fresh" in result.stderr
    assert body_of(server) == {"auto_retry": True}


def test_rm_goes_on_after_a_failure(server):
    server.on("DELETE", "/v1/sandboxes/" + ID, (204, None))
    result = call(server, "rm", "b" * 20, ID)
    assert result.returncode == 125 and result.stderr.count(b"\n") == 1
    assert [c[1][-20:] for c in server.calls] == ["b" * 20, ID]


@pytest.mark.parametrize("arguments", [
    ["ls", "--nonsense"], ["ls", "x"], ["ls", "--metadata", "x"], ["create", "--memory", "lots"],
    ["create", "--cpu"], ["create", "x"], ["create", "--auto-retry"], ["rm"], ["rm", "../../x"],
    ["rm", "--session", "nobody"], ["exec"], ["exec", ID], ["exec", ID, "-c", "x", "y"],
    ["exec", ID, "--session", "a/b", "x"], ["exec", "short", "x"], ["logs", ID], ["logs", ID, "x/y"],
    ["logs", "--stream", "both", ID, "1"], ["kill", ID], ["kill", ID, "-1"], ["ps"], ["ps", ID, ID],
    ["port"], ["port", ID, "0"], ["port", ID, "65536"], ["cp", "a", "b"], ["cp", "a"],
    ["cp", ID + ":a", ID + ":b"], ["top", "--interval", "x"], ["shell"], ["shell", ID],
])
def test_a_wrong_command_line_is_told_before_anything_is_sent(server, arguments):
    refused(call(server, *arguments), 2)
    assert server.calls == []


# ---- exec ----


@pytest.mark.parametrize("end, status", [
    ({}, 0), ({"exit_code": 7}, 7), ({"exit_code": None, "signal": "SIGKILL"}, 137),
    ({"exit_code": None, "signal": "SIGTERM"}, 143),
    ({"exit_code": None, "signal": "SIGKILL", "timed_out": True, "stopped_by": "timeout"}, 124),
    ({"exit_code": None, "signal": "SIGRTMIN+2"}, 128 + 36),
])
def test_exec_has_the_output_and_the_status_of_the_command(server, end, status):
    raw = bytes(range(256))
    server.on("POST", f"/v1/sandboxes/{ID}/exec", events(
        ("stdout", {"text": "a\u0000\u00e9\n"}, "5.0"),
        ("stderr", {"base64": base64.b64encode(raw).decode()}, "5.256"),
        ("exit", {**END, **end}, "5.256")))
    result = call(server, "exec", ID, "-e", "A=1", "-w", "/tmp", "-u", "root", "--timeout", "1.5s",
                  "--", "prog", "-x", "--json", stdin=subprocess.DEVNULL)
    assert result.returncode == status
    assert result.stdout == "a\0é\n".encode()
    assert result.stderr.startswith(raw)
    assert body_of(server) == {"argv": ["prog", "-x", "--json"], "env": {"A": "1"}, "cwd": "/tmp",
                               "user": "root", "timeout_s": 1.5}
    assert server.calls[0][2]["Accept"] == "text/event-stream"


def test_exec_passes_files_with_the_request(server, tmp_path):
    data = os.urandom(5000)
    (tmp_path / "in").write_bytes(data)
    server.on("POST", f"/v1/sandboxes/{ID}/exec", events(("exit", END, "0.0")))
    with open(tmp_path / "in", "rb") as f:
        assert call(server, "exec", ID, "cat", stdin=f.fileno()).returncode == 0
    assert base64.b64decode(body_of(server)["stdin_base64"]) == data


def test_exec_streams_a_pipe_by_websocket(server):
    got = bytearray()

    def attach(c):
        c.upgrade()
        while frame := c.read_frame():
            if frame[0] == 2:
                got.extend(frame[1])
            elif frame[0] == 1 and json.loads(frame[1])["type"] == "close_stdin":
                c.send_frame(2, b"\x01out")
                c.send_frame(2, b"\x02err")
                c.send_frame(1, json.dumps({"type": "exit", **END, "exit_code": 3}).encode())
    server.on("POST", f"/v1/sandboxes/{ID}/processes", (201, {"process_id": PROCESS, "pid": 5}))
    server.on("GET", f"/v1/sandboxes/{ID}/processes/{PROCESS}/attach", attach)
    data = os.urandom(300000)
    result = call(server, "exec", ID, "--", "wc", "-c", stdin=data)
    assert (result.returncode, result.stdout, result.stderr) == (3, b"out", b"err")
    assert bytes(got) == data
    assert body_of(server, 0) == {"argv": ["wc", "-c"], "stdin": True, "timeout_s": 0}


def test_exec_shows_output_while_the_command_reads_no_input(server):
    def attach(c):
        c.upgrade()  # reads nothing
        c.send_frame(2, b"\x01still here")
        c.send_frame(1, json.dumps({"type": "error", "error": {"code": "conflict"}}).encode())
        c.send_frame(1, json.dumps({"type": "exit", **END}).encode())
        c.rfile.read()
    server.on("POST", f"/v1/sandboxes/{ID}/processes", (201, {"process_id": PROCESS, "pid": 5}))
    server.on("GET", f"/v1/sandboxes/{ID}/processes/{PROCESS}/attach", attach)
    result = call(server, "exec", ID, "true", stdin=bytes(16 << 20))
    assert (result.returncode, result.stdout, result.stderr) == (0, b"still here", b"")


def test_exec_goes_on_where_a_restarted_server_broke_off(server):
    def broken(c):
        c.begin("text/event-stream", [("X-Process-Id", PROCESS)])
        c.event("stdout", {"text": "one "}, "4.0")
        c.chunk(b"id: 8.0\nevent: stdout\ndata: {\"te")
        c.close_connection = True
        c.connection.close()
    server.on("POST", f"/v1/sandboxes/{ID}/exec", broken)
    server.on("GET", f"/v1/sandboxes/{ID}/processes/{PROCESS}/output",
              events(("stdout", {"text": "two\n"}, "8.0"), ("exit", END, "8.0")))
    result = call(server, "exec", ID, "x", stdin=subprocess.DEVNULL)
    assert (result.returncode, result.stdout) == (0, b"one two\n")
    assert server.calls[1][2]["Last-Event-ID"] == "4.0" and "follow=true" in server.calls[1][1]


@pytest.fixture
def returning():
    """A server whose port nobody takes while it is away."""
    with FakeServer(free_port()) as s:
        yield s


def test_exec_waits_for_a_server_that_is_restarted(returning):
    server, again = returning, []

    def ending(c):
        c.begin("text/event-stream", [("X-Process-Id", PROCESS)])
        c.event("stdout", {"text": "one "}, "4.0")
        server.http.socket.close()  # nobody listens any more
        c.close_connection = True
        c.connection.close()
        threading.Timer(1, start_again).start()

    def start_again():
        other = FakeServer(server.http.server_address[1])
        other.on("GET", f"/v1/sandboxes/{ID}/processes/{PROCESS}/output",
                 events(("stdout", {"text": "two\n"}, "8.0"), ("exit", END, "8.0")))
        again.append(other.__enter__())
    server.on("POST", f"/v1/sandboxes/{ID}/exec", ending)
    result = call(server, "exec", ID, "x", stdin=subprocess.DEVNULL)
    again[0].__exit__()
    assert (result.returncode, result.stdout, result.stderr) == (0, b"one two\n", b"")


def test_exec_passes_signals_on(server):
    ready, done = threading.Event(), threading.Event()

    def slow(c):
        c.begin("text/event-stream", [("X-Process-Id", PROCESS)])
        c.event("stdout", {"text": "ready\n"}, "6.0")
        ready.set()
        done.wait(paddock.seconds(20))
        c.event("exit", {**END, "exit_code": None, "signal": "SIGINT"}, "6.0")
        c.end_chunks()

    def take(c):
        c.answer(204)
        done.set()
    server.on("POST", f"/v1/sandboxes/{ID}/exec", slow)
    server.on("POST", f"/v1/sandboxes/{ID}/processes/{PROCESS}/signal", take)
    with subprocess.Popen([paddock.PADDOCK, "exec", ID, "x"], env=environment(server),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGINT)
        assert child.wait(paddock.seconds(20)) == 130
    assert body_of(server) == {"signal": "SIGINT"}


@pytest.mark.parametrize("code, status", [("no_command", 127), ("not_executable", 126),
                                          ("session_lost", 125), ("invalid", 125), ("odd", 125)])
def test_exec_that_is_refused(server, code, status):
    error = {"code": code, "message": "it cannot be", "details": {}}
    server.on("POST", f"/v1/sandboxes/{ID}/exec", (400, {"error": error}))
    refused(call(server, "exec", ID, "x", stdin=subprocess.DEVNULL), status, "it cannot be")


def test_exec_of_a_command_that_could_not_be_started(server):
    error = {"code": "no_command", "message": "it is not there"}
    server.on("POST", f"/v1/sandboxes/{ID}/exec", events(("exit", {**END, "error": error}, "0.0")))
    refused(call(server, "exec", ID, "x", stdin=subprocess.DEVNULL), 127, "it is not there")


def test_exec_json_and_detach(server):
    record = {**END, "exit_code": 4, "stdout": "é\u0000", "pid": 9, "process_id": PROCESS}
    server.on("POST", f"/v1/sandboxes/{ID}/exec",
              lambda c: c.answer(202 if b"detached" in c.body else 200, record))
    result = call(server, "exec", "--json", ID, "x", stdin=b"input")
    assert result.returncode == 4 and json.loads(result.stdout) == record
    assert result.stdout.isascii()
    assert base64.b64decode(body_of(server)["stdin_base64"]) == b"input"
    result = call(server, "exec", "-d", ID, "x")
    assert (result.returncode, result.stdout) == (0, b"9\n")
    assert body_of(server)["detached"] is True


# ---- ps, logs, kill, port ----


def test_ps_logs_kill_port(server):
    process = {"pid": 7, "running": True, "command": "sleep\n9", "stdout_first": 3, "stderr_first": 0,
               "started_at": "2026-01-02T03:04:05.678Z", "signal": None, "stopped_by": None}
    ended = {**process, "pid": 8, "running": False, "exit_code": 1, "stopped_by": "oom"}
    base = f"/v1/sandboxes/{ID}"
    server.on("GET", base + "/processes", (200, {"processes": [process, ended]}))
    server.on("GET", base + "/processes/7", (200, process))
    server.on("GET", base + "/processes/7/output",
              lambda c: c.answer(200, c.query.encode(), kind="application/octet-stream"))
    server.on("POST", base + "/processes/7/signal", (204, None))
    server.on("GET", base + "/ports",
              (200, {"ports": [{"port": 80, "address": "::", "pid": None, "command": None}]}))
    server.on("POST", base + "/ports/80/preview", (200, {"url": "http://h/x", "expires_at": "x"}))
    assert b"sleep\\x0a9" in call(server, "ps", ID).stdout
    assert b"exit 1 (oom)" not in call(server, "ps", ID).stdout
    assert b"exit 1 (oom)" in call(server, "ps", "-a", ID).stdout
    result = call(server, "logs", ID, 7)
    assert (result.stdout, result.stderr) == (b"stream=stdout&offset=3", b"stream=stderr&offset=0")
    assert call(server, "kill", "-s", "int", ID, 7).returncode == 0
    assert body_of(server) == {"signal": "SIGINT"}
    assert call(server, "kill", ID, 7, "--signal=9").returncode == 0
    assert body_of(server) == {"signal": 9}
    assert call(server, "port", ID).stdout.decode().split() == [
        "PORT", "ADDRESS", "PID", "COMMAND", "80", "::", "-", "-"]
    assert call(server, "port", ID, 80, "--expires", "10m").stdout == b"http://h/x\n"
    assert body_of(server) == {"expires_in_s": 600}


def test_top_shows_usage(server):
    usage = {"memory_bytes": 1048576, "cpu_time_ms": 1500, "pids": 2, "limits": {}}
    server.on("GET", "/v1/sandboxes",
              (200, {"sandboxes": [SANDBOX, {**SANDBOX, "id": "b" * 20}], "next_cursor": None}))
    server.on("GET", f"/v1/sandboxes/{ID}/metrics", (200, usage))
    lines = call(server, "top", "--once").stdout.decode().splitlines()
    assert lines[1].split()[:8] == [ID, "running", "-", "-", "1.5s", "1.0M", "512M", "2"]
    assert lines[2].split()[:6] == ["b" * 20, "running", "-", "-", "-", "-"]  # gone meanwhile


# ---- cp ----


def stat_answer(kind, mode="0644"):
    return 200, {"name": "x", "path": "/x", "type": kind, "size": 1, "mode": mode}


def test_cp_of_files_both_ways(server, tmp_path):
    data = os.urandom(200000)
    (tmp_path / "in").write_bytes(data)
    (tmp_path / "in").chmod(0o750)
    base = f"/v1/sandboxes/{ID}/files"
    server.on("PUT", base, (201, {}))
    assert call(server, "cp", tmp_path / "in", f"{ID}:a b/c", "-p").returncode == 0
    method, target, _, body = server.calls[-1]
    assert target == f"{base}?path=a%20b%2Fc&mode=0750&mkdirs=true" and body == data
    assert call(server, "cp", "-", f"{ID}:out", "-u", "root", stdin=data).returncode == 0
    assert server.calls[-1][1] == f"{base}?path=out&user=root" and server.calls[-1][3] == data
    server.on("GET", base + "/stat", stat_answer("file", "0755"))
    server.on("GET", base, lambda c: c.answer(200, data, kind="application/octet-stream"))
    assert call(server, "cp", f"{ID}:x/name", tmp_path).returncode == 0
    assert (tmp_path / "name").read_bytes() == data
    assert (tmp_path / "name").stat().st_mode & 0o777 == 0o755
    assert call(server, "cp", f"{ID}:x", "-").stdout == data


def test_a_download_that_breaks_off_leaves_the_old_file(server, tmp_path):
    def broken(c):
        c.begin("application/octet-stream")
        c.chunk(b"half")
        c.close_connection = True
    base = f"/v1/sandboxes/{ID}/files"
    server.on("GET", base + "/stat", stat_answer("file"))
    server.on("GET", base, broken)
    (tmp_path / "old").write_text("old")
    assert call(server, "cp", f"{ID}:x", tmp_path / "old").returncode == 125
    assert (tmp_path / "old").read_text() == "old" and os.listdir(tmp_path) == ["old"]


def test_cp_of_directories_both_ways(server, tmp_path):
    archives = []
    (tmp_path / "src/deep").mkdir(parents=True)
    (tmp_path / "src/deep/file").write_text("content")
    (tmp_path / ("src/" + "n" * 150)).write_text("long")
    (tmp_path / "src/link").symlink_to("deep/file")
    base = f"/v1/sandboxes/{ID}/files"

    def take(c):
        archives.append(c.body)
        c.answer(200, {"entries": 4})
    server.on("PUT", base + "/archive", take)
    assert call(server, "cp", tmp_path / "src", f"{ID}:dst").returncode == 0
    assert server.calls[-1][1] == f"{base}/archive?path=dst"
    with tarfile.open(fileobj=io.BytesIO(archives[0])) as tar:
        assert sorted(tar.getnames()) == ["deep", "deep/file", "link", "n" * 150]
        assert tar.extractfile("deep/file").read() == b"content"
        assert tar.getmember("link").linkname == "deep/file"
    # Into a directory that is there: under the source's name.
    server.on("GET", base + "/stat", stat_answer("dir"))
    assert call(server, "cp", tmp_path / "src", f"{ID}:dst").returncode == 0
    assert server.calls[-1][1] == f"{base}/archive?path=dst%2Fsrc"
    server.on("GET", base + "/archive", lambda c: c.answer(200, archives[0], kind="application/x-tar"))
    assert call(server, "cp", f"{ID}:dst", tmp_path / "back").returncode == 0
    assert (tmp_path / "back/deep/file").read_text() == "content"
    assert (tmp_path / "back/link").read_text() == "content"
    assert (tmp_path / ("back/" + "n" * 150)).read_text() == "long"


def test_a_hostile_archive_stays_in_its_directory(server, tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(link)
        inner = tarfile.TarInfo("good")
        inner.size, inner.mode = 2, 0o6777
        tar.addfile(inner, io.BytesIO(b"ok"))
        evil = tarfile.TarInfo("../evil")
        evil.size = 4
        tar.addfile(evil, io.BytesIO(b"evil"))
    base = f"/v1/sandboxes/{ID}/files"
    server.on("GET", base + "/stat", stat_answer("dir"))
    server.on("GET", base + "/archive", lambda c: c.answer(200, out.getvalue(), kind="application/x-tar"))
    result = call(server, "cp", f"{ID}:.", tmp_path / "dst")
    assert result.returncode == 125 and b"leads out" in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["dst"] and os.listdir(tmp_path / "dst") == ["good"]
    assert (tmp_path / "dst/good").stat().st_mode & 0o7777 == 0o755
