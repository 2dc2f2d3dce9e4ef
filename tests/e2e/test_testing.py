"""The tests' own tools: what they must not take for a success."""

import contextlib
import http.client
import os
import signal
import socket
import threading

import pytest

from paddock_testing import battery
from paddock_testing.run import wait_for
from paddock_testing.server import Client, Server


@pytest.mark.parametrize("status", [0, 99, 124, 125, 126, 127, 134, 137, 139])
def test_what_is_no_denial(status):
    with pytest.raises(AssertionError):
        battery.check_denied(status)


def test_what_is_a_denial():
    battery.check_denied(1)
    battery.check_denied(2)
    battery.check_denied(128 + signal.SIGSYS)
    battery.check_denied(126, answers=(126,))


@pytest.mark.parametrize("line,status", [("no-such-program-at-all", 127), ("sleep 60", 124)])
def test_an_attack_that_cannot_run_is_no_denial(fixtures, monkeypatch, line, status):
    """In a real sandbox, through the runner of all tables."""
    if status == 124:
        monkeypatch.setattr(battery, "PER_ATTACK", 0.5)
    found = battery.try_attacks(fixtures, [battery.Attack("broken", line)], "strict", "user")
    assert found == {"broken": status}


def test_a_server_that_died_fails_the_test():
    server = Server()
    with pytest.raises(AssertionError, match="died by itself"):
        with server:
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait(10)
    assert not os.path.exists(server.directory)
    wait_for(lambda: server.keepers() == [], 10, "its keeper is gone")


def test_a_server_that_the_test_ended_is_no_failure():
    with Server() as server:
        server.kill()
        server.start()
        server.stop()


class Dropping(threading.Thread):
    """A server that answers once and then drops the connection under every request."""

    def __init__(self):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.requests = 0
        self.start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self.listener.accept()
                with peer:
                    while peer.recv(65536):
                        self.requests += 1
                        if self.requests > 1:
                            break
                        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


def test_a_request_is_sent_once():
    """A daemon that dies under a request is seen, also when the next one would answer."""
    server = Dropping()
    api = Client(*server.listener.getsockname(), None)
    assert api.get("/").status == 200
    with pytest.raises((OSError, http.client.HTTPException)):
        api.post("/", json={})
    assert server.requests == 2
    api.close()
    server.listener.close()
