"""Sandboxes of a server, made by the provider jail from images of its store: no engine is there."""

import json
import subprocess
import threading
import time
from pathlib import Path

import pytest

from paddock_testing import images
from paddock_testing import run as paddock
from paddock_testing.e2b_http import E2b
from paddock_testing.images import entry, layer, saved
from paddock_testing.mcp import Http
from paddock_testing.server import Server, check_error

pytestmark = [
    pytest.mark.skipif(not images.has_static_busybox(), reason="there is no static busybox"),
    pytest.mark.skipif(not (Path(paddock.PADDOCK).parent / "paddock-remote").exists(),
                       reason="there is no paddock-remote beside paddock"),
]
SETTINGS = {"requests_per_s": 0, "creates_per_s": 0, "providers": "jail", "pool_max": 0, "image_pull": "never"}


def image(server, *words, check=True):
    """`paddock image ...` in the server's store, as its operator."""
    done = subprocess.run([paddock.PADDOCK, "image", *map(str, words)], env=server.env, capture_output=True,
                          text=True, check=False, stdin=subprocess.DEVNULL, timeout=paddock.seconds(60))
    assert not check or done.returncode == 0, (words, done)
    return done


def put(server, name, *layers, **settings):
    path = Path(server.directory) / "image.tar"
    return image(server, "import", saved(path, [images.base(), *layers], name=name, **settings)).stdout


@pytest.fixture(scope="module")
def own():
    with Server(SETTINGS, config="tenant_images = narrow=docker.io/library/tool\n") as server:
        put(server, "tool:1", layer(entry("mark", b"one\n"), entry("twice", b"low\n")), layer(entry("twice", b"high\n")),
            Env=["PATH=/bin:/mine", "COLOUR=green", "PADDOCK_WAITS=1", "HOME=/nowhere", "LD_PRELOAD=/evil.so"])
        put(server, "other:1", layer(entry("mark", b"other\n")))
        yield server


@pytest.fixture
def client(own):
    return own.client()


class Box:
    def __init__(self, client, image_name="tool:1", **more):
        made = client.post("/v1/sandboxes", json={"image": image_name, **more})
        assert made.status == 201, made
        self.client, self.info = client, made.json()
        self.url = f"/v1/sandboxes/{self.info['id']}"

    def run(self, line, **more):
        done = self.client.post(f"{self.url}/exec", json={"command": line, **more})
        assert done.status == 200, done
        return done.json()

    def close(self):
        assert self.client.delete(self.url).status == 204


def test_one_that_has_lost_its_name_is_the_operators(own):
    """Another has its name. What it was called said whose it was, and nobody can say that any more."""
    everybody = own.client(own.make_key("anybody"))
    operator = own.client(own.run("key", "create", "--tenant", "ops", "--admin").stdout.strip())

    def ids(client):
        return {one["id"]: one["names"] for one in client.get("/v1/images").json()["images"]}

    put(own, "moves:1", layer(entry("mark", b"old\n")))
    (old,) = [one for one, names in ids(everybody).items() if "docker.io/library/moves:1" in names]
    control = everybody.post("/v1/sandboxes", json={"image": old})
    assert control.status == 201 and everybody.delete(f"/v1/sandboxes/{control.json()['id']}").status == 204, control

    put(own, "moves:1", layer(entry("mark", b"new\n")))
    assert old not in ids(everybody) and ids(operator)[old] == []
    check_error(everybody.get(f"/v1/images/{old}"), 404, "not_found")
    check_error(everybody.post("/v1/sandboxes", json={"image": old}), 404, "not_found", "image")
    image(own, "rm", old)


def test_a_sandbox_is_made_from_an_image(client):
    box = Box(client)
    assert (box.info["provider"], box.info["image"]) == ("jail", "tool:1")
    assert box.run("cat /mark /twice; pwd; echo $COLOUR $PATH $HOME")["stdout"] == (
        "one\nhigh\n/workspace\ngreen /bin:/mine /home/user\n")
    # The shell is the image's, and its state is kept from line to line.
    assert box.run("cd /etc; export A=b")["exit_code"] == 0
    assert box.run("pwd; echo $A; echo $0")["stdout"].startswith("/etc\nb\n")
    assert box.run("id -u", user="root")["stdout"] == "0\n"
    # Variables that are init's own are not taken from an image.
    assert "PADDOCK_" not in box.run("env")["stdout"]
    # Files, and what the sandbox writes, are its own.
    assert box.run("echo mine > /workspace/file")["exit_code"] == 0
    assert box.run("echo changed > /mark", user="root")["exit_code"] == 0
    told = client.get(f"{box.url}/files?path=/workspace/file")
    assert told.body == b"mine\n", told
    box.close()
    again = Box(client)
    assert again.run("cat /mark; ls /workspace")["stdout"] == "one\n"
    again.close()


def test_an_image_that_is_not_there_or_cannot_be(client):
    check_error(client.post("/v1/sandboxes", json={"image": "missing:1"}), 404, "not_found", says="missing:1")
    check_error(client.post("/v1/sandboxes", json={"image": "sha256:" + "0" * 64}), 404, "not_found")
    check_error(client.post("/v1/sandboxes", json={"image": "tool:1", "profile": "restricted"}), says="restricted")
    assert client.get("/v1/sandboxes").json()["sandboxes"] == []


def test_every_door(own, client):
    with Http(own) as session:
        told = session.call("create_sandbox", image="tool:1").result
        assert not told["isError"], told
    done = own.run("create", "--image", "tool:1", "--json")
    made = json.loads(done.stdout)["id"]
    assert client.get(f"/v1/sandboxes/{made}").json()["image"] == "tool:1"
    answer = client.put("/v1/sessions/u/images", json={"image": "tool:1"})
    assert answer.status == 201, answer
    for one in client.get("/v1/sandboxes").json()["sandboxes"]:
        assert client.delete(f"/v1/sandboxes/{one['id']}").status == 204
    assert client.get("/v1/route?image=tool:1").json()["provider"] == "jail"


