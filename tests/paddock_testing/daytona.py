"""Daytona for a test: its API, the toolbox of each sandbox and the proxy of its previews, by TLS, on this machine.

A sandbox is a network, a mount and a process namespace of its own (task.py) in which nothing runs but a shell that waits.
The toolbox puts files there, runs what it is told to, clones and says which ports are in use; the proxy leads to its ports by
host, `PORT-ID.daytona.localhost`, for who has the preview's token. So what is started there is a real paddock-box.

`Daytona` is as Daytona is where that matters:

- names are unique: 409; a sandbox that is just being made is not deleted: 409, too;
- it comes by states, and its list is late (`lag_s`): what was made is there later, what is gone stays a while, in pages;
- it stops a sandbox where nobody was for `autoStopInterval` minutes, deletes it then for `autoDeleteInterval` 0, and deletes
  each after `ttlMinutes`; calls of the toolbox, `last-activity` and open previews count as somebody. `minute_s` is how
  long a minute is;
- it takes no member that it does not know, no snapshot beside an image, and no sizes for a snapshot.

`faults` is a list of Fault: what happens to requests instead. `calls` has what was asked and answered; `check_shapes`
judges them by the models of Daytona's own client packages (tests/daytona/install).
"""

import contextlib
import dataclasses
import email.parser
import email.policy
import http.server
import json
import os
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.parse
import uuid
from pathlib import Path

from . import host
from . import run as paddock
from . import task as tasks
from .tls import cert

DOMAIN = "daytona.localhost"
HERE = Path(__file__).resolve().parent
INSTALLED = paddock.TOP / "build-daytona" / "venv" / "bin" / "python"
MEMBERS = {"name", "snapshot", "user", "env", "labels", "public", "networkBlockAll", "networkAllowList", "domainAllowList", "target",
           "cpu", "memory", "disk", "autoStopInterval", "autoArchiveInterval", "autoDeleteInterval", "ttlMinutes", "buildInfo"}


def why_not():
    """Why there can be no Daytona here; "" when there can."""
    return tasks.why_not()


def shapes_why_not():
    """Brings the models of Daytona's clients, where they are not there as they are wanted; why that cannot be, or ""."""
    done = subprocess.run([paddock.TOP / "tests/daytona/install"], capture_output=True, text=True, check=False,
                          timeout=paddock.seconds(300))
    return "" if done.returncode == 0 else (done.stdout.splitlines() or ["tests/daytona/install failed"])[-1]


@dataclasses.dataclass
class Fault:
    """For the next `times` requests whose "METHOD PATH" is like `match`: `before`: they never arrive; `after`: they are done and
    nobody hears of it; `twice`: likewise, and somebody between says them again; or an answer, (status, headers, body)."""

    match: str
    how: object
    times: int = 1


