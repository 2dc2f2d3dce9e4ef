/* How a message goes through: it is read strictly, its method is found in the table, and what the
 * method writes becomes the result. Errors of the protocol are JSON-RPC errors; what goes wrong in
 * a tool is the tool's result, for the model to read. */
#include "api/mcp.h"
#include "api/handlers.h"
#include "api/origin.h"

#include "base/banned.h"
#include "base/fd.h"
#include "base/json.h"
#include "config/config.h"
#include "telemetry/log.h"

#define MESSAGE_MAX (4u << 20)
#define ANSWER_MAX  (14u << 20) /* a file of control characters has six bytes for each */

enum {
    RPC_PARSE = -32700,
    RPC_REQUEST = -32600,
    RPC_METHOD = -32601,
    RPC_PARAMS = -32602,
    RPC_INTERNAL = -32603,
    RPC_RESOURCE = -32002,
    RPC_VERSION = -32022
};

/* Newest first. */
static const char *const versions[] = {"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"};
#define VERSION_COUNT (sizeof versions / sizeof *versions)

/* ---- answering ---- */

/* The answer's head goes out with the first word of progress; without any, there is no stream. */
static int send_event(struct call *c, const char *begin, const struct buf *json, struct pd_err *e)
{
    auto_buf out = BUF_INIT(ANSWER_MAX + 64);

    if (!c->r->status) {
        reply_header(c->r, "Cache-Control", "no-store");
        if (reply_begin(c->r, 200, "text/event-stream", REPLY_CHUNKED, e) < 0)
            return -1;
    }

    buf_puts(&out, begin);
    buf_put(&out, json->data, json->len);
    buf_puts(&out, "\n\n");

    if (out.overflow)
        return pd_fail(e, PD_CAPACITY, "no memory for an event");
    return reply_write(c->r, out.data, out.len, e);
}

static int answer(struct call *c, int status, const struct buf *json, struct pd_err *e)
{
    if (!c->r->status)
        return call_json(c, status, json);

    if (json->overflow || send_event(c, "event: message\ndata: ", json, e) < 0 ||
        reply_end(c->r, e) < 0)
        reply_abort(c->r);
    return 0;
}

static void open_message(struct json *j, const char *id)
{
    json_open(j, '{');
    json_member_cstr(j, "jsonrpc", "2.0");
    json_key(j, "id");
    buf_puts(j->out, id[0] ? id : "null");
    j->need_comma = 1;
}

/* Not only the message is wrong when the status is: the request has no answer of its own. */
static int answer_failure(struct mcp_request *m, int status, int code, const char *text,
                          struct pd_err *e)
{
    auto_buf out = BUF_INIT(8192);
    struct json j = JSON_INIT(&out);
    char message[sizeof e->msg];

    snprintf(message, sizeof message, "%s", text); /* it may be the error's own */

    open_message(&j, m->id);
    json_key(&j, "error");
    json_open(&j, '{');
    json_member_int(&j, "code", code);
    json_member_cstr(&j, "message", message);

    if (code == RPC_VERSION) {
        json_key(&j, "data");
        json_open(&j, '{');
        json_key(&j, "supported");
        json_open(&j, '[');
        for (size_t i = 0; i < VERSION_COUNT; i++)
            json_cstr(&j, versions[i]);
        json_close(&j, ']');
        json_close(&j, '}');
    }

    json_close(&j, '}');
    json_close(&j, '}');
    return answer(m->c, status, &out, e);
}

int mcp_progress(struct mcp_request *m, double done, const char *text, struct pd_err *e)
{
    auto_buf out = BUF_INIT(8192);
    struct json j = JSON_INIT(&out);

    if (!m->token[0] || !m->streams)
        return 0;

    json_open(&j, '{');
    json_member_cstr(&j, "jsonrpc", "2.0");
    json_member_cstr(&j, "method", "notifications/progress");
    json_key(&j, "params");
    json_open(&j, '{');
    json_key(&j, "progressToken");
    buf_puts(&out, m->token);
    j.need_comma = 1;
    json_member_milli(&j, "progress", (uint64_t)(done * 1000));
    if (text && *text)
        json_member_cstr(&j, "message", text);
    json_close(&j, '}');
    json_close(&j, '}');

    return send_event(m->c, "event: message\ndata: ", &out, e);
}

int mcp_keep_alive(struct mcp_request *m, struct pd_err *e)
{
    auto_buf nothing = BUF_INIT(1);
    return m->streams ? send_event(m->c, ":", &nothing, e) : 0;
}

/* ---- methods ---- */

