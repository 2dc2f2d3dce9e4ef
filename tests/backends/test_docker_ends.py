"""What an engine does to its containers by itself or for somebody else: it ends and comes back, with and without
live-restore, it pauses a container, its disk is full. Each is told with its reason, nothing hangs, and nothing is left
when it is back."""

import contextlib
import signal
import subprocess

import pytest

from paddock_testing import engine as engines
from paddock_testing import run as paddock
from paddock_testing.server import Server, check_error
from test_docker import Box, container_of, lost_for, running


class SmallDockerd(engines.Dockerd):
    """Its containers survive it, and its disk has little room: image and containers are in memory."""

    def start(self):
        data = self.dir / "data"
        if not data.is_mount():
            data.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "small", str(data)], check=True)
        return super().start()

    @contextlib.contextmanager
    def full(self):
        """No byte is left on its disk."""
        hog = self.dir / "data" / "hog"
        with open(hog, "wb", buffering=0) as f, contextlib.suppress(OSError):
            while f.write(bytes(1 << 16)):
                pass
        try:
            yield
        finally:
            hog.unlink()


@pytest.fixture(scope="module")
def small(dockerd):  # where that one does not start, neither does this
    daemon = SmallDockerd("--live-restore")
    try:
        daemon.start()
        daemon.import_image("test/bash:1", engines.image_tar("bash"), ["ENV PATH=/bin:/usr/bin"])
        yield daemon
    finally:
        daemon.close()


def serve(daemon):
    return Server({"providers": "jail,docker", "docker_host": daemon.host, "image_pull": "never"})


@pytest.fixture(scope="module")
def small_server(small):
    with serve(small) as s:
        yield s
    assert not small.containers(), "containers are left behind"


def make(server):
    return Box(server.client(), "test/bash:1")


def await_no_containers(daemon):
    paddock.wait_for(lambda: not daemon.containers(), 60, "nothing is left")


def check_refused(server, says):
    """A sandbox cannot be made, and the answer has the engine in it."""
    answer = server.client().post("/v1/sandboxes", json={"provider": "docker", "image": "test/bash:1"})
    return check_error(answer, says=says)


def test_an_engine_that_ends_takes_its_containers_along(server, dockerd):
    """Without live-restore. What runs is told why, and the next sandbox why there is none."""
    box = make(server)
    dockerd.stop()
    try:
        reason = lost_for(box)
        error = check_refused(server, dockerd.socket)
    finally:
        dockerd.start()
    assert any(words in reason for words in (dockerd.socket, "the container ended", "from outside")), reason
    assert error["code"] == "bad_gateway", error
    await_no_containers(dockerd)
    again = make(server)
    assert again.exec("echo on")["stdout"] == "on\n"
    again.close()


def test_sandboxes_live_on_without_their_engine(small_server, small):
    """With live-restore: commands, files and output go past the engine. One that is deleted meanwhile is removed when the
    engine is back."""
    box, other = make(small_server), make(small_server)
    small.stop()
    try:
        assert box.exec("echo one >/workspace/f; cat /workspace/f")["stdout"] == "one\n"
        check_refused(small_server, small.socket)
        other.close()
    finally:
        small.start()
    assert box.exec("cat /workspace/f")["stdout"] == "one\n"
    paddock.wait_for(lambda: len(small.containers()) == 1, 60, "the other one's container is removed")
    box.close()
    await_no_containers(small)


def test_a_server_ends_without_its_engine(small):
    """Nothing of it is left on the machine; its container is removed by the next one, when the engine is back."""
    s = serve(small)
    try:
        s.start()
        make(s)
        small.stop()
        try:
            assert s.stop(signal.SIGINT) == 0
            paddock.wait_for(lambda: not s.keepers(), 60, "its keepers end")
        finally:
            small.start()
        assert small.containers(), "it was away"
        s.start()
        make(s).close()
        await_no_containers(small)
    finally:
        s.close()


BIG = "dd if=/dev/zero of=/workspace/big bs=1024k count=1"


def test_a_full_disk_of_the_engine(small_server, small):
    box = make(small_server)
    with small.full():
        error = check_refused(small_server, "no space left on device")
        assert error["code"] == "no_space" and "prune" in error["message"], error
        told = box.exec(BIG)
        assert told["exit_code"] == 1 and "No space left" in told["stderr"], told
    assert box.exec(BIG)["exit_code"] == 0
    again = make(small_server)
    assert again.exec("echo on")["stdout"] == "on\n"
    for b in (box, again):
        b.close()
    await_no_containers(small)


def test_a_container_that_somebody_else_paused(server, dockerd):
    """A command there does not end in time, and the answer says why. It goes on when it is let; and one that stands still can
    be deleted."""
    before = running(dockerd)
    box = make(server)
    container = container_of(box, dockerd, before)
    dockerd.good("POST", f"/containers/{container}/pause")
    check_error(box.ask(command="echo x", timeout_s=1), 504, "timeout", says="paused, and not by this server")

    dockerd.good("POST", f"/containers/{container}/unpause")
    assert box.exec("echo on")["stdout"] == "on\n"
    assert box.exec("sleep 1000", timeout_s=1)["timed_out"]

    dockerd.good("POST", f"/containers/{container}/pause")
    box.close()
    await_no_containers(dockerd)
