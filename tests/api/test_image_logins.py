"""Credentials that come with a build of E2B's clients (fromImageRegistry): they fetch its image, from a registry that asks for
them, and are kept nowhere. What was fetched with them is that tenant's alone."""

import json
import shutil
from pathlib import Path

import pytest
from paddock_testing import engine, host, images
from paddock_testing import run as paddock
from paddock_testing.e2b_http import E2b, check_refused
from paddock_testing.images import entry, layer
from paddock_testing.server import Server, check_error

pytestmark = [
    pytest.mark.skipif(not images.has_static_busybox(), reason="there is no static busybox"),
    pytest.mark.skipif(not (Path(paddock.PADDOCK).parent / "paddock-remote").exists(),
                       reason="there is no paddock-remote beside paddock"),
    pytest.mark.skipif(not shutil.which("docker-registry"), reason="there is no docker-registry"),
]
PASSWORD = "sesame-4711-of-nobody"
IMAGE = "registry.test/team/demo:1"
GOOD = {"type": "registry", "username": "tester", "password": PASSWORD}


@pytest.fixture(scope="module")
def registry():
    one = engine.Registry("tester", PASSWORD).start()
    try:
        one.upload("team/demo:1", [images.base(), layer(entry("mark", b"one\n"))])
        yield one
    finally:
        one.close()


@pytest.fixture(scope="module")
def own(registry):
    """A server without credentials of its own."""
    with Server({"requests_per_s": 0, "creates_per_s": 0, "providers": "jail", "pool_max": 0, "image_pull": "missing"},
                config=f"registries = registry.test=http://{registry.address}\n") as server:
        yield server


def begin(own, client, name, login, image=IMAGE):
    e2b = E2b(own, client.key)
    made = e2b.post("/v3/templates", {"name": name}).json()
    url = f"/templates/{made['templateID']}/builds/{made['buildID']}"
    body = {"fromImage": image, "steps": [{"type": "RUN", "args": ["cat /mark > /home/user/seen"]}]}
    return url, e2b.post(f"/v2{url}", {**body, **({} if login is None else {"fromImageRegistry": login})})


def build(own, client, name, login):
    url, answer = begin(own, client, name, login)
    assert answer.status == 202, answer

    def state():
        return client.get(f"{url}/status").json()

    paddock.wait_for(lambda: state()["status"] in ("ready", "error"), 60, "the build has ended")
    return state()


def names(client):
    return [name for one in client.get("/v1/images").json()["images"] for name in one["names"]]


def test_they_fetch_the_image_and_are_kept_nowhere(own):
    client, other = own.client(), own.client(own.make_key("other"))
    bad = [{**GOOD, "password": "another"}, None, {"type": "gcp", "serviceAccountJson": '{"type": "service_account"}'}]
    for login in bad[:paddock.rounds(1, 3)]:
        told = build(own, client, "demo", login)
        assert told["status"] == "error" and names(client) == [], (login, told)

    told = build(own, client, "demo", GOOD)
    assert told["status"] == "ready", told
    box = client.post("/v1/sandboxes", json={"template": "demo"}).json()
    assert client.post(f"/v1/sandboxes/{box['id']}/exec", json={"command": "cat /home/user/seen"}).json()["stdout"] == "one\n"
    assert client.delete(f"/v1/sandboxes/{box['id']}").status == 204

    # It has a name of its tenant's alone: others neither see it nor get it, and are not given what they name as it was named.
    (name,) = names(client)
    assert name.endswith(".own.invalid/registry.test/team/demo:1")
    image = client.get("/v1/images").json()["images"][0]["id"]
    assert other.get("/v1/images").json()["images"] == []
    for text in (name, image):
        assert other.get("/v1/images/" + text.replace("/", "%2F")).status in (403, 404)
    check_error(other.post("/v1/sandboxes", json={"image": name}), 403, "denied", "image")
    check_error(other.post("/v1/sandboxes", json={"image": image}), 404, "not_found", "image")
    by_id = client.post("/v1/sandboxes", json={"image": image})
    assert by_id.status == 201 and client.delete(f"/v1/sandboxes/{by_id.json()['id']}").status == 204, by_id
    for login in bad[:paddock.rounds(1, 3)]:
        assert build(own, other, "demo", login)["status"] == "error"
    control = client.post("/v1/sandboxes", json={"image": name})
    assert control.status == 201, control
    assert client.delete(f"/v1/sandboxes/{control.json()['id']}").status == 204

    # The control: what is kept is found.
    assert host.files_with(own.state_dir, b"registry.test/team/demo:1")
    for word in (PASSWORD, "another", "service_account"):
        assert not host.files_with(own.state_dir, word.encode()) and word not in own.log()
    assert PASSWORD not in json.dumps([told, client.get("/templates").json(), client.get("/v1/templates").json()])
    for one in (client, other):
        assert one.delete("/v1/templates/demo").status in (204, 404)
        assert one.delete("/v1/build-cache").status in (200, 204)


@pytest.mark.parametrize("login,says", [
    ({"type": "aws", "awsAccessKeyId": "A", "awsSecretAccessKey": "B", "awsRegion": "C"}, "get-login-password"),
    ({"type": "else"}, "type"), ({"type": "registry", "username": "a"}, "password"), ({"type": "gcp"}, "serviceAccountJson"),
    ({"type": "registry", "username": "a:b", "password": "c"}, "colon"), ({**GOOD, "password": "x" * 5000}, "5000 bytes"), ([], "fromImageRegistry")])
def test_those_that_cannot_be_used_are_refused(own, login, says):
    answer = begin(own, own.client(), "refused", login)[1]
    check_refused(answer, 400, says)
    assert b"xxx" not in answer.body
    own.client().delete("/v1/templates/refused")


def test_they_are_for_an_image(own):
    check_refused(begin(own, own.client(), "none", GOOD, image="")[1], 400, "fromImage")
