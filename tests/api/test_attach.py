"""Attaching to a process by WebSocket."""

import hashlib
import os
import signal
import struct
import threading
import time

import pytest

from paddock_testing.run import seconds, wait_for
from paddock_testing.server import Server
from ws import BINARY, CLOSE, PING, PONG, TEXT, Raw, WebSocket


class Box:
    def __init__(self, api, id):
        self.api = api
        self.base = f"/v1/sandboxes/{id}"

    def start(self, command, **more):
        answer = self.api.post(f"{self.base}/processes", json={"command": command, **more})
        assert answer.status == 201, answer.body
        return answer.json()["process_id"]

    def attach(self, process, query="", **more):
        return WebSocket(self.api, f"{self.base}/processes/{process}/attach{query}", **more)

    def run(self, command):
        done = self.api.post(f"{self.base}/exec", json={"command": command})
        assert done.status == 200 and done.json()["exit_code"] == 0, done

    def info(self, process):
        return self.api.get(f"{self.base}/processes/{process}").json()


@pytest.fixture
def box(api, sandbox):
    return Box(api, sandbox)


def test_output_and_exit(box):
    with box.attach(box.start("echo out; echo err >&2; exit 3")) as ws:
        streams, end = ws.collect()
        assert streams == {1: b"out\n", 2: b"err\n"}
        assert end["exit_code"] == 3 and end["signal"] is None and end["stopped_by"] is None
        assert end["stdout_bytes"] == 4 and end["stderr_bytes"] == 4
        assert ws.closed() == 1000


def test_input_and_its_end(box):
    with box.attach(box.start("cat; echo done", stdin=True)) as ws:
        ws.send(b"hello\n")
        assert ws.collect(until=b"hello\n")[0][1] == b"hello\n"
        ws.send({"type": "close_stdin"})
        streams, end = ws.collect()
        assert streams[1] == b"done\n" and end["exit_code"] == 0


def test_a_megabyte_goes_in_and_comes_out(box):
    data = os.urandom(3 << 20)
    with box.attach(box.start("cat", stdin=True)) as ws:
        def feed():
            for at in range(0, len(data), 1 << 20):
                ws.send(data[at:at + (1 << 20)])
            ws.send({"type": "close_stdin"})
        thread = threading.Thread(target=feed)
        thread.start()
        streams, end = ws.collect(seconds=60)
        thread.join()
        assert streams[1] == data and end["exit_code"] == 0


def test_input_that_nobody_reads_holds_up_nothing_else(box):
    process = box.start("for i in 1 2 3 4 5; do sleep 0.3; echo $i; done", stdin=True)
    with box.attach(process) as ws:
        ws.send(b"x" * 900_000)
        streams, end = ws.collect()
        assert streams[1] == b"1\n2\n3\n4\n5\n" and end["exit_code"] == 0


def test_a_terminal_and_its_size(box):
    process = box.start("bash --norc", pty=True, rows=24, cols=80)
    with box.attach(process) as ws:
        ws.send({"type": "resize", "rows": 41, "cols": 123})
        ws.send(b"stty size; echo mar''ker\n")
        assert b"41 123" in ws.collect(until=b"marker")[0][1]
        ws.send(b"sleep 4100\n")
        wait_for(lambda: box.api.post(f"{box.base}/exec", json={"argv": ["pgrep", "-xf", "sleep 4100"]})
                 .json()["exit_code"] == 0, 10, "it sleeps")
        ws.send(b"\x03")
        ws.send(b"echo still''here\n")
        ws.collect(until=b"stillhere")
        ws.send(b"exit 5\n")
        assert ws.collect()[1]["exit_code"] == 5


def test_signals(box):
    process = box.start("trap 'echo usr1' USR1; trap 'exit 9' TERM; echo ready; "
                        "while :; do sleep 0.05; done")
    with box.attach(process) as ws:
        ws.collect(until=b"ready")
        ws.send({"type": "signal", "signal": "SIGUSR1"})
        ws.collect(until=b"usr1")
        ws.send({"type": "signal", "signal": 15})
        assert ws.collect()[1]["exit_code"] == 9


