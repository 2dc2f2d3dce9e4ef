"""Sandboxes that are rented from Daytona, which is played (paddock_testing/daytona.py): what is told of them, what their commands,
files and ports do; repositories that are cloned; what is lost when answers are, when connections are cut and when processes
are killed; that nothing stays that costs; and where the API key is."""

import json
import os
import random
import re
import subprocess
import time

import pytest

from paddock_testing import daytona as double
from paddock_testing import coordinated, credentials
from paddock_testing import run as paddock
from paddock_testing.daytona import Fault
from paddock_testing.server import check_error
import elsewhere
from elsewhere import COMMS, make_box, named, strike
from test_docker_kill import Printer, check_whole

from breaking import Box, Victim  # pylint: disable=import-error,wrong-import-order

NIGHT = bool(os.environ.get("PADDOCK_NIGHTLY"))


def nightly(test):
    return test if NIGHT else None


ID = "[0-9a-f-]+"
STEPS = {"make": "POST /api/sandbox", "look": "GET /api/sandbox/.*", "upload": "POST /toolbox/.*bulk-upload",
         "start": "POST /toolbox/.*execute", "preview": "GET /api/.*preview-url", "delete": "DELETE /api/.*"}
# By day what makes one and what ends one.
LOST = ([(step, how) for step in STEPS for how in ("before", "after")] + [("make", "twice")] if NIGHT
        else [("make", "after"), ("make", "twice"), ("start", "after"), ("delete", "before")])


@pytest.fixture(scope="module")
def landlord():
    if reason := double.why_not():
        pytest.skip(f"no Daytona here: {reason}")
    with double.Daytona() as who:
        yield who
        who.await_none("no sandbox is left behind")


@pytest.fixture(autouse=True)
def at_rest(request):
    """What one test has deleted goes a moment later, and is not there when the next one looks."""
    if "landlord" not in request.fixturenames:
        yield
        return
    who = request.getfixturevalue("landlord")
    who.await_none("what was deleted before is gone", 60)
    yield
    left, who.faults = [f for f in who.faults if f.times], []
    assert not left, "faults that nobody met"


def tenant(landlord, **more):
    """A server that rents. One that is refused often would open the breaker: that is tested elsewhere."""
    v = Victim({"providers": "daytona,jail", **landlord.settings(), **more})
    v.__enter__()
    elsewhere.open_soon(v)
    return v


@pytest.fixture(scope="module")
def git():
    """A repository that is served over HTTP by nobody but this machine."""
    with double.Repository() as served:
        yield served


@pytest.fixture(scope="module")
def server(landlord, git):
    v = tenant(landlord, daytona_git_hosts=f"git.example, {git.host}")
    yield v
    v.close()


@pytest.fixture
def api(server):
    return server.client()


@pytest.fixture
def box(api):
    one = Box(api, provider="daytona")
    yield one
    one.delete()


def refused(api, status, code, says, **body):
    check_error(api.post("/v1/sandboxes", json={"provider": "daytona", **body}), status, code, says=says)


# ---- what it is ----

def test_a_sandbox_says_what_it_is_and_cannot(api, box, landlord):
    told = box.get()
    assert (told["provider"], told["isolation"]) == ("daytona", "basic"), told
    assert "memory_bytes" not in told["limits"], "they are the snapshot's"
    made = landlord.live()[0].body
    assert set(made["labels"]) == {"paddock-owner", "paddock-box", "paddock-link"} and not made["public"]
    assert made["networkBlockAll"] and made["autoStopInterval"] == 15 and made["autoDeleteInterval"] == 0
    assert made["ttlMinutes"] == 1440 and "snapshot" not in made and "buildInfo" not in made, made
    kind = next(p for p in api.get("/v1/providers").json()["providers"] if p["name"] == "daytona")
    assert {"terminal", "files", "ports", "image"} <= set(kind["capabilities"]), kind
    assert not {"pause", "usage", "snapshot", "limits", "disk"} & set(kind["capabilities"]), kind
    check_error(api.post(box.url + "/pause"), 501, "unsupported")
    for body in ({"limits": {"memory_bytes": 67108864}}, {"profile": "restricted"}):
        check_error(api.post("/v1/sandboxes", json={"provider": "daytona", **body}), 501, "unsupported", says="provider daytona")


