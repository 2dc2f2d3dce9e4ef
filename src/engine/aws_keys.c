/* Readers of credentials: profiles of files (INI), JSON of the metadata endpoints. What they read
 * becomes a part of headers and paths, so its bytes are checked; what is wrong is told by the
 * name of the field and never with its value. */
#include "engine/aws_keys.h"

#include "base/banned.h"
#include "base/err.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char word_chars[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

static bool is_visible(const char *text)
{
    for (; *text; text++)
        if (*text <= ' ' || *text > '~')
            return false;
    return true;
}

int aws_keys_set(struct aws_keys *ret, const char *id, const char *secret, const char *token,
                 struct pd_err *e)
{
    size_t id_len = strlen(id), secret_len = strlen(secret), token_len = strlen(token);

    if (id_len == 0 || id_len > AWS_ID_MAX || id[strspn(id, word_chars)])
        return pd_fail(e, PD_INVALID, "the id of the AWS key is none: letters and digits");
    if (secret_len == 0 || secret_len > AWS_SECRET_MAX || !is_visible(secret))
        return pd_fail(e, PD_INVALID, "the secret of the AWS key %.8s... is none", id);
    if (token_len > AWS_TOKEN_MAX || !is_visible(token))
        return pd_fail(e, PD_INVALID, "the session token of the AWS key %.8s... is none", id);

    memcpy(ret->id, id, id_len + 1);
    memcpy(ret->secret, secret, secret_len + 1);
    memcpy(ret->token, token, token_len + 1);
    ret->expires = 0;
    return 0;
}

/* ---- profiles ---- */

struct words {
    const char *text;
    size_t len;
};

static struct words trimmed(const char *text, size_t len)
{
    while (len && (*text == ' ' || *text == '\t')) {
        text++;
        len--;
    }
    while (len && strchr(" \t\r", text[len - 1]))
        len--;
    return (struct words){text, len};
}

static bool is_word(struct words w, const char *text)
{
    return w.len == strlen(text) && !memcmp(w.text, text, w.len);
}

/* Is this line's section, without its brackets, the profile's? */
static bool is_section(struct words w, const char *profile, bool config)
{
    static const char lead[] = "profile";

    if (config && w.len > sizeof lead && !memcmp(w.text, lead, sizeof lead - 1) &&
        (w.text[sizeof lead - 1] == ' ' || w.text[sizeof lead - 1] == '\t'))
        return is_word(trimmed(w.text + sizeof lead - 1, w.len - (sizeof lead - 1)), profile);
    return (!config || !strcmp(profile, "default")) && is_word(w, profile);
}

void aws_profile_value(const char *text, size_t len, const char *profile, bool config,
                       const char *name, char *ret, size_t size)
{
    bool inside = false;

    ret[0] = 0;
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - (text + at)) : len - at;
        bool indented = n && (text[at] == ' ' || text[at] == '\t'); /* of a nested value */
        struct words line = trimmed(text + at, n);
        at += n + 1;
        if (!line.len || line.text[0] == '#' || line.text[0] == ';')
            continue;

        if (line.text[0] == '[') {
            const char *close = memchr(line.text, ']', line.len);
            inside = close && is_section(trimmed(line.text + 1, (size_t)(close - line.text - 1)),
                                         profile, config);
            continue;
        }
        const char *equals = memchr(line.text, '=', line.len);
        if (!inside || indented || !equals)
            continue;
        struct words key = trimmed(line.text, (size_t)(equals - line.text));
        struct words value = trimmed(equals + 1, (size_t)(line.text + line.len - (equals + 1)));
        if (is_word(key, name) && value.len < size && !memchr(value.text, 0, value.len)) {
            memcpy(ret, value.text, value.len);
            ret[value.len] = 0;
        }
    }
}

int aws_keys_read_profile(const char *text, size_t len, const char *profile, bool config,
                          struct aws_keys *ret, struct pd_err *e)
{
    char id[AWS_ID_MAX + 2], secret[AWS_SECRET_MAX + 2];
    static _Thread_local char token[AWS_TOKEN_MAX + 2];

    aws_profile_value(text, len, profile, config, "aws_access_key_id", id, sizeof id);
    aws_profile_value(text, len, profile, config, "aws_secret_access_key", secret, sizeof secret);
    aws_profile_value(text, len, profile, config, "aws_session_token", token, sizeof token);
    if (!id[0] && !secret[0])
        return pd_fail(e, PD_NOT_FOUND, "profile '%.60s' has no AWS key", profile);

    int r = aws_keys_set(ret, id, secret, token, e);
    explicit_bzero(secret, sizeof secret);
    explicit_bzero(token, sizeof token);
    return r;
}

/* ---- endpoints ---- */

/* Digits at a place of a text: -1 when there are others. */
static int digits(const char *text, size_t from, size_t count)
{
    int n = 0;
    for (size_t i = from; i < from + count; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        n = n * 10 + (text[i] - '0');
    }
    return n;
}

