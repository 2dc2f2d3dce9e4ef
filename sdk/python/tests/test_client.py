"""SandboxClient."""

import io
import threading
import time

import pytest
from paddock_testing.run import seconds

import paddock
from paddock import SandboxClient


def test_a_session_is_made_once_and_found_again(client, thread):
    first = client.get_or_create_session("ann", thread, timeout_minutes=5)
    assert first["status"] == "created" and first.user_id == "ann"
    again = client.get_or_create_session(user_id="ann", thread_id=thread)
    assert again["session_id"] == first["session_id"] and again.status == "existing"
    assert [s.id for s in client.list_sessions("ann") if s.thread_id == thread] == [first.session_id]
    assert client.close_session() is True
    assert client.get_or_create_session("ann", thread).session_id != first.session_id
    assert client.close_session() is True


def test_the_time_out_is_for_idling_and_in_minutes(client, thread):
    made = client.get_or_create_session("ann", thread, timeout_minutes=7)
    found = [s for s in client.list_sessions() if s.id == made.session_id]
    assert found[0].idle_timeout_s == 420
    client.close_session()


def test_execute_tells_status_and_both_outputs(client):
    result = client.execute("echo out; echo err >&2; exit 3", timeout=30)
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (3, "out\n", "err\n")
    assert result["execution_time_ms"] > 0
    assert result.get("stdout") == result.stdout and result.get("nonesuch", 1) == 1
    assert "stdout" in result and dict(result)["exit_code"] == 3


def test_directory_and_variables_hold_for_the_next_command(client):
    begun = client.execute("pwd").stdout.strip()
    client.execute("mkdir -p d && cd d && export WORD=paddock")
    assert client.execute('echo "$PWD $WORD"').stdout == f"{begun}/d paddock\n"


def test_a_program_is_run_as_it_is(client):
    assert client.execute(["printf", "%s|", "a b", "$HOME", "é"]).stdout == "a b|$HOME|é|"


def test_a_command_gets_input_directory_and_variables(client):
    result = client.execute("cat; pwd; echo $A", stdin="in\n", cwd="/tmp", env={"A": "ü"})
    assert result.stdout == "in\n/tmp\nü\n"
    assert client.execute("cat", stdin=b"\xff\x00").stdout == "\ufffd\x00"


def test_a_time_out_ends_the_command(client):
    start = time.monotonic()
    result = client.execute("echo begun; sleep 60", timeout=seconds(1))
    assert time.monotonic() - start < seconds(20)
    assert result.timed_out and result.exit_code == 124 and result.stdout == "begun\n"


def test_a_signal_is_told_as_a_shell_does(client):
    assert client.execute("kill -9 $$").exit_code == 137


def test_output_is_told_as_it_comes(client):
    told = []
    session = client.execute("true").session_id
    first = threading.Event()

    def go_on():
        assert first.wait(seconds(20))
        paddock.Sandbox(session).files.write("told", "")

    helper = threading.Thread(target=go_on)
    helper.start()
    result = client.execute(
        "printf 'a\\303'; until [ -e told ]; do sleep 0.02; done; printf '\\251b'; echo e >&2",
        timeout=seconds(20), on_stdout=lambda text: (told.append(text), first.set()))
    helper.join()
    assert result.stdout == "aéb" and result.stderr == "e\n"
    # The character that was cut by the pause is not broken.
    assert told[0] == "a" and "".join(told) == "aéb"


def test_much_output_keeps_head_and_tail(client):
    for callback in (None, lambda text: None):
        result = client.execute("seq 1 400000", on_stdout=callback)
        assert result.stdout_truncated
        assert result.stdout.startswith("1\n2\n") and result.stdout.endswith("\n400000\n")
        assert len(result.stdout) < 1100000


def test_files_go_in_and_out(client, tmp_path):
    source = tmp_path / "a.bin"
    source.write_bytes(bytes(range(256)))
    assert client.upload(str(source), "in/a.bin").size == 256
    assert client.upload(source, "in/b.bin").path == client.execute("pwd").stdout.strip() + "/in/b.bin"
    client.upload("grüße 🐎".encode(), "in/naïve 文件.txt")
    client.upload(io.BytesIO(b"open file"), "/workspace/x")
    assert client.download("in/a.bin") == bytes(range(256))
    assert client.download("in/naïve 文件.txt").decode() == "grüße 🐎"
    assert client.download("in/b.bin", tmp_path / "out") == b""
    assert (tmp_path / "out").read_bytes() == bytes(range(256))
    assert [e.name for e in client.list("in")] == ["a.bin", "b.bin", "naïve 文件.txt"]
    assert client.execute("cat x 'in/naïve 文件.txt'").stdout == "open filegrüße 🐎"


