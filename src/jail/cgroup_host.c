/* A keeper's directories in the host's cgroup trees: making, checking, removing them, and those
 * that dead keepers left.
 *
 * Detection says where the trees should be; only trying says whether they may be used. Everything
 * here that the kernel refuses ends in "layout none, because ...", with the remedy in the reason.
 *
 * On v2 a group hands controllers to its children by naming them in cgroup.subtree_control, and
 * all but the machine's root group may do so only while no process is directly in them. So the
 * keeper's group paddock-<instance> never has a process, a jail's group passes nothing on (its
 * processes and its commands' groups may mix), and a keeper that starts in the very group that was
 * delegated to it moves to a leaf below first. */
#include "jail/cgroup.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/cgroup_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/xattr.h>

#define PREFIX         "paddock-"
#define MOUNTINFO_MAX  (8U << 20)
#define SELF_MAX       (64U << 10)
#define RECLAIM_MAX    (256U << 10) /* bytes of leftovers' names */
#define RECLAIM_NS     (2 * NS_PER_S)
#define DIR_FLAGS      (O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define LEAF_PROCS_MAX 4096

static const enum cgroup_tree limit_trees[] = {CGROUP_TREE_MEMORY, CGROUP_TREE_PIDS,
                                               CGROUP_TREE_CPU};
static const char *const limit_names[] = {"memory", "pids", "cpu"};
#define LIMIT_COUNT (sizeof limit_names / sizeof *limit_names)

static int say(char why[160], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Keeps the reason, and errno; returns -1. */
static int say(char why[160], const char *fmt, ...)
{
    int saved = errno;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, 160, fmt, ap);
    va_end(ap);
    errno = saved;
    return -1;
}

static int word_in(const char *words, const char *word)
{
    size_t len = strlen(word);
    for (const char *p = words; (p = strstr(p, word)); p += len)
        if ((p == words || p[-1] == ' ') && (!p[len] || p[len] == ' ' || p[len] == '\n'))
            return 1;
    return 0;
}

/* Which of the limits are to come from the v2 tree. */
static unsigned unified_needs(const struct cgroup_mounts *m)
{
    unsigned need = 0;
    for (size_t i = 0; i < LIMIT_COUNT; i++)
        if (!m->path[limit_trees[i]][0])
            need |= 1U << i;
    return need;
}

/* Names in `mask` as "+memory +pids +cpu". */
static void enable_text(unsigned mask, char out[64])
{
    size_t len = 0;
    out[0] = 0;
    for (size_t i = 0; i < LIMIT_COUNT; i++)
        if (mask & (1U << i))
            len += (size_t)snprintf(out + len, 64 - len, "%s+%s", len ? " " : "", limit_names[i]);
}

/* Whether systemd says that this group was handed over with all that is in it. */
static int is_delegated(int group)
{
    auto_fd dir = openat(group, ".", O_RDONLY | DIR_FLAGS);
    char value[4];
    return dir >= 0 && fgetxattr(dir, "user.delegate", value, sizeof value) == 1 && value[0] == '1';
}

/* Moves the processes of a group that must not have any into the leaf below it: only if the group
 * was delegated, or if nobody is there but this process and who started it. 0 or -errno. */
static int step_aside(int group)
{
    char procs[LEAF_PROCS_MAX];
    ssize_t n = fd_read_file(group, "cgroup.procs", procs, sizeof procs);
    if (n < 0)
        return (int)n;

    if (!is_delegated(group)) {
        char *end;
        for (const char *p = procs; *p; p = end + (*end == '\n')) {
            long pid = strtol(p, &end, 10);
            if (end == p || (pid != getpid() && pid != getppid()))
                return -EBUSY;
        }
    }

    if (mkdirat(group, CGROUP_LEAF, 0755) && errno != EEXIST)
        return -errno;
    auto_fd leaf = openat(group, CGROUP_LEAF "/cgroup.procs", O_WRONLY | O_CLOEXEC);
    if (leaf < 0)
        return -errno;

    for (char *p = procs, *end; *p; p = end + (*end == '\n')) {
        end = p + strcspn(p, "\n");
        if (write(leaf, p, (size_t)(end - p)) < 0 && errno != ESRCH)
            return -errno;
    }

    return 0;
}

