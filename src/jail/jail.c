/* Requests of a jail's owner: to the keeper (create, destroy) and to the jail's init (commands,
 * signals).
 *
 * The owner makes the pair of control sockets itself and sends init's end along with CREATE. So it
 * can send a command at once: it waits in the socket until init is there. An answer has the id of
 * its request; frames with other ids are passed over while one waits. A frame from init that has
 * descriptors is refused. A private keeper is a child of the owner's process, or part of it, and
 * ends with it. One that is part of it works only when it is called, so whoever waits for an answer
 * of a keeper's does that by keeper_link_recv. */
#include "jail/jail.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/cgroup.h"
#include "jail/keeper.h"

#include <asm/ioctls.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

/* Init answers at once; longer means that it is not well. */
#define SEND_PATIENCE (10 * NS_PER_S)

int keeper_connect(struct keeper_link *l, const char *path, struct pd_err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path)
        return pd_fail(e, PD_INVALID, "keeper socket '%.100s': the path is too long", path);
    memcpy(a.sun_path, path, strlen(path) + 1);

    auto_fd sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0)
        return pd_fail_sys(e, "make a socket");
    if (connect(sock, (struct sockaddr *)&a, sizeof a) < 0)
        return pd_fail_sys(e, "connect to the keeper at %s", path);

    *l = (struct keeper_link){.sock = fd_take(&sock)};
    return 0;
}

/* The standard streams of its parent's are not kept either: a pipe that stays open never ends. */
_Noreturn void keeper_serve_private(int sock, unsigned builders, unsigned kits)
{
    struct pd_err e;

    setsid();
    prctl(PR_SET_NAME, "paddock-keeper", 0, 0, 0);
    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 3; i++)
        dup2(null, i);
    if (sock != 3)
        dup3(sock, 3, O_CLOEXEC);
    syscall(SYS_close_range, 4, ~0u, 0);
    signal(SIGCHLD, SIG_DFL); /* ignored, children would vanish unreported */

    struct keeper_config c = {.client = 3, .builders = builders, .kits = kits};
    if (keeper_dirs(&c.state_dir, &c.run_dir, &e) == 0 && keeper_run(&c, &e) == 0)
        _exit(0);

    /* The keeper cannot work: every request gets this error as its answer. */
    auto_frame f = FRAME_INIT;
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_error_put(&out, &e);
    while (wire_recv(3, &f, DEADLINE_NONE, NULL) > 0) {
        struct wire_head head = {.type = WIRE_ERROR, .id = f.head.id};
        wire_send(3, &head, &out, NULL, 0, DEADLINE_NONE);
        frame_reset(&f);
    }
    _exit(1);
}

int keeper_start_private(struct keeper_link *l, struct pd_err *e)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return pd_fail_sys(e, "make a socket");
    auto_fd ours = pair[0], theirs = pair[1];

    pid_t pid = fork();
    if (pid < 0)
        return pd_fail_sys(e, "start a keeper");
    if (pid == 0)
        keeper_serve_private(theirs, 1, 0);

    *l = (struct keeper_link){.sock = fd_take(&ours)};
    return 0;
}

int keeper_take_inside(struct keeper_link *l, struct pd_err *e)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return pd_fail_sys(e, "make a socket");

    *l = (struct keeper_link){.sock = pair[0], .inside = keeper_start_inside(pair[1], e)};
    return l->inside ? 0 : -1;
}

int keeper_link_recv(struct keeper_link *l, struct frame *f, deadline d, struct pd_err *e)
{
    struct pd_err why;

    while (l->inside) {
        deadline due = keeper_inside_due(l->inside);
        int r = wire_recv(l->sock, f, 0, &why);
        bool is_over = r >= 0 || why.code != PD_TIMEOUT || deadline_passed(d);
        if (is_over && r < 0 && e)
            *e = why;
        if (is_over)
            return r;

        struct pollfd p = {.fd = keeper_inside_fd(l->inside), .events = POLLIN};
        (void)poll(&p, 1, deadline_poll_ms(due < d ? due : d));
        keeper_inside_hear(l->inside);
    }

    return wire_recv(l->sock, f, d, e);
}

