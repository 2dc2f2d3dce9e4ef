/* Readers and writers of what rented sandboxes' APIs share. A text from there is either of the form
 * that it must have, or refused; what only people read is cut and stripped instead. */
#include "engine/rented_text.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define LETTERS  "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS   "0123456789"
#define BOUNDARY "paddock-form-5d1c7b0e9a2f4468"

/* ---- URLs ---- */

bool rented_is_host(const char *text)
{
    size_t len = strspn(text, LETTERS DIGITS "-._");
    bool v6 = text[0] == '[';

    if (v6)
        len = 1 + strspn(text + 1, "0123456789abcdefABCDEF:.");
    if (v6 && text[len++] != ']')
        return false;
    if (len < 1 || len > 253 || text[0] == '.' || text[0] == '-')
        return false;
    if (!text[len])
        return true;
    size_t digits = text[len] == ':' ? strspn(text + len + 1, DIGITS) : 0;
    return digits >= 1 && digits <= 5 && !text[len + 1 + digits];
}

static bool is_loopback(const char *host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};

    for (unsigned i = 0; i < 3; i++) {
        size_t n = strlen(names[i]);
        if (!strncasecmp(host, names[i], n) && (!host[n] || host[n] == ':'))
            return true;
    }
    return false;
}

int rented_url_read(const char *what, const char *text, struct rented_url *ret, struct pd_err *e)
{
    bool plain = !strncmp(text, "http://", 7);
    size_t scheme = plain ? 7 : 8;
    char host[260];

    if (!plain && strncmp(text, "https://", 8) != 0)
        return pd_fail(e, PD_INVALID, "%s '%.80s': use https://HOST", what, text);
    size_t len = strcspn(text + scheme, "/?#");
    const char *path = text + scheme + len;
    size_t path_len = strlen(path);
    while (path_len && path[path_len - 1] == '/')
        path_len--;

    snprintf(host, sizeof host, "%.*s", (int)(len < sizeof host ? len : sizeof host - 1),
             text + scheme);
    if (len >= sizeof host || !rented_is_host(host) || path_len >= sizeof ret->path ||
        strspn(path, LETTERS DIGITS "/-._~") < path_len || strstr(path, "..") || strstr(path, "//"))
        return pd_fail(e, PD_INVALID, "%s '%.80s': use https://HOST, maybe with a port and a path",
                       what, text);
    if (plain && !is_loopback(host))
        return pd_fail(e, PD_INVALID,
                       "%s '%.80s': use https://, without it a credential would be sent openly",
                       what, text);

    snprintf(ret->base, sizeof ret->base, "%s%s", plain ? "http://" : "https://", host);
    snprintf(ret->path, sizeof ret->path, "%.*s", (int)path_len, path);
    return 0;
}

/* ---- ids and tokens ---- */

bool rented_is_id(const char *text)
{
    size_t len = strspn(text, LETTERS DIGITS "-_");
    return len > 0 && len < RENTED_ID && !text[len] && text[0] != '-';
}

bool rented_is_token(const char *text)
{
    size_t len = 0;

    while (text[len] > ' ' && text[len] < 127)
        len++;
    return len > 0 && len < RENTED_TOKEN && !text[len];
}

int rented_place_read(const char *place, char ret_id[RENTED_ID], char ret_link[33],
                      struct pd_err *e)
{
    const char *slash = strchr(place, '/');
    size_t len = slash ? (size_t)(slash - place) : RENTED_ID;

    if (len < RENTED_ID && strlen(slash + 1) == 32 && strspn(slash + 1, "0123456789abcdef") == 32) {
        snprintf(ret_id, RENTED_ID, "%.*s", (int)len, place);
        snprintf(ret_link, 33, "%s", slash + 1);
        if (rented_is_id(ret_id))
            return 0;
    }
    return pd_fail(e, PD_INVALID, "'%.100s' is no place of a rented sandbox", place);
}

/* ---- answers that are JSON ---- */

void rented_json_done(json_t **j)
{
    json_decref(*j);
}

json_t *rented_json(const char *who, const char *what, const void *json, size_t len,
                    struct pd_err *e)
{
    json_t *j = len ? json_loadb(json, len, 0, NULL) : NULL;

    if (!j)
        pd_fail(e, PD_PROTOCOL, "%s's answer to %s is no JSON", who, what);
    return j;
}

