#include "jail/quota.h"

#include "base/banned.h"

#include <errno.h>
#include <linux/fs.h>
#include <linux/quota.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* Project ids of ours: the inode number of the directory, which is unique in its file system,
 * moved away from the small numbers that administrators hand out. */
#define PROJECT_BASE 0x40000000u

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

int quota_limit(int dir, uint64_t bytes, uint64_t files)
{
    struct stat st;
    struct fsxattr attributes;
    if (fstat(dir, &st) < 0 || ioctl(dir, FS_IOC_FSGETXATTR, &attributes) < 0)
        return -errno;
    attributes.fsx_projid = PROJECT_BASE | (uint32_t)(st.st_ino & 0x3fffffff);
    attributes.fsx_xflags |= FS_XFLAG_PROJINHERIT;
    if (ioctl(dir, FS_IOC_FSSETXATTR, &attributes) < 0)
        return -errno;
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