def test_sigkill(box):
    with box.attach(box.start("echo up; sleep 100")) as ws:
        ws.collect(until=b"up")
        ws.send({"type": "signal", "signal": "KILL"})
        end = ws.collect()[1]
        assert end["signal"] == "SIGKILL" and end["exit_code"] is None


def test_several_watch_and_leaving_ends_nothing(box):
    process = box.start("read x; echo got $x", stdin=True)
    first, second, third = (box.attach(process) for _ in range(3))
    third.raw.sock.close()
    second.raw.send(second.frame(CLOSE, struct.pack(">H", 1000)))
    assert second.closed() == 1000
    time.sleep(0.3)
    assert box.info(process)["running"]
    first.send(b"it\n")
    assert first.collect()[0][1] == b"got it\n"
    with box.attach(process) as late:  # it has ended; its output has not
        streams, end = late.collect()
        assert streams[1] == b"got it\n" and end["exit_code"] == 0


def test_attaching_again_goes_on_where_it_was(box):
    process = box.start("for i in $(seq 200); do echo line $i; echo e$i >&2; sleep 0.005; done")
    got = {1: b"", 2: b""}
    end = None
    for _ in range(1000):
        with box.attach(process, f"?offset={len(got[1])}.{len(got[2])}") as ws:
            for _ in range(7):
                message = ws.message()
                if isinstance(message, bytes):
                    got[message[0]] += message[1:]
                else:
                    end = message
                    break
        if end:
            break
    assert got[1] == b"".join(b"line %d\n" % i for i in range(1, 201))
    assert got[2] == b"".join(b"e%d\n" % i for i in range(1, 201))
    with box.attach(process, "?offset=3") as ws:
        assert ws.collect()[0][1] == got[1][3:]


@pytest.mark.parametrize("query", ["?offset=-1x", "?offset=x", "?offset=1.2.3", "?offset=",
                                   "?offset=99999999", "?offset=0.99999", "?offset=18446744073709551616",
                                   "?offset=0&offset=0", "?other=1"])
def test_wrong_offsets(box, query):
    process = box.start("echo hello")
    with box.attach(process, query) as ws:
        assert ws.status == 400 and ws.error()["code"] == "invalid"


def test_what_is_no_websocket(api, box):
    process = box.start("sleep 5")
    answer = api.get(f"{box.base}/processes/{process}/attach")
    assert answer.status == 400 and "WebSocket" in answer.json()["error"]["message"]
    with box.attach("0" * 32) as ws:
        assert ws.status == 404
    with box.attach(process, key=False) as ws:
        assert ws.status == 401
    with box.attach(process, "?api_key=" + api.key, key=False) as ws:
        assert ws.status == 401


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example",
                                    "https://{here}", "http://{here}.evil.example", "http://{host}",
                                    "{here}", ""])
def test_pages_of_others_are_refused(api, box, origin):
    origin = origin.format(here=f"{api.host}:{api.port}", host=api.host)
    with box.attach(box.start("sleep 5"), headers=[("Origin", origin)]) as ws:
        assert ws.status == 403 and ws.error()["code"] == "denied"


def test_the_own_origin_is_not(api, box):
    with box.attach(box.start("echo hi"), headers=[("Origin", f"http://{api.host}:{api.port}")]) as ws:
        assert ws.status == 101 and ws.collect()[0][1] == b"hi\n"


WHEN_TOLD = "until [ -e /tmp/told ]; do sleep 0.05; done; echo alive"


@pytest.mark.parametrize("message,code", [
    ("nonsense", "invalid"), ("[]", "invalid"), ({}, "invalid"), ({"type": "dance"}, "invalid"),
    ({"type": "resize", "rows": 1, "cols": 1}, "invalid"),  # it has no terminal
    ({"type": "resize", "rows": 0, "cols": 1}, "invalid"),
    ({"type": "resize", "rows": 70000, "cols": 1}, "invalid"),
    ({"type": "signal"}, "invalid"), ({"type": "signal", "signal": "SIGNOPE"}, "invalid"),
    ({"type": "signal", "signal": 65}, "invalid"), ({"type": "signal", "signal": 9, "x": 1}, "invalid"),
    ({"type": "close_stdin"}, "conflict"),  # it was never open
    ('{"type":"signal","type":"signal","signal":9}', "invalid"),
])
def test_orders_that_cannot_be_carried_out(box, message, code):
    with box.attach(box.start(WHEN_TOLD)) as ws:
        ws.send(message)
        answer = ws.message()
        assert answer["type"] == "error" and answer["error"]["code"] == code, answer
        box.run("touch /tmp/told")
        assert ws.collect()[0][1] == b"alive\n"


