"""The tool run_code of MCP: code whose variables stay, with pictures."""

import pytest

from helpers import Later
from paddock_testing.mcp import Http, result_of
from paddock_testing.run import seconds, wait_for

# A cell that shows one picture.
SHOW = "class P:\n    def _repr_png_(self): return b'x' * {size}\n    def __repr__(self): return 'P!'\nP()"


@pytest.fixture
def mcp(server):
    with Http(server) as session:
        yield session


def text_of(answer):
    return answer.result["content"][0]["text"]


def refused(answer, *words):
    assert answer.result["isError"] is True, answer
    for word in words:
        assert word in text_of(answer), (word, answer)


def images(answer):
    return [part for part in answer.result["content"] if part["type"] == "image"]


def test_variables_stay_and_the_last_value_is_shown(mcp):
    assert text_of(mcp.call("run_code", language="python", code="x = 41")) == "[done; nothing was shown]"
    answer = mcp.call("run_code", language="python", code="print('hello')\nx + 1")
    assert text_of(answer) == "hello\n42"
    found = result_of(answer)
    assert found["stdout"] == "hello\n" and found["error"] is None and found["execution_count"] == 2
    assert (found["state"], found["reason"]) == ("kept", None)
    assert found["results"] == [{"text": "42", "extra": {}, "is_main_result": True}]


def test_an_exception_is_what_the_code_says_and_no_failure(mcp):
    answer = mcp.call("run_code", language="python",
                      code="import sys\nprint('e', file=sys.stderr)\nkept = 1\nmissing")
    found = result_of(answer)
    assert found["error"]["name"] == "NameError" and found["stderr"] == "e\n"
    assert "missing" in text_of(answer) and "variables are there" in text_of(answer)
    assert result_of(mcp.call("run_code", language="python", code="print(kept)"))["stdout"] == "1\n"


def test_a_time_out_is_a_failure_and_variables_stay(mcp):
    mcp.call("run_code", language="python", code="kept = 1")
    answer = mcp.call("run_code", language="python", code="import time\nprint('begun')\ntime.sleep(600)",
                      timeout_s=seconds(1))
    refused(answer, "begun", "timeout_s")
    assert answer.result["structuredContent"]["reason"] == "timeout"
    assert result_of(mcp.call("run_code", language="python", code="print(kept)"))["stdout"] == "1\n"


def test_an_interpreter_that_died_is_told(mcp):
    answer = mcp.call("run_code", language="python", code="import os\nos._exit(3)")
    refused(answer, "Variables are gone", "3")
    assert answer.result["structuredContent"]["state"] == "restarted"
    assert result_of(mcp.call("run_code", language="python", code="print(1)"))["stdout"] == "1\n"


def test_contexts_and_reset(mcp):
    def run(code, **more):
        return result_of(mcp.call("run_code", language="python", code=code, **more))

    run("x = 'own'", context="mine")
    run("x = 'default'")
    assert run("print(x)", context="mine")["stdout"] == "own\n"
    assert run("print(x)")["stdout"] == "default\n"
    assert run("x", context="mine", reset=True)["error"]["name"] == "NameError"
    assert run("print(x)")["stdout"] == "default\n"


def test_a_picture_is_content_of_its_own(mcp):
    answer = mcp.call("run_code", language="python", code=SHOW.format(size=3))
    assert images(answer) == [{"type": "image", "data": "eHh4", "mimeType": "image/png"}]
    assert result_of(answer)["results"] == [{"text": "P!", "extra": {}, "is_main_result": True}]


def test_a_picture_that_is_too_large_is_left_out(mcp):
    assert len(images(mcp.call("run_code", language="python", code=SHOW.format(size=1 << 20)))) == 1
    answer = mcp.call("run_code", language="python", code=SHOW.format(size=(1 << 20) + 3))
    assert images(answer) == [] and "left out" in text_of(answer)
    assert result_of(answer)["truncated"] is True


def test_a_picture_that_is_none_is_left_out(mcp):
    code = "class P:\n    def _repr_mimebundle_(self, **_): return {'image/png': '\"}]<x>', 'text/plain': 'P'}\nP()"
    answer = mcp.call("run_code", language="python", code=code)
    assert images(answer) == [] and "P" in text_of(answer)


def test_long_output_has_its_middle_left_out(mcp):
    found = result_of(mcp.call("run_code", language="python", code="print('€' * 100000)\nprint('end')"))
    out = found["stdout"]
    assert out.startswith("€€") and out.endswith("€\nend\n") and "bytes are left out" in out
    assert "\ufffd" not in out and len(out.encode()) < 40000


def test_languages(mcp):
    assert result_of(mcp.call("run_code", language="bash", code="A=1; echo out"))["stdout"] == "out\n"
    assert result_of(mcp.call("run_code", language="bash", code="echo $A"))["stdout"] == "1\n"
    refused(mcp.call("run_code", language="c++", code="x"), "language", "c++")


def test_code_that_is_cancelled_is_interrupted(mcp):
    mcp.call("run_code", language="python", code="kept = 1")
    slow = Later(lambda: mcp.call(
        "run_code", id="long", language="python",
        code="open('/tmp/begun', 'w').close()\nimport time; time.sleep(600)"))
    box = Http(mcp.server, session=mcp.session)
    wait_for(lambda: result_of(box.call("run_command", command="test -e /tmp/begun"))["exit_code"] == 0,
             30, "the code runs")
    box.notify("notifications/cancelled", {"requestId": "long"})
    again = result_of(box.call("run_code", language="python", code="print(kept)"))
    assert again["stdout"] == "1\n" and again["state"] == "kept"
    assert slow.get().result["isError"]
