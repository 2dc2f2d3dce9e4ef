/* A kubeconfig names contexts, clusters and users in three lists; a context names one of each. Its
 * strings become URLs, paths and headers, so each is checked; error texts have names of things and
 * never their values. */
#include "engine/kube_config.h"

#include "base/banned.h"
#include "base/base64.h"
#include "base/err.h"
#include "engine/yaml.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define SERVER_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]"
#define PATH_CHARS   "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_~/"

static void wipe(struct buf *b)
{
    if (b->data)
        explicit_bzero(b->data, b->len);
    buf_done(b);
}

void kube_config_done(struct kube_config *c)
{
    wipe(&c->ca);
    wipe(&c->cert);
    wipe(&c->key);
    wipe(&c->token);
}

/* ---- parts ---- */

/* "" when it is not there or no text. */
static const char *text_at(const json_t *map, const char *key)
{
    const char *text = json_string_value(json_object_get(map, key));
    return text ? text : "";
}

/* The `kind` of that name in the list: its object called `key`. */
static json_t *named(const json_t *root, const char *list, const char *key, const char *name,
                     struct pd_err *e)
{
    size_t i;
    json_t *item;

    json_array_foreach(json_object_get(root, list), i, item)
    {
        json_t *found = json_object_get(item, key);
        if (!strcmp(text_at(item, "name"), name) && json_is_object(found))
            return found;
    }
    pd_fail(e, PD_INVALID, "it has no %s '%.80s'", key, name);
    return NULL;
}

static int copy_text(const char *text, const char *what, char *out, size_t size, struct pd_err *e)
{
    if (strlen(text) >= size)
        return pd_fail(e, PD_INVALID, "its %s is longer than %zu characters", what, size - 1);
    snprintf(out, size, "%s", text);
    return 0;
}

static int copy_file(const char *text, const char *dir, const char *what, char out[KUBE_PATH_MAX],
                     struct pd_err *e)
{
    if (!text[0])
        return 0;
    int n = text[0] == '/' ? snprintf(out, KUBE_PATH_MAX, "%s", text)
                           : snprintf(out, KUBE_PATH_MAX, "%s/%s", dir, text);
    return n < (int)KUBE_PATH_MAX ? 0
                                  : pd_fail(e, PD_INVALID, "the path of its %s is too long", what);
}

static int copy_data(const char *text, const char *what, struct buf *out, struct pd_err *e)
{
    if (text[0] && base64_decode(out, text, strlen(text), NULL) != BASE64_GOOD)
        return pd_fail(e, PD_INVALID, "its %s is not base64, or too long", what);
    return 0;
}

/* "https://HOST[:PORT][/PATH]" in two parts. Plain http only on loopback: a token would be readable
 * on its way. */
static int read_server(const char *url, struct kube_config *ret, struct pd_err *e)
{
    bool plain = !strncmp(url, "http://", 7);
    const char *host = url + (plain ? 7 : 8);

    if (!plain && strncmp(url, "https://", 8) != 0)
        return pd_fail(e, PD_INVALID, "its server must be https://HOST[:PORT]");
    size_t len = strspn(host, SERVER_CHARS);
    const char *path = host + len;
    size_t path_len = strlen(path);
    while (path_len && path[path_len - 1] == '/')
        path_len--;

    bool near = !strncmp(host, "127.0.0.1:", 10) || !strncmp(host, "localhost:", 10) ||
                !strncmp(host, "[::1]:", 6);
    if (plain && !near)
        return pd_fail(e, PD_INVALID, "its server must be https://; http:// only on loopback");
    if (!len || (path[0] && path[0] != '/') || strspn(path, PATH_CHARS) != strlen(path) ||
        strstr(path, "//") || strstr(path, "/..") || path_len >= sizeof ret->path ||
        (size_t)(path - url) >= sizeof ret->server)
        return pd_fail(e, PD_INVALID, "its server is no https://HOST[:PORT][/PATH]");

    snprintf(ret->server, sizeof ret->server, "%.*s", (int)(path - url), url);
    snprintf(ret->path, sizeof ret->path, "%.*s", (int)path_len, path);
    return 0;
}

static int read_cluster(const json_t *cluster, const char *dir, struct kube_config *ret,
                        struct pd_err *e)
{
    if (json_is_true(json_object_get(cluster, "insecure-skip-tls-verify")))
        return pd_fail(e, PD_UNSUPPORTED,
                       "insecure-skip-tls-verify is not taken: put the cluster's "
                       "certificate-authority into the kubeconfig");
    if (text_at(cluster, "tls-server-name")[0])
        return pd_fail(
            e, PD_UNSUPPORTED,
            "tls-server-name is not taken: use a server whose name is in its certificate");

    return read_server(text_at(cluster, "server"), ret, e) < 0 ||
                   copy_file(text_at(cluster, "certificate-authority"), dir,
                             "certificate-authority", ret->ca_file, e) < 0 ||
                   copy_data(text_at(cluster, "certificate-authority-data"),
                             "certificate-authority-data", &ret->ca, e) < 0 ||
                   copy_text(text_at(cluster, "proxy-url"), "proxy-url", ret->proxy,
                             sizeof ret->proxy, e) < 0
               ? -1
               : 0;
}

