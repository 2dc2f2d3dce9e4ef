"""The way out of a server's sandboxes: rules, their change, and what is left of them when the daemon, the gate or both
are killed. Each refusal has the rules under which the same line works.
"""

import json
import os
import signal

import pytest
from paddock_testing.internet import ServerInside, UnixConnection
from paddock_testing.run import rounds, seconds, wait_for
from paddock_testing.server import check_error

GET = f"curl -sSf -m {int(seconds(60))} "
A = {"allow": ["a.example"]}
B = {"allow": ["b.example"]}
SLOW = ("/usr/bin/python3 -c 'import socket\n"
        's = socket.create_connection(("a.example", 80), 60)\n'
        's.sendall(b"GET /slow HTTP/1.0\\r\\nHost: a.example\\r\\n\\r\\n")\n'
        's.recv(999)\nprint("begun", flush=True)\nn = 0\n'
        "try:\n while True:\n  d = s.recv(999)\n  if not d: break\n  n += len(d)\n"
        '  if n > 4000 and n < 9000: print("more", flush=True)\n'
        ' print("clean end", flush=True)\n'
        "except ConnectionResetError: print(\"reset\", flush=True)'")


@pytest.fixture(scope="module")
def server(internet):
    with ServerInside(internet) as s:
        yield s


@pytest.fixture
def client(server):
    return server.client()


def create(client, network=None, **more):
    body = {**more} if network is None else {"network": network, **more}
    r = client.post("/v1/sandboxes", json=body)
    assert r.status == 201, r
    return r.json()["id"]


def run(client, sandbox, line):
    r = client.post(f"/v1/sandboxes/{sandbox}/exec", json={"argv": ["bash", "-c", line]})
    assert r.status == 200, r
    return r.json()


def works(client, sandbox, line):
    return run(client, sandbox, line)["exit_code"] == 0


def background(client, sandbox, line):
    r = client.post(f"/v1/sandboxes/{sandbox}/processes", json={"argv": ["bash", "-c", line]})
    assert r.status == 201, r
    return r.json()["process_id"]


def output(client, sandbox, process):
    r = client.get(f"/v1/sandboxes/{sandbox}/processes/{process}/output?stream=stdout")
    assert r.status == 200, r
    return r.text


def begin_transfer(client, sandbox):
    p = background(client, sandbox, SLOW)
    wait_for(lambda: "begun" in output(client, sandbox, p), 60, "the transfer has begun")
    return p


def test_a_sandbox_reaches_what_its_rules_name_and_nothing_else(client):
    a, b, none, all_ = create(client, A), create(client, B), create(client), create(
        client, {"mode": "open", "deny": ["203.0.113.8"]})
    line_a, line_b = GET + "http://a.example/", GET + "http://b.example/"
    assert [works(client, s, line_a) for s in (a, b, none, all_)] == [True, False, False, True]
    assert [works(client, s, line_b) for s in (a, b, none, all_)] == [False, True, False, False]
    address = GET + "http://203.0.113.7/"
    assert [works(client, s, address) for s in (a, b, none, all_)] == [False, False, False, True]
    # The machine, its metadata and its private addresses are nobody's.
    for target in ("127.0.0.1:1", "192.0.2.129", "169.254.169.254", "10.9.9.9"):
        assert not works(client, all_, GET + f"http://{target}/")
    for s in (a, b, none, all_):
        client.delete(f"/v1/sandboxes/{s}")


def test_the_rules_are_told(client):
    s = create(client, {"allow": ["a.example:443", "*.example.com", "203.0.113.0/24:5432"],
                        "deny": [], "limits": {"connections": 7, "bytes": 1000000}})
    wanted = {"mode": "list", "allow": ["a.example:443", "*.example.com", "203.0.113.0/24:5432"],
              "deny": [], "secrets": [], "headers": [],
              "proxy": None, "limits": {"connections": 7, "rate": None, "bytes": 1000000}}
    assert client.get(f"/v1/sandboxes/{s}/network").json() == wanted
    assert client.get(f"/v1/sandboxes/{s}").json()["network"] == wanted
    plain = create(client)
    assert client.get(f"/v1/sandboxes/{plain}/network").json()["mode"] == "off"
    client.delete(f"/v1/sandboxes/{s}")
    client.delete(f"/v1/sandboxes/{plain}")