static int do_initialize(struct mcp_request *m, struct json *j, struct pd_err *e)
{
    const char *asked = versions[0], *version = versions[0];

    fields_str(m->params, "protocolVersion", FIELD_OPTIONAL, 1, 32, &asked);
    if (fields_finish(m->message, e) < 0)
        return -1;

    for (size_t i = 0; i < VERSION_COUNT; i++)
        if (!strcmp(versions[i], asked))
            version = versions[i];

    json_member_cstr(j, "protocolVersion", version);
    json_key(j, "capabilities");
    json_open(j, '{');
    json_key(j, "tools");
    json_open(j, '{');
    json_close(j, '}');
    json_key(j, "resources");
    json_open(j, '{');
    json_close(j, '}');
    json_close(j, '}');

    json_key(j, "serverInfo");
    json_open(j, '{');
    json_member_cstr(j, "name", "paddock");
    json_member_cstr(j, "title", "Paddock sandbox");
    json_member_cstr(j, "version", m->c->api->version);
    json_close(j, '}');

    json_member_cstr(j, "instructions",
                     "Commands and files of these tools are in a sandbox of this session: a Linux "
                     "system with its own files, without network unless it was given a way out. "
                     "The working directory is "
                     "/workspace; files, environment and working directory stay between calls.");
    return 0;
}

static int do_nothing(struct mcp_request *m, struct json *j, struct pd_err *e)
{
    (void)m;
    (void)j;
    (void)e;
    return 0;
}

static void put_raw(struct json *j, const char *key, const char *text)
{
    json_key(j, key);
    buf_puts(j->out, text);
    j->need_comma = 1;
}

static int do_tools_list(struct mcp_request *m, struct json *j, struct pd_err *e)
{
    (void)m;
    (void)e;

    json_key(j, "tools");
    json_open(j, '[');
    for (unsigned i = 0; i < mcp_tool_count; i++) {
        const struct mcp_tool *t = &mcp_tools[i];
        json_open(j, '{');
        json_member_cstr(j, "name", t->name);
        json_member_cstr(j, "title", t->title);
        json_member_cstr(j, "description", t->description);
        put_raw(j, "inputSchema", t->schema);
        put_raw(j, "outputSchema", t->result);
        put_raw(j, "annotations", t->hints);
        json_close(j, '}');
    }
    json_close(j, ']');
    return 0;
}

static void result_json_of(struct json *j, struct mcp_request *m, const struct mcp_result *r)
{
    static const char anew[] =
        "[The sandbox had ended and was made anew: earlier files are gone.]\n";

    json_key(j, "content");
    json_open(j, '[');
    json_open(j, '{');
    json_member_cstr(j, "type", "text");
    json_key(j, "text");
    json_str_begin(j);
    if (m->made_anew)
        json_str_more(j, anew, sizeof anew - 1);
    json_str_more(j, r->text.data, r->text.len);
    json_str_end(j);
    json_close(j, '}');
    buf_put(j->out, r->pictures.data, r->pictures.len);
    json_close(j, ']');

    if (r->data.len) {
        json_key(j, "structuredContent");
        buf_put(j->out, r->data.data, r->data.len);
        j->need_comma = 1;
    }
    json_member_bool(j, "isError", r->is_error);
}

static int do_tools_call(struct mcp_request *m, struct json *j, struct pd_err *e)
{
    const char *name = "";
    struct mcp_result r = {.text = BUF_INIT(2 * MCP_TEXT_MAX),
                           .data = BUF_INIT(4 * MCP_TEXT_MAX),
                           .pictures = BUF_INIT(2 * MCP_PICTURES * MCP_PICTURE_MAX)};
    struct pd_err why;
    const struct mcp_tool *tool = NULL;

    if (!m->params)
        return pd_fail(e, PD_INVALID, "params: is required");

    fields_str(m->params, "name", FIELD_REQUIRED, 1, 128, &name);
    struct fields *args = fields_object(m->params, "arguments", FIELD_OPTIONAL);
    if (fields_finish(m->message, e) < 0)
        return -1;

    for (unsigned i = 0; i < mcp_tool_count; i++)
        if (!strcmp(mcp_tools[i].name, name))
            tool = &mcp_tools[i];
    if (!tool)
        return pd_fail(e, PD_INVALID, "there is no tool '%.60s': tools/list has them", name);

    snprintf(m->c->summary, sizeof m->c->summary, "%s", tool->name);
    if ((!tool->makes_sandbox && mcp_open(m, &why) < 0) || tool->run(m, args, &r, &why) < 0 ||
        r.text.overflow || r.data.overflow) {
        if (r.text.overflow || r.data.overflow)
            pd_fail(&why, PD_TOO_LARGE, "the result is too large");
        buf_clear(&r.text);
        buf_clear(&r.data);
        buf_clear(&r.pictures);
        buf_puts(&r.text, why.code == PD_INTERNAL || why.code == PD_PROTOCOL
                              ? "something went wrong in the server; its log says what"
                              : why.msg);
        if (why.code == PD_INTERNAL || why.code == PD_PROTOCOL)
            log_error("mcp.tool", "tool=%s error=%s", tool->name, why.msg);
        r.is_error = true;
    }

    result_json_of(j, m, &r);
    buf_done(&r.text);
    buf_done(&r.data);
    buf_done(&r.pictures);
    return 0;
}

