/* The groups of one jail: made, limited, entered, killed, measured and removed.
 *
 * A jail has a directory of its name in every tree that its keeper uses. `home` of the host says
 * which tree has a controller (several v1 controllers may share one, and in the hybrid layout some
 * are in the v2 tree), so each limit is one file in one directory. A process enters the v1 trees by
 * files that were opened in advance, and is born into the v2 group. A command has a group of its
 * own below the jail's, in the tree with the freezer; on v2 a threaded one, where that is possible.
 */
#include "jail/cgroup.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/cgroup_tree.h"
#include "jail/cgroup_used.h"
#include "jail/walls.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

/* A jail's or command's name and a file name of the kernel. */
#define FILE_PATH_MAX 128
/* The length of a cpu period. A new v1 group starts with the same one, so only its quota is set. */
#define CPU_PERIOD_US 100000
/* Which part of a jail's memory limit its socket buffers may have besides, on v1. */
#define SOCKETS_PART 4

static int name_ok(const char *name)
{
    return group_name_ok(name) && strlen(name) < sizeof((struct cgroup *)0)->name;
}

static void file_path(const char *name, const char *file, char out[FILE_PATH_MAX])
{
    snprintf(out, FILE_PATH_MAX, "%.39s/%s", name, file);
}

/* The jail's directory in the tree for kill, freeze and commands: O_PATH or -errno. */
int cgroup_jail_dir(const struct cgroup_host *h, const char *name)
{
    if (h->layout == CGROUP_NONE)
        return -EOPNOTSUPP;
    return name_ok(name) ? group_open(h->dir[h->home[CGROUP_TREE_FREEZER]], name) : -EINVAL;
}

void cgroup_close(struct cgroup *c)
{
    for (int t = 0; t < CGROUP_TREE_COUNT; t++)
        fd_done(&c->tasks[t]);
    fd_done(&c->unified);
}

/* Opens a file of a group that was just made. Descriptor, or -errno and no group. */
static int open_made(int parent, const char *name, const char *file, int flags)
{
    char path[FILE_PATH_MAX];
    file_path(name, file, path);

    int fd = openat(parent, path, flags | O_CLOEXEC);
    if (fd >= 0)
        return fd;

    int err = -errno;
    (void)unlinkat(parent, name, AT_REMOVEDIR);
    return err;
}

static int make_group(int parent, const char *name, const char *file, int flags)
{
    return mkdirat(parent, name, 0755) < 0 ? -errno : open_made(parent, name, file, flags);
}

static int make_in_tree(const struct cgroup_host *h, int t, const char *name, struct cgroup *c)
{
    int fd;
    if (t == CGROUP_TREE_UNIFIED)
        fd = make_group(h->dir[t], name, "", O_PATH | O_DIRECTORY);
    else if (t == CGROUP_TREE_MEMORY && used_group_take(h, name) == 0)
        fd = open_made(h->dir[t], name, "tasks", O_WRONLY);
    else
        fd = make_group(h->dir[t], name, "tasks", O_WRONLY);
    if (fd < 0)
        return fd;
    *(t == CGROUP_TREE_UNIFIED ? &c->unified : &c->tasks[t]) = fd;
    return 0;
}

/* Lets a daemon without privilege make groups for commands, move into them and freeze. Killing is
 * not among it: in a threaded group that takes signals, and those take privilege. */
static int hand_over(const struct cgroup_host *h, const char *name)
{
    static const char *const files[] = {"",      "cgroup.procs", "cgroup.threads", "cgroup.freeze",
                                        "tasks", "freezer.state"};
    int dir = h->dir[h->home[CGROUP_TREE_FREEZER]];

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[FILE_PATH_MAX];
        file_path(name, files[i], path);
        if (fchownat(dir, path, h->owner, (gid_t)-1, 0) < 0 && errno != ENOENT)
            return -errno;
    }

    return 0;
}

int cgroup_create(const struct cgroup_host *h, const char *name, struct cgroup *ret,
                  struct pd_err *e)
{
    if (!name_ok(name))
        return pd_fail(e, PD_INVALID, "'%.40s' is no name for a cgroup", name);

    struct cgroup c = CGROUP_EMPTY;
    snprintf(c.name, sizeof c.name, "%s", name);

    for (int t = 0; t < CGROUP_TREE_COUNT; t++) {
        int r = h->dir[t] < 0 ? 0 : make_in_tree(h, t, name, &c);
        if (r == 0 && h->owner && h->dir[t] >= 0 && t == h->home[CGROUP_TREE_FREEZER] &&
            (r = hand_over(h, name)) < 0)
            (void)unlinkat(h->dir[t], name, AT_REMOVEDIR);
        if (r == 0)
            continue;

        errno = -r;
        pd_fail_sys(e, "cgroup %s", name);
        while (t-- > 0)
            if (h->dir[t] >= 0)
                (void)unlinkat(h->dir[t], name, AT_REMOVEDIR);
        cgroup_close(&c);
        return -1;
    }

    *ret = c;
    return 0;
}

