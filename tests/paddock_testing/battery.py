"""Attack tables: what they are, and how a whole table is tried in one sandbox.

An attack is a shell line that exits with 0 when it worked. A table is tried as the default user
and as sandbox root in both profiles. Controls are the other half: somewhere the same line must work,
or its row proves nothing. A `Control` leaves a wall out of a test build; every row that none names is
tried in a cell, which is the host without walls (tests/security/probe_cell.c). What this machine
cannot show at all is exempt, with a reason, and is counted as skipped. An attack that belongs to no
table is an error when tests are collected.
"""

import functools
import gzip
import os
import platform
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from . import run as paddock

SECURITY = Path(__file__).resolve().parents[1] / "security"
PROFILES = ("strict", "dev")
USERS = ("user", "root")
COMBINATIONS = [(p, u) for p in PROFILES for u in USERS]
DEV_ROOT = ("dev", "root")
PER_ATTACK = 4  # seconds

# CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID: what sandbox root has in profile dev.
DEV_ROOT_CAPABILITIES = 0b11111011


made = []  # every attack there is
tabled = {}  # those that are in a table, and the kind of control they have there
exempted = {}  # reasons for which rows had no control in this run, with their names


@dataclass(frozen=True)
class Attack:
    """`open_for` lists (profile, user) where it works by design; `why` must then say why."""

    id: str
    line: str
    open_for: tuple = ()
    why: str = ""

    def __post_init__(self):
        assert "\n" not in self.line and "\t" not in self.line
        assert bool(self.open_for) == bool(self.why)
        made.append(self)


@dataclass(frozen=True)
class Control:
    """With the walls `off`, each attack of `fires` works. `needs(fixtures)` may name a reason why
    this host cannot show it."""

    off: str
    fires: tuple
    profile: str = "strict"
    user: str = "user"
    needs: object = None

    @property
    def id(self):
        return f"{self.off}-as-{self.user}-in-{self.profile}"


def compile_probe(directory):
    """The static attack program. musl's starts quickest; glibc's does as well."""
    sources = [str(SECURITY / name) for name in ("probe.c", "probe_attacks.c", "probe_load.c",
                                                 "probe_machine.c", "probe_cell.c")]
    compiler = shutil.which("musl-gcc") or shutil.which("gcc") or shutil.which("cc")
    ready = os.environ.get("PADDOCK_PROBE")  # where there is no compiler: one made elsewhere
    target = os.path.join(directory, "probe")
    if ready:
        shutil.copy(ready, target)
    elif compiler:
        subprocess.run([compiler, "-std=gnu17", "-D_GNU_SOURCE", "-static", "-O1", "-pthread", "-w",
                        "-o", target, *sources], check=True, timeout=paddock.seconds(60))
    else:
        pytest.skip("no C compiler for the attack program, and PADDOCK_PROBE is not set")
    os.chmod(target, 0o755)
    return target


def host_boot_id():
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        return f.read().strip()