class Refused(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status, self.message = status, message


class Sandbox:
    def __init__(self, there, body):
        self.there, self.body = there, body
        self.id = str(uuid.uuid4())
        self.name = body.get("name", self.id)
        self.labels = body.get("labels", {})
        self.blocked = body.get("networkBlockAll", False)
        self.state, self.desired, self.why = "creating", "started", None
        self.token = uuid.uuid4().hex
        self.made = self.seen = time.monotonic()
        self.gone = None  # when it was deleted
        self.open = 0  # previews
        self.put = []  # what files of it were made of
        self.task = None
        threading.Thread(target=self.start, daemon=True).start()

    def start(self):
        image = self.body.get("buildInfo", {}).get("dockerfileContent", "")
        if "missing" in image:
            self.state, self.why = "build_failed", "failed to build the image: manifest unknown"
            return
        self.state = "building_snapshot" if image else "pulling_snapshot"
        task = tasks.Task(["-c", "sleep infinity & wait"], {}, self.there.dir, "/bin/bash")
        with contextlib.suppress(AssertionError):
            paddock.wait_for(lambda: self.inside(task), 30, "the sandbox is up")
        time.sleep(self.there.delay_s)
        with self.there.lock:
            self.task, self.seen = task, time.monotonic()
            if self.state != "destroyed":
                self.state = "started"
                return
        self.clear()

    @staticmethod
    def inside(task):
        """Its first process, when it is in its root."""
        for pid in host.descendants(task.process.pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip() == "box":
                    return pid
        return None

    def clear(self):
        if self.task:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.task.process.pid, signal.SIGKILL)
            self.task.process.wait()
            self.task.clear()

    def delete(self):
        with self.there.lock:
            if self.state == "destroyed":
                return
            self.state = self.desired = "destroyed"
            self.gone = time.monotonic()
        self.clear()

    def lives(self):
        return self.state != "destroyed"

    def count(self, minute_s):
        """What its intervals have come to."""
        now = time.monotonic()
        if self.open:
            self.seen = now
        idle, life = self.body.get("autoStopInterval", 15), self.body.get("ttlMinutes", 0)
        if life and now - self.made > life * minute_s:
            self.delete()
        elif self.state == "started" and idle and now - self.seen > idle * minute_s:
            if self.body.get("autoDeleteInterval", -1) == 0:
                self.delete()
            else:
                self.stop()

    def stop(self):
        self.state = self.desired = "stopped"
        self.clear()

    def told(self, whole=True):
        body = self.body
        told = {"id": self.id, "organizationId": "org-1", "name": self.name, "target": body.get("target", "us"),
                "user": "root", "labels": self.labels, "public": body.get("public", False),
                "networkBlockAll": self.blocked, "cpu": body.get("cpu", 1), "gpu": 0, "memory": body.get("memory", 1),
                "disk": body.get("disk", 3), "state": self.state, "desiredState": self.desired,
                "autoStopInterval": body.get("autoStopInterval", 15), "autoDeleteInterval": body.get("autoDeleteInterval", -1),
                "toolboxProxyUrl": self.there.url + "/toolbox", "createdAt": "2026-01-01T00:00:00Z"}
        if self.why:
            told["errorReason"] = self.why
        if "domainAllowList" in body and not self.blocked:
            told["domainAllowList"] = body["domainAllowList"]
        return {**told, "env": body.get("env", {}), "kvm": False} if whole else told

    # ---- the toolbox ----

    def enter(self, *words, network=True, **more):
        """In it: as root, or as the user that the sandbox's image has."""
        pid = self.inside(self.task)
        spaces = ["-m", "-p", "-u", "-i", *(["-n"] if network else [])]
        who = ["setpriv", f"--reuid={self.there.uid}", f"--regid={self.there.uid}", "--clear-groups"] if self.there.uid else []
        return subprocess.run(["nsenter", "-t", str(pid), *spaces, f"--root=/proc/{pid}/root", f"--wd=/proc/{pid}/root", "--", *who,
                               *words], check=False, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp"}, **more)

    def execute(self, body):
        if set(body) - {"command", "cwd", "envs", "timeout"} or not isinstance(body.get("timeout", 1), int):
            raise Refused(400, "invalid request body")
        # As Daytona's daemon does: it also waits until nobody has the command's output open.
        try:
            done = self.enter("sh", input=body["command"].encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=body.get("timeout"), start_new_session=True)
        except subprocess.TimeoutExpired as late:
            raise Refused(408, "command execution timeout") from late
        return {"exitCode": done.returncode, "result": done.stdout.decode(errors="replace")}

    def upload(self, kind, data):
        form = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + data)
        parts = {p.get_param("name", header="content-disposition"): p.get_payload(decode=True) for p in form.iter_parts()}
        for number in range(len(parts) // 2):
            path = parts[f"files[{number}].path"].decode()
            self.put.append(parts[f"files[{number}].file"])
            done = self.enter("sh", "-c", 'mkdir -p "$(dirname "$1")" && cat >"$1"', "sh", path, input=parts[f"files[{number}].file"],
                              capture_output=True)
            if done.returncode:
                raise Refused(400, done.stderr.decode())
        return {}

    def clone(self, body):
        if set(body) - {"url", "path", "branch"}:
            raise Refused(400, "invalid request body")
        at = urllib.parse.urlsplit(body["url"])
        if self.blocked or self.body.get("domainAllowList") != at.hostname:
            raise Refused(400, f"dial {at.hostname}: not allowed")
        done = self.enter("git", "clone", "-q", body["url"], body["path"], network=False, capture_output=True)
        if done.returncode:
            raise Refused(404, done.stderr.decode())
        return {}

    def connect(self, port):
        return socket.create_connection((self.task.address, port), 5)

    def in_use(self, port):
        if not 3000 <= port <= 9999:
            raise Refused(400, "port must be between 3000 and 9999")
        with contextlib.suppress(OSError):
            self.connect(port).close()
            return {"isInUse": True}
        return {"isInUse": False}


class Daytona:
    """`uid`: who the toolbox is in its sandboxes."""

    def __init__(self, minute_s=60, uid=0):
        self.dir = tempfile.mkdtemp(prefix="paddock-daytona-", dir="/tmp")
        self.minute_s, self.uid = minute_s, uid
        self.lag_s, self.delay_s, self.page = 0.3, 0, 2
        self.key = "dtn_" + os.urandom(32).hex()
        self.lock = threading.RLock()
        self.sandboxes, self.calls, self.faults, self.previews = {}, [], [], set()
        self.stopped = False
        certificates = os.path.join(self.dir, "certificates")
        cert(certificates, "--domain", DOMAIN)
        self.ca = os.path.join(certificates, "ca.pem")
        self.key_file = os.path.join(self.dir, "key")
        with open(os.open(self.key_file, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write(self.key + "\n")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(os.path.join(certificates, "cert.pem"), os.path.join(certificates, "key.pem"))
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                self.request = context.wrap_socket(self.request, server_side=True)
                super().setup()

            def finish(self):  # the server closes what it has accepted, which is not the TLS on top of it
                with contextlib.suppress(OSError):
                    super().finish()
                self.request.close()

            def do_any(self):
                outer.serve(self)

            do_GET = do_POST = do_PUT = do_DELETE = do_any  # pylint: disable=invalid-name

            def log_message(self, *_args):
                pass

        class Listener(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_args):  # those who gave up waiting, or do not trust
                pass

        self.server = Listener(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.url = f"https://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        threading.Thread(target=self.count, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def settings(self, **more):
        """Of a server that rents here."""
        return {"daytona_api_key_file": self.key_file, "daytona_api_url": self.url + "/api", "daytona_ca_file": self.ca, **more}

    # ---- requests ----

    def serve(self, request):
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        at = urllib.parse.urlsplit(request.path)
        if found := re.match(rf"(\d+)-([0-9a-f-]+)\.{DOMAIN}", request.headers.get("Host", "")):
            self.pass_on(request, int(found[1]), found[2])
            return
        line = f"{request.command} {at.path}"
        with self.lock:
            fault = next((f for f in self.faults if f.times and re.fullmatch(f.match, line)), None)
            if fault:
                fault.times -= 1
        how = fault.how if fault else None
        if how == "before":
            request.close_connection = True
            return
        if isinstance(how, tuple):
            self.answer(request, *how)
            return
        status, answer = self.act(request, at, body)
        if how == "twice":
            self.act(request, at, body)
        if how in ("after", "twice"):
            request.close_connection = True
            return
        self.answer(request, status, {}, json.dumps(answer).encode())

    @staticmethod
    def answer(request, status, headers, body):
        with contextlib.suppress(OSError):
            request.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
                request.send_header(name, value)
            request.end_headers()
            request.wfile.write(body)

    def act(self, request, at, body):
        call = {"method": request.command, "path": at.path, "query": dict(urllib.parse.parse_qsl(at.query))}
        try:
            if request.headers.get("Authorization") != f"Bearer {self.key}":
                raise Refused(401, "Invalid credentials")
            if request.headers.get("Content-Type", "").startswith("multipart/"):
                call["form"] = True
            elif body:
                call["body"] = json.loads(body)
            status, answer = self.route(request, at, call, body)
        except Refused as no:
            status, answer = no.status, {"statusCode": no.status, "message": no.message, "error": "Refused"}
        with self.lock:
            self.calls.append({**call, "status": status, "answer": answer})
        return status, answer

    def route(self, request, at, call, body):
        method, path = request.command, at.path
        if (method, path) == ("POST", "/api/sandbox"):
            return 200, self.make(call["body"]).told()
        if (method, path) == ("GET", "/api/sandbox"):
            return 200, self.list(call["query"])
        for area, handle in (("/api/sandbox", self.control), ("/toolbox", self.toolbox)):
            if found := re.fullmatch(rf"{area}/([^/]+)(|/.*)", path):
                return handle(self.get(found[1], area == "/toolbox"), f"{method} {found[2]}", call, request.headers, body)
        raise Refused(404, f"Cannot {method} {path}")

    def get(self, name, only_id=False):
        with self.lock:
            for s in self.sandboxes.values():
                if s.lives() and (s.id == name or (s.name == name and not only_id)):
                    return s
        raise Refused(404, f"Sandbox with ID or name {name} not found")

    def make(self, body):
        if unknown := set(body) - MEMBERS:
            raise Refused(400, f"property {sorted(unknown)[0]} should not exist")
        if "buildInfo" in body and "snapshot" in body:
            raise Refused(400, "Cannot specify a snapshot when using a build info entry")
        if "buildInfo" not in body and {"cpu", "memory", "disk"} & set(body):
            raise Refused(400, "Cannot specify Sandbox resources when using a snapshot")
        if body.get("snapshot") == "nowhere":
            raise Refused(400, "Snapshot nowhere not found. Did you add it through the Daytona Dashboard?")
        with self.lock:
            if any(s.lives() and s.name == body.get("name") for s in self.sandboxes.values()):
                raise Refused(409, f"Sandbox with name {body['name']} already exists")
            made = Sandbox(self, body)
            self.sandboxes[made.id] = made
            return made

    def list(self, query):
        wanted, now = json.loads(query.get("labels", "{}")), time.monotonic()
        with self.lock:
            there = [s for s in self.sandboxes.values() if wanted.items() <= s.labels.items() and now - s.made > self.lag_s
                     and (s.lives() or now - s.gone < self.lag_s)]
        first = int(query.get("cursor", "0"))
        more = first + self.page < len(there)
        return {"items": [s.told(whole=False) for s in there[first:first + self.page]],
                "nextCursor": str(first + self.page) if more else None}

    def control(self, s, what, call, _headers, _body):
        if what == "GET ":
            return 200, s.told()
        if what == "DELETE ":
            if s.state in ("creating", "pulling_snapshot", "building_snapshot"):
                raise Refused(409, "Sandbox state change in progress")
            s.delete()
            return 200, s.told()
        if found := re.fullmatch(r"GET /ports/(\d+)/preview-url", what):
            return 200, {"sandboxId": s.id, "url": f"https://{found[1]}-{s.id}.{DOMAIN}:{self.port}", "token": s.token}
        if what == "POST /last-activity":
            s.seen = time.monotonic()
            return 201, None
        if what == "POST /network-settings":
            s.blocked = call["body"]["networkBlockAll"]
            return 200, s.told()
        raise Refused(404, f"Cannot {what}")

    def toolbox(self, s, what, call, headers, body):
        if s.state != "started":
            raise Refused(502, "no IP address found. Is the Sandbox started?")
        s.seen = time.monotonic()
        if what == "POST /files/bulk-upload":
            return 200, s.upload(headers["Content-Type"], body)
        if what == "POST /process/execute":
            return 200, s.execute(call["body"])
        if what == "POST /git/clone":
            return 200, s.clone(call["body"])
        if found := re.fullmatch(r"GET /port/(\d+)/in-use", what):
            return 200, s.in_use(int(found[1]))
        raise Refused(404, f"Cannot {what}")

    # ---- previews ----

    def pass_on(self, request, port, name):
        request.close_connection = True
        try:
            s = self.get(name, True)
            if request.headers.get("X-Daytona-Preview-Token") != s.token:
                raise Refused(401, "unauthorized")
            if s.state != "started":
                raise Refused(400, "the sandbox is not started")
            far = s.connect(port)
        except (Refused, OSError) as no:
            self.answer(request, getattr(no, "status", 502), {}, b"no")
            return
        head = f"{request.command} {request.path} HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in request.headers.items() if not name.lower().startswith("x-daytona"))
        with self.lock:
            s.open += 1
            self.previews.add(request.connection)
        try:
            with far, contextlib.suppress(OSError, ValueError):
                far.sendall(head.encode() + b"\r\n")
                self.splice(request.connection, far)
        finally:
            with self.lock:
                s.open -= 1
                s.seen = time.monotonic()
                self.previews.discard(request.connection)

    @staticmethod
    def splice(near, far):
        """In one thread: two must not use the same TLS connection at once."""
        while True:
            ready = [near] if near.pending() else select.select([near, far], [], [])[0]
            for end in ready:
                piece = end.recv(65536)
                if not piece:
                    return
                (far if end is near else near).sendall(piece)

    def cut(self):
        """All previews at once, at any byte."""
        with self.lock:
            for connection in self.previews:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    # ---- time, and the end ----

    def count(self):
        while not self.stopped:
            with self.lock:
                there = [s for s in self.sandboxes.values() if s.lives()]
            for s in there:
                s.count(self.minute_s)
            time.sleep(0.1)

    def live(self):
        """Those that cost money."""
        with self.lock:
            return [s for s in self.sandboxes.values() if s.lives()]

    def await_none(self, what, patience=30):
        paddock.wait_for(lambda: not self.live(), patience, what)

    def close(self):
        self.stopped = True
        self.server.shutdown()
        self.server.server_close()
        for s in self.live():
            s.delete()
        shutil.rmtree(self.dir, ignore_errors=True)

    def good_calls(self):
        with self.lock:
            return [c for c in self.calls if c["status"] < 300]


def check_shapes(calls, controls):
    """How many calls were judged; every one has to be as the models of Daytona's clients say, and no control may be."""
    both = json.dumps({"good": calls, "bad": controls})
    done = subprocess.run([INSTALLED, HERE / "daytona_shapes.py"], input=both, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout)


class Repository:
    """One that is served over HTTP, as a directory: `url` is what to clone."""

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="paddock-git-", dir="/tmp")
        work, bare = Path(self.dir, "work"), Path(self.dir, "served", "project.git")
        env = {**paddock.clean_environment(), "HOME": self.dir, "GIT_CONFIG_NOSYSTEM": "1"}

        def git(*words):
            subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example", *words], check=True, capture_output=True, env=env)

        git("init", "-q", str(work))
        (work / "hello").write_text("hello\n", encoding="ascii")
        git("-C", str(work), "add", ".")
        git("-C", str(work), "commit", "-q", "-m", "first")
        git("clone", "-q", "--bare", str(work), str(bare))
        git("-C", str(bare), "update-server-info")
        served = str(bare.parent)

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *words, **more):
                super().__init__(*words, directory=served, **more)

            def log_message(self, *_args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.host}/project.git"
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        shutil.rmtree(self.dir, ignore_errors=True)