void keeper_link_done(struct keeper_link *l)
{
    fd_done(&l->sock);
}

void jail_done(struct jail *j)
{
    fd_done(&j->control);
    fd_done(&j->cgroup_dir);
    fd_done(&j->devpts);
    fd_done(&j->gate[0]);
    fd_done(&j->gate[1]);
}

static int send_failed(struct pd_err *e, int r, const char *whom)
{
    if (r == -EPIPE)
        return pd_fail(e, PD_LOST, "%s is gone", whom);
    if (r == -EMSGSIZE)
        return pd_fail(e, PD_INVALID, "the request is too large: at most %u bytes",
                       WIRE_PAYLOAD_MAX);

    errno = -r;
    return pd_fail_sys(e, "send to %s", whom);
}

int jail_request(struct keeper_link *l, struct jail *j, const struct spec *s, unsigned flags,
                 struct pd_err *e)
{
    return jail_request_in(l, j, s, flags, -1, e);
}

int jail_request_in(struct keeper_link *l, struct jail *j, const struct spec *s, unsigned flags,
                    int netns, struct pd_err *e)
{
    return jail_request_as(l, j, wire_id_new(), s, flags, netns, e);
}

int jail_request_as(struct keeper_link *l, struct jail *j, struct wire_id id, const struct spec *s,
                    unsigned flags, int netns, struct pd_err *e)
{
    int pair[2];

    if (spec_check(s, e) < 0)
        return -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return pd_fail_sys(e, "make a control socket");
    auto_fd ours = pair[0], theirs = pair[1];

    *j = JAIL_EMPTY;
    j->id = id;
    j->epoch = l->epoch;

    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_create m = {.spec = *s};
    msg_create_encode(&out, &m);
    struct wire_head head = {.type = WIRE_CREATE, .flags = flags, .epoch = l->epoch, .id = j->id};
    int fds[3] = {theirs, ours, netns};
    int r = wire_send(l->sock, &head, &out, fds, netns >= 0 ? 3 : 2, deadline_in(SEND_PATIENCE));
    if (r < 0)
        return send_failed(e, r, "the keeper");

    j->control = fd_take(&ours);
    return 0;
}

/* Place holders for "there is none" are /dev/null. */
int jail_real_dir(int fd)
{
    if (fd >= 0 && faccessat(fd, ".", F_OK, 0) == 0)
        return fd;
    fd_done(&fd);
    return -1;
}

int jail_accept(struct jail *j, struct frame *f, struct pd_err *e)
{
    struct msg_created m;

    if (f->head.type == WIRE_ERROR)
        return msg_error_raise(f, e);
    if (f->head.type == WIRE_GONE)
        return pd_fail(e, PD_LOST, "the jail's init ended at once");
    if (f->head.type != WIRE_CREATED || (f->fd_count != 2 && f->fd_count != 4))
        return pd_fail(e, PD_PROTOCOL, "the keeper answered %u to CREATE", f->head.type);
    if (msg_created_decode(&f->payload, &m, e) < 0)
        return -1;

    j->rung = (enum rung)m.rung;
    j->on_image = f->head.flags & BUILT_ON_IMAGE;
    j->is_far = f->head.flags & BOX_IS_FAR;
    j->init_pid = m.init_pid;
    j->uid_base = m.uid_base;
    j->cgroup_dir = jail_real_dir(frame_take_fd(f, 0));
    j->devpts = jail_real_dir(frame_take_fd(f, 1));
    j->gate[0] = frame_take_fd(f, 2);
    j->gate[1] = frame_take_fd(f, 3);
    return 0;
}

/* Receives until the answer to `id` comes, from the jail or, with `l`, from the keeper; what
 * belongs to other requests is not ours to wait for, but it takes time as well. */
static int await_from(struct keeper_link *l, const struct jail *j, struct wire_id id,
                      struct frame *f, deadline d, struct pd_err *e)
{
    const char *whom = l ? "the keeper" : "the jail";

