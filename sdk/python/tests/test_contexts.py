"""Code contexts, in both modes: cells, what they give, callbacks, contexts of one's own."""

import asyncio
import base64
import threading

import pytest
from paddock_testing.run import seconds, wait_for

import paddock

PICTURE = """
class Picture:
    def _repr_png_(self):
        return b"png"
    def _repr_html_(self):
        return "<b>ü</b>"
print("before")
Picture()
"""


def test_run_code_keeps_variables(sandbox):
    assert sandbox.run_code("x = 20").success
    done = sandbox.run_code("print(x + 1)\nx + 2")
    assert done.output == "21\n" and done.text == "22" and done.execution_count == 2
    assert done.state == "kept" and not done.state_lost and done.error is None


def test_results_are_those_of_the_peer(sandbox):
    told = []
    done = sandbox.run_code(PICTURE, on_stdout=lambda m: told.append(str(m)),
                            on_result=lambda r: told.append(r.html))
    assert told == ["before\n", "<b>ü</b>"]
    result, = done.results
    assert result.is_main_result and base64.b64decode(result.png) == b"png"
    assert set(result.formats()) >= {"png", "html"}
    listed = sandbox.run_code("[1, {'a': None}]").results[0]
    assert listed.json == [1, {"a": None}] and listed.extra == {}


def test_an_exception_is_an_error(sandbox):
    told = []
    done = sandbox.run_code("import sys\nprint('e', file=sys.stderr)\n1 / 0",
                            on_stderr=lambda m: told.append(m.error), on_error=told.append)
    assert done.error.name == "ZeroDivisionError" and "1 / 0" in done.error.traceback
    assert told == [True, done.error] and done.stderr == "e\n" and not done.success


def test_an_environment_for_one_cell(sandbox):
    code = "import os; os.getenv('ONE')"
    assert sandbox.run_code(code, envs={"ONE": "ü"}).text == "ü"
    assert sandbox.run_code(code).text is None


def test_contexts_are_apart(sandbox):
    context = sandbox.create_code_context(cwd="/tmp", envs={"OWN": "1"})
    assert context.language == "python" and context.cwd == "/tmp"
    assert context.run("import os; z = 1; os.getcwd(), os.getenv('OWN')").text == "('/tmp', '1')"
    assert sandbox.run_code("z").error.name == "NameError"
    assert sandbox.run_code("z", context=context.id).text == "1"
    assert context.id in [c.id for c in sandbox.list_code_contexts()]
    assert context.restart().id == context.id
    assert context.run("z").error.name == "NameError"
    context.remove()
    with pytest.raises(paddock.NotFoundError):
        context.run("1")
    assert context.id not in [c.id for c in sandbox.list_code_contexts()]


def test_a_fork_has_all_the_variables_and_is_apart(sandbox):
    base = sandbox.create_code_context(cwd="/tmp")
    base.run("x = [1]; import json")
    fork = base.fork()
    assert fork.id != base.id and fork.run("x.append(2); json.dumps(x)").text == "[1, 2]"
    assert base.run("x").text == "[1]"
    assert {base.id, fork.id} <= {c.id for c in sandbox.list_code_contexts()}
    fork.remove()
    assert base.run("x").text == "[1]"


def test_a_cell_is_taken_back(sandbox):
    context = sandbox.create_code_context()
    with pytest.raises(paddock.ConflictError):
        context.undo()
    context.run("x = 1")
    context.run("x = 2; y = 3", keep_before=True)
    assert context.undo().id == context.id
    assert context.run("x, 'y' in globals()").text == "(1, False)"


def test_other_languages(sandbox):
    sandbox.run_code("A=1; cd /tmp", "bash")
    assert sandbox.run_code("echo $A; pwd", "bash").output == "1\n/tmp\n"
    with pytest.raises(paddock.PaddockError) as caught:
        sandbox.run_code("1", "cobol")
    assert "cobol" in caught.value.message


def test_too_long_is_interrupted_and_variables_stay(sandbox):
    sandbox.run_code("kept = 5")
    done = sandbox.run_code("import time\nprint('begun')\ntime.sleep(600)", timeout=seconds(1))
    assert done.reason == "timeout" and done.error.name == "KeyboardInterrupt"
    assert done.state == "kept" and done.output == "begun\n"
    assert sandbox.run_code("kept").text == "5"


def test_a_cell_is_interrupted_from_elsewhere(sandbox):
    context = sandbox.create_code_context()
    assert context.interrupt() is False
    done = []
    thread = threading.Thread(target=lambda: done.append(
        context.run("open('/tmp/begun', 'w').close()\nimport time; time.sleep(600)")))
    thread.start()
    wait_for(lambda: sandbox.files.exists("/tmp/begun"), 30, "the cell runs")
    assert context.interrupt() is True
    thread.join(seconds(60))
    assert done and done[0].error.name == "KeyboardInterrupt" and done[0].state == "kept"


def test_an_exception_of_a_callback_interrupts_the_cell(sandbox):
    with pytest.raises(ZeroDivisionError):
        sandbox.run_code("import time\nprint(1, flush=True)\ntime.sleep(600)",
                         on_stdout=lambda _: 1 / 0)
    assert sandbox.run_code("1 + 1").text == "2"


def test_an_interpreter_that_dies_says_so(sandbox):
    sandbox.run_code("v = 1")
    died = sandbox.run_code("import os; print('last', flush=True); os._exit(9)")
    assert died.state == "restarted" and died.reason == "exit" and died.output == "last\n"
    assert died.error.name == "ContextRestarting" and "9" in died.error.value
    assert sandbox.run_code("'v' in globals()").text == "False"


def test_cells_of_one_context_run_one_after_the_other(sandbox):
    sandbox.run_code("n = 0")
    code = "m = n\nimport time; time.sleep(0.02)\nn = m + 1"
    threads = [threading.Thread(target=lambda: sandbox.run_code(code)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sandbox.run_code("n").text == "6"


def test_the_same_for_asyncio(mode):
    async def main():
        async with await paddock.AsyncSandbox.create() as sandbox:
            told = []

            async def tell(message):
                await asyncio.sleep(0)
                told.append(message.line)

            done = await sandbox.run_code("x = 1\nprint(x)\nx", on_stdout=tell)
            assert told == ["1\n"] and done.text == "1"
            context = await sandbox.create_code_context()
            assert (await context.run("x")).error.name == "NameError"
            assert context.id in [c.id for c in await sandbox.list_code_contexts()]
            assert await context.interrupt() is False
            await context.run("z = 3", keep_before=True)
            fork = await context.fork()
            assert (await fork.run("z")).text == "3"
            assert (await (await context.undo()).run("z")).error.name == "NameError"
            await (await context.restart()).remove()
            await sandbox.restart_code_context("python")
            assert (await sandbox.run_code("x")).error.name == "NameError"
    asyncio.run(main())
