"""Two programs of the protocol's authors: the inspector on its command line, and the conformance
suite. Of the latter only what a server can do without the tools that the suite itself asks for (such
as `test_image_content`); it cannot send a key, so a small proxy puts one in."""

import http.client
import http.server
import json
import os
import subprocess
import threading

import pytest

URL = os.environ["PADDOCK_URL"]
KEY = os.environ["PADDOCK_API_KEY"]
PADDOCK = os.environ["PADDOCK"]
NODE = os.environ["MCP_NODE"]
PATIENCE = float(os.environ.get("PADDOCK_TEST_PATIENCE", "1"))
PACKAGES = os.path.join(os.environ["MCP_JS"], "node_modules")


def node(script, *words, check=True):
    env = {**os.environ, "PATH": os.path.dirname(os.path.realpath(NODE)) + ":" + os.environ["PATH"]}
    done = subprocess.run([NODE, os.path.join(PACKAGES, script), *words], env=env, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=60 * PATIENCE, check=False)
    assert not check or done.returncode == 0, done
    return done


# ---- the inspector ----

WAYS = {"http": [f"{URL}/mcp", "--transport", "http", "--header", f"Authorization: Bearer {KEY}"],
        "stdio": ["-e", f"PADDOCK_URL={URL}", "-e", f"PADDOCK_API_KEY={KEY}", PADDOCK, "mcp"]}
both = pytest.mark.parametrize("way", WAYS)


def inspect(way, *words, check=True):
    return node(".bin/mcp-inspector", "--cli", *WAYS[way], *words, check=check)


@both
def test_inspector_lists_tools(way):
    done = inspect(way, "--method", "tools/list", "--strict")
    assert len(json.loads(done.stdout)["tools"]) == 13
    assert "Warning" not in done.stderr and "Error" not in done.stderr, done.stderr


@both
def test_inspector_calls_a_tool(way):
    done = inspect(way, "--method", "tools/call", "--tool-name", "run_code",
                   "--tool-arg", "language=python", "code=print(6*7)")
    assert json.loads(done.stdout)["structuredContent"]["stdout"] == "42\n"


@both
def test_inspector_is_told_of_errors(way):
    done = inspect(way, "--method", "tools/call", "--tool-name", "read_file",
                   "--tool-arg", "path=/none", check=False)
    assert "/none" in done.stdout + done.stderr


@both
def test_inspector_reads_resources(way):
    assert json.loads(inspect(way, "--method", "resources/list").stdout) == {"resources": []}
    done = inspect(way, "--method", "resources/read", "--uri", "file:///etc/hostname")
    assert json.loads(done.stdout)["contents"][0]["mimeType"] == "text/plain"
    done = inspect(way, "--method", "resources/templates/list")
    assert len(json.loads(done.stdout)["resourceTemplates"]) == 1


# ---- the conformance suite ----


class Proxy(http.server.BaseHTTPRequestHandler):
    """Passes everything on as it is, with a key."""

    protocol_version = "HTTP/1.1"

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        there = http.client.HTTPConnection(URL.removeprefix("http://"), timeout=60 * PATIENCE)
        there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                there.putheader(name, value)
        there.putheader("X-API-Key", KEY)
        there.putheader("Content-Length", str(len(body)))
        there.endheaders(body)
        answer = there.getresponse()
        data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "content-length", "transfer-encoding", "date"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        there.close()

    do_GET = do_POST = do_DELETE = pass_on

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def proxy():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/mcp"
    server.shutdown()


def conform(proxy, scenario):
    return node("@modelcontextprotocol/conformance/dist/index.js", "server", "--url", proxy,
                "--scenario", scenario, check=False)


@pytest.mark.parametrize("scenario", [
    "server-initialize", "ping", "tools-list", "resources-list", "server-sse-multiple-streams",
    "dns-rebinding-protection"])
def test_conformance(proxy, scenario):
    done = conform(proxy, scenario)
    assert done.returncode == 0 and "0 failed" in done.stdout, done


def test_conformance_can_fail(proxy):
    """The control: there are no prompts."""
    assert conform(proxy, "prompts-list").returncode != 0