/* Makes the controllers of `need` available to the children of the v2 group. 0, or -1 and why. */
static int unified_enable(int group, const char *path, unsigned need, char why[160])
{
    char text[512];

    if (!need)
        return 0;
    ssize_t n = fd_read_file(group, "cgroup.controllers", text, sizeof text);
    if (n < 0)
        return say(why, "%.100s/cgroup.controllers: %s", path, strerror((int)-n));

    for (size_t i = 0; i < LIMIT_COUNT; i++)
        if (need & (1U << i) && !word_in(text, limit_names[i]))
            return say(why,
                       "%.60s has no %s controller: systemd-run with -p Delegate=yes, or boot "
                       "with cgroup_enable=%s or without cgroup v1",
                       path, limit_names[i], limit_names[i]);

    if (fd_read_file(group, "cgroup.subtree_control", text, sizeof text) < 0)
        return say(why, "%.100s/cgroup.subtree_control cannot be read", path);
    for (size_t i = 0; i < LIMIT_COUNT; i++)
        if (word_in(text, limit_names[i]))
            need &= ~(1U << i);
    if (!need)
        return 0;

    char enable[64];
    enable_text(need, enable);
    int r = fd_write_file(group, "cgroup.subtree_control", enable);
    if (r == -EBUSY && !step_aside(group))
        r = fd_write_file(group, "cgroup.subtree_control", enable);

    if (r == -EBUSY)
        return say(why,
                   "processes are directly in %.60s (a container?): move them into a group below "
                   "it, as mkdir init; echo PID > init/cgroup.procs",
                   path);
    if (r == -EACCES || r == -EPERM || r == -EROFS)
        return say(why,
                   "%.60s may not be changed: run as root, as systemd-run --user --scope -p "
                   "Delegate=yes, or in a container with its own writable cgroup",
                   path);
    return r ? say(why, "%.60s/cgroup.subtree_control: %s", path, strerror(-r)) : 0;
}

/* O_PATH of a tree's directory, if it is one: a path from the mount table may be covered by
 * another mount, or be gone. -1 and why. */
static int tree_open(const struct cgroup_mounts *m, enum cgroup_tree t, char why[160])
{
    const char *path = m->path[t];
    long magic = t == CGROUP_TREE_UNIFIED ? CGROUP2_SUPER_MAGIC : CGROUP_SUPER_MAGIC;
    auto_fd fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return say(why, "%.100s: %s", path, strerror(errno));

    struct statfs fs;
    if (fstatfs(fd, &fs) || (long)fs.f_type != magic)
        return say(why, "%.80s is hidden by another mount: unmount that", path);

    return fd_take(&fd);
}

static int refused(const char *path, int sys, char why[160])
{
    if (sys == EACCES || sys == EPERM || sys == EROFS)
        return say(why,
                   "%.60s may not be written (%s): run as root, or as systemd-run --user --scope "
                   "-p Delegate=yes",
                   path, strerror(sys));
    return say(why, "%.80s: no group can be made: %s", path, strerror(sys));
}

static int tree_is_shared(const struct cgroup_mounts *m, enum cgroup_tree t, unsigned char *ret)
{
    for (unsigned char u = 0; u < t; u++)
        if (!strcmp(m->path[u], m->path[t])) {
            *ret = u;
            return 1;
        }

    return 0;
}

static ssize_t read_proc(const char *path, struct buf *b)
{
    auto_fd fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;

    for (;;) {
        uint8_t *room = buf_reserve(b, 16384);
        if (!room)
            return -EFBIG;
        ssize_t n = read(fd, room, 16384);
        if (n < 0)
            return -errno;
        if (n == 0)
            return (ssize_t)b->len;
        b->len += (size_t)n;
    }
}

/* Says in `why` if socket buffers escape the limits. `memory` is a directory of that tree. */
static void check_sockets(int memory, int v2, char why[160])
{
    char cmdline[4096];

    if (fd_read_file(AT_FDCWD, "/proc/cmdline", cmdline, sizeof cmdline) < 0)
        cmdline[0] = 0;
    int has_file = faccessat(memory, CGROUP_SOCKETS_FILE, F_OK, 0) == 0;
    cgroup_check_sockets(v2, has_file, cmdline, why);
}

static void mounts_check(struct cgroup_mounts *m)
{
    for (int t = 0; t < CGROUP_TREE_COUNT && m->layout != CGROUP_NONE; t++) {
        if (!m->path[t][0])
            continue;

        char why[160];
        auto_fd fd = tree_open(m, t, why);
        int bad = fd < 0;

        if (!bad && faccessat(fd, ".", W_OK | X_OK, AT_EACCESS))
            bad = refused(m->path[t], errno, why);
        if (!bad && t == CGROUP_TREE_UNIFIED)
            bad = unified_enable(fd, m->path[t], unified_needs(m), why);

        if (bad) {
            *m = (struct cgroup_mounts){.layout = CGROUP_NONE};
            memcpy(m->why, why, sizeof m->why);
        } else if (t == CGROUP_TREE_MEMORY ||
                   (t == CGROUP_TREE_UNIFIED && !m->path[CGROUP_TREE_MEMORY][0])) {
            check_sockets(fd, t == CGROUP_TREE_UNIFIED, m->why);
        }
    }
}

