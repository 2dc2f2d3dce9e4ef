"""Code that takes its driver over: it can lie about itself, and do nothing else.

The code shares its process with the driver, so it writes to the driver's descriptors itself."""

import json

import pytest

from helpers import Later
from paddock_testing.run import wait_for
from test_contexts import Contexts

# The driver's descriptors are the high ones: events go to a pipe that is neither output, requests come by a socket.
TAKE_OVER = """
import os
links = {}
for name in os.listdir('/proc/self/fd'):
    try: links[int(name)] = os.readlink('/proc/self/fd/' + name)
    except OSError: pass
outputs = {links[1], links[2]}
events = next(fd for fd, to in links.items() if fd > 50 and to.startswith('pipe:') and to not in outputs)
requests = next(fd for fd, to in links.items() if fd > 50 and to.startswith('socket:'))
def say(line): os.write(events, line.encode() + b'\\n')
"""


@pytest.fixture
def contexts(api, sandbox):
    found = Contexts(api, sandbox)
    assert found.run(TAKE_OVER)["error"] is None
    return found


def check_alive(contexts):
    assert contexts.run("6 * 7")["results"][0]["text"] == "42"


@pytest.mark.parametrize("line", [
    "'garbage'", "'{}'", "'[1]'", "'{\"type\":\"end\"}'", "'{\"type\":\"end\",\"seq\":1,\"id\":\"../x\"}'",
    "'{\"type\":\"result\",\"seq\":9,\"id\":\"x\",\"data\":{\"a\":NaN}}'",
    "'{\"type\":\"other\",\"seq\":9,\"v\":' + '[' * 600 + ']' * 600 + '}'",
    "'{\"type\":\"other\",\"seq\":9,\"v\":\"\\xe4\"}'", "'x' * (17 << 20)"])
def test_what_cannot_be_read_ends_the_context(contexts, line):
    found = contexts.run(f"say({line}); import time; time.sleep(1000)", timeout_s=0)
    assert found["state"] == "restarted" and found["reason"] == "protocol", found
    assert found["error"]["name"] == "ContextRestarting"
    check_alive(contexts)


def test_unknown_events_are_left_out(contexts):
    found = contexts.run("say('{\"type\":\"new\",\"seq\":99,\"id\":\"x\",\"more\":[1]}'); 1")
    assert found["state"] == "kept" and len(found["results"]) == 1


def test_nobody_answers_for_another_id(contexts, api):
    """Of another context, and of the next execution of its own."""
    other = contexts.create()["id"]
    contexts.run("import time", other)
    later = contexts.ask("import time; time.sleep(0.5); 'honest'", other, detached=True).json()["id"]
    lie = ('{"type":"%s","seq":50,"id":"%s","main":true,"ok":true,"count":1,"data":{"text/plain":"LIE"}}')
    forged = "\n".join(f"say('{lie % (kind, later)}')" for kind in ("start", "result", "end"))
    assert contexts.run(forged)["results"] == []
    ended = wait_for(lambda: (x := api.get(f"{contexts.base}/{other}/executions/{later}").json())["state"] == "kept"
                     and x, 20, "it ends")
    assert [r["text"] for r in ended["results"]] == ["honest"]

    # The control: of its own id it is believed, because that hurts nobody else.
    own = contexts.ask("import time\nwhile not os.path.exists('/tmp/id'): time.sleep(0.02)\n"
                       "say('%s' % open('/tmp/lie').read().replace('ID', open('/tmp/id').read()))", detached=True).json()["id"]
    contexts.box.out("cat >/tmp/lie", stdin=lie % ("result", "ID"))
    contexts.box.out(f"printf %s {own} >/tmp/id.new; mv /tmp/id.new /tmp/id")
    ended = wait_for(lambda: (x := api.get(f"{contexts.base}/python/executions/{own}").json())["state"] == "kept" and x,
                     60, "it ends")  # without marks it is waited for elsewhere than in a jail
    assert [r["text"] for r in ended["results"]] == ["LIE"]


