"""The store of images has room: layers come three at a time, and what nobody used for long goes."""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from paddock_testing import images
from paddock_testing import run as paddock
from paddock_testing.images import entry, layer
from paddock_testing.registry import Registry

pytestmark = [
    pytest.mark.skipif(not images.has_static_busybox(), reason="there is no static busybox"),
    pytest.mark.skipif(not (Path(paddock.PADDOCK).parent / "paddock-remote").exists(),
                       reason="there is no paddock-remote beside paddock"),
]
MEGABYTE = 1 << 20


@pytest.fixture
def place():
    path = Path(tempfile.mkdtemp(prefix="paddock-room-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def call(place):
    env = paddock.clean_environment({"PADDOCK_STATE_DIR": str(place / "state"), "PADDOCK_RUN_DIR": str(place / "run")})

    def run(*words, status=0):
        done = subprocess.run([paddock.PADDOCK, *map(str, words)], env=env, capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=paddock.seconds(60))
        assert status is None or done.returncode == status, (words, done)
        return done

    run.env = env
    return run


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def noise(name, size=MEGABYTE):
    return layer(entry(name, os.urandom(size)))


def test_three_layers_come_at_a_time(call):
    """And never a fourth: each request for a layer waits until three are there."""
    under_way, most, three = 0, 0, threading.Event()
    lock = threading.Lock()

    def twist(_, path):
        nonlocal under_way, most
        if path.rpartition(":")[2] not in packed:
            return False
        with lock:
            under_way += 1
            most = max(most, under_way)
            if under_way == 3:
                three.set()
        assert three.wait(paddock.seconds(30)), "three were never under way"
        with lock:
            under_way -= 1
        return False

    layers = [images.base(), *(noise(f"n{i}", 4096) for i in range(6))]
    with Registry(twist=twist) as registry:
        registry.put("demo:1", layers)
        packed = {digest for digest, data in registry.blobs.items() if data[:2] == b"\x1f\x8b"}
        name = f"{registry.address}/demo:1"
        told = lines(call("image", "pull", "--json", "--registry", registry.url, name))
    assert most == 3
    assert told[-1]["name"] == name and told[-1]["id"].startswith("sha256:")
    news = told[:-1]
    assert {one["layer"] for one in news} == packed
    assert {"done"} <= {one["state"] for one in news} <= {"downloading", "unpacking", "done", "shared"}
    last = news[-1]
    assert (last["layers_done"], last["layers"], last["bytes_done"]) == (7, 7, last["bytes"])
    # Nothing is asked when it is there, and an image that is there is no news.
    again = call("image", "pull", "--json", "--missing", "--registry", "http://127.0.0.1:1", name)
    assert lines(again) == [told[-1]]


def test_a_layer_that_cannot_come_ends_the_others(call, place):
    """What has come of them is kept, and they end at once: nobody would send the rest."""
    go, hung = threading.Event(), threading.Event()

    def twist(handler, path):
        blob = path.rpartition(":")[2]
        if blob == slow:
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(registry.blobs[blob])))
            handler.end_headers()
            handler.wfile.write(registry.blobs[blob][:MEGABYTE])
            handler.wfile.flush()
            hung.set()
            go.wait(paddock.seconds(60))
            return True
        if blob == bad:
            part = place / f"state/images/blobs/{slow}.part"
            assert hung.wait(paddock.seconds(30))
            paddock.wait_for(lambda: part.exists() and part.stat().st_size == MEGABYTE, 30, "some of it has come")
            Registry.send(handler, 500, b"{}")
            return True
        return False

    with Registry(twist=twist) as registry:
        registry.put("demo:1", [images.base(), noise("slow", 2 * MEGABYTE), noise("bad", 5000)])
        manifest = next(json.loads(one) for one in registry.manifests.values())
        slow, bad = (one["digest"].removeprefix("sha256:") for one in manifest["layers"][1:])
        done = call("image", "pull", "--json", "--registry", registry.url, f"{registry.address}/demo:1", status=None)
        go.set()
    assert done.returncode and lines(done)[-1]["error"]["code"] == "bad_gateway", done
    assert "500" in lines(done)[-1]["error"]["message"]
    assert (place / f"state/images/blobs/{slow}.part").stat().st_size == MEGABYTE
    assert call("image", "ls").stdout == ""


def put(call, place, name, size, *words, status=0):
    path = images.saved(place / "one.tar", [images.base(), noise(name, size)], name=f"{name}:1")
    return call("image", "import", *words, path, status=status)


