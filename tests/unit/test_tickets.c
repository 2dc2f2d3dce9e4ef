#include "unit.h"

#include "access/links.h"
#include "access/tickets.h"
#include "base/err.h"
#include "store/sqlite.h"
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOW     UINT64_C(1767323045678)
#define SANDBOX "abcdefghijklmnopqrst"

struct place {
    struct store *store;
    struct auth *auth;
    struct tickets *tickets;
    struct auth_who who;
};

static struct place place_new(void)
{
    struct place p = {.store = store_sqlite_open(":memory:", 0, NULL)};
    char key[ID_KEY_LEN + 1], id[AUTH_ID_LEN + 1];
    assert_non_null(p.store);
    p.auth = auth_new(p.store, NULL, NULL);
    assert_non_null(p.auth);
    assert_int_equal(auth_create(p.auth, "acme", NULL, AUTH_OPERATOR, key, id, NULL), 0);
    assert_int_equal(auth_check(p.auth, key, &p.who, NULL), 0);
    p.tickets = tickets_new(p.auth, NULL);
    assert_non_null(p.tickets);
    return p;
}

static void place_free(struct place *p)
{
    tickets_free(p->tickets);
    auth_free(p->auth);
    p->store->free(p->store);
}

static void make(struct place *p, uint64_t now, char ret[TICKET_LEN + 1])
{
    char path[] = "/workspace/a b";
    struct ticket what = {.path = path, .user = "user", .sandbox = SANDBOX, .observes = true};
    assert_int_equal(tickets_make(p->tickets, &p->who, &what, now, ret, NULL), 0);
}

static int take(struct place *p, const char *text, uint64_t now)
{
    struct ticket got = {0};
    struct auth_who who;
    struct pd_err e = {0};
    int r = tickets_take(p->tickets, text, now, &who, &got, &e);
    if (r < 0) {
        assert_int_equal(e.code, PD_UNAUTHENTICATED);
        assert_null(strstr(e.msg, text[0] ? text : "?"));
        return r;
    }
    assert_string_equal(who.tenant, "acme");
    assert_string_equal(got.path, "/workspace/a b");
    assert_string_equal(got.sandbox, SANDBOX);
    assert_true(got.observes);

    ticket_done(&got);
    return r;
}

static void test_a_ticket_is_good_once_and_for_a_minute(void **state)
{
    struct place p = place_new();
    char one[TICKET_LEN + 1], two[TICKET_LEN + 1], three[TICKET_LEN + 1];
    (void)state;

    make(&p, NOW, one);
    make(&p, NOW, two);
    make(&p, NOW, three);
    assert_string_not_equal(one, two);
    assert_int_equal(take(&p, one, NOW + 1), 0);
    assert_int_equal(take(&p, one, NOW + 1), -1);
    assert_int_equal(take(&p, two, NOW + TICKET_LIFE_MS - 1), 0);
    assert_int_equal(take(&p, three, NOW + TICKET_LIFE_MS), -1);
    assert_int_equal(take(&p, "", NOW), -1);
    assert_int_equal(take(&p, "nonsense", NOW), -1);
    place_free(&p);
}

static void test_a_ticket_ends_with_its_key(void **state)
{
    struct place p = place_new();
    char one[TICKET_LEN + 1];
    (void)state;

    make(&p, NOW, one);
    assert_int_equal(auth_revoke(p.auth, p.who.key_id, NULL), 0);
    assert_int_equal(take(&p, one, NOW + 1), -1);
    place_free(&p);
}

static void test_a_tenants_oldest_ticket_makes_room_and_nobody_elses(void **state)
{
    struct place p = place_new();
    char first[TICKET_LEN + 1], others[TICKET_LEN + 1], more[TICKET_LEN + 1];
    struct auth_who mine = p.who;
    (void)state;

    make(&p, NOW, first);
    snprintf(p.who.tenant, sizeof p.who.tenant, "other");
    make(&p, NOW, others);
    p.who = mine;
    for (unsigned i = 0; i < TICKETS_OF_TENANT; i++)
        make(&p, NOW + 1 + i, more);
    assert_int_equal(take(&p, first, NOW + 100), -1);
    assert_int_equal(take(&p, others, NOW + 100), 0);
    assert_int_equal(take(&p, more, NOW + 100), 0);
    place_free(&p);
}

