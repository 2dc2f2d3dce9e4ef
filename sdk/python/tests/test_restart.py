"""The server is killed between calls, and during them; clients go on."""

import os
import signal
import threading
import time

import pytest
from paddock_testing.run import seconds, wait_for
from paddock_testing.server import Server

import paddock
from conftest import SERVER_ENV


class Mortal(Server):
    """Killed and started again, as systemd would; in another thread, so that clients see it gone."""

    starter = None

    def kill(self):
        self.join()
        self.expect_end()
        os.kill(self.daemon(), signal.SIGKILL)
        self.wait()
        self.starter = threading.Thread(target=self.start)
        self.starter.start()

    def join(self):
        if self.starter:
            self.starter.join()


@pytest.fixture(scope="module")
def mortal():
    """A server of its own: what is done to it must not disturb other tests."""
    with Mortal(env=SERVER_ENV) as s:
        yield s
        s.join()


@pytest.fixture
def kill(mortal, use, monkeypatch):
    # On a busy machine a server takes longer to start.
    for module in ("_http", "_remote"):
        monkeypatch.setattr(f"paddock.{module}.RESTART_S", seconds(15.0))
    use(mortal)
    yield mortal.kill
    mortal.join()


def test_calls_go_on_after_a_kill(kill, thread):
    client = paddock.SandboxClient()
    made = client.get_or_create_session("ann", thread)
    client.execute("cd /tmp; export A=1; echo kept > file")
    kill()
    # No auto_retry: nothing was under way, so nothing is lost.
    assert client.execute("echo $PWD $A $(cat file)").stdout == "/tmp 1 kept\n"
    assert client.get_or_create_session("ann", thread).session_id == made.session_id
    client.close_session()


def test_every_kind_of_call_finds_the_new_server(kill):
    with paddock.Sandbox.create() as sandbox:
        for call in (lambda: sandbox.files.write("a", "1"),
                     lambda: sandbox.files.read("a"),
                     lambda: sandbox.commands.run("true"),
                     lambda: sandbox.get_info(),
                     lambda: paddock.Sandbox.list()):
            kill()
            call()


def test_a_command_with_auto_retry_runs_once_over_a_kill(kill, thread):
    client = paddock.SandboxClient()
    client.get_or_create_session("ann", thread)
    killer = threading.Timer(0.5, kill)
    killer.start()
    result = client.execute("echo run >> runs; sleep 1.5; cat runs", auto_retry=True)
    killer.join()
    assert result.exit_code == 0 and result.stdout == "run\n" and not result.recreated
    client.close_session()


def test_a_stream_with_auto_retry_goes_on_where_it_broke_off(kill, thread):
    client = paddock.SandboxClient()
    client.get_or_create_session("ann", thread)
    told = []
    killer = threading.Timer(0.5, kill)
    killer.start()
    result = client.execute("for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done", auto_retry=True,
                            on_stdout=told.append)
    killer.join()
    assert "".join(told) == result.stdout == "1\n2\n3\n4\n5\n6\n"
    client.close_session()


def test_a_command_without_auto_retry_says_that_it_was_lost(kill):
    with paddock.SandboxClient() as client:
        sandbox = paddock.Sandbox(client.execute("true").session_id)

        def kill_when_it_runs():
            wait_for(lambda: sandbox.files.exists("begun"), 20, "it runs")
            kill()

        killer = threading.Thread(target=kill_when_it_runs)
        killer.start()
        with pytest.raises(paddock.TransportError) as caught:
            client.execute("touch begun; sleep 300")
        killer.join()
        assert caught.value.code == "connection"
        assert client.execute("echo fine").stdout == "fine\n"


def test_variables_of_code_survive(kill, thread):
    c = paddock.get_sandbox_coordinator()
    c.set_request_context(thread)
    assert c.execute_code("x = 41")["success"]
    kill()
    assert c.execute_code("print(x + 1)")["output"] == "42\n"
    killer = threading.Timer(0.5, kill)
    killer.start()
    during = c.execute_code("import time\nfor i in range(5):\n    print(i)\n    time.sleep(0.3)\n"
                            "x += 1")
    killer.join()
    assert during["success"] and during["output"] == "0\n1\n2\n3\n4\n", during
    last = c.execute_code("print(x)")
    assert last["output"] == "42\n" and not last.state_lost
    c.cleanup_session(thread)


def test_a_background_command_is_followed_over_a_kill(kill):
    with paddock.Sandbox.create() as sandbox:
        handle = sandbox.commands.run("for i in 1 2 3 4 5; do echo $i; sleep 0.3; done",
                                      background=True)
        killer = threading.Timer(0.5, kill)
        killer.start()
        assert handle.wait().stdout == "1\n2\n3\n4\n5\n"
        killer.join()


def test_a_server_that_stays_away_is_an_error(use, monkeypatch):
    monkeypatch.setattr("paddock._http.RESTART_S", 1.0)
    with Server(env=SERVER_ENV) as away:
        use(away)
        client = paddock.SandboxClient()
        client.execute("true")
        away.stop()
        start = time.monotonic()
        with pytest.raises(paddock.TransportError):
            client.execute("true")
        assert 0.4 < time.monotonic() - start < seconds(15)
        away.start()
        assert client.execute("echo back").stdout == "back\n"
        client.close()
