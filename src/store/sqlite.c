/* How this works
 *
 * A table of columns per kind of row says which member goes where; statements are made from it, and
 * one function binds and one reads any row. Reading goes in pages: PAGE rows are copied under the
 * lock, and the callback sees the copies without it. So a callback may take its time or call the
 * store, and nobody's locks are held across it. */
#include "store/sqlite.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "store/sqlite_db.h"

#include <errno.h>

#define PAGE         128
#define COLUMNS_MAX  40
#define SQL_MAX      4096
#define TABLE_COUNT  5
#define COUNT(array) (sizeof(array) / sizeof *(array))

enum kind { TEXT, BYTES, ARRAY, U64, INT };
enum { FIXED = 1, GROWS = 2 }; /* an upsert leaves it alone; ... keeps the larger one */

struct column {
    const char *name;
    enum kind kind;
    size_t at;  /* of the member */
    size_t len; /* BYTES: where its length is; ARRAY: its length */
    int flags;
};

struct table {
    const char *name, *what;
    const struct column *columns; /* the first is what rows are found by */
    unsigned count;
};

#define S(member) offsetof(struct session_row, member)
static const struct column session_columns[] = {
    {"id", TEXT, S(id), 0, FIXED},
    {"box_id", ARRAY, S(box_id), 16, 0},
    {"tenant", TEXT, S(tenant), 0, 0},
    {"user_id", TEXT, S(user_id), 0, 0},
    {"thread_id", TEXT, S(thread_id), 0, 0},
    {"template_name", TEXT, S(template_name), 0, 0},
    {"provider", TEXT, S(provider), 0, 0},
    {"reason", TEXT, S(reason), 0, 0},
    {"policy", TEXT, S(policy), 0, 0},
    {"metadata", TEXT, S(metadata), 0, 0},
    {"env", BYTES, S(env), S(env_len), 0},
    {"cwd", TEXT, S(cwd), 0, 0},
    {"spec", BYTES, S(spec), S(spec_len), 0},
    {"root_name", TEXT, S(root_name), 0, 0},
    {"key", TEXT, S(key), 0, 0},
    {"key_hash", U64, S(key_hash), 0, 0},
    {"replaces", TEXT, S(replaces), 0, 0},
    {"state", INT, S(state), 0, 0},
    {"end_cause", INT, S(end), 0, 0},
    {"end_reason", TEXT, S(end_reason), 0, 0},
    {"created_ms", U64, S(created_ms), 0, 0},
    {"expires_ms", U64, S(expires_ms), 0, 0},
    {"last_used_ms", U64, S(last_used_ms), 0, 0},
    {"ended_ms", U64, S(ended_ms), 0, 0},
    {"idle_timeout_ms", U64, S(idle_timeout_ms), 0, 0},
    {"max_life_ms", U64, S(max_life_ms), 0, 0},
    {"paused_ms", U64, S(paused_ms), 0, 0},
    {"from_pool", INT, S(from_pool), 0, 0},
    {"rung", INT, S(rung), 0, 0},
    {"note", TEXT, S(note), 0, 0},
    {"pause_at_end", INT, S(pause_at_end), 0, 0},
    {"asleep", INT, S(asleep), 0, 0},
    {"mode", INT, S(mode), 0, 0},
    {"arm", TEXT, S(arm), 0, 0},
    {"other_root", TEXT, S(other_root), 0, 0},
    {"network", TEXT, S(network), 0, 0},
    {"made_by", TEXT, S(made_by), 0, 0},
};
#undef S

#define P(member) offsetof(struct process_row, member)
static const struct column process_columns[] = {
    {"id", ARRAY, P(id), 16, FIXED},
    /* FIXED also because it is in an index, whose page would be written again otherwise. */
    {"session", TEXT, P(session), 0, FIXED},
    {"command", TEXT, P(command), 0, 0},
    {"key", TEXT, P(key), 0, 0},
    {"key_hash", U64, P(key_hash), 0, 0},
    {"group_id", INT, P(group), 0, 0},
    {"pid", INT, P(pid), 0, 0},
    {"flags", INT, P(flags), 0, 0},
    {"exited", INT, P(exited), 0, 0},
    {"status", INT, P(status), 0, 0},
    {"stop", INT, P(stop), 0, 0},
    {"started_ms", U64, P(started_ms), 0, 0},
    {"ended_ms", U64, P(ended_ms), 0, 0},
    {"deadline_ms", U64, P(deadline_ms), 0, 0},
    {"duration_us", U64, P(duration_us), 0, 0},
    {"cpu_usec", U64, P(cpu_usec), 0, 0},
    {"max_rss", U64, P(max_rss), 0, 0},
    {"spool_max", U64, P(spool_max), 0, 0},
    {"why", TEXT, P(why), 0, 0},
    {"why_code", INT, P(why_code), 0, 0},
    {"note", TEXT, P(note), 0, 0},
};
#undef P

