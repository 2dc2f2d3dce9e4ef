"""`paddock agent`: the program of the Python package, in place of this one."""

import subprocess

from paddock_testing import run as paddock


def call(folder, *arguments):
    return subprocess.run([paddock.PADDOCK, "agent", *arguments], env={"PATH": str(folder)}, capture_output=True,
                          text=True, timeout=paddock.seconds(30), check=False)


def test_it_is_executed_with_its_arguments_and_status(tmp_path):
    program = tmp_path / "paddock-agent"
    program.write_text('#!/bin/sh\nprintf "<%s>" "$@"\nexit 7\n')
    program.chmod(0o755)
    done = call(tmp_path, "reset", "--agent", "a b", "")
    assert done.returncode == 7 and done.stdout == "<reset><--agent><a b><>", done


def test_without_it_the_error_says_how_to_get_it(tmp_path):
    done = call(tmp_path, "list")
    assert done.returncode == 125 and "paddock-agent is not in PATH" in done.stderr and "pip install" in done.stderr, done


def test_one_that_cannot_be_executed_is_named(tmp_path):
    (tmp_path / "paddock-agent").write_text("")
    done = call(tmp_path, "list")
    assert done.returncode != 0 and "paddock-agent" in done.stderr, done