def test_a_download_that_fails_leaves_nothing(client, tmp_path):
    (tmp_path / "out").write_text("before")
    with pytest.raises(paddock.NotFoundError):
        client.download("nonesuch", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "before"


def test_fifty_megabytes_there_and_back(client, tmp_path):
    block = bytes(range(256)) * 4096
    source = tmp_path / "big"
    with open(source, "wb") as f:
        for _ in range(50):
            f.write(block)
    assert client.upload(source, "big").size == 50 * len(block)
    client.download("big", tmp_path / "back")
    assert source.read_bytes() == (tmp_path / "back").read_bytes()


def test_twenty_threads_share_one_client(client):
    failures = []

    def work(number):
        try:
            user = f"user-{number % 10}"
            made = client.get_or_create_session(user, "threads")
            for turn in range(5):
                out = client.execute(f"echo {number}.{turn} >> log.{number}; tail -n 1 log.{number}")
                assert out.session_id == made.session_id
                assert out.stdout == f"{number}.{turn}\n", out
            assert client.download(f"log.{number}").count(b"\n") == 5
        except BaseException as error:
            failures.append((number, error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(seconds(60))
    assert not failures, failures
    sessions = [s for s in client.list_sessions() if s.thread_id == "threads"]
    assert len(sessions) == 10
    # This thread has chosen none of them.
    with pytest.raises(paddock.InvalidArgumentError, match="session_id"):
        client.execute("true")
    for s in sessions:
        assert client.execute("true", session_id=s.id).exit_code == 0
        client.close_session(s.id)


def test_a_thread_that_chose_no_session_uses_the_only_one(client, thread):
    made = client.get_or_create_session("ann", thread)
    seen = []
    t = threading.Thread(target=lambda: seen.append(client.execute("true").session_id))
    t.start()
    t.join(seconds(30))
    assert seen == [made.session_id]
    client.close_session()


def test_without_a_session_the_client_makes_its_own_and_ends_it(mode):
    with SandboxClient() as client:
        own = client.execute("true").session_id
        assert client.execute("true").session_id == own
        assert own in [s.id for s in client.list_sessions()]
    assert own not in [s.id for s in SandboxClient().list_sessions()]


def expire(client, thread):
    """A session that has expired, with the client holding it."""
    made = client.get_or_create_session("ann", thread)
    client.execute("echo old > file")
    paddock.Sandbox(made.session_id).set_timeout(1)
    deadline = time.monotonic() + seconds(30)
    while any(s.id == made.session_id for s in client.list_sessions("ann")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return made.session_id


def test_an_expired_session_is_an_error_that_says_so(client, thread):
    gone = expire(client, thread)
    with pytest.raises(paddock.SessionExpiredError) as caught:
        client.execute("true")
    error = caught.value
    assert error.code == "session_expired" and gone in error.message and "auto_retry" in error.remedy
    assert not error.retryable and isinstance(error, paddock.SessionGoneError)
    with pytest.raises(paddock.SessionExpiredError):
        client.get_or_create_session("ann", thread)


def test_auto_retry_goes_on_in_a_fresh_session(client, thread):
    gone = expire(client, thread)
    result = client.execute("ls file 2>&1; echo $?", auto_retry=True)
    assert result.recreated and result.session_id != gone and result.stdout.endswith("2\n")
    after = client.execute("true", auto_retry=True)
    assert after.session_id == result.session_id and not after.recreated
    assert client.get_or_create_session("ann", thread).status == "existing"
    client.close_session()


def test_get_or_create_with_auto_retry_tells_what_it_replaced(client, thread):
    gone = expire(client, thread)
    again = client.get_or_create_session("ann", thread, auto_retry=True)
    assert again.status == "recreated" and again.replaces == gone
    client.close_session()


def test_many_threads_that_lost_a_session_find_the_same_new_one(client, thread):
    expire(client, thread)
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(
        client.execute("true", auto_retry=True).session_id)) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(seconds(60))
    assert len(seen) == 8 and len(set(seen)) == 1
    client.close_session(seen[0])


def test_over_the_unix_socket(server):
    url = f"unix:{server.run_dir}/paddock.sock"
    with SandboxClient("remote", url, server.key) as client:
        assert client.execute("echo hi").stdout == "hi\n"
        assert client.upload(b"x" * 200000, "f").size == 200000
        assert len(client.download("f")) == 200000


def test_the_mode_is_checked(use, server, monkeypatch):
    with pytest.raises(ValueError, match="docker.*local, remote"):
        SandboxClient(mode="docker")
    monkeypatch.setenv("SANDBOX_MODE", "nonesuch")
    with pytest.raises(ValueError, match="nonesuch.*SANDBOX_MODE.*local, remote"):
        SandboxClient()
    monkeypatch.delenv("SANDBOX_MODE")
    monkeypatch.setenv("SANDBOX_URL", server.url)
    monkeypatch.setenv("PADDOCK_API_KEY", server.key)
    with SandboxClient() as client:
        assert client.mode == "remote" and client.execute("echo hi").stdout == "hi\n"
    with SandboxClient(mode="remote", server_url=server.url, api_key=server.key) as client:
        assert client.execute("echo hi").stdout == "hi\n"