#define K(member) offsetof(struct key_row, member)
static const struct column key_columns[] = {
    {"id", TEXT, K(id), 0, FIXED},
    {"hash", ARRAY, K(hash), 32, FIXED},
    {"tenant", TEXT, K(tenant), 0, FIXED},
    {"label", TEXT, K(label), 0, 0},
    {"created_ms", U64, K(created_ms), 0, FIXED},
    {"last_used_ms", U64, K(last_used_ms), 0, GROWS},
    {"revoked_ms", U64, K(revoked_ms), 0, GROWS},
    {"is_admin", INT, K(role), 0, FIXED}, /* older than roles: 0 and 1 are theirs */
    {"expires_ms", U64, K(expires_ms), 0, FIXED},
};
#undef K

#define N(member) offsetof(struct snapshot_row, member)
static const struct column snapshot_columns[] = {
    {"id", TEXT, N(id), 0, FIXED},
    {"tenant", TEXT, N(tenant), 0, FIXED},
    {"name", TEXT, N(name), 0, 0},
    {"sandbox", TEXT, N(sandbox), 0, 0},
    {"template_name", TEXT, N(template_name), 0, 0},
    {"provider", TEXT, N(provider), 0, 0},
    {"profile", INT, N(profile), 0, 0},
    {"state", INT, N(state), 0, 0},
    {"created_ms", U64, N(created_ms), 0, 0},
    {"kind", INT, N(kind), 0, FIXED},
    {"note", TEXT, N(note), 0, 0},
};
#undef N

#define B(member) offsetof(struct build_row, member)
static const struct column build_columns[] = {
    {"id", TEXT, B(id), 0, FIXED},
    {"template_id", TEXT, B(template_id), 0, FIXED},
    {"tenant", TEXT, B(tenant), 0, FIXED},
    {"name", TEXT, B(name), 0, FIXED},
    {"tags", TEXT, B(tags), 0, 0},
    {"made_by", TEXT, B(made_by), 0, 0},
    {"provider", TEXT, B(provider), 0, 0},
    {"base", TEXT, B(base), 0, 0},
    {"settings", TEXT, B(settings), 0, 0},
    {"snapshot", TEXT, B(snapshot), 0, 0},
    {"step", TEXT, B(step), 0, 0},
    {"message", TEXT, B(message), 0, 0},
    {"state", INT, B(state), 0, 0},
    {"profile", INT, B(profile), 0, 0},
    {"cpu_milli", U64, B(cpu_milli), 0, 0},
    {"memory", U64, B(memory), 0, 0},
    {"size", U64, B(size), 0, 0},
    {"created_ms", U64, B(created_ms), 0, 0},
    {"updated_ms", U64, B(updated_ms), 0, 0},
    {"finished_ms", U64, B(finished_ms), 0, 0},
};
#undef B

static const struct table tables[TABLE_COUNT] = {
    {"sessions", "a session", session_columns, COUNT(session_columns)},
    {"processes", "a process", process_columns, COUNT(process_columns)},
    {"keys", "a key", key_columns, COUNT(key_columns)},
    {"snapshots", "a snapshot", snapshot_columns, COUNT(snapshot_columns)},
    {"builds", "a build", build_columns, COUNT(build_columns)},
};
enum { SESSIONS, PROCESSES, KEYS, SNAPSHOTS, BUILDS };

/* Numbers of prepared statements: three per table, and the rest. */
enum { PUT = 0, PAGED = 1, DELETE = 2 };
#define STATEMENT(table, verb) ((int)(3 * (table) + (verb)))
enum { TOUCH_KEY = 3 * TABLE_COUNT, PUT_VALUE, GET_VALUE, VERSION, STATEMENT_COUNT };
_Static_assert(STATEMENT_COUNT <= DB_STATEMENTS, "room for every statement");
_Static_assert(COUNT(session_columns) <= COLUMNS_MAX, "room for every column");

struct sqlite {
    struct store store; /* first: what the callers hold */
    struct db db;
};

