/* egress: the daemon's side of the gate, the process through which sandboxes reach the network
 * (docs/network.md).
 *
 * There is one gate for all sandboxes, and it may die at any moment. So the rules of every sandbox
 * that has a way out are kept here with the sockets that the gate needs for it, and a gate that
 * comes is told all of them. While there is none, what sandboxes connect to waits: nothing passes
 * that the rules do not allow. */
#pragma once

#include "base/clock.h"
#include "wire/gate_msg.h"

struct buf;
struct egress;
struct pd_err;

#define EGRESS_RULES_MAX (16u << 10) /* of one sandbox, as text */

struct egress_config {
    const char *socket; /* of the gate */
    /* Writes what every policy of this tenant has besides the sandbox's own rules: the layer that
     * the operator has set, addresses, resolvers and limits (gate/rules.h has the format). Takes no
     * lock. 0 or -1: then nothing is allowed. */
    int (*ceiling)(void *arg, const char *tenant, struct buf *out);
    /* Writes what the changer may do for this box, sealed; nothing when its rules have no secrets.
     * Takes locks below egress only. NULL: nobody has secrets. */
    int (*secrets)(void *arg, const char *id, const char *tenant, const char *rules,
                   struct buf *out, struct pd_err *e);
    /* Appends what is sealed in a rule of this tenant. NULL: nothing is. */
    int (*open_rule)(void *arg, const char *tenant, const char *sealed, size_t len, struct buf *out,
                     struct pd_err *e);
    /* The end of a connection, or a question that was refused. On a thread of its own, with no lock
     * held. The record is a stranger's word: its strings may have any bytes. */
    void (*told)(void *arg, const char *sandbox, const struct gate_record *r);
    void *arg;
};

struct egress *egress_new(const struct egress_config *c, struct pd_err *e);
/* Looks for the gate from now on. Before that, all sandboxes of an earlier daemon must be here:
 * the gate forgets what it is not told of. */
int egress_start(struct egress *g, struct pd_err *e);
void egress_free(struct egress *g);

/* A sandbox has got a box with a way out. `id`: the sandbox's, a dot, and what tells its boxes from
 * each other. Takes both sockets, whatever becomes of it. Does not wait for the gate. */
int egress_add(struct egress *g, const char *id, const char *tenant, const char *rules, int tcp,
               int dns, struct pd_err *e);
/* Another tenant and other rules, for one that nobody had before. Is not waited for. PD_LOST: there
 * is none. */
int egress_give(struct egress *g, const char *id, const char *tenant, const char *rules,
                struct pd_err *e);
/* Returns 0 when the gate goes by the new rules: connections that they do not allow are cut.
 * PD_CAPACITY: it has not said so before the deadline; it will be told. */
int egress_change(struct egress *g, const char *id, const char *rules, deadline d,
                  struct pd_err *e);
void egress_remove(struct egress *g, const char *id);
/* Waits until everything was told that the gate knew of when this was called, or the deadline. */
void egress_settle(struct egress *g, deadline d);
/* The ceilings, or values of secrets, are others: of this tenant, or with NULL of all. Does not
 * wait. */
void egress_reload(struct egress *g, const char *tenant);

/* Is this text one layer of rules, with limits, that a sandbox may have? Pure. */
int egress_check_rules(const char *rules, struct pd_err *e);
