"""Where the credentials of engines of docker are: the key of a client's certificate, and passwords of registries. Both are
looked for in logs, audit, database and all other files of a server, in answers and the configuration that it prints, on
command lines and in environments, and in the memory of who reads what clients, boxes and engines say. That they would be
found is shown by those who need them.

Rented sandboxes, pods and tasks have the same in their own files: test_e2b.py, test_kubernetes.py, test_fargate.py."""

import array
import base64
import json
import os
import re
import secrets
import subprocess
from pathlib import Path

from paddock_testing import host
from paddock_testing.server import Server
from test_docker import Box

PAGE = os.sysconf("SC_PAGESIZE")
# No jails in advance: the files of their disks are large and empty.
NONE_WAIT = {"pool_min": 0, "pool_max": 0, "image_pull": "never"}
MAY = ("paddock-remote", "paddock-carrier", "paddock-broker")


def runs_of(pagemap, first, last):
    """The pieces of a range that have pages: stacks of threads are large and nearly empty."""
    pagemap.seek(first // PAGE * 8)
    entries = array.array("Q", pagemap.read((last - first) // PAGE * 8))
    begin = None
    for n, entry in enumerate([*entries, 0]):
        is_there = entry >> 62
        if is_there and begin is None:
            begin = n
        elif not is_there and begin is not None:
            yield first + begin * PAGE, first + n * PAGE
            begin = None


def memory_has(pid, words):
    """Is one of the words in what a process can write to?"""
    with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory, \
            open(f"/proc/{pid}/pagemap", "rb", 0) as pagemap:
        for line in maps:
            spot = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if not spot or "[v" in line:
                continue
            for first, last in runs_of(pagemap, int(spot[1], 16), int(spot[2], 16)):
                try:
                    memory.seek(first)
                    data = memory.read(last - first)
                except OSError:
                    continue
                if any(word in data for word in words):
                    return True
    return False


def processes_of(server):
    """All of the server's, and its own name of each."""
    found = {}
    for pid in host.pids():
        if any(server.directory in word for word in host.command_line(pid)):
            words, comm = host.command_line(pid), host.read_proc(pid, "comm").strip()
            found[pid] = "paddock-broker" if "broker" in words else comm
    return found


def texts_of(server, api):
    """Everything that a server has written or says."""
    texts = {"log": server.log().encode(), "config": server.run("config").stdout.encode(),
             "config show": server.run("config", "show", check=False).stdout.encode()}
    for path in ("/v1/providers", "/v1/router", "/v1/overview", "/v1/audit", "/v1/sandboxes", "/metrics"):
        texts[path] = api.get(path).body
    for top, _, names in os.walk(server.directory):
        for name in names:
            path = Path(top, name)
            if path.is_file():
                texts[str(path)] = path.read_bytes()
    for pid in processes_of(server):
        texts[f"command line of {pid}"] = host.read_proc(pid, "cmdline").encode()
        texts[f"environment of {pid}"] = host.read_proc(pid, "environ").encode()
    return texts


def check_nowhere(server, api, words, names):
    """In no text, and in the memory of none but those who may: among the others these names are."""
    found = [where for where, text in texts_of(server, api).items() if any(w in text for w in words)]
    assert not found, found
    others = {pid: comm for pid, comm in processes_of(server).items() if comm not in MAY}
    assert names <= set(others.values()), others
    assert len(others) >= 3 and not [comm for pid, comm in others.items() if memory_has(pid, words)], others


def held(server, words):
    return [comm for pid, comm in processes_of(server).items() if comm in MAY and memory_has(pid, words)]


def words_of_key(path):
    """A private key as its file has it, and as the number that OpenSSL makes of it."""
    told = subprocess.run(["openssl", "pkey", "-in", path, "-text", "-noout"], capture_output=True, text=True, check=True).stdout
    number = bytes.fromhex(re.sub(r"[\s:]", "", re.search(r"priv:(.*?)pub:", told, re.S)[1])).lstrip(b"\0")
    return [Path(path).read_bytes().splitlines()[1], number, number[::-1]]


def test_the_key_of_an_engine_far_away_is_with_brokers_and_carriers(far, far_images):
    words = words_of_key(far.certs / "key.pem")
    assert all(len(w) > 28 for w in words)
    with Server({"providers": "jail,docker", **NONE_WAIT, **far.settings()}) as server:
        api = server.client()
        box = Box(api, far_images["sh"])
        assert box.exec("echo here")["stdout"] == "here\n"
        refused = api.post("/v1/sandboxes", json={"provider": "docker", "image": "test/none-such:1"})
        assert refused.status >= 400 and not any(w in refused.body for w in words), refused
        check_nowhere(server, api, words, {"paddock-far", "paddock-standin"})
        assert held(server, words), "the control: who needs it has it"
        box.close()


def test_the_password_of_a_registry_is_with_brokers(dockerd, images, registry, tmp_path):
    """Also when it is refused: by a registry that knows another one."""
    name, _ = registry.push(dockerd, images["sh"], f"test/secret-{secrets.token_hex(4)}:1")
    wrong = "wrong " + secrets.token_hex(12)
    for password, status in ((registry.password, 201), (wrong, None)):
        word = base64.b64encode(f"{registry.user}:{password}".encode())
        file = tmp_path / f"auth-{status}"
        file.write_text(json.dumps({"auths": {registry.address: {"auth": word.decode()}}}))
        words = [password.encode(), word]
        with Server({"providers": "jail,docker", **NONE_WAIT, "docker_host": dockerd.host, "image_pull": "always",
                     "registry_auth": str(file)}) as server:
            api = server.client()
            answer = api.post("/v1/sandboxes", json={"provider": "docker", "image": name})
            assert answer.status == status or status is None and answer.status >= 400, answer
            assert not any(w in answer.body for w in words), answer
            check_nowhere(server, api, words, {"paddock-keeper"})
            if status:
                assert api.delete(f"/v1/sandboxes/{answer.json()['id']}").status == 204
            dockerd.call("DELETE", f"/images/{name}?force=1")
