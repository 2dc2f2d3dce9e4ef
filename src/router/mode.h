/* mode: what a command may run in, as callers of older systems say it.
 *
 * `local` is the provider of that name: no isolation, and only where the operator has configured
 * it. `sandbox` is any provider that isolates. `auto` judges each command (command_class.h) and
 * takes the cheapest provider that isolates enough for it. */
#pragma once

#include <stddef.h>
#include <string.h>

enum run_mode { MODE_NONE, MODE_LOCAL, MODE_SANDBOX, MODE_AUTO, MODE_COUNT };
#define RUN_MODE_LIST "local, sandbox, auto" /* for errors */

/* The names from MODE_LOCAL on, with NULL behind the last. */
static inline const char *const *run_mode_names(void)
{
    static const char *const names[] = {"local", "sandbox", "auto", NULL};
    return names;
}

/* NULL for MODE_NONE. */
static inline const char *run_mode_name(enum run_mode m)
{
    return m == MODE_NONE ? NULL : run_mode_names()[m - MODE_LOCAL];
}

/* MODE_NONE when there is no mode of that name. */
static inline enum run_mode run_mode_of(const char *name)
{
    for (unsigned i = 0; run_mode_names()[i]; i++)
        if (!strcmp(run_mode_names()[i], name))
            return (enum run_mode)(MODE_LOCAL + i);
    return MODE_NONE;
}
