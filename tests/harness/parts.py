"""The parts of the suite: each is a function of the workshop and of the part to fill."""

import contextlib
import json
import os
import re
import shutil
import tempfile

from .again import Attempt, SuiteAttempt, run_suite
from .reports import read_pytest, read_tap
from .work import LOGS, NIGHTLY, OBJECTS, PYTHON, ROOT, SKIP, TEST_LIMIT_S

# Tests that are marked so count things of the whole machine; they have a part of their own.
ALONE = "alone"
PROGRAMS = {
    # Bounds are for an idle machine; here other parts run at the same time.
    "PADDOCK_TEST_PATIENCE": "4",
    "PADDOCK": os.path.join(ROOT, "build/paddock"),
    "PADDOCK_WEAK": os.path.join(ROOT, "build-weak/paddock"),
}
WEAK = ("weak", "paddock")  # tests use nothing else of it


def lint(shop, part):
    part.check("tests/run: each of its rules can fail",
               shop.run(part, "lint-run", ["tests/run", "--self-test"], 600))
    folder = os.path.join(ROOT, "tests/lint")
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.endswith(".py") or not os.path.isfile(path) or not os.access(path, os.X_OK):
            continue
        log = f"lint-{name}"
        part.check(f"{name}: the rule can fail", shop.run(part, log, [path, "--self-test"], 300))
        part.check(name, shop.run(part, log, [path], 600))


def compile_all(shop, part):
    # The fuzz targets' directory has everything compiled with clang, too, though not as it ships.
    clang = "clang" if NIGHTLY else "fuzz"
    for name, *targets in (("release",), ("server",), WEAK, (clang, OBJECTS), ("asan",),
                           ("fuzz", "fuzzers")):
        if shop.build(part, name, *targets):
            part.ok(f"build {name}, no warnings")


def unit(shop, part):
    if not (shop.build(part, "release") and shop.build(part, "asan")):
        return
    log = os.path.join(ROOT, "build-asan/meson-logs/testlog.json")
    if os.path.exists(log):
        os.unlink(log)
    # They wait more than they compute.
    result = shop.run(part, "unit", ["/usr/bin/meson", "test", "-C", "build-asan", "--no-rebuild",
                                     "--num-processes", "4", "--timeout-multiplier",
                                     "10"], 3600 if NIGHTLY else 1800)
    if not os.path.exists(log):
        part.fail("meson test", result.tail())
        return
    with open(log, encoding="utf-8") as records:
        for record in map(json.loads, records):
            read_tap(part, record["name"].split(" / ")[-1], record)


def fuzz(shop, part):
    if not shop.build(part, "fuzz", "fuzzers"):
        return
    folder = os.path.join(ROOT, "build-fuzz/tests/fuzz")
    seconds = os.environ.get("FUZZ_SECONDS") or ("60" if NIGHTLY else "")
    # By day the same search each time, so that a run says something of the change that it is for. What
    # nobody has tried yet is searched for by night, and by `make fuzz`.
    search = ([f"-max_total_time={seconds}"] if seconds
              else ["-seed=1", "-runs=20000", "-max_total_time=3"])
    for program in sorted(f for f in os.listdir(folder) if re.fullmatch(r"fuzz_[a-z0-9_]+", f)):
        name = program.removeprefix("fuzz_")
        target = os.path.join(folder, program)
        seeds = f"tests/fuzz/corpus/{name}"
        names = sorted(os.listdir(os.path.join(ROOT, seeds))) if os.path.isdir(seeds) else []
        if not names:
            part.fail(f"{name}: corpus", f"{seeds} has no seed file")
            continue

        inputs = [os.path.join(seeds, n) for n in names]
        part.check(f"{name}: {len(names)} corpus files",
                   shop.run(part, program, [target, *inputs], 300))

        # What the search finds is kept from run to run, but outside the tree.
        found = os.path.join("build-fuzz", "corpus", name)
        os.makedirs(os.path.join(ROOT, found), exist_ok=True)
        crash = f"-artifact_prefix={LOGS}/{program}-"
        command = [target, "-timeout=10", "-rss_limit_mb=2048", *search, crash, found, seeds]
        part.check(f"{name}: search", shop.run(part, program, command, int(seconds or 5) + 120))


def pytest_command(interpreter, report, *more, limit=TEST_LIMIT_S):
    # What failed is remembered beside the report, so that it can be tried again.
    return [interpreter, "-m", "pytest", "-o", f"cache_dir={report.removesuffix('.xml')}.cache", "--tb=short",
            "-rA", f"--timeout={limit}", f"--junitxml={report}", *more]


