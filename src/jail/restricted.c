/* The profile `restricted` is applied to a finished root in three steps. In a root that the caller
 * brought, the directories with programs are mounted once more from the layer below, since the
 * overlay itself becomes noexec. The root and /dev/shm are remounted noexec. Then an empty file
 * without any rights is mounted over every program on the deny-list, unless that file is one that
 * the jail needs under another name. */
#include "jail/restricted.h"

#include "base/banned.h"
#include "base/fd.h"
#include "jail/mnt.h"
#include "jail/root.h"
#include "jail/walls.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sys/stat.h>

/* The names on the default deny-list, and what does the same under another name. */
static const char *const denied[] = {"rm",
                                     "unlink",
                                     "shred",
                                     "mv",
                                     "dd",
                                     "sudo",
                                     "sudoedit",
                                     "su",
                                     "doas",
                                     "pkexec",
                                     "curl",
                                     "wget",
                                     "wget2",
                                     "aria2c",
                                     "axel",
                                     "ssh",
                                     "slogin",
                                     "scp",
                                     "sftp",
                                     "ssh-add",
                                     "ssh-agent",
                                     "ssh-copy-id",
                                     "ssh-keygen",
                                     "ssh-keyscan",
                                     "rsync",
                                     "rsync-ssl",
                                     "nc",
                                     "netcat",
                                     "nc.openbsd",
                                     "nc.traditional",
                                     "ncat",
                                     "socat",
                                     "telnet",
                                     "ftp",
                                     "tnftp",
                                     "lftp",
                                     "inetutils-telnet",
                                     "inetutils-ftp",
                                     "busybox",
                                     "toybox"};
static const char *const places[] = {"usr/bin",
                                     "usr/sbin",
                                     "usr/local/bin",
                                     "usr/local/sbin",
                                     "bin",
                                     "sbin",
                                     "usr/lib/initramfs-tools/bin"};
/* Where several programs are one file, that file cannot be covered for one of them. */
static const char *const needed[] = {"usr/bin/ls", "usr/bin/cat", "usr/bin/bash", "usr/bin/sh",
                                     "bin/ls",     "bin/sh",      "usr/bin/env"};
/* Directories with programs and libraries in a root that the caller brought. */
static const char *const program_dirs[] = {"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"};

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct file_id {
    dev_t dev;
    ino_t ino;
};

static int same_file(const struct stat *st, const struct file_id *ids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i].ino == st->st_ino && ids[i].dev == st->st_dev && ids[i].ino)
            return 1;
    return 0;
}

static void find_needed(int jail, struct file_id *ids)
{
    for (size_t i = 0; i < COUNT(needed); i++) {
        struct stat st;
        auto_fd fd = mnt_open_beneath(jail, needed[i], O_PATH);
        if (fd >= 0 && fstat(fd, &st) == 0)
            ids[i] = (struct file_id){st.st_dev, st.st_ino};
    }
}

/* Covers what the path leads to. What it leads to may be covered already. */
static int cover(int jail, const char *path, const struct file_id *keep, const struct stat *mask)
{
    struct stat st;
    auto_fd at = mnt_open_beneath(jail, path, O_PATH);
    if (at < 0 || fstat(at, &st) < 0)
        return 0; /* it is not there */

    if (!S_ISREG(st.st_mode) || same_file(&st, keep, COUNT(needed)) ||
        (st.st_ino == mask->st_ino && st.st_dev == mask->st_dev))
        return 0;

    auto_fd mount = mnt_clone(AT_FDCWD, "/mask/file", MNT_RDONLY | MNT_NOEXEC);
    return mount < 0 ? mount : mnt_attach(mount, at, "");
}

static int cover_denied(void)
{
    struct file_id keep[COUNT(needed)] = {{0}};
    struct stat mask;
    auto_fd jail = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (jail < 0 || stat("/mask/file", &mask) < 0)
        return -errno;

    find_needed(jail, keep);
    for (size_t p = 0; p < COUNT(places); p++) {
        struct stat st;
        /* Where /bin is a link to /usr/bin, its files are covered already. */
        if (fstatat(jail, places[p], &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
            continue;

        for (size_t i = 0; i < COUNT(denied); i++) {
            char path[80];
            snprintf(path, sizeof path, "%s/%s", places[p], denied[i]);
            int rc = cover(jail, path, keep, &mask);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

/* An overlay is one mount with programs and the sandbox's own files in it. The programs'
 * directories are mounted once more, from the layer below, which nobody can write to. */
static int mount_program_dirs(void)
{
    for (size_t i = 0; i < COUNT(program_dirs); i++) {
        char from[40];
        struct stat st;
        snprintf(from, sizeof from, "/lower/%s", program_dirs[i]);
        if (fstatat(AT_FDCWD, from, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
            continue;

        if (fstatat(AT_FDCWD, program_dirs[i], &st, AT_SYMLINK_NOFOLLOW) < 0)
            return -errno;
        if (!S_ISDIR(st.st_mode))
            return -ENOTDIR;

        int rc = mnt_mount(from, program_dirs[i], NULL, MS_BIND, NULL);
        if (rc < 0)
            return rc;
    }

    return 0;
}

static int forbid_exec(const char *path)
{
    return mnt_mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | MS_NOEXEC,
                     NULL);
}

int restricted_apply(const struct root *r, const char **ret_step)
{
    int rc = 0;

    *ret_step = "mount the programs of the root once more";
    if (!r->host_template && (rc = mount_program_dirs()) < 0)
        return rc;

    *ret_step = "forbid to execute what the sandbox writes";
    if (!wall_off("noexec") && ((rc = forbid_exec(".")) < 0 || (rc = forbid_exec("dev/shm")) < 0))
        return rc;

    *ret_step = "cover denied programs";
    return wall_off("denied") ? 0 : cover_denied();
}
