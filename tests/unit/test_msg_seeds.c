/* The seeds of fuzz_msg are what their names say. A seed is a place in tests/fuzz/msg_table.h and a
 * payload; its file is called after the message, and with a hyphen behind it what is special about
 * it. One that says `-bad` is refused by the decoder of that message, every other one is taken.
 *
 * MAKE_SEEDS=1 in the environment writes them anew, after a change of the table or of a message. */
#include "peer.h"

#include "../fuzz/msg_table.h"

#include <dirent.h>
#include <stdbool.h>

enum message {
#define X(name) SEED_##name,
    MESSAGES(X)
#undef X
        MESSAGE_COUNT
};

static const char *const names[MESSAGE_COUNT] = {
#define X(name) #name,
    MESSAGES(X)
#undef X
};

/* ---- making them ---- */

static void write_seed(enum message message, const char *special, const struct buf *payload)
{
    char path[512];
    snprintf(path, sizeof path, "%s/msg/%s%s", UNIT_CORPUS, names[message], special);
    FILE *f = fopen(path, "w");
    assert_non_null(f);

    assert_false(payload->overflow);
    assert_int_equal(fputc((int)message, f), (int)message);
    assert_int_equal(fwrite(payload->data, 1, payload->len, f), payload->len);
    assert_int_equal(fclose(f), 0);
}

#define SEED(name, special, ...)                                                                   \
    do {                                                                                           \
        struct msg_##name m_ = __VA_ARGS__;                                                        \
        auto_buf out_ = BUF_INIT(WIRE_PAYLOAD_MAX);                                                \
        msg_##name##_encode(&out_, &m_);                                                           \
        write_seed(SEED_##name, special, &out_);                                                   \
    } while (0)

static void make_seeds(void)
{
    struct wire_id id = {.bytes = "0123456789abcde"};
    struct spec spec = SPEC_DEFAULT, full = SPEC_DEFAULT;
    full.root_name = "a-name";
    full.image = "team/tool:1";
    full.bind_count = 1;
    full.binds[0] = (struct spec_bind){"/a", "/b", 0};

    SEED(error, "", {.code = PD_LOST, .sys = -3, .text = "went away"});
    SEED(welcome, "", {.rung = RUNG_FULL, .layout = 3, .instance = "i1", .missing = "none"});
    SEED(create, "", {.spec = spec});
    SEED(create, "-full", {.spec = full});
    SEED(created, "", {.rung = RUNG_BASIC, .init_pid = 77, .uid_base = 1u << 30, .name = "j1"});
    SEED(destroy, "", {.jail = id, .want_stats = 1});
    SEED(gone, "", {.jail = id, .how = GONE_UNDEAD, .oom_kills = 1, .why = "ended"});
    SEED(kill, "", {.jail = id, .group = "c7"});
    SEED(usage, "", {.memory = 1, .memory_peak = 2, .cpu_usec = 3, .pids = 4, .disk_total = 5});
    SEED(listed, "", {.jail = id, .undead = 1, .init_pid = 9});
    SEED(counted, "", {.jails = 7});
    SEED(key, "", {.key = "session/1/out"});
    SEED(build, "", {.slot = 4, .waits = 1, .name = "j2", .spec = full});
    SEED(built, "", {.rung = RUNG_BASIC, .named = 1, .has_mntns = 1, .init_pid = 2});
    SEED(prepare, "", {.slot = 6, .name = "j4"});
    SEED(sweep, "", {.name = "j5", .group = "c1"});
    SEED(copy_root, "", {.jail = id, .patience = 7, .from = "sb-1", .to = "sn-1"});
    SEED(copy, "", {.from = "sb-1", .to = "sn-1", .jail = "j3", .freeze = 1, .init_pid = 12});
    SEED(started, "", {.pid = 8});
    SEED(exited, "", {.pid = 9, .exited = 1, .status = 256, .tree = TREE_LEFT, .cpu_usec = 10});
    SEED(signal, "", {.exec = id, .signal = SIGTERM});
    SEED(empty, "", {.tree = TREE_FORCED});
    SEED(tree, "", {.exec = id});
    SEED(resize, "", {.exec = id, .rows = 24, .cols = 80});

    struct msg_list words = {.text = "sh\0-c\0echo", .count = 3, .bytes = 11};
    struct msg_list env = {.text = "A=1\0B=", .count = 2, .bytes = 7}, none = {.text = ""};
    SEED(exec, "", {.uid = 1000, .gid = 1000, .cwd = "/workspace", .argv = words, .environ = env});
    SEED(exec, "-bare", {.cwd = "/", .argv = words, .environ = none});
    SEED(progress, "", {.layers_done = 1, .layers = 2, .bytes_done = 3, .bytes = 4});
    SEED(keep, "", {.kind = KEEP_SELF, .key = "", .name = "0123456789abcdef", .root = ""});
    SEED(trouble, "", {.text = "builders die"});
    SEED(images, "",
         {.verb = IMAGES_PULL,
          .missing = 1,
          .store_max = UINT64_C(1) << 30,
          .image = "tool:1",
          .as = "mine/tool:1"});
    SEED(facts, "",
         {.mode = FACTS_SINGLE,
          .uid = 7,
          .gid = 8,
          .root = 1,
          .shell_kind = FACTS_SH,
          .cgroups = 2,
          .shell = "/bin/sh",
          .home = "/home/user",
          .workspace = "/workspace",
          .machine = "x86_64",
          .missing = "",
          .environ = env});

    /* Says that it has more words than there are. */
    words.count++;
    SEED(exec, "-bad-count", {.cwd = "/", .argv = words, .environ = none});
}

/* ---- looking at them ---- */

static bool decodes(enum message message, const struct buf *payload)
{
    struct pd_err e;
    switch (message) {
#define X(name)                                                                                    \
    case SEED_##name: {                                                                            \
        static struct msg_##name m;                                                                \
        return msg_##name##_decode(payload, &m, &e) == 0;                                          \
    }
        MESSAGES(X)
#undef X
    case MESSAGE_COUNT:
        break;
    }
    return false;
}

