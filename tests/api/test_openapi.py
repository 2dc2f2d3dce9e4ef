"""api/openapi.yaml and the server say the same: routes both ways, fields both ways, statuses, and
the shape of every error."""

import re
from pathlib import Path

import pytest

from helpers import Box
from paddock_testing.server import CODES, check_error

TOP = Path(__file__).resolve().parents[2]
TEXT = (TOP / "api" / "openapi.yaml").read_text()
METHODS = ("get", "put", "post", "delete", "patch", "head", "options")


def section(name, text=TEXT, indent=0):
    """The lines below `name:` that are deeper."""
    found = re.search(rf"^{' ' * indent}{re.escape(name)}:.*\n((?:{' ' * (indent + 1)}.*\n|\n)*)",
                      text, re.M)
    assert found, name
    return found.group(1)


def operations():
    """{(METHOD, path): set of statuses} of openapi.yaml."""
    found = {}
    paths = section("paths")
    for path in re.findall(r"^  (/\S*):$", paths, re.M):
        body = section(path, paths, 2)
        for method in METHODS:
            if re.search(rf"^    {method}:", body, re.M):
                one = section(method, body, 4)
                found[method.upper(), path] = set(re.findall(r"^        '?(\d\d\d|default)'?:", one,
                                                             re.M))
    return found


def routes():
    """{(METHOD, pattern)} of routes.c."""
    text = (TOP / "src" / "api" / "routes.c").read_text()
    words = {name: value for name, value in re.findall(r'#define (\w) (.*)', text)}

    def expand(value):
        out = ""
        for quoted, name in re.findall(r'"([^"]*)"|\b(\w)\b', value):
            out += expand(words[name]) if name else quoted
        return out

    rows = re.findall(r'\{"([A-Z*]+)", ((?:\w |\w,|"[^"]*" ?)+),? ?\w+, ', text)
    assert len(rows) > 40
    return {(method, expand(pattern)) for method, pattern in rows}


OPERATIONS = operations()


def test_every_route_is_described_and_every_description_is_a_route():
    described = {}
    for method, path in OPERATIONS:
        # What follows a port is the proxy's, of any method.
        path = path.removesuffix("/{path}") if path.endswith("/ports/{port}/{path}") else path
        described.setdefault(path, set()).add(method)
    served = {}
    for method, path in routes():
        served.setdefault(path, set()).add(method)
    assert set(described) == set(served)
    for path, methods in served.items():
        if methods == {"*"}:
            assert {"GET", "POST", "PUT", "DELETE"} <= described[path], path
        else:
            assert described[path] - {"HEAD"} == methods, path


# Enough to be accepted or refused for a reason that is not the path.
QUERY = {"/files": "?path=a", "/files/stat": "?path=a", "/files/archive": "?path=."}


@pytest.mark.parametrize("method,path", sorted(OPERATIONS))
def test_every_operation_is_served(api, sandbox, method, path):
    """Without a body and with what comes to mind: a status that is described, and never 'no such
    path' or 'no such method'."""
    box = Box(api, sandbox)
    process = box.start("sleep 100", stdin=True)["process_id"]
    url = path.format(id=sandbox, user_id="u", thread_id="t", pid=process, port="8080", path="x",
                      cid="python", eid="0", file="result.html", key_id="0123456789abcdef", name="n",
                      link_id="0", snapshot="none", ticket="0",
                      template="none", build="none", digest="none", image="none")
    tail = path.removeprefix("/v1/sandboxes/{id}")
    url += QUERY.get(tail, "")
    if path.endswith("/watch"):
        answer = api.stream(method, url)
        assert answer.status == 200 and answer.getheader("Content-Type") == "text/event-stream"
        answer.close()
        return
    answer = api.request(method, url)
    assert answer.status != 405, answer
    assert str(answer.status) in OPERATIONS[method, path], (answer, OPERATIONS[method, path])
    if answer.status >= 400 and method != "HEAD":
        assert not answer.json()["error"]["message"].startswith("there is no '/"), answer
    assert re.fullmatch("[0-9a-f]{16}", answer.headers["X-Request-Id"])
    if path == "/v1/sessions/{user_id}/{thread_id}":
        api.delete(url)
    elif answer.status == 201 and tail in ("/snapshots", "/fork"):
        api.delete(f"/v1/{'snapshots' if tail == '/snapshots' else 'sandboxes'}/{answer.json()['id']}")


