/* Workers and archives: both ways with GNU tar, and archives that want out. */
#include "worker_run.h"

#include <sys/ioctl.h>

/* Packs `path` by a worker into the file `to`. */
static void pack(struct bench *b, const char *path, const char *to)
{
    struct job j = job_start(b, OP("tar", path));
    expect_kind(&j, RECORD_ENTRY, "an entry");
    size_t len;
    char *bytes = job_bytes(&j, &len), file[256];
    assert_int_equal(job_end(b, &j), 0);
    assert_int_equal(len % 512, 0);
    snprintf(file, sizeof file, "%s/%s", b->dir, to);
    int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_int_equal(fd_write_all(fd, bytes, len), 0);
    close(fd);
    free(bytes);
}

/* Gives the file `from` to a worker; returns its answer. */
static struct record unpack(struct bench *b, const char *from, const char *path)
{
    char file[256];
    snprintf(file, sizeof file, "%s/%s", b->dir, from);

    struct job j = job_start(b, OP("untar", path));
    pid_t feeder = child_fork();
    if (feeder == 0) {
        char bytes[4096];
        ssize_t n;
        child_keep(j.in);
        signal(SIGPIPE, SIG_DFL);
        int fd = open(file, O_RDONLY | O_CLOEXEC);
        while ((n = read(fd, bytes, sizeof bytes)) > 0)
            if (fd_write_all(j.in, bytes, (size_t)n) < 0)
                _exit(1);
        _exit(0);
    }

    fd_done(&j.in);
    struct record r = job_record(&j);
    job_end(b, &j);
    wait_child(feeder);
    return r;
}

static void make_tree(struct bench *b)
{
    SHELL(b,
          "mkdir -p t/d/e t/ro; printf hello > t/a; printf '' > t/empty; head -c 100000 "
          "/dev/urandom > t/d/big; ln -s ../a t/d/link; mkfifo t/pipe; chmod 0751 t/d; "
          "printf x > t/ro/x; chmod 0555 t/ro; touch -d '2001-02-03 04:05:06Z' t/a t/d; "
          "touch \"t/$(printf 'n%%.0s' {1..200})\" t/$'\\xff\\n' \"t/d/e/$(printf "
          "'m%%.0s' {1..250})\"; ln -s \"$(printf 'k%%.0s' {1..300})\" t/far; "
          "[ $EUID != 0 ] || chown -Rh %u .",
          b->uid);
}

static void test_gnu_tar_reads_what_is_packed(void **state)
{
    struct bench *b = *state;
    make_tree(b);
    pack(b, "t", "out.tar");
    SHELL(b,
          "mkdir x && tar -xpf out.tar -C x && rm t/pipe && diff -r --no-dereference t x && "
          "[ $(stat -c %%a x/d) = 751 ] && [ $(stat -c %%a x/ro) = 555 ] && "
          "[ \"$(stat -c %%Y x/a)\" = \"$(stat -c %%Y t/a)\" ] && [ $(readlink x/d/link) = ../a ]");

    pack(b, "t/d/big", "one.tar");
    SHELL(b, "[ \"$(tar -tf one.tar)\" = big ] && tar -xOf one.tar | cmp - t/d/big");
    SHELL(b, "mkdir none");
    pack(b, "none", "none.tar");
    SHELL(b, "[ -z \"$(tar -tf none.tar)\" ]");
}

