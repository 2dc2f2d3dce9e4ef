"""Clusters for tests, whose pods are real processes of paddock-box in namespaces of their own, under a uid without any
capability, as a pod of the standard `restricted` is:

    Double      plays the part of the API that a broker uses, and loses answers when told to
    Cluster     a real kube-apiserver with etcd and the standard's admission, and a kubelet that is played here

Both answer an exec by WebSocket. Needs root, and static busybox in no image: the pods' root is this machine's."""

import base64
import contextlib
import copy
import hashlib
import http.server
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from . import run as paddock
from .server import free_port

BOX = paddock.TOP / "build" / "src" / "paddock-box"
TOKEN = "eyJhbGciOiJSUzI1NiJ9.dGVzdC10b2tlbi1vZi1wYWRkb2Nr." + secrets.token_hex(24)
UID = "1000"

# $1: a directory of ours; the rest is what the pod's container is to run. Its root is this machine's with a layer on top.
START = """set -e
mount -t tmpfs tmpfs "$1"; cd "$1"; mkdir up work root
mount -t overlay -o lowerdir=/,upperdir=up,workdir=work overlay root
mkdir -p root/workspace root/home/user root/.paddock; chmod 777 root/workspace root/home/user root/.paddock
for d in root/workspace root/home/user root/tmp root/run; do mount -t tmpfs -o mode=1777 tmpfs $d; done
cp "$2" root/.box; chmod 755 root/.box; mount -t proc proc root/proc; mount --rbind /dev root/dev
shift 2; drop="$1"; shift
chroot root setpriv $drop /.box put /.paddock
mount -o bind,ro root/.paddock root/.paddock
ip link set lo up
exec chroot root setpriv $drop env -i PATH=/usr/bin:/bin FROM_IMAGE=yes "$@"
"""
DROP = f"--reuid {UID} --regid {UID} --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs"


def why_not():
    """Why pods cannot be played here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    if missing := [p for p in ("unshare", "nsenter", "setpriv", "ip") if not shutil.which(p)]:
        return f"there is no {missing[0]}"
    return None if BOX.exists() else "there is no build/src/paddock-box"


class Pod:
    """The process of one pod's container."""

    def __init__(self, command):
        self.dir = tempfile.mkdtemp(prefix="paddock-pod-")
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", "sh", "-c", START, "sh",
             self.dir, str(BOX), DROP, *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        self.said, self.pid = b"", 0
        threading.Thread(target=self._listen, daemon=True).start()
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        while not self.pid and self.process.poll() is None:
            with contextlib.suppress(OSError, IndexError):
                self.pid = int(children.read_text().split()[0])

    def _listen(self):
        while piece := self.process.stderr.read1(4096):
            self.said = (self.said + piece)[-2000:]

    def runs(self):
        return self.process.poll() is None

    def has_begun(self):
        """Its program is the box, and no longer what prepares it."""
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/{self.pid}/exe").endswith("/.paddock/box")
        return False

    def exec(self, command):
        return subprocess.Popen(["nsenter", "-t", str(self.pid), "-m", "-p", "-n", "-i", "-u", "-r", "-w", "setpriv",
                                 *DROP.split(), *command],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)

    def end(self):
        if self.runs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid or self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)
        return self.process.returncode


# ---- an exec by WebSocket ----

STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255


