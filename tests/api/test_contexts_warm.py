"""Sandboxes that wait with an interpreter whose libraries are imported: contexts are copies of it."""

import pytest

from helpers import metric
from paddock_testing.run import wait_for
from paddock_testing.server import Server
from test_contexts import Contexts

# Modules that no driver needs, so that they are there only if they were imported before. The last one does not exist.
WARM = {"requests_per_s": 0, "creates_per_s": 0, "contexts_warm_pool": 1, "contexts_warm": "decimal,fractions,no_such_module"}
IS_WARM = "import sys; 'fractions' in sys.modules"


@pytest.fixture(scope="module")
def warm():
    with Server(WARM) as server:
        yield server


def take(server, **body):
    """A sandbox from the pool for code."""
    api = server.client()
    wait_for(lambda: metric(api, "paddock_pool_code_ready") >= 1, 60, "a sandbox with an interpreter")
    made = api.post("/v1/sandboxes", json={"template": "code-interpreter-v1", **body})
    assert made.status == 201 and made.json()["from_pool"], made
    return Contexts(api, made.json()["id"])


def text(contexts, code, context="python", **more):
    found = contexts.run(code, context, **more)
    assert found["error"] is None, found
    return found["results"][0]["text"]


def test_contexts_have_the_libraries(warm):
    contexts = take(warm)
    found = contexts.run(IS_WARM)
    assert found["results"][0]["text"] == "True" and found["execution_count"] == 1 and found["state"] == "kept"
    other = contexts.create()["id"]
    assert text(contexts, IS_WARM, other) == "True"
    assert text(contexts, "import os; os.getpid()") != text(contexts, "import os; os.getpid()", other)
    assert "no_such_module" in warm.log()


def test_a_restart_is_a_copy_again_and_has_no_variables(warm):
    contexts = take(warm)
    contexts.run("kept = 1")
    assert contexts.api.post(f"{contexts.base}/python/restart").status in (200, 204)
    found = contexts.run("import sys; 'kept' in globals(), 'fractions' in sys.modules")
    assert found["results"][0]["text"] == "(False, True)" and found["execution_count"] == 1


def test_a_context_is_what_a_new_one_would_be(warm):
    """Its environment, directory and random numbers."""
    body = {"env": {"OF_THE_SANDBOX": "a b", "TZ": "Etc/GMT-5"}}
    contexts, cold = take(warm, **body), warm.client()
    plain = cold.post("/v1/sandboxes", json={"template": "base", **body}).json()["id"]
    cold = Contexts(cold, plain)
    code = ("import os, time, random, sys; sorted((k, v) for k, v in os.environ.items()), os.getcwd(), time.tzname, sys.argv, "
            "sys.path, os.getpgrp() == os.getpid(), __name__, os.getuid()")
    made = {"cwd": "/tmp", "env": {"OF_THE_CONTEXT": "ü"}}
    found = []
    for each in (contexts, cold):
        context = each.create(**made)["id"]
        found.append((text(each, code, context), text(each, code)))
    assert found[0] == found[1]
    draw = "import random; random.random()"
    assert text(contexts, draw) != text(contexts, draw, contexts.create()["id"])


@pytest.mark.parametrize("body", [{"env": {"PYTHONHASHSEED": "7"}}, {"env": {"LANG": "C"}}])
def test_variables_that_steer_an_interpreter_start_a_new_one(warm, body):
    contexts = take(warm)
    made = contexts.create(**body)["id"]
    assert text(contexts, IS_WARM, made) == "False"
    assert text(contexts, IS_WARM) == "True"


def test_a_directory_that_cannot_be_entered_is_told_as_without(warm):
    contexts = take(warm)
    answer = contexts.api.post(contexts.base, json={"cwd": "/no/such"})
    assert answer.status == 400 and "/no/such" in answer.json()["error"]["message"], answer
    assert text(contexts, IS_WARM) == "True"


def test_libraries_that_were_installed_since_are_seen(warm):
    contexts = take(warm)
    site = "python3 -c 'import site; print(site.getusersitepackages())'"
    done = contexts.box.exec(f"mkdir -p $({site}) && echo 'new = 1' > $({site})/fractions_of_mine.py")
    assert done["exit_code"] == 0, done
    assert text(contexts, "import fractions_of_mine, sys; fractions_of_mine.new, 'fractions' in sys.modules") == "(1, False)"


def test_the_interpreter_that_waits_is_in_no_list(warm):
    contexts = take(warm)
    base = contexts.base.removesuffix("/contexts")
    assert contexts.api.get(f"{base}/processes").json()["processes"] == []
    assert contexts.api.get(base).json()["processes"] == 0
    listed = contexts.api.get(contexts.base).json()["contexts"]
    assert {context["state"] for context in listed} == {"cold"}


def test_an_interpreter_that_was_killed_is_not_missed(warm):
    contexts = take(warm)
    assert text(contexts, "import os; " + IS_WARM) == "True"
    assert text(contexts, "parent = os.getppid(); parent > 1 and os.kill(parent, 9) is None") == "True"
    wait_for(lambda: text(contexts, "os.getppid() != parent") == "True", 20, "its end")
    assert text(contexts, IS_WARM, contexts.create()["id"]) == "False"
    assert text(contexts, IS_WARM) == "True"


def test_memory_that_is_used_up_ends_the_context_and_not_what_it_was_copied_from(warm):
    contexts = take(warm)
    found = contexts.run("import mmap\nm = mmap.mmap(-1, 1 << 30)\nfor i in range(0, 1 << 30, 4096): m[i] = 1")
    assert found["state"] == "restarted" and found["reason"] == "oom", found
    assert text(contexts, IS_WARM) == "True"


def test_other_templates_get_none(warm):
    api = warm.client()
    wait_for(lambda: metric(api, "paddock_pool_code_ready") >= 1, 60, "a sandbox with an interpreter")
    made = api.post("/v1/sandboxes", json={"template": "base"}).json()["id"]
    assert text(Contexts(api, made), IS_WARM) == "False"
    assert metric(api, "paddock_pool_code_ready") >= 1


def test_it_outlives_the_server():
    with Server(WARM) as server:
        contexts = take(server)
        assert text(contexts, "x = 5; " + IS_WARM) == "True"
        server.kill()
        server.start()
        contexts.api = server.client()
        assert text(contexts, "x") == "5"
        assert text(contexts, IS_WARM, contexts.create()["id"]) == "True"
        base = contexts.base.removesuffix("/contexts")
        assert contexts.api.get(base).json()["processes"] == 2
