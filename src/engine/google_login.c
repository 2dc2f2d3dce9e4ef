/* How this works: each place has a function that fills in the token and tells how long it holds. */
#include "engine/google_login.h"

#include "base/banned.h"
#include "base/err.h"
#include "engine/google_federation.h"
#include "engine/http.h"
#include "engine/remote.h"
#include "engine/rented.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEARER        "Authorization: Bearer "
#define FILE_MAX      (64u << 10)
#define EARLY_S       300u /* a token is not used up to its end */
#define FILE_LIFE     60u  /* a file is read again */
#define METADATA_HOST "metadata.google.internal"
#define METADATA_PATH "/computeMetadata/v1/instance/service-accounts/default/token"
#define METADATA_WAIT (5 * NS_PER_S)

void google_login_open(struct google_login *g, const char *token_file, const char *account_file,
                       const char *ca_file)
{
    const char *usual = getenv("GOOGLE_APPLICATION_CREDENTIALS");

    *g = (struct google_login){.token_file = token_file,
                               .account_file = account_file[0] ? account_file
                                               : usual         ? usual
                                                               : "",
                               .ca_file = ca_file,
                               .from = ""};
}

void google_login_close(struct google_login *g)
{
    explicit_bzero(g->header, sizeof g->header);
}

void google_login_forget(struct google_login *g)
{
    google_login_close(g);
}

const char *google_login_secret(const struct google_login *g)
{
    return g->header[0] ? g->header + sizeof BEARER - 1 : "";
}

static void take_token(struct google_login *g, const char *token, unsigned life)
{
    snprintf(g->header, sizeof g->header, BEARER "%s", token);
    g->until = deadline_in((life > 2 * EARLY_S ? life - EARLY_S : life / 2) * NS_PER_S);
}

static int from_token_file(struct google_login *g, struct pd_err *e)
{
    auto_buf text = BUF_INIT(FILE_MAX);

    if (remote_read_file("cloudrun_token_file", g->token_file, &text, e) < 0)
        return -1;
    const char *token = buf_cstr(&text);
    bool good = token && google_is_token(token);
    if (good)
        take_token(g, token, 2 * FILE_LIFE);
    if (text.data)
        explicit_bzero(text.data, text.cap);
    g->from = "cloudrun_token_file";
    return good ? 0
                : pd_fail(e, PD_INVALID,
                          "cloudrun_token_file: what is in %.120s is no token: one word is "
                          "expected, as `gcloud auth print-access-token` says it",
                          g->token_file);
}

/* What a server that gives tokens has answered. `where` is for people. */
static int take_answer(struct google_login *g, const struct rented *r, struct rented_call *c,
                       const char *what, struct pd_err *e)
{
    char token[GOOGLE_TOKEN];
    unsigned life;

    if (c->status == 400)
        c->status = 401; /* a wrong assertion is invalid_grant there */
    if (c->status != 200)
        return rented_call_refused(r, c, what, e);
    if (google_token_read(c->out.data, c->out.len, token, &life, e) < 0)
        return pd_wrap(e, "%s", r->who);
    take_token(g, token, life);
    explicit_bzero(token, sizeof token);
    explicit_bzero(c->out.data, c->out.len);
    return 0;
}

static int exchange(struct google_login *g, const struct google_account *a, deadline t,
                    struct pd_err *e)
{
    const struct rented r = {.who = "Google's token server",
                             .remedy = "cloudrun_credentials_file",
                             .secret = "",
                             .ca_file = g->ca_file};
    auto_rented c = RENTED_CALL("POST", t);
    auto_buf assertion = BUF_INIT(16384);

    if (google_assertion_text(&assertion, a, time(NULL), e) < 0 ||
        google_assertion_sign(&assertion, a, e) < 0)
        return pd_wrap(e, "%.160s", g->account_file);
    struct http *h = rented_server(&r, a->token.base, e);
    if (!h)
        return -1;

