"""Provider toy: a backend of at most 300 lines in a program of its own, toy.py, that the setting `backends`
adds to a server. Its suite is tests/api: test_contract. Here: what the setting refuses, and what becomes of
boxes when brokers and keeper are killed."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import toy

from paddock_testing import broker, contract, host
from paddock_testing import run as paddock
from paddock_testing.run import wait_for
from paddock_testing.server import Server, check_error

# A line every 2 ms, each told once and in order.
COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.002; done"


@pytest.fixture(scope="module")
def server():
    if reason := contract.toy_why_not():
        pytest.skip(f"no toy here: {reason}")
    with Server({"providers": "jail,toy", "backends": f"toy={contract.toy()}", "requests_per_s": 0,
                 "creates_per_s": 0, "pool_max": 0}) as s:
        s.toys = set()
        yield s
        keeper_and_brokers(s)
    assert not groups(s), "cgroups are left behind"


@pytest.fixture
def api(server):
    client = server.client()
    yield client
    client.close()


def make(api):
    answer = api.post("/v1/sandboxes", json={"provider": "toy"})
    assert answer.status == 201, answer
    return f"/v1/sandboxes/{answer.json()['id']}"


def start(api, box, command):
    answer = api.post(f"{box}/processes", json={"command": command})
    assert answer.status == 201, answer
    return f"{box}/processes/{answer.json()['process_id']}"


def lines(api, process):
    return api.get(f"{process}/output").text.split()


def keeper_and_brokers(server):
    """Their pids. Notes the keeper's instance, which brokers have in their command lines."""
    pids = {pid: host.command_line(pid) for pid in host.pids()}
    brokers = {p: words for p, words in pids.items() if "broker" in words and f"{server.state_dir}/toy" in words}
    server.toys |= {words[words.index("--instance") + 1] for words in brokers.values()}
    keepers = [p for p, words in pids.items() if f"{server.run_dir}/keeper-toy.sock" in words]
    keeper, = [p for p in keepers if host.parent(p) not in keepers]  # one may be about to become a broker
    return keeper, list(brokers)


def groups(server):
    """The cgroups of the boxes of those keepers."""
    tree = toy.group_of(Path("INSTANCE/NAME")).parent
    return [g for name in server.toys for g in tree.glob(f"toy-{name}-*")]


# ---- the program ----


def test_it_has_at_most_300_lines():
    assert len(Path(toy.__file__).read_text().splitlines()) <= 300


@pytest.mark.parametrize("name", ["ERROR", "DONE", "BUILD", "BUILT", "SWEEP", "STRIKE", "ADOPT"])
def test_its_numbers_of_messages_are_those_of_the_wire(name):
    assert getattr(toy, name) == broker.TYPES[name]


@pytest.mark.parametrize("name", ["INTERNAL", "UNSUPPORTED", "ISOLATION"])
def test_its_codes_are_those_of_errors(name):
    assert broker.CODES[getattr(toy, name)] == name.lower()


# ---- the setting ----


def refused(pair, providers="jail"):
    s = Server({"providers": providers, "backends": pair})
    try:
        done = subprocess.run(s.argv(), env=s.env, capture_output=True, text=True,
                              timeout=paddock.seconds(60))
    finally:
        s.remove()
    assert done.returncode != 0, done
    return done.stderr


@pytest.mark.parametrize("pair, says", [
    ("toy", "is not NAME=PROGRAM"), ("Toy=/usr/bin/true", "is not NAME=PROGRAM"),
    ("-=/usr/bin/true", "is not NAME=PROGRAM"), (f"{'x' * 32}=/usr/bin/true", "is not NAME=PROGRAM"),
    ("jail=/usr/bin/true", "'jail' has a meaning already"),
    ("auto=/usr/bin/true", "'auto' has a meaning already"),
    ("a=/usr/bin/true,a=/usr/bin/true", "'a' has a meaning already"),
    ("toy=true", "use an absolute path"), ("toy=/nowhere/toy", "No such file"),
    ("toy=/usr", "is no program"), ("toy=/etc/passwd", "is no program")])
def test_what_is_no_program_is_refused(pair, says):
    assert says in refused(pair)


