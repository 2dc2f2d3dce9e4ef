/* How this works: a call is signed for the moment and sent. What passes (no answer, throttling,
 * AWS's own failures) is tried again after a random part of 1, 2 s; a clock that is wrong is
 * measured by the answer's Date, and keys that were refused are asked for anew, once each. */
#include "engine/aws_client.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "engine/http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define ATTEMPTS   3
#define CALL_WAIT  (15 * NS_PER_S) /* one attempt */
#define SKEW_LEAST 60

static const struct {
    const char *name, *variable, *target, *content;
} services[AWS_SERVICES] = {
    {"ecs", "AWS_ENDPOINT_URL_ECS", "AmazonEC2ContainerServiceV20141113.",
     "application/x-amz-json-1.1"},
    {"elasticloadbalancing", "AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2", "",
     "application/x-www-form-urlencoded; charset=utf-8"},
};

/* ---- places ---- */

void aws_host_of(const char *base, char *ret, size_t size)
{
    const char *host = strstr(base, "://");
    const char *usual = !strncmp(base, "https", 5) ? ":443" : ":80";

    host = host ? host + 3 : base;
    snprintf(ret, size, "%.*s", (int)strcspn(host, "/"), host);
    size_t len = strlen(ret), port = strlen(usual);
    if (len > port && !strcmp(ret + len - port, usual))
        ret[len - port] = 0;
}

static bool region_ok(const char *region)
{
    size_t len = strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-");
    return len > 0 && len < 40 && !region[len];
}

/* Session tokens travel with every request. */
static int check_base(const char *base, struct pd_err *e)
{
    const char *host = base + 7;

    if (!strncmp(base, "https://", 8) ||
        (!strncmp(base, "http://", 7) && (!strncmp(host, "127.", 4) || !strncmp(host, "[::1]", 5) ||
                                          !strncmp(host, "localhost", 9))))
        return 0;
    return pd_fail(e, PD_INVALID,
                   "'%.100s' is no endpoint of AWS: https://HOST (http only on this machine)",
                   base);
}

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

static int open_service(struct aws_client *c, enum aws_service s, const char *endpoint,
                        struct pd_err *e)
{
    const char *given = endpoint[0]                    ? endpoint
                        : env(services[s].variable)[0] ? env(services[s].variable)
                                                       : env("AWS_ENDPOINT_URL");
    size_t size = sizeof c->at[s].base;
    int n = given[0]
                ? snprintf(c->at[s].base, size, "%s", given)
                : snprintf(c->at[s].base, size, "https://%s.%s.amazonaws.com%s", services[s].name,
                           c->region, strncmp(c->region, "cn-", 3) != 0 ? "" : ".cn");
    if (n >= (int)size)
        return pd_fail(e, PD_INVALID, "the endpoint '%.60s...' is too long", given);

    char *end = c->at[s].base + strlen(c->at[s].base);
    while (end > c->at[s].base && end[-1] == '/')
        *--end = 0;
    if (check_base(c->at[s].base, e) < 0)
        return -1;
    aws_host_of(c->at[s].base, c->at[s].host, sizeof c->at[s].host);

    struct http_place place = {.base = c->at[s].base};
    c->at[s].http = http_new(&place, e);
    return c->at[s].http ? 0 : -1;
}

int aws_open(struct aws_client *c, const char *region, const char *endpoint, struct pd_err *e)
{
    if (region[0])
        snprintf(c->region, sizeof c->region, "%s", region);
    else
        aws_chain_region(c->region, sizeof c->region);
    if (!c->region[0])
        return pd_fail(e, PD_INVALID,
                       "no region of AWS is named: set fargate_region or AWS_REGION");
    if (!region_ok(c->region))
        return pd_fail(e, PD_INVALID, "'%.40s' is no region of AWS, such as eu-central-1",
                       c->region);

    for (int s = 0; s < AWS_SERVICES; s++)
        if (open_service(c, (enum aws_service)s, endpoint, e) < 0)
            return -1;
    return 0;
}

void aws_close(struct aws_client *c)
{
    for (int s = 0; s < AWS_SERVICES; s++) {
        http_free(c->at[s].http);
        c->at[s].http = NULL;
    }
    aws_chain_forget(&c->chain);
}

/* ---- calls ---- */

