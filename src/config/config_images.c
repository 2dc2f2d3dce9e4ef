/* The images that sandboxes may be made from: `images_allowed` of the server, and `tenant_images`,
 * a list of TENANT=PATTERN, which stands in its place for the tenants that it names.
 *
 * Patterns are checked when the configuration is loaded and read again when a request names an
 * image, as the ceilings of tenants are. */
#include "config/config_table.h"

#include "base/banned.h"
#include "base/sha256.h"
#include "wire/image_pattern.h"
#include "wire/image_record.h"
#include "wire/image_ref.h"

#include <stdbool.h>

#define TENANT_MAX   63
#define OWN_REGISTRY ".own.invalid"

/* The pattern in TENANT=PATTERN when the entry is of this tenant; NULL when it is not. */
static const char *pattern_of(const char *entry, const char *tenant)
{
    size_t len = strlen(tenant);
    return !strncmp(entry, tenant, len) && entry[len] == '=' ? entry + len + 1 : NULL;
}

static bool matches(const char *pattern, const struct image_ref *image)
{
    struct image_pattern p;
    return image_pattern_parse(pattern, &p, NULL) == 0 && image_pattern_matches(&p, image);
}

/* The server's own image, to the tag or the digest. */
static bool is_default(const struct config *c, const struct image_ref *image)
{
    struct image_ref own;
    char a[IMAGE_TEXT_MAX], b[IMAGE_TEXT_MAX];

    if (!c->default_image[0] || image_ref_parse(c->default_image, &own, NULL) < 0)
        return false;
    image_ref_text(&own, a);
    image_ref_text(image, b);
    return !strcmp(a, b);
}

/* By its id an image is known to who has no business with its name: there every pattern but `*`
 * means names. */
static bool means(const char *pattern, const char *text, const struct image_ref *image)
{
    bool is_id = !strncmp(text, "sha256:", 7) && image_is_hex(text + 7);
    return is_id ? !strcmp(pattern, "*") : matches(pattern, image);
}

/* ---- images of one tenant ---- */

/* The registry in the names of images that were fetched with a tenant's own credentials: no real
 * one, and nobody else's. */
static void own_registry(const char *tenant, char out[sizeof((struct image_ref *)NULL)->registry])
{
    char hex[SHA256_HEX_SIZE];

    sha256_hex(tenant, strlen(tenant), hex);
    snprintf(out, sizeof((struct image_ref *)NULL)->registry, "%.32s%s", hex, OWN_REGISTRY);
}

bool config_is_own_image(const char *image)
{
    struct image_ref ref;
    if (image_ref_parse(image, &ref, NULL) < 0)
        return false;
    size_t len = strlen(ref.registry), end = strlen(OWN_REGISTRY);
    return len >= end && !strcmp(ref.registry + len - end, OWN_REGISTRY);
}

int config_own_image(const char *tenant, const char *image, char *out, size_t size,
                     struct pd_err *e)
{
    struct image_ref ref;
    if (image_ref_parse(image, &ref, e) < 0)
        return -1;

    /* A port becomes a part that no host's name has. */
    char *port = strchr(ref.registry, ':'), own[sizeof ref.registry];
    if (port)
        *port = '_';
    own_registry(tenant, own);
    int n = snprintf(out, size, "%s/%s/%s%s%s%s%s", own, ref.registry, ref.repository,
                     ref.tag[0] ? ":" : "", ref.tag, ref.digest[0] ? "@" : "", ref.digest);
    if (n < 0 || (size_t)n >= size)
        return pd_fail(e, PD_INVALID, "the name '%.80s' is too long for an image of your own",
                       image);
    return image_ref_parse(out, &ref, e);
}

static bool is_anothers(const char *tenant, const char *image)
{
    struct image_ref ref;
    char own[sizeof ref.registry];

    own_registry(tenant, own);
    return config_is_own_image(image) &&
           (image_ref_parse(image, &ref, NULL) < 0 || strcmp(ref.registry, own) != 0);
}

int config_check_image(const struct config *c, const char *tenant, const char *image,
                       struct pd_err *e)
{
    const char *setting = "images_allowed", *list[CONFIG_LIST_MAX];
    unsigned count = 0;
    struct image_ref ref;

    for (unsigned i = 0; i < c->tenant_images.count; i++)
        if ((list[count] = pattern_of(c->tenant_images.items[i], tenant)))
            count++;
    if (count)
        setting = "tenant_images";
    else
        while (count < c->images_allowed.count) {
            list[count] = c->images_allowed.items[count];
            count++;
        }
    if (is_anothers(tenant, image))
        return pd_fail(e, PD_DENIED, "image '%.80s' was fetched with credentials of another tenant",
                       image);
    if (!image[0] || !count)
        return 0;

    if (image_ref_parse(image, &ref, e) < 0)
        return -1;
    for (unsigned i = 0; i < count; i++)
        if (means(list[i], image, &ref))
            return 0;
    if (is_default(c, &ref))
        return 0;

    char name[IMAGE_NAME_MAX];
    image_ref_name(&ref, name);
    return pd_fail(e, PD_DENIED,
                   "image '%.80s' is not allowed here: no pattern of the setting %s means %.120s",
                   image, setting, name);
}

bool config_allows_image(const struct config *c, const char *image)
{
    if (config_check_image(c, "", image, NULL) == 0)
        return true;

    struct image_ref ref;
    if (image_ref_parse(image, &ref, NULL) < 0)
        return false;
    for (unsigned i = 0; i < c->tenant_images.count; i++) {
        const char *pattern = strchr(c->tenant_images.items[i], '=');
        if (pattern && matches(pattern + 1, &ref))
            return true;
    }
    return false;
}

static int check_registries(const struct config *c, struct pd_err *e)
{
    if (c->registries.count > 32)
        return pd_fail(e, PD_INVALID, "registries: %u of them, at most 32", c->registries.count);
    for (unsigned i = 0; i < c->registries.count; i++) {
        const char *entry = c->registries.items[i], *url = strchr(entry, '=');
        char name[280];
        struct image_ref ref;
        if (url)
            snprintf(name, sizeof name, "%.*s/x", (int)(url - entry), entry);
        bool bad = !url || (strncmp(url, "=http://", 8) && strncmp(url, "=https://", 9)) ||
                   image_ref_parse(name, &ref, NULL) < 0 ||
                   strncmp(ref.registry, entry, (size_t)(url - entry)) != 0;
        if (bad)
            return pd_fail(e, PD_INVALID,
                           "registries: '%.100s' is not NAME=URL, such as "
                           "docker.io=https://mirror.example",
                           entry);
    }
    return 0;
}

int config_check_images(const struct config *c, struct pd_err *e)
{
    if (check_registries(c, e) < 0)
        return -1;

    struct image_pattern unused;

    for (unsigned i = 0; i < c->images_allowed.count; i++)
        if (image_pattern_parse(c->images_allowed.items[i], &unused, e) < 0)
            return pd_wrap(e, "images_allowed");

    for (unsigned i = 0; i < c->tenant_images.count; i++) {
        const char *entry = c->tenant_images.items[i];
        size_t len = strspn(entry, "abcdefghijklmnopqrstuvwxyz0123456789_-");
        if (!len || len > TENANT_MAX || entry[len] != '=')
            return pd_fail(e, PD_INVALID,
                           "tenant_images: '%.100s' is not TENANT=PATTERN, such as acme=debian",
                           entry);
        if (image_pattern_parse(entry + len + 1, &unused, e) < 0)
            return pd_wrap(e, "tenant_images");
    }
    return 0;
}
