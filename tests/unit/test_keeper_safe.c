/* What a keeper of boxes elsewhere leaves to the next one. The broker is one of the test's own: its
 * boxes are processes that do nothing, as a watch looks from here. */
#include "keeper_peer.h"

#include "jail/keeper_kind.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define LEASE_S "2"

static pid_t watch; /* of the box that is made next */
static pid_t hung;  /* a safe that a test has stopped, until it is seen to end; or 0 */

static void broker_main(const struct builder_config *c, int sock)
{
    struct frame f = FRAME_INIT;
    struct pd_err e;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    (void)c;
    while (wire_recv(sock, &f, DEADLINE_NONE, &e) > 0) {
        auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
        struct wire_head head = {.type = WIRE_DONE, .id = f.head.id};
        auto_fd process = (int)syscall(SYS_pidfd_open, watch, 0);
        int fds[4] = {null, null, process, null};
        if (f.head.type == WIRE_BUILD) {
            head.type = WIRE_BUILT;
            head.flags = BOX_IS_FAR;
            msg_built_encode(&out, &(struct msg_built){.rung = RUNG_BASIC, .init_pid = watch});
        }
        (void)wire_send(sock, &head, &out, fds, f.head.type == WIRE_BUILD ? 4 : 0, DEADLINE_NONE);
        frame_reset(&f);
    }
    _exit(0);
}

static const struct keeper_kind elsewhere = {.name = "elsewhere",
                                             .worker = broker_main,
                                             .is_foreign = true,
                                             .may_be_far = true,
                                             .has_own_groups = true,
                                             .rung = RUNG_BASIC};

static pid_t start_watch(void)
{
    pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(200);
        for (;;)
            pause();
    }
    return pid;
}

/* A keeper at the same place as the one before. */
static void start_next(struct keeper_run *k)
{
    k->pid = child_fork();
    assert_true(k->pid >= 0);
    if (k->pid)
        return;
    static const char *const options[] = {"--lease", LEASE_S, NULL};
    struct pd_err e;
    struct keeper_config c = {.client = -1,
                              .kind = &elsewhere,
                              .options = options,
                              .state_dir = k->dir,
                              .run_dir = k->dir,
                              .socket_path = k->path,
                              .builders = 1};
    _exit(keeper_run(&c, &e) < 0 ? 1 : 0);
}

static void kill_and_reap(pid_t *pid)
{
    kill(*pid, SIGKILL);
    while (waitpid(*pid, NULL, 0) < 0 && errno == EINTR)
        ;
    *pid = 0;
}

static int setup(void **state)
{
    static struct keeper_run k;
    *state = &k;
    k = (struct keeper_run){.f = FRAME_INIT};
    if (geteuid() != 0)
        return 0;
    snprintf(k.dir, sizeof k.dir, "/tmp/paddock-safe-XXXXXX");
    assert_non_null(mkdtemp(k.dir));
    snprintf(k.path, sizeof k.path, "%s/socket", k.dir);
    watch = start_watch();
    start_next(&k);
    return 0;
}

static int teardown(void **state)
{
    struct keeper_run *k = *state;
    char path[96];
    if (!k->pid)
        return 0;
    kill(k->pid, SIGTERM);
    waitpid(k->pid, NULL, 0);
    if (watch > 0)
        kill_and_reap(&watch);
    if (hung > 0) /* the test failed */
        kill(hung, SIGKILL);
    hung = 0;
    snprintf(path, sizeof path, "%s.safe", k->path);
    (void)unlink(path);
    (void)unlink(k->path);
    snprintf(path, sizeof path, "%s/promises", k->dir);
    (void)rmdir(path);
    frame_done(&k->f);
    return rmdir(k->dir);
}

