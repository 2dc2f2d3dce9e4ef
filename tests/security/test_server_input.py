"""Wall: what requests say. Bombs in JSON, numbers and types that are none, and text that wants to be
something else where it is written down: a line of the log, an event of the audit, an escape code."""

import json
import os
import pathlib
import re
import time

import pytest

from paddock_testing import run as paddock
from paddock_testing.server import check_error

from .server_kit import (Raw, alice, bob, check_no_leak, create, execute, out, server, works)

ROUTES = [("POST", "/v1/sandboxes"), ("PUT", "/v1/sessions/u/bomb"), ("POST", "/v1/sandboxes/{id}/exec"),
          ("POST", "/v1/sandboxes/{id}/processes"), ("POST", "/v1/sandboxes/{id}/extend"),
          ("POST", "/v1/sandboxes/{id}/pause"), ("PUT", "/v1/sandboxes/{id}/env"),
          ("POST", "/v1/sandboxes/{id}/files/mkdir"), ("POST", "/v1/sandboxes/{id}/files/search"),
          ("POST", "/v1/sandboxes/{id}/ports/80/preview")]


def send(client, method, path, data):
    data = data if isinstance(data, bytes) else data.encode()
    return client.request(method, path.replace("{id}", client.sandbox), data=data,
                          headers={"Content-Type": "application/json"})


# ---- A23-A27 ----

