/* The checks that try something: each in a child, whose namespaces and mounts end with it. */
#include "cli/doctor_checks.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "cli/doctor_text.h"
#include "jail/cgroup.h"
#include "jail/identity.h"
#include "jail/keeper.h"
#include "jail/mnt.h"
#include "jail/netns.h"
#include "jail/seccomp.h"
#include "jail/store.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#define TEXT_MAX (256u << 10)

const char *check_status_name(enum check_status s)
{
    static const char *const names[] = {"ok", "info", "warn", "fail"};
    return s < CHECK_STATUS_COUNT ? names[s] : "?";
}

struct check *check_add(struct check_list *l, const char *name, enum check_status s,
                        const char *why, const char *fix, const char *fmt, ...)
{
    if (l->count == CHECKS_MAX)
        abort(); /* the rows are counted by hand */

    struct check *c = &l->rows[l->count++];
    *c = (struct check){.status = s, .why = why};
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(c->fix, sizeof c->fix, "%s", fix ? fix : "");

    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->found, sizeof c->found, fmt, ap);
    va_end(ap);

    for (char *p = c->found; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = ' ';
    return c;
}

/* Calls `attempt` in a child. Returns 0 or the errno it ended with. */
static int try_in_child(int (*attempt)(void *), void *arg)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        return errno;
    if (pid == 0) {
        int r = attempt(arg);
        _exit(r < 0 ? -r & 0xff : 0);
    }

    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
}

/* Inside a chroot the kernel makes no user namespaces. Entering one's own mount namespace again
 * leads to its root; that needs root, and is what the jail's builder does. `ret_here`, unless NULL:
 * the working directory, as the new namespace sees it. */
static int leave_chroot(int *ret_here)
{
    if (unshare(CLONE_NEWNS) < 0)
        return -errno;

    auto_fd self = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    auto_fd here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (self < 0 || here < 0 || setns(self, CLONE_NEWNS) < 0)
        return -errno;

    if (ret_here)
        *ret_here = fd_take(&here);
    return 0;
}

static int in_chroot(void *arg)
{
    (void)arg;
    if (unshare(CLONE_NEWUSER) == 0 || errno != EPERM || leave_chroot(NULL) < 0)
        return -ENOENT;
    return unshare(CLONE_NEWUSER) < 0 ? -ENOENT : 0;
}

/* arg: flags of the namespace. */
static int new_space(void *arg)
{
    int flags = *(const int *)arg;

    if (geteuid() != 0)
        flags |= CLONE_NEWUSER; /* one gives the right to make the others */
    if (unshare(flags) == 0)
        return 0;

    int error = errno;
    if (error != EPERM || !(flags & CLONE_NEWUSER) || geteuid() != 0 || leave_chroot(NULL) < 0)
        return -error;
    return unshare(flags) < 0 ? -errno : 0;
}

void checks_place(struct check_list *l)
{
    static char text[TEXT_MAX];
    struct utsname u;
    unsigned major, minor;

    uname(&u);
    text_kernel_version(u.release, &major, &minor);
    int old = major < 5 || (major == 5 && minor < 12), aging = major == 5 && minor < 14;
    check_add(l, "kernel",
              old     ? CHECK_FAIL
              : aging ? CHECK_WARN
                      : CHECK_OK,
              "jails need Linux 5.12; 5.14 ends a whole jail at once",
              old || aging ? "upgrade the kernel: Debian 12 and Ubuntu 24.04 have a newer one"
                           : NULL,
              "%s", u.release);

    const char *engine = NULL, *variable = getenv("container");
    if (access("/run/.containerenv", F_OK) == 0)
        engine = "podman";
    else if (access("/.dockerenv", F_OK) == 0)
        engine = "docker";
    else if (fd_read_file(AT_FDCWD, "/proc/1/cgroup", text, sizeof text) > 0)
        engine = text_container_engine(text);
    if (!engine && variable && variable[0])
        engine = variable;
    l->in_container = engine != NULL;
    check_add(l, "container", CHECK_INFO, "container engines forbid what jails are made of", NULL,
              engine ? "signs of %s" : "no sign of one", engine);

    int whole = 1;
    unsigned masked = 0;
    if (fd_read_file(AT_FDCWD, "/proc/self/mountinfo", text, sizeof text) > 0) {
        masked = text_masked_proc(text);
        whole = text_has_root_mount(text);
    }
    check_add(l, "proc", masked ? (l->rootless ? CHECK_FAIL : CHECK_INFO) : CHECK_OK,
              "without root a jail gets a /proc only where the whole of it is visible",
              masked && l->rootless
                  ? "docker run --security-opt systempaths=unconfined ... (podman: unmask=ALL)"
                  : NULL,
              masked ? "%u places are covered" : "nothing is covered", masked);

    l->in_chroot = l->rootless ? !whole : try_in_child(in_chroot, NULL) == 0;
    check_add(l, "chroot", l->in_chroot && l->rootless ? CHECK_FAIL : CHECK_INFO,
              "in a chroot only root can make user namespaces",
              l->in_chroot && l->rootless ? "start paddock outside of the chroot, or as root"
                                          : NULL,
              l->in_chroot ? "inside one" : "no");
}

