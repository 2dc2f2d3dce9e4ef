/* What `paddock image --json` writes: a line of JSON for each thing, and an error as the last one.
 * Servers read it (provider/keeper_images.c). */
#include "cli/image.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "jail/images.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#define LINE_MAX_BYTES (4u * IMAGE_RECORD_MAX)

static const char *const states[] = {"waiting", "downloading", "unpacking", "done", "shared"};

static int put_line(struct buf *out, struct pd_err *e)
{
    buf_puts(out, "\n");
    int r = out->overflow ? -E2BIG : fd_write_all(STDOUT_FILENO, out->data, out->len);
    errno = -r;
    return r < 0 ? pd_fail_sys(e, "tell how far it is") : 0;
}

int image_tell_news(const struct image_news *n, struct pd_err *e)
{
    auto_buf out = BUF_INIT(4096);
    struct json j = JSON_INIT(&out);

    json_open(&j, '{');
    json_member_cstr(&j, "layer", n->layer);
    json_member_cstr(&j, "state", states[n->state]);
    json_member_uint(&j, "done", n->done);
    json_member_uint(&j, "total", n->total);
    json_member_uint(&j, "layers_done", n->layers_done);
    json_member_uint(&j, "layers", n->layers);
    json_member_uint(&j, "bytes_done", n->bytes_done);
    json_member_uint(&j, "bytes", n->bytes);
    json_close(&j, '}');
    return put_line(&out, e);
}

void image_tell_kept(bool json, const char *id, const char *name)
{
    auto_buf out = BUF_INIT(LINE_MAX_BYTES);
    struct json j = JSON_INIT(&out);
    struct pd_err ignored;
    char full[IMAGE_HEX_LEN + 8];

    snprintf(full, sizeof full, "sha256:%.64s", id);
    if (!json) {
        printf("%s %s\n", full, name ? name : "<none>");
        return;
    }
    json_open(&j, '{');
    json_member_cstr(&j, "id", full);
    json_member_cstr(&j, "name", name);
    json_close(&j, '}');
    (void)put_line(&out, &ignored);
}

void image_tell_removed(const char *id, void *arg)
{
    auto_buf out = BUF_INIT(4096);
    struct json j = JSON_INIT(&out);
    struct pd_err ignored;
    char full[IMAGE_HEX_LEN + 8];

    snprintf(full, sizeof full, "sha256:%.64s", id);
    if (!*(const bool *)arg) {
        printf("%s\n", full);
        return;
    }
    json_open(&j, '{');
    json_member_cstr(&j, "removed", full);
    json_close(&j, '}');
    (void)put_line(&out, &ignored);
}

void image_tell_error(const struct pd_err *why)
{
    auto_buf out = BUF_INIT(4096);
    struct json j = JSON_INIT(&out);
    struct pd_err ignored;

    json_open(&j, '{');
    json_key(&j, "error");
    json_open(&j, '{');
    json_member_cstr(&j, "code", pd_code_name(why->code));
    json_member_cstr(&j, "message", why->msg);
    json_close(&j, '}');
    json_close(&j, '}');
    (void)put_line(&out, &ignored);
}

/* --- images --------------------------------------------------------------------------------- */

static void put_words(struct json *j, const char *key, const char *const *words, uint32_t count)
{
    json_key(j, key);
    json_open(j, '[');
    for (uint32_t i = 0; i < count; i++)
        json_cstr(j, words[i]);
    json_close(j, ']');
}

struct names_of {
    const char *id;
    struct json *json;
};

static void put_name(const char *id, const char *name, void *arg)
{
    const struct names_of *n = arg;
    if (name[0] && !strcmp(n->id, id))
        json_cstr(n->json, name);
}

/* The layers' sizes are of what they unpack to. */
static void put_layers(struct json *j, int images, const struct image_record *r)
{
    uint64_t size = 0;

    json_key(j, "layers");
    json_open(j, '[');
    for (uint32_t i = 0; i < r->layer_count; i++) {
        json_cstr(j, r->layers[i].diff);
        size += images_layer_size(images, r->layers[i].diff);
    }
    json_close(j, ']');
    json_member_uint(j, "size_bytes", size);
}

