/* Reads the texts that describe an image. Each reader takes a whole JSON text and copies what it
 * needs into fixed places; only the configuration's strings stay where jansson has put them. */
#include "image/manifest.h"

#include "base/banned.h"
#include "base/err.h"

#include <jansson.h>
#include <string.h>

#define LAYER_SIZE_MAX (INT64_C(1) << 40)

static void json_unref(json_t **j)
{
    json_decref(*j);
}
#define auto_json __attribute__((cleanup(json_unref))) json_t

static json_t *load(const void *json, size_t len, const char *what, struct pd_err *e)
{
    json_error_t error;
    /* A name that is there twice would be read differently by different programs. */
    json_t *j = json_loadb(json, len, JSON_REJECT_DUPLICATES, &error);

    if (!j)
        pd_fail(e, PD_INVALID, "the image's %s is no JSON: %.100s", what, error.text);
    return j;
}

/* A text without NUL that fits; else -1. */
static int copy_text(char *out, size_t size, const json_t *j)
{
    const char *text = json_string_value(j);
    size_t len = text ? json_string_length(j) : 0;

    if (!text || len >= size || strlen(text) != len)
        return -1;
    memcpy(out, text, len + 1);
    return 0;
}

static int copy_digest(char out[IMAGE_HEX_LEN + 1], const json_t *j, const char *what,
                       struct pd_err *e)
{
    const char *text = json_string_value(j);

    if (!text || strlen(text) != json_string_length(j) || strncmp(text, "sha256:", 7) != 0 ||
        !image_is_hex(text + 7))
        return pd_fail(e, PD_INVALID,
                       "%s: '%.80s' is no digest that is taken: sha256: and 64 of 0-9a-f", what,
                       text ? text : "");
    memcpy(out, text + 7, IMAGE_HEX_LEN + 1);
    return 0;
}

static int copy_size(uint64_t *ret, const json_t *j, const char *what, struct pd_err *e)
{
    json_int_t n = json_integer_value(j);

    if (!json_is_integer(j) || n < 0 || n > LAYER_SIZE_MAX)
        return pd_fail(e, PD_INVALID, "%s: a size that is no number, or too large", what);
    *ret = (uint64_t)n;
    return 0;
}

static bool is_one_of(const char *text, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(text, list[i]))
            return true;
    return false;
}

static bool is_index_type(const char *type)
{
    static const char *const types[] = {
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json"};
    return is_one_of(type, types, 2);
}

static bool is_manifest_type(const char *type)
{
    static const char *const types[] = {"application/vnd.oci.image.manifest.v1+json",
                                        "application/vnd.docker.distribution.manifest.v2+json"};
    return is_one_of(type, types, 2);
}

/* containerd writes whole names, others a tag or a whole name. */
static void copy_name(char *out, size_t size, const json_t *annotations)
{
    out[0] = 0;
    if (copy_text(out, size, json_object_get(annotations, "io.containerd.image.name")) == 0)
        return;
    if (copy_text(out, size, json_object_get(annotations, "org.opencontainers.image.ref.name")) < 0)
        out[0] = 0;
}

static int read_descriptor(const json_t *j, struct descriptor *d, struct pd_err *e)
{
    const json_t *platform = json_object_get(j, "platform");

    if (copy_digest(d->digest, json_object_get(j, "digest"), "the image's index", e) < 0 ||
        copy_size(&d->size, json_object_get(j, "size"), "the image's index", e) < 0)
        return -1;

    d->has_platform = json_is_object(platform);
    if (d->has_platform && (copy_text(d->os, sizeof d->os, json_object_get(platform, "os")) < 0 ||
                            copy_text(d->architecture, sizeof d->architecture,
                                      json_object_get(platform, "architecture")) < 0))
        return pd_fail(e, PD_INVALID, "the image's index: a platform without os or architecture");
    copy_name(d->name, sizeof d->name, json_object_get(j, "annotations"));
    return 0;
}

int index_read(const void *json, size_t len, struct index *ret, struct pd_err *e)
{
    auto_json *j = load(json, len, "index", e);
    const json_t *list = json_object_get(j, "manifests");

    if (!j)
        return -1;
    if (!json_is_array(list) || json_integer_value(json_object_get(j, "schemaVersion")) != 2)
        return pd_fail(e, PD_INVALID, "the image's index is of no kind that is known");
    if (json_array_size(list) > MANIFEST_ENTRIES_MAX)
        return pd_fail(e, PD_INVALID, "the image's index has %zu entries: at most %u",
                       json_array_size(list), MANIFEST_ENTRIES_MAX);

    memset(ret, 0, sizeof *ret);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *type = json_string_value(json_object_get(entry, "mediaType"));
        struct descriptor *d = &ret->entries[ret->count];
        if (!type || (!is_index_type(type) && !is_manifest_type(type)))
            continue;

        d->kind = is_index_type(type) ? DESCRIPTOR_INDEX : DESCRIPTOR_MANIFEST;
        if (read_descriptor(entry, d, e) < 0)
            return -1;
        ret->count++;
    }
    return 0;
}