/* One file of one jail, in the tree that has the controller. 0 or -errno. */
static int set(const struct cgroup_host *h, enum cgroup_tree t, const char *name, const char *file,
               uint64_t value)
{
    char path[FILE_PATH_MAX], text[32];
    file_path(name, file, path);
    snprintf(text, sizeof text, "%" PRIu64, value);
    return fd_write_file(h->dir[h->home[t]], path, text);
}

/* Whether the limit of t is set in the v2 tree. */
static int is_v2(const struct cgroup_host *h, enum cgroup_tree t)
{
    return h->home[t] == CGROUP_TREE_UNIFIED;
}

static int limit_memory(const struct cgroup_host *h, const char *name, uint64_t bytes)
{
    enum cgroup_tree t = CGROUP_TREE_MEMORY;
    int r;

    if (is_v2(h, t)) {
        r = set(h, t, name, "memory.max", bytes);
        int swap = r ? 0 : set(h, t, name, "memory.swap.max", 0);
        return swap && swap != -ENOENT ? swap : r;
    }

    /* Memory and swap together may not be less than memory alone, at any moment: so lowering starts
     * with memory, raising with the sum. Without swap accounting the sum has no file. */
    r = set(h, t, name, "memory.limit_in_bytes", bytes);
    int sum = r && r != -EINVAL ? 0 : set(h, t, name, "memory.memsw.limit_in_bytes", bytes);
    if (r == -EINVAL && !sum)
        r = set(h, t, name, "memory.limit_in_bytes", bytes);
    if (r || (sum && sum != -ENOENT))
        return r ? r : sum;

    /* A host without this file says so in cgroup_host.why. */
    int sockets = set(h, t, name, CGROUP_SOCKETS_FILE, bytes / SOCKETS_PART);
    return sockets == -ENOENT ? 0 : sockets;
}

static int limit_cpu(const struct cgroup_host *h, const char *name, uint64_t milli)
{
    enum cgroup_tree t = CGROUP_TREE_CPU;
    uint64_t quota = milli * (CPU_PERIOD_US / 1000);

    if (!is_v2(h, t)) {
        int r = set(h, t, name, "cpu.cfs_quota_us", quota);
        /* v1 refuses more than a group above has. That one's limit is in force then. */
        return r == -EINVAL && quota >= 1000 ? 0 : r;
    }

    char path[FILE_PATH_MAX], text[64];
    file_path(name, "cpu.max", path);
    snprintf(text, sizeof text, "%" PRIu64 " %d", quota, CPU_PERIOD_US);
    return fd_write_file(h->dir[h->home[t]], path, text);
}

/* The limits that remain when a test build leaves a wall out; 0 is no limit. */
static struct limits without_walls(struct limits l)
{
    if (wall_off("memory"))
        l.memory = 0;
    if (wall_off("pids"))
        l.pids = 0;
    if (wall_off("cpu"))
        l.cpu_milli = 0;
    return l;
}

int cgroup_limit(const struct cgroup_host *h, const char *name, const struct limits *wanted,
                 struct pd_err *e)
{
    if (h->layout == CGROUP_NONE)
        return 0;
    if (!name_ok(name))
        return pd_fail(e, PD_INVALID, "'%.40s' is no name for a cgroup", name);

    const struct limits left = without_walls(*wanted), *l = &left;
    int r = l->memory ? limit_memory(h, name, l->memory) : 0;
    const char *what = "memory";

    if (!r && l->pids) {
        what = "pids";
        r = set(h, CGROUP_TREE_PIDS, name, "pids.max", l->pids);
    }
    if (!r && l->cpu_milli) {
        what = "cpu";
        r = limit_cpu(h, name, l->cpu_milli);
    }

    if (!r)
        return 0;
    errno = -r;
    return pd_fail_sys(e, "%s limit of cgroup %s", what, name);
}

int cgroup_enter(const struct cgroup *c, int born)
{
    if (c->unified >= 0 && !born) {
        int r = fd_write_file(c->unified, "cgroup.procs", "0");
        if (r < 0)
            return r;
    }

    for (int t = 0; t < CGROUP_TREE_COUNT; t++)
        if (c->tasks[t] >= 0 && write(c->tasks[t], "0", 1) < 0)
            return -errno;
    return 0;
}

int cgroup_kill(const struct cgroup_host *h, const char *name)
{
    auto_fd group = cgroup_jail_dir(h, name);
    return group < 0 ? group : group_kill(group);
}

int cgroup_freeze(const struct cgroup_host *h, const char *name, int frozen, uint64_t deadline_ns,
                  struct pd_err *e)
{
    auto_fd group = cgroup_jail_dir(h, name);
    int r = group < 0 ? group : group_freeze(group, frozen, deadline_ns);
    if (!r)
        return 0;

    errno = -r;
    return pd_fail_sys(e, "%s cgroup %.40s", frozen ? "pause" : "resume", name);
}

int cgroup_is_frozen(const struct cgroup_host *h, const char *name)
{
    auto_fd group = cgroup_jail_dir(h, name);
    return group >= 0 && group_is_frozen(group);
}

