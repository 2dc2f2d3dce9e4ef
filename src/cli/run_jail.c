/* How a command runs in a jail: CREATE goes to the keeper and, unless a terminal is needed, EXEC to
 * the jail at once, before it exists; init finds it when it starts. Then one poll loop moves the
 * streams and waits for the end, the deadline, a limit or a signal. Whatever ends it, the jail is
 * destroyed before the rest of the output is read: nothing is left that could write more.
 *
 * Without a keeper that runs, this process is its own (keeper_take_inside), and its only other
 * process is the builder. Where there is a gate, which is a child besides, the private keeper is a
 * process. */
#include "cli/run.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "cli/terminal.h"
#include "jail/identity.h"
#include "jail/jail.h"
#include "jail/keeper.h"
#include "jail/netns.h"
#include "jail/walls.h"
#include "wire/start.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#define CREATE_PATIENCE  (30 * NS_PER_S)
#define DESTROY_PATIENCE (15 * NS_PER_S)
#define REASON_PATIENCE  (2 * NS_PER_S)
#define SIGNAL_PATIENCE  (10 * NS_PER_S)

extern char **environ;

struct session {
    struct run_options *options;
    struct run_result *result;
    struct keeper_link link;
    struct jail jail;
    struct command command;
    struct stream in, out, err;
    struct terminal terminal;
    int use_terminal;
    int signals;
    int created, ended, lost;
    int refused; /* init could not start the command */
    struct msg_exited end;
    struct msg_gone gone;
};

/* Whether a later --env, from `first` on, gives the variable of `assignment` another value. */
static int is_replaced(const struct run_options *o, const char *assignment, unsigned first)
{
    size_t len = strcspn(assignment, "=") + 1;

    for (unsigned k = first; k < o->env_count; k++)
        if (!strncmp(o->env[k], assignment, len))
            return 1;
    return 0;
}

static int add_env(struct msg_list_writer *w, const struct run_options *o, int terminal)
{
    char home[64], user[64], term[128];
    const char *const name = o->uid == UID_ROOT ? "root" : "user";
    const char *host_term = getenv("TERM");

    snprintf(home, sizeof home, "HOME=%s", o->uid == UID_ROOT ? "/root" : "/home/user");
    snprintf(user, sizeof user, "USER=%s", name);
    snprintf(term, sizeof term, "TERM=%.100s", host_term ? host_term : "dumb");

    const char *path = o->spec.profile == PROFILE_DEV
                           ? "PATH=" INIT_SHIM_DIR
                             ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
                           : "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    const char *const usual[] = {path, home, user, "SHELL=/bin/bash", "LANG=C.UTF-8", term};
    const size_t count = sizeof usual / sizeof *usual - (terminal ? 0 : 1);

    int r = 0;
    /* A name that is there twice would be read differently by different programs. */
    for (size_t i = 0; i < count; i++)
        if (!is_replaced(o, usual[i], 0))
            r |= msg_list_add(w, usual[i]);
    for (unsigned k = 0; k < o->env_count; k++)
        if (!is_replaced(o, o->env[k], k + 1))
            r |= msg_list_add(w, o->env[k]);

    if (wall_off("env"))
        for (char **v = environ; *v; v++)
            r |= msg_list_add(w, *v);
    return r;
}

