/* probe: commands that use up what a sandbox may use. Each stops by itself: by a count, by the
 * first refusal, or after a time. They print what they got, for the tests to compare. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long number(int argc, char **argv, int i)
{
    return argc > i ? strtol(argv[i], NULL, 0) : 0;
}

static double clock_now(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void nap(double s)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)s, .tv_nsec = (long)((s - (time_t)s) * 1e9)},
              NULL);
}

static int report(const char *what, long count, int error)
{
    printf("%s %ld %d\n", what, count, error);
    fflush(stdout);
    return 0;
}

/* hold SECONDS WORD: sleeps, with a word on the command line by which the host finds it. */
static int command_hold(int argc, char **argv)
{
    printf("ready\n");
    fflush(stdout);
    nap((double)number(argc, argv, 1));
    return 0;
}

/* forks N SECONDS: makes N children that sleep, counts those that came to be. */
static int command_forks(int argc, char **argv)
{
    long made = 0, want = number(argc, argv, 1);
    int error = 0;

    while (made < want) {
        pid_t pid = fork();
        if (pid == 0) {
            nap((double)number(argc, argv, 2));
            _exit(0);
        }
        if (pid < 0) {
            error = errno;
            break;
        }
        made++;
    }

    report("forks", made, error);
    if (argc > 2)
        nap((double)number(argc, argv, 2));
    return made == want ? WORKED : DENIED;
}

/* bomb: every process forks for ever; nobody ends by itself. */
static int command_bomb(int argc, char **argv)
{
    (void)argc, (void)argv;
    signal(SIGTERM, SIG_IGN);
    for (;;)
        if (fork() < 0)
            nap(0.001);
    return BAD_USAGE;
}

static void *thread_sleep(void *arg)
{
    (void)arg;
    nap(3600);
    return NULL;
}

/* threads N */
static int command_threads(int argc, char **argv)
{
    long made = 0, want = number(argc, argv, 1);
    int error = 0;
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, 16384);
    pthread_t t;
    while (made < want && !(error = pthread_create(&t, &a, thread_sleep, NULL)))
        made++;
    report("threads", made, error);
    return made == want ? WORKED : DENIED;
}

/* eat BYTES: touches that much memory. */
static int command_eat(int argc, char **argv)
{
    size_t left = (size_t)number(argc, argv, 1), step = 1 << 20;
    for (long eaten = 0; left >= step; left -= step, eaten++) {
        char *p = mmap(NULL, step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            report("eat", eaten, errno);
            return DENIED;
        }
        for (size_t i = 0; i < step; i += 4096)
            p[i] = 1;
    }
    report("eat", number(argc, argv, 1) >> 20, 0);
    return WORKED;
}

/* fill PATH BYTES: writes until there are so many or the first error. */
static int command_fill(int argc, char **argv)
{
    static char block[1 << 16];
    memset(block, 'x', sizeof block);
    long done = 0, want = number(argc, argv, 2);
    int error = 0, fd = argc > 1 ? open(argv[1], O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        error = errno;

    while (!error && done < want) {
        ssize_t n = write(fd, block, sizeof block);
        if (n < 0)
            error = errno;
        else
            done += n;
    }
    report("fill", done, error);
    return done >= want ? WORKED : DENIED;
}

/* files DIR N: makes N empty files. */
static int command_files(int argc, char **argv)
{
    long made = 0, want = number(argc, argv, 2);
    int error = argc < 3 || chdir(argv[1]) ? errno : 0;

    for (char name[32]; !error && made < want; made++) {
        snprintf(name, sizeof name, "f%ld", made);
        int fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0) {
            error = errno;
            break;
        }
        close(fd);
    }

    report("files", made, error);
    return made >= want ? WORKED : DENIED;
}

