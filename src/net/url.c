/* URLs: paths and queries, which stay encoded until a part of them is wanted; names of hosts that
 * mean a port of a sandbox; and the addresses of servers. Decoding is strict: a malformed escape, a
 * NUL, a segment of dots or text that is no UTF-8 is an error. */
#include "net/url.h"

#include "base/banned.h"
#include "base/err.h"
#include "net/http_chars.h"
#include "net/utf8.h"

/* How much of a foreign text is quoted in an error. */
#define QUOTE_MAX 40

static int quoted(struct slice s)
{
    return s.len < QUOTE_MAX ? (int)s.len : QUOTE_MAX;
}

static int hex_value(char c)
{
    return http_is_digit(c) ? c - '0' : (c | 32) - 'a' + 10;
}

/* The byte at *at, decoded; moves *at behind it. -1: malformed. */
static int byte_next(struct slice s, size_t *at)
{
    unsigned char c = (unsigned char)s.at[*at];
    if (c != '%') {
        (*at)++;
        return c <= 0x20 || c == 0x7f ? -1 : c;
    }

    if (s.len - *at < 3 || !http_is_hex(s.at[*at + 1]) || !http_is_hex(s.at[*at + 2]))
        return -1;

    int v = hex_value(s.at[*at + 1]) * 16 + hex_value(s.at[*at + 2]);
    *at += 3;
    return v ? v : -1;
}

void url_split(struct slice target, struct slice *ret_path, struct slice *ret_query)
{
    const char *mark = target.len ? memchr(target.at, '?', target.len) : NULL;
    size_t n = mark ? (size_t)(mark - target.at) : target.len;

    *ret_path = (struct slice){target.at, n};
    *ret_query = (struct slice){target.at + n, 0};
    if (mark)
        *ret_query = (struct slice){mark + 1, target.len - n - 1};
}

/* Whether the segment means this directory or the one above, however it is written. */
static int is_dots(struct slice s)
{
    size_t at = 0, dots = 0;
    while (at < s.len) {
        if (byte_next(s, &at) != '.')
            return 0;
        dots++;
    }
    return dots == 1 || dots == 2;
}

int url_segment_next(struct slice *path, struct slice *ret, struct pd_err *e)
{
    if (!path->len)
        return 0;
    if (path->at[0] != '/')
        return pd_fail(e, PD_INVALID, "path '%.*s' does not start with '/'", quoted(*path),
                       path->at);

    struct slice s = {path->at + 1, path->len - 1};
    const char *slash = s.len ? memchr(s.at, '/', s.len) : NULL;
    struct slice segment = {s.at, slash ? (size_t)(slash - s.at) : s.len};
    if (slash && !segment.len)
        return pd_fail(e, PD_INVALID, "the path has an empty segment ('//')");
    if (is_dots(segment))
        return pd_fail(e, PD_INVALID, "the path has a segment '%.*s'; give it without dots",
                       quoted(segment), segment.at);

    *path = (struct slice){s.at + segment.len, s.len - segment.len};
    *ret = segment;
    return 1;
}

int url_path_split(struct slice path, struct slice *ret, unsigned max, struct pd_err *e)
{
    struct slice segment;
    unsigned n = 0;

    for (int r; (r = url_segment_next(&path, &segment, e)) != 0;) {
        if (r < 0)
            return -1;
        if (n == max)
            return pd_fail(e, PD_INVALID, "the path has more than %u segments", max);
        ret[n++] = segment;
    }
    return (int)n;
}

