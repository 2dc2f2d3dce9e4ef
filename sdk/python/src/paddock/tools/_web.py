"""Tools for HTTP and pages."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from typing import Dict, List, Optional, Tuple

from pydantic import BaseModel, Field

from ..session import SandboxSession
from ._kit import NO_NETWORK, Answer, Refusal, cut, is_network, tool

BODY_MAX = 1024 * 1024

# Runs in the sandbox, with the request as JSON on standard input.
_REQUEST = """
import base64, json, sys, urllib.error, urllib.request
q = json.load(sys.stdin)
data = None if q["body"] is None else q["body"].encode()
request = urllib.request.Request(q["url"], data, q["headers"], method=q["method"])
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    try:
        answer = opener.open(request, timeout=q["timeout"])
    except urllib.error.HTTPError as error:
        answer = error
    body = answer.read(q["max"] + 1)
    result = {"status": answer.getcode(), "url": answer.geturl(),
              "headers": dict(answer.headers.items()),
              "body": base64.b64encode(body[:q["max"]]).decode(), "more": len(body) > q["max"]}
except Exception as error:
    result = {"error": "%s: %s" % (type(error).__name__, getattr(error, "reason", error))}
json.dump(result, sys.stdout)
"""


class HttpRequest(BaseModel):
    url: str = Field(description="Such as http://127.0.0.1:8000/items.")
    method: str = Field("GET", pattern="^[A-Za-z]{1,16}$", description="GET, POST, PUT, ...")
    headers: Optional[Dict[str, str]] = Field(None, description="Headers of the request.")
    body: Optional[str] = Field(None, description="The body of the request.")
    timeout: float = Field(30, gt=0, le=600, description="Seconds to wait for the answer.")


@tool("http_request", HttpRequest, """Send an HTTP request from inside the sandbox to a program that
      runs in it (http://127.0.0.1:PORT); shows status, headers and body. Unless
      the sandbox was given a way out, nothing outside can be reached.""")
def http_request(session: SandboxSession, a: HttpRequest) -> Answer:
    if not a.url.lower().startswith(("http://", "https://")):
        raise Refusal(f"Error: url: '{a.url}' must begin with http:// or https://")
    query = {"url": a.url, "method": a.method.upper(), "headers": a.headers or {}, "body": a.body,
             "timeout": a.timeout, "max": BODY_MAX}
    result = session.backend.exec(
        session.sandbox_id, ["python3", "-I", "-c", _REQUEST], stdin=json.dumps(query),
        timeout_s=a.timeout + 10, output_max_bytes=4 * BODY_MAX)
    if result.status:
        raise Refusal(f"Error: the request could not be sent: {result.stderr.strip()[-2000:]}")
    reply = json.loads(result.stdout)
    if "error" in reply:
        text = f"Error: {a.url}: {reply['error']}"
        if is_network(reply["error"]):
            text += f"\n{NO_NETWORK}"
        elif "refused" in reply["error"]:
            text += " (nothing listens there: start the program first, with shell_interactive)"
        raise Refusal(text)
    raw = base64.b64decode(reply["body"])
    body = f"[{len(raw)} bytes, not text]" if b"\0" in raw[:8192] else raw.decode("utf-8", "replace")
    lines = [f"HTTP {reply['status']}"]
    lines += [f"{name}: {value}" for name, value in reply["headers"].items()]
    more = f"\n[only the first {BODY_MAX} bytes]" if reply["more"] else ""
    return Answer("\n".join(lines) + "\n\n" + body + more, {
        "status": reply["status"], "headers": reply["headers"], "url": reply["url"],
        "body": cut(body, session.output_max_chars)})


class BrowserOpen(BaseModel):
    url: str = Field(description="Such as http://127.0.0.1:3000/ or file:///workspace/report.html.")
    screenshot: Optional[str] = Field(None, description="Path in the sandbox that a picture of the "
                                                        "page is written to, such as page.png.")
    timeout: float = Field(60, gt=0, le=600, description="Seconds to wait for the page.")


_FIND = ("for b in chromium chromium-browser google-chrome google-chrome-stable chrome "
         "headless_shell; do command -v \"$b\" && exit 0; done; exit 1")
# Its files are in the home: where a sandbox has no root of its own, /tmp is everybody's.
_BROWSE = 'd=$HOME; [ -w "$d" ] || d=/tmp; exec "$0" --user-data-dir="$d/.cache/paddock-browser" "$@"'


@tool("browser_open", BrowserOpen, """Open a page in a headless Chromium inside the sandbox, scripts and
      all; shows its title and text, and can take a screenshot. For pages in the sandbox
      (http://127.0.0.1:PORT or file://): unless it was given a way out, nothing else can be reached.
      Not every sandbox has a browser.""")
def browser_open(session: SandboxSession, a: BrowserOpen) -> Answer:
    found = session.backend.exec(session.sandbox_id, ["/bin/bash", "-lc", _FIND])
    if found.status:
        raise Refusal("Error: this sandbox has no browser: its template has no Chromium. For the "
                      "answer of a server use http_request; for a file, file_read")
    if not a.url.lower().startswith(("http://", "https://", "file://", "data:", "about:")):
        raise Refusal(f"Error: url: '{a.url}' must begin with http://, https:// or file://")
    # It is in a sandbox already, and its own needs rights that there are none of here.
    argv = ["/bin/bash", "-c", _BROWSE, found.stdout.strip(), "--headless", "--no-sandbox", "--disable-gpu", "--mute-audio",
            "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
            "--virtual-time-budget=5000", "--dump-dom"]
    if a.screenshot:
        entry = session.backend.write_file(session.sandbox_id, a.screenshot, b"")
        argv += [f"--screenshot={entry.path}", "--window-size=1280,1024"]
    result = session.backend.exec(session.sandbox_id, [*argv, a.url], timeout_s=a.timeout,
                                  output_max_bytes=8 * BODY_MAX)
    if result.timed_out:
        raise Refusal(f"Error: {a.url} was not loaded in {a.timeout:g} s")
    if result.status or not result.stdout.strip():
        if a.screenshot:
            _remove_empty(session, a.screenshot)
        raise Refusal(_why_not_opened(a.url, result.stderr))
    title, text = page_text(result.stdout)
    data: Dict[str, object] = {"url": a.url, "title": title, "text": text}
    lines = [f"title: {title}"]
    if a.screenshot and _remove_empty(session, a.screenshot):
        lines.append("[the browser has taken no screenshot]")
    elif a.screenshot:
        size = session.backend.stat(session.sandbox_id, entry.path).size
        lines.append(f"screenshot: {entry.path} ({size} bytes)")
        data["screenshot"] = entry.path
    return Answer("\n".join(lines) + "\n\n" + (text or "[no text]"), data)


def _remove_empty(session: SandboxSession, path: str) -> bool:
    """Removes the file that was made for a picture if there is none in it."""
    if session.backend.stat(session.sandbox_id, path).size:
        return False
    session.backend.remove(session.sandbox_id, path)
    return True


def _why_not_opened(url: str, log: str) -> str:
    # It writes much that is of no interest; the reason has a name.
    named = re.search(r"net::(ERR_\w+)", log)
    lines = [line for line in log.splitlines() if line and not line.startswith("[")]
    text = f"Error: {url} could not be opened: {named[1] if named else ' '.join(lines)[-1000:]}"
    if is_network(log):
        return f"{text}\n{NO_NETWORK}"
    if named and named[1] == "ERR_CONNECTION_REFUSED":
        text += " (nothing listens there: start the program first, with shell_interactive)"
    return text


class _Page(HTMLParser):
    _SILENT = {"script", "style", "noscript", "template", "head"}
    _BLOCKS = {"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "table", "section",
               "article", "ul", "ol", "pre", "header", "footer", "form"}

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title: List[str] = []
        self.text: List[str] = []
        self._in_title = False
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        self._in_title = tag == "title"
        if tag in self._SILENT:
            self._silent += 1
        if tag in self._BLOCKS:
            self.text.append("\n")
        if tag in ("td", "th"):
            self.text.append("\t")

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False
        if tag in self._SILENT and self._silent:
            self._silent -= 1
        if tag in self._BLOCKS:
            self.text.append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._silent:
            self.text.append(data)


def page_text(html: str) -> Tuple[str, str]:
    """The title of a page and what a reader sees of it."""
    page = _Page()
    page.feed(html)
    page.close()
    lines = (" ".join(line.split()) for line in "".join(page.text).split("\n"))
    return "".join(page.title).strip(), "\n".join(line for line in lines if line)
