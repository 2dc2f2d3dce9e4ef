/* caller: brings the link of a box to its keeper where nobody can dial the box: it calls. A process
 * beside the far end, which has neither the key of the link nor anything else to lose: it copies
 * bytes between a TLS connection to the keeper and the socket that paddock-box join uses, too.
 *
 * The keeper's machine is known by its key: the one public key that the caller was started with,
 * and no authority's word. When a connection is lost it calls again, sooner or later, for as long
 * as the box lives. */
#pragma once

#include "base/clock.h"

#include <stdbool.h>
#include <stdint.h>

struct pd_err;

#define CALLER_PIN    65u            /* a point of P-256, not compressed */
#define CALLER_SUFFIX ".box.invalid" /* behind a link's id: the name that is asked for (SNI) */

struct caller {
    char host[256], port[6];
    uint8_t pin[CALLER_PIN];
    char name[64]; /* LINK and the suffix */
};

/* Was this program built with TLS? */
bool caller_can(void);
/* "HOST:PORT", or "[ADDRESS]:PORT". */
int caller_read_place(const char *text, struct caller *ret, struct pd_err *e);
/* The hexadecimal digits of a key. */
int caller_read_pin(const char *text, struct caller *ret, struct pd_err *e);

/* Calls until the process `parent` ends. */
_Noreturn void caller_run(const struct caller *c, int parent);
