/* Requests by libcurl's easy interface: a handle per server is set up once and reused, so that its
 * connection is kept. An answer's body is collected up to a maximum; that of a good answer can be
 * handed on as it comes. */
#include "engine/http.h"

#include "base/banned.h"
#include "base/err.h"
#include "engine/http_state.h"
#include "gate/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CONNECT_PATIENCE_MS 10000L
#define RATE_PATIENCE_S     60L

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

/* The value of a line of the head, or nothing. */
static void take_line(const char *line, size_t len, const char *name, char *out, size_t size)
{
    size_t n = strlen(name);
    if (len <= n || strncasecmp(line, name, n) != 0 || out[0])
        return;

    for (line += n, len -= n; len && (*line == ' ' || *line == '\t'); len--)
        line++;
    while (len && strchr(" \t\r\n", line[len - 1]))
        len--;
    if (len < size && !memchr(line, 0, len)) {
        memcpy(out, line, len);
        out[len] = 0;
    }
}

/* "Retry-After: S", or "Retry-After-KIND: S" as some servers have it for each of their limits. */
static void take_wait(const char *line, size_t len, struct http_heads *heads)
{
    char name[64];
    const char *colon = memchr(line, ':', len);
    size_t n = colon ? (size_t)(colon - line) + 1 : sizeof name;

    if (n >= sizeof name || strncasecmp(line, "retry-after", 11) != 0 ||
        (line[11] != ':' && line[11] != '-'))
        return;
    memcpy(name, line, n);
    name[n] = 0;
    take_line(line, len, name, heads->wait, sizeof heads->wait);
}

static size_t on_head(char *line, size_t size, size_t count, void *context)
{
    struct flight *f = context;
    struct http_heads *heads = f->request->heads;
    long status = 0;

    if (heads && curl_easy_getinfo(f->curl, CURLINFO_RESPONSE_CODE, &status) == CURLE_OK) {
        heads->status = (int)status;
        take_line(line, size * count, "location:", heads->location, sizeof heads->location);
        take_line(line, size * count, "www-authenticate:", heads->challenge,
                  sizeof heads->challenge);
        take_line(line, size * count, "x-next-token:", heads->next, sizeof heads->next);
        take_wait(line, size * count, heads);
        take_line(line, size * count, "date:", heads->date, sizeof heads->date);
    }
    return size * count;
}

/* Asked with the address itself, behind every name and redirection. */
static curl_socket_t open_public(void *context, curlsocktype purpose, struct curl_sockaddr *a)
{
    struct http *h = context;
    struct ip ip;
    (void)purpose;

    if (a->family == AF_INET)
        ip = ip_of_v4((const uint8_t *)&((const struct sockaddr_in *)&a->addr)->sin_addr);
    else if (a->family == AF_INET6)
        memcpy(ip.bytes, &((const struct sockaddr_in6 *)&a->addr)->sin6_addr, sizeof ip.bytes);
    else
        return CURL_SOCKET_BAD;

    const char *why = ip_forbidden(ip);
    if (why) {
        snprintf(h->forbidden, sizeof h->forbidden, "%s", why);
        return CURL_SOCKET_BAD;
    }
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

static bool set_pem(CURL *c, CURLoption option, const struct buf *pem)
{
    if (!pem || !pem->len)
        return true;
    struct curl_blob blob = {.data = pem->data, .len = pem->len, .flags = CURL_BLOB_COPY};
    return curl_easy_setopt(c, option, &blob) == CURLE_OK;
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
              curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_head) == CURLE_OK;

    /* A proxy would dial for us: then nobody here knows what. */
    if (p->public_only)
        ok = ok && curl_easy_setopt(c, CURLOPT_PROXY, "") == CURLE_OK &&
             curl_easy_setopt(c, CURLOPT_OPENSOCKETFUNCTION, open_public) == CURLE_OK &&
             curl_easy_setopt(c, CURLOPT_OPENSOCKETDATA, h) == CURLE_OK;

    if (p->direct)
        ok = ok && curl_easy_setopt(c, CURLOPT_PROXY, "") == CURLE_OK;

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
    ok = ok && set_pem(c, CURLOPT_CAINFO_BLOB, p->ca_pem) &&
         set_pem(c, CURLOPT_SSLCERT_BLOB, p->cert_pem) &&
         set_pem(c, CURLOPT_SSLKEY_BLOB, p->key_pem);

    return ok ? 0 : pd_fail(e, PD_INTERNAL, "libcurl refuses an option for %s", h->where);
}

bool http_begin(void)
{
    static bool started;
    started = started || curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
    return started;
}

struct http *http_new(const struct http_place *p, struct pd_err *e)
{
    if (!http_begin()) {
        pd_fail(e, PD_INTERNAL, "libcurl does not start");
        return NULL;
    }

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
        curl_easy_setopt(c, CURLOPT_HEADERDATA, f) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, (long)r->rate_least) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, r->rate_least ? RATE_PATIENCE_S : 0L) ==
            CURLE_OK &&
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

    h->error[0] = h->forbidden[0] = 0;
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
    if (code != CURLE_OK && h->forbidden[0])
        return pd_fail(e, PD_DENIED, "%.100s has a %s address, which is not asked", h->where,
                       h->forbidden);
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
