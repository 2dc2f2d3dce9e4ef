"""Programs that were written for older coordinators and tool factories, with nothing changed but what they
import: `from src.sandbox import ...` and `from src.tools.tool_factory import ...` are `from paddock import ...`."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

import paddock
from paddock import (
    E2BCoordinator, FargateCoordinator, LocalCoordinator, SandboxCoordinator, get_global_session,
    get_sandbox_coordinator, reset_coordinator,
)

CSV = "region,amount\nnorth,40\nsouth,2\n"


# ---- which class ----

def test_factory_fargate_mode(monkeypatch):
    reset_coordinator()
    monkeypatch.setenv("SANDBOX_MODE", "fargate")
    coordinator = get_sandbox_coordinator()
    assert isinstance(coordinator, FargateCoordinator)


def test_factory_local_mode(monkeypatch):
    reset_coordinator()
    monkeypatch.setenv("SANDBOX_MODE", "local")
    coordinator = get_sandbox_coordinator()
    assert isinstance(coordinator, LocalCoordinator)


def test_factory_singleton():
    reset_coordinator()
    coord1 = get_sandbox_coordinator()
    coord2 = get_sandbox_coordinator()
    assert coord1 is coord2


def test_factory_invalid_mode(monkeypatch):
    reset_coordinator()
    monkeypatch.setenv("SANDBOX_MODE", "invalid")
    with pytest.raises(ValueError, match="Unknown sandbox mode"):
        get_sandbox_coordinator()


def test_every_mode_has_its_class(monkeypatch):
    classes = {
        "local": "LocalCoordinator", "remote": "RemoteCoordinator", "jail": "JailCoordinator",
        "docker": "DockerCoordinator", "podman": "PodmanCoordinator", "e2b": "E2BCoordinator",
        "kubernetes": "KubernetesCoordinator", "fargate": "FargateCoordinator",
        "cloudrun": "CloudRunJobsCoordinator", "daytona": "DaytonaCoordinator"}
    with pytest.raises(ValueError) as wrong:
        get_sandbox_coordinator("moon")
    told = str(wrong.value).partition("valid are: ")[2].split(", ")
    assert set(told) == {*classes, "auto", "sandbox"}
    for mode, name in classes.items():
        assert type(get_sandbox_coordinator(mode.upper())).__name__ == name
        reset_coordinator()
        monkeypatch.setenv("SANDBOX_MODE", mode)
        assert type(get_sandbox_coordinator()).__name__ == name
        reset_coordinator()
    monkeypatch.setenv("SANDBOX_MODE", "auto")
    monkeypatch.setenv("PADDOCK_URL", "http://127.0.0.1:1")
    assert type(get_sandbox_coordinator()).__name__ == "RemoteCoordinator"


def test_a_class_takes_no_mode_that_belies_its_name():
    with pytest.raises(ValueError, match="'docker' of FargateCoordinator; valid are: fargate, local, remote"):
        FargateCoordinator("docker")
    with pytest.raises(ValueError, match="'remote' of LocalCoordinator; valid are: local"):
        LocalCoordinator("remote")
    assert E2BCoordinator("E2B").provider == E2BCoordinator("local").provider == "e2b"
    assert SandboxCoordinator("e2b").provider == "e2b"


def test_switching_modes_at_runtime(monkeypatch, capsys):
    monkeypatch.delenv("SANDBOX_MODE", raising=False)  # it is as it was when the test is over

    # Start with Fargate
    os.environ["SANDBOX_MODE"] = "fargate"
    coordinator = get_sandbox_coordinator()
    print(coordinator.__class__.__name__)  # FargateCoordinator

    # Switch to local (for testing)
    reset_coordinator()  # Clear singleton
    os.environ["SANDBOX_MODE"] = "local"
    coordinator = get_sandbox_coordinator()
    print(coordinator.__class__.__name__)  # LocalCoordinator

    assert capsys.readouterr().out == "FargateCoordinator\nLocalCoordinator\n"


# ---- what a runtime does with it ----

def test_a_request_from_its_data_to_its_end(mode, thread, tmp_path, monkeypatch):
    (tmp_path / "data.csv").write_text(CSV)
    monkeypatch.chdir(tmp_path)
    sandbox_coordinator = get_sandbox_coordinator()
    sandbox_coordinator.set_request_context(thread)
    assert sandbox_coordinator.ensure_session() is True
    assert sandbox_coordinator.ensure_session_with_data("./data.csv") is True

    result = sandbox_coordinator.execute_code("""
