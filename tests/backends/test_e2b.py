"""Sandboxes that are rented by E2B's API: from a second Paddock, by TLS. What is told of them, what their commands,
files, terminals and ports do; what is lost when answers are, when connections are cut and when processes are killed;
and where the API key is."""

import json
import os
import random
import time
from pathlib import Path

import pytest

from paddock_testing import coordinated
from paddock_testing import credentials
from paddock_testing import run as paddock
from paddock_testing.cutter import Cutter, Loser
from paddock_testing.rented import Landlord
from paddock_testing.server import Client, check_error
import elsewhere
from elsewhere import COMMS, make_box, named, strike
from test_docker_kill import Printer, check_whole

from breaking import Box, Victim  # pylint: disable=import-error,wrong-import-order


@pytest.fixture(scope="module")
def landlord():
    with Landlord() as who:
        yield who


@pytest.fixture(scope="module")
def cutter(landlord):
    way = Cutter(landlord.port)
    yield way
    way.close()


def tenant(landlord, url=None, **more):
    """A server that rents. One that is refused often would open the breaker: that is tested elsewhere."""
    v = Victim({"providers": "e2b,jail", **landlord.settings(url), **more})
    v.__enter__()
    elsewhere.open_soon(v)
    return v


@pytest.fixture(scope="module")
def server(landlord, cutter):
    v = tenant(landlord, f"https://127.0.0.1:{cutter.address[1]}")
    yield v
    v.close()
    landlord.await_none("no sandbox is left behind")


@pytest.fixture
def api(server):
    return Client(server.host, server.port, server.key)


@pytest.fixture
def box(api):
    one = Box(api, provider="e2b")
    yield one
    one.delete()


def test_a_sandbox_says_what_it_is_and_cannot(api, box, landlord):
    told = box.get()
    assert (told["provider"], told["isolation"]) == ("e2b", "basic"), told
    assert "memory_bytes" not in told["limits"], "they are the template's"
    rented = landlord.rented()
    assert [r["templateID"] for r in rented] == ["base"] and set(rented[0]["metadata"]) == {"paddock-owner", "paddock-box"}
    e2b = next(p for p in api.get("/v1/providers").json()["providers"] if p["name"] == "e2b")
    assert {"terminal", "files", "ports"} <= set(e2b["capabilities"]), e2b
    assert not {"pause", "usage", "snapshot", "image", "limits", "disk"} & set(e2b["capabilities"]), e2b
    check_error(api.post(box.url + "/pause"), 501, "unsupported")


def test_commands_have_no_power(box):
    """The bounding set is the machine's: what is in it nobody can get, because no new privileges are given."""
    told = box.out("id -u; grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNew)' /proc/self/status").split("\n")
    assert told[0] == "1000" and all(line.endswith("\t0000000000000000") for line in told[1:5]), told
    assert "NoNewPrivs:\t1" in told, told


def test_files_and_ports(api, box):
    """Terminals are made in the box by /dev/ptmx, which nobody may open in a jail: the tests of docker far away have them."""
    data = os.urandom(2 << 20)
    path = f"{box.url}/files?path=/workspace/b.bin"
    assert api.request("PUT", path, data=data).status in (200, 201)
    assert api.request("GET", path).body == data

    served = api.post(f"{box.url}/processes", json={"argv": ["python3", "-m", "http.server", "8123"]})
    assert served.status == 201, served
    paddock.wait_for(lambda: api.get(f"{box.url}/ports/8123/").status == 200, 30, "its port can be reached")


def test_a_context_is_forked_and_undone(api, box):
    """No descriptor can be sent there: the driver fetches those of its copy in the box. The copy outlives what it was made from."""
    contexts = f"{box.url}/contexts"

    def value(code, context="python", **more):
        told = api.post(f"{contexts}/{context}/execute", json={"code": code, **more})
        assert told.status == 200 and told.json()["error"] is None, told
        return told.json()["results"][0]["text"] if told.json()["results"] else None

    value("x = [1]")
    copy = api.post(f"{contexts}/python/fork", json={})
    assert copy.status == 201, copy
    copy = copy.json()["id"]
    assert value("x.append(2); x", copy) == "[1, 2]" and value("x") == "[1]"
    value("x.append(3)", keep_before=True)
    assert api.post(f"{contexts}/python/undo").status == 200 and value("x") == "[1]"
    assert api.delete(f"{contexts}/python").status == 204
    assert value("x", copy) == "[1, 2]"
    assert api.delete(f"{contexts}/{copy}").status == 204
    paddock.wait_for(lambda: "python3" not in box.out("cat /proc/[0-9]*/comm 2>/dev/null || :"), 30, "no interpreter is left")


