"""The profile dev: a root that can install things, and sudo; against strict, which has neither."""

import os
import signal
import subprocess
import time

import pytest

from paddock_testing import host
from paddock_testing import run as paddock

from .helpers import Terminal, check_gone, new_word, read_line

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def dev(line, **options):
    return paddock.run(["/bin/bash", "-c", line], profile="dev", **options)


def dev_ok(line, **options):
    result = dev(line, **options)
    assert result.status == 0, result.explain()
    return result.out


@pytest.mark.parametrize("line,expected", [
    ("sudo id -u", "0"), ("sudo -- id -u", "0"), ("sudo -n id -u", "0"),
    ("sudo -u root id -un", "root"), ("sudo -u user id -un", "user"),
    ("sudo --user root id -u", "0"), ("sudo -u '#0' id -u", "0"), ("sudo -u 1000 id -u", "1000"),
    ("sudo -H sh -c 'echo $HOME'", "/root"), ("sudo sh -c 'echo $HOME $USER'", "/root root"),
    ("sudo -i sh -c 'echo $HOME'", "/root"), ("sudo -s id -u", "0"),
    ("sudo A=1 B='x y' sh -c 'echo $A,$B'", "1,x y"),
    ("export A=1; sudo sh -c 'echo ${A:-none}'", "none"),
    ("export A=1; sudo -E sh -c 'echo $A'", "1"),
    ("export A=1; sudo --preserve-env sh -c 'echo $A $HOME'", "1 /root"),
    ("sudo sudo id -u", "0"), ("sudo sudo -u user id -u", "1000"),
    ("sudo -u user sudo id -u", "0"), ("cd /tmp; sudo pwd", "/tmp"),
    ("sudo sh -c 'echo $SUDO_USER'", "user"), ("echo 'id -u' | sudo -i", "0"),
])
def test_forms_of_sudo(line, expected):
    result = dev(line)
    assert (result.status, result.out.strip()) == (0, expected), result.explain()


@pytest.mark.parametrize("line,status", [
    ("sudo sh -c 'exit 7'", 7), ("sudo false", 1), ("sudo sh -c 'kill -9 $$'", 137),
    ("sudo sh -c 'kill -TERM $$'", 143), ("sudo no-such-command", 127),
    ("sudo /etc/passwd", 126), ("sudo", 1), ("sudo -u bob id", 1), ("sudo --bogus id", 1),
    ("sudo -u", 1)])
def test_status_of_sudo(line, status):
    result = dev(line)
    assert result.status == status, result.explain()
    if status in (1, 126, 127) and "false" not in line:
        assert result.err.startswith("sudo: ") and result.err.count("\n") == 1, result.err


def test_sudo_passes_the_streams():
    result = dev("printf 'a\\nb\\n' | sudo sh -c 'cat; echo err >&2' | tr a-z A-Z")
    assert (result.out, result.err) == ("A\nB\n", "err\n")


def test_sudo_passes_a_closed_input():
    assert dev_ok("sudo cat </dev/null; echo end") == "end\n"


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1"])
def test_sudo_forwards_signals(name):
    line = (f"sudo bash -c \"trap 'echo got; exit 9' {name}; echo ready; touch /tmp/ready; "
            "while :; do sleep 0.05; done\" & "
            "p=$!; until [ -e /tmp/ready ]; do sleep 0.05; done; "
            f"kill -{name} $p; wait $p; echo status=$?")
    assert dev_ok(line, limit=10) == "ready\ngot\nstatus=9\n"


def test_signal_to_the_program_reaches_a_command_below_sudo():
    word = new_word()
    with paddock.background(["sudo", "sleep", word], profile="dev") as process:
        paddock.wait_for(lambda: [p for p in host.with_word(word)
                                  if host.command_line(p)[:1] == ["sleep"]], 5, "it runs")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=paddock.seconds(5)) == 143
    check_gone(word)


