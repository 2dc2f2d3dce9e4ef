/* e2b_handlers: every function that a row of e2b_routes.c names, by the file that has it. */
#pragma once

struct call;
struct pd_err;

#define HANDLER(name) int name(struct call *c, struct pd_err *e)
/* e2b_code.c */
HANDLER(code_health);
HANDLER(code_execute);
HANDLER(code_context_create);
HANDLER(code_context_list);
HANDLER(code_context_restart);
HANDLER(code_context_delete);
/* e2b_create.c */
HANDLER(e2b_create);
HANDLER(e2b_create_v2);
HANDLER(e2b_fork);
/* e2b_network.c */
HANDLER(e2b_network);
/* e2b_sandboxes.c */
HANDLER(e2b_list);
HANDLER(e2b_list_running);
HANDLER(e2b_get);
HANDLER(e2b_kill);
HANDLER(e2b_timeout);
HANDLER(e2b_refresh);
HANDLER(e2b_connect);
HANDLER(e2b_pause);
HANDLER(e2b_connect_v2);
HANDLER(e2b_resume);
/* e2b_observe.c */
HANDLER(e2b_metrics);
HANDLER(e2b_metrics_of_many);
HANDLER(e2b_logs);
HANDLER(e2b_logs_v2);
HANDLER(envd_metrics);
HANDLER(envd_envs);
HANDLER(envd_health);
HANDLER(envd_init);
/* e2b_snapshots.c */
HANDLER(e2b_snapshot_create);
HANDLER(e2b_snapshots_list);
HANDLER(e2b_template_delete);
HANDLER(e2b_template_alias);
HANDLER(e2b_templates_list);
HANDLER(e2b_not_here); /* volumes, secrets: refused by name */
/* e2b_builds.c */
HANDLER(e2b_build_request);
HANDLER(e2b_build_request_v2);
HANDLER(e2b_build_files);
HANDLER(e2b_build_upload);
HANDLER(e2b_build_start);
HANDLER(e2b_build_status);
HANDLER(e2b_build_logs);
HANDLER(e2b_tags_assign);
HANDLER(e2b_tags_remove);
HANDLER(e2b_tags_list);
HANDLER(e2b_template_get);
HANDLER(e2b_template_patch);
/* e2b_files.c */
HANDLER(envd_files_get);
HANDLER(envd_files_post);
HANDLER(envd_files_compose);
/* e2b_process.c */
HANDLER(rpc_process_start);
HANDLER(rpc_process_connect);
HANDLER(rpc_process_list);
HANDLER(rpc_process_send_input);
HANDLER(rpc_process_stream_input);
HANDLER(rpc_process_send_signal);
HANDLER(rpc_process_update);
HANDLER(rpc_process_close_stdin);
/* e2b_filesystem.c */
HANDLER(rpc_fs_stat);
HANDLER(rpc_fs_make_dir);
HANDLER(rpc_fs_move);
HANDLER(rpc_fs_list_dir);
HANDLER(rpc_fs_remove);
/* e2b_watch.c */
HANDLER(rpc_fs_watch_dir);
HANDLER(rpc_fs_create_watcher);
HANDLER(rpc_fs_get_watcher_events);
HANDLER(rpc_fs_remove_watcher);
#undef HANDLER
