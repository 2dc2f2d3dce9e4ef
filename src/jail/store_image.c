/* Roots as ext4 images in sparse files, mounted by loop devices.
 *
 * mkfs takes long, so a copy of the first fresh image of a size is kept as a blank, and the next
 * image of that size is a copy of it. A loop device goes away with its last mount, and with it the
 * lock on the image: a new user waits a moment for that. */
#include "jail/store_in.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/copy.h"
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
#define EXT4_MAGIC_AT       (1024 + 56)

static const char *const mkfs_paths[] = {"/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4",
                                         "/usr/local/sbin/mkfs.ext4"};

/* An inode is 256 bytes of the image: not more of them than blocks could ever be filled. */
static uint64_t image_inodes(const struct limits *l)
{
    uint64_t files = l->files + SKELETON_FILES;
    return files > l->disk / 8192 ? l->disk / 8192 : files;
}

static int run_mkfs(const char *image_path, const struct limits *l, struct pd_err *e)
{
    char inodes[24];
    snprintf(inodes, sizeof inodes, "%" PRIu64, image_inodes(l));
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

    if (WIFSIGNALED(status))
        return pd_fail(e, PD_INTERNAL, "mkfs.ext4 was ended by signal %d", WTERMSIG(status));
    if (status != 0)
        return pd_fail(e, PD_INTERNAL, "mkfs.ext4 failed with exit status %d", WEXITSTATUS(status));
    return 0;
}

static void blank_name(const struct limits *l, char ret[80])
{
    snprintf(ret, 80, STORE_BLANK "%" PRIu64 "-%" PRIu64, l->disk, image_inodes(l));
}

/* Of a file that nobody but us writes, and that was on the disk before it got its name, this says
 * enough: that it is what its name says, and a file system. */
static int blank_is_good(int blank, const struct limits *l)
{
    struct stat st;
    unsigned char magic[2];
    return fstat(blank, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == l->disk &&
           pread(blank, magic, sizeof magic, EXT4_MAGIC_AT) == sizeof magic && magic[0] == 0x53 &&
           magic[1] == 0xef;
}

/* Fills the image from the blank one of its size. -1 when there is none: mkfs is the other way. */
static int image_from_blank(int roots, int image, const struct limits *l)
{
    char name[80];
    blank_name(l, name);
    auto_fd blank = openat(roots, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (blank < 0)
        return -1;

    if (!blank_is_good(blank, l)) {
        (void)unlinkat(roots, name, 0);
        return -1;
    }
    return copy_data(blank, image) < 0 ? -1 : 0;
}

/* Keeps a copy of a fresh image for the next root of its size. Builders may do this at the same
 * time, each under a name of its own; the last one stays. Not worth an error. */
static void blank_keep(int roots, int image, const struct limits *l)
{
    char name[80], temporary[80];
    uint64_t random;

    blank_name(l, name);
    random_bytes(&random, sizeof random);
    snprintf(temporary, sizeof temporary, STORE_TRASH "blank-%016" PRIx64, random);

    auto_fd blank =
        openat(roots, temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (blank < 0)
        return;

    /* Should the trash be emptied meanwhile, only the rename fails. */
    if (copy_data(image, blank) < 0 || fsync(blank) < 0 ||
        renameat(roots, temporary, roots, name) < 0)
        (void)unlinkat(roots, temporary, 0);
}

void image_forget_blank(int roots, const struct limits *l)
{
    char name[80];
    blank_name(l, name);
    (void)unlinkat(roots, name, 0);
}

int image_make(int roots, int root, const struct limits *l, int *ret_from_blank, struct pd_err *e)
{
    if (l->disk < IMAGE_MIN)
        return pd_fail(e, PD_INVALID, "--disk: a named root needs at least %llu bytes", IMAGE_MIN);

    auto_fd fd = openat(root, "image.new", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return pd_fail_sys(e, "make the root's image");

    int from_blank = image_from_blank(roots, fd, l) == 0;
    if (!from_blank) {
        /* Half a copy would be in the way: mkfs takes what it does not write for zero. */
        if (ftruncate(fd, 0) < 0 || ftruncate(fd, (off_t)l->disk) < 0)
            return pd_fail_sys(e, "make the root's image");

        char path[64];
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), fd);
        if (run_mkfs(path, l, e) < 0)
            return -1;
    }

    if (fsync(fd) < 0 || renameat(root, "image.new", root, "image") < 0)
        return pd_fail_sys(e, "keep the root's image");
    if (!from_blank)
        blank_keep(roots, fd, l);
    *ret_from_blank = from_blank;
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

int image_mount(int root, const struct limits *l, int must_last, struct pd_err *e)
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
    /* Unused inodes are holes of the file, zero already. Nothing writes to the image but the jail.
     */
    const char *const options[] = {source, "noinit_itable", must_last ? NULL : "nobarrier", NULL};
    int mount = mnt_filesystem("ext4", options, 0);

    if (mount >= 0)
        return mount;
    errno = -mount;
    return pd_fail_sys(e, "mount the root's image");
}
