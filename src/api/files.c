/* Single files and directories: read, write, list, and what changes names and modes. */
#include "api/file_transfer.h"
#include "api/handlers.h"
#include "api/range.h"

#include "base/banned.h"
#include "base/json.h"

#include <ctype.h>
#include <errno.h>

#define WIDE_FROM    (64u << 10) /* what fits a pipe as it is made */
#define CURSOR_BYTES 4096u
#define MODE_SIZE    8

/* ---- reading ---- */

/* A range that depends on a validator is none: no answer has one. */
static struct range find_range(const struct http_head *h)
{
    const struct slice *value = http_find(h, "Range");
    return value && !http_find(h, "If-Range") ? range_parse(*value)
                                              : (struct range){.kind = RANGE_NONE};
}

static int read_entry(struct worker_run *w, struct call *c, const char *user, unsigned reach,
                      const char *path, uint64_t offset, uint64_t length, struct record *ret,
                      struct pd_err *e)
{
    char from[24], count[24];
    struct record r;

    snprintf(from, sizeof from, "%llu", (unsigned long long)offset);
    snprintf(count, sizeof count, "%llu", (unsigned long long)length);

    const char *const words[] = {"read", path, from, count, NULL};
    if (worker_begin(w, c, user, reach, words, e) < 0 || worker_expect(w, RECORD_ENTRY, &r, e) < 0)
        return -1;

    if (r.entry.type != ENTRY_FILE || r.entry.size > INT64_MAX)
        return pd_fail(e, PD_PROTOCOL, "a worker reads a file that is none");

    *ret = r;
    return 0;
}

/* The last bytes of a file: its size is asked for first. If it changes meanwhile, the answer still
 * says truly which bytes it has. */
static int find_last(struct call *c, const char *user, unsigned reach, const char *path,
                     struct range *r, struct pd_err *e)
{
    auto_worker w = WORKER_INIT;
    struct record entry;

    /* Not of length 0: only reading tells the size of some files, such as those of /proc. */
    if (read_entry(&w, c, user, reach, path, 0, 1, &entry, e) < 0)
        return -1;

    uint64_t size = entry.entry.size;
    r->first = r->count == 0 ? size : r->count < size ? size - r->count : 0;
    r->kind = RANGE_FROM;
    return 0;
}

void file_tag(const struct record_entry *r, char out[FILE_TAG_SIZE])
{
    snprintf(out, FILE_TAG_SIZE, "\"%lld-%llu\"", (long long)r->mtime_ns,
             (unsigned long long)r->size);
}

int file_send(struct call *c, const char *user, unsigned reach, const char *path,
              uint64_t *ret_size, struct pd_err *e)
{
    struct range range = find_range(&c->r->head);
    int head_only = c->r->head.method == HTTP_HEAD;
    struct record r;
    char text[96];

    if (range.kind == RANGE_LAST && find_last(c, user, reach, path, &range, e) < 0)
        return -1;

    uint64_t offset = range.kind ? range.first : 0;
    uint64_t count = range.kind ? range.count : (uint64_t)INT64_MAX;
    auto_worker w = WORKER_INIT;
    if (read_entry(&w, c, user, reach, path, offset, head_only ? 1 : count, &r, e) < 0)
        return -1;

    uint64_t size = r.entry.size;
    if (range.kind && offset >= size) {
        snprintf(text, sizeof text, "bytes */%llu", (unsigned long long)size);
        reply_header(c->r, "Content-Range", text);
        *ret_size = size;
        return 1;
    }

    uint64_t left = size - offset < count ? size - offset : count;
    if (range.kind) {
        snprintf(text, sizeof text, "bytes %llu-%llu/%llu", (unsigned long long)offset,
                 (unsigned long long)(offset + left - 1), (unsigned long long)size);
        reply_header(c->r, "Content-Range", text);
    }

    file_tag(&r.entry, text);
    reply_header(c->r, "ETag", text);
    reply_header(c->r, "Accept-Ranges", "bytes");
    if (reply_begin(c->r, range.kind ? 206 : 200, "application/octet-stream", left, e) < 0)
        return -1;

    if (!head_only && left) {
        if (left > WIDE_FROM)
            worker_widen(w.call.out);
        if (reply_write_pipe(c->r, w.call.out, left, e) < 0)
            return -1;
        w.ended = 1; /* with the last byte, or it will notice that nobody listens */
    }

    return reply_end(c->r, e);
}

