/* The table: every path that the server answers. api/openapi.yaml says what they mean; a test
 * compares the two in both directions. */
#include "api/call.h"
#include "api/handlers.h"

#include "base/banned.h"

#define S "/v1/sandboxes/{id}"
#define P S "/processes/{pid}"
#define F S "/files"
#define X S "/contexts/{cid}"

const struct route api_routes[] = {
    {"POST", "/v1/sandboxes", sandboxes_create, ROUTE_WORK, "sandbox.create"},
    {"GET", "/v1/sandboxes", sandboxes_list, 0, NULL},
    {"GET", S, sandbox_get, ROUTE_SANDBOX, NULL},
    {"DELETE", S, sandbox_delete, ROUTE_SANDBOX, "sandbox.delete"},
    {"POST", S "/pause", sandbox_pause, ROUTE_SANDBOX | ROUTE_WORK, "sandbox.pause"},
    {"POST", S "/move", sandbox_move, ROUTE_SANDBOX | ROUTE_WORK, "sandbox.move"},
    {"POST", S "/resume", sandbox_resume, ROUTE_SANDBOX | ROUTE_WORK, "sandbox.resume"},
    {"POST", S "/extend", sandbox_extend, ROUTE_SANDBOX, "sandbox.extend"},
    {"POST", S "/fork", sandbox_fork, ROUTE_SANDBOX | ROUTE_WORK, "sandbox.fork"},
    {"POST", S "/snapshots", snapshot_create, ROUTE_SANDBOX | ROUTE_WORK, "snapshot.create"},
    {"GET", "/v1/snapshots", snapshots_get, 0, NULL},
    {"DELETE", "/v1/snapshots/{snapshot}", snapshot_remove, 0, "snapshot.delete"},

    {"GET", "/v1/images", images_list_get, 0, NULL},
    {"POST", "/v1/images", images_pull, ROUTE_WORK, "image.pull"},
    {"POST", "/v1/image-archives", images_import, ROUTE_WORK | ROUTE_ADMIN, "image.import"},
    {"POST", "/v1/image-prune", images_prune_post, ROUTE_ADMIN, "image.prune"},
    {"GET", "/v1/images/{image}", image_get, 0, NULL},
    {"DELETE", "/v1/images/{image}", image_delete, ROUTE_ADMIN, "image.delete"},

    {"GET", "/v1/templates", templates_list, 0, NULL},
    {"POST", "/v1/templates", templates_build, ROUTE_WORK, "template.build"},
    {"GET", "/v1/templates/{template}", template_get, 0, NULL},
    {"DELETE", "/v1/templates/{template}", template_remove, 0, "template.delete"},
    {"GET", "/v1/templates/{template}/builds/{build}", template_build_get, 0, NULL},
    {"DELETE", "/v1/templates/{template}/builds/{build}", template_build_delete, 0,
     "template.cancel"},
    {"DELETE", "/v1/build-cache", template_cache_delete, 0, "template.prune"},
    {"GET", "/v1/build-files/{digest}", template_files_get, 0, NULL},
    {"PUT", "/v1/build-files/{digest}", template_files_put, ROUTE_WORK, "template.files"},

    {"PUT", "/v1/sessions/{user_id}/{thread_id}", session_put, ROUTE_WORK, "session.open"},
    {"GET", "/v1/sessions/{user_id}/{thread_id}", session_get_thread, 0, NULL},
    {"DELETE", "/v1/sessions/{user_id}/{thread_id}", session_delete, 0, "session.delete"},

    {"POST", S "/exec", exec_post, ROUTE_SANDBOX | ROUTE_WORK, "exec"},
    {"POST", S "/processes", processes_start, ROUTE_SANDBOX | ROUTE_WORK, "process.start"},
    {"GET", S "/processes", processes_list, ROUTE_SANDBOX | ROUTE_LOOK, NULL},
    {"GET", P, process_get_one, ROUTE_SANDBOX, NULL},
    {"DELETE", P, process_delete, ROUTE_SANDBOX, "process.kill"},
    {"POST", P "/signal", process_post_signal, ROUTE_SANDBOX, "process.signal"},
    {"POST", P "/stdin", process_post_stdin, ROUTE_SANDBOX, NULL},
    {"POST", P "/resize", process_post_resize, ROUTE_SANDBOX, NULL},
    {"GET", P "/output", process_get_output, ROUTE_SANDBOX | ROUTE_LOOK, NULL},
    {"GET", P "/attach", process_attach, ROUTE_SANDBOX | ROUTE_LOOK, "process.attach"},

    {"POST", S "/contexts", contexts_post, ROUTE_SANDBOX | ROUTE_WORK, "context.create"},
    {"GET", S "/contexts", contexts_get, ROUTE_SANDBOX, NULL},
    {"GET", X, context_get_one, ROUTE_SANDBOX, NULL},
    {"DELETE", X, context_delete_one, ROUTE_SANDBOX, "context.delete"},
    {"POST", X "/execute", context_execute, ROUTE_SANDBOX | ROUTE_WORK, "context.execute"},
    {"GET", X "/executions/{eid}", context_execution, ROUTE_SANDBOX, NULL},
    {"POST", X "/interrupt", context_post_interrupt, ROUTE_SANDBOX, "context.interrupt"},
    {"POST", X "/fork", context_post_fork, ROUTE_SANDBOX | ROUTE_WORK, "context.fork"},
    {"POST", X "/undo", context_post_undo, ROUTE_SANDBOX, "context.undo"},
    {"POST", X "/restart", context_post_restart, ROUTE_SANDBOX, "context.restart"},

    {"GET", F, files_get, ROUTE_SANDBOX | ROUTE_LOOK, "file.read"},
    {"PUT", F, files_put, ROUTE_SANDBOX | ROUTE_WORK, "file.write"},
    {"DELETE", F, files_delete, ROUTE_SANDBOX | ROUTE_WORK, "file.delete"},
    {"GET", F "/list", files_list, ROUTE_SANDBOX | ROUTE_LOOK, NULL},
    {"GET", F "/stat", files_stat, ROUTE_SANDBOX | ROUTE_LOOK, NULL},
    {"POST", F "/mkdir", files_mkdir, ROUTE_SANDBOX | ROUTE_WORK, "file.mkdir"},
    {"POST", F "/move", files_move, ROUTE_SANDBOX | ROUTE_WORK, "file.move"},
    {"POST", F "/copy", files_copy, ROUTE_SANDBOX | ROUTE_WORK, "file.copy"},
    {"POST", F "/chmod", files_chmod, ROUTE_SANDBOX | ROUTE_WORK, "file.chmod"},
    {"GET", F "/search", files_search, ROUTE_SANDBOX | ROUTE_LOOK, NULL},
    {"POST", F "/search", files_search, ROUTE_SANDBOX | ROUTE_LOOK, NULL},
    {"POST", F "/replace", files_replace, ROUTE_SANDBOX | ROUTE_WORK, "file.replace"},
    {"POST", F "/ticket", files_ticket, ROUTE_SANDBOX | ROUTE_LOOK, "file.ticket"},
    {"GET", "/v1/tickets/{ticket}", ticket_get, ROUTE_TICKET, "file.read"},
    {"GET", F "/watch", files_watch, ROUTE_SANDBOX | ROUTE_LOOK, NULL},
    {"GET", F "/archive", archive_get, ROUTE_SANDBOX, "archive.read"},
    {"PUT", F "/archive", archive_put, ROUTE_SANDBOX | ROUTE_WORK, "archive.write"},

    {"GET", S "/network", network_get, ROUTE_SANDBOX, NULL},
    {"GET", S "/network/log", network_log, ROUTE_SANDBOX, NULL},
    {"PUT", S "/network", network_put, ROUTE_SANDBOX | ROUTE_WORK, "network.set"},
    {"GET", S "/env", env_get, ROUTE_SANDBOX, NULL},
    {"PUT", S "/env", env_put, ROUTE_SANDBOX | ROUTE_WORK, "env.set"},
    {"GET", S "/ports", ports_list, ROUTE_SANDBOX | ROUTE_LOOK, NULL},
    {"POST", S "/ports/{port}/preview", ports_preview, ROUTE_SANDBOX, "port.preview"},
    {"GET", S "/links", links_get, ROUTE_SANDBOX, NULL},
    {"DELETE", S "/links/{link_id}", link_delete, ROUTE_SANDBOX, "link.revoke"},
    {"*", S "/ports/{port}", ports_proxy, ROUTE_SANDBOX | ROUTE_PREVIEW | ROUTE_REST, NULL},
    {"GET", S "/metrics", sandbox_metrics, ROUTE_SANDBOX, NULL},
    {"GET", S "/events", sandbox_events, ROUTE_SANDBOX, NULL},

    {"GET", "/v1/secrets", secrets_list, 0, NULL},
    {"GET", "/v1/secrets/{name}", secret_get, 0, NULL},
    {"PUT", "/v1/secrets/{name}", secret_put, 0, "secret.set"},
    {"DELETE", "/v1/secrets/{name}", secret_delete, 0, "secret.delete"},

    {"GET", "/v1/overview", overview_get, 0, NULL},
    {"GET", "/v1/audit", audit_get, 0, NULL},
    {"GET", "/v1/keys", keys_list, ROUTE_ADMIN, NULL},
    {"POST", "/v1/keys", keys_create, ROUTE_ADMIN, "key.create"},
    {"DELETE", "/v1/keys/{key_id}", keys_revoke, ROUTE_ADMIN, "key.revoke"},
    {"GET", "/v1/changes", changes_get, 0, NULL},
    {"GET", "/v1/providers", providers_list, 0, NULL},
    {"GET", "/v1/route", route_get, 0, NULL},
    {"GET", "/v1/router", router_get, 0, NULL},
    {"PUT", "/v1/router", router_replace, ROUTE_ADMIN, "router.change"},
    {"POST", "/mcp", mcp_post, ROUTE_WORK, "mcp"},
    {"DELETE", "/mcp", mcp_delete, 0, "session.delete"},
    {"GET", "/healthz", health_get, ROUTE_OPEN, NULL},
    {"GET", "/readyz", ready_get, ROUTE_OPEN, NULL},
    {"GET", "/metrics", metrics_get, ROUTE_OPEN, NULL},
    {"GET", "/openapi.yaml", openapi_get, ROUTE_OPEN, NULL},
    {"GET", "/docs", docs_get, ROUTE_OPEN, NULL},

    {"GET", "/", console_index, ROUTE_OPEN, NULL},
    {"GET", "/console/{file}", console_file, ROUTE_OPEN, NULL},
    {"POST", "/v1/console/login", console_login, ROUTE_OPEN, "console.login"},
    {"DELETE", "/v1/console/login", console_logout, 0, "console.logout"},
    {"POST", "/v1/console/link", console_link, 0, "console.link"},
    {"GET", "/v1/console/me", console_me, 0, NULL},
};
const unsigned api_route_count = sizeof api_routes / sizeof *api_routes;

