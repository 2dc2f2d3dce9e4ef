"""The most that one sandbox may ask for: of the machine, of the server, of a tenant; every door."""

import json
import os
import subprocess

import pytest

from paddock_testing import run as paddock
from paddock_testing.e2b_http import E2b
from paddock_testing.mcp import Http
from paddock_testing.server import Server, check_error

MIB = 1 << 20
SETTINGS = {"max_memory_bytes": "1G", "max_pids": 500, "max_cpu": 1.5, "max_disk_bytes": "2G",
            "max_life_s": 7200, "requests_per_s": 0, "creates_per_s": 0,
            "tenant_limits": "small:max_pids=40:max_memory_bytes=64M:max_cpu=0.5:max_life_s=60,"
                             "large:max_pids=600:max_memory_bytes=2G"}
AT_THE_CEILING = {"memory_bytes": 1 << 30, "pids": 500, "cpu": 1.5, "disk_bytes": 2 << 30}
BEYOND = [("limits.memory_bytes", {"limits": {"memory_bytes": (1 << 30) + 1}}, "max_memory_bytes"),
          ("limits.pids", {"limits": {"pids": 501}}, "max_pids"),
          ("limits.cpu", {"limits": {"cpu": 1.501}}, "max_cpu"),
          ("limits.disk_bytes", {"limits": {"disk_bytes": (2 << 30) + 1}}, "max_disk_bytes"),
          ("max_life_s", {"max_life_s": 7201}, "max_life_s")]


