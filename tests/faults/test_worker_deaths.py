"""A server whose keeper has workers that die as soon as they start: it says so, serves what else it can,
and goes on by itself when they live."""

import os
import tempfile

import pytest

from paddock_testing import broker
from paddock_testing.run import wait_for
from paddock_testing.server import Server, check_error


# Ends at once while the file `ill` is beside it. Otherwise whatever it is asked to do, it says is done.
PROGRAM = """#!/usr/bin/python3
import os, socket, struct, sys
if os.path.exists(os.path.join(os.path.dirname(sys.argv[0]), "ill")):
    sys.exit(7)
sock, head = socket.socket(fileno=3), struct.Struct("=IHHIIQ16s")
while data := sock.recv(1 << 18):
    sock.send(head.pack({magic}, {done}, 0, 0, 0, 0, head.unpack_from(data)[-1]))
""".format(magic=broker.MAGIC, done=broker.TYPES["DONE"])


@pytest.fixture
def program():
    """In a directory where nobody else may write."""
    with tempfile.TemporaryDirectory(prefix="paddock-ill-", dir="/var/tmp") as directory:
        path = os.path.join(os.path.realpath(directory), "broker")
        os.chmod(directory, 0o755)
        with open(path, "w", encoding="ascii") as f:
            f.write(PROGRAM)
        os.chmod(path, 0o755)
        yield path


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_provider_whose_workers_die_is_told_and_mends(program):
    ill = os.path.join(os.path.dirname(program), "ill")
    with open(ill, "w", encoding="ascii"):
        pass

    with Server({"providers": "jail,short", "backends": f"short={program}", "pool_max": 0}) as server:
        api = server.client()

        def provider(name):
            return next(p for p in api.get("/v1/providers").json()["providers"] if p["name"] == name)

        wait_for(lambda: not provider("short")["healthy"], 60, "its trouble is told")
        why = provider("short")["error"]
        assert "die as soon as they start" in why and "status 7" in why and program in why, why
        assert "provider.trouble" in server.log() and "status 7" in server.log()
        told = server.log().count("provider.trouble")

        answer = check_error(api.post("/v1/sandboxes", json={"provider": "short"}), says="status 7")
        assert answer, "whoever asks for one reads why there is none"
        assert provider("jail")["healthy"] and api.get("/readyz").status == 200
        made = api.post("/v1/sandboxes", json={}).json()
        assert made["provider"] == "jail" and api.delete(f"/v1/sandboxes/{made['id']}").status == 204
        assert server.log().count("provider.trouble") == told, "once, not for every death"

        # A daemon that starts later hears of it, too.
        server.kill()
        server.start()
        wait_for(lambda: not provider("short")["healthy"], 60, "the next daemon is told")

        os.unlink(ill)
        wait_for(lambda: provider("short")["healthy"], 90, "it is well when its workers live")
        assert "provider.well" in server.log()
        api.close()
