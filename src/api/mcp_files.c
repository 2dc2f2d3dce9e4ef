/* The tools of MCP for files, and files as resources. */
#include "api/mcp.h"
#include "api/worker_request.h"

#include "base/banned.h"
#include "base/fd.h"
#include "base/json.h"
#include "net/utf8.h"

#define FILE_MAX      (2u << 20) /* that is read whole */
#define SHOWN_MAX     (128u << 10)
#define LIST_LIMIT    "500"
#define SEARCH_LIMIT  "200"
#define RESOURCE_DEEP "3"

static int finish(struct fields *args, struct pd_err *e)
{
    return args ? fields_finish_object(args, e) : 0;
}

/* Of a tool that cannot do without: "" when it was refused, which `finish` tells. */
static int need(struct fields *args, const char *what, struct pd_err *e)
{
    return args ? 0 : pd_fail(e, PD_INVALID, "%s: is required", what);
}

static void read_path(struct fields *args, const char *fallback, char out[FILE_PATH_SIZE])
{
    const char *path = fallback;
    fields_str(args, "path", fallback ? FIELD_OPTIONAL : FIELD_REQUIRED, 1, FILE_PATH_MAX, &path);
    file_path(out, path ? path : "");
}

/* ---- whole files ---- */

static int read_whole(struct call *c, const char *path, struct buf *out, struct pd_err *e)
{
    auto_worker w = WORKER_INIT;
    const char *const words[] = {"read", path, "0", "9223372036854775807", NULL};
    struct record r;
    uint8_t piece[16384];
    ssize_t n;

    if (worker_begin(&w, c, "user", 0, words, e) < 0 || worker_expect(&w, RECORD_ENTRY, &r, e) < 0)
        return -1;

    if (r.entry.size > FILE_MAX)
        return pd_fail(e, PD_TOO_LARGE,
                       "'%.150s' has %llu bytes: files of up to %u are read whole; use head, tail "
                       "or sed with run_command",
                       path, (unsigned long long)r.entry.size, FILE_MAX);

    while ((n = worker_read(&w, piece, sizeof piece, e)) > 0)
        if (buf_put(out, piece, (size_t)n) < 0)
            return pd_fail(e, PD_TOO_LARGE, "'%.150s' has more than %u bytes", path, FILE_MAX);

    if (n < 0)
        return -1;
    w.ended = 1;
    return 0;
}

static int write_whole(struct call *c, const char *path, const void *data, size_t len,
                       struct pd_err *e)
{
    char length[24];
    struct record r;
    auto_worker w = WORKER_INIT;

    snprintf(length, sizeof length, "%zu", len);
    const char *const words[] = {"write", path, "-", "1", length, NULL};
    if (worker_begin(&w, c, "user", WORKER_INPUT | WORKER_COMMIT, words, e) < 0)
        return -1;

    w.must_finish = true;
    if (worker_write(&w, data, len, e) < 0)
        return -1;

    fd_done(&w.call.in);
    worker_commit(&w);
    if (worker_expect(&w, RECORD_ENTRY, &r, e) < 0 || worker_expect(&w, RECORD_REPLACED, &r, e) < 0)
        return -1;
    w.ended = 1;
    return 0;
}

static void path_data(struct mcp_result *ret, const char *path, const char *key, uint64_t number)
{
    struct json j = JSON_INIT(&ret->data);

    json_open(&j, '{');
    json_bytes(&j, "path", path, strlen(path));
    json_member_uint(&j, key, number);
    json_close(&j, '}');
}

/* The end of the line that begins at `at`, behind its newline. */
static const uint8_t *line_end(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *found = memchr(at, '\n', (size_t)(end - at));
    return found ? found + 1 : end;
}

/* The part of a file that is shown: whole lines, as many as are wanted and fit. If not even the
 * first one fits, its beginning. */
struct shown {
    const uint8_t *at;
    size_t len;
    uint64_t lines; /* of the whole file */
    uint64_t next;  /* the line to go on with; 0: nothing that was wanted is left out */
    bool is_cut;    /* inside a line */
};

