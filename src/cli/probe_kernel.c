/* Attacks that go for the kernel: system calls that a filter should refuse, and privileges that a
 * jail should not have. An errno that no wall answers with means that the kernel's own code was
 * reached, and counts as a broken wall. */
#include "cli/probe.h"

#include "base/banned.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

/* With these a wall answers; any other error means that the kernel itself looked at the call. */
static int refused(int error)
{
    static const int answers[] = {EPERM,           EACCES,          ENOSYS, EAFNOSUPPORT,
                                  EPROTONOSUPPORT, ESOCKTNOSUPPORT, EROFS,  ENOSPC};
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (error == answers[i])
            return 1;
    return 0;
}

/* Was the kernel's code of the call reached? */
int probe_reached(long result, char detail[PROBE_DETAIL_MAX])
{
    int error = errno;
    PROBE_SAY("%s", result >= 0 ? "allowed" : strerror(error));
    return result >= 0 || !refused(error);
}

/* ---- the kernel's surface ---- */

PROBE_ATTEMPT(af_vsock)
{
    return probe_reached(socket(40, SOCK_STREAM | SOCK_CLOEXEC, 0), detail);
}

PROBE_ATTEMPT(af_alg)
{
    return probe_reached(socket(38, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), detail);
}

PROBE_ATTEMPT(af_packet)
{
    return probe_reached(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), detail);
}

PROBE_ATTEMPT(af_netlink)
{
    return probe_reached(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 15 /* uevents */), detail);
}

PROBE_ATTEMPT(keyring)
{
    return probe_reached(syscall(SYS_keyctl, 0 /* the id of */, -3 /* our session's */, 0), detail);
}

PROBE_ATTEMPT(bpf)
{
    char attr[128] = {0};
    return probe_reached(syscall(SYS_bpf, 0 /* make a map of size 0 */, attr, sizeof attr), detail);
}

PROBE_ATTEMPT(io_uring)
{
    char params[120] = {0};
    return probe_reached(syscall(SYS_io_uring_setup, 1, params), detail);
}

PROBE_ATTEMPT(user_faults)
{
    return probe_reached(syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* of user space only */), detail);
}

PROBE_ATTEMPT(perf)
{
    uint64_t attr[16] = {[0] = (128ULL << 32) | 1, [1] = 2, [5] = 0x60};
    return probe_reached(syscall(SYS_perf_event_open, attr, 0, -1, -1, 8), detail);
}

PROBE_ATTEMPT(kernel_log)
{
    return probe_reached(syscall(SYS_syslog, 10 /* its size */, NULL, 0), detail);
}

PROBE_ATTEMPT(module)
{
    return probe_reached(syscall(SYS_finit_module, -1, "", 0), detail);
}

PROBE_ATTEMPT(by_handle)
{
    uint32_t handle[4] = {8, 1, 0, 0};
    return probe_reached(syscall(SYS_open_by_handle_at, AT_FDCWD, handle, O_RDONLY | O_CLOEXEC),
                         detail);
}

PROBE_ATTEMPT(new_userns)
{
    return probe_reached(unshare(CLONE_NEWUSER), detail);
}

PROBE_ATTEMPT(join_namespace)
{
    auto_fd own = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
    return own >= 0 && probe_reached(setns(own, CLONE_NEWUTS), detail);
}

PROBE_ATTEMPT(change_root)
{
    return probe_reached(chroot("/"), detail);
}

/* A mount of our own in a namespace of our own, where nobody else sees it. */
PROBE_ATTEMPT(mount_tmpfs)
{
    if (unshare(CLONE_NEWNS) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return probe_reached(-1, detail);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
        PROBE_SAY("made a mount namespace");
        return 1;
    }
    return probe_reached(mount("none", "/tmp", "tmpfs", 0, "size=4k"), detail);
}

/* The newer way makes mounts that are nowhere. */
PROBE_ATTEMPT(open_filesystem)
{
    return probe_reached(syscall(SYS_fsopen, "tmpfs", 1), detail);
}

/* The kernel looks at the low half of the request; a filter that looks at all of it is fooled. */
PROBE_ATTEMPT(type_into_terminal)
{
    char path[32];
    unsigned number;
    int unlock = 0;

    auto_fd master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) < 0 ||
        ioctl(master, TIOCGPTN, &number) < 0) {
        PROBE_SAY("no terminal to try it on: %s", strerror(errno));
        return 0;
    }

    signal(SIGHUP, SIG_IGN); /* what a session gets when its terminal goes away */
    setsid();
    snprintf(path, sizeof path, "/dev/pts/%u", number);
    auto_fd terminal = open(path, O_RDWR | O_CLOEXEC);
    if (terminal < 0) {
        PROBE_SAY("no terminal to try it on: %s", strerror(errno));
        return 0;
    }

    long plain = syscall(SYS_ioctl, terminal, (unsigned long)TIOCSTI, "x");
    long high = syscall(SYS_ioctl, terminal, TIOCSTI | (1UL << 32), "x");
    PROBE_SAY("%s", plain >= 0 || high >= 0 ? "typed a letter" : strerror(errno));
    return plain >= 0 || high >= 0;
}

