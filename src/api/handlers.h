/* handlers: every function that a row of routes.c names, by the file that has it. */
#pragma once

struct call;
struct pd_err;

#define HANDLER(name) int name(struct call *c, struct pd_err *e)

/* archive.c */
HANDLER(archive_get);
HANDLER(archive_put);

/* attach.c */
HANDLER(process_attach);

/* changes.c */
HANDLER(changes_get);

/* console.c */
HANDLER(console_index);
HANDLER(console_file);

/* contexts.c */
HANDLER(contexts_post);
HANDLER(contexts_get);
HANDLER(context_get_one);
HANDLER(context_delete_one);
HANDLER(context_execute);
HANDLER(context_execution);
HANDLER(context_post_fork);
HANDLER(context_post_interrupt);
HANDLER(context_post_restart);
HANDLER(context_post_undo);

/* documents.c */
HANDLER(openapi_get);
HANDLER(docs_get);

/* network.c */
HANDLER(network_get);
HANDLER(network_log);
HANDLER(network_put);
HANDLER(secrets_list);
HANDLER(secret_get);
HANDLER(secret_put);
HANDLER(secret_delete);

/* env.c */
HANDLER(env_get);
HANDLER(env_put);

/* exec.c */
HANDLER(exec_post);

/* files.c */
HANDLER(files_get);
HANDLER(files_put);
HANDLER(files_delete);
HANDLER(files_list);
HANDLER(files_stat);
HANDLER(files_mkdir);
HANDLER(files_move);
HANDLER(files_copy);
HANDLER(files_chmod);

/* files_search.c */
HANDLER(files_search);
HANDLER(files_replace);

/* images.c */
HANDLER(images_list_get);
HANDLER(images_pull);
HANDLER(images_import);
HANDLER(images_prune_post);
HANDLER(image_get);
HANDLER(image_delete);

/* keys.c */
HANDLER(keys_list);
HANDLER(keys_create);
HANDLER(keys_revoke);

/* login.c */
HANDLER(console_login);
HANDLER(console_logout);
HANDLER(console_link);
HANDLER(console_me);

/* mcp.c */
HANDLER(mcp_post);
HANDLER(mcp_delete);

/* metrics.c */
HANDLER(sandbox_metrics);
HANDLER(sandbox_events);
HANDLER(providers_list);
HANDLER(health_get);
HANDLER(ready_get);
HANDLER(metrics_get);

/* overview.c */
HANDLER(overview_get);
HANDLER(audit_get);

/* ports.c */
HANDLER(ports_list);
HANDLER(ports_proxy);

/* preview.c */
HANDLER(ports_preview);
HANDLER(links_get);
HANDLER(link_delete);

/* processes.c */
HANDLER(processes_start);
HANDLER(processes_list);
HANDLER(process_get_one);
HANDLER(process_delete);
HANDLER(process_post_signal);
HANDLER(process_post_stdin);
HANDLER(process_post_resize);
HANDLER(process_get_output);

/* router.c */
HANDLER(route_get);
HANDLER(router_get);
HANDLER(router_replace);

/* sandboxes.c */
HANDLER(sandboxes_create);
HANDLER(sandboxes_list);
HANDLER(sandbox_get);
HANDLER(sandbox_delete);
HANDLER(sandbox_pause);
HANDLER(sandbox_move);
HANDLER(sandbox_resume);
HANDLER(sandbox_extend);
HANDLER(session_put);
HANDLER(session_get_thread);
HANDLER(session_delete);

/* snapshots.c */
HANDLER(sandbox_fork);
HANDLER(snapshot_create);
HANDLER(snapshots_get);
HANDLER(snapshot_remove);

/* templates.c */
HANDLER(templates_list);

/* builds.c */
HANDLER(templates_build);
HANDLER(template_get);
HANDLER(template_remove);
HANDLER(template_build_get);
HANDLER(template_build_delete);
HANDLER(template_cache_delete);
HANDLER(template_files_get);
HANDLER(template_files_put);

/* tickets.c */
HANDLER(files_ticket);
HANDLER(ticket_get);

/* watch.c */
HANDLER(files_watch);

#undef HANDLER
