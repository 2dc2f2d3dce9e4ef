/* route: the table of paths, and the row that a request is for.
 *
 * routes.c has the table of v1, e2b_routes.c those of the E2B door. A test compares the first with
 * api/openapi.yaml in both directions. */
#pragma once

#include "net/http.h"

struct call;
struct pd_err;

#define API_VARS 3

enum route_flags {
    ROUTE_OPEN = 1,     /* no key */
    ROUTE_SANDBOX = 2,  /* {id} is a sandbox of the caller's: call.session */
    ROUTE_REST = 4,     /* the pattern is a prefix: call.rest */
    ROUTE_PREVIEW = 8,  /* a signed preview token will do instead of a key */
    ROUTE_WORK = 16,    /* refused while draining */
    ROUTE_ADMIN = 32,   /* an admin key is needed */
    ROUTE_TICKET = 128, /* the path has a ticket, in place of key and sandbox: call.ticket */
    ROUTE_LOOK = 64,    /* takes ?observe=true: call.observes */
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

/* The parts of a path that its row does not say. */
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
