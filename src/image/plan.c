/* From the members of an archive to records of its images.
 *
 * Archives of docker have manifest.json, which names members; OCI layouts have index.json, which
 * names digests, by which the members are found. Where both are there, docker's is read: it has the
 * images' whole names. Every text that a digest names must have that digest. */
#include "image/image.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/sha256.h"
#include "image/manifest.h"
#include "wire/image_ref.h"

#include <string.h>

#define DEPTH_MAX 3 /* an index in an index, and the manifest */

/* A text that must have this digest. */
static const struct archive_member *find_text(const struct archive *a, const char *name,
                                              const char *hex, struct pd_err *e)
{
    const struct archive_member *m = archive_find(a, name);
    char found[IMAGE_HEX_LEN + 1];

    if (!m || !m->text) {
        pd_fail(e, PD_INVALID, "the file has no text '%.120s'", name);
        return NULL;
    }
    sha256_hex(m->text, (size_t)m->size, found);
    if (strcmp(found, hex) != 0) {
        pd_fail(e, PD_INVALID, "'%.90s' has the digest sha256:%.64s: it was changed", name, found);
        return NULL;
    }
    return m;
}

static void blob_name(const char *hex, char out[96])
{
    snprintf(out, 96, "blobs/sha256/%.64s", hex);
}

static uint32_t packing_of(const struct archive_member *m)
{
    if (m->size >= 2 && m->start[0] == 0x1f && m->start[1] == 0x8b)
        return IMAGE_GZIP;
    return m->size >= 4 && !memcmp(m->start, "\x28\xb5\x2f\xfd", 4) ? IMAGE_ZSTD : IMAGE_PLAIN;
}

static int put_record(struct buf *out, const struct image_record *r, struct pd_err *e)
{
    auto_buf record = BUF_INIT(IMAGE_RECORD_MAX);

    if (image_record_check(r, e) < 0)
        return -1;
    image_record_encode(&record, r);
    uint32_t len = (uint32_t)record.len;
    if (record.overflow || buf_put(out, &len, sizeof len) < 0 ||
        buf_put(out, record.data, record.len) < 0)
        return pd_fail(e, PD_TOO_LARGE, "the image's configuration is too large");
    return 0;
}

/* A name that is none is left away: the image can be given one. */
static void add_name(struct image_record *r, const char *name)
{
    struct image_ref ref;
    if (name[0] && strpbrk(name, ":/") && r->name_count < IMAGE_NAMES_MAX &&
        image_ref_parse(name, &ref, NULL) == 0 && !ref.digest[0])
        r->names[r->name_count++] = name;
}

/* --- docker save --------------------------------------------------------------------------- */

/* The digest that a member's name promises: HEX.json, or blobs/sha256/HEX; "" when none. */
static void promised_hex(const char *name, char out[IMAGE_HEX_LEN + 1])
{
    const char *base = strrchr(name, '/');
    base = base ? base + 1 : name;

    out[0] = 0;
    if (strspn(base, "0123456789abcdef") == IMAGE_HEX_LEN &&
        (!base[IMAGE_HEX_LEN] || !strcmp(base + IMAGE_HEX_LEN, ".json")))
        snprintf(out, IMAGE_HEX_LEN + 1, "%.64s", base);
}

static int place_saved_layers(const struct archive *a, const struct saved_image *s,
                              struct image_record *r, struct pd_err *e)
{
    if (s->layer_count != r->layer_count)
        return pd_fail(e, PD_INVALID, "manifest.json names %u layers, the configuration %u",
                       s->layer_count, r->layer_count);

    for (uint32_t i = 0; i < s->layer_count; i++) {
        const struct archive_member *m = archive_find(a, s->layers[i]);
        struct image_layer *l = &r->layers[i];
        if (!m)
            return pd_fail(e, PD_INVALID, "the file has no layer '%.120s'", s->layers[i]);

        l->offset = m->offset;
        l->size = m->size;
        l->packing = packing_of(m);
        if (!strncmp(s->layers[i], "blobs/sha256/", 13))
            promised_hex(s->layers[i], l->blob);
    }
    return 0;
}

static int plan_saved_image(const struct archive *a, const struct saved_image *s, struct buf *out,
                            struct pd_err *e)
{
    static struct image_record r;
    struct json_t *hold = NULL;
    char promised[IMAGE_HEX_LEN + 1];

    const struct archive_member *config = archive_find(a, s->config);
    if (!config || !config->text || config->size > MANIFEST_CONFIG_MAX)
        return pd_fail(e, PD_INVALID, "the file has no configuration '%.120s'", s->config);

    r = (struct image_record){0};
    sha256_hex(config->text, (size_t)config->size, r.id);
    promised_hex(s->config, promised);
    if (promised[0] && strcmp(promised, r.id) != 0)
        return pd_fail(e, PD_INVALID, "'%.90s' has the digest sha256:%.64s: it was changed",
                       s->config, r.id);

    int failed = config_read(config->text, (size_t)config->size, &r, &hold, e) < 0 ||
                 place_saved_layers(a, s, &r, e) < 0;
    for (uint32_t i = 0; !failed && i < s->name_count; i++)
        add_name(&r, s->names[i]);
    if (!failed)
        failed = put_record(out, &r, e) < 0;
    manifest_release(hold);
    return failed ? -1 : 0;
}

