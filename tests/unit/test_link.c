/* One end of a link against a peer that keeps the rules, and against one that breaks them. */
#include "unit.h"

#include "link_pair.h"

#include "base/banned.h"

#include <stdlib.h>

/* A pair with a message that has opened these channels, all of it carried. */
static void open_channels(struct link_pair *p, unsigned ways, unsigned count)
{
    struct link_msg m = {.body = (const uint8_t *)"EXEC", .len = 4};
    pair_begin(p, 4u << 20);
    pair_up(p);
    for (unsigned i = 0; i < count; i++) {
        m.refs[i] =
            (struct link_ref){.channel = link_open(p->ends[0], ways), .ways = (uint8_t)ways};
        m.ref_count++;
    }
    assert_int_equal(link_send(p->ends[0], &m), 0);
    assert_int_equal(pair_settle(p), 0);
    assert_int_equal(link_channels(p->ends[1]), count);
}

static void test_what_is_not_taken_comes_again(void **state)
{
    (void)state;
    struct link_pair p;
    size_t len;
    open_channels(&p, LINK_BACK, 1);

    assert_int_equal(link_write(p.ends[1], 1, "hello", 5), 5);
    link_end(p.ends[1], 1);
    assert_int_equal(pair_settle(&p), 0);
    assert_non_null(link_read(p.ends[0], 1, &len));
    assert_int_equal(len, 5);
    link_taken(p.ends[0], 1, 2);

    for (int i = 0; i < 3; i++) {
        pair_cut(&p);
        pair_up(&p);
        assert_int_equal(pair_settle(&p), 0);
        assert_memory_equal(link_read(p.ends[0], 1, &len), "llo", 3);
        assert_int_equal(len, 3);
        assert_int_equal(link_offset(p.ends[0], 1), 2);
        assert_false(link_is_over(p.ends[0], 1));
        assert_false(link_is_unwanted(p.ends[1], 1));
    }
    link_taken(p.ends[0], 1, 3);
    assert_true(link_is_over(p.ends[0], 1));
    assert_int_equal(link_offset(p.ends[0], 1), UINT64_MAX);
    assert_int_equal(pair_settle(&p), 0);
    assert_int_equal(link_channels(p.ends[0]) + link_channels(p.ends[1]), 0);
    pair_end(&p);
}

/* The bytes of a stream without a reader stop where its window ends, and no other stream waits. */
static void test_a_reader_that_does_not_read_holds_nobody_up(void **state)
{
    (void)state;
    static uint8_t piece[RING_LEAST];
    struct link_pair p;
    size_t len, put = 0;
    open_channels(&p, LINK_BACK, 2);

    for (size_t n; (n = link_write(p.ends[1], 1, piece, sizeof piece)) > 0;) {
        put += n;
        assert_int_equal(pair_settle(&p), 0);
    }
    assert_int_equal(p.ends[0]->promised.used, RING_LEAST);
    assert_int_equal(link_room(p.ends[1], 1), 0);
    assert_true(put <= RING_MOST);

    assert_int_equal(link_write(p.ends[1], 2, "x", 1), 1);
    assert_int_equal(pair_settle(&p), 0);
    assert_non_null(link_read(p.ends[0], 2, &len));

    /* One that does read is given more at a time. */
    for (int i = 0; i < 64; i++) {
        while (link_read(p.ends[0], 1, &len))
            link_taken(p.ends[0], 1, len);
        assert_int_equal(pair_settle(&p), 0);
        while (link_write(p.ends[1], 1, piece, sizeof piece))
            ;
        assert_int_equal(pair_settle(&p), 0);
    }
    assert_int_equal(p.ends[0]->promised.used, RING_MOST + RING_LEAST);
    pair_end(&p);
}

