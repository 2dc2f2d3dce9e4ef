/* Uid ranges and user namespaces.
 *
 * A range is one byte of a file that all keepers share, taken by a lock on it (F_OFD_SETLK), one by
 * one or by the block. Within a keeper two bit maps say which ranges it has and which are in use.
 *
 * A user namespace is made by a child that does nothing but wait: the maps are written through its
 * files in /proc, the namespace is opened, and the child is killed. From then on the descriptor
 * keeps the namespace. */
#include "jail/identity.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/walls.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

uint32_t identity_host_id(uint32_t slot, uint32_t inside)
{
    if (slot == RANGE_NONE)
        return UID_USER;
    return wall_off("userns") ? inside : RANGE_BASE + slot * RANGE_SIZE + inside;
}

bool identity_is_idle(uint32_t host_uid)
{
    /* Looks for processes by their real uid; at once where the kernel knows no such user. */
    errno = 0;
    return getpriority(PRIO_USER, host_uid) == -1 && errno == ESRCH;
}

int ranges_open(struct ranges *r, const char *run_dir, int by_block, struct pd_err *e)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/ranges", run_dir);
    *r = (struct ranges){.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600),
                         .by_block = by_block};
    return r->fd >= 0 ? 0 : pd_fail_sys(e, "open %s", path);
}

void ranges_done(struct ranges *r)
{
    fd_done(&r->fd);
}

static int lock_bytes(int fd, uint32_t first, uint32_t count, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = first, .l_len = count};
    return fcntl(fd, F_OFD_SETLK, &lock);
}

/* A range that is ours already and free, or RANGE_NONE. */
static uint32_t take_owned(struct ranges *r)
{
    for (uint32_t word = 0; word < sizeof r->owned / sizeof *r->owned; word++) {
        uint64_t idle = r->owned[word] & ~r->used[word];
        if (idle) {
            uint32_t bit = (uint32_t)__builtin_ctzll(idle);
            r->used[word] |= UINT64_C(1) << bit;
            return word * 64 + bit;
        }
    }

    return RANGE_NONE;
}

uint32_t range_take(struct ranges *r, struct pd_err *e)
{
    uint32_t slot = take_owned(r);
    if (slot != RANGE_NONE)
        return slot;

    /* A random start keeps keepers out of each other's way, and an id that was just freed from
     * being used again at once. */
    const uint32_t count = r->by_block ? RANGE_BLOCK : 1;
    const uint32_t places = RANGE_COUNT / count;
    uint32_t start;
    random_bytes(&start, sizeof start);

    for (uint32_t i = 0; i < places; i++) {
        uint32_t first = (start % places + i) % places * count;
        uint64_t bits = r->by_block ? UINT64_MAX : UINT64_C(1) << (first % 64);
        if (r->owned[first / 64] & bits)
            continue;

        if (lock_bytes(r->fd, first, count, F_WRLCK) == 0) {
            r->owned[first / 64] |= bits;
            return take_owned(r);
        }
        if (errno != EAGAIN && errno != EACCES) {
            pd_fail_sys(e, "lock a uid range");
            return RANGE_NONE;
        }
    }

    pd_fail(e, PD_CAPACITY, "all %u uid ranges are in use", RANGE_COUNT);
    return RANGE_NONE;
}

uint32_t range_take_idle(struct ranges *r, struct pd_err *e)
{
    for (;;) {
        uint32_t slot = range_take(r, e);
        if (slot == RANGE_NONE || identity_is_idle(RANGE_BASE + slot * RANGE_SIZE + UID_USER))
            return slot; /* one that is not idle stays taken, so that nobody else gets it */
    }
}

int range_borrow(uint32_t host_id)
{
    if (host_id < RANGE_BASE || (host_id - RANGE_BASE) / RANGE_SIZE >= RANGE_COUNT)
        return -ERANGE;

    auto_fd fd = open(RANGES_DIR "/ranges", O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || lock_bytes(fd, (host_id - RANGE_BASE) / RANGE_SIZE, 1, F_WRLCK) < 0)
        return errno == EACCES ? -EAGAIN : -errno;
    return fd_take(&fd);
}

void range_release(struct ranges *r, uint32_t slot)
{
    if (slot >= RANGE_COUNT)
        return;

    uint64_t bit = UINT64_C(1) << (slot % 64);
    r->used[slot / 64] &= ~bit;

    if (!r->by_block) {
        r->owned[slot / 64] &= ~bit;
        lock_bytes(r->fd, slot, 1, F_UNLCK);
    }
}

