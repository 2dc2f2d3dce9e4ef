/* Copies of named roots, asked of a real keeper: what a copy holds, that the jail stands still
 * meanwhile and runs on whatever happens, and who may copy what. */
#include "keeper_program.h"

#include "jail/cgroup_tree.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>

#define NOTHING ((struct wire_id){{0}})

static const struct place *need_keeper(void **state)
{
    const struct place *p = *state;
    if (!p->keeper)
        skip_because("needs root and a built paddock");
    return p;
}

static void link_up(const struct place *p, struct keeper_link *l)
{
    struct pd_err e;
    assert_int_equal(keeper_connect(l, p->socket, &e), 0);
    assert_int_equal(keeper_greet(l, NULL, deadline_in(PATIENCE), &e), 0);
}

static void open_root(struct keeper_link *l, struct jail *j, const char *name)
{
    struct pd_err e = {.msg = ""};
    struct spec s = SPEC_DEFAULT;
    s.root_name = name;
    s.limits.disk = 32 << 20;
    s.limits.files = 2000;
    if (jail_create(l, j, &s, 0, deadline_in(PATIENCE), &e) < 0)
        fail_msg("root %s: %s", name, e.msg);
}

static void end(struct keeper_link *l, struct jail *j)
{
    struct pd_err e;
    assert_int_equal(jail_destroy(l, j, 0, NULL, deadline_in(PATIENCE), &e), 0);
    jail_done(j);
}

/* Starts a shell command; jail_run with a null id is the caller's. */
static void prepare(struct command *c, struct msg_list_writer *argv, const char *text)
{
    static struct msg_list_writer env;
    env = MSG_LIST_WRITER_INIT;
    msg_list_add(argv, "/bin/sh");
    msg_list_add(argv, "-c");
    msg_list_add(argv, text);

    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    *c = (struct command){.exec = {.uid = 1000,
                                   .gid = 1000,
                                   .cwd = "/workspace",
                                   .argv = msg_list_of(argv),
                                   .environ = msg_list_of(&env)},
                          .fds = {null, null, null}};
}

static int shell(struct jail *j, const char *text)
{
    struct pd_err e;
    struct msg_exited x;
    struct command c;
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    prepare(&c, &argv, text);
    int r = jail_run(j, &c, 1, &x, deadline_in(PATIENCE), &e);
    close(c.fds[0]);
    msg_list_writer_done(&argv);
    return r < 0 ? -1 : WEXITSTATUS(x.status);
}

static void send_copy(struct keeper_link *l, struct wire_id id, struct wire_id jail,
                      const char *from, const char *to, uint64_t patience)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_copy_root m = {.jail = jail, .patience = patience, .from = from, .to = to};
    struct wire_head head = {.type = WIRE_COPY_ROOT, .epoch = l->epoch, .id = id};
    msg_copy_root_encode(&out, &m);
    assert_int_equal(wire_send(l->sock, &head, &out, NULL, 0, deadline_in(PATIENCE)), 0);
}

/* 0, or the error's code + 1. */
static int answer(struct keeper_link *l, struct wire_id id, struct pd_err *ret)
{
    struct frame f = FRAME_INIT;
    struct pd_err e = {.msg = ""};
    assert_true(wire_recv(l->sock, &f, deadline_in(PATIENCE), &e) > 0);
    assert_true(wire_id_equal(f.head.id, id));

    int r = 0;
    if (f.head.type == WIRE_ERROR) {
        msg_error_raise(&f, &e);
        r = 1 + (int)e.code;
    } else {
        assert_int_equal(f.head.type, WIRE_DONE);
    }

    if (ret)
        *ret = e;
    frame_done(&f);
    return r;
}

static int copy(struct keeper_link *l, struct wire_id jail, const char *from, const char *to)
{
    struct wire_id id = wire_id_new();
    send_copy(l, id, jail, from, to, PATIENCE);
    return answer(l, id, NULL);
}

static unsigned count_roots(const struct place *p, const char *prefix)
{
    char path[128];
    unsigned n = 0;
    snprintf(path, sizeof path, "%s/roots", p->state);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (const struct dirent *x; (x = readdir(d));)
        n += !strncmp(x->d_name, prefix, strlen(prefix));
    closedir(d);
    return n;
}

