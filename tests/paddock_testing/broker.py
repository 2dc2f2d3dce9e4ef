"""Plays keeper to a broker: `paddock-remote broker KIND` on a socket, requests in, answers out.

Formats are those of src/wire (frame.h, codec.h, msg.c) in the host's byte order.
"""

import fcntl
import os
import re
import secrets
import shutil
import socket
import struct
import subprocess
import tempfile
from pathlib import Path

from . import run as paddock

MAGIC = 0x314B4450
ROOT = Path(__file__).resolve().parents[2]


def _types():
    """The numbers of the messages, from their header."""
    text = (ROOT / "src/wire/msg.h").read_text()
    body = re.search(r"enum wire_type \{(.*?)\};", text, re.S)[1]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    names = re.findall(r"\b(WIRE_[A-Z_]+)\b", body)
    return {name.removeprefix("WIRE_"): i + 1 for i, name in enumerate(names)}


def _codes():
    text = (ROOT / "src/base/err.h").read_text()
    return re.findall(r'X\(PD_[A-Z_]+, "([a-z_]+)"', text)


TYPES = _types()
CODES = _codes()


def text(value):
    raw = value.encode()
    return struct.pack("I", len(raw)) + raw + b"\0"


def spec(image="", root_name="", memory=256 << 20, pids=64, cpu=1000, rung=0, profile=0, network=0):
    return (struct.pack("=3I5Q", profile, network, rung, memory, pids, cpu, 1 << 30, 100000)
            + text("") + text(root_name) + text(image) + text("") + struct.pack("I", 0))


class Answer:
    def __init__(self, kind, payload, fds):
        self.kind, self.payload, self.fds = kind, payload, fds
        self.code = self.says = ""
        if kind == "ERROR":
            code, _, length = struct.unpack_from("=IiI", payload)
            self.code, self.says = CODES[code], payload[12:12 + length].decode()
        elif kind == "DONE" and payload:
            self.says = payload[4:-1].decode()
        elif kind == "BUILT":
            self.rung, _, _, self.pid = struct.unpack("IIIi", payload)
        elif kind == "USAGE":
            names = "memory memory_peak cpu_usec pids oom_kills pids_refused disk_used disk_total"
            self.usage = dict(zip(names.split(), struct.unpack("=8Q", payload)))

    def close(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def __repr__(self):
        return f"<{self.kind} {self.code} {self.says!r} fds={self.fds}>"


def send(sock, kind, payload=b"", fds=()):
    head = struct.pack("=IHHIIQ16s", MAGIC, TYPES[kind], len(fds), len(payload), 0, 0,
                       secrets.token_bytes(16))
    socket.send_fds(sock, [head + payload], fds)


def receive(sock):
    """The next answer, or None when the other end is closed."""
    data, fds, _, _ = socket.recv_fds(sock, 1 << 18, 8)
    if not data:
        return None
    _, kind, _, length, _, _, _ = struct.unpack_from("=IHHIIQ16s", data)
    names = {number: name for name, number in TYPES.items()}
    assert len(data) == 40 + length, data
    return Answer(names[kind], data[40:], fds)


class Broker:
    def __init__(self, engine, *options, instance=None, state=None, program=None, init=None):
        self.engine = engine
        self.instance = instance or secrets.token_hex(8)
        self.made_state = None if state else tempfile.mkdtemp(prefix="paddock-broker-")
        self.state = state or self.made_state
        program = program or os.path.join(os.path.dirname(paddock.PADDOCK), "paddock-remote")
        self.init = init or os.environ.get("PADDOCK_TEST_INIT") or str(ROOT / "build/src/paddock-init")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        image = os.open(self.init, os.O_RDONLY)
        far = fcntl.fcntl(theirs, fcntl.F_DUPFD, 64), fcntl.fcntl(image, fcntl.F_DUPFD, 64)
        self.process = subprocess.Popen(
            ["bash", "-c", 'exec "${@:3}" 3<&"$1" 4<&"$2"', "broker", *map(str, far), program,
             "broker", engine.kind, "--instance", self.instance, "--state", self.state, "--host",
             engine.host, *options],
            stdin=subprocess.DEVNULL, pass_fds=far)
        theirs.close()
        for fd in (image, *far):
            os.close(fd)
        self.sock = ours
        self.controls = []
        self.sock.settimeout(paddock.seconds(120))

    def send(self, kind, payload=b"", fds=()):
        send(self.sock, kind, payload, fds)

    def receive(self):
        answer = receive(self.sock)
        assert answer, f"the broker is gone: {self.process.poll()}"
        return answer

    def ask(self, kind, payload=b"", fds=()):
        self.send(kind, payload, fds)
        return self.receive()

    def build(self, name, **wanted):
        """The answer, and our end of init's control socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(paddock.seconds(60))
        payload = struct.pack("II", 0, 0) + text(name) + spec(**wanted)
        answer = self.ask("BUILD", payload, [theirs.fileno()])
        theirs.close()
        self.controls.append(ours)  # a box ends with its owner's end
        return answer, ours

    def sweep(self, name):
        return self.ask("SWEEP", text(name) + text(""))

    def close(self, hard=False):
        """Closes the socket, as a keeper's death does, and waits for the broker."""
        if hard:
            self.process.kill()
        self.sock.close()
        self.process.wait(paddock.seconds(60))
        for control in self.controls:
            control.close()

    def remove(self):
        if self.process.poll() is None:
            self.close()
        if self.made_state:
            shutil.rmtree(self.made_state, ignore_errors=True)
