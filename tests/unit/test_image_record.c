/* Records of images: what is written is read the same, and nothing is read that is not clean. */
#include "unit.h"

#include "base/err.h"
#include "wire/image_record.h"

#include <string.h>

#define HEX  "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define HEX2 "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"

static struct image_record sample(void)
{
    return (struct image_record){
        .id = HEX,
        .names = {"docker.io/library/demo:1"},
        .name_count = 1,
        .env = {"PATH=/bin", "TWO=a\nb"},
        .env_count = 2,
        .entrypoint = {"/bin/sh", "-c"},
        .entrypoint_count = 2,
        .cmd = {""},
        .cmd_count = 1,
        .workdir = "/srv",
        .user = "bob",
        .platform = "amd64",
        .created = "2024-01-01T00:00:00Z",
        .layers = {{.diff = HEX2, .blob = HEX, .offset = 512, .size = 9, .packing = IMAGE_ZSTD},
                   {.diff = HEX}},
        .layer_count = 2};
}

static void test_a_record_is_read_as_it_was_written(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(IMAGE_RECORD_MAX);
    struct image_record r = sample(), back;
    struct pd_err e;

    image_record_encode(&b, &r);
    assert_false(b.overflow);
    if (image_record_decode(b.data, b.len, &back, &e) < 0)
        fail_msg("%s", e.msg);
    assert_string_equal(back.id, HEX);
    assert_string_equal(back.env[1], "TWO=a\nb");
    assert_string_equal(back.cmd[0], "");
    assert_string_equal(back.user, "bob");
    assert_int_equal(back.layer_count, 2);
    assert_memory_equal(&back.layers[0], &r.layers[0], sizeof r.layers[0]);

    /* Every cut of it is refused, and so is more. */
    for (size_t len = 0; len < b.len; len++)
        assert_int_equal(image_record_decode(b.data, len, &back, &e), -1);
    buf_putc(&b, 0);
    assert_int_equal(image_record_decode(b.data, b.len, &back, &e), -1);
}

static void refuse(const struct image_record *r, const char *why)
{
    auto_buf b = BUF_INIT(IMAGE_RECORD_MAX);
    struct image_record back;
    struct pd_err e = {0};

    image_record_encode(&b, r);
    assert_int_equal(image_record_decode(b.data, b.len, &back, &e), -1);
    if (!strstr(e.msg, why))
        fail_msg("'%s' does not say '%s'", e.msg, why);
}

static void test_what_is_not_clean_is_refused(void **state)
{
    (void)state;
    struct image_record r = sample();

    r.id[0] = '/';
    refuse(&r, "no id");
    r = sample();
    snprintf(r.layers[1].diff, sizeof r.layers[1].diff, "../../etc");
    refuse(&r, "no sha256 digest");
    r = sample();
    r.layers[0].blob[63] = 'G';
    refuse(&r, "no sha256 digest");
    r = sample();
    r.layers[0].offset = UINT64_MAX;
    refuse(&r, "larger than any file");
    r = sample();
    r.env[0] = "=x";
    refuse(&r, "NAME=VALUE");
    r = sample();
    r.names[0] = "UPPER";
    refuse(&r, "UPPER");
    r = sample();
    r.workdir = "relative";
    refuse(&r, "absolute");
    r = sample();
    r.user = "a\x1b[2J";
    refuse(&r, "control characters");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_record_is_read_as_it_was_written),
        cmocka_unit_test(test_what_is_not_clean_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
