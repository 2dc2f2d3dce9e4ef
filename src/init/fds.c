/* close_range(2) does it in one call. Under a filter that refuses it, the descriptors are read from
 * /proc/self/fd, again and again until none is left to close. Runs between vfork and exec. */
#include "init/fds.h"

#include "base/banned.h"
#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/syscall.h>

/* A directory entry as the kernel writes it. */
struct entry {
    uint64_t inode, offset;
    uint16_t size;
    uint8_t type;
    char name[];
};

/* Closes what one reading of the list names. How many there were, or -errno. */
static int close_listed(int list, unsigned first)
{
    _Alignas(struct entry) char names[2048];
    int closed = 0;
    long n;

    while ((n = syscall(SYS_getdents64, list, names, sizeof names)) > 0)
        for (long at = 0; at < n;) {
            const struct entry *d = (const struct entry *)(names + at);
            at += d->size;

            unsigned fd = 0;
            const char *c = d->name;
            for (; *c >= '0' && *c <= '9'; c++)
                fd = fd * 10 + (unsigned)(*c - '0');
            if (*c || c == d->name || fd < first || fd == (unsigned)list)
                continue;
            if (close((int)fd) < 0)
                return -errno;
            closed++;
        }
    return n < 0 ? -errno : closed;
}

int fds_close_from(unsigned first)
{
    if (syscall(SYS_close_range, first, ~0u, 0) == 0)
        return 0;

    int list = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (list < 0)
        return -errno;

    int closed;
    do
        closed = lseek(list, 0, SEEK_SET) < 0 ? -errno : close_listed(list, first);
    while (closed > 0);
    close(list);
    return closed;
}

int fds_need_close(struct pd_err *e)
{
    errno = 0;
    return close(-1) < 0 && errno == EBADF ? 0 : pd_fail_sys(e, "close a descriptor");
}