static void test_whoever_stops_reading_is_heard(void **state)
{
    (void)state;
    struct link_pair p;
    open_channels(&p, LINK_BACK, 1);
    link_stop(p.ends[0], 1);
    assert_int_equal(pair_settle(&p), 0);
    assert_true(link_is_unwanted(p.ends[1], 1));
    assert_int_equal(link_write(p.ends[1], 1, "x", 1), 0);
    pair_end(&p);

    /* Also when it was said before the box had heard of the channel, and the word was cut off. */
    pair_begin(&p, 1 << 20);
    struct link_msg m = {.body = (const uint8_t *)"EXEC", .len = 4, .ref_count = 1};
    m.refs[0] = (struct link_ref){.channel = link_open(p.ends[0], LINK_BACK), .ways = LINK_BACK};
    assert_int_equal(link_send(p.ends[0], &m), 0);
    link_stop(p.ends[0], 1);
    pair_up(&p);
    pair_post(&p, 0, SIZE_MAX);
    pair_cut(&p);
    pair_up(&p);
    assert_int_equal(pair_settle(&p), 0);
    assert_true(link_is_unwanted(p.ends[1], 1));
    while (link_next(p.ends[1], &m))
        link_handled(p.ends[1]);
    assert_int_equal(pair_settle(&p), 0);
    assert_int_equal(link_channels(p.ends[0]) + link_channels(p.ends[1]), 0);
    pair_end(&p);
}

static void test_messages_wait_when_nobody_handles_them(void **state)
{
    (void)state;
    struct link_pair p;
    static uint8_t big[WIRE_PAYLOAD_MAX];
    struct link_msg m = {.body = big, .len = sizeof big}, got;
    unsigned sent = 0;
    pair_begin(&p, 1 << 20);
    pair_up(&p);

    while (link_has_room(p.ends[1], m.len)) {
        assert_int_equal(link_send(p.ends[1], &m), 0);
        sent++;
    }
    assert_int_equal(sent, 3);
    assert_int_equal(link_send(p.ends[1], &m), -1);
    assert_int_equal(pair_settle(&p), 0);
    assert_false(link_has_room(p.ends[1], m.len));

    for (unsigned i = 0; i < sent; i++) {
        assert_true(link_next(p.ends[0], &got));
        assert_int_equal(got.len, sizeof big);
        link_handled(p.ends[0]);
    }
    assert_false(link_next(p.ends[0], &got));
    assert_int_equal(pair_settle(&p), 0);
    assert_true(link_has_room(p.ends[1], m.len));
    pair_end(&p);
}

static void test_silence_is_noticed_and_quiet_is_not(void **state)
{
    (void)state;
    struct link_pair p;
    pair_begin(&p, 1 << 20);
    assert_true(link_deadline(p.ends[0]) == DEADLINE_NONE);
    pair_up(&p);
    assert_int_equal(pair_settle(&p), 0);

    /* An hour without a word of the users: both ends ping and are answered. */
    for (int i = 0; i < 240; i++) {
        deadline d = link_deadline(p.ends[i % 2]);
        assert_true(d > p.now && d != DEADLINE_NONE);
        p.now += LINK_QUIET;
        for (int end = 0; end < 2; end++)
            assert_int_equal(link_tick(p.ends[end], p.now, &p.e), 0);
        assert_int_equal(pair_settle(&p), 0);
    }

    p.now += LINK_SILENCE;
    assert_true(link_deadline(p.ends[0]) <= p.now);
    assert_int_equal(link_tick(p.ends[0], p.now, &p.e), -1);
    assert_int_equal(p.e.code, PD_TIMEOUT);
    pair_end(&p);
}

static void test_lease_and_farewell_are_told(void **state)
{
    (void)state;
    struct link_pair p;
    pair_begin(&p, 1 << 20);
    link_set_lease(p.ends[0], 900);
    pair_up(&p);
    assert_int_equal(pair_settle(&p), 0);
    assert_int_equal(link_lease(p.ends[1]), 900);

    link_bye(p.ends[0], LINK_BYE_ENDING, "deleted");
    assert_int_equal(pair_settle(&p), -1);
    assert_int_equal(p.e.code, PD_LOST);
    assert_non_null(strstr(p.e.msg, "deleted"));
    assert_int_equal(link_farewell(p.ends[1]), LINK_BYE_ENDING);
    pair_end(&p);
}

