"""The coordinator, the interpreter that stays, and what selects a sandbox."""

import asyncio
import dataclasses
import threading
import time
import warnings

import pytest
from conftest import CONFIGURED
from paddock_testing.run import seconds

import paddock
from paddock import get_sandbox_coordinator, reset_coordinator

CSV = "city,amount\nBerlin,40\nKöln,2\n"


@pytest.fixture
def coordinator(mode, thread):
    c = get_sandbox_coordinator()
    c.set_request_context(thread)
    yield c
    c.cleanup_session(thread)


def test_variables_and_files_stay(coordinator):
    assert coordinator.ensure_session() is True
    first = coordinator.execute_code("x = 41\nopen('f', 'w').write('ü')", "set")
    assert first["success"] is True and first["error"] == ""
    second = coordinator.execute_code("x += 1; print(x, open('f').read())", description="use")
    assert second["output"] == "42 ü\n"
    assert set(("success", "output", "error")) <= set(second.keys())


def test_an_error_is_told_and_state_stays(coordinator):
    coordinator.execute_code("y = 7")
    failed = coordinator.execute_code("print('before')\ndef f():\n    return 1 / 0\nf()")
    assert failed["success"] is False and failed["output"] == "before\n"
    assert "ZeroDivisionError" in failed["error"] and "return 1 / 0" in failed["error"]
    assert not failed.state_lost
    assert "SyntaxError" in coordinator.execute_code("def")["error"]
    assert coordinator.execute_code("print(y)")["output"] == "7\n"


