#include "jail/identity.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/walls.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

uint32_t identity_host_id(uint32_t slot, uint32_t inside)
{
    if (slot == RANGE_NONE)
        return UID_USER;
    return wall_off("userns") ? inside : RANGE_BASE + slot * RANGE_SIZE + inside;
}

int ranges_open(struct ranges *r, const char *run_dir, struct pd_err *e)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/ranges", run_dir);
    *r = (struct ranges){.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
    return r->fd >= 0 ? 0 : pd_fail_sys(e, "open %s", path);
}

void ranges_done(struct ranges *r)
{
    fd_done(&r->fd);
}

static int lock_byte(int fd, uint32_t slot, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock);
}

uint32_t range_take(struct ranges *r, struct pd_err *e)
{
    /* A random start keeps keepers out of each other's way, and an id that was just freed from
     * being used again at once. */
    uint32_t start;
    random_bytes(&start, sizeof start);
    for (uint32_t i = 0; i < RANGE_COUNT; i++) {
        uint32_t slot = (start % RANGE_COUNT + i) % RANGE_COUNT;
        if (r->held[slot / 64] >> (slot % 64) & 1)
            continue;
        if (lock_byte(r->fd, slot, F_WRLCK) == 0) {
            r->held[slot / 64] |= UINT64_C(1) << (slot % 64);
            return slot;
        }
        if (errno != EAGAIN && errno != EACCES) {
            pd_fail_sys(e, "lock a uid range");
            return RANGE_NONE;
        }
    }
    pd_fail(e, PD_CAPACITY, "all %u uid ranges are in use", RANGE_COUNT);
    return RANGE_NONE;
}

void range_release(struct ranges *r, uint32_t slot)
{
    if (slot >= RANGE_COUNT)
        return;
    r->held[slot / 64] &= ~(UINT64_C(1) << (slot % 64));
    lock_byte(r->fd, slot, F_UNLCK);
}

/* The child that becomes the owner and makes the namespace. It shares memory with its parent, so
 * it uses raw system calls and its own stack only. */
struct maker {
    uint32_t owner;
    int ready[2], go[2]; /* pipes: child tells, parent lets it go */
};

static int make_namespace(void *arg)
{
    struct maker *m = arg;
    char failed = 0;
    if (syscall(SYS_setresgid, m->owner, m->owner, m->owner) < 0 ||
        syscall(SYS_setresuid, m->owner, m->owner, m->owner) < 0 ||
        syscall(SYS_unshare, CLONE_NEWUSER) < 0)
        failed = (char)errno;
    (void)!write(m->ready[1], &failed, 1);
    (void)!read(m->go[0], &failed, 1);
    _exit(0);
}

static int write_map(int proc, pid_t pid, const char *file, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "%d/%s", (int)pid, file);
    return fd_write_file(proc, path, text);
}

/* Makes a namespace owned by `owner` with the given maps and returns its descriptor. */
static int create(int proc, uint32_t owner, const char *uid_map, const char *gid_map,
                  struct pd_err *e)
{
    struct maker m = {.owner = owner};
    if (pipe2(m.ready, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "pipe");
    auto_fd ready_in = m.ready[0], ready_out = m.ready[1];
    if (pipe2(m.go, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "pipe");
    auto_fd go_in = m.go[0], go_out = m.go[1];
    _Alignas(16) char stack[16384];
    pid_t pid = clone(make_namespace, stack + sizeof stack, CLONE_VM | SIGCHLD, &m);
    if (pid < 0)
        return pd_fail_sys(e, "fork for a user namespace");
    char failed = 0;
    int ns = -1, r;
    ssize_t n = read(ready_in, &failed, 1);
    if (n != 1 || failed) {
        errno = n == 1 ? failed : EIO;
        pd_fail_sys(e, "make a user namespace");
    } else if ((r = write_map(proc, pid, "uid_map", uid_map)) < 0 ||
               (r = write_map(proc, pid, "gid_map", gid_map)) < 0) {
        errno = -r;
        pd_fail_sys(e, "map the uid range");
    } else {
        char path[64];
        snprintf(path, sizeof path, "%d/ns/user", (int)pid);
        ns = openat(proc, path, O_RDONLY | O_CLOEXEC);
        if (ns < 0)
            pd_fail_sys(e, "open the user namespace");
    }
    (void)!write(go_out, "", 1);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
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