/* Our end and the command's end of one stream. */
static int make_pipe(int *ret_read, int *ret_write, struct pd_err *e)
{
    int p[2];

    if (pipe2(p, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "make a pipe");

    *ret_read = p[0];
    *ret_write = p[1];
    return 0;
}

static int send_command(struct session *s, struct pd_err *e)
{
    const struct run_options *o = s->options;
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT, env = MSG_LIST_WRITER_INIT;

    int too_long = add_env(&env, o, s->use_terminal);
    for (int i = 0; i < o->argc; i++)
        too_long |= msg_list_add(&argv, o->argv[i]);

    s->command.exec = (struct msg_exec){.uid = o->uid,
                                        .gid = o->gid,
                                        .file_size = o->file_size,
                                        .cwd = o->workdir[0] ? o->workdir : "/workspace",
                                        .argv = msg_list_of(&argv),
                                        .environ = msg_list_of(&env)};

    /* The record names the process, also of a command that had to be ended. */
    s->command.flags = (o->json ? 0 : EXEC_QUIET) | (s->use_terminal ? EXEC_PTY : 0);
    int r = too_long
                ? pd_fail(e, PD_INVALID, "the command and its environment are longer than %u bytes",
                          WIRE_PAYLOAD_MAX)
                : jail_send_command(&s->jail, &s->command, 0, e);

    msg_list_writer_done(&argv);
    msg_list_writer_done(&env);
    return r;
}

/* Streams by pipes; the command goes out at once. */
static int begin_with_pipes(struct session *s, struct pd_err *e)
{
    auto_fd in_far = -1, in_near = -1, out_far = -1, out_near = -1, err_far = -1, err_near = -1;
    if (make_pipe(&in_far, &in_near, e) < 0 || make_pipe(&out_near, &out_far, e) < 0 ||
        make_pipe(&err_near, &err_far, e) < 0)
        return -1;

    s->command.fds[0] = in_far;
    s->command.fds[1] = out_far;
    s->command.fds[2] = err_far;
    if (send_command(s, e) < 0)
        return -1;

    (void)fd_set_nonblock(in_near);
    if (stream_init(&s->in, STDIN_FILENO, fd_take(&in_near)) < 0 ||
        stream_init(&s->out, fd_take(&out_near), STDOUT_FILENO) < 0 ||
        stream_init(&s->err, fd_take(&err_near), STDERR_FILENO) < 0)
        return pd_fail(e, PD_CAPACITY, "no memory for the streams");
    s->in.to_is_ours = s->out.from_is_ours = s->err.from_is_ours = 1;

    if (s->options->json) {
        s->out.capture = &s->result->out;
        s->err.capture = &s->result->err;
        s->out.to = s->err.to = -1;
    }
    return 0;
}

/* The keeper's answer: the jail is there. What it connected to until now waits for the gate. */
static int take_jail(struct session *s, struct frame *f, struct pd_err *e)
{
    if (jail_accept(&s->jail, f, e) < 0)
        return -1;
    if (s->options->spec.network != NETWORK_GATE)
        return 0;
    return run_network_open(&s->result->network, &s->options->egress, &s->jail, e);
}

static int begin_with_terminal(struct session *s, struct pd_err *e)
{
    auto_frame f = FRAME_INIT;
    auto_fd master = -1, slave = -1;

    int r = keeper_link_recv(&s->link, &f, deadline_in(CREATE_PATIENCE), e);
    if (r == 0)
        return pd_fail(e, PD_LOST, "the keeper died");
    if (r < 0 || take_jail(s, &f, e) < 0 || jail_open_terminal(&s->jail, &master, &slave, e) < 0)
        return -1;

    s->created = 1;
    terminal_copy_settings(STDIN_FILENO, master);
    s->command.fds[0] = s->command.fds[1] = s->command.fds[2] = slave;
    if (send_command(s, e) < 0)
        return -1;

    int copy = fcntl(master, F_DUPFD_CLOEXEC, 3);
    if (copy < 0 || stream_init(&s->in, STDIN_FILENO, copy) < 0 ||
        stream_init(&s->out, fd_take(&master), STDOUT_FILENO) < 0)
        return pd_fail(e, PD_CAPACITY, "no room for the streams");

    s->in.to_is_ours = s->out.from_is_ours = 1;
    terminal_raw(&s->terminal, STDIN_FILENO);
    return 0;
}

/* A jail that was never made cannot be sent a command; why it was not made, the keeper says. */
static int better_reason(struct session *s, struct pd_err *e)
{
    auto_frame f = FRAME_INIT;
    if (e->code == PD_LOST && !s->created &&
        keeper_link_recv(&s->link, &f, deadline_in(REASON_PATIENCE), NULL) > 0)
        (void)jail_accept(&s->jail, &f, e);
    return -1;
}

/* A frame from init. */
static int on_control(struct session *s, struct pd_err *e)
{
    auto_frame f = FRAME_INIT;

    int r = wire_recv_plain(s->jail.control, &f, 0, e);
    if (r < 0 && e->code == PD_TIMEOUT)
        return 0;
    if (r <= 0) {
        /* Init is gone, or talks nonsense: either way this jail is over. */
        s->lost = 1;
        return 0;
    }

    if (!wire_id_equal(f.head.id, s->command.id))
        return 0; /* the answer to a signal */

    struct msg_started started;
    switch (f.head.type) {
    case WIRE_ERROR:
        s->refused = 1;
        return msg_error_raise(&f, e);
    case WIRE_STARTED:
        if (msg_started_decode(&f.payload, &started, e) < 0)
            return -1;
        s->result->process_id = started.pid;
        return 0;
    case WIRE_EXITED:
        if (msg_exited_decode(&f.payload, &s->end, e) < 0)
            return -1;
        s->ended = 1;
        return 0;
    default:
        return pd_fail(e, PD_PROTOCOL, "the jail answered %u to a command", f.head.type);
    }
}

/* A frame from the keeper. */
static int on_keeper(struct session *s, struct pd_err *e)
{
    auto_frame f = FRAME_INIT;

    int r = wire_recv(s->link.sock, &f, 0, e);
    if (r < 0)
        return e->code == PD_TIMEOUT ? 0 : -1;
    if (r == 0)
        return pd_fail(e, PD_LOST, "the keeper died; the sandbox died with it");

    if (!s->created) {
        if (take_jail(s, &f, e) < 0)
            return -1;
        s->created = 1;
        return 0;
    }

    if (f.head.type == WIRE_GONE && msg_gone_decode(&f.payload, &s->gone, e) == 0) {
        s->gone.why = ""; /* the frame's */
        s->lost = 1;
    }
    return 0;
}

static void on_signal(struct session *s)
{
    struct signalfd_siginfo info;

    while (read(s->signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGWINCH)
            terminal_copy_size(STDIN_FILENO, s->out.from);
        else
            (void)jail_send_signal(&s->jail, &s->command, (int)info.ssi_signo,
                                   deadline_in(SIGNAL_PATIENCE), NULL);
    }
}

static int over_output(const struct session *s)
{
    return s->options->output && s->out.total + s->err.total > s->options->output;
}

/* Until the command has ended or must end. Returns what stopped it, NULL if nothing; -1 in
 * *ret_failed with the reason in *e if it never ran. */
static const char *wait_for_end(struct session *s, deadline d, int *ret_failed, struct pd_err *e)
{
    *ret_failed = 0;
    while (!s->ended && !s->lost) {
        struct pollfd p[8];
        unsigned n = 5, in, out;
        struct keeper *keeper = s->link.inside;
        deadline due = keeper ? keeper_inside_due(keeper) : DEADLINE_NONE;

        p[0] = (struct pollfd){s->jail.control, POLLIN, 0};
        p[1] = (struct pollfd){s->link.sock, POLLIN, 0};
        p[2] = (struct pollfd){s->signals, POLLIN, 0};
        p[3] = (struct pollfd){s->result->network.sock, POLLIN, 0};
        p[4] = (struct pollfd){keeper ? keeper_inside_fd(keeper) : -1, POLLIN, 0};

        unsigned at_in = n;
        n += in = stream_poll(&s->in, &p[n]);
        unsigned at_out = n;
        n += out = stream_poll(&s->out, &p[n]);
        unsigned at_err = n;
        unsigned err = stream_poll(&s->err, &p[n]);
        n += err;

        if (poll(p, n, deadline_poll_ms(due < d ? due : d)) < 0 && errno != EINTR)
            continue;
        if (keeper && p[4].revents)
            keeper_inside_hear(keeper);

        if (out)
            stream_move(&s->out, p[at_out].revents);
        if (err)
            stream_move(&s->err, p[at_err].revents);
        if (in)
            stream_move(&s->in, p[at_in].revents);
        if (p[2].revents)
            on_signal(s);
        if (p[3].revents)
            run_network_hear(&s->result->network);

        if ((p[1].revents && on_keeper(s, e) < 0) || (p[0].revents && on_control(s, e) < 0)) {
            *ret_failed = -1;
            return NULL;
        }

        if (over_output(s))
            return STOP_OUTPUT;
        if (deadline_passed(d) && !s->ended)
            return STOP_TIMEOUT;
    }
    return NULL;
}

static const char *why_it_ended(const struct session *s)
{
    int status = s->end.status;
    int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

    /* So a shell says which signal ended its last command. */
    if (WIFEXITED(status) && WEXITSTATUS(status) > 128)
        sig = WEXITSTATUS(status) - 128;

    if (s->ended && status == 0)
        return NULL;
    if (s->gone.oom_kills)
        return STOP_OOM;
    if (sig == SIGSYS)
        return STOP_SYSCALL;
    if ((sig == SIGXFSZ && s->options->file_size) || s->end.disk_full)
        return STOP_DISK;
    return s->gone.pids_refused ? STOP_PIDS : NULL;
}

static const char *why_not_full(const struct session *s)
{
    if (s->jail.rung == RUNG_FULL)
        return NULL;
    if (s->options->spec.network == NETWORK_HOST)
        return "--network host shares the host's network";
    if (geteuid() != 0)
        return "not root: one uid for everything, limits by rlimit only";
    return "no cgroups: limits by rlimit only, see `paddock doctor`";
}

/* The keeper's answer to CREATE, if it is still to come. */
static int await_created(struct session *s, struct pd_err *e)
{
    auto_frame f = FRAME_INIT;

    if (s->created)
        return 0;

    int r = keeper_link_recv(&s->link, &f, deadline_in(CREATE_PATIENCE), e);
    if (r == 0)
        return pd_fail(e, PD_LOST, "the keeper died");
    if (r < 0 || take_jail(s, &f, e) < 0)
        return -1;
    s->created = 1;
    return 0;
}

/* Ends the jail of a command that never ran. Waits for it: the next run may want the same named
 * root. */
static void discard(struct session *s)
{
    struct pd_err ignored;
    if (await_created(s, &ignored) == 0)
        (void)jail_destroy(&s->link, &s->jail, 0, NULL, deadline_in(DESTROY_PATIENCE), &ignored);
}

/* Ends the jail, then reads what its processes had still written. */
static int finish(struct session *s, const char *stopped_by, deadline d, struct pd_err *e)
{
    struct run_result *r = s->result;
    int want_stats = s->options->json || !s->ended || s->end.status != 0;

    if (await_created(s, e) < 0) /* stopped before the answer came */
        return -1;

    int already = s->gone.how == GONE_DIED;
    if (!already &&
        jail_destroy(&s->link, &s->jail, want_stats, &s->gone, deadline_in(DESTROY_PATIENCE), e) <
            0 &&
        e->code != PD_NOT_FOUND)
        return pd_wrap(e, "end the sandbox");
    if (s->gone.how == GONE_UNDEAD)
        return pd_fail(e, PD_INTERNAL,
                       "a process of the sandbox cannot be ended: it hangs in the kernel");

    stream_drain(&s->out, d);
    stream_drain(&s->err, d);
    r->stopped_by = stopped_by ? stopped_by : why_it_ended(s);
    r->status = s->ended ? s->end.status : SIGKILL;
    r->cpu_usec = s->gone.cpu_usec ? s->gone.cpu_usec : s->end.cpu_usec;
    r->max_rss = s->end.max_rss;

    if (!s->ended && !r->stopped_by)
        return pd_fail(e, PD_LOST, "the sandbox died before the command ended");
    return 0;
}

static int watch_signals(struct session *s, struct pd_err *e)
{
    static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH};
    sigset_t mask;

    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++)
        sigaddset(&mask, forwarded[i]);

    sigprocmask(SIG_BLOCK, &mask, NULL);
    signal(SIGPIPE, SIG_IGN);
    s->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signals < 0 ? pd_fail_sys(e, "watch signals") : 0;
}

