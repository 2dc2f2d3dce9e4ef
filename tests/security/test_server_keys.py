"""Wall: keys, and what the server is on its host. A key is written down nowhere but as its hash;
the daemon has no privilege, and nothing that a sandbox or another user could pick up."""

import contextlib
import json
import os
import pathlib
import re
import secrets
import socket
import stat
import subprocess
import time

import pytest

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.server import Server, check_error

from .server_kit import (Raw, alice, ask, bob, check_no_leak, create, execute, out, server, works)

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="started by root only")


# ---- A02-A04: keys ----


def with_lines(client, *lines):
    with Raw(client) as raw:
        raw.head("GET", "/v1/sandboxes", *lines, key=False)
        return raw.answer()


def test_the_two_forms_of_a_key(alice):
    """The control of the next tests."""
    for line in (f"X-API-Key: {alice.key}", f"x-api-key:{alice.key}", f"Authorization: Bearer {alice.key}"):
        assert with_lines(alice, line).status == 200


@pytest.mark.parametrize("line", [
    "Authorization: Basic {basic}", "Authorization: {key}", "Authorization: Token {key}",
    "Authorization: Bearer  {key}", "Authorization: Bearer\t{key}", "Authorization: Bearer {key}x",
    "Authorization: Bearer {key},{key}", "Authorization: Bearer {KEY}", "Authorization: Bearer {short}",
    "Authorization: Bearer", "X-API-Key: {key} {key}", "X-API-Key: {KEY}", "X-API-Key: {short}",
    "X-API-Key:", "X-API-Key: e2b_", "X-API-Key: Bearer {key}", "Cookie: api_key={key}",
    "Cookie: X-API-Key={key}", "X-Api-Token: {key}", "Proxy-Authorization: Bearer {key}",
    "X-API-Key: {zeros}", "X-API-Key: {long}", "X-API-Key: ../../{key}", "X-API-Key: ' OR '1'='1"])
