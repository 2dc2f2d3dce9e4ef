"""kill -9 of the server with live sandboxes: the next start goes on where the last one stopped.

The daemon dies with its guardian, so both kills end in the same state; each is tried.
"""

import hashlib
import http.client
import itertools
import json
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from breaking import Box, Later, Victim, check_counter, check_error, read_events
from paddock_testing import host
from paddock_testing import run as paddock

# A line every 10 ms, and more than a pipe holds in a burst now and then.
COUNTER = "i=0; while :; do i=$((i+1)); echo $i; [ $((i % 500)) = 0 ] || sleep 0.01; done"
BURSTS = "seq 1 400000"


@pytest.fixture(scope="module")
def server():
    with Victim({"max_sandboxes": 300, "max_sandboxes_per_tenant": 300,
                 "spool_max_bytes": "128M"}) as v:
        yield v


@pytest.mark.parametrize("who", ["guardian", "daemon"])
def test_many_sandboxes_survive(server, api, who):
    count = paddock.scaled_down(100 if who == "guardian" else 20, 5)
    boxes = [Box(api, metadata={"number": str(n)}) for n in range(count)]
    counters = {b: b.start(COUNTER) for b in boxes[::5]}
    before = {b.id: b.get() for b in boxes}
    boxes[1].exec("cd /tmp && export COLOUR=green")
    boxes[2].action("pause")
    time.sleep(0.3)
    seen = {b: len(b.output(p)) for b, p in counters.items()}

    took = server.kill_and_restart(who)
    print(f"{count} sandboxes, {len(counters)} commands: answers after {took * 1000:.0f} ms")
    print([line for line in server.log().splitlines() if "adopt.done" in line][-1])

    listed = api.get("/v1/sandboxes?limit=1000").json()["sandboxes"]
    assert {s["id"] for s in listed} == set(before)
    for sandbox in listed:
        was = before[sandbox["id"]]
        assert sandbox["state"] == ("paused" if sandbox["id"] == boxes[2].id else "running")
        for name in ("created_at", "metadata", "limits", "isolation", "profile", "processes"):
            assert sandbox[name] == was[name], name
    assert boxes[1].out("pwd; echo $COLOUR") == "/tmp\ngreen\n"
    check_error(boxes[2].try_exec("true"), code="paused")
    assert boxes[2].action("resume")["state"] == "running"
    assert boxes[2].out("echo awake") == "awake\n"
    for b, process in counters.items():
        text = b.output(process)
        assert len(text) >= seen[b]
        check_counter(text)
    for b, process in counters.items():
        assert b.process(process)["running"]
        paddock.wait_for(lambda b=b, p=process: len(b.output(p)) > seen[b], 10, "it goes on")
        check_counter(b.output(process))
    for b in boxes:
        b.delete()
    assert api.get("/v1/sandboxes").json()["sandboxes"] == []
    paddock.wait_for(lambda: not host.files_below(os.path.join(server.state_dir, "server", "spool")), 10,
                     "no spool is left")


@pytest.mark.parametrize("who", ["guardian", "daemon"])
def test_a_terminal_goes_on(server, box, who):
    shell = box.start("bash --norc", pty=True)
    box.write(shell, b"stty -echo; X=41; cd /usr; echo rea''dy\n")
    box.wait_output(shell, b"ready")
    server.kill_and_restart(who)
    box.write(shell, b"echo $((X + 1)) $PWD; tty; stty size\n")
    box.wait_output(shell, b"42 /usr")
    box.wait_output(shell, b"24 80")
    answer = box.api.post(f"{box.url}/processes/{shell}/resize", json={"rows": 50, "cols": 132})
    assert answer.status == 204, answer
    box.write(shell, b"stty size; exit 7\n")
    assert box.wait_end(shell)["exit_code"] == 7
    assert b"50 132" in box.output(shell)


