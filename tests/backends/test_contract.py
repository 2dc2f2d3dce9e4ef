"""The suites that know of no provider, run against others than the jail: by day a file of the API's and a test of each
other suite, with PADDOCK_NIGHTLY=1 all files of the API's that one server serves, real programs (e2e), E2B's SDKs, the
clients of the Model Context Protocol and the Python package. cannot.toml says what each provider cannot do."""

import functools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from paddock_testing import aws, cloudrun, contract, daytona, kube
from paddock_testing import run as paddock
from paddock_testing.e2b_http import E2b
from paddock_testing.server import Server

NIGHT = os.environ.get("PADDOCK_NIGHTLY")
LIMIT_S = 600
ELSEWHERE = ("far", *contract.ELSEWHERE)
PROVIDERS = ("local", "docker", "toy", *ELSEWHERE) + (("podman",) if NIGHT else ())

BY_DAY = ["test_exec.py"]
# Of the other suites a test or two for each of local and docker.
SAMPLES = {"local": [("e2e", "test_real_work.py::test_python_sockets_on_the_loopback"),
                     ("e2b", "py-current::test_commands.py::test_list_kill_and_connect")],
           "docker": [("e2e", "test_real_work.py::test_resolving_the_own_name"),
                      ("mcp", "py-2::test_client.py::test_calls_at_once_and_a_long_one"),
                      ("python", "test_coordinator.py::test_variables_and_files_stay")]}
NIGHTLY = ["test_processes.py", "test_files.py", "test_attach.py", "test_ports.py", "test_sandboxes.py",
           "test_sessions.py", "test_cli.py", "test_prepared.py", "test_mcp.py", "test_mcp_stdio.py",
           "test_e2b_control.py", "test_contexts.py", "test_contexts_fork.py"]
FAR = ["test_processes.py", "test_files.py", "test_attach.py", "test_ports.py", "test_sandboxes.py", "test_sessions.py",
       "test_cli.py", "test_mcp.py", "test_contexts.py"]
CODE = ["test_contexts_fork.py", "test_contexts_hostile.py"]
# Not of toy's, which lacks the profile of E2B's code interpreter.
MORE = ["test_changes.py", "test_cli_code.py", "test_contexts_e2b.py", "test_contexts_hostile.py", "test_contexts_life.py",
        "test_contexts_races.py", "test_mcp_code.py", "test_observe.py"]
# Most of these have a server of their own. Not here: what names the jail (test_modes.py), and what has no sandbox.
OTHERS = ["test_audit_overview.py", "test_bad_input.py", "test_ceilings.py", "test_console.py", "test_contexts_bridge.py",
          "test_files_match.py", "test_prepared_hostile.py", "test_queue_pool.py", "test_templates.py", "test_tickets.py"]
E2E = ["test_real_work.py"]
# Images are jails' also where another provider comes first: their races need no night of their own for that.
SHORT = ["test_builds.py", "test_image_sandboxes.py"]
# These count on places of a root of its own (/tmp, /root), and on becoming root there.
WITH_ROOT = ["test_e2b_files.py", "test_e2b_filesystem.py", "test_e2b_process.py", "test_e2b_reach.py",
             "test_e2b_routes.py", "test_operations.py"]
# Each is given to the suite of its folder: an SDK of E2B's, a client, a file of the package's tests.
E2B = ["py-current", "py-2.45", "js-current", "js-2.45"]
MCP = ["js", "py-1", "py-2", "programs"]
# All but those that have no sandbox, or name what it is made of.
WITHOUT = ["test_agent_model.py", "test_agent_units.py", "test_dcode.py", "test_docs.py", "test_execution.py", "test_http.py",
           "test_modes.py", "test_package.py"]
PYTHON = sorted(p.name for p in (contract.TOP / "sdk/python/tests").glob("test_*.py") if p.name not in WITHOUT)


