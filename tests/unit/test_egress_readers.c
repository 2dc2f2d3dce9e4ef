/* What the gate reads of strangers: ClientHellos, heads of HTTP, DNS messages; and pins. */
#include "gate/head.h"
#include "gate/pins.h"
#include "gate/question.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- TLS ---- */

struct bytes {
    uint8_t data[32768];
    size_t len;
};

static void put8(struct bytes *b, unsigned v)
{
    b->data[b->len++] = (uint8_t)v;
}

static void put16(struct bytes *b, size_t v)
{
    put8(b, (unsigned)(v >> 8));
    put8(b, (unsigned)v);
}

static void put_name(struct bytes *b, const char *name)
{
    size_t n = strlen(name);
    put16(b, 0);
    put16(b, n + 5);
    put16(b, n + 3);
    put8(b, 0);
    put16(b, n);
    memcpy(b->data + b->len, name, n);
    b->len += n;
}

/* A hello with these names, in one extension each, and one of `filler` bytes in front. */
static struct bytes *hello(const char *first, const char *second, size_t filler)
{
    static struct bytes b;
    struct bytes extensions = {.len = 0};

    if (filler) {
        put16(&extensions, 21);
        put16(&extensions, filler);
        memset(extensions.data + extensions.len, 0, filler);
        extensions.len += filler;
    }
    if (first)
        put_name(&extensions, first);
    if (second)
        put_name(&extensions, second);

    size_t body = 2 + 32 + 1 + 4 + 2 + 2 + extensions.len;
    b.len = 0;
    put8(&b, 1);
    put8(&b, 0);
    put16(&b, body);
    put16(&b, 0x303);
    memset(b.data + b.len, 7, 32);
    b.len += 32;
    put8(&b, 0);
    put16(&b, 2);
    put16(&b, 0x1301);
    put8(&b, 1);
    put8(&b, 0);
    put16(&b, extensions.len);
    memcpy(b.data + b.len, extensions.data, extensions.len);
    b.len += extensions.len;
    return &b;
}

/* In records of at most `size` bytes. */
static struct bytes *records(const struct bytes *message, size_t size)
{
    static struct bytes b;
    b.len = 0;
    for (size_t at = 0; at < message->len; at += size) {
        size_t n = message->len - at < size ? message->len - at : size;
        put8(&b, 22);
        put16(&b, 0x301);
        put16(&b, n);
        memcpy(b.data + b.len, message->data + at, n);
        b.len += n;
    }
    return &b;
}

static void test_a_hello_says_its_name_however_it_is_cut(void **state)
{
    static const size_t sizes[] = {1, 2, 3, 7, 60, 16384};
    char name[RULES_NAME_MAX + 1];
    (void)state;

    for (size_t i = 0; i < COUNT(sizes); i++) {
        const struct bytes *b = records(hello("WWW.example.com", NULL, 0), sizes[i]);
        assert_int_equal(hello_read(b->data, b->len, name), SNIFF_NAMED);
        assert_string_equal(name, "www.example.com");
        for (size_t n = 1; n < b->len; n++)
            if (hello_read(b->data, n, name) != SNIFF_MORE)
                fail_msg("%zu of %zu bytes, records of %zu", n, b->len, sizes[i]);
    }
}

static void test_hellos_that_are_refused(void **state)
{
    char name[RULES_NAME_MAX + 1] = "untouched";
    (void)state;

    const struct bytes *b = records(hello(NULL, NULL, 0), 16384);
    assert_int_equal(hello_read(b->data, b->len, name), SNIFF_NAMELESS);
    b = records(hello("a.example", "b.example", 0), 16384);
    assert_int_equal(hello_read(b->data, b->len, name), SNIFF_BAD);
    b = records(hello("127.0.0.1", NULL, 0), 16384);
    assert_int_equal(hello_read(b->data, b->len, name), SNIFF_BAD);
    b = records(hello("a.example\n", NULL, 0), 16384);
    assert_int_equal(hello_read(b->data, b->len, name), SNIFF_BAD);
    b = records(hello("", NULL, 0), 16384);
    assert_int_equal(hello_read(b->data, b->len, name), SNIFF_BAD);
    b = records(hello("a.example", NULL, 16380), 8192);
    assert_int_equal(hello_read(b->data, b->len, name), SNIFF_BAD);
    b = records(hello("a.example", NULL, 15000), 8192);
    assert_int_equal(hello_read(b->data, b->len, name), SNIFF_NAMED);
    assert_string_equal(name, "a.example");

    /* Not a hello; a second record of another sort; an empty record. */
    assert_int_equal(hello_read((const uint8_t *)"GET / HTTP/1.1", 14, name), SNIFF_OTHER);
    assert_int_equal(hello_read((const uint8_t *)"\x16\x02\x00", 3, name), SNIFF_OTHER);
    assert_int_equal(hello_read((const uint8_t *)"\x16\x03\x01\x00\x00", 5, name), SNIFF_BAD);
    assert_int_equal(hello_read((const uint8_t *)"\x16\x03\x01\x00\x04\x02\0\0\0", 9, name),
                     SNIFF_BAD);
}

