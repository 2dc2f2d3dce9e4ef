"""Provider cloudrun by bucket: no network leads from an execution to the server or back. The double of test_cloudrun.py has a
bucket, which is judged by Google's description of Cloud Storage; its tasks see it as a directory and reach nothing else."""

import os
import signal
import subprocess
import time

import pytest

from paddock_testing import bucket as storage
from paddock_testing import cloudrun as double
from paddock_testing import credentials, host
from paddock_testing import run as paddock
from paddock_testing.server import Server
import elsewhere
from elsewhere import Box, at_rest, named

LEASE_S = 10  # the least
NIGHT = bool(os.environ.get("PADDOCK_NIGHTLY"))


def nightly(test):
    return test if NIGHT else None


@pytest.fixture(scope="module")
def google():
    if reason := double.why_not():
        pytest.skip(f"no Cloud Run here: {reason}")
    made = double.CloudRun()
    yield made
    try:
        paddock.wait_for(lambda: not made.live(), 30, "no execution is left")
        paddock.wait_for(lambda: not made.bucket.names(), 60, "nothing is left in the bucket")
        assert not made.wrong, "requests and answers are as Google describes them"
    finally:
        made.close()


@pytest.fixture(scope="module")
def server(google):
    with Server({"providers": "jail,cloudrun", "pool_min": 0, "pool_max": 0, "box_lease_s": LEASE_S,
                 **google.settings(by_bucket=True)}) as s:
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


def test_lines_files_and_input(api, box):
    told = box.exec("echo out; echo err >&2; cd /tmp; export A='b c'; exit 3")
    assert (told["stdout"], told["stderr"], told["exit_code"]) == ("out\n", "err\n", 3)
    assert box.exec('pwd; echo "$A"')["stdout"] == "/tmp\nb c\n"
    data = os.urandom(3 << 20 if NIGHT else 300 << 10)
    path = f"{box.url}/files?path=/workspace/b.bin"
    assert api.request("PUT", path, data=data).status in (200, 201)
    assert api.request("GET", path).body == data


def test_what_an_execution_is_run_with(google, box):
    """No address to call, no key among its arguments, and none of the keys left where commands could find it."""
    container = google.bodies("run")[-1]["overrides"]["containerOverrides"][0]
    assert not [word for word in container["args"] if word.startswith(("call=", "pin="))], container
    assert [word for word in container["args"] if word.startswith(double.MOUNT.join(("bucket=", "/paddock-")))], container
    assert [v["name"] for v in container["env"]] == ["PADDOCK_BOX_KEY", "PADDOCK_BOX_SEAL"]
    said = box.exec(f"env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; ls {double.MOUNT}; cat {double.MOUNT}/*")["stdout"]
    assert not [v for v in container["env"] if v["value"] in said] and "PADDOCK_BOX" not in said, said


@nightly
def test_a_process_goes_on_while_nobody_carries(google, server, api, box):
    """The carrier is killed, with the process that brings letters: another one calls, and no byte is lost or comes twice."""
    made = api.post(box.url + "/processes", json={"command": "for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done"})
    assert made.status == 201, made
    calls = [name for name in google.bucket.names() if name.endswith(".call")]
    elsewhere.kill(named(server, "carrier"))
    url = f"{box.url}/processes/{made.json()['pid']}/output"
    paddock.wait_for(lambda: api.get(url).body == b"1\n2\n3\n4\n5\n6\n", 60, "all of its output is there")
    assert len([name for name in google.bucket.names() if name.endswith(".call")]) > len(calls)


def test_whoever_has_the_bucket_can_only_stop_it(google, api, box):
    """What is said is not in the objects; and what another one writes as if it were from the server is not believed."""
    seen, directory = set(), google.bucket.dir
    made = api.post(box.url + "/processes", json={"command": "for i in 1 2 3 4 5; do echo a-plain-word-$i; sleep 0.1; done"})

    def watched():
        for path in directory.iterdir():
            try:
                seen.add(path.read_bytes())
            except FileNotFoundError:
                continue
        return b"a-plain-word-5" in api.get(f"{box.url}/processes/{made.json()['pid']}/output").body
    paddock.wait_for(watched, 60, "it was said")
    assert seen and not [content for content in seen if b"plain-word" in content]

    # A call without the key is not taken; a letter that is not sealed with it ends the connection, and another one begins.
    call = max((n for n in google.bucket.names() if n.endswith(".call")), key=lambda n: int(n.split(".")[-2]))
    prefix, number, _ = call.rsplit(".", 2)
    for down in range(1, 100):
        google.bucket.put({"name": f"{prefix}.{number}.d.{down}", "uploadType": "media", "ifGenerationMatch": "0"},
                          b"\x20\0\0\0" + 32 * b"x")
    google.bucket.put({"name": f"{prefix}.{int(number) + 2}.call", "uploadType": "media"}, 48 * b"x")
    (directory / f"{prefix}.{int(number) + 2}.call").unlink()
    assert box.exec("echo still mine")["stdout"] == "still mine\n"


