"""Execution modes and moves, over HTTP and on the command line, at a server that has the jail alone: what can be asked
for, what is refused and why. Moves between two providers are in tests/unit/test_session_move.c."""

import json

import pytest

from paddock_testing.e2b_http import E2b
from paddock_testing.server import check_error


@pytest.fixture
def sandbox(api):
    made = api.post("/v1/sandboxes", json={"mode": "auto"}).json()
    yield made
    api.delete(f"/v1/sandboxes/{made['id']}")


def run(api, sandbox, **body):
    return api.post(f"/v1/sandboxes/{sandbox['id']}/exec", json=body)


def test_a_sandbox_tells_its_mode(api, sandbox):
    assert sandbox["mode"] == "auto" and sandbox["provider"] == "jail"
    assert "mode auto" in sandbox["reason"]
    assert api.get(f"/v1/sandboxes/{sandbox['id']}").json()["mode"] == "auto"
    plain = api.post("/v1/sandboxes").json()
    assert plain["mode"] is None
    api.delete(f"/v1/sandboxes/{plain['id']}")


def test_mode_local_is_refused_where_nobody_allowed_it(api, sandbox):
    check_error(api.post("/v1/sandboxes", json={"mode": "local"}), 403, field="mode", says="not allowed")
    check_error(api.post("/v1/sandboxes", json={"mode": "local", "provider": "jail"}), 400, field="mode",
                says="say one of them")
    check_error(run(api, sandbox, command="ls", mode="local"), 400, says="does not leave it")


@pytest.mark.parametrize("path", ["", "/exec", "/processes"])
def test_a_wrong_mode_is_refused_with_the_valid_ones(api, sandbox, path):
    where = f"/v1/sandboxes/{sandbox['id']}{path}" if path else "/v1/sandboxes"
    body = {"mode": "host", **({"command": "ls"} if path else {})}
    check_error(api.post(where, json=body), 400, field="mode", says="local")


def test_a_command_tells_where_it_ran_and_why(api, sandbox):
    told = run(api, sandbox, command="ls").json()
    assert (told["mode"], told["provider"], told["isolation"]) == ("auto", "jail", sandbox["isolation"])
    assert told["reason"].startswith("read: ")
    assert run(api, sandbox, command="make", mode="auto").json()["reason"].startswith("unknown: ")
    assert run(api, sandbox, argv=["cat", "/etc/hostname"]).json()["reason"].startswith("unknown: ")
    assert run(api, sandbox, command="ls", mode="sandbox").json()["mode"] == "sandbox"
    detached = run(api, sandbox, command="ls", detached=True)
    assert detached.status == 202 and detached.json()["mode"] == "auto"


def test_without_a_mode_nothing_is_told(api):
    made = api.post("/v1/sandboxes").json()
    told = run(api, made, command="ls").json()
    assert not {"mode", "provider", "reason"} & told.keys()
    assert run(api, made, command="ls", mode="auto").json()["mode"] == "auto"
    api.delete(f"/v1/sandboxes/{made['id']}")


def test_events_tell_it_as_well(api, sandbox):
    text = api.post(f"/v1/sandboxes/{sandbox['id']}/exec", json={"command": "ls"},
                       headers={"Accept": "text/event-stream"}).text
    end = json.loads(text.split("event: exit\ndata: ")[1].splitlines()[0])
    assert end["mode"] == "auto" and end["provider"] == "jail"


def test_directory_and_variables_count(api, sandbox):
    assert run(api, sandbox, command="ls", env={"PATH": "/bin"}).json()["reason"].startswith("unknown: 'PATH'")
    assert run(api, sandbox, command="ls").json()["reason"].startswith("read: ")
    run(api, sandbox, command="export PYTHONPATH=x")
    assert run(api, sandbox, command="ls").json()["reason"].startswith("unknown: 'PYTHONPATH'")
    run(api, sandbox, command="unset PYTHONPATH; cd /etc")
    assert run(api, sandbox, command="ls").json()["reason"].startswith("unknown: '/etc'")


def test_the_command_line_has_modes(server, api, sandbox):
    told = json.loads(server.run("exec", "--mode", "auto", "--json", sandbox["id"], "--", "ls").stdout)
    assert told["mode"] == "auto" and told["reason"].startswith("read: ")
    made = json.loads(server.run("create", "--mode", "sandbox", "--json").stdout)
    assert made["mode"] == "sandbox"
    api.delete(f"/v1/sandboxes/{made['id']}")
    wrong = server.run("create", "--mode", "local", check=False)
    assert wrong.returncode != 0 and "not allowed" in wrong.stderr


def test_e2b_has_the_same_words(server, api):
    e2b = E2b(server)
    wrong = e2b.post("/sandboxes", {"templateID": "base", "metadata": {"provider": "nonesuch"}})
    assert wrong.status == 400 and "'nonesuch'" in wrong.text and "auto, jail" in wrong.text
    wrong = e2b.post("/sandboxes", {"templateID": "base", "metadata": {"mode": "host"}})
    assert wrong.status == 400 and "'host'" in wrong.text and "local, sandbox, auto" in wrong.text
    made = e2b.create(metadata={"provider": "jail", "mode": "auto"})
    box = api.get(f"/v1/sandboxes/{made['sandboxID']}").json()
    assert (box["provider"], box["mode"], box["reason"]) == ("jail", "auto", "asked for by the request")
    api.delete(f"/v1/sandboxes/{box['id']}")


def test_a_move_to_where_it_is_changes_nothing(server, api, sandbox):
    at = f"/v1/sandboxes/{sandbox['id']}/move"
    assert api.post(at, json={"provider": "jail"}).json()["reason"] == sandbox["reason"]
    check_error(api.post(at, json={"provider": "docker"}), 400, field="provider", says="configured are auto, jail")
    check_error(api.post(at, json={}), 400, field="provider")
    assert "jail" in server.run("mv", sandbox["id"], "jail").stdout
    assert server.run("mv", sandbox["id"], check=False).returncode == 2
