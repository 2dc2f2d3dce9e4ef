"""What selects a sandbox: the environment with its older names, the provider classes, create_sandbox."""

import asyncio
import contextlib
import logging
from urllib.parse import quote

import pytest
from conftest import CONFIGURED
from paddock_testing import contract

import paddock
from paddock._selection import murmur3, select, share_of

FLAG = "USE_CLOUDRUN_JOBS_SANDBOX"
PERCENTAGE = "CLOUDRUN_JOBS_ROLLOUT_PERCENTAGE"


# ---- where ----


def test_what_is_selected_and_why(monkeypatch):
    assert paddock.get_sandbox() is paddock.LocalSandbox
    info = paddock.get_sandbox_info()
    assert info["implementation"] == "LocalSandbox" and info["feature_flag_enabled"] is False
    assert "SANDBOX_MODE" in info["reason"] and info["config"] == {"mode": "local"}
    monkeypatch.setenv("SANDBOX_URL", "http://h:1")
    monkeypatch.setenv("PADDOCK_API_KEY", "e2b_secret")
    info = paddock.get_sandbox_info()
    assert paddock.get_sandbox() is paddock.RemoteSandbox
    assert info["implementation"] == "RemoteSandbox" and info["feature_flag_enabled"] is False
    assert info["config"]["server_url"] == "http://h:1" and "SANDBOX_URL" in info["reason"]
    assert "e2b_secret" not in repr(info)
    monkeypatch.setenv("SANDBOX_MODE", "local")
    assert paddock.get_sandbox() is paddock.LocalSandbox
    monkeypatch.setenv("SANDBOX_MODE", "nonsense")
    with pytest.raises(ValueError, match="'nonsense'.*SANDBOX_MODE.*local, remote"):
        paddock.get_sandbox()


def test_the_selected_class_works(mode):
    with paddock.get_sandbox().create() as sandbox:
        assert type(sandbox) is paddock.get_sandbox()
        assert sandbox.commands.run("echo hi").stdout == "hi\n"


# ---- which provider ----


@pytest.mark.parametrize("variable", ["SANDBOX_MODE", "SANDBOX_PROVIDER"])
@pytest.mark.parametrize("name, chosen", [
    ("jail", paddock.JailSandbox), ("docker", paddock.DockerSandbox),
    ("podman", paddock.PodmanSandbox), ("kubernetes", paddock.KubernetesSandbox),
    ("fargate", paddock.FargateSandbox), ("cloudrun", paddock.CloudRunJobsSandbox),
    ("e2b", paddock.E2BSandbox), ("daytona", paddock.DaytonaSandbox)])
def test_the_environment_names_a_provider(monkeypatch, variable, name, chosen):
    monkeypatch.setenv(variable, name.upper())
    assert paddock.get_sandbox() is chosen
    info = paddock.get_sandbox_info()
    assert info["implementation"] == chosen.__name__ and info["config"]["provider"] == name
    assert variable in info["reason"]


def test_the_order_is_that_of_the_server():
    both = {"SANDBOX_MODE": "docker", "SANDBOX_PROVIDER": "e2b", "STIGMER_EXECUTION_MODE": "auto"}
    assert select(env=both).provider == "docker"
    assert select(env={**both, "SANDBOX_MODE": "remote"}).provider == "e2b"
    assert select(env={"STIGMER_EXECUTION_MODE": "auto"}).execution_mode == "auto"
    assert select(env={"SANDBOX_MODE": "auto", "SANDBOX_PROVIDER": "e2b"}).provider is None


@pytest.mark.parametrize("name, value, valid", [
    ("SANDBOX_PROVIDER", "dokcer", "docker"), ("STIGMER_EXECUTION_MODE", "host", "local, sandbox, auto"),
    (FLAG, "maybe", "true nor false"), (PERCENTAGE, "101", "0 to 100"), (PERCENTAGE, "x", "0 to 100")])
def test_a_wrong_value_is_an_error_with_the_valid_ones(name, value, valid):
    with pytest.raises(ValueError, match=f"'{value}'.*{valid}"):
        select(env={name: value})


