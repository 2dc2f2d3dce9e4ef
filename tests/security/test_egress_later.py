"""A way out for sandboxes that were made without one: by rules that come while they run, or sleep. Until then there is no
network in them, as in every other; and what they had before is as it was.
"""

import contextlib
import http.client
import os
import threading
import time

import pytest
from paddock_testing.internet import ServerInside
from paddock_testing.run import rounds, seconds, wait_for
from paddock_testing.server import check_error

from .way_out import beside, check, open_files

GET = f"curl -sSf -m {int(seconds(60))} "
A = {"allow": ["a.example"]}
OFF = {"mode": "off"}
# A server of its own and a client that are connected, and say something when they are told to.
TALK = ("/usr/bin/python3 -c 'import os, socket, time\n"
        's = socket.create_server(("127.0.0.1", 4000))\n'
        'c = socket.create_connection(("127.0.0.1", 4000))\na = s.accept()[0]\n'
        'print("begun", flush=True)\n'
        'while not os.path.exists("/tmp/go"): time.sleep(0.05)\n'
        'c.sendall(b"x"); print("heard", len(a.recv(9)), flush=True)\n'
        'd = socket.create_connection(("127.0.0.1", 4000)); s.accept(); print("again", flush=True)\'')


@pytest.fixture(scope="module")
def server(internet):
    os.chmod(internet.dir, 0o711)  # the server's user reads the authority, too
    with ServerInside(internet, {"egress_ca": f"{internet.dir}/cert"}) as s:
        assert s.client().put("/v1/secrets/prod", json={"value": "sesame-4711"}).status == 200
        yield s


@pytest.fixture
def client(server):
    return server.client()


def create(client, **more):
    r = client.post("/v1/sandboxes", json=more)
    assert r.status == 201, r
    return r.json()["id"]


def run(client, sandbox, line):
    r = client.post(f"/v1/sandboxes/{sandbox}/exec", json={"argv": ["bash", "-c", line]})
    assert r.status == 200, r
    return r.json()


def works(client, sandbox, line):
    return run(client, sandbox, line)["exit_code"] == 0


def put(client, sandbox, rules):
    r = client.put(f"/v1/sandboxes/{sandbox}/network", json=rules)
    assert r.status == 200, r


NOWHERE = "exec 3<>/dev/tcp/203.0.113.7/80"


def test_one_that_runs_gets_it_by_its_first_rules(client):
    s = create(client)
    # As without any: not refused by somebody, but nowhere to go, and nobody to ask.
    assert "unreachable" in run(client, s, NOWHERE)["stderr"]
    assert not works(client, s, GET + "http://a.example/")
    p = client.post(f"/v1/sandboxes/{s}/processes", json={"argv": ["bash", "-c", TALK]}).json()["process_id"]

    def said():
        return client.get(f"/v1/sandboxes/{s}/processes/{p}/output?stream=stdout").text

    wait_for(lambda: "begun" in said(), 60, "its own server has a client")

    put(client, s, A)
    assert client.get(f"/v1/sandboxes/{s}/network").json()["allow"] == ["a.example"]
    assert works(client, s, GET + "http://a.example/") and not works(client, s, GET + "http://b.example/")
    told = run(client, s, GET + "http://203.0.113.8/")
    assert told["exit_code"] != 0 and told["network"]["denied"][0]["host"] == "203.0.113.8"
    # By TLS: it knows the machine's authorities, and the operator's.
    assert works(client, s, GET + "https://a.example/")
    # What went on inside goes on.
    assert works(client, s, "touch /tmp/go")
    wait_for(lambda: said().split() == ["begun", "heard", "1", "again"], 60, "its own connections are as before")

    put(client, s, OFF)
    assert not works(client, s, GET + "http://a.example/")
    put(client, s, A)
    assert works(client, s, GET + "http://a.example/")
    client.delete(f"/v1/sandboxes/{s}")


