/* A link that is cut at random, thousands of times, with both ends doing at random whatever their
 * users may do. Every byte arrives in its place, every message once and in order, every end once,
 * and in the end neither end remembers anything. */
#include "unit.h"

#include "link_pair.h"

#include "base/banned.h"

#include <stdlib.h>

#define CHANNELS 6000u

/* What the model knows of a channel; [0] is what the keeper's end outbox. */
struct known {
    unsigned ways;
    uint64_t put[2], got[2];
    bool ended[2], over[2], stopped[2];
};

struct model {
    struct link_pair p;
    uint32_t random;
    struct known *channels; /* by id */
    uint32_t opened;
    uint64_t said[2], heard[2]; /* messages of each end */
    unsigned cuts;
    size_t budget;
    unsigned deaths; /* the keeper's end is made anew now and then, when it is not 0 */
};

static uint32_t draw(struct model *m, uint32_t below)
{
    m->random = m->random * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(m->random >> 4) * below >> 28);
}

static void say(struct model *m, int from)
{
    struct link *l = m->p.ends[from];
    uint64_t number = m->said[from] + 1;
    struct link_msg msg = {.body = (const uint8_t *)&number, .len = sizeof number};
    if (!link_has_room(l, sizeof number))
        return;

    for (uint32_t n = draw(m, 4); from == 0 && n > 0 && m->opened < CHANNELS - 1; n--) {
        unsigned ways = 1 + draw(m, 3);
        uint32_t id = link_open(l, ways);
        if (!id)
            break;
        assert_int_equal(id, m->opened + 1);
        m->opened = id;
        m->channels[id].ways = ways;
        msg.refs[msg.ref_count++] = (struct link_ref){.channel = id, .ways = (uint8_t)ways};
    }
    assert_int_equal(link_send(l, &msg), 0);
    m->said[from]++;
}

static void hear(struct model *m, int at)
{
    struct link_msg msg;
    uint64_t number;
    if (!link_next(m->p.ends[at], &msg))
        return;
    assert_int_equal(msg.len, sizeof number);
    memcpy(&number, msg.body, sizeof number);
    assert_int_equal(number, ++m->heard[!at]);
    link_handled(m->p.ends[at]);
}

/* One of the last channels, which are those that live; or 0. */
static uint32_t pick(struct model *m)
{
    if (!m->opened)
        return 0;
    uint32_t back = draw(m, 12);
    return back < m->opened ? m->opened - back : m->opened;
}

static bool has_way(const struct known *c, int from)
{
    return c->ways & (from == 0 ? LINK_AWAY : LINK_BACK);
}

static void write_some(struct model *m, int from, uint32_t id)
{
    static uint8_t piece[40000];
    struct known *c = &m->channels[id];
    size_t len = draw(m, draw(m, 8) ? 300 : sizeof piece) + 1;
    for (size_t i = 0; i < len; i++)
        piece[i] = pair_byte(id, from, c->put[from] + i);

    size_t room = link_room(m->p.ends[from], id);
    size_t n = link_write(m->p.ends[from], id, piece, len);
    assert_true(n >= (room < len ? room : len) && (room || !n));
    if (!has_way(c, from) || c->ended[from])
        assert_int_equal(n, 0);
    c->put[from] += n;
}

static void read_some(struct model *m, int at, uint32_t id, size_t most)
{
    struct known *c = &m->channels[id];
    struct link *l = m->p.ends[at];
    const uint8_t *data;
    size_t len;

    while (most && (data = link_read(l, id, &len))) {
        len = len < most ? len : most;
        for (size_t i = 0; i < len; i++)
            assert_int_equal(data[i], pair_byte(id, !at, c->got[!at] + i));
        c->got[!at] += len;
        most -= len;
        link_taken(l, id, len);
    }

    /* Before the box has heard of a channel, it has none. */
    if (!has_way(c, !at) || (at == 1 && m->p.ends[1]->highest < id))
        return;
    if (link_is_over(l, id) && !c->over[!at]) {
        c->over[!at] = true;
        assert_true(c->stopped[!at] || (c->ended[!at] && c->got[!at] == c->put[!at]));
    }
}

static void act(struct model *m)
{
    int end = (int)draw(m, 2);
    uint32_t id = pick(m);
    uint32_t what = draw(m, 100);

    if (what < 10)
        say(m, end);
    else if (what < 25)
        hear(m, end);
    else if (!id)
        return;
    else if (what < 55)
        write_some(m, end, id);
    else if (what < 90)
        read_some(m, end, id, draw(m, 50000) + 1);
    else if (what < 96 && has_way(&m->channels[id], end) && m->p.ends[end]->highest >= id) {
        link_end(m->p.ends[end], id);
        m->channels[id].ended[end] = true;
    } else if (what < 98 && m->p.ends[end]->highest >= id) {
        m->channels[id].stopped[!end] |= !m->channels[id].over[!end];
        link_stop(m->p.ends[end], id);
    }
}

static void carry(struct model *m)
{
    int end = (int)draw(m, 2);
    pair_post(&m->p, end, draw(m, 3) ? draw(m, 200) + 1 : draw(m, 200000) + 1);
    int n = pair_arrive(&m->p, !end, draw(m, 3) ? draw(m, 200) + 1 : draw(m, 200000) + 1);
    if (n < 0)
        fail_msg("refused: %s", m->p.e.msg);
}

