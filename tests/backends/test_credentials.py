"""Where the credentials of engines of docker are: the key of a client's certificate, and passwords of registries. Both are
looked for in logs, audit, database and all other files of a server, in answers and the configuration that it prints, on
command lines and in environments, and in the memory of who reads what clients, boxes and engines say. That they would be
found is shown by those who need them.

Rented sandboxes, pods, tasks and executions have the same in their own files (test_e2b.py, test_daytona.py, test_kubernetes.py,
test_fargate.py, test_cloudrun.py), by the same searcher: paddock_testing/credentials.py."""

import base64
import json
import re
import secrets
import signal
import subprocess
from pathlib import Path

from paddock_testing import run as paddock
from paddock_testing.credentials import check_nowhere, held
from paddock_testing.server import Server
from elsewhere import Later
from test_docker import Box

# No jails in advance: the files of their disks are large and empty.
NONE_WAIT = {"pool_min": 0, "pool_max": 0, "image_pull": "never"}


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


def words_of_password(user, password):
    """As it is, as `docker login` keeps it, and within anything that base64 was made of, such as the header of a pull."""
    word = base64.b64encode(f"{user}:{password}".encode())
    inside = [base64.urlsafe_b64encode(b"-" * lead + password.encode())[4 if lead else 0:len(password) // 3 * 4] for lead in range(3)]
    assert all(len(w) >= 8 for w in inside)
    return [password.encode(), word, *inside]


def test_the_password_of_a_registry_is_with_brokers(dockerd, images, registry, tmp_path):
    """Also when it is refused: by a registry that knows another one."""
    name, _ = registry.push(dockerd, images["sh"], f"test/secret-{secrets.token_hex(4)}:1")
    wrong = "wrong " + secrets.token_hex(12)
    for password, status in ((registry.password, 201), (wrong, None)):
        words = words_of_password(registry.user, password)
        file = tmp_path / f"auth-{status}"
        file.write_text(json.dumps({"auths": {registry.address: {"auth": words[1].decode()}}}))
        with Server({"providers": "jail,docker", **NONE_WAIT, "docker_host": dockerd.host, "image_pull": "always",
                     "registry_auth": str(file)}) as server:
            api = server.client()
            registry.process.send_signal(signal.SIGSTOP)
            try:  # as long as it does not answer the broker waits, with the password in its hand
                asked = Later(api.post, "/v1/sandboxes", json={"provider": "docker", "image": name})
                paddock.wait_for(lambda: held(server, words), 30, "the control: who needs it has it")
                check_nowhere(server, server.client(), words, {"paddock-keeper"})
            finally:
                registry.process.send_signal(signal.SIGCONT)
            answer = asked.end().value
            assert answer.status == status or status is None and answer.status >= 400, answer
            assert not any(w in answer.body for w in words), answer
            check_nowhere(server, api, words, {"paddock-keeper"})
            if status:
                assert api.delete(f"/v1/sandboxes/{answer.json()['id']}").status == 204
            dockerd.call("DELETE", f"/images/{name}?force=1")
