/* `paddock overview` and `paddock audit`: the tenant and, to an admin key, the server at a glance;
 * and what was done, newest first. */
#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"
#include "client/client.h"
#include "client/table.h"

const char overview_usage[] =
    "usage: paddock overview [--json]\n\n"
    "How many sandboxes there are, by state; to an admin key also the server's: its queue, its\n"
    "pool, what was made, refused and ended since it started, and what took longest to make.\n\n"
    "  --json  as JSON\n";

static void put_figure(struct table *t, const char *of, const char *what, const json_t *object,
                       const char *member)
{
    table_put(t, of);
    table_put(t, what);
    table_printf(t, "%lld", (long long)json_field_int(object, member));
}

static void put_states(struct table *t, const char *of, const json_t *holder)
{
    static const char *const states[] = {"creating", "running", "paused", "stopping", "gone"};
    const json_t *counts = json_object_get(holder, "sandboxes");

    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        put_figure(t, of, states[i], counts, states[i]);
    put_figure(t, of, "at most (0: any number)", holder, "max_sandboxes");
}

static void put_causes(struct table *t, const json_t *since, const char *member, const char *what)
{
    json_t *counts = json_object_get(since, member), *count;
    const char *cause;

    json_object_foreach(counts, cause, count)
    {
        char text[96];
        snprintf(text, sizeof text, "%s: %s", what, cause);
        put_figure(t, "since start", text, counts, cause);
    }
}

static void put_slowest(struct table *t, const json_t *server)
{
    size_t i;
    json_t *slow;

    json_array_foreach(json_object_get(server, "slowest_creations"), i, slow)
    {
        char text[256];
        snprintf(text, sizeof text, "%s of %s: ms to make", json_field(slow, "sandbox"),
                 json_field(slow, "tenant"));
        table_put(t, "slowest of the hour");
        table_put(t, text);
        table_printf(t, "%.0f", json_number_value(json_object_get(slow, "ms")));
    }
}

static void put_server(struct table *t, json_t *server)
{
    const json_t *pool = json_object_get(server, "pool");
    const json_t *since = json_object_get(server, "since_start");

    put_states(t, "server", server);
    put_figure(t, "now", "waiting for room", server, "queued");
    put_figure(t, "now", "commands that run", server, "commands_running");
    put_figure(t, "now", "bytes of output kept", server, "output_kept_bytes");
    put_figure(t, "now", "ready in the pool", pool, "ready");
    put_figure(t, "since start", "made", since, "created");
    put_figure(t, "since start", "made from the pool", pool, "hits");
    put_figure(t, "since start", "could not be made", since, "create_failed");
    put_figure(t, "since start", "refused: queue was full", since, "queue_refused");
    put_figure(t, "since start", "commands", since, "commands");
    put_causes(t, since, "ended", "ended");
    put_causes(t, since, "stopped", "commands stopped");
    put_causes(t, since, "refused", "requests refused");
    put_slowest(t, server);
}

static int print_overview(json_t *answer)
{
    const json_t *tenant = json_object_get(answer, "tenant");
    json_t *server = json_object_get(answer, "server");
    auto_table t;

    table_init(&t, "OF WHAT >COUNT");
    put_states(&t, json_field(tenant, "name"), tenant);
    if (json_is_object(server))
        put_server(&t, server);
    return table_print(&t, stdout);
}

int cmd_overview(int argc, char **argv)
{
    struct pd_err e;
    json_auto_t *answer = NULL;
    int json = 0;

    if (only_json(argc, argv, &json, &e) < 0)
        return usage_fail(&e);
    auto_remote *r = remote_new(&e);
    if (!r || remote_get(r, "/v1/overview", &answer, &e) < 0)
        return client_fail(&e);
    return (json ? print_json(answer) : print_overview(answer)) < 0 ? EXIT_FAILED : 0;
}

const char audit_usage[] =
    "usage: paddock audit [OPTIONS]\n\n"
    "What was done, by whom, and what came of it, newest first.\n\n"
    "  --action ACTION  only this one, such as sandbox.create; `file.` is all of that family\n"
    "  --key ID         only what was done with this key\n"
    "  --result WORD    only `ok`, or the code of an error, such as denied\n"
    "  --sandbox ID     only about this sandbox\n"
    "  --tenant NAME    another tenant's, or `*` for all; needs an admin key\n"
    "  --limit N        at most so many; default 100\n"
    "  --json           a line of JSON for each\n";

