/* probe: resources that the kernel counts for the machine and not for a jail's group. Each function
 * takes one of them and keeps it; -1 with errno when it gets none. The kernel's headers are not
 * there for every libc, so the few numbers stand here. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define LONGEST         4096 /* BPF_MAXINSNS */
#define DIVIDE          0x34 /* BPF_ALU | BPF_DIV | BPF_K */
#define RETURN          0x06 /* BPF_RET | BPF_K */
#define RET_ALLOW       0x7fff0000u
#define MODE_FILTER     2
#define SET_MODE_FILTER 1

#ifndef SO_ATTACH_REUSEPORT_CBPF
#define SO_ATTACH_REUSEPORT_CBPF 51
#endif
#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4u
#endif
#ifndef SHM_HUGETLB
#define SHM_HUGETLB 04000
#endif

struct instruction {
    uint16_t code;
    uint8_t yes, no;
    uint32_t k;
};

struct program {
    unsigned short len;
    const struct instruction *code;
};

/* A program of `len` instructions, each the one whose compiled form is longest. LONGEST is the
 * largest that the kernel takes. */
static struct program large_filter(unsigned short len)
{
    static struct instruction code[LONGEST];
    for (unsigned i = 0; i < LONGEST - 1; i++)
        code[i] = (struct instruction){.code = DIVIDE, .k = 3};
    code[LONGEST - 1] = (struct instruction){.code = RETURN, .k = RET_ALLOW};
    return (struct program){len, code + LONGEST - len};
}

/* Older kernels have 20 KiB for the options of a socket (net.core.optmem_max), which the largest
 * program does not fit into. */
static int attach_filter(int fd, int option)
{
    int error = EBADF;
    for (unsigned short len = LONGEST; fd >= 0 && len >= LONGEST / 8; len /= 2) {
        struct program program = large_filter(len);
        if (!setsockopt(fd, SOL_SOCKET, option, &program, sizeof program))
            return fd;
        error = errno;
        if (error != ENOMEM)
            break;
    }
    close(fd);

    errno = error;
    return -1;
}

static int open_socket_filter(void)
{
    return attach_filter(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), SO_ATTACH_FILTER);
}

static int open_reuseport_filter(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    return attach_filter(fd, SO_ATTACH_REUSEPORT_CBPF);
}

/* Each filter lives in a child of its own, so that the length of one process's chain is no limit.
 */
static int take_filter(int by_prctl)
{
    int ends[2], error = EIO;
    if (pipe2(ends, O_CLOEXEC))
        return -1;

    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        error = 0;
        struct program largest = large_filter(LONGEST);
        if ((by_prctl ? prctl(PR_SET_SECCOMP, MODE_FILTER, &largest)
                      : syscall(SYS_seccomp, SET_MODE_FILTER, 0, &largest)) < 0)
            error = errno;
        if (write(ends[1], &error, sizeof error) < 0 || error)
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);

    if (pid < 0)
        error = errno;
    else if (read(ends[0], &error, sizeof error) != sizeof error)
        error = EIO;
    close(ends[0]);
    errno = error;
    return error ? -1 : 0;
}

static int take_seccomp_filter(void)
{
    return take_filter(0);
}

static int take_prctl_filter(void)
{
    return take_filter(1);
}

/* As many requests as the machine has for everybody, or what is left of them. */
static int take_aio(void)
{
    static unsigned want = 1 << 20;
    for (; want; want /= 2) {
        unsigned long context = 0;
        if (!syscall(SYS_io_setup, want, &context))
            return 0;
        if (errno != EAGAIN && errno != EINVAL && errno != ENOMEM)
            return -1;
    }
    return -1;
}

#define HUGE_PAGE (2u << 20)

static int take_huge_page(void)
{
    char *p = mmap(NULL, HUGE_PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (p == MAP_FAILED)
        return -1;
    *p = 1;
    return 0;
}

static int take_huge_memfd(void)
{
    int fd = memfd_create("probe", MFD_CLOEXEC | MFD_HUGETLB);
    if (fd < 0)
        return -1;
    char *p = mmap(NULL, HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return -1;
    *p = 1;
    return 0;
}

static int take_huge_segment(void)
{
    int id = shmget(IPC_PRIVATE, HUGE_PAGE, IPC_CREAT | SHM_HUGETLB | 0600);
    char *p = id < 0 ? (char *)-1 : shmat(id, NULL, 0);
    if (id >= 0)
        shmctl(id, IPC_RMID, NULL); /* it goes with its last user */
    if (p == (char *)-1)
        return -1;
    *p = 1;
    return 0;
}

/* A core of one's own: PR_SCHED_CORE, CREATE, this thread. */
static int take_core(void)
{
    return prctl(62, 1, 0, 0, 0);
}

/* A page that is in a pipe and in nobody's memory. */
static int take_spliced_page(void)
{
    int ends[2];
    struct iovec page = {.iov_len = 4096};
    page.iov_base = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pipe2(ends, O_CLOEXEC) || page.iov_base == MAP_FAILED)
        return -1;
    memset(page.iov_base, 'x', 4096);
    long n = syscall(SYS_vmsplice, ends[1], &page, 1, 0);
    munmap(page.iov_base, 4096);
    return n < 0 ? -1 : ends[0];
}

/* A connection over loopback whose one end writes as much as the kernel keeps for the other, which
 * reads nothing. Counts MiB. */
static int take_stream(void)
{
    static int listener = -1, writer = -1;
    static char block[1 << 16];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int most = 64 << 20;

    if (listener < 0) {
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 64))
            return -1;
    }

    for (size_t sent = 0; sent < 1 << 20;) {
        ssize_t n = writer < 0 ? -1 : send(writer, block, sizeof block, MSG_DONTWAIT);
        if (n > 0) {
            sent += (size_t)n;
            continue;
        }

        writer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(writer, SOL_SOCKET, SO_SNDBUF, &most, sizeof most);
        if (writer < 0 || getsockname(listener, (struct sockaddr *)&at, &len) ||
            connect(writer, (struct sockaddr *)&at, sizeof at))
            return -1;

        int reader = accept(listener, NULL, NULL);
        if (reader < 0)
            return -1;

        /* A new connection always gets a little. One that gets no more finds no room. */
        if (send(writer, block, sizeof block, MSG_DONTWAIT) < (ssize_t)sizeof block) {
            errno = ENOBUFS;
            return -1;
        }
    }

    return 0;
}

const struct probe_resource machine_resources[] = {
    {"socket-filter", open_socket_filter},
    {"reuseport-filter", open_reuseport_filter},
    {"seccomp-filter", take_seccomp_filter},
    {"prctl-filter", take_prctl_filter},
    {"aio", take_aio},
    {"huge-page", take_huge_page},
    {"huge-memfd", take_huge_memfd},
    {"huge-segment", take_huge_segment},
    {"core", take_core},
    {"spliced-page", take_spliced_page},
    {"stream", take_stream},
    {NULL, NULL},
};
