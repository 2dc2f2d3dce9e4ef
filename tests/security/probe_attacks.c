/* probe: attacks that need more than one system call. */
#include "probe.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static int open_to(int argc, char **argv, int flags)
{
    int fd = argc == 2 ? open(argv[1], flags | O_NONBLOCK | O_CLOEXEC) : -1;
    if (fd < 0)
        exit(argc != 2 ? BAD_USAGE : errno == ENOENT || errno == ENXIO ? MISSING : DENIED);
    return fd;
}

/* read PATH: the file can be opened and has at least one byte. Some files of /proc give whole words
 * only. */
static int command_read(int argc, char **argv)
{
    char bytes[4096];
    ssize_t n = read(open_to(argc, argv, O_RDONLY), bytes, sizeof bytes);
    return n > 0 ? WORKED : n == 0 ? MISSING : DENIED;
}

/* write PATH: the file can be opened for writing; nothing is written. */
static int command_write(int argc, char **argv)
{
    return open_to(argc, argv, O_WRONLY) >= 0 ? WORKED : DENIED;
}

/* path PATH: the file can be taken hold of, as a descriptor for later. */
static int command_path(int argc, char **argv)
{
    return open_to(argc, argv, O_PATH) >= 0 ? WORKED : DENIED;
}

/* exe-write PROGRAM: takes hold of a running program's file by /proc and writes it when the program
 * has ended, because nobody may write one that runs. Nothing is written. */
static int command_exe_write(int argc, char **argv)
{
    char path[64];
    int go[2];
    if (argc != 2 || pipe(go))
        return BAD_USAGE;

    pid_t pid = fork();
    if (pid == 0) {
        dup2(go[0], 0);
        close(go[1]);
        execl(argv[1], argv[1], (char *)NULL);
        _exit(127);
    }
    close(go[0]);

    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    char target[1024] = "";
    for (int i = 0; i < 2000 && strcmp(target, argv[1]) != 0; i++) {
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n < 0 ? 0 : n] = 0;
        usleep(1000);
    }

    int held = open(path, O_PATH | O_CLOEXEC);
    close(go[1]);
    int status = 0;
    waitpid(pid, &status, 0);

    if (held < 0 || strcmp(target, argv[1]) != 0 || status)
        return BAD_USAGE;
    snprintf(path, sizeof path, "/proc/self/fd/%d", held);
    return open(path, O_WRONLY | O_CLOEXEC) >= 0 ? WORKED : DENIED;
}

/* mknod KIND MAJOR MINOR: KIND is c or b; leaves nothing behind. */
static int command_mknod(int argc, char **argv)
{
    if (argc != 4)
        return BAD_USAGE;
    mode_t kind = argv[1][0] == 'c' ? S_IFCHR : S_IFBLK;
    dev_t dev = makedev((unsigned)strtoul(argv[2], NULL, 0), (unsigned)strtoul(argv[3], NULL, 0));
    char path[] = "/tmp/probe-node";
    unlink(path);
    int answer = verdict(mknod(path, kind | 0666, dev));
    unlink(path);
    return answer;
}

/* setns PATH: joins the namespace that the file stands for. */
static int command_setns(int argc, char **argv)
{
    int fd = argc == 2 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
    return fd < 0 ? DENIED : verdict(setns(fd, 0));
}

static int open_terminal(void)
{
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || grantpt(master) || unlockpt(master))
        return -1;
    setsid();
    /* Not by name: the devpts gives every slave to the user, and sandbox root is somebody else. */
    int slave = ioctl(master, 0x5441 /* TIOCGPTPEER */, O_RDWR);
    if (slave >= 0)
        ioctl(slave, TIOCSCTTY, 0);
    return slave;
}

/* terminal REQUEST: an ioctl on a terminal of our own; bit 32 set must not fool the filter. */
static int command_terminal(int argc, char **argv)
{
    char data[64] = "x";
    int tty = open_terminal();
    if (argc != 2 || tty < 0)
        return BAD_USAGE;
    return verdict(syscall(SYS_ioctl, tty, strtoul(argv[1], NULL, 0), data));
}

/* controlling-terminal: the caller's terminal came along. */
static int command_controlling_terminal(int argc, char **argv)
{
    (void)argc, (void)argv;
    return open("/dev/tty", O_RDWR | O_CLOEXEC) >= 0 ? WORKED : DENIED;
}

