"""Sandboxes in pods: the server, its keeper and broker are the real ones, paddock-box is, and the cluster is the double
of paddock_testing/kube.py, or with PADDOCK_KUBE_APISERVER a real kube-apiserver (`make test-k8s`)."""

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from paddock_testing import coordinated, credentials
from paddock_testing import host as machine
from paddock_testing import kube
from paddock_testing import run as paddock
from paddock_testing.server import Client, Server, check_error
from test_docker import Box

IMAGE = "debian:12"
REAL = os.environ.get("PADDOCK_KUBE_APISERVER")


@pytest.fixture(scope="module")
def cluster():
    if reason := kube.why_not():
        pytest.skip(f"no pods here: {reason}")
    made = kube.Cluster(REAL) if REAL else kube.Double()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def server(cluster):
    with Server({**kube.settings(cluster.config), "image_pull": "never"}) as s:
        yield s
    paddock.wait_for(lambda: not cluster.names(), 60, "no pod is left behind")


@pytest.fixture(scope="module")
def api(server):
    return Client(server.host, server.port, server.key)


@pytest.fixture(scope="module")
def box(api):
    made = Box(api, IMAGE, "kubernetes")
    yield made
    made.close()


def make(api):
    return Box(api, IMAGE, "kubernetes")


double_only = pytest.mark.skipif(bool(REAL), reason="is about the double's own")


def test_a_sandbox_says_what_it_is_and_cannot(api, box):
    info = box.told()
    assert (info["provider"], info["isolation"], info["image"]) == ("kubernetes", "basic", IMAGE)
    mine = next(p for p in api.get("/v1/providers").json()["providers"] if p["name"] == "kubernetes")
    assert "pause" not in mine["capabilities"] and "usage" not in mine["capabilities"], mine
    assert {"terminal", "files", "image"} <= set(mine["capabilities"]), mine
    check_error(api.post(box.base + "/pause"), 501, "unsupported")


def test_lines_with_directory_and_variables(box):
    told = box.exec("echo out $FROM_IMAGE; echo err >&2; exit 3")
    assert (told["stdout"], told["stderr"], told["exit_code"]) == ("out yes\n", "err\n", 3)
    assert box.exec("mkdir -p /tmp/d; cd /tmp/d; export A='b c'")["state"] == "updated"
    assert box.exec('pwd; echo "$A"')["stdout"] == "/tmp/d\nb c\n"
    assert box.exec("cd /workspace")["exit_code"] == 0


def test_commands_have_no_power(box):
    told = box.exec("id -u; grep -E 'Cap(Prm|Eff|Bnd|Amb)|NoNewPrivs' /proc/self/status | sort -u")["stdout"].split()
    assert told[0] == kube.UID, told
    assert set(told[2::2]) == {"0000000000000000", "1"}, told


def test_the_coordinator_of_the_python_package(server, tmp_path):
    coordinated.check_request(server, "kubernetes", tmp_path, "KubernetesCoordinator", image=IMAGE)


def test_the_output_of_every_cell_is_told(api, box):
    """Text and events come over the link in streams of their own: an event waits for the text before it."""
    contexts = box.base + "/contexts/python/execute"
    for i in range(60):
        told = api.request("POST", contexts, json={"code": f"print({i})\nimport sys; print('e', file=sys.stderr)\n{i}"}).json()
        assert (told["stdout"], told["stderr"]) == (f"{i}\n", "e\n"), (i, told)
        assert told["error"] is None and told["results"][0]["text"] == str(i), told


def test_many_bytes_both_ways(api, box):
    data = os.urandom(3 << 20)
    assert api.request("PUT", box.base + "/files?path=/workspace/big", data=data).status in (200, 201)
    assert api.request("GET", box.base + "/files?path=/workspace/big").body == data
    told = box.exec("head -c 5000000 /dev/zero | tr '\\0' x | wc -c; wc -c < /workspace/big")
    assert told["stdout"].split() == ["5000000", str(len(data))]


def test_many_commands_at_once(box):
    told = [None] * 12

    def run(i):
        told[i] = box.exec(argv=["sh", "-c", f"echo {i}; sleep 0.2; echo {i}"])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(told))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [t["stdout"] for t in told] == [f"{i}\n{i}\n" for i in range(len(told))]


def test_a_command_is_stopped_with_all_it_began(box):
    told = box.exec("sleep 1000 & (setsid sleep 1000 &) ; sleep 1000", timeout_s=1)
    assert told["timed_out"] is True, told
    paddock.wait_for(lambda: "sleep" not in box.exec(argv=["sh", "-c", "cat /proc/[0-9]*/comm"])["stdout"], 20,
                     "nothing of it runs on")


def test_the_pod_is_a_restricted_one(cluster, box):
    """What the pod asks for, by the words of the standard; a real cluster's admission is the other judge."""
    assert box.told()["state"] == "running"
    check_restricted(cluster.first()["spec"])


