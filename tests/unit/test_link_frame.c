/* Frames of a link by vectors: what is put has exactly these bytes, and what is not as it should be
 * is refused. Proofs by the vectors of RFC 4231. */
#include "unit.h"

#include "base/err.h"
#include "link/proof.h"
#include "link/ring.h"

#include "base/banned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *hex(const void *data, size_t len)
{
    static char text[1024];
    for (size_t i = 0; i < len; i++)
        snprintf(text + 2 * i, 3, "%02x", ((const uint8_t *)data)[i]);
    text[2 * len] = 0;
    return text;
}

static void test_heads_have_these_bytes(void **state)
{
    (void)state;
    static const struct {
        struct link_head h;
        const char *bytes;
    } rows[] = {
        {{.type = LINK_ACK, .number = 1}, "0000000005000000000000000100000000000000"},
        {{.len = 5, .type = LINK_DATA, .channel = 0x01020304, .number = 0x1122334455667788},
         "0500000006000000040302018877665544332211"},
        {{.type = LINK_TAKEN, .flags = LINK_LAST, .channel = 2, .number = 3},
         "0000000008010000020000000300000000000000"},
        {{.len = LINK_DATA_MAX, .type = LINK_DATA, .channel = 1},
         "0000010006000000010000000000000000000000"},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct link_head back;
        struct pd_err e;
        auto_buf b = BUF_INIT(64);
        link_head_put(&b, &rows[i].h);
        assert_string_equal(hex(b.data, b.len), rows[i].bytes);
        assert_int_equal(link_head_read(b.data, &back, &e), 0);
        assert_true(back.len == rows[i].h.len && back.type == rows[i].h.type &&
                    back.flags == rows[i].h.flags && back.channel == rows[i].h.channel &&
                    back.number == rows[i].h.number);
    }
}

static void test_heads_that_no_end_sends_are_refused(void **state)
{
    (void)state;
    static const struct link_head rows[] = {
        {.type = 0},
        {.type = LINK_TYPE_COUNT},
        {.type = LINK_DATA, .channel = 1},
        {.type = LINK_DATA, .len = LINK_DATA_MAX + 1, .channel = 1},
        {.type = LINK_DATA, .len = 1},
        {.type = LINK_DATA, .len = 1, .channel = 1, .flags = 1},
        {.type = LINK_ACK, .len = 1},
        {.type = LINK_ACK, .channel = 1},
        {.type = LINK_TAKEN, .channel = 1, .flags = 2},
        {.type = LINK_MSG, .len = 4},
        {.type = LINK_MSG, .len = LINK_PAYLOAD_MAX + 1},
        {.type = LINK_MSG, .len = UINT32_MAX},
        {.type = LINK_HELLO, .len = LINK_HELLO_SIZE - 1},
        {.type = LINK_PROOF, .len = 31},
        {.type = LINK_RESUME, .len = LINK_CHANNELS_MAX * LINK_PLACE_SIZE + 1},
        {.type = LINK_BYE, .len = LINK_TEXT_MAX + 1},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct link_head h = {.type = 99};
        struct pd_err e = {.code = PD_INTERNAL};
        auto_buf b = BUF_INIT(64);
        link_head_put(&b, &rows[i]);
        assert_int_equal(link_head_read(b.data, &h, &e), -1);
        assert_int_equal(e.code, PD_PROTOCOL);
        assert_int_equal(h.type, 99);
    }

    uint8_t nonzero[LINK_HEAD] = {[4] = LINK_ACK, [6] = 1};
    struct link_head h;
    assert_int_equal(link_head_read(nonzero, &h, NULL), -1);
}

static void test_messages_come_back_and_bad_ones_do_not(void **state)
{
    (void)state;
    struct link_msg m = {.refs = {{7, LINK_AWAY, 3, 0}, {0, 0, 9, 0}, {8, LINK_BACK, 1, 77}},
                         .ref_count = 3,
                         .body = (const uint8_t *)"xyz",
                         .len = 3},
                    back;
    struct pd_err e;
    auto_buf b = BUF_INIT(256);
    link_msg_put(&b, &m);
    assert_int_equal(b.len, 4 + 3 * 16 + 3);
    assert_int_equal(link_msg_read(b.data, b.len, &back, &e), 0);
    assert_int_equal(back.ref_count, 3);
    assert_int_equal(back.refs[2].offset, 77);
    assert_int_equal(back.refs[0].kind, 3);
    assert_memory_equal(back.body, "xyz", 3);

    /* Nothing behind the channels, too many of them, ways that there are not, bytes that are no
     * zeros. */
    assert_int_equal(link_msg_read(b.data, b.len - 3, &back, &e), -1);
    static const struct {
        size_t at;
        uint8_t value;
    } rows[] = {{0, LINK_REFS_MAX + 1}, {1, 1}, {2, 1}, {4 + 4, 4}, {4 + 6, 1}, {4 + 16 + 7, 1}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        uint8_t was = b.data[rows[i].at];
        b.data[rows[i].at] = rows[i].value;
        assert_int_equal(link_msg_read(b.data, b.len, &back, &e), -1);
        assert_int_equal(e.code, PD_PROTOCOL);
        b.data[rows[i].at] = was;
    }
}

