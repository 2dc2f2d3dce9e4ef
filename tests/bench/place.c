#include "bench.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "bundle.h"
#include "jail/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define PATIENCE     (20 * NS_PER_S)
#define PATH_DEFAULT "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

void place_pause(unsigned usec)
{
    struct timespec t = {.tv_sec = usec / 1000000, .tv_nsec = (long)(usec % 1000000) * 1000};
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
}

/* How many processes want a processor at this moment, this one included. */
static long running(void)
{
    char text[65536];
    const char *at = NULL;
    if (fd_read_file(AT_FDCWD, "/proc/stat", text, sizeof text) > 0)
        at = strstr(text, "procs_running ");
    return at ? strtol(at + strlen("procs_running "), NULL, 10) : 1;
}

void place_calm(struct place *p, unsigned pause_usec, unsigned patience_ms)
{
    place_pause(pause_usec);
    deadline d = deadline_in(patience_ms * NS_PER_MS);
    p->starts++;
    while (running() > 1) {
        if (deadline_passed(d))
            return;
        place_pause(1000);
    }
    p->calm_starts++;
}

void place_error(struct place *p, const char *what, const struct pd_err *e)
{
    if (!p->errors++)
        snprintf(p->first_error, sizeof p->first_error, "%s: %s", what, e->msg);
}

/* Orphans of the programs that were measured; as zombies they would only be in the way. */
void place_reap(struct place *p)
{
    struct pd_err e;
    pid_t pid;
    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
        if (pid == p->keeper) {
            p->keeper = 0;
            pd_fail(&e, PD_LOST, "it died");
            place_error(p, "the keeper", &e);
        }
}

static int put_file(const char *dir, const char *name, const char *text, struct pd_err *e)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    auto_fd fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    int r = fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
    if (r == 0)
        return 0;
    errno = -r;
    return pd_fail_sys(e, "write %s", path);
}

/* A root of the same contents as a jail's: the host's programs, read-only. */
static int make_bundle(struct place *p, struct pd_err *e)
{
    static const char *const dirs[] = {"usr", "proc", "dev", "sys", "tmp", "etc"};
    static const char *const links[] = {"bin", "sbin", "lib", "lib32", "lib64", "libx32"};
    char root[112], path[160], target[200];

    snprintf(p->bundle, sizeof p->bundle, "%s/bundle", p->dir);
    snprintf(root, sizeof root, "%s/rootfs", p->bundle);
    if (mkdir(p->bundle, 0755) < 0 || mkdir(root, 0755) < 0)
        return pd_fail_sys(e, "make %s", root);

    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        snprintf(path, sizeof path, "%s/%s", root, dirs[i]);
        if (mkdir(path, 0755) < 0)
            return pd_fail_sys(e, "make %s", path);
    }

    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        char from[16];
        snprintf(from, sizeof from, "/%s", links[i]);
        ssize_t n = readlink(from, target, sizeof target - 1);
        if (n <= 0)
            continue;
        target[n] = 0;
        snprintf(path, sizeof path, "%s/%s", root, links[i]);
        if (symlink(target, path) < 0)
            return pd_fail_sys(e, "make %s", path);
    }

    return put_file(p->bundle, "config.json", bundle_config, e);
}

/* crun 1.8 gives up on a hybrid layout whose v2 tree has a controller. It is measured in a mount
 * namespace without that tree, made once; entering it is a few microseconds of its time. */
static int namespace_without_v2(void)
{
    static const char tree[] = "/sys/fs/cgroup/unified";
    if (access(tree, F_OK) < 0)
        return -1;
    auto_fd before = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (before < 0 || unshare(CLONE_NEWNS) < 0)
        return -1;
    int ok = mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && umount2(tree, 2) == 0;
    auto_fd made = ok ? open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC) : -1;
    if (setns(before, CLONE_NEWNS) < 0)
        abort();
    return fd_take(&made);
}

