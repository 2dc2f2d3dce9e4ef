/* How init begins in a box that somebody else made: a container of an engine, or a plain directory.
 *
 * It differs from a jail's init (main.c) in what it can rely on. Nobody arranged its root, its uid,
 * its capabilities or its descriptors, and its parent is a stranger whose death means nothing. So
 * it sees to its standard descriptors, makes the directories that commands need while it still may,
 * sheds its power (shed.c), finds out what there is (facts.c), loads the filter of system calls
 * that it was given, and waits for an owner at its door (door.c). Then it takes turns as ever
 * (peers.c).
 *
 * Where it is not pid 1 the kernel does not end its processes with it: it is their subreaper, and
 * ends them itself. */
#include "init/init.h"

#include "init/door.h"
#include "init/facts.h"
#include "init/fds.h"
#include "init/shed.h"
#include "init/tree.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define FIRST_PATIENCE (10 * NS_PER_S) /* for a door that is not there yet */
#define END_PATIENCE   (5 * NS_PER_S)  /* for processes that do not die */
#define OOM_MORE       300             /* of a command, above init's own score */
#define LEASE_MOST     (30ull * 24 * 3600)

struct box {
    bool local;
    struct door door;
    const char *filter; /* path, or NULL: none of its own */
    struct facts facts;
    struct foreign foreign;
    uint64_t memory_limit, process_limit;
};

static int complain(const struct pd_err *e)
{
    (void)!write(2, "paddock-init: ", 14);
    (void)!write(2, e->msg, strlen(e->msg));
    (void)!write(2, "\n", 1);
    return 1;
}

/* ---- the words of the command line ---- */

static int read_user(const char *text, struct facts *f, struct pd_err *e)
{
    char uid[16];
    uint64_t u, g;
    size_t n = strcspn(text, ":");

    if (n >= sizeof uid)
        return pd_fail(e, PD_INVALID, "user=%.40s: must be UID or UID:GID", text);
    memcpy(uid, text, n);
    uid[n] = 0;
    if (parse_u64("user", uid, 0, UINT32_MAX - 1, &u, e) < 0 ||
        parse_u64("user", text[n] ? text + n + 1 : uid, 0, UINT32_MAX - 1, &g, e) < 0)
        return -1;

    f->uid = (uid_t)u;
    f->gid = (gid_t)g;
    return 0;
}

static int read_path(const char *word, const char *text, const char **ret, struct pd_err *e)
{
    if (text[0] != '/' || !text[1] || strlen(text) >= FACTS_PATH)
        return pd_fail(e, PD_INVALID, "'%.100s': must be an absolute path of at most %u bytes",
                       word, FACTS_PATH - 1);
    *ret = text;
    return 0;
}

static int read_word(struct box *b, const char *word, struct pd_err *e)
{
    const char *value = strchr(word, '=');
    size_t n = value ? (size_t)(value - word) : strlen(word);
    value = value ? value + 1 : "";

#define IS(name) (n == sizeof(name) - 1 && !strncmp(word, name, n))
    if (IS("at"))
        return read_path(word, value, &b->door.path, e);
    if (IS("filter"))
        return read_path(word, value, &b->filter, e);
    if (IS("workspace"))
        return read_path(word, value, &b->facts.workspace, e);
    if (IS("home"))
        return read_path(word, value, &b->facts.home, e);
    if (IS("user"))
        return read_user(value, &b->facts, e);
    if (IS("memory"))
        return parse_u64("memory", value, 0, UINT64_MAX, &b->memory_limit, e);
    if (IS("processes"))
        return parse_u64("processes", value, 0, UINT64_MAX, &b->process_limit, e);
    if (IS("profile")) {
        b->facts.dev = !strcmp(value, INIT_ARG_DEV);
        if (b->facts.dev || !strcmp(value, INIT_ARG_STRICT))
            return 0;
        return pd_fail(e, PD_INVALID, "profile '%.40s': must be strict or dev", value);
    }
    if (IS("lease")) {
        if (parse_u64("lease", value, 0, LEASE_MOST, &b->door.lease, e) < 0)
            return -1;
        b->door.lease *= NS_PER_S;
        return 0;
    }
#undef IS
    return pd_fail(e, PD_INVALID, "'%.100s' is no word of init's", word);
}

static int read_words(struct box *b, int argc, char **argv, struct pd_err *e)
{
    *b = (struct box){
        .local = !strcmp(argv[1], INIT_ARG_LOCAL),
        .door = {.path = INIT_DOOR},
        .facts = {.uid = 1000, .gid = 1000, .workspace = "/workspace"},
        .foreign = {.oom_file = -1},
    };

    for (int i = 2; i < argc; i++)
        if (read_word(b, argv[i], e) < 0)
            return -1;
    return 0;
}

/* ---- birth ---- */

/* Descriptors 0 to 2 must be taken: those of commands are put there. */
static int fill_standard(struct pd_err *e)
{
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) >= 0)
            continue;
        int got = open("/dev/null", O_RDWR);
        if (got != fd)
            return pd_fail_sys(e, "open /dev/null as descriptor %d", fd);
    }
    return 0;
}

/* Whoever can raise its score can lower it again to what it was, but the file must be opened while
 * init is dumpable: afterwards it is root's. */
static void prepare_oom_score(struct foreign *f)
{
    char text[16];
    if (fd_read_file(AT_FDCWD, "/proc/self/oom_score_adj", text, sizeof text) <= 0)
        return;

    int own = (int)strtol(text, NULL, 10);
    int more = own + OOM_MORE > 1000 ? 1000 : own + OOM_MORE;
    snprintf(f->oom_own, sizeof f->oom_own, "%d", own);
    snprintf(f->oom_command, sizeof f->oom_command, "%d", more);
    f->oom_file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
}

