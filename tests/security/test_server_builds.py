"""Wall: around builds of templates. Alice builds what is meant to hurt: archives that lead out, a flood of processes, of
output or of bytes. Her build fails or is cut off, and bob's goes on. The control of each: what she does works as far as
it may."""

import gzip
import hashlib
import tarfile
import time
from pathlib import Path

import pytest

from paddock_testing import run as paddock
from paddock_testing.images import entry, layer, link
from paddock_testing.server import Server

PATIENCE = paddock.seconds(60)
SETTINGS = {"requests_per_s": 0, "creates_per_s": 0, "providers": "jail", "pool_max": 0}


@pytest.fixture(scope="module")
def server():
    with Server(SETTINGS) as own:
        yield own


@pytest.fixture(scope="module")
def alice(server):
    client = server.client(server.make_key("alice"))
    yield client
    clean(client)


@pytest.fixture(scope="module")
def bob(server):
    client = server.client(server.make_key("bob"))
    yield client
    clean(client)


def clean(client):
    for one in client.get("/v1/templates").json()["templates"]:
        if one["kind"] == "built":
            client.delete(f"/v1/templates/{one['id']}")
    until = time.monotonic() + PATIENCE
    while client.get("/v1/sandboxes").json()["sandboxes"]:
        assert time.monotonic() < until
        time.sleep(0.05)
    client.delete("/v1/build-cache")


def start(client, name, steps, **more):
    made = client.post("/v1/templates", json={"name": name, "template": "base", "steps": steps, **more})
    assert made.status == 202, made
    return f"/v1/templates/{made.json()['template']}/builds/{made.json()['build']}"


def wait(client, url):
    texts, offset, until = [], 0, time.monotonic() + PATIENCE
    while True:
        got = client.get(f"{url}?offset={offset}").json()
        texts += [line["text"] for line in got["log"]]
        offset = got["next_offset"]
        if got["build"]["state"] in ("ready", "error") and not got["log"]:
            return got["build"], texts
        assert time.monotonic() < until, got
        time.sleep(0.05)


def build(client, name, steps, **more):
    return wait(client, start(client, name, steps, **more))


def run(line):
    return {"type": "RUN", "args": [line]}


def copy(client, data, source=".", to="/home/user/got"):
    digest = hashlib.sha256(data).hexdigest()
    assert client.put(f"/v1/build-files/{digest}", data=data).status == 204
    return {"type": "COPY", "args": [source, to], "files": digest}


HOSTILE = {
    "up": layer(entry("../../../srv/out", b"x")),
    "absolute": layer(entry("/srv/out", b"x")),
    "through a link": layer(link("a", "/srv"), entry("a/out", b"x")),
    "hard link out": layer(entry("a", kind=tarfile.LNKTYPE, link="../../../etc/passwd")),
    "device": layer(entry("a", kind=tarfile.CHRTYPE)),
    "cut off": layer(entry("a", b"x" * 5000))[:2000],
    "no archive": b"#!/bin/sh\n" * 200,
    "gzip cut off": gzip.compress(layer(entry("a", b"x" * 5000)))[:60],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_archives_that_lead_out(alice, what):
    # What was not refused is where it belongs: below what was copied.
    got, _ = build(alice, "hostile", [copy(alice, HOSTILE[what]), run("ls /srv/out && exit 9; ls -la /home/user/got")])
    refused = got["state"] == "error" and got["step"] == "1"
    assert refused or got["state"] == "ready", got
    assert refused or what in ("absolute", "up"), got


def test_an_honest_archive(alice):
    got, texts = build(alice, "honest", [copy(alice, gzip.compress(layer(entry("a", b"inside\n"), link("b", "/etc/passwd")))),
                                         run("cat /home/user/got/a; readlink /home/user/got/b")])
    assert got["state"] == "ready" and {"inside", "/etc/passwd"} <= set(texts), (got, texts)


def test_gzip_that_becomes_a_thousand_times_as_much(alice):
    # A head that tells of zeroes, and the same packed zeroes over and over.
    head = tarfile.TarInfo("zeros")
    head.size = 300 << 20
    bomb = gzip.compress(head.tobuf()) + 300 * gzip.compress(bytes(1 << 20)) + gzip.compress(bytes(1024))
    assert len(bomb) < 1 << 20
    got, _ = build(alice, "bomb", [copy(alice, bomb)])
    assert got["state"] == "error" and got["step"] == "1", got


def test_processes_without_end(alice, bob):
    url = start(alice, "forks", [run("f() { f | f & }; f; sleep 1000")], limits={"pids": 64})
    # Bob's build is done meanwhile.
    got, texts = build(bob, "calm", [run("echo fine")])
    assert got["state"] == "ready" and "fine" in texts
    alice.delete(url)
    got, _ = wait(alice, url)
    assert got["state"] == "error", got
    assert alice.get("/v1/sandboxes").json()["sandboxes"] == []


def test_output_without_end(server, alice):
    got, texts = build(alice, "loud", [run("yes 'a line of some length, to be written down' | head -c 60000000; echo end")])
    assert got["state"] == "ready", got
    assert len(texts) <= 10000 and texts[-1].startswith("the rest of the log is left out"), texts[-3:]
    logs = list(Path(server.state_dir).rglob("builds/log-*"))
    assert logs and max(log.stat().st_size for log in logs) < (1 << 20) + 10000
    got, texts = build(alice, "quiet", [run("seq 500")])
    assert [text for text in texts if text.isdigit()] == [str(n) for n in range(1, 501)]


def test_a_disk_that_is_full(alice, bob):
    fill = "dd if=/dev/zero of=/home/user/zeros bs=1M 2>&1"
    got, texts = build(alice, "full", [run(fill)], limits={"disk_bytes": 64 << 20})
    assert got["state"] == "error" and any("No space left" in text or "quota" in text for text in texts), (got, texts)
    got, _ = build(alice, "fits", [run(fill + " count=5")], limits={"disk_bytes": 64 << 20})
    assert got["state"] == "ready", got
    assert build(bob, "room", [run("true")])[0]["state"] == "ready"


def test_control_characters_stay_out_of_the_log(alice):
    got, texts = build(alice, "escapes", [run(r"printf 'a\033]0;x\007b\t\r\n'; printf '\377\376\n'")])
    assert got["state"] == "ready"
    assert not [c for text in texts for c in text if ord(c) < 32], texts
