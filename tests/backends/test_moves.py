"""Moves between providers at a real server: what goes along, what stands in the way, and that a server
which is killed at any moment of a move leaves the sandbox whole in exactly one place. The steps of a move
are in tests/unit/test_session_move.c."""

import contextlib
import http.client
import os
import random
import threading
import time
from pathlib import Path

import pytest

from paddock_testing import engine as engines
from paddock_testing import host
from paddock_testing.run import NIGHTLY, seconds, wait_for
from paddock_testing.server import Server, check_error

# Without a pool: its jails have roots, too.
SETTINGS = {"providers": "jail,local", "local_allowed": "on", "requests_per_s": 0, "creates_per_s": 0, "pool_min": 0,
            "pool_max": 0}


@pytest.fixture(scope="module")
def server():
    with Server(SETTINGS) as s:
        yield s


class Box:
    def __init__(self, server, **body):
        self.server = server
        self.api = server.client()
        answer = self.api.post("/v1/sandboxes", json={"provider": "jail", **body})
        assert answer.status == 201, answer
        self.id = answer.json()["id"]
        self.base = f"/v1/sandboxes/{self.id}"

    def info(self):
        return self.api.get(self.base).json()

    def out(self, command, **body):
        answer = self.api.post(f"{self.base}/exec", json={"command": command, **body})
        assert answer.status == 200 and answer.json()["exit_code"] == 0, answer
        return answer.json()["stdout"].strip()

    def start(self, command):
        answer = self.api.post(f"{self.base}/processes", json={"command": command})
        assert answer.status == 201, answer
        return f"{self.base}/processes/{answer.json()['process_id']}"

    def move(self, provider, **body):
        return self.api.post(f"{self.base}/move", json={"provider": provider, **body})

    def moved(self, provider, **body):
        answer = self.move(provider, **body)
        assert answer.status == 200 and answer.json()["provider"] == provider, answer
        assert answer.json()["isolation"] == ("none" if provider == "local" else self.isolation)
        return answer.json()

    @property
    def isolation(self):
        return next(p["isolation"] for p in self.api.get("/v1/providers").json()["providers"]
                    if p["name"] == "jail")

    def end(self):
        self.api.delete(self.base)
        self.api.close()


@pytest.fixture
def box(server):
    b = Box(server)
    yield b
    b.end()


def test_files_directory_variables_and_output_go_there_and_back(box):
    box.out("mkdir -p deep/er 'na me'; head -c 3000000 /dev/urandom > big; echo '#!/bin/sh' > run; chmod 755 run; "
            "ln -s deep/er link; printf x > 'na me/ünï'; touch -d @1000000000 run; mkfifo pipe; cd deep; "
            "export COLOUR=green")
    big = box.out("sha256sum < /workspace/big")
    done = box.start("echo before")
    wait_for(lambda: not box.api.get(done).json()["running"], 60, "its end")

    for provider in ("local", "jail", "local", "jail"):
        told = box.moved(provider)
        assert told["reason"] == "moved by the API" and told["state"] == "running"
        place = "/workspace/deep" if provider == "jail" else box.out("echo $HOME/deep")
        assert box.out("pwd") == place and box.out("echo $COLOUR") == "green"
        assert box.out("sha256sum < ../big") == big
        assert box.out("stat -c '%a %Y' ../run; readlink ../link; cat ../na*/*").split() == \
            ["755", "1000000000", "deep/er", "x"]
        assert box.out("test -e ../pipe && echo there || echo gone") == "gone"
        assert box.api.get(f"{done}/output").text == "before\n"
        box.out(f"echo {provider} >> ../log")
        assert box.api.get(f"{box.base}/files?path=/workspace/log").text.split()[-1] == provider
    assert box.out("cat /workspace/log").split() == ["local", "jail", "local", "jail"]


def test_the_workspaces_files_win_where_it_is_the_home_as_well(box):
    box.out("echo work > same; echo home > ~/same; echo only > ~/only")
    box.moved("local")
    assert box.out("cat same only").split() == ["work", "only"]