def test_a_flood_of_results_is_cut(contexts):
    found = contexts.run("for i in range(20): display('x' * 1000000)")
    assert found["truncated"] and found["state"] == "kept" and 5 < len(found["results"]) < 20
    check_alive(contexts)


def test_a_flood_of_output_is_cut(contexts):
    found = contexts.run("import sys\nfor i in range(2000): sys.stdout.write('x' * 10000 + chr(30))")
    assert found["truncated"] and found["state"] == "kept"
    check_alive(contexts)


def test_closed_outputs_lose_only_themselves(contexts):
    contexts.run("os.close(1); os.close(2)")
    check_alive(contexts)
    contexts.run("n = os.open('/dev/null', os.O_WRONLY); os.dup2(n, 1); os.dup2(n, 2)")
    check_alive(contexts)


def test_closed_events_end_the_context_in_time(contexts):
    found = contexts.run("os.close(events)", timeout_s=1)
    assert found["state"] == "restarted"
    check_alive(contexts)


def test_nothing_comes_out_by_the_socket_of_requests(contexts):
    """Neither bytes nor descriptors: the server's end takes none."""
    code = """
import array, socket
def attempts(s):
    for what in (lambda: s.send(b'x'),
                 lambda: s.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))])):
        try: what(); yield 'sent'
        except OSError as e: yield type(e).__name__
a, b = socket.socketpair()
list(attempts(socket.socket(fileno=os.dup(requests)))), list(attempts(a))
"""
    found = contexts.run(code)["results"][0]["text"]
    assert found == "(['BrokenPipeError', 'BrokenPipeError'], ['sent', 'sent'])"  # the second is the control
    check_alive(contexts)


def test_a_driver_that_stands_still_keeps_nobody_waiting(contexts, api):
    """Stopped inside a cell, and stopped before one that is longer than a socket holds."""
    later = Later(lambda: contexts.run("import signal; os.kill(os.getpid(), signal.SIGSTOP)", timeout_s=0.5))
    assert api.get("/healthz").status == 200 and contexts.box.out("echo here") == "here\n"
    assert later.get(60)["reason"] == "timeout"
    check_alive(contexts)

    contexts.box.signal(contexts.get()["pid"], "SIGSTOP")
    late = contexts.run("#" * 1000000, timeout_s=0.5)
    assert late["state"] == "restarted" and late["reason"] == "timeout"
    check_alive(contexts)


def test_a_driver_that_reads_no_requests_ends_in_time(contexts):
    contexts.run("os.dup2(os.open('/dev/null', os.O_RDONLY), requests)")
    found = contexts.run("1", timeout_s=1)
    assert found["state"] == "restarted"
    check_alive(contexts)


def test_memory_that_is_used_up_is_told(api, make_sandbox):
    contexts = Contexts(api, make_sandbox(limits={"memory_bytes": 96 << 20}))
    contexts.run("x = 1")
    found = contexts.run("import mmap\nm = mmap.mmap(-1, 1 << 30)\n"
                         "for i in range(0, 1 << 30, 4096): m[i] = 1")
    assert found["state"] == "restarted" and found["reason"] == "oom", found
    check_alive(contexts)


def test_children_end_with_the_interrupt(contexts):
    late = contexts.run("import subprocess; subprocess.run(['sleep', '7777'])", timeout_s=0.5)
    assert late["state"] == "kept" and late["error"]["name"] == "KeyboardInterrupt"
    wait_for(lambda: not contexts.box.is_there("sleep 7777"), 20, "its child is gone")


def test_reprs_without_end(contexts):
    contexts.run("class Endless:\n    def __repr__(self):\n        while True: pass")
    late = contexts.run("Endless()", timeout_s=0.5)
    assert late["reason"] == "timeout"
    found = contexts.run("class Bad:\n    def __repr__(self): raise RuntimeError('no')\nBad()")
    assert found["state"] == "kept"
    check_alive(contexts)


def test_values_that_json_has_not(contexts):
    found = contexts.run("[float('nan'), float('inf'), 10 ** 40, '\\ud800']")
    assert found["error"] is None and len(found["results"]) == 1, found
    json.dumps(found, ensure_ascii=False).encode()
    check_alive(contexts)