@pytest.fixture
def copy(tmp_path_factory):
    """Of the program: in a directory that only we may change, below one that others may write to."""
    directory = tmp_path_factory.mktemp("toy")
    program = directory / "toy.py"
    shutil.copy(contract.toy(), program)
    return Path(os.path.realpath(program))


def check_copy(program):
    """The complaint about it, or ""."""
    done = subprocess.run([paddock.PADDOCK, "keeper", "--kind", "toy", "--program", program, "--socket",
                           "/nowhere/socket"], capture_output=True, text=True, timeout=paddock.seconds(60))
    assert done.returncode != 0, done
    return done.stderr if "--program" in done.stderr else ""


def test_a_program_that_others_can_change_is_refused(copy):
    assert not check_copy(copy), "the control: this one is taken, only the socket cannot be made"
    assert "can be changed by others" not in refused(f"toy={copy}", providers="nowhere")
    for path, mode in ((copy, 0o775), (copy, 0o757), (copy.parent, 0o777), (copy.parent, 0o770)):
        before = path.stat().st_mode
        path.chmod(mode)
        assert f"{path} must belong to root" in check_copy(copy), (path, oct(mode))
        assert "can be changed by others" in refused(f"toy={copy}")
        path.chmod(before)
    copy.parent.chmod(0o1777)  # as /tmp is: others cannot replace what is ours
    assert not check_copy(copy)
    if os.geteuid() == 0:
        os.chown(copy, 1000, 1000)
        assert "can be changed by others" in check_copy(copy)


def test_a_link_is_refused(copy):
    link = copy.parent / "link"
    link.symlink_to(copy)
    assert f"use the path without links, {copy}" in check_copy(link)


# ---- what it says ----


def test_it_says_that_nothing_is_isolated(server, api):
    told = {p["name"]: p for p in api.get("/v1/providers").json()["providers"]}
    assert told["toy"]["isolation"] == "none" and told["toy"]["healthy"] and not told["toy"]["default"]
    assert "server.provider name=toy isolation=none" in server.log()
    for wanted, code in (({"profile": "dev"}, "unsupported"), ({"image": "debian:12"}, "unsupported")):
        check_error(api.post("/v1/sandboxes", json={"provider": "toy", **wanted}), None, code, says="toy")


def test_a_program_cannot_claim_isolation(server, copy):
    honest = 'struct.pack("=IIIi", RUNG_NONE,'
    assert honest in copy.read_text()
    copy.write_text(copy.read_text().replace(honest, 'struct.pack("=IIIi", 2,'))  # full
    with Server({"providers": "jail,toy", "backends": f"toy={copy}", "pool_max": 0}) as boaster:
        made = boaster.client().post("/v1/sandboxes", json={"provider": "toy"})
        assert made.status == 201 and made.json()["isolation"] == "none", made


def test_nobody_falls_back_to_it(server, api):
    admin = server.client(server.run("key", "create", "--label", "boss", "--admin").stdout.strip())
    rules = {"default": "jail", "fallback": ["toy"], "disabled": ["jail"]}
    assert admin.put("/v1/router", json=rules).status == 200
    nobody = api.post("/v1/sandboxes")
    asked = api.post("/v1/sandboxes", json={"provider": "toy"})  # the control: it could have been
    assert admin.put("/v1/router", json={}).status == 200
    admin.close()
    assert nobody.status >= 400 and asked.status == 201, (nobody, asked)
    assert api.delete(f"/v1/sandboxes/{asked.json()['id']}").status == 204


# ---- kill -9 ----


def test_killed_brokers_are_replaced_and_a_command_goes_on(server, api):
    box = make(api)
    counter = start(api, box, COUNTER)
    wait_for(lambda: len(lines(api, counter)) >= 20, 60, "it counts")
    _, brokers = keeper_and_brokers(server)
    assert brokers
    for pid in brokers:
        os.kill(pid, signal.SIGKILL)
    seen = len(lines(api, counter))
    wait_for(lambda: len(lines(api, counter)) >= seen + 20, 60, "it goes on")

    other = make(api)  # by a new broker, as is the end of the first box
    assert api.delete(counter).status == 204
    wait_for(lambda: not api.get(counter).json()["running"], 60, "a new broker ends it")
    counted = lines(api, counter)
    assert counted == [str(n) for n in range(1, len(counted) + 1)]
    for one in (box, other):
        assert api.delete(one).status == 204
    wait_for(lambda: not groups(server), 60, "nothing of them is left")


