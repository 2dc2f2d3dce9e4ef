/* The way to the server: which one, with which key, and what its answers mean. */
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "client/client.h"
#include "net/client.h"
#include "net/url.h"
#include "net/ws.h"

#include <errno.h>
#include <poll.h>

#define DEFAULT_URL "http://127.0.0.1:8090"
#define CONNECT_NS  (10 * NS_PER_S)
#define ANSWER_NS   (120 * NS_PER_S) /* of calls that do not wait for a command */
#define STALL_NS    (60 * NS_PER_S)  /* events have a heartbeat every 15 s */
#define ANSWER_MAX  (128u << 20)

struct remote {
    struct url_server server;
    struct tls_context *tls;
    struct client *client; /* NULL: not connected */
    char url[400], key[256];
    const struct http_head *head; /* of the last answer */
    int is_patient;
    char text[512];
};

struct remote *remote_new(struct pd_err *e)
{
    const char *url = getenv("PADDOCK_URL"), *key = getenv("PADDOCK_API_KEY");

    struct remote *r = calloc(1, sizeof *r);
    if (!r) {
        pd_fail(e, PD_CAPACITY, "no memory");
        return NULL;
    }

    if (!url || !*url)
        url = DEFAULT_URL;
    snprintf(r->url, sizeof r->url, "%s", url);

    if (url_server_parse("PADDOCK_URL", url, &r->server, e) < 0) {
        remote_free(r);
        return NULL;
    }

    if (key && (size_t)snprintf(r->key, sizeof r->key, "Bearer %s", key) >= sizeof r->key) {
        pd_fail(e, PD_INVALID, "PADDOCK_API_KEY is too long");
        remote_free(r);
        return NULL;
    }
    return r;
}

void remote_free(struct remote *r)
{
    if (!r)
        return;
    client_free(r->client);
    tls_context_free(r->tls);
    explicit_bzero(r->key, sizeof r->key);
    free(r);
}

static void disconnect(struct remote *r)
{
    client_free(r->client);
    r->client = NULL;
    r->head = NULL;
}

static int connect_server(struct remote *r, struct pd_err *e)
{
    /* A server closes connections that were idle for long, or restarts. */
    if (r->client && (!client_is_reusable(r->client) || conn_is_gone(client_conn(r->client))))
        disconnect(r);
    if (r->client)
        return 0;

    if (r->server.tls && !r->tls && !(r->tls = tls_client_new(NULL, e)))
        return -1;

    r->client = client_connect(&r->server, r->tls, deadline_in(CONNECT_NS), e);
    if (r->client)
        return 0;

    if (e->code != PD_DENIED && e->code != PD_INVALID)
        e->code = PD_LOST; /* it may come back */
    return pd_wrap(e, "no server at %s (PADDOCK_URL says which)", r->url);
}

static int put_header(struct remote *r, const char *name, const char *value, struct pd_err *e)
{
    if (!value || !*value)
        return 0;
    return client_header(r->client, (struct slice){name, strlen(name)},
                         (struct slice){value, strlen(value)}, e);
}

static int put_headers(struct remote *r, const struct remote_request *q, struct pd_err *e)
{
    const char *type = q->type ? q->type : q->json ? "application/json" : NULL;

    if (put_header(r, "Authorization", r->key, e) < 0) {
        /* The message would quote the key. */
        return pd_fail(e, PD_INVALID, "PADDOCK_API_KEY has bytes that a key cannot have");
    }

    if (put_header(r, "Accept", q->accept ? q->accept : "application/json", e) < 0 ||
        put_header(r, "Content-Type", type, e) < 0 ||
        put_header(r, "Idempotency-Key", q->key, e) < 0 ||
        put_header(r, "Last-Event-ID", q->last_event, e) < 0)
        return -1;
    return 0;
}

static int begin(struct remote *r, const struct remote_request *q, struct pd_err *e)
{
    char *body = q->json ? json_dumps(q->json, JSON_COMPACT) : NULL;
    size_t len = body ? strlen(body) : 0;
    struct slice target = {q->target, strlen(q->target)};
    uint64_t length = q->type ? CLIENT_CHUNKED : body ? len : q->json ? 0 : CLIENT_NO_BODY;

    if (!body && !q->type && (q->method == HTTP_POST || q->method == HTTP_PUT))
        length = 0;

    int bad = client_begin(r->client, q->method, target, length, e);
    if (!bad && !q->type &&
        ((len && client_write(r->client, body, len, e) < 0) || client_end(r->client, e) < 0))
        bad = -1;

    free(body);
    return bad;
}

int remote_begin(struct remote *r, const struct remote_request *q, struct pd_err *e)
{
    r->head = NULL;
    r->is_patient = q->is_patient;

    if (connect_server(r, e) < 0)
        return -1;
    if (put_headers(r, q, e) == 0 && begin(r, q, e) == 0)
        return 0;
    disconnect(r);
    return -1;
}

int remote_write(struct remote *r, const void *data, size_t len, struct pd_err *e)
{
    if (client_write(r->client, data, len, e) == 0)
        return 0;

    /* A server that refuses the body says why before it closes. */
    struct pd_err why = *e;
    if (remote_answer(r, e) >= 0)
        *e = why;
    return -1;
}

int remote_end(struct remote *r, struct pd_err *e)
{
    return client_end(r->client, e);
}

