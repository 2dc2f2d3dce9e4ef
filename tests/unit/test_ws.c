#include "unit.h"

#include "base/err.h"
#include "net/ws.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_MAX 70000

/* What a decoder gave, as text: "T:hello" "B:.." "C1000:reason" "P:" "O:" and "!1002" at a failure.
 */
static void describe(struct buf *out, const struct ws_message *m)
{
    static const char letters[] = "-TB-----CPO";
    buf_printf(out, "%c", letters[m->opcode]);
    if (m->opcode == WS_CLOSE)
        buf_printf(out, "%u", m->code);
    buf_putc(out, ':');
    buf_put(out, m->data, m->len);
    buf_putc(out, ' ');
}

static void decode(const void *data, size_t len, size_t step, int from_client, struct buf *out)
{
    struct ws_decoder d;
    struct pd_err e = {.msg = ""};
    ws_decoder_init(&d, from_client, MESSAGE_MAX);

    const uint8_t *p = data;
    for (size_t at = 0; at < len && !d.error;) {
        size_t piece = len - at < step ? len - at : step, used = 4711;
        /* An exact copy, so that the sanitizer sees a byte read too far. */
        uint8_t *copy = malloc(piece);
        assert_non_null(copy);

        memcpy(copy, p + at, piece);
        struct ws_message m;
        int r = ws_decode(&d, copy, piece, &used, &m, &e);
        free(copy);

        if (r < 0) {
            assert_int_equal(e.code, d.error == WS_TOO_LARGE ? PD_TOO_LARGE : PD_PROTOCOL);
            assert_true(d.error != 0);
            buf_printf(out, "!%u ", d.error);
            assert_int_equal(ws_decode(&d, "", 0, &used, &m, &e), -1);
        } else {
            assert_true(used <= piece && (r || used == piece));
            at += used;
            if (r)
                describe(out, &m);
        }
    }
    ws_decoder_done(&d);
}

struct vector {
    const char *bytes;
    size_t len;
    const char *want;
};
#define ROW(bytes, want)                                                                           \
    {                                                                                              \
        (bytes), sizeof(bytes) - 1, (want)                                                         \
    }

static void check(const struct vector *rows, size_t count, int from_client)
{
    for (size_t i = 0; i < count; i++)
        for (size_t step = 1; step < 40; step++) {
            auto_buf out = BUF_INIT(1 << 20);
            decode(rows[i].bytes, rows[i].len, step, from_client, &out);
            if (strcmp(buf_cstr(&out), rows[i].want))
                fail_msg("row %zu by %zu gave %s", i, step, buf_cstr(&out));
        }
}

#define Z "\x00\x00\x00\x00" /* a mask that changes nothing */