def test_rules_that_allow_nothing_change_nothing(client):
    s = create(client)
    put(client, s, OFF)
    assert client.get(f"/v1/sandboxes/{s}/network").json()["mode"] == "off"
    assert "unreachable" in run(client, s, NOWHERE)["stderr"]
    client.delete(f"/v1/sandboxes/{s}")


def test_secrets_come_with_them(client):
    s = create(client)
    put(client, s, {"allow": ["b.example"], "secrets": [{"env": "KEY", "secret": "prod", "hosts": ["b.example"]}]})
    told = run(client, s, 'echo "$KEY"; ' + GET + '-H "X-Key: $KEY" https://b.example/echo')
    assert told["stdout"].startswith("pdk-secret-") and "X-Key: ***" in told["stdout"] and "sesame" not in told["stdout"], told
    client.delete(f"/v1/sandboxes/{s}")


def test_one_that_sleeps_has_it_when_it_wakes(server, client):
    s = create(client)
    assert server.e2b("POST", f"/sandboxes/{s}/pause", {"memory": False})[0] == 204
    put(client, s, A)
    assert server.e2b("POST", f"/sandboxes/{s}/resume", {"timeout": 600})[0] == 201
    check(client, s)
    assert works(client, s, GET + "https://a.example/")

    # And secrets, which came and went while it slept, when the server is killed meanwhile, too.
    rules = {"allow": ["b.example"], "secrets": [{"env": "KEY", "secret": "prod", "hosts": ["b.example"]}]}
    for kill in (False, True):
        assert server.e2b("POST", f"/sandboxes/{s}/pause", {"memory": kill})[0] == 204
        put(client, s, rules)
        if kill:
            server.kill()
            server.start()
        assert server.e2b("POST", f"/sandboxes/{s}/resume", {"timeout": 600})[0] == 201
        client = server.client()
        told = run(client, s, GET + '-H "X-Key: $KEY" https://b.example/echo')
        assert "X-Key: ***" in told["stdout"], told
        assert server.e2b("POST", f"/sandboxes/{s}/pause", {"memory": kill})[0] == 204
        put(client, s, A)
        assert server.e2b("POST", f"/sandboxes/{s}/resume", {"timeout": 600})[0] == 201
        assert run(client, s, 'echo "key=$KEY"')["stdout"] == "key=\n"
    client.delete(f"/v1/sandboxes/{s}")


def test_one_that_stands_still_is_refused(server, client):
    s = create(client)
    assert client.post(f"/v1/sandboxes/{s}/pause").status == 200
    check_error(client.put(f"/v1/sandboxes/{s}/network", json=A), 409, "paused")
    assert client.post(f"/v1/sandboxes/{s}/resume").status == 200
    assert "unreachable" in run(client, s, NOWHERE)["stderr"]
    put(client, s, A)
    check(client, s)
    client.delete(f"/v1/sandboxes/{s}")


def test_it_survives_kill_9_of_server_and_gate(internet):
    with ServerInside(internet) as server:
        s = create(server.client())
        put(server.client(), s, A)
        for _ in range(2):
            server.kill()
            server.start()
            check(server.client(), s)
            assert works(server.client(), s, GET + "http://a.example/")
            (gate,) = wait_for(server.gates, 30, "there is a gate")
            os.kill(gate, 9)
            assert works(server.client(), s, GET + "http://a.example/")


def test_its_fork_has_it(server, client):
    s = create(client)
    put(client, s, A)
    status, forks = server.e2b("POST", f"/sandboxes/{s}/fork", {})
    assert status == 201, forks
    fork = forks[0]["sandbox"]["sandboxID"]
    check(client, fork)
    assert works(client, fork, GET + "http://a.example/")
    for each in (s, fork):
        client.delete(f"/v1/sandboxes/{each}")