BOMBS = {
    "deep arrays": "[" * 1000000,
    "deep objects": '{"a":' * 300000,
    "deep and closed": '{"env":' + "[" * 5000 + "]" * 5000 + "}",
    "nine levels": '{"metadata":' + '{"a":' * 9 + "1" + "}" * 10,
    "wide": "{" + ",".join(f'"k{i}":1' for i in range(150000)) + "}",
    "colliding": "{" + ",".join(f'"metadata{i}":{{}}' for i in range(100000)) + "}",
    "a long string": '{"template":"' + "a" * 2000000 + '"}',
    "a long name": '{"' + "a" * 2000000 + '":1}',
    "a long number": '{"max_life_s":' + "1" * 1000000 + "}",
    "a long exponent": '{"max_life_s":1e' + "1" * 1000000 + "}",
    "escapes": '{"template":"' + "\\u0041" * 300000 + '"}',
    "blanks": " " * 2000000 + "{",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_do_not_go_off(server, alice, name):
    """Refused on every route, in little time, and the server is there afterwards."""
    for method, path in ROUTES:
        began = time.monotonic()
        answer = send(alice, method, path, BOMBS[name])
        check_error(answer, (400, 413))
        check_no_leak(answer)
        assert len(answer.body) < 4096
        assert time.monotonic() - began < paddock.seconds(5)
    works(alice)


@pytest.mark.parametrize("text", [
    '{"template":"default","template":"base"}', '{"a":1,"\\u0061":2}', '{}{}', '{} x', '[]', 'null', '1',
    '"x"', '', ' ', '{"template":"default"', "{'template':'default'}", '{"template":"default",}',
    '{template:"default"}', '// x\n{}', '{"metadata":{"a":"b","a":"c"}}', '{"template":NaN}',
    '{"max_life_s":Infinity}', '{"max_life_s":0x10}', '{"max_life_s":01}', '{"max_life_s":+1}',
    '{"max_life_s":1.}', '{"max_life_s":.5}', '{"max_life_s":1e999}', '{"max_life_s":-1e999}',
    '\ufeff{}', '{"template":"\\ud800"}', '{"template":"\\udc00\\ud800"}', '{"template":"a\\u0000b"}',
    '{"metadata":{"a\\u0000":"b"}}', '{"metadata":{"a":"b\\u0000c"}}', '{"template":"\x01"}',
    '{"template":"\\x41"}', '{"template":"a\nb"}'])
def test_json_that_is_none(alice, text):
    """A24-A26: one meaning or none; nothing is cut at a NUL."""
    for method, path in ROUTES[:4]:
        answer = send(alice, method, path, text)
        if text.strip() == "" and path in ("/v1/sandboxes", "/v1/sessions/u/bomb"):
            if answer.status in (200, 201):  # nothing said, nothing asked for
                alice.delete(f"/v1/sandboxes/{answer.json()['id']}")
                continue
        check_error(answer, 400)


def test_bytes_that_are_no_text(alice):
    for data in (b'{"template":"\xff"}', b'{"template":"\xc0\xae"}', b'{"template":"\xed\xa0\x80"}',
                 b'{"template":"\xf5\x80\x80\x80"}', b"\xff\xfe{\x00}\x00", b"\0", b"{}\0"):
        for method, path in ROUTES[:3]:
            check_error(send(alice, method, path, data), 400)


NUMBERS = [("limits", {"memory_bytes": v}) for v in (0, -1, 1.5, "1", True, 2**63, 2**64 - 1, 2**64, 1e309)]
NUMBERS += [("limits", {"pids": v}) for v in (0, -1, 2**31, 2**32 + 64, 1e300)]
NUMBERS += [("limits", {"cpu": v}) for v in (0, -1, 1e-9, 1e9, "1", False)]
NUMBERS += [("limits", {"disk_bytes": v}) for v in (-1, 2**63, 8 * 2**60, 1.0e30)]
NUMBERS += [(name, v) for name in ("idle_timeout_s", "max_life_s", "queue_timeout_s")
            for v in (-1, 2**63, 2**63 / 1000 + 1, 1e308, "1", True, [1], {})]
NUMBERS += [("user_id", v) for v in (1, True, [], {}, "", "a" * 100000)]
NUMBERS += [("env", v) for v in ({"A=B": "c"}, {"": "x"}, {"A\n": "x"}, {"A": 1}, [], "A=b", {"A": ["x"]})]
NUMBERS += [("cwd", v) for v in ("", "relative", 1, "/" + "a" * 5000)]
NUMBERS += [("metadata", v) for v in ({"a": 1}, {"a": None}, {"a": {}}, [], "x",
                                      {str(i): "x" for i in range(1000)}, {"a": "b" * 100000})]
NUMBERS += [("policy", v) for v in ("nonesuch", {"mode": "allow"}, {"commands": []}, {"mode": "x", "commands": []},
                                    {"mode": "deny", "commands": [1]}, 1, [])]


@pytest.mark.parametrize("number", range(len(NUMBERS)))
def test_values_out_of_range(alice, number):
    """A27-A29: refused with the field's name, never cut or wrapped around."""
    name, value = NUMBERS[number]
    text = json.dumps({name: value, **({"thread_id": "t"} if name == "user_id" else {})})
    answer = send(alice, "POST", "/v1/sandboxes", text.replace("Infinity", "1e309"))
    error = check_error(answer, (400, 413))
    check_no_leak(answer)
    if "1e309" not in text.replace("Infinity", "1e309"):
        assert error["details"].get("field", "").startswith(name), error


@pytest.mark.parametrize("body", [
    {"argv": []}, {"argv": [""]}, {"argv": [1]}, {"argv": "ls"}, {"argv": ["a" * 200000]},
    {"argv": ["x"] * 100000}, {"command": ""}, {"command": 1}, {"command": ["ls"]}, {},
    {"command": "a", "argv": ["a"]}, {"command": "x" * 200000}, {"command": "true", "user": "0:0"},
    {"command": "true", "user": "-1"}, {"command": "true", "user": 0}, {"command": "true", "timeout_s": -1},
    {"command": "true", "timeout_s": 2**31}, {"command": "true", "timeout_s": 1e300},
    {"command": "true", "output_max_bytes": 2**64}, {"command": "true", "output_max_bytes": 2**40},
    {"command": "true", "spool_max_bytes": 2**63}, {"command": "true", "stdin": 1},
    {"command": "true", "stdin_base64": "%%%"}, {"command": "true", "stdin_base64": "AAA"},
    {"command": "true", "env": {"A=B": "1"}}, {"command": "true", "cwd": "x"},
    {"command": "true", "env": {"LD_PRELOAD": 1}}], ids=lambda b: str(b)[:30])
def test_commands_that_are_none(alice, body):
    answer = send(alice, "POST", "/v1/sandboxes/{id}/exec", json.dumps(body))
    check_error(answer, (400, 413))
    check_no_leak(answer)


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=1001", "limit=1e18", "limit=0x10",
                                   "limit=99999999999999999999", "limit=+1", "limit=1&limit=2", "limit=",
                                   "state=x", "state=running&state=gone", "x=1", "=1", "%00=1",
                                   "&".join(f"metadata.{i}=1" for i in range(9)),
                                   "&".join(f"metadata.{i}=1" for i in range(1000)), "user_id=%ff"],
                         ids=lambda q: q[:20])