static void test_peers_that_break_a_rule_are_cut_off(void **state)
{
    (void)state;
    static const struct {
        const char *rule;
        int victim; /* 0: the keeper's end; there is channel 1, both ways, with 5 bytes each */
        struct link_head h;
        const char *payload;
    } rows[] = {
        {"a channel that never was", 0, {.type = LINK_STOP, .channel = 2}, ""},
        {"bytes that are not the next",
         0,
         {.len = 1, .type = LINK_DATA, .channel = 1, .number = 9},
         "x"},
        {"bytes again", 0, {.len = 1, .type = LINK_DATA, .channel = 1, .number = 4}, "x"},
        {"an end elsewhere", 0, {.type = LINK_END, .channel = 1, .number = 4}, ""},
        {"taken before it was sent", 0, {.type = LINK_TAKEN, .channel = 1, .number = 6}, ""},
        {"all taken without an end",
         0,
         {.type = LINK_TAKEN, .flags = LINK_LAST, .channel = 1, .number = 5},
         ""},
        {"credit taken back", 0, {.type = LINK_CREDIT, .channel = 1, .number = 1}, ""},
        {"handled before it was sent", 0, {.type = LINK_ACK, .number = 2}, ""},
        {"a message twice", 1, {.len = 5, .type = LINK_MSG, .number = 1}, "\0\0\0\0x"},
        {"a message left out", 1, {.len = 5, .type = LINK_MSG, .number = 3}, "\0\0\0\0x"},
        {"a box that opens a channel",
         0,
         {.len = 21, .type = LINK_MSG, .number = 1},
         "\1\0\0\0\2\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0x"},
        {"a channel opened twice",
         1,
         {.len = 21, .type = LINK_MSG, .number = 2},
         "\1\0\0\0\1\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0x"},
        {"a second RESUME", 0, {.type = LINK_RESUME}, ""},
        {"a second greeting",
         0,
         {.len = 32, .type = LINK_PROOF},
         "................................"},
        {"a box that gives leases", 0, {.type = LINK_LEASE, .number = 5}, ""},
        {"a lease of nothing", 1, {.type = LINK_LEASE}, ""},
        {"a BYE without a reason", 0, {.type = LINK_BYE}, ""},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct link_pair p;
        auto_buf b = BUF_INIT(256);
        open_channels(&p, LINK_AWAY | LINK_BACK, 1);
        link_write(p.ends[0], 1, "12345", 5);
        link_write(p.ends[1], 1, "12345", 5);
        assert_int_equal(pair_settle(&p), 0);

        link_head_put(&b, &rows[i].h);
        buf_put(&b, rows[i].payload, rows[i].h.len);
        struct link *victim = p.ends[rows[i].victim];
        if (link_take(victim, b.data, b.len, p.now, &p.e) == 0)
            fail_msg("not refused: %s", rows[i].rule);
        assert_int_equal(p.e.code, PD_PROTOCOL);
        pair_end(&p);
    }
}

/* What only a RESUME can get wrong. */
static void test_a_resume_that_cannot_be_is_refused(void **state)
{
    (void)state;
    static const struct {
        uint64_t number;
        struct link_place places[2];
        unsigned count;
        int good;
    } rows[] = {
        {1, {{1, 0, 5, 5, 16384}}, 1, 1},
        {1, {{1, 0, 3, 1, 16384}}, 1, 1},
        {1, {{0}}, 0, 1},
        {2, {{1, 0, 5, 5, 16384}}, 1, 0},                      /* a message that never was */
        {1, {{1, 0, 6, 5, 16384}}, 1, 0},                      /* more than was sent */
        {1, {{1, 0, 5, 5, 16383}}, 1, 0},                      /* credit taken back */
        {1, {{1, 0, 5, 5, 16384}, {1, 0, 5, 5, 16384}}, 2, 0}, /* the same one twice */
        {0, {{1, 0, 5, 5, 16384}}, 1, 0},                      /* it had the message already */
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct link_pair p;
        auto_buf b = BUF_INIT(256);
        open_channels(&p, LINK_AWAY, 1);
        struct link_msg m;
        while (link_next(p.ends[1], &m))
            link_handled(p.ends[1]);
        link_write(p.ends[0], 1, "12345", 5);
        assert_int_equal(pair_settle(&p), 0);
        pair_cut(&p);
        pair_up(&p);

        link_head_put(&b, &(struct link_head){.len = rows[i].count * LINK_PLACE_SIZE,
                                              .type = LINK_RESUME,
                                              .number = rows[i].number});
        for (unsigned k = 0; k < rows[i].count; k++)
            link_place_put(&b, &rows[i].places[k]);
        assert_int_equal(link_take(p.ends[0], b.data, b.len, p.now, &p.e) == 0, rows[i].good);
        pair_end(&p);
    }
}

