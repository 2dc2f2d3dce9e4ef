"""The LangChain tools against a real server: what a model is told, what it can do, what it cannot."""

import asyncio
import re
import sys
import time
import zipfile

import pytest

pytest.importorskip("langchain_core", reason="langchain-core is not installed")

from paddock_testing.run import seconds, wait_for  # noqa: E402

import paddock  # noqa: E402
from paddock.session import SandboxSession  # noqa: E402
from paddock.tools import ROLES, TOOL_NAMES, get_all_agent_tools  # noqa: E402
from paddock.tools._kit import cut  # noqa: E402
from paddock.tools._web import page_text  # noqa: E402

NAMES = """file_read file_write file_delete file_list file_search file_replace shell_exec
shell_interactive shell_write shell_view shell_wait shell_kill git_clone git_commit git_push git_status
git_diff python_exec pip_install http_request browser_open env_get env_set process_list process_kill
port_preview""".split()


class Tools:
    def __init__(self, session):
        self.session = session
        self.tools = {tool.name: tool for tool in session.get_tools()}

    def __call__(self, name, /, **arguments):
        return self.tools[name].invoke(arguments)

    def message(self, name, /, **arguments):
        """As an agent's loop calls it: the whole message."""
        return self.tools[name].invoke(
            {"name": name, "args": arguments, "id": "1", "type": "tool_call"})


@pytest.fixture
def session(mode):
    with SandboxSession.create() as s:
        yield s


@pytest.fixture
def use_tool(session, monkeypatch):
    monkeypatch.setattr("paddock.tools._shell.START_S", seconds(1.0))
    return Tools(session)


def test_there_are_all_tools_with_schemas_and_descriptions(use_tool):
    assert sorted(use_tool.tools) == sorted(NAMES) == sorted(TOOL_NAMES)
    assert len(NAMES) >= 23
    for tool in use_tool.tools.values():
        schema = tool.tool_call_schema.model_json_schema()
        assert 30 < len(tool.description) < 600, tool.name
        for name, about in schema.get("properties", {}).items():
            assert about.get("description"), f"{tool.name}.{name} is not described"


def test_a_model_gets_them_in_its_own_format(use_tool):
    from langchain_core.utils.function_calling import convert_to_openai_tool

    for tool in use_tool.tools.values():
        function = convert_to_openai_tool(tool)["function"]
        assert function["name"] == tool.name and function["parameters"]["type"] == "object"


def test_unknown_names_are_refused(session):
    assert [t.name for t in session.get_tools(["file_read"])] == ["file_read"]
    with pytest.raises(ValueError, match="no tool 'nope'.*file_read"):
        session.get_tools(["nope"])


def test_files(use_tool):
    workspace = use_tool("shell_exec", command="pwd").strip()
    assert f"{workspace}/a/b.py" in use_tool("file_write", file="a/b.py", content="x = 1\ny = x\n")
    assert use_tool("file_read", file="a/b.py") == "x = 1\ny = x\n"
    assert use_tool("file_read", file="a/b.py", start_line=2) == "y = x\n[lines 2 to 2 of 2]"
    use_tool("file_write", file="a/b.py", content="z = 3\n", append=True)
    assert use_tool("file_read", file="/workspace/a/b.py").endswith("y = x\nz = 3\n")
    assert use_tool("file_list", depth=2) == f"{workspace}/a/\n{workspace}/a/b.py (18)"
    assert use_tool("file_search", pattern="x =") == f"{workspace}/a/b.py:1: x = 1"
    assert use_tool("file_search", pattern="^[yz] =", regex=True).count("\n") == 1
    assert use_tool("file_search", pattern="*.py", names=True) == f"{workspace}/a/b.py"
    assert use_tool("file_search", pattern="not there") == "[nothing found]"
    assert "2 times" in use_tool("file_replace", file="a/b.py", old_str="x", new_str="w")
    assert "not in" in use_tool("file_replace", file="a/b.py", old_str="q", new_str="w")
    assert use_tool("file_read", file="a/b.py").startswith("x = 1\n")
    assert "1 time " in use_tool("file_replace", file="a/b.py", old_str="1\ny", new_str="2\ny")
    use_tool("file_replace", file="a/b.py", old_str="x", new_str="w", replace_all=True)
    assert use_tool("file_read", file="a/b.py") == "w = 2\ny = w\nz = 3\n"
    assert "recursive" in use_tool("file_delete", file="a")
    assert use_tool("file_delete", file="a", recursive=True) == "deleted /workspace/a"
    assert use_tool("file_list") == "[/workspace is empty]"
    assert "itself" in use_tool("file_delete", file="..", recursive=True)


