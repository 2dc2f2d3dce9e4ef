#include "unit.h"

#include "access/logins.h"
#include "base/err.h"
#include "store/sqlite.h"
#include "store/store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOW UINT64_C(1767323045678)

struct place {
    struct store *store;
    struct auth *auth;
    struct logins *logins;
    struct auth_who who;
};

static struct place place_new(void)
{
    struct place p = {.store = store_sqlite_open(":memory:", 0, NULL)};
    char key[ID_KEY_LEN + 1], id[AUTH_ID_LEN + 1];
    assert_non_null(p.store);
    p.auth = auth_new(p.store, NULL, NULL);
    assert_non_null(p.auth);
    assert_int_equal(auth_create(p.auth, "acme", NULL, AUTH_OPERATOR, 0, key, id, NULL), 0);
    assert_int_equal(auth_check(p.auth, key, &p.who, NULL), 0);
    p.logins = logins_new(p.store, p.auth, NULL);
    assert_non_null(p.logins);
    return p;
}

static void place_free(struct place *p)
{
    logins_free(p->logins);
    auth_free(p->auth);
    p->store->free(p->store);
}

static struct login begin(struct place *p, uint64_t now)
{
    struct login made;
    struct pd_err e = {0};
    if (logins_begin(p->logins, &p->who, now, &made, &e))
        fail_msg("refused: %s", e.msg);
    return made;
}

static unsigned logged_in(struct place *p, uint64_t now)
{
    static char ids[LOGINS_MAX][AUTH_ID_LEN + 1];
    unsigned count = logins_keys(p->logins, now, ids);
    for (unsigned i = 0; i < count; i++)
        assert_string_equal(ids[i], p->who.key_id);
    return count;
}

static void good(struct place *p, const struct login *l, uint64_t now)
{
    struct auth_who who;
    struct pd_err e = {0};
    if (logins_check(p->logins, l->session, l->proof, now, &who, &e))
        fail_msg("refused: %s", e.msg);
    assert_string_equal(who.tenant, "acme");
}

static void bad(struct place *p, const char *session, const char *proof, uint64_t now)
{
    struct auth_who who = {.tenant = "untouched"};
    struct pd_err e = {0};
    assert_int_equal(logins_check(p->logins, session, proof, now, &who, &e), -1);
    assert_int_equal(e.code, PD_UNAUTHENTICATED);
    assert_string_equal(who.tenant, "untouched");
}

static void test_neither_secret_opens_anything_alone(void **state)
{
    (void)state;
    struct place p = place_new();
    struct login one = begin(&p, NOW), two = begin(&p, NOW);

    good(&p, &one, NOW);
    good(&p, &two, NOW);
    bad(&p, one.session, "", NOW);
    bad(&p, one.session, NULL, NOW);
    bad(&p, "", one.proof, NOW);
    bad(&p, NULL, one.proof, NOW);
    bad(&p, one.session, two.proof, NOW);
    bad(&p, two.session, one.proof, NOW);
    bad(&p, one.proof, one.session, NOW);
    bad(&p, one.session, one.session, NOW);

    /* Nor does what the store has, nor another way to write the same number. */
    char upper[LOGIN_SECRET_LEN + 1];
    for (int i = 0; i <= LOGIN_SECRET_LEN; i++)
        upper[i] = (char)(one.session[i] >= 'a' ? one.session[i] - 32 : one.session[i]);
    if (strcmp(upper, one.session) != 0)
        bad(&p, upper, one.proof, NOW);
    place_free(&p);
}

static void test_a_login_ends_by_itself(void **state)
{
    (void)state;
    struct place p = place_new();
    struct login l = begin(&p, NOW);

    good(&p, &l, NOW + LOGIN_IDLE_MS - 1);
    uint64_t at = NOW + LOGIN_IDLE_MS - 1;
    assert_int_equal(logged_in(&p, at + LOGIN_IDLE_MS - 1), 1);
    assert_int_equal(logged_in(&p, at + LOGIN_IDLE_MS), 0);
    bad(&p, l.session, l.proof, at + LOGIN_IDLE_MS);

    /* In use it lives longer, but not for ever. */
    while (at + LOGIN_IDLE_MS / 2 < NOW + LOGIN_LIFE_MS)
        good(&p, &l, at += LOGIN_IDLE_MS / 2);
    bad(&p, l.session, l.proof, NOW + LOGIN_LIFE_MS);
    assert_true(l.expires_ms == NOW + LOGIN_LIFE_MS);
    place_free(&p);
}

