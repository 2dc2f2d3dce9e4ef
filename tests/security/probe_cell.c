/* probe: the cell, in which every attack must work.
 *
 * An attack that a sandbox refuses proves something only if it is an attack. The cell is the host
 * as its root has it, without one wall of a sandbox, but thrown away afterwards: its root is an
 * overlay over the host's, its /dev, /tmp and /run are its own, and so are its network, host name,
 * processes and mounts. It shares the host's kernel, ids, keys and SysV memory. Each attack gets a
 * new one, and all that it did goes with it.
 *
 * In /dev each name that is asked for is a node of /dev/zero: what is tried is that a node would be
 * found, not what its driver does. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define CELL_BROKEN 125

static void must(int result, const char *what)
{
    if (result >= 0)
        return;
    fprintf(stderr, "probe: cell: %s: %s\n", what, strerror(errno));
    _exit(CELL_BROKEN);
}

static const char *below(const char *top, const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", top, name);
    return path;
}

static void put_mount(const char *top, const char *name, const char *type, const char *options)
{
    mkdir(below(top, name), 0755);
    must(mount(type, below(top, name), type, 0, options), name);
}

static void put_bind(const char *top, const char *name, const char *source)
{
    mkdir(below(top, name), 0755);
    must(mount(source, below(top, name), NULL, MS_BIND | MS_REC, NULL), name);
}

static void put_node(const char *top, const char *name, unsigned major, unsigned minor)
{
    char path[4096];
    snprintf(path, sizeof path, "%s", below(top, name));
    for (char *p = path + strlen(top) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        mkdir(path, 0755);
    }
    must(mknod(path, S_IFCHR | 0666, makedev(major, minor)), path);
    must(chmod(path, 0666), path);
}

/* NODES are names below /dev, separated by spaces. */
static void put_devices(const char *root, const char *nodes)
{
    char dev[4096], *names = strdup(nodes);
    put_mount(root, "dev", "tmpfs", "mode=755");
    snprintf(dev, sizeof dev, "%s", below(root, "dev"));

    put_node(dev, "null", 1, 3);
    put_node(dev, "zero", 1, 5);
    put_node(dev, "full", 1, 7);
    put_node(dev, "random", 1, 8);
    put_node(dev, "urandom", 1, 9);
    put_node(dev, "tty", 5, 0);
    for (char *name = strtok(names, " "); name; name = strtok(NULL, " "))
        put_node(dev, name, 1, 5);

    put_mount(dev, "pts", "devpts", "newinstance,ptmxmode=0666");
    must(symlink("pts/ptmx", below(dev, "ptmx")), "ptmx");
    put_mount(dev, "shm", "tmpfs", "mode=1777");
    put_mount(dev, "mqueue", "mqueue", NULL);
    free(names);
}

/* The place becomes the overlay's, and the root of this process. */
static void enter_root(const char *place, const char *nodes, int nbinds, char **binds)
{
    char root[4096], options[8192];
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "private mounts");
    must(mount("tmpfs", place, "tmpfs", 0, "mode=755"), "tmpfs");
    must(mkdir(below(place, "upper"), 0755), "upper");
    must(mkdir(below(place, "work"), 0755), "work");
    snprintf(root, sizeof root, "%s", below(place, "root"));
    must(mkdir(root, 0755), "root");
    snprintf(options, sizeof options, "lowerdir=/,upperdir=%s/upper,workdir=%s/work", place, place);
    must(mount("overlay", root, "overlay", 0, options), "overlay");

    put_devices(root, nodes);
    put_bind(root, "sys", "/sys");
    put_mount(root, "tmp", "tmpfs", "mode=1777");
    put_mount(root, "run", "tmpfs", "mode=755");
    put_mount(root, "opt", "tmpfs", "mode=755");
    for (int i = 0; i + 1 < nbinds; i += 2)
        put_bind(root, binds[i] + 1, binds[i + 1]);

    must(chdir(root), root);
    must((int)syscall(SYS_pivot_root, ".", "."), "pivot_root");
    must(umount2(".", MNT_DETACH), "the old root");
    must(chdir("/"), "/");
}

static void bring_up_loopback(void)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    must(ioctl(fd, SIOCSIFFLAGS, &lo), "lo");
    close(fd);
}

/* A terminal that controls the attack's session, as the caller of a sandbox has one. */
static void take_terminal(void)
{
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY), unlocked = 0;
    must(master, "/dev/ptmx");
    must(ioctl(master, TIOCSPTLCK, &unlocked), "unlock the terminal");
    int slave = ioctl(master, 0x5441 /* TIOCGPTPEER */, O_RDWR);
    must(slave, "the terminal");
    must(setsid(), "setsid");
    must(ioctl(slave, TIOCSCTTY, 0), "the controlling terminal");
}

/* Process 1 of the cell. With its end the kernel ends all others. */
static int run_first(char *line, double limit)
{
    must(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
    bring_up_loopback();
    must(mkdir("/proc", 0755) && errno != EEXIST ? -1 : 0, "/proc");
    must(mount("proc", "/proc", "proc", 0, NULL), "/proc");
    take_terminal();
    return try_line(line, limit);
}

static int try_in_cell(const char *place, const char *nodes, int nbinds, char **binds, char *line,
                       double limit)
{
    int status = 0;
    pid_t outer = fork();
    if (outer < 0)
        return CELL_BROKEN;

    if (outer == 0) {
        must(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
        must(unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWNET), "unshare");
        enter_root(place, nodes, nbinds, binds);
        pid_t first = fork();
        must(first, "fork");
        if (first == 0)
            _exit(run_first(line, limit));
        /* An attack may stop process 1 itself. */
        for (double waited = 0; waitpid(first, &status, WNOHANG) == 0; waited += 0.002) {
            kill(first, waited > limit + 2 ? SIGKILL : SIGCONT);
            usleep(2000);
        }
        _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
    }

    waitpid(outer, &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* cell FILE SECONDS PLACE NODES [TARGET SOURCE]...: as battery, each line in a cell of its own.
 * PLACE is an empty directory; SOURCE is bound to TARGET, which is one step below a directory of
 * the cell's. */
static int command_cell(int argc, char **argv)
{
    FILE *f = argc >= 5 ? fopen(argv[1], "re") : NULL;
    if (!f)
        return BAD_USAGE;

    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, f) > 0) {
        line[strcspn(line, "\n")] = 0;
        char *tab = strchr(line, '\t');
        if (!tab)
            continue;
        *tab = 0;
        int status =
            try_in_cell(argv[3], argv[4], argc - 5, argv + 5, tab + 1, strtod(argv[2], NULL));
        printf("%s:%d\n", line, status);
        fflush(stdout);
    }

    return 0;
}

const struct probe_command cell_commands[] = {
    {"cell", command_cell},
    {NULL, NULL},
};
