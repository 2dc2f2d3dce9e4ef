/* cloudrun_api: what is said to Google's Cloud Run Admin API (v2, jobs and executions), and what
 * its answers mean. Pure: no calls are made here.
 *
 * Whose an execution is stands among its arguments, as label=OWNER/BOX: an execution has no labels
 * that the one who runs a job could give. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

struct pd_err;

#define CLOUDRUN_ID   128u /* the last part of a name, with its NUL */
#define CLOUDRUN_PAGE 100u
#define CLOUDRUN_NEXT 2048u

struct cloudrun_place {
    const char *project, *region, *job;
};
/* Are these what Google's names are made of? PD_INVALID names the setting. */
int cloudrun_check_place(const struct cloudrun_place *p, struct pd_err *e);

/* Paths; `rest` is what follows the job's name (":run", "/executions/ID:cancel"). */
void cloudrun_job_target(struct buf *out, const struct cloudrun_place *p, const char *rest);
void cloudrun_operation_target(struct buf *out, const struct cloudrun_place *p, const char *id);
/* Those of the job, a page at a time; `next` is "" or what the last answer said. */
void cloudrun_list_target(struct buf *out, const struct cloudrun_place *p, const char *next);

struct cloudrun_plan {
    const char *container;    /* or "": the only one */
    const char *const *words; /* up to a NULL */
    const char *variable, *value;
    const char *more, *more_value; /* another variable, or NULL */
    uint64_t timeout_s;
};
void cloudrun_run_body(struct buf *out, const struct cloudrun_plan *p);

struct cloudrun_job {
    char container[64], image[256], account[256]; /* of the first container; or "" */
    char entry[256];                              /* its command, or "": the image's */
    unsigned containers;
    uint64_t retries;
};
int cloudrun_read_job(const void *json, size_t len, struct cloudrun_job *ret, struct pd_err *e);
/* Where a container of a job ("": its first) sees this bucket: a directory. PD_INVALID says that it
 * does not, or that it could not write there. */
#define CLOUDRUN_MOUNT 64u
int cloudrun_read_mount(const void *json, size_t len, const char *bucket, const char *container,
                        char ret[CLOUDRUN_MOUNT], struct pd_err *e);

struct cloudrun_execution {
    char id[CLOUDRUN_ID];
    char owner[64], box[64]; /* "" where there is no label */
    bool over;
    char why[160]; /* of one that is over */
};
int cloudrun_read_execution(const void *json, size_t len, struct cloudrun_execution *ret,
                            struct pd_err *e);

/* -1 with *e ends the list, 1 without. */
typedef int cloudrun_each(void *context, const struct cloudrun_execution *x, struct pd_err *e);
/* Calls it for each that has a label. `next` is "" behind the last page. */
int cloudrun_read_list(const void *json, size_t len, char next[CLOUDRUN_NEXT], cloudrun_each *each,
                       void *context, struct pd_err *e);

/* What :run answers: an operation, which mostly knows its execution already. */
struct cloudrun_operation {
    char id[CLOUDRUN_ID], execution[CLOUDRUN_ID]; /* "" while it is not known */
    bool done;
};
/* PD_CAPACITY, PD_DENIED ... when it has failed, with its words. */
int cloudrun_read_operation(const void *json, size_t len, struct cloudrun_operation *ret,
                            struct pd_err *e);
