/* Process 1 of the test machine.
 *
 * It starts from the initial file system that `run` packs, with no shell and no library: loads the
 * modules of /vm/modules in the order given there, mounts the disks and the virtual file systems a
 * Debian host has, runs one command, and hands its output and status to the host over a virtio
 * serial port. The console carries only kernel messages, so that they cannot mix with the output.
 *
 * A frame on the port: one byte of type, four bytes of length (little endian), the bytes.
 *   'R' the command starts now; the text is the uptime in seconds
 *   'O' 'E' standard output, standard error     'T' a piece of the tar archive of /out
 *   'N' a notice for the reader                 'X' the end: "exit N" or "signal N"
 * After 'X' the host answers with one byte. Only then does the machine switch off, because the
 * port may still hold bytes at that point.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TESTER = 1000, WAIT_MS = 20000, LIST_MAX = 512 };

#define USER_SLICE   "/sys/fs/cgroup/user.slice"
#define TESTER_SLICE USER_SLICE "/user-1000.slice"
#define TESTER_GROUP TESTER_SLICE "/user@1000.service"
#define ROOT_GROUP   "/sys/fs/cgroup/system.slice"

struct machine {
    int port; /* -1 until it is open */
    char **argv;
    char **env;
    unsigned uid;
    bool want_out;
};

static void power_off(void)
{
    sync();
    reboot(RB_POWER_OFF);
    reboot(RB_AUTOBOOT); /* the host runs QEMU with -no-reboot: this ends it as well */
    for (;;)
        pause();
}

__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "vm-init: ");
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, ": %s\n", strerror(errno));
    fflush(stderr);
    power_off();
    abort();
}

static void port_write(int port, const void *bytes, size_t len)
{
    const char *at = bytes;

    while (len > 0) {
        ssize_t n = write(port, at, len);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd p = {.fd = port, .events = POLLOUT};
            poll(&p, 1, 1000);
        } else if (n < 0 && errno != EINTR) {
            die("write to the port");
        } else if (n > 0) {
            at += n;
            len -= (size_t)n;
        }
    }
}

static void frame_send(const struct machine *m, char type, const void *bytes, size_t len)
{
    unsigned char head[5] = {(unsigned char)type, len & 255, len >> 8 & 255, len >> 16 & 255,
                             len >> 24 & 255};
    port_write(m->port, head, sizeof head);
    port_write(m->port, bytes, len);
}

__attribute__((format(printf, 3, 4))) static void text_send(const struct machine *m, char type,
                                                            const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    frame_send(m, type, text, n < 0 ? 0 : strnlen(text, sizeof text));
}

/* The whole of a small file, with a zero byte after it; NULL if it cannot be read. */
static char *file_read(const char *path, size_t *ret_len)
{
    size_t cap = 1 << 16, len = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = fd < 0 ? NULL : malloc(cap + 1);

    while (text != NULL) {
        ssize_t n = read(fd, text + len, cap - len);
        if (n <= 0)
            break;
        len += (size_t)n;
        if (len == cap)
            text = realloc(text, (cap *= 2) + 1);
    }
    if (fd >= 0)
        close(fd);
    if (text != NULL)
        text[len] = '\0';
    if (ret_len != NULL)
        *ret_len = len;
    return text;
}

static int file_write(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = write(fd, text, strlen(text));
    close(fd);
    return n < 0 ? -1 : 0;
}

/* Splits a file of NUL-ended (or newline-ended) words. The words stay allocated for ever. */
static char **words_read(const char *path, char end)
{
    size_t len = 0;
    char *text = file_read(path, &len);
    char **words = calloc(LIST_MAX + 1, sizeof *words);
    size_t count = 0;

    if (text == NULL || words == NULL)
        die("%s", path);
    for (char *at = text; at < text + len && count < LIST_MAX;) {
        char *stop = memchr(at, end, (size_t)(text + len - at));
        if (stop == NULL)
            stop = text + len;
        *stop = '\0';
        words[count++] = at;
        at = stop + 1;
    }
    return words;
}

