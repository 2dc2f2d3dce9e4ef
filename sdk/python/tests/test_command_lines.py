"""Claude Code and Codex with `paddock mcp`, set up as docs/agents.md says: the real command lines, a scripted model
and a real server."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from conftest import TOP
from paddock_testing.model import Model
from paddock_testing.run import NIGHTLY, seconds
from paddock_testing.server import Server

pytestmark = pytest.mark.skipif(not NIGHTLY, reason="at night: both together are 600 MB")
COMMAND = {"command": "echo $((6 * 7)) > n.txt; cat n.txt; hostname"}


@pytest.fixture(scope="module")
def programs():
    made = subprocess.run(["sdk/python/tests/install-agents"], cwd=TOP, capture_output=True, text=True,
                          timeout=seconds(1200), check=False)
    if made.returncode == 77:
        pytest.skip(made.stdout.rstrip().splitlines()[-1].removeprefix("install: "))
    assert made.returncode == 0, made.stdout + made.stderr
    return f"{TOP}/build:{TOP}/build-python/agents/bin:{os.environ['PATH']}"


def blocks():
    """What the page tells to type or write, by its first word."""
    text = (TOP / "docs/agents.md").read_text().split("## Claude Code and Codex")[1].split("\n## ")[0]
    found = re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.M)
    return [re.sub(r"^    ", "", block, flags=re.M).strip() for block in found]


def run(home, programs, server, line, **more):
    env = {"HOME": str(home), "PATH": programs, "PADDOCK_URL": server.url, "PADDOCK_API_KEY": server.key,
           "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", **more}
    return subprocess.run(["bash", "-c", line], env=env, cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=seconds(180), check=False)


def in_a_sandbox(server, said):
    """The command has run there, and not here."""
    assert "42" in said and "sandbox" in said, said
    [box] = server.client().get("/v1/sandboxes").json()["sandboxes"]
    assert box["thread_id"] == "my-project", box


def test_claude_code(programs, tmp_path):
    [add, start] = blocks()[0].splitlines()
    tools = []

    def first(body):
        tools.extend(tool["name"] for tool in body["tools"])
        return {"calls": [("mcp__paddock__run_command", COMMAND)]}

    def told(body):
        in_a_sandbox(server, str(body["messages"][-1]["content"]))
        return {"text": "The answer is 42."}

    with Server() as server, Model([first, told]) as model:
        keys = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": model.url}
        done = run(tmp_path, programs, server, f"{add} && claude mcp list", **keys)
        assert done.returncode == 0 and "Connected" in done.stdout, done.stdout + done.stderr
        done = run(tmp_path, programs, server, f"{start} -p multiply", **keys)
        assert done.returncode == 0 and "The answer is 42." in done.stdout, done.stdout + done.stderr
        assert "mcp__paddock__write_file" in tools and all(name.startswith("mcp__paddock__") for name in tools), tools

        # Without what the page says it would have a shell of its own.
        tools.clear()
        model.steps += [lambda body: tools.extend(tool["name"] for tool in body["tools"]) or {"text": "Well."}]
        run(tmp_path, programs, server, "claude -p well", **keys)
        assert "Bash" in tools, tools
    assert not (tmp_path / "n.txt").exists()


def test_codex(programs, tmp_path):
    declared = "declare const tools: { exec_command("
    bodies = []

    def first(body):
        bodies.append(str(body))
        return {"calls": [(("mcp__paddock", "run_command"), COMMAND)]}

    def told(body):
        in_a_sandbox(server, str(body["input"][-1]))
        return {"text": "The answer is 42."}

    [config] = [block for block in blocks() if "mcp_servers" in block]
    with Server() as server, Model([first, told]) as model:
        (tmp_path / ".codex").mkdir()
        (tmp_path / ".codex" / "config.toml").write_text(
            f'model_provider = "scripted"\n{config}\n[model_providers.scripted]\nname = "scripted"\n'
            f'base_url = "{model.url}/v1"\nenv_key = "OPENAI_API_KEY"\nwire_api = "responses"\n')
        done = run(tmp_path, programs, server, "codex mcp list", OPENAI_API_KEY="k")
        assert done.returncode == 0 and re.search("paddock .* enabled", done.stdout), done.stdout + done.stderr
        done = run(tmp_path, programs, server, "codex exec --skip-git-repo-check multiply", OPENAI_API_KEY="k")
        assert done.returncode == 0 and "The answer is 42." in done.stdout, done.stdout + done.stderr
        assert declared not in bodies[0]

        # Without what the page says it would have a shell of its own.
        model.steps += [lambda body: bodies.append(str(body)) or {"text": "Well."}]
        run(tmp_path, programs, server, "codex exec --skip-git-repo-check -c features.shell_tool=true well", OPENAI_API_KEY="k")
        assert declared in bodies[1]
    assert not (tmp_path / "n.txt").exists()


def write_files_of(template, home):
    """What the file of a template writes, as the server does."""
    text = (TOP / "templates" / f"{template}.template").read_text()
    for path, content in re.findall(r"^file = ~/(.*)\n((?:    .*\n|\n(?=    ))*)", text, re.M):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(re.sub(r"^    ", "", content, flags=re.M))


def test_the_files_of_the_template_claude(programs, tmp_path):
    """In a sandbox of that template it need not ask before it runs commands."""
    write_files_of("claude", tmp_path)
    steps = [{"calls": [("Bash", {"command": "echo made > made.txt", "description": "makes a file"})]}, {"text": "It is made."}]
    with Server() as server, Model(steps) as model:
        done = run(tmp_path, programs, server, "claude -p make", ANTHROPIC_API_KEY="k", ANTHROPIC_BASE_URL=model.url)
    assert done.returncode == 0 and "It is made." in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "made.txt").read_text() == "made\n"


def test_the_files_of_the_template_codex(programs, tmp_path):
    write_files_of("codex", tmp_path)
    config = tmp_path / ".codex" / "config.toml"
    with Server() as server, Model([{"text": "Well."}]) as model:
        config.write_text(config.read_text().replace("https://api.openai.com", model.url))
        done = run(tmp_path, programs, server, "codex exec --skip-git-repo-check well", OPENAI_API_KEY="k")
        assert done.returncode == 0 and "Well." in done.stdout, done.stdout + done.stderr
        assert "sandbox: danger-full-access" in done.stderr and "approval: never" in done.stderr, done.stderr
        assert model.headers[0]["authorization"] == "Bearer k"


@pytest.fixture
def readable():
    """A directory that the server's user can enter, as that of pytest is not."""
    with tempfile.TemporaryDirectory(prefix="paddock-templates-", dir=os.environ.get("PADDOCK_TEST_DIR", "/var/tmp")) as made:
        os.chmod(made, 0o755)
        yield Path(made)


