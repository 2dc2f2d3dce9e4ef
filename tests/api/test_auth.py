"""Keys, tenants, hosts: who may ask, and for what."""

import contextlib
import os
import re
import socket
import time

import pytest

from helpers import Box, metric
from paddock_testing.run import wait_for
from paddock_testing.server import Response, check_error


@pytest.fixture(scope="module")
def other(server):
    """A client of another tenant."""
    return server.client(server.make_key("other-tenant"))


def raw(api, text):
    """One request as it is written; the whole answer, parsed."""
    with api.raw() as s:
        s.sendall(text.encode() if isinstance(text, str) else text)
        s.shutdown(socket.SHUT_WR)
        data = b""
        while piece := s.recv(65536):
            data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    return Response(int(lines[0].split()[1]), [l.split(": ", 1) for l in lines[1:]], body)


def test_a_key_is_needed_in_any_of_two_headers(api):
    url = "/v1/sandboxes"
    assert api.get(url, headers={"X-API-Key": api.key}).status == 200
    assert api.get(url, headers={"Authorization": f"Bearer {api.key}"}).status == 200
    assert api.get(url, headers={"Authorization": f"bearer {api.key}"}).status == 200


@pytest.mark.parametrize("headers", [
    {"X-API-Key": ""}, {"X-API-Key": "e2b_" + "0" * 40}, {"X-API-Key": "x"},
    {"Authorization": "Bearer"}, {"Authorization": "Bearer "}, {"Authorization": "Basic abc"},
    {"Authorization": "Bearer e2b_" + "0" * 40}, {"X-API-Key": "e2b_" + "0" * 3000},
    {"Cookie": "key={key}"}, {"Authorization": "{key}"}])