int files_get(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"path", "user", NULL};
    static const char behind[] =
        "{\"error\":{\"code\":\"invalid\",\"message\":\"the range begins behind the end of the "
        "file\",\"details\":{\"field\":\"Range\"}}}";
    char path[FILE_PATH_SIZE], user[FILE_USER_SIZE];
    uint64_t size;

    if (call_query_check(c, allowed, e) < 0 || file_query_path(c, NULL, path, e) < 0 ||
        file_query_user(c, user, e) < 0)
        return -1;

    int r = file_send(c, user, 0, path, &size, e);
    if (r == 1)
        (void)reply(c->r, 416, "application/json", behind, sizeof behind - 1);
    return r < 0 ? -1 : 0;
}

/* ---- writing ---- */

/* Three octal digits, maybe with a 0 in front; "-" when it is not given. */
static int query_mode(struct call *c, char out[MODE_SIZE], struct pd_err *e)
{
    char text[32];

    int there = call_query(c, "mode", text, sizeof text, e);
    if (there < 0)
        return -1;

    size_t n = there ? strspn(text, "01234567") : 0;
    if (there && (text[n] || !(n == 3 || (n == 4 && text[0] == '0')))) {
        snprintf(c->field, sizeof c->field, "mode");
        return pd_fail(e, PD_INVALID, "mode '%.20s': three octal digits, such as 0644", text);
    }

    snprintf(out, MODE_SIZE, "%.4s", there ? text : "-");
    return 0;
}

int file_announced(const struct call *c, char out[FILE_LENGTH_SIZE], struct pd_err *e)
{
    const struct http_head *head = &c->r->head;
    if (head->body == HTTP_BODY_LENGTH && head->length > INT64_MAX)
        return pd_fail(e, PD_TOO_LARGE, "no file can have %llu bytes",
                       (unsigned long long)head->length);

    if (head->body == HTTP_BODY_CHUNKED)
        snprintf(out, FILE_LENGTH_SIZE, "-");
    else
        snprintf(out, FILE_LENGTH_SIZE, "%llu", (unsigned long long)head->length);
    return 0;
}

int file_commit(struct worker_run *w, struct json *j, char ret_tag[FILE_TAG_SIZE],
                int *ret_replaced, struct pd_err *e)
{
    struct record entry, more;

    worker_commit(w);
    if (worker_expect(w, RECORD_ENTRY, &entry, e) < 0)
        return -1;
    if (j) /* the record's strings are gone with the next one */
        file_entry_json(j, &entry.entry);
    if (ret_tag)
        file_tag(&entry.entry, ret_tag);

    if (worker_expect(w, RECORD_REPLACED, &more, e) < 0)
        return -1;
    w->ended = 1;
    *ret_replaced = more.replaced.count != 0;
    return 0;
}

int file_receive(struct call *c, const char *user, unsigned reach, const char *const *words,
                 struct json *j, int *ret_replaced, struct pd_err *e)
{
    const struct http_head *head = &c->r->head;
    auto_worker w = WORKER_INIT;

    if (worker_begin(&w, c, user, reach | WORKER_INPUT | WORKER_COMMIT, words, e) < 0)
        return -1;

    w.must_finish = true;
    if (head->body == HTTP_BODY_CHUNKED || head->length > WIDE_FROM)
        worker_widen(w.call.in);

