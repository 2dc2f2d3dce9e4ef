/* The greeting of a link: two ends that know the key meet, whatever way their bytes are cut, and
 * nobody else inbox further than that. */
#include "unit.h"

#include "base/err.h"
#include "link/greeting.h"

#include "base/banned.h"

#include <string.h>

static const uint8_t nonces[2][LINK_NONCE] = {{1}, {2}};

struct pair {
    struct link_identity who[2];
    struct greeting ends[2];
    int results[2];
    struct pd_err errors[2];
};

static void begin(struct pair *p)
{
    *p = (struct pair){.who = {{.role = LINK_KEEPER, .epoch = 7}, {.role = LINK_BOX}}};
    for (int i = 0; i < 2; i++) {
        p->who[i].box.bytes[0] = 9;
        p->who[i].key[0] = 5;
    }
}

/* Carries bytes to and fro until nobody has any; `piece` of them at a time. */
static void meet(struct pair *p, size_t piece)
{
    for (int i = 0; i < 2; i++)
        greeting_begin(&p->ends[i], &p->who[i], nonces[i]);

    for (int idle = 0; idle < 2;) {
        idle = 0;
        for (int i = 0; i < 2; i++) {
            struct buf *out = &p->ends[i].out;
            struct greeting *to = &p->ends[!i];
            size_t n = out->len < piece ? out->len : piece, used = 0;
            idle += n == 0;
            if (n && p->results[!i] == 0) {
                p->results[!i] = greeting_take(to, out->data, n, &used, &p->errors[!i]);
                if (p->results[!i] == 0)
                    assert_int_equal(used, n);
            }
            memmove(out->data, out->data + n, out->len - n);
            out->len -= n;
        }
    }
}

static void end(struct pair *p)
{
    greeting_end(&p->ends[0]);
    greeting_end(&p->ends[1]);
}

static void test_who_knows_the_key_meets(void **state)
{
    (void)state;
    for (size_t piece = 1; piece < 300; piece++) {
        struct pair p;
        begin(&p);
        meet(&p, piece);
        assert_int_equal(p.results[0], 1);
        assert_int_equal(p.results[1], 1);
        assert_int_equal(p.ends[1].peer_epoch, 7);
        end(&p);
    }
}

static void test_who_does_not_is_refused(void **state)
{
    (void)state;
    static const struct {
        size_t at; /* of the keeper's identity */
        enum pd_code keeper, box;
    } rows[] = {
        {offsetof(struct link_identity, key) + 31, PD_LOST, PD_DENIED},
        {offsetof(struct link_identity, box), PD_CONFLICT, PD_CONFLICT},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct pair p;
        begin(&p);
        ((uint8_t *)&p.who[0])[rows[i].at] ^= 1;
        meet(&p, 64);
        assert_int_equal(p.results[0], -1);
        assert_int_equal(p.results[1], -1);
        assert_int_equal(p.errors[0].code, rows[i].keeper);
        assert_int_equal(p.errors[1].code, rows[i].box);
        end(&p);
    }
}

static void test_a_box_has_one_keeper(void **state)
{
    (void)state;
    static const struct {
        uint64_t keeper, met;
        int good;
    } rows[] = {{7, 0, 1}, {7, 7, 1}, {6, 7, 0}, {8, 7, 0}, {0, 0, 0}};

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct pair p;
        begin(&p);
        p.who[0].epoch = rows[i].keeper;
        p.who[1].epoch = rows[i].met;
        meet(&p, 1000);
        assert_int_equal(p.results[1], rows[i].good ? 1 : -1);
        end(&p);
    }
}