int url_decode(const char *what, struct slice s, char *out, size_t size, struct pd_err *e)
{
    size_t n = 0;
    for (size_t at = 0; at < s.len;) {
        int c = byte_next(s, &at);
        if (c < 0)
            return pd_fail(e, PD_INVALID,
                           "%s: malformed at byte %zu: expected %%XX with two hexadecimal digits, "
                           "not %%00, and blanks and control bytes escaped",
                           what, at);
        if (n + 1 >= size)
            return pd_fail(e, PD_INVALID, "%s: longer than %zu bytes", what, size ? size - 1 : 0);
        out[n++] = (char)c;
    }

    if (!size)
        return pd_fail(e, PD_INVALID, "%s: no room", what);
    out[n] = 0;
    if (!utf8_is_valid(out, n))
        return pd_fail(e, PD_INVALID, "%s: is not UTF-8", what);
    return 0;
}

int url_encode(struct buf *out, const void *data, size_t len, int keep_slash)
{
    const char *p = data;

    for (size_t i = 0; i < len; i++) {
        char c = p[i];
        int plain = http_is_letter(c) || http_is_digit(c) || (c && strchr("-._~", c)) ||
                    (keep_slash && c == '/');
        if (plain ? buf_putc(out, c) : buf_printf(out, "%%%02X", (unsigned char)c))
            return -1;
    }
    return 0;
}

/* The next pair that is not empty, still encoded. */
static int pair_next(struct slice *query, struct slice *ret_name, struct slice *ret_value)
{
    while (query->len) {
        const char *end = memchr(query->at, '&', query->len);
        size_t n = end ? (size_t)(end - query->at) : query->len;
        struct slice pair = {query->at, n};
        size_t used = end ? n + 1 : n;
        *query = (struct slice){query->at + used, query->len - used};
        if (!pair.len)
            continue;

        const char *equals = memchr(pair.at, '=', pair.len);
        size_t name = equals ? (size_t)(equals - pair.at) : pair.len;
        *ret_name = (struct slice){pair.at, name};
        *ret_value = (struct slice){pair.at + name, 0};
        if (equals)
            *ret_value = (struct slice){equals + 1, pair.len - name - 1};
        return 1;
    }
    return 0;
}

int url_query_next(struct slice *query, char name[URL_NAME_SIZE], struct slice *ret_value,
                   struct pd_err *e)
{
    struct slice encoded, value;

    if (!pair_next(query, &encoded, &value))
        return 0;
    if (!encoded.len)
        return pd_fail(e, PD_INVALID, "the query has a parameter without a name");
    if (url_decode("a parameter's name", encoded, name, URL_NAME_SIZE, e))
        return -1;

    *ret_value = value;
    return 1;
}

/* Compares a name that is encoded with one that is not. */
static int name_is(struct slice encoded, const char *name)
{
    size_t at = 0;
    for (; at < encoded.len; name++)
        if (!*name || byte_next(encoded, &at) != (unsigned char)*name)
            return 0;
    return !*name;
}

int url_query_get(struct slice query, const char *name, char *out, size_t size, struct pd_err *e)
{
    struct slice encoded, value, found = {0};
    int count = 0;

    while (pair_next(&query, &encoded, &value))
        if (name_is(encoded, name)) {
            found = value;
            count++;
        }

    if (count > 1)
        return pd_fail(e, PD_INVALID, "%s: the parameter comes %d times", name, count);
    if (!count)
        return 0;
    return url_decode(name, found, out, size, e) ? -1 : 1;
}

static int is_allowed(const char *const *allowed, const char *name)
{
    for (; *allowed; allowed++) {
        size_t n = strlen(*allowed);
        int prefix = n && (*allowed)[n - 1] == '.';
        if (prefix ? !strncmp(*allowed, name, n) && name[n] : !strcmp(*allowed, name))
            return 1;
    }
    return 0;
}

