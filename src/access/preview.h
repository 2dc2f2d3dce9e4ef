/* preview: links to a port of a sandbox that work without a key, for a while.
 *
 * A token names the sandbox, the port, when it ends and whose the sandbox is (readable for whoever
 * has the link), and carries an HMAC-SHA256 over that. The secret is made once and kept in the
 * store: tokens outlive the daemon. A token consists of a-z, 0-9, `_` and `-`, so it needs no
 * escaping in a query or a cookie.
 *
 * Safe from any thread. */
#pragma once

#include "access/ids.h"

#include <stdint.h>

struct pd_err;
struct store;
struct preview;

#define PREVIEW_TOKEN_MAX   192 /* characters, without the NUL */
#define PREVIEW_LIFE_MS     UINT64_C(3600000)
#define PREVIEW_LIFE_MAX_MS UINT64_C(604800000) /* a week */

/* Reads the secret from the store, or makes it. The store is not needed afterwards. */
struct preview *preview_new(struct store *store, struct pd_err *e);
void preview_free(struct preview *p);

/* A token for that port that ends `life_ms` after `now_ms` (0: PREVIEW_LIFE_MS). PD_INVALID for a
 * malformed tenant or sandbox id, a port outside 1-65535, a life under a second or over the
 * maximum. */
int preview_sign(const struct preview *p, const char *tenant, const char *sandbox, unsigned port,
                 uint64_t now_ms, uint64_t life_ms, char ret[PREVIEW_TOKEN_MAX + 1],
                 uint64_t *ret_expires_ms, struct pd_err *e);

/* 0: the token opens that port of that sandbox, which is the tenant's. PD_UNAUTHENTICATED: it is
 * not one of ours, or it has ended; PD_DENIED: it is for another sandbox or port. Nothing in a
 * token is believed before its signature was checked, in constant time. */
int preview_check(const struct preview *p, const char *token, const char *sandbox, unsigned port,
                  uint64_t now_ms, char ret_tenant[ID_TENANT_MAX + 1], struct pd_err *e);
