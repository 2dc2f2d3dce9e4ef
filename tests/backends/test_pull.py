"""How far the pull of an image is: events of the sandbox, a stream for who asks, a line on a terminal."""

import json
import os
import pty
import secrets
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from paddock_testing import engine as engines
from paddock_testing import run as paddock
from paddock_testing.server import Server
from test_broker import Forgetful

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "api"))
from helpers import Later, read_events  # pylint: disable=wrong-import-position

EVENTS = {"Accept": "application/json, text/event-stream"}


def line(status, layer="a", **detail):
    return json.dumps({"status": status, "id": layer, "progressDetail": detail}).encode() + b"\r\n"


BEGIN = (line("Pulling fs layer") + line("Pulling fs layer", "b") +
         line("Downloading", current=100, total=1000))
END = line("Pull complete") + line("Pull complete", "b")
BROKEN = b'{"errorDetail":{"message":"unexpected EOF"},"error":"unexpected EOF"}\r\n'


class Slow(Forgetful):
    """An engine whose pulls begin with BEGIN, go on when the test says so, and end with `end`.
    `left` counts those whose client went away before."""

    def __init__(self, engine, directory):
        self.go, self.end, self.pieces, self.took = threading.Event(), END, [], 0.0
        self.begun = self.left = 0
        super().__init__(engine, directory, lost="nothing is")

    def answer(self, client, path):
        if "/images/create" not in path:
            return False

        def send(piece):
            client.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        began, go = time.monotonic(), self.go
        client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        send(BEGIN)
        self.begun += 1
        if not self.may_go_on(client, go):
            self.left += 1
            raise BrokenPipeError
        for piece in self.pieces:
            send(piece)
            time.sleep(0.02)
        send(self.end)
        client.sendall(b"0\r\n\r\n")
        self.took = time.monotonic() - began
        return True


    @staticmethod
    def may_go_on(client, go):
        """Waits for the test's word; False when the client goes away before."""
        limit = time.monotonic() + paddock.seconds(120)
        while not go.is_set():
            assert time.monotonic() < limit, "nobody let the pull go on"
            if select.select([client], [], [], 0.02)[0]:
                return False  # it has sent all that it had to say: this is the end
        return True


@pytest.fixture(scope="module")
def slow(dockerd, tmp_path_factory):
    proxy = Slow(dockerd, str(tmp_path_factory.mktemp("proxy")))
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def own(slow, images):  # images: they are there whatever the proxy says
    with Server({"providers": "jail,docker", "docker_host": slow.host, "image_pull": "always"}) as s:
        yield s


@pytest.fixture
def body(slow, images):
    slow.go = threading.Event()  # of this test: an earlier one's pull may still be looking at its own
    slow.end, slow.pieces, slow.took = END, [], 0.0
    slow.begun = slow.left = 0
    yield {"provider": "docker", "image": images["sh"]}
    slow.go.set()


def pulls(client, sandbox):
    events = client.get(f"/v1/sandboxes/{sandbox}/events?limit=1000").json()["events"]
    return [e["pull"] for e in events if e["action"] == "image.pull"]


def test_a_pull_is_told_while_it_goes_on(own, slow, body):
    client = own.client()
    slow.pieces = [line("Downloading", current=100 + i, total=1000) for i in range(100)]
    stream = client.stream("POST", "/v1/sandboxes", json=body, headers=EVENTS)
    assert stream.status == 200 and stream.headers["Content-Type"] == "text/event-stream"
    events = read_events(stream)
    first = next(events)
    assert first.name == "image.pull", first
    told = dict(first.data)
    sandbox = told.pop("id")
    begun = {"image": body["image"], "layers_done": 0, "layers": 2, "bytes_done": 100, "bytes": 1000}
    assert told == begun
    assert pulls(client, sandbox) == [begun] and not slow.took, "it was told when it was over"

    slow.go.set()
    rest = list(events)
    assert rest[-1].name == "created" and rest[-1].data["id"] == sandbox, rest
    assert rest[-1].data["state"] == "running"
    last = {**begun, "layers_done": 2, "bytes_done": 1000}
    assert {k: v for k, v in rest[-2].data.items() if k != "id"} == last
    seen = pulls(client, sandbox)
    assert seen[-1] == last and 2 <= len(seen) <= slow.took + 2, (seen, slow.took)
    assert client.delete(f"/v1/sandboxes/{sandbox}").status == 204


def test_a_pull_that_fails_midway(own, slow, body):
    slow.end = BROKEN
    stream = own.client().stream("PUT", "/v1/sessions/u/pull", json=body, headers=EVENTS)
    assert stream.status == 200
    events = read_events(stream)
    assert next(events).name == "image.pull"
    slow.go.set()
    *_, last = events
    assert last.name == "error" and "unexpected EOF" in last.data["error"]["message"], last


