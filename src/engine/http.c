/* Requests by libcurl's easy interface: a handle per server is set up once and reused, so that its
 * connection is kept. An answer's body is collected up to a maximum; that of a good answer can be
 * handed on as it comes. */
#include "engine/http.h"

#include "base/banned.h"
#include "base/err.h"

#include <curl/curl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_PATIENCE_MS 10000L

struct http {
    CURL *curl;
    char *base;
    char *where; /* for error texts: the socket's path or the base */
    char error[CURL_ERROR_SIZE];
};

/* One request on its way. */
struct flight {
    const struct http_request *request;
    struct http_answer *answer;
    CURL *curl;
    uint64_t streamed;
    bool failed; /* error holds why */
    struct pd_err error;
};

static bool is_given(const char *text)
{
    return text && text[0];
}

static size_t on_body(char *data, size_t size, size_t count, void *context)
{
    struct flight *f = context;
    size_t len = size * count;
    long status = 0;

    curl_easy_getinfo(f->curl, CURLINFO_RESPONSE_CODE, &status);
    if (f->request->take && status >= 200 && status < 300) {
        f->streamed += len;
        if (f->request->stream_max && f->streamed > f->request->stream_max) {
            pd_fail(&f->error, PD_TOO_LARGE, "more than %llu bytes",
                    (unsigned long long)f->request->stream_max);
            f->failed = true;
            return 0;
        }

        f->failed = f->request->take(f->request->context, data, len, &f->error) < 0;
        return f->failed ? 0 : len;
    }

    if (buf_put(f->answer->body, data, len) < 0) {
        pd_fail(&f->error, PD_TOO_LARGE, "an answer of more than %zu bytes", f->answer->body->max);
        f->failed = true;
        return 0;
    }
    return len;
}

/* Not 0 ends the request. */
static int on_time(void *context, curl_off_t down_all, curl_off_t down, curl_off_t up_all,
                   curl_off_t up)
{
    const struct flight *f = context;
    const struct http_request *r = f->request;

    (void)down_all, (void)down, (void)up_all, (void)up;
    return !r->is_wanted(r->context);
}

static int set_up(struct http *h, const struct http_place *p, struct pd_err *e)
{
    CURL *c = h->curl;
    bool ok = curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_PATH_AS_IS, 1L) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_USERAGENT, "paddock") == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_ERRORBUFFER, h->error) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_PATIENCE_MS) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_time) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body) == CURLE_OK;

    if (is_given(p->socket))
        ok = ok && curl_easy_setopt(c, CURLOPT_UNIX_SOCKET_PATH, p->socket) == CURLE_OK &&
             curl_easy_setopt(c, CURLOPT_PROXY, "") == CURLE_OK;
    else if (is_given(p->proxy))
        ok = ok && curl_easy_setopt(c, CURLOPT_PROXY, p->proxy) == CURLE_OK;

    if (is_given(p->ca_file))
        ok = ok && curl_easy_setopt(c, CURLOPT_CAINFO, p->ca_file) == CURLE_OK;
    if (is_given(p->cert_file))
        ok = ok && curl_easy_setopt(c, CURLOPT_SSLCERT, p->cert_file) == CURLE_OK;
    if (is_given(p->key_file))
        ok = ok && curl_easy_setopt(c, CURLOPT_SSLKEY, p->key_file) == CURLE_OK;

    return ok ? 0 : pd_fail(e, PD_INTERNAL, "libcurl refuses an option for %s", h->where);
}

struct http *http_new(const struct http_place *p, struct pd_err *e)
{
    static bool started;

    if (!started && curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        pd_fail(e, PD_INTERNAL, "libcurl does not start");
        return NULL;
    }
    started = true;

    const char *base = is_given(p->base) ? p->base : is_given(p->socket) ? "http://localhost" : "";
    if (strncmp(base, "http://", 7) != 0 && strncmp(base, "https://", 8) != 0) {
        pd_fail(e, PD_INVALID, "'%.80s' is no address of a server: http://HOST or https://HOST",
                base);
        return NULL;
    }

    struct http *h = calloc(1, sizeof *h);
    if (h) {
        h->curl = curl_easy_init();
        h->base = strdup(base);
        h->where = strdup(is_given(p->socket) ? p->socket : base);
    }
    if (!h || !h->curl || !h->base || !h->where) {
        pd_fail(e, PD_INTERNAL, "out of memory");
        http_free(h);
        return NULL;
    }

