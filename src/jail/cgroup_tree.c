/* One group, given by its descriptor: kill, freeze, remove.
 *
 * Which version of cgroups it is shows in its files: cgroup.freeze is v2, freezer.state v1. Killing
 * is one write where there is cgroup.kill. Otherwise the group is frozen, everybody in it and below
 * gets SIGKILL, and it is thawed; if it could not be frozen, that is repeated until a round finds
 * nobody. Removing tries the rmdir first and looks for groups below only when it is refused. */
#include "jail/cgroup_tree.h"

#include "base/banned.h"
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>

/* How long a walk waits for a group to freeze, and how often it looks for who escaped it. */
#define WALK_FREEZE_NS NS_PER_S
#define WALK_ROUNDS    32

static void stream_done(DIR **d)
{
    if (*d)
        closedir(*d);
}
#define auto_stream __attribute__((cleanup(stream_done))) DIR

int group_name_ok(const char *name)
{
    if (!*name || *name == '.')
        return 0;

    for (const char *p = name; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
              *p == '.' || *p == '_' || *p == '-'))
            return 0;
    return 1;
}

int group_open(int parent, const char *name)
{
    int fd = openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int group_each(int group, int (*fn)(int group, const char *name, void *arg), void *arg)
{
    auto_fd fd = openat(group, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;

    auto_stream *d = fdopendir(fd);
    if (!d)
        return -errno;
    fd_take(&fd);

    for (const struct dirent *entry; (entry = readdir(d));) {
        /* kernfs always tells the type; an interface file is no group. */
        if (entry->d_type != DT_DIR || !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        int r = fn(group, entry->d_name, arg);
        if (r)
            return r;
    }

    return 0;
}

/* fn for the group and every one below it. Groups that vanish meanwhile are passed over. */
struct walk {
    void (*fn)(int group, void *arg);
    void *arg;
    unsigned depth;
};

static int walk_into(int parent, const char *name, void *arg)
{
    struct walk w = *(const struct walk *)arg;
    auto_fd group = group_open(parent, name);
    if (group < 0)
        return 0;

    w.fn(group, w.arg);
    if (++w.depth < GROUP_DEPTH_MAX)
        (void)group_each(group, walk_into, &w);
    return 0;
}

static void walk(int group, void (*fn)(int group, void *arg), void *arg)
{
    struct walk w = {.fn = fn, .arg = arg};
    fn(group, arg);
    (void)group_each(group, walk_into, &w);
}

/* Whether a small file of the group has `text` in it; 0 if there is no such file. */
static int file_says(int group, const char *file, const char *text)
{
    char out[256];
    return fd_read_file(group, file, out, sizeof out) > 0 && strstr(out, text) != NULL;
}

static void signal_members(int group, void *arg)
{
    unsigned *count = arg;

    /* A threaded group cannot list its processes. A signal to a thread's id reaches its process. */
    int threaded =
        file_says(group, "cgroup.type", "threaded") && !file_says(group, "cgroup.type", "domain");
    auto_fd fd = openat(group, threaded ? "cgroup.threads" : "cgroup.procs", O_RDONLY | O_CLOEXEC);
    char text[4096];
    pid_t self = getpid();
    pid_t pid = 0;
    ssize_t n;

    while (fd >= 0 && (n = read(fd, text, sizeof text)) > 0) {
        for (ssize_t i = 0; i < n; i++) {
            if (text[i] >= '0' && text[i] <= '9' && pid < 100000000) {
                pid = pid * 10 + (text[i] - '0');
                continue;
            }
            /* 0 is a process that our pid namespace cannot see; kill(0) would be our own group. */
            if (pid > 0 && pid != self && !kill(pid, SIGKILL))
                ++*count;
            pid = 0;
        }
    }
}

static void thaw_one(int group, void *arg)
{
    (void)arg;
    (void)group_freeze(group, 0, 0);
}

int group_kill_walk(int group)
{
    /* A frozen process cannot fork away from the walk; its SIGKILL stays pending. On v1 it does not
     * even die before it is thawed, and a sub-group may be frozen on its own account. */
    int frozen = !group_freeze(group, 1, deadline_in(WALK_FREEZE_NS));

    unsigned count = 0;
    walk(group, signal_members, &count);
    walk(group, thaw_one, NULL);

    for (int round = 0; !frozen && count && round < WALK_ROUNDS; round++) {
        count = 0;
        walk(group, signal_members, &count);
    }

    return 0;
}

int group_kill(int group)
{
    /* -EOPNOTSUPP: a threaded group, which a command has. */
    int r = fd_write_file(group, "cgroup.kill", "1");
    return r == -ENOENT || r == -EOPNOTSUPP ? group_kill_walk(group) : r;
}

/* v2: the kernel reports "frozen" in cgroup.events and wakes who polls it. */
static int wait_frozen_v2(int group, deadline d)
{
    auto_fd fd = openat(group, "cgroup.events", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;

    for (;;) {
        char text[256];
        ssize_t n = pread(fd, text, sizeof text - 1, 0);
        if (n < 0)
            return -errno;

        text[n] = 0;
        if (strstr(text, "frozen 1"))
            return 0;

        if (deadline_passed(d))
            return -ETIMEDOUT;
        struct pollfd p = {.fd = fd, .events = POLLPRI};
        if (poll(&p, 1, deadline_poll_ms(d)) < 0 && errno != EINTR)
            return -errno;
    }
}

/* v1 reports nothing: its state is worked out when it is read, so it has to be asked again. */
static int wait_frozen_v1(int group, deadline d)
{
    for (;;) {
        char text[32];
        ssize_t n = fd_read_file(group, "freezer.state", text, sizeof text);
        if (n < 0)
            return (int)n;

        if (!strncmp(text, "FROZEN", 6))
            return 0;
        if (deadline_passed(d))
            return -ETIMEDOUT;
        const struct timespec ms = {.tv_nsec = (long)NS_PER_MS};
        nanosleep(&ms, NULL);
    }
}

int group_freeze(int group, int frozen, deadline d)
{
    int v1 = 0;
    int r = fd_write_file(group, "cgroup.freeze", frozen ? "1" : "0");
    if (r == -ENOENT) {
        v1 = 1;
        r = fd_write_file(group, "freezer.state", frozen ? "FROZEN" : "THAWED");
    }

    if (r == -ENOENT)
        return -EOPNOTSUPP;
    if (r || !frozen)
        return r;

    r = v1 ? wait_frozen_v1(group, d) : wait_frozen_v2(group, d);
    if (r) /* half paused is the worst of both: back to where it was */
        (void)fd_write_file(group, v1 ? "freezer.state" : "cgroup.freeze", v1 ? "THAWED" : "0");
    return r;
}

struct removal {
    int give_back;
    unsigned depth;
};

/* Has the page cache that is charged to a group dropped: a group with charges stays in the kernel
 * after its rmdir, out of everybody's sight. */
static void memory_give_back(int parent, const char *name)
{
    auto_fd group = group_open(parent, name);
    char now[32];

    /* With nothing charged at all there is nothing to drop. This counter is exact; memory.stat lags
     * behind and has said that there is no cache where there was. */
    if (group < 0 ||
        (fd_read_file(group, "memory.usage_in_bytes", now, sizeof now) > 0 && !strcmp(now, "0\n")))
        return;
    if (fd_write_file(group, "memory.force_empty", "0") != -ENOENT)
        return;

    /* v2 (memory.reclaim: 5.19) wants to know how much. Not while something lives there: it would
     * only lose its cache, and the rmdir be refused all the same. */
    char bytes[32];
    if (!file_says(group, "cgroup.events", "populated 1") &&
        fd_read_file(group, "memory.current", bytes, sizeof bytes) > 0 && bytes[0] != '0')
        (void)fd_write_file(group, "memory.reclaim", bytes);
}

static int remove_one(int parent, const char *name, void *arg)
{
    struct removal r = *(const struct removal *)arg;
    if (r.give_back)
        memory_give_back(parent, name);

    /* Most groups have nothing below: look only when the kernel refuses. */
    if (!unlinkat(parent, name, AT_REMOVEDIR) || errno == ENOENT)
        return 0;
    if (errno != EBUSY || ++r.depth >= GROUP_DEPTH_MAX)
        return -errno;

    auto_fd group = group_open(parent, name);
    if (group < 0)
        return group == -ENOENT ? 0 : group;
    int err = group_each(group, remove_one, &r);
    if (err)
        return err;
    return !unlinkat(parent, name, AT_REMOVEDIR) || errno == ENOENT ? 0 : -errno;
}

int group_remove(int parent, const char *name, int give_back)
{
    struct removal r = {.give_back = give_back};
    return remove_one(parent, name, &r);
}
