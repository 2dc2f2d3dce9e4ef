"""`dcode --sandbox paddock`: the real command line of deepagents, a scripted model and a real server."""

import subprocess

import pytest
from conftest import TOP
from paddock_testing.model import Model
from paddock_testing.run import NIGHTLY, seconds
from paddock_testing.server import Server

pytestmark = pytest.mark.skipif(not NIGHTLY, reason="at night: it needs 139 packages, and takes a minute")


@pytest.fixture(scope="module")
def dcode():
    made = subprocess.run(["sdk/python/tests/install-dcode"], cwd=TOP, capture_output=True, text=True,
                          timeout=seconds(1200), check=False)
    if made.returncode == 77:
        pytest.skip(made.stdout.rstrip().splitlines()[-1].removeprefix("install: "))
    assert made.returncode == 0, made.stdout + made.stderr
    return TOP / "build-python" / "dcode" / "bin" / "dcode"


def run(dcode, home, model, server, *arguments):
    # Offline: it would bring a ripgrep along otherwise.
    env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8", "ANTHROPIC_API_KEY": "k",
           "ANTHROPIC_BASE_URL": model.url, "PADDOCK_URL": server.url, "PADDOCK_API_KEY": server.key,
           "DEEPAGENTS_CODE_OFFLINE": "1", "LANGSMITH_TRACING": "false"}
    return subprocess.run(
        [str(dcode), "--sandbox", "paddock", "-M", "anthropic:claude-opus-4-6", "--no-mcp", *arguments],
        env=env, cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=seconds(600), check=False)


def results(body):
    return [part for message in body["messages"] if isinstance(message["content"], list)
            for part in message["content"] if part["type"] == "tool_result"]


def test_it_works_in_a_sandbox_of_ours(dcode, tmp_path):
    def told(body):
        assert "42\n" in results(body)[-1]["content"], body["messages"]
        return {"text": "The answer is 42."}

    steps = [{"calls": [("execute", {"command": "echo $((6 * 7)) > n.txt; cat n.txt"})]}, told]
    with Server() as server, Model(steps) as model:
        done = run(dcode, tmp_path, model, server, "-n", "multiply")
        assert done.returncode == 0 and "The answer is 42." in done.stdout, done.stdout + done.stderr
        # It is still there, says who made it, and ends when nobody uses it.
        [box] = server.client().get("/v1/sandboxes").json()["sandboxes"]
        assert box["metadata"]["made_by"] == "dcode" and box["idle_timeout_s"] == 900

        model.steps += [{"calls": [("execute", {"command": "cat /workspace/n.txt"})]}, told]
        done = run(dcode, tmp_path, model, server, "--sandbox-id", box["id"], "-n", "again")
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(server.client().get("/v1/sandboxes").json()["sandboxes"]) == 1
    assert not (tmp_path / "n.txt").exists()
