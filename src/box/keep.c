/* How this works: one file in memory, mapped where all processes that have it see the same.
 *
 * A pipe is read by splice(2) into that file: the kernel writes the offset behind the bytes before
 * it returns. A socket is read by recvmmsg(2), which tells the length in memory likewise. Bytes
 * that are to be written go into a pipe of ours first, which nobody else reads, and from there to
 * where they belong: what is left in that pipe tells how many have passed. SIGKILL ends a process
 * between calls, never within one that does not wait. */
#include "box/keep.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/fd.h"
#include "link/link_frame.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PLACES     LINK_CHANNELS_MAX
#define RECORD_MAX (16u << 20)
#define PIPE_BYTES (64u << 10)
#define PAGE       UINT64_C(4096)
/* So many that nobody can ask for any more are given back at once. */
#define FREE_BYTES (64u << 10)

enum { FREE, TAKEN, LEFT };
enum { NOTHING, FILLING, PASSING };

/* What is being read: `end` counts when nothing is, else `before` and what the kernel says. */
struct place {
    _Atomic uint64_t written, start, end;
    _Atomic uint64_t freed; /* below it there is no memory; a multiple of PAGE */
    _Atomic uint64_t before;
    _Atomic int from; /* of a call: an offset, a message; or 0 */
    loff_t first, offset;
    struct mmsghdr message;
    struct iovec part;
    int state;
};
enum { FROM_PIPE = 1, FROM_SOCKET };

struct head {
    _Atomic uint64_t count; /* of records; the last is in half `count % 2` */
    size_t len[2];
    struct {
        _Atomic int step, place;
        _Atomic uint64_t before, len;
    } passing;
    unsigned left; /* places that wait for the next record */
    int used;      /* those behind were never anybody's, and have no memory */
    struct place places[PLACES];
};

struct keep {
    int file, pipe[2];
    uint8_t *map;
};

#define HEAD_ROOM  ((sizeof(struct head) + 4095) / 4096 * 4096)
#define BYTES_AT   (HEAD_ROOM + 2 * (size_t)RECORD_MAX)
#define WHOLE_FILE (BYTES_AT + (size_t)PLACES * KEEP_ROOM)

static struct head *head_of(const struct keep *k)
{
    return (struct head *)(void *)k->map;
}

static struct place *at(const struct keep *k, int place)
{
    return &head_of(k)->places[place];
}

static size_t bytes_at(int place)
{
    return BYTES_AT + (size_t)place * KEEP_ROOM;
}

struct keep *keep_new(void)
{
    struct keep *k = calloc(1, sizeof *k);
    if (!k)
        return NULL;

    auto_fd file = memfd_create("paddock-kept", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)WHOLE_FILE) < 0 ||
        pipe2(k->pipe, O_CLOEXEC | O_NONBLOCK) < 0) {
        free(k);
        return NULL;
    }
    k->map = mmap(NULL, WHOLE_FILE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (k->map == MAP_FAILED) {
        close(k->pipe[0]);
        close(k->pipe[1]);
        free(k);
        return NULL;
    }
    k->file = fd_take(&file);
    return k;
}

void keep_free(struct keep *k)
{
    if (!k)
        return;
    munmap(k->map, WHOLE_FILE);
    close(k->file);
    close(k->pipe[0]);
    close(k->pipe[1]);
    free(k);
}

/* ---- the record ---- */

uint64_t keep_count(const struct keep *k)
{
    return head_of(k)->count;
}

static void forget_bytes(const struct keep *k, int place)
{
    (void)fallocate(k->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)bytes_at(place),
                    KEEP_ROOM);
}

int keep_record(struct keep *k, const struct buf *record)
{
    struct head *h = head_of(k);
    unsigned half = (h->count + 1) % 2;
    if (record->overflow || record->len > RECORD_MAX)
        return -1;

    memcpy(k->map + HEAD_ROOM + half * (size_t)RECORD_MAX, record->data, record->len);
    h->len[half] = record->len;
    h->count++;
    for (int i = 0; h->left && i < h->used; i++)
        if (h->places[i].state == LEFT) {
            if (h->places[i].end)
                forget_bytes(k, i);
            h->places[i].state = FREE;
            h->left--;
        }
    return 0;
}