static const char *architecture_of(const char *machine)
{
    return !strcmp(machine, "x86_64") ? "amd64" : !strcmp(machine, "aarch64") ? "arm64" : machine;
}

const struct descriptor *index_choose(const struct index *x, const char *machine, struct pd_err *e)
{
    char others[120] = "";

    for (uint32_t i = 0; i < x->count; i++) {
        const struct descriptor *d = &x->entries[i];
        if (!d->has_platform ||
            (!strcmp(d->os, "linux") && !strcmp(d->architecture, architecture_of(machine))))
            return d;

        size_t at = strlen(others);
        snprintf(others + at, sizeof others - at, " %.20s/%.20s", d->os, d->architecture);
    }

    pd_fail(e, PD_UNSUPPORTED, "the image is not for linux/%.20s; it is for:%.110s",
            architecture_of(machine), others[0] ? others : " nothing");
    return NULL;
}

/* --- manifests ----------------------------------------------------------------------------- */

static int packing_of(const char *type, uint32_t *ret, struct pd_err *e)
{
    static const struct {
        const char *type;
        enum image_packing packing;
    } known[] = {
        {"application/vnd.oci.image.layer.v1.tar", IMAGE_PLAIN},
        {"application/vnd.oci.image.layer.v1.tar+gzip", IMAGE_GZIP},
        {"application/vnd.oci.image.layer.v1.tar+zstd", IMAGE_ZSTD},
        {"application/vnd.docker.image.rootfs.diff.tar", IMAGE_PLAIN},
        {"application/vnd.docker.image.rootfs.diff.tar.gzip", IMAGE_GZIP},
        {"application/vnd.docker.image.rootfs.diff.tar.zstd", IMAGE_ZSTD},
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(type, known[i].type)) {
            *ret = known[i].packing;
            return 0;
        }
    return pd_fail(e, PD_UNSUPPORTED, "a layer of the kind '%.100s' is not understood", type);
}

static int read_layer(const json_t *j, struct image_layer *l, struct pd_err *e)
{
    const char *type = json_string_value(json_object_get(j, "mediaType"));

    memset(l, 0, sizeof *l);
    if (packing_of(type ? type : "", &l->packing, e) < 0)
        return -1;
    if (copy_digest(l->blob, json_object_get(j, "digest"), "a layer", e) < 0)
        return -1;
    return copy_size(&l->size, json_object_get(j, "size"), "a layer", e);
}

static int check_layer_count(size_t count, struct pd_err *e)
{
    return count <= IMAGE_LAYERS_MAX
               ? 0
               : pd_fail(e, PD_INVALID, "the image has %zu layers: at most %u", count,
                         IMAGE_LAYERS_MAX);
}

int manifest_read(const void *json, size_t len, struct manifest *ret, struct pd_err *e)
{
    auto_json *j = load(json, len, "manifest", e);
    const json_t *config = json_object_get(j, "config"), *layers = json_object_get(j, "layers");

    if (!j)
        return -1;
    if (json_integer_value(json_object_get(j, "schemaVersion")) != 2 || !json_is_object(config) ||
        !json_is_array(layers))
        return pd_fail(e, PD_INVALID, "the image's manifest is of no kind that is known");
    if (check_layer_count(json_array_size(layers), e) < 0)
        return -1;

    struct manifest m = {.layer_count = (uint32_t)json_array_size(layers)};
    if (copy_digest(m.config, json_object_get(config, "digest"), "the image's configuration", e) <
            0 ||
        copy_size(&m.config_size, json_object_get(config, "size"), "the image's configuration", e) <
            0)
        return -1;
    for (uint32_t i = 0; i < m.layer_count; i++)
        if (read_layer(json_array_get(layers, i), &m.layers[i], e) < 0)
            return -1;
    *ret = m;
    return 0;
}

static int read_saved(const json_t *j, struct saved_image *s, struct pd_err *e)
{
    const json_t *layers = json_object_get(j, "Layers"), *tags = json_object_get(j, "RepoTags");

    memset(s, 0, sizeof *s);
    if (copy_text(s->config, sizeof s->config, json_object_get(j, "Config")) < 0 ||
        !json_is_array(layers))
        return pd_fail(e, PD_INVALID, "manifest.json: an image without Config and Layers");
    if (check_layer_count(json_array_size(layers), e) < 0)
        return -1;

    s->layer_count = (uint32_t)json_array_size(layers);
    for (uint32_t i = 0; i < s->layer_count; i++)
        if (copy_text(s->layers[i], sizeof s->layers[i], json_array_get(layers, i)) < 0)
            return pd_fail(e, PD_INVALID, "manifest.json: layer %u is no name of a file", i);

    for (size_t i = 0; i < json_array_size(tags) && s->name_count < IMAGE_NAMES_MAX; i++)
        if (copy_text(s->names[s->name_count], sizeof *s->names, json_array_get(tags, i)) == 0)
            s->name_count++;
    return 0;
}

