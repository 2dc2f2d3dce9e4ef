"""Tools for git."""

from __future__ import annotations

from typing import List, Optional

from pydantic import BaseModel, Field

from .._git import Git
from ..errors import CommandExitError, PaddockError
from ..session import SandboxSession
from ._kit import NO_NETWORK, Answer, Refusal, is_network, tool

_REPO = Field(".", description="Directory of the repository; a relative path is below /workspace.")
NAME, EMAIL = "Agent", "agent@localhost"


def _git(session: SandboxSession) -> Git:
    return Git(session.backend, session.sandbox_id)


def _failed(what: str, error: PaddockError) -> Refusal:
    text = error.message
    if isinstance(error, CommandExitError):
        text = (error.stderr.strip() or error.stdout.strip())[-4000:]
    if is_network(text):
        text += f"\n{NO_NETWORK} A repository in the sandbox can be named by its path."
    return Refusal(f"Error: {what}: {text}")


class GitClone(BaseModel):
    url: str = Field(min_length=1, description="A path in the sandbox, or a URL.")
    path: Optional[str] = Field(None, description="The new directory; a relative path is below "
                                                  "/workspace. Without it, named like the source.")
    branch: Optional[str] = Field(None, description="The branch or tag to check out.")
    depth: Optional[int] = Field(None, ge=1, description="Only so many of the last commits.")


@tool("git_clone", GitClone, """Clone a git repository: one in the sandbox, named by its path. Unless
      the sandbox was given a way out, no other can be reached.""")
def git_clone(session: SandboxSession, a: GitClone) -> Answer:
    try:
        done = _git(session).clone(a.url, a.path, a.branch, a.depth, timeout=300)
    except CommandExitError as error:
        raise _failed("git clone", error) from None
    return Answer((done.stderr + done.stdout).strip() or "cloned", {"url": a.url, "path": a.path})


class GitCommit(BaseModel):
    message: str = Field(min_length=1, description="The commit message.")
    path: str = _REPO
    files: Optional[List[str]] = Field(None, description="Only these files, relative to the "
                                                         "repository; without it, all changes.")


@tool("git_commit", GitCommit, """Commit changes in a git repository of the sandbox: all of them, new
      files too, or only of the files that are named.""")
def git_commit(session: SandboxSession, a: GitCommit) -> Answer:
    git = _git(session)
    try:
        git.add(a.path, a.files)
        known = git._run(["config", "user.email"], a.path, check=False).exit_code == 0
        done = git.commit(a.path, a.message, None if known else NAME, None if known else EMAIL)
        head = git._run(["rev-parse", "HEAD"], a.path).stdout.strip()
    except CommandExitError as error:
        raise _failed("git commit", error) from None
    return Answer(done.stdout.strip(), {"commit": head})


class GitPush(BaseModel):
    path: str = _REPO
    remote: str = Field("origin", description="The remote.")
    branch: Optional[str] = Field(None, description="The branch; without it, the current one.")


@tool("git_push", GitPush, """Push a branch to a remote: a repository in the sandbox. Unless the
      sandbox was given a way out, no other can be reached.""")
def git_push(session: SandboxSession, a: GitPush) -> Answer:
    try:
        done = _git(session).push(a.path, a.remote, a.branch, timeout=300)
    except CommandExitError as error:
        raise _failed("git push", error) from None
    return Answer((done.stderr + done.stdout).strip() or "pushed", {"remote": a.remote})


class GitStatusArgs(BaseModel):
    path: str = _REPO


@tool("git_status", GitStatusArgs, """Show the branch of a git repository and the files that have
      changed: two letters (index, working tree) and the name; ?? is a file that git does not know.""")
def git_status(session: SandboxSession, a: GitStatusArgs) -> Answer:
    try:
        status = _git(session).status(a.path)
    except CommandExitError as error:
        raise _failed("git status", error) from None
    lines = [f"branch {status.current_branch or '(none: detached)'}"]
    if status.upstream:
        lines[0] += f", {status.ahead} ahead and {status.behind} behind {status.upstream}"
    lines += [f"{f.index_status}{f.working_tree_status} {f.name}" for f in status.file_status]
    if status.is_clean:
        lines.append("nothing to commit")
    return Answer("\n".join(lines), {
        "branch": status.current_branch, "clean": status.is_clean,
        "files": [f.name for f in status.file_status]})


class GitDiff(BaseModel):
    path: str = _REPO
    staged: bool = Field(False, description="The changes in the index instead of those that are not "
                                            "in it yet.")
    files: Optional[List[str]] = Field(None, description="Only of these files.")
    commit: Optional[str] = Field(None, description="Compare with this commit or range, such as "
                                                    "HEAD~1 or main..topic.")


@tool("git_diff", GitDiff, "Show the changes in a git repository as a patch.")
def git_diff(session: SandboxSession, a: GitDiff) -> Answer:
    git = _git(session)
    args = ["diff", "--no-color"] + (["--staged"] if a.staged else [])
    if a.commit:
        if a.commit.startswith("-"):
            raise Refusal(f"Error: commit: '{a.commit}' is not a commit")
        args.append(a.commit)
    try:
        patch = git._run(args + ["--", *(a.files or [])], a.path).stdout
    except CommandExitError as error:
        raise _failed("git diff", error) from None
    return Answer(patch.rstrip("\n") or "[no changes]", {"empty": not patch})