class Socket:
    """The server's end of a WebSocket."""

    def __init__(self, handler, protocol):
        self.reader, self.writer, self.lock = handler.rfile, handler.connection, threading.Lock()
        key = handler.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.writer.sendall((f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n").encode())

    def send(self, data, opcode=2):
        size = len(data)
        head = bytes([0x80 | opcode]) + (bytes([size]) if size < 126 else struct.pack(">BH", 126, size)
                                         if size < 65536 else struct.pack(">BQ", 127, size))
        with self.lock:
            self.writer.sendall(head + data)

    def receive(self):
        """The next message, or None."""
        while True:
            head = self.reader.read(2)
            if len(head) < 2:
                return None
            size = head[1] & 127
            if size > 125:
                size = struct.unpack(">H" if size == 126 else ">Q", self.reader.read(2 if size == 126 else 8))[0]
            assert head[1] & 128, "a frame of a client is masked"
            mask = self.reader.read(4)
            data = bytes(b ^ mask[i & 3] for i, b in enumerate(self.reader.read(size))) if size < 512 else \
                _unmask(self.reader.read(size), mask)
            if head[0] & 15 == 8:
                return None
            if head[0] & 15 in (0, 2):
                return data


def _unmask(data, mask):
    size = len(data)
    whole = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(whole, "big")).to_bytes(size, "big")


def serve_exec(handler, pod, command, protocol):
    """Runs a command in a pod, over the connection of a request."""
    ws = Socket(handler, protocol)
    handler.close_connection = True
    process = pod.exec(command)

    def forward(stream, channel):
        with contextlib.suppress(OSError):
            while piece := os.read(stream.fileno(), 65536):
                ws.send(bytes([channel]) + piece)

    def feed():
        with contextlib.suppress(OSError, AssertionError):
            while (message := ws.receive()) is not None:
                if message[:1] == bytes([STDIN]):
                    process.stdin.write(message[1:])
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.kill()

    threads = [threading.Thread(target=forward, args=(process.stdout, STDOUT), daemon=True),
               threading.Thread(target=forward, args=(process.stderr, STDERR), daemon=True)]
    for t in threads:
        t.start()
    threading.Thread(target=feed, daemon=True).start()
    status = process.wait()
    for t in threads:
        t.join(5)
    end = {"status": "Success"} if status == 0 else {
        "status": "Failure", "reason": "NonZeroExitCode", "message": f"command terminated with exit code {status}"}
    with contextlib.suppress(OSError):
        ws.send(bytes([ERROR]) + json.dumps(end).encode())
        ws.send(struct.pack(">H", 1000), 8)


def server_context(directory):
    """TLS of a server that nobody looks at closely: a certificate for 127.0.0.1, and its own authority."""
    key, cert = os.path.join(directory, "server.key"), os.path.join(directory, "server.crt")
    if not os.path.exists(cert):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
                        "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, cert


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, handler, context, port=0):
        super().__init__(("127.0.0.1", port), handler)
        self.context = context

    def finish_request(self, request, client_address):
        request.settimeout(None)
        with contextlib.suppress(OSError):
            self.RequestHandlerClass(self.context.wrap_socket(request, server_side=True), client_address, self)

    def handle_error(self, request, client_address):
        pass


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status, reason, message):
        self.answer(status, {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": status})

    def body(self):
        size = int(self.headers.get("Content-Length") or 0)
        return json.loads(self.rfile.read(size) or b"null")


def kubeconfig(directory, server, ca, token=None, **user):
    """A file as kubectl writes it."""
    path = os.path.join(directory, "kubeconfig")
    data = base64.b64encode(Path(ca).read_bytes()).decode()
    lines = [f"    {k}: {v}" for k, v in ({"token": token} if token else user).items()]
    Path(path).write_text(f"""apiVersion: v1
kind: Config
# for tests
clusters:
- cluster:
    certificate-authority-data: {data}
    server: {server}
  name: test
contexts:
- context:
    cluster: test
    namespace: boxes
    user: paddock
  name: test
current-context: test
preferences: {{}}
users:
- name: paddock
  user:
""" + "\n".join(lines) + "\n", encoding="ascii")
    os.chmod(path, 0o600)
    return path


def settings(path):
    return {"providers": "jail,kubernetes", "kubernetes_config": path, "kubernetes_box_image": "test/paddock-box:1"}


class Double:
    """A cluster that is played: pods, network policies, reviews, exec."""

    def __init__(self):
        self.pods, self.processes, self.policies = {}, {}, {}
        self.requests, self.lose, self.refuse, self.denied = [], [], {}, set()
        self.protocols = ("v4.channel.k8s.io", "v5.channel.k8s.io")
        self.begin, self.pending = True, {}  # pods do; the status of those that do not
        self.lock = threading.RLock()
        self.dir = tempfile.mkdtemp(prefix="paddock-kube-")
        context, self.ca = server_context(self.dir)
        double = self

        class Handler(_Handler):
            def do_GET(self):
                double.handle(self, "GET")

            def do_POST(self):
                double.handle(self, "POST")

            def do_DELETE(self):
                double.handle(self, "DELETE")

        self.server = _Server(Handler, context)
        self.port = self.server.server_address[1]
        self.config = kubeconfig(self.dir, f"https://127.0.0.1:{self.port}", self.ca, TOKEN)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        for process in self.processes.values():
            process.end()
        shutil.rmtree(self.dir, ignore_errors=True)

    def names(self):
        with self.lock:
            return sorted(self.pods)

    def policy(self, name):
        return self.policies[name]

    def first(self):
        return next(iter(self.pods.values()))

    def handle(self, request, method):
        url = urllib.parse.urlsplit(request.path)
        query = urllib.parse.parse_qs(url.query)
        parts = url.path.strip("/").split("/")
        body = request.body() if method != "GET" else None
        what = f"{method} {'/'.join(parts[-1:]) if parts[-1] in ('pods', 'exec', 'networkpolicies') else parts[-2] if len(parts) > 1 else parts[-1]}"
        with self.lock:
            self.requests.append((method, url.path, body))
            lost = what in self.lose and not self.lose.remove(what)
            refused = self.refuse.get(what)
        if request.headers.get("Authorization") != "Bearer " + TOKEN:
            request.refuse(401, "Unauthorized", "Unauthorized")
            return
        if refused:
            request.refuse(*refused)
            return
        if parts[-1] == "exec" and lost:
            request.close_connection = True
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        if parts[-1] == "exec":
            self.exec(request, parts[-2], query)
            return
        with self.lock:
            status, answer = self.act(method, url.path, parts, query, body)
        if lost:
            request.close_connection = True
            request.connection.shutdown(socket.SHUT_RDWR)
        elif status >= 400:
            request.refuse(status, *answer)
        else:
            request.answer(status, answer)

    def act(self, method, path, parts, query, body):
        if path == "/version":
            return 200, {"gitVersion": "v1.30.0-double"}
        if parts[-1] == "selfsubjectaccessreviews":
            a = body["spec"]["resourceAttributes"]
            word = f"{a['verb']} {a['resource']}" + (f"/{a['subresource']}" if a.get("subresource") else "")
            return 201, {"status": {"allowed": word not in self.denied}}
        if "networkpolicies" in parts:
            if method == "POST":
                self.policies[body["metadata"]["name"]] = body
                return 201, body
            found = self.policies.get(parts[-1])
            return (200, found) if found else (404, ("NotFound", "not found"))
        if parts[-1] == "pods":
            return self.list(query) if method == "GET" else self.create(body)
        return self.one(method, parts[-1])

    def create(self, body):
        name = body["metadata"]["name"]
        if name in self.pods:
            return 409, ("AlreadyExists", f'pods "{name}" already exists')
        pod = copy.deepcopy(body)
        pod["metadata"]["uid"] = secrets.token_hex(16)
        pod["status"] = {"phase": "Pending", **self.pending}
        self.pods[name] = pod
        if self.begin:
            self.processes[name] = Pod(body["spec"]["containers"][0]["command"])
        return 201, pod

    def look(self, name):
        """The pod as it is now."""
        pod, process = self.pods[name], self.processes.get(name)
        if not process or pod["status"]["phase"] in ("Failed", "Succeeded"):
            return pod
        status = {"name": "sandbox", "state": {"waiting": {"reason": "PodInitializing"}}}
        if not process.runs():
            code = process.process.returncode
            status["state"] = {"terminated": {"exitCode": 128 - code if code < 0 else code, "reason": "Error"}}
            pod["status"] = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [status]}
        elif process.has_begun():
            status["state"] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
            pod["status"] = {"phase": "Running", "containerStatuses": [status]}
        return pod

    def fail(self, name, **status):
        """The cluster ends a pod, and says why."""
        with self.lock:
            self.pods[name]["status"] = {"phase": "Failed", **status}
            self.processes[name].end()

    def one(self, method, name):
        if name not in self.pods:
            return 404, ("NotFound", f'pods "{name}" not found')
        pod = self.look(name)
        if method == "DELETE":
            self.remove(name)
        return 200, pod

    def remove(self, name):
        with self.lock:
            del self.pods[name]
            if process := self.processes.pop(name, None):
                process.end()

    def list(self, query):
        key, _, value = query.get("labelSelector", [""])[0].partition("=")
        found = [self.look(n) for n in sorted(self.pods) if not key or self.pods[n]["metadata"]["labels"].get(key) == value]
        at, limit = int(query.get("continue", ["0"])[0]), min(int(query.get("limit", ["500"])[0]), 2)
        more = {"continue": str(at + limit)} if at + limit < len(found) else {}
        return 200, {"kind": "PodList", "metadata": more, "items": found[at:at + limit]}

    def exec(self, request, name, query):
        offered = [p.strip() for p in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        with self.lock:
            process = self.processes.get(name)
        if name not in self.pods:
            request.refuse(404, "NotFound", f'pods "{name}" not found')
        elif not process or not process.runs():
            request.refuse(400, "BadRequest", "cannot exec in a stopped container")
        elif not (chosen := [p for p in offered if p in self.protocols]):
            request.refuse(400, "BadRequest", "no protocol is known of those that were offered")
        else:
            serve_exec(request, process, query["command"], chosen[0])


# ---- a real kube-apiserver ----

ROLE = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "delete"]},
        {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["get", "create"]}]


