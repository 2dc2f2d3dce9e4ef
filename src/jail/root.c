#include "jail/root.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/identity.h"
#include "jail/mnt.h"
#include "jail/restricted.h"
#include "jail/skeleton.h"
#include "jail/store.h"
#include "jail/walls.h"
#include "wire/start.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/mount.h>
#include <linux/securebits.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define GID_TTY 5u
#define BOOT_ID "proc/sys/kernel/random/boot_id"

/* What of /proc tells about the host or steers it, and is open to others than the host's root: no
 * process of a jail is ever that (and where its user namespace failed, masks would not help). */
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

static int fail(struct pd_err *e, int negative_errno, const char *what)
{
    errno = -negative_errno;
    return pd_fail_sys(e, "%s", what);
}

void root_done(struct root *r)
{
    fd_done(&r->top);
    fd_done(&r->lower);
    fd_done(&r->devpts);
    fd_done(&r->lock);
    for (unsigned i = 0; i < r->bind_count; i++)
        fd_done(&r->bind_mounts[i]);
    r->bind_count = 0;
    for (size_t i = 0; i < ROOT_NETWORK_FILES; i++)
        fd_done(&r->network_files[i]);
}

/* What is written to a tmpfs is memory of the jail. Were the tmpfs as large as the memory limit, a
 * full disk would end processes instead of answering ENOSPC. */
static uint64_t tmpfs_size(const struct limits *l)
{
    if (wall_off("disk"))
        return UINT64_C(1) << 40;
    return l->disk < l->memory / 2 ? l->disk : l->memory / 2;
}

static int make_tmpfs(uint32_t slot, const struct limits *l, struct pd_err *e)
{
    char size[40], inodes[40], uid[24], gid[24];
    uint64_t files = wall_off("files") ? SPEC_FILES_MAX : l->files + SKELETON_FILES;
    snprintf(size, sizeof size, "size=%" PRIu64, tmpfs_size(l));
    snprintf(inodes, sizeof inodes, "nr_inodes=%" PRIu64, files);
    uint32_t owner = identity_host_id(slot, UID_ROOT);
    snprintf(uid, sizeof uid, "uid=%u", owner);
    snprintf(gid, sizeof gid, "gid=%u", owner);
    const char *const options[] = {size, inodes, "mode=0755", uid, gid, NULL};
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
                        int restricted, struct pd_err *e)
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
        /* Whoever owns the source is the sandbox's user inside, and what the user makes belongs to
         * that owner outside. Everybody else is nobody. */
        auto_fd map = userns_create_single(t->proc, st.st_uid, st.st_gid, r->uid_user, e);
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

static int prepare_lower(struct root *r, const struct template *t, const char *dir, int userns,
                         struct pd_err *e)
{
    auto_fd source = mnt_open_beneath(t->host_root, dir, O_PATH | O_DIRECTORY);
    if (source < 0)
        return pd_fail(e, PD_INVALID, "--root: '%.150s': %s", dir, strerror(-source));
    /* An overlay does not look into mounts below its layers. */
    if (userns >= 0)
        r->lower = mnt_clone_idmapped(source, "", MNT_RDONLY | MNT_SINGLE, userns);
    if (r->lower < 0)
        r->lower = mnt_clone(source, "", MNT_RDONLY | MNT_SINGLE);
    return r->lower < 0 ? fail(e, r->lower, "--root: copy the mount") : 0;
}

/* What a program needs of the host to use its network: how names are resolved, whom TLS trusts. */
static const char *const host_network_files[] = {"etc/resolv.conf", "etc/ssl/certs"};
#define HOST_NETWORK_FILES (sizeof host_network_files / sizeof *host_network_files)
_Static_assert(HOST_NETWORK_FILES == ROOT_NETWORK_FILES, "root.h has the number");

static int wants_host_network(const struct spec *s)
{
    return s->network == NETWORK_HOST && !s->root_dir[0];
}

/* A copy of what the path leads to, or -1: a host may lack it. */
static int clone_followed(int host_root, const char *path)
{
    auto_fd file = mnt_open_beneath(host_root, path, O_PATH);
    int mount = file < 0 ? -1 : mnt_clone(file, "", MNT_RDONLY);
    return mount < 0 ? -1 : mount;
}

/* The part of root_prepare that needs the host's view. */
static int prepare_from_host(struct root *r, const struct template *t, const char *state_dir,
                             const struct spec *s, int userns, struct pd_err *e)
{
    if (s->root_dir[0] && prepare_lower(r, t, s->root_dir, userns, e) < 0)
        return -1;
    if (s->root_name[0]) {
        if (store_open_root(t, state_dir, s->root_name, s->root_dir[0] != 0, &s->limits, userns,
                            &r->top, &r->lock, e) < 0)
            return -1;
    }
    for (uint32_t i = 0; i < s->bind_count; i++)
        if (prepare_bind(r, t, &s->binds[i], s->profile == PROFILE_RESTRICTED, e) < 0)
            return -1;
    for (size_t i = 0; i < HOST_NETWORK_FILES && wants_host_network(s); i++)
        r->network_files[i] = clone_followed(t->host_root, host_network_files[i]);
    return 0;
}

