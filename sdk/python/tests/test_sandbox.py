"""Sandbox, in E2B's shape."""

import threading
import time
import urllib.request

import pytest
from paddock_testing import contract
from paddock_testing.run import seconds

import paddock
from paddock import CommandExitException, FileType, FilesystemEventType, PtySize, Sandbox


def test_a_context_ends_the_sandbox(mode):
    with Sandbox.create(metadata={"test": "context"}, envs={"WORD": "ü"}) as sandbox:
        assert sandbox.is_running()
        assert sandbox.commands.run("echo $WORD").stdout == "ü\n"
        assert [i.id for i in Sandbox.list(metadata={"test": "context"})] == [sandbox.sandbox_id]
    assert not sandbox.is_running()
    assert Sandbox.list(metadata={"test": "context"}) == []


def test_kill_and_connect_by_id(mode):
    sandbox = Sandbox.create()
    sandbox.files.write("a", "1")
    other = Sandbox.connect(sandbox.sandbox_id, timeout=60)
    assert isinstance(other, Sandbox) and other.files.read("a") == "1"
    assert Sandbox.get_info(sandbox.sandbox_id).id == sandbox.get_info().sandbox_id
    assert Sandbox.kill(sandbox.sandbox_id) is True
    assert not other.is_running()
    with pytest.raises(paddock.PaddockError):
        Sandbox.connect(sandbox.sandbox_id)
    with pytest.raises(paddock.NotFoundException):
        Sandbox.connect("0" * 20)


def test_set_timeout_ends_it(mode):
    sandbox = Sandbox.create(timeout=600)
    assert sandbox.get_info().max_life_s == 600
    sandbox.set_timeout(1)
    deadline = time.monotonic() + seconds(30)
    while sandbox.is_running():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(paddock.SessionExpiredError):
        sandbox.commands.run("true")


def test_pause_stops_and_connect_resumes(sandbox):
    handle = sandbox.commands.run("while :; do echo x; sleep 0.05; done", background=True)
    assert sandbox.pause() is True
    assert not sandbox.is_running() and sandbox.get_info().state == "paused"
    assert Sandbox.connect(sandbox.sandbox_id).is_running()
    assert handle.kill() is True and handle.kill() is False


def test_for_thread_finds_it_again_and_does_not_end_it(mode, thread):
    with Sandbox.for_thread("ann", thread) as first:
        first.files.write("kept", "yes")
    with Sandbox.for_thread("ann", thread) as again:
        assert again.sandbox_id == first.sandbox_id and again.files.read("kept") == "yes"
        again.kill()
    fresh = Sandbox.for_thread("ann", thread)
    assert fresh.sandbox_id != first.sandbox_id
    fresh.kill()


def test_an_option_that_there_is_not(mode):
    with pytest.raises(paddock.UnsupportedError, match="volume_mounts"):
        Sandbox.create(volume_mounts={"/a": "b"})
    # The library gives no way out; a server names the members of the rules.
    wanted = paddock.UnsupportedError if mode == "local" else paddock.InvalidArgumentError
    with pytest.raises(wanted, match="network"):
        Sandbox.create(network={"allow_out": ["example.com"]})
    with Sandbox.create(secure=True, allow_internet_access=False) as sandbox:
        assert sandbox.is_running()


# ---- commands ----


def test_run_raises_when_it_fails(sandbox):
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.run("echo out; echo err >&2; exit 5")
    error = caught.value
    assert (error.exit_code, error.stdout, error.stderr) == (5, "out\n", "err\n")
    result = sandbox.commands.run("exit 5", check=False)
    assert result.exit_code == 5
    with pytest.raises(CommandExitException, match="SIGKILL"):
        sandbox.commands.run("kill -9 $$")


def test_run_times_out(sandbox):
    with pytest.raises(paddock.TimeoutException) as caught:
        sandbox.commands.run("echo a; sleep 60", timeout=seconds(1))
    assert caught.value.stdout == "a\n" and caught.value.code == "command_timeout"


def test_commands_do_not_change_the_next_one(sandbox, workspace):
    sandbox.commands.run("cd /tmp; export A=1")
    assert sandbox.commands.run("pwd; echo \"[$A]\"").stdout == f"{workspace}\n[]\n"
    assert sandbox.commands.run("pwd; echo $A", cwd="/tmp", envs={"A": "2"}).stdout == "/tmp\n2\n"