def test_bad_rules_are_refused_by_name(client):
    for network, field in (({"allow": ["a..b"]}, "network.allow"), ({"deny": ["a.example"]}, "network.deny"),
                           ({"mode": "all"}, "network.mode"), ({"allow": ["a.example\nlayer open"]}, "network.allow"),
                           ({"allow": ["a.example", "private 10.0.0.0/8"]}, "network.allow"),
                           ({"limits": {"connections": 0}}, "network.limits.connections"),
                           ({"hosts": []}, "network.hosts"), ({"allow": ["1.2.3.4/33"]}, "network.allow")):
        check_error(client.post("/v1/sandboxes", json={"network": network}), 400, "invalid", field)


def test_other_rules_cut_what_they_do_not_allow_and_leave_the_rest(client):
    s = create(client, {"allow": ["a.example", "b.example"]})
    p = begin_transfer(client, s)
    assert client.put(f"/v1/sandboxes/{s}/network", json=A).json()["allow"] == ["a.example"]
    wait_for(lambda: "more" in output(client, s, p), 60, "an allowed transfer goes on")
    assert not works(client, s, GET + "http://b.example/")
    assert client.put(f"/v1/sandboxes/{s}/network", json=B).status == 200
    wait_for(lambda: "reset" in output(client, s, p), 60, "the transfer is cut")
    assert works(client, s, GET + "http://b.example/") and not works(client, s, GET + "http://a.example/")
    assert client.put(f"/v1/sandboxes/{s}/network", json={"mode": "off"}).json()["mode"] == "off"
    assert not works(client, s, GET + "http://b.example/")
    client.delete(f"/v1/sandboxes/{s}")


def test_another_tenant_sees_and_changes_nothing(server, client):
    other = server.client(server.make_key("other"))
    s = create(client, A)
    check_error(other.get(f"/v1/sandboxes/{s}/network"), 404)
    check_error(other.put(f"/v1/sandboxes/{s}/network", json={"mode": "open"}), 404)
    check_error(other.get(f"/v1/sandboxes/{s}/events"), 404)
    assert not works(client, s, GET + "http://b.example/") and works(client, s, GET + "http://a.example/")
    assert client.get(f"/v1/sandboxes/{s}/network").json()["mode"] == "list"
    client.delete(f"/v1/sandboxes/{s}")


def test_every_connection_is_in_the_audit_log(client):
    s = create(client, A)
    assert works(client, s, GET + "http://a.example/big5000000 | wc -c")
    assert not works(client, s, GET + "http://203.0.113.8/")

    def lines():
        events = client.get(f"/v1/sandboxes/{s}/events").json()["events"]
        found = [e for e in events if e["action"] == "egress"]
        return found if len(found) >= 2 else None

    good, bad = wait_for(lines, 30, "both connections are told")[:2]
    assert (good["name"], good["port"], good["rule"], good["result"]) == ("a.example", 80, "a.example", "ok")
    assert good["down"] > 5000000 > 1000 > good["up"] > 0 and good["address"] == "203.0.113.7"
    assert bad["result"] == "refused" and bad["address"] == "203.0.113.8" and bad["why"]
    assert 'paddock_egress_total{result="refused"}' in client.get("/metrics").text
    client.delete(f"/v1/sandboxes/{s}")


