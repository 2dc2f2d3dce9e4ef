/* Changes of the store of images: layers, records and names come under another name first and are
 * renamed when they are on disk; what is removed is renamed first and deleted then. What a killed
 * process has left is not locked any more, and the next one deletes it. */
#include "jail/images.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/images_in.h"
#include "jail/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>

/* A name that no layer and no record has. */
static void new_name(char name[IMAGES_PLACE_MAX])
{
    unsigned long long number;
    random_bytes(&number, sizeof number);
    snprintf(name, IMAGES_PLACE_MAX, ".new-%016llx", number);
}

static int make_place(int dir, char name[IMAGES_PLACE_MAX], struct pd_err *e)
{
    new_name(name);
    if (mkdirat(dir, name, 0700) < 0)
        return pd_fail_sys(e, "make a place in the store of images");
    auto_fd place = images_dir(dir, name);
    if (place < 0 || flock(place, LOCK_EX | LOCK_NB) < 0)
        return pd_fail_sys(e, "lock a place in the store of images");
    return fd_take(&place);
}

static int write_file(int dir, const char *name, const void *data, size_t len, struct pd_err *e)
{
    auto_fd file = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    int r = file < 0 ? -errno : fd_write_all(file, data, len);
    if (r == 0 && fsync(file) < 0)
        r = -errno;
    errno = -r;
    return r < 0 ? pd_fail_sys(e, "write to the store of images") : 0;
}

