/* The skeleton is three tables: directories with modes and owners, files with their text, links.
 * All is made with the file system ids of the jail's root, so that only the directories of other
 * owners are given away afterwards. */
#include "jail/skeleton.h"

#include "base/banned.h"
#include "base/fd.h"
#include "jail/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/stat.h>

static const struct {
    const char *path;
    mode_t mode;
    uint32_t owner;
} dirs[] = {
    {"etc", 0755, UID_ROOT},         {"etc/alternatives", 0755, UID_ROOT},
    {"dev", 0755, UID_ROOT},         {"proc", 0555, UID_ROOT},
    {"run", 0755, UID_ROOT},         {"run/shm", 01777, UID_ROOT},
    {"run/paddock", 0755, UID_INIT}, {"tmp", 01777, UID_ROOT},
    {"var", 0755, UID_ROOT},         {"var/tmp", 01777, UID_ROOT},
    {"var/lib", 0755, UID_ROOT},     {"opt", 0755, UID_ROOT},
    {"root", 0700, UID_ROOT},        {"home", 0755, UID_ROOT},
    {"home/user", 0755, UID_USER},   {"workspace", 0755, UID_USER},
};

static const struct {
    const char *path, *text;
} files[] = {
    {"etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"
                   "user:x:1000:1000:user:/home/user:/bin/bash\n"
                   "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"},
    {"etc/group", "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n"},
    {"etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n"},
    {"etc/hostname", "sandbox\n"},
    {"etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"},
    {"etc/ld.so.cache", ""}, /* the host's is mounted over it */
};

static const struct {
    const char *target, *path;
} links[] = {
    {"/proc/self/mounts", "etc/mtab"},
    {"../usr/lib/os-release", "etc/os-release"},
    {"/usr/share/zoneinfo/UTC", "etc/localtime"},
    {"/run", "var/run"},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))
_Static_assert(COUNT(dirs) + COUNT(files) + COUNT(links) + 10 < SKELETON_FILES,
               "SKELETON_FILES also covers the links to /usr");

static int make_all(int dir)
{
    for (size_t i = 0; i < COUNT(dirs); i++)
        if (mkdirat(dir, dirs[i].path, dirs[i].mode) < 0 && errno != EEXIST)
            return -errno;

    for (size_t i = 0; i < COUNT(files); i++) {
        auto_fd fd = openat(dir, files[i].path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (fd < 0)
            return -errno;
        int r = fd_write_all(fd, files[i].text, strlen(files[i].text));
        if (r < 0)
            return r;
    }

    for (size_t i = 0; i < COUNT(links); i++)
        if (symlinkat(links[i].target, dir, links[i].path) < 0)
            return -errno;
    return 0;
}

/* Owners other than root, and the modes for everybody that a umask may have cut. */
static int correct(int dir, uint32_t base)
{
    for (size_t i = 0; i < COUNT(dirs); i++) {
        uint32_t id = base + dirs[i].owner;
        if (base != SKELETON_AS_IS && dirs[i].owner != UID_ROOT &&
            fchownat(dir, dirs[i].path, id, id, AT_SYMLINK_NOFOLLOW) < 0)
            return -errno;

        if (dirs[i].mode & 01000 && fchmodat(dir, dirs[i].path, dirs[i].mode, 0) < 0)
            return -errno;
    }
    return 0;
}

int skeleton_populate(int dir, uint32_t base)
{
    if (base == SKELETON_AS_IS || base == 0) {
        int r = make_all(dir);
        return r < 0 ? r : correct(dir, base);
    }

    setfsgid(base);
    setfsuid(base);
    int r = make_all(dir);
    setfsuid(0);
    setfsgid(0);

    return r < 0 ? r : correct(dir, base);
}