static int plan_saved(const struct archive *a, const struct archive_member *list, struct buf *out,
                      struct pd_err *e)
{
    static struct saved_image s;
    uint32_t count = 1;

    for (uint32_t i = 0; i < count; i++)
        if (saved_read(list->text, (size_t)list->size, i, &s, &count, e) < 0 ||
            plan_saved_image(a, &s, out, e) < 0)
            return -1;
    return 0;
}

/* --- OCI layouts --------------------------------------------------------------------------- */

static int place_layers(const struct archive *a, const struct manifest *m, struct image_record *r,
                        struct pd_err *e)
{
    if (m->layer_count != r->layer_count)
        return pd_fail(e, PD_INVALID, "the manifest names %u layers, the configuration %u",
                       m->layer_count, r->layer_count);

    for (uint32_t i = 0; i < m->layer_count; i++) {
        struct image_layer l = m->layers[i];
        char name[96];
        blob_name(l.blob, name);
        const struct archive_member *found = archive_find(a, name);
        if (!found)
            return pd_fail(e, PD_INVALID, "the file has no layer '%.90s'", name);
        if (found->size != l.size)
            return pd_fail(e, PD_INVALID,
                           "'%.90s' has %llu bytes, the manifest says %llu: it was changed", name,
                           (unsigned long long)found->size, (unsigned long long)l.size);

        memcpy(l.diff, r->layers[i].diff, sizeof l.diff);
        l.offset = found->offset;
        r->layers[i] = l;
    }
    return 0;
}

static int plan_manifest(const struct archive *a, const struct archive_member *text,
                         const char *image_name, struct buf *out, struct pd_err *e)
{
    static struct manifest m;
    static struct image_record r;
    struct json_t *hold = NULL;
    char name[96];

    if (manifest_read(text->text, (size_t)text->size, &m, e) < 0)
        return -1;
    blob_name(m.config, name);
    const struct archive_member *config = find_text(a, name, m.config, e);
    if (!config)
        return -1;
    if (config->size > MANIFEST_CONFIG_MAX)
        return pd_fail(e, PD_INVALID, "the image's configuration is larger than %u bytes",
                       MANIFEST_CONFIG_MAX);

    r = (struct image_record){0};
    memcpy(r.id, m.config, sizeof r.id);
    int failed = config_read(config->text, (size_t)config->size, &r, &hold, e) < 0 ||
                 place_layers(a, &m, &r, e) < 0;
    add_name(&r, image_name);
    if (!failed)
        failed = put_record(out, &r, e) < 0;
    manifest_release(hold);
    return failed ? -1 : 0;
}

static int plan_descriptor(const struct archive *a, const struct descriptor *d,
                           const char *image_name, const char *machine, int depth, struct buf *out,
                           struct pd_err *e)
{
    struct index x;
    char name[96];

    if (depth == DEPTH_MAX)
        return pd_fail(e, PD_INVALID, "the image's indexes are nested deeper than %d", DEPTH_MAX);
    blob_name(d->digest, name);
    const struct archive_member *text = find_text(a, name, d->digest, e);
    if (!text)
        return -1;
    if (d->kind == DESCRIPTOR_MANIFEST)
        return plan_manifest(a, text, image_name, out, e);

    if (index_read(text->text, (size_t)text->size, &x, e) < 0)
        return -1;
    const struct descriptor *chosen = index_choose(&x, machine, e);
    return chosen ? plan_descriptor(a, chosen, image_name, machine, depth + 1, out, e) : -1;
}

/* Each entry is an image, or one image is there for several machines. */
static int plan_layout(const struct archive *a, const struct archive_member *top,
                       const char *machine, struct buf *out, struct pd_err *e)
{
    static struct index x;

    if (index_read(top->text, (size_t)top->size, &x, e) < 0)
        return -1;
    if (!index_choose(&x, machine, e))
        return -1;
    if (x.count > IMAGE_RECORDS_MAX)
        return pd_fail(e, PD_INVALID, "the file has %u images: at most %u", x.count,
                       IMAGE_RECORDS_MAX);

    for (uint32_t i = 0; i < x.count; i++) {
        struct index one = {.entries = {x.entries[i]}, .count = 1};
        const struct descriptor *d = &x.entries[i];
        if (index_choose(&one, machine, NULL) &&
            plan_descriptor(a, d, d->name, machine, 0, out, e) < 0)
            return -1;
    }
    return 0;
}

int plan_make(const struct archive *a, const char *machine, struct buf *out, struct pd_err *e)
{
    const struct archive_member *saved = archive_find(a, "manifest.json");
    const struct archive_member *layout = archive_find(a, "index.json");

    if (saved && saved->text)
        return plan_saved(a, saved, out, e);
    if (layout && layout->text)
        return plan_layout(a, layout, machine, out, e);
    return pd_fail(e, PD_INVALID,
                   "the file holds no image: it has neither manifest.json (docker save) nor "
                   "index.json (an OCI layout)");
}
