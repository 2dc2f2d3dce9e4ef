/* Records: what was encoded is what is read, and nothing else is. */
#include "peer.h"

#include "wire/record.h"

static const struct record samples[] = {
    {.kind = RECORD_ENTRY,
     .entry = {.type = ENTRY_SYMLINK,
               .mode = 07777,
               .uid = 1000,
               .gid = 60000,
               .size = UINT64_MAX,
               .mtime_ns = -1,
               .path = "/workspace/\xff\n",
               .target = "../x"}},
    {.kind = RECORD_MATCH,
     .match = {.path = "/a", .line = 3, .column = 7, .offset = 1ull << 40, .text = "the line"}},
    {.kind = RECORD_REPLACED, .replaced = {.path = "/a", .count = 12}},
    {.kind = RECORD_EVENT,
     .event = {.kind = EVENT_MOVED, .is_dir = 1, .path = "/a", .path2 = "/b"}},
    {.kind = RECORD_PORT,
     .port = {.port = 65535, .pid = 7, .address = "::1", .command = "python3"}},
    {.kind = RECORD_TAR_DONE, .tar_done = {.entries = 5, .bytes = 1ull << 50}},
    {.kind = RECORD_VALUE, .value = {.name = "user.x", .data = (const uint8_t *)"a\0b", .len = 3}},
    {.kind = RECORD_MORE, .more = {.cursor = "a/b"}},
    {.kind = RECORD_ERROR, .error = {.code = PD_NO_SPACE, .sys = ENOSPC, .text = "no space"}},
    {.kind = RECORD_END},
    {.kind = RECORD_DETAIL,
     .detail = {.entry = {.type = ENTRY_SYMLINK, .mode = 0777, .path = "/l", .target = "f"},
                .end_type = ENTRY_TYPE_COUNT,
                .end_mode = 0644,
                .end_path = "/f",
                .attrs = (const uint8_t *)"k\0v\0\0",
                .attrs_len = 6}},
    {.kind = RECORD_PROCESS,
     .process = {.pid = 7,
                 .parent = 1,
                 .uid = 1000,
                 .threads = 3,
                 .state = 'S',
                 .cpu_ms = 12,
                 .memory = 1ull << 40,
                 .age_ms = 5,
                 .command = "python3 -m http.server"}},
};

static void check_same(const struct record *a, const struct record *b)
{
    auto_buf x = BUF_INIT(2 * RECORD_MAX), y = BUF_INIT(2 * RECORD_MAX);
    record_encode(&x, a);
    record_encode(&y, b);
    assert_false(x.overflow || y.overflow);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
}

static void test_every_kind_travels(void **state)
{
    (void)state;
    assert_int_equal(COUNT(samples), RECORD_KIND_COUNT - 1);

    int p[2];
    struct record r;
    struct pd_err e;
    auto_buf out = BUF_INIT(1 << 20), scratch = RECORD_SCRATCH;
    for (size_t i = 0; i < COUNT(samples); i++)
        record_encode(&out, &samples[i]);
    assert_false(out.overflow);

    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    assert_int_equal(fd_write_all(p[1], out.data, out.len), 0);
    assert_int_equal(fd_write_all(p[1], "raw", 3), 0);
    for (size_t i = 0; i < COUNT(samples); i++) {
        assert_int_equal(record_read(p[0], &scratch, &r, deadline_in(PATIENCE), &e), 1);
        assert_int_equal(r.kind, samples[i].kind);
        check_same(&r, &samples[i]);
    }

    char raw[8];
    assert_int_equal(read(p[0], raw, sizeof raw), 3); /* nothing was read ahead */
    close(p[1]);
    assert_int_equal(record_read(p[0], &scratch, &r, deadline_in(PATIENCE), &e), 0);
    close(p[0]);
}

/* Byte by byte, with the reader waiting in between. */
static void test_a_slow_writer(void **state)
{
    (void)state;

    for (int buffered = 0; buffered < 2; buffered++) {
        int p[2];
        auto_buf out = BUF_INIT(1 << 20), scratch = RECORD_SCRATCH;
        for (size_t i = 0; i < COUNT(samples); i++)
            record_encode(&out, &samples[i]);
        assert_int_equal(pipe2(p, O_CLOEXEC), 0);

        pid_t pid = child_fork();
        if (pid == 0) {
            for (size_t i = 0; i < out.len; i++) {
                (void)fd_write_all(p[1], out.data + i, 1);
                if (i % 16 == 0)
                    usleep(100);
            }
            _exit(0);
        }
        close(p[1]);

        auto_record_stream s = RECORD_STREAM(p[0]);
        struct record r;
        struct pd_err e;
        for (size_t i = 0; i <= COUNT(samples); i++) {
            int n = buffered ? record_next(&s, &r, deadline_in(PATIENCE), &e)
                             : record_read(p[0], &scratch, &r, deadline_in(PATIENCE), &e);
            assert_int_equal(n, i < COUNT(samples));
            if (n)
                check_same(&r, &samples[i]);
        }
        close(p[0]);
        wait_child(pid);
    }
}

