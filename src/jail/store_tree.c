/* Removing a tree, also one whose owner is still at work in it.
 *
 * How this works: the walk goes down by descriptor and up by "..", so no path is ever longer than
 * one name and depth costs no descriptors. Directories are opened O_NOFOLLOW: a link leads nowhere.
 * ".." is wherever the directory is by now, and somebody may have moved it to a place of the host
 * that the walk has no business in. So the walk notes each directory that it goes down from, and
 * what it finds above must be that one, or it ends with -ESTALE.
 *
 * The notes are a ring: what is deeper than it has room for is found again from the top. */
#include "jail/store.h"

#include "base/banned.h"
#include "base/fd.h"
#include "jail/walls.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>

#define NOTES_FIRST 64u
#define NOTES_MAX   65536u /* 2 MiB */

/* A directory. Its birth tells it from a later one that got the same number. */
struct note {
    uint64_t inode;
    int64_t born_s;
    uint32_t born_ns, device_major, device_minor;
};

struct walk {
    int parent; /* of the tree */
    const char *name;
    int at;
    unsigned depth, known; /* levels below the top; those directly above that are noted */
    struct note *notes;    /* of the directory at depth d: notes[d % room] */
    unsigned room;
};

static int note_take(int dir, struct note *ret)
{
    struct statx st;

    if (syscall(SYS_statx, dir, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &st) < 0)
        return -errno;
    *ret = (struct note){.inode = st.stx_ino,
                         .born_s = st.stx_btime.tv_sec,
                         .born_ns = st.stx_btime.tv_nsec,
                         .device_major = st.stx_dev_major,
                         .device_minor = st.stx_dev_minor};
    return 0;
}

static bool note_equal(const struct note *a, const struct note *b)
{
    return a->inode == b->inode && a->born_s == b->born_s && a->born_ns == b->born_ns &&
           a->device_major == b->device_major && a->device_minor == b->device_minor;
}

static int walk_begin(struct walk *w)
{
    fd_done(&w->at);
    w->depth = w->known = 0;
    w->at = openat(w->parent, w->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return w->at < 0 ? -errno : 0;
}

static void walk_done(struct walk *w)
{
    fd_done(&w->at);
    free(w->notes);
}

static int walk_down(struct walk *w, int child)
{
    if (w->known == w->room && w->room < NOTES_MAX) {
        unsigned room = w->room ? w->room * 2 : NOTES_FIRST;
        struct note *more = reallocarray(w->notes, room, sizeof *more);
        if (!more)
            return -ENOMEM;
        w->notes = more;
        w->room = room;
    }

    int r = note_take(w->at, &w->notes[w->depth % w->room]);
    if (r < 0)
        return r;

    w->depth++;
    w->known += w->known < w->room;
    fd_done(&w->at);
    w->at = child;
    return 0;
}

static int walk_up(struct walk *w)
{
    struct note above = {0};

    if (w->known == 0)
        return walk_begin(w);

    auto_fd up = openat(w->at, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = up < 0 ? -errno : note_take(up, &above);
    if (r < 0)
        return r;

    w->depth--;
    w->known--;
    if (!note_equal(&above, &w->notes[w->depth % w->room]) && !wall_off("parents"))
        return -ESTALE;

    fd_done(&w->at);
    w->at = fd_take(&up);
    return 0;
}

/* Removes one entry. A directory that is in the way by its contents is opened instead, *ret_child.
 * Only such a one is worth entering: one that may not be removed, or is a mount, would be entered
 * again and again. What somebody else has taken away meanwhile is removed, too. */
static int remove_entry(int at, const char *name, int *ret_child)
{
    if (unlinkat(at, name, 0) == 0 || errno == ENOENT)
        return 0;

    int as_file = errno;
    if (unlinkat(at, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return errno == ENOTDIR ? -as_file : -errno;

    *ret_child = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return *ret_child < 0 && errno != ENOENT ? -errno : 0;
}

/* Empties the directory as far as that goes without entering another one, *ret_child, else -1. */
static int empty_here(const struct walk *w, int *ret_child)
{
    auto_fd listing = openat(w->at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = listing < 0 ? NULL : fdopendir(listing);
    if (!entries)
        return -errno;
    fd_take(&listing);

    int r = 0;
    *ret_child = -1;
    for (const struct dirent *d; r == 0 && *ret_child < 0 && (d = readdir(entries));)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
            r = remove_entry(w->at, d->d_name, ret_child);

    closedir(entries);
    return r;
}

int store_remove_tree(int dir, const char *name)
{
    struct walk w = {.parent = dir, .name = name, .at = -1};

    int r = walk_begin(&w);
    if (r == -ENOTDIR || r == -ELOOP)
        return unlinkat(dir, name, 0) < 0 ? -errno : 0;

    while (r == 0) {
        auto_fd child = -1;
        r = empty_here(&w, &child);
        if (r == 0 && child >= 0) {
            r = walk_down(&w, child);
            if (r == 0)
                (void)fd_take(&child);
        } else if (r == 0 && w.depth == 0) {
            r = unlinkat(dir, name, AT_REMOVEDIR) < 0 ? -errno : 0;
            break;
        } else if (r == 0) {
            r = walk_up(&w); /* its next round removes the empty one */
        }
    }

    walk_done(&w);
    return r;
}