def test_queries_that_are_none(alice, query):
    answer = alice.get("/v1/sandboxes?" + query)
    check_error(answer, (400, 414))
    check_no_leak(answer)


def test_output_cannot_be_kept_beyond_the_servers_setting(server, alice):
    """How much of a stream is kept on the server's disk is not the tenant's to choose without
    bound: no more than the configuration says. The control: less can be chosen."""
    for size in (1 << 40, 1 << 30, (64 << 20) + 1):
        for path in ("exec", "processes"):
            answer = send(alice, "POST", "/v1/sandboxes/{id}/" + path,
                          json.dumps({"command": "true", "spool_max_bytes": size}))
            check_error(answer, 400, "invalid", "spool_max_bytes")
    result = execute(alice, "head -c 3000000 /dev/zero", spool_max_bytes=1 << 20, output_max_bytes=1024)
    got = alice.get(f"/v1/sandboxes/{alice.sandbox}/processes/{result['process_id']}")
    assert got.json()["stdout_first"] >= 3000000 - (2 << 20)


# ---- A55: what is written down ----

FORGED = ('x\n{"time":"2026-01-01T00:00:00.000Z","tenant":"alice","action":"forged","sandbox":"%s"}\n'
          '\r\n2026-01-01T00:00:00.000Z error forged.event x=y\x1b[2J\x1b]0;title\x07\x9b31m\u2028\u0085\x7f')


def audit_lines(server, client):
    # An event is written behind its answer, but before the connection's next request.
    client.get("/v1/sandboxes")
    path = pathlib.Path(server.state_dir, "server", "audit.log")
    return path.read_bytes().decode(), [json.loads(l) for l in path.read_text().splitlines()]


def test_the_audit_cannot_be_forged(server, alice):
    """Whatever is in a command, one request is one line, whose other members are the server's. The
    control: the command itself is there."""
    forged = FORGED % alice.sandbox
    before = len(audit_lines(server, alice)[1])
    execute(alice, f": marker-one {json.dumps(forged)}")
    alice.post(f"/v1/sandboxes/{alice.sandbox}/exec", json={"argv": ["true", "marker-two", forged]})
    alice.post(f"/v1/sandboxes/{alice.sandbox}/exec", json={"argv": [forged]})
    alice.get(f"/v1/sandboxes/{alice.sandbox}/files?path=a%0a%7b%22action%22:%22forged%22%7d%1b%5b2J")
    alice.post(f"/v1/sandboxes/{alice.sandbox}/files/mkdir", json={"path": forged})
    text, lines = audit_lines(server, alice)
    new = lines[before:]
    assert len(new) == 5 and not [l for l in lines if l["action"] == "forged"]
    assert all(set(l) <= {"time", "tenant", "key", "request", "sandbox", "action", "command", "user",
                          "result", "exit_code", "stopped_by", "duration_ms", "command_cut"} for l in new)
    assert "marker-one" in new[0]["command"] and "marker-two" in new[1]["command"]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    # The same by the API: as many events, and none of them forged.
    events = alice.get(f"/v1/sandboxes/{alice.sandbox}/events?limit=1000").json()["events"]
    assert [e["request"] for e in events[-5:]] == [l["request"] for l in new]
    assert not [e for e in events if e["action"] == "forged"]


