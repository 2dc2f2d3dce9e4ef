/* Takes more than the second jail may have. Outside, as a control, the same amounts are small: 96
 * MiB of memory, 64 sleeping processes and a 4 MiB file without a name, for some milliseconds. */
#include "cli/probe.h"

#include "base/banned.h"
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
    {"limit-pids", "pids", RUNG_BASIC, "takes every process id of the host", take_pids},
    {"limit-memory", "memory", RUNG_BASIC, "takes the host's memory", take_memory},
};
const struct probe_table probe_limits = PROBE_TABLE(rows);
