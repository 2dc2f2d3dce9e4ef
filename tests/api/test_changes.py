"""GET /v1/changes: whoever shows a list hears of every change of it; who does not read costs the server nothing."""

import os
import time

import pytest

from paddock_testing import host, run as paddock
from paddock_testing.server import Server, check_error
from ws import CLOSE, Closed, WebSocket

CHANGES = "/v1/changes"


class Viewer:
    """A page with a list: what it shows follows from what it has heard."""

    def __init__(self, api, **more):
        self.ws = WebSocket(api, CHANGES, **more)
        assert self.ws.open, self.ws.error()
        assert self.ws.message() == {"type": "ready"}
        self.shown = {}
        self.reloads = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ws.raw.sock.close()

    def hear(self):
        message = self.ws.message()
        if message["type"] == "reload":
            self.reloads += 1
            return
        assert set(message) == {"type", "sandboxes", "removed"} and message["type"] == "changes"
        for one in message["sandboxes"]:
            self.shown[one["id"]] = one
        for one in message["removed"]:
            self.shown.pop(one, None)

    def until(self, what, f):
        end = time.monotonic() + paddock.seconds(15)
        while not f():
            assert time.monotonic() < end, (what, self.shown)
            self.hear()

    def state(self, sandbox):
        return self.shown.get(sandbox, {}).get("state")


@pytest.fixture(scope="module")
def changing():
    with Server({"requests_per_s": 0, "creates_per_s": 0, "pool_min": 0, "pool_max": 0}) as server:
        yield server


def make(api, **more):
    answer = api.post("/v1/sandboxes", json=more)
    assert answer.status == 201, answer
    return answer.json()


def test_a_life_is_told_step_by_step_and_as_the_api_tells_it(changing):
    api = changing.client()
    with Viewer(api) as page:
        box = make(api, user_id="ann", thread_id="1")
        page.until("running", lambda: page.state(box["id"]) == "running")
        assert box["made_by"] == api.get("/v1/console/me").json()["key_id"]
        base = f"/v1/sandboxes/{box['id']}"

        assert api.post(base + "/pause").status == 200
        page.until("paused", lambda: page.state(box["id"]) == "paused")
        assert api.post(base + "/resume").status == 200
        page.until("running", lambda: page.state(box["id"]) == "running")

        extended = api.post(base + "/extend", json={"idle_timeout_s": 4321}).json()
        page.until("extended", lambda: page.shown[box["id"]]["idle_timeout_s"] == 4321)
        assert page.shown[box["id"]] == extended

        assert api.delete(base).status == 204
        page.until("gone", lambda: page.state(box["id"]) == "gone")
        assert page.shown[box["id"]] == api.get(base).json()
        assert page.reloads == 0


def test_what_a_command_does_to_the_clock_is_told(changing):
    api = changing.client()
    box = make(api)
    with Viewer(api) as page:
        assert api.post(f"/v1/sandboxes/{box['id']}/exec", json={"command": "true"}).status == 200
        page.until("used", lambda: box["id"] in page.shown)
        assert page.shown[box["id"]]["last_used_at"] >= box["last_used_at"]
    api.delete(f"/v1/sandboxes/{box['id']}")


def test_another_tenant_hears_nothing(changing):
    api, other = changing.client(), changing.client(changing.make_key("other"))
    with Viewer(api) as mine, Viewer(other) as theirs:
        box = make(api)
        mine.until("mine", lambda: mine.state(box["id"]) == "running")
        # The control: what is theirs comes, and comes first.
        own = make(other)
        theirs.until("theirs", lambda: theirs.state(own["id"]) == "running")
        assert set(theirs.shown) == {own["id"]}
        assert own["id"] not in mine.shown
    api.delete(f"/v1/sandboxes/{box['id']}")
    other.delete(f"/v1/sandboxes/{own['id']}")


LONG = {"metadata": {"long": "x" * 15000}, "policy": {"mode": "deny", "commands": [f"{n:063d}" for n in range(250)]}}


