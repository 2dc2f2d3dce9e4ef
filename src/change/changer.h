/* changer: the process that uses secrets on behalf of sandboxes (docs/secrets.md).
 *
 * The gate lends it connections to hosts that have secrets. It ends TLS towards the sandbox, with
 * the sandbox's own authority, speaks TLS to the host, and puts secrets in place of placeholders on
 * the way. It keeps nothing: each connection comes with what it may do, sealed. It is nobody: a uid
 * of its own, no capability, a filter, no dump of its memory. */
#pragma once

struct pd_err;

struct changer_config {
    const char *gate;     /* the socket where the gate waits for it */
    const char *lock;     /* the file that says who is the changer */
    const char *key_file; /* of access/seal.h */
    const char *ca_file;  /* authorities of hosts; NULL: the system's */
    int until;            /* a pidfd: it ends with this process; or -1 */
    int (*filter)(void);  /* the last step of giving up power: 0 or -errno */
};

/* Serves until the gate is gone. -1: it could not begin. */
int changer_run(const struct changer_config *c, struct pd_err *e);
