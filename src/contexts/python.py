"""The driver of a Python context: it runs cells in one namespace that stays. Standard library only, Python 3.9 and later.

How this works
  Requests come on descriptor 0, events go to descriptor 3, and what the code and its children write goes to 1 and 2
  as it is. docs/contexts.md ("What a driver speaks") has the lines. There is no thread: a full pipe cannot
  deadlock the driver, and it can fork.

  Before each event its mark is written to both streams. An event is queued first and written then, in a way that
  an exception at any instruction (an interrupt, a time-out of the code's own, no stack left) leaves resumable: see Events.

  An interrupt raises KeyboardInterrupt only below the functions named in INTERRUPTIBLE. The rest of the driver need not fear it.

  What few cells need is in pages that are compiled when they are asked for: `display` (pictures, tables, other people's
  libraries), `magics` (!cmd, %magic, indented cells), `charts` and `tidy` (memory, between cells). The loader gives
  all of them as one TEXT.
"""

# _ast, _socket and _thread are the parts of ast, socket and threading that are needed, without 10 ms for the rest.
import _ast
import _socket
import _thread
import binascii
import builtins
import collections
import fcntl
import gc
import json
import linecache
import os
import signal
import sys
import types

EVENT_MAX = 16 << 20       # bytes of one event's line
EXECUTION_MAX = 64 << 20   # bytes of all results of one cell
TEXT_MAX = 1 << 20         # characters of a text; of a longer one the head and the tail are kept
REQUEST_MAX = 64 << 20     # bytes of a request's line
REMEMBERED = 64            # ids of requests, so that one that is sent twice runs once
FORK_DESCRIPTORS = 5
HIGH = 100                 # the driver's own descriptors are above: code expects the low ones to be free
FUTURES = 0x1fe0000        # the flags of `from __future__ import ...`, which hold for the cells that follow
PARSE = _ast.PyCF_ONLY_AST | _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
CO_COROUTINE = 0x80
SETTLE_S = 0.5             # for an interrupt that is on its way
SEE_OFF_MS = 5000          # for a fork to leave its parent's group
FETCH_S = 10               # for the worker that has the descriptors of a fork
TIDY_FROM = 32 << 20       # bytes of memory that are worth putting into order
TIDY_AFTER_MS = 20         # without a request
GIVE_UP = 1000             # failures of the driver itself in a row: the code has broken what both stand on

# Taken before any code runs, which may put something else in their place.
write = os.write
fork_process = os.fork
leave = os._exit
own_uid = os.geteuid()
to_text = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode

PAGES = ("display", "magics", "charts", "tidy")     # as they follow this one in TEXT, each behind a form feed

pages = {}


def page(name):
    """A page of the driver as a module. It finds this one as `core`."""
    if name not in pages:
        module = types.ModuleType("paddock_" + name)
        module.core = types.SimpleNamespace(**globals())
        text = TEXT.split(b"\f")[1 + PAGES.index(name)]
        exec(compile(text, "<paddock %s>" % name, "exec", dont_inherit=True), module.__dict__)
        pages[name] = module
    return pages[name]


def standard(name):
    """A module of the standard library, though a file of its name may lie in the working directory."""
    if name not in sys.modules:
        path, sys.path[:] = sys.path[:], [place for place in sys.path if place]
        try:
            __import__(name)
        finally:
            sys.path[:] = path
    return sys.modules[name]


# ---- events ----