static void find_lines(const struct buf *file, uint64_t first, uint64_t count, struct shown *ret)
{
    const uint8_t *end = file->data + file->len;

    *ret = (struct shown){.at = end};
    if (!file->len)
        return;

    for (const uint8_t *at = file->data, *next; at < end; at = next) {
        uint64_t line = ++ret->lines;
        next = line_end(at, end);
        size_t len = (size_t)(next - at);

        if (line < first || line - first >= count || ret->next)
            continue;
        if (line == first)
            ret->at = at;

        if (ret->len + len <= SHOWN_MAX) {
            ret->len += len;
            continue;
        }

        ret->next = line;
        if (ret->len)
            continue;
        ret->next++;
        ret->is_cut = true;
        for (ret->len = SHOWN_MAX; (at[ret->len] & 0xc0) == 0x80;)
            ret->len--;
    }
}

static void put_lines(const struct shown *s, uint64_t first, struct mcp_result *ret)
{
    buf_put(&ret->text, s->at, s->len);
    if (s->is_cut)
        buf_printf(&ret->text,
                   "\n[... line %llu is cut: use cut -b or a program with run_command ...]",
                   (unsigned long long)first);
    if (s->next && s->next <= s->lines)
        buf_printf(&ret->text, "\n[... more: go on with first_line %llu of %llu ...]",
                   (unsigned long long)s->next, (unsigned long long)s->lines);

    if (!s->lines)
        buf_puts(&ret->text, "[the file is empty]");
    else if (!s->len)
        buf_printf(&ret->text, "[the file has only %llu lines]", (unsigned long long)s->lines);
}

int mcp_read_file(struct mcp_request *m, struct fields *args, struct mcp_result *ret,
                  struct pd_err *e)
{
    char path[FILE_PATH_SIZE];
    uint64_t first = 1, count = UINT64_MAX;
    auto_buf file = BUF_INIT(FILE_MAX);
    struct json j = JSON_INIT(&ret->data);
    struct shown shown;

    if (need(args, "path", e) < 0)
        return -1;

    read_path(args, NULL, path);
    fields_u64(args, "first_line", FIELD_OPTIONAL, 1, UINT64_MAX >> 1, &first);
    fields_u64(args, "lines", FIELD_OPTIONAL, 1, UINT64_MAX >> 1, &count);
    if (finish(args, e) < 0 || read_whole(m->c, path, &file, e) < 0)
        return -1;

    if (!utf8_is_valid(file.data, file.len))
        return pd_fail(e, PD_INVALID,
                       "'%.150s' is no text: use a program with run_command, or read it as a "
                       "resource",
                       path);

    find_lines(&file, first, count, &shown);
    put_lines(&shown, first, ret);

    json_open(&j, '{');
    json_bytes(&j, "path", path, strlen(path));
    json_key(&j, "content");
    json_str(&j, shown.at, shown.len);
    json_member_uint(&j, "bytes", file.len);
    json_member_uint(&j, "lines", shown.lines);
    json_member_bool(&j, "truncated", shown.next != 0);
    json_close(&j, '}');
    return 0;
}

int mcp_write_file(struct mcp_request *m, struct fields *args, struct mcp_result *ret,
                   struct pd_err *e)
{
    char path[FILE_PATH_SIZE];
    const char *content = "";

    if (need(args, "path", e) < 0)
        return -1;

    read_path(args, NULL, path);
    fields_str(args, "content", FIELD_REQUIRED, 0, FILE_MAX, &content);
    if (finish(args, e) < 0 || write_whole(m->c, path, content, strlen(content), e) < 0)
        return -1;

    file_note(m->c, "write", path);
    buf_printf(&ret->text, "wrote %zu bytes to %s", strlen(content), path);
    path_data(ret, path, "bytes", strlen(content));
    return 0;
}

/* Every occurrence of `old` replaced; how many there were. */
static uint64_t replace(const struct buf *file, const char *old, const char *with, struct buf *out)
{
    const uint8_t *at = file->data, *end = at + file->len, *found;
    size_t old_len = strlen(old);
    uint64_t count = 0;

    while (at < end && (found = memmem(at, (size_t)(end - at), old, old_len))) {
        buf_put(out, at, (size_t)(found - at));
        buf_puts(out, with);
        at = found + old_len;
        count++;
    }

    buf_put(out, at, (size_t)(end - at));
    return count;
}

