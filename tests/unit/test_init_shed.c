/* What init gives up in a container that somebody else made, and what its commands have then: with
 * the capabilities that engines give by default, with the few that are asked for, with none, as
 * root and as any uid, and on a read-only root. */
#include "box_run.h"

/* Five sets of the command, and that it can gain nothing. */
#define LOOK                                                                                       \
    "grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs)' /proc/self/status | "                        \
    "tr -d '\\n\\t'; echo; cat /proc/1/environ 2>&1 >/dev/null | grep -c denied; "                 \
    "head -c 1 /proc/1/mem 2>&1 >/dev/null | grep -c denied"
#define NONE "0000000000000000"
#define FIVE                                                                                       \
    "CapInh:" NONE "CapPrm:" NONE "CapEff:" NONE "CapBnd:" NONE "CapAmb:" NONE "NoNewPrivs:1"

struct row {
    const char *name;
    uint64_t caps;
    uid_t uid;
    bool keeps_privs, read_only;
    enum facts_mode mode;
    uint32_t user;
};

static const struct row rows[] = {
    {"engine's default", CAPS_ENGINE, 0, .mode = FACTS_STRICT, .user = 1000},
    {"the same, without no_new_privs", CAPS_ENGINE, 0, .keeps_privs = true, .mode = FACTS_STRICT,
     .user = 1000},
    {"all capabilities", CAPS_ALL, 0, .mode = FACTS_STRICT, .user = 1000},
    {"those asked for", CAPS_ASKED, 0, .mode = FACTS_STRICT, .user = 1000},
    {"those asked for, read-only", CAPS_ASKED, 0, .read_only = true, .mode = FACTS_STRICT,
     .user = 1000},
    {"root without any", 0, 0, .mode = FACTS_SINGLE, .user = 0},
    {"any uid without any", 0, 31337, .mode = FACTS_SINGLE, .user = 31337},
    {"any uid, read-only", 0, 31337, .read_only = true, .mode = FACTS_SINGLE, .user = 31337},
};

static void test_commands_have_no_power(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct row *w = &rows[i];
        struct box_run r;
        char text[600], expected[40];
        struct msg_facts m = box_own(&r, (struct box_how){.caps = w->caps,
                                                          .uid = w->uid,
                                                          .gid = w->uid,
                                                          .keeps_privs = w->keeps_privs,
                                                          .read_only = w->read_only,
                                                          .words = {WORDS_IN_RUN}});
        if (m.mode != w->mode || m.uid != w->user || m.missing[0])
            fail_msg("%s: mode %u, uid %u, missing '%s'", w->name, m.mode, m.uid, m.missing);

        assert_int_equal(box_line(&r, 2, 1000, LOOK, text, sizeof text), 0);
        if (strncmp(text, FIVE, strlen(FIVE)) != 0 || !strstr(text, "\n1\n1\n"))
            fail_msg("%s: %s", w->name, text);

        /* It is whom the facts name, and can write where they say. */
        box_line(&r, 3, 1000, "id -u; cd /run/work && echo x > file && cd /run/home && echo ok",
                 text, sizeof text);
        snprintf(expected, sizeof expected, "%u\nok\n", w->user);
        if (strcmp(text, expected) != 0)
            fail_msg("%s: %s", w->name, text);
        box_stop(&r);
    }
}

/* Root in strict has nothing either: uid 0 means nothing there. */
static void test_root_in_strict_is_no_root(void **state)
{
    (void)state;
    struct box_run r;
    char text[600];
    box_own(&r, (struct box_how){.caps = CAPS_ENGINE, .words = {WORDS_IN_RUN}});
    assert_int_equal(box_line(&r, 2, 0, LOOK, text, sizeof text), 0);
    assert_memory_equal(text, FIVE, strlen(FIVE));
    box_stop(&r);
}

