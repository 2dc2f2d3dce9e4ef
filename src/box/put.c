/* The program that runs (/proc/self/exe) is copied under another name, which it keeps until it is
 * whole. */
#include "box/put.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static int copy(int from, int to, struct pd_err *e)
{
    char piece[65536];

    for (;;) {
        ssize_t n = read(from, piece, sizeof piece);
        if (n < 0)
            return pd_fail_sys(e, "read this program");
        if (n == 0)
            return 0;
        int r = fd_write_all(to, piece, (size_t)n);
        if (r < 0) {
            errno = -r;
            return pd_fail_sys(e, "write the copy of this program");
        }
    }
}

int put_self(const char *dir, struct pd_err *e)
{
    auto_fd at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_fd from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

    if (at < 0)
        return pd_fail_sys(e, "open the directory %.100s", dir);
    if (from < 0)
        return pd_fail_sys(e, "open this program");
    auto_fd to = openat(at, ".box", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0755);
    if (to < 0)
        return pd_fail_sys(e, "write to %.100s", dir);
    if (copy(from, to, e) < 0) {
        (void)unlinkat(at, ".box", 0);
        return -1;
    }
    if (fchmod(to, 0555) < 0)
        return pd_fail_sys(e, "make the copy of this program one that can be started");
    fd_done(&to); /* a program that is open for writing cannot be started */
    return renameat(at, ".box", at, "box") < 0 ? pd_fail_sys(e, "write %.100s/box", dir) : 0;
}
