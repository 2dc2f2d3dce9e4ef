"""Foreign text, made fit to be shown or to be sent to a model."""

from __future__ import annotations

import re

from .._text import shortened

# Control characters but newline and tab, C1, line separators, and what turns the direction of
# writing or hides letters: each could make a terminal show something else than what is there.
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
                    "\ud800-\udfff\U000e0000-\U000e007f]")


def _shown(match: "re.Match[str]") -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def plain(text: str) -> str:
    """The text with every character that a terminal would obey written out."""
    return _UNFIT.sub(_shown, text.replace("\r\n", "\n").replace("\r", "\n"))


def fit(text: str) -> str:
    """The text without halves of characters, which cannot be sent as UTF-8 and which models refuse."""
    return text.encode("utf-8", "replace").decode("utf-8")


def one_line(text: str, width: int = 160) -> str:
    """The beginning of the text as one line that can be shown."""
    line = plain(" ".join(text[:4 * width].split()))
    return line if len(line) <= width and len(text) <= 4 * width else line[:width - 3] + "..."


def cut(text: str, limit: int) -> str:
    """At most about so many characters: head and tail, and how much is missing between them."""
    if len(text) <= limit:
        return text
    head, tail = text[:limit // 2], text[len(text) - limit // 2:]
    return f"{head}\n[... {len(text) - len(head) - len(tail)} characters are left out ...]\n{tail}"


class Kept:
    """Output that comes in pieces, of which head and tail are kept."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head = b""
        self._tail = b""
        self._total = 0

    def add(self, data: bytes) -> None:
        """The next piece."""
        self._total += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        if len(data) > room:
            self._tail = (self._tail + data[room:])[-self._half:]

    def text(self) -> str:
        """What was kept, and how much is missing."""
        data = self._head + self._tail
        return shortened(data, len(self._head), self._total, self._total > len(data))
