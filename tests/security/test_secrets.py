"""Secrets that a sandbox can use and not read: the ways to get at one, each with the control that shows it was there to
be had (the host has got it, or the same way works without the changer).
"""

import base64
import hashlib
import os
import re
import shutil
import signal
import subprocess

import pytest
from paddock_testing.host import files_with
from paddock_testing.internet import ServerInside
from paddock_testing.run import seconds, wait_for
from paddock_testing.server import check_error

SECRET = "sesame-4711/open+now=\"quoted\""
OTHER = "another-value-0815"
GET = f"curl -sS -m {int(seconds(15))} "


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(scope="module")
def server(internet):
    with ServerInside(internet, {"egress_ca": f"{internet.dir}/cert"}) as s:
        c = s.client()
        assert c.put("/v1/secrets/prod", json={"value": SECRET}).status == 200
        assert c.put("/v1/secrets/other", json={"value": OTHER}).status == 200
        yield s


@pytest.fixture
def client(server):
    return server.client()


NETWORK = {"allow": ["a.example", "b.example"],
           "secrets": [{"env": "API_KEY", "secret": "prod", "hosts": ["a.example"]}]}


def create(client, network, **more):
    r = client.post("/v1/sandboxes", json={"network": network, **more})
    assert r.status == 201, r
    return r.json()["id"]


@pytest.fixture(scope="module")
def sandbox(server):
    s = create(server.client(), NETWORK)
    yield s
    server.client().delete(f"/v1/sandboxes/{s}")


def run(client, sandbox, line, user="user"):
    r = client.post(f"/v1/sandboxes/{sandbox}/exec", json={"argv": ["bash", "-c", line], "user": user})
    assert r.status == 200, r
    return r.json()


def said(client, sandbox, line, **more):
    r = run(client, sandbox, line, **more)
    text = r["stdout"] + r["stderr"]
    assert SECRET not in text and "sesame" not in text, text
    return text


KEY = '-H "X-Key: $API_KEY" '


def test_it_is_used_and_not_seen(client, sandbox):
    """The host gets the value, by TLS and where a program speaks plain HTTP; inside is a placeholder."""
    assert re.fullmatch(r"pdk-secret-[0-9a-f]{32}\n", said(client, sandbox, "echo $API_KEY"))
    assert digest(SECRET) in said(client, sandbox, GET + KEY + "https://a.example/key")
    assert digest(SECRET) in said(client, sandbox, GET + KEY + "http://a.example/key")
    assert digest(f"Bearer {SECRET}") in said(
        client, sandbox, GET + '-H "Authorization: Bearer $API_KEY" https://a.example/authorization')
    basic = base64.b64encode(f"user:{SECRET}".encode()).decode()
    assert digest(f"Basic {basic}") in said(
        client, sandbox, GET + '-u "user:$API_KEY" https://a.example/authorization')


@pytest.mark.parametrize("path", ["echo", "echo-head", "echo-split", "echo-chunks", "echo-json"])
def test_an_echo_is_blanked(client, sandbox, path):
    text = said(client, sandbox, GET + "-i " + KEY + f"https://a.example/{path}")
    assert "*" * len(SECRET) in text, text
    # The control: what is no secret is echoed as it is.
    assert "plain-4711" in run(client, sandbox, GET + f"-i -H 'X-Key: plain-4711' https://a.example/{path}")["stdout"]


@pytest.mark.parametrize("path", ["echo-length", "echo-name", "echo-status"])
def test_an_echo_in_an_error_is_not_told(client, sandbox, path):
    """An answer that cannot be read is not quoted, neither to the sandbox nor in the audit log."""
    text = said(client, sandbox, GET + "-i " + KEY + f"https://a.example/{path}")
    assert "502" in text and "cannot be read" in text, text
    # The control: where nobody reads it the answer has it.
    assert "plain-4711" in run(client, sandbox, f"curl -sS -m 15 -i -k -H 'X-Key: plain-4711' https://b.example/{path};"
                               " exec 3<>/dev/tcp/b.example/80; printf 'GET /%s HTTP/1.1\r\nHost: b.example\r\n"
                               f"X-Key: plain-4711\r\n\r\n' {path} >&3; cat <&3")["stdout"]
    events = client.get(f"/v1/sandboxes/{sandbox}/events?limit=1000").text
    assert "sesame" not in events and "cannot be read" in events