def test_standard_input_goes_on(server, box):
    cat = box.start("cat; echo over", stdin=True)
    box.write(cat, b"one\n")
    box.wait_output(cat, b"one")
    server.kill_and_restart()
    assert box.process(cat)["stdin_open"]
    box.write(cat, b"two\n", close=True)
    assert box.wait_end(cat)["exit_code"] == 0
    assert box.output(cat) == b"one\ntwo\nover\n"


def test_unread_output_and_the_end_during_the_absence(server, box):
    process = box.start(f"{BURSTS}; echo problem >&2; sleep 0.3; exit 3")
    server.kill()
    time.sleep(paddock.span(1))
    server.restart()
    end = box.wait_end(process)
    assert end["exit_code"] == 3, end
    assert check_counter(box.output(process)) == 400000
    assert box.output(process, stream="stderr") == b"problem\n"


def test_a_command_in_flight_is_run_once(server, box):
    """The result of a command that was running, by its key; the same after another kill."""
    body = {"command": "echo x >> /workspace/count; echo begun; sleep 1; cd /opt; export A=b; "
                       "echo done; exit 5", "timeout_s": 20}
    headers = {"Idempotency-Key": "only-once"}

    def call():
        return box.api.post(f"{box.url}/exec", json=body, headers=headers)

    first = Later(call)
    count = f"{box.url}/files?path=/workspace/count"  # not a command: those share the shell's state
    paddock.wait_for(lambda: box.api.get(count).status == 200, 10, "it runs")
    server.kill_and_restart()
    first.end()
    # The client's own retry may have found the next server already; otherwise this is it.
    again = call()
    assert again.status == 200, again
    result = again.json()
    assert (result["exit_code"], result["stdout"]) == (5, "begun\ndone\n"), result
    assert result["signal"] is None
    assert box.out("pwd; echo $A") == "/opt\nb\n"
    server.kill_and_restart()
    stored = call()
    assert stored.headers.get("Idempotent-Replayed") == "true"
    assert stored.json()["stdout"] == "begun\ndone\n"
    assert stored.json()["exit_code"] == 5
    assert box.out("cat /workspace/count") == "x\n"
    changed = box.api.post(f"{box.url}/exec", json={**body, "timeout_s": 21}, headers=headers)
    check_error(changed, code="conflict")


def test_a_creation_with_a_key_is_made_once(server, api):
    headers = {"Idempotency-Key": "one-sandbox"}
    made = api.post("/v1/sandboxes", json={}, headers=headers).json()["id"]
    server.kill_and_restart()
    again = api.post("/v1/sandboxes", json={}, headers=headers)
    assert again.json()["id"] == made, again
    assert api.delete(f"/v1/sandboxes/{made}").status == 204


def test_event_streams_resume(server, box):
    command = {"command": "for i in $(seq 1 120); do echo $i; echo e$i >&2; sleep 0.01; "
                          "until [ $i != 60 ] || [ -e /tmp/go ]; do sleep 0.01; done; done"}
    headers = {"Accept": "text/event-stream", "Idempotency-Key": "a-stream"}
    response = box.api.stream("POST", f"{box.url}/exec", json=command, headers=headers)
    events = read_events(response, until=lambda found: len(found) > 40)
    server.kill_and_restart()
    events += read_events(response)
    response.close()
    assert not [e for e in events if e[0] == "exit"]
    assert box.put_file("/tmp/go", b"").status in (200, 201)
    last = [e[2] for e in events if e[2]][-1]
    response = box.api.stream("POST", f"{box.url}/exec", json=command,
                              headers={**headers, "Last-Event-ID": last})
    events += read_events(response)
    response.close()
    out = "".join(json.loads(d)["text"] for name, d, _ in events if name == "stdout")
    err = "".join(json.loads(d)["text"] for name, d, _ in events if name == "stderr")
    assert out == "".join(f"{i}\n" for i in range(1, 121))
    assert err == "".join(f"e{i}\n" for i in range(1, 121))
    assert [json.loads(d)["exit_code"] for name, d, _ in events if name == "exit"] == [0]


