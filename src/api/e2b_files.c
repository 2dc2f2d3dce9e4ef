/* Files as E2B's clients move them: whole, or several in one form, maybe packed.
 *
 * The user is named by the parameter `username` alone: a link is signed with it, and a header must
 * not be able to change it. */
#include "api/e2b.h"
#include "api/e2b_handlers.h"
#include "api/file_transfer.h"

#include "base/banned.h"
#include "base/fd.h"
#include "base/json.h"
#include "net/gunzip.h"
#include "net/multipart.h"
#include "net/wait.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>

#define PIECE            (32u << 10)
#define FILES_MAX        10000u /* in one form */
#define NAMES_MAX        (4u << 20)
#define KEY_MAX          246u /* what is left of an attribute's name */
#define ALL_METADATA_MAX 4096u
#define ATTRIBUTE        "user.e2b."
#define DISCARD_NS       (10 * NS_PER_S)
#define DISCARD_BYTES    (UINT64_C(1) << 30)
#define DISCARD_WAIT     300 /* ms */
#define SOURCES_MAX      1000u
#define COMPOSE_QUIET    WORKER_WHOLE_NS

/* ---- what all have in common ---- */

static int files_user_named(const char *name, char out[FILE_USER_SIZE], struct pd_err *e)
{
    if (e2b_user_named(name, out, NULL) < 0)
        return pd_fail(e, PD_UNAUTHENTICATED,
                       "error looking up user '%.60s': user: unknown user %.60s", name, name);
    return 0;
}

static int files_user(struct call *c, char out[FILE_USER_SIZE], struct pd_err *e)
{
    char name[64] = "";
    return url_query_get(c->r->query, "username", name, sizeof name, e) < 0
               ? -1
               : files_user_named(name, out, e);
}

/* Absolute, without "//", "/./" and a slash at its end: so that one file has one path, as far as
 * that can be said without looking. */
static int files_path(const char *user, const char *path, char out[FILE_PATH_SIZE],
                      struct pd_err *e)
{
    char full[FILE_PATH_SIZE];
    size_t n = 0;

    if (e2b_path(user, path, full, e) < 0)
        return -1;

    for (const char *p = full; *p;) {
        size_t len = strcspn(p, "/");
        if (len && !(len == 1 && *p == '.')) {
            out[n++] = '/';
            memcpy(out + n, p, len);
            n += len;
        }
        p += len + (p[len] == '/');
    }

