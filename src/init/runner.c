/* How this works: to start a command init has to wake up, make a child, and wake up again when the
 * child has its program. Where the processors are few that takes longer than all that the child
 * does. So a *runner* is made before: a child that shares init's memory until its exec, as a
 * vforked one does, and hears the owner's socket in init's place. An EXEC wakes it and nobody else.
 * It receives the frame with its descriptors, which are never init's; leaves in the memory that it
 * shares which command it has become (`taken`); lets init hear the owner again; and goes the way of
 * any child (launch_go). Init is woken by its end, by the next frame, or by whatever else there is.
 *
 * One hears the owner at a time. While it is the runner, init polls an epoll set, in which the
 * owner's socket is asked for nothing (its end shows all the same). The runner gives it back by
 * asking for input there, after `taken` is set and before anything else of the command can be seen:
 * so init enters the command into its table (runner_look) before it hears what is said about it,
 * and before it reaps it.
 *
 * Taken is a plain command of init's owner: quiet, without terminal, no worker, of the epoch that
 * init knows, with an id that it does not know, below PAYLOAD_MOST. It looks at the head before it
 * receives. Anything else the runner leaves where it is: it gives the socket back and ends.
 *
 *   made      at the beginning, and 1 ms after a plain command is acknowledged: not while others
 *             run, whose last fork the limit of processes would refuse for it, and not between file
 *             calls, which would pay for being looked at twice
 *   ends      as its command; when something else than that comes, before it is started; or after
 *             WAIT_MOST_S without one
 *
 * Beside a running init the child makes raw system calls only (errno is init's), allocates nothing,
 * and writes to its own record alone. That may be used again when the kernel says that the memory
 * is left (set_tid_address): the child has its program, or has ended. If there is no program the
 * record keeps the reason until its owner is told.
 *
 * Who could harm it? It has init's uid and capabilities, is not dumpable, and is only made where
 * nobody in the jail may signal init's uid: not in `dev`, whose root may, not where init and
 * commands have one uid, and not in boxes that somebody else made. */
#include "init/runner.h"

#include "init/launch.h"
#include "init/raw.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define STACK_SIZE   (64u << 10)
#define PAYLOAD_MOST (16u << 10)
#define WORDS_MOST   (PAYLOAD_MOST + 4) /* a word has a byte at least; with the slots beside them */
#define WAIT_MOST_S  30
#define QUIET_MS     1

#ifdef __SANITIZE_ADDRESS__
/* A child leaves its stack by exec, and its frames would stay marked as in use. */
void __asan_unpoison_memory_region(const volatile void *at, size_t size);
#else
#define __asan_unpoison_memory_region(at, size) ((void)0)
#endif

/* In memory that both have. Pages that nobody has touched cost nothing. */
struct runner {
    int epoll; /* with the owner's socket */
    pid_t pid; /* 0: its end is known, or there was none */
    bool hears;
    bool owes; /* `why` is still to be told */
    struct pd_err why;

    /* Of the child, and init's when `taken` is seen. */
    const struct init *in;
    int owner;
    int in_memory; /* cleared by the kernel when the child has left this memory */
    atomic_bool taking, taken, gave_back, lost_frame;
    struct wire_id id; /* of the command that it takes */
    bool waited_in_vain;
    bool refused; /* `why` says what is wrong with the request */
    struct frame frame;
    struct msg_exec m;
    struct launch launch;
    char *words[WORDS_MOST];
    _Alignas(16) char stack[STACK_SIZE];
};

/* ---- the child ---- */

static _Noreturn void child_end(void)
{
    for (;;)
        raw(SYS_exit_group, 127);
}

static void give_back(struct runner *r)
{
    struct epoll_event event = {.events = EPOLLIN};
    raw(SYS_epoll_ctl, r->epoll, EPOLL_CTL_MOD, r->owner, &event);
}

