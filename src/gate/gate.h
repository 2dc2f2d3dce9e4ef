/* gate: the process through which sandboxes reach the network, by rules.
 *
 * It has two sockets of each sandbox, made in the sandbox's network namespace: one that accepts
 * every TCP connection, whatever its address, and one that gets every DNS question. It is nobody:
 * a uid of its own, no capability, a filter on its system calls, no file. docs/network.md says what
 * it decides; wire/gate_msg.h how it is told. */
#pragma once

#include <sys/types.h>

struct pd_err;

struct gate_config {
    int client;          /* its only client, with which it ends; or -1 */
    const char *socket;  /* where clients connect to, one after the other; or NULL */
    uid_t owner;         /* of that socket */
    const char *changer; /* where the changer connects to; or NULL: nobody has secrets */
    int until;           /* a pidfd: it ends with this process; or -1 */
};

/* Serves until its client is gone, or for ever. -1: it could not begin. */
int gate_run(const struct gate_config *c, struct pd_err *e);
