"""Sandboxes in containers of an engine on another machine: a real dockerd by TCP with TLS that sees no directory of
the server's. What is told of them, what their commands, files, terminals and ports do, and what is left of them."""

import os
import shutil
import subprocess
import threading

import pytest

from paddock_testing import engine
from paddock_testing import host as machine
from paddock_testing import run as paddock
from paddock_testing.server import Client, Server, check_error
from test_docker import Box


@pytest.fixture(scope="module")
def server(far, far_images):
    with Server({"providers": "jail,docker", "image_pull": "never", **far.settings()}) as s:
        yield s
    paddock.wait_for(lambda: not far.containers(), 30, "no container is left behind")


@pytest.fixture(scope="module")
def api(server):
    return Client(server.host, server.port, server.key)


@pytest.fixture(scope="module")
def bash(api, far_images):
    box = Box(api, far_images["bash"])
    yield box
    box.close()


def processes_of(server):
    """The processes on this machine that stand for boxes, by what they are."""
    found = {}
    for keeper in server.keepers():
        for pid in machine.descendants(keeper):
            with open(f"/proc/{pid}/comm", encoding="ascii") as name:
                found.setdefault(name.read().strip(), []).append(pid)
    return found


def test_the_engine_sees_nothing_of_the_server(far, server):
    """What the rest of this file is worth: the control is the server's own view."""
    assert os.path.isdir(server.state_dir)
    seen = subprocess.run(["nsenter", "-t", str(far.process.pid), "-m", "ls", server.state_dir], capture_output=True,
                          check=False)
    assert seen.returncode != 0, seen.stdout


def test_a_sandbox_says_what_it_is_and_cannot(api, bash):
    info = bash.told()
    assert (info["provider"], info["isolation"], info["image"]) == ("docker", "basic", "test/bash:1")
    docker = next(p for p in api.get("/v1/providers").json()["providers"] if p["name"] == "docker")
    assert "pause" not in docker["capabilities"] and "usage" not in docker["capabilities"], docker
    assert "terminal" in docker["capabilities"] and "files" in docker["capabilities"], docker
    check_error(api.post(bash.base + "/pause"), 501, "unsupported")


@pytest.mark.parametrize("image", ["bash", "sh", "user"])
def test_lines_with_directory_and_variables(api, far_images, image):
    box = Box(api, far_images[image])
    told = box.exec("echo out $FROM_IMAGE; echo err >&2; exit 3")
    assert (told["stdout"], told["stderr"], told["exit_code"]) == ("out yes\n", "err\n", 3)
    assert box.exec("mkdir -p /tmp/d; cd /tmp/d; export A='b c'")["state"] == "updated"
    assert box.exec('pwd; echo "$A"')["stdout"] == "/tmp/d\nb c\n"
    box.close()


def test_an_image_without_a_shell(api, far_images):
    box = Box(api, far_images["none"])
    assert box.exec(argv=["/busybox", "echo", "x"])["stdout"] == "x\n"
    box.close()


if paddock.NIGHTLY:  # the image takes ten seconds to make; sandboxes of other machines by day: test_e2b.py
    def test_contexts_are_copied_and_outlive_what_they_were_made_from(api, far):
        box = Box(api, engine.make_debian(far))
        contexts = f"{box.base}/contexts"

        def text(code, context="python", **more):
            done = api.request("POST", f"{contexts}/{context}/execute", json={"code": code, **more}).json()
            assert done["error"] is None and done["state"] == "kept", done
            return done["results"][0]["text"] if done["results"] else None

        assert text("import os; x = [1]; x") == "[1]"
        copy = api.request("POST", f"{contexts}/python/fork", json={}).json()["id"]
        assert text("x.append(2)") is None and text("x", copy) == "[1]"
        text("x.append(3)", keep_before=True)
        assert api.request("POST", f"{contexts}/python/undo").status == 200 and text("x") == "[1, 2]"
        assert api.request("DELETE", f"{contexts}/python").status == 204
        assert text("x", copy) == "[1]"
        box.close()


def test_commands_have_no_power(bash):
    told = bash.exec("id -u; grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status")["stdout"].split("\n")
    assert told[0] == "1000"
    assert all(line.endswith("\t0000000000000000") for line in told[1:6]), told
    assert "NoNewPrivs:\t1" in told and "Seccomp:\t2" in told


def test_root_in_dev(api, far_images):
    box = Box(api, far_images["bash"], profile="dev")
    assert box.exec("id -u; sudo id -u")["stdout"] == "1000\n0\n"
    assert box.exec("id -u", user="root")["stdout"] == "0\n"
    box.close()


@pytest.mark.parametrize("size", [10, 300_000])
def test_input_and_output_are_exact(bash, size):
    """Little of it is in a pipe from the start, much in a file in memory."""
    data = "".join(chr(97 + i % 26) for i in range(size))
    told = bash.exec("cat; echo; echo done >&2", stdin=data)
    assert told["stdout"] == data + "\n" and told["stderr"] == "done\n"


def test_files_come_back_as_they_went_in(api, bash):
    data = os.urandom(3 << 20)
    path = f"{bash.base}/files?path=/workspace/b.bin"
    assert api.request("PUT", path, data=data).status in (200, 201)
    assert api.request("GET", path).body == data
    assert bash.exec("wc -c <b.bin")["stdout"].strip() == str(len(data))
    listed = api.request("GET", f"{bash.base}/files/list?path=/workspace").json()["entries"]
    assert "b.bin" in [e["name"] for e in listed]
    check_error(api.request("PUT", f"{bash.base}/files?path=/workspace/none/b.bin", data=data), 404, "not_found")


