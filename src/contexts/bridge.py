"""The driver for every other language: a bridge to a Jupyter kernel of the image, by the image's own jupyter_client.

How this works: docs/contexts.md ("What a driver speaks") has the lines. Each request `run` names its kernel; the first one starts it. What
the kernel publishes becomes events; its text too, for it has no descriptors of ours. An interrupt of this process
is passed on to the kernel, which has a process group of its own.
"""

import ast
import binascii
import collections
import contextlib
import fcntl
import json
import os
import queue
import re
import shlex
import signal
import sys

try:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    from jupyter_client.manager import KernelManager
except ImportError:
    os._exit(127)   # told as a language that is missing

EVENT_MAX = 16 << 20
EXECUTION_MAX = 64 << 20
TEXT_MAX = 1 << 20
REMEMBERED = 64
START_S = 120       # a kernel may take long to start
EVENTS = 3


def quoted_by(quote, special):
    """How text is written in a language: between two of `quote`, with a backslash before what is special there."""
    return lambda text: quote + re.sub("[%s]" % re.escape(special), r"\\\g<0>", text) + quote


# Variables of one cell, by the kernel's language: how text is written, code that sets the variable n to v, and code that puts
# it back. How it was is meanwhile in the variable w, so that no name of the code's is touched. Python has a way of its own.
JAVASCRIPT = (json.dumps,
              "if (%(n)s in process.env) process.env[%(w)s] = process.env[%(n)s]; process.env[%(n)s] = %(v)s; undefined",
              "if (%(w)s in process.env) process.env[%(n)s] = process.env[%(w)s]; else delete process.env[%(n)s]; "
              "delete process.env[%(w)s]; undefined")
SETTERS = {
    "bash": (shlex.quote,
             "[ -z ${%(n)s+x} ] || export %(w)s=\"$%(n)s\"; export %(n)s=%(v)s",
             "if [ -z ${%(w)s+x} ]; then unset %(n)s; else export %(n)s=\"$%(w)s\"; unset %(w)s; fi"),
    "javascript": JAVASCRIPT,
    "julia": (quoted_by('"', '"\\$'),
              "haskey(ENV, %(n)s) && (ENV[%(w)s] = ENV[%(n)s]); ENV[%(n)s] = %(v)s; nothing",
              "haskey(ENV, %(w)s) ? (ENV[%(n)s] = pop!(ENV, %(w)s)) : delete!(ENV, %(n)s); nothing"),
    "perl": (quoted_by("'", "'\\"),
             "$ENV{%(w)s} = $ENV{%(n)s} if exists $ENV{%(n)s}; $ENV{%(n)s} = %(v)s; 1;",
             "if (exists $ENV{%(w)s}) { $ENV{%(n)s} = delete $ENV{%(w)s} } else { delete $ENV{%(n)s} } 1;"),
    "r": (quoted_by('"', '"\\'),
          "local({ was <- Sys.getenv(%(n)s, NA); if (!is.na(was)) do.call(Sys.setenv, stats::setNames(list(was), %(w)s)); "
          "do.call(Sys.setenv, stats::setNames(list(%(v)s), %(n)s)); invisible(NULL) })",
          "local({ was <- Sys.getenv(%(w)s, NA); Sys.unsetenv(%(w)s); if (is.na(was)) Sys.unsetenv(%(n)s) else "
          "do.call(Sys.setenv, stats::setNames(list(was), %(n)s)); invisible(NULL) })"),
    "ruby": (quoted_by("'", "'\\"),
             "ENV[%(w)s] = ENV[%(n)s]; ENV[%(n)s] = %(v)s; nil",
             "ENV[%(n)s] = ENV.delete(%(w)s); nil"),
    "typescript": JAVASCRIPT,
}


def setter(language, name, value, back):
    """Code of a language that sets a variable for one cell, or that puts it back."""
    quote, begin, end = SETTERS[language]
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("%r is no name of a variable" % name)
    words = (name, "PADDOCK_WAS_" + name) if language == "bash" else (quote(name), quote("PADDOCK_WAS_" + name))
    return (end if back else begin) % {"n": words[0], "w": words[1], "v": quote(value)}