    for (;;) {
        frame_reset(f);
        int r = l ? keeper_link_recv(l, f, d, e) : wire_recv_plain(j->control, f, d, e);
        if (r == 0)
            return pd_fail(e, PD_LOST, "%s is gone", whom);
        if (r < 0)
            return -1;

        if (wire_id_equal(f->head.id, id))
            return 0;
        if (deadline_passed(d))
            return pd_fail(e, PD_TIMEOUT, "no answer of %s before the deadline", whom);
    }
}

static int await(struct keeper_link *l, struct wire_id id, struct frame *f, deadline d,
                 struct pd_err *e)
{
    return await_from(l, NULL, id, f, d, e);
}

int keeper_greet(struct keeper_link *l, enum rung *ret_rung, deadline d, struct pd_err *e)
{
    auto_frame f = FRAME_INIT;
    struct msg_welcome m;
    struct wire_head head = {.type = WIRE_HELLO, .flags = HELLO_TELL, .id = wire_id_new()};
    int r = wire_send(l->sock, &head, NULL, NULL, 0, d);
    if (r < 0)
        return send_failed(e, r, "the keeper");

    if (await(l, head.id, &f, d, e) < 0)
        return -1;
    if (f.head.type != WIRE_WELCOME || msg_welcome_decode(&f.payload, &m, e) < 0)
        return pd_fail(e, PD_PROTOCOL, "the keeper answered %u to HELLO", f.head.type);
    l->epoch = f.head.epoch;
    if (ret_rung)
        *ret_rung = (enum rung)m.rung;
    return 0;
}

int jail_create(struct keeper_link *l, struct jail *j, const struct spec *s, unsigned flags,
                deadline d, struct pd_err *e)
{
    auto_frame f = FRAME_INIT;
    if (jail_request(l, j, s, flags, e) < 0)
        return -1;
    if (await(l, j->id, &f, d, e) == 0 && jail_accept(j, &f, e) == 0)
        return 0;

    jail_done(j);
    return -1;
}

int jail_destroy(struct keeper_link *l, struct jail *j, int want_stats, struct msg_gone *ret,
                 deadline d, struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    auto_frame f = FRAME_INIT;
    struct msg_destroy m = {.jail = j->id, .want_stats = want_stats != 0};
    struct msg_gone gone;

    msg_destroy_encode(&out, &m);
    struct wire_head head = {.type = WIRE_DESTROY, .epoch = l->epoch, .id = wire_id_new()};
    int r = wire_send(l->sock, &head, &out, NULL, 0, d);
    if (r < 0)
        return send_failed(e, r, "the keeper");

    if (await(l, head.id, &f, d, e) < 0)
        return -1;
    if (f.head.type == WIRE_ERROR)
        return msg_error_raise(&f, e);
    if (f.head.type != WIRE_GONE || msg_gone_decode(&f.payload, &gone, e) < 0)
        return pd_fail(e, PD_PROTOCOL, "the keeper answered %u to DESTROY", f.head.type);
    if (ret)
        *ret = gone;
    if (ret)
        ret->why = ""; /* the frame's */
    return 0;
}

int jail_send_command(struct jail *j, struct command *c, int own_group, struct pd_err *e)
{
    auto_fd procs = -1;

    c->id = wire_id_new();
    c->group[0] = 0;

    if (own_group && j->cgroup_dir >= 0) {
        snprintf(c->group, sizeof c->group, "c%u", ++j->next_group);
        procs = cgroup_command_create(j->cgroup_dir, c->group);
        if (procs < 0) {
            errno = -procs;
            return pd_fail_sys(e, "make the command's cgroup");
        }
    }
    return jail_send_prepared(j, c, procs, -1, e);
}

int jail_send_prepared(struct jail *j, const struct command *c, int procs, int extra,
                       struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_exec_encode(&out, &c->exec);

    int fds[5] = {c->fds[0], c->fds[1], c->fds[2]};
    unsigned count = 3;
    struct wire_head head = {.type = WIRE_EXEC, .epoch = j->epoch, .id = c->id, .flags = c->flags};

    if (procs >= 0) {
        head.flags |= EXEC_CGROUP;
        fds[count++] = procs;
    }
    if (extra >= 0) {
        head.flags |= EXEC_EXTRA;
        fds[count++] = extra;
    }

    deadline d = c->at_once ? 0 : deadline_in(SEND_PATIENCE);
    int r = wire_send(j->control, &head, &out, fds, count, d);
    return r < 0 ? send_failed(e, r, "the jail") : 0;
}