/* Reads an error's body and tells what it says. */
static int refuse(struct remote *r, int status, struct pd_err *e)
{
    auto_buf b = BUF_INIT(1u << 20);
    json_auto_t *j = NULL;

    if (client_read_all(r->client, &b, b.max, deadline_in(STALL_NS), NULL) == 0 && b.len)
        j = json_loadb((const char *)b.data, b.len, JSON_ALLOW_NUL, NULL);

    remote_error(j, status, e);
    disconnect(r);
    return -1;
}

int remote_answer(struct remote *r, struct pd_err *e)
{
    deadline d = r->is_patient ? DEADLINE_NONE : deadline_in(ANSWER_NS);
    if (client_read_head(r->client, &r->head, d, e) < 0) {
        disconnect(r);
        return pd_wrap(e, "%s", r->url);
    }
    return r->head->status >= 400 ? refuse(r, r->head->status, e) : r->head->status;
}

const char *remote_header(struct remote *r, const char *name)
{
    const struct slice *found = r->head ? http_find(r->head, name) : NULL;
    snprintf(r->text, sizeof r->text, "%.*s", found ? (int)found->len : 0, found ? found->at : "");
    return r->text;
}

ssize_t remote_read(struct remote *r, void *out, size_t size, struct pd_err *e)
{
    deadline d = r->is_patient ? DEADLINE_NONE : deadline_in(STALL_NS);

    ssize_t n = client_read(r->client, out, size, d, e);
    if (n < 0)
        disconnect(r);
    return n;
}

ssize_t remote_read_or(struct remote *r, void *out, size_t size, int other, struct pd_err *e)
{
    deadline stall = r->is_patient ? DEADLINE_NONE : deadline_in(STALL_NS);

    for (;;) {
        ssize_t n = client_read(r->client, out, size, deadline_in(0), e);
        if (n >= 0)
            return n;
        if (e->code != PD_TIMEOUT || deadline_passed(stall)) {
            disconnect(r);
            return e->code == PD_TIMEOUT ? pd_fail(e, PD_LOST, "the server has fallen silent") : -1;
        }

        struct pollfd p[] = {{.fd = conn_fd(client_conn(r->client)), .events = POLLIN},
                             {.fd = other, .events = POLLIN}};
        if (poll(p, 2, deadline_poll_ms(stall)) < 0 && errno != EINTR)
            return pd_fail_sys(e, "poll");
        if (p[1].revents)
            return -2;
    }
}

int remote_json(struct remote *r, json_t **ret, struct pd_err *e)
{
    auto_buf b = BUF_INIT(ANSWER_MAX);

    deadline d = r->is_patient ? DEADLINE_NONE : deadline_in(ANSWER_NS);
    if (client_read_all(r->client, &b, b.max, d, e) < 0) {
        disconnect(r);
        return -1;
    }

    json_t *j = NULL;
    if (b.len && !(j = json_loadb((const char *)b.data, b.len, JSON_ALLOW_NUL, NULL)))
        return pd_fail(e, PD_PROTOCOL, "%s answered something that is not JSON", r->url);
    if (ret && !j)
        return pd_fail(e, PD_PROTOCOL, "%s answered nothing", r->url);

    if (ret)
        *ret = j;
    else
        json_decref(j);
    return 0;
}

int remote_call(struct remote *r, const struct remote_request *q, json_t **ret, struct pd_err *e)
{
    if (remote_begin(r, q, e) < 0)
        return -1;

    int status = remote_answer(r, e);
    if (status < 0 || remote_json(r, ret, e) < 0)
        return -1;
    return status;
}

int remote_upgrade(struct remote *r, const char *target, struct pd_err *e)
{
    uint8_t random[16];
    char key[WS_KEY_SIZE], expected[WS_ACCEPT_SIZE];
    struct remote_request q = {.method = HTTP_GET, .target = target};

    random_bytes(random, sizeof random);
    ws_key(random, key);
    if (ws_accept((struct slice){key, strlen(key)}, expected, e) < 0 || connect_server(r, e) < 0 ||
        put_headers(r, &q, e) < 0 || put_header(r, "Connection", "Upgrade", e) < 0 ||
        put_header(r, "Upgrade", "websocket", e) < 0 ||
        put_header(r, "Sec-WebSocket-Version", "13", e) < 0 ||
        put_header(r, "Sec-WebSocket-Key", key, e) < 0 || begin(r, &q, e) < 0)
        return -1;

    int status = remote_answer(r, e);
    if (status < 0)
        return -1;
    if (status != 101 || strcmp(remote_header(r, "Sec-WebSocket-Accept"), expected) != 0)
        return pd_fail(e, PD_PROTOCOL, "%s does not speak WebSocket", r->url);
    return 0;
}

int remote_fd(const struct remote *r)
{
    return conn_fd(client_conn(r->client));
}

int remote_pending(struct remote *r)
{
    return client_raw_pending(r->client);
}

ssize_t remote_raw_read(struct remote *r, void *out, size_t size, struct pd_err *e)
{
    return client_raw_read(r->client, out, size, DEADLINE_NONE, e);
}

int remote_raw_write(struct remote *r, const void *data, size_t len, struct pd_err *e)
{
    return conn_write(client_conn(r->client), data, len, STALL_NS, e);
}
