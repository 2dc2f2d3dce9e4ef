"""Sandboxes that are executions of a job of Google Cloud Run. Google is a double (paddock_testing/cloudrun.py) that judges
requests by Google's own description of the API and verifies the signatures of service accounts: each :run starts a real
paddock-box in a network of its own, which calls the server, because nothing else connects to it."""

import contextlib
import os
import re
import signal
import socket
import ssl
import time

import pytest

from paddock_testing import cloudrun as double
from paddock_testing import coordinated, credentials, host
from paddock_testing import run as paddock
from paddock_testing.server import Server, check_error
import elsewhere
from elsewhere import Box, at_rest, named


def nightly(test):
    return test if os.environ.get("PADDOCK_NIGHTLY") else None


LEASE_S = 10  # the least
NIGHT = bool(os.environ.get("PADDOCK_NIGHTLY"))
# What is lost: by day once each of what makes and what ends an execution.
LOST = [(action, fault) for action in ("token", "run", "operation", "get", "list", "cancel", "delete")
        for fault in ("before", "after", "throttle") if (action, fault) != ("run", "before")] if NIGHT else [("run", "after"), ("cancel", "before")]


@pytest.fixture(scope="module")
def google():
    if reason := double.why_not():
        pytest.skip(f"no Cloud Run here: {reason}")
    made = double.CloudRun()
    yield made
    try:
        paddock.wait_for(lambda: not made.live(), 30, "no execution is left")
        assert not made.wrong, "requests and answers are as Google describes them"
        assert len(made.asked) > 10
    finally:
        made.close()


@pytest.fixture(autouse=True)
def punctual(google):
    yield
    left = {action: faults for action, faults in google.faults.items() if faults}
    google.faults, google.delay, google.job = {}, 0, {}
    assert not left, "faults that nobody met"


def settings(google, **more):
    return {"providers": "jail,cloudrun", "pool_min": 0, "pool_max": 0, "box_lease_s": LEASE_S, **google.settings(), **more}


@pytest.fixture(scope="module")
def server(google):
    with Server(settings(google)) as s:
        elsewhere.open_soon(s)
        yield s


@pytest.fixture(scope="module")
def api(server):
    return server.client()


@pytest.fixture(scope="module")
def box(api):
    made = Box(api, provider="cloudrun")
    yield made
    made.delete()


def test_lines_files_and_what_it_says_it_is(api, box):
    assert (box.get()["provider"], box.get()["isolation"]) == ("cloudrun", "basic")
    told = box.exec("echo out; echo err >&2; cd /tmp; export A='b c'; exit 3")
    assert (told["stdout"], told["stderr"], told["exit_code"]) == ("out\n", "err\n", 3)
    assert box.exec('pwd; echo "$A"')["stdout"] == "/tmp\nb c\n"

    data = os.urandom(3 << 20)
    path = f"{box.url}/files?path=/workspace/b.bin"
    assert api.request("PUT", path, data=data).status in (200, 201)
    assert api.request("GET", path).body == data
    provider = next(p for p in api.get("/v1/providers").json()["providers"] if p["name"] == "cloudrun")
    assert {"terminal", "files", "ports"} <= set(provider["capabilities"]), provider
    assert not {"pause", "usage", "snapshot", "limits"} & set(provider["capabilities"]), provider
    check_error(api.post(box.url + "/pause"), 501, "unsupported")


@nightly
def test_the_coordinator_of_the_python_package(server, tmp_path):
    coordinated.check_request(server, "cloudrun", tmp_path, "CloudRunJobsCoordinator")


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


def test_what_an_execution_is_run_with(google, box):
    """One task, a longest life, and whose it is; the key is in no argument."""
    body = google.bodies("run")[-1]["overrides"]
    assert (body["taskCount"], body["timeout"]) == (1, "86400s")
    words = body["containerOverrides"][0]["args"]
    assert words[0] == "run" and f"lease={LEASE_S}" in words and "key=env" in words, words
    assert any(re.fullmatch(r"label=[a-z0-9]+/.+", w) for w in words), words
    key = body["containerOverrides"][0]["env"][0]
    assert key["name"] == "PADDOCK_BOX_KEY" and re.fullmatch("[0-9a-f]{64}", key["value"])
    assert "PADDOCK" not in box.exec("env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'")["stdout"]


def callers(execution):
    """Its process that calls, and that of the connection that it has."""
    def both():
        found = [p for p in host.descendants(execution.task.process.pid)
                 if (host.read_proc(p, "comm") or "").strip() == "paddock-caller"]
        return [(host.parent(p), p) for p in found if host.parent(p) in found]

    return paddock.wait_for(both, 30, "it has called")[0]


