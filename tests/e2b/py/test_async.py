"""What the async SDK does in another way: streams, many at once."""

import asyncio

import e2b
import pytest


async def test_commands(amake):
    sandbox = await amake(envs={"A": "1"})
    result = await sandbox.commands.run("echo $A; echo err >&2")
    assert (result.stdout, result.stderr) == ("1\n", "err\n")
    with pytest.raises(e2b.CommandExitException):
        await sandbox.commands.run("exit 3")
    command = await sandbox.commands.run("cat; echo end", background=True, stdin=True)
    await sandbox.commands.send_stdin(command.pid, "one\n")
    await sandbox.commands.close_stdin(command.pid)
    assert (await command.wait()).stdout == "one\nend\n"
    with pytest.raises(e2b.TimeoutException):
        await sandbox.commands.run("sleep 100", timeout=0.5)


@pytest.mark.since("AsyncCommandInputHandle")
async def test_input_reaches_the_command_while_the_stream_is_open(amake):
    sandbox = await amake()
    seen = asyncio.Event()

    def on_stdout(text):
        if "first" in text:
            seen.set()

    command = await sandbox.commands.run("cat", background=True, stdin=True, on_stdout=on_stdout)
    async with sandbox.commands.stream_input(command.pid) as handle:
        await handle.send("first\n")
        await asyncio.wait_for(seen.wait(), 10)
        await handle.send("second\n")
    await sandbox.commands.close_stdin(command.pid)
    assert (await command.wait()).stdout == "first\nsecond\n"


async def test_many_at_once(amake):
    sandbox = await amake()
    results = await asyncio.gather(
        *(sandbox.commands.run(f"sleep 0.2; echo {n}") for n in range(20)))
    assert [r.stdout for r in results] == [f"{n}\n" for n in range(20)]


async def test_files_and_watch(amake):
    sandbox = await amake()
    await sandbox.files.make_dir("w")
    seen = asyncio.Queue()
    handle = await sandbox.files.watch_dir("w", on_event=seen.put_nowait, recursive=True)
    await sandbox.files.write("w/f", b"\x00\xff")
    while (event := await asyncio.wait_for(seen.get(), 10)).type != e2b.FilesystemEventType.WRITE:
        pass
    assert event.name == "f"
    await handle.stop()
    assert bytes(await sandbox.files.read("w/f", format="bytes")) == b"\x00\xff"
    stream = await sandbox.files.read("w/f", format="stream")
    assert b"".join([part async for part in stream]) == b"\x00\xff"
    with pytest.raises(e2b.FileNotFoundException):
        await sandbox.files.read("nothing")


async def test_terminal(amake):
    sandbox = await amake()
    shown = []
    terminal = await sandbox.pty.create(e2b.PtySize(rows=24, cols=80), on_data=shown.append)
    await sandbox.pty.resize(terminal.pid, e2b.PtySize(rows=31, cols=101))
    await sandbox.pty.send_stdin(terminal.pid, b"stty size; exit 0\n")
    assert (await terminal.wait()).exit_code == 0
    assert b"31 101" in b"".join(shown)


async def test_pause_list_and_kill(amake):
    sandbox = await amake(metadata={"mark": "async"})
    await sandbox.pause()
    assert await sandbox.is_running() is False
    paused = await e2b.AsyncSandbox.list(query=e2b.SandboxQuery(
        metadata={"mark": "async"}, state=[e2b.SandboxState.PAUSED])).next_items()
    assert sandbox.sandbox_id in [s.sandbox_id for s in paused]
    await sandbox.connect()
    assert (await sandbox.commands.run("echo back")).stdout == "back\n"
    assert await sandbox.kill() is True
    with pytest.raises(e2b.SandboxNotFoundException):
        await e2b.AsyncSandbox.connect(sandbox.sandbox_id)


async def test_killed_during_a_command(amake):
    sandbox = await amake()
    begun = asyncio.Event()

    async def begin(_):
        begun.set()

    waiting = asyncio.create_task(sandbox.commands.run("echo begun; sleep 1000", on_stdout=begin))
    await asyncio.wait_for(begun.wait(), 30)
    await sandbox.kill()
    with pytest.raises(e2b.TimeoutException):
        await waiting
