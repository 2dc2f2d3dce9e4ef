"""A load balancer with sticky cookies in front of a target group: HAProxy, whose servers follow RegisterTargets and
DeregisterTargets by its runtime socket. As AWS's, it sets its cookie with every answer and leads who has none, or one of
a target that is gone, to any target."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading

from . import run as paddock

SLOTS = 8
CONFIG = """
global
    stats socket {dir}/admin.sock level admin
    maxconn 200
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout tunnel 1h
frontend in
    bind 127.0.0.1:{port}
    default_backend tg
backend tg
    balance roundrobin
    cookie AWSALB insert
{servers}
"""


def why_not():
    return "" if shutil.which("haproxy") or os.path.exists("/usr/sbin/haproxy") else "haproxy is not installed"


class Balancer:
    def __init__(self, port_of_targets):
        self.dir = tempfile.mkdtemp(prefix="paddock-alb-")
        self.target_port, self.slots, self.lock = port_of_targets, {}, threading.Lock()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        config = os.path.join(self.dir, "haproxy.cfg")
        with open(config, "w", encoding="ascii") as f:
            f.write(CONFIG.format(dir=self.dir, port=self.port, servers="".join(
                f"    server s{n} 127.0.0.1:1 cookie s{n} disabled\n" for n in range(SLOTS))))
        self.process = subprocess.Popen([shutil.which("haproxy") or "/usr/sbin/haproxy", "-db", "-f", config],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        paddock.wait_for(self.answers, 20, "haproxy answers")

    def answers(self):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False

    def tell(self, *orders):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(os.path.join(self.dir, "admin.sock"))
            s.sendall(("; ".join(orders) + "\n").encode())
            return s.recv(65536)

    def follow(self, targets):
        """The addresses that are to be led to."""
        with self.lock:
            for address in [a for a in self.slots if a not in targets]:
                slot = self.slots.pop(address)
                self.tell(f"set server tg/s{slot} state maint", f"shutdown sessions server tg/s{slot}")
            for address in targets - set(self.slots):
                slot = min(set(range(SLOTS)) - set(self.slots.values()))
                self.slots[address] = slot
                self.tell(f"set server tg/s{slot} addr {address} port {self.target_port}",
                          f"set server tg/s{slot} state ready")

    def cut(self):
        """Every connection that leads to a target."""
        for slot in self.slots.values():
            self.tell(f"shutdown sessions server tg/s{slot}")

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)
