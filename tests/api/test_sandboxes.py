"""Sandboxes: make, find, list, hold, extend, end."""

import re
import time

import pytest

from helpers import Box, together
from paddock_testing import contract
from paddock_testing.run import seconds, settled, wait_for
from paddock_testing.server import check_error

FIELDS = {
    "id", "state", "end_cause", "end_reason", "provider", "reason", "isolation", "mode", "image", "template",
    "profile", "policy", "made_by", "user_id", "thread_id", "metadata", "network", "limits", "created_at", "expires_at",
    "last_used_at", "ended_at", "idle_timeout_s", "max_life_s", "from_pool", "recreated", "replaces",
    "processes"}
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def ids(api, query):
    answer = api.get(f"/v1/sandboxes{query}")
    assert answer.status == 200, answer
    return [s["id"] for s in answer.json()["sandboxes"]]


def test_a_new_sandbox(api, make_sandbox):
    answer = api.post("/v1/sandboxes")
    try:
        assert answer.status == 201, answer
        made = answer.json()
        assert set(made) == FIELDS | {"queue"}
        assert re.fullmatch("[a-z0-9]{20}", made["id"])
        assert made["state"] == "running" and made["reason"]
        assert made["provider"] == contract.provider()
        listed = {p["name"]: p for p in api.get("/v1/providers").json()["providers"]}
        assert made["isolation"] == listed[made["provider"]]["isolation"]
        assert made["template"] == "default" and made["profile"] == "strict"
        assert made["policy"] == "open" and made["metadata"] == {}
        assert made["user_id"] is None and made["thread_id"] is None
        assert made["end_cause"] is None and made["end_reason"] is None
        assert made["ended_at"] is None and made["replaces"] is None
        assert made["recreated"] is False and made["processes"] == 0
        assert made["idle_timeout_s"] == 1800 and made["max_life_s"] == 86400
        without_disk = ("local", "docker", "podman", "kubernetes", "fargate")
        disk = {} if contract.provider() in without_disk else {"disk_bytes": 1 << 30, "files": 100000}
        limits = {"memory_bytes": 512 << 20, "pids": 256, "cpu": 1, **disk}
        assert made["limits"] == ({} if contract.provider() in ("e2b", "daytona", "cloudrun") else limits)
        for name in ("created_at", "expires_at", "last_used_at"):
            assert re.fullmatch(TIME, made[name]), made
        assert made["queue"] == {"position": 0, "waited_ms": 0}
        again = Box(api, made["id"]).get()
        assert set(again) == FIELDS
        assert {k: v for k, v in again.items()} == {k: v for k, v in made.items() if k != "queue"}
    finally:
        assert api.delete(f"/v1/sandboxes/{answer.json()['id']}").status == 204


def test_everything_that_can_be_asked_for(api, make_sandbox):
    limits = {"memory_bytes": 128 << 20, "pids": 40, "cpu": 0.5, "disk_bytes": 64 << 20,
              "files": 2000}
    box = Box(api, make_sandbox(
        template="base", provider="jail", profile="dev", user_id="u 1/ä", thread_id="t",
        metadata={"project": "demo", "x": ""}, env={"GREETING": "hello"}, cwd="/tmp",
        limits=limits, idle_timeout_s=90.5, max_life_s=1000, queue_timeout_s=5))
    made = box.get()
    assert made["template"] == "base" and made["profile"] == "dev"
    assert made["reason"] == "asked for by the request"
    assert made["user_id"] == "u 1/ä" and made["thread_id"] == "t"
    assert made["metadata"] == {"project": "demo", "x": ""} and made["limits"] == limits
    assert made["idle_timeout_s"] == 90.5 and made["max_life_s"] == 1000
    assert box.out('echo "$GREETING $PWD"') == "hello /tmp\n"
    # The limits are real, not only written down.
    assert int(box.out("df -B1 --output=size /workspace | tail -1")) <= 80 << 20
    usage = api.get(f"{box.base}/metrics").json()
    assert usage["limits"] == limits
    assert usage["pids"] >= 1 and usage["memory_bytes"] > 0 and usage["cpu_time_ms"] >= 0
    assert usage["memory_peak_bytes"] >= usage["memory_bytes"] // 2
    assert re.fullmatch(TIME, usage["time"])