def test_the_coordinator_of_the_python_package(server, tmp_path):
    coordinated.check_request(server, "e2b", tmp_path, "E2BCoordinator")


# ---- kills and cuts ----

def test_every_byte_and_every_end_once(server, cutter, landlord):
    """Whatever is between a command and its client is cut or killed while it prints."""
    boxes = [make_box(server, "e2b") for _ in range(2)]
    for number in range(paddock.rounds(5, 200, 5)):
        victims = [("cut", "carrier", "daemon", "broker", "keeper")[number % 5]] + random.choices(["cut", "carrier", "stand-in"], k=2)
        print(f"round {number}: {victims}", flush=True)
        printers = [Printer(b, f"run-{number}-{n}") for n, b in enumerate(boxes)]
        for victim in victims:
            time.sleep(random.uniform(0, 0.2))
            strike(server, "e2b", victim, cutter.cut)
        for printer in printers:
            printer.go_on()
            check_whole(printer.end())
    assert len(landlord.rented()) == len(boxes)
    for b in boxes:
        b.delete()
    landlord.await_none("what was deleted is ended")


@pytest.mark.parametrize("victim", ["guard", "watch"])
def test_whose_death_takes_the_sandbox_along_is_told(server, cutter, landlord, victim):
    one = make_box(server, "e2b")
    strike(server, "e2b", victim, cutter.cut)
    paddock.wait_for(lambda: one.get()["end_cause"], 60, "it is lost")
    assert one.get()["end_cause"] == "lost" and one.get()["end_reason"]
    landlord.await_none("its sandbox is ended", 60)
    for kind in COMMS:
        paddock.wait_for(lambda k=kind: not named(server, k), 30, f"no {kind} is left")


def test_one_that_the_landlord_ends_is_told(server, landlord):
    one = make_box(server, "e2b")
    rented = landlord.rented()[0]["sandboxID"]
    assert landlord.client().request("DELETE", f"/sandboxes/{rented}").status == 204
    paddock.wait_for(lambda: one.get()["end_cause"], 60, "it is lost")
    assert "E2B has no such sandbox any more" in one.get()["end_reason"], one.get()


# ---- answers that get lost, and refusals ----

@pytest.fixture
def loser(landlord):
    way = Loser(landlord.port, landlord.ca, os.path.join(landlord.certificates, "cert.pem"),
                os.path.join(landlord.certificates, "key.pem"))
    v = tenant(landlord, way.url)
    way.api = v.client()
    way.tenant = v
    yield way
    v.close()
    way.close()
    landlord.await_none("nothing is left behind", 60)


def test_lost_answers_make_one_sandbox(loser, landlord):
    """Of each request in turn the answer gets lost; of the first also when somebody has said it twice."""
    for lose, twice in (("POST /sandboxes", False), ("POST /sandboxes", True),
                        (r"POST /files\?.*key.*", False), ("POST /sandboxes/[a-z0-9]*/connect", False)):
        loser.lose, loser.times, loser.twice = lose, 1, twice
        made = loser.api.post("/v1/sandboxes", json={"provider": "e2b"})
        assert loser.times == 0 and made.status == 201, (lose, made)
        assert len(landlord.rented()) == 1, (lose, landlord.rented())
        one = Box(loser.api, made.json()["id"])
        assert one.out("echo here") == "here\n"
        one.delete()
        landlord.await_none(f"behind {lose}")


def test_a_start_whose_answer_gets_lost_leaves_nothing(loser, landlord):
    loser.lose, loser.times = "POST /process.Process/Start", 1
    made = loser.api.post("/v1/sandboxes", json={"provider": "e2b"})
    assert made.status in (502, 410), made
    landlord.await_none("what was half made is ended")


