"""The suite of the API against other providers than the jail: by day some files of it, with
PADDOCK_NIGHTLY=1 all of those that one server serves. cannot.toml says what each cannot do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paddock_testing import contract
from paddock_testing import run as paddock

API = Path(__file__).resolve().parent.parent / "api"
BY_DAY = ["test_exec.py"]
NIGHTLY = ["test_processes.py", "test_files.py", "test_attach.py", "test_ports.py", "test_sandboxes.py",
           "test_sessions.py", "test_prepared.py", "test_mcp.py", "test_e2b_control.py"]
NIGHT = os.environ.get("PADDOCK_NIGHTLY")
# Where usage is not told, no shell is prepared. The toy has no sandboxes of E2B's.
UNPREPARED = [name for name in NIGHTLY if name != "test_prepared.py"]
FILES = {"local": BY_DAY + UNPREPARED if NIGHT else BY_DAY,
         "docker": BY_DAY + NIGHTLY if NIGHT else BY_DAY,
         "toy": BY_DAY + UNPREPARED[:-1] if NIGHT else BY_DAY}
ROUNDS = [(provider, name) for provider, names in FILES.items() for name in names]


@pytest.fixture
def where(request, provider):
    """What the suite needs to know of an engine."""
    if provider == "toy" and (reason := contract.toy_why_not()):
        pytest.skip(f"no toy here: {reason}")
    if provider in ("local", "toy"):
        return {}
    return {"PADDOCK_TEST_ENGINE": request.getfixturevalue("dockerd").host,
            "PADDOCK_TEST_IMAGE": request.getfixturevalue("debian")}


@pytest.mark.parametrize("provider, name", ROUNDS)
def test_the_api_holds(provider, name, where):
    env = {**os.environ, "PADDOCK_TEST_PROVIDER": provider, "PYTHONDONTWRITEBYTECODE": "1", **where}
    env.pop("PYTEST_CURRENT_TEST", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(API / name)],
        env=env, capture_output=True, text=True, timeout=paddock.seconds(600))
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout.splitlines()[-1], done.stdout[-600:]
