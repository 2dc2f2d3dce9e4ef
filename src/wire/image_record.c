/* Records of images: one visitor for both ways, as messages have it (codec.h), and the checks that
 * every record passes before anybody uses it. */
#include "wire/image_record.h"

#include "base/banned.h"
#include "base/err.h"
#include "wire/codec.h"
#include "wire/image_ref.h"

#define VERSION 1u

const char *image_packing_name(uint32_t packing)
{
    static const char *const names[] = {"plain", "gzip", "zstd"};
    return packing < IMAGE_PACKING_COUNT ? names[packing] : "plain";
}

int image_is_hex(const char *text)
{
    return strspn(text, "0123456789abcdef") == IMAGE_HEX_LEN && !text[IMAGE_HEX_LEN];
}

static void field_hex(struct codec *c, char hex[IMAGE_HEX_LEN + 1])
{
    field_bytes(c, hex, IMAGE_HEX_LEN + 1);
    if (!c->out && hex[IMAGE_HEX_LEN])
        c->bad = 1;
}

static void field_strings(struct codec *c, const char **list, uint32_t *count, uint32_t max)
{
    field_enum(c, count, max + 1);
    for (uint32_t i = 0; !c->bad && i < *count; i++)
        field_str(c, &list[i], IMAGE_STRING_MAX);
}

static void visit_layer(struct codec *c, struct image_layer *l)
{
    field_hex(c, l->diff);
    field_hex(c, l->blob);
    field_u64(c, &l->offset);
    field_u64(c, &l->size);
    field_enum(c, &l->packing, IMAGE_PACKING_COUNT);
}

static void visit_record(struct codec *c, struct image_record *r)
{
    uint32_t version = VERSION;

    field_u32(c, &version);
    if (version != VERSION)
        c->bad = 1;
    field_hex(c, r->id);
    field_strings(c, r->names, &r->name_count, IMAGE_NAMES_MAX);
    field_strings(c, r->env, &r->env_count, IMAGE_ENV_MAX);
    field_strings(c, r->entrypoint, &r->entrypoint_count, IMAGE_WORDS_MAX);
    field_strings(c, r->cmd, &r->cmd_count, IMAGE_WORDS_MAX);
    field_str(c, &r->workdir, IMAGE_STRING_MAX);
    field_str(c, &r->user, 255);
    field_str(c, &r->platform, 255);
    field_str(c, &r->created, 255);

    field_enum(c, &r->layer_count, IMAGE_LAYERS_MAX + 1);
    for (uint32_t i = 0; !c->bad && i < r->layer_count; i++)
        visit_layer(c, &r->layers[i]);
}

/* Printed in lists, and by others in logs: no control characters. */
static int is_printable(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return 0;
    return 1;
}

static int check_layers(const struct image_record *r, struct pd_err *e)
{
    for (uint32_t i = 0; i < r->layer_count; i++) {
        const struct image_layer *l = &r->layers[i];
        if (!image_is_hex(l->diff))
            return pd_fail(e, PD_INVALID, "layer %u: '%.70s' is no sha256 digest", i, l->diff);
        if (l->blob[0] && !image_is_hex(l->blob))
            return pd_fail(e, PD_INVALID, "layer %u: '%.70s' is no sha256 digest", i, l->blob);
        if (l->offset > INT64_MAX || l->size > INT64_MAX - l->offset)
            return pd_fail(e, PD_INVALID, "layer %u: larger than any file", i);
    }
    return 0;
}

int image_record_check(const struct image_record *r, struct pd_err *e)
{
    struct image_ref ref;

    if (!image_is_hex(r->id))
        return pd_fail(e, PD_INVALID, "'%.70s' is no id of an image", r->id);
    for (uint32_t i = 0; i < r->name_count; i++)
        if (image_ref_parse(r->names[i], &ref, e) < 0)
            return -1;

    for (uint32_t i = 0; i < r->env_count; i++) {
        const char *equals = strchr(r->env[i], '=');
        if (!equals || equals == r->env[i])
            return pd_fail(e, PD_INVALID, "the image's variable '%.60s' is not NAME=VALUE",
                           r->env[i]);
    }

    if (r->workdir[0] && r->workdir[0] != '/')
        return pd_fail(e, PD_INVALID, "the image's directory '%.100s' is not an absolute path",
                       r->workdir);
    if (!is_printable(r->user) || !is_printable(r->platform) || !is_printable(r->created))
        return pd_fail(e, PD_INVALID, "the image's user, platform or time has control characters");
    return check_layers(r, e);
}

void image_record_encode(struct buf *b, const struct image_record *r)
{
    struct codec c = {.out = b};
    struct image_record copy = *r;
    visit_record(&c, &copy);
}

int image_record_decode(const uint8_t *data, size_t len, struct image_record *ret, struct pd_err *e)
{
    struct image_record r = {0};
    struct codec c = {.in = data, .left = len};

    visit_record(&c, &r);
    if (c.bad || c.left)
        return pd_fail(e, PD_PROTOCOL, "not the record of an image: %zu bytes", len);
    if (image_record_check(&r, e) < 0)
        return -1;
    *ret = r;
    return 0;
}