def test_a_tenant_has_the_images_of_its_patterns(own):
    narrow = own.client(own.make_key("narrow"))
    Box(narrow).close()
    check_error(narrow.post("/v1/sandboxes", json={"image": "other:1"}), 403, "denied", "image", "tenant_images")
    # An id is no way around: the pattern would match library/sha256 as a name.
    ids = dict(reversed(line.split()[:2]) for line in image(own, "ls").stdout.splitlines())
    short = next(key for key, name in ids.items() if name.endswith("other:1"))
    whole = next((Path(own.state_dir) / "images" / "records").glob(short + "*")).name
    for text in ("sha256:" + whole, whole, short):
        check_error(narrow.post("/v1/sandboxes", json={"image": text}), 403, "denied", "image")
    # The control: who may have every image may name it so.
    free = own.client()
    box = Box(free, "sha256:" + whole)
    assert box.run("cat /mark")["stdout"] == "other\n"
    box.close()
    # A short id is a name, and there is none of it.
    check_error(free.post("/v1/sandboxes", json={"image": short}), 404, "not_found")


def test_files_keep_their_image_when_its_name_moves_on(own, client):
    """A name is looked up once for a sandbox: asleep, forked or woken it stays on the same layers."""
    put(own, "moving:1", layer(entry("mark", b"before\n")))
    box = Box(client, "moving:1")
    assert box.run("echo kept > /workspace/file")["exit_code"] == 0
    assert box.run("rm /bin/find", user="root")["exit_code"] == 0
    assert client.post(f"/sandboxes/{box.info['id']}/pause", json={"memory": False}).status == 204
    old = image(own, "ls").stdout
    put(own, "moving:1", layer(entry("mark", b"after\n")))
    old_id = next(line.split()[1] for line in old.splitlines() if "moving:1" in line)

    # Neither goes its image away while it sleeps.
    done = image(own, "rm", old_id, check=False)
    assert done.returncode == 125 and "in use by root" in done.stderr, done
    assert client.post(f"{box.url}/resume").status == 200
    assert box.run("cat /mark /workspace/file; test -e /bin/find || echo gone")["stdout"] == "before\nkept\ngone\n"

    forked = E2b(own).post(f"/sandboxes/{box.info['id']}/fork", {})
    assert forked.status == 201, forked
    other = f"/v1/sandboxes/{forked.json()[0]['sandbox']['sandboxID']}"
    box.close()
    told = client.post(f"{other}/exec", json={"command": "cat /mark /workspace/file"}).json()
    assert told["stdout"] == "before\nkept\n", told
    assert image(own, "rm", old_id, check=False).returncode == 125
    assert client.delete(other).status == 204
    fresh = Box(client, "moving:1")
    assert fresh.run("cat /mark")["stdout"] == "after\n"
    fresh.close()
    paddock.wait_for(lambda: image(own, "rm", old_id, check=False).returncode == 0, 60, "nobody needs it any more")


def test_they_outlive_the_daemon(own, client):
    """The next daemon is told again which shell and variables there are."""
    box = Box(client)
    own.kill()
    own.start()
    box.client = own.client()
    assert box.run("echo $COLOUR; cat /mark")["stdout"] == "green\none\n"
    box.close()


def test_pruning_races_against_creations(own):
    """The name moves on and what it was is pruned, again and again: a sandbox has one image whole, or there is none."""
    archives = [saved(Path(own.directory) / f"race-{mark}.tar", [images.base(), layer(entry("mark", f"{mark}\n".encode()), entry("again", f"{mark}\n".encode()))],
                      name="race:1") for mark in ("odd", "even")]
    image(own, "import", archives[0])
    stop, go_on, wrong, seen = threading.Event(), threading.Event(), [], set()
    at_work = [threading.Lock() for _ in range(2)]
    go_on.set()

    def make_one(client):
        made = client.post("/v1/sandboxes", json={"image": "race:1"})
        if made.status != 201:
            wrong.append(made)
            return
        url = f"/v1/sandboxes/{made.json()['id']}"
        told = client.post(f"{url}/exec", json={"command": "cat /mark /again"}).json().get("stdout")
        seen.add(told)
        if told not in ("odd\nodd\n", "even\neven\n") or client.delete(url).status != 204:
            wrong.append((url, told))

    def make(mine):
        client = own.client()
        while not stop.is_set() and not wrong:
            go_on.wait()
            with mine:
                make_one(client)

    threads = [threading.Thread(target=make, args=(lock,)) for lock in at_work]
    for thread in threads:
        thread.start()
    pruned, number, until = 0, 0, time.monotonic() + paddock.rounds(30, 1200)
    try:
        # Often somebody has the old one at that moment, and it stays.
        while pruned < paddock.rounds(4, 500) and time.monotonic() < until and not wrong:
            number += 1
            image(own, "import", archives[number % 2])
            pruned += len(image(own, "prune").stdout.splitlines())
            if number % 8 == 0:  # on a busy machine somebody has one at every moment
                go_on.clear()
                with at_work[0], at_work[1]:  # a deleted one's root goes a moment later
                    paddock.wait_for(lambda: image(own, "prune").stdout, 60, "one that nobody has goes")
                pruned += 1
                go_on.set()
    finally:
        stop.set()
        go_on.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong[:3]
    assert pruned and len(seen) == 2, (pruned, seen)
    paddock.wait_for(lambda: image(own, "rm", "race:1", check=False).returncode == 0, 60, "the last of them is gone")
