/* providers: which providers this build has, by name.
 *
 * The only place that knows. A new provider is a row in the table of providers.c, one in
 * jail/keeper_kind.c, and whatever makes its boxes in a file of its own; docs/backends.md says
 * how. */
#pragma once

#include "provider/keeper.h"

#define PROVIDER_SOCKET_SIZE 108u

/* The things of the server that providers are opened with. */
struct provider_place {
    /* The keeper of jails on this machine: its socket, or a function that starts one of our own and
     * gives a connected socket (see provider_keeper_new_private). */
    const char *keeper_socket;
    const char *run_dir; /* of the sockets of the other kinds' keepers */
    int (*start)(void *arg, struct pd_err *e);
    void *start_arg;
    const char *data_dir; /* the server's own, on the disk that must not fill up; or NULL */
    const char *image;    /* of boxes for which none was asked; or NULL */
    bool docker_is_far;   /* its engine is on another machine */
    struct pump *pump;
    const struct box_events *events;
};

/* Adds a row for a provider that a program of the operator's makes: NAME=PROGRAM, of the setting
 * `backends`. Before any thread is started. PD_INVALID or PD_DENIED: no such name or program. */
int providers_add(const char *pair, struct pd_err *e);
/* The program of a row that was added; NULL of the others. */
const char *provider_program(const char *name);
/* Are its boxes made by a broker of an engine (paddock-remote), which has settings of its own? */
bool provider_has_broker(const char *name);
/* `names` are those of the setting `providers`, `mode` is `sandbox_mode`: "", "auto", "sandbox" or
 * one of the names. PD_INVALID, with the valid names, otherwise. `local_allowed`: the setting. */
int providers_check(char *const *names, unsigned count, const char *mode, bool local_allowed,
                    struct pd_err *e);
/* Opens all of them, which were checked; the default comes first. -1: none is open. */
int providers_open(struct provider_table *ret, char *const *names, unsigned count, const char *mode,
                   const struct provider_place *at, struct pd_err *e);
/* The socket of a kind's keeper. PD_INVALID: the path is too long. */
int provider_socket(const char *kind, const char *jails, const char *run_dir,
                    char ret[PROVIDER_SOCKET_SIZE], struct pd_err *e);
