/* The kernel knows best which addresses are this machine's: it is asked for the route to each
 * address before that is dialled. Wherever it would deliver locally, there is something of the
 * host. */
#include "base/banned.h"
#include "base/fd.h"
#include "gate/gate_state.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

int route_open(void)
{
    struct timeval patience = {.tv_sec = 1};
    auto_fd fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) < 0)
        return -1;
    return fd_take(&fd);
}

/* The kernel answers in the same call that asks. What cannot be found out counts as local, but for
 * an address that has no route at all: dialling says so. */
bool route_is_local(int route, struct ip a)
{
    bool v4 = ip_is_v4(a);
    struct {
        struct nlmsghdr head;
        struct rtmsg route;
        struct rtattr attribute;
        uint8_t address[16];
    } ask = {.head = {.nlmsg_type = RTM_GETROUTE, .nlmsg_flags = NLM_F_REQUEST},
             .route = {.rtm_family = v4 ? AF_INET : AF_INET6, .rtm_dst_len = v4 ? 32 : 128},
             .attribute = {.rta_type = RTA_DST}};
    unsigned size = v4 ? 4 : 16;

    ask.head.nlmsg_len = (uint32_t)(NLMSG_LENGTH(sizeof ask.route) + RTA_LENGTH(size));
    ask.attribute.rta_len = (unsigned short)RTA_LENGTH(size);
    memcpy(ask.address, a.bytes + (16 - size), size);
    if (send(route, &ask, ask.head.nlmsg_len, 0) < 0)
        return true;

    union {
        struct nlmsghdr head;
        char bytes[4096];
    } answer;
    ssize_t n = recv(route, &answer, sizeof answer, 0);
    if (n < (ssize_t)sizeof answer.head)
        return true;
    if (answer.head.nlmsg_type == NLMSG_ERROR) {
        const struct nlmsgerr *error = NLMSG_DATA(&answer.head);
        return error->error != -ENETUNREACH && error->error != -EHOSTUNREACH;
    }
    if (answer.head.nlmsg_type != RTM_NEWROUTE || n < (ssize_t)NLMSG_LENGTH(sizeof(struct rtmsg)))
        return true;

    const struct rtmsg *found = NLMSG_DATA(&answer.head);
    return found->rtm_type != RTN_UNICAST;
}
