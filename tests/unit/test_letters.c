/* Links by bucket: names and keys of letters, two ends over a bucket in memory that is also
 * tampered with, and what is said to Cloud Storage. */
#include "base/err.h"
#include "base/fd.h"
#include "box/letters.h"
#include "engine/cloudrun_api.h"
#include "engine/gcs_api.h"
#include "unit.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PREFIX "paddock-i-box.0123456789abcdef0123456789abcdef"

static const uint8_t root[LETTERS_KEY] = {1, 2, 3}, other[LETTERS_KEY] = {3, 2, 1};

static void test_names(void **state)
{
    char name[LETTERS_NAME];

    (void)state;
    letters_here_name(name, PREFIX);
    assert_string_equal(name, PREFIX ".here");
    letters_call_name(name, PREFIX, 7);
    assert_string_equal(name, PREFIX ".7.call");
    letters_name(name, PREFIX, 7, LETTERS_UP, 12);
    assert_string_equal(name, PREFIX ".7.u.12");
    assert_int_equal(letters_call_of(PREFIX, name), 7);
    assert_int_equal(letters_call_of(PREFIX, PREFIX ".4294967295.call"), UINT32_MAX);

    static const char *const none[] = {
        PREFIX ".here", PREFIX ".4294967296.call", PREFIX ".7",    PREFIX,
        "other.7.call", PREFIX ".-1.call",         PREFIX "..call"};
    for (size_t i = 0; i < COUNT(none); i++)
        assert_int_equal(letters_call_of(PREFIX, none[i]), 0);
}

/* A call is believed for its number and its key alone, and each has another key. */
static void test_calls(void **state)
{
    const uint8_t salt[LETTERS_SALT] = {9};
    uint8_t call[LETTERS_CALL], key[LETTERS_KEY], again[LETTERS_KEY];

    (void)state;
    letters_call(root, 1, salt, call, key);
    assert_true(letters_call_read(root, 1, call, sizeof call, again));
    assert_memory_equal(key, again, sizeof key);
    assert_false(letters_call_read(root, 2, call, sizeof call, again));
    assert_false(letters_call_read(other, 1, call, sizeof call, again));
    assert_false(letters_call_read(root, 1, call, sizeof call - 1, again));
    call[0] ^= 1;
    assert_false(letters_call_read(root, 1, call, sizeof call, again));
    assert_memory_equal(key, again, sizeof key); /* the key of the call before stays in use */
    letters_call(root, 2, salt, call, again);
    assert_memory_not_equal(key, again, sizeof key);
}

/* ---- a bucket in memory ---- */

#define OBJECTS 4096u
struct object {
    char name[LETTERS_NAME];
    uint8_t *data;
    size_t len;
};
static struct object objects[OBJECTS];
static unsigned count, puts_named_1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum { HONEST, FLIPS, CUTS, REPEATS, LOSES } tamper; /* LOSES: the answers of puts */

static struct object *find(const char *name)
{
    for (unsigned i = 0; i < count; i++)
        if (!strcmp(objects[i].name, name))
            return &objects[i];
    return NULL;
}

static int get(void *context, const char *name, struct buf *out)
{
    (void)context;
    pthread_mutex_lock(&lock);
    const struct object *o = find(name);
    int r = o ? buf_put(out, o->data, o->len) < 0 ? -1 : 1 : 0;
    if (r > 0 && tamper == FLIPS)
        out->data[out->len - 1] ^= 1;
    if (r > 0 && tamper == CUTS)
        out->len -= out->len > 4; /* as if it were still being written: it is waited for */
    pthread_mutex_unlock(&lock);
    return r;
}

static int put(void *context, const char *name, const void *data, size_t len)
{
    (void)context;
    pthread_mutex_lock(&lock);
    struct object *o = find(name);
    puts_named_1 += !strcmp(name, PREFIX ".1.u.1");
    if (!o)
        o = &objects[count++];
    snprintf(o->name, sizeof o->name, "%s", name);
    free(o->data);
    o->data = malloc(len);
    memcpy(o->data, data, len);
    o->len = len;
    if (tamper == REPEATS && strstr(name, ".u.2")) { /* the one before, under this name */
        struct object *first = find(PREFIX ".1.u.1");
        if (first) {
            o->data = realloc(o->data, first->len);
            memcpy(o->data, first->data, first->len);
            o->len = first->len;
        }
    }
    pthread_mutex_unlock(&lock);
    return tamper == LOSES ? -1 : 0;
}

