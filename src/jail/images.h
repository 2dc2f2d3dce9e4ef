/* images: the store of images, on disk (docs/images.md).
 *
 *   <state>/images/layers/HEX/tree    a layer, unpacked: the name is the digest of its archive
 *   <state>/images/layers/HEX/size    how many bytes that archive has
 *   <state>/images/records/HEX/record what an image is made of; the name is its id
 *   <state>/images/blobs/HEX.part     packed bytes of a layer, as far as they have come
 *   <state>/images/names              "ID REFERENCE" lines
 *   <state>/images/lock               held shared by imports, alone by removals
 *
 * All of it is 0700. A layer or record is made under a name with a dot in front and renamed when it
 * is complete and on disk: what has its final name is whole, whenever whoever made it was killed. A
 * sandbox holds a shared lock on the record of its image; a removal wants it alone. A named root
 * on top of an image keeps it by a note of its own (store.h), also while nobody uses the root. */
#pragma once

#include "wire/image_record.h"

struct pd_err;

/* The store as a descriptor; what is missing of it is made. */
int images_open(int host_root, const char *state_dir, struct pd_err *e);
/* The same in the host's namespaces, with the store's lock: LOCK_SH, LOCK_EX. Waits for it. */
int images_open_locked(const char *state_dir, int how, int *ret_lock, struct pd_err *e);

/* Reads a record by id; its strings live in `scratch`. PD_NOT_FOUND. */
int images_read(int images, const char *id, struct buf *scratch, struct image_record *ret,
                struct pd_err *e);
/* What a jail has of an image. */
struct image_use {
    int trees[IMAGE_LAYERS_MAX]; /* the layers' directories (O_PATH), the lowest first */
    unsigned tree_count;
    char **env; /* the image's variables, in one piece of memory with a NULL behind the last */
    int lock;   /* keeps the image from being removed */
};
int images_use(int images, const char *id, struct image_use *ret, struct pd_err *e);
void image_use_done(struct image_use *u);

/* The id that a text means: a name, or an id or the first 12 or more characters of one, with or
 * without "sha256:". PD_NOT_FOUND, PD_INVALID. */
int images_find(int images, const char *text, char ret_id[IMAGE_HEX_LEN + 1], struct pd_err *e);
/* The same for programs: "sha256:" and a whole id, or a name, and nothing that could be both. */
int images_resolve(int images, const char *text, char ret_id[IMAGE_HEX_LEN + 1], struct pd_err *e);
/* Calls `each` for every image and name; `name` is "" for an image without one. */
int images_list(int images, void (*each)(const char *id, const char *name, void *arg), void *arg,
                struct pd_err *e);

/* Is the layer there? */
int images_has_layer(int images, const char *hex);
/* Makes a place for a layer: its name in `name`, a descriptor that is locked. The layer goes into
 * its directory "tree". */
#define IMAGES_PLACE_MAX 64
int images_layer_begin(int images, char name[IMAGES_PLACE_MAX], struct pd_err *e);
/* Gives it its name when all is on disk, and notes how much it unpacks to. One that is there
 * already is as good. */
int images_layer_finish(int images, const char *name, const char *hex, uint64_t size,
                        struct pd_err *e);
/* Deletes a place that will not be finished, or what others left that were killed (NULL). */
void images_layer_drop(int images, const char *name);

/* The file in which the packed bytes of a layer come, for reading and writing, locked: waits while
 * somebody else has it. What is in it came first. */
int images_part_open(int images, const char *blob, struct pd_err *e);
/* Deletes it, when it was used or is of no use. */
void images_part_drop(int images, const char *blob);

/* Keeps a record, complete or not at all. Its layers are there. */
int images_keep(int images, const struct image_record *r, struct pd_err *e);
/* Lets a name mean an image, and no longer another one. The store is locked. */
int images_name(int images, const char *name, const char *id, struct pd_err *e);
/* Takes a name away, and with the last one, or by id, the image and the layers that no other has.
 * PD_CONFLICT while a sandbox uses it. The store is locked alone. */
int images_remove(int images, const char *text, struct pd_err *e);
/* Removes the images that have no name and that nobody uses, calling `each` for every one; layers
 * that no image has; and what has come of layers that nobody is fetching. The store is locked
 * alone. */
int images_prune(int images, void (*each)(const char *id, void *arg), void *arg, struct pd_err *e);

/* --- room (images_room.c) ---- */

/* What a layer unpacks to, and all that the store holds, with what has come of layers: bytes of
 * archives, each layer once. */
uint64_t images_layer_size(int images, const char *hex);
uint64_t images_size(int images);
/* When an image was last used or brought in, in milliseconds of the wall clock; 0: not known. */
uint64_t images_used_ms(int images, const char *id);
/* Removes layers that no image has, what has come of layers, and then images that nobody uses, the
 * one that was used longest ago first, until the store holds at most `max`; of `keep` ("": none)
 * nothing goes. Calls `each` for every one. What is left may be more: images in use stay. The store
 * is locked alone. */
int images_shrink(int images, uint64_t max, const char *keep,
                  void (*each)(const char *id, void *arg), void *arg, struct pd_err *e);