def test_the_log_of_connections(server, client):
    s = create(client, A)
    assert works(client, s, GET + "http://a.example/") and not works(client, s, GET + "http://203.0.113.8/")

    def log(query=""):
        r = client.get(f"/v1/sandboxes/{s}/network/log{query}")
        assert r.status == 200, r
        return r.json()
    whole = wait_for(lambda: len(log()["entries"]) >= 2 and log(), 30, "both connections are told")
    assert [n["result"] for n in whole["entries"]] == ["ok", "refused"]
    first, second = (n["n"] for n in whole["entries"])
    assert 0 < first < second == whole["next"]
    assert [n["address"] for n in log("?denied=true")["entries"]] == ["203.0.113.8"]
    assert [n["n"] for n in log(f"?after={first}")["entries"]] == [second]
    assert log(f"?after={second}") == {"entries": [], "next": second}
    assert [n["n"] for n in log("?limit=1")["entries"]] == [first] and log("?limit=1")["next"] == first
    check_error(client.get(f"/v1/sandboxes/{s}/network/log?after=x"), 400, "invalid")
    check_error(server.client(server.make_key("other")).get(f"/v1/sandboxes/{s}/network/log"), 404)
    assert 'paddock_egress_refused_total{why="rule"}' in client.get("/metrics").text

    # The same for people.
    text = server.run("network", "log", "--denied", s).stdout
    assert "refused" in text and "203.0.113.8:80" in text and "no rule allows it" in text and "a.example" not in text
    assert "ok " in server.run("network", "log", s).stdout
    assert server.run("network", "log", "--after", str(second), s).stdout == ""
    assert server.run("network", "show", s).stdout == "mode list\nallow a.example\n"
    assert server.run("network", "set", "--allow", "b.example", "--allow", "203.0.113.8", s).stdout == (
        "mode list\nallow b.example\nallow 203.0.113.8\n")
    assert works(client, s, GET + "http://203.0.113.8/") and not works(client, s, GET + "http://a.example/")
    assert json.loads(server.run("network", "set", "--egress", "off", "--json", s).stdout)["mode"] == "off"
    # The number goes on where it was after a kill.
    server.kill()
    server.start()
    client = server.client()
    assert not works(client, s, GET + "http://a.example/")
    wait_for(lambda: client.get(f"/v1/sandboxes/{s}/network/log?after={second}").json()["next"] > second, 30,
             "what came later has a higher number")
    client.delete(f"/v1/sandboxes/{s}")


def test_the_gate_is_nobody_and_ends_with_its_keeper(server):
    (gate,) = wait_for(server.gates, 30, "there is a gate")
    with open(f"/proc/{gate}/status") as f:
        status = dict(line.split(":", 1) for line in f)
    uids = set(status["Uid"].split())
    assert len(uids) == 1 and int(uids.pop()) > 1 << 29 and status["Groups"].split() == []
    assert all(int(status[c], 16) == 0 for c in ("CapEff", "CapPrm", "CapInh", "CapAmb"))
    assert status["NoNewPrivs"].strip() == "1" and status["Seccomp"].strip() == "2"
    # It has no connection to the keeper, which would take it for whoever made that.
    kinds = {os.readlink(f"/proc/{gate}/fd/{n}").split(":")[0] for n in os.listdir(f"/proc/{gate}/fd")}
    assert kinds <= {"socket", "anon_inode", "pipe", "/dev/null", f"{server.run_dir}/gate.sock.lock"}, kinds
    with open(f"/proc/{server.daemon()}/status") as f:  # the control: the server has an ordinary uid
        assert int(dict(line.split(":", 1) for line in f)["Uid"].split()[0]) < 1 << 29


def kill_gate(server):
    (gate,) = wait_for(server.gates, 30, "there is a gate")
    os.kill(gate, signal.SIGKILL)
    wait_for(lambda: (now := server.gates()) and now != [gate], 60, "there is another gate")


def test_a_killed_gate_resets_transfers_and_the_next_one_has_the_rules(server, client):
    s = create(client, A)
    for _ in range(rounds(2, 100)):
        p = begin_transfer(client, s)
        kill_gate(server)
        wait_for(lambda p=p: "reset" in output(client, s, p), 60, "the transfer is reset")
        assert "clean" not in output(client, s, p)
        assert works(client, s, GET + "http://a.example/") and not works(client, s, GET + "http://b.example/")
        assert not works(client, s, GET + "http://203.0.113.8/")
    client.delete(f"/v1/sandboxes/{s}")


def test_without_a_gate_nothing_passes_and_what_waits_is_served_by_the_next(server, client):
    s = create(client, A)
    (gate,) = wait_for(server.gates, 30, "there is a gate")
    os.kill(gate, signal.SIGSTOP)
    try:
        waiting = background(client, s, GET + "http://a.example/")
        refused = background(client, s, GET + "http://203.0.113.8/")
        late = create(client, A)  # is not waited for
        p = background(client, late, GET + "http://a.example/")
    finally:
        os.kill(gate, signal.SIGKILL)
    wait_for(lambda: "reached" in output(client, late, p), 60, "the one that came meanwhile is served")
    for process, sees in ((waiting, True), (refused, False)):
        r = wait_for(lambda p=process: (i := client.get(f"/v1/sandboxes/{s}/processes/{p}").json())["running"] is False
                     and i, 90, "it has ended")
        assert sees or r["exit_code"] != 0
    assert "reached" not in output(client, s, refused)
    for sandbox in (s, late):
        client.delete(f"/v1/sandboxes/{sandbox}")


