"""The official Python client, over both ways in; the same tests for its first and second major
version, whose names differ a little."""

import asyncio
import contextlib
import os

import mcp
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client import streamable_http
from mcp.client.stdio import stdio_client

from paddock_testing import run as paddock
from paddock_testing.server import Server

IS_NEW = hasattr(mcp, "Client")


@contextlib.asynccontextmanager
async def http(thread=None):
    url = f"{os.environ['PADDOCK_URL']}/mcp" + (f"?thread={thread}" if thread else "")
    headers = {"Authorization": f"Bearer {os.environ['PADDOCK_API_KEY']}"}
    if IS_NEW:
        import httpx2
        async with httpx2.AsyncClient(headers=headers, timeout=60) as client:
            async with streamable_http.streamable_http_client(url, http_client=client) as streams:
                yield streams[0], streams[1]
    else:
        async with streamable_http.streamablehttp_client(url, headers=headers) as streams:
            yield streams[0], streams[1]


@contextlib.asynccontextmanager
async def stdio(thread=None):
    words = ["mcp"] + (["--thread", thread] if thread else [])
    server = StdioServerParameters(command=os.environ["PADDOCK"], args=words, env=dict(os.environ))
    async with stdio_client(server) as streams:
        yield streams[0], streams[1]


TRANSPORTS = {"http": http, "stdio": stdio}


@contextlib.asynccontextmanager
async def connect(transport, thread=None):
    async with TRANSPORTS[transport](thread) as (read, write):
        async with ClientSession(read, write) as session:
            session.hello = await session.initialize()
            yield session


def field(result, name):
    """structured_content was structuredContent."""
    words = name.split("_")
    return getattr(result, name if IS_NEW else words[0] + "".join(w.title() for w in words[1:]))


async def call(session, tool, **arguments):
    result = await session.call_tool(tool, arguments)
    assert not field(result, "is_error"), result
    return field(result, "structured_content")


def run(body, transport):
    async def whole():
        async with connect(transport) as session:
            await body(session)

    asyncio.run(asyncio.wait_for(whole(), paddock.seconds(90)))


both = pytest.mark.parametrize("transport", TRANSPORTS)


@both
def test_every_tool(transport):
    async def body(session):
        assert field(session.hello, "server_info").name == "paddock"
        tools = (await session.list_tools()).tools
        assert len(tools) == 13 and all(field(t, "output_schema") for t in tools)
        assert (await call(session, "run_command", command="exit 3"))["exit_code"] == 3
        found = await call(session, "run_code", language="python", code="print(6*7)")
        assert found["stdout"] == "42\n"
        await call(session, "write_file", path="a/b.txt", content="one\ntwo ü\n")
        found = await call(session, "read_file", path="a/b.txt", first_line=2)
        assert found["content"] == "two ü\n"
        await call(session, "edit_file", path="a/b.txt", old_text="two", new_text="2")
        assert len((await call(session, "list_files", depth=2))["entries"]) == 2
        found = await call(session, "search_files", pattern="2 ü")
        assert found["matches"][0]["line"] == 2
        pid = (await call(session, "start_process", command="cat"))["pid"]
        seen = (await call(session, "check_process", pid=pid, input="hello\n"))["stdout"]
        for _ in range(20):
            if seen:
                break
            seen = (await call(session, "check_process", pid=pid, wait_s=1))["stdout"]
        assert seen == "hello\n"
        # The interpreter of run_code is there, too.
        assert pid in [p["pid"] for p in (await call(session, "session_info"))["processes"]]
        assert (await call(session, "stop_process", pid=pid))["running"] is False
        assert (await call(session, "preview_port", port=8000))["url"].startswith("http")

    run(body, transport)


@both
def test_errors(transport):
    async def body(session):
        result = await session.call_tool("read_file", {"path": "none"})
        assert field(result, "is_error") and "none" in result.content[0].text
        for wrong, code in ((session.call_tool("nothing", {}), -32602),
                            (session.read_resource("file:///none"), -32002),
                            (session.list_prompts(), -32601)):
            with pytest.raises(Exception) as caught:
                await wrong
            assert caught.value.error.code == code, caught.value

    run(body, transport)


