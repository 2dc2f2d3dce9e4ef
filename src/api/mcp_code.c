/* The tool of MCP that runs code: a cell of a context of the sandbox (core/context.h), whose
 * variables stay for the next call.
 *
 * How this works: the thread of the request owns the execution. It collects what the code writes,
 * head and tail of each stream, and what it shows: text for the model, pictures as content of their
 * own, the rest as JSON. Every second it looks whether the request was cancelled, and tells how it
 * goes. A code that is cancelled is interrupted; its variables stay. */
#include "api/mcp.h"

#include "base/banned.h"
#include "base/json.h"
#include "core/context_json.h"

#include <jansson.h>

#define OUTPUT_MAX   (32u << 10) /* of each stream, and of each form of a result */
#define RESULTS_MAX_ 64u         /* that are told */
#define LINE_BYTES   (EVENT_MAX + (1u << 20))
#define TIMEOUT      (120 * NS_PER_S)
#define TIMEOUT_MAX  (3600 * NS_PER_S)
#define LOOK_EVERY   NS_PER_S
#define SILENCE      (10 * NS_PER_S)

/* The beginning and the end of a stream. */
struct kept {
    struct buf head, tail;
    uint64_t left_out;
};

struct cell {
    struct mcp_request *m;
    struct mcp_result *ret;
    struct kept out, err;
    struct buf shown; /* results, as text for the model */
    json_t *results, *error;
    int64_t count;
    unsigned pictures;
    bool has_died, is_cut;
    char reason[16];
    bool restarted;
};

struct wish {
    const char *language, *code, *context;
    bool reset;
    uint64_t timeout_ns;
};

/* ---- output ---- */

static void keep(struct kept *k, const void *data, size_t len)
{
    size_t room = OUTPUT_MAX / 2 - k->head.len, head = len < room ? len : room;
    const char *rest = (const char *)data + head;
    size_t more = len - head;

    buf_put(&k->head, data, head);
    if (more > OUTPUT_MAX / 2) { /* of what was there nothing stays, nor of this its beginning */
        k->left_out += k->tail.len + more - OUTPUT_MAX / 2;
        buf_clear(&k->tail);
        rest += more - OUTPUT_MAX / 2;
        more = OUTPUT_MAX / 2;
    }
    buf_put(&k->tail, rest, more);
    if (k->tail.len <= OUTPUT_MAX)
        return;

    size_t over = k->tail.len - OUTPUT_MAX / 2;
    memmove(k->tail.data, k->tail.data + over, k->tail.len - over);
    k->tail.len -= over;
    k->left_out += over;
}

/* Is it a byte within a character of UTF-8? */
static bool is_inside(uint8_t byte)
{
    return (byte & 0xc0) == 0x80;
}

/* All that is kept, cut between characters, with a note on what is not. */
static void put_kept(struct kept *k, struct buf *to)
{
    size_t over = k->tail.len > OUTPUT_MAX / 2 ? k->tail.len - OUTPUT_MAX / 2 : 0;
    size_t end = k->head.len;

    if (!k->left_out && !over) {
        buf_put(to, k->head.data, k->head.len);
        buf_put(to, k->tail.data, k->tail.len);
        return;
    }

    while (over < k->tail.len && is_inside(k->tail.data[over]))
        over++;
    if (k->tail.len && is_inside(k->tail.data[0]))
        while (end && is_inside(k->head.data[--end]))
            ;
    buf_put(to, k->head.data, end);
    buf_printf(to, "\n[... %llu bytes are left out ...]\n",
               (unsigned long long)(k->left_out + over + (k->head.len - end)));
    buf_put(to, k->tail.data + over, k->tail.len - over);
}

/* ---- results ---- */

static bool is_base64(const char *text, size_t len)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = strspn(text, digits);
    return len && len % 4 == 0 && n >= len - 2 && strspn(text + n, "=") == len - n;
}

/* Bytes that so much base64 is. */
static size_t decoded_size(const char *text, size_t len)
{
    size_t padding = len > 1 ? (text[len - 1] == '=') + (text[len - 2] == '=') : 0;
    return len / 4 * 3 - padding;
}

