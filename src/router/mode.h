/* mode: what a command may run in, as callers of older systems say it.
 *
 * `local` is the provider of that name: no isolation, and only where the operator has configured
 * it. `sandbox` is any provider that isolates. `auto` judges each command (command_class.h) and
 * takes the cheapest provider that isolates enough for it. */
#pragma once

#include <stddef.h>

enum run_mode { MODE_NONE, MODE_LOCAL, MODE_SANDBOX, MODE_AUTO, MODE_COUNT };

/* NULL for MODE_NONE. */
static inline const char *run_mode_name(enum run_mode m)
{
    static const char *const names[] = {NULL, "local", "sandbox", "auto"};
    return names[m];
}
