/* Reads what registries say outside of images. Each function goes through its text once and copies
 * what is good into places of fixed size. */
#include "engine/registry_text.h"

#include "base/banned.h"
#include "base/base64.h"
#include "base/err.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool is_printable(const char *text)
{
    for (; *text; text++)
        if (*text <= ' ' || *text > '~')
            return false;
    return true;
}

/* --- addresses ------------------------------------------------------------------------------ */

static int no_address(const char *text, struct pd_err *e)
{
    return pd_fail(e, PD_PROTOCOL, "the registry names '%.100s', which is no address to ask", text);
}

int registry_url_read(const char *text, const char *base, struct registry_url *ret,
                      struct pd_err *e)
{
    size_t scheme = !strncmp(text, "https://", 8) ? 8 : !strncmp(text, "http://", 7) ? 7 : 0;
    const char *at = text;

    if (!is_printable(text) || strchr(text, '#') || strlen(text) >= sizeof ret->target)
        return no_address(text, e);
    if (!scheme) {
        /* "//HOST" would be another server. */
        if (!base || text[0] != '/' || text[1] == '/' || strlen(base) >= sizeof ret->base)
            return no_address(text, e);
        snprintf(ret->base, sizeof ret->base, "%s", base);
    } else {
        size_t host = strcspn(text + scheme, "/?");
        if (!host || scheme + host >= sizeof ret->base || memchr(text + scheme, '@', host) ||
            memchr(text + scheme, '\\', host))
            return no_address(text, e);
        snprintf(ret->base, sizeof ret->base, "%.*s", (int)(scheme + host), text);
        at = text + scheme + host;
    }
    return snprintf(ret->target, sizeof ret->target, "%s%s", at[0] == '/' ? "" : "/", at) <
                   (int)sizeof ret->target
               ? 0
               : no_address(text, e);
}

/* --- challenges ----------------------------------------------------------------------------- */

static int no_challenge(const char *header, struct pd_err *e)
{
    return pd_fail(e, PD_PROTOCOL,
                   "the registry wants to be asked in a way that is not known: %.100s", header);
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
}

/* The next NAME=VALUE or NAME="VALUE" from *at on: 1, 0 behind the last, -1. */
static int next_parameter(const char **at, char name[32], char *value, size_t size)
{
    const char *p = *at + strspn(*at, " \t,");
    size_t n = 0;

    if (!*p)
        return 0;
    while (is_letter(p[n]))
        n++;
    if (!n || n >= 32 || p[n] != '=')
        return -1;
    memcpy(name, p, n);
    name[n] = 0;
    p += n + 1;

    size_t used = 0;
    bool quoted = *p == '"';
    for (p += quoted; *p && (quoted ? *p != '"' : !strchr(" \t,", *p)); p++) {
        if (quoted && *p == '\\' && p[1])
            p++;
        if (*p < ' ' || *p > '~' || used + 1 >= size)
            return -1;
        value[used++] = *p;
    }
    value[used] = 0;
    if (quoted && *p++ != '"')
        return -1;
    *at = p;
    return 1;
}

int challenge_read(const char *header, struct challenge *ret, struct pd_err *e)
{
    struct challenge c = {0};
    char name[32], value[REGISTRY_URL_MAX];
    const char *at = header + strspn(header, " \t");
    size_t word = strcspn(at, " \t");

    c.kind = word == 5 && !strncasecmp(at, "basic", 5)    ? CHALLENGE_BASIC
             : word == 6 && !strncasecmp(at, "bearer", 6) ? CHALLENGE_BEARER
                                                          : CHALLENGE_NONE;
    if (c.kind == CHALLENGE_NONE)
        return no_challenge(header, e);

    at += word;
    int more;
    while ((more = next_parameter(&at, name, value, sizeof value)) > 0) {
        if (!strcasecmp(name, "realm"))
            snprintf(c.realm, sizeof c.realm, "%s", value);
        else if (!strcasecmp(name, "service") &&
                 snprintf(c.service, sizeof c.service, "%s", value) >= (int)sizeof c.service)
            return no_challenge(header, e);
    }
    if (c.kind == CHALLENGE_BEARER && (more < 0 || !c.realm[0]))
        return no_challenge(header, e);
    *ret = c;
    return 0;
}

/* --- tokens and credentials ----------------------------------------------------------------- */

int token_read(const void *json, size_t len, char ret[REGISTRY_TOKEN_MAX + 1], struct pd_err *e)
{
    json_t *j = json_loadb(json, len, 0, NULL);
    const char *token = json_string_value(json_object_get(j, "token"));
    if (!token)
        token = json_string_value(json_object_get(j, "access_token"));

    bool good = token && token[0] && strlen(token) <= REGISTRY_TOKEN_MAX && is_printable(token);
    if (good)
        memcpy(ret, token, strlen(token) + 1);
    json_decref(j);
    return good
               ? 0
               : pd_fail(e, PD_PROTOCOL, "the registry's server for tokens has answered with none");
}

int credentials_read(const void *json, size_t len, const char *registry, char *ret, size_t size,
                     struct pd_err *e)
{
    json_t *j = json_loadb(json, len, 0, NULL);
    const json_t *auths = json_object_get(j, "auths");
    const json_t *entry = json_object_get(auths, registry);
    if (!entry && !strcmp(registry, "docker.io")) /* whose entry has an older name */
        entry = json_object_get(auths, "https://index.docker.io/v1/");
    const char *auth = json_string_value(json_object_get(entry, "auth"));
    auto_buf plain = BUF_INIT(4096);
    int r = 0;

    if (!json_is_object(auths))
        r = pd_fail(e, PD_INVALID, "a file with credentials has an object \"auths\"");
    else if (auth && auth[0] &&
             (base64_decode(&plain, auth, strlen(auth), NULL) != BASE64_GOOD ||
              !memchr(plain.data, ':', plain.len) || strlen(auth) >= size))
        r = pd_fail(e, PD_INVALID, "the credentials for '%.80s' are no base64 of USER:PASSWORD",
                    registry);
    else
        snprintf(ret, size, "%s", auth ? auth : "");
    json_decref(j);
    return r;
}
