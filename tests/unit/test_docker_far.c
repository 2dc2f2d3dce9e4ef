/* What is read and written for an engine on another machine: its address, the head of a stream, the
 * frames in it, and the archive of paddock-box. */
#include "unit.h"

#include "base/buf.h"
#include "base/err.h"
#include "engine/docker_api.h"
#include "engine/docker_frames.h"
#include "engine/docker_place.h"
#include "engine/http_stream.h"

#include "base/banned.h"

#include <string.h>

/* ---- places ---- */

static void addresses(void **state)
{
    (void)state;
    static const struct {
        struct docker_words words;
        const char *socket, *base, *cert;
    } good[] = {
        {{.host = "unix:///run/x.sock"}, "/run/x.sock", "", ""},
        {{.host = "unix:///run/x.sock", .cert_path = "/c"}, "/run/x.sock", "", ""},
        {{.host = "tcp://127.0.0.1:2375"}, "", "http://127.0.0.1:2375", ""},
        {{.host = "tcp://localhost:2375"}, "", "http://localhost:2375", ""},
        {{.host = "tcp://[::1]:2375"}, "", "http://[::1]:2375", ""},
        {{.host = "tcp://engine.test:2376", .cert_path = "/c"},
         "",
         "https://engine.test:2376",
         "/c/cert.pem"},
        {{.host = "tcp://engine.test:2376/", .cert_path = "/c"},
         "",
         "https://engine.test:2376",
         "/c/cert.pem"},
        {{.host = "tcp://engine.test:2376", .tls_verify = "1", .home = "/h"},
         "",
         "https://engine.test:2376",
         "/h/.docker/cert.pem"},
        {{.host = "https://engine.test"}, "", "https://engine.test", ""},
    };

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct docker_place p;
        struct pd_err e;
        assert_int_equal(docker_place_read(&good[i].words, &p, &e), 0);
        assert_string_equal(p.socket, good[i].socket);
        assert_string_equal(p.base, good[i].base);
        assert_string_equal(p.cert, good[i].cert);
        assert_int_equal(docker_place_is_far(&p), !good[i].socket[0]);
    }
}