def test_a_connection_that_is_cut_is_made_again(google, api, box):
    """The box calls again, and what was running goes on."""
    made = api.post(box.url + "/processes", json={"command": "for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done"})
    assert made.status == 201, made
    os.kill(callers(google.live()[-1])[1], signal.SIGKILL)
    url = f"{box.url}/processes/{made.json()['pid']}/output"
    paddock.wait_for(lambda: api.get(url).body == b"1\n2\n3\n4\n5\n6\n", 60, "all of its output is there")


def test_who_calls_without_being_a_box_learns_nothing(google, server, box):
    """Other names, no TLS, and silence are hung up on; the box's own name is met by the server's key, and nothing is said."""
    where = server.settings["cloudrun_listen"].rsplit(":", 1)
    body = google.bodies("run")[-1]["overrides"]["containerOverrides"][0]["args"]
    link = next(w for w in body if w.startswith("box=")).removeprefix("box=")
    pin = next(w for w in body if w.startswith("pin=")).removeprefix("pin=")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def call(name):
        with socket.create_connection((where[0], int(where[1])), paddock.seconds(20)) as raw:
            with context.wrap_socket(raw, server_hostname=name) as tls:
                return tls.getpeercert(binary_form=True)

    for name in ("0" * 32 + ".box.invalid", link + ".example.org", "localhost"):
        with pytest.raises(OSError):
            call(name)
    with socket.create_connection((where[0], int(where[1])), paddock.seconds(20)) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert raw.recv(100) == b""

    # The control: with the right name there is somebody, who has the key that the box was told. Its link is busy, so the
    # call waits until the connection of the box is gone.
    waiting, connected = callers(google.live()[-1])
    os.kill(waiting, signal.SIGSTOP)
    try:
        os.kill(connected, signal.SIGKILL)
        assert bytes.fromhex(pin) in call(link + ".box.invalid")
    finally:
        os.kill(waiting, signal.SIGCONT)
    assert box.exec("echo there")["stdout"] == "there\n"


@pytest.mark.parametrize("asked, code, says", [
    ({"image": "debian:12"}, "unsupported", "image"),
    ({"limits": {"memory_bytes": 1 << 30}}, "unsupported", "limit"),
    ({"profile": "restricted"}, "unsupported", "profile"),
])
def test_what_it_cannot_give_is_refused_by_name(api, asked, code, says):
    check_error(api.post("/v1/sandboxes", json={"provider": "cloudrun", **asked}), [400, 501], code, says=says)


@pytest.mark.parametrize("action, fault", LOST)
def test_an_answer_that_is_lost_makes_no_double_and_leaves_none(google, api, action, fault):
    before, runs = at_rest(api, "cloudrun", google.live), google.count
    if action == "token":
        google.tokens.clear()  # as if it had been withdrawn
    google.faults[action] = [fault]
    box = Box(api, provider="cloudrun")
    assert box.exec("echo fine")["stdout"] == "fine\n"
    assert len(google.live()) == before + 1 and google.count == runs + 1
    box.delete()
    paddock.wait_for(lambda: len(google.live()) == before, 60, "its execution has ended")
    paddock.wait_for(lambda: len(google.executions) <= before, 60, "its record is removed")


@nightly
def test_a_run_that_never_arrived_is_not_said_again(google, api):
    """It might still arrive: the request fails, and what comes late is found. The next one is another one."""
    before, runs = at_rest(api, "cloudrun", google.live), google.count
    google.faults["run"] = ["before"]
    check_error(api.post("/v1/sandboxes", json={"provider": "cloudrun"}), [502, 503], "bad_gateway")
    assert google.count == runs and len(google.live()) == before
    box = Box(api, provider="cloudrun")
    assert box.exec("echo fine")["stdout"] == "fine\n"
    box.delete()
    paddock.wait_for(lambda: len(google.live()) == before, 60, "its execution has ended")


def test_an_execution_that_ends_is_told(google, api):
    box = Box(api, provider="cloudrun")
    one = google.live()[-1]
    one.unseen = 0
    os.kill(host.descendants(one.task.process.pid)[0], signal.SIGKILL)
    paddock.wait_for(lambda: box.get()["end_cause"], 60, "it is lost")
    assert box.get()["end_cause"] == "lost", box.get()
    assert "the execution has ended (NON_ZERO_EXIT_CODE)" in box.get()["end_reason"], box.get()