int jail_send_signal(struct jail *j, const struct command *c, int signal, deadline d,
                     struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_signal m = {.exec = c->id, .signal = signal};
    msg_signal_encode(&out, &m);
    struct wire_head head = {.type = WIRE_SIGNAL, .epoch = j->epoch, .id = wire_id_new()};
    int r = wire_send(j->control, &head, &out, NULL, 0, d);
    return r < 0 ? send_failed(e, r, "the jail") : 0;
}

int jail_send_size(struct jail *j, struct wire_id exec, unsigned rows, unsigned cols, deadline d,
                   struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_resize_encode(&out, &(struct msg_resize){.exec = exec, .rows = rows, .cols = cols});
    struct wire_head head = {.type = WIRE_RESIZE, .epoch = j->epoch, .id = wire_id_new()};
    int r = wire_send(j->control, &head, &out, NULL, 0, d);
    return r < 0 ? send_failed(e, r, "the jail") : 0;
}

void jail_forget_command(struct jail *j, const struct command *c)
{
    struct wire_head head = {.type = WIRE_ACK, .epoch = j->epoch, .id = c->id};
    (void)wire_send(j->control, &head, NULL, NULL, 0, deadline_in(SEND_PATIENCE));
    if (c->group[0])
        (void)cgroup_command_remove(j->cgroup_dir, c->group);
}

int jail_kill_command(struct jail *j, const struct command *c)
{
    return c->group[0] ? cgroup_command_kill(j->cgroup_dir, c->group) : -EOPNOTSUPP;
}

/* The frames until the end of the command. */
static int await_end(struct jail *j, const struct command *c, struct msg_exited *ret, deadline d,
                     struct pd_err *e)
{
    auto_frame f = FRAME_INIT;
    struct msg_exited end;

    do {
        if (await_from(NULL, j, c->id, &f, d, e) < 0)
            return -1;
        if (f.head.type == WIRE_ERROR)
            return msg_error_raise(&f, e);
        if (f.head.type != WIRE_EXITED && deadline_passed(d))
            return pd_fail(e, PD_TIMEOUT, "the command did not end before the deadline");
    } while (f.head.type != WIRE_EXITED);

    if (msg_exited_decode(&f.payload, &end, e) < 0)
        return -1;
    if (!end.exited)
        return pd_fail(e, PD_PROTOCOL, "the jail told of an end that is none");

    *ret = end;
    return 0;
}

int jail_run(struct jail *j, struct command *c, int own_group, struct msg_exited *ret, deadline d,
             struct pd_err *e)
{
    c->flags |= EXEC_QUIET;
    if (jail_send_command(j, c, own_group, e) < 0)
        return -1;

    int r = await_end(j, c, ret, d, e);
    if (r == 0)
        jail_forget_command(j, c);
    else if (c->group[0])
        (void)cgroup_command_remove(j->cgroup_dir, c->group); /* if nothing is left in it */
    return r;
}

/* What stands for a terminal that is made with its command, on another machine. */
static int open_far_terminal(int *ret_near, int *ret_far, struct pd_err *e)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return pd_fail_sys(e, "make a socket for a terminal");
    *ret_near = pair[0];
    *ret_far = pair[1];
    return 0;
}

int jail_open_terminal(const struct jail *j, int *ret_master, int *ret_slave, struct pd_err *e)
{
    int unlock = 0;

    if (j->is_far)
        return open_far_terminal(ret_master, ret_slave, e);
    if (j->devpts < 0)
        return pd_fail(e, PD_UNSUPPORTED, "the jail has no terminals");

    auto_fd master = openat(j->devpts, "ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) < 0)
        return pd_fail_sys(e, "open a terminal in the jail");
    auto_fd slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0)
        return pd_fail_sys(e, "open the far end of the terminal");

    *ret_master = fd_take(&master);
    *ret_slave = fd_take(&slave);
    return 0;
}