def test_an_echo_of_credentials_is_blanked(client, sandbox):
    basic = base64.b64encode(f"user:{SECRET}".encode()).decode()
    text = said(client, sandbox, GET + '-u "user:$API_KEY" https://a.example/echo')
    assert basic not in text and "*" * len(basic) in text


def test_a_compressed_echo_is_refused(client, sandbox):
    assert "502" in said(client, sandbox, GET + "-i --compressed " + KEY + "https://a.example/echo-gzip")
    assert "gzip" not in said(client, sandbox, GET + "--compressed " + KEY + "https://a.example/echo").lower()


def test_a_part_of_an_answer_cannot_be_asked_for(client, sandbox):
    assert "range" not in said(client, sandbox, GET + "-r 0-3 " + KEY + "https://a.example/echo").lower()


def test_another_host_gets_the_placeholder(client, sandbox):
    """Also by a redirect, by another name in Host, and where the address is that of the bound host."""
    text = said(client, sandbox, GET + "-k " + KEY + "https://b.example/echo")
    assert "pdk-secret-" in text
    assert "pdk-secret-" in said(client, sandbox, GET + "-kL " + KEY + "https://a.example/redirect")
    assert "421" in said(client, sandbox, GET + "-i -H 'Host: b.example' " + KEY + "https://a.example/echo")
    text = said(client, sandbox, GET + "-k --connect-to b.example:443:a.example:443 " + KEY + "https://b.example/echo")
    assert "pdk-secret-" in text


def test_trace_and_connect_are_refused(client, sandbox):
    for method in ("TRACE", "CONNECT"):
        text = said(client, sandbox, GET + f"-i -X {method} " + KEY + "https://a.example/echo")
        assert "HTTP/1.1 405" in text or "HTTP/1.1 400" in text, text


# Says something by TLS to a host with a secret, which the server between reads, and prints what comes back.
RAW = ("/usr/bin/python3 -c 'import os, socket, ssl, sys\n"
       's = ssl.create_default_context().wrap_socket(socket.create_connection(("a.example", 443), 60), server_hostname="a.example")\n'
       "s.sendall(%s)\nd = bytearray()\n"
       "try:\n while (n := s.recv(9999)): d += n\nexcept OSError: pass\nsys.stdout.buffer.write(d)'")
HEAD = 'b"POST /key HTTP/1.1\\r\\nHost: a.example\\r\\nConnection: close\\r\\nX-Key: " + os.environb[b"API_KEY"] + b"%s"'
SECOND = "GET /key HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n"


@pytest.mark.parametrize("tail", [
    "\\r\\nContent-Length: 3\\r\\nContent-Length: 40\\r\\n\\r\\nabc" + SECOND,
    "\\r\\nContent-Length: 3\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n" + SECOND,
    "\\r\\nTransfer-Encoding: chunked\\r\\nTransfer-Encoding: identity\\r\\n\\r\\n0\\r\\n\\r\\n" + SECOND,
    "\\r\\nTransfer-Encoding : chunked\\r\\n\\r\\n0\\r\\n\\r\\n" + SECOND,
    "\\r\\nX-More: 1\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n" + SECOND,
    "\\r\\n Transfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n" + SECOND,
    "\\r\\nContent-Length: +3\\r\\n\\r\\nabc" + SECOND,
    "\\r\\nHost: b.example\\r\\nContent-Length: 3\\r\\n\\r\\nabc",
], ids=["two-lengths", "length-and-chunks", "two-codings", "space-before-colon", "bare-newline", "folded", "signed-length", "two-hosts"])
def test_what_two_readers_would_understand_differently_is_refused(client, sandbox, tail):
    text = said(client, sandbox, RAW % (HEAD % tail))
    assert text.startswith("HTTP/1.1 400") and text.count("HTTP/1.1") == 1 and digest(SECRET) not in text, text
    # The control: the same without its trick.
    text = said(client, sandbox, RAW % (HEAD % "\\r\\nContent-Length: 3\\r\\n\\r\\nabc"))
    assert text.startswith("HTTP/1.1 200") and digest(SECRET) in text, text


