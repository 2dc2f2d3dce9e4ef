"""Running a server: metrics, audit, reload, drain, the next start, limits of rate, sockets."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from helpers import Box, Later, collect, metric, metrics, read_events, stream_exec, together
from paddock_testing import contract, host
from paddock_testing import run as paddock
from paddock_testing.run import seconds, wait_for
from paddock_testing.server import Server, check_error


# ---- metrics ----


def test_metrics_are_what_prometheus_reads(api):
    answer = api.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    types, seen = {}, set()
    for line in answer.text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types, "a family comes twice"
            types[name] = kind
        elif not line.startswith("#"):
            found = re.fullmatch(r"([a-z_]+)(\{(?:[a-z_]+=\"[^\"\\]*\",?)*\})? "
                                 r"(-?[0-9.]+(?:e[+-]?\d+)?|\+Inf)", line)
            assert found, line
            name = found.group(1)
            family = re.sub(r"_(bucket|sum|count)$", "", name)
            assert name in types or types.get(family) == "histogram", line
            assert (name, found.group(2)) not in seen, f"twice: {line}"
            seen.add((name, found.group(2)))
    assert {"counter", "gauge", "histogram"} == set(types.values())
    for name in ("paddock_sessions", "paddock_creates_total", "paddock_create_seconds",
                 "paddock_pool_hits_total", "paddock_execs_total", "paddock_exec_seconds",
                 "paddock_queue_length", "paddock_connections", "process_resident_memory_bytes"):
        assert name in types, name


def test_counts_move(api, make_sandbox):
    def numbers():
        return {
            "creates": metric(api, "paddock_creates_total", result="ok"),
            "latency": metric(api, "paddock_create_seconds_count"),
            "execs": metric(api, "paddock_execs_total"),
            "timeouts": metric(api, "paddock_execs_total", cause="timeout"),
            "seconds": metric(api, "paddock_exec_seconds_count"),
            "ended": metric(api, "paddock_sessions_ended_total", cause="killed"),
            "running": metric(api, "paddock_sessions", state="running", provider=contract.provider()),
            "requests": metric(api, "paddock_requests_total")}

    before = numbers()
    box = Box(api, make_sandbox())
    box.exec("true")
    box.exec("exit 1")
    box.exec("sleep 10", timeout_s=0.2)
    during = numbers()
    assert during["creates"] == before["creates"] + 1
    assert during["latency"] == before["latency"] + 1
    assert during["execs"] == before["execs"] + 3 and during["seconds"] == before["seconds"] + 3
    assert during["timeouts"] == before["timeouts"] + 1
    assert during["running"] == before["running"] + 1
    assert during["requests"] > before["requests"]
    box.start("sleep 100")
    wait_for(lambda: metric(api, "paddock_processes") >= 1, 10, "running commands are counted")
    api.delete(box.base)
    after = numbers()
    assert after["ended"] == before["ended"] + 1 and after["running"] == before["running"]


def test_histograms_add_up(api, sandbox):
    Box(api, sandbox).exec("true")
    buckets = [(float(labels["le"]), value) for name, labels, value in metrics(api)
               if name == "paddock_exec_seconds_bucket"]
    assert buckets == sorted(buckets) and buckets[-1][0] == float("inf")
    counts = [value for _, value in buckets]
    assert counts == sorted(counts)
    assert counts[-1] == metric(api, "paddock_exec_seconds_count") > 0


# ---- the audit trail ----


def test_the_trail_of_a_sandbox(api, server, make_sandbox):
    box = Box(api, make_sandbox())
    ran = box.ask("echo visible; exit 3")
    box.exec("sleep 10", timeout_s=0.2)
    box.exec("curl -H 'Authorization: Bearer abcdef123456' https://u:hunter2@h/; "
             "export API_TOKEN=s3cr3tvalue; echo e2b_0123456789abcdef0123456789abcdef01234567")
    process = box.start("sleep 100")["process_id"]
    box.signal(process, "SIGTERM")
    box.api.put(f"{box.base}/files?path=f", data=b"x")
    box.api.get(f"{box.base}/files?path=missing")
    box.api.put(f"{box.base}/env", json={"cwd": "/tmp"})
    answer = api.get(f"{box.base}/events")
    assert answer.status == 200, answer
    events = answer.json()["events"]
    actions = [e["action"] for e in events]
    assert actions == ["sandbox.create", "exec", "exec", "exec", "process.start", "process.signal",
                       "file.write", "file.read", "env.set"], actions
    assert all(e["tenant"] == "default" and e["sandbox"] == box.id and e["request"] and e["time"]
               for e in events)
    assert events[1]["request"] == ran.headers["X-Request-Id"]
    assert events[1]["command"] == "echo visible; exit 3" and events[1]["exit_code"] == 3
    assert events[1]["result"] == "ok" and events[1]["duration_ms"] > 0
    assert events[2]["stopped_by"] == "timeout"
    for secret in ("abcdef123456", "hunter2", "s3cr3tvalue", "e2b_0123456789"):
        assert secret not in answer.text, secret
    assert "[redacted]" in events[3]["command"] and "Authorization" in events[3]["command"]
    assert events[7]["result"] == "not_found"
    assert [e["action"] for e in api.get(f"{box.base}/events?limit=2").json()["events"]] == \
        actions[-2:], "newest last"
    # On disk: JSON lines that no sandbox can reach, for the server's user alone.
    log = Path(server.state_dir, "server", "audit.log")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [e for e in lines if e.get("sandbox") == box.id] == events
    assert log.stat().st_mode & 0o077 == 0
    assert "s3cr3tvalue" not in log.read_text() and "hunter2" not in log.read_text()


def test_who_was_refused_is_in_the_trail(api, sandbox):
    box = Box(api, sandbox)
    check_error(box.ask(argv=["no-such-program"]), 400)
    event = api.get(f"{box.base}/events").json()["events"][-1]
    assert event["action"] == "exec" and event["result"] == "no_command"


# ---- the process ----


def test_it_drops_its_privilege(server, as_root):
    status = host.status(server.daemon())
    assert set(status["Uid"].split()) != {"0"} and "0" not in status["Uid"].split()
    assert "0" not in status["Gid"].split()
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"


def test_a_second_one_on_the_same_state_refuses(server):
    argv = server.argv()
    argv[argv.index("--listen") + 1] = "127.0.0.1:0"
    again = subprocess.run(argv + ["--unix-socket", "none"], env=server.env, capture_output=True,
                           text=True, timeout=seconds(30), stdin=subprocess.DEVNULL)
    assert again.returncode != 0 and "another" in again.stderr.lower(), again
    assert server.client().get("/readyz").status == 200


def test_the_unix_socket(server):
    path = os.path.join(server.run_dir, "paddock.sock")
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(seconds(10))
        s.connect(path)
        s.sendall(f"GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {server.key}\r\n"
                  "Connection: close\r\n\r\n".encode())
        data = b""
        while piece := s.recv(65536):
            data += piece
    assert data.startswith(b"HTTP/1.1 200 ") and b'"sandboxes"' in data
    assert os.stat(path).st_mode & 0o007 == 0


def test_first_start_shows_a_key_once():
    server = Server()
    server.key = ""
    with server:
        log = server.log()
        key = re.search(r"e2b_[0-9a-f]{40}", log).group(0)
        assert server.client(key).get("/v1/sandboxes").status == 200
        server.stop()
        server.start()
        assert server.log().count(key) == 1
        assert server.client(key).get("/v1/sandboxes").status == 200
        for top, _, names in os.walk(os.path.join(server.state_dir, "server")):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # the database's own come and go
                    assert key.encode() not in Path(top, name).read_bytes(), name


# ---- reload ----


def test_reload():
    with Server(config="requests_per_s = 0\nmax_sandboxes = 1\npool_max = 0\nidle_timeout_s = 500\n"
                ) as server:
        client = server.client()
        box = Box(client, client.post("/v1/sandboxes").json()["id"])
        long = Later(lambda: box.exec("sleep 1; echo through"))
        check_error(client.post("/v1/sandboxes", json={"queue_timeout_s": 0}), 503, "capacity")
        Path(server.config).write_text(
            "requests_per_s = 0\nmax_sandboxes = 5\npool_max = 0\nidle_timeout_s = 600\n"
            "listen = 127.0.0.1:1\n")
        server.send_signal(signal.SIGHUP)
        wait_for(lambda: metric(client, "paddock_config_reloads_total", result="ok") == 1, 10,
                 "it has reloaded")
        made = client.post("/v1/sandboxes", json={"queue_timeout_s": 0})
        assert made.status == 201 and made.json()["idle_timeout_s"] == 600
        assert box.get()["idle_timeout_s"] == 500, "what exists stays as it was"
        assert long.get()["stdout"] == "through\n"
        # A wrong file changes nothing.
        Path(server.config).write_text("max_sandboxes = many\n")
        server.send_signal(signal.SIGHUP)
        wait_for(lambda: metric(client, "paddock_config_reloads_total", result="failed") == 1, 10,
                 "it has refused")
        assert client.post("/v1/sandboxes", json={"queue_timeout_s": 0}).status == 201
        wait_for(lambda: "max_sandboxes" in server.log(), 5, "the log says why")
        # Requests may still read what was replaced, however often; nothing is lost (the sanitizers' part sees it).
        for count in (2, 3):
            Path(server.config).write_text(f"requests_per_s = 0\nmax_sandboxes = {count}\n")
            server.send_signal(signal.SIGHUP)
            wait_for(lambda: metric(client, "paddock_config_reloads_total", result="ok") == count, 10,
                     "it has reloaded")
        Path(server.config).write_text("")


# ---- drain, and the next start ----


def test_drain_and_the_next_start():
    with Server({"drain_timeout_s": 20}) as server:
        client = server.client()
        box = Box(client, client.post("/v1/sandboxes", json={
            "user_id": "u", "thread_id": "t", "metadata": {"a": "b"}, "env": {"V": "1"}}).json()["id"])
        box.exec("cd /tmp; export W=2; echo kept > /workspace/f")
        paused = Box(client, client.post("/v1/sandboxes").json()["id"])
        client.post(f"{paused.base}/pause")
        before, paused_before = box.get(), paused.get()
        stays = box.start("i=0; while :; do echo line $i; i=$((i+1)); sleep 0.01; done")
        reader = box.start("cat; echo end", stdin=True)
        terminal = box.start(argv=["bash", "--norc"], pty=True, rows=30, cols=90)
        box.write(terminal["pid"], b"V=in-terminal\n")
        box.write(reader["pid"], b"first\n")
        retried = box.ask("echo x >> /workspace/counter; echo once", headers={"Idempotency-Key": "k"})
        until_told = "until [ -e /tmp/go-on ]; do sleep 0.05; done"
        running = Later(lambda: box.ask(f"{until_told}; echo finished"))
        stream = stream_exec(client, box.base, {"command": f"echo a; {until_told}; echo b"})
        wait_for(lambda: sum(p["running"] for p in box.processes()) == 5, 10, "all run")
        box.start("sleep 4; touch /tmp/go-on")  # while it drains nobody else can say so
        server.send_signal(signal.SIGTERM)
        # New work is refused while the old is finished.
        late = wait_for(lambda: refused(server), 10, "it drains")
        assert late in ("closed", "shutting_down")
        answer = running.get()
        assert answer.status == 200 and answer.json()["stdout"] == "finished\n"
        assert collect(read_events(stream))[0] == b"a\nb\n"
        stream.close()
        assert server.wait() == 0
        assert server.keepers(), "the keeper went with it"

        server.start()
        client = server.client()
        box.api = paused.api = client
        after = box.get()
        for name in set(before) - {"last_used_at", "expires_at", "processes"}:
            assert after[name] == before[name], name
        assert client.get("/v1/sessions/u/t").json()["id"] == box.id
        assert box.env() == {"env": {"V": "1", "W": "2"}, "cwd": "/tmp"}
        assert box.out("cat /workspace/f; echo $W; pwd") == "kept\n2\n/tmp\n"
        # What ran, runs; every byte of it is there, also of the time without a server.
        body = box.wait_output(stays["process_id"], b"line 200\n")
        lines = body.decode().split("\n")[:-1]
        assert lines == [f"line {n}" for n in range(len(lines))]
        assert box.process(stays["process_id"])["running"]
        assert box.write(reader["process_id"], b"second\n", "?close=true").status == 204
        assert box.wait(reader["process_id"])["exit_code"] == 0
        assert box.output(reader["process_id"]).body == b"first\nsecond\nend\n"
        box.write(terminal["process_id"], b"echo [$V] $(stty size)\n")
        box.wait_output(terminal["process_id"], b"[in-terminal] 30 90")
        # A retry gets what was stored.
        again = box.ask("echo x >> /workspace/counter; echo once", headers={"Idempotency-Key": "k"})
        assert again.headers["Idempotent-Replayed"] == "true"
        assert again.json()["stdout"] == "once\n"
        assert again.json()["process_id"] == retried.json()["process_id"]
        assert box.out("wc -l < /workspace/counter") == "1\n"
        assert paused.get()["state"] == "paused"
        assert paused.get()["created_at"] == paused_before["created_at"]
        assert client.post(f"{paused.base}/resume").json()["state"] == "running"
        assert paused.out("echo x") == "x\n"
        assert box.signal(stays["process_id"], "SIGKILL").status == 204


def refused(server):
    """How a server that drains answers to new work, or None while it does not drain yet."""
    try:
        answer = server.client().post("/v1/sandboxes", json={"queue_timeout_s": 0})
    except OSError:
        return "closed"
    if answer.status == 503:
        assert "Retry-After" in answer.headers
        return answer.json()["error"]["code"]
    return None


def test_a_drain_has_an_end():
    """Whoever does not finish in time is cut off, and his command goes on without him if it may."""
    with Server({"drain_timeout_s": 1}) as server:
        client = server.client()
        box = Box(client, client.post("/v1/sandboxes").json()["id"])
        box.start("sleep 1000")
        stuck = Later(lambda: box.ask("sleep 1000", timeout_s=500))
        wait_for(lambda: sum(p["running"] for p in box.processes()) == 2, 10, "it runs")
        since = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - since < seconds(15)
        with pytest.raises(Exception):
            stuck.get()
        server.start()
        assert sum(p["running"] for p in Box(server.client(), box.id).processes()) >= 1


# ---- rates ----


def test_rates_are_limited_per_tenant():
    with Server({"requests_per_s": 1, "burst": 10, "pool_max": 0}) as server:
        client, other = server.client(), server.client(server.make_key("other"))
        answers = together(4, lambda _: [client.get("/v1/sandboxes") for _ in range(10)])
        answers = [a for some in answers for a in some]
        limited = [a for a in answers if a.status == 429]
        assert limited and 10 <= len([a for a in answers if a.status == 200]) < 40
        error = check_error(limited[0], 429, "rate_limited")
        assert error["details"]["retry_after_s"] == int(limited[0].headers["Retry-After"]) >= 1
        assert other.get("/v1/sandboxes").status == 200, "another tenant has its own"
        assert client.get("/healthz").status == 200
        assert metric(client, "paddock_limit_violations_total", limit="rate") >= len(limited)
        wait_for(lambda: client.get("/v1/sandboxes").status == 200, 20, "it recovers")


def test_creations_have_a_rate_of_their_own():
    with Server({"creates_per_s": 1, "burst": 2, "pool_max": 0}) as server:
        client = server.client()
        # At once: one by one they may take longer than it takes to be allowed the next.
        answers = together(12, lambda _: client.post("/v1/sandboxes"))
        assert {a.status for a in answers} == {201, 429}
        check_error(next(a for a in answers if a.status == 429), 429, "rate_limited")
        made = next(a for a in answers if a.status == 201).json()
        assert Box(client, made["id"]).out("echo x") == "x\n"
        statuses = together(12, lambda n: client.put(f"/v1/sessions/u/{n}").status)
        assert 429 in statuses, "a session is a creation, too"
        assert client.get("/v1/sandboxes").status == 200


# ---- trouble ----


def test_the_keeper_dies():
    with Server() as server:
        client = server.client()
        box = Box(client, client.put("/v1/sessions/u/t").json()["id"])
        pids = server.keepers()  # once: builders come and go
        keeper = [p for p in pids if host.parent(p) not in (0, *pids)]
        if contract.provider() != "jail":  # there are two
            socket_path = os.path.join(server.run_dir, f"keeper-{contract.provider()}.sock")
            keeper = [p for p in keeper if socket_path in host.command_line(p)]
        assert len(keeper) == 1
        os.kill(keeper[0], signal.SIGKILL)
        gone = wait_for(lambda: (s := box.get())["state"] == "gone" and s, 20, "it is told")
        assert gone["end_cause"] == "lost"
        error = check_error(box.ask("true"), 410, "session_lost")
        assert gone["ended_at"][:19] in error["message"]
        check_error(client.put("/v1/sessions/u/t"), 410, "session_lost")
        new = wait_for(lambda: (a := client.put("/v1/sessions/u/t", json={"auto_retry": True}))
                       .status == 201 and a, 20, "there is a new keeper")
        server.note_instances()
        assert new.json()["recreated"] is True and new.json()["replaces"] == box.id
        assert Box(client, new.json()["id"]).out("echo x") == "x\n"


@pytest.mark.parametrize("how", ["delete", "signal"])
def test_a_sandbox_that_is_slow_to_end_a_command(as_root, make_sandbox, api, how):
    """Its init stands still for two seconds, as on a machine that is busy: who kills waits, and is told of the end."""
    box = Box(api, make_sandbox())
    word = f"4{random.randrange(10**8)}"
    process = box.start(argv=["sleep", word])["process_id"]
    pid, = wait_for(lambda: host.with_word(word), 10, "it runs")
    init = host.jail_init(pid)
    os.kill(init, signal.SIGSTOP)
    again = threading.Timer(2, os.kill, (init, signal.SIGCONT))
    again.start()
    try:
        killed = (api.delete(f"{box.base}/processes/{process}") if how == "delete"
                  else box.signal(process, "SIGKILL"))
        assert killed.status == 204, killed
        assert box.process(process)["stopped_by"] == "killed"
    finally:
        again.join()


def test_many_connections_that_rest(server):
    held = []
    try:
        for _ in range(paddock.scaled_down(300, 50)):
            s = socket.create_connection((server.host, server.port), timeout=seconds(20))
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            held.append(s)
        for s in held:
            assert s.recv(4096).startswith(b"HTTP/1.1 200 ")
        client = server.client()
        assert metric(client, "paddock_connections") >= len(held)
        assert client.get("/readyz").status == 200
        # And once more on each.
        for s in held[::10]:
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert s.recv(4096).startswith(b"HTTP/1.1 200 ")
    finally:
        for s in held:
            s.close()
    wait_for(lambda: metric(server.client(), "paddock_connections") < 50, 20, "they are let go")
