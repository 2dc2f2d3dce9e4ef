/* Init in a container whose filter refuses one of its system calls, each in turn and in both ways
 * that filters have: it works, or it says what is missing; it does not hang, and its commands never
 * have more than without the filter. */
#include "box_run.h"

/* clang-format off */
#define CALLS(X)                                                                                   \
    X(capget) X(capset) X(chdir) X(chown) X(clone) X(close) X(close_range) X(connect) X(dup2) X(dup3)       \
    X(faccessat) X(fcntl) X(fork) X(getdents64) X(getppid) X(ioctl) X(kill) X(lseek) X(mkdir)      \
    X(openat2) X(poll) X(prctl) X(prlimit64) X(pwrite64) X(recvmsg) X(rt_sigprocmask) X(sendmsg)   \
    X(setgroups) X(setresgid) X(setresuid) X(setrlimit) X(setsid) X(signalfd4) X(socket)           \
    X(umask) X(uname) X(vfork) X(wait4)
/* clang-format on */

static const struct {
    const char *name;
    unsigned number;
} calls[] = {
#define X(name) {#name, SYS_##name},
    CALLS(X)
#undef X
};

#define NONE "0000000000000000"
/* Its sets, that it can gain nothing, and how many descriptors grep has besides its own. */
static const char *const look[] = {"/bin/grep", "-hE", "^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs)",
                                   "/proc/self/status", NULL};
static const char *const list[] = {"/bin/ls", "/proc/self/fd", NULL};

/* Runs a program; what it wrote, or "" when it was refused, with the reason in *ret_why. False when
 * init is gone instead. */
static bool run(struct box_run *r, uint32_t id, const char *const *argv, char *out, size_t size,
                struct pd_err *ret_why)
{
    int p[2];
    size_t have = 0;
    struct pd_err e;
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    ret_why->msg[0] = 0;
    int sent =
        send_exec(r->init.sock,
                  (struct exec_request){.id = id, .uid = 1000, .argv = argv, .fds = {0, p[1], 0}});
    close(p[1]);
    for (ssize_t n; have < size - 1 && (n = read(p[0], out + have, size - 1 - have)) > 0;)
        have += (size_t)n;
    out[have] = 0;
    close(p[0]);

    while (sent == 0) {
        frame_reset(&r->init.f);
        int got = wire_recv(r->init.sock, &r->init.f, deadline_in(PATIENCE), &e);
        if (got < 0 && e.code == PD_TIMEOUT)
            fail_msg("init is silent");
        if (got <= 0)
            return false;
        if (r->init.f.head.type == WIRE_ERROR)
            msg_error_raise(&r->init.f, ret_why);
        if (r->init.f.head.type == WIRE_ERROR || r->init.f.head.type == WIRE_EXITED)
            return true;
    }
    return false;
}

static void check_commands(struct box_run *r, const char *name)
{
    char text[600];
    struct pd_err why;
    if (!run(r, 2, look, text, sizeof text, &why))
        return;
    if (!text[0] && !why.msg[0])
        return; /* the program itself could not go on */
    if (text[0] && strcmp(text, "CapInh:\t" NONE "\nCapPrm:\t" NONE "\nCapEff:\t" NONE
                                "\nCapBnd:\t" NONE "\nCapAmb:\t" NONE "\nNoNewPrivs:\t1\n") != 0)
        fail_msg("%s: a command has %s", name, text);

    if (run(r, 3, list, text, sizeof text, &why) && text[0] && strcmp(text, "0\n1\n2\n3\n") != 0)
        fail_msg("%s: a command has the descriptors %s", name, text);
}

/* As box_adopt, of an init that may be gone already. */
static bool adopt(struct box_run *r)
{
    int s[2];
    pair_make(s);
    struct wire_head head = {.type = WIRE_ADOPT, .id = id_of(1)};
    int sent = wire_send(r->door, &head, NULL, &s[1], 1, deadline_in(PATIENCE));
    close(s[1]);
    fd_done(&r->door);
    r->init.sock = s[0];
    return sent == 0;
}

static void refuse(unsigned i, unsigned how, unsigned *works)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | how),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {COUNT(code), code};
    struct box_run r;
    char text[500] = "";
    int status;

    box_start(&r,
              (struct box_how){
                  .caps = CAPS_ENGINE, .words = {WORDS_IN_RUN}, .filter = &filter, .plain = true});
    bool came = box_meet(&r);
    if (came && adopt(&r)) {
        struct pd_err e;
        int got = wire_recv(r.init.sock, &r.init.f, deadline_in(PATIENCE), &e);
        if (got < 0 && e.code == PD_TIMEOUT)
            fail_msg("%s: init has an owner and says nothing", calls[i].name);
        if (got == 1) {
            assert_int_equal(r.init.f.head.type, WIRE_FACTS);
            ++*works;
            check_commands(&r, calls[i].name);
        }
    }

    fd_done(&r.init.sock);
    box_words(&r, text, sizeof text);
    assert_int_equal(waitpid(r.init.pid, &status, 0), r.init.pid);
    if (!came && !strstr(text, "paddock-init: "))
        fail_msg("%s: init ended without a word: '%s'", calls[i].name, text);
    box_clean(&r);
}

static void test_a_refused_call_is_told_and_never_makes_weaker(void **state)
{
    (void)state;
    unsigned works = 0;
    for (unsigned i = 0; i < COUNT(calls); i++) {
        refuse(i, EPERM, &works);
        refuse(i, ENOSYS, &works);
    }
    assert_true(works > COUNT(calls)); /* of twice as many */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_refused_call_is_told_and_never_makes_weaker),
    };
    return cmocka_run_group_tests(tests, box_needs_root, NULL);
}
