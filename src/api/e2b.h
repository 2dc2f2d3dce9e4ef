/* e2b: the door for programs that speak E2B's protocol. docs/e2b.md says what passes through it.
 *
 * It is a door, not a second house: what comes in becomes the same calls of the session layer as
 * in v1. Four kinds of requests come in, told apart by e2b_handle:
 *
 *   control plane   /sandboxes, /v2/sandboxes, /snapshots ...        by API key
 *   envd            /files, /health ... and Connect RPC              by the sandbox's token
 *   code            port 49999: the code interpreter                 open, or by the traffic
 *                                                                    token; /execute by both
 *   a user's port   everything else for PORT-ID.DOMAIN, or with      open, or by the sandbox's
 *                   E2b-Sandbox-Port                                 traffic token
 *
 * Handlers are as in api.h. An error is answered for them, in the shape that the route's flags
 * say: {"code":404,"message":".."}, or as Connect has it. */
#pragma once

#include "access/access.h"
#include "api/call.h"
#include "api/worker_request.h"
#include "build/templates.h"
#include "core/snapshots.h"

#define E2B_ENVD_PORT    49983u
#define E2B_CODE_PORT    49999u
#define E2B_ENVD_VERSION "0.6.13"
#define E2B_HOME         "/home/user"

enum e2b_route_flags {
    ROUTE_RPC = 128,        /* Connect, one object each way */
    ROUTE_RPC_STREAM = 256, /* Connect, one envelope in and many out */
    ROUTE_TOKEN = 512,      /* of the code interpreter: the sandbox's token is needed */
};

/* The entry, after the host was checked: 1 when the request was for this door (and is answered),
 * 0 when not. */
int e2b_handle(struct call *c);

extern const struct route e2b_control_routes[], e2b_envd_routes[], e2b_code_routes[];
extern const unsigned e2b_control_route_count, e2b_envd_route_count, e2b_code_route_count;
/* e2b_code.c: an error as the code interpreter tells it. */
void e2b_code_error(struct call *c, const struct pd_err *e);

/* ---- what the door knows of a sandbox, besides what the session layer does ---- */

struct e2b_note {
    bool is_ours;                   /* made at this door */
    bool secure;                    /* envd needs the token */
    bool auto_resume;               /* traffic wakes it */
    bool private_ports;             /* user ports need the traffic token */
    char mask_host[256];            /* Host header for user ports, with ${PORT}; or "" */
    char user[8];                   /* whom commands run as that name nobody; "": user */
    char workdir[SPEC_PATH_MAX];    /* and where; "": the home */
    struct buf allow_out, deny_out; /* of the network settings, JSON arrays, or empty */
};
/* Reads and writes the session's note. A session that was not made at this door is secure, with
 * private ports, and everything else is off. */
void e2b_note_read(struct session *s, struct e2b_note *ret);
int e2b_note_write(const struct e2b_note *n, struct buf *out);
/* A member that is one of the note's lists; none if that is empty. */
void e2b_put_list(struct json *j, const char *key, const struct buf *list);
void e2b_note_done(struct e2b_note *n);
#define auto_note __attribute__((cleanup(e2b_note_done))) struct e2b_note

/* ---- answering ---- */

/* {"code":404,"message":".."}: what an error is for a client. */
void e2b_error_json(const struct call *c, struct json *j, const struct pd_err *e);
/* A sandbox for a client that may use it: its names and tokens. */
void e2b_sandbox_json(const struct call *c, struct json *j, struct session *s);
/* The variables that every command and GET /envs have in front of the sandbox's own: E2B_SANDBOX,
 * E2B_SANDBOX_ID and E2B_TEMPLATE_ID, as NAME=VALUE. */
int e2b_sandbox_env(struct session *s, struct msg_list_writer *out);

/* ---- reading ---- */

/* The member `timeout`: whole seconds from now that a sandbox is to live, as milliseconds. `ret_ms`
 * holds what is meant when there is none. At most max_life_s of the configuration. */
void e2b_read_timeout(struct call *c, struct fields *f, enum field_need need, uint64_t min,
                      uint64_t *ret_ms);
/* Lists and objects with nothing in them ask for nothing; others are refused. */
void e2b_refuse_unless_empty(struct fields *f, const char *name, const char *why);
/* e2b_network.c: the member `network`. `rules`: what it means is appended to it; NULL: this sandbox
 * has no way out. */
void e2b_read_network(struct call *c, struct fields *f, struct e2b_note *n, bool internet,
                      struct buf *rules);
/* Members `rules` and `egressProxy` as they were given, without a password; none where there are
 * none. */
void e2b_put_egress(struct call *c, struct json *j, const char *rules);
/* The meaning of a templateID: a template of the server's, one that the caller has built, or a
 * snapshot of the caller's (with the last two, an id is in `snapshot`, else that is ""). The name
 * lives as long as the struct and the configuration. PD_NOT_FOUND lists the templates. */
struct e2b_template {
    struct template_use use; /* is_built */
    bool is_built;
    const char *name; /* as sandboxes made from it have it */
    enum profile profile;
    char snapshot[SESSION_ID_LEN + 1];
    char given[64];
};
void e2b_template_done(struct e2b_template *t);
#define auto_template __attribute__((cleanup(e2b_template_done))) struct e2b_template
/* As a client sees one: the newest of so many builds. */
void e2b_put_built(struct call *c, struct json *j, const struct build_info *i, unsigned builds);
int e2b_template_read(struct call *c, const char *text, struct e2b_template *ret, struct pd_err *e);
/* Pure: the name of a snapshot without what goes without saying: [NAMESPACE/]NAME[:TAG], where the
 * namespace is the tenant's name, and the tag `default` is left out. 0, or -1. */
int e2b_snapshot_name(const char *tenant, const char *text, char out[SNAPSHOT_NAME_MAX + 1],
                      struct pd_err *e);

/* The user that a request to envd is made as: the name in `Authorization: Basic`, or the parameter
 * `username`; "user" unless given. PD_UNAUTHENTICATED for anybody else than "user" and "root". */
int e2b_user(struct call *c, char out[FILE_USER_SIZE], struct pd_err *e);
int e2b_user_named(const char *name, char out[FILE_USER_SIZE], struct pd_err *e);
/* Absolute: "" and "~" are the home, what is relative is below it. */
int e2b_path(const char *user, const char *path, char out[FILE_PATH_SIZE], struct pd_err *e);

/* ports.c: passes the request on to a port that is open to everybody. `host` (or ""): the Host
 * header that it gets, with ${PORT}. */
int ports_visit_open(struct call *c, unsigned port, const char *host, struct pd_err *e);
