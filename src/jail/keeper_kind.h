/* keeper_kind: what a keeper's boxes are made of.
 *
 * A keeper is the same program for every kind: it holds boxes, their control sockets and stashed
 * descriptors. Its workers make the boxes, and they are what differs: builders for jails, one of
 * our own functions, or a program that speaks the same messages (a broker). docs/backends.md says
 * how to write one. */
#pragma once

#include "jail/builder.h"

#include <stdbool.h>

struct keeper_kind {
    const char *name;
    /* Serves the keeper on `sock` until it closes. NULL: `program` does. */
    void (*worker)(const struct builder_config *c, int sock);
    /* Beside this one, started as `PROGRAM broker NAME --instance ID --state DIR --owner UID` and
     * the keeper's further options; descriptor 3 is the keeper's socket, 4 the program init. A path
     * with a slash is taken as it is. */
    const char *program;
    bool is_jail;   /* kits, named roots, copies: what only builders make */
    bool has_range; /* a box has host ids of its own, if the keeper is root */
    /* Init is no child of the keeper: its death is told by a pidfd. */
    bool is_foreign;
    bool takes_cancel; /* its program reads CANCEL while it builds */
    bool may_be_far;   /* its program also makes boxes on other machines: descriptor 5 is
                        * paddock-box */
    /* It sees to cgroups by itself: the keeper makes none, and holds the one that came with BUILT.
     */
    bool has_own_groups;
    bool takes_options; /* a spec's options are its program's business; others refuse them */
    /* Init has no pid namespace: SIGTERM has it end its processes, then itself. */
    bool ends_itself;
    enum rung rung; /* the best of its boxes; RUNG_COUNT: builder_best_rung knows */
};

/* NULL when there is none of that name. `keeper_kind_at`: NULL behind the last one. */
const struct keeper_kind *keeper_kind_find(const char *name);
const struct keeper_kind *keeper_kind_at(unsigned i);
/* The kind whose boxes a program of the operator's makes, which promises no isolation. The texts
 * are borrowed. There is one: a keeper has one kind. */
const struct keeper_kind *keeper_kind_of_program(const char *name, const char *program);