class Fixtures:
    """What lies ready on the host for attacks to reach: files, sockets, shared memory."""

    SECRET = "host-secret-5e1d"
    BIND_OWNER = 12345
    # Sysctls that only uid 0 of the host may read: a bind whose owners cannot be mapped.
    SYSCTL_DIR = "/proc/sys/kernel/usermodehelper"

    def __init__(self):
        self.top = tempfile.mkdtemp(prefix="paddock-attack-", dir="/var/tmp")
        os.chmod(self.top, 0o755)
        self.attack_dir = os.path.join(self.top, "attack")
        self.rw_dir = os.path.join(self.top, "rw")
        os.mkdir(self.attack_dir, 0o755)
        os.mkdir(self.rw_dir)
        os.chmod(self.rw_dir, 0o777)
        if os.geteuid() == 0:
            # Inside, the owner of a bind's source appears as the sandbox's user. It is not the
            # host's root here, so that root's files in it are somebody else's.
            os.chown(self.rw_dir, self.BIND_OWNER, self.BIND_OWNER)
        self.probe = compile_probe(self.attack_dir)
        self.root_only = os.path.join(self.rw_dir, "root-only")
        Path(self.root_only).write_text(self.SECRET)
        os.chmod(self.root_only, 0o600)
        self.world_readable = os.path.join(self.rw_dir, "host-owned")
        Path(self.world_readable).write_text("as it was")
        os.chmod(self.world_readable, 0o644)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.abstract_name = f"paddock-test-{os.getpid()}"
        self.abstract = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.abstract.bind("\0" + self.abstract_name)
        self.abstract.listen(16)
        self.shm_id = self.make_segment()

    def make_segment(self):
        """A SysV segment that everybody may attach; None where the host has no ipcmk."""
        if not shutil.which("ipcmk"):
            return None
        made = subprocess.run(["ipcmk", "-M", "4096", "-p", "0666"], capture_output=True, text=True,
                              check=False, timeout=paddock.seconds(10))
        return made.stdout.split()[-1] if made.returncode == 0 else None

    @functools.cached_property
    def shm_key(self):
        for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1] == self.shm_id:
                return fields[0]
        return "0"

    def binds(self):
        found = [f"{self.attack_dir}:{paddock.ATTACK_DIR}", f"{self.rw_dir}:{paddock.RW_DIR}:rw"]
        if os.geteuid() == 0 and os.path.isdir(self.SYSCTL_DIR):
            found.append(f"{self.SYSCTL_DIR}:/opt/sysctl")
        return found

    def facts(self):
        """What the attacks know about the host, as environment of the sandbox."""
        return {"HOST_PORT": self.port, "HOST_ABSTRACT": self.abstract_name,
                "HOST_SHM_KEY": self.shm_key if self.shm_id else 0,
                "HOST_NAME": os.uname().nodename, "HOST_BOOT_ID": host_boot_id()}

    def close(self):
        self.listener.close()
        self.abstract.close()
        if self.shm_id:
            subprocess.run(["ipcrm", "-m", self.shm_id], check=False, timeout=paddock.seconds(10))
        shutil.rmtree(self.top)


def write_list(fixtures, name, lines):
    """What the runner reads: one line for each (id, shell line)."""
    listing = os.path.join(fixtures.attack_dir, f"list-{name}")
    Path(listing).write_text("".join(f"{id}\t{line}\n" for id, line in lines))
    os.chmod(listing, 0o644)
    return listing


def read_statuses(text, wanted, explain):
    found = {}
    for line in text.splitlines():
        name, _, status = line.rpartition(":")
        if name:
            found[name] = int(status)
    missing = [id for id in wanted if id not in found]
    assert not missing, f"the battery stopped before {missing[0]}\n{explain}"
    return found


def try_attacks(fixtures, attacks, profile, user, *, off=None, uid=None, **options):
    """Runs a table in one jail; returns {attack id: exit status}.

    The caller's environment and descriptors carry a planted secret, so that leaks show."""
    listing = write_list(fixtures, f"{profile}-{user}", [(a.id, a.line) for a in attacks])
    env = {"PADDOCK_TEST_SECRET": fixtures.SECRET, "LD_TEST_SECRET": fixtures.SECRET}
    if off:
        env["PADDOCK_WALL_OFF"] = off
        options["binary"] = options.get("binary") or paddock.PADDOCK_WEAK
    planted = os.open("/etc", os.O_RDONLY | os.O_DIRECTORY)
    os.set_inheritable(planted, True)
    per_attack = paddock.seconds(PER_ATTACK)
    if user == "user" and "user" not in options:
        user = None  # the default, and so tested as such
    try:
        result = paddock.run(
            ["/opt/attack/probe", "battery", f"{paddock.ATTACK_DIR}/{os.path.basename(listing)}",
             per_attack], limit=60, env=env, pass_fds=(planted,), profile=profile, user=user,
            binds=fixtures.binds(), env_in=fixtures.facts(), uid=uid, **options)
    finally:
        os.close(planted)
        os.unlink(listing)
    return read_statuses(result.out, ids(attacks), result.explain())


def try_in_cells(fixtures, lines, nodes=""):
    """Runs each (id, shell line) as root of the host, in a cell of its own; {id: exit status}."""
    listing = write_list(fixtures, "cell", lines)
    place = os.path.join(fixtures.top, "cell")
    os.makedirs(place, exist_ok=True)
    binds = [word for bind in fixtures.binds() for word in reversed(bind.split(":")[:2])]
    env = {"PADDOCK_TEST_SECRET": fixtures.SECRET, "LD_TEST_SECRET": fixtures.SECRET,
           **{name: str(value) for name, value in fixtures.facts().items()},
           "HOME": "/root", "PATH": f"{paddock.ATTACK_DIR}:/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(
        [fixtures.probe, "cell", listing, str(paddock.seconds(PER_ATTACK)), place, nodes, *binds,
         "/opt/proc", "/proc"],
        env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=paddock.seconds(120), start_new_session=True)
    os.unlink(listing)
    return read_statuses(done.stdout, [id for id, _ in lines], done.stderr), done.stderr


