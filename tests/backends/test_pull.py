"""How far the pull of an image is: events of the sandbox, a stream for who asks, a line on a terminal."""

import json
import os
import pty
import secrets
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
    """An engine whose pulls begin with BEGIN, go on when the test says so, and end with `end`."""

    def __init__(self, engine, directory):
        self.go, self.end, self.pieces, self.took = threading.Event(), END, [], 0.0
        super().__init__(engine, directory, lost="nothing is")

    def answer(self, client, path):
        if "/images/create" not in path:
            return False

        def send(piece):
            client.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        began = time.monotonic()
        client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        send(BEGIN)
        assert self.go.wait(paddock.seconds(60))
        for piece in self.pieces:
            send(piece)
            time.sleep(0.02)
        send(self.end)
        client.sendall(b"0\r\n\r\n")
        self.took = time.monotonic() - began
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
    slow.go.clear()
    slow.end, slow.pieces, slow.took = END, [], 0.0
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


def test_one_that_is_deleted_meanwhile(own, slow, body, dockerd):
    """Its maker is told that it was ended, and no container stays."""
    client = own.client()
    before = {c["Id"] for c in dockerd.containers()}
    stream = client.stream("POST", "/v1/sandboxes", json=body, headers=EVENTS)
    events = read_events(stream)
    url = f"/v1/sandboxes/{next(events).data['id']}"
    ended = Later(lambda: own.client().delete(url))  # it waits for the pull
    paddock.wait_for(lambda: client.get(url).json()["state"] == "stopping", 60, "it is being ended")
    slow.go.set()
    *_, last = events
    assert last.name == "error", last
    assert ended.get().status == 204
    assert client.get(url).json()["state"] == "gone"
    paddock.wait_for(lambda: {c["Id"] for c in dockerd.containers()} <= before, 60, "no container stays")


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
