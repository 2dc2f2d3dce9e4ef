"""The tools that the model has: those of /mcp, and two for what is kept on this machine.

How this works: tools.json has the names, descriptions and schemas as the server's /mcp tells them
(scripts/agent-tools makes it), so that a model meets the same tools everywhere. Here they are done
through the package's backend, in either mode, so that output is shown while a command runs. What goes
wrong is a result that says what to do instead; only what ends the turn is raised.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from .. import _cancel
from .._backend import Backend
from .._edit import NotThere, NotUnique, replace_text
from .._text import text_callback
from ..contexts import Code
from ..errors import AuthenticationError, CapacityError, PaddockError, TransportError
from ..execution import Execution
from ..models import ExecResult, ProcessInfo
from .box import Box
from .store import Store, StoreError
from .text import Kept, cut

OUTPUT_MAX = 32 * 1024
FILE_MAX = 2 * 1024 * 1024
SHOWN_MAX = 128 * 1024
LIST_MAX = 500
SEARCH_MAX = 200
TIMEOUT_S = 120.0
TIMEOUT_MAX_S = 3600.0
PICTURES = 4
PICTURE_MAX = 1400 * 1024  # of base64
POLL_S = 0.05

# Without a sandbox there are no contexts, and ports need no link.
NOT_ON_HOST = {"run_code", "preview_port", "session_info"}

OWN: List[Dict[str, Any]] = [
    {"name": "remember",
     "description": "Keeps one line for all later conversations with this user: how they want things done, what the "
                    "project needs. Not for what is only of use now. The user is asked first.",
     "inputSchema": {"type": "object", "properties": {"text": {"type": "string", "description": "The line"}},
                     "required": ["text"], "additionalProperties": False}},
    {"name": "read_skill",
     "description": "Gives the instructions of one of the skills that the system prompt lists. Read a skill before "
                    "you do what it is for.",
     "inputSchema": {"type": "object", "properties": {"name": {"type": "string", "description": "The skill"}},
                     "required": ["name"], "additionalProperties": False}},
]


@dataclass
class Result:
    """What a tool says to the model."""

    text: str
    is_error: bool = False
    images: List[Dict[str, str]] = field(default_factory=list)


class Refusal(Exception):
    """The tool cannot do that; the text tells the model why."""


def mcp_tools() -> List[Dict[str, Any]]:
    """The tools of /mcp. The sandbox is made by the agent, not by the model: create_sandbox is not among them."""
    with open(Path(__file__).parent / "tools.json", encoding="utf-8") as file:
        found: List[Dict[str, Any]] = json.load(file)
    return found


def check(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> List[str]:
    """What is wrong with the arguments of a call."""
    kinds: Dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict}
    properties: Dict[str, Any] = schema.get("properties", {})
    problems = [f"{name}: is required" for name in schema.get("required", []) if name not in arguments]
    for name, value in arguments.items():
        if name not in properties:
            problems.append(f"{name}: is not known; there are: {', '.join(properties) or 'none'}")
            continue
        kind = properties[name].get("type")
        if not isinstance(value, kinds.get(kind, object)) or (isinstance(value, bool) and kind != "boolean"):
            problems.append(f"{name}: must be of type {kind}")
        elif value not in properties[name].get("enum", [value]):
            problems.append(f"{name}: must be one of {', '.join(properties[name]['enum'])}")
    return problems


def _timeout(arguments: Mapping[str, Any]) -> float:
    wanted = float(arguments.get("timeout_s", TIMEOUT_S))
    if not 0 < wanted <= TIMEOUT_MAX_S:
        raise Refusal(f"timeout_s: {wanted:g} is not within 0 and {TIMEOUT_MAX_S:g}")
    return wanted


def _join(out: str, err: str, end: str) -> str:
    """Both streams and how it ended, as /mcp says it."""
    text = out
    if err:
        text += ("\n" if text and not text.endswith("\n") else "") + "[error output]\n" + err
    return text + ("\n" if text and not text.endswith("\n") else "") + end


def _end_of(result: ExecResult) -> str:
    if result.timed_out:
        return "[ended: its time was over; give timeout_s, or use start_process]"
    if result.stopped_by:
        return f"[ended by: {result.stopped_by}]"
    if result.signal:
        return f"[ended by signal {result.signal}]"
    return f"[exit code {result.exit_code}]"


class Tools:
    """The tools, for one sandbox. `show` hears what commands write while they run."""

    def __init__(self, box: Box, store: Store, show: Callable[[str], None], *, is_host: bool = False) -> None:
        self._box = box
        self._store = store
        self._show = show
        left_out = NOT_ON_HOST if is_host else set()
        self.schemas = [t for t in mcp_tools() if t["name"] not in left_out] + OWN
        self._by_name = {t["name"]: t for t in self.schemas}

    @property
    def _backend(self) -> Backend:
        return self._box.backend

    def problem(self, name: str, arguments: Optional[Mapping[str, Any]]) -> Optional[str]:
        """What is wrong with a call, for the model."""
        if name not in self._by_name:
            return f"there is no tool '{name[:80]}'; there are: {', '.join(self._by_name)}"
        if arguments is None:
            return "the arguments are no JSON object: send them again, shorter if they were cut off"
        problems = check(self._by_name[name]["inputSchema"], arguments)
        return "; ".join(problems) if problems else None

    def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """Makes a call that has no `problem`. Raises what ends the turn: the sandbox cannot be reached at all."""
        try:
            done: Result = getattr(self, "_" + name)(arguments)
            return done
        except (Refusal, StoreError) as refusal:
            return Result(f"Error: {refusal}", True)
        except _cancel.Cancelled:
            raise
        except (TransportError, AuthenticationError, CapacityError):
            raise
        except PaddockError as error:
            if self._box.is_lost(error):
                return Result(f"Error: {error.message}. The next call gets a new sandbox", True)
            return Result(f"Error: {error.message} ({error.remedy})", True)
        except Exception as error:  # whatever a model comes up with must not end the agent
            return Result(f"Error: this call cannot be made: {type(error).__name__}: {error}", True)

    # ---- commands ----

    def _run_command(self, a: Mapping[str, Any]) -> Result:
        # Kept here, not by the backend: what the library has forgotten of very much output is its head.
        out, err = Kept(OUTPUT_MAX), Kept(OUTPUT_MAX)
        take_out, finish_out = self._taker(out)
        take_err, finish_err = self._taker(err)
        done = self._backend.exec(self._box.id, a["command"], cwd=a.get("cwd"), timeout_s=_timeout(a),
                                  output_max_bytes=1, on_stdout=take_out, on_stderr=take_err)
        finish_out()
        finish_err()
        return Result(_join(out.text(), err.text(), _end_of(done)), done.stopped_by is not None)

    def _taker(self, kept: Kept) -> Tuple[Callable[[bytes], None], Callable[[], None]]:
        """What takes the output of a command, for the model and the screen, and what to call at its end."""
        hear, finish = text_callback(self._show)
        assert hear is not None
        show = hear

        def take(data: bytes) -> None:
            kept.add(data)
            show(data)

        return take, finish

    def _run_code(self, a: Mapping[str, Any]) -> Result:
        code = Code(self._backend, self._box.id)
        context = self._context(code, a["language"], a.get("context"))
        if a.get("reset"):
            code.restart(context)
        done = code.run(a["code"], context=context, timeout=_timeout(a), on_stdout=lambda m: self._show(m.line),
                        on_stderr=lambda m: self._show(m.line))
        return _code_result(done)

    @staticmethod
    def _context(code: Code, language: str, name: Optional[str]) -> str:
        if name is None:
            return language
        for context in code.list():
            if context.name == name and context.language == language:
                return context.id
        return code.create(language=language, name=name).id

    # ---- files ----

    def _read_file(self, a: Mapping[str, Any]) -> Result:
        size = self._backend.stat(self._box.id, a["path"]).size
        if size > FILE_MAX:
            raise Refusal(f"'{a['path']}' has {size} bytes: files of up to {FILE_MAX} are read whole; use head, tail or "
                          "sed with run_command")
        try:
            lines = self._backend.read_file(self._box.id, a["path"], length=FILE_MAX).decode().splitlines(True)
        except UnicodeDecodeError:
            raise Refusal(f"'{a['path']}' is no text: use a program with run_command") from None
        first, count = a.get("first_line", 1), a.get("lines", len(lines))
        if first < 1 or count < 0:
            raise Refusal("first_line and lines are counted from 1")
        return Result(_some_lines(lines, first, count))

    def _write_file(self, a: Mapping[str, Any]) -> Result:
        data = a["content"].encode("utf-8", "surrogatepass")
        self._backend.write_file(self._box.id, a["path"], data)
        return Result(f"wrote {len(data)} bytes to {a['path']}")

    def _edit_file(self, a: Mapping[str, Any]) -> Result:
        if not a["old_text"]:
            raise Refusal("old_text: is empty; use write_file for a new file")
        try:
            count = replace_text(self._backend, self._box.id, a["path"], a["old_text"], a["new_text"],
                                 bool(a.get("all")))
        except NotThere:
            raise Refusal(f"old_text: is not in '{a['path']}'; read the file and give the text exactly as it "
                          "is") from None
        except NotUnique as error:
            raise Refusal(f"old_text: is in '{a['path']}' {error.count} times; give more of the lines around it, or set "
                          "`all`") from None
        return Result(f"replaced {count} in {a['path']}")

    def _list_files(self, a: Mapping[str, Any]) -> Result:
        entries = self._backend.list_files(self._box.id, a.get("path", "."), depth=a.get("depth", 1))
        lines = [e.path + ("/" if e.type == "dir" else "") for e in entries[:LIST_MAX]]
        if len(entries) > LIST_MAX:
            lines.append(f"[... {len(entries) - LIST_MAX} more ...]")
        return Result("\n".join(lines) or "[the directory is empty]")

    def _search_files(self, a: Mapping[str, Any]) -> Result:
        found = self._backend.search(self._box.id, a["pattern"], a.get("path", "."), mode=a.get("mode", "literal"),
                                     glob=a.get("glob"), limit=SEARCH_MAX)
        lines = [f"{m.path}:{m.line}: {(m.text or '')[:500]}" if m.line else m.path for m in found.matches]
        if found.truncated:
            lines.append("[... there are more ...]")
        return Result("\n".join(lines) or "[nothing was found]")

    # ---- processes ----

    def _start_process(self, a: Mapping[str, Any]) -> Result:
        started = self._backend.start(self._box.id, a["command"], cwd=a.get("cwd"), stdin=True)
        return Result(f"started with pid {started.pid}")

    def _check_process(self, a: Mapping[str, Any]) -> Result:
        pid, box = a["pid"], self._box.id
        if a.get("input"):
            self._backend.write_stdin(box, pid, a["input"].encode("utf-8", "surrogatepass"))
        until = time.monotonic() + min(max(float(a.get("wait_s", 0)), 0), TIMEOUT_MAX_S)
        info = self._backend.process(box, pid)
        while info.running and time.monotonic() < until and not _cancel.cancelled():
            time.sleep(POLL_S)
            info = self._backend.process(box, pid)
        return self._look(info, _place(a.get("from", "0.0")), with_next=True)

    def _stop_process(self, a: Mapping[str, Any]) -> Result:
        info = self._backend.process(self._box.id, a["pid"])
        if info.running:
            self._backend.kill(self._box.id, info.process_id)
            until = time.monotonic() + 5
            while info.running and time.monotonic() < until:
                time.sleep(POLL_S)
                info = self._backend.process(self._box.id, info.process_id)
        return self._look(info, (0, 0), with_next=False)

    def _look(self, info: ProcessInfo, place: Tuple[int, int], *, with_next: bool) -> Result:
        out = self._output(info, "stdout", place[0], info.stdout_first, info.stdout_bytes)
        err = self._output(info, "stderr", place[1], info.stderr_first, info.stderr_bytes)
        if info.running:
            end = "[still running]"
        elif info.signal or info.stopped_by:
            end = f"[ended by: {info.stopped_by or info.signal}]"
        else:
            end = f"[exit code {info.exit_code}]"
        if with_next:
            end += f"\n[next: {info.stdout_bytes}.{info.stderr_bytes}]"
        return Result(_join(out, err, end))

    def _output(self, info: ProcessInfo, stream: str, begin: int, first: int, end: int) -> str:
        begin = min(max(begin, first), end)
        if end - begin <= OUTPUT_MAX:
            return self._piece(info, stream, begin, end)
        half = OUTPUT_MAX // 2
        return (self._piece(info, stream, begin, begin + half)
                + f"\n[... {end - begin - 2 * half} bytes are left out ...]\n"
                + self._piece(info, stream, end - half, end))

    def _piece(self, info: ProcessInfo, stream: str, begin: int, end: int) -> str:
        data = b""
        while begin + len(data) < end:
            chunk = self._backend.read_output(self._box.id, info.process_id, stream=stream, offset=begin + len(data),
                                              limit=end - begin - len(data))
            if not chunk.data:
                break
            data += chunk.data
        return data.decode("utf-8", "replace")

    # ---- the sandbox, this machine ----

    def _preview_port(self, a: Mapping[str, Any]) -> Result:
        return Result(self._backend.preview(self._box.id, a["port"]).url)

    def _session_info(self, _: Mapping[str, Any]) -> Result:
        info, env = self._box.info(), self._backend.environment(self._box.id)
        lines = [f"id: {info.id}", f"directory: {env.cwd}", f"limits: {json.dumps(info.limits)}"]
        lines += [f"process {p.pid}: {p.command}" for p in self._backend.processes(self._box.id) if p.running]
        return Result("\n".join(lines))

    def _remember(self, a: Mapping[str, Any]) -> Result:
        self._store.remember(a["text"])
        return Result("kept")

    def _read_skill(self, a: Mapping[str, Any]) -> Result:
        text = self._store.read_skill(a["name"])
        if text is None:
            raise Refusal(f"there is no skill '{a['name'][:80]}'; there are: "
                          + (", ".join(s.name for s in self._store.skills()) or "none"))
        return Result(text)


def _some_lines(lines: List[str], first: int, count: int) -> str:
    text, size, at = "", 0, first - 1
    if not lines:
        return "[the file is empty]"
    if first > len(lines):
        return f"[the file has only {len(lines)} lines]"
    for line in lines[first - 1:first - 1 + count]:
        size += len(line)
        if size > SHOWN_MAX:
            rest = "" if text else line[:SHOWN_MAX] + f"\n[... line {at + 1} is cut ...]"
            at += 0 if text else 1
            return text + rest + f"\n[... more: go on with first_line {at + 1} of {len(lines)} ...]"
        text += line
        at += 1
    return text


def _place(text: str) -> Tuple[int, int]:
    out, _, err = text.partition(".")
    if not out.isdigit() or not err.isdigit():
        raise Refusal(f"from: '{text[:40]}' is no place: give `next` of an earlier call")
    return int(out), int(err)


def _code_result(done: Execution) -> Result:
    images: List[Dict[str, str]] = []
    parts = []
    for result in done.results:
        for kind, data in (("png", result.png), ("jpeg", result.jpeg)):
            if data and len(images) < PICTURES and len(data) <= PICTURE_MAX:
                images.append({"type": f"image/{kind}", "data": data})
        shown = result.text or result.markdown or result.latex or result.html or ""
        parts.append(cut(shown, OUTPUT_MAX) or "[a result without text]")
    text = _join(cut("".join(done.logs.stdout), OUTPUT_MAX), cut("".join(done.logs.stderr), OUTPUT_MAX),
                 "\n".join(parts))
    is_error = False
    if done.error is not None:
        text = _join(text, "", cut(done.error.traceback or f"{done.error.name}: {done.error.value}", OUTPUT_MAX))
        is_error = done.error.name == "ContextRestarting"
    elif done.state_lost:
        text = _join(text, "", "[this ran in a new interpreter, without earlier variables]")
    if done.reason == "timeout":
        text = _join(text, "", "[interrupted: its time was over; give timeout_s. Variables are there]")
        is_error = True
    return Result(text or "[done; nothing was shown]", is_error, images)
