/* Pieces of a driver's event go into a line as they are: they were checked (context_events.c). What
 * comes from the outputs is written anew, character by character. */
#include "core/context_json.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/json.h"

/* The field of a result for each MIME type that has one. */
static const struct {
    const char *field, *mime;
    bool is_text; /* a string; others are any JSON */
} fields[] = {
    {"text", "text/plain", true},        {"html", "text/html", true},
    {"markdown", "text/markdown", true}, {"svg", "image/svg+xml", true},
    {"png", "image/png", true},          {"jpeg", "image/jpeg", true},
    {"pdf", "application/pdf", true},    {"latex", "text/latex", true},
    {"json", "application/json", false}, {"javascript", "application/javascript", true},
    {"data", "e2b/data", false},         {"chart", "e2b/chart", false},
};
#define FIELDS (sizeof fields / sizeof *fields)

static void put_piece(struct json *j, const struct json_piece *p)
{
    if (j->need_comma)
        buf_putc(j->out, ',');
    buf_put(j->out, p->at, p->len);
    j->need_comma = 1;
}

static void put_member(struct json *j, const char *key, const struct json_piece *p)
{
    json_key(j, key);
    put_piece(j, p);
}

/* A string without the pair of quotation marks around its text. */
static void put_bare(struct json *j, const struct json_piece *string)
{
    struct json_piece bare = json_piece_bare(string);
    json_str_begin(j);
    buf_put(j->out, bare.at, bare.len);
    json_str_end(j);
}

static size_t field_of(const struct json_piece *mime)
{
    size_t i = 0;
    while (i < FIELDS && !json_piece_is(mime, fields[i].mime))
        i++;
    return i;
}

void result_fields(struct json *j, const struct context_event *v)
{
    struct json_piece rest = v->data, mime, value;
    unsigned seen = 0;

    while (json_piece_next(&rest, &mime, &value)) {
        size_t i = field_of(&mime);
        if (i == FIELDS || seen >> i & 1 || (fields[i].is_text && value.at[0] != '"'))
            continue;
        seen |= 1u << i;
        json_key(j, fields[i].field);
        if (i == 0)
            put_bare(j, &value);
        else
            put_piece(j, &value);
    }

    json_key(j, "extra");
    json_open(j, '{');
    rest = v->data;
    while (json_piece_next(&rest, &mime, &value)) {
        if (field_of(&mime) != FIELDS)
            continue;
        put_piece(j, &mime);
        buf_putc(j->out, ':');
        j->need_comma = 0;
        put_piece(j, &value);
    }
    json_close(j, '}');
    json_member_bool(j, "is_main_result", v->main);
}

void error_fields(struct json *j, const struct context_event *v)
{
    put_member(j, "name", &v->name);
    put_member(j, "value", &v->value);
    put_member(j, "traceback", &v->traceback);
}

void died_fields(struct json *j, const struct execution_follow *f)
{
    json_member_cstr(j, "name", "ContextRestarting");
    json_member_cstr(j, "value", f->died);
    json_member_cstr(j, "traceback", f->died);
}

static void put_time(struct json *j, const char *key)
{
    char text[TIME_TEXT_LEN + 1];
    time_format_ms(time_now_ms(), text);
    json_member_cstr(j, key, text);
}

static void put_text(struct json *j, const struct execution_follow *f, enum execution_news news,
                     enum execution_form form)
{
    const struct context_event *v = &f->reader.event;
    json_key(j, "text");
    if (news == NEWS_TEXT)
        json_str(j, f->reader.text, f->len);
    else
        put_piece(j, &v->text);
    put_time(j, form == FORM_E2B ? "timestamp" : "time");
}

static void put_start(struct json *j, const struct execution_follow *f, enum execution_form form)
{
    if (form == FORM_OWN)
        json_member_cstr(j, "id", f->reader.id);
    json_member_uint(j, "execution_count", f->reader.event.count);
}

static void put_end(struct json *j, const struct execution_follow *f)
{
    json_member_cstr(j, "state", f->restarted ? "restarted" : "kept");
    json_member_cstr(j, "reason", f->reason[0] ? f->reason : NULL);
    json_member_bool(j, "truncated", f->truncated);
}

const char *execution_line_type(const struct execution_follow *f, enum execution_news news)
{
    static const char *const events[] = {
        [EVENT_START] = "start",   [EVENT_RESULT] = "result", [EVENT_ERROR] = "error",
        [EVENT_STDOUT] = "stdout", [EVENT_STDERR] = "stderr", [EVENT_REFUSED] = NULL};
    switch (news) {
    case NEWS_TEXT:
        return f->stream == STREAM_ERR ? "stderr" : "stdout";
    case NEWS_EVENT:
        return events[f->reader.event.type];
    case NEWS_DIED:
        return "error";
    case NEWS_END:
        return "end";
    case NEWS_QUIET:
        return "keepalive";
    default:
        return NULL;
    }
}

/* The same in E2B's words. */
static const char *line_type(const struct execution_follow *f, enum execution_news news,
                             enum execution_form form)
{
    if (form == FORM_E2B && news == NEWS_END)
        return "end_of_execution";
    if (form == FORM_E2B && news == NEWS_EVENT && f->reader.event.type == EVENT_START)
        return "number_of_executions";
    return execution_line_type(f, news);
}

void execution_line(const struct execution_follow *f, enum execution_news news,
                    enum execution_form form, struct buf *out)
{
    const struct context_event *v = &f->reader.event;
    const char *type = line_type(f, news, form);
    if (!type)
        return;

    struct json j = JSON_INIT(out);
    j.ascii = true;
    json_open(&j, '{');
    json_member_cstr(&j, "type", type);

    bool is_text = news == NEWS_TEXT ||
                   (news == NEWS_EVENT && (v->type == EVENT_STDOUT || v->type == EVENT_STDERR));
    if (is_text)
        put_text(&j, f, news, form);
    else if (news == NEWS_DIED)
        died_fields(&j, f);
    else if (news == NEWS_END && form == FORM_OWN)
        put_end(&j, f);
    else if (news == NEWS_EVENT && v->type == EVENT_START)
        put_start(&j, f, form);
    else if (news == NEWS_EVENT && v->type == EVENT_RESULT)
        result_fields(&j, v);
    else if (news == NEWS_EVENT && v->type == EVENT_ERROR)
        error_fields(&j, v);
    json_close(&j, '}');
}

void context_json(struct json *j, const struct context_info *i)
{
    char created[TIME_TEXT_LEN + 1];
    time_format_ms(i->created_ms, created);

    json_open(j, '{');
    json_member_cstr(j, "id", i->id);
    json_member_cstr(j, "language", i->language);
    json_member_cstr(j, "cwd", i->cwd);
    json_member_cstr(j, "name", i->name[0] ? i->name : NULL);
    json_member_cstr(j, "state", context_state_name(i->state));
    json_member_uint(j, "execution_count", i->execution_count);
    json_member_uint(j, "waiting", i->waiting);
    json_member_int(j, "pid", i->pid);
    json_key(j, "memory_bytes");
    if (i->memory)
        json_uint(j, i->memory);
    else
        json_cstr(j, NULL);
    json_member_cstr(j, "created_at", created);
    json_close(j, '}');
}
