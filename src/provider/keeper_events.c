/* How this works: the keeper's socket and every jail's control socket are sources of the pump. All
 * of this runs on the pump's thread and waits for nobody: it sends nothing, connects to nobody, and
 * takes no lock that is held across either. What needs a keeper's answer or room in its socket is
 * left to the tender (keeper_link.c).
 *
 * But for the first moments of a command the request's thread listens to the jail itself (hear).
 * It has box.hearing meanwhile, and the pump does not wait for that socket. It takes a frame only
 * if the head says that it is of its own command: everything else stays in the socket, and the
 * listening is over, so that the pump takes it.
 *
 * The keeper sends the answer to a request, whose thread is woken, or news of a jail that died. A
 * jail sends what became of its commands, and that is hostile until checked: it may name only
 * commands of that jail, because the socket says which jail it is, and a frame that breaks the
 * format ends the jail. */
#include "provider/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* The keeper is trusted: it has its turn until nothing is left, within reason. */
#define FRAMES_OF_KEEPER 64
/* A jail that talks without end has a short turn, and then all others have theirs. */
#define FRAMES_OF_JAIL 4

struct keeper_box **keeper_box_place(struct keeper_provider *p, struct wire_id id)
{
    uint32_t v;
    memcpy(&v, id.bytes, sizeof v);

    struct keeper_box **at = &p->boxes[v % BOX_BUCKETS];
    while (*at && !wire_id_equal((*at)->jail.id, id))
        at = &(*at)->next;
    return at;
}

void keeper_box_add(struct keeper_box *b)
{
    struct keeper_box **at = keeper_box_place(b->provider, b->jail.id);
    b->next = *at;
    *at = b;
}

/* ---- waiting ---- */

void waiter_begin(struct keeper_provider *p, struct waiter *w, struct wire_id id,
                  struct keeper_box *box)
{
    *w = (struct waiter){.id = id, .box = box, .frame = FRAME_INIT};
    cond_init(&w->cond);

    lock_take(&p->lock);
    w->next = p->waiters;
    p->waiters = w;
    lock_release(&p->lock);
}

