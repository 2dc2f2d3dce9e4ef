"""A backend for deepagents: its files and commands are those of a sandbox.

    from deepagents import create_deep_agent
    from paddock.deepagents import PaddockSandbox

    with PaddockSandbox.create() as backend:
        agent = create_deep_agent(model=model, backend=backend)

How this works: file operations are calls of the server, so the sandbox needs no Python. Since 0.7,
deepagents has other rules for `write` and `glob` than before (an existing file is replaced; paths are
absolute, a name is found at any depth, and directories are left out). `legacy` chooses the older ones;
unless told, it is what the version of deepagents that is installed has.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import posixpath
import threading
from concurrent.futures import Future
from importlib import metadata
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union

try:
    from deepagents.backends import protocol
    from deepagents.backends.protocol import (
        EditResult, ExecuteResponse, FileDownloadResponse, FileInfo, FileUploadResponse, GlobResult,
        GrepMatch, GrepResult, LsResult, ReadResult, SandboxBackendProtocol, WriteResult,
    )
    from wcmatch import glob as wcglob
except ImportError as _error:
    raise ImportError("the backend needs deepagents, which is not installed "
                      f"({_error}): pip install 'paddock[deepagents]'") from None

from ._backend import Backend, open_backend
from ._cancel import in_thread
from ._edit import NotThere, NotUnique, replace_text
from .errors import (
    CommandNotStartedError, ConflictError, DeniedError, InvalidArgumentError, NoSpaceError,
    NotFoundError, PaddockError, PausedError, PolicyError,
)
from .models import Entry, SandboxOptions

__all__ = ["PaddockProvider", "PaddockSandbox"]

P = TypeVar("P", bound="PaddockSandbox")
R = TypeVar("R")

WORKING_DIR = "/workspace"
TIMEOUT_S = 1800.0
IDLE_S = 1800.0
BINARY_MAX = 500 * 1024
TEXT_MAX = 500 * 1024
DEPTH_MAX = 64
SEARCH_MAX = 10000
_TEXT_CUT = ("\n\n[cut: this page is too large. Continue with a larger offset, or read fewer lines at "
             "once]")
_SKIPPED = (".git",)
_OF_FILES = (ConflictError, DeniedError, InvalidArgumentError, NoSpaceError)


def _is_legacy() -> bool:
    try:
        numbers = metadata.version("deepagents").split(".")
        return (int(numbers[0]), int(numbers[1])) < (0, 7)
    except (metadata.PackageNotFoundError, IndexError, ValueError):
        return False


def _made(kind: Callable[..., R], **values: object) -> R:
    """A result, without what the installed version does not know."""
    known = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in known})


def _code(error: PaddockError) -> str:
    """An error as the protocol calls it, else in words."""
    if isinstance(error, NotFoundError):
        return "file_not_found"
    if isinstance(error, DeniedError):
        return "permission_denied"
    if isinstance(error, ConflictError) and "director" in error.message:
        return "is_directory"
    return "invalid_path" if isinstance(error, InvalidArgumentError) else str(error)


def _why(path: str, error: PaddockError) -> str:
    words = {"file_not_found": f"Error: File '{path}' not found",
             "permission_denied": f"Error: Permission denied: '{path}'",
             "is_directory": f"Error: '{path}' is a directory",
             "invalid_path": f"Error: invalid path '{path}': {error.message}"}
    return words.get(_code(error), f"Error: '{path}': {error}")


def _info(entry: Entry, path: Optional[str] = None) -> FileInfo:
    info: FileInfo = {"path": path or entry.path, "is_dir": entry.type == "dir",
                      "size": entry.size}
    if entry.modified_at:
        info["modified_at"] = entry.modified_at
    return info


class PaddockSandbox(SandboxBackendProtocol):
    """A sandbox as a backend of deepagents.

    Thread-safe. As a context manager it ends the sandbox, except one of `for_thread` or one that
    was named by its id.
    """

    def __init__(self, sandbox_id: str, *, mode: Optional[str] = None,
                 server_url: Optional[str] = None, api_key: Optional[str] = None,
                 timeout: float = TIMEOUT_S, legacy: Optional[bool] = None,
                 keep: bool = True) -> None:
        """Holds a sandbox by its id.

        Args:
            timeout: After so many seconds a command is ended that was given no time of its own.
            legacy: The rules of deepagents before 0.7; unless told, those of the one installed.
            keep: Do not end it at the end of the context.
        """
        self._backend: Backend = open_backend(mode, server_url, api_key)
        self._id = sandbox_id
        self._timeout = timeout
        self._legacy = _is_legacy() if legacy is None else legacy
        self._keep = keep

    @classmethod
    def create(cls: Type[P], *, options: Optional[SandboxOptions] = None,
               metadata: Optional[Mapping[str, str]] = None, mode: Optional[str] = None,
               server_url: Optional[str] = None, api_key: Optional[str] = None,
               timeout: float = TIMEOUT_S, legacy: Optional[bool] = None) -> P:
        """Makes a sandbox; it ends with the context, or when nobody has used it for long."""
        backend = open_backend(mode, server_url, api_key)
        wanted = SandboxOptions(**(options.to_dict() if options else {}))
        if wanted.idle_timeout_s is None:
            wanted.idle_timeout_s = IDLE_S
        if metadata:
            wanted.metadata = {**(wanted.metadata or {}), **metadata}
        return cls(backend.create(wanted).id, mode=mode, server_url=server_url, api_key=api_key,
                   timeout=timeout, legacy=legacy, keep=False)

    @classmethod
    def for_thread(cls: Type[P], user: str, thread: str, *,
                   options: Optional[SandboxOptions] = None, auto_retry: bool = True,
                   mode: Optional[str] = None, server_url: Optional[str] = None,
                   api_key: Optional[str] = None, timeout: float = TIMEOUT_S,
                   legacy: Optional[bool] = None) -> P:
        """The sandbox of a user and a thread, made if there is none; it stays for the next turn."""
        backend = open_backend(mode, server_url, api_key)
        info = backend.get_or_create(user, thread, options or SandboxOptions(),
                                     auto_retry=auto_retry)
        return cls(info.id, mode=mode, server_url=server_url, api_key=api_key, timeout=timeout,
                   legacy=legacy)

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        return self._id

    # ---- commands ----

    def execute(self, command: str, *, timeout: Optional[int] = None) -> ExecuteResponse:
        """Runs a line of bash in /workspace; what it writes to both streams is in its order.

        Args:
            timeout: In seconds; 0 is no limit.
        """
        limit = self._timeout if timeout is None else float(timeout)
        try:
            result = self._backend.exec(
                self._id, ["/bin/bash", "-l", "-c", f"exec 2>&1\n{command}"], cwd=WORKING_DIR,
                timeout_s=limit)
        except (CommandNotStartedError, PolicyError) as error:
            return ExecuteResponse(output=f"Error: {error}", exit_code=126, truncated=False)
        output = result.stdout + result.stderr
        if result.timed_out:
            output += f"\n[timed out after {limit:g} s; the command and its children were ended]"
        elif result.stopped_by:
            output += f"\n[stopped by {result.stopped_by}]"
        return ExecuteResponse(output=output, exit_code=result.status,
                               truncated=result.stdout_truncated or result.stderr_truncated)

    async def aexecute(self, command: str, *,
                       timeout: Optional[int] = None) -> ExecuteResponse:
        """`execute` for asyncio; cancelling the task ends the command."""
        return await in_thread(lambda: self.execute(command, timeout=timeout))

    # ---- files ----

    def ls(self, path: str) -> LsResult:
        """The entries of a directory."""
        try:
            entries = self._backend.list_files(self._id, path)
        except PaddockError as error:
            self._raise_if_gone(error)
            return LsResult(error=_why(path, error))
        return LsResult(entries=[_info(e) for e in entries])

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Lines of a text file; any other file whole, as base64."""
        try:
            entry = self._backend.stat(self._id, file_path)
            if entry.type == "dir":
                return ReadResult(error=f"Error: '{file_path}' is a directory")
            data = self._backend.read_file(self._id, file_path)
        except PaddockError as error:
            self._raise_if_gone(error)
            return ReadResult(error=_why(file_path, error))
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return self._binary(file_path, entry, data)
        return self._page(entry, text, max(int(offset), 0), max(int(limit), 0))

    @staticmethod
    def _binary(path: str, entry: Entry, data: bytes) -> ReadResult:
        if len(data) > BINARY_MAX:
            return ReadResult(error=f"File '{path}': Binary file exceeds maximum preview size of "
                                    f"{BINARY_MAX} bytes")
        return ReadResult(file_data=_file(entry, base64.b64encode(data).decode(), "base64"))

    @staticmethod
    def _page(entry: Entry, text: str, offset: int, limit: int) -> ReadResult:
        if not text.strip():
            return ReadResult(file_data=_file(entry, text))
        if limit == 0:
            return _made(ReadResult, file_data=_file(entry, ""), no_lines_requested=True)
        lines = text.replace("\r\n", "\n").replace("\r", "\n").splitlines(keepends=True)
        if offset >= len(lines):
            return ReadResult(
                error=f"Line offset {offset} exceeds file length ({len(lines)} lines)")
        end = offset
        size = 0
        while end < min(offset + limit, len(lines)):
            size += len(lines[end].encode())
            if size > TEXT_MAX and end > offset:
                break
            end += 1
        shown = "".join(lines[offset:end])
        if len(shown) > TEXT_MAX:
            # One line that is larger than a page: the next page would not begin in the middle.
            shown = shown[:TEXT_MAX] + _TEXT_CUT
        elif end < min(offset + limit, len(lines)):
            shown += _TEXT_CUT
        elif end < len(lines):
            shown = shown[:-1] if shown.endswith("\n") else shown
        return _made(ReadResult, file_data=_file(entry, shown), total_lines=len(lines),
                     start_line=offset + 1, end_line=end,
                     next_offset=end if end < len(lines) else None)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Writes a file; missing directories are made."""
        if not file_path.startswith("/"):
            return WriteResult(error=f"Error: '{file_path}' is not an absolute path")
        try:
            if self._legacy and self._exists(file_path):
                return WriteResult(error=f"Error: File '{file_path}' already exists. Read it and "
                                         "then edit it, or write to another path")
            self._backend.write_file(self._id, file_path,
                                     content.encode("utf-8", "surrogatepass"))
        except PaddockError as error:
            self._raise_if_gone(error)
            return WriteResult(error=_why(file_path, error))
        return WriteResult(path=file_path)

    def _raise_if_gone(self, error: PaddockError) -> None:
        """An error that is not about a file but about the sandbox is none that a model can mend."""
        if isinstance(error, NotFoundError):
            info = self._backend.find(self._id)
            if info.state in ("gone", "stopping"):
                raise error
        elif isinstance(error, PausedError) or not isinstance(error, _OF_FILES):
            raise error

    def _exists(self, path: str) -> bool:
        try:
            self._backend.stat(self._id, path)
        except NotFoundError:
            return False
        return True

    def edit(self, file_path: str, old_string: str, new_string: str,
             replace_all: bool = False) -> EditResult:
        """Replaces text that is in a file once, or with `replace_all` any number of times."""
        if not old_string:
            return EditResult(error="Error: old_string is empty")
        try:
            if self._backend.stat(self._id, file_path).type == "dir":
                return EditResult(error=f"Error: '{file_path}' is a directory")
            count = replace_text(self._backend, self._id, file_path, old_string, new_string,
                                 replace_all)
        except NotThere:
            return EditResult(error=f"Error: String not found in file: '{old_string}'")
        except NotUnique as many:
            return EditResult(
                error=f"Error: String '{old_string}' appears multiple times ({many.count}) in file. "
                      "Use replace_all=True, or take more of the lines around it")
        except PaddockError as error:
            self._raise_if_gone(error)
            return EditResult(error=_why(file_path, error))
        return EditResult(path=file_path, occurrences=count)

    def delete(self, file_path: str) -> Any:
        """Removes a file, or a directory with all that is in it."""
        made: Callable[..., Any] = getattr(protocol, "DeleteResult", WriteResult)
        if posixpath.normpath(file_path) in ("/", WORKING_DIR):
            return made(error=f"Error: '{file_path}' itself cannot be deleted")
        try:
            self._backend.remove(self._id, file_path, recursive=True)
        except PaddockError as error:
            self._raise_if_gone(error)
            return made(error=_why(file_path, error))
        return made(path=file_path)

    # ---- search ----

    def _real(self, root: str, found: str) -> str:
        """Where `root` is in answers, one of which is `found`: at provider local it is somewhere else."""
        root = posixpath.normpath(root)
        if (found + "/").startswith(root.rstrip("/") + "/"):
            return root
        return self._backend.stat(self._id, root).path

    def grep(self, pattern: str, path: Optional[str] = None, glob: Optional[str] = None, *,
             max_count: Optional[int] = None) -> GrepResult:
        """The lines that have a text, not a regular expression, in them."""
        root = path or WORKING_DIR
        try:
            included = _matcher(glob) if glob else None
            # What is simple the server can do; the rest is done with what it found.
            simple = bool(glob) and not set(glob or "") & set("/{}\\!")
            found = self._backend.search(self._id, pattern, root,
                                         glob=glob if simple else None, limit=SEARCH_MAX)
        except PaddockError as error:
            self._raise_if_gone(error)
            return GrepResult(error=_why(root, error))
        except ValueError as error:
            return GrepResult(error=f"Error: {error}")
        matches: List[GrepMatch] = []
        real = ""
        for match in found.matches:
            real = real or self._real(posixpath.join(WORKING_DIR, root), match.path)
            below = posixpath.relpath(match.path, real)
            if below == ".":
                below = posixpath.basename(match.path)  # the root is a file
            if included and not included(below):
                continue
            if any(part in _SKIPPED for part in below.split("/")):
                continue
            matches.append({"path": match.path, "line": match.line or 0, "text": match.text or ""})
        truncated = found.truncated
        if max_count is not None and len(matches) > max_count:
            matches, truncated = matches[:max_count], True
        return _made(GrepResult, matches=matches, truncated=truncated)

    def glob(self, pattern: str, path: Optional[str] = None) -> GlobResult:
        """Files by a pattern for their name, or with a slash in it for their path below `path`."""
        root = posixpath.normpath(posixpath.join(WORKING_DIR, path or WORKING_DIR))
        deep = not self._legacy or "**" in pattern
        depth = DEPTH_MAX if deep else min(pattern.count("/") + 1, DEPTH_MAX)
        try:
            included = _path_matcher(pattern) if self._legacy else _matcher(pattern)
            entries = self._backend.list_files(self._id, root, depth=depth)
        except PaddockError as error:
            self._raise_if_gone(error)
            return GlobResult(error=_why(root, error))
        except ValueError as error:
            return GlobResult(error=f"Error: {error}")
        matches: List[FileInfo] = []
        real = ""
        for entry in entries:
            real = real or self._real(root, entry.path)
            below = posixpath.relpath(entry.path, real)
            if not included(below):
                continue
            if self._legacy:
                matches.append(_info(entry, below))
            elif entry.type == "file":
                matches.append(_info(entry))
        return GlobResult(matches=matches)

    # ---- many files ----

    def upload_files(self, files: List[Tuple[str, bytes]]) -> List[FileUploadResponse]:
        """Writes files; each has its own answer, in their order."""
        return [FileUploadResponse(path=path, error=self._upload(path, data))  # type: ignore[arg-type,unused-ignore]
                for path, data in files]

    def _upload(self, path: str, data: bytes) -> Optional[str]:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self._backend.write_file(self._id, path, data)
        except PaddockError as error:
            self._raise_if_gone(error)
            return _code(error)
        return None

    def download_files(self, paths: List[str]) -> List[FileDownloadResponse]:
        """Reads files; each has its own answer, in their order."""
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        error: Optional[str] = None
        content: Optional[bytes] = None
        try:
            if not path.startswith("/"):
                error = "invalid_path"
            elif self._backend.stat(self._id, path).type == "dir":
                error = "is_directory"
            else:
                content = self._backend.read_file(self._id, path)
        except PaddockError as problem:
            self._raise_if_gone(problem)
            error = _code(problem)
        return FileDownloadResponse(path=path, content=content, error=error)  # type: ignore[arg-type,unused-ignore]

    # ---- as they were called before 0.5 ----

    def ls_info(self, path: str) -> List[FileInfo]:
        """`ls`, under its older name; nothing when there is no such directory."""
        return self.ls(path).entries or []

    async def als_info(self, path: str) -> List[FileInfo]:
        """`ls_info` for asyncio."""
        return await in_thread(lambda: self.ls_info(path))

    def glob_info(self, pattern: str, path: str = "/") -> List[FileInfo]:
        """`glob`, under its older name."""
        return self.glob(pattern, path).matches or []

    async def aglob_info(self, pattern: str, path: str = "/") -> List[FileInfo]:
        """`glob_info` for asyncio."""
        return await in_thread(lambda: self.glob_info(pattern, path))

    def grep_raw(self, pattern: str, path: Optional[str] = None,
                 glob: Optional[str] = None) -> Union[List[GrepMatch], str]:
        """`grep`, under its older name; an error is a string."""
        found = self.grep(pattern, path, glob)
        return found.error or found.matches or []

    async def agrep_raw(self, pattern: str, path: Optional[str] = None,
                        glob: Optional[str] = None) -> Union[List[GrepMatch], str]:
        """`grep_raw` for asyncio."""
        return await in_thread(lambda: self.grep_raw(pattern, path, glob))

    # ---- its end ----

    def end(self) -> bool:
        """Ends the sandbox with all that is in it. False when it was gone."""
        return self._backend.end(self._id)

    def close(self) -> None:
        """The end of the context: a sandbox of `create` ends, others stay."""
        if not self._keep:
            self.end()

    def __enter__(self: P) -> P:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _file(entry: Entry, content: str, encoding: str = "utf-8") -> Any:
    data = {"content": content, "encoding": encoding}
    if entry.modified_at:
        data["modified_at"] = entry.modified_at
    return data


def _path_matcher(pattern: str) -> Callable[[str], bool]:
    compiled = wcglob.compile(pattern.lstrip("/"), flags=wcglob.BRACE | wcglob.GLOBSTAR)
    return lambda path: bool(compiled.match(path))


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a path below the root is meant: without a slash, by its name alone."""
    if ".." in pattern.replace("\\", "/").split("/"):
        raise ValueError(f"'..' is not allowed in the pattern '{pattern}'")
    try:
        by_path = _path_matcher(pattern)
    except Exception as error:  # its errors are of types of its own that are not public
        raise ValueError(f"the pattern '{pattern}' is not valid: {error}") from None
    if "/" in pattern:
        return by_path
    return lambda path: by_path(posixpath.basename(path))