const uint8_t *keep_recorded(const struct keep *k, size_t *ret_len)
{
    const struct head *h = head_of(k);
    unsigned half = h->count % 2;
    *ret_len = h->len[half];
    return k->map + HEAD_ROOM + half * (size_t)RECORD_MAX;
}

/* ---- places ---- */

int keep_place(struct keep *k)
{
    for (int i = 0; i < (int)PLACES; i++) {
        struct place *p = at(k, i);
        if (p->state != FREE)
            continue;
        memset(p, 0, sizeof *p);
        p->state = TAKEN;
        if (i >= head_of(k)->used)
            head_of(k)->used = i + 1;
        return i;
    }
    return -1;
}

void keep_leave(struct keep *k, int place)
{
    at(k, place)->state = LEFT;
    head_of(k)->left++;
}

/* Whatever `from` says has come, has come. */
static void count_read(struct place *p)
{
    if (p->from == FROM_PIPE)
        p->end = p->before + (uint64_t)(p->offset - p->first);
    else if (p->from == FROM_SOCKET)
        p->end = p->before + p->message.msg_len;
    p->from = 0;
}

/* Twice is the same: nothing is stored there before `freed` says that it is free. */
static void free_behind(const struct keep *k, int place, struct place *p)
{
    uint64_t to = p->start / PAGE * PAGE;
    if (p->start - p->freed < FREE_BYTES)
        return;

    for (uint64_t from = p->freed; from < to;) {
        uint64_t offset = from & (KEEP_ROOM - 1), len = to - from;
        len = len < KEEP_ROOM - offset ? len : KEEP_ROOM - offset;
        (void)fallocate(k->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        (off_t)(bytes_at(place) + offset), (off_t)len);
        from += len;
    }
    p->freed = to;
}

static ssize_t read_pipe(const struct keep *k, struct place *p, int fd, size_t where, size_t len)
{
    p->first = p->offset = (loff_t)where;
    p->from = FROM_PIPE;
    return splice(fd, NULL, k->file, &p->offset, len, SPLICE_F_NONBLOCK);
}

static ssize_t read_socket(const struct keep *k, struct place *p, int fd, size_t where, size_t len)
{
    p->part = (struct iovec){k->map + where, len};
    p->message = (struct mmsghdr){.msg_hdr = {.msg_iov = &p->part, .msg_iovlen = 1}};
    p->from = FROM_SOCKET;
    return recvmmsg(fd, &p->message, 1, MSG_DONTWAIT, NULL) < 0 ? -1 : (ssize_t)p->message.msg_len;
}

/* Whoever reads it again begins where the place ends. */
static ssize_t read_file(const struct keep *k, struct place *p, int fd, size_t where, size_t len)
{
    ssize_t n = pread(fd, k->map + where, len, lseek(fd, 0, SEEK_CUR) + (off_t)p->end);
    if (n > 0)
        p->end += (uint64_t)n;
    return n;
}

void keep_forget(struct keep *k, int place, uint64_t start)
{
    struct place *p = at(k, place);

    p->start = start < p->end ? start : p->end;
    free_behind(k, place, p);
}

ssize_t keep_read(struct keep *k, int place, int fd, uint64_t start, size_t len,
                  const uint8_t **ret)
{
    struct place *p = at(k, place);
    struct stat st;
    size_t in_row = KEEP_ROOM - (size_t)(p->end & (KEEP_ROOM - 1));

    keep_forget(k, place, start);
    size_t room = KEEP_ROOM - (size_t)(p->end - p->freed);
    size_t where = bytes_at(place) + (size_t)(p->end & (KEEP_ROOM - 1));
    len = len < room ? len : room;
    len = len < in_row ? len : in_row;
    if (!len || fstat(fd, &st) < 0) {
        errno = EAGAIN;
        return -1;
    }

    p->before = p->end;
    *ret = k->map + where;
    ssize_t n = S_ISFIFO(st.st_mode)   ? read_pipe(k, p, fd, where, len)
                : S_ISSOCK(st.st_mode) ? read_socket(k, p, fd, where, len)
                                       : read_file(k, p, fd, where, len);
    int error = errno;
    count_read(p);
    errno = error;
    return n;
}

