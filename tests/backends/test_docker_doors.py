"""Terminals, ports, watches and usage of a docker sandbox through the server; and podman's."""

import sys
from pathlib import Path

import pytest

from paddock_testing import engine as engines
from paddock_testing import run as paddock
from paddock_testing.server import Client, Server
from test_docker import CROWD, Box, end_crowd, running, usage

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "api"))
from helpers import read_events  # pylint: disable=wrong-import-position
from ws import Raw, WebSocket  # pylint: disable=wrong-import-position


@pytest.fixture(scope="module")
def box(server, images):
    b = Box(Client(server.host, server.port, server.key), images["bash"])
    yield b
    b.close()


def start(box, **body):
    answer = box.api.post(box.base + "/processes", json=body)
    assert answer.status == 201, answer
    return answer.json()["process_id"]


def test_a_terminal(box):
    """It has a size that changes, its own name, and a keyboard that interrupts."""
    process = start(box, command="bash --norc", pty=True, rows=24, cols=80)
    target = f"{box.base}/processes/{process}/attach"
    with WebSocket(box.api, target, timeout=paddock.seconds(60)) as ws:
        ws.send({"type": "resize", "rows": 41, "cols": 123})
        ws.send(b"readlink /proc/self/fd/0; stty size; echo mar''ker\n")
        told = ws.collect(until=b"marker", seconds=60)[0][1]
        assert b"/dev/pts/" in told and b"41 123" in told, told

        ws.send(b"bash -c 'echo be''gun; exec sleep 1000'\n")
        ws.collect(until=b"begun", seconds=60)
        ws.send(b"\x03")
        ws.send(b"echo still''here\n")
        ws.collect(until=b"stillhere", seconds=60)
        ws.send(b"exit 5\n")
        assert ws.collect(seconds=60)[1]["exit_code"] == 5


def test_a_port_by_path_and_by_a_signed_link(box):
    box.exec("mkdir -p /tmp/www && echo 'hello from inside' > /tmp/www/page")
    start(box, argv=["busybox", "httpd", "-f", "-p", "127.0.0.1:8123", "-h", "/tmp/www"])
    paddock.wait_for(lambda: 8123 in [p["port"] for p in box.api.get(box.base + "/ports").json()["ports"]],
                     60, "it listens")
    answer = box.api.get(box.base + "/ports/8123/page")
    assert answer.status == 200 and answer.text == "hello from inside\n", answer
    assert box.api.get(box.base + "/ports/8124/page").status == 502

    link = box.api.post(box.base + "/ports/8123/preview", json={"expires_in_s": 600})
    assert link.status in (200, 201), link
    token = link.json()["url"].split("paddock_preview=")[1]
    host = f"8123-{box.info['id']}.localhost:{box.api.port}"
    for query, status in (("?paddock_preview=" + token, 200), ("", 401)):
        with Raw(box.api, timeout=paddock.seconds(60)) as raw:
            raw.request("GET", "/page" + query, key=False, host=host)
            told, _, body = raw.answer()
            assert told == status, (told, body)
            assert (b"hello from inside" in body) == (status == 200)


def test_a_watch(box):
    box.exec("mkdir -p /workspace/w")
    stream = box.api.stream("GET", box.base + "/files/watch?path=/workspace/w")
    try:
        assert stream.status == 200
        events = read_events(stream)
        assert next(events).name == "ready"
        box.exec("echo 1 > /workspace/w/new; rm /workspace/w/new")
        seen = []
        while "removed" not in seen:
            event = next(events)
            seen.append(event.name)
            assert event.data["path"] == "/workspace/w/new", event
        assert seen[0] == "created", seen
    finally:
        stream.close()


def test_usage_is_the_containers(box):
    """What a command eats is seen while it eats, and its time afterwards."""
    before = usage(box)
    assert before["memory_bytes"] > 0 and 1 <= before["pids"] < 30, before
    process = start(box, command="head -c 64m /dev/zero > /dev/shm/x; "
                                 "for i in $(seq 30); do sleep 1000 & done; wait")
    paddock.wait_for(lambda: usage(box)["memory_bytes"] > before["memory_bytes"] + (50 << 20), 60,
                     "memory is counted")
    paddock.wait_for(lambda: usage(box)["pids"] > 30, 60, "processes are counted")
    now = usage(box)
    assert now["memory_peak_bytes"] >= before["memory_bytes"] + (50 << 20), (before, now)
    assert now["cpu_time_ms"] > before["cpu_time_ms"], (before, now)

    box.api.delete(f"{box.base}/processes/{process}")
    box.exec("rm /dev/shm/x")
    paddock.wait_for(lambda: usage(box)["memory_bytes"] < before["memory_bytes"] + (30 << 20), 60,
                     "memory is given back")


def test_podman_through_the_server(podman):
    """The whole way: a line, a file, a terminal, its end from outside. The image's root directory is
    one that nobody may write to, as Fedora's is (docker makes it 0755): the workspace is made all
    the same, and the mode stays."""
    image = podman.import_image("test/podman:latest", engines.image_tar("bash", root_mode=0o555),
                                ["ENV PATH=/bin:/usr/bin"])
    s = Server({"providers": "jail,podman", "docker_host": podman.host, "image_pull": "never"})
    s.start()
    try:
        api = Client(s.host, s.port, s.key)
        box = Box(api, image, provider="podman", limits={"pids": 24})
        assert box.info["provider"] == "podman" and box.info["isolation"] == "basic", box.info
        assert box.exec("cd /tmp; echo out; id -u")["stdout"] == "out\n1000\n"
        assert box.exec("pwd; stat -c %a / /workspace")["stdout"] == "/tmp\n555\n755\n"
        assert api.put(box.base + "/files?path=/workspace/f", data=b"data").status < 300
        assert box.exec("cat /workspace/f")["stdout"] == "data"
        assert usage(box)["pids"] >= 1
        assert box.exec("(setsid sleep 1234 &); sleep 1234", timeout_s=1)["timed_out"]
        paddock.wait_for(lambda: "1234" not in box.exec("ps -o args")["stdout"], 60, "all are dead")
        assert box.exec(argv=CROWD)["stopped_by"] == "pids"
        end_crowd(box)

        process = start(box, command="bash --norc", pty=True, rows=24, cols=80)
        with WebSocket(api, f"{box.base}/processes/{process}/attach",
                       timeout=paddock.seconds(60)) as ws:
            ws.send(b"stty size; exit 5\n")
            streams, end = ws.collect(seconds=60)
            assert b"24 80" in streams[1] and end["exit_code"] == 5, (streams, end)

        podman.good("POST", f"/containers/{running(podman).pop()}/kill?signal=SIGKILL")
        paddock.wait_for(lambda: box.told()["end_cause"], 60, "it is lost")
        assert "killed from outside" in box.told()["end_reason"], box.told()
    finally:
        s.close()
    assert not podman.containers(), "containers are left behind"