    char tag[FILE_TAG_SIZE];
    if (worker_feed(&w, e) < 0 || file_commit(&w, j, tag, ret_replaced, e) < 0)
        return -1;
    if (j)
        reply_header(c->r, "ETag", tag);
    return 0;
}

/* If-Match: the tag of the file that is to be replaced. If-None-Match: *: there must be none. */
static int read_match(struct call *c, char out[FILE_TAG_SIZE], struct pd_err *e)
{
    const struct slice *match = http_find(&c->r->head, "If-Match");
    const struct slice *none = http_find(&c->r->head, "If-None-Match");

    snprintf(out, FILE_TAG_SIZE, "%s", none ? "none" : "any");
    if (match && none)
        return pd_fail(e, PD_INVALID, "If-Match or If-None-Match: not both");
    if (none && !slice_is(*none, "*"))
        return pd_fail(e, PD_INVALID, "If-None-Match: only '*', for a file that must not be there");
    if (!match)
        return 0;

    /* "MTIME-SIZE" without its quotes; what is in between is the worker's to read. */
    if (match->len < 5 || match->len > FILE_TAG_SIZE - 2 || match->at[0] != '"' ||
        match->at[match->len - 1] != '"' || (match->at[1] != '-' && !isdigit(match->at[1])))
        return pd_fail(e, PD_INVALID, "If-Match: one ETag of an earlier answer, with its quotes");
    memcpy(out, match->at + 1, match->len - 2);
    out[match->len - 2] = 0;
    return 0;
}

int files_put(struct call *c, struct pd_err *e)
{
    char match[FILE_TAG_SIZE];
    static const char *const allowed[] = {"path", "user", "mode", "mkdirs", NULL};
    char path[FILE_PATH_SIZE], user[FILE_USER_SIZE], mode[MODE_SIZE], length[FILE_LENGTH_SIZE];
    bool mkdirs = false;
    int replaced;

    if (call_query_check(c, allowed, e) < 0 || file_query_path(c, NULL, path, e) < 0 ||
        file_query_user(c, user, e) < 0 || query_mode(c, mode, e) < 0 ||
        call_query_bool(c, "mkdirs", &mkdirs, e) < 0 || file_announced(c, length, e) < 0 ||
        read_match(c, match, e) < 0)
        return -1;

    /* Sandboxes of an earlier version do not know of the last word. */
    const char *const words[] = {
        "write", path, mode, mkdirs ? "1" : "0", length, strcmp(match, "any") ? match : NULL, NULL};
    auto_buf text = BUF_INIT(FILE_JSON_MAX);
    struct json j = JSON_INIT(&text);

    if (file_receive(c, user, 0, words, &j, &replaced, e) < 0)
        return -1;
    return call_json(c, replaced ? 200 : 201, &text);
}

int files_delete(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"path", "user", "recursive", NULL};
    char path[FILE_PATH_SIZE], user[FILE_USER_SIZE];
    bool recursive = false;
    struct record r;

    if (call_query_check(c, allowed, e) < 0 || file_query_path(c, NULL, path, e) < 0 ||
        file_query_user(c, user, e) < 0 || call_query_bool(c, "recursive", &recursive, e) < 0)
        return -1;

    const char *const words[] = {"remove", path, recursive ? "1" : "0", NULL};
    auto_worker w = WORKER_INIT;
    if (worker_begin(&w, c, user, 0, words, e) < 0)
        return -1;

    w.quiet_ns = WORKER_WHOLE_NS;
    if (worker_expect(&w, RECORD_END, &r, e) < 0)
        return -1;
    w.ended = 1;
    return call_empty(c);
}

/* ---- looking ---- */

/* Cursors are bytes, most often a path: as hexadecimal digits they are text, and nobody is tempted
 * to make one. */
