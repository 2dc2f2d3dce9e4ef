"""Wall: between tenants, by what one of them uses up. Alice does her worst with what her key allows
her, or a stranger with no key at all; a command of bob's still runs, and soon. The control of each:
what alice holds is really held."""

import contextlib
import os
import secrets
import socket
import time

import pytest

from paddock_testing import run as paddock
from paddock_testing.server import Server, check_error

from .server_kit import Many, Raw, clean_log, create, execute, in_background, out, tenant, works

ACTIVE = 48


@pytest.fixture(scope="module")
def server():
    """Small, so that it can be filled by few."""
    with Server({"requests_per_s": 0, "creates_per_s": 0, "max_active": ACTIVE, "queue_max": 6,
                 "max_sandboxes_per_tenant": 6, "pool_max": 2, "pool_min": 1}) as s:
        yield s
        clean_log(s)


@pytest.fixture
def alice(server):
    """Another one for each test: what one of them leaves waiting is not in the next one's way."""
    yield from tenant(server, "alice-" + secrets.token_hex(4))


@pytest.fixture
def bob(server):
    yield from tenant(server, "bob-" + secrets.token_hex(4))


def active(client):
    with Raw(client) as raw:
        raw.head("GET", "/metrics", key=False)
        answer = raw.answer()
    if answer.status != 200:
        return ACTIVE
    return next(int(float(l.split()[1])) for l in answer.text.splitlines()
                if l.startswith("paddock_requests_active"))


# ---- requests that stay ----


def hold(many, alice, number, kind):
    """One request that goes on until its client leaves."""
    raw = many.add(Raw(alice))
    base = f"/v1/sandboxes/{alice.sandbox}"
    if kind == "watch":
        raw.head("GET", f"{base}/files/watch?path=.")
    elif kind == "body":
        raw.head("PUT", f"{base}/files?path=slow{number}", "Content-Length: 1000000")
        raw.send("x")
    elif kind == "output":
        raw.head("GET", f"{base}/processes/{alice.process}/output?follow=true")
    else:
        body = '{"command":"sleep 50","timeout_s":60}'
        raw.head("POST", f"{base}/exec", "Content-Type: application/json", f"Content-Length: {len(body)}")
        raw.send(body)


