"""Every wrong command line: one line that names the value and what would be right, status 2, and
nothing has run."""

import subprocess

import pytest

from paddock_testing import run as paddock

from .helpers import call, check_one_line

MEMORY_RANGE = ("4194304", "17592186044416")
CPU_RANGE = ("0.010", "1024.000")
PIDS_RANGE = ("2", "32768")


@pytest.mark.parametrize("option,value,words", [
    ("--memory", "1", MEMORY_RANGE), ("--memory", "3M", MEMORY_RANGE),
    ("--memory", "17T", MEMORY_RANGE), ("--memory", "99999999T", MEMORY_RANGE),
    ("--memory", "lots", ("512M",)), ("--memory", "", ("512M",)), ("--memory", "-1", ("512M",)),
    ("--memory", "1.5", ("512M",)), ("--memory", "1GB", ("512M",)),
    ("--cpu", "0", CPU_RANGE), ("--cpu", "0.001", CPU_RANGE), ("--cpu", "2000", CPU_RANGE),
    ("--cpu", "nan", CPU_RANGE), ("--cpu", "-1", CPU_RANGE), ("--cpu", "", CPU_RANGE),
    ("--pids", "0", PIDS_RANGE), ("--pids", "1", PIDS_RANGE), ("--pids", "32769", PIDS_RANGE),
    ("--pids", "-5", PIDS_RANGE), ("--pids", "9" * 30, PIDS_RANGE), ("--pids", "1.5", PIDS_RANGE),
    ("--disk", "1K", ("1048576", "17592186044416")), ("--disk", "x", ("1G",)),
    ("--files", "3", ("64", "100000000")), ("--files", "many", ("64", "100000000")),
    ("--output", "0", ("1",)), ("--file-size", "0", ("1",)),
    ("--timeout", "0", ("31536000 s",)), ("--timeout", "400d", ("31536000 s",)),
    ("--timeout", "5x", ("500ms", "30s")), ("--timeout", "", ("500ms",)),
    ("--timeout", "-1s", ("500ms",)), ("--timeout", "1h30m", ("500ms",)),
    ("--user", "bob", ("user", "root", "65535")), ("--user", "65536", ("65535",)),
    ("--user", "1234:", ("UID:GID",)), ("--user", ":5", ("UID:GID",)),
    ("--user", "1:2:3", ("UID:GID",)), ("--user", "-1", ("UID:GID",)),
    ("--user", "60000", ("init",)),
    ("--provider", "docker", ("jail", "local")), ("--profile", "lax", ("strict", "dev")),
    ("--network", "bridge", ("none", "host")),
    ("--min-isolation", "medium", ("none", "basic", "full")),
    ("--env", "FOO", ("NAME=VALUE",)), ("--env", "=x", ("NAME=VALUE",)),
    ("--workdir", "relative", ("absolute",)),
    ("--name", "UP", ("a-z",)), ("--name", "..", ("a-z",)), ("--name", ".x", ("a-z",)),
    ("--name", "a/b", ("a-z",)), ("--name", "-x", ("a-z",)), ("--name", "a b", ("a-z",)),
    ("--name", "ä", ("a-z",)), ("--name", "x" * 64, ("63",)), ("--name", "", ("empty",)),
    ("--bind", "/tmp", ("SRC:DST",)), ("--bind", ":/x", ("SRC:DST",)),
    ("--bind", "/tmp:", ("SRC:DST",)), ("--bind", "/tmp:x", ("absolute",)),
    ("--bind", "/tmp:/x:rx", ("ro", "rw")), ("--bind", "/no/such:/x", ("No such file",)),
    ("--root", "/no/such", ("No such file",)),
])
def test_unusable_value(option, value, words):
    shown = value.split(":")[-1] if option == "--bind" and value.endswith("rx") else \
        value.split(":")[0] if value.startswith("/no") else value
    if option == "--bind" and value == "/tmp:x":
        shown = "x"
    for arguments in ((option, value), (f"{option}={value}",)):
        result = call("run", *arguments, "--", "/bin/echo", "ran")
        check_one_line(result, 2, option, shown[:40], *words)


@pytest.mark.parametrize("target", ["/", "/proc", "/proc/", "/proc/sys", "/dev", "/dev/null",
                                    "/dev/pts/x", "/sys", "/sys/fs", "//proc", "/proc//x"])
def test_bind_onto_what_the_jail_is_made_of(target):
    check_one_line(call("run", "--bind", f"/tmp:{target}", "true"), 2, "--bind", target)


@pytest.mark.parametrize("target", ["/x/../proc", "/./x", "/x/.", "/..", "/x/.."])
def test_bind_target_that_is_not_straight(target):
    check_one_line(call("run", "--bind", f"/tmp:{target}", "true"), 2, "--bind", target, "..")


