/* Any text as a target, a host and a server's address.
 *
 * Properties: segments decode to UTF-8 without NUL, encode to something that decodes to the same,
 * and joined by slashes give the path again; the three ways to read a query agree; a preview host
 * and a server's address written anew are read as the same. */
#include "base/err.h"
#include "net/url.h"
#include "net/utf8.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_decoded(struct slice s)
{
    char text[500], again[500];
    struct pd_err e = {.msg = ""};
    if (url_decode("it", s, text, sizeof text, &e)) {
        require(e.code == PD_INVALID && !strncmp(e.msg, "it: ", 4));
        return;
    }

    size_t len = strlen(text);
    require(len <= s.len && utf8_is_valid(text, len));
    for (int slash = 0; slash < 2; slash++) {
        auto_buf b = BUF_INIT(4000);
        require(!url_encode(&b, text, len, slash));
        struct slice encoded = {(char *)b.data, b.len};
        require(!url_decode("it", encoded, again, sizeof again, &e) && !strcmp(text, again));
    }
}

static void check_path(struct slice path)
{
    struct slice segments[8], rest = path, one;
    struct pd_err e = {.msg = ""};
    int n = url_path_split(path, segments, 8, &e);
    auto_buf joined = BUF_INIT(1 << 20);

    for (int i = 0; i < n; i++) {
        require(segments[i].len || i == n - 1);
        require(url_segment_next(&rest, &one, &e) == 1);
        require(one.at == segments[i].at && one.len == segments[i].len);
        require(!slice_is(one, ".") && !slice_is(one, ".."));
        buf_putc(&joined, '/');
        buf_put(&joined, one.at, one.len);
        check_decoded(one);
    }

    if (n >= 0)
        require(joined.len == path.len && (!path.len || !memcmp(joined.data, path.at, path.len)));
}

static void check_query(struct slice query)
{
    /* All names that are there are allowed, so only twice and malformed are left to refuse. */
    static char names[URL_PAIRS_MAX][URL_NAME_SIZE];
    const char *allowed[URL_PAIRS_MAX + 1] = {0};
    struct slice rest = query, value;
    struct pd_err e = {.msg = ""};
    unsigned n = 0;
    int r = 1, twice = 0;

    while (n < URL_PAIRS_MAX && (r = url_query_next(&rest, names[n], &value, &e)) == 1) {
        char text[100];
        int found = url_query_get(query, names[n], text, sizeof text, &e);
        require(found != 0);
        check_decoded(value);

        int prefix = names[n][strlen(names[n]) - 1] == '.';
        allowed[n] = names[n];
        for (unsigned i = 0; i < n; i++)
            if (!strcmp(names[i], names[n])) {
                twice = 1;
                require(found < 0);
            }

        if (prefix)
            return; /* it would allow others, and not itself */
        n++;
    }

    if (r == 1 && rest.len)
        return;
    int checked = url_query_check(query, allowed, &e);
    require(checked == (r < 0 || twice ? -1 : 0));
    if (!checked && n) {
        allowed[n - 1] = NULL;
        require(url_query_check(query, allowed, &e) == -1);
    }
}

static void check_host(struct slice host)
{
    unsigned port;
    char id[URL_ID_LEN + 1];
    struct pd_err e = {.msg = ""};
    int r = url_preview_host(host, "box.example", &port, id, &e);
    if (r != 1)
        return;
    auto_buf b = BUF_INIT(1000);
    require(port >= 1 && port <= 65535 && strlen(id) == URL_ID_LEN);
    buf_printf(&b, "%u-%s.box.example", port, id);
    require(host.len >= b.len && slice_is_nocase((struct slice){host.at, b.len}, buf_cstr(&b)));
}

static void check_server(const char *text)
{
    struct url_server s, again;
    struct pd_err e = {.msg = ""};
    if (url_server_parse("URL", text, &s, &e)) {
        require(e.code == PD_INVALID && !strncmp(e.msg, "URL: ", 5));
        return;
    }
    require(!s.socket[0] == !!s.host[0] && !s.socket[0] == !!s.port);

    auto_buf b = BUF_INIT(1000);
    if (s.socket[0])
        buf_printf(&b, "unix:%s", s.socket);
    else
        buf_printf(&b, "%s://%s%s%s:%u", s.tls ? "https" : "http", strchr(s.host, ':') ? "[" : "",
                   s.host, strchr(s.host, ':') ? "]" : "", s.port);

    /* Letters and dots between brackets are no name; nobody connects to them either. */
    if (!s.socket[0] && text[s.tls ? 8 : 7] == '[' && !strchr(s.host, ':'))
        return;
    require(!url_server_parse("URL", buf_cstr(&b), &again, &e));
    require(again.tls == s.tls && again.port == s.port && !strcmp(again.host, s.host) &&
            !strcmp(again.socket, s.socket));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct slice all = {(const char *)data, size}, path, query;
    url_split(all, &path, &query);
    require(path.len + query.len + (path.len < size) == size);
    check_path(path);
    check_query(query);
    check_decoded(all);
    check_host(all);

    auto_buf text = BUF_INIT(1 << 20);
    buf_put(&text, data, size);
    if (buf_cstr(&text))
        check_server(buf_cstr(&text));
    return 0;
}