class Event:
    """One line for descriptor 3 and its marks: what of them is still to be written."""

    def __init__(self, kind, request, body):
        self.kind, self.request, self.body = kind, request, body
        self.seq = 0
        self.left = None    # (descriptors, pieces, counts of bytes written)

    def frame(self, seq, output, errors, events):
        """Gives the event its number. Done again it gives the same one."""
        line = '{"type":"%s","seq":%d%s%s}\n' % (
            self.kind, seq, ',"id":"%s"' % self.request if self.request else "", self.body)
        mark = ("\x1e%s %d\x1e" % (self.request, seq)).encode()
        self.seq = seq
        if self.request:
            self.left = [output, errors, events], [mark, mark, line.encode()], []
        else:
            self.left = [events], [line.encode()], []

    def write(self):
        """Writes what is left. An exception may come at any instruction: write() then goes on where it was.

        That holds because a write and the note of its length are one instruction: list.extend(map(...)) runs in C,
        and Python's signal handlers run between instructions, or inside of a write that has written nothing.
        """
        while True:
            descriptors, pieces, counts = self.left
            cut = [memoryview(piece)[count:] for piece, count in zip(pieces, counts)] + pieces[len(counts):]
            rest = [(descriptor, piece) for descriptor, piece in zip(descriptors, cut) if len(piece)]
            if not rest:
                return

            descriptors, pieces, counts = [r[0] for r in rest], [r[1] for r in rest], []
            self.left = descriptors, pieces, counts
            try:
                counts.extend(map(write, descriptors, pieces))
            except BlockingIOError:     # a child made the shared pipe non-blocking
                wait_until_writable(descriptors[len(counts)])
            except OSError as error:    # nobody reads it any more
                if error.errno is None:
                    raise               # a TimeoutError of a signal handler
                counts.append(len(pieces[len(counts)]))


class Events:
    """The events of this process, in order. Any thread may send; a signal handler may, too, while one is written."""

    def __init__(self, output, errors, events):
        self.descriptors = output, errors, events
        self.seq = 0
        self.queue = collections.deque()
        self.lock = _thread.RLock()
        self.owner = None   # the thread that writes

    def send(self, event):
        """An event that was sent already is not written again: so a caller that was interrupted may send once more."""
        self.queue.append(event)
        self.drain()

    def drain(self):
        me = _thread.get_ident()
        if self.owner == me:
            return      # a signal handler's event: the loop that was interrupted below writes it
        with self.lock:
            try:
                self.owner = me
                while self.queue:
                    event = self.queue[0]
                    if event.seq <= self.seq and event.seq:
                        self.queue.popleft()    # written
                        continue
                    if event.left is None:
                        event.frame(self.seq + 1, *self.descriptors)
                    event.write()
                    self.seq = event.seq
            finally:
                self.owner = None

    def settle(self):
        """For the driver's own loop, where nothing is below on the stack: writes what an exception left."""
        if self.owner == _thread.get_ident():
            self.owner = None
        try:
            while True:
                self.lock.release()
        except RuntimeError:
            pass    # an exception may have come between the lock and its `with`; now it is free
        self.drain()


def wait_until_writable(descriptor):
    select = standard("select")
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()


def flush_streams():
    """What was printed stands before the mark. The code may have put anything in the place of its streams."""
    for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None), driver.stdout, driver.stderr):
        try:
            stream.flush()
        except Exception:
            pass


def shorten(text):
    """Text that JSON can carry: whole characters, and of a very long one the head and the tail."""
    if len(text) > TEXT_MAX:
        driver.truncated = True
        half = TEXT_MAX // 2
        text = "%s\n... %d characters left out ...\n%s" % (text[:half], len(text) - 2 * half, text[-half:])
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()    # a lone surrogate is no character


def encode(fields):
    """The fields of an event behind its first ones."""
    return "," + to_text(fields)[1:-1]


def send_result(data, main):
    """A result, data by MIME type. Parts that are too much are left out, the largest first."""
    if driver.is_child:
        if not main:
            print(data.get("text/plain", ""))
        return
    flush_streams()
    parts = {mime: to_text(value) for mime, value in data.items()}
    while parts and (sum(map(len, parts.values())) > EVENT_MAX - 4096
                     or sum(map(len, parts.values())) + driver.sent > EXECUTION_MAX):
        del parts[max(parts, key=lambda mime: len(parts[mime]))]
        driver.truncated = True
    if not parts:
        return

    driver.sent += sum(map(len, parts.values()))
    data = ",".join("%s:%s" % (to_text(mime), text) for mime, text in parts.items())
    body = ',"main":%s,"data":{%s}' % ("true" if main else "false", data)
    driver.events.send(Event("result", driver.request, body))


# ---- cells ----

