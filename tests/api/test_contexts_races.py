"""Calls that change the same context in the same moment: none is lost half-way, and nothing is left that nobody knows."""

import itertools
import random
import time

import pytest

from helpers import Later
from paddock_testing.run import rounds, wait_for
from test_contexts import Contexts


@pytest.fixture
def contexts(api, sandbox):
    return Contexts(api, sandbox)


def call(contexts, name, context):
    if name == "delete":
        return contexts.api.delete(f"{contexts.base}/{context}")
    if name == "keep":
        return contexts.ask("x += 1", context, keep_before=True)
    return contexts.api.post(f"{contexts.base}/{context}/{name}")


ALLOWED = {200, 201, 204, 404, 409}


@pytest.mark.parametrize("first, second", [
    ("undo", "restart"), ("undo", "delete"), ("keep", "restart"), ("keep", "delete"), ("fork", "restart"), ("fork", "delete"),
    ("restart", "restart"), ("restart", "delete"), ("undo", "undo"), ("fork", "interrupt")])
def test_two_at_once(contexts, first, second):
    """Whichever was first: there is an answer to both, each context works, and each interpreter has a name."""
    dice = random.Random(1)
    contexts.run("1")
    for number in range(rounds(3, 60)):
        made = contexts.create()["id"]
        contexts.run("x = 1", made)
        for _ in range(2):
            contexts.run("x += 1", made, keep_before=True)

        one = Later(lambda made=made: call(contexts, first, made))
        time.sleep(max(0.0, dice.random() - 0.5) * 0.02)
        two = Later(lambda made=made: call(contexts, second, made))
        answers = one.get().status, two.get().status
        assert set(answers) <= ALLOWED, (number, answers)

        left = [c["id"] for c in contexts.api.get(contexts.base).json()["contexts"] if c["id"] not in ("python", "javascript")]
        for name in left:
            assert contexts.run("6 * 7", name)["results"][0]["text"] == "42"
            assert contexts.api.delete(f"{contexts.base}/{name}").status == 204
        wait_for(lambda: len(contexts.box.processes()) == 1, 20, f"only the interpreter of the first one is left, {number}")
    assert contexts.run("1")["results"][0]["text"] == "1"


def test_no_more_than_so_many_at_once(contexts):
    """Whoever asks at once: 16 are all that there may be."""
    first = [contexts.create()["id"] for _ in range(4)]
    calls = [lambda: contexts.api.post(contexts.base, json={})] * 16
    calls += [lambda name=name: contexts.api.post(f"{contexts.base}/{name}/fork") for name in itertools.islice(itertools.cycle(first), 8)]
    calls += [lambda: contexts.ask("1")]
    asked = [Later(each) for each in calls]
    answers = [each.get(120).status for each in asked]
    assert set(answers) <= {200, 201, 409} and answers.count(201) <= 12, answers
    running = [c for c in contexts.api.get(contexts.base).json()["contexts"] if c["pid"]]
    assert len(running) <= 16, running
    assert len(contexts.box.processes()) == len(running)