static void test_a_copy_of_a_running_jails_root_has_what_was_just_written(void **state)
{
    const struct place *p = need_keeper(state);
    struct keeper_link l;
    struct jail a, b, c;

    link_up(p, &l);
    open_root(&l, &a, "sb-a");
    assert_int_equal(shell(&a, "mkdir d; echo one > d/f; ln d/f d/g; ln -s /etc/shadow d/l;"
                               "dd if=/dev/urandom of=big bs=64k count=100 2>/dev/null;"
                               "cksum < big > sum; cp sum /tmp/sum"),
                     0);
    assert_int_equal(copy(&l, a.id, "sb-a", "sn-1"), 0);

    /* The original goes on, and its changes are its own. */
    assert_int_equal(shell(&a, "echo two > d/f; rm big"), 0);
    assert_int_equal(copy(&l, NOTHING, "sn-1", "sb-b"), 0);

    open_root(&l, &b, "sb-b");
    assert_int_equal(shell(&b, "[ \"$(cat d/f)\" = one ] && [ d/f -ef d/g ] && [ -L d/l ] &&"
                               "[ \"$(cksum < big)\" = \"$(cat sum)\" ] &&"
                               "cmp sum /tmp/sum && [ ! -e /etc/shadow ] && echo new > d/f"),
                     0);
    assert_int_equal(shell(&a, "[ \"$(cat d/f)\" = two ] && [ ! -e big ]"), 0);

    /* A snapshot is not what was made of it. */
    assert_int_equal(copy(&l, NOTHING, "sn-1", "sb-c"), 0);
    open_root(&l, &c, "sb-c");
    assert_int_equal(shell(&c, "[ \"$(cat d/f)\" = one ]"), 0);

    end(&l, &a);
    end(&l, &b);
    end(&l, &c);
    assert_int_equal(count_roots(p, ".copy"), 0);
    keeper_link_done(&l);
}

static int frozen(const struct jail *j)
{
    char text[32] = "";
    return fd_read_file(j->cgroup_dir, "cgroup.freeze", text, sizeof text) > 0 && text[0] == '1';
}

static void test_one_that_was_paused_stays_so(void **state)
{
    const struct place *p = need_keeper(state);
    struct keeper_link l;
    struct jail a;

    link_up(p, &l);
    open_root(&l, &a, "sb-a");
    if (a.cgroup_dir < 0)
        skip_because("needs cgroups");

    assert_int_equal(copy(&l, a.id, "sb-a", "sn-1"), 0);
    assert_int_equal(frozen(&a), 0);
    assert_int_equal(group_freeze(a.cgroup_dir, 1, deadline_in(PATIENCE)), 0);
    assert_int_equal(copy(&l, a.id, "sb-a", "sn-2"), 0);
    assert_int_equal(frozen(&a), 1);
    assert_int_equal(group_freeze(a.cgroup_dir, 0, 0), 0);
    end(&l, &a);
    keeper_link_done(&l);
}

static void test_what_cannot_be_copied(void **state)
{
    const struct place *p = need_keeper(state);
    struct keeper_link l;
    struct jail a, b;

    link_up(p, &l);
    open_root(&l, &a, "sb-a");
    open_root(&l, &b, "sb-b");
    assert_int_equal(copy(&l, NOTHING, "sb-none", "sn-1"), 1 + PD_NOT_FOUND);
    assert_int_equal(copy(&l, NOTHING, "sb-a", "sn-1"), 1 + PD_CONFLICT); /* in use */
    assert_int_equal(copy(&l, b.id, "sb-a", "sn-1"), 1 + PD_INVALID);     /* by another */
    assert_int_equal(copy(&l, wire_id_new(), "sb-a", "sn-1"), 1 + PD_NOT_FOUND);
    assert_int_equal(copy(&l, a.id, "sb-a", "sb-b"), 1 + PD_CONFLICT); /* is there */
    assert_int_equal(copy(&l, a.id, "sb-a", "sb-a"), 1 + PD_INVALID);
    assert_int_equal(copy(&l, a.id, "sb-a", "../x"), 1 + PD_INVALID);
    assert_int_equal(copy(&l, a.id, "sb-a", ".copy-x"), 1 + PD_INVALID);
    assert_int_equal(copy(&l, a.id, "sb-a", ""), 1 + PD_INVALID);
    assert_int_equal(copy(&l, NOTHING, "../roots/sb-a", "sn-1"), 1 + PD_INVALID);
    assert_int_equal(copy(&l, a.id, "sb-a", "sn-1"), 0);
    assert_int_equal(copy(&l, a.id, "sb-a", "sn-1"), 1 + PD_CONFLICT);
    assert_int_equal(frozen(&a), 0);

    end(&l, &a);
    end(&l, &b);
    keeper_link_done(&l);
}

