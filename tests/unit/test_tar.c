/* Headers of archives: good ones, odd ones, and the ones made to hurt. */
#include "unit.h"

#include "base/err.h"
#include "init/tar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct raw {
    uint8_t bytes[TAR_BLOCK];
};

enum {
    NAME = 0,
    MODE = 100,
    UID = 108,
    SIZE = 124,
    MTIME = 136,
    SUM = 148,
    TYPE = 156,
    LINK = 157,
    MAGIC = 257,
    PREFIX = 345
};

static void seal(struct raw *b)
{
    unsigned sum = 0;
    memset(b->bytes + SUM, ' ', 8);
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += b->bytes[i];
    snprintf((char *)b->bytes + SUM, 8, "%06o", sum);
}

static struct raw make(const char *name, char type, const char *size)
{
    struct raw b = {{0}};
    memcpy(b.bytes + NAME, name, strlen(name));
    memcpy(b.bytes + MODE, "0000644", 8);
    memcpy(b.bytes + SIZE, size, strlen(size));
    memcpy(b.bytes + MTIME, "00000000000", 12);
    b.bytes[TYPE] = (uint8_t)type;
    memcpy(b.bytes + MAGIC, "ustar\00000", 8);
    seal(&b);
    return b;
}

static void test_what_is_written_is_read(void **state)
{
    (void)state;
    static char long_name[5000], long_link[4096];
    memset(long_name, 'n', sizeof long_name - 1);
    memset(long_link, 'l', sizeof long_link - 1);

    const struct tar_entry samples[] = {
        {TAR_FILE, 0644, 1000, 1000, 5, 1700000000, "a.txt", ""},
        {TAR_DIR, 0755, 0, 0, 0, 0, "d/", ""},
        {TAR_SYMLINK, 0777, 1, 2, 0, 1, "l", "../x"},
        {TAR_HARDLINK, 0600, 1, 2, 0, 1, "h", "a.txt"},
        {TAR_FIFO, 0600, 1, 2, 0, 1, "p", ""},
        {TAR_FILE, 07777, 1u << 20, 65534, (1ull << 33) - 1, (1ll << 33) - 1, "limits", ""},
        {TAR_FILE, 0644, 0, 0, 1ull << 33, 1ll << 33, "beyond", ""},
        {TAR_FILE, 0644, 0, 0, TAR_SIZE_MAX, -5, "far beyond", ""},
        {TAR_FILE, 0644, 0, 0, 1, 0, long_name, ""},
        {TAR_SYMLINK, 0644, 0, 0, 0, 0, long_name, long_link},
        {TAR_FILE, 0644, 0, 0, 0, 0, "\xff\n\x01", ""},
    };
    for (size_t i = 0; i < COUNT(samples); i++) {
        const struct tar_entry *t = &samples[i];
        auto_buf b = BUF_INIT(1 << 20);
        auto_tar_reader r = TAR_READER_INIT;
        struct pd_err e = {.msg = ""};

        tar_write_header(&b, t);
        assert_false(b.overflow);
        assert_int_equal(b.len % TAR_BLOCK, 0);

        size_t at = 0;
        int step = tar_header(&r, b.data, &e);
        at += TAR_BLOCK;
        if (step == TAR_META) {
            assert_int_equal(tar_meta(&r, b.data + at, (size_t)r.meta_size, &e), 0);
            at += (size_t)r.meta_size + tar_padding(r.meta_size);
            step = tar_header(&r, b.data + at, &e);
            at += TAR_BLOCK;
        }
        if (step != TAR_ENTRY)
            fail_msg("sample %zu: %d %s", i, step, e.msg);
        assert_int_equal(at, b.len);
        assert_int_equal(r.entry.type, t->type);
        assert_int_equal(r.entry.mode, t->mode);
        assert_int_equal(r.entry.uid, t->uid);
        assert_int_equal(r.entry.size, t->size);
        assert_int_equal(r.entry.mtime, t->mtime);
        assert_string_equal(r.entry.path, t->path);
        assert_string_equal(r.entry.link, t->link);
    }

    auto_buf end = BUF_INIT(4096);
    tar_write_end(&end);
    assert_int_equal(end.len, 1024);
    auto_tar_reader r = TAR_READER_INIT;
    assert_int_equal(tar_header(&r, end.data, NULL), TAR_END);
}