@pytest.mark.parametrize("kind", ["exec", "watch", "output", "body"])
def test_requests_that_stay(server, alice, bob, kind):
    """More of them than the server serves at once: they are alice's problem, not bob's. She is told,
    and goes on when some have ended."""
    alice.process = alice.post(f"/v1/sandboxes/{alice.sandbox}/processes",
                               json={"command": "sleep 100"}).json()["process_id"]
    with Many() as many:
        for number in range(ACTIVE + 16):
            hold(many, alice, number, kind)
        paddock.wait_for(lambda: active(bob) >= ACTIVE // 2, 10, "the control: they are held")
        for _ in range(5):
            works(bob, 5)
        assert create_and_end(bob)
        time.sleep(0.2)
        works(bob, 5)
        # Those that were too many are answered, and say when to come again.
        told = []

        def enough():
            for raw in many.open:
                raw.sock.setblocking(False)
                with contextlib.suppress(BlockingIOError, OSError):
                    piece = raw.sock.recv(4096)
                    if piece.startswith((b"HTTP/1.1 503", b"HTTP/1.1 429")):
                        assert b"Retry-After:" in piece
                        told.append(raw)
            return len(told) >= 16
        paddock.wait_for(enough, 10, "those that were too many are told")
    paddock.wait_for(lambda: active(bob) < ACTIVE // 4, 20, "all of it has ended")
    works(alice)


def create_and_end(client):
    sandbox = create(client)
    return client.delete(f"/v1/sandboxes/{sandbox}").status == 204


@pytest.mark.parametrize("target", ["/openapi.yaml", "/docs", "/metrics"])
def test_strangers_that_do_not_read(server, bob, target):
    """A15: without a key, large answers are asked for and not read. Those wait; others are served."""
    with Many() as many:
        for _ in range(ACTIVE + 16):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sock.settimeout(paddock.seconds(20))
            sock.connect((bob.host, bob.port))
            raw = many.add(type("Sock", (), {"sock": sock}))
            with contextlib.suppress(OSError):
                sock.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 40)
        time.sleep(0.5)
        for _ in range(5):
            works(bob, 5)


# ---- places in the queue ----


def test_a_full_queue_of_one_tenant_is_nobody_elses(server, alice, bob):
    """Alice has all the sandboxes that she may have and waits for more, in every place of the queue.
    Bob has room: he does not wait."""
    mine = [create(alice, queue_timeout_s=0) for _ in range(5)]
    check_error(alice.post("/v1/sandboxes", json={"queue_timeout_s": 0}), 503, "capacity")
    body = b'{"queue_timeout_s":30}'
    with Many() as many:
        for _ in range(8):
            raw = many.add(Raw(alice))
            raw.head("POST", "/v1/sandboxes", "Content-Type: application/json", f"Content-Length: {len(body)}")
            raw.send(body)
        time.sleep(0.3)
        began = time.monotonic()
        sandbox = create(bob, queue_timeout_s=0)
        assert time.monotonic() - began < paddock.seconds(5)
        works(bob)
        bob.delete(f"/v1/sandboxes/{sandbox}")
        # The control: the places are taken, by alice alone.
        waiting = [r for r in many.open if not answered(r)]
        assert len(waiting) >= 3
        # Room for her lets the first of them in.
        alice.delete(f"/v1/sandboxes/{mine.pop()}")
        paddock.wait_for(lambda: any(answered(r) for r in waiting), 10, "one of them is let in")
    for sandbox in mine:
        alice.delete(f"/v1/sandboxes/{sandbox}")
    clear(alice)


def answered(raw):
    raw.sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        return bool(raw.sock.recv(1, socket.MSG_PEEK))
    return False


def clear(client):
    """Ends all sandboxes but the fixture's, also those that are still being made for nobody."""
    def one_left():
        listed = client.get("/v1/sandboxes").json()["sandboxes"]
        for s in listed:
            if s["id"] != client.sandbox:
                client.delete(f"/v1/sandboxes/{s['id']}")
        return len(listed) == 1

    paddock.wait_for(one_left, 40, "one sandbox is left")


@pytest.mark.parametrize("by", ["key", "thread"])
def test_who_waits_holds_up_no_other_by_the_same_name(server, alice, bob, by):
    """Requests with one Idempotency-Key, or for one user and thread, wait for each other: those of
    one tenant. Alice waits in the queue with bob's words."""
    mine = [create(alice, queue_timeout_s=0) for _ in range(5)]
    body = b'{"queue_timeout_s":30}'

    def begin(raw):
        if by == "key":
            raw.head("POST", "/v1/sandboxes", "Content-Type: application/json", "Idempotency-Key: retry-1",
                     f"Content-Length: {len(body)}")
        else:
            raw.head("PUT", "/v1/sessions/user/thread", "Content-Type: application/json",
                     f"Content-Length: {len(body)}")
        raw.send(body)

    with Many() as many:
        begin(many.add(Raw(alice)))
        time.sleep(0.3)
        assert not answered(many.open[0]), "the control: alice waits"
        with Raw(bob) as raw:
            raw.sock.settimeout(paddock.seconds(8))
            begin(raw)
            answer = raw.answer()
        assert answer.status == 201, answer
        bob.delete(f"/v1/sandboxes/{answer.json()['id']}")
        alice.delete(f"/v1/sandboxes/{mine.pop()}")
        many.open[0].sock.setblocking(True)
        many.open[0].sock.settimeout(paddock.seconds(20))
        assert many.open[0].answer().status == 201
    for sandbox in mine:
        alice.delete(f"/v1/sandboxes/{sandbox}")
    clear(alice)


# ---- what runs in sandboxes ----


def test_two_hundred_processes(server, alice, bob):
    base = f"/v1/sandboxes/{alice.sandbox}"
    started = [alice.post(f"{base}/processes", json={"argv": ["sleep", "1000"]}).status for _ in range(200)]
    assert started.count(201) >= 100 and set(started) <= {201, 503, 429}, set(started)
    works(bob, 5)
    listed = alice.get(f"{base}/processes").json()["processes"]
    assert len([p for p in listed if p["running"]]) >= 100, "the control"
    works(bob, 5)


def test_output_without_end(server, alice, bob):
    """Many streams as fast as they can, which nobody reads: kept within their bounds on disk and
    not in memory."""
    base = f"/v1/sandboxes/{alice.sandbox}"
    before = rss(server)
    ids = [alice.post(f"{base}/processes", json={"command": "yes >&2 & yes", "spool_max_bytes": 1 << 20,
                                                 "timeout_s": 300}).json()["process_id"] for _ in range(6)]
    end = time.monotonic() + 2
    while time.monotonic() < end:
        works(bob, 5)

    def much_came_out():
        shown = alice.get(f"{base}/processes/{ids[0]}").json()
        return shown["stdout_bytes"] > 4 << 20 and shown["stdout_first"] > 0

    paddock.wait_for(much_came_out, 20, "the control: much came out")
    spool = os.path.join(server.state_dir, "server", "spool")
    used = 0
    for name in (os.path.join(d, f) for d, _, names in os.walk(spool) for f in names):
        with contextlib.suppress(FileNotFoundError):  # of a command of bob's that has ended
            used += os.stat(name).st_blocks * 512
    assert used < 12 * (3 << 20), used
    assert rss(server) - before < 64 << 20
    for id in ids:
        alice.delete(f"{base}/processes/{id}")


def test_large_answers(server, alice, bob):
    """64 MiB of output on both streams, of which the answers want all that they may have, escaped to
    six times its length, and slowly read: it waits on disk, not in memory."""
    text = "a\u00e4\u20ac\U0001f600\0"
    whole = execute(alice, f"yes $'{text[:-1]}' | head -n 300000", output_max_bytes=16 << 20)
    assert whole["stdout"] == (text[:-1] + "\n") * 300000, "the control: a long answer is right"
    before = rss(server)
    body = (b'{"command":"head -c 67108864 /dev/zero; head -c 67108864 /dev/zero >&2",'
            b'"output_max_bytes":16777216,"spool_max_bytes":67108864}')
    with Many() as many:
        for _ in range(6):
            raw = many.add(Raw(alice))
            raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.head("POST", f"/v1/sandboxes/{alice.sandbox}/exec", "Content-Type: application/json",
                     f"Content-Length: {len(body)}")
            raw.send(body)
        for raw in many.open:
            assert raw.sock.recv(12) == b"HTTP/1.1 200", "the control: all of them are being answered"
            works(bob, 8)
        grown = rss(server) - before
    assert grown < 64 << 20, grown


def test_bombs_inside(server, alice, bob):
    """Forks, spinning and memory in two sandboxes at once."""
    second = create(alice)
    for sandbox in (alice.sandbox, second):
        for command in (":(){ :|:& };:", "while :; do :; done & while :; do :; done",
                        "python3 -c 'x=[]\nwhile 1: x.append(bytearray(1<<20))'"):
            alice.post(f"/v1/sandboxes/{sandbox}/processes", json={"command": command, "timeout_s": 20})
    end = time.monotonic() + 2
    while time.monotonic() < end:
        works(bob, 8)
    began = time.monotonic()
    for sandbox in (alice.sandbox, second):
        assert alice.delete(f"/v1/sandboxes/{sandbox}").status == 204
    assert time.monotonic() - began < paddock.seconds(20)
    works(bob)


def test_what_is_gone_is_not_remembered_for_ever(server, alice, bob):
    """Created and deleted without end: the last 500 of a tenant are remembered, others' as before."""
    gone = create(bob)
    bob.delete(f"/v1/sandboxes/{gone}")

    def cycles(_):
        client = server.client(alice.key)
        for _ in range(135):
            client.delete(f"/v1/sandboxes/{create(client)}")
        client.close()

    threads, errors = in_background(4, cycles)
    for thread in threads:
        thread.join(paddock.seconds(60))
    assert not errors, errors

    def remembered():
        return len(alice.get("/v1/sandboxes?state=gone&limit=1000").json()["sandboxes"])

    paddock.wait_for(lambda: remembered() == 500, 10, "500 are remembered")
    assert bob.get(f"/v1/sandboxes/{gone}").json()["state"] == "gone"
    works(bob)


def test_floods_of_events(server, alice, bob):
    """Files are made and removed as fast as it goes; watchers do not read what they are told."""
    base = f"/v1/sandboxes/{alice.sandbox}"
    alice.post(f"{base}/processes", json={
        "command": "mkdir -p w; while :; do for i in 1 2 3 4 5 6 7 8 9; do : > w/$i; done; rm -f w/*; done",
        "timeout_s": 30})
    before = rss(server)
    with Many() as many:
        for _ in range(8):
            raw = many.add(Raw(alice))
            raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.head("GET", f"{base}/files/watch?path=.&recursive=true")
        end = time.monotonic() + 2
        while time.monotonic() < end:
            works(bob, 5)
        seen = b""
        while b"event: " not in seen:  # the control
            seen += (piece := many.open[0].sock.recv(4096))
            assert piece, seen
        assert rss(server) - before < 64 << 20


def rss(server):
    with open(f"/proc/{server.daemon()}/status", encoding="ascii") as status:
        return next(int(l.split()[1]) << 10 for l in status if l.startswith("VmRSS"))


# ---- an init that does not do its work ----


def test_a_start_that_is_stopped_ends_at_its_time(server, alice, bob):
    """A command of the sandbox stops every other one the moment it appears: what init starts never
    gets to run. The requests end at their own time, and the sandbox can be deleted."""
    base = f"/v1/sandboxes/{alice.sandbox}"
    alice.put(f"{base}/files?path=stop.py", data=b"""
import os, signal
me = os.getpid()
print("ready", flush=True)
while True:
    for p in os.listdir("/proc"):
        if p.isdigit() and int(p) not in (1, me, os.getppid()):
            try: os.kill(int(p), signal.SIGSTOP)
            except OSError: pass
""")
    made = alice.post(f"{base}/processes", json={"argv": ["python3", "stop.py"]}).json()
    paddock.wait_for(lambda: b"ready" in alice.get(f"{base}/processes/{made['process_id']}/output").body, 10,
                     "it runs")
    ended = []
    for number in range(20):
        if number >= 4 and any(ended):  # on a busy machine it may be too late for some
            break
        began = time.monotonic()
        answer = alice.post(f"{base}/exec", json={"command": "sleep 0.3; echo done", "timeout_s": 1})
        took = time.monotonic() - began
        assert took < paddock.seconds(12), f"{took:.1f} s"
        assert answer.status in (200, 503, 504), answer
        ended.append(answer.status != 200 or answer.json()["timed_out"])
        works(bob, 5)
    assert any(ended), "the control: it stopped none"
    # What waits for a worker of the sandbox ends with the sandbox.
    answers = []
    threads, errors = in_background(3, lambda n: answers.append(
        alice.get(f"{base}/" + ("files/list?path=.", "ports", "files?path=stop.py")[n]).status))
    time.sleep(0.5)
    works(bob, 5)
    began = time.monotonic()
    assert alice.delete(base).status == 204
    assert time.monotonic() - began < paddock.seconds(15)
    for thread in threads:
        thread.join(paddock.seconds(15))
    assert not errors and len(answers) == 3 and 500 not in answers, (answers, errors)
    works(bob)