PROBE_ATTEMPT(i386_calls)
{
#ifdef __x86_64__
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "0"(20L /* getpid */) : "memory");
    PROBE_SAY("%s", result == getpid() ? "allowed" : "no answer");
    return result == getpid();
#else
    PROBE_SAY("not on this machine");
    return 0;
#endif
}

PROBE_ATTEMPT(filter_missing)
{
    int mode = prctl(PR_GET_SECCOMP, 0, 0, 0, 0);
    PROBE_SAY("seccomp mode %d", mode);
    return mode != 2;
}

/* ---- privilege ---- */

PROBE_ATTEMPT(capabilities)
{
    char text[4096];
    static const char *const sets[] = {"CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"};

    if (fd_read_file(AT_FDCWD, "/proc/self/status", text, sizeof text) < 0) {
        PROBE_SAY("/proc/self/status cannot be read");
        return 1;
    }

    PROBE_SAY("all five sets are empty");
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const char *at = strstr(text, sets[i]);
        if (!at || strtoull(at + 7, NULL, 16)) {
            PROBE_SAY("%.26s", at ? at : "a set is not shown");
            return 1;
        }
    }
    return 0;
}

PROBE_ATTEMPT(become_root)
{
    int r = (int)syscall(SYS_setresuid, 0, 0, 0);
    PROBE_SAY("%s", r < 0 ? strerror(errno) : "uid 0");
    return r == 0 && geteuid() == 0;
}

PROBE_ATTEMPT(new_privileges)
{
    int on = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
    PROBE_SAY("no_new_privs is %d", on);
    return on != 1;
}

PROBE_ATTEMPT(make_device)
{
    char path[64];

    snprintf(path, sizeof path, "/tmp/paddock-probe-%d", getpid());
    int r = mknod(path, S_IFCHR | 0600, makedev(1, 3)); /* a null device: no use to anybody */
    int error = errno;

    if (r == 0)
        unlink(path);
    PROBE_SAY("%s", r < 0 ? strerror(error) : "made one");
    return r == 0;
}

PROBE_ATTEMPT(core_dumps)
{
    struct rlimit l = {0};
    getrlimit(RLIMIT_CORE, &l);
    PROBE_SAY("%s", l.rlim_max ? "allowed" : "limited to 0");
    return l.rlim_max != 0;
}

/* clang-format off */
static const struct probe_attack rows[] = {
    PROBE_ROW("af-vsock", "seccomp", BASIC, af_vsock, "talks past every network wall"),
    PROBE_ROW("af-alg", "seccomp", BASIC, af_alg, "reaches the kernel's crypto code"),
    PROBE_ROW("af-packet", "seccomp", BASIC, af_packet, "makes raw packets"),
    PROBE_ROW("af-netlink", "seccomp", BASIC, af_netlink, "reaches kernel parsers nobody needs"),
    PROBE_ROW("keyring", "seccomp", BASIC, keyring, "reaches keys, which no namespace keeps apart"),
    PROBE_ROW("bpf", "seccomp", BASIC, bpf, "loads programs into the kernel"),
    PROBE_ROW("io_uring", "seccomp", BASIC, io_uring, "calls the kernel past the filter"),
    PROBE_ROW("userfaultfd", "seccomp", BASIC, user_faults, "stops the kernel in mid-copy"),
    PROBE_ROW("perf", "seccomp", BASIC, perf, "reaches the performance counters"),
    PROBE_ROW("kernel-log", "seccomp", BASIC, kernel_log, "reads the kernel's log"),
    PROBE_ROW("module", "seccomp", BASIC, module, "loads kernel modules"),
    PROBE_ROW("open-by-handle", "seccomp", BASIC, by_handle, "opens files past every directory"),
    PROBE_ROW("new-userns", "seccomp", BASIC, new_userns, "becomes root in a namespace of its own"),
    PROBE_ROW("join-namespace", "seccomp", BASIC, join_namespace, "enters other namespaces"),
    PROBE_ROW("chroot", "seccomp", BASIC, change_root, "changes its root directory"),
    PROBE_ROW("mount", "seccomp", BASIC, mount_tmpfs, "mounts file systems"),
    PROBE_ROW("fsopen", "seccomp", BASIC, open_filesystem, "mounts file systems the newer way"),
    PROBE_ROW("tiocsti", "seccomp", BASIC, type_into_terminal, "types into the caller's terminal"),
    PROBE_ROW("i386", "seccomp", BASIC, i386_calls, "uses the 32-bit system calls"),
    PROBE_ROW("filter", "seccomp", BASIC, filter_missing, "runs without a seccomp filter"),
    PROBE_ROW("capabilities", "caps", BASIC, capabilities, "has capabilities"),
    PROBE_ROW("setuid-root", "caps", BASIC, become_root, "becomes sandbox root"),
    PROBE_ROW("mknod", "caps", BASIC, make_device, "makes device files"),
    PROBE_ROW("new-privileges", "nnp", BASIC, new_privileges, "gains privilege by exec"),
    PROBE_ROW("core-dumps", "init", BASIC, core_dumps, "has the host write its core dumps"),
};
/* clang-format on */

const struct probe_table probe_kernel = PROBE_TABLE(rows);