class Cluster:
    """etcd, a kube-apiserver with RBAC and the admission of restricted pods, and a node that is played."""

    def __init__(self, program):
        self.dir = tempfile.mkdtemp(prefix="paddock-kube-")
        self.token, self.admin, self.children = TOKEN, secrets.token_hex(20), []
        self.processes, self.stopped, self.looking = {}, threading.Event(), threading.Lock()
        self.context, self.node_ca = server_context(self.dir)
        cluster = self

        class Handler(_Handler):
            def do_GET(self):
                cluster.exec(self)

            do_POST = do_GET

        self.node = _Server(Handler, self.context)
        threading.Thread(target=self.node.serve_forever, daemon=True).start()
        self._start(program)
        self._prepare()
        self.config = kubeconfig(self.dir, f"https://127.0.0.1:{self.port}", f"{self.dir}/tls/apiserver.crt", self.token)
        self.kubelet = threading.Thread(target=self._run_kubelet, daemon=True)
        self.kubelet.start()

    def _spawn(self, name, *words):
        with open(f"{self.dir}/{name}.log", "wb") as log:
            self.children.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.dir))

    def _start(self, program):
        client, peer, self.port = free_port(), free_port(), free_port()
        self._spawn("etcd", "etcd", "--data-dir", f"{self.dir}/etcd", "--listen-client-urls", f"http://127.0.0.1:{client}",
                    "--advertise-client-urls", f"http://127.0.0.1:{client}", "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                    "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}", "--initial-cluster",
                    f"default=http://127.0.0.1:{peer}", "--unsafe-no-fsync")
        Path(f"{self.dir}/tokens").write_text(f'{self.admin},admin,1,"system:masters"\n{self.token},paddock,2\n', encoding="ascii")
        subprocess.run(["openssl", "genrsa", "-out", f"{self.dir}/sa.key", "2048"], check=True, capture_output=True)
        self._spawn("apiserver", program, "--etcd-servers", f"http://127.0.0.1:{client}", "--secure-port", str(self.port),
                    "--bind-address", "127.0.0.1", "--cert-dir", f"{self.dir}/tls", "--token-auth-file", f"{self.dir}/tokens",
                    "--service-account-key-file", f"{self.dir}/sa.key", "--service-account-signing-key-file",
                    f"{self.dir}/sa.key", "--service-account-issuer", "https://paddock.test", "--authorization-mode", "RBAC",
                    "--kubelet-preferred-address-types", "InternalIP", "--service-cluster-ip-range", "10.99.0.0/24",
                    "--allow-privileged=false")
        paddock.wait_for(self._is_ready, 90, "the API server is ready")

    def _is_ready(self):
        assert all(c.poll() is None for c in self.children), Path(f"{self.dir}/apiserver.log").read_text(encoding="utf-8")[-2000:]
        with contextlib.suppress(OSError, FileNotFoundError, AssertionError):
            return self.ask("GET", "/readyz", raw=True)[0] == 200
        return False

    def ask(self, method, path, body=None, raw=False, kind="application/json"):
        context = ssl.create_default_context(cafile=f"{self.dir}/tls/apiserver.crt")
        context.check_hostname = False
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}", method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Authorization": "Bearer " + self.admin, "Content-Type": kind})
        try:
            with urllib.request.urlopen(request, context=context, timeout=20) as answer:
                data = answer.read()
                return answer.status, data if raw else json.loads(data)
        except urllib.error.HTTPError as e:
            return e.code, e.read()

    def good(self, *words, **more):
        status, answer = self.ask(*words, **more)
        assert status < 300, (words, status, answer)
        return answer

    def _prepare(self):
        self.good("POST", "/api/v1/namespaces", {"metadata": {"name": "boxes", "labels": {
            "pod-security.kubernetes.io/enforce": "restricted"}}})
        self.good("POST", "/api/v1/namespaces/boxes/serviceaccounts", {"metadata": {"name": "default"}})
        rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/boxes"
        self.good("POST", rbac + "/roles", {"metadata": {"name": "paddock"}, "rules": ROLE})
        self.good("POST", rbac + "/rolebindings", {
            "metadata": {"name": "paddock"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "paddock"},
            "subjects": [{"kind": "User", "name": "paddock", "apiGroup": "rbac.authorization.k8s.io"}]})
        self.good("POST", "/api/v1/nodes", {"metadata": {"name": "played", "labels": {
            "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}}})
        self.good("PATCH", "/api/v1/nodes/played/status", {"status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.node.server_address[1]}}}},
            kind="application/merge-patch+json")

    # ---- the node ----

    def _run_kubelet(self):
        while not self.stopped.wait(0.1):
            with contextlib.suppress(OSError, AssertionError, KeyError), self.looking:
                for pod in self.pods_now():
                    self._look_after(pod)

    def pods_now(self):
        return self.good("GET", "/api/v1/namespaces/boxes/pods")["items"]

    def _look_after(self, pod):
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        path, process = f"/api/v1/namespaces/boxes/pods/{name}", self.processes.get(uid)
        if "deletionTimestamp" in pod["metadata"]:
            if process:
                process.end()
            self.ask("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
            self.processes.pop(uid, None)
        elif not pod["spec"].get("nodeName"):
            self.good("POST", path + "/binding", {"metadata": {"name": name}, "target": {"kind": "Node", "name": "played"}})
        elif not process:
            self.processes[uid] = Pod(pod["spec"]["containers"][0]["command"])
        elif pod["status"]["phase"] == "Pending" and process.has_begun():
            self.set_status(name, phase="Running", containerStatuses=[container({"running": {}})])
        elif pod["status"]["phase"] == "Running" and not process.runs():
            code = process.process.returncode
            code = 128 - code if code < 0 else code
            self.set_status(name, phase="Failed" if code else "Succeeded", containerStatuses=[
                container({"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}})])

    def set_status(self, name, **status):
        self.good("PATCH", f"/api/v1/namespaces/boxes/pods/{name}/status", {"status": status},
                  kind="application/merge-patch+json")

    def exec(self, handler):
        """What the API server passes on: /exec/NAMESPACE/POD/CONTAINER?command=..."""
        url = urllib.parse.urlsplit(handler.path)
        name, query = url.path.split("/")[3], urllib.parse.parse_qs(url.query)
        uid = self.good("GET", f"/api/v1/namespaces/boxes/pods/{name}")["metadata"]["uid"]
        process = self.processes.get(uid)
        if not process or not process.runs():
            handler.refuse(500, "InternalError", "container not found")
        elif handler.headers.get("Sec-WebSocket-Protocol") != "v4.channel.k8s.io":
            handler.refuse(400, "BadRequest", "only v4.channel.k8s.io is played")
        else:
            serve_exec(handler, process, query["command"], "v4.channel.k8s.io")

    def kubectl(self, *words, check=True):
        """As the cluster's administrator."""
        os.makedirs(f"{self.dir}/admin", exist_ok=True)
        path = kubeconfig(f"{self.dir}/admin", f"https://127.0.0.1:{self.port}", f"{self.dir}/tls/apiserver.crt", self.admin)
        return subprocess.run(["kubectl", "--kubeconfig", path, *words], check=check, capture_output=True, text=True, timeout=60)

    # ---- as the double ----

    def names(self):
        return sorted(p["metadata"]["name"] for p in self.pods_now())

    def policy(self, name):
        return self.good("GET", f"/apis/networking.k8s.io/v1/namespaces/boxes/networkpolicies/{name}")

    def first(self):
        return self.pods_now()[0]

    def fail(self, name, **status):
        uid = self.good("GET", f"/api/v1/namespaces/boxes/pods/{name}")["metadata"]["uid"]
        for c in status.get("containerStatuses", []):
            c.update(container(c["state"]))
        with self.looking:  # else what was read of it before would be told
            self.set_status(name, phase="Failed", **status)
            self.processes[uid].end()

    def remove(self, name):
        self.good("DELETE", f"/api/v1/namespaces/boxes/pods/{name}", {"gracePeriodSeconds": 1})

    def close(self):
        self.stopped.set()
        self.kubelet.join(20)
        for process in self.processes.values():
            process.end()
        for child in reversed(self.children):
            child.terminate()
            child.wait(30)
        self.node.shutdown()
        self.node.server_close()
        shutil.rmtree(self.dir, ignore_errors=True)


def container(state):
    return {"name": "sandbox", "image": "x", "imageID": "x", "ready": "running" in state, "restartCount": 0, "state": state}
