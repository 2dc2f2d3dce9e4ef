"""What a sandbox does to the gate does not reach its neighbours, and nothing of it stays."""

import os

import pytest
from paddock_testing import host
from paddock_testing.internet import ServerInside
from paddock_testing.run import rounds, seconds, wait_for

GET = f"curl -sSf -m {int(seconds(60))} "
LIMIT = 100  # connections of a sandbox here
# Opens more than it may have, says nothing on half of them, begins a head on the others, reads nothing; then makes
# and resets connections for ever.
FLOOD = """/usr/bin/python3 -c '
import socket, struct
held = []
for i in range(600):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(("203.0.113.7", 7777 if i % 2 else 80))
    try: s.send(b"GET /big90000000 HTTP/1.1" if i % 4 == 0 else b"x" if i % 4 == 1 else b"")
    except OSError: pass
    if i % 8 == 3: s.shutdown(socket.SHUT_WR)
    held.append(s)
print("begun", flush=True)
while True:
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.setblocking(False)
    s.connect_ex(("203.0.113.7", 7777))
    s.close()
'"""

# Sends much to a server that sends it back, with an urgent byte in it or without, and tells how much has come.
URGENT = """/usr/bin/python3 -c '
import socket, threading
s = socket.create_connection(("203.0.113.7", 7777), 30)
def send():
    s.sendall(b"a" * (256 << 10))
    %s
    s.sendall(b"b" * (64 << 10))
threading.Thread(target=send).start()
got, want = bytearray(), b"a" * (256 << 10) + b"b" * (64 << 10)
while len(got) < len(want):
    data = s.recv(1 << 20)
    if not data: break
    got += data
s.shutdown(socket.SHUT_WR)
assert got == want and s.recv(1) == b"", len(got)
'"""


@pytest.fixture(scope="module")
def server(internet):
    with ServerInside(internet, {"egress_connections": LIMIT}) as s:
        yield s


def create(client):
    r = client.post("/v1/sandboxes", json={"network": {"mode": "open"}})
    assert r.status == 201, r
    return r.json()["id"]


def works(client, sandbox, line):
    r = client.post(f"/v1/sandboxes/{sandbox}/exec", json={"argv": ["bash", "-c", line]})
    assert r.status == 200, r
    return r.json()["exit_code"] == 0


def use(client):
    s = create(client)
    assert works(client, s, GET + "http://a.example/")
    client.delete(f"/v1/sandboxes/{s}")


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def processor_time(pid):
    """In seconds."""
    fields = host.read_proc(pid, "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_flood_of_connections_has_its_limit_and_neighbours_do_not_notice(server):
    client = server.client()
    use(client)  # the gate has what it needs for that
    (gate,) = server.gates()
    before = descriptors(gate)
    bad, good = create(client), create(client)
    p = client.post(f"/v1/sandboxes/{bad}/processes", json={"argv": ["bash", "-c", FLOOD]}).json()["process_id"]
    output = f"/v1/sandboxes/{bad}/processes/{p}/output?stream=stdout"
    wait_for(lambda: "begun" in client.get(output).text, 60, "the flood has begun")
    most = 0
    for _ in range(rounds(10, 500)):
        assert works(client, good, GET + "http://a.example/")
        most = max(most, descriptors(gate) - before)
    # The flood was one, and was held: two descriptors a connection, two sockets a sandbox, one for the neighbour.
    assert LIMIT // 2 < most <= 2 * LIMIT + 16
    for s in (bad, good):
        client.delete(f"/v1/sandboxes/{s}")
    assert server.gates() == [gate]
    # The changer's connection may have come since: one.
    wait_for(lambda: descriptors(gate) <= before + 1, 60, "nothing of it stays in the gate")


@pytest.mark.parametrize("way", ["pass", 's.send(b"!", socket.MSG_OOB)'])
def test_an_urgent_byte_does_not_keep_the_gate_busy(server, way):
    """The rest arrives; the control is without one."""
    client = server.client()
    use(client)
    (gate,) = server.gates()
    sandbox, before = create(client), processor_time(gate)
    assert works(client, sandbox, URGENT % way)
    assert processor_time(gate) - before < 1
    client.delete(f"/v1/sandboxes/{sandbox}")


def test_nothing_stays_of_sandboxes_with_traffic(server):
    client = server.client()
    (gate,) = wait_for(server.gates, 30, "there is a gate")

    def count():
        return [descriptors(gate), descriptors(server.daemon()), sum(descriptors(p) for p in server.keepers())]

    for _ in range(3):
        use(client)
    before, times = count(), rounds(12, 1000)
    for _ in range(times):
        use(client)
    # Two of each would be left. Kits that wait, at the keeper, and connections that rest come and go.
    wait_for(lambda: all(now < b + 2 * times for now, b in zip(count(), before)), 60,
             f"descriptors are as before, {before}")
    wait_for(lambda: descriptors(gate) <= before[0], 60, "the gate has as many as before")
    # The control: sandboxes that are there have some. More than one of them, because the first count may hold sockets of
    # a sandbox that had just been deleted.
    alive = [create(client) for _ in range(4)]
    wait_for(lambda: descriptors(gate) >= before[0] + 2, 30, "a sandbox is two sockets of the gate")
    for each in alive:
        client.delete(f"/v1/sandboxes/{each}")
