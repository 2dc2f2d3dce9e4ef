/* keeper_peer: a real keeper in a process of its own, and clients of it. Needs root: the jails are
 * real as well. */
#pragma once

#include "init_run.h"

#include "jail/keeper.h"

#include <sys/prctl.h>
#include <sys/un.h>

struct keeper_run {
    pid_t pid;
    char dir[64], path[80];
    struct frame f;
};

/* There under AddressSanitizer only. */
void __lsan_do_leak_check(void) __attribute__((weak));
/* The builder's children run on its stack and leave it marked as theirs, unless the locals are
 * elsewhere. */
const char *__asan_default_options(void);
__attribute__((used, visibility("default"))) const char *__asan_default_options(void)
{
    return "detect_stack_use_after_return=1";
}

static inline void keeper_begin_kind(struct keeper_run *k, const struct keeper_kind *kind,
                                     unsigned builders, unsigned kits, int sweeper)
{
    *k = (struct keeper_run){.f = FRAME_INIT};
    snprintf(k->dir, sizeof k->dir, "/tmp/paddock-keeper-XXXXXX");
    assert_non_null(mkdtemp(k->dir));
    snprintf(k->path, sizeof k->path, "%s/socket", k->dir);
    k->pid = child_fork();
    assert_true(k->pid >= 0);
    if (k->pid)
        return;

    struct pd_err e;
    struct keeper_config c = {.client = -1,
                              .kind = kind,
                              .socket_path = k->path,
                              .builders = builders,
                              .kits = kits,
                              .separate_sweeper = sweeper};

    /* The usual directories: keepers of one host share the lock file of the uid ranges. */
    if (keeper_dirs(&c.state_dir, &c.run_dir, &e) < 0 || keeper_run(&c, &e) < 0) {
        fprintf(stderr, "keeper: %s\n", e.msg);
        _exit(1);
    }
    if (__lsan_do_leak_check)
        __lsan_do_leak_check();
    _exit(0);
}

static inline void keeper_begin(struct keeper_run *k, unsigned builders, unsigned kits, int sweeper)
{
    keeper_begin_kind(k, NULL, builders, kits, sweeper);
}

static inline int client_open(const struct keeper_run *k)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", k->path);

    deadline d = deadline_in(PATIENCE);
    for (;;) {
        int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        assert_true(s >= 0);
        if (connect(s, (struct sockaddr *)&a, sizeof a) == 0)
            return s;
        close(s);
        if (deadline_passed(d))
            fail_msg("the keeper does not listen: %s", strerror(errno));
        usleep(5000);
    }
}

static inline void keeper_end(struct keeper_run *k)
{
    frame_done(&k->f);
    close(client_open(k)); /* it is up, and SIGTERM is a request */
    kill(k->pid, SIGTERM);
    assert_int_equal(wait_child(k->pid), 0);
    unlink(k->path);
    assert_int_equal(rmdir(k->dir), 0);
}

/* Sends a CREATE; *ret_control is the owner's end. ret_far, if not NULL, gets a copy of init's. */
static inline void send_create_spec(int sock, uint32_t id, unsigned flags, struct spec spec,
                                    int *ret_control, int *ret_far)
{
    int s[2];
    pair_make(s);
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_create_encode(&b, &(struct msg_create){.spec = spec});

    struct wire_head head = {.type = WIRE_CREATE, .id = id_of(id), .flags = flags};
    int fds[2] = {s[1], s[0]};
    assert_int_equal(wire_send(sock, &head, &b, fds, 2, deadline_in(PATIENCE)), 0);

    *ret_control = s[0];
    if (ret_far)
        *ret_far = s[1];
    else
        close(s[1]);
}

static inline void send_create(int sock, uint32_t id, unsigned flags, int *ret_control,
                               int *ret_far)
{
    send_create_spec(sock, id, flags, SPEC_DEFAULT, ret_control, ret_far);
}