static void forget_waiter(struct keeper_provider *p, struct waiter *w)
{
    for (struct waiter **at = &p->waiters; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
}

void waiter_cancel(struct keeper_provider *p, struct waiter *w)
{
    lock_take(&p->lock);
    forget_waiter(p, w);
    lock_release(&p->lock);

    frame_done(&w->frame);
    pthread_cond_destroy(&w->cond);
}

/* On the thread that waits, because an owner may take its time. The provider's lock is held, but
 * not while the owner is told. */
static void tell_progress(struct keeper_provider *p, struct waiter *w)
{
    while (w->has_progress && w->box && p->base.events->progress) {
        struct msg_progress now = w->progress;
        w->has_progress = false;
        lock_release(&p->lock);
        p->base.events->progress(w->box->owner, &now);
        lock_take(&p->lock);
    }
}

int waiter_end(struct keeper_provider *p, struct waiter *w, deadline d, struct pd_err *e)
{
    lock_take(&p->lock);
    do
        tell_progress(p, w);
    while (!w->done && lock_wait_answer(&w->cond, &p->lock, d));
    tell_progress(p, w);

    int done = w->done;
    forget_waiter(p, w);
    lock_release(&p->lock);
    pthread_cond_destroy(&w->cond);

    if (done == 1)
        return 0;
    frame_done(&w->frame);
    return done ? pd_fail(e, PD_LOST, "the keeper is gone")
                : pd_fail(e, PD_TIMEOUT, "no answer before the deadline");
}

/* Hands the frame to the thread that waits for it. The caller's frame is empty then. */
static int wake_waiter(struct keeper_provider *p, struct frame *f)
{
    int found = 0;

    lock_take(&p->lock);
    for (struct waiter *w = p->waiters; w; w = w->next)
        if (!w->done && wire_id_equal(w->id, f->head.id)) {
            w->frame = *f;
            *f = FRAME_INIT;
            w->done = 1;
            /* Here, because the next frame may be the news of its end. */
            if (w->box && w->frame.head.type == WIRE_CREATED)
                keeper_box_add(w->box);
            pthread_cond_signal(&w->cond);
            found = 1;
            break;
        }
    lock_release(&p->lock);
    return found;
}

/* The latest news are kept for the thread that waits; older ones it has not come to are not missed.
 */
static void note_progress(struct keeper_provider *p, const struct frame *f)
{
    struct msg_progress m;
    if (msg_progress_decode(&f->payload, &m, NULL) < 0)
        return;

    lock_take(&p->lock);
    for (struct waiter *w = p->waiters; w; w = w->next)
        if (!w->done && wire_id_equal(w->id, f->head.id)) {
            w->progress = m;
            w->has_progress = true;
            pthread_cond_signal(&w->cond);
        }
    lock_release(&p->lock);
}

/* ---- the keeper ---- */

static void keeper_box_lost(struct keeper_box *b, const struct pd_err *why)
{
    pump_remove(b->provider->pump, &b->control);
    b->provider->base.events->lost(b->owner, why);
}

/* Marks it, so that the loss is told once; the box itself is freed by destroy, or by its maker, to
 * whom the mark says enough. Is it news for an owner? With the provider's lock held. */
static bool mark_lost(struct keeper_box *b)
{
    bool news = b->made && !b->lost;
    b->lost = 1;
    return news;
}

static struct keeper_box *take_lost(struct keeper_provider *p, struct wire_id id)
{
    lock_take(&p->lock);
    struct keeper_box *b = *keeper_box_place(p, id);
    bool news = b && mark_lost(b);
    lock_release(&p->lock);
    return news ? b : NULL;
}

/* Is it one of those that are lost with their keeper? A box elsewhere is not, if the next keeper
 * has it. */
static bool goes_with_keeper(const struct keeper_box *b, bool is_there)
{
    return is_there ? b->jail.is_far && !b->listed : !b->jail.is_far;
}

static struct keeper_box *take_any_lost(struct keeper_provider *p, bool is_there)
{
    struct keeper_box *found = NULL;
    lock_take(&p->lock);
    for (unsigned i = 0; i < BOX_BUCKETS && !found; i++)
        for (struct keeper_box *b = p->boxes[i]; b && !found; b = b->next)
            if (goes_with_keeper(b, is_there) && mark_lost(b))
                found = b;
    lock_release(&p->lock);
    return found;
}

void provider_lose_boxes(struct keeper_provider *p, bool is_there)
{
    struct pd_err e;
    pd_fail(&e, PD_LOST, "the keeper ended, and with it %s",
            is_there ? "this sandbox" : "every sandbox");
    for (struct keeper_box *b; (b = take_any_lost(p, is_there));)
        keeper_box_lost(b, &e);
}

static void keeper_lost(struct keeper_provider *p, const char *why)
{
    pump_remove(p->pump, &p->keeper);
    provider_link_lost(p, why);
    provider_lose_boxes(p, false);
}

static void on_gone(struct keeper_provider *p, const struct frame *f)
{
    struct pd_err e;
    struct msg_gone m;
    if (msg_gone_decode(&f->payload, &m, &e) < 0)
        return;

    struct keeper_box *b = take_lost(p, m.jail);
    if (!b)
        return;

    if (m.why[0])
        pd_fail(&e, PD_LOST, "%s", m.why);
    else if (m.oom_kills)
        pd_fail(&e, PD_LOST, "the sandbox's first process was ended for memory");
    else
        pd_fail(&e, PD_LOST, "the sandbox's first process has died");
    keeper_box_lost(b, &e);
}

/* The descriptors of an answer were lost, because there was no room for them. */
static void answer_cut(struct keeper_provider *p, struct frame *f, const struct pd_err *why)
{
    if (f->head.type == WIRE_CREATED)
        provider_link_end_later(p, f->head.id, 0);

    f->head.type = WIRE_ERROR;
    buf_clear(&f->payload);
    msg_error_put(&f->payload, why);
    (void)wake_waiter(p, f);
}

void provider_keeper_ready(struct pump_source *s, uint32_t events)
{
    (void)events;
    struct keeper_provider *p =
        (struct keeper_provider *)((char *)s - offsetof(struct keeper_provider, keeper));

    for (int i = 0; i < FRAMES_OF_KEEPER; i++) {
        auto_frame f = FRAME_INIT;
        struct pd_err e;
        int r = wire_recv(s->fd, &f, 0, &e);
        if (r < 0 && e.code == PD_TIMEOUT)
            return;

        if (r < 0 && e.code == PD_CAPACITY) {
            if (!f.head.type)
                return;
            answer_cut(p, &f, &e);
            continue;
        }

        if (r <= 0) {
            keeper_lost(p, r == 0 ? "it closed the connection" : e.msg);
            return;
        }

        if (f.head.type == WIRE_PROGRESS)
            note_progress(p, &f);
        else if (f.head.type == WIRE_TROUBLE)
            provider_take_trouble(p, &f);
        else if (!wake_waiter(p, &f) && f.head.type == WIRE_GONE)
            on_gone(p, &f);
    }
}

/* ---- a jail ---- */

/* The jail does not keep to the protocol: its owner ends it. */
static void keeper_box_broken(struct keeper_box *b, const struct pd_err *e)
{
    struct pd_err why;

    lock_take(&b->provider->lock);
    bool news = mark_lost(b);
    lock_release(&b->provider->lock);
    if (!news) {
        pump_remove(b->provider->pump, &b->control);
        return;
    }

    pd_fail(&why, PD_LOST, "the sandbox does not keep to the protocol: %.150s", e->msg);
    keeper_box_lost(b, &why);
}

static bool take_path(char out[BOX_PATH_SIZE], const char *path)
{
    return path[0] == '/' && snprintf(out, BOX_PATH_SIZE, "%s", path) < (int)BOX_PATH_SIZE;
}

/* Whole variables, as many as fit. */
static void take_environ(struct box_place *place, const struct msg_list *variables)
{
    uint32_t pos = 0;

    for (const char *v; (v = msg_list_next(variables, &pos));) {
        size_t len = strlen(v) + 1;
        if (!strchr(v, '=') || place->environ_bytes + len > sizeof place->environ)
            continue;
        memcpy(place->environ + place->environ_bytes, v, len);
        place->environ_bytes += (uint32_t)len;
        place->environ_count++;
    }
}

int keeper_box_take_facts(struct keeper_box *b, const struct frame *f, struct pd_err *e)
{
    struct msg_facts m;
    if (!b->tells_facts)
        return pd_fail(e, PD_PROTOCOL, "a jail without an image tells no facts");
    if (msg_facts_decode(&f->payload, &m, e) < 0)
        return -1;

    struct box_place *place = malloc(sizeof *place);
    if (!place)
        return pd_fail(e, PD_CAPACITY, "no memory for a sandbox");
    *place = (struct box_place){.has_root = m.root != 0, .has_bash = m.shell_kind == FACTS_BASH};
    take_environ(place, &m.environ);
    bool named = m.shell_kind == FACTS_NO_SHELL || take_path(place->shell, m.shell);
    if (!named || !take_path(place->workspace, m.workspace) || !take_path(place->home, m.home)) {
        free(place);
        return pd_fail(e, PD_PROTOCOL, "facts with a path that is none");
    }

    lock_take(&b->lock);
    struct box_place *old = b->place;
    b->place = place;
    lock_release(&b->lock);
    free(old);
    return 0;
}

int keeper_box_await_facts(struct keeper_box *b, deadline d, struct pd_err *e)
{
    auto_frame f = FRAME_INIT;
    int r = wire_recv_plain(b->jail.control, &f, d, e);

    if (r == 0)
        return pd_fail(e, PD_LOST, "the sandbox ended while it was being made");
    if (r > 0 && f.head.type != WIRE_FACTS)
        return pd_fail(e, PD_PROTOCOL, "the sandbox began with message type %u", f.head.type);
    return r < 0 ? -1 : keeper_box_take_facts(b, &f, e);
}

static int on_frame(struct keeper_box *b, struct frame *f, struct pd_err *e)
{
    const struct box_events *events = b->provider->base.events;

    switch (f->head.type) {
    case WIRE_STARTED: {
        struct msg_started m;
        if (msg_started_decode(&f->payload, &m, e) < 0)
            return -1;
        events->started(b->owner, f->head.id, m.pid);
        return 0;
    }
    case WIRE_EXITED:
    case WIRE_SYNCED: {
        struct msg_exited m;
        if (msg_exited_decode(&f->payload, &m, e) < 0)
            return -1;
        if (m.exited)
            events->exited(b->owner, f->head.id, &m);
        else
            events->started(b->owner, f->head.id, m.pid);
        return 0;
    }
    case WIRE_ERROR: {
        struct pd_err why;
        if (wake_waiter(b->provider, f))
            return 0;
        msg_error_raise(f, &why);
        events->refused(b->owner, f->head.id, &why);
        return 0;
    }
    case WIRE_DONE:
        (void)wake_waiter(b->provider, f);
        return 0;
    case WIRE_SYNC_END:
        /* The end of a list that an earlier daemon had asked for, and of which it may have read a
         * part before it was killed, says nothing of the whole. */
        if (!wake_waiter(b->provider, f) && f->head.epoch >= b->jail.epoch)
            events->synced(b->owner);
        return 0;
    case WIRE_FACTS:
        return keeper_box_take_facts(b, f, e);
    default:
        return pd_fail(e, PD_PROTOCOL, "message type %u", f->head.type);
    }
}

/* With b->hearing held. */
static void hear_turn(struct keeper_box *b, uint32_t events)
{
    struct pump_source *s = &b->control;
    if (b->broken) {
        struct pd_err e;
        pd_fail(&e, PD_PROTOCOL, "what it said of a command cannot be read");
        keeper_box_broken(b, &e);
        return;
    }

    for (int i = 0; i < FRAMES_OF_JAIL; i++) {
        auto_frame f = FRAME_INIT;
        struct pd_err e;
        int r = wire_recv_plain(s->fd, &f, 0, &e);
        if (r < 0 && e.code == PD_TIMEOUT)
            break;

        if (r == 0) {
            /* Its end; the keeper tells why. */
            pump_remove(b->provider->pump, s);
            return;
        }
        if (r < 0 || on_frame(b, &f, &e) < 0) {
            keeper_box_broken(b, &e);
            return;
        }
    }

    if (events & EPOLLHUP && !(events & EPOLLIN))
        pump_remove(b->provider->pump, s);
}

static void control_ready(struct pump_source *s, uint32_t events)
{
    struct keeper_box *b = (struct keeper_box *)((char *)s - offsetof(struct keeper_box, control));

    /* Somebody listens himself: what is left there is told again when he has ended. */
    if (!lock_try(&b->hearing))
        return;
    hear_turn(b, events);
    lock_release(&b->hearing);
}

/* ---- on the thread of a request ---- */

bool keeper_box_hear_begin(struct box *box)
{
    struct keeper_box *b = (struct keeper_box *)box;
    if (!lock_try(&b->hearing))
        return false;
    if (b->broken) {
        lock_release(&b->hearing);
        return false;
    }

    pump_change(b->provider->pump, &b->control, 0);
    return true;
}

/* Takes the next frame if it is of this command. */
static enum box_heard hear_frame(struct keeper_box *b, struct wire_id command)
{
    struct wire_head head;
    if (recv(b->control.fd, &head, sizeof head, MSG_PEEK | MSG_DONTWAIT) != sizeof head ||
        !wire_id_equal(head.id, command))
        return BOX_BEYOND;

    auto_frame f = FRAME_INIT;
    struct pd_err e;
    if (wire_recv_plain(b->control.fd, &f, 0, &e) > 0 && on_frame(b, &f, &e) == 0)
        return BOX_TOLD;

    b->broken = true; /* the pump ends it */
    return BOX_BEYOND;
}

enum box_heard keeper_box_hear(struct box *box, struct wire_id command, struct pollfd *more,
                               unsigned count, deadline d)
{
    struct keeper_box *b = (struct keeper_box *)box;
    struct pollfd fds[1 + HEAR_MORE] = {{.fd = b->control.fd, .events = POLLIN}};
    count = count < HEAR_MORE ? count : HEAR_MORE;
    for (unsigned i = 0; i < count; i++)
        fds[1 + i] = more[i];

    uint64_t now = clock_now(), left = d > now ? d - now : 0;
    struct timespec t = {.tv_sec = (time_t)(left / NS_PER_S), .tv_nsec = (long)(left % NS_PER_S)};
    int n = ppoll(fds, 1 + count, &t, NULL);
    if (n < 0)
        return BOX_BEYOND;
    if (n == 0)
        return BOX_SILENT;

    for (unsigned i = 0; i < count; i++)
        more[i] = fds[1 + i];
    return fds[0].revents ? hear_frame(b, command) : BOX_OTHER;
}

void keeper_box_hear_end(struct box *box)
{
    struct keeper_box *b = (struct keeper_box *)box;

    /* With the lock still held: or it would undo what the next one who listens has begun. A box
     * that is broken has no news to come, but room to write, which calls the pump as well. */
    pump_change(b->provider->pump, &b->control, b->broken ? EPOLLIN | EPOLLOUT : EPOLLIN);
    lock_release(&b->hearing);
}

int keeper_box_listen(struct keeper_box *b, struct pd_err *e)
{
    b->control = (struct pump_source){.ready = control_ready, .fd = b->jail.control};
    b->listening = 1; /* before the first event, which may be the last */
    return pump_add(b->provider->pump, &b->control, EPOLLIN, e);
}