def test_input_without_stdin_is_told(box):
    with box.attach(box.start(WHEN_TOLD)) as ws:
        ws.send(b"x")
        assert ws.message()["error"]["code"] == "conflict"
        box.run("touch /tmp/told")
        assert ws.collect()[0][1] == b"alive\n"


@pytest.mark.parametrize("make,code", [
    (lambda ws: ws.frame(BINARY, b"x", masked=False), 1002),
    (lambda ws: ws.frame(BINARY, b"x", reserved=4), 1002),
    (lambda ws: ws.frame(3, b"x"), 1002),
    (lambda ws: ws.frame(PING, b"x" * 126), 1002),
    (lambda ws: ws.frame(PING, b"x", final=False), 1002),
    (lambda ws: ws.frame(0, b"x"), 1002),
    (lambda ws: ws.frame(TEXT, b"\xff\xfe"), 1007),
    (lambda ws: b"\x82\xff" + struct.pack(">Q", 1 << 40) + b"abcd", 1009),
    (lambda ws: b"\x82\xff" + struct.pack(">Q", 1 << 63) + b"abcd", 1002),
    (lambda ws: ws.frame(BINARY, b"x" * ((1 << 20) + 1)), 1009),
    (lambda ws: ws.frame(BINARY, b"x" * (1 << 19), final=False) + ws.frame(0, b"x" * (1 << 20)), 1009),
    (lambda ws: ws.frame(CLOSE, struct.pack(">H", 1005)), 1002),
    (lambda ws: ws.frame(CLOSE, b"x"), 1002),
])
def test_frames_that_must_not_be(box, make, code):
    process = box.start("sleep 600", stdin=True)
    with box.attach(process) as ws:
        try:
            ws.raw.send(make(ws))
        except OSError:
            pass  # it did not wait for the rest
        assert ws.closed() == code
    assert box.info(process)["running"]