static void empty_pipe(const struct keep *k)
{
    uint8_t scrap[4096];
    while (read(k->pipe[0], scrap, sizeof scrap) > 0)
        ;
}

ssize_t keep_write(struct keep *k, int place, int fd, const void *data, size_t len)
{
    struct head *h = head_of(k);
    struct place *p = at(k, place);
    size_t moved = 0;

    h->passing.place = place;
    h->passing.before = p->written;
    h->passing.step = FILLING;
    ssize_t n = write(k->pipe[1], data, len < PIPE_BYTES ? len : PIPE_BYTES);
    if (n <= 0) {
        h->passing.step = NOTHING;
        return n;
    }
    h->passing.len = (uint64_t)n;
    h->passing.step = PASSING;

    ssize_t r = 0;
    while (moved < (size_t)n) {
        r = splice(k->pipe[0], NULL, fd, NULL, (size_t)n - moved, SPLICE_F_NONBLOCK);
        if (r <= 0)
            break;
        moved += (size_t)r;
    }
    int error = r == 0 ? EAGAIN : errno;
    p->written = h->passing.before + moved;
    h->passing.step = NOTHING;
    if (moved < (size_t)n)
        empty_pipe(k);
    errno = error;
    return moved ? (ssize_t)moved : -1;
}

void keep_wrote(struct keep *k, int place, size_t len)
{
    at(k, place)->written += len;
}

/* ---- after a death ---- */

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static void close_all_but(int lowest, int *fds, unsigned count)
{
    qsort(fds, count, sizeof *fds, by_number);
    for (unsigned i = 0; i < count; i++) {
        if (fds[i] > lowest)
            syscall(SYS_close_range, (unsigned)lowest, (unsigned)fds[i] - 1, 0u);
        if (fds[i] >= lowest)
            lowest = fds[i] + 1;
    }
    syscall(SYS_close_range, (unsigned)lowest, ~0u, 0u);
}

void keep_begin_again(struct keep *k, int lowest, const int *fds, unsigned count)
{
    struct head *h = head_of(k);
    int waiting = 0;

    if (h->passing.step == PASSING && ioctl(k->pipe[0], FIONREAD, &waiting) == 0)
        at(k, h->passing.place)->written = h->passing.before + h->passing.len - (uint64_t)waiting;
    h->passing.step = NOTHING;
    empty_pipe(k);

    for (int i = 0; i < h->used; i++) {
        count_read(at(k, i));
        at(k, i)->state = FREE;
    }
    h->left = 0;

    int *all = malloc((count + 3) * sizeof *all);
    if (!all)
        return;
    if (count)
        memcpy(all, fds, count * sizeof *fds);
    all[count] = k->file;
    all[count + 1] = k->pipe[0];
    all[count + 2] = k->pipe[1];
    close_all_but(lowest, all, count + 3);
    free(all);
}

struct keep_place keep_claim(struct keep *k, int place)
{
    struct place *p = at(k, place);
    p->state = TAKEN;
    return (struct keep_place){.written = p->written, .start = p->start, .end = p->end};
}

const uint8_t *keep_bytes(const struct keep *k, int place, uint64_t from, size_t *ret_len)
{
    const struct place *p = at(k, place);
    if (from >= p->end)
        return NULL;
    size_t offset = (size_t)(from & (KEEP_ROOM - 1));
    uint64_t len = p->end - from;
    *ret_len = len < KEEP_ROOM - offset ? (size_t)len : KEEP_ROOM - offset;
    return k->map + bytes_at(place) + offset;
}
