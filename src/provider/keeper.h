/* keeper: sandboxes that a keeper on this machine holds. Every provider is one of these; they
 * differ in the keeper's kind. */
#pragma once

#include "core/provider.h"

/* One row of the table of providers. */
struct provider_kind {
    const char *name;
    const char *what; /* one line, for people */
    unsigned can;     /* at most; an opened provider may have less */
    struct provider_patience patience;
    bool tells_facts; /* its boxes' inits say at birth what they found; a jail's, of an image */
    bool needs_image; /* it makes no box without one */
    bool has_store;   /* its keeper has a store of images */
    bool is_far; /* its boxes are on other machines: there is no cgroup here to freeze or read */
    const char *setting; /* that must be on, or NULL: it may always be used */
    unsigned timeout_s;  /* of a command for which none was asked; 0: the server's */
};
/* The table. NULL behind the last one; NULL when there is none of that name. */
const struct provider_kind *provider_kind_at(unsigned i);
const struct provider_kind *provider_kind_find(const char *name);

/* Connects to the keeper's socket. When the keeper dies every box is lost; the provider goes on
 * trying to connect, because somebody with more privilege starts another. */
struct provider *provider_keeper_new(const char *kind, const char *keeper_socket, struct pump *pump,
                                     const struct box_events *events, struct pd_err *e);

/* The same over a keeper of its own, of jails. `start` starts one and gives a connected socket, or
 * -1; it is called here, and again on a thread of the provider's when that keeper has died. Nothing
 * outlives the socket: neither boxes nor descriptors. `arg` must live as long as the provider. */
struct provider *provider_keeper_new_private(int (*start)(void *arg, struct pd_err *e), void *arg,
                                             struct pump *pump, const struct box_events *events,
                                             struct pd_err *e);
/* Creations are refused when the disk of this directory, which must outlive it, has little room. */
void provider_keeper_watch_disk(struct provider *p, const char *dir);
