/* Workers in a real jail: with its filter, its uid range, its network and its root. Needs root. */
#include "peer.h"

#include "jail/jail.h"
#include "wire/record.h"

#include <poll.h>
#include <sys/stat.h>

#define ENDED_MAX 64

struct place_to_be {
    pid_t keeper;
    char dir[64];
    struct keeper_link link;
    struct jail jail;
    struct {
        struct wire_id id;
        int status;
    } ended[ENDED_MAX];
    unsigned ended_count;
};

/* The keeper is the release program: jails are not made by one that is full of sanitizers. */
static pid_t start_keeper(const char *dir)
{
    const char *program = getenv("PADDOCK") ? getenv("PADDOCK") : UNIT_PADDOCK;
    char socket[128], state[128], run[128];
    if (access(program, X_OK) < 0)
        return -1;
    snprintf(socket, sizeof socket, "%s/keeper.sock", dir);
    snprintf(state, sizeof state, "%s/state", dir);
    snprintf(run, sizeof run, "%s/run", dir);
    mkdir(run, 0700);

    pid_t pid = child_fork();
    if (pid == 0) {
        setenv("PADDOCK_STATE_DIR", state, 1);
        setenv("PADDOCK_RUN_DIR", run, 1);
        execl(program, "paddock", "keeper", "--socket", socket, (char *)NULL);
        _exit(100);
    }

    return pid;
}

static int setup(void **state)
{
    static struct place_to_be p;
    struct pd_err e = {.msg = ""};
    struct spec s = SPEC_DEFAULT;
    char socket[128];

    *state = NULL;
    if (geteuid() != 0)
        return 0;
    snprintf(p.dir, sizeof p.dir, "/tmp/worker-jail-XXXXXX");
    p.jail = JAIL_EMPTY;
    p.keeper = mkdtemp(p.dir) ? start_keeper(p.dir) : -1;
    if (p.keeper < 0)
        return 0;
    snprintf(socket, sizeof socket, "%s/keeper.sock", p.dir);

    deadline d = deadline_in(PATIENCE);
    while (keeper_connect(&p.link, socket, &e) < 0 && !deadline_passed(d))
        usleep(10000);
    *state = &p;
    if (jail_create(&p.link, &p.jail, &s, 0, d, &e) == 0)
        return 0;
    print_message("# no jail: %s\n", e.msg);
    return -1;
}

static int teardown(void **state)
{
    struct place_to_be *p = *state;
    struct pd_err e;
    if (!p)
        return 0;
    (void)jail_destroy(&p->link, &p->jail, 0, NULL, deadline_in(PATIENCE), &e);
    jail_done(&p->jail);
    keeper_link_done(&p->link);
    kill(p->keeper, SIGTERM);

    wait_child(p->keeper);
    pid_t pid = child_fork();
    if (pid == 0) {
        execl("/bin/rm", "rm", "-rf", p->dir, (char *)NULL);
        _exit(100);
    }
    wait_child(pid);
    return 0;
}

struct job {
    struct command c;
    int in, out, go;
};

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static struct job start(struct place_to_be *p, unsigned flags, const char *const *words)
{
    int in[2], out[2], go[2];
    struct pd_err e = {.msg = ""};
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(go, O_CLOEXEC), 0);

    struct msg_list_writer argv = MSG_LIST_WRITER_INIT, env = MSG_LIST_WRITER_INIT;
    for (; *words; words++)
        msg_list_add(&argv, *words);
    msg_list_add(&env, "PATH=/usr/bin:/bin");

    struct job j = {.in = in[1], .out = out[0], .go = go[1]};
    j.c = (struct command){.flags = flags | EXEC_QUIET,
                           .fds = {in[0], out[1], go[0]},
                           .exec = {.uid = 1000,
                                    .gid = 1000,
                                    .cwd = "/workspace",
                                    .argv = msg_list_of(&argv),
                                    .environ = msg_list_of(&env)}};
    if (jail_send_command(&p->jail, &j.c, p->jail.cgroup_dir >= 0, &e) < 0)
        fail_msg("%s", e.msg);

    msg_list_writer_done(&argv);
    msg_list_writer_done(&env);
    close(in[0]);
    close(out[1]);
    close(go[0]);
    return j;
}

static struct record next(struct job *j)
{
    static struct buf scratch = RECORD_SCRATCH;
    struct record r = {0};
    struct pd_err e = {.msg = ""};
    if (record_read(j->out, &scratch, &r, deadline_in(PATIENCE), &e) < 0)
        fail_msg("no record: %s", e.msg);
    return r;
}