def test_rules_and_transfers_survive_kill_9_of_the_server(internet):
    with ServerInside(internet) as server:
        client = server.client()
        s = create(client, {"allow": ["a.example", "b.example"]})
        gone = create(client, A)
        p = begin_transfer(client, s)
        assert client.put(f"/v1/sandboxes/{s}/network", json=A).status == 200
        (gate,) = server.gates()
        server.kill()
        server.start()
        client = server.client()
        assert client.get(f"/v1/sandboxes/{s}/network").json()["allow"] == ["a.example"]
        wait_for(lambda: "more" in output(client, s, p), 60, "the transfer goes on")
        assert server.gates() == [gate] and "reset" not in output(client, s, p)
        assert works(client, s, GET + "http://a.example/") and not works(client, s, GET + "http://b.example/")

        # Both at once: the transfer is reset, never complete, and the rules are there again.
        server.kill()
        os.kill(gate, signal.SIGKILL)
        server.start()
        client = server.client()
        wait_for(lambda: "reset" in output(client, s, p), 60, "the transfer is reset")
        for sandbox in (s, gone):
            assert works(client, sandbox, GET + "http://a.example/")
            assert not works(client, sandbox, GET + "http://b.example/")


def test_the_operators_ceiling(internet):
    settings = {"egress": "list", "egress_allow": "a.example,*.a.example"}
    with ServerInside(internet, settings, "tenant_egress = shut=off\n") as server:
        client = server.client()
        s = create(client, {"mode": "open"})
        assert works(client, s, GET + "http://a.example/") and not works(client, s, GET + "http://b.example/")
        assert not works(client, s, GET + "http://203.0.113.7/")
        shut = server.client(server.make_key("shut"))
        check_error(shut.post("/v1/sandboxes", json={"network": A}), 403, "denied", "network")
        assert shut.post("/v1/sandboxes", json={"network": {"mode": "off"}}).status == 201
        # A reload holds at once, also for those that run.
        with open(server.config, "w") as f:
            f.write("tenant_egress = default=off\n")
        server.send_signal(signal.SIGHUP)
        wait_for(lambda: not works(client, s, GET + "http://a.example/"), 30, "the ceiling holds")


def test_a_server_without_egress_has_no_gate_and_gives_no_way_out(internet):
    with ServerInside(internet, {"egress": "off"}) as server:
        client = server.client()
        check_error(client.post("/v1/sandboxes", json={"network": A}), 403, "denied", "network")
        s = create(client)
        assert not works(client, s, GET + "http://a.example/") and server.gates() == []


def test_a_command_is_told_what_it_was_refused(client):
    s, plain = create(client, A), create(client)
    told = run(client, s, GET + "http://b.example/; " + GET + "http://203.0.113.8/; " + GET + "http://203.0.113.8/")
    found = {(d["host"], d["port"]): d for d in told["network"]["denied"]}
    assert found["203.0.113.8", 80]["times"] == 2 and found["203.0.113.8", 80]["why"]
    assert any(host == "b.example" for host, _ in found)
    # What was refused before is not told again, and what has no way out is told nothing.
    assert run(client, s, GET + "http://a.example/")["network"] == {"denied": []}
    assert "network" not in run(client, plain, "true")
    client.delete(f"/v1/sandboxes/{s}")
    client.delete(f"/v1/sandboxes/{plain}")


def test_the_command_line_makes_one(server, client):
    s = server.run("create", "--allow", "a.example", "--allow", "203.0.113.8:80", "--json")
    told = json.loads(s.stdout)
    assert told["network"]["mode"] == "list" and told["network"]["allow"] == ["a.example", "203.0.113.8:80"]
    assert works(client, told["id"], GET + "http://203.0.113.8/")
    open_ = json.loads(server.run("create", "--egress", "open", "--deny", "203.0.113.8", "--json").stdout)
    assert open_["network"]["mode"] == "open" and open_["network"]["deny"] == ["203.0.113.8"]
    for made in (told, open_):
        client.delete(f"/v1/sandboxes/{made['id']}")


