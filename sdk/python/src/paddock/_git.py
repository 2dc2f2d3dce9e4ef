"""`Sandbox.git`: git, as it is in the sandbox. Remotes are paths in it, unless it was given a way out."""

from __future__ import annotations

import base64
import posixpath
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional

from ._backend import Backend
from ._commands import OUTPUT_MAX, _result
from .models import CommandResult, Record

_SCOPES = {"local": "--local", "global": "--global", "system": "--system"}


@dataclass
class GitFileStatus(Record):
    """A file that git status names."""

    name: str
    index_status: str
    """Its letter in the index: `M`, `A`, `D`, `R`, `?`, or a space."""
    working_tree_status: str
    renamed_from: Optional[str] = None

    @property
    def staged(self) -> bool:
        """Whether a change of it is in the index."""
        return self.index_status not in (" ", "?")


@dataclass
class GitStatus(Record):
    """What git status tells."""

    current_branch: Optional[str]
    upstream: Optional[str] = None
    ahead: int = 0
    behind: int = 0
    detached: bool = False
    file_status: List[GitFileStatus] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.file_status


@dataclass
class GitBranches(Record):
    """The branches of a repository."""

    branches: List[str]
    current_branch: Optional[str]


def parse_status(text: str) -> GitStatus:
    """Reads `git status --porcelain=v2 --branch -z`."""
    status = GitStatus(None)
    fields = iter(text.split("\0"))
    for line in fields:
        words = line.split(" ")
        if line.startswith("# branch.head "):
            status.detached = words[2] == "(detached)"
            status.current_branch = None if status.detached else line[len("# branch.head "):]
        elif line.startswith("# branch.upstream "):
            status.upstream = line[len("# branch.upstream "):]
        elif line.startswith("# branch.ab "):
            status.ahead, status.behind = int(words[2]), -int(words[3])
        elif words[0] in ("1", "2", "u"):
            letters = words[1].replace(".", " ")
            skip = {"1": 8, "2": 9, "u": 10}[words[0]]
            entry = GitFileStatus(" ".join(words[skip:]), letters[0], letters[1])
            if words[0] == "2":
                entry.renamed_from = next(fields, None)
            status.file_status.append(entry)
        elif words[0] == "?":
            status.file_status.append(GitFileStatus(line[2:], "?", "?"))
    return status