def test_anything_else_is_no_key(alice, line):
    import base64
    text = line.format(key=alice.key, KEY=alice.key.upper(), short=alice.key[:-1],
                       basic=base64.b64encode(f"x:{alice.key}".encode()).decode(),
                       zeros="e2b_" + "0" * 40, long="e2b_" + "a" * 8000)
    answer = with_lines(alice, text)
    check_error(answer, 401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"] == "Bearer" and alice.key not in answer.text


@pytest.mark.parametrize("query", ["api_key", "key", "apikey", "access_token", "token", "X-API-Key"])
def test_a_key_in_a_query_is_none(alice, query):
    with Raw(alice) as raw:
        raw.head("GET", f"/v1/sandboxes?{query}={alice.key}", key=False)
        answer = raw.answer()
    check_error(answer, 401, "unauthenticated")
    assert alice.key not in answer.text


def test_wrong_keys_are_cheap_and_harm_nobody(server, alice):
    """A38: thousands of them; the right one works meanwhile, and soon."""
    with Raw(alice) as raw:
        for _ in range(10):
            raw.send("".join("GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\n"
                             f"X-API-Key: e2b_{secrets.token_hex(20)}\r\n\r\n" for _ in range(300)))
            assert works(alice, 5)
            for _ in range(300):
                assert raw.answer().status == 401


def test_wrong_keys_do_not_fill_the_audit(server, alice):
    """Attempts are written down, but who has no key cannot push out what others did: of many in a
    second only some are."""
    def size():
        return os.stat(os.path.join(server.state_dir, "server", "audit.log")).st_size

    execute(alice, "true")
    before = size()
    for _ in range(4):
        with Raw(alice) as raw:
            raw.send("POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n" * 500)
            for _ in range(500):
                assert raw.answer().status == 401
    grown = size() - before
    assert 0 < grown < 2000 * 60, grown
    execute(alice, "true")
    # The control. An event is written behind its answer.
    paddock.wait_for(lambda: size() > before + grown, 5, "what tenants do is written")


def test_a_revoked_key_is_none(server, alice):
    key = server.make_key("alice", label="short-lived")
    client = server.client(key)
    # Whoever floods with wrong keys can delay a new one for a second, no more.
    paddock.wait_for(lambda: client.get("/v1/sandboxes").status == 200, 3, "the key is accepted")
    listed = server.run("key", "list").stdout
    assert key not in listed and key[4:20] not in listed
    id = next(l.split()[0] for l in listed.splitlines() if "short-lived" in l)
    server.run("key", "revoke", id)
    paddock.wait_for(lambda: client.get("/v1/sandboxes").status == 401, 5, "the key is refused")


# ---- where keys are not ----


def use_keys_everywhere(server, client):
    """Makes the server see the key in every way that it could be written down."""
    key = client.key
    execute(client, f"echo {key} > /dev/null; : -H 'X-API-Key: {key}'", env={"TOKEN": key})
    client.get(f"/v1/sandboxes?user_id={key}")
    client.get(f"/v1/{key}")
    client.get(f"/v1/sandboxes/{key}")
    client.get(f"/v1/sandboxes/{client.sandbox}/files?path={key}")
    client.post(f"/v1/sandboxes/{client.sandbox}/exec", json={"argv": ["no-such", key]})
    for line in (f"X-API-Key: {key}0", f"Authorization: Bearer {key}, {key}", f"X-Junk: {key}"):
        with_lines(client, line)
    ask(client, f"{key} / HTTP/1.1\r\nHost: {key}\r\n\r\n", least=1)
    ask(client, f"GET /{key} HTTP/1.1\r\nHost: {key}.example\r\nX-API-Key: {key}\r\n\r\n", least=1)


def test_keys_are_written_nowhere():
    """Not into logs (also of level debug), audit, metrics, the database, or any other file of the
    server. The control: what stands beside the key is there."""
    with Server({"log_level": "debug", "requests_per_s": 0}) as server:
        first = server.client()
        client = server.client(server.make_key("carol"))
        for c in (first, client):
            c.sandbox = create(c)
            execute(c, "echo marker-of-the-control")
            use_keys_everywhere(server, c)
        metrics = first.get("/metrics").text
        audit = pathlib.Path(server.state_dir, "server", "audit.log").read_text()
        assert "marker-of-the-control" in audit and "request" in server.log()
        assert "carol" not in metrics and client.sandbox not in metrics, "A60: tenants in the metrics"
        for key in (server.key, client.key):
            for what, text in (("metrics", metrics), ("audit", audit)):
                assert key not in text, what
            # The path of a request is the client's to choose; a line of level debug tells it.
            kept = [l for l in server.log().splitlines() if key in l and " path=" not in l]
            assert not kept, kept
        for name in host.files_below(server.state_dir):
            path = os.path.join(server.state_dir, name)
            if "/roots/" in path or not os.path.isfile(path):
                continue  # what the tenant itself has written
            data = b""
            with contextlib.suppress(FileNotFoundError):  # the database's own come and go
                data = pathlib.Path(path).read_bytes()
            for key in (server.key, client.key):
                assert bytes.fromhex(key[4:]) not in data, path
                # A command that has a key in it is kept as it is, for GET /processes.
                for command in (f"echo {key} > /dev/null; : -H 'X-API-Key: {key}'", f"no-such {key}"):
                    data = data.replace(command.encode(), b"")
                if key.encode() in data:
                    at = data.find(key.encode())
                    raise AssertionError(f"{path}: {data[max(at - 100, 0):at + 100]!r}")
        for c in (first, client):
            c.close()


def test_keys_are_with_no_other_process(server, alice):
    """Neither on a command line nor in the environment of anything that the server started: the
    keeper, builders, inits, commands. (The guardian and its child, the daemon, were given
    PADDOCK_API_KEY by whoever started them; only root may look there.)"""
    execute(alice, "sleep 300 & true")
    own = {server.process.pid, server.daemon()}
    below = set(server.keepers())
    for keeper in list(below):
        below |= set(host.descendants(keeper))
    assert len(below) >= 3, "the control: there are processes to look at"
    for pid in below | own:
        assert server.key not in host.read_proc(pid, "cmdline")
        assert alice.key not in host.read_proc(pid, "cmdline") + host.read_proc(pid, "environ")
    for pid in below:
        assert server.key not in host.read_proc(pid, "environ"), host.command_line(pid)
        assert "PADDOCK_API_KEY" not in host.read_proc(pid, "environ")
    assert server.key in host.read_proc(server.process.pid, "environ"), "the control"


def test_the_first_key_is_shown_once():
    server = Server({})
    server.key = ""
    with server:
        shown = re.findall(r"e2b_[0-9a-f]{40}", server.log())
        assert len(shown) == 1
        client = server.client(shown[0])
        assert client.get("/v1/sandboxes").status == 200
        server.stop()
        server.start()
        assert re.findall(r"e2b_[0-9a-f]{40}", server.log()) == shown
        assert client.get("/v1/sandboxes").status == 200
        for name in host.files_below(server.state_dir):
            path = os.path.join(server.state_dir, name)
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # some come and go
                assert shown[0].encode() not in pathlib.Path(path).read_bytes(), path
        client.close()


# ---- the daemon ----


@root_only
def test_the_daemon_has_no_privilege(server):
    status = host.status(server.daemon())
    assert set(status["Uid"].split()) != {"0"} and "0" not in status["Uid"].split()
    assert "0" not in status["Gid"].split() and "0" not in status["Groups"].split()
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    # The control: who started it has all of it.
    assert host.status(server.process.pid)["Uid"].split()[0] == "0"


def test_every_thread_of_the_daemon_is_filtered(server, alice):
    works(alice)
    daemon = server.daemon()
    tasks = os.listdir(f"/proc/{daemon}/task")
    assert len(tasks) >= 3
    for task in tasks:
        text = host.read_proc(daemon, f"task/{task}/status")
        if not text:
            continue  # a thread that had nothing to do has ended
        assert re.search(r"^Seccomp:\s+2$", text, re.M) and re.search(r"^NoNewPrivs:\s+1$", text, re.M)


def test_the_daemon_starts_no_program(server, alice):
    """It has no children: whatever runs is the keeper's. execve is not in its filter's reach."""
    works(alice)
    alice.put(f"/v1/sandboxes/{alice.sandbox}/files?path=x", data=b"x")
    assert host.descendants(server.daemon()) == []


def test_nobody_may_look_into_the_daemon(server):
    """Undumpable: its memory, environment and descriptors are root's, not its user's."""
    daemon = server.daemon()
    for name in ("mem", "environ", "maps"):
        assert os.stat(f"/proc/{daemon}/{name}").st_uid == 0
    uid = int(host.status(daemon)["Uid"].split()[0])
    if os.geteuid() == 0 and uid:
        code = (f"import os; os.setgroups([]); os.setresgid({uid},{uid},{uid}); os.setresuid({uid},{uid},{uid})\n"
                f"for n in ('environ', 'mem', 'maps', 'fd', 'root'):\n"
                f"    try: os.listdir('/proc/{daemon}/'+n) if n in ('fd','root') else open('/proc/{daemon}/'+n,'rb').read(1)\n"
                f"    except OSError as e: print(n, 'refused')\n"
                f"print('ran')")
        said = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True,
                              timeout=paddock.seconds(20)).stdout.split()
        assert said[-1] == "ran" and {"environ", "mem", "fd", "root"} <= set(said)