def test_tls_inside_of_tls_is_no_request(client, sandbox):
    """A hello for another name, in a connection whose TLS ends between: nobody passes it on."""
    hello = "bytes([22, 3, 1, 0, 60]) + bytes([1, 0, 0, 56, 3, 3]) + bytes(54)"
    text = said(client, sandbox, RAW % hello)
    assert text.startswith("HTTP/1.1 400") and text.count("HTTP/1.1") == 1, text
    assert "200 OK" in said(client, sandbox, RAW % (HEAD % "\\r\\nContent-Length: 0\\r\\n\\r\\n"))


def test_the_target_and_the_body_are_left_alone(client, sandbox):
    text = said(client, sandbox, GET + '-d "$API_KEY" "https://a.example/key?k=$API_KEY"')
    assert digest("") in text


def test_it_is_nowhere_in_the_sandbox(client, sandbox):
    """Environment, /proc of every process, files, and the memory of whoever used it."""
    text = said(client, sandbox, "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; "
                "grep -rl ses'ame' /etc /home /tmp /workspace /run /dev/shm 2>/dev/null; echo done")
    assert "pdk-secret-" in text and text.endswith("done\n")
    line = ("python3 - <<'E'\nimport os,ssl,urllib.request\n"
            "r=urllib.request.Request('https://a.example/echo',headers={'X-Key':os.environ['API_KEY']})\n"
            "print(b'*'*8 in urllib.request.urlopen(r).read())\n"
            "word=b'1174-emases'\n"  # from behind, so that what is looked for is not there by that
            "hits=0\n"
            "m=open('/proc/self/mem','rb')\n"
            "for l in open('/proc/self/maps'):\n"
            " a,b=[int(x,16) for x in l.split()[0].split('-')]\n"
            " if 'r' not in l.split()[1] or '[v' in l: continue\n"
            " try: m.seek(a); d=m.read(b-a)\n"
            " except (OSError,ValueError,OverflowError): continue\n"
            " hits+=d[::-1].count(word)\n"
            "print('hits',hits)\nE")
    assert "True\nhits 0" in said(client, sandbox, line)
    # The control: the same look finds what is there.
    found = run(client, sandbox, line.replace("1174-emases", "-terces-kdp"))["stdout"]
    assert int(found.split()[-1]) > 0, found


def test_root_inside_has_no_more(client, sandbox):
    assert digest(SECRET) in said(client, sandbox, GET + KEY + "https://a.example/key", user="root")
    assert "pdk-secret" in said(client, sandbox, "env; cat /proc/1/environ 2>&1; cat /proc/kcore 2>&1 | head -c 9", user="root")


def test_the_authority_is_for_its_hosts_alone(client, sandbox, internet):
    """Programs inside trust it for the bound host; for another one its name constraints forbid it."""
    text = said(client, sandbox, "tac /etc/paddock/authorities.pem | awk '{print} /BEGIN/{exit}' | tac | "
                "openssl x509 -noout -text")
    assert "CA:TRUE, pathlen:0" in text and "DNS:a.example" in text and "Name Constraints: critical" in text
    assert "DNS:b.example" not in text and "0.0.0.0/0.0.0.0" in text
    assert "certificate" in said(client, sandbox, GET + "https://b.example/echo")  # not ours: the host's own
    # Its key is nowhere inside.
    assert "none" in said(client, sandbox, "grep -rl 'PRIVATE KEY' /etc /home /tmp /workspace 2>/dev/null || echo none")


def test_other_programs_work_unchanged(client, sandbox):
    python = ("python3 -c \"import os,urllib.request as u; print(u.urlopen(u.Request('https://a.example/key', "
              "headers={'X-Key': os.environ['API_KEY']})).read().decode())\"")
    assert digest(SECRET) in said(client, sandbox, python)
    node = ("node -e \"require('https').get('https://a.example/key', {headers: {'X-Key': process.env.API_KEY}}, "
            "r => r.on('data', d => console.log(String(d))))\"")
    if "no node" not in said(client, sandbox, "command -v node || echo no node"):
        assert digest(SECRET) in said(client, sandbox, node)