static void test_frames_of_clients(void **state)
{
    (void)state;
    static const struct vector rows[] = {
        /* The examples of RFC 6455, 5.7. */
        ROW("\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", "T:Hello "),
        ROW("\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", "O:Hello "),
        ROW("\x81\x80" Z, "T: "),
        ROW("\x82\x80" Z "\x82\x81" Z "a", "B: B:a "),
        ROW("\x82\x83" Z "\xff\xfe\xfd", "B:\xff\xfe\xfd "),
        ROW("\x89\x80" Z, "P: "),
        /* Fragments, with control frames between them. */
        ROW("\x01\x81" Z "a"
            "\x80\x81" Z "b",
            "T:ab "),
        ROW("\x01\x81" Z "a"
            "\x00\x81" Z "b"
            "\x80\x81" Z "c",
            "T:abc "),
        ROW("\x01\x81" Z "a"
            "\x89\x81" Z "p"
            "\x80\x81" Z "b",
            "P:p T:ab "),
        ROW("\x02\x80" Z "\x80\x80" Z, "B: "),
        ROW("\x01\x82" Z "a\xc3"
            "\x8a\x80" Z "\x80\x81" Z "\xa9",
            "O: T:a\xc3\xa9 "),
        ROW("\x01\x81" Z "a"
            "\x88\x80" Z "\x80\x81" Z "b",
            "C1005: "),
        /* Close. */
        ROW("\x88\x80" Z, "C1005: "),
        ROW("\x88\x82" Z "\x03\xe8", "C1000: "),
        ROW("\x88\x85" Z "\x03\xe9"
            "bye",
            "C1001:bye "),
        ROW("\x88\x82" Z "\x0b\xb8", "C3000: "),
        ROW("\x88\x82" Z "\x13\x87", "C4999: "),
        ROW("\x88\x82" Z "\x03\xe8"
            "\xff\xff\xff\xff",
            "C1000: "),
        ROW("\x88\x81" Z "\x03", "!1002 "),
        ROW("\x88\x82" Z "\x00\x00", "!1002 "),
        ROW("\x88\x82" Z "\x03\xe7", "!1002 "),
        ROW("\x88\x82" Z "\x03\xec", "!1002 "), /* 1004 */
        ROW("\x88\x82" Z "\x03\xed", "!1002 "), /* 1005 */
        ROW("\x88\x82" Z "\x03\xee", "!1002 "), /* 1006 */
        ROW("\x88\x82" Z "\x03\xf7", "!1002 "), /* 1015 */
        ROW("\x88\x82" Z "\x0b\xb7", "!1002 "), /* 2999 */
        ROW("\x88\x82" Z "\x13\x88", "!1002 "), /* 5000 */
        ROW("\x88\x83" Z "\x03\xe8\xff", "!1007 "),
        ROW("\x88\x83" Z "\x03\xe8\xc3", "!1007 "),
        /* Reserved bits, kinds, masks. */
        ROW("\xc1\x80" Z, "!1002 "),
        ROW("\xa1\x80" Z, "!1002 "),
        ROW("\x91\x80" Z, "!1002 "),
        ROW("\x83\x80" Z, "!1002 "),
        ROW("\x87\x80" Z, "!1002 "),
        ROW("\x8b\x80" Z, "!1002 "),
        ROW("\x8f\x80" Z, "!1002 "),
        ROW("\x81\x00", "!1002 "),
        ROW("\x81\x01"
            "a",
            "!1002 "),
        /* Control frames. */
        ROW("\x09\x80" Z, "!1002 "),
        ROW("\x08\x80" Z, "!1002 "),
        ROW("\x89\xfe\x00\x7e" Z, "!1002 "),
        ROW("\x88\xff\x00\x00\x00\x00\x00\x01\x00\x00" Z, "!1002 "),
        /* Order. */
        ROW("\x80\x80" Z, "!1002 "),
        ROW("\x00\x80" Z, "!1002 "),
        ROW("\x81\x80" Z "\x80\x80" Z, "T: !1002 "),
        ROW("\x01\x80" Z "\x81\x80" Z, "!1002 "),
        ROW("\x01\x80" Z "\x02\x80" Z, "!1002 "),
        /* Lengths that are not the shortest, or too long. */
        ROW("\x82\xfe\x00\x7d" Z, "!1002 "),
        ROW("\x82\xfe\x00\x00" Z, "!1002 "),
        ROW("\x82\xff\x00\x00\x00\x00\x00\x00\xff\xff" Z, "!1002 "),
        ROW("\x82\xff\x80\x00\x00\x00\x00\x00\x00\x00" Z, "!1002 "),
        ROW("\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff" Z, "!1002 "),
        ROW("\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff" Z, "!1009 "),
        ROW("\x82\xff\x00\x00\x00\x00\x00\x01\x11\x71" Z, "!1009 "), /* 70001 */
        ROW("\x02\x81" Z "a"
            "\x80\xff\x00\x00\x00\x00\x00\x01\x11\x70" Z,
            "!1009 "),
        /* Text, refused at the first byte that is wrong. */
        ROW("\x81\x85" Z "\xff", "!1007 "),
        ROW("\x81\x82" Z "\xc0\xaf", "!1007 "),
        ROW("\x81\x83" Z "\xed\xa0\x80", "!1007 "),
        ROW("\x81\x81" Z "\xc3", "!1007 "),
        ROW("\x01\x81" Z "\xc3"
            "\x80\x80" Z,
            "!1007 "),
        ROW("\x01\x81" Z "\xc3"
            "\x00\x81" Z "a",
            "!1007 "),
        /* A text that was cut does not spoil the next one. */
        ROW("\x82\x81" Z "\xc3"
            "\x81\x81" Z "a",
            "B:\xc3 T:a "),
        /* Not complete. */
        ROW("\x81", ""),
        ROW("\x81\x85" Z "Hell", ""),
        ROW("\x01\x81" Z "a", ""),
    };

    check(rows, COUNT(rows), 1);
}

static void test_frames_of_servers(void **state)
{
    (void)state;
    static const struct vector rows[] = {
        ROW("\x81\x05Hello", "T:Hello "),
        ROW("\x01\x03Hel\x80\x02lo", "T:Hello "),
        ROW("\x89\x05Hello", "P:Hello "),
        ROW("\x88\x00", "C1005: "),
        ROW("\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", "!1002 "),
    };
    check(rows, COUNT(rows), 0);
}