static void say_hello(int c, struct keeper_run *k, uint64_t *ret_epoch, char instance[40])
{
    struct wire_head head = {.type = WIRE_HELLO, .id = id_of(900)};
    struct msg_welcome m;
    struct pd_err e;
    assert_int_equal(wire_send(c, &head, NULL, NULL, 0, deadline_in(5 * NS_PER_S)), 0);
    assert_int_equal(wire_recv(c, &k->f, deadline_in(5 * NS_PER_S), &e), 1);
    assert_int_equal(k->f.head.type, WIRE_WELCOME);
    assert_int_equal(msg_welcome_decode(&k->f.payload, &m, &e), 0);
    snprintf(instance, 40, "%s", m.instance);
    *ret_epoch = k->f.head.epoch;
    frame_reset(&k->f);
}

/* The first box is there; its owner's end of the control socket. */
static int expect_listed(int c, struct keeper_run *k)
{
    int control = -1;
    assert_int_equal(list_count(c, &k->f, 901, 1, &control), 1);
    frame_reset(&k->f);
    assert_true(control >= 0);
    return control;
}

/* Says a word about what is stashed under a key, with a descriptor (-1: none). The answer is in
 * k->f. */
static void ask(int c, struct keeper_run *k, enum wire_type type, const char *key, int fd)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct wire_head head = {.type = (uint16_t)type, .id = id_of(902)};
    struct pd_err e;
    msg_key_encode(&out, &(struct msg_key){.key = key});
    assert_int_equal(wire_send(c, &head, &out, &fd, fd >= 0, deadline_in(5 * NS_PER_S)), 0);
    assert_int_equal(wire_recv(c, &k->f, deadline_in(5 * NS_PER_S), &e), 1);
}

static void stash(int c, struct keeper_run *k, const char *key, int fd)
{
    ask(c, k, WIRE_STASH, key, fd);
    assert_int_equal(k->f.head.type, WIRE_DONE);
    frame_reset(&k->f);
}

static void drop(int c, struct keeper_run *k, const char *key)
{
    ask(c, k, WIRE_DROP, key, -1);
    frame_reset(&k->f);
}

/* -1 when there is none. */
static int fetch(int c, struct keeper_run *k, const char *key)
{
    ask(c, k, WIRE_FETCH, key, -1);
    int fd = k->f.head.type == WIRE_STASHED ? frame_take_fd(&k->f, 0) : -1;
    frame_reset(&k->f);
    return fd;
}

/* What is said at init's end of the control socket comes out at the owner's. */
static void expect_joined(int init_end, int control)
{
    char c = 0;
    assert_int_equal(send(init_end, "x", 1, MSG_DONTWAIT), 1);
    assert_int_equal(recv(control, &c, 1, MSG_DONTWAIT), 1);
}

static void expect_end(int init_end, int patience_ms, bool expected)
{
    struct pollfd p = {.fd = init_end, .events = POLLIN};
    assert_int_equal(poll(&p, 1, patience_ms), expected);
    assert_true(!expected || p.revents & POLLHUP);
}

/* Its safe, when it is another one than before, and has nothing of the keeper's any more: until
 * then whoever calls a keeper that was killed reaches the copy of its listener. */
static pid_t await_safe(const struct keeper_run *k, pid_t before)
{
    pid_t pid;
    deadline t = deadline_in(10 * NS_PER_S);
    while ((pid = keeper_child(k, "paddock-safe")) == before || !pid) {
        assert_false(deadline_passed(t));
        usleep(1000);
    }
    return pid;
}

/* A box, made by a client that is gone then. Init's end of its control socket. */
static int make_box(struct keeper_run *k, unsigned n)
{
    int c = client_open(k), control, init_end;
    send_create_spec(c, n, CREATE_KEEP, SPEC_DEFAULT, &control, &init_end);
    (void)expect_created(c, &k->f, n);
    frame_reset(&k->f);
    close(control);
    close(c);
    (void)await_safe(k, 0);
    return init_end;
}

