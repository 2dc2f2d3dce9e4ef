"""Sandboxes that are tasks of Amazon ECS. AWS is moto, with signatures checked, and what moto lacks in front of it
(paddock_testing/aws.py): each RunTask starts a real paddock-box with the task's overrides, in a network of its own."""

import json
import os
import re
import signal

import pytest

from paddock_testing import aws as double
from paddock_testing import balancer
from paddock_testing import coordinated
from paddock_testing import credentials, host
from paddock_testing import run as paddock
from paddock_testing.server import Server, check_error
import elsewhere
from elsewhere import Box, at_rest


def nightly(test):
    return test if os.environ.get("PADDOCK_NIGHTLY") else None


LEASE_S = 10  # the least
NIGHT = bool(os.environ.get("PADDOCK_NIGHTLY"))
# What is lost: by day once each of what makes and what ends a task.
LOST = [(action, fault) for action in ("RunTask", "DescribeTasks", "ListTasks", "StopTask")
        for fault in ("before", "after", "throttle")] if NIGHT else [("RunTask", "after"), ("StopTask", "before")]


@pytest.fixture(scope="module")
def aws():
    if reason := double.why_not():
        pytest.skip(f"no AWS here: {reason}")
    made = double.Aws()
    yield made
    try:
        paddock.wait_for(lambda: not made.live(), 30, "no task is left")
        assert made.check_bodies() > 10, "requests are as AWS's own model says"
    finally:
        made.close()


@pytest.fixture(autouse=True)
def punctual(aws):
    yield
    left = {action: faults for action, faults in aws.faults.items() if faults}
    aws.faults, aws.delay = {}, 0
    assert not left, "faults that nobody met"


def settings(aws, **more):
    return {"providers": "jail,fargate", "pool_min": 0, "pool_max": 0, "box_lease_s": LEASE_S, **aws.settings(), **more}


@pytest.fixture(scope="module")
def server(aws):
    with Server(settings(aws), env=aws.environment()) as s:
        elsewhere.open_soon(s)
        yield s


@pytest.fixture(scope="module")
def api(server):
    return server.client()


@pytest.fixture(scope="module")
def box(api):
    made = Box(api, provider="fargate")
    yield made
    made.delete()


def test_lines_files_and_what_it_says_it_is(api, box):
    assert (box.get()["provider"], box.get()["isolation"]) == ("fargate", "basic")
    told = box.exec("echo out; echo err >&2; cd /tmp; export A='b c'; exit 3")
    assert (told["stdout"], told["stderr"], told["exit_code"]) == ("out\n", "err\n", 3)
    assert box.exec('pwd; echo "$A"')["stdout"] == "/tmp\nb c\n"

    data = os.urandom(1 << 20)
    path = f"{box.url}/files?path=/workspace/b.bin"
    assert api.request("PUT", path, data=data).status in (200, 201)
    assert api.request("GET", path).body == data
    provider = next(p for p in api.get("/v1/providers").json()["providers"] if p["name"] == "fargate")
    assert {"terminal", "files", "ports"} <= set(provider["capabilities"]), provider
    assert not {"pause", "usage", "snapshot"} & set(provider["capabilities"]), provider
    check_error(api.post(box.url + "/pause"), 501, "unsupported")


def test_the_coordinator_of_the_python_package(server, tmp_path):
    coordinated.check_request(server, "fargate", tmp_path, "FargateCoordinator")


def test_a_terminal(api, box):
    made = api.post(box.url + "/processes", json={
        "argv": ["/bin/sh", "-c", "stty size; read line; echo got $line"], "pty": True, "rows": 30, "cols": 100})
    assert made.status == 201, made
    url = f"{box.url}/processes/{made.json()['pid']}"

    def said():
        return api.request("GET", url + "/output").body.decode()

    paddock.wait_for(lambda: "30 100" in said(), 30, "it begins")
    assert api.post(url + "/stdin", data=b"word\n").status in (200, 204)
    paddock.wait_for(lambda: "got word" in said(), 30, "it ends")


def test_the_key_of_the_link_is_nowhere_in_the_box(aws, box):
    """It was in the overrides, and that is told by the control: the box has begun with it."""
    overrides = [json.loads(b)["overrides"]["containerOverrides"][0] for b in aws.bodies["RunTask"]]
    keys = [v["value"] for o in overrides for v in o["environment"] if v["name"] == "PADDOCK_BOX_KEY"]
    assert len(keys) == len(overrides) and all(re.fullmatch("[0-9a-f]{64}", k) for k in keys)
    assert "PADDOCK_BOX_KEY" not in box.exec("env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'")["stdout"]
    for task in aws.live():
        for pid in [task.task.process.pid, *host.descendants(task.task.process.pid)]:
            if b"box" in (host.read_proc(pid, "comm") or "").encode():
                assert keys[-1] not in (host.read_proc(pid, "environ") or ""), pid


