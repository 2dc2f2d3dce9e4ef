/* How this works (AWS's "Signature Version 4"): the request is written in one canonical form, of
 * which the digest is signed with a key that follows from the secret, the day, the region and the
 * service.
 *
 *   canonical = METHOD \n path \n query \n headers \n names of headers \n digest of the body
 *   to sign   = AWS4-HMAC-SHA256 \n time \n scope \n digest of canonical
 *   scope     = day/region/service/aws4_request
 *
 * Path: dots are resolved, and what is no unreserved byte is encoded (once more, where the target
 * is encoded already). Query: sorted by name, then by value. Headers: names in small letters,
 * sorted; values without blanks at their ends, one blank inside; the same name twice is one line,
 * with a comma. */
#include "engine/sigv4.h"

#include "base/banned.h"
#include "base/err.h"
#include "link/proof.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADERS_MOST 32
#define PAIRS_MOST   128
#define PATH_MOST    4096u

struct header {
    char name[64]; /* in small letters */
    const char *value;
    unsigned place; /* in the request: equal names keep their order */
};

struct pair {
    const char *text;
    size_t name_len, len; /* of "name", and of "name=value" */
};

static bool is_unreserved(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '~';
}

static void put_encoded(struct buf *out, const char *text, size_t len, const char *plain)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (is_unreserved(c) || (c && strchr(plain, c)))
            buf_putc(out, (char)c);
        else
            buf_printf(out, "%%%02X", c);
    }
}

/* ---- path ---- */

/* "/a/./b/../c//d/" is "/a/c/d/". */
static int put_resolved(struct buf *out, const char *path, size_t len, struct pd_err *e)
{
    size_t starts[256];
    unsigned depth = 0;
    auto_buf plain = BUF_INIT(PATH_MOST);
    bool ends_open = len > 0 && path[len - 1] == '/';

    for (size_t i = 0; i < len;) {
        size_t n = 0;
        while (i < len && path[i] == '/')
            i++;
        while (i + n < len && path[i + n] != '/')
            n++;
        if (n == 2 && !memcmp(path + i, "..", 2)) {
            if (depth)
                plain.len = starts[--depth];
        } else if (n && !(n == 1 && path[i] == '.')) {
            if (depth == sizeof starts / sizeof *starts)
                return pd_fail(e, PD_INVALID, "a path has too many parts to be signed");
            starts[depth++] = plain.len;
            buf_putc(&plain, '/');
            buf_put(&plain, path + i, n);
        }
        i += n;
    }

    if (ends_open || !depth)
        buf_putc(&plain, '/');
    if (plain.overflow)
        return pd_fail(e, PD_INVALID, "a path is too long to be signed");
    put_encoded(out, (const char *)plain.data, plain.len, "/");
    return 0;
}

static int put_path(struct buf *out, const struct sigv4_request *r, size_t len, struct pd_err *e)
{
    if (strcmp(r->service, "s3") != 0)
        return put_resolved(out, r->target, len, e);
    buf_put(out, r->target, len);
    return 0;
}

/* ---- query ---- */

static int compare_parts(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return order ? order : a_len < b_len ? -1 : a_len > b_len;
}

static int compare_pairs(const void *left, const void *right)
{
    const struct pair *a = left, *b = right;
    int order = compare_parts(a->text, a->name_len, b->text, b->name_len);
    return order ? order : compare_parts(a->text, a->len, b->text, b->len);
}

static int put_query(struct buf *out, const char *query, struct pd_err *e)
{
    struct pair pairs[PAIRS_MOST];
    unsigned count = 0;

    while (*query) {
        size_t len = strcspn(query, "&");
        const char *equals = memchr(query, '=', len);
        if (len && count == PAIRS_MOST)
            return pd_fail(e, PD_INVALID, "a query has too many parts to be signed");
        if (len)
            pairs[count++] = (struct pair){
                .text = query, .name_len = equals ? (size_t)(equals - query) : len, .len = len};
        query += len + (query[len] == '&');
    }

    qsort(pairs, count, sizeof *pairs, compare_pairs);
    for (unsigned i = 0; i < count; i++) {
        const struct pair *p = &pairs[i];
        size_t value = p->name_len + (p->name_len < p->len);
        if (i)
            buf_putc(out, '&');
        put_encoded(out, p->text, p->name_len, "%");
        buf_putc(out, '=');
        put_encoded(out, p->text + value, p->len - value, "%");
    }
    return 0;
}