/* Says how this user would get user namespaces: the likeliest obstacle first. */
static void say_why_no_userns(const struct check_list *l, int error, char *ret, size_t size)
{
    char exe[160];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);

    exe[n > 0 ? n : 0] = 0;

    char value[32] = "";
    if (fd_read_file(AT_FDCWD, "/proc/sys/user/max_user_namespaces", value, sizeof value) > 0 &&
        value[0] == '0')
        snprintf(ret, size, "sudo sysctl -w user.max_user_namespaces=15000");
    else if (fd_read_file(AT_FDCWD, "/proc/sys/kernel/unprivileged_userns_clone", value,
                          sizeof value) > 0 &&
             value[0] == '0')
        snprintf(ret, size, "sudo sysctl -w kernel.unprivileged_userns_clone=1");
    else if (fd_read_file(AT_FDCWD, "/proc/sys/kernel/apparmor_restrict_unprivileged_userns", value,
                          sizeof value) > 0 &&
             value[0] == '1')
        snprintf(ret, size,
                 "printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile paddock \"%s\" "
                 "flags=(unconfined) {\\n  userns,\\n}\\n' | sudo tee /etc/apparmor.d/paddock && "
                 "sudo apparmor_parser -r /etc/apparmor.d/paddock",
                 exe);
    else if (l->in_container)
        snprintf(ret, size,
                 "docker run --privileged ... (or --cap-add SYS_ADMIN --security-opt "
                 "seccomp=unconfined --security-opt apparmor=unconfined)");
    else if (error == EPERM || error == EACCES)
        snprintf(ret, size, "%s",
                 l->rootless ? "start paddock as root, or outside of a chroot"
                             : "start paddock as root with all capabilities");
    else
        snprintf(ret, size,
                 "use a kernel with CONFIG_USER_NS, CONFIG_PID_NS, CONFIG_IPC_NS, "
                 "CONFIG_UTS_NS, CONFIG_NET_NS (every distribution's has them)");
}

void checks_namespaces(struct check_list *l)
{
    static const struct {
        const char *name;
        int flag;
        const char *why;
    } kinds[] = {
        {"ns-user", CLONE_NEWUSER, "gives a jail ids of its own"},
        {"ns-mount", CLONE_NEWNS, "gives a jail a root of its own"},
        {"ns-pid", CLONE_NEWPID, "hides the host's processes"},
        {"ns-ipc", CLONE_NEWIPC, "hides the host's shared memory"},
        {"ns-uts", CLONE_NEWUTS, "hides the host's name"},
        {"ns-net", CLONE_NEWNET, "keeps a jail off the network"},
        {"ns-cgroup", CLONE_NEWCGROUP, "hides the host's cgroups"},
    };

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int flag = kinds[i].flag, error = try_in_child(new_space, &flag);
        char fix[480] = "";
        if (error)
            say_why_no_userns(l, error, fix, sizeof fix);
        if (flag == CLONE_NEWUSER)
            l->user_namespaces = !error;
        check_add(l, kinds[i].name, error ? CHECK_FAIL : CHECK_OK, kinds[i].why, fix, "%s",
                  error ? strerror(error) : "works");
    }

    static const struct {
        const char *name, *path, *why;
        char bad;
    } locks[] = {
        {"apparmor-userns", "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
         "AppArmor may take the use out of user namespaces (Ubuntu since 23.10)", '1'},
        {"userns-clone", "/proc/sys/kernel/unprivileged_userns_clone",
         "0 reserves user namespaces for root", '0'},
        {"userns-max", "/proc/sys/user/max_user_namespaces", "0 allows no user namespaces", '0'},
    };
    for (size_t i = 0; i < sizeof locks / sizeof *locks; i++) {
        char value[32], fix[480] = "";
        if (fd_read_file(AT_FDCWD, locks[i].path, value, sizeof value) <= 0) {
            check_add(l, locks[i].name, CHECK_OK, locks[i].why, NULL, "no such setting");
            continue;
        }
        value[strcspn(value, "\n")] = 0;
        int locked = value[0] == locks[i].bad && !value[1], hurts = locked && !l->user_namespaces;
        if (hurts)
            say_why_no_userns(l, EPERM, fix, sizeof fix);
        check_add(l, locks[i].name,
                  hurts    ? CHECK_FAIL
                  : locked ? CHECK_INFO
                           : CHECK_OK,
                  locks[i].why, fix, "%s%s", value,
                  locked && !hurts ? " (does not keep this user from them)" : "");
    }
}

