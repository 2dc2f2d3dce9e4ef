"""Whatever comes in: 4xx with an error that names the field, never 5xx, never a hang."""

import contextlib
import json
import random
import socket
import time

import pytest

from helpers import Box
from paddock_testing.run import seconds
from paddock_testing.server import check_error

# What a field takes; WRONG has values of every other kind and out of range.
STR, NUM, INT, BOOL, OBJ, ARR, ENUM, SIG = "str", "num", "int", "bool", "obj", "arr", "enum", "sig"

CREATE = {
    "template": STR, "provider": ENUM, "profile": ENUM, "metadata": OBJ, "env": OBJ, "cwd": STR,
    "policy": "policy", "limits": OBJ, "limits.memory_bytes": INT, "limits.pids": INT,
    "limits.cpu": NUM, "limits.disk_bytes": INT, "limits.files": INT, "idle_timeout_s": NUM,
    "max_life_s": NUM, "queue_timeout_s": NUM}
START = {
    "command": STR, "argv": ARR, "cwd": STR, "env": OBJ, "user": ENUM, "timeout_s": NUM,
    "spool_max_bytes": INT, "file_size_bytes": INT}

# (name, method, path, a body that is fine but not carried out, {field: kind})
ROUTES = [
    ("create", "POST", "/v1/sandboxes", {}, {**CREATE, "user_id": STR, "thread_id": STR}),
    ("session", "PUT", "/v1/sessions/bad-input/t", {}, {**CREATE, "auto_retry": BOOL}),
    ("extend", "POST", "{base}/extend", {}, {"idle_timeout_s": NUM, "expires_in_s": NUM}),
    ("pause", "POST", "{base}/pause", {}, {}),
    ("resume", "POST", "{base}/resume", {}, {}),
    ("exec", "POST", "{base}/exec", {"command": "true"},
     {**START, "stdin": STR, "stdin_base64": "base64", "detached": BOOL, "output_max_bytes": INT}),
    ("processes", "POST", "{base}/processes", {"command": "true"},
     {**START, "pty": BOOL, "rows": INT, "cols": INT, "stdin": BOOL, "back_pressure": BOOL}),
    ("signal", "POST", "{base}/processes/{pid}/signal", {"signal": "SIGCONT"}, {"signal": SIG}),
    ("resize", "POST", "{base}/processes/{pid}/resize", {"rows": 24, "cols": 80},
     {"rows": INT, "cols": INT}),
    ("env", "PUT", "{base}/env", {}, {"env": OBJ, "cwd": STR}),
    ("mkdir", "POST", "{base}/files/mkdir", {"path": "d"},
     {"path": STR, "parents": BOOL, "mode": STR}),
    ("move", "POST", "{base}/files/move", {"from": "a", "to": "b"},
     {"from": STR, "to": STR, "overwrite": BOOL}),
    ("copy", "POST", "{base}/files/copy", {"from": "a", "to": "b"},
     {"from": STR, "to": STR, "recursive": BOOL}),
    ("chmod", "POST", "{base}/files/chmod", {"path": "a", "mode": "0644"},
     {"path": STR, "mode": STR}),
    ("search", "POST", "{base}/files/search", {"path": ".", "pattern": "x"},
     {"path": STR, "pattern": STR, "mode": ENUM, "glob": STR, "case_sensitive": BOOL, "limit": INT}),
    ("replace", "POST", "{base}/files/replace",
     {"path": ".", "pattern": "x", "replacement": "y"},
     {"path": STR, "pattern": STR, "replacement": STR, "mode": ENUM, "glob": STR, "dry_run": BOOL}),
    ("preview", "POST", "{base}/ports/8000/preview", {}, {"expires_in_s": NUM}),
]
BY_NAME = {row[0]: row for row in ROUTES}

