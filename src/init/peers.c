/* How this works: poll on the owner's socket, the sudo socket and its peers, and SIGCHLD. Requests
 * are answered in order. What does not fit a peer's socket is not queued: one reply is kept, the
 * rest (a list that was asked for, the ends of commands) is flagged in the records it comes from
 * and sent when there is room. While a reply or a list waits, that peer's requests wait, too. So
 * memory is bounded by the number of processes, whatever the peers do. */
#include "init/init.h"

#include "init/runner.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define OWNER_SERIAL  1u
#define TURN_REQUESTS 32 /* of one peer before the others have their turn */
#define RETRY_MS      10 /* after the kernel had no memory for a frame */
#define UID_USER      1000u

static void peer_close(struct init *in, struct peer *p)
{
    /* A shim that went away takes its command with it, as a killed sudo would. */
    for (unsigned i = 0; i < in->process_count;) {
        struct process *pr = &in->processes[i];
        if (pr->peer != p->serial) {
            i++;
            continue;
        }

        if (!pr->exited)
            (void)holder_kill(pr);
        process_remove(in, pr);
    }

    fd_done(&p->sock);
    buf_done(&p->out);
    p->serial = 0;
}

/* Sends now or not at all: 1 sent (or the peer is gone, which shows at the next poll), 0 no room.
 */
static int put(struct init *in, struct peer *p, struct wire_head head, const struct buf *payload)
{
    head.epoch = p->epoch;
    int r = wire_send(p->sock, &head, payload, NULL, 0, 0);

    /* A jail at its memory limit: poll says that there is room, so it must be tried by the clock.
     */
    if (r == -ENOBUFS || r == -ENOMEM)
        in->retry = 1;
    /* Nobody would hear of anything. */
    if (r == -EPERM || r == -ENOSYS)
        in->refused = -r;
    return r != -EAGAIN && r != -ENOBUFS && r != -ENOMEM;
}

/* Sends a reply, or keeps it until there is room. */
static void reply(struct init *in, struct peer *p, struct wire_head head, const struct buf *payload)
{
    if (put(in, p, head, payload))
        return;

    p->out_head = head;
    p->out_waiting = 1;
    buf_clear(&p->out);
    if (payload)
        buf_put(&p->out, payload->data, payload->len);
}

static void reply_error(struct init *in, struct peer *p, struct wire_id id, const struct pd_err *e)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_error_put(&b, e);
    reply(in, p, (struct wire_head){.type = WIRE_ERROR, .id = id}, &b);
}

static void reply_started(struct init *in, struct peer *p, const struct process *pr)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_started m = {.pid = pr->pid};
    msg_started_encode(&b, &m);
    reply(in, p, (struct wire_head){.type = WIRE_STARTED, .id = pr->id}, &b);
}

/* A runner has become this command, and found that it cannot run. */
static int put_failure(struct init *in, struct peer *p, struct process *pr)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_error_put(&b, runner_failure(in));
    if (!put(in, p, (struct wire_head){.type = WIRE_ERROR, .id = pr->id}, &b))
        return 0;

    runner_forget_failure(in);
    in->may_wait = true; /* nobody acknowledges an error */
    process_remove(in, pr);
    return 1;
}

static int put_end(struct init *in, struct peer *p, struct process *pr, enum wire_type type)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_exited_encode(&b, &pr->end);
    if (!put(in, p, (struct wire_head){.type = (uint16_t)type, .id = pr->id}, &b))
        return 0;

    pr->unlisted = 0;
    pr->told = pr->exited;
    return 1;
}

/* Sends what waits, as far as there is room, in this order: the reply that was kept, the rest of a
 * list, the ends of commands. Returns 0 when something is left. */
static int send_waiting(struct init *in, struct peer *p)
{
    if (p->out_waiting && !put(in, p, p->out_head, &p->out))
        return 0;
    p->out_waiting = 0;

    for (unsigned i = 0; i < in->process_count && p->syncing; i++) {
        struct process *pr = &in->processes[i];
        if (pr->peer == p->serial && pr->unlisted && !put_end(in, p, pr, WIRE_SYNCED))
            return 0;
    }
    if (p->syncing &&
        !put(in, p, (struct wire_head){.type = WIRE_SYNC_END, .id = p->sync_id}, NULL))
        return 0;
    p->syncing = 0;

    for (unsigned i = 0; i < in->process_count;) {
        struct process *pr = &in->processes[i];
        if (pr->peer == p->serial && pr->failed) {
            if (!put_failure(in, p, pr))
                return 0;
            continue; /* another row is here now */
        }
        if (pr->peer == p->serial && pr->exited && !pr->told && !put_end(in, p, pr, WIRE_EXITED))
            return 0;
        i++;
    }
    return 1;
}

