/* arms: how each arm of an experiment does, and the guard that stops the experiment.
 *
 * Pure. Creations and commands are counted, those that the provider failed at apart; a request's
 * own faults are not, and neither is a command that ends as it likes. When an arm has had as many
 * as the guard waits for, and too many of them failed, everybody gets what there is without the
 * experiment, until its rules change. */
#pragma once

#include "router/rules.h"

struct buf;
struct json;

struct arm_tally {
    uint64_t good, failed;
    uint64_t ns; /* that all of them took, together */
};

struct arm_count {
    struct arm_tally creations, commands;
};

struct arms {
    struct arm_count list[ROUTER_ARMS_MAX];
};

/* The creation in this arm has ended. True when the guard has stopped the experiment by it: then
 * x->stopped says why. */
bool arms_note(struct arms *a, struct router_experiment *x, unsigned arm, bool failed, uint64_t ns);
/* The same of a command that has ended: in a sandbox that was made in this arm. */
bool arms_note_command(struct arms *a, struct router_experiment *x, unsigned arm, bool failed,
                       uint64_t ns);
/* Are counts of the one counts of the other? */
bool experiment_is_same(const struct router_experiment *a, const struct router_experiment *b);
/* The value for the member `experiment`: null without one. */
void arms_json(const struct arms *a, const struct router_experiment *x, struct json *j);
/* The same in the format of Prometheus; nothing without an experiment. */
void arms_metrics(const struct arms *a, const struct router_experiment *x, struct buf *out);
