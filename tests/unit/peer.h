/* peer: what tests of the wire protocol share: sockets, frames good and bad, counted descriptors.
 *
 * Every wait has a deadline, so a protocol that hangs fails its test instead of stopping it. */
#pragma once

#include "unit.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "wire/msg.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE (60 * NS_PER_S)   /* for what must come; a busy machine is slow */
#define A_MOMENT (200 * NS_PER_MS) /* for what must not come */

/* How many descriptors a process has open; -1 when that may not be seen. */
static inline int fds_of(pid_t pid)
{
    char path[64];
    if (pid)
        snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    else
        snprintf(path, sizeof path, "/proc/self/fd");

    DIR *d = opendir(path);
    if (!d)
        return -1;

    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2 - (pid ? 0 : 1); /* ".", "..", and the directory itself */
}

/* Waits until the process has `want` descriptors open. */
static inline int fds_settle(pid_t pid, int want)
{
    deadline d = deadline_in(PATIENCE);
    int n;
    while ((n = fds_of(pid)) != want && n >= 0 && !deadline_passed(d))
        usleep(5000);
    return n;
}

/* The state of a process, as /proc has it; 0 when it is gone. */
static inline char state_of(pid_t pid)
{
    char path[64], text[1500];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (fd_read_file(AT_FDCWD, path, text, sizeof text) <= 0)
        return 0;
    return strrchr(text, ')')[2];
}

static inline void pair_make(int ret[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ret), 0);
}

/* One datagram as it is, with `fd_count` copies of `fd`. Returns 0 or -errno. */
static inline int send_raw(int sock, const void *data, size_t len, int fd, unsigned fd_count)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * 253)] = {0};
    struct iovec part = {(void *)data, len};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = len ? 1 : 0};
    if (fd_count) {
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        for (unsigned i = 0; i < fd_count; i++)
            memcpy(CMSG_DATA(c) + i * sizeof fd, &fd, sizeof fd);
    }

    return sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* A datagram that is no frame, and why. */
struct bad_frame {
    const char *why;
    uint32_t magic;
    uint32_t said_len;
    uint16_t said_fds;
    size_t len; /* of the whole datagram */
    unsigned fds;
};

#define HEAD sizeof(struct wire_head)
static const struct bad_frame bad_frames[] = {
    {"one byte", WIRE_MAGIC, 0, 0, 1, 0},
    {"one byte and a descriptor", WIRE_MAGIC, 0, 1, 1, 1},
    {"half a head", WIRE_MAGIC, 0, 0, HEAD / 2, 0},
    {"a head without its last byte", WIRE_MAGIC, 0, 0, HEAD - 1, 0},
    {"wrong magic", 0x4b4b4b4b, 0, 0, HEAD, 0},
    {"wrong magic with descriptors", 0, 0, 3, HEAD, 3},
    {"less payload than said", WIRE_MAGIC, 8, 0, HEAD + 7, 0},
    {"more payload than said", WIRE_MAGIC, 8, 0, HEAD + 9, 0},
    {"length 0xffffffff", WIRE_MAGIC, UINT32_MAX, 0, HEAD, 0},
    {"length 0xffffffff and descriptors", WIRE_MAGIC, UINT32_MAX, 2, HEAD + 4, 2},
    {"payload of one byte too many", WIRE_MAGIC, WIRE_PAYLOAD_MAX + 1, 0,
     HEAD + WIRE_PAYLOAD_MAX + 1, 0},
    {"datagram longer than any frame", WIRE_MAGIC, WIRE_PAYLOAD_MAX, 0, HEAD + WIRE_PAYLOAD_MAX + 9,
     0},
    {"datagram longer than any frame, with descriptors", WIRE_MAGIC, WIRE_PAYLOAD_MAX, 2,
     HEAD + WIRE_PAYLOAD_MAX + 9, 2},
    {"descriptors that were not announced", WIRE_MAGIC, 0, 0, HEAD, 2},
    {"fewer descriptors than announced", WIRE_MAGIC, 0, 3, HEAD, 2},
    {"seven descriptors", WIRE_MAGIC, 0, 7, HEAD, 7},
    {"seven descriptors, six announced", WIRE_MAGIC, 0, 6, HEAD, 7},
    {"eight descriptors, six announced", WIRE_MAGIC, 0, 6, HEAD, 8},
    {"nine descriptors, six announced", WIRE_MAGIC, 0, 6, HEAD, 9},
    {"253 descriptors", WIRE_MAGIC, 0, 253, HEAD, 253},
    {"nothing but descriptors", 0, 0, 0, 0, 3},
    {"nothing but 253 descriptors", 0, 0, 0, 0, 253},
};