static void test_there_are_no_more_channels_than_a_resume_has_room_for(void **state)
{
    (void)state;
    struct link_pair p;
    pair_begin(&p, 1 << 20);
    pair_up(&p);
    for (unsigned i = 0; i < LINK_CHANNELS_MAX; i++) {
        uint32_t id = link_open(p.ends[0], LINK_AWAY | LINK_BACK);
        assert_int_equal(id, i + 1);
        struct link_msg m = {.refs = {{.channel = id, .ways = 3}},
                             .ref_count = 1,
                             .body = (const uint8_t *)"x",
                             .len = 1};
        assert_int_equal(link_send(p.ends[0], &m), 0);
        if (i % 100 == 99 || i == LINK_CHANNELS_MAX - 1) {
            assert_int_equal(pair_settle(&p), 0);
            while (link_next(p.ends[1], &m))
                link_handled(p.ends[1]);
            assert_int_equal(pair_settle(&p), 0);
        }
    }
    assert_int_equal(link_open(p.ends[0], LINK_BACK), 0);

    pair_cut(&p);
    pair_up(&p);
    assert_int_equal(pair_settle(&p), 0);
    assert_int_equal(link_channels(p.ends[1]), LINK_CHANNELS_MAX);
    assert_true(link_is_up(p.ends[0]) && link_is_up(p.ends[1]));
    pair_end(&p);
}

/* An end that is made anew may know less of what was taken than the one before, and so need more
 * for the same bytes. */
static void test_what_was_put_in_once_has_room_again(void **state)
{
    (void)state;
    enum { CHANNELS = 8, LONG = 1u << 20 };
    static const uint8_t bytes[LONG] = {1};
    struct link *before = link_new(LINK_KEEPER, LONG), *l = link_new(LINK_KEEPER, LONG);
    auto_buf kept = BUF_INIT(1u << 20);
    size_t used, len;
    assert_non_null(before);
    assert_non_null(l);
    for (uint32_t i = 1; i <= CHANNELS; i++)
        assert_int_equal(link_open(before, LINK_AWAY), i);
    link_keep(before, &kept);
    assert_int_equal(link_recall(l, kept.data, kept.len, &used), 0);

    for (uint32_t i = 1; i <= CHANNELS; i++) {
        link_place(l, i, 0, 100);
        assert_int_equal(link_put_again(l, i, bytes, LONG), 0);
        assert_int_equal(link_room(l, i), 0);
        assert_int_equal(link_held(l, i), 100);
    }
    uint32_t more = link_open(l, LINK_AWAY);
    for (len = 0; len < LONG && link_write(l, more, bytes, 4096); len += 4096)
        ;
    assert_int_equal(len, RING_LEAST); /* what is new is counted as ever */
    link_free(before);
    link_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_not_taken_comes_again),
        cmocka_unit_test(test_a_reader_that_does_not_read_holds_nobody_up),
        cmocka_unit_test(test_whoever_stops_reading_is_heard),
        cmocka_unit_test(test_messages_wait_when_nobody_handles_them),
        cmocka_unit_test(test_silence_is_noticed_and_quiet_is_not),
        cmocka_unit_test(test_lease_and_farewell_are_told),
        cmocka_unit_test(test_peers_that_break_a_rule_are_cut_off),
        cmocka_unit_test(test_a_resume_that_cannot_be_is_refused),
        cmocka_unit_test(test_there_are_no_more_channels_than_a_resume_has_room_for),
        cmocka_unit_test(test_what_was_put_in_once_has_room_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
