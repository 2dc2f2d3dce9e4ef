/* local: boxes without any wall, for development. A directory, a cgroup where there are some, and
 * init as an unprivileged user. */
#pragma once

#include "jail/builder.h"

/* Where the directories of a root's boxes are: their users must be able to get there. */
#define LOCAL_DIR "/var/lib/paddock-local"

/* A worker of a keeper of kind `local`: BUILD, SWEEP and STRIKE. Serves `sock` until the keeper
 * closes it; then ends and removes what is left. */
void local_main(const struct builder_config *c, int sock);