def native(name):
    """The program itself, without what starts it."""
    found = [path for path in (TOP / "build-python/agents/node_modules").rglob(name)
             if path.is_file() and path.stat().st_size > 20 << 20 and "-musl" not in path.parent.name]
    return found[0]


@pytest.mark.parametrize(("template", "secret", "variable", "line"), [
    ("claude", "anthropic", "ANTHROPIC_API_KEY", "claude -p make"),
    ("codex", "openai", "OPENAI_API_KEY", "codex exec --skip-git-repo-check make")])
def test_in_a_sandbox_of_its_template(programs, readable, template, secret, variable, line):
    """The program works in it, asks nothing, and never has the key: what it would send is what stands for it. The file is that of
    the sources, with a model that is allowed and asked in place of the vendor's."""
    text = (TOP / "templates" / f"{template}.template").read_text()
    text = text.replace("https://api.openai.com/v1", "http://model.example/v1")
    (readable / f"{template}.template").write_text(f"{text}allow = model.example\nenv = ANTHROPIC_BASE_URL=http://model.example\n")
    program = native(template)
    steps = [{"calls": [("Bash", {"command": "echo made by $(hostname) > made.txt", "description": "makes a file"})]}] if template == "claude" else []
    with Model([*steps, {"text": "It is made."}]) as model, Server({
            "template_dir": str(readable), "egress": "list", "egress_allow": "model.example,api.anthropic.com,api.openai.com",
            "egress_hosts": f"model.example=127.0.0.1:{model.url.rsplit(':', 1)[1]}"}) as server:
        api = server.client()
        large = {"disk_bytes": 2 << 30, "memory_bytes": 2 << 30}
        assert api.put(f"/v1/secrets/{secret}", json={"value": f"the-real-key-of-{secret}"}).status < 300
        first = api.post("/v1/sandboxes", json={"template": "base", "limits": large}).json()["id"]
        sent = api.put(f"/v1/sandboxes/{first}/files?path=/home/user/.local/bin/{template}&mode=0755&mkdirs=true", data=program.read_bytes(),
                       headers={"Content-Type": "application/octet-stream"})
        assert sent.status == 201, sent
        kept = api.post(f"/v1/sandboxes/{first}/snapshots", json={}).json()["id"]
        made = api.post("/v1/sandboxes", json={"template": template, "snapshot": kept, "limits": large})
        assert made.status == 201, made

        def run_there(command):
            return api.post(f"/v1/sandboxes/{made.json()['id']}/exec", json={"command": command, "timeout_s": 50}).json()

        done = run_there(line)
        environment = run_there(f"echo ${variable}; cat made.txt")["stdout"]
        api.delete(f"/v1/snapshots/{kept}")
    assert done["exit_code"] == 0 and "It is made." in done["stdout"], f"{done['stdout']}\n{done['stderr']}"
    assert environment.startswith("pdk-secret-") and "the-real-key" not in f"{environment} {model.headers}"
    assert ("made by " in environment) == bool(steps)
