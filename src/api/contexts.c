/* Code contexts in v1: making, listing and ending them, and running code in one. docs/contexts.md
 * says what they mean; core/context.h has the nouns. */
#include "api/execution.h"
#include "api/handlers.h"

#include "base/banned.h"
#include "base/json.h"
#include "config/config.h"

#define KEEPALIVE (15 * NS_PER_S)

static const struct context_request usual = {.env = {.text = ""}};

static struct context *find(struct call *c, struct pd_err *e)
{
    return context_find(c->session, c->var[1], &usual, e);
}

static int answer_context(struct call *c, struct context *context, int status)
{
    struct context_info i;
    auto_buf out = BUF_INIT(64u << 10);
    struct json j = JSON_INIT(&out);

    context_get(context, &i);
    context_json(&j, &i);
    return call_json(c, status, &out);
}

int contexts_post(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    struct context_request r = {.language = NULL};
    struct msg_list_writer env = MSG_LIST_WRITER_INIT;
    struct context *context = NULL;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;
    fields_str(&f, "language", FIELD_OPTIONAL, 1, 63, &r.language);
    fields_str(&f, "name", FIELD_OPTIONAL, 0, CONTEXT_NAME_MAX, &r.name);
    fields_str(&f, "cwd", FIELD_OPTIONAL, 1, SPEC_PATH_MAX - 1, &r.cwd);
    if (r.cwd && r.cwd[0] != '/')
        fields_refuse(&f, "cwd", "'%.100s' must be an absolute path", r.cwd);
    fields_env(&f, "env", FIELD_OPTIONAL, &env, NULL);
    const char *fork = NULL;
    if (fields_str(&f, "fork", FIELD_OPTIONAL, 1, EXECUTION_ID, &fork) &&
        (r.language || r.cwd || env.count))
        fields_refuse(&f, "fork", "a copy has the language, cwd and env of what it is a copy of");

    int result = call_finish(c, &f, e);
    r.env = msg_list_of(&env);
    struct context *from = result == 0 && fork ? context_find(c->session, fork, &usual, e) : NULL;
    if (fork && !from)
        result = -1;
    if (result == 0)
        result = from ? context_fork(from, r.name, false, &context, e)
                      : context_create(c->session, &r, &context, e);
    context_unref(from);
    if (result == 0)
        result = answer_context(c, context, 201);
    context_unref(context);
    msg_list_writer_done(&env);
    return result;
}

int contexts_get(struct call *c, struct pd_err *e)
{
    struct context **list;
    unsigned count;
    if (call_no_query(c, e) < 0 || contexts_list(c->session, &usual, &list, &count, e) < 0)
        return -1;

    auto_buf out = BUF_INIT(1u << 20);
    struct json j = JSON_INIT(&out);
    json_open(&j, '{');
    json_key(&j, "contexts");
    json_open(&j, '[');
    for (unsigned n = 0; n < count; n++) {
        struct context_info i;
        context_get(list[n], &i);
        context_json(&j, &i);
    }
    json_close(&j, ']');
    json_close(&j, '}');
    contexts_free(list, count);
    return call_json(c, 200, &out);
}

int context_get_one(struct call *c, struct pd_err *e)
{
    struct context *context = call_no_query(c, e) < 0 ? NULL : find(c, e);
    if (!context)
        return -1;
    int r = answer_context(c, context, 200);
    context_unref(context);
    return r;
}

int context_delete_one(struct call *c, struct pd_err *e)
{
    struct context *context = call_no_query(c, e) < 0 ? NULL : find(c, e);
    if (!context)
        return -1;
    int r = context_delete(context, e);
    context_unref(context);
    return r < 0 ? -1 : call_empty(c);
}

int context_post_restart(struct call *c, struct pd_err *e)
{
    struct context *context = call_no_fields(c, e) < 0 ? NULL : find(c, e);
    if (!context)
        return -1;
    int r = context_restart(context, e);
    if (r == 0)
        r = answer_context(c, context, 200);
    context_unref(context);
    return r;
}

int context_post_fork(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    const char *name = NULL;
    bool force = false;
    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;
    fields_str(&f, "name", FIELD_OPTIONAL, 0, CONTEXT_NAME_MAX, &name);
    fields_bool(&f, "force", FIELD_OPTIONAL, &force);

    struct context *context = call_finish(c, &f, e) < 0 ? NULL : find(c, e), *copy = NULL;
    int r = context ? context_fork(context, name, force, &copy, e) : -1;
    if (r == 0)
        r = answer_context(c, copy, 201);
    context_unref(copy);
    context_unref(context);
    return r;
}

int context_post_undo(struct call *c, struct pd_err *e)
{
    struct context *context = call_no_fields(c, e) < 0 ? NULL : find(c, e);
    if (!context)
        return -1;
    int r = context_undo(context, e);
    if (r == 0)
        r = answer_context(c, context, 200);
    context_unref(context);
    return r;
}