# ---- as E2B's clients ask for it ----


def e2b(server, method, path, body=None):
    return server.e2b(method, path, body)


def e2b_make(server, **body):
    status, made = e2b(server, "POST", "/v2/sandboxes", {"templateID": "base", **body})
    assert status == 201, made
    return made["sandboxID"]


A_IP, B_IP = GET + "http://203.0.113.7/", GET + "http://203.0.113.8/"
ALL = "0.0.0.0/0"


@pytest.mark.parametrize("body,a,b", [
    ({}, True, True),
    ({"allow_internet_access": True}, True, True),
    ({"allow_internet_access": False}, False, False),
    ({"network": {"denyOut": ["203.0.113.8"]}}, True, False),
    ({"network": {"denyOut": [ALL]}}, False, False),
    ({"network": {"denyOut": [ALL], "allowOut": ["203.0.113.7"]}}, True, False),
    ({"network": {"denyOut": ["203.0.113.8"], "allowOut": ["203.0.113.8"]}}, True, True),
])
def test_e2bs_lists(server, client, body, a, b):
    s = e2b_make(server, **body)
    assert [works(client, s, A_IP), works(client, s, B_IP)] == [a, b]
    assert not works(client, s, GET + "http://10.9.9.9/")
    client.delete(f"/v1/sandboxes/{s}")


def test_e2bs_change_of_the_network_and_its_forks(server, client):
    s = e2b_make(server)
    assert works(client, s, B_IP)
    assert e2b(server, "PUT", f"/sandboxes/{s}/network", {"denyOut": ["203.0.113.8"]})[0] == 204
    assert works(client, s, A_IP) and not works(client, s, B_IP)
    info = e2b(server, "GET", f"/sandboxes/{s}")[1]
    assert info["network"]["denyOut"] == ["203.0.113.8"] and info["allowInternetAccess"] is True
    status, forks = e2b(server, "POST", f"/sandboxes/{s}/fork", {})
    assert status == 201, forks
    fork = forks[0]["sandbox"]["sandboxID"]
    assert works(client, fork, A_IP) and not works(client, fork, B_IP)
    # Asleep and awake again: another box, the same rules.
    assert e2b(server, "POST", f"/sandboxes/{s}/pause", {"memory": False})[0] == 204
    assert e2b(server, "POST", f"/sandboxes/{s}/resume", {"timeout": 60})[0] in (200, 201)
    assert works(client, s, A_IP) and not works(client, s, B_IP)
    assert e2b(server, "PUT", f"/sandboxes/{s}/network", {})[0] == 204
    assert works(client, s, B_IP) and not works(client, fork, B_IP)
    for sandbox in (s, fork):
        client.delete(f"/v1/sandboxes/{sandbox}")


def header(name, value):
    return {"transform": {"headers": {name: value}}}


def test_what_e2bs_lists_cannot_say_is_refused(server):
    for network, says in (({"allowOut": ["a.example"]}, "ALL_TRAFFIC"), ({"denyOut": ["a.example"]}, "denyOut"),
                          ({"allowOut": ["a..b"], "denyOut": [ALL]}, "allowOut"),
                          ({"egressProxy": {"address": "a"}}, "egressProxy"),
                          ({"egressProxy": {"address": "10.9.9.9:1080"}}, "never dialled"),
                          ({"egressProxy": {"address": "a:1", "password": "x"}}, "egressProxy"),
                          ({"rules": {"a": [{}, {}]}}, "rules"), ({"rules": {"*.a": [header("X", "y")]}}, "rules"),
                          ({"rules": {f"h{n}": [] for n in range(11)}}, "rules"),
                          ({"rules": {"a": [{"header": {}}]}}, "rules"), ({"rules": {"a": [header("Host", "b")]}}, "Host"),
                          ({"rules": {"a": [header("X", "${e2b.identity.tokens.aws}")]}}, "identities")):
        status, told = e2b(server, "POST", "/v2/sandboxes", {"templateID": "base", "network": network})
        assert status == 400 and says in told["message"], told
