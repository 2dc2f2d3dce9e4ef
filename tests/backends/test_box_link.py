"""paddock-box in containers of a real engine without any directory of this machine: put in by the engine's archive
call, joined by its exec, and joined again after a cut. The keeper's end is tests/paddock_testing/link.py."""

import io
import json
import os
import socket
import struct
import tarfile
import uuid

import pytest

from paddock_testing import link
from paddock_testing import run as paddock

BOX = paddock.TOP / "build" / "src" / "paddock-box"
CAPABILITIES = ["CHOWN", "KILL", "SETGID", "SETPCAP", "SETUID"]
PIPES = ((link.AWAY, link.PIPE), (link.BACK, link.PIPE), (0, link.SAME))


class Joined:
    """What an engine's exec reads and writes, as one stream."""

    def __init__(self, engine, container):
        body = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Cmd": ["/.paddock/box", "join"],
                "User": "0"}
        name = json.loads(engine.good("POST", f"/containers/{container}/exec", body))["Id"]
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(paddock.seconds(60))
        self.sock.connect(engine.socket)
        text = b'{"Detach": false, "Tty": false}'
        self.sock.sendall(b"POST /exec/%s/start HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
                          b"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: %d\r\n\r\n%s"
                          % (name.encode(), len(text), text))
        head = b""
        while b"\r\n\r\n" not in head:
            piece = self.sock.recv(1)
            assert piece, head
            head += piece
        assert b" 101 " in head.split(b"\r\n", maxsplit=1)[0], head
        self.said = b""

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            piece = self.sock.recv(count - len(data))
            if not piece:
                return b""
            data += piece
        return data

    def send(self, data):
        self.sock.sendall(data)

    def recv(self):
        """The engine puts a head before each piece: 1 is standard output, 2 is standard error."""
        while True:
            head = self._exactly(8)
            if not head:
                return b""
            data = self._exactly(struct.unpack(">I", head[4:])[0])
            if head[0] == 1:
                return data
            self.said += data

    def cut(self):
        self.sock.close()


class Box:
    def __init__(self, engine, image, user="0", lease=60, **more):
        self.engine, self.key, self.id = engine, os.urandom(32), os.urandom(16)
        self.name = f"paddock-link-{uuid.uuid4().hex[:12]}"
        command = ["/.paddock/box", "run", "key=/.paddock/key", f"box={self.id.hex()}", f"lease={lease}"]
        host = {"NetworkMode": "none", "CapDrop": ["ALL"], "CapAdd": CAPABILITIES, "SecurityOpt": ["no-new-privileges"]}
        engine.good("POST", f"/containers/create?name={self.name}",
                    {"Image": image, "Entrypoint": command, "User": user, "HostConfig": {**host, **more}})
        engine.good("PUT", f"/containers/{self.name}/archive?path=/", self._archive(int(user)),
                    headers={"Content-Type": "application/x-tar"})
        engine.good("POST", f"/containers/{self.name}/start")

    def _archive(self, uid):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for name, mode, data in ((".paddock", 0o755, None), (".paddock/key", 0o400, self.key),
                                     (".paddock/box", 0o555, BOX.read_bytes())):
                info = tarfile.TarInfo(name)
                info.mode, info.uid, info.gid = mode, uid, uid
                info.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
                info.size = len(data or b"")
                tar.addfile(info, io.BytesIO(data or b""))
        return out.getvalue()

    def join(self, keeper=None):
        return (keeper or link.Keeper(self.key, self.id)).connect(self.stream())

    def stream(self):
        self.connection = Joined(self.engine, self.name)
        return self.connection

    def runs(self):
        return json.loads(self.engine.good("GET", f"/containers/{self.name}/json"))["State"]["Running"]

    def log(self):
        return self.engine.call("GET", f"/containers/{self.name}/logs?stdout=1&stderr=1")[1]

    def remove(self):
        self.engine.call("DELETE", f"/containers/{self.name}?force=1")


@pytest.fixture
def box(dockerd, images):
    made = []

    def make(image="sh", **more):
        made.append(Box(dockerd, images[image], **more))
        return made[-1]

    yield make
    for one in made:
        one.remove()


@pytest.mark.parametrize("image,program", [("bash", "/bin/busybox"), ("sh", "/bin/busybox"), ("none", "/busybox")])
def test_a_command_in_any_image(box, image, program):
    keeper = box(image).join()
    name, (given, output, _) = keeper.exec([program, "sh", "-c", "echo begin; cat; exit 3"], *PIPES)
    keeper.write(given, b"from far away\n")
    keeper.end(given)
    assert keeper.result(name) == 3 << 8
    assert keeper.channels[output].got == b"begin\nfrom far away\n"


def test_any_uid_without_a_capability(box):
    keeper = box("sh", user="12345", CapAdd=[]).join()
    name, (_, output, _) = keeper.exec(["id", "-u"], *PIPES, uid=12345)
    assert keeper.result(name) == 0
    assert keeper.channels[output].got == b"12345\n"


def test_every_byte_and_every_end_once_when_the_link_is_cut(box):
    one = box()
    keeper = one.join()
    name, (given, output, _) = keeper.exec(["sh", "-c", "echo once; cat"], *PIPES)
    data = b"".join(struct.pack("<I", i) for i in range(50000))
    cuts = 0
    for at in range(0, len(data), 20000):
        keeper.write(given, data[at:at + 20000])
        for _ in range(5):
            keeper.turn()
        one.connection.cut()
        keeper = one.join(keeper)
        cuts += 1
    keeper.end(given)
    assert keeper.result(name) == 0
    assert keeper.channels[output].got == b"once\n" + data
    assert cuts == 10
    assert sum(kind == link.TYPES["EXITED"] for kind, *_ in keeper.frames) == 1


def test_a_terminal(box):
    keeper = box().join()
    name, (terminal, _, _) = keeper.exec(["sh", "-c", "test -t 0 && echo a terminal"],
                                         (link.AWAY | link.BACK, link.TERMINAL), (0, link.SAME), (0, link.SAME), flags=1)
    assert keeper.result(name) == 0
    assert keeper.channels[terminal].got == b"a terminal\r\n"


def test_commands_find_no_key_and_cannot_speak_for_the_keeper(box):
    one = box()
    keeper = one.join()
    name, (_, output, _) = keeper.exec(
        ["sh", "-c", "ls /.paddock; cat /.paddock/key /proc/1/environ /proc/1/mem; "
         "for p in /proc/[0-9]*; do read n <$p/comm; [ $n = paddock-link ] && echo found && kill -9 ${p#/proc/} && echo killed; "
         "cat $p/mem 2>/dev/null | head -c1; done; true"], *PIPES)
    keeper.result(name)
    text = keeper.channels[output].got
    assert b"found" in text and b"killed" not in text and one.key not in text and text.startswith(b"box\n"), text

    # Whoever has no key is refused; the control is who has it.
    with pytest.raises((link.Refused, ConnectionError)):
        link.Keeper(os.urandom(32), one.id).connect(one.stream())
    name, (_, output, _) = one.join(keeper).exec(["echo", "still here"], *PIPES)
    assert keeper.result(name) == 0


def test_the_box_ends_when_it_is_told_and_when_nobody_comes(box):
    told, left = box(), box(lease=1)
    told.join().bye()
    for one in (told, left):
        paddock.wait_for(lambda: not one.runs(), 60, "the box ends")
