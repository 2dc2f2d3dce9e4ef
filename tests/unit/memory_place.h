/* memory_place: a directory for a test, in memory if possible, because a disk takes its time with
 * many directories. Whoever fills it empties it. */
#pragma once

#include "unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct place {
    char path[64];
    int dir;
};

static inline int make_place(void **state)
{
    static struct place p;
    snprintf(p.path, sizeof p.path, "%s/paddock-place-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(p.path))
        return -1;
    p.dir = open(p.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *state = &p;
    return p.dir < 0 ? -1 : 0;
}

static inline int remove_place(void **state)
{
    struct place *p = *state;
    close(p->dir);
    return rmdir(p->path);
}
