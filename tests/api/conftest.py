"""A server for all tests of the API, a client of it, and fresh sandboxes."""

import pytest

from helpers import Later, stream_exec
from paddock_testing import contract
from paddock_testing.files import Files
from paddock_testing.server import Server


@pytest.fixture(scope="session")
def server():
    """No rate limits: the tests ask for more than one client would. With PADDOCK_TEST_PROVIDER the
    sandboxes for which none is named are made there."""
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as s:
        yield s


def pytest_collection_modifyitems(items):
    contract.leave_out(items)


@pytest.fixture(scope="session")
def api(server):
    client = server.client()
    yield client
    client.close()


@pytest.fixture
def make_sandbox(api):
    """Creates sandboxes, with the fields of a request, and gives their ids; they end with the
    test."""
    made = []

    def make(**body):
        answer = api.post("/v1/sandboxes", json=body)
        assert answer.status == 201, answer
        made.append(answer.json()["id"])
        return made[-1]

    yield make
    for sandbox in made:
        api.delete(f"/v1/sandboxes/{sandbox}")


@pytest.fixture
def sandbox(make_sandbox):
    """The id of a new sandbox."""
    return make_sandbox()


@pytest.fixture(scope="session", autouse=True)
def silence(request, api):
    """Streams in which nothing happens: an exec and a watch. They are opened first and looked at
    when other tests have taken the 15 s that a heartbeat needs."""
    if not any("heartbeat" in item.name for item in request.session.items):
        yield None
        return
    made = api.post("/v1/sandboxes").json()
    base = f"/v1/sandboxes/{made['id']}"

    def read():
        with stream_exec(api, base, {"command": "sleep 16; echo end", "timeout_s": 120}) as answer:
            return answer.read()

    streams = {"exec": Later(read)}
    with Files(api, made["id"]).watch(".") as streams["watch"]:
        yield streams
    api.delete(base)