def test_delete_is_final_and_can_be_repeated(api, make_sandbox):
    box = Box(api, make_sandbox())
    assert api.delete(box.base).status == 204
    gone = box.get()
    assert gone["state"] == "gone" and gone["end_cause"] == "killed"
    assert "deleted" in gone["end_reason"] and re.fullmatch(TIME, gone["ended_at"])
    assert api.delete(box.base).status == 204
    # Whatever needs the inside says when and why it is gone.
    for call in (lambda: box.ask("true"), lambda: api.get(f"{box.base}/files/list?path=/"),
                 lambda: api.post(f"{box.base}/pause"), lambda: api.post(f"{box.base}/resume"),
                 lambda: api.post(f"{box.base}/extend", json={"idle_timeout_s": 5}),
                 lambda: api.get(f"{box.base}/metrics"), lambda: api.get(f"{box.base}/ports"),
                 lambda: api.put(f"{box.base}/env", json={"cwd": "/tmp"}),
                 lambda: api.post(f"{box.base}/processes", json={"command": "true"})):
        error = check_error(call(), 404, "not_found")
        assert "deleted" in error["message"] and gone["ended_at"][:19] in error["message"], error


def test_deleting_at_once_from_many_sides(api, make_sandbox):
    box = Box(api, make_sandbox())
    box.start("sleep 1000")
    answers = together(6, lambda _: api.delete(box.base).status)
    assert answers == [204] * 6


def test_what_is_not_there(api):
    for id in ("a" * 20, "x", "A" * 20, "a" * 21, "..", "%2e%2e", "a" * 300):
        for method, tail in (("GET", ""), ("DELETE", ""), ("POST", "/exec"), ("POST", "/pause"),
                             ("GET", "/files?path=x"), ("GET", "/env")):
            answer = api.request(method, f"/v1/sandboxes/{id}{tail}",
                                 json={"command": "true"} if method == "POST" else None)
            check_error(answer, (400, 404), ("not_found", "invalid"))


# ---- lists ----


def test_list_filters(api, make_sandbox):
    tag = f"t{time.monotonic_ns()}"
    a = make_sandbox(metadata={"tag": tag, "kind": "a"})
    time.sleep(0.01)  # lists are sorted by the millisecond
    b = make_sandbox(metadata={"tag": tag, "kind": "b & c=d"}, user_id=tag, thread_id="1")
    time.sleep(0.01)
    c = make_sandbox(metadata={"tag": tag}, user_id=tag, thread_id="2")
    assert ids(api, f"?metadata.tag={tag}") == [a, b, c], "oldest first"
    assert ids(api, f"?metadata.tag={tag}&order=oldest") == [a, b, c]
    assert ids(api, f"?metadata.tag={tag}&order=newest") == [c, b, a]
    check_error(api.get("/v1/sandboxes?order=random"), 400, "invalid", "order", says="newest")
    assert ids(api, f"?metadata.tag={tag}&metadata.kind=a") == [a]
    assert ids(api, "?metadata.kind=b%20%26%20c%3Dd&metadata.tag=" + tag) == [b]
    assert ids(api, f"?metadata.tag={tag}&metadata.other=") == []
    assert ids(api, f"?user_id={tag}") == [b, c]
    assert ids(api, f"?user_id={tag}&thread_id=2") == [c]
    assert ids(api, f"?user_id={tag}&thread_id=3") == []
    assert api.post(f"/v1/sandboxes/{b}/pause").status == 200
    assert ids(api, f"?metadata.tag={tag}&state=paused") == [b]
    assert ids(api, f"?metadata.tag={tag}&state=running") == [a, c]
    assert api.delete(f"/v1/sandboxes/{c}").status == 204
    assert ids(api, f"?metadata.tag={tag}") == [a, b], "one that is gone is left out"
    assert ids(api, f"?metadata.tag={tag}&state=gone") == [c]
    assert ids(api, f"?metadata.tag={tag}&state=all") == [a, b, c]


