"""Images from a registry: what is fetched is what was meant, once, and nobody else hears the password."""

import base64
import gzip
import http.client
import json
import os
import pty
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from paddock_testing import engine, images
from paddock_testing import run as paddock
from paddock_testing.images import entry, layer
from paddock_testing.registry import MEDIA, Registry

pytestmark = [
    pytest.mark.skipif(not images.has_static_busybox(), reason="there is no static busybox"),
    pytest.mark.skipif(not (Path(paddock.PADDOCK).parent / "paddock-remote").exists(),
                       reason="there is no paddock-remote beside paddock"),
]
MARK = layer(entry("mark", b"one\n"))
NOISE = layer(entry("noise", os.urandom(3 << 20)))


class Store:
    def __init__(self, place):
        self.place = place
        self.env = paddock.clean_environment({"PADDOCK_STATE_DIR": str(place / "state"), "PADDOCK_RUN_DIR": str(place / "run")})

    def argv(self, *words):
        return [paddock.PADDOCK, *map(str, words)]

    def call(self, *words, **more):
        return subprocess.run(self.argv(*words), env=self.env, capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=paddock.seconds(60), **more)

    def pull(self, registry, name="demo:1", *words):
        return self.call("image", "pull", "--registry", registry.url, *words, f"{registry.address}/{name}")

    def ok(self, registry, name="demo:1", *words):
        done = self.pull(registry, name, *words)
        assert done.returncode == 0, done
        return done

    def refused(self, registry, says, name="demo:1", *words):
        done = self.pull(registry, name, *words)
        assert done.returncode in (2, 125) and says in done.stderr, done
        assert self.call("image", "ls").stdout == ""
        assert all(len(one.name) == 64 for one in (self.place / "state/images/layers").glob("*"))
        return done

    def cat(self, registry, path="/mark", name="demo:1"):
        done = self.call("run", "--image", f"{registry.address}/{name}", "--", "/bin/cat", path)
        assert done.returncode == 0, done
        return done.stdout

    def credentials(self, registry, word="tester:secret word"):
        path = self.place / "auth.json"
        path.write_text(json.dumps({"auths": {registry.address: {"auth": base64.b64encode(word.encode()).decode()}}}))
        return "--auth", path

    def parts(self):
        return sorted((self.place / "state/images/blobs").glob("*"))


@pytest.fixture
def store():
    place = Path(tempfile.mkdtemp(prefix="paddock-pull-", dir="/var/tmp"))
    place.chmod(0o755)
    yield Store(place)
    shutil.rmtree(place)


@pytest.fixture
def registry():
    with Registry() as one:
        one.put("demo:1", [images.base(), MARK])
        yield one


