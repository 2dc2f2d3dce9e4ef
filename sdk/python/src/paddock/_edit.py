"""Replacing text in one file, for those who say what was there before."""

from __future__ import annotations

from ._backend import Backend

# What the server takes in one request.
PATTERN_MAX = 4096
REPLACEMENT_MAX = 65536


class NotThere(Exception):
    """The text is not in the file."""


class NotUnique(Exception):
    """The text is in the file more than once."""

    def __init__(self, count: int) -> None:
        super().__init__(str(count))
        self.count = count


def replace_text(backend: Backend, sandbox_id: str, path: str, old: str, new: str,
                 every: bool) -> int:
    """Replaces a text that must be there once, or `every` one of it; gives how many there were."""
    what, by = old.encode("utf-8", "surrogatepass"), new.encode("utf-8", "surrogatepass")
    if len(what) <= PATTERN_MAX and len(by) <= REPLACEMENT_MAX:
        found = backend.replace(sandbox_id, old, new, path, dry_run=True)
        count = sum(f.replacements for f in found)
        _check(count, every)
        backend.replace(sandbox_id, old, new, path)
        return count
    data = backend.read_file(sandbox_id, path)
    count = data.count(what)
    _check(count, every)
    backend.write_file(sandbox_id, path, data.replace(what, by), mkdirs=False)
    return count


def _check(count: int, every: bool) -> None:
    if count == 0:
        raise NotThere
    if count > 1 and not every:
        raise NotUnique(count)
