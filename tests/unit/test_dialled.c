/* What somebody who dials a box is answered: heads of every kind, cut anywhere, and frames. */
#include "unit.h"

#include "base/err.h"
#include "box/dialled.h"

#include "base/banned.h"

#include <stdio.h>
#include <string.h>

#define TARGET  "/link/00112233445566778899aabbccddeeff"
#define KEY     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
#define VERSION "Sec-WebSocket-Version: 13\r\n"
#define UPGRADE "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
#define HOST    "Host: 1-x.example\r\n"
#define GOOD    "GET " TARGET " HTTP/1.1\r\n" HOST UPGRADE VERSION KEY "\r\n"
#define ACCEPT  "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
#define Z       "\x00\x00\x00\x00" /* a mask that changes nothing */

/* All the payload, and what was answered; by pieces of `step`. The result is the last one's. */
static int play(const char *bytes, size_t len, size_t step, struct buf *payload, struct buf *said)
{
    struct dialled d;
    int r = 0;

    dialled_begin(&d, TARGET);
    for (size_t at = 0; at < len && r >= 0;) {
        size_t piece = len - at < step ? len - at : step, used = 4711, n = 0;
        const uint8_t *data = NULL;
        r = dialled_next(&d, (const uint8_t *)bytes + at, piece, &used, &data, &n);
        assert_true(used <= piece && (r > 0 || used == piece));
        if (r > 0)
            buf_put(payload, data, n);
        at += used;
    }
    if (d.out.len)
        buf_put(said, d.out.data, d.out.len);
    dialled_end(&d);
    return r;
}

static void test_heads(void **state)
{
    (void)state;
    static const struct {
        const char *head, *answer;
    } rows[] = {
        {GOOD,
         "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" ACCEPT
         "\r\n"},
        {"GET " TARGET " HTTP/1.1\r\n" HOST UPGRADE VERSION KEY
         "X-Forwarded-For: 192.0.2.1\r\n\r\n",
         "HTTP/1.1 101"},
        /* Nobody who does not know the box learns more than that nothing is there. */
        {"GET / HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 404"},
        {"GET / HTTP/1.1\r\n" HOST UPGRADE VERSION KEY "\r\n", "HTTP/1.1 404"},
        {"GET /link/00112233445566778899aabbccddeefe HTTP/1.1\r\n" HOST UPGRADE VERSION KEY "\r\n",
         "HTTP/1.1 404"},
        {"GET " TARGET "?x HTTP/1.1\r\n" HOST UPGRADE VERSION KEY "\r\n", "HTTP/1.1 404"},
        {"GET " TARGET " HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 404"},
        {"GET " TARGET " HTTP/1.1\r\n" HOST UPGRADE VERSION
         "Sec-WebSocket-Key: dGhlIHNhbXBsZQ==\r\n\r\n",
         "HTTP/1.1 404"},
        {"HEAD / HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 404"},
        {"POST " TARGET " HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\n", "HTTP/1.1 404"},
        {"GET " TARGET " HTTP/1.1\r\n" HOST UPGRADE VERSION "\r\n", "HTTP/1.1 400"},
        {"GET " TARGET " HTTP/1.1\r\n" HOST UPGRADE VERSION KEY KEY "\r\n", "HTTP/1.1 400"},
        {"GET " TARGET " HTTP/1.1\r\n" UPGRADE VERSION KEY "\r\n", "HTTP/1.1 400"},
        {"GET " TARGET " HTTP/1.1\n\n", "HTTP/1.1 400"},
        {"SSH-2.0-x\r\n", "HTTP/1.1 400"},
    };

    for (size_t i = 0; i < COUNT(rows); i++)
        for (size_t step = 1; step < 30; step++) {
            auto_buf payload = BUF_INIT(100), said = BUF_INIT(1000);
            int r = play(rows[i].head, strlen(rows[i].head), step, &payload, &said);
            const char *text = buf_cstr(&said);
            if (strncmp(text, rows[i].answer, strlen(rows[i].answer)) != 0)
                fail_msg("row %zu by %zu gave %s", i, step, text);
            assert_int_equal(r, strstr(text, " 101 ") ? 0 : -1);
        }
}

static void test_a_head_without_end(void **state)
{
    (void)state;
    static char head[DIALLED_HEAD_MAX + 100];
    auto_buf payload = BUF_INIT(100), said = BUF_INIT(1000);
    size_t n = (size_t)snprintf(head, sizeof head, "GET / HTTP/1.1\r\nHost: a\r\nX: ");

    memset(head + n, 'x', sizeof head - n);
    assert_int_equal(play(head, sizeof head, 1000, &payload, &said), -1);
    assert_non_null(strstr(buf_cstr(&said), "HTTP/1.1 431"));
}

static void test_frames(void **state)
{
    (void)state;
    static const struct {
        const char *frames;
        size_t len;
        const char *payload;
        int end;
        const char *last; /* of what was answered */
    } rows[] = {
#define ROW(f, p, e, l) {f, sizeof(f) - 1, p, e, l}
        ROW("\x82\x82" Z "hi\x02\x81" Z "a\x80\x81" Z "b", "hiab", 0, "\r\n\r\n"),
        ROW("\x89\x81" Z "p\x82\x81" Z "x", "x", 0, "\x8a\x01p"),
        ROW("\x82\x81" Z "x\x88\x82" Z "\x03\xe8", "x", -1, "\x88\x02\x03\xe8"),
        ROW("\x81\x81" Z "x", "", -1, "\x88\x02\x03\xeb"),
        ROW("\x82\x01x", "", -1, "\x88\x02\x03\xea"),
        ROW("\xc2\x81" Z "x", "", -1, "\x88\x02\x03\xea"),
        ROW("\x82\xff\x00\x00\x00\x00\x00\x01\x00\x01" Z, "", -1, "\x88\x02\x03\xf1"),
    };

    for (size_t i = 0; i < COUNT(rows); i++)
        for (size_t step = 1; step < 400; step += 7) {
            auto_buf in = BUF_INIT(2000), payload = BUF_INIT(100), said = BUF_INIT(1000);
            buf_puts(&in, GOOD);
            buf_put(&in, rows[i].frames, rows[i].len);
            int r = play((const char *)in.data, in.len, step, &payload, &said);
            size_t n = strlen(rows[i].last);
            assert_int_equal(r < 0, rows[i].end < 0);
            assert_string_equal(buf_cstr(&payload), rows[i].payload);
            assert_true(said.len >= n);
            if (memcmp(said.data + said.len - n, rows[i].last, n) != 0)
                fail_msg("row %zu by %zu", i, step);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_a_head_without_end),
        cmocka_unit_test(test_frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
