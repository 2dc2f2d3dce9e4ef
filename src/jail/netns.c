/* A new network namespace has one device, lo, and it is down. Bringing that up is all that is done:
 * processes of a jail reach each other over it, and nobody else. */
#include "jail/netns.h"

#include "base/banned.h"
#include "base/fd.h"
#include "jail/nsfd.h"

#include <errno.h>
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
    return nsfd_make(proc, CLONE_NEWNET, "net", netns_loopback_up, e);
}