static void test_many_records_in_one_stream(void **state)
{
    (void)state;
    enum { COPIES = 20000 };
    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);

    pid_t pid = child_fork();
    if (pid == 0) {
        for (int i = 0; i < COPIES; i++) {
            auto_buf out = BUF_INIT(1 << 20);
            char *path = calloc(1, RECORD_PATH_MAX + 1);
            memset(path, 'p', (size_t)(i % 100 ? i % 100 : (int)RECORD_PATH_MAX));
            struct record r = {.kind = RECORD_MORE, .more = {.cursor = path}};
            record_encode(&out, &r);
            (void)fd_write_all(p[1], out.data, out.len);
            free(path);
        }
        _exit(0);
    }
    close(p[1]);

    auto_record_stream s = RECORD_STREAM(p[0]);
    struct record r;
    struct pd_err e;
    for (int i = 0; i < COPIES; i++) {
        assert_int_equal(record_next(&s, &r, deadline_in(PATIENCE), &e), 1);
        assert_int_equal(strlen(r.more.cursor), i % 100 ? i % 100 : (int)RECORD_PATH_MAX);
    }
    assert_int_equal(record_next(&s, &r, deadline_in(PATIENCE), &e), 0);
    close(p[0]);
    wait_child(pid);
}

static void test_deadlines_hold(void **state)
{
    (void)state;
    int p[2];
    struct record r;
    struct pd_err e;
    auto_buf scratch = RECORD_SCRATCH;
    uint32_t head[2] = {100, RECORD_MORE};

    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    for (int part = 0; part < 2; part++) { /* nothing, then a head without its payload */
        uint64_t start = clock_now();
        assert_int_equal(record_read(p[0], &scratch, &r, deadline_in(A_MOMENT), &e), -1);
        assert_int_equal(e.code, PD_TIMEOUT);
        assert_true(clock_now() - start >= A_MOMENT);
        assert_int_equal(fd_write_all(p[1], head, sizeof head), 0);
    }
    close(p[0]);
    close(p[1]);
}

/* What a taken-over worker may send. */
static void test_hostile_streams(void **state)
{
    static const struct {
        const char *why;
        uint32_t len, kind;
        const char *bytes;
        size_t count;
    } rows[] = {
        {"length of 4 GiB", UINT32_MAX, RECORD_END, "", 0},
        {"one byte too many", RECORD_MAX + 1, RECORD_MORE, "", 0},
        {"kind 0", 0, 0, "", 0},
        {"kind unknown", 0, RECORD_KIND_COUNT, "", 0},
        {"end with a payload", 1, RECORD_END, "x", 1},
        {"cut in the middle", 10, RECORD_MORE, "abc", 3},
        {"no payload at all", 10, RECORD_MORE, "", 0},
        {"string longer than the record", 9, RECORD_MORE, "\xff\0\0\0abcd", 9},
        {"string of 4 GiB", 8, RECORD_MORE,
         "\xff\xff\xff\xff"
         "abc",
         8},
        {"string without its end", 7, RECORD_MORE, "\3\0\0\0abc", 7},
        {"end of the string in its middle", 8, RECORD_MORE, "\3\0\0\0a\0c", 8},
        {"bytes behind the string", 9, RECORD_MORE, "\3\0\0\0abc\0x", 9},
        {"empty payload", 0, RECORD_ENTRY, "", 0},
        {"error with an unknown code", 13, RECORD_ERROR, "\xff\0\0\0\0\0\0\0\0\0\0\0", 13},
    };

    (void)state;

    for (size_t i = 0; i < COUNT(rows); i++)
        for (int buffered = 0; buffered < 2; buffered++) {
            int p[2];
            uint32_t head[2] = {rows[i].len, rows[i].kind};
            auto_buf scratch = RECORD_SCRATCH;
            struct record r = {.kind = RECORD_PORT};
            struct pd_err e = {.msg = ""};
            assert_int_equal(pipe2(p, O_CLOEXEC), 0);
            assert_int_equal(fd_write_all(p[1], head, sizeof head), 0);
            assert_int_equal(fd_write_all(p[1], rows[i].bytes, rows[i].count), 0);
            close(p[1]);
            auto_record_stream s = RECORD_STREAM(p[0]);
            int n = buffered ? record_next(&s, &r, deadline_in(PATIENCE), &e)
                             : record_read(p[0], &scratch, &r, deadline_in(PATIENCE), &e);
            if (n != -1 || e.code != PD_PROTOCOL || r.kind != RECORD_PORT)
                fail_msg("%s: %d, %s", rows[i].why, n, e.msg);
            close(p[0]);
        }

    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    assert_int_equal(fd_write_all(p[1], "abc", 3), 0); /* half a head */
    close(p[1]);

    auto_buf scratch = RECORD_SCRATCH;
    struct record r;
    struct pd_err e;
    assert_int_equal(record_read(p[0], &scratch, &r, deadline_in(PATIENCE), &e), -1);
    assert_int_equal(e.code, PD_PROTOCOL);
    close(p[0]);
}