def test_a_client_that_leaves_does_not_stop_it(own, slow, body):
    client = own.client()
    stream = client.stream("POST", "/v1/sandboxes", json=body, headers=EVENTS)
    sandbox = next(read_events(stream)).data["id"]
    stream.close()
    slow.go.set()
    url = f"/v1/sandboxes/{sandbox}"
    paddock.wait_for(lambda: client.get(url).json()["state"] == "running", 60, "it was made")
    assert client.delete(url).status == 204


def begin(server, body, **more):
    """A sandbox whose image is being pulled: its events and its path."""
    stream = server.client().stream("POST", "/v1/sandboxes", json={**body, **more}, headers=EVENTS)
    events = read_events(stream)
    first = next(events)
    assert first.name == "image.pull", first
    return events, f"/v1/sandboxes/{first.data['id']}"


def expect_ended(events, client, url, reason):
    """Its maker is told why, and it is remembered as gone, once."""
    *_, last = events
    assert last.name == "error" and last.data["error"]["code"] == "conflict", last
    assert "was ended while it was being made" in last.data["error"]["message"], last
    assert reason in last.data["error"]["message"], last
    assert client.get(url).json()["state"] == "gone"
    assert client.delete(url).status == 204, "it can be deleted again"


def test_one_that_is_deleted_meanwhile(own, slow, body, dockerd):
    """The pull is given up for it, not waited for; its maker is told, and no container stays."""
    client = own.client()
    before = {c["Id"] for c in dockerd.containers()}
    count = client.get("/v1/sandboxes").json()
    events, url = begin(own, body)
    assert Later(lambda: own.client().delete(url)).get(60).status == 204
    assert not slow.took, "it waited for the pull"
    paddock.wait_for(lambda: slow.left == 1, 60, "the engine is left alone")
    expect_ended(events, client, url, "deleted")
    assert client.get("/v1/sandboxes").json() == count
    paddock.wait_for(lambda: {c["Id"] for c in dockerd.containers()} <= before, 60, "no container stays")


def test_others_wait_for_the_same_image(own, slow, body):
    """One of two is deleted: the other is made. One that waits for a broker ends as well."""
    client = own.client()
    one, other = begin(own, body), begin(own, body)
    assert client.delete(one[1]).status == 204
    paddock.wait_for(lambda: slow.left == 1, 60, "the engine is left alone")
    assert not slow.took, "it waited for the pull"
    slow.go.set()
    *_, last = other[0]
    assert last.name == "created" and last.data["state"] == "running", last
    run = client.post(f"{other[1]}/exec", json={"command": "echo alive"}).json()
    assert run["stdout"] == "alive\n", run
    assert client.delete(other[1]).status == 204
    expect_ended(one[0], client, one[1], "deleted")


def test_one_that_waits_for_a_broker_is_deleted(own, slow, body):
    """More than there are brokers: some wait in the keeper's queue, and end there."""
    client = own.client()
    busy = [begin(own, body) for _ in range(2)]
    rest = [Later(lambda: own.client().post("/v1/sandboxes", json=body)) for _ in range(8)]
    def waiting():
        return [s["id"] for s in client.get("/v1/sandboxes").json()["sandboxes"] if s["state"] == "creating"]
    paddock.wait_for(lambda: len(waiting()) == 10, 60, "all are being made")
    for sandbox in waiting():
        assert client.delete(f"/v1/sandboxes/{sandbox}").status == 204
    assert not slow.took, "one waited for the pull"
    for later in rest:
        answer = later.get(60)
        assert answer.status == 409 and "was ended" in answer.json()["error"]["message"], answer
    for events, url in busy:
        expect_ended(events, client, url, "deleted")


@pytest.mark.parametrize("how", ["deleted", "its life is over"])
def test_a_move_is_given_up_with_its_sandbox(slow, body, dockerd, how):
    """Its target pulls: neither waits for that. Whoever moves it is told, and no container stays."""
    settings = {"providers": "jail,docker", "docker_host": slow.host, "image_pull": "always", "default_image": body["image"],
                "pool_max": 0}
    with Server(settings) as server:
        client = server.client()
        life = {"max_life_s": 3} if how != "deleted" else {}
        made = client.post("/v1/sandboxes", json={"provider": "jail", **life})
        assert made.status == 201, made
        url = f"/v1/sandboxes/{made.json()['id']}"
        mover = Later(lambda: server.client().post(f"{url}/move", json={"provider": "docker"}))
        if how == "deleted":
            paddock.wait_for(lambda: slow.begun == 1, 60, "the target pulls")
            assert Later(lambda: server.client().delete(url)).get(60).status == 204
        answer = mover.get(60)
        assert answer.status in (409, 410) and not slow.took, answer
        if slow.begun:
            assert "was given up" in answer.json()["error"]["message"], answer
        paddock.wait_for(lambda: client.get(url).json()["end_cause"], 60, "it has ended")
        paddock.wait_for(lambda: slow.left == slow.begun, 60, "the engine is left alone")
        assert not dockerd.containers()


