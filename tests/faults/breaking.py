"""A server to be broken: killed, starved and started again, and the words the tests say to it."""

import contextlib
import http.client
import os
import signal
import threading
import time

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.server import Client, Server, check_error

QUICK = {"requests_per_s": 0, "creates_per_s": 0, "pool_min": 0, "pool_max": 0,
         "drain_timeout_s": 1}


class Victim(Server):
    """`launcher` is put before the command line, such as prlimit; `binary` is what is started."""

    def __init__(self, settings=None, launcher=(), **more):
        super().__init__({**QUICK, **(settings or {})}, **more)
        self.launcher = list(launcher)
        self.binary = paddock.PADDOCK

    def argv(self):
        return self.launcher + [self.binary] + super().argv()[1:]

    def kill(self, who="guardian"):
        """kill -9. The daemon may be on its way out still: the next start has to cope with it."""
        self.note_instances()
        self.expect_end()
        os.kill(self.process.pid if who == "guardian" else self.daemon(), signal.SIGKILL)
        self.process.wait(paddock.seconds(10))

    def restart(self):
        """The seconds until the first answer."""
        began = time.monotonic()
        self.start()
        return time.monotonic() - began

    def kill_and_restart(self, who="guardian"):
        self.kill(who)
        return self.restart()

    def keeper(self):
        """The keeper itself. Its builders have its command line, too; those of one that was killed
        are without a parent until they have followed it."""
        def the_only_one():
            pids = self.keepers()
            tops = [p for p in pids if host.parent(p) not in pids]
            return tops if len(tops) == 1 else None
        return paddock.wait_for(the_only_one, 20, "one keeper, and none that was killed")[0]


class Box:
    """One sandbox, by its id; without one it is made."""

    def __init__(self, api, made=None, **body):
        self.api = api
        if made is None:
            answer = api.post("/v1/sandboxes", json=body)
            assert answer.status == 201, answer
            made = answer.json()["id"]
        self.id = made
        self.url = f"/v1/sandboxes/{self.id}"

    def get(self):
        answer = self.api.get(self.url)
        assert answer.status == 200, answer
        return answer.json()

    def try_exec(self, command, headers=None, **body):
        return self.api.post(f"{self.url}/exec", json={"command": command, **body},
                             headers=headers)

    def exec(self, command, headers=None, **body):
        answer = self.try_exec(command, headers, **body)
        assert answer.status == 200, answer
        return answer.json()

    def out(self, command, **body):
        result = self.exec(command, **body)
        assert result["exit_code"] == 0, result
        return result["stdout"]

    def start(self, command, **body):
        answer = self.api.post(f"{self.url}/processes", json={"command": command, **body})
        assert answer.status == 201, answer
        return answer.json()["process_id"]

    def process(self, process):
        answer = self.api.get(f"{self.url}/processes/{process}")
        assert answer.status == 200, answer
        return answer.json()

    def output(self, process, offset=0, stream="stdout", **query):
        more = "".join(f"&{k}={v}" for k, v in query.items())
        answer = self.api.get(
            f"{self.url}/processes/{process}/output?stream={stream}&offset={offset}{more}")
        assert answer.status == 200, answer
        return answer.body

    def write(self, process, data, close=False):
        answer = self.api.post(f"{self.url}/processes/{process}/stdin?close={str(close).lower()}",
                               data=data, headers={"Content-Type": "application/octet-stream"})
        assert answer.status == 204, answer

    def wait_output(self, process, wanted, seconds=20):
        def there():
            return wanted in self.output(process)
        paddock.wait_for(there, seconds, f"{wanted!r} is printed")

    def wait_end(self, process, seconds=60):
        paddock.wait_for(lambda: not self.process(process)["running"], seconds, "it ends")
        return self.process(process)

    def put_file(self, path, data):
        return self.api.put(f"{self.url}/files?path={path}", data=data,
                            headers={"Content-Type": "application/octet-stream"})

    def read_file(self, path):
        answer = self.api.get(f"{self.url}/files?path={path}")
        assert answer.status == 200, answer
        return answer.body

    def action(self, name):
        answer = self.api.post(f"{self.url}/{name}")
        assert answer.status == 200, answer
        return answer.json()

    def delete(self):
        answer = self.api.delete(self.url)
        assert answer.status == 204, answer


class Later(threading.Thread):
    """A call in the background; what it raised or gave is in `error` and `value`."""

    def __init__(self, call, *args, **named):
        super().__init__(daemon=True)
        self.call = lambda: call(*args, **named)
        self.value = self.error = None
        self.start()

    def run(self):
        try:
            self.value = self.call()
        except (OSError, http.client.HTTPException, AssertionError) as error:
            self.error = error

    def end(self, seconds=60):
        self.join(paddock.seconds(seconds))
        assert not self.is_alive(), "the call does not come back"
        return self


def read_events(response, until=None):
    """Events of a stream as (event, data, id) until it ends or breaks, or `until` says so."""
    found, event = [], {}
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        while line := response.readline():
            line = line.decode().rstrip("\r\n")
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                event[name] = value
            elif not line and event:
                found.append((event.get("event"), event.get("data"), event.get("id")))
                event = {}
                if until and until(found):
                    break
    return found


def api_metric(api, name):
    """The value of a counter or gauge without labels."""
    lines = [line for line in api.get("/metrics").text.splitlines() if line.startswith(name + " ")]
    assert len(lines) == 1, lines
    return float(lines[0].split()[1])


def check_counter(text):
    """Lines 1, 2, 3... exactly once and in order; the last one may be unfinished."""
    lines = text.split(b"\n")
    whole = lines[:-1]
    assert [int(n) for n in whole] == list(range(1, len(whole) + 1)), "lost or doubled"
    assert whole
    return len(whole)


__all__ = ["Box", "Client", "Later", "Victim", "api_metric", "check_counter", "check_error", "read_events"]