HUGE = 10**30
WRONG = {
    STR: [1, True, [], {}, 1.5, ["x"]],
    NUM: ["1", True, [], {}, -1, -0.001, 1e300, HUGE, "NaN"],
    INT: ["1", True, [], {}, -1, 1.5, 1e300, HUGE, 2**64, 2**63],
    BOOL: [0, 1, "true", [], {}],
    OBJ: [1, "x", [], True, [{}]],
    ARR: [1, "x", {}, True, [], [1], ["a", None], [["a"]]],
    ENUM: [1, True, [], {}, "no-such-word", ""],
    SIG: [0, -1, 65, 1.5, True, [], {}, "", "SIGNOTHING", "sigterm", "9x", "SIGKILL ", HUGE],
    "base64": [1, [], "***", "a", "YQ", "YQ=", "Y Q==", "YQ==x"],
    "policy": [1, True, [], "no-such-policy", "", {}, {"mode": "allow"}, {"commands": ["a"]},
               {"mode": "x", "commands": ["a"]}, {"mode": "allow", "commands": []},
               {"mode": "allow", "commands": "a"}, {"mode": "allow", "commands": [1]},
               {"mode": "allow", "commands": ["a"], "x": 1}],
}


@pytest.fixture(scope="module")
def place(api):
    """A sandbox with a process that has a terminal; nothing here changes it."""
    made = api.post("/v1/sandboxes", json={})
    assert made.status == 201, made
    box = Box(api, made.json()["id"])
    box.pid = box.start("sleep 10000", pty=True)["process_id"]
    yield box
    assert box.process(box.pid)["running"], "a refused request was carried out"
    assert api.delete(box.base).status == 204
    left = api.get("/v1/sandboxes?user_id=bad-input").json()["sandboxes"]
    assert left == [], "a refused request made a session"


def url(place, row):
    return row[2].format(base=place.base, pid=place.pid)


