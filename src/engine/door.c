/* Doors. A path of a unix socket is short, and a state directory's may be long: the socket is bound
 * through a descriptor of its directory. The lock of a keeper's directory is a shared one that each
 * of its processes holds; whoever gets it exclusively knows that all of them are gone. */
#include "engine/door.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/live_dir.h"
#include "jail/seccomp.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#define INIT_FILE   ".init"
#define FILTER_FILE ".filter"

/* Opens a directory below another, which is made if it is missing. */
static int make_dir(int parent, const char *name, mode_t mode, struct pd_err *e)
{
    if (mkdirat(parent, name, mode) < 0 && errno != EEXIST)
        return pd_fail_sys(e, "make directory %s", name);
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd >= 0 ? fd : pd_fail_sys(e, "open directory %s", name);
}

/* A copy under another name first: what is there under its own is complete. */
static int copy_init(int dir, int init_fd, struct pd_err *e)
{
    char temporary[32], piece[65536];
    off_t at = 0;

    if (faccessat(dir, INIT_FILE, F_OK, 0) == 0)
        return 0;
    snprintf(temporary, sizeof temporary, INIT_FILE ".%d", (int)getpid());
    auto_fd out =
        openat(dir, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0555);
    if (out < 0)
        return pd_fail_sys(e, "write init for containers");

    for (;;) {
        ssize_t n = pread(init_fd, piece, sizeof piece, at);
        int r = n < 0 ? -errno : n > 0 ? fd_write_all(out, piece, (size_t)n) : 0;
        if (r < 0) {
            (void)unlinkat(dir, temporary, 0);
            errno = -r;
            return pd_fail_sys(e, "write init for containers");
        }
        if (n == 0)
            break;
        at += n;
    }

    if (at == 0) {
        (void)unlinkat(dir, temporary, 0);
        return pd_fail(e, PD_INTERNAL, "descriptor %d of a broker is not the program init",
                       init_fd);
    }
    (void)fchmod(out, 0555);
    fd_done(&out); /* a program that is open for writing cannot be started */
    if (renameat(dir, temporary, dir, INIT_FILE) < 0)
        return pd_fail_sys(e, "write init for containers");
    return 0;
}

/* A jail's filter of system calls, as init loads it. Strict and dev have the same. */
static int write_filter(int dir, struct pd_err *e)
{
    struct seccomp_filter filter;
    char temporary[32];

    if (faccessat(dir, FILTER_FILE, F_OK, 0) == 0)
        return 0;
    if (seccomp_compile(PROFILE_STRICT, &filter, e) < 0)
        return -1;

    snprintf(temporary, sizeof temporary, FILTER_FILE ".%d", (int)getpid());
    auto_fd out =
        openat(dir, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0444);
    int r = out < 0 ? -errno : fd_write_all(out, filter.code, filter.len * sizeof *filter.code);
    if (r == 0 && renameat(dir, temporary, dir, FILTER_FILE) < 0)
        r = -errno;
    if (r == 0)
        return 0;

    (void)unlinkat(dir, temporary, 0);
    errno = -r;
    return pd_fail_sys(e, "write the filter of system calls for containers");
}

int doors_open(struct doors *d, const char *state_dir, const char *instance, int init_fd,
               struct pd_err *e)
{
    d->dir = -1;
    if ((size_t)snprintf(d->path, sizeof d->path, "%s/doors/%s", state_dir, instance) >=
        sizeof d->path)
        return pd_fail(e, PD_INVALID, "the state directory's path is too long: %.100s", state_dir);

