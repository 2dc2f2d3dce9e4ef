"""The end of a run: counts of each part, skips by their reason, and last what failed and why.

Whoever reads a run often sees only its end, so what matters most is there.
"""

import collections
import re

from .work import reason

SKIP_EXAMPLES = 2  # tests that are named for each reason
FAILED_WITH_REASON = 25  # so many failures have their reason at the end, the others their name


def skips(done):
    """Lines: each reason once, with how many tests it kept from running and the first of them."""
    groups = collections.defaultdict(list)
    for part in done:
        for test, why in part.skipped:
            # A path or a name in a reason makes no reason of its own.
            groups[part.name, re.sub(r"/\S+|'[^']*'|\"[^\"]*\"", "...", why)].append(test)
    for (part, why), tests in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        more = ", ..." if len(tests) > SKIP_EXAMPLES else ""
        yield f"{len(tests):5}  {part}: {why[:160]} ({', '.join(tests[:SKIP_EXAMPLES])[:120]}{more})"


def failures(done, kind):
    """Lines: each test that failed, or that is unsteady, and the last lines of its reason."""
    number = 0
    for part in done:
        for test, text in getattr(part, kind):
            number += 1
            yield f"  {part.name}: {test[:300]}"
            if number <= FAILED_WITH_REASON:
                yield from (f"      {line}" for line in reason(text))


def lines(done, seconds):
    for part in done:
        yield (f"{part.name + ':':10}{part.counts()}, {part.seconds:.1f} s, "
               f"{part.cpu:.1f} s of processor time")
    yield (f"{'all:':10}{seconds:.1f} s, "
           f"{sum(part.cpu for part in done):.1f} s of processor time")
    for title, found in (
            ("skipped", list(skips(done))),
            ("unsteady (failed, and passed when tried again alone: a fault to be found)",
             list(failures(done, "unsteady"))),
            ("failed", list(failures(done, "failed")))):
        if found:
            yield from ("", f"{title}:", *found)
    yield ""
    yield ", ".join(f"{sum(counts)} {word}" for word, counts in (
        ("passed", [p.passed for p in done]),
        ("failed", [len(p.failed) for p in done]),
        ("skipped", [len(p.skipped) for p in done])))
