/* Output goes from a pipe into a file by splice(2), which takes from the pipe exactly what it wrote
 * to the file; short output of a command that nobody relies on yet goes into memory by read(2),
 * because making, filling and deleting a file takes longer than such a command. The head is
 * forgotten by punching holes: offsets stay what they are, and after a restart the first data in
 * the file tells what was forgotten. */
#include "core/spool.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>

#define SPLICE_MAX (1u << 20)
/* The head is punched out in pieces of this size, which is a multiple of every block size. */
#define PUNCH_STEP (1u << 20)
/* The same where space is short. */
#define FORGET_STEP (16u << 10)
/* Of all spools together in memory. */
#define MEMORY_MAX (32u << 20)
/* Of a command that has ended, this much may stay there, while half of the above is free. */
#define MEMORY_RESTS (4u << 10)

static atomic_size_t in_memory;

int spool_open(struct spool *s, int dir, const char *name, uint64_t max, struct pd_err *e)
{
    *s = (struct spool){.dir = dir, .fd = -1, .max = max};
    snprintf(s->name, sizeof s->name, "%s", name);

    int fd = openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? 0 : pd_fail_sys(e, "open the spool %s", name);

    struct stat st;
    if (fstat(fd, &st) < 0) {
        fd_done(&fd);
        return pd_fail_sys(e, "look at the spool %s", name);
    }

    s->fd = fd;
    s->size = (uint64_t)st.st_size;
    /* A head that was forgotten is a hole. */
    off_t first = lseek(fd, 0, SEEK_DATA);
    s->first = first < 0 ? s->size : (uint64_t)first;
    return 0;
}

static void drop_head(struct spool *s)
{
    if (!s->head)
        return;

    atomic_fetch_sub(&in_memory, s->size);
    free(s->head);
    s->head = NULL;
}

void spool_done(struct spool *s)
{
    drop_head(s);
    fd_done(&s->fd);
}

void spool_rest(struct spool *s)
{
    fd_done(&s->fd);
}

void spool_delete(struct spool *s)
{
    if ((s->fd >= 0 || s->size) && !s->head)
        (void)unlinkat(s->dir, s->name, 0);
    s->deleted = true;
}

void spool_remove(struct spool *s)
{
    spool_delete(s);
    spool_done(s);
}

/* Makes the file, with what is in memory. */
static int make_file(struct spool *s)
{
    if (s->deleted)
        return -EIDRM;

    auto_fd fd = openat(s->dir, s->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;

    int r = s->head ? fd_write_all(fd, s->head, s->size) : 0;
    if (r < 0) {
        (void)unlinkat(s->dir, s->name, 0);
        return r;
    }

    drop_head(s);
    s->in_memory = false;
    s->fd = fd_take(&fd);
    return 0;
}

int spool_settle(struct spool *s)
{
    s->in_memory = false;
    return s->head ? make_file(s) : 0;
}

bool spool_should_settle(const struct spool *s)
{
    return s->head && (s->size > MEMORY_RESTS || atomic_load(&in_memory) > MEMORY_MAX / 2);
}

/* Moves what the pipe holds into memory; -EFBIG when that has no room for it. */
static ssize_t fill_head(struct spool *s, int pipe)
{
    size_t have = (size_t)s->size;
    if (have >= SPOOL_HEAD || atomic_load(&in_memory) > MEMORY_MAX)
        return -EFBIG;

    /* All of the room before the bytes are taken from the pipe: from then on nothing may fail. */
    uint8_t *room = realloc(s->head, SPOOL_HEAD);
    if (!room)
        return -EFBIG;
    s->head = room;

    ssize_t n = read(pipe, room + have, SPOOL_HEAD - have);
    int why = n < 0 ? -errno : 0;
    if (n > 0) {
        s->size += (uint64_t)n;
        atomic_fetch_add(&in_memory, (size_t)n);
    }

    if (s->size) {
        uint8_t *exact = realloc(room, s->size);
        s->head = exact ? exact : room;
    } else {
        free(room);
        s->head = NULL;
    }
    return n < 0 ? why : n;
}

/* A stream that nobody ever writes to gets no file. */
static int ensure_file(struct spool *s, int pipe)
{
    if (s->fd >= 0)
        return 0;

    struct pollfd p = {.fd = pipe, .events = POLLIN};
    if (poll(&p, 1, 0) == 0)
        return -EAGAIN;
    if (!(p.revents & POLLIN))
        return -EPIPE;

    return make_file(s);
}

static void forget_head(struct spool *s)
{
    if (s->size - s->first < s->max + PUNCH_STEP)
        return;

    uint64_t keep = (s->size - s->max) / PUNCH_STEP * PUNCH_STEP;
    if (keep > s->first && fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                     (off_t)s->first, (off_t)(keep - s->first)) == 0)
        s->first = keep;
}

void spool_forget(struct spool *s, uint64_t from)
{
    uint64_t keep = from / FORGET_STEP * FORGET_STEP;
    if (keep <= s->first || s->head)
        return;

    auto_fd own = s->fd < 0 ? openat(s->dir, s->name, O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (fallocate(own >= 0 ? own : s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)s->first, (off_t)(keep - s->first)) == 0)
        s->first = keep;
}

ssize_t spool_fill(struct spool *s, int pipe)
{
    ssize_t taken = s->in_memory ? fill_head(s, pipe) : -EFBIG;
    if (taken != -EFBIG)
        return taken;

    int r = ensure_file(s, pipe);
    if (r < 0)
        return r == -EPIPE ? 0 : r;

    off_t at = (off_t)s->size;
    ssize_t n = splice(pipe, NULL, s->fd, &at, SPLICE_MAX, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    if (n < 0)
        return -errno;

    s->size += (uint64_t)n;
    forget_head(s);
    return n;
}

ssize_t spool_fill_terminal(struct spool *s, int master, const int via[2])
{
    /* First what is left in the pipe from a time when the file could not take it. */
    ssize_t rest = spool_fill(s, via[0]);
    if (rest > 0 || (rest < 0 && rest != -EAGAIN))
        return rest;

    ssize_t n = splice(master, NULL, via[1], NULL, 64u << 10, SPLICE_F_NONBLOCK);
    if (n < 0)
        return errno == EIO ? 0 : -errno; /* EIO: nobody has the far end open */
    return n == 0 ? 0 : spool_fill(s, via[0]);
}

ssize_t spool_read(const struct spool *s, uint64_t offset, void *out, size_t size, struct pd_err *e)
{
    if (offset < s->first)
        return pd_fail(e, PD_INVALID,
                       "offset %llu is forgotten: the oldest byte that is kept is at %llu",
                       (unsigned long long)offset, (unsigned long long)s->first);

    if (offset >= s->size)
        return 0;
    if (size > s->size - offset)
        size = (size_t)(s->size - offset);

    if (s->head) {
        memcpy(out, s->head + offset, size);
        return (ssize_t)size;
    }

    auto_fd own = s->fd < 0 ? openat(s->dir, s->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (own < 0 && s->fd < 0)
        return pd_fail_sys(e, "open the spool %s", s->name);

    ssize_t n = pread(own >= 0 ? own : s->fd, out, size, (off_t)offset);
    return n < 0 ? pd_fail_sys(e, "read the spool") : n;
}
