/* Search and replace in the files of a tree. A worker in the sandbox looks for the pattern; each of
 * its records becomes a match of the answer, which is cut off and says so when there are more than
 * `limit` or than fit into it. */
#include "api/handlers.h"
#include "api/worker_request.h"

#include "base/banned.h"
#include "base/json.h"

#define PATTERN_MAX     4096
#define GLOB_MAX        1024
#define REPLACEMENT_MAX 65536
#define LIMIT_MAX       10000

static const char *const modes[] = {"literal", "regex", "name", NULL};

struct hunt {
    char path[FILE_PATH_SIZE], user[FILE_USER_SIZE];
    char pattern[PATTERN_MAX + 1], glob[GLOB_MAX + 1];
    unsigned mode;
    bool case_sensitive;
    uint64_t limit;
};

static int refuse(struct call *c, const char *field, const char *why, struct pd_err *e)
{
    snprintf(c->field, sizeof c->field, "%s", field);
    return pd_fail(e, PD_INVALID, "%s %s", field, why);
}

/* `pattern` and `glob` may not be empty. */
static int query_text(struct call *c, const char *name, char *out, size_t size, struct pd_err *e)
{
    int there = call_query(c, name, out, size, e);
    return there > 0 && !*out ? refuse(c, name, "is empty", e) : there;
}

static int read_query(struct call *c, struct hunt *h, struct pd_err *e)
{
    static const char *const allowed[] = {"path", "user",           "pattern", "mode",
                                          "glob", "case_sensitive", "limit",   NULL};
    char mode[16] = "literal";
    int there;

    if (call_query_check(c, allowed, e) < 0 || file_query_path(c, ".", h->path, e) < 0 ||
        (there = query_text(c, "pattern", h->pattern, sizeof h->pattern, e)) < 0 ||
        query_text(c, "glob", h->glob, sizeof h->glob, e) < 0 ||
        query_text(c, "mode", mode, sizeof mode, e) < 0 ||
        call_query_bool(c, "case_sensitive", &h->case_sensitive, e) < 0 ||
        call_query_u64(c, "limit", 1, LIMIT_MAX, &h->limit, e) < 0)
        return -1;

    if (!there)
        return refuse(c, "pattern", "is missing", e);

    for (h->mode = 0; modes[h->mode]; h->mode++)
        if (!strcmp(modes[h->mode], mode))
            return 0;
    return refuse(c, "mode", "must be literal, regex or name", e);
}

/* Of search and replace alike; a string of a member that was refused stays empty. */
static void read_members(struct fields *f, struct hunt *h, unsigned mode_count)
{
    const char *allowed[4] = {modes[0], modes[1], mode_count > 2 ? modes[2] : NULL, NULL};
    const char *path = ".", *pattern = "", *glob = "";

    fields_str(f, "path", FIELD_OPTIONAL, 1, FILE_PATH_MAX, &path);
    fields_str(f, "pattern", FIELD_REQUIRED, 1, PATTERN_MAX, &pattern);
    fields_str(f, "glob", FIELD_OPTIONAL, 1, GLOB_MAX, &glob);
    fields_enum(f, "mode", FIELD_OPTIONAL, allowed, &h->mode);

    file_path(h->path, path);
    snprintf(h->pattern, sizeof h->pattern, "%s", pattern);
    snprintf(h->glob, sizeof h->glob, "%s", glob);
}

static int begin_body(struct call *c, struct hunt *h, struct buf *text, struct fields *f,
                      struct pd_err *e)
{
    static const char *const allowed[] = {"user", NULL};

    return call_query_check(c, allowed, e) < 0 || file_query_user(c, h->user, e) < 0 ||
                   call_body(c, text, f, 0, e) < 0
               ? -1
               : 0;
}

static int read_body(struct call *c, struct hunt *h, struct pd_err *e)
{
    auto_buf text = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};

    if (begin_body(c, h, &text, &f, e) < 0)
        return -1;

    read_members(&f, h, 3);
    fields_bool(&f, "case_sensitive", FIELD_OPTIONAL, &h->case_sensitive);
    fields_u64(&f, "limit", FIELD_OPTIONAL, 1, LIMIT_MAX, &h->limit);
    return call_finish(c, &f, e);
}

