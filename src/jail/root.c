/* The part of a root that is made before its jail: mounts that no namespace has yet. A tmpfs with
 * the skeleton, or a root of the store, or an overlay's layers; a devpts; copies of what the caller
 * binds. What lies on the host is opened while the builder visits the host's view, and nowhere
 * else. root_mount.c puts all of it together. */
#include "jail/root.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/identity.h"
#include "jail/images.h"
#include "jail/mnt.h"
#include "jail/skeleton.h"
#include "jail/store.h"
#include "jail/walls.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>

#define GID_TTY 5u

static int fail(struct pd_err *e, int negative_errno, const char *what)
{
    errno = -negative_errno;
    return pd_fail_sys(e, "%s", what);
}

void root_done(struct root *r)
{
    fd_done(&r->top);
    for (unsigned i = 0; i < r->lower_count; i++)
        fd_done(&r->lowers[i]);
    r->lower_count = 0;
    fd_done(&r->devpts);
    fd_done(&r->lock);
    fd_done(&r->image_lock);
    free(r->image_env);
    r->image_env = NULL;

    for (unsigned i = 0; i < r->bind_count; i++)
        fd_done(&r->bind_mounts[i]);
    r->bind_count = 0;
    for (size_t i = 0; i < ROOT_NETWORK_FILES; i++)
        fd_done(&r->network_files[i]);
}

/* Files in a tmpfs are memory of the jail. Were the tmpfs as large as the memory limit, a
 * full disk would end processes instead of answering ENOSPC. */
static uint64_t tmpfs_size(const struct limits *l)
{
    if (wall_off("disk"))
        return UINT64_C(1) << 40;
    return l->disk < l->memory / 2 ? l->disk : l->memory / 2;
}

/* The mount options that limits become. */
struct sizes {
    char size[40], inodes[40];
};

static struct sizes sizes_of(const struct limits *l)
{
    struct sizes s;
    uint64_t files = wall_off("files") ? SPEC_FILES_MAX : l->files + SKELETON_FILES;

    snprintf(s.size, sizeof s.size, "size=%" PRIu64, tmpfs_size(l));
    snprintf(s.inodes, sizeof s.inodes, "nr_inodes=%" PRIu64, files);
    return s;
}

int root_resize(pid_t pid, const struct limits *l)
{
    char path[40];
    struct sizes s = sizes_of(l);
    const char *const options[] = {s.size, s.inodes, NULL};

    snprintf(path, sizeof path, "/proc/%d/root", (int)pid);
    return mnt_reconfigure(path, options);
}

static int make_tmpfs(uint32_t slot, const struct limits *l, struct pd_err *e)
{
    char uid[24], gid[24];
    struct sizes s = sizes_of(l);

    uint32_t owner = identity_host_id(slot, UID_ROOT);
    snprintf(uid, sizeof uid, "uid=%u", owner);
    snprintf(gid, sizeof gid, "gid=%u", owner);

    const char *const options[] = {s.size, s.inodes, "mode=0755", uid, gid, NULL};
    int fs = mnt_tmpfs(options, 0);
    return fs < 0 ? fail(e, fs, "make the root's tmpfs") : fs;
}

static int make_root_tmpfs(uint32_t slot, const struct limits *l, struct pd_err *e)
{
    auto_fd fs = make_tmpfs(slot, l, e);
    if (fs < 0)
        return -1;

    uint32_t base = slot == RANGE_NONE ? SKELETON_AS_IS : identity_host_id(slot, UID_ROOT);
    int r = skeleton_populate(fs, base);
    return r < 0 ? fail(e, r, "fill the root's skeleton") : fd_take(&fs);
}

static int make_devpts(uint32_t slot, struct pd_err *e)
{
    char uid[24], gid[24];
    snprintf(uid, sizeof uid, "uid=%u", identity_host_id(slot, UID_USER));
    snprintf(gid, sizeof gid, "gid=%u", identity_host_id(slot, GID_TTY));

    /* The kernel gives 3072 of the machine's 4096 terminals to all mounts but the host's own. With
     * 15 for each, neither a tenant's sandboxes (100 by default) nor all (200) can take them all.
     */
    const char *const options[] = {"max=15", "ptmxmode=0666", "mode=0620", uid, gid, NULL};
    int fs = mnt_filesystem("devpts", options, MNT_DEVS | MNT_NOEXEC);
    return fs < 0 ? fail(e, fs, "make the jail's devpts") : fs;
}

