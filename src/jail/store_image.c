#include "jail/store_in.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/mnt.h"
#include "jail/skeleton.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/loop.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define LOOP_TRIES          64
#define UNMOUNT_PAUSE_US    5000u
#define UNMOUNT_PATIENCE_US 2000000u
#define IMAGE_MIN           (16ULL << 20) /* an ext4 with a journal */

static const char *const mkfs_paths[] = {"/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4",
                                         "/usr/local/sbin/mkfs.ext4"};

static int run_mkfs(const char *image_path, const struct limits *l, struct pd_err *e)
{
    /* An inode is 256 bytes of the image: not more of them than blocks could ever be filled. */
    uint64_t files = l->files + SKELETON_FILES;
    if (files > l->disk / 8192)
        files = l->disk / 8192;
    char inodes[24];
    snprintf(inodes, sizeof inodes, "%" PRIu64, files);
    char *argv[] = {(char *)"mkfs.ext4",
                    (char *)"-q",
                    (char *)"-F",
                    (char *)"-m", /* reserved blocks would be space that the user cannot have */
                    (char *)"0",
                    (char *)"-N",
                    inodes,
                    (char *)"-O",
                    (char *)"^resize_inode",
                    (char *)"-E",
                    (char *)"nodiscard,root_owner=0:0",
                    (char *)image_path,
                    NULL};
    char *env[] = {NULL};
    pid_t pid;
    int sys = ENOENT;
    for (size_t i = 0; sys == ENOENT && i < sizeof mkfs_paths / sizeof *mkfs_paths; i++)
        sys = posix_spawn(&pid, mkfs_paths[i], NULL, NULL, argv, env);
    if (sys == ENOENT)
        return pd_fail(e, PD_UNSUPPORTED,
                       "a named root needs mkfs.ext4 or project quotas: apt install e2fsprogs");
    errno = sys;
    if (sys)
        return pd_fail_sys(e, "start mkfs.ext4");
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (status != 0)
        return pd_fail(e, PD_INTERNAL, "mkfs.ext4 failed with status %d", status);
    return 0;
}

int image_make(int root, const struct limits *l, struct pd_err *e)
{
    if (l->disk < IMAGE_MIN)
        return pd_fail(e, PD_INVALID, "--disk: a named root needs at least %llu bytes", IMAGE_MIN);
    auto_fd fd = openat(root, "image.new", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)l->disk) < 0)
        return pd_fail_sys(e, "make the root's image");
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), fd);
    if (run_mkfs(path, l, e) < 0)
        return -1;
    if (fsync(fd) < 0 || renameat(root, "image.new", root, "image") < 0)
        return pd_fail_sys(e, "keep the root's image");
    return 0;
}

/* Attaches the image to a free loop device and returns the device. The device goes away by itself
 * with its last mount, and until then holds the image's description, and so the lock on it. */
static int loop_attach(int image, char *ret_path, size_t size, struct pd_err *e)
{
    auto_fd control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0)
        return pd_fail_sys(e, "a named root needs loop devices or project quotas: open "
                              "/dev/loop-control (try: modprobe loop)");
    for (int i = 0; i < LOOP_TRIES; i++) {
        int number = ioctl(control, LOOP_CTL_GET_FREE);
        if (number < 0)
            return pd_fail_sys(e, "find a free loop device");
        snprintf(ret_path, size, "/dev/loop%d", number);
        auto_fd device = open(ret_path, O_RDWR | O_CLOEXEC);
        if (device < 0)
            return pd_fail_sys(e, "open %s", ret_path);
        struct loop_config config = {.fd = (uint32_t)image,
                                     .info = {.lo_flags = LO_FLAGS_AUTOCLEAR}};
        if (ioctl(device, LOOP_CONFIGURE, &config) == 0)
            return fd_take(&device);
        if (errno != EBUSY) /* somebody else was faster: try the next one */
            return pd_fail_sys(e, "attach the image to %s", ret_path);
    }
    return pd_fail(e, PD_CAPACITY, "no free loop device after %d tries", LOOP_TRIES);
}

int image_lock(int image, int how)
{
    for (unsigned waited = 0;; waited += UNMOUNT_PAUSE_US) {
        if (flock(image, how | LOCK_NB) == 0)
            return 0;
        if (errno != EWOULDBLOCK || waited >= UNMOUNT_PATIENCE_US)
            return -1;
        usleep(UNMOUNT_PAUSE_US);
    }
}

int image_mount(int root, const struct limits *l, struct pd_err *e)
{
    auto_fd image = openat(root, "image", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (image < 0 || fstat(image, &st) < 0)
        return pd_fail_sys(e, "open the root's image");
    if (image_lock(image, LOCK_EX) < 0)
        return pd_fail(e, PD_CONFLICT, "the root's image is still mounted by an earlier jail");
    struct limits usual = LIMITS_DEFAULT;
    if (l->disk != usual.disk && (uint64_t)st.st_size != l->disk)
        return pd_fail(e, PD_CONFLICT,
                       "the root was made with a disk of %" PRIu64
                       " bytes: leave --disk away or remove the root",
                       (uint64_t)st.st_size);
    char device_path[32], source[40];
    auto_fd device = loop_attach(image, device_path, sizeof device_path, e);
    if (device < 0)
        return -1;
    snprintf(source, sizeof source, "source=%s", device_path);
    const char *const options[] = {source, NULL};
    int mount = mnt_filesystem("ext4", options, 0);
    if (mount >= 0)
        return mount;
    errno = -mount;
    return pd_fail_sys(e, "mount the root's image");
}