def test_commands_files_and_ports(api, box):
    """The bounding set is the machine's: what is in it nobody can get, because no new privileges are given."""
    told = box.out("id -u; grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNew)' /proc/self/status").split("\n")
    assert told[0] == "1000" and all(line.endswith("\t0000000000000000") for line in told[1:5]), told
    assert "NoNewPrivs:\t1" in told and box.out("ls -A /tmp/.paddock") == "", "neither program nor key stay there"

    data = os.urandom(1 << 20)
    path = f"{box.url}/files?path=/workspace/b.bin"
    assert api.request("PUT", path, data=data).status in (200, 201)
    assert api.request("GET", path).body == data
    served = api.post(f"{box.url}/processes", json={"argv": ["python3", "-m", "http.server", "8123"]})
    assert served.status == 201, served
    paddock.wait_for(lambda: api.get(f"{box.url}/ports/8123/").status == 200, 30, "its port can be reached")


def test_one_from_an_image(landlord, api):
    one = Box(api, provider="daytona", image="python:3.11-slim")
    assert one.get()["image"] == "python:3.11-slim" and one.out("echo here") == "here\n"
    made = landlord.live()[0].body
    assert made["buildInfo"] == {"dockerfileContent": "FROM python:3.11-slim\n"} and not {"cpu", "snapshot"} & set(made)
    one.delete()
    refused(api, 400, "invalid", "manifest unknown", image="missing:1")
    refused(api, 400, "invalid", "such as debian:12", image="a$b")
    landlord.await_none("what failed is gone")


@nightly
def test_the_coordinator_of_the_python_package(server, landlord, tmp_path):
    coordinated.check_request(server, "daytona", tmp_path, "DaytonaCoordinator")
    landlord.await_none("it has ended its session")


# ---- a repository ----

def test_a_repository_is_cloned_before_anything_runs(landlord, api, git):
    landlord.calls.clear()
    one = Box(api, provider="daytona", git_url=git.url)
    assert one.out("cat /workspace/project/hello; touch /workspace/project/mine; stat -c %u /workspace/project/hello") == "hello\n1000\n"
    there = landlord.live()[0]
    assert there.body["domainAllowList"] == "127.0.0.1" and "networkBlockAll" not in there.body and there.blocked
    asked = [c["path"].rsplit("/", 1)[-1] for c in landlord.calls]
    assert asked.index("clone") < asked.index("network-settings") < asked.index("bulk-upload"), asked
    one.delete()


def test_repositories_that_are_refused(landlord, api, git):
    refused(api, 403, "denied", "daytona_git_hosts", git_url="https://elsewhere.example/a/b")
    refused(api, 400, "invalid", "git_url", git_url="https://me:word@git.example/a/b")
    refused(api, 400, "invalid", "git_url", git_url="/etc/passwd")
    check_error(api.post("/v1/sandboxes", json={"provider": "jail", "git_url": git.url}), 501, "unsupported", says="provider jail")
    assert not landlord.live(), "nothing was rented for it"
    refused(api, 400, "invalid", "git_url", git_url=git.url.replace("project", "another"))
    landlord.await_none("what failed is gone")


def test_one_whose_network_stays_open_is_ended(landlord, api, git):
    """Who says that it took the network away, and has not."""
    landlord.faults = [Fault("POST /api/sandbox/.*/network-settings", (200, {}, b"{}"))]
    check_error(api.post("/v1/sandboxes", json={"provider": "daytona", "git_url": git.url}), 502)
    landlord.await_none("it is ended")


# ---- answers that get lost, and refusals ----

@pytest.mark.parametrize("step, how", LOST)
def test_a_lost_answer_makes_no_double_and_no_orphan(landlord, api, step, how):
    landlord.faults = [Fault(STEPS[step], how)]
    if step == "delete":
        Box(api, provider="daytona").delete()
    else:
        one = Box(api, provider="daytona") if (step, how) != ("start", "before") else None
        if one:
            assert one.out("echo here") == "here\n" and len(landlord.live()) == 1
            one.delete()
        else:
            check_error(api.post("/v1/sandboxes", json={"provider": "daytona"}), [502, 410])
    landlord.await_none("nothing is left", 60)


def test_one_that_comes_when_nobody_waits_any_more(landlord, api):
    """Neither to who made it nor to who cleans up after that it is told that it is there."""
    landlord.faults = [Fault("POST /api/sandbox", "after"), Fault("GET /api/sandbox/paddock-.*", (500, {}, b"{}"), 2)]
    check_error(api.post("/v1/sandboxes", json={"provider": "daytona"}), 502)
    landlord.await_none("it is found by its label", 60)


def test_a_name_that_somebody_else_has(landlord, api):
    landlord.faults = [Fault("POST /api/sandbox", (409, {}, b'{"message": "already exists"}'), 1)]
    Box(api, provider="daytona").delete()
    landlord.await_none("it was made all the same")