static struct record want(struct job *j, enum record_kind kind)
{
    struct record r = next(j);
    if (r.kind != kind)
        fail_msg("record of kind %u instead of %u: %s", (unsigned)r.kind, (unsigned)kind,
                 r.kind == RECORD_ERROR ? r.error.text : "");
    return r;
}

/* The end of a job. Another one's may come first: it is kept for whoever asks for it. */
static int finish(struct place_to_be *p, struct job *j)
{
    struct pd_err e = {.msg = ""};
    fd_done(&j->in);
    fd_done(&j->go);
    fd_done(&j->out);

    for (;;) {
        for (unsigned i = 0; i < p->ended_count; i++)
            if (wire_id_equal(p->ended[i].id, j->c.id)) {
                jail_forget_command(&p->jail, &j->c);
                return p->ended[i].status;
            }

        auto_frame f = FRAME_INIT;
        struct msg_exited end;
        if (wire_recv_plain(p->jail.control, &f, deadline_in(PATIENCE), &e) != 1)
            fail_msg("no end: %s", e.msg);
        if (f.head.type == WIRE_ERROR && msg_error_raise(&f, &e) < 0)
            fail_msg("refused: %s", e.msg);

        if (f.head.type != WIRE_EXITED)
            continue;
        assert_int_equal(msg_exited_decode(&f.payload, &end, &e), 0);
        assert_true(p->ended_count < ENDED_MAX);
        p->ended[p->ended_count].id = f.head.id;
        p->ended[p->ended_count++].status = end.status;
    }
}

static void put_file(struct place_to_be *p, const char *path, const char *text)
{
    struct job j = start(p, EXEC_WORKER, WORDS("write", path, "0644", "1"));
    assert_int_equal(fd_write_all(j.in, text, strlen(text)), 0);
    fd_done(&j.in);
    assert_int_equal(write(j.go, "C", 1), 1);
    struct record r = want(&j, RECORD_ENTRY);
    assert_int_equal(r.entry.uid, 1000);
    assert_int_equal(finish(p, &j), 0);
}

static void one(struct place_to_be *p, const char *const *words, enum record_kind kind)
{
    struct job j = start(p, EXEC_WORKER, words);
    fd_done(&j.in);
    (void)!write(j.go, "C", 1);

    struct record r;
    do
        r = next(&j);
    while (r.kind != kind && r.kind != RECORD_ERROR && r.kind);
    if (r.kind != kind)
        fail_msg("%s: %s", words[0], r.kind == RECORD_ERROR ? r.error.text : "no such answer");

    char rest[4096]; /* the bytes of read and tar, or records that were not asked for */
    while (read(j.out, rest, sizeof rest) > 0)
        ;
    assert_int_equal(finish(p, &j), 0);
}

static void test_files(void **state)
{
    struct place_to_be *p = *state;
    if (!p)
        skip_because("a jail needs root and build/paddock");
    put_file(p, "d/a.txt", "hello worker\n");
    one(p, WORDS("stat", "/workspace/d/a.txt"), RECORD_ENTRY);
    one(p, WORDS("read", "d/a.txt", "0", "-"), RECORD_ENTRY);
    put_file(p, "d/a.txt", "hello again\n");
    one(p, WORDS("list", "/", "1", "100", ""), RECORD_END);
    one(p, WORDS("mkdir", "e/f", "1", "0755"), RECORD_ENTRY);
    one(p, WORDS("copy", "d", "g", "1"), RECORD_ENTRY);
    one(p, WORDS("chmod", "g/a.txt", "0600"), RECORD_ENTRY);
    one(p, WORDS("move", "g", "h", "0"), RECORD_ENTRY);
    one(p, WORDS("search", ".", "regex", "hel+o", "", "10", "1"), RECORD_MATCH);
    one(p, WORDS("replace", ".", "literal", "again", "twice", "", "0"), RECORD_REPLACED);
    one(p, WORDS("search", "/usr/share/doc", "name", "copyright", "", "10", "1"), RECORD_MORE);
    one(p, WORDS("tar", "."), RECORD_ENTRY);
    one(p, WORDS("getxattr", "d/a.txt", ""), RECORD_END);
    one(p, WORDS("remove", "h", "1"), RECORD_END);
    one(p, WORDS("read", "/proc/cpuinfo", "0", "-"), RECORD_ENTRY);

    /* The walls are those of commands. */
    static const char *const denied[] = {"/proc/1/root/etc/passwd", "/proc/1/environ",
                                         "/proc/self/root/etc/passwd", "/usr/new", "/proc/kcore"};
    for (size_t i = 0; i < COUNT(denied); i++) {
        struct job j = start(p, EXEC_WORKER, WORDS("write", denied[i], "-", "0"));
        fd_done(&j.in);
        (void)!write(j.go, "C", 1);
        want(&j, RECORD_ERROR);
        finish(p, &j);
    }
}