/* ---- headers ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static void put_value(struct buf *out, const char *value)
{
    bool begun = false;

    while (*value) {
        while (is_blank(*value))
            value++;
        size_t len = strcspn(value, " \t");
        if (len && begun)
            buf_putc(out, ' ');
        buf_put(out, value, len);
        begun = begun || len;
        value += len;
    }
}

static int add_header(struct header *all, unsigned *count, const char *name, size_t name_len,
                      const char *value, struct pd_err *e)
{
    struct header *h = &all[*count];

    if (!name_len || name_len >= sizeof h->name || strpbrk(value, "\r\n"))
        return pd_fail(e, PD_INVALID, "'%.40s' is no header that can be signed", name);
    if (*count == HEADERS_MOST)
        return pd_fail(e, PD_INVALID, "more than %d headers are to be signed", HEADERS_MOST);
    for (size_t i = 0; i < name_len; i++)
        h->name[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] + ('a' - 'A') : name[i]);
    h->name[name_len] = 0;
    h->value = value;
    h->place = (*count)++;
    return 0;
}

static int compare_headers(const void *left, const void *right)
{
    const struct header *a = left, *b = right;
    int order = strcmp(a->name, b->name);
    return order ? order : (int)a->place - (int)b->place;
}

static int put_headers(struct buf *out, struct buf *names, struct header *all, unsigned count)
{
    qsort(all, count, sizeof *all, compare_headers);
    for (unsigned i = 0; i < count; i++) {
        bool again = i && !strcmp(all[i].name, all[i - 1].name);
        if (!again) {
            buf_printf(out, "%s%s:", i ? "\n" : "", all[i].name);
            buf_printf(names, "%s%s", i ? ";" : "", all[i].name);
        } else {
            buf_putc(out, ',');
        }
        put_value(out, all[i].value);
    }
    return buf_puts(out, "\n");
}

static int collect_headers(const struct sigv4_request *r, const char *date, const char *digest,
                           const char *token, struct header *all, unsigned *count, struct pd_err *e)
{
    const struct {
        const char *name, *value;
    } own[] = {{"host", r->host},
               {"x-amz-date", date},
               {"x-amz-content-sha256", digest},
               {"x-amz-security-token", token}};

    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (own[i].value[0] &&
            add_header(all, count, own[i].name, strlen(own[i].name), own[i].value, e) < 0)
            return -1;
    for (const char *const *h = r->headers; h && *h; h++) {
        const char *colon = strchr(*h, ':');
        if (!colon)
            return pd_fail(e, PD_INVALID, "'%.40s' is no header that can be signed", *h);
        if (add_header(all, count, *h, (size_t)(colon - *h), colon + 1, e) < 0)
            return -1;
    }
    return 0;
}

/* ---- the whole ---- */

/* "20261115T022446Z" */
static int write_time(time_t now, char out[17], struct pd_err *e)
{
    struct tm tm;
    if (!gmtime_r(&now, &tm) || strftime(out, 17, "%Y%m%dT%H%M%SZ", &tm) != 16)
        return pd_fail(e, PD_INVALID,
                       "the clock of this machine is wrong: requests to AWS have "
                       "the time in them");
    return 0;
}

int sigv4_canonical(const struct aws_keys *keys, const struct sigv4_request *r, struct buf *out,
                    struct buf *names, struct pd_err *e)
{
    struct header headers[HEADERS_MOST];
    char date[17], digest[SHA256_HEX_SIZE];
    unsigned count = 0;
    size_t path_len = strcspn(r->target, "?");

    if (r->target[0] != '/')
        return pd_fail(e, PD_INVALID, "'%.60s' is no target of a request", r->target);
    sha256_hex(r->body, r->body_len, digest);
    if (write_time(r->now, date, e) < 0 ||
        collect_headers(r, date, strcmp(r->service, "s3") != 0 ? "" : digest, keys->token, headers,
                        &count, e) < 0)
        return -1;