/* ---- HTTP ---- */

static void test_hosts_of_heads(void **state)
{
    static const struct {
        const char *head;
        enum sniffed how;
        const char *name;
    } rows[] = {
        {"GET / HTTP/1.1\r\nHost: A.example\r\n\r\n", SNIFF_NAMED, "a.example"},
        {"GET / HTTP/1.1\r\nhost:a.example:8080\r\nX: y\r\n\r\n", SNIFF_NAMED, "a.example"},
        {"POST /x HTTP/1.0\r\nX: y\r\nHost: a.example \t\r\n\r\nbody", SNIFF_NAMED, "a.example"},
        {"GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n", SNIFF_NAMED, "a.example"},
        {"OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\n", SNIFF_NAMED, "a.example"},
        {"GET / HTTP/1.1\r\nHost: 1.2.3.4\r\n\r\n", SNIFF_NAMELESS, NULL},
        {"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", SNIFF_NAMELESS, NULL},
        {"GET / HTTP/1.0\r\n\r\n", SNIFF_NAMELESS, NULL},
        {"GET / HTTP/1.1\r\nHost: a.example\r\n", SNIFF_MORE, NULL},
        {"GE", SNIFF_MORE, NULL},
        {"GET / HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n", SNIFF_BAD, NULL},
        {"GET / HTTP/1.1\r\nHost: a.example\r\n b.example\r\n\r\n", SNIFF_BAD, NULL},
        {"GET / HTTP/1.1\r\nHost : a.example\r\n\r\n", SNIFF_BAD, NULL},
        {"GET / HTTP/1.1\r\nHost: a.example, b.example\r\n\r\n", SNIFF_BAD, NULL},
        {"GET / HTTP/1.1\r\nHost: a.example:80x\r\n\r\n", SNIFF_BAD, NULL},
        {"GET / HTTP/1.1\r\nHost: 2130706433\r\n\r\n", SNIFF_BAD, NULL},
        {"GET / HTTP/1.1\r\nHost: 0177.0.0.1\r\n\r\n", SNIFF_BAD, NULL},
        {"GET / HTTP/1.1\r\nHost: a.example@b.example\r\n\r\n", SNIFF_BAD, NULL},
        {"GET / HTTP/1.1\nHost: a.example\n\n", SNIFF_BAD, NULL},
        {"GET / HTTP/1.1\r\nX: a\rHost: b.example\r\n\r\n", SNIFF_BAD, NULL},
        {"GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", SNIFF_BAD, NULL},
        {"GET http://b.example/ HTTP/1.1\r\n\r\n", SNIFF_BAD, NULL},
        {"GET ftp://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", SNIFF_BAD, NULL},
        {"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n", SNIFF_BAD, NULL},
        {"GET / HTTP/2.0\r\nHost: a.example\r\n\r\n", SNIFF_BAD, NULL},
        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", SNIFF_BAD, NULL},
        {"GET /\r\nHost: a.example\r\n\r\n", SNIFF_BAD, NULL},
        {"SSH-2.0-x\r\n", SNIFF_OTHER, NULL},
        {"\x16\x03", SNIFF_OTHER, NULL},
        {"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", SNIFF_OTHER, NULL},
    };
    (void)state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        char name[RULES_NAME_MAX + 1] = "";
        enum sniffed s = head_read((const uint8_t *)rows[i].head, strlen(rows[i].head), name);
        if (s != rows[i].how || strcmp(name, rows[i].name ? rows[i].name : "") != 0)
            fail_msg("row %zu: %d, '%s'", i, s, name);
    }
}

/* ---- DNS ---- */

static size_t ask(uint8_t *out, const char *name, unsigned type)
{
    uint8_t query[DNS_MESSAGE_MAX];
    size_t len = query_write(7, name, DNS_A, query);
    memcpy(out, query, len);
    /* The type is behind the name. */
    size_t at = 12;
    while (out[at])
        at += 1u + out[at];
    out[at + 1] = (uint8_t)(type >> 8);
    out[at + 2] = (uint8_t)type;
    return len;
}

static void test_questions(void **state)
{
    uint8_t data[DNS_MESSAGE_MAX];
    struct question q;
    (void)state;

    size_t len = ask(data, "www.example.com", 16);
    data[13] = 'W';
    assert_int_equal(question_read(data, len, &q), ASKED);
    assert_true(q.has_name && q.has_edns);
    assert_string_equal(q.name, "www.example.com");
    assert_int_equal(q.type, 16);
    assert_int_equal(q.raw[1], 'W');

    for (size_t n = 0; n < len; n++) {
        enum asked a = question_read(data, n, &q);
        assert_true(n < 12 ? a == ASKED_NOTHING : a != ASKED_NOTHING);
    }
    data[2] |= 0x80;
    assert_int_equal(question_read(data, len, &q), ASKED_NOTHING);
    data[2] = 0x10;
    assert_int_equal(question_read(data, len, &q), ASKED_WRONGLY);
    data[2] = 1;
    data[5] = 2;
    assert_int_equal(question_read(data, len, &q), ASKED_WRONGLY);

    /* A pointer to itself, and one into the head. */
    const uint8_t loop[] = {0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1};
    assert_int_equal(question_read(loop, sizeof loop, &q), ASKED_WRONGLY);
    const uint8_t into[] = {0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 4, 0, 1, 0, 1};
    assert_int_equal(question_read(into, sizeof into, &q), ASKED_WRONGLY);
}

