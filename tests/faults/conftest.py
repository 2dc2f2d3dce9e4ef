"""What most files here begin with; each has a server of its own."""

import pytest

from breaking import Box


@pytest.fixture
def api(server):
    client = server.client()
    yield client
    client.close()


@pytest.fixture
def box(api):
    b = Box(api)
    yield b
    b.delete()