def rounds():
    """(provider, suite, what of it)"""
    for provider in PROVIDERS:
        if NIGHT or provider not in ELSEWHERE:  # by day files of their own have enough of it
            yield from ((provider, "api", name) for name in BY_DAY)
        if not NIGHT:
            yield from ((provider, *sample) for sample in SAMPLES.get(provider, ()))
        if provider == "podman":  # the broker is docker's: what goes through the engine, and one client
            yield from ((provider, "api", name) for name in ("test_files.py", "test_sandboxes.py", "test_e2b_control.py"))
            yield (provider, "python", "test_coordinator.py")
            continue
        if NIGHT and provider in ELSEWHERE:
            yield from ((provider, "api", name) for name in FAR)
            if provider != "far":
                yield from ((provider, "api", name) for name in CODE)
        elif NIGHT:
            # Where usage is not told, no shell is prepared; E2B's sandboxes have profile dev.
            lacks = ("test_prepared", "test_e2b") if provider == "toy" else ()
            yield from ((provider, "api", name) for name in NIGHTLY if not name.startswith(lacks))
        if NIGHT and provider in ("local", "docker"):
            yield from ((provider, "api", name) for name in MORE + OTHERS)
            yield from ((provider, "e2e", name) for name in E2E)
        if NIGHT and provider == "docker":
            yield from ((provider, "api", name) for name in [*WITH_ROOT, "test_snapshots.py", "test_own_place.py"])
        if NIGHT and provider == "local":  # of test_e2b_reach.py nothing is left
            yield from ((provider, "api", name) for name in WITH_ROOT if name != "test_e2b_reach.py")
            yield from ((provider, "api", name) for name in ["test_contexts_warm.py", *SHORT])
        if NIGHT and provider != "toy" and provider not in ELSEWHERE:
            yield from ((provider, "mcp", name) for name in MCP)
            yield from ((provider, "e2b", name) for name in E2B)
            yield from ((provider, "python", name) for name in PYTHON)


@pytest.fixture
def where(request, provider):
    """What a suite needs to know of an engine."""
    if provider == "toy" and (reason := contract.toy_why_not()):
        pytest.skip(f"no toy here: {reason}")
    names = {"daytona": "Daytona", "cloudrun": "Cloud Run", "kubernetes": "pods", "fargate": "AWS"}
    doubles = {"daytona": daytona, "cloudrun": cloudrun, "kubernetes": kube, "fargate": aws}
    if provider in doubles and (reason := doubles[provider].why_not()):
        pytest.skip(f"no {names[provider]} here: {reason}")
    if provider in ("local", "toy", *contract.ELSEWHERE):
        return {}
    if provider == "far":
        far = request.getfixturevalue("far")
        return {"PADDOCK_TEST_ENGINE": far.tcp, "PADDOCK_TEST_CERTS": str(far.certs),
                "PADDOCK_TEST_IMAGE": request.getfixturevalue("far_debian")}
    if provider == "podman":
        return {"PADDOCK_TEST_ENGINE": request.getfixturevalue("podman").host,
                "PADDOCK_TEST_IMAGE": request.getfixturevalue("podman_debian")}
    return {"PADDOCK_TEST_ENGINE": request.getfixturevalue("dockerd").host,
            "PADDOCK_TEST_IMAGE": request.getfixturevalue("debian")}


@functools.cache
def install(folder):
    """Brings what a suite needs from registries; gives why that cannot be, or ""."""
    script = contract.TOP / folder / "install"
    if not script.exists():
        return ""
    done = subprocess.run([script], capture_output=True, text=True, timeout=paddock.seconds(LIMIT_S))
    assert done.returncode in (0, 77), done.stdout + done.stderr
    return done.stdout.splitlines()[-1] if done.returncode else ""


