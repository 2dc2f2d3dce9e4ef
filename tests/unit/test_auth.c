#include "unit.h"

#include "access/auth.h"
#include "base/err.h"
#include "store/sqlite.h"
#include "store/store.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SOME_KEY "e2b_0123456789abcdef0123456789abcdef01234567"

static void refused(struct auth *a, const char *key, const char *says)
{
    struct pd_err e = {0};
    struct auth_who who = {.tenant = "untouched"};
    assert_int_equal(auth_check(a, key, &who, &e), -1);
    assert_int_equal(e.code, PD_UNAUTHENTICATED);
    assert_string_equal(who.tenant, "untouched");
    if (!strstr(e.msg, says))
        fail_msg("\"%s\" does not say \"%s\"", e.msg, says);
    if (key && strlen(key) > 8)
        assert_null(strstr(e.msg, key));
}

static void accepted(struct auth *a, const char *key, const char *tenant, const char *id)
{
    struct pd_err e = {0};
    struct auth_who who;
    if (auth_check(a, key, &who, &e))
        fail_msg("refused: %s", e.msg);
    assert_string_equal(who.tenant, tenant);
    if (id)
        assert_string_equal(who.key_id, id);
}

struct both {
    struct store *store;
    struct auth *auth;
};

static struct both both_new(const char *extra)
{
    struct both b = {.store = store_sqlite_open(":memory:", 0, NULL)};
    assert_non_null(b.store);
    b.auth = auth_new(b.store, extra, NULL);
    assert_non_null(b.auth);
    return b;
}

static void both_free(struct both *b)
{
    auth_free(b->auth);
    b->store->free(b->store);
}

static void test_a_key_opens_its_tenant_until_it_is_revoked(void **state)
{
    (void)state;
    struct both b = both_new(NULL);
    assert_int_equal(auth_count(b.auth), 0);

    char one[ID_KEY_LEN + 1], two[ID_KEY_LEN + 1], id1[AUTH_ID_LEN + 1], id2[AUTH_ID_LEN + 1];
    assert_int_equal(auth_create(b.auth, "default", NULL, AUTH_OPERATOR, one, id1, NULL), 0);
    assert_int_equal(auth_create(b.auth, "other", "laptop", AUTH_OPERATOR, two, id2, NULL), 0);
    assert_true(id_is_key(one));
    assert_int_equal(strlen(id1), AUTH_ID_LEN);
    assert_int_equal(auth_count(b.auth), 2);

    accepted(b.auth, one, "default", id1);
    accepted(b.auth, two, "other", id2);
    char last = one[ID_KEY_LEN - 1];
    one[ID_KEY_LEN - 1] = last == '0' ? '1' : '0'; /* still hex, whatever the key was */
    refused(b.auth, one, "not known");

    one[ID_KEY_LEN - 1] = last;
    assert_int_equal(auth_revoke(b.auth, id1, NULL), 0);
    assert_int_equal(auth_revoke(b.auth, id1, NULL), 0);
    refused(b.auth, one, "revoked");

    accepted(b.auth, two, "other", id2);
    assert_int_equal(auth_count(b.auth), 1);
    struct pd_err e = {0};
    assert_int_equal(auth_revoke(b.auth, "nobody", &e), -1);
    assert_int_equal(e.code, PD_NOT_FOUND);
    both_free(&b);
}

