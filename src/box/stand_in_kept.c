/* What a stand-in keeps, so that one that is killed is followed by another: a record of all that it
 * knows, as it lies in memory, because the next one is the same program with the same descriptors.
 * Bytes of streams are not in it (keep.h).
 *
 * What it said to the daemon since its last record it says again: the daemon knows commands by
 * their ids. What it says to the box is in a record before. */
#include "box/stand_in_state.h"

#include "base/banned.h"
#include "base/buf.h"
#include "box/keep.h"

#include <stdlib.h>
#include <string.h>

#define RECORD_CALM (64u << 10) /* more memory than this is given back */

struct kept {
    uint64_t epoch;
    bool syncing, was_up, marked;
    struct wire_id sync_id;
    struct frame_mark mark;
    unsigned commands, streams;
    size_t facts;
};

struct frame_mark frame_mark_of(const struct frame *f)
{
    struct frame_mark m = {.head = f->head, .sum = UINT64_C(14695981039346656037)};
    for (size_t i = 0; i < f->payload.len; i++)
        m.sum = (m.sum ^ f->payload.data[i]) * UINT64_C(1099511628211);
    return m;
}

bool frame_is_marked(const struct frame_mark *m, const struct frame *f)
{
    struct frame_mark own = frame_mark_of(f);
    return own.sum == m->sum && memcmp(&own.head, &m->head, sizeof own.head) == 0;
}

int stand_in_record(struct stand_in *s)
{
    struct buf *b = &s->record;
    struct kept k = {.epoch = s->epoch,
                     .syncing = s->syncing,
                     .was_up = s->was_up,
                     .marked = s->marked,
                     .sync_id = s->sync_id,
                     .mark = s->mark,
                     .commands = s->commands.count,
                     .streams = s->streams.count,
                     .facts = s->facts.len};
    if (!s->config->keep)
        return 0;

    buf_clear(b);
    buf_put(b, &k, sizeof k);
    buf_put(b, s->facts.data, s->facts.len);
    buf_put(b, s->commands.all, s->commands.count * sizeof *s->commands.all);
    buf_put(b, s->streams.all, s->streams.count * sizeof *s->streams.all);
    link_keep(s->link, b);
    int r = keep_record(s->config->keep, b);
    if (r == 0)
        streams_recorded(&s->streams, s->link);
    if (b->cap > RECORD_CALM)
        buf_done(b);
    return r;
}

static bool get(const uint8_t **data, size_t *len, void *ret, size_t want)
{
    if (*len < want)
        return false;
    if (want)
        memcpy(ret, *data, want);
    *data += want;
    *len -= want;
    return true;
}

/* Descriptors of streams that the dead one had. */
static int begin_again(const struct stand_in *s, const struct stream *all, unsigned count)
{
    int *fds = malloc((count + 1) * sizeof *fds);
    unsigned n = 0;
    if (!fds)
        return -1;
    for (unsigned i = 0; i < count; i++)
        if (all[i].fd >= 0)
            fds[n++] = all[i].fd;
    keep_begin_again(s->config->keep, s->config->lowest, fds, n);
    free(fds);
    return 0;
}

static int recall_streams(struct stand_in *s, const struct stream *all, unsigned count)
{
    if (begin_again(s, all, count) < 0)
        return -1;
    for (unsigned i = 0; i < count; i++)
        if (streams_recall(&s->streams, s->link, &all[i]) < 0)
            return -1;
    return 0;
}

static int recall_commands(struct stand_in *s, unsigned count, const uint8_t **data, size_t *len)
{
    for (unsigned i = 0; i < count; i++) {
        struct command one, *c;
        if (!get(data, len, &one, sizeof one) || !(c = commands_add(&s->commands, one.id)))
            return -1;
        *c = one;
    }
    return 0;
}

int stand_in_recall(struct stand_in *s)
{
    struct kept k;
    size_t len, used;
    if (!s->config->keep)
        return 0;
    if (!keep_count(s->config->keep))
        return begin_again(s, NULL, 0);

    const uint8_t *data = keep_recorded(s->config->keep, &len);
    if (!get(&data, &len, &k, sizeof k) || len < k.facts || buf_put(&s->facts, data, k.facts) < 0)
        return -1;
    data += k.facts;
    len -= k.facts;
    s->epoch = k.epoch;
    s->syncing = k.syncing;
    s->was_up = k.was_up;
    s->marked = k.marked;
    s->sync_id = k.sync_id;
    s->mark = k.mark;
    if (recall_commands(s, k.commands, &data, &len) < 0)
        return -1;

    struct stream *all = malloc((k.streams + 1) * sizeof *all);
    int r = all && get(&data, &len, all, k.streams * sizeof *all) &&
                    link_recall(s->link, data, len, &used) == 0
                ? recall_streams(s, all, k.streams)
                : -1;
    free(all);
    return r;
}