class Git:
    """Git repositories in a sandbox.

    All methods also take `envs`, `user`, `cwd` and `timeout` (60 s unless told), as
    `Commands.run` does, and raise its errors.
    """

    def __init__(self, backend: Backend, sandbox_id: str) -> None:
        self._backend = backend
        self._sandbox_id = sandbox_id

    def _run(self, args: List[str], path: Optional[str] = None, *,
             envs: Optional[Mapping[str, str]] = None, user: Optional[str] = None,
             cwd: Optional[str] = None, timeout: Optional[float] = 60,
             request_timeout: Optional[float] = None, check: bool = True,
             auth: Optional[Mapping[str, str]] = None) -> CommandResult:
        argv = ["git"]
        if path is not None:
            argv += ["-C", self._place(path, cwd)]
        env = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8", **(auth or {}), **(envs or {})}
        result = self._backend.exec(self._sandbox_id, argv + args, cwd=cwd or "/workspace", env=env, user=user,
                                    timeout_s=timeout, output_max_bytes=OUTPUT_MAX)
        return _result(result, timeout, check)

    @staticmethod
    def _place(path: str, cwd: Optional[str]) -> str:
        """A path for git's own words. The workspace may be somewhere else (provider local), so what
        is in it is named as seen from there."""
        whole = posixpath.normpath(posixpath.join("/workspace", path))
        if cwd is None and (whole + "/").startswith("/workspace/"):
            return posixpath.relpath(whole, "/workspace")
        return whole

    @staticmethod
    def _auth(username: Optional[str], password: Optional[str]) -> Dict[str, str]:
        """Credentials in the environment of one command: nothing of them is stored."""
        if username is None or password is None:
            return {}
        token = base64.b64encode(f"{username}:{password}".encode()).decode()
        return {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "http.extraHeader",
                "GIT_CONFIG_VALUE_0": f"Authorization: Basic {token}"}

    def clone(self, url: str, path: Optional[str] = None, branch: Optional[str] = None,
              depth: Optional[int] = None, username: Optional[str] = None,
              password: Optional[str] = None, **options: Any) -> CommandResult:
        """Clones a repository into `path`, or into a directory of its name."""
        args = ["clone"]
        if branch:
            args += ["--branch", branch]
        if depth:
            args += ["--depth", str(depth)]
        args += ["--", url]
        if path:
            args.append(self._place(path, options.get("cwd")))
        return self._run(args, auth=self._auth(username, password), **options)

    def init(self, path: str, bare: bool = False, initial_branch: Optional[str] = None,
             **options: Any) -> CommandResult:
        """Makes a repository."""
        args = ["init"] + (["--bare"] if bare else [])
        if initial_branch:
            args.append(f"--initial-branch={initial_branch}")
        return self._run(args + ["--", self._place(path, options.get("cwd"))], **options)

    def status(self, path: str, **options: Any) -> GitStatus:
        """What has changed, and how the branch stands to its upstream."""
        return parse_status(self._run(["status", "--porcelain=v2", "--branch", "-z"], path,
                                      **options).stdout)

    def diff(self, path: str, staged: bool = False, paths: Optional[List[str]] = None,
             **options: Any) -> str:
        """The changes as a patch: of the working tree, or of the index."""
        args = ["diff", "--no-color"] + (["--staged"] if staged else [])
        return self._run(args + ["--", *(paths or [])], path, **options).stdout

    def add(self, path: str, files: Optional[List[str]] = None, all: bool = True,
            **options: Any) -> CommandResult:
        """Puts changes into the index: of these files, or all."""
        if files:
            return self._run(["add", "--", *files], path, **options)
        return self._run(["add", "--all" if all else "."], path, **options)

    def commit(self, path: str, message: str, author_name: Optional[str] = None,
               author_email: Optional[str] = None, allow_empty: bool = False,
               **options: Any) -> CommandResult:
        """Commits what is in the index."""
        args = []
        if author_name:
            args += ["-c", f"user.name={author_name}"]
        if author_email:
            args += ["-c", f"user.email={author_email}"]
        args += ["commit", "-m", message] + (["--allow-empty"] if allow_empty else [])
        return self._run(args, path, **options)

    def branches(self, path: str, **options: Any) -> GitBranches:
        """The local branches, and which is the current one."""
        names = self._run(["for-each-ref", "--format=%(refname:short)", "refs/heads"], path,
                          **options).stdout.split("\n")
        head = self._run(["symbolic-ref", "--quiet", "--short", "HEAD"], path, check=False,
                         **options).stdout.strip()
        return GitBranches([n for n in names if n], head or None)

    def create_branch(self, path: str, branch: str, **options: Any) -> CommandResult:
        """Makes a branch and changes to it."""
        return self._run(["checkout", "-b", branch], path, **options)

    def checkout_branch(self, path: str, branch: str, **options: Any) -> CommandResult:
        """Changes to a branch."""
        return self._run(["checkout", branch, "--"], path, **options)

    def delete_branch(self, path: str, branch: str, force: bool = False,
                      **options: Any) -> CommandResult:
        """Removes a branch; one that is not merged only with `force`."""
        return self._run(["branch", "-D" if force else "-d", "--", branch], path, **options)

    def remote_add(self, path: str, name: str, url: str, fetch: bool = False,
                   overwrite: bool = False, **options: Any) -> CommandResult:
        """Adds a remote; with `overwrite`, one that is there gets the new URL."""
        if overwrite and self.remote_get(path, name, **options) is not None:
            result = self._run(["remote", "set-url", "--", name, url], path, **options)
        else:
            result = self._run(["remote", "add", "--", name, url], path, **options)
        return self._run(["fetch", "--", name], path, **options) if fetch else result

    def remote_get(self, path: str, name: str, **options: Any) -> Optional[str]:
        """The URL of a remote; None when there is none."""
        result = self._run(["remote", "get-url", "--", name], path, check=False, **options)
        return result.stdout.strip() if result.exit_code == 0 else None

    def reset(self, path: str, mode: Optional[str] = None, target: Optional[str] = None,
              paths: Optional[List[str]] = None, **options: Any) -> CommandResult:
        """Resets the branch (`mode` soft, mixed, hard, merge or keep), or these paths."""
        args = ["reset"] + ([f"--{mode}"] if mode else []) + ([target] if target else [])
        return self._run(args + (["--", *paths] if paths else []), path, **options)

    def restore(self, path: str, paths: List[str], staged: Optional[bool] = None,
                worktree: Optional[bool] = None, source: Optional[str] = None,
                **options: Any) -> CommandResult:
        """Takes changes back: in the working tree, the index, or both."""
        args = ["restore"] + (["--staged"] if staged else []) + (["--worktree"] if worktree else [])
        if source:
            args.append(f"--source={source}")
        return self._run(args + ["--", *paths], path, **options)

    def push(self, path: str, remote: Optional[str] = None, branch: Optional[str] = None,
             set_upstream: bool = True, username: Optional[str] = None,
             password: Optional[str] = None, **options: Any) -> CommandResult:
        """Pushes a branch; without one, the current one, to `origin`."""
        if branch is None:
            branch = self.status(path, **options).current_branch or "HEAD"
        args = ["push"] + (["--set-upstream"] if set_upstream else [])
        return self._run(args + ["--", remote or "origin", branch], path,
                         auth=self._auth(username, password), **options)

    def pull(self, path: str, remote: Optional[str] = None, branch: Optional[str] = None,
             username: Optional[str] = None, password: Optional[str] = None,
             **options: Any) -> CommandResult:
        """Pulls from the upstream, or from this remote and branch."""
        args = ["pull", "--ff"]
        if remote or branch:
            args += ["--", remote or "origin"] + ([branch] if branch else [])
        return self._run(args, path, auth=self._auth(username, password), **options)

    def set_config(self, key: str, value: str, scope: str = "global", path: Optional[str] = None,
                   **options: Any) -> CommandResult:
        """Sets a configuration value; `scope` is global, local or system."""
        return self._run(["config", self._scope(scope, path), key, value],
                         path if scope == "local" else None, **options)

    def get_config(self, key: str, scope: str = "global", path: Optional[str] = None,
                   **options: Any) -> Optional[str]:
        """A configuration value; None when it is not set."""
        result = self._run(["config", self._scope(scope, path), "--get", key],
                           path if scope == "local" else None, check=False, **options)
        return result.stdout.rstrip("\n") if result.exit_code == 0 else None

    def configure_user(self, name: str, email: str, scope: str = "global",
                       path: Optional[str] = None, **options: Any) -> CommandResult:
        """Says who commits."""
        self.set_config("user.name", name, scope, path, **options)
        return self.set_config("user.email", email, scope, path, **options)

    @staticmethod
    def _scope(scope: str, path: Optional[str]) -> str:
        from .errors import InvalidArgumentError

        if scope not in _SCOPES:
            raise InvalidArgumentError(f"scope: '{scope}' is not one of {', '.join(_SCOPES)}",
                                       details={"field": "scope"})
        if scope == "local" and path is None:
            raise InvalidArgumentError("path: is needed for scope 'local'",
                                       details={"field": "path"})
        return _SCOPES[scope]
