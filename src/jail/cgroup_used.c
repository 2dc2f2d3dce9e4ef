/* Used memory groups lie beside the jails' own, as used-0, used-1, and so on. A rename is one step
 * and happens or not, so whoever is first has the group, and none is ever in two hands. (Only v1
 * lets groups be renamed.) Whoever removes a keeper's groups finds them like any other.
 *
 * Pages of files belong to the group whose process read them first, and a group from which they are
 * taken loses them: the next jail on the same image would read its programs from the disk again. So
 * a group that has some is kept with them instead, as files-0, files-1, and so on, and is nobody's
 * again. When there are FILES_MAX of them one goes: one that has lost its pages, or the oldest.
 * What a jail has written on disk counts as well, because the kernel does not tell it apart; it
 * goes when its root is deleted, and its group is the next to make room. */
#include "jail/cgroup_used.h"

#include "base/banned.h"
#include "base/fd.h"
#include "jail/cgroup_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

#define USED_MAX  8u
#define FILES_MAX 16u
/* Less is read again in no time. */
#define FILES_MIN (64u << 10)
/* Fewer are what is left of files that were deleted, as far as the kernel's number can tell. */
#define FILES_FEW   (512u << 10)
#define FILES_LIMIT "268435456" /* of one: more was read than is likely to be wanted again */

/* Set back in this order: memory and swap together may not be less than memory alone. */
static const char *const limits[] = {"memory.memsw.limit_in_bytes", "memory.limit_in_bytes",
                                     CGROUP_SOCKETS_FILE};
static const char *const peaks[] = {
    "memory.max_usage_in_bytes",          "memory.failcnt",
    "memory.memsw.max_usage_in_bytes",    "memory.memsw.failcnt",
    "memory.kmem.max_usage_in_bytes",     "memory.kmem.failcnt",
    "memory.kmem.tcp.max_usage_in_bytes", "memory.kmem.tcp.failcnt",
};

/* Is there a tree of the memory controller and of nothing else? */
static int has_own_tree(const struct cgroup_host *h)
{
    const enum cgroup_tree memory = CGROUP_TREE_MEMORY;

    if (h->layout != CGROUP_HYBRID && h->layout != CGROUP_V1)
        return 0;
    return h->dir[memory] >= 0 && h->home[CGROUP_TREE_FREEZER] != memory &&
           h->home[CGROUP_TREE_PIDS] != memory && h->home[CGROUP_TREE_CPU] != memory;
}

static void used_name(unsigned i, char out[16])
{
    snprintf(out, 16, "used-%u", i);
}

/* Writes to each of them that this kernel has. */
static int set_all(int group, const char *const *files, size_t count, const char *text)
{
    for (size_t i = 0; i < count; i++) {
        int r = fd_write_file(group, files[i], text);
        if (r < 0 && r != -ENOENT)
            return r;
    }
    return 0;
}

static int charge_of(int group, uint64_t *ret)
{
    char text[32];
    if (fd_read_file(group, "memory.usage_in_bytes", text, sizeof text) <= 0)
        return -1;
    *ret = strtoull(text, NULL, 10);
    return 0;
}

/* Nobody is in it, and the one counter that cannot be set back was never used. */
static int is_unspoilt(int group)
{
    char text[256];

    if (fd_read_file(group, "tasks", text, sizeof text) != 0)
        return 0;
    return fd_read_file(group, "memory.oom_control", text, sizeof text) > 0 &&
           strstr(text, "oom_kill_disable 0\n") && strstr(text, "\noom_kill 0\n");
}

/* A limit has the kernel settle its accounts, and then take back what is more. To have it take back
 * the rest, too, costs a third of all that a sweeper does: it asks every cache of the kernel, and
 * gets a page or two. */
static void empty(int group)
{
    char text[24];
    snprintf(text, sizeof text, "%u", USED_CHARGE_MAX);
    (void)fd_write_file(group, "memory.limit_in_bytes", text);
}

/* Bytes of files in memory that are charged to it. The kernel may be late with this number by 64
 * pages for each processor. */
static uint64_t files_of(int group)
{
    static const char *const keys[] = {"\ninactive_file ", "\nactive_file "};
    char text[4096];
    uint64_t sum = 0;

    if (fd_read_file(group, "memory.stat", text, sizeof text) <= 0)
        return 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *at = strstr(text, keys[i]);
        sum += at ? strtoull(at + strlen(keys[i]), NULL, 10) : 0;
    }
    return sum;
}

static void files_name(unsigned i, char out[16])
{
    snprintf(out, 16, "files-%u", i);
}

/* Which one is to make room. */
static unsigned files_to_drop(int tree)
{
    static unsigned oldest; /* as far as this sweeper knows */
    uint64_t fewest = FILES_FEW;
    unsigned drop = FILES_MAX;
    char kept[16];

    for (unsigned i = 0; i < FILES_MAX; i++) {
        files_name(i, kept);
        auto_fd group = openat(tree, kept, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        uint64_t files = group >= 0 ? files_of(group) : 0;
        if (files < fewest) {
            fewest = files;
            drop = i;
        }
    }
    return drop < FILES_MAX ? drop : oldest++ % FILES_MAX;
}

/* Keeps the group for the sake of the files that it has in memory. */
static int keep_files(int tree, int group, const char *name)
{
    char kept[16];

    if (set_all(group, limits, sizeof limits / sizeof *limits, "-1") < 0 ||
        fd_write_file(group, "memory.limit_in_bytes", FILES_LIMIT) < 0)
        return -EBUSY;

    for (unsigned i = 0; i < FILES_MAX; i++) {
        files_name(i, kept);
        if (renameat(tree, name, tree, kept) == 0)
            return 0;
    }
    files_name(files_to_drop(tree), kept);
    int r = group_remove(tree, kept, 1);
    if (r < 0)
        return r;
    return renameat(tree, name, tree, kept) < 0 ? -errno : 0;
}

int used_group_keep(const struct cgroup_host *h, const char *name)
{
    char used[16];
    uint64_t charge;

    if (!has_own_tree(h))
        return -EOPNOTSUPP;
    int tree = h->dir[CGROUP_TREE_MEMORY];
    auto_fd group = openat(tree, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (group < 0)
        return -errno;
    if (!is_unspoilt(group))
        return -EBUSY;

    if (files_of(group) >= FILES_MIN)
        return keep_files(tree, group, name);

    empty(group);
    if (charge_of(group, &charge) < 0 || charge > USED_CHARGE_MAX)
        return -EBUSY;
    if (set_all(group, limits, sizeof limits / sizeof *limits, "-1") < 0 ||
        set_all(group, peaks, sizeof peaks / sizeof *peaks, "0") < 0)
        return -EBUSY;

    for (unsigned i = 0; i < USED_MAX; i++) {
        used_name(i, used);
        if (renameat(tree, name, tree, used) == 0)
            return 0;
    }
    return -EEXIST;
}

int used_group_take(const struct cgroup_host *h, const char *name)
{
    char used[16];

    if (!has_own_tree(h))
        return -EOPNOTSUPP;
    int tree = h->dir[CGROUP_TREE_MEMORY];
    for (unsigned i = 0; i < USED_MAX; i++) {
        used_name(i, used);
        if (renameat(tree, used, tree, name) == 0)
            return 0;
        if (errno != ENOENT)
            return -errno;
    }
    return -ENOENT;
}