/* The first to prove itself is the keeper, though both were greeted while the box had none. */
static void test_of_two_that_come_at_once_one_stays(void **state)
{
    (void)state;
    struct pair one, two;
    size_t used;
    struct pd_err e;
    begin(&one);
    begin(&two);
    two.who[0].epoch = 8;
    struct link_identity *box = &one.who[1];
    greeting_begin(&one.ends[0], &one.who[0], nonces[0]);
    greeting_begin(&two.ends[0], &two.who[0], nonces[0]);
    greeting_begin(&one.ends[1], box, nonces[1]);
    greeting_begin(&two.ends[1], box, nonces[1]);

    struct pair *pairs[] = {&one, &two};
    for (int i = 0; i < 2; i++) {
        struct greeting *keeper = &pairs[i]->ends[0], *far = &pairs[i]->ends[1];
        assert_int_equal(greeting_take(keeper, far->out.data, far->out.len, &used, &e), 0);
        assert_int_equal(
            greeting_take(far, keeper->out.data, LINK_HEAD + LINK_HELLO_SIZE, &used, &e), 0);
    }
    const size_t hello = LINK_HEAD + LINK_HELLO_SIZE;
    assert_int_equal(greeting_take(&one.ends[1], one.ends[0].out.data + hello,
                                   one.ends[0].out.len - hello, &used, &e),
                     1);
    box->epoch = one.ends[1].peer_epoch;
    assert_int_equal(greeting_take(&two.ends[1], two.ends[0].out.data + hello,
                                   two.ends[0].out.len - hello, &used, &e),
                     -1);
    assert_int_equal(e.code, PD_CONFLICT);
    end(&one);
    end(&two);
}

/* What a box said to one connection proves nothing at another, and its own words prove nothing to
 * itself. */
static void test_old_words_prove_nothing(void **state)
{
    (void)state;
    struct pair p;
    size_t used;
    struct pd_err e;
    begin(&p);
    greeting_begin(&p.ends[0], &p.who[0], nonces[0]);
    greeting_begin(&p.ends[1], &p.who[1], nonces[1]);
    assert_int_equal(greeting_take(&p.ends[0], p.ends[1].out.data, p.ends[1].out.len, &used, &e),
                     0);

    /* The keeper's HELLO and PROOF, replayed to a box whose nonce is another. */
    struct greeting later;
    uint8_t nonce[LINK_NONCE] = {3};
    greeting_begin(&later, &p.who[1], nonce);
    assert_int_equal(greeting_take(&later, p.ends[0].out.data, p.ends[0].out.len, &used, &e), -1);
    assert_int_equal(e.code, PD_DENIED);

    /* The keeper's own words, sent back to it. */
    struct greeting mirror;
    greeting_begin(&mirror, &p.who[0], nonce);
    assert_int_equal(greeting_take(&mirror, p.ends[0].out.data, p.ends[0].out.len, &used, &e), -1);
    assert_int_equal(e.code, PD_CONFLICT);
    greeting_end(&later);
    greeting_end(&mirror);
    end(&p);
}

static void test_a_box_tells_strangers_nothing(void **state)
{
    (void)state;
    static const char *const words[] = {"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                                        "SSH-2.0-x\r\n        ",
                                        "\0\0\0\0\5\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"};

    for (size_t i = 0; i < COUNT(words); i++) {
        struct link_identity who = {.role = LINK_BOX};
        struct greeting g;
        size_t used;
        struct pd_err e;
        greeting_begin(&g, &who, nonces[0]);
        size_t hello = g.out.len;
        assert_int_equal(greeting_take(&g, (const uint8_t *)words[i], LINK_HEAD, &used, &e), -1);
        assert_int_equal(e.code, PD_PROTOCOL);
        assert_int_equal(g.out.len, hello);
        assert_int_equal(greeting_take(&g, (const uint8_t *)words[i], 1, &used, &e), -1);
        greeting_end(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_knows_the_key_meets),
        cmocka_unit_test(test_who_does_not_is_refused),
        cmocka_unit_test(test_a_box_has_one_keeper),
        cmocka_unit_test(test_of_two_that_come_at_once_one_stays),
        cmocka_unit_test(test_old_words_prove_nothing),
        cmocka_unit_test(test_a_box_tells_strangers_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
