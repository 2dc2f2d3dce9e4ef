/* Readers and writers of federated credentials. What the file names becomes a part of requests, so
 * its characters are checked first. */
#include "engine/google_federation.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/json.h"
#include "engine/http.h"

#include <stdio.h>
#include <string.h>

#define TYPE          "external_account"
#define LIFE          3600u
#define METADATA_HOST "http://169.254.169.254"
#define GRANT         "urn:ietf:params:oauth:grant-type:token-exchange"
#define ACCESS_TOKEN  "urn:ietf:params:oauth:token-type:access_token"

static bool is_printable(const char *text)
{
    size_t len = 0;

    while (text[len] > ' ' && text[len] < 127)
        len++;
    return len > 0 && !text[len];
}

/* Of a header's value: blanks may be inside. */
static bool is_value(const char *text)
{
    size_t len = 0;

    while (text[len] >= ' ' && text[len] < 127)
        len++;
    return len > 0 && !text[len];
}

static bool is_any(const char *text)
{
    return text[0] != 0;
}

static int take(const json_t *j, const char *name, char *ret, size_t size,
                bool (*fits)(const char *text), struct pd_err *e)
{
    if (rented_json_text(ret, size, json_object_get(j, name), fits) < 0)
        return pd_fail(e, PD_INVALID, "its '%s' is too long, or no word", name);
    return 0;
}

/* An address that `name` has; base "" where there is none. */
static int take_url(const json_t *j, const char *name, bool may_be_metadata, struct google_url *ret,
                    struct pd_err *e)
{
    char text[sizeof ret->base + sizeof ret->target];
    struct rented_url u;

    *ret = (struct google_url){.base = ""};
    if (take(j, name, text, sizeof text, is_printable, e) < 0)
        return -1;
    if (!text[0])
        return 0;

    const char *rest = strstr(text, "://");
    size_t at = rest ? (size_t)(rest + 3 - text) : 0;
    at += strcspn(text + at, "/?#");
    if (at >= sizeof ret->base || strlen(text + at) + 1 >= sizeof ret->target || strchr(text, '#'))
        return pd_fail(e, PD_INVALID, "its '%s' is no address", name);
    memcpy(ret->base, text, at);
    ret->base[at] = 0;
    snprintf(ret->target, sizeof ret->target, "%s%s", text[at] == '/' ? "" : "/", text + at);
    if (may_be_metadata && !strcmp(ret->base, METADATA_HOST))
        return 0;
    return rented_url_read(name, ret->base, &u, e);
}

static int take_headers(json_t *source, struct google_federation *f, struct pd_err *e)
{
    json_t *headers = json_object_get(source, "headers"), *value;
    const char *name;

    json_object_foreach(headers, name, value)
    {
        const char *text = json_string_value(value);
        if (f->header_count == GOOGLE_SOURCE_HEADERS || !is_printable(name) || strchr(name, ':') ||
            !text || !is_value(text) ||
            snprintf(f->headers[f->header_count], sizeof *f->headers, "%s: %s", name, text) >=
                (int)sizeof *f->headers)
            return pd_fail(e, PD_INVALID, "its credential_source has headers that are none");
        f->header_count++;
    }
    return 0;
}

static int take_source(json_t *source, struct google_federation *f, struct pd_err *e)
{
    static const char *const others[] = {"executable", "environment_id", "certificate"};
    json_t *format = json_object_get(source, "format");
    const char *kind = json_string_value(json_object_get(format, "type"));

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (json_object_get(source, others[i]))
            return pd_fail(e, PD_INVALID,
                           "its credential_source has '%s': only a file or an address is read",
                           others[i]);
    if (take(source, "file", f->file, sizeof f->file, is_any, e) < 0 ||
        take_url(source, "url", true, &f->source, e) < 0 || take_headers(source, f, e) < 0)
        return -1;
    if (!f->file[0] == !f->source.base[0])
        return pd_fail(e, PD_INVALID, "its credential_source has to have 'file' or 'url'");

    if (kind && !strcmp(kind, "json")) {
        if (take(format, "subject_token_field_name", f->field, sizeof f->field, is_printable, e) <
            0)
            return -1;
        if (!f->field[0])
            return pd_fail(e, PD_INVALID, "its format has no 'subject_token_field_name'");
    } else if (kind && strcmp(kind, "text") != 0) {
        return pd_fail(e, PD_INVALID, "its format '%.40s' is neither text nor json", kind);
    }
    return 0;
}

