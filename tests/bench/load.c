#include "bench.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define PATIENCE (30 * NS_PER_S)
#define CALM_MS  50
/* The kernel gives memory back late: readings wait until they stand still, but not forever. */
#define SETTLE_SECONDS 20
#define SETTLE_BYTES   (1 << 20)

/* ---- sustained ---- */

#define SLICES 5u

/* What a creator tells when its time is up. */
struct tally {
    uint64_t done, errors, p50, p99, ns;
    struct pd_err first;
};

/* Something that is done again and again. */
typedef int cycle_fn(void *context, struct pd_err *e);

static void repeat_until(cycle_fn *cycle, void *context, deadline end, struct tally *t)
{
    struct series s = {0};
    uint64_t began = clock_now(), now = began;

    while (now < end) {
        struct pd_err e;
        if (cycle(context, &e) == 0) {
            t->done++;
        } else {
            if (!t->errors++)
                t->first = e;
            if (e.code == PD_LOST || t->errors > 100)
                break;
        }
        uint64_t after = clock_now();
        series_add(&s, after - now);
        now = after;
    }

    t->ns = now - began;
    t->p50 = series_quantile(&s, 500);
    t->p99 = series_quantile(&s, 990);
    series_done(&s);
}

struct creator {
    struct keeper_link link;
    struct errand errand;
};

static int keeper_cycle(void *context, struct pd_err *e)
{
    struct creator *c = context;
    return cold_cycle(&c->link, &c->errand.command, e);
}

/* The payload comes in as standard input, so that no mount has to show it to the jail. */
static void create_with_keeper(struct place *p, unsigned seconds, struct tally *t)
{
    struct creator c;
    auto_fd payload = open(p->payload, O_RDONLY | O_CLOEXEC);

    if (payload < 0)
        pd_fail_sys(&t->first, "open %s", p->payload);
    if (payload < 0 || errand_init(&c.errand, p, "/proc/self/fd/0", payload, &t->first) < 0 ||
        keeper_connect(&c.link, p->sock, &t->first) < 0) {
        t->errors++;
        return;
    }

    repeat_until(keeper_cycle, &c, deadline_in(seconds * NS_PER_S), t);
    keeper_link_done(&c.link);
    errand_done(&c.errand);
}

static int bare_step(void *context, struct pd_err *e)
{
    return bare_cycle(context, e);
}

static void create_bare(struct place *p, unsigned seconds, struct tally *t)
{
    struct bare b = BARE_EMPTY;

    if (bare_open(&b, p, &t->first) < 0)
        t->errors++;
    else
        repeat_until(bare_step, &b, deadline_in(seconds * NS_PER_S), t);
    bare_done(&b);
}

/* One slice of one kind, in processes of their own. */
static void slice_measure(struct rate *r, struct place *p, unsigned creators, unsigned seconds,
                          void (*create)(struct place *p, unsigned seconds, struct tally *t),
                          const char *what)
{
    int pipes[2];
    struct pd_err e;
    if (pipe2(pipes, O_CLOEXEC) < 0) {
        pd_fail_sys(&e, "pipe");
        place_error(p, what, &e);
        return;
    }
    auto_fd in = pipes[0], out = pipes[1];

    for (unsigned i = 0; i < creators; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            struct tally t = {0};
            fd_done(&p->link.sock);
            create(p, seconds, &t);
            (void)!write(out, &t, sizeof t); /* short enough to be written whole */
            _exit(0);
        }
    }
    fd_done(&out);

    struct tally t;
    unsigned heard = 0;
    uint64_t ns = 0;
    while (read(in, &t, sizeof t) == sizeof t) {
        heard++;
        r->done += t.done;
        r->errors += t.errors;
        ns = t.ns > ns ? t.ns : ns;
        r->p50 = t.p50 > r->p50 ? t.p50 : r->p50;
        r->p99 = t.p99 > r->p99 ? t.p99 : r->p99;
        if (t.errors)
            place_error(p, what, &t.first);
    }
    r->ns += ns;
    if (heard != creators) {
        pd_fail(&e, PD_INTERNAL, "%u of %u creators died", creators - heard, creators);
        place_error(p, what, &e);
    }
    place_reap(p);
}