static void addresses_that_will_not_do(void **state)
{
    (void)state;
    static const struct {
        struct docker_words words;
        const char *says;
    } bad[] = {
        {{.host = ""}, "tcp://HOST:PORT"},
        {{.host = NULL}, "tcp://HOST:PORT"},
        {{.host = "engine.test:2376"}, "tcp://HOST:PORT"},
        {{.host = "ssh://engine.test"}, "tcp://HOST:PORT"},
        {{.host = "http://engine.test"}, "tcp://HOST:PORT"},
        {{.host = "unix://relative"}, "absolute path"},
        {{.host = "tcp://"}, "tcp://HOST:PORT"},
        {{.host = "tcp://u@engine.test", .cert_path = "/c"}, "tcp://HOST:PORT"},
        {{.host = "tcp://engine.test/a", .cert_path = "/c"}, "tcp://HOST:PORT"},
        {{.host = "tcp://engine.test\r\nX: y", .cert_path = "/c"}, "tcp://HOST:PORT"},
        {{.host = "tcp://engine.test:2376"}, "docker_cert_path"},
        {{.host = "tcp://engine.test:2376", .tls_verify = "1"}, "docker_cert_path"},
        {{.host = "tcp://127x.test:2376"}, "docker_cert_path"},
        {{.host = "tcp://127.0.0.1.evil.test:2376"}, "docker_cert_path"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct docker_place p;
        struct pd_err e;
        assert_int_equal(docker_place_read(&bad[i].words, &p, &e), -1);
        assert_int_equal(e.code, PD_INVALID);
        assert_non_null(strstr(e.msg, bad[i].says));
    }
}

/* ---- the head of a stream ---- */

static int head(const char *text, int *ret_status)
{
    return http_head_read(text, strlen(text), ret_status);
}

static void heads(void **state)
{
    (void)state;
    int status = 0;
    static const char good[] = "HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\n";

    for (size_t i = 0; i + 1 < sizeof good - 1; i++)
        assert_int_equal(http_head_read(good, i, &status), 0);
    assert_int_equal(head(good, &status), sizeof good - 1);
    assert_int_equal(status, 101);
    assert_int_equal(head("HTTP/1.0 200 OK\r\n\r\nbytes", &status), 19);
    assert_int_equal(status, 200);

    assert_int_equal(head("HTTP/2.0 200 OK\r\n\r\n", &status), -1);
    assert_int_equal(head("HTTP/1.1 20 OK\r\n\r\n", &status), -1);
    assert_int_equal(head("HTTP/1.1 2000 OK\r\n\r\n", &status), -1);
    assert_int_equal(head("HTTP/1.1 099 OK\r\n\r\n", &status), -1);
    assert_int_equal(head("SSH-2.0-x\r\n\r\n", &status), -1);
    assert_int_equal(head("\r\n\r\n", &status), -1);

    char long_one[HTTP_STREAM_HEAD_MAX];
    memset(long_one, 'x', sizeof long_one);
    memcpy(long_one, "HTTP/1.1 ", 9);
    assert_int_equal(http_head_read(long_one, sizeof long_one, &status), -1);
}

/* ---- frames ---- */

/* All pieces of standard output, from bytes that come `step` at a time. */
static int unpack(const uint8_t *data, size_t len, size_t step, struct buf *out, struct buf *err)
{
    struct docker_frames f = {.have = 0};
    struct pd_err e;

    for (size_t at = 0; at < len;) {
        size_t left = len - at < step ? len - at : step;
        unsigned kind = 0;
        const uint8_t *part = NULL;
        size_t part_len = 0;
        int used = docker_frames_next(&f, data + at, left, &kind, &part, &part_len, &e);
        if (used < 0)
            return -1;
        assert_true(used > 0 && (size_t)used <= left);
        if (part_len)
            buf_put(kind == DOCKER_STDERR ? err : out, part, part_len);
        at += (size_t)used;
    }
    return 0;
}

static void frames_cut_anywhere(void **state)
{
    (void)state;
    static const uint8_t data[] = {1, 0, 0, 0, 0, 0, 0,   3, 'a', 'b', 'c', 2,  0,
                                   0, 0, 0, 0, 0, 1, 'e', 1, 0,   0,   0,   0,  0,
                                   0, 0, 1, 0, 0, 0, 0,   0, 0,   2,   'd', 'e'};
    for (size_t step = 1; step <= sizeof data; step++) {
        auto_buf out = BUF_INIT(100), err = BUF_INIT(100);
        assert_int_equal(unpack(data, sizeof data, step, &out, &err), 0);
        assert_string_equal(buf_cstr(&out), "abcde");
        assert_string_equal(buf_cstr(&err), "e");
    }

    static const uint8_t bad[][8] = {{3, 0, 0, 0, 0, 0, 0, 1}, {1, 1, 0, 0, 0, 0, 0, 1}};
    for (size_t i = 0; i < 2; i++) {
        auto_buf out = BUF_INIT(100);
        assert_int_equal(unpack(bad[i], 8, 8, &out, &out), -1);
    }
}

/* ---- the archive ---- */

static unsigned long octal(const uint8_t *at)
{
    return strtoul((const char *)at, NULL, 8);
}

static void archive(void **state)
{
    (void)state;
    static const char *const names[] = {".paddock/",    ".paddock/key",     ".paddock/box",
                                        "opt/paddock/", "opt/paddock/bin/", "opt/paddock/bin/sudo"};
    static const unsigned modes[] = {0755, 0400, 0555, 0755, 0755, 0555};
    uint8_t program[1000];
    memset(program, 'p', sizeof program);

    for (int dev = 0; dev < 2; dev++) {
        struct docker_far f = {.key = "0123456789abcdef0123456789abcdef", .dev = dev};
        auto_buf out = BUF_INIT(1 << 20);
        docker_far_archive(&out, &f, program, sizeof program);
        assert_int_equal(out.len % 512, 0);

        size_t at = 0;
        for (int i = 0; i < (dev ? 6 : 3); i++) {
            const uint8_t *h = out.data + at;
            unsigned sum = 0;
            for (int k = 0; k < 512; k++)
                sum += k >= 148 && k < 156 ? ' ' : h[k];
            assert_int_equal(octal(h + 148), sum);
            assert_string_equal((const char *)h, names[i]);
            assert_int_equal(octal(h + 100), modes[i]);
            assert_int_equal(octal(h + 108) | octal(h + 116), 0); /* root's */
            unsigned long len = octal(h + 124);
            assert_int_equal(len, i == 1 ? 32 : i == 2 ? sizeof program : 0);
            if (i == 2)
                assert_memory_equal(h + 512, program, sizeof program);
            at += 512 + (len + 511) / 512 * 512;
        }
        assert_int_equal(out.len, at + 1024);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses), cmocka_unit_test(addresses_that_will_not_do),
        cmocka_unit_test(heads),     cmocka_unit_test(frames_cut_anywhere),
        cmocka_unit_test(archive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