bool google_is_federation(const void *json, size_t len)
{
    auto_json *j = len ? json_loadb(json, len, 0, NULL) : NULL;
    const char *type = json_string_value(json_object_get(j, "type"));
    return type && !strcmp(type, TYPE);
}

int google_federation_read(const void *json, size_t len, struct google_federation *ret,
                           struct pd_err *e)
{
    auto_json *j = len ? json_loadb(json, len, 0, NULL) : NULL;
    json_t *source = json_object_get(j, "credential_source");
    json_t *life = json_object_get(json_object_get(j, "service_account_impersonation"),
                                   "token_lifetime_seconds");

    *ret = (struct google_federation){.life = LIFE};
    if (take(j, "audience", ret->audience, sizeof ret->audience, is_printable, e) < 0 ||
        take(j, "subject_token_type", ret->subject_type, sizeof ret->subject_type, is_printable,
             e) < 0 ||
        take_url(j, "token_url", false, &ret->token, e) < 0 ||
        take_url(j, "service_account_impersonation_url", false, &ret->impersonate, e) < 0)
        return -1;
    if (!ret->audience[0] || !ret->subject_type[0] || !ret->token.base[0] ||
        !json_is_object(source))
        return pd_fail(e, PD_INVALID,
                       "it needs 'audience', 'subject_token_type', 'token_url' and "
                       "'credential_source'");
    if (life && (json_integer_value(life) < 600 ||
                 json_integer_value(life) > (json_int_t)GOOGLE_IMPERSONATE_MOST))
        return pd_fail(e, PD_INVALID, "its token_lifetime_seconds is none: 600 to 43200");
    if (life)
        ret->life = (unsigned)json_integer_value(life);
    return take_source(source, ret, e);
}

int google_subject_read(const struct google_federation *f, const void *data, size_t len,
                        char ret[GOOGLE_SUBJECT], struct pd_err *e)
{
    auto_json *j = f->field[0] && len ? json_loadb(data, len, 0, NULL) : NULL;
    const char *text = f->field[0] ? json_string_value(json_object_get(j, f->field)) : data;
    size_t n = f->field[0] ? (text ? strlen(text) : 0) : len;

    while (n && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    if (!n || n >= GOOGLE_SUBJECT)
        return pd_fail(e, PD_INVALID, "its credential_source gives no token%s%s",
                       f->field[0] ? " in " : "", f->field);
    memcpy(ret, text, n);
    ret[n] = 0;
    if (is_printable(ret))
        return 0;
    explicit_bzero(ret, n);
    return pd_fail(e, PD_INVALID, "its credential_source gives no token: one word is expected");
}

void google_federate_form(struct buf *out, const struct google_federation *f, const char *subject)
{
    const char *const members[][2] = {
        {"grant_type", GRANT},      {"audience", f->audience},
        {"scope", GOOGLE_SCOPE},    {"requested_token_type", ACCESS_TOKEN},
        {"subject_token", subject}, {"subject_token_type", f->subject_type}};

    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        buf_printf(out, "%s%s=", i ? "&" : "", members[i][0]);
        http_escape(out, members[i][1]);
    }
}

void google_impersonate_body(struct buf *out, const struct google_federation *f)
{
    struct json j = JSON_INIT(out);
    char life[24];

    snprintf(life, sizeof life, "%us", f->life);
    json_open(&j, '{');
    json_key(&j, "scope");
    json_open(&j, '[');
    json_cstr(&j, GOOGLE_SCOPE);
    json_close(&j, ']');
    json_member_cstr(&j, "lifetime", life);
    json_close(&j, '}');
}

int google_impersonated_read(const void *json, size_t len, char ret[GOOGLE_TOKEN], struct pd_err *e)
{
    auto_json *j = len ? json_loadb(json, len, 0, NULL) : NULL;

    if (rented_json_text(ret, GOOGLE_TOKEN, json_object_get(j, "accessToken"), google_is_token) <
            0 ||
        !ret[0])
        return pd_fail(e, PD_PROTOCOL, "the answer has no token");
    return 0;
}