@pytest.mark.parametrize("action, fault", [(a, f) for a in ("put", "get", "delete", "list") for f in ("before", "after", "throttle", "fail")]
                         if NIGHT else [("put", "after")])
def test_an_answer_that_is_lost_loses_nothing(google, api, box, action, fault):
    """Of each call, several in a row."""
    assert box.exec("true")["exit_code"] == 0
    google.faults[f"bucket-{action}"] = [fault] * 2
    if action == "list":  # when it is called
        other = Box(api, provider="cloudrun")
        assert other.exec("echo there")["stdout"] == "there\n"
        other.delete()
    else:
        assert box.exec("seq 20000 | sha256sum")["stdout"] == \
            subprocess.run("seq 20000 | sha256sum", shell=True, capture_output=True, text=True, check=True).stdout
    paddock.wait_for(lambda: not google.faults[f"bucket-{action}"], 60, "both were met")


@pytest.fixture
def hangs(google):
    """Calls that get no answer until the end of the test."""
    google.go_on.clear()
    google.hung = []
    yield google.faults
    google.faults.clear()
    google.go_on.set()


def test_a_look_that_hangs_holds_nothing_up(google, api, hangs):
    """The first object is asked for again, and a sandbox is made."""
    hangs["bucket-here"] = ["hang"]
    began = time.monotonic()
    made = Box(api, provider="cloudrun")
    assert len(google.hung) == 1 and time.monotonic() - began < 25, google.hung
    made.delete()


def test_what_has_ended_is_removed_by_one_process(google, api, hangs):
    """Every look for orphans finds the execution that has ended, as long as the bucket cannot be cleared."""
    made = Box(api, provider="cloudrun")
    looks = len([a for a, _ in google.asked if a == "list"])
    hangs["bucket-list"] = ["hang"] * 100
    made.delete()
    paddock.wait_for(lambda: google.hung, 30, "it is being removed")
    paddock.wait_for(lambda: len([a for a, _ in google.asked if a == "list"]) >= looks + 20, 60, "there were looks")
    assert len(google.hung) == len(set(google.hung)), google.hung  # each is of another box


@nightly
def test_an_execution_that_ends_is_told(google, api):
    before = at_rest(api, "cloudrun", google.live)
    made = Box(api, provider="cloudrun")
    one = google.live()[-1]
    os.kill(host.descendants(one.task.process.pid)[0], signal.SIGKILL)
    paddock.wait_for(lambda: made.get()["end_cause"], 90, "it is lost")
    assert made.get()["end_cause"] == "lost" and "NON_ZERO_EXIT_CODE" in made.get()["end_reason"], made.get()
    assert len(google.live()) == before


def test_credentials_are_with_brokers_only(google, server, api, box):
    """The tokens of Google, and the key from which the keys of letters follow."""
    assert box.exec("true")["exit_code"] == 0
    tokens = [token.encode() for token in google.tokens]
    credentials.check_nowhere(server, api, tokens, ("paddock-keeper", "paddock-far", "paddock-standin"))
    assert credentials.held(server, tokens), "the control"