static void cursor_json(struct json *j, const char *cursor)
{
    static const char digits[] = "0123456789abcdef";
    auto_buf text = BUF_INIT(2 * RECORD_PATH_MAX + 1);

    for (const char *p = cursor; *p; p++) {
        buf_putc(&text, digits[(uint8_t)*p >> 4]);
        buf_putc(&text, digits[(uint8_t)*p & 15]);
    }

    json_key(j, "next_cursor");
    json_str(j, text.data, text.len);
}

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int query_cursor(struct call *c, char out[CURSOR_BYTES / 2 + 1], struct pd_err *e)
{
    char text[CURSOR_BYTES + 1];
    size_t n = 0;

    int there = call_query(c, "cursor", text, sizeof text, e);
    if (there < 0)
        return -1;

    for (const char *p = there ? text : ""; *p; p += 2, n++) {
        int high = hex_value(p[0]), low = high < 0 ? -1 : hex_value(p[1]);
        int value = high << 4 | low;
        if (high < 0 || low < 0 || !value) {
            snprintf(c->field, sizeof c->field, "cursor");
            return pd_fail(e, PD_INVALID, "cursor '%.40s' is not one that this server gave", text);
        }
        out[n] = (char)value;
    }

    out[n] = 0;
    return 0;
}

int files_list(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"path", "user", "depth", "limit", "cursor", NULL};
    char path[FILE_PATH_SIZE], user[FILE_USER_SIZE], cursor[CURSOR_BYTES / 2 + 1];
    char deep[24], many[24];
    uint64_t depth = 1, limit = 1000, told = 0;
    struct record r;
    int got, more = 0;

    if (call_query_check(c, allowed, e) < 0 || file_query_path(c, ".", path, e) < 0 ||
        file_query_user(c, user, e) < 0 || call_query_u64(c, "depth", 1, 64, &depth, e) < 0 ||
        call_query_u64(c, "limit", 1, 10000, &limit, e) < 0 || query_cursor(c, cursor, e) < 0)
        return -1;

    snprintf(deep, sizeof deep, "%llu", (unsigned long long)depth);
    snprintf(many, sizeof many, "%llu", (unsigned long long)limit);
    const char *const words[] = {"list", path, deep, many, cursor, NULL};
    auto_worker w = WORKER_INIT;
    if (worker_begin(&w, c, user, 0, words, e) < 0)
        return -1;

    auto_buf text = BUF_INIT(FILE_JSON_MAX);
    struct json j = JSON_INIT(&text);
    json_open(&j, '{');
    json_key(&j, "entries");
    json_open(&j, '[');

    while (!more && (got = worker_next(&w, &r, e)) != 0) {
        if (got < 0)
            return -1;
        more = r.kind == RECORD_MORE;
        if (!more && (r.kind != RECORD_ENTRY || ++told > limit))
            return pd_fail(e, PD_PROTOCOL, "a worker lists what nobody asked for");
        if (!more)
            file_entry_json(&j, &r.entry);
        if (text.overflow)
            return pd_fail(e, PD_TOO_LARGE,
                           "%llu entries make more than the %u MiB of one answer; ask for a "
                           "smaller limit and go on with next_cursor",
                           (unsigned long long)told, FILE_JSON_MAX >> 20);
    }

    w.ended = 1;
    json_close(&j, ']');
    if (more) {
        cursor_json(&j, r.more.cursor);
    } else {
        json_key(&j, "next_cursor");
        json_none(&j);
    }
    json_close(&j, '}');
    return call_json(c, 200, &text);
}

int files_stat(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"path", "user", NULL};
    char path[FILE_PATH_SIZE], user[FILE_USER_SIZE];

    if (call_query_check(c, allowed, e) < 0 || file_query_path(c, NULL, path, e) < 0 ||
        file_query_user(c, user, e) < 0)
        return -1;

    const char *const words[] = {"stat", path, NULL};
    return file_answer_entry(c, user, 200, words, 0, e);
}

/* ---- names and modes ---- */

/* A request of mkdir, move, copy or chmod: a JSON body, and the user in the query. */
struct file_body {
    struct buf text;
    struct fields f;
    char user[FILE_USER_SIZE];
};

