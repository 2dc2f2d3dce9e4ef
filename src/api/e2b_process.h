/* e2b_process: what the files of process.Process share. */
#pragma once

#include "api/e2b.h"

/* How long the end of a process can still be asked for. */
#define E2B_END_KEPT_MS 30000u

/* The process that the member `process` names, by {"pid":1} or {"tag":".."}: held. PD_NOT_FOUND
 * also when it has ended, unless `ended_too` and that was a moment ago. Reads the rest of `f`
 * before it (the error of a member comes first). */
struct process *e2b_select(struct call *c, struct fields *f, int ended_too, struct pd_err *e);
/* A whole number, which JSON of protobuf may also write as a string. */
int e2b_number(struct fields *f, const char *name, enum field_need need, uint64_t max,
               uint64_t *ret);
/* {"size":{"cols":80,"rows":24}}: 1 when there is a terminal, else 0. Sizes that are not said stay.
 */
int e2b_terminal(struct fields *f, uint16_t *ret_rows, uint16_t *ret_cols);

/* The events of a process, from these offsets to its end. `is_start`: it was started by this
 * request, whose time is the command's, too. */
int e2b_follow(struct call *c, struct process *p, const uint64_t offset[STREAM_COUNT], int is_start,
               uint64_t timeout_ns, struct pd_err *e);
