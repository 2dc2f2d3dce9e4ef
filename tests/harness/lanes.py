"""Which parts run beside which.

A stage is a list of lanes and a rest; its lanes run side by side, the parts of a lane one after the
other. A lane that is done takes the next part of the rest, so that all end at about the same time. What
computes is in one lane and what mostly waits is in the others, so that two processors have enough to
do. What counts things of the whole machine, such as cgroups that the kernel has not freed yet, has a
stage of its own.
"""

import collections
import sys
import threading
import time

from .work import Part, Stopped

PROGRESS_S = 30  # between two lines that say what is running


class Timetable:
    """Runs the stages and prints a part's lines when it is done."""

    def __init__(self, workshop, functions, wanted):
        self.workshop = workshop
        self.functions = functions
        self.wanted = wanted
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.running = {}
        self.done = []
        self.broken = []

    def run(self, stages):
        """The parts in the order in which they ended."""
        for lanes, rest in stages:
            rest = collections.deque(n for n in rest if n in self.wanted)
            threads = [threading.Thread(target=self._lane, daemon=True,
                                        args=([n for n in lane if n in self.wanted], rest))
                       for lane in lanes]
            for thread in threads:
                thread.start()
            self._watch(threads)
            if self.broken:
                raise self.broken[0]
        return self.done

    def _watch(self, threads):
        said = time.monotonic()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
                if time.monotonic() - said > PROGRESS_S:
                    said = time.monotonic()
                    self._progress(said)

    def _progress(self, now):
        with self.lock:
            parts = ", ".join(f"{n} ({now - t:.0f} s)" for n, t in sorted(self.running.items()))
            print(f".. {now - self.began:.0f} s: {parts}", flush=True)

    def _lane(self, names, rest):
        try:
            for name in names:
                self._part(name)
            while name := self._take(rest):
                self._part(name)
        except Stopped:
            pass
        except BaseException as fault:  # a fault of a part's own code ends the run loudly
            self.broken.append(fault)

    def _take(self, rest):
        with self.lock:
            return rest.popleft() if rest else None

    def _part(self, name):
        part = Part(name)
        start = time.monotonic()
        with self.lock:
            self.running[name] = start
        self.functions[name](self.workshop, part)
        if not part.passed and not part.failed and not part.skipped:
            part.fail(f"{name}: no test ran")
        part.seconds = time.monotonic() - start
        part.write_results()
        with self.lock:
            del self.running[name]
            self.done.append(part)
            print(f"== {name}")
            for line in part.lines:
                print(line)
            print(f"== {name}: {part.counts()}, {part.seconds:.1f} s, "
                  f"{part.cpu:.1f} s of processor time\n")
            sys.stdout.flush()
