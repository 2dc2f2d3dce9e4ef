"""What the host sees of a sandbox. Inside, a wall can be faked; from here it cannot."""

import contextlib
import os

import pytest

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.battery import COMBINATIONS, DEV_ROOT_CAPABILITIES

from .limit_checks import PROBE, new_word

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

SETGID, SETUID, KILL = 1 << 6, 1 << 7, 1 << 5
ALL_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


class View:
    """One running jail: pid of its command and of its init, on the host."""

    def __init__(self, word):
        self.command = paddock.wait_for(lambda: host.with_word(word), 8, "the command runs")[0]
        self.init = host.jail_init(self.command)
        self.processes = host.in_pid_namespace(host.namespace(self.command, "pid"))


@contextlib.contextmanager
def jail(fixtures, **options):
    word = new_word()
    with paddock.background([PROBE, "hold", 600, word], binds=fixtures.binds(), **options):
        yield View(word)


@pytest.fixture(scope="module", params=COMBINATIONS, ids=["-".join(c) for c in COMBINATIONS])
def running(request, fixtures):
    profile, user = request.param
    with jail(fixtures, profile=profile, user=user) as view:
        view.profile, view.user = profile, user
        yield view


def slot(pid):
    return (host.uids(pid)[0] - host.FIRST_JAIL_UID) // host.UIDS_PER_JAIL