/* A mount namespace in which nothing reaches the host. */
static int private_mounts(void)
{
    struct pd_err e;

    /* Without root: as the builder does it, with an id that files can belong to. */
    if (geteuid() != 0 && userns_enter_single(&e) < 0)
        return -e.sys;
    if (unshare(CLONE_NEWNS) < 0)
        return -errno;
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ? -errno : 0;
}

static int try_overlay(void *arg)
{
    int rootless = *(const int *)arg;
    static const char *const places[] = {"/tmp", "/run", "/mnt"};

    int r = private_mounts();
    if (r < 0)
        return r;

    const char *at = NULL;
    for (size_t i = 0; !at && i < sizeof places / sizeof *places; i++)
        if (mount("none", places[i], "tmpfs", 0, "size=64k") == 0 && chdir(places[i]) == 0)
            at = places[i];

    if (!at || mkdir("l", 0755) < 0 || mkdir("u", 0755) < 0 || mkdir("w", 0755) < 0 ||
        mkdir("m", 0755) < 0)
        return -errno;

    const char *options =
        rootless ? "lowerdir=l,upperdir=u,workdir=w,userxattr" : "lowerdir=l,upperdir=u,workdir=w";
    return mount("none", "m", "overlay", 0, options) < 0 ? -errno : 0;
}

static int try_seccomp(void *arg)
{
    (void)arg;
    static struct seccomp_filter f;
    if (seccomp_compile(PROFILE_STRICT, &f, NULL) < 0)
        return -EINVAL;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    return seccomp_load(&f);
}

/* A way out by rules, in a namespace that is gone with the child. Without root it needs a namespace
 * of users around it, as a jail has. */
static int try_gate(void *arg)
{
    const int *rootless = arg;
    int sockets[2], netns = -1;
    struct pd_err e;
    auto_fd proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (*rootless && unshare(CLONE_NEWUSER) < 0)
        return -errno;
    return netns_gate_make(proc, &netns, sockets, &e) < 0 ? -(e.sys ? e.sys : EINVAL) : 0;
}

void checks_kernel(struct check_list *l)
{
    struct cgroup_mounts m;

    cgroup_probe(&m);
    l->has_cgroups = m.layout != CGROUP_NONE;
    snprintf(l->cgroup_why, sizeof l->cgroup_why, "%s", m.why);

    const char *fix = l->rootless       ? "sudo paddock ... (a jail of root's has every limit)"
                      : l->in_container ? "docker run --privileged --cgroupns=private ..."
                                        : "mount -t cgroup2 none /sys/fs/cgroup";
    enum check_status none = l->rootless ? CHECK_INFO : CHECK_WARN;

    if (l->has_cgroups)
        check_add(l, "cgroups", CHECK_OK, "limit memory, processes and CPU, and end a whole jail",
                  NULL, "%s", cgroup_layout_name(m.layout));
    else
        check_add(l, "cgroups", none, "limit memory, processes and CPU, and end a whole jail", fix,
                  "none: %s", m.why);

    int error = try_in_child(try_seccomp, NULL);
    check_add(l, "seccomp", error ? CHECK_FAIL : CHECK_OK,
              "keeps code away from most of the kernel",
              error ? "use a kernel with CONFIG_SECCOMP_FILTER" : NULL, "%s",
              error ? strerror(error) : "works");
    error = try_in_child(try_gate, &l->rootless);
    check_add(l, "gate", error ? CHECK_INFO : CHECK_OK,
              "lets a sandbox reach the network by rules (paddock run --allow)",
              error ? "modprobe nf_tables nft_tproxy (CONFIG_NF_TABLES_INET, CONFIG_NFT_TPROXY)"
                    : NULL,
              error ? "%s: rules are refused, and sandboxes have no network" : "%s",
              error ? strerror(error) : "works");
    error = try_in_child(try_overlay, &l->rootless);
    check_add(l, "overlay", error ? CHECK_WARN : CHECK_OK,
              "lets several named roots share what is below them",
              !error        ? NULL
              : l->rootless ? "sudo modprobe overlay (without root: Linux 5.11 or newer)"
                            : "modprobe overlay",
              "%s", error ? strerror(error) : "works");
}

