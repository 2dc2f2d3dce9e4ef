/* How much the store of images holds, and what goes when that is too much.
 *
 * A layer has a file with the size of its archive, so nobody has to look through its tree. When an
 * image was used last is the time of its record's directory: images_use touches it, and whoever
 * brings the image in. */
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"
#include "jail/images.h"
#include "jail/images_in.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#define IMAGES_MAX 4096u /* that are looked at */

void images_note_use(int records, const char *id)
{
    (void)utimensat(records, id, NULL, AT_SYMLINK_NOFOLLOW);
}

uint64_t images_used_ms(int images, const char *id)
{
    char path[100];
    struct stat st;

    snprintf(path, sizeof path, "records/%.64s", id);
    if (fstatat(images, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    return (uint64_t)st.st_mtim.tv_sec * 1000 + (uint64_t)st.st_mtim.tv_nsec / 1000000;
}

uint64_t images_layer_size(int images, const char *hex)
{
    char path[100], text[24];
    uint64_t size;

    snprintf(path, sizeof path, "layers/%.64s/size", hex);
    auto_fd file = openat(images, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t n = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (n <= 0)
        return 0; /* made before sizes were noted */
    text[n] = 0;
    return parse_u64("size", text, 0, UINT64_MAX, &size, NULL) == 0 ? size : 0;
}

uint64_t images_size(int images)
{
    auto_fd layers = images_dir(images, "layers"), blobs = images_dir(images, "blobs");
    DIR *entries = layers < 0 ? NULL : fdopendir(layers);
    const struct dirent *d;
    struct stat st;
    uint64_t size = 0;

    if (entries)
        fd_take(&layers);
    while (entries && (d = readdir(entries)))
        if (image_is_hex(d->d_name))
            size += images_layer_size(images, d->d_name);
    if (entries)
        closedir(entries);

    auto_fd again = images_dir(images, "blobs");
    entries = again < 0 ? NULL : fdopendir(again);
    if (entries)
        fd_take(&again);
    while (entries && (d = readdir(entries)))
        if (d->d_name[0] != '.' && fstatat(blobs, d->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            size += (uint64_t)st.st_size;
    if (entries)
        closedir(entries);
    return size;
}

struct candidate {
    char id[IMAGE_HEX_LEN + 1];
    uint64_t used_ms;
};

struct candidates {
    int images;
    struct candidate *list;
    unsigned count;
};

/* One image may have several names: it is told once for each, one after the other or not. */
static void note(const char *id, const char *name, void *arg)
{
    struct candidates *c = arg;

    (void)name;
    for (unsigned i = 0; i < c->count; i++)
        if (!strcmp(c->list[i].id, id))
            return;
    if (c->count == IMAGES_MAX)
        return;
    memcpy(c->list[c->count].id, id, IMAGE_HEX_LEN + 1);
    c->list[c->count++].used_ms = images_used_ms(c->images, id);
}

static int older(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return (x->used_ms > y->used_ms) - (x->used_ms < y->used_ms);
}

int images_shrink(int images, uint64_t max, const char *keep,
                  void (*each)(const char *id, void *arg), void *arg, struct pd_err *e)
{
    struct candidates c = {.images = images, .list = calloc(IMAGES_MAX, sizeof *c.list)};
    struct pd_err in_use;

    if (!c.list)
        return pd_fail(e, PD_CAPACITY, "out of memory");
    int failed = images_list(images, note, &c, e);
    qsort(c.list, c.count, sizeof *c.list, older);
    /* What no image has goes before any image does. */
    if (!failed && images_size(images) > max)
        images_drop_layers(images);
    if (!failed && images_size(images) > max)
        images_drop_parts(images);

    for (unsigned i = 0; !failed && i < c.count && images_size(images) > max; i++) {
        if (!strcmp(c.list[i].id, keep))
            continue;
        if (images_remove_id(images, c.list[i].id, &in_use) == 0)
            each(c.list[i].id, arg);
        else if (in_use.code != PD_CONFLICT && in_use.code != PD_NOT_FOUND)
            failed = pd_fail(e, in_use.code, "%s", in_use.msg);
    }
    free(c.list);
    return failed;
}
