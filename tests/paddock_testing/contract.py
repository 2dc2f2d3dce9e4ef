"""One suite for every provider: tests/api with PADDOCK_TEST_PROVIDER=NAME.

The server's default provider is that one then, so a test that names none has its sandboxes there.
tests/backends/cannot.toml says what a provider cannot do; those tests are skipped with its reason.
"""

import atexit
import functools
import os
import shutil
import tempfile
import tomllib
from pathlib import Path

import pytest

CANNOT = Path(__file__).resolve().parent.parent / "backends" / "cannot.toml"


def provider():
    """Its name; "jail" when none is asked for."""
    return os.environ.get("PADDOCK_TEST_PROVIDER", "jail")


@functools.cache
def toy():
    """The program of provider toy, in a directory that nobody else may write to: a tree of sources may be."""
    directory = tempfile.mkdtemp(prefix="paddock-toy-", dir=os.environ.get("PADDOCK_TEST_DIR", "/var/tmp"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    program = os.path.join(os.path.realpath(directory), "toy.py")
    shutil.copyfile(CANNOT.parent / "toy.py", program)
    os.chmod(program, 0o755)
    return program


def toy_why_not():
    """Why there can be no provider toy here; "" when there can."""
    if os.geteuid() != 0:
        return "it needs root"
    return "" if " cgroup2 " in Path("/proc/mounts").read_text() else "it needs cgroups v2"


def settings():
    """What the server needs besides, so that the provider is its default."""
    name = provider()
    if name == "jail":
        return {}
    more = {"local_allowed": "on"} if name == "local" else {}
    if name == "toy":
        more = {"backends": f"toy={toy()}"}
    if image := os.environ.get("PADDOCK_TEST_IMAGE"):
        more = {"docker_host": os.environ["PADDOCK_TEST_ENGINE"], "default_image": image,
                "image_pull": "never"}
    return {"providers": f"{name},jail", "sandbox_mode": name, **more}


def leave_out(items):
    """Marks what the provider cannot do as skipped, with the reason that the table gives."""
    table = tomllib.loads(CANNOT.read_text()).get(provider(), {})
    reasons = {test: group["why"] for group in table.values() for test in group["tests"]}
    for item in items:
        names = (item.path.stem, f"{item.path.stem}::{item.originalname}",
                 f"{item.path.stem}::{item.name}")
        why = next((reasons[name] for name in names if name in reasons), None)
        if why:
            item.add_marker(pytest.mark.skip(reason=f"provider {provider()}: {why}"))
