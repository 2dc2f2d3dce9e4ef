/* A peer of a link that says anything. The first byte chooses the end and how much it is let to do
 * of its own accord; the rest are frames: each byte pair of the input chooses a type and how long
 * it is, so that the search does not have to guess heads. What comes last is taken as raw bytes.
 *
 * Properties: a refusal is PD_PROTOCOL, PD_CAPACITY or PD_LOST; memory stays within the budget and
 * the least of each channel; what the end says back can be read by the other role, head by head. */
#include "base/err.h"
#include "link/greeting.h"
#include "link/link_state.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BUDGET (256u << 10)

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check(const struct link *l)
{
    size_t least = (size_t)l->count * RING_LEAST;
    require(l->budget.used <= BUDGET + least);
    require(l->promised.used <= BUDGET + least);
    require(l->inbox.count <= LINK_AHEAD && l->inbox.bytes <= LINK_AHEAD_BYTES);
    require(l->count <= LINK_CHANNELS_MAX);
}

/* Everything that is said is made of good frames. */
static void check_words(struct link *l)
{
    size_t len;
    const uint8_t *out = link_give(l, 1, &len);
    for (size_t at = 0; out && at < len;) {
        struct link_head h;
        require(len - at >= LINK_HEAD && link_head_read(out + at, &h, NULL) == 0);
        at += LINK_HEAD + h.len;
        require(at <= len);
    }
    if (out)
        link_sent(l, len, 1);
}

static void use(struct link *l, uint8_t how)
{
    struct link_msg m;
    size_t len;

    for (uint32_t id = 1; id <= 4; id++) {
        if (how & 1 && link_read(l, id, &len))
            link_taken(l, id, len);
        if (how & 2)
            link_write(l, id, "some bytes", 10);
        if (how & 4 && id % 2)
            link_end(l, id);
        if (how & 8 && id % 2 == 0)
            link_stop(l, id);
    }

    while (how & 16 && link_next(l, &m))
        link_handled(l);
    check_words(l);
    check(l);
}

static void greet(const uint8_t *data, size_t size)
{
    static const uint8_t nonce[LINK_NONCE] = {1};
    struct link_identity who = {.role = LINK_BOX};
    struct greeting g;
    struct pd_err e = {.code = PD_INTERNAL};
    size_t used = 0;

    greeting_begin(&g, &who, nonce);
    int r = greeting_take(&g, data, size, &used, &e);
    require(r <= 0 && used <= size); /* nobody guesses the key */
    require(r == 0 || e.code == PD_PROTOCOL || e.code == PD_DENIED || e.code == PD_UNSUPPORTED ||
            e.code == PD_CONFLICT || e.code == PD_LOST);
    greeting_end(&g);
}

static struct link *begin(enum link_role role)
{
    struct link *l = link_new(role, BUDGET);
    require(l != NULL);
    for (unsigned i = 0; role == LINK_KEEPER && i < 3; i++) {
        struct link_msg m = {.body = (const uint8_t *)"x", .len = 1, .ref_count = 1};
        m.refs[0] = (struct link_ref){.channel = link_open(l, 1 + i), .ways = (uint8_t)(1 + i)};
        require(link_send(l, &m) == 0);
    }
    link_up(l, 1);
    return l;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > 60000)
        return 0;
    greet(data, size);

    struct link *l = begin(data[0] & 1 ? LINK_KEEPER : LINK_BOX);
    uint8_t how = data[0] >> 1;
    struct pd_err e;
    int r = 0;
    data++;
    size--;

    /* type, payload in units of 4, channel, number, payload */
    while (r == 0 && size >= 4 && data[0]) {
        auto_buf b = BUF_INIT(LINK_HEAD + 1024);
        struct link_head h = {.type = data[0] & 15,
                              .flags = data[0] >> 7,
                              .len = data[1] * 4u,
                              .channel = data[2],
                              .number = data[3]};
        size_t have = size - 4 < h.len ? size - 4 : h.len;
        h.len = (uint32_t)have;
        link_head_put(&b, &h);
        buf_put(&b, data + 4, have);
        data += 4 + have;
        size -= 4 + have;
        r = link_take(l, b.data, b.len, 1, &e);
        use(l, how);
    }
    if (r == 0 && size)
        r = link_take(l, data, size, 1, &e);
    require(r == 0 || e.code == PD_PROTOCOL || e.code == PD_CAPACITY || e.code == PD_LOST);

    link_down(l);
    link_up(l, 2);
    use(l, how);
    link_free(l);
    return 0;
}
