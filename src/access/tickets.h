/* tickets: addresses that give out one file of a sandbox, once.
 *
 * A browser saves what it is sent at an address, and can send no headers along. So whoever may read
 * a file asks for a ticket, 256 random bits that are good for TICKET_LIFE_MS and one use, and no
 * longer than the key that it was made with. They are in memory only, as SHA-256: none outlives a
 * restart.
 *
 * Safe from any thread. */
#pragma once

#include "access/auth.h"

struct tickets;

#define TICKET_LEN        64 /* hex digits */
#define TICKET_LIFE_MS    UINT64_C(60000)
#define TICKETS_MAX       256u
#define TICKETS_OF_TENANT 32u /* the tenant's oldest makes room */

/* What a ticket is for. */
struct ticket {
    char sandbox[ID_SANDBOX_LEN + 1];
    char user[8];
    char *path;    /* absolute; whoever has the struct frees it: ticket_done */
    bool observes; /* giving it out is no use of the sandbox */
};
void ticket_done(struct ticket *t);

struct tickets *tickets_new(struct auth *auth, struct pd_err *e);
void tickets_free(struct tickets *t); /* NULL is fine */

/* A ticket of `who`; the path is copied. PD_CAPACITY when other tenants have all of them. */
int tickets_make(struct tickets *t, const struct auth_who *who, const struct ticket *what,
                 uint64_t now_ms, char ret[TICKET_LEN + 1], struct pd_err *e);
/* Takes the ticket, which is none any more. PD_UNAUTHENTICATED: unknown, used or too old, or its
 * key was revoked meanwhile. */
int tickets_take(struct tickets *t, const char *text, uint64_t now_ms, struct auth_who *ret_who,
                 struct ticket *ret, struct pd_err *e);
