/* The console: one page, in which scripts/console-bundle has put all of web/, and the frame for
 * HTML that cells show. The program carries both inside itself.
 *
 * They are for everybody: what the page shows, it asks the API for. The policy that goes with it
 * lets it run what is inside of it and nothing else, reach nothing but this server, and frame
 * nothing but previews and that frame; nobody frames it. The frame is the opposite: any script runs
 * in it, in an origin that is nobody's, and it can reach nothing.
 *
 * With `console_dir` clients of this host get the files of that directory instead, as they are at
 * that moment: whoever changes the console needs no build. */
#include "api/handlers.h"
#include "api/login.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/fd.h"
#include "config/config.h"

#include <errno.h>
#include <fcntl.h>

#define DIR_FILE_MAX (256u << 10)

/* What may be done with a file: see put_policy. */
enum page_kind { PAGE_WHOLE, PAGE_PART, PAGE_RESULT };

#define BLOB(symbol)                                                                               \
    extern const char console_##symbol##_start[] __attribute__((visibility("hidden")));            \
    extern const char console_##symbol##_end[] __attribute__((visibility("hidden")));
BLOB(whole)
BLOB(packed)
BLOB(policy)
BLOB(result)

struct page {
    enum page_kind kind;
    const char *name, *at;
    size_t len;
    const char *packed; /* the same by gzip; NULL: there is none */
    size_t packed_len;
};

static const char *type_of(const char *name)
{
    const char *end = strrchr(name, '.');
    return !strcmp(end, ".js")    ? "text/javascript; charset=utf-8"
           : !strcmp(end, ".css") ? "text/css; charset=utf-8"
                                  : "text/html; charset=utf-8";
}

/* Previews are framed, by their host names. */
static void put_frames(const struct call *c, struct buf *out)
{
    const char *scheme = conn_is_tls(c->r->conn) ? "https" : "http";
    struct slice name;
    unsigned port = 0;

    (void)http_host_split(c->r->head.host, &name, &port);
    buf_puts(out, "'self'");
    if (!c->config->domain[0])
        return;
    buf_printf(out, " %s://*.%s", scheme, c->config->domain);
    if (port)
        buf_printf(out, ":%u", port);
}

static void put_policy(struct call *c, const struct page *p)
{
    auto_buf text = BUF_INIT(2048);

    if (p->kind == PAGE_RESULT) {
        buf_puts(&text, "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' "
                        "'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; font-src "
                        "data:; form-action 'none'; base-uri 'none'; frame-ancestors 'self'");
    } else {
        if (p->kind == PAGE_WHOLE)
            buf_put(&text, console_policy_start,
                    (size_t)(console_policy_end - console_policy_start));
        else
            buf_puts(&text, "script-src 'self'; style-src 'self'");
        buf_puts(&text, "; default-src 'none'; img-src 'self' blob: data:; connect-src 'self'; "
                        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
                        "require-trusted-types-for 'script'; frame-src ");
        put_frames(c, &text);
        reply_header(c->r, "X-Frame-Options", "DENY");
        reply_header(c->r, "Cross-Origin-Opener-Policy", "same-origin");
    }

    /* Without a policy there is no page: the browser shows nothing that has this one. */
    const char *policy = text.overflow ? NULL : buf_cstr(&text);
    reply_header(c->r, "Content-Security-Policy", policy ? policy : "default-src 'none'; sandbox");
}

static int answer(struct call *c, const struct page *p)
{
    bool is_packed = p->packed && http_list_has(&c->r->head, "Accept-Encoding", "gzip");
    const char *at = is_packed ? p->packed : p->at;
    size_t len = is_packed ? p->packed_len : p->len;
    const struct slice *known = http_find(&c->r->head, "If-None-Match");
    char tag[24];

    put_policy(c, p);
    reply_header(c->r, "Referrer-Policy", "no-referrer");
    reply_header(c->r, "Cross-Origin-Resource-Policy", "same-origin");
    reply_header(c->r, "Cache-Control", "no-cache");
    snprintf(tag, sizeof tag, "\"%016llx\"", (unsigned long long)hash_bytes(at, len));
    reply_header(c->r, "ETag", tag);
    if (p->packed)
        reply_header(c->r, "Vary", "Accept-Encoding");

    if (known && slice_is(*known, tag)) {
        (void)reply(c->r, 304, NULL, NULL, 0);
        return 0;
    }

    if (is_packed)
        reply_header(c->r, "Content-Encoding", "gzip");
    (void)reply(c->r, 200, type_of(p->name), at, len);
    return 0;
}

/* Is it a name that a file of web/ can have? No path, nothing hidden. */
static bool is_file_name(const char *name)
{
    const char *end = strrchr(name, '.');
    return end && end != name && strspn(name, "abcdefghijklmnopqrstuvwxyz_.") == strlen(name) &&
           (!strcmp(end, ".js") || !strcmp(end, ".css") || !strcmp(end, ".html"));
}

/* Of the developer's directory. */
static int serve_from(struct call *c, const char *name, struct pd_err *e)
{
    const char *at = c->config->console_dir;
    auto_fd dir = open(at, O_PATH | O_DIRECTORY | O_CLOEXEC);
    auto_buf text = BUF_INIT(DIR_FILE_MAX);

    if (dir < 0)
        return pd_fail_sys(e, "console_dir: open %.200s", at);
    char *into = (char *)buf_reserve(&text, DIR_FILE_MAX);
    ssize_t len = into ? fd_read_file(dir, name, into, DIR_FILE_MAX) : -ENOMEM;
    if (len == -ENOENT)
        return pd_fail(e, PD_NOT_FOUND, "console_dir %.200s has no file '%.100s'", at, name);
    if (len < 0) {
        errno = (int)-len;
        return pd_fail_sys(e, "console_dir: read %.200s/%.100s", at, name);
    }

    struct page p = {.kind = strcmp(name, "result.html") ? PAGE_PART : PAGE_RESULT,
                     .name = name,
                     .at = into,
                     .len = (size_t)len};
    return answer(c, &p);
}

static int serve(struct call *c, const char *name, struct pd_err *e)
{
    const struct page inside[] = {
        {PAGE_WHOLE, "index.html", console_whole_start,
         (size_t)(console_whole_end - console_whole_start), console_packed_start,
         (size_t)(console_packed_end - console_packed_start)},
        {PAGE_RESULT, "result.html", console_result_start,
         (size_t)(console_result_end - console_result_start), NULL, 0},
    };

    if (console_check_here(c, e) < 0)
        return -1;
    if (*c->config->console_dir && is_file_name(name) && conn_is_local(c->r->conn))
        return serve_from(c, name, e);
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++)
        if (!strcmp(inside[i].name, name))
            return answer(c, &inside[i]);
    return pd_fail(e, PD_NOT_FOUND, "the console has no file '%.100s'", name);
}

int console_index(struct call *c, struct pd_err *e)
{
    return serve(c, "index.html", e);
}

int console_file(struct call *c, struct pd_err *e)
{
    return serve(c, c->var[0], e);
}