int root_is_usual(const struct spec *s)
{
    struct limits usual = LIMITS_DEFAULT;
    return !s->root_dir[0] && !s->root_name[0] && s->limits.disk == usual.disk &&
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
    r->host_template = !s->root_dir[0];
    set_ids(r, slot);
    if (s->root_dir[0] || s->root_name[0] || s->bind_count || wants_host_network(s)) {
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

/* The overlay must be mounted by somebody who is root in the jail's range: the kernel keeps the
 * mounter's identity for all it writes to the upper layer, and the host's root is nobody there. */
static int mount_overlay(const struct root *r, const struct template *t, const char **ret_step)
{
    *ret_step = "mount the root's layers";
    int rc = mnt_attach(r->lower, AT_FDCWD, "/lower");
    if (rc == 0)
        rc = mnt_attach(r->top, AT_FDCWD, "/upper");
    if (rc < 0)
        return rc;
    if ((mkdir("/upper/upper", 0755) < 0 || mkdir("/upper/work", 0755) < 0) && errno != EEXIST)
        return -errno;
    *ret_step = "mount the overlay";
    /* A user namespace may not write trusted.* attributes: there the overlay uses user.*. */
    return mnt_mount("paddock", "/jail", "overlay", MS_NOSUID | MS_NODEV,
                     t->rootless
                         ? "lowerdir=/lower,upperdir=/upper/upper,workdir=/upper/work,userxattr"
                         : "lowerdir=/lower,upperdir=/upper/upper,workdir=/upper/work");
}

/* A directory that the jail itself needs must be a real one: an image could bring a link that leads
 * elsewhere. */
static int own_directory(const char *path)
{
    struct stat st;
    if (fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return mkdir(path, 0755) < 0 ? -errno : 0;
    return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

/* What the skeleton has and another root may lack. */
static int complete_foreign_root(const struct root *r, const char **ret_step)
{
    static const char *const dirs[] = {"/proc",      "/dev",  "/run",       "/tmp",
                                       "/workspace", "/home", "/home/user", "/run/paddock"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        *ret_step = dirs[i];
        int rc = own_directory(dirs[i] + 1);
        if (rc < 0)
            return rc;
    }
    *ret_step = "give the root's directories to their owners";
    if (chmod("tmp", 01777) < 0 || lchown("workspace", r->uid_user, r->uid_user) < 0 ||
        lchown("home/user", r->uid_user, r->uid_user) < 0 ||
        lchown("run/paddock", r->uid_init, r->uid_init) < 0 || chmod("run/paddock", 0755) < 0)
        return -errno;
    return 0;
}

static int mount_programs(const struct template *t)
{
    static const char *const etc[][2] = {{"/etc/alternatives", "etc/alternatives"},
                                         {"/etc/ld.so.cache", "etc/ld.so.cache"}};
    for (unsigned i = 0; i < t->entry_count; i++) {
        const struct template_entry *entry = &t->entries[i];
        char from[40];
        snprintf(from, sizeof from, "/%s", entry->name);
        if (entry->link[0]) {
            if (symlink(entry->link, entry->name) < 0 && errno != EEXIST)
                return -errno;
            continue;
        }
        if (mkdir(entry->name, 0755) < 0 && errno != EEXIST)
            return -errno;
        int rc = mnt_mount(from, entry->name, NULL, MS_BIND | MS_REC, NULL);
        if (rc < 0)
            return rc;
    }
    for (size_t i = 0; i < sizeof etc / sizeof *etc; i++) {
        int rc = mnt_mount(etc[i][0], etc[i][1], NULL, MS_BIND | MS_REC, NULL);
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

static int mount_proc(const struct template *t, const char **ret_step)
{
    *ret_step = "mount /proc";
    int rc = mnt_mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
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

static int mount_dev(const struct root *r, const char **ret_step)
{
    *ret_step = "mount /dev";
    int rc = mnt_mount("/dev", "dev", NULL, MS_BIND | MS_REC, NULL);
    if (rc == 0)
        rc = mnt_attach(r->devpts, AT_FDCWD, "dev/pts");
    if (rc < 0)
        return rc;
    if (r->host_template)
        return mnt_mount("run/shm", "dev/shm", NULL, MS_BIND, NULL);
    /* Another root has no place that is surely free for it. */
    return mnt_mount("shm", "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m");
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

static int mount_base(const struct root *r, const struct template *t, const char **ret_step)
{
    *ret_step = "mount the root";
    int rc = r->lower >= 0 ? mount_overlay(r, t, ret_step) : mnt_attach(r->top, AT_FDCWD, "/jail");
    if (rc < 0)
        return rc;
    if (chdir("/jail") < 0)
        return -errno;
    if (!r->host_template && (rc = complete_foreign_root(r, ret_step)) < 0)
        return rc;
    *ret_step = "mount the host's programs";
    if (r->host_template && (rc = mount_programs(t)) < 0)
        return rc;
    return mount_dev(r, ret_step);
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
    if (s->profile == PROFILE_DEV && !t->rootless) {
        *ret_step = "mount the sudo shim";
        auto_fd dir = mnt_make_dir(AT_FDCWD, INIT_SHIM_DIR, 0755);
        if (dir < 0 || (rc = mnt_mount("/shim", &INIT_SHIM_DIR[1], NULL, MS_BIND, NULL)) < 0)
            return dir < 0 ? dir : rc;
    }
    if (s->bind_count || wants_host_network(s)) {
        auto_fd jail = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
        *ret_step = "mount what the host's network needs";
        for (size_t i = 0; i < HOST_NETWORK_FILES; i++) {
            char target[40];
            snprintf(target, sizeof target, "/%s", host_network_files[i]);
            if (r->network_files[i] >= 0 &&
                (rc = mount_bind(jail, r->network_files[i], i == 1, target)) < 0)
                return rc;
        }
        for (uint32_t i = 0; i < s->bind_count; i++) {
            *ret_step = s->binds[i].target;
            rc = mount_bind(jail, r->bind_mounts[i], r->bind_is_dir[i], s->binds[i].target);
            if (rc < 0)
                return rc;
        }
    }
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