def _of_cli(name: str) -> Any:
    """A class of the command line of deepagents, where that is installed."""
    for module in _CLI_MODULES:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    return None


_CLI_MODULES: Sequence[str] = (
    "deepagents_code.integrations.sandbox_provider",
    "deepagents_cli.integrations.sandbox_provider")
_CLI_IDLE_S = 900.0
_Provider: Any = _of_cli("SandboxProvider") or object


def _beside(call: Callable[[], R]) -> R:
    """Makes a call in a thread of its own and waits for it.

    The command line creates sandboxes on its event loop, where a guard refuses calls that block.
    """
    done: Future[R] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, name="paddock-provider", daemon=True)
    thread.start()
    thread.join()
    return done.result()


class PaddockProvider(_Provider):  # type: ignore[misc,unused-ignore]
    """What the entry point group `deepagents_code.sandbox_providers` leads to: with it,
    `dcode --sandbox paddock` works.

    `params` of its configuration may have `template`, `provider`, `image`, `user` and `thread` (the
    sandbox of a conversation, which the next run finds again), `mode`, `server_url`, `api_key`,
    `timeout` and `legacy`. Nobody deletes the sandboxes of the command line, so those that have no
    `idle_timeout_s` end when they were not used for 900 s.
    """

    name = "paddock"
    working_dir = WORKING_DIR

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    @property
    def metadata(self) -> Any:
        """What the command line wants to know; its own type where that is installed."""
        hint = _of_cli("SandboxInstallHint")
        facts: Dict[str, Any] = {
            "name": self.name, "working_dir": self.working_dir,
            "install": hint(kind="package", name="paddock[deepagents]") if hint else None,
            "supports_sandbox_id": True, "supports_snapshot_name": False,
            "backend_module": "paddock.deepagents"}
        kind = _of_cli("SandboxProviderMetadata")
        return _made(kind, **facts) if kind else facts

    def get_or_create(self, *, sandbox_id: Optional[str] = None, **settings: Any) -> PaddockSandbox:
        """The sandbox of that id, or a new one, or that of `user` and `thread`.

        Raises:
            NotFoundError: There is none of that id.
            InvalidArgumentError: A setting that there is not.
        """
        wanted = {**self._settings, **settings}
        return _beside(lambda: self._get_or_create(sandbox_id, wanted))

    def _get_or_create(self, sandbox_id: Optional[str], wanted: Dict[str, Any]) -> PaddockSandbox:
        chosen = {name: wanted.pop(name) for name in _CLI_CHOICES if name in wanted}
        user, thread = wanted.pop("user", None), wanted.pop("thread", None)
        wanted.pop("snapshot_name", None)
        known = {field.name for field in dataclasses.fields(SandboxOptions)}
        for name in wanted:
            if name not in known:
                raise InvalidArgumentError(
                    f"{name}: the provider paddock has no such setting; there are user, thread, "
                    f"{', '.join(sorted(known | set(_CLI_CHOICES)))}", details={"field": name})

        if sandbox_id is None:
            wanted.setdefault("idle_timeout_s", _CLI_IDLE_S)
            wanted["metadata"] = {"made_by": "dcode", **(wanted.get("metadata") or {})}
            options = SandboxOptions(**wanted)
            if thread is not None:
                return PaddockSandbox.for_thread(user or "dcode", thread, options=options, **chosen)
            made = PaddockSandbox.create(options=options, **chosen)
            made._keep = True
            return made

        found = PaddockSandbox(sandbox_id, **chosen)
        info = found._backend.find(sandbox_id)
        if info.state in ("gone", "stopping"):
            raise NotFoundError(f"sandbox {sandbox_id} is gone: "
                                f"{info.end_reason or info.end_cause or 'it was ended'}")
        if info.state == "paused":
            found._backend.resume(sandbox_id)
        return found

    def delete(self, *, sandbox_id: str, **settings: Any) -> None:
        """Ends a sandbox; one that is gone is no error."""
        chosen = {name: value for name, value in {**self._settings, **settings}.items()
                  if name in ("mode", "server_url", "api_key")}
        _beside(lambda: open_backend(**chosen).end(sandbox_id))


_CLI_CHOICES = ("mode", "server_url", "api_key", "timeout", "legacy")
