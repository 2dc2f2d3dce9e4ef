/* client: the commands that talk to a server. client.c has the table; each family is a file. */
#pragma once

#include "base/buf.h"
#include "base/clock.h"
#include "base/options.h"
#include "net/http.h"

#include <jansson.h>
#include <stdint.h>

struct pd_err;

struct client_command {
    const char *name;    /* NULL ends the table */
    const char *summary; /* one line for the list */
    const char *usage;   /* shown by `paddock help NAME` */
    int (*run)(int argc, char **argv);
};
extern const struct client_command client_commands[];

/* Each gets argv without the program's name: argv[0] is the command's. Returns the exit status. */
int cmd_console(int argc, char **argv);
int cmd_ls(int argc, char **argv);
int cmd_create(int argc, char **argv);
int cmd_exec(int argc, char **argv);
int cmd_shell(int argc, char **argv);
int cmd_code(int argc, char **argv);
int cmd_cp(int argc, char **argv);
int cmd_logs(int argc, char **argv);
int cmd_ps(int argc, char **argv);
int cmd_kill(int argc, char **argv);
int cmd_rm(int argc, char **argv);
int cmd_port(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_route(int argc, char **argv);
int cmd_mcp(int argc, char **argv);
int cmd_mv(int argc, char **argv);
int cmd_secret(int argc, char **argv);
int cmd_template(int argc, char **argv);
int cmd_network(int argc, char **argv);
int cmd_overview(int argc, char **argv);
int cmd_audit(int argc, char **argv);
int cmd_snapshot(int argc, char **argv);
int cmd_fork(int argc, char **argv);

extern const char console_usage[], ls_usage[], create_usage[], exec_usage[], shell_usage[],
    code_usage[], cp_usage[], logs_usage[], ps_usage[], kill_usage[], rm_usage[], port_usage[],
    top_usage[], route_usage[], mv_usage[], mcp_usage[], secret_usage[], template_usage[],
    network_usage[], overview_usage[], audit_usage[], snapshot_usage[], fork_usage[];

/* Exit statuses of the commands themselves. */
#define EXIT_USAGE  2
#define EXIT_FAILED 125

/* Prints "paddock: MESSAGE", escaped, and returns the exit status: 2 for a wrong command line. */
int usage_fail(const struct pd_err *e);
/* The same for what the server, or the way to it, refused: 126 and 127 for commands that could not
 * be started, otherwise 125. */
int client_fail(const struct pd_err *e);
/* An option that the command does not have. */
int usage_unknown(const struct options *o, struct pd_err *e);
/* The options of a command that has --json and nothing else. */
int only_json(int argc, char **argv, int *ret_json, struct pd_err *e);

/* `paddock COMMAND VERB ...`: a row with name NULL ends the table. */
struct client_verb {
    const char *name;
    int (*run)(int argc, char **argv, struct pd_err *e); /* argv[0] is the verb; -1 or the status */
};
/* Runs the verb that argv[1] names; `otherwise` is said when there is none. The exit status. */
int run_verb(const struct client_verb *verbs, const char *otherwise, int argc, char **argv);

/* ---- the server that PADDOCK_URL names ---- */

struct remote;

/* Reads PADDOCK_URL and PADDOCK_API_KEY; connects at the first call. */
struct remote *remote_new(struct pd_err *e);
void remote_free(struct remote *r); /* NULL is fine */
static inline void remote_done(struct remote **r)
{
    remote_free(*r);
}
#define auto_remote __attribute__((cleanup(remote_done))) struct remote

/* A request. `target` is a path with its query, percent-encoded already. */
struct remote_request {
    enum http_method method;
    const char *target;
    const char *accept;     /* NULL: application/json */
    json_t *json;           /* body; the caller's */
    const char *type;       /* media type of a body that is streamed by remote_write */
    const char *key;        /* Idempotency-Key or NULL */
    const char *last_event; /* Last-Event-ID or NULL */
    int is_patient;         /* the answer may take as long as a command takes */
};

/* One call: *ret (may be NULL) gets the answer's JSON, or NULL when it has no body. Returns the
 * status, or -1: an answer of 400 and more is a failure with the server's code and message. */
int remote_call(struct remote *r, const struct remote_request *q, json_t **ret, struct pd_err *e);
/* The body of an answer that remote_answer has begun, as remote_call gives it. */
int remote_json(struct remote *r, json_t **ret, struct pd_err *e);
/* remote_call without a body. */
int remote_get(struct remote *r, const char *target, json_t **ret, struct pd_err *e);

/* A call whose body or answer is long. Begin; with `type` set write the body and end it; then read
 * the answer's head (the status, or -1 as above), then its body until 0. */
int remote_begin(struct remote *r, const struct remote_request *q, struct pd_err *e);
int remote_write(struct remote *r, const void *data, size_t len, struct pd_err *e);
int remote_end(struct remote *r, struct pd_err *e);
int remote_answer(struct remote *r, struct pd_err *e);
/* A header of the answer, or "". Valid until the next call. */
const char *remote_header(struct remote *r, const char *name);
ssize_t remote_read(struct remote *r, void *out, size_t size, struct pd_err *e);
/* Reads like remote_read, but also looks at `other` (a descriptor or -1) while it waits: returns
 * -2 when that is readable. */
ssize_t remote_read_or(struct remote *r, void *out, size_t size, int other, struct pd_err *e);

/* remote_call of a creation, whose answer may take as long as its image needs to be pulled: tells
 * on the terminal how far that is. pull.c. */
int create_on_terminal(struct remote *r, struct remote_request *q, json_t **ret, struct pd_err *e);

/* A WebSocket. After it the remote is good for nothing else. */
int remote_upgrade(struct remote *r, const char *target, struct pd_err *e);
/* Its descriptor, for poll; and whether bytes wait that poll would not tell of. */
int remote_fd(const struct remote *r);
int remote_pending(struct remote *r);
ssize_t remote_raw_read(struct remote *r, void *out, size_t size, struct pd_err *e);
int remote_raw_write(struct remote *r, const void *data, size_t len, struct pd_err *e);
/* An answer's {"error":{...}} as an error; always -1. */
int remote_error(const json_t *answer, int status, struct pd_err *e);

/* ---- small helpers ---- */

/* Appends text percent-encoded, as a path segment or a value of a query. */
void put_encoded(struct buf *b, const char *text);
void put_encoded_bytes(struct buf *b, const char *text, size_t len);
int64_t now_ms(void); /* since the epoch */

/* Fields of an object, of the wrong type or missing: "", 0. */
const char *json_field(const json_t *object, const char *name);
int64_t json_field_int(const json_t *object, const char *name);
double json_field_number(const json_t *object, const char *name);
int json_field_is_true(const json_t *object, const char *name);

/* Prints one line of JSON, ASCII only, so that it is harmless on a terminal. */
int print_json(const json_t *j);
/* "USER/THREAD" split at its first slash into percent-encoded "USER/THREAD" of a target. */
int session_target(const char *text, struct buf *b, struct pd_err *e);
/* "K=V" into an object's member. `what` names the option. */
int put_pair(json_t *object, const char *what, const char *text, struct pd_err *e);
/* An id as the API has them; anything else would end up in a path. */
int check_id(const char *id, struct pd_err *e);
/* A pid or a process_id. */
int check_pid(const char *pid, struct pd_err *e);
/* An option about the rules of a way out, for the member `network`: 1 when it was one, 0 when not.
 */
int network_option(json_t *network, struct options *o, struct pd_err *e);
/* Exactly one argument, an id. */
int one_id(const char *command, char **args, int count, struct pd_err *e);
/* The id of the sandbox of USER/THREAD. */
int find_session(struct remote *r, const char *session, char ret[32], struct pd_err *e);
/* The exit status of a record: its own, 128+n after a signal, 124 after a time-out. Tells on
 * stderr which limit ended the command. */
int end_status(const json_t *end);
/* Prints a line of text that came from the server, escaped. */
int print_line(const char *text);

/* All pages of a list of sandboxes as one array. `base` is the target with its filters. */
int list_sandboxes(struct remote *r, const char *base, json_t **ret, struct pd_err *e);
/* "USER/THREAD" of a sandbox, or "". */
const char *sandbox_owner(const json_t *sandbox, char *out, size_t size);
