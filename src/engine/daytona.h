/* daytona: sandboxes that are rented from Daytona. */
#pragma once

#include "engine/remote.h"

extern const struct remote_kind daytona_remote;
