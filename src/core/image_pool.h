/* image_pool: sandboxes kept ready for images that were used lately. For the session layer alone.
 *
 * A shelf has those of one kind: provider, image, profile, limits and least isolation. */
#pragma once

#include "core/sessions.h"

#include <pthread.h>
#include <stdbool.h>

#define SHELVES    32u
#define SHELF_ROOM 16u

struct shelf {
    struct provider *provider; /* NULL: the place is free */
    char *image;               /* as requests name it; "": the provider's own */
    enum profile profile;
    enum rung min_rung;
    struct limits limits;
    bool stays; /* of the server's own image: nobody has to ask for it first */
    struct session *ready[SHELF_ROOM];
    unsigned count, making;
    uint64_t used_ms, failed_ms;
    unsigned failures; /* the last so many fills in a row */
};

/* Under sessions.lock. */
struct image_pool {
    struct shelf shelves[SHELVES];
    uint64_t taken_at; /* by the clock */
    pthread_cond_t cond;
    pthread_t filler;
    bool runs; /* the filler */
};

void image_pool_init(struct sessions *all);
/* Gives back what is on the shelves; for sessions_free. */
void image_pool_done(struct sessions *all);

/* One that was never anybody's, runs, and is what a new one would be: the engine was asked. NULL:
 * none. Without any lock. */
struct session *image_pool_take(struct sessions *all, const struct provider *provider,
                                const struct session_request *r);
/* A sandbox of this kind was made, so the next one of it shall be ready. Likewise. */
void image_pool_note(struct sessions *all, struct provider *provider,
                     const struct session_request *r);

/* All with the lock held. As pool_drop and pool_filling; how many are ready. */
bool image_pool_drop(struct session *s);
unsigned image_pool_filling(const struct sessions *all, const struct provider *of); /* NULL: all */
unsigned image_pool_ready(const struct sessions *all, const struct provider *of);   /* likewise */

/* The thread that fills and clears the shelves. */
void *image_pool_main(void *sessions);
