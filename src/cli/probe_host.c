/* Attacks that go for the host: its processes, namespaces, network and files, and whatever comes
 * along with a command by accident. Each attempt says in words what it saw, and returns 1 when it
 * worked. */
#include "cli/probe.h"

#include "base/banned.h"
#include "base/fd.h"
#include "base/parse.h"
#include "jail/identity.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/utsname.h>

/* ---- other processes ---- */

PROBE_ATTEMPT(trace)
{
    return probe_reached(syscall(SYS_ptrace, PTRACE_SEIZE, w->target, 0, 0), detail);
}

PROBE_ATTEMPT(read_memory)
{
    char path[48];
    snprintf(path, sizeof path, "/proc/%d/mem", w->target);
    auto_fd fd = open(path, O_RDWR | O_CLOEXEC);
    return probe_reached(fd, detail);
}

PROBE_ATTEMPT(take_descriptor)
{
    auto_fd pid = (int)syscall(SYS_pidfd_open, w->target, 0);
    if (pid < 0)
        return probe_reached(-1, detail);
    auto_fd fd = (int)syscall(SYS_pidfd_getfd, pid, 0, 0);
    return probe_reached(fd, detail);
}

/* The uid that the target runs as. */
static unsigned target_uid(const struct probe_world *w)
{
    char path[48], text[4096];

    snprintf(path, sizeof path, "/proc/%d/status", w->target);
    if (fd_read_file(AT_FDCWD, path, text, sizeof text) < 0)
        return UINT_MAX;

    const char *at = strstr(text, "\nUid:");
    return at ? (unsigned)strtoul(at + 5, NULL, 10) : UINT_MAX;
}

PROBE_ATTEMPT(same_uid)
{
    unsigned uid = target_uid(w);
    PROBE_SAY("it runs as %u, we as %u", uid, geteuid());
    return uid == geteuid();
}

/* The kernel gives what it shows of a process that is not dumpable to the host's root. */
PROBE_ATTEMPT(dumpable)
{
    char path[48];
    struct stat st;
    unsigned uid = target_uid(w);

    snprintf(path, sizeof path, "/proc/%d/status", w->target);
    if (stat(path, &st) < 0 || uid == UINT_MAX) {
        PROBE_SAY("not to be seen");
        return 0;
    }

    PROBE_SAY("it runs as %u, its /proc files belong to %u", uid, st.st_uid);
    return st.st_uid == uid;
}

PROBE_ATTEMPT(host_processes)
{
    DIR *proc = opendir("/proc");
    struct dirent *d;
    int found = 0, count = 0;

    while (proc && (d = readdir(proc))) {
        char name[32];
        if (d->d_name[0] < '1' || d->d_name[0] > '9')
            continue;

        char path[sizeof d->d_name + 16];
        snprintf(path, sizeof path, "/proc/%s/comm", d->d_name);
        ssize_t n = fd_read_file(AT_FDCWD, path, name, sizeof name);
        count++;
        if (n > 0 && name[n - 1] == '\n')
            name[n - 1] = 0;
        found |= n > 0 && !strcmp(name, w->comm);
    }

    if (proc)
        closedir(proc);
    PROBE_SAY("%d processes to be seen", count);
    return found;
}

/* ---- namespaces ---- */

static int shared_space(const struct probe_world *w, const char *kind, char *detail)
{
    char path[32], link[64];

    snprintf(path, sizeof path, "/proc/self/ns/%s", kind);
    ssize_t n = readlink(path, link, sizeof link - 1);
    if (n <= 0) {
        PROBE_SAY("%s", strerror(errno));
        return 0;
    }

    link[n] = 0;
    PROBE_SAY("%s", link);
    return strstr(w->spaces, link) != NULL;
}

