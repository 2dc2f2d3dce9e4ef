"""Sandboxes of the SDK under test that end with their test; the server is tests/e2b/suite's."""

import importlib.util
import os
import sys
import time
from pathlib import Path

import e2b
import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from paddock_testing import contract  # noqa: E402


# With the current SDK alone its code interpreter is installed.
collect_ignore = [] if importlib.util.find_spec("e2b_code_interpreter") else ["test_code.py"]


def pytest_configure(config):
    config.addinivalue_line("markers", "since(name): not for SDKs that are without e2b.NAME")


def pytest_collection_modifyitems(config, items):
    """A test of what an SDK does not have is no test of it."""
    def is_for(item):
        marker = item.get_closest_marker("since")
        return marker is None or hasattr(e2b, marker.args[0])

    config.hook.pytest_deselected(items=[i for i in items if not is_for(i)])
    items[:] = [i for i in items if is_for(i)]
    contract.leave_out(items)


@pytest.fixture
def make():
    """Creates sandboxes with the options of Sandbox.create."""
    made = []

    def create(template="base", **options):
        made.append(e2b.Sandbox.create(template, **{"timeout": 120, **options}))
        return made[-1]

    yield create
    for sandbox in made:
        sandbox.kill()


@pytest.fixture
def sandbox(make):
    return make()


@pytest_asyncio.fixture
async def amake():
    made = []

    async def create(template="base", **options):
        made.append(await e2b.AsyncSandbox.create(template, **{"timeout": 120, **options}))
        return made[-1]

    yield create
    for sandbox in made:
        await sandbox.kill()


@pytest.fixture
def until():
    """Asks until the answer is true, and gives it."""

    def wait(what, ask, limit=15):
        end = time.monotonic() + limit * float(os.environ.get("PADDOCK_TEST_PATIENCE", "1"))
        while not (answer := ask()):
            assert time.monotonic() < end, f"in vain waited for: {what}"
            time.sleep(0.05)
        return answer

    return wait