    if (set_up(h, p, e) < 0) {
        http_free(h);
        return NULL;
    }
    return h;
}

void http_free(struct http *h)
{
    if (!h)
        return;
    curl_easy_cleanup(h->curl);
    free(h->base);
    free(h->where);
    free(h);
}

/* What libcurl's code means to a caller: its text says the rest. */
static enum pd_code code_of(CURLcode code)
{
    switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
        return PD_TIMEOUT;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
        return PD_INVALID;
    case CURLE_OUT_OF_MEMORY:
        return PD_INTERNAL;
    default:
        return PD_BAD_GATEWAY;
    }
}

/* "Name: value" lines as libcurl wants them. NULL: out of memory. */
static struct curl_slist *header_list(const struct http_request *r)
{
    struct curl_slist *list = curl_slist_append(NULL, "Expect:"); /* no 100-continue */
    bool typed = false;

    for (const char *const *h = r->headers; list && h && *h; h++) {
        struct curl_slist *more = curl_slist_append(list, *h);
        if (!more)
            curl_slist_free_all(list);
        list = more;
        typed = typed || strncasecmp(*h, "content-type:", 13) == 0;
    }

    if (list && !typed && r->body_len) {
        struct curl_slist *more = curl_slist_append(list, "Content-Type: application/json");
        if (!more)
            curl_slist_free_all(list);
        list = more;
    }
    return list;
}

static int prepare(struct http *h, struct flight *f, const char *url, struct curl_slist *headers,
                   struct pd_err *e)
{
    const struct http_request *r = f->request;
    CURL *c = h->curl;

    int left = deadline_poll_ms(r->deadline);
    if (left == 0)
        return pd_fail(e, PD_TIMEOUT, "no time is left to ask %s", h->where);

    bool ok =
        curl_easy_setopt(c, CURLOPT_URL, url) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, left < 0 ? 0L : (long)left) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_WRITEDATA, f) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_XFERINFODATA, f) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_NOPROGRESS, r->is_wanted ? 0L : 1L) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_NOBODY, 0L) == CURLE_OK &&
        (strcmp(r->method, "GET") == 0
             ? curl_easy_setopt(c, CURLOPT_HTTPGET, 1L) == CURLE_OK
             : curl_easy_setopt(c, CURLOPT_POST, 1L) == CURLE_OK &&
                   curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body_len) ==
                       CURLE_OK &&
                   curl_easy_setopt(c, CURLOPT_POSTFIELDS, r->body ? r->body : "") == CURLE_OK) &&
        curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, r->method) == CURLE_OK;

    return ok ? 0 : pd_fail(e, PD_INTERNAL, "libcurl refuses a request to %s", h->where);
}

int http_ask(struct http *h, const struct http_request *r, struct http_answer *ret,
             struct pd_err *e)
{
    struct flight f = {.request = r, .answer = ret, .curl = h->curl};
    auto_buf url = BUF_INIT(16384);

    buf_printf(&url, "%s%s", h->base, r->target);
    if (r->target[0] != '/' || !buf_cstr(&url) || url.overflow)
        return pd_fail(e, PD_INVALID, "'%.80s' is no target of a request", r->target);

    struct curl_slist *headers = header_list(r);
    if (!headers)
        return pd_fail(e, PD_INTERNAL, "out of memory");

    h->error[0] = 0;
    int failed = prepare(h, &f, buf_cstr(&url), headers, e);
    CURLcode code = failed ? CURLE_OK : curl_easy_perform(h->curl);
    long status = 0;
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);

    if (failed)
        return -1;
    if (f.failed)
        return pd_fail(e, f.error.code, "%s", f.error.msg);
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return pd_fail(e, PD_CONFLICT, "the answer is not wanted any more");
    if (code != CURLE_OK)
        return pd_fail(e, code_of(code), "%s: %s", h->where,
                       h->error[0] ? h->error : curl_easy_strerror(code));
    if (!buf_cstr(ret->body))
        return pd_fail(e, PD_TOO_LARGE, "an answer of more than %zu bytes", ret->body->max);

    ret->status = (int)status;
    return 0;
}

void http_escape(struct buf *out, const char *text)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~";

    for (; *text; text++) {
        if (strchr(plain, *text))
            buf_putc(out, *text);
        else
            buf_printf(out, "%%%02X", (unsigned)(unsigned char)*text);
    }
}
