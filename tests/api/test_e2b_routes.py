"""docs/e2b.md lists the paths of the E2B door: every one, and no other."""

import re
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
TEXT = (TOP / "src" / "api" / "e2b_routes.c").read_text()
PAGE = (TOP / "docs" / "e2b.md").read_text()
WORDS = dict(re.findall(r'#define (\w) (".*")', TEXT))


def expand(pattern):
    return "".join(expand(WORDS[name]) if name else quoted
                   for quoted, name in re.findall(r'"([^"]*)"|\b(\w)\b', pattern))


def rows():
    """{path: methods} that are answered, and the paths that are refused by name."""
    found, refused = {}, set()
    row = re.compile(r'\{"([A-Z*]+)", ((?:\w |\w,|"[^"]*" ?)+),? ?(\w+), ')
    for method, pattern, handler in row.findall(TEXT):
        if handler == "e2b_not_here":
            refused.add(expand(pattern))
        else:
            found.setdefault(expand(pattern), set()).add(method)
    assert len(found) > 35 and len(refused) > 6
    return found, refused


def test_the_page_lists_every_path_and_no_other():
    section = PAGE[PAGE.index("## Every path"):PAGE.index("## Tests")]
    listed = {path: set(methods.split())
              for methods, path in re.findall(r"^- `([A-Z ]+) (/\S+)`(?:, .*)?$", section, re.M)}
    found, refused = rows()
    assert listed == found
    assert set(re.findall(r"`(/\S+)`", section[section.index("Refused by name"):])) == refused
