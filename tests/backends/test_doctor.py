"""`paddock doctor` on the engines of this machine: a real one, none, and one that answers nonsense."""

import json
import socket
import subprocess
import threading

import pytest

from paddock_testing import run as paddock


def checks(**env):
    done = subprocess.run([paddock.PADDOCK, "doctor", "--json"], capture_output=True, text=True,
                          check=False, timeout=paddock.seconds(60),
                          env=paddock.clean_environment(env))
    assert done.stdout, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)["checks"]}


@pytest.mark.parametrize("kind, variable", [("docker", "DOCKER_HOST"), ("podman", "CONTAINER_HOST")])
def test_an_engine_is_described(request, kind, variable):
    engine = request.getfixturevalue("dockerd" if kind == "docker" else "podman")
    rows = checks(**{variable: engine.host})
    found = rows[kind]["found"]
    assert rows[kind]["status"] == "ok" and engine.host[:20] in found, rows[kind]
    assert "cgroups v" in found and found[0].isdigit()
    # What the engine's own answer says that it lacks is there, and nothing else.
    status, body = engine.call("GET", "/info")
    info = json.loads(body)
    security = " ".join(info.get("SecurityOptions") or [])
    has = {"seccomp": "seccomp" in security, "memory": info["MemoryLimit"], "pids": info["PidsLimit"],
           "userns": "userns" in security or "rootless" in security, "cpu": info["CpuCfsQuota"]}
    lacks = {name.removeprefix(f"{kind}-") for name in rows if name.startswith(f"{kind}-")}
    assert status == 200 and lacks == {name for name, there in has.items() if not there}, (lacks, has)
    for name in lacks:
        assert rows[f"{kind}-{name}"]["found"] == "off" and rows[f"{kind}-{name}"]["why"]


def test_no_engine_is_nothing_bad(tmp_path):
    row = checks(DOCKER_HOST=f"unix://{tmp_path}/none.sock")["docker"]
    assert row["status"] == "info" and f"{tmp_path}/none.sock" in row["found"] and not row["fix"]


def test_an_engine_that_answers_nonsense_is_told(tmp_path):
    path = str(tmp_path / "mad.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer():
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(65536)
                    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnope")

        threading.Thread(target=answer, daemon=True).start()
        row = checks(DOCKER_HOST=f"unix://{path}")["docker"]
        listener.shutdown(socket.SHUT_RDWR)
    assert row["status"] == "info" and row["found"], row