def test_sandboxes_of_a_provider(mode):
    with paddock.JailSandbox.create() as sandbox:
        assert type(sandbox) is paddock.JailSandbox
        assert sandbox.get_info().provider == "jail"
        assert sandbox.commands.run("echo hi").stdout == "hi\n"
    with pytest.raises(paddock.InvalidArgumentError, match=f"'e2b'.*{CONFIGURED}"):
        paddock.E2BSandbox.create()


def test_every_sandbox_follows_the_environment(mode, monkeypatch):
    monkeypatch.setenv("SANDBOX_PROVIDER", "daytona")
    with pytest.raises(paddock.InvalidArgumentError, match=f"'daytona'.*{CONFIGURED}"):
        paddock.Sandbox.create()
    with pytest.raises(paddock.InvalidArgumentError, match=f"'daytona'.*{CONFIGURED}"):
        paddock.SandboxClient().get_or_create_session("ann", "chat")
    with paddock.Sandbox.create(provider="auto") as sandbox:
        assert sandbox.get_info().provider == contract.provider()


def test_a_class_without_an_id_is_asynchronous(mode):
    async def main():
        sandbox = paddock.JailSandbox()
        await sandbox.create(template="base")
        assert (await sandbox.run_command("echo hi")).stdout == "hi\n"
        assert (await sandbox.execute("print(1)")).output == "1\n"
        assert await sandbox.delete()
        with pytest.raises(paddock.InvalidArgumentError, match=f"'e2b'.*{CONFIGURED}"):
            await paddock.E2BSandbox().create()
    asyncio.run(main())


# ---- the flag ----


def test_the_hash_is_that_of_the_server():
    assert murmur3(b"gr1:123") == 538421172 and murmur3(b"groupX:999") == 3843606124
    assert murmur3(b"sbx.provider:sess-1") == 1659983394
    assert [share_of("gr1", "123"), share_of("groupX", "999")] == [1172, 6124]


def test_the_server_has_the_same_buckets(server):
    """An admin's flag of that name: the buckets that the server tells are those of the package."""
    admin = server.client(server.run("key", "create", "--admin").stdout.strip())
    anybody = server.client()
    rules = {"flags": [{"name": FLAG, "provider": "jail", "percentage": 12.5}]}
    assert admin.put("/v1/router", json=rules).status == 200
    try:
        for user in ("ann", "bob", "Jörg", "x" * 100):
            told = anybody.get(f"/v1/route?explain=true&user_id={quote(user)}").json()
            assert any(f"bucket {share_of(FLAG, user)} of 10000" in line
                       for line in told["steps"]), told
    finally:
        assert admin.put("/v1/router", json={}).status == 200
        admin.close()
        anybody.close()


def test_the_flag_needs_a_project(monkeypatch, caplog):
    monkeypatch.setenv("PADDOCK_URL", "http://h:1")
    monkeypatch.setenv(FLAG, "true")
    info = paddock.get_sandbox_info()
    assert info["implementation"] == "RemoteSandbox" and info["feature_flag_enabled"] is True
    assert "SANDBOX_GCP_PROJECT is not set" in paddock.get_sandbox_info()["reason"]
    monkeypatch.setenv("SANDBOX_GCP_PROJECT", "p")
    with caplog.at_level(logging.INFO, "paddock"):
        assert paddock.get_sandbox() is paddock.CloudRunJobsSandbox
    assert "Sandbox selection: CloudRunJobsSandbox" in caplog.text
    info = paddock.get_sandbox_info()
    assert info["config"]["project_id"] == "p" and info["config"]["region"] == "us-central1"
    monkeypatch.setenv(FLAG, "off")
    assert paddock.get_sandbox() is paddock.RemoteSandbox


def test_the_percentage_goes_by_the_user():
    env = {FLAG: "1", "SANDBOX_GCP_PROJECT": "p", PERCENTAGE: "12.5"}
    users = [f"user-{n}" for n in range(4000)]
    inside = {u for u in users if select(u, env).provider == "cloudrun"}
    assert inside == {u for u in users if share_of(FLAG, u) < 1250}
    assert 400 < len(inside) < 600
    more = {u for u in users if select(u, {**env, PERCENTAGE: "40"}).provider == "cloudrun"}
    assert inside < more
    assert "12.5 %" in select(sorted(set(users) - inside)[0], env).reason
    assert select("x", {**env, PERCENTAGE: "0"}).provider is None


