/* link_pair: the two ends of a link and what is on its way between them, for tests. Bytes of a
 * channel name their own offset, so that whoever reads one can tell if it is the right one. */
#pragma once

#include "base/err.h"
#include "link/link_state.h"

#include <stdio.h>
#include <string.h>

struct link_pair {
    struct link *ends[2]; /* the keeper's, the box's */
    struct buf to[2];     /* on its way to each */
    uint64_t now;
    struct pd_err e;
};

static inline void pair_begin(struct link_pair *p, size_t budget)
{
    *p = (struct link_pair){
        .ends = {link_new(LINK_KEEPER, budget), link_new(LINK_BOX, budget)},
        .to = {BUF_INIT(8u << 20), BUF_INIT(8u << 20)},
        .now = 1,
    };
}

static inline void pair_end(struct link_pair *p)
{
    for (int i = 0; i < 2; i++) {
        link_free(p->ends[i]);
        buf_done(&p->to[i]);
    }
}

static inline void pair_up(struct link_pair *p)
{
    link_up(p->ends[0], p->now);
    link_up(p->ends[1], p->now);
}

static inline void pair_cut(struct link_pair *p)
{
    for (int i = 0; i < 2; i++) {
        buf_clear(&p->to[i]);
        link_down(p->ends[i]);
    }
}

/* Puts up to `most` bytes of an end on their way. Returns how many. */
static inline size_t pair_post(struct link_pair *p, int from, size_t most)
{
    size_t len;
    const uint8_t *data = link_give(p->ends[from], p->now, &len);
    if (!data)
        return 0;
    len = len < most ? len : most;
    buf_put(&p->to[!from], data, len);
    link_sent(p->ends[from], len, p->now);
    return len;
}

/* Has up to `most` of them arrive. Returns how many, or -1 when the end has refused them. */
static inline int pair_arrive(struct link_pair *p, int at, size_t most)
{
    struct buf *b = &p->to[at];
    size_t len = b->len < most ? b->len : most;
    if (!len)
        return 0;
    if (link_take(p->ends[at], b->data, len, p->now, &p->e) < 0)
        return -1;
    memmove(b->data, b->data + len, b->len - len);
    b->len -= len;
    return (int)len;
}

/* Carries everything until nobody has anything to say. 0, or -1. */
static inline int pair_settle(struct link_pair *p)
{
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < 2; i++) {
            any |= pair_post(p, i, SIZE_MAX) > 0;
            int n = pair_arrive(p, !i, SIZE_MAX);
            if (n < 0)
                return -1;
            any |= n > 0;
        }
    }
    return 0;
}

static inline uint8_t pair_byte(uint32_t channel, int from, uint64_t offset)
{
    return (uint8_t)(channel * 131u + (unsigned)from * 17u + offset * 7u + (offset >> 8) * 3u +
                     (offset >> 16));
}