static int is_mounted(const char *path, long magic)
{
    struct statfs fs;
    return statfs(path, &fs) == 0 && (long)fs.f_type == magic;
}

/* The trees where everybody mounts them, asked for by name: the mount table takes ten times as long
 * to read. Whether they can be used shows in cgroup_host_open. Not for the unprivileged, who are
 * given some group below. */
static int probe_usual_places(struct cgroup_mounts *ret)
{
    static const struct {
        enum cgroup_tree tree;
        const char *path;
        long magic;
    } usual[] = {{CGROUP_TREE_UNIFIED, "/sys/fs/cgroup/unified", CGROUP2_SUPER_MAGIC},
                 {CGROUP_TREE_MEMORY, "/sys/fs/cgroup/memory", CGROUP_SUPER_MAGIC},
                 {CGROUP_TREE_PIDS, "/sys/fs/cgroup/pids", CGROUP_SUPER_MAGIC},
                 {CGROUP_TREE_CPU, "/sys/fs/cgroup/cpu", CGROUP_SUPER_MAGIC}};

    if (geteuid() != 0)
        return 0;
    *ret = (struct cgroup_mounts){.layout = CGROUP_V2};
    if (is_mounted("/sys/fs/cgroup", CGROUP2_SUPER_MAGIC)) {
        snprintf(ret->path[CGROUP_TREE_UNIFIED], sizeof ret->path[0], "/sys/fs/cgroup");
        return 1;
    }

    ret->layout = CGROUP_HYBRID;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        if (!is_mounted(usual[i].path, usual[i].magic))
            return 0;
        snprintf(ret->path[usual[i].tree], sizeof ret->path[0], "%s", usual[i].path);
    }

    return 1;
}

void cgroup_find(struct cgroup_mounts *ret)
{
    if (!probe_usual_places(ret))
        cgroup_probe(ret);
}

void cgroup_probe(struct cgroup_mounts *ret)
{
    auto_buf mountinfo = BUF_INIT(MOUNTINFO_MAX);
    auto_buf self = BUF_INIT(SELF_MAX);

    /* A table that is longer than that is used as far as it goes. */
    (void)read_proc("/proc/self/mountinfo", &mountinfo);
    (void)read_proc("/proc/self/cgroup", &self);

    const char *mounts = buf_cstr(&mountinfo);
    const char *own = buf_cstr(&self);
    cgroup_detect(mounts ? mounts : "", own ? own : "", ret);
    if (ret->layout == CGROUP_NONE)
        return;

    struct cgroup_mounts found = *ret;
    mounts_check(ret);
    if (ret->layout != CGROUP_NONE)
        return;

    struct cgroup_mounts second;
    cgroup_detect_own(mounts ? mounts : "", own ? own : "", &second);
    if (!memcmp(found.path, second.path, sizeof found.path))
        return;
    mounts_check(&second);

    /* The superuser's trouble is with the mount; anybody else's is with his own group. */
    if (second.layout != CGROUP_NONE || geteuid() != 0)
        *ret = second;
}

static void host_reset(struct cgroup_host *h)
{
    *h = (struct cgroup_host){.layout = CGROUP_NONE};
    for (int t = 0; t < CGROUP_TREE_COUNT; t++)
        h->parent[t] = h->dir[t] = -1;
}

/* Opens tree t and makes the keeper's directory there. 0, or -1 with errno and why. */
static int host_add(struct cgroup_host *h, const struct cgroup_mounts *m, enum cgroup_tree t)
{
    h->parent[t] = tree_open(m, t, h->why);
    if (h->parent[t] < 0)
        return -1;

    if (t == CGROUP_TREE_UNIFIED &&
        unified_enable(h->parent[t], m->path[t], unified_needs(m), h->why))
        return -1;

    if (mkdirat(h->parent[t], h->instance, 0755) && errno != EEXIST)
        return refused(m->path[t], errno, h->why);
    h->dir[t] = openat(h->parent[t], h->instance, O_PATH | DIR_FLAGS);
    if (h->dir[t] < 0)
        return refused(m->path[t], errno, h->why);

    if (t != CGROUP_TREE_UNIFIED)
        return 0;
    return unified_enable(h->dir[t], h->instance, unified_needs(m), h->why);
}

int cgroup_host_open(struct cgroup_host *h, const struct cgroup_mounts *m, const char *instance,
                     struct pd_err *e)
{
    host_reset(h);
    memcpy(h->why, m->why, sizeof h->why);

