"""Images that the server fetches itself, for sandboxes and when it is asked to; its store by the API."""

import contextlib
import fcntl
import gzip
import json
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paddock_testing import host, images
from paddock_testing import run as paddock
from paddock_testing.images import entry, layer, saved
from paddock_testing.mcp import Http
from paddock_testing.registry import Registry
from paddock_testing.server import Server, check_error

pytestmark = [
    pytest.mark.skipif(not images.has_static_busybox(), reason="there is no static busybox"),
    pytest.mark.skipif(not (Path(paddock.PADDOCK).parent / "paddock-remote").exists(),
                       reason="there is no paddock-remote beside paddock"),
]
SETTINGS = {"requests_per_s": 0, "creates_per_s": 0, "providers": "jail", "pool_max": 0}
MEGABYTE = 1 << 20


class Hold:
    """Sends half of every layer of more than a megabyte, and the rest when it may."""

    def __init__(self):
        self.half, self.go = threading.Event(), threading.Event()
        self.registry = None

    def __call__(self, handler, path):
        data = self.registry.blobs.get(path.rpartition(":")[2], b"") if "/blobs/" in path else b""
        if len(data) < MEGABYTE or self.go.is_set() or handler.headers.get("Range"):
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[:len(data) // 2])
        handler.wfile.flush()
        self.half.set()
        self.go.wait(paddock.seconds(60))
        handler.wfile.write(data[len(data) // 2:])
        return True


@pytest.fixture(scope="module")
def hold():
    return Hold()


@pytest.fixture(scope="module")
def registry(hold):
    with Registry(auth="basic", twist=lambda handler, path: hold(handler, path)) as one:
        hold.registry = one
        yield one


@pytest.fixture(scope="module")
def own(registry, tmp_path_factory):
    auth = tmp_path_factory.mktemp("auth") / "auth.json"
    auth.write_text(json.dumps({"auths": {"registry.test": {"auth": "dGVzdGVyOnNlY3JldCB3b3Jk"}}}))
    auth.chmod(0o600)
    with Server(SETTINGS, config=f"registries = registry.test={registry.url}\nregistry_auth = {auth}\n"
                                 "tenant_images = narrow=registry.test/team/*\n") as server:
        yield server


@pytest.fixture
def client(own):
    return own.client()


@pytest.fixture
def admin(own):
    return own.client(own.run("key", "create", "--admin", "--label", "operator").stdout.strip())


@pytest.fixture
def name(registry, request):
    """An image of its own for each test, with a layer of some megabytes."""
    short = request.node.name.partition("[")[0].replace("_", "-")[5:40].strip("-")
    registry.put(f"team/{short}:1", [images.base(), layer(entry("mark", b"one\n"), entry("noise", os.urandom(3 * MEGABYTE)))])
    return f"registry.test/team/{short}:1"


def reconfigure(own, **settings):
    """Has the server read its file again, with these lines besides."""
    first = own.__dict__.setdefault("first_config", Path(own.config).read_text())
    Path(own.config).write_text(first + "".join(f"{name} = {value}\n" for name, value in settings.items()))
    said = own.log().count("config.reload")
    own.send_signal(signal.SIGHUP)
    paddock.wait_for(lambda: own.log().count("config.reload") > said, 30, "it has read its file")


def events(body):
    """What an event stream says: pairs of event and data."""
    told = []
    for block in body.decode().strip().split("\n\n"):
        head, _, data = block.partition("\ndata: ")
        told.append((head.removeprefix("event: "), json.loads(data)))
    return told


def stream(client, path, body):
    return client.request("POST", path, data=json.dumps(body).encode(),
                          headers={"Accept": "text/event-stream", "Content-Type": "application/json"})


def run(client, made, line):
    return client.post(f"/v1/sandboxes/{made['id']}/exec", json={"command": line}).json()["stdout"]


def end(client, made):
    assert client.delete(f"/v1/sandboxes/{made['id']}").status == 204


def test_a_sandbox_whose_image_is_missing_gets_it(own, client, registry, hold, name):
    hold.go.set()
    registry.requests.clear()
    begun = time.monotonic()
    answer = stream(client, "/v1/sandboxes", {"image": name})
    told = events(answer.body)
    assert [kind for kind, _ in told][-1] == "created" and told[0][0] == "image.pull", told
    last = told[-2][1]
    assert (last["image"], last["layers_done"], last["layers"]) == (name, 2, 2), last
    assert last["bytes_done"] == last["bytes"] > 3 * MEGABYTE
    # Each is a line of the audit log: two a second, and the last one.
    took = time.monotonic() - begun
    assert len(told) - 1 <= 2 + 2 * took, (took, told)
    made = told[-1][1]
    assert made["provider"] == "jail" and run(client, made, "cat /mark") == "one\n"
    end(client, made)
    counted = client.get("/metrics").body.decode()
    assert 'paddock_image_pulls_total{result="ok"} 0' not in counted and 'paddock_image_pull_bytes_total 0' not in counted, counted
    # Nobody but the registry has the password, and the second sandbox asks nobody.
    asked = len(registry.requests)
    again = client.post("/v1/sandboxes", json={"image": name})
    assert again.status == 201 and len(registry.requests) == asked
    end(client, again.json())
    assert "secret" not in own.log() and "c2VjcmV0" not in own.log()


@pytest.mark.parametrize("pull", ["never", "missing", "always"])
def test_when_it_is_fetched(client, registry, hold, name, pull):
    hold.go.set()
    made = client.post("/v1/sandboxes", json={"image": name, "pull": pull})
    if pull == "never":
        check_error(made, 404, "not_found", says=name)
        return
    end(client, made.json())
    # The name means another image now.
    registry.put(name.partition("/")[2], [images.base(), layer(entry("mark", b"two\n"))])
    made = client.post("/v1/sandboxes", json={"image": name, "pull": pull}).json()
    assert run(client, made, "cat /mark") == ("two\n" if pull == "always" else "one\n")
    end(client, made)


def test_what_cannot_be_fetched(own, client):
    check_error(client.post("/v1/sandboxes", json={"image": "registry.test/team/none:1"}), 404, "not_found")
    check_error(client.post("/v1/sandboxes", json={"pull": "always"}), 400, "invalid", "pull")
    check_error(client.post("/v1/sandboxes", json={"image": "a", "pull": "soon"}), 400, "invalid", "pull")
    # An address of the operator's own network, which a tenant must not reach; the control is the registry above.
    for address in ("127.0.0.1:9", "169.254.169.254", "10.0.0.1:5000"):
        refused = client.post("/v1/images", json={"image": f"{address}/x:1"})
        assert refused.status in (403, 502), refused
        assert "which is not asked" in refused.json()["error"]["message"], refused
    narrow = own.client(own.make_key("narrow"))
    for path in ("/v1/sandboxes", "/v1/images"):
        check_error(narrow.post(path, json={"image": "registry.test/other/x:1"}), 403, "denied", "image", "tenant_images")
    assert client.get("/v1/sandboxes").json()["sandboxes"] == []


def test_a_template_is_built_from_what_is_fetched(client, hold, name):
    hold.go.set()
    made = client.post("/v1/templates", json={"name": "fetched", "image": name, "steps": [{"type": "RUN", "args": ["cat /mark > /home/user/seen"]}]})
    assert made.status == 202, made
    url = f"/v1/templates/fetched/builds/{made.json()['build']}"
    paddock.wait_for(lambda: client.get(url).json()["build"]["state"] in ("ready", "error"), 60, "it is built")
    assert client.get(url).json()["build"]["state"] == "ready", client.get(url).body
    box = client.post("/v1/sandboxes", json={"template": "fetched"}).json()
    assert run(client, box, "cat /home/user/seen") == "one\n"
    end(client, box)
    assert client.delete("/v1/templates/fetched").status == 204
    assert client.delete("/v1/build-cache").status in (200, 204)


def test_two_who_want_one_image_fetch_it_once(own, registry, hold, name):
    hold.go.clear()
    hold.half.clear()
    registry.requests.clear()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(own.client().post("/v1/sandboxes", json={"image": name})))
               for _ in range(2)]
    for thread in threads:
        thread.start()
    assert hold.half.wait(paddock.seconds(60))
    hold.go.set()
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [201, 201], answers
    blobs = [path for path, headers in registry.asked("/blobs/")
             if "Authorization" in headers and registry.blobs[path.rpartition(":")[2]][:2] == b"\x1f\x8b"]
    assert len(blobs) == len(set(blobs)), blobs
    for answer in answers:
        end(own.client(), answer.json())


def test_one_that_is_deleted_while_its_image_comes(own, client, hold, name):
    hold.go.clear()
    hold.half.clear()
    answers = []
    maker = threading.Thread(target=lambda: answers.append(own.client().post("/v1/sandboxes", json={"image": name})))
    maker.start()
    assert hold.half.wait(paddock.seconds(60))
    (one,) = client.get("/v1/sandboxes").json()["sandboxes"]
    assert client.delete(f"/v1/sandboxes/{one['id']}").status == 204
    maker.join()  # the registry still sends nothing
    assert answers[0].status == 409, answers
    hold.go.set()
    end(client, client.post("/v1/sandboxes", json={"image": name}).json())


def descendants(pid):
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return children + [below for child in children for below in descendants(child)]


def cmdline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def keeper_of(own):
    for entry_ in Path("/proc").iterdir():
        if entry_.name.isdigit():
            try:
                words = (entry_ / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if b"keeper" in words[1:2] and any(own.run_dir.encode() in word for word in words):
                return int(entry_.name)
    raise AssertionError("there is no keeper")


def pulls(own, name):
    """The commands that the keeper has started to fetch it. Those have children that look the same."""
    keeper = keeper_of(own)
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return [pid for pid in children if {b"image", b"pull", name.encode()} <= set(cmdline(pid).split(b"\0"))]


def fetchers(own):
    return [pid for pid in descendants(keeper_of(own)) if b"paddock-remote" in cmdline(pid)]


def test_a_pull_that_is_killed_brings_no_older_image(own, client, registry, hold, name):
    """The command has said how far it is, and ends without a word of what came of it."""
    hold.go.set()
    old = client.post("/v1/images", json={"image": name}).json()["id"]
    registry.put(name.partition("/")[2], [images.base(), layer(entry("noise", os.urandom(3 * MEGABYTE)))])
    hold.go.clear()
    hold.half.clear()
    with contextlib.closing(client.stream("POST", "/v1/images", json={"image": name}, headers={"Accept": "text/event-stream"})) as answer:
        assert answer.readline() == b"event: image.pull\n"
        assert hold.half.wait(paddock.seconds(60))
        (command,) = pulls(own, name)
        os.kill(int(command), signal.SIGKILL)
        kind, told = events(b"event: image.pull\n" + answer.read())[-1]
    assert (kind, told["error"]["code"]) == ("error", "lost"), told
    paddock.wait_for(lambda: not fetchers(own), 60, "nobody fetches any more")
    hold.go.set()
    assert client.post("/v1/images", json={"image": name}).json()["id"] != old


@pytest.mark.parametrize("who", ["daemon", "puller", "command"])
def test_killed_it_goes_on_where_it_was(own, registry, hold, name, who):
    """kill -9 of the server, of what the keeper started, or of what fetches: half a layer is fetched once."""
    hold.go.clear()
    hold.half.clear()
    registry.requests.clear()
    answers = []

    def make():
        try:
            answers.append(own.client().post("/v1/images", json={"image": name}).status)
        except OSError:
            answers.append(None)

    maker = threading.Thread(target=make)
    maker.start()
    assert hold.half.wait(paddock.seconds(60))
    parts = Path(own.state_dir) / "images" / "blobs"
    paddock.wait_for(lambda: any(one.stat().st_size > MEGABYTE for one in parts.iterdir()), 60, "half of it is kept")
    if who == "daemon":
        own.kill()
    else:
        # Each layer has a puller of its own, one of which may be done.
        for pid in fetchers(own) if who == "puller" else pulls(own, name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    maker.join()
    assert answers[0] != 200, answers
    # Before the rest may come: whoever still fetched would take it.
    paddock.wait_for(lambda: not fetchers(own), 60, "nobody fetches any more")
    if who == "daemon":
        own.start()
    hold.go.set()
    client = own.client()
    assert client.post("/v1/images", json={"image": name}).status == 200
    ranges = [headers["Range"] for _, headers in registry.asked("/blobs/") if "Range" in headers]
    assert ranges and all(int(one[6:-1]) > MEGABYTE for one in ranges), (ranges, registry.asked("/blobs/"))
    made = client.post("/v1/sandboxes", json={"image": name, "pull": "never"}).json()
    assert run(client, made, "cat /mark") == "one\n"
    end(client, made)
    assert not list(parts.iterdir())


def begin_pull(client, name):
    """The answer of one that is under way: it has told something."""
    answer = client.stream("POST", "/v1/images", json={"image": name}, headers={"Accept": "text/event-stream"})
    assert answer.status == 200 and answer.readline() == b"event: image.pull\n", answer
    return contextlib.closing(answer)


def registry_copy(registry, name):
    """The name means another image, with a layer that nobody has yet."""
    registry.put(name.partition("/")[2], [images.base(), layer(entry("noise", os.urandom(3 * MEGABYTE)))])


def test_slow_pulls_keep_nobody_from_the_rest(own, client, hold, name):
    """Three of a tenant, eight of all; lists and removals are for everybody meanwhile. A sandbox waits for its turn."""
    hold.go.clear()
    others = [own.client(own.make_key(f"slow-{at}")) for at in range(3)]
    made = []
    with contextlib.ExitStack() as under_way:
        under_way.callback(hold.go.set)
        for _ in range(3):
            under_way.enter_context(begin_pull(client, name))
        check_error(client.post("/v1/images", json={"image": name}), 503, "capacity", says="for you")
        maker = threading.Thread(target=lambda: made.append(own.client().post("/v1/sandboxes", json={"image": name})))
        maker.start()
        with contextlib.ExitStack() as crowd:
            for at in range(5):
                crowd.enter_context(begin_pull(others[at // 3], name))
            check_error(others[2].post("/v1/images", json={"image": name}), 503, "capacity", says="8 requests")
            assert client.get("/v1/images").status == 200
            check_error(client.get("/v1/images/none%3A1"), 404, "not_found")
            check_error(others[2].get(f"/v1/images/{name.replace('/', '%2F')}"), 404, "not_found")
            assert maker.is_alive() and len(pulls(own, name)) == 8
        paddock.wait_for(lambda: len(pulls(own, name)) == 3, 60, "the others are over")
    maker.join()
    assert made[0].status == 201, made
    end(client, made[0].json())
    paddock.wait_for(lambda: not pulls(own, name), 60, "all of them are over")


def test_pulls_at_the_limit_against_the_end_of_who_waits(own, client, hold, name):
    """Three are under way, three sandboxes wait for their turn and are deleted just as it comes."""
    for _ in range(paddock.rounds(1, 20)):
        hold.go.clear()
        registry_copy(hold.registry, name)
        answers = []

        def make():
            answers.append(own.client().post("/v1/sandboxes", json={"image": name, "pull": "always"}))

        def waiting():
            return [one["id"] for one in client.get("/v1/sandboxes").json()["sandboxes"]]

        makers = [threading.Thread(target=make) for _ in range(3)]
        with contextlib.ExitStack() as under_way:
            under_way.callback(hold.go.set)
            for _ in range(3):
                under_way.enter_context(begin_pull(client, name))
            for one in makers:
                one.start()
            paddock.wait_for(lambda: len(waiting()) == 3, 60, "they wait")
            ends = [threading.Thread(target=lambda at=at: own.client().delete(f"/v1/sandboxes/{at}")) for at in waiting()]
            for one in ends:
                one.start()
        for one in ends + makers:
            one.join(paddock.seconds(120))
            assert not one.is_alive()
        assert len(answers) == 3 and all(one.status == 201 or one.status >= 400 for one in answers), answers
        assert client.get("/v1/sandboxes").json()["sandboxes"] == []
        paddock.wait_for(lambda: not pulls(own, name), 60, "all of them are over")

        # Every place has been given back: three may be under way again, and a fourth may not.
        hold.go.clear()
        registry_copy(hold.registry, name)
        with contextlib.ExitStack() as under_way:
            under_way.callback(hold.go.set)
            for _ in range(3):
                under_way.enter_context(begin_pull(client, name))
            check_error(client.post("/v1/images", json={"image": name}), 503, "capacity", says="for you")
        paddock.wait_for(lambda: not pulls(own, name), 60, "all of them are over")


# --- the store ---------------------------------------------------------------------------------


def test_the_store_by_the_api(client, admin, hold, name, tmp_path):
    hold.go.set()
    told = events(stream(client, "/v1/images", {"image": name}).body)
    assert {kind for kind, _ in told[:-1]} == {"image.pull"} and told[-1][0] == "image", told
    assert {one["state"] for _, one in told[:-1]} <= {"downloading", "unpacking", "done", "shared"}
    image = told[-1][1]
    assert image["names"] == [name] and image["size_bytes"] > 3 * MEGABYTE and len(image["layers"]) == 2
    listed = client.get("/v1/images").json()["images"]
    assert image["id"] in [one["id"] for one in listed]
    quoted = name.replace("/", "%2F")
    for path in (quoted, image["id"]):
        assert client.get(f"/v1/images/{path}").json()["id"] == image["id"]
    check_error(client.get("/v1/images/none%3A1"), 404, "not_found")

    archive = saved(tmp_path / "one.tar", [images.base(), layer(entry("mark", b"brought\n"))], name="ignored:1")
    brought = admin.request("POST", "/v1/image-archives?name=brought:1", data=archive.read_bytes(),
                             headers={"Content-Type": "application/x-tar"})
    assert brought.status == 201 and brought.json()["images"][0]["names"] == ["docker.io/library/brought:1"], brought
    made = client.post("/v1/sandboxes", json={"image": "brought:1"}).json()
    assert run(client, made, "cat /mark") == "brought\n"
    check_error(admin.delete("/v1/images/brought:1"), 409, "conflict", says="in use")
    end(client, made)
    paddock.wait_for(lambda: admin.delete("/v1/images/brought:1").status == 204, 60, "nobody uses it any more")
    check_error(admin.delete("/v1/images/brought:1"), 404, "not_found")

    assert admin.delete(f"/v1/images/{quoted}").status == 204
    assert admin.post("/v1/image-prune", json={}).status == 200
    answer = admin.post("/v1/image-prune", json={})
    assert answer.status == 200 and answer.json()["removed"] == [], answer


def kill_holding_the_store(own, call, *words):
    """What a request is answered whose process is killed while it waits for the store."""
    with open(f"{own.state_dir}/images/lock", "rb") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = pool.submit(call)

        def found():
            return [p for k in own.keepers() for p in host.descendants(k) if host.command_line(p)[1:4] == ["image", *words, "--json"]]

        os.kill(paddock.wait_for(found, 30, "its process is there")[0], signal.SIGKILL)
        return answer.result(paddock.seconds(60))


def test_what_was_killed_does_not_count_as_done(own, client, admin, hold, name):
    hold.go.set()
    quoted = name.replace("/", "%2F")
    assert client.post("/v1/images", json={"image": name}).status == 200
    for word, call in (("rm", lambda: own.client(admin.key).delete(f"/v1/images/{quoted}")),
                       ("prune", lambda: own.client(admin.key).post("/v1/image-prune", json={"max_bytes": 1})),
                       ("ls", lambda: own.client().get("/v1/images"))):
        check_error(kill_holding_the_store(own, call, word), 410, "lost", says="has died over it")
    assert client.get(f"/v1/images/{quoted}").status == 200
    # The control.
    assert admin.delete(f"/v1/images/{quoted}").status == 204
    check_error(client.get(f"/v1/images/{quoted}"), 404, "not_found")


@pytest.mark.parametrize("body", [b"", b"no archive", b"\0" * 4096], ids=["empty", "words", "zeros"])
def test_an_archive_that_is_none(admin, body):
    answer = admin.request("POST", "/v1/image-archives", data=body, headers={"Content-Type": "application/x-tar"})
    check_error(answer, 400, "invalid")


def test_whose_images_they_are(own, client, hold, name):
    """A tenant sees what its patterns mean, and changes nothing that is everybody's."""
    hold.go.set()
    assert client.post("/v1/images", json={"image": name}).status == 200
    archive = Path(own.directory) / "other.tar"
    saved(archive, [images.base()], name="other:1")
    subprocess.run([paddock.PADDOCK, "image", "import", archive], env=own.env, check=True, capture_output=True)
    narrow = own.client(own.make_key("narrow"))
    seen = [one for image in narrow.get("/v1/images").json()["images"] for one in image["names"]]
    assert name in seen and not [one for one in seen if "other" in one]
    assert "docker.io/library/other:1" in [one for image in client.get("/v1/images").json()["images"] for one in image["names"]]
    check_error(narrow.get("/v1/images/other:1"), 403, "denied")
    for method, path in (("DELETE", f"/v1/images/{name.replace('/', '%2F')}"), ("POST", "/v1/image-prune"), ("POST", "/v1/image-archives")):
        check_error(narrow.request(method, path, data=b"{}", headers={"Content-Type": "application/json"}), 403, "denied")


def test_mcp_and_the_command_line(own, registry, hold, name):
    hold.go.set()
    with Http(own) as session:
        answer = session.call("create_sandbox", token="t", image=name, pull="missing")
        *steps, last = answer.events
        assert not last["result"]["isError"], last
        told = [step["params"] for step in steps if "message" in step["params"]]
        assert told and all(one["message"].startswith(f"pulling {name}: ") for one in told), told
        times = [one["progress"] for one in told]
        assert times == sorted(set(times)) and times[-1] > 3 * MEGABYTE
    assert len(registry.asked("/blobs/")) > 0
    done = own.run("create", "--image", name, "--pull", "never", "--json")
    end(own.client(), json.loads(done.stdout))
    done = own.run("create", "--image", name, "--pull", "soon", check=False)
    assert done.returncode and "missing" in done.stderr, done


def test_what_is_too_much_goes(own, client, admin, registry, hold):
    """image_store_max: what nobody has used for longest makes room."""
    hold.go.set()
    names = []
    for at in range(3):
        registry.put(f"team/room-{at}:1", [images.base(), layer(entry(f"noise{at}", os.urandom(3 * MEGABYTE)))])
        names.append(f"registry.test/team/room-{at}:1")
    assert admin.post("/v1/image-prune", json={"max_bytes": 1}).status == 200
    reconfigure(own, image_store_max=8 * MEGABYTE)
    try:
        for one in names:
            assert client.post("/v1/images", json={"image": one}).status == 200
        left = [text for image in client.get("/v1/images").json()["images"] for text in image["names"]]
        assert names[2] in left and names[0] not in left, left
    finally:
        reconfigure(own, image_store_max="50G")


def test_an_archive_of_more_than_there_is_room_for(own, admin, tmp_path):
    """The later image displaces the first: what is left is told, and that is no error."""
    members, manifest = {}, []
    for at in range(2):
        layers = [images.base(), layer(entry(f"big{at}", bytes(3 * MEGABYTE)))]
        text = images.config(layers)
        files = [f"{at}-{number}/layer.tar" for number in range(len(layers))]
        members |= {images.sha(text) + ".json": text, **dict(zip(files, map(gzip.compress, layers)))}
        manifest.append({"Config": images.sha(text) + ".json", "RepoTags": [f"big{at}:1"], "Layers": files})
    path = images.archive(tmp_path / "two.tar", members | {"manifest.json": json.dumps(manifest).encode()})
    assert admin.post("/v1/image-prune", json={"max_bytes": 1}).status == 200
    reconfigure(own, image_store_max=len(images.base()) + 5 * MEGABYTE)
    try:
        brought = admin.request("POST", "/v1/image-archives", data=path.read_bytes(), headers={"Content-Type": "application/x-tar"})
        assert brought.status == 201, brought
        assert [one["names"] for one in brought.json()["images"]] == [["docker.io/library/big1:1"]], brought.body
    finally:
        reconfigure(own, image_store_max="50G")
