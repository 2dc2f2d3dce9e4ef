/* Files as E2B's clients are told of them. */
#include "unit.h"

#include "api/e2b_entry.h"
#include "base/json.h"

static void test_permissions(void **state)
{
    static const struct {
        uint32_t type, mode;
        const char *text;
    } rows[] = {{ENTRY_FILE, 0644, "-rw-r--r--"},      {ENTRY_DIR, 0755, "drwxr-xr-x"},
                {ENTRY_SYMLINK, 0777, "Lrwxrwxrwx"},   {ENTRY_FIFO, 0, "p---------"},
                {ENTRY_SOCKET, 0123, "S--x-w--wx"},    {ENTRY_DEVICE, 0666, "Drw-rw-rw-"},
                {ENTRY_DIR, 01777, "dtrwxrwxrwx"},     {ENTRY_FILE, 04755, "urwxr-xr-x"},
                {ENTRY_DIR, 07777, "dugtrwxrwxrwx"},   {ENTRY_FILE, 02644, "grw-r--r--"},
                {ENTRY_TYPE_COUNT, 0600, "-rw-------"}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[E2B_PERMISSIONS_SIZE];
        e2b_permissions(rows[i].type, rows[i].mode, out);
        assert_string_equal(out, rows[i].text);
    }
}

static void test_times(void **state)
{
    static const struct {
        int64_t ns;
        const char *text;
    } rows[] = {{0, "1970-01-01T00:00:00.000000000Z"},
                {1, "1970-01-01T00:00:00.000000001Z"},
                {-1, "1969-12-31T23:59:59.999999999Z"},
                {1767322996123456789, "2026-01-02T03:03:16.123456789Z"},
                {-1000000000, "1969-12-31T23:59:59.000000000Z"},
                {INT64_MAX, "2262-04-11T23:47:16.854775807Z"},
                {INT64_MIN, "1677-09-21T00:12:43.145224192Z"}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[E2B_TIME_SIZE];
        e2b_time(rows[i].ns, out);
        assert_string_equal(out, rows[i].text);
    }
}

static void expect_json(const struct record_detail *d, const char *text)
{
    auto_buf out = BUF_INIT(1 << 20);
    struct json j = JSON_INIT(&out);
    e2b_entry_json(&j, d);
    assert_string_equal(buf_cstr(&out), text);
}

static void test_entries(void **state)
{
    (void)state;
    struct record_detail d = {.entry = {.type = ENTRY_FILE,
                                        .mode = 0644,
                                        .uid = 1000,
                                        .gid = 0,
                                        .size = UINT64_MAX,
                                        .path = "/a/b",
                                        .target = ""},
                              .end_type = ENTRY_FILE,
                              .end_mode = 0644,
                              .end_path = ""};
    expect_json(&d, "{\"name\":\"b\",\"type\":\"FILE_TYPE_FILE\",\"path\":\"/a/b\","
                    "\"size\":\"18446744073709551615\",\"mode\":420,"
                    "\"permissions\":\"-rw-r--r--\",\"owner\":\"user\",\"group\":\"root\","
                    "\"modifiedTime\":\"1970-01-01T00:00:00.000000000Z\"}");

    d.attrs = (const uint8_t *)"k\0v\xff\0x\"\0";
    d.attrs_len = 9;
    d.entry.path = "/\xfe\n";
    d.entry.uid = 7;
    d.end_mode = 07755;
    expect_json(&d, "{\"name\":\"\\ufffd\\n\",\"type\":\"FILE_TYPE_FILE\","
                    "\"path\":\"/\\ufffd\\n\",\"size\":\"18446744073709551615\","
                    "\"mode\":493,\"permissions\":\"-rw-r--r--\",\"owner\":\"7\","
                    "\"group\":\"root\",\"modifiedTime\":\"1970-01-01T00:00:00.000000000Z\","
                    "\"metadata\":{\"k\":\"v\\ufffd\",\"x\\\"\":\"\"}}");

    /* A link has its own size and permissions; type and mode are those of where it leads. */
    d = (struct record_detail){
        .entry = {.type = ENTRY_SYMLINK, .mode = 0777, .size = 3, .path = "/", .target = "../d"},
        .end_type = ENTRY_DIR,
        .end_mode = 0700,
        .end_path = "/d"};
    expect_json(&d, "{\"name\":\"/\",\"type\":\"FILE_TYPE_DIRECTORY\",\"path\":\"/\","
                    "\"size\":\"3\",\"mode\":448,\"permissions\":\"Lrwxrwxrwx\","
                    "\"owner\":\"root\",\"group\":\"root\","
                    "\"modifiedTime\":\"1970-01-01T00:00:00.000000000Z\","
                    "\"symlinkTarget\":\"/d\"}");

    d.end_type = ENTRY_TYPE_COUNT;
    d.end_mode = 0;
    d.end_path = "";
    expect_json(&d, "{\"name\":\"/\",\"path\":\"/\",\"size\":\"3\",\"mode\":0,"
                    "\"permissions\":\"Lrwxrwxrwx\",\"owner\":\"root\",\"group\":\"root\","
                    "\"modifiedTime\":\"1970-01-01T00:00:00.000000000Z\","
                    "\"symlinkTarget\":\"../d\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permissions),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_entries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