int init_may_exec(const struct init *in, const struct peer *p, const struct msg_exec *m,
                  struct pd_err *e)
{
    int apart = in->mode != INIT_SINGLE && (geteuid() != 0 || in->foreign);
#ifdef PADDOCK_WEAK_WALLS
    apart = 0; /* a test build can give init the user's uid */
#endif
    if (apart && (m->uid == geteuid() || m->gid == getegid()))
        return pd_fail(e, PD_DENIED, "uid %u and gid %u: no command runs as init itself", m->uid,
                       m->gid);

    if (p->serial == OWNER_SERIAL)
        return 0;
    if ((m->uid != 0 && m->uid != UID_USER) || m->gid != m->uid)
        return pd_fail(e, PD_DENIED, "uid %u and gid %u: only root and user are possible", m->uid,
                       m->gid);

    /* The table is the owner's: a crowd of shims must not fill it. */
    for (unsigned i = 0; i < in->process_count; i++)
        if (in->processes[i].peer == p->serial)
            return pd_fail(e, PD_CAPACITY, "one connection is for one command");
    return 0;
}

/* Remembers that the command of this name is copied. */
static void note_copy(struct init *in, const char *copied)
{
    char id[33];
    for (unsigned i = 0; i < in->process_count; i++) {
        wire_id_text(in->processes[i].id, id);
        in->processes[i].was_copied |= strcmp(id, copied) == 0;
    }
}

static void do_exec(struct init *in, struct peer *p)
{
    struct pd_err e;
    struct msg_exec m;
    struct wire_id id = in->in.head.id;
    struct process *known = process_find(in, id, p->serial);

    if (known) {
        reply_started(in, p, known);
        return;
    }

    unsigned flags = in->in.head.flags;
    if (p->serial != OWNER_SERIAL)
        flags = 0; /* a shim has no cgroup to name and no terminal to give */
    if (msg_exec_decode(&in->in.payload, &m, &e) < 0 || init_may_exec(in, p, &m, &e) < 0) {
        reply_error(in, p, id, &e);
        return;
    }

    /* The record comes first: a command that runs without one could never be reported. */
    struct process *pr = process_add(in, id, p->serial, 0);
    if (!pr) {
        pd_fail(&e, PD_CAPACITY, "%u commands are running or not acknowledged, the limit",
                in->process_count);
        reply_error(in, p, id, &e);
        return;
    }

    pid_t holder, pid = init_spawn(in, &m, &in->in, flags, &holder, &e);
    if (pid < 0) {
        process_remove(in, pr);
        reply_error(in, p, id, &e);
        return;
    }

    pr->pid = pr->end.pid = pid;
    pr->holder = holder;
    const char *copied = init_joins_from(&m, flags);
    if (copied)
        note_copy(in, copied);
    if (!(flags & EXEC_QUIET))
        reply_started(in, p, pr);
}

static void do_signal(struct init *in, struct peer *p)
{
    struct pd_err e;
    struct msg_signal m;
    struct wire_id id = in->in.head.id;

    if (msg_signal_decode(&in->in.payload, &m, &e) < 0) {
        reply_error(in, p, id, &e);
        return;
    }

    struct process *pr = process_find(in, m.exec, p->serial);
    if (!pr || pr->exited)
        pd_fail(&e, PD_NOT_FOUND, "the command has ended");
    /* The command leads its own session: its process group is what a terminal would signal. */
    else if ((m.signal == SIGKILL && holder_kill(pr) == 0) || kill(-pr->pid, m.signal) == 0 ||
             kill(pr->pid, m.signal) == 0) {
        reply(in, p, (struct wire_head){.type = WIRE_DONE, .id = id}, NULL);
        return;
    } else {
        pd_fail_sys(&e, "signal %d to process %d", m.signal, (int)pr->pid);
    }
    reply_error(in, p, id, &e);
}

/* Everything that is known, so that a new daemon can pick up where the old one died. */
static void do_sync(struct init *in, struct peer *p)
{
    for (unsigned i = 0; i < in->process_count; i++)
        if (in->processes[i].peer == p->serial && !in->processes[i].failed)
            in->processes[i].unlisted = 1;
    p->syncing = 1;
    p->sync_id = in->in.head.id;
    if (in->facts.len && p->serial == OWNER_SERIAL)
        init_tell_facts(in);
    (void)send_waiting(in, p);
}

