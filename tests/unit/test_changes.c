/* News of sandboxes: each change is told once and as it is now, to its tenant alone; a watch that
 * is not read is told that it has missed some; and many who change at once lose nothing. */
#include "world.h"

#include <poll.h>

#define THREADS 4
#define ROUNDS  5000u

static struct daemon *begin(void **state)
{
    return daemon_begin(world_new(), ((struct place *)*state)->dir, 0, NULL);
}

/* One that is remembered as gone: it needs no box. Held. */
static struct session *put(struct daemon *d, const char *tenant)
{
    struct session *s = session_new(d->all, d->providers.list[0]);
    assert_non_null(s);
    id_sandbox(s->info.id);
    snprintf(s->info.tenant, sizeof s->info.tenant, "%s", tenant);
    s->info.ended_ms = time_now_ms();
    assert_int_equal(sessions_register(s, LIFE_GONE), 0);
    return s;
}

static struct change_watch *watch(struct daemon *d, const char *tenant)
{
    struct change_watch *w = calloc(1, sizeof *w);
    assert_non_null(w);
    assert_int_equal(change_watch_begin(w, d->all, tenant, NULL), 0);
    return w;
}

static void unwatch(struct daemon *d, struct change_watch *w)
{
    change_watch_end(w, d->all);
    free(w);
}

static void expect(struct daemon *d, struct change_watch *w, enum change_kind wanted,
                   const struct session *s)
{
    struct session *found = NULL;
    char id[SESSION_ID_LEN + 1] = "";

    assert_int_equal(change_watch_next(w, d->all, &found, id), wanted);
    if (wanted == CHANGE_MADE)
        assert_ptr_equal(found, s);
    if (wanted == CHANGE_REMOVED)
        assert_string_equal(id, s->info.id);
    session_unref(found);
}

static bool is_told(const struct change_watch *w)
{
    struct pollfd p = {.fd = w->event, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void test_changes_are_told_once_and_to_their_tenant(void **state)
{
    struct daemon *d = begin(state);
    struct session *early = put(d, "acme"); /* nobody looks yet */
    struct change_watch *mine = watch(d, "acme"), *other = watch(d, "other");

    expect(d, mine, CHANGE_NONE, NULL);
    assert_false(is_told(mine));
    struct session *a = put(d, "acme"), *b = put(d, "acme");
    assert_true(is_told(mine));
    assert_false(is_told(other));

    /* Of three changes the last. */
    session_changed(a);
    session_changed(a);
    expect(d, mine, CHANGE_MADE, b);
    expect(d, mine, CHANGE_MADE, a);
    expect(d, mine, CHANGE_NONE, NULL);
    assert_false(is_told(mine));
    expect(d, other, CHANGE_NONE, NULL);

    sessions_forget(b);
    expect(d, mine, CHANGE_REMOVED, b);
    expect(d, mine, CHANGE_NONE, NULL);

    /* Uses are noted once a second. */
    for (int i = 0; i < 100; i++) {
        session_used(early);
        early->use_noted_ms =
            early->info.last_used_ms; /* within one second, however slow this is */
    }
    expect(d, mine, CHANGE_MADE, early);
    expect(d, mine, CHANGE_NONE, NULL);

    unwatch(d, mine);
    unwatch(d, other);
    session_unref(early);
    session_unref(a);
    session_unref(b);
    daemon_end(d);
}

static void test_a_watch_that_is_not_read_has_missed_some(void **state)
{
    struct daemon *d = begin(state);
    struct session *a = put(d, "acme"), *quiet = put(d, "quiet");
    struct change_watch *slow = watch(d, "acme"), *still = watch(d, "quiet");

    /* As many as are kept are read, one more is not. */
    for (unsigned i = 0; i < CHANGES_KEPT; i++)
        session_changed(a);
    expect(d, slow, CHANGE_MADE, a);
    expect(d, slow, CHANGE_NONE, NULL);
    for (unsigned i = 0; i < CHANGES_KEPT + 1; i++)
        session_changed(a);
    expect(d, slow, CHANGE_MISSED, NULL);
    expect(d, slow, CHANGE_NONE, NULL);
    assert_false(is_told(slow));
    session_changed(a);
    assert_true(is_told(slow));
    expect(d, slow, CHANGE_MADE, a);

    /* Somebody else's changes cost a quiet tenant nothing. */
    assert_false(is_told(still));
    session_changed(quiet);
    expect(d, still, CHANGE_MADE, quiet);
    expect(d, still, CHANGE_NONE, NULL);

    unwatch(d, slow);
    unwatch(d, still);
    session_unref(a);
    session_unref(quiet);
    daemon_end(d);
}

struct changer {
    struct session *s;
    atomic_uint *value; /* what the sandbox is, as far as a viewer is concerned */
};

static void *change(void *arg)
{
    struct changer *c = arg;
    for (unsigned i = 1; i <= ROUNDS; i++) {
        atomic_store(c->value, i);
        session_changed(c->s);
    }
    return NULL;
}

/* Whatever happens at once: who has read all news knows every sandbox as it is. */
static void test_the_last_change_is_never_lost(void **state)
{
    struct daemon *d = begin(state);
    struct session *s[THREADS];
    atomic_uint is[THREADS] = {0};
    unsigned seen[THREADS] = {0};
    struct changer changers[THREADS];
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        s[i] = put(d, "acme");
    struct change_watch *w = watch(d, "acme");
    for (int i = 0; i < THREADS; i++) {
        changers[i] = (struct changer){s[i], &is[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, change, &changers[i]), 0);
    }

    bool done = false;
    while (!done) {
        struct pollfd p = {.fd = w->event, .events = POLLIN};
        struct session *found = NULL;
        char id[SESSION_ID_LEN + 1];
        enum change_kind kind;
        assert_int_equal(poll(&p, 1, 60000), 1);
        while ((kind = change_watch_next(w, d->all, &found, id)) != CHANGE_NONE) {
            assert_int_not_equal(kind, CHANGE_REMOVED);
            for (int i = 0; i < THREADS; i++)
                if (kind == CHANGE_MISSED || found == s[i])
                    seen[i] = atomic_load(&is[i]);
            if (kind == CHANGE_MADE)
                session_unref(found);
        }
        done = true;
        for (int i = 0; i < THREADS; i++)
            done &= seen[i] == ROUNDS;
    }

    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    unwatch(d, w);
    for (int i = 0; i < THREADS; i++)
        session_unref(s[i]);
    daemon_end(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_changes_are_told_once_and_to_their_tenant),
        IN_WORLD(test_a_watch_that_is_not_read_has_missed_some),
        IN_WORLD(test_the_last_change_is_never_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