class NotSet(ValueError):
    """A variable that the kernel has refused."""


class Bridge:
    """The kernel behind this context, and the events that tell of it."""

    def __init__(self):
        self.manager = self.client = None
        self.language = ""          # of the kernel
        self.marked = keep_streams()
        self.request, self.seq, self.count, self.sent = "", 0, 0, 0
        self.truncated = self.runs = False
        self.seen = collections.deque(maxlen=REMEMBERED)

    def emit(self, kind, **fields):
        line = json.dumps(clean({"type": kind, "seq": self.seq + 1, **({"id": self.request} if self.request else {}), **fields}))
        if kind in ("result", "stdout", "stderr"):
            self.sent += len(line)
            if len(line) > EVENT_MAX or self.sent > EXECUTION_MAX:
                self.truncated = True
                return
        self.seq += 1
        if self.request:
            for descriptor in self.marked:
                write_all(descriptor, b"\x1e%s %d\x1e" % (self.request.encode(), self.seq))
        write_all(EVENTS, line.encode() + b"\n")

    def interrupt(self, *_):
        if self.runs and self.manager is not None:
            self.manager.interrupt_kernel()

    # ---- cells ----

    def start(self, name):
        """Starts the kernel of a name, or of a language that a kernel has."""
        specs = KernelSpecManager().get_all_specs()
        wanted = name.lower()
        found = next((spec for spec, about in specs.items()
                      if wanted in (spec.lower(), about["spec"].get("language", "").lower())), None)
        if found is None:
            raise NoSuchKernel("%s; there are: %s" % (name, ", ".join(sorted(specs)) or "none"))
        manager = KernelManager(kernel_name=found)
        nowhere = open(os.devnull, "r+b")   # what a kernel says by itself is for its operator
        manager.start_kernel(stdin=nowhere, stdout=nowhere, stderr=nowhere)
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=START_S)
        self.manager, self.client = manager, client
        self.language = specs[found]["spec"].get("language", "").lower()

    def run(self, fields):
        self.count += 1
        self.sent, self.truncated = 0, False
        self.emit("start", count=self.count)
        try:
            if self.client is None:
                self.start(str(fields.get("kernel") or "python3"))
            with self.variables(fields.get("env") or {}):
                ok = self.execute(fields.get("code") or "")
        except Exception as error:
            ok = False
            self.emit("error", name=type(error).__name__, value=str(error), traceback=str(error))
        self.emit("end", ok=ok, **self.memory(), **({"truncated": True} if self.truncated else {}))

    @contextlib.contextmanager
    def variables(self, wanted):
        """Variables for one cell. A kernel has the context's from its start; others have to be set by code of its language."""
        if not wanted:
            yield
            return
        if self.language == "python":
            before = self.set_in_python(wanted)
        elif self.language in SETTERS:
            self.set_variables(wanted)
        else:
            raise ValueError("variables of one cell cannot be set in a kernel of %s: give them to the context, "
                             "or set them in the code" % (self.language or "this language"))
        try:
            yield
        finally:
            if self.client is not None and self.language == "python":
                self.change_variables(before)
            elif self.client is not None:
                self.put_back(wanted)

    # They may be secrets of this cell: where one of them cannot be set, none stays for the cells that follow.

    def set_variables(self, wanted):
        code = {name: setter(self.language, name, value, False) for name, value in wanted.items()}     # or one is no name
        begun = []
        try:
            for name in code:
                begun.append(name)
                self.set_variable(name, code[name])
        except Exception as error:
            if isinstance(error, NotSet):
                begun.pop()     # the kernel has refused it: it is as it was
            with contextlib.suppress(Exception):
                self.put_back(begun)
            raise

    def put_back(self, names):
        """All of them that can be, before one that cannot is told."""
        failed = None
        for name in names:
            try:
                self.set_variable(name, setter(self.language, name, "", True))
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def set_variable(self, name, code):
        said = self.client.execute(code, silent=True, reply=True, timeout=START_S)
        if said["content"]["status"] != "ok":
            raise NotSet("the kernel has not set %s: %s" % (name, said["content"].get("evalue", "")))

    def set_in_python(self, wanted):
        """Returns how they were."""
        before, failed = self.change_variables(wanted)
        if failed:
            self.change_variables(before)
            raise NotSet("the kernel has not set %s: %s" % (", ".join(wanted), failed))
        return before

    def change_variables(self, wanted):
        """Sets variables of a Python kernel, None: none. Returns how they were, and why not all could be set, or "".

        No name of the code's is touched.
        """
        environ = "__import__('os').environ"
        look = "{name: %s.get(name) for name in %r}" % (environ, list(wanted))
        change = "[%s.pop(name, None) if value is None else %s.__setitem__(name, value) for name, value in %r.items()]" % (
            environ, environ, wanted)
        said = self.client.execute("", silent=True, user_expressions={"before": look, "done": change}, reply=True, timeout=START_S)
        found, done = (said["content"]["user_expressions"][name] for name in ("before", "done"))
        before = ast.literal_eval(found["data"]["text/plain"]) if found["status"] == "ok" else dict.fromkeys(wanted)
        return before, "" if done["status"] == "ok" else done.get("evalue") or "it does not say why"

    def execute(self, code):
        """Runs code in the kernel and tells what it publishes, until it is idle again."""
        self.runs = True
        message = self.client.execute(code, allow_stdin=False)
        ok = True
        while True:
            try:
                said = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                if not self.manager.is_alive():
                    self.manager = self.client = None
                    raise RuntimeError("the kernel has ended; the next cell starts another one") from None
                continue
            if said["parent_header"].get("msg_id") != message:
                continue
            kind, content = said["msg_type"], said["content"]
            if kind == "status" and content["execution_state"] == "idle":
                self.runs = False
                return ok
            if kind == "stream":
                self.emit(content["name"] if content["name"] in ("stdout", "stderr") else "stdout", text=content["text"])
            elif kind in ("display_data", "execute_result"):
                self.emit("result", main=kind == "execute_result", data=self.shown(content["data"]))
            elif kind == "error":
                ok = False
                self.emit("error", name=content["ename"], value=content["evalue"], traceback="\n".join(content["traceback"]))

    def memory(self):
        """The bytes of the kernel that are no file's, where its process is known."""
        try:
            with open("/proc/%d/statm" % self.manager.provisioner.pid) as file:
                resident, shared = file.read().split()[1:3]
            return {"memory": (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")}
        except (AttributeError, TypeError, OSError):
            return {}

    def shown(self, data):
        text = data.get("text/plain", "")
        if len(text) > TEXT_MAX:
            self.truncated = True
            half = TEXT_MAX // 2
            text = "%s\n... %d characters left out ...\n%s" % (text[:half], len(text) - 2 * half, text[-half:])
        return {**data, "text/plain": text}

    # ---- requests ----

    def take(self, line):
        """A request that is damaged, or that was seen before, is left out."""
        try:
            name, crc, data = line.decode("ascii").split(" ")
            data = binascii.a2b_base64(data)
            if name in self.seen or int(crc, 16) != binascii.crc32(data):
                return
            fields = json.loads(data)
        except ValueError:
            return
        self.seen.append(name)
        self.request = name
        if fields.get("op") == "run":
            self.run(fields)
        else:
            self.emit("refused", why="no op %r: there is run" % (fields.get("op"),))
        self.request = ""


def clean(value):
    """Only what JSON can say."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    return value


def keep_streams():
    """Copies of 1 and 2 for marks. What libraries of this process log there is for its operator, and in no cell."""
    kept = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 100) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)
    return kept


def write_all(descriptor, data):
    while data:
        data = data[os.write(descriptor, data):]


def main():
    if os.environ.get("PYTHONSAFEPATH") == "paddock":   # for this process alone: see languages.c
        del os.environ["PYTHONSAFEPATH"]
    requests = os.fdopen(os.dup(0), "rb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.set_inheritable(EVENTS, False)
    sys.path.insert(0, "")
    bridge = Bridge()
    signal.signal(signal.SIGINT, bridge.interrupt)
    bridge.emit("ready", version="%d.%d.%d" % sys.version_info[:3])
    for line in requests:
        bridge.take(line.rstrip(b"\n"))
    if bridge.manager is not None:
        bridge.manager.shutdown_kernel(now=True)


main()