/* perf: counts our own page faults, the least that perf offers. */
static int command_perf(int argc, char **argv)
{
    (void)argc, (void)argv;
    uint32_t attr[32] = {[0] = 1, [1] = 128};
    ((uint64_t *)attr)[5] = 0x60; /* exclude kernel and hypervisor */
    return verdict(syscall(SYS_perf_event_open, attr, 0, -1, -1, 0));
}

/* i386: getpid by the 32-bit entry. x32: the same by the x32 alias. */
static int command_i386(int argc, char **argv)
{
    (void)argc, (void)argv;
#ifdef __x86_64__
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "0"(20L) : "memory");
    return result == getpid() ? WORKED : DENIED;
#else
    return DENIED;
#endif
}

static int command_x32(int argc, char **argv)
{
    (void)argc, (void)argv;
#ifdef __x86_64__
    long pid = syscall(0x40000000 + SYS_getpid);
    return pid == getpid() ? WORKED : pid < 0 && errno == ENOSYS ? MISSING : DENIED;
#else
    return DENIED;
#endif
}

/* netlink PROTOCOL... : any of these netlink families opens. */
static int command_netlink(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (socket(AF_NETLINK, SOCK_RAW, atoi(argv[i])) >= 0)
            return WORKED;
    return DENIED;
}

static int connect_to(const char *address, const char *port, int type)
{
    struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = a4.sin_port};
    int is4 = inet_pton(AF_INET, address, &a4.sin_addr) == 1;
    if (!is4 && inet_pton(AF_INET6, address, &a6.sin6_addr) != 1)
        return BAD_USAGE;
    int fd = socket(is4 ? AF_INET : AF_INET6, type | SOCK_CLOEXEC, 0);
    alarm(2);
    int r = is4 ? connect(fd, (struct sockaddr *)&a4, sizeof a4)
                : connect(fd, (struct sockaddr *)&a6, sizeof a6);
    return r == 0 ? WORKED : DENIED;
}

/* connect ADDRESS PORT within two seconds. */
static int command_connect(int argc, char **argv)
{
    return argc != 3 ? BAD_USAGE : connect_to(argv[1], argv[2], SOCK_STREAM);
}

/* route ADDRESS: is there a way to it? Connecting a datagram socket looks the route up and sends
 * nothing, so that this is harmless where there is one. */
static int command_route(int argc, char **argv)
{
    return argc != 2 ? BAD_USAGE : connect_to(argv[1], "9", SOCK_DGRAM);
}

/* connect-abstract NAME: a unix socket of the abstract name space, stream and datagram. */
static int command_connect_abstract(int argc, char **argv)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (argc != 2 || strlen(argv[1]) > 90)
        return BAD_USAGE;
    memcpy(a.sun_path + 1, argv[1], strlen(argv[1]));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(argv[1]));
    return connect(fd, (struct sockaddr *)&a, size) == 0 ? WORKED : DENIED;
}

/* tcp-option OPTION NAME: sets a TCP option to a text, as TCP_ULP wants it. */
static int command_tcp_option(int argc, char **argv)
{
    if (argc != 3)
        return BAD_USAGE;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return verdict(setsockopt(fd, IPPROTO_TCP, atoi(argv[1]), argv[2], (socklen_t)strlen(argv[2])));
}

/* pidfd-signal-stop PID / ptrace PID / mem PID / ... : what may be done to another process. */
static int command_ptrace(int argc, char **argv)
{
    if (argc != 2)
        return BAD_USAGE;
    pid_t pid = atoi(argv[1]);
    if (syscall(SYS_ptrace, PTRACE_SEIZE, pid, 0, 0) == 0)
        return WORKED;
    return DENIED;
}

static int command_mem(int argc, char **argv)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/mem", argc == 2 ? argv[1] : "1");
    return open(path, O_RDONLY | O_CLOEXEC) >= 0 || open(path, O_WRONLY | O_CLOEXEC) >= 0 ? WORKED
                                                                                          : DENIED;
}

static int command_prlimit(int argc, char **argv)
{
    struct rlimit r = {0};
    pid_t pid = argc == 2 ? atoi(argv[1]) : 1;
    if (syscall(SYS_prlimit64, pid, RLIMIT_NOFILE, NULL, &r) < 0)
        return DENIED;
    return WORKED;
}

