/* probe: the attacks that `paddock doctor` makes from inside a jail.
 *
 * The same program runs outside as well, as a plain process with all the rights of the user who
 * called doctor: an attack that does not work there proves nothing about the jail. So every attack
 * must be harmless when it succeeds, also for root: nothing is written, nothing is mounted where
 * others can see it, and no process but the target is touched. */
#pragma once

#include "wire/spec.h"

#include <stddef.h>
#include <sys/types.h>

/* The bait that doctor has put out on the host. */
struct probe_world {
    pid_t target;       /* the process to attack: a jail's init, or a stand-in outside */
    const char *port;   /* a listener on the host's 127.0.0.1 */
    const char *socket; /* a listener in the host's abstract name space */
    const char *comm;   /* the name of a process of the host */
    const char *host;   /* the host's name */
    const char *spaces; /* "user:[123],mnt:[45],...": the namespaces of the host */
};

#define PROBE_DETAIL_MAX 96
#define PROBE_MARK       "PADDOCK_DOCTOR_MARK" /* an environment variable that must not come in */
#define PROBE_SPACES                                                                               \
    {                                                                                              \
        "user", "mnt", "pid", "ipc", "uts", "net", "cgroup"                                        \
    }

struct probe_attack {
    const char *name;
    const char *wall;    /* which wall of the jail it is against */
    enum rung promised;  /* the lowest rung whose jails hold it */
    const char *meaning; /* what it means if it works, for people */
    /* 1: it worked; 0: it was held. Runs in a process of its own, which may be killed. */
    int (*attempt)(const struct probe_world *w, char detail[PROBE_DETAIL_MAX]);
};

struct probe_table {
    const struct probe_attack *rows;
    size_t count;
};

/* On the kernel's surface and on privilege; on what is the host's; on limits. */
extern const struct probe_table probe_kernel, probe_host, probe_limits;

/* The limits of the second jail, and what the probe there tries to take. */
#define PROBE_LIMIT_MEMORY "16M"
#define PROBE_LIMIT_PIDS   "24"
#define PROBE_LIMIT_DISK   "1M"
#define PROBE_LIMIT_FILES  "64"
#define PROBE_LIMIT_CPU    "0.2"
#define PROBE_TAKE_MEMORY  (48u << 20)
#define PROBE_TAKE_PIDS    64
#define PROBE_TAKE_DISK    (4u << 20)
#define PROBE_TAKE_FILES   400
#define PROBE_TAKE_CPU_MS  250 /* of work; more than half of the time is too much */

/* For the files that hold the attacks. */
#define PROBE_ATTEMPT(name)                                                                        \
    static int name(const struct probe_world *w __attribute__((unused)),                           \
                    char detail[PROBE_DETAIL_MAX] __attribute__((unused)))
#define PROBE_SAY(...) snprintf(detail, PROBE_DETAIL_MAX, __VA_ARGS__)
#define PROBE_ROW(name, wall, rung, attempt, meaning)                                              \
    {                                                                                              \
        name, wall, RUNG_##rung, meaning, attempt                                                  \
    }
#define PROBE_TABLE(rows)                                                                          \
    {                                                                                              \
        rows, sizeof rows / sizeof *rows                                                           \
    }

/* Was the kernel's code of a call reached? From its result and errno. */
int probe_reached(long result, char detail[PROBE_DETAIL_MAX]);
