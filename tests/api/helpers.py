"""One sandbox as short calls, event streams, and what many tests do."""

import base64
import json
import os
import threading
import time

from paddock_testing import run as paddock


class Box:
    """A sandbox. Calls that must work say so; `api` is there for those that must not."""

    def __init__(self, api, sandbox):
        self.api = api
        self.id = sandbox
        self.base = f"/v1/sandboxes/{sandbox}"

    def get(self):
        answer = self.api.get(self.base)
        assert answer.status == 200, answer
        return answer.json()

    def ask(self, command=None, headers=None, **more):
        """The response to an exec, whatever it is."""
        body = dict(more) if command is None else {"command": command, **more}
        return self.api.post(f"{self.base}/exec", json=body, headers=headers)

    def exec(self, command=None, headers=None, **more):
        """The result of a command that ran to some end."""
        answer = self.ask(command, headers, **more)
        assert answer.status == 200, answer
        return answer.json()

    def out(self, command, **more):
        """What a command wrote that succeeded."""
        result = self.exec(command, **more)
        assert result["exit_code"] == 0, result
        return result["stdout"]

    def start(self, command=None, **more):
        body = dict(more) if command is None else {"command": command, **more}
        answer = self.api.post(f"{self.base}/processes", json=body)
        assert answer.status == 201, answer
        return answer.json()

    def process(self, process):
        answer = self.api.get(f"{self.base}/processes/{process}")
        assert answer.status == 200, answer
        return answer.json()

    def processes(self):
        answer = self.api.get(f"{self.base}/processes")
        assert answer.status == 200, answer
        return answer.json()["processes"]

    def output(self, process, query=""):
        return self.api.get(f"{self.base}/processes/{process}/output{query}")

    def write(self, process, data=b"", query=""):
        return self.api.post(f"{self.base}/processes/{process}/stdin{query}", data=data,
                             headers={"Content-Type": "application/octet-stream"})

    def signal(self, process, signal):
        return self.api.post(f"{self.base}/processes/{process}/signal", json={"signal": signal})

    def wait(self, process, limit=20):
        """Until it has ended; gives its record."""
        return paddock.wait_for(
            lambda: (p := self.process(process)) and not p["running"] and p, limit,
            f"process {process} ends")

    def wait_output(self, process, text, limit=20, stream="stdout"):
        def seen():
            body = self.output(process, f"?stream={stream}").body
            return body if text in body else None

        return paddock.wait_for(seen, limit, f"{text!r} in the output of {process}")

    def env(self):
        answer = self.api.get(f"{self.base}/env")
        assert answer.status == 200, answer
        return answer.json()

    def is_there(self, word):
        """Is there a process in the sandbox with this word in its command line? The word is never
        in the line of the one that looks."""
        # pgrep does not find itself, but would find the bash that runs it. Where a sandbox sees the
        # machine's processes its own are those of its user.
        shared = os.environ.get("PADDOCK_TEST_PROVIDER") == "local"
        own = ["-u", self.exec(argv=["id", "-u"])["stdout"].strip()] if shared else []
        return self.exec(argv=["pgrep", *own, "-f", word])["exit_code"] == 0


class Event:
    def __init__(self, id, name, data):
        self.id = id
        self.name = name
        self.data = data

    @property
    def bytes(self):
        """What an output event carries."""
        if "text" in self.data:
            return self.data["text"].encode()
        return base64.b64decode(self.data["base64"], validate=True)

    def __repr__(self):
        return f"Event({self.id}, {self.name}, {str(self.data)[:200]})"


def read_events(response):
    """The events of a response, as they come; ends with the stream."""
    id, name, data, comments = None, None, [], 0
    for line in iter(response.readline, b""):
        assert line.endswith(b"\n"), line
        line = line[:-1].decode()
        if not line:
            if data:
                yield Event(id, name, json.loads("\n".join(data)))
            name, data = None, []
        elif line.startswith(":"):
            comments += 1
        else:
            field, _, value = line.partition(": ")
            assert field in ("id", "event", "data"), line
            if field == "id":
                id = value
            elif field == "event":
                name = value
            else:
                data.append(value)


def stream_exec(api, base, body, headers=None):
    """An exec as an event stream: the response, which read_events reads."""
    answer = api.stream("POST", f"{base}/exec", json=body,
                        headers={"Accept": "text/event-stream", **(headers or {})})
    assert answer.status == 200, (answer.status, answer.read())
    assert answer.getheader("Content-Type") == "text/event-stream"
    return answer


def collect(events):
    """The bytes of both streams and the data of the exit event (None when it did not come). Checks
    that the ids count the bytes."""
    streams = {"stdout": b"", "stderr": b""}
    end = None
    for event in events:
        assert end is None, f"{event} came behind the end"
        if event.name == "exit":
            end = event.data
        else:
            streams[event.name] += event.bytes
    return streams["stdout"], streams["stderr"], end


def together(count, call):
    """Calls `call(number)` in `count` threads at once; gives the results in order."""
    results, errors = [None] * count, []
    barrier = threading.Barrier(count)

    def work(number):
        try:
            barrier.wait(paddock.seconds(10))
            results[number] = call(number)
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(paddock.seconds(90))
    assert not errors, errors
    assert not any(thread.is_alive() for thread in threads)
    return results


class Later:
    """A call that goes on in a thread while the test does something else."""

    def __init__(self, call):
        self.result = self.error = None
        self.since = time.monotonic()
        self.thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self.thread.start()

    def _run(self, call):
        try:
            self.result = call()
        except BaseException as error:  # pylint: disable=broad-except
            self.error = error
        self.took = time.monotonic() - self.since

    @property
    def done(self):
        return not self.thread.is_alive()

    def get(self, limit=30):
        self.thread.join(paddock.seconds(limit))
        assert self.done, f"not finished after {paddock.seconds(limit):.0f} s"
        if self.error:
            raise self.error
        return self.result


def metric(api, name, **labels):
    """The sum of the samples of a metric that have these labels."""
    total = 0.0
    for sample, found, value in metrics(api):
        if sample == name and all(found.get(k) == v for k, v in labels.items()):
            total += value
    return total


def metrics(api):
    """[(name, {label: value}, number)]; the text must be what Prometheus reads."""
    answer = api.get("/metrics")
    assert answer.status == 200, answer
    samples = []
    for line in answer.text.splitlines():
        if not line or line.startswith("#"):
            continue
        left, _, value = line.rpartition(" ")
        name, _, rest = left.partition("{")
        labels = {}
        for pair in rest.rstrip("}").split(",") if rest else []:
            key, _, text = pair.partition("=")
            assert text[0] == text[-1] == '"', line
            labels[key] = text[1:-1]
        samples.append((name, labels, float(value)))
    return samples
