/* Following is looking, reading until nothing is left, and waiting by a watch: the watch is cleared
 * before the look, so that what comes after it ends the wait. The thread that has started the
 * command listens to the sandbox first, and needs no watch if the command is short (listen.c). */
#include "core/follow.h"

#include "base/banned.h"
#include "base/character.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

int follow_begin(struct follow *f, struct process *p, const uint64_t offset[STREAM_COUNT],
                 unsigned flags, struct pd_err *e)
{
    struct follow new = {.process = p, .flags = flags};
    if (offset)
        memcpy(new.offset, offset, sizeof new.offset); /* which may be f's own */
    *f = new;
    f->listens = true;
    return flags & FOLLOW_LISTENS && process_is_direct(p) ? 0 : follow_watch(f, e);
}

int follow_watch(struct follow *f, struct pd_err *e)
{
    struct process *p = f->process;
    if (!f->listens)
        return 0;
    if (process_watch(p, &f->watch, e) < 0)
        return -1;

    f->listens = false;
    for (unsigned s = 0; s < STREAM_COUNT && f->flags & FOLLOW_HOLDS; s++)
        process_follow(p, &f->watch, s, f->offset[s]);

    /* Not before: the pump may forget what nobody holds. */
    if (f->flags & FOLLOW_LISTENS)
        process_hand_over(p);
    return 0;
}

void follow_end(struct follow *f)
{
    if (!f->listens)
        process_unwatch(f->process, &f->watch);
}

void follow_look(struct follow *f)
{
    if (!f->listens)
        watch_clear(&f->watch);
    process_get(f->process, &f->info, &f->why);
    if (!f->info.running && !f->ended) {
        f->ended = true;
        memcpy(f->end, f->info.size, sizeof f->end);
    }
}

/* Goes on where the stream begins now. */
static void skip_forgotten(struct follow *f, unsigned stream)
{
    struct process_info i;
    process_get(f->process, &i, NULL);
    if (i.first[stream] <= f->offset[stream])
        return;

    f->skipped += i.first[stream] - f->offset[stream];
    f->offset[stream] = i.first[stream];
}

ssize_t follow_read(struct follow *f, unsigned stream, void *out, size_t size, struct pd_err *e)
{
    ssize_t n;
    f->skipped = 0;

    for (;;) {
        uint64_t at = f->offset[stream];
        uint64_t left = f->end[stream] > at ? f->end[stream] - at : 0;
        if (f->ended && left < size)
            size = (size_t)left;
        if (!size)
            return 0;

        n = process_read(f->process, stream, at, out, size, e);
        if (n >= 0 || e->code != PD_INVALID)
            break;
        skip_forgotten(f, stream);
    }
    if (n <= 0)
        return n;

    /* A tail that never becomes a character is told as it is. */
    bool last = f->ended && f->offset[stream] + (uint64_t)n >= f->end[stream];
    if (f->flags & FOLLOW_TEXT && !last)
        n = (ssize_t)character_whole(out, (size_t)n);
    f->offset[stream] += (uint64_t)n;

    if (n && f->flags & FOLLOW_HOLDS && !f->listens)
        process_follow(f->process, &f->watch, stream, f->offset[stream]);
    return n;
}

int follow_wait(struct follow *f, int other_fd, short other_events, deadline d, struct pd_err *e)
{
    if (f->listens) {
        enum process_heard heard = process_listen(f->process, other_fd, other_events, true, d);
        if (heard == HEARD_NOTHING)
            return follow_watch(f, e);
        return heard == HEARD_OTHER;
    }

    struct pollfd fds[2] = {{.fd = f->watch.event, .events = POLLIN},
                            {.fd = other_fd, .events = other_events}};
    int n = poll(fds, other_fd >= 0 ? 2 : 1, deadline_poll_ms(d));
    if (n < 0 && errno != EINTR)
        return pd_fail_sys(e, "wait for the process");
    return n > 0 && other_fd >= 0 && fds[1].revents;
}

int follow_await_end(struct follow *f, int other_fd, deadline d, struct pd_err *e)
{
    if (f->listens) {
        if (process_listen(f->process, other_fd, POLLRDHUP, false, d) == HEARD_END)
            return 0;
        if (follow_watch(f, e) < 0)
            return -1;
    }
    return process_wait(f->process, &f->watch, other_fd, d, e);
}

size_t follow_tail(struct follow *f, unsigned stream, void *out, size_t size)
{
    struct process_info i;
    struct pd_err e;
    process_get(f->process, &i, NULL);

    uint64_t from = i.size[stream] > size ? i.size[stream] - size : 0;
    ssize_t n = process_read(f->process, stream, from, out, size, &e);
    if (n <= 0)
        return 0;

    size_t rest = from ? character_rest(out, (size_t)n) : 0;
    memmove(out, (const uint8_t *)out + rest, (size_t)n - rest);
    return (size_t)n - rest;
}

uint64_t process_next_character(struct process *p, unsigned stream, uint64_t at, uint64_t size)
{
    uint8_t next[3];
    struct pd_err e;
    ssize_t n = at < size ? process_read(p, stream, at, next, sizeof next, &e) : 0;
    return n > 0 ? at + character_rest(next, (size_t)n) : at;
}
