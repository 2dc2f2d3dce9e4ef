"""The same suites for every provider: PADDOCK_TEST_PROVIDER=NAME chooses it for those of the API, of E2B,
of the Model Context Protocol and of the Python package.

The server's default provider is that one then, so a test that names none has its sandboxes there.
tests/backends/cannot.toml says what a provider cannot do; those tests are skipped with its reason.
The module is also a plugin of pytest, for suites without a conftest.py: -p paddock_testing.contract.
"""

import atexit
import functools
import os
import shutil
import tempfile
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
CANNOT = TOP / "tests/backends/cannot.toml"
# Each suite by the name that the table has for it, and its folder.
SUITES = {"api": "tests/api", "e2e": "tests/e2e", "e2b": "tests/e2b", "mcp": "tests/mcp", "python": "sdk/python/tests"}
CHOICE = ("PADDOCK_TEST_PROVIDER", "PADDOCK_TEST_ENGINE", "PADDOCK_TEST_CERTS", "PADDOCK_TEST_IMAGE")


# Those whose double each process of tests starts for itself.
ELSEWHERE = ("e2b", "kubernetes", "fargate", "daytona", "cloudrun")


def choice_name():
    """What was chosen, as the table has it; "jail" when nothing was. "far" is docker on another machine."""
    return os.environ.get("PADDOCK_TEST_PROVIDER", "jail")


def provider():
    """The name of it that a server knows."""
    return "docker" if choice_name() == "far" else choice_name()


def providers():
    """Those of a server, in its order."""
    return ["jail"] if provider() == "jail" else [provider(), "jail"]


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


@functools.cache
def double(name):
    """Whoever makes the sandboxes of a provider elsewhere for this process's servers, until it ends."""
    # pylint: disable=import-outside-toplevel,cyclic-import
    if name == "e2b":
        from .rented import Landlord
        made = Landlord()
        made.__enter__()
        atexit.register(made.__exit__)
        return made
    if name == "kubernetes":
        from .kube import Double
    elif name == "fargate":
        from .aws import Aws as Double
    elif name == "daytona":
        from .daytona import Daytona as Double
    else:
        from .cloudrun import CloudRun as Double
    made = Double(page=100) if name in ("fargate", "cloudrun") else Double()
    atexit.register(made.close)
    return made


def elsewhere_settings(name):
    if name == "kubernetes":
        return {"kubernetes_config": double(name).config, "kubernetes_box_image": "test/paddock-box:1", "default_image": "debian:12"}
    if name == "cloudrun" and os.environ.get("PADDOCK_TEST_BY_BUCKET"):
        return double(name).settings(by_bucket=True)
    return double(name).settings()


def settings():
    """What the server needs besides, so that the provider is its default."""
    name = provider()
    if name == "jail":
        return {}
    more = {"local_allowed": "on"} if name == "local" else {}
    if name == "toy":
        more = {"backends": f"toy={toy()}"}
    if name in ELSEWHERE:
        more = elsewhere_settings(name)
    if image := os.environ.get("PADDOCK_TEST_IMAGE"):
        more = {"docker_host": os.environ["PADDOCK_TEST_ENGINE"], "default_image": image,
                "image_pull": "never"}
    if certs := os.environ.get("PADDOCK_TEST_CERTS"):
        more["docker_cert_path"] = certs
    return {"providers": ",".join(providers()), "sandbox_mode": name, **more}


def environment():
    """What the environment of its server has besides."""
    return double("fargate").environment() if provider() == "fargate" else {}


def choice():
    """The variables that choose the provider, for processes whose environment is cleaned."""
    return {name: os.environ[name] for name in CHOICE if name in os.environ}


def groups(name):
    """What the table has for a provider. podman is told by docker's API, and cannot do the same; docker far away can do less;
    those on other machines have rows in common."""
    table = tomllib.loads(CANNOT.read_text())
    kinds = {"podman": ["docker"], "far": ["docker", "elsewhere", "far"]}.get(
        name, ["elsewhere", name] if name in ELSEWHERE else [name])
    return {f"{kind}.{group}": rows for kind in kinds for group, rows in table.get(kind, {}).items()}


def cannot(suite):
    """{FILE::TEST or FILE: why} of what the provider cannot do in a suite."""
    table = groups(choice_name())
    return {test: f"provider {choice_name()}: {group['why']}"
            for group in table.values() for test in group.get(suite, ())}


def leave_out(items):
    """Marks what the provider cannot do as skipped, with the reason that the table gives."""
    reasons = {suite: cannot(suite) for suite in SUITES}
    for item in items:
        file = item.path.stem
        suite = next((s for s, folder in SUITES.items() if item.path.is_relative_to(TOP / folder)), "")
        for name in (file, f"{file}::{item.originalname}", f"{file}::{item.name}"):
            if why := reasons.get(suite, {}).get(name):
                item.add_marker(pytest.mark.skip(reason=why))


def pytest_collection_modifyitems(items):
    leave_out(items)