static void test_a_login_ends_with_its_key(void **state)
{
    (void)state;
    struct place p = place_new();
    struct login l = begin(&p, NOW);
    good(&p, &l, NOW);
    assert_int_equal(auth_revoke(p.auth, p.who.key_id, NULL), 0);
    bad(&p, l.session, l.proof, NOW);
    place_free(&p);
}

static void test_logins_outlive_the_daemon_and_their_end_does_too(void **state)
{
    (void)state;
    struct place p = place_new();
    struct login stays = begin(&p, NOW), goes = begin(&p, NOW);
    assert_int_equal(logged_in(&p, NOW), 2);
    assert_int_equal(logins_end(p.logins, goes.session, NULL), 0);
    assert_int_equal(logged_in(&p, NOW), 1);
    assert_int_equal(logins_end(p.logins, goes.session, NULL), 0);
    assert_int_equal(logins_end(p.logins, "nonsense", NULL), 0);

    logins_free(p.logins);
    p.logins = logins_new(p.store, p.auth, NULL);
    assert_non_null(p.logins);
    good(&p, &stays, NOW);
    bad(&p, goes.session, goes.proof, NOW);

    /* The store has none of the secrets. */
    static char value[LOGINS_MAX * 128];
    ptrdiff_t len = p.store->get_value(p.store, "console_logins", value, sizeof value, NULL);
    assert_true(len > 0);
    assert_null(memmem(value, (size_t)len, stays.session, LOGIN_SECRET_LEN));
    uint8_t raw[LOGIN_SECRET_LEN / 2];
    assert_int_equal(hex_decode(stays.session, raw, sizeof raw), 0);
    assert_null(memmem(value, (size_t)len, raw, sizeof raw));
    assert_int_equal(hex_decode(stays.proof, raw, sizeof raw), 0);
    assert_null(memmem(value, (size_t)len, raw, sizeof raw));
    place_free(&p);
}

static void test_a_value_that_is_not_ours_is_nobodys_login(void **state)
{
    (void)state;
    struct place p = place_new();
    logins_free(p.logins);
    assert_int_equal(p.store->put_value(p.store, "console_logins", "rubbish", 7, NULL), 0);
    p.logins = logins_new(p.store, p.auth, NULL);
    assert_non_null(p.logins);
    struct login l = begin(&p, NOW);
    good(&p, &l, NOW);
    place_free(&p);
}

static void test_a_key_has_so_many_logins_and_the_idlest_makes_room(void **state)
{
    (void)state;
    struct place p = place_new();
    struct login first = begin(&p, NOW), second = begin(&p, NOW + 1);
    for (unsigned i = 2; i < LOGINS_OF_KEY; i++)
        (void)begin(&p, NOW + i);
    good(&p, &first, NOW + 3600000); /* the second has rested for longest now */
    struct login last = begin(&p, NOW + 3600001);
    good(&p, &first, NOW + 3600001);
    good(&p, &last, NOW + 3600001);
    bad(&p, second.session, second.proof, NOW + 3600001);
    place_free(&p);
}

static void test_all_keys_together_have_a_limit(void **state)
{
    (void)state;
    struct place p = place_new();
    struct login made;
    struct pd_err e = {0};
    struct auth_who who = p.who;
    for (unsigned i = 0; i < LOGINS_MAX; i++) {
        who.key_hash[0] = (uint8_t)i;
        who.key_hash[1] = (uint8_t)(i >> 8);
        assert_int_equal(logins_begin(p.logins, &who, NOW, &made, &e), 0);
    }

    who.key_hash[2] ^= 1;
    assert_int_equal(logins_begin(p.logins, &who, NOW, &made, &e), -1);
    assert_int_equal(e.code, PD_CAPACITY);

    /* What has ended makes room. */
    assert_int_equal(logins_begin(p.logins, &who, NOW + LOGIN_IDLE_MS, &made, &e), 0);
    place_free(&p);
}

