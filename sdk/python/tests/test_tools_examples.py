"""The programs in examples/ run as a user runs them, and print what they should."""

import os
import re
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest
from paddock_testing.run import seconds

import paddock

FOLDER = Path(__file__).resolve().parents[3] / "examples"

# What each needs beyond the package, and what it must print.
EXPECTED = {
    "client.py": ([], """\
session is created
exit code 0 output 84
files: /workspace/numbers.txt, /workspace/out, /workspace/out/copy.txt
copy has 4 bytes
"""),
    "sandbox.py": ([], """\
hello from the sandbox
Serving HTTP on 0.0.0.0
fetched: True
run_code: 42
status 1 - cat: nothing.txt: No such file or directory
"""),
    "async_sandbox.py": ([], "squares: [0, 1, 4, 9]\n"),
    "coordinator.py": ([], """\
success True output 7 rows, 772.6 in all
success False error IndexError: list index out of range
"""),
    "contexts.py": ([], """\
rows: 12
the average: off by 27.17
a line: off by 1.19
kept: a line; month 13 will have 159 visitors
"""),
    "langchain_tools.py": (["langchain_core"], """\
26 tools
Hello!
Error: '/workspace/nothing.txt': no such file or directory in the sandbox (check the path with file_list)
coder: 26 tools
validator: 11 tools
reporter: 9 tools
tracker: 7 tools
"""),
    "deep_agent.py": (["deepagents"], """\
[2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
ai: These are the primes below 30.
"""),
    "openai_agents.py": (["agents"], "Hello, Ann\nout.txt: b'Hello, Ann\\n'\n"),
    "mcp_client.py": (["httpx2"], "13 tools\n2 a.txt\n"),
    "curl.sh": ([], "a\nb\n\n4\n"),
    "csv_agent.py": (["langchain_core"], """\
first turn
  file_read -> 2025-03-14,south,hay,30,8.00
  python_exec -> ValueError: invalid literal for int() with base 10: ''
  python_exec -> 7 rows are complete
I have put the 7 complete rows into clean.csv.
second turn
  file_search -> /workspace/clean.csv
  file_write -> wrote /workspace/report.py, now 322 bytes
  shell_exec -> total 772.6
The north has the highest revenue.
best: north
north 425.00
south 309.20
west 38.40
"""),
}

# Those whose output also has words of the library, which another version may change, or of what the host has.
AMONG_OTHERS = {"contexts.py", "deep_agent.py", "mcp_client.py"}


def test_every_example_is_tested_and_told_of():
    there = {p.name for p in FOLDER.iterdir() if p.suffix in (".py", ".sh")}
    assert there == set(EXPECTED)
    told = (FOLDER / "README.md").read_text()
    for name in there:
        assert f"| `{name}` |" in told, name


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example(name, server):
    needs, expected = EXPECTED[name]
    for module in needs:
        if util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    command = ["bash"] if name.endswith(".sh") else [sys.executable]
    paths = [str(FOLDER.parent / "sdk/python/src"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PADDOCK_URL": server.url, "PADDOCK_API_KEY": server.key,
           "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    client = paddock.SandboxClient(mode="remote", server_url=server.url, api_key=server.key)
    before = {s.id for s in client.list_sessions()}
    done = subprocess.run([*command, str(FOLDER / name)], env=env, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=seconds(60), cwd="/")
    assert done.returncode == 0, done.stderr
    left = [s for s in client.list_sessions() if s.id not in before and s.state == "running"]
    assert not left, "it has left sandboxes behind"
    # At provider local the workspace is a directory of the machine.
    said = re.sub("/var/lib/paddock-local/[0-9a-f]+/[a-z0-9]+", "/workspace", done.stdout)
    if name not in AMONG_OTHERS:
        assert said == expected, done.stderr
        return
    for line in expected.splitlines():
        assert line in said, done
