/* The part of a root that is done in the jail's own mount namespace, a copy of the template's: what
 * root.c prepared is attached, and programs, /dev, /proc and the binds come on top.
 *
 * The root may have been written by a sandbox before. So a mount point is never named by a path
 * into it: points.h opens it without following a link, and the mount goes to the descriptor. The
 * caller's own bind targets are resolved as if the root were the root directory (mnt_make_dir), so
 * that links of an image hold and none leads out. Nobody runs in the root while this happens.
 *
 * All of it is done with the file system ids of the jail's root, to whom new files then belong. */
#include "jail/root.h"

#include "base/banned.h"
#include "base/fd.h"
#include "jail/mnt.h"
#include "jail/points.h"
#include "jail/restricted.h"
#include "jail/walls.h"
#include "wire/start.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/securebits.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define BOOT_ID "proc/sys/kernel/random/boot_id"

/* Parts of /proc that tell about the host or steer it. Those that only the host's root may open
 * need no mask: no process of a jail is ever that (and where its user namespace failed, masks would
 * not help). */
static const struct {
    const char *path;
    int is_dir;
} masks[] = {
    {"proc/kcore", 0},      {"proc/kallsyms", 0},    {"proc/kmsg", 0},    {"proc/keys", 0},
    {"proc/key-users", 0},  {"proc/config.gz", 0},   {"proc/modules", 0}, {"proc/locks", 0},
    {"proc/timer_list", 0}, {"proc/sched_debug", 0}, {"proc/iomem", 0},   {"proc/ioports", 0},
    {"proc/interrupts", 0}, {"proc/diskstats", 0},   {"proc/cmdline", 0}, {"proc/sysrq-trigger", 0},
    {"proc/acpi", 1},       {"proc/asound", 1},      {"proc/bus", 1},     {"proc/driver", 1},
    {"proc/fs", 1},         {"proc/irq", 1},         {"proc/scsi", 1},    {"proc/pressure", 1}};
#define MASK_COUNT (sizeof masks / sizeof *masks)
_Static_assert(MASK_COUNT <= 32, "template.masks has a bit for each");

uint32_t root_needed_masks(int host_root)
{
    uint32_t needed = 0;

    for (size_t i = 0; i < MASK_COUNT; i++) {
        struct stat st;
        if (fstatat(host_root, masks[i].path, &st, 0) == 0 && st.st_mode & 0007)
            needed |= UINT32_C(1) << i;
    }

    return needed;
}

/* The kernel takes one page. */
#define OVERLAY_OPTIONS 4000
_Static_assert(IMAGE_LAYERS_MAX * sizeof "/lower/100" + 100 < OVERLAY_OPTIONS, "all layers fit");

/* Each layer of an image on a directory of its own; the overlay wants the uppermost first. */
static int mount_lowers(const struct root *r, char options[OVERLAY_OPTIONS])
{
    int rc = mnt_mount("paddock", "/lower", "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=0755");
    size_t at = (size_t)snprintf(options, OVERLAY_OPTIONS, "lowerdir=");

    for (unsigned i = r->lower_count; rc == 0 && i-- > 0;) {
        char path[24];
        snprintf(path, sizeof path, "/lower/%u", i);
        rc = mkdir(path, 0755) < 0 ? -errno : mnt_attach(r->lowers[i], AT_FDCWD, path);
        at += (size_t)snprintf(options + at, OVERLAY_OPTIONS - at, "%s%s", path, i ? ":" : "");
    }
    return rc;
}

/* The overlay must be mounted by somebody who is root in the jail's range: the kernel keeps the
 * mounter's identity for all it writes to the upper layer, and the host's root is nobody there. */
static int mount_overlay(const struct root *r, const struct template *t, const char **ret_step)
{
    *ret_step = "mount the root's layers";
    char options[OVERLAY_OPTIONS] = "lowerdir=/lower";
    int rc = r->lower_count == 1 ? mnt_attach(r->lowers[0], AT_FDCWD, "/lower")
                                 : mount_lowers(r, options);
    if (rc == 0)
        rc = mnt_attach(r->top, AT_FDCWD, "/upper");
    if (rc < 0)
        return rc;

    if ((mkdir("/upper/upper", 0755) < 0 || mkdir("/upper/work", 0755) < 0) && errno != EEXIST)
        return -errno;

    *ret_step = "mount the overlay";
    /* A user namespace may not write trusted.* attributes: there the overlay uses user.*. */
    size_t at = strlen(options);
    snprintf(options + at, sizeof options - at, ",upperdir=/upper/upper,workdir=/upper/work%s",
             t->rootless ? ",userxattr" : "");
    return mnt_mount("paddock", "/jail", "overlay", MS_NOSUID | MS_NODEV, options);
}

