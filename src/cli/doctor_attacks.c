/* How this works: `paddock run` itself, called in a child, starts the probe in a jail; so what is
 * proved is what a user gets, environment and descriptors included. The control is the same program
 * executed as a plain child. Both find on the host what doctor put there for them: listeners, a
 * process with a known name, an environment variable, an open descriptor. */
#include "cli/doctor_attacks.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/doctor_text.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#define PATIENCE     (60 * NS_PER_S)
#define OUTPUT_MAX   65536u
#define PROBE_INSIDE "/run/paddock-probe"
#define ARGS_MAX     32

struct bait {
    char target[32], port[32], socket[64], comm[32], host[128], spaces[400];
    int loopback, abstract, leaked;
    pid_t stand_in;
};

struct output {
    struct buf out, err;
    int status;
};

const char *attack_result_name(enum attack_result r)
{
    static const char *const names[] = {"held", "unproved", "absent", "broken"};
    return r < ATTACK_RESULT_COUNT ? names[r] : "?";
}

/* ---- bait ---- */

static int listen_on(const struct sockaddr *a, socklen_t size)
{
    auto_fd fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, a, size) < 0 || listen(fd, 8) < 0)
        return -1;
    return fd_take(&fd);
}

/* Bait that cannot be put out leaves an attack that works nowhere, which is reported as such. */
static void bait_listen(struct bait *b, const char *word)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof in;

    b->loopback = listen_on((struct sockaddr *)&in, size);
    if (b->loopback >= 0)
        getsockname(b->loopback, (struct sockaddr *)&in, &size);
    snprintf(b->port, sizeof b->port, "port=%u", ntohs(in.sin_port));

    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path + 1, sizeof un.sun_path - 1, "paddock-doctor-%s", word);
    size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(un.sun_path + 1));
    b->abstract = listen_on((struct sockaddr *)&un, size);
    snprintf(b->socket, sizeof b->socket, "socket=%.40s", un.sun_path + 1);
}

static void bait_spaces(struct bait *b)
{
    static const char *const kinds[] = PROBE_SPACES;

    size_t n = (size_t)snprintf(b->spaces, sizeof b->spaces, "spaces=");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && n < sizeof b->spaces - 64; i++) {
        char path[48], link[48];
        snprintf(path, sizeof path, "/proc/self/ns/%s", kinds[i]);
        ssize_t len = readlink(path, link, sizeof link);
        if (len > 0)
            n += (size_t)snprintf(b->spaces + n, sizeof b->spaces - n, "%.*s,", (int)len, link);
    }
}

static void bait_put(struct bait *b)
{
    uint32_t random;
    char word[16];
    struct utsname u;

    random_bytes(&random, sizeof random);
    snprintf(word, sizeof word, "%08x", random);
    setenv(PROBE_MARK, word, 1);

    bait_listen(b, word);
    bait_spaces(b);
    uname(&u);
    snprintf(b->host, sizeof b->host, "host=%s", u.nodename);
    snprintf(b->comm, sizeof b->comm, "comm=pd-%s", word);

    pid_t doctor = getpid();
    b->stand_in = fork();
    if (b->stand_in == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        prctl(PR_SET_NAME, b->comm + 5, 0, 0, 0);
        while (getppid() == doctor)
            pause();
        _exit(0);
    }

    snprintf(b->target, sizeof b->target, "target=%d", b->stand_in > 0 ? b->stand_in : doctor);
    /* On purpose not O_CLOEXEC: it must not arrive in the jail, and does arrive outside. */
    b->leaked = open("/dev/null", O_RDONLY);
}

static void bait_take_back(struct bait *b)
{
    fd_done(&b->loopback);
    fd_done(&b->abstract);
    fd_done(&b->leaked);
    unsetenv(PROBE_MARK);
    if (b->stand_in > 0) {
        kill(b->stand_in, SIGKILL);
        waitpid(b->stand_in, NULL, 0);
    }
}

/* ---- children ---- */

static void output_done(struct output *o)
{
    buf_done(&o->out);
    buf_done(&o->err);
}

static int drain(int fd, struct buf *to)
{
    uint8_t *room = buf_reserve(to, 4096);
    uint8_t spill[4096];

    ssize_t n = read(fd, room ? room : spill, 4096);
    if (n > 0 && room)
        to->len += (size_t)n;
    return n > 0 || (n < 0 && errno == EINTR);
}