/* allocate PATH BYTES: reserves blocks; extend PATH BYTES: makes a hole. */
static int command_allocate(int argc, char **argv)
{
    int fd = argc > 1 ? open(argv[1], O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
    int r = fd < 0 ? -1 : fallocate(fd, 0, 0, number(argc, argv, 2));
    report("allocate", r, r ? errno : 0);
    return r ? DENIED : WORKED;
}

static int command_extend(int argc, char **argv)
{
    int fd = argc > 1 ? open(argv[1], O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
    int r = fd < 0 ? -1 : ftruncate(fd, number(argc, argv, 2));
    report("extend", r, r ? errno : 0);
    return r ? DENIED : WORKED;
}

static int open_inotify(void)
{
    return inotify_init1(IN_CLOEXEC);
}

static int open_pipe(void)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
        return -1;
    fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
    return ends[1];
}

static int open_null(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static int open_memfd(void)
{
    return memfd_create("probe", MFD_CLOEXEC);
}

static int open_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static int open_terminal(void)
{
    return open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
}

static int open_segment(void)
{
    return shmget(IPC_PRIVATE, 4096, 0600 | IPC_CREAT);
}

static int open_queue(void)
{
    static int n;
    char name[32];
    snprintf(name, sizeof name, "probe-%d-%d", getpid(), n++);
    return (int)syscall(SYS_mq_open, name, O_RDWR | O_CREAT, 0600, NULL);
}

static int queue_signal(void)
{
    union sigval v = {0};
    return sigqueue(getpid(), SIGRTMIN, v);
}

static const struct probe_resource resources[] = {
    {"inotify", open_inotify}, {"pipe", open_pipe},
    {"null", open_null},       {"memfd", open_memfd},
    {"socket", open_socket},   {"terminal", open_terminal},
    {"segment", open_segment}, {"queue", open_queue},
    {"signal", queue_signal},  {NULL, NULL},
};

static const struct probe_resource *find_resource(const char *name)
{
    static const struct probe_resource *const tables[] = {resources, machine_resources};
    for (size_t t = 0; t < 2; t++)
        for (const struct probe_resource *r = tables[t]; r->name; r++)
            if (!strcmp(r->name, name))
                return r;
    return NULL;
}

/* pipe-size: what a new pipe holds; the kernel gives less to a uid that has taken too much. */
static int command_pipe_size(int argc, char **argv)
{
    int ends[2];
    (void)argc, (void)argv;
    if (pipe2(ends, O_CLOEXEC))
        return report("pipe-size", -1, errno);
    return report("pipe-size", fcntl(ends[1], F_GETPIPE_SZ), 0);
}

/* Takes `want` of them or until the first refusal, whose errno it leaves. Returns how many. */
static long take_all(const struct probe_resource *resource, long want, int *ret_error)
{
    struct rlimit r;
    if (!getrlimit(RLIMIT_NOFILE, &r)) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
    sigset_t all;
    sigfillset(&all);
    if (!strcmp(resource->name, "signal"))
        sigprocmask(SIG_BLOCK, &all, NULL);

    long taken = 0;
    *ret_error = 0;
    while (taken < want && !*ret_error)
        if (resource->take() < 0)
            *ret_error = errno;
        else
            taken++;
    return taken;
}

/* take RESOURCE N SECONDS: takes N of them or until the first refusal, says how many, and keeps
 * them for so long. */
static int command_take(int argc, char **argv)
{
    const struct probe_resource *resource = argc > 2 ? find_resource(argv[1]) : NULL;
    if (!resource)
        return BAD_USAGE;
    int error;
    long want = number(argc, argv, 2), taken = take_all(resource, want, &error);
    report(argv[1], taken, error);
    nap((double)number(argc, argv, 3));
    return taken == want ? WORKED : DENIED;
}

/* take-many RESOURCE PROCESSES SECONDS: many processes take until each is refused. Says how many
 * they have in sum once the last one is done, and keeps them for so long. */
static int command_take_many(int argc, char **argv)
{
    const struct probe_resource *resource = argc > 3 ? find_resource(argv[1]) : NULL;
    long made = 0, sum = 0, taken = 0, want = number(argc, argv, 2);
    int ends[2], error;
    if (!resource || pipe2(ends, O_CLOEXEC))
        return BAD_USAGE;
    while (made < want) {
        pid_t pid = fork();
        if (pid == 0) {
            taken = take_all(resource, 10000000, &error);
            int told = write(ends[1], &taken, sizeof taken) == sizeof taken;
            close(ends[1]);
            nap((double)number(argc, argv, 3));
            _exit(told ? 0 : 1);
        }
        if (pid < 0)
            break;
        made++;
    }

    /* A process that was killed closes its end as well. */
    close(ends[1]);
    while (read(ends[0], &taken, sizeof taken) == sizeof taken)
        sum += taken;
    report("take-many", sum, 0);
    nap((double)number(argc, argv, 3));
    return 0;
}

/* zombies N: children that end at once and are never waited for, then N orphans for init. */
static int command_zombies(int argc, char **argv)
{
    long made = 0, want = number(argc, argv, 1), refused = 0;
    for (; made < want; made++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(0);
        if (pid < 0)
            break;
    }

    report("zombies", made, made < want ? errno : 0);
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;

    for (long i = 0; i < want; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            pid_t orphan = fork();
            _exit(orphan < 0);
        }
        int status = 0;
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
            refused++;
    }

    report("orphans-refused", refused, 0);
    return 0;
}

/* deep DIR N: a directory in a directory, N times. */
static int command_deep(int argc, char **argv)
{
    long made = 0, want = number(argc, argv, 2);
    int error = argc < 3 || chdir(argv[1]) ? errno : 0;
    while (!error && made < want) {
        if (mkdir("d", 0700) || chdir("d"))
            error = errno;
        else
            made++;
    }
    report("deep", made, error);
    return 0;
}

/* spin SECONDS THREADS: burns CPU; prints the milliseconds that were burnt. */
static void *thread_spin(void *arg)
{
    double until = *(double *)arg;
    while (clock_now(CLOCK_MONOTONIC) < until)
        for (volatile int i = 0; i < 10000; i++)
            ;
    return NULL;
}

static int command_spin(int argc, char **argv)
{
    double until = clock_now(CLOCK_MONOTONIC) + (double)number(argc, argv, 1);
    long threads = number(argc, argv, 2);
    pthread_t t[64];
    for (long i = 0; i < threads && i < 64; i++)
        pthread_create(&t[i], NULL, thread_spin, &until);
    for (long i = 0; i < threads && i < 64; i++)
        pthread_join(t[i], NULL);
    return report("spin", (long)(clock_now(CLOCK_PROCESS_CPUTIME_ID) * 1000), 0);
}

/* stubborn WORD: detaches by all means there are, refuses every signal that can be refused, and
 * leaves one process stopped and one awake. The first process stays too. */
static int command_stubborn(int argc, char **argv)
{
    (void)argc, (void)argv;
    for (int i = 0; i < 2; i++) {
        if (fork() == 0) {
            setsid();
            if (fork() != 0)
                _exit(0);
            for (int sig = 1; sig < 65; sig++)
                signal(sig, SIG_IGN);
            if (i == 0)
                kill(getpid(), SIGSTOP);
            for (;;)
                nap(3600);
        }
    }

    for (int sig = 1; sig < 65; sig++)
        signal(sig, SIG_IGN);
    printf("ready\n");
    fflush(stdout);
    for (;;)
        nap(3600);
}

const struct probe_command load_commands[] = {
    {"hold", command_hold},
    {"forks", command_forks},
    {"bomb", command_bomb},
    {"threads", command_threads},
    {"eat", command_eat},
    {"fill", command_fill},
    {"files", command_files},
    {"allocate", command_allocate},
    {"extend", command_extend},
    {"take", command_take},
    {"pipe-size", command_pipe_size},
    {"take-many", command_take_many},
    {"zombies", command_zombies},
    {"deep", command_deep},
    {"spin", command_spin},
    {"stubborn", command_stubborn},
    {NULL, NULL},
};
