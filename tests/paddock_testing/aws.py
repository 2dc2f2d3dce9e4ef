"""AWS for a test: moto with signatures checked, and in front of it what moto does not have.

`Aws` is the endpoint. It passes requests on to moto and besides

- starts a task (task.py) with the words and the environment of its overrides for each RunTask, ends it at StopTask, and
  tells of one that has ended by itself as ECS does; a task has the address of its own network, not moto's;
- is strict about clientToken, which moto ignores: the same one is the same task, with another request a
  ConflictException that names it;
- is late, as ECS is: a new task is MISSING in the first answers, then PENDING without an address;
- loses requests and answers, and throttles, where a test says so: `faults[ACTION]` is a list of "before" (it never
  arrives), "after" (done, and no answer), "throttle", "fail"; each is used once.

`bodies` has what was asked for, by action.
"""

import contextlib
import http.client
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path

from . import run as paddock
from . import task as tasks

HERE = Path(__file__).resolve().parent
INSTALLED = paddock.TOP / "build-aws" / "venv" / "bin" / "python"


def python():
    """The interpreter that has moto: that of tests/aws/install, or one that is there anyway; or None."""
    for at in (INSTALLED, shutil.which("python3")):
        if at and os.access(at, os.X_OK) and subprocess.run(
                [at, "-c", "import moto.server, boto3"], capture_output=True, check=False).returncode == 0:
            return str(at)
    return None


def why_not():
    """Brings moto, where it is not there."""
    if reason := tasks.why_not():
        return reason
    if python():
        return ""
    done = subprocess.run([paddock.TOP / "tests/aws/install"], capture_output=True, text=True, check=False,
                          timeout=paddock.seconds(300))
    return "" if python() else "moto is not installed: " + (done.stdout.splitlines() or ["tests/aws/install failed"])[-1]


