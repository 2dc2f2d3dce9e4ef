"""Bytes that come in pieces, as text."""

from __future__ import annotations

import codecs
from typing import Callable, Optional, Tuple


def text_callback(tell: Optional[Callable[[str], None]]
                  ) -> Tuple[Optional[Callable[[bytes], None]], Callable[[], None]]:
    """A callback for bytes that calls `tell` with text, and what to call at the end.

    A character that is cut by the end of a piece waits for its rest.
    """
    if tell is None:
        return None, lambda: None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    hear = tell

    def take(data: bytes) -> None:
        text = decoder.decode(data)
        if text:
            hear(text)

    def finish() -> None:
        text = decoder.decode(b"", True)
        if text:
            hear(text)

    return take, finish


def shortened(data: bytes, head: int, total: int, is_cut: bool) -> str:
    """Output of `total` bytes of which the first `head` and the last ones were kept."""
    if not is_cut:
        return data.decode("utf-8", "replace")
    left = total - len(data)
    return (data[:head].decode("utf-8", "replace") + f"\n[... {left} bytes left out ...]\n"
            + data[head:].decode("utf-8", "replace"))
