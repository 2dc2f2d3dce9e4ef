/* A directory as the source of an import: an OCI layout, as `skopeo copy ... oci:DIR` and `umoci`
 * write it. What a layout consists of is packed into a file without a name, which is then read as
 * any archive: oci-layout, index.json and the files of blobs/sha256, and nothing else that lies
 * there. Links are not followed; a name that is no digest is left out. */
#include "cli/image.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK      512u
#define BLOBS_MAX  4096u
#define SIZE_LIMIT (UINT64_C(1) << 33) /* that eleven octal digits can say */

struct ustar {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
    char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], rest[12];
};

static int write_all(int to, const void *data, size_t len)
{
    const char *at = data;
    while (len) {
        ssize_t n = write(to, at, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

static int write_head(int to, const char *name, uint64_t size)
{
    struct ustar h = {.type = '0', .magic = "ustar", .version = {'0', '0'}};
    unsigned sum = 0;

    snprintf(h.name, sizeof h.name, "%s", name);
    memcpy(h.mode, "0000644", sizeof h.mode);
    memcpy(h.uid, "0000000", sizeof h.uid);
    memcpy(h.gid, "0000000", sizeof h.gid);
    snprintf(h.size, sizeof h.size, "%011jo", (uintmax_t)size);
    memcpy(h.mtime, "00000000000", sizeof h.mtime);
    memset(h.sum, ' ', sizeof h.sum);
    for (size_t i = 0; i < sizeof h; i++)
        sum += ((const unsigned char *)&h)[i];
    snprintf(h.sum, sizeof h.sum, "%06o", sum & 0777777u);
    return write_all(to, &h, sizeof h);
}

/* So many bytes and no others, whatever becomes of the file meanwhile. */
static int copy_bytes(int from, int to, uint64_t size)
{
    char piece[1u << 16];

    while (size) {
        ssize_t n = copy_file_range(from, NULL, to, NULL, size < (1u << 30) ? size : 1u << 30, 0);
        if (n < 0 &&
            (errno == EXDEV || errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS)) {
            n = read(from, piece, size < sizeof piece ? size : sizeof piece);
            if (n > 0 && write_all(to, piece, (size_t)n) < 0)
                return -1;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n ? errno : EIO; /* it has got shorter */
            return -1;
        }
        size -= (uint64_t)n;
    }
    return 0;
}

/* Packs one file under its name. 0 or -1. */
static int pack(int dir, const char *file, const char *name, int to, struct pd_err *e)
{
    static const char zeros[BLOCK];
    struct stat st;
    auto_fd fd = openat(dir, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0 || fstat(fd, &st) < 0)
        return pd_fail(e, PD_INVALID, "%.80s: %s", name, strerror(errno));
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size >= SIZE_LIMIT)
        return pd_fail(e, PD_INVALID, "%.80s: not a file of less than 8 GiB", name);

    uint64_t size = (uint64_t)st.st_size, over = size % BLOCK;
    if (write_head(to, name, size) < 0 || copy_bytes(fd, to, size) < 0 ||
        (over && write_all(to, zeros, BLOCK - over) < 0))
        return pd_fail_sys(e, "copy %.80s", name);
    return 0;
}

static bool is_digest(const char *name)
{
    return strlen(name) == 64 && strspn(name, "0123456789abcdef") == 64;
}

static int pack_blobs(int dir, int to, struct pd_err *e)
{
    int fd = openat(dir, "blobs/sha256", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *blobs = fd >= 0 ? fdopendir(fd) : NULL;
    unsigned count = 0;
    int bad = 0;

    if (!blobs) {
        fd_done(&fd);
        return pd_fail(e, PD_INVALID, "blobs/sha256: %s", strerror(errno));
    }
    for (const struct dirent *d; !bad && (d = readdir(blobs));) {
        char name[100];
        if (!is_digest(d->d_name))
            continue;
        if (++count > BLOBS_MAX) {
            bad = pd_fail(e, PD_TOO_LARGE, "more than %u blobs", BLOBS_MAX);
            break;
        }
        snprintf(name, sizeof name, "blobs/sha256/%.64s", d->d_name);
        bad = pack(fd, d->d_name, name, to, e);
    }
    closedir(blobs);
    return bad;
}

int image_dir_pack(int dir, int images, struct pd_err *e)
{
    static const char end[2 * BLOCK];
    char again[40];
    struct stat st;
    auto_fd to = openat(images, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);

    if (to < 0)
        return pd_fail_sys(e, "make a file in the store");
    if (fstatat(dir, "oci-layout", &st, AT_SYMLINK_NOFOLLOW) < 0)
        return pd_fail(
            e, PD_INVALID,
            "it has no file oci-layout: a directory is an image when it is an OCI layout, "
            "as `skopeo copy docker://NAME oci:DIR` writes one");
    if (pack(dir, "oci-layout", "oci-layout", to, e) < 0 ||
        pack(dir, "index.json", "index.json", to, e) < 0 || pack_blobs(dir, to, e) < 0)
        return -1;
    if (write_all(to, end, sizeof end) < 0)
        return pd_fail_sys(e, "write a file in the store");

    /* Whoever reads it may not write it. */
    snprintf(again, sizeof again, "/proc/self/fd/%d", to);
    int fd = open(again, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? pd_fail_sys(e, "open what was packed") : fd;
}
