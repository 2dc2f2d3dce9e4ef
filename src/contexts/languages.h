/* The languages of code contexts: which program runs one, and the driver that it is given.
 *
 * A driver is a text that is carried inside of this program. The program of a language reads it
 * from its descriptor 0 when it starts: one line with its length, then so many bytes; the requests
 * follow. So nothing has to be installed in a sandbox, and no list of processes shows the text.
 * docs/contexts.md says what a driver speaks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct context_language {
    const char *name;                /* "python" */
    const char *const *aliases;      /* "py", "python3", NULL */
    const char *const *argv;         /* what is executed, NULL at the end */
    const char *usual;               /* NAME=VALUE for it, unless somebody has set NAME; or NULL */
    const char *driver, *driver_end; /* the text that is sent first */
    bool forks;                      /* takes the request `fork` */
    bool listed;                     /* its default context is in every list from the start */
    bool plain;                      /* requests are code, not JSON */
    bool settles;                    /* takes the request `settle` */
    const char *missing;             /* what to say when argv[0] is not there, or cannot do it */
};

/* The language of a name or of one of its short forms. Capitals and blanks around it do not matter.
 * NULL: none of ours; the row "bridge" may have a kernel of that name. */
const struct context_language *context_language_find(const char *name, size_t n);

/* The rows of the table, the bridge last. `i` must be below the count. */
size_t context_language_count(void);
const struct context_language *context_language_at(size_t i);
