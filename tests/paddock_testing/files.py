"""The file routes of a sandbox, as short calls, and a raw connection for what a client library would
never do."""

import base64
import http.client
import io
import json
import socket
import tarfile
import threading
import time
from urllib.parse import quote, urlencode, urlsplit

from . import run as paddock


def header(response, name):
    """Headers come as a dict or a message, in any case."""
    for key, value in dict(response.headers).items():
        if key.lower() == name.lower():
            return value
    return None


class Files:
    def __init__(self, api, sandbox):
        self.api = api
        self.sandbox = sandbox
        self.base = f"/v1/sandboxes/{sandbox}/files"

    def url(self, tail="", **query):
        query = {k: str(v).lower() if isinstance(v, bool) else v for k, v in query.items()}
        return self.base + tail + ("?" + urlencode(query, quote_via=quote) if query else "")

    def get(self, path, headers=None, **query):
        return self.api.get(self.url(path=path, **query), headers=headers or {})

    def put(self, path, data, headers=None, **query):
        return self.api.put(self.url(path=path, **query), data=data, headers=headers or {})

    def delete(self, path, **query):
        return self.api.delete(self.url(path=path, **query))

    def stat(self, path, **query):
        return self.api.get(self.url("/stat", path=path, **query))

    def list(self, path=".", **query):
        return self.api.get(self.url("/list", path=path, **query))

    def post(self, what, user=None, **body):
        return self.api.post(self.url("/" + what, **({"user": user} if user else {})), json=body)

    def search(self, **body):
        return self.post("search", **body)

    def tar(self, path="."):
        return self.api.get(self.url("/archive", path=path))

    def untar(self, data, path="."):
        return self.api.put(self.url("/archive", path=path), data=data,
                            headers={"Content-Type": "application/x-tar"})

    def run(self, command, **more):
        """A command in the sandbox: its standard output. It must succeed."""
        answer = self.api.post(f"/v1/sandboxes/{self.sandbox}/exec",
                               json={"command": command, **more})
        assert answer.status == 200, answer.body
        result = answer.json()
        assert result["exit_code"] == 0, (command, result)
        return result["stdout"]

    def text(self, path):
        answer = self.get(path)
        assert answer.status == 200, answer.body
        return answer.body.decode()

    def raw(self):
        return Raw(self.api)

    def watch(self, path=".", **query):
        return Watch(self, path, **query)


def error(response, status, code, word=""):
    """The answer is this error, and its message has the word."""
    assert response.status == status, (response.status, response.body[:500])
    said = response.json()["error"]
    assert said["code"] == code, said
    assert word in said["message"], said
    return said


class Raw:
    """A connection that sends what it is told to, whatever that is."""

    def __init__(self, api):
        where = urlsplit(api.url)
        self.key = api.key
        self.host = where.netloc
        self.socket = socket.create_connection((where.hostname, where.port),
                                               timeout=paddock.seconds(30))

    def head(self, method, target, *headers):
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self.host}",
                 f"Authorization: Bearer {self.key}", *headers, "", ""]
        self.socket.sendall("\r\n".join(lines).encode())
        return self

    def send(self, data):
        self.socket.sendall(data)
        return self

    def answer(self, method="GET"):
        response = http.client.HTTPResponse(self.socket, method=method)
        response.begin()
        return response

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Watch:
    """Reads events in a thread until it is closed."""

    def __init__(self, files, path, **query):
        self.events = []
        self.lines = []
        self.raw = files.raw()
        self.raw.head("GET", files.url("/watch", path=path, **query))
        self.response = self.raw.answer()
        self.status = self.response.status
        self.ended = False
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        name = ""
        try:
            while line := self.response.readline():
                line = line.decode().rstrip("\n")
                self.lines.append(line)
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    self.events.append((name, json.loads(line[6:])))
            self.ended = True
        except (OSError, ValueError, http.client.HTTPException):
            pass

    def wait(self, name, path=None, seconds=10):
        """The data of the first event of that name (and path)."""
        end = time.monotonic() + paddock.seconds(seconds)
        while time.monotonic() < end:
            for event, data in list(self.events):
                if event == name and (path is None or data["path"] == path):
                    return data
            time.sleep(0.02)
        raise AssertionError(f"no {name} of {path}: {self.events[:50]}")

    def close(self):
        try:
            self.raw.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.thread.join(paddock.seconds(10))
        self.raw.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def make_tar(*members, format=tarfile.PAX_FORMAT):
    """Members are (name, contents) or TarInfo."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as t:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                t.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            t.addfile(info, io.BytesIO(member[1]))
    return out.getvalue()


def tar_member(name, kind=tarfile.REGTYPE, link="", mode=0o644, **more):
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    info.mode = mode
    for key, value in more.items():
        setattr(info, key, value)
    return info


def bytes_of(entry, key="path"):
    """The name of an entry, exactly."""
    coded = entry.get(key + "_base64")
    return base64.b64decode(coded) if coded else entry[key].encode()