/* The keeper's end dies, and another one is made of what it kept. */
static void be_reborn(struct model *m)
{
    auto_buf kept = BUF_INIT(64u << 20);
    struct link *old = m->p.ends[0], *l = link_new(LINK_KEEPER, m->budget);
    size_t used;
    link_keep(old, &kept);
    assert_false(kept.overflow);
    /* What it took behind that it has no record of but how far it is. */
    for (uint32_t i = draw(m, 6); i > 0 && m->opened; i--)
        read_some(m, 0, pick(m), draw(m, 50000) + 1);
    assert_int_equal(link_recall(l, kept.data, kept.len, &used), 0);
    assert_int_equal(used, kept.len);

    for (uint32_t id = 1; id <= m->opened; id++) {
        const struct known *c = &m->channels[id];
        if (!channel_find(l, id))
            continue;
        uint64_t start = link_held(old, id);
        link_place(l, id, c->got[1], start);
        for (uint64_t at = start; at < c->put[0]; at++)
            assert_int_equal(link_put_again(l, id, &(uint8_t){pair_byte(id, 0, at)}, 1), 0);
    }
    link_free(old);
    m->p.ends[0] = l;
    m->deaths++;
}

/* The ends hear of a cut one after the other, and work on in between. */
static void cut(struct model *m)
{
    int first = (int)draw(m, 2);
    m->cuts++;

    /* Some of what was on its way still arrives, the rest never does. */
    for (int i = 0; i < 2; i++) {
        if (pair_arrive(&m->p, i, draw(m, (uint32_t)m->p.to[i].len + 1)) < 0)
            fail_msg("refused: %s", m->p.e.msg);
        buf_clear(&m->p.to[i]);
    }
    link_down(m->p.ends[first]);
    for (uint32_t i = draw(m, 20); i > 0; i--)
        act(m);
    link_down(m->p.ends[!first]);
    for (uint32_t i = draw(m, 20); i > 0; i--)
        act(m);

    if (m->deaths && draw(m, 2))
        be_reborn(m);
    link_up(m->p.ends[!first], m->p.now);
    for (uint32_t i = draw(m, 5); i > 0; i--)
        act(m);
    link_up(m->p.ends[first], m->p.now);
}

static void finish(struct model *m)
{
    for (unsigned round = 0; round < 3000; round++) {
        if (pair_settle(&m->p) < 0)
            fail_msg("refused: %s", m->p.e.msg);

        bool idle = true;
        for (int end = 0; end < 2; end++) {
            while (m->p.ends[end]->inbox.count) {
                hear(m, end);
                idle = false;
            }

            for (uint32_t id = 1; id <= m->opened; id++) {
                if (!channel_find(m->p.ends[end], id)) {
                    read_some(m, end, id, SIZE_MAX);
                    continue;
                }
                idle = false;
                m->channels[id].ended[end] = true;
                link_end(m->p.ends[end], id);
                read_some(m, end, id, SIZE_MAX);
            }
        }

        if (idle)
            return;
    }

    fail_msg("it does not come to an end");
}

static void check_all(const struct model *m)
{
    for (int end = 0; end < 2; end++) {
        const struct link *l = m->p.ends[end];
        assert_int_equal(m->said[end], m->heard[end]);
        assert_int_equal(link_channels(l), 0);
        assert_int_equal(l->budget.used, 0);
        assert_int_equal(l->promised.used, 0);
        assert_int_equal(l->outbox.count, 0);
        assert_true(link_is_heard(l));
    }

    for (uint32_t id = 1; id <= m->opened; id++)
        for (int from = 0; from < 2; from++) {
            const struct known *c = &m->channels[id];
            if (has_way(c, from) && !c->stopped[from])
                assert_int_equal(c->got[from], c->put[from]);
            if (has_way(c, from))
                assert_true(c->over[from]);
        }
}

static void play_with(uint32_t seed, unsigned steps, uint32_t cut_every, size_t budget, bool deaths)
{
    struct model m = {.random = seed,
                      .budget = budget,
                      .deaths = deaths,
                      .channels = calloc(CHANNELS, sizeof(struct known))};
    assert_non_null(m.channels);
    pair_begin(&m.p, budget);
    pair_up(&m.p);

    for (unsigned i = 0; i < steps; i++) {
        m.p.now += 1000;
        if (cut_every && draw(&m, cut_every) == 0)
            cut(&m);
        else if (draw(&m, 2))
            carry(&m);
        else
            act(&m);
        for (int end = 0; end < 2; end++)
            assert_true(m.p.ends[end]->budget.used <=
                        budget + link_channels(m.p.ends[end]) * RING_LEAST);
    }
    finish(&m);
    check_all(&m);
    if (cut_every)
        assert_true(m.cuts > steps / cut_every / 2);
    pair_end(&m.p);
    free(m.channels);
}

static void play(uint32_t seed, unsigned steps, uint32_t cut_every, size_t budget)
{
    play_with(seed, steps, cut_every, budget, /* deaths= */ false);
}

static void test_without_cuts_all_arrives(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 5; seed++)
        play(seed, 4000, 0, 16u << 20);
}

static void test_cut_thousands_of_times_all_arrives(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 25; seed++)
        play(seed * 7919u, 2500, 20, 16u << 20);
}

static void test_cut_in_every_greeting_all_arrives(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 15; seed++)
        play(seed * 104729u, 1500, 3, 16u << 20);
}

static void test_with_hardly_any_memory_all_arrives(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 10; seed++)
        play(seed * 31u, 3000, 40, RING_LEAST);
}

static void test_made_anew_hundreds_of_times_all_arrives(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 15; seed++)
        play_with(seed * 6353u, 2500, 30, seed % 3 ? 16u << 20 : RING_LEAST, /* deaths= */ true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_cuts_all_arrives),
        cmocka_unit_test(test_cut_thousands_of_times_all_arrives),
        cmocka_unit_test(test_cut_in_every_greeting_all_arrives),
        cmocka_unit_test(test_with_hardly_any_memory_all_arrives),
        cmocka_unit_test(test_made_anew_hundreds_of_times_all_arrives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