def test_an_upload_in_flight_changes_nothing(server, box):
    old = b"the old contents\n"
    assert box.put_file("/workspace/file", old).status in (200, 201)
    sock = box.api.raw()
    sock.sendall((f"PUT {box.url}/files?path=/workspace/file HTTP/1.1\r\nHost: localhost\r\n"
                  f"X-API-Key: {box.api.key}\r\nContent-Type: application/octet-stream\r\n"
                  f"Content-Length: {8 << 20}\r\n\r\n").encode())
    sock.sendall(b"n" * (2 << 20))
    server.kill_and_restart()
    sock.close()
    assert box.read_file("/workspace/file") == old
    time.sleep(0.3)
    assert box.read_file("/workspace/file") == old
    paddock.wait_for(lambda: box.out("ls -A /workspace") == "file\n", 5, "nothing else is left")
    # Nor the worker: the sandbox has no process but the one that looks.
    paddock.wait_for(lambda: box.get()["processes"] == 0, 5, "no worker is left")
    assert box.put_file("/workspace/file", b"new").status == 200
    assert box.read_file("/workspace/file") == b"new"


def test_what_commands_left_running_is_not_disturbed(server, box):
    """Children of a command that has ended go on, and new commands do not get in their way."""
    box.exec("(while :; do date +%N > /tmp/beat; sleep 0.05; done) > /dev/null 2>&1 &")
    for _ in range(3):
        box.exec("sleep 1000 > /dev/null 2>&1 &")
    server.kill_and_restart()
    results = [box.exec("echo fine") for _ in range(8)]
    assert {r["stdout"] for r in results} == {"fine\n"}
    beat = box.out("cat /tmp/beat")
    paddock.wait_for(lambda: box.out("cat /tmp/beat") != beat, 20, "it goes on")
    sleepers = "pgrep -fxc 'sleep 1000'"
    assert box.out(sleepers) == "3\n"
    # A time-out ends what it has to, and nothing else.
    assert box.exec("sleep 30", timeout_s=paddock.seconds(0.3))["timed_out"]
    assert box.out(sleepers) == "3\n"
    paddock.wait_for(lambda: box.out("pgrep -fxc 'sleep 30' || true") == "0\n", 20, "it is gone")
    beat = box.out("cat /tmp/beat")
    paddock.wait_for(lambda: box.out("cat /tmp/beat") != beat, 20, "it still goes on")


def test_the_time_of_a_command_runs_on(server, box):
    process = box.start("sleep 60", timeout_s=2)
    server.kill_and_restart()
    end = box.wait_end(process, 10)
    assert end["stopped_by"] == "timeout", end


def test_many_commands_at_once(server, box):
    """More than fit the tables that a start goes through."""
    count = 90
    processes = [box.start("read -t 600 x < <(sleep 600); exit 4") if n % 3 else
                 box.start("sleep 600") for n in range(count)]
    server.kill_and_restart()
    listed = box.api.get(f"{box.url}/processes").json()["processes"]
    assert {p["process_id"] for p in listed} == set(processes)
    assert all(p["running"] for p in listed)
    for process in processes:
        assert box.api.delete(f"{box.url}/processes/{process}").status == 204
    paddock.wait_for(lambda: box.get()["processes"] == 0, 20, "all are ended")