/* One bind: resolved on the host, shown inside as belonging to the sandbox's user. */
static int prepare_bind(struct root *r, const struct template *t, const struct spec_bind *b,
                        int restricted, int userns, struct pd_err *e)
{
    auto_fd source = mnt_open_beneath(t->host_root, b->source, O_PATH);
    struct stat st;

    if (source < 0 || fstat(source, &st) < 0)
        return pd_fail(e, PD_INVALID, "--bind: '%.150s': %s", b->source,
                       strerror(source < 0 ? -source : errno));
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode) && !S_ISSOCK(st.st_mode))
        return pd_fail(e, PD_INVALID,
                       "--bind: '%.150s' is neither a directory, a file nor a socket", b->source);

    unsigned flags = !b->writable ? MNT_RDONLY : restricted ? MNT_NOEXEC : 0;
    auto_fd mount = -1;
    if (!t->rootless) {
        /* The owner of the source is the sandbox's user inside, and what the user makes belongs to
         * that owner outside. Everybody else is nobody. */
        auto_fd map = b->writable == SPEC_BIND_IDS
                          ? fcntl(userns, F_DUPFD_CLOEXEC, 3)
                          : userns_create_single(t->proc, st.st_uid, st.st_gid, r->uid_user, e);
        if (map < 0)
            return -1;
        mount = mnt_clone_idmapped(source, "", flags, map);
    }

    if (mount < 0 && b->writable && !t->rootless)
        return pd_fail(
            e, PD_UNSUPPORTED,
            "--bind: '%.100s': this kernel cannot map the ids of its file system, so the "
            "sandbox could not write there; use another directory, or leave :rw away",
            b->source);
    if (mount < 0) /* the host's ids stay, and rights with them: what others may read, it may */
        mount = mnt_clone(source, "", flags);
    if (mount < 0)
        return fail(e, mount, "--bind: copy the mount");

    r->bind_is_dir[r->bind_count] = S_ISDIR(st.st_mode);
    r->bind_mounts[r->bind_count++] = fd_take(&mount);
    return 0;
}

/* One layer more, on top of those that there are. */
static int add_lower(struct root *r, int source, int userns, struct pd_err *e)
{
    /* An overlay does not look into mounts below its layers. */
    int mount = userns < 0 ? -1 : mnt_clone_idmapped(source, "", MNT_RDONLY | MNT_SINGLE, userns);
    if (mount < 0)
        mount = mnt_clone(source, "", MNT_RDONLY | MNT_SINGLE);
    if (mount < 0)
        return fail(e, mount, "copy the mount of a layer");
    r->lowers[r->lower_count++] = mount;
    return 0;
}

static int prepare_lower(struct root *r, const struct template *t, const char *dir, int userns,
                         struct pd_err *e)
{
    auto_fd source = mnt_open_beneath(t->host_root, dir, O_PATH | O_DIRECTORY);
    if (source < 0)
        return pd_fail(e, PD_INVALID, "--root: '%.150s': %s", dir, strerror(-source));
    return add_lower(r, source, userns, e);
}

/* The image's layers, and `id`, which a named root was made on or will be. What a name means may
 * change later: to a root that exists, it means what it meant then, and a copy of a root needs
 * none. */
static int prepare_image(struct root *r, const struct template *t, const char *state_dir,
                         const struct spec *s, int userns, char id[STORE_BASE_MAX],
                         struct pd_err *e)
{
    if (s->root_dir[0] || s->profile == PROFILE_RESTRICTED)
        return pd_fail(e, PD_UNSUPPORTED, "an image goes with neither %s: leave one of them away",
                       s->root_dir[0] ? "a root directory" : "profile restricted");

    bool is_id = !strncmp(s->image, "sha256:", 7) && image_is_hex(s->image + 7);
    bool is_known = !is_id && id[0];
    auto_fd images = images_open(t->host_root, state_dir, e);
    struct image_use use;
    if (images < 0 || (!is_known && images_resolve(images, s->image, id, e) < 0) ||
        images_use(images, id, &use, e) < 0)
        return -1;

    int failed = 0;
    for (unsigned i = 0; !failed && i < use.tree_count; i++)
        failed = add_lower(r, use.trees[i], userns, e);
    r->image_lock = fd_take(&use.lock);
    r->image_env = use.env;
    use.env = NULL;
    image_use_done(&use);
    return failed;
}