    if (!n)
        out[n++] = '/';
    out[n] = 0;
    return 0;
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* ---- reading ---- */

int envd_files_get(struct call *c, struct pd_err *e)
{
    char asked[FILE_PATH_MAX + 1] = "", path[FILE_PATH_SIZE], user[FILE_USER_SIZE];
    uint64_t size;

    if (url_query_get(c->r->query, "path", asked, sizeof asked, e) < 0 ||
        files_user(c, user, e) < 0 || files_path(user, asked, path, e) < 0)
        return -1;

    file_note(c, "", path);
    int r = file_send(c, user, WORKER_REACH, path, &size, e);
    if (r < 0 && e->code == PD_NOT_FOUND)
        return pd_fail(e, PD_NOT_FOUND, "path '%.200s' does not exist", path);

    if (r == 1) {
        static const char text[] =
            "{\"code\":416,\"message\":\"the range begins behind the end of the file\"}";
        (void)reply(c->r, 416, "application/json", text, sizeof text - 1);
    }

    return r < 0 ? -1 : 0;
}

/* ---- the body, unpacked if need be ---- */

struct source {
    struct request *r;
    struct gunzip *gunzip; /* or NULL */
    bool begun, ended;
    size_t pos, len;
    char packed[PIECE];
};

static void source_done(struct source *s)
{
    gunzip_free(s->gunzip);
}

/* Content-Encoding of the request: none, or gzip. */
static int source_begin(struct source *s, struct request *r, struct pd_err *e)
{
    const struct http_head *h = &r->head;
    struct slice list, one;
    unsigned packed = 0;

    s->r = r;
    for (unsigned i = 0; i < h->header_count; i++) {
        if (!slice_is_nocase(h->headers[i].name, "Content-Encoding"))
            continue;
        list = h->headers[i].value;
        while (http_list_next(&list, &one)) {
            if (slice_is_nocase(one, "gzip") || slice_is_nocase(one, "x-gzip"))
                packed++;
            else if (!slice_is_nocase(one, "identity"))
                packed = 2;
            if (packed > 1)
                return pd_fail(e, PD_INVALID, "Content-Encoding '%.*s': gzip, once, or none",
                               one.len < 40 ? (int)one.len : 40, one.at);
        }
    }

    if (packed)
        s->gunzip = gunzip_new(GUNZIP_FREE_BYTES, GUNZIP_RATIO, e);
    return packed && !s->gunzip ? -1 : 0;
}

/* Bytes, 0 at the end, -1. */
static ssize_t source_read(struct source *s, char *out, size_t size, struct pd_err *e)
{
    s->begun = true;
    if (!s->gunzip)
        return request_read(s->r, out, size, e);

    for (;;) {
        size_t used, made;
        if (gunzip_next(s->gunzip, s->packed + s->pos, s->len - s->pos, out, size, &used, &made,
                        e) < 0)
            return -1;
        s->pos += used;
        if (made)
            return (ssize_t)made;
        if (used || s->pos < s->len)
            continue;
        if (s->ended)
            return gunzip_finish(s->gunzip, e);

        ssize_t n = request_read(s->r, s->packed, sizeof s->packed, e);
        if (n < 0)
            return -1;
        s->ended = n == 0;
        s->pos = 0;
        s->len = (size_t)n;
    }
}

/* Reads what the client still sends, as long as it does: many look at the answer only when they
 * have sent everything, and would see no more than a connection that breaks. */
static void source_discard(struct source *s)
{
    struct request *r = s->r;
    uint64_t total = 0;
    deadline d = deadline_in(DISCARD_NS);

    if (!r || (r->head.expect_continue && !s->begun)) /* it was not asked to send anything */
        return;

    while (total < DISCARD_BYTES && !deadline_passed(d)) {
        struct pollfd p = {.fd = conn_fd(r->conn), .events = POLLIN};
        if (!request_raw_pending(r) && poll(&p, 1, DISCARD_WAIT) <= 0)
            return;

        ssize_t n = request_read(r, s->packed, sizeof s->packed, NULL);
        if (n <= 0)
            return;
        total += (uint64_t)n;
    }
}

/* ---- metadata: headers that become attributes of the file ---- */

struct metadata {
    struct buf text;             /* NAME\0VALUE\0 ... */
    size_t at[HTTP_HEADERS_MAX]; /* where each name begins */
    unsigned count;
    size_t bytes;
};

static int metadata_add(struct metadata *m, struct slice key, struct slice value, struct pd_err *e)
{
    int show = key.len < 60 ? (int)key.len : 60;

    if (!key.len || key.len > KEY_MAX)
        return pd_fail(e, PD_INVALID, "metadata '%.*s': a key has 1 to %u bytes", show, key.at,
                       KEY_MAX);

    m->bytes += key.len + value.len;
    if (m->bytes > ALL_METADATA_MAX)
        return pd_fail(e, PD_INVALID,
                       "metadata: all keys and values together have at most %u bytes",
                       ALL_METADATA_MAX);

    for (size_t i = 0; i < value.len; i++)
        if (value.at[i] < ' ' || value.at[i] > '~')
            return pd_fail(e, PD_INVALID, "metadata '%.*s': the value must be printable ASCII",
                           show, key.at);

    size_t start = m->text.len;
    buf_puts(&m->text, ATTRIBUTE);
    for (size_t i = 0; i < key.len; i++)
        buf_putc(&m->text, (char)tolower((unsigned char)key.at[i]));
    buf_putc(&m->text, 0);

    for (unsigned i = 0; i < m->count && !m->text.overflow; i++)
        if (!strcmp((char *)m->text.data + m->at[i], (char *)m->text.data + start))
            return pd_fail(e, PD_INVALID, "metadata '%.*s' comes twice", show, key.at);

    buf_put(&m->text, value.at, value.len);
    buf_putc(&m->text, 0);
    if (m->text.overflow)
        return pd_fail(e, PD_CAPACITY, "out of memory");
    m->at[m->count++] = start;
    return 0;
}

static int metadata_read(struct metadata *m, const struct http_head *h, struct pd_err *e)
{
    static const char prefix[] = "X-Metadata-";
    const size_t len = sizeof prefix - 1;

    for (unsigned i = 0; i < h->header_count; i++) {
        struct slice name = h->headers[i].name;
        if (name.len < len || strncasecmp(name.at, prefix, len) != 0)
            continue;
        if (metadata_add(m, (struct slice){name.at + len, name.len - len}, h->headers[i].value, e) <
            0)
            return -1;
    }
    return 0;
}

static void metadata_json(const struct metadata *m, struct json *j)
{
    if (!m->count)
        return;

    json_key(j, "metadata");
    json_open(j, '{');
    for (unsigned i = 0; i < m->count; i++) {
        const char *name = (const char *)m->text.data + m->at[i];
        json_member_cstr(j, name + sizeof ATTRIBUTE - 1, name + strlen(name) + 1);
    }
    json_close(j, '}');
}

/* ---- one upload ---- */

struct upload {
    struct call *c;
    char user[FILE_USER_SIZE];
    char asked[FILE_PATH_MAX + 1]; /* the parameter `path` */
    int is_asked;
    struct metadata metadata;
    struct source source;
    struct buf paths; /* of the files so far, each with its NUL */
    unsigned count;
    struct buf answer;
    struct json json;
    /* the file that is being written */
    char path[FILE_PATH_SIZE];
    struct worker_run worker;
};

static void upload_done(struct upload *u)
{
    worker_done(&u->worker);
    source_done(&u->source);
    buf_done(&u->metadata.text);
    buf_done(&u->paths);
    buf_done(&u->answer);
    free(u);
}

static struct upload *upload_new(struct call *c)
{
    struct upload *u = calloc(1, sizeof *u);
    if (!u)
        return NULL;