@pytest.mark.parametrize("answer, status, code, says", [
    (b"401 Unauthorized\r\n", 403, "denied", "e2b_api_key_file"),
    (b"429 Too Many Requests\r\nRetry-After: 77\r\n", 503, "capacity", "again in 77 s"),
    (b"500 Internal Server Error\r\n", 502, "bad_gateway", "upset (500)"),
    (b"404 Not Found\r\n", 404, "not_found", "no template 'base': see e2b_template"),
    (b"402 Payment Required\r\n", 403, "denied", "the account there"),
    (b"302 Found\r\nLocation: https://127.0.0.1:1/\r\n", 502, "protocol", "its log says what"),
])
def test_refusals_are_told_in_words(loser, answer, status, code, says):
    body = json.dumps({"code": 1, "message": f"upset by {loser.tenant.settings['e2b_api_key_file']}"
                       if b"302" in answer else "upset"}).encode()
    loser.lose, loser.times = "POST /sandboxes", 9
    loser.instead = b"HTTP/1.1 " + answer + b"Content-Length: %d\r\n\r\n" % len(body) + body
    made = loser.api.post("/v1/sandboxes", json={"provider": "e2b"})
    loser.times = 0
    check_error(made, status, code, says=says)


def test_who_has_to_wait_a_moment_waits(loser, landlord):
    loser.lose, loser.times = "POST /sandboxes", 1
    loser.instead = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
    made = loser.api.post("/v1/sandboxes", json={"provider": "e2b"})
    assert made.status == 201 and len(landlord.rented()) == 1, made
    Box(loser.api, made.json()["id"]).delete()


# ---- cost ----

def test_nothing_is_rented_in_advance_that_nobody_asked_for(landlord):
    """Also where it is the first of the providers: those that wait are paid for. The control is a server that was told to."""
    for more, ready in (({}, 0), ({"image_pool": 1}, 2)):  # of each of two profiles
        v = tenant(landlord, pool_min=2, pool_max=8, **more)
        try:
            paddock.wait_for(lambda n=ready: len(landlord.rented()) == n, 30, f"{ready} are ready")
            one = Box(v.client(), provider="e2b")
            assert one.get()["from_pool"] == bool(ready) and one.out("echo here") == "here\n"
            one.delete()
            paddock.wait_for(lambda n=ready: len(landlord.rented()) == n, 30, f"{ready} are ready again")
        finally:
            v.close()
        landlord.await_none("what waited is ended")


def test_a_server_that_is_gone_for_good_costs_a_lease(landlord):
    """While it lives the time-out there is renewed; when all its processes are killed and nobody comes, it is over."""
    v = tenant(landlord, box_lease_s=10)
    one = Box(v.client(), provider="e2b")
    first = landlord.rented()[0]["endAt"]
    paddock.wait_for(lambda: landlord.rented()[0]["endAt"] > first, 20, "its time is renewed")
    assert one.out("echo here") == "here\n"

    elsewhere.kill_everybody(v)
    assert landlord.rented(), "it does not end at once"
    landlord.await_none("it ends with its lease", 10 + 60)
    v.start()
    v.close()


# ---- the key ----

def test_the_key_is_in_brokers_and_carriers_alone(landlord):
    """Also after an error that speaks of it. The control is the broker, which has it."""
    v = tenant(landlord)
    try:
        one = Box(v.client(), provider="e2b")
        one.out("echo here")
        credentials.check_nowhere(v, v.client(), [landlord.server.key.encode()])
        assert "paddock-broker" in credentials.held(v, [landlord.server.key.encode()]), "the control"
        one.delete()
    finally:
        v.close()
    landlord.await_none("nothing is left")


# ---- backend check ----

def check(landlord, **more):
    return elsewhere.check("e2b", {**landlord.settings(), **more}, image="")


def test_a_check_tries_all_of_it(landlord, tmp_path):
    status, text = check(landlord)
    assert status == 0 and "key is accepted" in text and "\nlink " in text and "\nended " in text, text
    landlord.await_none("the check has ended what it made")

    wrong = tmp_path / "key"
    wrong.write_text("e2b_" + "0" * 40)
    status, text = check(landlord, e2b_api_key_file=str(wrong))
    assert status == 1 and "e2b_api_key_file" in text and "401" in text and "0000" not in text, text
    status, text = check(landlord, e2b_ca_file=str(Path("/etc/ssl/certs/ca-certificates.crt")))
    assert status == 1 and "certificate" in text, text
    status, text = check(landlord, e2b_api_url="http://192.0.2.1")
    assert status == 1 and "e2b_api_url" in text and "https://" in text, text
    status, text = check(landlord, e2b_api_key_file="/nowhere")
    assert status == 1 and "e2b_api_key_file" in text and "/nowhere" in text, text
