/* The store of images: opening and reading it. images_change.c changes it. */
#include "jail/images.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/images_in.h"
#include "jail/mnt.h"
#include "wire/image_ref.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>

#define ID_SHORT 12u

int images_dir(int images, const char *name)
{
    int dir = openat(images, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return dir < 0 ? -errno : dir;
}

int images_open(int host_root, const char *state_dir, struct pd_err *e)
{
    static const char *const dirs[] = {"images", "images/layers", "images/records", "images/blobs"};
    auto_fd state = mnt_make_dir(host_root, state_dir, 0755);
    int r = state < 0 ? state : 0;

    for (size_t i = 0; r == 0 && i < sizeof dirs / sizeof *dirs; i++)
        if (mkdirat(state, dirs[i], 0700) < 0 && errno != EEXIST)
            r = -errno;
    if (r == 0)
        r = images_dir(state, "images");
    errno = -r;
    return r < 0 ? pd_fail_sys(e, "open the store of images in %.120s", state_dir) : r;
}

int images_open_locked(const char *state_dir, int how, int *ret_lock, struct pd_err *e)
{
    auto_fd host = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    auto_fd images = images_open(host, state_dir, e);
    if (images < 0)
        return -1;

    auto_fd lock = openat(images, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock < 0 || flock(lock, how) < 0)
        return pd_fail_sys(e, "lock the store of images");
    *ret_lock = fd_take(&lock);
    return fd_take(&images);
}

static int fail_without(const char *text, struct pd_err *e)
{
    return pd_fail(e, PD_NOT_FOUND, "there is no image '%.120s': see `paddock image ls`", text);
}

static int open_record(int images, const char *id, struct pd_err *e)
{
    char path[100];

    if (!image_is_hex(id))
        return pd_fail(e, PD_INVALID, "'%.80s' is no id of an image", id);
    snprintf(path, sizeof path, "records/%s", id);
    int dir = images_dir(images, path);
    return dir < 0 ? fail_without(id, e) : dir;
}

static int read_record(int dir, const char *id, struct buf *scratch, struct image_record *ret,
                       struct pd_err *e)
{
    buf_clear(scratch);
    auto_fd file = openat(dir, "record", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    uint8_t *to = buf_reserve(scratch, IMAGE_RECORD_MAX);
    ssize_t n = file < 0 || !to ? -1 : read(file, to, IMAGE_RECORD_MAX);
    if (n < 0)
        return pd_fail_sys(e, "read the record of image %.12s", id);

    scratch->len = (size_t)n;
    if (image_record_decode(scratch->data, scratch->len, ret, e) < 0)
        return pd_wrap(e, "the record of image %.12s", id);
    return strcmp(ret->id, id) == 0
               ? 0
               : pd_fail(e, PD_PROTOCOL, "the record of image %.12s is another's", id);
}

int images_read(int images, const char *id, struct buf *scratch, struct image_record *ret,
                struct pd_err *e)
{
    auto_fd dir = open_record(images, id, e);
    return dir < 0 ? -1 : read_record(dir, id, scratch, ret, e);
}

/* Was it removed while this waited for its lock? */
static int is_still_there(int images, const char *id, int dir)
{
    char path[100];
    struct stat a, b;

    snprintf(path, sizeof path, "records/%s", id);
    return fstat(dir, &a) == 0 && fstatat(images, path, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
           a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

void image_use_done(struct image_use *u)
{
    while (u->tree_count)
        fd_done(&u->trees[--u->tree_count]);
    free(u->env);
    u->env = NULL;
    fd_done(&u->lock);
}

/* Pointers and texts in one piece, so that whoever has it frees it at once. */
static char **copy_env(const struct image_record *r)
{
    size_t size = (r->env_count + 1) * sizeof(char *);
    for (uint32_t i = 0; i < r->env_count; i++)
        size += strlen(r->env[i]) + 1;

    char **env = malloc(size);
    char *at = env ? (char *)(env + r->env_count + 1) : NULL;
    for (uint32_t i = 0; env && i < r->env_count; i++) {
        size_t len = strlen(r->env[i]) + 1;
        env[i] = memcpy(at, r->env[i], len);
        at += len;
    }
    if (env)
        env[r->env_count] = NULL;
    return env;
}

static int open_trees(int images, const struct image_record *r, struct image_use *u,
                      struct pd_err *e)
{
    if (!r->layer_count)
        return pd_fail(e, PD_INVALID, "image %.12s has no layers", r->id);

    for (uint32_t i = 0; i < r->layer_count; i++) {
        char path[100];
        snprintf(path, sizeof path, "layers/%s/tree", r->layers[i].diff);
        int tree = openat(images, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (tree < 0)
            return pd_fail(e, PD_LOST, "layer %.12s of image %.12s is missing: import it again",
                           r->layers[i].diff, r->id);
        u->trees[u->tree_count++] = tree;
    }
    return 0;
}

int images_use(int images, const char *id, struct image_use *ret, struct pd_err *e)
{
    auto_buf scratch = BUF_INIT(2 * IMAGE_RECORD_MAX);
    struct image_record *r = calloc(1, sizeof *r);
    struct image_use u = {.lock = open_record(images, id, e)};
    int failed = u.lock < 0;

    if (!failed && !r)
        failed = pd_fail(e, PD_CAPACITY, "out of memory");
    if (!failed && (flock(u.lock, LOCK_SH | LOCK_NB) < 0 || !is_still_there(images, id, u.lock)))
        failed = pd_fail(e, PD_CONFLICT, "image %.12s is being removed", id);
    if (!failed)
        failed = read_record(u.lock, id, &scratch, r, e) < 0 || open_trees(images, r, &u, e) < 0;
    if (!failed && !(u.env = copy_env(r)))
        failed = pd_fail(e, PD_CAPACITY, "out of memory");

    free(r);
    if (failed) {
        image_use_done(&u);
        return -1;
    }
    (void)futimens(u.lock, NULL); /* whoever makes room asks when that was */
    *ret = u;
    return 0;
}

/* --- names --------------------------------------------------------------------------------- */

int images_read_names(int images, struct buf *out, struct pd_err *e)
{
    auto_fd file = openat(images, "names", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    buf_clear(out);
    if (file < 0)
        return errno == ENOENT ? 0 : pd_fail_sys(e, "read the names of images");

    for (;;) {
        uint8_t *to = buf_reserve(out, IMAGES_NAMES_STEP);
        ssize_t n = to ? read(file, to, IMAGES_NAMES_STEP) : -1;
        if (n < 0)
            return pd_fail_sys(e, "read the names of images");
        out->len += (size_t)n;
        if ((size_t)n < IMAGES_NAMES_STEP) /* a file's last bytes: a look behind them takes room */
            return 0;
    }
}

int images_next_name(const struct buf *names, size_t *at, struct images_line *ret)
{
    const char *text = (const char *)names->data;

    while (*at < names->len) {
        const char *line = text + *at, *end = memchr(line, '\n', names->len - *at);
        size_t len = end ? (size_t)(end - line) : names->len - *at;
        *at += len + 1;

        /* A line that is none was not written here. */
        if (len < IMAGE_HEX_LEN + 2 || len >= IMAGE_HEX_LEN + 1 + sizeof ret->name)
            continue;
        memcpy(ret->id, line, IMAGE_HEX_LEN);
        ret->id[IMAGE_HEX_LEN] = 0;
        memcpy(ret->name, line + IMAGE_HEX_LEN + 1, len - IMAGE_HEX_LEN - 1);
        ret->name[len - IMAGE_HEX_LEN - 1] = 0;
        if (image_is_hex(ret->id))
            return 1;
    }
    return 0;
}

int images_is_id(const char **text)
{
    int prefixed = !strncmp(*text, "sha256:", 7);
    const char *hex = *text + (prefixed ? 7 : 0);
    size_t len = strspn(hex, "0123456789abcdef");

    if (hex[len] || len > IMAGE_HEX_LEN || len < ID_SHORT)
        return 0;
    *text = hex;
    return 1;
}

static int find_name(int images, const char *text, char ret_id[IMAGE_HEX_LEN + 1], struct pd_err *e)
{
    auto_buf names = BUF_INIT(IMAGES_NAMES_MAX);
    struct images_line line;
    struct image_ref ref;
    char full[IMAGE_TEXT_MAX];
    size_t at = 0;

    if (image_ref_parse(text, &ref, e) < 0 || images_read_names(images, &names, e) < 0)
        return -1;
    image_ref_text(&ref, full);
    while (images_next_name(&names, &at, &line))
        if (!strcmp(line.name, full)) {
            memcpy(ret_id, line.id, sizeof line.id);
            return 0;
        }
    return fail_without(text, e);
}

static int find_id(int images, const char *text, char ret_id[IMAGE_HEX_LEN + 1], struct pd_err *e)
{
    auto_fd records = images_dir(images, "records");
    DIR *entries = records < 0 ? NULL : fdopendir(records);
    unsigned found = 0;
    if (!entries)
        return pd_fail_sys(e, "list the images");
    fd_take(&records);

    const struct dirent *d;
    while ((d = readdir(entries)))
        if (image_is_hex(d->d_name) && !strncmp(d->d_name, text, strlen(text))) {
            memcpy(ret_id, d->d_name, IMAGE_HEX_LEN + 1);
            found++;
        }
    closedir(entries);
    if (found > 1)
        return pd_fail(e, PD_INVALID, "'%.80s' is the beginning of %u ids: give more of it", text,
                       found);
    return found ? 0 : fail_without(text, e);
}

int images_find(int images, const char *text, char ret_id[IMAGE_HEX_LEN + 1], struct pd_err *e)
{
    const char *id = text;
    return images_is_id(&id) ? find_id(images, id, ret_id, e) : find_name(images, text, ret_id, e);
}

int images_resolve(int images, const char *text, char ret_id[IMAGE_HEX_LEN + 1], struct pd_err *e)
{
    if (strncmp(text, "sha256:", 7) != 0 || !image_is_hex(text + 7))
        return find_name(images, text, ret_id, e);
    memcpy(ret_id, text + 7, IMAGE_HEX_LEN + 1);
    return 0;
}

static unsigned list_names(const struct buf *names, const char *id,
                           void (*each)(const char *id, const char *name, void *arg), void *arg)
{
    struct images_line line;
    unsigned count = 0;

    for (size_t at = 0; images_next_name(names, &at, &line);)
        if (!strcmp(line.id, id)) {
            each(id, line.name, arg);
            count++;
        }
    return count;
}

int images_list(int images, void (*each)(const char *id, const char *name, void *arg), void *arg,
                struct pd_err *e)
{
    auto_buf names = BUF_INIT(IMAGES_NAMES_MAX);
    auto_fd records = images_dir(images, "records");
    if (images_read_names(images, &names, e) < 0)
        return -1;

    DIR *entries = records < 0 ? NULL : fdopendir(records);
    if (!entries)
        return pd_fail_sys(e, "list the images");
    fd_take(&records);

    const struct dirent *d;
    while ((d = readdir(entries)))
        if (image_is_hex(d->d_name) && !list_names(&names, d->d_name, each, arg))
            each(d->d_name, "", arg);
    closedir(entries);
    return 0;
}
