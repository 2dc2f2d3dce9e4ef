/* docker_remote: docker and podman as rows of the table of backends (remote_kinds.c). */
#pragma once

#include "engine/remote.h"

extern const struct remote_kind docker_remote, podman_remote;