static struct db *db_of(struct store *s)
{
    return s->state;
}

static void put_names(struct buf *b, const struct table *t, const char *prefix)
{
    for (unsigned i = 0; i < t->count; i++)
        buf_printf(b, "%s%s%s", i ? "," : "", prefix, prefix[0] ? "" : t->columns[i].name);
}

/* INSERT, and of what a row has already only that may change which is not FIXED. */
static void put_upsert(struct buf *sql, const struct table *t)
{
    buf_printf(sql, "INSERT INTO %s(", t->name);
    put_names(sql, t, "");
    buf_puts(sql, ") VALUES(");
    put_names(sql, t, "?");
    buf_printf(sql, ") ON CONFLICT(%s) DO UPDATE SET ", t->columns[0].name);

    const char *comma = "";
    for (unsigned i = 0; i < t->count; i++) {
        const char *name = t->columns[i].name;
        if (t->columns[i].flags & FIXED)
            continue;

        if (t->columns[i].flags & GROWS)
            buf_printf(sql, "%s%s=max(%s,excluded.%s)", comma, name, name, name);
        else
            buf_printf(sql, "%s%s=excluded.%s", comma, name, name);
        comma = ",";
    }
}

static sqlite3_stmt *statement(struct db *d, unsigned table, int verb, struct pd_err *e)
{
    int number = STATEMENT(table, verb);
    if (d->statements[number])
        return d->statements[number];

    const struct table *t = &tables[table];
    auto_buf sql = BUF_INIT(SQL_MAX);
    if (verb == PUT) {
        put_upsert(&sql, t);
    } else if (verb == PAGED) {
        buf_puts(&sql, "SELECT ");
        put_names(&sql, t, "");
        buf_printf(&sql, ",seq FROM %s WHERE seq>? ORDER BY seq LIMIT %d", t->name, PAGE);
    } else {
        buf_printf(&sql, "DELETE FROM %s WHERE %s=?", t->name, t->columns[0].name);
    }

    const char *text = buf_cstr(&sql);
    if (!text || sql.overflow) {
        pd_fail(e, PD_CAPACITY, "prepare a statement: out of memory");
        return NULL;
    }
    return db_statement(d, number, text, e);
}

static int bind_row(sqlite3_stmt *s, const struct table *t, const void *row)
{
    for (unsigned i = 0; i < t->count; i++) {
        const struct column *c = &t->columns[i];
        const char *at = (const char *)row + c->at;
        int rc = SQLITE_OK, number = (int)i + 1;
        const char *data;

        switch (c->kind) {
        case TEXT:
            memcpy(&data, at, sizeof data);
            rc = sqlite3_bind_text(s, number, data ? data : "", -1, SQLITE_STATIC);
            break;
        case BYTES: {
            size_t len;
            memcpy(&data, at, sizeof data);
            memcpy(&len, (const char *)row + c->len, sizeof len);
            rc = sqlite3_bind_blob64(s, number, len ? data : "", len, SQLITE_STATIC);
            break;
        }
        case ARRAY:
            rc = sqlite3_bind_blob64(s, number, at, c->len, SQLITE_STATIC);
            break;
        case U64: {
            int64_t value; /* the same 64 bits, back and forth */
            memcpy(&value, at, sizeof value);
            rc = sqlite3_bind_int64(s, number, value);
            break;
        }
        case INT: {
            int value;
            memcpy(&value, at, sizeof value);
            rc = sqlite3_bind_int(s, number, value);
            break;
        }
        }

        if (rc)
            return rc;
    }
    return SQLITE_OK;
}

/* A row that was read: the struct, and behind it the bytes that its pointers point to. */
struct copy {
    struct copy *next;
    union {
        struct session_row session;
        struct process_row process;
        struct key_row key;
        struct snapshot_row snapshot;
        struct build_row build;
    } row;
    char bytes[];
};

static void copies_free(struct copy *first)
{
    while (first) {
        struct copy *next = first->next;
        free(first);
        first = next;
    }
}

/* NULL: out of memory. A value of another type or length than its column's (a damaged file) becomes
 * zeroes: SQLite converts, and nothing is read past what it gives. */
static struct copy *copy_row(sqlite3_stmt *s, const struct table *t)
{
    size_t size = sizeof(struct copy);
    const void *data[COLUMNS_MAX] = {0};
    size_t len[COLUMNS_MAX] = {0};

