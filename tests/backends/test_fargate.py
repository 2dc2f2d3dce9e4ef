"""Sandboxes that are tasks of Amazon ECS. AWS is moto, with signatures checked, and what moto lacks in front of it
(paddock_testing/aws.py): each RunTask starts a real paddock-box with the task's overrides, in a network of its own."""

import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import time

import pytest

from paddock_testing import aws as double
from paddock_testing import balancer
from paddock_testing import coordinated
from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.server import Server, check_error

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
    return {"providers": "jail,fargate", "box_lease_s": LEASE_S, **aws.settings(), **more}


@pytest.fixture(scope="module")
def server(aws):
    with Server(settings(aws), env=aws.environment()) as s:
        admin = s.client(s.run("key", "create", "--admin", "--tenant", "ops").stdout.strip())
        assert admin.put("/v1/router", json={"breaker": {"open_s": 1, "open_max_s": 1}}).status == 200
        yield s


def at_rest(aws, api):
    """How many tasks there are, when there are as many as sandboxes: those that were deleted are stopped a little later."""
    def count():
        return sum(1 for s in api.get("/v1/sandboxes").json()["sandboxes"] if s["provider"] == "fargate")

    paddock.wait_for(lambda: len(aws.live()) == count(), 60, "there are as many tasks as sandboxes")
    return len(aws.live())


class Box:
    def __init__(self, api, **more):
        self.api = api
        answer = api.post("/v1/sandboxes", json={"provider": "fargate", **more})
        assert answer.status == 201, answer
        self.info = answer.json()
        self.base = "/v1/sandboxes/" + self.info["id"]

    def exec(self, command, **body):
        answer = self.api.post(self.base + "/exec", json={"command": command, **body})
        assert answer.status == 200, answer
        return answer.json()

    def told(self):
        return self.api.get(self.base).json()

    def close(self):
        return self.api.request("DELETE", self.base)


@pytest.fixture(scope="module")
def api(server):
    return server.client()


@pytest.fixture(scope="module")
def box(api):
    made = Box(api)
    yield made
    made.close()


def test_lines_files_and_what_it_says_it_is(api, box):
    assert (box.info["provider"], box.info["isolation"]) == ("fargate", "basic")
    told = box.exec("echo out; echo err >&2; cd /tmp; export A='b c'; exit 3")
    assert (told["stdout"], told["stderr"], told["exit_code"]) == ("out\n", "err\n", 3)
    assert box.exec('pwd; echo "$A"')["stdout"] == "/tmp\nb c\n"

    data = os.urandom(1 << 20)
    path = f"{box.base}/files?path=/workspace/b.bin"
    assert api.request("PUT", path, data=data).status in (200, 201)
    assert api.request("GET", path).body == data
    provider = next(p for p in api.get("/v1/providers").json()["providers"] if p["name"] == "fargate")
    assert {"terminal", "files", "ports"} <= set(provider["capabilities"]), provider
    assert not {"pause", "usage", "snapshot"} & set(provider["capabilities"]), provider
    check_error(api.post(box.base + "/pause"), 501, "unsupported")


def test_the_coordinator_of_the_python_package(server, tmp_path):
    coordinated.check_request(server, "fargate", tmp_path, "FargateCoordinator")


def test_a_terminal(api, box):
    made = api.post(box.base + "/processes", json={
        "argv": ["/bin/sh", "-c", "stty size; read line; echo got $line"], "pty": True, "rows": 30, "cols": 100})
    assert made.status == 201, made
    url = f"{box.base}/processes/{made.json()['pid']}"

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
    box = Box(api, limits={"memory_bytes": 600 << 20, "cpu": 0.25})
    asked = json.loads(aws.bodies["RunTask"][-1])["overrides"]
    assert (asked["cpu"], asked["memory"]) == ("256", "1024")
    box.close()


@pytest.mark.parametrize("action, fault", LOST)
def test_an_answer_that_is_lost_makes_no_double_and_leaves_none(aws, api, action, fault):
    before, runs = at_rest(aws, api), len(aws.known)
    aws.faults[action] = [fault]
    box = Box(api)
    assert box.exec("echo fine")["stdout"] == "fine\n"
    assert len(aws.known) == runs + 1 and len(aws.live()) == before + 1
    assert box.close().status == 204
    paddock.wait_for(lambda: len(aws.live()) == before, 60, "its task is stopped")


@nightly
def test_failures_that_last_end_the_request_and_leave_nothing(aws, api):
    before = at_rest(aws, api)
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
    before, runs = at_rest(aws, api), len(aws.known)
    aws.delay = 3
    answer = api.post("/v1/sandboxes", json={"provider": "fargate", "max_life_s": 1})
    assert answer.status >= 400 or api.request("DELETE", "/v1/sandboxes/" + answer.json()["id"]).status == 204
    paddock.wait_for(lambda: len(aws.known) > runs, 60, "the task has begun")
    paddock.wait_for(lambda: len(aws.live()) == before, 60, "it is stopped")


def test_a_task_that_ends_is_told(aws, api):
    box = Box(api)
    known = aws.live()[-1]
    os.kill(host.descendants(known.task.process.pid)[0], signal.SIGKILL)
    paddock.wait_for(lambda: box.told()["end_cause"], 60, "it is lost")
    assert box.told()["end_cause"] == "lost", box.told()
    assert "the task has ended" in box.told()["end_reason"], box.told()