/* Takes a picture out of a result, into the content. Returns whether there was one. */
static bool take_picture(struct cell *c, json_t *result, const char *kind)
{
    const json_t *picture = json_object_get(result, kind);
    const char *text = json_string_value(picture);
    size_t len = json_string_length(picture);
    char type[24];

    if (!text)
        return false;

    bool is_picture = is_base64(text, len);
    size_t size = is_picture ? decoded_size(text, len) : 0;
    if (is_picture && c->pictures < MCP_PICTURES && size <= MCP_PICTURE_MAX) {
        struct json j = {.out = &c->ret->pictures, .need_comma = 1};
        json_open(&j, '{');
        json_member_cstr(&j, "type", "image");
        json_key(&j, "data");
        json_str(&j, text, len);
        snprintf(type, sizeof type, "image/%s", kind);
        json_member_cstr(&j, "mimeType", type);
        json_close(&j, '}');
        c->pictures++;
    } else {
        buf_printf(&c->shown,
                   "[a picture is left out: %zu bytes; %u of at most %u bytes are given]\n", size,
                   MCP_PICTURES, MCP_PICTURE_MAX);
        c->is_cut = true;
    }

    json_object_del(result, kind);
    return true;
}

/* Leaves out the forms of a result that are too long for a model. */
static void drop_long(struct cell *c, json_t *result)
{
    const char *key;
    json_t *value;
    void *next;

    json_object_del(result, "pdf");
    json_object_foreach_safe(result, next, key, value)
    {
        size_t size = json_is_string(value) ? json_string_length(value)
                                            : json_dumpb(value, NULL, 0, JSON_ENCODE_ANY);
        if (size <= OUTPUT_MAX)
            continue;
        json_object_del(result, key);
        c->is_cut = true;
    }
}

/* The form of a result that a model reads. */
static void show_text(struct cell *c, const json_t *result, bool has_picture)
{
    static const char *const forms[] = {"text", "markdown", "latex", "html", "svg"};

    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const json_t *form = json_object_get(result, forms[i]);
        size_t len = json_string_length(form);
        if (!len)
            continue;

        struct kept cut = {.head = BUF_INIT(2 * OUTPUT_MAX), .tail = BUF_INIT(2 * OUTPUT_MAX)};
        keep(&cut, json_string_value(form), len);
        put_kept(&cut, &c->shown);
        buf_putc(&c->shown, '\n');
        buf_done(&cut.head);
        buf_done(&cut.tail);
        return;
    }

    if (!has_picture)
        buf_puts(&c->shown, "[a result without text]\n");
}

static void take_result(struct cell *c, const struct execution_follow *f)
{
    auto_buf line = BUF_INIT(LINE_BYTES);
    execution_line(f, NEWS_EVENT, FORM_OWN, &line);
    json_t *result = json_loadb((const char *)line.data, line.len, JSON_ALLOW_NUL, NULL);
    if (!result)
        return;

    json_object_del(result, "type");
    bool has_picture = take_picture(c, result, "png");
    has_picture |= take_picture(c, result, "jpeg");
    if (c->shown.len < MCP_TEXT_MAX / 2)
        show_text(c, result, has_picture);
    else
        c->is_cut = true;

    drop_long(c, result);
    if (json_array_size(c->results) < RESULTS_MAX_)
        json_array_append(c->results, result);
    else
        c->is_cut = true;
    json_decref(result);
}

static void take_error(struct cell *c, const struct execution_follow *f, enum execution_news news)
{
    auto_buf line = BUF_INIT(LINE_BYTES);
    execution_line(f, news, FORM_OWN, &line);
    json_decref(c->error);
    c->error = json_loadb((const char *)line.data, line.len, JSON_ALLOW_NUL, NULL);
    json_object_del(c->error, "type");
    drop_long(c, c->error);
}

