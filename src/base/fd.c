/* Descriptors, how many there may be, small files and random bytes, in one call each. Failures are
 * a negative errno. close is never retried: on Linux the descriptor is gone even when it fails. */
#include "base/fd.h"

#include "base/banned.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>

void fd_done(int *fd)
{
    if (*fd < 0)
        return;

    int saved = errno;
    close(*fd);
    *fd = -1;
    errno = saved;
}

int fd_take(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

ssize_t fd_read_file(int dir, const char *path, char *out, size_t size)
{
    auto_fd fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return -errno;

    size_t len = 0;
    while (len < size) {
        ssize_t n = read(fd, out + len, size - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0) {
            out[len] = 0;
            return (ssize_t)len;
        }
        len += (size_t)n;
    }
    return -EFBIG;
}

int fd_write_file(int dir, const char *path, const char *text)
{
    auto_fd fd = openat(dir, path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return -errno;
    return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

int fd_write_all(int fd, const void *data, size_t len)
{
    const uint8_t *p = data;

    while (len) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

int fd_set_nonblock(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}

uint64_t fd_limit(void)
{
    struct rlimit files;

    return getrlimit(RLIMIT_NOFILE, &files) < 0 ? 0 : (uint64_t)files.rlim_cur;
}

uint64_t fd_limit_raise(uint64_t most)
{
    struct rlimit files;
    char text[32];
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return 0;

    /* Beyond the hard limit only root may go, and not in every container. */
    if (fd_read_file(AT_FDCWD, "/proc/sys/fs/nr_open", text, sizeof text) > 0) {
        struct rlimit higher = {strtoull(text, NULL, 10), strtoull(text, NULL, 10)};
        if (higher.rlim_max > files.rlim_max && (!most || most > files.rlim_max) &&
            setrlimit(RLIMIT_NOFILE, &higher) == 0)
            files = higher;
    }

    rlim_t wanted = most && most < files.rlim_max ? (rlim_t)most : files.rlim_max;
    if (files.rlim_cur != wanted) {
        files.rlim_cur = wanted;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    return fd_limit();
}

/* How many descriptors are open. From Linux 6.2 on the directory's size tells. */
static uint64_t count_open(void)
{
    struct stat st;
    uint64_t count = 0;
    if (stat("/proc/self/fd", &st) == 0 && st.st_size > 0)
        return (uint64_t)st.st_size;

    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return UINT64_MAX;
    while (readdir(dir))
        count++;
    closedir(dir);
    return count - 3; /* itself, . and .. */
}

int fd_spare(int any, unsigned n)
{
    uint64_t limit = fd_limit();
    if (limit <= n)
        return 0;

    /* The lowest number that is free is given: when the last n are, there are as many. */
    int first = limit > INT_MAX ? INT_MAX - 1 : (int)(limit - n);
    int fd = fcntl(any, F_DUPFD_CLOEXEC, first);
    int free = fd == first;
    fd_done(&fd);
    if (free)
        return 1;

    /* High numbers that are taken may have low ones below them that were given back. */
    uint64_t open = count_open();
    return open <= limit && limit - open >= n;
}

void random_bytes(void *out, size_t len)
{
    uint8_t *p = out;

    while (len) {
        ssize_t n = getrandom(p, len, 0);
        if (n < 0 && errno != EINTR)
            abort();
        if (n > 0) {
            p += n;
            len -= (size_t)n;
        }
    }
}
