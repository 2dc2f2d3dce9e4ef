/* Directories as tar streams: what goes out comes back, and what is hostile stays inside. */
#include "unit.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "client/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct place {
    char path[64];
    int outer, inner; /* the directory of the test, and the one to unpack into */
};

static int make_place(void **state)
{
    static struct place p;
    snprintf(p.path, sizeof p.path, "/tmp/paddock-tar-XXXXXX");
    if (!mkdtemp(p.path))
        return -1;
    p.outer = open(p.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    mkdirat(p.outer, "in", 0755);
    p.inner = openat(p.outer, "in", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *state = &p;
    return p.inner < 0 ? -1 : 0;
}

static int remove_place(void **state)
{
    struct place *p = *state;
    fd_done(&p->outer);
    fd_done(&p->inner);
    pid_t child = child_fork();
    if (!child) {
        execlp("rm", "rm", "-rf", "--", p->path, (char *)NULL);
        _exit(1);
    }
    return waitpid(child, NULL, 0) == child ? 0 : -1;
}

struct archive {
    struct buf bytes;
    size_t at;
};

static int put(void *to, const void *data, size_t len, struct pd_err *e)
{
    (void)e;
    return buf_put(&((struct archive *)to)->bytes, data, len);
}

/* In odd pieces, as a network gives them. */
static ssize_t get(void *from, void *out, size_t size, struct pd_err *e)
{
    struct archive *a = from;
    size_t n = a->bytes.len - a->at;
    (void)e;
    n = n < size ? n : size;
    n = n > 777 ? 777 : n;
    memcpy(out, a->bytes.data + a->at, n);
    a->at += n;
    return (ssize_t)n;
}

static void put_entry(struct archive *a, const char *name, char type, const char *link,
                      const char *data, unsigned mode)
{
    unsigned char h[512] = {0};
    size_t len = data ? strlen(data) : 0;
    snprintf((char *)h, 100, "%s", name);
    snprintf((char *)h + 100, 8, "%07o", mode);
    snprintf((char *)h + 124, 12, "%011o", (unsigned)len & 0xffff);
    snprintf((char *)h + 136, 12, "%011o", 0);
    h[156] = (unsigned char)type;
    snprintf((char *)h + 157, 100, "%s", link);
    memcpy(h + 257, "ustar\00000", 8);

    unsigned sum = 0;
    memset(h + 148, ' ', 8);
    for (size_t i = 0; i < sizeof h; i++)
        sum += h[i];
    snprintf((char *)h + 148, 8, "%06o", sum);
    assert_int_equal(buf_put(&a->bytes, h, sizeof h), 0);

    if (len) {
        static const char zeros[512];
        buf_put(&a->bytes, data, len);
        buf_put(&a->bytes, zeros, (512 - len % 512) % 512);
    }
}

static int unpack(struct archive *a, int dir, struct pd_err *e)
{
    static const char end[1024];
    buf_put(&a->bytes, end, sizeof end);
    a->at = 0;
    return tar_unpack(dir, get, a, e);
}

#define ARCHIVE ((struct archive){.bytes = BUF_INIT(1u << 20)})

static void write_file(int dir, const char *name, const char *text, mode_t mode)
{
    auto_fd fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
    assert_int_equal(fchmod(fd, mode), 0);
}

static void assert_file(int dir, const char *name, const char *text, unsigned mode)
{
    char content[5000];
    struct stat st;
    assert_int_equal(fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_true(S_ISREG(st.st_mode));
    assert_int_equal(st.st_mode & 07777, mode);
    assert_true(fd_read_file(dir, name, content, sizeof content) >= 0);
    assert_string_equal(content, text);
}

static int exists(int dir, const char *name)
{
    struct stat st;
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static void test_a_tree_comes_back(void **state)
{
    struct place *p = *state;
    struct pd_err e = {.msg = ""};
    struct archive a = ARCHIVE;
    char longer[260], content[4100], link[300];

    umask(022);
    memset(longer, 'n', 200);
    longer[200] = 0;
    memset(content, 'c', sizeof content - 1);
    content[sizeof content - 1] = 0;
    mkdirat(p->outer, "src", 0755);
    mkdirat(p->outer, "src/sub", 0700);

    auto_fd src = openat(p->outer, "src", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    write_file(src, "empty", "", 0644);
    write_file(src, "run.sh", "#!/bin/sh\n", 0755);
    write_file(src, "sub/\xff odd\nname", content, 0600);
    write_file(src, longer, "long", 0644);

    assert_int_equal(symlinkat("../run.sh", src, "sub/link"), 0);
    assert_int_equal(mkfifoat(src, "pipe", 0600), 0);
    assert_int_equal(tar_write(src, put, &a, &e), 0);
    assert_int_equal(a.bytes.len % 512, 0);

    a.at = 0;
    assert_int_equal(tar_unpack(p->inner, get, &a, &e), 0);
    assert_file(p->inner, "empty", "", 0644);
    assert_file(p->inner, "run.sh", "#!/bin/sh\n", 0755);
    assert_file(p->inner, "sub/\xff odd\nname", content, 0600);
    assert_file(p->inner, longer, "long", 0644);

    ssize_t n = readlinkat(p->inner, "sub/link", link, sizeof link);
    assert_int_equal(n, 9);
    assert_memory_equal(link, "../run.sh", 9);
    assert_false(exists(p->inner, "pipe"));

    /* Again over it: files are replaced. */
    a.at = 0;
    assert_int_equal(tar_unpack(p->inner, get, &a, &e), 0);
    buf_done(&a.bytes);
}

static void test_names_that_lead_out_are_refused(void **state)
{
    static const char *const names[] = {"../x",  "/tmp/paddock-tar-x", "a/../../x", "a/..", "..",
                                        "./../x"};
    struct place *p = *state;

    for (size_t i = 0; i < COUNT(names); i++) {
        struct pd_err e = {.msg = ""};
        struct archive a = ARCHIVE;
        put_entry(&a, names[i], '0', "", "evil", 0644);
        assert_int_equal(unpack(&a, p->inner, &e), -1);
        assert_int_equal(e.code, PD_PROTOCOL);
        assert_false(exists(p->outer, "x"));
        assert_false(exists(AT_FDCWD, "/tmp/paddock-tar-x"));
        buf_done(&a.bytes);
    }
}

static void test_links_that_lead_out_are_left_out(void **state)
{
    static const struct {
        const char *name, *link;
        int made;
    } rows[] = {
        {"l", "/etc/passwd", 0}, {"l", "..", 0},          {"l", "../x", 0},
        {"d/l", "../../x", 0},   {"d/l", "e/../..", 0},   {"l", "", 0},
        {"l", "a/..", 0},        {"d/l", "../a", 1},      {"l", "a", 1},
        {"l", "./a", 1},         {"d/e/l", "../../a", 1}, {"d/e/l", "../../../a", 0},
    };
    struct place *p = *state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct pd_err e = {.msg = ""};
        struct archive a = ARCHIVE;
        unlinkat(p->inner, rows[i].name, 0);
        put_entry(&a, rows[i].name, '2', rows[i].link, NULL, 0777);
        assert_int_equal(unpack(&a, p->inner, &e), 0);
        assert_int_equal(exists(p->inner, rows[i].name), rows[i].made);
        buf_done(&a.bytes);
    }
}

static void test_nothing_is_written_through_a_link(void **state)
{
    struct place *p = *state;
    struct pd_err e = {.msg = ""};
    struct archive a = ARCHIVE;
    mkdirat(p->outer, "out", 0755);
    write_file(p->outer, "victim", "safe", 0644);

    /* A link that the user has there, and one that the archive brings. */
    assert_int_equal(symlinkat("../out", p->inner, "mine"), 0);
    assert_int_equal(symlinkat("../victim", p->inner, "file"), 0);

    put_entry(&a, "file", '0', "", "evil", 0644);
    put_entry(&a, "mine/x", '0', "", "evil", 0644);
    assert_int_equal(unpack(&a, p->inner, &e), -1);
    assert_false(exists(p->outer, "out/x"));
    assert_file(p->outer, "victim", "safe", 0644);
    assert_file(p->inner, "file", "evil", 0644); /* the link itself was replaced */
    buf_done(&a.bytes);

    a = ARCHIVE;
    put_entry(&a, "dir", '5', "", NULL, 0755);
    put_entry(&a, "link", '2', "dir", NULL, 0777);
    put_entry(&a, "link/x", '0', "", "through", 0644);
    assert_int_equal(unpack(&a, p->inner, &e), -1);
    assert_false(exists(p->inner, "dir/x"));
    buf_done(&a.bytes);
}

static void test_devices_hard_links_and_setuid_do_not_arrive(void **state)
{
    struct place *p = *state;
    struct pd_err e = {.msg = ""};
    struct archive a = ARCHIVE;

    put_entry(&a, "suid", '0', "", "x", 06755);
    put_entry(&a, "hard", '1', "suid", NULL, 0644);
    put_entry(&a, "char", '3', "", NULL, 0666);
    put_entry(&a, "block", '4', "", NULL, 0666);
    put_entry(&a, "fifo", '6', "", NULL, 0666);
    put_entry(&a, "odd", 'V', "", "skipped", 0666);
    put_entry(&a, "closed", '5', "", NULL, 0);
    put_entry(&a, "closed/last", '0', "", "here", 0644);

    assert_int_equal(unpack(&a, p->inner, &e), 0);
    assert_file(p->inner, "suid", "x", 0755);
    assert_file(p->inner, "closed/last", "here", 0644);
    assert_false(exists(p->inner, "hard") || exists(p->inner, "char") ||
                 exists(p->inner, "block") || exists(p->inner, "fifo") || exists(p->inner, "odd"));
    buf_done(&a.bytes);
}

static void test_a_broken_archive_is_an_error(void **state)
{
    struct place *p = *state;
    struct pd_err e = {.msg = ""};
    struct archive whole = ARCHIVE;
    put_entry(&whole, "pax", 'x', "", "16 path=renamed\n", 0644);
    put_entry(&whole, "name", '0', "", "content", 0644);
    size_t len = whole.bytes.len;

    /* Cut anywhere but between entries. */
    for (size_t cut = 1; cut < len; cut += 37) {
        if (cut % 512 == 0 && cut != 512)
            continue;
        struct archive a = {.bytes = whole.bytes};
        a.bytes.len = cut;
        assert_int_equal(tar_unpack(p->inner, get, &a, &e), -1);
    }

    /* Every byte of a head counts. */
    for (size_t i = 0; i < 512; i += 7) {
        struct archive a = ARCHIVE;
        put_entry(&a, "name", '0', "", "content", 0644);
        a.bytes.data[i] ^= 1;
        assert_int_equal(unpack(&a, p->inner, &e), -1);
        assert_int_equal(e.code, PD_PROTOCOL);
        buf_done(&a.bytes);
    }

    static const char *const bad[] = {"x path=a\n", "99 path=a\n", "8 path=a\n", "5 pat\n",
                                      "12 size=1x\n"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct archive a = ARCHIVE;
        put_entry(&a, "pax", 'x', "", bad[i], 0644);
        put_entry(&a, "name", '0', "", "content", 0644);
        assert_int_equal(unpack(&a, p->inner, &e), -1);
        buf_done(&a.bytes);
    }
    buf_done(&whole.bytes);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_place, remove_place)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_tree_comes_back),
        TEST(test_names_that_lead_out_are_refused),
        TEST(test_links_that_lead_out_are_left_out),
        TEST(test_nothing_is_written_through_a_link),
        TEST(test_devices_hard_links_and_setuid_do_not_arrive),
        TEST(test_a_broken_archive_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