/* A child that was just forked waits for this processor until we sleep, but both have half a
 * millisecond to work: so we go to another one, if there is one, and may go anywhere again. */
static void leave_processor(void)
{
    cpu_set_t all, others;
    int here = sched_getcpu();

    if (here < 0 || sched_getaffinity(0, sizeof all, &all) < 0)
        return;
    others = all;
    CPU_CLR((unsigned)here, &others);
    if (CPU_COUNT(&others) && sched_setaffinity(0, sizeof others, &others) == 0)
        (void)sched_setaffinity(0, sizeof all, &all);
}

static int begin_keeper(struct session *s, const char *path, struct pd_err *e)
{
    if (path)
        return keeper_connect(&s->link, path, e);

    int r = s->options->spec.network == NETWORK_GATE ? keeper_start_private(&s->link, e)
                                                     : keeper_take_inside(&s->link, e);
    if (r == 0)
        leave_processor();
    return r;
}

static void end_keeper(struct session *s)
{
    if (s->link.inside)
        keeper_inside_end(s->link.inside);
}

int run_in_jail(struct run_options *o, struct run_result *ret, struct pd_err *e)
{
    static struct session s;
    const char *keeper = getenv("PADDOCK_KEEPER");

    s.options = o;
    s.result = ret;
    s.in.from = s.out.from = s.err.from = -1;
    ret->network.sock = -1;
    s.use_terminal = !o->json && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    ret->provider = "jail";

    if (geteuid() != 0 && o->uid != UID_USER)
        return pd_fail(e, PD_UNSUPPORTED, "--user: without root a sandbox has one uid, 'user'");
    if (begin_keeper(&s, keeper, e) < 0)
        return -1;
    if (o->spec.network == NETWORK_GATE && run_network_start(&ret->network, e) < 0)
        return -1;

    uint64_t began = clock_now();
    deadline d = o->timeout_ns ? deadline_in(o->timeout_ns) : DEADLINE_NONE;
    auto_fd netns = -1;
    if (!keeper && geteuid() == 0 && o->spec.network == NETWORK_NONE && !wall_off("netns")) {
        auto_fd proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
        netns = netns_create(proc, NULL); /* if it fails, the builder says why */
    }

    if (watch_signals(&s, e) < 0 || jail_request_in(&s.link, &s.jail, &o->spec, 0, netns, e) < 0)
        return -1;
    fd_done(&netns);
    if ((s.use_terminal ? begin_with_terminal(&s, e) : begin_with_pipes(&s, e)) < 0) {
        (void)better_reason(&s, e);
        end_keeper(&s);
        return -1;
    }

    int failed;
    const char *stopped_by = wait_for_end(&s, d, &failed, e);
    ret->time_ns = clock_now() - began;

    if (!failed)
        failed = finish(&s, stopped_by, d, e);
    else if (s.refused)
        discard(&s);

    end_keeper(&s);
    run_network_finish(&ret->network, deadline_in(REASON_PATIENCE));
    ret->rung = s.jail.rung;
    ret->reason = why_not_full(&s);
    terminal_restore(&s.terminal);
    return failed;
}