def test_killing_sudo_ends_what_it_started():
    word = new_word()
    def sleeps():
        return [p for p in host.with_word(word) if host.command_line(p)[:1] == ["sleep"]]

    with paddock.background(["/bin/sh", "-c", f"sudo sleep {word} & p=$!; read line; kill -9 $p; "
                             "echo killed; exec sleep 1000"], profile="dev",
                            stdin=subprocess.PIPE) as process:
        paddock.wait_for(sleeps, 10, "it runs")
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert read_line(process) == b"killed\n"
        paddock.wait_for(lambda: not sleeps(), 10, "the command of a sudo that is gone has ended")


def test_sudo_and_its_children_end_with_the_sandbox():
    word = new_word()
    result = dev(f"sudo setsid sleep {word} & sleep 0.3; exit 3")
    assert result.status == 3
    check_gone(word)


def test_timeout_ends_what_runs_as_root():
    word = new_word()
    result = dev(f"sudo bash -c \"trap '' TERM; setsid sleep {word} & sleep {word}\"",
                 timeout="600ms" if paddock.SLOW < 2 else "5s")
    assert result.status == 124
    assert not host.with_word(word)


def test_sudo_on_a_terminal():
    with Terminal.run(["/bin/sh", "-c", "sudo sh -c 'test -t 0 -a -t 1 && echo tty; read a; "
                       "echo got:$a'; stty size"], profile="dev") as t:
        t.expect(rb"tty\r\n")
        t.send(b"hello\r")
        t.expect(rb"got:hello\r\n24 80\r\n")
        assert t.wait() == 0


def test_ctrl_c_reaches_a_command_below_sudo():
    word = new_word()
    with Terminal.run(["sudo", "sleep", word], profile="dev") as t:
        paddock.wait_for(lambda: [p for p in host.with_word(word)
                                  if host.command_line(p)[:1] == ["sleep"]], 5, "it runs")
        t.send(b"\x03")
        assert t.wait() == 130
    check_gone(word)


def test_there_is_no_sudo_in_strict():
    result = paddock.run(["sudo", "id"])
    assert result.status != 0 and "uid=0" not in result.out, result.explain()


# What package installers do


def test_root_installs_files_with_owners_and_modes():
    line = ("set -e; cd /var/lib; mkdir pkg; echo x >pkg/f; chown 1234:4321 pkg/f; chgrp 5 pkg; "
            "chmod 2755 pkg; install -o 33 -g 33 -m 640 /etc/hosts pkg/h; "
            "cp /bin/true pkg/t; chown 0:0 pkg/t; chmod 4755 pkg/t; "
            "stat -c '%n %u:%g %a' pkg pkg/*")
    assert dev_ok(f'sudo bash -c "{line}"') == (
        "pkg 0:5 2755\npkg/f 1234:4321 644\npkg/h 33:33 640\npkg/t 0:0 4755\n")


def test_tar_keeps_owners():
    line = ("cd /tmp; mkdir a; touch a/f; chown -R 77:88 a; tar cf a.tar a; rm -r a; tar xpf a.tar;"
            "stat -c %u:%g a a/f")
    assert dev_ok(f"sudo sh -c '{line}'") == "77:88\n77:88\n"


def test_root_writes_where_the_user_may_not():
    assert dev("echo x >/etc/x").status == 1
    assert dev_ok("sudo sh -c 'echo x >/etc/x; mkdir /srv; useradd=1'; cat /etc/x") == "x\n"


def test_root_reads_and_changes_what_belongs_to_others():
    line = "umask 077; echo s >/workspace/f; sudo cat /workspace/f; sudo chmod 644 /workspace/f"
    assert dev_ok(line) == "s\n"


def test_setuid_programs_keep_the_bit_and_give_nothing():
    line = ("sudo sh -c 'cp /usr/bin/id /opt/id; chmod 4755 /opt/id'; stat -c %a /opt/id; "
            "/opt/id -u")
    assert dev_ok(line) == "4755\n1000\n"


