"""Forks of contexts: copies of all variables, and executions that are taken back."""

import pytest

from helpers import Later
from paddock_testing.run import wait_for
from paddock_testing.server import check_error
from test_contexts import Contexts


@pytest.fixture
def contexts(api, sandbox):
    return Contexts(api, sandbox)


def value(contexts, code, context="python"):
    found = contexts.run(code, context)
    assert found["error"] is None, found
    return found["results"][0]["text"]


def fork(contexts, context="python", **body):
    answer = contexts.api.post(f"{contexts.base}/{context}/fork", json=body)
    assert answer.status == 201, answer
    return answer.json()


def test_a_fork_has_all_variables_and_shares_none(contexts):
    contexts.run("x = [1, 2]; import os")
    copy = fork(contexts, name="copy")
    assert copy["name"] == "copy" and copy["language"] == "python" and copy["execution_count"] == 1
    contexts.run("x.append(3)")
    assert value(contexts, "x", copy["id"]) == "[1, 2]"
    contexts.run("x.append('copy')", copy["id"])
    assert value(contexts, "x") == "[1, 2, 3]"
    assert value(contexts, "os.getpid()") != value(contexts, "os.getpid()", copy["id"])
    again = contexts.create(fork=copy["id"])
    assert value(contexts, "x", again["id"]) == "[1, 2, 'copy']"


def test_text_and_errors_of_a_fork_are_its_own(contexts):
    contexts.run("x = 1")
    copy = fork(contexts)["id"]
    found = contexts.run("import sys; print('out'); print('err', file=sys.stderr); 1/0", copy)
    assert found["stdout"] == "out\n" and found["stderr"] == "err\n"
    assert found["error"]["name"] == "ZeroDivisionError"
    assert contexts.run("2")["stdout"] == ""


def test_a_fork_outlives_what_it_was_made_from(contexts):
    made = contexts.create()["id"]
    contexts.run("x = 7", made)
    copy = fork(contexts, made)["id"]
    assert contexts.api.delete(f"{contexts.base}/{made}").status == 204
    wait_for(lambda: made not in [c["id"] for c in contexts.api.get(contexts.base).json()["contexts"]], 20, "gone")
    assert value(contexts, "x", copy) == "7"


def test_a_fork_outlives_an_end_right_behind_it(contexts):
    """It may still be on its way out of the group that is ended."""
    for end in (lambda c: contexts.api.delete(f"{contexts.base}/{c}"),
                lambda c: contexts.api.post(f"{contexts.base}/{c}/restart"),
                lambda c: contexts.api.post(f"{contexts.base}/{c}/execute", json={"code": "import os; os._exit(0)"})):
        for _ in range(3):
            made = contexts.create()["id"]
            contexts.run("x = 7", made)
            copy = fork(contexts, made)["id"]
            end(made)
            found = contexts.run("x", copy)
            assert found["state"] == "kept" and found["results"][0]["text"] == "7", found
            for name in (made, copy):
                contexts.api.delete(f"{contexts.base}/{name}")


def test_undo_right_behind_a_cell(contexts):
    contexts.run("x = 1")
    for _ in range(5):
        contexts.run("x = 2", keep_before=True)
        assert contexts.api.post(f"{contexts.base}/python/undo").status == 200
        assert value(contexts, "x") == "1"


def test_the_end_of_a_fork_is_told(contexts):
    contexts.run("x = 7")
    copy = fork(contexts)["id"]
    dead = contexts.run("import os; os._exit(5)", copy)
    assert dead["state"] == "restarted" and "status 5" in dead["error"]["value"]
    assert contexts.run("'x' in dir()", copy)["results"][0]["text"] == "False"
    assert value(contexts, "x") == "7"


def test_a_fork_is_interrupted(contexts):
    contexts.run("x = 7")
    copy = fork(contexts)["id"]
    late = contexts.run("import time; time.sleep(1000)", copy, timeout_s=0.5)
    assert late["error"]["name"] == "KeyboardInterrupt" and late["state"] == "kept"
    killed = contexts.run("import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
                          "while True: time.sleep(1)", copy, timeout_s=0.5)
    assert killed["state"] == "restarted" and killed["reason"] == "timeout"
    assert value(contexts, "x") == "7"


def test_a_busy_context_is_not_forked(contexts):
    contexts.run("import os, time")
    later = Later(lambda: contexts.run("while not os.path.exists('go'): time.sleep(0.02)"))
    wait_for(contexts.is_busy, 20, "it runs")
    check_error(contexts.api.post(f"{contexts.base}/python/fork"), 409, "conflict")
    contexts.box.out("touch go")
    later.get()
    fork(contexts)


def test_threads_are_not_lost_in_silence(contexts):
    contexts.run("import threading; e = threading.Event(); threading.Thread(target=e.wait).start()")
    check_error(contexts.api.post(f"{contexts.base}/python/fork"), 409, "conflict")
    copy = fork(contexts, force=True)["id"]
    assert value(contexts, "threading.active_count()", copy) == "1"
    contexts.run("e.set()")


def test_what_cannot_be_forked(contexts):
    check_error(contexts.api.post(f"{contexts.base}/python/fork"), 409, "conflict")  # it is cold
    check_error(contexts.api.post(contexts.base, json={"fork": "nosuch"}), 404, "not_found")
    check_error(contexts.api.post(contexts.base, json={"fork": "python", "cwd": "/tmp"}), 400, "invalid")


def test_undo(contexts):
    contexts.run("x = [1]")
    contexts.run("x.append(2); y = 1", keep_before=True)
    contexts.run("x.append(3)", keep_before=True)
    contexts.run("x.append(4)")
    undo = contexts.api.post(f"{contexts.base}/python/undo")
    assert undo.status == 200 and undo.json()["execution_count"] == 2, undo
    assert value(contexts, "x") == "[1, 2]"
    assert contexts.api.post(f"{contexts.base}/python/undo").status == 200
    found = contexts.run("x, 'y' in dir()")
    assert found["results"][0]["text"] == "([1], False)" and found["state"] == "kept"
    check_error(contexts.api.post(f"{contexts.base}/python/undo"), 409, "conflict")


def test_only_so_many_are_kept(contexts):
    contexts.run("n = 0")
    for _ in range(6):
        contexts.run("n += 1", keep_before=True)
    for left in (5, 4, 3, 2):
        assert contexts.api.post(f"{contexts.base}/python/undo").status == 200
        assert value(contexts, "n") == str(left)
    check_error(contexts.api.post(f"{contexts.base}/python/undo"), 409, "conflict")


def test_nothing_is_left_of_forks(contexts):
    contexts.run("x = 1")
    for _ in range(3):
        copy = fork(contexts)["id"]
        contexts.run("x", copy, keep_before=True)
        assert contexts.api.delete(f"{contexts.base}/{copy}").status == 204
    contexts.api.delete(f"{contexts.base}/python")
    wait_for(lambda: contexts.box.processes() == [], 20, "no process is left")
    wait_for(lambda: not contexts.box.is_there("python3"), 20, "none in the sandbox either")
