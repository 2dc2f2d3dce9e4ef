/* cgroup_world: a keeper's groups on this host, in the layout that it has and once more with its v2
 * tree ignored, so that a hybrid host also tests what pure v1 needs; and jails in them. */
#pragma once

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "unit.h"

#include "jail/cgroup.h"
#include "jail/cgroup_tree.h"
#include "jail/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB             (1ULL << 20)
#define CHURN_CYCLES    50
#define PATIENCE_NS     (30 * NS_PER_S)
#define ASSERT_OK(call) assert_int_equal((call), 0)

struct world {
    struct cgroup_mounts mounts;
    struct cgroup_host host;
    char instance[32];
    char skip[240]; /* why nothing here can run, or "" */
};

static struct pd_err err;

static struct world *need(void **state)
{
    struct world *w = *state;
    if (w->skip[0]) {
        print_message("skipped: %s\n", w->skip);
        skip();
    }
    return w;
}

static void pause_ms(long ms)
{
    const struct timespec t = {.tv_nsec = ms * (long)NS_PER_MS};
    nanosleep(&t, NULL);
}

static void reap(void)
{
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

static void remove_jail(struct world *w, const char *name)
{
    deadline d = deadline_in(PATIENCE_NS);
    int r;
    while ((r = cgroup_remove(&w->host, name)) == -EBUSY && !deadline_passed(d)) {
        reap();
        pause_ms(2);
    }
    assert_int_equal(r, 0);
}

static struct cgroup make_jail(struct world *w, const char *name, const struct limits *l)
{
    struct cgroup c;
    if (cgroup_create(&w->host, name, &c, &err) || cgroup_limit(&w->host, name, l, &err))
        fail_msg("%s", err.msg);
    return c;
}

/* Starts `body` in the jail and, unless -1, in the command's group. It holds one end of a pipe, as
 * do all its descendants: the end of file on *ret_alive says that the last of them is gone. */
static pid_t start(const struct cgroup *c, int command_procs, void (*body)(void), int *ret_alive)
{
    int alive[2], ready[2];
    ASSERT_OK(pipe2(alive, O_CLOEXEC));
    ASSERT_OK(pipe2(ready, O_CLOEXEC));
    pid_t pid = child_fork();
    assert_true(pid >= 0);

    if (!pid) {
        close(alive[0]);
        if (cgroup_enter(c, 0) || (command_procs >= 0 && write(command_procs, "0", 1) != 1))
            _exit(99);
        (void)!write(ready[1], "r", 1);
        close(ready[1]);
        body();
        _exit(0);
    }
    close(alive[1]);
    close(ready[1]);

    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    *ret_alive = alive[0];
    return pid;
}

static int ends_within(int alive, uint64_t ns)
{
    struct pollfd p = {.fd = alive, .events = POLLIN};
    return poll(&p, 1, (int)(ns / NS_PER_MS)) > 0 && p.revents & POLLHUP;
}

/* Nobody outlives the test by much, even if killing is what fails. */
static void sleep_long(void)
{
    for (int s = 0; s < 60; s++)
        sleep(1);
    _exit(0);
}

static void eat_memory(void)
{
    size_t len = 256 * MIB;
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        _exit(98);
    memset(p, 1, len);
}

/* A file of the jail in the tree that has the controller, without its newline. */
static char *file_of(struct world *w, enum cgroup_tree t, const char *name, const char *file)
{
    static char text[4096];
    char path[128];
    snprintf(path, sizeof path, "%s/%s", name, file);
    ssize_t n = fd_read_file(w->host.dir[w->host.home[t]], path, text, sizeof text);
    if (n < 0)
        return NULL;
    text[strcspn(text, "\n")] = 0;
    return text;
}

static char churn_path[64];

static void write_a_file(void)
{
    static char data[1 << 20];
    memset(data, 'x', sizeof data);
    int fd = open(churn_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    _exit(fd < 0 || fd_write_all(fd, data, sizeof data) || fsync(fd) ? 96 : 0);
}

static int is_alive(const char *instance, void *arg)
{
    return !strstr(instance, (const char *)arg);
}

static void world_open(struct world *w, const char *id)
{
    snprintf(w->instance, sizeof w->instance, "%s.%d", id, (int)getpid());
    if (w->mounts.layout == CGROUP_NONE) {
        snprintf(w->skip, sizeof w->skip, "no cgroup may be written: %s", w->mounts.why);
        return;
    }
    ASSERT_OK(cgroup_host_open(&w->host, &w->mounts, w->instance, &err));

    /* Otherwise a keeper that ends beside us takes it for a dead one's. */
    sweep_hold_instance(&w->host);
    if (w->host.layout == CGROUP_NONE)
        snprintf(w->skip, sizeof w->skip, "no cgroup can be made: %s", w->host.why);
    else
        print_message("layout: %s\n", cgroup_layout_name(w->host.layout));
}

static int open_native(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    *state = w;
    if (!w)
        return -1;
    prctl(PR_SET_CHILD_SUBREAPER, 1);

    if (geteuid() != 0) {
        snprintf(w->skip, sizeof w->skip, "not root");
        return 0;
    }
    cgroup_probe(&w->mounts);
    world_open(w, "test");
    return 0;
}

/* As if the v2 tree were not mounted. */
static int open_v1(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    *state = w;
    size_t size = 1 << 20;
    char *all = malloc(size), *v1 = calloc(1, size);
    if (!w || !all || !v1 || fd_read_file(AT_FDCWD, "/proc/self/mountinfo", all, size) < 0) {
        free(all);
        free(v1);
        return -1;
    }

    size_t len = 0;
    for (char *line = all, *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        next += *next == '\n';
        char *type = strstr(line, " - cgroup ");
        if (type && type < next) {
            memcpy(v1 + len, line, (size_t)(next - line));
            len += (size_t)(next - line);
        }
    }

    cgroup_detect(v1, "", &w->mounts);
    free(all);
    free(v1);

    if (geteuid() != 0)
        snprintf(w->skip, sizeof w->skip, "not root");
    else if (w->mounts.layout != CGROUP_V1)
        snprintf(w->skip, sizeof w->skip, "no complete set of v1 trees: %s", w->mounts.why);
    else
        world_open(w, "test1");

    return 0;
}

static int close_world(void **state)
{
    struct world *w = *state;
    int left = 0;
    if (!w->skip[0]) {
        /* Also after a failed test: nothing stays. */
        cgroup_host_done(&w->host);
        cgroup_reclaim(&w->mounts, is_alive, w->instance);
        left = cgroup_reclaim(&w->mounts, is_alive, w->instance);
    }
    reap();
    free(w);
    return left;
}
