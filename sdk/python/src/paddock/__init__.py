"""Sandboxes for code that nobody has reviewed.

`Sandbox` and `AsyncSandbox` hold one sandbox, `SandboxClient` those of users and threads, and
`get_sandbox_coordinator` gives the one that runs an agent's code. docs/python.md begins with each of
them.
"""

from .client import SandboxClient
from .errors import *  # noqa: F403
from .errors import __all__ as _errors
from .models import *  # noqa: F403
from .models import __all__ as _models

__version__ = "0.1.0"

__all__ = ["SandboxClient", *_errors, *_models]
