/* Code contexts of a sandbox, and the cells that run in them. The calling thread owns the execution
 * of its cell: it sees to its turn and its time while it waits for news (core/context.h), and
 * passes each on as the line of JSON that a client of the server would get. */
#include "lib/lib.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/json.h"
#include "core/context_json.h"

#define EVENT_LINE_MAX (EVENT_MAX + (1u << 20)) /* what a driver said, in our words */
#define LIST_MAX       (1u << 20)

/* ---- descriptions ---- */

/* The text goes to the caller, who frees it. */
static int give_text(struct buf *b, char **ret, struct paddock_error *e)
{
    const char *text = buf_cstr(b);
    char *copy = text ? strdup(text) : NULL;
    if (!copy)
        return lib_refuse(e, PD_CAPACITY, "no memory for an answer");

    *ret = copy;
    return 0;
}

static int give_context(struct context *c, char **ret, struct paddock_error *e)
{
    auto_buf b = BUF_INIT(LIST_MAX);
    struct json j = JSON_INIT(&b);
    struct context_info i;

    if (!ret)
        return 0;

    context_get(c, &i);
    context_json(&j, &i);
    return give_text(&b, ret, e);
}

/* A context by its id or its language. */
static struct context *find(struct paddock_sandbox *s, const char *name, struct pd_err *e)
{
    struct context_request r = {.env = {.text = ""}};
    return context_find(s->session, name ? name : "python", &r, e);
}

int paddock_context_create(struct paddock_sandbox *s, const struct paddock_context_options *o,
                           char **ret_json, struct paddock_error *e)
{
    struct paddock_context_options given;
    struct msg_list_writer env = MSG_LIST_WRITER_INIT;
    struct context *c;
    struct pd_err why;

    if (lib_usable(s->lib, e) < 0 ||
        lib_take(&given, sizeof given, o, "paddock_context_options", e) < 0 ||
        lib_list(given.env, "env", 1, &env, e) < 0)
        return -1;

    struct context_request r = {
        .language = given.language, .cwd = given.cwd, .name = given.name, .env = msg_list_of(&env)};
    int done = context_create(s->session, &r, &c, &why);
    msg_list_writer_done(&env);
    if (done < 0)
        return lib_fail(e, &why);

    done = give_context(c, ret_json, e);
    context_unref(c);
    return done;
}

int paddock_context_list(struct paddock_sandbox *s, char **ret_json, struct paddock_error *e)
{
    struct context_request r = {.env = {.text = ""}};
    auto_buf b = BUF_INIT(LIST_MAX);
    struct json j = JSON_INIT(&b);
    struct context **list;
    unsigned count;
    struct pd_err why;

    if (lib_usable(s->lib, e) < 0)
        return -1;
    if (contexts_list(s->session, &r, &list, &count, &why) < 0)
        return lib_fail(e, &why);

    json_open(&j, '[');
    for (unsigned i = 0; i < count; i++) {
        struct context_info info;
        context_get(list[i], &info);
        context_json(&j, &info);
    }
    json_close(&j, ']');

    contexts_free(list, count);
    return give_text(&b, ret_json, e);
}

/* Finds a context, has something done with it and describes what it is then, if anybody wants to
 * know. */
static int change(struct paddock_sandbox *s, const char *name,
                  int (*step)(struct context *, struct pd_err *), char **ret_json,
                  struct paddock_error *e)
{
    struct pd_err why;
    if (lib_usable(s->lib, e) < 0)
        return -1;

    struct context *c = find(s, name, &why);
    if (!c)
        return lib_fail(e, &why);

    int r = step(c, &why);
    if (r < 0)
        (void)lib_fail(e, &why);
    else if (ret_json)
        r = give_context(c, ret_json, e);
    context_unref(c);
    return r;
}

int paddock_context_restart(struct paddock_sandbox *s, const char *context, char **ret_json,
                            struct paddock_error *e)
{
    return change(s, context, context_restart, ret_json, e);
}

int paddock_context_undo(struct paddock_sandbox *s, const char *context, char **ret_json,
                         struct paddock_error *e)
{
    return change(s, context, context_undo, ret_json, e);
}

