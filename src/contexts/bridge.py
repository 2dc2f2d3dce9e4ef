"""The driver for every other language: a bridge to a Jupyter kernel of the image, by the image's own jupyter_client.

How this works: docs/contexts.md ("What a driver speaks") has the lines. Each request `run` names its kernel; the first one starts it. What
the kernel publishes becomes events; its text too, for it has no descriptors of ours. An interrupt of this process
is passed on to the kernel, which has a process group of its own.
"""

import binascii
import collections
import json
import os
import queue
import signal
import sys

try:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    from jupyter_client.manager import KernelManager
except ImportError:
    os._exit(127)   # told as a language that is missing

EVENT_MAX = 16 << 20
EXECUTION_MAX = 64 << 20
TEXT_MAX = 1 << 20
REMEMBERED = 64
START_S = 120       # a kernel may take long to start
MARKED = 1, 2
EVENTS = 3


class Bridge:
    """The kernel behind this context, and the events that tell of it."""

    def __init__(self):
        self.manager = self.client = None
        self.request, self.seq, self.count, self.sent = "", 0, 0, 0
        self.truncated = self.runs = False
        self.seen = collections.deque(maxlen=REMEMBERED)

    def emit(self, kind, **fields):
        line = json.dumps(clean({"type": kind, "seq": self.seq + 1, **({"id": self.request} if self.request else {}), **fields}))
        if kind in ("result", "stdout", "stderr"):
            self.sent += len(line)
            if len(line) > EVENT_MAX or self.sent > EXECUTION_MAX:
                self.truncated = True
                return
        self.seq += 1
        if self.request:
            for descriptor in MARKED:
                write_all(descriptor, b"\x1e%s %d\x1e" % (self.request.encode(), self.seq))
        write_all(EVENTS, line.encode() + b"\n")

    def interrupt(self, *_):
        if self.runs and self.manager is not None:
            self.manager.interrupt_kernel()

    # ---- cells ----

    def start(self, name):
        """Starts the kernel of a name, or of a language that a kernel has."""
        specs = KernelSpecManager().get_all_specs()
        wanted = name.lower()
        found = next((spec for spec, about in specs.items()
                      if wanted in (spec.lower(), about["spec"].get("language", "").lower())), None)
        if found is None:
            raise NoSuchKernel("%s; there are: %s" % (name, ", ".join(sorted(specs)) or "none"))
        manager = KernelManager(kernel_name=found)
        nowhere = open(os.devnull, "r+b")   # what a kernel says by itself is for its operator
        manager.start_kernel(stdin=nowhere, stdout=nowhere, stderr=nowhere)
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=START_S)
        self.manager, self.client = manager, client

    def run(self, fields):
        self.count += 1
        self.sent, self.truncated = 0, False
        self.emit("start", count=self.count)
        try:
            if self.client is None:
                self.start(str(fields.get("kernel") or "python3"))
            ok = self.execute(fields.get("code") or "")
        except Exception as error:
            ok = False
            self.emit("error", name=type(error).__name__, value=str(error), traceback=str(error))
        self.emit("end", ok=ok, **({"truncated": True} if self.truncated else {}))

    def execute(self, code):
        """Runs code in the kernel and tells what it publishes, until it is idle again."""
        self.runs = True
        message = self.client.execute(code, allow_stdin=False)
        ok = True
        while True:
            try:
                said = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                if not self.manager.is_alive():
                    self.manager = self.client = None
                    raise RuntimeError("the kernel has ended; the next cell starts another one") from None
                continue
            if said["parent_header"].get("msg_id") != message:
                continue
            kind, content = said["msg_type"], said["content"]
            if kind == "status" and content["execution_state"] == "idle":
                self.runs = False
                return ok
            if kind == "stream":
                self.emit(content["name"] if content["name"] in ("stdout", "stderr") else "stdout", text=content["text"])
            elif kind in ("display_data", "execute_result"):
                self.emit("result", main=kind == "execute_result", data=self.shown(content["data"]))
            elif kind == "error":
                ok = False
                self.emit("error", name=content["ename"], value=content["evalue"], traceback="\n".join(content["traceback"]))

    def shown(self, data):
        text = data.get("text/plain", "")
        if len(text) > TEXT_MAX:
            self.truncated = True
            half = TEXT_MAX // 2
            text = "%s\n... %d characters left out ...\n%s" % (text[:half], len(text) - 2 * half, text[-half:])
        return {**data, "text/plain": text}

    # ---- requests ----

    def take(self, line):
        """A request that is damaged, or that was seen before, is left out."""
        try:
            name, crc, data = line.decode("ascii").split(" ")
            data = binascii.a2b_base64(data)
            if name in self.seen or int(crc, 16) != binascii.crc32(data):
                return
            fields = json.loads(data)
        except ValueError:
            return
        self.seen.append(name)
        self.request = name
        if fields.get("op") == "run":
            self.run(fields)
        else:
            self.emit("refused", why="no op %r: there is run" % (fields.get("op"),))
        self.request = ""


def clean(value):
    """Only what JSON can say."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    return value


def write_all(descriptor, data):
    while data:
        data = data[os.write(descriptor, data):]


def main():
    requests = os.fdopen(os.dup(0), "rb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.set_inheritable(EVENTS, False)
    sys.path.insert(0, "")
    bridge = Bridge()
    signal.signal(signal.SIGINT, bridge.interrupt)
    bridge.emit("ready", version="%d.%d.%d" % sys.version_info[:3])
    for line in requests:
        bridge.take(line.rstrip(b"\n"))
    if bridge.manager is not None:
        bridge.manager.shutdown_kernel(now=True)


main()
