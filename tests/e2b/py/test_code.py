"""The code interpreter's own SDK, sync and async. Cells here need nothing but what every sandbox has."""

import base64
import os

import e2b
import pytest
import pytest_asyncio
from e2b_code_interpreter import AsyncSandbox, Sandbox

PICTURE = """
class Picture:
    def _repr_png_(self):
        return b"png"
    def _repr_html_(self):
        return "<b>\\u2028</b>"
print("before")
Picture()
"""


@pytest.fixture
def sandbox():
    made = Sandbox.create(timeout=120)
    yield made
    made.kill()


@pytest_asyncio.fixture
async def asandbox():
    made = await AsyncSandbox.create(timeout=120)
    yield made
    await made.kill()


def test_variables_stay_and_the_last_value_is_the_result(sandbox):
    sandbox.run_code("x = 20")
    done = sandbox.run_code("import sys\nprint('out'); print('err', file=sys.stderr)\nx + 1")
    assert done.text == "21" and done.execution_count == 2 and done.error is None
    assert "".join(done.logs.stdout) == "out\n" and "".join(done.logs.stderr) == "err\n"


def test_an_exception_is_told_and_variables_stay(sandbox):
    done = sandbox.run_code("y = 7\nundefined_name")
    assert done.error.name == "NameError" and "undefined_name" in done.error.value
    assert "NameError" in done.error.traceback
    assert sandbox.run_code("y").text == "7"


def test_callbacks_get_what_was_written_and_shown(sandbox):
    told = []
    done = sandbox.run_code(PICTURE, on_stdout=lambda m: told.append(m.line),
                            on_result=lambda r: told.append(r.html))
    assert told == ["before\n", "<b>\u2028</b>"]
    assert base64.b64decode(done.results[0].png) == b"png" and done.results[0].is_main_result


def test_contexts(sandbox):
    context = sandbox.create_code_context(cwd="/tmp")
    sandbox.run_code("z = 1", context=context)
    assert sandbox.run_code("z").error.name == "NameError"
    assert sandbox.run_code("import os; os.getcwd(), z", context=context).text == "('/tmp', 1)"
    listed = sandbox.list_code_contexts()
    assert [c.language for c in listed[:2]] == ["python", "javascript"] and listed[-1].id == context.id
    sandbox.restart_code_context(context)
    assert sandbox.run_code("z", context=context).error.name == "NameError"
    sandbox.remove_code_context(context)
    with pytest.raises(e2b.NotFoundException):
        sandbox.run_code("1", context=context)


def test_a_cell_whose_client_leaves_is_interrupted(sandbox, until):
    sandbox.run_code("kept = 5")
    with pytest.raises(e2b.TimeoutException):
        sandbox.run_code("import time; time.sleep(600)",
                         timeout=2 * float(os.environ.get("PADDOCK_TEST_PATIENCE", "1")))
    until("the context answers", lambda: sandbox.run_code("kept").text == "5")


async def test_the_same_with_asyncio(asandbox):
    told = []
    await asandbox.run_code("x = 20", envs={"ONE": "1"})
    done = await asandbox.run_code("import os\nprint(x); os.getenv('ONE')",
                                   on_stdout=lambda m: told.append(m.line))
    assert told == ["20\n"] and done.text is None and done.error is None
    context = await asandbox.create_code_context(language="bash")
    assert context.language == "bash"
    done = await asandbox.run_code("echo $((6 * 7))", context=context)
    assert done.logs.stdout == ["42\n"]
