/* e2b: sandboxes that are rented from E2B, or from whoever speaks its API: another Paddock. */
#pragma once

#include "engine/remote.h"

extern const struct remote_kind e2b_remote;
