"""Drivers of code contexts without a server: starts one, sends it requests, and puts its three streams in order.

This is a second reading of docs/contexts.md ("What a driver speaks"), beside the server's.
"""

import atexit
import base64
import binascii
import contextlib
import itertools
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

from .run import seconds

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
EMBEDDED = {
    "bash": ["bash.sh"],
    "bridge": ["bridge.py"],
    "java": ["Driver.java"],
    "r": ["r.R"],
    "node": ["node.cjs"],
    "python": ["python.py", "python_display.py", "python_magics.py", "python_charts.py", "python_tidy.py"],
}

# Libraries keep caches in it.
HOME = tempfile.mkdtemp(prefix="paddock-drivers-")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)


@dataclass
class Language:
    name: str
    forks: bool
    listed: bool
    plain: bool
    missing: str
    usual: str
    aliases: list
    argv: list
    driver: bytes

    def is_here(self):
        return shutil.which(self.argv[0]) is not None


def languages():
    """The table as the server has it: src/contexts/languages.c, compiled with the drivers in it."""
    with tempfile.TemporaryDirectory(prefix="paddock-languages-") as place:
        blobs = []
        for name, files in EMBEDDED.items():
            blobs.append(os.path.join(place, f"{name}.S"))
            subprocess.run([os.path.join(ROOT, "scripts/embed"), f"{name}_driver", blobs[-1],
                            *(os.path.join(ROOT, "src/contexts", file) for file in files)], check=True)
        program = os.path.join(place, "print_languages")
        subprocess.run(["cc", "-I", os.path.join(ROOT, "src"), "-o", program, *blobs,
                        os.path.join(ROOT, "src/contexts/languages.c"),
                        os.path.join(ROOT, "tests/contexts/print_languages.c")], check=True)
        return dict(read_languages(subprocess.run([program], check=True, capture_output=True).stdout))


def read_languages(data):
    def word():
        nonlocal data
        text, _, data = data.partition(b"\0")
        return text.decode()

    while data:
        name = word()
        flags = [bool(word()) for _ in range(3)]
        missing, usual = word(), word()
        lists = [list(iter(word, "")) for _ in range(2)]
        size = int(word())
        yield name, Language(name, *flags, missing, usual, *lists, data[:size])
        data = data[size:]


@dataclass
class Execution:
    """What a request gave. `order` has all of it as (type, value): text, and events as they are."""
    request: str
    order: list = field(default_factory=list)

    def all(self, kind):
        return [value for what, value in self.order if what == kind]

    @property
    def stdout(self):
        return "".join(self.all("stdout"))

    @property
    def stderr(self):
        return "".join(self.all("stderr"))

    @property
    def results(self):
        return [event["data"] for event in self.all("result")]

    @property
    def main(self):
        found = [event["data"] for event in self.all("result") if event["main"]]
        assert len(found) <= 1, found
        return found[0] if found else None

    @property
    def text(self):
        return self.main and self.main.get("text/plain")

    @property
    def error(self):
        found = self.all("error")
        assert len(found) <= 1, found
        return found[0] if found else None

    @property
    def end(self):
        return self.order[-1][1]

    def kinds(self):
        """The types in order, text that follows text of its stream as one."""
        return [kind for kind, _ in itertools.groupby(kind for kind, _ in self.order)]


class Ended(AssertionError):
    """The driver has closed its events."""


class Streams:
    """The near ends of a driver's four descriptors."""

    def __init__(self):
        self.requests, self.far_requests = socket.socketpair()
        pairs = [os.pipe() for _ in range(3)]
        self.near = [near for near, _ in pairs]
        self.far = [self.far_requests.fileno(), *(far for _, far in pairs)]
        self.data = [b"", b"", b""]
        self.open = [True] * 3
        self.seq = 0
        self.numbers = itertools.count(1)

    def close_far(self):
        self.far_requests.close()
        for descriptor in self.far[1:]:
            os.close(descriptor)

    def close(self):
        self.requests.close()
        for descriptor in self.near:
            os.close(descriptor)

    def fill(self, deadline):
        """Reads once whatever there is."""
        poll = select.poll()
        for number, descriptor in enumerate(self.near):
            if self.open[number]:
                poll.register(descriptor, select.POLLIN)
        ready = poll.poll(max(0, 1000 * (deadline - time.monotonic())))
        assert ready, f"nothing came any more; so far {self.data[0][-500:]} {self.data[1][-2000:]} {self.data[2][-500:]}"
        for descriptor, _ in ready:
            number = self.near.index(descriptor)
            data = os.read(descriptor, 1 << 20)
            self.data[number] += data
            self.open[number] = bool(data)

    def event(self, limit=30):
        """The next event, with the text of both streams before it."""
        deadline = time.monotonic() + seconds(limit)
        while b"\n" not in self.data[2]:
            if not self.open[2]:
                raise Ended(f"the driver has ended: {self.data[0][-500:]} {self.data[1][-2000:]}")
            self.fill(deadline)
        line, _, self.data[2] = self.data[2].partition(b"\n")
        assert line.isascii(), line
        event = json.loads(line, parse_constant=lambda name: pytest_fail(f"{name} in an event"))
        self.seq += 1
        assert event["seq"] == self.seq, event

        texts = []
        if event["type"] != "ready":
            mark = f"\x1e{event['id']} {event['seq']}\x1e".encode()
            for number, name in enumerate(("stdout", "stderr")):
                while mark not in self.data[number]:
                    assert self.open[number], f"no mark {mark} in {name}: {self.data[number][-300:]}"
                    self.fill(deadline)
                text, _, self.data[number] = self.data[number].partition(mark)
                if text:
                    texts.append((name, text.decode("utf-8", "surrogateescape")))
        return event, texts