@pytest.mark.parametrize("asked, code, says", [
    ({"image": "debian:12"}, "unsupported", "image"),
    ({"limits": {"memory_bytes": 1 << 30}, "profile": "restricted"}, "unsupported", "profile"),
])
def test_what_it_cannot_give_is_refused_by_name(api, asked, code, says):
    check_error(api.post("/v1/sandboxes", json={"provider": "fargate", **asked}), [400, 501], code, says=says)


def test_limits_become_the_least_size_that_has_them(aws, api):
    box = Box(api, limits={"memory_bytes": 600 << 20, "cpu": 0.25}, provider="fargate")
    asked = json.loads(aws.bodies["RunTask"][-1])["overrides"]
    assert (asked["cpu"], asked["memory"]) == ("256", "1024")
    box.delete()


@pytest.mark.parametrize("action, fault", LOST)
def test_an_answer_that_is_lost_makes_no_double_and_leaves_none(aws, api, action, fault):
    before, runs = at_rest(api, "fargate", aws.live), len(aws.known)
    aws.faults[action] = [fault]
    box = Box(api, provider="fargate")
    assert box.exec("echo fine")["stdout"] == "fine\n"
    assert len(aws.known) == runs + 1 and len(aws.live()) == before + 1
    box.delete()
    paddock.wait_for(lambda: len(aws.live()) == before, 60, "its task is stopped")


@nightly
def test_failures_that_last_end_the_request_and_leave_nothing(aws, api):
    before = at_rest(api, "fargate", aws.live)
    aws.faults["RunTask"] = ["fail"] * 3
    error = check_error(api.post("/v1/sandboxes", json={"provider": "fargate"}), [502, 503], "bad_gateway")
    assert "start a task" in error["message"], error
    aws.faults["DescribeTasks"] = ["before"] * 20  # the broker also looks for orphans
    check_error(api.post("/v1/sandboxes", json={"provider": "fargate"}), [502, 503, 504], says="ask for tasks")
    aws.faults.clear()
    paddock.wait_for(lambda: len(aws.live()) == before, 60, "what was begun is stopped")


@nightly
def test_a_task_that_comes_when_nobody_waits_any_more(aws, api):
    """Deleted while it is made: the request is given up, the task begins all the same, and is found by its tags."""
    before, runs = at_rest(api, "fargate", aws.live), len(aws.known)
    aws.delay = 3
    answer = api.post("/v1/sandboxes", json={"provider": "fargate", "max_life_s": 1})
    assert answer.status >= 400 or api.request("DELETE", "/v1/sandboxes/" + answer.json()["id"]).status == 204
    paddock.wait_for(lambda: len(aws.known) > runs, 60, "the task has begun")
    paddock.wait_for(lambda: len(aws.live()) == before, 60, "it is stopped")


def test_a_task_that_ends_is_told(aws, api):
    box = Box(api, provider="fargate")
    known = aws.live()[-1]
    os.kill(host.descendants(known.task.process.pid)[0], signal.SIGKILL)
    paddock.wait_for(lambda: box.get()["end_cause"], 60, "it is lost")
    assert box.get()["end_cause"] == "lost", box.get()
    assert "the task has ended" in box.get()["end_reason"], box.get()


def test_credentials_are_with_brokers_and_carriers_only(aws, server, api, box):
    """They were given by the environment: guardian, keeper, daemon, watch and stand-in have them neither there nor in memory."""
    words = [aws.made["secret"].encode(), aws.made["id"].encode()]
    assert box.exec("true")["exit_code"] == 0
    credentials.check_nowhere(server, api, words[:1])
    credentials.check_nowhere(server, api, words)
    assert {"paddock-broker", "paddock-carrier"} <= {*credentials.held(server, words[:1])}, "the control"


def check(aws, env, **more):
    return elsewhere.check("fargate", {**aws.settings(), **more}, env)


def test_a_check_tries_one_sandbox(aws):
    status, text = check(aws, aws.environment())
    assert status == 0, text
    assert "credentials the environment" in text and "region eu-central-1" in text, text
    assert aws.made["secret"] not in text


@pytest.mark.parametrize("change, says", [
    ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "the server's secret key is wrong"),
    ({"AWS_ACCESS_KEY_ID": "AKIAUNKNOWN"}, "AWS does not know the server's key"),
    ({"AWS_SECRET_ACCESS_KEY": ""}, "the secret of the AWS key"),
    ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"},
     "there are no keys for AWS"),
])
def test_a_check_says_what_is_wrong_with_credentials(aws, change, says):
    status, text = check(aws, {"HOME": "/nonexistent", **aws.environment(), **change})
    assert status == 1 and says in text, text
    assert aws.made["secret"] not in text