static void drop(void *context, const char *name)
{
    (void)context;
    pthread_mutex_lock(&lock);
    struct object *o = find(name);
    if (o && tamper != REPEATS) {
        free(o->data);
        *o = objects[--count];
        objects[count] = (struct object){.len = 0};
    }
    pthread_mutex_unlock(&lock);
}

/* No cipher: what depends on the key and the nonce is the tag. */
static bool crypt_sum(bool seal, const uint8_t key[LETTERS_KEY], const uint8_t nonce[LETTERS_NONCE],
                      uint8_t *data, size_t len, uint8_t tag[LETTERS_TAG])
{
    uint8_t sum[LETTERS_TAG] = {0};

    for (size_t i = 0; i < len; i++)
        sum[i % LETTERS_TAG] = (uint8_t)(sum[i % LETTERS_TAG] * 31 + data[i]);
    for (unsigned i = 0; i < LETTERS_TAG; i++)
        sum[i] ^= (uint8_t)(key[i] + nonce[i % LETTERS_NONCE]);
    if (seal)
        memcpy(tag, sum, sizeof sum);
    return !memcmp(tag, sum, sizeof sum);
}

static const struct letters_store store = {
    .get = get, .put = put, .drop = drop, .crypt = crypt_sum};

static void clear_objects(void)
{
    for (unsigned i = 0; i < count; i++)
        free(objects[i].data);
    memset(objects, 0, sizeof objects);
    count = 0;
}

/* One end is a process, because an end has its buffers for itself: it is what the box is. The
 * bucket is this process's; so both ends take turns here: first one carries until it ends. */
static void carry_up(const void *data, size_t len)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(send(pair[0], data, len, 0), (ssize_t)len);
    shutdown(pair[0], SHUT_WR);
    struct letters l = {.store = &store,
                        .prefix = PREFIX,
                        .call = 1,
                        .key = {5},
                        .out = LETTERS_UP,
                        .near = pair[1]};
    letters_carry(&l);
    close(pair[0]);
    close(pair[1]);
}

static size_t carry_down(void *out, size_t size)
{
    int pair[2];
    size_t have = 0;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    struct letters l = {.store = &store,
                        .prefix = PREFIX,
                        .call = 1,
                        .key = {5},
                        .out = LETTERS_DOWN,
                        .near = pair[1],
                        .silence = NS_PER_S / 4};
    letters_carry(&l);
    close(pair[1]);
    for (ssize_t n; (n = recv(pair[0], (char *)out + have, size - have, 0)) > 0;)
        have += (size_t)n;
    close(pair[0]);
    return have;
}

static void test_what_goes_up_comes_down(void **state)
{
    static uint8_t sent[100000], came[sizeof sent];

    (void)state;
    tamper = HONEST;
    for (size_t i = 0; i < sizeof sent; i++)
        sent[i] = (uint8_t)(i * 7);
    carry_up(sent, sizeof sent);
    assert_int_equal(carry_down(came, sizeof came), sizeof sent);
    assert_memory_equal(sent, came, sizeof sent);
    clear_objects();
}

/* Nothing that was tampered with comes out: it ends, or is waited for. */
static void test_what_was_tampered_with(void **state)
{
    char came[100];

    (void)state;
    for (tamper = FLIPS; tamper <= REPEATS; tamper++) {
        carry_up("words", 5);
        size_t len = carry_down(came, sizeof came);
        assert_int_equal(len, tamper == REPEATS ? 5 : 0); /* once, and not again as the second */
        clear_objects();
    }
    tamper = HONEST;
}

