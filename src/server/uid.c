/* A uid for the daemon that nobody else has, without an entry in /etc/passwd: as systemd's
 * DynamicUser, and from the same range.
 *
 * The uid is tied to the state directory: the directory's owner is tried first, then a number that
 * follows from its path, then the next ones. A uid is taken when passwd or group know it, when a
 * process has it, or when another server does. Servers tell each other by one file per uid below
 * UIDS_DIR: it has the state directory's path in it, and is locked while the server runs. A file
 * without a lock still counts if that state directory belongs to the uid: a keeper may hold its
 * sandboxes. */
#include "server/serve.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define UID_FIRST 61184u
#define UID_LAST  65519u
#define UID_COUNT (UID_LAST - UID_FIRST + 1)
#define UIDS_DIR  "/run/paddock/uids"

/* ---- who has a uid ---- */

static bool is_known(uid_t uid)
{
    return getpwuid(uid) || getgrgid((gid_t)uid);
}

/* The line of /proc/PID/status has four uids: of a process that is not dumpable the directory's
 * owner says nothing. */
static bool has_uid(const char *pid, uid_t uid)
{
    char path[300], text[4096];
    (void)snprintf(path, sizeof path, "/proc/%s/status", pid);
    if (fd_read_file(AT_FDCWD, path, text, sizeof text) <= 0)
        return false;

    const char *line = strstr(text, "\nUid:");
    char *end = NULL;
    for (const char *at = line ? line + 5 : NULL; at && *at; at = end) {
        unsigned long n = strtoul(at, &end, 10);
        if (end == at)
            break;
        if (n == uid)
            return true;
        if (*end == '\n')
            break;
    }
    return false;
}

static bool is_running(uid_t uid)
{
    int found = 0;
    DIR *dir = opendir("/proc");

    for (const struct dirent *d; dir && !found && (d = readdir(dir));)
        found = d->d_name[0] >= '1' && d->d_name[0] <= '9' && has_uid(d->d_name, uid);
    if (dir)
        closedir(dir);
    return found;
}

static int owns(const char *state_dir, uid_t uid)
{
    char path[4096];
    struct stat st;
    serve_data_dir(state_dir, path, sizeof path);
    return stat(path, &st) == 0 && st.st_uid == uid;
}

/* Does this user namespace have the id? In a container it may not. */
static bool is_mapped(const char *map, uid_t id)
{
    char text[4096];
    if (fd_read_file(AT_FDCWD, map, text, sizeof text) <= 0)
        return false;

    for (char *at = text; *at;) {
        unsigned long first = strtoul(at, &at, 10);
        (void)strtoul(at, &at, 10);
        unsigned long count = strtoul(at, &at, 10);
        if (id >= first && id - first < count)
            return true;
        at += strspn(at, " \n");
    }
    return false;
}

/* ---- the lock ---- */

#define UID_TAKEN (-2)

/* Waits for a server of the same state directory that is on its way out. */
static int lock_patiently(int fd, int is_ours)
{
    deadline d = deadline_in(SERVE_PATIENCE);
    int r = flock(fd, LOCK_EX | LOCK_NB);

    while (r < 0 && errno == EWOULDBLOCK && is_ours && !deadline_passed(d)) {
        usleep(5000);
        r = flock(fd, LOCK_EX | LOCK_NB);
    }
    return r;
}

/* Says which server has the state directory: its daemon wrote its pid into the database's lock. */
static int other_server(const char *state_dir, struct pd_err *e)
{
    char path[4096], lock[4200], pid[24] = "";
    serve_data_dir(state_dir, path, sizeof path);
    (void)snprintf(lock, sizeof lock, "%s/paddock.lock", path);

    if (fd_read_file(AT_FDCWD, lock, pid, sizeof pid) > 0)
        pid[strspn(pid, "0123456789")] = 0;
    return pd_fail(e, PD_CONFLICT,
                   "another paddock server (pid %s) uses the state directory %.150s: stop it, or "
                   "give this one another with --state-dir",
                   pid[0] ? pid : "unknown", state_dir);
}