def test_nobody_gets_more_than_the_operator_gives(internet):
    with ServerInside(internet, {"egress": "list", "egress_allow": "a.example"}, "tenant_egress = shut=off\n") as server:
        client = server.client()
        s = create(client)
        put(client, s, {"mode": "open"})
        assert works(client, s, GET + "http://a.example/") and not works(client, s, GET + "http://b.example/")
        shut = server.client(server.make_key("shut"))
        t = create(shut)
        check_error(shut.put(f"/v1/sandboxes/{t}/network", json=A), 403, "denied", "network")
        check_error(shut.put(f"/v1/sandboxes/{s}/network", json=A), 404, "not_found")
        assert "unreachable" in run(shut, t, NOWHERE)["stderr"]


# ---- first rules against everything else ----

def test_first_rules_against_the_end(server, client):
    """Nothing hangs, and nothing of the sandbox stays at the gate."""
    (gate,) = wait_for(server.gates, 30, "there is a gate")
    before = open_files(gate)
    for _ in range(rounds(8, 3000)):
        s = create(client)
        changed, ended = beside(lambda s=s: server.client().put(f"/v1/sandboxes/{s}/network", json=A),
                                lambda s=s: server.client().delete(f"/v1/sandboxes/{s}"))
        assert changed.status in (200, 404, 409, 410, 503) and ended.status in (204, 404), (changed, ended)
    wait_for(lambda: open_files(gate) <= before, 60, "the gate has closed the sockets of sandboxes that ended")


def test_first_rules_against_sleep_waking_and_forks(server, client):
    for i in range(rounds(2, 500)):
        s = create(client)
        slept, first = beside(lambda s=s: server.e2b("POST", f"/sandboxes/{s}/pause", {"memory": False}),
                              lambda s=s: server.client().put(f"/v1/sandboxes/{s}/network", json=A))
        assert slept[0] in (204, 409) and first.status in (200, 409), (slept, first)
        woken, _ = beside(lambda s=s: server.e2b("POST", f"/sandboxes/{s}/resume", {"timeout": 600}),
                          lambda s=s: server.client().put(f"/v1/sandboxes/{s}/network", json=A))
        assert woken[0] in (200, 201, 409), woken
        check(client, s)

        t = create(client)
        forked, second = beside(lambda t=t: server.e2b("POST", f"/sandboxes/{t}/fork", {}),
                                lambda t=t: server.client().put(f"/v1/sandboxes/{t}/network", json=A))
        assert forked[0] == 201 and second.status == 200, (i, forked, second)
        fork = forked[1][0]["sandbox"]["sandboxID"]
        for each in (t, fork):
            check(client, each)
        for each in (s, t, fork):
            client.delete(f"/v1/sandboxes/{each}")


def test_two_that_give_the_first_rules_at_once(server, client):
    for _ in range(rounds(4, 1000)):
        s = create(client)
        for r in beside(*[lambda s=s, rules=rules: server.client().put(f"/v1/sandboxes/{s}/network", json=rules)
                          for rules in (A, {"allow": ["b.example"]})]):
            assert r.status == 200, r
        check(client, s)
        client.delete(f"/v1/sandboxes/{s}")


def test_first_rules_against_a_kill_of_the_server(server, client):
    """Whatever of them was written down when it was killed: the next server tells what the gate does, and they can be given."""
    count = rounds(2, 60)
    for i in range(count):
        s = create(server.client())
        begun = threading.Event()

        def change(s=s, begun=begun):
            begun.set()
            with contextlib.suppress(OSError, http.client.HTTPException):
                return server.client().put(f"/v1/sandboxes/{s}/network", json=A)
            return None

        def kill(i=i, begun=begun):
            begun.wait(seconds(60))
            time.sleep(0.03 * i / count)
            server.kill()

        changed, _ = beside(change, kill)
        server.start()
        client = server.client()
        told = client.get(f"/v1/sandboxes/{s}/network").json()
        assert told["mode"] == "list" or changed is None or changed.status != 200, (i, changed, told)
        check(client, s)
        put(client, s, A)
        check(client, s)
        assert works(client, s, GET + "http://a.example/")
        client.delete(f"/v1/sandboxes/{s}")
