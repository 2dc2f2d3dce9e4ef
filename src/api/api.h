/* api: the HTTP doors. A request comes in, is checked, and becomes one call of the session layer.
 *
 * api.c takes a request through the steps that all have in common (host, route, key, rate, the
 * sandbox that the path names) and hands a `struct call` to the handler of its row in routes.c. A
 * handler is written top to bottom: it reads what it needs, does one thing and answers. It returns
 * 0 when it has answered, or -1 with the error, which is answered for it. */
#pragma once

#include "access/auth.h"
#include "api/fields.h"
#include "base/base64.h"
#include "base/buf.h"
#include "base/err.h"
#include "core/sessions.h"
#include "net/server.h"
#include "net/url.h"

#include <stdint.h>

struct config;
struct quota;
struct metrics;
struct audit;
struct preview;
struct access;
struct store;
struct provider;
struct shares;
struct watchers;
struct mcp;
struct call;

#define API_BODY_MAX (2u << 20) /* of a JSON body */
#define API_VARS     3

/* What all handlers use; made once by the server. */
struct api {
    struct sessions *sessions;
    struct provider *provider;
    struct auth *auth;
    struct quota *quota;
    struct shares *shares; /* or NULL: no tenant leaves places for others */
    struct metrics *metrics;
    struct audit *audit; /* or NULL */
    struct preview *preview;
    struct access *access;
    struct watchers *watchers; /* of the E2B door */
    struct mcp *mcp;
    const char *version;                   /* of the server */
    _Atomic(const struct config *) config; /* replaced by a reload; old ones stay */
    _Atomic int draining;                  /* no new work: only what reads */
    _Atomic uint64_t strangers;            /* events of who has no key: the second, and how many */
    _Atomic unsigned searches;             /* of the sandbox that a link is for */
};

enum route_flags {
    ROUTE_OPEN = 1,    /* no key */
    ROUTE_SANDBOX = 2, /* {id} is a sandbox of the caller's: call.session */
    ROUTE_REST = 4,    /* the pattern is a prefix: call.rest */
    ROUTE_PREVIEW = 8, /* a signed preview token will do instead of a key */
    ROUTE_WORK = 16,   /* refused while draining */
};

struct route {
    const char *method; /* "*": any */
    const char *pattern;
    int (*handle)(struct call *c, struct pd_err *e);
    unsigned flags;
    const char *action; /* for the audit log: "exec", "file.write" ...; NULL: not worth one */
};
extern const struct route api_routes[];
extern const unsigned api_route_count;
struct route_table {
    const struct route *rows;
    unsigned count;
};

/* What a path was matched with. */
struct route_match {
    char var[API_VARS][512]; /* the path's variables, decoded, in order */
    unsigned count;
    struct slice rest; /* ROUTE_REST: what follows, as it came, with its '/' */
};
/* Pure: finds the row for a path that is still percent-encoded. Literal segments are compared as
 * they came: there is one way to write each. PD_NOT_FOUND, PD_METHOD (`allow` lists the methods),
 * PD_INVALID for a malformed path. */
#define ROUTE_ALLOW_SIZE 128
int route_find(struct route_table table, struct slice path, enum http_method method,
               const struct route **ret, struct route_match *ret_match,
               char allow[ROUTE_ALLOW_SIZE], struct pd_err *e);

struct call {
    struct request *r;
    struct api *api;
    const struct config *config;
    const struct route *route;
    struct auth_who who;     /* tenant "" on ROUTE_OPEN */
    struct session *session; /* held during the call; ROUTE_SANDBOX */
    struct route_match matched;
    char (*var)[512]; /* the path's variables, decoded, in order */
    unsigned var_count;
    struct slice rest; /* ROUTE_REST: what follows, as it came, with its '/' */
    char
        field[FIELDS_PATH_MAX]; /* the member or parameter that is wrong, for the error's details */
    unsigned retry_after;       /* seconds, for the error; 0: none */
    const char *counted;        /* as one of this party's requests: who.tenant, party, "" or NULL */
    char party[64];             /* visitors of the tenant's */
    uint64_t began;             /* clock_now */
    /* for the audit log */
    char sandbox[SESSION_ID_LEN + 1];
    char summary[300];
    int exit_code;
    const char *stopped_by;
};

