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
#define LOOK_AGAIN   (200 * NS_PER_MS)
#define MEMORY_MOST  (256 * MIB)
#define DISK_MOST    (64 * MIB)
#define PIDS_MOST    UINT64_C(512)

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
    atomic_init(&r->shortage, NULL);
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

const char *reserve_shortage(const struct reserve_figures *f)
{
    if (f->pid_max && f->threads + lesser(PIDS_MOST, f->pid_max / 16) > f->pid_max)
        return "the machine has too few pids left for another sandbox: end some, or raise "
               "kernel.pid_max and kernel.threads-max";
    if (f->memory && f->memory_left < lesser(MEMORY_MOST, f->memory / 32))
        return "the machine has too little memory left for another sandbox: end some, or lower "
               "max_sandboxes";
    if (f->disk && f->disk_left < lesser(DISK_MOST, f->disk / 64))
        return "the disk of state_dir has too little room left for another sandbox: end some, or "
               "make room";
    return NULL;
}

static const char *look(const char *dir)
{
    struct statvfs fs;
    struct reserve_figures f = {.threads = threads_now(),
                                .pid_max = machine_pid_max(),
                                .memory_left = machine_memory_left(),
                                .memory = machine_memory()};

    if (dir && statvfs(dir, &fs) == 0) {
        f.disk_left = (uint64_t)fs.f_bavail * fs.f_frsize;
        f.disk = (uint64_t)fs.f_blocks * fs.f_frsize;
    }
    return reserve_shortage(&f);
}

static int machine_suffices(struct reserve *r, struct pd_err *e)
{
    uint64_t now = clock_now(), last = atomic_load(&r->looked_at);
    if ((!last || now - last > LOOK_AGAIN) &&
        atomic_compare_exchange_strong(&r->looked_at, &last, now))
        atomic_store(&r->shortage, look(r->dir));

    const char *lack = atomic_load(&r->shortage);
    return lack ? pd_fail(e, PD_CAPACITY, "%s", lack) : 0;
}

/* ---- descriptors ---- */

bool reserve_has_plenty(const struct reserve *r)
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
