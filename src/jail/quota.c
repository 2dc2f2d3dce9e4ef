/* Limits of space and files by project quotas: a directory tree has a project id, the file system
 * counts what belongs to that id, and everything made below inherits it.
 *
 * The id is made of the directory's inode number, which is unique in its file system. A large XFS
 * has more inodes than there are ids, so an id that is in use already is passed over for the next
 * one. */
#include "jail/quota.h"

#include "base/banned.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/quota.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* Ids of ours lie away from the small numbers that administrators hand out. */
#define PROJECT_BASE 0x40000000u
#define PROJECT_MASK 0x3fffffffu
/* So many neighbours of an id that are all in use: something else is wrong. */
#define PROJECT_TRIES 64u

/* QCMD of the kernel's header shifts into the sign. */
#define QUOTA_COMMAND(c) ((int)((uint32_t)(c) << SUBCMDSHIFT | PRJQUOTA))

/* Since Linux 5.14, with the same number everywhere; libc headers are older. */
#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443
#endif

static int quota_call(int dir, int command, uint32_t project, void *arg)
{
    return syscall(SYS_quotactl_fd, dir, command, project, arg) < 0 ? -errno : 0;
}

int quota_available(int dir)
{
    struct if_dqinfo info;
    struct if_dqblk block = {0};

    /* GETINFO answers when accounting is on; only setting a limit shows that we may. Project
     * PROJECT_BASE itself is nobody's: inode 0 does not exist. */
    block.dqb_valid = QIF_LIMITS;
    return quota_call(dir, QUOTA_COMMAND(Q_GETINFO), 0, &info) == 0 &&
           quota_call(dir, QUOTA_COMMAND(Q_SETQUOTA), PROJECT_BASE, &block) == 0;
}

uint32_t quota_project(uint64_t inode, int (*in_use)(uint32_t project, void *arg), void *arg)
{
    for (uint32_t i = 0; i < PROJECT_TRIES; i++) {
        uint32_t project = PROJECT_BASE | (uint32_t)((inode + i) & PROJECT_MASK);
        /* The first one is nobody's: quota_available tries it out. */
        if (project != PROJECT_BASE && !in_use(project, arg))
            return project;
    }
    return 0;
}

/* A tree that has the id counts itself, at least. Limits stay behind when a tree is removed. */
static int project_in_use(uint32_t project, void *arg)
{
    struct if_dqblk block = {0};
    int r = quota_call(*(int *)arg, QUOTA_COMMAND(Q_GETQUOTA), project, &block);
    return r == 0 && (block.dqb_curinodes || block.dqb_curspace);
}

/* Gives a directory a project of its own, unless it has one. */
static int take_project(int dir, struct fsxattr *attributes)
{
    struct stat st;

    if (fstat(dir, &st) < 0 || ioctl(dir, FS_IOC_FSGETXATTR, attributes) < 0)
        return -errno;
    if (attributes->fsx_projid > PROJECT_BASE && attributes->fsx_xflags & FS_XFLAG_PROJINHERIT)
        return 0;

    attributes->fsx_projid = quota_project(st.st_ino, project_in_use, &dir);
    if (!attributes->fsx_projid)
        return -EBUSY;
    attributes->fsx_xflags |= FS_XFLAG_PROJINHERIT;
    return ioctl(dir, FS_IOC_FSSETXATTR, attributes) < 0 ? -errno : 0;
}

int quota_limit(int dir, uint64_t bytes, uint64_t files)
{
    struct fsxattr attributes;

    /* Between finding an id free and taking it, no other builder may do the same. */
    auto_fd lock = openat(dir, "../..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0 || flock(lock, LOCK_EX) < 0)
        return -errno;

    int r = take_project(dir, &attributes);
    if (r < 0)
        return r;

    struct if_dqblk block = {.dqb_bhardlimit = bytes / 1024,
                             .dqb_bsoftlimit = bytes / 1024,
                             .dqb_ihardlimit = files,
                             .dqb_isoftlimit = files,
                             .dqb_valid = QIF_LIMITS};
    return quota_call(dir, QUOTA_COMMAND(Q_SETQUOTA), attributes.fsx_projid, &block);
}

int quota_read(int dir, uint64_t *ret_bytes, uint64_t *ret_files)
{
    struct fsxattr attributes;
    struct if_dqblk block = {0};

    if (ioctl(dir, FS_IOC_FSGETXATTR, &attributes) < 0)
        return -errno;
    int r = attributes.fsx_projid
                ? quota_call(dir, QUOTA_COMMAND(Q_GETQUOTA), attributes.fsx_projid, &block)
                : 0;
    if (r < 0 && r != -ESRCH && r != -ENOENT)
        return r;

    *ret_bytes = block.dqb_bhardlimit * 1024;
    *ret_files = block.dqb_ihardlimit;
    return 0;
}
