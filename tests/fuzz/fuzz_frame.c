/* Any datagram with any number of descriptors through a real socket.
 *
 * Properties: it is accepted exactly when a second reading of the format accepts it, and is then
 * the same; whatever happens, no descriptor is left open; wire_recv_plain accepts the same without
 * descriptors, and nothing else. */
#include "base/err.h"
#include "base/fd.h"
#include "wire/frame.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

/* The lowest free descriptor: the same before and after when nothing leaked. */
static int lowest_free(void)
{
    int fd = fcntl(0, F_DUPFD_CLOEXEC, 0);
    close(fd);
    return fd;
}

static void send_datagram(int sock, const uint8_t *data, size_t len, unsigned fds)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * 253)] = {0};
    struct iovec part = {(void *)data, len};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (fds) {
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fds);
        for (unsigned i = 0; i < fds; i++)
            memcpy(CMSG_DATA(c) + i * sizeof(int), &sock, sizeof sock);
    }
    require(sendmsg(sock, &m, MSG_DONTWAIT) >= 0);
}

/* The format, read a second time and byte by byte. */
static int is_frame(const uint8_t *data, size_t len, unsigned fds)
{
    if (len < 40 || fds > 6 || memcmp(data, "PDK1", 4) != 0)
        return 0;
    uint32_t payload = data[8] | data[9] << 8 | data[10] << 16 | (uint32_t)data[11] << 24;
    return data[6] + 256u * data[7] == fds && payload == len - 40 && payload <= 131072;
}

static void check(const uint8_t *data, size_t len, unsigned fds, int plain)
{
    int s[2], before = lowest_free();
    struct pd_err e = {.msg = ""};
    struct frame f = FRAME_INIT;
    require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) == 0);
    send_datagram(s[0], data, len, fds);

    int r = plain ? wire_recv_plain(s[1], &f, 0, &e) : wire_recv(s[1], &f, 0, &e);
    if (!len && !fds) {
        require(r == 0);
    } else if (is_frame(data, len, fds) && !(plain && fds)) {
        require(r == 1 && f.fd_count == fds && f.payload.len == len - 40);
        require(!memcmp(&f.head, data, 40));
        require(len == 40 || !memcmp(f.payload.data, data + 40, len - 40));
        require(f.payload.data[f.payload.len] == 0);
    } else {
        require(r == -1 && e.code == PD_PROTOCOL && f.fd_count == 0);
        require(e.msg[0] && memchr(e.msg, 0, sizeof e.msg));
    }
    frame_done(&f);
    close(s[0]);
    close(s[1]);
    require(lowest_free() == before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    unsigned fds = data[0] % 16 == 15 ? 253 : data[0] % 16;
    check(data + 1, size - 1, fds, 0);
    check(data + 1, size - 1, fds, 1);

    /* A second chance for what is nearly one: with the head made right. */
    if (size > 40 && fds <= 6) {
        uint8_t *copy = malloc(size - 1);
        require(copy != NULL);
        memcpy(copy, data + 1, size - 1);
        struct wire_head head;
        memcpy(&head, copy, sizeof head);
        head.magic = WIRE_MAGIC;
        head.len = (uint32_t)(size - 41);
        head.fd_count = (uint16_t)fds;
        memcpy(copy, &head, sizeof head);
        check(copy, size - 1, fds, 0);
        free(copy);
    }

    return 0;
}
