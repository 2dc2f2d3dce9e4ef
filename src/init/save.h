/* save: a file that appears, or takes the place of another, in one step.
 *
 * Until save_commit it has no name (O_TMPFILE), so a worker that is killed leaves nothing; where
 * the file system cannot do that it has a temporary one, ".paddock-" and random digits, which
 * save_done removes. */
#pragma once

#include <stdbool.h>
#include <sys/stat.h>

struct save {
    int dir; /* the caller's; must stay open */
    int fd;  /* for writing and reading */
    char temp[32];
};
#define SAVE_INIT ((struct save){.dir = -1, .fd = -1})

/* 0 or -errno. The file has mode 0600. */
int save_begin(struct save *s, int dir);
/* Gives it its name. Without `replace` an existing file is -EEXIST. 0 or -errno. */
int save_commit(struct save *s, const char *name, int replace);
/* The same in place of a file that is still as `expected` says of it; else -ESTALE, and everything
 * is as it was. The two change places in one step and the one that had the name is looked at then,
 * so nobody's write between a look and the step is lost. -ENOENT: there is none. */
int save_commit_over(struct save *s, const char *name,
                     bool (*expected)(const struct stat *old, const void *arg), const void *arg);
/* Closes; what was not committed is gone. */
void save_done(struct save *s);
#define auto_save __attribute__((cleanup(save_done))) struct save
