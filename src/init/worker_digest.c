/* digest: one number for everything below a directory, to tell whether two trees are the same.
 *
 * Entries are taken in the walk's order, each with its type, permissions and path, a link with
 * where it points to, a file with its contents. Owners and times are left out: they differ between
 * any two sandboxes. A file that may not be read counts without its contents. The digest is of the
 * whole tree or there is none: with more entries or bytes than the asker allows it is given up.
 *
 * Nobody waits for it, so it takes the processor last. */
#include "init/path.h"
#include "init/walk.h"
#include "init/worker.h"

#include "base/banned.h"
#include "base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/resource.h>

#define OPEN_FILE   (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
#define ENTRIES_MAX 1000000u
#define BYTES_MAX   (1ull << 40)
#define PIECE       (64u << 10)

struct digest {
    struct sha256 hash;
    uint64_t entries, bytes; /* how many it may still take */
    int without_hidden;      /* of the directory itself */
};

/* 0; or -1: there is more than it may take. */
static int put_contents(struct digest *d, const struct walk *k)
{
    static uint8_t piece[PIECE];
    uint64_t size = 0;
    struct stat st;
    auto_fd fd = openat(k->dir, k->name, OPEN_FILE);

    bool readable = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    for (ssize_t n; readable && (n = read(fd, piece, sizeof piece)) != 0;) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        if ((uint64_t)n > d->bytes)
            return -1;
        d->bytes -= (uint64_t)n;
        size += (uint64_t)n;
        sha256_put(&d->hash, piece, (size_t)n);
    }

    char end[32];
    int len =
        snprintf(end, sizeof end, " %llu%c\n", (unsigned long long)size, readable ? 'r' : '-');
    sha256_put(&d->hash, end, (size_t)len);
    return 0;
}

static int put_entry(struct digest *d, struct walk *k)
{
    char head[32], target[PATH_MAX];
    unsigned type = (k->st.st_mode & S_IFMT) >> 12, mode = k->st.st_mode & 07777;
    if (!d->entries)
        return -1;

    d->entries--;
    int len = snprintf(head, sizeof head, "%u %o ", type, S_ISLNK(k->st.st_mode) ? 0 : mode);
    sha256_put(&d->hash, head, (size_t)len);
    sha256_put(&d->hash, k->path, strlen(k->path) + 1);

    if (S_ISREG(k->st.st_mode))
        return put_contents(d, k);
    if (S_ISLNK(k->st.st_mode)) {
        path_readlink(k->dir, k->name, target);
        sha256_put(&d->hash, target, strlen(target) + 1);
    }
    if (S_ISDIR(k->st.st_mode))
        (void)walk_enter(k); /* of one that may not be read only the name counts */
    return 0;
}

int worker_digest(struct worker_job *w, struct pd_err *e)
{
    struct digest d = {.hash = SHA256_INIT};
    uint8_t value[SHA256_SIZE];
    struct stat st;

    if (worker_number("entries", w->argv[2], 0, ENTRIES_MAX, &d.entries, e) < 0 ||
        worker_number("bytes", w->argv[3], 0, BYTES_MAX, &d.bytes, e) < 0 ||
        worker_flag("without hidden", w->argv[4], &d.without_hidden, e) < 0)
        return -1;
    (void)setpriority(PRIO_PROCESS, 0, 19);

    int dir = path_open_dir(w, w->argv[1], &st, e);
    if (dir < 0)
        return -1;
    auto_walk k;
    if (walk_begin(&k, dir, NULL, SIZE_MAX, 0, e) < 0)
        return -1;

    for (int step; (step = walk_next(&k, e)) != WALK_END;) {
        if (step < 0)
            return -1;
        if (step == WALK_LEAVE || (d.without_hidden && k.path[0] == '.'))
            continue;
        if (put_entry(&d, &k) < 0) {
            worker_put(w, &(struct record){.kind = RECORD_MORE, .more = {.cursor = ""}});
            return 0;
        }
    }

    sha256_end(&d.hash, value);
    struct record r = {.kind = RECORD_VALUE,
                       .value = {.name = "sha256", .data = value, .len = sizeof value}};
    worker_put(w, &r);
    worker_put(w, &(struct record){.kind = RECORD_END});
    return 0;
}