def extend(api, box, seconds):
    assert api.post(f"/v1/sandboxes/{box}/extend", json={"idle_timeout_s": seconds}).status == 200


def test_nobody_waits_for_a_viewer_that_does_not_read(changing):
    api = changing.client()
    boxes = [make(api, **LONG)["id"] for _ in range(4)]
    with Viewer(api), Viewer(api) as quick:
        for n in range(100):
            extend(api, boxes[n % 4], 600 + n)
        quick.until("the last one", lambda: quick.shown.get(boxes[3], {}).get("idle_timeout_s") == 699)
        assert quick.reloads == 0
    for box in boxes:
        api.delete(f"/v1/sandboxes/{box}")


if paddock.NIGHTLY:  # thousands of requests

    def test_a_viewer_that_does_not_read_is_told_to_reload(changing):
        """What it has missed is said in one word."""
        api = changing.client()
        boxes = [make(api, **LONG)["id"] for _ in range(10)]
        small = make(api)["id"]
        with Viewer(api) as slow:
            # Ten messages of 300 KB a second, until no more is taken; and then more than the ring holds.
            end = time.monotonic() + 8
            while time.monotonic() < end:
                for box in boxes:
                    extend(api, box, 600)
            for _ in range(4200):
                extend(api, small, 600)
            slow.until("reload", lambda: slow.reloads)
            # From then on it hears again.
            extend(api, small, 778)
            slow.until("new ones", lambda: slow.shown.get(small, {}).get("idle_timeout_s") == 778)
        for box in [*boxes, small]:
            api.delete(f"/v1/sandboxes/{box}")


def test_a_hundred_viewers_come_and_go_and_nothing_stays(changing):
    api = changing.client()
    box = make(api)
    used = []
    for _ in range(3):
        viewers = [Viewer(api) for _ in range(100)]
        api.post(f"/v1/sandboxes/{box['id']}/extend", json={"idle_timeout_s": 600})
        for viewer in viewers:
            viewer.until("told", lambda viewer=viewer: box["id"] in viewer.shown)
        used.append(host.rss(changing.daemon()))
        for viewer in viewers:
            viewer.ws.raw.sock.close()
    # The first round makes threads and buffers, which are used again. A sanitizer has memory of its own for all that happens.
    assert used[-1] - used[0] < 8 << 20 or {"ASAN_OPTIONS", "TSAN_OPTIONS"} & os.environ.keys(), used
    api.delete(f"/v1/sandboxes/{box['id']}")


def test_a_revoked_key_closes_it(changing):
    key = changing.make_key("default")
    api = changing.client(key)
    key_id = api.get("/v1/console/me").json()["key_id"]
    with Viewer(api) as page:
        changing.run("key", "revoke", key_id)
        assert page.ws.closed() == 1008


def test_it_answers_pings_and_goodbyes_and_minds_nothing_else(changing):
    with Viewer(changing.client()) as page:
        page.ws.send({"type": "whatever"})
        page.ws.send(b"bytes")
        page.ws.raw.send(page.ws.frame(9, b"there?"))
        assert page.ws.next() == (10, b"there?")
        page.ws.raw.send(page.ws.frame(CLOSE, b"\x03\xe8"))
        with pytest.raises(Closed):
            page.ws.message()
    with Viewer(changing.client()) as page:
        page.ws.send("x" * 5000)
        assert page.ws.closed() == 1009


def test_pages_of_others_and_plain_requests_are_refused(changing):
    api = changing.client()
    with WebSocket(api, CHANGES, [("Origin", "http://evil.example")]) as ws:
        assert ws.status == 403
    with WebSocket(api, CHANGES, [("Origin", f"http://127.0.0.1:{changing.port}")]) as ws:
        assert ws.status in (101, 403)
    with WebSocket(api, CHANGES, key=False) as ws:
        assert ws.status == 401
    with WebSocket(api, CHANGES + "?x=1") as ws:
        assert ws.status == 400 and ws.error()["details"]["field"] == "x"
    check_error(api.get(CHANGES), 400, "invalid")
