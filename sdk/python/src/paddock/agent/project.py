"""The user's files: into the sandbox, and what was changed there back again.

How this works: `put` sends a directory as one archive to /workspace and remembers size, time and mode
of every file as the sandbox lists them then, and the hash of what was sent. `changes` compares a new
listing with that, and reads what looks different. `get` writes changes into the directory.

The sandbox is hostile: its listing and its files may say anything. So a path of it is taken apart and
refused unless all its parts are plain names, nothing below a `.git` is ever written (a hook there
would run on this machine), only regular files are written, and directories are opened one by one
without following links. A file that the user has changed meanwhile is not overwritten: the hashes are
kept beside the conversation, so that this holds for one that goes on another day, too.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import secrets
import stat
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..models import Entry
from .box import Box
from .text import plain

WORKSPACE = "/workspace"
PUT_MAX = 1024 * 1024 * 1024
FILES_MAX = 50000
GET_MAX = 64 * 1024 * 1024  # of one file
DEPTH = 16
DIFF_MAX = 400  # lines that are shown


class ProjectError(Exception):
    """Files cannot be brought in or back; the text is for people."""


class Change(NamedTuple):
    """A file that is different in the sandbox."""

    path: str
    kind: str
    """`new`, `changed` or `removed`."""
    data: bytes
    is_program: bool


class Difference(NamedTuple):
    """What is different in the sandbox."""

    changes: List[Change]
    left: List[str]
    """What is not brought back, and why."""


def _parts(path: str) -> Optional[List[str]]:
    """The parts of a path below /workspace, if it may be written on this machine."""
    parts = path.split("/")
    if not path or any(p in ("", ".", "..") or "\0" in p for p in parts):
        return None
    if any(p.lower().rstrip(". ") == ".git" for p in parts):
        return None
    return parts


class Project:
    """A directory of this machine, and its copy in the sandbox."""

    def __init__(self, folder: Path, base: Path) -> None:
        """`base`: the file where the hashes of what was sent are kept."""
        self.folder = folder.resolve()
        if not self.folder.is_dir():
            raise ProjectError(f"--put: '{folder}' is no directory")
        self._base = base
        self._hashes = _read_hashes(base)
        self._listed: Dict[str, Tuple[int, Optional[str], str]] = {}
        self._box: Box

    def use(self, box: Box) -> None:
        """Names the sandbox that has the copy."""
        self._box = box

    # ---- there ----

    def files(self) -> List[str]:
        """The files that are sent: what git does not ignore, or everything but .git."""
        found = self._by_git()
        if found is None:
            found = []
            for top, folders, names in os.walk(self.folder):
                folders[:] = sorted(f for f in folders if f != ".git")
                found += [os.path.relpath(os.path.join(top, name), self.folder) for name in sorted(names)]
        # Whether it is still a file is seen when it is read. A name that is no UTF-8 would not come back as it is.
        return [f for f in found if _parts(f) and _is_utf8(f) and stat.S_ISREG(_mode(self.folder / f))]

    def _by_git(self) -> Optional[List[str]]:
        try:
            done = subprocess.run(
                ["git", "-c", "core.fsmonitor=false", "-C", str(self.folder), "ls-files", "-z", "--cached", "--others",
                 "--exclude-standard"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode != 0:
            return None
        return sorted({os.fsdecode(name) for name in done.stdout.split(b"\0") if name})

    def put(self) -> int:
        """Sends the files; gives how many."""
        files = self.files()
        if len(files) > FILES_MAX:
            raise ProjectError(f"--put: '{self.folder}' has more than {FILES_MAX} files; name a smaller directory, or "
                               "list in .gitignore what is not needed")
        self._hashes = {}
        with tempfile.TemporaryFile() as archive:
            with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
                for name in files:
                    self._add(tar, name)
            archive.seek(0)
            self._unpack(archive)
        self._listed = {path: _looks(entry) for path, entry in self._list()}
        self._keep_hashes()
        return len(self._hashes)

    def _keep_hashes(self) -> None:
        # Without them nothing is overwritten: a full disk costs no more than that.
        with contextlib.suppress(OSError):
            self._base.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._base.write_text(json.dumps(self._hashes))

    def _add(self, tar: tarfile.TarFile, name: str) -> None:
        try:
            handle = os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return  # gone, or not ours to read
        with open(handle, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return
            if tar.offset + status.st_size > PUT_MAX:
                raise ProjectError(f"--put: '{self.folder}' has more than {PUT_MAX >> 20} MiB; name a smaller directory, "
                                   "or list in .gitignore what is not needed")
            info = tarfile.TarInfo(name)
            info.size, info.mtime = status.st_size, int(status.st_mtime)
            info.mode = 0o755 if status.st_mode & 0o111 else 0o644
            reader = _Hashing(file)
            tar.addfile(info, reader)  # type: ignore[arg-type]
            self._hashes[name] = reader.hash.hexdigest()

    def _unpack(self, archive: object) -> None:
        name = f"/tmp/put-{secrets.token_hex(8)}.tar"
        backend, box = self._box.backend, self._box.id
        backend.write_file(box, name, archive)  # type: ignore[arg-type]
        try:
            done = backend.exec(box, ["tar", "-xf", name, "--no-same-owner"], cwd=WORKSPACE, timeout_s=600)
        finally:
            backend.remove(box, name)
        if done.status:
            raise ProjectError(f"--put: the files could not be unpacked in the sandbox: {plain(done.stderr.strip())[-500:]}")

    # ---- what is different ----

    def _list(self) -> Iterator[Tuple[str, Entry]]:
        backend, box = self._box.backend, self._box.id
        # Where it really is: at provider local in a directory of the machine.
        below = backend.stat(box, WORKSPACE).path + "/"
        for entry in backend.list_files(box, WORKSPACE, depth=DEPTH):
            path = entry.path
            yield path[len(below):] if path.startswith(below) else path, entry

    def difference(self) -> Difference:
        """What is different in the sandbox. Costs the reading of what looks different."""
        changes: List[Change] = []
        left: List[str] = []
        seen = set()
        for path, entry in self._list():
            if entry.type == "dir":
                continue
            seen.add(path)
            if self._listed.get(path) == _looks(entry) or self._is_made(path):
                continue
            if _parts(path) is None or entry.path_base64:
                left.append(f"{path}: not a path for this machine")
            elif entry.type != "file":
                left.append(f"{path}: is a {entry.type}")
            elif entry.size > GET_MAX:
                left.append(f"{path}: has {entry.size} bytes, {GET_MAX} at most are brought back")
            else:
                data = self._box.backend.read_file(self._box.id, f"{WORKSPACE}/{path}", length=GET_MAX)
                if self._hashes.get(path) != hashlib.sha256(data).hexdigest():
                    changes.append(Change(path, "changed" if path in self._hashes else "new", data,
                                          int(entry.mode, 8) & 0o100 != 0))
        changes += [Change(path, "removed", b"", False) for path in self._hashes
                    if path not in seen and path.count("/") < DEPTH]  # below that is not listed
        return Difference(sorted(changes), sorted(left))

    def _is_made(self, path: str) -> bool:
        """What running programs leaves behind, unless it was sent."""
        parts = path.split("/")
        return path not in self._hashes and (
            path.endswith(".pyc") or bool({"__pycache__", ".pytest_cache", "node_modules", ".mypy_cache"} & {*parts}))

    def diff(self, change: Change) -> str:
        """One change, as people read it."""
        name = plain(change.path)
        old, new = self._old(change.path), change.data
        if b"\0" in old or b"\0" in new:
            return f"{change.kind}: {name} ({len(new)} bytes, no text)"
        lines = list(difflib.unified_diff(
            old.decode("utf-8", "replace").splitlines(), new.decode("utf-8", "replace").splitlines(),
            f"a/{name}", f"b/{name}", lineterm=""))
        if len(lines) > DIFF_MAX:
            lines = lines[:DIFF_MAX] + [f"[... {len(lines) - DIFF_MAX} more lines ...]"]
        return "\n".join(plain(line) for line in lines)

    def _old(self, path: str) -> bytes:
        try:
            with self._parent(path, make=False) as (folder, name):
                return _read_at(folder, name)
        except OSError:
            return b""

    # ---- back ----

    def get(self, changes: List[Change]) -> List[str]:
        """Writes the changes; gives what could not be written, and why."""
        problems = []
        for change in changes:
            try:
                self._write(change)
            except ProjectError as error:
                problems.append(f"{change.path}: {error}")
            except OSError as error:
                problems.append(f"{change.path}: {error.strerror}")
            else:
                self._note(change)
        self._keep_hashes()
        return problems

    def _note(self, change: Change) -> None:
        if change.kind == "removed":
            self._hashes.pop(change.path, None)
        else:
            self._hashes[change.path] = hashlib.sha256(change.data).hexdigest()

    @contextlib.contextmanager
    def _parent(self, path: str, *, make: bool) -> Iterator[Tuple[int, str]]:
        """The directory of a file, opened part by part without following a link, and the file's name."""
        parts = _parts(path)
        if parts is None:
            raise ProjectError("not a path for this machine")
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts[:-1]:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder, parts[-1]
        finally:
            os.close(folder)

    def _write(self, change: Change) -> None:
        with self._parent(change.path, make=change.kind != "removed") as (folder, name):
            self._check_unchanged(change, folder, name)
            if change.kind == "removed":
                os.unlink(name, dir_fd=folder)
                return
            temporary = f".paddock-{secrets.token_hex(8)}"
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                             0o777 if change.is_program else 0o666, dir_fd=folder)
            try:
                with open(handle, "wb") as out:
                    out.write(change.data)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(temporary, dir_fd=folder)
                raise

    def _check_unchanged(self, change: Change, folder: int, name: str) -> None:
        """The user may have worked on it meanwhile."""
        try:
            now = _read_at(folder, name)
        except FileNotFoundError:
            if change.kind == "removed":
                raise ProjectError("is gone already") from None
            return
        except OSError:
            raise ProjectError("is no file here, and is left as it is") from None
        if change.kind != "removed" and now == change.data:
            return
        if hashlib.sha256(now).hexdigest() != self._hashes.get(change.path):
            raise ProjectError("was changed here, too, and is left as it is; look at it with /diff")


class _Hashing:
    """A file whose content is hashed while it is read. One that became shorter is filled up, as tar needs it."""

    def __init__(self, file: object) -> None:
        self._file = file
        self.hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data: bytes = self._file.read(size)  # type: ignore[attr-defined]
        data += b"\0" * (size - len(data))
        self.hash.update(data)
        return data


def _read_hashes(base: Path) -> Dict[str, str]:
    try:
        found = json.loads(base.read_text())
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _looks(entry: Entry) -> Tuple[int, Optional[str], str]:
    return entry.size, entry.modified_at, entry.mode


def _mode(path: Path) -> int:
    try:
        return os.lstat(path).st_mode
    except (OSError, ValueError):
        return 0


def _read_at(folder: int, name: str) -> bytes:
    """A regular file, whole; OSError when it is something else."""
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(22, "is no regular file")
        return file.read()