/* A directory that the jail itself needs must be a real one: an image could bring a link that leads
 * elsewhere. */
static int own_directory(int jail, const char *path)
{
    struct stat st;
    if (fstatat(jail, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return mkdirat(jail, path, 0755) < 0 ? -errno : 0;
    return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

/* The same in a root that a sandbox has written: it must not be able to make it unusable. */
static int own_directory_anew(int jail, const char *path)
{
    auto_fd dir = point_dir(jail, path, 0755);
    return dir < 0 ? dir : 0;
}

/* The same in a layer that a sandbox has written. What the image below brings is still refused. */
static int own_directory_of_layer(const struct root *r, int jail, const char *path)
{
    char below[64];
    struct stat st;

    for (unsigned i = r->lower_count; i-- > 0;) {
        if (r->lower_count == 1)
            snprintf(below, sizeof below, "/lower/%s", path);
        else
            snprintf(below, sizeof below, "/lower/%u/%s", i, path);
        if (fstatat(AT_FDCWD, below, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        if (!S_ISDIR(st.st_mode) && !(S_ISCHR(st.st_mode) && st.st_rdev == 0))
            return -ENOTDIR;
        break; /* the uppermost layer that has it, or says that it is gone */
    }
    return own_directory_anew(jail, path);
}

static int give_to(int jail, const char *path, uint32_t owner)
{
    return fchownat(jail, path, owner, owner, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

/* Directories that the skeleton has and another root may lack. */
static int complete_foreign_root(const struct root *r, int jail, const char **ret_step)
{
    static const char *const dirs[] = {"/proc",      "/dev",  "/run",       "/tmp",
                                       "/workspace", "/home", "/home/user", "/run/paddock"};
    int written = r->lock >= 0;

    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        *ret_step = dirs[i];
        const char *path = dirs[i] + 1;
        int rc = written ? own_directory_of_layer(r, jail, path) : own_directory(jail, path);
        if (rc < 0)
            return rc;
    }

    *ret_step = "give the root's directories to their owners";
    int rc = fchmodat(jail, "tmp", 01777, 0) < 0 || fchmodat(jail, "run/paddock", 0755, 0) < 0
                 ? -errno
                 : 0;
    if (rc == 0)
        rc = give_to(jail, "workspace", r->uid_user);
    if (rc == 0)
        rc = give_to(jail, "home/user", r->uid_user);
    return rc < 0 ? rc : give_to(jail, "run/paddock", r->uid_init);
}

/* Directories that the next jail needs, and a sandbox may have taken from a root that it wrote. */
static int complete_written_root(const struct root *r, int jail, const char **ret_step)
{
    static const char *const dirs[] = {"proc", "dev", "run/paddock"};

    *ret_step = "make the root's directories anew";
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        int rc = own_directory_anew(jail, dirs[i]);
        if (rc < 0)
            return rc;
    }

    if (fchmodat(jail, "run/paddock", 0755, 0) < 0)
        return -errno;
    return give_to(jail, "run/paddock", r->uid_init);
}

static int mount_entry(int jail, const struct template_entry *entry)
{
    char from[40];
    snprintf(from, sizeof from, "/%s", entry->name);

    if (entry->link[0])
        return symlinkat(entry->link, jail, entry->name) < 0 && errno != EEXIST ? -errno : 0;

    auto_fd point = point_dir(jail, entry->name, 0755);
    return point < 0 ? point : point_bind(from, point);
}

static int mount_programs(const struct template *t, int jail)
{
    for (unsigned i = 0; i < t->entry_count; i++) {
        int rc = mount_entry(jail, &t->entries[i]);
        if (rc < 0)
            return rc;
    }

    for (size_t i = 0; i < template_etc_count; i++) {
        const struct template_etc *etc = &template_etc[i];
        char from[40];
        if (!(t->etc >> i & 1))
            continue;

        snprintf(from, sizeof from, "/%s", etc->path);
        auto_fd point =
            etc->is_dir ? point_dir(jail, etc->path, 0755) : point_file(jail, etc->path);
        int rc = point < 0 ? point : point_bind(from, point);
        if (rc < 0 && rc != -ENOENT)
            return rc;
    }

    return 0;
}

/* The kernel's boot id is the host's, the same in all jails. Each has a file of its own over it,
 * which belongs to the host's root: nobody inside can change it, and only rootless, where it is the
 * user's, is that the mount's business. */
static int mount_boot_id(const struct template *t, const char **ret_step)
{
    *ret_step = "mount the boot id";
    int rc = mnt_mount(TEMPLATE_BOOT_ID, BOOT_ID, NULL, MS_BIND, NULL);
    if (rc == 0 && t->rootless)
        rc = mnt_mount(NULL, BOOT_ID, NULL,
                       MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    return rc;
}

/* A new /proc, for the jail's own processes. The working directory is the root, before and after.
 */
static int mount_new_proc(const char **ret_step)
{
    *ret_step = "mount /proc";
    auto_fd point = point_dir(AT_FDCWD, "proc", 0555);
    int rc = point < 0 ? point : point_mount(point, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    if (rc < 0)
        return rc;
    return chdir("/jail") < 0 ? -errno : 0;
}

static int mount_proc(const struct template *t, const char **ret_step)
{
    int rc = mount_new_proc(ret_step);
    if (rc < 0)
        return rc;

    if (t->rootless && (rc = mnt_detach("/proc")) < 0)
        return rc;
    if (wall_off("procmask"))
        return 0;

    *ret_step = "mask /proc";
    for (size_t i = 0; i < MASK_COUNT; i++) {
        if (!(t->masks >> i & 1))
            continue;
        const char *mask = masks[i].is_dir ? "/mask/dir" : "/mask/file";
        rc = mnt_mount(mask, masks[i].path, NULL, MS_BIND, NULL);
        if (rc < 0 && rc != -ENOENT)
            return rc;
    }

    rc = mnt_mount("proc/sys", "proc/sys", NULL, MS_BIND, NULL);
    if (rc == 0)
        rc = mnt_mount(NULL, "proc/sys", NULL,
                       MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    return rc < 0 ? rc : mount_boot_id(t, ret_step);
}

/* Files in /dev/shm count as files of the root: they lie in a directory of it. A root of another
 * make has no place that is surely free for them, and one that is full may have none at all. */
static int mount_shm(const struct root *r, int jail)
{
    auto_fd place = r->host_template ? point_dir(jail, "run/shm", 01777) : -ENOENT;
    auto_fd tree = place < 0 ? -1
                             : (int)syscall(SYS_open_tree, place, "",
                                            OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);

    if (place >= 0)
        return tree < 0 ? -errno : mnt_attach(tree, jail, "dev/shm");
    return mnt_mount("shm", "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m");
}

static int mount_dev(const struct root *r, int jail, const char **ret_step)
{
    *ret_step = "mount /dev";
    auto_fd point = point_dir(jail, "dev", 0755);
    int rc = point < 0 ? point : point_bind("/dev", point);
    if (rc < 0)
        return rc;

    /* From here on "dev" is the builder's own. */
    if ((rc = mnt_attach(r->devpts, jail, "dev/pts")) < 0)
        return rc;
    return mount_shm(r, jail);
}

static int mount_bind(int jail, int mount, int is_dir, const char *target)
{
    auto_fd at = -1;

    if (is_dir) {
        at = mnt_make_dir(jail, target, 0755);
    } else {
        char parent[SPEC_PATH_MAX + 1];
        snprintf(parent, sizeof parent, "%s", target);
        char *slash = strrchr(parent, '/');
        *slash = 0;
        auto_fd dir = mnt_make_dir(jail, parent, 0755);
        if (dir < 0)
            return dir;

        auto_fd file =
            openat(dir, slash + 1, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
        at = file < 0 ? -errno : openat(dir, slash + 1, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    }

    return at < 0 ? at : mnt_attach(mount, at, "");
}

/* An image may keep /opt behind a link of its own; a root of ours has no reason to. */
static int mount_shim(const struct root *r, int jail)
{
    auto_fd dir = r->host_template ? point_dir(jail, INIT_SHIM_DIR, 0755)
                                   : mnt_make_dir(jail, INIT_SHIM_DIR, 0755);
    return dir < 0 ? dir : point_bind("/shim", dir);
}

static int mount_network_files(const struct root *r, int jail, const char **ret_step)
{
    *ret_step = "mount what the host's network needs";
    for (size_t i = 0; i < ROOT_NETWORK_FILES; i++) {
        if (r->network_files[i] < 0)
            continue;

        const char *path = root_network_files[i];
        auto_fd point = i == 1 ? point_dir(jail, path, 0755) : point_file(jail, path);
        int rc = point < 0 ? point : mnt_attach(r->network_files[i], point, "");
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int mount_binds(const struct root *r, const struct spec *s, int jail, const char **ret_step)
{
    for (uint32_t i = 0; i < s->bind_count; i++) {
        *ret_step = s->binds[i].target;
        int rc = mount_bind(jail, r->bind_mounts[i], r->bind_is_dir[i], s->binds[i].target);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int mount_base(const struct root *r, const struct template *t, const char **ret_step)
{
    *ret_step = "mount the root";
    int rc = r->lower_count ? mount_overlay(r, t, ret_step) : mnt_attach(r->top, AT_FDCWD, "/jail");
    if (rc < 0)
        return rc;
    if (chdir("/jail") < 0)
        return -errno;

    auto_fd jail = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (jail < 0)
        return -errno;
    if (!r->host_template && (rc = complete_foreign_root(r, jail, ret_step)) < 0)
        return rc;
    if (r->host_template && r->lock >= 0 && (rc = complete_written_root(r, jail, ret_step)) < 0)
        return rc;

    *ret_step = "mount the host's programs";
    if (r->host_template && (rc = mount_programs(t, jail)) < 0)
        return rc;
    return mount_dev(r, jail, ret_step);
}

static int mount_rest(const struct root *r, const struct template *t, const struct spec *s,
                      const char **ret_step)
{
    *ret_step = "enter the root";
    if (chdir("/jail") < 0)
        return -errno;

    int rc = mount_proc(t, ret_step);
    if (rc < 0)
        return rc;

    auto_fd jail = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (jail < 0)
        return -errno;

    *ret_step = "mount the sudo shim";
    if (s->profile == PROFILE_DEV && !t->rootless && (rc = mount_shim(r, jail)) < 0)
        return rc;

    if ((rc = mount_network_files(r, jail, ret_step)) < 0 ||
        (rc = mount_binds(r, s, jail, ret_step)) < 0)
        return rc;
    if (s->profile == PROFILE_RESTRICTED && (rc = restricted_apply(r, ret_step)) < 0)
        return rc;

    *ret_step = "change the root";
    return mnt_cover_root();
}

/* Files and directories made on the way belong to the jail's root. Capabilities stay. */
static int act_as_root_of(const struct root *r, const struct template *t)
{
    if (t->rootless)
        return 0;
    if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) < 0)
        return -errno;
    setfsgid(r->uid_root);
    setfsuid(r->uid_root);
    return 0;
}

static int act_as_oneself(const struct template *t)
{
    if (t->rootless)
        return 0;
    setfsuid(0);
    setfsgid(0);
    return prctl(PR_SET_SECUREBITS, 0, 0, 0, 0) < 0 ? -errno : 0;
}

int root_mount_base(const struct root *r, const struct template *t, const char **ret_step)
{
    *ret_step = "act as the jail's root";
    int rc = act_as_root_of(r, t);
    if (rc == 0)
        rc = mount_base(r, t, ret_step);

    int back = act_as_oneself(t);
    return rc < 0 ? rc : back;
}

int root_mount_rest(const struct root *r, const struct template *t, const struct spec *s,
                    const char **ret_step)
{
    *ret_step = "act as the jail's root";
    int rc = act_as_root_of(r, t);
    if (rc == 0)
        rc = mount_rest(r, t, s, ret_step);

    int back = act_as_oneself(t);
    return rc < 0 ? rc : back;
}