/* Copies as that user; 0, or the error's code + 1. */
static int copy_as(const struct place *p, uid_t uid, const char *from, const char *to)
{
    pid_t pid = child_fork();
    if (pid == 0) {
        struct keeper_link l;
        struct pd_err e;
        if (uid && setresuid(uid, uid, uid) < 0)
            _exit(100);
        if (keeper_connect(&l, p->socket, &e) < 0 ||
            keeper_greet(&l, NULL, deadline_in(PATIENCE), &e) < 0)
            _exit(101);
        _exit(copy(&l, NOTHING, from, to));
    }

    int status = 0;
    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_a_server_copies_only_its_own(void **state)
{
    const struct place *p = need_keeper(state);
    struct keeper_link l;
    struct jail a;

    link_up(p, &l);
    open_root(&l, &a, "foreign");
    end(&l, &a);
    open_root(&l, &a, "sb-own");
    end(&l, &a);

    assert_int_equal(copy_as(p, OWNER, "foreign", "sn-1"), 1 + PD_DENIED);
    assert_int_equal(copy_as(p, OWNER, "sb-own", "other"), 1 + PD_DENIED);
    assert_int_equal(copy_as(p, 0, "foreign", "sn-1"), 0);
    assert_int_equal(copy_as(p, 0, "sb-own", "other"), 0);
    assert_int_equal(copy_as(p, OWNER, "sb-own", "sn-2"), 0);
    assert_int_equal(copy_as(p, OWNER, "sn-2", "sb-new"), 0);
    keeper_link_done(&l);
}

/* A child of the keeper by its name, or 0. */
static pid_t child_named(const struct place *p, const char *name)
{
    char path[64], text[4096], comm[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)p->keeper, (int)p->keeper);
    if (fd_read_file(AT_FDCWD, path, text, sizeof text) <= 0)
        return 0;

    for (char *at = text, *next; *at; at = next) {
        long pid = strtol(at, &next, 10);
        if (next == at)
            break;
        snprintf(path, sizeof path, "/proc/%ld/comm", pid);
        if (fd_read_file(AT_FDCWD, path, comm, sizeof comm) > 0 &&
            !strncmp(comm, name, strlen(name)))
            return (pid_t)pid;
    }

    return 0;
}

static void await(int (*holds)(const struct place *, const struct jail *), const struct place *p,
                  const struct jail *j, const char *what)
{
    deadline d = deadline_in(PATIENCE);
    while (!holds(p, j)) {
        if (deadline_passed(d))
            fail_msg("not within time: %s", what);
        usleep(2000);
    }
}

static int runs_and_is_clean(const struct place *p, const struct jail *j)
{
    return !frozen(j) && count_roots(p, ".copy") == 0;
}

static int ask_for_root(struct keeper_link *l, uint16_t type, const char *name)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_key m = {.key = name};
    struct wire_head head = {.type = type, .epoch = l->epoch, .id = wire_id_new()};
    msg_key_encode(&out, &m);
    assert_int_equal(wire_send(l->sock, &head, &out, NULL, 0, deadline_in(PATIENCE)), 0);
    return answer(l, head.id, NULL);
}

static int has_no_first_copy(const struct place *p, const struct jail *j)
{
    (void)j;
    return count_roots(p, "sn-1") == 0;
}

static int is_stopped(pid_t pid)
{
    char path[64], text[1500];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    return fd_read_file(AT_FDCWD, path, text, sizeof text) > 0 && strrchr(text, ')')[2] == 'T';
}

/* A copy that takes some time: a copier that is stopped while it has the jail frozen, whatever it
 * does by then. A busy machine may let it come to its end before: then there is another one. */