def test_the_daemon_holds_nothing_of_the_host(server, alice):
    """Its descriptors: sockets, pipes, its own files; no directory of the host, no other's file."""
    works(alice)
    odd = []
    for number, target in host.descriptors(server.daemon()).items():
        if target.startswith(("socket:", "pipe:", "anon_inode:", "/dev/null", "/memfd:")):
            continue
        if target.startswith(server.directory) or re.search("^/sys/fs/cgroup/.*/paddock-[0-9a-f]{16}/j", target):
            continue
        # The terminals of a sandbox are a file system of its own.
        try:
            device = os.stat(f"/proc/{server.daemon()}/fd/{number}").st_dev
        except FileNotFoundError:
            continue  # closed meanwhile
        if target.startswith("/dev/pts") and device != os.stat("/dev/pts").st_dev:
            continue
        odd.append((number, target))
    assert not odd


# ---- files and sockets ----


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_modes_of_what_it_keeps(server, alice):
    """The database, the audit log and spools: the server's user alone."""
    execute(alice, "echo into-a-spool; echo more >&2")
    data = os.path.join(server.state_dir, "server")
    assert mode(data) == 0o700
    daemon = int(host.status(server.daemon())["Uid"].split()[0])
    assert os.stat(data).st_uid == daemon
    seen = set()
    for name in host.files_below(data):
        path = os.path.join(data, name)
        try:
            info = os.lstat(path)
        except FileNotFoundError:
            continue  # the database's own come and go
        if stat.S_ISREG(info.st_mode):
            assert info.st_mode & 0o077 == 0, f"{path}: {info.st_mode:o}"
            assert info.st_uid == daemon, path
            seen.add(os.path.basename(path).split(".")[0])
    assert "audit" in seen and len(seen) >= 2, seen