    if (!group_name_ok(instance) || (size_t)snprintf(h->instance, sizeof h->instance, PREFIX "%s",
                                                     instance) >= sizeof h->instance)
        return pd_fail(e, PD_INVALID, "'%.40s' is no instance id", instance);

    h->layout = m->layout;
    for (unsigned char t = 0; t < CGROUP_TREE_COUNT && m->layout != CGROUP_NONE; t++) {
        h->home[t] = m->path[t][0] ? t : CGROUP_TREE_UNIFIED;
        if (!m->path[t][0] || tree_is_shared(m, t, &h->home[t]))
            continue;
        errno = 0;
        if (!host_add(h, m, t))
            continue;

        int sys = errno;
        struct cgroup_host broken = *h;
        cgroup_host_remove(h);
        if (sys == ENOMEM || sys == EMFILE || sys == ENFILE) {
            errno = sys;
            return pd_fail_sys(e, "cgroup %.80s", m->path[t]);
        }

        memcpy(h->instance, broken.instance, sizeof h->instance);
        memcpy(h->why, broken.why, sizeof h->why);
        return 0;
    }

    if (h->layout != CGROUP_NONE) {
        int home = h->home[CGROUP_TREE_MEMORY];
        check_sockets(h->dir[home], home == CGROUP_TREE_UNIFIED, h->why);
    }

    return 0;
}

void cgroup_host_done(struct cgroup_host *h)
{
    for (int t = 0; t < CGROUP_TREE_COUNT; t++) {
        fd_done(&h->parent[t]);
        fd_done(&h->dir[t]);
    }
    host_reset(h);
}

void cgroup_host_remove(struct cgroup_host *h)
{
    for (int t = 0; t < CGROUP_TREE_COUNT; t++)
        if (h->parent[t] >= 0)
            (void)unlinkat(h->parent[t], h->instance, AT_REMOVEDIR);
    cgroup_host_done(h);
}

/* The names of leftovers, each with its NUL, none twice. */
struct leftovers {
    struct buf names;
    int (*is_alive)(const char *instance, void *arg);
    void *arg;
};

static int leftovers_add(int group, const char *name, void *arg)
{
    (void)group;
    struct leftovers *l = arg;

    if (strncmp(name, PREFIX, strlen(PREFIX)) || !group_name_ok(name))
        return 0;

    for (size_t at = 0; at < l->names.len; at += strlen((char *)l->names.data + at) + 1)
        if (!strcmp((char *)l->names.data + at, name))
            return 0;

    if (!l->is_alive(name + strlen(PREFIX), l->arg))
        (void)buf_put(&l->names, name, strlen(name) + 1);
    return 0;
}

/* Ends and removes one dead keeper's group in one tree. */
static void leftover_remove(int parent, const char *name, deadline d)
{
    /* Killing does not wait, and a group is busy until its last process is gone from it. */
    while (group_remove(parent, name, 1) == -EBUSY && !deadline_passed(d)) {
        auto_fd group = group_open(parent, name);
        if (group >= 0)
            (void)group_kill(group);

        const struct timespec pause = {.tv_nsec = 2 * (long)NS_PER_MS};
        nanosleep(&pause, NULL);
    }
}

int cgroup_reclaim(const struct cgroup_mounts *m, int (*is_alive)(const char *instance, void *arg),
                   void *arg)
{
    struct leftovers l = {.names = BUF_INIT(RECLAIM_MAX), .is_alive = is_alive, .arg = arg};
    int parent[CGROUP_TREE_COUNT];

    for (int t = 0; t < CGROUP_TREE_COUNT; t++) {
        char why[160];
        parent[t] = m->path[t][0] ? tree_open(m, t, why) : -1;
        if (parent[t] >= 0)
            (void)group_each(parent[t], leftovers_add, &l);
    }

    int count = 0;
    for (size_t at = 0; at < l.names.len; count++) {
        const char *name = (char *)l.names.data + at;
        deadline d = deadline_in(RECLAIM_NS);

        /* From the tree with cgroup.kill to the others, from the freezer down on v1: what is dead
         * in one is dead in all. */
        if (m->layout == CGROUP_V1 && parent[CGROUP_TREE_FREEZER] >= 0)
            leftover_remove(parent[CGROUP_TREE_FREEZER], name, d);
        for (int t = 0; t < CGROUP_TREE_COUNT; t++)
            if (parent[t] >= 0)
                leftover_remove(parent[t], name, d);
        at += strlen(name) + 1;
    }

    for (int t = 0; t < CGROUP_TREE_COUNT; t++)
        fd_done(&parent[t]);
    buf_done(&l.names);
    return count;
}
