"""The examples of docs/python.md are Python, and use what there is."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import paddock

PAGE = Path(__file__).resolve().parents[3] / "docs" / "python.md"


def examples():
    blocks = re.findall(r"(?:^    .*\n|^\n)+", PAGE.read_text(), re.M)
    return [b for b in blocks if "from paddock import" in b]


def test_there_are_examples_of_every_interface():
    text = "".join(examples())
    for name in ("Sandbox", "AsyncSandbox", "SandboxClient", "get_sandbox_coordinator",
                 "create_sandbox", "PaddockError"):
        assert re.search(rf"from paddock import .*\b{name}\b", text), name


@pytest.mark.parametrize("number", range(len(examples())))
def test_an_example_can_be_read(number):
    source = inspect.cleandoc("\n" + examples()[number])
    tree = compile(source, "example", "exec",
                   ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imported.update({a.name: getattr(paddock, a.name) for a in node.names})
    # Methods that are called on what was imported are there.
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) \
                and node.value.id in imported:
            assert hasattr(imported[node.value.id], node.attr), node.attr


def test_names_that_the_page_speaks_of_are_there():
    named = set(re.findall(r"`((?:get|create|reset)_\w+)(?:\(\))?`", PAGE.read_text()))
    for name in named - {"get_host"}:
        assert hasattr(paddock, name) or hasattr(paddock.Sandbox, name), name