def check_restricted(spec):
    assert spec["automountServiceAccountToken"] is False
    assert not any(spec.get(k) for k in ("hostNetwork", "hostPID", "hostIPC"))
    assert spec["restartPolicy"] == "Never" and spec["activeDeadlineSeconds"] == 86400
    assert all(set(v) - {"name"} == {"emptyDir"} for v in spec["volumes"] if not v["name"].startswith("kube-api-access"))
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    for c in spec["initContainers"] + spec["containers"]:
        s = c["securityContext"]
        assert s["allowPrivilegeEscalation"] is False and s["capabilities"] == {"drop": ["ALL"]}, c["name"]
        assert s["runAsNonRoot"] and s["runAsUser"] != 0 and not s.get("privileged"), c["name"]
        assert {"cpu", "memory"} <= set(c["resources"]["limits"]), c["name"]
        assert "env" not in c, "nothing secret, and nothing else, stands in the pod's record"
    mounts = {m["mountPath"]: m.get("readOnly", False) for m in spec["containers"][0]["volumeMounts"]}
    assert mounts["/.paddock"] is True, "a sandbox cannot change what joins it"


def test_the_network_is_denied(cluster, box):
    policy = cluster.policy("paddock-network-none")
    assert policy["spec"] == {"podSelector": {"matchLabels": {"paddock.dev/network": "none"}},
                              "policyTypes": ["Ingress", "Egress"]}


def test_what_a_pod_cannot_be_is_refused(api):
    for more, code in (({"network": "host"}, "unsupported"), ({"min_isolation": "full"}, "isolation"),
                       ({"profile": "restricted"}, "unsupported")):
        answer = api.request("POST", "/v1/sandboxes", json={"provider": "kubernetes", "image": IMAGE, **more})
        assert answer.status >= 400 and answer.json()["error"]["code"] in (code, "invalid", "unsupported"), answer


def test_deleting_removes_the_pod(cluster, api):
    before = set(cluster.names())
    made = make(api)
    assert len(set(cluster.names()) - before) == 1
    made.close()
    paddock.wait_for(lambda: set(cluster.names()) == before, 30, "its pod is gone")


@pytest.mark.parametrize("status, words", [
    ({"reason": "Evicted", "message": "The node was low on resource: memory."}, "evicted: The node was low"),
    ({"containerStatuses": [{"name": "sandbox", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]},
     "out of memory"),
    ({"reason": "DeadlineExceeded"}, "longest life"),
    ({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]},
     "lost its node"),
], ids=["evicted", "oom", "deadline", "node"])
def test_why_a_pod_ended_is_told(cluster, api, status, words):
    before = set(cluster.names())
    made = make(api)
    name, = set(cluster.names()) - before
    cluster.fail(name, **status)
    told = paddock.wait_for(lambda: made.told() if made.told()["state"] == "gone" else None, 40,
                            "its end is seen")
    assert words in json.dumps(told), told
    made.close()


def test_a_pod_that_somebody_deletes_is_lost(cluster, api):
    before = set(cluster.names())
    made = make(api)
    name, = set(cluster.names()) - before
    cluster.remove(name)
    told = paddock.wait_for(lambda: made.told() if made.told()["state"] == "gone" else None, 40,
                            "its end is seen")
    assert "deleted" in json.dumps(told), told
    made.close()


def test_a_broker_and_a_carrier_that_are_killed_lose_nothing(server, box):
    before = box.exec("echo $$ > /workspace/n; seq 1 1000 | md5sum")["stdout"]
    for comm in ("paddock-carrier", "paddock-remote"):
        for keeper in server.keepers():
            for pid in machine.descendants(keeper):
                if Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip() == comm:
                    os.kill(pid, 9)
        assert box.exec("seq 1 1000 | md5sum")["stdout"] == before


def test_a_server_that_is_killed_comes_back_to_its_pods(cluster):
    with Server({**kube.settings(cluster.config), "image_pull": "never"}) as s:
        api = Client(s.host, s.port, s.key)
        made = make(api)
        made.exec("export KEPT=yes")
        s.kill()
        s.start()
        api = Client(s.host, s.port, s.key)
        made.api = api
        assert made.exec("echo $KEPT")["stdout"] == "yes\n"
        made.close()


def credential_words(cluster):
    return [w for w in (kube.TOKEN if not REAL else cluster.token,) if w]


def test_the_credential_is_in_brokers_alone(cluster, server, api, box):
    """Logs, answers, configuration, command lines and the memory of daemon, keeper, watch and stand-in."""
    words = [w.encode() for w in credential_words(cluster)]
    assert box.exec("true")["exit_code"] == 0
    credentials.check_nowhere(server, api, words)
    assert credentials.held(server, words), "the control: brokers have it"


def check(cluster, *words, env=None):
    return subprocess.run([paddock.PADDOCK, "backend", "check", "kubernetes", "--image", IMAGE, *words], capture_output=True,
                          text=True, timeout=paddock.seconds(60), stdin=subprocess.DEVNULL, check=False,
                          env=paddock.clean_environment({"PADDOCK_KUBERNETES_CONFIG": cluster.config,
                                                         "PADDOCK_KUBERNETES_BOX_IMAGE": "test/paddock-box:1",
                                                         "PADDOCK_IMAGE_PULL": "never", **(env or {})}))