def pytest_fail(why):
    raise AssertionError(why)


class Driver(Streams):
    """A driver that was started, or forked from another one."""

    def __init__(self, language, *, argv=None, env=None, cwd=None, wait=True, user=None):
        super().__init__()
        self.language = language
        self.sent_line = None
        self.process = subprocess.Popen(
            argv or language.argv, stdin=self.far[0], stdout=self.far[1], stderr=self.far[2], cwd=cwd,
            env={**dict([language.usual.split("=", 1)] if language.usual else []), **clean(env)}, pass_fds=(), start_new_session=True, preexec_fn=self.place_events, close_fds=False,
            user=user)
        self.pid = self.process.pid
        self.close_far()
        with contextlib.suppress(BrokenPipeError):
            self.requests.sendall(b"%d\n" % len(language.driver) + language.driver)
        if wait:
            self.ready = self.event(60)[0]
            assert self.ready["type"] == "ready", self.ready

    def place_events(self):
        os.dup2(self.far[3], 3)
        os.closerange(4, 1024)

    def line(self, fields, request=None):
        request = request or f"r{next(self.numbers)}-{os.urandom(6).hex()}"
        if self.language.plain:
            data = fields["code"].encode("utf-8", "surrogatepass")
            more = b"".join(b"%s=%s\0" % (k.encode(), v.encode()) for k, v in (fields.get("env") or {}).items())
            words = [base64.b64encode(data)] + ([base64.b64encode(more)] if more else [])
        else:
            data = json.dumps(fields).encode()
            words = [base64.b64encode(data)]
        return request, b" ".join([request.encode(), b"%08x" % binascii.crc32(data), *words]) + b"\n"

    def send(self, fields, descriptors=(), request=None):
        request, self.sent_line = self.line(fields, request)
        if descriptors:
            socket.send_fds(self.requests, [self.sent_line], list(descriptors))
        else:
            self.requests.sendall(self.sent_line)
        return request

    def collect(self, request, until=("end",), limit=30):
        """Everything up to the event that ends the request."""
        found = Execution(request)
        while True:
            event, texts = self.event(limit)
            found.order += texts
            if event.get("id") != request:
                raise AssertionError(f"an event of another request: {event}")
            found.order.append((event["type"], event))
            if event["type"] in until:
                return found

    def run(self, code, env=None, limit=30, **more):
        fields = {"op": "run", "code": code, **({"env": env} if env else {}), **more}
        return self.collect(self.send(fields), limit=limit)

    def send_again_and_damaged(self, code):
        """Runs a cell, then sends its request again, and others that no driver may take for one."""
        first = self.send({"code": code})
        line = self.sent_line
        self.collect(first)
        _, crc, data = line.split()
        for bad in (line, b"\n", b"x\n", b"new %08x " % (int(crc, 16) ^ 1) + data + b"\n", b"new3 " + crc + b" !!!\n"):
            self.requests.sendall(bad)

    def start(self, code):
        """Sends a cell and waits until it has started."""
        request = self.send({"op": "run", "code": code})
        event, _ = self.event()
        assert event["type"] == "start", event
        return request

    def wait_for_output(self, text, stream=0, limit=30):
        deadline = time.monotonic() + seconds(limit)
        while text not in self.data[stream]:
            self.fill(deadline)

    def interrupt(self):
        os.killpg(self.pid, signal.SIGINT)

    def interrupt_until_end(self, request):
        """Once more when nothing follows, as the server does: the first one may find a program that is just starting another."""
        self.interrupt()
        deadline = time.monotonic() + 2.5
        with contextlib.suppress(AssertionError):
            while b"\n" not in self.data[2]:
                self.fill(deadline)
        if b"\n" not in self.data[2]:
            self.interrupt()
        return self.collect(request)

    def fork(self, behind=None, **more):
        """A fork, as a worker would take it in: (driver, near end of the join socket). `behind`: a cell that may still run."""
        child = Driver.__new__(Driver)
        Streams.__init__(child)
        child.language, child.process = self.language, None
        near, far = socket.socketpair()
        request = self.send({"op": "fork", **more}, [*child.far, far.fileno()])
        far.close()
        child.close_far()
        near.settimeout(seconds(30))
        said = near.recv(100)
        if behind:
            self.collect(behind)
        if not said or said.startswith(b"end"):
            near.close()
            child.close()
            return self.collect(request, until=("refused", "forked")).order[-1][1]     # refused, or dead at once
        child.ready = child.event()[0]
        near.send(b"g")
        child.pid, child.join = int(said), near
        child.forked = self.collect(request, until=("forked",)).order[-1][1]
        assert child.pid == child.forked["pid"]
        return child

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.process:
            self.process.wait(seconds(30))
        else:
            self.join.close()
        self.close()


def clean(env):
    """An environment as of a sandbox: nothing of the machine's own steers the interpreters."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": HOME, **(env or {})}
