"""Part of tests/run --self-test: two installs at once, and registries that fail for a moment.

Parts that run beside each other may want the same folder or packages in the same moment. Here the
programs that install are small fakes, each of which fails when another one is at work."""

import os
import shutil
import subprocess

from .work import ROOT

SCRIPTS = {"tests/e2b/install": "build-e2b", "tests/mcp/install": "build-mcp", "tests/console/install": "build-console",
           "sdk/python/tests/install": "build-python"}
LIBRARY = "tests/harness/install.sh"
TOGETHER = 4
# Fails when another one is at work. Long enough that without a lock they meet.
WORK = 'mkdir "$1/at-work" || exit 1\nsleep 0.2\nrmdir "$1/at-work"\n'
FAKES = {
    "dpkg-query": 'test -e "$FAKES/installed" && echo installed\n',
    "apt-get": '''set -- "$FAKES" "$@"
case " $* " in
*" update "*)
    # The first one fails, as a mirror does that is being changed.
    [[ -e $FAKES/tried ]] || { touch "$FAKES/tried"; exit 100; }
    ''' + WORK.replace("\n", "\n    ") + ''';;
*" install "*) echo once >>"$FAKES/installed" ;;
esac
''',
    "sudo": '[[ $1 == -n ]] && shift\nexec "$@"\n',
    "flock": "exit 1\n",
}


def program(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write("#!/bin/bash\n" + text)
    os.chmod(path, 0o755)


def statuses(number, command, env=None):
    """The statuses of so many at once."""
    children = [subprocess.Popen(command, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for _ in range(number)]
    try:
        return [child.wait(60) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()


def library_cases(folder):
    script = os.path.join(folder, "script")
    use = f"set -eu\nsource {os.path.join(ROOT, LIBRARY)}\n"
    command = [script, folder]
    program(script, use + 'lock "$1"\n' + WORK)
    yield "installs at once into one folder", [0] * TOGETHER, statuses(TOGETHER, command)
    program(script, use + WORK)
    yield "without the lock they meet", True, any(statuses(TOGETHER, command))
    shutil.rmtree(os.path.join(folder, "at-work"), ignore_errors=True)

    fails = 'fails() { echo try >>"$1/tries"; [[ $(wc -l <"$1/tries") -ge $2 ]]; }\ntwice fails "$1" '
    for what, number, want in (("fails once", "2", 0), ("fails twice", "3", 1)):
        program(script, use + fails + number)
        yield f"a registry that {what}", [want], statuses(1, command)
        os.unlink(os.path.join(folder, "tries"))


def script_cases(folder, fakes):
    """Each script takes the lock before it makes anything: here it cannot have it."""
    shutil.copytree(os.path.join(ROOT, "tests/harness"), os.path.join(folder, "tests/harness"))
    for name, out in SCRIPTS.items():
        copy = os.path.join(folder, name)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copy(os.path.join(ROOT, name), copy)
        yield f"{name} without the lock", [77], statuses(1, [copy], fakes)
        yield f"{name} has made nothing", [".lock"], os.listdir(os.path.join(folder, out))


def deps_cases(folder, fakes):
    copy = os.path.join(folder, "scripts/install-deps")
    os.makedirs(os.path.dirname(copy))
    shutil.copy(os.path.join(ROOT, "scripts/install-deps"), copy)
    yield "packages that are missing twice", [0] * TOGETHER, statuses(TOGETHER, [copy, "venv"], fakes)
    with open(os.path.join(fakes["FAKES"], "installed"), encoding="utf-8") as f:
        yield "are installed once", "once\n", f.read()


def cases(folder):
    """(what, wanted, found)"""
    place = os.path.join(folder, "fakes")
    for name, text in FAKES.items():
        program(os.path.join(place, "lock" if name == "flock" else "bin", name), text)
    fakes = {"FAKES": place, "PATH": f"{place}/bin:{os.environ['PATH']}"}
    yield from library_cases(os.path.join(folder, "library"))
    yield from deps_cases(folder, fakes)
    yield from script_cases(folder, {"PATH": f"{place}/lock:{os.environ['PATH']}"})