void file_match_json(struct json *j, const struct record_match *m)
{
    json_open(j, '{');
    json_bytes(j, "path", m->path, strlen(m->path));
    json_key(j, "line");
    if (m->line)
        json_uint(j, m->line);
    else
        json_none(j);
    json_key(j, "column");
    if (m->line)
        json_uint(j, m->column);
    else
        json_none(j);
    if (m->line) {
        json_bytes(j, "text", m->text, strlen(m->text));
    } else {
        json_key(j, "text");
        json_none(j);
    }
    json_close(j, '}');
}

int files_search(struct call *c, struct pd_err *e)
{
    struct hunt h = {.case_sensitive = 1, .limit = 1000};
    char many[24];
    struct record r;
    uint64_t told = 0;
    int got, more = 0;

    if (file_query_user(c, h.user, e) < 0 ||
        (c->r->head.method == HTTP_POST ? read_body : read_query)(c, &h, e) < 0)
        return -1;

    /* One more than asked for, to know whether exactly `limit` was all. */
    snprintf(many, sizeof many, "%llu", (unsigned long long)h.limit + 1);
    const char *const words[] = {
        "search", h.path, modes[h.mode], h.pattern, h.glob, many, h.case_sensitive ? "1" : "0",
        NULL};

    auto_worker w = WORKER_INIT;
    if (worker_begin(&w, c, h.user, 0, words, e) < 0)
        return -1;

    auto_buf text = BUF_INIT(FILE_JSON_MAX);
    struct json j = JSON_INIT(&text);
    json_open(&j, '{');
    json_key(&j, "matches");
    json_open(&j, '[');

    while (!more && (got = worker_next(&w, &r, e)) != 0) {
        if (got < 0)
            return -1;
        /* Too many, or too long: the rest is left out, and the worker is ended. */
        more =
            r.kind == RECORD_MORE || told == h.limit || text.len > FILE_JSON_MAX - 4 * RECORD_MAX;
        if (!more && r.kind != RECORD_MATCH)
            return pd_fail(e, PD_PROTOCOL, "a worker finds what nobody asked for");
        if (!more)
            file_match_json(&j, &r.match);
        told++;
    }

    json_close(&j, ']');
    json_key(&j, "truncated");
    json_bool(&j, more);
    json_close(&j, '}');
    return call_json(c, 200, &text);
}

int files_replace(struct call *c, struct pd_err *e)
{
    struct hunt h = {0};
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    const char *replacement = "";
    bool dry = false;
    int got, left_out = 0;
    struct record r;

    if (begin_body(c, &h, &body, &f, e) < 0)
        return -1;

    read_members(&f, &h, 2);
    fields_str(&f, "replacement", FIELD_REQUIRED, 0, REPLACEMENT_MAX, &replacement);
    fields_bool(&f, "dry_run", FIELD_OPTIONAL, &dry);
    if (call_finish(c, &f, e) < 0)
        return -1;

    file_note(c, dry ? "dry run" : "", h.path);
    const char *const words[] = {"replace",   h.path, modes[h.mode],   h.pattern,
                                 replacement, h.glob, dry ? "1" : "0", NULL};

    auto_worker w = WORKER_INIT;
    if (worker_begin(&w, c, h.user, 0, words, e) < 0)
        return -1;

    auto_buf text = BUF_INIT(FILE_JSON_MAX);
    struct json j = JSON_INIT(&text);
    json_open(&j, '{');
    json_key(&j, "files");
    json_open(&j, '[');

    while ((got = worker_next(&w, &r, e)) != 0) {
        if (got < 0)
            return -1;
        if (r.kind != RECORD_REPLACED)
            return pd_fail(e, PD_PROTOCOL, "a worker replaces what nobody asked for");
        /* The files are changed in any case; a list that is too long is cut. */
        left_out |= text.len > FILE_JSON_MAX - 4 * RECORD_MAX;
        if (left_out)
            continue;

        json_open(&j, '{');
        json_bytes(&j, "path", r.replaced.path, strlen(r.replaced.path));
        json_key(&j, "replacements");
        json_uint(&j, r.replaced.count);
        json_close(&j, '}');
    }

    json_close(&j, ']');
    if (left_out) {
        json_key(&j, "truncated");
        json_bool(&j, 1);
    }
    json_close(&j, '}');
    return call_json(c, 200, &text);
}
