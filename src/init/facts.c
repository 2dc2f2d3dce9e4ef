/* How this works: init was started as the image's own command would have been, in a jail that is
 * made from an image as well. Its environment is the image's, its root is the image's root, and
 * what it may do is what it was given. So it looks:
 * for a shell by name, for directories to work in by trying to make them, for users in the id map
 * of its user namespace. What is not there is told to its owner in words. */
#include "init/facts.h"

#include "base/banned.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#define HOME_DEFAULT "/home/user"
#define ENV_MOST     (32u << 10) /* of the image's environment, in bytes */

void facts_lack(struct facts *f, const char *format, ...)
{
    size_t len = strlen(f->missing);
    if (len)
        len += (size_t)snprintf(f->missing + len, sizeof f->missing - len, "; ");
    if (len >= sizeof f->missing)
        return;

    va_list args;
    va_start(args, format);
    vsnprintf(f->missing + len, sizeof f->missing - len, format, args);
    va_end(args);
}

/* Gives a directory of init's to the user. Without CAP_CHOWN an owner can still give it to a group
 * that it is in. */
static int give(const char *path, const struct facts *f)
{
    if (geteuid() == f->uid || chown(path, f->uid, f->gid) == 0)
        return 0;

    gid_t group = f->gid;
    if (syscall(SYS_setgroups, (size_t)1, &group) == 0 && chown(path, (uid_t)-1, f->gid) == 0 &&
        chmod(path, 0775) == 0)
        return 0;
    return chmod(path, 0777);
}

/* 1 when it was made, 0 when it is there, or -errno. Some images have a root directory without
 * write permission for anybody, and init has no capability that goes past that: as the owner it
 * takes the permission for a moment. */
static int make_one(const char *path)
{
    char parent[FACTS_PATH];
    struct stat st;

    if (mkdir(path, 0755) == 0)
        return 1;
    if (errno != EACCES)
        return errno == EEXIST ? 0 : -errno;

    const char *name = strrchr(path, '/') + 1;
    size_t len = (size_t)(name - path);
    memcpy(parent, path, len);
    parent[len] = 0;
    auto_fd dir = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 || fstat(dir, &st) < 0 || st.st_mode & 0200 ||
        fchmod(dir, (st.st_mode & 07777) | 0200) < 0)
        return -EACCES;

    int r = mkdirat(dir, name, 0755) == 0 ? 1 : -errno;
    (void)fchmod(dir, st.st_mode & 07777);
    return r;
}

/* Makes the directory and those above it. One that is there is left as it is. 0 or -errno. */
static int make_directory(const char *path, const struct facts *f)
{
    char part[FACTS_PATH];
    if (strlen(path) >= sizeof part)
        return -ENAMETOOLONG;

    for (size_t i = 1; path[i]; i++)
        if (path[i] == '/') {
            memcpy(part, path, i);
            part[i] = 0;
            int r = make_one(part);
            if (r < 0)
                return r;
        }

    int r = make_one(path);
    return r <= 0 ? r : give(path, f) < 0 ? -errno : 0;
}

/* May the user work there? Told by its mode: nobody has become the user yet. */
static bool is_usable(const char *path, const struct facts *f)
{
    struct stat st;
    if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
        return false;

    mode_t bits = st.st_uid == f->uid ? 0300 : st.st_gid == f->gid ? 030 : 03;
    return (st.st_mode & bits) == bits &&
           (faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0 || errno != EROFS);
}

static void make_place(struct facts *f, const char *what, const char *path)
{
    int r = make_directory(path, f);
    if (r < 0)
        facts_lack(f, "%s %.100s cannot be made (%s): mount a directory there", what, path,
                   strerror(-r));
    else if (!is_usable(path, f))
        facts_lack(f, "%s %.100s cannot be written by uid %u: mount a directory there", what, path,
                   (unsigned)f->uid);
}