def test_what_is_wrong_is_told_to_the_model(use_tool):
    message = use_tool.message("file_read", file="nope.txt")
    assert message.status == "error" and "no such file" in message.content
    message = use_tool.message("file_read")
    assert message.status == "error" and "file: Field required" in message.content
    message = use_tool.message("file_read", file="/workspace")
    assert message.status == "error" and "file_list" in message.content
    use_tool("shell_exec", command="head -c 100 /dev/zero > bin")
    assert "binary" in use_tool("file_read", file="bin")
    message = use_tool.message("file_write", file="ok.txt", content="")
    assert message.status == "success" and message.artifact["path"].endswith("/ok.txt")


def test_shell_exec(use_tool):
    text = use_tool("shell_exec", command="cd /tmp; export Q=7; echo out; echo err >&2; exit 3")
    assert text == "out\n[stderr]\nerr\n[exit code 3]"
    assert use_tool("shell_exec", command="true") == "[exit code 0]"
    use_tool("shell_exec", command="cd /tmp; export Q=7")
    assert use_tool("shell_exec", command="pwd; echo $Q") == "/tmp\n7"
    text = use_tool("shell_exec", command="echo begun; sleep 30", timeout=seconds(1))
    assert "begun" in text and "timed out" in text and "[exit code 124]" in text
    message = use_tool.message("shell_exec", command="exit 4")
    assert message.artifact["exit_code"] == 4


def test_output_is_cut_head_and_tail(mode):
    with SandboxSession.create(output_max_chars=1000) as session:
        text = Tools(session)("shell_exec", command="seq 1 100000; exit 1")
    assert len(text) < 1200
    assert text.startswith("1\n2\n3\n") and text.endswith("99999\n100000\n[exit code 1]")
    assert re.search(r"\n\[\.\.\. \d+ of 588895 characters left out \.\.\.\]\n", text)


def test_cut():
    assert cut("abc", 3) == "abc"
    assert cut("a" * 50 + "b" * 50, 20) == (
        "a" * 10 + "\n[... 80 of 100 characters left out ...]\n" + "b" * 10)


def test_a_terminal(use_tool):
    text = use_tool("shell_interactive", command='read -p "name? " n; echo "hello $n"; sleep 600')
    assert "name?" in text and "running" in text
    number = int(re.search(r"\[terminal (\d+): ", text)[1])
    text = use_tool("shell_write", id=number, input="bob")
    if "hello bob" not in text:  # on a busy machine the echo alone
        assert "hello bob" in use_tool("shell_wait", id=number, seconds=20, until="hello bob")
    # The end of its line may come by itself.
    wait_for(lambda: use_tool("shell_view", id=number).startswith("[no new output]"), 20, "all is seen")
    assert "hello bob" in use_tool("shell_view", id=number, whole=True)
    assert use_tool("shell_kill", id=number) == f"ended terminal {number}"
    assert "ended" in use_tool("shell_wait", id=number, seconds=60)
    message = use_tool.message("shell_write", id=number, input="late")
    assert message.status == "error" and "no input" in message.content
    assert use_tool.message("shell_view", id=999999).status == "error"


def test_waiting_for_a_terminal(use_tool):
    text = use_tool("shell_interactive", command="echo begun; sleep 0.7; exit 5")
    number = int(re.search(r"\[terminal (\d+): ", text)[1])
    text = use_tool("shell_wait", id=number, seconds=60)
    assert "exit code 5" in text
    start = time.monotonic()
    text = use_tool("shell_interactive", command="echo begun; sleep 0.7; echo ready; sleep 60")
    number = int(re.search(r"\[terminal (\d+): ", text)[1])
    text = use_tool("shell_wait", id=number, seconds=60, until="ready")
    assert "ready" in text and "running" in text and time.monotonic() - start < seconds(20)
    text = use_tool("shell_write", id=number, input="\x03", press_enter=False)
    assert "ended by" in use_tool("shell_wait", id=number, seconds=60)


