"""`Sandbox.files`."""

from __future__ import annotations

import contextlib
import contextvars
import posixpath
import stat as stat_bits
import threading
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import BinaryIO, Dict, Iterator, List, Literal, Mapping, Optional, Union, overload

from . import _cancel
from ._backend import Backend
from .errors import ConflictError, InvalidArgumentError, NotFoundError, PaddockError
from .models import Entry, Match, Record, Replaced, parse_time

Data = Union[str, bytes, BinaryIO]


class FileType(Enum):
    """What an entry is."""

    FILE = "file"
    DIR = "dir"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    DEVICE = "device"


@dataclass
class EntryInfo(Record):
    """A file or a directory."""

    name: str
    type: FileType
    path: str
    size: int
    mode: int
    permissions: str
    """Such as `rw-r--r--`."""
    owner: str
    group: str
    modified_time: Optional[datetime]
    symlink_target: Optional[str] = None


class FilesystemEventType(Enum):
    """What happened to an entry."""

    CREATE = "create"
    WRITE = "write"
    REMOVE = "remove"
    RENAME = "rename"
    CHMOD = "chmod"
    OVERFLOW = "overflow"
    """Events were lost: look again."""


@dataclass
class FilesystemEvent(Record):
    """A change below a directory that is watched."""

    name: str
    """Relative to that directory."""
    type: FilesystemEventType


_EVENTS = {"created": FilesystemEventType.CREATE, "modified": FilesystemEventType.WRITE,
           "removed": FilesystemEventType.REMOVE, "moved": FilesystemEventType.RENAME,
           "attributes": FilesystemEventType.CHMOD, "overflow": FilesystemEventType.OVERFLOW}
_NAMES = {0: "root", 1000: "user"}


def entry_info(entry: Entry) -> EntryInfo:
    """An entry as E2B's package describes it."""
    mode = int(entry.mode, 8)
    return EntryInfo(
        name=entry.name, type=FileType(entry.type), path=entry.path, size=entry.size, mode=mode,
        permissions=stat_bits.filemode(mode)[1:], owner=_NAMES.get(entry.uid, str(entry.uid)),
        group=_NAMES.get(entry.gid, str(entry.gid)), modified_time=parse_time(entry.modified_at),
        symlink_target=entry.target)