int mcp_edit_file(struct mcp_request *m, struct fields *args, struct mcp_result *ret,
                  struct pd_err *e)
{
    char path[FILE_PATH_SIZE];
    const char *old = "", *with = "";
    bool all = false;
    auto_buf file = BUF_INIT(FILE_MAX), changed = BUF_INIT(4 * FILE_MAX);

    if (need(args, "path", e) < 0)
        return -1;

    read_path(args, NULL, path);
    fields_str(args, "old_text", FIELD_REQUIRED, 1, FILE_MAX, &old);
    fields_str(args, "new_text", FIELD_REQUIRED, 0, FILE_MAX, &with);
    fields_bool(args, "all", FIELD_OPTIONAL, &all);
    if (finish(args, e) < 0 || read_whole(m->c, path, &file, e) < 0)
        return -1;

    uint64_t count = replace(&file, old, with, &changed);
    if (count == 0)
        return pd_fail(e, PD_NOT_FOUND,
                       "'%.120s' does not have the old text: read it again, blanks count", path);
    if (count > 1 && !all)
        return pd_fail(e, PD_CONFLICT,
                       "'%.120s' has the old text %llu times: give more of the lines around it, or "
                       "set all",
                       path, (unsigned long long)count);

    if (changed.overflow)
        return pd_fail(e, PD_TOO_LARGE, "'%.120s' would become too large", path);
    if (write_whole(m->c, path, changed.data, changed.len, e) < 0)
        return -1;

    file_note(m->c, "edit", path);
    buf_printf(&ret->text, "replaced %llu in %s", (unsigned long long)count, path);
    path_data(ret, path, "replacements", count);
    return 0;
}

/* ---- looking ---- */

int mcp_list_files(struct mcp_request *m, struct fields *args, struct mcp_result *ret,
                   struct pd_err *e)
{
    char path[FILE_PATH_SIZE], deep[24];
    uint64_t depth = 1;
    struct record r;
    int got, more = 0;

    read_path(args, ".", path);
    fields_u64(args, "depth", FIELD_OPTIONAL, 1, 16, &depth);
    if (finish(args, e) < 0)
        return -1;

    snprintf(deep, sizeof deep, "%llu", (unsigned long long)depth);
    const char *const words[] = {"list", path, deep, LIST_LIMIT, "", NULL};
    auto_worker w = WORKER_INIT;
    if (worker_begin(&w, m->c, "user", 0, words, e) < 0)
        return -1;

    struct json j = JSON_INIT(&ret->data);
    json_open(&j, '{');
    json_key(&j, "entries");
    json_open(&j, '[');

    while (!more && (got = worker_next(&w, &r, e)) != 0) {
        if (got < 0)
            return -1;
        more = r.kind == RECORD_MORE;
        if (more)
            break;

        if (r.kind != RECORD_ENTRY)
            return pd_fail(e, PD_PROTOCOL, "a worker lists what nobody asked for");
        file_entry_json(&j, &r.entry);
        buf_printf(&ret->text, "%s%s\n", r.entry.path, r.entry.type == ENTRY_DIR ? "/" : "");
    }

    w.ended = !more;
    json_close(&j, ']');
    json_member_bool(&j, "truncated", more);
    json_close(&j, '}');

    if (more)
        buf_puts(&ret->text, "[... more: list a directory below, or search ...]\n");
    if (!ret->text.len)
        buf_puts(&ret->text, "[nothing there]");
    return 0;
}

static void match_text(struct buf *out, const struct record_match *r)
{
    buf_puts(out, r->path);
    if (r->line)
        buf_printf(out, ":%llu: %s", (unsigned long long)r->line, r->text);
    buf_putc(out, '\n');
}

int mcp_search_files(struct mcp_request *m, struct fields *args, struct mcp_result *ret,
                     struct pd_err *e)
{
    static const char *const modes[] = {"literal", "regex", "name", NULL};
    char path[FILE_PATH_SIZE];
    const char *pattern = "", *glob = "";
    unsigned mode = 0;
    struct record r;
    int got, more = 0;

    if (need(args, "pattern", e) < 0)
        return -1;

    read_path(args, ".", path);
    fields_str(args, "pattern", FIELD_REQUIRED, 1, 4096, &pattern);
    fields_str(args, "glob", FIELD_OPTIONAL, 1, 1024, &glob);
    fields_enum(args, "mode", FIELD_OPTIONAL, modes, &mode);
    if (finish(args, e) < 0)
        return -1;

