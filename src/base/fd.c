/* Descriptors, small files and random bytes, in one call each. Failures are a negative errno. close
 * is never retried: on Linux the descriptor is gone even when it fails. */
#include "base/fd.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/random.h>
#include <sys/resource.h>

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

int fd_spare(int any, unsigned n)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur <= n)
        return 0;

    /* The lowest number that is free is given: when the last n are, there are as many. */
    int first = files.rlim_cur > INT_MAX ? INT_MAX - 1 : (int)(files.rlim_cur - n);
    int fd = fcntl(any, F_DUPFD_CLOEXEC, first);
    int free = fd == first;
    fd_done(&fd);
    return free;
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
