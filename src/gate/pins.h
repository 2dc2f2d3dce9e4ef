/* pins: which names a sandbox asked for, by the addresses that it was told.
 *
 * For connections that do not say a name themselves. An address keeps the names that were answered
 * with it last; the oldest pins make room. */
#pragma once

#include "gate/rules.h"

#define PINS_MAX 4096u

struct pins;

struct pins *pins_new(void);
void pins_free(struct pins *p);
/* Without memory the pin is lost, and such a connection is refused. */
void pins_add(struct pins *p, struct ip a, const char *name);
/* The name at `at` (start with 0) among those of this address, the latest first; NULL: no more. */
const char *pins_find(const struct pins *p, struct ip a, unsigned *at);
