"""The commands that talk to a server, against a real one. What a real one never says is in
tests/e2e/test_client_commands.py."""

import errno
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import tarfile
import tempfile
import termios
import time

import pytest

from paddock_testing import run as paddock


class Cli:
    def __init__(self, api):
        self.env = paddock.clean_environment({
            "PADDOCK_URL": f"http://{api.host}:{api.port}", "PADDOCK_API_KEY": api.key,
            "TERM": "xterm"})

    def __call__(self, *arguments, stdin=subprocess.DEVNULL, env=None, limit=20):
        given = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        return subprocess.run([paddock.PADDOCK, *map(str, arguments)], capture_output=True,
                              check=False, timeout=paddock.seconds(limit),
                              env={**self.env, **(env or {})}, **given)

    def out(self, *arguments, **options):
        """Standard output of a call that works and has nothing to complain about."""
        result = self(*arguments, **options)
        assert (result.returncode, result.stderr) == (0, b""), result
        return result.stdout.decode()

    def start(self, *arguments, **options):
        return subprocess.Popen([paddock.PADDOCK, *map(str, arguments)], env=self.env, **options)


@pytest.fixture
def cli(api):
    return Cli(api)


@pytest.fixture
def box(cli):
    """A sandbox of its own, made by the command line."""
    name = cli.out("create", "--metadata", "from=test_cli").strip()
    yield name
    cli("rm", name)


def running(cli, box):
    return json.loads(cli.out("ps", "--json", box))["processes"]


# ---- sandboxes ----


def test_a_sandbox_comes_and_goes(cli):
    box = cli.out("create", "--profile", "dev", "--memory", "128M", "--metadata", "k=v w").strip()
    assert re.fullmatch("[a-z0-9]{20}", box)
    row = next(l for l in cli.out("ls", "--metadata", "k=v w").splitlines() if box in l)
    assert row.split()[1] == "running" and "k=v w" in row
    found = json.loads(cli.out("ls", "--json"))["sandboxes"]
    assert [s["limits"]["memory_bytes"] for s in found if s["id"] == box] == [128 << 20]
    assert box in cli.out("top", "--once")
    assert cli.out("rm", box) == ""
    assert box not in cli.out("ls") and box in cli.out("ls", "-a") and cli("rm", box).returncode == 0
    result = cli("exec", box, "true")
    assert result.returncode == 125 and box in result.stderr.decode()


def test_a_session_is_found_again(cli):
    first = cli.out("create", "--session", "ann o/chat/1")
    assert cli.out("create", "--session", "ann o/chat/1") == first
    assert first.strip() in cli.out("ls", "-q", "--user-id", "ann o")
    assert cli.out("exec", "--session", "ann o/chat/1", "-c", "cd /tmp; export A=1") == ""
    assert cli.out("exec", "--session", "ann o/chat/1", "-c", "pwd; echo $A") == "/tmp\n1\n"
    assert cli.out("rm", "--session", "ann o/chat/1") == ""
    assert first.strip() not in cli.out("ls")


def test_the_wrong_key_is_told(cli):
    result = cli("ls", env={"PADDOCK_API_KEY": "e2b_" + "0" * 40})
    assert result.returncode == 125 and result.stdout == b"" and result.stderr.count(b"\n") == 1
    del cli.env["PADDOCK_API_KEY"]
    assert b"PADDOCK_API_KEY is not set" in cli("ls").stderr


# ---- exec ----