def parse(source, name):
    """The tree of a cell, and its text if that had to be rewritten to be Python."""
    flags = PARSE | driver.futures
    try:
        return compile(source, name, "exec", flags, dont_inherit=True), source
    except (SyntaxError, ValueError) as error:
        rewritten = page("magics").rewrite(source, lambda text: compile(text, name, "exec", flags, dont_inherit=True))
        if rewritten is None:
            raise error.with_traceback(None)
    return compile(rewritten, name, "exec", flags, dont_inherit=True), rewritten


def ends_quietly(source, expression):
    """Whether a semicolon follows the last expression."""
    lines = source.encode("utf-8", "surrogatepass").split(b"\n")[expression.end_lineno - 1:]
    rest = b"\n".join([lines[0][expression.end_col_offset:]] + lines[1:])
    return rest.lstrip(b" \t\n\\)").startswith(b";")


def compile_parts(source, name):
    """The code of a cell: its statements, and its last expression when that is to be shown."""
    tree, source = parse(source, name)
    linecache.cache[name] = (len(source), None, [line + "\n" for line in source.split("\n")], name)

    parts = [(tree, "exec")]
    if tree.body and isinstance(tree.body[-1], _ast.Expr) and not ends_quietly(source, tree.body[-1].value):
        parts.append((_ast.Expression(tree.body.pop().value), "eval"))
    flags = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | driver.futures
    codes = [compile(part, name, mode, flags, dont_inherit=True) for part, mode in parts]
    driver.futures |= codes[0].co_flags & FUTURES
    return codes


def run_source(source, name):
    """Runs a cell and returns the value of its last expression; None for what shows nothing."""
    codes = compile_parts(source, name)
    if any(code.co_flags & CO_COROUTINE for code in codes):
        return run_coroutine(await_parts(codes))
    for code in codes:
        value = eval(code, driver.namespace)
    return value


async def await_parts(codes):
    """All of a cell with a top-level await, so that its other parts find the running loop, too."""
    for code in codes:
        value = eval(code, driver.namespace)
        if code.co_flags & CO_COROUTINE:
            value = await value
    return value


def run_coroutine(coroutine):
    """The loop stays: tasks of a cell go on in the next one that awaits."""
    import asyncio
    if driver.loop is None or driver.loop.is_closed():
        driver.loop = asyncio.new_event_loop()
    asyncio.set_event_loop(driver.loop)
    task = driver.loop.create_task(coroutine)
    try:
        return driver.loop.run_until_complete(task)
    except BaseException:
        if not task.done():     # interrupted: the task is told, and may clean up
            task.cancel()
            driver.loop.run_until_complete(asyncio.wait([task]))
        raise


def execute(source, name):
    """A cell from its text to its pictures. All of it may be interrupted."""
    if driver.interrupt_due:
        raise KeyboardInterrupt
    try:
        value = run_source(source, name)
    except Exception:
        show_figures()      # what was drawn may tell why it failed
        raise

    if value is not None:
        builtins._ = value
        show(value, main=True)
    show_figures()


def show(value, main):
    if type(value) in (int, float, complex, bool, str, bytes):
        send_result({"text/plain": shorten(repr(value))}, main)
    else:
        page("display").show(value, main)


def show_figures():
    if "matplotlib.pyplot" in sys.modules:
        page("display").show_figures()


def close_figures():
    """Those that a cell could not show, so that the next one does not."""
    if "matplotlib.pyplot" in sys.modules:
        try:
            sys.modules["matplotlib.pyplot"].close("all")
        except Exception:
            pass


def display(*values, **options):
    """Shows values: pictures as pictures, tables as tables."""
    return page("display").display(*values, **options)


def describe(error):
    """The fields of an error event. It runs code of the error's own class, and may be interrupted."""
    try:
        value = str(error)
    except Exception as second:
        value = "<%s in __str__>" % type(second).__name__
    text = "".join(standard("traceback").format_exception(type(error), error, frames_of_cells(error)))
    return {"name": type(error).__name__, "value": shorten(value), "traceback": shorten(text)}


