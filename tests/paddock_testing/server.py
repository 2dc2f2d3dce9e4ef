"""A real server for a test, and a client that talks to it.

`Server` runs `paddock serve` with a state and a run directory of its own. `close` ends it with its
sandboxes and `left_behind` says what of it is still on the host. `Client` is HTTP over one
connection that is kept; every thread has its own.
"""

import contextlib
import http.client
import json
import os
import random
import re
import secrets
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from . import contract, host
from . import run as paddock

CODES = {
    "internal", "invalid", "not_found", "conflict", "unauthenticated", "method_not_allowed",
    "too_large", "rate_limited", "policy", "paused", "session_lost", "session_expired",
    "bad_gateway", "shutting_down", "denied", "unsupported", "isolation", "capacity", "no_space",
    "timeout", "lost", "protocol", "no_command", "not_executable"}


class Headers(dict):
    """Names in any case."""

    def __init__(self, pairs):
        super().__init__((name.lower(), value) for name, value in pairs)

    def __getitem__(self, name):
        return super().__getitem__(name.lower())

    def __contains__(self, name):
        return super().__contains__(name.lower())

    def get(self, name, default=None):
        return super().get(name.lower(), default)


class Response:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = Headers(headers)
        self.body = body

    def json(self):
        return json.loads(self.body)

    @property
    def text(self):
        return self.body.decode(errors="replace")

    def __repr__(self):
        return f"<{self.status} {dict(self.headers)} {self.body[:600]!r}>"


def check_error(response, status=None, code=None, field=None, says=None):
    """An error must look as api/openapi.yaml says; `status` and `code` may be lists. Gives it."""
    assert response.status >= 400, response
    assert response.headers.get("Content-Type") == "application/json", response
    body = response.json()
    assert set(body) == {"error"}, response
    error = body["error"]
    assert set(error) == {"code", "message", "details"}, response
    assert error["code"] in CODES and error["message"], response
    assert isinstance(error["details"], dict), response
    assert re.fullmatch("[0-9a-f]{16}", response.headers.get("X-Request-Id", "")), response
    if status is not None:
        assert response.status in ([status] if isinstance(status, int) else status), response
    if code is not None:
        assert error["code"] in ([code] if isinstance(code, str) else code), response
    if field is not None:
        assert error["details"].get("field") == field, response
    if says is not None:
        assert says in error["message"], response
    return error