static void test_ustar_and_gnu_names(void **state)
{
    (void)state;
    auto_tar_reader r = TAR_READER_INIT;
    struct pd_err e;
    struct raw b = make("name", '0', "00000000000");
    memcpy(b.bytes + PREFIX, "pre/fix", 7);
    seal(&b);
    assert_int_equal(tar_header(&r, b.bytes, &e), TAR_ENTRY);
    assert_string_equal(r.entry.path, "pre/fix/name");

    memcpy(b.bytes + MAGIC, "ustar  ", 8); /* GNU: that is no prefix */
    seal(&b);
    assert_int_equal(tar_header(&r, b.bytes, &e), TAR_ENTRY);
    assert_string_equal(r.entry.path, "name");

    b = make("full", '0', "00000000000");
    memset(b.bytes + NAME, 'f', 100); /* no room for a NUL */
    seal(&b);
    assert_int_equal(tar_header(&r, b.bytes, &e), TAR_ENTRY);
    assert_int_equal(strlen(r.entry.path), 100);

    b = make("././@LongLink", 'L', "00000000012");
    assert_int_equal(tar_header(&r, b.bytes, &e), TAR_META);
    assert_int_equal(r.meta_size, 10);
    assert_int_equal(tar_meta(&r, (const uint8_t *)"long/name", 10, &e), 0);

    b = make("short", '0', "00000000000");
    assert_int_equal(tar_header(&r, b.bytes, &e), TAR_ENTRY);
    assert_string_equal(r.entry.path, "long/name");
    assert_int_equal(tar_header(&r, b.bytes, &e), TAR_ENTRY); /* for one entry only */
    assert_string_equal(r.entry.path, "short");

    b = make("old/", 0, "00000000000"); /* before ustar, a directory was a file with a slash */
    memset(b.bytes + MAGIC, 0, 8);
    seal(&b);
    assert_int_equal(tar_header(&r, b.bytes, &e), TAR_ENTRY);
    assert_int_equal(r.entry.type, TAR_DIR);
}

