"""Containers that wait for whoever wants one: image_pool of docker.

Never somebody's before, and what a new one would be; gone when nobody needs them, when their image is not
allowed any more, and with whoever is killed.
"""

import contextlib
import signal
import statistics
import time
from pathlib import Path

import pytest

from paddock_testing import engine
from paddock_testing import run as paddock
from paddock_testing.server import Client, Server, check_error

FREE = {"requests_per_s": 0, "creates_per_s": 0, "pool_min": 0, "pool_max": 0, "image_pull": "never",
        "providers": "jail,docker"}


class Pool:
    """A server with an engine, and what it keeps ready."""

    def __init__(self, server, service):
        self.server, self.engine = server, service
        self.api = Client(server.host, server.port, server.key)

    def create(self, image, api=None, **more):
        answer = (api or self.api).post("/v1/sandboxes",
                                        json={"provider": self.engine.kind, "image": image, **more})
        assert answer.status == 201, answer
        return answer.json()

    def exec(self, sandbox, *argv, api=None):
        answer = (api or self.api).post(f"/v1/sandboxes/{sandbox['id']}/exec", json={"argv": argv})
        assert answer.status == 200, answer
        return answer.json()["stdout"]

    def delete(self, *sandboxes):
        for sandbox in sandboxes:
            assert self.api.delete(f"/v1/sandboxes/{sandbox['id']}").status in (200, 204)

    def told(self):
        providers = self.api.get("/v1/providers").json()["providers"]
        return next(p for p in providers if p["name"] == self.engine.kind)["pool"]

    def metric(self, name):
        text = self.api.get("/metrics").text
        return float(next(line.split()[1] for line in text.split("\n") if line.startswith(name + " ")))

    def wait(self, count, what="the pool is full"):
        paddock.wait_for(lambda: self.told() == {"ready": count, "filling": 0}, 60, what)

    def containers(self):
        """Those of this server: their label is the hash (FNV-1a) of its directory."""
        store = 14695981039346656037
        for byte in f"{self.server.state_dir}/{self.engine.kind}".encode():
            store = (store ^ byte) * 1099511628211 % 2**64
        return self.engine.containers(f"paddock.store={store:016x}")

    def running(self):
        return {c["Id"] for c in self.containers() if c["State"] == "running"}

    def wait_containers(self, count, what):
        paddock.wait_for(lambda: len(self.containers()) == count, 60, what)


@contextlib.contextmanager
def pool_of(service, kind=Server, **settings):
    with kind({**FREE, "docker_host": service.host, **settings}) as s:
        pool = Pool(s, service)
        yield pool
    pool.wait_containers(0, "nothing is left behind")


@pytest.fixture(scope="module")
def pool(dockerd, images):
    with pool_of(dockerd, image_pool=2) as p:
        p.delete(p.create(images["bash"]))
        yield p


def test_the_next_one_is_ready(pool, images):
    pool.wait(2)
    waiting = pool.running()
    hits = pool.metric("paddock_pool_hits_total")
    box = pool.create(images["bash"])
    assert box["from_pool"] and box["image"] == images["bash"] and box["provider"] == "docker"
    assert pool.exec(box, "echo", "x") == "x\n"
    assert pool.metric("paddock_pool_hits_total") == hits + 1
    pool.wait(2, "it is filled again")
    assert len(pool.running() - waiting) == 1 and len(pool.running()) == 3
    pool.delete(box)
    pool.wait_containers(2, "its container is gone, those that wait are there")


def first_byte(pool, image, **more):
    began = time.monotonic()
    box = pool.create(image, **more)
    assert pool.exec(box, "echo", "x") == "x\n"
    took = time.monotonic() - began
    pool.delete(box)
    return took, box["from_pool"]


def test_it_is_faster(pool, dockerd, images):
    """By turns with a server that keeps none ready; each has the machine for itself."""
    warm, cold = [], []
    with Server({**FREE, "docker_host": dockerd.host}) as server:
        bare = Pool(server, dockerd)
        for _ in range(7):
            pool.wait(2)
            took, from_pool = first_byte(bare, images["bash"])
            assert not from_pool
            cold.append(took)
            took, from_pool = first_byte(pool, images["bash"])
            assert from_pool
            warm.append(took)
        assert bare.told() == {"ready": 0, "filling": 0}
    ratio = statistics.median(cold) / statistics.median(warm)
    print(f"create until first byte: {statistics.median(cold) * 1000:.0f} ms, from the pool "
          f"{statistics.median(warm) * 1000:.1f} ms ({ratio:.1f} x)")
    assert ratio > 1.5, (cold, warm)