/* Its line, but for the end. */
static int make_line(int images, const char *id, struct buf *out, struct pd_err *e)
{
    auto_buf scratch = BUF_INIT(2 * IMAGE_RECORD_MAX);
    struct image_record *r = calloc(1, sizeof *r);
    struct json j = JSON_INIT(out);

    if (!r)
        return pd_fail(e, PD_CAPACITY, "out of memory");
    if (images_read(images, id, &scratch, r, e) < 0) {
        free(r);
        return -1;
    }

    json_open(&j, '{');
    json_member_cstr(&j, "id", id);
    json_key(&j, "names");
    json_open(&j, '[');
    struct names_of names = {.id = id, .json = &j};
    int failed = images_list(images, put_name, &names, e);
    json_close(&j, ']');
    put_words(&j, "env", r->env, r->env_count);
    put_words(&j, "entrypoint", r->entrypoint, r->entrypoint_count);
    put_words(&j, "cmd", r->cmd, r->cmd_count);
    json_member_cstr(&j, "workdir", r->workdir);
    json_member_cstr(&j, "user", r->user);
    json_member_cstr(&j, "architecture", r->platform);
    json_member_cstr(&j, "created", r->created);
    json_member_uint(&j, "used_ms", images_used_ms(images, id));
    put_layers(&j, images, r);
    json_close(&j, '}');
    free(r);
    if (!failed && out->overflow)
        failed = pd_fail(e, PD_TOO_LARGE, "image %.12s has too much to tell of", id);
    return failed;
}

int image_tell_one(int images, const char *id, struct pd_err *e)
{
    auto_buf out = BUF_INIT(LINE_MAX_BYTES);
    return make_line(images, id, &out, e) < 0 ? -1 : put_line(&out, e);
}

/* Images as they come: one with several names is told where its first one is. */
struct listing {
    int images;
    char (*ids)[IMAGE_HEX_LEN + 1];
    unsigned count;
};

#define LISTED_MAX    4096u
#define ROOM_PATIENCE (100 * NS_PER_MS)
#define ROOM_LOOK_MS  10

static void note_id(const char *id, const char *name, void *arg)
{
    struct listing *l = arg;

    (void)name;
    for (unsigned i = 0; i < l->count; i++)
        if (!strcmp(l->ids[i], id))
            return;
    if (l->count < LISTED_MAX)
        memcpy(l->ids[l->count++], id, IMAGE_HEX_LEN + 1);
}

int image_tell_all(int images, struct pd_err *e)
{
    struct listing l = {.images = images, .ids = calloc(LISTED_MAX, sizeof *l.ids)};
    if (!l.ids)
        return pd_fail(e, PD_CAPACITY, "out of memory");

    int failed = images_list(images, note_id, &l, e);
    for (unsigned i = 0; !failed && i < l.count; i++) {
        auto_buf out = BUF_INIT(LINE_MAX_BYTES);
        struct pd_err ignored;

        /* One that cannot be told keeps nobody from the others. */
        if (make_line(images, l.ids[i], &out, &ignored) == 0)
            failed = put_line(&out, e);
    }
    free(l.ids);
    return failed;
}

/* --- room ----------------------------------------------------------------------------------- */

int image_too_large(uint64_t size, uint64_t max, struct pd_err *e)
{
    return pd_fail(e, PD_TOO_LARGE,
                   "the image takes %" PRIu64 " bytes, and the store of images may have %" PRIu64
                   " (image_store_max)",
                   size, max);
}

static void ignore(const char *id, void *arg)
{
    (void)id;
    (void)arg;
}

int image_make_room(const char *state, uint64_t max, const char *keep, struct pd_err *e)
{
    auto_buf scratch = BUF_INIT(2 * IMAGE_RECORD_MAX);
    struct image_record *r = max ? calloc(1, sizeof *r) : NULL;
    struct pd_err busy;
    auto_fd lock = -1;
    uint64_t size = 0;

    if (!max)
        return 0;
    if (!r)
        return pd_fail(e, PD_CAPACITY, "out of memory");
    /* Others bring images in at this moment: the last of them makes room, also if it fails. Who
     * only reads the store is done soon. */
    deadline end = deadline_in(ROOM_PATIENCE);
    auto_fd images = images_open_locked(state, LOCK_EX | LOCK_NB, &lock, &busy);
    while (images < 0 && busy.sys == EWOULDBLOCK && !deadline_passed(end)) {
        (void)poll(NULL, 0, ROOM_LOOK_MS);
        images = images_open_locked(state, LOCK_EX | LOCK_NB, &lock, &busy);
    }
    int failed = images < 0 ? 0 : images_shrink(images, max, keep, ignore, NULL, e);
    if (images >= 0 && !failed && keep[0] && images_read(images, keep, &scratch, r, &busy) == 0)
        for (uint32_t i = 0; i < r->layer_count; i++)
            size += images_layer_size(images, r->layers[i].diff);
    free(r);
    if (failed || size <= max)
        return failed;

    if (images_remove(images, keep, &busy) < 0) /* it was there before, and somebody uses it */
        return 0;
    return image_too_large(size, max, e);
}