def test_a_killed_server_goes_on_with_it(server, api):
    """And ends whole trees of commands as before: the keeper has the cgroup for it."""
    box = make(api)
    counter = start(api, box, f"setsid sleep 3601.{os.getpid()} & {COUNTER}")
    wait_for(lambda: len(lines(api, counter)) >= 20, 60, "it counts")
    server.kill()
    server.start()
    seen = len(lines(api, counter))
    wait_for(lambda: len(lines(api, counter)) >= seen + 20, 60, "it goes on")
    assert api.delete(counter).status == 204
    words = f"3601.{os.getpid()}"
    wait_for(lambda: not [p for p in host.pids() if words in host.command_line(p)], 60, "the tree ends")
    counted = lines(api, counter)
    assert counted == [str(n) for n in range(1, len(counted) + 1)]
    assert api.delete(box).status == 204


@pytest.mark.parametrize("with_brokers", [False, True], ids=["keeper", "keeper-and-brokers"])
def test_a_killed_keeper_takes_its_boxes_along(server, api, with_brokers):
    """Its brokers end them; if they were killed, too, those of the next keeper do."""
    box = make(api)
    start(api, box, f"sleep 3600.{os.getpid()}")
    keeper, brokers = keeper_and_brokers(server)
    assert groups(server)
    os.kill(keeper, signal.SIGSTOP)  # else it would start others
    for pid in brokers if with_brokers else []:
        os.kill(pid, signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)

    wait_for(lambda: api.get(box).json()["state"] == "gone", 60, "the loss is told")
    assert api.get(box).json()["end_cause"] == "lost"
    wait_for(lambda: not groups(server), 60, "its processes and its cgroup are gone")
    words = f"3600.{os.getpid()}"
    assert not [p for p in host.pids() if words in host.command_line(p)]

    def healthy():
        return {p["name"]: p["healthy"] for p in api.get("/v1/providers").json()["providers"]}["toy"]

    wait_for(healthy, 60, "another keeper is started")
    assert api.delete(make(api)).status == 204


if paddock.NIGHTLY:  # half a minute
    def test_a_broker_that_hangs_on_a_kill_does_not_hold_up_the_end(copy):
        hangs = copy.parent / "hangs"
        kill = "    if command:  #"
        assert copy.read_text().count(kill) == 1
        copy.write_text(copy.read_text().replace(
            kill, f'    if command and not Path("{hangs}").touch():\n        time.sleep(3600)\n{kill}'))
        with Server({"providers": "jail,toy", "backends": f"toy={copy}", "pool_max": 0}) as slow:
            slow.toys = set()
            box = make(slow.client())
            counter = start(slow.client(), box, COUNTER)
            keeper, _ = keeper_and_brokers(slow)
            slow.client().delete(counter)
            wait_for(hangs.exists, 60, "a broker hangs")
            began = time.monotonic()
            slow.stop(signal.SIGINT, 120)
            wait_for(lambda: not host.command_line(keeper), 120, "the keeper ends")
            assert not groups(slow) and time.monotonic() - began < paddock.seconds(60)


def test_who_asks_for_isolation_is_refused(api):
    """Nobody can know what such a program isolates: it counts as none, whatever rung it tells."""
    check_error(api.post("/v1/sandboxes", json={"provider": "toy", "mode": "sandbox"}), 409, field="mode",
                says="has no isolation")
    made = api.post("/v1/sandboxes", json={"mode": "sandbox"}).json()
    box = f"/v1/sandboxes/{made['id']}"
    assert made["provider"] == "jail", made
    check_error(api.post(f"{box}/move", json={"provider": "toy"}), 409, code="isolation")
    assert api.get(box).json()["provider"] == "jail"
    assert api.delete(box).status == 204

    box = make(api)  # the control: it can be had by who asks for none
    assert api.get(box).json()["isolation"] == "none"
    assert api.delete(box).status == 204
