/* A promise is an empty file STATE/promises/ROOT. One that cannot be written down is tried all the
 * same, as long as this keeper lives. */
#include "jail/promises.h"

#include "base/banned.h"
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_dir(const char *state_dir)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/promises", state_dir);
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return -1;
    return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

void promise_make(const char *state_dir, const char *root)
{
    auto_fd dir = open_dir(state_dir);
    auto_fd file =
        dir < 0 ? -1 : openat(dir, root, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    (void)file;
}

void promise_keep(const char *state_dir, const char *root)
{
    auto_fd dir = open_dir(state_dir);
    if (dir >= 0)
        (void)unlinkat(dir, root, 0);
}

void promises_each(const char *state_dir, void (*each)(const char *root, void *arg), void *arg)
{
    auto_fd fd = open_dir(state_dir);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir)
        return;
    fd_take(&fd);

    for (const struct dirent *d; (d = readdir(dir));)
        if (d->d_name[0] != '.')
            each(d->d_name, arg);
    closedir(dir);
}