    c.again = true;
    rented_header(&c, "Content-Type: application/x-www-form-urlencoded");
    buf_puts(&c.target, a->token.path[0] ? a->token.path : "/");
    google_exchange_form(&c.in, buf_cstr(&assertion));
    int failed = rented_ask(&r, h, &c, e);
    http_free(h);
    explicit_bzero(assertion.data, assertion.len);
    return failed ? -1 : take_answer(g, &r, &c, "give a token for the service account", e);
}

static int from_key(struct google_login *g, const struct buf *text, deadline t, struct pd_err *e)
{
    struct google_account account;

    g->from = "the key of a service account";
    int failed = google_account_read(text->data, text->len, &account, e);
    if (failed)
        return pd_wrap(e, "cloudrun_credentials_file %.120s", g->account_file);
    failed = exchange(g, &account, t, e);
    explicit_bzero(&account, sizeof account);
    return failed;
}

/* ---- somebody else's token ---- */

static int ask_source(const struct google_login *g, const struct google_federation *f,
                      struct buf *out, deadline t, struct pd_err *e)
{
    const struct rented r = {.who = "the credential_source",
                             .remedy = "cloudrun_credentials_file",
                             .secret = "",
                             .ca_file = g->ca_file};
    auto_rented c = RENTED_CALL("GET", t);
    struct http *h = rented_server(&r, f->source.base, e);
    if (!h)
        return -1;

    c.again = true;
    for (unsigned i = 0; i < f->header_count; i++)
        rented_header(&c, f->headers[i]);
    buf_puts(&c.target, f->source.target);
    int failed = rented_ask(&r, h, &c, e);
    http_free(h);
    if (!failed && c.status != 200)
        failed = rented_call_refused(&r, &c, "give a token", e);
    if (!failed && buf_put(out, c.out.data, c.out.len) < 0)
        failed = pd_fail(e, PD_PROTOCOL, "the credential_source gives too much");
    if (c.out.data)
        explicit_bzero(c.out.data, c.out.len);
    return failed;
}

/* What proves to Google whose program this is. It is asked for anew each time: such tokens are
 * short. */
static int read_subject(const struct google_login *g, const struct google_federation *f,
                        char ret[GOOGLE_SUBJECT], deadline t, struct pd_err *e)
{
    auto_buf text = BUF_INIT(GOOGLE_SOURCE_MAX);
    int failed = f->file[0] ? remote_read_file("credential_source.file", f->file, &text, e)
                            : ask_source(g, f, &text, t, e);

    if (!failed)
        failed = google_subject_read(f, text.data, text.len, ret, e);
    if (text.data)
        explicit_bzero(text.data, text.cap);
    return failed;
}

static int exchange_subject(struct google_login *g, const struct google_federation *f,
                            const char *subject, deadline t, struct pd_err *e)
{
    const struct rented r = {.who = "Google's token server",
                             .remedy = "the pool and provider in cloudrun_credentials_file",
                             .secret = subject,
                             .ca_file = g->ca_file};
    auto_rented c = RENTED_CALL("POST", t);
    struct http *h = rented_server(&r, f->token.base, e);
    if (!h)
        return -1;

    c.again = true;
    rented_header(&c, "Content-Type: application/x-www-form-urlencoded");
    buf_puts(&c.target, f->token.target);
    google_federate_form(&c.in, f, subject);
    int failed = rented_ask(&r, h, &c, e);
    http_free(h);
    explicit_bzero(c.in.data, c.in.len);
    return failed ? -1 : take_answer(g, &r, &c, "exchange a token", e);
}

/* With Google's token that of the service account. Its end is the one that was asked for: one that
 * is refused before is fetched anew. */
static int impersonate(struct google_login *g, const struct google_federation *f, deadline t,
                       struct pd_err *e)
{
    const struct rented r = {.who = "Google's IAM",
                             .remedy = "service_account_impersonation_url, and the role "
                                       "iam.serviceAccountTokenCreator",
                             .secret = google_login_secret(g),
                             .ca_file = g->ca_file};
    auto_rented c = RENTED_CALL("POST", t);
    char token[GOOGLE_TOKEN];
    struct http *h = rented_server(&r, f->impersonate.base, e);
    if (!h)
        return -1;