/* The head of the owner's next frame. The frame stays where it is. */
static long peek(const struct runner *r, struct wire_head *ret)
{
    *ret = (struct wire_head){0};
    return raw(SYS_recvfrom, r->owner, ret, sizeof *ret, MSG_PEEK | MSG_DONTWAIT, NULL, NULL);
}

/* Is it a command that this child can become? */
static bool may_take(struct runner *r)
{
    const struct peer *owner = &r->in->peers[0];
    struct wire_head head;
    long n = peek(r, &head);

    if (n != (long)sizeof head || head.magic != WIRE_MAGIC || head.type != WIRE_EXEC ||
        head.len > PAYLOAD_MOST || head.epoch != owner->epoch)
        return false;
    if (!(head.flags & EXEC_QUIET) || head.flags & (EXEC_PTY | EXEC_WORKER | EXEC_REACH))
        return false;

    for (unsigned i = 0; i < r->in->process_count; i++)
        if (wire_id_equal(r->in->processes[i].id, head.id))
            return false;
    r->id = head.id;
    return true;
}

/* Waits until there is one: false when there is none to wait for any more, or the next frame is not
 * one. */
static bool await_command(struct runner *r)
{
    struct timespec left = {.tv_sec = WAIT_MOST_S}; /* ppoll keeps the rest there */
    struct pollfd owner = {.fd = r->owner, .events = POLLIN};
    long n;

    do
        n = raw(SYS_ppoll, &owner, 1, &left, NULL, 0);
    while (n == -EINTR);
    r->waited_in_vain = n == 0;
    return n == 1 && owner.revents == POLLIN && may_take(r);
}

static int child_main(void *arg)
{
    struct runner *r = arg;
    struct pd_err e;
    raw(SYS_set_tid_address, &r->in_memory);
    launch_prepare();

    if (!await_command(r)) {
        atomic_store(&r->gave_back, true);
        give_back(r);
        child_end();
    }

    atomic_store(&r->taking, true);
    if (wire_recv(r->owner, &r->frame, 0, &e) != 1) {
        atomic_store(&r->lost_frame, true);
        give_back(r);
        child_end();
    }

    struct launch *l = &r->launch;
    unsigned flags = r->frame.head.flags;
    r->refused = msg_exec_decode(&r->frame.payload, &r->m, &r->why) < 0 ||
                 init_may_exec(r->in, &r->in->peers[0], &r->m, &r->why) < 0 ||
                 launch_check_fds(&r->m, &r->frame, flags, &r->why) < 0;
    atomic_store(&r->taken, true);
    give_back(r);
    if (r->refused)
        child_end();

    char **env = r->words + r->m.argv.count + 2;
    launch_words(&r->m.argv, r->words);
    launch_words(&r->m.environ, env);
    *l = (struct launch){.m = &r->m,
                         .in = r->in,
                         .flags = flags,
                         .fds = r->frame.fds,
                         .argv = r->words + 1,
                         .env = env + 1};
    launch_find_path(l);
    launch_go(l);
}

/* ---- init ---- */

static struct runner *runner_new(const struct init *in)
{
    struct runner *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;

    struct epoll_event nothing = {.events = 0};
    r->in = in;
    r->owner = in->peers[0].sock;
    r->frame = FRAME_INIT;
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (frame_reserve(&r->frame) == 0 && r->epoll >= 0 &&
        epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->owner, &nothing) == 0)
        return r;

    frame_done(&r->frame);
    fd_done(&r->epoll);
    free(r);
    return NULL;
}

/* Has the child left its record? */
static bool is_free(const struct runner *r)
{
    return !r->hears && !r->owes &&
           (!r->pid ||
            (!__atomic_load_n(&r->in_memory, __ATOMIC_ACQUIRE) && !r->refused && !r->launch.step));
}

int runner_pause(const struct init *in)
{
    const struct runner *r = in->runner;
    const struct peer *owner = &in->peers[0];

    if (!RAW_LEAVES_ERRNO || in->mode != INIT_STRICT || in->foreign || in->awaits ||
        in->memory_limit || in->process_limit)
        return -1;
    if (!in->may_wait || !owner->serial || owner->out_waiting || owner->syncing || owner->full ||
        in->retry || (r && !is_free(r)))
        return -1;
    return in->process_count ? -1 : QUIET_MS;
}

