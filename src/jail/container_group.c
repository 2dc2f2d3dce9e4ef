/* Finds a container's groups by its init's /proc/PID/cgroup: the lines name a path in each tree. */
#include "jail/container_group.h"

#include "base/banned.h"
#include "base/fd.h"
#include "base/parse.h"
#include "jail/cgroup_tree.h"
#include "jail/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#define GROUP_PATH_MAX 768

void container_groups_open(struct container_groups *g, const char *instance, uid_t owner)
{
    cgroup_find(&g->mounts);
    if (cgroup_host_open(&g->host, &g->mounts, instance, NULL) < 0) {
        g->host = (struct cgroup_host){.layout = CGROUP_NONE};
        return;
    }
    g->host.owner = owner;
    sweep_hold_instance(&g->host);
}

/* Whether `list`, the controllers of a line, has this one. */
static bool has_controller(const char *list, const char *end, const char *name)
{
    size_t len = strlen(name);

    while (list < end) {
        const char *stop = memchr(list, ',', (size_t)(end - list));
        if (!stop)
            stop = end;
        if ((size_t)(stop - list) == len && !memcmp(list, name, len))
            return true;
        list = stop + 1;
    }
    return false;
}

/* The path of a process in a tree: of a v1 controller, or with "" of the v2 tree. */
static int path_in_tree(pid_t pid, const char *controller, char *out, size_t size)
{
    char file[40], text[8192];

    snprintf(file, sizeof file, "/proc/%d/cgroup", (int)pid);
    ssize_t n = fd_read_file(AT_FDCWD, file, text, sizeof text);
    if (n < 0)
        return (int)n;

    for (char *line = text; *line;) {
        char *end = strchrnul(line, '\n');
        const char *list = memchr(line, ':', (size_t)(end - line));
        const char *path = list ? memchr(list + 1, ':', (size_t)(end - list - 1)) : NULL;
        bool found =
            path && (controller[0] ? has_controller(list + 1, path, controller) : path == list + 1);
        if (found) {
            size_t len = (size_t)(end - path - 1);
            if (len >= size)
                return -ENAMETOOLONG;
            memcpy(out, path + 1, len);
            out[len] = 0;
            return 0;
        }
        line = *end ? end + 1 : end;
    }
    return -ENOENT;
}