def test_the_first_moments_of_a_command(server, box):
    """The daemon dies while the thread of the request has the command alone, or just after. Either
    nobody knows the command any more, and nothing of it is left; or all of its output is there."""
    folder = os.path.join(server.state_dir, "server", "spool")
    rounds, known = paddock.rounds(16, 100, 10), 0
    deadline = time.monotonic() + paddock.seconds(60)
    for n in itertools.count():
        # On busy cores this process may come late to each of them: then there are more.
        if n >= rounds and (known < n or time.monotonic() > deadline):
            break
        line = f"echo first; sleep 0.002; echo {n}; sleep 77"
        daemon = server.daemon()
        server.note_instances()
        server.expect_end()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=paddock.seconds(60))
        connection.request("POST", f"{box.url}/exec", json.dumps({"argv": ["/bin/sh", "-c", line]}), {
            "X-API-Key": server.key, "Content-Type": "application/json",
            "Accept": "text/event-stream"})
        time.sleep(n % 20 * 0.0005)
        os.kill(daemon, signal.SIGKILL)
        server.process.wait(paddock.seconds(10))
        server.restart()
        connection.close()

        listed = [p["process_id"] for p in box.api.get(f"{box.url}/processes").json()["processes"]
                  if p["running"]]
        for process in listed:
            known += 1
            box.wait_output(process, f"first\n{n}\n".encode())
            assert box.output(process) == f"first\n{n}\n".encode()
            assert box.api.delete(f"{box.url}/processes/{process}").status == 204
        paddock.wait_for(lambda: box.out("pgrep -fc '[s]leep 77' || true").strip() == "0", 20,
                         "nothing of it runs")

        def is_tidy():
            # The oldest of many that have ended are forgotten, with their files a moment later.
            rows = {p["process_id"] for p in box.api.get(f"{box.url}/processes").json()["processes"]}
            return all(name.split(".")[1] in rows for name in os.listdir(folder) if name.startswith(box.id))
        paddock.wait_for(is_tidy, 20, "no output is kept of a command that nobody knows")
    print(f"{known} of {n} were known to the next daemon")
    assert known < n


@pytest.mark.parametrize("name", ["SIGKILL", "SIGABRT"])
def test_the_signal_that_ended_the_daemon_is_told(server, name):
    """The daemon itself could not say it; and nothing is said of one that ended as it should."""
    number = getattr(signal, name)
    daemon = server.daemon()
    server.note_instances()
    server.expect_end()
    os.kill(daemon, number)
    assert server.wait() == 128 + number
    assert [line.split(" ", 2)[1:] for line in server.last_log().splitlines() if "server.daemon" in line] \
        == [["error", f"server.daemon signal={name} number={int(number)} pid={daemon}"]]
    server.restart()
    assert server.stop(signal.SIGTERM) == 0
    assert "server.daemon" not in server.last_log()
    server.restart()


def test_an_interrupt_while_the_keeper_starts_leaves_nothing():
    """The guardian takes it when there is a daemon to tell: by itself it would leave the keeper."""
    server = Victim()
    server.launch()
    children = f"/proc/{server.process.pid}/task/{server.process.pid}/children"
    try:
        keeper = int(paddock.wait_for(lambda: Path(children).read_text().split(), 30, "a keeper starts")[0])
        os.kill(keeper, signal.SIGSTOP)  # the guardian waits for it, if it has not got a daemon yet
        server.send_signal(signal.SIGINT)
        time.sleep(paddock.span(0.1))  # without a mask it would be dead by now
        os.kill(keeper, signal.SIGCONT)
        assert server.wait() == 0, server.log()
        paddock.wait_for(lambda: not server.left_behind(), 30, "nothing is left")
    finally:
        server.remove()


def test_upgrade_in_place(server, box, tmp_path):
    """Another copy of the programs, started after SIGTERM, has the same sandboxes."""
    for name in ("paddock", "paddockd"):
        source = os.path.join(os.path.dirname(paddock.PADDOCK), name)
        shutil.copy(os.path.realpath(source), tmp_path / name)
    process = box.start(COUNTER)
    box.wait_output(process, b"5\n")
    assert server.stop(signal.SIGTERM) == 0
    size = len(box_spool(server, box))
    old, server.binary = server.binary, str(tmp_path / "paddock")
    try:
        server.restart()
        assert os.path.realpath(f"/proc/{server.daemon()}/exe") == str(tmp_path / "paddockd")
        assert box.get()["state"] == "running"
        paddock.wait_for(lambda: len(box.output(process)) > size, 5, "it goes on")
        check_counter(box.output(process))
        assert server.stop(signal.SIGTERM) == 0
    finally:
        server.binary = old
        server.restart()
    paddock.wait_for(lambda: check_counter(box.output(process)) >= 10, 10, "it goes on")