    for (unsigned i = 0; i < t->count; i++) {
        if (t->columns[i].kind > ARRAY)
            continue;
        /* This order is SQLite's rule: the pointer first, then the length. */
        data[i] = t->columns[i].kind == TEXT ? (const void *)sqlite3_column_text(s, (int)i)
                                             : sqlite3_column_blob(s, (int)i);
        len[i] = data[i] ? (size_t)sqlite3_column_bytes(s, (int)i) : 0;
        size += len[i] + 1;
    }

    struct copy *copy = calloc(1, size);
    if (!copy)
        return NULL;

    char *bytes = copy->bytes;
    for (unsigned i = 0; i < t->count; i++) {
        const struct column *c = &t->columns[i];
        char *at = (char *)&copy->row + c->at;
        switch (c->kind) {
        case BYTES:
            memcpy((char *)&copy->row + c->len, &len[i], sizeof len[i]);
            __attribute__((fallthrough));
        case TEXT:
            if (len[i])
                memcpy(bytes, data[i], len[i]);
            memcpy(at, &bytes, sizeof bytes);
            bytes += len[i] + 1; /* calloc put the NUL there */
            break;
        case ARRAY:
            if (len[i] == c->len)
                memcpy(at, data[i], c->len);
            break;
        case U64: {
            int64_t value = sqlite3_column_int64(s, (int)i);
            memcpy(at, &value, sizeof value);
            break;
        }
        case INT: {
            int value = sqlite3_column_int(s, (int)i);
            memcpy(at, &value, sizeof value);
            break;
        }
        }
    }
    return copy;
}

/* Up to PAGE rows behind `*seq`, which moves on. */
static int read_page(struct db *d, unsigned table, int64_t *seq, struct copy **ret,
                     unsigned *ret_count, struct pd_err *e)
{
    sqlite3_stmt *s = statement(d, table, PAGED, e);
    if (!s)
        return -1;

    struct copy *first = NULL, **end = &first;
    unsigned count = 0;
    sqlite3_bind_int64(s, 1, *seq);
    errno = 0;

    int rc;
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        if (!(*end = copy_row(s, &tables[table]))) {
            rc = SQLITE_NOMEM;
            break;
        }
        end = &(*end)->next;
        *seq = sqlite3_column_int64(s, (int)tables[table].count);
        count++;
    }

    if (rc != SQLITE_DONE)
        db_fail(d, rc, "read the database", e);
    sqlite3_reset(s);
    if (rc != SQLITE_DONE) {
        copies_free(first);
        return -1;
    }

    *ret = first;
    *ret_count = count;
    return 0;
}

static int each_row(struct store *s, unsigned table, int (*each)(const struct copy *c, void *arg),
                    void *arg, struct pd_err *e)
{
    struct db *d = db_of(s);
    int64_t seq = INT64_MIN;
    unsigned count = PAGE;

    while (count == PAGE) {
        struct copy *first = NULL;
        lock_take(&d->lock);
        int failed = read_page(d, table, &seq, &first, &count, e);
        lock_release(&d->lock);
        if (failed)
            return -1;

        int stop = 0;
        for (const struct copy *c = first; c && !stop; c = c->next)
            stop = each(c, arg);
        copies_free(first);
        if (stop)
            break;
    }
    return 0;
}

static int put_row(struct store *s, unsigned table, const void *row, int durable, struct pd_err *e)
{
    struct db *d = db_of(s);
    char what[32];

    snprintf(what, sizeof what, "store %s", tables[table].what);

    lock_take(&d->lock);
    int result = -1;
    sqlite3_stmt *put = statement(d, table, PUT, e);
    if (put) {
        int rc = bind_row(put, &tables[table], row);
        if (rc) {
            sqlite3_clear_bindings(put);
            db_fail(d, rc, what, e);
        } else {
            result = durable ? db_run_durable(d, put, what, e) : db_run(d, put, what, e);
        }
    }
    lock_release(&d->lock);
    return result;
}

static int put_session(struct store *s, const struct session_row *r, struct pd_err *e)
{
    return put_row(s, SESSIONS, r, 0, e);
}

static int put_process(struct store *s, const struct process_row *r, struct pd_err *e)
{
    return put_row(s, PROCESSES, r, 0, e);
}

static int put_key(struct store *s, const struct key_row *r, struct pd_err *e)
{
    return put_row(s, KEYS, r, 1, e);
}

static int put_snapshot(struct store *s, const struct snapshot_row *r, struct pd_err *e)
{
    return put_row(s, SNAPSHOTS, r, 0, e);
}

