/* changes: news of sandboxes, for whoever shows a list of them.
 *
 * Somebody who looks has a watch: a place in one ring that all of them share. A sandbox that
 * changes is noted there by its id; what it is now is asked for when the note is read, so of
 * several changes of one sandbox the last is told and the others are passed over. A watch that is
 * not read costs nothing: when it is more than CHANGES_KEPT behind, its place is gone, and it is
 * told so once (the list must be read anew). While nobody looks nothing is noted. Any thread. */
#pragma once

#include "base/lock.h"
#include "core/session.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct sessions;

#define CHANGES_KEPT 4096u

struct change {
    char id[SESSION_ID_LEN + 1];
    char tenant[64];
};

struct change_watch {
    struct change_watch *next;
    char tenant[64];
    uint64_t at; /* the number of the change that is read next */
    int event;   /* readable when there may be one; an eventfd */
    bool told;   /* that it is */
};

/* A part of struct sessions. */
struct changes {
    struct lock lock;
    atomic_uint watching;
    uint64_t count; /* noted so far */
    struct change_watch *watches;
    struct change *ring; /* number n is at n % CHANGES_KEPT; NULL until somebody looks */
};

void changes_init(struct changes *c);
void changes_done(struct changes *c);
/* Something of a sandbox is another than it was, after that. With its lock held, or any other. */
void session_changed(struct session *s);
/* Somebody uses it now: its idle clock starts anew. Of many uses one a second is noted. With its
 * lock held. */
void session_used(struct session *s);

/* From now on, changes of this tenant's sandboxes. PD_CAPACITY. */
int change_watch_begin(struct change_watch *w, struct sessions *all, const char *tenant,
                       struct pd_err *e);
void change_watch_end(struct change_watch *w, struct sessions *all);
/* The next sandbox that has changed. CHANGE_NONE: there is none now; CHANGE_MISSED: some were
 * noted that are forgotten, and what follows is new; CHANGE_REMOVED: ret_id is listed no more;
 * CHANGE_MADE: *ret is held for the caller. */
enum change_kind { CHANGE_NONE, CHANGE_MISSED, CHANGE_REMOVED, CHANGE_MADE };
enum change_kind change_watch_next(struct change_watch *w, struct sessions *all,
                                   struct session **ret, char ret_id[SESSION_ID_LEN + 1]);
