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

/* argv[1] of an init in a box that somebody else made. `door`: it has no descriptor; it connects to
 * the SEQPACKET socket INIT_DOOR and waits there for ADOPT with its owner's socket. `local`: it is
 * in no namespace of its own, descriptor 3 is the owner's socket (or the keeper's, with
 * INIT_ENV_WAITS, as for a kit), and its parent's death or SIGTERM from there ends it with all that
 * it has started. Further words, in any order:
 *
 *   at=PATH         the door, instead of INIT_DOOR
 *   lease=SECONDS   how long it waits at the door for another owner when it has lost one; without
 *                   it, it ends. Only time in which it ran counts
 *   filter=PATH     a file of struct sock_filter, at most INIT_FILTER_MAX of them: the filter of
 *                   system calls that it loads for itself and all that it starts
 *   profile=dev     commands may be root, as far as the box allows; otherwise strict
 *   user=UID:GID    whom commands run as, instead of 1000:1000
 *   workspace=PATH  where commands begin, instead of /workspace
 *   home=PATH       of `user`, instead of $HOME of the image or /home/user
 *   memory=BYTES, processes=N   resource limits of every command, where there are no cgroups */
#define INIT_ARG_DOOR   "door"
#define INIT_ARG_LOCAL  "local"
#define INIT_DOOR       "/run/paddock/door"
#define INIT_FILTER_MAX 1024

/* In the environment of the init of a complete kit: descriptor 3 is the keeper's, and the first
 * frame there, ADOPT, brings the owner's. */
#define INIT_ENV_WAITS "PADDOCK_WAITS"

/* In the environment of the init of a jail that is made from an image: the image's variables are
 * there as well, and its owner is told of them (FACTS). */
#define INIT_ENV_IMAGE "PADDOCK_IMAGE"

/* In the profile `dev` init listens here for the shim, which stands at INIT_SHIM_DIR/sudo. */
#define INIT_SUDO_SOCKET "/run/paddock/sudo.sock"
/* In a container that somebody else made no directory is sure to be writable, but its network
 * namespace is its own: there it is this abstract name. */
#define INIT_SUDO_NAME "paddock-sudo"
#define INIT_SHIM_DIR  "/opt/paddock/bin"
