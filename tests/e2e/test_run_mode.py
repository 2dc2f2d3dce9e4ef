"""`paddock run --mode`: which provider a command gets, and why."""

import json
import os

import pytest

from .helpers import call, check_one_line


def told(*words, cwd):
    result = call("run", "--json", *words, cwd=cwd)
    assert result.returncode == 0, result
    answer = json.loads(result.stdout)
    return answer["mode"], answer["provider"], answer["reason"], answer["stdout"]


def test_local_and_sandbox(tmp_path):
    (tmp_path / "here").write_text("")
    assert told("--mode", "local", "ls", cwd=tmp_path) == ("local", "local", "mode local was asked for", "here\n")
    assert told("--mode", "sandbox", "ls", cwd=tmp_path) == ("sandbox", "jail", "mode sandbox was asked for", "")


@pytest.mark.parametrize("words, provider, reason", [
    (["ls"], "local", "read: "),
    (["touch", "new"], "local", "write: "),
    (["cat", "/etc/hostname"], "jail", "unknown: "),
    (["python3", "-c", "pass"], "jail", "unknown: "),
    (["--env", "PATH=/bin:/usr/bin", "ls"], "jail", "unknown: 'PATH="),
    (["--memory", "64M", "ls"], "jail", "only a jail has --memory"),
    (["--min-isolation", "basic", "ls"], "jail", "only a jail has --min-isolation"),
])
def test_auto_judges_the_command(tmp_path, words, provider, reason):
    (tmp_path / "here").write_text("")
    mode, took, why, _ = told("--mode", "auto", *words, cwd=tmp_path)
    assert (mode, took) == ("auto", provider) and why.startswith(reason), why
    assert os.listdir(tmp_path) == ["here"] or took == "local"


def test_without_a_mode_nothing_is_told():
    assert "mode" not in json.loads(call("run", "--json", "true").stdout)


@pytest.mark.parametrize("words, says", [
    (["--mode", "host", "ls"], "'host' is not one of: local, sandbox, auto"),
    (["--mode", "", "ls"], "local, sandbox, auto"),
    (["--mode", "auto", "--provider", "jail", "ls"], "give one of them"),
    (["--mode", "local", "--memory", "64M", "ls"], "--memory"),
])
def test_wrong_words(words, says):
    check_one_line(call("run", *words), 2, says)
