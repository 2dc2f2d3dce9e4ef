"""Sandboxes for code that nobody has reviewed.

`Sandbox` and `AsyncSandbox` hold one sandbox, `SandboxClient` those of users and threads, and
`get_sandbox_coordinator` gives the one that runs an agent's code. docs/python.md begins with each of
them.
"""

from .async_sandbox import *  # noqa: F403
from .async_sandbox import __all__ as _async_sandbox
from .charts import *  # noqa: F403
from .charts import __all__ as _charts
from .client import SandboxClient
from .contexts import Context
from .coordinator import *  # noqa: F403
from .coordinator import __all__ as _coordinator
from .errors import *  # noqa: F403
from .errors import __all__ as _errors
from .errors import (
    AuthenticationException, CommandExitException, InvalidArgumentException,
    NotEnoughSpaceException, NotFoundException, RateLimitException, SandboxException,
    TimeoutException,
)
from .execution import *  # noqa: F403
from .execution import __all__ as _execution
from .factory import *  # noqa: F403
from .factory import __all__ as _factory
from .kernel import Kernel
from .models import *  # noqa: F403
from .models import __all__ as _models
from .sandbox import *  # noqa: F403
from .sandbox import __all__ as _sandbox
from .server import Server
from .session import SandboxSession

__version__ = "0.1.0"


_TOOLS = (
    "get_all_agent_tools", "get_bash_tool", "get_coder_agent_tool", "get_python_tool",
    "get_reporter_agent_tool", "get_tracker_agent_tool", "get_validator_agent_tool",
)


def __getattr__(name: str) -> object:
    # The tools need LangChain; who does not ask for them does without.
    if name in _TOOLS:
        from . import tools

        return getattr(tools, name)
    raise AttributeError(f"module 'paddock' has no attribute '{name}'")


__all__ = [
    "Context", "Kernel", "SandboxClient", "SandboxSession", "Server", *_async_sandbox, *_charts,
    *_coordinator, *_errors, *_execution, *_factory, *_models, *_sandbox,
    # As E2B's package calls them.
    "AuthenticationException", "CommandExitException", "InvalidArgumentException",
    "NotEnoughSpaceException", "NotFoundException", "RateLimitException", "SandboxException",
    "TimeoutException",
]
