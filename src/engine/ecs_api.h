/* ecs_api: what is said to Amazon ECS, and what its answers mean (JSON 1.1). Pure: no calls are
 * made here. The API is believed as far as JSON goes: what is read is bounded, and text that
 * becomes a name or a header is checked. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pd_err;
struct limits;

#define ECS_ARN_MAX      512u
#define ECS_TAG_OWNER    "paddock.owner"
#define ECS_TAG_BOX      "paddock.box"
#define ECS_OVERRIDE_MAX 8192u /* characters of JSON that AWS takes as overrides */
#define ECS_TASKS_MOST   100u  /* of one page, and of one DescribeTasks */

/* What is the operator's of every task. Lists are separated by commas. */
struct ecs_place {
    const char *cluster, *definition, *container; /* container: its name in the definition */
    const char *subnets, *groups;                 /* at most 16, and 5 */
    bool public_address, spot;
};

/* A pair of processor and memory that Fargate has. */
struct ecs_size {
    unsigned cpu;    /* 1024 are one processor */
    unsigned memory; /* MiB */
};
/* The least one that has what is asked for (0: whatever); PD_INVALID names the most that there is.
 */
int ecs_choose_size(uint64_t cpu_milli, uint64_t memory_bytes, struct ecs_size *ret,
                    struct pd_err *e);

struct ecs_variable {
    const char *name, *value;
};

/* A task to be started. */
struct ecs_plan {
    const struct ecs_place *place;
    const char *owner, *box; /* startedBy, and tags */
    const char *token;       /* the same token is the same task: up to 64 of letters, digits, - _ */
    struct ecs_size size;
    const char *const *command; /* up to a NULL; NULL: the definition's */
    const struct ecs_variable *variables;
    unsigned variable_count;
};
/* The body of RunTask. PD_TOO_LARGE when the overrides are more than AWS takes. */
int ecs_run_body(struct buf *out, const struct ecs_plan *p, struct pd_err *e);
/* Bodies of DescribeTasks (with tags), StopTask, ListTasks (of those that are to run, or of those
 * that have stopped within the last hour; `next`: of the page before, or ""). */
void ecs_describe_body(struct buf *out, const char *cluster, const char (*arns)[ECS_ARN_MAX],
                       unsigned count);
void ecs_stop_body(struct buf *out, const char *cluster, const char *arn, const char *reason);
void ecs_list_body(struct buf *out, const char *cluster, const char *owner, bool stopped,
                   const char *next);

enum ecs_status {
    ECS_COMING,  /* PROVISIONING, PENDING, ACTIVATING, and what is not known */
    ECS_RUNNING, /* RUNNING */
    ECS_GOING,   /* DEACTIVATING, STOPPING, DEPROVISIONING */
    ECS_STOPPED, /* STOPPED, DELETED */
};

struct ecs_task {
    char arn[ECS_ARN_MAX];
    enum ecs_status status;
    bool wanted;             /* desiredStatus is RUNNING */
    char address[46];        /* private IPv4 or IPv6 of its interface; "" as long as it has none
                              */
    char owner[64], box[64]; /* tags, "" without */
    char stop_code[48], why[160]; /* of one that has ended */
    int exit_code;                /* of the container; -1 when it is not told */
};

/* The task in an answer of RunTask. -1 when there is none: "failures" says why. */
int ecs_read_run(const void *json, size_t len, struct ecs_task *ret, struct pd_err *e);
typedef int ecs_each(void *context, const struct ecs_task *t, struct pd_err *e);
/* Tasks in an answer of DescribeTasks; those in "failures" are not there (or not yet). Stops when
 * `each` returns not 0, and returns that. */
int ecs_read_tasks(const void *json, size_t len, ecs_each *each, void *context, struct pd_err *e);
/* A page of ListTasks. `next` is "" on the last. */
struct ecs_page {
    char arns[ECS_TASKS_MOST][ECS_ARN_MAX];
    unsigned count;
    char next[2048];
};
int ecs_read_list(const void *json, size_t len, struct ecs_page *ret, struct pd_err *e);

/* Why a task does not run, in words. */
void ecs_say_end(const struct ecs_task *t, char *out, size_t size);

/* A refusal of AWS: JSON of ECS, XML of the others, or neither. */
struct aws_refusal {
    char code[96];
    char message[240];
    char resource[ECS_ARN_MAX]; /* ConflictException: the task that has the token */
};
void aws_read_refusal(int status, const void *body, size_t len, struct aws_refusal *ret);
/* Is it to be tried again: throttled, or AWS's own failure? */
bool aws_is_passing(int status, const struct aws_refusal *r);
/* Is it about the credentials, which may be older than others that could be had? */
bool aws_is_expired(const struct aws_refusal *r);
/* Fills *e: `what` was tried. Always -1. */
int aws_fail(int status, const struct aws_refusal *r, const char *what, struct pd_err *e);