static void test_what_gnu_tar_packs_is_read(void **state)
{
    static const char *const formats[] = {"gnu", "pax", "ustar", "v7", "oldgnu"};
    struct bench *b = *state;
    make_tree(b);
    SHELL(b, "rm -r t/pipe; cp -a t s; cd s; rm -f far n* d/e/m*"); /* s: short names only */

    for (size_t i = 0; i < COUNT(formats); i++) {
        const char *from = i < 2 || i == 4 ? "t" : "s";
        SHELL(b, "rm -rf y; tar -c --format=%s -f %s.tar -C %s .", formats[i], formats[i], from);
        char tar[32], to[32];
        snprintf(tar, sizeof tar, "%s.tar", formats[i]);
        snprintf(to, sizeof to, "new/%s", formats[i]);

        struct record r = unpack(b, tar, to);
        if (r.kind != RECORD_TAR_DONE)
            show_error(&r, formats[i]);
        assert_true(r.tar_done.entries > 5 && r.tar_done.bytes > 100000);

        SHELL(b,
              "diff -r --no-dereference %s %s && [ $(stat -c %%a %s/d) = 751 ] && [ $(stat -c %%a "
              "%s/ro) = 555 ] && [ $(stat -c %%Y %s/a) = $(stat -c %%Y %s/a) ] && [ -z \"$(find %s "
              "-name .paddock-\\*)\" ]",
              from, to, to, to, to, from, to);
        if (geteuid() == 0)
            SHELL(b, "[ -z \"$(find %s ! -uid %u)\" ]", to, b->uid);
    }

    /* Again over what is there: files are replaced. */
    SHELL(b, "chmod 755 new/gnu/ro");
    struct record r = unpack(b, "pax.tar", "new/gnu");
    if (r.kind != RECORD_TAR_DONE)
        show_error(&r, "once more");
}

static void test_round_trip(void **state)
{
    struct bench *b = *state;
    make_tree(b);
    pack(b, "t", "out.tar");
    struct record r = unpack(b, "out.tar", "z/");
    assert_int_equal(r.kind, RECORD_TAR_DONE);
    SHELL(b, "rm t/pipe; diff -r --no-dereference t z");
    SHELL(b, "ln z/a z/hard; tar -cf hard.tar -C z a hard"); /* one is a link to the other */
    r = unpack(b, "hard.tar", "q");
    assert_int_equal(r.kind, RECORD_TAR_DONE);
    SHELL(b, "[ q/a -ef q/hard ]");
}

/* Archives by Python, which writes what it is told to. Each row: how the archive is made, and what
 * the answer says; "" means that it is unpacked, but stays inside. */
