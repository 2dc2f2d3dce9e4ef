"""Sandboxes by the sync SDK: creating, finding, pausing, snapshots, ports, errors."""

import http.client
import os
import socket
import ssl
import time
import uuid

import e2b
import pytest

DOMAIN = os.environ["PADDOCK_E2B_DOMAIN"]
TLS_PORT = os.environ.get("PADDOCK_E2B_TLS_PORT")


def test_create_info_and_kill(make):
    sandbox = make(metadata={"who": "tests"}, envs={"A": "1"}, timeout=60)
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id
    assert info.metadata == {"who": "tests"}
    assert info.state == e2b.SandboxState.RUNNING
    assert 58 < (info.end_at - info.started_at).total_seconds() < 62
    assert sandbox.commands.run("echo $A").stdout == "1\n"
    assert sandbox.is_running() is True
    assert sandbox.kill() is True
    assert sandbox.is_running() is False
    assert e2b.Sandbox.kill(sandbox.sandbox_id) is False
    with pytest.raises(e2b.SandboxNotFoundException):
        e2b.Sandbox.connect(sandbox.sandbox_id)
    with pytest.raises(e2b.TimeoutException):
        sandbox.files.list("/")


@pytest.mark.since("SandboxNotRunningException")
def test_a_sandbox_that_is_gone_is_not_running(make):
    sandbox = make()
    sandbox.kill()
    with pytest.raises(e2b.SandboxNotRunningException):
        sandbox.commands.run("true")
    with pytest.raises(e2b.SandboxNotRunningException):
        sandbox.files.read("f")


def test_life(make, until):
    sandbox = make(timeout=100)
    before = sandbox.get_info().end_at
    e2b.Sandbox.connect(sandbox.sandbox_id, timeout=10)
    assert abs((sandbox.get_info().end_at - before).total_seconds()) < 2
    sandbox.set_timeout(1)
    until("its end", lambda: not sandbox.is_running(), 6)


def test_list(make):
    mark = uuid.uuid4().hex
    ids = [make(metadata={"mark": mark, "n": f"{n} &=%"}).sandbox_id for n in range(3)]
    pager = e2b.Sandbox.list(query=e2b.SandboxQuery(metadata={"mark": mark}), limit=2)
    assert [s.sandbox_id for s in pager.next_items()] == [ids[2], ids[1]]
    assert pager.has_next is True
    assert [s.sandbox_id for s in pager.next_items()] == [ids[0]]
    assert pager.has_next is False
    one = e2b.Sandbox.list(query=e2b.SandboxQuery(metadata={"mark": mark, "n": "1 &=%"}))
    assert [s.sandbox_id for s in one.next_items()] == [ids[1]]
    e2b.Sandbox.pause(ids[0])
    paused = e2b.Sandbox.list(query=e2b.SandboxQuery(
        metadata={"mark": mark}, state=[e2b.SandboxState.PAUSED]))
    assert [s.sandbox_id for s in paused.next_items()] == [ids[0]]


def test_pause_with_memory(sandbox):
    command = sandbox.commands.run("sleep 1000", background=True)
    sandbox.pause()
    assert sandbox.is_running() is False
    assert sandbox.get_info().state == e2b.SandboxState.PAUSED
    sandbox.connect()
    assert any(p.pid == command.pid for p in sandbox.commands.list())


def test_pause_without_memory(sandbox):
    sandbox.files.write("f", "content")
    sandbox.commands.run("sleep 1000", background=True)
    sandbox.pause(keep_memory=False)
    sandbox.connect()
    assert sandbox.files.read("f") == "content"
    assert sandbox.commands.list() == []


def test_snapshots_and_forks(make):
    sandbox = make()
    sandbox.files.write("f", "then")
    snapshot = sandbox.create_snapshot()
    try:
        sandbox.files.write("f", "now")
        assert make(snapshot.snapshot_id).files.read("f") == "then"
        listed = sandbox.list_snapshots().next_items()
        assert [s.snapshot_id for s in listed] == [snapshot.snapshot_id]
    finally:
        assert e2b.Sandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert e2b.Sandbox.delete_snapshot(snapshot.snapshot_id) is False
    forks = sandbox.fork(count=2)
    assert len(forks) == 2
    for fork in forks:
        assert isinstance(fork, e2b.Sandbox), fork
        assert fork.files.read("f") == "now"
        fork.kill()


def test_metrics(sandbox, until):
    last = until("a sample", sandbox.get_metrics)[-1]
    assert 0 < last.mem_used <= last.mem_total
    assert last.cpu_count >= 1 and last.disk_total > 0


@pytest.mark.skipif(not TLS_PORT, reason="no TLS")
def test_a_port_over_tls_by_its_host(sandbox, until):
    sandbox.commands.run("python3 -m http.server 8000", background=True, timeout=0)
    host = sandbox.get_host(8000)
    assert host == f"8000-{sandbox.sandbox_id}.{DOMAIN}:{TLS_PORT}"
    context = ssl.create_default_context(cafile=os.environ["PADDOCK_E2B_CA"])

    def answers():
        raw = socket.create_connection(("127.0.0.1", int(TLS_PORT)), timeout=10)
        with context.wrap_socket(raw, server_hostname=host.split(":")[0]) as tls:
            connection = http.client.HTTPConnection("127.0.0.1")
            connection.sock = tls
            connection.request("GET", "/", headers={"Host": host})
            return connection.getresponse().status == 200

    until("the server in the sandbox", answers)


def test_network_options(make):
    sandbox = make(network={"deny_out": [e2b.ALL_TRAFFIC]})
    assert sandbox.get_info().allow_internet_access is False
    assert make(network={"allow_public_traffic": False}).traffic_access_token
    with pytest.raises(e2b.SandboxException, match="network"):
        make(network={"allow_out": ["192.0.2.1"], "deny_out": [e2b.ALL_TRAFFIC]})


def test_errors_have_their_class():
    with pytest.raises(e2b.AuthenticationException):
        e2b.Sandbox.create("base", api_key="e2b_00ff")
    with pytest.raises(e2b.SandboxException, match="no-such-template"):
        e2b.Sandbox.create("no-such-template")
    with pytest.raises(e2b.SandboxNotFoundException):
        e2b.Sandbox.get_info("abcdefghij0123456789")
    limited = {"api_url": os.environ["PADDOCK_E2B_LIMITED_URL"],
               "api_key": os.environ["PADDOCK_E2B_LIMITED_KEY"]}
    if hasattr(e2b, "ServiceBusyException"):
        limited["retries"] = 0
    begin = time.monotonic()
    with pytest.raises(e2b.RateLimitException):
        while time.monotonic() < begin + 10:
            e2b.Sandbox.list(**limited).next_items()


@pytest.mark.since("ServiceBusyException")
def test_a_creation_that_is_repeated_makes_one_sandbox(make):
    key = uuid.uuid4().hex
    first = make(idempotency_key=key)
    assert make(idempotency_key=key).sandbox_id == first.sandbox_id
    assert make(idempotency_key=uuid.uuid4().hex).sandbox_id != first.sandbox_id