static void test_places_are_in_order(void **state)
{
    (void)state;
    static const struct {
        struct link_place p;
        int good;
    } rows[] = {
        {{1, 0, 5, 4, 6}, 1}, {{1, 1, 0, 0, 0}, 1}, {{0, 0, 5, 4, 6}, 0},
        {{1, 2, 5, 4, 6}, 0}, {{1, 0, 5, 6, 7}, 0}, {{1, 0, 5, 4, 4}, 0},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct link_place back;
        auto_buf b = BUF_INIT(64);
        link_place_put(&b, &rows[i].p);
        assert_int_equal(b.len, LINK_PLACE_SIZE);
        assert_int_equal(link_place_read(b.data, &back, NULL) == 0, rows[i].good);
    }
}

static void test_hmac_vectors(void **state)
{
    (void)state;
    static uint8_t aa[131], key1[20], dd[50], key3[20];
    memset(aa, 0xaa, sizeof aa);
    memset(key1, 0x0b, sizeof key1);
    memset(dd, 0xdd, sizeof dd);
    memset(key3, 0xaa, sizeof key3);

    static const char long_text[] = "Test Using Larger Than Block-Size Key - Hash Key First";
    const struct {
        const void *key;
        size_t key_len;
        const void *data;
        size_t len;
        const char *want;
    } rows[] = {
        {key1, 20, "Hi There", 8,
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {"Jefe", 4, "what do ya want for nothing?", 28,
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {key3, 20, dd, 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
        {aa, 131, long_text, sizeof long_text - 1,
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        uint8_t out[SHA256_SIZE];
        hmac_sha256(rows[i].key, rows[i].key_len, rows[i].data, rows[i].len, out);
        assert_string_equal(hex(out, sizeof out), rows[i].want);
    }
}

static void test_proofs_differ_by_role_and_hello(void **state)
{
    (void)state;
    uint8_t key[LINK_KEY] = {1}, a[LINK_HELLO_SIZE] = {2}, b[LINK_HELLO_SIZE] = {3};
    uint8_t one[LINK_PROOF_SIZE], two[LINK_PROOF_SIZE];

    proof_make(key, LINK_KEEPER, a, b, one);
    proof_make(key, LINK_KEEPER, a, b, two);
    assert_true(proof_equal(one, two));
    proof_make(key, LINK_BOX, a, b, two);
    assert_false(proof_equal(one, two));
    proof_make(key, LINK_KEEPER, b, a, two);
    assert_false(proof_equal(one, two));
    b[LINK_HELLO_SIZE - 1] ^= 1;
    proof_make(key, LINK_KEEPER, a, b, two);
    assert_false(proof_equal(one, two));
}

static void test_a_ring_keeps_bytes_and_its_budget(void **state)
{
    (void)state;
    struct ring_budget budget = {.most = 4 * RING_LEAST};
    struct ring r = {.budget = &budget}, other = {.budget = &budget};
    uint8_t *piece = malloc(RING_MOST);
    size_t len;
    uint64_t put = 0, got = 0;
    assert_non_null(piece);

    /* Bytes that name their own offset, in pieces of all sizes. */
    for (unsigned round = 0; round < 3000; round++) {
        size_t want = (round * 7919u) % (3 * RING_LEAST);
        for (size_t i = 0; i < want; i++)
            piece[i] = (uint8_t)((put + i) * 31u);
        put += ring_put(&r, piece, want);
        assert_true(budget.used <= budget.most);

        size_t take = (round * 104729u) % (2 * RING_LEAST);
        const uint8_t *at;
        while (take && (at = ring_peek(&r, got, &len))) {
            len = len < take ? len : take;
            for (size_t i = 0; i < len; i++)
                assert_int_equal(at[i], (uint8_t)((got + i) * 31u));
            got += len;
            take -= len;
            ring_drop(&r, got);
        }
    }
    assert_true(put > 10 * RING_MOST);

    /* One that is full takes no more; another still has its least. */
    while (ring_put(&r, piece, RING_LEAST))
        ;
    assert_int_equal(budget.used, budget.most);
    assert_int_equal(ring_put(&other, piece, RING_MOST), RING_LEAST);
    ring_free(&r);
    ring_free(&other);
    assert_int_equal(budget.used, 0);
    free(piece);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads_have_these_bytes),
        cmocka_unit_test(test_heads_that_no_end_sends_are_refused),
        cmocka_unit_test(test_messages_come_back_and_bad_ones_do_not),
        cmocka_unit_test(test_places_are_in_order),
        cmocka_unit_test(test_hmac_vectors),
        cmocka_unit_test(test_proofs_differ_by_role_and_hello),
        cmocka_unit_test(test_a_ring_keeps_bytes_and_its_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