static inline void send_bad(int sock, const struct bad_frame *b, int fd)
{
    uint8_t *data = calloc(1, b->len + HEAD);
    assert_non_null(data);
    struct wire_head head = {
        .magic = b->magic, .type = WIRE_SYNC, .len = b->said_len, .fd_count = b->said_fds};
    memcpy(data, &head, sizeof head);
    int r = send_raw(sock, data, b->len, fd, b->fds);
    free(data);
    if (r)
        fail_msg("%s: not sent: %s", b->why, strerror(-r));
}

static inline struct wire_id id_of(uint32_t n)
{
    struct wire_id id = {{0}};
    memcpy(id.bytes, &n, sizeof n);
    id.bytes[15] = 1;
    return id;
}

static inline uint32_t id_number(struct wire_id id)
{
    uint32_t n;
    memcpy(&n, id.bytes, sizeof n);
    return n;
}

/* Sends a frame without payload. Returns what wire_send does. */
static inline int send_plain(int sock, enum wire_type type, uint32_t id, uint64_t epoch)
{
    struct wire_head head = {.type = (uint16_t)type, .id = id_of(id), .epoch = epoch};
    return wire_send(sock, &head, NULL, NULL, 0, 0);
}

/* The same, and waits for room: the peer reads, but a busy machine may give it no turn for long. */
static inline void send_surely(int sock, enum wire_type type, uint32_t id)
{
    struct wire_head head = {.type = (uint16_t)type, .id = id_of(id)};
    assert_int_equal(wire_send(sock, &head, NULL, NULL, 0, deadline_in(PATIENCE)), 0);
}

/* The next frame; the test fails when none comes. *f must be FRAME_INIT or used before. */
static inline void expect_frame(int sock, struct frame *f)
{
    struct pd_err e = {.msg = "the peer has closed"};
    frame_reset(f);
    if (wire_recv(sock, f, deadline_in(PATIENCE), &e) != 1)
        fail_msg("no frame: %s", e.msg);
}

static inline void expect_type(int sock, struct frame *f, enum wire_type type, uint32_t id)
{
    expect_frame(sock, f);
    if (f->head.type != type || id_number(f->head.id) != id) {
        struct pd_err e = {.msg = ""};
        if (f->head.type == WIRE_ERROR)
            msg_error_raise(f, &e);
        fail_msg("frame of type %u with id %u instead of type %u with id %u %s", f->head.type,
                 id_number(f->head.id), type, id, e.msg);
    }
}

/* An ERROR with this code; its text is left in *e. */
static inline void expect_error(int sock, struct frame *f, uint32_t id, enum pd_code code,
                                struct pd_err *e)
{
    expect_type(sock, f, WIRE_ERROR, id);
    msg_error_raise(f, e);
    if (e->code != code)
        fail_msg("error %s instead of %s: %s", pd_code_name(e->code), pd_code_name(code), e->msg);
    assert_true(strlen(e->msg) > 0);
}

static inline void expect_silence(int sock)
{
    struct pd_err e;
    auto_frame f = FRAME_INIT;
    int r = wire_recv(sock, &f, deadline_in(A_MOMENT), &e);
    if (r == 1)
        fail_msg("frame of type %u with id %u where none should be", f.head.type,
                 id_number(f.head.id));
    if (r == 0 || e.code != PD_TIMEOUT)
        fail_msg("the peer has closed");
}

static inline void expect_closed(int sock)
{
    struct pd_err e = {.msg = "a frame came"};
    auto_frame f = FRAME_INIT;
    int r = wire_recv(sock, &f, deadline_in(PATIENCE), &e);
    if (r != 0)
        fail_msg("the peer has not closed: %s", e.msg);
}

/* The status of a child that must end. */
static inline int wait_child(pid_t pid)
{
    int status = -1;
    deadline d = deadline_in(PATIENCE);
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (deadline_passed(d)) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            fail_msg("process %d did not end", (int)pid);
        }
        usleep(2000);
    }
    return status;
}