def descendants(pid):
    """Of a pull: its layers' processes, and what those have started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return children + [below for child in children for below in descendants(child)]


def test_an_image_is_pulled_once_and_its_layers_are_shared(store, registry):
    assert store.ok(registry).stdout.startswith("sha256:")
    assert store.cat(registry) == "one\n" and store.parts() == []
    registry.put("other:1", [images.base(), layer(entry("mark", b"other\n"))])
    registry.requests.clear()
    assert "is there" in store.ok(registry, "other:1").stderr
    assert store.cat(registry, name="other:1") == "other\n"
    assert len(registry.asked("/blobs/")) == 2, "a configuration and one layer"
    assert not any("Authorization" in headers for _, headers in registry.requests)


def test_by_digest_and_by_platform(store, registry):
    digest = registry.put("team/demo:2", [images.base(), MARK])
    other = registry.put("team/demo:arm", [images.base(), layer(entry("mark", b"arm\n"))])
    registry.name("team/demo:many", {"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": [
        {"mediaType": MEDIA + "manifest.v1+json", "digest": one, "size": len(registry.manifests[f"team/demo/{one}"]),
         "platform": {"os": "linux", "architecture": what}}
        for one, what in ((other, "s390x"), (digest, "amd64" if os.uname().machine == "x86_64" else "arm64"))]})
    store.ok(registry, "team/demo:many")
    assert store.cat(registry, name="team/demo:many") == "one\n"
    store.ok(registry, f"team/demo@{digest}")
    assert store.cat(registry, name=f"team/demo@{digest}") == "one\n"


@pytest.mark.parametrize("auth", ["basic", "token"])
def test_with_a_password(store, auth):
    with Registry(auth) as registry:
        registry.put("demo:1", [images.base(), MARK])
        store.refused(registry, "--auth")
        store.refused(registry, "does not take the credentials", "demo:1",
                      *store.credentials(registry, "tester:wrong"))
        store.ok(registry, "demo:1", *store.credentials(registry))
        assert store.cat(registry) == "one\n"


def test_the_password_goes_to_nobody_else(store):
    """Blobs are elsewhere: that server gets neither password nor token."""
    with Registry() as elsewhere:
        def twist(handler, path):
            if "/blobs/" not in path or not registry.is_known(handler):
                return False
            Registry.send(handler, 307, b"", {"Location": elsewhere.url + path})
            return True
        with Registry("token", twist) as registry:
            registry.put("demo:1", [images.base(), MARK])
            elsewhere.blobs = registry.blobs
            store.ok(registry, "demo:1", *store.credentials(registry))
            assert len(elsewhere.requests) == 3
            assert not any("Authorization" in headers for _, headers in elsewhere.requests)
            # The control: the registry itself got both.
            given = {headers.get("Authorization", "").split(" ")[0] for _, headers in registry.requests}
            assert {"Basic", "Bearer"} <= given


@pytest.mark.parametrize("how, says", [
    ("wrong blob", "paddock: layer "), ("longer blob", "sends more"), ("shorter blob", "sends less"), ("wrong config", "changed"),
    ("wrong manifest", "has sent"), ("endless manifest", "bytes"), ("loop", "leads to another place"),
    ("sha512", "no digest"), ("digest with a path", "no digest"), ("index in index", "nested"),
    ("no challenge", "not known"), ("realm that is no address", "no address"), ("bad location", "no address"),
    ("not found", "404"), ("not JSON", "JSON")])
def test_what_a_registry_should_not_do(store, how, says):
    layers = [images.base(), MARK]

    def twist(handler, path):
        send = Registry.send
        if how == "loop" and "/manifests/" in path:
            send(handler, 302, b"", {"Location": path})
        elif how == "bad location" and "/manifests/" in path:
            send(handler, 302, b"", {"Location": "file:///etc/passwd"})
        elif how == "no challenge":
            send(handler, 401, b"", {"WWW-Authenticate": "Negotiate"})
        elif how == "realm that is no address":
            send(handler, 401, b"", {"WWW-Authenticate": 'Bearer realm="file:///etc/passwd"'})
        elif how == "endless manifest" and "/manifests/" in path:
            send(handler, 200, b"{" + b" " * (5 << 20) + b"}")
        elif how == "not JSON" and "/manifests/" in path:
            send(handler, 200, b"<html>")
        elif how == "not found":
            send(handler, 404, b"{}")
        else:
            return False
        return True

    def change(manifest):
        blob = manifest["layers"][1]["digest"].removeprefix("sha256:")
        if how == "wrong config":
            key = manifest["config"]["digest"].removeprefix("sha256:")
            registry.blobs[key] = registry.blobs[key].replace(b"linux", b"Linux")
        if how == "wrong blob":
            registry.blobs[blob] = registry.blobs[blob][:-1] + b"\xff"
        if how == "longer blob":
            registry.blobs[blob] += b"x"
        if how == "shorter blob":
            registry.blobs[blob] = registry.blobs[blob][:-1]
        if how == "sha512":
            manifest["layers"][1]["digest"] = "sha512:" + "0" * 128
        if how == "digest with a path":
            manifest["layers"][1]["digest"] = "sha256:" + "../" * 21 + "a"

    with Registry(twist=twist) as registry:
        digest = registry.put("demo:1", layers, change=change)
        name = "demo:1"
        if how == "wrong manifest":
            registry.manifests[f"demo/{digest}"] += b" "
            name = "demo@" + digest
        if how == "index in index":
            media = MEDIA + "index.v1+json"
            inner = "demo:1"
            for depth in range(4):
                text = registry.manifests["demo/" + digest]
                kind = MEDIA + "manifest.v1+json" if depth == 0 else media
                digest = registry.name(inner, {"schemaVersion": 2, "mediaType": media, "manifests": [
                    {"mediaType": kind, "digest": digest, "size": len(text)}]})
        store.refused(registry, says, name)
        if "blob" in how:
            # Nothing of it is in the way of the next one, whose registry is honest.
            registry.put("demo:1", layers)
            store.ok(registry)
            assert store.cat(registry) == "one\n"


@pytest.mark.skipif(not os.environ.get("PADDOCK_NIGHTLY"), reason="at night: a minute")
def test_a_registry_that_sends_a_byte_a_second(store):
    """It is given up when it has sent too little for a minute; what has come stays."""
    done = threading.Event()

    def twist(handler, path):
        data = registry.blobs.get(path.rpartition(":")[2], b"") if "/blobs/" in path else b""
        if data[:2] != b"\x1f\x8b":
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        for at in range(len(data)):
            handler.wfile.write(data[at:at + 1])
            if done.wait(1):
                break
        return True

    with Registry(twist=twist) as registry:
        registry.put("demo:1", [images.base(), MARK])
        said = subprocess.run(store.argv("image", "pull", "-q", "--registry", registry.url, f"{registry.address}/demo:1"), env=store.env,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=paddock.seconds(200))
        done.set()
    assert said.returncode == 124 and "slow" in said.stderr.lower(), said
    assert any(part.stat().st_size > 10 for part in store.parts())


def test_addresses_in_a_manifest_are_not_asked(store):
    """`urls` of foreign layers: a layer comes from the registry, or not at all."""
    with Registry() as elsewhere, Registry() as registry:
        def change(manifest):
            one = manifest["layers"][1]
            one["mediaType"] = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
            one["urls"] = [f"{elsewhere.url}/v2/demo/blobs/{one['digest']}"]

        registry.put("demo:1", [images.base(), MARK], change=change)
        elsewhere.blobs = dict(registry.blobs)
        del registry.blobs[json.loads(registry.manifests["demo/1"])["layers"][1]["digest"].removeprefix("sha256:")]
        done = store.pull(registry)
        assert done.returncode in (2, 125) and elsewhere.requests == [], done
        # The control: from the registry itself it comes.
        registry.put("demo:1", [images.base(), MARK])
        store.ok(registry)
        assert store.cat(registry) == "one\n"


def test_a_blob_is_what_has_come_whatever_its_head_says(store):
    """A head that tells of another coding changes no byte of what the digest is made of."""
    def twist(handler, path):
        data = registry.blobs.get(path.rpartition(":")[2])
        if data is None:
            return False
        Registry.send(handler, 200, gzip.compress(data) if lie else data, {"Content-Encoding": "gzip"})
        return True

    with Registry(twist=twist) as registry:
        registry.put("demo:1", [images.base(), MARK])
        for lie in (True, False):
            done = store.pull(registry)
            assert (done.returncode == 0) != lie, done
        assert store.cat(registry) == "one\n"
        assert not any("Accept-Encoding" in headers for _, headers in registry.requests)


def test_private_addresses_are_asked_only_where_the_operator_says_so(store, registry):
    for name in (registry.address, "169.254.169.254", "[::1]:5000", "127.0.0.1:1"):
        done = store.call("image", "pull", f"{name}/demo:1")
        assert done.returncode in (2, 125) and ("address" in done.stderr), (name, done)
    assert registry.requests == []


@pytest.mark.parametrize("ignored", [False, True])
def test_it_goes_on_where_it_was_cut_off(store, ignored):
    """Also where the registry ignores from where it is asked, and sends all again."""
    cut = threading.Event()

    def twist(handler, path):
        if "/blobs/" not in path:
            return False
        data = registry.blobs[path.rpartition(":")[2]]
        if len(data) < 1 << 20:
            return False
        if not cut.is_set():
            cut.set()
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data[:1 << 20])
            handler.close_connection = True
            return True
        if ignored:
            Registry.send(handler, 200, data)
        return ignored

    with Registry(twist=twist) as registry:
        registry.put("demo:1", [images.base(), NOISE])
        store.refused(registry, "layer")
        assert 1 << 20 in [part.stat().st_size for part in store.parts()]
        store.ok(registry)
        asked = [headers.get("Range") for _, headers in registry.asked("/blobs/")]
        assert f"bytes={1 << 20}-" in asked, asked
        assert store.parts() == []
        assert store.call("run", "--image", f"{registry.address}/demo:1", "--", "/bin/stat", "-c", "%s", "/noise").stdout == "3145728\n"


def is_nobody(pid):
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True  # it is done
    return "Uid:\t65534\t65534\t65534\t65534" in status and "CapEff:\t0000000000000000" in status


def test_killed_it_goes_on(store):
    """kill -9 while bytes come: they are kept, no half layer is there, the fetcher goes with it."""
    go, halfway = threading.Event(), threading.Event()

    def twist(handler, path):
        data = registry.blobs.get(path.rpartition(":")[2], b"") if "/blobs/" in path else b""
        if len(data) < 1 << 20 or go.is_set():
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[:2 << 20])
        handler.wfile.flush()
        halfway.set()
        go.wait(paddock.seconds(60))
        return True

    with Registry(twist=twist) as registry:
        registry.put("demo:1", [images.base(), NOISE])
        with subprocess.Popen(store.argv("image", "pull", "--registry", registry.url, f"{registry.address}/demo:1"),
                              env=store.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
            assert halfway.wait(paddock.seconds(60))
            paddock.wait_for(lambda: any(p.stat().st_size >= 2 << 20 for p in store.parts()), 60, "the bytes are kept")
            fetchers = [p for p in descendants(child.pid) if b"paddock-remote" in Path(f"/proc/{p}/cmdline").read_bytes()]
            if os.geteuid() == 0:  # another layer's may be about to begin
                paddock.wait_for(lambda: all(map(is_nobody, fetchers)), 60, "fetchers are nobody, without capabilities")
            child.send_signal(signal.SIGKILL)
        go.set()
        paddock.wait_for(lambda: not any(Path(f"/proc/{p}/stat").exists() for p in fetchers), 60, "the fetcher is gone")
        assert store.call("image", "ls").stdout == ""
        store.ok(registry)
        assert f"bytes={2 << 20}-" in [headers.get("Range") for _, headers in registry.asked("/blobs/")]
        assert store.parts() == []


def test_two_fetch_a_layer_once(store):
    def twist(handler, path):
        if registry.blobs.get(path.rpartition(":")[2], b"")[:2] == b"\x1f\x8b":
            both.wait(paddock.seconds(0.3))  # time for the other one to want it, too
        return False

    both = threading.Event()
    with Registry(twist=twist) as registry:
        registry.put("demo:1", [images.base(), NOISE])
        running = [subprocess.Popen(store.argv("image", "pull", "-q", "--registry", registry.url, f"{registry.address}/demo:1"),
                                    env=store.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                   for _ in range(2)]
        for child in running:
            _, said = child.communicate(timeout=paddock.seconds(60))
            assert child.returncode == 0 and said == b"", said
        packed = [path for path, _ in registry.asked("/blobs/")
                  if registry.blobs[path.rpartition(":")[2]][:2] == b"\x1f\x8b"]
        assert len(packed) == len(set(packed)) == 2, packed


@pytest.mark.skipif(not shutil.which("zstd"), reason="there is no zstd")
def test_layers_packed_with_zstd_and_not_at_all(store, registry):
    registry.put("z:1", [images.base(), layer(entry("mark", b"z\n"))], pack=images.zstd, packed="+zstd")
    registry.put("plain:1", [images.base(), layer(entry("mark", b"plain\n"))], pack=bytes, packed="")
    for name, text in (("z:1", "z\n"), ("plain:1", "plain\n")):
        store.ok(registry, name)
        assert store.cat(registry, name=name) == text


def test_how_far_it_is_on_a_terminal(store, registry):
    near, far = pty.openpty()
    with subprocess.Popen(store.argv("image", "pull", "--registry", registry.url, f"{registry.address}/demo:1"),
                          env=store.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=far) as child:
        os.close(far)
        said = b""
        while True:
            try:
                said += os.read(near, 4096)
            except OSError:
                break
        assert child.wait(paddock.seconds(60)) == 0
    os.close(near)
    assert b"layer 2 of 2 [##############################]" in said, said


@pytest.mark.skipif(not shutil.which("docker-registry"), reason="there is no docker-registry")
def test_from_a_real_registry(store):
    registry = engine.Registry("tester", "secret word").start()
    try:
        registry.upload("team/demo:1", [images.base(), MARK])
        url = "--registry", f"http://{registry.address}"
        name = f"{registry.address}/team/demo:1"
        assert "--auth" in store.call("image", "pull", *url, name).stderr
        done = store.call("image", "pull", *url, *store.credentials(registry), name)
        assert done.returncode == 0, done
        assert store.call("run", "--image", name, "--", "/bin/cat", "/mark").stdout == "one\n"
    finally:
        registry.close()


def test_a_slow_pull_holds_up_nobody_but_removals(store, registry):
    """Another one is named, listed and run while bytes are still coming for the first."""
    go, halfway = threading.Event(), threading.Event()

    def twist(handler, path):
        if len(slow.blobs.get(path.rpartition(":")[2], b"")) > 1 << 20:
            halfway.set()
            go.wait(paddock.seconds(60))
        return False

    with Registry(twist=twist) as slow:
        slow.put("slow:1", [images.base(), NOISE])
        with subprocess.Popen(store.argv("image", "pull", "-q", "--registry", slow.url, f"{slow.address}/slow:1"), env=store.env,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as child:
            try:
                assert halfway.wait(paddock.seconds(60))
                store.ok(registry)
                assert store.cat(registry) == "one\n" and child.poll() is None
            finally:
                go.set()
            assert child.wait(paddock.seconds(60)) == 0
    assert "slow:1" in store.call("image", "ls").stdout


def test_pulls_race_against_removals(store, registry):
    """Layers that an image which comes shares with one that goes stay, whoever is first, and however often it is pruned."""
    registry.put("other:1", [images.base(), layer(entry("mark", b"other\n"))])
    stop, wrong = threading.Event(), []

    def prune():
        while not stop.is_set():
            done = store.call("image", "prune")
            if done.returncode != 0:
                wrong.append(done)

    def beside(*words):
        return subprocess.Popen(store.argv(*words), env=store.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True)

    names = {name: f"{registry.address}/{name}" for name in ("demo:1", "other:1")}
    texts = {"demo:1": "one\n", "other:1": "other\n"}
    pruner = threading.Thread(target=prune)
    store.ok(registry)
    pruner.start()
    try:
        stays, goes = "other:1", "demo:1"
        for _ in range(paddock.rounds(4, 400)):
            both = (beside("image", "pull", "-q", "--registry", registry.url, names[stays]), beside("image", "rm", names[goes]))
            for child in both:
                _, said = child.communicate(timeout=paddock.seconds(60))
                assert child.returncode == 0, said
            assert store.cat(registry, name=stays) == texts[stays]
            assert store.call("image", "ls").stdout.count("\n") == 1
            stays, goes = goes, stays
    finally:
        stop.set()
        pruner.join()
    assert not wrong, wrong[0]
    store.call("image", "rm", names[goes])
    assert list((store.place / "state/images/layers").iterdir()) == []