int place_open(struct place *p, struct pd_err *e)
{
    p->no_v2 = p->link.sock = p->null = -1;
    snprintf(p->dir, sizeof p->dir, "/tmp/paddock-bench.XXXXXX");
    if (!mkdtemp(p->dir))
        return pd_fail_sys(e, "make a directory in /tmp");
    snprintf(p->sock, sizeof p->sock, "%s/keeper.sock", p->dir);
    snprintf(p->run_dir, sizeof p->run_dir, "PADDOCK_RUN_DIR=%s/run", p->dir);
    snprintf(p->state_dir, sizeof p->state_dir, "PADDOCK_STATE_DIR=%s/state", p->dir);
    snprintf(p->stderr_file, sizeof p->stderr_file, "%s/stderr", p->dir);
    if (make_bundle(p, e) < 0)
        return -1;
    p->null = open("/dev/null", O_RDWR | O_CLOEXEC);
    auto_fd complaints = open(p->stderr_file, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int out = fcntl(1, F_DUPFD_CLOEXEC, 10), err = fcntl(2, F_DUPFD_CLOEXEC, 10);
    p->people = out < 0 ? NULL : fdopen(out, "w");
    p->news = err < 0 ? NULL : fdopen(err, "w");
    if (p->null < 0 || complaints < 0 || !p->people || !p->news || dup2(p->null, 0) < 0 ||
        dup2(p->null, 1) < 0 || dup2(complaints, 2) < 0)
        return pd_fail_sys(e, "arrange the standard streams");
    if (geteuid() == 0)
        p->no_v2 = namespace_without_v2();

    /* What a private keeper leaves running, and what a keeper's builders do at their end, must not
     * get out of sight. */
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int what, struct FTW *at)
{
    (void)st;
    (void)what;
    (void)at;
    (void)remove(path);
    return 0;
}

void place_close(struct place *p)
{
    fd_done(&p->no_v2);
    fd_done(&p->null);
    (void)nftw(p->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

int place_spawn(struct place *p, const char *const *argv, int ns, const char *env, int *ret,
                struct pd_err *e)
{
    char *environment[] = {(char *)PATH_DEFAULT, p->run_dir, p->state_dir, (char *)env, NULL};
    auto_fd before = ns < 0 ? -1 : open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    pid_t pid;
    if (ns >= 0 && (before < 0 || setns(ns, CLONE_NEWNS) < 0))
        return pd_fail_sys(e, "enter a mount namespace");

    int r = posix_spawnp(&pid, argv[0], NULL, NULL, (char *const *)argv, environment);
    if (ns >= 0 && setns(before, CLONE_NEWNS) < 0)
        abort();
    if (r) {
        errno = r;
        return pd_fail_sys(e, "start %s", argv[0]);
    }

    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return pd_fail_sys(e, "wait for %s", argv[0]);
    *ret = status;
    return 0;
}

void place_complaint(struct place *p, char *out, size_t size)
{
    char text[4096];
    ssize_t n = fd_read_file(AT_FDCWD, p->stderr_file, text, sizeof text);
    (void)!truncate(p->stderr_file, 0);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
        text[--n] = 0;
    const char *last = n > 0 ? strrchr(text, '\n') : NULL;
    snprintf(out, size, "%s", n <= 0 ? "no reason given" : last ? last + 1 : text);
}

/* ---- the keeper ---- */

/* HELLO: which instance it is, so that its leftovers can be looked for. */
static int greet(struct place *p, struct pd_err *e)
{
    auto_frame f = FRAME_INIT;
    struct msg_welcome m;
    struct wire_head head = {.type = WIRE_HELLO, .id = wire_id_new()};
    int r = wire_send(p->link.sock, &head, NULL, NULL, 0, deadline_in(PATIENCE));

    if (r < 0) {
        errno = -r;
        return pd_fail_sys(e, "greet the keeper");
    }

    if (wire_recv(p->link.sock, &f, deadline_in(PATIENCE), e) < 1 || f.head.type != WIRE_WELCOME)
        return pd_fail(e, PD_PROTOCOL, "the keeper does not greet back");
    if (msg_welcome_decode(&f.payload, &m, e) < 0)
        return -1;
    p->link.epoch = f.head.epoch;
    snprintf(p->instance, sizeof p->instance, "%s", m.instance);
    p->layout = cgroup_layout_name((enum cgroup_layout)m.layout);
    return 0;
}

int place_start_keeper(struct place *p, unsigned builders, unsigned kits, struct pd_err *e)
{
    char builders_text[16], kits_text[16];
    snprintf(builders_text, sizeof builders_text, "%u", builders);
    snprintf(kits_text, sizeof kits_text, "%u", kits);

    const char *argv[] = {p->paddock,    "keeper", "--socket", p->sock, "--builders",
                          builders_text, "--kits", kits_text,  NULL};
    char *environment[] = {(char *)PATH_DEFAULT, p->run_dir, p->state_dir, NULL};
    p->keeper = fork();
    if (p->keeper < 0)
        return pd_fail_sys(e, "start %s keeper", p->paddock);

    if (p->keeper == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0); /* an interrupted run leaves nothing */
        execve(p->paddock, (char *const *)argv, environment);
        _exit(127);
    }

    deadline d = deadline_in(PATIENCE);
    while (keeper_connect(&p->link, p->sock, e) < 0) {
        if (deadline_passed(d) || waitpid(p->keeper, NULL, WNOHANG) > 0)
            return -1;
        place_pause(5000);
    }

    return greet(p, e);
}

/* The keeper's directories in every tree. */
static int groups_are_left(const struct place *p, char *out, size_t size)
{
    struct cgroup_mounts m;
    cgroup_probe(&m);
    for (int t = 0; t < CGROUP_TREE_COUNT; t++) {
        if (!m.path[t][0])
            continue;
        snprintf(out, size, "%s/paddock-%s", m.path[t], p->instance);
        if (access(out, F_OK) == 0)
            return 1;
    }
    return 0;
}

int place_stop_keeper(struct place *p, struct pd_err *e)
{
    char left[400];
    int result = 0, status = 0;
    keeper_link_done(&p->link);
    if (p->keeper <= 0)
        return 0;
    kill(p->keeper, SIGTERM);

    /* Its builders become our children when it ends. When there is no child any more, no process
     * of it is left: jails have nobody else as parent. */
    deadline d = deadline_in(3 * PATIENCE);
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) >= 0 && !deadline_passed(d)) {
        if (pid == p->keeper && status)
            result = pd_fail(e, PD_INTERNAL, "the keeper ended with status %d", status);
        if (pid == 0)
            place_pause(5000);
    }

    if (pid >= 0)
        result = pd_fail(e, PD_INTERNAL, "a process of the keeper is left after a minute");
    if (groups_are_left(p, left, sizeof left))
        result = pd_fail(e, PD_INTERNAL, "%.200s is left", left);
    p->keeper = 0;
    return result;
}

/* ---- commands ---- */

int errand_init(struct errand *c, const struct place *p, const char *file, int in, struct pd_err *e)
{
    c->argv = c->env = MSG_LIST_WRITER_INIT;
    if (msg_list_add(&c->argv, file) < 0 || msg_list_add(&c->env, PATH_DEFAULT) < 0 ||
        msg_list_add(&c->env, "HOME=/home/user") < 0)
        return pd_fail(e, PD_CAPACITY, "no memory for a command");
    c->command = (struct command){.fds = {in, p->null, p->null}};
    c->command.exec = (struct msg_exec){.uid = 1000,
                                        .gid = 1000,
                                        .cwd = "/workspace",
                                        .argv = msg_list_of(&c->argv),
                                        .environ = msg_list_of(&c->env)};
    return 0;
}

void errand_done(struct errand *c)
{
    msg_list_writer_done(&c->argv);
    msg_list_writer_done(&c->env);
}
