/* How this works: output is kept in files of a directory in memory, if there is one. A process that
 * is killed cannot remove its directory. So each one is locked while its process lives, and opening
 * the library removes those that no process holds. */
#include "lib/lib.h"

#include "base/banned.h"
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define SPOOL "spool"

/* One directory of files. */
static void remove_files(int dir)
{
    int copy = fcntl(dir, F_DUPFD_CLOEXEC, 3);

    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    if (!d) {
        fd_done(&copy);
        return;
    }

    rewinddir(d);
    for (struct dirent *at; (at = readdir(d));)
        if (strcmp(at->d_name, ".") != 0 && strcmp(at->d_name, "..") != 0)
            (void)unlinkat(dir, at->d_name, 0);
    closedir(d);
}

static void remove_place(int base, const char *name, int place)
{
    auto_fd spool = openat(place, SPOOL, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (spool >= 0)
        remove_files(spool);

    (void)unlinkat(place, SPOOL, AT_REMOVEDIR);
    (void)unlinkat(base, name, AT_REMOVEDIR);
}

static void prefix_of(char out[40])
{
    snprintf(out, 40, "paddock-%u-", (unsigned)geteuid());
}

/* Removes the directories of processes that have ended. */
static void remove_left(const char *base)
{
    char prefix[40];
    struct stat st;
    auto_fd dir = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int copy = dir >= 0 ? fcntl(dir, F_DUPFD_CLOEXEC, 3) : -1;

    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    if (!d) {
        fd_done(&copy);
        return;
    }

    prefix_of(prefix);
    for (struct dirent *at; (at = readdir(d));) {
        if (strncmp(at->d_name, prefix, strlen(prefix)) != 0)
            continue;

        auto_fd place = openat(dir, at->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (place >= 0 && fstat(place, &st) == 0 && st.st_uid == geteuid() &&
            flock(place, LOCK_EX | LOCK_NB) == 0)
            remove_place(dir, at->d_name, place);
    }
    closedir(d);
}

static int make_in(struct spool_place *s, const char *base)
{
    char prefix[40];
    struct stat here, there;

    if (!base || base[0] != '/' || access(base, W_OK | X_OK) < 0)
        return -1;

    remove_left(base);
    prefix_of(prefix);
    for (int attempt = 0; attempt < 8; attempt++) {
        snprintf(s->path, sizeof s->path, "%s/%sXXXXXX", base, prefix);
        if (!mkdtemp(s->path))
            break;

        s->lock = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        /* Another process that looks for leftovers may have had it before it was locked. */
        if (s->lock >= 0 && flock(s->lock, LOCK_EX | LOCK_NB) == 0 && fstat(s->lock, &here) == 0 &&
            stat(s->path, &there) == 0 && here.st_ino == there.st_ino)
            return 0;
        fd_done(&s->lock);
    }

    s->path[0] = 0;
    return -1;
}

int spool_place_make(struct spool_place *s, const char *base, struct pd_err *e)
{
    const char *places[] = {getenv("XDG_RUNTIME_DIR"), "/dev/shm", getenv("TMPDIR"), "/tmp"};

    if (base && make_in(s, base) < 0)
        return pd_fail(e, PD_INVALID, "spool_dir '%.150s': no directory can be made in it", base);

    for (size_t i = 0; !s->path[0] && i < sizeof places / sizeof *places; i++)
        (void)make_in(s, places[i]);
    return s->path[0] ? 0
                      : pd_fail(e, PD_NO_SPACE,
                                "there is no directory for output: /dev/shm and /tmp cannot be "
                                "written; set XDG_RUNTIME_DIR or TMPDIR");
}

void spool_place_remove(struct spool_place *s)
{
    if (s->path[0])
        remove_place(AT_FDCWD, s->path, s->lock);
    s->path[0] = 0;
    fd_done(&s->lock);
}
