/* ceilings: the most that one sandbox may be given.
 *
 * `struct limits` says what a sandbox has; a ceiling says how much of it anybody may ask for. The
 * usual ones follow from the machine, so that no sandbox takes its memory, its pids or its cores by
 * itself. A server's and a tenant's ceilings come from the configuration. Only a new sandbox is
 * compared with them: one that was made under higher ones goes on. */
#pragma once

#include "wire/spec.h"

#include <stddef.h>
#include <stdint.h>

#define CEILING_PIDS_MAX UINT64_C(4096)
#define CEILING_LIFE_MAX (UINT64_C(365) * 86400 * 1000) /* milliseconds */

/* Rows of ceilings_table: what a request calls it, what the setting is called, and where the value
 * is in struct ceilings. */
struct ceiling {
    const char *field, *setting;
    size_t offset;
    int is_milli; /* stored as thousandths of what is said */
};

#define CEILING_COUNT 5u

struct ceilings {
    uint64_t memory;    /* bytes */
    uint64_t pids;      /* processes and threads */
    uint64_t cpu_milli; /* thousandths of a core */
    uint64_t disk;      /* bytes */
    uint64_t life_ms;   /* from a creation, or from the last extension, to the end */
};

extern const struct ceiling ceilings_table[CEILING_COUNT];

/* Those of this machine: half of its memory, an eighth of its pids (at most CEILING_PIDS_MAX), its
 * cores, half of the file system that holds `dir`, CEILING_LIFE_MAX. */
struct ceilings ceilings_of_machine(const char *dir);

/* Descriptors that server and keeper hold back of `limit` when a sandbox is made, for the commands
 * of those that run; and how many sandboxes that leaves room for, at SANDBOX_FILES each. */
#define SANDBOX_FILES 4u
uint64_t ceilings_files_reserve(uint64_t limit);
uint64_t ceilings_sandboxes(uint64_t limit);

/* Lowers limits that are above their ceiling: for defaults, which nobody asked for. */
void ceilings_clip(const struct ceilings *c, struct limits *l);

/* Compares what a sandbox is to have. Returns 0, or -1 with PD_INVALID: the text has the value, the
 * ceiling and the setting. `*ret_row` (may be NULL) is the row that refused. A `life_ms` of 0 asks
 * for none. */
int ceilings_check(const struct ceilings *c, const struct limits *l, uint64_t life_ms,
                   const struct ceiling **ret_row, struct pd_err *e);
