/* The console's pages: files of web/, which the program carries inside itself.
 *
 * They are for everybody: what a page shows, it asks the API for. The policy that goes with them
 * lets a page load and reach nothing but this server, and frame nothing but previews; nobody frames
 * it. */
#include "api/handlers.h"
#include "api/login.h"

#include "access/ids.h"
#include "base/banned.h"
#include "config/config.h"

/* Symbol and name of each file; src/meson.build has the same list. */
#define FILES(X)                                                                                   \
    X(api_js, "api.js")                                                                            \
    X(app_js, "app.js")                                                                            \
    X(audit_js, "audit.js")                                                                        \
    X(changes_js, "changes.js")                                                                    \
    X(code_js, "code.js")                                                                          \
    X(dialog_js, "dialog.js")                                                                      \
    X(el_js, "el.js")                                                                              \
    X(files_js, "files.js")                                                                        \
    X(format_js, "format.js")                                                                      \
    X(index_html, "index.html")                                                                    \
    X(keys_js, "keys.js")                                                                          \
    X(list_js, "list.js")                                                                          \
    X(login_js, "login.js")                                                                        \
    X(overview_js, "overview.js")                                                                  \
    X(providers_js, "providers.js")                                                                \
    X(sandbox_js, "sandbox.js")                                                                    \
    X(snapshots_js, "snapshots.js")                                                                \
    X(style_css, "style.css")                                                                      \
    X(tabs_js, "tabs.js")                                                                          \
    X(templates_js, "templates.js")                                                                \
    X(term_js, "term.js")                                                                          \
    X(vt_js, "vt.js")

#define DECLARE(symbol, name)                                                                      \
    extern const char console_##symbol##_start[] __attribute__((visibility("hidden")));            \
    extern const char console_##symbol##_end[] __attribute__((visibility("hidden")));
FILES(DECLARE)

struct page {
    const char *name, *start, *end;
};

#define ROW(symbol, name) {name, console_##symbol##_start, console_##symbol##_end},
static const struct page pages[] = {FILES(ROW)};

static const char *type_of(const char *name)
{
    const char *end = strrchr(name, '.');
    return !strcmp(end, ".js")    ? "text/javascript; charset=utf-8"
           : !strcmp(end, ".css") ? "text/css; charset=utf-8"
                                  : "text/html; charset=utf-8";
}

/* Previews are framed, by their host names. */
static void put_policy(struct call *c)
{
    char text[700];
    const char *scheme = conn_is_tls(c->r->conn) ? "https" : "http";
    struct slice name;
    unsigned port = 0;

    (void)http_host_split(c->r->head.host, &name, &port);
    int n = snprintf(text, sizeof text,
                     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' "
                     "blob: data:; connect-src 'self'; form-action 'none'; base-uri 'none'; "
                     "frame-ancestors 'none'; require-trusted-types-for 'script'; frame-src ");
    if (!c->config->domain[0])
        snprintf(text + n, sizeof text - (size_t)n, "'none'");
    else if (port)
        snprintf(text + n, sizeof text - (size_t)n, "%s://*.%s:%u", scheme, c->config->domain,
                 port);
    else
        snprintf(text + n, sizeof text - (size_t)n, "%s://*.%s", scheme, c->config->domain);
    reply_header(c->r, "Content-Security-Policy", text);
}

static int answer(struct call *c, const struct page *p)
{
    size_t len = (size_t)(p->end - p->start);
    char tag[24];
    const struct slice *known = http_find(&c->r->head, "If-None-Match");

    put_policy(c);
    reply_header(c->r, "Referrer-Policy", "no-referrer");
    reply_header(c->r, "Cross-Origin-Opener-Policy", "same-origin");
    reply_header(c->r, "Cross-Origin-Resource-Policy", "same-origin");
    reply_header(c->r, "X-Frame-Options", "DENY");
    reply_header(c->r, "Cache-Control", "no-cache");
    snprintf(tag, sizeof tag, "\"%016llx\"", (unsigned long long)hash_bytes(p->start, len));
    reply_header(c->r, "ETag", tag);

    if (known && slice_is(*known, tag))
        (void)reply(c->r, 304, NULL, NULL, 0);
    else
        (void)reply(c->r, 200, type_of(p->name), p->start, len);
    return 0;
}

static int serve(struct call *c, const char *name, struct pd_err *e)
{
    if (console_check_here(c, e) < 0)
        return -1;
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (!strcmp(pages[i].name, name))
            return answer(c, &pages[i]);
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
