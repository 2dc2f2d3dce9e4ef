/* How this works: the pump owns the near ends of a process's streams and splices them into spools,
 * on its own thread. Readers read the spools, from any thread.
 *
 * A command that is direct (listen.c) has no stream in the pump yet: the thread of its request, or
 * its end, takes what is in the pipes. Everything that moves bytes holds the process's lock, so it
 * does not matter which thread does: a callback of the pump that comes second finds nothing.
 *
 * A stream leaves the pump for a while when the disk is full (a timer tries again; the bytes are
 * still in the pipe, and whoever writes waits) and when it is held back: by back-pressure, or by a
 * watch that must not miss a byte. */
#include "core/process_state.h"

#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

/* A stream gets this many fills before others have their turn. */
#define FILLS_PER_TURN 8
#define FILLS_AT_END   64
#define DISK_RETRY     (NS_PER_S)

/* ---- on the pump's thread ---- */

void process_wake(struct process *p)
{
    uint64_t one = 1;
    for (struct watch *w = p->watches; w; w = w->next)
        (void)!write(w->event, &one, sizeof one);
}

static ssize_t fill(struct stream *s)
{
    struct process *p = s->process;
    return p->pty ? spool_fill_terminal(&s->spool, s->source.fd, p->via)
                  : spool_fill(&s->spool, s->source.fd);
}

/* One that is held back overshoots by what a full pipe had, and at its end by what is left in it:
 * that must not make the spool forget what nobody has read. */
#define SPOOL_SLACK (2u << 20)

uint64_t process_spool_cap(const struct process *p)
{
    return p->spool_max + (p->back_pressure ? SPOOL_SLACK : 0);
}

struct spool process_spool(const struct process *p, unsigned stream)
{
    struct spool s = {.dir = p->session->all->spool_dir,
                      .fd = -1,
                      .max = process_spool_cap(p),
                      .in_memory = p->direct};
    char hex[33];
    wire_id_text(p->id, hex);
    snprintf(s.name, sizeof s.name, "%s.%s.%c", p->session->info.id, hex, "oev"[stream]);
    return s;
}

static bool is_held_back(const struct stream *s)
{
    const struct process *p = s->process;
    unsigned stream = (unsigned)(s - p->streams);
    uint64_t max = p->spool_max;
    if ((p->back_pressure || p->watches) && max > 2 * KEPT_LEAST && kept_is_too_much(s))
        max = 2 * KEPT_LEAST;

    if (p->back_pressure && s->spool.size - s->consumed >= max)
        return true;
    for (const struct watch *w = p->watches; w; w = w->next)
        if (w->follows && s->spool.size - w->read[stream] >= max / 2)
            return true;
    return false;
}

/* Moves what there is. With the process's lock held. Returns false when the stream is over. `last`:
 * the command has ended, and what it left in the pipe is taken even if nobody has read what was
 * before. */
static bool stream_turn(struct stream *s, int turns, bool last)
{
    struct process *p = s->process;
    struct pump *pump = p->session->all->c.pump;

    for (int i = 0; i < turns; i++) {
        if (!last && is_held_back(s)) {
            s->stopped = true;
            pump_drop(pump, &s->source);
            return true;
        }

        ssize_t n = fill(s);
        s->full = n < 0 && n != -EAGAIN && n != -EINTR;
        if (n > 0) {
            kept_count(s);
            if (kept_is_too_much(s))
                stream_shrink(s, KEPT_LEAST);
            continue;
        }
        if (n == -EAGAIN || n == -EINTR)
            return true;

        if (s->full) {
            /* The bytes are still in the pipe, and whoever writes waits. Again in a moment. */
            s->stopped = true;
            pump_drop(pump, &s->source);
            pump_set_timer(pump, &s->retry, deadline_in(DISK_RETRY));
            return true;
        }

        pump_drop(pump, &s->source);
        if (p->pty && p->input == s->source.fd)
            p->input = -1;
        fd_done(&s->source.fd);

        /* The last of a command that has ended; otherwise its end sees to it. */
        if (process_has_end(p) && p->stashed)
            recorder_add(p, TASK_DROP, 0);
        return false;
    }
    return true;
}

bool process_waits_for_space(const struct process *p)
{
    return p->streams[STREAM_OUT].full || p->streams[STREAM_ERR].full ||
           p->streams[STREAM_EVENTS].full;
}

