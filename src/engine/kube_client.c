/* Calls over one connection that is kept; an exec has one of its own. A token from a file is read
 * again each minute, because a cluster replaces it long before it ends. */
#include "engine/kube_client.h"

#include "base/banned.h"
#include "base/err.h"
#include "engine/broker.h"
#include "engine/kube_api.h"
#include "engine/kube_stream.h"
#include "engine/ws_stream.h"
#include "engine/yaml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POD_FILES   "/var/run/secrets/kubernetes.io/serviceaccount"
#define TOKEN_FRESH (60 * NS_PER_S)
/* Without the channel that ends an input alone, which a link does not need, a server passes the
 * stream on to the node as it is; with it, it speaks SPDY to the node. Newer ones may know only
 * the second. */
#define PROTOCOLS "v4.channel.k8s.io"
#define PROTOCOL5 "v5.channel.k8s.io"

static const char *or_none(const char *text)
{
    return text ? text : "";
}

/* ---- places ---- */

static int read_config(struct kube *k, const char *path, const char *context, struct pd_err *e)
{
    auto_buf text = BUF_INIT(YAML_MAX);
    char dir[KUBE_PATH_MAX];
    const char *slash = strrchr(path, '/');

    if (path[0] != '/' || strlen(path) >= sizeof dir)
        return pd_fail(e, PD_INVALID, "kubernetes_config '%.100s': use an absolute path", path);
    if (remote_read_file("kubernetes_config", path, &text, e) < 0)
        return -1;
    snprintf(dir, sizeof dir, "%.*s", (int)(slash - path), path);
    int r = kube_config_read((const char *)text.data, text.len, context, dir, &k->at, e);
    if (text.data)
        explicit_bzero(text.data, text.len);
    return r < 0 ? pd_wrap(e, "kubernetes_config %.80s", path) : 0;
}

static int find_cluster(struct kube *k, const struct broker_config *c, struct pd_err *e)
{
    const char *path = broker_setting(c, "config"), *context = broker_setting(c, "context");
    const char *variable = or_none(getenv("KUBECONFIG")), *home = or_none(getenv("HOME"));
    const char *host = or_none(getenv("KUBERNETES_SERVICE_HOST"));
    char usual[KUBE_PATH_MAX];

    if (path[0] || variable[0])
        return read_config(k, path[0] ? path : variable, context, e);
    if (host[0])
        return kube_config_in_cluster(host, or_none(getenv("KUBERNETES_SERVICE_PORT")), POD_FILES,
                                      &k->at, e);
    if (!home[0] || (size_t)snprintf(usual, sizeof usual, "%s/.kube/config", home) >= sizeof usual)
        return pd_fail(e, PD_INVALID, "kubernetes_config is not set, and there is no KUBECONFIG");
    return read_config(k, usual, context, e);
}

/* Of the setting, else of the context, else of the pod that this runs in. */
static int find_namespace(struct kube *k, const struct broker_config *c, struct pd_err *e)
{
    const char *given = broker_setting(c, "namespace");
    auto_buf own = BUF_INIT(64);

    if (!given[0])
        given = k->at.namespace;
    if (!given[0] && k->at.token_file[0] &&
        remote_read_file("the pod's namespace", POD_FILES "/namespace", &own, NULL) == 0)
        given = or_none(buf_cstr(&own));
    if (!given[0])
        given = "default";
    if (kube_check_namespace(given, e) < 0)
        return pd_wrap(e, "kubernetes_namespace");
    snprintf(k->namespace, sizeof k->namespace, "%s", given);
    return 0;
}

static struct http *dial(const struct kube *k, struct pd_err *e)
{
    const struct kube_config *at = &k->at;
    struct http_place place = {.base = at->server,
                               .ca_file = at->ca_file,
                               .cert_file = at->cert_file,
                               .key_file = at->key_file,
                               .ca_pem = &at->ca,
                               .cert_pem = &at->cert,
                               .key_pem = &at->key,
                               .proxy = at->proxy};
    return http_new(&place, e);
}

int kube_open(struct kube *k, const struct broker_config *c, struct pd_err *e)
{
    *k = (struct kube){.at = KUBE_CONFIG_INIT, .header = BUF_INIT(KUBE_TOKEN_MAX + 64)};

    if (find_cluster(k, c, e) == 0 && find_namespace(k, c, e) == 0 && (k->http = dial(k, e)))
        return 0;
    kube_close(k);
    return -1;
}

void kube_close(struct kube *k)
{
    http_free(k->http);
    if (k->header.data)
        explicit_bzero(k->header.data, k->header.len);
    buf_done(&k->header);
    kube_config_done(&k->at);
    k->http = NULL;
}