static void do_ack(struct init *in, struct peer *p)
{
    struct process *pr = process_find(in, in->in.head.id, p->serial);
    in->may_wait |= p->serial == OWNER_SERIAL && in->was_plain;
    if (pr && pr->exited && !pr->failed)
        process_remove(in, pr);
}

static void dispatch(struct init *in, struct peer *p)
{
    const struct wire_head *head = &in->in.head;
    if (head->epoch < p->epoch)
        return; /* of a daemon that is dead: nobody waits for the answer */
    if (head->epoch > p->epoch) {
        p->epoch = head->epoch;
        for (unsigned i = 0; i < in->process_count; i++)
            if (in->processes[i].peer == p->serial)
                in->processes[i].told = 0;
    }

    if (p->serial == OWNER_SERIAL && head->type == WIRE_EXEC) {
        in->was_plain = !(head->flags & (EXEC_WORKER | EXEC_PTY));
        in->may_wait = false;
    }

    switch (head->type) {
    case WIRE_EXEC:
        do_exec(in, p);
        return;
    case WIRE_SIGNAL:
        do_signal(in, p);
        return;
    case WIRE_ACK:
        do_ack(in, p);
        return;
    case WIRE_SYNC:
        do_sync(in, p);
        return;
    default: {
        struct pd_err e;
        pd_fail(&e, PD_PROTOCOL, "message type %u is not for init", head->type);
        reply_error(in, p, head->id, &e);
    }
    }
}

/* Has the socket that ADOPT brings in the place of the one that it came by, which is closed by
 * that: nobody can say it again. */
static int take_owner(struct init *in)
{
    struct peer *owner = &in->peers[0];
    int fits = in->in.head.type == WIRE_ADOPT && in->in.fd_count == 1;
    int r = fits ? dup3(in->in.fds[0], owner->sock, O_CLOEXEC) : -1;

    frame_reset(&in->in);
    return r < 0 ? -1 : 0;
}

void init_tell_facts(struct init *in)
{
    reply(in, &in->peers[0], (struct wire_head){.type = WIRE_FACTS}, &in->facts);
}

void init_await_another(struct init *in)
{
    struct peer *owner = &in->peers[0];
    in->awaits = true;

    /* Epochs are counted by each keeper, and this was the last word of the one before. */
    fd_done(&owner->sock);
    owner->epoch = 0;
    owner->out_waiting = owner->syncing = owner->full = 0;
    for (unsigned i = 0; i < in->process_count; i++)
        if (in->processes[i].peer == owner->serial)
            in->processes[i].told = in->processes[i].unlisted = 0;
}

/* At the door: -1 when it is closed, or says anything but ADOPT. */
static int hear_door(struct init *in)
{
    struct pd_err e;
    int r = wire_recv(in->peers[0].sock, &in->in, 0, &e);
    if (r < 0 && e.code == PD_TIMEOUT)
        return 0;
    if (r <= 0 || take_owner(in) < 0)
        return -1;

    in->awaits = false;
    init_tell_facts(in);
    return 0;
}

/* Returns -1 when the peer is gone or speaks nonsense. */
static int serve(struct init *in, struct peer *p)
{
    for (int i = 0; i < TURN_REQUESTS && !p->out_waiting && !p->syncing; i++) {
        struct pd_err e;
        int r = wire_recv(p->sock, &in->in, 0, &e);
        if (r < 0 && e.code == PD_TIMEOUT)
            return 0;
        if (r <= 0)
            return -1;

        dispatch(in, p);
        /* At once: a pipe that stays open here does not end for its reader. */
        frame_reset(&in->in);
    }
    return 0;
}

static struct peer *peer_add(struct init *in, int sock)
{
    for (unsigned i = 0; i < INIT_PEERS_MAX; i++)
        if (!in->peers[i].serial) {
            in->peers[i] = (struct peer){
                .sock = sock, .serial = in->next_serial++, .out = BUF_INIT(WIRE_PAYLOAD_MAX)};
            return &in->peers[i];
        }
    return NULL;
}

static void accept_shim(struct init *in)
{
    auto_fd sock = accept4(in->sudo_listener, NULL, NULL, SOCK_CLOEXEC);
    if (sock >= 0 && peer_add(in, sock))
        fd_take(&sock);
}

socklen_t init_sudo_address(bool by_name, struct sockaddr_un *ret)
{
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (!by_name) {
        memcpy(ret->sun_path, INIT_SUDO_SOCKET, sizeof INIT_SUDO_SOCKET);
        return sizeof *ret;
    }

    memcpy(ret->sun_path + 1, INIT_SUDO_NAME, sizeof INIT_SUDO_NAME - 1);
    return offsetof(struct sockaddr_un, sun_path) + sizeof INIT_SUDO_NAME;
}