static void test_the_next_keeper_has_its_boxes_and_stashes(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    char instance[40], after[40];
    uint64_t epoch, epoch_after;
    int control, p[2];

    int init_end = make_box(k, 1), c = client_open(k);
    say_hello(c, k, &epoch, instance);
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    stash(c, k, "kept", p[0]);
    stash(c, k, "dropped", p[0]);
    drop(c, k, "dropped");

    kill_and_reap(&k->pid);
    close(c);
    expect_end(init_end, 0, false);
    start_next(k);
    c = client_open(k);
    say_hello(c, k, &epoch_after, after);
    assert_string_equal(instance, after);
    assert_true(epoch_after > epoch);
    control = expect_listed(c, k);
    expect_joined(init_end, control);
    assert_int_equal(fetch(c, k, "dropped"), -1);
    int fd = fetch(c, k, "kept");
    assert_int_equal(write(p[1], "y", 1), 1);
    char byte;
    assert_int_equal(read(fd, &byte, 1), 1);

    /* It is this keeper's box: its end is told, and it can be ended. */
    close(control);
    kill_and_reap(&watch);
    expect_gone(c, &k->f, 1, 1, GONE_DIED);
    close(fd);
    close(p[0]);
    close(p[1]);
    close(init_end);
    close(c);
}

static void test_many_deaths_in_a_row(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    const char *night = getenv("PADDOCK_NIGHTLY");
    int init_end = make_box(k, 1), control;

    for (int i = 0; i < (night && night[0] ? 1000 : 5); i++) {
        kill_and_reap(&k->pid);
        start_next(k);
        int c = client_open(k);
        control = expect_listed(c, k);
        expect_joined(init_end, control);
        close(control);
        close(c);
    }
    close(init_end);
}

static void test_a_safe_that_was_killed_is_replaced(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int init_end = make_box(k, 1), control;
    pid_t first = await_safe(k, 0);

    kill(first, SIGKILL);
    (void)await_safe(k, first);
    /* Whoever is told of the box is told by the second one. */
    int c = client_open(k);
    control = expect_listed(c, k);
    close(control);
    close(c);
    kill_and_reap(&k->pid);
    start_next(k);
    c = client_open(k);
    control = expect_listed(c, k);
    expect_joined(init_end, control);
    close(control);
    close(c);
    close(init_end);
}

static void test_alone_it_ends_with_the_lease(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int init_end = make_box(k, 1);
    kill_and_reap(&k->pid);
    expect_end(init_end, 500, false);
    expect_end(init_end, 10000, true);
    close(init_end);
    start_next(k);
    int c = client_open(k), control;
    assert_int_equal(list_count(c, &k->f, 901, 1, &control), 0);
    close(c);
}

static void test_alone_it_ends_with_its_boxes(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int init_end = make_box(k, 1);
    kill_and_reap(&k->pid);
    kill_and_reap(&watch);
    expect_end(init_end, 1500, true);
    close(init_end);
    start_next(k);
}