static void test_what_is_no_key_is_refused(void **state)
{
    (void)state;
    struct both b = both_new(SOME_KEY);
    refused(b.auth, NULL, "needs an API key");
    refused(b.auth, "", "needs an API key");

    static const char *const bad[] = {
        "x",
        "e2b_",
        SOME_KEY " ",
        " " SOME_KEY,
        SOME_KEY "0",
        "E2B_0123456789abcdef0123456789abcdef01234567",
        "e2b_0123456789ABCDEF0123456789abcdef01234567",
        "e2b_0123456789abcdef0123456789abcdef0123456\xff",
        "Bearer " SOME_KEY,
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        refused(b.auth, bad[i], "no API key");

    accepted(b.auth, SOME_KEY, "default", NULL);
    both_free(&b);
}

static void test_the_key_of_the_environment_is_accepted(void **state)
{
    (void)state;
    struct both b = both_new(SOME_KEY);
    assert_int_equal(auth_count(b.auth), 1);

    accepted(b.auth, SOME_KEY, "default", NULL);
    char key[ID_KEY_LEN + 1], id[AUTH_ID_LEN + 1];
    assert_int_equal(auth_create(b.auth, "other", NULL, AUTH_OPERATOR, key, id, NULL), 0);

    accepted(b.auth, SOME_KEY, "default", NULL);
    accepted(b.auth, key, "other", id);
    auth_free(b.auth);

    struct pd_err e = {0};
    assert_null(auth_new(b.store, "secret", &e));
    assert_int_equal(e.code, PD_INVALID);
    assert_non_null(strstr(e.msg, "PADDOCK_API_KEY"));
    assert_null(strstr(e.msg, "secret"));

    b.auth = auth_new(b.store, "", NULL); /* a variable that is empty is not set */
    assert_non_null(b.auth);
    assert_int_equal(auth_count(b.auth), 1);
    auth_free(b.auth);

    /* One that was revoked in the store stays so, whoever sets it. */
    b.auth = auth_new(b.store, key, NULL);
    accepted(b.auth, key, "other", id);
    assert_int_equal(auth_revoke(b.auth, id, NULL), 0);
    refused(b.auth, key, "revoked");
    both_free(&b);
}

static int find_nothing_secret(const struct auth_key *r, void *arg)
{
    const char *key = arg;
    assert_null(strstr(r->id, key + 4));
    assert_null(strstr(key, r->id));
    assert_string_equal(r->label, "laptop");
    assert_true(r->created_ms > UINT64_C(1500000000000));
    return 0;
}

static void test_the_list_and_the_store_have_no_keys(void **state)
{
    (void)state;
    struct both b = both_new(NULL);
    char key[ID_KEY_LEN + 1], id[AUTH_ID_LEN + 1];
    assert_int_equal(auth_create(b.auth, "default", "laptop", AUTH_OPERATOR, key, id, NULL), 0);
    assert_int_equal(auth_list(b.auth, find_nothing_secret, key, NULL), 0);
    both_free(&b);
}

static void test_tenants_and_labels_are_checked(void **state)
{
    (void)state;
    struct both b = both_new(NULL);
    char key[ID_KEY_LEN + 1] = "untouched", id[AUTH_ID_LEN + 1] = "";
    char longest[AUTH_LABEL_MAX + 2];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';

    static const char *const tenants[] = {"", "Upper", "a b", "a/b", "..", NULL};
    for (size_t i = 0; i < COUNT(tenants); i++) {
        struct pd_err e = {0};
        assert_int_equal(auth_create(b.auth, tenants[i], "", AUTH_OPERATOR, key, id, &e), -1);
        assert_int_equal(e.code, PD_INVALID);
    }

    struct pd_err e = {0};
    assert_int_equal(auth_create(b.auth, "default", longest, AUTH_OPERATOR, key, id, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
    assert_int_equal(auth_create(b.auth, "default", "a\x1b[2J", AUTH_OPERATOR, key, id, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
    assert_string_equal(key, "untouched");

    longest[AUTH_LABEL_MAX] = '\0';
    assert_int_equal(auth_create(b.auth, "default", longest, AUTH_OPERATOR, key, id, &e), 0);
    both_free(&b);
}

/* Another process: for each line "+" it makes a key and writes key and id; for "-" it revokes the
 * key that it made last. */
static void keys_of_another_process(const char *dir, int in, int out)
{
    char key[ID_KEY_LEN + 1] = "", id[AUTH_ID_LEN + 1] = "", order;
    while (read(in, &order, 1) == 1) {
        struct store *s = store_sqlite_open(dir, 0, NULL);
        struct auth *a = s ? auth_new(s, NULL, NULL) : NULL;
        if (!a)
            _exit(1);
        if (order == '+' ? auth_create(a, "other", "cli", AUTH_OPERATOR, key, id, NULL)
                         : auth_revoke(a, id, NULL))
            _exit(2);
        auth_free(a);
        s->free(s);
        if (write(out, key, sizeof key) != sizeof key)
            _exit(3);
    }
    _exit(0);
}

static void test_keys_of_another_process_hold_soon(void **state)
{
    (void)state;
    char dir[] = "/tmp/paddock-auth-XXXXXX";
    assert_non_null(mkdtemp(dir));

    int go[2], done[2];
    assert_int_equal(pipe2(go, O_CLOEXEC), 0);
    assert_int_equal(pipe2(done, O_CLOEXEC), 0);
    pid_t pid = child_fork(); /* before SQLite is in use here */
    assert_true(pid >= 0);

    if (pid == 0) {
        close(go[1]);
        keys_of_another_process(dir, go[0], done[1]);
    }
    close(go[0]);
    close(done[1]);

    struct store *s = store_sqlite_open(dir, 1, NULL);
    assert_non_null(s);
    struct auth *a = auth_new(s, NULL, NULL);
    assert_non_null(a);

    char key[ID_KEY_LEN + 1];
    for (int round = 0; round < 3; round++) {
        refused(a, SOME_KEY, "not known");
        assert_int_equal(write(go[1], "+", 1), 1);
        assert_int_equal(read(done[0], key, sizeof key), sizeof key);
        accepted(a, key, "other", NULL); /* at once */
    }
    assert_int_equal(write(go[1], "-", 1), 1);
    assert_int_equal(read(done[0], key, sizeof key), sizeof key);

    struct timespec second = {.tv_sec = 1, .tv_nsec = 10000000};
    nanosleep(&second, NULL);
    refused(a, key, "revoked");
    assert_int_equal(auth_count(a), 2);
    auth_free(a);

    s->free(s);
    close(go[1]);
    close(done[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);

    static const char *const names[] = {"paddock.db", "paddock.lock"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(dir), 0);
}

/* A store that counts how often it is read, changes all the time, and can be out of order. */
struct counting {
    struct store store;
    struct store *real;
    unsigned reads, touches;
    int64_t version;
    int broken;
};

static int counting_each_key(struct store *s, int (*each)(const struct key_row *r, void *arg),
                             void *arg, struct pd_err *e)
{
    struct counting *c = (struct counting *)s;
    c->reads++;
    if (c->broken)
        return pd_fail(e, PD_INTERNAL, "broken");
    return c->real->each_key(c->real, each, arg, e);
}

static int counting_put_key(struct store *s, const struct key_row *r, struct pd_err *e)
{
    struct counting *c = (struct counting *)s;
    return c->real->put_key(c->real, r, e);
}

static int counting_touch_key(struct store *s, const char *id, uint64_t ms, struct pd_err *e)
{
    struct counting *c = (struct counting *)s;
    c->touches++;
    return c->real->touch_key(c->real, id, ms, e);
}

static int64_t counting_version(struct store *s)
{
    struct counting *c = (struct counting *)s;
    return c->broken ? -1 : c->version++;
}

static struct counting counting_new(void)
{
    struct counting c = {.real = store_sqlite_open(":memory:", 0, NULL)};
    assert_non_null(c.real);
    c.store.each_key = counting_each_key;
    c.store.put_key = counting_put_key;
    c.store.touch_key = counting_touch_key;
    c.store.version = counting_version;
    return c;
}

static void test_unknown_keys_do_not_make_the_store_work(void **state)
{
    (void)state;
    struct counting c = counting_new();
    struct auth *a = auth_new(&c.store, NULL, NULL);
    assert_non_null(a);

    c.reads = 0;
    for (int i = 0; i < 20000; i++)
        refused(a, SOME_KEY, "not known");

    /* Two reads per look: 20 looks at once, 20 per second. */
    assert_true(c.reads >= 20);
    assert_true(c.reads <= 2 * (20 + 20 * 10));

    c.reads = 0;
    for (int i = 0; i < 1000; i++)
        refused(a, "e2b_", "no API key");
    assert_true(c.reads <= 2);
    auth_free(a);
    c.real->free(c.real);
}

static void test_a_store_that_fails_locks_nobody_out(void **state)
{
    (void)state;
    struct counting c = counting_new();
    struct auth *a = auth_new(&c.store, NULL, NULL);
    char key[ID_KEY_LEN + 1], id[AUTH_ID_LEN + 1];

    assert_int_equal(auth_create(a, "default", NULL, AUTH_OPERATOR, key, id, NULL), 0);
    c.broken = 1;
    refused(a, SOME_KEY, "not known");

    accepted(a, key, "default", id);
    struct pd_err e = {0};
    assert_null(auth_new(&c.store, NULL, &e));
    assert_int_equal(e.code, PD_INTERNAL);

    c.broken = 0;
    accepted(a, key, "default", id);
    auth_free(a);
    c.real->free(c.real);
}

static void test_the_time_of_use_is_stored_now_and_then(void **state)
{
    (void)state;
    struct counting c = counting_new();
    struct auth *a = auth_new(&c.store, SOME_KEY, NULL);
    char key[ID_KEY_LEN + 1], id[AUTH_ID_LEN + 1];
    assert_int_equal(auth_create(a, "default", NULL, AUTH_OPERATOR, key, id, NULL), 0);

    for (int i = 0; i < 1000; i++) {
        accepted(a, key, "default", id);
        accepted(a, SOME_KEY, "default", NULL);
    }
    assert_int_equal(c.touches, 1);
    auth_free(a);
    c.real->free(c.real);
}

static void test_many_keys_are_told_apart(void **state)
{
    (void)state;
    struct both b = both_new(NULL);
    enum { KEYS = 400 };
    static char keys[KEYS][ID_KEY_LEN + 1], ids[KEYS][AUTH_ID_LEN + 1];

    for (int i = 0; i < KEYS; i++) {
        char tenant[16];
        snprintf(tenant, sizeof tenant, "t%d", i % 7);
        assert_int_equal(auth_create(b.auth, tenant, NULL, AUTH_OPERATOR, keys[i], ids[i], NULL),
                         0);
    }

    for (int i = 0; i < KEYS; i++) {
        char tenant[16];
        snprintf(tenant, sizeof tenant, "t%d", i % 7);
        accepted(b.auth, keys[i], tenant, ids[i]);
    }

    /* A new start reads the same. */
    auth_free(b.auth);
    b.auth = auth_new(b.store, NULL, NULL);
    assert_non_null(b.auth);
    assert_int_equal(auth_count(b.auth), KEYS);
    accepted(b.auth, keys[KEYS - 1], "t0", ids[KEYS - 1]);
    both_free(&b);
}

struct checking {
    struct auth *auth;
    const char *key;
    _Atomic int *stop;
    unsigned wrong, checks;
};

static void *check_all_the_time(void *arg)
{
    struct checking *c = arg;
    while (!atomic_load(c->stop) || c->checks == 0) {
        struct auth_who who;
        c->wrong += auth_check(c->auth, c->key, &who, NULL) != 0 || strcmp(who.tenant, "default");
        c->wrong += auth_check(c->auth, SOME_KEY, &who, NULL) == 0;
        c->checks++;
    }
    return NULL;
}

static void test_keys_come_and_go_while_others_are_checked(void **state)
{
    (void)state;
    struct both b = both_new(NULL);
    char key[ID_KEY_LEN + 1], id[AUTH_ID_LEN + 1];
    assert_int_equal(auth_create(b.auth, "default", NULL, AUTH_OPERATOR, key, id, NULL), 0);

    _Atomic int stop = 0;
    pthread_t threads[4];
    struct checking c[4];
    for (int i = 0; i < 4; i++) {
        c[i] = (struct checking){.auth = b.auth, .key = key, .stop = &stop};
        assert_int_equal(pthread_create(&threads[i], NULL, check_all_the_time, &c[i]), 0);
    }

    for (int i = 0; i < 100; i++) {
        char other[ID_KEY_LEN + 1], other_id[AUTH_ID_LEN + 1];
        assert_int_equal(auth_create(b.auth, "other", NULL, AUTH_OPERATOR, other, other_id, NULL),
                         0);
        accepted(b.auth, other, "other", other_id);
        assert_int_equal(auth_revoke(b.auth, other_id, NULL), 0);
        refused(b.auth, other, "revoked");
    }

    atomic_store(&stop, 1);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(c[i].wrong, 0);
    }
    both_free(&b);
}

static void test_admin_keys_are_told_from_others(void **state)
{
    static const char extra[] = ID_KEY_PREFIX "0123456789abcdef0123456789abcdef01234567";
    struct both b = both_new(extra);
    char key[ID_KEY_LEN + 1], admin[ID_KEY_LEN + 1], id[AUTH_ID_LEN + 1];
    struct auth_who who;
    (void)state;

    assert_int_equal(auth_create(b.auth, "default", NULL, AUTH_OPERATOR, key, id, NULL), 0);
    assert_int_equal(auth_create(b.auth, "ops", NULL, AUTH_ADMIN, admin, id, NULL), 0);
    assert_int_equal(auth_check(b.auth, key, &who, NULL), 0);
    assert_int_not_equal(who.role, AUTH_ADMIN);
    assert_int_equal(auth_check(b.auth, extra, &who, NULL), 0);
    assert_int_not_equal(who.role, AUTH_ADMIN);
    assert_int_equal(auth_check(b.auth, admin, &who, NULL), 0);
    assert_int_equal(who.role, AUTH_ADMIN);

    char reader[ID_KEY_LEN + 1], reader_id[AUTH_ID_LEN + 1];
    assert_int_equal(auth_create(b.auth, "ops", NULL, AUTH_READER, reader, reader_id, NULL), 0);
    assert_int_equal(auth_check(b.auth, reader, &who, NULL), 0);
    assert_int_equal(who.role, AUTH_READER);

    /* It stays so when others write the row again, and ends with the key. */
    assert_int_equal(auth_revoke(b.auth, id, NULL), 0);
    assert_int_equal(auth_check(b.auth, admin, &who, NULL), -1);
    both_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_key_opens_its_tenant_until_it_is_revoked),
        cmocka_unit_test(test_what_is_no_key_is_refused),
        cmocka_unit_test(test_the_key_of_the_environment_is_accepted),
        cmocka_unit_test(test_the_list_and_the_store_have_no_keys),
        cmocka_unit_test(test_tenants_and_labels_are_checked),
        cmocka_unit_test(test_keys_of_another_process_hold_soon),
        cmocka_unit_test(test_unknown_keys_do_not_make_the_store_work),
        cmocka_unit_test(test_a_store_that_fails_locks_nobody_out),
        cmocka_unit_test(test_the_time_of_use_is_stored_now_and_then),
        cmocka_unit_test(test_many_keys_are_told_apart),
        cmocka_unit_test(test_keys_come_and_go_while_others_are_checked),
        cmocka_unit_test(test_admin_keys_are_told_from_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