def names(call):
    return [one["names"][0].rpartition("/")[2] for one in lines(call("image", "ls", "--json"))]


def test_who_was_used_longest_ago_goes_first(call, place):
    base = len(images.base())
    for name in ("one", "two", "three"):
        put(call, place, name, MEGABYTE)
    sizes = {one["names"][0].rpartition("/")[2]: one["size_bytes"] for one in lines(call("image", "ls", "--json"))}
    assert all(MEGABYTE + base < size < MEGABYTE + base + 20000 for size in sizes.values()), sizes
    # A use is a start: so the first one is not the oldest any more.
    call("run", "--image", "one:1", "--", "/bin/true")
    put(call, place, "four", MEGABYTE, "--store-max", base + 3 * MEGABYTE + 60000)
    assert sorted(names(call)) == ["four:1", "one:1", "three:1"]
    gone = lines(call("image", "prune", "--json", "--max", base + MEGABYTE + 30000))
    assert len(gone) == 2 and names(call) == ["four:1"]
    assert call("run", "--image", "four:1", "--", "/bin/stat", "-c", "%s", "/four").stdout == f"{MEGABYTE}\n"


def test_what_is_in_use_stays(call, place):
    put(call, place, "one", MEGABYTE)
    with subprocess.Popen([paddock.PADDOCK, "run", "--image", "one:1", "--", "/bin/sh", "-c", "echo here; cat"],
                          env=call.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"here\n"
        put(call, place, "two", MEGABYTE)
        assert len(lines(call("image", "prune", "--json", "--max", 0))) == 1
        assert names(call) == ["one:1"]
        child.stdin.close()
        assert child.wait(paddock.seconds(30)) == 0
    assert len(lines(call("image", "prune", "--json", "--max", 0))) == 1 and names(call) == []
    assert not list((place / "state/images/layers").iterdir())


def test_an_image_that_has_no_room_is_refused_and_leaves_nothing(call, place):
    packed = put(call, place, "one", MEGABYTE, "--store-max", MEGABYTE, status=None)
    assert packed.returncode and "image_store_max" in packed.stderr
    assert call("image", "ls").stdout == "" and not list((place / "state/images/layers").iterdir())
    with Registry() as registry:
        registry.put("demo:1", [images.base(), noise("n", 2 * MEGABYTE)])
        registry.requests.clear()
        done = call("image", "pull", "--json", "--store-max", MEGABYTE, "--registry", registry.url,
                    f"{registry.address}/demo:1", status=None)
        assert lines(done)[-1]["error"]["code"] == "too_large"
        assert len(registry.asked("/blobs/")) == 1, "the configuration alone: no layer was fetched for nothing"


def test_a_pull_that_fails_leaves_no_more_than_there_is_room_for(call, place):
    """Its layers go, and no image does for them."""
    layers = place / "state/images/layers"

    def twist(handler, path):
        if path.rpartition(":")[2] != bad:
            return False
        paddock.wait_for(lambda: len(list(layers.glob("[0-9a-f]*"))) == 3, 30, "another layer is unpacked")
        Registry.send(handler, 500, b"{}")
        return True

    put(call, place, "one", MEGABYTE)
    before = set(layers.iterdir())
    with Registry(twist=twist) as registry:
        registry.put("demo:1", [images.base(), noise("n"), noise("bad", 5000)])
        manifest = next(json.loads(one) for one in registry.manifests.values())
        bad = manifest["layers"][2]["digest"].removeprefix("sha256:")
        call("image", "pull", "--json", "--store-max", len(images.base()) + MEGABYTE + 60000, "--registry", registry.url,
             f"{registry.address}/demo:1", status=125)
    assert set(layers.iterdir()) == before and names(call) == ["one:1"]


def test_what_layers_unpack_to_is_looked_at_while_they_come(call, place):
    """Small where they come from: the first of them is too much here, and the others are not asked for."""
    with Registry() as registry:
        registry.put("demo:1", [images.base(), *(layer(entry(f"n{at}", bytes((8 + at) * MEGABYTE))) for at in range(8))])
        registry.requests.clear()
        done = call("image", "pull", "--json", "--store-max", 6 * MEGABYTE, "--registry", registry.url,
                    f"{registry.address}/demo:1", status=125)
        assert lines(done)[-1]["error"]["code"] == "too_large" and "image_store_max" in done.stderr
        assert len(registry.asked("/blobs/")) <= 1 + 5, "of nine layers at most five: the lowest, three others, one more"
    assert not list((place / "state/images/layers").iterdir())


def waits(pid):
    """In the kernel with the lock open, or by trying again and again, which gives the processor away each time."""
    told = Path(f"/proc/{pid}/status").read_text()
    switches = int(told.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    with contextlib.suppress(OSError):
        return switches > 5 or any("images/lock" in os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir())
    return False


def removal(call, *words):
    return subprocess.Popen([paddock.PADDOCK, "image", *words], env=call.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


@pytest.fixture
def busy(call, place):
    """The store as while an image is fetched, until it is closed."""
    put(call, place, "one", 1000)
    with open(place / "state/images/lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield lock


@pytest.mark.parametrize("words", [("rm", "--json", "one:1"), ("prune", "--json", "--max", "1"), ("rm", "one:1")])
def test_a_removal_waits_for_pulls(call, busy, words):
    with removal(call, *words) as child:
        paddock.wait_for(lambda: waits(child.pid), 30, "it waits for the lock")
        assert child.poll() is None and names(call) == ["one:1"]
        fcntl.flock(busy, fcntl.LOCK_UN)
        assert child.wait(paddock.seconds(30)) == 0
    assert names(call) == []


def test_a_removal_that_nobody_waits_for_does_not_happen(call, busy):
    with removal(call, "rm", "--json", "one:1") as child:
        paddock.wait_for(lambda: waits(child.pid), 30, "it waits for the lock")
        child.stdout.close()
        assert child.wait(paddock.seconds(15)) != 0
    assert names(call) == ["one:1"]


def test_a_list_that_nobody_reads_keeps_nobody_from_making_room(call, place):
    """As in a pager: longer than what is written at once, into a pipe that is full."""
    put(call, place, "one", MEGABYTE)
    for n in range(12):
        put(call, place, f"{'many' * 25}{n}", 1000)
    out, into = os.pipe()
    os.set_blocking(into, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(into, b"x" * 4096)
    os.set_blocking(into, True)
    with subprocess.Popen([paddock.PADDOCK, "image", "ls"], env=call.env, stdin=subprocess.DEVNULL, stdout=into) as child:
        os.close(into)
        try:
            paddock.wait_for(lambda: "pipe" in Path(f"/proc/{child.pid}/wchan").read_text(), 30, "it waits for its reader")
            put(call, place, "two", 1000, "--store-max", len(images.base()) + MEGABYTE // 2)
            assert "one:1" not in names(call) and "two:1" in names(call)
        finally:
            os.close(out)
            child.wait(paddock.seconds(30))


@pytest.mark.skipif(not os.environ.get("PADDOCK_NIGHTLY"), reason="at night: twenty seconds")
@pytest.mark.parametrize("words", [("rm", "--json", "one:1"), ("prune", "--json", "--max", "1")])
def test_a_program_is_told_to_come_again(call, busy, words):
    done = call("image", *words, status=125)
    assert lines(done)[-1]["error"] == {"code": "conflict", "message": "images are being fetched: try again"}
    assert names(call) == ["one:1"]


def test_from_standard_input(call, place):
    path = images.saved(place / "one.tar", [images.base()], name="one:1")
    with open(path, "rb") as archive:
        done = subprocess.run([paddock.PADDOCK, "image", "import", "--json", "-"], env=call.env, stdin=archive,
                              capture_output=True, text=True, check=True, timeout=paddock.seconds(60))
    assert lines(done)[-1]["name"] == "one:1"


def test_whoever_is_told_no_more_wants_no_image(call, place):
    """A server that is killed reads no more: its pull ends, and what has come stays."""
    sent, go = threading.Event(), threading.Event()

    def twist(handler, path):
        data = registry.blobs.get(path.rpartition(":")[2], b"") if "/blobs/" in path else b""
        if len(data) < MEGABYTE:
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[:MEGABYTE])
        handler.wfile.flush()
        sent.set()
        go.wait(paddock.seconds(60))
        return True

    with Registry(twist=twist) as registry:
        registry.put("demo:1", [images.base(), noise("n", 3 * MEGABYTE)])
        with subprocess.Popen([paddock.PADDOCK, "image", "pull", "--json", "--registry", registry.url,
                               f"{registry.address}/demo:1"], env=call.env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            assert sent.wait(paddock.seconds(30))
            parts = place / "state/images/blobs"
            paddock.wait_for(lambda: any(one.stat().st_size == MEGABYTE for one in parts.iterdir()), 30, "some of it has come")
            child.stdout.close()
            assert child.wait(paddock.seconds(30)) != 0
        go.set()
    assert MEGABYTE in [part.stat().st_size for part in parts.iterdir()]