int rented_json_text(char *out, size_t size, const json_t *j, bool (*fits)(const char *text))
{
    const char *text = json_string_value(j);

    out[0] = 0;
    if (!j || json_is_null(j) || (text && !text[0]))
        return 0;
    if (!text || json_string_length(j) != strlen(text) || strlen(text) >= size || !fits(text))
        return -1;
    snprintf(out, size, "%s", text);
    return 0;
}

/* ---- words ---- */

static const char *message_of(json_t *j)
{
    static const char *const names[] = {"message", "error", "detail"};

    for (unsigned i = 0; i < 3; i++) {
        json_t *m = json_object_get(j, names[i]);
        if (json_is_array(m))
            m = json_array_get(m, 0);
        if (json_is_object(m))
            m = json_object_get(m, "message");
        if (json_is_string(m))
            return json_string_value(m);
    }
    return NULL;
}

/* Takes the secret out, wherever it is. */
static void hide(char *text, const char *secret)
{
    size_t len = secret ? strlen(secret) : 0;

    for (char *at = text; len >= 4 && (at = strstr(at, secret)); at++)
        memset(at, '*', len);
}

void rented_words(const void *data, size_t len, const char *secret, char *out, size_t size)
{
    static const size_t most = 4096;
    char text[4097];
    json_t *j = len ? json_loadb(data, len, 0, NULL) : NULL;
    const char *message = j ? message_of(j) : NULL;
    const char *from = message ? message : len ? data : "";
    size_t n = message ? strlen(message) : len;

    n = n < most ? n : most;
    for (size_t i = 0; i < n; i++)
        text[i] = from[i] >= ' ' && from[i] < 127 ? from[i] : ' ';
    while (n && text[n - 1] == ' ')
        n--;
    text[n] = 0;
    json_decref(j);

    hide(text, secret);
    snprintf(out, size, "%s", text);
}

unsigned rented_wait_s(const char *text, unsigned otherwise)
{
    uint64_t s;

    if (!text || parse_u64("Retry-After", text, 0, UINT32_MAX, &s, NULL) < 0)
        return otherwise;
    return s > 3600 ? 3600 : (unsigned)s;
}

int rented_refused(const struct rented_refusal *r, struct pd_err *e)
{
    char words[120];

    rented_words(r->body, r->len, r->secret, words, sizeof words);
    switch (r->status) {
    case 401:
    case 403:
        return pd_fail(e, PD_DENIED, "%s refuses to %s (%d): %s; see %s", r->who, r->what,
                       r->status, words, r->remedy);
    case 402:
        return pd_fail(e, PD_DENIED, "%s refuses to %s (402): %s; see the account there", r->who,
                       r->what, words);
    case 404:
        return pd_fail(e, PD_NOT_FOUND, "%s: %s: %s", r->who, r->what, words);
    case 409:
        return pd_fail(e, PD_CONFLICT, "%s: %s: %s", r->who, r->what, words);
    case 429:
        return pd_fail(e, PD_CAPACITY,
                       "%s: %s: too much at once, or out of quota (429): %s; again in %u s", r->who,
                       r->what, words, rented_wait_s(r->wait, 60));
    default:
        return pd_fail(e, r->status >= 500 ? PD_BAD_GATEWAY : PD_PROTOCOL, "%s: %s: %s (%d)",
                       r->who, r->what, words[0] ? words : "no words", r->status);
    }
}

/* ---- forms ---- */

bool rented_form_fits(const void *data, size_t len)
{
    return !len || !memmem(data, len, BOUNDARY, sizeof BOUNDARY - 1);
}

void rented_form_file(struct buf *out, const char *name, const char *filename, const void *data,
                      size_t len)
{
    buf_printf(out,
               "--" BOUNDARY "\r\nContent-Disposition: form-data; name=\"%s\"; filename=\"%s\"\r\n"
               "Content-Type: application/octet-stream\r\n\r\n",
               name, filename);
    buf_put(out, data, len);
    buf_puts(out, "\r\n");
}

void rented_form_text(struct buf *out, const char *name, const char *text)
{
    buf_printf(out, "--" BOUNDARY "\r\nContent-Disposition: form-data; name=\"%s\"\r\n\r\n%s\r\n",
               name, text);
}

void rented_form_end(struct buf *out)
{
    buf_puts(out, "--" BOUNDARY "--\r\n");
}
