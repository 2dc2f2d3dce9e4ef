/* Init is part of this program as data (init_blob.S). It is copied into a memfd that can be run but
 * not read, sealed against every change, and started from there with execveat. */
#include "jail/init_image.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/walls.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC       1u
#define MFD_ALLOW_SEALING 2u
#endif
#ifndef MFD_EXEC
#define MFD_EXEC 0x10u /* since Linux 6.3; without it vm.memfd_noexec could forbid the exec */
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS   1033
#define F_SEAL_SEAL   1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW   4
#define F_SEAL_WRITE  8
#endif

/* init_blob.S */
extern const unsigned char init_blob_start[] __attribute__((visibility("hidden")));
extern const unsigned char init_blob_end[] __attribute__((visibility("hidden")));
/* box_blob.S */
extern const unsigned char box_blob_start[] __attribute__((visibility("hidden")));
extern const unsigned char box_blob_end[] __attribute__((visibility("hidden")));

static int open_copy(const unsigned char *start, const unsigned char *end, mode_t mode,
                     struct pd_err *e)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    auto_fd fd = (int)syscall(SYS_memfd_create, "paddock-init", flags | MFD_EXEC);
    if (fd < 0 && errno == EINVAL)
        fd = (int)syscall(SYS_memfd_create, "paddock-init", flags);
    if (fd < 0)
        return pd_fail_sys(e, "make memory for init");

    int r = fd_write_all(fd, start, (size_t)(end - start));
    if (r < 0) {
        errno = -r;
        return pd_fail_sys(e, "write init");
    }

    if (fchmod(fd, mode) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
        return pd_fail_sys(e, "seal init");

    return fd_take(&fd);
}

int init_image_open(struct pd_err *e)
{
    /* To be run and not to be read: then the kernel makes the process undumpable before its first
     * instruction, and gives its files in /proc to the host's root instead of the jail's. */
    return open_copy(init_blob_start, init_blob_end, wall_off("dumpable") ? 0755 : 0111, e);
}

int init_image_open_file(struct pd_err *e)
{
    return open_copy(init_blob_start, init_blob_end, 0555, e);
}

int box_image_open(struct pd_err *e)
{
    return open_copy(box_blob_start, box_blob_end, 0111, e);
}

int box_image_open_file(struct pd_err *e)
{
    return open_copy(box_blob_start, box_blob_end, 0555, e);
}