def test_git_clones_with_it(client, sandbox, internet):
    """By the password of a URL, which git sends as Basic when it is asked for one."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    www = f"{internet.dir}/www"
    basic = base64.b64encode(f"user:{SECRET}".encode()).decode()
    make = (f"mkdir {www} && cd {www} && git init -q work && cd work && echo hello > file && git add file && "
            "git -c user.name=n -c user.email=e commit -qm one && git clone -q --bare . ../repo.git && "
            "git -C ../repo.git update-server-info")
    subprocess.run(["bash", "-ec", make], check=True, timeout=seconds(60), env={**os.environ, "HOME": internet.dir})
    with open(f"{www}/allowed", "w") as f:
        f.write(digest(f"Basic {basic}"))
    line = 'cd /tmp && git clone -q "https://user:$API_KEY@a.example/repo.git" %s && cat %s/file'
    assert "hello" in said(client, sandbox, line % ("clone", "clone"))
    # The control: with any other password it is refused.
    text = said(client, sandbox, 'API_KEY=wrong-password GIT_TERMINAL_PROMPT=0; ' + line % ("none", "none"))
    assert "hello" not in text and "uthentication failed" in text


# Waits for longer than the gate does for a first byte (300 ms), after which it dials what the address was the answer for. git is
# as late on a busy machine: its library reads all authorities between connecting and its first byte.
LATE = """/usr/bin/python3 - <<'E'
import os, socket, ssl, time
name, port = "%s", %d
s = socket.create_connection(("a.example", port), 60)
time.sleep(0.7)
if port == 443:
    context = ssl.create_default_context() if name == "a.example" else ssl._create_unverified_context()
    s = context.wrap_socket(s, server_hostname=name)
lines = ["GET /key HTTP/1.1", "Host: " + name, "Connection: close", "X-Key: " + os.environ["API_KEY"], "", ""]
s.sendall("\\r\\n".join(lines).encode())
while (d := s.recv(4096)):
    print(d.decode())
