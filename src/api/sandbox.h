/* sandbox: sandboxes as the doors know them: templates, the body that asks for one, how one is
 * shown, and pages of them. */
#pragma once

#include "api/call.h"
#include "build/templates.h"
#include "gate/rules.h"

/* ---- sandbox_json.c ---- */

struct recipe;

/* The templates: those that are always there, by number (NULL behind the last), and those, the
 * server's files (config/recipe.h) and the names that the configuration gives them, by name: 1 and
 * what it is called, or 0. */
const char *template_name(unsigned n);
int template_find(const struct config *config, const char *name, const char **ret_name,
                  enum profile *ret_profile);
/* A request that asks for nothing: the caller's tenant, the limits of the configuration. */
void request_defaults(const struct call *c, struct session_request *r);
/* Is what a new sandbox is to have within the ceilings of its tenant? Otherwise PD_INVALID, with
 * the field. */
int call_check_ceilings(struct call *c, const struct session_request *r, struct pd_err *e);
/* May the caller make sandboxes from this image? Otherwise PD_DENIED or PD_INVALID, with the field.
 */
int call_check_image(struct call *c, const char *image, struct pd_err *e);
/* May it, where the image is said by its id? Whoever has heard an id is not whose image it is. An
 * id that the store does not have may be one of another provider's. */
int call_check_image_id(struct call *c, const char *image, struct pd_err *e);
/* A provider that there is not, and a mode that is not to be had, are refused before a place is
 * waited for, with the field. */
int call_check_provider(struct call *c, const struct session_request *r, struct pd_err *e);
/* The member "limits", read and written, of which a provider may hold some only. */
void limits_read(struct fields *f, struct session_request *r);
void limits_json(struct json *j, const struct session *s, const struct limits *l);
void sandbox_json(struct json *j, struct session *s, const struct queue_place *place);
/* Only some of its members, as sandbox_members_read has read them of "id,state". */
#define SANDBOX_WHOLE UINT64_MAX
void sandbox_json_some(struct json *j, struct session *s, uint64_t members);
int sandbox_members_read(const char *text, uint64_t *ret, struct pd_err *e);
int call_sandbox(struct call *c, int status, struct session *s, const struct queue_place *place);
/* News of the image of a sandbox that is being made, for a client that accepts events. */
struct pull_stream {
    struct call *c;
    bool begun, failed; /* the answer is a stream; it broke */
};
void pull_stream_init(struct pull_stream *p, struct call *c, struct session_request *r);
/* Of a stream that has begun: the sandbox, or (`s` NULL) why there is none; then -1. */
int pull_stream_end(struct pull_stream *p, struct session *s, const struct queue_place *place,
                    const struct pd_err *e);
/* The body of create and get-or-create. Strings live as long as the fields. */
struct create_request {
    struct session_request request;
    struct msg_list_writer env;
    struct buf metadata, policy, network, options;
    char snapshot[SESSION_ID_LEN + 1]; /* that it starts as a copy of, or "" */
    const struct recipe *recipe;       /* the file that is its template, or NULL */
    struct template_use use;           /* the caller's template that it is made from */
    bool is_built;
};
int create_request_read(struct call *c, struct fields *f, struct create_request *ret, int by_thread,
                        struct pd_err *e);
void create_request_done(struct create_request *r);
/* A field that is local, sandbox or auto. */
void fields_run_mode(struct fields *f, const char *name, enum run_mode *ret);

/* ---- recipe.c ---- */

/* What the file of a template adds to a request that does not say otherwise: variables that are not
 * in the list yet, limits, the rules of a way out (appended to those that there are; EGRESS_OFF:
 * none). */
int recipe_env(const struct recipe *t, struct msg_list_writer *env);
void recipe_limits(const struct recipe *t, struct limits *l);
enum egress_mode recipe_network(const struct call *c, const struct recipe *t, struct buf *rules);
/* In a new sandbox whose template is a file: its files, programs, start command and ready check.
 * Waits for all of it, as long as the file says. When it fails the sandbox has ended. Of other
 * sandboxes nothing is done. */
int recipe_set_up(struct call *c, struct session *s, struct pd_err *e);

/* ---- network.c ---- */

/* The rules of a way out, from the members of an object: as the text that a session has. */
enum egress_mode network_read(struct call *c, struct fields *o, struct buf *out);
/* Appends the rule of one header for one host, and of a proxy (`user` NULL: none wanted); values
 * and passwords are sealed. -1: what is wrong with it, with none of what is sealed. */
int network_put_header(struct call *c, const char *host, const char *name, const char *value,
                       struct buf *out, struct pd_err *e);
int network_put_proxy(struct call *c, const char *address, const char *user, const char *password,
                      struct buf *out, struct pd_err *e);
/* Appends the value of such a header. */
int network_open_header(struct call *c, const struct header_rule *r, struct buf *out,
                        struct pd_err *e);
/* Members "address" and "username" of the rules' proxy, without its password; 0: there is none. */
bool network_proxy_json(struct call *c, struct json *j, const char *rules);
/* May the caller's sandboxes have a way out? PD_DENIED, with the field. */
int call_check_egress(struct call *c, enum egress_mode mode, const char *rules, struct pd_err *e);
void network_json(struct json *j, struct session *s);
/* The member "network" of a result: what a sandbox with a way out was refused since the mark; and,
 * if `text` is one, the same in words. None where it has no way out. */
void denied_json(struct json *j, struct session *s, uint64_t mark, struct buf *text);

/* ---- sandboxes.c ---- */

/* Is this tenant not too fast? Before every creation. */
int call_may_create(struct call *c, struct pd_err *e);
/* Counts the creation for the metrics and the audit log: `made` is 0 or -1. */
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