@pytest.mark.parametrize("path", sorted({p for _, p in OPERATIONS if not p.endswith("/{path}")}))
def test_other_methods_are_refused(api, sandbox, path):
    url = path.format(id=sandbox, user_id="u", thread_id="t", pid="1", port="8080", cid="python", eid="0", file="result.html", key_id="0123456789abcdef", name="n",
                      link_id="0", snapshot="none", ticket="0",
                      template="none", build="none", digest="none", image="none")
    known = {m for m, p in OPERATIONS if p == path}
    for method in {"GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"} - known:
        if "/ports/" in path:
            continue  # another method is the proxy's
        answer = api.request(method, url)
        check_error(answer, 405, "method_not_allowed")
        allowed = set(answer.headers["Allow"].split(", "))
        assert known - {"HEAD"} == allowed - {"HEAD"}, (method, path)
    # Methods that it has nowhere are told before the path is looked at.
    for method in ("TRACE", "BREW", "get"):
        check_error(api.request(method, url), (400, 405), ("invalid", "method_not_allowed"))


@pytest.mark.parametrize("path", ["/v1", "/console", "/console/", "/v1/", "/v1/sandbox", "/v1/sandboxes/", "/v9/sandboxes",
                                  "/metrics/", "//v1/sandboxes", "/v1//sandboxes", "/V1/sandboxes",
                                  "/v1/sessions/a", "/v1/sessions/a/b/c", "/favicon.ico"])
def test_paths_that_are_none(api, path):
    for method in ("GET", "POST", "DELETE"):
        check_error(api.request(method, path), (404, 400), ("not_found", "invalid"))


def test_the_served_copy_is_the_file(api):
    assert api.get("/openapi.yaml").body.decode() == TEXT


def test_the_codes_are_those_of_the_schema():
    listed = re.search(r"    ErrorCode:.*?enum: \[(.*?)\]", TEXT, re.S).group(1)
    assert set(re.split(r",\s*", listed)) == CODES


# ---- fields ----


SCHEMAS = section("schemas", section("components"), 2)


def properties(schema):
    body = section("properties", section(schema, SCHEMAS, 4), 6)
    return set(re.findall(r"^        (\w+):", body, re.M))


def read_fields(name):
    """The members that a source file asks for."""
    text = (TOP / "src" / "api" / name).read_text()
    return set(re.findall(r'fields_(?!refuse)\w+\(&?f, "(\w+)"', text))


def test_the_fields_of_a_creation():
    described = properties("SandboxFields") | properties("SandboxRequest") | \
        properties("SessionRequest")
    assert described == read_fields("sandbox_json.c")


def test_the_fields_of_a_command():
    described = properties("ExecRequest") | properties("ProcessRequest")
    assert described == read_fields("exec.c")


@pytest.mark.parametrize("schema,call", [
    ("Sandbox", lambda box: box.get()),
    ("ExecResult", lambda box: box.exec("true")),
    ("Process", lambda box: box.start("true")),
    ("Usage", lambda box: box.api.get(f"{box.base}/metrics?history=true").json()),
    ("Provider", lambda box: box.api.get("/v1/providers").json()["providers"][0])])
def test_answers_have_the_fields_of_the_schema(api, sandbox, schema, call):
    described = properties(schema)
    if schema == "ExecResult":
        # The last four only where a mode was asked for.
        described |= properties("ExecEnd") - {"error", "mode", "provider", "isolation", "reason"}
    if schema == "Sandbox":
        described -= {"queue"}  # only in the answer to a creation
    if schema == "Process":
        described -= {"state"}
    if schema == "ExecResult":
        described -= {"network"}  # of a sandbox with a way out
    assert set(call(Box(api, sandbox))) == described
