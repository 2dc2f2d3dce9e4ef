"""The client for the OpenAI Agents SDK: its own sessions, manifests and agents, in a real sandbox."""

import asyncio
import io
import json
import sys
import tarfile
from pathlib import Path

import pytest
from paddock_testing.run import seconds

if sys.version_info < (3, 10):
    pytest.skip("agents.sandbox needs Python 3.10", allow_module_level=True)
pytest.importorskip("agents.sandbox", reason="openai-agents with agents.sandbox is not installed")

from agents.sandbox.entries import File  # noqa: E402
from agents.sandbox.errors import ExecTimeoutError, WorkspaceReadNotFoundError  # noqa: E402
from agents.sandbox.manifest import Manifest  # noqa: E402
from agents.sandbox.snapshot import LocalSnapshotSpec  # noqa: E402

from paddock.openai_agents import (  # noqa: E402
    PaddockSandboxClient, PaddockSandboxClientOptions,
)


def run(main):
    return asyncio.run(asyncio.wait_for(main, seconds(40)))


async def opened(client, **how):
    session = await client.create(**how)
    await session.start()
    return session


def test_a_session(mode):
    async def main():
        client = PaddockSandboxClient()
        session = await opened(
            client, manifest=Manifest(entries={"data/a.txt": File(content=b"from the manifest")}),
            options=PaddockSandboxClientOptions(env={"FARM": "yes"}))
        try:
            assert await session.running()
            result = await session.exec("cat data/a.txt; echo $FARM; pwd; echo oops >&2; exit 3")
            assert result.stdout == b"from the manifestyes\n/workspace\n"
            assert (result.stderr, result.exit_code) == (b"oops\n", 3)
            raw = await session.exec("printf", r"\377\000", shell=False)
            assert raw.stdout == b"\xff\x00"
            assert (await session.exec("id -u", user="root")).stdout == b"0\n"
            assert (await session.exec("id -u")).stdout == b"1000\n"
            with pytest.raises(ExecTimeoutError):
                await session.exec("sleep 30", timeout=0.3)
            await session.write(Path("sub/b.bin"), io.BytesIO(bytes(range(256))))
            assert (await session.read(Path("sub/b.bin"))).read() == bytes(range(256))
            assert await session.read_bounded(Path("sub/b.bin"), max_bytes=4) == b"\0\1\2\3"
            with pytest.raises(WorkspaceReadNotFoundError):
                await session.read(Path("nope"))
            with pytest.raises(Exception, match="escape|workspace|path"):
                await session.read(Path("../../etc/passwd"))
            names = {Path(str(e.path)).name for e in await session.ls(Path("."))}
            assert {"data", "sub"} <= names
            await session.mkdir(Path("made/deep"), parents=True)
            await session.rm(Path("sub"), recursive=True)
            assert not (await session.exec("test -e sub")).ok()
        finally:
            await client.delete(session)
        assert not await session.running()
    run(main())


def test_its_state_is_resumed(mode):
    async def main():
        client = PaddockSandboxClient()
        session = await opened(client)
        await session.write(Path("kept.txt"), io.BytesIO(b"kept"))
        kept = json.dumps(client.serialize_session_state(session.state))
        other = PaddockSandboxClient()
        again = await other.resume(other.deserialize_session_state(json.loads(kept)))
        await again.start()
        try:
            assert again.state.sandbox_id == session.state.sandbox_id
            assert (await again.read(Path("kept.txt"))).read() == b"kept"
        finally:
            await other.delete(again)
    run(main())


def test_a_snapshot_fills_a_new_sandbox(mode, tmp_path):
    async def main():
        client = PaddockSandboxClient()
        session = await opened(client, snapshot=LocalSnapshotSpec(base_path=tmp_path))
        await session.write(Path("kept.txt"), io.BytesIO(b"kept"))
        await session.exec("mkdir -p 'd e' && ln -s ../kept.txt 'd e/link' && chmod 755 kept.txt")
        await session.stop()
        kept = client.serialize_session_state(session.state)
        await client.delete(session)
        again = await client.resume(client.deserialize_session_state(kept))
        await again.start()
        try:
            assert again.state.sandbox_id != session.state.sandbox_id
            result = await again.exec("cat 'd e/link'; stat -c %a kept.txt")
            assert result.stdout == b"kept755\n"
        finally:
            await client.delete(again)
    run(main())


def test_an_archive_that_leads_out_is_refused(mode):
    async def main():
        client = PaddockSandboxClient()
        session = await opened(client)
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("../../tmp/out"))
        data.seek(0)
        try:
            with pytest.raises(Exception, match="archive"):
                await session.hydrate_workspace(data)
            assert not (await session.exec("test -e /tmp/out")).ok()
        finally:
            await client.delete(session)
    run(main())


def test_an_agent_works_in_it(mode):
    """The SDK's own loop and shell tool, with a model that follows a script."""
    from agents import ModelResponse, Runner, Usage, set_tracing_disabled
    from agents.models.interface import Model
    from agents.run import RunConfig
    from agents.sandbox import SandboxAgent, SandboxRunConfig
    from openai.types.responses import (
        ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText,
    )

    set_tracing_disabled(True)
    seen = []

    class Script(Model):
        async def get_response(self, system_instructions, input, *args, **kwargs):
            seen.append(input)
            if len(seen) == 1:
                item = ResponseFunctionToolCall(
                    type="function_call", call_id="1", name="exec_command",
                    arguments=json.dumps({"cmd": "echo $((6 * 7)) | tee answer.txt"}))
            else:
                item = ResponseOutputMessage(
                    id="m", type="message", role="assistant", status="completed",
                    content=[ResponseOutputText(type="output_text", text="it is 42",
                                                annotations=[])])
            return ModelResponse(output=[item], usage=Usage(), response_id=None)

        def stream_response(self, *args, **kwargs):
            raise NotImplementedError

    async def main():
        client = PaddockSandboxClient()
        session = await opened(client)
        try:
            result = await Runner.run(
                SandboxAgent(name="counter", model=Script(), instructions="count"), "6 times 7?",
                run_config=RunConfig(sandbox=SandboxRunConfig(session=session)))
            assert result.final_output == "it is 42"
            assert (await session.read(Path("answer.txt"))).read() == b"42\n"
        finally:
            await client.delete(session)
    run(main())
    assert "42" in json.dumps(seen[1], default=str)