/* Clients ask for this as soon as they are connected: no sandbox is made for it. */
static int do_resources_list(struct mcp_request *m, struct json *j, struct pd_err *e)
{
    if (mcp_find(m))
        return mcp_open(m, e) < 0 ? -1 : mcp_resources_list(m, j, e);

    put_raw(j, "resources", "[]");
    return 0;
}

static int do_resources_read(struct mcp_request *m, struct json *j, struct pd_err *e)
{
    return mcp_open(m, e) < 0 ? -1 : mcp_resource_read(m, j, e);
}

static int do_templates_list(struct mcp_request *m, struct json *j, struct pd_err *e)
{
    (void)m;
    (void)e;
    put_raw(j, "resourceTemplates",
            "[{\"uriTemplate\":\"file://{path}\",\"name\":\"file\",\"title\":\"A file of the "
            "sandbox\",\"description\":\"Any file, by its absolute path, such as "
            "file:///workspace/report.md\"}]");
    return 0;
}

static const struct method {
    const char *name;
    int (*run)(struct mcp_request *m, struct json *j, struct pd_err *e);
} methods[] = {
    {"initialize", do_initialize},
    {"ping", do_nothing},
    {"tools/list", do_tools_list},
    {"tools/call", do_tools_call},
    {"resources/list", do_resources_list},
    {"resources/read", do_resources_read},
    {"resources/templates/list", do_templates_list},
};

/* ---- the entry ---- */

static int code_of(const struct pd_err *e, const char *method)
{
    if (e->code == PD_NOT_FOUND && !strcmp(method, "resources/read"))
        return RPC_RESOURCE;
    return e->code == PD_INVALID || e->code == PD_NOT_FOUND || e->code == PD_TOO_LARGE
               ? RPC_PARAMS
               : RPC_INTERNAL;
}

static int handle_request(struct mcp_request *m, const char *name, struct pd_err *e)
{
    auto_buf out = BUF_INIT(ANSWER_MAX);
    struct json j = JSON_INIT(&out);
    const struct method *method = NULL;

    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (!strcmp(methods[i].name, name))
            method = &methods[i];

    if (!method) {
        char text[160];
        snprintf(text, sizeof text, "there is no method '%.100s'", name);
        return answer_failure(m, 200, RPC_METHOD, text, e);
    }

    open_message(&j, m->id);
    json_key(&j, "result");
    json_open(&j, '{');

    mcp_begin(m);
    int r = method->run(m, &j, e);
    mcp_end(m);

    if (r < 0) {
        int inside = e->code == PD_INTERNAL || e->code == PD_PROTOCOL;
        if (inside)
            log_error("mcp.method", "method=%s error=%s", name, e->msg);
        return answer_failure(
            m, 200, code_of(e, name),
            inside ? "something went wrong in the server; its log says what" : e->msg, e);
    }

    json_close(&j, '}');
    json_close(&j, '}');
    if (out.overflow)
        return answer_failure(m, 200, RPC_INTERNAL, "the answer is too large", e);
    return answer(m->c, 200, &out, e);
}

static int answer_accepted(struct call *c)
{
    (void)reply(c->r, 202, NULL, NULL, 0);
    return 0;
}

/* A page in a browser can be made to send here what it likes, but not without its origin, and not
 * with this type without asking first. */
static int check_sender(const struct call *c, struct pd_err *e)
{
    const struct http_head *h = &c->r->head;
    const struct slice *origin = http_find(h, "Origin"), *type = http_find(h, "Content-Type");
    const struct config_list *allowed = &c->config->allowed_origins;
    size_t len = 0;
    bool fine = !origin || origin_is_host(h, *origin);

    for (unsigned i = 0; !fine && i < allowed->count; i++)
        fine = slice_is_nocase(*origin, allowed->items[i]);

    if (!fine)
        return pd_fail(e, PD_DENIED, "origin '%.*s' is not allowed: add it to allowed_origins",
                       origin->len > 100 ? 100 : (int)origin->len, origin->at);

    while (type && len < type->len && type->at[len] != ';' && type->at[len] != ' ')
        len++;
    if (h->method == HTTP_POST &&
        (!type || !slice_is_nocase((struct slice){type->at, len}, "application/json")))
        return pd_fail(e, PD_INVALID, "Content-Type: application/json is needed");
    return 0;
}