def command(suite, name, reports):
    folder = contract.TOP / contract.SUITES[suite]
    if suite in ("e2b", "mcp"):
        return [str(folder / "suite"), str(reports), name]
    python = contract.TOP / "build-python/venv/bin/python" if suite == "python" else sys.executable
    return [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", str(folder / name)]


def tail(reports, printed):
    """The end of what a suite printed, and of what its parts have written beside their reports."""
    logs = [p.read_text(errors="replace")[-6000:] for p in sorted(reports.glob("*.log"))]
    return "\n".join([*logs, printed[-6000:]])


@pytest.mark.timeout(paddock.seconds(LIMIT_S + 60))
@pytest.mark.parametrize("provider, suite, name", list(rounds()))
def test_a_suite_holds(provider, suite, name, where, tmp_path):
    if reason := install(contract.SUITES[suite]):
        pytest.skip(reason)
    build = Path(paddock.PADDOCK).resolve().parent.parent
    env = {**os.environ, "PADDOCK_TEST_PROVIDER": provider, "PYTHONDONTWRITEBYTECODE": "1",
           "PADDOCK_PROGRAM": paddock.PADDOCK,
           "PADDOCK_LIBRARY": str(build / "build-server/src/lib/libpaddock.so.1"), **where}
    env.pop("PYTEST_CURRENT_TEST", None)
    if name in SHORT:
        env.pop("PADDOCK_NIGHTLY", None)

    done = subprocess.run(command(suite, name, tmp_path), env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=paddock.seconds(LIMIT_S))
    said = tail(tmp_path, done.stdout)
    assert done.returncode == 0, said
    assert re.search(r"\b\d+ passed|^ℹ pass [1-9]", said, re.M), said
    print("\n".join(re.findall(r".*\b\d+ passed.*|^ℹ (?:pass|skipped) .*", said, re.M)))


@pytest.mark.parametrize("provider", PROVIDERS if NIGHT else ("local", "docker", "toy", "e2b", "kubernetes"))
def test_what_it_cannot_do_is_unsupported(provider, where, monkeypatch):
    """It is said with a reason, at the door where it was asked for."""
    monkeypatch.setenv("PADDOCK_TEST_PROVIDER", provider)
    for name, value in where.items():
        monkeypatch.setenv(name, value)
    requests = [request for group in contract.groups(provider).values() for request in group.get("refused", ())]
    assert requests

    with Server() as server:
        door = E2b(server)
        made = door.post("/v1/sandboxes", {}).json()
        assert made["provider"] == contract.provider(), made
        holds = not any("disk_bytes" in r["body"].get("limits", {}) for r in requests)
        assert all((name in made["limits"]) == holds for name in ("disk_bytes", "files")), made
        for request in requests:
            answer = door.post(request["path"].format(id=made["id"]), request["body"])
            error = answer.json().get("error", answer.json())  # E2B's have no member of that name
            assert answer.status == 501 and f"provider {contract.provider()}" in error["message"], (request, answer)
            assert error["code"] in ("unsupported", 501), (request, answer)


def names(suite):
    """Every test of a suite, as the table names them: FILE, FILE::TEST and js::TITLE."""
    found = set()
    for path in (contract.TOP / contract.SUITES[suite]).rglob("test_*.py"):
        tests = re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.M)
        found |= {path.stem, *(f"{path.stem}::{test}" for test in tests)}
    for path in (contract.TOP / contract.SUITES[suite]).rglob("*.test.mjs"):
        found |= {f"js::{title}" for title in re.findall(r"(?:test|session)\('(.*?)',", path.read_text())}
    return found


def test_every_row_of_the_table_names_a_test():
    table = tomllib.loads(contract.CANNOT.read_text())
    known = {suite: names(suite) for suite in contract.SUITES}
    for provider, groups in table.items():
        assert provider in (*PROVIDERS, "elsewhere")
        for name, group in groups.items():
            assert set(group) - {"why", "refused"} <= set(known), (provider, name)
            for suite in set(group) & set(known):
                tests = {test.partition("[")[0] for test in group[suite]}
                assert tests <= known[suite], (provider, name, tests - known[suite])