static void test_what_is_encoded_is_decoded(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 125, 126, 127, 65535, 65536, MESSAGE_MAX};
    static const size_t headers[] = {2, 2, 2, 4, 4, 4, 10, 10};
    static const uint8_t mask[4] = {0x12, 0x00, 0xff, 0x80};
    static uint8_t payload[MESSAGE_MAX];
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (uint8_t)(i * 31 >> 3);

    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int client = 0; client < 2; client++) {
            auto_buf frame = BUF_INIT(1 << 20);
            struct ws_decoder d;
            struct ws_message m;
            struct pd_err e = {.msg = ""};
            size_t used;
            assert_int_equal(ws_encode(&frame, WS_BINARY, payload, sizes[i], client ? mask : NULL),
                             0);
            assert_int_equal(frame.len, headers[i] + (client ? 4 : 0) + sizes[i]);
            ws_decoder_init(&d, client, MESSAGE_MAX);
            assert_int_equal(ws_decode(&d, frame.data, frame.len, &used, &m, &e), 1);
            assert_int_equal(used, frame.len);
            assert_int_equal(m.opcode, WS_BINARY);
            assert_int_equal(m.len, sizes[i]);
            if (m.len)
                assert_memory_equal(m.data, payload, m.len);
            ws_decoder_done(&d);
        }

    auto_buf frame = BUF_INIT(1 << 20);
    assert_int_equal(ws_encode(&frame, WS_PING, payload, 126, NULL), -1);
    assert_int_equal(frame.len, 0);
    assert_int_equal(ws_encode(&frame, WS_PING, payload, 125, NULL), 0);

    struct buf small = BUF_INIT(5);
    assert_int_equal(ws_encode(&small, WS_TEXT, "1234", 4, NULL), -1);
    assert_int_equal(small.len, 0);
    buf_done(&small);
}

static void test_closes_are_cut_between_characters(void **state)
{
    (void)state;

    /* 123 bytes have room for "a" and 61 characters of two bytes, or for 61 of them and no half. */
    for (size_t shift = 0; shift < 2; shift++) {
        char reason[300] = "a";
        for (size_t i = 0; i < 100; i++)
            memcpy(reason + shift + i * 2, "\xc3\xa9", 3);
        auto_buf frame = BUF_INIT(1000);
        auto_buf out = BUF_INIT(1000);
        assert_int_equal(ws_close_encode(&frame, WS_INTERNAL, reason, NULL), 0);
        assert_int_equal(frame.len, 2 + 2 + 122 + shift);
        decode(frame.data, frame.len, 1000, 0, &out);
        assert_memory_equal(buf_cstr(&out), "C1011:", 6);
        assert_memory_equal(buf_cstr(&out) + 6, reason, 122 + shift);
    }

    auto_buf frame = BUF_INIT(1000);
    assert_int_equal(ws_close_encode(&frame, WS_NO_CODE, "", NULL), 0);
    assert_int_equal(frame.len, 2);
}

static void test_the_key_is_answered(void **state)
{
    (void)state;
    char accept[WS_ACCEPT_SIZE] = "before";
    struct pd_err e = {.msg = ""};
    assert_int_equal(ws_accept(slice_of("dGhlIHNhbXBsZSBub25jZQ=="), accept, &e), 0);
    assert_string_equal(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");

    static const char *const bad[] = {
        "",
        "dGhlIHNhbXBsZSBub25jZQ=",
        "dGhlIHNhbXBsZSBub25jZQ===",
        "dGhlIHNhbXBsZSBub25jZR==",
        "dGhlIHNhbXBsZSBub25jZQ=A",
        "dGhlIHNhbXBsZSBub25j====",
        "dGhlIHNhbXBs ZSBub25jZQ=",
        "dGhlIHNhbXBsZSBub25-ZQ==",
        "dGhlIHNhbXBsZSBub25jZSBhYmM=",
        "\"GhlIHNhbXBsZSBub25jZQ==",
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        memcpy(accept, "before", 7);
        if (!ws_accept(slice_of(bad[i]), accept, &e))
            fail_msg("'%s' was taken", bad[i]);
        assert_int_equal(e.code, PD_INVALID);
        assert_string_equal(accept, "before");
    }

    char key[WS_KEY_SIZE];
    ws_key((const uint8_t *)"the sample nonce", key);
    assert_string_equal(key, "dGhlIHNhbXBsZSBub25jZQ==");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_of_clients),
        cmocka_unit_test(test_frames_of_servers),
        cmocka_unit_test(test_what_is_encoded_is_decoded),
        cmocka_unit_test(test_closes_are_cut_between_characters),
        cmocka_unit_test(test_the_key_is_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