void init_listen_for_sudo(struct init *in, bool by_name)
{
    struct sockaddr_un a;
    socklen_t len = init_sudo_address(by_name, &a);
    auto_fd fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (!by_name)
        unlink(INIT_SUDO_SOCKET); /* of the jail that had this root before */
    mode_t old = umask(0);
    int ok = fd >= 0 && bind(fd, (struct sockaddr *)&a, len) == 0 && listen(fd, 16) == 0;
    umask(old);
    in->sudo_listener = ok ? fd_take(&fd) : -1;
}

int init_begin(struct init *in, enum init_mode mode, int owner)
{
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);

    *in = (struct init){.mode = mode,
                        .next_serial = OWNER_SERIAL,
                        .in = FRAME_INIT,
                        .sudo_listener = -1,
                        .facts = BUF_INIT(WIRE_PAYLOAD_MAX)};
    in->may_wait = true;
    in->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    return in->signals < 0 || frame_reserve(&in->in) < 0 || !peer_add(in, owner) ? -1 : 0;
}

int init_await_owner(struct init *in)
{
    struct peer *owner = &in->peers[0];
    struct pd_err e;

    int r = wire_recv(owner->sock, &in->in, DEADLINE_NONE, &e);
    return r <= 0 ? -1 : take_owner(in);
}

int init_turn(struct init *in, int timeout_ms)
{
    struct pollfd polls[INIT_PEERS_MAX + 2];
    struct peer *who[INIT_PEERS_MAX];
    unsigned n = 0;

    for (unsigned i = 0; i < INIT_PEERS_MAX; i++) {
        struct peer *p = &in->peers[i];
        if (!p->serial)
            continue;
        short events = p->out_waiting || p->syncing ? 0 : POLLIN;
        /* Without memory poll would only say again and again that there is room. */
        if (p->full && !in->retry)
            events |= POLLOUT;
        who[n] = p;
        polls[n++] =
            (struct pollfd){p->serial == OWNER_SERIAL ? runner_poll_fd(in) : p->sock, events, 0};
    }

    polls[n] = (struct pollfd){in->signals, POLLIN, 0};
    polls[n + 1] = (struct pollfd){in->sudo_listener, POLLIN, 0};
    /* What stands for the owner's socket then does not tell of room. */
    in->retry |= runner_hears(in) && in->peers[0].full;
    if (in->retry && (timeout_ms < 0 || timeout_ms > RETRY_MS))
        timeout_ms = RETRY_MS;
    int pause = timeout_ms < 0 ? runner_pause(in) : -1;
    int ready = poll(polls, n + 2, pause < 0 ? timeout_ms : pause);
    if (ready < 0 && (errno == EPERM || errno == ENOSYS))
        in->refused = errno;
    if (ready < 0)
        return in->refused ? -1 : 0;
    in->retry = 0;

    if (runner_look(in) < 0)
        return -1;
    if (ready == 0 && pause >= 0)
        runner_make(in);

    if (polls[n].revents) {
        struct signalfd_siginfo info = {0};
        (void)!read(in->signals, &info, sizeof info);
        processes_reap(in);
        in->ending |=
            info.ssi_signo == SIGTERM && in->foreign && (pid_t)info.ssi_pid == in->foreign->parent;
        if (in->ending)
            return -1;
    }

    for (unsigned i = 0; i < n; i++) {
        struct peer *p = who[i];
        if (in->awaits && p->serial == OWNER_SERIAL) {
            if (polls[i].revents && hear_door(in) < 0)
                return -1;
            continue;
        }

        (void)send_waiting(in, p);
        int lost = polls[i].revents && serve(in, p) < 0;
        if (lost && p->serial == OWNER_SERIAL)
            return -1;
        if (lost)
            peer_close(in, p);
        else
            p->full = !send_waiting(in, p);
    }

    if (polls[n + 1].revents)
        accept_shim(in);
    return in->refused ? -1 : 0;
}

void init_end(struct init *in)
{
    for (unsigned i = 0; i < INIT_PEERS_MAX; i++)
        if (in->peers[i].serial)
            peer_close(in, &in->peers[i]);

    runner_done(in);
    fd_done(&in->sudo_listener);
    fd_done(&in->signals);
    frame_done(&in->in);
    buf_done(&in->facts);
    free(in->processes);
    *in = (struct init){.sudo_listener = -1, .signals = -1};
}
