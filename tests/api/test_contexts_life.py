"""Code contexts beside the life of their sandbox and of their clients: pauses, forks of the sandbox, slow readers, and what is left."""

import json
import os

import pytest

from helpers import Later
from paddock_testing.e2b_http import E2b
from paddock_testing.run import wait_for
from paddock_testing.server import check_error
from test_contexts import Contexts

NIGHTLY = os.environ.get("PADDOCK_NIGHTLY") == "1"
ROUNDS = 1000 if NIGHTLY else 10


@pytest.fixture
def contexts(api, sandbox):
    return Contexts(api, sandbox)


@pytest.mark.parametrize("language, package", [
    ("python", "python3"), ("javascript", "nodejs"), ("typescript", "node-typescript"), ("bash", "coreutils"),
    ("r", "r-base-core"), ("java", "openjdk"), ("cobol", "jupyter")])
def test_a_language_that_is_not_there_names_packages(contexts, language, package):
    answer = contexts.api.post(contexts.base, json={"language": language, "env": {"PATH": "/nowhere"}})
    check_error(answer, 501, "unsupported")
    assert package in answer.json()["error"]["message"], answer


def test_memory_is_told(contexts):
    assert contexts.get()["memory_bytes"] is None      # there is no process
    contexts.run("1")
    before = contexts.get()["memory_bytes"]
    assert 1 << 20 < before < 64 << 20
    contexts.run("data = bytearray(b'x') * (40 << 20)")
    after = contexts.get()["memory_bytes"]
    assert after >= before + (39 << 20)
    copy = contexts.api.post(f"{contexts.base}/python/fork", json={}).json()
    assert copy["memory_bytes"] >= 39 << 20            # shared with the other, and its own as well
    contexts.run("del data")
    assert contexts.get()["memory_bytes"] < after - (30 << 20)
    assert contexts.api.post(f"{contexts.base}/python/restart").status == 200
    contexts.run("1")
    assert contexts.get()["memory_bytes"] < before + (8 << 20)


def test_a_pause_keeps_the_variables(contexts):
    contexts.run("x = 1")
    assert contexts.api.post(f"{contexts.box.base}/pause").status == 200
    assert contexts.api.post(f"{contexts.box.base}/resume").status == 200
    found = contexts.run("x")
    assert found["results"][0]["text"] == "1" and found["state"] == "kept"


def test_a_paused_sandbox_runs_no_cells(contexts):
    """It is told, as with commands; nobody waits until somebody resumes it."""
    contexts.run("x = 1")
    assert contexts.api.post(f"{contexts.box.base}/pause").status == 200
    check_error(contexts.ask("x"), 409, "paused")
    check_error(contexts.api.post(f"{contexts.base}/python/fork"), 409, "paused")
    assert contexts.api.post(f"{contexts.box.base}/resume").status == 200
    assert contexts.run("x")["results"][0]["text"] == "1"


def test_a_fork_of_the_sandbox_has_files_and_no_variables(server, api):
    e2b = E2b(server)
    first = e2b.post("/sandboxes", {"templateID": "base"}).json()["sandboxID"]
    contexts = Contexts(api, first)
    contexts.run("x = 1; open('kept', 'w').write('file')")
    made = e2b.post(f"/sandboxes/{first}/fork", {})
    assert made.status == 201, made
    other = made.json()[0]["sandbox"]["sandboxID"]
    copy = Contexts(api, other)
    assert all(c["state"] == "cold" for c in api.get(copy.base).json()["contexts"])
    assert copy.run("open('kept').read(), 'x' in dir()")["results"][0]["text"] == "('file', False)"
    assert contexts.run("x")["results"][0]["text"] == "1"
    for box in (first, other):
        e2b.delete(f"/sandboxes/{box}")


def test_a_snapshot_while_a_cell_runs(api, make_sandbox):
    """The cell goes on; what is made of the snapshot has files and no variables."""
    contexts = Contexts(api, make_sandbox(template="base"))
    contexts.run("import os, time; x = 1; open('kept', 'w').write('file')")
    later = Later(lambda: contexts.run("while not os.path.exists('go'): time.sleep(0.02)\nprint('after'); x + 1"))
    wait_for(contexts.is_busy, 20, "it runs")
    made = api.post(f"{contexts.box.base}/snapshots", json={})
    assert made.status == 201, made
    contexts.box.out("touch go")
    found = later.get()
    assert found["state"] == "kept" and found["stdout"] == "after\n" and found["results"][0]["text"] == "2"

    copy = Contexts(api, make_sandbox(snapshot=made.json()["id"]))
    assert all(c["state"] == "cold" for c in api.get(copy.base).json()["contexts"])
    assert copy.run("open('kept').read(), 'x' in dir()")["results"][0]["text"] == "('file', False)"
    api.delete(f"/v1/snapshots/{made.json()['id']}")


def test_a_slow_reader_gets_all_and_holds_up_nobody(contexts):
    """Its cell waits for it when much is unread; cells of other contexts do not."""
    other = contexts.create()["id"]
    code = "for i in range(6000): print('%06d' % i, 'x' * 993)"
    answer = contexts.api.stream("POST", f"{contexts.base}/python/execute", json={"code": code, "timeout_s": 0},
                                 headers={"Accept": "application/x-ndjson"})
    with answer:
        first = json.loads(answer.readline())
        for _ in range(3):
            assert contexts.run("1 + 1", other)["results"][0]["text"] == "2"
        lines = [first, *(json.loads(line) for line in answer.read().splitlines())]
    assert lines[-1]["type"] == "end" and not lines[-1].get("truncated")
    text = "".join(line["text"] for line in lines if line["type"] == "stdout")
    assert [line[:6] for line in text.splitlines()] == ["%06d" % i for i in range(6000)]


def test_nothing_is_left_of_many(contexts):
    """By night a thousand."""
    contexts.run("1")
    for i in range(ROUNDS):
        made = contexts.create()["id"]
        if i % 10 == 0:
            assert contexts.run("1 + 1", made)["results"][0]["text"] == "2"
        assert contexts.api.delete(f"{contexts.base}/{made}").status == 204
    contexts.api.delete(f"{contexts.base}/python")
    wait_for(lambda: contexts.box.processes() == [], 20, "no process is left")
    wait_for(lambda: not contexts.box.is_there("python3"), 20, "none in the sandbox either")
    assert {c["state"] for c in contexts.api.get(contexts.base).json()["contexts"]} == {"cold"}