@pytest.mark.parametrize("answer, status, code, says", [
    ((401, {}, "Invalid credentials"), 403, "denied", "daytona_api_key_file"),
    ((429, {"Retry-After-sandbox-create": "77"}, "too many"), 503, "capacity", "again in 77 s"),
    ((500, {}, "upset"), 502, "bad_gateway", "upset (500)"),
    ((400, {}, "Snapshot x not found"), 400, "invalid", "see daytona_snapshot"),
    ((402, {}, "no credit"), 403, "denied", "the account there"),
    ((302, {"Location": "https://127.0.0.1:1/"}, ""), 502, "protocol", "its log says what"),
])
def test_refusals_are_told_in_words(landlord, api, answer, status, code, says):
    number, headers, words = answer
    landlord.faults = [Fault("POST /api/sandbox", (number, headers, json.dumps({"statusCode": number, "message": words}).encode()), 99)]
    refused(api, status, code, says)
    landlord.faults = []
    assert not landlord.live()


# ---- ends that others made ----

@pytest.mark.parametrize("how, says", [("delete", "no such sandbox any more"), ("stop", "has stopped it")])
def test_one_that_the_landlord_ends_is_told(landlord, api, how, says):
    one = Box(api, provider="daytona")
    there = landlord.live()[0]
    getattr(there, how)()
    paddock.wait_for(lambda: one.get()["end_cause"], 60, "it is lost")
    assert one.get()["end_cause"] == "lost" and says in one.get()["end_reason"], one.get()
    landlord.await_none("nothing of it is left", 60)


def test_one_whose_box_dies_is_told(landlord, api):
    """The sandbox runs on, and answers that nobody is at the port."""
    one = Box(api, provider="daytona")
    there = landlord.live()[0]
    there.enter("pkill", "-KILL", "-f", "/opt/paddock/box", capture_output=True)
    paddock.wait_for(lambda: one.get()["end_cause"], 60, "it is lost")
    assert one.get()["end_cause"] == "lost", one.get()
    landlord.await_none("its sandbox is ended", 60)


# ---- kills and cuts ----

@nightly
def test_every_byte_and_every_end_once(server, landlord):
    """Whatever is between a command and its client is cut or killed while it prints."""
    one = make_box(server, "daytona")
    for number in range(paddock.rounds(100, 100, 4)):
        victims = [("daemon", "carrier", "cut", "broker", "keeper")[number % 5]] + random.choices(["cut", "carrier", "stand-in"], k=2)
        print(f"round {number}: {victims}", flush=True)
        printer = Printer(one, f"run-{number}")
        for victim in victims:
            time.sleep(random.uniform(0, 0.2))
            strike(server, "daytona", victim, landlord.cut)
        printer.go_on()
        check_whole(printer.end())
    assert len(landlord.live()) == 1
    one.delete()
    landlord.await_none("what was deleted is ended")


@pytest.mark.parametrize("victim", ["guard", "watch"] if NIGHT else ["watch"])
def test_whose_death_takes_the_sandbox_along_is_told(server, landlord, victim):
    one = make_box(server, "daytona")
    strike(server, "daytona", victim, landlord.cut)
    paddock.wait_for(lambda: one.get()["end_cause"], 60, "it is lost")
    assert one.get()["end_cause"] == "lost" and one.get()["end_reason"]
    landlord.await_none("its sandbox is ended", 60)
    for kind in COMMS:
        paddock.wait_for(lambda k=kind: not named(server, k), 30, f"no {kind} is left")


# ---- cost ----

def test_a_server_that_is_gone_for_good_costs_a_lease():
    """While it lives its sandbox does not count as idle; when all its processes are killed and nobody comes, it is stopped and
    so deleted. By day a minute of Daytona's is shorter."""
    if reason := double.why_not():
        pytest.skip(f"no Daytona here: {reason}")
    with double.Daytona(minute_s=60 if NIGHT else 12) as landlord:
        v = tenant(landlord, box_lease_s=10)
        one = Box(v.client(), provider="daytona")
        there = landlord.live()[0]
        assert there.body["autoStopInterval"] == 1
        time.sleep(landlord.minute_s + 2)
        assert one.out("echo here") == "here\n", "it is not idle"
        asked = [c["path"] for c in landlord.calls]
        assert any(path.endswith("/last-activity") for path in asked), asked

        elsewhere.kill_everybody(v)
        assert landlord.live(), "it does not end at once"
        landlord.await_none("it ends with its lease", 10 + 60)
        v.start()
        v.close()


# ---- who the toolbox is ----