    buf_printf(out, "%s\n", r->method);
    if (put_path(out, r, path_len, e) < 0)
        return -1;
    buf_putc(out, '\n');
    if (r->target[path_len] && put_query(out, r->target + path_len + 1, e) < 0)
        return -1;
    buf_putc(out, '\n');
    put_headers(out, names, headers, count);
    buf_putc(out, '\n');
    if (!buf_cstr(names) || buf_printf(out, "%s\n%s", buf_cstr(names), digest) < 0 || out->overflow)
        return pd_fail(e, PD_INVALID, "a request is too long to be signed");
    return 0;
}

static void chain(uint8_t key[SHA256_SIZE], size_t key_len, const char *text,
                  uint8_t ret[SHA256_SIZE])
{
    hmac_sha256(key, key_len, text, strlen(text), ret);
}

static void signing_key(const char *secret, const char *day, const struct sigv4_request *r,
                        uint8_t ret[SHA256_SIZE])
{
    char first[AWS_SECRET_MAX + 5];
    int len = snprintf(first, sizeof first, "AWS4%s", secret);

    chain((uint8_t *)first, (size_t)len, day, ret);
    chain(ret, SHA256_SIZE, r->region, ret);
    chain(ret, SHA256_SIZE, r->service, ret);
    chain(ret, SHA256_SIZE, "aws4_request", ret);
    explicit_bzero(first, sizeof first);
}

int sigv4_sign(const struct aws_keys *keys, const struct sigv4_request *r, struct sigv4_lines *ret,
               struct pd_err *e)
{
    auto_buf canonical = BUF_INIT(64u << 10), names = BUF_INIT(4096), text = BUF_INIT(1024);
    char date[17], day[9], digest[SHA256_HEX_SIZE], scope[256];
    uint8_t key[SHA256_SIZE], mac[SHA256_SIZE];

    if (sigv4_canonical(keys, r, &canonical, &names, e) < 0 || write_time(r->now, date, e) < 0)
        return -1;
    snprintf(day, sizeof day, "%.8s", date);
    if (snprintf(scope, sizeof scope, "%s/%s/%s/aws4_request", day, r->region, r->service) >=
        (int)sizeof scope)
        return pd_fail(e, PD_INVALID, "'%.60s' is no region", r->region);

    sha256_hex(canonical.data, canonical.len, digest);
    buf_printf(&text, "AWS4-HMAC-SHA256\n%s\n%s\n%s", date, scope, digest);
    signing_key(keys->secret, day, r, key);
    hmac_sha256(key, sizeof key, text.data, text.len, mac);
    explicit_bzero(key, sizeof key);

    snprintf(ret->date, sizeof ret->date, "X-Amz-Date: %s", date);
    ret->digest[0] = 0;
    if (!strcmp(r->service, "s3")) {
        sha256_hex(r->body, r->body_len, digest);
        snprintf(ret->digest, sizeof ret->digest, "X-Amz-Content-Sha256: %s", digest);
    }
    buf_clear(&ret->token);
    if (keys->token[0])
        buf_printf(&ret->token, "X-Amz-Security-Token: %s", keys->token);
    buf_clear(&ret->authorization);
    buf_printf(&ret->authorization,
               "Authorization: AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=",
               keys->id, scope, buf_cstr(&names));
    for (size_t i = 0; i < sizeof mac; i++)
        buf_printf(&ret->authorization, "%02x", mac[i]);
    if (!buf_cstr(&ret->authorization) || !buf_cstr(&ret->token))
        return pd_fail(e, PD_INVALID, "a request is too long to be signed");
    return 0;
}

void sigv4_lines_done(struct sigv4_lines *l)
{
    if (l->token.data)
        explicit_bzero(l->token.data, l->token.len);
    if (l->authorization.data)
        explicit_bzero(l->authorization.data, l->authorization.len);
    buf_done(&l->token);
    buf_done(&l->authorization);
}
