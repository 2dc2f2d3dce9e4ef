"""Google Cloud Run for a test: a stateful double of its Admin API v2, of the server that gives tokens, and of the metadata
server. It judges requests, and its own answers, by Google's discovery document (google_api.py). And

- each :run starts a task (task.py) with the arguments and the environment of its overrides; :cancel ends it; one that
  has ended by itself is told of as Cloud Run does. Nothing can connect to a task here that it did not call;
- a token is given for an assertion whose signature, audience and times are right, and asked for with each request;
- it is late, as a cloud is: a new execution is not in the first list, and the first operation does not name it;
- lists have two entries a page, unless told;
- it loses requests and answers, and throttles, where a test says so: `faults[ACTION]` is a list of "before" (it never
  arrives), "after" (done, and no answer), "throttle", "fail", "hang" (no answer before `go_on` is set); each is used once.
  ACTION is the end of the method's id: run, get, list, cancel, delete, token, operation; and those of its bucket
  (bucket.py), which its tasks have mounted.

`asked` has (ACTION, body) of all that was asked for, `wrong` what was wrong with any of it."""

import base64
import contextlib
import datetime
import http.server
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse

from . import bucket, google_api
from . import run as paddock
from . import task as tasks
from .server import free_port

PROJECT, NUMBER, REGION, JOB = "paddock-test", "123456789012", "europe-west1", "boxes"
MOUNT = "/links"  # where a task has the bucket
PARENT = f"projects/{PROJECT}/locations/{REGION}"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def why_not():
    if reason := tasks.why_not():
        return reason
    program = paddock.TOP / "build" / "src" / "paddock-box"
    if not can_call(program):
        return "paddock-box was built without BearSSL"
    return google_api.why_not("run.v2.json") or google_api.why_not("storage.v1.json")


def can_call(program):
    made = subprocess.run([program, "run", "key=/nonexistent", "box=" + 32 * "0", "call=127.0.0.1:1", "pin=04" + 128 * "0"],
                          capture_output=True, check=False)
    return b"without BearSSL" not in made.stderr