/* A piece of output that came as a JSON string. */
static void keep_piece(struct kept *k, const struct json_piece *p)
{
    json_t *text = json_loadb(p->at, p->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    keep(k, json_string_value(text), json_string_length(text));
    json_decref(text);
}

static void take_event(struct cell *c, const struct execution_follow *f)
{
    const struct context_event *v = &f->reader.event;

    switch (v->type) {
    case EVENT_START:
        c->count = (int64_t)v->count;
        return;
    case EVENT_STDOUT:
    case EVENT_STDERR:
        keep_piece(v->type == EVENT_STDOUT ? &c->out : &c->err, &v->text);
        return;
    case EVENT_RESULT:
        take_result(c, f);
        return;
    case EVENT_ERROR:
        take_error(c, f, NEWS_EVENT);
        return;
    default:
        return;
    }
}

static void take_news(struct cell *c, const struct execution_follow *f, enum execution_news news)
{
    if (news == NEWS_TEXT) {
        keep(f->stream == STREAM_ERR ? &c->err : &c->out, f->reader.text, f->len);
    } else if (news == NEWS_EVENT) {
        take_event(c, f);
    } else if (news == NEWS_DIED) {
        c->has_died = true;
        take_error(c, f, news);
    } else if (news == NEWS_END) {
        c->restarted = f->restarted;
        c->is_cut |= f->truncated;
        snprintf(c->reason, sizeof c->reason, "%s", f->reason);
    }
}

/* ---- waiting ---- */

/* The last line that was written, for people who wait. */
static void last_line(const struct cell *c, char *out, size_t size)
{
    const struct buf *b = c->out.tail.len ? &c->out.tail : &c->out.head;
    size_t end = b->len, len = 0;

    while (end && b->data[end - 1] == '\n')
        end--;
    size_t start = end;
    while (start && b->data[start - 1] != '\n' && end - start < size - 1)
        start--;

    for (; start < end; start++)
        if (b->data[start] >= 0x20 && b->data[start] != 0x7f)
            out[len++] = (char)b->data[start];
    out[len] = 0;
}

/* Looks after the client: -1 when it is not waited for any more. */
static int look(struct cell *c, uint64_t began, uint64_t *said, struct pd_err *e)
{
    struct mcp_request *m = c->m;
    struct pd_err lost;
    char line[200];
    int told = 0;

    if (server_is_stopping(m->c->r->server))
        return pd_fail(e, PD_SHUTTING_DOWN, "the server is shutting down");
    if (mcp_is_cancelled(m))
        return pd_fail(e, PD_CONFLICT, "the request was cancelled");

    if (m->token[0]) {
        last_line(c, line, sizeof line);
        told = mcp_progress(m, (double)(clock_now() - began) / NS_PER_S, line, &lost);
    } else if (m->streams && clock_now() - *said >= SILENCE) {
        told = mcp_keep_alive(m, &lost);
        *said = clock_now();
    }
    if (told < 0)
        m->token[0] = m->streams = 0;
    return 0;
}

static int attend(struct cell *c, struct execution_follow *f, struct pd_err *e)
{
    uint64_t began = clock_now(), said = began;
    deadline next = deadline_in(LOOK_EVERY);

    for (;;) {
        enum execution_news news;
        if (execution_next(f, -1, 0, next, &news, e) < 0)
            return -1;

        take_news(c, f, news);
        if (news == NEWS_END)
            return 0;
        if (!deadline_passed(next))
            continue;
        if (look(c, began, &said, e) < 0)
            return -1;
        next = deadline_in(LOOK_EVERY);
    }
}

/* ---- the context ---- */

/* The one of that name, if there is one. */
static int find_named(struct session *s, const struct context_request *r, struct context **ret,
                      struct pd_err *e)
{
    static const struct context_request usual = {.env = {.text = ""}};
    struct context **list;
    unsigned count;

    *ret = NULL;
    if (contexts_list(s, &usual, &list, &count, e) < 0)
        return -1;

    for (unsigned i = 0; i < count && !*ret; i++) {
        struct context_info info;
        context_get(list[i], &info);
        if (!strcmp(info.name, r->name) && !strcmp(info.language, r->language))
            *ret = context_ref(list[i]);
    }
    contexts_free(list, count);
    return 0;
}

static struct context *find_context(struct session *s, const struct wish *w, struct pd_err *e)
{
    struct context_request r = {.language = w->language, .name = w->context, .env = {.text = ""}};
    struct context *c = NULL;

    if (!w->context)
        return context_of_language(s, &r, e);
    if (find_named(s, &r, &c, e) < 0 || (!c && context_create(s, &r, &c, e) < 0))
        return NULL;
    return c;
}

/* ---- the result ---- */

static void end_line(struct buf *b)
{
    if (b->len && b->data[b->len - 1] != '\n')
        buf_putc(b, '\n');
}

static const char *member(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

/* How it ended, in words; NULL when there is nothing to say. */
static const char *end_words(const struct cell *c)
{
    if (c->has_died)
        return "[the interpreter has ended. Variables are gone, files are there]";
    if (c->restarted)
        return "[the interpreter had ended since the last call: this ran in a new one, without "
               "earlier variables]";
    if (!strcmp(c->reason, "timeout"))
        return "[interrupted: its time was over; give timeout_s. Variables are there]";
    return c->error ? "[an error ended the code; variables are there]" : NULL;
}

static void put_end(const struct cell *c, struct buf *out)
{
    const char *words = end_words(c);

    if (c->error) {
        const char *traceback = member(c->error, "traceback");
        end_line(out);
        if (*traceback)
            buf_puts(out, traceback);
        else
            buf_printf(out, "%s: %s", member(c->error, "name"), member(c->error, "value"));
    }
    if (words) {
        end_line(out);
        buf_puts(out, words);
    }
    if (!out->len)
        buf_puts(out, "[done; nothing was shown]");
}

static int put_json(const char *text, size_t len, void *to)
{
    return buf_put(to, text, len);
}

static void put_value(struct json *j, const char *key, const json_t *value)
{
    json_key(j, key);
    if (value)
        json_dump_callback(value, put_json, j->out, JSON_COMPACT | JSON_ENCODE_ANY);
    else
        json_none(j);
    j->need_comma = 1;
}

static void put_result(struct cell *c)
{
    auto_buf out = BUF_INIT(4 * OUTPUT_MAX), err = BUF_INIT(4 * OUTPUT_MAX);
    struct buf *text = &c->ret->text;
    struct json j = JSON_INIT(&c->ret->data);

    put_kept(&c->out, &out);
    put_kept(&c->err, &err);
    buf_put(text, out.data, out.len);
    if (err.len) {
        end_line(text);
        buf_puts(text, "[error output]\n");
        buf_put(text, err.data, err.len);
    }
    if (c->shown.len) {
        end_line(text);
        buf_put(text, c->shown.data, c->shown.len - 1);
    }
    put_end(c, text);

    json_open(&j, '{');
    json_key(&j, "stdout");
    json_str(&j, out.data, out.len);
    json_key(&j, "stderr");
    json_str(&j, err.data, err.len);
    put_value(&j, "results", c->results);
    put_value(&j, "error", c->error);
    json_member_cstr(&j, "state", c->restarted ? "restarted" : "kept");
    json_member_cstr(&j, "reason", c->reason[0] ? c->reason : NULL);
    json_key(&j, "execution_count");
    if (c->count)
        json_int(&j, c->count);
    else
        json_none(&j);
    json_member_bool(&j, "truncated", c->is_cut);
    json_close(&j, '}');
    c->ret->is_error = c->has_died || !strcmp(c->reason, "timeout");
}

/* Submits the code and waits for its end. */
static int run(struct cell *c, struct context *context, const struct wish *w, struct pd_err *e)
{
    struct execution_request r = {.code = w->code,
                                  .code_len = strlen(w->code),
                                  .env = {.text = ""},
                                  .timeout_ns = w->timeout_ns};
    struct execution_follow f;
    struct execution *x;
    bool known;

    if (execution_submit(context, &r, &x, &known, e) < 0)
        return -1;

    int done = execution_follow(&f, x, context, EXECUTION_OWNED, NULL, e);
    if (done == 0) {
        done = attend(c, &f, e);
        execution_follow_end(&f, done < 0 && e->code == PD_SHUTTING_DOWN);
    }
    execution_unref(x);
    return done;
}

static int run_in(struct mcp_request *m, const struct wish *w, struct mcp_result *ret,
                  struct pd_err *e)
{
    struct context *context = find_context(m->c->session, w, e);
    if (!context)
        return -1;

    struct cell c = {.m = m,
                     .ret = ret,
                     .out = {BUF_INIT(OUTPUT_MAX), BUF_INIT(2 * OUTPUT_MAX), 0},
                     .err = {BUF_INIT(OUTPUT_MAX), BUF_INIT(2 * OUTPUT_MAX), 0},
                     .shown = BUF_INIT(MCP_TEXT_MAX),
                     .results = json_array()};
    int done = w->reset ? context_restart(context, e) : 0;
    if (done == 0)
        done = run(&c, context, w, e);
    if (done == 0)
        put_result(&c);

    buf_done(&c.out.head);
    buf_done(&c.out.tail);
    buf_done(&c.err.head);
    buf_done(&c.err.tail);
    buf_done(&c.shown);
    json_decref(c.results);
    json_decref(c.error);
    context_unref(context);
    return done;
}

int mcp_run_code(struct mcp_request *m, struct fields *args, struct mcp_result *ret,
                 struct pd_err *e)
{
    struct wish w = {.timeout_ns = TIMEOUT};

    if (!args)
        return pd_fail(e, PD_INVALID, "language: is required, code too");

    fields_str(args, "language", FIELD_REQUIRED, 1, 63, &w.language);
    fields_str(args, "code", FIELD_REQUIRED, 1, CODE_MAX, &w.code);
    fields_str(args, "context", FIELD_OPTIONAL, 1, CONTEXT_NAME_MAX, &w.context);
    fields_bool(args, "reset", FIELD_OPTIONAL, &w.reset);
    fields_seconds(args, "timeout_s", FIELD_OPTIONAL, NS_PER_MS, TIMEOUT_MAX, &w.timeout_ns);
    if (fields_finish_object(args, e) < 0)
        return -1;

    snprintf(m->c->summary, sizeof m->c->summary, "%s: %.250s", w.language, w.code);
    return run_in(m, &w, ret, e);
}