static _Noreturn void child(char **argv, int argc, int in_jail, int out, int err)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    dup2(null, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);

    if (in_jail) {
        int status = cmd_run(argc, argv);
        fflush(NULL);
        _exit(status);
    }
    execv("/proc/self/exe", argv);
    _exit(127);
}

/* Runs a child to its end or to its deadline and collects what it writes. */
static int run_child(char **argv, int in_jail, struct output *ret, struct pd_err *e)
{
    int pipes[2][2], argc = 0;
    while (argv[argc])
        argc++;

    if (pipe2(pipes[0], O_CLOEXEC) < 0)
        return pd_fail_sys(e, "make a pipe");
    auto_fd out = pipes[0][0], out_far = pipes[0][1];
    if (pipe2(pipes[1], O_CLOEXEC) < 0)
        return pd_fail_sys(e, "make a pipe");
    auto_fd err = pipes[1][0], err_far = pipes[1][1];

    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        return pd_fail_sys(e, "start a process");
    if (pid == 0)
        child(argv, argc, in_jail, out_far, err_far);

    fd_done(&out_far);
    fd_done(&err_far);
    deadline d = deadline_in(PATIENCE);
    while ((out >= 0 || err >= 0) && !deadline_passed(d)) {
        struct pollfd p[2] = {{out, POLLIN, 0}, {err, POLLIN, 0}};
        if (poll(p, 2, deadline_poll_ms(d)) < 0)
            continue;
        if (p[0].revents && !drain(out, &ret->out))
            fd_done(&out);
        if (p[1].revents && !drain(err, &ret->err))
            fd_done(&err);
    }

    int late = out >= 0 || err >= 0;
    if (late)
        kill(pid, SIGKILL);
    while (waitpid(pid, &ret->status, 0) < 0 && errno == EINTR)
        continue;
    return late ? pd_fail(e, PD_TIMEOUT, "no end after %u s", (unsigned)(PATIENCE / NS_PER_S)) : 0;
}

/* ---- findings ---- */

static struct attack *find(struct attack_report *r, const char *name)
{
    for (unsigned i = 0; i < r->count; i++)
        if (!strcmp(r->attacks[i].row->name, name))
            return &r->attacks[i];
    return NULL;
}

static void read_findings(struct attack_report *r, struct buf *text, int inside)
{
    if (!buf_cstr(text))
        return;
    for (char *line = (char *)text->data, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;

        const char *name, *detail;
        int worked;
        if (text_probe_line(line, &name, &worked, &detail) < 0)
            continue;

        struct attack *a = find(r, name);
        if (!a)
            continue;

        if (inside) {
            a->tried = 1;
            a->works_inside = worked;
            snprintf(a->detail, sizeof a->detail, "%s", detail);
        } else {
            a->works_outside = worked;
        }
    }
}

static void add_rows(struct attack_report *r, const struct probe_table *t)
{
    for (size_t i = 0; i < t->count && r->count < ATTACKS_MAX; i++)
        r->attacks[r->count++].row = &t->rows[i];
}

/* The first line of what the program said, without its name in front. */
static void first_line(struct buf *text, char *ret, size_t size)
{
    const char *p = buf_cstr(text);
    if (!p || !*p)
        return;

    if (!strncmp(p, "paddock: ", 9))
        p += 9;
    snprintf(ret, size, "%.*s", (int)strcspn(p, "\n"), p);
}

/* Adds arguments up to NULL. */
static int append(char **argv, int n, char *const *more)
{
    while (*more && n < ARGS_MAX - 1)
        argv[n++] = *more++;
    argv[n] = NULL;
    return n;
}

static int attack_jail(enum rung rung, char *const *limits, char *const *probe,
                       struct output *output, struct attack_report *ret)
{
    struct pd_err e;
    char path[SPEC_PATH_MAX], bind[SPEC_PATH_MAX + 64];

    ssize_t len = readlink("/proc/self/exe", path, sizeof path - 1);
    if (len <= 0) {
        snprintf(ret->why_not, sizeof ret->why_not, "/proc/self/exe cannot be read: %s",
                 strerror(errno));
        return -1;
    }

    snprintf(bind, sizeof bind, "%.*s:" PROBE_INSIDE, (int)len, path);
    char *argv[ARGS_MAX];
    char *const begin[] = {(char *)"run",
                           (char *)"--timeout=50s",
                           (char *)"--min-isolation",
                           (char *)rung_name(rung),
                           (char *)"--bind",
                           bind,
                           NULL};
    char *const middle[] = {(char *)"--", (char *)PROBE_INSIDE, (char *)"probe", NULL};

