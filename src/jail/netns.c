#include "jail/netns.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

int netns_loopback_up(void)
{
    auto_fd fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    return ioctl(fd, SIOCSIFFLAGS, &r) < 0 ? -errno : 0;
}

int netns_create(int proc, struct pd_err *e)
{
    auto_fd before = openat(proc, "thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (before < 0)
        return pd_fail_sys(e, "open the network namespace");
    if (unshare(CLONE_NEWNET) < 0)
        return pd_fail_sys(e, "make a network namespace");
    int r = netns_loopback_up();
    auto_fd made = openat(proc, "thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    int sys = errno;
    if (setns(before, CLONE_NEWNET) < 0)
        abort(); /* going on in a jail's network would be worse */
    if (r < 0 || made < 0) {
        errno = r < 0 ? -r : sys;
        return pd_fail_sys(e, "set up the jail's loopback device");
    }
    return fd_take(&made);
}
