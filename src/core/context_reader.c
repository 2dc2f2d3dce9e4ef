/* How this works: the driver writes the mark of an event to both outputs before it writes the
 * event. So the event is read first; then each output is told up to that mark; then the event.
 * While no event waits, the outputs are told as they come, up to the next thing that looks like a
 * mark of this execution.
 *
 * A mark may be missing: code can close the outputs, and a driver may lie. It is not waited for.
 * The bytes that were written before an event are in the pipes by then, so one look into the pipes
 * (process_take_streams) shows whether the mark will come.
 *
 * Over a link (is_late) each stream comes in its own time, and an event may be here before the text
 * that was written before it. There the mark is waited for as long as the stream goes on, and
 * LATE_PATIENCE more. */
#include "core/context_reader.h"

#include "base/banned.h"
#include "base/character.h"
#include "base/err.h"

#include <string.h>

#define AHEAD (64u << 10)

void reader_init(struct context_reader *r, struct process *p, const char *id,
                 const uint64_t offset[STREAM_ALL], bool begun)
{
    r->process = process_ref(p);
    snprintf(r->id, sizeof r->id, "%s", id);
    memcpy(r->offset, offset, sizeof r->offset);
    r->begun = begun;
    r->skim = r->lost = r->is_half = r->has_event = r->is_late = false;
    memset(r->has_no_marks, 0, sizeof r->has_no_marks);
    r->is_patient = false;
    r->patience = DEADLINE_NONE;
    r->seq = 0;
    r->ahead = BUF_INIT(EVENT_MAX + AHEAD + 1);
    r->ahead_at = offset[STREAM_EVENTS];
    r->scanned = r->line_end = 0;
}

void reader_done(struct context_reader *r)
{
    buf_done(&r->ahead);
    process_unref(r->process);
    r->process = NULL;
}

/* Goes on where the stream begins now. */
static void skip_forgotten(struct context_reader *r, unsigned stream, uint64_t *at)
{
    struct process_info i;
    process_get(r->process, &i, NULL);
    if (i.first[stream] > *at) {
        *at = i.first[stream];
        r->lost = true;
    }
}

/* As process_read; what was forgotten is skipped. */
static ssize_t read_stream(struct context_reader *r, unsigned stream, uint64_t *at, void *out,
                           size_t size)
{
    struct pd_err e;
    ssize_t n = process_read(r->process, stream, *at, out, size, &e);
    if (n < 0 && e.code == PD_INVALID) {
        skip_forgotten(r, stream, at);
        n = process_read(r->process, stream, *at, out, size, &e);
    }
    return n;
}

/* ---- the journal ---- */

/* Drops the line that was told. */
static void drop_line(struct context_reader *r)
{
    size_t used = r->line_end;
    if (!used)
        return;

    memmove(r->ahead.data, r->ahead.data + used, r->ahead.len - used);
    r->ahead.len -= used;
    r->ahead_at += used;
    r->offset[STREAM_EVENTS] = r->ahead_at;
    r->scanned = r->line_end = 0;
}

/* More bytes of the journal: how many, 0 when there are none, -1 when a line is too long. */
static ssize_t read_ahead(struct context_reader *r)
{
    if (r->ahead.len > EVENT_MAX)
        return -1;

    uint64_t at = r->ahead_at + r->ahead.len;
    uint8_t *room = buf_reserve(&r->ahead, AHEAD);
    if (!room)
        return -1;
    ssize_t n = read_stream(r, STREAM_EVENTS, &at, room, AHEAD);

    if (at != r->ahead_at + r->ahead.len) { /* some was forgotten, up to the middle of a line */
        memmove(r->ahead.data, room, n > 0 ? (size_t)n : 0);
        r->ahead.len = 0;
        r->ahead_at = at;
        r->scanned = 0;
        r->is_half = true;
    }
    if (n > 0)
        r->ahead.len += (size_t)n;
    return n;
}

/* Has a line: 1, 0, -1. */
static int find_line(struct context_reader *r)
{
    for (;;) {
        const uint8_t *end = r->ahead.len > r->scanned ? memchr(r->ahead.data + r->scanned, '\n',
                                                                r->ahead.len - r->scanned)
                                                       : NULL;
        if (end) {
            r->line_end = (size_t)(end - r->ahead.data) + 1;
            return 1;
        }

        r->scanned = r->ahead.len;
        ssize_t n = read_ahead(r);
        if (n <= 0)
            return (int)n;
    }
}

/* Is it one that this reader tells? */
static bool is_wanted(const struct context_reader *r, const struct context_event *v)
{
    if (v->type == EVENT_OTHER || v->type == EVENT_READY || strcmp(v->id, r->id) != 0)
        return false;
    return r->begun != (v->type == EVENT_START);
}

/* The next event of this execution, if there is one now: 1, 0, -1. */
static int find_event(struct context_reader *r, struct pd_err *e)
{
    while (!r->has_event) {
        int line = find_line(r);
        if (line < 0)
            return pd_fail(e, PD_PROTOCOL, "an event is longer than %u bytes", EVENT_MAX);
        if (line == 0)
            return 0;

        struct context_event v = {.type = EVENT_OTHER};
        if (!r->is_half && context_event_parse((char *)r->ahead.data, r->line_end - 1, &v, e) < 0)
            return -1;
        if (r->is_half || !is_wanted(r, &v)) {
            r->is_half = false;
            drop_line(r);
            continue;
        }

        r->event = v;
        r->has_event = true;
        r->is_told[STREAM_OUT] = r->is_told[STREAM_ERR] = false;
        r->patience = deadline_in(LATE_PATIENCE);
    }
    return 1;
}