def test_names_that_only_look_like_the_jails_own_are_fine():
    result = call("run", "--bind", "/usr/bin:/process", "--bind", "/usr/bin:/devel", "--",
                  "ls", "/process/env", "/devel/env")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("option", ["--bogus", "-x", "--Json", "--mem", "--bogus=3", "---"])
def test_unknown_option(option):
    result = call("run", option, "--", "/bin/echo", "ran")
    check_one_line(result, 2, option.split("=")[0], "--min-isolation")


@pytest.mark.parametrize("option", [
    "--provider", "--profile", "--name", "--timeout", "--memory", "--pids", "--cpu", "--disk",
    "--files", "--output", "--file-size", "--env", "--bind", "--root", "--workdir", "--user",
    "--network", "--min-isolation"])
def test_value_is_missing(option):
    check_one_line(call("run", option), 2, option, "missing")


def test_flag_takes_no_value():
    check_one_line(call("run", "--json=yes", "true"), 2, "--json")


@pytest.mark.parametrize("arguments", [(), ("--",), ("--json",), ("--memory", "64M", "--"), ("",)])
def test_no_command(arguments):
    check_one_line(call("run", *arguments), 2, "no command")


def test_no_subcommand_shows_the_usage():
    result = call()
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("usage: paddock ")


@pytest.mark.parametrize("name", ["bogus", "Run", "--bogus", ""])
def test_unknown_subcommand(name):
    check_one_line(call(name), 2, name, "run", "doctor", "root", "keeper")


def test_control_characters_are_shown_and_not_printed():
    result = call("run", "--memory", "a\n\x1b[31mb", "true")
    check_one_line(result, 2, "--memory")
    assert "\x1b" not in result.stderr


def test_very_long_values_are_cut():
    result = call("run", "--memory", "9" * 100000, "true")
    check_one_line(result, 2, "--memory")
    assert len(result.stderr) < 500


def test_too_many_binds_and_variables():
    binds = [f"--bind=/usr:/x{n}" for n in range(40)]
    check_one_line(call("run", *binds, "true"), 2, "--bind", "32")
    variables = [f"--env=A{n}=b" for n in range(300)]
    check_one_line(call("run", *variables, "true"), 2, "--env", "256")


def test_wrong_command_line_makes_no_record():
    check_one_line(call("run", "--json", "--memory", "1", "true"), 2, "--memory")


@pytest.mark.parametrize("arguments,word", [
    (("root",), "ls"), (("root", "rm"), "NAME"), (("root", "bogus"), "'bogus'"),
    (("root", "rm", "../x"), "../x"), (("root", "rm", ""), "empty"), (("root", "ls", "x"), "ls"),
    (("keeper",), "--socket"), (("keeper", "--socket"), "--socket"), (("keeper", "x"), "'x'"),
    (("keeper", "--socket", "/tmp/s", "--builders", "0"), "--builders"),
    (("keeper", "--bogus", "1"), "--bogus"), (("help", "bogus"), "bogus"),
    (("doctor", "--bogus"), "--bogus")])
def test_other_subcommands(arguments, word):
    check_one_line(call(*arguments), 2, word)


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("help",), ("help", "run"),
                                       ("run", "--help"), ("help", "keeper"), ("root", "--help"),
                                       ("doctor", "--help"), ("help", "root")])
def test_help_goes_to_stdout(arguments):
    result = call(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("usage: paddock ")
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_help_names_every_option():
    text = call("help", "run").stdout
    for option in ("--provider", "--profile", "--name", "--timeout", "--memory", "--pids", "--cpu",
                   "--disk", "--files", "--output", "--file-size", "--env", "--bind", "--root",
                   "--workdir", "--user", "--network", "--min-isolation", "--json"):
        assert f"  {option} " in text, option


def test_help_of_the_command_is_the_commands():
    assert "usage: paddock" not in call("run", "ls", "--help").stdout
    assert call("run", "--", "sh", "-c", "echo $1", "sh", "--help").stdout == "--help\n"


def test_version():
    result = call("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("paddock ") and result.stdout.count("\n") == 1


def test_full_disk_of_the_caller_is_noticed():
    """The record that cannot be written is a failure, not a silent success."""
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([paddock.PADDOCK, "run", "--json", "true"], stdout=full, check=False,
                              stderr=subprocess.PIPE, timeout=paddock.seconds(10),
                              stdin=subprocess.DEVNULL, env=paddock.clean_environment())
    assert done.returncode == 125 and done.stderr.count(b"\n") == 1
