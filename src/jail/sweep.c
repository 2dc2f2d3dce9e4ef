/* Removing the cgroups of the dead.
 *
 * A jail's groups are busy until its last process has left them, so removing is tried again after
 * growing pauses, for about five seconds. Every process of a keeper holds a shared lock on one of
 * the keeper's directories. A keeper whose directories nobody has locked, and which are not new, is
 * dead: its groups are removed by the next one that ends. */
#include "jail/sweep.h"

#include "base/banned.h"
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#define PAUSE_FIRST_US 200u
#define PAUSE_MAX_US   100000u
#define PATIENCE_US    5000000u
/* A directory that was just made may not have its lock yet. */
#define YOUNG_S 10

static int sweep(const struct cgroup_host *h, const char *name,
                 int (*remove)(const struct cgroup_host *, const char *))
{
    unsigned waited = 0;

    for (unsigned pause = PAUSE_FIRST_US;;
         pause = pause * 2 > PAUSE_MAX_US ? PAUSE_MAX_US : pause * 2) {
        int r = remove(h, name);
        if (r != -EBUSY || waited >= PATIENCE_US)
            return r;
        usleep(pause);
        waited += pause;
    }
}

int sweep_cgroups(const struct cgroup_host *h, const char *name)
{
    return sweep(h, name, cgroup_remove);
}

int sweep_retire(const struct cgroup_host *h, const char *name)
{
    return sweep(h, name, cgroup_retire);
}

static int any_dir(const struct cgroup_host *h)
{
    for (int i = 0; i < CGROUP_TREE_COUNT; i++)
        if (h->dir[i] >= 0)
            return openat(h->dir[i], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return -1;
}

void sweep_hold_instance(const struct cgroup_host *h)
{
    if (h->layout == CGROUP_NONE)
        return;
    int dir = any_dir(h); /* stays open, and locked, until the process ends */
    if (dir >= 0)
        (void)flock(dir, LOCK_SH);
}

/* Is a keeper's directory locked by one of its processes, or too young to tell? */
static int is_alive(const char *instance, void *arg)
{
    const struct cgroup_mounts *m = arg;

    for (int i = 0; i < CGROUP_TREE_COUNT; i++) {
        if (!m->path[i][0])
            continue;

        char path[400];
        struct stat st;
        snprintf(path, sizeof path, "%s/paddock-%s", m->path[i], instance);
        auto_fd dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0 || fstat(dir, &st) < 0)
            continue;
        if (time(NULL) - st.st_ctim.tv_sec < YOUNG_S || flock(dir, LOCK_EX | LOCK_NB) < 0)
            return 1;
    }

    return 0;
}

/* Every jail directory of the keeper, in whichever tree it has one. */
static void sweep_jails(const struct cgroup_host *h)
{
    for (int i = 0; i < CGROUP_TREE_COUNT; i++) {
        if (h->dir[i] < 0)
            continue;

        int fd = openat(h->dir[i], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *entries = fd < 0 ? NULL : fdopendir(fd);
        if (!entries) {
            fd_done(&fd);
            continue;
        }

        const struct dirent *d;
        while ((d = readdir(entries))) {
            if (d->d_type != DT_DIR || d->d_name[0] == '.')
                continue;
            (void)cgroup_kill(h, d->d_name);
            (void)sweep_cgroups(h, d->d_name);
        }

        closedir(entries);
    }
}

void sweep_instance(struct cgroup_host *h)
{
    if (h->layout == CGROUP_NONE)
        return;

    struct cgroup_mounts m;
    sweep_jails(h);
    cgroup_host_remove(h);

    cgroup_find(&m);
    (void)cgroup_reclaim(&m, is_alive, &m);
}