int context_post_interrupt(struct call *c, struct pd_err *e)
{
    struct context *context = call_no_fields(c, e) < 0 ? NULL : find(c, e);
    if (!context)
        return -1;

    auto_buf out = BUF_INIT(256);
    struct json j = JSON_INIT(&out);
    json_open(&j, '{');
    json_member_bool(&j, "interrupted", context_interrupt(context));
    json_close(&j, '}');
    context_unref(context);
    return call_json(c, 200, &out);
}

/* ---- executions ---- */

/* OUT.ERR.EVENTS, as the ids of events have it. 1: there is one. */
static int read_last_event(struct call *c, uint64_t offset[STREAM_ALL], struct pd_err *e)
{
    const struct slice *h = http_find(&c->r->head, "Last-Event-ID");
    char text[64];
    unsigned long long n[STREAM_ALL];
    int end = 0;
    if (!h)
        return 0;

    snprintf(text, sizeof text, "%.*s", h->len < 63 ? (int)h->len : 63, h->at);
    if (strspn(text, "0123456789.") != h->len ||
        sscanf(text, "%18llu.%18llu.%18llu%n", &n[0], &n[1], &n[2], &end) != 3 ||
        (size_t)end != h->len)
        return pd_fail(e, PD_INVALID, "Last-Event-ID '%.60s': OUT.ERR.EVENTS, three offsets", text);
    for (unsigned i = 0; i < STREAM_ALL; i++)
        offset[i] = n[i];
    return 1;
}

/* The execution in the form that the client asks for. */
static int answer(struct call *c, struct execution_answer *a, bool waits, struct pd_err *e)
{
    a->form = FORM_OWN;
    a->keepalive_ns = KEEPALIVE;
    a->output_max = c->config->output_max_bytes;
    bool events = call_accepts(c, "text/event-stream");
    bool lines = call_accepts(c, "application/x-ndjson");
    a->shape = events ? SHAPE_EVENTS : SHAPE_LINES;
    return events || lines ? execution_stream(c, a, e) : execution_whole(c, a, waits, e);
}

static int answer_detached(struct call *c, struct execution *x)
{
    auto_buf out = BUF_INIT(1024);
    struct json j = JSON_INIT(&out);
    json_open(&j, '{');
    json_member_cstr(&j, "id", execution_id(x));
    json_close(&j, '}');
    return call_json(c, 202, &out);
}

static int run(struct call *c, struct context *context, const struct execution_request *r,
               struct pd_err *e)
{
    struct execution *x;
    bool known = false;
    if (execution_submit(context, r, &x, &known, e) < 0)
        return -1;

    if (known)
        reply_header(c->r, "Idempotent-Replayed", "true");
    struct execution_answer a = {.context = context,
                                 .execution = x,
                                 .owned = !r->detached && !known,
                                 .keeps = r->detached || r->key};
    int result = r->detached ? answer_detached(c, x) : answer(c, &a, true, e);
    execution_unref(x);
    return result;
}

int context_execute(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    struct msg_list_writer env = MSG_LIST_WRITER_INIT;
    char key[API_KEY_MAX + 1];
    struct execution_request r = {
        .code = "",
        .timeout_ns = session_exec_timeout(c->session, c->config->exec_timeout_ms * NS_PER_MS)};

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0)
        return -1;
    fields_str(&f, "code", FIELD_REQUIRED, 0, CODE_MAX, &r.code);
    fields_env(&f, "env", FIELD_OPTIONAL, &env, NULL);
    fields_seconds(&f, "timeout_s", FIELD_OPTIONAL, 0, 86400 * NS_PER_S, &r.timeout_ns);
    fields_bool(&f, "detached", FIELD_OPTIONAL, &r.detached);
    fields_bool(&f, "keep_before", FIELD_OPTIONAL, &r.keep_before);

    int result = call_finish(c, &f, e);
    if (result == 0)
        result = call_key(c, &body, key, &r.key, &r.key_hash, e);
    struct context *context = result == 0 ? find(c, e) : NULL;
    if (context) {
        r.code_len = strlen(r.code);
        r.env = msg_list_of(&env);
        snprintf(c->summary, sizeof c->summary, "%s: %.200s", c->var[1], r.code);
        session_attend_begin(c->session);
        result = run(c, context, &r, e);
        session_attend_end(c->session);
    }
    context_unref(context);
    msg_list_writer_done(&env);
    return context ? result : -1;
}

int context_execution(struct call *c, struct pd_err *e)
{
    uint64_t offset[STREAM_ALL];
    int resumes = call_no_query(c, e) < 0 ? -1 : read_last_event(c, offset, e);
    struct context *context = resumes < 0 ? NULL : find(c, e);
    struct execution *x = context ? execution_find(context, c->var[2], e) : NULL;

    int r = -1;
    if (x) {
        struct execution_answer a = {
            .context = context, .execution = x, .keeps = true, .offset = resumes ? offset : NULL};
        r = answer(c, &a, false, e);
    }
    execution_unref(x);
    context_unref(context);
    return r;
}
