/* bench: what paddock costs, beside what others cost, measured in one run.
 *
 * The machine is never quiet and its speed drifts, so nothing here compares numbers of two runs:
 * every latency is taken in turns with all others, and is read as a multiple of the floor, which is
 * posix_spawn of /bin/true and the wait for it. A slow result is a result and no failure; a jail
 * that could not be made, or that leaves something behind, is a failure. */
#pragma once

#include "base/clock.h"
#include "jail/jail.h"

#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct buf;
struct pd_err;

/* ---- series.c: samples of one thing ---- */

struct series {
    const char *name;
    const char *what; /* for people */
    uint64_t *ns;
    unsigned count, room;
    char skipped[240]; /* why there are none; "" when there are */
};

void series_add(struct series *s, uint64_t ns);
/* The sample that `thousandths` of all are not above; 0 when there are none. Sorts the series. */
uint64_t series_quantile(struct series *s, unsigned thousandths);
void series_done(struct series *s);

/* ---- place.c: where it happens ---- */

struct place {
    const char *paddock; /* the program that is measured */
    const char *payload; /* a small static program that does nothing */
    char dir[64];        /* everything is below it, and it is removed at the end */
    char sock[128];
    char run_dir[96], state_dir[96]; /* NAME=VALUE, for the environment */
    char bundle[96], stderr_file[96];
    char instance[40];  /* of the keeper */
    const char *layout; /* of the cgroups */
    pid_t keeper;
    struct keeper_link link;
    int null;
    const char *docker;         /* DOCKER_HOST=..., of a daemon of our own; or NULL, and then ... */
    const char *docker_missing; /* ... why */
    int no_v2;    /* a mount namespace without the v2 tree of a hybrid layout, for crun; or -1 */
    FILE *people; /* standard output as it was */
    FILE *news;   /* standard error as it was */
    unsigned starts, calm_starts;
    unsigned errors;
    char first_error[300];
};

/* Makes the directory and takes over the standard streams: the programs that are measured get
 * /dev/null, and a file for what they complain of. */
int place_open(struct place *p, struct pd_err *e);
int place_start_keeper(struct place *p, unsigned builders, unsigned kits, struct pd_err *e);
/* Ends the keeper and waits for the last of its children; -1 when something is left of it. */
int place_stop_keeper(struct place *p, struct pd_err *e);
void place_close(struct place *p);
/* Runs a program in `ns` (a mount namespace, or -1) and waits for it: its wait status. */
int place_spawn(struct place *p, const char *const *argv, int ns, const char *env, int *ret,
                struct pd_err *e);
/* The last thing that a program wrote to its standard error. */
void place_complaint(struct place *p, char *out, size_t size);
/* Counts an error, and keeps the first for the report. */
void place_error(struct place *p, const char *what, const struct pd_err *e);
void place_pause(unsigned usec);
/* Pauses, and then waits a while longer for a moment when nothing else runs: on a machine that
 * others use, what is left of the numbers would otherwise be theirs. */
void place_calm(struct place *p, unsigned pause_usec, unsigned patience_ms);
void place_reap(struct place *p);

/* A command for jails: `file` with no arguments, streams at /dev/null, stdin as given. */
struct errand {
    struct command command; /* points into the lists */
    struct msg_list_writer argv, env;
};
int errand_init(struct errand *c, const struct place *p, const char *file, int in,
                struct pd_err *e);
void errand_done(struct errand *c);

/* ---- latency.c ---- */

enum {
    S_FLOOR,
    S_COLD,
    S_CREATE,
    S_FIRST_EXEC,
    S_DESTROY,
    S_EXEC,
    S_EXEC_GROUP,
    S_RUN,
    S_RUN_KEEPER,
    S_BWRAP,
    S_CRUN,
    S_RUNC,
    S_DOCKER,
    S_DOCKER_EXEC,
    SERIES_COUNT
};

struct latency {
    struct series series[SERIES_COUNT];
    unsigned rounds;
};

void latency_init(struct latency *l);
/* `only`: the name of a series (the floor is measured as well), or NULL. */
void latency_measure(struct latency *l, struct place *p, unsigned rounds, unsigned pause_usec,
                     unsigned patience_ms, const char *only);
void latency_done(struct latency *l);
int latency_has(const char *name);

/* One jail from request to GONE with one command in it, as `paddock run` does it: the command is
 * sent before the jail exists. */
int cold_cycle(struct keeper_link *l, struct command *c, struct pd_err *e);

/* ---- bare.c: the floor of `sustained` ---- */

struct bare {
    int payload;
};
#define BARE_EMPTY ((struct bare){.payload = -1})

/* Leaves the caller in another root and mount namespace: only for a process made for it. */
int bare_open(struct bare *b, const struct place *p, struct pd_err *e);
/* One set of namespaces and mounts with the payload in it, from its birth to its end. */
int bare_cycle(struct bare *b, struct pd_err *e);
void bare_done(struct bare *b);

/* ---- load.c ---- */

struct rate {
    uint64_t ns, done, errors;
    uint64_t p50, p99; /* of one cycle, in the worst slice */
};

struct sustained {
    unsigned creators, slices;
    struct rate keeper, bare; /* with a keeper; by bare.c */
};

/* `seconds` in all, in slices of both, by turns. */
void sustained_measure(struct sustained *s, struct place *p, unsigned creators, unsigned seconds);

struct creation {
    uint64_t p50, p10, floor_p50; /* ns */
};

struct idle {
    unsigned few, some, many; /* jails */
    /* Creations while so many jails are idle; `again` after the many have gone. */
    struct creation at_few, at_many, at_few_again;
    int64_t per_jail;             /* bytes of MemAvailable, over `some` jails */
    int64_t per_jail_many;        /* over `many` */
    int64_t slab, stacks, tables; /* parts of per_jail, as /proc/meminfo tells them */
    int64_t percpu, shmem, anon;
    uint64_t keeper_pss, workers_pss, init_pss; /* bytes, with `some` jails */
    unsigned workers;
};

/* `rounds` creations at each level. */
void idle_measure(struct idle *i, struct place *p, unsigned rounds);

/* ---- report.c ---- */

struct report {
    struct latency latency;
    struct sustained sustained;
    struct idle idle;
    int has_latency, has_sustained, has_idle;
};

void report_people(struct report *r, const struct place *p);
int report_json(struct report *r, const struct place *p, const char *path, struct pd_err *e);