/* The state directory, or what exists of its path. */
static int open_state_dir(char *path)
{
    for (;;) {
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        char *slash = strrchr(path, '/');
        if (fd >= 0 || !slash)
            return fd;
        if (slash == path)
            return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        *slash = 0;
    }
}

static int try_idmap(void *arg)
{
    int dir = *(const int *)arg;
    struct pd_err e = {.sys = EPERM};
    auto_fd proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC), here = -1;

    auto_fd userns = userns_create_single(proc, 0, 0, RANGE_BASE, &e);
    if (userns < 0 && fchdir(dir) == 0 && leave_chroot(&here) == 0) {
        dir = here;
        userns = userns_create_single(proc, 0, 0, RANGE_BASE, &e);
    }

    if (userns < 0)
        return -e.sys;
    auto_fd mounted = mnt_clone_idmapped(dir, ".", MNT_RDONLY, userns);
    return mounted < 0 ? mounted : 0;
}

static int find_program(const char *name)
{
    static const char *const dirs[] = {"/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/%s", dirs[i], name);
        if (access(path, X_OK) == 0)
            return 1;
    }
    return 0;
}

static void check_images(struct check_list *l, int needed)
{
    auto_fd control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    int device = control < 0 ? -1 : ioctl(control, LOOP_CTL_GET_FREE);
    int error = errno, mkfs = find_program("mkfs.ext4");

    check_add(l, "loop",
              device >= 0 ? CHECK_OK
              : needed    ? CHECK_WARN
                          : CHECK_INFO,
              "named roots are images on loop devices where there is no project quota",
              device >= 0 || !needed ? NULL
              : l->in_container      ? "docker run --privileged -v /dev:/dev ..."
                                     : "modprobe loop",
              "%s", device >= 0 ? "works" : strerror(error));

    check_add(l, "mkfs.ext4",
              mkfs     ? CHECK_OK
              : needed ? CHECK_WARN
                       : CHECK_INFO,
              "makes the images of named roots",
              mkfs || !needed ? NULL : "apt-get install -y e2fsprogs", "%s",
              mkfs ? "found" : "not found");
}

void checks_store(struct check_list *l)
{
    struct pd_err e;
    const char *state, *run;
    char path[SPEC_PATH_MAX + 1];

    if (keeper_dirs(&state, &run, &e) < 0) {
        check_add(l, "directories", CHECK_FAIL, "jails need a directory for what they lock",
                  "export PADDOCK_RUN_DIR=$(mktemp -d)", "%s", e.msg);
        return;
    }

    snprintf(path, sizeof path, "%s", state);
    auto_fd dir = open_state_dir(path);
    if (dir < 0) {
        check_add(l, "store", CHECK_FAIL, "named roots live there",
                  "export PADDOCK_STATE_DIR=$(mktemp -d)", "%s: %s", path, strerror(errno));
        return;
    }

    enum store_kind kind = store_probe(dir, l->rootless);
    check_add(l, "store", kind == STORE_PLAIN ? CHECK_INFO : CHECK_OK,
              kind == STORE_PLAIN ? "without root the size of a named root has no limit"
                                  : "how the size of a named root is limited",
              NULL, "%s, in %.80s", store_kind_name(kind), state);

    if (l->rootless) {
        check_add(l, "idmap", CHECK_INFO, "only root can map the ids of a mount", NULL,
                  "needs root");
        return;
    }

    int error = try_in_child(try_idmap, &dir);
    check_add(l, "idmap", error ? CHECK_WARN : CHECK_OK,
              "lets every jail use the same files with ids of its own",
              error ? "export PADDOCK_STATE_DIR=... (a directory on ext4, xfs or btrfs)" : NULL,
              "%s on %.80s", error ? strerror(error) : "works", path);
    check_images(l, kind == STORE_IMAGE);
}
