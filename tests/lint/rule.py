"""What the lint rules share: the list of files, and a self-test that proves a rule can fail.

A rule is an executable file in this directory. It defines check(root), which yields complaints, and
ends with rule.main(check, good=..., bad=...): trees, given as {path: contents}, that must pass and
must be complained about. `RULE` checks the checkout, `RULE --self-test` checks the rule.
"""

import os
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def files(root, *endings):
    """Paths below root, relative, sorted; without build directories and caches."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [
            f
            for f in folders
            if f not in (".git", "__pycache__", ".pytest_cache")
            and not (folder == root and (f == "build" or f.startswith("build-")))
            # pip builds in place.
            and not (f == "build" and folder == os.path.join(root, "sdk/python"))
        ]
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), root)
            if not os.path.islink(os.path.join(root, path)) and path.endswith(endings or ("",)):
                found.append(path)
    return sorted(found)


def text(root, path):
    """The contents, or None when the file is not text."""
    with open(os.path.join(root, path), "rb") as f:
        data = f.read()
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _tree_complaints(check, tree):
    with tempfile.TemporaryDirectory() as root:
        for path, contents in tree.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as f:
                f.write(contents)
        return list(check(root))


def _self_test(check, good, bad):
    failures = 0
    for tree in good:
        for complaint in _tree_complaints(check, tree):
            print(f"self-test: a good tree {sorted(tree)} got: {complaint}")
            failures += 1
    for tree in bad:
        if not _tree_complaints(check, tree):
            print(f"self-test: no complaint about {tree}")
            failures += 1
    return failures


def main(check, good, bad):
    if not good or not bad:
        sys.exit("a rule needs at least one good and one bad tree")
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(1 if _self_test(check, good, bad) else 0)
    root = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    complaints = list(check(root))
    for complaint in complaints:
        print(complaint)
    sys.exit(1 if complaints else 0)