E
"""


@pytest.mark.parametrize("port", [443, 80])
def test_a_client_that_is_late_with_its_first_byte_uses_it_too(client, sandbox, port):
    assert digest(SECRET) in said(client, sandbox, LATE % ("a.example", port))
    # Who is late with another name is judged by that one: b.example is allowed and has no secret, sub.a.example neither.
    text = said(client, sandbox, LATE % ("b.example", port))
    assert digest(SECRET) not in text and re.search("[0-9a-f]{64}", text), text
    text = said(client, sandbox, LATE % ("sub.a.example", port))
    assert not re.search("[0-9a-f]{64}", text) and re.search("no rule allows it|access denied", text), text


def test_another_tenant_has_neither_the_secret_nor_its_name(server, client):
    other = server.client(server.make_key("elsewhere"))
    assert other.get("/v1/secrets").json() == {"secrets": []}
    check_error(other.get("/v1/secrets/prod"), 404)
    check_error(other.delete("/v1/secrets/prod"), 404)
    check_error(other.post("/v1/sandboxes", json={"network": NETWORK}), 400, says="there is no secret 'prod'")
    # A placeholder that was taken elsewhere is a word like any other there.
    placeholder = client.get(f"/v1/sandboxes/{(s := create(client, NETWORK))}/env").json()["env"]["API_KEY"]
    assert other.put("/v1/secrets/prod", json={"value": OTHER}).status == 200
    t = create(other, NETWORK)
    assert digest(placeholder) in run(other, t, GET + f"-H 'X-Key: {placeholder}' https://a.example/key")["stdout"]
    assert digest(OTHER) in run(other, t, GET + KEY + "https://a.example/key")["stdout"]
    other.delete(f"/v1/sandboxes/{t}")
    client.delete(f"/v1/sandboxes/{s}")


def test_rules_of_secrets_are_checked_and_told(client, sandbox):
    told = client.get(f"/v1/sandboxes/{sandbox}/network").json()
    assert told["secrets"] == NETWORK["secrets"] and SECRET not in str(told)
    for bad, field in (({"env": "A B", "secret": "prod", "hosts": ["a.example"]}, "network.secrets.0.env"),
                       ({"env": "K", "secret": "../x", "hosts": ["a.example"]}, "network.secrets.0.secret"),
                       ({"env": "K", "secret": "prod", "hosts": []}, "network.secrets.0.hosts"),
                       ({"env": "K", "secret": "prod", "hosts": ["*.example"]}, "network.secrets.0.hosts"),
                       ({"env": "K", "secret": "prod", "hosts": ["203.0.113.7"]}, "network.secrets.0.hosts"),
                       ({"env": "K", "secret": "prod", "hosts": ["a.example b.example"]}, "network.secrets.0.hosts"),
                       ({"env": "K", "secret": "prod", "hosts": ["a.example:80"]}, "network.secrets.0.hosts"),
                       ({"env": "K", "secret": "none", "hosts": ["a.example"]}, "network.secrets"),
                       ({"env": "K", "secret": "prod", "hosts": ["sub.a.example"]}, "network.secrets")):
        network = {"allow": ["a.example"], "secrets": [bad]}
        check_error(client.post("/v1/sandboxes", json={"network": network}), 400, "invalid", field)
    for value in ("short", "with\nline", " blank-at-the-front", "é" * 20, "x" * 5000):
        r = client.put("/v1/secrets/bad", json={"value": value})
        check_error(r, 400, "invalid")
        assert value not in r.text
    check_error(client.put("/v1/secrets/.bad", json={"value": OTHER}), 400, "invalid")


def test_a_changed_value_holds_at_once_and_a_deleted_one_is_gone(client):
    assert client.put("/v1/secrets/moving", json={"value": "first-value-1"}).status == 200
    s = create(client, {**NETWORK, "secrets": [{"env": "API_KEY", "secret": "moving", "hosts": ["a.example"]}]})
    line = GET + KEY + "https://a.example/key"
    assert digest("first-value-1") in run(client, s, line)["stdout"]
    assert client.put("/v1/secrets/moving", json={"value": "second-value-2"}).status == 200
    wait_for(lambda: digest("second-value-2") in run(client, s, line)["stdout"], 30, "the new value is used")
    assert client.delete("/v1/secrets/moving").status == 204
    wait_for(lambda: (t := run(client, s, line)["stdout"]) and digest("second-value-2") not in t or not t, 30, "it is gone")
    # Other rules take the variable away, or bring another.
    assert client.put(f"/v1/sandboxes/{s}/network", json={"allow": ["a.example"]}).json()["secrets"] == []
    assert "API_KEY" not in client.get(f"/v1/sandboxes/{s}/env").json()["env"]
    assert client.put(f"/v1/sandboxes/{s}/network", json=NETWORK).status == 200
    assert digest(SECRET) in run(client, s, line)["stdout"]
    client.delete(f"/v1/sandboxes/{s}")


def test_forks_and_sleepers_use_it_too_and_their_files_have_none(server, client):
    """A fork has an authority of its own; what sleeps finds everything again."""
    line = GET + KEY + "https://a.example/key"
    s = create(client, NETWORK)
    status, forks = server.e2b("POST", f"/sandboxes/{s}/fork", {})
    assert status == 201, forks
    fork = forks[0]["sandbox"]["sandboxID"]
    assert digest(SECRET) in said(client, fork, line) and digest(SECRET) in said(client, s, line)
    assert server.e2b("POST", f"/sandboxes/{s}/pause", {})[0] == 204
    assert not files_with(server.state_dir, b"sesame-4711")
    assert server.e2b("POST", f"/sandboxes/{s}/resume", {"timeout": 60})[0] == 201
    assert digest(SECRET) in said(client, s, line)
    for each in (s, fork):
        client.delete(f"/v1/sandboxes/{each}")


def test_it_is_in_no_file_no_log_and_no_command_line(server, client, sandbox):
    said(client, sandbox, GET + KEY + "https://a.example/key")
    assert not files_with(server.state_dir, b"sesame-4711") and not files_with(server.run_dir, b"sesame-4711")
    assert files_with(server.state_dir, sandbox.encode())  # the control: what is kept is found
    assert "sesame" not in server.log()
    (changer,) = wait_for(server.changers, 30, "there is a changer")
    (gate,) = server.gates()
    for pid in (changer, gate, server.daemon()):
        with open(f"/proc/{pid}/cmdline", "rb") as f, open(f"/proc/{pid}/environ", "rb") as g:
            assert b"sesame" not in f.read() + g.read()
    events = client.get(f"/v1/sandboxes/{sandbox}/events").text
    assert "sesame" not in events and '"egress"' in events


def test_the_changer_is_nobody_and_its_memory_is_closed(server):
    (changer,) = wait_for(server.changers, 30, "there is a changer")
    with open(f"/proc/{changer}/status") as f:
        status = dict(line.split(":", 1) for line in f)
    uids = set(status["Uid"].split())
    assert len(uids) == 1 and int(uids.pop()) > 1 << 29 and status["Groups"].split() == []
    assert all(int(status[c], 16) == 0 for c in ("CapEff", "CapPrm", "CapInh", "CapAmb"))
    assert status["NoNewPrivs"].strip() == "1" and status["Seccomp"].strip() == "2"
    assert os.stat(f"/proc/{changer}/mem").st_uid == 0  # not dumpable: neither its uid nor a core dump gets at it
    with open(f"/proc/{changer}/limits") as f:
        assert re.search(r"Max core file size\s+0\s+0", f.read())


def test_the_gate_has_what_it_cannot_read(server, client, sandbox):
    """The memory of the gate, after it has lent connections: sealed, and no value. The changer's has it."""
    said(client, sandbox, GET + KEY + "https://a.example/key")

    def memory_has(pid, word):
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as mem:
            for line in maps:
                a, b = (int(x, 16) for x in line.split()[0].split("-"))
                if "r" in line.split()[1] and "[v" not in line:
                    try:
                        mem.seek(a)
                        if word in mem.read(b - a):
                            return True
                    except (OSError, ValueError):
                        pass
        return False

    (gate,) = server.gates()
    assert not memory_has(gate, b"sesame-4711")
    assert memory_has(gate, sandbox.encode())  # the control


