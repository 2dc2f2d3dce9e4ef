/* Files are named TENANT.HASH in one directory; a tenant's name has no dot. One that is being sent
 * is .new-TENANT.RANDOM. */
#include "build/files.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEW_PREFIX ".new-"
#define NEW_MAX    8u /* of a tenant, that are being sent at once */

struct permit {
    uint8_t digest[SHA256_SIZE];
    char tenant[64];
    char hash[SHA256_HEX_SIZE];
    uint64_t until_ms; /* 0: free */
};

struct files {
    int dir; /* not owned */
    struct lock lock;
    struct permit permits[PERMITS_MAX];
};

bool files_is_hash(const char *text)
{
    return strlen(text) == 64 && text[strspn(text, "0123456789abcdef")] == 0;
}

static void file_name(const char *tenant, const char *hash, char out[160])
{
    snprintf(out, 160, "%.63s.%.64s", tenant, hash);
}

static DIR *open_list(const struct files *f)
{
    auto_fd dir = openat(f->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = dir < 0 ? NULL : fdopendir(dir);
    if (list)
        fd_take(&dir);
    return list;
}

struct files *files_new(int dir, struct pd_err *e)
{
    struct files *f = calloc(1, sizeof *f);
    if (!f) {
        pd_fail(e, PD_CAPACITY, "no memory for the files of builds");
        return NULL;
    }

    f->dir = dir;
    lock_init(&f->lock, LOCK_PERMITS);
    DIR *list = open_list(f);
    const struct dirent *d;
    while (list && (d = readdir(list)))
        if (!strncmp(d->d_name, NEW_PREFIX, sizeof NEW_PREFIX - 1))
            (void)unlinkat(dir, d->d_name, 0);
    if (list)
        closedir(list);
    return f;
}

void files_free(struct files *f)
{
    if (!f)
        return;
    lock_done(&f->lock);
    free(f);
}

bool files_has(struct files *f, const char *tenant, const char *hash)
{
    char name[160];
    struct stat st;
    file_name(tenant, hash, name);
    return files_is_hash(hash) && fstatat(f->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static int digest_of(int fd, char ret[SHA256_HEX_SIZE])
{
    struct sha256 h = SHA256_INIT;
    uint8_t bytes[16384];
    ssize_t n;
    uint64_t at = 0;

    while ((n = pread(fd, bytes, sizeof bytes, (off_t)at)) > 0) {
        sha256_put(&h, bytes, (size_t)n);
        at += (uint64_t)n;
    }
    sha256_end_hex(&h, ret);
    return n < 0 ? -1 : 0;
}

int files_open(struct files *f, const char *tenant, const char *hash,
               char ret_digest[SHA256_HEX_SIZE], struct pd_err *e)
{
    char name[160];
    file_name(tenant, hash, name);
    if (!files_is_hash(hash))
        return pd_fail(e, PD_INVALID, "'%.80s' is no hash of 64 hex digits", hash);

    auto_fd fd = openat(f->dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return pd_fail(e, PD_NOT_FOUND,
                       "no files were sent under the hash %.12s...: send them before the build is "
                       "started",
                       hash);
    if (ret_digest && digest_of(fd, ret_digest) < 0)
        return pd_fail_sys(e, "read the files of a build");
    return fd_take(&fd);
}

/* ---- sending ---- */

/* The tenant's bytes, and its oldest file. */
static uint64_t look(const struct files *f, const char *tenant, char ret_oldest[256])
{
    size_t len = strlen(tenant);
    uint64_t sum = 0;
    struct timespec oldest = {0};
    DIR *list = open_list(f);
    const struct dirent *d;

    ret_oldest[0] = 0;
    while (list && (d = readdir(list))) {
        struct stat st;
        if (strncmp(d->d_name, tenant, len) != 0 || d->d_name[len] != '.' ||
            fstatat(f->dir, d->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        sum += (uint64_t)st.st_size;
        if (!ret_oldest[0] || st.st_mtim.tv_sec < oldest.tv_sec ||
            (st.st_mtim.tv_sec == oldest.tv_sec && st.st_mtim.tv_nsec < oldest.tv_nsec)) {
            oldest = st.st_mtim;
            snprintf(ret_oldest, 256, "%s", d->d_name);
        }
    }
    if (list)
        closedir(list);
    return sum;
}

static unsigned count_new(const struct files *f, const char *tenant)
{
    char prefix[80];
    unsigned count = 0;
    DIR *list = open_list(f);
    const struct dirent *d;

    snprintf(prefix, sizeof prefix, NEW_PREFIX "%.63s.", tenant);
    while (list && (d = readdir(list)))
        count += !strncmp(d->d_name, prefix, strlen(prefix));
    if (list)
        closedir(list);
    return count;
}

int files_begin(struct files *f, const char *tenant, struct sending *s, struct pd_err *e)
{
    uint8_t random[8];
    char hex[17];

    if (count_new(f, tenant) >= NEW_MAX)
        return pd_fail(e, PD_RATE, "%u files are being sent already: wait for one", NEW_MAX);
    random_bytes(random, sizeof random);
    hex_encode(random, sizeof random, hex);
    snprintf(s->name, sizeof s->name, NEW_PREFIX "%.63s.%s", tenant, hex);
    s->fd = openat(f->dir, s->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return s->fd < 0 ? pd_fail_sys(e, "make a file for what is sent") : 0;
}

int files_finish(struct files *f, const char *tenant, const char *hash, bool check_digest,
                 struct sending *s, struct pd_err *e)
{
    char name[160], oldest[256], digest[SHA256_HEX_SIZE];
    struct stat st;

    if (fstat(s->fd, &st) < 0)
        return pd_fail_sys(e, "look at what was sent");
    if (check_digest && digest_of(s->fd, digest) < 0)
        return pd_fail_sys(e, "read what was sent");
    if (check_digest && strcmp(digest, hash) != 0)
        return pd_fail(e, PD_INVALID, "what was sent has the digest %.64s, not the one of the path",
                       digest);

    lock_take(&f->lock);
    while (look(f, tenant, oldest) + (uint64_t)st.st_size > FILES_OF_TENANT && oldest[0])
        if (unlinkat(f->dir, oldest, 0) < 0)
            break;
    file_name(tenant, hash, name);
    int r = renameat(f->dir, s->name, f->dir, name);
    int sys = errno;
    lock_release(&f->lock);

    errno = sys;
    if (r < 0)
        return pd_fail_sys(e, "keep what was sent");
    fd_done(&s->fd);
    return 0;
}

void files_drop(struct files *f, struct sending *s)
{
    if (s->fd < 0)
        return;
    fd_done(&s->fd);
    (void)unlinkat(f->dir, s->name, 0);
}

/* ---- permits ---- */

/* A free one, or the tenant's oldest where it has enough. With the lock held. */
static struct permit *permit_place(struct files *f, const char *tenant, uint64_t now)
{
    struct permit *free_one = NULL, *oldest = NULL;
    unsigned count = 0;

    for (unsigned i = 0; i < PERMITS_MAX; i++) {
        struct permit *p = &f->permits[i];
        if (p->until_ms <= now) {
            free_one = p;
        } else if (!strcmp(p->tenant, tenant)) {
            count++;
            if (!oldest || p->until_ms < oldest->until_ms)
                oldest = p;
        }
    }
    return count < PERMITS_TENANT && free_one ? free_one : oldest;
}

int permits_make(struct files *f, const char *tenant, const char *hash, char ret[PERMIT_LEN + 1],
                 struct pd_err *e)
{
    uint8_t random[32];
    uint64_t now = time_now_ms();
    struct sha256 h = SHA256_INIT;

    random_bytes(random, sizeof random);
    hex_encode(random, sizeof random, ret);

    lock_take(&f->lock);
    struct permit *p = permit_place(f, tenant, now);
    if (p) {
        sha256_put(&h, random, sizeof random);
        sha256_end(&h, p->digest);
        snprintf(p->tenant, sizeof p->tenant, "%s", tenant);
        snprintf(p->hash, sizeof p->hash, "%s", hash);
        p->until_ms = now + PERMIT_LIFE_MS;
    }
    lock_release(&f->lock);
    return p ? 0
             : pd_fail(e, PD_CAPACITY,
                       "other tenants have all places for files that are to be "
                       "sent: try again later");
}

int permits_take(struct files *f, const char *permit, char ret_tenant[64],
                 char ret_hash[SHA256_HEX_SIZE], struct pd_err *e)
{
    uint8_t random[32], digest[SHA256_SIZE];
    uint64_t now = time_now_ms();
    struct sha256 h = SHA256_INIT;
    bool found = false;

    if (hex_decode(permit, random, sizeof random) < 0)
        return pd_fail(e, PD_UNAUTHENTICATED, "the address for files is none of this server");
    /* The table has digests: how long the search takes tells nothing of them. */
    sha256_put(&h, random, sizeof random);
    sha256_end(&h, digest);

    lock_take(&f->lock);
    for (unsigned i = 0; i < PERMITS_MAX && !found; i++) {
        struct permit *p = &f->permits[i];
        if (p->until_ms <= now || memcmp(p->digest, digest, sizeof digest) != 0)
            continue;
        found = true;
        snprintf(ret_tenant, 64, "%s", p->tenant);
        memcpy(ret_hash, p->hash, SHA256_HEX_SIZE);
        p->until_ms = 0;
    }
    lock_release(&f->lock);
    return found ? 0
                 : pd_fail(e, PD_UNAUTHENTICATED,
                           "the address for files was used, or is too old: ask for another one");
}
