/* box_run: a real init in a container that the test makes by hand, as an engine would: namespaces,
 * capabilities, a uid, maybe a filter or an image; and the door that init comes to. Needs root. */
#pragma once

#include "init_run.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/sendfile.h>
#include <sys/un.h>

#define CAP(name)    (UINT64_C(1) << CAP_##name)
#define CAPS_ALL     UINT64_MAX
#define CAPS_ENGINE  0xa80425fbull /* what docker gives by default */
#define CAPS_ASKED   (CAP(SETUID) | CAP(SETGID) | CAP(KILL) | CAP(SETPCAP))
#define BOX_WORDS    8
#define WORDS_IN_RUN "workspace=/run/work", "home=/run/home"

struct box_how {
    const char *words[BOX_WORDS]; /* behind "door" */
    uint64_t caps;                /* the bounding set, which root also has */
    uid_t uid;
    gid_t gid;
    bool host_pids;    /* init is not pid 1 */
    bool read_only;    /* the root; /run is not */
    bool keeps_privs;  /* the engine did not set no_new_privs */
    const char *image; /* its root, or NULL: the host's files */
    bool plain;        /* the init that is linked without a sanitizer */
    const struct sock_fprog *filter;
    const char *const *environ;
};

struct box_run {
    struct init_run init; /* .sock is the owner's */
    char dir[32];
    int listener;
    int door; /* accepted */
    int said; /* init's standard error */
};

static inline void copy_program(const char *from, const char *to)
{
    auto_fd in = open(from, O_RDONLY | O_CLOEXEC),
            out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    struct stat st;
    assert_true(in >= 0 && out >= 0 && fstat(in, &st) == 0);
    for (off_t left = st.st_size; left > 0;) {
        ssize_t n = sendfile(out, in, NULL, (size_t)left);
        assert_true(n > 0);
        left -= n;
    }
    assert_int_equal(fchmod(out, 0755), 0);
}

static inline int box_mounts(const struct box_run *r, const struct box_how *h)
{
    char path[256];
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return -1;

    if (h->image) {
        const char *const made[] = {"proc", "dev", "run", "run/paddock", "tmp"};
        if (mount(h->image, h->image, NULL, MS_BIND, NULL) < 0)
            return -1;
        for (size_t i = 0; i < COUNT(made); i++) {
            snprintf(path, sizeof path, "%s/%s", h->image, made[i]);
            mkdir(path, 0755);
        }
        snprintf(path, sizeof path, "%s/dev", h->image);
        if (mount("/dev", path, NULL, MS_BIND, NULL) < 0)
            return -1;
    } else if (mount("run", "/run", "tmpfs", 0, "mode=777") < 0 ||
               mkdir("/run/paddock", 0755) < 0) {
        return -1;
    }

    const char *top = h->image ? h->image : "";
    snprintf(path, sizeof path, "%s/run/paddock", top);
    if (mount(r->dir, path, NULL, MS_BIND, NULL) < 0 ||
        mount(NULL, path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) < 0)
        return -1;
    snprintf(path, sizeof path, "%s/proc", top);
    if (!h->host_pids && mount("proc", path, "proc", 0, NULL) < 0)
        return -1;
    if (h->read_only &&
        mount(NULL, h->image ? h->image : "/", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) < 0)
        return -1;
    return h->image && (chdir(h->image) < 0 || chroot(".") < 0) ? -1 : 0;
}

static inline int box_power(const struct box_how *h)
{
    for (int cap = 0; cap < 64; cap++)
        if (!(h->caps & UINT64_C(1) << cap) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 &&
            errno != EINVAL)
            return -1;

    gid_t none = 0;
    if (h->uid && (syscall(SYS_setgroups, (size_t)0, &none) < 0 ||
                   syscall(SYS_setresgid, h->gid, h->gid, h->gid) < 0 ||
                   syscall(SYS_setresuid, h->uid, h->uid, h->uid) < 0))
        return -1;
    if (!h->keeps_privs && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    return h->filter ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, h->filter, 0, 0) : 0;
}

static inline _Noreturn void box_child(const struct box_run *r, const struct box_how *h, int said)
{
    static const char *const usual[] = {"PATH=/usr/bin:/bin", "FROM_IMAGE=yes", NULL};
    const char *argv[BOX_WORDS + 3] = {"init", INIT_ARG_DOOR};
    memcpy(argv + 2, h->words, sizeof h->words);

    int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(null, 1);
    dup2(said, 2);
    syscall(SYS_close_range, 3u, ~0u, 0);
    if (box_mounts(r, h) < 0 || chdir("/") < 0) {
        dprintf(2, "mounts: %s", strerror(errno));
        _exit(100);
    }
    if (box_power(h) < 0)
        _exit(101);
    execve("/run/paddock/init", (char **)argv, (char **)(h->environ ? h->environ : usual));
    dprintf(2, "exec: %s", strerror(errno));
    _exit(102);
}