@pytest.mark.parametrize("change, says", [
    ({"fargate_cluster": "nowhere"}, "fargate_cluster"), ({"fargate_subnets": ""}, "fargate_subnets"),
    ({"fargate_region": "EU"}, "is no region"), ({"fargate_endpoint": "http://192.0.2.1"}, "is no endpoint of AWS"),
    ({"fargate_port": "0"}, "fargate_port"), ({"fargate_balancer": "https://x"}, "fargate_target_group"),
    ({"fargate_network": ""}, "fargate_network")])
def test_a_check_says_what_is_wrong_with_settings(aws, change, says):
    status, text = check(aws, aws.environment(), **change)
    assert status in (1, 2) and says in text, text


@nightly
def test_keys_from_a_profile(aws, tmp_path):
    file = tmp_path / "credentials"
    file.write_text(f"[default]\naws_access_key_id = AKIAWRONG\naws_secret_access_key = wrong\n[paddock]\n"
                    f"aws_access_key_id = {aws.made['id']}\naws_secret_access_key = {aws.made['secret']}\n")
    status, text = check(aws, {"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_PROFILE": "paddock"})
    assert status == 0 and "credentials the credentials file" in text, text


@nightly
def test_a_daemon_that_is_killed_is_succeeded(aws):
    with Server(settings(aws), env=aws.environment()) as server:
        api = server.client()
        box = Box(api, provider="fargate")
        made = api.post(box.url + "/processes", json={"command": "for i in 1 2 3 4; do echo $i; sleep 1; done"})
        assert made.status == 201, made
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        server.start()
        api = server.client()
        url = f"{box.url}/processes/{made.json()['pid']}"
        paddock.wait_for(lambda: api.get(url + "/output").body == b"1\n2\n3\n4\n", 30, "all of its output is there")
        assert api.post(box.url + "/exec", json={"command": "echo on"}).json()["stdout"] == "on\n"


@nightly
def test_a_server_that_is_gone_for_good_costs_nothing(aws):
    """Everything of it is killed at once: the tasks end themselves when their lease is over."""
    before = len(aws.live())
    server = Server(settings(aws), env=aws.environment())
    server.start()
    Box(server.client(), provider="fargate")
    assert len(aws.live()) == before + 1
    elsewhere.kill_everybody(server)
    paddock.wait_for(lambda: len(aws.live()) == before, LEASE_S + 60, "its task has ended itself")
    server.close()


@nightly
def test_the_next_server_ends_what_one_has_left(aws):
    with Server(settings(aws, box_lease_s=900), env=aws.environment()) as server:
        before = len(aws.live())
        Box(server.client(), provider="fargate")
        elsewhere.kill_everybody(server)
        assert len(aws.live()) == before + 1
        server.start()
        Box(server.client(), provider="fargate").delete()
        paddock.wait_for(lambda: len(aws.live()) == before, 60, "the older task is stopped")


def test_through_a_load_balancer(aws):
    """Any task may be behind it: each link finds its own, and finds it again, and no target stays."""
    if reason := balancer.why_not():
        pytest.skip(f"no AWS here: {reason}")
    aws.balancer = way = balancer.Balancer(7400)
    try:
        with Server(settings(aws, fargate_target_group=aws.made["targets"], fargate_balancer=f"http://127.0.0.1:{way.port}"),
                    env=aws.environment()) as server:
            boxes = [Box(server.client(), provider="fargate") for _ in range(3)]
            assert len(aws.targets) == 3
            for n, box in enumerate(boxes):
                assert box.exec(f"echo {n} >/tmp/n; cat /tmp/n")["stdout"] == f"{n}\n"
            way.cut()
            for n, box in enumerate(boxes):
                assert box.exec("cat /tmp/n")["stdout"] == f"{n}\n"

            aws.faults["DeregisterTargets"] = ["after", "throttle"]
            boxes[0].delete()
            paddock.wait_for(lambda: len(aws.targets) == 2 and len(way.slots) == 2, 60, "its target is taken out")
            os.kill(host.descendants(aws.live()[-1].task.process.pid)[0], signal.SIGKILL)  # it ends by itself
            paddock.wait_for(lambda: len(aws.targets) == 1, 60, "so is that of a task that has ended")
        paddock.wait_for(lambda: not aws.targets, 60, "and with the server all")
    finally:
        aws.balancer = None
        way.close()