def test_what_runs_stands_in_the_way_unless_it_is_given_up(box):
    counter = box.start("i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done")
    wait_for(lambda: box.api.get(f"{counter}/output").text.count("\n") > 3, 60, "some lines")
    check_error(box.move("local"), 409, "conflict", says="give_up")
    assert box.info()["provider"] == "jail" and box.api.get(counter).json()["running"]

    box.moved("local", give_up=True)
    assert not box.api.get(counter).json()["running"]
    lines = box.api.get(f"{counter}/output").text.split()
    assert len(lines) > 3 and lines == [str(n) for n in range(1, len(lines) + 1)]
    assert box.out("echo on") == "on"


def sleeps(seconds):
    return [p for p in host.pids() if host.command_line(p) == ["sleep", seconds]]


def test_what_a_command_left_behind_is_ended_with_give_up(box):
    seconds = str(random.randrange(10**5, 10**6))  # the host's list has those of other runs, too
    box.out(f"setsid sleep {seconds} >/dev/null 2>&1 & while ! pgrep -x sleep >/dev/null; do :; done")
    wait_for(lambda: sleeps(seconds), 20, "it is another program")
    check_error(box.move("local"), 409, "conflict", says="left behind")
    box.moved("local", give_up=True)
    wait_for(lambda: not sleeps(seconds), 20, "it is ended")


def test_a_file_that_cannot_be_read_makes_it_fail(box):
    box.out("echo x > open; echo y > shut; chmod 000 shut")
    answer = box.move("local")
    assert answer.status == 403 and "shut" in answer.json()["error"]["message"], answer
    assert box.info()["provider"] == "jail" and box.out("cat open") == "x"
    box.out("chmod 600 shut")
    box.moved("local")


def test_a_sandbox_of_mode_sandbox_keeps_its_isolation(server):
    box = Box(server, mode="sandbox")
    error = check_error(box.move("local"), 409, "isolation", says="mode 'sandbox'")
    assert "local" in error["message"] and box.info()["provider"] == "jail"
    box.end()


def test_auto_rises_with_the_line_and_knows_the_hosts_paths(server):
    box = Box(server, mode="auto", provider="auto")
    assert box.info()["provider"] == "local"
    box.out("echo text > file")
    assert box.info()["provider"] == "local" and box.out("cat file") == "text"
    # On the host /workspace is not the sandbox's.
    answer = box.api.post(f"{box.base}/exec", json={"command": "cat /workspace/file"}).json()
    assert (answer["provider"], answer["stdout"]) == ("jail", "text\n"), answer
    assert "unknown" in answer["reason"] and box.info()["provider"] == "jail"
    box.end()


# ---- a server that is killed ----


# From the directory that it moves with.
SUMS = "cat ../d*/f | wc -c; cat ../d*/f | sha256sum"


def inside(directory):
    """What is in a directory that others remove."""
    with contextlib.suppress(OSError):
        return list(directory.iterdir())
    return []


def places(box, parent):
    """Where there is something of the box: the directory of local ones, the roots of jails."""
    roots = [n for n in host.files_below(os.path.join(box.server.state_dir, "roots"))
             if not os.path.basename(n).startswith(".blank-")]
    return {name for name, there in (("jail", roots), ("local", inside(parent))) if there}


def ask_in_background(box, provider):
    def ask():
        with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
            api = box.server.client()
            api.post(f"{box.base}/move", json={"provider": provider})
    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def moments(box, parent, target):
    """Conditions of a move from the one to the other, in the order in which they come true."""
    def row():
        return box.server.rows("select provider from sessions where id = ?", box.id) == [(target,)]
    yield "at once", lambda: True
    if target == "local":
        yield "the new box", lambda: inside(parent)
        yield "its first file", lambda: any(inside(d) for d in inside(parent))
    yield "the row", row


