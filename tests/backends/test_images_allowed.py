"""Which images may be asked for (`images_allowed`, `tenant_images`): every door, every trick."""

import signal
import sys
from pathlib import Path

import pytest

from paddock_testing import run as paddock
from paddock_testing.e2b_http import E2b
from paddock_testing.mcp import Http
from paddock_testing.server import Server, check_error
from test_docker import Box

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "api"))
from helpers import metric  # pylint: disable=wrong-import-position

DIGEST = "sha256:" + "0" * 64
ALLOWED = "test/bash,registry.example:5000/team/*"


def config(allowed):
    return f"images_allowed = {allowed}\ntenant_images = other=docker.io/test/sh, free=*\n"


@pytest.fixture(scope="module")
def own(dockerd, images):
    """Allowed are test/bash and, as the server's own, test/sh; every image is on the machine."""
    with Server({"providers": "jail,docker", "docker_host": dockerd.host, "image_pull": "never",
                 "default_image": images["sh"], "requests_per_s": 0, "creates_per_s": 0},
                config=config(ALLOWED)) as server:
        yield server
    assert not dockerd.containers(), "containers are left behind"


@pytest.fixture(scope="module")
def evil(dockerd, images):
    """Names of an image that is there and not allowed: without the setting each makes a sandbox."""
    for repository in ("evil/bash", "test/bashful", "docker.io:443/test/bash", "test2/test/bash",
                       "evil.example/docker.io/test/bash", "registry.example/team/x",
                       "registry.example:500/team/x", "localhost/test/bash"):
        dockerd.good("POST", f"/images/{images['bash']}/tag?repo={repository}&tag=1")
    return images["bash"]


def create(client, image):
    return client.post("/v1/sandboxes", json={"provider": "docker", "image": image})


@pytest.mark.parametrize("image", [
    "evil/bash:1", "test/bashful:1", "docker.io:443/test/bash:1", "test2/test/bash:1",
    "evil.example/docker.io/test/bash:1", "registry.example/team/x:1",
    "registry.example:500/team/x:1", "localhost/test/bash:1", "evil/bash:test", "bash",
    "Docker.io/test/bash:1", "evil/bash@" + DIGEST, "docker.io/evil/bash@" + DIGEST])
def test_tricks_are_denied(own, evil, image):
    answer = create(own.client(), image)
    check_error(answer, 403, "denied", "image", "images_allowed")
    assert image[:80] in answer.json()["error"]["message"], answer


@pytest.mark.parametrize("image", [
    "TEST/bash:1", "test/BASH:1", "test/bash/../../evil/bash:1", "test//bash:1", "/test/bash:1",
    "test/bash/", "test/bash:1@" + DIGEST[:-1], "test/bash:1:2", "evil/bash#test/bash",
    "test/bash%2f..%2fevil", "test/bash?x=evil/bash", "registry.example:5000/team/../evil:1"])
def test_what_is_no_name_is_refused(own, evil, image):
    check_error(create(own.client(), image), 400, "invalid", "image")


def test_without_the_setting_the_same_images_are_made(own, evil):
    """The control: a tenant that may use every image makes those sandboxes."""
    client = own.client(own.make_key("free"))
    for image in ("evil/bash:1", "registry.example:500/team/x:1"):
        made = create(client, image)
        assert made.status == 201, made
        assert client.delete(f"/v1/sandboxes/{made.json()['id']}").status == 204


def test_allowed_ones_are_made(own, images):
    client = own.client()
    for image in (images["bash"], "docker.io/" + images["bash"], images["sh"]):
        box = Box(client, image)
        assert box.exec(argv=["/bin/sh", "-c", "echo in"])["stdout"] == "in\n"
        box.close()

    # A digest is allowed by its repository: this one is not on the machine.
    for image in ("test/bash@" + DIGEST, "registry.example:5000/team/a/b@" + DIGEST):
        check_error(create(client, image), 404, "not_found")


def test_a_tenant_has_patterns_of_its_own(own, images):
    client = own.client(own.make_key("other"))
    check_error(create(client, images["bash"]), 403, "denied", "image", "tenant_images")
    Box(client, images["sh"]).close()


def test_every_door(own):
    client = own.client()
    body = {"provider": "docker", "image": "evil/bash:1"}
    check_error(client.put("/v1/sessions/u/t", json=body), 403, "denied", "image", "images_allowed")
    check_error(client.get("/v1/route?image=evil/bash:1"), 403, "denied", "image")
    assert client.get("/v1/route?image=test/bash:1").json()["provider"] == "docker"

    with Http(own) as session:
        told = session.call("create_sandbox", provider="docker", image="evil/bash:1").result
        assert told["isError"] and "images_allowed" in told["content"][0]["text"], told

    done = own.run("create", "--provider", "docker", "--image", "evil/bash:1", check=False)
    assert done.returncode == 125 and "evil/bash:1" in done.stderr, done
    assert "images_allowed" in done.stderr, done


def test_what_was_made_before_goes_on(own, images):
    """Forks, snapshots and wakes of a sandbox whose image is not allowed any more."""
    client, e2b = own.client(), E2b(own)
    box = Box(client, images["bash"])
    box.exec("echo kept > /workspace/file")
    reload(own, "debian")
    try:
        check_error(create(client, images["bash"]), 403, "denied", "image", "images_allowed")
        assert client.post(f"/sandboxes/{box.info['id']}/pause", json={"memory": False}).status == 204
        assert client.post(f"{box.base}/resume").status == 200
        assert box.exec("cat /workspace/file")["stdout"] == "kept\n"

        forked = e2b.post(f"/sandboxes/{box.info['id']}/fork", {})
        assert forked.status == 201, forked
        other = f"/v1/sandboxes/{forked.json()[0]['sandbox']['sandboxID']}"
        told = client.post(f"{other}/exec", json={"command": "cat /workspace/file"})
        assert told.status == 200 and told.json()["stdout"] == "kept\n", told
        assert client.delete(other).status == 204
    finally:
        reload(own, ALLOWED)
        box.close()


def reload(server, allowed):
    with open(server.config, "w", encoding="utf-8") as file:
        file.write(config(allowed))
    client = server.client()
    before = metric(client, "paddock_config_reloads_total", result="ok")
    server.send_signal(signal.SIGHUP)
    paddock.wait_for(lambda: metric(client, "paddock_config_reloads_total", result="ok") > before,
                     60, "it was reloaded")