static void redeemed(struct place *p, const char *code, uint64_t now, int result)
{
    struct auth_who who = {.tenant = "untouched"};
    struct pd_err e = {0};
    assert_int_equal(logins_redeem(p->logins, code, now, &who, &e), result);
    assert_string_equal(who.tenant, result ? "untouched" : "acme");
    if (result)
        assert_int_equal(e.code, PD_UNAUTHENTICATED);
}

static void test_a_code_is_good_once_and_for_a_minute(void **state)
{
    (void)state;
    struct place p = place_new();
    char one[LOGIN_SECRET_LEN + 1], two[LOGIN_SECRET_LEN + 1], old[LOGIN_SECRET_LEN + 1];
    logins_offer(p.logins, &p.who, NOW, one);
    logins_offer(p.logins, &p.who, NOW, two);
    logins_offer(p.logins, &p.who, NOW, old);

    redeemed(&p, one, NOW, 0);
    redeemed(&p, one, NOW, -1);
    redeemed(&p, two, NOW + LOGIN_CODE_MS - 1, 0);
    redeemed(&p, old, NOW + LOGIN_CODE_MS, -1);
    redeemed(&p, old, NOW, -1); /* it was tried */
    redeemed(&p, NULL, NOW, -1);
    redeemed(&p, "", NOW, -1);
    redeemed(&p, "0000000000000000000000000000000000000000000000000000000000000000", NOW, -1);

    /* The oldest makes room, and a key that was revoked has none. */
    logins_offer(p.logins, &p.who, NOW, old);
    for (unsigned i = 0; i < LOGIN_CODES_MAX; i++)
        logins_offer(p.logins, &p.who, NOW + 1, one);
    redeemed(&p, old, NOW + 1, -1);
    assert_int_equal(auth_revoke(p.auth, p.who.key_id, NULL), 0);
    redeemed(&p, one, NOW + 1, -1);
    place_free(&p);
}

#define RACERS 8
#define ROUNDS 500

struct race {
    struct place *p;
    pthread_barrier_t start;
    char code[LOGIN_SECRET_LEN + 1];
    _Atomic unsigned won;
};

static void *racer(void *arg)
{
    struct race *r = arg;
    for (int i = 0; i < ROUNDS; i++) {
        struct auth_who who;
        pthread_barrier_wait(&r->start);
        if (logins_redeem(r->p->logins, r->code, NOW, &who, NULL) == 0)
            r->won++;
        pthread_barrier_wait(&r->start);
    }
    return NULL;
}

static void test_of_many_who_have_a_code_one_gets_in(void **state)
{
    (void)state;
    struct place p = place_new();
    struct race r = {.p = &p};
    pthread_t threads[RACERS];
    pthread_barrier_init(&r.start, NULL, RACERS + 1);
    for (int i = 0; i < RACERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, racer, &r), 0);

    for (unsigned i = 0; i < ROUNDS; i++) {
        logins_offer(p.logins, &p.who, NOW, r.code);
        pthread_barrier_wait(&r.start);
        pthread_barrier_wait(&r.start);
        assert_int_equal(r.won, i + 1);
    }

    for (int i = 0; i < RACERS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&r.start);
    place_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_neither_secret_opens_anything_alone),
        cmocka_unit_test(test_a_login_ends_by_itself),
        cmocka_unit_test(test_a_login_ends_with_its_key),
        cmocka_unit_test(test_logins_outlive_the_daemon_and_their_end_does_too),
        cmocka_unit_test(test_a_value_that_is_not_ours_is_nobodys_login),
        cmocka_unit_test(test_a_key_has_so_many_logins_and_the_idlest_makes_room),
        cmocka_unit_test(test_all_keys_together_have_a_limit),
        cmocka_unit_test(test_a_code_is_good_once_and_for_a_minute),
        cmocka_unit_test(test_of_many_who_have_a_code_one_gets_in),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