def test_git(use_tool):
    use_tool("shell_exec", command="git init -q --bare origin.git -b main")
    assert "Cloning" in use_tool("git_clone", url="./origin.git", path="work")
    use_tool("file_write", file="work/a.txt", content="one\n")
    assert "?? a.txt" in use_tool("git_status", path="work")
    message = use_tool.message("git_commit", path="work", message="first; it's $HOME")
    assert re.fullmatch("[0-9a-f]{40}", message.artifact["commit"])
    assert "main" in use_tool("git_push", path="work")
    use_tool("file_write", file="work/a.txt", content="two\n")
    patch = use_tool("git_diff", path="work")
    assert "-one" in patch and "+two" in patch
    assert use_tool("git_diff", path="work", staged=True) == "[no changes]"
    assert "not a commit" in use_tool("git_diff", path="work", commit="--output=/tmp/x")
    use_tool("file_write", file="work/b.txt", content="b\n")
    use_tool("git_commit", path="work", message="second", files=["b.txt"])
    assert " M a.txt" in use_tool("git_status", path="work")
    assert "1 ahead" in use_tool("git_status", path="work")
    assert use_tool.message("git_status", path="/tmp").status == "error"
    log = use_tool("shell_exec", command="git --git-dir origin.git log --format=%s main")
    assert log == "first; it's $HOME"


def test_python(use_tool):
    assert use_tool("python_exec", code="x = 41") == "[done; nothing was printed]"
    assert use_tool("python_exec", code="print(x + 1)") == "42"
    message = use_tool.message("python_exec", code="print('before')\n1 / 0")
    assert message.content.startswith("before\n") and "ZeroDivisionError" in message.content
    assert message.artifact["success"] is False
    assert "KeyboardInterrupt" in use_tool("python_exec", code="while True: pass", timeout=seconds(0.5))
    assert use_tool("python_exec", code="print(x)") == "41"