/* owner PID: the process is dumpable (its /proc entry belongs to its own uid, which is not ours).
 * A process that is not dumpable shows as root's, or as nobody's. */
static int command_dumpable(int argc, char **argv)
{
    char path[64], line[256];
    unsigned uid = 0, gid = 0, found = 0;
    struct stat st;
    snprintf(path, sizeof path, "/proc/%s/status", argc == 2 ? argv[1] : "1");

    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        found += sscanf(line, "Uid: %u", &uid) == 1;
        (void)sscanf(line, "Gid: %u", &gid);
    }

    snprintf(path, sizeof path, "/proc/%s/status", argc == 2 ? argv[1] : "1");
    if (!found || stat(path, &st))
        return DENIED;
    printf("runs as %u:%u, its files belong to %u:%u\n", uid, gid, st.st_uid, st.st_gid);
    return st.st_uid == uid && uid != 0 ? WORKED : DENIED;
}

/* descriptors: something above standard error is open, or a standard one is a strange thing. */
static int command_descriptors(int argc, char **argv)
{
    (void)argc, (void)argv;
    int worked = DENIED;
    for (int fd = 3; fd < 4096; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            printf("descriptor %d is open\n", fd), worked = WORKED;
    return worked;
}

/* mount-without FLAG: some mount of this root lacks the flag (nosuid, nodev). */
static int command_mount_without(int argc, char **argv)
{
    if (argc != 2)
        return BAD_USAGE;
    FILE *f = fopen("/proc/self/mountinfo", "re");
    char line[4096], point[1024], options[1024];
    int worked = DENIED;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%*s %*s %*s %*s %1023s %1023s", point, options) == 2 &&
            !strstr(options, argv[1]))
            printf("%s is %s\n", point, options), worked = WORKED;
    return worked;
}

/* set-user-id: a set-user-id file made by sandbox root gives uid 0 to uid 1000 (needs SETUID). */
static int command_set_user_id(int argc, char **argv)
{
    (void)argc, (void)argv;
    const char *copy = "/tmp/probe-suid";
    char self[1 << 16];
    int in = open("/opt/attack/probe", O_RDONLY | O_CLOEXEC);
    int out = open(copy, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    for (ssize_t n; in >= 0 && (n = read(in, self, sizeof self)) > 0;)
        if (write(out, self, (size_t)n) != n)
            return DENIED;
    if (out < 0 || fchmod(out, 04755) || close(out))
        return DENIED;

    pid_t pid = fork();
    if (pid == 0) {
        if (setgroups(0, NULL) || setresgid(1000, 1000, 1000) || setresuid(1000, 1000, 1000))
            _exit(DENIED);
        execl(copy, copy, "is-root", (char *)NULL);
        _exit(DENIED);
    }

    int status = 1;
    waitpid(pid, &status, 0);
    unlink(copy);
    return WIFEXITED(status) ? WEXITSTATUS(status) : DENIED;
}

static int command_is_root(int argc, char **argv)
{
    (void)argc, (void)argv;
    return geteuid() == 0 ? WORKED : DENIED;
}

/* capabilities MASK: a set of ours holds more than MASK (hexadecimal). */
static int command_capabilities(int argc, char **argv)
{
    unsigned long long allowed = argc == 2 ? strtoull(argv[1], NULL, 16) : 0, set;
    char line[256];
    int worked = DENIED;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "Cap", 3) && sscanf(line + 7, "%llx", &set) == 1 && (set & ~allowed))
            printf("%s", line), worked = WORKED;
    return worked;
}

/* no-new-privileges: it is not set. seccomp-off: no filter is loaded. */
static int command_no_new_privileges(int argc, char **argv)
{
    (void)argc, (void)argv;
    return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? DENIED : WORKED;
}

static int command_seccomp_off(int argc, char **argv)
{
    (void)argc, (void)argv;
    return prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 2 ? DENIED : WORKED;
}

/* become UID: changes the real, effective and saved uid. */
static int command_become(int argc, char **argv)
{
    uid_t uid = argc == 2 ? (uid_t)atoi(argv[1]) : 0;
    return setresuid(uid, uid, uid) == 0 && geteuid() == uid ? WORKED : DENIED;
}

