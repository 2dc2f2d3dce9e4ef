"""What each door answers when a sandbox's provider can do less than the jail.

Needs a server of a build with tests (build-asan): it reads PADDOCK_PROVIDER_CANNOT, which takes
capabilities from its provider together with the functions behind them. The part `asan` runs this."""

import json
import struct
import urllib.error
import urllib.request

import pytest

from paddock_testing import run as paddock
from paddock_testing.e2b_http import E2b
from paddock_testing.mcp import Http
from paddock_testing.server import Server

LACKS = ["terminal", "pause", "files", "ports", "snapshot", "sleep", "usage", "signal", "background"]


@pytest.fixture(scope="module")
def half():
    env = {"PADDOCK_PROVIDER_CANNOT": ",".join(LACKS)}
    with Server({"requests_per_s": 0, "creates_per_s": 0}, env=env) as s:
        yield s


@pytest.fixture(scope="module")
def api(half):
    client = half.client()
    yield client
    client.close()


@pytest.fixture(scope="module")
def box(api):
    answer = api.post("/v1/sandboxes", json={})
    assert answer.status == 201, answer
    return answer.json()["id"]


def test_the_list_says_what_is_missing(api):
    provider, = api.get("/v1/providers").json()["providers"]
    assert not set(provider["capabilities"]) & set(LACKS)
    assert {"adopt", "stash", "roots", "trees"} <= set(provider["capabilities"])


V1 = [
    ("terminal", "POST", "processes", {"command": "true", "pty": True}),
    ("background", "POST", "processes", {"command": "true"}),
    ("pause", "POST", "pause", {}),
    ("files", "GET", "files?path=/etc/passwd", None),
    ("files", "PUT", "files?path=/workspace/a", {"a": 1}),
    ("ports", "GET", "ports", None),
    ("usage", "GET", "metrics", None),
]


@pytest.mark.parametrize("lack, method, path, body", V1, ids=[f"{v[0]}-{v[2]}" for v in V1])
def test_v1(api, box, lack, method, path, body):
    answer = api.request(method, f"/v1/sandboxes/{box}/{path}", json=body)
    assert answer.status == 501, answer
    error = answer.json()["error"]
    assert error["code"] == "unsupported"
    assert "provider jail cannot" in error["message"] and ": " in error["message"]


def test_what_every_provider_can(api, box):
    answer = api.post(f"/v1/sandboxes/{box}/exec", json={"command": "echo a"})
    assert answer.status == 200 and answer.json()["stdout"] == "a\n"


E2B = [("pause", "pause", {}), ("snapshot", "snapshots", {}), ("snapshot", "fork", {})]


@pytest.mark.parametrize("lack, path, body", E2B, ids=[e[1] for e in E2B])
def test_e2b(half, box, lack, path, body):
    """In E2B's own shape of an error."""
    request = urllib.request.Request(
        f"{half.url}/sandboxes/{box}/{path}", json.dumps(body).encode(),
        {"X-API-Key": half.key, "Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as failed:
        urllib.request.urlopen(request, timeout=paddock.seconds(30))
    error = json.load(failed.value)
    assert failed.value.code == error["code"] == 501
    assert "provider jail cannot" in error["message"]


# envd answers in the form of Connect, or in its own: both have `message`.
ENVD = [
    ("files", "GET", "/files?path=/etc/passwd&username=user", None),
    ("files", "POST", "/files?path=/tmp/a&username=user", b"x"),
    ("files", "POST", "/filesystem.Filesystem/ListDir", {"path": "/tmp"}),
    ("files", "POST", "/filesystem.Filesystem/Stat", {"path": "/tmp"}),
    ("files", "POST", "/filesystem.Filesystem/MakeDir", {"path": "/tmp/x"}),
    ("files", "POST", "/filesystem.Filesystem/Move", {"source": "/tmp/x", "destination": "/tmp/y"}),
    ("files", "POST", "/filesystem.Filesystem/Remove", {"path": "/tmp/x"}),
    ("files", "POST", "/filesystem.Filesystem/CreateWatcher", {"path": "/tmp"}),
    ("usage", "GET", "/metrics", None),
]


@pytest.fixture(scope="module")
def e2b_box(half):
    return E2b(half).create(timeout=3600)


@pytest.mark.parametrize("lack, method, path, body", ENVD, ids=[f"{e[1]}-{e[2]}" for e in ENVD])
def test_envd(half, e2b_box, lack, method, path, body):
    sent = {"json_body": body}
    if isinstance(body, bytes):
        sent = {"data": body, "chunked": False, "headers": {"Content-Type": "application/octet-stream"}}
    answer = E2b(half).envd(method, path, e2b_box["sandboxID"], e2b_box["envdAccessToken"], **sent)
    assert answer.status == 501, answer
    error = answer.json()
    assert error["code"] in ("unimplemented", 501) and "provider jail cannot" in error["message"], answer


def test_envd_streams(half, e2b_box):
    """A command with a terminal, and a watch: refused in the last envelope, or before the first."""
    for path, body in (("/process.Process/Start", {"process": {"cmd": "true"}, "pty": {
            "size": {"cols": 80, "rows": 24}}}), ("/filesystem.Filesystem/WatchDir", {"path": "/tmp"})):
        data = json.dumps(body).encode()
        answer = E2b(half).envd(
            "POST", path, e2b_box["sandboxID"], e2b_box["envdAccessToken"], chunked=False,
            data=struct.pack(">BI", 0, len(data)) + data,
            headers={"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"})
        assert b"provider jail cannot" in answer.body and b"unimplemented" in answer.body, answer


def test_e2b_metrics(half, box):
    answer = E2b(half).get(f"/sandboxes/{box}/metrics")
    assert answer.status == 501 and "provider jail cannot" in answer.text, answer


def test_e2b_ports(half, e2b_box):
    answer = E2b(half).envd("GET", "/", e2b_box["sandboxID"], port=8000)
    assert answer.status in (501, 502) and "provider jail cannot" in answer.text, answer


def test_links_to_ports(api, box):
    """Nothing is promised that leads nowhere."""
    answer = api.post(f"/v1/sandboxes/{box}/ports/8000/preview", json={})
    assert answer.status == 501 and answer.json()["error"]["code"] == "unsupported", answer


MCP = [("files", "read_file", {"path": "/etc/passwd"}),
       ("files", "write_file", {"path": "a", "content": "b"}),
       ("files", "list_files", {"path": "."}),
       ("files", "edit_file", {"path": "a", "old_text": "b", "new_text": "c"}),
       ("files", "search_files", {"pattern": "x"}),
       ("ports", "preview_port", {"port": 8000}),
       ("background", "start_process", {"command": "sleep 5"})]


@pytest.mark.parametrize("lack, tool, arguments", MCP, ids=[m[1] for m in MCP])
def test_mcp(half, lack, tool, arguments):
    with Http(half) as session:
        answer = session.call(tool, **arguments)
        assert answer.status == 200 and answer.result["isError"], answer
        assert "provider jail cannot" in answer.result["content"][0]["text"], answer


def test_a_name_that_is_not_there(api):
    answer = api.post("/v1/sandboxes", json={"provider": "docker"})
    assert answer.status == 400, answer
    error = answer.json()["error"]
    assert error["details"]["field"] == "provider" and "auto, jail" in error["message"]


def test_a_setting_that_is_not_there(half):
    for setting, valid in (("--providers", "valid are jail"),
                           ("--sandbox-mode", "valid are auto, sandbox, jail")):
        done = half.run("serve", setting, "dockre", check=False)
        assert done.returncode != 0 and "dockre" in done.stderr and valid in done.stderr, done
