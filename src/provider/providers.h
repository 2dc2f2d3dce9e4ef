/* providers: which providers this build has, by name.
 *
 * The only place that knows. A new provider is a row in the table of providers.c, and whatever it
 * is made of in a file of its own; CONTRIBUTING.md says how. */
#pragma once

#include "core/provider.h"

/* The things of the server that providers are opened with. */
struct provider_place {
    /* The keeper on this machine: its socket, or a function that starts one of our own and gives a
     * connected socket (see provider_jail_new_private). */
    const char *keeper_socket;
    int (*start)(void *arg, struct pd_err *e);
    void *start_arg;
    const char *data_dir; /* the server's own, on the disk that must not fill up; or NULL */
    struct pump *pump;
    const struct box_events *events;
};

struct provider_kind {
    const char *name;
    const char *what; /* one line, for people */
    unsigned can;     /* at most; an opened provider may have less */
    struct provider *(*open)(const struct provider_place *at, struct pd_err *e);
};
/* NULL behind the last one. */
const struct provider_kind *provider_kind_at(unsigned i);

/* `names` are those of the setting `providers`, `mode` is `sandbox_mode`: "", "auto", "sandbox" or
 * one of the names. PD_INVALID, with the valid names, otherwise. */
int providers_check(char *const *names, unsigned count, const char *mode, struct pd_err *e);
/* Checks and opens all of them; the default comes first. -1: none is open. */
int providers_open(struct provider_table *ret, char *const *names, unsigned count, const char *mode,
                   const struct provider_place *at, struct pd_err *e);
