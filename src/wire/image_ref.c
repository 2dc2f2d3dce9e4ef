/* Reads the name of an image from its end: the digest behind "@", the tag behind the last ":" that
 * has no "/" behind it, then the registry, which ends at the first "/". Each part is checked
 * against its own small alphabet. */
#include "wire/image_ref.h"

#include "base/banned.h"
#include "base/err.h"

#include <stdbool.h>
#include <string.h>

#define LOWER   "abcdefghijklmnopqrstuvwxyz0123456789"
#define WORD    "ABCDEFGHIJKLMNOPQRSTUVWXYZ" LOWER "_"
#define REF_MAX 640u

/* Copies [from, end) to `out`; false when it does not fit. */
static bool copy(char *out, size_t size, const char *from, const char *end)
{
    size_t len = (size_t)(end - from);
    if (len >= size)
        return false;
    memcpy(out, from, len);
    out[len] = 0;
    return true;
}

/* Parts of lower case letters and digits, with single separators between them: ".", "_", "__" or
 * any number of "-". */
static bool is_path_part(const char *at, const char *end)
{
    for (;;) {
        size_t len = strspn(at, LOWER);
        if (len == 0 || at + len > end)
            return false;
        at += len;
        if (at == end)
            return true;

        size_t dashes = strspn(at, "-");
        if (dashes)
            at += dashes;
        else if (at[0] == '.')
            at += 1;
        else if (at[0] == '_')
            at += at[1] == '_' ? 2 : 1;
        else
            return false;
        if (at >= end)
            return false;
    }
}

static bool is_repository(const char *text)
{
    if (strlen(text) > 255)
        return false;
    for (;;) {
        const char *end = strchrnul(text, '/');
        if (!is_path_part(text, end))
            return false;
        if (!*end)
            return true;
        text = end + 1;
    }
}

static bool is_registry(const char *text)
{
    if (text[0] == '[') { /* an IPv6 address */
        size_t len = strspn(text + 1, "0123456789abcdefABCDEF:.");
        text += 1 + len;
        if (len < 2 || text[0] != ']')
            return false;
        text++;
    } else {
        size_t len = strspn(text, WORD "-.");
        if (len == 0 || text[0] == '-' || text[0] == '.' || text[len - 1] == '-')
            return false;
        text += len;
    }

    if (text[0] != ':')
        return text[0] == 0;
    size_t digits = strspn(text + 1, "0123456789");
    return digits > 0 && digits <= 5 && text[1 + digits] == 0;
}

static bool is_tag(const char *text)
{
    size_t len = strspn(text, WORD ".-");
    return len > 0 && len <= 128 && text[len] == 0 && text[0] != '.' && text[0] != '-';
}

static bool is_digest(const char *text)
{
    return strncmp(text, "sha256:", 7) == 0 && strlen(text) == 71 &&
           strspn(text + 7, "0123456789abcdef") == 64;
}

int image_ref_parse(const char *text, struct image_ref *ret, struct pd_err *e)
{
    struct image_ref r = {0};
    char rest[REF_MAX + 1];

    if (!text[0])
        return pd_fail(e, PD_INVALID, "an image needs a name, such as debian:12");
    if (strlen(text) > REF_MAX)
        return pd_fail(e, PD_INVALID, "an image name of %zu bytes: at most %u", strlen(text),
                       REF_MAX);
    memcpy(rest, text, strlen(text) + 1);

    char *at = strchr(rest, '@');
    if (at) {
        *at = 0;
        if (!is_digest(at + 1))
            return pd_fail(e, PD_INVALID,
                           "image '%.80s': behind @ a digest is wanted, sha256: and 64 of 0-9a-f",
                           text);
        (void)copy(r.digest, sizeof r.digest, at + 1, at + 1 + strlen(at + 1));
    }

    char *slash = strrchr(rest, '/');
    char *colon = strchr(slash ? slash : rest, ':');
    if (colon) {
        *colon = 0;
        if (!is_tag(colon + 1))
            return pd_fail(e, PD_INVALID,
                           "image '%.80s': '%.40s' is no tag: up to 128 of letters, digits, _ . -",
                           text, colon + 1);
        (void)copy(r.tag, sizeof r.tag, colon + 1, colon + 1 + strlen(colon + 1));
    } else if (!r.digest[0]) {
        snprintf(r.tag, sizeof r.tag, "latest");
    }

    const char *path = rest;
    char *first = strchr(rest, '/');
    size_t plain = first ? strcspn(rest, ".:/") : 0;
    bool named = first && (plain < (size_t)(first - rest) || !strncmp(rest, "localhost/", 10));
    if (named) {
        path = first + 1;
        if (!copy(r.registry, sizeof r.registry, rest, first) || !is_registry(r.registry))
            return pd_fail(e, PD_INVALID,
                           "image '%.80s': '%.60s' is no registry: HOST or HOST:PORT", text,
                           r.registry);
    } else {
        snprintf(r.registry, sizeof r.registry, "docker.io");
    }

    bool library = !strcmp(r.registry, "docker.io") && !strchr(path, '/');
    if (!is_repository(path) ||
        (size_t)snprintf(r.repository, sizeof r.repository, "%s%s", library ? "library/" : "",
                         path) >= sizeof r.repository)
        return pd_fail(e, PD_INVALID,
                       "image '%.80s': '%.80s' is no repository: parts of a-z, 0-9 and single . _ "
                       "or - between, divided by /",
                       text, path);

    *ret = r;
    return 0;
}

void image_ref_name(const struct image_ref *r, char out[IMAGE_NAME_MAX])
{
    snprintf(out, IMAGE_NAME_MAX, "%s/%s", r->registry, r->repository);
}

void image_ref_text(const struct image_ref *r, char out[IMAGE_TEXT_MAX])
{
    char name[IMAGE_NAME_MAX];

    image_ref_name(r, name);
    if (r->digest[0])
        snprintf(out, IMAGE_TEXT_MAX, "%s@%s", name, r->digest);
    else
        snprintf(out, IMAGE_TEXT_MAX, "%s:%s", name, r->tag);
}