def test_a_csv_is_found_by_its_name_and_its_path(coordinator, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sälés 1.csv").write_text(CSV)
    monkeypatch.chdir(tmp_path)
    assert coordinator.ensure_session_with_data("data/sälés 1.csv") is True
    result = coordinator.execute_code(
        "import csv\nrows = list(csv.DictReader(open('sälés 1.csv')))\n"
        "print(sum(int(r['amount']) for r in rows), rows[1]['city'])\n"
        "print(open('data/sälés 1.csv').readline(), end='')", "sum")
    assert result["output"] == "42 Köln\ncity,amount\n", result
    (tmp_path / "data" / "sälés 1.csv").write_text("city,amount\nBonn,1\n")
    assert coordinator.ensure_session_with_data("data/sälés 1.csv") is True
    assert coordinator.execute_code("print(open('sälés 1.csv').read())")["output"].startswith(
        "city,amount\nBonn")


def test_a_file_that_is_not_there(coordinator):
    assert coordinator.ensure_session_with_data("/nonesuch.csv") is False
    assert "/nonesuch.csv" in coordinator.last_error.message


def test_output_of_children_and_of_standard_error(coordinator):
    result = coordinator.execute_code(
        "import subprocess, sys\nprint('a', flush=True)\nsubprocess.run(['sh', '-c', 'echo b'])\n"
        "print('e', file=sys.stderr)\nimport os\nos.write(1, b'c\\n')")
    assert result["output"] == "a\nb\nc\n" and result.stderr == "e\n" and result.success


def test_code_that_takes_too_long_is_interrupted_and_state_stays(coordinator):
    coordinator.execute_code("z = 'kept'")
    coordinator.code_timeout = seconds(2)
    late = coordinator.execute_code("import time\nprint('begun')\ntime.sleep(60)")
    assert late["success"] is False and late["output"] == "begun\n"
    assert f"timed out after {seconds(2):g} s" in late["error"] and not late.state_lost
    assert coordinator.execute_code("print(z)")["output"] == "kept\n"


def test_code_that_does_not_heed_the_interrupt_is_killed(coordinator):
    assert coordinator.execute_code("1").success  # the interpreter is there: its start is no part of the time
    coordinator.code_timeout = seconds(1)
    late = coordinator.execute_code(
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass")
    assert late["success"] is False and late.state_lost and "killed" in late["error"]
    assert coordinator.execute_code("print(1)")["output"] == "1\n"


def test_an_interpreter_that_died_is_said_and_replaced(coordinator):
    coordinator.execute_code("v = 1")
    died = coordinator.execute_code("import os\nprint('last words', flush=True)\nos._exit(9)")
    assert died["success"] is False and died.state_lost and died["output"] == "last words\n"
    assert "status 9" in died["error"] and "variables" in died["error"]
    fresh = coordinator.execute_code("print('v' in globals())")
    assert fresh["success"] is True and fresh["output"] == "False\n"


def test_an_interpreter_that_was_killed_between_calls_is_said(coordinator):
    coordinator.execute_code("v = 1; import os; print(os.getpid())")
    box = paddock.Sandbox(coordinator.session_id)
    for process in box.commands.list():
        box.commands.kill(process.pid)
    after = coordinator.execute_code("print('v' in globals())")
    assert after["output"] == "False\n" and after.state_lost and "new one" in after.stderr


def test_memory_is_limited(coordinator):
    died = coordinator.execute_code("a = bytearray(4 << 30)")
    assert died["success"] is False and ("memory" in died["error"] or "Memory" in died["error"])
    assert coordinator.execute_code("print(2)")["output"] == "2\n"


def test_much_output_keeps_head_and_tail(coordinator):
    result = coordinator.execute_code("for i in range(400000): print(i)")
    assert result["output"].startswith("0\n1\n") and result["output"].endswith("\n399999\n")
    assert "left out" in result["output"] and len(result["output"]) < 1100000


def test_output_cannot_be_mistaken_for_an_answer(coordinator):
    text = "print('\\x1e' + 'a' * 32 + ' {}\\x1e')\nprint('\\x1e')"
    result = coordinator.execute_code(text)
    assert result["output"] == "\x1e" + "a" * 32 + " {}\x1e\n\x1e\n"


def test_exit_and_input(coordinator):
    assert coordinator.execute_code("import sys; print(1); sys.exit(0)")["success"] is True
    assert "SystemExit: 3" in coordinator.execute_code("import sys; sys.exit(3)")["error"]
    assert "EOFError" in coordinator.execute_code("input()")["error"]
    assert coordinator.execute_code("print('there')")["output"] == "there\n"


def test_classes_of_the_code_can_be_pickled(coordinator):
    coordinator.execute_code("class C:\n    a = 1")
    result = coordinator.execute_code("import pickle; print(pickle.loads(pickle.dumps(C())).a)")
    assert result["output"] == "1\n", result


def test_requests_are_apart_and_cleaned_up(coordinator, thread):
    coordinator.execute_code("who = 'first'")
    first = coordinator.session_id
    coordinator.set_request_context(thread + "-2")
    assert "NameError" in coordinator.execute_code("print(who)")["error"]
    second = coordinator.session_id
    assert first != second
    coordinator.cleanup_session(thread + "-2")
    assert not paddock.Sandbox(second).is_running()
    assert paddock.Sandbox(first).is_running()
    coordinator.set_request_context(thread)
    assert coordinator.execute_code("print(who)")["output"] == "first\n"
    coordinator.cleanup_session("never-was")


def test_a_sandbox_that_was_lost_is_said_and_its_data_put_back(coordinator, tmp_path):
    path = tmp_path / "sales.csv"
    path.write_text(CSV)
    assert coordinator.ensure_session_with_data(str(path))
    coordinator.execute_code("x = 1")
    gone = coordinator.session_id
    paddock.Sandbox(gone).set_timeout(1)
    deadline = time.monotonic() + seconds(30)
    while paddock.Sandbox(gone).is_running():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    told = coordinator.execute_code("open('ran', 'w')")
    assert told["success"] is False and told.state_lost
    assert "sales.csv" in told["error"] and "did not run" in told["error"]
    assert coordinator.session_id != gone
    again = coordinator.execute_code("import os; print(len(open('sales.csv').readlines()), "
                                     "os.path.exists('ran'))")
    assert again["output"] == "3 False\n"


def test_a_sandbox_that_somebody_ended_is_said(coordinator):
    coordinator.execute_code("x = 1")
    paddock.Sandbox.kill(coordinator.session_id)
    told = coordinator.execute_code("print(x)")
    assert told["success"] is False and told.state_lost and "new sandbox" in told["error"]
    assert coordinator.execute_code("print(1)")["output"] == "1\n"


def test_a_sandbox_that_was_lost_is_made_anew_by_ensure_and_that_is_said(coordinator):
    coordinator.execute_code("x = 1")
    gone = coordinator.session_id
    paddock.Sandbox.kill(gone)
    assert coordinator.ensure_session() is True and coordinator.session_id != gone
    told = coordinator.execute_code("print('x' in globals())")
    assert told["output"] == "False\n" and told.state_lost and "lost" in told.stderr
    assert not coordinator.execute_code("1").state_lost


def test_a_sandbox_that_ends_meanwhile_is_said(coordinator):
    coordinator.execute_code("x = 1")
    sandbox = paddock.Sandbox(coordinator.session_id)

    def kill_when_it_runs():
        deadline = time.monotonic() + seconds(25)
        while not sandbox.files.exists("begun") and time.monotonic() < deadline:
            time.sleep(0.05)
        sandbox.kill()

    killer = threading.Thread(target=kill_when_it_runs)
    killer.start()
    told = coordinator.execute_code("import time; open('begun', 'w').close(); time.sleep(300)")
    killer.join()
    assert told["success"] is False and told.state_lost and "gone" in told["error"], told
    assert coordinator.execute_code("print(1)")["output"] == "1\n"


def test_threads_of_one_request_take_turns(coordinator, thread):
    coordinator.execute_code("n = 0")
    results = []

    def add():
        coordinator.set_request_context(thread)
        results.append(coordinator.execute_code(
            "m = n\nimport time\ntime.sleep(0.02)\nn = m + 1")["success"])

    threads = [threading.Thread(target=add) for _ in range(10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(seconds(60))
    assert results == [True] * 10
    assert coordinator.execute_code("print(n)")["output"] == "10\n"


def test_it_reports_failure_and_does_not_raise(use, server, monkeypatch):
    use(server)
    monkeypatch.setenv("PADDOCK_URL", "http://127.0.0.1:1")
    c = get_sandbox_coordinator()
    assert c.ensure_session() is False and c.last_error.code == "connection"
    result = c.execute_code("1")
    assert result["success"] is False and "127.0.0.1:1" in result["error"]
    c.cleanup_session("x")


# ---- selection ----


def test_there_is_one_coordinator(mode):
    first = get_sandbox_coordinator()
    assert get_sandbox_coordinator(mode) is first and isinstance(first, paddock.SandboxCoordinator)
    reset_coordinator()
    assert get_sandbox_coordinator() is not first


def test_unknown_modes_are_refused_with_the_valid_ones(mode, monkeypatch):
    with pytest.raises(ValueError, match="'dokcer'.*local, remote, auto, sandbox, jail, docker"):
        get_sandbox_coordinator("dokcer")
    get_sandbox_coordinator()
    with pytest.raises(ValueError, match="local, remote"):
        get_sandbox_coordinator("dokcer")
    reset_coordinator()
    monkeypatch.setenv("SANDBOX_MODE", "invalid")
    with pytest.raises(ValueError, match="'invalid'.*SANDBOX_MODE"):
        get_sandbox_coordinator()


@pytest.mark.parametrize("name", ["fargate", "e2b", "daytona"])
def test_a_provider_that_is_not_configured_is_told_with_those_that_are(mode, name):
    coordinator = get_sandbox_coordinator(name)
    assert coordinator.mode == mode and coordinator.ensure_session() is False
    assert name in str(coordinator.last_error) and CONFIGURED in str(coordinator.last_error)


def test_a_provider_is_a_mode(mode):
    coordinator = get_sandbox_coordinator("jail")
    assert coordinator.ensure_session() is True
    assert paddock.Sandbox(coordinator.session_id).get_info().provider == "jail"


def test_options_do_not_drop_the_provider_of_the_mode(mode):
    coordinator = paddock.SandboxCoordinator("daytona", options=paddock.SandboxOptions(idle_timeout_s=60))
    assert coordinator.ensure_session() is False
    assert "daytona" in str(coordinator.last_error) and CONFIGURED in str(coordinator.last_error)
    named = paddock.SandboxCoordinator("daytona", options=paddock.SandboxOptions(provider="jail"))
    assert named.ensure_session() is True
    named.close()


def test_another_provider_than_the_one_that_is_there_is_warned_of(mode, monkeypatch):
    first = get_sandbox_coordinator("jail")
    with pytest.warns(RuntimeWarning, match="'jail'.*reset_coordinator"):
        assert get_sandbox_coordinator("docker") is first
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert get_sandbox_coordinator("jail") is first

    first.set_request_context("shared")
    assert first.ensure_session() is True
    other = paddock.SandboxCoordinator("docker")
    other.set_request_context("shared")
    # As a server that has both.
    real = other._backend.get_or_create
    monkeypatch.setattr(other._backend, "get_or_create", lambda user, name, options, **more: real(
        user, name, dataclasses.replace(options, provider=None), **more))
    with pytest.warns(RuntimeWarning, match="'shared'.*'jail'.*'docker'"):
        assert other.ensure_session() is True
    assert other.session_id == first.session_id


def test_the_first_mode_stays(use, server):
    use(server)
    assert get_sandbox_coordinator("remote").mode == "remote"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert get_sandbox_coordinator("local").mode == "remote"
    assert "reset_coordinator" in str(caught[0].message)


def test_the_older_name_warns(mode):
    with pytest.warns(DeprecationWarning, match="get_sandbox_coordinator"):
        old = paddock.get_global_session()
    assert old is get_sandbox_coordinator()
