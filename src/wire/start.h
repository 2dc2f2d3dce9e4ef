/* start: how the builder starts init, and where the sudo shim finds it. */
#pragma once

/* Init's end of the control socket; no other descriptor but /dev/null is open. */
#define INIT_OWNER_FD 3

/* argv[1]: the profile; or, rootless, that init and user code share one uid. */
#define INIT_ARG_STRICT "strict"
#define INIT_ARG_DEV    "dev"
#define INIT_ARG_SINGLE "single"
/* argv[2] and argv[3], where there are no cgroups: memory in bytes and number of processes, to be
 * set as resource limits of every command. */

/* In the environment of the init of a complete kit: descriptor 3 is the keeper's, and the first
 * frame there, ADOPT, brings the owner's. */
#define INIT_ENV_WAITS "PADDOCK_WAITS"

/* In the profile `dev` init listens here for the shim, which stands at INIT_SHIM_DIR/sudo. */
#define INIT_SUDO_SOCKET "/run/paddock/sudo.sock"
#define INIT_SHIM_DIR    "/opt/paddock/bin"
