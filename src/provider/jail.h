/* jail: sandboxes that a keeper on this machine holds. The default provider. */
#pragma once

#include "core/provider.h"

#define PROVIDER_JAIL_CAN                                                                          \
    (PROVIDER_PAUSE | PROVIDER_TERMINAL | PROVIDER_FILES | PROVIDER_PORTS | PROVIDER_ADOPT |       \
     PROVIDER_STASH | PROVIDER_SNAPSHOT | PROVIDER_SLEEP | PROVIDER_ROOTS | PROVIDER_TREES |       \
     PROVIDER_USAGE | PROVIDER_SIGNAL | PROVIDER_BACKGROUND)

/* Connects to the keeper's socket. When the keeper dies every box is lost; the provider goes on
 * trying to connect, because somebody with more privilege starts another. */
struct provider *provider_jail_new(const char *keeper_socket, struct pump *pump,
                                   const struct box_events *events, struct pd_err *e);

/* The same over a keeper of its own. `start` starts one and gives a connected socket, or -1; it is
 * called here, and again on a thread of the provider's when that keeper has died. Nothing outlives
 * the socket: neither boxes nor descriptors. `arg` must live as long as the provider. */
struct provider *provider_jail_new_private(int (*start)(void *arg, struct pd_err *e), void *arg,
                                           struct pump *pump, const struct box_events *events,
                                           struct pd_err *e);
/* Creations are refused when the disk of this directory, which must outlive it, has little room. */
void provider_jail_watch_disk(struct provider *p, const char *dir);