static void begin_slow_copy(const struct place *p, struct keeper_link *l, struct jail *a,
                            uint64_t patience, struct wire_id *ret_id)
{
    assert_int_equal(copy(l, a->id, "sb-a", "sn-first"), 0); /* there is a copier now */
    /* Fills the image, so that there is something to copy. */
    assert_int_equal(shell(a, "dd if=/dev/urandom of=big bs=1M count=24 2>/dev/null"), 0);

    for (deadline d = deadline_in(PATIENCE);;) {
        struct pollfd answered = {.fd = l->sock, .events = POLLIN};
        *ret_id = wire_id_new();
        send_copy(l, *ret_id, a->id, "sb-a", "sn-1", patience);
        while (!frozen(a) && poll(&answered, 1, 1) == 0)
            assert_false(deadline_passed(d));
        pid_t copier = child_named(p, "paddock-copier");
        if (copier > 0 && kill(copier, SIGSTOP) == 0)
            while (!is_stopped(copier) && child_named(p, "paddock-copier") == copier) {
                assert_false(deadline_passed(d));
                usleep(1000);
            }
        if (copier > 0 && is_stopped(copier) && frozen(a))
            return;

        if (copier > 0)
            kill(copier, SIGCONT);
        int r = answer(l, *ret_id, NULL);
        if (r == 1 + PD_TIMEOUT && patience < PATIENCE) {
            await(runs_and_is_clean, p, a, "the jail runs, the half copy is gone");
            continue;
        }
        assert_int_equal(r, 0);
        assert_int_equal(ask_for_root(l, WIRE_REMOVE_ROOT, "sn-1"), 0);
        await(has_no_first_copy, p, a, "the copy is removed");
    }
}

static void test_a_killed_copier_leaves_a_jail_that_runs_and_no_copy(void **state)
{
    const struct place *p = need_keeper(state);
    struct keeper_link l;
    struct jail a;
    struct wire_id id;

    link_up(p, &l);
    open_root(&l, &a, "sb-a");
    if (a.cgroup_dir < 0)
        skip_because("needs cgroups");
    begin_slow_copy(p, &l, &a, PATIENCE, &id);

    pid_t copier = child_named(p, "paddock-copier");
    assert_true(copier > 0);
    kill(copier, SIGKILL);
    assert_int_equal(answer(&l, id, NULL), 1 + PD_LOST);

    await(runs_and_is_clean, p, &a, "the jail runs, the half copy is gone");
    assert_int_equal(count_roots(p, "sn-1"), 0);
    assert_int_equal(shell(&a, "true"), 0);
    assert_int_equal(copy(&l, a.id, "sb-a", "sn-1"), 0);
    end(&l, &a);
    keeper_link_done(&l);
}

static void test_a_copy_that_takes_too_long_is_given_up(void **state)
{
    const struct place *p = need_keeper(state);
    struct keeper_link l;
    struct jail a;
    struct wire_id id;

    link_up(p, &l);
    open_root(&l, &a, "sb-a");
    if (a.cgroup_dir < 0)
        skip_because("needs cgroups");
    begin_slow_copy(p, &l, &a, 5 * NS_PER_S, &id);
    assert_int_equal(answer(&l, id, NULL), 1 + PD_TIMEOUT);

    await(runs_and_is_clean, p, &a, "the jail runs, the half copy is gone");
    assert_int_equal(count_roots(p, "sn-1"), 0);
    end(&l, &a);
    keeper_link_done(&l);
}

static void test_a_client_that_dies_takes_its_copy_along(void **state)
{
    const struct place *p = need_keeper(state);
    struct keeper_link owner, other;
    struct jail a;
    struct wire_id id;

    link_up(p, &owner);
    link_up(p, &other);
    open_root(&owner, &a, "sb-a");
    if (a.cgroup_dir < 0)
        skip_because("needs cgroups");
    begin_slow_copy(p, &other, &a, PATIENCE, &id);
    keeper_link_done(&other);

    await(runs_and_is_clean, p, &a, "the jail runs, the half copy is gone");
    assert_int_equal(count_roots(p, "sn-1"), 0);
    assert_int_equal(shell(&a, "true"), 0);
    end(&owner, &a);
    keeper_link_done(&owner);
}

