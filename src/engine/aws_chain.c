/* How this works: the first place that has credentials is the one. A place that is not there is
 * passed by; one that is there and wrong (a file that cannot be read, an endpoint that refuses) is
 * an error at once, because the next place would mean somebody else's account. */
#include "engine/aws_chain.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "engine/aws_keys.h"
#include "engine/http.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX       (256u << 10)
#define ANSWER_MAX     (32u << 10)
#define RENEW_S        600 /* before their end */
#define RETRY_S        30
#define METADATA_WAIT  NS_PER_S
#define CONTAINER_WAIT (5 * NS_PER_S)
#define CONTAINER_HOST "http://169.254.170.2"
#define METADATA_HOST  "http://169.254.169.254"

/* A step of the chain: 1 when it has credentials, 0 when it is not there, -1 when it is wrong. */
typedef int step(struct aws_keys *ret, deadline t, struct pd_err *e);

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

static const char *profile_name(void)
{
    const char *name = env("AWS_PROFILE");
    return name[0] ? name : "default";
}

static int from_environment(struct aws_keys *ret, deadline t, struct pd_err *e)
{
    const char *id = env("AWS_ACCESS_KEY_ID"), *secret = env("AWS_SECRET_ACCESS_KEY");

    (void)t;
    if (env("AWS_PROFILE")[0] || (!id[0] && !secret[0]))
        return 0;
    return aws_keys_set(ret, id, secret, env("AWS_SESSION_TOKEN"), e) < 0 ? -1 : 1;
}

/* Reads a file of profiles. 0 when there is none. */
static int read_profiles(const char *variable, const char *usual, struct buf *out, struct pd_err *e)
{
    char path[1024];
    const char *named = env(variable), *home = env("HOME");

    if (!named[0] && !home[0])
        return 0;
    int n = named[0] ? snprintf(path, sizeof path, "%s", named)
                     : snprintf(path, sizeof path, "%s/%s", home, usual);
    if (n >= (int)sizeof path)
        return pd_fail(e, PD_INVALID, "%s is too long", variable);

    char *at = (char *)buf_reserve(out, FILE_MAX);
    ssize_t len = at ? fd_read_file(AT_FDCWD, path, at, FILE_MAX) : -ENOMEM;
    if (len == -ENOENT || (len == -EACCES && !named[0]))
        return 0;
    if (len < 0) {
        errno = (int)-len;
        return pd_fail_sys(e, "read %.160s", path);
    }
    out->len = (size_t)len;
    return 1;
}

static int from_file(const char *variable, const char *usual, bool config, struct aws_keys *ret,
                     struct pd_err *e)
{
    auto_buf text = BUF_INIT(FILE_MAX + 1);
    struct pd_err why;

    int r = read_profiles(variable, usual, &text, e);
    if (r <= 0)
        return r;
    r = aws_keys_read_profile((char *)text.data, text.len, profile_name(), config, ret, &why);
    explicit_bzero(text.data, text.len);
    if (r < 0 && why.code != PD_NOT_FOUND)
        return pd_fail(e, why.code, "%s", why.msg);
    return r == 0;
}

static int from_credentials(struct aws_keys *ret, deadline t, struct pd_err *e)
{
    (void)t;
    return from_file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", false, ret, e);
}

static int from_config(struct aws_keys *ret, deadline t, struct pd_err *e)
{
    (void)t;
    return from_file("AWS_CONFIG_FILE", ".aws/config", true, ret, e);
}

/* Asks an endpoint; -1 also for a refusal. */
static int ask(const char *base, const char *method, const char *target, const char *header,
               struct buf *out, deadline t, struct pd_err *e)
{
    const char *headers[] = {header, NULL};
    struct http_place place = {.base = base, .direct = true};
    struct http *h = http_new(&place, e);
    if (!h)
        return -1;

    struct http_request r = {
        .method = method, .target = target, .headers = header ? headers : NULL, .deadline = t};
    struct http_answer answer = {.body = out};
    int failed = http_ask(h, &r, &answer, e);
    http_free(h);
    if (failed)
        return -1;
    return answer.status == 200 ? 0
                                : pd_fail(e, PD_DENIED, "%.100s answers %d when asked for AWS keys",
                                          base, answer.status);
}

/* The word that the endpoint of a task wants to hear: a file's, which changes, or the
 * environment's. */
static int authorization(char *ret, size_t size, struct pd_err *e)
{
    const char *file = env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    static char token[AWS_TOKEN_MAX];

    snprintf(token, sizeof token, "%s", env("AWS_CONTAINER_AUTHORIZATION_TOKEN"));
    if (file[0]) {
        ssize_t n = fd_read_file(AT_FDCWD, file, token, sizeof token);
        if (n < 0) {
            errno = (int)-n;
            return pd_fail_sys(e, "read %.160s", file);
        }
    }
    token[strcspn(token, "\r\n")] = 0;
    ret[0] = 0;
    if (token[0])
        snprintf(ret, size, "Authorization: %s", token);
    return 0;
}

