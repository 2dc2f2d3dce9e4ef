/* api: the HTTP doors. A request comes in, is checked, and becomes one call of the session layer.
 *
 * api.c takes a request through the steps that all have in common (host, route, key, rate, the
 * sandbox that the path names) and hands a `struct call` (call.h) to the handler of its row in
 * routes.c (route.h, handlers.h). A handler is written top to bottom: it reads what it needs, does
 * one thing and answers. It returns 0 when it has answered, or -1 with the error, which is answered
 * for it. What several handlers share stands in a header per noun: sandbox.h, command.h, preview.h,
 * worker_request.h, file_transfer.h. The doors for other protocols are e2b.h and mcp.h. */
#pragma once

#include "base/err.h"

#include <stdatomic.h>
#include <stdint.h>

struct access;
struct audit;
struct auth;
struct egress;
struct config;
struct links;
struct logins;
struct mcp;
struct metrics;
struct preview;
struct provider_table;
struct quota;
struct request;
struct router;
struct sessions;
struct shares;
struct templates;
struct tickets;
struct vault;
struct watchers;

/* The parts of the server that handlers use; made once by the daemon. */
struct api {
    struct sessions *sessions;
    const struct provider_table *providers;
    struct router *router;
    struct auth *auth;
    struct logins *logins; /* at the console */
    struct quota *quota;
    struct shares *shares; /* or NULL: no tenant leaves places for others */
    struct metrics *metrics;
    struct audit *audit; /* or NULL */
    struct preview *preview;
    struct links *links;     /* those of preview that were made */
    struct tickets *tickets; /* for one file, once */
    struct access *access;
    struct vault *vault;         /* secrets of tenants */
    struct templates *templates; /* that tenants have built */
    struct egress *egress;       /* or NULL: no sandbox has a way out */
    struct watchers *watchers;   /* of the E2B door */
    struct mcp *mcp;
    const char *version;                   /* of the server */
    _Atomic(const struct config *) config; /* replaced by a reload; old ones stay */
    _Atomic int draining;                  /* no new work: only what reads */
    _Atomic uint64_t strangers;            /* events of clients without a key: second and number */
    _Atomic unsigned searches;             /* of the sandbox that a link is for */
    _Atomic uint64_t refused[PD_CODE_COUNT]; /* requests of /v1, by why */
};

/* The entry: server_config.handle, with the struct api as its argument. */
void api_handle(struct request *r, void *api);
