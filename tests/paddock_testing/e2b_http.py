"""E2B's protocol as raw HTTP: what the SDKs send, and what they never would."""

import base64
import hashlib
import http.client
import json
import re

from . import run as paddock
from .server import Response

ENVD = 49983


class E2b:
    """Calls with a key, each on a connection of its own. `json` is sent in chunks, as the
    JavaScript SDK does, unless `chunked` is false."""

    def __init__(self, server, key=None):
        self.host = server.host
        self.port = server.port
        self.key = server.key if key is None else key

    def request(self, method, path, json_body=None, headers=None, key=True, chunked=True, data=None,
                host=None):
        sent = dict(headers or {})
        if host:
            sent["Host"] = host
        if key:
            sent["X-API-KEY"] = self.key
        if json_body is not None:
            sent["Content-Type"] = "application/json"
            data = json.dumps(json_body).encode()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=paddock.seconds(30))
        try:
            if data is not None and chunked:
                half = len(data) // 2
                connection.request(method, path, body=iter([data[:half], data[half:]]),
                                   headers=sent, encode_chunked=True)
            else:
                connection.request(method, path, body=data, headers=sent)
            answer = connection.getresponse()
            return Response(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body=None, **more):
        return self.request("POST", path, json_body=body, **more)

    def put(self, path, body=None, **more):
        return self.request("PUT", path, json_body=body, **more)

    def delete(self, path, **more):
        return self.request("DELETE", path, **more)

    # ---- sandboxes ----

    def create(self, v2=True, **body):
        """The answer to a creation, which must work."""
        made = self.post("/v2/sandboxes" if v2 else "/sandboxes", {"templateID": "base", **body})
        assert made.status == 201, made
        return made.json()

    def info(self, sandbox):
        found = self.get(f"/sandboxes/{sandbox}")
        assert found.status == 200, found
        return found.json()

    def list(self, query=""):
        found = self.get(f"/v2/sandboxes{query}")
        assert found.status == 200, found
        return found.json()

    def envd(self, method, path, sandbox, token=None, port=ENVD, **more):
        """To the sandbox's envd, by headers and without a key."""
        headers = {"E2b-Sandbox-Id": sandbox, "E2b-Sandbox-Port": str(port)}
        if token:
            headers["X-Access-Token"] = token
        headers.update(more.pop("headers", {}))
        return self.request(method, path, headers=headers, key=False, **more)

    def is_running(self, sandbox):
        """As the SDKs ask."""
        status = self.envd("GET", "/health", sandbox).status
        assert status in (204, 502), status
        return status == 204

    def run(self, sandbox, command, **more):
        """A command, by the server's own API: its output."""
        answer = self.post(f"/v1/sandboxes/{sandbox}/exec", {"command": command, **more})
        assert answer.status == 200, answer
        result = answer.json()
        assert result["exit_code"] == 0, result
        return result["stdout"]


def check_refused(response, status, says=None):
    """An error as E2B's control plane and envd have it."""
    assert response.status == status, response
    assert response.headers.get("Content-Type") == "application/json", response
    body = response.json()
    assert set(body) == {"code", "message"} and body["code"] == status, response
    if says is not None:
        assert re.search(says, body["message"]), response
    return body["message"]


def check_gateway(response, sandbox, port=None):
    """There is no such sandbox, or nothing listens on its port."""
    assert response.status == 502, response
    body = response.json()
    assert body["sandboxId"] == sandbox and body["code"] == 502, response
    if port is None:
        assert body["message"] == "The sandbox was not found" and "port" not in body, response
    else:
        assert body["port"] == port, response


def sign(token, path, operation="read", user="", expires=None):
    """What is put behind a link to a file."""
    text = f"{path}:{operation}:{user}:{token}" + (f":{expires}" if expires is not None else "")
    digest = hashlib.sha256(text.encode()).digest()
    return "v1_" + base64.b64encode(digest).decode().rstrip("=")