def test_a_time_out_ends_the_whole_tree(bash):
    told = bash.exec("sleep 1000 & (setsid sleep 1001 &) ; sleep 1002", timeout_s=1)
    assert told["timed_out"], told
    assert "sleep" not in bash.exec("for p in /proc/[0-9]*; do read n <$p/comm; echo $n; done")["stdout"]


def test_a_terminal_has_its_size_from_the_start_and_later(api, bash):
    made = api.post(bash.base + "/processes", json={
        "argv": ["/bin/sh", "-c", "stty size; test -t 0 && echo tty; read line; stty size; echo got $line"],
        "pty": True, "rows": 30, "cols": 100})
    assert made.status == 201, made
    url = f"{bash.base}/processes/{made.json()['pid']}"

    def said():
        return api.request("GET", url + "/output").body.decode()

    paddock.wait_for(lambda: "tty" in said(), 30, "it begins")
    assert said().startswith("30 100\r\n"), said()
    assert api.post(url + "/resize", json={"rows": 40, "cols": 120}).status == 204
    assert api.post(url + "/stdin", data=b"word\n").status in (200, 204)
    paddock.wait_for(lambda: "got word" in said(), 30, "it ends")
    assert "40 120\r\n" in said(), said()


def test_many_commands_at_once(bash):
    told = {}

    def run(n):
        told[n] = bash.exec(f"seq 1 {n * 1000}; echo {n} >&2; exit {n}")

    threads = [threading.Thread(target=run, args=(n,)) for n in range(1, 17)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for n in range(1, 17):
        assert told[n]["stdout"] == "".join(f"{i}\n" for i in range(1, n * 1000 + 1)) and told[n]["exit_code"] == n


def test_a_deleted_sandbox_leaves_nothing(api, far, server, far_images):
    before = len(far.containers())
    box = Box(api, far_images["bash"])
    assert len(far.containers()) == before + 1
    box.close()
    paddock.wait_for(lambda: len(far.containers()) == before, 30, "its container is gone")
    paddock.wait_for(lambda: len(processes_of(server).get("paddock-standin", ())) == before, 30, "so is its stand-in")


def test_a_container_that_is_killed_is_told(api, far, far_images):
    box = Box(api, far_images["bash"])
    mine = next(c for c in far.containers() if c["Labels"]["paddock.root"].endswith(box.info["id"]))
    far.good("POST", f"/containers/{mine['Id']}/kill?signal=SIGKILL")
    paddock.wait_for(lambda: box.told()["end_cause"], 60, "it is lost")
    assert box.told()["end_cause"] == "lost" and box.told()["end_reason"], box.told()


def test_who_parses_has_no_credentials(server, bash):
    """The stand-in, which reads what a box says, is nobody; the carrier, which has the key, is root as the broker is."""
    assert bash.exec("true")["exit_code"] == 0
    found = processes_of(server)
    assert found["paddock-standin"] and len(found["paddock-guard"]) == len(found["paddock-standin"])
    for pid in found["paddock-standin"] + found["paddock-guard"]:
        uids = next(line for line in open(f"/proc/{pid}/status", encoding="ascii") if line.startswith("Uid:"))
        assert set(uids.split()[1:]) == {"65534"}, uids
    assert found["paddock-carrier"]


def check(*words):
    """What `paddock-remote check` says of an engine."""
    program = os.path.join(os.path.dirname(paddock.PADDOCK), "paddock-remote")
    done = subprocess.run([program, "check", "docker", *words], capture_output=True, text=True, check=False,
                          timeout=paddock.seconds(30), env=paddock.clean_environment({}))
    return done.returncode, done.stdout


@pytest.mark.parametrize("certificate", ["its own", "another authority's", "none", "a foreign engine"])
def test_neither_side_talks_to_one_that_its_authority_does_not_know(far, tmp_path, certificate):
    certs = tmp_path / "certs"
    shutil.copytree(far.certs, certs)
    if certificate == "none":
        (certs / "cert.pem").unlink()
    elif certificate == "a foreign engine":  # that is: we trust somebody else
        engine.make_ca(certs / "ca.pem", tmp_path / "key")
    elif certificate == "another authority's":
        engine.make_ca(tmp_path / "ca.pem", tmp_path / "key")
        engine.sign(tmp_path / "ca.pem", tmp_path / "key", certs, "client", "extendedKeyUsage=clientAuth")
    status, text = check("--host", far.tcp, "--certs", str(certs))
    if certificate == "its own":
        assert status == 0 and "version " in text and far.tcp in text, text
    else:
        assert status == 1 and text.startswith("error "), text


@pytest.mark.parametrize("host, says", [
    ("tcp://192.0.2.1:2376", "docker_cert_path"), ("ssh://somebody@192.0.2.1", "use unix://PATH or tcp://HOST:PORT"),
    ("tcp://u:p@192.0.2.1/x", "use unix://PATH or tcp://HOST:PORT")])
def test_an_address_that_will_not_do(host, says):
    status, text = check("--host", host)
    assert status == 1 and says in text and host in text, text