void sustained_measure(struct sustained *s, struct place *p, unsigned creators, unsigned seconds)
{
    unsigned slices = seconds >= 2 * SLICES ? SLICES : 1;
    unsigned each = seconds / (2 * slices) ? seconds / (2 * slices) : 1;
    *s = (struct sustained){.creators = creators, .slices = slices};

    for (unsigned i = 0; i < slices; i++) {
        slice_measure(&s->keeper, p, creators, each, create_with_keeper, "sustained");
        place_pause(500000); /* the kernel takes namespaces apart in the background */
        /* Only root may make the namespaces without an intermediate one. */
        if (geteuid() == 0)
            slice_measure(&s->bare, p, creators, each, create_bare, "sustained, the floor");
        place_pause(500000);
    }
}

/* ---- idle jails ---- */

struct memory {
    int64_t available, slab, stacks, tables, percpu, shmem, anon;
};

static int64_t field(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? strtoll(at + strlen(name), NULL, 10) * 1024 : 0;
}

static void memory_read(struct memory *m)
{
    char text[8192];
    *m = (struct memory){0};
    if (fd_read_file(AT_FDCWD, "/proc/meminfo", text, sizeof text) < 0)
        return;
    m->available = field(text, "MemAvailable:");
    m->slab = field(text, "Slab:");
    m->stacks = field(text, "KernelStack:");
    m->tables = field(text, "PageTables:");
    m->percpu = field(text, "Percpu:");
    m->shmem = field(text, "Shmem:");
    m->anon = field(text, "AnonPages:");
}

static void memory_settle(struct memory *m)
{
    memory_read(m);
    for (int still = 0, s = 0; still < 3 && s < SETTLE_SECONDS; s++) {
        int64_t before = m->available;
        place_pause(1000000);
        memory_read(m);
        int64_t moved = m->available - before;
        still = moved < SETTLE_BYTES && moved > -SETTLE_BYTES ? still + 1 : 0;
    }
}

/* Proportional memory of the keeper, of its workers, and of an init (the mean of some). */
static void processes_weigh(struct idle *i, const struct place *p)
{
    DIR *d = opendir("/proc");
    const struct dirent *entry;
    unsigned inits = 0;
    i->keeper_pss = i->workers_pss = i->init_pss = 0;
    i->workers = 0;

    while (d && (entry = readdir(d))) {
        char path[300], text[4096];
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid <= 0)
            continue;
        snprintf(path, sizeof path, "/proc/%ld/stat", pid);
        if (fd_read_file(AT_FDCWD, path, text, sizeof text) < 0)
            continue;
        const char *paren = strrchr(text, ')');
        long parent = paren && strlen(paren) > 4 ? strtol(paren + 4, NULL, 10) : 0;

        /* An init may have a name that the kernel made up: workers are known by theirs. */
        int is_init = !strstr(text, "(paddock-builder)") && !strstr(text, "(paddock-sweeper)");
        if ((pid != p->keeper && parent != p->keeper) || (is_init && inits == 50))
            continue;
        snprintf(path, sizeof path, "/proc/%ld/smaps_rollup", pid);
        if (fd_read_file(AT_FDCWD, path, text, sizeof text) < 0)
            continue;

        uint64_t pss = (uint64_t)field(text, "\nPss:");
        if (pid == p->keeper) {
            i->keeper_pss = pss;
        } else if (is_init) {
            i->init_pss += pss;
            inits++;
        } else {
            i->workers_pss += pss;
            i->workers++;
        }
    }

    if (d)
        closedir(d);
    if (inits)
        i->init_pss /= inits;
}

/* The jails that lie idle. Only the control sockets are kept open: four descriptors for each of
 * some thousand jails would be too many. */
struct crowd {
    struct jail *jails;
    unsigned count;
};

static int crowd_grow(struct crowd *w, struct place *p, unsigned to, struct pd_err *e)
{
    struct spec s = SPEC_DEFAULT;
    while (w->count < to) {
        struct jail *j = &w->jails[w->count];
        if (jail_create(&p->link, j, &s, 0, deadline_in(PATIENCE), e) < 0)
            return -1;
        fd_done(&j->cgroup_dir);
        fd_done(&j->devpts);
        w->count++;
    }
    return 0;
}

static int crowd_shrink(struct crowd *w, struct place *p, unsigned to, struct pd_err *e)
{
    int r = 0;
    while (w->count > to) {
        struct jail *j = &w->jails[--w->count];
        if (jail_destroy(&p->link, j, 0, NULL, deadline_in(PATIENCE), e) < 0)
            r = -1;
        jail_done(j);
    }
    return r;
}