/* realtime: a real-time class. nice: a better priority than was given. */
static int command_realtime(int argc, char **argv)
{
    (void)argc, (void)argv;
    struct sched_param p = {.sched_priority = 1};
    return syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &p) == 0 ? WORKED : DENIED;
}

static int command_nice(int argc, char **argv)
{
    (void)argc, (void)argv;
    return setpriority(PRIO_PROCESS, 0, -10) == 0 ? WORKED : DENIED;
}

/* shared-memory KEY: a SysV segment that somebody outside made is visible. */
static int command_shared_memory(int argc, char **argv)
{
    return argc == 2 && shmget((key_t)strtol(argv[1], NULL, 0), 0, 0) >= 0 ? WORKED : DENIED;
}

/* message-queue NAME: a POSIX queue that somebody outside made is visible. */
static int command_message_queue(int argc, char **argv)
{
    return argc == 2 && syscall(SYS_mq_open, argv[1], O_RDONLY, 0, NULL) >= 0 ? WORKED : DENIED;
}

/* xattr NAME: sets an attribute on a file of our own. The value is one that the kernel takes for
 * file capabilities, too. */
static int command_xattr(int argc, char **argv)
{
    static const uint32_t value[5] = {0x02000001, 1 << 13};
    int fd = open("/tmp/probe-xattr", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    return argc == 2 && fd >= 0 && fsetxattr(fd, argv[1], value, sizeof value, 0) == 0 ? WORKED
                                                                                       : DENIED;
}

/* handle: opens a file by handle, which ignores every directory above it. */
static int command_handle(int argc, char **argv)
{
    (void)argc, (void)argv;
    union {
        uint32_t head[2];
        char space[136];
    } handle = {.head = {128, 0}};
    int mount_id;
    if (syscall(SYS_name_to_handle_at, AT_FDCWD, "/etc", &handle, &mount_id, 0) < 0)
        handle.head[0] = 8, handle.head[1] = 1;
    int dir = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return verdict(syscall(SYS_open_by_handle_at, dir, &handle, O_RDONLY));
}

/* other-root: pid 1 lives under another root directory than ours. */
static int command_other_root(int argc, char **argv)
{
    (void)argc, (void)argv;
    struct stat ours, theirs;
    if (stat("/", &ours) || stat("/proc/1/root/", &theirs))
        return DENIED;
    return ours.st_dev != theirs.st_dev || ours.st_ino != theirs.st_ino ? WORKED : DENIED;
}

/* chroot-escape: the classic walk out of a root with a directory kept open. */
static int command_chroot_escape(int argc, char **argv)
{
    (void)argc, (void)argv;
    int top = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    mkdir("/tmp/probe-cell", 0755);
    if (chroot("/tmp/probe-cell") || fchdir(top))
        return DENIED;
    for (int i = 0; i < 64; i++)
        if (chdir(".."))
            break;
    return chroot(".") == 0 ? WORKED : DENIED;
}

const struct probe_command attack_commands[] = {
    {"read", command_read},
    {"write", command_write},
    {"path", command_path},
    {"exe-write", command_exe_write},
    {"mknod", command_mknod},
    {"setns", command_setns},
    {"terminal", command_terminal},
    {"controlling-terminal", command_controlling_terminal},
    {"perf", command_perf},
    {"i386", command_i386},
    {"x32", command_x32},
    {"netlink", command_netlink},
    {"connect", command_connect},
    {"route", command_route},
    {"connect-abstract", command_connect_abstract},
    {"tcp-option", command_tcp_option},
    {"ptrace", command_ptrace},
    {"mem", command_mem},
    {"prlimit", command_prlimit},
    {"dumpable", command_dumpable},
    {"descriptors", command_descriptors},
    {"mount-without", command_mount_without},
    {"set-user-id", command_set_user_id},
    {"is-root", command_is_root},
    {"capabilities", command_capabilities},
    {"no-new-privileges", command_no_new_privileges},
    {"seccomp-off", command_seccomp_off},
    {"become", command_become},
    {"realtime", command_realtime},
    {"nice", command_nice},
    {"shared-memory", command_shared_memory},
    {"message-queue", command_message_queue},
    {"xattr", command_xattr},
    {"handle", command_handle},
    {"other-root", command_other_root},
    {"chroot-escape", command_chroot_escape},
    {NULL, NULL},
};
