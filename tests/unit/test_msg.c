/* Encoders and decoders agree, and a decoder accepts nothing but what an encoder made: every
 * shorter or longer text, every flipped bit that leaves the allowed values, is refused. */
#include "peer.h"

#include <inttypes.h>

/* The bytes of a good message, for mutation. Exactly as long as they are, so that ASan sees a read
 * beyond the end. */
static struct buf exact(const uint8_t *data, size_t len)
{
    struct buf b = {.data = malloc(len ? len : 1), .len = len, .cap = len, .max = len};
    assert_non_null(b.data);
    if (len)
        memcpy(b.data, data, len);
    return b;
}

/* For each message: decode what was encoded, encode that again, and the bytes must be the same;
 * then no prefix of them and no longer version of them may be accepted. */
#define CHECK_CODEC(name, message)                                                                 \
    do {                                                                                           \
        struct msg_##name m_ = message, got_;                                                      \
        struct pd_err e_;                                                                          \
        auto_buf one_ = BUF_INIT(WIRE_PAYLOAD_MAX), two_ = BUF_INIT(WIRE_PAYLOAD_MAX);             \
        msg_##name##_encode(&one_, &m_);                                                           \
        assert_int_equal(one_.overflow, 0);                                                        \
        assert_int_equal(msg_##name##_decode(&one_, &got_, &e_), 0);                               \
        msg_##name##_encode(&two_, &got_);                                                         \
        assert_int_equal(one_.len, two_.len);                                                      \
        assert_memory_equal(one_.data, two_.data, one_.len);                                       \
        for (size_t n_ = 0; n_ < one_.len; n_++) {                                                 \
            struct buf cut_ = exact(one_.data, n_);                                                \
            struct msg_##name untouched_;                                                          \
            memset(&untouched_, 0x5a, sizeof untouched_);                                          \
            struct msg_##name copy_;                                                               \
            memcpy(&copy_, &untouched_, sizeof copy_);                                             \
            assert_int_equal(msg_##name##_decode(&cut_, &untouched_, &e_), -1);                    \
            assert_int_equal(e_.code, PD_PROTOCOL);                                                \
            assert_memory_equal(&copy_, &untouched_, sizeof copy_);                                \
            buf_done(&cut_);                                                                       \
        }                                                                                          \
        buf_putc(&one_, 0);                                                                        \
        assert_int_equal(msg_##name##_decode(&one_, &got_, &e_), -1);                              \
    } while (0)

static struct spec full_spec(void)
{
    struct spec s = SPEC_DEFAULT;
    s.profile = PROFILE_DEV;
    s.network = NETWORK_HOST;
    s.min_rung = RUNG_BASIC;
    s.root_dir = "/srv/root";
    s.root_name = "a-name";
    s.image = "registry.example/team/tool:1.2";
    s.options = "{\"runtime\":\"runsc\"}";
    s.bind_count = 2;
    s.binds[0] = (struct spec_bind){"/a", "/b", 0};
    s.binds[1] = (struct spec_bind){"/c/d", "/e", 1};
    return s;
}

#define LITERAL(type, ...) ((struct type)__VA_ARGS__)

static void test_every_message_decodes_to_what_was_encoded(void **state)
{
    (void)state;
    struct wire_id id = wire_id_new();
    CHECK_CODEC(error, LITERAL(msg_error, {.code = PD_LOST, .sys = -3, .text = "went away"}));
    CHECK_CODEC(error, LITERAL(msg_error, {.text = ""}));
    CHECK_CODEC(welcome, LITERAL(msg_welcome, {.rung = RUNG_FULL,
                                               .layout = 3,
                                               .instance = "0123456789abcdef",
                                               .missing = "nothing"}));

    CHECK_CODEC(create, LITERAL(msg_create, {.spec = full_spec()}));
    CHECK_CODEC(create, LITERAL(msg_create, {.spec = SPEC_DEFAULT}));
    CHECK_CODEC(
        created,
        LITERAL(msg_created,
                {.rung = RUNG_BASIC, .init_pid = 77, .uid_base = 1073741824, .name = "j1"}));

    CHECK_CODEC(destroy, LITERAL(msg_destroy, {.jail = id, .want_stats = 1}));
    CHECK_CODEC(gone, LITERAL(msg_gone, {.jail = id,
                                         .how = GONE_UNDEAD,
                                         .oom_kills = 1,
                                         .pids_refused = UINT64_MAX,
                                         .memory_peak = 3,
                                         .cpu_usec = 4,
                                         .why = "the engine ended it"}));

    CHECK_CODEC(listed, LITERAL(msg_listed, {.jail = id, .undead = 1, .init_pid = 9}));
    CHECK_CODEC(counted, LITERAL(msg_counted, {.jails = 7}));
    CHECK_CODEC(key, LITERAL(msg_key, {.key = "session/1/stdout"}));
    CHECK_CODEC(keep, LITERAL(msg_keep, {.kind = KEEP_BOX,
                                         .key = "",
                                         .name = "j2",
                                         .root = "sb-1",
                                         .rung = RUNG_BASIC,
                                         .on_image = 1,
                                         .pid = 7,
                                         .number = 9}));
    CHECK_CODEC(build,
                LITERAL(msg_build, {.slot = 4, .waits = 1, .name = "j2", .spec = full_spec()}));
    CHECK_CODEC(built, LITERAL(msg_built, {.rung = 1, .named = 1, .has_mntns = 1, .init_pid = 2}));
    CHECK_CODEC(prepare, LITERAL(msg_prepare, {.slot = 6, .name = "j4"}));
    CHECK_CODEC(sweep, LITERAL(msg_sweep, {.name = "j5", .group = ""}));
    CHECK_CODEC(kill, LITERAL(msg_kill, {.jail = id, .group = "c7"}));
    CHECK_CODEC(usage, LITERAL(msg_usage, {.memory = 1,
                                           .memory_peak = 2,
                                           .cpu_usec = 3,
                                           .pids = 4,
                                           .disk_used = 5,
                                           .disk_total = UINT64_MAX,
                                           .frozen = 1}));

    CHECK_CODEC(copy_root, LITERAL(msg_copy_root, {.jail = id,
                                                   .patience = 7,
                                                   .from = "sb-0123456789abcdefghij",
                                                   .to = "sn-0123456789abcdefghij"}));

    CHECK_CODEC(copy_root, LITERAL(msg_copy_root, {.from = "", .to = ""}));
    CHECK_CODEC(copy, LITERAL(msg_copy, {.from = "a",
                                         .to = "b",
                                         .jail = "j3",
                                         .freeze = 1,
                                         .init_pid = 12,
                                         .patience = UINT64_MAX}));

    CHECK_CODEC(started, LITERAL(msg_started, {.pid = 8}));
    CHECK_CODEC(exited, LITERAL(msg_exited, {.pid = 9,
                                             .exited = 1,
                                             .status = 256,
                                             .disk_full = 1,
                                             .tree = TREE_LEFT,
                                             .cpu_usec = 10,
                                             .max_rss = 11}));

    CHECK_CODEC(empty, LITERAL(msg_empty, {.tree = TREE_FORCED}));
    CHECK_CODEC(tree, LITERAL(msg_tree, {.exec = id}));
    CHECK_CODEC(resize, LITERAL(msg_resize, {.exec = id, .rows = 65535, .cols = 80}));
    CHECK_CODEC(signal, LITERAL(msg_signal, {.exec = id, .signal = SIGTERM}));
}

static void test_a_command_decodes_with_its_lists(void **state)
{
    (void)state;
    static const char *const words[] = {"sh", "-c", "", "echo \"$1\"\n", "\xff\x01"};
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT, env = MSG_LIST_WRITER_INIT;
    for (size_t i = 0; i < COUNT(words); i++)
        assert_int_equal(msg_list_add(&argv, words[i]), 0);
    assert_int_equal(msg_list_add(&env, "A=1"), 0);
    struct msg_exec m = {.uid = 1000,
                         .gid = 1000,
                         .file_size = 1,
                         .cwd = "/workspace",
                         .argv = msg_list_of(&argv),
                         .environ = msg_list_of(&env)};
    CHECK_CODEC(exec, m);
    CHECK_CODEC(progress,
                LITERAL(msg_progress,
                        {.layers_done = 1, .layers = 2, .bytes_done = 3, .bytes = 1ull << 40}));
    CHECK_CODEC(trouble, LITERAL(msg_trouble, {.text = "builders die"}));
    CHECK_CODEC(images, LITERAL(msg_images, {.verb = IMAGES_PRUNE, .image = "", .as = ""}));
    CHECK_CODEC(images, LITERAL(msg_images, {.verb = IMAGES_PULL,
                                             .missing = 1,
                                             .store_max = UINT64_C(1) << 40,
                                             .image = "tool:1",
                                             .as = "mine/tool:1"}));
    CHECK_CODEC(facts, LITERAL(msg_facts, {.mode = FACTS_SINGLE,
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
                                           .environ = m.environ}));
    m.environ = (struct msg_list){.text = ""};
    CHECK_CODEC(exec, m);

    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_exec got;
    struct pd_err e;
    msg_exec_encode(&b, &m);
    assert_int_equal(msg_exec_decode(&b, &got, &e), 0);
    assert_int_equal(got.argv.count, COUNT(words));
    uint32_t pos = 0;
    for (size_t i = 0; i < COUNT(words); i++)
        assert_string_equal(msg_list_next(&got.argv, &pos), words[i]);
    assert_null(msg_list_next(&got.argv, &pos));
    assert_null(msg_list_next(&got.argv, &pos));
    pos = 0;
    assert_null(msg_list_next(&got.environ, &pos));
    msg_list_writer_done(&argv);
    msg_list_writer_done(&env);
}

static void test_a_command_needs_a_word(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_exec m = {.cwd = "/", .argv = {.text = ""}, .environ = {.text = ""}}, got;
    struct pd_err e;
    msg_exec_encode(&b, &m);
    assert_int_equal(msg_exec_decode(&b, &got, &e), -1);
}

static void test_an_empty_payload_is_no_message(void **state)
{
    (void)state;
    struct buf none = BUF_INIT(WIRE_PAYLOAD_MAX); /* data is NULL */
    struct pd_err e;
    struct msg_key key;
    struct msg_exec exec;
    struct msg_create create;
    struct msg_started started;
    assert_int_equal(msg_key_decode(&none, &key, &e), -1);
    assert_int_equal(msg_exec_decode(&none, &exec, &e), -1);
    assert_int_equal(msg_create_decode(&none, &create, &e), -1);
    assert_int_equal(msg_started_decode(&none, &started, NULL), -1);
}

/* A list as an attacker would write it: count and bytes chosen freely. */
static int decode_list(uint32_t count, uint32_t bytes, const char *text, uint32_t len)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_list_writer w = MSG_LIST_WRITER_INIT;
    msg_list_add(&w, "x");
    struct msg_exec m = {.cwd = "/", .argv = msg_list_of(&w), .environ = {.text = "", .count = 0}},
                    got;
    struct pd_err e;
    msg_exec_encode(&b, &m);
    b.len -= 8; /* the empty environment, at the end */
    buf_put(&b, &count, sizeof count);
    buf_put(&b, &bytes, sizeof bytes);
    buf_put(&b, text, len);
    struct buf tight = exact(b.data, b.len);
    int r = msg_exec_decode(&tight, &got, &e);
    if (r == 0) {
        uint32_t pos = 0, n = 0;
        while (msg_list_next(&got.environ, &pos))
            n++;
        assert_int_equal(n, count);
    }

    buf_done(&tight);
    msg_list_writer_done(&w);
    return r;
}

static void test_a_list_cannot_lie(void **state)
{
    (void)state;
    assert_int_equal(decode_list(0, 0, "", 0), 0);
    assert_int_equal(decode_list(1, 2, "a\0", 2), 0);
    assert_int_equal(decode_list(2, 2, "\0\0", 2), 0);
    assert_int_equal(decode_list(1, 0, "", 0), -1);
    assert_int_equal(decode_list(2, 2, "a\0", 2), -1);
    assert_int_equal(decode_list(0, 2, "a\0", 2), -1);
    assert_int_equal(decode_list(1, 3, "a\0b", 3), -1); /* the last one does not end */
    assert_int_equal(decode_list(0, 1, "a", 1), -1);
    assert_int_equal(decode_list(1, 3, "a\0", 2), -1);
    assert_int_equal(decode_list(1, 1, "a\0", 2), -1);
    assert_int_equal(decode_list(1, UINT32_MAX, "a\0", 2), -1);
    assert_int_equal(decode_list(UINT32_MAX, 2, "a\0", 2), -1);

    static char zeros[MSG_ARGS_MAX + 1];
    assert_int_equal(decode_list(MSG_ARGS_MAX, MSG_ARGS_MAX, zeros, MSG_ARGS_MAX), 0);
    assert_int_equal(decode_list(MSG_ARGS_MAX + 1, MSG_ARGS_MAX + 1, zeros, MSG_ARGS_MAX + 1), -1);
}

static void test_a_list_has_an_end(void **state)
{
    (void)state;
    struct msg_list_writer w = MSG_LIST_WRITER_INIT;
    for (unsigned i = 0; i < MSG_ARGS_MAX; i++)
        assert_int_equal(msg_list_add(&w, "x"), 0);
    assert_int_equal(msg_list_add(&w, "x"), -1);
    assert_int_equal(msg_list_of(&w).count, MSG_ARGS_MAX);
    msg_list_writer_done(&w);

    char *large = malloc(WIRE_PAYLOAD_MAX + 1);
    memset(large, 'x', WIRE_PAYLOAD_MAX);
    large[WIRE_PAYLOAD_MAX] = 0;
    assert_int_equal(msg_list_add(&w, large), -1);
    assert_int_equal(msg_list_of(&w).count, 0);
    large[WIRE_PAYLOAD_MAX - 1] = 0;
    assert_int_equal(msg_list_add(&w, large), 0);
    assert_int_equal(msg_list_add(&w, ""), -1);
    /* It fits the writer but, with what surrounds it, no frame: sending shows that. */
    struct msg_exec m = {.cwd = "/", .argv = msg_list_of(&w), .environ = {.text = ""}};
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_exec_encode(&b, &m);
    assert_int_equal(b.overflow, 1);
    msg_list_writer_done(&w);
    free(large);
}

static void test_a_string_cannot_lie(void **state)
{
    (void)state;
    static const struct {
        uint32_t len;
        const char *bytes;
        uint32_t size;
        int result;
    } rows[] = {
        {0, "\0", 1, 0},
        {1, "a\0", 2, 0},
        {1, "a", 1, -1},  /* no NUL */
        {1, "ab", 2, -1}, /* not at its place */
        {2, "a\0\0", 3, -1} /* one inside */,
        {0, "a", 1, -1},
        {UINT32_MAX, "a\0", 2, -1},
        {MSG_KEY_MAX + 1, "a\0", 2, -1},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_buf b = BUF_INIT(64);
        buf_put(&b, &rows[i].len, 4);
        buf_put(&b, rows[i].bytes, rows[i].size);
        struct buf tight = exact(b.data, b.len);
        struct msg_key key;
        struct pd_err e;
        if (msg_key_decode(&tight, &key, &e) != rows[i].result)
            fail_msg("row %zu", i);
        buf_done(&tight);
    }
}

static void test_a_string_has_a_longest_length(void **state)
{
    (void)state;
    char text[MSG_KEY_MAX + 2];
    memset(text, 'k', sizeof text);
    text[MSG_KEY_MAX + 1] = 0;
    struct msg_key key = {.key = text};
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_key_encode(&b, &key);
    assert_int_equal(b.overflow, 1);
    buf_clear(&b);
    text[MSG_KEY_MAX] = 0;
    CHECK_CODEC(key, key);
}

/* Every value of the first 32-bit field at `at`, of which only those below `count` are good. */
static void check_enum_at(const struct buf *good, size_t at, uint32_t count,
                          int (*decode)(const struct buf *))
{
    for (uint64_t v = 0; v <= UINT32_MAX; v = v < 70000 ? v + 1 : v * 2 + 1) {
        uint32_t value = (uint32_t)v;
        struct buf b = exact(good->data, good->len);
        memcpy(b.data + at, &value, sizeof value);
        int r = decode(&b);
        buf_done(&b);
        if ((r == 0) != (v < count))
            fail_msg("value %" PRIu64 " of %u gives %d", v, count, r);
    }
}

static int decode_create(const struct buf *b)
{
    struct msg_create m;
    return msg_create_decode(b, &m, NULL);
}

static int decode_exited(const struct buf *b)
{
    struct msg_exited m;
    return msg_exited_decode(b, &m, NULL);
}

static int decode_gone(const struct buf *b)
{
    struct msg_gone m;
    return msg_gone_decode(b, &m, NULL);
}

static int decode_error(const struct buf *b)
{
    struct msg_error m;
    return msg_error_decode(b, &m, NULL);
}

static void test_enums_stay_in_range(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_create_encode(&b, &(struct msg_create){.spec = full_spec()});
    check_enum_at(&b, 0, PROFILE_COUNT, decode_create);
    check_enum_at(&b, 4, NETWORK_COUNT, decode_create);
    check_enum_at(&b, 8, RUNG_COUNT, decode_create);
    check_enum_at(&b, b.len - 4, SPEC_BIND_IDS + 1, decode_create); /* writable, of the last bind */

    buf_clear(&b);
    msg_exited_encode(&b, &(struct msg_exited){.exited = 1});
    check_enum_at(&b, 4, 2, decode_exited);
    check_enum_at(&b, 12, 2, decode_exited);
    check_enum_at(&b, 16, TREE_COUNT, decode_exited);

    buf_clear(&b);
    msg_gone_encode(&b, &(struct msg_gone){.how = GONE_DIED, .why = ""});
    check_enum_at(&b, 16, GONE_COUNT, decode_gone);

    buf_clear(&b);
    msg_error_encode(&b, &(struct msg_error){.text = "x"});
    check_enum_at(&b, 0, PD_CODE_COUNT, decode_error);
}

static void test_a_spec_has_at_most_32_binds(void **state)
{
    (void)state;
    struct msg_create m = {.spec = SPEC_DEFAULT}, got;
    for (int i = 0; i < SPEC_BINDS_MAX; i++)
        m.spec.binds[i] = (struct spec_bind){"/from", "/to", i % 2};
    m.spec.bind_count = SPEC_BINDS_MAX;
    CHECK_CODEC(create, m);

    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct pd_err e;
    m.spec.bind_count = 0;
    msg_create_encode(&b, &m);

    uint32_t counts[] = {1, SPEC_BINDS_MAX, SPEC_BINDS_MAX + 1, UINT32_MAX};
    for (size_t i = 0; i < COUNT(counts); i++) {
        memcpy(b.data + b.len - 4, &counts[i], 4);
        assert_int_equal(msg_create_decode(&b, &got, &e), -1);
    }
}

static void test_a_stored_spec_has_a_version(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct spec s = full_spec(), got;
    struct pd_err e;

    spec_store(&b, &s);
    assert_int_equal(spec_restore(&b, &got, &e), 0);
    assert_string_equal(got.image, s.image);
    assert_string_equal(got.options, s.options);
    assert_string_equal(got.binds[1].source, "/c/d");
    for (size_t n = 0; n < b.len; n++) {
        struct buf cut = exact(b.data, n);
        assert_int_equal(spec_restore(&cut, &got, &e), -1);
        buf_done(&cut);
    }

    b.data[0]++; /* the version is the low half of the first word */
    assert_int_equal(spec_restore(&b, &got, &e), -1);
    assert_int_equal(e.code, PD_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "version 2"));
}

/* As servers wrote it before there were versions: no word in front, no image, no options. */
static void test_a_spec_that_was_stored_without_a_version_is_read(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct spec got;
    struct pd_err e;
    uint32_t words[] = {PROFILE_DEV, NETWORK_NONE, RUNG_BASIC};
    uint64_t limits[] = {64u << 20, 20, 500, 1u << 24, 1000};
    uint32_t none = 0;

    buf_put(&b, words, sizeof words);
    buf_put(&b, limits, sizeof limits);
    for (int i = 0; i < 2; i++) { /* root_dir, root_name */
        buf_put(&b, &none, sizeof none);
        buf_putc(&b, 0);
    }
    buf_put(&b, &none, sizeof none); /* binds */

    assert_int_equal(spec_restore(&b, &got, &e), 0);
    assert_int_equal(got.profile, PROFILE_DEV);
    assert_int_equal(got.limits.pids, 20);
    assert_string_equal(got.image, "");
    assert_string_equal(got.options, "");
}

static void test_an_error_frame_becomes_the_error(void **state)
{
    (void)state;
    auto_frame f = FRAME_INIT;
    struct pd_err e = {.msg = ""};
    struct msg_error m = {.code = PD_NO_SPACE, .sys = ENOSPC, .text = "100% full of %s%n"};
    msg_error_encode(&f.payload, &m);
    assert_int_equal(msg_error_raise(&f, &e), -1);
    assert_int_equal(e.code, PD_NO_SPACE);
    assert_int_equal(e.sys, ENOSPC);
    assert_string_equal(e.msg, "100% full of %s%n");
    assert_int_equal(msg_error_raise(&f, NULL), -1);

    f.payload.len--;
    assert_int_equal(msg_error_raise(&f, &e), -1);
    assert_int_equal(e.code, PD_PROTOCOL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_message_decodes_to_what_was_encoded),
        cmocka_unit_test(test_a_command_decodes_with_its_lists),
        cmocka_unit_test(test_a_command_needs_a_word),
        cmocka_unit_test(test_an_empty_payload_is_no_message),
        cmocka_unit_test(test_a_list_cannot_lie),
        cmocka_unit_test(test_a_list_has_an_end),
        cmocka_unit_test(test_a_string_cannot_lie),
        cmocka_unit_test(test_a_string_has_a_longest_length),
        cmocka_unit_test(test_enums_stay_in_range),
        cmocka_unit_test(test_a_spec_has_at_most_32_binds),
        cmocka_unit_test(test_a_stored_spec_has_a_version),
        cmocka_unit_test(test_a_spec_that_was_stored_without_a_version_is_read),
        cmocka_unit_test(test_an_error_frame_becomes_the_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
