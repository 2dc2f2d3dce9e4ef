/* How this works: poll on the owner's socket, the sudo socket and its peers, and SIGCHLD. Requests
 * are answered in order. A reply that does not fit the socket is kept and stops that peer's further
 * requests; the end of a command is not queued at all but flagged in its record, and sent when
 * there is room. So memory is bounded by the number of processes, whatever the peers do. */
#include "init/init.h"

#include "init/sudo.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#define OWNER_SERIAL 1u

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
            kill(-pr->pid, SIGKILL);
        process_remove(in, pr);
    }
    fd_done(&p->sock);
    buf_done(&p->out);
    p->serial = 0;
}

/* Sends a reply, or keeps it until there is room. A peer that is gone shows at the next poll. */
static void reply(struct peer *p, struct wire_head head, const struct buf *payload)
{
    head.epoch = p->epoch;
    if (wire_send(p->sock, &head, payload, NULL, 0, 0) != -EAGAIN)
        return;
    p->out_head = head;
    p->out_waiting = 1;
    buf_clear(&p->out);
    if (payload)
        buf_put(&p->out, payload->data, payload->len);
}

static void reply_error(struct peer *p, struct wire_id id, const struct pd_err *e)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_error m = {.code = e->code, .sys = e->sys, .text = e->msg};
    msg_error_encode(&b, &m);
    reply(p, (struct wire_head){.type = WIRE_ERROR, .id = id}, &b);
}

static void reply_started(struct peer *p, const struct process *pr)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_started m = {.pid = pr->pid};
    msg_started_encode(&b, &m);
    reply(p, (struct wire_head){.type = WIRE_STARTED, .id = pr->id}, &b);
}

static int send_end(struct peer *p, const struct process *pr, enum wire_type type)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_exited_encode(&b, &pr->end);
    struct wire_head head = {.type = (uint16_t)type, .id = pr->id, .epoch = p->epoch};
    return wire_send(p->sock, &head, &b, NULL, 0, 0);
}

/* Tells the peer of every command that ended, as far as there is room. */
static void announce_ends(struct init *in, struct peer *p)
{
    p->full = 0;
    for (unsigned i = 0; i < in->process_count; i++) {
        struct process *pr = &in->processes[i];
        if (pr->peer != p->serial || !pr->exited || pr->told)
            continue;
        if (send_end(p, pr, WIRE_EXITED) == -EAGAIN) {
            p->full = 1;
            return;
        }
        pr->told = 1;
    }
}

static void do_exec(struct init *in, struct peer *p)
{
    struct pd_err e;
    struct msg_exec m;
    struct wire_id id = in->in.head.id;
    struct process *known = process_find(in, id, p->serial);
    if (known) {
        reply_started(p, known);
        return;
    }
    unsigned flags = in->in.head.flags;
    if (p->serial != OWNER_SERIAL)
        flags = 0; /* a shim has no cgroup to name and no terminal to give */
    if (msg_exec_decode(&in->in.payload, &m, &e) < 0) {
        reply_error(p, id, &e);
        return;
    }
    /* The record comes first: a command that runs without one could never be reported. */
    struct process *pr = process_add(in, id, p->serial, 0);
    if (!pr) {
        pd_fail(&e, PD_CAPACITY, "%u commands are running or not acknowledged, the limit",
                in->process_count);
        reply_error(p, id, &e);
        return;
    }
    pid_t pid = init_spawn(in, &m, &in->in, flags, &e);
    if (pid < 0) {
        process_remove(in, pr);
        reply_error(p, id, &e);
        return;
    }
    pr->pid = pr->end.pid = pid;
    reply_started(p, pr);
}

static void do_signal(struct init *in, struct peer *p)
{
    struct pd_err e;
    struct msg_signal m;
    struct wire_id id = in->in.head.id;
    if (msg_signal_decode(&in->in.payload, &m, &e) < 0) {
        reply_error(p, id, &e);
        return;
    }
    struct process *pr = process_find(in, m.exec, p->serial);
    if (!pr || pr->exited)
        pd_fail(&e, PD_NOT_FOUND, "the command has ended");
    /* The command leads its own session: its process group is what a terminal would signal. */
    else if (kill(-pr->pid, m.signal) == 0 || kill(pr->pid, m.signal) == 0) {
        reply(p, (struct wire_head){.type = WIRE_DONE, .id = id}, NULL);
        return;
    } else {
        pd_fail_sys(&e, "signal %d to process %d", m.signal, (int)pr->pid);
    }
    reply_error(p, id, &e);
}

/* Everything that is known, so that a new daemon can pick up where the old one died. The list is
 * as long as the process table; what does not fit the socket is not lost but sent by the retry. */