class WatchHandle:
    """A directory that is watched. Events are collected until `get_new_events` is called."""

    def __init__(self, backend: Backend, sandbox_id: str, path: str, recursive: bool,
                 user: Optional[str]) -> None:
        self._lock = threading.Lock()
        self._events: List[FilesystemEvent] = []
        self._error: Optional[PaddockError] = None
        self._token = _cancel.CancelToken()
        self._ready = threading.Event()
        self._base = ""

        def watch() -> None:
            _cancel._token.set(self._token)
            try:
                self._base = posixpath.join("/workspace", path)
                for event in backend.watch(sandbox_id, path, recursive=recursive, user=user):
                    self._take(event)
            except PaddockError as error:
                if not self._token.cancelled:
                    self._error = error
            finally:
                self._ready.set()

        context = contextvars.copy_context()
        self._thread = threading.Thread(target=lambda: context.run(watch), daemon=True,
                                        name="paddock-watch")
        self._thread.start()
        self._ready.wait()
        if self._error:
            raise self._error

    def _take(self, event: Dict[str, str]) -> None:
        if event["event"] == "ready":
            # As events tell it: at provider local the workspace is somewhere else.
            self._base = event.get("path") or self._base
            self._ready.set()
        elif event["event"] in _EVENTS:
            name = posixpath.relpath(event.get("path") or self._base, self._base)
            with self._lock:
                self._events.append(FilesystemEvent(name, _EVENTS[event["event"]]))

    def get_new_events(self) -> List[FilesystemEvent]:
        """What happened since the last call."""
        with self._lock:
            events, self._events = self._events, []
        if not events and self._error:
            raise self._error
        return events

    def stop(self) -> None:
        """Stops watching."""
        self._token.cancel()
        self._thread.join(10)

    def __enter__(self) -> WatchHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Filesystem:
    """Files of a sandbox. Relative paths are below /workspace."""

    def __init__(self, backend: Backend, sandbox_id: str) -> None:
        self._backend = backend
        self._sandbox_id = sandbox_id

    @overload
    def read(self, path: str, format: Literal["text"] = "text", user: Optional[str] = None,
             request_timeout: Optional[float] = None) -> str: ...

    @overload
    def read(self, path: str, format: Literal["bytes"], user: Optional[str] = None,
             request_timeout: Optional[float] = None) -> bytes: ...

    @overload
    def read(self, path: str, format: Literal["stream"], user: Optional[str] = None,
             request_timeout: Optional[float] = None) -> Iterator[bytes]: ...

    def read(self, path: str, format: str = "text", user: Optional[str] = None,
             request_timeout: Optional[float] = None) -> Union[str, bytes, Iterator[bytes]]:
        """The contents of a file: as "text", as "bytes", or as a "stream" of pieces."""
        if format == "stream":
            return self._backend.iter_file(self._sandbox_id, path, user=user)
        if format not in ("text", "bytes"):
            raise InvalidArgumentError(f"format: '{format}' is not one of text, bytes, stream",
                                       details={"field": "format"})
        data = self._backend.read_file(self._sandbox_id, path, user=user)
        return data if format == "bytes" else data.decode("utf-8", "replace")

    def write(self, path: str, data: Data, user: Optional[str] = None,
              request_timeout: Optional[float] = None) -> EntryInfo:
        """Writes a file, at once and whole; missing directories are made."""
        return entry_info(self._backend.write_file(self._sandbox_id, path, data, user=user))

    def write_files(self, files: List[Mapping[str, Data]], user: Optional[str] = None,
                    request_timeout: Optional[float] = None) -> List[EntryInfo]:
        """Writes several files, given as dictionaries with `path` and `data`."""
        return [self.write(str(f["path"]), f["data"], user) for f in files]

    def list(self, path: str = ".", depth: int = 1, user: Optional[str] = None,
             request_timeout: Optional[float] = None) -> List[EntryInfo]:
        """The entries of a directory, sorted by path; `depth` levels of it."""
        return [entry_info(e) for e in self._backend.list_files(
            self._sandbox_id, path, depth=depth, user=user)]

    def exists(self, path: str, user: Optional[str] = None,
               request_timeout: Optional[float] = None) -> bool:
        """Whether there is such a file or directory."""
        try:
            self._backend.stat(self._sandbox_id, path, user=user)
        except NotFoundError:
            # Without its sandbox nothing is there either, but that is no answer to this question.
            self._backend.find(self._sandbox_id)
            return False
        return True

    def get_info(self, path: str, user: Optional[str] = None,
                 request_timeout: Optional[float] = None) -> EntryInfo:
        """One entry; of a symbolic link, the link itself."""
        return entry_info(self._backend.stat(self._sandbox_id, path, user=user))

    def remove(self, path: str, user: Optional[str] = None,
               request_timeout: Optional[float] = None) -> None:
        """Removes a file, or a directory with all that is in it."""
        self._backend.remove(self._sandbox_id, path, recursive=True, user=user)

    def rename(self, old_path: str, new_path: str, user: Optional[str] = None,
               request_timeout: Optional[float] = None) -> EntryInfo:
        """Moves a file or directory. What is at the new path is replaced."""
        return entry_info(self._backend.move(self._sandbox_id, old_path, new_path, overwrite=True,
                                             user=user))

    def copy(self, path: str, new_path: str, user: Optional[str] = None) -> EntryInfo:
        """Copies a file, or a directory with all that is in it."""
        return entry_info(self._backend.copy(self._sandbox_id, path, new_path, recursive=True,
                                             user=user))

    def make_dir(self, path: str, user: Optional[str] = None,
                 request_timeout: Optional[float] = None) -> bool:
        """Makes a directory and those that it needs. False when it was there."""
        with contextlib.suppress(NotFoundError):
            entry = self._backend.stat(self._sandbox_id, path, user=user)
            if entry.type == "dir":
                return False
            raise ConflictError(f"'{entry.path}' is there, and is no directory")
        self._backend.mkdir(self._sandbox_id, path, parents=True, user=user)
        return True

    def search(self, pattern: str, path: str = ".", mode: str = "literal",
               glob: Optional[str] = None, user: Optional[str] = None) -> List[Match]:
        """Where a pattern is found below a path; `mode` is "literal", "regex" or "name"."""
        return self._backend.search(self._sandbox_id, pattern, path, mode=mode, glob=glob,
                                    user=user).matches

    def replace(self, pattern: str, replacement: str, path: str = ".", mode: str = "literal",
                glob: Optional[str] = None, user: Optional[str] = None) -> List[Replaced]:
        """Replaces every match below a path (or in that file); tells in which files."""
        return self._backend.replace(self._sandbox_id, pattern, replacement, path, mode=mode,
                                     glob=glob, user=user)

    def watch_dir(self, path: str, user: Optional[str] = None,
                  request_timeout: Optional[float] = None, recursive: bool = False) -> WatchHandle:
        """Watches a directory; the handle has the events."""
        return WatchHandle(self._backend, self._sandbox_id, path, recursive, user)