#define SPACE(kind)                                                                                \
    PROBE_ATTEMPT(shared_##kind)                                                                   \
    {                                                                                              \
        return shared_space(w, #kind, detail);                                                     \
    }
SPACE(user)
SPACE(mnt)
SPACE(pid)
SPACE(ipc)
SPACE(uts)
SPACE(net)
SPACE(cgroup)

/* Ids of a jail lie far above those that people and services have. */
PROBE_ATTEMPT(host_ids)
{
    char text[1024];
    unsigned inside, outside, count;

    if (fd_read_file(AT_FDCWD, "/proc/self/uid_map", text, sizeof text) < 0) {
        PROBE_SAY("/proc/self/uid_map cannot be read");
        return 0;
    }

    int n = sscanf(text, "%u %u %u", &inside, &outside, &count);
    PROBE_SAY("uid %u is the host's %u", inside, outside);
    return n == 3 && outside < RANGE_BASE;
}

PROBE_ATTEMPT(host_name)
{
    struct utsname u;
    uname(&u);
    PROBE_SAY("'%.60s'", u.nodename);
    return !strcmp(u.nodename, w->host);
}

/* ---- network ---- */

PROBE_ATTEMPT(host_loopback)
{
    uint64_t port;

    if (parse_u64("port", w->port, 1, 65535, &port, NULL) < 0)
        return 0;

    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    auto_fd fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int r = fd < 0 ? -1 : connect(fd, (struct sockaddr *)&a, sizeof a);
    PROBE_SAY("%s", r < 0 ? strerror(errno) : "connected");
    return r == 0;
}

PROBE_ATTEMPT(host_socket)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    size_t len = strlen(w->socket);
    if (!len || len >= sizeof a.sun_path)
        return 0;

    memcpy(a.sun_path + 1, w->socket, len);
    auto_fd fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
    int r = fd < 0 ? -1 : connect(fd, (struct sockaddr *)&a, size);
    PROBE_SAY("%s", r < 0 ? strerror(errno) : "connected");
    return r == 0;
}

PROBE_ATTEMPT(network_devices)
{
    char text[16384];

    if (fd_read_file(AT_FDCWD, "/proc/net/dev", text, sizeof text) < 0) {
        PROBE_SAY("/proc/net/dev cannot be read");
        return 0;
    }

    PROBE_SAY("only lo");
    for (char *line = text; line; line = strchr(line, '\n')) {
        while (*line == '\n' || *line == ' ')
            line++;
        size_t len = strcspn(line, ":\n");
        if (line[len] == ':' && !(len == 2 && !strncmp(line, "lo", 2))) {
            PROBE_SAY("%.*s", (int)(len < 32 ? len : 32), line);
            return 1;
        }
    }
    return 0;
}

/* ---- files ---- */

static int readable(const char *path, char *detail)
{
    char byte;
    auto_fd fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, &byte, 1);

    PROBE_SAY("%s", n > 0 ? "readable" : n == 0 ? "empty" : strerror(errno));
    return n > 0;
}

PROBE_ATTEMPT(kernel_memory)
{
    return readable("/proc/kcore", detail);
}

PROBE_ATTEMPT(kernel_symbols)
{
    return readable("/proc/kallsyms", detail);
}

PROBE_ATTEMPT(boot_options)
{
    return readable("/proc/cmdline", detail);
}

PROBE_ATTEMPT(timers)
{
    return readable("/proc/timer_list", detail) || readable("/proc/keys", detail);
}

/* Opened, never written. */
PROBE_ATTEMPT(settings)
{
    auto_fd fd = open("/proc/sys/kernel/core_pattern", O_WRONLY | O_CLOEXEC);
    auto_fd key = open("/proc/sysrq-trigger", O_WRONLY | O_CLOEXEC);
    PROBE_SAY("%s", fd >= 0 || key >= 0 ? "can be opened for writing" : strerror(errno));
    return fd >= 0 || key >= 0;
}

PROBE_ATTEMPT(sys)
{
    int r = access("/sys/kernel", F_OK);
    PROBE_SAY("%s", r < 0 ? strerror(errno) : "/sys is there");
    return r == 0;
}

PROBE_ATTEMPT(programs)
{
    struct statvfs fs;
    int r = statvfs("/usr", &fs);

    PROBE_SAY("%s", r < 0                   ? strerror(errno)
                    : fs.f_flag & ST_RDONLY ? "read-only"
                                            : "writable mount");
    return r == 0 && !(fs.f_flag & ST_RDONLY);
}

/* Walks the mounts: `flag` missing from one that is not below /dev, or a cgroup tree. */
static int walk_mounts(const char *flag, char *detail)
{
    char line[4096], point[1024], options[512], type[64];
    FILE *f = fopen("/proc/self/mountinfo", "re");
    int found = !f;

    PROBE_SAY(f ? "none" : "the mounts cannot be read");
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *rest = strstr(line, " - ");
        if (!rest || sscanf(line, "%*s %*s %*s %*s %1023s %511s", point, options) != 2 ||
            sscanf(rest + 3, "%63s", type) != 1)
            continue;

        int dev = !strcmp(point, "/dev") || !strncmp(point, "/dev/", 5);
        found = flag ? !strstr(options, flag) && !(dev && !strcmp(flag, "nodev"))
                     : !strncmp(type, "cgroup", 6);
        if (found)
            PROBE_SAY("%.80s", point);
    }

    if (f)
        fclose(f);
    return found;
}

PROBE_ATTEMPT(set_uid_mounts)
{
    return walk_mounts("nosuid", detail);
}

PROBE_ATTEMPT(device_mounts)
{
    return walk_mounts("nodev", detail);
}

PROBE_ATTEMPT(cgroup_tree)
{
    return walk_mounts(NULL, detail);
}