/* What a process of this user hears at the safe's socket: a record, or nothing. */
static bool is_told(const char *path, uid_t uid)
{
    int status;
    pid_t pid = child_fork();
    if (pid == 0) {
        struct frame f = FRAME_INIT;
        struct pd_err e;
        int sock = setresuid(uid, uid, uid) == 0 ? wire_connect(path) : -1;
        _exit(sock < 0 ? 2 : wire_recv(sock, &f, deadline_in(10 * NS_PER_S), &e) > 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 0;
}

static void test_it_tells_nobody_else(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    char path[96];
    struct stat st;
    int init_end = make_box(k, 1);

    snprintf(path, sizeof path, "%s.safe", k->path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    kill_and_reap(&k->pid);
    /* Even if its socket stood open. */
    assert_int_equal(chmod(k->dir, 0711), 0);
    assert_int_equal(chmod(path, 0666), 0);
    assert_false(is_told(path, 65534));
    assert_true(is_told(path, 0)); /* the control */

    start_next(k);
    int c = client_open(k), control = expect_listed(c, k);
    expect_joined(init_end, control);
    close(control);
    close(c);
    close(init_end);
}

/* A process of another user that has taken the safe's place. */
static void test_another_users_safe_is_not_believed(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int c = client_open(k), ready[2], control;
    close(c);
    kill_and_reap(&k->pid);

    snprintf(a.sun_path, sizeof a.sun_path, "%s.safe", k->path);
    assert_int_equal(chmod(k->dir, 0777), 0);
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid_t liar = child_fork();
    if (liar == 0) {
        auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
        struct wire_head box = {.type = WIRE_KEEP, .id = id_of(1)}, done = {.type = WIRE_DONE};
        int s = socket(AF_UNIX, SOCK_SEQPACKET, 0), p[2];
        msg_keep_encode(
            &out, &(struct msg_keep){
                      .kind = KEEP_BOX, .key = "", .name = "j1", .root = "", .pid = getpid()});
        if (setresuid(65534, 65534, 65534) < 0 || bind(s, (struct sockaddr *)&a, sizeof a) < 0 ||
            listen(s, 4) < 0 || write(ready[1], "x", 1) != 1)
            _exit(1);
        int peer = accept(s, NULL, NULL);
        int fds[2] = {(int)syscall(SYS_pidfd_open, getpid(), 0),
                      socketpair(AF_UNIX, SOCK_SEQPACKET, 0, p) == 0 ? p[0] : -1};
        (void)wire_send(peer, &box, &out, fds, 2, deadline_in(NS_PER_S));
        (void)wire_send(peer, &done, NULL, NULL, 0, deadline_in(NS_PER_S));
        pause();
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    start_next(k);
    c = client_open(k);
    assert_int_equal(list_count(c, &k->f, 901, 1, &control), 0);
    kill_and_reap(&liar);
    close(ready[0]);
    close(ready[1]);
    close(c);
}

static void say_box(int peer, uint32_t id, pid_t pid)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct wire_head head = {.type = WIRE_KEEP, .id = id_of(id)};
    char name[16];
    int p[2];

    snprintf(name, sizeof name, "j%u", id);
    msg_keep_encode(&out, &(struct msg_keep){
                              .kind = KEEP_BOX, .key = "", .name = name, .root = "", .pid = pid});
    pair_make(p);
    int fds[2] = {(int)syscall(SYS_pidfd_open, pid, 0), p[0]};
    (void)wire_send(peer, &head, &out, fds, 2, deadline_in(NS_PER_S));
    close(fds[0]);
    close(p[0]);
}

/* A safe that breaks off within what it tells the first who comes, and tells the second all. */
static pid_t start_safe_that_breaks_off(struct keeper_run *k)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct wire_head done = {.type = WIRE_DONE};
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(a.sun_path, sizeof a.sun_path, "%s.safe", k->path);
    assert_int_equal(bind(s, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s, 4), 0);
    pid_t pid = child_fork();
    if (pid == 0) {
        int first = accept(s, NULL, NULL);
        say_box(first, 1, watch);
        close(first);
        int second = accept(s, NULL, NULL);
        say_box(second, 1, watch);
        say_box(second, 2, getpid());
        (void)wire_send(second, &done, NULL, NULL, 0, deadline_in(NS_PER_S));
        alarm(100);
        pause();
    }
    close(s);
    return pid;
}

/* What it has not said would end with it when another has its place. */
static void test_a_safe_that_breaks_off_is_asked_again(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k);
    close(c);
    kill_and_reap(&k->pid);

    pid_t safe = start_safe_that_breaks_off(k);
    start_next(k);
    c = client_open(k);
    assert_int_equal(list_count(c, &k->f, 901, 1, NULL), 2);
    frame_reset(&k->f);
    kill_and_reap(&safe);
    close(c);
}

static void test_a_keeper_that_ends_leaves_nothing(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    char path[96];
    int init_end = make_box(k, 1);
    snprintf(path, sizeof path, "%s.safe", k->path);
    assert_int_equal(access(path, F_OK), 0);
    kill(k->pid, SIGTERM);
    waitpid(k->pid, NULL, 0);
    expect_end(init_end, 5000, true);
    assert_int_equal(access(path, F_OK), -1);
    close(init_end);
    start_next(k);
}

/* A keeper's safe takes nobody else, and its queue is short. Whoever starts a second keeper there
 * hears that there is one, however many did before. */
static void test_a_second_keeper_does_not_wait_for_a_safe_in_use(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int init_end = make_box(k, 1), queued[16], control;
    unsigned n = 0;

    snprintf(a.sun_path, sizeof a.sun_path, "%s.safe", k->path);
    for (; n < COUNT(queued); n++) {
        queued[n] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (connect(queued[n], (struct sockaddr *)&a, sizeof a) < 0)
            break;
    }
    assert_true(n < COUNT(queued) && errno == EAGAIN);

    pid_t first = k->pid;
    start_next(k);
    auto_fd second = (int)syscall(SYS_pidfd_open, k->pid, 0);
    struct pollfd p = {.fd = second, .events = POLLIN};
    int ended = poll(&p, 1, 5000);
    if (!ended)
        kill_and_reap(&k->pid);
    else
        waitpid(k->pid, NULL, 0);
    k->pid = first;
    assert_int_equal(ended, 1);

    /* Those who wait there, and those who did, do not keep the next keeper from it. */
    for (unsigned i = 0; i <= n; i++)
        close(queued[i]);
    kill_and_reap(&k->pid);
    start_next(k);
    int c = client_open(k);
    control = expect_listed(c, k);
    expect_joined(init_end, control);
    close(control);
    close(c);
    close(init_end);
}

static void stop_safe(pid_t safe)
{
    hung = safe;
    kill(safe, SIGSTOP);
}

static ino_t number_of(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 ? st.st_ino : 0;
}

/* Words for a safe that hears nothing, until there is no room for more and a second is over: what
 * is said last is not answered before another safe is there. */
static void drop_until_one_takes_long(int c, struct keeper_run *k)
{
    deadline t = deadline_in(30 * NS_PER_S);
    uint64_t began;

    do {
        assert_false(deadline_passed(t));
        began = clock_now();
        drop(c, k, "another");
    } while (clock_now() - began < NS_PER_S - 20 * NS_PER_MS);
}

/* The end of a command's input, which the keeper has from here on and tells its safe. Returns the
 * other one, where its last close is seen. */
static int stash_input(int c, struct keeper_run *k)
{
    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    stash(c, k, "input", p[1]);
    close(p[1]);
    return p[0];
}

/* Whoever is told that something is kept finds it after any death of the keeper. And one that hangs
 * for good must not keep open what it has. */
static void test_one_that_hangs_is_replaced_before_an_answer_and_killed(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    char path[96];
    int init_end = make_box(k, 1), c = client_open(k), other_end = stash_input(c, k);
    pid_t first = await_safe(k, 0);
    snprintf(path, sizeof path, "%s.safe", k->path);
    ino_t number = number_of(path);

    stop_safe(first);
    drop_until_one_takes_long(c, k);
    assert_int_not_equal(number_of(path), number);
    await_death(first);
    hung = 0;
    expect_end(other_end, 0, false);
    drop(c, k, "input");
    expect_end(other_end, 1500, true);

    kill_and_reap(&k->pid);
    close(c);
    start_next(k);
    c = client_open(k);
    int control = expect_listed(c, k);
    expect_joined(init_end, control);
    close(control);
    close(other_end);
    close(c);
    close(init_end);
}

/* One that a keeper found and gave up while it heard nothing, and that hears again when another has
 * its place: what it has must not stay open. */
static void test_one_that_was_given_up_ends(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    char path[96];
    int init_end = make_box(k, 1), c = client_open(k), other_end = stash_input(c, k);
    pid_t first = await_safe(k, 0);
    snprintf(path, sizeof path, "%s.safe", k->path);
    ino_t number = number_of(path);
    kill_and_reap(&k->pid); /* a keeper kills only what it started */
    close(c);
    start_next(k);
    c = client_open(k);

    stop_safe(first);
    drop_until_one_takes_long(c, k);
    assert_int_not_equal(number_of(path), number);
    drop(c, k, "input");
    expect_end(other_end, 0, false);
    kill(first, SIGCONT);
    hung = 0;
    expect_end(other_end, 1500, true); /* sooner than the lease is over */
    expect_end(init_end, 0, false);    /* the box has its keeper, and its other safe */
    close(other_end);
    close(c);
    close(init_end);
}

/* The safe that is begun while a DROP is not answered yet, because the one before hears nothing. */
static pid_t drop_until_another_is_begun(int c, struct keeper_run *k, pid_t before)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct wire_head head = {.type = WIRE_DROP, .id = id_of(902)};
    deadline t = deadline_in(PATIENCE);
    bool waits = false;
    struct pd_err e;
    pid_t next;

    msg_key_encode(&out, &(struct msg_key){.key = "another"});
    while (!(next = keeper_child_but(k, "paddock-safe", before)) && !deadline_passed(t)) {
        struct pollfd p = {.fd = c, .events = POLLIN};
        if (!waits)
            assert_int_equal(wire_send(c, &head, &out, NULL, 0, deadline_in(5 * NS_PER_S)), 0);
        waits = poll(&p, 1, 1) == 0;
        if (!waits)
            assert_int_equal(wire_recv(c, &k->f, deadline_in(5 * NS_PER_S), &e), 1);
        frame_reset(&k->f);
    }
    assert_true(next > 0);
    return next;
}