    int n = append(argv, 0, begin);
    n = append(argv, n, limits);
    n = append(argv, n, middle);
    append(argv, n, probe);

    if (run_child(argv, 1, output, &e) < 0) {
        snprintf(ret->why_not, sizeof ret->why_not, "%s", e.msg);
        return -1;
    }

    read_findings(ret, &output->out, 1);
    return 0;
}

static void attack_outside(char *const *probe, struct attack_report *ret)
{
    char *argv[ARGS_MAX];
    char *const begin[] = {(char *)"paddock", (char *)"probe", NULL};
    struct output output = {.out = BUF_INIT(OUTPUT_MAX), .err = BUF_INIT(OUTPUT_MAX)};

    append(argv, append(argv, 0, begin), probe);
    if (run_child(argv, 0, &output, NULL) == 0)
        read_findings(ret, &output.out, 0);
    output_done(&output);
}

static void attack_walls(enum rung rung, struct attack_report *ret)
{
    struct bait b = {.loopback = -1, .abstract = -1, .leaked = -1};
    struct output output = {.out = BUF_INIT(OUTPUT_MAX), .err = BUF_INIT(OUTPUT_MAX)};

    bait_put(&b);

    char target_init[] = "target=1";
    char *const none[] = {NULL};
    char *probe[] = {(char *)"attacks", target_init, b.port, b.socket, b.comm, b.host,
                     b.spaces,          NULL};

    if (attack_jail(rung, none, probe, &output, ret) == 0) {
        ret->jails_work = WIFEXITED(output.status) && WEXITSTATUS(output.status) == 0;
        first_line(&output.err, ret->why_not, sizeof ret->why_not);
        if (!ret->jails_work && !ret->why_not[0])
            snprintf(ret->why_not, sizeof ret->why_not,
                     "the first command in it failed (status %x)", (unsigned)output.status);
    }

    probe[1] = b.target;
    attack_outside(probe, ret);
    bait_take_back(&b);
    output_done(&output);
}

static void attack_limits(enum rung rung, struct attack_report *ret)
{
    struct output output = {.out = BUF_INIT(OUTPUT_MAX), .err = BUF_INIT(OUTPUT_MAX)};
    char *const limits[] = {
        (char *)"--memory=" PROBE_LIMIT_MEMORY, (char *)"--pids=" PROBE_LIMIT_PIDS,
        (char *)"--disk=" PROBE_LIMIT_DISK,     (char *)"--files=" PROBE_LIMIT_FILES,
        (char *)"--cpu=" PROBE_LIMIT_CPU,       NULL};
    char *const probe[] = {(char *)"limits", NULL};
    int r = attack_jail(rung, limits, probe, &output, ret);

    struct attack *memory = find(ret, "limit-memory");
    /* A kernel may end the whole jail for its memory; then the probe says nothing of it. */
    if (r == 0 && memory && !memory->tried && WIFEXITED(output.status) &&
        WEXITSTATUS(output.status) == 128 + SIGKILL) {
        memory->tried = 1;
        snprintf(memory->detail, sizeof memory->detail, "the jail was ended");
    }

    attack_outside(probe, ret);
    output_done(&output);
}

static void judge(enum rung rung, struct attack_report *r)
{
    for (unsigned i = 0; i < r->count; i++) {
        struct attack *a = &r->attacks[i];
        if (!a->tried) { /* it never ran: nothing that was not seen counts as held */
            a->works_inside = 1;
            snprintf(a->detail, sizeof a->detail, "the attack did not report");
        }

        if (a->works_inside)
            a->result = a->tried && rung < a->row->promised ? ATTACK_ABSENT : ATTACK_BROKEN;
        else
            a->result = a->works_outside ? ATTACK_HELD : ATTACK_UNPROVED;

        r->results[a->result]++;
        r->outside += (unsigned)a->works_outside;
    }
}

void attacks_run(enum rung rung, struct attack_report *ret)
{
    *ret = (struct attack_report){0};
    add_rows(ret, &probe_kernel);
    add_rows(ret, &probe_host);
    add_rows(ret, &probe_limits);

    attack_walls(rung, ret);
    if (!ret->jails_work) {
        ret->count = 0;
        return;
    }

    ret->why_not[0] = 0;
    attack_limits(rung, ret);
    judge(rung, ret);
}
