"""Sessions with `prepared_shell` off."""

from test_sessions import *  # noqa: F401,F403