static void test_archives_that_want_out(void **state)
{
    static const struct {
        const char *why, *python;
        enum pd_code code;
        const char *word;
    } rows[] = {
        {"parent", "f('../evil')", PD_INVALID, "'..'"},
        {"parent inside", "f('a/../../evil')", PD_INVALID, "'..'"},
        {"absolute", "f('/evil')", 0, ""},
        {"absolute parent", "f('/../evil')", PD_INVALID, "'..'"},
        {"link, then a file through it", "l('d','..');f('d/evil')", PD_INVALID, "symbolic link"},
        {"absolute link, then a file", "l('d','/tmp');f('d/evil-worker')", PD_INVALID,
         "symbolic link"},
        {"link over a directory", "d('d');l('d','..')", PD_INVALID, "directory"},
        {"link and file of one name", "l('x','../evil');f('x')", 0, ""},
        {"directory over a link", "l('d','..');d('d');f('d/evil')", PD_INVALID, "symbolic link"},
        {"hard link out", "h('x','../keep')", PD_INVALID, "outside"},
        {"absolute hard link", "h('x','/etc/passwd')", PD_NOT_FOUND, "archive"},
        {"hard link through a link", "l('d','..');h('x','d/keep')", PD_INVALID, "symbolic link"},
        {"hard link to a link", "l('d','../keep');h('x','d')", PD_INVALID, "symbolic link"},
        {"hard link to the root", "h('x','.')", PD_NOT_FOUND, "archive"},
        {"device", "n('dev',t.CHRTYPE)", PD_INVALID, "device"},
        {"block device", "n('dev',t.BLKTYPE)", PD_INVALID, "device"},
        {"FIFO", "n('p',t.FIFOTYPE)", PD_INVALID, "FIFO"},
        {"set-uid", "f('suid',mode=0o6755)", 0, ""},
        {"pax path", "f('ok',pax={'path':'../evil'})", PD_INVALID, "'..'"},
        {"pax link path", "h('x','ok',pax={'linkpath':'../keep'})", PD_INVALID, "outside"},
        {"size of 8 E", "f('x',size=2**63-1)", PD_INVALID, "larger"},
        {"sparse", "f('x',pax={'GNU.sparse.major':'1'})", PD_UNSUPPORTED, "sparse"},
        {"attributes", "f('x',pax={'SCHILY.xattr.trusted.overlay.opaque':'y'})", 0, ""},
        {"name of dots", "f('...')", 0, ""},
        {"no name", "f('./')", 0, ""},
        {"file over a directory", "d('d');f('d/x');f('d')", PD_INVALID, "directory"},
        {"directory over a file", "f('d');d('d')", PD_CONFLICT, "exists"},
        {"file below a file", "f('d');f('d/x')", PD_INVALID, "not a directory"},
        {"long name", "f('n'*300)", PD_INVALID, "too long"},
        {"long target", "l('x','t'*5000)", PD_INVALID, "too long"},
        {"deep", "f('d/'*20000+'x')", 0, ""},
    };

    struct bench *b = *state;
    bench_in_memory(b); /* a busy disk takes minutes to remove the deep one */
    SHELL(b, "echo keep > keep; cp keep evil.orig; chmod a+w keep");

    for (size_t i = 0; i < COUNT(rows); i++) {
        SHELL(
            b,
            "rm -rf in /tmp/evil-worker; /usr/bin/python3 - <<'EOF'\n"
            "import tarfile as t,io\n"
            "w=t.open('bad.tar','w',format=t.PAX_FORMAT)\n"
            "def add(n,ty,link='',pax={},mode=0o644,size=None,data=b''):\n"
            "    i=t.TarInfo(n); i.type=ty; i.linkname=link; i.mode=mode; i.pax_headers=pax\n"
            "    i.size=len(data)\n"
            "    if size is not None: i.size=size; w.fileobj.write(i.tobuf(t.GNU_FORMAT)); return\n"
            "    w.addfile(i,io.BytesIO(data))\n"
            "def f(n,**k): add(n,t.REGTYPE,data=b'evil',**k)\n"
            "def d(n): add(n,t.DIRTYPE,mode=0o755)\n"
            "def l(n,to): add(n,t.SYMTYPE,to)\n"
            "def h(n,to,**k): add(n,t.LNKTYPE,to,**k)\n"
            "def n(n,ty): add(n,ty)\n"
            "%s\n"
            "w.close()\nEOF",
            rows[i].python);

        struct record r = unpack(b, "bad.tar", "in");
        if (!rows[i].word[0] && r.kind != RECORD_TAR_DONE)
            show_error(&r, rows[i].why);
        if (rows[i].word[0] && (r.kind != RECORD_ERROR || r.error.code != rows[i].code ||
                                !strstr(r.error.text, rows[i].word)))
            fail_msg("%s: kind %u, %s", rows[i].why, (unsigned)r.kind,
                     r.kind == RECORD_ERROR ? r.error.text : "");
        if (run_shell(b, "cmp -s keep evil.orig && [ ! -e evil ] && [ ! -e /tmp/evil-worker ] && [ "
                         "$(stat -c %%h keep) = 1 ] && [ -z \"$(find in -perm /7000 -o -type p -o "
                         "-type c -o -type b 2>/dev/null)\" ]") != 0)
            fail_msg("%s: something is outside, or should not be there", rows[i].why);
    }
}

/* An archive that names a link which was there before it. */
static void test_links_that_were_there_before(void **state)
{
    struct bench *b = *state;
    SHELL(b,
          "mkdir in out src; ln -s ../out in/d; mkdir src/d; echo x > src/d/evil; tar -cf a.tar -C "
          "src d/evil; ln -s ../out/target in/f; echo y > src/f; tar -cf f.tar -C src f; "
          "chmod -R a+rwX .; [ $EUID != 0 ] || chown -Rh %u .",
          b->uid);
    struct record r = unpack(b, "a.tar", "in");
    assert_int_equal(r.kind, RECORD_ERROR);
    r = unpack(b, "f.tar", "in"); /* the link is replaced, not followed */
    assert_int_equal(r.kind, RECORD_TAR_DONE);
    SHELL(b, "[ -z \"$(ls out)\" ] && [ ! -L in/f ] && [ $(cat in/f) = y ]");
}

