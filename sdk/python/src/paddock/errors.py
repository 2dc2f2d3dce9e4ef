"""What can go wrong.

Every error is a `PaddockError` with the `code` that the server gave, its `message`, and a `remedy`:
what the caller can do about it. Programs look at the class or the code, people at the text.
"""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Type

__all__ = [
    "AuthenticationError", "BadGatewayError", "CapacityError", "CommandExitError",
    "CommandNotStartedError", "CommandTimeoutError", "ConflictError", "DeniedError",
    "InvalidArgumentError", "NoSpaceError", "NotFoundError", "PaddockError", "PausedError",
    "PolicyError", "RateLimitError", "RequestTimeoutError", "ServerError", "SessionExpiredError",
    "SessionGoneError", "SessionLostError", "TransportError", "UnsupportedError", "error_of",
]


class PaddockError(Exception):
    """The base of all errors of this package."""

    code: str
    """What happened, for programs: `not_found`, `capacity`, ... It does not change."""
    message: str
    """What happened, for people: it names the value that was wrong, and what would be right."""
    details: Dict[str, object]
    """More for programs, such as `field`."""
    status: Optional[int]
    """The HTTP status, if there was an answer."""
    retryable: bool
    """Whether the same call can work later."""
    retry_after: Optional[float]
    """After how many seconds, if the server said so."""
    request_id: Optional[str]
    """Finds the request in the server's log."""

    default_code = "internal"

    def __init__(self, message: str, *, code: Optional[str] = None,
                 details: Optional[Mapping[str, object]] = None, status: Optional[int] = None,
                 retryable: Optional[bool] = None, retry_after: Optional[float] = None,
                 request_id: Optional[str] = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.details = dict(details or {})
        self.status = status
        self.retryable = self.code in _RETRYABLE if retryable is None else retryable
        self.retry_after = retry_after
        self.request_id = request_id

    @property
    def remedy(self) -> str:
        """What can be done about it."""
        if self.retry_after is not None and self.retryable:
            return f"try again after {self.retry_after:g} s"
        return _REMEDIES.get(self.code, _REMEDIES["internal"])

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


class AuthenticationError(PaddockError):
    """There was no key, or one that is unknown or revoked."""

    default_code = "unauthenticated"


class DeniedError(PaddockError):
    """That user of the sandbox may not do that to that file."""

    default_code = "denied"


class PolicyError(DeniedError):
    """The sandbox's policy does not allow that command."""

    default_code = "policy"


class InvalidArgumentError(PaddockError, ValueError):
    """An argument is wrong; `details["field"]` names it."""

    default_code = "invalid"


class CommandNotStartedError(InvalidArgumentError):
    """There is no such command, or it cannot be executed."""

    default_code = "no_command"


class NotFoundError(PaddockError):
    """There is no such sandbox, process or file."""

    default_code = "not_found"


class ConflictError(PaddockError):
    """Something stands in the way: the file is there already, the process has ended."""

    default_code = "conflict"


class PausedError(ConflictError):
    """The sandbox is paused."""

    default_code = "paused"


class SessionGoneError(PaddockError):
    """The sandbox is gone, and what was in it. It is never made anew silently."""

    default_code = "session_lost"


class SessionLostError(SessionGoneError):
    """The sandbox was lost: the machine was restarted, or its jail ended."""

    default_code = "session_lost"


class SessionExpiredError(SessionGoneError):
    """The sandbox was idle for too long, or too old."""

    default_code = "session_expired"


class CapacityError(PaddockError):
    """No room for another sandbox, or the server is about to stop."""

    default_code = "capacity"


class RateLimitError(PaddockError):
    """Too many requests."""

    default_code = "rate_limited"


class NoSpaceError(PaddockError):
    """The sandbox has no space or no files left."""

    default_code = "no_space"


class UnsupportedError(PaddockError):
    """This server, mode or sandbox cannot do that."""

    default_code = "unsupported"


class BadGatewayError(PaddockError):
    """Nothing listens on that port of the sandbox."""

    default_code = "bad_gateway"


class RequestTimeoutError(PaddockError, TimeoutError):
    """No answer in time."""

    default_code = "timeout"


class TransportError(PaddockError, ConnectionError):
    """The server could not be reached, or the connection broke off."""

    default_code = "connection"


class ServerError(PaddockError):
    """Something went wrong in the server; its log says what, under `request_id`."""

    default_code = "internal"


class CommandExitError(PaddockError):
    """A command ended with a status other than 0.

    Raised by `Sandbox.commands.run` and `CommandHandle.wait`. It has what the result would have had.
    """

    default_code = "command_exit"

    def __init__(self, exit_code: int, stdout: str, stderr: str,
                 error: Optional[str] = None) -> None:
        text = f"the command ended with status {exit_code}"
        if error:
            text += f" ({error})"
        if stderr.strip():
            text += ": " + stderr.strip()[-2000:]
        super().__init__(text)
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr
        self.error = error


class CommandTimeoutError(PaddockError, TimeoutError):
    """A command was not done in time and was ended, with all its children."""

    default_code = "command_timeout"

    def __init__(self, message: str, stdout: str = "", stderr: str = "") -> None:
        super().__init__(message)
        self.stdout = stdout
        self.stderr = stderr


_CLASSES: Dict[str, Type[PaddockError]] = {
    "invalid": InvalidArgumentError, "too_large": InvalidArgumentError,
    "method_not_allowed": InvalidArgumentError, "no_command": CommandNotStartedError,
    "not_executable": CommandNotStartedError, "unauthenticated": AuthenticationError,
    "denied": DeniedError, "policy": PolicyError, "not_found": NotFoundError,
    "conflict": ConflictError, "isolation": ConflictError, "paused": PausedError,
    "session_lost": SessionLostError, "lost": SessionLostError,
    "session_expired": SessionExpiredError, "rate_limited": RateLimitError,
    "capacity": CapacityError, "shutting_down": CapacityError, "unsupported": UnsupportedError,
    "bad_gateway": BadGatewayError, "timeout": RequestTimeoutError, "no_space": NoSpaceError,
    "connection": TransportError, "internal": ServerError, "protocol": ServerError,
}

_RETRYABLE = {"rate_limited", "capacity", "shutting_down", "bad_gateway", "timeout", "connection"}

_REMEDIES = {
    "invalid": "correct the argument that the message names",
    "too_large": "send less at once",
    "method_not_allowed": "use a client of the server's version",
    "no_command": "install the program in the sandbox, or correct its name",
    "not_executable": "make the file executable, or run it with its interpreter",
    "unauthenticated": "set PADDOCK_API_KEY to a key that `paddock key create` printed",
    "denied": "choose a path that the sandbox's user may use, or pass user='root'",
    "policy": "use a command that the sandbox's policy allows, or create it with another policy",
    "not_found": "check the id or the path",
    "conflict": "look at what is there, then remove it or choose another name",
    "isolation": "ask for less isolation, or see `paddock doctor`",
    "paused": "resume the sandbox first",
    "session_lost": "create a new sandbox, or pass auto_retry=True",
    "lost": "create a new sandbox, or pass auto_retry=True",
    "session_expired": "create a new sandbox, or pass auto_retry=True",
    "rate_limited": "try again later",
    "capacity": "try again later, or end sandboxes that nobody needs",
    "shutting_down": "try again when the server runs again",
    "unsupported": "do it in another way; the message says what is possible",
    "bad_gateway": "start the program that listens on that port",
    "timeout": "try again, or allow more time",
    "no_space": "remove files, or create the sandbox with a larger limit",
    "connection": "check PADDOCK_URL, and that `paddock serve` runs there",
    "command_exit": "read its standard error",
    "command_timeout": "allow more time, or run it in the background",
    "internal": "see the server's log",
}


def error_of(code: str, message: str, *, details: Optional[Mapping[str, object]] = None,
             status: Optional[int] = None, retry_after: Optional[float] = None,
             request_id: Optional[str] = None) -> PaddockError:
    """The error for a code of the server; an unknown code is a `PaddockError`."""
    return _CLASSES.get(code, PaddockError)(
        message, code=code, details=details, status=status, retry_after=retry_after,
        request_id=request_id)


# The names that E2B's package has for the same.
SandboxException = PaddockError
AuthenticationException = AuthenticationError
CommandExitException = CommandExitError
InvalidArgumentException = InvalidArgumentError
NotEnoughSpaceException = NoSpaceError
NotFoundException = NotFoundError
RateLimitException = RateLimitError
TimeoutException = (CommandTimeoutError, RequestTimeoutError)