@pytest.mark.parametrize("script, status", [
    ("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143), ("exit 255", 255)])
def test_exec_ends_as_the_command(cli, box, script, status):
    result = cli("exec", box, "--", "sh", "-c", "echo out; echo err >&2; " + script)
    assert (result.returncode, result.stdout, result.stderr) == (status, b"out\n", b"err\n")


def test_exec_failures_have_their_own_status(cli, box):
    assert cli("exec", box, "nonesuch").returncode == 127
    assert cli("exec", box, "/etc/passwd").returncode == 126
    began = time.monotonic()
    result = cli("exec", "--timeout", "1s", box, "--", "sleep", "60")
    assert result.returncode == 124 and b"stopped by timeout" in result.stderr
    assert time.monotonic() - began < paddock.seconds(10)


def test_every_byte_passes_in_both_directions(cli, box):
    data = bytes(range(256)) * 4096 * 3 + b"end"
    for stdin in (data[:100000], data):
        assert cli("exec", box, "cat", stdin=stdin).stdout == stdin
    with tempfile.TemporaryFile() as f:  # a file, small and large
        f.write(data)
        f.seek(10)
        assert cli("exec", box, "cat", stdin=f).stdout == data[10:]
        f.truncate(5000)
        f.seek(0)
        assert cli("exec", box, "cat", stdin=f).stdout == data[:5000]


def test_a_command_that_reads_nothing_does_not_hang(cli, box):
    assert cli("exec", box, "true", stdin=bytes(20 << 20)).returncode == 0
    with subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE) as endless:
        result = cli("exec", box, "echo", "done", stdin=endless.stdout)
        endless.kill()
    assert (result.returncode, result.stdout) == (0, b"done\n")


def test_a_reader_who_has_enough_ends_the_command(cli, box):
    line = f"'{paddock.PADDOCK}' exec {box} -- yes </dev/null | head -n 1"
    done = subprocess.run(["bash", "-c", line + "; echo ${PIPESTATUS[0]}"], env=cli.env,
                          timeout=paddock.seconds(20), capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"y\n141\n", b"")
    paddock.wait_for(lambda: not [p for p in running(cli, box) if p["running"]], 5, "yes has ended")


@pytest.mark.parametrize("piped", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_the_command(cli, box, number, piped):
    """By bash: dash loses a signal that comes while it starts a program."""
    script = "trap 'echo got it; exit 9' INT TERM USR1; echo ready; while :; do sleep 0.1; done"
    stdin = subprocess.PIPE if piped else subprocess.DEVNULL
    with cli.start("exec", box, "--", "bash", "-c", script, stdin=stdin, stdout=subprocess.PIPE) as p:
        assert p.stdout.readline() == b"ready\n"
        p.send_signal(number)
        assert p.stdout.readline() == b"got it\n"
        assert p.wait(paddock.seconds(10)) == 9


def test_a_killed_exec_ends_its_command_and_nothing_else(cli, box):
    other = cli.out("exec", "-d", box, "sleep", "61").strip()
    with cli.start("exec", box, "--", "sh", "-c", "sleep 62 & echo up; wait",
                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as p:
        assert p.stdout.readline() == b"up\n"
        p.kill()
    def left():
        return cli("exec", box, "--", "pgrep", "-x", "-f", "sleep 6[12]").stdout.split()
    paddock.wait_for(lambda: left() == [other.encode()], 5, "only the other sleep is left")


def test_exec_json_is_the_record(cli, box):
    result = cli("exec", "--json", "--timeout", "60", box, "--", "sh", "-c", "cat; exit 4", stdin=b"\xff")
    record = json.loads(result.stdout)
    assert result.returncode == 4 == record["exit_code"] and record["stdout"] == "\ufffd"
    assert record["stopped_by"] is None and not record["timed_out"] and record["pid"] > 0


def test_ps_logs_and_kill(cli, box):
    pid = cli.out("exec", "-d", box, "--", "sh", "-c",
                  "for i in 1 2 3; do echo e$i >&2; echo o$i; sleep 0.2; done; exec sleep 70").strip()
    assert pid in [l.split()[0] for l in cli.out("ps", box).splitlines()]
    with cli.start("logs", "-f", box, pid, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        assert [p.stdout.readline() for _ in range(3)] == [b"o1\n", b"o2\n", b"o3\n"]
        assert cli.out("kill", "-s", "KILL", box, pid) == ""
        assert p.wait(paddock.seconds(10)) == 0 and p.stderr.read() == b"e1\ne2\ne3\n"
    assert cli.out("logs", "--stream", "stdout", box, pid) == "o1\no2\no3\n"
    assert "SIGKILL" in next(l for l in cli.out("ps", "-a", box).splitlines() if l.split()[0] == pid)
    assert cli("kill", box, "4194000").returncode == 125


def test_ps_of_every_process(cli, box):
    cli.out("exec", box, "-c", "(sleep 4711 & ) ; true")
    rows = cli.out("ps", "--tree", box).splitlines()
    assert rows[0].split()[:3] == ["PID", "PARENT", "STATE"]
    assert any("sleep 4711" in row for row in rows), rows
    assert "sleep 4711" not in cli.out("ps", box)


def test_what_is_looked_for_is_found(cli, box):
    word = f"word{time.monotonic_ns()}"
    other = cli.out("create", "--metadata", f"k={word}", "--user-id", "Ann", "--thread-id", word).strip()
    try:
        assert cli.out("ls", "-q", "--search", f"ann {word.upper()}").split() == [other]
        assert cli.out("ls", "-q", "--search", f"bob {word}") == ""
        newest = cli.out("ls", "-q", "--newest").split()
        assert newest.index(other) < newest.index(box)
    finally:
        cli("rm", other)


def test_the_overview_and_what_was_done(cli, box):
    assert "running" in cli.out("overview") and json.loads(cli.out("overview", "--json"))["tenant"]["sandboxes"]["running"]
    cli.out("exec", box, "-c", "echo told; exit 0")
    rows = cli.out("audit", "--sandbox", box).splitlines()
    assert rows[0].split()[:2] == ["TIME", "ACTION"] and "echo told" in rows[1] and "ok, exit 0" in rows[1]
    lines = [json.loads(l) for l in cli.out("audit", "--sandbox", box, "--json").splitlines()]
    assert [l["action"] for l in lines] == ["exec", "sandbox.create"]
    assert len(cli.out("audit", "--limit", "1", "--json").splitlines()) == 1
    assert cli.out("audit", "--sandbox", box, "--action", "sandbox.", "--json").count("\n") == 1
    assert cli("audit", "--tenant", "*").returncode == 125, "for an admin key"
    assert cli("audit", "word").returncode == 2 and cli("overview", "-x").returncode == 2


# ---- files and ports ----


def test_files_and_trees_are_copied(cli, box, tmp_path):
    (tmp_path / "src/d").mkdir(parents=True)
    (tmp_path / "src/d/big").write_bytes(os.urandom(3 << 20))
    (tmp_path / "src/run").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "src/run").chmod(0o755)
    (tmp_path / "src/link").symlink_to("d/big")
    (tmp_path / ("src/" + "n" * 200)).write_text("long")
    assert cli.out("cp", tmp_path / "src", f"{box}:") == ""
    assert cli.out("exec", box, "src/run") == "ran\n"
    assert cli.out("cp", f"{box}:src", tmp_path / "back") == ""
    assert subprocess.run(["diff", "-r", tmp_path / "src", tmp_path / "back"], check=False).returncode == 0
    assert (tmp_path / "back/run").stat().st_mode & 0o777 == 0o755
    assert os.readlink(tmp_path / "back/link") == "d/big"
    assert cli("cp", tmp_path / "src/run", f"{box}:x/y").returncode == 125
    assert cli.out("cp", "-p", tmp_path / "src/run", f"{box}:x/y") == ""
    assert cli.out("cp", f"{box}:x/y", "-") == "#!/bin/sh\necho ran\n"
    assert cli.out("cp", "-", f"{box}:/tmp/in", stdin=b"piped") == ""
    assert cli.out("cp", f"{box}:/tmp/in", "-") == "piped"
    assert b"nothing" in cli("cp", f"{box}:nothing", tmp_path).stderr
    with open(tmp_path / "tar", "wb") as f:
        f.write(cli("cp", f"{box}:src/d", "-").stdout)
    assert tarfile.open(tmp_path / "tar").getnames() == ["big"]


def test_links_out_of_a_sandbox_stay_there(cli, box, tmp_path):
    cli.out("exec", box, "--", "sh", "-c", "mkdir t; ln -s /etc/passwd t/out; echo x > t/in; mkfifo t/f")
    result = cli("cp", f"{box}:t", tmp_path / "t")
    assert result.returncode == 0 and b"out is left out" in result.stderr
    assert os.listdir(tmp_path / "t") == ["in"]


def test_ports_are_listed_and_reached(cli, box):
    assert cli.out("port", box).split() == ["PORT", "ADDRESS", "PID", "COMMAND"]
    cli.out("exec", "-d", box, "--", "python3", "-m", "http.server", "8123")
    paddock.wait_for(lambda: "8123" in cli.out("port", box), 10, "the server listens")
    assert "python3" in cli.out("port", box)
    assert f"8123-{box}.localhost" in cli.out("port", box, "8123", "--by", "host")
    url = cli.out("port", box, "8123", "--expires", "1m").strip()
    page = subprocess.run(["curl", "-sS", "-H", "Connection: close", url], capture_output=True,
                          timeout=paddock.seconds(20), check=False)
    assert b"Directory listing" in page.stdout, page

    # The links that this has made, and one that is taken back.
    links = json.loads(cli.out("port", "--links", "--json", box))["links"]
    assert [l["port"] for l in links] == [8123, 8123]
    assert cli.out("port", "--revoke", links[0]["id"], box) == ""
    revoked = [l["id"] for l in json.loads(cli.out("port", "--links", "--json", box))["links"] if l["revoked_at"]]
    assert revoked == [links[0]["id"]]
    assert links[1]["id"] in cli.out("port", "--links", box)
    assert cli("port", "--links", box, "8123").returncode == 2
    assert cli("port", "--revoke", "nothing", box).returncode == 125


# ---- a terminal ----


class Terminal:
    """paddock with a terminal of ours."""

    def __init__(self, cli, *arguments):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.execve(paddock.PADDOCK, [paddock.PADDOCK, *arguments], cli.env)
            finally:
                os._exit(99)
        self.seen = b""

    def size(self, rows, cols):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def send(self, data):
        os.write(self.fd, data)

    def read(self, limit):
        ready, _, _ = select.select([self.fd], [], [], limit)
        if not ready:
            raise TimeoutError(self.seen[-500:])
        try:
            return os.read(self.fd, 4096)
        except OSError as e:
            assert e.errno == errno.EIO
            return b""

    def expect(self, pattern):
        """Reads until the pattern is there, and forgets all up to its end."""
        end = time.monotonic() + paddock.seconds(15)
        while not (match := re.search(pattern, self.seen)):
            more = self.read(max(0, end - time.monotonic()))
            assert more, f"ended before {pattern!r}: {self.seen[-500:]!r}"
            self.seen += more
        self.seen = self.seen[match.end():]
        return match

    def end(self):
        while more := self.read(paddock.seconds(15)):
            self.seen += more
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_shell_has_a_terminal_that_follows_ours(cli, box):
    t = Terminal(cli, "shell", box)
    t.expect(rb"\$ ")
    t.size(33, 77)
    # What is typed may overtake the size.
    t.send(b"until [ \"$(stty size)\" = '33 77' ]; do sleep 0.05; done; tty; stty size; echo $TERM\r")
    t.expect(rb"/dev/pts/\d+\s+33 77\s+xterm")
    t.send(b"sleep 4060\r")
    paddock.wait_for(lambda: cli("exec", box, "--", "pgrep", "-xf", "sleep 4060").returncode == 0, 10, "it sleeps")
    t.send(b"\x03")
    t.expect(rb"\^C")
    t.send(b"exit 7\r")
    assert t.end() == 7


def test_a_shell_that_was_left_is_still_there(cli, box):
    t = Terminal(cli, "shell", box, "--", "sh")
    t.expect(rb"\$ ")
    t.send(b"MARK=kept\r")
    t.expect(rb"\$ ")
    t.send(b"\x1d")
    pid = t.expect(rb"paddock shell --attach (\d+) " + box.encode())[1].decode()
    assert t.end() == 0
    t = Terminal(cli, "shell", "--attach", pid, box)
    t.expect(rb"MARK=kept")  # from the beginning
    t.send(b"echo still $MARK\r")
    t.expect(rb"still kept")
    t.send(b"exit\r")
    assert t.end() == 0


def test_what_a_sandbox_prints_does_not_command_our_terminal(cli, box):
    script = r"printf '\033]0;title\007\033[31mred\033[0m \033[2J\302\233x\r\n'"
    shown = {}
    for flags in ([], ["--raw"]):
        t = Terminal(cli, "exec", *flags, box, "--", "sh", "-c", script)
        assert t.end() == 0
        shown[bool(flags)] = t.seen
    assert b"\x1b[31mred\x1b[0m" in shown[False] and b"^[]0;title^G" in shown[False]
    assert b"\x1b]" not in shown[False] and b"\x1b[2J" not in shown[False]
    assert b"\xc2\x9b" not in shown[False]
    assert b"\x1b]0;title\x07" in shown[True] and b"\x1b[2J" in shown[True]