    u->c = c;
    u->worker = WORKER_INIT;
    u->metadata.text = BUF_INIT(4 * ALL_METADATA_MAX);
    u->paths = BUF_INIT(NAMES_MAX);
    u->answer = BUF_INIT(FILE_JSON_MAX);
    u->json = JSON_INIT(&u->answer);
    json_open(&u->json, '[');
    return u;
}

/* The words of the operation, with the metadata behind them. */
#define UPLOAD_WORDS (3 + 2 * HTTP_HEADERS_MAX + 1)
static void upload_words(const struct upload *u, const char *length,
                         const char *words[UPLOAD_WORDS])
{
    unsigned n = 0;

    words[n++] = "upload";
    words[n++] = u->path;
    words[n++] = length;

    for (unsigned i = 0; i < u->metadata.count; i++) {
        const char *name = (const char *)u->metadata.text.data + u->metadata.at[i];
        words[n++] = name;
        words[n++] = name + strlen(name) + 1;
    }

    words[n] = NULL;
}

/* Sets the path of the next file; a path that this form has used already is refused. */
static int upload_place(struct upload *u, const char *path, struct pd_err *e)
{
    if (files_path(u->user, path, u->path, e) < 0)
        return -1;
    file_note(u->c, "", u->path);

    if (u->count == FILES_MAX)
        return pd_fail(e, PD_TOO_LARGE, "more than %u files in one form", FILES_MAX);

    for (size_t at = 0; at < u->paths.len; at += strlen((char *)u->paths.data + at) + 1)
        if (!strcmp((char *)u->paths.data + at, u->path))
            return pd_fail(e, PD_INVALID,
                           "you cannot upload multiple files to the same path '%.100s' in one "
                           "request; the first of them was written",
                           u->path);
    return 0;
}

/* Adds the file that was just written to the answer and to the paths so far. */
static int upload_note(struct upload *u, struct pd_err *e)
{
    struct json *j = &u->json;

    json_open(j, '{');
    json_member_cstr(j, "path", u->path);
    json_member_cstr(j, "name", name_of(u->path));
    json_member_cstr(j, "type", "file");
    metadata_json(&u->metadata, j);
    json_close(j, '}');

    buf_put(&u->paths, u->path, strlen(u->path) + 1);
    u->count++;

    if (u->answer.overflow || u->paths.overflow)
        return pd_fail(e, PD_TOO_LARGE, "too many files in one form: %u were written", u->count);
    return 0;
}

static int file_begin(struct upload *u, const char *path, struct pd_err *e)
{
    const char *words[UPLOAD_WORDS];

    if (upload_place(u, path, e) < 0)
        return -1;

    upload_words(u, "-", words);
    u->worker = WORKER_INIT;
    if (worker_begin(&u->worker, u->c, u->user, WORKER_INPUT | WORKER_COMMIT | WORKER_REACH, words,
                     e) < 0)
        return -1;

    u->worker.must_finish = true;
    (void)fd_set_nonblock(u->worker.call.in);
    return 0;
}

static int file_write(struct upload *u, const char *data, size_t len, struct pd_err *e)
{
    struct worker_run *w = &u->worker;
    struct record r;
    struct pd_err why;

    if (wait_write(w->call.in, data, len, WORKER_QUIET_NS, &why) == 0)
        return 0;

    struct pollfd said = {.fd = w->call.out, .events = POLLIN};
    if (why.sys == EPIPE || poll(&said, 1, 0) > 0) {
        if (worker_first(w, &r, e) == 0)
            pd_fail(e, PD_PROTOCOL, "a worker was content before it had everything");
        return -1;
    }

    if (e)
        *e = why;
    return -1;
}

static int file_end(struct upload *u, struct pd_err *e)
{
    int replaced;

    fd_done(&u->worker.call.in);
    if (file_commit(&u->worker, NULL, NULL, &replaced, e) < 0)
        return -1;
    worker_done(&u->worker);
    return upload_note(u, e);
}

/* ---- the two forms of a body ---- */

static int post_plain(struct upload *u, struct pd_err *e)
{
    const char *words[UPLOAD_WORDS];
    char length[FILE_LENGTH_SIZE], piece[PIECE];
    int replaced;
    ssize_t n;

    if (!u->is_asked)
        return pd_fail(e, PD_INVALID, "path query parameter is required for raw body upload");

    if (!u->source.gunzip) {
        if (upload_place(u, u->asked, e) < 0 || file_announced(u->c, length, e) < 0)
            return -1;
        upload_words(u, length, words);
        u->source.begun = true;
        return file_receive(u->c, u->user, WORKER_REACH, words, NULL, &replaced, e) < 0
                   ? -1
                   : upload_note(u, e);
    }

    if (file_begin(u, u->asked, e) < 0)
        return -1;
    while ((n = source_read(&u->source, piece, sizeof piece, e)) > 0)
        if (file_write(u, piece, (size_t)n, e) < 0)
            return -1;

    return n < 0 ? -1 : file_end(u, e);
}

/* One event of the form. *writing: its part is a file. */
static int take_event(struct upload *u, const struct multipart *m, int event, struct slice data,
                      int *writing, struct pd_err *e)
{
    switch (event) {
    case MULTIPART_PART:
        if (strcmp(m->name, "file") != 0)
            return 0;
        if (!u->is_asked && (!m->filename || !*m->filename))
            return pd_fail(e, PD_INVALID,
                           "a file of the form has no name: give it a filename, or "
                           "the request the parameter path");
        *writing = 1;
        return file_begin(u, u->is_asked ? u->asked : m->filename, e);
    case MULTIPART_DATA:
        return *writing ? file_write(u, data.at, data.len, e) : 0;
    case MULTIPART_PART_END:
        if (!*writing)
            return 0;
        *writing = 0;
        return file_end(u, e);
    default:
        return 0;
    }
}

static int post_form(struct upload *u, struct multipart *m, struct pd_err *e)
{
    char piece[PIECE];
    int writing = 0;
    ssize_t n;

    while ((n = source_read(&u->source, piece, sizeof piece, e)) > 0)
        for (size_t at = 0, used; at < (size_t)n; at += used) {
            struct slice data = {NULL, 0};
            int event = multipart_next(m, piece + at, (size_t)n - at, &used, &data, e);
            if (event < 0 || take_event(u, m, event, data, &writing, e) < 0)
                return -1;
        }

    if (n < 0)
        return -1;
    if (!m->done)
        return pd_fail(e, PD_INVALID, "malformed multipart body: it is cut off");
    return 0;
}

static bool is_octets(struct slice type)
{
    size_t len = 0;
    while (len < type.len && type.at[len] != ';' && type.at[len] != ' ')
        len++;
    return slice_is_nocase((struct slice){type.at, len}, "application/octet-stream");
}

static int post(struct upload *u, struct pd_err *e)
{
    struct call *c = u->c;
    const struct slice *type = http_find(&c->r->head, "Content-Type");
    char boundary[MULTIPART_BOUNDARY_MAX + 1];

    u->is_asked = url_query_get(c->r->query, "path", u->asked, sizeof u->asked, e);
    u->source.r = c->r;
    if (u->is_asked < 0 || files_user(c, u->user, e) < 0 ||
        metadata_read(&u->metadata, &c->r->head, e) < 0 || source_begin(&u->source, c->r, e) < 0)
        return -1;

    if (type && is_octets(*type))
        return post_plain(u, e);

    int is_form = type ? multipart_boundary(*type, boundary, e) : 0;
    if (is_form < 0)
        return -1;
    if (!is_form)
        return pd_fail(e, PD_INVALID,
                       "unsupported content type: %.*s, expected multipart/form-data or "
                       "application/octet-stream",
                       !type             ? 0
                       : type->len < 100 ? (int)type->len
                                         : 100,
                       type ? type->at : "");

    struct multipart *m = malloc(sizeof *m);
    if (!m)
        return pd_fail(e, PD_CAPACITY, "out of memory");
    multipart_init(m, boundary);
    int r = post_form(u, m, e);
    free(m);
    return r;
}

int envd_files_post(struct call *c, struct pd_err *e)
{
    struct upload *u = upload_new(c);
    if (!u)
        return pd_fail(e, PD_CAPACITY, "out of memory");

    int r = post(u, e);
    if (r < 0) {
        /* The incomplete file is given up before the rest of the body is waited for. */
        worker_done(&u->worker);
        source_discard(&u->source);
    } else {
        json_close(&u->json, ']');
        r = call_json(c, 200, &u->answer);
    }

    upload_done(u);
    return r;
}

/* ---- files made of files ---- */

static int compose_read(struct call *c, struct buf *paths, char user[FILE_USER_SIZE],
                        char to[FILE_PATH_SIZE], struct pd_err *e)
{
    auto_buf text = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    const char *name = "", *destination = "", *source;
    struct msg_list_writer sources = MSG_LIST_WRITER_INIT;
    char path[FILE_PATH_SIZE];
    uint32_t pos = 0;

    if (call_body(c, &text, &f, FIELDS_OPEN, e) < 0)
        return -1;

    fields_str_list(&f, "source_paths", FIELD_REQUIRED, 1, SOURCES_MAX, FILE_PATH_MAX, &sources);
    fields_str(&f, "destination", FIELD_REQUIRED, 1, FILE_PATH_MAX, &destination);
    fields_str(&f, "username", FIELD_OPTIONAL, 0, 60, &name);

    int r = call_finish(c, &f, e);
    if (r == 0)
        r = files_user_named(name, user, e);
    if (r == 0)
        r = files_path(user, destination, to, e);

    struct msg_list list = msg_list_of(&sources);
    while (r == 0 && (source = msg_list_next(&list, &pos))) {
        r = files_path(user, source, path, e);
        if (r == 0 && !strcmp(path, to))
            r = pd_fail(e, PD_INVALID, "source path '%.150s' cannot be the same as destination",
                        path);
        buf_put(paths, path, strlen(path) + 1);
    }

    msg_list_writer_done(&sources);
    return r;
}

int envd_files_compose(struct call *c, struct pd_err *e)
{
    auto_buf paths = BUF_INIT(NAMES_MAX);
    auto_buf answer = BUF_INIT(2 * FILE_JSON_MAX);
    auto_worker w = WORKER_INIT;
    struct json j = JSON_INIT(&answer);
    char user[FILE_USER_SIZE], to[FILE_PATH_SIZE];
    const char *words[2 + SOURCES_MAX + 1] = {"compose", to};
    struct record r;
    unsigned n = 2;

    if (compose_read(c, &paths, user, to, e) < 0)
        return -1;
    if (paths.overflow)
        return pd_fail(e, PD_TOO_LARGE, "the paths are too long, all together");
    for (size_t at = 0; at < paths.len; at += strlen((char *)paths.data + at) + 1)
        words[n++] = (char *)paths.data + at;

    file_note(c, "", to);
    if (worker_begin(&w, c, user, WORKER_REACH, words, e) < 0)
        return -1;

    w.quiet_ns = COMPOSE_QUIET;
    w.must_finish = true; /* the sources go when the new file is there */
    if (worker_expect(&w, RECORD_ENTRY, &r, e) < 0)
        return -1;
    w.ended = 1;

    json_open(&j, '{');
    json_member_cstr(&j, "path", to);
    json_member_cstr(&j, "name", name_of(to));
    json_member_cstr(&j, "type", "file");
    json_close(&j, '}');
    return call_json(c, 200, &answer);
}
