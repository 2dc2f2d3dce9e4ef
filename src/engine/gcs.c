/* How this works: plain calls, each of which may be said again: what is put under a name is always
 * the same, and removing what is gone is fine. */
#include "engine/gcs.h"

#include "base/banned.h"
#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENDPOINT   "https://storage.googleapis.com"
#define PAGES_MOST 100u

int google_ask(struct rented *r, struct google_login *login, struct http *http,
               struct rented_call *c, struct pd_err *e)
{
    unsigned own = c->header_count;

    for (int tries = 0;; tries++) {
        const char *header = google_login_header(login, c->deadline, e);
        if (!header)
            return -1;
        r->secret = google_login_secret(login);
        c->header_count = own;
        rented_header(c, header);
        if (rented_ask(r, http, c, e) < 0)
            return -1;
        if (c->status != 401 || tries)
            return 0;
        google_login_forget(login);
    }
}

/* "HOST:PORT" or "SCHEME://HOST:PORT", as Google's own clients take it. */
static const char *emulator(char *out, size_t size)
{
    const char *value = getenv("STORAGE_EMULATOR_HOST");

    if (!value || !value[0])
        return ENDPOINT;
    snprintf(out, size, "%s%.250s", strstr(value, "://") ? "" : "http://", value);
    return out;
}

int gcs_open(struct gcs *g, const char *bucket, const char *endpoint, const char *ca_file,
             struct google_login *login, struct pd_err *e)
{
    struct rented_url url;
    char room[300];

    *g = (struct gcs){.rented = {.who = "Google Cloud Storage",
                                 .remedy = "the role Storage Object User of the service account on "
                                           "cloudrun_bucket",
                                 .secret = "",
                                 .ca_file = ca_file},
                      .login = login,
                      .bucket = bucket};
    if (gcs_check_bucket("cloudrun_bucket", bucket, e) < 0 ||
        rented_url_read("cloudrun_storage_endpoint",
                        endpoint[0] ? endpoint : emulator(room, sizeof room), &url, e) < 0)
        return -1;
    if (url.path[0])
        return pd_fail(e, PD_INVALID, "cloudrun_storage_endpoint: use https://HOST without a path");
    g->http = rented_server(&g->rented, url.base, e);
    return g->http ? 0 : -1;
}

void gcs_close(struct gcs *g)
{
    http_free(g->http);
    g->http = NULL;
}

static int ask(struct gcs *g, struct rented_call *c, struct pd_err *e)
{
    c->again = true;
    return google_ask(&g->rented, g->login, g->http, c, e);
}

int gcs_put(struct gcs *g, const char *name, const void *data, size_t len, bool only_new,
            deadline t, struct pd_err *e)
{
    auto_rented c = RENTED_CALL("POST", t);

    gcs_put_target(&c.target, g->bucket, name, only_new);
    rented_header(&c, "Content-Type: application/octet-stream");
    if (buf_put(&c.in, data, len) < 0)
        return pd_fail(e, PD_TOO_LARGE, "an object of %zu bytes", len);
    if (ask(g, &c, e) < 0)
        return -1;
    if (c.status == 412)
        return pd_fail(e, PD_CONFLICT, "there is such an object");
    return c.status == 200 ? 0 : rented_call_refused(&g->rented, &c, "write an object", e);
}

int gcs_get(struct gcs *g, const char *name, struct buf *out, deadline t, struct pd_err *e)
{
    auto_rented c = RENTED_CALL("GET", t);

    c.out.max = GCS_OBJECT;
    gcs_get_target(&c.target, g->bucket, name);
    if (ask(g, &c, e) < 0)
        return -1;
    if (c.status == 404)
        return 0;
    if (c.status != 200)
        return rented_call_refused(&g->rented, &c, "read an object", e);
    return buf_put(out, c.out.data, c.out.len) < 0
               ? pd_fail(e, PD_TOO_LARGE, "an object is longer than it may be")
               : 1;
}

int gcs_remove(struct gcs *g, const char *name, deadline t, struct pd_err *e)
{
    auto_rented c = RENTED_CALL("DELETE", t);

    gcs_delete_target(&c.target, g->bucket, name);
    if (ask(g, &c, e) < 0)
        return -1;
    return c.status == 204 || c.status == 200 || c.status == 404
               ? 0
               : rented_call_refused(&g->rented, &c, "remove an object", e);
}

int gcs_list(struct gcs *g, const char *prefix, gcs_each *each, void *context, deadline t,
             struct pd_err *e)
{
    char next[GCS_NEXT] = "";

    for (unsigned page = 0; page < PAGES_MOST; page++) {
        auto_rented c = RENTED_CALL("GET", t);
        gcs_list_target(&c.target, g->bucket, prefix, next);
        if (ask(g, &c, e) < 0)
            return -1;
        if (c.status != 200)
            return rented_call_refused(&g->rented, &c, "list objects", e);
        if (gcs_read_list(c.out.data, c.out.len, prefix, next, each, context, e) < 0)
            return -1;
        if (!next[0])
            return 0;
    }
    return 0;
}

struct removal {
    struct gcs *gcs;
    deadline until;
};

static int remove_one(void *context, const char *name, struct pd_err *e)
{
    struct removal *r = context;
    return gcs_remove(r->gcs, name, r->until, e);
}

int gcs_remove_all(struct gcs *g, const char *prefix, deadline t, struct pd_err *e)
{
    struct removal r = {.gcs = g, .until = t};
    struct pd_err why;

    if (gcs_list(g, prefix, remove_one, &r, t, &why) == 0 || why.code == PD_NOT_FOUND)
        return 0;
    if (e)
        *e = why;
    return -1;
}