import csv
rows = list(csv.DictReader(open('data.csv')))
print(len(rows), sum(int(r['amount']) for r in rows))
""", "Data analysis")
    assert result["success"] is True and result["output"] == "2 42\n" and not result["error"]
    with pytest.warns(DeprecationWarning):
        assert get_global_session() is sandbox_coordinator

    made = sandbox_coordinator.session_id
    sandbox_coordinator.cleanup_session(thread)
    assert not paddock.Sandbox(made).is_running()


# ---- tools ----

@pytest.fixture
def tools():
    pytest.importorskip("langchain_core", reason="langchain_core is not installed")
    return __import__("paddock.tools").tools


def test_the_tools_of_a_mode(tools, monkeypatch, use, server):
    from paddock import get_bash_tool, get_python_tool

    use(server)
    # Get tools for specific mode
    python_tool = get_python_tool(sandbox_mode="local")
    bash_tool = get_bash_tool(sandbox_mode="remote")

    # Use tools
    assert python_tool.invoke({"code": "print(6 * 7)"}) == "42"
    assert bash_tool.invoke({"command": "echo $((6 * 7))"}) == "42"
    # Each where it was asked for.
    here, there = tools.session_of("local"), tools.session_of("remote")
    try:
        assert (here.backend.mode, there.backend.mode) == ("local", "remote")
        assert there.sandbox_id == get_sandbox_coordinator().session_id
        with pytest.raises(paddock.NotFoundError):
            there.backend.find(here.sandbox_id)
    finally:
        here.delete()
        there.delete()


@pytest.mark.parametrize("factory", ["get_python_tool", "get_bash_tool", "get_coder_agent_tool",
                                     "get_validator_agent_tool", "get_reporter_agent_tool",
                                     "get_tracker_agent_tool", "get_all_agent_tools"])
def test_tools_of_an_unknown_mode(tools, factory):
    with pytest.raises(ValueError, match="Unknown sandbox mode 'moon'.*local, remote, .*fargate"):
        getattr(paddock, factory)(sandbox_mode="moon")


def test_tools_are_made_once_and_follow_the_request(tools, mode, thread, tmp_path):
    from paddock import get_all_agent_tools, get_coder_agent_tool

    path = tmp_path / "data.csv"
    path.write_text(CSV)
    # Load tools based on SANDBOX_MODE environment variable
    _agent_tools = get_all_agent_tools()
    coder_agent_tool = _agent_tools["coder_agent"]
    validator_agent_tool = _agent_tools["validator_agent"]
    reporter_agent_tool = _agent_tools.get("reporter_agent")  # May be None
    tracker_agent_tool = _agent_tools["tracker_agent"]
    assert [t.name for t in get_coder_agent_tool()] == [t.name for t in coder_agent_tool]
    assert reporter_agent_tool and tracker_agent_tool

    def named(role, name):
        return next(t for t in role if t.name == name)

    def request(number):
        coordinator = get_sandbox_coordinator()
        coordinator.set_request_context(f"{thread}-{number}")
        assert coordinator.ensure_session_with_data(str(path)) is True
        coordinator.execute_code(f"number = {number}")
        told = named(coder_agent_tool, "python_exec").invoke({"code": "print(number)"})
        named(coder_agent_tool, "shell_exec").invoke({"command": f"echo {number} > who"})
        return (told, named(validator_agent_tool, "shell_exec").invoke({"command": "cat who; wc -l < data.csv"}),
                named(tracker_agent_tool, "file_read").invoke({"file": "who"}).strip())

    try:
        with ThreadPoolExecutor(2) as threads:
            for number, told in enumerate(threads.map(request, range(2))):
                assert told == (f"{number}", f"{number}\n3", f"{number}")
    finally:
        for number in range(2):
            get_sandbox_coordinator().cleanup_session(f"{thread}-{number}")


def test_a_tool_that_finds_its_sandbox_gone_says_so_and_the_data_is_put_back(tools, mode, thread, tmp_path):
    path = tmp_path / "data.csv"
    path.write_text(CSV)
    coordinator = get_sandbox_coordinator()
    coordinator.set_request_context(thread)
    assert coordinator.ensure_session_with_data(str(path)) is True
    bash = paddock.get_bash_tool()
    assert bash.invoke({"command": "touch mine; ls"}) == "data.csv\nmine"
    paddock.Sandbox.kill(coordinator.session_id)
    told = bash.invoke({"command": "ls"})
    assert told.startswith("Error: ") and "data put into it again (data.csv)" in told, told
    assert bash.invoke({"command": "ls"}) == "data.csv"
    assert bash.invoke({"command": "cat nothing"}).startswith("Error") is False
    coordinator.cleanup_session(thread)