/* Init is on its way to the door. */
static inline void box_start(struct box_run *r, struct box_how h)
{
    char path[64];
    int said[2];
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    *r = (struct box_run){.dir = "/tmp/paddock-box-XXXXXX", .door = -1};
    r->init = (struct init_run){.sock = -1, .f = FRAME_INIT};
    assert_non_null(mkdtemp(r->dir));
    assert_int_equal(chmod(r->dir, 0711), 0);
    snprintf(path, sizeof path, "%s/init", r->dir);
    copy_program(h.image || h.plain ? UNIT_STATIC_INIT : UNIT_INIT, path);

    snprintf(a.sun_path, sizeof a.sun_path, "%s/door", r->dir);
    r->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(r->listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(chmod(a.sun_path, 0666), 0);
    assert_int_equal(listen(r->listener, 4), 0);
    assert_int_equal(pipe2(said, O_CLOEXEC), 0);

    long flags = CLONE_NEWNS | CLONE_NEWIPC | (h.host_pids ? 0 : CLONE_NEWPID) | SIGCHLD;
    r->init.pid = (pid_t)syscall(SYS_clone, flags, 0, 0, 0, 0);
    assert_true(r->init.pid >= 0);
    if (r->init.pid == 0)
        box_child(r, &h, said[1]);
    close(said[1]);
    r->said = said[0];
}

/* What init wrote to standard error before it ended. */
static inline void box_words(struct box_run *r, char *out, size_t size)
{
    size_t have = 0;
    for (;;) {
        struct pollfd p = {.fd = r->said, .events = POLLIN};
        if (poll(&p, 1, (int)(PATIENCE / NS_PER_MS)) != 1)
            fail_msg("init neither speaks nor ends");
        ssize_t n = read(r->said, out + have, size - 1 - have);
        if (n <= 0)
            break;
        have += (size_t)n;
    }
    out[have] = 0;
}

/* Waits for init at the door. False when it does not come, because it ended. */
static inline bool box_meet(struct box_run *r)
{
    struct pollfd p[2] = {{.fd = r->listener, .events = POLLIN}, {.fd = r->said, .events = 0}};
    if (poll(p, 2, (int)(PATIENCE / NS_PER_MS)) < 1)
        fail_msg("init neither comes to the door nor ends");
    if (!(p[0].revents & POLLIN))
        return false;
    r->door = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(r->door >= 0);
    return true;
}

/* Gives it an owner; r->init.sock is that one's. */
static inline void box_adopt(struct box_run *r)
{
    int s[2];
    pair_make(s);
    struct wire_head head = {.type = WIRE_ADOPT, .id = id_of(1)};
    assert_int_equal(wire_send(r->door, &head, NULL, &s[1], 1, deadline_in(PATIENCE)), 0);
    close(s[1]);
    fd_done(&r->door);
    fd_done(&r->init.sock);
    r->init.sock = s[0];
}

/* What it tells first. The strings live until the next frame. */
static inline struct msg_facts box_facts(struct box_run *r)
{
    struct msg_facts m = {0};
    struct pd_err e;
    expect_type(r->init.sock, &r->init.f, WIRE_FACTS, 0);
    if (msg_facts_decode(&r->init.f.payload, &m, &e) < 0)
        fail_msg("%s", e.msg);
    return m;
}

/* Start, door and owner in one; returns its facts. */
static inline struct msg_facts box_own(struct box_run *r, struct box_how h)
{
    box_start(r, h);
    if (!box_meet(r)) {
        char text[500];
        box_words(r, text, sizeof text);
        fail_msg("init did not come: %s", text);
    }
    box_adopt(r);
    return box_facts(r);
}

static inline void box_clean(struct box_run *r)
{
    char path[64];
    fd_done(&r->listener);
    fd_done(&r->door);
    fd_done(&r->said);
    fd_done(&r->init.sock);
    frame_done(&r->init.f);
    snprintf(path, sizeof path, "%s/init", r->dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/door", r->dir);
    unlink(path);
    rmdir(r->dir);
}

/* Its owner goes away, and it ends. */
static inline void box_stop(struct box_run *r)
{
    fd_done(&r->init.sock);
    assert_int_equal(wait_child(r->init.pid), 0);
    box_clean(r);
}

/* Runs a line as `uid` and returns what it wrote, in `out`; its status is the result. */
static inline int box_line(struct box_run *r, uint32_t id, uint32_t uid, const char *line,
                           char *out, size_t size)
{
    int p[2];
    size_t have = 0;
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    EXEC(r->init.sock, .id = id, .uid = uid, .script = line, .fds = {0, p[1], p[1]});
    close(p[1]);

    for (ssize_t n; have < size - 1 && (n = read(p[0], out + have, size - 1 - have)) > 0;)
        have += (size_t)n;
    out[have] = 0;
    close(p[0]);
    expect_started(&r->init, id);

    int status = expect_exited(&r->init, id).status;
    assert_int_equal(send_plain(r->init.sock, WIRE_ACK, id, 0), 0);
    return status;
}

static inline int box_needs_root(void **state)
{
    (void)state;
    return geteuid() == 0 ? 0 : -1;
}