@nightly
def test_a_daemon_and_then_a_server_that_are_gone(google):
    """Another daemon has what was running; and when all are killed the execution ends itself, at the end of its lease."""
    before = len(google.live())
    with Server({"providers": "jail,cloudrun", "pool_min": 0, "pool_max": 0, "box_lease_s": LEASE_S,
                 **google.settings(by_bucket=True)}) as server:
        made = Box(server.client(), provider="cloudrun")
        begun = server.client().post(made.url + "/processes", json={"command": "for i in 1 2 3 4; do echo $i; sleep 1; done"})
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        server.start()
        api = server.client()
        url = f"{made.url}/processes/{begun.json()['pid']}/output"
        paddock.wait_for(lambda: api.get(url).body == b"1\n2\n3\n4\n", 60, "all of its output is there")
        assert len(google.live()) == before + 1
        began = time.monotonic()
        elsewhere.kill_everybody(server)
        paddock.wait_for(lambda: len(google.live()) == before, LEASE_S + 60, "its execution has ended itself")
        print(f"ended {time.monotonic() - began:.1f} s after the server")
    for path in google.bucket.dir.iterdir():  # nobody is left who would; a rule of the bucket's own removes them
        path.unlink(missing_ok=True)


def check(google, env=None, **more):
    return elsewhere.check("cloudrun", {**google.settings(by_bucket=True), **more}, env)


def test_a_check_tries_one_sandbox(google):
    before = set(google.executions)
    status, text = check(google)
    assert status == 0 and f"bucket {storage.NAME}" in text, text
    if NIGHT:
        status, text = check(google, cloudrun_bucket="", env={"SANDBOX_GCS_BUCKET": storage.NAME})
        assert status == 0 and f"bucket {storage.NAME}" in text, text
    paddock.wait_for(lambda: google.executions.keys() <= before, 60, "nothing stays")  # an earlier one may go meanwhile


@pytest.mark.parametrize("change, job, says", [
    ({"cloudrun_bucket": "A B"}, {}, "cloudrun_bucket = A B"), ({"cloudrun_bucket": "another"}, {}, "no volume of the job is the bucket"),
    ({"cloudrun_listen": "127.0.0.1:7443"}, {}, "leave one of them away"),
    ({"cloudrun_storage_endpoint": "http://192.0.2.1"}, {}, "cloudrun_storage_endpoint"),
    ({}, {"volumes": []}, "no volume of the job is the bucket"),
    ({}, {"volumes": [{"name": "links", "gcs": {"bucket": storage.NAME, "readOnly": True}}]}, "only to read")])
def test_a_check_says_what_is_wrong(google, change, job, says):
    google.job = job
    try:
        status, text = check(google, **change)
    finally:
        google.job = {}
    assert status in (1, 2) and says in text, text


GOOGLES_OWN = """
import json
import sys
from googleapiclient import discovery, http
from googleapiclient.discovery_cache import get_static_doc
from google.oauth2.credentials import Credentials

url, token, bucket = sys.argv[1:]
described = {**json.loads(get_static_doc("storage", "v1")), "rootUrl": url + "/"}
storage = discovery.build_from_document(described, credentials=Credentials(token)).objects()
def put(name, content, **more):
    return storage.insert(bucket=bucket, name=name, media_body=http.MediaInMemoryUpload(content), **more).execute()
for i in range(25):
    assert put(f"own.{i}", b"content %d" % i)["name"] == f"own.{i}"
assert put("own.0", b"again")["size"] == "5"
try:
    put("own.0", b"third", ifGenerationMatch=0)
    raise SystemExit("the second of two is refused")
except http.HttpError as refused:
    assert refused.resp.status == 412, refused
assert storage.get_media(bucket=bucket, object="own.0").execute() == b"again"
names, request = [], storage.list(bucket=bucket, prefix="own.")
while request:
    answer = request.execute()
    names += [item["name"] for item in answer["items"]]
    request = storage.list_next(request, answer)
assert names == sorted(f"own.{i}" for i in range(25)), names
for name in names:
    storage.delete(bucket=bucket, object=name).execute()
try:
    storage.get(bucket=bucket, object="own.0").execute()
    raise SystemExit("it is gone")
except http.HttpError as refused:
    assert refused.resp.status == 404, refused
"""


@nightly
def test_the_double_serves_googles_own_client(google):
    subprocess.run([paddock.TOP / "tests/google/install", "client"], check=True, capture_output=True, timeout=paddock.seconds(400))
    done = subprocess.run([paddock.TOP / "build-google/client/bin/python", "-c", GOOGLES_OWN, google.url, google.new_token()["access_token"],
                           storage.NAME], capture_output=True, text=True, check=False, timeout=paddock.seconds(60))
    assert done.returncode == 0, done.stderr