def test_root_can_become_another_user():
    line = ("sudo setpriv --reuid 1234 --regid 1234 --clear-groups id -u; "
            "sudo setpriv --reuid 33 --regid 33 --clear-groups sh -c 'touch /tmp/f; stat -c %u "
            "/tmp/f'")
    assert dev_ok(line) == "1234\n33\n"


def test_su_like_programs_work_for_root():
    result = dev("sudo python3 -c \"import os; os.setgroups([5, 6]); os.setgid(7); os.setuid(8); "
                 "print(os.getgroups(), os.getgid(), os.getuid())\"")
    assert result.out == "[5, 6] 7 8\n", result.explain()


def test_root_can_end_the_users_processes():
    assert dev_ok("sleep 60 & sudo kill $!; wait $!; echo $?") == "143\n"


def test_root_of_dev_is_not_the_hosts(tmp_path):
    word = new_word()
    with paddock.background(["sleep", word], profile="dev", user="root"):
        pid = paddock.wait_for(lambda: host.with_word(word), 5, "it runs")[0]
        assert min(host.uids(pid)) >= host.FIRST_JAIL_UID
    refused = dev("mount -t tmpfs x /mnt || mount --bind /etc /mnt || mknod /tmp/d b 8 0 || "
                  "chroot / true || unshare -m true || hostname x", user="root")
    assert refused.status != 0, refused.explain()


# strict has no such root


@pytest.mark.parametrize("line", [
    "touch /workspace/f && chown 1234 /workspace/f", "touch /f && chgrp 5 /f",
    "setpriv --reuid 1000 true", "python3 -c 'import os; os.setuid(1000)'",
    "cat /workspace/secret"])
def test_root_of_strict_has_no_rights_over_others(line, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s")
    secret.chmod(0o600)
    result = paddock.run(["/bin/sh", "-c", line], user="root",
                         binds=[f"{secret}:/workspace/secret"])
    assert result.status != 0 and result.out == "", result.explain()


def test_root_of_strict_owns_its_files():
    result = paddock.run_ok(["/bin/sh", "-c", "touch /etc/x && stat -c %u /etc/x"], user="root")
    assert result.out == "0\n"


def test_capabilities_of_the_four_identities():
    line = ["/bin/sh", "-c", "grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status"]
    for profile, user in (("strict", "user"), ("strict", "root"), ("dev", "user")):
        sets = dict(row.split() for row in
                    paddock.run_ok(line, profile=profile, user=user).out.splitlines())
        wanted = set(sets) - ({"CapBnd:"} if profile == "dev" else set())
        assert {int(sets[name], 16) for name in wanted} == {0}, (profile, user, sets)
    sets = dict(row.split() for row in
                paddock.run_ok(line, profile="dev", user="root").out.splitlines())
    assert bin(int(sets["CapEff:"], 16)).count("1") == 7


def test_many_sudos_at_once():
    assert dev_ok("for i in 1 2 3 4 5 6 7 8; do sudo sh -c 'echo x' & done; wait").split() == (
        ["x"] * 8)


def test_sudo_in_a_loop():
    count = paddock.scaled_down(100, 10)
    start = time.monotonic()
    assert dev_ok(f"for i in $(seq {count}); do sudo true || exit 1; done; echo done") == "done\n"
    assert time.monotonic() - start < paddock.seconds(5)


def test_sudo_from_a_named_root(tmp_path):
    env = {"PADDOCK_STATE_DIR": str(tmp_path / "store")}
    options = {"env": env, "name": "box", "disk": "24M"}
    dev_ok("sudo sh -c 'echo a >/etc/a; chown 1234 /etc/a'", **options)
    assert dev_ok("stat -c %u /etc/a; sudo id -u", **options) == "1234\n0\n"
    subprocess.run([paddock.PADDOCK, "root", "rm", "box"], check=True,
                   env=paddock.clean_environment(env), timeout=paddock.seconds(10))