/* ---- who we are ---- */

static int need_token(struct kube *k, struct pd_err *e)
{
    auto_buf text = BUF_INIT(KUBE_TOKEN_MAX);
    const struct buf *token = &k->at.token;

    if (k->header.len && (!k->at.token_file[0] || !deadline_passed(k->token_until)))
        return 0;
    if (k->at.token_file[0]) {
        if (remote_read_file("the token", k->at.token_file, &text, e) < 0 ||
            kube_check_token(text.data, text.len, e) < 0)
            return -1;
        token = &text;
    }
    if (!token->len)
        return 0;

    buf_clear(&k->header);
    buf_puts(&k->header, "Authorization: Bearer ");
    buf_put(&k->header, token->data, token->len);
    k->token_until = deadline_in(TOKEN_FRESH);
    if (text.data)
        explicit_bzero(text.data, text.len);
    return buf_cstr(&k->header) ? 0 : pd_fail(e, PD_CAPACITY, "no memory for a token");
}

/* ---- calls ---- */

void kube_call_done(struct kube_call *c)
{
    buf_done(&c->target);
    buf_done(&c->in);
    buf_done(&c->out);
}

int kube_ask(struct kube *k, struct kube_call *c, struct pd_err *e)
{
    auto_buf target = BUF_INIT(8400);
    const char *headers[4] = {"Accept: application/json"};
    struct http_request r = {.method = c->method,
                             .headers = headers,
                             .body = c->in.data,
                             .body_len = c->in.len,
                             .is_wanted = k->is_wanted,
                             .context = k->context,
                             .deadline = c->deadline};
    struct http_answer answer = {.body = &c->out};

    if (need_token(k, e) < 0)
        return -1;
    if (k->header.len)
        headers[1] = buf_cstr(&k->header);
    buf_printf(&target, "%s%s", k->at.path, buf_cstr(&c->target));
    r.target = buf_cstr(&target);
    if (!r.target || target.overflow || c->target.overflow || c->in.overflow)
        return pd_fail(e, PD_INVALID, "a request to the cluster is too long");
    buf_clear(&c->out);
    if (http_ask(k->http, &r, &answer, e) < 0)
        return e->code == PD_CONFLICT ? -1 : pd_wrap(e, "the cluster");

    c->status = answer.status;
    if (c->status == 401)
        k->token_until = 0; /* the file may have another one by now */
    return 0;
}

int kube_refused(const struct kube_call *c, const char *what, struct pd_err *e)
{
    return kube_fail(c->status, c->out.data, c->out.len, what, e);
}

static struct ws_stream *open_ws(struct kube *k, const char *target, const char *protocols,
                                 deadline t, struct ws_refusal *refusal, struct pd_err *e)
{
    const char *headers[2] = {k->header.len ? buf_cstr(&k->header) : NULL};
    struct ws_request r = {.target = target, .headers = headers, .protocols = protocols};
    struct http *own = dial(k, e);

    return own ? ws_stream_open(own, &r, t, refusal, e) : NULL;
}

struct byte_stream *kube_exec(struct kube *k, const char *pod, const char *container,
                              const char *const *words, deadline t, int *ret_status,
                              struct pd_err *e)
{
    auto_buf target = BUF_INIT(4096);
    struct ws_refusal refusal = {.status = 0};

    *ret_status = 0;
    if (need_token(k, e) < 0)
        return NULL;
    buf_printf(&target,
               "%s/api/v1/namespaces/%s/pods/%s/exec?container=%s&stdin=true&stdout=true&"
               "stderr=true",
               k->at.path, k->namespace, pod, container);
    for (; *words; words++) {
        buf_puts(&target, "&command=");
        http_escape(&target, *words);
    }
    if (!buf_cstr(&target) || target.overflow) {
        pd_fail(e, PD_INVALID, "a request to the cluster is too long");
        return NULL;
    }

    struct ws_stream *s = open_ws(k, buf_cstr(&target), PROTOCOLS, t, &refusal, e);
    if (!s && (refusal.status == 400 || refusal.status == 403) && strstr(refusal.text, "protocol"))
        s = open_ws(k, buf_cstr(&target), PROTOCOL5, t, &refusal, e);
    if (s)
        return kube_stream_new(s, e);
    *ret_status = refusal.status;
    if (refusal.status == 401)
        k->token_until = 0;
    if (refusal.status)
        pd_fail(e, PD_BAD_GATEWAY, "the cluster refuses an exec: %d %.160s", refusal.status,
                refusal.text);
    return NULL;
}