def test_credentials_are_with_brokers_only(google, server, api, box):
    """The key of the service account, and the tokens that it was exchanged for."""
    assert box.exec("true")["exit_code"] == 0
    with open(google.account.key, encoding="ascii") as file:
        key = file.read().splitlines()[5].encode()
    tokens = [token.encode() for token in google.tokens]
    credentials.check_nowhere(server, api, [key, *tokens], ("paddock-keeper", "paddock-far", "paddock-standin", "paddock-calls"))
    assert credentials.held(server, tokens), "the control"


def check(google, env=None, **more):
    return elsewhere.check("cloudrun", {**google.settings(), **more}, env)


def test_a_check_tries_one_sandbox(google):
    before = set(google.executions)
    status, text = check(google)
    assert status == 0, text
    assert "credentials the key of a service account" in text and "service_account nobody@" in text, text
    assert not any(token in text for token in google.tokens)
    paddock.wait_for(lambda: google.executions.keys() <= before, 60, "nothing stays")  # an earlier one may go meanwhile


@pytest.mark.parametrize("change, says", [
    ({"cloudrun_job": "nowhere"}, "no job 'nowhere'"), ({"cloudrun_job": ""}, "needs cloudrun_job"),
    ({"cloudrun_project": ""}, "needs cloudrun_project"), ({"cloudrun_project": "A B"}, "cloudrun_project = A B"),
    ({"cloudrun_region": "EU"}, "cloudrun_region = EU"), ({"cloudrun_endpoint": "http://192.0.2.1"}, "cloudrun_endpoint"),
    ({"cloudrun_listen": ""}, "needs cloudrun_listen"), ({"cloudrun_listen": "nowhere"}, "cloudrun_listen"),
    ({"cloudrun_listen": "192.0.2.1:7443"}, "no address of this machine"),
    ({"cloudrun_listen": "0.0.0.0:7443"}, "cloudrun_call"), ({"cloudrun_call": "host"}, "cloudrun_call = host"),
    ({"cloudrun_max_life_s": "5"}, "cloudrun_max_life_s"), ({"cloudrun_network": ""}, "cloudrun_network"),
    ({"cloudrun_credentials_file": "/nonexistent"}, "cloudrun_credentials_file")])
def test_a_check_says_what_is_wrong_with_settings(google, change, says):
    status, text = check(google, **change)
    assert status in (1, 2) and says in text, text


def test_a_check_says_what_is_wrong_with_a_job(google):
    google.job = {"maxRetries": 3}
    status, text = check(google)
    assert status == 1 and "maxRetries to 0" in text, text


def test_a_check_says_what_is_wrong_with_credentials(google, tmp_path):
    """A key that Google does not know, another kind of file, a token that is none or has been withdrawn."""
    file = tmp_path / "account.json"
    stranger = double.Account(str(tmp_path), "stranger")
    stranger.write(file, google.url + "/token", client_email=google.account.email, private_key_id=google.account.key_id)
    status, text = check(google, cloudrun_credentials_file=file)
    assert status == 1 and "token server refuses" in text and "cloudrun_credentials_file" in text, text

    file.write_text('{"type": "authorized_user", "refresh_token": "1//0secret"}')
    status, text = check(google, cloudrun_credentials_file=file)
    assert status == 1 and "authorized_user" in text and "1//0secret" not in text, text
    file.write_text("ya29.withdrawn-secret")
    status, text = check(google, cloudrun_credentials_file="", cloudrun_token_file=file)
    assert status == 1 and "(401)" in text and "ya29.withdrawn-secret" not in text, text
    file.write_text("two words")
    status, text = check(google, cloudrun_credentials_file="", cloudrun_token_file=file)
    assert status == 1 and "is no token" in text, text
    status, text = check(google, cloudrun_credentials_file="", env={"GCE_METADATA_HOST": "127.0.0.1:1"})
    assert status == 1 and "there are no credentials for Google" in text, text


def test_other_places_of_credentials(google, tmp_path):
    status, text = check(google, cloudrun_credentials_file="", env={"GCE_METADATA_HOST": google.url.removeprefix("http://")})
    assert status == 0 and "credentials the metadata server" in text, text
    file = tmp_path / "token"
    file.write_text(google.new_token()["access_token"] + "\n")
    status, text = check(google, cloudrun_credentials_file="", cloudrun_token_file=file)
    assert status == 0 and "credentials cloudrun_token_file" in text, text