def wheel(path):
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("barnyard.py", "animals = 7\n")
        z.writestr("barnyard-1.0.dist-info/METADATA",
                   "Metadata-Version: 2.1\nName: barnyard\nVersion: 1.0\n")
        z.writestr("barnyard-1.0.dist-info/WHEEL",
                   "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("barnyard-1.0.dist-info/RECORD", "")


def test_pip_installs_what_is_in_the_sandbox(use_tool, tmp_path):
    name = "barnyard-1.0-py3-none-any.whl"
    wheel(tmp_path / name)
    session = use_tool.session
    session.backend.write_file(session.sandbox_id, name, (tmp_path / name).read_bytes())
    assert "ModuleNotFoundError" in use_tool("python_exec", code="import barnyard")
    assert "Successfully installed" in use_tool("pip_install", packages=[name])
    assert use_tool("python_exec", code="import barnyard; print(barnyard.animals)") == "7"
    command = "python3 -c 'import barnyard; print(barnyard.animals)'"
    assert use_tool("shell_exec", command=command) == "7"


def test_what_needs_a_network_says_that_there_is_none(use_tool):
    for name, arguments in (
            ("pip_install", {"packages": ["six-does-not-matter"]}),
            ("git_clone", {"url": "https://example.com/a.git"}),
            ("http_request", {"url": "https://example.com/"})):
        message = use_tool.message(name, **arguments)
        assert message.status == "error" and "no network" in message.content, message
    assert "no network" in use_tool("shell_exec", command="curl -sS http://example.com/")
    assert "is an option" in use_tool("pip_install", packages=["--index-url=http://127.0.0.1/"])


SERVER = """
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(418)
        self.send_header("X-Pot", self.headers["X-Cup"])
        self.end_headers()
        self.wfile.write(body[::-1])
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", 8123), H).serve_forever()
"""


def pid_of(use_tool, end):
    """Of a process whose command ends so, or None. A sandbox that shares the machine's processes lists more than is shown."""
    found = [p["pid"] for p in use_tool.message("process_list").artifact["processes"] if p["command"].endswith(end)]
    return found[0] if found else None


def test_http_to_a_port_of_the_sandbox_and_its_preview(use_tool):
    assert "nothing listens" in use_tool("http_request", url="http://127.0.0.1:8123/")
    assert "nothing listens" in use_tool("port_preview", port=8123)
    use_tool("file_write", file="server.py", content=SERVER)
    use_tool("shell_interactive", command="python3 server.py")
    for _ in range(1000):
        message = use_tool.message("http_request", url="http://127.0.0.1:8123/", method="post",
                                   headers={"X-Cup": "tea"}, body="abc")
        if message.status == "success":
            break
        time.sleep(0.1)
    assert message.artifact["status"] == 418, message
    assert "X-Pot: tea" in message.content and message.content.endswith("\n\ncba")
    assert "http" in use_tool("port_preview", port=8123)
    assert "must begin with" in use_tool("http_request", url="file:///etc/passwd")
    pid = pid_of(use_tool, "python3 server.py")
    assert "SIGTERM" in use_tool("process_kill", pid=pid)
    assert "no process" in use_tool("process_kill", pid=999999)


def test_process_kill_ends_what_a_command_left_behind(use_tool):
    use_tool("shell_exec", command="sleep 1000 >/dev/null 2>&1 &")
    found = None
    for _ in range(2000):  # until then it is the shell's copy that is to become it
        if found := pid_of(use_tool, "sleep 1000"):
            break
        time.sleep(0.05)
    assert found
    use_tool("process_kill", pid=found, signal="KILL")
    for _ in range(2000):
        if not pid_of(use_tool, "sleep 1000"):
            break
        time.sleep(0.05)
    assert not pid_of(use_tool, "sleep 1000")


def test_environment(use_tool):
    assert "not set" in use_tool("env_get", name="FARM")
    use_tool("env_set", name="FARM", value="a b")
    assert use_tool("env_get", name="FARM") == "a b"
    assert use_tool("shell_exec", command='echo "$FARM"') == "a b"
    assert "FARM=a b" in use_tool("env_get") and "HOME=" in use_tool("env_get")
    use_tool("env_set", name="FARM", value=None)
    assert "not set" in use_tool("env_get", name="FARM")
    assert "wrong arguments" in use_tool("env_set", name="a=b", value="c")


def test_browser(use_tool, session):
    """A page whose script is run, in Debian's Chromium."""
    if session.backend.exec(session.sandbox_id, "command -v chromium").exit_code != 0:
        pytest.skip("chromium is not installed on this host")
    use_tool("file_write", file="p.html",
             content="<title>T</title><p id=p>1<script>p.innerText = 'made by ' + 'script'</script>")
    place = session.backend.exec(session.sandbox_id, "pwd").stdout.strip()  # /workspace where it has a root
    message = use_tool.message("browser_open", url=f"file://{place}/p.html", screenshot="p.png")
    assert message.artifact, message.content
    assert message.artifact["title"] == "T" and "made by script" in message.content
    picture = session.backend.read_file(session.sandbox_id, "p.png")
    assert picture.startswith(b"\x89PNG")


# Not a browser: what it is called with and what becomes of its words is what is tested.
STAND_IN = """#!/bin/bash
case "${!#}" in
*outside*) echo "[1:1:ERROR:x.cc] Page load failed: net::ERR_INTERNET_DISCONNECTED" >&2; exit 0 ;;
*:81/*) echo "[1:1:ERROR:x.cc] Page load failed: net::ERR_CONNECTION_REFUSED" >&2; exit 0 ;;
esac
for word; do case $word in --screenshot=*) printf png > "${word#*=}";; esac; done
echo "<html><head><title>A &amp; B</title><style>p{}</style></head><body><p>One</p><p>two</p>"
"""


def test_without_a_browser(use_tool, session):
    if session.backend.exec(session.sandbox_id, "command -v chromium").exit_code == 0:
        pytest.skip("chromium is installed on this host")
    message = use_tool.message("browser_open", url="http://127.0.0.1/")
    assert message.status == "error" and "no browser" in message.content


def test_what_a_browser_says_is_told(use_tool, session):
    """With a program in its place, that says what Chromium says about pages it cannot reach."""
    session.backend.write_file(session.sandbox_id, "/home/user/bin/chromium", STAND_IN, mode=0o755)
    use_tool("shell_exec", command="echo 'PATH=$HOME/bin:$PATH' > ~/.bash_profile")
    message = use_tool.message("browser_open", url="http://127.0.0.1/", screenshot="shots/p.png")
    screenshot = use_tool("shell_exec", command="pwd").strip() + "/shots/p.png"
    assert message.content == f"title: A & B\nscreenshot: {screenshot} (3 bytes)\n\nOne\ntwo"
    assert message.artifact["screenshot"] == screenshot
    message = use_tool.message("browser_open", url="http://outside.example/", screenshot="no.png")
    assert message.status == "error" and "no network" in message.content
    assert "no.png" not in use_tool("file_list")
    message = use_tool.message("browser_open", url="http://127.0.0.1:81/")
    assert message.content.startswith("Error: http://127.0.0.1:81/ could not be opened: ERR_CONN")
    assert "nothing listens" in message.content


def test_the_text_of_a_page():
    title, text = page_text("<title> T </title><script>no</script><table><tr><td>a<td>b</tr></table>"
                            "<div>c<br>d &lt; e</div>")
    assert (title, text) == ("T", "a b\nc\nd < e")


# ---- sessions ----

def test_a_named_session_stays_and_an_unnamed_one_ends(mode, thread):
    with SandboxSession.create(session_id=thread) as first:
        Tools(first)("file_write", file="kept.txt", content="kept")
        first.upload(b"\xff\0", "d/raw")
        assert first.download("d/raw") == b"\xff\0"
        first.upload(__file__, "test.py")
        assert first.download("test.py").startswith(b'"""The LangChain tools')
    with SandboxSession.create(session_id=thread) as second:
        assert second.sandbox_id == first.sandbox_id
        assert Tools(second)("file_read", file="kept.txt") == "kept"
        other = SandboxSession.create(session_id=thread, user_id="somebody-else")
        assert other.sandbox_id != second.sandbox_id
        assert other.delete()
    assert SandboxSession(thread).delete()
    assert not SandboxSession(thread).delete()
    with SandboxSession.create() as unnamed:
        sandbox_id, backend = unnamed.sandbox_id, unnamed.backend
    assert paddock.Sandbox(sandbox_id, keep=True).is_running() is False
    assert backend is unnamed.backend


def test_a_sandbox_that_is_gone_is_told_and_replaced(use_tool):
    session = use_tool.session
    use_tool("file_write", file="a.txt", content="a")
    use_tool("python_exec", code="x = 1")
    lost = session.sandbox_id
    session.backend.end(lost)
    message = use_tool.message("file_read", file="a.txt")
    assert message.status == "error" and "the sandbox is gone" in message.content
    assert session.sandbox_id != lost
    assert use_tool("file_list") == "[/workspace is empty]"
    assert "NameError" in use_tool("python_exec", code="x")


def test_without_auto_retry_a_session_that_is_gone_stays_gone(mode):
    session = SandboxSession.create(auto_retry=False)
    use_tool = Tools(session)
    session.backend.end(session.sandbox_id)
    assert "has ended" in use_tool("file_list")
    assert "has ended" in use_tool("file_list")


def test_async(mode):
    async def main():
        async with await SandboxSession.create() as session:
            tools = {tool.name: tool for tool in session.get_tools()}
            await tools["file_write"].ainvoke({"file": "app.py", "content": "print('Hello!')"})
            both = await asyncio.gather(
                tools["shell_exec"].ainvoke({"command": "python3 app.py"}),
                tools["python_exec"].ainvoke({"code": "print(1)"}))
            assert both == ["Hello!", "1"]
            assert "no such file" in await tools["file_read"].ainvoke({"file": "x"})
            # A task that is cancelled ends its command.
            task = asyncio.ensure_future(tools["shell_exec"].ainvoke({"command": "sleep 987"}))
            for _ in range(1000):
                if "sleep 987" in await tools["process_list"].ainvoke({}):
                    break
                await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for _ in range(1000):
                if "sleep 987" not in await tools["process_list"].ainvoke({}):
                    break
                await asyncio.sleep(0.05)
            assert "sleep 987" not in await tools["process_list"].ainvoke({})
            return session
    session = asyncio.run(main())
    assert session._id is None


# ---- roles ----

def test_roles_share_a_sandbox_and_have_what_they_need(mode):
    roles = get_all_agent_tools()
    assert set(roles) == {"coder", "validator", "reporter", "tracker"} == set(ROLES)
    names = {role: {tool.name for tool in tools} for role, tools in roles.items()}
    assert names["coder"] == set(NAMES)
    assert not names["tracker"] & {"shell_exec", "python_exec", "shell_interactive", "file_delete"}
    assert not names["validator"] & {"file_delete", "git_commit", "git_push"}
    assert "python_exec" in names["validator"] and "python_exec" in names["reporter"]
    assert roles["coder_agent"] is roles["coder"] and roles.get("nobody") is None
    with pytest.raises(KeyError, match="coder, validator"):
        roles["nobody"]
    tools = {role: {tool.name: tool for tool in found} for role, found in roles.items()}
    try:
        tools["coder"]["file_write"].invoke({"file": "r.txt", "content": "from the coder"})
        assert tools["tracker"]["file_read"].invoke({"file": "r.txt"}) == "from the coder"
    finally:
        roles.session.delete()


def test_roles_of_an_unknown_mode():
    with pytest.raises(ValueError, match="local, remote"):
        get_all_agent_tools("moon")


def test_without_langchain_the_error_says_what_to_install(monkeypatch, session):
    for name in [n for n in sys.modules if n.startswith(("langchain_core", "paddock.tools"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langchain_core", None)
    with pytest.raises(ImportError, match=r"paddock\[langchain\]"):
        session.get_tools()