@both
def test_resources(transport):
    async def body(session):
        assert (await session.list_resources()).resources == []
        await call(session, "run_command", command="echo text > t; printf '\\xff' > bin")
        listed = {r.name: str(r.uri) for r in (await session.list_resources()).resources}
        assert set(listed) == {"t", "bin"}
        assert (await session.read_resource(listed["t"])).contents[0].text == "text\n"
        assert (await session.read_resource(listed["bin"])).contents[0].blob == "/w=="

    run(body, transport)


@both
def test_progress(transport):
    async def body(session):
        steps, twice = [], asyncio.Event()

        async def note(progress, total, message):
            steps.append((progress, message))
            if [text for _, text in steps].count("working") == 2:
                twice.set()

        # It goes on until two steps with its line were told; those before have none.
        line = "echo working; until [ -e enough ]; do sleep 0.1; done"
        running = asyncio.create_task(session.call_tool(
            "run_command", {"command": line}, progress_callback=note))
        await twice.wait()
        await call(session, "write_file", path="enough", content="")
        await running
        numbers = [number for number, _ in steps]
        assert numbers == sorted(set(numbers)) and steps[-1][1] == "working", steps

    run(body, transport)


@both
def test_calls_at_once_and_a_long_one(transport):
    async def body(session):
        long = asyncio.create_task(call(session, "run_command", command="sleep 2; echo late"))
        found = await asyncio.gather(*(call(session, "run_command", command=f"echo {n}")
                                       for n in range(30)))
        assert [f["stdout"] for f in found] == [f"{n}\n" for n in range(30)]
        assert (await long)["stdout"] == "late\n"

    run(body, transport)


@both
def test_threads_stay(transport):
    async def whole():
        name = f"py-{mcp.__name__}-{IS_NEW}-{transport}"
        async with connect(transport, name) as one:
            await call(one, "write_file", path="f", content="kept")
        async with connect(transport, name) as two, connect(transport) as other:
            assert (await call(two, "read_file", path="f"))["content"] == "kept"
            assert field(await other.call_tool("read_file", {"path": "f"}), "is_error")

    asyncio.run(asyncio.wait_for(whole(), paddock.seconds(60)))


@both
def test_the_server_is_killed_in_the_middle(transport, monkeypatch):
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as server:
        monkeypatch.setenv("PADDOCK_URL", server.url)
        monkeypatch.setenv("PADDOCK_API_KEY", server.key)

        async def whole():
            async with connect(transport) as session:
                await call(session, "run_command", command="echo kept > f; cd /tmp")
                pid = (await call(session, "start_process", command="sleep 600"))["pid"]
                server.kill()
                server.start()
                assert (await call(session, "read_file", path="f"))["content"] == "kept\n"
                assert (await call(session, "run_command", command="pwd"))["stdout"] == "/tmp\n"
                assert (await call(session, "check_process", pid=pid))["running"]

        asyncio.run(asyncio.wait_for(whole(), paddock.seconds(90)))


if IS_NEW:  # the first major version has no Client
    def test_a_client_that_first_asks_for_newer_versions():
        """It asks with `server/discover` and goes back to `initialize`."""
        async def whole():
            server = StdioServerParameters(command=os.environ["PADDOCK"], args=["mcp"],
                                           env=dict(os.environ))
            async with mcp.Client(server) as client:
                assert client.protocol_version == "2025-11-25"
                result = await client.call_tool("run_command", {"command": "echo hi"})
                assert result.structured_content["stdout"] == "hi\n"
            import httpx2
            async with httpx2.AsyncClient(headers={"X-API-Key": os.environ["PADDOCK_API_KEY"]}, timeout=60) as http_client:
                transport = streamable_http.streamable_http_client(f"{os.environ['PADDOCK_URL']}/mcp", http_client=http_client)
                async with mcp.Client(transport) as client:
                    assert client.protocol_version == "2025-11-25"
                    result = await client.call_tool("run_command", {"command": "echo hi"})
                    assert result.structured_content["stdout"] == "hi\n"

        asyncio.run(asyncio.wait_for(whole(), paddock.seconds(60)))
