/* The request's thread listens itself: the first moments of a command, and how it is handed over.
 *
 * Most commands are over in less time than it takes to wake three threads for them. So a command
 * whose request waits for it (process_request.listens) is `direct` at first: its streams are not in
 * the pump, it has no row, and short output of it stays in memory. The thread that has started it
 * hears the box in the pump's place (box_hear), together with its client, and for LISTEN_FOR at
 * most.
 *
 *   the end comes     process_on_exit runs on this thread as it would on the pump's: it drains the
 *                     pipes and steps the state. Why a command failed is asked for here, too. The
 *                     recorder hears of it when the answer has gone out (process_let_go).
 *   it lives longer   process_hand_over: its output goes to files, its streams to the pump, and the
 *                     recorder is to write its row. From then on it is like any other command.
 *
 * One hears a box at a time: where the pump is just reading, or another request listens, the
 * command is handed over at once. A frame of another command ends the listening as well.
 *
 * `direct` is under the process's lock and becomes false once. Whoever needs what a direct command
 * lacks hands it over first: process_store, before the row says that there is output. Nothing
 * depends on who was faster: on_exit, a burial and a hand-over each look at the state with the lock
 * held, and the pump's callbacks look at the descriptor once they have it.
 *
 * kill -9 while a command is direct loses what it always did: without a row the next daemon knows
 * no such command, kills it, and deletes its files. */
#include "core/process_state.h"

#include "core/session_state.h"

#include "base/banned.h"
#include "base/err.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>

/* Less than STORE_AFTER: a command that is handed over has no row yet, and may need none. */
#define LISTEN_FOR (4 * NS_PER_MS)

void process_make_direct(struct process *p)
{
    p->direct = true;
    p->listen_until = deadline_in(LISTEN_FOR);
}

bool process_end_direct(struct process *p)
{
    bool was = p->direct;
    p->direct = false;
    if (was)
        process_pump_streams(p);
    return was;
}

bool process_is_direct(struct process *p)
{
    lock_take(&p->lock);
    bool direct = p->direct;
    lock_release(&p->lock);
    return direct;
}

void process_hand_over(struct process *p)
{
    lock_take(&p->lock);
    bool was = process_end_direct(p);
    bool ended = process_has_end(p);
    lock_release(&p->lock);

    if (!was || ended)
        return;
    uint64_t age = clock_now() - p->started_ns;
    recorder_add(p, TASK_STORE, age < STORE_AFTER ? STORE_AFTER - age : 0);
}

/* The box, which is this thread's to hear from now on; or NULL. */
static struct box *hear_begin(struct process *p)
{
    struct session *s = p->session;
    rw_read(&s->box_use);
    struct box *b = s->box && box_hear_begin(s->box) ? s->box : NULL;
    rw_release(&s->box_use);
    return b;
}

/* Marks that this thread listens, so that process_on_exit leaves the rest of the end to it. False
 * when there is nothing to listen for. */
static bool set_listening(struct process *p, bool on)
{
    lock_take(&p->lock);
    bool is = on && p->direct && p->state == PROCESS_RUNNING;
    p->listening = is;
    lock_release(&p->lock);
    return is;
}

/* Descriptors to wait for beside the box: the client, and with `output` the pipes. */
static unsigned others(struct process *p, const struct pollfd *other, bool output,
                       struct pollfd *ret)
{
    unsigned n = 0;
    if (other->fd >= 0)
        ret[n++] = *other;

    lock_take(&p->lock);
    for (unsigned i = 0; i < STREAM_COUNT && output; i++)
        if (p->streams[i].source.fd >= 0 && !p->streams[i].stopped)
            ret[n++] = (struct pollfd){.fd = p->streams[i].source.fd, .events = POLLIN};
    lock_release(&p->lock);
    return n;
}

/* Until something has come that the caller wants to know, or the time is over. */
static enum process_heard listen(struct process *p, struct box *b, const struct pollfd *other,
                                 bool output, deadline until)
{
    struct pollfd more[HEAR_MORE];

    for (;;) {
        unsigned count = others(p, other, output, more);
        enum box_heard heard = box_hear(b, p->id, more, count, until);
        if (heard == BOX_SILENT || heard == BOX_BEYOND)
            return HEARD_NOTHING;

        if (process_state(p) != PROCESS_RUNNING)
            return HEARD_END;
        if (heard == BOX_TOLD && output)
            return HEARD_NEWS;
        if (heard == BOX_OTHER && other->fd >= 0 && more[0].revents)
            return HEARD_OTHER;
        if (heard == BOX_OTHER && process_take_output(p))
            return HEARD_NEWS;
    }
}

/* Of an end that this thread has heard: why the command failed, which has to be asked for. This
 * thread may wait for that; the pump would leave it to the recorder. */
static void conclude(struct process *p)
{
    lock_take(&p->lock);
    bool mine = p->end_owed && p->state == PROCESS_EXITED;
    lock_release(&p->lock);
    if (mine)
        process_conclude(p);
}

enum process_heard process_listen(struct process *p, int other_fd, short other_events, bool output,
                                  deadline d)
{
    const struct pollfd other = {.fd = other_fd, .events = other_events};
    deadline until = d < p->listen_until ? d : p->listen_until;
    enum process_heard heard = HEARD_NOTHING;

    bool may = process_is_direct(p) && !deadline_passed(until);
    struct box *b = may ? hear_begin(p) : NULL;

    if (b) {
        if (set_listening(p, true))
            heard = listen(p, b, &other, output, until);
        (void)set_listening(p, false);
        box_hear_end(b);
    }

    conclude(p);
    if (!process_state_is_live(process_state(p)))
        return HEARD_END;
    return heard == HEARD_END ? HEARD_NOTHING : heard;
}

void process_let_go(struct process *p)
{
    process_hand_over(p);

    lock_take(&p->lock);
    bool owed = p->end_owed;
    p->end_owed = false;
    lock_release(&p->lock);
    if (owed)
        recorder_add(p, TASK_END, SETTLE_AFTER);
}
