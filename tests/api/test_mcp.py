"""/mcp over HTTP, message by message. The official clients are in tests/mcp."""

import base64
import time

import pytest

from helpers import Later, together
from paddock_testing.mcp import Http, initialize, result_of
from paddock_testing.run import seconds, wait_for
from paddock_testing.server import Server

TOOLS = ["run_command", "run_code", "read_file", "write_file", "edit_file", "list_files",
         "search_files", "start_process", "check_process", "stop_process", "preview_port",
         "session_info", "create_sandbox"]


@pytest.fixture
def mcp(server):
    with Http(server) as session:
        yield session


def sandboxes(api):
    return {s["id"] for s in api.get("/v1/sandboxes?limit=1000").json()["sandboxes"]}


def text_of(answer):
    content = answer.result["content"]
    assert [c["type"] for c in content] == ["text"] and content[0]["text"], answer
    return content[0]["text"]


def refused(answer, *said):
    """A tool's error: a result that says what is wrong."""
    assert answer.status == 200 and answer.result["isError"], answer
    for word in said:
        assert word in text_of(answer), answer


def failed(answer, code, status=200, says=""):
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/json", answer
    assert answer.message["jsonrpc"] == "2.0" and answer.error["code"] == code, answer
    assert says in answer.error["message"], answer
    return answer


# ---- the beginning ----


@pytest.mark.parametrize("asked, given", [
    ("2024-11-05", "2024-11-05"), ("2025-03-26", "2025-03-26"), ("2025-06-18", "2025-06-18"),
    ("2025-11-25", "2025-11-25"), ("1999-01-01", "2025-11-25"), ("2099-01-01", "2025-11-25")])
def test_initialize_agrees_on_a_version(server, asked, given):
    answer = Http(server).request("initialize", initialize(asked))
    assert answer.result["protocolVersion"] == given
    assert set(answer.result["capabilities"]) == {"tools", "resources"}
    assert answer.result["serverInfo"]["name"] == "paddock" and answer.result["instructions"]
    assert len(answer.headers["mcp-session-id"]) == 32


def test_initialize_and_lists_make_no_sandbox(server, api, mcp):
    before = sandboxes(api)  # others of these may end meanwhile
    assert mcp.request("tools/list").result["tools"]
    assert mcp.request("resources/list").result == {"resources": []}
    assert mcp.request("resources/templates/list").result["resourceTemplates"]
    assert mcp.request("ping").result == {}
    assert not sandboxes(api) - before
    assert result_of(mcp.call("run_command", command="true"))["exit_code"] == 0
    assert len(sandboxes(api) - before) == 1


def test_a_sandbox_with_wishes(api, mcp):
    """Limits, times and surroundings hold for what later tools run; a second one is refused."""
    made = result_of(mcp.call("create_sandbox", limits={"memory_bytes": 64 << 20, "pids": 50, "cpu": 0.5},
                              idle_timeout_s=77, max_life_s=99, env={"A": "b"}, cwd="/tmp"))
    assert made["limits"]["memory_bytes"] == 64 << 20 and made["cwd"] == "/tmp"
    shown = api.get(f"/v1/sandboxes/{made['id']}").json()
    assert (shown["limits"]["cpu"], shown["idle_timeout_s"], shown["max_life_s"]) == (0.5, 77, 99)
    assert result_of(mcp.call("run_command", command="echo $A $PWD; cat"))["stdout"] == "b /tmp\n"
    refused(mcp.call("create_sandbox"), made["id"], "already")
    told = mcp.call("session_info")
    assert result_of(told)["id"] == made["id"]
    network = "no network" if shown["isolation"] != "none" else "a network without walls"
    assert f" processes, {network}\n" in told.result["content"][0]["text"], told


@pytest.mark.parametrize("arguments, says", [
    ({"limits": {"memory": 1}}, "limits.memory"), ({"limits": {"pids": 0}}, "limits.pids"),
    ({"limits": 1}, "limits"), ({"x": 1}, "x"), ({"template": "none"}, "template"),
    ({"idle_timeout_s": -1}, "idle_timeout_s"), ({"env": {"A": 1}}, "env")])
