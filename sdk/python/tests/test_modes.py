"""Execution modes per command, moves between providers, and images: by a server that has `local`
beside the jail, and by the library, which moves nothing."""

import asyncio

import pytest
from conftest import SERVER_ENV, Server

import paddock
from paddock import AsyncSandbox, Sandbox, SandboxClient, SandboxOptions


@pytest.fixture(scope="module")
def both():
    with Server({"providers": "jail,local", "local_allowed": "on"}, SERVER_ENV) as s:
        yield s


@pytest.fixture
def there(both, use):
    use(both)


def test_a_command_has_a_mode_of_its_own(there):
    with SandboxClient() as client:
        client.get_or_create_session("u", "modes", options=SandboxOptions(execution_mode="auto"))
        plain = client.execute("echo kept > f; export K=9", execution_mode="local")
        assert (plain.mode, plain.provider, plain.isolation) == ("local", "local", "none")
        done = client.execute("cat f; echo $K", execution_mode="sandbox")
        assert done.stdout == "kept\n9\n"
        assert (done.mode, done.provider, done.isolation) == ("sandbox", "jail", "full")
        assert done.reason
        with pytest.raises(paddock.InvalidArgumentError, match="does not leave it"):
            client.execute("cat f", execution_mode="local")
        with pytest.raises(paddock.InvalidArgumentError, match="nonsense.*local.*sandbox.*auto"):
            client.execute("true", execution_mode="nonsense")
        client.close_session()


def test_commands_of_a_sandbox_have_modes(there):
    with Sandbox.create(execution_mode="auto") as sandbox:
        where = "cat /proc/self/uid_map"
        outside = sandbox.commands.run(where, execution_mode="local").stdout
        assert sandbox.get_info().provider == "local"
        inside = sandbox.commands.run(where, execution_mode="sandbox").stdout
        assert sandbox.get_info().provider == "jail" and inside != outside
        handle = sandbox.commands.run(where, background=True, execution_mode="sandbox")
        assert handle.wait().stdout == inside


def test_a_sandbox_moves(there):
    with Sandbox.create(provider="jail") as sandbox:
        sandbox.files.write("f", "moved")
        told = sandbox.move("local")
        assert told.provider == "local" and told.isolation == "none"
        assert sandbox.files.read("f") == "moved"
        sleeper = sandbox.commands.run("sleep 600", background=True)
        with pytest.raises(paddock.ConflictError, match="give_up"):
            sandbox.move("jail")
        assert Sandbox.move(sandbox.sandbox_id, "jail", give_up=True).provider == "jail"
        assert sandbox.files.read("f") == "moved"
        assert sleeper.wait(check=False).exit_code != 0
        with pytest.raises(paddock.InvalidArgumentError, match="'nowhere'.*jail.*local"):
            sandbox.move("nowhere")


def test_a_sandbox_moves_for_asyncio(there):
    async def run():
        async with await AsyncSandbox.create(provider="jail") as sandbox:
            assert (await sandbox.move("local")).provider == "local"
            done = await sandbox.commands.run("echo here", execution_mode="sandbox")
            assert done.stdout == "here\n"
            assert (await sandbox.get_info()).provider == "jail"
            told = await AsyncSandbox.move(sandbox.sandbox_id, "local")
            assert told.isolation == "none"
    asyncio.run(run())


def test_an_image_needs_a_provider_that_takes_it(there):
    with pytest.raises(paddock.PaddockError, match="image"):
        Sandbox.create(image="debian:12")
    with pytest.raises(paddock.PaddockError, match="image"):
        SandboxClient().get_or_create_session("u", "image", options=SandboxOptions(image="x"))


def test_the_library_moves_nothing(monkeypatch):
    monkeypatch.setenv("SANDBOX_MODE", "local")
    with Sandbox.create() as sandbox:
        assert sandbox.commands.run("echo a", execution_mode="sandbox").stdout == "a\n"
        assert sandbox.commands.run("echo a", execution_mode="auto").stdout == "a\n"
        with pytest.raises(paddock.UnsupportedError, match="'full'.*'local'"):
            sandbox.commands.run("echo a", execution_mode="local")
        with pytest.raises(ValueError, match="nonsense.*local, sandbox, auto"):
            sandbox.commands.run("echo a", background=True, execution_mode="nonsense")
        with pytest.raises(paddock.UnsupportedError, match="'jail'"):
            sandbox.move("jail")
    with pytest.raises(paddock.UnsupportedError, match="'debian:12'"):
        Sandbox.create(image="debian:12")
    with pytest.raises(paddock.UnsupportedError, match="git_url"):
        Sandbox.create(git_url="https://git.example/a/b")
