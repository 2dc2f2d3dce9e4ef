"""Where a credential of an engine is: looked for in everything that a server writes and says, on command lines and in
environments, and in the memory of who reads what clients, boxes and engines say. That it would be found is shown by those who
need it: brokers, and carriers of links."""

import array
import os
import re
from pathlib import Path

from . import host

PAGE = os.sysconf("SC_PAGESIZE")
MAY = ("paddock-remote", "paddock-carrier", "paddock-broker", "paddock-letters")


def runs_of(pagemap, first, last):
    """The pieces of a range that have pages: stacks of threads are large and nearly empty."""
    pagemap.seek(first // PAGE * 8)
    entries = array.array("Q", pagemap.read((last - first) // PAGE * 8))
    begin = None
    for n, entry in enumerate([*entries, 0]):
        is_there = entry >> 62
        if is_there and begin is None:
            begin = n
        elif not is_there and begin is not None:
            yield first + begin * PAGE, first + n * PAGE
            begin = None


def memory_has(pid, words):
    """Is one of the words in what a process can write to?"""
    with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory, \
            open(f"/proc/{pid}/pagemap", "rb", 0) as pagemap:
        for line in maps:
            spot = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if not spot or "[v" in line:
                continue
            for first, last in runs_of(pagemap, int(spot[1], 16), int(spot[2], 16)):
                try:
                    memory.seek(first)
                    data = memory.read(last - first)
                except OSError:
                    continue
                if any(word in data for word in words):
                    return True
    return False


def processes_of(server):
    """All of the server's, and its own name of each. Its switchboard knows none of its directories."""
    marks = [server.directory, *(server.settings[name] for name in ("cloudrun_listen",) if name in server.settings)]
    found = {}
    for pid in host.pids():
        words = host.command_line(pid)
        if any(mark in word for word in words for mark in marks):
            comm = (host.read_proc(pid, "comm") or "").strip()
            found[pid] = "paddock-broker" if "broker" in words else comm
    return found


def texts_of(server, api):
    """Everything that a server has written or says."""
    texts = {"log": server.log().encode(), "config": server.run("config").stdout.encode(),
             "config show": server.run("config", "show", check=False).stdout.encode()}
    for path in ("/v1/providers", "/v1/router", "/v1/overview", "/v1/audit", "/v1/sandboxes", "/metrics"):
        texts[path] = api.get(path).body
    for top, _, names in os.walk(server.directory):
        for name in names:
            path = Path(top, name)
            if path.is_file():
                texts[str(path)] = path.read_bytes()
    for pid, comm in processes_of(server).items():
        texts[f"command line of {pid} {comm}"] = (host.read_proc(pid, "cmdline") or "").encode()
        if comm not in MAY:
            texts[f"environment of {pid} {comm}"] = (host.read_proc(pid, "environ") or "").encode()
    return texts


def check_nowhere(server, api, words, names=("paddock-keeper", "paddock-far", "paddock-standin")):
    """In no text, and in the memory of none but those who may: among the others these names are."""
    found = [where for where, text in texts_of(server, api).items() if any(w in text for w in words)]
    assert not found, found
    others = {pid: comm for pid, comm in processes_of(server).items() if comm not in MAY}
    assert {*names} <= set(others.values()), others
    assert len(others) >= 3 and not [comm for pid, comm in others.items() if memory_has(pid, words)], others


def held(server, words):
    """Those who may have it, and do: the control."""
    return [comm for pid, comm in processes_of(server).items() if comm in MAY and memory_has(pid, words)]
