/* cloudrun_state: what the files of the backend cloudrun share: its state, a look at an execution,
 * and the way by which a box brings its link here. */
#pragma once

#include "box/letters.h"
#include "engine/called_stream.h"
#include "engine/cloudrun_api.h"
#include "engine/gcs.h"
#include "engine/google_login.h"
#include "engine/remote.h"
#include "engine/rented.h"

/* Lists are late: an execution that this process has run is known to it before. */
#define MADE_MOST 64u
struct made {
    char instance[32], box[64], id[CLOUDRUN_ID];
};

/* A process that removes what is left of a box that ends. */
#define REMOVERS_MOST 64u
struct remover {
    char instance[32], box[64];
    int process; /* or 0: none */
};

struct cloudrun {
    struct remote remote;
    struct rented rented;
    struct google_login login;
    struct rented_url url;
    struct http *api;
    struct cloudrun_place place;
    struct cloudrun_job job; /* containers 0: it was not read yet */
    const char *container, *listen, *call;
    const char *bucket; /* or "" */
    struct gcs gcs;
    char mount[CLOUDRUN_MOUNT]; /* where the job has the bucket */
    uint64_t life;
    struct called_keys *keys;
    struct made made[MADE_MOST];
    unsigned made_count; /* of all: the last ones are kept */
    struct remover removers[REMOVERS_MOST];
    unsigned remover_count; /* of all: the last ones are kept */
    int board;              /* of a carrier: where the calls of its box come from, or -1 */
    uint32_t last_call;     /* of a carrier: the number of its last call by bucket, or 0 */
};

/* PD_NOT_FOUND when Cloud Run does not know it any more. */
int cloudrun_read_one(struct cloudrun *b, const char *id, struct cloudrun_execution *ret,
                      deadline t, struct pd_err *e);

/* ---- ways (cloudrun_way.c) ---- */

#define CLOUDRUN_WAY 300u

/* Where a box that is being made will show itself. */
struct cloudrun_sign {
    int board; /* of calls (switchboard.h); -1: the box is by bucket */
    char prefix[LETTERS_PREFIX];
    uint8_t root[LETTERS_KEY];
};
/* Before the box is run. */
int cloudrun_way_open(struct cloudrun *b, const struct remote_plan *p, struct cloudrun_sign *ret,
                      deadline t, struct pd_err *e);
void cloudrun_way_close(struct cloudrun_sign *s);
/* The words that tell the box; the second may be "". */
void cloudrun_way_words(struct cloudrun *b, const struct cloudrun_sign *s, char way[CLOUDRUN_WAY],
                        char pin[CLOUDRUN_WAY]);
/* Until the box has shown itself once. */
int cloudrun_way_await(struct cloudrun *b, const char *id, const struct cloudrun_sign *s,
                       deadline t, struct pd_err *e);
/* Removes what it has left in the bucket. False when something may be left. */
bool cloudrun_way_clear(struct cloudrun *b, const char *instance, const char *box, deadline t);
void cloudrun_way_place(const struct cloudrun *b, const char *id, const char *link,
                        const struct cloudrun_sign *s, char ret[REMOTE_PLACE_MAX]);
struct byte_stream *cloudrun_reach(struct remote *r, const char *place, deadline t,
                                   struct pd_err *e);
