/* WebSockets that a broker dials, against a server of the test's own: heads that must be refused,
 * and streams whose frames come cut, mixed with pings, or wrong. */
#include "unit.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "engine/http.h"
#include "engine/ws_stream.h"
#include "net/ws.h"

#include "base/banned.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define PATIENCE (60 * NS_PER_S)

static char dir[] = "/tmp/test-ws-stream-XXXXXX", path[128];

/* One connection. `head` is what is answered: a '@' in it stands for the right key. Then `raw`, if
 * there is any; else messages come back, each in two fragments with a ping between them. */
static struct script {
    int listener;
    pthread_t thread;
    const char *head;
    const void *raw;
    size_t raw_len;
    int lazy; /* reads nothing for a moment: the stream's writer must wait */
    struct buf seen;
    unsigned pongs, unmasked, closes;
} script;

static void say(int fd, const void *data, size_t len)
{
    const char *at = data;
    while (len) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        at += n;
        len -= (size_t)n;
    }
}

static void say_head(int fd)
{
    char key[WS_KEY_SIZE] = "", accept[WS_ACCEPT_SIZE] = "";
    struct pd_err e;
    const char *at = strstr(buf_cstr(&script.seen), "Sec-WebSocket-Key: ");
    if (at)
        snprintf(key, sizeof key, "%.24s", at + 19);
    assert_int_equal(ws_accept(slice_of(key), accept, &e), 0);

    auto_buf out = BUF_INIT(20000);
    for (const char *c = script.head; *c; c++)
        if (*c == '@')
            buf_puts(&out, accept);
        else
            buf_putc(&out, *c);
    say(fd, out.data, out.len);
}

static void give_back(int fd, const struct ws_message *m)
{
    auto_buf out = BUF_INIT(2 << 20);
    uint8_t head[WS_HEADER_MAX];
    size_t half = m->len / 2;

    buf_put(&out, head, ws_header_encode(head, WS_BINARY, 0, half, NULL));
    buf_put(&out, m->data, half);
    ws_encode(&out, WS_PING, "p", 1, NULL);
    buf_put(&out, head, ws_header_encode(head, WS_CONTINUATION, 1, m->len - half, NULL));
    buf_put(&out, m->data + half, m->len - half);
    say(fd, out.data, out.len);
}

static void echo(int fd)
{
    struct ws_decoder d;
    static uint8_t piece[5000];
    ws_decoder_init(&d, 1, 1 << 20);

    for (ssize_t n; !d.closed && (n = recv(fd, piece, sizeof piece, 0)) > 0;) {
        size_t used = 0;
        struct ws_message m;
        struct pd_err e;
        for (size_t at = 0; at < (size_t)n; at += used) {
            int r = ws_decode(&d, piece + at, (size_t)n - at, &used, &m, &e);
            if (r < 0) {
                script.unmasked++;
                break;
            }
            if (r && m.opcode == WS_BINARY)
                give_back(fd, &m);
            script.pongs += r && m.opcode == WS_PONG;
            script.closes += r && m.opcode == WS_CLOSE;
        }
    }
    ws_decoder_done(&d);
}

static void *serve(void *arg)
{
    (void)arg;
    int fd = accept(script.listener, NULL, NULL);
    char piece[1000];
    ssize_t n = 1;

    while (n > 0 && (!script.seen.len || !strstr(buf_cstr(&script.seen), "\r\n\r\n"))) {
        n = recv(fd, piece, sizeof piece, 0);
        if (n > 0)
            buf_put(&script.seen, piece, (size_t)n);
    }

    say_head(fd);
    if (script.lazy)
        poll(NULL, 0, 300);
    if (script.raw)
        say(fd, script.raw, script.raw_len);
    else
        echo(fd);

    shutdown(fd, SHUT_WR);
    while (recv(fd, piece, sizeof piece, 0) > 0)
        ;
    close(fd);
    return NULL;
}

#define GOOD                                                                                       \
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"            \
    "Sec-WebSocket-Accept: @\r\n"

static void begin(struct script with)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    buf_done(&script.seen);
    script = with;
    script.seen = BUF_INIT(1 << 16);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    unlink(path);
    script.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(script.listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(script.listener, 1), 0);
    assert_int_equal(pthread_create(&script.thread, NULL, serve, NULL), 0);
}

static void end(void)
{
    shutdown(script.listener, SHUT_RDWR);
    pthread_join(script.thread, NULL);
    close(script.listener);
}

static struct ws_stream *dial(const struct ws_request *r, struct ws_refusal *refusal,
                              struct pd_err *e)
{
    struct http *h = http_new(&(struct http_place){.socket = path}, e);
    assert_non_null(h);
    return ws_stream_open(h, r, deadline_in(PATIENCE), refusal, e);
}

