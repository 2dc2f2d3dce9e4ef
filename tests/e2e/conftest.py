"""Fixtures of the end-to-end tests."""

import shutil
import tempfile
from pathlib import Path

import pytest

from paddock_testing import contract


def pytest_collection_modifyitems(items):
    contract.leave_out(items)


@pytest.fixture
def disk_path():
    """A new directory on a disk: before Linux 6.3 a tmpfs, which /tmp may be, cannot show its files
    under other owners."""
    place = Path(tempfile.mkdtemp(prefix="paddock-e2e-", dir="/var/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)