int saved_read(const void *json, size_t len, uint32_t at, struct saved_image *ret,
               uint32_t *ret_count, struct pd_err *e)
{
    auto_json *j = load(json, len, "manifest.json", e);
    size_t count = json_array_size(j);

    if (!j)
        return -1;
    if (!json_is_array(j) || !count || count > IMAGE_RECORDS_MAX)
        return pd_fail(e, PD_INVALID, "manifest.json: a list of 1 to %u images is wanted",
                       IMAGE_RECORDS_MAX);
    if (at >= count)
        return pd_fail(e, PD_INVALID, "manifest.json: no image %u", at);
    if (read_saved(json_array_get(j, at), ret, e) < 0)
        return -1;
    *ret_count = (uint32_t)count;
    return 0;
}

/* --- configurations ------------------------------------------------------------------------ */

static const char *text_of(const json_t *object, const char *key, int *bad)
{
    const json_t *j = json_object_get(object, key);
    const char *text = json_string_value(j);

    if (!j || json_is_null(j))
        return "";
    if (!text || strlen(text) != json_string_length(j) || strlen(text) > IMAGE_STRING_MAX) {
        *bad = 1;
        return "";
    }
    return text;
}

static int read_strings(const json_t *object, const char *key, const char **list, uint32_t *count,
                        uint32_t max, struct pd_err *e)
{
    const json_t *j = json_object_get(object, key);

    *count = 0;
    if (!j || json_is_null(j))
        return 0;
    if (!json_is_array(j) || json_array_size(j) > max)
        return pd_fail(e, PD_INVALID, "the image's %s: a list of at most %u texts is wanted", key,
                       max);

    for (uint32_t i = 0; i < (uint32_t)json_array_size(j); i++) {
        const json_t *word = json_array_get(j, i);
        const char *text = json_string_value(word);
        if (!text || strlen(text) != json_string_length(word) || strlen(text) > IMAGE_STRING_MAX)
            return pd_fail(e, PD_INVALID, "the image's %s: entry %u is no text, or too long", key,
                           i);
        list[(*count)++] = text;
    }
    return 0;
}

static int read_diffs(const json_t *j, struct image_record *r, struct pd_err *e)
{
    const json_t *list = json_object_get(json_object_get(j, "rootfs"), "diff_ids");

    if (!json_is_array(list))
        return pd_fail(e, PD_INVALID, "the image's configuration has no list of layers (diff_ids)");
    if (check_layer_count(json_array_size(list), e) < 0)
        return -1;

    r->layer_count = (uint32_t)json_array_size(list);
    for (uint32_t i = 0; i < r->layer_count; i++)
        if (copy_digest(r->layers[i].diff, json_array_get(list, i), "diff_ids", e) < 0)
            return -1;
    return 0;
}

int config_read(const void *json, size_t len, struct image_record *r, struct json_t **ret_hold,
                struct pd_err *e)
{
    auto_json *j = load(json, len, "configuration", e);
    const json_t *c = json_object_get(j, "config");
    int bad = 0;

    if (!j || read_diffs(j, r, e) < 0 ||
        read_strings(c, "Env", r->env, &r->env_count, IMAGE_ENV_MAX, e) < 0 ||
        read_strings(c, "Entrypoint", r->entrypoint, &r->entrypoint_count, IMAGE_WORDS_MAX, e) <
            0 ||
        read_strings(c, "Cmd", r->cmd, &r->cmd_count, IMAGE_WORDS_MAX, e) < 0)
        return -1;

    r->workdir = text_of(c, "WorkingDir", &bad);
    r->user = text_of(c, "User", &bad);
    r->created = text_of(j, "created", &bad);

    const char *os = text_of(j, "os", &bad);
    r->platform = text_of(j, "architecture", &bad);
    if (bad)
        return pd_fail(e, PD_INVALID, "the image's configuration has a text that is none");
    if (os[0] && strcmp(os, "linux") != 0)
        return pd_fail(e, PD_UNSUPPORTED, "the image is for %.60s: only those for linux run", os);

    *ret_hold = j;
    j = NULL;
    return 0;
}

void manifest_release(struct json_t *hold)
{
    json_decref(hold);
}