def frames_of_cells(error):
    """The traceback without the driver's frames."""
    trace = error.__traceback__
    while trace and not trace.tb_frame.f_code.co_filename.startswith("<cell"):
        trace = trace.tb_next
    return trace


class Cell:
    """A request that runs: its start, its code, and its end, which comes whatever the code has done."""

    def __init__(self, request, run, environment):
        self.request, self.run, self.environment = request, run, environment
        self.before = {}            # variables as they were
        self.is_over = False
        self.error = None
        self.start_event = Event("start", request, encode({"count": driver.count}))
        self.error_event = self.end_event = None

    def work(self):
        try:
            driver.request = self.request
            driver.sent, driver.truncated, driver.interrupt_due, driver.interrupt_heard = 0, False, False, False
            repair_streams()
            signal.signal(signal.SIGINT, on_interrupt)
            driver.events.send(self.start_event)
            for name, value in self.environment.items():
                self.before[name] = os.environ.get(name)
                os.environ[name] = value
            self.run()
        except SystemExit as end:
            self.error = end if end.code not in (None, 0) else None
        except BaseException as error:
            self.error = error
            close_figures()
        if driver.is_child:
            end_child(self.error)
        self.is_over = True

    def close(self):
        """Ends the cell. It may be called again after an exception (a signal handler of the code's own)."""
        signal.signal(signal.SIGINT, on_interrupt)
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self.before = {}

        if self.error is not None and self.error_event is None:
            self.error_event = Event("error", self.request, encode(self.describe_error()))
        if self.end_event is None:
            end = {"ok": self.error is None, **memory()}
            driver.used = end.get("memory", 0)
            if driver.truncated:
                end["truncated"] = True
            self.end_event = Event("end", self.request, encode(end))
        flush_streams()
        driver.events.settle()
        driver.events.send(self.start_event)
        if self.error_event is not None:
            driver.events.send(self.error_event)
        driver.events.send(self.end_event)

    def describe_error(self):
        try:
            return describe(self.error)
        except BaseException:   # interrupted, or an error that cannot be told
            lines = standard("traceback").format_tb(frames_of_cells(self.error))
            return {"name": type(self.error).__name__, "value": "", "traceback": shorten("".join(lines))}


def after_fork():
    """In a child that code has forked: it is no second driver, so it takes no requests and tells no events."""
    if not driver.is_forking:
        driver.is_child = True
        driver.requests.socket.close()


def end_child(error):
    """Such a child comes to the end of its cell, which is to it the end of the program."""
    status = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            status = error.code & 0xff
        elif isinstance(error, SystemExit):
            sys.stderr.write("%s\n" % (error.code,))
        elif error is not None:
            sys.stderr.write(describe(error)["traceback"])
        flush_streams()
    finally:
        os._exit(status)


def on_interrupt(number, frame):
    """SIGINT. What it finds outside of a cell's own code goes on; a cell that has just started ends at once."""
    driver.interrupt_heard = True
    while frame is not None:
        if any(frame.f_code is code for code in INTERRUPTIBLE):
            raise KeyboardInterrupt
        frame = frame.f_back
    driver.interrupt_due = True