static int from_container(struct aws_keys *ret, deadline t, struct pd_err *e)
{
    const char *relative = env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    const char *full = env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    char base[280] = CONTAINER_HOST, target[1024];
    static char header[AWS_TOKEN_MAX + 32];
    auto_buf body = BUF_INIT(ANSWER_MAX);
    deadline own = deadline_in(CONTAINER_WAIT);

    if (!relative[0] && !full[0])
        return 0;
    if (!relative[0] && aws_container_url(full, base, target, e) < 0)
        return -1;
    if (relative[0] && (relative[0] != '/' || strlen(relative) >= sizeof target))
        return pd_fail(e, PD_INVALID, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI is no path");
    if (relative[0])
        snprintf(target, sizeof target, "%s", relative);
    if (authorization(header, sizeof header, e) < 0 ||
        ask(base, "GET", target, header[0] ? header : NULL, &body, own < t ? own : t, e) < 0 ||
        aws_keys_read_json(body.data, body.len, ret, e) < 0)
        return -1;
    return 1;
}

/* One second each, and no second attempt: where there is no such service nobody answers. */
static int from_instance(struct aws_keys *ret, deadline t, struct pd_err *e)
{
    static const char place[] = "/latest/meta-data/iam/security-credentials/";
    const char *base = env("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    char token[256], role[129], target[256], header[320];
    auto_buf body = BUF_INIT(ANSWER_MAX);
    deadline own = deadline_in(METADATA_WAIT);

    if (!strcasecmp(env("AWS_EC2_METADATA_DISABLED"), "true"))
        return 0;
    if (!base[0])
        base = METADATA_HOST;
    if (ask(base, "PUT", "/latest/api/token", "x-aws-ec2-metadata-token-ttl-seconds: 21600", &body,
            own < t ? own : t, NULL) < 0)
        return 0;

    if (!body.len || body.len >= sizeof token || strcspn((char *)body.data, "\r\n") != body.len)
        return pd_fail(e, PD_PROTOCOL, "%.100s gives no token", base);
    snprintf(token, sizeof token, "%s", (char *)body.data);
    snprintf(header, sizeof header, "x-aws-ec2-metadata-token: %s", token);
    buf_clear(&body);
    own = deadline_in(METADATA_WAIT);
    if (ask(base, "GET", place, header, &body, own < t ? own : t, NULL) < 0)
        return 0; /* an instance without a role */
    if (aws_role_read((char *)body.data, body.len, role, e) < 0)
        return e && e->code == PD_NOT_FOUND ? 0 : -1;

    snprintf(target, sizeof target, "%s%s", place, role);
    buf_clear(&body);
    own = deadline_in(METADATA_WAIT);
    if (ask(base, "GET", target, header, &body, own < t ? own : t, e) < 0 ||
        aws_keys_read_json(body.data, body.len, ret, e) < 0)
        return -1;
    return 1;
}

static const struct {
    step *ask;
    const char *name;
} steps[] = {
    {from_environment, "the environment"},   {from_credentials, "the credentials file"},
    {from_config, "the configuration file"}, {from_container, "the task's role"},
    {from_instance, "the instance's role"},
};

static int ask_places(struct aws_keys *ret, const char **ret_from, deadline t, struct pd_err *e)
{
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct pd_err why;
        int r = steps[i].ask(ret, t, &why);
        if (r < 0)
            return pd_fail(e, PD_DENIED, "keys for AWS from %s: %s", steps[i].name, why.msg);
        if (r > 0) {
            *ret_from = steps[i].name;
            return 0;
        }
    }
    return pd_fail(e, PD_DENIED,
                   "there are no keys for AWS: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a "
                   "profile '%.40s' in ~/.aws/credentials, or give this machine a role",
                   profile_name());
}

const struct aws_keys *aws_chain_get(struct aws_chain *c, deadline t, struct pd_err *e)
{
    time_t now = time(NULL);
    bool lasts = c->from && (!c->keys.expires || c->keys.expires - now > RENEW_S);
    bool good = c->from && (!c->keys.expires || c->keys.expires > now);

    if (lasts || (good && now - c->asked < RETRY_S))
        return &c->keys;

    static struct aws_keys fresh;
    const char *from = NULL;
    c->asked = now;
    int r = ask_places(&fresh, &from, t, e);
    if (r == 0) {
        c->keys = fresh;
        c->from = from;
    }
    explicit_bzero(&fresh, sizeof fresh);
    return r == 0 || good ? &c->keys : NULL;
}

void aws_chain_forget(struct aws_chain *c)
{
    explicit_bzero(c, sizeof *c);
}

void aws_chain_region(char *ret, size_t size)
{
    const char *region = env("AWS_REGION")[0] ? env("AWS_REGION") : env("AWS_DEFAULT_REGION");
    auto_buf text = BUF_INIT(FILE_MAX + 1);

    snprintf(ret, size, "%s", region);
    if (ret[0] || read_profiles("AWS_CONFIG_FILE", ".aws/config", &text, NULL) <= 0)
        return;
    aws_profile_value((char *)text.data, text.len, profile_name(), true, "region", ret, size);
}