static int file_body_read(struct call *c, struct file_body *b, struct pd_err *e)
{
    static const char *const allowed[] = {"user", NULL};

    return call_query_check(c, allowed, e) < 0 || file_query_user(c, b->user, e) < 0 ||
                   call_body(c, &b->text, &b->f, 0, e) < 0
               ? -1
               : 0;
}

static void file_body_done(struct file_body *b)
{
    fields_done(&b->f);
    buf_done(&b->text);
}
#define auto_file_body __attribute__((cleanup(file_body_done))) struct file_body
#define FILE_BODY_INIT ((struct file_body){.text = BUF_INIT(API_BODY_MAX)})

static void body_path(struct file_body *b, const char *name, char out[FILE_PATH_SIZE])
{
    const char *path;
    if (fields_str(&b->f, name, FIELD_REQUIRED, 1, FILE_PATH_MAX, &path))
        file_path(out, path);
}

/* 0 to 0777: what a mode may be is written in one place, the API's description. */
static void body_mode(struct file_body *b, enum field_need need, char out[MODE_SIZE])
{
    uint32_t mode;

    if (!fields_mode(&b->f, "mode", need, &mode))
        return;

    if (mode > 0777)
        fields_refuse(&b->f, "mode", "%04o has more than the bits 0777", mode);
    snprintf(out, MODE_SIZE, "%04o", mode & 0777);
}

int files_mkdir(struct call *c, struct pd_err *e)
{
    auto_file_body b = FILE_BODY_INIT;
    char path[FILE_PATH_SIZE] = "", mode[MODE_SIZE] = "0755";
    bool parents = false;

    if (file_body_read(c, &b, e) < 0)
        return -1;

    body_path(&b, "path", path);
    fields_bool(&b.f, "parents", FIELD_OPTIONAL, &parents);
    body_mode(&b, FIELD_OPTIONAL, mode);
    if (call_finish(c, &b.f, e) < 0)
        return -1;

    file_note(c, "", path);
    const char *const words[] = {"mkdir", path, parents ? "1" : "0", mode, NULL};
    return file_answer_entry(c, b.user, 201, words, 0, e);
}

static int move_or_copy(struct call *c, const char *what, const char *option, uint64_t quiet_ns,
                        struct pd_err *e)
{
    auto_file_body b = FILE_BODY_INIT;
    char from[FILE_PATH_SIZE] = "", to[FILE_PATH_SIZE] = "";
    bool yes = false;

    if (file_body_read(c, &b, e) < 0)
        return -1;

    body_path(&b, "from", from);
    body_path(&b, "to", to);
    fields_bool(&b.f, option, FIELD_OPTIONAL, &yes);
    if (call_finish(c, &b.f, e) < 0)
        return -1;

    snprintf(c->summary, sizeof c->summary, "%.140s -> %.140s", from, to);
    const char *const words[] = {what, from, to, yes ? "1" : "0", NULL};
    return file_answer_entry(c, b.user, 200, words, quiet_ns, e);
}

int files_move(struct call *c, struct pd_err *e)
{
    return move_or_copy(c, "move", "overwrite", 0, e);
}

int files_copy(struct call *c, struct pd_err *e)
{
    return move_or_copy(c, "copy", "recursive", WORKER_WHOLE_NS, e);
}

int files_chmod(struct call *c, struct pd_err *e)
{
    auto_file_body b = FILE_BODY_INIT;
    char path[FILE_PATH_SIZE] = "", mode[MODE_SIZE] = "";

    if (file_body_read(c, &b, e) < 0)
        return -1;

    body_path(&b, "path", path);
    body_mode(&b, FIELD_REQUIRED, mode);
    if (call_finish(c, &b.f, e) < 0)
        return -1;

    file_note(c, mode, path);
    const char *const words[] = {"chmod", path, mode, NULL};
    return file_answer_entry(c, b.user, 200, words, 0, e);
}