def test_the_sandbox_of_another_is_in_nobodys_events(server, alice, bob):
    """A command that looks like an event of another's sandbox is found by no search for it."""
    execute(bob, f': "sandbox":"{alice.sandbox}" marker-of-bob')
    bob.post(f"/v1/sandboxes/{bob.sandbox}/exec", json={"argv": [f'"sandbox":"{alice.sandbox}"']})
    bob.get(f"/v1/sandboxes/{alice.sandbox}")
    bob.post(f"/v1/sandboxes/{alice.sandbox}/exec", json={"command": "true marker-of-bob"})
    events = alice.get(f"/v1/sandboxes/{alice.sandbox}/events?limit=1000").json()["events"]
    assert events == [] or all(e["tenant"] == "alice" and "marker-of-bob" not in str(e) for e in events)
    own = bob.get(f"/v1/sandboxes/{bob.sandbox}/events").json()["events"]
    assert any("marker-of-bob" in e.get("command", "") for e in own), "the control"


def test_the_log_cannot_be_forged(server, alice):
    """Names, paths, headers and output with line ends and escape codes; the fixture's end looks at
    the whole log for control bytes as well."""
    forged = (FORGED % "x")[-100:]
    create_answer = alice.post("/v1/sandboxes", json={"user_id": forged, "thread_id": forged,
                                                      "metadata": {forged: forged}})
    assert create_answer.status == 201
    execute(alice, "printf '\\033[2J\\n2026-01-01T00:00:00.000Z error forged.event\\n' | tee /dev/stderr")
    alice.get("/v1/x%0a2026-01-01T00:00:00.000Z%20error%20forged.event")
    with Raw(alice) as raw:
        raw.head("GET", "/healthz", "User-Agent: \u00e9 forged.event", "Referer: x")
        assert raw.answer().status == 200
    alice.delete(f"/v1/sandboxes/{create_answer.json()['id']}")
    for line in server.log().splitlines():
        assert not re.search(r"\S+Z (error|info|warn|debug) forged", line), line
        assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z (debug|info|warn|error) [a-z.]+|Listening|API key|$", line), line


def test_output_in_json_is_escaped(alice):
    """Escape codes of a program are not sent to a terminal by whoever prints the JSON."""
    answer = alice.post(f"/v1/sandboxes/{alice.sandbox}/exec",
                        json={"command": "printf '\\033[2J\\033]0;x\\007\\r\\n\\0\\177\\302\\233'"})
    assert not re.search(rb"[\x00-\x09\x0b-\x1f]", answer.body)
    assert answer.json()["stdout"].startswith("\x1b[2J\x1b]0;x\x07\r\n\0")


def test_events_cannot_be_forged_by_output(alice):
    """Output with the shape of an event is data of an event."""
    answer = alice.stream("POST", f"/v1/sandboxes/{alice.sandbox}/exec",
                          json={"command": r"printf 'x\n\nevent: exit\ndata: {\"exit_code\":0}\n\n'; exit 7"},
                          headers={"Accept": "text/event-stream"})
    text = answer.read().decode()
    answer.close()
    ends = [b for b in text.split("\n\n") if re.search(r"^event: exit", b, re.M)]
    assert len(ends) == 1 and '"exit_code":7' in ends[0]


def test_events_cannot_be_forged_by_names(alice):
    """The same for names of files that a watch tells."""
    execute(alice, "mkdir -p watched")
    answer = alice.stream("GET", f"/v1/sandboxes/{alice.sandbox}/files/watch?path=watched")
    while answer.readline() != b"event: ready\n":
        pass
    execute(alice, "cd watched; touch $'a\\n\\nevent: forged\\ndata: {}\\n\\n'; touch last")
    seen = b""
    while b"last" not in seen:
        line = answer.readline()
        assert line, seen
        seen += line
    answer.close()
    assert not re.search(rb"^event: forged", seen, re.M) and b"event: created" in seen
