"""Servers side by side: a uid, a run directory and a keeper for each; and what is said at the end."""

import contextlib
import os
import pty
import pwd
import re
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.server import Server, free_port

FIRST, LAST = 61184, 65519
QUICK = {"pool_min": 0, "pool_max": 0, "drain_timeout_s": 1}


def has_user(name):
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(name))
    return False


needs_root = pytest.mark.skipif(os.geteuid() != 0 or has_user("paddock"),
                                reason="only root gets a uid for its server, without a user paddock")


def uid_of(server):
    return host.uids(server.daemon())[0]


def owners(server):
    top = os.path.join(server.state_dir, "server")
    paths = [top] + [os.path.join(d, n) for d, dirs, files in os.walk(top) for n in dirs + files]
    found = set()
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # the database's own come and go
            found.add(os.lstat(path).st_uid)
    return found


def create(server):
    answer = server.client().post("/v1/sandboxes", json={})
    assert answer.status == 201, answer
    return answer.json()["id"]


def works(server, sandbox):
    answer = server.client().post(f"/v1/sandboxes/{sandbox}/exec", json={"command": "echo on"})
    return answer.status == 200 and answer.json()["stdout"] == "on\n"


@needs_root
def test_two_servers_have_two_uids():
    with Server(QUICK) as one, Server(QUICK) as two:
        uids = {uid_of(one), uid_of(two)}
        assert len(uids) == 2 and all(FIRST <= u <= LAST for u in uids), uids
        for server in (one, two):
            assert owners(server) == {uid_of(server)}
            assert set(host.uids(server.daemon())) == {uid_of(server)}
            assert " warn " not in server.log(), server.log()
            for uid in uids:
                with pytest.raises(KeyError):
                    pwd.getpwuid(uid)


@needs_root
def test_the_uid_stays():
    """After a stop, and after a kill -9, with the sandboxes."""
    with Server(QUICK) as server:
        uid, sandbox = uid_of(server), create(server)
        server.stop()
        server.start()
        assert uid_of(server) == uid and works(server, sandbox)
        os.kill(server.process.pid, signal.SIGKILL)
        server.wait()
        server.start()
        assert uid_of(server) == uid and works(server, sandbox)
        assert owners(server) == {uid}


@needs_root
def test_a_uid_that_a_process_has_is_left_alone():
    with Server(QUICK) as server:
        first = uid_of(server)
        server.stop(signal.SIGINT)
        # Somebody else's state directory, of the same path, and a stranger with its uid.
        subprocess.run(["rm", "-rf", server.state_dir], check=True)
        Path(f"/run/paddock/uids/{first}").unlink()
        with subprocess.Popen(["sleep", "60"], user=first, group=first, extra_groups=[]) as other:
            server.start()
            assert uid_of(server) != first and FIRST <= uid_of(server) <= LAST
            other.kill()


@needs_root
def test_a_state_directory_that_was_nobodys():
    """An earlier version became nobody: its files are taken over, and a keeper that runs is not
    lost."""
    nobody = pwd.getpwnam("nobody").pw_uid
    with Server({**QUICK, "user": "nobody"}) as server:
        key, sandbox = server.make_key("acme"), create(server)
        assert uid_of(server) == nobody and owners(server) == {nobody}
        del server.settings["user"]
        server.stop()
        server.start()
        assert works(server, sandbox) and uid_of(server) == nobody
        server.stop(signal.SIGINT)
        server.start()
        uid = uid_of(server)
        assert FIRST <= uid <= LAST and owners(server) == {uid}
        assert server.client(key).get("/v1/sandboxes").status == 200
        assert works(server, create(server))


def start(directory, *words):
    env = {k: v for k, v in paddock.clean_environment().items()
           if not k.startswith("PADDOCK_")}
    return subprocess.Popen(
        [paddock.PADDOCK, "serve", "--state-dir", directory, "--pool-max", "0", *words], env=env,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True)


def await_line(process, wanted):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if wanted in line:
            return line
    raise AssertionError("".join(lines) + process.stderr.read())


def test_a_state_directory_is_all_that_a_second_server_needs():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top:
        os.chmod(top, 0o755)
        servers = []
        try:
            for name in ("one", "two"):
                process = start(os.path.join(top, name), "--listen", f"127.0.0.1:{free_port()}")
                servers.append(process)
                await_line(process, "Listening on unix:")
            for name in ("one", "two"):
                assert os.path.exists(os.path.join(top, name, "run", "keeper.sock"))
                assert os.path.exists(os.path.join(top, name, "run", "paddock.sock"))
        finally:
            for process in servers:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=paddock.seconds(30))
        assert [p.returncode for p in servers] == [0, 0]


def test_a_port_that_the_kernel_chooses_is_told():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top:
        os.chmod(top, 0o755)
        process = start(os.path.join(top, "one"), "--listen", "127.0.0.1:0", "--listen", "[::1]:0")
        try:
            for host in ("127.0.0.1", "::1"):
                line = await_line(process, "Listening on http:")
                with socket.create_connection((host, int(line.rpartition(":")[2])), timeout=paddock.seconds(10)):
                    pass
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=paddock.seconds(30))


def test_a_port_that_is_taken():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top, socket.socket() as other:
        os.chmod(top, 0o755)
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        process = start(top, "--listen", address)
        _, err = process.communicate(timeout=paddock.seconds(30))
        assert process.returncode != 0
        assert address in err and "--listen" in err and "in use" in err, err


@pytest.mark.parametrize("number, says", [
    (signal.SIGINT, r"Ending 2 sandboxes and the keeper.*kill (\d+)"),
    (signal.SIGTERM, r"2 sandboxes and the keeper go on.*paddock serve")])
def test_the_end_says_what_ends(number, says):
    with Server(QUICK) as server:
        create(server), create(server)
        pid = server.process.pid
        server.stop(number)
        found = re.search(says, server.log())
        assert found, server.log()
        assert number != signal.SIGINT or int(found.group(1)) == pid


def test_a_client_says_what_goes_on():
    """Ctrl-C is for the command; the sandbox stays. Only a terminal is told. No shell runs here:
    dash loses a signal that comes while it starts a program."""
    with Server(QUICK) as server:
        sandbox = create(server)
        with contextlib.closing(server.client()) as api:
            assert api.put(f"/v1/sandboxes/{sandbox}/files?path=up", data=b"up\n").status < 300
        for is_terminal in (True, False):
            near, far = pty.openpty() if is_terminal else os.pipe()
            env = {**server.env, "PADDOCK_URL": server.url}
            with subprocess.Popen(
                    [paddock.PADDOCK, "exec", sandbox, "--", "tail", "-f", "up"],
                    env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=far) as client:
                os.close(far)
                assert client.stdout.readline() == b"up\n"
                client.send_signal(signal.SIGINT)
                assert client.wait(paddock.seconds(20)) == 130
            said = b""
            with contextlib.suppress(OSError):
                said = os.read(near, 4096)
            os.close(near)
            assert (f"sandbox {sandbox} goes on".encode() in said) == is_terminal, said
            assert works(server, sandbox)