def explain_attack(fixtures, attack, profile, user, **options):
    """Tries one attack again, alone, and returns its output for the failure message."""
    result = paddock.run(["/bin/sh", "-c", f"PATH=/opt/attack:$PATH; {attack.line}"],
                         env={"PADDOCK_TEST_SECRET": fixtures.SECRET}, profile=profile,
                         user=None if user == "user" else user, binds=fixtures.binds(),
                         env_in=fixtures.facts(), **options)
    return f"attack: {attack.line}\nalone: {result.explain()}"


@functools.lru_cache(maxsize=None)
def statuses(fixtures, attacks, profile, user):
    return try_attacks(fixtures, attacks, profile, user)


# Statuses that say nothing about a wall: the attack could not start, hung, or crashed.
BROKEN = {99: "bad usage", 124: "not done in time", 125: "no process", 126: "cannot be executed",
          127: "no such program"}
SYSCALL_KILLED = 128 + signal.SIGSYS


def check_denied(status, answers=()):
    """The attack ran to its end and was refused, or was killed for the call that it made. `answers`
    are statuses that are the wall's own answer, such as the shell's for EACCES."""
    assert status != 0, "it worked"
    if status in answers:
        return
    assert status not in BROKEN, f"no denial, the attack is broken: {status}, {BROKEN[status]}"
    assert status < 128 or status == SYSCALL_KILLED, f"no denial, it crashed: {status}"


def check_attack(fixtures, attacks, attack, profile, user):
    """The body of every attack test: denied, or open where the table says so."""
    status = statuses(fixtures, tuple(attacks), profile, user)[attack.id]
    if (profile, user) in attack.open_for:
        assert status == 0, f"by design this works ({attack.why}), but it gave {status}"
    elif status == 0:
        pytest.fail(f"{attack.id} worked in profile {profile} as {user}\n"
                    + explain_attack(fixtures, attack, profile, user), pytrace=False)
    else:
        check_denied(status)


def check_control(fixtures, attacks, control):
    """The body of every positive control: without its wall the attack works."""
    if not os.path.exists(paddock.PADDOCK_WEAK):
        pytest.skip(f"no test build with weak walls at {paddock.PADDOCK_WEAK}")
    if control.needs:
        reason = control.needs(fixtures)
        if reason:
            exempted.setdefault(reason, []).extend(control.fires)
            pytest.skip(f"this host cannot show it: {reason}")
    chosen = [a for a in attacks if a.id in control.fires]
    assert len(chosen) == len(control.fires), "a control names an attack that is not in the table"
    found = try_attacks(fixtures, chosen, control.profile, control.user, off=control.off)
    silent = {name: status for name, status in found.items() if status != 0}
    assert not silent, f"with {control.off} left out these must work, but did not: {silent}"


KERNEL = "this host's kernel has no such call or file"  # an exemption that the probe has to confirm
MISSING = 3  # of the probe: see probe.h
CAP_SYS_RESOURCE = 24


def needs_resource(_):
    """An exemption where even the host's root may not raise limits."""
    held = next(int(line.split()[1], 16) for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith("CapEff"))
    return None if held >> CAP_SYS_RESOURCE & 1 else "this host's root has no CAP_SYS_RESOURCE"


