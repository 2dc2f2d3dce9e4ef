"""A port of this machine that leads to a port of a sandbox: what a preview is without a server."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Callable


class Forward:
    """Listens on a port of 127.0.0.1; each connection is passed on to what `dial` connects to."""

    def __init__(self, dial: Callable[[], int]) -> None:
        self._dial = dial
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="paddock-forward", daemon=True).start()

    def close(self) -> None:
        """No more connections; those that there are stay until one of both ends."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                visitor, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._visit, args=(visitor,), daemon=True).start()

    def _visit(self, visitor: socket.socket) -> None:
        try:
            inside = socket.socket(fileno=self._dial())
        except Exception as error:  # nothing listens there, or the sandbox is gone
            _refuse(visitor, str(error))
            return
        back = threading.Thread(target=_pass_on, args=(inside, visitor), daemon=True)
        back.start()
        _pass_on(visitor, inside)
        back.join()
        visitor.close()
        inside.close()


def _refuse(visitor: socket.socket, why: str) -> None:
    """What a server would answer; who speaks something else sees the connection end."""
    text = why.encode()
    with contextlib.suppress(OSError), visitor:
        visitor.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\n"
                        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        visitor.shutdown(socket.SHUT_WR)
        # Closed with something unread, the answer would be lost in a reset.
        visitor.settimeout(1)
        while visitor.recv(65536):
            pass


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            data = os.read(source.fileno(), 65536)
            if not data:
                break
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
