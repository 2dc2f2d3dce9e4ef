/* ps lists the processes of the sandbox, from /proc, as any program there could: whatever was
 * started, and by whom. One that ends meanwhile is left out; so is the worker itself. */
#include "init/worker.h"

#include "base/banned.h"
#include "base/fd.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#define PROCESSES_MAX 4096u
#define STAT_SIZE     1024

/* /proc/PID/stat behind the name, which may have spaces and brackets of its own. */
struct stat_words {
    char state;
    uint32_t parent, threads;
    uint64_t ticks, start, pages;
};

static int parse_stat(const char *text, struct stat_words *ret)
{
    enum { PARENT = 1, USER = 11, SYSTEM = 12, THREADS = 17, START = 19, PAGES = 21, WORDS };
    const char *at = strrchr(text, ')');
    uint64_t words[WORDS] = {0};

    if (!at || at[1] != ' ' || !at[2])
        return -1;
    at += 2;
    *ret = (struct stat_words){.state = *at++};
    for (int i = PARENT; i < WORDS; i++) {
        char *end;
        words[i] = (uint64_t)strtoll(at, &end, 10);
        if (end == at)
            return -1;
        at = end;
    }

    ret->parent = (uint32_t)words[PARENT];
    ret->threads = (uint32_t)words[THREADS];
    ret->ticks = words[USER] + words[SYSTEM];
    ret->start = words[START];
    ret->pages = (int64_t)words[PAGES] < 0 ? 0 : words[PAGES];
    return 0;
}

/* The words that it was started with, or its name in brackets where it has none: a zombie's. */
static void read_command(int dir, const char *stat, char out[RECORD_TEXT_MAX])
{
    auto_fd fd = openat(dir, "cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, RECORD_TEXT_MAX - 1);

    while (n > 0 && !out[n - 1])
        n--;
    for (ssize_t i = 0; i < n; i++)
        if (!out[i])
            out[i] = ' ';
    if (n > 0) {
        out[n] = 0;
        return;
    }

    const char *from = strchr(stat, '('), *to = strrchr(stat, ')');
    snprintf(out, RECORD_TEXT_MAX, "[%.*s]", from && to > from ? (int)(to - from - 1) : 0,
             from ? from + 1 : "");
}

static void put_process(struct worker_job *w, const char *name, uint64_t ticks_a_second,
                        uint64_t page, uint64_t now_ticks)
{
    char path[32], stat[STAT_SIZE], command[RECORD_TEXT_MAX];
    struct stat owner;
    struct stat_words words;

    snprintf(path, sizeof path, "/proc/%.15s", name);
    auto_fd dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 || fstat(dir, &owner) < 0 || fd_read_file(dir, "stat", stat, sizeof stat) <= 0 ||
        parse_stat(stat, &words) < 0)
        return;

    read_command(dir, stat, command);
    uint64_t age = now_ticks > words.start ? now_ticks - words.start : 0;
    struct record r = {.kind = RECORD_PROCESS,
                       .process = {.pid = (uint32_t)strtoul(name, NULL, 10),
                                   .parent = words.parent,
                                   .uid = owner.st_uid,
                                   .threads = words.threads,
                                   .state = (uint8_t)words.state,
                                   .cpu_ms = words.ticks * 1000 / ticks_a_second,
                                   .memory = words.pages * page,
                                   .age_ms = age * 1000 / ticks_a_second,
                                   .command = command}};
    worker_put(w, &r);
}

/* Ticks since the start of the clock that start times are of. */
static uint64_t ticks_now(uint64_t ticks_a_second)
{
    char text[64];
    if (fd_read_file(AT_FDCWD, "/proc/uptime", text, sizeof text) <= 0)
        return 0;
    return (uint64_t)(strtod(text, NULL) * (double)ticks_a_second);
}

int worker_ps(struct worker_job *w, struct pd_err *e)
{
    uint64_t second = (uint64_t)sysconf(_SC_CLK_TCK), page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t now = ticks_now(second);
    unsigned count = 0;

    DIR *d = opendir("/proc");
    if (!d)
        return pd_fail_sys(e, "open /proc");

    for (struct dirent *p; count < PROCESSES_MAX && (p = readdir(d));) {
        char *end;
        unsigned long pid = strtoul(p->d_name, &end, 10);
        if (*end || !pid || pid >= INT32_MAX || pid == (unsigned long)getpid())
            continue;
        put_process(w, p->d_name, second, page, now);
        count++;
    }
    closedir(d);
    worker_put(w, &(struct record){.kind = RECORD_END});
    return 0;
}