/* Takes the uid. Returns the lock, UID_TAKEN, or -1. */
static int take(const char *state_dir, uid_t uid, struct pd_err *e)
{
    char path[64], holder[4096] = "";
    (void)snprintf(path, sizeof path, UIDS_DIR "/%u", (unsigned)uid);
    auto_fd fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return pd_fail_sys(e, "open %s", path);

    ssize_t n = pread(fd, holder, sizeof holder - 1, 0);
    holder[n > 0 ? n : 0] = 0;
    int is_ours = !strcmp(holder, state_dir);
    if (lock_patiently(fd, is_ours) < 0)
        return is_ours ? other_server(state_dir, e) : UID_TAKEN;

    if (!is_ours && holder[0] && owns(holder, uid))
        return UID_TAKEN;
    if (is_known(uid) || (!is_ours && !owns(state_dir, uid) && is_running(uid)))
        return UID_TAKEN;

    size_t len = strlen(state_dir);
    if (ftruncate(fd, 0) < 0 || pwrite(fd, state_dir, len, 0) != (ssize_t)len)
        return pd_fail_sys(e, "write %s", path);
    return fd_take(&fd);
}

/* ---- choosing ---- */

static bool is_in_range(uid_t uid)
{
    return uid >= UID_FIRST && uid <= UID_LAST;
}

/* A path has the same place on every start. */
static unsigned place_of(const char *path)
{
    uint32_t h = 2166136261u;
    for (; *path; path++)
        h = (h ^ (uint8_t)*path) * 16777619u;
    return h % UID_COUNT;
}

int uid_choose(const char *state_dir, uid_t *ret, int *ret_lock, struct pd_err *e)
{
    char data[4096];
    struct stat st;
    unsigned start = place_of(state_dir);

    if (!is_mapped("/proc/self/uid_map", UID_LAST) || !is_mapped("/proc/self/gid_map", UID_LAST))
        return pd_fail(e, PD_UNSUPPORTED, "this container has no uid %u", UID_LAST);
    if ((mkdir("/run/paddock", 0711) < 0 && errno != EEXIST) ||
        (mkdir(UIDS_DIR, 0700) < 0 && errno != EEXIST))
        return pd_fail_sys(e, "make " UIDS_DIR);

    serve_data_dir(state_dir, data, sizeof data);
    if (stat(data, &st) == 0 && is_in_range(st.st_uid))
        start = st.st_uid - UID_FIRST;

    for (unsigned i = 0; i < UID_COUNT; i++) {
        uid_t uid = UID_FIRST + (start + i) % UID_COUNT;
        int lock = take(state_dir, uid, e);
        if (lock == UID_TAKEN)
            continue;
        if (lock < 0)
            return -1;
        *ret = uid;
        *ret_lock = lock;
        return 0;
    }
    return pd_fail(e, PD_CAPACITY, "no uid of %u to %u is free: set `user`", UID_FIRST, UID_LAST);
}

/* ---- handing over ---- */

#define DEPTH_MAX 16u

/* Everything that belongs to `from` below `dir` goes to `to`. Links are not followed, and what was
 * looked at is what is changed: the former owner could put anything there. */
static int hand_over_below(int dir, uid_t from, uid_t to, gid_t group, unsigned depth)
{
    int copy = fcntl(dir, F_DUPFD_CLOEXEC, 3);
    DIR *list = copy < 0 ? NULL : fdopendir(copy);
    int bad = !list;
    if (!list)
        fd_done(&copy);

    for (const struct dirent *d; list && (d = readdir(list));) {
        struct stat st;
        if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
            continue;
        auto_fd at = openat(dir, d->d_name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (at < 0 || fstat(at, &st) < 0)
            continue; /* gone meanwhile */
        if (st.st_uid == from && fchownat(at, "", to, group, AT_EMPTY_PATH) < 0)
            bad = 1;
        if (!S_ISDIR(st.st_mode) || depth == DEPTH_MAX)
            continue;
        auto_fd inner = openat(dir, d->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        bad |= inner >= 0 && hand_over_below(inner, from, to, group, depth + 1) < 0;
    }
    if (list)
        closedir(list);
    return bad ? -1 : 0;
}

int uid_hand_over(const char *dir, uid_t to, gid_t group, struct pd_err *e)
{
    struct stat st;
    auto_fd fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return pd_fail_sys(e, "open %.200s", dir);

    /* The directory last: a start that dies in between does it again. */
    if (st.st_uid != to && st.st_uid != 0 && hand_over_below(fd, st.st_uid, to, group, 0) < 0)
        return pd_fail_sys(e, "hand %.200s to uid %u", dir, (unsigned)to);
    if (fchown(fd, to, group) < 0)
        return pd_fail_sys(e, "hand %.200s to uid %u", dir, (unsigned)to);
    return 0;
}
