"""An engine that maps users (userns-remap): root in a container is nobody on the machine, and everything else works
as ever: the door, commands, files, sudo in dev, pause, time-outs. At night: it is an engine of its own."""

import os

import pytest

from kept_files import Box
from paddock_testing import engine as engines
from paddock_testing import host
from paddock_testing.run import NIGHTLY
from paddock_testing.server import Server

FIRST, USER = 300000, "daemon"  # the range of uids on the machine, and whose it is
# The table of ranges is this engine's alone.
OWN_TABLE = 'mount --bind "$0" /etc/subuid && mount --bind "$0" /etc/subgid && exec "$@"'


class Remapped(engines.Dockerd):
    def __init__(self):
        super().__init__("--userns-remap=" + USER)
        os.chmod(self.dir, 0o711)  # for the mapped root
        self.table = self.dir / "subid"
        self.table.write_text(f"{USER}:{FIRST}:65536\n")

    def command(self):
        return ["unshare", "--mount", "sh", "-c", OWN_TABLE, str(self.table), *super().command()]


if NIGHTLY:
    @pytest.fixture(scope="module")
    def remapped(dockerd):  # dockerd: skipped where there is none
        engine = Remapped()
        try:
            engine.start()
            yield engine
        finally:
            engine.close()

    def test_root_in_a_container_is_nobody_on_the_machine(remapped):
        image = remapped.import_image("test/remap:1", engines.image_tar("bash"), ["ENV PATH=/bin:/usr/bin"])
        settings = {"providers": "jail,docker", "docker_host": remapped.host, "image_pull": "never"}
        with Server(settings) as server:
            box = Box(server.client(), provider="docker", image=image, profile="dev")
            assert box.out("id -u; sudo id -u; echo text > f; cat f").split() == ["1000", "0", "text"]
            assert box.out("cat /proc/self/uid_map").split() == ["0", str(FIRST), "65536"]

            started = box.api.post(f"{box.url}/processes", json={"argv": ["sleep", "4242"], "user": "root"})
            assert started.status == 201, started
            pid = remapped.inspect(remapped.containers()[0]["Id"])["State"]["Pid"]
            users = {host.uids(p)[0] for p in [pid, *host.descendants(pid)]}
            assert min(users) == FIRST and max(users) < FIRST + 65536, users

            told = box.api.post(f"{box.url}/exec", json={"command": "sleep 60", "timeout_s": 1}).json()
            assert told["timed_out"], told
            assert box.api.post(f"{box.url}/pause").status == 200 and box.api.post(f"{box.url}/resume").status == 200
            assert box.out("cat f") == "text\n"
            box.delete()
        assert not remapped.containers()
