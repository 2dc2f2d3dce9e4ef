"""Commands and sessions with `prepared_shell` off; by night all that runs lines."""

import os

from test_exec import *  # noqa: F401,F403
from test_sessions import *  # noqa: F401,F403

# It takes 16 s, and has nothing to do with shells.
del test_a_silent_stream_has_a_heartbeat  # noqa: F821

if os.environ.get("PADDOCK_NIGHTLY", "") not in ("", "0"):
    from test_attach import *  # noqa: F401,F403
    from test_processes import *  # noqa: F401,F403


def test_no_shell_is_prepared(api, sandbox):
    """Else this file would show nothing."""
    def line():
        answer = api.post(f"/v1/sandboxes/{sandbox}/exec",
                          json={"command": "tr '\\0' ' ' </proc/$$/cmdline"})
        return answer.json()["stdout"]

    assert "EXIT" in line() and not any("/proc/self/fd/0" in line() for _ in range(5))