/* ---- heads ---- */

static void test_heads(void **state)
{
    (void)state;
    static const struct {
        const char *head, *offered;
        int good;
    } rows[] = {
        {GOOD "\r\n", NULL, 1},
        {GOOD "Sec-WebSocket-Protocol: b\r\n\r\n", "a, b", 1},
        {GOOD "\r\n", "a, b", 1},
        {GOOD "Sec-WebSocket-Protocol: c\r\n\r\n", "a, b", 0},
        {GOOD "Sec-WebSocket-Protocol: b\r\n\r\n", NULL, 0},
        {GOOD "Sec-WebSocket-Protocol: a\r\nSec-WebSocket-Protocol: a\r\n\r\n", "a", 0},
        {GOOD "Sec-WebSocket-Accept: @\r\n\r\n", NULL, 0},
        {GOOD "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n", NULL, 0},
        {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
         NULL, 0},
        {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
         "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
         NULL, 0},
        {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n"
         "Sec-WebSocket-Accept: @\r\n\r\n",
         NULL, 0},
        {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", NULL, 0},
        {"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", NULL, 0},
        {"SSH-2.0-OpenSSH_9.2\r\n\r\n", NULL, 0},
        {"", NULL, 0},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct pd_err e = {.msg = ""};
        struct ws_refusal refusal;
        begin((struct script){.head = rows[i].head, .raw = "", .raw_len = 0});
        struct ws_stream *s =
            dial(&(struct ws_request){.target = "/x", .protocols = rows[i].offered}, &refusal, &e);
        if (!s != !rows[i].good)
            fail_msg("row %zu: %s", i, e.msg);
        if (!s && !e.msg[0])
            fail_msg("row %zu has no error", i);
        ws_stream_free(s);
        end();
    }
}

static void test_what_is_sent(void **state)
{
    (void)state;
    struct pd_err e;
    static const char *const headers[] = {"Authorization: Bearer x", "X-Y: z", NULL};
    static const char *const bad[] = {"X: y\r\nZ: 1", NULL};

    begin((struct script){.head = GOOD "Sec-WebSocket-Protocol: b\r\n\r\n", .raw = ""});
    struct ws_stream *s =
        dial(&(struct ws_request){.target = "/a?b=c", .headers = headers, .protocols = "a, b"},
             NULL, &e);
    if (!s)
        fail_msg("%s", e.msg);
    assert_string_equal(ws_stream_protocol(s), "b");
    ws_stream_free(s);
    end();

    const char *text = buf_cstr(&script.seen);
    static const char *const want[] = {"GET /a?b=c HTTP/1.1\r\n",         "Host: localhost\r\n",
                                       "Authorization: Bearer x\r\n",     "X-Y: z\r\n",
                                       "Sec-WebSocket-Version: 13\r\n",   "Upgrade: websocket\r\n",
                                       "Sec-WebSocket-Protocol: a, b\r\n"};
    for (size_t i = 0; i < COUNT(want); i++)
        if (!strstr(text, want[i]))
            fail_msg("not sent: %s", want[i]);

    assert_null(dial(&(struct ws_request){.target = "/", .headers = bad}, NULL, &e));
    assert_int_equal(e.code, PD_INVALID);
    assert_null(dial(&(struct ws_request){.target = "/ HTTP/1.1\r\nX: y"}, NULL, &e));
    assert_int_equal(e.code, PD_INVALID);
}

static void test_a_refusal_has_its_words(void **state)
{
    (void)state;
    struct pd_err e;
    struct ws_refusal refusal;

    begin((struct script){.head = "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 19\r\n\r\n",
                          .raw = "{\"message\":\"gone\"}\n",
                          .raw_len = 19});
    assert_null(dial(&(struct ws_request){.target = "/"}, &refusal, &e));
    assert_int_equal(refusal.status, 502);
    assert_string_equal(refusal.text, "{\"message\":\"gone\"}");
    assert_non_null(strstr(e.msg, "502"));
    end();
}

/* ---- streams ---- */

static void await(const struct ws_stream *s, short events)
{
    struct pollfd p = {.fd = ws_stream_fd(s), .events = events};
    assert_int_equal(poll(&p, 1, (int)(PATIENCE / NS_PER_MS)), 1);
}

/* All that is said comes back, through pieces of every kind, while pings are answered. */
static void test_bytes_come_back(void **state)
{
    (void)state;
    struct pd_err e;
    size_t size = 3 << 20, put = 0, got = 0;
    uint8_t *data = malloc(size), *back = malloc(size);
    assert_true(data && back);
    random_bytes(data, size);

    for (int lazy = 0; lazy < 2; lazy++) {
        begin((struct script){.head = GOOD "\r\n", .lazy = lazy});
        struct ws_stream *s = dial(&(struct ws_request){.target = "/"}, NULL, &e);
        if (!s)
            fail_msg("%s", e.msg);
        for (put = got = 0; got < size;) {
            ssize_t n = ws_stream_read(s, back + got, 1 + got % 9000);
            assert_true(n > 0 || n == -EAGAIN);
            got += n > 0 ? (size_t)n : 0;
            size_t want = size - put < 100000 ? size - put : 100000;
            ssize_t w = want ? ws_stream_write(s, data + put, want) : 0;
            assert_true(w >= 0 || w == -EAGAIN);
            put += w > 0 ? (size_t)w : 0;
            if (n == -EAGAIN && w <= 0)
                await(s, (short)(w == -EAGAIN ? POLLIN | POLLOUT : POLLIN));
        }
        assert_memory_equal(data, back, size);
        while (ws_stream_wants_write(s) && ws_stream_write(s, NULL, 0) == -EAGAIN)
            await(s, POLLOUT);
        ws_stream_free(s);
        end();
        assert_true(script.pongs > 10);
        assert_int_equal(script.unmasked, 0);
    }
    free(data);
    free(back);
}

/* What the stream is over with, and what was read before. */
static ssize_t read_all(struct ws_stream *s, char *out, size_t size)
{
    size_t have = 0;
    for (;;) {
        ssize_t n = ws_stream_read(s, out + have, size - 1 - have);
        if (n == -EAGAIN) {
            await(s, POLLIN);
            continue;
        }
        out[have += n > 0 ? (size_t)n : 0] = 0;
        if (n <= 0)
            return n;
    }
}

static void test_ends(void **state)
{
    (void)state;
    static char large[WS_STREAM_MESSAGE + 200];
    ws_header_encode((uint8_t *)large, WS_BINARY, 1, WS_STREAM_MESSAGE + 1, NULL);
    const struct {
        const char *raw;
        size_t len;
        const char *text, *farewell;
        int end;
    } rows[] = {
        {"\x82\x02hi\x88\x05\x03\xe8"
         "bye",
         11, "hi", "1000 bye", 0},
        {"\x88\x00", 2, "", "1005 ", 0},
        {"\x82\x02hi", 4, "hi", "", -EIO},          /* cut off */
        {"\x82\x05hi", 4, "", "", -EIO},            /* in the middle of a message */
        {"\x82\x02hi\x81\x01x", 7, "hi", "", -EIO}, /* text */
        {"\x82\x82\0\0\0\0hi", 8, "", "", -EIO},    /* a mask */
        {"\xc2\x02hi", 4, "", "", -EIO},            /* a reserved bit */
        {large, sizeof large, "", "", -EIO},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct pd_err e;
        char text[100];
        begin((struct script){.head = GOOD "\r\n", .raw = rows[i].raw, .raw_len = rows[i].len});
        struct ws_stream *s = dial(&(struct ws_request){.target = "/"}, NULL, &e);
        if (!s)
            fail_msg("%s", e.msg);
        ssize_t r = read_all(s, text, sizeof text);
        if (r != rows[i].end || strcmp(text, rows[i].text) != 0)
            fail_msg("row %zu ended with %zd behind '%s'", i, r, text);
        assert_string_equal(ws_stream_farewell(s), rows[i].farewell);
        assert_int_equal(ws_stream_write(s, "x", 1), -EIO);
        assert_int_equal(ws_stream_read(s, text, sizeof text), rows[i].end);
        ws_stream_free(s);
        end();
    }
}

static void test_messages_keep_their_bounds(void **state)
{
    (void)state;
    static const char raw[] = "\x82\x02hi\x82\x00\x02\x01o\x80\x02ne\x88\x00";
    static const char *const want[] = {"hi", "", "one"};
    struct pd_err e;

    begin((struct script){.head = GOOD "\r\n", .raw = raw, .raw_len = sizeof raw - 1});
    struct ws_stream *s = dial(&(struct ws_request){.target = "/"}, NULL, &e);
    assert_non_null(s);
    for (size_t i = 0; i < COUNT(want);) {
        const uint8_t *data = NULL;
        size_t len = 0;
        int r = ws_stream_next(s, &data, &len);
        if (r == -EAGAIN) {
            await(s, POLLIN);
            continue;
        }
        assert_int_equal(r, 1);
        assert_int_equal(len, strlen(want[i]));
        assert_true(!len || !memcmp(data, want[i], len));
        i++;
    }
    ws_stream_free(s);
    end();
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/sock", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    buf_done(&script.seen);
    unlink(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_what_is_sent),
        cmocka_unit_test(test_a_refusal_has_its_words),
        cmocka_unit_test(test_bytes_come_back),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_messages_keep_their_bounds),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
