"""The router over HTTP, by the command line, by SIGHUP and after a restart."""

import json
import signal
from pathlib import Path

import pytest

from paddock_testing import run as paddock
from paddock_testing.e2b_http import E2b
from paddock_testing.server import Server, check_error

RULES = {"default": "jail", "disabled": [], "fallback": [], "allow_weaker": False,
         "rules": [{"name": "ops only", "tenant": "ops", "provider": "jail"}],
         "flags": [{"name": "all", "salt": "all", "provider": "jail", "percentage": 100}]}


@pytest.fixture(scope="module")
def routed():
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def admin(routed):
    key = routed.run("key", "create", "--admin", "--tenant", "ops").stdout.strip()
    client = routed.client(key)
    yield client
    client.close()


@pytest.fixture
def user(routed, admin):
    """A client without rights, and the rules as they were afterwards."""
    client = routed.client()
    yield client
    assert admin.put("/v1/router", json={}).status == 200
    client.close()


def file_of(server):
    own = Path(server.state_dir) / "server"  # not by a search: roots go away while one reads them
    assert (own / "paddock.db").is_file()
    return own / "router.json"


def test_rules_decide_and_say_so(user, admin):
    answer = admin.put("/v1/router", json=RULES)
    assert answer.status == 200, answer
    held = answer.json()
    assert held["source"] == "file" and held["choice"]["by"] == "rule"
    assert {k: held["rules"][k] for k in RULES} == RULES
    assert held["breakers"] == [{"provider": "jail", "isolation": held["choice"]["isolation"],
                                 "state": "closed", "failures_in_row": 0, "retry_after_s": 0}]
    assert "docker" in held["not_configured"] and "jail" not in held["not_configured"]

    made = user.post("/v1/sandboxes").json()
    assert made["provider"] == "jail" and made["reason"] == "flag all at 100 %"
    assert made["isolation"] in ("basic", "full")
    user.delete(f"/v1/sandboxes/{made['id']}")
    made = admin.post("/v1/sandboxes").json()
    assert made["reason"] == "rule ops only"
    admin.delete(f"/v1/sandboxes/{made['id']}")
    made = user.post("/v1/sandboxes", json={"provider": "jail"}).json()
    assert made["reason"] == "asked for by the request"
    user.delete(f"/v1/sandboxes/{made['id']}")

    told = user.get("/v1/route?explain=true&user_id=ann").json()
    assert told["by"] == "flag" and told["name"] == "all" and not told["fallback"]
    assert told["steps"][0] == "rules: none of 1 fits"
    assert told["steps"][-1] == "result: jail, flag all at 100 %"


def test_only_an_admin_key_changes_rules_or_sees_them(user, admin):
    assert admin.put("/v1/router", json=RULES).status == 200
    check_error(user.put("/v1/router", json={}), 403, "denied", says="paddock key create --admin")
    seen = user.get("/v1/router")
    assert seen.status == 200 and seen.json()["rules"] is None
    assert b"ops only" not in seen.body
    assert admin.get("/v1/router").json()["rules"]["rules"] == RULES["rules"]


@pytest.mark.parametrize("body,says", [
    ({"default": "docker"}, "default: provider 'docker' is not configured here: configured are jail"),
    ({"default": "dcoker"}, "default: 'dcoker' is not a provider: configured are jail"),
    ({"flags": [{"name": "f", "provider": "jail", "percentage": 120}]},
     "flags[0].percentage: 120 is not in the range 0 to 100"),
    ({"disabled": ["jail"]}, "disabled: names every provider"),
    ({"nonsense": 1}, "'nonsense' is not known: members are default"),
    ({"rules": [{"name": "r", "provider": "jail", "user": 7}]}, "rules[0].user: must be a text"),
])
def test_mistakes_change_nothing(routed, user, admin, body, says):
    assert admin.put("/v1/router", json=RULES).status == 200
    before, text = admin.get("/v1/router").json(), file_of(routed).read_text()
    check_error(admin.put("/v1/router", json=body), 400, "invalid", says=says)
    assert admin.get("/v1/router").json() == before
    assert file_of(routed).read_text() == text


