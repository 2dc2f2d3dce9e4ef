/* facts: what init finds in a box that somebody else made, or in the image of a jail, and what it
 * makes of it. Nothing of the
 * image is run to find out. */
#pragma once

#include "wire/msg.h"

#include <stdbool.h>
#include <sys/types.h>

#define FACTS_PATH 512u

/* What was asked for (start.h; in a jail nothing is), then what is. Strings are the caller's or the
 * environment's. */
struct facts {
    uid_t uid;
    gid_t gid;
    const char *workspace, *home;
    bool dev;
    bool is_jail; /* which always has a root of its own */

    enum facts_mode mode;
    enum facts_shell shell_kind;
    const char *shell;
    char missing[MSG_MISSING_MAX + 1];
};

/* Adds to what the box lacks, for people. */
__attribute__((format(printf, 2, 3))) void facts_lack(struct facts *f, const char *format, ...);
/* Before init gives up its power: makes workspace and home, if they are not there and it may. */
void facts_make_places(struct facts *f);
/* Afterwards, with f->mode set: finds the rest. */
void facts_find(struct facts *f);
/* The FACTS message; `variables` are the image's. */
void facts_encode(struct facts *f, char *const *variables, struct buf *out);
