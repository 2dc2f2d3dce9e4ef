"""One suite for every provider: tests/api with PADDOCK_TEST_PROVIDER=NAME.

The server's default provider is that one then, so a test that names none has its sandboxes there.
tests/backends/cannot.toml says what a provider cannot do; those tests are skipped with its reason.
"""

import os
import tomllib
from pathlib import Path

import pytest

CANNOT = Path(__file__).resolve().parent.parent / "backends" / "cannot.toml"


def provider():
    """Its name; "jail" when none is asked for."""
    return os.environ.get("PADDOCK_TEST_PROVIDER", "jail")


def settings():
    """What the server needs besides, so that the provider is its default."""
    name = provider()
    if name == "jail":
        return {}
    more = {"local_allowed": "on"} if name == "local" else {}
    return {"providers": f"{name},jail", "sandbox_mode": name, **more}


def leave_out(items):
    """Marks what the provider cannot do as skipped, with the reason that the table gives."""
    table = tomllib.loads(CANNOT.read_text()).get(provider(), {})
    reasons = {test: group["why"] for group in table.values() for test in group["tests"]}
    for item in items:
        name = f"{item.path.stem}::{item.originalname}"
        why = reasons.get(name) or reasons.get(item.path.stem)
        if why:
            item.add_marker(pytest.mark.skip(reason=f"provider {provider()}: {why}"))