/* The directory of a process in one of our trees, O_PATH; never the tree's own root. */
static int open_below(const char *mount, const char *controller, pid_t pid)
{
    char path[GROUP_PATH_MAX], full[GROUP_PATH_MAX + 256];

    if (!mount[0])
        return -ENOENT;
    int r = path_in_tree(pid, controller, path, sizeof path);
    if (r < 0)
        return r;
    if (!path[1] || strstr(path, ".."))
        return -ENOENT;
    snprintf(full, sizeof full, "%s%s", mount, path);
    int fd = open(full, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int open_in_tree(const struct cgroup_mounts *mounts, enum cgroup_tree tree,
                        const char *controller, pid_t pid)
{
    return open_below(mounts->path[tree], controller, pid);
}

/* As cgroup.c does for a jail: the daemon may make groups there, move into them and freeze. */
static int hand_over(int dir, uid_t owner)
{
    static const char *const files[] = {"cgroup.procs", "cgroup.threads", "cgroup.freeze", "tasks",
                                        "freezer.state"};
    char self[32];

    if (!owner)
        return 0;
    snprintf(self, sizeof self, "/proc/self/fd/%d", dir);
    if (chown(self, owner, (gid_t)-1) < 0)
        return -errno;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (fchownat(dir, files[i], owner, (gid_t)-1, AT_SYMLINK_NOFOLLOW) < 0 && errno != ENOENT)
            return -errno;
    return 0;
}

int container_group_make(struct container_groups *g, const char *name, pid_t pid)
{
    char number[16];
    auto_fd dir = -1;

    if (g->host.layout == CGROUP_HYBRID) {
        int parent = g->host.dir[CGROUP_TREE_UNIFIED];
        if (!group_name_ok(name) || (mkdirat(parent, name, 0755) < 0 && errno != EEXIST))
            return -errno;
        dir = group_open(parent, name);
        if (dir < 0)
            return dir;

        snprintf(number, sizeof number, "%d", (int)pid);
        int r = fd_write_file(dir, "cgroup.procs", number);
        if (r < 0)
            return r;
    } else {
        dir = container_group_find(g, name, pid);
        if (dir < 0)
            return dir;
    }

    int r = hand_over(dir, g->host.owner);
    return r < 0 ? r : fd_take(&dir);
}

int container_group_find(const struct container_groups *g, const char *name, pid_t pid)
{
    switch (g->host.layout) {
    case CGROUP_HYBRID:
        return group_name_ok(name) ? group_open(g->host.dir[CGROUP_TREE_UNIFIED], name) : -EINVAL;
    case CGROUP_V2:
        return pid ? open_in_tree(&g->mounts, CGROUP_TREE_UNIFIED, "", pid) : -ENOENT;
    case CGROUP_V1:
        return pid ? open_in_tree(&g->mounts, CGROUP_TREE_FREEZER, "freezer", pid) : -ENOENT;
    default:
        return -ENOENT;
    }
}

int container_group_remove(const struct container_groups *g, const char *name)
{
    return g->host.layout == CGROUP_HYBRID ? sweep_cgroups(&g->host, name) : 0;
}

/* A number in a file, or behind `key` in one with a line for each. */
static uint64_t read_number(int dir, const char *file, const char *key)
{
    char text[2048];

    if (fd_read_file(dir, file, text, sizeof text) < 0)
        return 0;
    size_t len = strlen(key);
    for (char *line = text; *line;) {
        char *end = strchrnul(line, '\n');
        bool more = *end;
        *end = 0;
        uint64_t n;
        if (!strncmp(line, key, len) && (!len || line[len] == ' ') &&
            parse_u64("", line + len + (len > 0), 0, UINT64_MAX, &n, NULL) == 0)
            return n;
        line = more ? end + 1 : end;
    }
    return 0;
}

/* The directory of a process in a v1 tree that has no place in `mounts`: it is mounted beside
 * another one, in a directory of its controller's name. */
static int open_beside(const char *mount, const char *controller, pid_t pid)
{
    char beside[300] = "";
    const char *slash = strrchr(mount, '/');

    if (slash)
        snprintf(beside, sizeof beside, "%.*s/%s", (int)(slash - mount), mount, controller);
    return open_below(beside, controller, pid);
}

/* cpuacct is mounted with cpu, or beside it. */
static uint64_t read_cpu(const char *cpu, pid_t pid)
{
    auto_fd own = open_beside(cpu, "cpuacct", pid);
    auto_fd shared = open_below(cpu, "cpu", pid);
    uint64_t ns = own >= 0 ? read_number(own, "cpuacct.usage", "") : 0;
    if (!ns && shared >= 0)
        ns = read_number(shared, "cpuacct.usage", "");
    return ns / 1000;
}

void container_usage(pid_t pid, enum cgroup_layout layout, struct cgroup_stats *ret)
{
    struct cgroup_mounts mounts;

    *ret = (struct cgroup_stats){0};
    cgroup_find(&mounts);
    if (layout == CGROUP_V2) {
        auto_fd dir = open_in_tree(&mounts, CGROUP_TREE_UNIFIED, "", pid);
        if (dir < 0)
            return;
        ret->memory_now = read_number(dir, "memory.current", "");
        ret->memory_peak = read_number(dir, "memory.peak", "");
        ret->oom_kills = read_number(dir, "memory.events", "oom_kill");
        ret->pids_now = read_number(dir, "pids.current", "");
        ret->pids_refused = read_number(dir, "pids.events", "max");
        ret->cpu_usec = read_number(dir, "cpu.stat", "usage_usec");
        return;
    }

    auto_fd memory = open_in_tree(&mounts, CGROUP_TREE_MEMORY, "memory", pid);
    if (memory >= 0) {
        ret->memory_now = read_number(memory, "memory.usage_in_bytes", "");
        ret->memory_peak = read_number(memory, "memory.max_usage_in_bytes", "");
        ret->oom_kills = read_number(memory, "memory.oom_control", "oom_kill");
    }
    auto_fd pids = open_in_tree(&mounts, CGROUP_TREE_PIDS, "pids", pid);
    if (pids >= 0) {
        ret->pids_now = read_number(pids, "pids.current", "");
        ret->pids_refused = read_number(pids, "pids.events", "max");
    }
    ret->cpu_usec = read_cpu(mounts.path[CGROUP_TREE_CPU], pid);
}

bool container_is_frozen(pid_t pid, enum cgroup_layout layout)
{
    struct cgroup_mounts mounts;
    auto_fd dir = -1;

    cgroup_find(&mounts);
    if (layout == CGROUP_V2)
        dir = open_in_tree(&mounts, CGROUP_TREE_UNIFIED, "", pid);
    else if (layout == CGROUP_HYBRID) /* we freeze in the v2 tree there, the engine in v1's */
        dir = open_beside(mounts.path[CGROUP_TREE_MEMORY], "freezer", pid);
    else
        dir = open_in_tree(&mounts, CGROUP_TREE_FREEZER, "freezer", pid);
    return dir >= 0 && group_is_frozen(dir);
}
