/* bucket: brings the link of a box to its keeper through a bucket that the box sees as a directory:
 * for networks in which nothing can be connected to (letters.h). A process beside the far end,
 * which has not the key of the link: it copies bytes between the socket that paddock-box join uses,
 * too, and files of that directory. */
#pragma once

#include "box/letters.h"

#include <stdbool.h>

struct pd_err;

struct bucket {
    char path[256]; /* "/DIRECTORY/PREFIX" */
    uint8_t root[LETTERS_KEY];
};

/* Was this program built with what seals letters? */
bool bucket_can(void);
/* The path, and the key from its variable (key.h). PD_INVALID. */
int bucket_read(const char *path, struct bucket *ret, struct pd_err *e);
/* Says that the box is there, and takes calls until the process `parent` ends. */
_Noreturn void bucket_run(const struct bucket *b, int parent);