static void test_archives(void **state)
{
    struct place_to_be *p = *state;
    if (!p)
        skip_because("a jail needs root and build/paddock");
    put_file(p, "t/x", "packed");

    struct job a = start(p, EXEC_WORKER, WORDS("tar", "t"));
    want(&a, RECORD_ENTRY);
    char bytes[8192];
    size_t len = 0;
    for (ssize_t n; (n = read(a.out, bytes + len, sizeof bytes - len)) > 0;)
        len += (size_t)n;
    assert_int_equal(finish(p, &a), 0);

    struct job b = start(p, EXEC_WORKER, WORDS("untar", "u"));
    assert_int_equal(fd_write_all(b.in, bytes, len), 0);
    fd_done(&b.in);
    struct record r = want(&b, RECORD_TAR_DONE);
    assert_int_equal(r.tar_done.entries, 1);
    assert_int_equal(r.tar_done.bytes, 6);
    assert_int_equal(finish(p, &b), 0);
    one(p, WORDS("stat", "u/x"), RECORD_ENTRY);
}

static void test_watching(void **state)
{
    struct place_to_be *p = *state;
    if (!p)
        skip_because("a jail needs root and build/paddock");

    struct job j = start(p, EXEC_WORKER, WORDS("watch", ".", "1"));
    want(&j, RECORD_ENTRY);
    one(p, WORDS("mkdir", "new", "0", "0755"), RECORD_ENTRY);
    struct record r = want(&j, RECORD_EVENT);
    assert_int_equal(r.event.kind, EVENT_CREATED);
    assert_string_equal(r.event.path, "/workspace/new");

    /* One that nobody waits for is ended like any command. */
    if (p->jail.cgroup_dir >= 0) {
        assert_int_equal(jail_kill_command(&p->jail, &j.c), 0);
        assert_true(WIFSIGNALED(finish(p, &j)));
    } else {
        finish(p, &j);
    }
}

static void test_ports(void **state)
{
    struct place_to_be *p = *state;
    if (!p)
        skip_because("a jail needs root and build/paddock");

    struct job server =
        start(p, 0,
              WORDS("python3", "-c",
                    "import socket; s=socket.socket(); s.bind(('127.0.0.1',8080));"
                    "s.listen(); print('up',flush=True); c=s.accept()[0]; c.send(c.recv(9));"
                    "c.close()"));

    char text[16] = "";
    struct pollfd poll_up = {.fd = server.out, .events = POLLIN};
    assert_int_equal(poll(&poll_up, 1, (int)(PATIENCE / NS_PER_MS)), 1);
    assert_true(read(server.out, text, sizeof text) > 0);

    struct job ports = start(p, EXEC_WORKER, WORDS("ports"));
    struct record r = want(&ports, RECORD_PORT);
    assert_int_equal(r.port.port, 8080);
    assert_string_equal(r.port.address, "127.0.0.1");
    assert_true(r.port.pid > 1);
    assert_string_equal(r.port.command, "python3");
    want(&ports, RECORD_END);
    assert_int_equal(finish(p, &ports), 0);

    struct job dial = start(p, EXEC_WORKER, WORDS("dial", "8080"));
    want(&dial, RECORD_PORT);
    assert_int_equal(fd_write_all(dial.in, "ping", 4), 0);
    assert_int_equal(read(dial.out, text, sizeof text), 4);
    assert_memory_equal(text, "ping", 4);
    assert_int_equal(read(dial.out, text, sizeof text), 0);
    assert_int_equal(finish(p, &dial), 0);
    assert_int_equal(finish(p, &server), 0);

    struct job none = start(p, EXEC_WORKER, WORDS("dial", "8080"));
    assert_int_equal(want(&none, RECORD_ERROR).error.code, PD_BAD_GATEWAY);
    finish(p, &none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_archives),
        cmocka_unit_test(test_watching),
        cmocka_unit_test(test_ports),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, setup, teardown);
}
