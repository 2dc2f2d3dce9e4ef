/* How a message goes through: it is read strictly, its method is found in the table, and what the
 * method writes becomes the result. Errors of the protocol are JSON-RPC errors; what goes wrong in
 * a tool is the tool's result, for the model to read. */
#include "api/mcp.h"

#include "base/banned.h"
#include "base/fd.h"
#include "base/json.h"
#include "core/config.h"
#include "core/ids.h"
#include "core/log.h"

#include <pthread.h>

#define MESSAGE_MAX (4u << 20)
#define ANSWER_MAX  (8u << 20)
#define USER        "mcp"
#define NEWEST      "2025-11-25"

enum {
    RPC_PARSE = -32700,
    RPC_REQUEST = -32600,
    RPC_METHOD = -32601,
    RPC_PARAMS = -32602,
    RPC_INTERNAL = -32603,
    RPC_RESOURCE = -32002
};

/* ---- what is running ---- */

struct mcp_running {
    struct mcp_running *next;
    char tenant[64], thread[SESSION_NAME_MAX + 1], id[MCP_ID_MAX + 1];
    struct process *process;
};

struct mcp {
    pthread_mutex_t lock;
    struct mcp_running *running;
};

struct mcp *mcp_new(void)
{
    struct mcp *m = calloc(1, sizeof *m);
    if (m)
        pthread_mutex_init(&m->lock, NULL);
    return m;
}