static void test_archives_that_are_cut(void **state)
{
    struct bench *b = *state;
    make_tree(b);
    SHELL(b, "tar -cf whole.tar -C t a d");

    static const unsigned sizes[] = {0, 1, 511, 512, 600, 1000, 1024, 1500, 50000};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        SHELL(b, "head -c %u whole.tar > cut.tar", sizes[i]);
        struct record r = unpack(b, "cut.tar", "in");
        assert_int_equal(r.kind, RECORD_ERROR);
        assert_int_equal(r.error.code, PD_INVALID);
        assert_non_null(strstr(r.error.text, "cut off"));
        SHELL(b, "[ -z \"$(find in -name .paddock-\\*)\" ] && [ ! -e in/d/big ]");
    }

    SHELL(b, "head -c 5000 /dev/urandom > noise; printf '%%05000d' 0 > text");
    assert_int_equal(unpack(b, "noise", "in").error.code, PD_INVALID);
    assert_int_equal(unpack(b, "text", "in").error.code, PD_INVALID);
}

static void test_packing_refusals(void **state)
{
    struct bench *b = *state;
    SHELL(b, "mkfifo p; mkdir d; chmod 755 d");
    expect_refusal(b, OP("tar", "gone"), PD_NOT_FOUND, "'gone'");
    expect_refusal(b, OP("tar", "p"), PD_INVALID, "a FIFO");
    expect_refusal(b, OP("tar", "/proc/self/root"), PD_INVALID, "/proc");
    expect_refusal(b, OP("untar", "p"), PD_INVALID, "not a directory");

    if (geteuid() == 0) {
        SHELL(b, "mkdir d/e; echo > d/e/secret; chmod 600 d/e/secret");
        expect_refusal(b, OP("tar", "d"), PD_DENIED, "secret"); /* before a single byte */
        SHELL(b, "rm d/e/secret; chmod 700 d/e");
        expect_refusal(b, OP("tar", "d"), PD_DENIED, "d/e");
        expect_refusal(b, OP("untar", "d/new"), PD_DENIED, "d/new");
    }
}

/* A file that shrinks while it is packed is filled up: the archive stays one. */
static void test_a_file_that_shrinks_while_packed(void **state)
{
    struct bench *b = *state;
    SHELL(b, "mkdir t; head -c 8M /dev/urandom > t/big; echo last > t/z; chmod -R a+rX t");
    struct job j = job_start(b, OP("tar", "t"));
    expect_kind(&j, RECORD_ENTRY, "an entry");

    /* The header is gone once more than that is in the pipe. */
    int ready = 0;
    for (deadline d = deadline_in(PATIENCE); ready < 8192; usleep(1000)) {
        assert_false(deadline_passed(d));
        assert_int_equal(ioctl(j.out, FIONREAD, &ready), 0);
    }
    SHELL(b, "truncate -s 100 t/big");
    size_t len;
    char *bytes = job_bytes(&j, &len), file[256];
    assert_int_equal(job_end(b, &j), 0);
    snprintf(file, sizeof file, "%s/out.tar", b->dir);
    int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_int_equal(fd_write_all(fd, bytes, len), 0);
    close(fd);
    free(bytes);
    SHELL(b,
          "mkdir x; tar -xf out.tar -C x && [ $(stat -c %%s x/big) = 8388608 ] && [ $(cat x/z) = "
          "last ]");
}

#define WITH_BENCH(test) cmocka_unit_test_setup_teardown(test, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_BENCH(test_gnu_tar_reads_what_is_packed),
        WITH_BENCH(test_what_gnu_tar_packs_is_read),
        WITH_BENCH(test_round_trip),
        WITH_BENCH(test_archives_that_want_out),
        WITH_BENCH(test_links_that_were_there_before),
        WITH_BENCH(test_archives_that_are_cut),
        WITH_BENCH(test_packing_refusals),
        WITH_BENCH(test_a_file_that_shrinks_while_packed),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
