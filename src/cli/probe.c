/* How this works: each attack runs in a child, because some end the process that tries them (a
 * filter that kills) and some change it for good. Its findings come back through a shared page.
 *
 *   paddock probe attacks target=1 port=4711 ...    one line per attack: NAME held|broken DETAIL
 *   paddock probe limits                            the same for memory, processes and disk */
#include "cli/probe.h"

#include "cli/cli.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define ATTACK_SECONDS 10

struct finding {
    int worked;
    char detail[PROBE_DETAIL_MAX];
};

/* One write per line: what was found must not be lost when the next attack ends the jail. */
static void report(const char *name, const struct finding *f)
{
    char line[64 + PROBE_DETAIL_MAX];

    int n = snprintf(line, sizeof line, "%s %s %s\n", name, f->worked ? "broken" : "held",
                     f->detail[0] ? f->detail : "-");
    for (int i = 0; i < n - 1; i++)
        if ((unsigned char)line[i] < 0x20 || (unsigned char)line[i] >= 0x7f)
            line[i] = '?';

    (void)fd_write_all(STDOUT_FILENO, line, (size_t)n);
}

static void try_one(const struct probe_attack *a, const struct probe_world *w, struct finding *f)
{
    *f = (struct finding){0};
    pid_t pid = fork();
    if (pid < 0) {
        snprintf(f->detail, sizeof f->detail, "no process for it: %s", strerror(errno));
        return;
    }

    if (pid == 0) {
        alarm(ATTACK_SECONDS);
        int worked = a->attempt(w, f->detail);
        f->worked = worked;
        _exit(0);
    }

    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;

    if (WIFSIGNALED(status) && !f->worked)
        snprintf(f->detail, sizeof f->detail, "ended by %s",
                 WTERMSIG(status) == SIGSYS    ? "the filter"
                 : WTERMSIG(status) == SIGALRM ? "its deadline"
                 : WTERMSIG(status) == SIGKILL ? "SIGKILL"
                                               : "a signal");
}

static void try_all(const struct probe_table *t, const struct probe_world *w, struct finding *f)
{
    for (size_t i = 0; i < t->count; i++) {
        try_one(&t->rows[i], w, f);
        report(t->rows[i].name, f);
    }
}

static int parse_world(int argc, char **argv, struct probe_world *w, struct pd_err *e)
{
    for (int i = 0; i < argc; i++) {
        uint64_t pid;
        const char *value = strchr(argv[i], '=');
        size_t len = value ? (size_t)(value - argv[i]) : 0;
        if (value && len == 6 && !strncmp(argv[i], "target", len)) {
            if (parse_u64("target", value + 1, 1, INT32_MAX, &pid, e) < 0)
                return -1;
            w->target = (pid_t)pid;
        } else if (value && len == 4 && !strncmp(argv[i], "port", len)) {
            w->port = value + 1;
        } else if (value && len == 6 && !strncmp(argv[i], "socket", len)) {
            w->socket = value + 1;
        } else if (value && len == 4 && !strncmp(argv[i], "comm", len)) {
            w->comm = value + 1;
        } else if (value && len == 4 && !strncmp(argv[i], "host", len)) {
            w->host = value + 1;
        } else if (value && len == 6 && !strncmp(argv[i], "spaces", len)) {
            w->spaces = value + 1;
        } else {
            return pd_fail(e, PD_INVALID, "probe: what is '%.40s'?", argv[i]);
        }
    }
    return 0;
}

int cmd_probe(int argc, char **argv)
{
    struct pd_err e;
    struct probe_world w = {
        .target = 1, .port = "", .socket = "", .comm = "", .host = "", .spaces = ""};

    int limits = argc == 2 && !strcmp(argv[1], "limits");
    if (argc < 2 || (!limits && strcmp(argv[1], "attacks") != 0)) {
        pd_fail(&e, PD_INVALID, "probe is what doctor runs in a jail; see `paddock help doctor`");
        return cli_fail(&e);
    }

    if (parse_world(argc - 2, argv + 2, &w, &e) < 0)
        return cli_fail(&e);

    struct finding *f =
        mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (f == MAP_FAILED) {
        pd_fail_sys(&e, "probe: no memory");
        return cli_fail(&e);
    }

    if (limits) {
        try_all(&probe_limits, &w, f);
    } else {
        try_all(&probe_kernel, &w, f);
        try_all(&probe_host, &w, f);
    }
    return 0;
}
