"""E2B's control plane, as bytes: what its clients send and what they rely on."""

import datetime
import time
import uuid
from urllib.parse import quote

import pytest

from paddock_testing import run as paddock
from paddock_testing.e2b_http import E2b, check_gateway, check_refused
from paddock_testing.server import Server, check_error


@pytest.fixture(scope="module")
def e2b(server):
    return E2b(server)


@pytest.fixture(scope="module")
def stranger(server):
    """Another tenant."""
    return E2b(server, server.make_key("stranger"))


@pytest.fixture
def make(e2b):
    made = []

    def create(v2=True, **body):
        made.append(e2b.create(v2, **body))
        return made[-1]

    yield create
    for sandbox in made:
        e2b.delete(f"/sandboxes/{sandbox['sandboxID']}")


def seconds_of(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def life(info):
    return seconds_of(info["endAt"]) - seconds_of(info["startedAt"])


# ---- creating ----


def test_create_tells_names_and_tokens(make, e2b):
    made = make(metadata={"k": "v"}, envVars={"A": "1"})
    assert set(made) == {"sandboxID", "templateID", "clientID", "envdVersion", "envdAccessToken",
                         "trafficAccessToken", "domain"}
    assert made["templateID"] == "base" and made["envdVersion"] == "0.6.13" and made["clientID"]
    assert made["trafficAccessToken"] is None and made["domain"] is None
    assert made["sandboxID"].isalnum() and made["sandboxID"].islower()
    assert made["envdAccessToken"].startswith(made["sandboxID"])
    info = e2b.info(made["sandboxID"])
    assert info["state"] == "running" and info["metadata"] == {"k": "v"}
    assert info["cpuCount"] == 1 and info["memoryMB"] == 512 and info["diskSizeMB"] == 1024
    assert info["envdAccessToken"] == made["envdAccessToken"]
    assert info["allowInternetAccess"] is False and info["domain"] is None
    assert info["lifecycle"] == {"onTimeout": "kill", "autoResume": False}
    assert abs(seconds_of(info["startedAt"]) - time.time()) < paddock.seconds(10)
    assert e2b.run(made["sandboxID"], "pwd; echo $A") == "/home/user\n1\n"


def test_the_two_creations_differ(make, e2b):
    assert life(e2b.info(make(v2=True)["sandboxID"])) == pytest.approx(300, abs=1)
    assert life(e2b.info(make(v2=False)["sandboxID"])) == pytest.approx(15, abs=1)
    assert life(e2b.info(make(v2=False, timeout=77)["sandboxID"])) == pytest.approx(77, abs=1)
    # Without `secure` an old client sends no token; with it, and at the new path, it must.
    plain = make(v2=False)
    assert "envdAccessToken" not in plain
    assert e2b.envd("GET", "/envs", plain["sandboxID"]).status == 200
    safe = make(v2=False, secure=True)
    assert e2b.envd("GET", "/envs", safe["sandboxID"]).status == 401
    assert e2b.envd("GET", "/envs", safe["sandboxID"], safe["envdAccessToken"]).status == 200
    check_refused(e2b.post("/v2/sandboxes", {"templateID": "base", "secure": False}), 400, "secure")


@pytest.mark.parametrize("chunked", [True, False])
def test_bodies_come_in_both_ways(e2b, chunked):
    made = e2b.post("/v2/sandboxes", {"templateID": "base", "metadata": {"a": "b" * 5000}},
                    chunked=chunked)
    assert made.status == 201, made
    assert e2b.delete(f"/sandboxes/{made.json()['sandboxID']}").status == 204


def test_what_the_python_sdk_always_sends(make, e2b):
    made = make(v2=False, timeout=60, secure=True, autoPause=False, allow_internet_access=True,
                metadata={}, envVars={}, network={"allowPublicTraffic": True, "allowOut": [],
                                                  "denyOut": [], "rules": {}}, volumeMounts=[],
                mcp={"server": {"a": "b"}})
    assert e2b.info(made["sandboxID"])["allowInternetAccess"] is False


@pytest.mark.parametrize("body,status,says", [
    ({"timeout": 0}, 400, "Timeout must be greater than 0"),
    ({"timeout": -5}, 400, "Timeout must be greater than 0"),
    ({"timeout": 86401}, 400, "86400"),
    ({"timeout": "60"}, 400, "timeout"),
    ({"timeout": 1.5}, 400, "timeout"),
    ({"templateID": None}, 400, "templateID"),
    ({"templateID": "nothing"}, 404, "nothing.*default, base, restricted, code-interpreter-v1"),
    ({"templateID": "somebody/base"}, 404, "somebody"),
    ({"templateID": "../base"}, 404, "base"),
    ({"wrong": 1}, 400, "wrong"),
    ({"network": {"wrong": 1}}, 400, "network.wrong"),
    ({"metadata": {"a": 1}}, 400, "metadata"),
    ({"envVars": {"A=B": "1"}}, 400, "envVars"),
    ({"autoResume": {}}, 400, "autoResume.enabled"),
    ({"autoPause": True, "autoPauseMemory": False, "autoResume": {"enabled": True}}, 400, "autoResume"),
    ({"mcp": "x"}, 400, "mcp"),
    ({"iam": {"tokens": {"a": {"audience": "b", "tokenType": "c"}}}}, 400, "iam"),
    ({"volumeMounts": [{"name": "a", "path": "/a"}]}, 400, "volumeMounts"),
    ({"network": {"allowOut": ["1.1.1.1"]}}, 400, "network.allowOut.*internet"),
    ({"network": {"rules": {"a.b": [{}]}}}, 400, "network.rules"),
    ({"network": {"egressProxy": {"address": "a:1"}}}, 400, "network.egressProxy"),
    ({"network": {"httpsPorts": [443]}}, 400, "network.httpsPorts"),
    ({"network": {"maskRequestHost": "a b"}}, 400, "network.maskRequestHost"),
])
def test_refused_creations(e2b, body, status, says):
    def ids():
        return {s["sandboxID"] for s in e2b.list()}

    before = ids()  # some of these may end meanwhile
    check_refused(e2b.post("/v2/sandboxes", {"templateID": "base", **body}), status, says)
    assert not ids() - before


def test_bodies_that_are_none(e2b):
    for data in (b"", b"[]", b"{", b'{"templateID":"base","templateID":"base"}', b"\xff"):
        refused = e2b.request("POST", "/v2/sandboxes", data=data,
                              headers={"Content-Type": "application/json"})
        check_refused(refused, 400)
    check_refused(e2b.request("POST", "/v2/sandboxes", data=b"{}",
                              headers={"Content-Type": "text/plain"}), 400, "Content-Type")


@pytest.mark.parametrize("name,shown", [("base", "base"), ("default", "default"),
                                        ("base:default", "base"), ("default/base", "base"),
                                        ("code-interpreter-v1", "code-interpreter-v1")])
def test_templates(make, e2b, name, shown):
    sandbox = make(templateID=name)
    assert sandbox["templateID"] == shown
    assert sandbox["sandboxID"] in [s["sandboxID"] for s in e2b.list(f"?template={quote(name, '')}")]
    # sudo is what a developer's template has, and nothing else.
    has_sudo = e2b.run(sandbox["sandboxID"], "sudo -n id -u 2>/dev/null || echo no").strip() == "0"
    assert has_sudo == (shown != "default")


def test_the_restricted_template_has_its_policy(make, e2b):
    sandbox = make(templateID="restricted")["sandboxID"]
    refused = e2b.post(f"/v1/sandboxes/{sandbox}/exec", {"command": "rm -rf /tmp/x"})
    check_error(refused, 403, "policy")


# ---- keys and tenants ----


def test_keys(e2b, make, stranger):
    sandbox = make()["sandboxID"]
    for path in ("/v2/sandboxes", f"/sandboxes/{sandbox}", "/snapshots", "/templates", "/volumes"):
        check_refused(e2b.get(path, key=False), 401)
        check_refused(E2b(e2b, "e2b_" + "0" * 40).get(path), 401)
    for method, path, body in (
            ("GET", "", None), ("DELETE", "", None), ("POST", "/timeout", {"timeout": 1}),
            ("POST", "/refreshes", {}), ("POST", "/connect", {"timeout": 10}), ("POST", "/pause", {}),
            ("POST", "/resume", {}), ("PUT", "/network", {}), ("GET", "/metrics", None),
            ("GET", "/logs", None), ("POST", "/snapshots", {}), ("POST", "/fork", {})):
        theirs = stranger.request(method, f"/sandboxes/{sandbox}{path}", json_body=body)
        none = stranger.request(method, f"/sandboxes/{'x' * 20}{path}", json_body=body)
        text = check_refused(theirs, 404)
        # Nothing tells whether there is one.
        assert text.replace(sandbox, "ID") == check_refused(none, 404).replace("x" * 20, "ID")
    assert sandbox not in stranger.get("/v2/sandboxes").text
    assert stranger.get(f"/sandboxes/metrics?sandbox_ids={sandbox}").json() == {"sandboxes": {}}
    assert e2b.info(sandbox)["state"] == "running"


def test_methods_and_paths(e2b):
    assert e2b.request("PATCH", "/v2/sandboxes").status == 405
    check_refused(e2b.request("DELETE", "/v2/sandboxes"), 405)
    check_error(e2b.get("/nowhere"), 404)


# ---- lists ----


def test_list_pages_and_order(make, e2b):
    mark = str(uuid.uuid4())
    ids = []
    for _ in range(5):
        ids.append(make(metadata={"mark": mark})["sandboxID"])
        time.sleep(0.002)  # two of one millisecond have no order
    query = f"?metadata=mark%3D{mark}"
    assert [s["sandboxID"] for s in e2b.list(query)] == ids[::-1]
    assert [s["sandboxID"] for s in e2b.list(query + "&order=asc")] == ids
    for order, expected in (("desc", ids[::-1]), ("asc", ids)):
        seen, token = [], ""
        for _ in range(4):
            page = e2b.get(f"/v2/sandboxes{query}&order={order}&limit=2{token}")
            seen += [s["sandboxID"] for s in page.json()]
            if "X-Next-Token" not in page.headers:
                break
            token = "&nextToken=" + quote(page.headers["X-Next-Token"], "")
        assert seen == expected
    exact = e2b.get(f"/v2/sandboxes{query}&limit=5")
    assert len(exact.json()) == 5 and "X-Next-Token" not in exact.headers


def test_list_looks_as_clients_expect(make, e2b):
    sandbox = make(metadata={"a": "b"})["sandboxID"]
    [found] = [s for s in e2b.list() if s["sandboxID"] == sandbox]
    assert set(found) == {"sandboxID", "templateID", "clientID", "envdVersion", "startedAt", "endAt",
                          "state", "cpuCount", "memoryMB", "diskSizeMB", "metadata"}
    assert "envdAccessToken" not in found


@pytest.mark.parametrize("value", ["plain", "v x", "a=b&c", "100% +", "ä/ö", "%20", ""])
def test_metadata_as_the_sdks_encode_it(make, e2b, value):
    mark = str(uuid.uuid4())
    sandbox = make(metadata={"mark": mark, "odd key": value})["sandboxID"]
    make(metadata={"mark": mark, "odd key": value + "x"})
    # The key and the value, then both, then the whole parameter.
    pair = f"{quote(quote('odd key', ''), '')}={quote(quote(value, ''), '')}"
    found = e2b.list(f"?metadata={quote(pair, '')}%26mark%3D{mark}")
    assert [s["sandboxID"] for s in found] == [sandbox]


def test_metadata_as_a_person_writes_it(make, e2b):
    mark = str(uuid.uuid4())
    sandbox = make(metadata={"mark": mark})["sandboxID"]
    assert [s["sandboxID"] for s in e2b.list(f"?metadata=mark={mark}")] == [sandbox]
    assert e2b.list("?metadata=mark%3Dnobody") == []


def test_list_by_state_and_time(make, e2b):
    mark = str(uuid.uuid4())
    first = make(metadata={"mark": mark})["sandboxID"]
    time.sleep(0.002)
    second = make(metadata={"mark": mark})["sandboxID"]
    assert e2b.post(f"/sandboxes/{first}/pause", {}).status == 204

    def ids(query):
        return [s["sandboxID"] for s in e2b.list(f"?metadata=mark%3D{mark}{query}")]

    assert ids("") == ids("&state=running,paused") == ids("&state=paused%2Crunning") == [second, first]
    assert ids("&state=paused") == [first] and ids("&state=running") == [second]
    started = e2b.info(second)["startedAt"]
    assert ids(f"&startedAfter={quote(started)}") == [second]
    assert ids(f"&startedAfter={quote(started.replace('Z', '+00:00'))}") == [second]
    assert ids("&startedAfter=2999-01-01T00:00:00Z") == []
    assert ids("&template=base") == [second, first] and ids("&template=nothing") == []
    running = e2b.get(f"/sandboxes?metadata=mark%3D{mark}").json()
    assert [s["sandboxID"] for s in running] == [second]


@pytest.mark.parametrize("query,says", [
    ("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("order=up", "order"),
    ("state=gone", "state"), ("state=", "state"), ("startedAfter=now", "startedAfter"),
    ("nextToken=forged", ""), ("metadata=novalue", "metadata"), ("metadata=a%25zz%3Db", ""),
    ("unknown=1", "unknown"), ("limit=1&limit=2", "limit"),
    ("metadata=" + "%26".join(f"k{n}%3Dv" for n in range(9)), "8 pairs"),
])
def test_refused_lists(e2b, query, says):
    check_refused(e2b.get(f"/v2/sandboxes?{query}"), 400, says)


# ---- its life ----


def test_kill(make, e2b):
    sandbox = make()["sandboxID"]
    assert e2b.is_running(sandbox)
    gone = e2b.delete(f"/sandboxes/{sandbox}")
    assert gone.status == 204 and gone.body == b""
    check_refused(e2b.delete(f"/sandboxes/{sandbox}"), 404)
    check_refused(e2b.get(f"/sandboxes/{sandbox}"), 404)
    check_refused(e2b.post(f"/sandboxes/{sandbox}/timeout", {"timeout": 10}), 404)
    check_refused(e2b.post(f"/v2/sandboxes/{sandbox}/connect", {}), 404)
    check_refused(e2b.post(f"/sandboxes/{sandbox}/fork", {}), 404)
    check_gateway(e2b.envd("GET", "/health", sandbox), sandbox)
    assert sandbox not in [s["sandboxID"] for s in e2b.list()]


def test_timeout_is_absolute(make, e2b):
    sandbox = make(timeout=1000)["sandboxID"]

    def left():
        return seconds_of(e2b.info(sandbox)["endAt"]) - time.time()

    for timeout in (60, 500, 86400):
        done = e2b.post(f"/sandboxes/{sandbox}/timeout", {"timeout": timeout})
        assert done.status == 204 and done.body == b""
        assert left() == pytest.approx(timeout, abs=paddock.seconds(3))
    for body, says in (({}, "timeout"), ({"timeout": -1}, "timeout"), ({"timeout": 86401}, "86400"),
                       ({"timeout": 5, "more": 1}, "more")):
        check_refused(e2b.post(f"/sandboxes/{sandbox}/timeout", body), 400, says)
    assert e2b.post(f"/sandboxes/{sandbox}/timeout", {"timeout": 100}).status == 204
    # This one only lengthens.
    assert e2b.post(f"/sandboxes/{sandbox}/refreshes", {"duration": 10}).status == 204
    assert left() == pytest.approx(100, abs=paddock.seconds(3))
    assert e2b.post(f"/sandboxes/{sandbox}/refreshes", {"duration": 1000}).status == 204
    assert left() == pytest.approx(1000, abs=paddock.seconds(3))
    check_refused(e2b.post(f"/sandboxes/{sandbox}/refreshes", {"duration": 3601}), 400)
    assert e2b.post(f"/sandboxes/{sandbox}/timeout", {"timeout": 0}).status == 204
    paddock.wait_for(lambda: e2b.get(f"/sandboxes/{sandbox}").status == 404, 10, "it ends at once")


def test_connect_only_extends(make, e2b):
    made = make(timeout=100)
    sandbox = made["sandboxID"]
    before = e2b.info(sandbox)["endAt"]
    for path in ("", "/v2"):
        again = e2b.post(f"{path}/sandboxes/{sandbox}/connect", {"timeout": 10})
        assert again.status == 200 and again.json() == made
        assert e2b.info(sandbox)["endAt"] == before
    assert e2b.post(f"/v2/sandboxes/{sandbox}/connect", {}).status == 200
    assert seconds_of(e2b.info(sandbox)["endAt"]) - time.time() == pytest.approx(300, abs=paddock.seconds(3))
    check_refused(e2b.post(f"/v2/sandboxes/{sandbox}/connect", {"timeout": 0}), 400, "Timeout must")


def test_pause_and_connect(make, e2b):
    made = make(timeout=1000)
    sandbox = made["sandboxID"]
    counter = "i=0; while :; do i=$((i+1)); echo $i > ~/count; sleep 0.05; done"
    e2b.post(f"/v1/sandboxes/{sandbox}/processes", {"command": counter})
    paused = e2b.post(f"/sandboxes/{sandbox}/pause", {})
    assert paused.status == 204 and paused.body == b""
    check_refused(e2b.post(f"/sandboxes/{sandbox}/pause", {}), 409)
    check_refused(e2b.post(f"/sandboxes/{sandbox}/pause"), 409)
    assert e2b.info(sandbox)["state"] == "paused" and not e2b.is_running(sandbox)
    check_gateway(e2b.envd("GET", "/envs", sandbox, made["envdAccessToken"]), sandbox)
    woken = e2b.post(f"/sandboxes/{sandbox}/connect", {"timeout": 50})
    assert woken.status == 201 and woken.json() == made
    assert e2b.is_running(sandbox)
    # The time of a resumed one begins anew, shorter or not.
    assert seconds_of(e2b.info(sandbox)["endAt"]) - time.time() == pytest.approx(50, abs=paddock.seconds(3))
    first = int(e2b.run(sandbox, "sleep 0.2; cat ~/count || true") or 0)
    paddock.wait_for(lambda: int(e2b.run(sandbox, "cat ~/count || true") or 0) > first, 10, "it goes on")


@pytest.mark.parametrize("how", ["pause", "connect"])
def test_without_memory(make, e2b, how):
    sandbox = make(envVars={"KEPT": "yes"})["sandboxID"]
    e2b.run(sandbox, "echo file > kept")
    e2b.post(f"/v1/sandboxes/{sandbox}/processes", {"argv": ["sleep", "4242"]})
    assert e2b.run(sandbox, "pgrep -x sleep || true").strip()
    assert e2b.post(f"/sandboxes/{sandbox}/pause", {"memory": how != "pause"}).status == 204
    assert e2b.info(sandbox)["state"] == "paused" and not e2b.is_running(sandbox)
    woken = e2b.post(f"/v2/sandboxes/{sandbox}/connect", {"memory": False} if how == "connect" else {})
    assert woken.status == 201, woken
    assert e2b.run(sandbox, "cat kept; echo $KEPT; pwd") == "file\nyes\n/home/user\n"
    assert not e2b.run(sandbox, "pgrep -x sleep || true").strip()


def test_resume(make, e2b):
    sandbox = make(autoPause=True)["sandboxID"]
    check_refused(e2b.post(f"/sandboxes/{sandbox}/resume", {}), 409, "running")
    e2b.post(f"/sandboxes/{sandbox}/pause", {})
    check_refused(e2b.post(f"/sandboxes/{sandbox}/resume", {"autoPause": False}), 400, "autoPause")
    woken = e2b.post(f"/sandboxes/{sandbox}/resume", {"timeout": 60, "autoPause": True})
    assert woken.status == 201 and woken.json()["sandboxID"] == sandbox
    assert life(e2b.info(sandbox)) < 70 and e2b.is_running(sandbox)


@pytest.mark.parametrize("memory", [True, False])
def test_a_life_that_ends_in_a_pause(make, e2b, memory):
    made = make(timeout=600, autoPause=True, autoPauseMemory=memory)
    sandbox = made["sandboxID"]
    assert e2b.info(sandbox)["lifecycle"] == {"onTimeout": "pause", "autoResume": False}
    started = e2b.post(f"/v1/sandboxes/{sandbox}/processes", {"argv": ["sleep", "4242"]})
    assert started.status == 201, started
    assert e2b.post(f"/sandboxes/{sandbox}/timeout", {"timeout": 1}).status == 204
    paddock.wait_for(lambda: e2b.info(sandbox)["state"] == "paused", 15, "it is paused")
    # Traffic wakes only those that were made so.
    check_gateway(e2b.envd("GET", "/envs", sandbox, made["envdAccessToken"]), sandbox)
    assert e2b.post(f"/v2/sandboxes/{sandbox}/connect", {"timeout": 60}).status == 201
    assert bool(e2b.run(sandbox, "pgrep -x sleep || true").strip()) == memory


def test_traffic_wakes_who_was_made_so(make, e2b):
    made = make(timeout=600, autoPause=True, autoResume={"enabled": True})
    sandbox, token = made["sandboxID"], made["envdAccessToken"]
    assert e2b.info(sandbox)["lifecycle"] == {"onTimeout": "pause", "autoResume": True}
    e2b.post(f"/sandboxes/{sandbox}/pause", {})
    # A question whether it runs is no traffic, and neither is somebody without the token.
    assert not e2b.is_running(sandbox)
    check_refused(e2b.envd("GET", "/envs", sandbox, "wrong"), 401)
    assert e2b.info(sandbox)["state"] == "paused"
    assert e2b.envd("GET", "/envs", sandbox, token).status == 200
    assert e2b.info(sandbox)["state"] == "running" and e2b.is_running(sandbox)
    # One without memory has to be asked for.
    e2b.post(f"/sandboxes/{sandbox}/pause", {"memory": False})
    check_gateway(e2b.envd("GET", "/envs", sandbox, token), sandbox)
    assert e2b.info(sandbox)["state"] == "paused"


def test_one_whose_time_was_over_is_woken_for_a_while(make, e2b):
    made = make(timeout=1, autoPause=True, autoResume={"enabled": True})
    sandbox = made["sandboxID"]
    paddock.wait_for(lambda: e2b.info(sandbox)["state"] == "paused", 15, "it is paused")
    assert e2b.envd("GET", "/envs", sandbox, made["envdAccessToken"]).status == 200
    assert seconds_of(e2b.info(sandbox)["endAt"]) - time.time() > 200


def test_network_settings(make, e2b):
    made = make(network={"denyOut": ["0.0.0.0/0", "evil.example"], "allowPublicTraffic": False,
                         "maskRequestHost": "localhost:${PORT}"})
    sandbox = made["sandboxID"]
    assert made["trafficAccessToken"] and made["trafficAccessToken"] != made["envdAccessToken"]
    assert e2b.info(sandbox)["network"] == {
        "allowPublicTraffic": False, "denyOut": ["0.0.0.0/0", "evil.example"],
        "maskRequestHost": "localhost:${PORT}"}
    # Everything of the way out is replaced, the way in stays.
    assert e2b.put(f"/sandboxes/{sandbox}/network", {"denyOut": ["1.1.1.1"],
                                                     "allow_internet_access": True}).status == 204
    assert e2b.info(sandbox)["network"]["denyOut"] == ["1.1.1.1"]
    assert e2b.put(f"/sandboxes/{sandbox}/network", {}).status == 204
    assert e2b.info(sandbox)["network"] == {"allowPublicTraffic": False,
                                            "maskRequestHost": "localhost:${PORT}"}
    check_refused(e2b.put(f"/sandboxes/{sandbox}/network", {"allowOut": ["1.1.1.1"]}), 400, "allowOut")
    check_refused(e2b.put(f"/sandboxes/{sandbox}/network", {"allowPublicTraffic": True}), 400)
    assert e2b.info(sandbox)["allowInternetAccess"] is False


# ---- looking at it ----


def test_metrics(make, e2b):
    sandbox = make()["sandboxID"]
    e2b.run(sandbox, "head -c 1000000 /dev/zero > file")
    last = e2b.get(f"/sandboxes/{sandbox}/metrics").json()[-1]
    assert set(last) == {"timestamp", "timestampUnix", "cpuCount", "cpuUsedPct", "memUsed", "memTotal",
                         "memCache", "diskUsed", "diskTotal"}
    assert last["memTotal"] == 512 << 20 and 0 < last["memUsed"] <= last["memTotal"]
    assert 0 < last["diskUsed"] < last["diskTotal"] and last["cpuCount"] == 1
    assert abs(last["timestampUnix"] - time.time()) < paddock.seconds(10)
    assert abs(seconds_of(last["timestamp"]) - last["timestampUnix"]) <= 1
    now = int(time.time())
    assert e2b.get(f"/sandboxes/{sandbox}/metrics?start={now - 60}&end={now}").json()
    assert e2b.get(f"/sandboxes/{sandbox}/metrics?start={now - 600}&end={now - 500}").json() == []
    check_refused(e2b.get(f"/sandboxes/{sandbox}/metrics?start=-1"), 400)
    other = make()["sandboxID"]
    many = e2b.get(f"/sandboxes/metrics?sandbox_ids={sandbox},{other},{'x' * 20}").json()["sandboxes"]
    assert set(many) == {sandbox, other} and many[sandbox]["memTotal"] == 512 << 20
    check_refused(e2b.get("/sandboxes/metrics"), 400, "sandbox_ids")


def test_a_busy_sandbox_is_seen_to_be(make, e2b):
    sandbox = make()["sandboxID"]
    e2b.post(f"/v1/sandboxes/{sandbox}/processes", {"command": "while :; do :; done"})
    paddock.wait_for(lambda: e2b.get(f"/sandboxes/{sandbox}/metrics").json()[-1]["cpuUsedPct"] > 5, 20,
                     "it is seen to be busy")


def test_logs(make, e2b):
    sandbox = make()["sandboxID"]
    odd = """echo '},{"a":"\\\\' "{[" """

    def written(count):
        """An event is written behind the answer, and the next request may be another thread's."""
        found = paddock.wait_for(
            lambda: len(found := e2b.get(f"/v1/sandboxes/{sandbox}/events").json()["events"]) == count and found,
            10, f"{count} events are written")
        time.sleep(0.005)  # times are compared below
        return found

    written(1)
    e2b.run(sandbox, odd)
    written(2)
    e2b.post(f"/v1/sandboxes/{sandbox}/exec", {"command": "exit 3"})
    written(3)
    check_refused(e2b.post(f"/sandboxes/{sandbox}/resume", {}), 409)
    events = written(4)
    old = e2b.get(f"/sandboxes/{sandbox}/logs").json()
    new = e2b.get(f"/v2/sandboxes/{sandbox}/logs").json()["logs"]
    assert old["logEntries"] == new and len(new) == len(events) == 4
    assert [e["time"] for e in events] == [e["timestamp"] for e in new]
    assert [line["line"] for line in old["logs"]] == [e["message"] for e in new]
    assert new[1]["fields"]["command"] == events[1]["command"] and odd.strip() in new[1]["message"]
    assert new[2]["fields"]["exit_code"] == "3" and new[3]["level"] == "warn"
    assert all(isinstance(v, str) for e in new for v in e["fields"].values())

    def ask(query):
        return e2b.get(f"/v2/sandboxes/{sandbox}/logs?{query}").json()["logs"]

    assert ask("direction=backward") == new[::-1] and ask("direction=backward&limit=1") == new[3:]
    assert ask("level=warn") == new[3:] and ask("search=exit%203") == [new[2]]
    cursor = int(seconds_of(new[2]["timestamp"]) * 1000 + 0.5)
    assert ask(f"cursor={cursor}") == new[2:]
    assert ask(f"cursor={cursor}&direction=backward") == new[2::-1]
    assert e2b.get(f"/sandboxes/{sandbox}/logs?limit=1").json()["logEntries"] == new[:1]
    for query in ("level=loud", "direction=up", "limit=1001"):
        check_refused(e2b.get(f"/v2/sandboxes/{sandbox}/logs?{query}"), 400)


def test_envd(make, e2b):
    made = make(envVars={"A": "1"})
    sandbox, token = made["sandboxID"], made["envdAccessToken"]
    assert e2b.envd("GET", "/envs", sandbox, token).json() == {
        "E2B_SANDBOX": "true", "E2B_SANDBOX_ID": sandbox, "E2B_TEMPLATE_ID": "base", "A": "1"}
    metrics = e2b.envd("GET", "/metrics", sandbox, token).json()
    assert metrics["mem_total_mib"] == 512 and metrics["cpu_count"] == 1
    assert set(metrics) == {"ts", "cpu_count", "cpu_used_pct", "mem_total", "mem_used", "mem_cache",
                            "mem_total_mib", "mem_used_mib", "disk_used", "disk_total"}
    check_refused(e2b.envd("POST", "/init", sandbox, token, json_body={}), 404)
    check_refused(e2b.envd("GET", "/nothing", sandbox, token), 404)


# ---- snapshots, forks and templates ----


@pytest.fixture
def snapshot(make, e2b):
    """A sandbox with a file, and a snapshot of it."""
    sandbox = make(metadata={"from": "here"})["sandboxID"]
    e2b.run(sandbox, "echo before > state")
    name = f"snap-{uuid.uuid4().hex[:8]}"
    made = e2b.post(f"/sandboxes/{sandbox}/snapshots", {"name": name})
    assert made.status == 201, made
    yield sandbox, name, made.json()
    e2b.delete(f"/templates/{made.json()['snapshotID']}")


def test_snapshots(snapshot, make, e2b, stranger):
    sandbox, name, info = snapshot
    assert set(info) == {"snapshotID", "names"} and info["names"] == [f"default/{name}:default"]
    e2b.run(sandbox, "echo after > state")
    for template in (info["snapshotID"], name, f"{name}:default", info["names"][0]):
        new = make(templateID=template)
        assert new["templateID"] == info["snapshotID"]
        assert e2b.run(new["sandboxID"], "cat state") == "before\n"
        assert e2b.info(new["sandboxID"])["metadata"] == {}
    assert len(e2b.list(f"?template={name}")) == 4
    assert e2b.get("/snapshots").json()[0] == info
    assert e2b.get(f"/snapshots?sandboxID={sandbox}").json() == [info]
    assert e2b.get(f"/snapshots?sandboxID={'x' * 20}").json() == []
    for text in (name, info["snapshotID"], info["names"][0]):
        assert e2b.get(f"/snapshots?name={quote(text, '')}").json() == [info]
    assert e2b.get("/snapshots?name=nothing").json() == []
    assert e2b.get(f"/templates/aliases/{name}").json() == {"templateID": info["snapshotID"],
                                                            "public": False}
    # It is this tenant's alone.
    assert stranger.get("/snapshots").json() == []
    for template in (info["snapshotID"], name, info["names"][0]):
        check_refused(stranger.post("/v2/sandboxes", {"templateID": template}), 404)
        check_refused(stranger.delete(f"/templates/{quote(template, '')}"), 404)
    assert e2b.delete(f"/templates/{quote(info['names'][0], '')}").status == 204
    check_refused(e2b.delete(f"/templates/{info['snapshotID']}"), 404)
    check_refused(e2b.post("/v2/sandboxes", {"templateID": name}), 404)


def test_snapshots_in_pages(make, e2b):
    sandbox = make()["sandboxID"]
    ids = [e2b.post(f"/sandboxes/{sandbox}/snapshots", {}).json()["snapshotID"] for _ in range(3)]
    try:
        first = e2b.get(f"/snapshots?sandboxID={sandbox}&limit=2")
        assert [s["snapshotID"] for s in first.json()] == ids[:0:-1]
        rest = e2b.get(f"/snapshots?sandboxID={sandbox}&limit=2&nextToken="
                       + quote(first.headers["X-Next-Token"], ""))
        assert [s["snapshotID"] for s in rest.json()] == ids[:1] and "X-Next-Token" not in rest.headers
    finally:
        for snapshot in ids:
            assert e2b.delete(f"/templates/{snapshot}").status == 204


@pytest.mark.parametrize("name,status", [("base", 409), ("code-interpreter-v1", 409), ("a b", 400),
                                         ("a/b/c", 400), ("other/name", 400), ("a:", 400), ("x" * 64, 400)])
def test_names_of_snapshots(make, e2b, name, status):
    check_refused(e2b.post(f"/sandboxes/{make()['sandboxID']}/snapshots", {"name": name}), status)


@pytest.mark.parametrize("spoil", ["rmdir /run/shm", "rmdir /run/shm; ln -s /proc /run/shm",
                                   "mv /etc /gone; ln -s /proc /etc"])
def test_mount_points_that_a_sandbox_spoiled(make, e2b, spoil):
    """Its files are used again by waking, by a snapshot and by a fork: each has mounts of its own."""
    sound = "ls -A /dev/shm; echo x > /dev/shm/f; cat /dev/shm/f; rm /dev/shm/f; ls -d /etc/alternatives"
    sandbox = make()["sandboxID"]
    e2b.run(sandbox, f"sudo sh -c '{spoil}'")
    others = [f["sandbox"]["sandboxID"]
              for f in e2b.post(f"/sandboxes/{sandbox}/fork", {"count": 1, "timeout": 60}).json()]
    snapshot = e2b.post(f"/sandboxes/{sandbox}/snapshots", {}).json()["snapshotID"]
    others.append(make(templateID=snapshot)["sandboxID"])
    try:
        assert e2b.post(f"/sandboxes/{sandbox}/pause", {"memory": False}).status == 204
        assert e2b.post(f"/v2/sandboxes/{sandbox}/connect", {"timeout": 60}).status == 201
        for one in (sandbox, *others):
            assert e2b.run(one, sound) == "x\n/etc/alternatives\n"
    finally:
        e2b.delete(f"/sandboxes/{others[0]}")
        e2b.delete(f"/templates/{snapshot}")


def test_forks(make, e2b):
    made = make(metadata={"a": "b"}, envVars={"KEPT": "yes"},
                network={"allowPublicTraffic": False})
    sandbox = made["sandboxID"]
    e2b.run(sandbox, "echo before > state")
    answer = e2b.post(f"/sandboxes/{sandbox}/fork", {"count": 2, "timeout": 60})
    assert answer.status == 201, answer
    forks = [f["sandbox"] for f in answer.json()]
    try:
        assert len({sandbox, *(f["sandboxID"] for f in forks)}) == 3
        for fork in forks:
            info = e2b.info(fork["sandboxID"])
            assert info["templateID"] == "base" and info["metadata"] == {"a": "b"}
            assert life(info) == pytest.approx(60, abs=2) and fork["trafficAccessToken"]
            assert e2b.run(fork["sandboxID"], "cat state; echo $KEPT; pwd") == "before\nyes\n/home/user\n"
            e2b.run(fork["sandboxID"], "echo fork > state")
            assert e2b.envd("GET", "/envs", fork["sandboxID"], fork["envdAccessToken"]).json()[
                "E2B_SANDBOX_ID"] == fork["sandboxID"]
        assert e2b.run(sandbox, "cat state") == "before\n"
    finally:
        for fork in forks:
            e2b.delete(f"/sandboxes/{fork['sandboxID']}")
    for body in ({"count": 0}, {"count": 101}, {"timeout": 0}):
        check_refused(e2b.post(f"/sandboxes/{sandbox}/fork", body), 400)


def test_a_fork_has_the_policy_of_its_source(e2b, api):
    source = api.post("/v1/sandboxes", json={"policy": {"mode": "deny", "commands": ["rm"]}}).json()["id"]
    [fork] = e2b.post(f"/sandboxes/{source}/fork", {"timeout": 60}).json()
    fork = fork["sandbox"]["sandboxID"]
    assert e2b.run(fork, "echo fine") == "fine\n"
    check_error(e2b.post(f"/v1/sandboxes/{fork}/exec", {"command": "rm -f x"}), 403, "policy")
    for sandbox in (source, fork):
        assert e2b.delete(f"/sandboxes/{sandbox}").status == 204


def test_templates_list(e2b):
    for path in ("/templates", "/v2/templates"):
        found = e2b.get(path).json()
        assert [t["templateID"] for t in found][:4] == ["default", "base", "restricted", "code-interpreter-v1"]
        assert all(t["public"] and t["memoryMB"] == 512 for t in found)
    assert e2b.get("/templates/aliases/base").json() == {"templateID": "base", "public": True}
    check_refused(e2b.get("/templates/aliases/nothing"), 404)
    check_refused(e2b.delete("/templates/base"), 403)


@pytest.mark.parametrize("method,path,says", [
    ("POST", "/templates", "steps"), ("POST", "/templates/a", "steps"),
    ("POST", "/templates/a/builds/b", "steps"),
    ("GET", "/volumes", "volumes"), ("POST", "/volumes", "volumes"), ("GET", "/volumes/a", "volumes"),
    ("GET", "/volumecontent/a/path", "volumes"), ("GET", "/secrets", "/v1/secrets"),
    ("DELETE", "/secrets/a", "/v1/secrets"), ("GET", "/teams", "tenants"),
    ("GET", "/teams/a/metrics", "tenants")])
def test_what_there_is_not_says_so(e2b, method, path, says):
    body = {} if method == "POST" else None
    check_refused(e2b.request(method, path, json_body=body), 501, says)


# ---- both doors ----


def test_sandboxes_of_one_door_are_seen_at_the_other(make, e2b, api):
    mine = make(metadata={"a": "b"})["sandboxID"]
    seen = api.get(f"/v1/sandboxes/{mine}").json()
    assert seen["template"] == "base" and seen["metadata"] == {"a": "b"} and seen["profile"] == "dev"
    theirs = api.post("/v1/sandboxes", json={}).json()["id"]
    joined = e2b.post(f"/v2/sandboxes/{theirs}/connect", {})
    assert joined.status == 200 and joined.json()["trafficAccessToken"]
    assert e2b.envd("GET", "/envs", theirs, joined.json()["envdAccessToken"]).status == 200
    assert theirs in [s["sandboxID"] for s in e2b.list()]
    check_refused(e2b.put(f"/sandboxes/{theirs}/network", {}), 400)
    assert e2b.delete(f"/sandboxes/{theirs}").status == 204


def test_tokens_and_notes_outlive_the_server():
    """Also what was paused, and what a client asked of the network."""
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as server:
        e2b = E2b(server)
        made = e2b.create(network={"allowPublicTraffic": False, "denyOut": ["a"]}, autoPause=True,
                          autoResume={"enabled": True})
        before = e2b.info(made["sandboxID"])
        snapshot = e2b.post(f"/sandboxes/{made['sandboxID']}/snapshots", {"name": "kept"}).json()
        asleep = e2b.create()["sandboxID"]
        e2b.run(asleep, "echo file > kept")
        e2b.post(f"/sandboxes/{asleep}/pause", {"memory": False})
        server.stop()
        server.start()
        assert e2b.info(made["sandboxID"]) == before
        again = e2b.post(f"/v2/sandboxes/{made['sandboxID']}/connect", {"timeout": 1})
        assert again.status == 200 and again.json() == made
        assert e2b.envd("GET", "/envs", made["sandboxID"], made["envdAccessToken"]).status == 200
        assert e2b.get("/snapshots").json() == [snapshot]
        assert e2b.info(asleep)["state"] == "paused"
        assert e2b.post(f"/v2/sandboxes/{asleep}/connect", {}).status == 201
        assert e2b.run(asleep, "cat kept") == "file\n"
        assert e2b.delete("/templates/kept").status == 204


def test_what_a_server_is_set_to():
    """A shorter life, other names of templates, files in memory."""
    with Server({"max_life_s": 100, "storage": "memory", "templates": "mine=base"}) as server:
        e2b = E2b(server)
        made = e2b.create(templateID="mine")
        sandbox = made["sandboxID"]
        assert made["domain"] is None and made["templateID"] == "mine"
        assert life(e2b.info(sandbox)) == pytest.approx(100, abs=1)
        check_refused(e2b.post("/v2/sandboxes", {"templateID": "base", "timeout": 101}), 400, "100")
        check_refused(e2b.post("/v2/sandboxes", {"templateID": "code-interpreter-v1"}), 404, "mine")
        # Files in memory cannot be copied, nor outlive the jail: said so.
        for path, body in (("snapshots", {}), ("fork", {}), ("pause", {"memory": False})):
            check_refused(e2b.post(f"/sandboxes/{sandbox}/{path}", body), 501, "memory|disk")
        assert e2b.is_running(sandbox)
        assert e2b.post(f"/sandboxes/{sandbox}/pause", {}).status == 204
        assert e2b.info(sandbox)["state"] == "paused"