void mcp_free(struct mcp *m)
{
    if (!m)
        return;
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static int is_of(const struct mcp_running *r, const struct mcp_request *m, const char *id)
{
    return !strcmp(r->id, id) && !strcmp(r->thread, m->thread) &&
           !strcmp(r->tenant, m->c->who.tenant);
}

int mcp_note_running(struct mcp_request *m, struct process *p, struct pd_err *e)
{
    struct mcp *all = m->c->api->mcp;
    struct mcp_running *r = p ? calloc(1, sizeof *r) : NULL;
    if (p && !r)
        return pd_fail(e, PD_CAPACITY, "no memory for a request");
    pthread_mutex_lock(&all->lock);
    if (r) {
        memcpy(r->tenant, m->c->who.tenant, sizeof r->tenant);
        memcpy(r->thread, m->thread, sizeof r->thread);
        memcpy(r->id, m->id, sizeof r->id);
        r->process = process_ref(p);
        r->next = all->running;
        all->running = r;
    } else {
        struct mcp_running **at = &all->running;
        while (*at && !is_of(*at, m, m->id))
            at = &(*at)->next;
        r = *at;
        if (r)
            *at = r->next;
        if (r)
            process_unref(r->process);
        free(r);
    }
    pthread_mutex_unlock(&all->lock);
    return 0;
}

static void cancel(struct mcp_request *m)
{
    struct mcp *all = m->c->api->mcp;
    struct process *found = NULL;
    struct pd_err e;
    auto_buf id = BUF_INIT(MCP_ID_MAX + 1);
    if (!fields_json(m->params, "requestId", FIELD_REQUIRED, MCP_ID_MAX, &id) || !buf_cstr(&id))
        return;
    pthread_mutex_lock(&all->lock);
    for (struct mcp_running *r = all->running; r && !found; r = r->next)
        if (is_of(r, m, (const char *)id.data))
            found = process_ref(r->process);
    pthread_mutex_unlock(&all->lock);
    if (found)
        (void)process_stop(found, STOP_KILLED, &e);
    process_unref(found);
}

/* ---- answering ---- */

/* The answer's head goes out with the first word of progress; without any, there is no stream. */
static int send_event(struct call *c, const struct buf *json, struct pd_err *e)
{
    auto_buf out = BUF_INIT(ANSWER_MAX + 64);
    if (!c->r->status) {
        reply_header(c->r, "Cache-Control", "no-store");
        if (reply_begin(c->r, 200, "text/event-stream", REPLY_CHUNKED, e) < 0)
            return -1;
    }
    buf_puts(&out, "event: message\ndata: ");
    buf_put(&out, json->data, json->len);
    buf_puts(&out, "\n\n");
    if (out.overflow)
        return pd_fail(e, PD_CAPACITY, "no memory for an event");
    return reply_write(c->r, out.data, out.len, e);
}

static int answer(struct call *c, const struct buf *json, struct pd_err *e)
{
    if (!c->r->status)
        return call_json(c, 200, json);
    if (json->overflow || send_event(c, json, e) < 0 || reply_end(c->r, e) < 0)
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

static int answer_failure(struct mcp_request *m, int code, const char *message, struct pd_err *e)
{
    auto_buf out = BUF_INIT(8192);
    struct json j = JSON_INIT(&out);
    open_message(&j, m->id);
    json_key(&j, "error");
    json_open(&j, '{');
    json_member_int(&j, "code", code);
    json_member_cstr(&j, "message", message);
    json_close(&j, '}');
    json_close(&j, '}');
    return answer(m->c, &out, e);
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
    return send_event(m->c, &out, e);
}

/* ---- the session ---- */

int mcp_open(struct mcp_request *m, struct pd_err *e)
{
    struct call *c = m->c;
    auto_fields nothing = {0};
    struct create_request r;
    struct queue_place place;
    struct session_info i;
    int created = 0;
    if (c->session)
        return 0;
    if (fields_parse(&nothing, "{}", 2, 0, e) < 0)
        return -1;
    int failed = create_request_read(c, &nothing, &r, 1, e);
    r.request.user_id = USER;
    r.request.thread_id = m->thread;
    r.request.auto_retry = 1;
    if (failed == 0)
        failed =
            sessions_get_or_create(c->api->sessions, &r.request, &c->session, &created, &place, e);
    create_request_done(&r);
    if (failed < 0)
        return -1;
    session_get(c->session, &i);
    if (i.state == SESSION_PAUSED && session_resume(c->session, e) < 0)
        return -1;
    m->made_anew = created && i.recreated;
    snprintf(c->sandbox, sizeof c->sandbox, "%s", i.id);
    return 0;
}

/* The thread: the one that the client names, else the session that initialize gave it. */
static int find_thread(struct mcp_request *m, int begins, struct pd_err *e)
{
    struct call *c = m->c;
    const struct slice *h = http_find(&c->r->head, "Mcp-Session-Id");
    int named = call_query(c, "thread", m->thread, sizeof m->thread, e);
    if (named < 0)
        return -1;
    if (named && !m->thread[0])
        return pd_fail(e, PD_INVALID, "thread: is empty");
    if (begins) {
        uint8_t random[16];
        char text[33];
        random_bytes(random, sizeof random);
        hex_encode(random, sizeof random, text);
        if (!named)
            memcpy(m->thread, text, sizeof text);
        reply_header(c->r, "Mcp-Session-Id", named ? m->thread : text);
        return 0;
    }
    if (named)
        return 0;
    if (!h)
        return pd_fail(e, PD_INVALID,
                       "the header Mcp-Session-Id is missing: the answer to initialize has it");
    if (h->len == 0 || h->len > SESSION_NAME_MAX)
        return pd_fail(e, PD_NOT_FOUND, "there is no such session: initialize again");
    memcpy(m->thread, h->at, h->len);
    m->thread[h->len] = 0;
    return 0;
}

/* ---- methods ---- */

static int do_initialize(struct mcp_request *m, struct json *j, struct pd_err *e)
{
    static const char *const known[] = {NEWEST, "2025-06-18", "2025-03-26", "2024-11-05", NULL};
    const char *asked = NEWEST, *version = NEWEST;
    (void)e;
    fields_str(m->params, "protocolVersion", FIELD_OPTIONAL, 1, 32, &asked);
    for (unsigned i = 0; known[i]; i++)
        if (!strcmp(known[i], asked))
            version = known[i];
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
                     "system without network, with its own files. The working directory is "
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
    struct mcp_result r = {.text = BUF_INIT(2 * MCP_TEXT_MAX), .data = BUF_INIT(4 * MCP_TEXT_MAX)};
    struct pd_err why;
    const struct mcp_tool *tool = NULL;
    fields_str(m->params, "name", FIELD_REQUIRED, 1, 128, &name);
    for (unsigned i = 0; i < mcp_tool_count; i++)
        if (!strcmp(mcp_tools[i].name, name))
            tool = &mcp_tools[i];
    if (!tool)
        return pd_fail(e, PD_INVALID, "there is no tool '%.60s': tools/list has them", name);
    struct fields *args = fields_object(m->params, "arguments", FIELD_OPTIONAL);
    snprintf(m->c->summary, sizeof m->c->summary, "%s", tool->name);
    if (mcp_open(m, &why) < 0 || tool->run(m, args, &r, &why) < 0) {
        buf_clear(&r.text);
        buf_clear(&r.data);
        buf_puts(&r.text, why.code == PD_INTERNAL || why.code == PD_PROTOCOL
                              ? "something went wrong in the server; its log says what"
                              : why.msg);
        if (why.code == PD_INTERNAL || why.code == PD_PROTOCOL)
            log_error("mcp.tool", "tool=%s error=%s", tool->name, why.msg);
        r.is_error = 1;
    }
    result_json_of(j, m, &r);
    buf_done(&r.text);
    buf_done(&r.data);
    return 0;
}

static int do_resources_list(struct mcp_request *m, struct json *j, struct pd_err *e)
{
    return mcp_open(m, e) < 0 ? -1 : mcp_resources_list(m, j, e);
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
    return e->code == PD_INVALID || e->code == PD_NOT_FOUND ? RPC_PARAMS : RPC_INTERNAL;
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
        return answer_failure(m, RPC_METHOD, text, e);
    }
    open_message(&j, m->id);
    json_key(&j, "result");
    json_open(&j, '{');
    if (method->run(m, &j, e) < 0) {
        int inside = e->code == PD_INTERNAL || e->code == PD_PROTOCOL;
        struct pd_err said = *e;
        if (inside)
            log_error("mcp.method", "method=%s error=%s", name, e->msg);
        return answer_failure(
            m, code_of(&said, name),
            inside ? "something went wrong in the server; its log says what" : said.msg, e);
    }
    json_close(&j, '}');
    json_close(&j, '}');
    return answer(m->c, &out, e);
}

static int answer_accepted(struct call *c)
{
    (void)reply(c->r, 202, NULL, NULL, 0);
    return 0;
}

int mcp_post(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"thread", NULL};
    auto_buf text = BUF_INIT(MESSAGE_MAX), id = BUF_INIT(MCP_ID_MAX + 1),
             token = BUF_INIT(MCP_ID_MAX + 1);
    auto_fields f = {0};
    struct mcp_request m = {.c = c, .streams = call_accepts(c, "text/event-stream")};
    const char *version = "", *method = NULL;
    if (call_query_check(c, allowed, e) < 0 || request_read_all(c->r, &text, MESSAGE_MAX, e) < 0)
        return -1;
    if (fields_parse(&f, text.data, text.len, FIELDS_OPEN, e) < 0)
        return answer_failure(&m, RPC_PARSE, e->msg, e);
    fields_str(&f, "jsonrpc", FIELD_REQUIRED, 1, 8, &version);
    if (fields_has(&f, "id"))
        fields_json(&f, "id", FIELD_OPTIONAL, MCP_ID_MAX, &id);
    fields_str(&f, "method", FIELD_OPTIONAL, 1, 128, &method);
    m.params = fields_object(&f, "params", FIELD_OPTIONAL);
    struct fields *meta = fields_object(m.params, "_meta", FIELD_OPTIONAL);
    if (meta && fields_has(meta, "progressToken"))
        fields_json(meta, "progressToken", FIELD_OPTIONAL, MCP_ID_MAX, &token);
    if (fields_finish(&f, e) < 0)
        return answer_failure(&m, RPC_REQUEST, e->msg, e);
    if (id.len)
        snprintf(m.id, sizeof m.id, "%.*s", (int)id.len, (const char *)id.data);
    if (token.len)
        snprintf(m.token, sizeof m.token, "%.*s", (int)token.len, (const char *)token.data);
    if (strcmp(version, "2.0") != 0)
        return answer_failure(&m, RPC_REQUEST, "jsonrpc must be \"2.0\"", e);
    if (!method) /* an answer to something: nothing is ever asked here */
        return answer_accepted(c);
    if (find_thread(&m, !strcmp(method, "initialize"), e) < 0)
        return -1;
    if (m.id[0])
        return handle_request(&m, method, e);
    if (!strcmp(method, "notifications/cancelled"))
        cancel(&m);
    return answer_accepted(c);
}

int mcp_delete(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"thread", NULL};
    struct mcp_request m = {.c = c};
    if (call_query_check(c, allowed, e) < 0 || find_thread(&m, 0, e) < 0)
        return -1;
    c->session = sessions_find_thread(c->api->sessions, c->who.tenant, USER, m.thread, e);
    if (!c->session) /* no tool was called yet */
        return call_empty(c);
    if (session_end(c->session, END_KILLED, "its client has ended the session", e) < 0)
        return -1;
    session_forget_thread(c->session);
    return call_empty(c);
}