def pytest(shop, part, folders, limit, *, interpreter=PYTHON, env=None, more=(), workers=0,
           log=None):
    """Runs pytest over folders and counts. With `workers` the files are divided among as many
    processes, each of which starts the servers that it needs."""
    log = log or part.name
    report = os.path.join(LOGS, f"{log}.xml")
    if os.path.exists(report):
        os.unlink(report)
    limit *= 6 if NIGHTLY else 1  # more rounds
    command = pytest_command(interpreter, report, *more)
    env = {**PROGRAMS, **(env or {})}
    beside = ["-n", str(workers), "--dist", "loadfile"] if workers else []
    result = shop.run(part, log, [*command, *beside, *folders], limit, env)
    part.again.append(Attempt(log, [*command, *folders], limit, env, read_pytest(part, report, result)))


def programs_build(shop, part):
    return all([shop.build(part, *names) for names in (("release",), ("server",), WEAK)])


def tests_in(folder, limit, workers=0, but=()):
    """A part that is a folder of tests/, but for some files."""
    def run(shop, part):
        if programs_build(shop, part):
            pytest(shop, part, [f"tests/{folder}"], limit, workers=workers,
                   more=["-m", f"not {ALONE}", *(f"--ignore={path}" for path in but)])
    return run


# By day a file of tests/api is tried once: with a sanitizer those that have what a request goes through in
# the server, from parsing to the pump, and the others with the release. At night all are tried with both.
# Two are tried with both by day, too: their subject is what a release is quick at.
SANITIZED = [f"tests/api/test_{name}.py" for name in (
    "attach", "bad_input", "console", "contexts_fork", "contexts_hostile", "contexts_races", "e2b_files", "e2b_process", "files", "mcp",
    "operations", "ports",
    "prepared_hostile", "processes", "queue_pool", "sandboxes", "sessions", "tls")]
WITH_BOTH = [f"tests/api/test_{name}.py" for name in ("exec", "prepared")]


def sanitized(build, tests, options):
    """A part that runs tests against paddockd compiled with a sanitizer. The rest of the program is the
    release. A report of any process, also of one that a test has killed, is a failure."""
    def run(shop, part):
        if not (programs_build(shop, part) and shop.build(part, build, "paddockd")):
            return
        place = os.path.join(ROOT, f"build-{build}", "bin")
        os.makedirs(place, exist_ok=True)
        shutil.copy(os.path.join(ROOT, "build/paddock"), os.path.join(place, "paddock.new"))
        os.rename(os.path.join(place, "paddock.new"), os.path.join(place, "paddock"))
        if not os.path.islink(os.path.join(place, "paddockd")):
            os.symlink("../paddockd", os.path.join(place, "paddockd"))

        # The server becomes another user, who must be able to write here.
        with tempfile.TemporaryDirectory(prefix=f"paddock-{build}-", dir="/var/tmp") as reports:
            os.chmod(reports, 0o1777)
            env = {name: f"log_path={reports}/report:{more}" for name, more in options.items()}
            pytest(shop, part, tests, 1800, more=["-m", f"not {ALONE}"], workers=2,
                   env={**env, "PADDOCK": os.path.join(place, "paddock")})
            for name in sorted(os.listdir(reports)):
                with open(os.path.join(reports, name), encoding="utf-8", errors="replace") as f:
                    part.fail(f"{build}: {name}", f.read())
                shutil.copy(os.path.join(reports, name), LOGS)
    return run


def alone(shop, part):
    if programs_build(shop, part):
        pytest(shop, part, ["tests/e2e", "tests/security"], 1800, more=["-m", ALONE])


def install(shop, part, script):
    """What a part needs from the registries of others; True when it is there."""
    result = shop.run(part, f"{part.name}-install", [script], 1200)
    if result.status == SKIP:
        said = result.output.rstrip().splitlines() or ["it does not say why"]
        part.skip(part.name, said[-1].removeprefix("install: "))
    elif result.status:
        part.fail("install", result.tail())
    return result.status == 0


def suite(shop, part, names):
    """A part that is a script of its own, tests/PART/suite: it starts a server and runs programs of others, each
    of `names` with a report."""
    if not (shop.build(part, "release") and shop.build(part, "server")
            and install(shop, part, f"tests/{part.name}/install")):
        return
    failed = run_suite(shop, part, part.name, names, 1800, PROGRAMS)
    part.again.append(SuiteAttempt(part.name, names, 1800, PROGRAMS, failed))