PROBE_ATTEMPT(devices)
{
    static const char usual[] = " . .. null zero full random urandom tty ptmx pts shm fd stdin "
                                "stdout stderr mqueue core ";
    DIR *dev = opendir("/dev");
    struct dirent *d;
    int found = 0;

    PROBE_SAY("only the usual");
    while (dev && !found && (d = readdir(dev))) {
        char word[sizeof d->d_name + 3];
        snprintf(word, sizeof word, " %s ", d->d_name);
        found = !strstr(usual, word);
        if (found)
            PROBE_SAY("/dev/%.60s", d->d_name);
    }

    if (dev)
        closedir(dev);
    return found;
}

/* ---- what comes along ---- */

PROBE_ATTEMPT(environment)
{
    PROBE_SAY("%s", getenv(PROBE_MARK) ? "the caller's" : "clean");
    return getenv(PROBE_MARK) != NULL;
}

PROBE_ATTEMPT(descriptors)
{
    PROBE_SAY("none above 2");
    for (int fd = 3; fd < 4096; fd++)
        if (fcntl(fd, F_GETFD) >= 0) {
            PROBE_SAY("descriptor %d is open", fd);
            return 1;
        }
    return 0;
}

PROBE_ATTEMPT(terminal)
{
    auto_fd fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
    PROBE_SAY("%s", fd < 0 ? strerror(errno) : "the caller's terminal");
    return fd >= 0;
}

/* clang-format off */
static const struct probe_attack rows[] = {
    PROBE_ROW("set-uid-mounts", "nosuid", BASIC, set_uid_mounts, "a mount honours set-uid files"),
    PROBE_ROW("device-mounts", "nosuid", BASIC, device_mounts, "a mount honours device files"),
    PROBE_ROW("ptrace", "init", BASIC, trace, "controls its supervisor"),
    PROBE_ROW("memory", "init", BASIC, read_memory, "reads and writes its supervisor's memory"),
    PROBE_ROW("pidfd-getfd", "init", BASIC, take_descriptor, "takes its supervisor's descriptors"),
    PROBE_ROW("same-uid", "init", FULL, same_uid, "its supervisor has its uid"),
    PROBE_ROW("dumpable", "init", BASIC, dumpable, "its supervisor's state can be inspected"),
    PROBE_ROW("host-processes", "pidns", BASIC, host_processes, "sees the host's processes"),
    PROBE_ROW("ns-user", "userns", BASIC, shared_user, "has the host's user namespace"),
    PROBE_ROW("ns-mnt", "mntns", BASIC, shared_mnt, "has the host's mount namespace"),
    PROBE_ROW("ns-pid", "pidns", BASIC, shared_pid, "has the host's process ids"),
    PROBE_ROW("ns-ipc", "ipcns", BASIC, shared_ipc, "shares memory and queues with the host"),
    PROBE_ROW("ns-uts", "utsns", BASIC, shared_uts, "has the host's names"),
    PROBE_ROW("ns-net", "netns", BASIC, shared_net, "has the host's network"),
    PROBE_ROW("ns-cgroup", "cgroupns", FULL, shared_cgroup, "sees the host's cgroup paths"),
    PROBE_ROW("host-ids", "userns", FULL, host_ids, "has the id of a user of the host"),
    PROBE_ROW("host-name", "utsns", BASIC, host_name, "sees the host's name"),
    PROBE_ROW("host-loopback", "netns", BASIC, host_loopback, "reaches the host's 127.0.0.1"),
    PROBE_ROW("host-socket", "netns", BASIC, host_socket, "reaches abstract sockets of the host"),
    PROBE_ROW("devices-net", "netns", BASIC, network_devices, "has network devices"),
    PROBE_ROW("kcore", "procmask", BASIC, kernel_memory, "reads the kernel's memory"),
    PROBE_ROW("kallsyms", "procmask", BASIC, kernel_symbols, "knows the kernel's addresses"),
    PROBE_ROW("cmdline", "procmask", BASIC, boot_options, "reads the boot options"),
    PROBE_ROW("timers-keys", "procmask", BASIC, timers, "reads the kernel's timers or keys"),
    PROBE_ROW("proc-sys", "procmask", BASIC, settings, "changes settings of the host"),
    PROBE_ROW("sys", "root", BASIC, sys, "sees /sys: the host's devices"),
    PROBE_ROW("programs", "root", BASIC, programs, "may change the host's programs"),
    PROBE_ROW("cgroupfs", "root", BASIC, cgroup_tree, "sees the cgroup trees"),
    PROBE_ROW("devices", "devs", BASIC, devices, "has devices of the host"),
    PROBE_ROW("environment", "env", BASIC, environment, "gets the secrets of the caller"),
    PROBE_ROW("descriptors", "fds", BASIC, descriptors, "gets open files of the host"),
    PROBE_ROW("terminal", "fds", BASIC, terminal, "gets the caller's terminal"),
};
/* clang-format on */

const struct probe_table probe_host = PROBE_TABLE(rows);