/* Attributes come as pairs of strings, all of them with an end. */
static void test_attributes_are_pairs(void **state)
{
    static const struct {
        const char *bytes;
        uint32_t len;
        int good;
    } rows[] = {{"", 0, 1},      {"\0", 2, 1},        {"a\0b", 4, 1}, {"a", 2, 0},
                {"a\0b", 3, 0},  {"a\0b\0c", 6, 0},   {"a", 1, 0},    {"\0\0", 3, 0},
                {"a\0\0", 4, 0}, {"a\0b\0c\0d", 8, 1}};
    (void)state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct record r = {.kind = RECORD_DETAIL,
                           .detail = {.entry = {.path = "/", .target = ""},
                                      .end_path = "",
                                      .attrs = (const uint8_t *)rows[i].bytes,
                                      .attrs_len = rows[i].len}},
                      got;

        struct pd_err e = {.msg = ""};
        auto_buf b = BUF_INIT(2 * RECORD_MAX);
        record_encode(&b, &r);
        assert_false(b.overflow);

        int decoded = record_decode(RECORD_DETAIL, b.data + 8, b.len - 8, &got, &e) == 0;
        if (decoded != rows[i].good)
            fail_msg("row %zu: %d", i, decoded);

        const char *name, *value;
        uint32_t pos = 0, pairs = 0;
        while (decoded && record_attr_next(&got.detail, &pos, &name, &value))
            pairs++;
        assert_int_equal(pairs, decoded ? rows[i].len / 4 + (rows[i].len == 2) : 0);
    }
}

static void test_what_is_too_long_is_no_record(void **state)
{
    (void)state;
    char *path = malloc(RECORD_PATH_MAX + 2);
    memset(path, 'a', RECORD_PATH_MAX + 1);
    path[RECORD_PATH_MAX + 1] = 0;

    auto_buf b = BUF_INIT(4 * RECORD_MAX);
    struct record r = {.kind = RECORD_MORE, .more = {.cursor = path}};
    record_encode(&b, &r);
    assert_true(b.overflow);

    buf_clear(&b);
    path[RECORD_PATH_MAX] = 0;
    record_encode(&b, &r);
    assert_false(b.overflow);

    buf_clear(&b);
    r = (struct record){.kind = (enum record_kind)99};
    record_encode(&b, &r);
    assert_true(b.overflow);
    free(path);
}

static void test_raising(void **state)
{
    (void)state;
    struct pd_err e;

    assert_int_equal(record_raise(&samples[8], "stat", &e), -1);
    assert_int_equal(e.code, PD_NO_SPACE);
    assert_int_equal(e.sys, ENOSPC);
    assert_string_equal(e.msg, "no space");
    assert_int_equal(record_raise(&samples[9], "stat", &e), -1);
    assert_int_equal(e.code, PD_PROTOCOL);
    assert_non_null(strstr(e.msg, "stat"));
    assert_string_equal(entry_type_name(ENTRY_DEVICE), "device");
    assert_string_equal(entry_type_name(99), "file");
    assert_string_equal(event_kind_name(EVENT_MOVED), "moved");
    assert_string_equal(event_kind_name(99), "overflow");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind_travels),
        cmocka_unit_test(test_a_slow_writer),
        cmocka_unit_test(test_many_records_in_one_stream),
        cmocka_unit_test(test_deadlines_hold),
        cmocka_unit_test(test_hostile_streams),
        cmocka_unit_test(test_attributes_are_pairs),
        cmocka_unit_test(test_what_is_too_long_is_no_record),
        cmocka_unit_test(test_raising),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
