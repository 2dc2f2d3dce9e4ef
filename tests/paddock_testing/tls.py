"""A server that speaks TLS beside plain HTTP, with the certificate that `paddock cert` makes."""

import http.client
import os
import re
import shlex
import socket
import ssl
import subprocess
from pathlib import Path

from . import run as paddock
from .server import Client, Server, free_port

DOMAIN = "box.test"
QUIET = {"pool_min": 0, "pool_max": 0}


def cert(directory, *words, status=0, env=None):
    """`paddock cert` into a directory; gives what it prints."""
    done = subprocess.run(
        [paddock.PADDOCK, "cert", "--dir", str(directory), *words], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=paddock.seconds(30),
        env=paddock.clean_environment(env))
    assert done.returncode == status, done
    return done.stdout if status == 0 else done.stderr


def settings_of(printed):
    """The lines for the server out of what `paddock cert` prints."""
    return "\n".join(line for line in printed.splitlines() if re.match("[a-z_]+ = ", line)) + "\n"


def exports_of(printed):
    """The variables for clients, as a shell would read them."""
    lines = [line for line in printed.splitlines() if line.startswith("export ")]
    return dict(shlex.split(line)[1].split("=", 1) for line in lines)


class TlsClient(Client):
    """A client of an address that speaks TLS; `name` is what it believes to talk to."""

    def __init__(self, server, port, ca, name="127.0.0.1"):
        super().__init__("127.0.0.1", port, server.key)
        self.context = ssl.create_default_context(cafile=ca)
        self.name = name

    def _connection(self):
        if getattr(self.local, "connection", None) is None:
            made = http.client.HTTPSConnection(
                self.host, self.port, timeout=self.timeout, context=self.context)
            made.sock = self.open()
            self.local.connection = made
        return self.local.connection

    def open(self, context=None):
        raw = socket.create_connection((self.host, self.port), timeout=self.timeout)
        try:
            return (context or self.context).wrap_socket(raw, server_hostname=self.name)
        except BaseException:
            raw.close()
            raise


class BothServer(Server):
    """Plain at `port`, TLS at `tls_port`, set up by what `paddock cert` printed."""

    def __init__(self):
        super().__init__(settings=QUIET)
        self.tls_port = free_port()
        self.tls_dir = os.path.join(self.directory, "tls")
        self.printed = cert(self.tls_dir, "--domain", DOMAIN,
                            env={"PADDOCK_LISTEN_TLS": f"127.0.0.1:{self.tls_port}"})
        self.ca = exports_of(self.printed)["NODE_EXTRA_CA_CERTS"]
        Path(self.config).write_text(settings_of(self.printed))

    def tls(self, name="127.0.0.1"):
        return TlsClient(self, self.tls_port, self.ca, name)
