/* How this works: a creation passes through reserve_enter, which counts. The machine's figures are
 * looked at by whichever creation finds them old; the others use what it found. */
#include "core/reserve.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/machine.h"
#include "wire/ceilings.h"

#include <fcntl.h>
#include <sys/statvfs.h>

#define MIB          (UINT64_C(1) << 20)
#define FILES_MAKING 10u /* while a sandbox is made, until it has its four */
#define LOOK_AGAIN   (50 * NS_PER_MS)
#define MEMORY_MOST  (256 * MIB)
#define DISK_MOST    (64 * MIB)
#define PIDS_MOST    UINT64_C(512)

enum shortage { SHORT_OF_NOTHING, SHORT_OF_THREADS, SHORT_OF_MEMORY, SHORT_OF_DISK };

static const char *const remedies[] = {
    [SHORT_OF_THREADS] =
        "the machine has too few pids left for another sandbox: end some, or raise "
        "kernel.pid_max and kernel.threads-max",
    [SHORT_OF_MEMORY] = "the machine has too little memory left for another sandbox: end some, or "
                        "lower max_sandboxes",
    [SHORT_OF_DISK] =
        "the disk of state_dir has too little room left for another sandbox: end some, "
        "or make room",
};

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void reserve_init(struct reserve *r)
{
    r->any = open("/dev/null", O_RDONLY | O_CLOEXEC);
    r->dir = NULL;
    atomic_init(&r->making, 0);
    atomic_init(&r->promised, 0);
    atomic_init(&r->looked_at, 0);
    atomic_init(&r->is_short, SHORT_OF_NOTHING);
}

void reserve_done(struct reserve *r)
{
    fd_done(&r->any);
}

void reserve_watch_disk(struct reserve *r, const char *dir)
{
    r->dir = dir;
}

/* ---- the machine ---- */

/* Threads that exist: the number behind the slash of "0.1 0.2 0.3 1/234 5". */
static uint64_t threads_now(void)
{
    char text[128];
    if (fd_read_file(AT_FDCWD, "/proc/loadavg", text, sizeof text) <= 0)
        return 0;
    const char *slash = strchr(text, '/');
    return slash ? strtoull(slash + 1, NULL, 10) : 0;
}

static int is_disk_short(const char *dir)
{
    struct statvfs fs;
    if (!dir || statvfs(dir, &fs) < 0)
        return 0;
    uint64_t all = (uint64_t)fs.f_blocks * fs.f_frsize;
    return (uint64_t)fs.f_bavail * fs.f_frsize < lesser(DISK_MOST, all / 64);
}

static enum shortage look(const char *dir)
{
    uint64_t pids = machine_pid_max(), memory = machine_memory();

    if (threads_now() + lesser(PIDS_MOST, pids / 16) > pids)
        return SHORT_OF_THREADS;
    if (machine_memory_left() < lesser(MEMORY_MOST, memory / 32))
        return SHORT_OF_MEMORY;
    return is_disk_short(dir) ? SHORT_OF_DISK : SHORT_OF_NOTHING;
}

static int machine_suffices(struct reserve *r, struct pd_err *e)
{
    uint64_t now = clock_now(), last = atomic_load(&r->looked_at);
    if ((!last || now - last > LOOK_AGAIN) &&
        atomic_compare_exchange_strong(&r->looked_at, &last, now))
        atomic_store(&r->is_short, (int)look(r->dir));

    int lack = atomic_load(&r->is_short);
    return lack == SHORT_OF_NOTHING ? 0 : pd_fail(e, PD_CAPACITY, "%s", remedies[lack]);
}

/* ---- descriptors ---- */

int reserve_has_plenty(const struct reserve *r)
{
    return fd_spare(r->any,
                    2 * (unsigned)ceilings_files_reserve(fd_limit()) + atomic_load(&r->promised));
}

int reserve_enter(struct reserve *r, struct pd_err *e)
{
    if (machine_suffices(r, e) < 0)
        return -1;

    uint64_t limit = fd_limit();
    unsigned making = atomic_fetch_add(&r->making, 1) + 1;
    unsigned needed =
        (unsigned)ceilings_files_reserve(limit) + atomic_load(&r->promised) + making * FILES_MAKING;
    if (fd_spare(r->any, needed))
        return 0;

    reserve_leave(r);
    return pd_fail(e, PD_CAPACITY,
                   "the server has too few of its %llu descriptors left for another sandbox: end "
                   "some, or raise LimitNOFILE and max_open_files",
                   (unsigned long long)limit);
}

void reserve_leave(struct reserve *r)
{
    atomic_fetch_sub(&r->making, 1);
}

void reserve_promise(struct reserve *r)
{
    atomic_fetch_add(&r->promised, 1);
}

void reserve_keep_promise(struct reserve *r)
{
    atomic_fetch_sub(&r->promised, 1);
}