int url_query_check(struct slice query, const char *const *allowed, struct pd_err *e)
{
    struct slice seen[URL_PAIRS_MAX], rest = query, encoded, value;
    unsigned count = 0;

    while (pair_next(&rest, &encoded, &value)) {
        char name[URL_NAME_SIZE];
        struct slice one = {encoded.at, (size_t)(value.at + value.len - encoded.at)}, again;
        if (url_query_next(&one, name, &again, e) < 0)
            return -1;
        if (!is_allowed(allowed, name))
            return pd_fail(e, PD_INVALID, "%.*s: unknown parameter", QUOTE_MAX, name);
        if (count == URL_PAIRS_MAX)
            return pd_fail(e, PD_INVALID, "the query has more than %u parameters", URL_PAIRS_MAX);

        for (unsigned i = 0; i < count; i++)
            if (name_is(seen[i], name))
                return pd_fail(e, PD_INVALID, "%.*s: the parameter comes twice", QUOTE_MAX, name);
        seen[count++] = encoded;
    }
    return 0;
}

int url_preview_host(struct slice host, const char *domain, unsigned *ret_port,
                     char ret_id[URL_ID_LEN + 1], struct pd_err *e)
{
    struct slice name;
    unsigned server_port, port = 0;

    size_t below = domain ? strlen(domain) : 0;
    if (!below || http_host_split(host, &name, &server_port))
        return 0;

    if (name.at[name.len - 1] == '.')
        name.len--;
    if (name.len <= below + 1 || name.at[name.len - below - 1] != '.' ||
        !slice_is_nocase((struct slice){name.at + name.len - below, below}, domain))
        return 0;
    name.len -= below + 1;

    size_t n = 0;
    while (n < name.len && n < 5 && http_is_digit(name.at[n]))
        port = port * 10 + (unsigned)(name.at[n++] - '0');
    int good = n && name.at[0] != '0' && port <= 65535 && name.len == n + 1 + URL_ID_LEN &&
               name.at[n] == '-';
    char id[URL_ID_LEN + 1] = "";
    for (size_t i = 0; good && i < URL_ID_LEN; i++) {
        char c = name.at[n + 1 + i];
        good = http_is_letter(c) || http_is_digit(c);
        id[i] = http_is_letter(c) ? (char)(c | 32) : c;
    }

    if (!good)
        return pd_fail(e, PD_INVALID, "host '%.*s' is not of the form PORT-SANDBOX.%s",
                       quoted(host), host.at, domain);

    *ret_port = port;
    memcpy(ret_id, id, sizeof id);
    return 1;
}

int url_server_parse(const char *what, const char *text, struct url_server *ret, struct pd_err *e)
{
    struct url_server s = {0};
    struct slice rest;

    if (!strncmp(text, "unix:", 5)) {
        const char *path = text + 5;
        if (path[0] != '/' || !path[1] || strlen(path) >= sizeof s.socket)
            return pd_fail(e, PD_INVALID,
                           "%s: '%.*s' needs an absolute path of at most %zu bytes behind 'unix:'",
                           what, QUOTE_MAX, text, sizeof s.socket - 1);
        memcpy(s.socket, path, strlen(path) + 1);
        *ret = s;
        return 0;
    }

    if (!strncmp(text, "http://", 7)) {
        rest = slice_of(text + 7);
        s.port = 80;
    } else if (!strncmp(text, "https://", 8)) {
        rest = slice_of(text + 8);
        s.port = 443;
        s.tls = 1;
    } else {
        return pd_fail(e, PD_INVALID,
                       "%s: '%.*s' is not http://HOST:PORT, https://HOST:PORT or unix:/PATH", what,
                       QUOTE_MAX, text);
    }

    if (rest.len && rest.at[rest.len - 1] == '/')
        rest.len--;

    struct slice name;
    unsigned port;
    if (http_host_split(rest, &name, &port) || name.len >= sizeof s.host ||
        (rest.at[rest.len - 1] != ']' && name.len < rest.len && !port))
        return pd_fail(e, PD_INVALID,
                       "%s: '%.*s' must be a host, maybe with a port from 1 to 65535, and nothing "
                       "else behind '://'",
                       what, QUOTE_MAX, text);

    memcpy(s.host, name.at, name.len);
    if (port)
        s.port = port;
    *ret = s;
    return 0;
}
