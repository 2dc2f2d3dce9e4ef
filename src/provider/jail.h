/* jail: sandboxes that a keeper on this machine holds. The default provider. */
#pragma once

#include "core/provider.h"

/* Connects to the keeper's socket. When the keeper dies every box is lost; the provider goes on
 * trying to connect, because somebody with more privilege starts another. */
struct provider *provider_jail_new(const char *keeper_socket, struct pump *pump,
                                   const struct box_events *events, struct pd_err *e);