const char *const root_network_files[ROOT_NETWORK_FILES] = {"etc/resolv.conf", "etc/ssl/certs"};

/* With the host's network all of them. Through a gate the certificates alone: there every name
 * server that a program thinks of answers, and the host's need not be known. */
static int wants_network_file(const struct root *r, const struct spec *s, size_t i)
{
    return r->host_template &&
           (s->network == NETWORK_HOST || (s->network == NETWORK_GATE && i == 1));
}

/* A copy of what the path leads to, or -1: a host may lack it. */
static int clone_followed(int host_root, const char *path)
{
    auto_fd file = mnt_open_beneath(host_root, path, O_PATH);
    int mount = file < 0 ? -1 : mnt_clone(file, "", MNT_RDONLY);
    return mount < 0 ? -1 : mount;
}

/* The part of root_prepare that needs the host's view. The store comes last: mkfs and the loop
 * devices are those of the chroot that the keeper was started in, if it was, and no bind could make
 * its namespace of users there. */
static int prepare_from_host(struct root *r, const struct template *t, const char *state_dir,
                             const struct spec *s, int userns, struct pd_err *e)
{
    char base[STORE_BASE_MAX] = "";
    auto_fd roots = s->root_name[0] ? store_open_dir(t->host_root, state_dir, e) : -1;

    if (s->root_name[0] && roots < 0)
        return -1;
    if (roots >= 0)
        (void)store_read_base(roots, s->root_name, base);
    r->host_template &= !base[0];
    if ((s->image[0] || base[0]) && prepare_image(r, t, state_dir, s, userns, base, e) < 0)
        return -1;
    if (s->root_dir[0] && prepare_lower(r, t, s->root_dir, userns, e) < 0)
        return -1;

    for (uint32_t i = 0; i < s->bind_count; i++)
        if (prepare_bind(r, t, &s->binds[i], s->profile == PROFILE_RESTRICTED, userns, e) < 0)
            return -1;
    for (size_t i = 0; i < ROOT_NETWORK_FILES; i++)
        if (wants_network_file(r, s, i))
            r->network_files[i] = clone_followed(t->host_root, root_network_files[i]);

    if (!s->root_name[0])
        return 0;
    if (template_enter_start(t, e) < 0)
        return -1;
    return store_open_root(t, roots, s->root_name, r->lower_count != 0, base, &s->limits, userns,
                           &r->top, &r->lock, e);
}

int root_is_usual(const struct spec *s)
{
    struct limits usual = LIMITS_DEFAULT;
    return !s->root_dir[0] && !s->root_name[0] && !s->image[0] && s->limits.disk == usual.disk &&
           s->limits.memory == usual.memory && s->limits.files == usual.files;
}

static void set_ids(struct root *r, uint32_t slot)
{
    r->uid_root = identity_host_id(slot, UID_ROOT);
    r->uid_user = identity_host_id(slot, UID_USER);
    r->uid_init = identity_host_id(slot, UID_INIT);
}

int root_prepare_usual(struct root *r, uint32_t slot, struct pd_err *e)
{
    struct limits usual = LIMITS_DEFAULT;
    r->host_template = 1;
    set_ids(r, slot);

    r->top = make_root_tmpfs(slot, &usual, e);
    r->devpts = r->top < 0 ? -1 : make_devpts(slot, e);
    return r->devpts < 0 ? -1 : 0;
}

int root_prepare(struct root *r, const struct template *t, const char *state_dir,
                 const struct spec *s, uint32_t slot, int userns, struct pd_err *e)
{
    r->host_template = !s->root_dir[0] && !s->image[0];
    set_ids(r, slot);

    if (s->root_dir[0] || s->root_name[0] || s->image[0] || s->bind_count ||
        wants_network_file(r, s, 1)) {
        if (template_visit_host(t, e) < 0)
            return -1;
        int failed = prepare_from_host(r, t, state_dir, s, userns, e);
        template_return(t);
        if (failed)
            return -1;
    }

    if (!s->root_name[0] && r->top < 0) {
        r->top = r->host_template ? make_root_tmpfs(slot, &s->limits, e)
                                  : make_tmpfs(slot, &s->limits, e);
        if (r->top < 0)
            return -1;
    }

    if (r->devpts < 0)
        r->devpts = make_devpts(slot, e);
    return r->devpts < 0 ? -1 : 0;
}