static int interrupt(struct context *c, struct pd_err *e)
{
    (void)e;
    return context_interrupt(c);
}

int paddock_context_interrupt(struct paddock_sandbox *s, const char *context,
                              struct paddock_error *e)
{
    return change(s, context, interrupt, NULL, e);
}

int paddock_context_delete(struct paddock_sandbox *s, const char *context, struct paddock_error *e)
{
    return change(s, context, context_delete, NULL, e);
}

int paddock_context_fork(struct paddock_sandbox *s, const char *context, int force, char **ret_json,
                         struct paddock_error *e)
{
    struct context *copy = NULL;
    struct pd_err why;
    if (lib_usable(s->lib, e) < 0)
        return -1;

    struct context *c = find(s, context, &why);
    int r = c ? context_fork(c, NULL, force, &copy, &why) : -1;
    r = r < 0 ? lib_fail(e, &why) : give_context(copy, ret_json, e);
    context_unref(copy);
    context_unref(c);
    return r;
}

/* ---- cells ---- */

/* Tells the news of a cell until its end. 1: nobody wants to hear more. */
static int tell_all(const struct paddock_cell *c, struct execution_follow *f, struct pd_err *e)
{
    auto_buf line = BUF_INIT(EVENT_LINE_MAX);

    for (;;) {
        enum execution_news news;
        if (execution_next(f, lib_cancel_fd(c->cancel), 0, DEADLINE_NONE, &news, e) < 0)
            return -1;
        if (news == NEWS_LEFT)
            return 1;

        buf_clear(&line);
        execution_line(f, news, FORM_OWN, &line);
        if (line.overflow)
            return pd_fail(e, PD_TOO_LARGE, "an event of more than %u bytes", EVENT_LINE_MAX);
        if (line.len && c->on_event && c->on_event(c->arg, buf_cstr(&line), line.len))
            return 1;
        if (news == NEWS_END)
            return 0;
    }
}

static int run(struct paddock_sandbox *s, const struct paddock_cell *c,
               const struct execution_request *r, struct pd_err *e)
{
    struct execution_follow f;
    struct execution *x;
    bool known;

    struct context *context = find(s, c->context, e);
    if (!context)
        return -1;

    int done = execution_submit(context, r, &x, &known, e);
    if (done == 0) {
        done = execution_follow(&f, x, context, EXECUTION_OWNED, NULL, e);
        if (done == 0) {
            done = tell_all(c, &f, e);
            execution_follow_end(&f, false);
        }
        execution_unref(x);
    }

    context_unref(context);
    return done;
}

int paddock_run_cell(struct paddock_sandbox *s, const struct paddock_cell *given,
                     struct paddock_error *e)
{
    struct paddock_cell c;
    struct msg_list_writer env = MSG_LIST_WRITER_INIT;
    struct pipe_guard guard;
    struct pd_err why;

    if (lib_usable(s->lib, e) < 0 || lib_take(&c, sizeof c, given, "paddock_cell", e) < 0)
        return -1;
    if (!c.code || c.code_len > CODE_MAX)
        return lib_refuse(e, PD_INVALID, "code: %zu bytes; 1 to %u are taken",
                          c.code ? c.code_len : 0, CODE_MAX);
    if (c.timeout_ms > UINT64_MAX / NS_PER_MS)
        return lib_refuse(e, PD_INVALID, "timeout_ms: %llu is too long",
                          (unsigned long long)c.timeout_ms);
    if (lib_list(c.env, "env", 1, &env, e) < 0)
        return -1;

    struct execution_request r = {.code = c.code,
                                  .code_len = c.code_len,
                                  .env = msg_list_of(&env),
                                  .timeout_ns = c.timeout_ms * NS_PER_MS,
                                  .keep_before = c.keep_before};
    pipe_guard_begin(&guard);
    int done = run(s, &c, &r, &why);
    pipe_guard_end(&guard);
    msg_list_writer_done(&env);

    if (done < 0)
        return lib_fail_or_cancelled(e, &why, c.cancel);
    if (done == 0)
        return 0;
    if (e) {
        *e = (struct paddock_error){.code = "cancelled"};
        snprintf(e->message, sizeof e->message, "the cell was interrupted: nobody waits for it");
    }
    return -1;
}
