/* The floor of `sustained`: a loop that makes what a jail is made of, and nothing else. A process
 * that has the namespaces of a jail (user, mount, pid, network, ipc, uts, cgroup), puts up the same
 * mounts and executes the command as their first process; then the next. There is no keeper, no
 * init, no cgroup, no seccomp filter and nothing that waits prepared.
 *
 * Like a builder it stands in a template, a mount namespace that has the host's programs already,
 * so that the kernel copies a short tree. The template is made once, before the clock starts. */
#include "bench.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define NAMESPACES                                                                                 \
    (CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)
#define SAFE (MS_NOSUID | MS_NODEV)

/* What a jail hides of /proc, as far as this kernel has it. */
static const char *const masked_files[] = {
    "proc/kallsyms", "proc/keys",    "proc/key-users",  "proc/config.gz", "proc/locks",
    "proc/iomem",    "proc/ioports", "proc/interrupts", "proc/diskstats", "proc/cmdline"};
static const char *const masked_dirs[] = {"proc/acpi", "proc/bus", "proc/driver",
                                          "proc/fs",   "proc/irq", "proc/pressure"};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static int make_dirs(const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (mkdir(names[i], 0755) < 0 && errno != EEXIST)
            return -1;
    return 0;
}

static int make_file(const char *path)
{
    auto_fd fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    return fd < 0 ? -1 : 0;
}

static int bind_mount(const char *from, const char *to)
{
    return mount(from, to, NULL, MS_BIND, NULL);
}

static int bind_read_only(const char *from, const char *to)
{
    if (bind_mount(from, to) < 0)
        return -1;
    return mount(NULL, to, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | SAFE, NULL);
}

/* In the template's tmpfs, which is the working directory. */
static int fill_template(void)
{
    static const char *const dirs[] = {"usr",     "etc",  "etc/alternatives", "dev",  "dev/pts",
                                       "dev/shm", "mask", "mask/dir",         "jail", "old"};
    static const char *const files[] = {"etc/ld.so.cache", "mask/file", "boot"};

    if (make_dirs(dirs, COUNT(dirs)) < 0)
        return -1;
    for (size_t i = 0; i < COUNT(files); i++)
        if (make_file(files[i]) < 0)
            return -1;

    if (bind_read_only("/usr", "usr") < 0)
        return -1;
    /* A host may lack these two; a jail does then, too. */
    (void)bind_read_only("/etc/alternatives", "etc/alternatives");
    (void)bind_read_only("/etc/ld.so.cache", "etc/ld.so.cache");
    return bind_mount("dev", "dev") < 0 || bind_mount("mask", "mask") < 0 ? -1 : 0;
}

int bare_open(struct bare *b, const struct place *p, struct pd_err *e)
{
    b->payload = open(p->payload, O_RDONLY | O_CLOEXEC);
    if (b->payload < 0)
        return pd_fail_sys(e, "open %s", p->payload);

    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return pd_fail_sys(e, "make a mount namespace for the template");

    if (mount("none", p->dir, "tmpfs", SAFE, "size=1m,mode=755") < 0 || chdir(p->dir) < 0 ||
        fill_template() < 0)
        return pd_fail_sys(e, "make the template");

    if (syscall(SYS_pivot_root, ".", "old") < 0 || chdir("/") < 0 || umount2("old", MNT_DETACH) < 0)
        return pd_fail_sys(e, "enter the template");
    return 0;
}

void bare_done(struct bare *b)
{
    fd_done(&b->payload);
}

/* ---- in the new process ---- */

static int mount_root(void)
{
    static const char *const dirs[] = {"usr",  "etc",       "etc/alternatives", "dev",
                                       "proc", "run",       "run/shm",          "tmp",
                                       "home", "home/user", "workspace"};

    if (mount("none", "/jail", "tmpfs", SAFE, "size=262144k,nr_inodes=100064,mode=755") < 0 ||
        chdir("/jail") < 0 || make_dirs(dirs, COUNT(dirs)) < 0 || make_file("etc/ld.so.cache") < 0)
        return -1;
    if (bind_mount("/usr", "usr") < 0 || bind_mount("/etc/alternatives", "etc/alternatives") < 0 ||
        bind_mount("/etc/ld.so.cache", "etc/ld.so.cache") < 0 || bind_mount("/dev", "dev") < 0)
        return -1;

    if (mount("none", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
              "newinstance,mode=620,ptmxmode=666,max=15") < 0)
        return -1;
    return bind_mount("run/shm", "dev/shm");
}

static int mount_proc(void)
{
    if (mount("proc", "proc", "proc", SAFE | MS_NOEXEC, NULL) < 0)
        return -1;

    for (size_t i = 0; i < COUNT(masked_files); i++)
        if (bind_mount("/mask/file", masked_files[i]) < 0 && errno != ENOENT)
            return -1;
    for (size_t i = 0; i < COUNT(masked_dirs); i++)
        if (bind_mount("/mask/dir", masked_dirs[i]) < 0 && errno != ENOENT)
            return -1;

    if (bind_mount("proc/sys", "proc/sys") < 0 ||
        mount(NULL, "proc/sys", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | SAFE | MS_NOEXEC, NULL) <
            0)
        return -1;
    return bind_mount("/boot", "proc/sys/kernel/random/boot_id");
}

static int loopback_up(void)
{
    struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    auto_fd fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd < 0 ? -1 : ioctl(fd, SIOCSIFFLAGS, &r);
}

/* With one id in it: the process writes its own maps, and nobody has to be asked. */
static int enter_user_namespace(void)
{
    if (unshare(CLONE_NEWUSER) < 0)
        return -1;
    return fd_write_file(AT_FDCWD, "proc/self/setgroups", "deny") < 0 ||
                   fd_write_file(AT_FDCWD, "proc/self/uid_map", "0 0 1") < 0 ||
                   fd_write_file(AT_FDCWD, "proc/self/gid_map", "0 0 1") < 0
               ? -1
               : 0;
}

static _Noreturn void become_jail(const struct bare *b)
{
    static char *const argv[] = {(char *)"true", NULL};
    static char *const env[] = {(char *)"PATH=/usr/bin:/bin", NULL};

    if (sethostname("sandbox", 7) < 0 || loopback_up() < 0 || mount_root() < 0 ||
        mount_proc() < 0 || enter_user_namespace() < 0 || chroot(".") < 0 ||
        chdir("/workspace") < 0)
        _exit(100);
    syscall(SYS_execveat, b->payload, "", argv, env, AT_EMPTY_PATH);
    _exit(101);
}

int bare_cycle(struct bare *b, struct pd_err *e)
{
    int status;
    pid_t pid = (pid_t)syscall(SYS_clone, NAMESPACES | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid < 0)
        return pd_fail_sys(e, "make a bare jail's namespaces");
    if (pid == 0)
        become_jail(b);

    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return pd_fail_sys(e, "wait for a bare jail");
    return status ? pd_fail(e, PD_INTERNAL, "a bare jail ended with status %d", status) : 0;
}
