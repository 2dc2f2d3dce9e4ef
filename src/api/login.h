/* login: pages of the console log in, and show with every request that they have. */
#pragma once

#include "api/call.h"

#define LOGIN_PROOF_HEADER "X-Paddock-Proof"

/* Pure: the proof among the subprotocols that a WebSocket offers, as `proof.VALUE`. The first one
 * counts. */
bool login_protocol_proof(struct slice offered, struct slice *ret);

/* Does the request show a proof, so that it is a page's of the console? */
bool login_is_shown(const struct call *c);
/* Fills `who` by the cookie and the proof of the request. PD_DENIED when it is not from a page of
 * the console, else as logins_check. */
int login_check(struct call *c, struct pd_err *e);
/* The subprotocol that answers a page's WebSocket, or NULL for other clients'. */
const char *login_protocol(const struct call *c);

/* Is the console here, under the name that the client used? Never below the domain of the previews:
 * pages there are of the same site, and can plant cookies. */
int console_check_here(const struct call *c, struct pd_err *e);
