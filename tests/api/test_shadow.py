"""Shadows: commands of some sandboxes run a second time at another provider and are compared. Primary is
provider local, the shadow a jail: it must not isolate less."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from paddock_testing.run import wait_for
from paddock_testing.server import Server, check_error

SHADOW = {"name": "try", "provider": "jail", "percentage": 100}


@pytest.fixture(scope="module")
def shadowed():
    with Server({"providers": "local,jail", "local_allowed": "on", "requests_per_s": 0, "creates_per_s": 0,
                 "pool_max": 0}) as s:
        yield s


@pytest.fixture(scope="module")
def admin(shadowed):
    client = shadowed.client(shadowed.run("key", "create", "--admin").stdout.strip())
    yield client
    client.close()


@pytest.fixture
def user(shadowed, admin):
    """A client; counts begin anew with rules that were not there before."""
    client = shadowed.client()
    yield client
    assert admin.put("/v1/router", json={}).status == 200
    wait_for(lambda: shadows(shadowed) == 0, 60, "every shadow is ended")
    client.close()


def put(admin, shadow, **more):
    answer = admin.put("/v1/router", json={"shadow": shadow, **more})
    assert answer.status == 200, answer
    return answer.json()


def told(user):
    return user.get("/v1/router").json()["shadow"]


def make(user, **more):
    answer = user.post("/v1/sandboxes", json=more)
    assert answer.status == 201, answer
    return f"/v1/sandboxes/{answer.json()['id']}"


def run(user, box, command, **more):
    answer = user.post(f"{box}/exec", json={"command": command, **more})
    assert answer.status == 200, answer
    return answer.json()


def shadows(shadowed):
    """How many the server has now: they belong to a tenant that nobody has a key of."""
    return shadowed.rows("SELECT count(*) FROM sessions WHERE tenant = '~shadow' AND ended_ms = 0")[0][0]


def await_told(user, **wanted):
    try:
        wait_for(lambda: wanted.items() <= told(user).items(), 60, f"the shadow has {wanted}")
    except AssertionError as e:
        raise AssertionError(f"{e}: {told(user)}") from None
    return told(user)


def test_there_is_none_without_rules(user, shadowed):
    assert told(user) is None
    box = make(user)
    run(user, box, "echo hello")
    assert shadows(shadowed) == 0
    user.delete(box)


def test_commands_that_do_the_same_score(user, admin):
    put(admin, SHADOW)
    box = make(user)
    assert run(user, box, "echo hello > a; mkdir d; cd d; export X=7")["exit_code"] == 0
    assert run(user, box, "pwd; cat ../a; echo $X; nosuch")["exit_code"] == 127
    assert run(user, box, "echo $HOME; exit 3")["exit_code"] == 3
    got = await_told(user, compared=3)
    assert got["equal"] == 3 and got["score"] == 1 and not any(got["differ"].values()), got
    assert (got["name"], got["provider"], got["given_up"]) == ("try", "jail", 0), got

    listed = user.get("/v1/sandboxes").json()["sandboxes"]
    assert [s["provider"] for s in listed] == ["local"], "a shadow is nobody's to see"
    assert 'paddock_shadow_commands_total{provider="jail",result="equal"} 3' in user.get("/metrics").text
    user.delete(box)


@pytest.fixture
def outside():
    """A directory of the host, which a jail does not see."""
    directory = tempfile.mkdtemp(prefix="paddock-shadow-")
    os.chmod(directory, 0o755)
    Path(directory, "x").write_text("here\n")
    yield directory
    shutil.rmtree(directory)


def test_differences_are_counted_by_kind(user, admin, shadowed, outside):
    put(admin, {**SHADOW, "name": "differences"})
    box = make(user)
    assert run(user, box, f"test -d {outside}")["exit_code"] == 0
    got = await_told(user, compared=1)
    assert got["equal"] == 0 and got["score"] == 0 and got["differ"]["exit"] == 1, got
    assert run(user, box, f"cat {outside}/x")["stdout"] == "here\n"
    got = await_told(user, compared=2)
    assert got["differ"] == {"exit": 2, "stdout": 1, "stderr": 1, "time": 0, "files": 0}, got
    assert "shadow.compare" in shadowed.log() and outside not in shadowed.log(), "commands are not told"
    user.delete(box)


def run_seen(user, box, command):
    """Runs it until the files were compared after it: on a busy machine there may be no time for that. Gives what the
    last run has added."""
    for _ in range(20):
        before = told(user)
        assert run(user, box, command)["exit_code"] == 0
        after = await_told(user, compared=before["compared"] + 1)
        if after["files_unseen"] == before["files_unseen"]:
            return {name: after["differ"][name] - before["differ"][name] for name in after["differ"]}
    raise AssertionError(f"files are never compared: {told(user)}")


def test_files_are_compared(user, admin, outside):
    put(admin, {**SHADOW, "name": "trees"})
    box = make(user)
    same = {"exit": 0, "stdout": 0, "stderr": 0, "time": 0, "files": 0}
    # Of a home that is the workspace, too, hidden names do not count.
    assert run_seen(user, box, "mkdir -p d; echo 1 >d/a; chmod 700 d/a; ln -sf a d/b; touch ~/.hidden") == same
    assert run_seen(user, box, f"cat {outside}/x >d/c 2>/dev/null || true") == {**same, "files": 1}
    assert told(user)["equal"] == told(user)["compared"] - told(user)["differ"]["files"], "it counts for the score"
    assert run_seen(user, box, "rm d/c") == same, "and they are the same again"
    user.delete(box)


def test_files_that_are_too_many_are_not_compared(user, admin):
    put(admin, {**SHADOW, "name": "too many"})
    box = make(user)
    run(user, box, "mkdir d; cd d; seq 5000 | xargs touch")
    assert await_told(user, compared=1)["files_unseen"] == 1
    run(user, box, "cd ..; rm -r d; truncate -s 17M large")
    assert await_told(user, compared=2)["files_unseen"] == 2
    assert run_seen(user, box, "rm -f large")["files"] == 0, "the control"
    assert told(user)["score"] == 1
    user.delete(box)


def test_nobody_waits_for_a_look_at_files(user, admin):
    """Commands come one behind the other while the server looks: none is kept from its shadow, and none of them
    has its files compared with those of a later one."""
    put(admin, {**SHADOW, "name": "in a row"})
    box = make(user)
    for n in range(30):
        run(user, box, f"echo {n} >file{n}; seq 300 | split -l 1 - part{n}")
    assert user.get(box).json()["processes"] == 0, "a look is nobody's process"
    got = await_told(user, compared=30)
    assert got["score"] == 1 and got["given_up"] == 0 and not any(got["differ"].values()), got
    user.delete(box)


@pytest.mark.parametrize("command", ["curl http://127.0.0.1:1/", "pip install x", "echo a; wget b"])
def test_what_goes_outside_is_not_repeated(user, admin, shadowed, command):
    put(admin, {**SHADOW, "name": f"outside {len(command)}"})
    box = make(user)
    run(user, box, command)
    got = await_told(user, skipped=1, given_up=1)
    run(user, box, "echo later")  # the shadow has not what that one left
    assert told(user)["compared"] == 0 and got["failed"] == 0, got
    assert shadows(shadowed) == 0
    user.delete(box)


def test_files_from_outside_end_a_shadow(user, admin):
    put(admin, {**SHADOW, "name": "files"})
    box = make(user)
    run(user, box, "echo 1")
    await_told(user, compared=1)
    assert user.get(f"{box}/files/list?path=/workspace").status == 200, "reading does not"
    assert told(user)["given_up"] == 0
    assert user.put(f"{box}/files?path=/workspace/x", data=b"x").status in (200, 201, 204)
    run(user, box, "cat x")
    got = await_told(user, given_up=1)
    assert got["compared"] == got["equal"] == 1, got
    user.delete(box)


def test_a_shadow_never_isolates_less(user, admin):
    put(admin, {"name": "weaker", "provider": "local", "percentage": 100})
    box = make(user, provider="jail")
    run(user, box, "echo 1")
    other = make(user, provider="local")  # nor is one its own shadow
    run(user, other, "echo 1")
    put(admin, {**SHADOW, "name": "as strong"})
    third = make(user, provider="local")
    run(user, third, "echo 1")
    await_told(user, compared=1)  # the control: by now the others would have been compared
    assert told(user)["name"] == "as strong" and told(user)["compared"] == 1
    for b in (box, other, third):
        user.delete(b)


def test_the_primary_is_told_nothing_of_it(user, admin):
    """Not even when the shadow cannot be made."""
    put(admin, {**SHADOW, "name": "cannot"}, disabled=["jail"])
    box = make(user)
    assert run(user, box, "echo 1")["stdout"] == "1\n"
    assert told(user)["compared"] == 0
    user.delete(box)


def test_shadows_do_not_outlive_their_sandbox(user, admin, shadowed):
    put(admin, {**SHADOW, "name": "end"})
    box = make(user)
    run(user, box, "echo 1")
    await_told(user, compared=1)
    assert shadows(shadowed) == 1
    assert user.delete(box).status == 204
    wait_for(lambda: shadows(shadowed) == 0, 60, "its shadow is ended, too")


@pytest.mark.parametrize("shadow, says", [
    ({"name": "x", "provider": "nowhere", "percentage": 1}, "shadow.provider: 'nowhere' is not a provider"),
    ({"name": "x", "provider": "jail", "percentage": 101}, "shadow.percentage: 101 is not in the range"),
    ({"name": "x", "provider": "jail"}, "shadow.percentage: is missing"),
    ({"provider": "jail", "percentage": 1}, "shadow.name: is missing"),
    ({"name": "x", "provider": "jail", "percentage": 1, "colour": 1}, "shadow: 'colour' is not known"),
    ([], "shadow: must be an object")])
def test_mistakes_are_named(admin, shadow, says):
    check_error(admin.put("/v1/router", json={"shadow": shadow}), 400, "invalid", says=says)


def test_the_rules_are_told_as_they_were_put(user, admin):
    whole = {**SHADOW, "salt": "s", "tenant": "a", "user": "b", "template": "c", "percentage": 12.5}
    assert put(admin, whole)["rules"]["shadow"] == whole
    assert "shadow" not in json.dumps(put(admin, None)["rules"])


def test_a_restarted_server_leaves_no_shadow(user, admin, shadowed):
    put(admin, {**SHADOW, "name": "restart"})
    box = make(user)
    run(user, box, "echo 1")
    await_told(user, compared=1)
    shadowed.kill()
    assert shadows(shadowed) == 1, "the control: it was left"
    shadowed.start()
    again = shadowed.client()
    wait_for(lambda: shadows(shadowed) == 0, 60, "what the earlier one left is ended")
    assert run(again, box, "echo 2")["stdout"] == "2\n"
    again.delete(box)
    again.close()