/* Does the path fit the pattern? Fills the variables. 1, 0, or -1 when a variable is malformed. */
static int match(const struct route *route, struct slice path, struct route_match *m,
                 struct pd_err *e)
{
    const char *pattern = route->pattern;

    m->count = 0;
    while (*pattern) {
        pattern++; /* '/' */
        size_t len = strcspn(pattern, "/");
        struct slice segment;
        int r = url_segment_next(&path, &segment, e);
        if (r <= 0)
            return r;

        if (pattern[0] == '{') {
            if (segment.len == 0)
                return 0;
            if (url_decode("the path", segment, m->var[m->count], sizeof m->var[0], e) < 0)
                return -1;
            m->count++;
        } else if (segment.len != len || memcmp(segment.at, pattern, len) != 0) {
            return 0;
        }
        pattern += len;
    }

    m->rest = path;
    if (route->flags & ROUTE_REST)
        return path.len > 0 && path.at[0] == '/';
    return path.len == 0;
}

static int method_fits(const struct route *route, enum http_method m)
{
    const char *name = http_method_name(m);
    return !strcmp(route->method, "*") || !strcmp(route->method, name) ||
           (m == HTTP_HEAD && !strcmp(route->method, "GET"));
}

int route_find(struct route_table table, struct slice path, enum http_method method,
               const struct route **ret, struct route_match *ret_match,
               char allow[ROUTE_ALLOW_SIZE], struct pd_err *e)
{
    allow[0] = 0;
    for (unsigned i = 0; i < table.count; i++) {
        const struct route *route = &table.rows[i];
        int r = match(route, path, ret_match, e);
        if (r < 0)
            return -1;
        if (r == 0)
            continue;

        if (method_fits(route, method)) {
            *ret = route;
            return 0;
        }
        size_t n = strlen(allow);
        snprintf(allow + n, ROUTE_ALLOW_SIZE - n, "%s%s", n ? ", " : "", route->method);
    }

    if (allow[0])
        return pd_fail(e, PD_METHOD, "%s is not possible here: %s", http_method_name(method),
                       allow);
    return pd_fail(e, PD_NOT_FOUND, "there is no '%.*s': GET /docs lists what there is",
                   path.len > 100 ? 100 : (int)path.len, path.at);
}
