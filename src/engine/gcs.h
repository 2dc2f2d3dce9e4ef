/* gcs: objects of one bucket of Google Cloud Storage, with a broker's credentials. One thread. */
#pragma once

#include "engine/gcs_api.h"
#include "engine/google_login.h"
#include "engine/rented.h"

#define GCS_OBJECT (1u << 20) /* the most that is read of one */

struct gcs {
    struct rented rented;
    struct google_login *login; /* the owner's */
    struct http *http;
    const char *bucket;
};

/* PD_INVALID names the setting that is wrong. `endpoint` is a setting or "": then the address is
 * STORAGE_EMULATOR_HOST's, or Google's. */
int gcs_open(struct gcs *g, const char *bucket, const char *endpoint, const char *ca_file,
             struct google_login *login, struct pd_err *e);
void gcs_close(struct gcs *g);

/* What is put twice is the same; with `only_new` PD_CONFLICT where there is one of this name. */
int gcs_put(struct gcs *g, const char *name, const void *data, size_t len, bool only_new,
            deadline t, struct pd_err *e);
/* Appends the content. 1; 0 where there is no such object; -1 with *e. */
int gcs_get(struct gcs *g, const char *name, struct buf *out, deadline t, struct pd_err *e);
/* Fine where there is none. */
int gcs_remove(struct gcs *g, const char *name, deadline t, struct pd_err *e);
/* Each name with this prefix. */
int gcs_list(struct gcs *g, const char *prefix, gcs_each *each, void *context, deadline t,
             struct pd_err *e);
/* All with this prefix. Fine where there is no such bucket any more. */
int gcs_remove_all(struct gcs *g, const char *prefix, deadline t, struct pd_err *e);

/* Says a call with the token of a login; one that was withdrawn is not shown again. */
int google_ask(struct rented *r, struct google_login *login, struct http *http,
               struct rented_call *c, struct pd_err *e);
