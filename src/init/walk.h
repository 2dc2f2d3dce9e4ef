/* walk: the files below a directory, depth first, each directory's names in byte order.
 *
 * Made for trees that somebody built to hurt: no recursion, at most WALK_FDS descriptors however
 * deep it goes (further up, ".." is opened and compared with what was there on the way down), at
 * most `batch` names of each directory in memory. Links are never followed. */
#pragma once

#include "base/buf.h"

#include <sys/stat.h>

struct pd_err;

#define WALK_FDS   24
#define WALK_BATCH 65536u

struct walk_level {
    int fd; /* -1: closed, to be found again by ".." */
    dev_t dev;
    ino_t ino;
    size_t path_len; /* of the directory's own path */
    char **names;    /* sorted; those before `next` are done */
    size_t count, next;
    int more; /* the directory has names behind the last one */
};

struct walk {
    struct walk_level *levels;
    size_t depth, room;
    size_t max_depth;
    size_t batch;
    struct buf path_buf;
    const char *resume; /* rest of the cursor that was not met yet, or NULL */
    /* Of the entry that walk_next returned: */
    int dir;          /* the directory that it is in */
    const char *name; /* in there */
    const char *path; /* from the root of the walk */
    struct stat st;
};

enum walk_step {
    WALK_ENTRY, /* dir, name, path and st are set */
    WALK_LEAVE, /* everything in the directory `path` was returned; dir and name are where it is */
    WALK_END,
};

/* Takes over `dir`, an open directory, also on failure. `cursor` (or NULL) is the path of the last
 * entry that was seen before: the walk goes on behind it. `max_depth`: 1 = only this directory. */
int walk_begin(struct walk *k, int dir, const char *cursor, size_t max_depth, size_t batch,
               struct pd_err *e);
void walk_done(struct walk *k);
#define auto_walk __attribute__((cleanup(walk_done))) struct walk

/* The next step, or -1: no memory, or the tree was moved away under the walk. */
int walk_next(struct walk *k, struct pd_err *e);
/* Enters the directory that walk_next has just returned. 0; or -errno when that cannot be, and then
 * the walk goes on beside it: -ELOOP at max_depth, -EXDEV for a file system made by the kernel
 * (such as /proc) that the walk did not start in. */
int walk_enter(struct walk *k);
/* Once more through the directory that was left just now, from its first name; for who removes. */
int walk_again(struct walk *k);