def test_a_federated_identity(google, tmp_path):
    """Somebody else's token, of a file or an address, is exchanged; with what comes of it a service account's is asked for."""
    file, subject = tmp_path / "federation.json", tmp_path / "subject"
    subject.write_text(google.subject + "\n")
    google.federation(file, {"file": str(subject)})
    before = len(google.asked)
    status, text = check(google, cloudrun_credentials_file=file)
    assert status == 0 and "credentials a federated identity" in text and google.subject not in text, text
    assert "sts" in [action for action, _ in google.asked[before:]]

    google.federation(file, {"url": google.url + "/subject?audience=pool", "headers": {"X-Proof": "a word"},
                             "format": {"type": "json", "subject_token_field_name": "value"}},
                      service_account_impersonation_url=google.impersonation(),
                      service_account_impersonation={"token_lifetime_seconds": 1200})
    status, text = check(google, cloudrun_credentials_file="", env={"GOOGLE_APPLICATION_CREDENTIALS": str(file)})
    assert status == 0, text
    assert b'"1200s"' in next(body for action, body in google.asked[::-1] if action.endswith(":generateAccessToken"))


@pytest.mark.parametrize("source, more, says", [
    ({"file": "/nonexistent"}, {}, "/nonexistent"),
    ({"file": "{wrong}"}, {}, "the pool and provider in cloudrun_credentials_file"),
    ({"file": "{empty}"}, {}, "gives no token"),
    ({"file": "{good}"}, {"service_account_impersonation_url": "{url}/v1/projects/-/serviceAccounts/other@x:generateAccessToken"},
     "iam.serviceAccountTokenCreator"),
    ({"file": "{good}"}, {"token_url": "http://192.0.2.1/token"}, "without it a credential would be sent openly"),
    ({"url": "{url}/subject"}, {}, "who asks?"), ({"executable": {"command": "id"}}, {}, "'executable'"), ({}, {}, "'file' or 'url'")])
def test_a_check_says_what_is_wrong_with_a_federated_identity(google, tmp_path, source, more, says):
    names = {"wrong": "ey.of-somebody-else-secret", "empty": "", "good": google.subject}
    for name, content in names.items():
        (tmp_path / name).write_text(content)
    words = {"url": google.url, **{name: str(tmp_path / name) for name in names}}

    def filled(table):
        return {key: value.format(**words) if isinstance(value, str) else value for key, value in table.items()}
    google.federation(tmp_path / "federation.json", filled(source), **filled(more))
    status, text = check(google, cloudrun_credentials_file=tmp_path / "federation.json")
    assert status == 1 and says in text and "of-somebody-else-secret" not in text and google.subject not in text, text


@nightly
def test_failures_that_last_end_the_request_and_leave_nothing(google, api):
    before = at_rest(api, "cloudrun", google.live)
    google.faults["run"] = ["fail"] * 3
    error = check_error(api.post("/v1/sandboxes", json={"provider": "cloudrun"}), [502, 503], "bad_gateway")
    assert "run the job" in error["message"], error
    google.faults.clear()
    paddock.wait_for(lambda: len(google.live()) == before, 60, "what was begun has ended")


@nightly
def test_an_execution_that_comes_when_nobody_waits_any_more(google, api):
    """Deleted while it is made: the request is given up, the task begins all the same, and is found by its label."""
    before, runs = at_rest(api, "cloudrun", google.live), google.count
    google.delay = 3
    answer = api.post("/v1/sandboxes", json={"provider": "cloudrun", "max_life_s": 1})
    assert answer.status >= 400 or api.request("DELETE", "/v1/sandboxes/" + answer.json()["id"]).status == 204
    paddock.wait_for(lambda: google.count > runs, 60, "the execution has begun")
    paddock.wait_for(lambda: len(google.live()) == before, 60, "it has ended")


@nightly
def test_the_process_that_takes_calls_is_replaced(google, server, api, box):
    """Whoever waits starts another one; boxes call it as they did the one before."""
    elsewhere.kill(named(server, "switchboard"))
    other = Box(api, provider="cloudrun")
    assert other.exec("echo there")["stdout"] == "there\n"
    elsewhere.kill(named(server, "carrier"))
    assert box.exec("echo still")["stdout"] == "still\n"
    other.delete()


@nightly
def test_a_daemon_that_is_killed_is_succeeded(google):
    with Server(settings(google)) as server:
        api = server.client()
        box = Box(api, provider="cloudrun")
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
def test_a_server_that_is_gone_for_good_costs_nothing(google):
    """Everything of it is killed at once: the boxes end themselves when their lease is over."""
    before = len(google.live())
    server = Server(settings(google))
    server.start()
    Box(server.client(), provider="cloudrun")
    assert len(google.live()) == before + 1
    began = time.monotonic()
    elsewhere.kill_everybody(server)
    paddock.wait_for(lambda: len(google.live()) == before, LEASE_S + 60, "its execution has ended itself")
    print(f"ended {time.monotonic() - began:.1f} s after the server")
    server.close()
