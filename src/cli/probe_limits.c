/* Takes more than the second jail may have. Outside, as a control, the same amounts are small: 48
 * MiB of memory, 64 sleeping processes, 400 empty files, a 4 MiB file without a name and a quarter
 * of a second of work. */
#include "cli/probe.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

PROBE_ATTEMPT(take_disk)
{
    static char block[65536];
    char path[] = "/tmp/paddock-probe-XXXXXX";

    auto_fd fd = mkstemp(path);
    if (fd < 0) {
        PROBE_SAY("no file: %s", strerror(errno));
        return 0;
    }

    unlink(path);
    for (size_t n = 0; n < PROBE_TAKE_DISK; n += sizeof block) {
        int r = fd_write_all(fd, block, sizeof block);
        if (r < 0) {
            PROBE_SAY("%s after %zu KiB", strerror(-r), n >> 10);
            return 0;
        }
    }

    PROBE_SAY("wrote %u MiB", PROBE_TAKE_DISK >> 20);
    return 1;
}

/* Empty files in a directory of our own. */
PROBE_ATTEMPT(take_files)
{
    char top[] = "/tmp/paddock-probe-XXXXXX";
    if (!mkdtemp(top)) {
        PROBE_SAY("no directory: %s", strerror(errno));
        return 0;
    }

    auto_fd dir = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int n = 0, error = 0;
    char name[16];
    while (n < PROBE_TAKE_FILES && !error) {
        snprintf(name, sizeof name, "%d", n);
        auto_fd fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        error = fd < 0 ? errno : 0;
        n += fd >= 0;
    }

    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%d", i);
        unlinkat(dir, name, 0);
    }
    rmdir(top);

    if (error)
        PROBE_SAY("%s after %d files", strerror(error), n);
    else
        PROBE_SAY("made %d files", n);
    return n == PROBE_TAKE_FILES;
}

PROBE_ATTEMPT(take_cpu)
{
    uint64_t began = clock_now(), wall;
    while ((wall = clock_now() - began) < PROBE_TAKE_CPU_MS * NS_PER_MS)
        continue;

    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    uint64_t used = (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
    PROBE_SAY("%u ms of %u", (unsigned)(used / NS_PER_MS), (unsigned)(wall / NS_PER_MS));
    return used > wall / 2;
}

PROBE_ATTEMPT(take_pids)
{
    pid_t made[PROBE_TAKE_PIDS];
    int n = 0, error = 0;

    for (; n < PROBE_TAKE_PIDS; n++) {
        made[n] = fork();
        if (made[n] == 0) {
            alarm(10); /* should we be killed before we can end it */
            pause();
            _exit(0);
        }
        if (made[n] < 0) {
            error = errno;
            break;
        }
    }

    for (int i = 0; i < n; i++)
        kill(made[i], SIGKILL);
    for (int i = 0; i < n; i++)
        waitpid(made[i], NULL, 0);

    if (error)
        PROBE_SAY("%s after %d processes", strerror(error), n);
    else
        PROBE_SAY("made %d processes", n);
    return n == PROBE_TAKE_PIDS;
}

PROBE_ATTEMPT(take_memory)
{
    /* Should there not be enough outside either, nobody else is to suffer for it. */
    (void)fd_write_file(AT_FDCWD, "/proc/self/oom_score_adj", "1000");
    char *p =
        mmap(NULL, PROBE_TAKE_MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        PROBE_SAY("%s", strerror(errno));
        return 0;
    }

    for (size_t i = 0; i < PROBE_TAKE_MEMORY; i += 4096)
        *(volatile char *)(p + i) = 1;
    PROBE_SAY("took %u MiB", PROBE_TAKE_MEMORY >> 20);
    return 1;
}

/* Memory last: what ends it may end the whole jail. */
static const struct probe_attack rows[] = {
    {"limit-disk", "disk", RUNG_BASIC, "fills the host's disk or memory", take_disk},
    {"limit-files", "files", RUNG_BASIC, "uses up the host's inodes", take_files},
    {"limit-cpu", "cpu", RUNG_FULL, "takes the host's processors", take_cpu},
    {"limit-pids", "pids", RUNG_BASIC, "takes every process id of the host", take_pids},
    {"limit-memory", "memory", RUNG_BASIC, "takes the host's memory", take_memory},
};
const struct probe_table probe_limits = PROBE_TABLE(rows);