/* What no provider takes is refused by name, not left away. */
static inline void expect_options_refused(struct keeper_run *k, int sock, const char *provider)
{
    int control;
    struct pd_err e;
    struct spec spec = SPEC_DEFAULT;
    spec.options = "{\"colour\":\"green\"}";
    send_create_spec(sock, 90, 0, spec, &control, NULL);
    expect_error(sock, &k->f, 90, PD_UNSUPPORTED, &e);
    assert_non_null(strstr(e.msg, spec.options));
    assert_non_null(strstr(e.msg, provider));
    close(control);
}

/* The pid of the jail's init. */
static inline pid_t expect_created(int sock, struct frame *f, uint32_t id)
{
    struct msg_created m;
    struct pd_err e;
    expect_type(sock, f, WIRE_CREATED, id);
    assert_int_equal(f->fd_count, 2);
    assert_int_equal(msg_created_decode(&f->payload, &m, &e), 0);
    assert_true(m.init_pid > 1);
    return m.init_pid;
}

static inline void send_destroy(int sock, uint32_t id, uint32_t jail)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_destroy_encode(&b, &(struct msg_destroy){.jail = id_of(jail), .want_stats = 1});
    struct wire_head head = {.type = WIRE_DESTROY, .id = id_of(id)};
    assert_int_equal(wire_send(sock, &head, &b, NULL, 0, deadline_in(PATIENCE)), 0);
}

static inline void expect_gone(int sock, struct frame *f, uint32_t id, uint32_t jail,
                               enum gone_how how)
{
    struct msg_gone m;
    struct pd_err e;
    expect_type(sock, f, WIRE_GONE, id);
    assert_int_equal(msg_gone_decode(&f->payload, &m, &e), 0);
    assert_int_equal(id_number(m.jail), jail);
    assert_int_equal(m.how, how);
}

/* How many jails there are; the control socket of `id`, if it is among them, in *ret_control. */
static inline unsigned list_count(int sock, struct frame *f, uint32_t request, uint32_t id,
                                  int *ret_control)
{
    unsigned n = 0;
    struct msg_listed m;
    struct pd_err e;
    assert_int_equal(send_plain(sock, WIRE_LIST, request, 0), 0);

    for (expect_frame(sock, f); f->head.type != WIRE_LIST_END; expect_frame(sock, f)) {
        assert_int_equal(f->head.type, WIRE_LISTED);
        assert_int_equal(msg_listed_decode(&f->payload, &m, &e), 0);
        if (ret_control && id_number(m.jail) == id)
            *ret_control = frame_take_fd(f, 0);
        n++;
    }
    assert_int_equal(id_number(f->head.id), request);
    return n;
}

static inline void await_death(pid_t pid)
{
    deadline d = deadline_in(PATIENCE);
    while (kill(pid, 0) == 0) {
        if (deadline_passed(d))
            fail_msg("process %d lives on", (int)pid);
        usleep(5000);
    }
}

/* A child of the keeper by its name, or 0. */
static inline pid_t keeper_child_but(const struct keeper_run *k, const char *name, pid_t but)
{
    char path[64], text[4096], comm[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)k->pid, (int)k->pid);
    if (fd_read_file(AT_FDCWD, path, text, sizeof text) <= 0)
        return 0;

    for (char *p = text, *next; *p; p = next) {
        long pid = strtol(p, &next, 10);
        if (next == p)
            break;
        snprintf(path, sizeof path, "/proc/%ld/comm", pid);
        if (fd_read_file(AT_FDCWD, path, comm, sizeof comm) > 0 &&
            !strncmp(comm, name, strlen(name)) && pid != but)
            return (pid_t)pid;
    }

    return 0;
}

static inline pid_t keeper_child(const struct keeper_run *k, const char *name)
{
    return keeper_child_but(k, name, 0);
}

/* The builder, once it is there and waits for requests. */
static inline pid_t idle_builder(const struct keeper_run *k)
{
    deadline d = deadline_in(PATIENCE);
    pid_t pid;
    while (!(pid = keeper_child(k, "paddock-builder")) && !deadline_passed(d))
        usleep(5000);
    assert_true(pid > 0);
    return pid;
}

static inline void need_root(void)
{
    if (geteuid() != 0)
        skip_because("needs root: the jails are real");
}
