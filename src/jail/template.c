/* How a builder gets its template: in a new mount namespace it puts a tmpfs onto some directory,
 * fills it with read-only copies of the host's programs, a /dev, masks and mount points, makes it
 * the root and lets go of the host's mounts.
 *
 * The host's namespace and root directory stay open. Steps that need the host's view visit it with
 * setns and return; a builder that cannot return aborts. What comes later (boot ids, the sudo shim)
 * lies in tmpfs mounts of its own, because the template itself is read-only. */
#include "jail/template.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/identity.h"
#include "jail/mnt.h"
#include "jail/root.h"
#include "jail/walls.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* Directories of the host's root that a jail sees. */
static const char *const host_dirs[] = {"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"};

const struct template_etc template_etc[] = {
    {"etc/alternatives", true},    {"etc/ld.so.cache", false},    {"etc/R", true},
    {"etc/java-17-openjdk", true}, {"etc/java-21-openjdk", true}, {"etc/chromium.d", true},
};
const size_t template_etc_count = sizeof template_etc / sizeof *template_etc;

static const struct {
    const char *name;
    unsigned minor_number;
} devices[] = {{"null", 3}, {"zero", 5}, {"full", 7}, {"random", 8}, {"urandom", 9}};

static int fail(struct pd_err *e, int negative_errno, const char *what)
{
    errno = -negative_errno;
    return pd_fail_sys(e, "%s", what);
}

static int make_file(const char *path, mode_t mode)
{
    auto_fd fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    return fd < 0 ? -errno : 0;
}

/* Mounts a copy of the host's `name` at the same place below the template, if the host has it. */
static int take_from_host(int view, const char *name)
{
    struct stat st;

    if (fstatat(view, name, &st, 0) < 0)
        return 0;

    char at[64];
    snprintf(at, sizeof at, "%s", name);
    for (char *slash = strchr(at, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(at, 0755) < 0 && errno != EEXIST)
            return -errno;
        *slash = '/';
    }

    int r = S_ISDIR(st.st_mode) ? (mkdir(at, 0755) < 0 ? -errno : 0) : make_file(at, 0644);
    if (r < 0 && r != -EEXIST)
        return r;

    auto_fd mount = mnt_clone(view, name, MNT_RDONLY);
    return mount < 0 ? mount : mnt_attach(mount, AT_FDCWD, at);
}