def test_bodies_that_are_no_rules(user, admin):
    check_error(admin.put("/v1/router", data=b"{", headers={"Content-Type": "application/json"}), 400)
    check_error(admin.put("/v1/router", data=b"[]", headers={"Content-Type": "application/json"}), 400)
    check_error(admin.put("/v1/router", data=b"{}", headers={"Content-Type": "text/plain"}), 400)
    check_error(admin.put("/v1/router?x=1", json={}), 400, field="x")
    check_error(admin.get("/v1/router?x=1"), 400, field="x")


@pytest.mark.parametrize("name,says", [
    ("docker", "provider 'docker' is not configured on this server: configured are auto, jail"),
    ("dcoker", "provider 'dcoker' is not one of this server's: auto, jail"),
])
def test_names_that_are_not_configured(user, name, says):
    check_error(user.post("/v1/sandboxes", json={"provider": name}), 400, "invalid", "provider", says)
    check_error(user.get(f"/v1/route?provider={name}"), 400, "invalid", "provider", says)


def test_a_rule_may_allow_another_provider_for_a_name(user, admin):
    rule = {"name": "no docker yet", "tenant": "default", "fallback": ["jail"]}
    assert admin.put("/v1/router", json={"rules": [rule]}).status == 200
    made = user.post("/v1/sandboxes", json={"provider": "docker"})
    assert made.status == 201, made
    assert made.json()["provider"] == "jail"
    assert made.json()["reason"] == "fallback: docker is not configured (asked for by the request)"
    user.delete(f"/v1/sandboxes/{made.json()['id']}")
    # Another tenant has no such rule; and a name that nobody knows is a mistake for everybody.
    check_error(admin.post("/v1/sandboxes", json={"provider": "docker"}), 400, field="provider")


def test_sighup_reads_the_file_and_keeps_the_rules_when_it_is_bad(routed, user, admin):
    def hang_up(event):
        lines = routed.log().count(event)
        routed.send_signal(signal.SIGHUP)
        paddock.wait_for(lambda: routed.log().count(event) > lines, 10, event)

    file_of(routed).write_text(json.dumps({"rules": [{"name": "by hand", "provider": "jail"}]}))
    hang_up("router.reload result=ok")
    assert user.get("/v1/route").json()["reason"] == "rule by hand"
    file_of(routed).write_text('{"rules": [{"name": "worse", "provider": "docker"}]}')
    hang_up("router.reload error=")
    assert "provider 'docker' is not configured here" in routed.log()
    assert user.get("/v1/route").json()["reason"] == "rule by hand"


def test_the_command_line_explains(routed, user, admin):
    assert admin.put("/v1/router", json=RULES).status == 200
    told = routed.run("route", "--user", "ann").stdout
    assert told.endswith("flag all at 100 %\n") and told.startswith("jail (isolation ")
    steps = routed.run("route", "--explain").stdout.splitlines()
    assert steps[0] == "rules: none of 1 fits" and steps[1].startswith("flag all: bucket ")
    assert steps[-1] == "result: jail, flag all at 100 %"
    assert json.loads(routed.run("route", "--json").stdout)["provider"] == "jail"
    wrong = routed.run("route", "--provider", "docker", check=False)
    assert wrong.returncode == 125 and "configured are auto, jail" in wrong.stderr
    assert routed.run("route", "too", "much", check=False).returncode == 2


def test_a_command_gets_the_cheapest_that_will_do(routed, user, admin):
    told = user.get("/v1/route?command=ls%20-l").json()
    assert told["by"] == "command" and told["command"]["class"] == "read"
    assert told["reason"] == "cheapest with isolation none, for a command of class read"
    told = user.get("/v1/route?command=cat%20/etc/passwd&explain=1").json()
    assert told["command"] == {"class": "unknown", "reason": "'/etc/passwd' is outside the workspace"}
    assert told["steps"][0] == "command: unknown, '/etc/passwd' is outside the workspace"
    steps = routed.run("route", "--explain", "--command", "pip install x").stdout
    assert steps.startswith("command: install, 'pip install' installs\n")
    assert admin.put("/v1/router", json={"commands": {"read": "little"}}).status == 400


