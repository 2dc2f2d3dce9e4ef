/* call: one request while a handler has it: who asks, for which sandbox, what the path says; and
 * the functions that read the request and write its answer.
 *
 * Reading functions note the member or parameter that is wrong in `field`, so that the error can
 * name it. A handler calls call_finish or call_query_check, or the like, so that nothing unknown is
 * accepted in silence. */
#pragma once

#include "access/links.h"
#include "access/logins.h"
#include "access/tickets.h"
#include "api/api.h"
#include "api/fields.h"
#include "api/route.h"
#include "base/base64.h"
#include "base/buf.h"
#include "base/err.h"
#include "core/sessions.h"
#include "net/server.h"
#include "net/url.h"

struct json;

#define OBSERVE      "observe"  /* the parameter of routes with ROUTE_LOOK */
#define API_BODY_MAX (2u << 20) /* of a JSON body */

struct call {
    struct request *r;
    struct api *api;
    const struct config *config;
    const struct route *route;
    struct auth_who who;              /* tenant "" on ROUTE_OPEN */
    bool by_login;                    /* who: logged in at the console; not by a key */
    char login[LOGIN_SECRET_LEN + 1]; /* the session of that login */
    char link[LINK_ID_LEN + 1];       /* the preview link that let the caller in, or "" */
    struct ticket ticket;             /* ROUTE_TICKET */
    struct session *session;          /* held during the call; ROUTE_SANDBOX */
    struct route_match matched;
    char (*var)[512]; /* the path's variables, decoded, in order */
    unsigned var_count;
    struct slice rest; /* ROUTE_REST: what follows, as it came, with its '/' */
    bool observes; /* the caller only looks: that is no use of the sandbox, which may idle out */
    /* The member or parameter that is wrong, for the error's details. */
    char field[FIELDS_PATH_MAX];
    unsigned retry_after; /* seconds, for the error; 0: none */
    /* The party that this is counted for: who.tenant, `party`, "" for strangers, or NULL. */
    const char *counted;
    char party[64];             /* visitors of the tenant's sandboxes */
    uint64_t began;             /* clock_now */
    struct placement placement; /* of the command, where a mode was asked for */
    /* for the audit log */
    char sandbox[SESSION_ID_LEN + 1];
    char summary[300];
    int exit_code;
    const char *stopped_by;
};

/* Finds the row for the request and fills in what it says of the call. */
int call_find_route(struct call *c, struct route_table table, struct pd_err *e);
/* The key, the rate, the sandbox that the path names: what the row's flags ask for. */
int call_admit(struct call *c, struct pd_err *e);
/* Counts a request without a key: bounded in number and in patience. */
void call_count_stranger(struct call *c);
/* Writes the event of the row's action, with the error or NULL. */
void call_audit(const struct call *c, const struct pd_err *e);
/* Checks the key of the request and fills `who`. Only for routes without the usual check. */
int call_authenticate(struct call *c, struct pd_err *e);
/* Takes the ticket of the path and fills `who` and `ticket`: tickets.c. */
int ticket_admit(struct call *c, struct pd_err *e);
/* The error of a reader's key where it may not; -1. */
int call_refuse_reader(struct pd_err *e);
/* It is known whose request this is: counts it against the tenant's rate and its share of what is
 * served at once. From here on the client may take its time; before, it is not waited for. */
int call_count(struct call *c, struct pd_err *e);
/* The same for visitors of a sandbox who are not its tenant: all of them together have a share
 * beside the tenant's, and cannot use up its rate. */
int call_count_visitor(struct call *c, struct pd_err *e);

/* The call uses its sandbox, which is not idle meanwhile; nothing happens where it only looks. */
void call_use_begin(struct call *c);
void call_use_end(struct call *c);

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
int call_query_bool(struct call *c, const char *name, bool *ret, struct pd_err *e);
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
/* A member with a time; null for 0. */
void json_time(struct json *j, const char *key, uint64_t ms);
void json_member_str(struct json *j, const char *key, const char *value); /* NULL and "": null */
/* Bytes of a stream or a file's name: `key` as text with U+FFFD for what is no UTF-8, and, if there
 * is any, `key_base64` with the bytes. */
void json_bytes(struct json *j, const char *key, const void *data, size_t len);
