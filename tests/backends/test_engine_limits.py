"""An engine that would make containers without their limits makes no sandbox: it is refused, with the remedy. One
is a rootless podman without cgroup controllers, which says in docker's words that it has them."""

import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from paddock_testing import broker as brokers
from paddock_testing import engine as engines
from paddock_testing import engine_double, host
from paddock_testing.run import NIGHTLY
from paddock_testing.server import Server
from test_doctor import checks
from test_engine_faults import a_double

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the engines' users are others")
NOBODY = 65534


def test_the_server_refuses_and_says_why():
    with a_double() as double, Server({"providers": "jail,docker", "image_pull": "never", "docker_host": double.host,
                                       "storage": "memory"}) as server:
        api = server.client()
        wanted = {"provider": "docker", "image": engine_double.IMAGE}
        for info, words in (({"MemoryLimit": False}, "limits of memory:"), ({"PidsLimit": False}, "limits of processes:"),
                            ({"CpuCfsQuota": False}, "limits of processor:")):
            double.info = info
            answer = api.post("/v1/sandboxes", json=wanted)
            error = answer.json()["error"]
            assert answer.status == 501 and error["code"] == "unsupported", answer
            assert "provider docker" in error["message"] and words in error["message"], error
            assert not double.containers()
        # The same engine with its controllers: nothing else was in the way.
        double.info = {}
        made = api.post("/v1/sandboxes", json=wanted)
        assert made.status == 201 and len(double.containers()) == 1, made
        assert api.delete(f"/v1/sandboxes/{made.json()['id']}").status == 204


class Rootless(engines.Podman):
    """The service of a user who has no cgroup controllers."""

    def __init__(self):
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="paddock-rootless-"))
        for folder in (self.dir, self.home):
            os.chown(folder, NOBODY, NOBODY)

    def command(self):
        who = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", f"--chdir={self.home}",
               f"HOME={self.home}", f"XDG_RUNTIME_DIR={self.home}"]
        return [*who, *super().command()[:2], "podman", "--storage-driver=vfs", *super().command()[3:]]

    def close(self):
        """Its child in another user namespace, and what holds that, outlive the process that was started."""
        super().close()
        for pid in host.pids():
            if f"\0HOME={self.home}\0" in "\0" + host.read_proc(pid, "environ"):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)


if NIGHTLY:  # podman takes its time to tell of itself
    @pytest.fixture
    def rootless(podman):  # podman: skipped where there is none
        service = Rootless()
        try:
            service.start()
        except RuntimeError as error:
            service.close()
            pytest.skip(f"podman does not start as an ordinary user: {str(error)[-200:]}")
        if b'"cgroupControllers":[]' not in service.good("GET", "/v1.40/libpod/info"):
            service.close()
            pytest.skip("an ordinary user has cgroup controllers here")
        yield service
        service.close()

    def test_a_rootless_podman_without_controllers(rootless):
        assert b'"MemoryLimit":true' in rootless.good("GET", "/v1.40/info").replace(b" ", b"")  # it says so
        b = brokers.Broker(rootless, "--pull", "never")
        try:
            answer, _ = b.build("one", image="test/none:1")
            assert answer.code == "unsupported" and "Delegate=" in answer.says, answer
            assert "memory processes processor" in answer.says, answer
        finally:
            b.remove()

        rows = checks(CONTAINER_HOST=rootless.host)
        assert rows["podman"]["status"] == "ok", rows["podman"]
        for name in ("memory", "pids", "cpu"):
            row = rows[f"podman-{name}"]
            assert row["status"] == "warn" and row["found"] == "off" and "Delegate=" in row["fix"], row