def box_spool(server, box):
    folder = os.path.join(server.state_dir, "server", "spool")
    names = [n for n in os.listdir(folder) if n.startswith(box.id) and n.endswith(".o")]
    with open(os.path.join(folder, max(names, key=lambda n: os.path.getsize(
            os.path.join(folder, n)))), "rb") as f:
        return f.read()


def test_every_byte_of_a_long_output(server, box):
    """64 MiB that look random, while the server is killed ten times. The writer waits for each kill's turn
    after every sixth of them, so that it is never over before."""
    size = 64 << 20
    script = ("import os,sys,time,hashlib\n"
              "h=hashlib.sha256()\n"
              "b=os.urandom(1<<20)\n"
              "for i in range(64):\n"
              " while i<60 and i%6==0 and not os.path.exists(f'/workspace/go{i//6}'): time.sleep(0.001)\n"
              " c=hashlib.sha256(b'%d'%i).digest()+b[32:]\n"
              " h.update(c)\n"
              " m=memoryview(c)\n"
              " while m: m=m[os.write(1,m[:7919*(i%9+1)]):]\n"
              " time.sleep(0.01)\n"
              "print(h.hexdigest(),file=sys.stderr)\n")
    assert box.put_file("/workspace/writer.py", script.encode()).status in (200, 201)
    process = box.start("python3 /workspace/writer.py", spool_max_bytes=size * 2)
    for n in range(10):
        assert box.process(process)["running"]
        assert box.put_file(f"/workspace/go{n}", b"").status in (200, 201)
        time.sleep(random.uniform(0, 0.05))
        server.kill_and_restart()
    end = box.wait_end(process)
    assert end["exit_code"] == 0, end
    assert end["stdout_bytes"] == size
    wanted = box.output(process, stream="stderr").decode().strip()
    assert hashlib.sha256(box.output(process)).hexdigest() == wanted


def test_every_byte_of_a_terminal(server, box):
    """It cannot be spliced into a file directly: what is on its way must not be lost either."""
    lines = 60000
    process = box.start(f"stty -opost; seq 1 {lines}; sleep 0.3; exit 3", pty=True)
    for _ in range(5):
        time.sleep(random.uniform(0, 0.03))
        server.kill_and_restart()
    assert box.wait_end(process)["exit_code"] == 3
    assert check_counter(box.output(process)) == lines


class Load(threading.Thread):
    """Creates, runs and deletes until it is told to stop; remembers what it was promised."""

    def __init__(self, server, number):
        super().__init__(daemon=True)
        self.api = server.client()
        self.number = number
        self.random = random.Random(number)
        self.boxes = {}  # id: how many lines its file must have at least, and may have at most
        self.ended = set()
        self.odd = []
        self.kept = self.broken = 0  # calls that were answered, and those that a kill broke off
        self.stopping = False
        self.start()

    def call(self, method, path, **more):
        """The answer, or None when the connection broke: then nothing is promised."""
        try:
            answer = self.api.request(method, path, **more)
        except (OSError, http.client.HTTPException):
            self.broken += 1
            time.sleep(0.02)
            return None
        self.kept += 1
        if answer.status >= 500 and answer.status != 503:
            self.odd.append(repr(answer))
        return answer

    def step(self):
        dice = self.random.random()
        if len(self.boxes) < 2 or (dice < 0.3 and len(self.boxes) < 5):
            answer = self.call("POST", "/v1/sandboxes", json={"metadata": {"w": str(self.number)}})
            if answer and answer.status == 201:
                self.boxes[answer.json()["id"]] = [0, 0]
        elif dice < 0.85:
            name = self.random.choice(list(self.boxes))
            promise = self.boxes[name]
            promise[1] += 1
            answer = self.call("POST", f"/v1/sandboxes/{name}/exec",
                               json={"command": "echo x >> /workspace/lines"})
            if answer and answer.status == 200 and answer.json()["exit_code"] == 0:
                promise[0] += 1
            elif answer and answer.status not in (409, 503):
                self.odd.append(repr(answer))
        else:
            name = self.random.choice(list(self.boxes))
            answer = self.call("DELETE", f"/v1/sandboxes/{name}")
            del self.boxes[name]
            if answer and answer.status == 204:
                self.ended.add(name)

    def run(self):
        try:
            while not self.stopping:
                self.step()
        except Exception as error:
            self.odd.append(repr(error))

    def end(self):
        self.stopping = True
        self.join(paddock.seconds(60))
        assert not self.is_alive(), "a call does not come back"