static int put_build(struct store *s, const struct build_row *r, struct pd_err *e)
{
    return put_row(s, BUILDS, r, 0, e);
}

/* Of a table whose rows are found by a text. */
static int delete_row(struct store *s, unsigned table, const char *id, struct pd_err *e)
{
    struct db *d = db_of(s);
    char what[32];

    snprintf(what, sizeof what, "forget %s", tables[table].what);
    lock_take(&d->lock);
    int result = -1;
    sqlite3_stmt *gone = statement(d, table, DELETE, e);
    if (gone) {
        sqlite3_bind_text(gone, 1, id, -1, SQLITE_STATIC);
        result = db_run(d, gone, what, e);
    }
    lock_release(&d->lock);
    return result;
}

static int delete_session(struct store *s, const char *id, struct pd_err *e)
{
    return delete_row(s, SESSIONS, id, e);
}

static int delete_snapshot(struct store *s, const char *id, struct pd_err *e)
{
    return delete_row(s, SNAPSHOTS, id, e);
}

static int delete_build(struct store *s, const char *id, struct pd_err *e)
{
    return delete_row(s, BUILDS, id, e);
}

static int delete_process(struct store *s, const uint8_t id[16], struct pd_err *e)
{
    struct db *d = db_of(s);

    lock_take(&d->lock);
    int result = -1;
    sqlite3_stmt *gone = statement(d, PROCESSES, DELETE, e);
    if (gone) {
        sqlite3_bind_blob(gone, 1, id, 16, SQLITE_STATIC);
        result = db_run(d, gone, "forget a process", e);
    }
    lock_release(&d->lock);
    return result;
}

static int touch_key(struct store *s, const char *id, uint64_t last_used_ms, struct pd_err *e)
{
    struct db *d = db_of(s);

    lock_take(&d->lock);
    int result = -1;
    sqlite3_stmt *touch = db_statement(
        d, TOUCH_KEY, "UPDATE keys SET last_used_ms=max(last_used_ms,?) WHERE id=?", e);
    if (touch) {
        sqlite3_bind_int64(touch, 1, (int64_t)last_used_ms);
        sqlite3_bind_text(touch, 2, id, -1, SQLITE_STATIC);
        result = db_run(d, touch, "note the use of a key", e);
    }
    lock_release(&d->lock);
    return result;
}

/* The callbacks of the kinds differ in type only. */
struct call {
    union {
        int (*session)(const struct session_row *r, void *arg);
        int (*process)(const struct process_row *r, void *arg);
        int (*key)(const struct key_row *r, void *arg);
        int (*snapshot)(const struct snapshot_row *r, void *arg);
        int (*build)(const struct build_row *r, void *arg);
    } each;
    void *arg;
};

static int call_session(const struct copy *c, void *arg)
{
    const struct call *call = arg;
    return call->each.session(&c->row.session, call->arg);
}

static int call_process(const struct copy *c, void *arg)
{
    const struct call *call = arg;
    return call->each.process(&c->row.process, call->arg);
}

static int call_key(const struct copy *c, void *arg)
{
    const struct call *call = arg;
    return call->each.key(&c->row.key, call->arg);
}

static int call_snapshot(const struct copy *c, void *arg)
{
    const struct call *call = arg;
    return call->each.snapshot(&c->row.snapshot, call->arg);
}

static int call_build(const struct copy *c, void *arg)
{
    const struct call *call = arg;
    return call->each.build(&c->row.build, call->arg);
}

static int each_session(struct store *s, int (*each)(const struct session_row *r, void *arg),
                        void *arg, struct pd_err *e)
{
    struct call call = {.each.session = each, .arg = arg};
    return each_row(s, SESSIONS, call_session, &call, e);
}

static int each_process(struct store *s, int (*each)(const struct process_row *r, void *arg),
                        void *arg, struct pd_err *e)
{
    struct call call = {.each.process = each, .arg = arg};
    return each_row(s, PROCESSES, call_process, &call, e);
}

static int each_key(struct store *s, int (*each)(const struct key_row *r, void *arg), void *arg,
                    struct pd_err *e)
{
    struct call call = {.each.key = each, .arg = arg};
    return each_row(s, KEYS, call_key, &call, e);
}

static int each_snapshot(struct store *s, int (*each)(const struct snapshot_row *r, void *arg),
                         void *arg, struct pd_err *e)
{
    struct call call = {.each.snapshot = each, .arg = arg};
    return each_row(s, SNAPSHOTS, call_snapshot, &call, e);
}