static void test_usage_tells_of_the_disk(void **state)
{
    const struct place *p = need_keeper(state);
    struct keeper_link l;
    struct jail a;
    struct pd_err e;
    struct frame f = FRAME_INIT;
    struct msg_usage before, after;
    link_up(p, &l);

    for (int named = 0; named < 2; named++) {
        struct spec s = SPEC_DEFAULT;
        s.root_name = named ? "sb-a" : "";
        s.limits.disk = 32 << 20;
        assert_int_equal(jail_create(&l, &a, &s, 0, deadline_in(PATIENCE), &e), 0);

        for (int i = 0; i < 2; i++) {
            if (i == 1)
                assert_int_equal(
                    shell(&a, "dd if=/dev/zero of=big bs=1M count=8 2>/dev/null; sync"), 0);
            auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
            struct msg_destroy m = {.jail = a.id};
            struct wire_head head = {.type = WIRE_STATS, .epoch = l.epoch, .id = wire_id_new()};
            msg_destroy_encode(&out, &m);
            assert_int_equal(wire_send(l.sock, &head, &out, NULL, 0, deadline_in(PATIENCE)), 0);
            assert_true(wire_recv(l.sock, &f, deadline_in(PATIENCE), &e) > 0);
            assert_int_equal(f.head.type, WIRE_USAGE);
            assert_int_equal(msg_usage_decode(&f.payload, i ? &after : &before, &e), 0);
            frame_reset(&f);
        }

        assert_true(before.disk_total > 24 << 20 && before.disk_total <= 32 << 20);
        assert_true(before.disk_used > 0 && before.disk_used < 8 << 20);
        assert_true(after.disk_used >= before.disk_used + (8 << 20));
        assert_int_equal(after.disk_total, before.disk_total);
        end(&l, &a);
    }

    frame_done(&f);
    keeper_link_done(&l);
}

static int keep(struct keeper_link *l, const char *name)
{
    return ask_for_root(l, WIRE_KEEP_ROOT, name);
}

static void restart_keeper(struct place *p)
{
    kill(p->keeper, SIGKILL);
    waitpid(p->keeper, NULL, 0);
    start_keeper(p);
}

static int has_no_b(const struct place *p, const struct jail *j)
{
    (void)j;
    return count_roots(p, "sb-b") == 0;
}

static int has_none(const struct place *p, const struct jail *j)
{
    (void)j;
    return count_roots(p, "sb-") == 0;
}

/* A jail on the root that cannot be built, when its root is open already. */
static void fail_to_open(struct keeper_link *l, const char *name)
{
    struct pd_err e = {.msg = ""};
    struct spec s = SPEC_DEFAULT;
    struct jail j;
    s.root_name = name;
    s.limits.disk = 32 << 20;
    s.limits.files = 2000;
    s.binds[0] = (struct spec_bind){.source = "/nowhere/at/all", .target = "/mnt"};
    s.bind_count = 1;
    assert_int_equal(jail_create(l, &j, &s, 0, deadline_in(PATIENCE), &e), -1);
    assert_non_null(strstr(e.msg, "/nowhere/at/all"));
}

static int remove_root(struct keeper_link *l, const char *name)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_key m = {.key = name};
    struct wire_head head = {.type = WIRE_REMOVE_ROOT, .epoch = l->epoch, .id = wire_id_new()};
    msg_key_encode(&out, &m);
    assert_int_equal(wire_send(l->sock, &head, &out, NULL, 0, deadline_in(PATIENCE)), 0);
    return answer(l, head.id, NULL);
}

/* A root's name may become a part of a path, also of one that is no directory's. */
static void test_names_of_roots_are_checked(void **state)
{
    const struct place *p = need_keeper(state);
    static const char *const bad[] = {"../x", "x/y", "sb-a?x", "sb-%2fx", "sb-a#b", "sb A", ""};
    struct keeper_link l;

    link_up(p, &l);
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(ask_for_root(&l, WIRE_REMOVE_ROOT, bad[i]), 1 + PD_INVALID);
        assert_int_equal(ask_for_root(&l, WIRE_KEEP_ROOT, bad[i]), 1 + PD_INVALID);
    }
    assert_int_equal(ask_for_root(&l, WIRE_REMOVE_ROOT, "sb-a"), 0);
    keeper_link_done(&l);
}

/* A sandbox that sleeps has no jail, and yet its root is no leftover: not when it cannot be woken
 * either, nor when whoever wakes it dies. */