    if (mkdir(state_dir, 0700) < 0 && errno != EEXIST)
        return pd_fail_sys(e, "make state directory %s", state_dir);
    auto_fd state = open(state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (state < 0)
        return pd_fail_sys(e, "open state directory %s", state_dir);
    auto_fd all = make_dir(state, "doors", 0700, e);
    if (all < 0)
        return -1;

    auto_fd own = live_dir_hold(all, instance, 0700);
    errno = -own;
    if (own < 0)
        return pd_fail_sys(e, "make and lock the directory %s", d->path);
    if (copy_init(own, init_fd, e) < 0 || write_filter(own, e) < 0)
        return -1;

    d->dir = fd_take(&own);
    return 0;
}

void doors_each_dead(const char *state_dir, void (*each)(const char *instance, void *arg),
                     void *arg)
{
    char path[512];
    if ((size_t)snprintf(path, sizeof path, "%s/doors", state_dir) >= sizeof path)
        return;
    DIR *list = opendir(path);
    if (!list)
        return;

    for (const struct dirent *entry; (entry = readdir(list));) {
        if (entry->d_name[0] == '.')
            continue;
        auto_fd dir = live_dir_seize(dirfd(list), entry->d_name);
        if (dir >= 0)
            each(entry->d_name, arg);
    }
    closedir(list);
}

bool doors_are_held(const struct doors *d, const char *instance)
{
    if (!instance[0] || instance[0] == '.' || strchr(instance, '/'))
        return true;
    auto_fd all = openat(d->dir, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (all < 0)
        return true;

    auto_fd dead = live_dir_seize(all, instance);
    return dead < 0 && dead != -ENOENT;
}

static void remove_files(int dir)
{
    int copy = fcntl(dir, F_DUPFD_CLOEXEC, 0);
    DIR *list = copy < 0 ? NULL : fdopendir(copy);

    if (!list)
        return;
    rewinddir(list);
    for (const struct dirent *entry; (entry = readdir(list));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)unlinkat(dir, entry->d_name, 0);
    closedir(list);
}

static void remove_door(int parent, const char *name)
{
    auto_fd dir = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir >= 0)
        remove_files(dir);
    (void)unlinkat(parent, name, AT_REMOVEDIR);
}

static void remove_unheld(int parent, const char *name)
{
    auto_fd seized = live_dir_seize(parent, name);
    if (seized != -EWOULDBLOCK)
        remove_door(parent, name);
}

void doors_remove(const char *state_dir, const char *instance)
{
    char path[512];
    if ((size_t)snprintf(path, sizeof path, "%s/doors/%s", state_dir, instance) >= sizeof path)
        return;
    DIR *list = opendir(path);
    if (!list)
        return;

    /* The files first, which those who are left have opened. */
    for (const struct dirent *entry; (entry = readdir(list));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            if (unlinkat(dirfd(list), entry->d_name, 0) < 0)
                remove_unheld(dirfd(list), entry->d_name);
        }
    closedir(list);
    (void)rmdir(path);
}

void doors_leave(struct doors *d, const char *state_dir, const char *instance)
{
    auto_fd all = d->dir < 0 ? -1 : openat(d->dir, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fd_done(&d->dir);
    auto_fd last = all < 0 ? -1 : live_dir_seize(all, instance);
    if (last >= 0)
        doors_remove(state_dir, instance);
}

int door_make(const struct doors *d, const char *name, char ret_path[640], struct pd_err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    if ((size_t)snprintf(ret_path, 640, "%s/%s", d->path, name) >= 640)
        return pd_fail(e, PD_INVALID, "the door's path is too long: %.100s", ret_path);
    remove_door(d->dir, name); /* of an earlier try */
    auto_fd dir = make_dir(d->dir, name, 0711, e);
    if (dir < 0)
        return -1;
    (void)fchmod(dir, 0711);

    if (linkat(d->dir, INIT_FILE, dir, "init", 0) < 0 ||
        linkat(d->dir, FILTER_FILE, dir, "filter", 0) < 0)
        return pd_fail_sys(e, "put init into %s", ret_path);
    auto_fd sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sock < 0)
        return pd_fail_sys(e, "make a socket");

    /* Whoever is init there connects, under whichever uid the engine maps it to. */
    snprintf(a.sun_path, sizeof a.sun_path, "/proc/self/fd/%d/door", dir);
    if (bind(sock, (struct sockaddr *)&a, sizeof a) < 0 || fchmodat(dir, "door", 0666, 0) < 0 ||
        listen(sock, 4) < 0)
        return pd_fail_sys(e, "listen at %s/door", ret_path);
    return fd_take(&sock);
}

int door_hold(const struct doors *d, const char *name, struct pd_err *e)
{
    remove_door(d->dir, name); /* of an earlier try */
    int fd = live_dir_hold(d->dir, name, 0700);
    if (fd >= 0)
        return fd;
    errno = -fd;
    return pd_fail_sys(e, "make and lock the directory of %s", name);
}

bool door_is_held(const struct doors *d, const char *name)
{
    auto_fd free = door_is_there(d, name) ? live_dir_seize(d->dir, name) : -ENOENT;
    return free == -EWOULDBLOCK;
}

bool doors_hold(const char *state_dir, const char *instance, const char *name)
{
    char path[512];
    if (name[0] == '.' || strchr(name, '/') || strchr(instance, '/') ||
        (size_t)snprintf(path, sizeof path, "%s/doors/%s", state_dir, instance) >= sizeof path)
        return false;

    struct doors d = {.dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    auto_fd dir = d.dir;
    return dir >= 0 && door_is_held(&d, name);
}

/* The connection if it is the process's, else -1: somebody else has no business here. */
static int take_peer(int listener, pid_t pid)
{
    auto_fd peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct ucred who = {0};
    socklen_t len = sizeof who;

    if (peer < 0 || getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0 || who.pid != pid)
        return -1;
    return fd_take(&peer);
}

int door_wait(int listener, pid_t pid, int *ret_process, deadline t, struct pd_err *e)
{
    auto_fd process = (int)syscall(SYS_pidfd_open, pid, 0);

    if (process < 0)
        return pd_fail(e, PD_LOST, "the container's init ended before it came to the door");
    for (;;) {
        struct pollfd polled[2] = {{.fd = listener, .events = POLLIN},
                                   {.fd = process, .events = POLLIN}};
        int n = poll(polled, 2, deadline_poll_ms(t));
        if (n < 0 && errno != EINTR)
            return pd_fail_sys(e, "wait at the door");
        if (n == 0)
            return pd_fail(e, PD_TIMEOUT,
                           "init in the container does not come to its door: can the engine's "
                           "containers reach sockets of this machine?");

        if (polled[0].revents) {
            int peer = take_peer(listener, pid);
            if (peer >= 0) {
                *ret_process = fd_take(&process);
                return peer;
            }
        }
        if (polled[1].revents && !polled[0].revents)
            return pd_fail(e, PD_LOST, "the container's init ended before it came to the door");
    }
}

bool door_is_there(const struct doors *d, const char *name)
{
    return name[0] && name[0] != '.' && !strchr(name, '/') &&
           faccessat(d->dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

void door_remove(const struct doors *d, const char *name)
{
    remove_door(d->dir, name);
}
