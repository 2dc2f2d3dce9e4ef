/* Named roots: opening, making, marking, listing and removing them.
 *
 * A root's directory is locked by its user; the descriptor with the lock goes to the keeper, which
 * closes it when the jail is dead. A tree is made under another name and renamed when it is
 * complete. A removal renames the root first, to a name that only trash has, and deletes then; what
 * a removal or a copy that died has left is deleted by the next removal, or when a copier starts.
 * Marks are empty directories beside the tree or image. */
#include "jail/store.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/keeper.h"
#include "jail/mnt.h"
#include "jail/quota.h"
#include "jail/skeleton.h"
#include "jail/store_in.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

/* Marks: directories in a root's. */
#define KEPT   "kept"   /* see store_keep_root */
#define DOOMED "doomed" /* see store_doom_root */

const char *store_kind_name(enum store_kind k)
{
    return k == STORE_QUOTA ? "quota" : k == STORE_IMAGE ? "image" : "plain";
}

enum store_kind store_probe(int dir, int rootless)
{
    if (rootless)
        return STORE_PLAIN;
    return quota_available(dir) ? STORE_QUOTA : STORE_IMAGE;
}

static int open_dir(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* Opens <dir>/<name>, making it 0700 if it is not there. */
static int make_private_dir(int dir, const char *name)
{
    return mkdirat(dir, name, 0700) < 0 && errno != EEXIST ? -errno : open_dir(dir, name);
}

int store_open_dir(int host_root, const char *state_dir, struct pd_err *e)
{
    auto_fd state = mnt_make_dir(host_root, state_dir, 0755);
    int roots = state < 0 ? state : open_dir(state, "roots");
    if (roots == -ENOENT && state >= 0)
        roots = make_private_dir(state, "roots");
    if (roots >= 0)
        return roots;
    errno = -roots;
    return pd_fail_sys(e, "open the store %.120s", state_dir);
}

/* A detached mount of a freshly made file system or of a directory, idmapped. */
static int with_ids(int mount, int userns, struct pd_err *e)
{
    if (userns < 0)
        return 0;

    int r = mnt_set_idmap(mount, userns);
    if (r == 0)
        return 0;

    errno = -r;
    return pd_fail_sys(e, "show the root's ids in the jail's range (idmapped mount)");
}

static int mount_tree(int root, int userns, struct pd_err *e)
{
    int mount =
        userns < 0 ? mnt_clone(root, "tree", 0) : mnt_clone_idmapped(root, "tree", 0, userns);
    if (mount >= 0)
        return mount;
    errno = -mount;
    return pd_fail_sys(e, "mount the root's directory (idmapped mount)");
}

/* Makes <root>/tree with its quota and skeleton, complete or not at all. */
static int make_tree(int root, enum store_kind kind, int layered, const struct limits *l,
                     int rootless, struct pd_err *e)
{
    int r = store_remove_tree(root, "tree.new");
    if (r == 0 || r == -ENOENT)
        r = mkdirat(root, "tree.new", 0755) < 0 ? -errno : 0;

    auto_fd tree = r < 0 ? -1 : openat(root, "tree.new", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r == 0 && tree < 0)
        r = -errno;

    if (r == 0 && kind == STORE_QUOTA)
        r = quota_limit(tree, l->disk, l->files + SKELETON_FILES);
    if (r == 0 && !layered)
        r = skeleton_populate(tree, rootless ? SKELETON_AS_IS : 0);
    if (r == 0 && renameat(root, "tree.new", root, "tree") < 0)
        r = -errno;

    if (r == 0)
        return 0;
    errno = -r;
    return pd_fail_sys(e, "make the root's directory");
}

static int fill_image(int mount, int layered, struct pd_err *e)
{
    /* "lost+found" is only there in a fresh image; e2fsck makes it again if it ever needs it. */
    if (unlinkat(mount, "lost+found", AT_REMOVEDIR) < 0)
        return errno == ENOENT ? 0 : pd_fail_sys(e, "clear the root's image");
    int r = layered ? 0 : skeleton_populate(mount, 0);
    errno = -r;
    return r < 0 ? pd_fail_sys(e, "fill the root's skeleton") : 0;
}

/* The image, mounted and filled; `fresh`: made first. */
static int open_image(int roots, int root, const char *name, int fresh, int layered,
                      const struct limits *l, struct pd_err *e)
{
    int from_blank = 0;

    if (fresh && image_make(roots, root, l, &from_blank, e) < 0) {
        (void)unlinkat(roots, name, AT_REMOVEDIR); /* if nothing is in it yet */
        return -1;
    }

    /* The sandboxes of a server end with the host anyway. */
    int must_last = strncmp(name, KEEPER_OWNED_ROOT, strlen(KEEPER_OWNED_ROOT)) != 0;
    auto_fd mount = image_mount(root, l, must_last, e);
    if (mount >= 0 && fill_image(mount, layered, e) == 0)
        return fd_take(&mount);
    if (!from_blank)
        return -1;

    /* Something is wrong with the blank one: once more without it. */
    fd_done(&mount);
    image_forget_blank(roots, l);
    (void)unlinkat(root, "image", 0);
    return open_image(roots, root, name, 1, layered, l, e);
}

void store_base_of(int root, char ret[STORE_BASE_MAX])
{
    ssize_t n = readlinkat(root, STORE_BASE, ret, STORE_BASE_MAX - 1);
    ret[n > 0 ? n : 0] = 0;
}

int store_read_base(int roots, const char *name, char ret[STORE_BASE_MAX])
{
    char path[SPEC_NAME_MAX + sizeof "/" STORE_BASE];

    snprintf(path, sizeof path, "%.*s/" STORE_BASE, SPEC_NAME_MAX, name);
    ssize_t n = readlinkat(roots, path, ret, STORE_BASE_MAX - 1);
    ret[n > 0 ? n : 0] = 0;
    return n > 0;
}

int store_find_based(int roots, const char *id, char ret_name[SPEC_NAME_MAX + 1])
{
    auto_fd copy = openat(roots, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = copy < 0 ? NULL : fdopendir(copy);
    int found = 0;
    if (!entries)
        return 0;
    fd_take(&copy);

    const struct dirent *d;
    while (!found && (d = readdir(entries))) {
        char base[STORE_BASE_MAX] = "";
        if (d->d_name[0] == '.') /* trash, or a copy of one that is found */
            continue;
        auto_fd root = openat(roots, d->d_name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (root >= 0)
            store_base_of(root, base);
        found = !strcmp(base, id);
        if (found)
            snprintf(ret_name, SPEC_NAME_MAX + 1, "%.*s", SPEC_NAME_MAX, d->d_name);
    }
    closedir(entries);
    return found;
}

/* What a root is on top of never changes under what was written. */
static int check_base(int root, const char *base, int has_data, const char *name, struct pd_err *e)
{
    char old[STORE_BASE_MAX];

    store_base_of(root, old);
    if (!strcmp(old, base))
        return 0;
    if (has_data)
        return pd_fail(e, PD_CONFLICT,
                       "the root '%s' was made %s%.12s: use it the same way, or remove it", name,
                       old[0] ? "from image " : "without an image", old);
    if ((unlinkat(root, STORE_BASE, 0) < 0 && errno != ENOENT) ||
        (base[0] && symlinkat(base, root, STORE_BASE) < 0))
        return pd_fail_sys(e, "note the image of root '%s'", name);
    return 0;
}

/* A root that is the upper part of an overlay is nothing by itself, and the other way round. */
static int check_layered(int root, int layered, const char *base, const char *name, int has_data,
                         struct pd_err *e)
{
    struct stat st;
    int was_layered = fstatat(root, "layered", &st, AT_SYMLINK_NOFOLLOW) == 0;

    if (check_base(root, base, has_data, name, e) < 0)
        return -1;
    if (has_data && was_layered != layered)
        return pd_fail(e, PD_CONFLICT, "the root '%s' was made %s --root: use it the same way",
                       name, was_layered ? "with" : "without");
    if (layered && !was_layered && mkdirat(root, "layered", 0700) < 0)
        return pd_fail_sys(e, "mark the root '%s'", name);
    return 0;
}

int store_open_root(const struct template *t, int roots, const char *name, int layered,
                    const char *base, const struct limits *l, int userns, int *ret_mount,
                    int *ret_lock, struct pd_err *e)
{
    auto_fd root = make_private_dir(roots, name);
    if (root < 0) {
        errno = -root;
        return pd_fail_sys(e, "open the root '%s'", name);
    }

    if (flock(root, LOCK_EX | LOCK_NB) < 0)
        return pd_fail(e, PD_CONFLICT, "the root '%s' is in use by another jail", name);

    struct stat st;
    int has_image = fstatat(root, "image", &st, AT_SYMLINK_NOFOLLOW) == 0;
    int has_tree = fstatat(root, "tree", &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (check_layered(root, layered, base, name, has_image || has_tree, e) < 0)
        return -1;
    enum store_kind kind = has_image ? STORE_IMAGE : store_probe(root, t->rootless);

    auto_fd mount = -1;
    if (has_tree || (!has_image && kind != STORE_IMAGE)) {
        if (!has_tree && make_tree(root, kind, layered, l, t->rootless, e) < 0)
            return -1;
        mount = mount_tree(root, userns, e);
    } else {
        mount = open_image(roots, root, name, !has_image, layered, l, e);
        if (mount >= 0 && with_ids(mount, userns, e) < 0)
            return -1;
    }

    if (mount < 0)
        return -1;
    *ret_mount = fd_take(&mount);
    *ret_lock = fd_take(&root);
    return 0;
}

/* A removal or a copy in progress has its directory locked: one that is not locked is trash. */
static int is_trash(int roots, const char *name)
{
    if (strncmp(name, STORE_TRASH, strlen(STORE_TRASH)) != 0 &&
        strncmp(name, STORE_COPYING, strlen(STORE_COPYING)) != 0)
        return 0;

    auto_fd root = openat(roots, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return root < 0 || flock(root, LOCK_EX | LOCK_NB) == 0;
}

void store_empty_trash(int roots)
{
    auto_fd copy = openat(roots, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = copy < 0 ? NULL : fdopendir(copy);
    if (!entries)
        return;
    fd_take(&copy);

    const struct dirent *d;
    while ((d = readdir(entries)))
        if (is_trash(roots, d->d_name))
            (void)store_remove_tree(roots, d->d_name);

    closedir(entries);
}

int store_remove_root(const char *state_dir, const char *name, struct pd_err *e)
{
    auto_fd host = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    auto_fd roots = store_open_dir(host, state_dir, e);
    if (roots < 0)
        return -1;

    store_empty_trash(roots);
    auto_fd root = openat(roots, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root < 0)
        return pd_fail(e, PD_NOT_FOUND, "there is no root '%.64s'", name);

    auto_fd image = openat(root, "image", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (flock(root, LOCK_EX | LOCK_NB) < 0 || (image >= 0 && image_lock(image, LOCK_EX) < 0))
        return pd_fail(e, PD_CONFLICT, "the root '%.64s' is in use by a jail", name);

    char trash[128];
    snprintf(trash, sizeof trash, STORE_TRASH "%.64s-%d", name, (int)getpid());
    if (renameat(roots, name, roots, trash) < 0)
        return pd_fail_sys(e, "remove the root '%.64s'", name);

    int r = store_remove_tree(roots, trash);
    errno = -r;
    return r < 0 ? pd_fail_sys(e, "delete what the root '%.64s' held", name) : 0;
}

static int open_for_mark(const char *state_dir, const char *name, struct pd_err *e)
{
    auto_fd host = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    auto_fd roots = store_open_dir(host, state_dir, e);
    if (roots < 0)
        return -1;

    auto_fd root = openat(roots, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root < 0)
        return pd_fail(e, PD_NOT_FOUND, "there is no root '%.64s'", name);
    return fd_take(&root);
}

int store_keep_root(const char *state_dir, const char *name, struct pd_err *e)
{
    auto_fd root = open_for_mark(state_dir, name, e);
    if (root < 0)
        return -1;
    if ((mkdirat(root, KEPT, 0700) < 0 && errno != EEXIST) || fsync(root) < 0)
        return pd_fail_sys(e, "mark the root '%.64s'", name);
    return 0;
}

void store_unkeep_root(const char *state_dir, const char *name)
{
    char path[SPEC_PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/roots/%s/" KEPT, state_dir, name);
    if (!strchr(name, '/') && length > 0 && (size_t)length < sizeof path)
        (void)rmdir(path); /* most roots have no such mark */
}

int store_doom_root(const char *state_dir, const char *name, struct pd_err *e)
{
    auto_fd root = open_for_mark(state_dir, name, e);
    if (root < 0)
        return -1;
    if (mkdirat(root, DOOMED, 0700) < 0 && errno != EEXIST)
        return pd_fail_sys(e, "mark the root '%.64s'", name);
    return 0;
}

static int has_mark(const char *state_dir, const char *name, const char *mark)
{
    struct pd_err e;
    struct stat st;
    auto_fd root = open_for_mark(state_dir, name, &e);
    return root >= 0 && fstatat(root, mark, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

int store_is_kept(const char *state_dir, const char *name)
{
    return has_mark(state_dir, name, KEPT);
}

int store_is_doomed(const char *state_dir, const char *name)
{
    return has_mark(state_dir, name, DOOMED);
}

int store_list_roots(const char *state_dir,
                     void (*each)(const char *name, const char *kind, void *arg), void *arg,
                     struct pd_err *e)
{
    auto_fd host = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    auto_fd roots = store_open_dir(host, state_dir, e);
    if (roots < 0)
        return -1;

    DIR *entries = fdopendir(roots);
    if (!entries)
        return pd_fail_sys(e, "list the roots");
    fd_take(&roots);

    const struct dirent *d;
    while ((d = readdir(entries))) {
        if (d->d_name[0] == '.')
            continue;

        char path[300];
        struct stat st;
        snprintf(path, sizeof path, "%s/image", d->d_name);
        int image = fstatat(dirfd(entries), path, &st, AT_SYMLINK_NOFOLLOW) == 0;
        each(d->d_name, image ? "image" : "directory", arg);
    }

    closedir(entries);
    return 0;
}