def test_wrong_keys(api, headers):
    before = metric(api, "paddock_auth_failures_total")
    nobody = api.with_key(None)
    answer = nobody.get("/v1/sandboxes", headers={k: v.replace("{key}", api.key)
                                                  for k, v in headers.items()})
    error = check_error(answer, 401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert "000000" not in error["message"], "a key that was tried is repeated"
    assert metric(api, "paddock_auth_failures_total") == before + 1


def test_no_key_no_route(api, sandbox):
    nobody = api.with_key(None)
    for path in ("/v1/sandboxes", f"/v1/sandboxes/{sandbox}", "/v1/providers", "/v1/route",
                 f"/v1/sandboxes/{sandbox}/files?path=x", f"/v1/sandboxes/{sandbox}/ports",
                 "/v1/sessions/a/b"):
        check_error(nobody.get(path), 401, "unauthenticated")
    check_error(nobody.post(f"/v1/sandboxes/{sandbox}/exec", json={"command": "true"}), 401)
    check_error(nobody.delete(f"/v1/sandboxes/{sandbox}"), 401)
    # Not even whether a sandbox exists is told.
    a = check_error(nobody.get(f"/v1/sandboxes/{sandbox}"))["message"]
    assert a == check_error(nobody.get("/v1/sandboxes/" + "a" * 20))["message"]


def test_what_everybody_may_see(api):
    nobody = api.with_key(None)
    assert nobody.get("/healthz").body == b"ok\n"
    assert nobody.get("/readyz").body == b"ready\n"
    assert nobody.get("/openapi.yaml").body.startswith(b"openapi: 3.1")
    assert b"<html" in nobody.get("/docs").body.lower()
    assert nobody.get("/metrics").status == 200, "from loopback"


def test_another_tenant_sees_nothing(api, other, make_sandbox):
    sandbox = make_sandbox(user_id="shared", thread_id="t", metadata={"a": "tenants"})
    box = Box(api, sandbox)
    process = box.start("sleep 100")["process_id"]
    base = box.base
    mine = check_error(other.get("/v1/sandboxes/" + "b" * 20), 404)["message"]
    calls = [("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"),
             ("POST", "/extend"), ("POST", "/exec"), ("POST", "/processes"), ("GET", "/processes"),
             ("GET", f"/processes/{process}"), ("DELETE", f"/processes/{process}"),
             ("GET", f"/processes/{process}/output"), ("GET", "/files?path=/etc/passwd"),
             ("PUT", "/files?path=x"), ("DELETE", "/files?path=x"), ("GET", "/files/list?path=/"),
             ("GET", "/files/archive?path=/"), ("GET", "/env"), ("PUT", "/env"), ("GET", "/ports"),
             ("POST", "/ports/80/preview"), ("GET", "/ports/80/"), ("GET", "/metrics"),
             ("GET", "/events")]
    for method, tail in calls:
        body = {"command": "id"} if method == "POST" else None
        error = check_error(other.request(method, base + tail, json=body), 404, "not_found")
        assert error["message"] == mine.replace("b" * 20, sandbox), (method, tail)
    assert other.get("/v1/sandboxes?state=all").json()["sandboxes"] == []
    assert other.get("/v1/sandboxes?metadata.a=tenants").json()["sandboxes"] == []
    check_error(other.get("/v1/sessions/shared/t"), 404)
    # The same names are another session there.
    theirs = other.put("/v1/sessions/shared/t")
    assert theirs.status == 201 and theirs.json()["id"] != sandbox
    check_error(api.get(f"/v1/sandboxes/{theirs.json()['id']}"), 404)
    assert other.delete("/v1/sessions/shared/t").status == 204
    assert box.process(process)["running"] and box.get()["state"] == "running"


def test_retry_keys_are_each_tenants_own(api, other):
    key = {"Idempotency-Key": f"tenants-{time.monotonic_ns()}"}
    mine = api.post("/v1/sandboxes", json={}, headers=key)
    theirs = other.post("/v1/sandboxes", json={}, headers=key)
    assert mine.json()["id"] != theirs.json()["id"]
    assert "Idempotent-Replayed" not in theirs.headers
    api.delete(f"/v1/sandboxes/{mine.json()['id']}")
    other.delete(f"/v1/sandboxes/{theirs.json()['id']}")


def test_keys_are_made_listed_and_revoked(server):
    key = server.make_key("revoked-tenant", "to be revoked")
    assert re.fullmatch("e2b_[0-9a-f]{40}", key)
    client = server.client(key)
    made = client.post("/v1/sandboxes")
    assert made.status == 201
    listed = server.run("key", "list").stdout
    line = next(l for l in listed.splitlines() if "to be revoked" in l)
    assert "revoked-tenant" in line and key not in listed and "valid" in line
    second = server.make_key("revoked-tenant", "another one")
    server.run("key", "revoke", line.split()[0])
    wait_for(lambda: client.get("/v1/sandboxes").status == 401, 10, "the key is not valid any more")
    assert "revoked" in next(l for l in server.run("key", "list").stdout.splitlines()
                             if "to be revoked" in l)
    # The tenant's sandboxes stay, for its other keys.
    again = server.client(second)
    assert [s["id"] for s in again.get("/v1/sandboxes").json()["sandboxes"]] == [made.json()["id"]]
    assert again.delete(f"/v1/sandboxes/{made.json()['id']}").status == 204


def test_nothing_of_a_key_is_on_disk(server, api):
    key = server.make_key("disk-tenant")
    assert server.client(key).get("/v1/sandboxes").status == 200
    for top, _, names in os.walk(os.path.join(server.state_dir, "server")):
        for name in names:
            data = b""
            with contextlib.suppress(FileNotFoundError), open(os.path.join(top, name), "rb") as f:
                data = f.read()  # the database's own come and go
            assert key.encode() not in data and api.key.encode() not in data, name
    assert key not in server.log() and api.key not in server.log()


# ---- hosts ----


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example",
                                  "127.0.0.1.evil.example", "xlocalhost"])
def test_a_page_of_somebody_else_cannot_reach_it(api, host):
    """DNS rebinding: the name in Host is the page's."""
    for path in ("/v1/sandboxes", "/healthz", "/metrics"):
        answer = raw(api, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nX-API-Key: {api.key}\r\n\r\n")
        check_error(answer, 403, "denied", says=host.split(":")[0])


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80", "10.1.2.3"])
def test_hosts_of_its_own(api, host):
    answer = raw(api, f"GET /v1/sandboxes HTTP/1.1\r\nHost: {host}\r\nX-API-Key: {api.key}\r\n\r\n")
    assert answer.status == 200, answer


def test_no_cookies_and_no_other_origins(api):
    for path in ("/v1/sandboxes", "/healthz", "/docs", "/openapi.yaml"):
        answer = api.get(path, headers={"Origin": "https://evil.example"})
        assert "Set-Cookie" not in answer.headers
        assert "Access-Control-Allow-Origin" not in answer.headers
    check_error(api.request("OPTIONS", "/v1/sandboxes"), 405, "method_not_allowed")
