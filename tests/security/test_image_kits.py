"""Jails on an image that wait as complete kits: what a builder would make, and in nobody's way."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from paddock_testing import host, images
from paddock_testing import run as paddock
from paddock_testing.images import entry, layer
from paddock_testing.server import Server, check_error

pytestmark = [
    pytest.mark.skipif(not images.has_static_busybox(), reason="there is no static busybox"),
    pytest.mark.skipif(not (Path(paddock.PADDOCK).parent / "paddock-remote").exists(),
                       reason="there is no paddock-remote beside paddock"),
    pytest.mark.skipif(os.geteuid() != 0, reason="rootless, there are no complete kits"),
]
LOOK = r"""id; pwd; env; cat /proc/self/mountinfo /proc/self/limits /proc/self/uid_map
for p in 1 self; do cat /proc/$p/status | while read l; do case $l in Cap*|Seccomp*|NoNew*|Uid*|Gid*) echo $l;; esac; done; done
find / -xdev; ls -la /dev /workspace /home"""


class Keeper:
    """A keeper on a state directory of its own; `kits` of them wait."""

    def __init__(self, place, kits):
        self.socket = place / f"keeper-{kits}"
        self.env = paddock.clean_environment({"PADDOCK_STATE_DIR": str(place / "state"), "PADDOCK_RUN_DIR": str(place / f"run-{kits}"),
                                              "PADDOCK_KEEPER": str(self.socket)})
        self.process = subprocess.Popen([paddock.PADDOCK, "keeper", "--socket", str(self.socket), "--kits", str(kits)],
                                        env=self.env, stdin=subprocess.DEVNULL)
        paddock.wait_for(self.socket.exists, 30, "the keeper listens")

    def call(self, *words, check=True):
        done = subprocess.run([paddock.PADDOCK, *map(str, words)], env=self.env, capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=paddock.seconds(60))
        assert not check or done.returncode == 0, (words, done)
        return done

    def bring(self, place, mark):
        path = images.saved(place / "one.tar", [images.base(), layer(entry("mark", mark.encode()))], name="one:1", User="bob")
        self.call("image", "import", path)

    def waiting(self):
        """Namespaces of the kits that are on an image: a jail whose root is an overlay, and in which nobody is but init."""
        found = set()
        for pid in host.descendants(self.process.pid):
            try:
                if host.is_jail_init(pid) and " / / " in (mounts := Path(f"/proc/{pid}/mountinfo").read_text()) and " - overlay " in mounts:
                    found.add(os.readlink(f"/proc/{pid}/ns/pid"))
            except OSError:
                continue
        return found

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(paddock.seconds(60)) == 0


@pytest.fixture
def place():
    path = Path(tempfile.mkdtemp(prefix="paddock-imagekits-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def keeper(place):
    one = Keeper(place, 2)
    one.bring(place, "first")
    one.call("run", "--image", "one:1", "--", "/bin/true")  # tells the keeper what will be asked for
    paddock.wait_for(one.waiting, 30, "a kit waits")
    yield one
    one.end()


def normal(text):
    """Without what is another jail's by right: ids of mounts and devices, the range of uids, names of its memory."""
    text = re.sub(r"^\d+ \d+ \d+:\d+ ", "N N N ", text, flags=re.M)
    text = re.sub(r"\b\d{9,}\b", "RANGE", text)
    text = re.sub(r"(lowerdir|upperdir|workdir)[^, ]*=[^, ]*", r"\1", text)
    text = text.replace("/boot//deleted", "/boot")  # the file goes when the next jail gets one
    return re.sub(r"/j\d+\b", "/jN", text).splitlines()


def test_a_kit_is_given_out_and_is_what_a_builder_makes(place, keeper):
    before = keeper.waiting()
    # The image has no readlink: its shell's /proc is looked at from outside.
    with subprocess.Popen([paddock.PADDOCK, "run", "--image", "one:1", "--", "/bin/sh", "-c", "echo up; cat; :"], env=keeper.env,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"up\n"
        used = {os.readlink(f"/proc/{pid}/ns/pid") for pid in host.descendants(keeper.process.pid)
                if b"echo up" in Path(f"/proc/{pid}/cmdline").read_bytes()}
        child.stdin.close()
        assert child.wait(paddock.seconds(30)) == 0
    assert used and used <= before, (used, before)
    paddock.wait_for(lambda: keeper.waiting() - used, 30, "another one waits")
    theirs = normal(keeper.call("run", "--image", "one:1", "--", "/bin/sh", "-c", LOOK).stdout)
    cold = Keeper(place, 0)
    try:
        ours = normal(cold.call("run", "--image", "one:1", "--", "/bin/sh", "-c", LOOK).stdout)
    finally:
        cold.end()
    assert len(ours) > 60 and theirs == ours


def test_a_kit_keeps_nobody_from_removing_its_image(keeper):
    assert keeper.waiting()
    paddock.wait_for(lambda: keeper.call("image", "rm", "one:1", check=False).returncode == 0, 30, "no other one is being built")
    assert keeper.call("image", "ls").stdout == ""
    done = keeper.call("run", "--image", "one:1", "--", "/bin/cat", "/mark", check=False)
    assert done.returncode == 125 and "there is no image" in done.stderr, done


def test_a_kit_that_is_given_out_does(keeper):
    """The control: from then on the image is in use."""
    with subprocess.Popen([paddock.PADDOCK, "run", "--image", "one:1", "--", "/bin/sh", "-c", "echo up; cat; :"], env=keeper.env,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"up\n"
        done = keeper.call("image", "rm", "one:1", check=False)
        assert done.returncode == 125 and "in use" in done.stderr, done
        child.stdin.close()
        assert child.wait(paddock.seconds(30)) == 0


def test_a_name_that_moves_on_is_what_the_next_sandbox_has():
    """By a server, which asks for the image by its name, while kits of what it meant before wait."""
    with Server({"requests_per_s": 0, "creates_per_s": 0, "providers": "jail", "pool_max": 0, "storage": "memory",
                 "image_pull": "never"}) as server:
        client = server.client()
        archives = [images.saved(Path(server.directory) / f"{mark}.tar", [images.base(), layer(entry("mark", mark.encode()))],
                                 name="one:1") for mark in ("odd", "even")]
        for at in range(paddock.rounds(12, 1000)):
            mark = ("odd", "even")[at % 2]
            subprocess.run([paddock.PADDOCK, "image", "import", archives[at % 2]], env=server.env, check=True, capture_output=True)
            for _ in range(3):
                made = client.post("/v1/sandboxes", json={"image": "one:1"})
                assert made.status == 201, made
                url = f"/v1/sandboxes/{made.json()['id']}"
                told = client.post(f"{url}/exec", json={"command": "cat /mark"}).json()
                assert told["stdout"] == mark, (at, told)
                assert client.delete(url).status == 204
        # While one is being built it has the lock for a moment.
        paddock.wait_for(lambda: subprocess.run([paddock.PADDOCK, "image", "rm", "one:1"], env=server.env, check=False,
                                                capture_output=True).returncode == 0, 30, "nobody uses it")
        check_error(client.post("/v1/sandboxes", json={"image": "one:1"}), 404, "not_found")