void process_drain(struct process *p)
{
    for (unsigned i = 0; i < process_stream_count(p); i++)
        if (p->streams[i].source.fd >= 0)
            (void)stream_turn(&p->streams[i], FILLS_AT_END, true);
}

static void stream_ready(struct pump_source *source, uint32_t events)
{
    (void)events;
    struct stream *s = (struct stream *)((char *)source - offsetof(struct stream, source));
    struct process *p = s->process;

    lock_take(&p->lock);
    uint64_t before = s->spool.size;
    if (s->source.fd >= 0)
        (void)stream_turn(s, FILLS_PER_TURN, false);
    if (s->spool.size != before)
        process_wake(p); /* a stream's end is no news: that of the command is */
    process_finish_late(p);
    lock_release(&p->lock);
}

static void stream_resume(struct stream *s)
{
    struct pd_err e;
    if (!s->stopped || s->source.fd < 0 || s->process->closed)
        return;

    s->stopped = false;
    if (pump_add(s->process->session->all->c.pump, &s->source, EPOLLIN, &e) < 0)
        s->stopped = true;
}

/* Somebody has read, or reads no more. With the process's lock held. */
void stream_release(struct stream *s)
{
    if (s->stopped && !s->retry.set && !is_held_back(s))
        stream_resume(s);
}

static void stream_retry(struct pump_timer *t)
{
    struct stream *s = (struct stream *)((char *)t - offsetof(struct stream, retry));
    struct process *p = s->process;
    struct pump *pump = p->session->all->c.pump;
    struct pd_err e;

    lock_take(&p->lock);
    if (s->stopped && s->source.fd >= 0) {
        s->stopped = false;
        /* Not by an event: a terminal's bytes may be half-way, where the pump does not look. */
        if (stream_turn(s, FILLS_AT_END, process_has_end(p)) && !s->stopped &&
            pump_add(pump, &s->source, EPOLLIN, &e) < 0) {
            s->stopped = true;
            pump_set_timer(pump, &s->retry, deadline_in(DISK_RETRY));
        }

        process_wake(p);
        process_finish_late(p);
    }
    lock_release(&p->lock);
}

void process_init_streams(struct process *p)
{
    for (unsigned i = 0; i < STREAM_ALL; i++) {
        struct stream *s = &p->streams[i];
        s->source.fd = -1;
        s->source.ready = stream_ready;
        s->spool.fd = -1;
        s->process = p;
        s->retry.fire = stream_retry;
    }
}

int process_begin_streams(struct process *p, struct pd_err *e)
{
    for (unsigned i = 0; i < process_stream_count(p) && !p->direct; i++) {
        struct stream *s = &p->streams[i];
        if (s->source.fd >= 0 && pump_add(p->session->all->c.pump, &s->source, EPOLLIN, e) < 0)
            return -1;
    }
    return 0;
}

void process_pump_streams(struct process *p)
{
    struct pump *pump = p->session->all->c.pump;
    struct pd_err e;

    for (unsigned i = 0; i < process_stream_count(p); i++) {
        struct stream *s = &p->streams[i];
        if (s->source.fd < 0 || p->closed)
            continue;

        (void)spool_settle(&s->spool); /* tried again with the next bytes */
        if (s->stopped || s->source.added || pump_add(pump, &s->source, EPOLLIN, &e) == 0)
            continue;
        s->stopped = true;
        pump_set_timer(pump, &s->retry, deadline_in(DISK_RETRY));
    }
}

bool process_take_output(struct process *p)
{
    bool more = false;

    lock_take(&p->lock);
    for (unsigned i = 0; i < process_stream_count(p) && p->direct; i++) {
        struct stream *s = &p->streams[i];
        uint64_t before = s->spool.size;
        if (s->source.fd >= 0 && !s->stopped)
            (void)stream_turn(s, FILLS_PER_TURN, false);
        more |= s->spool.size != before;
    }
    if (more)
        process_wake(p);
    lock_release(&p->lock);
    return more;
}

bool process_take_streams(struct process *p)
{
    bool more = false, whole = true;

    lock_take(&p->lock);
    for (unsigned i = 0; i < process_stream_count(p); i++) {
        struct stream *s = &p->streams[i];
        uint64_t before = s->spool.size;
        if (s->source.fd >= 0 && !s->stopped)
            (void)stream_turn(s, FILLS_AT_END, false);
        whole &= s->source.fd < 0 || !s->stopped;
        more |= s->spool.size != before;
    }
    if (more)
        process_wake(p);
    process_finish_late(p);
    lock_release(&p->lock);
    return whole;
}