void facts_make_places(struct facts *f)
{
    make_place(f, "the workspace", f->workspace);

    /* An image that says where home is means its own user. */
    const char *given = getenv("HOME");
    if (!f->home && given && given[0] == '/' && given[1] && strlen(given) < FACTS_PATH &&
        is_usable(given, f))
        f->home = given;
    if (!f->home) {
        f->home = HOME_DEFAULT;
        if (make_directory(f->home, f) < 0 || !is_usable(f->home, f))
            f->home = f->workspace;
    } else {
        make_place(f, "the home", f->home);
    }
}

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_mode & 0111;
}

static void find_shell(struct facts *f)
{
    static const struct {
        const char *path;
        enum facts_shell kind;
    } shells[] = {
        {"/bin/bash", FACTS_BASH},
        {"/usr/bin/bash", FACTS_BASH},
        {"/usr/local/bin/bash", FACTS_BASH},
        {"/bin/sh", FACTS_SH},
        {"/usr/bin/sh", FACTS_SH},
        {"/bin/dash", FACTS_SH},
        {"/bin/ash", FACTS_SH},
    };

    f->shell = "";
    f->shell_kind = FACTS_NO_SHELL;
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
        if (is_program(shells[i].path)) {
            f->shell = shells[i].path;
            f->shell_kind = shells[i].kind;
            return;
        }
}

/* Can this id be given in init's user namespace? */
static bool is_mapped(const char *map, uint32_t id)
{
    char text[4096];
    if (fd_read_file(AT_FDCWD, map, text, sizeof text) <= 0)
        return true; /* no /proc: the first command will tell */

    for (const char *line = text; *line;) {
        char *at;
        unsigned long inside = strtoul(line, &at, 10);
        (void)strtoul(at, &at, 10); /* outside */
        unsigned long count = strtoul(at, NULL, 10);
        if (id >= inside && id - inside < count)
            return true;
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    return false;
}

static uint32_t cgroup_version(void)
{
    struct stat st;
    if (stat("/sys/fs/cgroup/cgroup.controllers", &st) == 0)
        return 2;
    return stat("/sys/fs/cgroup/memory", &st) == 0 ? 1 : 0;
}

void facts_find(struct facts *f)
{
    find_shell(f);
    if (f->shell_kind == FACTS_NO_SHELL)
        facts_lack(f, "there is no shell: lines cannot be run, programs can");

    if (f->mode == FACTS_SINGLE) {
        f->uid = geteuid();
        f->gid = getegid();
    } else if (!is_mapped("/proc/self/uid_map", f->uid) ||
               !is_mapped("/proc/self/gid_map", f->gid)) {
        facts_lack(f, "uid %u and gid %u do not exist in the box's user namespace",
                   (unsigned)f->uid, (unsigned)f->gid);
    }
}

static bool is_ours(const char *pair)
{
    return !strncmp(pair, "PADDOCK_", 8);
}

void facts_encode(struct facts *f, char *const *variables, struct buf *out)
{
    struct msg_list_writer list = MSG_LIST_WRITER_INIT;
    struct utsname u = {.machine = ""};
    char machine[MSG_NAME_MAX + 1];

    for (; *variables; variables++)
        if (!is_ours(*variables) && strchr(*variables, '=') &&
            list.text.len + strlen(*variables) < ENV_MOST)
            (void)msg_list_add(&list, *variables);

    (void)uname(&u);
    snprintf(machine, sizeof machine, "%.*s", (int)MSG_NAME_MAX, u.machine);
    struct msg_facts m = {
        .mode = f->mode,
        .uid = f->uid,
        .gid = f->gid,
        .root = f->mode != FACTS_SINGLE && (f->is_jail || (f->mode == FACTS_DEV && geteuid() != 0)),
        .shell_kind = f->shell_kind,
        .cgroups = cgroup_version(),
        .shell = f->shell,
        .home = f->home,
        .workspace = f->workspace,
        .machine = machine,
        .missing = f->missing,
        .environ = msg_list_of(&list),
    };
    msg_facts_encode(out, &m);
    msg_list_writer_done(&list);
}
