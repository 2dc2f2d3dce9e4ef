"""What is kept on this machine, below ~/.config/paddock/agents/NAME: memory, skills, conversations.

    AGENTS.md               what the agent remembers; people may edit it
    skills/NAME/SKILL.md    instructions that the model reads when it needs them
    threads/ID.jsonl        conversations: a line that tells what it is, then one line a message

How this works: a message is appended as it happens, so that nothing is lost by a kill. A line that a
kill or a full disk has cut is left out when the conversation is read again, and a call that has no
result gets one that says so, because models refuse conversations with a call that was not answered.
The file of a conversation is locked while an agent has it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, TextIO

from .models import Message
from .text import one_line

MEMORY_MAX = 64 * 1024
THREAD_MAX = 256 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_THREAD = re.compile(r"[a-z0-9]{8,32}")


class StoreError(Exception):
    """Something cannot be kept or found; the text is for people."""


def folder_of_all(environ: Optional[Mapping[str, str]] = None) -> Path:
    """Where all agents are."""
    env = os.environ if environ is None else environ
    config = env.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(config) / "paddock" / "agents"


class Skill(NamedTuple):
    """A skill of the agent."""

    name: str
    description: str
    path: Path


class Store:
    """One agent's folder. It is made when something is kept."""

    def __init__(self, name: str, root: Optional[Path] = None) -> None:
        if not _NAME.fullmatch(name):
            raise StoreError(f"--agent: '{one_line(name, 80)}' is no name of an agent: letters, digits, '.', '_' and "
                             "'-', 64 at most")
        self.name = name
        self.folder = (root or folder_of_all()) / name

    @property
    def memory_path(self) -> Path:
        """The agent's AGENTS.md."""
        return self.folder / "AGENTS.md"

    def memory(self) -> str:
        """What the agent remembers."""
        return read_text(self.memory_path, MEMORY_MAX)

    def remember(self, text: str) -> None:
        """Appends to the memory."""
        line = "- " + " ".join(text.split())
        if len(self.memory()) + len(line) > MEMORY_MAX:
            raise StoreError(f"{self.memory_path} is full: shorten it by hand")
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(self.memory_path, "a", encoding="utf-8", errors="replace") as out:
                out.write(line + "\n")
        except OSError as error:
            raise StoreError(f"{self.memory_path} cannot be written: {error.strerror}") from None

    def skills(self) -> List[Skill]:
        """Every SKILL.md, with what its head says about it."""
        found = []
        for path in sorted(self.folder.glob("skills/*/SKILL.md")):
            head = _front_matter(read_text(path, 4096))
            found.append(Skill(path.parent.name, one_line(head.get("description", ""), 300), path))
        return found

    def read_skill(self, name: str) -> Optional[str]:
        """The text of a skill that there is."""
        for skill in self.skills():
            if skill.name == name:
                return read_text(skill.path, MEMORY_MAX)
        return None

    def threads(self) -> List[Path]:
        """The conversations, the newest first."""
        found = [p for p in self.folder.glob("threads/*.jsonl") if _THREAD.fullmatch(p.stem)]
        return sorted(found, key=_changed, reverse=True)

    def thread_path(self, thread: str) -> Path:
        """Of a conversation that there is."""
        path = self.folder / "threads" / f"{thread}.jsonl"
        if not _THREAD.fullmatch(thread) or not path.is_file():
            raise StoreError(f"-r: agent '{self.name}' has no conversation '{one_line(thread, 80)}': see "
                             "`paddock-agent list`")
        return path

    def what_goes(self) -> List[Path]:
        """What a reset removes."""
        return [p for p in (self.memory_path, self.folder / "skills", self.folder / "threads") if p.exists()]

    def reset(self, source: Optional[Store] = None) -> None:
        """Removes everything; memory and skills are then those of `source`."""
        try:
            for path in self.what_goes():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            if source is None:
                return
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if source.memory_path.exists():
                shutil.copyfile(source.memory_path, self.memory_path)
            if (source.folder / "skills").exists():
                shutil.copytree(source.folder / "skills", self.folder / "skills", symlinks=True)
        except OSError as error:
            raise StoreError(f"{self.folder}: {error.strerror}: {error.filename}") from None


