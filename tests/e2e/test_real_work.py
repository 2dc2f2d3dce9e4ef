"""Programs that people run in a sandbox do their work there: compilers, interpreters, git. In a jail of `paddock run`;
with PADDOCK_TEST_PROVIDER in sandboxes of that provider, through a server (tests/backends/test_contract.py)."""

import contextlib
import os
import shutil

import pytest

from paddock_testing import contract
from paddock_testing import run as paddock
from paddock_testing.server import Server

servers = contextlib.ExitStack()  # the one of all tests, where there is one
started = []


@pytest.fixture(scope="module", autouse=True)
def close_server():
    yield
    servers.close()


def in_a_sandbox(argv, memory=None, network=None):
    """The output of a program in a sandbox of its own, at the provider that was chosen."""
    if network:
        pytest.skip("a sandbox there has no network of the host's")
    if not started:
        started.append(servers.enter_context(Server({"requests_per_s": 0})))
    api = started[0].client()
    made = api.post("/v1/sandboxes", json={"limits": {"memory_bytes": 1 << 30}} if memory else {})
    assert made.status == 201, made
    done = api.post(f"/v1/sandboxes/{made.json()['id']}/exec", json={"argv": argv, "timeout_s": paddock.seconds(40)}).json()
    api.delete(f"/v1/sandboxes/{made.json()['id']}")
    if done["exit_code"] == 127 and "command not found" in (said := done["stdout"] + done["stderr"]):
        pytest.skip(f"not in the image: {said.strip()}")
    assert done["exit_code"] == 0, done
    return done["stdout"]


def needs(*programs):
    """The host's own /usr is what the sandbox sees; elsewhere installed programs are not there."""
    missing = [p for p in programs if not os.path.exists(os.path.realpath(f"/usr/bin/{p}"))
               or not os.path.realpath(f"/usr/bin/{p}").startswith("/usr/")]
    return pytest.mark.skipif(bool(missing), reason=f"not in /usr: {', '.join(missing)}")


def sh_ok(line, **options):
    if contract.provider() != "jail":
        return in_a_sandbox(["/bin/bash", "-ec", line], **options)
    result = paddock.run(["/bin/bash", "-ec", line], limit=40, **options)
    assert result.status == 0, result.explain()
    return result.out


def python_ok(code, **options):
    if contract.provider() != "jail":
        return in_a_sandbox(["/usr/bin/python3", "-c", code], **options)
    result = paddock.run(["/usr/bin/python3", "-c", code], limit=40, **options)
    assert result.status == 0, result.explain()
    return result.out


@needs("gcc")
def test_compile_and_run_a_c_program():
    source = r'#include <stdio.h>\nint main(void){puts(\"compiled\");return 0;}\n'
    assert sh_ok(f'printf "{source}" >a.c; gcc -O1 -Wall -o a a.c; ./a') == "compiled\n"


@needs("gcc", "make")
def test_make_in_parallel():
    line = ("for i in 1 2 3 4; do echo \"int f$i(void){return $i;}\" >f$i.c; done\n"
            "echo 'int f1(void),f2(void),f3(void),f4(void);int main(void){return "
            "f1()+f2()+f3()+f4();}' >m.c\n"
            "printf 'm: f1.o f2.o f3.o f4.o m.o\\n\\tgcc -o $@ $^\\n' >Makefile\n"
            "make -s -j4; ./m || echo $?")
    assert sh_ok(line) == "10\n"


@needs("git")
def test_git():
    line = ("git init -q -b main r; cd r; git config user.name T; git config user.email t@t.test; "
            "echo a >f; git add f; git commit -qm one; git checkout -qb side; echo b >>f; "
            "git commit -qam two; git checkout -q main; git merge -q side; git gc -q; "
            "git clone -q . ../c; git -C ../c log --format=%s; git fsck --no-progress")
    assert sh_ok(line) == "two\none\n"


def test_shell_pipelines_and_job_control():
    line = "seq 1000 | sort -rn | head -3 | paste -sd,; (sleep 0.1; echo late) & wait; echo <(:)"
    out = sh_ok(line).split()
    assert out[:2] == ["1000,999,998", "late"] and out[2].startswith("/dev/fd/")


def test_tar_gzip_and_find():
    line = ("mkdir -p a/b; seq 10000 >a/b/f; tar czf a.tgz a; rm -r a; tar xzf a.tgz; "
            "find a -type f | xargs wc -l")
    assert sh_ok(line) == "10000 a/b/f\n"


def test_python_threads():
    assert python_ok("import threading\nn = []\nt = [threading.Thread(target=n.append, args=(i,)) "
                     "for i in range(50)]\n[x.start() for x in t]\n[x.join() for x in t]\n"
                     "print(sum(n))") == "1225\n"


def test_python_multiprocessing():
    """Semaphores in /dev/shm, pipes, fork and spawn."""
    code = ("import multiprocessing as m\ndef f(x): return x * x\n"
            "if __name__ == '__main__':\n for k in ('fork', 'spawn'):\n"
            "  with m.get_context(k).Pool(3) as p: print(sum(p.map(f, range(100))))\n"
            " q = m.Queue(); q.put(1); print(q.get())\n")
    assert sh_ok(f'cat >a.py <<"END"\n{code}END\npython3 a.py') == "328350\n328350\n1\n"


def test_python_shared_memory():
    assert python_ok("from multiprocessing import shared_memory as s\n"
                     "a = s.SharedMemory(create=True, size=1 << 20); a.buf[5] = 7\n"
                     "b = s.SharedMemory(a.name); print(b.buf[5]); b.close(); a.close(); a.unlink()"
                     ) == "7\n"