/* The message that a file is called after. */
static enum message message_of(const char *file)
{
    size_t len = strcspn(file, "-");
    for (unsigned i = 0; i < MESSAGE_COUNT; i++)
        if (strlen(names[i]) == len && !strncmp(names[i], file, len))
            return (enum message)i;
    fail_msg("seed %s: there is no message of that name", file);
    return MESSAGE_COUNT;
}

static enum message check_seed(const char *file)
{
    char path[512];
    uint8_t data[4096];
    snprintf(path, sizeof path, "%s/msg/%s", UNIT_CORPUS, file);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t len = fread(data, 1, sizeof data, f);
    (void)fclose(f);

    enum message message = message_of(file);
    if (!len || data[0] != message)
        fail_msg("seed %s: its first byte is not %u: MAKE_SEEDS=1 test_msg_seeds", file, message);

    struct buf payload = {.data = data + 1, .len = len - 1, .cap = len - 1, .max = len - 1};
    bool bad = strstr(file, "-bad") != NULL;
    if (decodes(message, &payload) == bad)
        fail_msg("seed %s: is %s by its decoder: MAKE_SEEDS=1 test_msg_seeds", file,
                 bad ? "taken" : "refused");
    return message;
}

static void test_every_seed_is_the_message_of_its_name(void **state)
{
    (void)state;
    bool seen[MESSAGE_COUNT] = {0};
    if (getenv("MAKE_SEEDS"))
        make_seeds();

    DIR *dir = opendir(UNIT_CORPUS "/msg");
    assert_non_null(dir);
    for (const struct dirent *d; (d = readdir(dir));)
        if (d->d_name[0] != '.') {
            enum message message = check_seed(d->d_name);
            seen[message] |= !strstr(d->d_name, "-bad");
        }
    closedir(dir);

    for (unsigned i = 0; i < MESSAGE_COUNT; i++)
        if (!seen[i])
            fail_msg("message %s has no seed", names[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_seed_is_the_message_of_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