# ---- create_sandbox ----


def test_create_sandbox(mode):
    async def main():
        sandbox = await paddock.create_sandbox(provider="jail")
        sandbox_id = await sandbox.create(template="base", timeout=3600)
        assert sandbox_id == sandbox.sandbox_id
        with pytest.raises(paddock.ConflictError):
            await sandbox.create()
        result = await sandbox.run_command("cd /tmp; echo hi; exit 3")
        assert result["exit_code"] == 3 and result["stdout"] == "hi\n"
        assert (await sandbox.run_command("pwd")).stdout == "/tmp\n"
        await sandbox.write_file("/workspace/out.txt", "Hellö!")
        assert await sandbox.read_file("/workspace/out.txt") == "Hellö!"
        assert (await sandbox.execute("a = 1")).success
        assert (await sandbox.execute("print(a)")).output == "1\n"
        url = await sandbox.get_preview_url(port=8000)
        assert url.startswith("http")
        assert await sandbox.delete() is True and await sandbox.delete() is False
        assert not paddock.Sandbox(sandbox_id).is_running()
        async with await paddock.create_sandbox() as lazy:
            assert (await lazy.run_command("echo made")).stdout == "made\n"
    asyncio.run(main())


def test_create_sandbox_with_an_unknown_provider(mode, monkeypatch):
    valid = ", ".join(dict.fromkeys([*CONFIGURED.split(", "), "local", "remote"]))
    with pytest.raises(ValueError, match=f"'nonesuch'.*{valid}"):
        asyncio.run(paddock.create_sandbox(provider="nonesuch"))
    monkeypatch.setenv("SANDBOX_PROVIDER", "daytona")
    with pytest.raises(ValueError, match=f"'daytona'.*{valid}"):
        asyncio.run(paddock.create_sandbox())
    monkeypatch.setenv("SANDBOX_PROVIDER", mode)
    assert asyncio.run(paddock.create_sandbox()).provider == "auto"
    monkeypatch.delenv("SANDBOX_PROVIDER")
    monkeypatch.setenv("SANDBOX_MODE", "jail")
    assert asyncio.run(paddock.create_sandbox()).provider == "jail"


def test_create_sandbox_goes_by_the_environment_in_the_same_order(mode, monkeypatch):
    monkeypatch.setenv("SANDBOX_MODE", "jail")
    monkeypatch.setenv("SANDBOX_PROVIDER", "daytona")
    assert asyncio.run(paddock.create_sandbox()).provider == "jail"
    assert asyncio.run(paddock.create_sandbox(provider="auto")).provider == "auto"


@pytest.mark.parametrize("variable, value", [
    ("STIGMER_EXECUTION_MODE", "sandbox"), ("SANDBOX_MODE", "sandbox"), ("SANDBOX_PROVIDER", "sandbox")])
def test_create_sandbox_keeps_the_execution_mode_of_the_environment(use, server, monkeypatch, variable, value):
    use(server)
    monkeypatch.setenv(variable, value)

    async def made_mode(**create):
        async with await paddock.create_sandbox(**create) as sandbox:
            await sandbox.run_command("true")
            with contextlib.closing(server.client()) as api:
                return api.get(f"/v1/sandboxes/{sandbox.sandbox_id}").json()["mode"]

    assert asyncio.run(made_mode()) == "sandbox"
    assert asyncio.run(made_mode(provider="auto")) == "sandbox"
    assert asyncio.run(made_mode(execution_mode="auto")) == "auto"


def test_a_sandbox_of_an_unknown_provider_is_refused_with_the_valid_ones(mode):
    with pytest.raises(paddock.InvalidArgumentError, match=f"'nonesuch'.*{CONFIGURED}"):
        paddock.Sandbox.create(provider="nonesuch")
