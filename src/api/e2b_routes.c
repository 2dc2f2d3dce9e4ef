/* The table of the E2B door: every path that it answers. docs/e2b.md lists them; a test
 * compares the two. */
#include "api/e2b.h"
#include "api/e2b_handlers.h"

#include "base/banned.h"

#define C "/sandboxes/{sandboxID}"
#define T "/templates/{templateID}"

const struct route e2b_control_routes[] = {
    {"POST", "/sandboxes", e2b_create, ROUTE_WORK, "sandbox.create"},
    {"POST", "/v2/sandboxes", e2b_create_v2, ROUTE_WORK, "sandbox.create"},
    {"GET", "/sandboxes", e2b_list_running, 0, NULL},
    {"GET", "/v2/sandboxes", e2b_list, 0, NULL},
    {"GET", "/sandboxes/metrics", e2b_metrics_of_many, 0, NULL},
    {"GET", C, e2b_get, ROUTE_SANDBOX, NULL},
    {"DELETE", C, e2b_kill, ROUTE_SANDBOX, "sandbox.delete"},
    {"POST", C "/timeout", e2b_timeout, ROUTE_SANDBOX, "sandbox.extend"},
    {"POST", C "/refreshes", e2b_refresh, ROUTE_SANDBOX, "sandbox.extend"},
    {"POST", C "/connect", e2b_connect, ROUTE_SANDBOX | ROUTE_WORK, "sandbox.connect"},
    {"POST", "/v2" C "/connect", e2b_connect_v2, ROUTE_SANDBOX | ROUTE_WORK, "sandbox.connect"},
    {"POST", C "/pause", e2b_pause, ROUTE_SANDBOX | ROUTE_WORK, "sandbox.pause"},
    {"POST", C "/resume", e2b_resume, ROUTE_SANDBOX | ROUTE_WORK, "sandbox.resume"},
    {"PUT", C "/network", e2b_network, ROUTE_SANDBOX, "sandbox.network"},
    {"GET", C "/metrics", e2b_metrics, ROUTE_SANDBOX, NULL},
    {"GET", C "/logs", e2b_logs, ROUTE_SANDBOX, NULL},
    {"GET", "/v2" C "/logs", e2b_logs_v2, ROUTE_SANDBOX, NULL},
    {"POST", C "/snapshots", e2b_snapshot_create, ROUTE_SANDBOX | ROUTE_WORK, "snapshot.create"},
    {"POST", C "/fork", e2b_fork, ROUTE_SANDBOX | ROUTE_WORK, "sandbox.fork"},
    {"GET", "/snapshots", e2b_snapshots_list, 0, NULL},

    {"GET", "/templates", e2b_templates_list, 0, NULL},
    {"GET", "/v2/templates", e2b_templates_list, 0, NULL},
    {"GET", "/templates/aliases/{alias}", e2b_template_alias, 0, NULL},
    {"POST", "/templates/tags", e2b_tags_assign, 0, "template.tag"},
    {"DELETE", "/templates/tags", e2b_tags_remove, 0, "template.tag"},
    {"GET", T, e2b_template_get, 0, NULL},
    {"DELETE", T, e2b_template_delete, 0, "template.delete"},
    {"PATCH", T, e2b_template_patch, 0, NULL},
    {"PATCH", "/v2" T, e2b_template_patch, 0, NULL},
    {"POST", "/v2/templates", e2b_build_request_v2, ROUTE_WORK, NULL},
    {"POST", "/v3/templates", e2b_build_request, ROUTE_WORK, NULL},
    {"GET", T "/files/{hash}", e2b_build_files, 0, NULL},
    {"PUT", "/templates/upload/{permit}", e2b_build_upload, ROUTE_OPEN, "template.files"},
    {"POST", "/v2" T "/builds/{buildID}", e2b_build_start, ROUTE_WORK, "template.build"},
    {"GET", T "/builds/{buildID}/status", e2b_build_status, 0, NULL},
    {"GET", T "/builds/{buildID}/logs", e2b_build_logs, 0, NULL},
    {"GET", T "/tags", e2b_tags_list, 0, NULL},
    {"POST", "/templates", e2b_not_here, 0, NULL},
    {"POST", T, e2b_not_here, 0, NULL},
    {"POST", T "/builds/{buildID}", e2b_not_here, 0, NULL},
    {"*", "/volumes", e2b_not_here, 0, NULL},
    {"*", "/volumes", e2b_not_here, ROUTE_REST, NULL},
    {"*", "/volumecontent", e2b_not_here, ROUTE_REST, NULL},
    {"*", "/secrets", e2b_not_here, 0, NULL},
    {"*", "/secrets", e2b_not_here, ROUTE_REST, NULL},
    {"*", "/teams", e2b_not_here, 0, NULL},
    {"*", "/teams", e2b_not_here, ROUTE_REST, NULL},
};
const unsigned e2b_control_route_count = sizeof e2b_control_routes / sizeof *e2b_control_routes;

