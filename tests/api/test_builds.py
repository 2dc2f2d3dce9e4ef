"""Templates that tenants build: by /v1 and at the E2B door, from the server's own templates and from images."""

import concurrent.futures
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import time
import urllib.parse
from pathlib import Path

import pytest

from paddock_testing import images
from paddock_testing import run as paddock
from paddock_testing.images import entry, layer, saved
from paddock_testing.server import Client, Server, check_error

SETTINGS = {"requests_per_s": 0, "creates_per_s": 0, "providers": "jail", "image_pull": "never"}
PATIENCE = paddock.seconds(60)


def clean(client):
    """Sandboxes end with their server; what was built stays."""
    for one in client.get("/v1/templates").json()["templates"]:
        if one["kind"] == "built":
            assert client.delete(f"/v1/templates/{one['id']}").status == 204
    until = time.monotonic() + PATIENCE
    while [s for s in client.get("/v1/sandboxes").json()["sandboxes"] if s["template"].startswith("build/")]:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert client.delete("/v1/build-cache").status == 204


@pytest.fixture(scope="module")
def own():
    with Server(SETTINGS) as server:
        yield server
        clean(server.client())


@pytest.fixture
def client(own):
    return own.client()


def other_tenant(server, name):
    return server.client(server.make_key(name))