/* Creations in turns with the floor, by a process of its own: the one that holds the crowd has a
 * descriptor for each, which would make its spawning slow. */
static void creations_in_child(struct place *p, unsigned rounds, struct creation *ret,
                               struct pd_err *e)
{
    static const char *const argv[] = {"/bin/true", NULL};
    struct series creations = {0}, floors = {0};
    struct spec spec = SPEC_DEFAULT;
    struct keeper_link l;
    int status;
    if (keeper_connect(&l, p->sock, e) < 0)
        return;

    for (unsigned i = 0; i < rounds; i++) {
        struct jail j;
        place_calm(p, 3000, CALM_MS);
        uint64_t began = clock_now();
        if (place_spawn(p, argv, -1, NULL, &status, e) < 0)
            return;
        series_add(&floors, clock_now() - began);
        place_calm(p, 3000, CALM_MS);
        began = clock_now();
        if (jail_create(&l, &j, &spec, 0, deadline_in(PATIENCE), e) < 0)
            return;
        series_add(&creations, clock_now() - began);

        int r = jail_destroy(&l, &j, 0, NULL, deadline_in(PATIENCE), e);
        jail_done(&j);
        if (r < 0)
            return;
    }

    ret->p50 = series_quantile(&creations, 500);
    ret->p10 = series_quantile(&creations, 100);
    ret->floor_p50 = series_quantile(&floors, 500);
}

static int creations(struct place *p, unsigned rounds, struct creation *ret, struct pd_err *e)
{
    struct {
        struct creation c;
        struct pd_err e;
    } answer = {0};

    int pipes[2];
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "pipe");

    auto_fd in = pipes[0], out = pipes[1];
    pid_t pid = fork();
    if (pid < 0)
        return pd_fail_sys(e, "fork");

    if (pid == 0) {
        dup2(out, 3);
        syscall(SYS_close_range, 4, ~0u, 0);
        creations_in_child(p, rounds, &answer.c, &answer.e);
        (void)!write(3, &answer, sizeof answer);
        _exit(0);
    }

    fd_done(&out);
    if (read(in, &answer, sizeof answer) != sizeof answer)
        pd_fail(&answer.e, PD_LOST, "the measuring process died");
    waitpid(pid, NULL, 0);

    *ret = answer.c;
    if (ret->p50)
        return 0;
    *e = answer.e;
    return -1;
}

static int levels(struct idle *i, struct place *p, struct crowd *w, unsigned rounds,
                  struct pd_err *e)
{
    struct memory none, some, many;
    memory_settle(&none);
    if (crowd_grow(w, p, i->some, e) < 0)
        return -1;
    memory_settle(&some);

    int64_t n = i->some;
    i->per_jail = (none.available - some.available) / n;
    i->slab = (some.slab - none.slab) / n;
    i->stacks = (some.stacks - none.stacks) / n;
    i->tables = (some.tables - none.tables) / n;
    i->percpu = (some.percpu - none.percpu) / n;
    i->shmem = (some.shmem - none.shmem) / n;
    i->anon = (some.anon - none.anon) / n;

    processes_weigh(i, p);
    if (crowd_shrink(w, p, i->few, e) < 0)
        return -1;

    place_pause(2000000);
    if (creations(p, rounds, &i->at_few, e) < 0 || crowd_grow(w, p, i->many, e) < 0)
        return -1;

    memory_settle(&many);
    i->per_jail_many = (none.available - many.available) / (int64_t)i->many;

    if (creations(p, rounds, &i->at_many, e) < 0 || crowd_shrink(w, p, i->few, e) < 0)
        return -1;

    place_pause(2000000);
    return creations(p, rounds, &i->at_few_again, e);
}

void idle_measure(struct idle *i, struct place *p, unsigned rounds)
{
    struct pd_err e;
    unsigned most = i->many > i->some ? i->many : i->some;
    struct crowd w = {.jails = calloc(most, sizeof *w.jails)};
    if (!w.jails)
        return;

    if (levels(i, p, &w, rounds, &e) < 0) {
        char what[64];
        snprintf(what, sizeof what, "with %u idle jails", w.count);
        place_error(p, what, &e);
    }
    if (crowd_shrink(&w, p, 0, &e) < 0)
        place_error(p, "end idle jails", &e);
    free(w.jails);
}