/* One that is not blocked never comes by a signalfd: no end of a command would be seen. */
static int block_signals(struct pd_err *e)
{
    sigset_t all;
    sigfillset(&all);
    return sigprocmask(SIG_SETMASK, &all, NULL) < 0 ? pd_fail_sys(e, "block signals") : 0;
}

/* Settles the requests to the box with the facts that it gives. */
static int settle(struct box *b, enum init_mode *ret, struct pd_err *e)
{
    struct shed shed;
    facts_make_places(&b->facts);
    if (shed_power(b->facts.dev, &shed, e) < 0)
        return pd_wrap(e, "give up what this box was given");

    b->facts.mode = shed.single ? FACTS_SINGLE : b->facts.dev ? FACTS_DEV : FACTS_STRICT;
    if (shed.unbounded && !b->local) /* which promises no walls */
        facts_lack(&b->facts, "the bounding set is not empty: SETPCAP was not given");
    facts_find(&b->facts);

    *ret = shed.single ? INIT_SINGLE : b->facts.dev ? INIT_DEV : INIT_STRICT;
    return 0;
}

/* Loads the filter of system calls that the box was given: from here on it holds for all. A kernel
 * or an engine that takes none is no reason to end; whoever made the box is told. */
static int load_filter(struct box *b, struct pd_err *e)
{
    struct sock_filter code[INIT_FILTER_MAX];

    if (!b->filter)
        return 0;
    auto_fd file = open(b->filter, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return pd_fail_sys(e, "open the filter of system calls %.200s", b->filter);
    ssize_t n = read(file, code, sizeof code);
    if (n <= 0 || (size_t)n % sizeof *code)
        return pd_fail(e, PD_INVALID, "%.200s is no filter of system calls", b->filter);

    struct sock_fprog program = {.len = (unsigned short)((size_t)n / sizeof *code), .filter = code};
    if (syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0)
        facts_lack(&b->facts, "no filter of system calls but the engine's (%s)", strerror(errno));
    return 0;
}

static int be_born(struct box *b, enum init_mode *ret_mode, struct pd_err *e)
{
    b->foreign.parent = getppid();
    if (block_signals(e) < 0 || fill_standard(e) < 0)
        return -1;
    if (b->local) {
        prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
        if (getppid() != b->foreign.parent)
            return pd_fail(e, PD_LOST, "its parent is gone");
    }
    if (getpid() != 1 && prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
        return pd_fail_sys(e, "become the reaper of its processes");

    prepare_oom_score(&b->foreign);
    if (settle(b, ret_mode, e) < 0)
        return -1;

    /* The change of uid has set it anew. */
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return pd_fail_sys(e, "become undumpable");
    prctl(PR_SET_NAME, "paddock-init", 0, 0, 0);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    return load_filter(b, e);
}

/* Its owner's socket, or the one that will bring it. */
static int find_owner(struct box *b, struct pd_err *e)
{
    if (!b->local)
        return door_connect(b->door.path, deadline_in(FIRST_PATIENCE), e);

    if (fcntl(INIT_OWNER_FD, F_SETFD, FD_CLOEXEC) < 0)
        return pd_fail(e, PD_INVALID, "descriptor %d is not open: it must be the owner's socket",
                       INIT_OWNER_FD);
    return INIT_OWNER_FD;
}

static int begin(struct box *b, struct init *in, enum init_mode mode, int owner, struct pd_err *e)
{
    if (init_begin(in, mode, owner) < 0)
        return pd_fail_sys(e, "set up");

    /* Without it no end of a command could be told. */
    if (waitpid(-1, NULL, WNOHANG) < 0 && errno != ECHILD)
        return pd_fail_sys(e, "wait for processes (wait4)");

    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigaddset(&mask, SIGTERM);
    if (signalfd(in->signals, &mask, SFD_CLOEXEC | SFD_NONBLOCK) < 0)
        return pd_fail_sys(e, "listen to signals");

    /* Without a network of its own the name would be the machine's. paddock-box, whose owner is in
     * the box, is the first process of one. */
    if (mode == INIT_DEV && (!b->local || getpid() == 1))
        init_listen_for_sudo(in, true);

    facts_encode(&b->facts, environ, &in->facts);
    in->foreign = &b->foreign;
    in->memory_limit = b->memory_limit;
    in->process_limit = b->process_limit;
    in->awaits = !b->local || getenv(INIT_ENV_WAITS);
    return 0;
}

/* ---- life ---- */

static int live(struct box *b, struct init *in, struct pd_err *e)
{
    if (!in->awaits)
        init_tell_facts(in);

    for (;;) {
        if (init_turn(in, door_patience(&b->door, in)) < 0) {
            if (in->ending)
                return 0;
            if (in->refused) {
                errno = in->refused;
                return pd_fail_sys(e, "wait or send (poll, sendmsg)");
            }
            if (door_lost(&b->door, in, e) < 0)
                return -1;
        }
        if (door_tend(&b->door, in, e) < 0)
            return -1;
    }
}

int box_main(int argc, char **argv)
{
    struct box b;
    struct init in;
    struct pd_err e;
    enum init_mode mode = INIT_SINGLE;

    if (fds_need_close(&e) < 0 || read_words(&b, argc, argv, &e) < 0 || be_born(&b, &mode, &e) < 0)
        _exit(complain(&e));

    int owner = find_owner(&b, &e);
    if (owner < 0 || begin(&b, &in, mode, owner, &e) < 0)
        _exit(complain(&e));

    int r = live(&b, &in, &e);
    if (r < 0)
        complain(&e);
    if (getpid() != 1)
        (void)tree_end(deadline_in(END_PATIENCE));
    _exit(0);
}
