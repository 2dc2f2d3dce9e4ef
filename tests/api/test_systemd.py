"""What the server does for a service manager: it says when it is ready, when it reads its
configuration again and when it stops, and it serves sockets that were opened for it."""

import os
import signal
import socket
import tempfile

import pytest

from paddock_testing import run as paddock
from paddock_testing.server import Server

QUIET = {"pool_min": 0, "pool_max": 0}


class Manager:
    """The receiving end of sd_notify(3)."""

    def __init__(self, directory):
        self.path = os.path.join(directory, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        os.chmod(self.path, 0o666)  # the daemon has another user than we
        self.socket.settimeout(paddock.seconds(20))

    def next(self):
        return self.socket.recv(4096).decode().split()

    def until(self, word):
        seen = []
        while word not in seen:
            seen += self.next()
        return seen


@pytest.fixture
def manager():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        m = Manager(directory)
        yield m
        m.socket.close()


def test_it_says_what_it_does(manager):
    server = Server(settings=QUIET, env={"NOTIFY_SOCKET": manager.path}).start()
    assert manager.until("READY=1") == ["READY=1"]
    server.send_signal(signal.SIGHUP)
    assert manager.until("READY=1")[0] == "RELOADING=1"
    server.stop(signal.SIGTERM)
    assert manager.until("STOPPING=1")[-1] == "STOPPING=1"
    server.close()


def test_a_manager_that_is_not_there_does_no_harm():
    server = Server(settings=QUIET, env={"NOTIFY_SOCKET": "/var/tmp/nobody-listens-here"}).start()
    assert server.client().get("/v1/sandboxes").status == 200
    server.close()


class Activated(Server):
    """Started with a listening socket as descriptor 3, and an address that it must not use."""

    def __init__(self, listener):
        super().__init__(settings=QUIET)
        self.unused = self.port
        self.port = listener.getsockname()[1]
        self.listener = listener
        self.pass_fds = (listener.fileno(),)

    def argv(self):
        argv = [word.replace(f":{self.port}", f":{self.unused}") for word in super().argv()]
        script = f'export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@" 3<&{self.listener.fileno()}'
        return ["/bin/bash", "-c", script, "bash", *argv]


def test_a_socket_that_was_opened_for_it():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        server = Activated(listener).start()
        assert server.client().get("/v1/sandboxes").status == 200
        with socket.socket() as other:
            assert other.connect_ex(("127.0.0.1", server.unused)) != 0
        server.close()
