/* store_place: a directory for a store, and what its tests count in it. */
#pragma once

#include "unit.h"

#include "base/err.h"
#include "store/sqlite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct place {
    char dir[64];
};

static inline int place_setup(void **state)
{
    struct place *p = calloc(1, sizeof *p);
    snprintf(p->dir, sizeof p->dir, "/tmp/paddock-sqlite-XXXXXX");
    *state = p;
    return mkdtemp(p->dir) ? 0 : -1;
}

static inline int place_teardown(void **state)
{
    struct place *p = *state;
    static const char *const names[] = {"paddock.db", "paddock.db-wal", "paddock.db-shm",
                                        "paddock.lock", "filler"};
    char path[128];
    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", p->dir, names[i]);
        unlink(path);
    }
    int failed = rmdir(p->dir);
    free(p);
    return failed;
}

static inline const char *in_place(void **state, const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", ((struct place *)*state)->dir, name);
    return path;
}

static inline struct store *open_or_fail(const char *dir, int exclusive)
{
    struct pd_err e = {0};
    struct store *s = store_sqlite_open(dir, exclusive, &e);
    if (!s)
        fail_msg("open: %s", e.msg);
    return s;
}

static inline struct process_row process_of(uint64_t n, const char *session)
{
    struct process_row r = {.session = session, .command = "sleep 1", .started_ms = n};
    memcpy(r.id, &n, sizeof n);
    return r;
}

/* What a callback has seen. */
struct tally {
    unsigned count;
    uint64_t sum, last;
    int in_order;
    unsigned stop_at;
    struct store *store; /* deletes what it sees */
};

static inline int tally_process(const struct process_row *r, void *arg)
{
    struct tally *t = arg;
    t->count++;
    t->sum += r->started_ms;
    t->in_order &= r->started_ms > t->last;
    t->last = r->started_ms;
    if (t->store)
        assert_int_equal(t->store->delete_process(t->store, r->id, NULL), 0);
    return t->stop_at && t->count == t->stop_at;
}

static inline int tally_session(const struct session_row *r, void *arg)
{
    struct tally *t = arg;
    t->count++;
    t->sum += r->created_ms;
    return 0;
}

static inline int tally_key(const struct key_row *r, void *arg)
{
    struct tally *t = arg;
    t->count++;
    t->sum += r->created_ms;
    t->last = r->revoked_ms;
    return 0;
}

static inline struct tally count_processes(struct store *s)
{
    struct tally t = {.in_order = 1};
    assert_int_equal(s->each_process(s, tally_process, &t, NULL), 0);
    return t;
}

static inline unsigned count_sessions(struct store *s)
{
    struct tally t = {0};
    assert_int_equal(s->each_session(s, tally_session, &t, NULL), 0);
    return t.count;
}

#define PLACED(test) cmocka_unit_test_setup_teardown(test, place_setup, place_teardown)