def test_python_sqlite():
    pytest.importorskip("sqlite3")
    assert python_ok("import sqlite3\nc = sqlite3.connect('/workspace/d.db')\n"
                     "c.execute('pragma journal_mode=wal')\nc.execute('create table t(a)')\n"
                     "c.executemany('insert into t values(?)', [(i,) for i in range(1000)])\n"
                     "c.commit()\nprint(c.execute('select sum(a) from t').fetchone()[0])"
                     ) == "499500\n"


def test_python_ssl_and_certificates():
    pytest.importorskip("ssl")
    code = ("import ssl, hashlib\nc = ssl.create_default_context()\n"
            "print(len(c.get_ca_certs()) > 0, hashlib.sha256(b'x').hexdigest()[:8])")
    trusted = os.path.exists("/etc/ssl/certs/ca-certificates.crt")
    assert python_ok(code, network="host") == f"{trusted} 2d711642\n"
    assert python_ok(code) == "False 2d711642\n"  # nobody to talk to, nobody to trust


def test_python_sockets_on_the_loopback():
    code = ("import socket, threading\ns = socket.create_server(('127.0.0.1', 0))\n"
            "threading.Thread(target=lambda: s.accept()[0].sendall(b'hello')).start()\n"
            "print(socket.create_connection(s.getsockname()).recv(9).decode())\n"
            "v6 = socket.create_server(('::1', 0), family=socket.AF_INET6); print('v6')")
    lines = python_ok(code).split() if os.path.exists("/proc/net/if_inet6") else None
    if lines is None:
        pytest.skip("the kernel has no IPv6")
    assert lines == ["hello", "v6"]


def test_python_asyncio_subprocesses():
    code = ("import asyncio\nasync def m():\n"
            " ps = [await asyncio.create_subprocess_exec('echo', str(i), stdout=-1) "
            "for i in range(5)]\n"
            " print([(await p.communicate())[0].decode().strip() for p in ps])\nasyncio.run(m())")
    assert python_ok(code) == "['0', '1', '2', '3', '4']\n"


def test_python_venv():
    pytest.importorskip("venv")
    assert sh_ok("python3 -m venv --without-pip v; v/bin/python -c 'import sys; print(sys.prefix)'"
                 ) == "/workspace/v\n"


def test_python_knows_who_and_where_it_is():
    code = ("import getpass, os, pwd, platform, tempfile\n"
            "print(getpass.getuser(), os.path.expanduser('~'), pwd.getpwuid(os.getuid()).pw_name, "
            "platform.node(), tempfile.gettempdir())")
    assert python_ok(code) == "user /home/user user sandbox /tmp\n"


def test_resolving_the_own_name():
    assert python_ok("import socket; print(socket.gethostbyname('localhost'), "
                     "socket.gethostbyname('sandbox'))") == "127.0.0.1 127.0.0.1\n"


@needs("node")
def test_node_workers():
    code = ("const {Worker, isMainThread, parentPort} = require('worker_threads');"
            "if (isMainThread) { let n = 0; for (let i = 0; i < 3; i++) "
            "new Worker(__filename).on('message', m => { n += m; if (n == 21) console.log(n); }); }"
            "else parentPort.postMessage(7);")
    assert sh_ok(f"cat >a.js <<'END'\n{code}\nEND\nnode a.js", memory="1G") == "21\n"


@needs("node")
def test_node_http_on_the_loopback():
    code = ("const http = require('http'); const s = http.createServer((q, r) => r.end('hi'));"
            "s.listen(0, '127.0.0.1', () => http.get({port: s.address().port}, r => { r.on('data', "
            "d => { console.log(String(d)); s.close(); process.exit(0); }); }));")
    assert sh_ok(f"cat >a.js <<'END'\n{code}\nEND\nnode a.js", memory="1G") == "hi\n"


@needs("perl")
def test_perl():
    assert sh_ok("perl -e 'my $p = fork; if (!$p) { exit 3 } waitpid $p, 0; print $? >> 8'") == "3"


@needs("strace")
def test_debuggers_work_on_own_processes():
    assert "execve" in sh_ok("strace -f -o t sh -c true; head -1 t")


@needs("gdb")
def test_gdb():
    assert "exited normally" in sh_ok("gdb -q -batch -ex run --args /bin/true 2>&1")


def test_inotify_and_file_locks():
    code = ("import fcntl, os, ctypes\nl = ctypes.CDLL(None)\nfd = l.inotify_init1(0)\n"
            "assert fd >= 0 and l.inotify_add_watch(fd, b'/tmp', 256) >= 0\n"
            "f = open('/tmp/x', 'w'); fcntl.flock(f, 2); fcntl.lockf(f, fcntl.LOCK_EX)\n"
            "print(len(os.read(fd, 100)) > 0)")
    assert python_ok(code) == "True\n"


def test_memory_maps_and_execution_of_written_programs():
    assert sh_ok("cp /bin/echo ./e; ./e here; cp /bin/echo /tmp/e; /tmp/e there") == (
        "here\nthere\n")


@needs("gcc")
@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
def test_sanitizers():
    """They need ptrace, large maps and /proc/self."""
    line = ("printf 'int main(void){char *p=__builtin_malloc(4);p[4]=1;return p[4];}' >a.c; "
            "gcc -w -fsanitize=address -o a a.c 2>/dev/null || { echo none; exit 0; }; "
            "./a 2>&1 | grep -o heap-buffer-overflow | head -1 || true")
    assert sh_ok(line) in ("heap-buffer-overflow\n", "none\n")