/* The control, in the same container: without init, uid 0 has what the engine gave. */
static void test_the_control_has_what_the_engine_gave(void **state)
{
    (void)state;
    int out[2];
    char text[300] = "";
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);

    pid_t pid = child_fork();
    if (pid == 0) {
        struct box_how h = {.caps = CAPS_ENGINE};
        dup2(out[1], 1);
        if (box_power(&h) < 0)
            _exit(1);
        execl("/bin/grep", "grep", "CapEff", "/proc/self/status", (char *)NULL);
        _exit(1);
    }
    close(out[1]);

    assert_true(read(out[0], text, sizeof text - 1) > 0);
    assert_int_equal(wait_child(pid), 0);
    close(out[0]);
    assert_string_equal(text, "CapEff:\t00000000a80425fb\n");
}

/* In dev root keeps the seven, as in a jail, and the user can be told apart. */
static void test_root_in_dev_has_the_seven(void **state)
{
    (void)state;
    struct box_run r;
    char text[600];
    struct msg_facts m =
        box_own(&r, (struct box_how){.caps = CAPS_ENGINE, .words = {WORDS_IN_RUN, "profile=dev"}});

    assert_int_equal(m.mode, FACTS_DEV);
    assert_int_equal(m.root, 1);
    assert_int_equal(box_line(&r, 2, 0, "id -u; grep CapEff /proc/self/status", text, sizeof text),
                     0);
    assert_string_equal(text, "0\nCapEff:\t00000000000000fb\n");
    assert_int_equal(box_line(&r, 3, 1000, "grep CapEff /proc/self/status", text, sizeof text), 0);
    assert_string_equal(text, "CapEff:\t" NONE "\n");
    box_stop(&r);
}

/* No command runs as init, whoever that is. */
static void test_no_command_runs_as_init(void **state)
{
    (void)state;
    struct box_run r;
    struct pd_err e;
    box_own(&r, (struct box_how){.caps = CAPS_ENGINE, .words = {WORDS_IN_RUN}});
    EXEC(r.init.sock, .id = 2, .uid = 60000, .script = "true");
    expect_error(r.init.sock, &r.init.f, 2, PD_DENIED, &e);
    box_stop(&r);
}

/* Commands are the kernel's first choice when memory is short, and init is not. */
static void test_commands_have_the_higher_score(void **state)
{
    (void)state;
    struct box_run r;
    char text[100];

    box_own(&r, (struct box_how){.caps = CAPS_ASKED, .words = {WORDS_IN_RUN}});
    for (uint32_t i = 0; i < 3; i++) {
        box_line(&r, 2 + i, 1000,
                 /* Init takes its own back a moment after the command is born. */
                 "a=$(cat /proc/self/oom_score_adj); n=0; while b=$(cat /proc/1/oom_score_adj); "
                 "[ $a = $b ] && [ $((n += 1)) -lt 200 ]; do sleep 0.05; done; echo $((a - b))",
                 text, sizeof text);
        assert_string_equal(text, "300\n");
    }
    box_stop(&r);
}

/* What cannot be made is told, and the rest works. */
static void test_a_read_only_root_without_mounts_is_told(void **state)
{
    (void)state;
    struct box_run r;
    char text[100];
    struct msg_facts m = box_own(&r, (struct box_how){.caps = CAPS_ASKED,
                                                      .read_only = true,
                                                      .words = {"workspace=/no-such-place/work",
                                                                "home=/no-such-place/home"}});
    assert_non_null(
        strstr(m.missing, "/no-such-place/work cannot be made (Read-only file system)"));
    assert_int_equal(box_line(&r, 2, 1000, "echo on", text, sizeof text), 0);
    box_stop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commands_have_no_power),
        cmocka_unit_test(test_root_in_strict_is_no_root),
        cmocka_unit_test(test_the_control_has_what_the_engine_gave),
        cmocka_unit_test(test_root_in_dev_has_the_seven),
        cmocka_unit_test(test_no_command_runs_as_init),
        cmocka_unit_test(test_commands_have_the_higher_score),
        cmocka_unit_test(test_a_read_only_root_without_mounts_is_told),
    };
    return cmocka_run_group_tests(tests, box_needs_root, NULL);
}