def send(place, row, body, **headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    since = time.monotonic()
    answer = place.api.request(row[1], url(place, row), data=data,
                               headers={"Content-Type": "application/json",
                                        **{k.replace("_", "-"): v for k, v in headers.items()}})
    assert time.monotonic() - since < seconds(10), (row[0], body)
    return answer


def with_field(row, field, value):
    body = json.loads(json.dumps(row[3]))
    if field == "argv":
        body.pop("command", None)
    at = body
    *outer, name = field.split(".")
    for key in outer:
        at = at.setdefault(key, {})
    at[name] = value
    return body


@pytest.mark.parametrize("name", [row[0] for row in ROUTES])
def test_wrong_types_and_ranges_name_the_field(place, name):
    row = BY_NAME[name]
    for field, kind in row[4].items():
        for value in WRONG[kind]:
            answer = send(place, row, with_field(row, field, value))
            error = check_error(answer, 400, "invalid")
            named = error["details"].get("field", "")
            assert named == field or named.startswith((field + ".", field + "[")), \
                (name, field, value, answer)
            assert field.split(".")[-1] in error["message"], (name, field, value, answer)


@pytest.mark.parametrize("row", ROUTES, ids=lambda row: row[0])
def test_unknown_fields_are_named(place, row):
    for field in ("no_such_field", "Command", "__proto__", "", "ä" * 20, "x" * 5000):
        error = check_error(send(place, row, {**row[3], field: 1}), 400, "invalid")
        named = error["details"]["field"]
        assert named == (field or '""') or len(field) > 60, (row[0], field, error)
        assert len(error["message"]) < 1000


def test_unknown_fields_in_nested_objects_are_named(place):
    answer = send(place, BY_NAME["create"], {"limits": {"memory": 1}})
    check_error(answer, 400, "invalid", "limits.memory")


@pytest.mark.parametrize("row", [r for r in ROUTES if r[3]], ids=lambda row: row[0])
def test_missing_fields_are_named(place, row):
    for field in row[3]:
        body = {k: v for k, v in row[3].items() if k != field}
        for broken in (body, {**body, field: None}):
            answer = send(place, row, broken)
            if row[0] in ("search", "replace") and field == "path" and answer.status == 200:
                continue
            error = check_error(answer, 400, "invalid", field)
            assert field in error["message"]
    # No body at all.
    answer = place.api.request(row[1], url(place, row))
    check_error(answer, 400, "invalid")


BROKEN = {
    "empty object behind": b"{} x", "two": b"{}{}", "array": b"[]", "string": b'"x"', "number": b"1",
    "null": b"null", "open": b"{", "comma": b'{"a":1,}', "no quotes": b"{a:1}",
    "single": b"{'a':1}", "comment": b"{/* */}", "NUL byte": b'{"command":"a\0b"}',
    "NUL escape": b'{"command":"a\\u0000b"}', "NUL in key": b'{"a\\u0000":1}',
    "latin1": b'{"command":"\xe4"}', "overlong": b'{"command":"\xc0\xaf"}',
    "surrogate": b'{"command":"\xed\xa0\x80"}', "lone surrogate": b'{"command":"\\ud800"}',
    "BOM": b"\xef\xbb\xbf{}", "UTF-16": '{"a":1}'.encode("utf-16"),
    "NaN": b'{"timeout_s":NaN}', "Infinity": b'{"timeout_s":Infinity}',
    "1e999": b'{"timeout_s":1e999}', "leading zero": b'{"timeout_s":01}', "plus": b'{"timeout_s":+1}',
    "twice": b'{"timeout_s":1,"timeout_s":2}', "twice, escaped": b'{"a":1,"\\u0061":2}',
    "twice below": b'{"limits":{"pids":20,"pids":30}}', "deep array": b"[" * 100000,
    "deep object": b'{"a":' * 100000, "deep and closed": b'{"a":' * 20 + b"1" + b"}" * 20,
    "deep in a field": b'{"metadata":' + b"[" * 9 + b"]" * 9 + b"}",
    "control": b'{"command":"a\nb"}', "many values": b'{"argv":[' + b'"x",' * 20000 + b'"x"]}',
    "many keys": b"{" + b",".join(b'"k%d":1' % n for n in range(20000)) + b"}",
    "random": bytes(random.Random(7).randbytes(5000)),
}


@pytest.mark.parametrize("row", ROUTES, ids=lambda row: row[0])
def test_text_that_is_no_json_object(place, row):
    for what, body in BROKEN.items():
        answer = send(place, row, body)
        error = check_error(answer, 400, "invalid")
        assert error["message"], what


def test_a_field_that_comes_twice_is_named(place):
    error = check_error(send(place, BY_NAME["exec"], b'{"command":"true","command":"id"}'), 400)
    assert "command" in error["message"]


@pytest.mark.parametrize("row", ROUTES, ids=lambda row: row[0])
def test_content_types(place, row):
    body = json.dumps(row[3] or {"x": 1}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
                 "application/jsonx", "text/json", "", "json"):
        answer = place.api.request(row[1], url(place, row), data=body,
                                   headers={"Content-Type": kind})
        check_error(answer, 400, "invalid", says="application/json")


def test_content_types_that_are_fine(place):
    row = BY_NAME["exec"]
    for kind in ("application/json", "Application/JSON", "application/json; charset=utf-8",
                 "application/json;charset=utf-8"):
        assert send(place, row, row[3], Content_Type=kind).status == 200


@pytest.mark.parametrize("row", ROUTES, ids=lambda row: row[0])
def test_bodies_that_are_too_large(place, row):
    answer = send(place, row, b'{"x":"' + b"y" * (2 << 20) + b'"}')
    check_error(answer, 413, "too_large")


def test_a_body_that_says_it_is_huge(place):
    """Refused by its head: nobody waits for a terabyte."""
    with place.api.raw() as s:
        s.sendall(f"POST {place.base}/exec HTTP/1.1\r\nHost: localhost\r\nX-API-Key: "
                  f"{place.api.key}\r\nContent-Type: application/json\r\n"
                  f"Content-Length: 1099511627776\r\n\r\n".encode())
        s.settimeout(seconds(20))
        assert s.recv(65536).startswith(b"HTTP/1.1 413 ")


STRINGS = [
    ("create", {"user_id": "u"}, "thread_id"), ("create", {"thread_id": "t"}, "user_id"),
    ("create", {"user_id": "", "thread_id": "t"}, "user_id"),
    ("create", {"user_id": "u" * 129, "thread_id": "t"}, "user_id"),
    ("create", {"cwd": "relative"}, "cwd"), ("create", {"cwd": "/" + "x" * 5000}, "cwd"),
    ("create", {"template": "no-such"}, "template"), ("create", {"template": "../x"}, "template"),
    ("create", {"metadata": {"k": 1}}, "metadata"), ("create", {"metadata": {"k": None}}, "metadata"),
    ("create", {"metadata": {"k" * 129: "v"}}, "metadata"), ("create", {"metadata": {"": "v"}}, "metadata"),
    ("create", {"metadata": {str(n): "v" for n in range(65)}}, "metadata"),
    ("create", {"metadata": {"k": "v" * 20000}}, "metadata"),
    ("create", {"env": {"1A": "x"}}, "env"), ("create", {"env": {"A B": "x"}}, "env"),
    ("create", {"env": {"A=": "x"}}, "env"), ("create", {"env": {"": "x"}}, "env"),
    ("create", {"env": {"A": 1}}, "env"), ("create", {"env": {"A": None}}, "env"),
    ("create", {"limits": {"memory_bytes": 1}}, "limits.memory_bytes"),
    ("create", {"limits": {"pids": 0}}, "limits.pids"), ("create", {"limits": {"cpu": 0}}, "limits.cpu"),
    ("create", {"limits": {"cpu": 1e9}}, "limits.cpu"), ("create", {"limits": {"files": 0}}, "limits.files"),
    ("create", {"limits": {"disk_bytes": 1}}, "limits.disk_bytes"),
    ("create", {"idle_timeout_s": 0}, "idle_timeout_s"), ("create", {"idle_timeout_s": 1e9}, "idle_timeout_s"),
    ("create", {"max_life_s": 0}, "max_life_s"), ("create", {"queue_timeout_s": 3601}, "queue_timeout_s"),
    ("create", {"policy": {"mode": "allow", "commands": ["x" * 64]}}, "policy"),
    ("create", {"policy": {"mode": "allow", "commands": [""]}}, "policy"),
    ("exec", {"command": ""}, "command"), ("exec", {"command": "x" * 100001}, "command"),
    ("exec", {"argv": ["true"]}, "argv"), ("exec", {"cwd": "tmp"}, "cwd"), ("exec", {"cwd": ""}, "cwd"),
    ("exec", {"user": "nobody"}, "user"), ("exec", {"timeout_s": 86401}, "timeout_s"),
    ("exec", {"stdin": "x" * (1 << 20) + "y"}, "stdin"),
    ("exec", {"stdin": "a", "stdin_base64": "YQ=="}, "stdin_base64"),
    ("exec", {"output_max_bytes": (16 << 20) + 1}, "output_max_bytes"),
    ("exec", {"spool_max_bytes": 65535}, "spool_max_bytes"), ("exec", {"pty": True}, "pty"),
    ("exec", {"file_size_bytes": 0}, "file_size_bytes"), ("exec", {"env": {"A-B": "1"}}, "env"),
    ("processes", {"rows": 0}, "rows"), ("processes", {"cols": 1001}, "cols"),
    ("processes", {"stdin": "text"}, "stdin"), ("processes", {"detached": True}, "detached"),
    ("processes", {"output_max_bytes": 1}, "output_max_bytes"),
    ("resize", {"rows": 65536}, "rows"), ("env", {"cwd": "x"}, "cwd"), ("env", {"env": {"A B": None}}, "env"),
    ("extend", {"idle_timeout_s": 0.5}, "idle_timeout_s"), ("extend", {"expires_in_s": 0}, "expires_in_s"),
    ("mkdir", {"path": "d", "mode": "rwx"}, "mode"), ("mkdir", {"path": ""}, "path"),
    ("chmod", {"path": "a", "mode": "99999"}, "mode"),
    ("search", {"path": ".", "pattern": ""}, "pattern"),
]


@pytest.mark.parametrize("name,change,field", STRINGS,
                         ids=lambda v: v if isinstance(v, str) else str(v)[:40])
def test_values_that_are_not_valid(place, name, change, field):
    row = BY_NAME[name]
    error = check_error(send(place, row, {**row[3], **change}), 400, "invalid")
    named = error["details"].get("field", "")
    assert named == field or named.startswith((field + ".", field + "[")), error


# ---- parameters ----

QUERIES = [
    ("GET", "/v1/sandboxes", "limit=0", "limit"), ("GET", "/v1/sandboxes", "limit=1001", "limit"),
    ("GET", "/v1/sandboxes", "limit=x", "limit"), ("GET", "/v1/sandboxes", "limit=", "limit"),
    ("GET", "/v1/sandboxes", "limit=1e3", "limit"), ("GET", "/v1/sandboxes", "limit=-1", "limit"),
    ("GET", "/v1/sandboxes", "limit=99999999999999999999", "limit"),
    ("GET", "/v1/sandboxes", "limit=1&limit=2", "limit"),
    ("GET", "/v1/sandboxes", "state=dead", "state"), ("GET", "/v1/sandboxes", "state=", "state"),
    ("GET", "/v1/sandboxes", "cursor=nonsense", "cursor"),
    ("GET", "/v1/sandboxes", "cursor=" + "x" * 500, "cursor"),
    ("GET", "/v1/sandboxes", "user_id=" + "x" * 200, "user_id"),
    ("GET", "/v1/sandboxes", "user_id=%00", "user_id"), ("GET", "/v1/sandboxes", "user_id=%ff", "user_id"),
    ("GET", "/v1/sandboxes", "user_id=%zz", "user_id"), ("GET", "/v1/sandboxes", "user_id=%4", "user_id"),
    ("GET", "/v1/sandboxes", "nonsense=1", "nonsense"), ("GET", "/v1/sandboxes", "metadata.=1", "metadata."),
    ("GET", "/v1/sandboxes", "&".join(f"metadata.k{n}=1" for n in range(9)), "metadata.k8"),
    ("GET", "/v1/sandboxes", "metadata.a=" + "x" * 600, "metadata.a"),
    ("GET", "{base}/processes/{pid}/output", "stream=x", "stream"),
    ("GET", "{base}/processes/{pid}/output", "offset=-1", "offset"),
    ("GET", "{base}/processes/{pid}/output", "offset=9223372036854775808", "offset"),
    ("GET", "{base}/processes/{pid}/output", "limit=x", "limit"),
    ("GET", "{base}/processes/{pid}/output", "follow=maybe", "follow"),
    ("POST", "{base}/processes/{pid}/stdin", "close=perhaps", "close"),
    ("GET", "{base}/events", "limit=0", "limit"), ("GET", "{base}/events", "limit=1001", "limit"),
    ("GET", "/v1/route", "provider=x", "provider"),
    ("GET", "{base}/files", "path=", "path"), ("GET", "{base}/files", "", "path"),
    ("GET", "{base}/files", "path=a&user=x", "user"), ("PUT", "{base}/files", "path=a&mode=x", "mode"),
    ("GET", "{base}/files/list", "path=.&depth=x", "depth"),
    ("GET", "{base}/files/list", "path=.&limit=0", "limit"),
]


@pytest.mark.parametrize("method,path,query,field", QUERIES, ids=lambda v: str(v)[:30])
def test_wrong_parameters_are_named(place, method, path, query, field):
    target = path.format(base=place.base, pid=place.pid) + "?" + query
    check_error(place.api.request(method, target), 400, "invalid", field)


# Paths that take no parameters, or others.
@pytest.mark.parametrize("method,path", [
    ("POST", "/v1/sandboxes"), ("GET", "{base}"), ("DELETE", "{base}"), ("POST", "{base}/pause"),
    ("POST", "{base}/resume"), ("POST", "{base}/extend"), ("PUT", "/v1/sessions/bad-input/t"),
    ("GET", "/v1/sessions/bad-input/t"), ("DELETE", "/v1/sessions/bad-input/t"),
    ("POST", "{base}/exec"), ("POST", "{base}/processes"), ("GET", "{base}/processes"),
    ("GET", "{base}/processes/{pid}"), ("DELETE", "{base}/processes/{pid}"),
    ("POST", "{base}/processes/{pid}/signal"), ("POST", "{base}/processes/{pid}/stdin"),
    ("POST", "{base}/processes/{pid}/resize"), ("GET", "{base}/processes/{pid}/output"),
    ("GET", "{base}/env"), ("PUT", "{base}/env"), ("GET", "{base}/ports"),
    ("POST", "{base}/ports/80/preview"), ("GET", "{base}/metrics"), ("GET", "{base}/events"),
    ("GET", "{base}/files/stat"), ("GET", "{base}/files/list"), ("GET", "{base}/files/archive"),
    ("POST", "{base}/files/mkdir"), ("POST", "{base}/files/search"), ("GET", "/v1/providers"),
    ("GET", "/v1/route")])
def test_unknown_parameters_are_refused(place, method, path):
    target = path.format(base=place.base, pid=place.pid) + "?nonsense=1"
    check_error(place.api.request(method, target), 400, "invalid", "nonsense")


# ---- headers ----


@pytest.mark.parametrize("value", ["x", "1", "1.", ".1", "-1.0", "1.1.1", "1.x", "9" * 30 + ".0"])
def test_a_last_event_id_that_is_none(place, value):
    answer = place.api.get(f"{place.base}/processes/{place.pid}/output",
                           headers={"Last-Event-ID": value})
    check_error(answer, 400, "invalid", says="Last-Event-ID")


@pytest.mark.parametrize("text", [
    "GARBAGE\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/2.0\r\n\r\n", "GET /\r\n\r\n",
    "GET /healthz HTTP/1.1\r\n\r\n", "GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "GET /healthz HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n",
    "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\x01b\r\n\r\n",
    "GET /healthz HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n",
    "GET /a\x01b HTTP/1.1\r\nHost: localhost\r\n\r\n", "GET /\xe4 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
    "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
    "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
    "GET /" + "x" * 70000 + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + "A: b\r\n" * 5000 + "\r\n",
    "\x16\x03\x01\x02\x00\x01\x00", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
    ids=lambda t: repr(t)[1:40])
def test_requests_that_are_none(api, text):
    with api.raw() as s:
        s.settimeout(seconds(20))
        with contextlib.suppress(OSError):  # it may close before all was sent
            s.sendall(text.encode("latin1"))
            s.shutdown(socket.SHUT_WR)
        try:
            data = b""
            while piece := s.recv(65536):
                data += piece
        except ConnectionResetError:
            data = b""  # no answer is an answer, too
    if data:
        status = int(data.split()[1])
        assert 400 <= status < 500 or status in (501, 505), data[:200]
        assert b'{"error":{"code":' in data


def test_a_chunk_that_is_none(place):
    with place.api.raw() as s:
        s.settimeout(seconds(20))
        s.sendall(f"POST {place.base}/exec HTTP/1.1\r\nHost: localhost\r\nX-API-Key: "
                  f"{place.api.key}\r\nContent-Type: application/json\r\n"
                  f"Transfer-Encoding: chunked\r\n\r\nzz\r\n".encode())
        assert s.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_a_client_that_stops_in_the_middle(place):
    """A body that does not come holds up nobody else, and its connection can be closed."""
    stuck = []
    for _ in range(20):
        s = place.api.raw()
        s.sendall(f"POST {place.base}/exec HTTP/1.1\r\nHost: localhost\r\nX-API-Key: "
                  f"{place.api.key}\r\nContent-Type: application/json\r\n"
                  f"Content-Length: 100\r\n\r\n{{".encode())
        stuck.append(s)
    assert place.out("echo on") == "on\n"
    for s in stuck:
        s.close()
