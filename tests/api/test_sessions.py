"""The sandbox of a user and a thread: get or create, never silently anew."""

import time
from urllib.parse import quote

import pytest

from helpers import Box, metric, together
from paddock_testing import contract
from paddock_testing.run import wait_for
from paddock_testing.server import check_error


@pytest.fixture
def path(api):
    """The path of a session that nobody has; ended afterwards."""
    path = f"/v1/sessions/u{time.monotonic_ns()}/t"
    yield path
    api.delete(path)


def test_get_or_create(api, path):
    check_error(api.get(path), 404, "not_found", says="PUT")
    check_error(api.delete(path), 404, "not_found")
    made = api.put(path, json={"metadata": {"a": "b"}})
    assert made.status == 201 and made.json()["user_id"] == path.split("/")[3]
    assert made.json()["thread_id"] == "t" and "queue" in made.json()
    before = metric(api, "paddock_sessions_reused_total")
    again = api.put(path, json={"metadata": {"a": "other"}})
    assert again.status == 200 and again.json()["id"] == made.json()["id"]
    assert again.json()["metadata"] == {"a": "b"}, "the body is for a new one alone"
    assert metric(api, "paddock_sessions_reused_total") == before + 1
    assert api.put(path).status == 200, "no body at all is fine"
    assert api.get(path).json()["id"] == made.json()["id"]
    # One that was deleted is made anew: whoever did that knows.
    assert api.delete(path).status == 204
    check_error(api.get(path), 404)
    new = api.put(path)
    assert new.status == 201 and new.json()["id"] != made.json()["id"]
    assert new.json()["recreated"] is False and new.json()["replaces"] is None


def test_names_of_every_kind(api):
    user = f"Zoë/../%41 {time.monotonic_ns()}?#&"
    thread = "..;\\'\"\t"
    path = f"/v1/sessions/{quote(user, safe='')}/{quote(thread, safe='')}"
    made = api.put(path)
    try:
        assert made.status == 201, made
        assert made.json()["user_id"] == user and made.json()["thread_id"] == thread
        assert api.get(path).json()["id"] == made.json()["id"]
        listed = api.get(f"/v1/sandboxes?user_id={quote(user, safe='')}").json()["sandboxes"]
        assert [s["id"] for s in listed] == [made.json()["id"]]
    finally:
        assert api.delete(path).status == 204


@pytest.mark.parametrize("user,thread,field", [
    ("u" * 129, "t", "user_id"), ("u", "t" * 129, "thread_id"), ("u%00", "t", None),
    ("u", "%ff", None), ("u", "%zz", None)])
def test_names_that_are_none(api, user, thread, field):
    for method in ("GET", "PUT", "DELETE"):
        error = check_error(api.request(method, f"/v1/sessions/{user}/{thread}"), 400, "invalid")
        if field:
            assert error["details"]["field"] == field


def test_concurrent_get_or_create_gives_one(api, path):
    answers = together(10, lambda _: api.put(path, json={"limits": {"pids": 99}}))
    assert {a.status for a in answers} == {200, 201}, answers
    assert [a.status for a in answers].count(201) == 1
    assert len({a.json()["id"] for a in answers}) == 1


def test_create_with_both_names_is_the_session(api, path):
    user = path.split("/")[3]
    made = api.post("/v1/sandboxes", json={"user_id": user, "thread_id": "t"})
    assert made.status == 201
    assert api.put(path).json()["id"] == made.json()["id"]
    check_error(api.post("/v1/sandboxes", json={"user_id": user, "thread_id": "t"}), 409, "conflict",
                says=user)


def test_expired_is_told_and_made_anew_only_when_asked(api, path):
    made = api.put(path, json={"idle_timeout_s": 1}).json()
    box = Box(api, made["id"])
    wait_for(lambda: box.get()["state"] == "gone", 20, "it ends")
    ended = box.get()["ended_at"]
    for _ in range(2):
        error = check_error(api.put(path, json={}), 410, "session_expired", says="nobody used it")
        assert ended[:19] in error["message"]
    assert api.get(path).json()["state"] == "gone"
    before = metric(api, "paddock_auto_retries_total")
    new = api.put(path, json={"auto_retry": True})
    assert new.status == 201, new
    assert new.json()["recreated"] is True and new.json()["replaces"] == made["id"]
    assert metric(api, "paddock_auto_retries_total") == before + 1
    found = api.put(path, json={"auto_retry": True})
    assert found.status == 200 and found.json()["id"] == new.json()["id"]
    assert found.json()["recreated"] is True
    # Its files are new: nothing pretends to be the old one.
    check_error(Box(api, made["id"]).ask("true"), 410, "session_expired")


def test_concurrent_auto_retry_gives_one(api, path):
    life = 5 if contract.provider() in contract.ELSEWHERE else 1  # there a second may be over before it is made
    made = api.put(path, json={"max_life_s": life}).json()
    wait_for(lambda: Box(api, made["id"]).get()["state"] == "gone", 20, "it ends")
    answers = together(6, lambda _: api.put(path, json={"auto_retry": True}))
    assert len({a.json()["id"] for a in answers}) == 1, answers
    assert [a.status for a in answers].count(201) == 1
    assert {a.json()["replaces"] for a in answers} == {made["id"]}


def test_a_paused_session_is_found(api, path):
    made = api.put(path).json()
    assert api.post(f"/v1/sandboxes/{made['id']}/pause").status == 200
    found = api.put(path)
    assert found.status == 200 and found.json()["state"] == "paused"