def test_a_command_as_root(sandbox):
    assert sandbox.commands.run("id -u", user="root").stdout == "0\n"


def test_run_tells_of_output(sandbox):
    out, err = [], []
    told = threading.Event()

    def go_on():
        assert told.wait(seconds(20))
        sandbox.files.write("told", "")

    helper = threading.Thread(target=go_on)
    helper.start()
    sandbox.commands.run("echo a; echo b >&2; until [ -e told ]; do sleep 0.02; done; echo c",
                         on_stdout=lambda text: (out.append(text), told.set()), on_stderr=err.append)
    helper.join()
    assert out == ["a\n", "c\n"] and err == ["b\n"]


def test_sixteen_megabytes_are_given_whole(sandbox):
    result = sandbox.commands.run("head -c 10000000 /dev/zero | tr '\\0' x")
    assert len(result.stdout) == 10000000


def test_background_with_input(sandbox):
    handle = sandbox.commands.run("cat; echo end >&2; exit 3", background=True, stdin=True)
    assert handle.pid in [p.pid for p in sandbox.commands.list()]
    handle.send_stdin("grüße\n")
    sandbox.commands.send_stdin(handle.pid, b"more\n")
    handle.close_stdin()
    with pytest.raises(CommandExitException) as caught:
        handle.wait()
    assert caught.value.stdout == "grüße\nmore\n" and caught.value.stderr == "end\n"
    assert handle.exit_code == 3
    assert handle.pid not in [p.pid for p in sandbox.commands.list()]


def test_a_background_command_is_followed_iterated_and_found_again(sandbox):
    handle = sandbox.commands.run("for i in 1 2 3; do echo $i; sleep 0.1; done", background=True)
    seen = []
    for out, err, pty in handle:
        assert err is None and pty is None
        seen.append(out)
        if len(seen) == 1:
            handle.disconnect()
            break
    assert handle.wait().stdout == "1\n2\n3\n"
    assert sandbox.commands.connect(handle.pid).wait().stdout == "1\n2\n3\n"
    assert sandbox.commands.kill(handle.pid) is False
    assert sandbox.commands.kill(4000000) is False


def test_a_background_command_has_no_time_out_unless_told(sandbox):
    handle = sandbox.commands.run("sleep 60", background=True, timeout=0.2)
    with pytest.raises(paddock.CommandTimeoutError):
        handle.wait()


def test_a_terminal(sandbox):
    handle = sandbox.pty.create(PtySize(rows=30, cols=100))
    shown = []
    reader = threading.Thread(target=lambda: handle.wait(on_pty=shown.append, check=False))
    reader.start()
    sandbox.pty.send_stdin(handle.pid, b"stty size; tty\n")
    wait_for(lambda: b"30 100" in b"".join(shown))
    sandbox.pty.resize(handle.pid, PtySize(rows=40, cols=120))
    sandbox.pty.send_stdin(handle.pid, b"stty size\n")
    wait_for(lambda: b"40 120" in b"".join(shown))
    assert sandbox.pty.kill(handle.pid) is True
    reader.join(seconds(20))
    assert not reader.is_alive() and b"/dev/pts/" in b"".join(shown)


def wait_for(condition):
    deadline = time.monotonic() + seconds(20)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---- files ----