/* ---- the outputs ---- */

enum told {
    TOLD_TEXT,  /* a piece of it */
    TOLD_MARK,  /* all up to the mark of the event that waits, or up to a later one */
    TOLD_WAITS, /* more is needed */
};

/* The next piece of a stream, up to a mark. `whole`: nothing that belongs here is still to come. */
static enum told tell_stream(struct context_reader *r, unsigned stream, bool whole, size_t *ret_len)
{
    for (;;) {
        uint64_t *at = &r->offset[stream];
        ssize_t n = read_stream(r, stream, at, r->text, sizeof r->text);
        if (n <= 0)
            return TOLD_WAITS;

        size_t text = 0, mark_len = 0;
        uint64_t seq = 0;
        enum mark_found found = mark_find(r->text, (size_t)n, r->id, &text, &mark_len, &seq);

        if (found == MARK_PARTIAL && whole && text == 0 && (size_t)n < sizeof r->text)
            text = (size_t)n; /* it never becomes one */
        if (found == MARK_WHOLE && text == 0) {
            /* One that was told already, or whose event is missing, says nothing. */
            uint64_t awaited = r->has_event ? r->event.seq : 0;
            bool is_next = r->has_event && seq == awaited;
            bool is_old = seq <= r->seq || (r->has_event && seq < awaited);
            if (!is_next && !is_old)
                return r->has_event ? TOLD_MARK : TOLD_WAITS;
            *at += mark_len;
            if (is_next)
                return TOLD_MARK;
            continue;
        }

        if (found == MARK_NONE && !whole)
            text = character_whole(r->text, text);
        if (!text)
            return TOLD_WAITS;
        *at += text;
        *ret_len = text;
        return TOLD_TEXT;
    }
}

/* May the mark of the event that waits still come, though it is in no pipe of this machine? */
static bool may_come(const struct context_reader *r, unsigned stream)
{
    return r->is_late && !r->has_no_marks[stream] && !deadline_passed(r->patience);
}

deadline reader_due(const struct context_reader *r)
{
    return r->is_patient ? r->patience : DEADLINE_NONE;
}

/* What is before the event that waits. ITEM_EVENT: nothing is left. */
static enum reader_item tell_before(struct context_reader *r, bool ended, unsigned *ret_stream,
                                    size_t *ret_len)
{
    bool starts = r->event.type == EVENT_START;

    for (unsigned s = 0; s < STREAM_COUNT; s++) {
        bool whole = ended, looked = false;
        uint64_t from = r->offset[s];
        while (!r->is_told[s] && !r->skim) {
            enum told told = tell_stream(r, s, whole, ret_len);
            if (told != TOLD_WAITS)
                r->patience = deadline_in(LATE_PATIENCE);
            if (told == TOLD_MARK) {
                r->is_told[s] = true;
            } else if (told == TOLD_TEXT && starts) {
                /* It was written between two executions, and belongs to none. */
            } else if (told == TOLD_TEXT) {
                *ret_stream = s;
                return ITEM_TEXT;
            } else if (!looked) {
                looked = true;
                bool taken = process_take_streams(r->process);
                r->is_patient = taken && may_come(r, s);
                whole |= taken && !r->is_patient;
            } else if (whole) {
                r->is_told[s] = true; /* there is no mark */
                r->has_no_marks[s] = true;
                if (starts)
                    r->offset[s] = from;
            } else {
                return ITEM_NONE;
            }
        }
    }
    return ITEM_EVENT;
}

static enum reader_item tell_event(struct context_reader *r)
{
    r->has_event = false;
    r->begun = true;
    r->seq = r->event.seq;
    r->offset[STREAM_EVENTS] = r->ahead_at + r->line_end;
    return ITEM_EVENT;
}

enum reader_item reader_next(struct context_reader *r, bool ended, unsigned *ret_stream,
                             size_t *ret_len, struct pd_err *e)
{
    r->is_patient = false;
    if (!r->has_event)
        drop_line(r); /* the one that was told last */

    int event = find_event(r, e);
    if (event < 0)
        return ITEM_BROKEN;
    if (event) {
        enum reader_item before = tell_before(r, ended, ret_stream, ret_len);
        return before == ITEM_EVENT ? tell_event(r) : before;
    }

    for (unsigned s = 0; s < STREAM_COUNT && r->begun && !r->skim; s++)
        if (tell_stream(r, s, ended, ret_len) == TOLD_TEXT) {
            *ret_stream = s;
            return ITEM_TEXT;
        }
    return ended ? ITEM_OVER : ITEM_NONE;
}

/* ---- the whole journal ---- */

void journal_each(struct process *p,
                  int (*each)(const struct context_event *v, uint64_t at, void *arg), void *arg)
{
    static const uint64_t start[STREAM_ALL];
    struct context_reader *r = malloc(sizeof *r);
    struct context_event v;
    struct pd_err e;
    if (!r)
        return;

    reader_init(r, p, "", start, false);
    while (find_line(r) > 0) {
        if (!r->is_half &&
            (context_event_parse((char *)r->ahead.data, r->line_end - 1, &v, &e) < 0 ||
             each(&v, r->ahead_at, arg)))
            break;
        r->is_half = false;
        drop_line(r);
    }
    reader_done(r);
    free(r);
}
