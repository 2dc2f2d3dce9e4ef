"""The same tests against a server that prepares no shells: nothing a client sees may differ. A file of
tests/api has a file of its own here: two in one would hide each other's tests and fixtures of the same name."""

import pytest

from paddock_testing.server import Server


@pytest.fixture(scope="session")
def server():
    with Server({"requests_per_s": 0, "creates_per_s": 0, "prepared_shell": "off"}) as s:
        yield s


@pytest.fixture(scope="session")
def api(server):
    client = server.client()
    yield client
    client.close()


@pytest.fixture(scope="session", autouse=True)
def silence():
    """Heartbeats are the same in every server."""