int images_has_layer(int images, const char *hex)
{
    char path[100];
    struct stat st;

    snprintf(path, sizeof path, "layers/%s", hex);
    return fstatat(images, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

int images_layer_begin(int images, char name[IMAGES_PLACE_MAX], struct pd_err *e)
{
    auto_fd layers = images_dir(images, "layers");
    auto_fd place = layers < 0 ? -1 : make_place(layers, name, e);
    if (layers < 0)
        return pd_fail_sys(e, "open the store's layers");
    if (place < 0)
        return -1;
    if (mkdirat(place, "tree", 0755) < 0)
        return pd_fail_sys(e, "make a place for a layer");
    return fd_take(&place);
}

int images_layer_finish(int images, const char *name, const char *hex, uint64_t size,
                        struct pd_err *e)
{
    auto_fd layers = images_dir(images, "layers");
    auto_fd place = layers < 0 ? -1 : images_dir(layers, name);
    char text[24];

    snprintf(text, sizeof text, "%" PRIu64, size);
    if (place < 0)
        return pd_fail_sys(e, "open layer %.12s", hex);
    if (write_file(place, "size", text, strlen(text), e) < 0)
        return -1;

    /* All of its files are on disk before it has its name. */
    if (layers < 0 || syncfs(layers) < 0)
        return pd_fail_sys(e, "write layer %.12s to the disk", hex);
    if (renameat(layers, name, layers, hex) < 0) {
        if (errno != EEXIST && errno != ENOTEMPTY)
            return pd_fail_sys(e, "name layer %.12s", hex);
        images_layer_drop(images, name); /* another import was quicker */
        return 0;
    }
    return fsync(layers) < 0 ? pd_fail_sys(e, "write layer %.12s to the disk", hex) : 0;
}

static void drop_unlocked(int dir)
{
    auto_fd copy = images_dir(dir, ".");
    DIR *entries = copy < 0 ? NULL : fdopendir(copy);
    if (!entries)
        return;
    fd_take(&copy);

    const struct dirent *d;
    while ((d = readdir(entries))) {
        if (strncmp(d->d_name, ".new-", 5) != 0)
            continue;
        auto_fd place = images_dir(dir, d->d_name);
        if (place >= 0 && flock(place, LOCK_EX | LOCK_NB) == 0)
            (void)store_remove_tree(dir, d->d_name);
    }
    closedir(entries);
}

void images_layer_drop(int images, const char *name)
{
    auto_fd layers = images_dir(images, "layers"), records = images_dir(images, "records");

    if (name) {
        (void)store_remove_tree(layers, name);
        return;
    }
    drop_unlocked(layers);
    drop_unlocked(records);
}

static void part_path(const char *blob, char out[100])
{
    snprintf(out, 100, "blobs/%.64s.part", blob);
}

int images_part_open(int images, const char *blob, struct pd_err *e)
{
    char path[100];
    struct stat st;

    part_path(blob, path);
    for (;;) {
        auto_fd part = openat(images, path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (part < 0 || flock(part, LOCK_EX) < 0 || fstat(part, &st) < 0)
            return pd_fail_sys(e, "open a place for what a registry sends");
        if (st.st_nlink) /* else whoever had it has used it up */
            return fd_take(&part);
    }
}

void images_part_drop(int images, const char *blob)
{
    char path[100];
    part_path(blob, path);
    (void)unlinkat(images, path, 0);
}

int images_keep(int images, const struct image_record *r, struct pd_err *e)
{
    auto_buf bytes = BUF_INIT(IMAGE_RECORD_MAX);
    auto_fd records = images_dir(images, "records");
    char name[IMAGES_PLACE_MAX];

    image_record_encode(&bytes, r);
    if (bytes.overflow || records < 0)
        return pd_fail(e, PD_TOO_LARGE, "the record of image %.12s cannot be kept", r->id);
    auto_fd place = make_place(records, name, e);
    if (place < 0)
        return -1;

    int failed = write_file(place, "record", bytes.data, bytes.len, e);
    /* The same image may be there: its record says the same. */
    if (!failed && renameat(records, name, records, r->id) < 0 && errno != EEXIST &&
        errno != ENOTEMPTY)
        failed = pd_fail_sys(e, "keep image %.12s", r->id);
    (void)store_remove_tree(records, name);
    images_note_use(records, r->id);
    if (!failed && fsync(records) < 0)
        failed = pd_fail_sys(e, "keep image %.12s", r->id);
    return failed;
}

/* What the file of names is to have no more, and one line that it has besides. */
struct names_change {
    const char *name, *id; /* the lines of these go; "": of none */
    const char *added_id;  /* NULL: nothing is added */
    const char *added_name;
};

/* The lines that stay, the oldest first. Of the image that gets a name the oldest ones of too many
 * go. */
static void filter_names(const struct buf *names, const struct names_change *c, struct buf *out)
{
    const char *more = c->added_id ? c->added_id : "";
    struct images_line line;
    unsigned had = 0;

    for (size_t at = 0; images_next_name(names, &at, &line);)
        had += !strcmp(line.id, more) && strcmp(line.name, c->name) != 0;

    for (size_t at = 0; images_next_name(names, &at, &line);) {
        if (!strcmp(line.name, c->name) || !strcmp(line.id, c->id))
            continue;
        if (!strcmp(line.id, more) && had >= IMAGES_NAMES_EACH) {
            had--;
            continue;
        }
        buf_printf(out, "%s %s\n", line.id, line.name);
    }
    if (c->added_id)
        buf_printf(out, "%s %s\n", c->added_id, c->added_name);
}

/* Writes the names anew. Where there are more than can be read again the oldest ones go: nobody's
 * names keep others from giving theirs. */
static int rewrite_names(int images, const struct names_change *c, struct pd_err *e)
{
    const size_t most = IMAGES_NAMES_MAX - IMAGES_NAMES_STEP; /* reading ends with a step */
    auto_buf names = BUF_INIT(IMAGES_NAMES_MAX);
    auto_buf out = BUF_INIT(IMAGES_NAMES_MAX + sizeof(struct images_line));

    if (images_read_names(images, &names, e) < 0)
        return -1;
    filter_names(&names, c, &out);
    if (out.overflow)
        return pd_fail(e, PD_CAPACITY, "out of memory");
    if (out.len > most) {
        const uint8_t *line = memchr(out.data + out.len - most - 1, '\n', most);
        out.len -= (size_t)(line + 1 - out.data);
        memmove(out.data, line + 1, out.len);
    }

    if (write_file(images, ".names", out.data ? (const void *)out.data : "", out.len, e) < 0)
        return -1;
    if (renameat(images, ".names", images, "names") < 0 || fsync(images) < 0)
        return pd_fail_sys(e, "write the names of images");
    return 0;
}

int images_name(int images, const char *name, const char *id, struct pd_err *e)
{
    struct image_ref ref;
    char full[IMAGE_TEXT_MAX];

    /* Whoever removes has the whole store; this is for those who name at the same time. */
    auto_fd lock = openat(images, "names.lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock < 0 || flock(lock, LOCK_EX) < 0)
        return pd_fail_sys(e, "lock the names of images");

    if (image_ref_parse(name, &ref, e) < 0)
        return -1;
    image_ref_text(&ref, full);
    return rewrite_names(
        images, &(struct names_change){.name = full, .id = "", .added_id = id, .added_name = full},
        e);
}

/* --- removal ------------------------------------------------------------------------------- */

/* Whether a layer is one of an image that is there. Records that cannot be read keep everything. */
static int is_needed(int images, const char *hex, struct image_record *scratch)
{
    auto_buf bytes = BUF_INIT(2 * IMAGE_RECORD_MAX);
    auto_fd records = images_dir(images, "records");
    DIR *entries = records < 0 ? NULL : fdopendir(records);
    int needed = !entries;
    if (!entries)
        return 1;
    fd_take(&records);

    const struct dirent *d;
    while (!needed && (d = readdir(entries))) {
        if (!image_is_hex(d->d_name))
            continue;
        needed = images_read(images, d->d_name, &bytes, scratch, NULL) < 0;
        for (uint32_t i = 0; !needed && i < scratch->layer_count; i++)
            needed = !strcmp(scratch->layers[i].diff, hex);
    }
    closedir(entries);
    return needed;
}

void images_drop_layers(int images)
{
    auto_fd layers = images_dir(images, "layers"), list = images_dir(images, "layers");
    struct image_record *scratch = calloc(1, sizeof *scratch);
    DIR *entries = list < 0 || !scratch ? NULL : fdopendir(list);
    if (!entries) {
        free(scratch);
        return;
    }
    fd_take(&list);

    const struct dirent *d;
    while ((d = readdir(entries))) {
        char trash[IMAGES_PLACE_MAX];
        new_name(trash);
        if (image_is_hex(d->d_name) && !is_needed(images, d->d_name, scratch) &&
            renameat(layers, d->d_name, layers, trash) == 0)
            (void)store_remove_tree(layers, trash);
    }
    closedir(entries);
    free(scratch);
}

int images_remove_id(int images, const char *id, struct pd_err *e)
{
    auto_fd records = images_dir(images, "records");
    auto_fd dir = records < 0 ? -1 : images_dir(records, id);
    char trash[IMAGES_PLACE_MAX], root[SPEC_NAME_MAX + 1];

    if (dir < 0)
        return pd_fail(e, PD_NOT_FOUND, "there is no image %.12s", id);
    if (flock(dir, LOCK_EX | LOCK_NB) < 0)
        return pd_fail(e, PD_CONFLICT, "image %.12s is in use by a sandbox", id);
    auto_fd roots = openat(images, "../roots", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (roots >= 0 && store_find_based(roots, id, root))
        return pd_fail(e, PD_CONFLICT, "image %.12s is in use by root '%.63s'", id, root);
    if (rewrite_names(images, &(struct names_change){.name = "", .id = id}, e) < 0)
        return -1;
    new_name(trash);
    if (renameat(records, id, records, trash) < 0)
        return pd_fail_sys(e, "remove image %.12s", id);

    (void)store_remove_tree(records, trash);
    images_drop_layers(images);
    return 0;
}

int images_remove(int images, const char *text, struct pd_err *e)
{
    auto_buf names = BUF_INIT(IMAGES_NAMES_MAX);
    struct images_line line;
    struct image_ref ref;
    char id[IMAGE_HEX_LEN + 1], full[IMAGE_TEXT_MAX];
    const char *hex = text;
    unsigned others = 0;

    if (images_find(images, text, id, e) < 0)
        return -1;
    if (images_is_id(&hex))
        return images_remove_id(images, id, e);

    if (image_ref_parse(text, &ref, e) < 0 || images_read_names(images, &names, e) < 0)
        return -1;
    image_ref_text(&ref, full);
    for (size_t at = 0; images_next_name(&names, &at, &line);)
        others += !strcmp(line.id, id) && strcmp(line.name, full) != 0;
    return others ? rewrite_names(images, &(struct names_change){.name = full, .id = ""}, e)
                  : images_remove_id(images, id, e);
}

/* --- pruning ------------------------------------------------------------------------------- */

#define NAMELESS_MAX 4096u

/* The ids of images without a name: a list that is made first, because removals change what is
 * listed. */
struct nameless {
    char (*ids)[IMAGE_HEX_LEN + 1];
    unsigned count;
};

static void note_nameless(const char *id, const char *name, void *arg)
{
    struct nameless *n = arg;
    if (!name[0] && n->count < NAMELESS_MAX)
        memcpy(n->ids[n->count++], id, IMAGE_HEX_LEN + 1);
}

void images_drop_parts(int images)
{
    auto_fd blobs = images_dir(images, "blobs"), list = images_dir(images, "blobs");
    DIR *entries = list < 0 ? NULL : fdopendir(list);
    if (!entries)
        return;
    fd_take(&list);

    const struct dirent *d;
    while ((d = readdir(entries))) {
        auto_fd part = openat(blobs, d->d_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        if (part >= 0 && flock(part, LOCK_EX | LOCK_NB) == 0)
            (void)unlinkat(blobs, d->d_name, 0);
    }
    closedir(entries);
}

int images_prune(int images, void (*each)(const char *id, void *arg), void *arg, struct pd_err *e)
{
    struct nameless n = {.ids = calloc(NAMELESS_MAX, sizeof *n.ids)};
    struct pd_err in_use;

    if (!n.ids)
        return pd_fail(e, PD_CAPACITY, "out of memory");
    int failed = images_list(images, note_nameless, &n, e);
    for (unsigned i = 0; !failed && i < n.count; i++) {
        if (images_remove_id(images, n.ids[i], &in_use) == 0)
            each(n.ids[i], arg);
        else if (in_use.code != PD_CONFLICT)
            failed = pd_fail(e, in_use.code, "%s", in_use.msg);
    }
    free(n.ids);
    if (failed)
        return -1;

    images_layer_drop(images, NULL);
    images_drop_layers(images);
    images_drop_parts(images);
    return 0;
}