long aws_skew_of(const char *date, time_t now)
{
    struct tm tm = {0};
    const char *end = strptime(date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    time_t there = end && !*end ? timegm(&tm) : -1;

    return there < 0 ? 0 : (long)(there - now);
}

struct call {
    struct aws_client *client;
    enum aws_service service;
    const char *action;
    const struct buf *body;
    struct buf *out;
    struct http_heads heads;
    int status;
};

static void wipe(char *text, size_t len)
{
    if (text)
        explicit_bzero(text, len);
}

/* One attempt. -1 when no answer came. */
static int ask(struct call *c, deadline t, struct pd_err *e)
{
    struct aws_client *client = c->client;
    struct sigv4_lines lines = SIGV4_LINES_INIT;
    char target[128], content[96];
    deadline own = deadline_in(CALL_WAIT);
    const struct aws_keys *keys = aws_chain_get(&client->chain, t, e);
    if (!keys)
        return -1;

    snprintf(content, sizeof content, "Content-Type: %s", services[c->service].content);
    snprintf(target, sizeof target, "X-Amz-Target: %s%s", services[c->service].target, c->action);
    const char *plain[3] = {content, services[c->service].target[0] ? target : NULL, NULL};
    struct sigv4_request s = {.region = client->region,
                              .service = services[c->service].name,
                              .method = "POST",
                              .host = client->at[c->service].host,
                              .target = "/",
                              .headers = plain,
                              .body = c->body->data,
                              .body_len = c->body->len,
                              .now = time(NULL) + client->skew};
    int r = sigv4_sign(keys, &s, &lines, e);
    if (r == 0) {
        const char *headers[6] = {content, lines.date, (char *)lines.authorization.data};
        unsigned n = 3;
        if (lines.token.len)
            headers[n++] = (char *)lines.token.data;
        if (plain[1])
            headers[n++] = plain[1];
        headers[n] = NULL;

        struct http_request q = {.method = "POST",
                                 .target = "/",
                                 .headers = headers,
                                 .body = c->body->data,
                                 .body_len = c->body->len,
                                 .context = client->context,
                                 .is_wanted = client->is_wanted,
                                 .heads = &c->heads,
                                 .deadline = own < t ? own : t};
        struct http_answer answer = {.body = c->out};
        c->heads = (struct http_heads){0};
        buf_clear(c->out);
        r = http_ask(client->at[c->service].http, &q, &answer, e);
        c->status = r == 0 ? answer.status : 0;
    }
    wipe((char *)lines.authorization.data, lines.authorization.len);
    sigv4_lines_done(&lines);
    return r;
}

static bool is_skewed(const struct aws_refusal *r)
{
    return !strcmp(r->code, "RequestTimeTooSkewed") || !strcmp(r->code, "RequestExpired") ||
           strcasestr(r->message, "Signature expired") ||
           strcasestr(r->message, "Signature not yet current");
}

/* False when there is no time left. */
static bool pause_before(int attempt, deadline t)
{
    unsigned random;
    uint64_t most = NS_PER_S << attempt;

    random_bytes(&random, sizeof random);
    uint64_t ns = (uint64_t)((double)random / UINT32_MAX * (double)most);
    if (deadline_in(ns) >= t)
        return false;
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)},
        NULL);
    return true;
}

int aws_call(struct aws_client *c, enum aws_service service, const char *action,
             const struct buf *body, struct buf *out, struct aws_refusal *ret, const char *what,
             deadline t, struct pd_err *e)
{
    struct call call = {
        .client = c, .service = service, .action = action, .body = body, .out = out};
    struct aws_refusal refusal;
    struct pd_err why;
    bool measured = false, renewed = false;

    for (int attempt = 0;; attempt++) {
        bool is_last = attempt + 1 >= ATTEMPTS;
        refusal = (struct aws_refusal){0};
        if (ask(&call, t, &why) < 0) {
            if (ret)
                *ret = refusal;
            /* No answer: nobody knows whether it was done. */
            if (is_last || (why.code != PD_BAD_GATEWAY && why.code != PD_TIMEOUT) ||
                !pause_before(attempt, t))
                return pd_fail(e, why.code, "%s: %s", what, why.msg);
            continue;
        }
        if (call.status == 200)
            return 0;

        aws_read_refusal(call.status, out->data, out->len, &refusal);
        if (ret)
            *ret = refusal;
        long skew = is_skewed(&refusal) ? aws_skew_of(call.heads.date, time(NULL)) : 0;
        if (!measured && (skew > SKEW_LEAST || skew < -SKEW_LEAST)) {
            measured = true;
            c->skew = skew;
            continue;
        }
        if (!renewed && c->chain.keys.expires && aws_is_expired(&refusal)) {
            renewed = true;
            aws_chain_forget(&c->chain);
            continue;
        }
        if (is_last || !aws_is_passing(call.status, &refusal) || !pause_before(attempt, t))
            return aws_fail(call.status, &refusal, what, e);
    }
}