def settle():
    """An interrupt was sent to the cell before: until it has come, so that it does not hit the next one."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        if not driver.interrupt_heard:
            signal.sigtimedwait({signal.SIGINT}, SETTLE_S)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


# ---- streams and descriptors ----

def raise_high(descriptor):
    """The same file under a high number that children do not inherit."""
    number = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH)
    if descriptor > 2:
        os.close(descriptor)
    return number


def text_stream(descriptor):
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def repair_streams():
    """A cell finds its streams, whatever the one before has closed, and blocking, which a child may have changed."""
    for number, copy in zip((1, 2), driver.events.descriptors):
        try:
            os.set_blocking(number, True)
        except OSError:
            os.dup2(copy, number)
    if is_closed(getattr(sys, "stdout", None)):
        driver.stdout = sys.stdout = sys.__stdout__ = text_stream(1)
    if is_closed(getattr(sys, "stderr", None)):
        driver.stderr = sys.stderr = sys.__stderr__ = text_stream(2)


def is_closed(stream):
    try:
        return stream is None or bool(getattr(stream, "closed", False))
    except Exception:
        return True


# ---- requests ----

class Requests:
    """The lines of descriptor 0, and the descriptors that come with them.

    As with events, an exception may come at any instruction. So a request stays the current one until finish(), and all
    that changes is one tuple, which is replaced as a whole.
    """

    def __init__(self, descriptor):
        self.socket = _socket.socket(fileno=descriptor)
        # Bytes without a whole line, the current line, what recvmsg gave last, descriptors that nobody took yet.
        self.state = b"", None, [], []
        self.seen = collections.deque(maxlen=REMEMBERED)
        self.over = False

    def next(self):
        """The id and the fields of the next request that is whole and new; None at the end."""
        while True:
            buffer, line, messages, descriptors = self.state
            if line is not None:
                request = self.decode(line)
                if request:
                    return request
                self.state = buffer, None, messages, descriptors
            elif messages:
                self.take(messages[0])
            elif b"\n" in buffer:
                line, _, rest = buffer.partition(b"\n")
                self.state = rest, line, messages, descriptors
            elif self.over:
                return None
            else:
                self.receive(messages)

    def waiting(self):
        """Whether something can be taken without waiting for it."""
        buffer, line, messages, _ = self.state
        poll = standard("select").poll()
        poll.register(self.socket.fileno(), standard("select").POLLIN)
        return bool(line is not None or messages or b"\n" in buffer or poll.poll(0))

    def receive(self, messages):
        space = _socket.CMSG_LEN(4 * FORK_DESCRIPTORS)
        try:
            # One instruction, as in Event.write.
            messages.extend(map(self.socket.recvmsg, (1 << 16,), (space,), (_socket.MSG_CMSG_CLOEXEC,)))
        except OSError as error:
            if error.errno is None:
                raise           # a TimeoutError of a signal handler
            self.over = True    # the code has closed it: this context cannot be used any more

    def take(self, message):
        buffer, line, _, descriptors = self.state
        data, ancillary = message[:2]
        more = []
        for level, kind, payload in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                more += memoryview(payload[:len(payload) // 4 * 4]).cast("i")
        self.over = not data
        buffer += data
        if len(buffer) > REQUEST_MAX:
            buffer = b"?"       # what is left of it until the next newline is damaged, too
        self.state = buffer, line, [], descriptors + more

    def decode(self, line):
        """A request that is damaged, or that was seen before, is none."""
        try:
            name, crc, data = line.decode("ascii").split(" ")
            data = binascii.a2b_base64(data)
            if name in self.seen or int(crc, 16) != binascii.crc32(data):
                return None
            fields = json.loads(data)
        except ValueError:
            return None
        return (name, fields) if isinstance(fields, dict) else None

    def finish(self, name):
        """The request is answered, or will be whatever comes. May be called again."""
        if name not in self.seen:
            self.seen.append(name)
        buffer, _, messages, descriptors = self.state
        self.state = buffer, None, messages, descriptors

    def take_descriptors(self):
        buffer, line, messages, descriptors = self.state
        self.state = buffer, line, messages, []
        return descriptors


# ---- the driver ----

class Driver:
    """What the functions of this file share: one process has one."""

    def __init__(self):
        self.request = ""           # the id of the cell that runs
        self.sent = 0               # bytes of its results
        self.truncated = False
        self.interrupt_due = False
        self.interrupt_heard = False    # since the last cell began
        self.count = 0              # cells so far
        self.futures = 0
        self.loop = None
        self.forks = {}             # pid: the join socket, and a descriptor that tells the end
        self.gate = None            # of a fork that is still in its parent's group; see pass_gate
        self.leaving = None         # of its parent; see see_off
        self.cell = None
        self.failures = 0
        self.stdout = self.stderr = None
        self.is_forking = self.is_child = False     # see after_fork
        self.libraries = None       # of a zygote: what lies where libraries are, when it imported some
        self.used = 0               # bytes of memory when the last cell ended
        self.tidying = None         # what puts memory into order while nothing else is to be done, and
        self.pause = None           # the ms until its next step; see wait
        self.tidied = 0             # page faults when it last had

    def take_streams(self, requests, output, errors, events):
        """Makes these four descriptors the driver's own."""
        self.requests = Requests(raise_high(requests))
        self.events = Events(raise_high(output), raise_high(errors), raise_high(events))
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        for number, source in enumerate((null, *self.events.descriptors[:2])):
            os.dup2(source, number)
        os.close(null)

    def make_main(self):
        """The namespace of the cells: a __main__ as at an interactive prompt."""
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        self.namespace = module.__dict__
        self.namespace["__builtins__"] = builtins
        builtins.display = display
        sys.argv = [""]
        sys.path.insert(0, "")
        sys.stdin = open(0, closefd=False)
        self.stdout = sys.stdout = sys.__stdout__ = text_stream(1)
        self.stderr = sys.stderr = sys.__stderr__ = text_stream(2)
        sys.meta_path.insert(0, ImportHook())

    def say_ready(self):
        version = "%d.%d.%d" % sys.version_info[:3]
        self.events.send(Event("ready", "", encode({"version": version, **memory()})))

    def serve(self):
        while True:
            try:
                if self.is_child:
                    os._exit(1)
                if self.cell is not None:
                    self.cell.close()
                    self.requests.finish(self.cell.request)
                    self.cell = None
                    self.plan_tidying()
                if self.gate is not None:
                    self.pass_gate()
                if self.leaving is not None:
                    self.see_off()
                self.reap()
                if (self.forks or self.pause is not None) and not self.requests.waiting():
                    self.wait()
                    continue
                request = self.requests.next()
                if request is None:
                    return
                self.answer(*request)
                self.failures = 0
            except (Exception, KeyboardInterrupt) as error:
                # Raised by a signal handler of the code's own in the driver: go on where it was.
                if self.cell is not None and not self.cell.is_over:
                    self.cell.error = error
                self.failures += 1
                if self.failures > GIVE_UP:
                    os._exit(70)

    def answer(self, name, fields):
        op = fields.get("op")
        if op == "run":
            if self.count == 0:
                volunteer()
            self.count += 1
            where = "<cell %d>" % self.count
            self.work(Cell(name, lambda: execute(fields.get("code"), where), fields.get("env") or {}))
        elif op == "import":
            self.work(Cell(name, lambda: import_modules(fields.get("modules") or []), {}))
        else:
            self.requests.finish(name)
            if op == "fork":
                taken = fetch_descriptors(name) if fields.get("fetch") else self.requests.take_descriptors()
                self.fork(name, taken, bool(fields.get("force")), fields.get("fresh"))
            elif op == "settle":
                settle()
            else:
                self.refuse(name, "no op %r: there are run, import, fork and settle" % (op,))

    def work(self, cell):
        self.cell = cell
        self.requests.finish(cell.request)
        cell.work()

    def refuse(self, name, why):
        self.events.send(Event("refused", name, encode({"why": shorten(why)})))

    # A fork has the variables, and descriptors of its own. The worker that it joins puts it in its group
    # before it may go on; see docs/contexts.md.

    def fork(self, name, taken, force, fresh):
        threads = len(sys._current_frames()) - 1
        is_stale = fresh and self.libraries != look_at_libraries()
        if len(taken) != FORK_DESCRIPTORS:
            why = "a fork needs %d descriptors, not %d" % (FORK_DESCRIPTORS, len(taken))
        elif threads and not force:
            why = "%d threads would be lost" % threads
        elif is_stale:
            why = "other libraries were installed since these were imported"
        elif fresh and not enter_first(fresh["cwd"]):
            why = "working directory '%s' cannot be entered" % fresh["cwd"][0]
        else:
            why = self.fork_now(name, taken, threads, fresh)
        if why:
            for descriptor in taken:
                os.close(descriptor)
            self.refuse(name, why)
        if is_stale:
            sys.exit()      # nobody needs this zygote any more

    def fork_now(self, name, taken, threads, fresh):
        flush_streams()
        gc.collect(1)
        gc.freeze()     # without it the first collection in either process un-shares all memory
        try:
            left, leaves = os.pipe()
            try:
                pid = fork_quietly()
            except Exception:
                os.close(left)
                os.close(leaves)
                raise
        except Exception as error:
            return "fork: %s" % (getattr(error, "strerror", None) or type(error).__name__)
        if pid == 0:
            try:
                os.close(left)
                self.become(taken, fresh, leaves)
            except BaseException:   # the code has broken what it stands on: no second driver of the parent's context
                leave(70)
            return None

        for descriptor in (*taken[:4], leaves):
            os.close(descriptor)
        try:
            ended = os.pidfd_open(pid)
        except OSError:     # Linux before 5.3: ends are told with the next request
            ended = None
        self.forks[pid] = raise_high(taken[4]), ended
        self.leaving = left, Event("forked", name, encode({"pid": pid, "threads_lost": threads}))
        return None

    def see_off(self):
        """Waits until a fork has left the group of this process, whose end would otherwise be its end, too.

        It has left, or has ended, when nobody has the other end of a pipe any more. Then it is told: see docs/contexts.md.
        """
        left, event = self.leaving
        select = standard("select")
        poll = select.poll()
        poll.register(left, select.POLLIN)
        poll.poll(SEE_OFF_MS)
        self.events.send(event)
        self.leaving = None
        os.close(left)

    def become(self, taken, fresh, leaves):
        """The child's side of a fork. A fresh one is a context of its own: as if it had just been started."""
        os.setsid()
        join = raise_high(taken[4])     # stays open: its end tells the worker when nobody else can
        of_others = [descriptor for pair in self.forks.values() for descriptor in pair if descriptor is not None]
        for descriptor in (self.requests.socket.detach(), *self.events.descriptors, *of_others):
            os.close(descriptor)
        self.forks, self.leaving = {}, None
        self.tidying, self.pause, self.tidied = None, None, 0
        self.take_streams(*taken[:4])
        self.loop = None
        seed_random()
        if fresh:
            os.environ.clear()
            os.environ.update(fresh["env"])
            standard("time").tzset()

        os.write(join, b"%d\n" % os.getpid())
        self.gate = join, leaves, []
        self.say_ready()

    def pass_gate(self):
        """Waits until the worker has put this fork into its group: before that it takes no request.

        The kernel may need 10 ms and more for it, so whoever asked for the fork is answered meanwhile.
        """
        join, leaves, words = self.gate
        if not words:
            words.extend(map(os.read, (join,), (1,)))    # one instruction, as in Event.write
        if words[0] != b"g":
            os._exit(1)     # the worker is gone
        self.gate = None
        os.close(leaves)

    def plan_tidying(self):
        """Behind a cell, when the memory is worth it."""
        self.pause = self.tidying = None
        if self.used >= TIDY_FROM:
            self.tidying = page("tidy").begin(self.used)
            self.pause = TIDY_AFTER_MS if self.tidying else None

    def tidy(self):
        """One step. A round that fails is over."""
        step, self.pause = self.tidying, None
        self.pause = next(step, None)

    def wait(self):
        """Until there is a request, or a fork has ended. Without either memory is put into order, a step at a time."""
        select = standard("select")
        poll = select.poll()
        poll.register(self.requests.socket.fileno(), select.POLLIN)
        for _, ended in self.forks.values():
            if ended is not None:
                poll.register(ended, select.POLLIN)
        if not poll.poll(self.pause):
            self.tidy()

    def reap(self):
        for pid, (join, ended) in list(self.forks.items()):
            try:
                done, status = os.waitpid(pid, os.WNOHANG)
                said = b"end %d\n" % status
            except ChildProcessError:   # the code itself has waited for it
                done, said = pid, b"end lost\n"
            if done:
                del self.forks[pid]
                try:
                    os.write(join, said)
                except OSError:
                    pass
                os.close(join)
                if ended is not None:
                    os.close(ended)