def test_list_words_members_and_count(api, make_sandbox):
    tag = f"w{time.monotonic_ns()}"
    a = make_sandbox(metadata={"project": f"Blue-{tag}"}, user_id=f"Ann{tag}", thread_id="Chat")
    b = make_sandbox(metadata={f"key-{tag}": "ä\"b"}, user_id=f"bob{tag}", thread_id="Chat")
    assert sorted(ids(api, f"?q={tag}")) == sorted([a, b])
    assert ids(api, f"?q=ann{tag}%20%20chat") == [a], "every word, whatever its case"
    assert ids(api, f"?q=blue-{tag}") == [a], "a value"
    assert ids(api, f"?q=KEY-{tag}") == [b], "a key"
    assert ids(api, f"?q={tag}%20%C3%A4%22b") == [b]
    assert ids(api, f"?q={tag}%20running%20{a}") == [a]
    assert ids(api, f"?q={tag}%20paused") == []
    assert ids(api, f"?q={tag}x") == []
    assert len(ids(api, f"?q=%20&metadata.project=Blue-{tag}")) == 1, "no words: no filter"

    page = api.get(f"/v1/sandboxes?q={tag}&limit=1&count=true&fields=id,state,limits").json()
    assert page["total"] == 2 and len(page["sandboxes"]) == 1
    assert list(page["sandboxes"][0]) == ["id", "state", "limits"]
    page = api.get(f"/v1/sandboxes?q={tag}&limit=1&count=true&cursor={page['next_cursor']}").json()
    assert page["total"] == 2, "of all pages, whichever this is"
    assert set(page["sandboxes"][0]) == FIELDS
    assert page["next_cursor"] is None
    for name in FIELDS:
        assert list(api.get(f"/v1/sandboxes?q={tag}&fields={name}").json()["sandboxes"][0]) == [name]
    check_error(api.get("/v1/sandboxes?fields=id,nothing"), 400, "invalid", "fields", says="nothing")
    check_error(api.get("/v1/sandboxes?fields=id,,state"), 400, "invalid", "fields")
    check_error(api.get("/v1/sandboxes?count=maybe"), 400, "invalid", "count")
    check_error(api.get("/v1/sandboxes?q=" + "a" * 300), 400, "invalid", "q")


@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_pages_hold_while_others_come_and_go(api, make_sandbox, order):
    tag = f"p{time.monotonic_ns()}"
    made = [make_sandbox(metadata={"tag": tag}) for _ in range(7)]
    seen, cursor, pages = [], "", 0
    while cursor is not None:
        answer = api.get(f"/v1/sandboxes?metadata.tag={tag}&limit=2&order={order}" +
                         (f"&cursor={cursor}" if cursor else ""))
        assert answer.status == 200, answer
        page = answer.json()
        assert len(page["sandboxes"]) <= 2
        seen += [s["id"] for s in page["sandboxes"]]
        cursor = page["next_cursor"]
        pages += 1
        if pages == 2:
            # One that was seen, and the one that the cursor stands at.
            assert api.delete(f"/v1/sandboxes/{seen[0]}").status == 204
            assert api.delete(f"/v1/sandboxes/{seen[-1]}").status == 204
            late = make_sandbox(metadata={"tag": tag})
            if order == "oldest":
                made.append(late)
    # Those of the same millisecond come in any order, but always in the same.
    assert sorted(seen) == sorted(made), "one was left out, or came twice"
    assert pages == 4
    everything = api.get("/v1/sandboxes?limit=1000").json()
    assert everything["next_cursor"] is None


def test_what_it_used_over_the_last_minutes(api, make_sandbox):
    box = Box(api, make_sandbox())
    now = api.get(f"{box.base}/metrics").json()
    assert "history" not in now

    def samples():
        told = api.get(f"{box.base}/metrics?history=true").json()
        assert set(told) == set(now) | {"history"}
        return told["history"]

    first = wait_for(samples, 30, "a first sample")[0]
    assert set(first) == {"time", "cpu_percent", "memory_bytes", "disk_bytes"}

    box.start("while :; do :; done")
    busy = wait_for(lambda: (s := samples())[-1]["cpu_percent"] > 5 and s, 30, "a busy one")
    assert busy[0] == first, "oldest first"
    assert [s["time"] for s in busy] == sorted(s["time"] for s in busy)
    check_error(api.get(f"{box.base}/metrics?history=perhaps"), 400, "invalid", "history")


# ---- time ----


def test_idle_sandboxes_end(api, make_sandbox):
    box = Box(api, make_sandbox(idle_timeout_s=1))
    gone = wait_for(lambda: (s := box.get())["state"] == "gone" and s, 20, "the idle one ends")
    assert gone["end_cause"] == "idle" and "1 s" in gone["end_reason"]
    check_error(box.ask("true"), 410, "session_expired", says="nobody used it")


def test_looking_is_no_use_and_running_is(api, make_sandbox):
    """What is used stays, for as long as a command runs or requests come."""
    box = Box(api, make_sandbox(idle_timeout_s=4))
    assert box.out("sleep 5; echo still here", timeout_s=60) == "still here\n"
    began = time.monotonic()
    while time.monotonic() - began < 6:
        time.sleep(0.4)
        assert box.out("echo x") == "x\n"
    assert box.get()["state"] == "running"


def test_maximum_life(api, make_sandbox):
    box = Box(api, make_sandbox(max_life_s=int(seconds(2))))
    process = box.start("sleep 1000")
    gone = wait_for(lambda: (s := box.get())["state"] == "gone" and s, 20, "the old one ends")
    assert gone["end_cause"] == "expired" and "maximum life" in gone["end_reason"]
    check_error(box.ask("true"), 410, "session_expired")
    check_error(box.output(process["process_id"]), (404, 410))