def test_modes_of_the_sockets(server):
    """The API's socket and the keeper's are for the server's user; in a directory where others may
    not even look."""
    daemon = int(host.status(server.daemon())["Uid"].split()[0])
    for name, others in (("paddock.sock", 0o007), ("keeper.sock", 0o077)):
        info = os.stat(os.path.join(server.run_dir, name))
        assert stat.S_ISSOCK(info.st_mode) and info.st_mode & others == 0, f"{name}: {info.st_mode:o}"
        assert info.st_uid == daemon, name
    assert mode(server.run_dir) & 0o022 == 0 and mode(server.state_dir) & 0o022 == 0


@root_only
def test_another_user_cannot_use_the_sockets(server):
    """A user of the host who is neither root nor the server's."""
    code = ("import os, socket, sys\n"
            "os.setgroups([]); os.setresgid(12345, 12345, 12345); os.setresuid(12345, 12345, 12345)\n"
            f"for name, kind in (('paddock.sock', socket.SOCK_STREAM), ('keeper.sock', socket.SOCK_SEQPACKET)):\n"
            "    s = socket.socket(socket.AF_UNIX, kind)\n"
            f"    try: s.connect(os.path.join({server.run_dir!r}, name)); print('connected')\n"
            "    except PermissionError: print('refused')\n"
            f"for d in ({server.state_dir + '/server'!r}, {server.run_dir!r}):\n"
            "    try: os.listdir(d); print('listed')\n"
            "    except PermissionError: print('refused')\n")
    said = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True,
                          timeout=paddock.seconds(20))
    assert said.stdout.split() == ["refused"] * 4, said
    # The control: root may.
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(os.path.join(server.run_dir, "paddock.sock"))


def test_a_key_is_needed_on_the_socket_too(server, alice):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(paddock.seconds(10))
        s.connect(os.path.join(server.run_dir, "paddock.sock"))
        s.sendall(b"GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert s.recv(100).startswith(b"HTTP/1.1 401 ")


# ---- errors ----


def test_errors_tell_nothing_of_the_machine(server, alice):
    """A56, A60: refusals of every kind, without paths, errno, addresses or keys."""
    base = f"/v1/sandboxes/{alice.sandbox}"
    found = [
        alice.get("/debug"), alice.get("/debug/pprof"), alice.get("/.env"), alice.get("/.git/config"),
        alice.get("/server-status"), alice.get("/v1"), alice.get("/metrics/../v1"),
        alice.post(f"{base}/exec", json={"argv": ["/nonesuch"]}),
        alice.post(f"{base}/exec", json={"argv": ["/dev/null"]}),
        alice.post(f"{base}/exec", json={"command": "true", "user": "-1"}),
        alice.post(f"{base}/exec", json={"command": "true", "cwd": "relative"}),
        alice.post("/v1/sandboxes", json={"template": "x" * 60}),
        alice.post("/v1/sandboxes", json={"limits": {"memory_bytes": 1}}),
        alice.get(f"{base}/ports/9/x"),
    ]
    for answer in found:
        assert answer.status in (400, 401, 404, 405, 502), answer
        check_no_leak(answer)


def test_a_store_that_fails_is_told_without_details():
    """A56: the database cannot be written. 5xx, the request's id, and not one word of SQL or paths;
    sandboxes that run go on. The control: it worked before."""
    with Server({"requests_per_s": 0, "pool_max": 0, "pool_min": 0}) as server:
        client = server.client()
        client.sandbox = create(client)
        data = pathlib.Path(server.state_dir, "server")
        # A table that is gone is an error of the store's own.
        import sqlite3
        name = next(p for p in data.iterdir() if p.suffix in (".db", ".sqlite", ".sqlite3"))
        with contextlib.closing(sqlite3.connect(name, timeout=paddock.seconds(10))) as db:
            tables = [r[0] for r in db.execute("select name from sqlite_master where type='table'")]
            moved = [t for t in tables if "sand" in t or "session" in t]
            assert moved, tables
            for t in moved:
                db.execute(f"alter table {t} rename to hidden_{t}")
            db.commit()
        try:
            answer = client.post("/v1/sandboxes", json={})
            assert answer.status >= 500, answer
            check_no_leak(answer)
            assert not re.search(r"sql|table|hidden|insert", answer.text, re.I), answer
            assert client.get(f"/v1/sandboxes/{client.sandbox}").status == 200
        finally:
            with contextlib.closing(sqlite3.connect(name, timeout=paddock.seconds(10))) as db:
                for t in moved:
                    db.execute(f"alter table hidden_{t} rename to {t}")
                db.commit()
        client.close()
