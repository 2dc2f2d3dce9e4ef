"""contexts.py [PICTURE]: an agent's data analysis. A CSV is loaded and drawn in one context; two models
are tried in forks of it, each with all the variables; the better one is kept. The plot goes to PICTURE
if one is named.

    PADDOCK_URL=http://127.0.0.1:8090 PADDOCK_API_KEY=e2b_... python3 examples/contexts.py
"""

import base64
import sys

from paddock import Sandbox

CSV = "month,visitors\n" + "".join(f"{m},{40 + 9 * m + (m * 7) % 5}\n" for m in range(1, 13))

LOAD = """
import csv
rows = [(int(r["month"]), int(r["visitors"])) for r in csv.DictReader(open("visitors.csv"))]
months, visitors = zip(*rows)

def error(model):
    "How far a model is off, on average."
    return sum(abs(model(m) - v) for m, v in rows) / len(rows)

len(rows)
"""

DRAW = """
import matplotlib.pyplot as plt
plt.figure(figsize=(5, 2.6), dpi=80)
plt.plot(months, visitors, marker="o", label="visitors")
plt.title("Visitors by month")
plt.xlabel("month")
plt.legend()
plt.show()
"""

MODELS = {
    "the average": """
mean = sum(visitors) / len(visitors)
model = lambda month: mean
round(error(model), 2)
""",
    "a line": """
from statistics import linear_regression
line = linear_regression(months, visitors)
model = lambda month: line.slope * month + line.intercept
round(error(model), 2)
""",
}

with Sandbox.create(timeout=300) as sandbox:
    sandbox.files.write("visitors.csv", CSV)
    base = sandbox.create_code_context()
    print("rows:", base.run(LOAD).text)

    drawn = base.run(DRAW)
    plot = next((r for r in drawn.results if r.png), None)
    if plot is None:
        print("plot: none,", drawn.error.value if drawn.error else "nothing was shown")
    else:
        print("plot:", plot.chart.type.value, [e.label for e in plot.chart.elements])
        if len(sys.argv) > 1:
            with open(sys.argv[1], "wb") as picture:
                picture.write(base64.b64decode(plot.png))

    errors, trials = {}, {}
    for name, code in MODELS.items():
        trials[name] = base.fork()
        errors[name] = float(trials[name].run(code).text)
        print(f"{name}: off by {errors[name]}")

    best = min(errors, key=lambda name: errors[name])
    for name, trial in trials.items():
        if name != best:
            trial.remove()
    print(f"kept: {best}; month 13 will have {trials[best].run('round(model(13))').text} visitors")