int group_is_frozen(int group)
{
    char text[32];
    if (fd_read_file(group, "cgroup.freeze", text, sizeof text) > 0)
        return text[0] == '1';
    return fd_read_file(group, "freezer.state", text, sizeof text) > 0 &&
           strncmp(text, "THAWED", 6) != 0;
}

static int remove_all(const struct cgroup_host *h, const char *name, int keep)
{
    if (h->layout == CGROUP_NONE)
        return 0;
    if (!name_ok(name))
        return -EINVAL;

    /* Commands are in this tree; when it is gone, nothing lives in the others either. */
    unsigned char first = h->home[CGROUP_TREE_FREEZER];
    unsigned char memory = h->home[CGROUP_TREE_MEMORY];
    int err = group_remove(h->dir[first], name, first == memory);

    for (int t = 0; t < CGROUP_TREE_COUNT && err != -EBUSY; t++) {
        if (h->dir[t] < 0 || t == first)
            continue;
        if (keep && t == memory && used_group_keep(h, name) == 0)
            continue;
        int r = group_remove(h->dir[t], name, t == memory);
        if (r)
            err = r;
    }

    return err;
}

int cgroup_remove(const struct cgroup_host *h, const char *name)
{
    return remove_all(h, name, 0);
}

int cgroup_retire(const struct cgroup_host *h, const char *name)
{
    return remove_all(h, name, 1);
}

/* The number behind `key ` at the start of a line, or of the file when key is "". 0 if unknown. */
static uint64_t get(const struct cgroup_host *h, enum cgroup_tree t, const char *name,
                    const char *file, const char *key)
{
    char path[FILE_PATH_MAX], text[4096];
    file_path(name, file, path);
    if (fd_read_file(h->dir[t], path, text, sizeof text) < 0)
        return 0;

    size_t len = strlen(key);
    const char *line = text;
    while (len && line && (strncmp(line, key, len) || line[len] != ' ')) {
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }

    return line ? strtoull(line + len, NULL, 10) : 0;
}

void cgroup_read_stats(const struct cgroup_host *h, const char *name, struct cgroup_stats *ret)
{
    *ret = (struct cgroup_stats){0};
    if (h->layout == CGROUP_NONE || !name_ok(name))
        return;

    unsigned char memory = h->home[CGROUP_TREE_MEMORY];
    unsigned char pids = h->home[CGROUP_TREE_PIDS];

    if (is_v2(h, CGROUP_TREE_MEMORY)) {
        ret->oom_kills = get(h, memory, name, "memory.events", "oom_kill");
        ret->memory_now = get(h, memory, name, "memory.current", "");
        ret->memory_peak = get(h, memory, name, "memory.peak", "");
    } else {
        ret->oom_kills = get(h, memory, name, "memory.oom_control", "oom_kill");
        ret->memory_now = get(h, memory, name, "memory.usage_in_bytes", "");
        ret->memory_peak = get(h, memory, name, "memory.max_usage_in_bytes", "");
    }

    ret->pids_refused = get(h, pids, name, "pids.events", "max");
    ret->pids_now = get(h, pids, name, "pids.current", "");

    /* The v2 tree counts cpu time even where it has no cpu controller. On v1 the count is
     * cpuacct's, which is mostly, but not always, mounted together with cpu. */
    if (h->dir[CGROUP_TREE_UNIFIED] >= 0)
        ret->cpu_usec = get(h, CGROUP_TREE_UNIFIED, name, "cpu.stat", "usage_usec");
    else
        ret->cpu_usec = get(h, h->home[CGROUP_TREE_CPU], name, "cpuacct.usage", "") / 1000;
}

int cgroup_command_create(int jail_dir, const char *command)
{
    char path[FILE_PATH_MAX];

    if (!name_ok(command))
        return -EINVAL;
    int v1 = make_group(jail_dir, command, "tasks", O_WRONLY);
    if (v1 != -ENOENT)
        return v1;
    int fd = make_group(jail_dir, command, "cgroup.threads", O_WRONLY);
    if (fd < 0)
        return fd;

    file_path(command, "cgroup.type", path);
    int r = fd_write_file(jail_dir, path, "threaded");
    if (r == 0)
        return fd;

    /* A group that is not threaded for want of descriptors would refuse the command, and the next
     * one: so it goes, and the reason is told. */
    if (r == -EMFILE || r == -ENFILE || r == -ENOMEM) {
        fd_done(&fd);
        (void)unlinkat(jail_dir, command, AT_REMOVEDIR);
        return r;
    }

    /* A jail whose group hands controllers down cannot have threaded groups: the slow way then. */
    fd_done(&fd);
    file_path(command, "cgroup.procs", path);
    fd = openat(jail_dir, path, O_WRONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int cgroup_command_kill(int jail_dir, const char *command)
{
    if (!name_ok(command))
        return -EINVAL;
    auto_fd group = group_open(jail_dir, command);
    return group < 0 ? group : group_kill(group);
}

int cgroup_command_remove(int jail_dir, const char *command)
{
    return name_ok(command) ? group_remove(jail_dir, command, 0) : -EINVAL;
}
