"""What the environment asks for: where sandboxes are, who makes them, and in which execution mode.

The variables are those of older systems, and they mean what they mean to the server
(docs/router.md, docs/configuration.md), in the same order: the flag for its share of the users, then
SANDBOX_MODE, SANDBOX_PROVIDER and STIGMER_EXECUTION_MODE. A value that is none is an error that lists
the valid ones, never a silent default.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import Mapping, Optional, Tuple

# Where sandboxes are: with a server, or with the library in this process.
MODES = ("local", "remote")
# What commands may run in.
EXECUTION_MODES = ("local", "sandbox", "auto")
# What sandboxes can be made of; which of them a server has, `GET /v1/providers` says.
PROVIDERS = ("jail", "local", "docker", "podman", "kubernetes", "fargate", "cloudrun", "e2b",
             "daytona")

FLAG = "USE_CLOUDRUN_JOBS_SANDBOX"
PERCENTAGE = "CLOUDRUN_JOBS_ROLLOUT_PERCENTAGE"
PROJECT = "SANDBOX_GCP_PROJECT"
SHARE_ALL = 10000


@dataclass(frozen=True)
class Selection:
    """What is meant when a caller says nothing."""

    provider: Optional[str] = None
    execution_mode: Optional[str] = None
    reason: str = ""
    flag_enabled: bool = False


def _rotate(word: int, by: int) -> int:
    return ((word << by) | (word >> (32 - by))) & 0xffffffff


def _scramble(word: int) -> int:
    return _rotate(word * 0xcc9e2d51 & 0xffffffff, 15) * 0x1b873593 & 0xffffffff


def murmur3(data: bytes) -> int:
    """MurmurHash3, x86, 32 bits, seed 0: the hash that the server's shares go by."""
    h = 0
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        h = _rotate(h ^ _scramble(int.from_bytes(data[at:at + 4], "little")), 13)
        h = (h * 5 + 0xe6546b64) & 0xffffffff
    h ^= _scramble(int.from_bytes(data[whole:], "little")) ^ len(data)
    h = (h ^ h >> 16) * 0x85ebca6b & 0xffffffff
    h = (h ^ h >> 13) * 0xc2b2ae35 & 0xffffffff
    return h ^ h >> 16


def share_of(salt: str, key: str) -> int:
    """The bucket of a key, 0 to 9,999. A share of 12.5 % is the buckets below 1,250."""
    return murmur3(f"{salt}:{key}".encode()) % SHARE_ALL


def check_name(name: str, value: str, valid: Tuple[str, ...], source: str) -> str:
    """The value in small letters, or ValueError with where it is from and the valid ones."""
    chosen = value.strip().lower()
    if chosen not in valid:
        raise ValueError(f"Unknown {name} '{value}' (from {source}); valid are: {', '.join(valid)}")
    return chosen


def _switch(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "").strip().lower()
    if text in ("", "false", "0", "no", "off"):
        return False
    if text in ("true", "1", "yes", "on"):
        return True
    raise ValueError(f"{name}: '{env[name]}' is neither true nor false")


def _percentage(env: Mapping[str, str]) -> float:
    text = env.get(PERCENTAGE, "").strip()
    try:
        value = float(text) if text else 100.0
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise ValueError(f"{PERCENTAGE}: '{text}' is not a number from 0 to 100")
    return value


def _flag(env: Mapping[str, str], user_id: Optional[str]) -> Tuple[bool, bool, str]:
    """Is it on, does it count for this user, and why."""
    on, percentage = _switch(env, FLAG), _percentage(env)
    if not on:
        return False, False, ""
    if not env.get(PROJECT):
        return True, False, f"{FLAG} is on, but {PROJECT} is not set"
    # Somebody who is nobody in particular is in a share by chance, as with the server.
    bucket = share_of(FLAG, user_id or uuid.uuid4().hex)
    if bucket >= round(percentage * 100):
        return True, False, f"{FLAG} is on for {percentage:g} % of the users, not for this one"
    return True, True, f"{FLAG} is on for {percentage:g} % of the users" if percentage < 100 \
        else f"{FLAG} is on and {PROJECT} is set"


def select(user_id: Optional[str] = None, env: Optional[Mapping[str, str]] = None) -> Selection:
    """What the environment asks for.

    Args:
        user_id: Whose sandbox it is; the share of a flag goes by it.
        env: Another environment than that of this process.

    Raises:
        ValueError: A variable has a value that it cannot have; the message lists the valid ones.
    """
    env = os.environ if env is None else env
    on, counts, why = _flag(env, user_id)
    if counts:
        return Selection(provider="cloudrun", reason=why, flag_enabled=True)

    but = f"; {why}" if why else ""
    said = env.get("SANDBOX_MODE", "")
    chosen = check_name("sandbox mode", said, tuple(dict.fromkeys(
        MODES + EXECUTION_MODES + PROVIDERS)), "SANDBOX_MODE") if said else ""
    if chosen and chosen not in MODES:
        return _chosen(chosen, f"SANDBOX_MODE is '{said}'{but}", on)

    said = env.get("SANDBOX_PROVIDER", "")
    chosen = check_name("sandbox provider", said, ("auto", "sandbox", "remote") + PROVIDERS,
                        "SANDBOX_PROVIDER") if said else ""
    # "local" and "remote" here are where, as in SANDBOX_MODE: older clients of this package.
    if chosen and chosen not in MODES:
        return _chosen(chosen, f"SANDBOX_PROVIDER is '{said}'{but}", on)

    said = env.get("STIGMER_EXECUTION_MODE", "")
    chosen = check_name("execution mode", said, EXECUTION_MODES,
                        "STIGMER_EXECUTION_MODE") if said else ""
    if chosen:
        return Selection(execution_mode=chosen, flag_enabled=on,
                         reason=f"STIGMER_EXECUTION_MODE is '{said}'{but}")
    return Selection(reason=why, flag_enabled=on)


def _chosen(name: str, reason: str, flag: bool) -> Selection:
    if name in ("auto", "sandbox"):
        return Selection(execution_mode="sandbox" if name == "sandbox" else None, reason=reason,
                         flag_enabled=flag)
    return Selection(provider=name, reason=reason, flag_enabled=flag)