static void test_answers_are_read_back(void **state)
{
    uint8_t data[DNS_MESSAGE_MAX], out[DNS_MESSAGE_MAX];
    struct ip all[DNS_ADDRESSES_MAX];
    struct question q;
    struct reply r;
    (void)state;

    for (unsigned i = 0; i < DNS_ADDRESSES_MAX; i++)
        all[i] = ip_of_v4((const uint8_t[]){203, 0, 113, (uint8_t)i});
    size_t len = ask(data, "a.example", DNS_A);
    assert_int_equal(question_read(data, len, &q), ASKED);
    len = question_answer(&q, DNS_OK, all, DNS_ADDRESSES_MAX, 1000, NULL, out);
    assert_true(reply_read(out, len, 7, "a.example", DNS_A, &r));
    assert_int_equal(r.count, DNS_ADDRESSES_MAX);
    assert_int_equal(r.ttl, DNS_TTL_MAX);
    assert_true(ip_equal(r.addresses[3], all[3]));

    /* Not what was asked. */
    assert_false(reply_read(out, len, 8, "a.example", DNS_A, &r));
    assert_false(reply_read(out, len, 7, "b.example", DNS_A, &r));
    assert_false(reply_read(out, len, 7, "a.example", DNS_AAAA, &r));
    assert_false(reply_read(data, len, 7, "a.example", DNS_A, &r));

    len = question_answer(&q, DNS_NO_NAME, NULL, 0, 0, "because", out);
    assert_true(reply_read(out, len, 7, "a.example", DNS_A, &r));
    assert_int_equal(r.code, DNS_NO_NAME);
    assert_non_null(memmem(out, len, "because", 7));

    /* Without EDNS an answer is never longer than 512 bytes. */
    q.has_edns = false;
    len = question_answer(&q, DNS_OK, all, DNS_ADDRESSES_MAX, 1, NULL, out);
    assert_true(len <= 512);
}

static void test_aliases_are_followed_and_strangers_are_not(void **state)
{
    /* a.b IN A? ; a.b CNAME c ; x A 1.2.3.4 ; c A 5.6.7.8 */
    const uint8_t data[] = {0,   7,   0x81, 0x80, 0,  1, 0, 3, 0, 0, 0, 0, 1, 'a', 1, 'b', 0,   0,
                            1,   0,   1,    0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 9, 0,   3, 1,   'c', 0,
                            1,   'x', 0,    0,    1,  0, 1, 0, 0, 0, 9, 0, 4, 1,   2, 3,   4,   1,
                            'c', 0,   0,    1,    0,  1, 0, 0, 0, 9, 0, 4, 5, 6,   7, 8};
    struct reply r;
    char text[IP_TEXT];
    (void)state;

    assert_true(reply_read(data, sizeof data, 7, "a.b", DNS_A, &r));
    assert_int_equal(r.count, 1);
    ip_text(r.addresses[0], text);
    assert_string_equal(text, "5.6.7.8");
    assert_int_equal(r.ttl, 9);
}

static void test_pins_are_found_and_make_room(void **state)
{
    struct pins *p = pins_new();
    struct ip a = ip_of_v4((const uint8_t[]){1, 1, 1, 1});
    char name[32];
    unsigned at = 0;
    (void)state;

    pins_add(p, a, "first.example");
    pins_add(p, a, "second.example");
    pins_add(p, a, "first.example");
    assert_string_equal(pins_find(p, a, &at), "second.example");
    assert_string_equal(pins_find(p, a, &at), "first.example");
    assert_null(pins_find(p, a, &at));

    struct ip other = ip_of_v4((const uint8_t[]){2, 2, 2, 2});
    for (unsigned i = 0; i < PINS_MAX; i++) {
        snprintf(name, sizeof name, "n%u.example", i);
        pins_add(p, other, name);
    }
    at = 0;
    assert_null(pins_find(p, a, &at));
    at = 0;
    snprintf(name, sizeof name, "n%u.example", PINS_MAX - 1);
    assert_string_equal(pins_find(p, other, &at), name);
    pins_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_hello_says_its_name_however_it_is_cut),
        cmocka_unit_test(test_hellos_that_are_refused),
        cmocka_unit_test(test_hosts_of_heads),
        cmocka_unit_test(test_questions),
        cmocka_unit_test(test_answers_are_read_back),
        cmocka_unit_test(test_aliases_are_followed_and_strangers_are_not),
        cmocka_unit_test(test_pins_are_found_and_make_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