def test_older_names_are_flags_of_the_router():
    older = {"USE_CLOUDRUN_JOBS_SANDBOX": "true", "CLOUDRUN_JOBS_ROLLOUT_PERCENTAGE": "25",
             "SANDBOX_GCP_PROJECT": "p"}
    with Server(env=older) as server:
        client = server.client()
        assert client.get("/v1/router").json()["older_names"] == [
            {"name": "USE_CLOUDRUN_JOBS_SANDBOX", "provider": "cloudrun", "percentage": 25,
             "off": "provider cloudrun is not configured here"}]
        told = client.get("/v1/route?explain=1").json()
        assert told["by"] == "default" and "cloudrun is not configured here" in told["steps"][0]
        client.close()


def test_rules_outlive_the_server(routed, user, admin):
    assert admin.put("/v1/router", json=RULES).status == 200
    routed.stop()
    routed.start()
    assert routed.client().get("/v1/route").json()["reason"] == "flag all at 100 %"


def test_commands_of_a_fork_count_for_the_arm_of_its_origin(routed, user, admin):
    experiment = {"name": "forks", "arms": [{"name": name, "provider": "jail", "weight": 1} for name in "xy"]}
    assert admin.put("/v1/router", json={"experiment": experiment}).status == 200
    made = user.post("/v1/sandboxes", json={}).json()["id"]
    door = E2b(routed)
    answer = door.post(f"/sandboxes/{made}/fork", {"count": 1, "timeout": 60})
    assert answer.status == 201, answer
    fork = answer.json()[0]["sandbox"]["sandboxID"]
    for sandbox in (made, fork, fork):
        assert user.post(f"/v1/sandboxes/{sandbox}/exec", json={"command": "true"}).status == 200
    arms = user.get("/v1/router").json()["experiment"]["arms"]
    assert sorted((a["made"], a["commands"]) for a in arms) == [(0, 0), (1, 3)], arms
    for sandbox in (made, fork):
        user.delete(f"/v1/sandboxes/{sandbox}")


def test_arms_are_counted(routed, user, admin):
    experiment = {"name": 'a "b" \\c', "guard": {"percentage": 20, "creations": 50},
                  "arms": [{"name": name, "provider": "jail", "weight": 1} for name in "xy"]}
    answer = admin.put("/v1/router", json={"experiment": experiment})
    assert answer.status == 200, answer
    held = answer.json()
    assert held["rules"]["experiment"]["guard"] == experiment["guard"]
    assert held["experiment"] == {"name": experiment["name"], "stopped": None, "arms": [
        {"name": n, "provider": "jail", "made": 0, "failed": 0, "mean_ms": 0, "commands": 0, "commands_failed": 0,
         "command_mean_ms": 0} for n in "xy"]}

    reasons = []
    for n in range(12):
        made = user.post("/v1/sandboxes", json={"user_id": f"user{n}", "thread_id": "arms"})
        assert made.status == 201, made
        reasons.append(made.json()["reason"])
        done = user.post(f"/v1/sandboxes/{made.json()['id']}/exec", json={"command": "exit 3"})
        assert done.json()["exit_code"] == 3, done
        assert user.delete(f"/v1/sandboxes/{made.json()['id']}").status == 204
    # A request that is wrong counts for none of them.
    assert user.post("/v1/sandboxes", json={"limits": {"memory_bytes": 1}}).status == 400

    arms = user.get("/v1/router").json()["experiment"]["arms"]
    assert [a["made"] for a in arms] == [sum(f"arm {n} of" in r for r in reasons) for n in "xy"]
    assert all(a["made"] and a["mean_ms"] > 0 and a["failed"] == 0 for a in arms), arms
    assert [a["commands"] for a in arms] == [a["made"] for a in arms], arms
    assert all(a["command_mean_ms"] > 0 and a["commands_failed"] == 0 for a in arms), arms
    metrics = user.get("/metrics").text
    labels = r'experiment="a \"b\" \\c",arm="x"'
    assert f'paddock_experiment_creations_total{{{labels},result="made"}} {arms[0]["made"]}\n' in metrics
    assert r'paddock_experiment_stopped{experiment="a \"b\" \\c"} 0' in metrics