@pytest.mark.parametrize("target", ["local", "jail"])
def test_a_server_that_is_killed_leaves_it_whole_in_one_place(target):
    source = "jail" if target == "local" else "local"
    with Server(SETTINGS) as server:
        box = Box(server)
        box.out("for i in $(seq 40); do mkdir d$i; head -c 400000 /dev/urandom > d$i/f; done; export COLOUR=green; "
                "mkdir deep; cd deep")
        whole = box.out(SUMS)
        box.moved("local")
        parent = Path(box.out("echo $HOME")).parent
        seen = set()
        dice = random.Random(7)
        steps = [*moments(box, parent, target), *[(None, None)] * 5]
        for name, condition in steps:
            if box.info()["provider"] != source:
                box.moved(source)
            wait_for(lambda: places(box, parent) == {source}, 60, "the other place is empty")
            thread = ask_in_background(box, target)
            if name:
                wait_for(condition, 60, name)
            else:
                time.sleep(dice.uniform(0, 0.3))
            server.kill()
            server.start()
            thread.join()

            box.api.close()
            box.api = server.client()
            told = box.info()
            assert told["state"] == "running", (name, told)
            seen.add(told["provider"])
            wait_for(lambda: places(box, parent) == {told["provider"]}, 60, f"one place after {name}")
            assert box.out(SUMS) == whole, name
            assert box.out("echo $COLOUR; basename $PWD").split() == ["green", "deep"]
            if name == "the row":
                assert told["provider"] == target
        assert target in seen
        box.end()


# ---- a sandbox that is deleted while it moves ----


class Deleter(threading.Thread):
    """Makes sandboxes, lets somebody move them without end, and deletes each at a moment of chance."""

    def __init__(self, server, seed, rounds, providers):
        super().__init__()
        self.server, self.dice, self.rounds, self.providers = server, random.Random(seed), rounds, providers
        self.moves, self.wrong = 0, []

    def run(self):
        for _ in range(self.rounds):
            try:
                self.round()
            except Exception as error:  # pylint: disable=broad-except
                self.wrong.append(repr(error))
                return

    def round(self):
        box = Box(self.server, provider=self.dice.choice(self.providers))
        box.out("echo text > file; mkdir -p a/b")
        targets = [self.dice.choice(self.providers) for _ in range(50)]
        mover = threading.Thread(target=self.keep_moving, args=(box, targets))
        mover.start()
        time.sleep(self.dice.choice((0.0, 0.01, 0.05, 0.3)) * self.dice.random())
        gone = box.api.delete(box.base)
        mover.join(seconds(120))
        told = box.info()
        if gone.status != 204 or mover.is_alive() or not told.get("ended_at"):
            self.wrong.append((gone, mover.is_alive(), told))
        box.api.close()

    def keep_moving(self, box, targets):
        api = self.server.client()
        for target in targets:
            answer = api.post(f"{box.base}/move", json={"provider": target})
            self.moves += answer.status == 200
            if answer.status != 200:
                said = answer.json()["error"]["message"]
                if answer.status not in (404, 409, 410) or "end" not in said and "given up" not in said:
                    self.wrong.append(answer)
                break
        api.close()


def race(settings, providers, rounds, more=lambda: ()):
    """No answer but those that a race may have, and nothing is left at any provider."""
    with Server({**SETTINGS, **settings}) as server:
        first = Box(server, provider="local")
        parent = Path(first.out("echo $HOME")).parent
        first.end()
        deleters = [Deleter(server, seed, rounds // 3, providers) for seed in range(3)]
        for d in deleters:
            d.start()
        for d in deleters:
            d.join()
        assert not any(d.wrong for d in deleters), [d.wrong for d in deleters]

        def left():
            roots = [n for n in host.files_below(os.path.join(server.state_dir, "roots")) if ".blank-" not in n]
            return [*roots, *inside(parent), *more()]
        wait_for(lambda: not left(), 120, "nothing is left at any provider")
        print(f"{rounds} deletes, {sum(d.moves for d in deleters)} moves")
        assert sum(d.moves for d in deleters) > rounds // 10


def test_a_delete_against_moves():
    race({}, ["jail", "local"], 3000 if NIGHTLY else 30)


if NIGHTLY:
    @pytest.mark.timeout(seconds(1800))
    def test_a_delete_against_moves_with_an_engine(dockerd):
        image = dockerd.import_image("test/moves:latest", engines.image_tar("bash"), ["ENV PATH=/bin:/usr/bin"])
        race({"providers": "jail,local,docker", "docker_host": dockerd.host, "image_pull": "never",
              "default_image": image}, ["jail", "local", "docker"], 300, dockerd.containers)
