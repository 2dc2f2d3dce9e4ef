/* Any path: it fits one row or none. What fits has as many variables as its pattern, none of them
 * empty or with a NUL, and is found again when it is written from the pattern and the variables. */
#include "api/e2b.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned braces(const char *pattern)
{
    unsigned n = 0;
    for (; *pattern; pattern++)
        n += *pattern == '{';
    return n;
}

static void check_again(struct route_table table, const struct route *route,
                        const struct route_match *m, enum http_method method)
{
    struct buf text = BUF_INIT(16384);
    unsigned n = 0;

    for (const char *p = route->pattern; *p;) {
        if (*p != '{') {
            buf_putc(&text, *p++);
            continue;
        }
        if (url_encode(&text, m->var[n], strlen(m->var[n]), 0) < 0)
            abort();
        n++;
        p += strcspn(p, "}") + 1;
    }

    if (route->flags & ROUTE_REST)
        buf_put(&text, m->rest.at, m->rest.len);
    const struct route *again = NULL;
    struct route_match second;
    char allow[ROUTE_ALLOW_SIZE];
    struct pd_err e;
    if (route_find(table, (struct slice){(const char *)text.data, text.len}, method, &again,
                   &second, allow, &e) < 0 ||
        again != route || second.count != m->count)
        abort();

    for (unsigned i = 0; i < m->count; i++)
        if (strcmp(m->var[i], second.var[i]) != 0)
            abort();
    buf_done(&text);
}

static void check(struct route_table table, const uint8_t *data, size_t size)
{
    enum http_method method = (enum http_method)(data[0] % HTTP_METHOD_COUNT);
    struct slice path = {(const char *)data + 1, size - 1};
    const struct route *route = NULL;
    struct route_match m;
    char allow[ROUTE_ALLOW_SIZE];
    struct pd_err e;

    if (route_find(table, path, method, &route, &m, allow, &e) < 0) {
        if (e.code != PD_NOT_FOUND && e.code != PD_METHOD && e.code != PD_INVALID &&
            e.code != PD_TOO_LARGE)
            abort();
        if (e.code == PD_METHOD && !allow[0])
            abort();
        return;
    }

    if (m.count != braces(route->pattern))
        abort();
    for (unsigned i = 0; i < m.count; i++)
        if (!m.var[i][0])
            abort();
    check_again(table, route, &m, method);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > HTTP_TARGET_MAX)
        return 0;
    check((struct route_table){api_routes, api_route_count}, data, size);
    check((struct route_table){e2b_control_routes, e2b_control_route_count}, data, size);
    check((struct route_table){e2b_envd_routes, e2b_envd_route_count}, data, size);
    return 0;
}
