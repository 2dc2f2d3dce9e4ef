/* Reads a pattern into the two parts that the name of an image has, and compares each with a glob
 * that knows `*` alone. The glob goes back to the last star only, so it takes at most the product
 * of both lengths. */
#include "wire/image_pattern.h"

#include "base/banned.h"
#include "base/err.h"
#include "wire/image_ref.h"

#include <stdio.h>
#include <string.h>

#define LETTERS    "abcdefghijklmnopqrstuvwxyz0123456789"
#define REPOSITORY LETTERS "._-/*"
#define REGISTRY   "ABCDEFGHIJKLMNOPQRSTUVWXYZ" LETTERS "._-:[]*"

static int refuse(const char *text, const char *why, struct pd_err *e)
{
    return pd_fail(e, PD_INVALID,
                   "'%.100s' is no pattern of images: %s; such as docker.io/library/* or "
                   "registry.example:5000/team/*",
                   text, why);
}

/* Is the first part, [text, text + len), a registry? */
static bool is_registry(const char *text, size_t len)
{
    return memchr(text, '.', len) || memchr(text, ':', len) || (len == 1 && text[0] == '*') ||
           (len == strlen("localhost") && !strncmp(text, "localhost", len));
}

int image_pattern_parse(const char *text, struct image_pattern *ret, struct pd_err *e)
{
    struct image_pattern p = {.registry = "docker.io"};
    const char *slash = strchr(text, '/'), *path = text;
    bool named = slash && is_registry(text, (size_t)(slash - text));

    if (!strcmp(text, "*")) {
        *ret = (struct image_pattern){.registry = "*", .repository = "*"};
        return 0;
    }
    if (!slash && strpbrk(text, ".:"))
        return refuse(text, "behind a registry a / is wanted, and there are no tags in it", e);

    if (named) {
        size_t len = (size_t)(slash - text);
        if (len >= sizeof p.registry || strspn(text, REGISTRY) < len)
            return refuse(text, "its registry is none", e);
        memcpy(p.registry, text, len);
        p.registry[len] = 0;
        path = slash + 1;
    }

    size_t len = strlen(path);
    if (named && !len)
        path = "*"; /* all of a registry */
    else if (!len || path[0] == '/' || strstr(path, "//") || strstr(path, ".."))
        return refuse(text, "it has an empty part", e);
    if (path[strspn(path, REPOSITORY)])
        return refuse(text, "a repository has a-z, 0-9, . _ - and / (a pattern *), and no tag", e);

    bool library = !named && !slash;
    if ((size_t)snprintf(p.repository, sizeof p.repository, "%s%s", library ? "library/" : "",
                         path) >= sizeof p.repository)
        return refuse(text, "it is too long", e);

    len = strlen(p.repository);
    if (p.repository[len - 1] == '/')
        p.repository[len - 1] = 0;
    *ret = p;
    return 0;
}

/* `below`: the text may go on with a / where the pattern ends. */
static bool glob(const char *pattern, const char *text, bool below)
{
    const char *star = NULL, *again = NULL;

    for (;;) {
        if (*pattern == '*') {
            star = ++pattern;
            again = text;
        } else if (!*pattern && (!*text || (below && *text == '/'))) {
            return true;
        } else if (*text && *pattern == *text) {
            pattern++;
            text++;
        } else if (star && *again) {
            pattern = star;
            text = ++again;
        } else {
            return false;
        }
    }
}

bool image_pattern_matches(const struct image_pattern *p, const struct image_ref *r)
{
    return glob(p->registry, r->registry, false) && glob(p->repository, r->repository, true);
}
