/* kubernetes: pods of a cluster as a row of the table of backends (remote_kinds.c). */
#pragma once

#include "engine/remote.h"

extern const struct remote_kind kubernetes_remote;
