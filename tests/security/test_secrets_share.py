"""Connections that use secrets are shared out: who takes all that it can get takes them from itself, not from others."""

import hashlib
import os

import pytest
from paddock_testing.internet import ServerInside
from paddock_testing.run import seconds, wait_for

MOST = 16
VALUE = "sesame-4711"
DIGEST = hashlib.sha256(VALUE.encode()).hexdigest()
NETWORK = {"allow": ["a.example"], "secrets": [{"env": "API_KEY", "secret": "prod", "hosts": ["a.example"]}]}
GET = f'curl -sS -m {int(seconds(60))} -H "X-Key: $API_KEY" http://a.example/key'
# Begins requests whose bodies never come: each holds what it was given.
GRAB = """/usr/bin/python3 -c '
import socket, time
held = []
for i in range(40):
    s = socket.create_connection(("a.example", 80), 60)
    s.sendall(b"POST /key HTTP/1.1\\r\\nHost: a.example\\r\\nContent-Length: 9\\r\\n\\r\\n")
    held.append(s)
print("begun", flush=True)
time.sleep(600)
'"""


@pytest.fixture(scope="module")
def server(internet):
    with ServerInside(internet, {"egress_ca": f"{internet.dir}/cert", "egress_secret_connections": MOST}) as s:
        yield s


def client_of(server, tenant):
    c = server.client(server.make_key(tenant))
    assert c.put("/v1/secrets/prod", json={"value": VALUE}).status == 200
    return c


def create(client):
    r = client.post("/v1/sandboxes", json={"network": NETWORK})
    assert r.status == 201, r
    return r.json()["id"]


def start(client, sandbox, line):
    return client.post(f"/v1/sandboxes/{sandbox}/processes", json={"argv": ["bash", "-c", line]}).json()["process_id"]


def output(client, sandbox, process):
    return client.get(f"/v1/sandboxes/{sandbox}/processes/{process}/output?stream=stdout").text


def grab(client):
    s = create(client)
    p = start(client, s, GRAB)
    wait_for(lambda: "begun" in output(client, s, p), 60, "it has grabbed what it gets")
    return s


def works(client, sandbox):
    r = client.post(f"/v1/sandboxes/{sandbox}/exec", json={"argv": ["bash", "-c", GET], "timeout_s": 120})
    assert r.status == 200, r
    return DIGEST in r.json()["stdout"]


def test_a_tenant_that_takes_all_takes_them_from_itself(server):
    (changer,) = wait_for(server.changers, 30, "there is a changer")

    def loans():
        """Each has a thread of its own."""
        return len(os.listdir(f"/proc/{changer}/task")) - 1

    greedy, other = client_of(server, "greedy"), client_of(server, "other")
    victim = create(other)
    assert works(other, victim)

    # A sandbox alone gets a quarter, and leaves some for the others of its tenant, which gets half.
    sandboxes = [grab(greedy)]
    wait_for(lambda: loans() == MOST // 4, 60, "the first one has its share")
    second = create(greedy)
    assert works(greedy, second)
    sandboxes += [grab(greedy) for _ in range(5)]
    wait_for(lambda: loans() == MOST // 2, 60, "the tenant has its share")
    for _ in range(3):
        assert works(other, victim)
    wait_for(lambda: loans() == MOST // 2, 60, "the victim has used one more, and given it back")

    # The control: there was something to be taken. The greedy tenant's own next one waits, and finds nothing.
    control = start(greedy, second, GET)

    # A second greedy one gets less, and leaves as much for whoever has none.
    third = client_of(server, "third")
    others = [grab(third) for _ in range(4)]
    wait_for(lambda: loans() > MOST // 2, 60, "the second tenant has some")
    assert works(other, victim) and loans() < MOST

    def whys():
        return {e.get("why") for e in greedy.get(f"/v1/sandboxes/{second}/events").json()["events"]}

    wait_for(lambda: "too many connections use secrets now" in whys(), 60, "the greedy one is told")
    assert DIGEST not in output(greedy, second, control)

    for client, made in ((greedy, [second, *sandboxes]), (third, others)):
        for s in made:
            client.delete(f"/v1/sandboxes/{s}")
    wait_for(lambda: loans() == 0, 60, "all were given back")
    assert works(other, victim)
    assert server.changers() == [changer]