static bool is_known_version(const struct call *c)
{
    const struct slice *said = http_find(&c->r->head, "MCP-Protocol-Version");
    int known = !said;

    for (size_t i = 0; !known && i < VERSION_COUNT; i++)
        known = slice_is(*said, versions[i]);
    return known;
}

/* The members that every message has. */
static void read_message(struct mcp_request *m, struct fields *f, const char **ret_method)
{
    const char *version = "";
    auto_buf id = BUF_INIT(MCP_ID_MAX + 1), token = BUF_INIT(MCP_ID_MAX + 1);

    enum field_kind kind = fields_kind(f, "id");
    if (kind == FIELD_STRING || kind == FIELD_NUMBER)
        fields_json(f, "id", FIELD_OPTIONAL, MCP_ID_MAX, &id);
    else if (kind != FIELD_ABSENT || fields_is_null(f, "id"))
        fields_refuse(f, "id", "must be a string or a number");
    if (id.len)
        snprintf(m->id, sizeof m->id, "%.*s", (int)id.len, (const char *)id.data);

    if (fields_str(f, "jsonrpc", FIELD_REQUIRED, 1, 8, &version) && strcmp(version, "2.0") != 0)
        fields_refuse(f, "jsonrpc", "must be \"2.0\"");

    fields_str(f, "method", FIELD_OPTIONAL, 1, 128, ret_method);
    m->params = fields_object(f, "params", FIELD_OPTIONAL);
    struct fields *meta = fields_object(m->params, "_meta", FIELD_OPTIONAL);
    kind = fields_kind(meta, "progressToken");
    if (kind == FIELD_STRING || kind == FIELD_NUMBER)
        fields_json(meta, "progressToken", FIELD_OPTIONAL, MCP_ID_MAX, &token);
    else if (kind != FIELD_ABSENT)
        fields_refuse(meta, "progressToken", "must be a string or a number");
    if (token.len)
        snprintf(m->token, sizeof m->token, "%.*s", (int)token.len, (const char *)token.data);

    if (!*ret_method && !fields_has(f, "result") && !fields_has(f, "error"))
        fields_refuse(f, "method", "is required");
}

static bool is_batch(const struct buf *text)
{
    size_t i = 0;
    while (i < text->len && strchr(" \t\r\n", text->data[i]) && text->data[i])
        i++;
    return i < text->len && text->data[i] == '[';
}

int mcp_post(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"thread", "client", NULL};
    auto_buf text = BUF_INIT(MESSAGE_MAX);
    auto_fields f = {0};
    struct mcp_request m = {.c = c, .message = &f, .streams = call_accepts(c, "text/event-stream")};
    const char *method = NULL;

    if (check_sender(c, e) < 0 || call_query_check(c, allowed, e) < 0 ||
        request_read_all(c->r, &text, MESSAGE_MAX, e) < 0)
        return -1;

    if (is_batch(&text))
        return answer_failure(&m, 400, RPC_REQUEST, "one message at a time: no arrays", e);
    if (fields_parse(&f, text.data, text.len, FIELDS_OPEN, e) < 0)
        return answer_failure(&m, 400, RPC_PARSE, e->msg, e);

    read_message(&m, &f, &method);
    if (fields_finish(&f, e) < 0)
        return answer_failure(&m, 400, RPC_REQUEST, e->msg, e);

    int begins = method && !strcmp(method, "initialize");
    if (!begins && !is_known_version(c))
        return answer_failure(&m, 400, RPC_VERSION,
                              "MCP-Protocol-Version: this version is not spoken here", e);

    if (!method) /* an answer to something: nothing is ever asked here */
        return answer_accepted(c);
    if (mcp_find_thread(&m, begins, e) < 0)
        return answer_failure(&m, e->code == PD_NOT_FOUND ? 404 : 400, RPC_REQUEST, e->msg, e);

    if (m.id[0])
        return handle_request(&m, method, e);
    if (!strcmp(method, "notifications/cancelled"))
        mcp_cancel(&m);
    return answer_accepted(c);
}

int mcp_delete(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"thread", "client", NULL};
    struct mcp_request m = {.c = c};

    if (check_sender(c, e) < 0 || call_query_check(c, allowed, e) < 0 ||
        mcp_find_thread(&m, 0, e) < 0)
        return -1;

    if (mcp_close(&m, e) < 0)
        return -1;
    return call_empty(c);
}