static void test_a_root_to_keep_outlives_keepers_until_it_is_removed(void **state)
{
    const struct place *p = need_keeper(state);
    struct keeper_link l;
    struct jail a, b;
    link_up(p, &l);
    open_root(&l, &a, "sb-a");
    open_root(&l, &b, "sb-b");
    assert_int_equal(shell(&a, "echo here > f; sync"), 0);
    assert_int_equal(keep(&l, "sb-none"), 1 + PD_NOT_FOUND);
    assert_int_equal(keep(&l, "sb-a"), 0);
    assert_int_equal(copy(&l, a.id, "sb-a", "sn-1"), 0);
    end(&l, &a);
    end(&l, &b);
    keeper_link_done(&l);
    restart_keeper(*state);
    await(has_no_b, p, NULL, "the other root is deleted");
    assert_int_equal(count_roots(p, "sb-a"), 1);
    link_up(p, &l);
    fail_to_open(&l, "sb-a");
    keeper_link_done(&l);
    restart_keeper(*state);
    link_up(p, &l);
    open_root(&l, &a, "sb-a");
    assert_int_equal(shell(&a, "grep -q here f"), 0);
    end(&l, &a);
    keeper_link_done(&l);
    restart_keeper(*state);
    link_up(p, &l);
    open_root(&l, &a, "sb-a");
    assert_int_equal(shell(&a, "grep -q here f"), 0);

    /* A keeper that dies after it was told to remove it leaves it to the next one. */
    assert_int_equal(remove_root(&l, "sb-a"), 0); /* which waits for the jail */
    jail_done(&a);
    keeper_link_done(&l);
    restart_keeper(*state);
    await(has_none, p, NULL, "the root is deleted by the next keeper");
    assert_int_equal(count_roots(p, "sn-1"), 1); /* snapshots stay */
}

/* Ends the jail; `flags` of DESTROY. */
static void end_with(struct keeper_link *l, struct jail *j, unsigned flags)
{
    auto_frame f = FRAME_INIT;
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct pd_err e;
    struct msg_destroy m = {.jail = j->id};
    struct wire_head head = {
        .type = WIRE_DESTROY, .flags = flags, .epoch = l->epoch, .id = wire_id_new()};

    msg_destroy_encode(&out, &m);
    assert_int_equal(wire_send(l->sock, &head, &out, NULL, 0, deadline_in(PATIENCE)), 0);
    assert_int_equal(wire_recv(l->sock, &f, deadline_in(PATIENCE), &e), 1);
    assert_int_equal(f.head.type, WIRE_GONE);
    jail_done(j);
}

/* Has the kernel let go of the root's image? 1 as well where roots are directories. */
static int is_free(const struct place *p, const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "%s/roots/%s/image", p->state, name);
    auto_fd image = open(path, O_RDONLY | O_CLOEXEC);
    return image < 0 || flock(image, LOCK_EX | LOCK_NB) == 0;
}

/* Whoever ends a jail may want its root next, or its sandbox's end may not wait for unmounting. */
static void test_a_root_is_free_when_the_end_is_told_or_soon_after(void **state)
{
    const struct place *p = need_keeper(state);
    struct keeper_link l;
    struct jail a;
    link_up(p, &l);

    for (int i = 0; i < 4; i++) {
        open_root(&l, &a, "sb-a");
        assert_int_equal(shell(&a, "echo here > f; head -c 3000000 /dev/zero > g"), 0);
        end_with(&l, &a, 0);
        assert_true(is_free(p, "sb-a"));
    }

    /* One that may be late is found by the next jail as it was left, however soon that comes. */
    for (int i = 0; i < 4; i++) {
        open_root(&l, &a, "sb-a");
        assert_int_equal(shell(&a, "grep -q here f && head -c 3000000 /dev/zero > g"), 0);
        end_with(&l, &a, DESTROY_WITH_ROOT);
    }

    open_root(&l, &a, "sb-a");
    end_with(&l, &a, DESTROY_WITH_ROOT);
    assert_int_equal(remove_root(&l, "sb-a"), 0);
    await(has_none, p, NULL, "the root is removed");
    keeper_link_done(&l);
}

