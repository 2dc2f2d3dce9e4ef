"""Tools for files."""

from __future__ import annotations

import contextlib
import posixpath
from typing import List, Optional

from pydantic import BaseModel, Field

from .._edit import NotThere, NotUnique, replace_text
from ..errors import ConflictError, NotFoundError
from ..session import SandboxSession
from ._kit import Answer, Refusal, cut, tool

_FILE = "Path of the file; a relative path is below /workspace."
READ_MAX = 10 * 1024 * 1024


class FileRead(BaseModel):
    file: str = Field(description=_FILE)
    start_line: Optional[int] = Field(None, ge=1, description="First line to read, from 1 on.")
    end_line: Optional[int] = Field(None, ge=1, description="Last line to read, inclusive.")


@tool("file_read", FileRead, """Read a text file of the sandbox, whole or some lines of it. Long files
      are cut in the middle: read them in pieces by start_line and end_line.""")
def file_read(session: SandboxSession, a: FileRead) -> Answer:
    entry = session.backend.stat(session.sandbox_id, a.file)
    if entry.type == "dir":
        raise Refusal(f"Error: {entry.path} is a directory; use file_list")
    data = session.backend.read_file(session.sandbox_id, a.file, length=READ_MAX)
    if b"\0" in data[:8192]:
        raise Refusal(f"Error: {entry.path} is a binary file of {entry.size} bytes; look at it with "
                      "python_exec or shell_exec")
    text = data.decode("utf-8", "replace")
    lines = text.splitlines(keepends=True)
    about: dict[str, object] = {"path": entry.path, "size": entry.size, "lines": len(lines)}
    if a.start_line is None and a.end_line is None:
        if not text:
            return Answer(f"[{entry.path} is empty]", about)
        note = "" if len(data) == entry.size else f"\n[the first {READ_MAX} bytes of {entry.size}]"
        return Answer(text + note, about)
    first, last = a.start_line or 1, min(a.end_line or len(lines), len(lines))
    if first > last:
        raise Refusal(f"Error: {entry.path} has {len(lines)} lines; there are none from {first} to "
                      f"{a.end_line or 'the end'}")
    shown = "".join(lines[first - 1:last])
    end = "" if shown.endswith("\n") else "\n"
    return Answer(f"{shown}{end}[lines {first} to {last} of {len(lines)}]", about)


class FileWrite(BaseModel):
    file: str = Field(description=_FILE)
    content: str = Field(description="The whole text that the file gets.")
    append: bool = Field(False, description="Add it to the end instead of replacing the file.")


@tool("file_write", FileWrite, """Write a text file in the sandbox. Missing directories are made, and a
      file that is there is replaced. To change a part of a file, use file_replace.""")
def file_write(session: SandboxSession, a: FileWrite) -> Answer:
    data = a.content.encode("utf-8", "surrogatepass")
    if a.append:
        with contextlib.suppress(NotFoundError):
            data = session.backend.read_file(session.sandbox_id, a.file) + data
    entry = session.backend.write_file(session.sandbox_id, a.file, data)
    did = "appended to" if a.append else "wrote"
    return Answer(f"{did} {entry.path}, now {entry.size} bytes",
                  {"path": entry.path, "size": entry.size})


class FileDelete(BaseModel):
    file: str = Field(description="Path of the file or directory; relative to /workspace.")
    recursive: bool = Field(False, description="Remove a directory with all that is in it.")


@tool("file_delete", FileDelete, """Delete a file or an empty directory of the sandbox; with recursive,
      a directory with all that is in it. This cannot be undone.""")
def file_delete(session: SandboxSession, a: FileDelete) -> Answer:
    path = posixpath.normpath(posixpath.join("/workspace", a.file))
    if path in ("/", "/workspace"):
        raise Refusal(f"Error: {path} itself cannot be deleted; name what is in it")
    try:
        session.backend.remove(session.sandbox_id, a.file, recursive=a.recursive)
    except ConflictError as error:
        raise Refusal(f"Error: {error.message} (recursive=true)") from None
    return Answer(f"deleted {path}", {"path": path})