static void modules_load(void)
{
    for (char **name = words_read("/vm/modules", '\n'); *name != NULL; name++) {
        char path[256];
        snprintf(path, sizeof path, "/vm/ko/%s", *name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            die("%s", path);
        if (syscall(SYS_finit_module, fd, "", 0) != 0 && errno != EEXIST)
            die("load %s", path);
        close(fd);
        unlink(path);
    }
}

static void sleep_ms(int ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* The order in which the machine type numbers its disks is not ours to choose, so a disk is found
 * by the serial number that the host gave it. */
static void disk_mount(const char *serial, const char *where, unsigned long flags,
                       const char *options)
{
    char path[300], dev[300] = "";

    for (int waited = 0; dev[0] == '\0' && waited < WAIT_MS; waited += 10) {
        DIR *dir = opendir("/sys/block");
        for (struct dirent *d; dir != NULL && (d = readdir(dir)) != NULL;) {
            snprintf(path, sizeof path, "/sys/block/%s/serial", d->d_name);
            char *text = strncmp(d->d_name, "vd", 2) == 0 ? file_read(path, NULL) : NULL;
            if (text != NULL && strncmp(text, serial, strlen(serial)) == 0)
                snprintf(dev, sizeof dev, "/dev/%s", d->d_name);
            free(text);
        }
        if (dir != NULL)
            closedir(dir);
        if (dev[0] == '\0')
            sleep_ms(10);
    }
    if (dev[0] == '\0')
        die("no disk with serial %s", serial);
    mkdir(where, 0755);
    if (mount(dev, where, "ext4", flags, options) != 0)
        die("mount %s on %s", dev, where);
}

/* The port is known by its name; its number depends on the other devices. */
static int port_open(void)
{
    char path[300];

    for (int waited = 0; waited < WAIT_MS; waited += 10) {
        int fd = -1;
        DIR *dir = opendir("/sys/class/virtio-ports");
        for (struct dirent *d; fd < 0 && dir != NULL && (d = readdir(dir)) != NULL;) {
            snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", d->d_name);
            char *name = file_read(path, NULL);
            snprintf(path, sizeof path, "/dev/%s", d->d_name);
            if (name != NULL && strcmp(name, "paddock\n") == 0)
                fd = open(path, O_RDWR | O_CLOEXEC);
            free(name);
        }
        if (dir != NULL)
            closedir(dir);
        if (fd >= 0)
            return fd;
        sleep_ms(10);
    }
    die("no virtio port named paddock");
}

struct mount_row {
    const char *type, *where;
    unsigned long flags;
    const char *options;
    bool may_fail;
};

static const struct mount_row mount_rows[] = {
    {"proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, false},
    {"sysfs", "/sys", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, false},
    {"devtmpfs", "/dev", MS_NOSUID, "mode=755", false},
    {"devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=000", false},
    {"tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777", false},
    {"tmpfs", "/run", MS_NOSUID | MS_NODEV, "mode=755", false},
    {"tmpfs", "/tmp", MS_NOSUID | MS_NODEV, "mode=1777", false},
    {"cgroup2", "/sys/fs/cgroup", MS_NOSUID | MS_NODEV | MS_NOEXEC,
     "nsdelegate,memory_recursiveprot", false},
    /* What else a Debian host shows, so that a sandbox has something to hide. */
    {"mqueue", "/dev/mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, true},
    {"securityfs", "/sys/kernel/security", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, true},
    {"debugfs", "/sys/kernel/debug", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, true},
    {"tracefs", "/sys/kernel/tracing", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, true},
    {"bpf", "/sys/fs/bpf", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=700", true},
};

static void root_enter(void)
{
    disk_mount("root", "/root", 0, NULL);
    disk_mount("project", "/root/paddock", MS_RDONLY, NULL);
    disk_mount("scratch", "/root/var/lib/paddock", 0, "prjquota");
    if (chdir("/root") != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0 ||
        chdir("/") != 0)
        die("enter the root");

    for (size_t i = 0; i < sizeof mount_rows / sizeof mount_rows[0]; i++) {
        const struct mount_row *r = &mount_rows[i];
        mkdir(r->where, 0755);
        if (mount(r->type, r->where, r->type, r->flags, r->options) != 0 && !r->may_fail)
            die("mount %s", r->where);
    }

    /* Mounts propagate on a host that systemd started. */
    if (mount(NULL, "/", NULL, MS_REC | MS_SHARED, NULL) != 0)
        die("share mounts");
}

static void directory_make(const char *path, unsigned mode, unsigned uid)
{
    if (mkdir(path, mode) != 0 && errno != EEXIST)
        die("%s", path);
    if (chown(path, uid, uid) != 0 || chmod(path, mode) != 0)
        die("%s", path);
}

/* A tree like systemd's: processes only in leaves, and one branch given to the tester. */
static void cgroups_make(void)
{
    static const char *const given[] = {"", "/cgroup.procs", "/cgroup.threads",
                                        "/cgroup.subtree_control"};
    static const char *const parents[] = {"/sys/fs/cgroup", ROOT_GROUP, USER_SLICE, TESTER_SLICE};

    mkdir(ROOT_GROUP, 0755);
    mkdir(USER_SLICE, 0755);
    for (size_t i = 0; i < sizeof parents / sizeof parents[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/cgroup.subtree_control", parents[i]);
        if (file_write(path, "+cpu +cpuset +io +memory +pids") != 0)
            die("%s", path);
        mkdir(TESTER_SLICE, 0755);
    }
    mkdir(TESTER_GROUP, 0755);
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s%s", TESTER_GROUP, given[i]);
        if (chown(path, TESTER, TESTER) != 0)
            die("%s", path);
    }
    directory_make(TESTER_GROUP "/command.scope", 0755, TESTER);
    if (chown(TESTER_GROUP "/command.scope/cgroup.procs", TESTER, TESTER) != 0)
        die("command.scope");
    mkdir(ROOT_GROUP "/command.scope", 0755);
}

static void host_settle(void)
{
    struct ifreq ifr = {.ifr_name = "lo"};
    struct rlimit files = {.rlim_cur = 1024, .rlim_max = 524288};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &ifr) != 0)
        die("loopback");
    ifr.ifr_flags |= IFF_UP;
    if (ioctl(fd, SIOCSIFFLAGS, &ifr) != 0)
        die("loopback up");
    close(fd);
    if (sethostname("testvm", 6) != 0 || setrlimit(RLIMIT_NOFILE, &files) != 0)
        die("host name and limits");
    /* The values of Debian's own sysctl.d files. */
    file_write("/proc/sys/kernel/pid_max", "4194304");
    file_write("/proc/sys/fs/protected_symlinks", "1");
    file_write("/proc/sys/fs/protected_hardlinks", "1");
    file_write("/proc/sys/fs/protected_fifos", "1");
    file_write("/proc/sys/fs/protected_regular", "2");
    /* systemd makes this one as large as can be; with a number that can be reached, tests see how
     * much of it a jail takes. */
    file_write("/proc/sys/fs/file-max", "2400000");
    if (symlink("/proc/self/fd", "/dev/fd") != 0 || symlink("fd/0", "/dev/stdin") != 0 ||
        symlink("fd/1", "/dev/stdout") != 0 || symlink("fd/2", "/dev/stderr") != 0)
        if (errno != EEXIST)
            die("/dev links");
    symlink("/proc/kcore", "/dev/core");
    directory_make("/run/lock", 01777, 0);
    directory_make("/run/user", 0755, 0);
    directory_make("/run/user/1000", 0700, TESTER);
    directory_make("/home/tester", 0755, TESTER);
    directory_make("/out", 01777, 0);
    directory_make("/var/lib/paddock", 0755, 0);
}

static void child_run(const struct machine *m, int out, int err)
{
    const char *group = m->uid != 0 ? TESTER_GROUP "/command.scope/cgroup.procs"
                                    : ROOT_GROUP "/command.scope/cgroup.procs";
    sigset_t none;
    int null = open("/dev/null", O_RDONLY);

    setsid();
    dup2(null, 0);
    dup2(out, 1);
    dup2(err, 2);
    if (null > 2)
        close(null);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (file_write(group, "0") != 0)
        fprintf(stderr, "vm-init: %s: %s\n", group, strerror(errno));
    if (setgroups(0, NULL) != 0 || setgid(m->uid) != 0 || setuid(m->uid) != 0 ||
        chdir("/paddock") != 0)
        _exit(125);
    for (char **e = m->env; *e != NULL; e++)
        putenv(*e);
    execvp(m->argv[0], m->argv);
    fprintf(stderr, "vm-init: %s: %s\n", m->argv[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

/* Copies what is there now; returns false at the end of the stream. */
static bool pipe_copy(const struct machine *m, int fd, char type)
{
    static char bytes[1 << 16];
    ssize_t n = read(fd, bytes, sizeof bytes);
    if (n > 0)
        frame_send(m, type, bytes, (size_t)n);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* Runs the command to its end and returns its wait status. Children that others left behind are
 * reaped on the way; those that still run when the command has ended do not hold the end up. */
static int command_run(const struct machine *m, char out_type)
{
    int out[2], err[2], status = -1;
    sigset_t chld;

    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)
        die("pipe");
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    fcntl(err[0], F_SETFL, O_NONBLOCK);
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    sigprocmask(SIG_BLOCK, &chld, NULL);
    int sig = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
    pid_t pid = fork();
    if (sig < 0 || pid < 0)
        die("start the command");
    if (pid == 0)
        child_run(m, out[1], err[1]);
    close(out[1]);
    close(err[1]);

    struct pollfd p[3] = {{.fd = out[0], .events = POLLIN},
                          {.fd = err[0], .events = POLLIN},
                          {.fd = sig, .events = POLLIN}};
    while (status == -1) {
        struct signalfd_siginfo info;
        int one;
        if (poll(p, 3, -1) < 0 && errno != EINTR)
            die("poll");
        if (p[0].revents != 0 && !pipe_copy(m, out[0], out_type))
            p[0].fd = -1;
        if (p[1].revents != 0 && !pipe_copy(m, err[0], 'E'))
            p[1].fd = -1;
        while (read(sig, &info, sizeof info) > 0)
            continue;
        for (pid_t got; (got = waitpid(-1, &one, WNOHANG)) > 0;)
            if (got == pid)
                status = one;
    }
    for (int i = 0; i < 2; i++)
        while (p[i].fd >= 0 && poll(&p[i], 1, 0) > 0 && pipe_copy(m, p[i].fd, i ? 'E' : out_type))
            continue;
    close(out[0]);
    close(err[0]);
    close(sig);
    return status;
}

static void config_read(struct machine *m)
{
    for (char **word = words_read("/vm/config", '\n'); *word != NULL; word++) {
        if (strncmp(*word, "time=", 5) == 0) {
            struct timeval now = {.tv_sec = strtoll(*word + 5, NULL, 10)};
            settimeofday(&now, NULL);
        } else if (strncmp(*word, "uid=", 4) == 0) {
            m->uid = (unsigned)strtoul(*word + 4, NULL, 10);
        } else if (strcmp(*word, "out") == 0) {
            m->want_out = true;
        }
    }

    m->argv = words_read("/vm/argv", '\0');
    m->env = words_read("/vm/env", '\0');
}

static void out_send(const struct machine *m)
{
    char *argv[] = {"/bin/tar", "-C", "/out", "-cf", "-", ".", NULL}, *env[] = {NULL};
    struct machine tar = {.port = m->port, .argv = argv, .env = env};
    int status = command_run(&tar, 'T');
    if (status != 0)
        text_send(m, 'N', "tar of /out ended with wait status %d", status);
}

int main(void)
{
    struct machine m = {.port = -1};
    char *text, answer;

    signal(SIGPIPE, SIG_IGN);
    umask(0022);
    mkdir("/proc", 0755);
    mkdir("/sys", 0755);
    if (mount("proc", "/proc", "proc", 0, NULL) != 0 ||
        mount("sysfs", "/sys", "sysfs", 0, NULL) != 0 ||
        mount("devtmpfs", "/dev", "devtmpfs", 0, NULL) != 0)
        die("first mounts");
    config_read(&m);
    modules_load();
    m.port = port_open();
    root_enter();
    cgroups_make();
    host_settle();

    text = file_read("/proc/uptime", NULL);
    text_send(&m, 'R', "%s", text == NULL ? "?" : text);
    int status = command_run(&m, 'O');
    if (m.want_out)
        out_send(&m);
    text = file_read("/proc/sys/kernel/tainted", NULL);
    if (text != NULL && strcmp(text, "0\n") != 0)
        text_send(&m, 'N', "the kernel is tainted: %s", text);
    kill(-1, SIGKILL);
    sync();
    if (WIFSIGNALED(status))
        text_send(&m, 'X', "signal %d", WTERMSIG(status));
    else
        text_send(&m, 'X', "exit %d", WEXITSTATUS(status));
    struct pollfd p = {.fd = m.port, .events = POLLIN};
    if (poll(&p, 1, WAIT_MS) > 0 && read(m.port, &answer, 1) < 0)
        fprintf(stderr, "vm-init: no answer: %s\n", strerror(errno));
    umount2("/var/lib/paddock", MNT_DETACH);
    power_off();
}
