"""observe=true: whoever only looks does not keep a sandbox from idling out."""

import contextlib
import time

import pytest

from paddock_testing.run import wait_for
from paddock_testing.server import check_error
from ws import WebSocket

LOOKS = ["/files/list?path=/workspace", "/files/stat?path=/workspace",
         "/files?path=/etc/hostname", "/files/search?path=/workspace&pattern=x",
         "/ports", "/processes/{process}/output"]


@pytest.fixture
def box(api, sandbox):
    started = api.post(f"/v1/sandboxes/{sandbox}/processes", json={"command": "cat", "stdin": True})
    assert started.status == 201, started
    return f"/v1/sandboxes/{sandbox}", started.json()["process_id"]


def used_at(api, base):
    return api.get(base).json()["last_used_at"]


def with_observe(path, value="true"):
    return f"{path}{'&' if '?' in path else '?'}observe={value}"


def ask_later(api, base, path):
    """Times are told in milliseconds: asked in a later one."""
    time.sleep(0.01)
    answer = api.get(base + path)
    assert answer.status == 200, answer
    return answer.body


@pytest.mark.parametrize("path", LOOKS)
def test_looking_is_no_use(api, box, path):
    base, process = box
    path = path.format(process=process)

    # Several times: the end of a worker comes after its answer, and must be no use either.
    before = used_at(api, base)
    seen = {ask_later(api, base, with_observe(path)) for _ in range(5)}
    assert used_at(api, base) == before

    assert seen == {ask_later(api, base, path)}, "an observer gets the same answer"
    assert used_at(api, base) != before, "the control: without observe it is a use"

    before = used_at(api, base)
    ask_later(api, base, with_observe(path, "false"))
    assert used_at(api, base) != before


def test_a_wrong_value_and_a_route_that_has_none(api, box):
    base, process = box
    check_error(api.get(f"{base}/ports?observe=maybe"), 400, "invalid", "observe")
    check_error(api.get(f"{base}/env?observe=true"), 400, "invalid", "observe")
    check_error(api.post(f"{base}/processes/{process}/signal?observe=true", json={"signal": "SIGUSR1"}), 400,
                "invalid", "observe")


def test_an_observer_sends_nothing(api, box):
    base, process = box
    with WebSocket(api, f"{base}/processes/{process}/attach?observe=true") as ws, \
            WebSocket(api, f"{base}/processes/{process}/attach") as other:
        for message in (b"from the observer\n", {"type": "close_stdin"}, {"type": "signal", "signal": "SIGKILL"}):
            ws.send(message)
            said = ws.message()
            assert said["type"] == "error" and said["error"]["code"] == "denied", said
            assert "without it" in said["error"]["message"]

        other.send(b"from the other\n")
        assert other.collect(until=b"other\n")[0][1] == b"from the other\n"
        assert ws.collect(until=b"other\n")[0][1] == b"from the other\n", "it sees what the other one caused"


def test_a_sandbox_idles_out_under_its_observers(api):
    made = api.post("/v1/sandboxes", json={}).json()
    base = f"/v1/sandboxes/{made['id']}"
    process = api.post(f"{base}/processes", json={"command": "sleep 1000"}).json()["process_id"]
    watch = api.stream("GET", f"{base}/files/watch?path=/workspace&observe=true")
    assert watch.status == 200

    with WebSocket(api, f"{base}/processes/{process}/attach?observe=true") as ws, contextlib.closing(watch):
        assert api.post(f"{base}/extend", json={"idle_timeout_s": 1}).status == 200
        gone = wait_for(lambda: (s := api.get(base).json())["state"] == "gone" and s, 30, "it idles out")
        assert gone["end_cause"] == "idle", gone
        end = ws.collect()[1]
        assert end["type"] == "exit" and end["exit_code"] is None, end
