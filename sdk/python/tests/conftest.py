"""A real server for the tests, and the modes that they run in.

A test that asks for `mode` runs once in each mode: the interfaces must behave the same. It finds
the environment as a user would have it.
"""

import os
import sys
import uuid
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TOP / "tests"))

from paddock_testing import contract  # noqa: E402
from paddock_testing.server import Server  # noqa: E402

import paddock  # noqa: E402


# Both, always: where the library or the program is missing, the tests of mode local fail and say so. Another
# provider than the jail is the server's.
MODES = ["remote", "local"] if contract.provider() == "jail" else ["remote"]
# As the server tells them where another one is asked for.
CONFIGURED = ", ".join(["auto", *contract.providers()])


def pytest_generate_tests(metafunc):
    if "mode" in metafunc.fixturenames:
        metafunc.parametrize("mode", MODES, indirect=True)


def pytest_collection_modifyitems(items):
    contract.leave_out(items)


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """Nothing of the caller's environment steers a test, and no coordinator outlives one."""
    for name in list(os.environ):
        if name.startswith(("PADDOCK_URL", "PADDOCK_API_KEY", "SANDBOX_", "STIGMER_", "USE_CLOUDRUN",
                            "CLOUDRUN_")):
            monkeypatch.delenv(name)
    yield
    paddock.reset_coordinator()


# What selects a mode for clients would be read by a server that is started in a test, too.
SERVER_ENV = {"SANDBOX_MODE": "auto"}


@pytest.fixture(scope="session")
def server():
    with Server({"max_sandboxes": 200, "max_sandboxes_per_tenant": 200},
                SERVER_ENV) as s:
        yield s


@pytest.fixture
def use(monkeypatch):
    """Points the environment at a server."""
    def set_environment(server):
        monkeypatch.setenv("PADDOCK_URL", server.url)
        monkeypatch.setenv("PADDOCK_API_KEY", server.key)
        monkeypatch.setenv("SANDBOX_MODE", "remote")
    return set_environment


@pytest.fixture
def mode(request, monkeypatch):
    if request.param == "remote":
        request.getfixturevalue("use")(request.getfixturevalue("server"))
    monkeypatch.setenv("SANDBOX_MODE", request.param)
    return request.param


@pytest.fixture
def client(mode):
    with paddock.SandboxClient() as c:
        yield c


@pytest.fixture
def sandbox(mode):
    with paddock.Sandbox.create() as s:
        yield s


@pytest.fixture
def workspace(sandbox):
    """Where it is: at provider local in a directory of the machine."""
    return sandbox.commands.run("pwd").stdout.strip()


@pytest.fixture
def thread():
    """A name that no other test uses."""
    return f"thread-{uuid.uuid4().hex}"
