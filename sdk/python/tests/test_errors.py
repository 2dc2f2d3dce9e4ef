"""Errors have the server's code and message, and a remedy."""

import pytest

import paddock
from paddock import errors


def test_a_file_that_is_not_there(sandbox):
    with pytest.raises(paddock.NotFoundError) as caught:
        sandbox.files.read("nonesuch")
    error = caught.value
    assert error.code == "not_found" and "/nonesuch" in error.message and error.remedy
    assert not error.retryable and error.code in str(error)


def test_a_wrong_argument_is_named(sandbox):
    with pytest.raises(paddock.InvalidArgumentError) as caught:
        sandbox.commands.run("true", timeout=-1)
    assert caught.value.details["field"] == "timeout_s" and isinstance(caught.value, ValueError)


def test_a_command_that_does_not_exist(client):
    for callback in (None, print):
        with pytest.raises(paddock.CommandNotStartedError) as caught:
            client.execute(["nonesuch"], on_stdout=callback)
        assert caught.value.code == "no_command" and "install" in caught.value.remedy


def test_a_paused_sandbox(sandbox):
    sandbox.pause()
    with pytest.raises(paddock.PausedError) as caught:
        sandbox.commands.run("true")
    assert caught.value.code == "paused" and "resume" in caught.value.remedy
    sandbox.resume()


def test_a_policy(mode):
    with paddock.Sandbox.create(policy={"mode": "deny", "commands": ["curl"]}) as sandbox:
        with pytest.raises(paddock.PolicyError, match="curl"):
            sandbox.commands.run("curl x")


def test_a_file_that_the_user_may_not_write(sandbox):
    with pytest.raises(paddock.DeniedError):
        sandbox.files.write("/etc/hostname", "x")


def test_a_full_disk(mode):
    with paddock.Sandbox.create(limits={"disk_bytes": 20 << 20}) as sandbox:
        with pytest.raises(paddock.NoSpaceError):
            sandbox.files.write("big", b"x" * (64 << 20))
        assert not sandbox.files.exists("big")


def test_an_unknown_sandbox(mode):
    box = paddock.Sandbox("0" * 20)
    with pytest.raises(paddock.NotFoundError):
        box.commands.run("true")
    with pytest.raises(paddock.NotFoundError):
        box.files.exists("x")
    assert box.kill() is False and box.is_running() is False


def test_a_wrong_key(server):
    with pytest.raises(paddock.AuthenticationError) as caught:
        paddock.SandboxClient("remote", server.url, "e2b_" + "0" * 40).execute("true")
    assert caught.value.status == 401 and "PADDOCK_API_KEY" in caught.value.remedy
    assert caught.value.request_id


@pytest.mark.parametrize("key", ["e2b_\r\nX: y", "schlüssel"])
def test_no_key(server, key):
    with pytest.raises(paddock.InvalidArgumentError, match="api_key"):
        paddock.SandboxClient("remote", server.url, key)


def test_no_server(tmp_path):
    for url in ("http://127.0.0.1:1", f"unix:{tmp_path}/none.sock"):
        with pytest.raises(paddock.TransportError) as caught:
            paddock.SandboxClient("remote", url).execute("true")
        assert caught.value.retryable and url in str(caught.value)
        assert "PADDOCK_URL" in caught.value.remedy


@pytest.mark.parametrize("url", ["ftp://x", "http://", "nonsense", "http://h:x"])
def test_no_url(url):
    with pytest.raises(paddock.InvalidArgumentError, match="server_url"):
        paddock.SandboxClient("remote", url)


def test_every_code_of_the_server_has_a_class_and_a_remedy():
    from paddock_testing.server import CODES

    assert CODES <= set(errors._CLASSES)
    for code in CODES:
        error = errors.error_of(code, "text")
        assert error.code == code and error.remedy
    assert errors.error_of("capacity", "x", retry_after=3).remedy == "try again after 3 s"
    assert type(errors.error_of("a_new_one", "x")) is paddock.PaddockError
