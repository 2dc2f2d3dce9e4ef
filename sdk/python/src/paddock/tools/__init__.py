"""The tools of a sandbox, for LangChain and LangGraph.

`SandboxSession.get_tools` gives all of them. `get_python_tool` and `get_bash_tool` give one that runs
in the sandbox of the coordinator's current request (`get_sandbox_coordinator`), `get_coder_agent_tool`
and its like those of a role there. `get_all_agent_tools` gives those of each role of a team of agents
that share a sandbox:

| role | may |
|---|---|
| coder | everything |
| validator | read, search, run code and commands, and write what it found; no git that writes, no deleting |
| reporter | read, run Python, write and preview the report |
| tracker | read, and keep its list in files; it runs nothing |
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from .._cancel import in_thread
from ..errors import PaddockError
from ..models import SandboxOptions
from ..session import SandboxSession

try:
    from langchain_core.tools import BaseTool, StructuredTool, ToolException
except ImportError as _error:
    raise ImportError("the tools need LangChain, which is not installed "
                      f"({_error}): pip install 'paddock[langchain]'") from None

from . import _files, _git, _python, _shell, _system, _web  # noqa: F401  (they fill the table)
from ._current import CoordinatorSession, session_of
from ._kit import TABLE, Refusal, Spec, cut, explain

__all__ = [
    "CoordinatorSession", "ROLES", "RoleTools", "TOOL_NAMES", "build_tools", "get_all_agent_tools",
    "get_bash_tool", "get_coder_agent_tool", "get_python_tool", "get_reporter_agent_tool",
    "get_tracker_agent_tool", "get_validator_agent_tool",
]

TOOL_NAMES: Tuple[str, ...] = tuple(TABLE)
"""The names of all tools."""

_READ = ("file_read", "file_list", "file_search")

ROLES: Dict[str, Tuple[str, ...]] = {
    "coder": TOOL_NAMES,
    "validator": (*_READ, "file_write", "shell_exec", "python_exec", "git_status", "git_diff",
                  "http_request", "env_get", "process_list"),
    "reporter": (*_READ, "file_write", "file_replace", "python_exec", "shell_exec", "browser_open",
                 "port_preview"),
    "tracker": (*_READ, "file_write", "file_replace", "process_list", "git_status"),
}
"""Which tools each role has."""


def _langchain(session: SandboxSession, spec: Spec) -> BaseTool:
    def run(**arguments: Any) -> Tuple[str, Dict[str, object]]:
        try:
            answer = spec.call(session, spec.schema(**arguments))
        except Refusal as refusal:
            raise ToolException(cut(str(refusal), session.output_max_chars)) from None
        except PaddockError as error:
            try:
                lost = session.replace_lost(error)
            except PaddockError as again:
                raise ToolException(f"Error: the sandbox is gone, and there is no other: "
                                    f"{again.message}") from None
            raise ToolException(f"Error: {lost}" if lost else explain(error)) from None
        return cut(answer.text, _whole(session.output_max_chars)), answer.data

    async def arun(**arguments: Any) -> Tuple[str, Dict[str, object]]:
        return await in_thread(lambda: run(**arguments))

    def wrong_arguments(error: Any) -> str:
        wrong = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}"
                          for e in error.errors())
        return f"Error: {spec.name} was called with wrong arguments: {wrong}"

    return StructuredTool(
        name=spec.name, description=spec.description, args_schema=spec.schema, func=run,
        coroutine=arun, response_format="content_and_artifact", handle_tool_error=True,
        handle_validation_error=wrong_arguments)


def _whole(limit: int) -> int:
    # Streams are cut one by one before this; it must not cut the note on the exit code again.
    return limit * 2


def build_tools(session: SandboxSession, names: Optional[Sequence[str]] = None) -> List[BaseTool]:
    """The tools of a session: these, or all. See `SandboxSession.get_tools`."""
    chosen = TOOL_NAMES if names is None else names
    for name in chosen:
        if name not in TABLE:
            raise ValueError(f"there is no tool '{name}'; there are: {', '.join(TOOL_NAMES)}")
    return [_langchain(session, TABLE[name]) for name in chosen]


class RoleTools(Dict[str, List[BaseTool]]):
    """Tools by role. `tools["coder_agent"]` is the same as `tools["coder"]`."""

    def __init__(self, session: SandboxSession) -> None:
        super().__init__({role: build_tools(session, names) for role, names in ROLES.items()})
        self.session = session
        """The sandbox that they share."""

    def __missing__(self, role: str) -> List[BaseTool]:
        if role.endswith("_agent") and role[:-len("_agent")] in self:
            return self[role[:-len("_agent")]]
        raise KeyError(f"there is no role '{role}'; there are: {', '.join(self)}")

    def get(self, role: str, default: Any = None) -> Any:
        """The tools of a role, or the default."""
        try:
            return self[role]
        except KeyError:
            return default


def get_python_tool(sandbox_mode: Optional[str] = None) -> BaseTool:
    """The tool that runs Python. All tools of this process that are made for the same mode by this
    function and those below share a sandbox.

    Args:
        sandbox_mode: "local", "remote" or a provider's name. Without it, and with that of the
            coordinator of this process, the tool runs in the sandbox of the coordinator's current
            request; of another mode, in one of its own beside it.

    Raises:
        ValueError: The mode is unknown; the message lists the valid ones.
    """
    return build_tools(session_of(sandbox_mode), ["python_exec"])[0]


def get_bash_tool(sandbox_mode: Optional[str] = None) -> BaseTool:
    """The tool that runs commands; see `get_python_tool`."""
    return build_tools(session_of(sandbox_mode), ["shell_exec"])[0]


def get_coder_agent_tool(sandbox_mode: Optional[str] = None) -> List[BaseTool]:
    """The tools of the coder, for its agent; see `get_python_tool`."""
    return build_tools(session_of(sandbox_mode), ROLES["coder"])


def get_validator_agent_tool(sandbox_mode: Optional[str] = None) -> List[BaseTool]:
    """The tools of the validator, for its agent; see `get_python_tool`."""
    return build_tools(session_of(sandbox_mode), ROLES["validator"])


def get_reporter_agent_tool(sandbox_mode: Optional[str] = None) -> List[BaseTool]:
    """The tools of the reporter, for its agent; see `get_python_tool`."""
    return build_tools(session_of(sandbox_mode), ROLES["reporter"])


def get_tracker_agent_tool(sandbox_mode: Optional[str] = None) -> List[BaseTool]:
    """The tools of the tracker, for its agent; see `get_python_tool`."""
    return build_tools(session_of(sandbox_mode), ROLES["tracker"])


def get_all_agent_tools(mode: Optional[str] = None, *, session_id: Optional[str] = None,
                        session: Optional[SandboxSession] = None,
                        server_url: Optional[str] = None, api_key: Optional[str] = None,
                        options: Optional[SandboxOptions] = None,
                        sandbox_mode: Optional[str] = None) -> RoleTools:
    """The tools of each role of a team: coder, validator, reporter, tracker.

    They share one sandbox, which is made by the first call of a tool. Where nothing but a mode is said,
    it is that of `get_python_tool`: the sandbox of the coordinator's current request.

    Args:
        mode: "local", "remote" or a provider's name; without it, as SANDBOX_MODE says.
        session_id: As you call the conversation.
        session: A session that is there already, instead of all the others.
        server_url: And `api_key`, `options`: see `SandboxSession.create`.
        sandbox_mode: The same as `mode`, as older programs call it.

    Raises:
        ValueError: The mode is unknown; the message lists the valid ones.
    """
    mode = mode or sandbox_mode
    if session is None and not (session_id or server_url or api_key or options):
        session = session_of(mode)
    if session is None:
        session = SandboxSession(session_id, mode=mode, server_url=server_url, api_key=api_key,
                                 options=options)
    return RoleTools(session)
