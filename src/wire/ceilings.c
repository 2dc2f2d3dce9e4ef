/* Ceilings are compared row by row: the table names each of them once, for requests, settings and
 * errors. */
#include "wire/ceilings.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/machine.h"

#include <inttypes.h>

#define FILES_LEAST UINT64_C(32)
#define FILES_MOST  UINT64_C(1024)
#define FILES_SHARE 8u
#define FILES_OWN   64u /* of the program itself: database, listeners, workers, log */

#define AT(member) offsetof(struct ceilings, member)

const struct ceiling ceilings_table[CEILING_COUNT] = {
    {"memory_bytes", "max_memory_bytes", AT(memory), 0},
    {"pids", "max_pids", AT(pids), 0},
    {"cpu", "max_cpu", AT(cpu_milli), 1},
    {"disk_bytes", "max_disk_bytes", AT(disk), 0},
    {"max_life_s", "max_life_s", AT(life_ms), 1},
};

static uint64_t value_of(const struct ceilings *c, const struct ceiling *row)
{
    return *(const uint64_t *)((const char *)c + row->offset);
}

static uint64_t within(uint64_t value, uint64_t min, uint64_t max)
{
    return value < min ? min : value > max ? max : value;
}

struct ceilings ceilings_of_machine(const char *dir)
{
    uint64_t disk = machine_disk(dir);
    uint64_t pids = machine_pid_max() / 8;

    return (struct ceilings){
        .memory = within(machine_memory() / 2, SPEC_MEMORY_MIN, SPEC_MEMORY_MAX),
        .pids = within(pids, SPEC_PIDS_MIN, CEILING_PIDS_MAX),
        .cpu_milli = within((uint64_t)machine_cores() * 1000, SPEC_CPU_MIN, SPEC_CPU_MAX),
        .disk = within(disk ? disk / 2 : SPEC_DISK_MAX, SPEC_DISK_MIN, SPEC_DISK_MAX),
        .life_ms = CEILING_LIFE_MAX};
}

uint64_t ceilings_files_reserve(uint64_t limit)
{
    return within(limit / FILES_SHARE, FILES_LEAST, FILES_MOST);
}

uint64_t ceilings_sandboxes(uint64_t limit)
{
    uint64_t taken = ceilings_files_reserve(limit) + FILES_OWN;
    return limit > taken ? (limit - taken) / SANDBOX_FILES : 0;
}

void ceilings_clip(const struct ceilings *c, struct limits *l)
{
    l->memory = l->memory > c->memory ? c->memory : l->memory;
    l->pids = l->pids > c->pids ? c->pids : l->pids;
    l->cpu_milli = l->cpu_milli > c->cpu_milli ? c->cpu_milli : l->cpu_milli;
    l->disk = l->disk > c->disk ? c->disk : l->disk;
}

int ceilings_check(const struct ceilings *c, const struct limits *l, uint64_t life_ms,
                   const struct ceiling **ret_row, struct pd_err *e)
{
    const struct ceilings asked = {.memory = l->memory,
                                   .pids = l->pids,
                                   .cpu_milli = l->cpu_milli,
                                   .disk = l->disk,
                                   .life_ms = life_ms};

    for (unsigned i = 0; i < CEILING_COUNT; i++) {
        const struct ceiling *row = &ceilings_table[i];
        uint64_t value = value_of(&asked, row), most = value_of(c, row);
        double unit = row->is_milli ? 1000 : 1;
        if (value <= most)
            continue;

        if (ret_row)
            *ret_row = row;
        return pd_fail(e, PD_INVALID,
                       "%s: %.15g is above the ceiling of %.15g; ask for less, or have %s raised",
                       row->field, (double)value / unit, (double)most / unit, row->setting);
    }
    return 0;
}