def test_files(sandbox, workspace):
    info = sandbox.files.write("dir/ä.txt", "größe\n")
    assert info.path == f"{workspace}/dir/ä.txt" and info.type is FileType.FILE
    assert sandbox.files.read("dir/ä.txt") == "größe\n"
    assert sandbox.files.read("dir/ä.txt", format="bytes") == "größe\n".encode()
    assert b"".join(sandbox.files.read("dir/ä.txt", format="stream")) == "größe\n".encode()
    written = sandbox.files.write_files([{"path": "x/1", "data": b"\0\xff"},
                                         {"path": "x/2", "data": "two"}])
    assert [w.name for w in written] == ["1", "2"]
    assert sandbox.files.read("x/1", "bytes") == b"\0\xff"
    assert [e.path for e in sandbox.files.list(".", depth=2)] == [
        f"{workspace}/dir", f"{workspace}/dir/ä.txt", f"{workspace}/x", f"{workspace}/x/1",
        f"{workspace}/x/2"]
    entry = sandbox.files.get_info("x/2")
    assert (entry.size, entry.permissions) == (3, "rw-r--r--")
    assert entry.owner == "user" or contract.provider() == "local"
    assert abs(entry.modified_time.timestamp() - time.time()) < 3600
    assert sandbox.files.make_dir("new/dir") is True and sandbox.files.make_dir("new/dir") is False
    with pytest.raises(paddock.ConflictError):
        sandbox.files.make_dir("x/2")
    sandbox.files.rename("x/2", "x/1")
    assert sandbox.files.read("x/1") == "two" and not sandbox.files.exists("x/2")
    sandbox.files.copy("x", "y")
    assert sandbox.files.read("y/1") == "two"
    assert [m.path for m in sandbox.files.search("tw.", "x", mode="regex")] == [f"{workspace}/x/1"]
    assert sandbox.files.replace("two", "drei", "x")[0].replacements == 1
    assert sandbox.files.read("x/1") == "drei"
    sandbox.files.remove("x")
    assert not sandbox.files.exists("x")
    sandbox.commands.run("ln -s dir link")
    assert sandbox.files.get_info("link").symlink_target == "dir"


def test_an_empty_file_and_a_large_one(sandbox):
    sandbox.files.write("empty", "")
    assert sandbox.files.read("empty") == "" and sandbox.files.get_info("empty").size == 0
    data = bytes(range(256)) * 204800
    sandbox.files.write("large", data)
    assert sandbox.files.read("large", "bytes") == data


def test_a_stream_that_is_left_does_not_disturb_the_next_call(sandbox):
    sandbox.files.write("large", b"x" * (8 << 20))
    for _ in range(3):
        pieces = sandbox.files.read("large", "stream")
        assert len(next(pieces)) > 0
        pieces.close()
        assert sandbox.commands.run("echo fine").stdout == "fine\n"


def test_a_directory_is_watched(sandbox):
    sandbox.files.make_dir("w")
    with sandbox.files.watch_dir("w") as watch:
        sandbox.files.write("w/new", "1")
        seen = []
        wait_for(lambda: seen.extend(watch.get_new_events()) or
                 any(e.name == "new" for e in seen))
        sandbox.files.remove("w/new")
        wait_for(lambda: seen.extend(watch.get_new_events()) or
                 any(e.type is FilesystemEventType.REMOVE and e.name == "new" for e in seen))
    with pytest.raises(paddock.NotFoundError):
        sandbox.files.watch_dir("nonesuch")


# ---- git ----


def test_git(sandbox, workspace):
    git = sandbox.git
    git.init("origin.git", bare=True, initial_branch="main")
    git.configure_user("Ann", "ann@example.com")
    assert git.get_config("user.name") == "Ann" and git.get_config("no.such") is None
    git.clone(f"{workspace}/origin.git", "work")
    sandbox.files.write("work/ä b.txt", "one\n")
    status = git.status("work")
    assert not status.is_clean and status.file_status[0].name == "ä b.txt"
    assert not status.file_status[0].staged
    git.add("work")
    assert git.status("work").file_status[0].staged
    git.commit("work", "first", author_name="Bob", author_email="bob@example.com")
    assert git.status("work").is_clean
    branch = git.status("work").current_branch
    assert "Bob" in sandbox.commands.run("git -C work log").stdout
    git.push("work")
    assert git.status("work").upstream == f"origin/{branch}"
    git.create_branch("work", "topic")
    assert git.branches("work").current_branch == "topic"
    sandbox.files.write("work/ä b.txt", "two\n")
    assert "+two" in git.diff("work")
    git.restore("work", ["ä b.txt"])
    assert git.status("work").is_clean
    git.checkout_branch("work", branch)
    git.delete_branch("work", "topic")
    assert git.branches("work").branches == [branch]
    assert git.remote_get("work", "origin") == f"{workspace}/origin.git"
    git.remote_add("work", "origin", f"{workspace}/elsewhere", overwrite=True)
    assert git.remote_get("work", "origin") == f"{workspace}/elsewhere"
    with pytest.raises(CommandExitException, match="not a git repository"):
        git.status("/tmp")