def test_the_servers_own_image_is_ready_from_the_start(dockerd, images):
    """Of both usual profiles, where docker is the default."""
    with pool_of(dockerd, providers="docker", default_image=images["bash"], pool_min=1, pool_max=2) as pool:
        for profile in ("strict", "dev"):
            pool.wait(2)
            answer = pool.api.post("/v1/sandboxes", json={"profile": profile})
            assert answer.status == 201 and answer.json()["from_pool"], answer
            pool.delete(answer.json())


# ---- whose they are ----

def test_no_tenant_gets_what_another_had(pool, dockerd, images):
    """Files, processes and the container itself: with the control that they are there for their owner."""
    other = Client(pool.server.host, pool.server.port,
                   pool.server.run("key", "create", "--tenant", "rival").stdout.strip())
    seen = set()
    for i in range(6):
        pool.wait(2)
        before = pool.running()
        mine, theirs = (pool.api, other) if i % 2 else (other, pool.api)
        box = pool.create(images["bash"], api=mine)
        assert box["from_pool"], box
        assert pool.exec(box, "sh", "-c", "cat /workspace/s /tmp/s /dev/shm/s; ps | grep -c '[s]leep 77'",
                         api=mine) == "0\n"
        pool.exec(box, "sh", "-c", "echo secret | tee /workspace/s /tmp/s /dev/shm/s; "
                  "setsid sleep 77 >/dev/null 2>&1 &", api=mine)
        assert pool.exec(box, "cat", "/workspace/s", "/tmp/s", api=mine) == "secret\nsecret\n"
        assert theirs.get(f"/v1/sandboxes/{box['id']}").status == 404

        used = {c for c in before if b"secret" in dockerd.call(
            "GET", f"/containers/{c}/archive?path=/tmp/s")[1]}
        assert len(used) == 1 and not used & seen, "a container that was somebody's"
        seen |= used
        assert mine.delete(f"/v1/sandboxes/{box['id']}").status in (200, 204)
        paddock.wait_for(lambda gone=used: not gone & {c["Id"] for c in pool.containers()}, 60,
                         "a container goes with its sandbox")


def test_a_session_has_its_container_until_its_time_is_over(dockerd, images):
    """The same user and thread have the same one, with files and processes; nobody else has it; after its
    time they have a new one, and not by themselves."""
    with pool_of(dockerd, image_pool=1) as pool:
        body = {"provider": "docker", "image": images["bash"], "idle_timeout_s": 3600}
        first = pool.api.put("/v1/sessions/u/t", json=body)
        assert first.status == 201, first
        box = first.json()
        pool.exec(box, "sh", "-c", "echo mine >/workspace/f")
        again = pool.api.put("/v1/sessions/u/t", json=body)
        assert again.status == 200 and again.json()["id"] == box["id"], again
        assert pool.exec(again.json(), "cat", "/workspace/f") == "mine\n"

        pool.wait(1)
        for path in ("/v1/sessions/u/other", "/v1/sessions/other/t"):
            answer = pool.api.put(path, json=body)
            assert answer.status == 201 and answer.json()["id"] != box["id"], answer
            assert pool.exec(answer.json(), "ls", "/workspace") == ""
            pool.delete(answer.json())

        assert pool.api.delete("/v1/sessions/u/t").status in (200, 204)
        new = pool.api.put("/v1/sessions/u/t", json=body)
        assert new.status == 201 and new.json()["id"] != box["id"], new
        assert pool.exec(new.json(), "ls", "/workspace") == ""

        short = pool.api.put("/v1/sessions/u/short", json={**body, "idle_timeout_s": 1}).json()
        paddock.wait_for(
            lambda: pool.api.get(f"/v1/sandboxes/{short['id']}").json()["state"] == "gone", 60,
            "its time is over")
        check_error(pool.api.put("/v1/sessions/u/short", json=body), 410, "session_expired")
        made = pool.api.put("/v1/sessions/u/short", json={**body, "auto_retry": True})
        assert made.status == 201 and made.json()["replaces"] == short["id"], made


