/* Figures of the machine, from /proc, the scheduler and the file system. */
#include "base/machine.h"

#include "base/banned.h"
#include "base/fd.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>

#define PATH_SIZE     4096
#define SMALL_MEMORY  (UINT64_C(512) << 20)
#define SMALL_PID_MAX UINT64_C(32768)

uint64_t machine_memory(void)
{
    struct sysinfo info;

    if (sysinfo(&info) < 0 || !info.totalram)
        return SMALL_MEMORY;
    return (uint64_t)info.totalram * info.mem_unit;
}

uint64_t machine_memory_left(void)
{
    char text[4096];
    const char *line = NULL;

    if (fd_read_file(AT_FDCWD, "/proc/meminfo", text, sizeof text) > 0)
        line = strstr(text, "MemAvailable:");
    return line ? strtoull(line + strlen("MemAvailable:"), NULL, 10) * 1024 : SMALL_MEMORY;
}

/* A number alone in a file; 0 when there is none. */
static uint64_t number_in(const char *path)
{
    char text[64];

    if (fd_read_file(AT_FDCWD, path, text, sizeof text) <= 0)
        return 0;
    return strtoull(text, NULL, 10);
}

uint64_t machine_pid_max(void)
{
    uint64_t pids = number_in("/proc/sys/kernel/pid_max");
    uint64_t threads = number_in("/proc/sys/kernel/threads-max");

    /* A thread takes a pid, too, and each of the two figures ends both. */
    uint64_t least = pids && threads ? (pids < threads ? pids : threads) : pids + threads;
    return least ? least : SMALL_PID_MAX;
}

unsigned machine_cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) < 0 || CPU_COUNT(&set) < 1)
        return 1;
    return (unsigned)CPU_COUNT(&set);
}

uint64_t machine_disk(const char *path)
{
    char part[PATH_SIZE];
    struct statvfs fs;

    if (path[0] != '/' || strlen(path) >= sizeof part)
        return 0;
    (void)snprintf(part, sizeof part, "%s", path);

    while (statvfs(part, &fs) < 0) {
        char *slash = strrchr(part, '/');
        if (slash == part && !part[1])
            return 0;
        slash[slash == part] = 0;
    }
    return (uint64_t)fs.f_blocks * fs.f_frsize;
}