    c.again = true;
    rented_header(&c, g->header);
    rented_header(&c, "Content-Type: application/json");
    buf_puts(&c.target, f->impersonate.target);
    google_impersonate_body(&c.in, f);
    int failed = rented_ask(&r, h, &c, e);
    http_free(h);
    if (failed)
        return -1;
    if (c.status != 200)
        return rented_call_refused(&r, &c, "give a token for the service account", e);
    if (google_impersonated_read(c.out.data, c.out.len, token, e) < 0)
        return pd_wrap(e, "%s", r.who);
    take_token(g, token, f->life);
    explicit_bzero(token, sizeof token);
    explicit_bzero(c.out.data, c.out.len);
    return 0;
}

static int from_federation(struct google_login *g, const struct buf *text, deadline t,
                           struct pd_err *e)
{
    static struct google_federation f; /* of a broker or carrier, which has one thread */
    static char subject[GOOGLE_SUBJECT];

    g->from = "a federated identity";
    int failed = google_federation_read(text->data, text->len, &f, e);
    if (!failed)
        failed = read_subject(g, &f, subject, t, e);
    if (failed)
        return pd_wrap(e, "cloudrun_credentials_file %.120s", g->account_file);

    failed = exchange_subject(g, &f, subject, t, e);
    if (!failed && f.impersonate.base[0])
        failed = impersonate(g, &f, t, e);
    explicit_bzero(subject, sizeof subject);
    explicit_bzero(f.headers, sizeof f.headers);
    if (failed)
        google_login_forget(g);
    return failed;
}

static int from_account(struct google_login *g, deadline t, struct pd_err *e)
{
    auto_buf text = BUF_INIT(FILE_MAX);

    if (remote_read_file("cloudrun_credentials_file", g->account_file, &text, e) < 0)
        return -1;
    int failed = google_is_federation(text.data, text.len) ? from_federation(g, &text, t, e)
                                                           : from_key(g, &text, t, e);
    if (text.data)
        explicit_bzero(text.data, text.cap);
    return failed;
}

static int from_metadata(struct google_login *g, deadline t, struct pd_err *e)
{
    const char *host = getenv("GCE_METADATA_HOST");
    const struct rented r = {
        .who = "the metadata server", .remedy = "the machine's service account", .secret = ""};
    auto_rented c = RENTED_CALL("GET", deadline_in(METADATA_WAIT));
    char base[300];

    host = host && host[0] ? host : METADATA_HOST;
    if (!rented_is_host(host))
        return pd_fail(e, PD_INVALID, "GCE_METADATA_HOST=%.80s: use HOST or HOST:PORT", host);
    snprintf(base, sizeof base, "http://%.280s", host);
    if (t < c.deadline)
        c.deadline = t;
    struct http *h = http_new(&(struct http_place){.base = base, .direct = true}, e);
    if (!h)
        return -1;

    rented_header(&c, "Metadata-Flavor: Google");
    buf_puts(&c.target, METADATA_PATH);
    int failed = rented_ask(&r, h, &c, e);
    http_free(h);
    if (failed)
        return pd_fail(e, PD_DENIED,
                       "there are no credentials for Google: name cloudrun_credentials_file or "
                       "cloudrun_token_file (this machine is not at Google: no answer from %.80s)",
                       host);
    g->from = "the metadata server";
    return take_answer(g, &r, &c, "give a token", e);
}

const char *google_login_header(struct google_login *g, deadline t, struct pd_err *e)
{
    if (g->header[0] && !deadline_passed(g->until))
        return g->header;
    google_login_forget(g);

    int r = g->token_file[0]     ? from_token_file(g, e)
            : g->account_file[0] ? from_account(g, t, e)
                                 : from_metadata(g, t, e);
    return r < 0 ? NULL : g->header;
}