def all_agents(root: Optional[Path] = None) -> List[Store]:
    """Every agent of this user."""
    base = root or folder_of_all()
    names = sorted(p.name for p in base.iterdir() if p.is_dir()) if base.is_dir() else []
    return [Store(name, base) for name in names if _NAME.fullmatch(name)]


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def read_text(path: Path, limit: int) -> str:
    """The beginning of a file; "" when there is none."""
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def _front_matter(text: str) -> Dict[str, str]:
    """`name: value` of the lines between two lines of three dashes."""
    found: Dict[str, str] = {}
    lines = text.splitlines()
    if not lines or lines[0].strip() != "---":
        return found
    for line in lines[1:]:
        if line.strip() == "---":
            break
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip().strip("'\"")
    return found


class Thread:
    """A conversation: its messages, and the file that they are kept in."""

    def __init__(self, path: Path, head: Dict[str, Any], messages: List[Message]) -> None:
        self.path = path
        self.head = head
        self.messages = messages
        self._file: Optional[TextIO] = None
        self.problem = ""
        """Why it is not kept, if it is not."""

    @property
    def id(self) -> str:
        """Its name among the agent's conversations."""
        return self.path.stem

    @classmethod
    def begin(cls, store: Store, **head: Any) -> Thread:
        """A new one. Its file is made with the first message."""
        name = secrets.token_hex(6)
        return cls(store.folder / "threads" / f"{name}.jsonl",
                   {"thread": name, "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **head}, [])

    @classmethod
    def load(cls, path: Path) -> Thread:
        """One that there is; locked until `close`."""
        thread = cls.peek(path)
        thread._open()
        if thread.problem:
            raise StoreError(thread.problem)
        return thread

    @classmethod
    def peek(cls, path: Path) -> Thread:
        """One that there is, to be looked at."""
        lines = read_text(path, THREAD_MAX).splitlines()
        head = _line(lines[0]) or {} if lines else {}
        return cls(path, head, _healed([m for m in map(_line, lines[1:]) if m and _is_message(m)]))

    def add(self, message: Message) -> None:
        """Appends a message. One that cannot be written is in the conversation nevertheless, and `problem` says why
        it will be gone."""
        self.messages.append(message)
        if self._file is None and not self.problem:
            self._open()
            if self._file is not None and self._file.tell() == 0:
                self._write(self.head)
        if self._file is not None:
            self._write(message)

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._file = open(handle, "a", encoding="utf-8", errors="replace")
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            self.problem = f"conversation {self.id} is open in another agent: end that one, or begin a new one"
        except OSError as error:
            self.problem = f"{self.path} cannot be written: {error.strerror}"

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            self.problem = f"{self.path} cannot be written: {error.strerror}"
            self.close()

    def close(self) -> None:
        """Lets go of the file."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                pass  # what could not be written was told already


def _line(text: str) -> Optional[Dict[str, Any]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _is_message(m: Mapping[str, Any]) -> bool:
    if not isinstance(m.get("text"), str):
        return False
    if m.get("role") == "tool":
        return isinstance(m.get("id"), str)
    calls = m.get("calls", [])
    return m.get("role") in ("user", "assistant") and isinstance(calls, list) and all(
        isinstance(c, dict) and all(isinstance(c.get(k), str) for k in ("id", "name", "arguments")) for c in calls)


def _healed(messages: List[Message]) -> List[Message]:
    """Every call with exactly one result, right behind it."""
    result: List[Message] = []
    waiting: List[str] = []

    def answer_rest() -> None:
        for call_id in waiting:
            result.append(tool_message(call_id, "[the agent was ended before this was done]", is_error=True))
        waiting.clear()

    for message in messages:
        if message["role"] == "tool":
            if message["id"] in waiting:
                waiting.remove(message["id"])
                result.append(message)
            continue
        answer_rest()
        result.append(message)
        waiting = [c["id"] for c in message.get("calls", [])]
    answer_rest()
    return result


def tool_message(call_id: str, text: str, *, is_error: bool = False,
                 images: Optional[List[Dict[str, str]]] = None) -> Message:
    """The result of a call, as conversations have it."""
    message: Message = {"role": "tool", "id": call_id, "text": text, "error": is_error}
    if images:
        message["images"] = images
    return message