class Client:
    """Calls with a key. `json` becomes the body with its type; `data` is the body as it is."""

    def __init__(self, address, port, key, timeout=60):
        self.host = address
        self.port = port
        self.key = key
        self.timeout = paddock.seconds(timeout)
        self.local = threading.local()

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    def with_key(self, key):
        return Client(self.host, self.port, key)

    def _connection(self):
        if getattr(self.local, "connection", None) is None:
            self.local.connection = http.client.HTTPConnection(
                self.host, self.port, timeout=self.timeout)
        return self.local.connection

    def close(self):
        connection = getattr(self.local, "connection", None)
        self.local.connection = None
        if connection:
            connection.close()

    def _forget_closed(self):
        """The server may close a connection that rests: the next request takes a new one."""
        connection = getattr(self.local, "connection", None)
        if connection and connection.sock and select.select([connection.sock], [], [], 0)[0]:
            self.close()

    def _send(self, connection, method, path, json_body, data, headers):
        given = {name.lower() for name in headers or {}}
        sent = dict(headers or {})
        if json_body is not None:
            data = json.dumps(json_body).encode()
            if "content-type" not in given:
                sent["Content-Type"] = "application/json"
        if self.key and not given & {"authorization", "x-api-key"}:
            sent["X-API-Key"] = self.key
        if isinstance(data, str):
            data = data.encode()
        connection.request(method, path, body=data, headers=sent)
        return connection.getresponse()

    def request(self, method, path, json=None, data=None, headers=None):
        """Sends it once: a connection that breaks under a request is the server's failure."""
        self._forget_closed()
        connection = self._connection()
        try:
            answer = self._send(connection, method, path, json, data, headers)
            body = answer.read()
        except BaseException:
            self.close()
            raise
        if answer.will_close:
            self.close()
        response = Response(answer.status, answer.getheaders(), body)
        if response.status >= 400 and method != "HEAD" and "/ports/" not in path:
            check_error(response)
        return response

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, **more):
        return self.request("POST", path, **more)

    def put(self, path, **more):
        return self.request("PUT", path, **more)

    def delete(self, path, **more):
        return self.request("DELETE", path, **more)

    def stream(self, method, path, json=None, data=None, headers=None):
        """The response, unread, on a connection of its own: close() breaks it off."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        try:
            answer = self._send(connection, method, path, json, data, headers)
        except BaseException:
            connection.close()
            raise
        sock = connection.sock
        close_answer = answer.close

        def close():
            # http.client keeps the socket open for as long as one of its files is.
            close_answer()
            with contextlib.suppress(OSError, AttributeError):
                (sock or connection.sock).shutdown(socket.SHUT_RDWR)
            connection.close()

        answer.close = close
        return answer

    def raw(self):
        """A socket to the server, for what a client library would not send."""
        return socket.create_connection((self.host, self.port), timeout=self.timeout)


marks = []  # of the ports that this process has: see free_port


def free_port():
    """A port of 127.0.0.1 that stays this process's, also while nothing listens there. The kernel gives none of
    these to a socket that asks for any (ip_local_port_range); other tests see the mark, which is an abstract
    socket: as ports these are of the network namespace, and they end with their process."""
    while True:
        port = random.randrange(20000, 32000)
        mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            mark.bind(f"\0paddock-test-port-{port}")
            with socket.socket() as s:
                s.bind(("127.0.0.1", port))
        except OSError:
            mark.close()
        else:
            marks.append(mark)
            return port


class Server:
    """`settings` are keys of the configuration; `env` is added to the server's environment."""

    def __init__(self, settings=None, env=None, config=None, key=None):
        self.directory = tempfile.mkdtemp(
            prefix="paddock-api-", dir=os.environ.get("PADDOCK_TEST_DIR", "/var/tmp"))
        os.chmod(self.directory, 0o755)
        self.state_dir = os.path.join(self.directory, "state")
        self.run_dir = os.path.join(self.directory, "run")
        self.config = os.path.join(self.directory, "paddock.conf")
        Path(self.config).write_text(config or "")
        os.chmod(self.config, 0o644)
        self.settings = dict(settings or {})
        self.extra_env = dict(env or {})
        if "providers" not in self.settings:
            self.settings |= contract.settings()
            self.extra_env |= contract.environment()
        if set(self.settings.get("providers", "jail").split(",")) <= {"jail", "local"} and "registries" not in (config or ""):
            # Such a server would ask a registry of the internet for an image that it lacks.
            self.settings.setdefault("image_pull", "never")
        self.host = "127.0.0.1"
        self.port = free_port()
        self.key = key or "e2b_" + secrets.token_hex(20)
        self.pass_fds = ()
        self.process = None
        self.end_expected = False
        self.instances = set()
        self.starts = 0

    @property
    def env(self):
        return paddock.clean_environment({
            "PADDOCK_STATE_DIR": self.state_dir, "PADDOCK_RUN_DIR": self.run_dir,
            "PADDOCK_API_KEY": self.key, **self.extra_env})

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    def argv(self):
        argv = [paddock.PADDOCK, "serve", "--listen", f"{self.host}:{self.port}",
                "--config", self.config]
        for name, value in self.settings.items():
            argv += ["--" + name.replace("_", "-"), str(value)]
        return argv

    def launch(self):
        """Starts it and waits for nothing."""
        self.starts += 1
        self.end_expected = False
        with open(os.path.join(self.directory, f"log.{self.starts}"), "wb") as log:
            self.process = subprocess.Popen(
                self.argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env,
                start_new_session=True, pass_fds=self.pass_fds)

    def start(self):
        self.launch()
        return self.wait_ready()

    def wait_ready(self):
        def answers():
            status = self.process.poll()
            assert status is None, f"the server ended with status {status}:\n{self.log()}"
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
                try:
                    connection.request("GET", "/readyz")
                    return connection.getresponse().status == 200
                finally:
                    connection.close()
            return False

        paddock.wait_for(answers, 30, "the server is ready")
        self.note_instances()
        return self

    def client(self, key=None):
        return Client(self.host, self.port, self.key if key is None else key)

    def last_log(self):
        """Of the last start."""
        return Path(self.directory, f"log.{self.starts}").read_text(errors="replace")

    def log(self):
        texts = []
        for n in range(1, self.starts + 1):
            texts.append(Path(self.directory, f"log.{n}").read_text(errors="replace"))
        return "".join(texts)

    def run(self, *words, check=True, text="", env=None):
        """A command of the program with this server's directories, such as `key create`."""
        env = {**self.env, "PADDOCK_URL": self.url, **(env or {})}
        done = subprocess.run([paddock.PADDOCK, *words], input=text, env=env,
                              capture_output=True, text=True, timeout=paddock.seconds(30))
        assert not check or done.returncode == 0, done
        return done

    def make_key(self, tenant="default", label="test"):
        return self.run("key", "create", "--tenant", tenant, "--label", label).stdout.strip()

    def rows(self, query, *values):
        """What its database has: what the next server would go by."""
        where = f"file:{self.state_dir}/server/paddock.db?mode=ro"
        with contextlib.closing(sqlite3.connect(where, uri=True, timeout=paddock.seconds(5))) as db:
            return db.execute(query, values).fetchall()

    # ---- what it is on the host ----

    def keepers(self):
        """One for each of its providers."""
        return [p for p in host.pids()
                if any(word.startswith(f"{self.run_dir}/keeper") for word in host.command_line(p))]

    def note_instances(self):
        """The names of the keeper's cgroups; a keeper that was replaced had others."""
        for pid in self.keepers():
            for target in host.descriptors(pid).values():
                if found := re.search("/paddock-[0-9a-f]{16}", target):
                    self.instances.add(found.group(0))

    def daemon(self):
        """The pid of the daemon: the child of what was started that listens."""
        def only():
            # A child has its parent's command line until it is another program.
            children = [p for p in host.descendants(self.process.pid)
                        if "serve" in host.command_line(p)]
            return children if len(children) == 1 else None

        return paddock.wait_for(only, 10, "there is one daemon")[0]

    def left_behind(self):
        found = {
            "processes": [f"{p} {' '.join(host.command_line(p))}" for p in host.pids()
                          if any(self.directory in word for word in host.command_line(p))],
            "cgroups": [c for c in host.paddock_cgroups()
                        if any(name in c for name in self.instances)],
            "mounts": [m for m in host.mounts() if self.directory in m],
            "loops": [d for d in host.loop_devices() if self.directory in d],
            # A blank image is kept for the next root of its size.
            "roots": sorted(name for name in
                            host.files_below(os.path.join(self.state_dir, "roots"))
                            if not os.path.basename(name).startswith(".blank-")),
            "spools": sorted(host.files_below(os.path.join(self.state_dir, "server", "spool"))),
        }
        return {kind: what for kind, what in found.items() if what}

    # ---- its end ----

    def expect_end(self):
        """The test ends the server, by whatever means: close() takes its death for no failure."""
        self.end_expected = True

    def send_signal(self, number):
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            self.expect_end()
        self.process.send_signal(number)

    def kill(self):
        """kill -9 of the guardian; its daemon ends with it, and the sandboxes go on."""
        self.note_instances()
        self.send_signal(signal.SIGKILL)
        return self.wait(10)

    def wait(self, limit=30):
        return self.process.wait(timeout=paddock.seconds(limit))

    def stop(self, number=signal.SIGTERM, limit=30):
        """SIGTERM keeps the sandboxes for the next start(), SIGINT ends them."""
        self.note_instances()
        self.send_signal(number)
        return self.wait(limit)

    def close(self):
        """Ends it and all its sandboxes; fails if anything of it stays, or if it died by itself."""
        try:
            if (died := self.process.poll()) is not None:
                expected, log = self.end_expected, self.log()[-4000:]
                self.start()  # in either case: its sandboxes run on
                assert expected, f"the server died by itself with {died}:\n{log}"
            status = self.stop(signal.SIGINT)
            assert status == 0, f"the server ended with {status}:\n{self.log()[-4000:]}"
            deadline = time.monotonic() + paddock.seconds(30)
            while left := self.left_behind():
                assert time.monotonic() < deadline, f"left behind: {left}\n{self.log()[-4000:]}"
                time.sleep(0.05)
        finally:
            self.remove()

    def remove(self):
        """Ends what is left of it by force, and removes its files."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.keepers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.remove()
            raise

    def __exit__(self, *_):
        self.close()
