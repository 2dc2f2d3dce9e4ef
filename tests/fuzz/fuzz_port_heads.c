/* Any text as a query, a Cookie, a Set-Cookie and a Location.
 *
 * Properties: what is left holds no token, whichever way a reader looks for it; stripping again
 * changes nothing; a cookie that passes names no domain; a path on this host stays below the
 * prefix. */
#include "api/port_heads.h"
#include "net/url.h"

#include "base/buf.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static struct slice text_of(const struct buf *b)
{
    return (struct slice){b->len ? (const char *)b->data : "", b->len};
}

static int same(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && (!a->len || !memcmp(a->data, b->data, a->len));
}

static void check_query(struct slice s)
{
    char value[64], name[URL_NAME_SIZE];
    struct slice one;
    auto_buf once = BUF_INIT(1 << 20), twice = BUF_INIT(1 << 20);
    port_query_strip(s, &once);
    port_query_strip(text_of(&once), &twice);
    require(same(&once, &twice) && once.len <= s.len);
    require(url_query_get(text_of(&once), PREVIEW_PARAMETER, value, sizeof value, NULL) != 1);
    for (struct slice rest = text_of(&once); url_query_next(&rest, name, &one, NULL) == 1;)
        require(strcmp(name, PREVIEW_PARAMETER) != 0);
}

static int has_token(struct slice s)
{
    char value[64];
    struct slice again = s;

    return port_cookie_next(&s, PREVIEW_COOKIE, value, sizeof value) ||
           port_cookie_next(&again, PREVIEW_HOST_COOKIE, value, sizeof value);
}

static void check_cookies(struct slice s)
{
    auto_buf once = BUF_INIT(1 << 20), twice = BUF_INIT(1 << 20), set = BUF_INIT(1 << 20);
    port_cookie_strip(s, &once);
    port_cookie_strip(text_of(&once), &twice);
    require(same(&once, &twice));
    require(!has_token(text_of(&once)));
    if (!port_cookie_confine(s, &set))
        return;
    const char *text = buf_cstr(&set);
    require(text != NULL);

    struct slice pair = {text, strcspn(text, ";")};
    require(!has_token(pair));
    for (const char *at = strchr(text, ';'); at; at = strchr(at + 1, ';')) {
        at += strspn(at, "; \t");
        size_t n = strcspn(at, "=;");
        while (n && strchr(" \t", at[n - 1]))
            n--;
        require(n != 6 || strncasecmp(at, "domain", 6) != 0);
        if (!*at)
            break;
    }
}

static void check_location(struct slice s)
{
    auto_buf out = BUF_INIT(1 << 20);
    port_location_map(s, "/v1/p", 80, &out);
    const char *text = buf_cstr(&out);
    if (s.len > 1 && s.at[0] == '/' && s.at[1] != '/' && s.at[1] != '\\')
        require(!strncasecmp(text, "/v1/p", 5));
    require(out.len <= s.len + 5);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* Headers hold no NUL. */
    if (memchr(data, 0, size))
        return 0;
    struct slice s = {(const char *)data, size};
    check_query(s);
    check_cookies(s);
    check_location(s);
    return 0;
}
