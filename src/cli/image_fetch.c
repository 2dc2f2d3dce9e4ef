/* One layer of a pull: fetched, unpacked, kept.
 *
 *   registry ─▶ paddock-remote registry, nobody ─▶ here: bounds ─▶ blobs/HEX.part ─▶ image_layer.c
 *
 * What has come of a layer is kept in a file that is locked while somebody fetches it, so that two
 * who want the same layer fetch it once; whoever finds such a file goes on where it ends. Whether
 * the bytes are right, is found out where they are unpacked; a file whose bytes are not is
 * deleted. */
#include "cli/image.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/jail.h"
#include "jail/keeper.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK (256u << 10)

/* What a registry sends of a layer, behind what is there. */
static int take_blob(struct image_fetch *tell, struct image_reader *from, int part, uint64_t size,
                     struct pd_err *e)
{
    static uint8_t bytes[CHUNK];

    for (;;) {
        ssize_t n = read(from->out, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return pd_fail_sys(e, "read what the registry sends");
        if (n == 0)
            return 0;

        if ((uint64_t)n > size - tell->done)
            return pd_fail(e, PD_INVALID,
                           "the registry sends more than the %" PRIu64 " bytes of it", size);
        int r = fd_write_all(part, bytes, (size_t)n);
        errno = -r;
        if (r < 0)
            return pd_fail_sys(e, "keep what the registry sends");
        tell->done += (uint64_t)n;
    }
}

static int fetch(const struct image_source *s, struct image_fetch *tell, int part,
                 const struct image_layer *l, struct pd_err *e)
{
    struct image_reader puller;
    struct stat st;
    char from[24];

    if (fstat(part, &st) < 0)
        return pd_fail_sys(e, "look at what has come of the layer");
    uint64_t have = (uint64_t)st.st_size <= l->size ? (uint64_t)st.st_size : 0;
    if (ftruncate(part, (off_t)have) < 0 || lseek(part, (off_t)have, SEEK_SET) < 0)
        return pd_fail_sys(e, "go on with what has come of the layer");
    tell->done = have;
    tell->state = IMAGE_DOWNLOADS;
    if (have == l->size)
        return 0;

    snprintf(from, sizeof from, "%" PRIu64, have);
    const char *const words[] = {"registry", "blob", s->ref, s->registry, l->blob, from, NULL};
    if (image_puller_start(&puller, words, s->auth, e) < 0)
        return -1;
    struct pd_err reason;
    int failed = take_blob(tell, &puller, part, l->size, e);
    if (image_reader_finish(&puller, &reason) < 0 && !failed) {
        *e = reason;
        failed = -1;
    }
    if (!failed && fstat(part, &st) == 0 && (uint64_t)st.st_size != l->size)
        failed = pd_fail(e, PD_INVALID, "the registry sends less than the %" PRIu64 " bytes of it",
                         l->size);
    return failed;
}

/* Of a keeper of its own, because a jail is made and a layer unpacked beside other layers. */
static int unpack(const struct image_source *s, int images, int part, const struct image_layer *l,
                  struct pd_err *e)
{
    struct keeper_link keeper = {.sock = -1};
    int failed = keeper_start_private(&keeper, e) < 0 ||
                 image_layer_make(&keeper, images, s->state, part, l, e) < 0;
    keeper_link_done(&keeper);
    return failed ? -1 : 0;
}

int image_fetch_layer(const struct image_source *s, int images, const struct image_layer *l,
                      struct image_fetch *tell, struct pd_err *e)
{
    auto_fd part = images_part_open(images, l->blob, e);
    if (part < 0)
        return -1;

    /* Somebody else may have been quicker, while this waited. */
    if (images_has_layer(images, l->diff)) {
        images_part_drop(images, l->blob);
        tell->state = IMAGE_SHARED;
        return 0;
    }
    if (fetch(s, tell, part, l, e) < 0)
        return pd_wrap(e, "layer %.12s", l->blob);

    tell->state = IMAGE_UNPACKS;
    int failed = unpack(s, images, part, l, e);
    images_part_drop(images, l->blob);
    if (!failed)
        tell->state = IMAGE_DONE;
    return failed;
}