class FileList(BaseModel):
    path: str = Field(".", description="The directory; a relative path is below /workspace.")
    depth: int = Field(1, ge=1, le=20, description="How many levels of directories.")


@tool("file_list", FileList, """List a directory of the sandbox: one entry per line, directories end
      with a slash, files have their size in bytes.""")
def file_list(session: SandboxSession, a: FileList) -> Answer:
    entries = session.backend.list_files(session.sandbox_id, a.path, depth=a.depth)
    lines: List[str] = []
    for e in entries:
        if e.type == "dir":
            lines.append(f"{e.path}/")
        elif e.type == "symlink":
            lines.append(f"{e.path} -> {e.target}")
        else:
            lines.append(f"{e.path} ({e.size})")
    text = "\n".join(lines) or f"[{posixpath.normpath(posixpath.join('/workspace', a.path))} is empty]"
    return Answer(text, {"entries": [
        {"path": e.path, "type": e.type, "size": e.size, "modified_at": e.modified_at}
        for e in entries[:1000]]})


class FileSearch(BaseModel):
    pattern: str = Field(min_length=1, max_length=4096, description="What to look for.")
    path: str = Field(".", description="A directory or a file; relative to /workspace.")
    regex: bool = Field(False, description="The pattern is a POSIX extended regular expression "
                                           "(no \\d or \\w), not plain text.")
    names: bool = Field(False, description="Look for files by name instead of in their contents; "
                                           "the pattern is then a glob such as *.csv.")
    glob: Optional[str] = Field(None, description="Only in files whose name matches, such as *.py.")
    case_sensitive: bool = Field(True, description="Tell upper case from lower case.")
    max_results: int = Field(100, ge=1, le=1000, description="At most so many results.")


@tool("file_search", FileSearch, """Search in the files below a directory of the sandbox, by plain text
      or regular expression; results are FILE:LINE: TEXT. With names, find files by a glob for their
      name.""")
def file_search(session: SandboxSession, a: FileSearch) -> Answer:
    mode = "name" if a.names else "regex" if a.regex else "literal"
    found = session.backend.search(
        session.sandbox_id, a.pattern, a.path, mode=mode, glob=a.glob,
        case_sensitive=a.case_sensitive, limit=a.max_results)
    lines = [m.path if a.names else f"{m.path}:{m.line}: {cut(m.text or '', 500)}"
             for m in found.matches]
    if found.truncated:
        lines.append(f"[there are more than {a.max_results}: search for something more special]")
    return Answer("\n".join(lines) or "[nothing found]", {
        "matches": [{"path": m.path, "line": m.line, "text": m.text} for m in found.matches],
        "truncated": found.truncated})


class FileReplace(BaseModel):
    file: str = Field(description=_FILE)
    old_str: str = Field(min_length=1, description="The text to be replaced, exactly as it is in the "
                                                   "file, with its spaces and line ends.")
    new_str: str = Field(description="The text that takes its place; empty to remove it.")
    replace_all: bool = Field(False, description="Replace it wherever it is, not only once.")


@tool("file_replace", FileReplace, """Replace text in a file of the sandbox. Unless replace_all is set
      the old text must be there exactly once: take more of the lines around it to be sure.""")
def file_replace(session: SandboxSession, a: FileReplace) -> Answer:
    entry = session.backend.stat(session.sandbox_id, a.file)
    if entry.type == "dir":
        raise Refusal(f"Error: {entry.path} is a directory; name one file")
    try:
        count = replace_text(session.backend, session.sandbox_id, a.file, a.old_str, a.new_str,
                             a.replace_all)
    except NotThere:
        raise Refusal(f"Error: old_str is not in {entry.path}; read the file and copy it exactly, "
                      "with spaces and line ends") from None
    except NotUnique as error:
        raise Refusal(f"Error: old_str is in {entry.path} {error.count} times; take more of the "
                      "lines around it, or pass replace_all=true") from None
    times = "1 time" if count == 1 else f"{count} times"
    return Answer(f"replaced {times} in {entry.path}", {"path": entry.path, "replacements": count})
