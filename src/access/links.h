/* links: the preview links that were made, so that they can be listed and revoked.
 *
 * A token is good by its signature alone (preview.h); what is kept here is which were handed out,
 * and which of them are good no more. A link is known by its id, the start of its token's SHA-256,
 * which opens nothing. One that is over is forgotten. They outlive the daemon.
 *
 * Safe from any thread. */
#pragma once

#include "access/auth.h"

struct links;
struct store;

#define LINK_ID_LEN     16
#define LINKS_MAX       4096u
#define LINKS_OF_TENANT 1024u

struct link {
    char id[LINK_ID_LEN + 1];
    char tenant[ID_TENANT_MAX + 1];
    char sandbox[ID_SANDBOX_LEN + 1];
    char key_id[AUTH_ID_LEN + 1]; /* who made it */
    uint32_t port;
    uint64_t made_ms, expires_ms;
    uint64_t revoked_ms; /* 0: it is good */
};

/* Reads them from the store, which must outlive it. What is not readable there is forgotten. */
struct links *links_new(struct store *store, struct pd_err *e);
void links_free(struct links *l); /* NULL is fine */

/* The id of a token. Pure. */
void link_id(const char *token, char ret[LINK_ID_LEN + 1]);
/* Notes a link that was made. PD_CAPACITY: the tenant, or the server, has as many as there may be;
 * PD_CONFLICT: there is one with this id, whose token is the same. Then it must not be handed out.
 */
int links_add(struct links *l, const struct link *made, struct pd_err *e);
/* From now on it is refused. PD_NOT_FOUND: the tenant has no such link of that sandbox. Again is
 * fine. */
int links_revoke(struct links *l, const char *tenant, const char *sandbox, const char *id,
                 uint64_t now_ms, struct pd_err *e);
bool links_is_revoked(struct links *l, const char *id);
/* Those of one sandbox that are not over, newest first; at most `max`. */
unsigned links_list(struct links *l, const char *tenant, const char *sandbox, uint64_t now_ms,
                    struct link *ret, unsigned max);