def test_one_whose_life_is_over_meanwhile(own, slow, body):
    """Its clock runs while it is being made, however far that has come by then."""
    answer = own.client().post("/v1/sandboxes", json={**body, "max_life_s": 1})
    assert answer.status == 409 and not slow.took, answer
    assert "being made: its maximum life of 1 s is over" in answer.json()["error"]["message"], answer
    paddock.wait_for(lambda: slow.left == slow.begun, 60, "the engine is left alone")


def test_a_server_that_ends_meanwhile(slow, body, dockerd):
    """It gives up what does not end by itself while it drains; the next one knows what became of it."""
    settings = {"providers": "jail,docker", "docker_host": slow.host, "image_pull": "always",
                "drain_timeout_s": 1}
    with Server(settings) as server:
        before = {c["Id"] for c in dockerd.containers()}
        _, url = begin(server, body)
        assert server.stop() == 0
        paddock.wait_for(lambda: slow.left == 1, 60, "the pull was given up")
        assert not slow.took, "it waited for the pull"
        server.start()
        gone = server.client().get(url).json()
        assert (gone["state"], gone["end_reason"]) == ("gone", "the server was stopped"), gone
        assert {c["Id"] for c in dockerd.containers()} <= before


def create(own, slow, image, *words, terminal):
    """Runs `paddock create`; gives its result and what was on its stderr. The pull goes on when the
    line is there, if one is expected."""
    if words or not terminal:
        slow.go.set()
    near, far = pty.openpty() if terminal else os.pipe()
    text = b""
    with subprocess.Popen(
            [paddock.PADDOCK, "create", "--provider", "docker", "--image", image, *words], stderr=far,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            env={**own.env, "PADDOCK_URL": own.url}) as child:
        os.close(far)
        try:
            while piece := os.read(near, 65536):
                text += piece
                if b"0/2 layers, 10%" in text:
                    slow.go.set()
        except OSError:  # the end of a terminal
            pass
        out = child.stdout.read().decode().strip()
        child.wait(paddock.seconds(60))
    os.close(near)
    return child.returncode, out, text.decode()


@pytest.mark.parametrize("words, terminal", [((), True), (("--quiet",), True), ((), False)])
def test_the_line_on_a_terminal(own, slow, body, words, terminal):
    status, out, told = create(own, slow, body["image"], *words, terminal=terminal)
    assert status == 0 and own.client().delete(f"/v1/sandboxes/{out}").status == 204, (out, told)
    if words or not terminal:
        assert told == ""
    else:
        assert f"pulling {body['image']}: 0/2 layers, 10% of 0.0 MB" in told, told
        assert "2/2 layers, 100%" in told and told.endswith("\r\x1b[K"), told


def test_an_error_on_a_terminal(own, slow, body):
    slow.end = BROKEN
    status, out, told = create(own, slow, body["image"], terminal=True)
    assert status != 0 and not out and "unexpected EOF" in told, (status, out, told)


@pytest.fixture
def plain():
    """A registry for everybody: to check a password takes it longer than all the rest."""
    registry = engines.Registry().start()
    yield registry
    registry.close()


def test_a_real_registry(dockerd, plain):
    """A layer that is nowhere yet is fetched and counted; where it is there, the answer is JSON."""
    name = f"test/pulled-{secrets.token_hex(4)}:1"
    dockerd.import_image(name, engines.image_tar("sh"), [f"ENV SALT={name}"])
    full, _ = plain.push(dockerd, name, f"{name.partition(':')[0]}:1")
    dockerd.good("DELETE", f"/images/{name}?force=1")
    with Server({"providers": "jail,docker", "docker_host": dockerd.host}) as server:
        client = server.client()
        body = {"provider": "docker", "image": full}
        made = client.post("/v1/sandboxes", json=body)
        assert made.status == 201, made
        last = pulls(client, made.json()["id"])[-1]
        assert last["image"] == full and last["layers_done"] == last["layers"] >= 1, last
        again = client.post("/v1/sandboxes", json=body, headers=EVENTS)
        assert again.status == 201 and again.json()["image"] == full, again
        assert not pulls(client, again.json()["id"])
        for box in (made, again):
            assert client.delete(f"/v1/sandboxes/{box.json()['id']}").status == 204
    dockerd.call("DELETE", f"/images/{full}?force=1")
