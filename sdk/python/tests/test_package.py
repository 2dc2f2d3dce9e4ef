"""The package itself: types, docstrings, what it needs."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from paddock_testing.run import seconds

import paddock

PACKAGE = Path(paddock.__file__).parent


def test_it_is_typed_and_has_a_version():
    assert (PACKAGE / "py.typed").exists() and paddock.__version__ == "0.1.0"


def test_everything_that_is_promised_is_there():
    assert len(set(paddock.__all__)) == len(paddock.__all__)
    for name in paddock.__all__:
        assert hasattr(paddock, name), name


def test_the_syntax_is_that_of_python_39():
    for path in PACKAGE.rglob("*.py"):
        ast.parse(path.read_text(), str(path), feature_version=(3, 9))


@pytest.mark.skipif(sys.version_info < (3, 10), reason="the list of modules is of Python 3.10")
def test_nothing_but_the_standard_library_is_loaded():
    code = ("import sys, paddock\n"
            "names = {m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)\n"
            "print(sorted(n for n in names if not n.startswith('_') and n != 'paddock'))")
    out = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True,
                         timeout=seconds(60), check=True).stdout
    loaded = set(ast.literal_eval(out))
    assert loaded <= {"sitecustomize", "usercustomize", "distutils-precedence"}, loaded


def test_everything_public_has_a_docstring():
    missing = []
    for name in paddock.__all__:
        thing = getattr(paddock, name)
        if isinstance(thing, tuple):
            continue
        if not inspect.getdoc(thing):
            missing.append(name)
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if member.startswith("_") or not (
                        callable(value) or isinstance(value, (property, classmethod))):
                    continue
                if not inspect.getdoc(value):
                    missing.append(f"{name}.{member}")
    assert not missing