def test_a_toolbox_that_is_not_root():
    """Where nobody may become root all are one user, and there is no other power."""
    if reason := double.why_not():
        pytest.skip(f"no Daytona here: {reason}")
    with double.Daytona(uid=1000) as landlord:
        v = tenant(landlord)
        try:
            one = Box(v.client(), provider="daytona")
            assert one.out("id -u; grep NoNew /proc/self/status; touch /workspace/x") == "1000\nNoNewPrivs:\t1\n"
            one.delete()
        finally:
            v.close()
        landlord.await_none("nothing is left")


# ---- the key ----

def test_the_key_is_in_brokers_and_carriers_alone(landlord):
    """Also after an error that speaks of it. The control is the broker, which has it."""
    v = tenant(landlord)
    try:
        words = json.dumps({"message": f"no organization for {landlord.key}"}).encode()
        landlord.faults = [Fault("POST /api/sandbox", (401, {}, words))]
        refused(v.client(), 403, "denied", "no organization for ****")
        one = Box(v.client(), provider="daytona")
        one.out("echo here")
        credentials.check_nowhere(v, v.client(), [landlord.key.encode()])
        assert "paddock-broker" in credentials.held(v, [landlord.key.encode()]), "the control"
        one.delete()
    finally:
        v.close()
    landlord.await_none("nothing is left")


# ---- backend check, and the published shapes ----

def check(landlord, **more):
    return elsewhere.check("daytona", {**landlord.settings(), **more}, image="")


def test_a_check_tries_all_of_it(landlord, tmp_path):
    status, text = check(landlord)
    assert status == 0 and "key is accepted" in text and "\nlink " in text and "\nended " in text, text
    landlord.await_none("the check has ended what it made")

    # By the command it puts the static program there, which runs in any image, and not the one of its own build.
    config = tmp_path / "paddock.conf"
    config.write_text("".join(f"{name} = {value}\n" for name, value in landlord.settings().items()))
    done = subprocess.run([paddock.PADDOCK, "backend", "check", "daytona", "--config", config], capture_output=True, text=True,
                          check=False, timeout=paddock.seconds(60), env=paddock.clean_environment({}))
    assert done.returncode == 0 and "\nlink " in done.stdout, done
    static = (paddock.TOP / "build/src/paddock-box").read_bytes()
    assert any(content == static for content in list(landlord.sandboxes.values())[-1].put), "what was put there is the static one"
    landlord.await_none("it has ended what it made")

    wrong = tmp_path / "key"
    wrong.write_text("dtn_" + "0" * 64)
    for says, more in ((("daytona_api_key_file", "401"), {"daytona_api_key_file": str(wrong)}),
                       (("certificate",), {"daytona_ca_file": "/etc/ssl/certs/ca-certificates.crt"}),
                       (("daytona_api_url", "https://"), {"daytona_api_url": "http://192.0.2.1/api"}),
                       (("daytona_api_key_file", "/nowhere"), {"daytona_api_key_file": "/nowhere"}),
                       (("daytona_snapshot", "letters"), {"daytona_snapshot": "a b"}),
                       (("daytona_snapshot", "not found"), {"daytona_snapshot": "nowhere"})):
        status, text = check(landlord, **more)
        assert status == 1 and all(word in text for word in says) and "0000" not in text, text


def test_the_command_checks_with_the_servers_settings(landlord):
    """An image that is the default for those who need one is none of this provider's."""
    settings = {f"PADDOCK_{name.upper()}": value for name, value in {**landlord.settings(), "default_image": "missing:1"}.items()}
    done = subprocess.run([paddock.PADDOCK, "backend", "check", "daytona"], capture_output=True, text=True, check=False,
                          timeout=paddock.seconds(60), env=paddock.clean_environment(settings))
    assert done.returncode == 0 and "\nended " in done.stdout, (done.stdout, done.stderr)


def test_all_that_was_asked_is_as_published(landlord):
    """By the models of Daytona's own clients: requests of ours, and the answers that were played."""
    if reason := double.shapes_why_not():
        pytest.skip(f"no models of Daytona here: {reason}")
    calls = landlord.good_calls()
    kinds = {(c["method"], re.sub(ID, "", c["path"])) for c in calls}
    assert len(kinds) >= 6, "it is the last test of all: run the file as a whole"

    made = next(c for c in calls if c["method"] == "POST" and c["path"] == "/api/sandbox")
    controls = [{**made, **change} for change in (
        {"body": {**made["body"], "autoStopInterval": "soon"}}, {"body": {**made["body"], "autostop": 1}},
        {"answer": {**made["answer"], "state": "merry"}}, {"answer": {}}, {"method": "PATCH"}, {"query": {"wait": "1"}})]
    assert double.check_shapes(calls, controls) > 20