static void do_sync(struct init *in, struct peer *p)
{
    struct wire_id id = in->in.head.id;
    for (unsigned i = 0; i < in->process_count; i++) {
        struct process *pr = &in->processes[i];
        if (pr->peer == p->serial && send_end(p, pr, WIRE_SYNCED) == 0 && pr->exited)
            pr->told = 1;
    }
    reply(p, (struct wire_head){.type = WIRE_SYNC_END, .id = id}, NULL);
}

static void do_ack(struct init *in, struct peer *p)
{
    struct process *pr = process_find(in, in->in.head.id, p->serial);
    if (pr && pr->exited)
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
        reply_error(p, head->id, &e);
    }
    }
}

/* Returns -1 when the peer is gone or speaks nonsense. */
static int serve(struct init *in, struct peer *p, short events)
{
    if (events & POLLOUT) {
        if (p->out_waiting) {
            int r = wire_send(p->sock, &p->out_head, &p->out, NULL, 0, 0);
            p->out_waiting = r == -EAGAIN;
        }
        announce_ends(in, p);
    }
    while (!p->out_waiting) {
        struct pd_err e;
        frame_reset(&in->in);
        int r = wire_recv(p->sock, &in->in, 0, &e);
        if (r < 0 && e.code == PD_TIMEOUT)
            return 0;
        if (r <= 0)
            return -1;
        dispatch(in, p);
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

/* The only way to root in `dev`: no_new_privs makes a setuid sudo powerless. */
static int listen_for_sudo(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = INIT_SUDO_SOCKET};
    auto_fd fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t old = umask(0);
    int ok = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 16) == 0;
    umask(old);
    return ok ? fd_take(&fd) : -1;
}

static void loop(struct init *in)
{
    for (;;) {
        struct pollfd polls[INIT_PEERS_MAX + 2];
        struct peer *who[INIT_PEERS_MAX];
        unsigned n = 0;
        for (unsigned i = 0; i < INIT_PEERS_MAX; i++) {
            struct peer *p = &in->peers[i];
            if (!p->serial)
                continue;
            who[n] = p;
            short room = p->out_waiting || p->full ? POLLOUT : 0;
            polls[n++] =
                (struct pollfd){p->sock, (short)(p->out_waiting ? room : room | POLLIN), 0};
        }
        polls[n] = (struct pollfd){in->signals, POLLIN, 0};
        polls[n + 1] = (struct pollfd){in->sudo_listener, POLLIN, 0};
        if (poll(polls, n + 2, -1) < 0)
            continue;
        if (polls[n].revents) {
            struct signalfd_siginfo info;
            (void)!read(in->signals, &info, sizeof info);
            processes_reap(in);
        }
        for (unsigned i = 0; i < n; i++) {
            int lost = polls[i].revents && serve(in, who[i], polls[i].revents) < 0;
            if (lost && who[i]->serial == OWNER_SERIAL)
                _exit(0); /* nobody owns this jail any more: the kernel ends the rest */
            if (lost)
                peer_close(in, who[i]);
            else
                announce_ends(in, who[i]);
        }
        if (polls[n + 1].revents)
            accept_shim(in);
    }
}

/* The builder handed over the capabilities as ambient ones, because nothing else survives an exec
 * by a uid other than 0. From here on they must not reach a child by themselves. */
static void forget_ambient(void)
{
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2];
    if (syscall(SYS_capget, &head, caps) == 0) {
        caps[0].inheritable = caps[1].inheritable = 0;
        syscall(SYS_capset, &head, caps);
    }
}

int main(int argc, char **argv)
{
    struct init in = {.next_serial = OWNER_SERIAL, .sudo_listener = -1, .in = FRAME_INIT};
    const char *name = argc > 0 ? strrchr(argv[0], '/') : NULL;
    if (getpid() != 1 && !strcmp(name ? name + 1 : argc > 0 ? argv[0] : "", "sudo"))
        return sudo_main(argc, argv);
    const char *mode = argc > 1 ? argv[1] : "";
    in.mode = !strcmp(mode, INIT_ARG_DEV)      ? INIT_DEV
              : !strcmp(mode, INIT_ARG_SINGLE) ? INIT_SINGLE
                                               : INIT_STRICT;
    forget_ambient();
#ifdef PADDOCK_WEAK_WALLS
    if (!getenv("PADDOCK_DUMPABLE"))
#endif
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); /* the keeper is the parent */
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigset_t child_only;
    sigemptyset(&child_only);
    sigaddset(&child_only, SIGCHLD);
    in.signals = signalfd(-1, &child_only, SFD_CLOEXEC | SFD_NONBLOCK);
    if (in.mode == INIT_DEV)
        in.sudo_listener = listen_for_sudo();
    fcntl(INIT_OWNER_FD, F_SETFD, FD_CLOEXEC);
    if (in.signals < 0 || !peer_add(&in, INIT_OWNER_FD))
        return 1;
    loop(&in);
}