/* Nobody knows whether it is there: its number, and so its nonce, is never another letter's. */
static void test_a_number_is_used_once(void **state)
{
    char came[100];

    (void)state;
    tamper = LOSES;
    puts_named_1 = 0;
    carry_up("words", 5);
    assert_int_equal(puts_named_1, 1);
    tamper = HONEST;
    assert_int_equal(carry_down(came, sizeof came), 5);
    assert_memory_equal(came, "words", 5);
    clear_objects();
}

/* ---- Cloud Storage ---- */

static int note(void *context, const char *name, struct pd_err *e)
{
    (void)e;
    return buf_printf(context, "%s ", name);
}

static void test_objects(void **state)
{
    auto_buf out = BUF_INIT(1000);
    auto_buf names = BUF_INIT(500);
    char next[GCS_NEXT];
    struct pd_err e = {.msg = ""};

    (void)state;
    gcs_put_target(&out, "b", "a b/c", true);
    assert_string_equal(buf_cstr(&out), "/upload/storage/v1/b/b/o?uploadType=media"
                                        "&ifGenerationMatch=0&name=a%20b%2Fc");
    buf_clear(&out);
    gcs_list_target(&out, "b", "p.", "x=");
    assert_string_equal(buf_cstr(&out),
                        "/storage/v1/b/b/o?maxResults=1000&prefix=p.&pageToken=x%3D");

    static const char list[] =
        "{\"items\":[{\"name\":\"p.1\"},{\"name\":\"q\"},{\"name\":\"p./..\"},"
        "{\"name\":5},{}],\"nextPageToken\":\"n\"}";
    assert_int_equal(gcs_read_list(list, sizeof list - 1, "p.", next, note, &names, &e), 0);
    assert_string_equal(buf_cstr(&names), "p.1 ");
    assert_string_equal(next, "n");
    assert_int_equal(gcs_read_list("{}", 2, "p.", next, note, &names, &e), 0);
    assert_string_equal(next, "");
    assert_int_equal(gcs_read_list("[]", 2, "p.", next, note, &names, &e), -1);
    assert_int_equal(gcs_check_bucket("s", "my-bucket.x", &e), 0);
    assert_int_equal(gcs_check_bucket("s", "a/../b", &e), -1);
    assert_int_equal(gcs_check_bucket("s", "", &e), -1);
}

#define JOB(path, more)                                                                            \
    "{\"template\":{\"template\":{\"containers\":[{\"name\":\"x\"},{\"name\":\"c\","               \
    "\"volumeMounts\":[{\"name\":\"v\",\"mountPath\":\"" path "\"}]}],"                            \
    "\"volumes\":[{\"name\":\"w\",\"gcs\":{\"bucket\":\"other\"}},"                                \
    "{\"name\":\"v\",\"gcs\":{\"bucket\":\"mine\"" more "}}]}}}"

static void test_mounts(void **state)
{
    static const struct {
        const char *json, *container, *says; /* says NULL: it is at /links */
    } rows[] = {
        {JOB("/links", ""), "c", NULL},
        {JOB("/links", ",\"readOnly\":false"), "c", NULL},
        {JOB("/links", ",\"readOnly\":true"), "c", "only to read"},
        {JOB("/links", ""), "", "no volume of the job"},
        {JOB("/a/../b", ""), "c", "plain path"},
        {JOB("/a b", ""), "c", "plain path"},
        {JOB("", ""), "c", "plain path"},
        {"{}", "c", "no volume of the job"},
        {"", "c", "no volume of the job"},
    };
    char path[CLOUDRUN_MOUNT];

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct pd_err e = {.msg = ""};
        int r = cloudrun_read_mount(rows[i].json, strlen(rows[i].json), "mine", rows[i].container,
                                    path, &e);
        assert_int_equal(r, rows[i].says ? -1 : 0);
        if (rows[i].says)
            assert_non_null(strstr(e.msg, rows[i].says));
        else
            assert_string_equal(path, "/links");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_what_goes_up_comes_down),
        cmocka_unit_test(test_what_was_tampered_with),
        cmocka_unit_test(test_a_number_is_used_once),
        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_mounts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