#define STASHES 400 /* more than a socket has room for: telling them takes until they are heard */

/* A keeper that is killed while it tells a new safe everything leaves the one before, which had it
 * all, to the next keeper. */
static void test_the_one_before_is_there_until_the_next_has_everything(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    const char *night = getenv("PADDOCK_NIGHTLY");
    int init_end = make_box(k, 1), c = client_open(k), null = open("/dev/null", O_RDWR), control;
    char key[32], path[96];
    snprintf(path, sizeof path, "%s.safe", k->path);
    for (int i = 0; i < STASHES; i++) {
        snprintf(key, sizeof key, "kept-%d", i);
        stash(c, k, key, null);
    }

    for (int round = 0; round < (night && night[0] ? 100 : 3); round++) {
        pid_t first = await_safe(k, 0);
        stop_safe(first);
        pid_t next = drop_until_another_is_begun(c, k, first);
        kill_and_reap(&k->pid);
        kill(first, SIGCONT);
        hung = 0;
        close(c);

        start_next(k);
        c = client_open(k);
        control = expect_listed(c, k);
        expect_joined(init_end, control);
        close(control);
        for (int i = 0; i < STASHES; i++) {
            snprintf(key, sizeof key, "kept-%d", i);
            int fd = fetch(c, k, key);
            assert_true(fd >= 0);
            close(fd);
        }

        /* Whichever was found: this keeper is to have a safe that is its child, and was told
         * everything. Killing both before that would be two deaths at once. */
        ino_t number = number_of(path);
        kill(first, SIGKILL);
        kill(next, SIGKILL);
        deadline t = deadline_in(PATIENCE);
        while (number_of(path) == number && !deadline_passed(t))
            usleep(1000);
        assert_int_not_equal(number_of(path), number);
    }
    close(null);
    close(c);
    close(init_end);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_next_keeper_has_its_boxes_and_stashes, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_many_deaths_in_a_row, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_safe_that_was_killed_is_replaced, setup, teardown),
        cmocka_unit_test_setup_teardown(test_alone_it_ends_with_the_lease, setup, teardown),
        cmocka_unit_test_setup_teardown(test_alone_it_ends_with_its_boxes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_it_tells_nobody_else, setup, teardown),
        cmocka_unit_test_setup_teardown(test_another_users_safe_is_not_believed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_second_keeper_does_not_wait_for_a_safe_in_use, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_safe_that_breaks_off_is_asked_again, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_one_that_hangs_is_replaced_before_an_answer_and_killed,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_that_was_given_up_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_one_before_is_there_until_the_next_has_everything,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_keeper_that_ends_leaves_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
