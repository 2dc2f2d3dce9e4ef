"""A server for the examples, and a directory that looks like a checkout."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from paddock_testing import run as paddock
from paddock_testing.server import Server

TOP = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def server():
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as s:
        yield s


@pytest.fixture(scope="session")
def checkout():
    """What the pages expect in the working directory; building the package leaves files, so that is a
    copy."""
    place = Path(tempfile.mkdtemp(prefix="paddock-docs-", dir="/var/tmp"))
    for name in ("build", "build-server", "scripts"):
        os.symlink(TOP / name, place / name)
    shutil.copytree(TOP / "sdk/python", place / "sdk/python", ignore=shutil.ignore_patterns(
        "build", "*.egg-info", "__pycache__"))
    (place / "in.csv").write_text("a,b\n1,2\n")
    (place / "report.csv").write_text("name,total\nx,42\n")
    (place / "src").mkdir()
    (place / "src/main.c").write_text("int main(void)\n{\n}\n")
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="session")
def venv(tmp_path_factory):
    """A Python of its own, with E2B's SDK in it; `pip install` of a page goes there."""
    place = tmp_path_factory.mktemp("python") / "venv"
    subprocess.run(["/usr/bin/python3", "-m", "venv", place], check=True,
                   timeout=paddock.seconds(120))
    sdk = TOP / "build-e2b/py-current/lib"
    assert sdk.is_dir(), f"{sdk} is missing: tests/e2b/install makes it"
    packages = next(sdk.glob("python3*/site-packages"))
    own = next((place / "lib").glob("python3*/site-packages"))
    (own / "e2b-sdk.pth").write_text(f"{packages}\n")
    return place


@pytest.fixture(scope="session")
def environment(server, venv):
    return {**paddock.clean_environment(), "PADDOCK_URL": server.url, "PADDOCK_API_KEY": server.key,
            "PATH": f"{venv}/bin:{os.environ['PATH']}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
