"""A server for all tests of the API, a client of it, and fresh sandboxes."""

import pytest

from paddock_testing.server import Server


@pytest.fixture(scope="session")
def server():
    """No rate limits: the tests ask for more than one client would."""
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as s:
        yield s


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
