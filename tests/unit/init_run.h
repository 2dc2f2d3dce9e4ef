/* init_run: a real init as an ordinary process, driven over its control socket. */
#pragma once

#include "peer.h"

#include "wire/start.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

struct init_run {
    pid_t pid;
    int sock;
    struct frame f; /* the last one received */
};

/* `own_run`: with a /run of its own, where the sudo socket is. Needs root. */
static inline void init_start(struct init_run *r, const char *mode, int own_run)
{
    int s[2];
    pair_make(s);
    pid_t pid = fork();
    assert_true(pid >= 0);

    if (pid == 0) {
        if (own_run &&
            (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
             mount("run", "/run", "tmpfs", 0, "mode=755") < 0 || mkdir("/run/paddock", 0755) < 0))
            _exit(100);
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1); /* 2 stays: that is where a sanitizer complains */
        dup2(s[1], INIT_OWNER_FD);
        syscall(SYS_close_range, INIT_OWNER_FD + 1, ~0u, 0);
        fcntl(INIT_OWNER_FD, F_SETFD, 0);
        execl(UNIT_INIT, "paddock-init", mode, (char *)NULL);
        _exit(101);
    }
    close(s[1]);
    *r = (struct init_run){.pid = pid, .sock = s[0], .f = FRAME_INIT};
}

/* The owner goes away: init must end, and well. */
static inline void init_stop(struct init_run *r)
{
    frame_done(&r->f);
    fd_done(&r->sock);
    assert_int_equal(wait_child(r->pid), 0);
}

/* Of a group of tests whose state it is; one that has ended it has no socket any more. */
static inline int init_teardown(void **state)
{
    struct init_run *r = *state;
    if (r->sock >= 0)
        init_stop(r);
    return 0;
}

struct exec_request {
    uint32_t id;
    uint64_t epoch;
    unsigned flags;
    uint32_t uid;
    const char *cwd;
    const char *const *argv; /* NULL: `script` by /bin/sh */
    const char *script;
    int fds[3]; /* 0 = /dev/null */
    unsigned fd_count;
};

/* Returns what wire_send does. */
static inline int send_exec(int sock, struct exec_request q)
{
    const char *const shell[] = {"/bin/sh", "-c", q.script, NULL};
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT, env = MSG_LIST_WRITER_INIT;
    for (const char *const *w = q.argv ? q.argv : shell; *w; w++)
        msg_list_add(&argv, *w);
    msg_list_add(&env, "PATH=/nowhere:/usr/bin:/bin");
    struct msg_exec m = {.uid = q.uid,
                         .gid = q.uid,
                         .cwd = q.cwd ? q.cwd : "/",
                         .argv = msg_list_of(&argv),
                         .environ = msg_list_of(&env)};

    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_exec_encode(&b, &m);
    msg_list_writer_done(&argv);
    msg_list_writer_done(&env);

    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int fds[WIRE_FDS_MAX];
    for (unsigned i = 0; i < WIRE_FDS_MAX; i++)
        fds[i] = i < 3 && q.fds[i] ? q.fds[i] : null;

    struct wire_head head = {
        .type = WIRE_EXEC, .id = id_of(q.id), .epoch = q.epoch, .flags = q.flags};
    return wire_send(sock, &head, &b, fds, q.fd_count ? q.fd_count : 3, deadline_in(PATIENCE));
}

#define EXEC(sock, ...) assert_int_equal(send_exec(sock, (struct exec_request){__VA_ARGS__}), 0)

static inline int32_t expect_started(struct init_run *r, uint32_t id)
{
    struct msg_started m = {0};
    struct pd_err e;
    expect_type(r->sock, &r->f, WIRE_STARTED, id);
    assert_int_equal(msg_started_decode(&r->f.payload, &m, &e), 0);
    assert_true(m.pid > 1);
    return m.pid;
}

static inline struct msg_exited expect_exited(struct init_run *r, uint32_t id)
{
    struct msg_exited m = {0};
    struct pd_err e;
    expect_type(r->sock, &r->f, WIRE_EXITED, id);
    assert_int_equal(msg_exited_decode(&r->f.payload, &m, &e), 0);
    assert_int_equal(m.exited, 1);
    return m;
}

static inline void send_signal(int sock, uint32_t id, uint32_t exec, int signal)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_signal m = {.exec = id_of(exec), .signal = signal};
    msg_signal_encode(&b, &m);
    struct wire_head head = {.type = WIRE_SIGNAL, .id = id_of(id)};
    assert_int_equal(wire_send(sock, &head, &b, NULL, 0, deadline_in(PATIENCE)), 0);
}

/* Asks for the list; returns how many there are, and of them how many have ended. */
static inline unsigned sync_count(int sock, struct frame *f, uint32_t id, uint64_t epoch,
                                  unsigned *ret_ended)
{
    unsigned all = 0, ended = 0;
    struct msg_exited m;
    struct pd_err e;
    assert_int_equal(send_plain(sock, WIRE_SYNC, id, epoch), 0);

    for (;;) {
        expect_frame(sock, f);
        if (f->head.type == WIRE_EXITED || f->head.type == WIRE_STARTED)
            continue;
        if (f->head.type == WIRE_SYNC_END)
            break;
        assert_int_equal(f->head.type, WIRE_SYNCED);
        assert_int_equal(msg_exited_decode(&f->payload, &m, &e), 0);
        all++;
        ended += m.exited;
    }

    assert_int_equal(id_number(f->head.id), id);
    if (ret_ended)
        *ret_ended = ended;
    return all;
}

/* Pages of resident memory. */
static inline long resident(pid_t pid)
{
    char path[64], text[128];
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    assert_true(fd_read_file(AT_FDCWD, path, text, sizeof text) > 0);
    return strtol(strchr(text, ' '), NULL, 10);
}

/* Some requests that are answered, so that what init needs once is there before it is measured. */
static inline void warm_up(int sock)
{
    auto_frame f = FRAME_INIT;
    for (uint32_t i = 0; i < 500; i++) {
        assert_int_equal(send_plain(sock, WIRE_HELLO, i, 0), 0);
        do
            expect_frame(sock, &f);
        while (f.head.type == WIRE_EXITED);
    }
}