/* The entry: server_config.handle, with the struct api as its argument. */
void api_handle(struct request *r, void *api);
/* By host name {port}-{id}.<domain>: ports.c. 1 when the request was for a port (and is answered),
 * 0 when not. */
int api_handle_port_host(struct call *c);

/* Finds the row for the request and fills in what it says of the call. */
int call_find_route(struct call *c, struct route_table table, struct pd_err *e);
/* The key, the rate, the sandbox that the path names: what the row's flags ask for. */
int call_admit(struct call *c, struct pd_err *e);
/* An answer for somebody without a key: bounded in number and in patience. */
void call_count_stranger(struct call *c);
/* Writes the event of the row's action, with the error or NULL. */
void call_audit(const struct call *c, const struct pd_err *e);
/* Checks the key of the request and fills `who`. Only for routes without the usual check. */
int call_authenticate(struct call *c, struct pd_err *e);
/* It is known whose request this is: counts it against the tenant's rate and its share of what is
 * served at once. From here on the client may take its time; before, it is not waited for. */
int call_count(struct call *c, struct pd_err *e);
/* The same for who visits a sandbox without being the tenant: all of them together have a share
 * beside the tenant's, and cannot use up its rate. */
int call_count_visitor(struct call *c, struct pd_err *e);

/* ---- reading ---- */

/* The JSON body, as fields. Checks the content type and the size. `flags` of fields_parse. */
int call_body(struct call *c, struct buf *text, struct fields *f, unsigned flags, struct pd_err *e);
/* fields_finish, and remembers the member for the answer. */
int call_finish(struct call *c, struct fields *f, struct pd_err *e);
/* Refuses parameters that are not in the list (ends with NULL). */
int call_query_check(struct call *c, const char *const *allowed, struct pd_err *e);
int call_no_query(struct call *c, struct pd_err *e);
/* For calls whose body, if there is one, has nothing to say: {} or nothing. */
int call_no_fields(struct call *c, struct pd_err *e);
/* 1: there, 0: not, -1: wrong. */
int call_query(struct call *c, const char *name, char *out, size_t size, struct pd_err *e);
int call_query_u64(struct call *c, const char *name, uint64_t min, uint64_t max, uint64_t *ret,
                   struct pd_err *e);
int call_query_bool(struct call *c, const char *name, int *ret, struct pd_err *e);
/* Does the Accept header ask for this type? Absent or *(slash)* is no. */
int call_accepts(const struct call *c, const char *type);

/* The Idempotency-Key, if there is one, and the hash of the body it came with. */
#define API_KEY_MAX 255u
int call_key(struct call *c, const struct buf *body, char key[API_KEY_MAX + 1],
             const char **ret_key, uint64_t *ret_hash, struct pd_err *e);
/* The Last-Event-ID, if there is one. */
int call_last_event(struct call *c, uint64_t offset[STREAM_COUNT], struct pd_err *e);

/* ---- answering ---- */

int call_json(struct call *c, int status, const struct buf *json);
int call_empty(struct call *c); /* 204 */
struct json;
/* A member with a time; null for 0. */
void json_time(struct json *j, const char *key, uint64_t ms);
void json_member_str(struct json *j, const char *key, const char *value); /* NULL and "": null */
/* Bytes of a stream or a file's name: `key` as text with U+FFFD for what is no UTF-8, and, if there
 * is any, `key_base64` with the bytes. */
void json_bytes(struct json *j, const char *key, const void *data, size_t len);

/* sandbox_json.c */
/* The templates: those that are always there, by number (NULL behind the last), and those and the
 * names that the configuration gives them, by name: 1 and what it is called, or 0. */
const char *template_name(unsigned n);
int template_find(const struct config *config, const char *name, const char **ret_name,
                  enum profile *ret_profile);
/* A request that asks for nothing: the caller's tenant, the limits of the configuration. */
void request_defaults(const struct call *c, struct session_request *r);
/* Is what a new sandbox is to have within the ceilings of its tenant? Otherwise PD_INVALID, with
 * the field. */