def test_a_killed_changer_resets_and_the_next_one_serves(server, client, sandbox):
    (changer,) = wait_for(server.changers, 30, "there is a changer")
    os.kill(changer, signal.SIGKILL)
    wait_for(lambda: (now := server.changers()) and now != [changer], 60, "there is another changer")
    assert digest(SECRET) in said(client, sandbox, GET + KEY + "https://a.example/key")
    (gate,) = server.gates()
    os.kill(gate, signal.SIGKILL)
    wait_for(lambda: (now := server.gates()) and now != [gate], 60, "there is another gate")
    wait_for(lambda: digest(SECRET) in said(client, sandbox, GET + KEY + "https://a.example/key"), 60, "it works again")
    server.kill()
    server.start()
    assert digest(SECRET) in said(client, sandbox, GET + KEY + "https://a.example/key")


def test_the_command_line(server, client):
    """Values come by standard input or a variable; nothing prints one."""
    assert server.run("secret", "set", "by-hand", text="by-hand-value\n").stdout == ""
    assert server.run("secret", "set", "by-env", "--from-env", "KEY", env={"KEY": "by-env-value"}).stdout == ""
    listed = server.run("secret", "ls").stdout.split()
    assert {"by-hand", "by-env", "prod"} <= set(listed) and "value" not in server.run("secret", "ls", "--json").stdout
    s = server.run("create", "--allow", "a.example", "--secret", "API_KEY=by-hand@a.example").stdout.strip()
    assert digest("by-hand-value") in run(client, s, GET + KEY + "https://a.example/key")["stdout"]
    server.run("rm", s)
    server.run("secret", "rm", "by-hand", "by-env")
    assert not {"by-hand", "by-env"} & set(server.run("secret", "ls").stdout.split())
    for words in (("secret",), ("secret", "set"), ("secret", "set", "a/b"), ("secret", "rm"), ("secret", "show", "prod"),
                  ("create", "--secret", "API_KEY=prod")):
        assert server.run(*words, check=False, text="long-enough-value\n").returncode == 2, words
    assert server.run("secret", "rm", "by-hand", check=False).returncode == 125
