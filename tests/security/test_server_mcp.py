"""Wall: the door for MCP. One tenant's sessions and threads are not another's, pages in a browser
do not get in, and what one client cancels is its own. The controls: the owner gets in the same way."""

import time

import pytest

from paddock_testing.mcp import Http, result_of
from paddock_testing.run import seconds, wait_for

from .server_kit import server


@pytest.fixture(scope="module")
def keys(server):
    return server.make_key("mcp-alice"), server.make_key("mcp-bob")


@pytest.fixture
def alice(server, keys):
    with Http(server, key=keys[0]) as session:
        result_of(session.call("write_file", path="secret", content="alice's"))
        yield session


def test_a_foreign_session_id_opens_another_sandbox(server, keys, alice):
    bob = Http(server, key=keys[1], session=alice.session)
    answer = bob.call("read_file", path="secret")
    assert answer.result["isError"], answer
    assert "alice" not in answer.body.decode()
    theirs = result_of(bob.call("session_info"))["id"]
    assert theirs != result_of(alice.call("session_info"))["id"]
    found = bob.request("resources/read", {"uri": "file:///workspace/secret"})
    assert found.error["code"] == -32002
    # The control.
    same = Http(server, key=keys[0], session=alice.session)
    assert result_of(same.call("read_file", path="secret"))["content"] == "alice's"
    # Bob's end of "his" session ends his.
    assert bob.end().status == 204
    assert result_of(alice.call("read_file", path="secret"))["content"] == "alice's"


def test_a_foreign_thread_is_another(server, keys):
    alice = Http(server, key=keys[0], query="?thread=project")
    bob = Http(server, key=keys[1], query="?thread=project")
    result_of(alice.call("write_file", path="secret", content="alice's"))
    assert bob.call("read_file", path="secret").result["isError"]
    assert bob.end().status == 204
    assert result_of(alice.call("read_file", path="secret"))["content"] == "alice's"  # the control
    alice.end()


def test_a_foreign_process_is_not_found(server, keys, alice):
    pid = result_of(alice.call("start_process", command="sleep 600"))["pid"]
    bob = Http(server, key=keys[1], session=alice.session)
    assert bob.call("stop_process", pid=pid).result["isError"]
    assert result_of(alice.call("check_process", pid=pid))["running"]
    assert not result_of(alice.call("stop_process", pid=pid))["running"]  # the control
    bob.end()


def test_nobody_cancels_for_others(server, keys, alice):
    from threading import Thread
    answers = []
    thread = Thread(target=lambda: answers.append(
        alice.call("run_command", id="run", command="exec sleep 600")))
    thread.start()
    looks = Http(server, key=keys[0], session=alice.session)

    def runs():
        found = looks.call("run_command", command="ps -eo args | grep -c '^sleep 600' || true")
        return result_of(found)["stdout"] == "1\n"

    wait_for(runs, 20, "it runs")
    Http(server, key=keys[1], session=alice.session).notify("notifications/cancelled",
                                                            {"requestId": "run"})
    time.sleep(0.5)
    assert runs() and not answers
    looks.notify("notifications/cancelled", {"requestId": "run"})  # the control
    thread.join(seconds(20))
    assert answers and answers[0].result["isError"]


def test_without_a_key(server, alice):
    for key in ("e2b_" + "0" * 40, "x"):
        answer = alice.request("ping", key=key)
        assert answer.status == 401 and "www-authenticate" in answer.headers, answer
        assert alice.send("DELETE", key=key).status == 401
    assert alice.request("ping", headers={"Authorization": None}).status == 401
    assert alice.request("ping").status == 200  # the control


def test_pages_of_others(server, alice):
    for origin in ("http://evil.example", "https://evil.example", "null", "", "file://",
                   f"http://{server.host}:{server.port + 1}", f"http://{server.host}",
                   f"http://evil.example:{server.port}", f"ftp://{server.host}:{server.port}",
                   f"http://{server.host}:{server.port}.evil.example"):
        answer = alice.request("ping", headers={"Origin": origin})
        assert answer.status == 403, (origin, answer)
        assert alice.send("DELETE", headers={"Origin": origin}).status == 403
    for host in ("evil.example", f"evil.example:{server.port}"):
        assert alice.request("ping", headers={"Host": host}).status == 403
    # The control: its own page, and no page at all.
    own = f"http://{server.host}:{server.port}"
    assert alice.request("ping", headers={"Origin": own}).status == 200
    assert alice.request("ping").status == 200


def test_a_form_of_a_page_is_no_message(alice):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert alice.request("ping", headers={"Content-Type": kind}).status == 400
    assert alice.request("ping").status == 200


def test_a_thread_is_no_header(server, keys):
    """What a client puts into a name does not come out as a header."""
    session = Http(server, key=keys[0], query="?thread=a%0d%0aX-Evil:%201")
    answer = session.request("initialize", {})
    assert "x-evil" not in answer.headers, answer
    assert answer.status in (200, 400)


def test_output_cannot_forge_events(alice):
    """A line of progress and a result with what would end an event."""
    command = r"printf 'a\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\r\r\n\n'; sleep 1.5"
    answer = alice.call("run_command", token=1, id=1, command=command)
    assert [m.get("method") for m in answer.events] == ["notifications/progress"] * \
        (len(answer.events) - 1) + [None]
    assert "data: " in result_of(answer)["stdout"]


def test_paths_stay_inside(alice):
    result_of(alice.call("run_command", command="ln -s /proc/1/root up; ln -s / top"))
    for path in ("../../../../etc/shadow", "/proc/1/environ", "up/etc/shadow"):
        answer = alice.call("read_file", path=path)
        assert answer.result["isError"], (path, answer)
    for uri in ("file:///../../etc/shadow", "file:///proc/1/environ", "file://host/etc/passwd"):
        assert "error" in alice.request("resources/read", {"uri": uri}).message, uri
    assert result_of(alice.call("read_file", path="top/workspace/secret"))["content"] == "alice's"