def _free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Moto:
    def __init__(self):
        self.port = _free_port()
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [python(), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)], stdout=self.log, stderr=self.log,
            stdin=subprocess.DEVNULL, start_new_session=True,
            env={**paddock.clean_environment(), "INITIAL_NO_AUTH_ACTION_COUNT": "100000"})
        paddock.wait_for(self._answers, 60, "moto answers")
        made = subprocess.run([python(), HERE / "aws_setup.py", f"http://127.0.0.1:{self.port}"], check=False,
                              capture_output=True, env=paddock.clean_environment())
        assert made.returncode == 0, made.stderr.decode()
        self.made = json.loads(made.stdout)
        self.tell("state-manager/set-transition", json.dumps(
            {"model_name": "ecs::task", "transition": {"progression": "time", "seconds": 86400}}), "application/json")
        self.tell("reset-auth", "0", "text/plain")

    def _answers(self):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False

    def tell(self, what, body, content):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=paddock.seconds(20))
        c.request("POST", "/moto-api/" + what, body, {"Content-Type": content})
        answer = c.getresponse()
        assert answer.status in (200, 201), (what, answer.status, answer.read())
        c.close()

    def close(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Known:
    """What this end knows of a task."""

    def __init__(self, arn, told, task):
        self.arn, self.told, self.task = arn, told, task
        self.asked, self.stopped = 0, False

    @property
    def over(self):
        return self.stopped or not self.task.runs()


class Aws:
    def __init__(self, page=2):
        self.page = page  # entries of a list
        self.moto = Moto()
        self.made = self.moto.made
        self.dir = tempfile.mkdtemp(prefix="paddock-aws-")
        self.lock = threading.RLock()
        self.known, self.tokens, self.bodies, self.faults, self.targets = {}, {}, {}, {}, set()
        self.lateness = 1  # answers in which a new task is MISSING, then as many in which it is PENDING
        self.delay = 0  # s, before a RunTask is done
        self.balancer = None  # that follows the target group
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):  # pylint: disable=invalid-name
                outer.serve(self)

            def log_message(self, *_args):
                pass

        class Listener(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_args):  # those who gave up waiting
                pass

        self.server = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def settings(self):
        """Of a server that uses it. The keys are in the environment."""
        return {"fargate_region": self.made["region"], "fargate_endpoint": self.url,
                "fargate_cluster": self.made["cluster"], "fargate_task_definition": self.made["definition"],
                "fargate_subnets": self.made["subnet"], "fargate_security_groups": self.made["group"],
                "fargate_network": "isolated"}

    def environment(self):
        return {"AWS_ACCESS_KEY_ID": self.made["id"], "AWS_SECRET_ACCESS_KEY": self.made["secret"]}

    # ---- requests ----

    def serve(self, request):
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        target = request.headers.get("X-Amz-Target", "")
        action = target.rsplit(".", 1)[-1] if target else dict(urllib.parse.parse_qsl(body.decode())).get("Action", "")
        with self.lock:
            self.bodies.setdefault(action, []).append(body)
            fault = self.faults[action].pop(0) if self.faults.get(action) else ""
        if fault == "before":
            request.close_connection = True
            return
        if fault == "throttle":
            self.answer(request, 400, {"__type": "ThrottlingException", "message": "Rate exceeded"})
            return
        if fault == "fail":
            self.answer(request, 500, {"__type": "ServerException", "message": "Service Unavailable."})
            return
        if action == "RunTask":
            time.sleep(self.delay)
        status, headers, answer = self.act(action, request, body)
        if fault == "after":
            request.close_connection = True
            return
        self.answer(request, status, answer, headers)

    def act(self, action, request, body):
        if action == "RunTask":
            return self.run_task(request, body)
        status, headers, answer = self.forward(request, body)
        if status != 200:
            return status, headers, answer
        if action == "DescribeTasks":
            answer = self.describe(json.loads(answer))
        elif action == "ListTasks":
            answer = self.list(json.loads(answer), request, body)
        elif action == "StopTask":
            self.stop(json.loads(body)["task"])
        elif action in ("RegisterTargets", "DeregisterTargets"):
            form = dict(urllib.parse.parse_qsl(body.decode()))
            change = self.targets.add if action == "RegisterTargets" else self.targets.discard
            change(form["Targets.member.1.Id"])
            if self.balancer:
                self.balancer.follow(set(self.targets))
        return status, headers, answer

    def forward(self, request, body):
        c = http.client.HTTPConnection("127.0.0.1", self.moto.port, timeout=paddock.seconds(60))
        c.putrequest("POST", request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            c.putheader(name, value)
        c.endheaders(body)
        answer = c.getresponse()
        data = answer.read()
        c.close()
        return answer.status, dict(answer.getheaders()), data

    @staticmethod
    def answer(request, status, body, headers=None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.suppress(OSError):
            request.send_response(status)
            request.send_header("Content-Type", (headers or {}).get("Content-Type", "application/x-amz-json-1.1"))
            request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            request.wfile.write(data)

    # ---- tasks ----

    def run_task(self, request, body):
        asked = json.loads(body)
        assert len(json.dumps(asked["overrides"])) <= 8192
        token = asked["clientToken"]
        with self.lock:
            if token in self.tokens:
                before, arn = self.tokens[token]
                if before != body:
                    return 400, {}, {"__type": "ConflictException", "message": "the token is known",
                                     "resourceIds": [arn]}
                known = self.known[arn]
                return 200, {}, {"tasks": [{**known.told, "attachments": []}], "failures": []}
            status, headers, answer = self.forward(request, body)
            if status != 200:
                return status, headers, answer
            told = json.loads(answer)["tasks"][0]
            arn = told["taskArn"]
            override = asked["overrides"]["containerOverrides"][0]
            task = tasks.Task(override["command"], {v["name"]: v["value"] for v in override["environment"]}, self.dir)
            told["tags"] = asked["tags"]
            self.known[arn] = Known(arn, told, task)
            self.tokens[token] = (body, arn)
            return 200, headers, {"tasks": [{**told, "lastStatus": "PROVISIONING", "attachments": []}], "failures": []}

    def describe(self, answer):
        told, failures = [], answer.get("failures", [])
        for t in answer["tasks"]:
            known = self.known.get(t["taskArn"])
            if not known:
                told.append(t)
                continue
            known.asked += 1
            if known.asked <= self.lateness:
                failures.append({"arn": known.arn, "reason": "MISSING"})
            else:
                told.append(self.one(known, t))
        return {"tasks": told, "failures": failures}

    def one(self, known, t):
        t = {**t, "tags": known.told["tags"], "desiredStatus": "RUNNING", "lastStatus": "RUNNING"}
        early = known.asked <= 2 * self.lateness
        if early:
            t["lastStatus"] = "PENDING"
        t["attachments"] = [] if early else [{"type": "ElasticNetworkInterface", "details": [
            {"name": "subnetId", "value": self.made["subnet"]},
            {"name": "privateIPv4Address", "value": known.task.address}]}]
        if known.over:
            code = known.task.process.poll()
            t |= {"desiredStatus": "STOPPED", "lastStatus": "STOPPED",
                  "stopCode": "UserInitiated" if known.stopped else "EssentialContainerExited",
                  "stoppedReason": "Essential container in task exited",
                  "containers": [{"name": "paddock", "lastStatus": "STOPPED",
                                  "exitCode": 137 if code is None or code < 0 else code}]}
        return t

    def list(self, answer, request, body):
        """Moto's own list knows nothing of ends; and it does not split into pages."""
        asked = json.loads(body)
        wanted = asked.get("desiredStatus", "RUNNING")
        with self.lock:
            arns = [k.arn for k in self.known.values()
                    if k.told.get("startedBy") == asked["startedBy"] and (wanted == "STOPPED") == k.over]
        at = int(asked.get("nextToken", "0"))
        page = {"taskArns": arns[at:at + self.page]}
        if at + self.page < len(arns):
            page["nextToken"] = str(at + self.page)
        return page

    def stop(self, arn):
        known = self.known.get(arn)
        if known and not known.stopped:
            known.stopped = True
            threading.Thread(target=known.task.end, daemon=True).start()  # the answer does not wait for it

    def live(self):
        """The tasks that cost money."""
        with self.lock:
            return [k for k in self.known.values() if k.task.runs()]

    def check_bodies(self):
        """Against the API's own model: names and types of everything that was asked for."""
        bodies = {a: [json.loads(b) for b in bs] for a, bs in self.bodies.items() if not re.match(".*Target", a)}
        made = subprocess.run([python(), "-c", CHECK], input=json.dumps(bodies).encode(), capture_output=True,
                              check=False)
        assert made.returncode == 0, made.stderr.decode()
        return json.loads(made.stdout)

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        for known in self.known.values():
            if known.task.runs():
                known.task.end(signal.SIGKILL)
            known.task.clear()
        self.moto.close()
        shutil.rmtree(self.dir, ignore_errors=True)


CHECK = """
import json, sys
import botocore.session, botocore.validate
model = botocore.session.get_session().get_service_model("ecs")
count = 0
for action, bodies in json.load(sys.stdin).items():
    for body in bodies:
        shape = model.operation_model(action).input_shape
        report = botocore.validate.ParamValidator().validate(body, shape)
        assert not report.has_errors(), (action, report.generate_report())
        assert set(body) <= set(shape.members), (action, set(body) - set(shape.members))
        count += 1
print(count)
"""
