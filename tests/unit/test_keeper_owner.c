/* What an unprivileged server may ask of the keeper: who takes the server over has no more. Each
 * refusal has its control, the same request by root. */
#include "keeper_program.h"

/* Asks for a jail as that user, and runs something in it. 0, or the error's code + 1. */
static int try_create(const struct place *p, uid_t uid, const struct spec *s)
{
    pid_t pid = child_fork();

    if (pid == 0) {
        struct pd_err e;
        struct keeper_link l;
        struct jail j;
        struct msg_exited end;

        if (uid && setresuid(uid, uid, uid) < 0)
            _exit(100);
        if (keeper_connect(&l, p->socket, &e) < 0 ||
            keeper_greet(&l, NULL, deadline_in(PATIENCE), &e) < 0)
            _exit(101);
        if (jail_create(&l, &j, s, 0, deadline_in(PATIENCE), &e) < 0)
            _exit(1 + (int)e.code);

        struct msg_list_writer argv = MSG_LIST_WRITER_INIT, env = MSG_LIST_WRITER_INIT;
        msg_list_add(&argv, "/bin/true");
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        struct command c = {.exec = {.uid = 1000,
                                     .gid = 1000,
                                     .cwd = "/",
                                     .argv = msg_list_of(&argv),
                                     .environ = msg_list_of(&env)},
                            .fds = {null, null, null}};

        /* In a group of its own, which the owner must be able to make. */
        if (jail_run(&j, &c, 1, &end, deadline_in(PATIENCE), &e) < 0 || end.status != 0)
            _exit(102);
        jail_destroy(&l, &j, 0, NULL, deadline_in(PATIENCE), &e);
        _exit(0);
    }

    int status = 0;
    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void check(void **state, const struct spec *s, int owner_may)
{
    const struct place *p = *state;
    if (!p->keeper) {
        print_message("skip: needs root and a built paddock\n");
        skip();
    }
    assert_int_equal(try_create(p, 0, s), 0);
    assert_int_equal(try_create(p, OWNER, s), owner_may ? 0 : 1 + PD_DENIED);
}

static void test_a_plain_jail_is_for_both(void **state)
{
    struct spec s = SPEC_DEFAULT;
    check(state, &s, 1);
}

static void test_directories_of_the_host_are_roots(void **state)
{
    struct spec s = SPEC_DEFAULT;
    s.binds[0] = (struct spec_bind){.source = "/usr", .target = "/mnt"};
    s.bind_count = 1;
    check(state, &s, 0);
}

static void test_a_directory_as_root_is_roots(void **state)
{
    struct spec s = SPEC_DEFAULT;
    s.root_dir = "/";
    check(state, &s, 0);
}

static void test_the_hosts_network_is_roots(void **state)
{
    struct spec s = SPEC_DEFAULT;
    s.network = NETWORK_HOST;
    check(state, &s, 0);
}

static void test_named_roots_of_others_are_roots(void **state)
{
    struct spec s = SPEC_DEFAULT;
    s.root_name = "somebodys";
    check(state, &s, 0);
    s.root_name = "sb-mine";
    check(state, &s, 1);
}

static void test_strangers_do_not_get_in(void **state)
{
    const struct place *p = *state;
    if (!p->keeper) {
        print_message("skip: needs root and a built paddock\n");
        skip();
    }
    struct spec s = SPEC_DEFAULT;
    assert_int_equal(try_create(p, 12345, &s), 101);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_a_plain_jail_is_for_both),        T(test_directories_of_the_host_are_roots),
        T(test_a_directory_as_root_is_roots),    T(test_the_hosts_network_is_roots),
        T(test_named_roots_of_others_are_roots), T(test_strangers_do_not_get_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