static int take_programs(struct template *t, int view)
{
    for (size_t i = 0; i < sizeof host_dirs / sizeof *host_dirs; i++) {
        struct stat st;
        struct template_entry *entry = &t->entries[t->entry_count];
        if (fstatat(view, host_dirs[i], &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        snprintf(entry->name, sizeof entry->name, "%s", host_dirs[i]);
        if (S_ISLNK(st.st_mode)) {
            ssize_t n = readlinkat(view, host_dirs[i], entry->link, sizeof entry->link - 1);
            if (n <= 0)
                return n < 0 ? -errno : -EINVAL;
            entry->link[n] = 0;
        } else {
            entry->link[0] = 0;
            int r = take_from_host(view, host_dirs[i]);
            if (r < 0)
                return r;
        }

        t->entry_count++;
    }

    for (size_t i = 0; i < template_etc_count; i++) {
        if (faccessat(view, template_etc[i].path, F_OK, 0) < 0)
            continue;
        int r = take_from_host(view, template_etc[i].path);
        if (r < 0)
            return r;
        t->etc |= 1u << i;
    }
    return 0;
}

/* A device node of our own where we may make one, else the host's. */
static int make_device(const struct template *t, int view, const char *name, unsigned major_number,
                       unsigned minor_number)
{
    char path[64];
    snprintf(path, sizeof path, "dev/%s", name);

    if (!t->rootless) {
        if (mknod(path, S_IFCHR | 0666, makedev(major_number, minor_number)) == 0)
            return 0;
        if (errno != EPERM)
            return -errno;
    }

    int r = make_file(path, 0666);
    if (r < 0 && r != -EEXIST)
        return r;
    auto_fd mount = mnt_clone(view, path, MNT_DEVS | MNT_NOEXEC);
    return mount < 0 ? mount : mnt_attach(mount, AT_FDCWD, path);
}

static int make_dev(const struct template *t, int view)
{
    static const char *const options[] = {"size=64k", "nr_inodes=64", "mode=0755", NULL};
    static const char *const links[][2] = {{"/proc/self/fd", "dev/fd"},
                                           {"/proc/self/fd/0", "dev/stdin"},
                                           {"/proc/self/fd/1", "dev/stdout"},
                                           {"/proc/self/fd/2", "dev/stderr"},
                                           {"pts/ptmx", "dev/ptmx"}};

    if (mkdir("dev", 0755) < 0)
        return -errno;

    auto_fd fs = mnt_tmpfs(options, MNT_DEVS | MNT_NOEXEC);
    int r = fs < 0 ? fs : mnt_attach(fs, AT_FDCWD, "dev");
    for (size_t i = 0; r == 0 && i < sizeof devices / sizeof *devices; i++)
        r = make_device(t, view, devices[i].name, 1, devices[i].minor_number);
    if (r == 0)
        r = make_device(t, view, "tty", 5, 0);

    for (size_t i = 0; r == 0 && i < sizeof links / sizeof *links; i++)
        r = symlink(links[i][0], links[i][1]) < 0 ? -errno : 0;
    if (r == 0 && (mkdir("dev/pts", 0755) < 0 || mkdir("dev/shm", 0755) < 0))
        r = -errno;

    if (r == 0 && wall_off("devs"))
        return make_device(t, view, "kmsg", 1, 11);
    unsigned long readonly = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC;
    return r < 0 ? r : mnt_mount(NULL, "dev", NULL, readonly, NULL);
}

/* The template's own root is read-only. Files here are never many, but each jail keeps its own. */
static int make_ids(struct template *t)
{
    static const char *const options[] = {"nr_inodes=0", "mode=0755", NULL};
    auto_fd fs = mnt_tmpfs(options, MNT_NOEXEC);
    int r = fs < 0 ? fs : mnt_attach(fs, AT_FDCWD, "ids");
    t->ids = r < 0 ? -1 : fd_take(&fs);
    return r;
}

int template_new_boot_id(struct template *t)
{
    if (t->has_boot_id)
        return 0;

    uint8_t b[16];
    char text[40];

    random_bytes(b, sizeof b);
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40); /* a random UUID, as the kernel's is */
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
    snprintf(text, sizeof text,
             "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x\n", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);

    /* A new file: the one before is another jail's. */
    if (unlinkat(t->ids, "boot", 0) < 0 && errno != ENOENT)
        return -errno;

    auto_fd fd = openat(t->ids, "boot", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    int r = fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
    t->has_boot_id = r == 0;
    return r;
}

/* Builds the tree in the working directory. */
static int furnish(struct template *t, int view, struct pd_err *e)
{
    static const char *const dirs[] = {"jail", "lower", "upper", "mask", "shim", "ids"};

    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
        if (mkdir(dirs[i], 0755) < 0)
            return pd_fail_sys(e, "make /%s of the template", dirs[i]);

    int r = make_file("mask/file", 0);
    if (r == 0 && mkdir("mask/dir", 0) < 0)
        r = -errno;
    if (r < 0)
        return fail(e, r, "make the template's masks");

    if ((r = take_programs(t, view)) < 0)
        return fail(e, r, "take the host's programs into the template");
    if ((r = make_dev(t, view)) < 0)
        return fail(e, r, "make the template's /dev");
    if ((r = make_ids(t)) < 0)
        return fail(e, r, "make the template's /ids");

    if (t->rootless) {
        /* The kernel lets a user namespace mount /proc only where it already sees a whole one. */
        if (mkdir("proc", 0755) < 0)
            return pd_fail_sys(e, "make /proc of the template");

        auto_fd proc = mnt_clone(view, "proc", 0);
        if (proc < 0 || (r = mnt_attach(proc, AT_FDCWD, "proc")) < 0)
            return fail(e, proc < 0 ? proc : r, "take the host's /proc into the template");
    }
    return 0;
}

/* Takes the copy of the host's tree that this new namespace starts with as raw material: puts the
 * template onto some directory of it, furnishes it, and makes it the root; the copy goes away. */
static int build(struct template *t, struct pd_err *e)
{
    static const char *const options[] = {"size=1m", "nr_inodes=256", "mode=0755", NULL};
    static const char *const places[] = {"tmp", "run", "mnt", "usr"};

    auto_fd view = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    t->self_ns = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (view < 0 || t->self_ns < 0)
        return pd_fail_sys(e, "open /proc/self/ns/mnt (is /proc mounted?)");

    /* Started in a chroot we would not stand at the namespace's root, and the kernel would neither
     * pivot nor make user namespaces. Entering the namespace again leads to its root. */
    if (setns(t->self_ns, CLONE_NEWNS) < 0)
        return pd_fail_sys(e, "enter the template's mount namespace");

    umask(0); /* what is made from here on has exactly the mode that is named */
    int r = mnt_mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    if (r < 0)
        return fail(e, r, "make mounts private");

    auto_fd root = mnt_tmpfs(options, 0);
    if (root < 0)
        return fail(e, root, "make the template's root");
    r = -ENOENT;
    for (size_t i = 0; r < 0 && i < sizeof places / sizeof *places; i++)
        r = mnt_attach(root, view, places[i]);
    if (r < 0)
        return fail(e, r, "mount the template's root");

    if (fchdir(root) < 0)
        return pd_fail_sys(e, "enter the template");
    if (furnish(t, view, e) < 0)
        return -1;

    if ((r = mnt_pivot_here()) < 0)
        return fail(e, r, "make the template the root");
    r = mnt_mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL);
    return r < 0 ? fail(e, r, "make the template read-only") : 0;
}

int template_enter(struct template *t, int rootless, struct pd_err *e)
{
    *t = (struct template){
        .rootless = rootless, .proc = -1, .host_ns = -1, .host_root = -1, .self_ns = -1, .ids = -1};
    /* Without privilege the host's own namespace could not be entered again: a copy is used. */
    if (rootless && (userns_enter_single(e) < 0 || unshare(CLONE_NEWNS) < 0))
        return pd_fail_sys(e, "make a user namespace (see `paddock doctor`)");

    t->host_ns = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    t->host_root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    t->proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (t->host_ns < 0 || t->host_root < 0 || t->proc < 0)
        return pd_fail_sys(e, "open /proc/self/ns/mnt (is /proc mounted?)");

    t->masks = root_needed_masks(t->host_root);
    if (unshare(CLONE_NEWNS) < 0)
        return pd_fail_sys(e, "make a mount namespace");
    return build(t, e);
}

/* Debian has no `python` unless somebody wants one; programs for E2B's image do. */
static int add_python(const struct template *t, int dir)
{
    if (faccessat(t->host_root, "usr/bin/python", F_OK, AT_SYMLINK_NOFOLLOW) == 0 ||
        faccessat(t->host_root, "usr/bin/python3", F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    return symlinkat("/usr/bin/python3", dir, "python");
}

int template_add_shim(struct template *t, int program, struct pd_err *e)
{
    static const char *const options[] = {"size=1m", "nr_inodes=8", "mode=0755", NULL};

    if (t->has_shim)
        return 0;
    auto_fd fs = mnt_tmpfs(options, 0);
    if (fs < 0)
        return fail(e, fs, "make room for the sudo shim");

    auto_fd to = openat(fs, "sudo", O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    off_t at = 0;
    ssize_t n = to < 0 ? -1 : 1;
    while (n > 0)
        n = sendfile(to, program, &at, 1u << 20);
    if (n < 0 || fchmod(to, 0755) < 0 || add_python(t, fs) < 0)
        return pd_fail_sys(e, "copy the sudo shim");

    fd_done(&to); /* nothing may be open for writing when the mount becomes read-only */
    int r = mnt_attach(fs, AT_FDCWD, "/shim");
    if (r == 0)
        r = mnt_mount(NULL, "/shim", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV,
                      NULL);
    if (r < 0)
        return fail(e, r, "mount the sudo shim");

    t->has_shim = 1;
    return 0;
}

void template_done(struct template *t)
{
    fd_done(&t->proc);
    fd_done(&t->host_ns);
    fd_done(&t->host_root);
    fd_done(&t->self_ns);
    fd_done(&t->ids);
}

int template_visit_host(const struct template *t, struct pd_err *e)
{
    if (setns(t->host_ns, CLONE_NEWNS) == 0)
        return 0;
    return pd_fail_sys(e, "visit the host's mount namespace");
}

int template_enter_start(const struct template *t, struct pd_err *e)
{
    if (fchdir(t->host_root) == 0 && chroot(".") == 0)
        return 0;
    return pd_fail_sys(e, "visit the root directory");
}

int template_visit_start(const struct template *t, struct pd_err *e)
{
    if (template_visit_host(t, e) < 0)
        return -1;
    if (template_enter_start(t, e) == 0)
        return 0;

    template_return(t);
    return -1;
}

void template_return(const struct template *t)
{
    if (setns(t->self_ns, CLONE_NEWNS) < 0)
        abort(); /* building a jail out of the host's mounts would be worse */
}