int call_check_ceilings(struct call *c, const struct session_request *r, struct pd_err *e);
void limits_json(struct json *j, const struct limits *l); /* the member "limits" */
void sandbox_json(struct json *j, struct session *s, const struct queue_place *place);
int call_sandbox(struct call *c, int status, struct session *s, const struct queue_place *place);
/* The body of create and get-or-create. Strings live as long as the fields. */
struct create_request {
    struct session_request request;
    struct msg_list_writer env;
    struct buf metadata, policy;
};
int create_request_read(struct call *c, struct fields *f, struct create_request *ret, int by_thread,
                        struct pd_err *e);
void create_request_done(struct create_request *r);

/* sandboxes.c */
/* Is this tenant not too fast? Before every creation. */
int call_may_create(struct call *c, struct pd_err *e);
/* What came of it (0 or -1), for the metrics and the audit log. */
void call_count_create(struct call *c, int made, struct session *s,
                       const struct queue_place *place);
/* One page of sandboxes. */
struct session_list {
    struct session **at;
    unsigned count;
    char next[64]; /* the cursor, or "" */
};
int session_list_read(struct call *c, const struct session_filter *f, struct session_list *ret,
                      struct pd_err *e);
void session_list_done(struct session_list *l);
#define auto_list __attribute__((cleanup(session_list_done))) struct session_list

/* exec.c: the body of exec and of starting a process */
struct start_request {
    struct process_request request;
    struct msg_list_writer argv, env;
    struct buf input;
    uint64_t output_max;
    int detached;
};
int start_request_read(struct call *c, struct fields *f, struct start_request *ret, int background,
                       struct pd_err *e);
void start_request_done(struct start_request *r);
/* The result without its braces: exit_code and so on, without the outputs. */
void result_json(struct json *j, const struct process_info *i);
void process_json(struct json *j, const struct process_info *i);
/* Streams both outputs as events from these offsets until the end. */
int stream_events(struct call *c, struct process *p, uint64_t offset[STREAM_COUNT], int end_it,
                  struct pd_err *e);
const char *signal_name(int number);
/* "SIGTERM", "TERM" or a number. */
int signal_parse(const char *text, int *ret, struct pd_err *e);

/* preview.c: a link to a port that works without a key for a while. */
int preview_link(struct call *c, unsigned port, const char *id, uint64_t life_ms, struct buf *ret,
                 uint64_t *ret_expires_ms, struct pd_err *e);

/* The handlers, one file per resource. */
#define HANDLER(name) int name(struct call *c, struct pd_err *e)
HANDLER(sandboxes_create);
HANDLER(sandboxes_list);
HANDLER(sandbox_get);
HANDLER(sandbox_delete);
HANDLER(sandbox_pause);
HANDLER(sandbox_resume);
HANDLER(sandbox_extend);
HANDLER(session_put);
HANDLER(session_get_thread);
HANDLER(session_delete);
HANDLER(exec_post);
HANDLER(processes_start);
HANDLER(processes_list);
HANDLER(process_get_one);
HANDLER(process_delete);
HANDLER(process_post_signal);
HANDLER(process_post_stdin);
HANDLER(process_post_resize);
HANDLER(process_get_output);
HANDLER(process_attach);
HANDLER(files_get);
HANDLER(files_put);
HANDLER(files_delete);
HANDLER(files_list);
HANDLER(files_stat);
HANDLER(files_mkdir);
HANDLER(files_move);
HANDLER(files_copy);
HANDLER(files_chmod);
HANDLER(files_search);
HANDLER(files_replace);
HANDLER(files_watch);
HANDLER(archive_get);
HANDLER(archive_put);
HANDLER(env_get);
HANDLER(env_put);
HANDLER(ports_list);
HANDLER(ports_proxy);
HANDLER(ports_preview);
HANDLER(sandbox_metrics);
HANDLER(sandbox_events);
HANDLER(providers_list);
HANDLER(route_get);
HANDLER(mcp_post);
HANDLER(mcp_delete);
HANDLER(health_get);
HANDLER(ready_get);
HANDLER(metrics_get);
HANDLER(openapi_get);
HANDLER(docs_get);
#undef HANDLER