class Table:
    """Attacks with their controls.

    `outside` tells how a row is tried in a cell that needs something first: a line that is run
    before it, or around it where it has {}. `exempt` has rows without a control: a reason, a function
    of the fixtures that gives one or None, or KERNEL. `elsewhere` are rows whose control is a test of
    the module. `nodes` are names below /dev of the cells."""

    def __init__(self, attacks, controls=(), outside=None, exempt=None, elsewhere=(), nodes=""):
        self.attacks = tuple(attacks)
        self.controls = tuple(controls)
        self.outside = dict(outside or {})
        self.exempt = dict(exempt or {})
        self.nodes = nodes
        names = ids(self.attacks)
        assert len(set(names)) == len(names), "two rows have one name"
        shown = {id for control in self.controls for id in control.fires}
        shown |= set(elsewhere)
        for id in (*shown, *self.outside, *self.exempt):
            assert id in names, f"a control of {id}, which is not in the table"
        self.in_cells = [a for a in self.attacks if a.id not in shown or a.id in self.outside]
        for attack in self.attacks:
            tabled[attack] = ("a cell" if attack in self.in_cells else
                              "a test of the module" if attack.id in elsewhere else "a wall left out")

    def line_outside(self, attack):
        around = self.outside.get(attack.id, "")
        if "{}" in around:
            return around.replace("{}", shlex.quote(attack.line))
        return f"{around}; {attack.line}" if around else attack.line

    def reason(self, fixtures, attack):
        why = self.exempt.get(attack.id)
        return why(fixtures) if callable(why) else None if why is KERNEL else why

    @functools.lru_cache(maxsize=None)
    def cell_statuses(self, fixtures, wanted):
        rows = [a for a in self.in_cells if a in wanted and not self.reason(fixtures, a)]
        return try_in_cells(fixtures, [(a.id, self.line_outside(a)) for a in rows], self.nodes)

    def tests(self):
        """The three tests of a table, for its module: denied inside, and the controls."""

        @pytest.mark.parametrize("profile,user", COMBINATIONS)
        @pytest.mark.parametrize("attack", self.attacks, ids=ids(self.attacks))
        def test_attack_is_denied(request, fixtures, attack, profile, user):
            wanted = attacks_of_run(request)
            check_attack(fixtures, [a for a in self.attacks if a in wanted], attack, profile, user)

        return (test_attack_is_denied, *self.control_tests())

    def control_tests(self):
        @pytest.mark.parametrize("control", self.controls,
                                 ids=[f"{c.id}-{c.fires[0]}" for c in self.controls])
        def test_attack_works_without_the_wall(fixtures, control):
            check_control(fixtures, self.attacks, control)

        @pytest.mark.parametrize("attack", self.in_cells, ids=ids(self.in_cells))
        def test_attack_works_outside(request, fixtures, as_root, attack):
            if why := self.reason(fixtures, attack):
                skip_control(attack, why)
            found, said = self.cell_statuses(fixtures, attacks_of_run(request))
            if found[attack.id] == MISSING and self.exempt.get(attack.id) is KERNEL:
                skip_control(attack, KERNEL)
            assert found[attack.id] == 0, (
                f"no attack: as root of the host it gave {found[attack.id]}\n"
                f"{self.line_outside(attack)}\n{said[-2000:]}")

        return test_attack_works_without_the_wall, test_attack_works_outside


def attacks_of_run(request):
    """The rows for which this run has the test of `request`: the others need not be tried."""
    return frozenset(item.callspec.params["attack"] for item in request.session.items
                     if item.path == request.path and item.originalname == request.function.__name__)


def skip_control(attack, why):
    exempted.setdefault(why, []).append(attack.id)
    pytest.skip(f"no control: {why}")


def without_control():
    """Attacks that somebody wrote and put into no table."""
    return [a for a in made if a not in tabled]


def summary():
    """The lines at the end of a run: how many rows there are, and what shows that they can work."""
    kinds = list(tabled.values())
    counts = ", ".join(f"{kinds.count(kind)} by {kind}" for kind in sorted(set(kinds)))
    yield f"attack tables: {len(kinds)} rows; controls: {counts}"
    for why, names in sorted(exempted.items()):
        yield f"  of these, {len(names)} could not be shown: {why} ({' '.join(names)})"


def has_i386():
    """Can a 64-bit program make a system call by the 32-bit entry?"""
    config = "/proc/config.gz"
    if platform.machine() != "x86_64":
        return False
    if not os.path.exists(config):
        return True
    with gzip.open(config, "rt") as f:
        return "CONFIG_IA32_EMULATION=y" in f.read()


def needs_file(*names):
    """An exemption where the kernel or the host has none of these files."""
    def reason(_):
        return None if any(map(os.path.exists, names)) else f"there is no {names[0]} on this host"
    return reason


def ids(rows):
    return [row.id for row in rows]