def test_extend(api, make_sandbox):
    box = Box(api, make_sandbox(max_life_s=5, idle_timeout_s=5))
    answer = api.post(f"{box.base}/extend", json={"idle_timeout_s": 50, "expires_in_s": 100})
    assert answer.status == 200, answer
    assert answer.json()["idle_timeout_s"] == 50
    assert 100 <= answer.json()["max_life_s"] <= 110
    time.sleep(5.5)
    assert box.out("echo x") == "x\n"
    # Shorter is fine, too.
    assert api.post(f"{box.base}/extend", json={"expires_in_s": 1}).status == 200
    wait_for(lambda: box.get()["end_cause"] == "expired", 20, "it ends as asked")


# ---- pause ----


def test_pause_freezes_processes_and_clocks(api, make_sandbox):
    box = Box(api, make_sandbox())
    process = box.start("while :; do echo tick; sleep 0.05; done")["process_id"]
    box.wait_output(process, b"tick")
    assert api.post(f"{box.base}/extend", json={"idle_timeout_s": 2}).status == 200
    assert api.post(f"{box.base}/pause").json()["state"] == "paused"
    assert api.post(f"{box.base}/pause").json()["state"] == "paused"
    # What it wrote before may still be in its pipe.
    before = settled(lambda: box.process(process)["stdout_bytes"])
    for call in (lambda: box.ask("true"), lambda: api.get(f"{box.base}/files?path=x"),
                 lambda: api.post(f"{box.base}/processes", json={"command": "true"})):
        check_error(call(), 409, "paused", says="resume")
    time.sleep(2.5)
    assert box.get()["state"] == "paused", "the idle clock went on"
    assert box.process(process)["stdout_bytes"] == before, "a paused process has written"
    assert api.post(f"{box.base}/resume").json()["state"] == "running"
    assert api.post(f"{box.base}/resume").json()["state"] == "running"
    wait_for(lambda: box.process(process)["stdout_bytes"] > before, 10, "it goes on")
    assert box.out("echo x") == "x\n"


def test_a_paused_one_can_be_ended(api, make_sandbox):
    box = Box(api, make_sandbox())
    box.start("sleep 1000")
    assert api.post(f"{box.base}/pause").status == 200
    assert api.delete(box.base).status == 204
    assert box.get()["state"] == "gone"


# ---- retries ----


def test_a_retried_creation_makes_one(api):
    key = f"create-{time.monotonic_ns()}"
    body = {"metadata": {"k": key}}
    first = api.post("/v1/sandboxes", json=body, headers={"Idempotency-Key": key})
    again = api.post("/v1/sandboxes", json=body, headers={"Idempotency-Key": key})
    try:
        assert first.status == again.status == 201
        assert first.json()["id"] == again.json()["id"]
        assert "Idempotent-Replayed" not in first.headers
        assert again.headers["Idempotent-Replayed"] == "true"
        check_error(api.post("/v1/sandboxes", json={}, headers={"Idempotency-Key": key}), 409,
                    "conflict", says=key)
        assert ids(api, f"?metadata.k={key}&state=all") == [first.json()["id"]]
    finally:
        api.delete(f"/v1/sandboxes/{first.json()['id']}")


def test_concurrent_retries_make_one(api):
    key = f"many-{time.monotonic_ns()}"
    answers = together(8, lambda _: api.post("/v1/sandboxes", json={"limits": {"pids": 77}},
                                             headers={"Idempotency-Key": key}))
    try:
        assert {a.status for a in answers} == {201}, answers
        assert len({a.json()["id"] for a in answers}) == 1
        assert sum("Idempotent-Replayed" not in a.headers for a in answers) == 1
    finally:
        api.delete(f"/v1/sandboxes/{answers[0].json()['id']}")


@pytest.mark.parametrize("key", ["", "k" * 300])
def test_keys_have_a_length(api, key):
    check_error(api.post("/v1/sandboxes", json={}, headers={"Idempotency-Key": key}), 400, "invalid",
                says="Idempotency-Key")


def test_an_image_that_the_store_lacks_is_named(api):
    answer = api.post("/v1/sandboxes", json={"provider": "jail", "image": "nobody/has:this"})
    check_error(answer, 404, "not_found", says="there is no image 'nobody/has:this'")


def test_an_image_that_is_no_reference_is_named(api):
    answer = api.post("/v1/sandboxes", json={"image": "-privileged"})
    check_error(answer, 400, "invalid", field="image", says="'-privileged' is not a reference")
