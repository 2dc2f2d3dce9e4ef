"""Background commands with `prepared_shell` off, by night."""

import os

if os.environ.get("PADDOCK_NIGHTLY", "") not in ("", "0"):
    from test_processes import *  # noqa: F401,F403