def test_every_process_has_ids_of_the_jails_range(running):
    assert len(running.processes) >= 2
    for pid in running.processes:
        ids = host.uids(pid) + [int(n) for n in host.status(pid)["Gid"].split()]
        assert min(ids) >= host.FIRST_JAIL_UID, (pid, ids)
        assert max(ids) < 1 << 31, (pid, ids)
        assert len({(i - host.FIRST_JAIL_UID) // host.UIDS_PER_JAIL for i in ids}) == 1


def test_no_supplementary_groups(running):
    for pid in running.processes:
        groups = [int(g) for g in host.status(pid)["Groups"].split()]
        assert all(g >= host.FIRST_JAIL_UID for g in groups), (pid, groups)


def test_ids_inside_are_as_asked(running):
    inside = (host.uids(running.command)[0] - host.FIRST_JAIL_UID) % host.UIDS_PER_JAIL
    assert inside == (0 if running.user == "root" else 1000)


def test_map_holds_nothing_of_the_host(running):
    for name in ("uid_map", "gid_map"):
        for line in host.read_proc(running.command, name).splitlines():
            inside, outside, count = map(int, line.split())
            assert inside + count <= host.UIDS_PER_JAIL
            assert outside >= host.FIRST_JAIL_UID and count <= host.UIDS_PER_JAIL


def test_init_has_another_uid_than_the_command(running):
    assert not set(host.uids(running.init)) & set(host.uids(running.command))


def test_init_is_not_dumpable(running):
    """The files of /proc/PID then belong to the root of its namespace and not to its uid."""
    owner = os.stat(f"/proc/{running.init}/environ").st_uid
    assert owner != host.uids(running.init)[0]


def test_command_is_dumpable(running):
    """The other case of the test above: it can fail."""
    assert os.stat(f"/proc/{running.command}/environ").st_uid == host.uids(running.command)[0]


def test_capabilities_of_init(running):
    fields = host.status(running.init)
    allowed = SETUID | SETGID | KILL if running.profile == "strict" else DEV_ROOT_CAPABILITIES
    assert int(fields["CapEff"], 16) == allowed
    assert int(fields["CapPrm"], 16) == allowed
    assert int(fields["CapInh"], 16) == 0 and int(fields["CapAmb"], 16) == 0
    assert int(fields["CapBnd"], 16) == (0 if running.profile == "strict" else allowed)


def test_capabilities_of_the_command(running):
    fields = host.status(running.command)
    sets = {name: int(fields[name], 16) for name in ALL_SETS}
    if (running.profile, running.user) == ("dev", "root"):
        assert sets["CapEff"] == sets["CapPrm"] == sets["CapBnd"] == DEV_ROOT_CAPABILITIES, sets
        assert sets["CapInh"] == sets["CapAmb"] == 0, sets
    elif running.profile == "strict":
        assert not any(sets.values()), sets
    else:
        assert not any(v for name, v in sets.items() if name != "CapBnd"), sets
        assert not sets["CapBnd"] & ~DEV_ROOT_CAPABILITIES, sets


def test_every_process_is_filtered_and_gains_nothing(running):
    for pid in running.processes:
        fields = host.status(pid)
        assert fields["NoNewPrivs"] == "1", (pid, host.command_line(pid))
        if pid != running.init:
            assert fields["Seccomp"] == "2", (pid, host.command_line(pid))


def test_init_is_filtered_too(running):
    assert host.status(running.init)["Seccomp"] == "2"


@pytest.mark.parametrize("kind", host.NAMESPACES)
def test_namespaces_are_not_the_hosts(running, kind):
    for pid in running.processes:
        assert host.namespace(pid, kind) not in ("", host.namespace(os.getpid(), kind)), pid


def test_command_has_three_descriptors(running):
    open_ones = host.descriptors(running.command)
    assert set(open_ones) == {0, 1, 2}, open_ones


def test_init_holds_nothing_of_the_host(running):
    for number, target in host.descriptors(running.init).items():
        assert not target.startswith(("/sys", "/var", "/run", "/root", "/home", "/etc", "/dev/vd",
                                      "mnt:", "net:", "user:", "pid:")), (number, target)


def test_no_environment_of_the_caller(running):
    for pid in running.processes:
        names = {e.partition("=")[0] for e in host.read_proc(pid, "environ").split("\0") if e}
        assert not names & {"PADDOCK", "SSH_AUTH_SOCK", "SUDO_USER", "PYTEST_CURRENT_TEST"}, names


def test_root_directory_is_not_the_hosts(running):
    for pid in running.processes:
        here, there = os.stat("/"), os.stat(f"/proc/{pid}/root/")
        assert (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino)


def test_cgroup_of_every_process_in_each_tree(running):
    """A tree in which it stays with the host's processes is a limit that does not hold."""
    own = host.cgroups(os.getpid())
    if not any(os.access(t, os.W_OK) for t in host.cgroup_trees()):
        pytest.skip("no cgroup tree may be written here")
    hybrid_or_v1 = any(name in own for name in ("memory", "pids", "cpu"))
    trees = ["memory", "pids", "cpu"] if hybrid_or_v1 else [""]
    if "" in own and any("cgroup.kill" in os.listdir(t) or os.path.basename(t) == "unified"
                         for t in host.cgroup_trees()):
        trees.append("")
    for pid in running.processes:
        places = host.cgroups(pid)
        for tree in set(trees):
            assert "/paddock-" in places[tree], (pid, tree, places)


def test_no_process_has_a_priority_above_the_usual(running):
    for pid in running.processes:
        assert os.getpriority(os.PRIO_PROCESS, pid) >= 0


def oom_scores(pids):
    return {int(host.read_proc(pid, "oom_score_adj")) for pid in pids}


def with_score(tmp_path, binary, score):
    """The program, started with a score as a service manager sets it."""
    wrapper = tmp_path / f"score{score}"
    wrapper.write_text("#!/bin/sh\n"
                       f'echo {score} > /proc/self/oom_score_adj || exit 9\nexec {binary} "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper)


def may_lower_scores():
    """CAP_SYS_RESOURCE: root of a container often lacks it."""
    return int(host.status(os.getpid())["CapEff"], 16) >> 24 & 1


# What the keeper's own score is: as its service in dist/systemd has it, the usual one, and one that
# is higher than that of jails.
SCORES = [(-500, 500), (0, 500), (700, 700)]


def need_score(score):
    if score < 0 and not may_lower_scores():
        pytest.skip("CAP_SYS_RESOURCE is missing: this root cannot ask to be spared")


@pytest.mark.parametrize("profile,user", COMBINATIONS)
@pytest.mark.parametrize("own,jails", SCORES)
def test_jails_go_first_when_memory_runs_out(fixtures, tmp_path, own, jails, profile, user):
    need_score(own)
    binary = with_score(tmp_path, paddock.PADDOCK, own)
    with jail(fixtures, binary=binary, profile=profile, user=user) as view:
        assert oom_scores(view.processes) == {jails}
        # The keeper has its own still.
        assert oom_scores([int(host.status(view.init)["PPid"])]) == {own}


@pytest.mark.parametrize("own,jails", SCORES)
def test_jails_of_a_long_lived_keeper_go_first(fixtures, tmp_path, own, jails):
    need_score(own)
    with paddock.Keeper(binary=with_score(tmp_path, paddock.PADDOCK, own)) as keeper:
        with jail(fixtures, env=keeper.env) as view:
            assert oom_scores(view.processes) == {jails}
        # A jail that waits for somebody to ask for it is one already; the keeper and its workers
        # have the keeper's own.
        below = paddock.settled(lambda: host.descendants(keeper.pid))
        waiting = [p for p in below if host.is_jail_init(p)]
        workers = [p for p in below if p not in waiting]
        assert waiting and oom_scores(waiting) == {jails}
        assert workers and oom_scores([keeper.pid, *workers]) == {own}


@pytest.mark.parametrize("profile,user", COMBINATIONS)
def test_a_jail_cannot_lower_its_score(fixtures, tmp_path, profile, user):
    need_score(-500)
    line = ("for n in -500 0 499; do echo $n > /proc/self/oom_score_adj && echo took $n; done; "
            "cat /proc/self/oom_score_adj")
    result = paddock.run(["/bin/sh", "-c", line], profile=profile, user=user,
                         binary=with_score(tmp_path, paddock.PADDOCK, -500))
    assert result.out.split() == ["500"], result.explain()


@pytest.mark.parametrize("own", [-500, 0])
def test_without_a_score_of_its_own_a_jail_has_the_keepers(fixtures, tmp_path, own):
    """The control."""
    if not os.path.exists(paddock.PADDOCK_WEAK):
        pytest.skip(f"no test build with weak walls at {paddock.PADDOCK_WEAK}")
    need_score(own)
    with jail(fixtures, binary=with_score(tmp_path, paddock.PADDOCK_WEAK, own),
              env={"PADDOCK_WALL_OFF": "oomscore"}) as view:
        assert oom_scores(view.processes) == {own}


def test_core_dumps_are_off(running):
    for line in host.read_proc(running.command, "limits").splitlines():
        if line.startswith("Max core file size"):
            assert line.split()[4:6] == ["0", "0"], line


def test_two_jails_share_nothing(fixtures):
    with jail(fixtures) as a, jail(fixtures) as b:
        assert slot(a.command) != slot(b.command)
        assert not {p for x in a.processes for p in host.uids(x)} & {
            p for x in b.processes for p in host.uids(x)}
        for kind in host.NAMESPACES:
            assert host.namespace(a.command, kind) != host.namespace(b.command, kind), kind
        assert host.cgroups(a.command) != host.cgroups(b.command)


def test_jails_of_one_keeper_share_nothing(fixtures, keeper):
    with jail(fixtures, env=keeper.env) as a, jail(fixtures, env=keeper.env) as b:
        assert slot(a.command) != slot(b.command)
        for kind in host.NAMESPACES:
            assert host.namespace(a.command, kind) != host.namespace(b.command, kind), kind


@pytest.mark.parametrize("how", ["plain", "keeper", "sudo", "attached-terminal"])
def test_every_way_in_has_the_same_walls(fixtures, keeper, how):
    """A late filter or a forgotten limit on one of the ways would be a door."""
    word = new_word()
    command = [PROBE, "hold", 600, word]
    options = {"binds": fixtures.binds()}
    if how == "keeper":
        options["env"] = keeper.env
    if how == "sudo":
        command, options["profile"] = ["sudo", *command], "dev"
    if how == "attached-terminal":
        if not os.path.exists("/usr/bin/script"):
            pytest.skip("script(1) is not installed")
        command = ["/usr/bin/script", "-qec", " ".join(map(str, command)), "/dev/null"]
    with paddock.background(command, **options):
        pid = paddock.wait_for(lambda: [p for p in host.with_word(word)
                                        if host.command_line(p)[:1] == [PROBE]], 8, "it runs")[0]
        fields = host.status(pid)
        assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
        assert int(fields["CapEff"], 16) & ~(DEV_ROOT_CAPABILITIES if how == "sudo" else 0) == 0
        assert host.uids(pid)[0] >= host.FIRST_JAIL_UID
        for kind in host.NAMESPACES:
            assert host.namespace(pid, kind) != host.namespace(os.getpid(), kind)