/* What would be somebody else's program, or a way in that the API has given up. */
static int refuse_user(const json_t *user, const char *name, struct pd_err *e)
{
    static const char *const given_up[] = {"username", "password",  "as",
                                           "as-uid",   "as-groups", "as-user-extra"};

    if (json_object_get(user, "exec") || json_object_get(user, "auth-provider"))
        return pd_fail(e, PD_UNSUPPORTED,
                       "user '%.60s' gets its credentials from a program (exec, auth-provider), "
                       "which a server does not run: give it a token of a service account, or a "
                       "client certificate",
                       name);
    for (size_t i = 0; i < sizeof given_up / sizeof *given_up; i++)
        if (json_object_get(user, given_up[i]))
            return pd_fail(e, PD_UNSUPPORTED,
                           "'%s' of user '%.60s' is not taken: use a token or a client certificate",
                           given_up[i], name);
    return 0;
}

static int read_user(const json_t *user, const char *name, const char *dir, struct kube_config *ret,
                     struct pd_err *e)
{
    const char *token = text_at(user, "token");

    if (refuse_user(user, name, e) < 0 ||
        copy_file(text_at(user, "client-certificate"), dir, "client-certificate", ret->cert_file,
                  e) < 0 ||
        copy_file(text_at(user, "client-key"), dir, "client-key", ret->key_file, e) < 0 ||
        copy_data(text_at(user, "client-certificate-data"), "client-certificate-data", &ret->cert,
                  e) < 0 ||
        copy_data(text_at(user, "client-key-data"), "client-key-data", &ret->key, e) < 0 ||
        copy_file(text_at(user, "tokenFile"), dir, "tokenFile", ret->token_file, e) < 0)
        return -1;

    if (token[0] && !ret->token_file[0] &&
        (kube_check_token(token, strlen(token), e) < 0 || buf_puts(&ret->token, token) < 0))
        return -1;
    bool cert = ret->cert.len || ret->cert_file[0], key = ret->key.len || ret->key_file[0];
    if (cert != key)
        return pd_fail(e, PD_INVALID,
                       "user '%.60s' has a client certificate without its key, or "
                       "a key alone",
                       name);
    if (!cert && !ret->token.len && !ret->token_file[0])
        return pd_fail(e, PD_INVALID, "user '%.60s' has neither a token nor a client certificate",
                       name);
    return 0;
}

/* ---- whole ---- */

int kube_check_token(const void *text, size_t len, struct pd_err *e)
{
    const unsigned char *t = text;

    for (size_t i = 0; i < len; i++)
        if (t[i] <= ' ' || t[i] >= 127)
            return pd_fail(e, PD_INVALID, "its token has characters that no token has");
    if (!len || len > KUBE_TOKEN_MAX)
        return pd_fail(e, PD_INVALID, "its token is empty, or longer than %u characters",
                       KUBE_TOKEN_MAX);
    return 0;
}

int kube_check_namespace(const char *name, struct pd_err *e)
{
    size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");

    if (!len || name[len] || len > 63 || name[0] == '-' || name[len - 1] == '-')
        return pd_fail(e, PD_INVALID, "'%.80s' is no name of a namespace: 1 to 63 of a-z 0-9 -",
                       name);
    return 0;
}

static int read_context(const json_t *root, const char *context, const char *dir,
                        struct kube_config *ret, struct pd_err *e)
{
    const char *name = context[0] ? context : text_at(root, "current-context");

    if (!json_is_object(root) || !name[0])
        return pd_fail(e, PD_INVALID,
                       "it has no current-context: name one with "
                       "kubernetes_context");
    const json_t *at = named(root, "contexts", "context", name, e);
    const json_t *cluster =
        at ? named(root, "clusters", "cluster", text_at(at, "cluster"), e) : NULL;
    const json_t *user = cluster ? named(root, "users", "user", text_at(at, "user"), e) : NULL;
    if (!user)
        return -1;

    const char *namespace = text_at(at, "namespace");
    if (namespace[0] && kube_check_namespace(namespace, e) < 0)
        return -1;
    snprintf(ret->namespace, sizeof ret->namespace, "%s", namespace);
    return read_cluster(cluster, dir, ret, e) < 0 ||
                   read_user(user, text_at(at, "user"), dir, ret, e) < 0
               ? -1
               : 0;
}

int kube_config_read(const char *text, size_t len, const char *context, const char *dir,
                     struct kube_config *ret, struct pd_err *e)
{
    struct kube_config c = KUBE_CONFIG_INIT;
    json_t *root = yaml_read(text, len, e);
    int r = root ? read_context(root, context, dir, &c, e) : -1;

    json_decref(root);
    if (r < 0) {
        kube_config_done(&c);
        return -1;
    }
    kube_config_done(ret);
    *ret = c;
    return 0;
}

int kube_config_in_cluster(const char *host, const char *port, const char *dir,
                           struct kube_config *ret, struct pd_err *e)
{
    struct kube_config c = KUBE_CONFIG_INIT;
    char url[300];

    snprintf(url, sizeof url, strchr(host, ':') ? "https://[%.200s]:%.8s" : "https://%.200s:%.8s",
             host, port);
    if (strspn(port, "0123456789") != strlen(port) || !port[0] || read_server(url, &c, e) < 0)
        return pd_fail(e, PD_INVALID,
                       "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are no address");
    snprintf(c.ca_file, sizeof c.ca_file, "%s/ca.crt", dir);
    snprintf(c.token_file, sizeof c.token_file, "%s/token", dir);
    kube_config_done(ret);
    *ret = c;
    return 0;
}