def test_git_between_two_clones(sandbox, workspace):
    """What one pushes the other pulls; changes are taken back in each of the ways there are."""
    git = sandbox.git
    git.configure_user("Ann", "ann@example.com")
    git.init("origin.git", bare=True, initial_branch="main")
    git.clone(f"{workspace}/origin.git", "one")
    git.set_config("user.name", "Cleo", scope="local", path="one")
    assert git.get_config("user.name", scope="local", path="one") == "Cleo"
    assert git.get_config("user.name") == "Ann"
    git.commit("one", "empty", allow_empty=True)
    sandbox.files.write("one/a", "1\n")
    sandbox.files.write("one/b", "1\n")
    git.add("one", ["a"])
    staged = {f.name: f.staged for f in git.status("one").file_status}
    assert staged == {"a": True, "b": False}
    assert "+1" in git.diff("one", staged=True) and git.diff("one") == ""
    git.restore("one", ["a"], staged=True)
    assert not any(f.staged for f in git.status("one").file_status)
    git.add("one")
    git.commit("one", "two files")
    git.push("one", "origin", "main")
    git.clone(f"{workspace}/origin.git", "two", branch="main")
    assert sandbox.commands.run("git -C two log --format='%an %s'").stdout == (
        "Cleo two files\nCleo empty\n")

    sandbox.files.write("one/a", "2\n")
    git.add("one")
    git.commit("one", "changed")
    git.push("one")
    assert git.status("two").is_clean
    git.pull("two")
    assert sandbox.files.read("two/a") == "2\n"
    git.reset("two", mode="hard", target="HEAD~1")
    assert sandbox.files.read("two/a") == "1\n" and git.status("two").behind == 1
    git.pull("two", "origin", "main")
    assert git.status("two").behind == 0

    git.create_branch("two", "topic")
    git.commit("two", "not merged", allow_empty=True)
    git.checkout_branch("two", "main")
    with pytest.raises(CommandExitException, match="not fully merged"):
        git.delete_branch("two", "topic")
    git.delete_branch("two", "topic", force=True)
    assert git.branches("two").branches == ["main"]

    git.remote_add("two", "other", f"{workspace}/one", fetch=True)
    assert sandbox.commands.run("git -C two branch -r --list 'other/*'").stdout.split() == ["other/main"]
    assert git.remote_get("two", "nobody") is None
    with pytest.raises(CommandExitException):
        git.clone(f"{workspace}/nothing.git", "three")
    with pytest.raises(paddock.InvalidArgumentError, match="scope"):
        git.set_config("a.b", "c", scope="galaxy")
    with pytest.raises(paddock.InvalidArgumentError, match="path"):
        git.get_config("a.b", scope="local")


# ---- the rest ----


def test_a_port_is_reached_by_url_and_by_host(sandbox, server, mode):
    sandbox.files.write("index.html", "<p>hello</p>")
    sandbox.commands.run("python3 -m http.server 8000", background=True)
    url = sandbox.get_url(8000, expires_in=60)
    page = []

    def answers():
        try:
            page.append(urllib.request.urlopen(url, timeout=seconds(10)).read())
        except OSError:
            return False
        return True

    wait_for(answers)
    assert page[0] == b"<p>hello</p>"
    host = sandbox.get_host(8000)
    request = urllib.request.Request(f"http://{host}/index.html")
    if mode == "remote":
        request.add_header("X-API-Key", server.key)
    assert urllib.request.urlopen(request, timeout=seconds(10)).read() == b"<p>hello</p>"


def test_variables_of_the_sandbox(sandbox):
    sandbox.set_env({"A": "1", "B": "2"}, cwd="/tmp")
    assert sandbox.commands.run("echo $A; pwd").stdout == "1\n/tmp\n"
    env = sandbox.set_env({"A": None})
    assert "A" not in env.env and env.env["B"] == "2" and sandbox.get_env().cwd == "/tmp"



def test_usage(sandbox):
    assert sandbox.get_metrics()[0].memory_bytes > 0
