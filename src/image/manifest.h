/* manifest: the JSON texts that describe an image, of docker's and of OCI's make. Pure.
 *
 * They are strangers' texts. Digests are checked before they become names of files, lists are
 * bounded, media types that are not known are refused by name. Of digests only sha256 is taken. */
#pragma once

#include "wire/image_record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t;
struct pd_err;

#define MANIFEST_TEXT_MAX    (4u << 20)
#define MANIFEST_CONFIG_MAX  (1u << 20)
#define MANIFEST_ENTRIES_MAX 64u
#define MANIFEST_PATH_MAX    255u

enum descriptor_kind { DESCRIPTOR_MANIFEST, DESCRIPTOR_INDEX };

/* Something that an index names. */
struct descriptor {
    enum descriptor_kind kind;
    char digest[IMAGE_HEX_LEN + 1];
    uint64_t size;
    bool has_platform;
    char os[32], architecture[32];
    char name[256]; /* the image's, or "" */
};

struct index {
    struct descriptor entries[MANIFEST_ENTRIES_MAX];
    uint32_t count;
};
/* Entries of other kinds are left out. PD_INVALID when it is no index, or has too many. */
int index_read(const void *json, size_t len, struct index *ret, struct pd_err *e);
/* The one for a machine like `machine` ("x86_64", as uname has it); one entry without a platform is
 * for all. NULL with PD_UNSUPPORTED, which names those that there are. */
const struct descriptor *index_choose(const struct index *x, const char *machine, struct pd_err *e);

/* A manifest: its configuration and its layers, the lowest first. Of each layer `blob`, `size` and
 * `packing` are known. */
struct manifest {
    char config[IMAGE_HEX_LEN + 1];
    uint64_t config_size;
    struct image_layer layers[IMAGE_LAYERS_MAX];
    uint32_t layer_count;
};
int manifest_read(const void *json, size_t len, struct manifest *ret, struct pd_err *e);

/* One image of an archive that `docker save` made: members of the archive, by name. */
struct saved_image {
    char config[MANIFEST_PATH_MAX + 1];
    char layers[IMAGE_LAYERS_MAX][MANIFEST_PATH_MAX + 1];
    uint32_t layer_count;
    char names[IMAGE_NAMES_MAX][256];
    uint32_t name_count;
};
/* The image at this place; *ret_count says how many there are. */
int saved_read(const void *json, size_t len, uint32_t at, struct saved_image *ret,
               uint32_t *ret_count, struct pd_err *e);

/* A configuration: fills env, entrypoint, cmd, workdir, user, platform, created and the layers'
 * `diff` of *r, and its layer_count. The strings live as long as *ret_hold, which
 * manifest_release frees. */
int config_read(const void *json, size_t len, struct image_record *r, struct json_t **ret_hold,
                struct pd_err *e);
void manifest_release(struct json_t *hold);