def test_pings_are_answered_also_a_hundred_thousand(box):
    with box.attach(box.start("sleep 100"), timeout=60) as ws:
        ws.raw.send(ws.frame(PING, b"are you there"))
        assert ws.next() == (PONG, b"are you there")
        count = 100_000
        flood = ws.frame(PING, b"") * 1000
        thread = threading.Thread(target=lambda: [ws.raw.send(flood) for _ in range(count // 1000)])
        thread.start()
        assert ws.raw.exactly(2 * count) == b"\x8a\x00" * count
        thread.join()


def rss_kib(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(next(line for line in f if line.startswith("VmRSS")).split()[1])


def test_a_client_that_does_not_read_slows_nobody(server, box):
    """64 MiB flow while one client reads nothing: the command ends, another client sees everything,
    and nothing piles up."""
    mib = 64
    process = box.start(f"head -c {mib << 20} /dev/zero; echo end >&2")
    slow = box.attach(process)
    before = rss_kib(server.daemon())
    with box.attach(process, timeout=60) as ws:
        total, end = 0, None
        while not end:
            message = ws.message()
            if isinstance(message, bytes):
                total += len(message) - 1
            elif message["type"] == "exit":
                end = message
        assert end["exit_code"] == 0 and end["stdout_bytes"] == mib << 20
    assert rss_kib(server.daemon()) - before < 16 << 10
    got, missed, end = read_all(slow)
    assert got + missed == mib << 20 and end["exit_code"] == 0
    slow.raw.sock.close()


def read_all(ws):
    """Bytes of stdout that came, bytes that were told to be missing, and the exit message."""
    got, missed = 0, 0
    while True:
        message = ws.message()
        if isinstance(message, bytes):
            got += (len(message) - 1) * (message[0] == 1)
        elif message["type"] == "exit":
            return got, missed, message
        else:
            text = message["error"]["message"].split()
            assert message["error"]["code"] == "lost"
            missed += int(text[3]) - int(text[1])


def test_what_a_slow_client_missed_is_told(box):
    total = 32 << 20
    process = box.start(f"read; head -c {total} /dev/zero", spool_max_bytes=1 << 20, stdin=True)
    with box.attach(process, timeout=30) as slow:
        slow.send(b"\n")
        wait_for(lambda: not box.info(process)["running"], 60, "it has written all")
        got, missed, end = read_all(slow)
        assert got + missed == total and missed > 0 and end["stdout_bytes"] == total


def test_a_client_that_does_not_read_can_still_give_orders(box):
    process = box.start("yes", spool_max_bytes=1 << 20)
    with box.attach(process) as ws:
        time.sleep(1)
        ws.send({"type": "signal", "signal": "KILL"})
        wait_for(lambda: not box.info(process)["running"], 10, "the signal arrives")


def test_children_that_go_on_writing_do_not_delay_the_end(box):
    process = box.start("yes & sleep 0.3; exit 4", spool_max_bytes=1 << 20)
    with box.attach(process, timeout=30) as ws:
        began = time.monotonic()
        assert read_all(ws)[2]["exit_code"] == 4
        assert time.monotonic() - began < seconds(10)


def test_the_end_of_the_sandbox_is_an_end(api, box):
    with box.attach(box.start("echo up; sleep 100")) as ws:
        ws.collect(until=b"up")
        assert api.delete(box.base).status == 204
        end = ws.collect()[1]
        assert end["stopped_by"] in ("sandbox", "killed") and ws.closed() == 1000


def test_bytes_that_come_with_the_request(api, box):
    """A client need not wait for the 101."""
    process = box.start("cat", stdin=True)
    with Raw(api) as raw:
        ws = WebSocket.__new__(WebSocket)
        frame = WebSocket.frame(ws, BINARY, b"early\n")
        raw.send(f"GET {box.base}/processes/{process}/attach HTTP/1.1\r\nHost: {api.host}\r\n"
                 f"X-API-Key: {api.key}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                 "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
                 .encode() + frame)
        status, headers = raw.head()
        assert status == 101
        assert ("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=") in headers
        assert raw.exactly(9) == b"\x82\x07\x01early\n"


def test_allowed_origins_and_the_end_of_the_server():
    with Server({"allowed_origins": "https://console.example", "pool_min": 0, "pool_max": 0}) as server:
        api = server.client()
        box = Box(api, api.post("/v1/sandboxes", json={}).json()["id"])
        process = box.start("echo up; sleep 100")
        with box.attach(process, headers=[("Origin", "https://console.example.evil")]) as ws:
            assert ws.status == 403
        with box.attach(process, headers=[("Origin", "https://console.example")]) as ws:
            ws.collect(until=b"up")
            began = time.monotonic()
            server.send_signal(signal.SIGTERM)
            assert ws.closed() == 1001
            ws.raw.sock.close()
            server.wait()
            assert time.monotonic() - began < seconds(8)


def test_an_attached_client_keeps_the_sandbox(api):
    made = api.post("/v1/sandboxes", json={})
    assert made.status == 201, made
    box = Box(api, made.json()["id"])
    with box.attach(box.start("until [ -e /tmp/told ]; do sleep 0.05; done; sleep 3; echo end")) as ws:
        box.run("touch /tmp/told")
        assert api.post(f"{box.base}/extend", json={"idle_timeout_s": 1}).status == 200
        assert ws.collect()[0][1] == b"end\n"


def test_a_terminal_that_is_flooded(box):
    """A terminal whose program does not read takes some and drops the rest; nothing hangs."""
    process = box.start("stty raw -echo; echo ready; sleep 3; echo end", pty=True)
    with box.attach(process) as ws:
        ws.collect(until=b"ready")
        ws.send(b"y" * 500_000)
        errors = 0
        while True:
            message = ws.message()
            if isinstance(message, dict) and message["type"] == "exit":
                break
            errors += isinstance(message, dict)
        assert errors <= 1 and message["exit_code"] == 0


def test_a_key_that_is_revoked(server, box):
    process = box.start("echo up; sleep 100")
    client = server.client(server.make_key())
    with Box(client, box.base.rsplit("/", 1)[1]).attach(process) as ws, box.attach(process) as other:
        ws.collect(until=b"up")
        server.run("key", "revoke", hashlib.sha256(client.key.encode()).hexdigest()[:16])
        assert ws.closed() == 1008
        time.sleep(1.2)
        other.send({"type": "signal", "signal": "KILL"})
        assert other.collect()[1]["signal"] == "SIGKILL"


# ---- a window, a lag, the last bytes ----


def wait_for_output(box, process, size):
    wait_for(lambda: box.info(process)["stdout_bytes"] == size, 30, f"{size} bytes of output")


def collect_until_quiet(ws, size):
    """Exactly `size` bytes of stdout, and then an answer to a ping instead of more."""
    got = b""
    while len(got) < size:
        message = ws.message()
        assert message[:1] == b"\x01", message
        got += message[1:]
    assert len(got) == size

    ws.raw.send(ws.frame(PING, b"still there"))
    while (frame := ws.next()) != (PONG, b"still there"):
        assert frame[0] == PING, f"more than the window came: {frame}"
    return got


def test_a_window_holds_output_back(box):
    process = box.start("seq -w 1 20000; exec sleep 100")
    wait_for_output(box, process, 120_000)
    whole = b"".join(b"%05d\n" % i for i in range(1, 20001))

    with box.attach(process, "?window=10000") as ws:
        got = collect_until_quiet(ws, 10_000)
        ws.send({"type": "ack", "bytes": 4000})
        got += collect_until_quiet(ws, 4_000)
        ws.send({"type": "ack", "bytes": 10_001})
        said = ws.message()
        assert said["type"] == "error" and said["error"]["code"] == "invalid" and "10000" in said["error"]["message"]
        while len(got) < 120_000:
            ws.send({"type": "ack", "bytes": 10_000})
            got += collect_until_quiet(ws, min(10_000, 120_000 - len(got)))
        assert got == whole

    # The control: without a window everything comes by itself.
    with box.attach(process) as ws:
        assert ws.collect(until=b"20000\n")[0][1] == whole


def test_the_end_comes_when_everything_was_sent_also_in_a_full_window(box):
    process = box.start("head -c 8192 /dev/zero")
    with box.attach(process, "?window=8192") as ws:
        streams, end = ws.collect()
        assert streams[1] == bytes(8192) and end["exit_code"] == 0


def test_a_lag_shows_the_newest(box):
    process = box.start("seq -w 1 200000; exec sleep 100")
    wait_for_output(box, process, 1_400_000)
    with box.attach(process, "?lag=65536&window=4096") as ws:
        said = ws.message()
        assert said == {"type": "skipped", "stream": "stdout", "bytes": 1_400_000 - 65536}
        got = b""
        while not got.endswith(b"200000\n"):
            piece = ws.message()[1:]
            got += piece
            ws.send({"type": "ack", "bytes": len(piece)})
        assert got == b"".join(b"%06d\n" % i for i in range(1, 200_001))[-65536:]

    with box.attach(process, "?lag=2000000&offset=-14") as ws:
        assert ws.collect(until=b"200000\n")[0][1] == b"199999\n200000\n"


@pytest.mark.parametrize("query, field", [("window=1", "window"), ("lag=1", "lag"), ("offset=-", "offset"),
                                          ("offset=--1", "offset"), ("window=x", "window")])
def test_wrong_numbers_for_attaching(box, query, field):
    process = box.start("sleep 100")
    with box.attach(process, f"?{query}") as ws:
        assert ws.status == 400 and ws.error()["details"]["field"] == field


def test_an_observer_may_acknowledge(box):
    process = box.start("head -c 8192 /dev/zero; exec sleep 100")
    wait_for_output(box, process, 8192)
    with box.attach(process, "?window=4096&observe=true") as ws:
        collect_until_quiet(ws, 4096)
        ws.send({"type": "ack", "bytes": 4096})
        collect_until_quiet(ws, 4096)