/* The keeper answers before the root is gone, and may die in between. */
static void test_a_removal_that_was_promised_is_done_by_the_next_keeper(void **state)
{
    const struct place *p = need_keeper(state);
    struct keeper_link l;
    struct jail a;
    link_up(p, &l);
    open_root(&l, &a, "sb-a");
    assert_int_equal(copy(&l, a.id, "sb-a", "sn-1"), 0);
    assert_int_equal(copy(&l, a.id, "sb-a", "sn-2"), 0);

    /* Somebody who has the root locked is what keeps it from being removed at once. */
    char path[160];
    snprintf(path, sizeof path, "%s/roots/sn-1", p->state);
    auto_fd lock = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(lock, LOCK_EX), 0);
    assert_int_equal(ask_for_root(&l, WIRE_REMOVE_ROOT, "sn-1"), 0);
    end(&l, &a);
    keeper_link_done(&l);
    kill(p->keeper, SIGKILL);
    waitpid(p->keeper, NULL, 0);
    assert_int_equal(count_roots(p, "sn-1"), 1);

    fd_done(&lock);
    start_keeper(*state);
    await(has_no_first_copy, p, NULL, "the promise is kept");
    assert_int_equal(count_roots(p, "sn-2"), 1);
}

/* Without root there is a plain tree, of which its maker is the owner: also of what he may not
 * read.
 */
static void test_a_user_without_privilege_copies_a_tree(void **state)
{
    struct place *p = *state;
    need_keeper(state);
    kill(p->keeper, SIGTERM);
    waitpid(p->keeper, NULL, 0);
    p->uid = OWNER;
    assert_int_equal(chown(p->dir, OWNER, (gid_t)-1), 0);

    auto_fd dir = open(p->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(fchmod(dir, 0700), 0);
    (void)unlinkat(dir, "s", 0);
    (void)unlinkat(dir, "run/ranges", 0);
    assert_int_equal(renameat(dir, "run", dir, "run-of-root"), 0);
    if (renameat(dir, "state", dir, "state-of-root") < 0)
        assert_int_equal(errno, ENOENT);
    start_keeper(p);

    struct keeper_link l;
    struct jail a, b;
    struct pd_err e = {.msg = ""};
    struct spec s = SPEC_DEFAULT;
    link_up(p, &l);
    s.root_name = "sb-a";
    if (jail_create(&l, &a, &s, 0, deadline_in(PATIENCE), &e) < 0)
        skip_because("there are no user namespaces for everybody here: %s", e.msg);
    assert_int_equal(shell(&a, "mkdir d; echo one > d/f; ln d/f d/g; mkfifo p; echo no > secret;"
                               "chmod 0 secret; chmod 500 d"),
                     0);
    if (a.cgroup_dir < 0) /* then nothing can make it stand still */
        assert_int_equal(copy(&l, a.id, "sb-a", "sn-1"), 1 + PD_UNSUPPORTED);
    else
        assert_int_equal(copy(&l, a.id, "sb-a", "sn-1"), 0);

    end(&l, &a);
    assert_int_equal(copy(&l, NOTHING, "sb-a", "sb-b"), 0);

    s.root_name = "sb-b";
    assert_int_equal(jail_create(&l, &b, &s, 0, deadline_in(PATIENCE), &e), 0);
    assert_int_equal(shell(&b, "[ \"$(cat d/f)\" = one ] && [ d/f -ef d/g ] && [ -p p ] &&"
                               "! cat secret && chmod 600 secret && [ \"$(cat secret)\" = no ] &&"
                               "[ \"$(stat -c %a d)\" = 500 ]"),
                     0);
    end(&l, &b);
    keeper_link_done(&l);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_a_copy_of_a_running_jails_root_has_what_was_just_written),
        T(test_one_that_was_paused_stays_so),
        T(test_what_cannot_be_copied),
        T(test_a_server_copies_only_its_own),
        T(test_a_killed_copier_leaves_a_jail_that_runs_and_no_copy),
        T(test_a_copy_that_takes_too_long_is_given_up),
        T(test_a_client_that_dies_takes_its_copy_along),
        T(test_usage_tells_of_the_disk),
        T(test_a_user_without_privilege_copies_a_tree),
        T(test_names_of_roots_are_checked),
        T(test_a_root_to_keep_outlives_keepers_until_it_is_removed),
        T(test_a_root_is_free_when_the_end_is_told_or_soon_after),
        T(test_a_removal_that_was_promised_is_done_by_the_next_keeper),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