/* The child of a new namespace. It lives only until that is open, or its parent dead; it shares
 * memory with its parent and so does nothing else. */
static int wait_to_be_killed(void *parent)
{
    syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (syscall(SYS_getppid) == *(pid_t *)parent)
        syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
    _exit(0);
}

static int write_map(int proc, pid_t pid, const char *file, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "%d/%s", (int)pid, file);
    return fd_write_file(proc, path, text);
}

static int map_and_open(int proc, pid_t pid, const char *uid_map, const char *gid_map,
                        struct pd_err *e)
{
    char path[64];
    int r = write_map(proc, pid, "uid_map", uid_map);
    if (r == 0)
        r = write_map(proc, pid, "gid_map", gid_map);
    if (r < 0) {
        errno = -r;
        return pd_fail_sys(e, "map the uid range");
    }

    snprintf(path, sizeof path, "%d/ns/user", (int)pid);
    int ns = openat(proc, path, O_RDONLY | O_CLOEXEC);
    return ns < 0 ? pd_fail_sys(e, "open the user namespace") : ns;
}

/* Makes a namespace owned by `owner` with the given maps and returns its descriptor. The owner is
 * whoever calls clone, so the caller is that for a moment: only the effective uid changes, and
 * going back to 0 brings the capabilities back. The child exists because maps are written through
 * some process of the namespace. */
static int create(int proc, uint32_t owner, const char *uid_map, const char *gid_map,
                  struct pd_err *e)
{
    /* The child is not waited for here, which would take longer than all the rest, but before its
     * stack is needed again. */
    static _Alignas(16) char stack[4096];
    static pid_t last;

    while (last > 0 && waitpid(last, NULL, 0) < 0 && errno == EINTR)
        ;

    const uint32_t same = UINT32_MAX;
    pid_t self = getpid();
    if (syscall(SYS_setresuid, same, owner, same) < 0)
        return pd_fail_sys(e, "become the owner of a user namespace");

    pid_t pid =
        clone(wait_to_be_killed, stack + sizeof stack, CLONE_NEWUSER | CLONE_VM | SIGCHLD, &self);
    int sys = errno;
    if (syscall(SYS_setresuid, same, 0, same) < 0)
        abort(); /* going on as somebody else would be worse */

    errno = sys;
    if (pid < 0)
        return pd_fail_sys(e, "make a user namespace");

    int ns = map_and_open(proc, pid, uid_map, gid_map, e);
    kill(pid, SIGKILL);
    last = pid;
    return ns;
}

int userns_create(int proc, uint32_t slot, struct pd_err *e)
{
    char map[64];
    snprintf(map, sizeof map, "0 %u %u", identity_host_id(slot, 0), RANGE_SIZE);
    uint32_t owner = wall_off("userns") ? 0 : identity_host_id(slot, UID_OWNER);
    return create(proc, owner, map, map, e);
}

int userns_create_single(int proc, uint32_t on_disk_uid, uint32_t on_disk_gid, uint32_t host_uid,
                         struct pd_err *e)
{
    char uids[64], gids[64];
    snprintf(uids, sizeof uids, "%u %u 1", on_disk_uid, host_uid);
    snprintf(gids, sizeof gids, "%u %u 1", on_disk_gid, host_uid);
    return create(proc, 0, uids, gids, e);
}

int userns_enter_single(struct pd_err *e)
{
    char map[64];
    uid_t uid = geteuid();
    gid_t gid = getegid();

    if (unshare(CLONE_NEWUSER) < 0)
        return pd_fail_sys(e, "make a user namespace (see `paddock doctor`)");

    int r = fd_write_file(AT_FDCWD, "/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "%u %u 1", UID_USER, uid);
    if (r == 0)
        r = fd_write_file(AT_FDCWD, "/proc/self/uid_map", map);
    snprintf(map, sizeof map, "%u %u 1", UID_USER, gid);
    if (r == 0)
        r = fd_write_file(AT_FDCWD, "/proc/self/gid_map", map);

    if (r == 0)
        return 0;
    errno = -r;
    return pd_fail_sys(e, "map the user into its namespace (see `paddock doctor`)");
}