/* ---- links ---- */

static struct link link_of(const char *token, const char *tenant, uint64_t made)
{
    struct link l = {.port = 8000, .made_ms = made, .expires_ms = made + 1000};
    link_id(token, l.id);
    snprintf(l.tenant, sizeof l.tenant, "%s", tenant);
    snprintf(l.sandbox, sizeof l.sandbox, SANDBOX);
    return l;
}

static void test_links_are_listed_and_revoked_also_after_a_restart(void **state)
{
    struct store *store = store_sqlite_open(":memory:", 0, NULL);
    struct links *l = links_new(store, NULL);
    struct link a = link_of("token-a", "acme", NOW), b = link_of("token-b", "acme", NOW + 1);
    struct link found[4];
    struct pd_err e;
    (void)state;

    assert_non_null(l);
    assert_int_equal(links_add(l, &a, NULL), 0);
    assert_int_equal(links_add(l, &b, NULL), 0);
    assert_int_equal(links_add(l, &b, &e), -1);
    assert_int_equal(e.code, PD_CONFLICT);
    assert_int_equal(links_list(l, "acme", SANDBOX, NOW, found, 4), 2);
    assert_string_equal(found[0].id, b.id);
    assert_int_equal(links_list(l, "other", SANDBOX, NOW, found, 4), 0);

    assert_int_equal(links_revoke(l, "other", SANDBOX, a.id, NOW, &e), -1);
    assert_int_equal(e.code, PD_NOT_FOUND);
    assert_false(links_is_revoked(l, a.id));
    assert_int_equal(links_revoke(l, "acme", SANDBOX, a.id, NOW + 2, NULL), 0);
    assert_int_equal(links_revoke(l, "acme", SANDBOX, a.id, NOW + 3, NULL), 0);
    assert_true(links_is_revoked(l, a.id));

    links_free(l);
    l = links_new(store, NULL);
    assert_non_null(l);
    assert_true(links_is_revoked(l, a.id));
    assert_false(links_is_revoked(l, b.id));
    assert_int_equal(links_list(l, "acme", SANDBOX, NOW + 1001, found, 4), 0);

    links_free(l);
    assert_int_equal(store->put_value(store, "preview_links", "rubbish", 7, NULL), 0);
    l = links_new(store, NULL);
    assert_non_null(l);
    assert_int_equal(links_list(l, "acme", SANDBOX, NOW, found, 4), 0);
    links_free(l);
    store->free(store);
}

static void test_a_tenant_has_so_many_links_until_they_are_over(void **state)
{
    struct store *store = store_sqlite_open(":memory:", 0, NULL);
    struct links *l = links_new(store, NULL);
    struct pd_err e;
    char token[32];
    (void)state;

    for (unsigned i = 0; i < LINKS_OF_TENANT; i++) {
        snprintf(token, sizeof token, "token-%u", i);
        struct link one = link_of(token, "acme", NOW);
        assert_int_equal(links_add(l, &one, NULL), 0);
    }
    struct link more = link_of("more", "acme", NOW), other = link_of("more", "other", NOW);
    assert_int_equal(links_add(l, &more, &e), -1);
    assert_int_equal(e.code, PD_CAPACITY);
    assert_int_equal(links_add(l, &other, NULL), 0);
    more.made_ms = NOW + 1000;
    more.expires_ms = NOW + 2000;
    assert_int_equal(links_add(l, &more, NULL), 0);
    links_free(l);
    store->free(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_ticket_is_good_once_and_for_a_minute),
        cmocka_unit_test(test_a_ticket_ends_with_its_key),
        cmocka_unit_test(test_a_tenants_oldest_ticket_makes_room_and_nobody_elses),
        cmocka_unit_test(test_links_are_listed_and_revoked_also_after_a_restart),
        cmocka_unit_test(test_a_tenant_has_so_many_links_until_they_are_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
