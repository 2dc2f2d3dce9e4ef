/* Port 49999 of a sandbox that was made at the E2B door: the protocol of E2B's code interpreter, as
 * its SDKs speak it. Nothing in the sandbox listens there; what comes in becomes calls of contexts
 * (core/context.h). docs/e2b.md lists the paths.
 *
 * Errors are plain text, and their status is what the SDKs look at: 404 for a context that is not
 * there, 422 for a body that cannot be read, 500 for a language that cannot start. */
#include "api/e2b.h"
#include "api/e2b_handlers.h"
#include "api/execution.h"

#include "base/banned.h"
#include "base/json.h"
#include "config/config.h"

#define KEEPALIVE (5 * NS_PER_S)

static int answer_text(struct call *c, int status, const char *text)
{
    (void)reply(c->r, status, "text/plain; charset=utf-8", text, strlen(text));
    return 0;
}

static int answer_json(struct call *c, const char *text)
{
    (void)reply(c->r, 200, "application/json", text, strlen(text));
    return 0;
}

void e2b_code_error(struct call *c, const struct pd_err *e)
{
    int status = e->code == PD_INVALID       ? 422
                 : e->code == PD_UNSUPPORTED ? 500
                                             : pd_code_http(e->code);
    if (c->r->status)
        reply_abort(c->r);
    else
        (void)answer_text(c, status, e->msg);
}

int code_health(struct call *c, struct pd_err *e)
{
    (void)e;
    return answer_json(c, "\"OK\"");
}

/* ---- contexts ---- */

/* A context as this door makes it: in the user's home unless told, with the variables that programs
 * know a sandbox by. */
struct code_context {
    struct context_request request;
    struct msg_list_writer env;
};

static int code_context_init(struct call *c, struct code_context *ret, struct pd_err *e)
{
    *ret = (struct code_context){.env = MSG_LIST_WRITER_INIT};
    if (e2b_sandbox_env(c->session, &ret->env) < 0)
        return pd_fail(e, PD_CAPACITY, "no memory for a context");
    ret->request =
        (struct context_request){.cwd = E2B_HOME, .env = msg_list_of(&ret->env), .any_cwd = true};
    return 0;
}

static void code_context_done(struct code_context *k)
{
    msg_list_writer_done(&k->env);
}
#define auto_code_context __attribute__((cleanup(code_context_done))) struct code_context

static void put_context(struct json *j, struct context *context)
{
    struct context_info i;
    context_get(context, &i);
    json_open(j, '{');
    json_member_cstr(j, "id", i.id);
    json_member_cstr(j, "language", i.language);
    json_member_cstr(j, "cwd", i.cwd);
    json_close(j, '}');
}

static int fail_missing(const char *id, struct pd_err *e)
{
    return pd_fail(e, PD_NOT_FOUND, "Context %.64s not found", id);
}

int code_context_create(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), out = BUF_INIT(64u << 10);
    auto_fields f = {0};
    auto_code_context k = {0};
    if (call_body(c, &body, &f, FIELDS_OPEN | FIELDS_MAY_BE_EMPTY, e) < 0 ||
        code_context_init(c, &k, e) < 0)
        return -1;

    const char *cwd = NULL;
    fields_str(&f, "language", FIELD_OPTIONAL, 0, 63, &k.request.language);
    fields_str(&f, "cwd", FIELD_OPTIONAL, 0, SPEC_PATH_MAX - 1, &cwd);
    if (fields_finish(&f, e) < 0)
        return -1;
    char path[FILE_PATH_SIZE];
    if (cwd && cwd[0]) {
        if (e2b_path("user", cwd, path, e) < 0)
            return -1;
        k.request.cwd = path;
    }

    struct context *context;
    if (context_create(c->session, &k.request, &context, e) < 0)
        return -1;
    struct json j = JSON_INIT(&out);
    put_context(&j, context);
    context_unref(context);
    return call_json(c, 200, &out);
}

int code_context_list(struct call *c, struct pd_err *e)
{
    auto_code_context k = {0};
    struct context **list;
    unsigned count;
    if (code_context_init(c, &k, e) < 0 ||
        contexts_list(c->session, &k.request, &list, &count, e) < 0)
        return -1;

    auto_buf out = BUF_INIT(1u << 20);
    struct json j = JSON_INIT(&out);
    json_open(&j, '[');
    for (unsigned i = 0; i < count; i++)
        put_context(&j, list[i]);
    json_close(&j, ']');
    contexts_free(list, count);
    return call_json(c, 200, &out);
}

/* The context that the path names. */
static struct context *find(struct call *c, struct pd_err *e)
{
    auto_code_context k = {0};
    if (code_context_init(c, &k, e) < 0)
        return NULL;

    struct context *found = context_find(c->session, c->var[0], &k.request, e);
    if (!found)
        fail_missing(c->var[0], e);
    return found;
}

int code_context_restart(struct call *c, struct pd_err *e)
{
    struct context *context = find(c, e);
    int r = context ? context_restart(context, e) : -1;
    context_unref(context);
    return r < 0 ? -1 : answer_json(c, "null");
}

int code_context_delete(struct call *c, struct pd_err *e)
{
    struct context *context = find(c, e);
    int r = context ? context_delete(context, e) : -1;
    context_unref(context);
    return r < 0 ? -1 : answer_json(c, "null");
}

/* ---- execute ---- */

struct execute {
    const char *context_id;
    struct execution_request request;
    struct msg_list_writer env;
};

static int run(struct call *c, struct execute *x, struct code_context *k, struct pd_err *e)
{
    struct context *context = x->context_id ? context_find(c->session, x->context_id, NULL, e)
                                            : context_of_language(c->session, &k->request, e);
    if (!context && x->context_id) /* a default context that was never used has no object yet */
        context = context_find(c->session, x->context_id, &k->request, e);
    if (!context)
        return x->context_id ? fail_missing(x->context_id, e) : -1;

    struct execution *run = NULL;
    bool known = false;
    int r = execution_submit(context, &x->request, &run, &known, e);
    if (r == 0) {
        struct execution_answer a = {.context = context,
                                     .execution = run,
                                     .owned = true,
                                     .form = FORM_E2B,
                                     .shape = SHAPE_LINES,
                                     .keepalive_ns = KEEPALIVE};
        r = execution_stream(c, &a, e);
    }
    execution_unref(run);
    context_unref(context);
    return r;
}

int code_execute(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    auto_code_context k = {0};
    struct execute x = {.env = MSG_LIST_WRITER_INIT};
    if (call_body(c, &body, &f, FIELDS_OPEN, e) < 0 || code_context_init(c, &k, e) < 0)
        return -1;

    fields_str(&f, "code", FIELD_REQUIRED, 0, CODE_MAX, &x.request.code);
    fields_str(&f, "context_id", FIELD_OPTIONAL, 0, EXECUTION_ID, &x.context_id);
    fields_str(&f, "language", FIELD_OPTIONAL, 0, 63, &k.request.language);
    fields_env(&f, "env_vars", FIELD_OPTIONAL, &x.env, NULL);

    int r = fields_finish(&f, e);
    if (r == 0 && x.context_id && k.request.language) {
        r = answer_text(c, 400, "Only one of context_id or language can be provided");
    } else if (r == 0) {
        x.request.code_len = strlen(x.request.code);
        x.request.env = msg_list_of(&x.env);
        snprintf(c->summary, sizeof c->summary, "%.200s", x.request.code);
        r = run(c, &x, &k, e);
    }
    msg_list_writer_done(&x.env);
    return r;
}