def check_promises(api, loads):
    """Of a moment when nobody works: what was acknowledged is there, and the rest is whole."""
    known = {s["id"]: s for s in api.get("/v1/sandboxes?limit=1000").json()["sandboxes"]}
    for load in loads:
        assert not load.odd, load.odd
        for name, (least, most) in load.boxes.items():
            assert name in known, f"{name} is lost: {api.get('/v1/sandboxes/' + name)}"
            assert known[name]["state"] == "running", known[name]
            answer = api.post(f"/v1/sandboxes/{name}/exec",
                              json={"command": "cat /workspace/lines 2>/dev/null | wc -l"})
            assert answer.status == 200, answer
            assert least <= int(answer.json()["stdout"]) <= most, (least, most, answer)
        for name in load.ended:
            assert name not in known
            answer = api.get(f"/v1/sandboxes/{name}")
            assert answer.status in (200, 404), answer
            assert answer.status == 404 or answer.json()["state"] == "gone", answer
    for name, sandbox in known.items():
        assert sandbox["state"] in ("running", "stopping"), sandbox
        if sandbox["state"] == "running":
            answer = api.post(f"/v1/sandboxes/{name}/exec", json={"command": "echo whole"})
            assert answer.status == 200 and answer.json()["stdout"] == "whole\n", answer


def test_kills_at_random_under_load():
    dice = random.Random()
    slowest = kept = broken = 0
    with Victim({"pool_min": 1, "pool_max": 2}) as server:
        loads = [Load(server, n) for n in range(4)]
        rounds = paddock.rounds(10, 100, 5)
        for n in range(rounds):
            time.sleep(dice.uniform(0.02, 0.4))
            server.kill(dice.choice(["guardian", "daemon"]))
            slowest = max(slowest, server.restart())
            if n % 10 == 9:
                for load in loads:
                    load.end()
                check_promises(server.client(), loads)
                kept += sum(load.kept for load in loads)
                broken += sum(load.broken for load in loads)
                fresh = []
                for load in loads:
                    again = Load(server, load.number)
                    again.boxes, again.ended = load.boxes, load.ended
                    fresh.append(again)
                loads = fresh
        for load in loads:
            load.end()
        api = server.client()
        check_promises(api, loads)
        kept += sum(load.kept for load in loads)
        broken += sum(load.broken for load in loads)
        assert kept >= rounds and broken >= rounds // 3, (
            f"{kept} calls were answered and {broken} broken off: that is no load")
        print(f"{rounds} kills; the slowest start took {slowest * 1000:.0f} ms")
        for sandbox in api.get("/v1/sandboxes?limit=1000").json()["sandboxes"]:
            assert api.delete(f"/v1/sandboxes/{sandbox['id']}").status == 204
        live = api.post("/v1/sandboxes", json={}).json()["id"]
        assert [s["id"] for s in api.get("/v1/sandboxes").json()["sandboxes"]] == [live]


def test_a_second_server_refuses(server, box):
    other = Victim()
    other.state_dir = server.state_dir
    other.run_dir = server.run_dir
    import subprocess
    done = subprocess.run(other.argv() + ["--unix-socket", "none"], env=other.env,
                          capture_output=True, text=True, timeout=paddock.seconds(20))
    shutil.rmtree(other.directory)
    assert done.returncode != 0
    assert str(server.daemon()) in done.stderr, done
    assert box.out("echo fine") == "fine\n"