def fetch_descriptors(name):
    """Those of a fork, from the worker that stands for it, which may have to be waited for: it is started meanwhile."""
    time = standard("time")
    late = time.monotonic() + FETCH_S
    while time.monotonic() < late:
        worker = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            worker.settimeout(FETCH_S)
            worker.connect(b"\0paddock-" + name.encode())
            # Whose process listens there: another user could have come first, and get the context.
            pid, uid, _ = memoryview(worker.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)).cast("i")
            if pid <= 0 or uid != own_uid:
                raise OSError
            ancillary = worker.recvmsg(1, _socket.CMSG_LEN(4 * FORK_DESCRIPTORS), _socket.MSG_CMSG_CLOEXEC)[1]
            return [number for _, _, payload in ancillary for number in memoryview(payload).cast("i")]
        except OSError:
            time.sleep(0.002)
        finally:
            worker.close()
    return []


def fork_quietly():
    """Without the warning of Python 3.12 about threads: whoever asked for this fork was told their number."""
    warnings = standard("warnings")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        driver.is_forking = True
        try:
            return fork_process()
        finally:
            driver.is_forking = False


def seed_random():
    """A fork draws other numbers than its parent. `random` sees to itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def volunteer():
    """When memory runs out the kernel takes a context in which code ran, and not the one it was forked from."""
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            score = int(file.read())
            file.seek(0)
            file.write("%d" % min(1000, score + 100))
    except OSError:
        pass


def memory():
    """The field of an event that tells the bytes of this process which are no file's, where the kernel says so."""
    try:
        with open("/proc/self/statm", "rb", 0) as file:
            resident, shared = file.read().split()[1:3]
        return {"memory": (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")}
    except Exception:
        return {}


def enter_first(places):
    """Goes to the first directory that can be entered; False without one."""
    for place in places:
        try:
            os.chdir(place)
            return True
        except OSError:
            pass
    return False


def look_at_libraries():
    """Something that changes when a library is installed, removed or upgraded, wherever site would look for it."""
    site = standard("site")
    places = [*sys.path, *site.getsitepackages(), site.getusersitepackages()]
    found = {}
    for place in filter(None, places):
        try:
            found[place] = os.stat(place).st_mtime_ns
        except OSError:
            found[place] = None
    return found


def import_modules(names):
    """Makes a zygote: what is imported here, every fork has. All are tried before one that is missing is told."""
    missing = None
    for name in names:
        try:
            __import__(name)
        except Exception as error:
            missing = missing or error
    page("display").warm_up()
    driver.libraries = look_at_libraries()
    gc.collect()
    gc.freeze()
    if missing is not None:
        raise missing


INTERRUPTIBLE = (execute.__code__, describe.__code__, import_modules.__code__)


class ImportHook:
    """Runs a function of the page `display` behind the first import of some modules."""

    def __init__(self):
        self.wanted = {"matplotlib", "PIL.Image", "IPython"}

    def find_spec(self, name, path, target=None):
        if name == "paddock_figures":
            from importlib.machinery import ModuleSpec
            return ModuleSpec(name, page("display").FiguresLoader())
        if name not in self.wanted:
            return None
        self.wanted.discard(name)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if finder is not self and find else None
            if spec is not None:
                return self.follow(spec)
        return None

    def follow(self, spec):
        loader = spec.loader
        if hasattr(loader, "exec_module"):
            execute_module = loader.exec_module

            def exec_module(module):
                with page("display").surroundings(module):
                    execute_module(module)
                page("display").imported(module)
            loader.exec_module = exec_module
        return spec


driver = Driver()


def main():
    if os.environ.get("PYTHONSAFEPATH") == "paddock":   # for this process alone: see languages.c
        del os.environ["PYTHONSAFEPATH"]
    driver.take_streams(0, 1, 2, 3)
    signal.signal(signal.SIGINT, on_interrupt)
    driver.make_main()
    os.register_at_fork(after_in_child=after_fork)
    gc.freeze()
    driver.say_ready()
    while True:
        try:
            return driver.serve()
        except (Exception, KeyboardInterrupt):
            pass    # as there, but right between its instructions


if __name__ == "paddock_driver":
    main()