void runner_make(struct init *in)
{
    struct runner *r = in->runner;
    struct epoll_event nothing = {.events = 0};

    in->may_wait = false; /* also where it fails: not again before the next command */
    if (process_reserve(in) < 0 || (!r && !(r = in->runner = runner_new(in))) ||
        epoll_ctl(r->epoll, EPOLL_CTL_MOD, r->owner, &nothing) < 0)
        return;

    /* The descriptors were the child's. */
    r->frame.fd_count = 0;
    buf_clear(&r->frame.payload);
    r->launch = (struct launch){.in = in};
    r->refused = false;
    atomic_store(&r->taking, false);
    atomic_store(&r->taken, false);
    atomic_store(&r->gave_back, false);
    __atomic_store_n(&r->in_memory, 1, __ATOMIC_RELEASE);

    __asan_unpoison_memory_region(r->stack, sizeof r->stack);
    pid_t pid = clone(child_main, r->stack + sizeof r->stack, CLONE_VM | SIGCHLD, r);
    r->pid = pid > 0 ? pid : 0;
    r->hears = pid > 0;
}

bool runner_hears(const struct init *in)
{
    return in->runner && in->runner->hears;
}

int runner_poll_fd(const struct init *in)
{
    return runner_hears(in) ? in->runner->epoll : in->peers[0].sock;
}

int runner_look(struct init *in)
{
    struct runner *r = in->runner;
    if (!r || !r->hears)
        return 0;

    if (atomic_load(&r->lost_frame))
        return -1;
    if (atomic_load(&r->taken)) {
        r->hears = false;
        in->was_plain = true;
        /* There is room: nobody else has added one. */
        (void)process_add(in, r->id, in->peers[0].serial, r->pid);
    } else if (atomic_load(&r->gave_back)) {
        /* At once: whatever is started next may be the last that the limit of processes allows. */
        while (waitpid(r->pid, NULL, 0) < 0 && errno == EINTR)
            ;
        r->hears = false;
        r->pid = 0;
        /* For what was said to somebody else there may be another; nobody spoke to this one. */
        in->may_wait = !r->waited_in_vain;
    }
    return 0;
}

/* Of a child that has ended while it took a frame: then it is not there any more, and it was the
 * command that was killed. */
static bool has_received(const struct runner *r)
{
    struct wire_head head;
    return atomic_load(&r->taking) && !atomic_load(&r->taken) && !atomic_load(&r->lost_frame) &&
           (peek(r, &head) != (long)sizeof head || !wire_id_equal(head.id, r->id));
}

void runner_reaped(struct init *in, pid_t pid)
{
    struct runner *r = in->runner;
    if (!r || !r->pid || pid != r->pid)
        return;

    /* It may have become a command since the last look, or have been killed. */
    if (r->hears && has_received(r))
        atomic_store(&r->taken, true);
    if (runner_look(in) < 0)
        in->ending = true;
    r->pid = 0;
    r->hears = false;
    if (!atomic_load(&r->taken) || (!r->refused && !r->launch.step))
        return;

    if (!r->refused)
        launch_explain(&r->launch, &r->why);
    struct process *p = process_find(in, r->id, in->peers[0].serial);
    r->owes = p != NULL;
    if (p)
        p->failed = true;
}

const struct pd_err *runner_failure(const struct init *in)
{
    return &in->runner->why;
}

void runner_forget_failure(struct init *in)
{
    in->runner->owes = false;
}

void runner_done(struct init *in)
{
    struct runner *r = in->runner;
    if (!r)
        return;

    if (r->hears && kill(r->pid, SIGKILL) == 0)
        (void)waitpid(r->pid, NULL, 0);
    r->frame.fd_count = 0;
    frame_done(&r->frame);
    fd_done(&r->epoll);
    free(r);
    in->runner = NULL;
}