def test_a_check_makes_one_and_ends_it(cluster, server):
    before = cluster.names()
    done = check(cluster)
    assert done.returncode == 0, done
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert told["version"].startswith("v") and told["may-create-pods"] == "yes" and {"made", "link", "ended"} <= set(told)
    paddock.wait_for(lambda: cluster.names() == before, 30, "its pod is gone")


def test_a_check_says_what_is_wrong(cluster):
    for env, words in (({"PADDOCK_KUBERNETES_CONFIG": "/nonexistent"}, "kubernetes_config"),
                       ({"PADDOCK_KUBERNETES_CONTEXT": "other"}, "context 'other'"),
                       ({"PADDOCK_KUBERNETES_BOX_IMAGE": ""}, "kubernetes_box_image"),
                       ({"PADDOCK_KUBERNETES_NODE_SELECTOR": "a"}, "kubernetes_node_selector")):
        done = check(cluster, env=env)
        assert done.returncode == 1 and words in done.stdout, done
    if not REAL:
        cluster.denied.add("get pods/exec")
        done = check(cluster)
        cluster.denied.clear()
        assert done.returncode == 1 and "may-get-pods/exec no" in done.stdout and "deploy/kubernetes" in done.stdout


if REAL:
    def test_the_deployment_is_admitted_and_its_role_is_enough(cluster):
        """deploy/kubernetes, by kubectl: what is created, what the server may then do, and that its own pod is restricted."""
        cluster.kubectl("apply", "-k", str(paddock.TOP / "deploy" / "kubernetes"))
        who = ("-n", "paddock-boxes", "--as", "system:serviceaccount:paddock:paddock")
        for words, allowed in (("create pods", "yes"), ("delete pods", "yes"), ("get pods/exec", "yes"), ("get secrets", "no"),
                               ("create networkpolicies.networking.k8s.io", "yes"), ("watch pods", "no"),
                               ("create roles.rbac.authorization.k8s.io", "no")):
            assert cluster.kubectl("auth", "can-i", *words.split(), *who, check=False).stdout.strip() == allowed, words
        made = json.loads(cluster.kubectl("get", "statefulset", "-n", "paddock", "paddock", "-o", "json").stdout)
        spec = {**made["spec"]["template"]["spec"], "serviceAccountName": "default"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "try"}, "spec": spec}
        path = "/api/v1/namespaces/boxes/pods?dryRun=All"
        assert cluster.ask("POST", path, pod)[0] == 201
        spec["hostNetwork"] = True
        assert cluster.ask("POST", path, pod)[0] == 403, "the control: the namespace admits only restricted pods"


@double_only
@pytest.mark.parametrize("lost", ["POST pods", "POST networkpolicies"])
def test_a_lost_answer_makes_no_double(cluster, api, lost):
    cluster.lose += [lost] * 2 if lost == "POST pods" else []
    before = set(cluster.names())
    made = make(api)
    assert len(set(cluster.names()) - before) == 1
    assert made.exec("echo x")["stdout"] == "x\n"
    made.close()
    cluster.lose.clear()


@double_only
def test_the_newer_protocol_is_spoken_where_the_older_is_not(cluster, api):
    cluster.protocols = ("v5.channel.k8s.io",)
    try:
        made = make(api)
        assert made.exec("echo x")["stdout"] == "x\n"
        made.close()
    finally:
        cluster.protocols = ("v4.channel.k8s.io", "v5.channel.k8s.io")


@double_only
@pytest.mark.parametrize("status, code", [
    ({"containerStatuses": [{"name": "sandbox", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]},
     "invalid"),
    ({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]},
     "capacity"),
])
def test_a_pod_that_does_not_begin_is_no_sandbox(cluster, status, code):
    with Server({**kube.settings(cluster.config), "kubernetes_wait_s": "1", "image_pull": "never"}) as s:
        api = Client(s.host, s.port, s.key)
        before = cluster.names()
        cluster.begin = False
        cluster.pending = status
        try:
            answer = api.request("POST", "/v1/sandboxes", json={"provider": "kubernetes", "image": IMAGE})
        finally:
            cluster.begin, cluster.pending = True, {}
        assert answer.json()["error"]["code"] == code, answer
        paddock.wait_for(lambda: cluster.names() == before, 30, "nothing of it is left")


@double_only
def test_a_wrong_token_is_told(cluster, tmp_path):
    path = kube.kubeconfig(str(tmp_path), f"https://127.0.0.1:{cluster.port}", cluster.ca, "wrong")
    done = check(cluster, env={"PADDOCK_KUBERNETES_CONFIG": path})
    assert done.returncode == 1 and "401" in done.stdout and "wrong" not in done.stdout, done
