/* The contract and its readable page, which the program carries inside itself. */
#include "api/call.h"
#include "api/handlers.h"

#include "base/banned.h"

extern const char openapi_blob_start[] __attribute__((visibility("hidden")));
extern const char openapi_blob_end[] __attribute__((visibility("hidden")));
extern const char docs_blob_start[] __attribute__((visibility("hidden")));
extern const char docs_blob_end[] __attribute__((visibility("hidden")));

int openapi_get(struct call *c, struct pd_err *e)
{
    (void)e;
    (void)reply(c->r, 200, "application/yaml", openapi_blob_start,
                (size_t)(openapi_blob_end - openapi_blob_start));
    return 0;
}

int docs_get(struct call *c, struct pd_err *e)
{
    (void)e;
    reply_header(c->r, "Content-Security-Policy",
                 "default-src 'none'; style-src 'unsafe-inline'; img-src data:");
    (void)reply(c->r, 200, "text/html; charset=utf-8", docs_blob_start,
                (size_t)(docs_blob_end - docs_blob_start));
    return 0;
}
