/* The table: every path that the server answers. api/openapi.yaml says what they mean; a test
 * compares the two in both directions. */
#include "api/api.h"

#include "base/banned.h"

#define S "/v1/sandboxes/{id}"
#define P S "/processes/{pid}"
#define F S "/files"

const struct route api_routes[] = {
    {"POST", "/v1/sandboxes", sandboxes_create, ROUTE_WORK, "sandbox.create"},
    {"GET", "/v1/sandboxes", sandboxes_list, 0, NULL},
    {"GET", S, sandbox_get, ROUTE_SANDBOX, NULL},
    {"DELETE", S, sandbox_delete, ROUTE_SANDBOX, "sandbox.delete"},
    {"POST", S "/pause", sandbox_pause, ROUTE_SANDBOX | ROUTE_WORK, "sandbox.pause"},
    {"POST", S "/resume", sandbox_resume, ROUTE_SANDBOX | ROUTE_WORK, "sandbox.resume"},
    {"POST", S "/extend", sandbox_extend, ROUTE_SANDBOX, "sandbox.extend"},

    {"PUT", "/v1/sessions/{user_id}/{thread_id}", session_put, ROUTE_WORK, "session.open"},
    {"GET", "/v1/sessions/{user_id}/{thread_id}", session_get_thread, 0, NULL},
    {"DELETE", "/v1/sessions/{user_id}/{thread_id}", session_delete, 0, "session.delete"},

    {"POST", S "/exec", exec_post, ROUTE_SANDBOX | ROUTE_WORK, "exec"},
    {"POST", S "/processes", processes_start, ROUTE_SANDBOX | ROUTE_WORK, "process.start"},
    {"GET", S "/processes", processes_list, ROUTE_SANDBOX, NULL},
    {"GET", P, process_get_one, ROUTE_SANDBOX, NULL},
    {"DELETE", P, process_delete, ROUTE_SANDBOX, "process.kill"},
    {"POST", P "/signal", process_post_signal, ROUTE_SANDBOX, "process.signal"},
    {"POST", P "/stdin", process_post_stdin, ROUTE_SANDBOX, NULL},
    {"POST", P "/resize", process_post_resize, ROUTE_SANDBOX, NULL},
    {"GET", P "/output", process_get_output, ROUTE_SANDBOX, NULL},
    {"GET", P "/attach", process_attach, ROUTE_SANDBOX, "process.attach"},

    {"GET", F, files_get, ROUTE_SANDBOX, "file.read"},
    {"PUT", F, files_put, ROUTE_SANDBOX | ROUTE_WORK, "file.write"},
    {"DELETE", F, files_delete, ROUTE_SANDBOX | ROUTE_WORK, "file.delete"},
    {"GET", F "/list", files_list, ROUTE_SANDBOX, NULL},
    {"GET", F "/stat", files_stat, ROUTE_SANDBOX, NULL},
    {"POST", F "/mkdir", files_mkdir, ROUTE_SANDBOX | ROUTE_WORK, "file.mkdir"},
    {"POST", F "/move", files_move, ROUTE_SANDBOX | ROUTE_WORK, "file.move"},
    {"POST", F "/copy", files_copy, ROUTE_SANDBOX | ROUTE_WORK, "file.copy"},
    {"POST", F "/chmod", files_chmod, ROUTE_SANDBOX | ROUTE_WORK, "file.chmod"},
    {"GET", F "/search", files_search, ROUTE_SANDBOX, NULL},
    {"POST", F "/search", files_search, ROUTE_SANDBOX, NULL},
    {"POST", F "/replace", files_replace, ROUTE_SANDBOX | ROUTE_WORK, "file.replace"},
    {"GET", F "/watch", files_watch, ROUTE_SANDBOX, NULL},
    {"GET", F "/archive", archive_get, ROUTE_SANDBOX, "archive.read"},
    {"PUT", F "/archive", archive_put, ROUTE_SANDBOX | ROUTE_WORK, "archive.write"},

    {"GET", S "/env", env_get, ROUTE_SANDBOX, NULL},
    {"PUT", S "/env", env_put, ROUTE_SANDBOX | ROUTE_WORK, "env.set"},
    {"GET", S "/ports", ports_list, ROUTE_SANDBOX, NULL},
    {"POST", S "/ports/{port}/preview", ports_preview, ROUTE_SANDBOX, "port.preview"},
    {"*", S "/ports/{port}", ports_proxy, ROUTE_SANDBOX | ROUTE_PREVIEW | ROUTE_REST, NULL},
    {"GET", S "/metrics", sandbox_metrics, ROUTE_SANDBOX, NULL},
    {"GET", S "/events", sandbox_events, ROUTE_SANDBOX, NULL},

    {"GET", "/v1/providers", providers_list, 0, NULL},
    {"GET", "/v1/route", route_get, 0, NULL},
    {"GET", "/healthz", health_get, ROUTE_OPEN, NULL},
    {"GET", "/readyz", ready_get, ROUTE_OPEN, NULL},
    {"GET", "/metrics", metrics_get, ROUTE_OPEN, NULL},
    {"GET", "/openapi.yaml", openapi_get, ROUTE_OPEN, NULL},
    {"GET", "/docs", docs_get, ROUTE_OPEN, NULL},
};
const unsigned api_route_count = sizeof api_routes / sizeof *api_routes;
