"""The picture of docs/benchmarks.md: two panels of bars, on a scale where each line is ten times the one
before it. A plain SVG of a few kilobytes; its colours follow the reader's, light or dark.
"""

import math
from xml.sax.saxutils import escape

from figures import Missing, look_up, median

PANELS = (
    ("A new sandbox, one command in it, and its end", (
        ("paddock, running keeper", "bench", "cold", True),
        ("paddock run, nothing running", "bench", "run", True),
        ("bubblewrap", "bench", "bubblewrap", False),
        ("crun run", "bench", "crun", False),
        ("runc run", "bench", "runc", False),
        ("docker run", "bench", "docker", False),
    )),
    ("A command in a sandbox that is there", (
        ("no sandbox at all", "bench", "floor", False),
        ("paddock, exec in a jail", "bench", "exec", True),
        ("paddock, over HTTP", "bench-server", "exec", True),
        ("paddock, in docker, over HTTP", "bench-server", "docker-argv", True),
        ("docker exec", "bench", "docker-exec", False),
    )),
)
LEFT, WIDTH, BAR, STEP = 210, 720, 16, 26
FIRST, DECADES = 0.1, 4  # ms: from 0.1 ms to 1 s
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #222 } .title { font-weight: 600 } .small { font-size: 11px; fill: #666 }
.ours { fill: #1a7f5a } .other { fill: #9aa4ad } line { stroke: #ddd }
@media (prefers-color-scheme: dark) {
text { fill: #ddd } .small { fill: #999 } .ours { fill: #3fb98a } .other { fill: #6b7680 } line { stroke: #444 } }
"""


def milliseconds(runs, file, name):
    """The median of p50, or why there is none."""
    found, reason = [], "not measured"
    for data in runs:
        try:
            found.append(look_up(data, file, "latency", name, "p50_us") / 1000)
        except Missing:
            reason = data.get(file, {}).get("latency", {}).get(name, {}).get("skipped", reason)
    return (median(found), "") if found else (None, reason)


def place(ms):
    """Where a time is on the scale, in pixels from its beginning."""
    decades = math.log10(max(ms, FIRST) / FIRST)
    return min(decades, DECADES) / DECADES * (WIDTH - LEFT - 80)


def time_text(ms):
    return f"{ms:.2f} ms" if ms < 10 else f"{ms:.0f} ms"


def draw(runs):
    parts, y = [], 24
    for title, bars in PANELS:
        parts.append(f'<text class="title" x="10" y="{y}">{escape(title)}</text>')
        top = y + 12
        bottom = top + STEP * len(bars)
        for decade in range(DECADES + 1):
            x = LEFT + place(FIRST * 10**decade)
            ms = FIRST * 10**decade
            label = f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s"
            parts.append(f'<line x1="{x:.0f}" y1="{top}" x2="{x:.0f}" y2="{bottom}"/>')
            parts.append(f'<text class="small" x="{x:.0f}" y="{bottom + 14}" text-anchor="middle">{label}</text>')
        for i, (name, file, series, ours) in enumerate(bars):
            ms, reason = milliseconds(runs, file, series)
            at = top + STEP * i + (STEP - BAR) // 2
            parts.append(f'<text x="{LEFT - 8}" y="{at + 13}" text-anchor="end">{escape(name)}</text>')
            if ms is None:
                parts.append(f'<text class="small" x="{LEFT + 6}" y="{at + 13}">{escape(reason[:70])}</text>')
                continue
            parts.append(f'<rect class="{"ours" if ours else "other"}" x="{LEFT}" y="{at}" '
                         f'width="{place(ms):.1f}" height="{BAR}" rx="2"/>')
            parts.append(f'<text x="{LEFT + place(ms) + 6:.1f}" y="{at + 13}">{time_text(ms)}</text>')
        y = bottom + 48
    parts.append(f'<text class="small" x="10" y="{y - 14}">Median times of /bin/true, taken in turns; over HTTP in a run of its own. '
                 "Each line is ten times the one before it.</text>")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" role="img" '
            f'aria-label="Time of a command in a sandbox, beside other sandboxes"><style>{STYLE}</style>\n'
            + "\n".join(parts) + "\n</svg>\n")
