"""The backend for deepagents against a real server, first by LangChain's own conformance suite.

That suite (langchain-tests 1.1.9) checks the rules that deepagents had before 0.7, so it runs as it is
against a backend with those. Against the rules of the version that is installed it runs again, with
the tests that contradict them replaced.
"""

import asyncio
import base64
import re
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("deepagents", reason="deepagents is not installed")
pytest.importorskip("langchain_tests", reason="langchain-tests is not installed")

from deepagents.backends.protocol import SandboxBackendProtocol  # noqa: E402
from langchain_tests.integration_tests import SandboxIntegrationTests  # noqa: E402
from paddock_testing.run import seconds  # noqa: E402

import paddock  # noqa: E402
from paddock.deepagents import PaddockProvider, PaddockSandbox  # noqa: E402

# The suite calls `python`, which is a link that Debian does not have.
PYTHON = "mkdir -p ~/bin && ln -sf /usr/bin/python3 ~/bin/python && " \
         "echo 'PATH=$HOME/bin:$PATH' > ~/.bash_profile"


def open_sandbox(server, **options):
    backend = PaddockSandbox.create(mode="remote", server_url=server.url, api_key=server.key,
                                    **options)
    assert backend.execute(PYTHON).exit_code == 0
    # The suite writes below its directory by the shell, before anything has made it.
    return backend