#define AUDIT_PAGE 1000u

struct audit {
    struct buf target; /* without limit and cursor */
    uint64_t limit;
    int json;
};

static int parse_audit(int argc, char **argv, struct audit *a, struct pd_err *e)
{
    static const char *const filters[] = {"--action", "--key", "--result", "--sandbox", "--tenant"};
    struct options o = OPTIONS_INIT(argc, argv);

    while (options_next(&o)) {
        size_t i = 0, count = sizeof filters / sizeof *filters;
        const char *v;
        while (i < count && !options_is(&o, NULL, filters[i]))
            i++;

        if (i < count) {
            if (!(v = options_value(&o, e)))
                return -1;
            buf_printf(&a->target, "&%s=", filters[i] + 2);
            put_encoded(&a->target, v);
        } else if (options_is(&o, NULL, "--limit")) {
            if (!(v = options_value(&o, e)) ||
                parse_u64("--limit", v, 1, 1000000, &a->limit, e) < 0)
                return -1;
        } else if (options_is(&o, NULL, "--json")) {
            if (options_no_value(&o, e) < 0)
                return -1;
            a->json = 1;
        } else {
            return usage_unknown(&o, e);
        }
    }
    return o.at < argc ? pd_fail(e, PD_INVALID, "'%.60s': audit takes no argument", argv[o.at]) : 0;
}

static void put_event(struct table *t, const json_t *one)
{
    char text[120];

    table_put(t, json_field(one, "time"));
    table_put(t, json_field(one, "action"));
    if (json_is_integer(json_object_get(one, "exit_code")))
        snprintf(text, sizeof text, "%.80s, exit %lld", json_field(one, "result"),
                 (long long)json_field_int(one, "exit_code"));
    else
        snprintf(text, sizeof text, "%.80s", json_field(one, "result"));
    table_put(t, text);
    table_printf(t, json_object_get(one, "duration_ms") ? "%.0fms" : "-",
                 json_field_number(one, "duration_ms"));
    table_put(t, json_field(one, "key"));
    table_put(t, json_field(one, "sandbox"));
    table_put(t, json_field(one, "command"));
}

/* Page by page: one may have no event, and others behind it all the same. */
static int show_events(struct remote *r, struct audit *a, struct table *t, struct pd_err *e)
{
    char cursor[256] = "";
    uint64_t left = a->limit;

    do {
        auto_buf target = BUF_INIT(HTTP_TARGET_MAX);
        json_auto_t *page = NULL;
        json_t *one;
        size_t i;

        buf_printf(&target, "/v1/audit?limit=%llu",
                   (unsigned long long)(left < AUDIT_PAGE ? left : AUDIT_PAGE));
        buf_put(&target, a->target.data, a->target.len);
        if (cursor[0]) {
            buf_puts(&target, "&cursor=");
            put_encoded(&target, cursor);
        }
        const char *text = buf_cstr(&target);
        if (!text)
            return pd_fail(e, PD_INVALID, "the filters are too long");
        if (remote_get(r, text, &page, e) < 0)
            return -1;

        json_t *events = json_object_get(page, "events");
        json_array_foreach(events, i, one)
        {
            if (!a->json)
                put_event(t, one);
            else if (print_json(one) < 0)
                return pd_fail(e, PD_LOST, "standard output is closed");
        }
        uint64_t count = json_array_size(events);
        left -= count < left ? count : left;
        snprintf(cursor, sizeof cursor, "%s", json_field(page, "next_cursor"));
    } while (left && cursor[0]);
    return 0;
}

int cmd_audit(int argc, char **argv)
{
    struct pd_err e;
    struct audit a = {.target = BUF_INIT(HTTP_TARGET_MAX), .limit = 100};
    auto_table t;

    table_init(&t, "TIME ACTION RESULT >TOOK KEY SANDBOX WHAT");
    table_fit(&t, STDOUT_FILENO);
    if (parse_audit(argc, argv, &a, &e) < 0) {
        buf_done(&a.target);
        return usage_fail(&e);
    }
    auto_remote *r = remote_new(&e);
    int bad = r ? show_events(r, &a, &t, &e) : -1;
    buf_done(&a.target);
    if (bad < 0)
        return client_fail(&e);
    return !a.json && table_print(&t, stdout) < 0 ? EXIT_FAILED : 0;
}