def unbase64(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Account:
    """A service account with a key of its own."""

    def __init__(self, directory, name="box"):
        self.email, self.key_id = f"{name}@{PROJECT}.iam.gserviceaccount.com", secrets.token_hex(20)
        self.key, self.public = os.path.join(directory, name + ".key"), os.path.join(directory, name + ".pub")
        subprocess.run(["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", self.key],
                       check=True, capture_output=True)
        subprocess.run(["openssl", "pkey", "-in", self.key, "-pubout", "-out", self.public], check=True, capture_output=True)

    def write(self, path, token_uri, **more):
        with open(self.key, encoding="ascii") as file:
            content = {"type": "service_account", "project_id": PROJECT, "private_key_id": self.key_id,
                       "private_key": file.read(), "client_email": self.email, "token_uri": token_uri, **more}
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(content, file)

    def verifies(self, text, signature):
        with tempfile.NamedTemporaryFile() as file:
            file.write(signature)
            file.flush()
            return subprocess.run(["openssl", "dgst", "-sha256", "-verify", self.public, "-signature", file.name],
                                  input=text.encode(), capture_output=True, check=False).returncode == 0


class Execution:
    def __init__(self, number, overrides, task):
        self.id, self.overrides, self.task = f"{JOB}-{number:05d}", overrides, task
        self.created, self.cancelled, self.completed, self.unseen = now(), False, "", 1

    @property
    def over(self):
        return not self.task.runs()


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class CloudRun:
    def __init__(self, page=2):
        self.page = page  # entries of a list
        self.api = google_api.Api("run.v2.json")
        self.dir = tempfile.mkdtemp(prefix="paddock-cloudrun-")
        self.account = Account(self.dir)
        self.bucket = bucket.Bucket(self.dir)
        self.lock = threading.RLock()
        self.executions, self.tokens, self.asked, self.wrong, self.faults = {}, {}, [], [], {}
        self.subject, self.federated = "ey." + secrets.token_urlsafe(60), set()
        self.go_on, self.hung = threading.Event(), []
        self.count, self.job, self.delay, self.vague, self.token_life = 0, {}, 0, 1, 3600
        # Tasks have a network of their own; this address of the machine is what they call.
        pid = os.getpid()
        self.address = f"10.212.{pid // 200 % 250}.{pid % 200 + 1}"
        subprocess.run(["ip", "addr", "add", self.address + "/32", "dev", "lo"], check=True, capture_output=True)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def serve(self):
                outer.serve(self)

            do_GET = do_POST = do_DELETE = do_PUT = serve

            def log_message(self, *_args):
                pass

        class Listener(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_args):  # those who gave up waiting
                pass

        self.server = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.account_file = os.path.join(self.dir, "account.json")
        self.account.write(self.account_file, self.url + "/token")
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def settings(self, by_bucket=False):
        """Of a server that uses it."""
        way = ({"cloudrun_bucket": bucket.NAME, "cloudrun_storage_endpoint": self.url} if by_bucket else
               {"cloudrun_listen": f"{self.address}:{free_port()}"})
        return {"cloudrun_project": PROJECT, "cloudrun_region": REGION, "cloudrun_job": JOB, "cloudrun_endpoint": self.url,
                "cloudrun_network": "isolated", "cloudrun_credentials_file": self.account_file, **way}

    # ---- requests ----

    def serve(self, request):
        url = urllib.parse.urlsplit(request.path)
        data = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        query = dict(urllib.parse.parse_qsl(url.query))
        method = self.api.find(request.command, url.path)
        action = (method["id"].rsplit(".", 1)[-1] if method else url.path.rsplit("/", 1)[-1])
        action = bucket.Bucket.action(request.command, url.path) or ("operation" if "/operations/" in url.path else action)
        with self.lock:
            if not action.startswith("bucket-"):  # these are many
                self.asked.append((action, data))
            fault = self.faults[action].pop(0) if self.faults.get(action) else ""
        if fault == "before":
            request.close_connection = True
            return
        if fault == "hang":
            with self.lock:
                self.hung.append(request.path)
            self.go_on.wait(120)
        if fault in ("throttle", "fail"):
            code, word = (429, "RESOURCE_EXHAUSTED") if fault == "throttle" else (503, "UNAVAILABLE")
            self.answer(request, code, error(code, "Try again later.", word), {"Retry-After": "1"})
            return
        if action == "run":
            time.sleep(self.delay)
        status, answer = self.act(request, method, url.path, query, data, action)
        if fault == "after":
            request.close_connection = True
            return
        self.answer(request, status, answer)

    @staticmethod
    def answer(request, status, body, headers=None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.suppress(OSError):
            request.send_response(status)
            for name, value in {"Content-Type": "application/json; charset=UTF-8", **(headers or {})}.items():
                request.send_header(name, value)
            request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            request.wfile.write(data)

    def act(self, request, method, path, query, data, action):
        if path == "/token":
            return self.exchange(request, data)
        if path == "/sts":
            return self.federate(request, data)
        if path == "/subject":
            known = request.headers.get("X-Proof") == "a word" and query == {"audience": "pool"}
            return (200, {"value": self.subject, "count": 1}) if known else (403, {"message": "who asks?"})
        if path.endswith(":generateAccessToken"):
            return self.impersonate(request, path, data)
        if path.startswith("/computeMetadata/"):
            if request.headers.get("Metadata-Flavor") != "Google" or not path.endswith("/default/token"):
                return 403, error(403, "Missing Metadata-Flavor:Google header.", "PERMISSION_DENIED")
            return 200, self.new_token()
        token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        if self.tokens.get(token, 0) < time.time():
            return 401, error(401, "Request had invalid authentication credentials.", "UNAUTHENTICATED")
        if action.startswith("bucket-"):
            status, answer, wrong = self.bucket.carry_out(action, path, query, data)
            self.note(*wrong)
            return status, answer
        if not method:
            self.note(f"{request.command} {path} is no method")
            return 404, error(404, "Not found.", "NOT_FOUND")
        body = json.loads(data) if data else None
        if wrong := self.api.check_request(method, query, body):
            self.note(*wrong)
            return 400, error(400, "; ".join(wrong), "INVALID_ARGUMENT")
        if data and "application/json" not in (request.headers.get("Content-Type") or ""):
            self.note("a body that is not called JSON")
        status, answer = self.carry_out(method["id"].removeprefix("run.projects.locations."), path, query, body)
        if status == 200:
            self.note(*self.api.check_answer(method, answer))
        return status, answer

    def note(self, *words):
        self.wrong += words

    # ---- tokens ----

    def new_token(self):
        token = "ya29." + secrets.token_urlsafe(120)
        self.tokens[token] = time.time() + self.token_life
        return {"access_token": token, "expires_in": self.token_life, "token_type": "Bearer"}

    def exchange(self, request, data):
        form = dict(urllib.parse.parse_qsl(data.decode()))
        assertion = form.get("assertion", "")
        refused = 400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
        if (request.headers.get("Content-Type") != "application/x-www-form-urlencoded"
                or form.get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" or assertion.count(".") != 2):
            self.note("an exchange of another form")
            return refused
        text, signature = assertion.rsplit(".", 1)
        head, claims = (json.loads(unbase64(part)) for part in text.split("."))
        if head != {"alg": "RS256", "typ": "JWT", "kid": self.account.key_id}:
            return refused
        if not self.account.verifies(text, unbase64(signature)):
            return refused
        good = (claims["iss"] == self.account.email and claims["aud"] == self.url + "/token" and claims["scope"] == SCOPE
                and abs(claims["iat"] - time.time()) < 60 and claims["iat"] < claims["exp"] <= claims["iat"] + 3600)
        return (200, self.new_token()) if good else refused

    AUDIENCE = f"//iam.googleapis.com/projects/{NUMBER}/locations/global/workloadIdentityPools/pool/providers/test"
    JWT = "urn:ietf:params:oauth:token-type:jwt"

    def federation(self, path, source, **more):
        """A file of type external_account."""
        content = {"type": "external_account", "audience": self.AUDIENCE, "subject_token_type": self.JWT,
                   "token_url": self.url + "/sts", "credential_source": source, **more}
        path.write_text(json.dumps(content))

    def impersonation(self, email=None):
        return f"{self.url}/v1/projects/-/serviceAccounts/{email or self.account.email}:generateAccessToken"

    def federate(self, request, data):
        """The token exchange of RFC 8693, as Google's STS does it: the answer is good for impersonation, and itself."""
        form = dict(urllib.parse.parse_qsl(data.decode()))
        subject = form.pop("subject_token", "")
        if (request.headers.get("Content-Type") != "application/x-www-form-urlencoded" or form != {
                "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "audience": self.AUDIENCE, "scope": SCOPE,
                "requested_token_type": "urn:ietf:params:oauth:token-type:access_token", "subject_token_type": self.JWT}):
            self.note(f"a federation of another form: {form}")
        if subject != self.subject:
            return 400, {"error": "invalid_grant", "error_description": f"The subject token {subject} is not one of the pool's."}
        made = self.new_token()
        self.federated.add(made["access_token"])
        return 200, {**made, "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}

    def impersonate(self, request, path, data):
        token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in self.federated:
            return 401, error(401, "Request had invalid authentication credentials.", "UNAUTHENTICATED")
        if self.account.email not in path:
            return 403, error(403, "Permission 'iam.serviceAccounts.getAccessToken' denied on resource.", "PERMISSION_DENIED")
        body = json.loads(data)
        if body != {"scope": [SCOPE], "lifetime": body["lifetime"]} or not body["lifetime"].endswith("s"):
            self.note(f"an impersonation of another form: {body}")
        end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=int(body["lifetime"][:-1]))
        return 200, {"accessToken": self.new_token()["access_token"], "expireTime": end.strftime("%Y-%m-%dT%H:%M:%SZ")}

    # ---- jobs ----

    def carry_out(self, what, path, query, body):
        parts = path.strip("/").split("/")
        if [parts[2], parts[4]] != [PROJECT, REGION] or (parts[5] == "jobs" and parts[6].partition(":")[0] != JOB):
            return 404, error(404, f"Resource '{path}' of kind 'JOB' does not exist.", "NOT_FOUND")
        if what == "jobs.get":
            return 200, self.tell_job()
        if what == "jobs.run":
            return 200, self.run(body["overrides"])
        if what == "operations.get":
            return 200, self.tell_operation(self.executions[parts[-1]], vague=False)
        if what == "jobs.executions.list":
            return 200, self.list(query)
        one = self.executions.get(parts[8].partition(":")[0])
        if not one:
            return 404, error(404, f"Resource '{parts[8]}' of kind 'EXECUTION' does not exist.", "NOT_FOUND")
        if what == "jobs.executions.cancel":
            if one.over or one.cancelled:
                return 400, error(400, "The execution has completed.", "FAILED_PRECONDITION")
            one.cancelled = True
            threading.Thread(target=one.task.end, daemon=True).start()
        if what == "jobs.executions.delete":
            if not one.over:
                return 400, error(400, "The execution is running.", "FAILED_PRECONDITION")
            with self.lock:
                self.executions.pop(one.id, None)
            one.task.clear()
        return 200, self.tell(one) if what.endswith("get") else self.tell_operation(one, vague=False)

    def tell_job(self):
        return {"name": f"{PARENT}/jobs/{JOB}", "uid": "u", "generation": "1", "launchStage": "GA",
                "template": {"taskCount": 1, "parallelism": 1, "template": {
                    "containers": [{"image": "europe-west1-docker.pkg.dev/p/r/box:1", "name": "box-1",
                                    "volumeMounts": [{"name": "links", "mountPath": MOUNT}]}],
                    "volumes": [{"name": "links", "gcs": {"bucket": bucket.NAME, "mountOptions": ["uid=60001", "gid=60001"]}}],
                    "maxRetries": 0, "timeout": "600s", "serviceAccount": "nobody@x.iam.gserviceaccount.com",
                    "executionEnvironment": "EXECUTION_ENVIRONMENT_GEN2", **self.job}}}

    def run(self, overrides):
        container = overrides["containerOverrides"][0]
        assert container["name"] == "box-1" and overrides["taskCount"] == 1, overrides
        with self.lock:
            self.count += 1
            environment = {v["name"]: v["value"] for v in container["env"]}
            task = tasks.Task(container["args"], {"CLOUD_RUN_JOB": JOB, "CLOUD_RUN_TASK_INDEX": "0", **environment}, self.dir,
                              mount=(self.bucket.dir, MOUNT))
            one = Execution(self.count, overrides, task)
            self.executions[one.id] = one
        return self.tell_operation(one, vague=self.vague > 0)

    def tell_operation(self, one, vague):
        told = {"name": f"{PARENT}/operations/{one.id}", "done": False}
        kind = "type.googleapis.com/google.cloud.run.v2.Execution"
        return told if vague else {**told, "metadata": {"@type": kind, **self.tell(one)}}

    def tell(self, one):
        """With the number of the project in its name, as Google may."""
        container = one.overrides["containerOverrides"][0]
        told = {"name": f"projects/{NUMBER}/locations/{REGION}/jobs/{JOB}/executions/{one.id}", "job": JOB,
                "createTime": one.created, "taskCount": 1, "launchStage": "GA",
                "template": {"timeout": one.overrides["timeout"], "maxRetries": 0, "containers": [
                    {"image": "i", "name": "box-1", "args": container["args"], "env": container["env"]}]}}
        if not one.over:
            return {**told, "runningCount": 1, "reconciling": True,
                    "conditions": [{"type": "Completed", "state": "CONDITION_RECONCILING"}]}
        one.completed = one.completed or now()
        reason, words = (("CANCELLED", "The execution was cancelled.") if one.cancelled else
                         ("NON_ZERO_EXIT_CODE", "Task boxes-0 failed with exit code: 137 and message: The container exited."))
        return {**told, "completionTime": one.completed, "failedCount": 1, "conditions": [
            {"type": "Completed", "state": "CONDITION_FAILED", "executionReason": reason, "message": words}]}

    def list(self, query):
        with self.lock:
            seen = [x for x in reversed(list(self.executions.values())) if x.unseen <= 0]
            for x in self.executions.values():
                x.unseen -= 1
        at = int(query.get("pageToken", "0"))
        answer = {"executions": [self.tell(x) for x in seen[at:at + self.page]]} if seen[at:at + self.page] else {}
        return answer | ({"nextPageToken": str(at + self.page)} if at + self.page < len(seen) else {})

    # ---- for tests ----

    def live(self):
        """The executions that cost money."""
        with self.lock:
            return [x for x in self.executions.values() if not x.over]

    def bodies(self, action):
        with self.lock:
            return [json.loads(data) for name, data in self.asked if name == action]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        for one in list(self.executions.values()):
            if not one.over:
                one.task.end(signal.SIGKILL)
            one.task.clear()
        subprocess.run(["ip", "addr", "del", self.address + "/32", "dev", "lo"], check=False, capture_output=True)
        shutil.rmtree(self.dir, ignore_errors=True)


def error(code, message, status):
    return {"error": {"code": code, "message": message, "status": status}}