static void test_numbers(void **state)
{
    static const struct {
        const char *field;
        size_t len;
        int64_t want; /* -1: refused */
    } rows[] = {
        {"00000000012\0", 12, 10},
        {"         12 ", 12, 10},
        {"12\0\0\0\0\0\0\0\0\0\0", 12, 10},
        {"            ", 12, 0},
        {"777777777777", 12, (1ll << 36) - 1},
        {"12x\0\0\0\0\0\0\0\0\0", 12, -1},
        {"-1\0\0\0\0\0\0\0\0\0\0", 12, -1},
        {"8\0\0\0\0\0\0\0\0\0\0\0", 12, -1},
        {"\x80\0\0\0\0\0\0\0\0\0\0\x0a", 12, 10},
        {"\x80\0\0\0\0\0\2\0\0\0\0\0", 12, 1ll << 41},
        {"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", 12, -1}, /* 8 E */
        {"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 12, -1},
        {"\x80\1\0\0\0\0\0\0\0\0\0\0", 12, -1},
        {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12, -1}, /* negative */
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_tar_reader r = TAR_READER_INIT;
        struct pd_err e = {.msg = ""};
        struct raw b = make("n", '0', "");
        memcpy(b.bytes + SIZE, rows[i].field, rows[i].len);
        seal(&b);
        int step = tar_header(&r, b.bytes, &e);
        if (step != (rows[i].want < 0 ? -1 : TAR_ENTRY) ||
            (step == TAR_ENTRY && (int64_t)r.entry.size != rows[i].want))
            fail_msg("row %zu: %d, size %llu %s", i, step, (unsigned long long)r.entry.size, e.msg);
        if (step < 0)
            assert_int_equal(e.code, PD_INVALID);
    }
}

static void test_pax(void **state)
{
    static const struct {
        const char *text;
        size_t len; /* 0: all of it */
        int ok;
    } rows[] = {
        {"15 path=hidden\n", 0, 1},
        {"15 path=hidden\n16 comment=hello\n", 0, 0}, /* 17 */
        {"15 path=hidden\n17 comment=hello\n", 0, 1},
        {"14 path=hidden\n", 0, 0},
        {"16 path=hidden\n", 0, 0},
        {"99999999999 path=x\n", 0, 0},
        {"99 path=x\n", 0, 0},
        {"0 path=x\n", 0, 0},
        {"path=x\n", 0, 0},
        {" 11 path=x\n", 0, 0},
        {"7 path\n", 0, 0},
        {"5 =x\n", 0, 0},
        {"8 path=\n", 0, 0},
        {"10 path=\0\n", 10, 0},
        {"12 path=a\0b\n", 12, 0},
        {"12 path=abc", 11, 0},
        {"11 size=12\n", 0, 1},
        {"11 size=-1\n", 0, 0},
        {"11 size=1x\n", 0, 0},
        {"28 size=9999999999999999999\n", 0, 0},
        {"22 mtime=1700000000.5\n", 0, 1},
        {"12 mtime=-1\n", 0, 1},
        {"11 mtime=.\n", 0, 1},
        {"11 mtime=\n", 0, 0},
        {"22 GNU.sparse.major=1\n", 0, 0},
        {"", 0, 1},
    };

    (void)state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_tar_reader r = TAR_READER_INIT;
        struct pd_err e = {.msg = ""};
        size_t len = rows[i].len ? rows[i].len : strlen(rows[i].text);
        char size[16];

        snprintf(size, sizeof size, "%011o", (unsigned)len);
        struct raw b = make("x", 'x', size);
        assert_int_equal(tar_header(&r, b.bytes, &e), TAR_META);

        /* Exactly allocated, so that reading beyond it shows. */
        uint8_t *copy = malloc(len ? len : 1);
        memcpy(copy, rows[i].text, len);

        int ok = tar_meta(&r, copy, len, &e) == 0;
        free(copy);
        if (ok != rows[i].ok)
            fail_msg("row %zu '%s': %d %s", i, rows[i].text, ok, e.msg);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    auto_tar_reader r = TAR_READER_INIT;
    struct pd_err e;
    struct raw b = make("a", '0', "00000000000");
    b.bytes[0] = 'b';
    assert_int_equal(tar_header(&r, b.bytes, &e), -1); /* checksum */
    assert_non_null(strstr(e.msg, "checksum"));

    b = make("s", 'S', "00000000000");
    assert_int_equal(tar_header(&r, b.bytes, &e), -1);
    assert_int_equal(e.code, PD_UNSUPPORTED);

    b = make("v", 'V', "00000000000");
    assert_int_equal(tar_header(&r, b.bytes, &e), -1);
    assert_int_equal(e.code, PD_UNSUPPORTED);

    b = make("", '0', "00000000000");
    assert_int_equal(tar_header(&r, b.bytes, &e), -1);
    b = make("l", '2', "00000000000");
    assert_int_equal(tar_header(&r, b.bytes, &e), -1); /* a link to nothing */

    b = make("x", 'x', "00010000000");
    assert_int_equal(tar_header(&r, b.bytes, &e), -1); /* 2 MiB of names */
    memset(b.bytes, 0x80, sizeof b.bytes);
    assert_int_equal(tar_header(&r, b.bytes, &e), -1);

    /* A long name and then the end. */
    b = make("x", 'x', "00000000017");
    assert_int_equal(tar_header(&r, b.bytes, &e), TAR_META);
    assert_int_equal(tar_meta(&r, (const uint8_t *)"15 path=hidden\n", 15, &e), 0);
    memset(b.bytes, 0, sizeof b.bytes);
    assert_int_equal(tar_header(&r, b.bytes, &e), -1);

    /* Bytes that were not asked for. */
    auto_tar_reader r2 = TAR_READER_INIT;
    assert_int_equal(tar_meta(&r2, (const uint8_t *)"abc", 3, &e), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_written_is_read),
        cmocka_unit_test(test_ustar_and_gnu_names),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_pax),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