int process_settle_output(struct process *p, struct pd_err *e)
{
    for (unsigned i = 0; i < process_stream_count(p); i++) {
        int r = spool_settle(&p->streams[i].spool);
        if (r < 0) {
            errno = -r;
            return pd_fail_sys(e, "keep the output of a command");
        }
    }
    return 0;
}

void stream_shrink(struct stream *s, uint64_t window)
{
    const struct process *p = s->process;
    unsigned stream = (unsigned)(s - p->streams);
    uint64_t from = s->spool.size > window ? s->spool.size - window : 0;

    if (p->back_pressure && from > s->consumed)
        from = s->consumed;
    for (const struct watch *w = p->watches; w; w = w->next)
        if (w->follows && from > w->read[stream])
            from = w->read[stream];

    spool_forget(&s->spool, from);
    kept_count(s);
}

void process_discard_output(struct process *p)
{
    lock_take(&p->lock);
    for (unsigned i = 0; i < process_stream_count(p); i++)
        spool_delete(&p->streams[i].spool);
    kept_drop(p);
    lock_release(&p->lock);
}

void process_leave_pump(struct process *p)
{
    struct pump *pump = p->session->all->c.pump;

    /* First: a reader who has made room would bring a stream back. */
    lock_take(&p->lock);
    p->closed = true;
    lock_release(&p->lock);

    pump_cancel_timer(pump, &p->timeout);
    for (unsigned i = 0; i < process_stream_count(p); i++) {
        pump_cancel_timer(pump, &p->streams[i].retry);
        pump_remove(pump, &p->streams[i].source);
    }
}

void process_close_streams(struct process *p)
{
    process_leave_pump(p);

    lock_take(&p->lock);
    for (unsigned i = 0; i < process_stream_count(p); i++) {
        int *fd = &p->streams[i].source.fd;
        if (p->pty && *fd >= 0 && p->input == *fd)
            p->input = -1; /* the same descriptor */
        fd_done(fd);
    }

    fd_done(&p->input);
    fd_done(&p->via[0]);
    fd_done(&p->via[1]);
    fd_done(&p->state_pipe);
    fd_done(&p->line_in);
    fd_done(&p->line_back);
    lock_release(&p->lock);
}

/* ---- reading ---- */

ssize_t process_read(struct process *p, unsigned stream, uint64_t offset, void *out, size_t size,
                     struct pd_err *e)
{
    struct stream *s = &p->streams[stream];

    lock_take(&p->lock);
    struct spool view = s->spool;
    if (view.head) {
        ssize_t n = spool_read(&view, offset, out, size, e);
        lock_release(&p->lock);
        if (n >= 0)
            process_consumed(p, stream, offset + (uint64_t)n);
        return n;
    }

    /* The file only grows, and its descriptor is not closed while somebody reads. */
    p->readers++;
    lock_release(&p->lock);

    ssize_t n = spool_read(&view, offset, out, size, e);
    lock_take(&p->lock);
    p->readers--;
    view = s->spool;
    lock_release(&p->lock);

    /* Bytes that were forgotten meanwhile were read as zeros. */
    if (n > 0 && offset < view.first)
        return spool_read(&view, offset, out, size, e); /* says so, and reads nothing */

    /* Also without news: a client that asks from here on has read all that was before, maybe from
     * another daemon. */
    if (n >= 0)
        process_consumed(p, stream, offset + (uint64_t)n);
    return n;
}

void process_consumed(struct process *p, unsigned stream, uint64_t offset)
{
    struct stream *s = &p->streams[stream];
    if (!p->back_pressure)
        return;

    lock_take(&p->lock);
    if (offset > s->spool.size)
        offset = s->spool.size;
    if (offset > s->consumed)
        s->consumed = offset;
    stream_release(s);
    lock_release(&p->lock);
}

void process_follow(struct process *p, struct watch *w, unsigned stream, uint64_t offset)
{
    lock_take(&p->lock);
    if (!w->follows)
        for (unsigned i = 0; i < process_stream_count(p); i++)
            w->read[i] = p->streams[i].spool.size;

    w->follows = true;
    w->read[stream] =
        offset < p->streams[stream].spool.size ? offset : p->streams[stream].spool.size;
    stream_release(&p->streams[stream]);
    lock_release(&p->lock);
}