def test_wishes_that_are_wrong(api, mcp, arguments, says):
    before = sandboxes(api)
    refused(mcp.call("create_sandbox", **arguments), says)
    assert not sandboxes(api) - before


def test_header_with_version(mcp):
    for version in ("2025-06-18", "2025-03-26", None):
        assert mcp.request("ping", headers={"MCP-Protocol-Version": version}).status == 200
    for version in ("2099-01-01", "x", ""):
        answer = mcp.request("ping", headers={"MCP-Protocol-Version": version})
        failed(answer, -32022, 400)
        assert "2025-11-25" in answer.error["data"]["supported"]


def test_tools_are_described(mcp):
    tools = mcp.request("tools/list").result["tools"]
    assert [t["name"] for t in tools] == TOOLS
    for tool in tools:
        assert len(tool["description"]) > 40 and tool["title"]
        assert tool["inputSchema"]["type"] == tool["outputSchema"]["type"] == "object"
        assert tool["inputSchema"]["additionalProperties"] is False
        assert set(tool["inputSchema"]["required"]) <= set(tool["inputSchema"]["properties"])
        assert set(tool["outputSchema"]["required"]) <= set(tool["outputSchema"]["properties"])
        for member in [*tool["inputSchema"]["properties"].values(),
                       *tool["outputSchema"]["properties"].values()]:
            assert member["description"] and types_of(member)
        assert "readOnlyHint" in tool["annotations"]


def types_of(member):
    return [m["type"] for m in member.get("anyOf", [member])]


def check_schema(schema, value):
    """What of JSON Schema the tools use."""
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool,
             "object": dict, "array": list, "null": type(None)}
    for name in schema["required"]:
        assert name in value, (name, value)
    for name, member in schema["properties"].items():
        if name in value:
            assert any(isinstance(value[name], kinds[k]) for k in types_of(member)), (name, value)


def test_every_tool_gives_what_its_schema_says(mcp):
    schemas = {t["name"]: t["outputSchema"] for t in mcp.request("tools/list").result["tools"]}

    def call(tool, **arguments):
        answer = mcp.call(tool, **arguments)
        assert text_of(answer)
        found = result_of(answer)
        check_schema(schemas.pop(tool), found)
        return found

    assert call("create_sandbox", limits={"pids": 99})["limits"]["pids"] == 99
    assert call("run_command", command="echo a; echo b >&2; exit 3")["exit_code"] == 3
    assert call("run_code", language="python", code="print(6*7)")["stdout"] == "42\n"
    assert call("write_file", path="d/x.txt", content="one\ntwo\n")["bytes"] == 8
    assert call("read_file", path="d/x.txt")["content"] == "one\ntwo\n"
    assert call("edit_file", path="d/x.txt", old_text="two", new_text="2")["replacements"] == 1
    assert call("list_files")["entries"][0]["path"] == "/workspace/d"
    assert call("search_files", pattern="^2$", mode="regex")["matches"][0]["line"] == 2
    pid = call("start_process", command="echo up; exec cat")["pid"]
    wait_for(lambda: result_of(mcp.call("check_process", pid=pid))["stdout"], 10, "it writes")
    seen = call("check_process", pid=pid)
    assert seen["running"] and seen["stdout"] == "up\n" and seen["next"] == "3.0"
    assert call("stop_process", pid=pid)["running"] is False
    assert call("preview_port", port=8000)["url"].startswith("http")
    assert call("session_info")["cwd"] == "/workspace"
    assert not schemas


# ---- malformed ----