#define P "/process.Process/"
#define F "/filesystem.Filesystem/"

const struct route e2b_envd_routes[] = {
    {"GET", "/health", envd_health, ROUTE_OPEN, NULL},
    {"GET", "/files", envd_files_get, ROUTE_WORK, "file.read"},
    {"POST", "/files", envd_files_post, ROUTE_WORK, "file.write"},
    {"POST", "/files/compose", envd_files_compose, ROUTE_WORK, "file.write"},
    {"POST", F "Stat", rpc_fs_stat, ROUTE_RPC, NULL},
    {"POST", F "MakeDir", rpc_fs_make_dir, ROUTE_RPC | ROUTE_WORK, "file.mkdir"},
    {"POST", F "Move", rpc_fs_move, ROUTE_RPC | ROUTE_WORK, "file.move"},
    {"POST", F "ListDir", rpc_fs_list_dir, ROUTE_RPC, NULL},
    {"POST", F "Remove", rpc_fs_remove, ROUTE_RPC | ROUTE_WORK, "file.delete"},
    {"POST", F "WatchDir", rpc_fs_watch_dir, ROUTE_RPC_STREAM, NULL},
    {"POST", F "CreateWatcher", rpc_fs_create_watcher, ROUTE_RPC, NULL},
    {"POST", F "GetWatcherEvents", rpc_fs_get_watcher_events, ROUTE_RPC, NULL},
    {"POST", F "RemoveWatcher", rpc_fs_remove_watcher, ROUTE_RPC, NULL},
    {"GET", "/envs", envd_envs, 0, NULL},
    {"GET", "/metrics", envd_metrics, 0, NULL},
    {"POST", "/init", envd_init, 0, NULL},
    {"POST", P "Start", rpc_process_start, ROUTE_RPC_STREAM | ROUTE_WORK, "exec"},
    {"POST", P "Connect", rpc_process_connect, ROUTE_RPC_STREAM, NULL},
    {"POST", P "List", rpc_process_list, ROUTE_RPC, NULL},
    {"POST", P "SendInput", rpc_process_send_input, ROUTE_RPC, NULL},
    {"POST", P "StreamInput", rpc_process_stream_input, ROUTE_RPC_STREAM, NULL},
    {"POST", P "SendSignal", rpc_process_send_signal, ROUTE_RPC, "process.signal"},
    {"POST", P "Update", rpc_process_update, ROUTE_RPC, NULL},
    {"POST", P "CloseStdin", rpc_process_close_stdin, ROUTE_RPC, NULL},
};
const unsigned e2b_envd_route_count = sizeof e2b_envd_routes / sizeof *e2b_envd_routes;

const struct route e2b_code_routes[] = {
    {"GET", "/health", code_health, ROUTE_OPEN, NULL},
    {"POST", "/execute", code_execute, ROUTE_WORK | ROUTE_TOKEN, "context.execute"},
    {"POST", "/contexts", code_context_create, ROUTE_WORK, "context.create"},
    {"GET", "/contexts", code_context_list, 0, NULL},
    {"POST", "/contexts/{id}/restart", code_context_restart, ROUTE_WORK, "context.restart"},
    {"DELETE", "/contexts/{id}", code_context_delete, 0, "context.delete"},
};
const unsigned e2b_code_route_count = sizeof e2b_code_routes / sizeof *e2b_code_routes;