# ---- which are not given out ----

def test_an_image_that_got_another_content(pool, dockerd, images):
    """The name is moved behind our back: new sandboxes are of the new image, pooled or not."""
    name = dockerd.import_image("test/moving:1", engine.image_tar("sh"), ["ENV WHICH=old"])
    line = ("sh", "-c", "echo $WHICH")
    boxes = [pool.create(name)]
    pool.wait(4)
    boxes.append(pool.create(name))
    assert boxes[-1]["from_pool"] and pool.exec(boxes[-1], *line) == "old\n"
    pool.wait(4)

    dropped = pool.metric("paddock_pool_dropped_total")
    dockerd.import_image(name, engine.image_tar("sh"), ["ENV WHICH=new"])
    boxes.append(pool.create(name))
    assert not boxes[-1]["from_pool"] and pool.exec(boxes[-1], *line) == "new\n"
    assert pool.metric("paddock_pool_dropped_total") == dropped + 2
    pool.wait(4)
    boxes.append(pool.create(name))
    assert boxes[-1]["from_pool"] and pool.exec(boxes[-1], *line) == "new\n"
    pool.delete(*boxes)


def test_one_that_somebody_touched(dockerd, images):
    """Nobody gets it, and it does not stay. Those that died are replaced before anybody asks."""
    with pool_of(dockerd, image_pool=2) as pool:
        pool.delete(pool.create(images["bash"]))
        for how in ("kill", "pause", "stop?t=0", "remove"):
            pool.wait(2)
            pool.wait_containers(2, "those of the last round are gone")
            touched = pool.running()
            for container in touched:
                dockerd.good(*(("DELETE", f"/containers/{container}?force=1") if how == "remove" else
                               ("POST", f"/containers/{container}/{how}")))
            box = pool.create(images["bash"])
            assert pool.exec(box, "echo", "x") == "x\n", how
            paddock.wait_for(lambda old=touched: not old & {c["Id"] for c in pool.containers()}, 60,
                             f"{how}: those that were touched are gone")
            pool.delete(box)


def reload(pool, config):
    Path(pool.server.config).write_text(config)
    pool.server.send_signal(signal.SIGHUP)


def test_those_that_nobody_wants_or_may_have_go(dockerd, images):
    """By time, and when the configuration says so."""
    base = "image_pool = 1\n"
    with Server({**FREE, "docker_host": dockerd.host}, config=base) as server:
        pool = Pool(server, dockerd)
        pool.delete(pool.create(images["sh"]), pool.create(images["bash"]))
        pool.wait(2)
        reload(pool, base + "images_allowed = test/sh\n")
        pool.wait(1, "one is not allowed any more")
        pool.wait_containers(1, "its container is gone")
        refused = pool.api.post("/v1/sandboxes", json={"provider": "docker", "image": images["bash"]})
        check_error(refused, 403, "denied")
        box = pool.create(images["sh"])
        assert box["from_pool"]
        pool.delete(box)

        reload(pool, base + "image_pool_ttl_s = 1\n")
        pool.wait(0, "nobody wants it")
        pool.wait_containers(0, "its container is gone")


# ---- the other engine ----

def test_podman_has_it_too(podman):
    name = podman.import_image("test/moving:latest", engine.image_tar("sh"), ["ENV WHICH=old"])  # it knows no other tag
    line = ("sh", "-c", "echo $WHICH")
    with pool_of(podman, image_pool=1, providers="jail,podman") as pool:
        pool.delete(pool.create(name))
        pool.wait(1)
        box = pool.create(name)
        assert box["from_pool"] and pool.exec(box, *line) == "old\n"
        pool.delete(box)
        pool.wait(1)

        podman.import_image(name, engine.image_tar("sh"), ["ENV WHICH=new"])
        box = pool.create(name)
        assert not box["from_pool"] and pool.exec(box, *line) == "new\n"
        pool.delete(box)
        pool.wait(1)