@pytest.mark.parametrize("text, code", [
    (b"", -32700), (b"x", -32700), (b"{", -32700), (b'"text"', -32700), (b"null", -32700),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping"} {}', -32700),
    (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', -32700),
    (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', -32700),
    (b'{"jsonrpc":"2.0","id":1' + b'0' * 400 + b',"method":"ping"}', -32700),
    (b"[]", -32600), (b' \n[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
    (b"{}", -32600), (b'{"jsonrpc":"2.0"}', -32600), (b'{"id":1,"method":"ping"}', -32600),
    (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
    (b'{"jsonrpc":2.0,"id":1,"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":""}', -32600),
    (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":"' + b"x" * 300 + b'","method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"progressToken":{}}}}', -32600)])
def test_what_is_no_message(mcp, text, code):
    failed(mcp.post(text), code, 400)


@pytest.mark.parametrize("id", [
    0, -1, 1, 2**53 + 1, -2**63, 2**63 - 1, 1.5, "", "1", "ü\"\\\n", "x" * 200])
def test_ids_come_back_as_they_were(mcp, id):
    answer = mcp.request("ping", id=id)
    assert answer.status == 200
    assert answer.message["id"] == id and type(answer.message["id"]) is type(id)


def test_unknown_methods(mcp):
    for method in ("nothing", "prompts/list", "logging/setLevel", "server/discover",
                   "notifications/initialized", "x" * 128):
        failed(mcp.request(method), -32601, says=method[:100])


def test_notifications_and_answers_are_accepted(mcp):
    for message in ({"method": "notifications/initialized"}, {"method": "unknown/thing"},
                    {"method": "notifications/cancelled", "params": {"requestId": 77}},
                    {"method": "notifications/cancelled"}, {"method": "tools/call"},
                    {"id": 5, "result": {}}, {"id": 5, "error": {"code": 1, "message": "x"}}):
        answer = mcp.post({"jsonrpc": "2.0", **message})
        assert answer.status == 202 and answer.body == b"", (message, answer)
        assert answer.headers["content-length"] == "0"


def test_other_verbs(server, mcp):
    answer = mcp.send("GET", headers={"Content-Type": None})
    assert answer.status == 405 and "POST" in answer.headers["allow"]
    assert mcp.send("PUT", "{}").status == 405


def test_what_is_sent_must_be_json(mcp):
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        assert mcp.request("ping", headers={"Content-Type": kind}).status == 400
    assert mcp.request("ping", headers={"Content-Type": "application/json; charset=utf-8"}).status == 200


def test_too_large_a_message(mcp):
    answer = mcp.call("write_file", path="x", content="x" * (4 << 20))
    assert answer.status == 413
    refused(mcp.call("write_file", path="x", content="x" * ((2 << 20) + 1)), "content")


@pytest.mark.parametrize("tool, arguments, field", [
    ("run_command", {}, "command"), ("run_command", {"command": 5}, "command"),
    ("run_command", {"command": ""}, "command"), ("run_command", {"command": "x", "y": 1}, "y"),
    ("run_command", {"command": "x", "timeout_s": "1"}, "timeout_s"),
    ("run_command", {"command": "x", "timeout_s": -1}, "timeout_s"),
    ("run_command", {"command": "x", "timeout_s": 1e9}, "timeout_s"),
    ("run_command", {"command": "x", "cwd": "relative"}, "cwd"),
    ("run_code", {"language": "python"}, "code"),
    ("start_process", {"command": "x", "timeout_s": 5}, "timeout_s"),
    ("read_file", {"path": ["x"]}, "path"), ("read_file", {"path": "x", "lines": 0}, "lines"),
    ("read_file", {"path": "x", "first_line": 1.5}, "first_line"),
    ("write_file", {"path": "x"}, "content"), ("edit_file", {"path": "x"}, "old_text"),
    ("edit_file", {"path": "x", "old_text": "", "new_text": ""}, "old_text"),
    ("edit_file", {"path": "x", "old_text": "a", "new_text": "b", "all": "yes"}, "all"),
    ("list_files", {"depth": 17}, "depth"), ("search_files", {}, "pattern"),
    ("search_files", {"pattern": "x", "mode": "fuzzy"}, "mode"),
    ("check_process", {"pid": "x"}, "pid"), ("check_process", {"pid": 1, "wait_s": -1}, "wait_s"),
    ("stop_process", {}, "pid"), ("preview_port", {"port": 0}, "port"),
    ("preview_port", {"port": 65536}, "port"), ("session_info", {"x": 1}, "x")])
def test_wrong_arguments_are_named(mcp, tool, arguments, field):
    refused(mcp.call(tool, **arguments), f"{field}")
    assert text_of(mcp.call(tool, **arguments)).split(":")[0].split(".")[-1] == field


def test_wrong_parameters(mcp):
    for arguments in ([], "x", 5, True):
        failed(mcp.request("tools/call", {"name": "session_info", "arguments": arguments}),
               -32602, says="arguments")
    failed(mcp.request("tools/call", {"name": "nothing"}), -32602, says="nothing")
    failed(mcp.request("tools/call", {"name": 5}), -32602, says="name")
    failed(mcp.request("tools/call", {}), -32602, says="name")
    failed(mcp.request("tools/call"), -32602, says="params")
    failed(mcp.request("initialize", {"protocolVersion": 5}), -32602, says="protocolVersion")
    failed(mcp.request("resources/read", {"uri": 5}), -32602, says="uri")
    failed(mcp.request("resources/read", {}), -32602, says="uri")
    failed(mcp.request("resources/read"), -32602, says="params")
    failed(mcp.request("resources/read", {"uri": "http://x/"}), -32602, says="file:///")
    failed(mcp.request("resources/read", {"uri": "file:///%zz"}), -32602)
    failed(mcp.request("resources/read", {"uri": "file:///workspace/none"}), -32002)


# ---- commands ----


def test_state_stays_between_commands(mcp):
    result_of(mcp.call("run_command", command="mkdir -p a && cd a && export X=7"))
    assert result_of(mcp.call("run_command", command="echo $X; pwd"))["stdout"] == "7\n/workspace/a\n"
    assert result_of(mcp.call("run_code", language="bash", code="pwd"))["stdout"] == "/workspace/a\n"
    assert result_of(mcp.call("run_command", command="pwd", cwd="/tmp"))["stdout"] == "/tmp\n"


def test_an_exit_code_is_no_error_but_a_time_out_is(mcp):
    answer = mcp.call("run_command", command="echo out; echo err >&2; exit 5")
    assert result_of(answer)["exit_code"] == 5
    assert text_of(answer) == "out\n[error output]\nerr\n[exit code 5]"
    answer = mcp.call("run_command", command="echo begun; sleep 60", timeout_s=seconds(1))
    refused(answer, "begun", "timeout_s")
    assert answer.result["structuredContent"]["stopped_by"] == "timeout"
    assert result_of(mcp.call("run_command", command="kill -SEGV $BASHPID"))["running"] is False


def test_long_output_is_cut_in_the_middle(mcp):
    answer = mcp.call("run_command",
                      command="echo first; head -c 10000000 /dev/zero | tr '\\0' x; echo last")
    found = result_of(answer)
    assert found["stdout"].startswith("first\n") and found["stdout"].endswith("last\n")
    assert "bytes are left out" in found["stdout"] and len(found["stdout"]) < 40000
    assert found["stdout_bytes"] == 10000011
    assert len(answer.body) < 200000


@pytest.mark.parametrize("before", ["", "x"])
def test_long_output_is_cut_between_characters(mcp, before):
    # A character has three bytes: either way at least one of the two cuts would be within one.
    found = result_of(mcp.call("run_command", command=f"printf '{before}'; yes € | head -n 100000 | tr -d '\\n'"))
    assert "bytes are left out" in found["stdout"] and "\ufffd" not in found["stdout"]
    assert set(found["stdout"].split("\n[")[0]) == {"€", *before}
    assert set(found["stdout"].rsplit("]\n")[-1]) == {"€"}
    left_out = int(found["stdout"].split("[... ")[1].split(" bytes")[0])
    assert left_out % 3 == 0
    shown = found["stdout"].split("\n[...")[0] + found["stdout"].rsplit("...]\n")[-1]
    assert len(shown.encode()) + left_out == found["stdout_bytes"] == 300000 + len(before)


def test_output_that_is_no_text(mcp):
    answer = mcp.call("run_command", command=r"printf 'a\xff\0\x1b[1mb\xe2\x80\xa8\n'")
    assert result_of(answer)["stdout"] == "a\ufffd\0\x1b[1mb\u2028\n"
    # Every byte there is, as much as is shown: the worst that JSON can make of it.
    answer = mcp.call("run_command", command="head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2")
    assert result_of(answer)["stdout"].startswith("\0\0")


def test_processes(mcp):
    pid = result_of(mcp.call("start_process", command="while read x; do echo got $x; echo e >&2; done"))["pid"]
    mcp.call("check_process", pid=pid, input="one\n")

    def check(size, **more):
        """When it has written that much to either stream."""
        wait_for(lambda: result_of(mcp.call("check_process", pid=pid))["next"] == size, 10, "it has answered")
        return mcp.call("check_process", pid=pid, wait_s=0.3, **more)

    answer = check("8.2")
    found = result_of(answer)
    assert found["stdout"] == "got one\n" and found["stderr"] == "e\n" and found["running"]
    assert "[still running]" in text_of(answer) and f"[next: {found['next']}]" in text_of(answer)
    mcp.call("check_process", pid=pid, input="two\n")
    again = result_of(check("16.4", **{"from": found["next"]}))
    assert again["stdout"] == "got two\n" and again["stderr"] == "e\n"
    assert result_of(mcp.call("session_info"))["processes"][0]["pid"] == pid
    assert result_of(mcp.call("stop_process", pid=pid))["running"] is False
    assert result_of(mcp.call("stop_process", pid=pid))["running"] is False
    assert result_of(mcp.call("session_info"))["processes"] == []
    refused(mcp.call("check_process", pid=31000), "31000")
    for place in ("5", "x.1", "1.", "1.2.3", "-1.0"):
        refused(mcp.call("check_process", pid=pid, **{"from": place}), "from", "next")


# ---- files ----


def test_lines_of_files(mcp):
    result_of(mcp.call("write_file", path="a.txt", content="1\n2\n3\n4"))

    def read(**more):
        return result_of(mcp.call("read_file", path="/workspace/a.txt", **more))["content"]

    assert read() == "1\n2\n3\n4"
    assert read(first_line=2) == "2\n3\n4" and read(first_line=2, lines=2) == "2\n3\n"
    assert read(lines=1) == "1\n" and read(first_line=4) == "4" and read(first_line=5) == ""
    assert "only 4 lines" in text_of(mcp.call("read_file", path="a.txt", first_line=9))
    result_of(mcp.call("write_file", path="empty", content=""))
    assert text_of(mcp.call("read_file", path="empty")) == "[the file is empty]"


def test_long_files_are_read_in_parts(mcp):
    whole = "".join(f"line {n} ü\n" for n in range(30000))
    result_of(mcp.call("write_file", path="long", content=whole))
    seen, line = "", 1
    while True:
        answer = mcp.call("read_file", path="long", first_line=line)
        found = result_of(answer)
        seen += found["content"]
        if not found["truncated"]:
            break
        line = int(text_of(answer).rsplit("first_line ", 1)[1].split()[0])
    assert seen == whole and line > 1
    result_of(mcp.call("write_file", path="wide", content="ü" * 100000 + "\nend\n"))
    answer = mcp.call("read_file", path="wide")
    assert "line 1 is cut" in text_of(answer) and "first_line 2" in text_of(answer)
    assert set(result_of(answer)["content"]) == {"ü"}
    result_of(mcp.call("run_command", command="head -c 3000000 /dev/zero | tr '\\0' x > huge"))
    refused(mcp.call("read_file", path="huge"), "run_command")


def test_files_that_are_no_text(mcp):
    result_of(mcp.call("run_command", command=r"printf 'a\xff' > bin; mkdir sub; printf x > $'n\xff'"))
    refused(mcp.call("read_file", path="bin"), "no text")
    refused(mcp.call("read_file", path="sub"), "sub")
    refused(mcp.call("read_file", path="/etc/none/x"), "none")
    refused(mcp.call("write_file", path="/proc/x", content=""), "/proc")
    entries = result_of(mcp.call("list_files"))["entries"]
    assert {e["name"] for e in entries} == {"bin", "sub", "n\ufffd"}
    found = mcp.request("resources/read", {"uri": "file:///workspace/bin"}).result["contents"][0]
    assert base64.b64decode(found["blob"]) == b"a\xff" and "text" not in found


def test_edits(mcp):
    result_of(mcp.call("write_file", path="f", content="a b a\n"))
    refused(mcp.call("edit_file", path="f", old_text="x", new_text="y"), "does not have")
    refused(mcp.call("edit_file", path="f", old_text="a", new_text="y"), "2 times")
    assert result_of(mcp.call("edit_file", path="f", old_text="a", new_text="aa", all=True))["replacements"] == 2
    assert result_of(mcp.call("read_file", path="f"))["content"] == "aa b aa\n"
    refused(mcp.call("edit_file", path="none", old_text="x", new_text="y"), "none")


def test_searches(mcp):
    result_of(mcp.call("run_command", command="mkdir s; echo 'x = (1)' > s/a.py; echo 'x = (1)' > s/b.txt"))
    found = result_of(mcp.call("search_files", pattern="(1)", glob="*.py"))["matches"]
    assert [(m["path"], m["line"]) for m in found] == [("/workspace/s/a.py", 1)]
    assert len(result_of(mcp.call("search_files", pattern=r"\([0-9]\)", mode="regex"))["matches"]) == 2
    assert text_of(mcp.call("search_files", pattern="*.txt", mode="name")) == "/workspace/s/b.txt\n"
    assert text_of(mcp.call("search_files", pattern="nowhere")) == "[nothing found]"
    refused(mcp.call("search_files", pattern="(", mode="regex"))


def test_resources(mcp):
    result_of(mcp.call("run_command", command="mkdir -p d/e; echo hi > 'd/a b%.txt'; echo x > d/e/c"))
    found = {r["uri"]: r for r in mcp.request("resources/list").result["resources"]}
    assert set(found) == {"file:///workspace/d/a%20b%25.txt", "file:///workspace/d/e/c"}
    for uri, text in zip(sorted(found), ("hi\n", "x\n")):
        contents = mcp.request("resources/read", {"uri": uri}).result["contents"]
        assert contents == [{"uri": uri, "mimeType": "text/plain", "text": text}]
    # The worst case: two million characters that JSON writes as six.
    result_of(mcp.call("run_command", command="head -c 2097152 /dev/zero | tr '\\0' '\\1' > worst"))
    contents = mcp.request("resources/read", {"uri": "file:///workspace/worst"}).result["contents"]
    assert contents[0]["text"] == "\1" * 2097152


# ---- progress and cancellation ----


def messages(steps):
    """What was told of a command's last line; nothing before it has one."""
    return [s["params"]["message"] for s in steps if "message" in s["params"]]


def test_progress(mcp):
    for token in ("t", 7):
        answer = mcp.call("run_command", token=token,
                          command=r"printf 'one\n\e[31mtwo\a\r3%%'; sleep 4.3; echo; echo end")
        *steps, last = answer.events
        assert last["result"]["structuredContent"]["exit_code"] == 0
        assert [s["method"] for s in steps] == ["notifications/progress"] * len(steps)
        assert len(steps) >= 2 and all(s["params"]["progressToken"] == token for s in steps)
        times = [s["params"]["progress"] for s in steps]
        assert times == sorted(set(times))
        assert messages(steps)[0] == "3%"
    answer = mcp.call("run_command", token=1, command=r"printf 'a\e[1m\x01\x7f\xffb'; sleep 2.5")
    assert messages(answer.events[:-1])[0] == "a[1m\ufffdb"


def test_no_stream_for_who_takes_none(mcp):
    params = {"name": "run_command", "arguments": {"command": "sleep 1.3"},
              "_meta": {"progressToken": 1}}
    answer = mcp.request("tools/call", params, headers={"Accept": "application/json"})
    assert answer.headers["content-type"] == "application/json" and len(answer.events) == 1


def test_cancel_ends_the_whole_tree(mcp):
    command = "(setsid sleep 4321 &) ; sleep 4322 & sleep 4323; echo not reached"
    running = Later(lambda: mcp.call("run_command", id="long", command=command))
    box = Http(mcp.server, session=mcp.session)

    def count():
        found = result_of(box.call("run_command", command="ps -eo args | grep -c '^sleep 432' || true"))
        return int(found["stdout"])

    wait_for(lambda: count() == 3, 20, "three processes run")
    box.notify("notifications/cancelled", {"requestId": "other"})
    assert count() == 3 and not running.done
    Http(mcp.server, session="somebody-else").notify("notifications/cancelled", {"requestId": "long"})
    assert count() == 3 and not running.done
    box.notify("notifications/cancelled", {"requestId": "long", "reason": "no need"})
    refused(running.get(10), "ended by")
    wait_for(lambda: count() == 0, 10, "the whole tree is gone")


def test_cancel_of_two_with_one_id(mcp):
    running = [Later(lambda: mcp.call("run_command", id=9, command="sleep 60")) for _ in range(2)]
    box = Http(mcp.server, session=mcp.session)

    def count():
        found = result_of(box.call("run_command", command="ps -eo args | grep -c '^sleep 60' || true"))
        return int(found["stdout"])

    wait_for(lambda: count() == 2, 20, "both run")
    box.notify("notifications/cancelled", {"requestId": 9})
    for one in running:
        refused(one.get(10))
    # Another with the id of one that was cancelled is its own.
    assert result_of(mcp.call("run_command", id=9, command="echo fine"))["stdout"] == "fine\n"


def test_cancel_is_for_the_client_that_says_it(server):
    with Http(server, query="?thread=both") as one, Http(server, query="?thread=both") as two:
        running = Later(lambda: one.call("run_command", id=3, command="exec sleep 61"))

        def runs():
            found = two.call("run_command", command="ps -eo args | grep -c '^sleep 61' || true")
            return result_of(found)["stdout"] == "1\n"

        wait_for(runs, 20, "it runs")
        two.notify("notifications/cancelled", {"requestId": 3})
        time.sleep(1.5)
        assert not running.done
        one.notify("notifications/cancelled", {"requestId": 3})
        refused(running.get(10))
    Http(server, query="?thread=both").end()


def test_cancel_of_a_wait_leaves_the_process(mcp):
    pid = result_of(mcp.call("start_process", command="sleep 600"))["pid"]
    running = Later(lambda: mcp.call("check_process", id="w", pid=pid, wait_s=300))

    def cancel():
        """Again, because one that overtakes its call is for nobody."""
        mcp.notify("notifications/cancelled", {"requestId": "w"})
        return running.done

    wait_for(cancel, 10, "the call ends")
    running.get(10)
    assert result_of(mcp.call("check_process", pid=pid))["running"]


# ---- sessions ----


def test_sessions_are_apart_and_threads_stay(server, mcp):
    other = Http(server).start()
    result_of(mcp.call("write_file", path="mine", content="1"))
    refused(other.call("read_file", path="mine"), "mine")
    for _ in range(2):  # a named one is the same for every client
        named = Http(server, query="?thread=my%20project").start()
        result_of(named.call("run_command", command="echo x >> log"))
        assert named.end().status == 204  # as clients do when they go
        failed(named.call("read_file", path="log"), -32600, 404)
    nobody = Http(server, query="?thread=my%20project")
    assert result_of(nobody.call("read_file", path="log"))["content"] == "x\nx\n"
    assert nobody.end().status == 204  # without a client's session it is the sandbox that is meant
    refused(nobody.call("read_file", path="log"), "log")
    nobody.end()
    other.end()


def test_end_of_a_session(server, api):
    mcp = Http(server).start()
    sandbox = result_of(mcp.call("session_info"))["id"]
    assert mcp.end().status == 204
    assert api.get(f"/v1/sandboxes/{sandbox}").json()["state"] == "gone"
    failed(mcp.call("session_info"), -32600, 404)
    assert mcp.end().status == 404
    # It is not in the way of another one.
    with Http(server) as other:
        assert result_of(other.call("session_info"))["id"] != sandbox
    assert Http(server).start().end().status == 204  # without a sandbox


def test_a_sandbox_that_has_ended_is_made_anew_and_said_so():
    with Server({"idle_timeout_s": seconds(2)}) as server:
        mcp = Http(server).start()
        result_of(mcp.call("write_file", path="x", content="x"))
        sandbox = result_of(mcp.call("session_info"))["id"]
        api = server.client()
        wait_for(lambda: api.get(f"/v1/sandboxes/{sandbox}").json()["state"] == "gone", 30,
                 "it ends")
        answer = mcp.call("list_files")
        assert result_of(answer)["entries"] == [] and "made anew" in text_of(answer)
        assert "made anew" not in text_of(mcp.call("list_files"))


def test_session_ids_that_are_none(server, mcp):
    nobody = Http(server)
    failed(nobody.request("ping"), -32600, 400, "Mcp-Session-Id")
    for session in ("x" * 129, "a b", ""):
        answer = nobody.request("ping", headers={"Mcp-Session-Id": session})
        assert answer.status in (400, 404), answer
    assert Http(server, query="?thread=").request("ping").status == 400
    assert Http(server, query="?other=1").request("ping").status == 400
    assert Http(server, query="?thread=" + "x" * 129).request("ping").status == 400


def test_many_at_once(server, mcp):
    answers = together(200, lambda n: mcp.call("run_command", id=n, command=f"echo {n}"))
    for number, answer in enumerate(answers):
        assert answer.message["id"] == number
        assert result_of(answer)["stdout"] == f"{number}\n"


def test_first_calls_at_once_make_one_sandbox(server):
    with Http(server) as mcp:
        found = together(12, lambda n: result_of(mcp.call("session_info", id=n))["id"])
        assert len(set(found)) == 1


def test_creations_are_counted():
    with Server({"requests_per_s": 0, "creates_per_s": 1, "burst": 1}) as server:
        # At once: one by one they may take longer than it takes to be allowed the next.
        answers = together(12, lambda n: Http(server, session=f"s{n}").call("session_info"))
        errors = [a.result["isError"] for a in answers]
        assert any(errors) and not all(errors), answers
        # Who has one is not held up.
        with Http(server) as first:
            first.session = f"s{errors.index(False)}"
            for _ in range(5):
                result_of(first.call("session_info"))


def test_the_server_is_killed_in_the_middle():
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as server:
        mcp = Http(server).start()
        result_of(mcp.call("run_command", command="echo kept > f; cd /tmp; export K=9"))
        pid = result_of(mcp.call("start_process", command="while :; do echo tick; sleep 0.1; done"))["pid"]
        server.kill()
        server.start()
        # Without another initialize.
        assert result_of(mcp.call("read_file", path="f"))["content"] == "kept\n"
        found = result_of(mcp.call("run_command", command="echo $K; pwd"))["stdout"]
        assert found == "9\n/tmp\n"
        seen = wait_for(lambda: (seen := result_of(mcp.call("check_process", pid=pid)))["stdout"] and seen, 10,
                        "its output is there")
        assert seen["running"] and "tick\n" in seen["stdout"]
        result_of(mcp.call("stop_process", pid=pid))
        assert mcp.end().status == 204