def memory_has(pid, word):
    """In what it can write to: stacks with the environment, heaps, its own data."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "rb") as mem:
        for line in maps:
            at, end = (int(n, 16) for n in line.split()[0].split("-"))
            with contextlib.suppress(OSError, OverflowError, ValueError):
                mem.seek(at)
                if "w" in line.split()[1] and word in mem.read(end - at):
                    return True
    return False


def processes(server, name):
    found = []
    for pid in host.pids():
        with contextlib.suppress(OSError):
            if open(f"/proc/{pid}/comm", encoding="ascii").read().strip() == name and server.state_dir in " ".join(
                    host.command_line(pid)):
                found.append(pid)
    return found


def test_credentials_are_with_brokers_and_carriers_only(aws, server, box, tmp_path):
    """Logs, audit, the database, answers, command lines, and the memory of who reads what boxes and clients say."""
    secret = aws.made["secret"].encode()
    assert box.exec("true")["exit_code"] == 0
    places = [server.log().encode(), server.run("config").stdout.encode()]
    for directory, _, names in os.walk(os.path.join(server.state_dir, "server")):
        for name in names:
            with contextlib.suppress(OSError):
                places.append(open(os.path.join(directory, name), "rb").read())
    for pid in host.pids():
        places.append(" ".join(host.command_line(pid)).encode())
    assert all(secret not in text for text in places)

    daemons = [p for p in host.descendants(server.process.pid)
               if host.parent(p) == server.process.pid and p not in server.keepers()]
    assert daemons
    for pid in [*daemons, *processes(server, "paddock-standin")]:
        assert not memory_has(pid, secret), (pid, host.command_line(pid))
    assert any(memory_has(p, secret) for p in processes(server, "paddock-carrier")), "the control"


def check(aws, env, **more):
    words = [word for name, value in {**aws.settings(), **more}.items()
             for word in ("--set", f"{name.removeprefix('fargate_')}={value}")]
    program = os.path.join(os.path.dirname(paddock.PADDOCK), "paddock-remote")
    done = subprocess.run([program, "check", "fargate", "--lease", "30", *words], capture_output=True, text=True,
                          check=False, timeout=paddock.seconds(60), env=paddock.clean_environment(env))
    return done.returncode, done.stdout


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
        box = Box(api)
        made = api.post(box.base + "/processes", json={"command": "for i in 1 2 3 4; do echo $i; sleep 1; done"})
        assert made.status == 201, made
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        server.start()
        api = server.client()
        url = f"{box.base}/processes/{made.json()['pid']}"
        paddock.wait_for(lambda: api.get(url + "/output").body == b"1\n2\n3\n4\n", 30, "all of its output is there")
        assert api.post(box.base + "/exec", json={"command": "echo on"}).json()["stdout"] == "on\n"


@nightly
def test_a_server_that_is_gone_for_good_costs_nothing(aws):
    """Everything of it is killed at once: the tasks end themselves when their lease is over."""
    before = len(aws.live())
    server = Server(settings(aws), env=aws.environment())
    server.start()
    Box(server.client())
    assert len(aws.live()) == before + 1
    server.note_instances()
    everybody = [server.process.pid, *server.keepers()]
    everybody += [p for pid in list(everybody) for p in host.descendants(pid)]
    everybody += [p for name in ("paddock-far", "paddock-standin", "paddock-carrier") for p in processes(server, name)]
    server.end_expected = True
    for pid in {*everybody}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    paddock.wait_for(lambda: len(aws.live()) == before, LEASE_S + 60, "its task has ended itself")
    server.close()


@nightly
def test_the_next_server_ends_what_one_has_left(aws):
    with Server(settings(aws, box_lease_s=900), env=aws.environment()) as server:
        before = len(aws.live())
        Box(server.client())
        keepers = server.keepers()
        everybody = {server.process.pid, *keepers, *(p for k in keepers for p in host.descendants(k)),
                     *(p for n in ("paddock-far", "paddock-standin", "paddock-carrier") for p in processes(server, n))}
        for pid in everybody:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        server.process.wait()
        assert len(aws.live()) == before + 1
        server.start()
        Box(server.client()).close()
        paddock.wait_for(lambda: len(aws.live()) == before, 60, "the older task is stopped")


def test_through_a_load_balancer(aws):
    """Any task may be behind it: each link finds its own, and finds it again, and no target stays."""
    if reason := balancer.why_not():
        pytest.skip(f"no AWS here: {reason}")
    aws.balancer = way = balancer.Balancer(7400)
    try:
        with Server(settings(aws, fargate_target_group=aws.made["targets"], fargate_balancer=f"http://127.0.0.1:{way.port}"),
                    env=aws.environment()) as server:
            boxes = [Box(server.client()) for _ in range(3)]
            assert len(aws.targets) == 3
            for n, box in enumerate(boxes):
                assert box.exec(f"echo {n} >/tmp/n; cat /tmp/n")["stdout"] == f"{n}\n"
            way.cut()
            for n, box in enumerate(boxes):
                assert box.exec("cat /tmp/n")["stdout"] == f"{n}\n"

            aws.faults["DeregisterTargets"] = ["after", "throttle"]
            boxes[0].close()
            paddock.wait_for(lambda: len(aws.targets) == 2 and len(way.slots) == 2, 60, "its target is taken out")
            os.kill(host.descendants(aws.live()[-1].task.process.pid)[0], signal.SIGKILL)  # it ends by itself
            paddock.wait_for(lambda: len(aws.targets) == 1, 60, "so is that of a task that has ended")
        paddock.wait_for(lambda: not aws.targets, 60, "and with the server all")
    finally:
        aws.balancer = None
        way.close()
