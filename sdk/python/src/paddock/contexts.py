"""Code contexts: interpreters that stay in a sandbox, whose variables hold from cell to cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Optional, Union

from ._backend import Backend
from .errors import InvalidArgumentError, TransportError
from .execution import Callbacks, Cell, Execution, ExecutionError, OutputMessage, Result
from .models import ContextInfo

__all__ = ["Context"]

PYTHON = "python"


@dataclass
class Context(ContextInfo):
    """An interpreter of a sandbox. Made by `Sandbox.create_code_context`."""

    def __post_init__(self) -> None:
        self._code: Optional[Code] = None

    def _of(self) -> Code:
        if self._code is None:
            raise InvalidArgumentError(
                f"context '{self.id}' belongs to no sandbox: take one from create_code_context() or "
                "list_code_contexts()", details={"field": "context"})
        return self._code

    def run(self, code: str, **options: Any) -> Execution:
        """Runs a cell in it. The options are those of `Sandbox.run_code`."""
        return self._of().run(code, context=self, **options)

    def fork(self, force: bool = False) -> Context:
        """Another context with all the variables that this one has now; from here on each has its own.

        Args:
            force: Also when threads run in it, which the new one does not have.

        Raises:
            ConflictError: It is busy, or threads run in it.
            UnsupportedError: Its language cannot be forked; Python can.
        """
        return self._of().fork(self.id, force)

    def undo(self) -> Context:
        """Takes back the last cell that was run with `keep_before=True`: its variables are as they
        were before. Files are not."""
        return self._of().undo(self.id)

    def interrupt(self) -> bool:
        """Interrupts the cell that runs, with its children; variables stay. False when none runs."""
        return self._of().interrupt(self.id)

    def restart(self) -> Context:
        """Starts it anew, without variables."""
        return self._of().restart(self.id)

    def remove(self) -> None:
        """Ends it."""
        self._of().remove(self)


Named = Union[Context, str]


def name_of(context: Named) -> str:
    """The id of a context that is given as itself or by its id."""
    return context if isinstance(context, str) else context.id


class Code:
    """The contexts of one sandbox; what `Sandbox`, `Kernel` and the tools run code by."""

    def __init__(self, backend: Backend, sandbox_id: str) -> None:
        self._backend = backend
        self._sandbox_id = sandbox_id

    def run(self, code: str, language: Optional[str] = None, context: Optional[Named] = None,
            on_stdout: Optional[Callable[[OutputMessage], object]] = None,
            on_stderr: Optional[Callable[[OutputMessage], object]] = None,
            on_result: Optional[Callable[[Result], object]] = None,
            on_error: Optional[Callable[[ExecutionError], object]] = None,
            envs: Optional[Mapping[str, str]] = None, timeout: Optional[float] = None,
            keep_before: bool = False) -> Execution:
        if context is not None and language is not None:
            raise InvalidArgumentError(
                f"language: '{language}' and a context were given, and a context has its language "
                "already: give one of them", details={"field": "language"})
        name = name_of(context) if context is not None else language or PYTHON
        return self.follow(name, code, (on_stdout, on_stderr, on_result, on_error), envs, timeout,
                           keep_before)

    def follow(self, context_id: str, code: str, callbacks: Callbacks,
               envs: Optional[Mapping[str, str]], timeout: Optional[float],
               keep_before: bool) -> Execution:
        """Runs a cell to its end."""
        cell = Cell(callbacks)
        self._backend.execute(self._sandbox_id, context_id, code, cell.add, env=envs,
                              timeout_s=timeout, keep_before=keep_before)
        if not cell.ended:
            raise TransportError("the stream ended before the code did")
        return cell.execution

    def create(self, cwd: Optional[str] = None, language: Optional[str] = None,
               envs: Optional[Mapping[str, str]] = None, name: Optional[str] = None) -> Context:
        return self._bound(self._backend.create_context(
            self._sandbox_id, language=language or PYTHON, cwd=cwd, env=envs, name=name))

    def list(self) -> List[Context]:
        return [self._bound(c) for c in self._backend.contexts(self._sandbox_id)]

    def fork(self, context: Named, force: bool = False) -> Context:
        return self._bound(self._backend.fork_context(self._sandbox_id, name_of(context),
                                                      force=force))

    def undo(self, context: Named) -> Context:
        return self._bound(self._backend.undo_context(self._sandbox_id, name_of(context)))

    def restart(self, context: Named) -> Context:
        return self._bound(self._backend.restart_context(self._sandbox_id, name_of(context)))

    def interrupt(self, context: Named) -> bool:
        return self._backend.interrupt_context(self._sandbox_id, name_of(context))

    def remove(self, context: Named) -> None:
        self._backend.remove_context(self._sandbox_id, name_of(context))

    def _bound(self, info: ContextInfo) -> Context:
        context = Context(**info.to_dict())
        context._code = self
        return context
