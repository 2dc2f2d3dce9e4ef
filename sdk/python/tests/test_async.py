"""AsyncSandbox: the same, and cancellation."""

import asyncio
import time

import pytest
from paddock_testing.run import seconds

import paddock
from paddock import AsyncSandbox, PtySize


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, seconds(60)))


async def until(condition):
    """Asks until the answer is true."""
    deadline = time.monotonic() + seconds(20)
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def test_commands_files_and_git(mode):
    async def main():
        async with await AsyncSandbox.create(envs={"WORD": "ü"}) as sandbox:
            assert (await sandbox.commands.run("echo $WORD")).stdout == "ü\n"
            await sandbox.files.write("a/b", "text")
            assert await sandbox.files.read("a/b") == "text"
            assert await sandbox.files.read("a/b", format="bytes") == b"text"
            pieces = [p async for p in await sandbox.files.read("a/b", format="stream")]
            assert pieces == [b"text"]
            assert [e.name for e in await sandbox.files.list("a")] == ["b"]
            await sandbox.git.init("repo")
            assert (await sandbox.git.status("repo")).is_clean
            assert (await sandbox.run_code("print(1)")).output == "1\n"
            with pytest.raises(paddock.CommandExitException):
                await sandbox.commands.run("exit 1")
            other = await AsyncSandbox.connect(sandbox.sandbox_id)
            assert await other.is_running()
            assert (await AsyncSandbox.get_info(sandbox.sandbox_id)).id == sandbox.sandbox_id
        assert not await sandbox.is_running()
    run(main())


def test_for_thread(mode, thread):
    async def main():
        async with await AsyncSandbox.for_thread("ann", thread) as sandbox:
            await sandbox.files.write("a", "1")
        again = await AsyncSandbox.for_thread("ann", thread)
        assert await again.files.read("a") == "1"
        assert await AsyncSandbox.kill(again.sandbox_id)
    run(main())


def test_output_is_told_on_the_loop_in_order(mode):
    async def main():
        loop = asyncio.get_running_loop()
        seen = []

        async def tell(text):
            assert asyncio.get_running_loop() is loop
            await asyncio.sleep(0)
            seen.append(text)

        async with await AsyncSandbox.create() as sandbox:
            await sandbox.commands.run("seq 1 1000; sleep 0.1; echo end", on_stdout=tell)
            assert "".join(seen) == "".join(f"{i}\n" for i in range(1, 1001)) + "end\n"
            plain = []
            await sandbox.commands.run("echo e >&2", on_stderr=plain.append)
            assert plain == ["e\n"]
    run(main())


def test_background_and_terminal(mode):
    async def main():
        async with await AsyncSandbox.create() as sandbox:
            seen = []
            handle = await sandbox.commands.run("cat", background=True, stdin=True,
                                                on_stdout=seen.append)
            await handle.send_stdin("x\n")
            await handle.close_stdin()
            assert (await handle.wait()).stdout == "x\n" and seen == ["x\n"]
            shown, told = asyncio.Event(), []
            terminal = await sandbox.pty.create(
                PtySize(24, 80),
                on_data=lambda data: told.append(data) or b"42" in b"".join(told) and shown.set())
            await sandbox.pty.send_stdin(terminal.pid, b"echo $((6*7))\n")
            await asyncio.wait_for(shown.wait(), seconds(20))
            await terminal.disconnect()
            assert await sandbox.pty.kill(terminal.pid)
    run(main())


def test_many_commands_at_once(mode):
    async def main():
        async with await AsyncSandbox.create() as sandbox:
            start = time.monotonic()
            results = await asyncio.gather(*(
                sandbox.commands.run(f"sleep 0.5; echo {n}") for n in range(20)))
            assert [r.stdout for r in results] == [f"{n}\n" for n in range(20)]
            # asyncio's own threads, of which a small machine has six, would take 2 s.
            assert time.monotonic() - start < seconds(8)
    run(main())


@pytest.mark.parametrize("streaming", [False, True])
def test_cancelling_ends_the_command(mode, streaming):
    async def main():
        async with await AsyncSandbox.create() as sandbox:
            task = asyncio.ensure_future(sandbox.commands.run(
                "sleep 987 & touch begun; wait", on_stdout=print if streaming else None))
            await until(lambda: sandbox.files.exists("begun"))
            start = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - start < seconds(5)

            async def nothing_runs():
                return not await sandbox.commands.list()

            async def nothing_is_left():
                # A process may go while it is looked at.
                left = await sandbox.commands.run("cat /proc/[0-9]*/comm 2>/dev/null || true")
                assert "bash" in left.stdout  # the control
                return "sleep" not in left.stdout

            await until(nothing_runs)
            await until(nothing_is_left)
    run(main())


def test_a_time_limit_around_a_call(mode):
    async def main():
        async with await AsyncSandbox.create() as sandbox:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(sandbox.commands.run("sleep 60"), 0.5)
            assert (await sandbox.commands.run("echo fine")).stdout == "fine\n"
    run(main())


def test_cancelling_code_interrupts_it_and_variables_stay(mode):
    async def main():
        async with await AsyncSandbox.create() as sandbox:
            assert (await sandbox.run_code("x = 1")).success
            code = "import time; open('begun', 'w').close(); time.sleep(600)"
            task = asyncio.ensure_future(sandbox.run_code(code))
            await until(lambda: sandbox.files.exists("begun"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            again = await sandbox.run_code("print('x' in globals())")
            assert again.success and again.output == "True\n" and not again.state_lost
    run(main())