time_t aws_time_read(const char *text)
{
    size_t len = strnlen(text, 40);
    if (len < 20 || len == 40 || text[4] != '-' || text[7] != '-' || text[10] != 'T' ||
        text[13] != ':' || text[16] != ':' || text[len - 1] != 'Z')
        return -1;

    struct tm tm = {.tm_year = digits(text, 0, 4) - 1900,
                    .tm_mon = digits(text, 5, 2) - 1,
                    .tm_mday = digits(text, 8, 2),
                    .tm_hour = digits(text, 11, 2),
                    .tm_min = digits(text, 14, 2),
                    .tm_sec = digits(text, 17, 2)};
    if (tm.tm_year < 70 || tm.tm_mon < 0 || tm.tm_mon > 11 || tm.tm_mday < 1 || tm.tm_mday > 31 ||
        tm.tm_hour < 0 || tm.tm_hour > 23 || tm.tm_min < 0 || tm.tm_min > 59 || tm.tm_sec < 0 ||
        tm.tm_sec > 60)
        return -1;
    return timegm(&tm);
}

static const char *text_of(const json_t *j, const char *name)
{
    const json_t *v = json_object_get(j, name);
    const char *text = json_string_value(v);
    return text && strlen(text) == json_string_length(v) ? text : "";
}

int aws_keys_read_json(const void *json, size_t len, struct aws_keys *ret, struct pd_err *e)
{
    json_t *j = json_loadb(json, len, 0, NULL);
    const char *code = text_of(j, "Code"), *expires = text_of(j, "Expiration");
    int r;

    if (!json_is_object(j))
        r = pd_fail(e, PD_PROTOCOL, "the endpoint of AWS keys answers something that is no JSON");
    else if (code[0] && strcmp(code, "Success") != 0)
        r = pd_fail(e, PD_BAD_GATEWAY, "the endpoint of AWS keys says %.60s: %.100s", code,
                    text_of(j, "Message"));
    else
        r = aws_keys_set(ret, text_of(j, "AccessKeyId"), text_of(j, "SecretAccessKey"),
                         text_of(j, "Token"), e);

    if (r == 0 && expires[0] && (ret->expires = aws_time_read(expires)) < 0)
        r = pd_fail(e, PD_PROTOCOL, "the endpoint of AWS keys tells no time as their end");
    json_decref(j);
    return r;
}

static bool has_host(const char *host, size_t len)
{
    static const char *const hosts[] = {"169.254.170.2", "169.254.170.23", "127.0.0.1",
                                        "localhost",     "[fd00:ec2::23]", "[::1]"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        if (strlen(hosts[i]) == len && !strncasecmp(hosts[i], host, len))
            return true;
    return false;
}

int aws_container_url(const char *url, char ret_base[280], char ret_target[1024], struct pd_err *e)
{
    bool tls = !strncmp(url, "https://", 8);
    const char *host = url + (tls ? 8 : 7);

    if (!tls && strncmp(url, "http://", 7) != 0)
        return pd_fail(e, PD_INVALID,
                       "AWS_CONTAINER_CREDENTIALS_FULL_URI '%.80s' is no http or https address",
                       url);
    size_t whole = strcspn(host, "/?#"), name = host[0] == '[' ? strcspn(host, "]") + 1 : 0;
    if (!name)
        name = strcspn(host, ":/?#");
    if (!whole || whole > 255 || name > whole || strcspn(host, "@\\") < whole || !is_visible(url) ||
        strchr(url, '#'))
        return pd_fail(e, PD_INVALID, "AWS_CONTAINER_CREDENTIALS_FULL_URI '%.80s' is no address",
                       url);
    if (!tls && !has_host(host, name))
        return pd_fail(e, PD_INVALID,
                       "AWS_CONTAINER_CREDENTIALS_FULL_URI '%.80s': without TLS only this machine "
                       "and AWS's own endpoints are asked for keys",
                       url);

    snprintf(ret_base, 280, "http%s://%.*s", tls ? "s" : "", (int)whole, host);
    const char *rest = host + whole;
    if (snprintf(ret_target, 1024, "%s%s", rest[0] == '/' ? "" : "/", rest) >= 1024)
        return pd_fail(e, PD_INVALID, "AWS_CONTAINER_CREDENTIALS_FULL_URI is too long");
    return 0;
}

int aws_role_read(const char *text, size_t len, char ret[129], struct pd_err *e)
{
    const char *end = memchr(text, '\n', len);
    struct words w = trimmed(text, end ? (size_t)(end - text) : len);

    if (!w.len || w.len > 128)
        return pd_fail(e, PD_NOT_FOUND, "this instance has no role");
    for (size_t i = 0; i < w.len; i++)
        if (!w.text[i] || (!strchr(word_chars, w.text[i]) && !strchr("+=,.@_-", w.text[i])))
            return pd_fail(e, PD_PROTOCOL, "the name of this instance's role is none");
    memcpy(ret, w.text, w.len);
    ret[w.len] = 0;
    return 0;
}