def e2b(client, method, path, body=None, expect=None):
    """At the E2B door, which answers errors in its own way."""
    import http.client  # pylint: disable=import-outside-toplevel
    connection = http.client.HTTPConnection(client.host, client.port, timeout=PATIENCE)
    try:
        connection.request(method, path, body=None if body is None else json.dumps(body),
                           headers={"X-API-Key": client.key, "Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    assert expect is None or answer.status == expect, (answer.status, text)
    return json.loads(text) if text else None


def send(url, data):
    """As a client without a key sends a file to the address that it was given."""
    import http.client  # pylint: disable=import-outside-toplevel
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE)
    try:
        connection.request("PUT", parts.path, body=data)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def packed(*members, pack=True):
    data = layer(*members)
    return gzip.compress(data) if pack else data


def start(client, name="mine", **body):
    answer = client.post("/v1/templates", json={"name": name, **body})
    assert answer.status == 202, answer
    return answer.json()


def wait(client, made):
    """Until it has ended; gives the build and its log."""
    log, offset, until = [], 0, time.monotonic() + PATIENCE
    while True:
        got = client.get(f"/v1/templates/{made['template']}/builds/{made['build']}?offset={offset}").json()
        log += got["log"]
        offset = got["next_offset"]
        if got["build"]["state"] in ("ready", "error") and not got["log"]:
            return got["build"], log
        assert time.monotonic() < until, (got, log)
        time.sleep(0.02)


def build(client, name="mine", *, state="ready", **body):
    made = start(client, name, **body)
    got, log = wait(client, made)
    assert got["state"] == state, (got, log)
    return made | {"message": got["message"], "step": got["step"], "texts": [line["text"] for line in log]}


def run(*words):
    return {"type": "RUN", "args": list(words)}


class Box:
    def __init__(self, client, template, **more):
        made = client.post("/v1/sandboxes", json={"template": template, **more})
        assert made.status == 201, made
        self.client, self.info = client, made.json()
        self.url = f"/v1/sandboxes/{self.info['id']}"

    def run(self, line, **more):
        done = self.client.post(f"{self.url}/exec", json={"command": line, **more})
        assert done.status == 200, done
        return done.json()["stdout"]

    def close(self):
        assert self.client.delete(self.url).status == 204

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def put_files(client, data):
    digest = hashlib.sha256(data).hexdigest()
    assert client.put(f"/v1/build-files/{digest}", data=data).status == 204
    return digest


def test_steps_become_what_sandboxes_have(client):
    digest = put_files(client, packed(entry("app/main.txt", b"hello\n"), entry("app/sub/deep.txt", b"deep\n")))
    made = build(client, "steps", template="base", steps=[
        {"type": "ENV", "args": ["COLOUR", "green", "BOTH", "is $COLOUR, \\$COLOUR `id` $(id) \"q\""]},
        {"type": "WORKDIR", "args": ["/srv/app"]},
        {"type": "COPY", "args": ["app", ".", "", "0640"], "files": digest},
        run("pwd > where; id -un > who; echo $COLOUR > colour"),
        {"type": "USER", "args": ["root"]},
        run("id -un > /srv/root; echo done"),
        run("id -un > /srv/app/again", "user"),
        {"type": "WORKDIR", "args": ["sub"]}])
    assert "done" in made["texts"]
    with Box(client, "steps") as box:
        assert box.info["template"] == "steps"
        assert box.run("pwd; cat ../where ../who ../colour ../again /srv/root; echo $BOTH") == (
            "/srv/app/sub\n/srv/app\nuser\ngreen\nuser\nroot\nis green, $COLOUR `id` $(id) \"q\"\n")
        assert box.run("stat -c '%U:%G %a' ../main.txt deep.txt; cat ../main.txt deep.txt") == (
            "user:user 640\nuser:user 640\nhello\ndeep\n")
    # What the request says beats what the template says.
    with Box(client, made["template"], env={"COLOUR": "red"}, cwd="/tmp") as box:
        assert box.run("pwd; echo $COLOUR") == "/tmp\nred\n"


def test_the_list_tells_of_every_template(client):
    made = build(client, "listed:v1", tags=["stable"], template="base", steps=[run("true")])
    found = {one["name"]: one for one in client.get("/v1/templates").json()["templates"]}
    assert {"base", "default", "restricted"} <= {one["name"] for one in found.values() if one["kind"] == "profile"}
    one = found["listed"]
    assert (one["id"], one["kind"], one["state"], one["build"]) == (made["template"], "built", "ready", made["build"])
    assert (one["base"], one["provider"], one["profile"]) == ("template base", "jail", "dev")
    assert {tag["tag"] for tag in one["tags"]} == {"v1", "stable"}
    assert one["size_bytes"] is None or one["size_bytes"] > 0
    shown = client.get("/v1/templates/listed").json()
    assert [b["id"] for b in shown["builds"]] == [made["build"]]
    check_error(client.post("/v1/sandboxes", json={"template": "listed"}), 400, field="template")
    with Box(client, "listed:v1"):
        pass
    assert client.delete("/v1/templates/listed").status == 204
    assert client.get("/v1/templates/listed").status == 404
    check_error(client.delete("/v1/templates/base"), 403)


def test_a_step_that_fails_says_why(client):
    made = build(client, "fails", state="error", template="base", steps=[run("echo before"), run("echo no >&2; exit 7")])
    assert (made["step"], made["message"]) == ("2", "failed to run command 'echo no >&2; exit 7': exit status 7")
    assert {"before", "no"} <= set(made["texts"])
    made = build(client, "fails", state="error", template="base", steps=[run("whoami", "root123")])
    assert made["message"] == ("failed to run command 'whoami': command failed: unauthenticated: "
                               "invalid username: 'root123'")
    assert client.post("/v1/sandboxes", json={"template": "fails"}).status == 400
    sandboxes = client.get("/v1/sandboxes").json()["sandboxes"]
    assert not [s for s in sandboxes if s["template"].startswith("build/")]


def test_what_was_built_is_not_built_again(client):
    steps = [run("date +%N > /home/user/stamp"), run("sleep 2.1"), run("echo last")]
    build(client, "cached", template="base", steps=steps)
    with Box(client, "cached") as box:
        stamp = box.run("cat /home/user/stamp")
    again = build(client, "cached", template="base", steps=steps)
    assert "all of it was built before" in again["texts"] and "last" not in again["texts"]

    # Another last step: what is before it is there.
    build(client, "cached", template="base", steps=[*steps[:2], run("echo other")])
    with Box(client, "cached") as box:
        assert box.run("cat /home/user/stamp") == stamp
    # Forced from the first step on, or altogether.
    for force in ({"steps": [steps[0] | {"force": True}, *steps[1:]]}, {"steps": steps, "force": True}):
        build(client, "cached", template="base", **force)
        with Box(client, "cached") as box:
            assert box.run("cat /home/user/stamp") != stamp
    # Other files under the same hash are other files.
    first, second = (packed(entry("f", text)) for text in (b"one", b"two"))
    copy = [{"type": "COPY", "args": ["f", "/home/user/f"], "files": "a" * 64}]
    for data, says in ((first, "one"), (second, "two")):
        made = e2b(client, "POST", "/v3/templates", {"name": "same-hash"}, 202)
        where = e2b(client, "GET", f"/templates/{made['templateID']}/files/{'a' * 64}", expect=201)
        assert send(where["url"], data) == 200
        build(client, "same-hash", template="base", steps=copy)
        with Box(client, "same-hash") as box:
            assert box.run("cat /home/user/f") == says


def test_a_template_begins_with_another(client):
    build(client, "below", template="base", steps=[run("echo low > /home/user/low"),
                                                   {"type": "ENV", "args": ["A", "1"]}])
    build(client, "above", template="below", steps=[run("echo $A >> /home/user/low")])
    with Box(client, "above") as box:
        assert box.run("cat /home/user/low; echo $A") == "low\n1\n1\n"
    # One that others begin with may go: they have their own files.
    assert client.delete("/v1/templates/below").status == 204
    with Box(client, "above") as box:
        assert box.run("cat /home/user/low") == "low\n1\n"


def test_start_and_ready(client):
    build(client, "served", template="base",
          start="sleep 0.3; echo up > /tmp/up; exec sleep 1000", ready="test -e /tmp/up")
    with Box(client, "served") as box:
        assert box.run("cat /tmp/up; pgrep -c sleep").split()[0] == "up"
        assert "sleep 1000" in box.run("cat /proc/*/cmdline | tr '\\0' ' '")


def test_names_and_steps_are_checked(client):
    for name in ("", "-a", "a/b", "a b", "base", "x" * 64, "a:", ":b", "a:-"):
        answer = client.post("/v1/templates", json={"name": name, "template": "base"})
        assert answer.status in (400, 409), (name, answer)
    for steps in ([{"type": "RUN"}], [{"type": "FLY", "args": ["x"]}], [{"type": "ENV", "args": ["A"]}],
                  [{"type": "ENV", "args": ["A B", "x"]}], [{"type": "COPY", "args": ["a", "b"]}],
                  [{"type": "COPY", "args": ["a", "b"], "files": "../../etc/passwd"}],
                  [{"type": "COPY", "args": ["../a", "b"], "files": "a" * 64}],
                  [{"type": "COPY", "args": ["/etc", "b"], "files": "a" * 64}],
                  [{"type": "COPY", "args": ["a", "b", "x y"], "files": "a" * 64}],
                  [{"type": "COPY", "args": ["a", "b", "", "+x"], "files": "a" * 64}],
                  [{"type": "RUN", "args": ["x"], "files": "a" * 64}], [{"type": "USER", "args": []}]):
        check_error(client.post("/v1/templates", json={"name": "bad", "template": "base", "steps": steps}), 400)
    check_error(client.post("/v1/templates", json={"name": "bad", "template": "nothing"}), 404, field="template")
    check_error(client.post("/v1/templates", json={"name": "bad", "template": "cloud"}), 501, field="template")
    check_error(client.post("/v1/templates", json={"name": "bad", "template": "base", "image": "x"}), 400, field="image")
    assert client.get("/v1/templates/bad").status == 404
    check_error(client.put("/v1/build-files/" + "b" * 64, data=b"x"), 400, says="digest")
    check_error(client.put("/v1/build-files/nothing", data=b"x"), 400, field="digest")
    assert client.get("/v1/build-files/" + "b" * 64).json() == {"present": False}


def test_tenants_do_not_see_each_others(own, client):
    build(client, "private", template="base", steps=[run("echo mine > /home/user/f")])
    made = client.get("/v1/templates/private").json()
    digest = put_files(client, packed(entry("f", b"secret")))
    with_key = other_tenant(own, "stranger")
    assert "private" not in {one["name"] for one in with_key.get("/v1/templates").json()["templates"]}
    for name in ("private", made["id"]):
        assert with_key.get(f"/v1/templates/{name}").status == 404
        assert with_key.delete(f"/v1/templates/{name}").status == 404
        assert with_key.get(f"/v1/templates/{name}/builds/{made['build']}").status == 404
        assert with_key.delete(f"/v1/templates/{name}/builds/{made['build']}").status == 404
        assert with_key.post("/v1/sandboxes", json={"template": name}).status == 400
        assert with_key.post("/v1/templates", json={"name": "x", "template": name}).status == 404
    # Files of another tenant are not there, and neither are layers: it is built anew.
    assert with_key.get(f"/v1/build-files/{digest}").json() == {"present": False}
    build(with_key, "thief", state="error", template="base",
          steps=[{"type": "COPY", "args": ["f", "/home/user/f"], "files": digest}])
    again = build(with_key, "private", template="base", steps=[run("echo mine > /home/user/f")])
    assert "all of it was built before" not in again["texts"]
    with Box(client, "private") as box:
        assert box.run("cat /home/user/f") == "mine\n"
    clean(with_key)


def test_a_build_is_cancelled(client):
    made = start(client, "long", template="base", steps=[run("sleep 1000")])
    assert client.delete(f"/v1/templates/long/builds/{made['build']}").status == 204
    got, _ = wait(client, made)
    assert (got["state"], got["message"]) == ("error", "the build was cancelled")
    check_error(client.delete(f"/v1/templates/long/builds/{made['build']}"), 409)


def test_builds_of_a_tenant_take_turns(client):
    made = [start(client, "turns", template="base", steps=[run("sleep 1000")]) for _ in range(20)]
    check_error(client.post("/v1/templates", json={"name": "turns", "template": "base"}), 429)
    running = [s for s in client.get("/v1/sandboxes").json()["sandboxes"] if s["template"].startswith("build/")]
    assert len(running) <= 2
    assert client.delete("/v1/templates/turns").status == 204
    for one in made:
        assert client.get(f"/v1/templates/turns/builds/{one['build']}").status == 404
    until = time.monotonic() + PATIENCE
    while [s for s in client.get("/v1/sandboxes").json()["sandboxes"] if s["template"].startswith("build/")]:
        assert time.monotonic() < until
        time.sleep(0.05)
    build(client, "after-turns", template="base")


def test_tags_at_the_e2b_door(client):
    made = e2b(client, "POST", "/v3/templates", {"name": "tagged:v1", "cpuCount": 1, "memoryMB": 1024}, 202)
    assert made["tags"] == ["v1"] and made["aliases"] == ["tagged"] and not made["public"]
    status = f"/templates/{made['templateID']}/builds/{made['buildID']}/status"
    assert e2b(client, "GET", status, expect=200)["status"] == "waiting"
    path = f"/v2/templates/{made['templateID']}/builds/{made['buildID']}"
    e2b(client, "POST", path, {"fromTemplate": "base", "steps": [
        {"type": "RUN", "args": ["seq 150"], "force": True}], "force": False}, 202)
    e2b(client, "POST", path, {"fromTemplate": "base"}, 409)
    until, texts = time.monotonic() + PATIENCE, []
    while True:
        got = e2b(client, "GET", f"{status}?logsOffset={len(texts)}", expect=200)
        assert len(got["logEntries"]) <= 100
        texts += [line["message"] for line in got["logEntries"]]
        if got["status"] == "ready" and not got["logEntries"]:
            break
        assert got["status"] in ("building", "ready") and time.monotonic() < until, got
        time.sleep(0.02)
    assert [str(n) for n in range(1, 151)] == [text for text in texts if text.isdigit()]

    got = e2b(client, "POST", "/templates/tags", {"target": "tagged:v1", "tags": ["production", "default"]}, 201)
    assert got["buildID"] == made["buildID"] and set(got["tags"]) == {"v1", "production", "default"}
    for tag in (":x", "tagged:", "a/b"):
        e2b(client, "POST", "/templates/tags", {"target": "tagged:v1", "tags": [tag]}, 400)
    e2b(client, "POST", "/templates/tags", {"target": "tagged:v9", "tags": ["x"]}, 404)
    e2b(client, "DELETE", "/templates/tags", {"name": "tagged", "tags": ["v1", "nothing"]}, 204)
    tags = e2b(client, "GET", f"/templates/{made['templateID']}/tags", expect=200)
    assert {tag["tag"] for tag in tags} == {"production", "default"}

    assert e2b(client, "GET", "/templates/aliases/tagged", expect=200)["templateID"] == made["templateID"]
    e2b(client, "GET", "/templates/aliases/untagged", expect=404)
    assert made["templateID"] in {t["templateID"] for t in e2b(client, "GET", "/templates", expect=200)}
    box = e2b(client, "POST", "/v2/sandboxes", {"templateID": "tagged"}, 201)
    assert box["templateID"] == "tagged"
    e2b(client, "DELETE", f"/sandboxes/{box['sandboxID']}", expect=204)
    e2b(client, "DELETE", f"/templates/{made['templateID']}", expect=204)
    e2b(client, "GET", "/templates/aliases/tagged", expect=404)


def test_a_tag_moves_to_the_younger_build(client):
    first = build(client, "moving", template="base", steps=[run("echo 1 > /home/user/n")])
    second = build(client, "moving", template="base", steps=[run("echo 2 > /home/user/n")])
    assert first["template"] == second["template"]
    with Box(client, "moving") as box:
        assert box.run("cat /home/user/n") == "2\n"
    # Nothing leads to the first one any more.
    assert [b["id"] for b in client.get("/v1/templates/moving").json()["builds"]] == [second["build"]]


def test_an_address_for_files_is_good_once(client):
    made = e2b(client, "POST", "/v3/templates", {"name": "once"}, 202)
    where = e2b(client, "GET", f"/templates/{made['templateID']}/files/{'c' * 64}", expect=201)
    assert where["present"] is False
    assert send(where["url"], b"x") == 200
    assert send(where["url"], b"x") == 401
    assert send(where["url"][:-64] + "0" * 64, b"x") == 401
    assert e2b(client, "GET", f"/templates/{made['templateID']}/files/{'c' * 64}", expect=201)["present"] is True
    e2b(client, "GET", f"/templates/{made['templateID']}/files/..%2F..%2Fx", expect=400)
    e2b(client, "GET", f"/templates/nothing/files/{'c' * 64}", expect=404)


@pytest.mark.parametrize("signal", ["kill", "stop"])
def test_a_build_that_its_server_left_has_failed(signal):
    with Server(SETTINGS | {"pool_max": 0}) as server:
        client = server.client()
        made = start(client, "cut", template="base", steps=[run("echo begun; sleep 1000")])
        waiting = e2b(client, "POST", "/v3/templates", {"name": "later"}, 202)
        until = time.monotonic() + PATIENCE
        while not [s for s in client.get("/v1/sandboxes").json()["sandboxes"] if s["state"] == "running"]:
            assert time.monotonic() < until
            time.sleep(0.02)
        client.close()
        getattr(server, signal)()
        server.start()
        client = server.client()
        got, _ = wait(client, made)
        assert got["state"] == "error", got
        assert got["message"] == ("the server ended while it was built: build it again" if signal == "kill"
                                  else "the server was stopped")
        assert client.get("/v1/sandboxes").json()["sandboxes"] == []
        assert client.get("/v1/templates/later").json()["builds"][0]["id"] == waiting["buildID"]
        build(client, "cut", template="base", steps=[run("true")])
        clean(client)


needs_images = pytest.mark.skipif(
    not images.has_static_busybox() or not (Path(paddock.PADDOCK).parent / "paddock-remote").exists(),
    reason="there is no static busybox, or no paddock-remote beside paddock")


@needs_images
def test_an_image_gets_its_users_and_keeps_its_variables(own, client):
    path = Path(own.directory) / "image.tar"
    names = ("mkdir", "cp", "chown", "chmod", "rm", "mv", "whoami")
    programs = layer(*(images.link("bin/" + name, "busybox") for name in names),
                     entry("etc/group", b"root:x:0:\n"))
    saved(path, [images.base(), programs], name="small:1", Env=["PATH=/bin:/mine"])
    subprocess.run([paddock.PADDOCK, "image", "import", str(path)], env=own.env, check=True, capture_output=True,
                   stdin=subprocess.DEVNULL, timeout=PATIENCE)
    digest = put_files(client, packed(entry("f", b"file\n"), pack=False))
    build(client, "of-image", image="small:1", steps=[
        run('test "$(whoami)" = user'), run('test "$(whoami)" = root', "root"),
        {"type": "ENV", "args": ["PATH", "/opt/bin:$PATH"]},
        {"type": "COPY", "args": ["f", "/opt/bin/"], "files": digest}])
    with Box(client, "of-image") as box:
        assert box.info["profile"] == "dev"
        assert box.run("whoami; echo $PATH; cat /opt/bin/f; cat /etc/passwd") == (
            "user\n/opt/bin:/opt/paddock/bin:/bin:/mine\nfile\n"
            "user:x:1000:1000::/home/user:/bin/sh\nroot:x:0:0::/:/bin/sh\nbob:x:1234:1235::/:/bin/sh\n")
    made = build(client, "of-nothing", state="error", image="missing:1")
    assert "missing:1" in made["message"] and made["step"] == "base"


# ---- paddock template ----

def template(server, *words, check=True):
    env = {**server.env, "PADDOCK_URL": server.url, "PADDOCK_API_KEY": server.key}
    done = subprocess.run([paddock.PADDOCK, "template", *map(str, words)], env=env, capture_output=True, text=True,
                          check=False, stdin=subprocess.DEVNULL, timeout=PATIENCE)
    assert not check or done.returncode == 0, (words, done)
    return done


def test_the_command_builds_a_dockerfile(own, client, tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "a.txt").write_text("alpha\n")
    (tmp_path / "app" / "b.md").write_text("beta\n")
    (tmp_path / "outside").symlink_to("/etc/passwd")
    (tmp_path / "Dockerfile").write_text("""FROM nothing
COPY app/*.txt outside /srv/
COPY --chown=user app /home/user/app
RUN id -un > /srv/who && \\
    echo done
USER user
CMD ["sleep", "1000"]
""")
    done = template(own, "build", "--template", "base", tmp_path, "--name", "typed:v1", "--tag", "default", "--memory", "256M")
    assert "] done\n" in done.stdout and "[3] COPY app/*.txt /srv/" in done.stdout, done
    with Box(client, "typed") as box:
        # A link stays a link: nothing from outside of the context is sent.
        assert box.run("cat /srv/a.txt /srv/who; ls /srv/b.md; readlink /srv/outside; stat -c %U /home/user/app/b.md") == (
            "alpha\nroot\n/etc/passwd\nuser\n")
        assert box.info["limits"]["memory_bytes"] == 256 << 20
        assert "sleep 1000" in box.run("cat /proc/*/cmdline | tr '\\0' ' '")
    again = template(own, "build", "--template", "base", tmp_path, "--name", "typed:v1", "-q")
    assert again.stdout.strip() == client.get("/v1/templates/typed").json()["id"]
    assert "typed " in template(own, "ls").stdout
    assert json.loads(template(own, "inspect", "typed").stdout)["name"] == "typed"
    assert template(own, "rm", "typed").returncode == 0
    template(own, "prune")

    (tmp_path / "Dockerfile").write_text("FROM nothing\nCOPY missing /x\n")
    for words, status, says in ((("build", tmp_path), 2, "there is no 'missing'"),
                                (("build", tmp_path / "nothing"), 2, "No such file"), (("build", "--fly"), 2, "--fly"),
                                (("fly",), 2, "build, ls"), (("rm", "nothing"), 125, "no template"),
                                (("inspect",), 2, "takes the name"), (("build", "a", "b"), 2, "takes one")):
        done = template(own, *words, check=False)
        assert done.returncode == status and says in done.stderr, (words, done)
    (tmp_path / "Dockerfile").write_text("FROM nothing\nARG A\n")
    assert "line 2" in template(own, "build", tmp_path, check=False).stderr
    (tmp_path / "Dockerfile").write_text("FROM nothing\nRUN exit 3\n")
    done = template(own, "build", "--template", "base", "--name", "no", tmp_path, check=False)
    assert done.returncode == 125 and "at step 3: failed to run command 'exit 3': exit status 3" in done.stderr, done


# ---- races ----

def beside(*calls):
    """Does them at the same time; gives what each returned."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [done.result(PATIENCE) for done in [pool.submit(call) for call in calls]]


def check_race(client, answer, name, text, says):
    """It was refused because its base is gone, failed because of that, or is whole. What it was."""
    if answer.status != 202:
        check_error(answer, 404)
        return "refused"
    got, log = wait(client, answer.json())
    if got["state"] == "error":
        assert got["step"] == "base" and re.search(says, got["message"]), (got, log)
        return "failed"
    with Box(client, name) as box:
        assert box.run("cat /home/user/mark /home/user/more") == text + "more\n"
    return "ready"


MORE = [run("echo more > /home/user/more")]


def test_builds_race_against_the_end_of_their_template(own, client):
    """A build has all of what it begins with, or is told that it is gone: never half of it, never another's."""
    seen = set()
    for at in range(paddock.rounds(6, 600)):
        build(client, "below", template="base", steps=[run(f"echo {at} > /home/user/mark")], force=True)
        rest = at % 3 * 0.01  # sometimes the build has begun
        made, gone = beside(lambda: own.client().post("/v1/templates", json={
            "name": "above", "template": "below", "steps": MORE, "force": True}),
            lambda rest=rest: (time.sleep(rest), own.client().delete("/v1/templates/below"))[1])
        assert gone.status == 204, gone
        seen.add(check_race(client, made, "above", f"{at}\n", "below"))
        # The control: its end holds.
        check_error(client.post("/v1/templates", json={"name": "above", "template": "below", "steps": MORE}), 404)
        client.delete("/v1/build-cache")
    assert seen, "nothing was tried"


@needs_images
def test_builds_race_against_the_removal_of_their_image(own, client):
    path = Path(own.directory) / "race.tar"
    programs = layer(*(images.link("bin/" + name, "busybox") for name in ("mkdir", "cp", "chown", "chmod", "mv", "whoami")),
                     entry("etc/group", b"root:x:0:\n"), entry("home/user/mark", b"image\n"))
    saved(path, [images.base(), programs], name="race:1")

    def image(*words):
        return subprocess.run([paddock.PADDOCK, "image", *words], env=own.env, check=False, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=PATIENCE)

    removed = 0
    for at in range(paddock.rounds(4, 400)):
        assert image("import", str(path)).returncode == 0
        rest = at % 3 * 0.03
        made, gone = beside(lambda: own.client().post("/v1/templates", json={
            "name": "imaged", "image": "race:1", "steps": MORE, "force": True}),
            lambda rest=rest: (time.sleep(rest), image("rm", "race:1"))[1])
        assert gone.returncode == 0 or "in use" in gone.stderr, gone
        removed += gone.returncode == 0
        check_race(client, made, "imaged", "image\n", "race:1|image [0-9a-f]{12} is being removed")
        client.delete("/v1/templates/imaged")
        client.delete("/v1/build-cache")
    until = time.monotonic() + PATIENCE
    while image("rm", "race:1").returncode == 0 or "in use" in image("rm", "race:1").stderr:
        assert time.monotonic() < until, "the image stays in use"
        time.sleep(0.05)
