/* images: the store of images of the provider that has one (docs/images.md), for whoever makes
 * sandboxes and for the API. Who may have which image is not asked here. */
#pragma once

#include "core/provider.h"

#include <jansson.h>

struct pd_err;
struct session;
struct session_request;
struct sessions;

/* One request; see wire/msg.h for the verbs. */
struct images_request {
    enum images_verb verb;
    const char *tenant; /* of a pull: whose it is, or NULL */
    const char *image;  /* a name or an id; "" */
    const char *as;     /* of a pull: the name that it has here; NULL: the same */
    const char
        *login;   /* of a pull: credentials as `docker login` writes them; NULL: the server's */
    bool missing; /* a pull: only if there is none of the name */
    uint64_t max; /* of a prune: what the store may hold; 0: anything. Others: the server's */
    int file;     /* an archive to import, or -1 */
    /* Each line that the store says but an error, an object. -1 with *e: no more is wanted. */
    int (*line)(void *arg, const json_t *line, struct pd_err *e);
    bool (*is_unwanted)(void *arg); /* or NULL */
    void *arg;
};

/* On the caller's thread, until it is done or the deadline. PD_UNSUPPORTED: no provider of this
 * server has a store. PD_CAPACITY: the tenant has as many pulls under way as one may have. */
int images_ask(struct sessions *all, const struct images_request *r, deadline d, struct pd_err *e);

/* What a line of news says; false: it is another one. */
bool images_read_news(const json_t *line, struct msg_progress *ret);

/* Makes the session's box; of an image that the store lacks, or where the request wants it asked
 * for each time, it is fetched first, and the session's watch is told how far it is. */
int images_make_box(struct session *s, const struct session_request *r, struct pd_err *e);
