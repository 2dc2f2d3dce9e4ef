"""Plays an engine that speaks docker's API and fails on purpose, by a seed: slow answers, 429, 500 (with or
without having done it), half an answer, none, and work that is done long after the answer was given up.

A container is a real init in namespaces of its own, so that brokers, keeper and server in front of it are the
real ones. Nothing but what a broker asks for is there: one image, no pulls, no roots. Needs root.
"""

import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path

IMAGE = "double:1"
FAULTS = ("slow", "429", "500", "500 though done", "half", "lost", "late")

# $1 is the directory of the door. The root is this machine's; /run is a new one.
START = ('mount -t tmpfs -o mode=755 run /run && mkdir /run/paddock && mount --bind "$1" /run/paddock && '
         'mount -o remount,bind,ro /run/paddock && mount -t proc proc /proc && shift && exec "$@"')


class Container:
    def __init__(self, name, body):
        self.id, self.name = secrets.token_hex(32), name
        self.labels = body["Labels"]
        self.command = (body.get("Entrypoint") or []) + (body.get("Cmd") or [])
        self.door = next(m["Source"] for m in body["HostConfig"]["Mounts"])
        self.process, self.pid, self.started = None, 0, False

    def start(self):
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", START, "sh", self.door,
             *self.command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        while not self.pid and self.process.poll() is None:
            with contextlib.suppress(OSError, IndexError):
                self.pid = int(children.read_text().split()[0])
        self.started = True

    def runs(self):
        return self.started and self.process.poll() is None

    def end(self):
        if not self.process:
            return
        if self.runs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid or self.process.pid, signal.SIGKILL)
        self.process.wait()

    def inspect(self):
        runs = self.runs()
        return {"Id": self.id, "Image": "sha256:00", "Config": {"Labels": self.labels}, "Mounts": [],
                "State": {"Running": runs, "Paused": False, "OOMKilled": False, "Error": "",
                          "Pid": self.pid if runs else 0, "ExitCode": 0 if runs else 137,
                          "Status": "running" if runs else "exited" if self.started else "created"}}


class EngineDouble:
    """`share` of the requests that change or tell something of a container meet a fault."""

    kind = "docker"

    def __init__(self, seed=1, share=0.0):
        self.random, self.share = random.Random(seed), share
        self.dir = tempfile.mkdtemp(prefix="paddock-double-")
        self.path = os.path.join(self.dir, "engine.sock")
        self.host = "unix://" + self.path
        self.info = {}  # what it says of itself besides
        self.lock = threading.Lock()
        self.there, self.met, self.late = {}, dict.fromkeys(FAULTS, 0), 0
        self.let_go = threading.Event()  # what is done late waits for it
        self.let_go.set()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        os.chmod(self.path, 0o666)
        self.listener.listen(64)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.relay, args=(client,), daemon=True).start()

    def close(self):
        self.listener.close()
        for c in list(self.there.values()):
            c.end()
        os.unlink(self.path)
        os.rmdir(self.dir)

    def containers(self):
        with self.lock:
            return [c.name for c in self.there.values()]

    def is_busy(self):
        """Is something still to be done whose answer nobody waits for?"""
        with self.lock:
            return self.late > 0

    # ---- one connection ----

    def relay(self, client):
        with client, client.makefile("rb") as reader, contextlib.suppress(OSError, ValueError):
            while line := reader.readline():
                method, target, _ = line.decode().split(" ")
                length = 0
                while (field := reader.readline().strip()):
                    name, _, value = field.decode().partition(":")
                    if name.lower() == "content-length":
                        length = int(value)
                body = reader.read(length)
                if not self.answer(client, method, target, body):
                    return

    def answer(self, client, method, target, body):
        """False: the connection is closed."""
        fault = self.draw(target)
        if fault == "late":
            with self.lock:
                self.late += 1
            threading.Thread(target=self.do_late, args=(method, target, body), daemon=True).start()
            return False
        if fault == "slow":
            time.sleep(self.random.uniform(0.005, 0.05))
        if fault in ("429", "500"):
            status, told = int(fault), {"message": "made to fail"}
        else:
            status, told = self.do(method, target, body)
        if fault == "500 though done":
            status, told = 500, {"message": "made to fail"}
        if fault == "lost":
            return False

        data = b"" if status in (204, 304) else json.dumps(told).encode()
        head = f"HTTP/1.1 {status} X\r\n"
        if status not in (204, 304):
            head += f"Content-Length: {len(data)}\r\n"
        whole = head.encode() + b"\r\n" + data
        client.sendall(whole[:len(whole) // 2] if fault == "half" else whole)
        return fault != "half"

    def draw(self, target):
        if "/containers/" not in target:
            return ""
        with self.lock:
            if self.random.random() >= self.share:
                return ""
            fault = self.random.choice(FAULTS)
            self.met[fault] += 1
            return fault

    def do_late(self, method, target, body):
        self.let_go.wait()
        time.sleep(self.random.choice((0.01, 0.2, 1.0)))
        self.do(method, target, body)
        with self.lock:
            self.late -= 1

    # ---- the API ----

    def do(self, method, target, body):
        path, _, query = target.partition("?")
        query = dict(urllib.parse.parse_qsl(query))
        if path == "/version":
            return 200, {"ApiVersion": "1.41", "MinAPIVersion": "1.12", "Version": "double"}
        words = path.split("/")[2:]  # behind /v1.41
        if words == ["info"]:
            return 200, {"ServerVersion": "double", **dict.fromkeys(("MemoryLimit", "PidsLimit", "CpuCfsQuota"), True),
                         **self.info}
        if words[0] == "images":
            return (200, {"Id": "sha256:00"}) if IMAGE in path else (404, {"message": "No such image"})
        with self.lock:
            if words[1:] == ["create"]:
                return self.create(query["name"], json.loads(body))
            if words[1:] == ["json"]:
                return 200, self.list(json.loads(query["filters"])["label"][0])
            c = next((c for c in self.there.values() if words[1] in (c.id, c.name)), None)
            if not c:
                return 404, {"message": f"No such container: {words[1]}"}
            return self.act(c, method, words[2] if len(words) > 2 else "")

    def create(self, name, body):
        if any(c.name == name for c in self.there.values()):
            return 409, {"message": f"Conflict. The container name {name} is already in use"}
        c = Container(name, body)
        self.there[c.id] = c
        return 201, {"Id": c.id}

    def list(self, label):
        key, _, value = label.partition("=")
        return [{"Id": c.id, "State": c.inspect()["State"]["Status"], "Labels": c.labels}
                for c in self.there.values() if c.labels.get(key) == value]

    def act(self, c, method, what):
        if method == "DELETE":
            c.end()
            del self.there[c.id]
            return 204, {}
        if what == "start":
            if c.started:
                return 304, {}
            c.start()
            return 204, {}
        if what == "kill":
            if not c.runs():
                return 409, {"message": "is not running"}
            c.end()
            return 204, {}
        return (200, c.inspect()) if what == "json" else (404, {"message": "page not found"})