static int each_build(struct store *s, int (*each)(const struct build_row *r, void *arg), void *arg,
                      struct pd_err *e)
{
    struct call call = {.each.build = each, .arg = arg};
    return each_row(s, BUILDS, call_build, &call, e);
}

static int put_value(struct store *s, const char *name, const void *data, size_t len,
                     struct pd_err *e)
{
    struct db *d = db_of(s);

    lock_take(&d->lock);
    int result = -1;
    sqlite3_stmt *put = db_statement(d, PUT_VALUE,
                                     "INSERT INTO named_values(name,data) VALUES(?,?)"
                                     " ON CONFLICT(name) DO UPDATE SET data=excluded.data",
                                     e);
    if (put) {
        sqlite3_bind_text(put, 1, name, -1, SQLITE_STATIC);
        sqlite3_bind_blob64(put, 2, len ? data : "", len, SQLITE_STATIC);
        result = db_run_durable(d, put, "store a value", e);
    }
    lock_release(&d->lock);
    return result;
}

static ptrdiff_t get_value_locked(struct db *d, const char *name, void *out, size_t size,
                                  struct pd_err *e)
{
    sqlite3_stmt *get = db_statement(d, GET_VALUE, "SELECT data FROM named_values WHERE name=?", e);
    if (!get)
        return -1;

    sqlite3_bind_text(get, 1, name, -1, SQLITE_STATIC);
    ptrdiff_t result = -1;
    errno = 0;
    int rc = sqlite3_step(get);

    if (rc == SQLITE_ROW) {
        const void *data = sqlite3_column_blob(get, 0);
        size_t len = (size_t)sqlite3_column_bytes(get, 0);
        if (len > size) {
            pd_fail(e, PD_TOO_LARGE, "the value %s has %zu bytes; there is room for %zu", name, len,
                    size);
        } else {
            if (len)
                memcpy(out, data, len);
            result = (ptrdiff_t)len;
        }
    } else if (rc == SQLITE_DONE) {
        pd_fail(e, PD_NOT_FOUND, "there is no value %s in the store", name);
    } else {
        db_fail(d, rc, "read a value", e);
    }

    sqlite3_reset(get);
    sqlite3_clear_bindings(get);
    return result;
}

static ptrdiff_t get_value(struct store *s, const char *name, void *out, size_t size,
                           struct pd_err *e)
{
    struct db *d = db_of(s);

    lock_take(&d->lock);
    ptrdiff_t result = get_value_locked(d, name, out, size, e);
    lock_release(&d->lock);
    return result;
}

static int64_t version(struct store *s)
{
    struct db *d = db_of(s);

    lock_take(&d->lock);
    int64_t result = -1;
    sqlite3_stmt *ask = db_statement(d, VERSION, "PRAGMA data_version", NULL);
    if (ask) {
        if (sqlite3_step(ask) == SQLITE_ROW)
            result = sqlite3_column_int64(ask, 0);
        sqlite3_reset(ask);
    }
    lock_release(&d->lock);
    return result;
}

static void sqlite_free(struct store *s)
{
    if (!s)
        return;

    struct sqlite *q = (struct sqlite *)s;
    db_close(&q->db);
    free(q);
}

struct store *store_sqlite_open(const char *state_dir, int exclusive, struct pd_err *e)
{
    struct sqlite *q = calloc(1, sizeof *q);
    if (!q) {
        pd_fail(e, PD_CAPACITY, "open the database: out of memory");
        return NULL;
    }

    q->db.lock_fd = -1;
    q->store = (struct store){
        .state = &q->db,
        .put_session = put_session,
        .delete_session = delete_session,
        .each_session = each_session,
        .put_process = put_process,
        .delete_process = delete_process,
        .each_process = each_process,
        .put_snapshot = put_snapshot,
        .delete_snapshot = delete_snapshot,
        .each_snapshot = each_snapshot,
        .put_build = put_build,
        .delete_build = delete_build,
        .each_build = each_build,
        .put_key = put_key,
        .touch_key = touch_key,
        .each_key = each_key,
        .put_value = put_value,
        .get_value = get_value,
        .version = version,
        .free = sqlite_free,
    };

    if (db_open(&q->db, state_dir, exclusive, e) < 0) {
        sqlite_free(&q->store);
        return NULL;
    }
    return &q->store;
}
