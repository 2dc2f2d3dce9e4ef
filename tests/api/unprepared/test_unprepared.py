"""Commands with `prepared_shell` off."""

from test_exec import *  # noqa: F401,F403

# It takes 16 s, and has nothing to do with shells.
del test_a_silent_stream_has_a_heartbeat  # noqa: F821


def test_no_shell_is_prepared(api, sandbox):
    """Else this folder would show nothing."""
    def line():
        answer = api.post(f"/v1/sandboxes/{sandbox}/exec",
                          json={"command": "tr '\\0' ' ' </proc/$$/cmdline"})
        return answer.json()["stdout"]

    assert "EXIT" in line() and not any("/proc/self/fd/0" in line() for _ in range(5))
