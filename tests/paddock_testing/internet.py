"""An internet of our own: two network namespaces and a cable between them.

The machine's side is where paddock runs, with a default route; the other side has public and private
addresses, a DNS server and servers that tell who was asked. Nothing leaves them. Needs root.
"""

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from . import host
from .run import PADDOCK, clean_environment, seconds, wait_for
from .server import Client, Server

ADDRESSES = ("203.0.113.7", "203.0.113.8", "198.51.100.9", "10.9.9.9", "169.254.169.254",
             "203.0.113.53")
ADDRESSES6 = ("2001:db8::7", "64:ff9b::a09:909")
NAMESERVER = "203.0.113.53"
NAMES = ("a.example", "b.example", "sub.a.example")  # that its servers have a certificate for


def ns(pid, *argv):
    return ["nsenter", "-t", str(pid), "-n", "--", *argv]


class Internet:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="paddock-internet-")
        self.near = subprocess.Popen(["unshare", "-n", "--", "sh", "-c", "echo up; exec sleep 3600"],
                                     stdout=subprocess.PIPE, text=True)
        self.near.stdout.readline()
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=test",
                        "-addext", "subjectAltName=" + ",".join(f"DNS:{n}" for n in NAMES),
                        "-keyout", f"{self.dir}/key", "-out", f"{self.dir}/cert"],
                       check=True, capture_output=True, timeout=seconds(60))
        server = Path(__file__).with_name("internet_servers.py")
        self.far = subprocess.Popen(["unshare", "-n", "--", sys.executable, str(server), self.dir],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.far.stdout.readline() == "made\n"
        self._cable()
        self.far.stdin.write("go\n")
        self.far.stdin.flush()
        assert self.far.stdout.readline() == "ready\n"

    def _cable(self):
        def do(pid, text):
            subprocess.run(ns(pid, "sh", "-ec", text), check=True, timeout=seconds(30))
        near, far = self.near.pid, self.far.pid
        do(near, f"ip link add n0 type veth peer name f0 netns {far}; ip link set lo up;"
                 " ip addr add 192.0.2.129/25 dev n0; ip -6 addr add 2001:db8:1::1/64 dev n0 nodad;"
                 " ip link set n0 up")
        do(far, "ip link set lo up; ip addr add 192.0.2.130/25 dev f0;"
                " ip -6 addr add 2001:db8:1::2/64 dev f0 nodad; ip link set f0 up;"
                + "".join(f" ip addr add {a}/32 dev lo;" for a in ADDRESSES)
                + "".join(f" ip -6 addr add {a}/128 dev lo nodad;" for a in ADDRESSES6))
        do(near, "ip route add default via 192.0.2.130; ip -6 route add default via 2001:db8:1::2")

    def run(self, rules, line, *more, timeout=150):
        """`paddock run` in the machine's side; `line` is for bash."""
        argv = ns(self.near.pid, PADDOCK, "run", "--resolver", NAMESERVER, *rules.split(), *more,
                  "--", "bash", "-c", line)
        return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=seconds(timeout), env=clean_environment())

    def start(self, rules, line):
        argv = ns(self.near.pid, PADDOCK, "run", "--resolver", NAMESERVER, *rules.split(), "--",
                  "bash", "-c", line)
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                stdin=subprocess.DEVNULL, env=clean_environment())

    def listen_near(self, port):
        """A server on the machine itself, on all its addresses."""
        code = ("import socket\ns = socket.create_server(('::', %d), family=socket.AF_INET6,"
                " dualstack_ipv6=True)\nprint('up', flush=True)\n"
                "while True:\n c = s.accept()[0]\n c.sendall(b'the host\\n')\n c.close()" % port)
        p = subprocess.Popen(ns(self.near.pid, sys.executable, "-c", code), stdout=subprocess.PIPE,
                             text=True)
        p.stdout.readline()
        return p

    def close(self):
        for p in (self.far, self.near):
            p.kill()
            p.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def can_make():
    """Why there can be none here, or None."""
    if os.geteuid() != 0:
        return "an internet of its own needs root"
    for tool in ("nsenter", "unshare", "ip", "openssl", "curl"):
        if not shutil.which(tool):
            return f"no internet of its own: {tool} is not installed"
    tried = subprocess.run(["unshare", "-n", "ip", "link", "add", "v0", "type", "veth"],
                           capture_output=True, timeout=seconds(20), check=False)
    return "no internet of its own: no veth" if tried.returncode else None


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class UnixClient(Client):
    """By the server's own socket: its addresses are in another network namespace."""

    def __init__(self, path, key):
        super().__init__("localhost", 0, key)
        self.path = path

    def with_key(self, key):
        return UnixClient(self.path, key)

    def _connection(self):
        if getattr(self.local, "connection", None) is None:
            self.local.connection = UnixConnection(self.path, self.timeout)
        return self.local.connection


class ServerInside(Server):
    """A server in the machine's side of an internet."""

    def __init__(self, internet, settings=None, config=None):
        super().__init__({"egress": "open", "egress_resolvers": NAMESERVER, "pool_min": 0,
                          "pool_max": 0, **(settings or {})}, config=config)
        self.internet = internet

    def argv(self):
        return ns(self.internet.near.pid, *super().argv())

    def client(self, key=None):
        return UnixClient(f"{self.run_dir}/paddock.sock", self.key if key is None else key)

    def wait_ready(self):
        def answers():
            assert self.process.poll() is None, self.log()
            with contextlib.suppress(OSError, http.client.HTTPException):
                return self.client().get("/readyz").status == 200
            return False

        wait_for(answers, 30, "the server is ready")
        self.note_instances()
        return self

    @property
    def url(self):
        return f"unix:{self.run_dir}/paddock.sock"

    def e2b(self, method, path, body=None):
        """A request by E2B's protocol: status and body."""
        c = UnixConnection(f"{self.run_dir}/paddock.sock", seconds(60))
        try:
            c.request(method, path, body=json.dumps(body) if body is not None else None,
                      headers={"X-API-Key": self.key, "Content-Type": "application/json"})
            r = c.getresponse()
            text = r.read()
            return r.status, json.loads(text) if text else None
        finally:
            c.close()

    def changers(self):
        """Likewise of the changer."""
        return [p for p in host.pids()
                if host.command_line(p)[1:4] == ["changer", "--gate", f"{self.run_dir}/changer.sock"]]

    def gates(self):
        """The gate's pid in a list; empty while there is none."""
        return [p for p in host.pids()
                if host.command_line(p)[1:4] == ["gate", "--socket", f"{self.run_dir}/gate.sock"]]