def workspace_of(backend):
    """Where it is: at provider local in a directory of the machine."""
    return backend.execute("pwd").output.strip()


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore:.*not an async function", "ignore:Instance attributes set")
class Suite(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox_test_root(self, sandbox):
        """A directory of its own also where /tmp is the machine's."""
        return f"{workspace_of(sandbox)}/test_sandbox_ops"

    @pytest.fixture(autouse=True)
    def made_root(self, sandbox, sandbox_test_root):
        sandbox.execute(f"mkdir -p '{sandbox_test_root}'")


class TestConformance(Suite):
    """The suite as it is."""

    @pytest.fixture(scope="class")
    def sandbox(self, server):
        with open_sandbox(server, legacy=True) as backend:
            yield backend


def contradicts(name):
    """A test of the suite that cannot pass with the rules of today; what holds instead is below."""
    def test(self, sandbox_backend, sandbox_test_root):
        getattr(SandboxIntegrationTests, name)(self, sandbox_backend, sandbox_test_root)
    return pytest.mark.xfail(strict=True, reason="other rules since deepagents 0.7")(test)


class TestConformanceNow(Suite):
    """With the rules that deepagents has since 0.7."""

    @pytest.fixture(scope="class")
    def sandbox(self, server):
        with open_sandbox(server, legacy=False) as backend:
            yield backend

    for _name in ("test_write_existing_file_fails", "test_glob", "test_glob_basic_pattern",
                  "test_glob_with_directories", "test_glob_hidden_files_explicitly",
                  "test_glob_with_character_class", "test_glob_with_question_mark"):
        locals()[_name] = contradicts(_name)


@pytest.fixture
def now(mode):
    with PaddockSandbox.create(legacy=False) as b:
        yield b


def test_write_replaces_a_file(now):
    now.write("/workspace/a", "First content")
    assert now.write("/workspace/a", "Second content").path == "/workspace/a"
    assert now.execute("cat a").output == "Second content"
    assert "absolute" in now.write("a", "").error


@pytest.mark.parametrize("pattern, names", [
    ("*.py", ["a.py", "sub/.hidden/d.py", "sub/c.py"]),
    ("/*.py", ["a.py"]),
    ("**/*.py", ["a.py", "sub/c.py"]),
    ("*.{txt,md}", ["b.txt", "file1.txt", "file10.txt"]),
    ("sub/*", ["sub/c.py"]),
    ("*", ["a.py", "b.txt", "file1.txt", "file10.txt", "sub/.hidden/d.py", "sub/c.py"]),
    (".*", [".dot.py"]),
    ("[!b].*", ["a.py", "sub/.hidden/d.py", "sub/c.py"]),
    ("file?.txt", ["file1.txt"]),
    ("nothing", []),
])
def test_glob_finds_files_at_any_depth_by_absolute_paths(now, pattern, names):
    files = ("a.py", "b.txt", "sub/c.py", "sub/.hidden/d.py", ".dot.py", "file1.txt", "file10.txt")
    now.upload_files([(f"/workspace/g/{name}", b"x") for name in files])
    for root in ("/workspace/g", "/workspace/g/"):
        matches = now.glob(pattern, path=root).matches
        assert sorted(m["path"] for m in matches) == [f"{workspace_of(now)}/g/{name}" for name in names]
        assert not any(m["is_dir"] for m in matches)


@pytest.fixture
def backend(mode):
    with PaddockSandbox.create() as b:
        yield b


def test_it_is_a_backend(backend):
    assert isinstance(backend, SandboxBackendProtocol)
    assert len(backend.id) == 20


def test_execute(backend):
    result = backend.execute("echo a; echo b >&2; echo c; exit 3")
    assert (result.output, result.exit_code, result.truncated) == ("a\nb\nc\n", 3, False)
    assert "syntax error" in backend.execute("(").output
    workspace = workspace_of(backend)
    assert backend.execute("cd /tmp; pwd").output == "/tmp\n"
    assert workspace_of(backend) == workspace != "/tmp"
    result = backend.execute("echo begun; sleep 60", timeout=int(seconds(1)))
    assert result.exit_code == 124 and "begun" in result.output and "timed out" in result.output
    assert backend.execute("head -c 9000000 /dev/zero").truncated


def test_a_cancelled_task_ends_its_command(backend):
    async def main():
        task = asyncio.ensure_future(backend.aexecute("sleep 765"))
        while "sleep 765" not in backend.execute("ps -eo args | grep -v grep").output:
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    asyncio.run(asyncio.wait_for(main(), seconds(20)))
    deadline = time.monotonic() + seconds(10)
    while "sleep 765" in backend.execute("ps -eo args | grep -v grep").output:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_needs_no_python_in_the_sandbox(backend):
    """Every file operation is a call, none is a program that is run."""
    place = f"{workspace_of(backend)}/a.py"
    before = len(backend._backend.processes(backend.id))
    backend.write("/workspace/a.py", "one\ntwo\n")
    assert backend.read("/workspace/a.py").file_data["content"] == "one\ntwo\n"
    assert backend.edit("/workspace/a.py", "two", "2").occurrences == 1
    assert [m["line"] for m in backend.grep("2").matches] == [2]
    assert [m["path"] for m in backend.glob("*.py").matches] == [place]
    assert [e["path"] for e in backend.ls("/workspace").entries] == [place]
    assert backend.delete("/workspace/a.py").error is None
    assert "not found" in backend.delete("/workspace/a.py").error
    assert "itself" in backend.delete("/workspace/").error
    assert len(backend._backend.processes(backend.id)) == before


def test_pages(backend):
    backend.write("/workspace/t", "".join(f"{i}\n" for i in range(10)))
    page = backend.read("/workspace/t", offset=2, limit=3)
    assert (page.start_line, page.end_line, page.next_offset, page.total_lines) == (3, 5, 5, 10)
    assert page.file_data["content"] == "2\n3\n4"
    page = backend.read("/workspace/t", offset=8)
    assert page.file_data["content"] == "8\n9\n" and page.next_offset is None
    assert "exceeds" in backend.read("/workspace/t", offset=10).error
    assert backend.read("/workspace/t", offset=-5, limit=1).file_data["content"] == "0"
    assert backend.read("/workspace/t", limit=-1).file_data["content"] == ""
    backend.upload_files([("/workspace/b", b"\xff\x00")])
    data = backend.read("/workspace/b").file_data
    assert data["encoding"] == "base64" and base64.b64decode(data["content"]) == b"\xff\x00"


def test_edit_of_what_is_too_long_for_one_request(backend):
    long = "x" * 100000
    backend.write("/workspace/t", f"<{long}>")
    assert backend.edit("/workspace/t", long, long + "y").occurrences == 1
    assert backend.execute("wc -c < t").output == "100003\n"
    backend.write("/workspace/u", f"{long}-{long}")
    assert "multiple times (2)" in backend.edit("/workspace/u", long, "").error
    assert "not found" in backend.edit("/workspace/t", "z" * 5000, "").error


def test_grep_with_a_glob_and_a_limit(backend):
    for name in ("a.py", "b.md", "sub/c.py", ".git/d.py"):
        backend.write(f"/workspace/{name}", "needle\nneedle\n")
    workspace = workspace_of(backend)

    def names(**how):
        return sorted({m["path"][len(workspace) + 1:] for m in backend.grep("needle", **how).matches})
    assert names() == ["a.py", "b.md", "sub/c.py"]
    assert names(glob="*.py") == ["a.py", "sub/c.py"]
    assert names(glob="/*.py") == ["a.py"]
    assert names(glob="**/*.{md,py}") == ["a.py", "b.md", "sub/c.py"]
    assert names(path="/workspace/sub") == ["sub/c.py"]
    limited = backend.grep("needle", max_count=3)
    assert len(limited.matches) == 3 and limited.truncated
    assert not backend.grep("needle", glob="b.md", max_count=2).truncated
    assert ".." in backend.glob("../*").error


def test_older_names(backend):
    backend.write("/workspace/a.py", "needle\n")
    place = f"{workspace_of(backend)}/a.py"
    assert [e["path"] for e in backend.ls_info("/workspace")] == [place]
    assert backend.ls_info("/nowhere") == []
    assert [e["path"] for e in backend.glob_info("*.py", "/workspace")] == [place]
    assert backend.grep_raw("needle", "/workspace")[0]["line"] == 1
    assert isinstance(backend.grep_raw("needle", "/nowhere"), str)
    assert asyncio.run(backend.als_info("/workspace")) == backend.ls_info("/workspace")


def test_a_sandbox_that_is_gone_is_not_a_missing_file(backend):
    backend.end()
    with pytest.raises(paddock.PaddockError):
        backend.execute("true")


def test_the_provider(mode, thread):
    provider = PaddockProvider()
    made = provider.get_or_create()
    try:
        made.write("/workspace/a", "a")
        again = provider.get_or_create(sandbox_id=made.id)
        assert again.read("/workspace/a").file_data["content"] == "a"
    finally:
        provider.delete(sandbox_id=made.id)
    with pytest.raises(paddock.NotFoundError):
        provider.get_or_create(sandbox_id=made.id)
    provider.delete(sandbox_id=made.id)
    with PaddockSandbox.for_thread("ann", thread) as first:
        first.write("/workspace/a", "a")
    again = PaddockSandbox.for_thread("ann", thread)
    assert again.id == first.id and again.read("/workspace/a").error is None
    assert again.end()


def test_the_provider_makes_its_calls_beside_the_event_loop(mode, monkeypatch):
    """As dcode does it: there, a guard refuses calls that block on the loop's own thread."""
    made_in = []
    create = PaddockSandbox.create.__func__

    def noted(cls, **more):
        made_in.append(threading.current_thread())
        return create(cls, **more)

    monkeypatch.setattr(PaddockSandbox, "create", classmethod(noted))

    async def on_the_loop():
        return PaddockProvider().get_or_create(template="base")

    made = asyncio.run(on_the_loop())
    try:
        info = made._backend.find(made.id)
        assert made_in != [] and threading.main_thread() not in made_in
        assert info.template == "base" and info.idle_timeout_s == 900
        assert info.metadata["made_by"] == "dcode"
    finally:
        PaddockProvider().delete(sandbox_id=made.id)


def test_the_providers_settings(mode, thread):
    provider = PaddockProvider(user="ann")
    first = provider.get_or_create(thread=thread)
    try:
        assert provider.get_or_create(thread=thread).id == first.id
        with pytest.raises(paddock.InvalidArgumentError, match="colour: the provider paddock has no"):
            provider.get_or_create(colour="red")
    finally:
        provider.delete(sandbox_id=first.id)


def test_the_entry_point_leads_to_the_provider():
    from importlib.metadata import EntryPoint

    settings = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    group = "deepagents_code.sandbox_providers"
    found = re.search(rf'(?m)^\[project.entry-points."{group}"\]\npaddock = "(.*)"$', settings)
    assert EntryPoint("paddock", found[1], group).load() is PaddockProvider
    assert PaddockProvider().metadata["working_dir"] == "/workspace"


def test_an_agent_works_in_it(backend):
    """deepagents' own loop and tools, with a model that follows a script."""
    from deepagents import create_deep_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools, **_):
            return self

    def call(name, **arguments):
        return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": name}])

    model = Model(messages=iter([
        call("write_file", file_path="/workspace/n.txt", content="6\n7\n"),
        call("execute", command="read -d '' a b < n.txt; echo $((a * b))"),
        AIMessage("done")]))
    agent = create_deep_agent(model=model, backend=backend)
    result = agent.invoke({"messages": [("user", "multiply")]})
    outputs = [m for m in result["messages"] if m.type == "tool"]
    assert "42" in outputs[-1].content and result["messages"][-1].content == "done"
    assert backend.execute("cat n.txt").output == "6\n7\n"
