"""Port 49999 of E2B sandboxes: the code interpreter's protocol, and who may speak it."""

import json

import pytest

from helpers import Later
from paddock_testing.e2b_http import E2b
from paddock_testing.run import wait_for


class Interpreter:
    def __init__(self, e2b, path="/v2/sandboxes", **body):
        self.e2b = e2b
        self.made = e2b.post(path, {"templateID": "base", "timeout": 3600, **body}).json()
        self.id = self.made["sandboxID"]

    def headers(self, token=True, traffic=True):
        found = {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": "49999"}
        if token and self.made.get("envdAccessToken"):
            found["X-Access-Token"] = self.made["envdAccessToken"]
        if traffic and self.made.get("trafficAccessToken"):
            found["E2b-Traffic-Access-Token"] = self.made["trafficAccessToken"]
        return found

    def ask(self, method, path, body=None, **who):
        return self.e2b.request(method, path, body, headers=self.headers(**who), key=False)

    def run(self, code, **more):
        answer = self.ask("POST", "/execute", {"code": code, **more})
        assert answer.status == 200, answer
        assert answer.body.isascii()
        return [json.loads(line) for line in answer.body.decode("ascii").split("\n")[:-1]]


@pytest.fixture(scope="module")
def e2b(server):
    return E2b(server)


@pytest.fixture(scope="module")
def interpreter(e2b):
    made = Interpreter(e2b)
    yield made
    e2b.delete(f"/sandboxes/{made.id}")


def test_health(interpreter):
    answer = interpreter.ask("GET", "/health")
    assert answer.status == 200 and answer.json() == "OK"


def test_a_cell(interpreter):
    lines = interpreter.run("import sys\nprint('hello')\nprint('ä', file=sys.stderr)\n'quoted'")
    assert [line["type"] for line in lines] == \
        ["number_of_executions", "stdout", "stderr", "result", "end_of_execution"]
    assert lines[0]["execution_count"] >= 1 and lines[1]["text"] == "hello\n"
    assert lines[2]["text"] == "ä\n" and "timestamp" in lines[1]
    assert lines[3]["text"] == "quoted" and lines[3]["is_main_result"] is True and lines[3]["extra"] == {}


def test_an_error_and_one_that_does_not_parse(interpreter):
    for code, name in (("1/0", "ZeroDivisionError"), ("1 +", "SyntaxError")):
        lines = interpreter.run(code)
        assert [line["type"] for line in lines] == ["number_of_executions", "error", "end_of_execution"]
        assert lines[1]["name"] == name and isinstance(lines[1]["traceback"], str)


def test_contexts(interpreter):
    before = interpreter.ask("GET", "/contexts").json()
    assert before[0] == {"id": "python", "language": "python", "cwd": "/home/user"}
    made = interpreter.ask("POST", "/contexts", {"cwd": "/root", "language": " Python "}).json()
    assert made["cwd"] == "/root" and made["language"] == "python"
    assert interpreter.ask("GET", "/contexts").json()[-1] == made

    interpreter.run("x = 5", context_id=made["id"])
    assert interpreter.run("x", context_id=made["id"])[1]["text"] == "5"
    restarted = interpreter.ask("POST", f"/contexts/{made['id']}/restart")
    assert restarted.status == 200 and restarted.body == b"null"
    assert interpreter.run("x", context_id=made["id"])[1]["name"] == "NameError"
    removed = interpreter.ask("DELETE", f"/contexts/{made['id']}")
    assert removed.status == 200 and removed.body == b"null"

    for method, path in (("DELETE", f"/contexts/{made['id']}"), ("POST", f"/contexts/{made['id']}/restart")):
        gone = interpreter.ask(method, path)
        assert gone.status == 404 and gone.body.decode() == f"Context {made['id']} not found"


def test_variables_hold_for_one_execution(interpreter):
    assert interpreter.run("import os; os.environ['A']", env_vars={"A": "b"})[1]["text"] == "b"
    assert interpreter.run("os.environ.get('A')")[1]["type"] == "end_of_execution"
    assert interpreter.run("os.environ['E2B_SANDBOX'], os.getcwd()")[1]["text"] == "('true', '/home/user')"


@pytest.mark.parametrize("body,status", [
    ({"code": 5}, 422), ({}, 422), ({"code": "1", "env_vars": 7}, 422),
    ({"code": "1", "context_id": "python", "language": "python"}, 400),
    ({"code": "1", "context_id": "nosuch"}, 404), ({"code": "1", "language": "nosuch!"}, 500)])
def test_refusals_are_plain_text(interpreter, body, status):
    answer = interpreter.ask("POST", "/execute", body)
    assert answer.status == status, answer
    assert answer.headers["Content-Type"].startswith("text/plain") and answer.body


def test_the_head_comes_while_it_waits(server, interpreter):
    """The time-out for the head is the client's: a cell that waits for another one must not run into it."""
    first = Later(lambda: interpreter.run("import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.02)"))
    client = server.client()
    wait_for(lambda: interpreter.ask("GET", "/contexts").status == 200, 20, "it answers")
    answer = client.stream("POST", "/execute", json={"code": "6 * 7"}, headers=interpreter.headers())
    with answer:
        assert answer.status == 200
        interpreter.run("open('/tmp/go', 'w').close()", context_id=interpreter.ask("POST", "/contexts", {}).json()["id"])
        lines = [json.loads(line) for line in answer.read().splitlines()]
    assert lines[1]["text"] == "42"
    first.get()
    client.close()


def test_whoever_leaves_interrupts(server, interpreter):
    client = server.client()
    answer = client.stream("POST", "/execute", json={"code": "import time; time.sleep(1000)"},
                           headers=interpreter.headers())
    with answer:
        assert json.loads(answer.readline())["type"] == "number_of_executions"
    client.close()
    assert interpreter.run("1 + 1")[1]["text"] == "2"


def test_sleep_loses_the_variables_and_says_so(e2b, api):
    sleeper = Interpreter(e2b)
    sleeper.run("x = 1")
    assert e2b.post(f"/sandboxes/{sleeper.id}/pause", {"memory": False}).status == 204
    assert e2b.post(f"/sandboxes/{sleeper.id}/connect", {"timeout": 600}).status in (200, 201)
    found = api.post(f"/v1/sandboxes/{sleeper.id}/contexts/python/execute", json={"code": "'x' in dir()"}).json()
    assert found["results"][0]["text"] == "False"
    assert found["state"] == "restarted" and found["reason"] == "slept"
    e2b.delete(f"/sandboxes/{sleeper.id}")


# ---- tokens ----


def test_code_needs_the_sandboxs_token(interpreter, e2b):
    assert interpreter.made["envdAccessToken"]
    assert interpreter.ask("POST", "/execute", {"code": "1"}, token=False).status == 401
    other = Interpreter(e2b)
    mixed = {**interpreter.headers(), "X-Access-Token": other.made["envdAccessToken"]}
    assert e2b.request("POST", "/execute", {"code": "1"}, headers=mixed, key=False).status == 401
    assert interpreter.run("1")[1]["text"] == "1"  # the control
    e2b.delete(f"/sandboxes/{other.id}")


def test_an_unsecured_sandbox_needs_none(e2b):
    open_one = Interpreter(e2b, "/sandboxes", secure=False)
    assert open_one.ask("POST", "/execute", {"code": "1"}, token=False).status == 200
    e2b.delete(f"/sandboxes/{open_one.id}")


def test_private_traffic_needs_its_token(e2b):
    private = Interpreter(e2b, network={"allowPublicTraffic": False})
    assert private.made["trafficAccessToken"]
    for method, path, body in (("GET", "/contexts", None), ("GET", "/health", None),
                               ("POST", "/execute", {"code": "1"}), ("POST", "/contexts", {})):
        assert private.ask(method, path, body, traffic=False).status == 403
        assert private.ask(method, path, body).status == 200  # the control
    e2b.delete(f"/sandboxes/{private.id}")


def test_port_49999_of_other_sandboxes_is_a_port(e2b, make_sandbox):
    other = {"E2b-Sandbox-Id": make_sandbox(), "E2b-Sandbox-Port": "49999"}
    assert e2b.request("GET", "/health", headers=other, key=False).status == 403
