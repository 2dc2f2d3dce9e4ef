/* The table of the E2B door: every path that it answers. docs/e2b.md says what they do; a test
 * compares the two. */
#include "api/e2b.h"

#include "base/banned.h"

#define C "/sandboxes/{sandboxID}"

const struct route e2b_control_routes[] = {
    {"GET", C, e2b_get, ROUTE_SANDBOX, NULL},
};
const unsigned e2b_control_route_count = sizeof e2b_control_routes / sizeof *e2b_control_routes;

#define P "/process.Process/"
#define F "/filesystem.Filesystem/"

const struct route e2b_envd_routes[] = {
    {"GET", "/health", envd_health, ROUTE_OPEN, NULL},
    {"POST", F "Stat", rpc_fs_stat, ROUTE_RPC, NULL},
    {"POST", F "MakeDir", rpc_fs_make_dir, ROUTE_RPC | ROUTE_WORK, "file.mkdir"},
    {"POST", F "Move", rpc_fs_move, ROUTE_RPC | ROUTE_WORK, "file.move"},
    {"POST", F "ListDir", rpc_fs_list_dir, ROUTE_RPC, NULL},
    {"POST", F "Remove", rpc_fs_remove, ROUTE_RPC | ROUTE_WORK, "file.delete"},
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