    const char *const words[] = {"search", path,         modes[mode], pattern,
                                 glob,     SEARCH_LIMIT, "1",         NULL};
    auto_worker w = WORKER_INIT;
    if (worker_begin(&w, m->c, "user", 0, words, e) < 0)
        return -1;

    struct json j = JSON_INIT(&ret->data);
    json_open(&j, '{');
    json_key(&j, "matches");
    json_open(&j, '[');

    while (!more && (got = worker_next(&w, &r, e)) != 0) {
        if (got < 0)
            return -1;
        more = r.kind == RECORD_MORE || ret->text.len > SHOWN_MAX;
        if (more)
            break;

        if (r.kind != RECORD_MATCH)
            return pd_fail(e, PD_PROTOCOL, "a worker finds what nobody asked for");
        file_match_json(&j, &r.match);
        match_text(&ret->text, &r.match);
    }

    w.ended = !more;
    json_close(&j, ']');
    json_member_bool(&j, "truncated", more);
    json_close(&j, '}');

    if (more)
        buf_puts(&ret->text, "[... more: narrow the search ...]\n");
    if (!ret->text.len)
        buf_puts(&ret->text, "[nothing found]");
    return 0;
}

/* ---- resources ---- */

static void put_uri(struct json *j, const char *path)
{
    auto_buf uri = BUF_INIT(4 * FILE_PATH_SIZE);

    buf_puts(&uri, "file://");
    (void)url_encode(&uri, path, strlen(path), 1);
    json_key(j, "uri");
    json_str(j, uri.data, uri.len);
}

int mcp_resources_list(struct mcp_request *m, struct json *j, struct pd_err *e)
{
    static const char *const words[] = {"list", "/workspace", RESOURCE_DEEP, LIST_LIMIT, "", NULL};
    auto_worker w = WORKER_INIT;
    struct record r;
    int got;

    if (worker_begin(&w, m->c, "user", 0, words, e) < 0)
        return -1;

    json_key(j, "resources");
    json_open(j, '[');
    while ((got = worker_next(&w, &r, e)) != 0) {
        if (got < 0)
            return -1;
        if (r.kind == RECORD_MORE)
            break;
        if (r.kind != RECORD_ENTRY || r.entry.type != ENTRY_FILE)
            continue;

        json_open(j, '{');
        put_uri(j, r.entry.path);
        json_key(j, "name");
        json_cstr(j, strrchr(r.entry.path, '/') ? strrchr(r.entry.path, '/') + 1 : r.entry.path);
        json_member_uint(j, "size", r.entry.size);
        json_close(j, '}');
    }

    w.ended = got == 0;
    json_close(j, ']');
    return 0;
}

int mcp_resource_read(struct mcp_request *m, struct json *j, struct pd_err *e)
{
    const char *uri = "";
    char path[FILE_PATH_SIZE];
    auto_buf file = BUF_INIT(FILE_MAX), text = BUF_INIT(2 * FILE_MAX);

    if (!m->params)
        return pd_fail(e, PD_INVALID, "params: is required");

    fields_str(m->params, "uri", FIELD_REQUIRED, 1, 4 * FILE_PATH_MAX, &uri);
    if (fields_finish(m->message, e) < 0)
        return -1;

    if (strncmp(uri, "file:///", 8) != 0)
        return pd_fail(e, PD_INVALID, "uri '%.100s': file:///PATH is needed", uri);
    if (url_decode("uri", slice_of(uri + 7), path, FILE_PATH_MAX, e) < 0 ||
        read_whole(m->c, path, &file, e) < 0)
        return -1;

    int is_text = utf8_is_valid(file.data, file.len);
    json_key(j, "contents");
    json_open(j, '[');
    json_open(j, '{');
    json_member_cstr(j, "uri", uri);
    json_member_cstr(j, "mimeType", is_text ? "text/plain" : "application/octet-stream");
    if (!is_text)
        (void)base64_encode(&text, file.data, file.len);
    json_key(j, is_text ? "text" : "blob");
    json_str(j, is_text ? file.data : text.data, is_text ? file.len : text.len);
    json_close(j, '}');
    json_close(j, ']');
    return 0;
}