def e2b(shop, part):
    suite(shop, part, sorted(n for n in os.listdir(os.path.join(ROOT, "tests/e2b")) if re.match(r"(js|py)-", n)))


def mcp(shop, part):
    suite(shop, part, ["js", "py-1", "py-2", "programs"])


def console(shop, part):
    files = sorted(os.listdir(os.path.join(ROOT, "tests/console")))
    names = [name.removesuffix(".test.mjs") for name in files if name.endswith(".test.mjs")]
    names += [name.removesuffix(".mjs") for name in files if name.endswith(".night.mjs") and NIGHTLY]
    suite(shop, part, names)


def python(shop, part):
    if not (shop.build(part, "release") and shop.build(part, "server")
            and install(shop, part, "sdk/python/tests/install")):
        return
    part.ok("install")
    interpreter = os.path.join(ROOT, "build-python/venv/bin/python")
    part.check("reference is that of the sources", shop.run(part, "python-reference", [
        interpreter, "-I", "scripts/python-reference", "--check"], 60))
    # Checking against the types of the agents' libraries, too, means reading all of those: at night.
    others = [] if NIGHTLY else ["--follow-imports=skip"]
    part.check("mypy --strict", shop.run(part, "python-mypy", [
        interpreter, "-m", "mypy", "--config-file", "sdk/python/pyproject.toml", *others, "--cache-dir",
        "build-python/mypy"], 900, {"MYPYPATH": os.path.join(ROOT, "sdk/python/src")}))
    pytest(shop, part, ["sdk/python/tests"], 1800, interpreter=interpreter, env={
        "PADDOCK_LIBRARY": os.path.join(ROOT, "build-server/src/lib/libpaddock.so.1"),
        "PADDOCK_PROGRAM": os.path.join(ROOT, "build/paddock")})
    part.check("a wheel works by itself, and the example in C",
               shop.run(part, "python-wheel", ["sdk/python/tests/wheel"], 900))


def vm(shop, part):
    if not programs_build(shop, part):
        return
    report = os.path.join(LOGS, "vm.xml")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(report)
    result = shop.run(part, "vm", ["tests/vm/suite"], 7500 if NIGHTLY else 3200)
    if result.status == SKIP:
        said = [line for line in result.output.splitlines() if line.strip()]
        reason = said[-1] if said else "tests/vm/suite does not say why"
        part.skip("vm", reason.removeprefix("vm: ").removeprefix("skipped: "))
        return
    read_pytest(part, report, result)


def docs(shop, part):
    """The pages' examples; E2B's SDK and a Python environment are what they use."""
    if programs_build(shop, part) and install(shop, part, "tests/e2b/install"):
        pytest(shop, part, ["tests/docs"], 1800)


PARTS = {
    "lint": lint,
    "build": compile_all,
    "unit": unit,
    "fuzz": fuzz,
    "e2e": tests_in("e2e", 1800),
    "contexts": tests_in("contexts", 900),
    "api": tests_in("api", 1800, workers=2, but=() if NIGHTLY else SANITIZED),
    "faults": tests_in("faults", 1800),
    "asan": sanitized("asan", ["tests/capabilities"] + (["tests/api"] if NIGHTLY else SANITIZED + WITH_BOTH), {
        "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1:"
                        "allocator_may_return_null=1:detect_leaks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=0"}),
    "security": tests_in("security", 1800, workers=2),
    "e2b": e2b,
    "python": python,
    "mcp": mcp,
    "console": console,
    "docs": docs,
    "vm": vm,
    "alone": alone,
}

if os.path.isdir(os.path.join(ROOT, "tests/backends")):
    # Thousands of kills at night. Most of a test here is waiting.
    PARTS["backends"] = tests_in("backends", 2700 if NIGHTLY else 1800, workers=2)

if NIGHTLY:
    PARTS["tsan"] = sanitized("tsan", ["tests/api", "tests/faults"], {
        "TSAN_OPTIONS": "second_deadlock_stack=1:halt_on_error=0"})

# See lanes.py: (lanes, rest). The first two lanes compute, the others wait more than they compute: four of them leave
# half of two processors idle, and more than five would starve what is measured in some. Tests that count things of the machine have a processor for
# themselves: beside them only fuzz targets compute, which leave nothing on the machine. Then the unit tests have both.
STAGES = [
    ([["vm"],
      ["lint", "build", "asan"],
      ["security", "python"],
      ["api", "e2e", "faults"],
      []], ["backends", "contexts", "mcp", "console", "docs", "e2b"]),
    ([["tsan"]], []),
    ([["alone", "unit"],
      ["fuzz"]], []),
]
