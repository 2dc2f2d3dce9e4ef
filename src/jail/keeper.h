/* keeper: holds what must outlive the daemon.
 *
 * It is the parent of every jail, keeps the owner's end of every control socket and whatever other
 * descriptors a client wants kept (the fd store), and hands requests to builders. It never mounts,
 * unlinks or waits for anybody, and writes to no cgroup but the limits of a kit that nobody has
 * entered yet: one thread, one epoll loop.
 *
 * A client that goes away takes its jails with it, unless it made them with CREATE_KEEP. */
#pragma once

#include "base/clock.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct keeper;
struct keeper_kind;
struct pd_err;

/* How the names of a server's roots begin: of its sandboxes, and of what it keeps copies in. */
#define KEEPER_OWNED_ROOT "sb-"
#define KEEPER_OWNED_COPY "sn-"

#define KEEPER_OPTIONS_MAX 64u /* words: half as many options */

#define KEEPER_REGISTRIES_MAX 32u
struct keeper_config {
    const struct keeper_kind *kind; /* NULL: jails */
    /* Further words for a worker that is a program of its own; ends with NULL, or is NULL. */
    const char *const *options;
    const char *state_dir;
    const char *run_dir;
    const char *socket_path; /* listens here; NULL: serves only `client` and ends after it */
    int client;              /* a connected socket, or -1 */
    unsigned builders;       /* at least 1 */
    unsigned kits;           /* made in advance per builder; 0 for a private keeper */
    int separate_sweeper;    /* 0: the builder also sweeps */
    /* The uid that may connect and make commands' groups, besides root: an unprivileged server. It
     * gets jails with roots of its own (KEEPER_OWNED_ROOT...) and without network, but none with
     * the host's directories, network or other named roots: who takes the server over has no more.
     * It may copy and remove its own roots and copies (KEEPER_OWNED_COPY...). */
    uid_t owner;
    /* Of the store of images: a file with credentials of registries, or NULL, and where registries
     * are instead, as NAME=URL. Whoever asks for a pull says neither: the password must not go to
     * where a client wants it. */
    const char *registry_auth;
    const char *registries[KEEPER_REGISTRIES_MAX];
    unsigned registry_count;
    uint64_t files_max; /* descriptors that it may have; 0: as many as the system lets it */
    /* It is part of its client's process: signals but SIGCHLD are the client's, and so are all
     * children of which the keeper does not know. */
    bool inside;
};

/* Runs until the private client is gone and everything is swept, or until SIGTERM. To be called in
 * a process of its own. 0, or -1 when it could not start. */
int keeper_run(const struct keeper_config *c, struct pd_err *e);

/* A keeper for one owner, at the other end of this socket, with whom it ends. It keeps nothing of
 * what it inherited: not the terminal, no descriptor but the socket. When it cannot begin, whatever
 * it is asked is answered with the reason. Does not return. */
_Noreturn void keeper_serve_private(int sock, unsigned builders, unsigned kits);

/* The same for an owner who takes the keeper into its own process, and has one process less to
 * start and to wake: `sock` is one end of its link. The owner is the parent of its jails then, must
 * have no other children, and gives the keeper time: whenever it would wait, it calls
 * keeper_inside_due, which does what can be done and says until when, and waits for the keeper's
 * descriptor besides its own; when that has something, or the time has come, keeper_inside_hear.
 * When the process ends, however it does, its jails end with it, and the builder sweeps. SIGCHLD is
 * blocked, and no longer ignored if it was. */
struct keeper *keeper_start_inside(int sock, struct pd_err *e);
int keeper_inside_fd(const struct keeper *k);
deadline keeper_inside_due(struct keeper *k);
void keeper_inside_hear(struct keeper *k);
/* To be called before the process ends. The builder sweeps when it has; where there is none any
 * more, because somebody killed it, this starts another and waits until it has swept. */
void keeper_inside_end(struct keeper *k);

/* The directories: PADDOCK_STATE_DIR and PADDOCK_RUN_DIR, or the usual ones of root or of the user.
 * Makes the run directory (0700). The strings live as long as the process. */
int keeper_dirs(const char **ret_state, const char **ret_run, struct pd_err *e);