@pytest.fixture(scope="module")
def own():
    with Server(SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def mine(own):
    client = own.client()
    yield client
    client.close()


def create(client, **body):
    answer = client.post("/v1/sandboxes", json=body)
    assert answer.status == 201, answer
    made = answer.json()
    assert client.delete(f"/v1/sandboxes/{made['id']}").status == 204
    return made


def test_a_machine_is_nobodys_alone(server, api):
    """What no setting says: a sandbox gets neither all memory nor all pids nor more cores."""
    greedy = {"memory_bytes": 1 << 44, "pids": 32768, "cpu": 1024, "disk_bytes": 1 << 44}
    for name, value in greedy.items():
        answer = api.post("/v1/sandboxes", json={"limits": {name: value}})
        check_error(answer, 400, "invalid", f"limits.{name}", says="ceiling")
    pid_max = int(open("/proc/sys/kernel/pid_max", encoding="ascii").read())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    shown = json.loads(server.run("config", "--json").stdout)
    values = {k["key"]: float(k["value"]) for k in shown["keys"] if k["key"].startswith("max_")}
    assert values["max_memory_bytes"] <= memory / 2 + 4096
    assert values["max_pids"] <= min(4096, pid_max / 8)
    assert values["max_cpu"] <= os.cpu_count()


def test_up_to_the_ceiling(mine):
    made = create(mine, limits=AT_THE_CEILING, max_life_s=7200)
    assert {k: made["limits"][k] for k in AT_THE_CEILING} == AT_THE_CEILING
    assert made["max_life_s"] == 7200


@pytest.mark.parametrize("field, body, setting", BEYOND)
def test_beyond_it(mine, field, body, setting):
    """400 with the field, the ceiling and the setting; by POST and by PUT of a session."""
    first = check_error(mine.post("/v1/sandboxes", json=body), 400, "invalid", field, says=setting)
    second = check_error(mine.put("/v1/sessions/u/t", json=body), 400, "invalid", field)
    assert first["message"] == second["message"] and "ceiling of" in first["message"]
    assert mine.get("/v1/sandboxes").json()["sandboxes"] == []


def test_extending(mine):
    made = mine.post("/v1/sandboxes", json={}).json()
    url = f"/v1/sandboxes/{made['id']}"
    assert mine.post(url + "/extend", json={"expires_in_s": 7200}).status == 200
    check_error(mine.post(url + "/extend", json={"expires_in_s": 7201}), 400, "invalid",
                "expires_in_s", says="ceiling of 7200")
    assert mine.delete(url).status == 204


def test_tenants(own, mine):
    """A tenant's own ceilings replace the server's, down and up; defaults follow them."""
    small, large = (mine.with_key(own.make_key(name)) for name in ("small", "large"))
    made = create(small)
    assert made["limits"]["pids"] == 40 and made["limits"]["memory_bytes"] == 64 * MIB
    assert made["limits"]["cpu"] == 0.5 and made["max_life_s"] == 60
    check_error(small.post("/v1/sandboxes", json={"limits": {"pids": 41}}), 400, "invalid",
                "limits.pids", says="ceiling of 40")
    check_error(small.post("/v1/sandboxes", json={"max_life_s": 61}), 400, "invalid", "max_life_s",
                says="ceiling of 60")
    assert create(large, limits={"pids": 600, "memory_bytes": 2 << 30})["limits"]["pids"] == 600
    check_error(large.post("/v1/sandboxes", json={"limits": {"pids": 601}}), 400, "invalid",
                "limits.pids", says="ceiling of 600")
    check_error(large.post("/v1/sandboxes", json={"limits": {"cpu": 2}}), 400, "invalid",
                "limits.cpu", says="ceiling of 1.5")
    small.close()
    large.close()


def test_the_e2b_door(own, mine):
    """`timeout` is bounded there; the rest cannot be asked for, and defaults follow the tenant."""
    small = own.make_key("small")
    for key, most, pids in ((own.key, 7200, 256), (small, 60, 40)):
        door, client = E2b(own, key), mine.with_key(key)
        refused = door.post("/sandboxes", {"templateID": "base", "timeout": most + 1})
        assert refused.status == 400 and str(most) in refused.text, refused
        made = door.post("/sandboxes", {"templateID": "base", "timeout": most})
        assert made.status == 201, made
        name = made.json()["sandboxID"]
        refused = door.post(f"/sandboxes/{name}/timeout", {"timeout": most + 1})
        assert refused.status == 400 and str(most) in refused.text, refused
        assert client.get(f"/v1/sandboxes/{name}").json()["limits"]["pids"] == pids
        assert client.delete(f"/v1/sandboxes/{name}").status == 204
        client.close()


def test_the_mcp_door(own, mine):
    """What a client makes without asking for anything has the ceilings of its tenant."""
    key = own.make_key("small")
    small = mine.with_key(key)
    with Http(own, key) as session:
        answer = session.call("run_command", command="true")
        boxes = small.get("/v1/sandboxes").json()["sandboxes"]
        assert boxes, answer
        assert boxes[0]["limits"]["pids"] == 40 and boxes[0]["max_life_s"] == 60
    small.close()


@pytest.mark.parametrize("field, body, setting", BEYOND, ids=[b[2] for b in BEYOND])
def test_the_mcp_door_beyond(own, mine, field, body, setting):
    """Refused with the ceiling's name, and nothing is made. The control: at the ceiling it works."""
    def listed():
        return {box["id"] for box in mine.get("/v1/sandboxes").json()["sandboxes"]}

    before = listed()  # what an earlier session had may go meanwhile
    with Http(own) as session:
        answer = session.call("create_sandbox", **body)
        assert answer.status == 200 and answer.result["isError"], answer
        text = answer.result["content"][0]["text"]
        assert field.split(".")[-1] in text and setting in text and "ceiling" in text, text
        assert listed() <= before
        made = session.call("create_sandbox", limits=AT_THE_CEILING, max_life_s=7200, idle_timeout_s=90)
        assert not made.result["isError"], made
        made = made.result["structuredContent"]
        assert AT_THE_CEILING.items() <= made["limits"].items() and made["idle_timeout_s"] == 90
        assert mine.get(f"/v1/sandboxes/{made['id']}").json()["max_life_s"] == 7200


def test_lower_ceilings_leave_what_runs():
    """Made under higher ceilings: it goes on, over a restart as well; a fork of it is new."""
    with Server({"storage": "disk", "max_life_s": 3600, "max_pids": 300}) as server:
        client = server.client()
        made = client.post("/v1/sandboxes", json={"limits": {"pids": 300}}).json()
        url = f"/v1/sandboxes/{made['id']}"
        client.close()
        server.stop()
        server.settings["max_pids"] = 100
        server.start()
        got = client.post(url + "/exec", json={"command": "echo on"})
        assert got.status == 200 and got.json()["stdout"] == "on\n", got
        assert client.get(url).json()["limits"]["pids"] == 300
        assert client.post("/v1/sandboxes", json={}).json()["limits"]["pids"] == 100
        forked = E2b(server).post(f"/sandboxes/{made['id']}/fork", {})
        assert forked.status == 400 and "max_pids" in forked.text, forked
        client.close()


@pytest.mark.parametrize("settings, says", [
    ({"max_pids": 1}, "max-pids"),
    ({"max_pids": 100, "pids": 200}, "pids must not be larger than max_pids"),
    ({"tenant_limits": "acme"}, "TENANT:KEY=VALUE"),
    ({"tenant_limits": "acme:max_pids=0"}, "acme"),
    ({"tenant_limits": "acme:max_files=1"}, "max_memory_bytes, max_pids"),
    ({"tenant_limits": "Acme!:max_pids=9"}, "Acme!")])
def test_bad_settings(settings, says):
    words = [w for k, v in settings.items() for w in ("--" + k.replace("_", "-"), str(v))]
    got = subprocess.run([paddock.PADDOCK, "config", *words], env=paddock.clean_environment(),
                         capture_output=True, text=True, check=False)
    assert got.returncode != 0 and says in got.stderr, got
