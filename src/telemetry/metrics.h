/* metrics: what the server counts, as Prometheus reads it.
 *
 * One table (below) names every metric, its type, its labels and what it means. Label values are
 * fixed lists, so the number of series is bounded whatever clients do. Counting is one atomic
 * addition: any thread, no lock, cannot fail. `m` may be NULL everywhere: then nothing is counted.
 *
 * Values that another module keeps (how many sessions there are now, a total of its own) are put in
 * by a collector just before they are printed. */
#pragma once

#include "wire/stop.h"

#include <stddef.h>
#include <stdint.h>

struct buf;
struct metrics;

/* Label values, in the order of their enums. */
#define METRICS_STATES "creating", "running", "paused", "stopping", "gone"
#define METRICS_ENDS   "none", "killed", "expired", "idle", "failed", "lost"
/* Names of providers are given at the start; the last value, "other", stands for those that are not
 * configured (any more). */
#define METRICS_PROVIDERS_MAX 16u
#define METRICS_METHODS       "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "other"
#define METRICS_CLASSES       "1xx", "2xx", "3xx", "4xx", "5xx"
/* Why a command ended: enum process_stop (none: it ended by itself), and that it never began. */
#define METRICS_CAUSES                                                                             \
    "exited", "timeout", "oom", "pids", "disk", "output", "syscall", "killed", "abandoned",        \
        "sandbox", "refused"
enum { METRICS_CAUSE_REFUSED = STOP_COUNT };
#define METRICS_LIMITS                                                                             \
    "time", "memory", "pids", "disk", "output", "syscall", "policy", "rate", "quota"
enum metrics_limit {
    METRICS_LIMIT_TIME,
    METRICS_LIMIT_MEMORY,
    METRICS_LIMIT_PIDS,
    METRICS_LIMIT_DISK,
    METRICS_LIMIT_OUTPUT,
    METRICS_LIMIT_SYSCALL,
    METRICS_LIMIT_POLICY,
    METRICS_LIMIT_RATE,
    METRICS_LIMIT_QUOTA
};
#define METRICS_RESULTS "ok", "failed", "refused"
enum { METRICS_OK, METRICS_FAILED, METRICS_REFUSED };
/* Of connections to the network: enum gate_result. */
#define METRICS_EGRESS "ok", "refused", "failed", "broken", "cut"
/* Why some of them were refused. */
#define METRICS_WHYS "rule", "off", "address", "first_bytes", "other"
enum {
    METRICS_WHY_RULE,
    METRICS_WHY_OFF,
    METRICS_WHY_ADDRESS,
    METRICS_WHY_FIRST_BYTES,
    METRICS_WHY_OTHER
};
#define METRICS_DIRECTIONS "up", "down"
#define METRICS_ORIGINS    "cold", "pool"
enum { METRICS_COLD, METRICS_POOL };

/* id, name, type, first label, second label, help. A label is a name with its list; NO_LABEL. */
#define METRICS(X)                                                                                 \
    X(SESSIONS, "paddock_sessions", GAUGE, STATE, PROVIDER, "Sandboxes by state and provider.")    \
    X(BOXES, "paddock_boxes", GAUGE, NONE, NONE,                                                   \
      "Jails at the keeper, of sandboxes that run, are paused or wait in the pool.")               \
    X(BOX_MISMATCHES, "paddock_box_mismatches_total", COUNTER, NONE, NONE,                         \
      "Times that the jails at the keeper were not those of the sandboxes: a fault.")              \
    X(SESSIONS_ENDED, "paddock_sessions_ended_total", COUNTER, END, NONE,                          \
      "Sandboxes that ended, by cause.")                                                           \
    X(SESSIONS_REUSED, "paddock_sessions_reused_total", COUNTER, NONE, NONE,                       \
      "Get-or-create calls that found a living sandbox.")                                          \
    X(AUTO_RETRIES, "paddock_auto_retries_total", COUNTER, NONE, NONE,                             \
      "Lost or expired sandboxes that were made anew by auto_retry.")                              \
    X(CREATES, "paddock_creates_total", COUNTER, RESULT, NONE, "Creations by result.")             \
    X(CREATE_SECONDS, "paddock_create_seconds", HISTOGRAM, ORIGIN, NONE,                           \
      "How long a creation took, without the queue.")                                              \
    X(POOL_HITS, "paddock_pool_hits_total", COUNTER, NONE, NONE,                                   \
      "Creations that took a warm sandbox.")                                                       \
    X(POOL_MISSES, "paddock_pool_misses_total", COUNTER, NONE, NONE,                               \
      "Creations for which no warm sandbox was there.")                                            \
    X(POOL_DROPPED, "paddock_pool_dropped_total", COUNTER, NONE, NONE,                             \
      "Warm sandboxes that nobody got: not needed in time, or not what a new one would be.")       \
    X(POOL_READY, "paddock_pool_ready", GAUGE, NONE, NONE, "Warm sandboxes that wait.")            \
    X(POOL_CODE_READY, "paddock_pool_code_ready", GAUGE, NONE, NONE,                               \
      "Of those: with an interpreter that has its libraries imported.")                            \
    X(POOL_FILLING, "paddock_pool_filling", GAUGE, NONE, NONE,                                     \
      "Warm sandboxes that are being made.")                                                       \
    X(QUEUE, "paddock_queue_length", GAUGE, NONE, NONE, "Creations that wait for capacity.")       \
    X(QUEUE_REFUSED, "paddock_queue_refused_total", COUNTER, NONE, NONE,                           \
      "Creations that were refused: the queue was full or the time over.")                         \
    X(QUEUE_SECONDS, "paddock_queue_wait_seconds", HISTOGRAM, NONE, NONE,                          \
      "How long creations waited for capacity.")                                                   \
    X(IMAGE_PULLS, "paddock_image_pulls_total", COUNTER, RESULT, NONE,                             \
      "Images that provider jail has fetched, or found there when it was asked to.")               \
    X(IMAGE_PULL_BYTES, "paddock_image_pull_bytes_total", COUNTER, NONE, NONE,                     \
      "Packed bytes of layers that have come for those.")                                          \
    X(EXECS, "paddock_execs_total", COUNTER, CAUSE, NONE, "Commands by what ended them.")          \
    X(EXEC_SECONDS, "paddock_exec_seconds", HISTOGRAM, NONE, NONE, "How long commands ran.")       \
    X(EXECUTIONS, "paddock_context_executions_total", COUNTER, NONE, NONE,                         \
      "Executions in code contexts that clients waited for.")                                      \
    X(EXECUTIONS_LOST, "paddock_context_restarts_total", COUNTER, NONE, NONE,                      \
      "Those of them that told of lost variables.")                                                \
    X(PROCESSES, "paddock_processes", GAUGE, NONE, NONE, "Commands that run now.")                 \
    X(OUTPUT_KEPT, "paddock_output_kept_bytes", GAUGE, NONE, NONE, "Output kept on disk.")         \
    X(OUTPUTS_FORGOTTEN, "paddock_outputs_forgotten_total", COUNTER, NONE, NONE,                   \
      "Ended commands whose output was forgotten because too much was kept.")                      \
    X(LIMITS, "paddock_limit_violations_total", COUNTER, LIMIT, NONE,                              \
      "Commands stopped and requests refused at a limit.")                                         \
    X(EGRESS, "paddock_egress_total", COUNTER, EGRESS, NONE,                                       \
      "Connections of sandboxes to the network that ended, and refused questions, by result.")     \
    X(EGRESS_REFUSED, "paddock_egress_refused_total", COUNTER, WHY, NONE,                          \
      "Refused connections and questions: no rule, all is off, an address that is never dialled.") \
    X(EGRESS_BYTES, "paddock_egress_bytes_total", COUNTER, DIRECTION, NONE,                        \
      "Bytes of those connections, as their sandboxes see it.")                                    \
    X(CONNECTIONS, "paddock_connections", GAUGE, NONE, NONE, "Open connections.")                  \
    X(CONNECTIONS_ACCEPTED, "paddock_connections_accepted_total", COUNTER, NONE, NONE,             \
      "Connections that were accepted.")                                                           \
    X(CONNECTIONS_REFUSED, "paddock_connections_refused_total", COUNTER, NONE, NONE,               \
      "Connections that were closed at once: too many.")                                           \
    X(REQUESTS, "paddock_requests_total", COUNTER, METHOD, CLASS,                                  \
      "Requests by method and class of status.")                                                   \
    X(REQUESTS_ACTIVE, "paddock_requests_active", GAUGE, NONE, NONE,                               \
      "Requests that are being answered.")                                                         \
    X(REQUEST_SECONDS, "paddock_request_seconds", HISTOGRAM, NONE, NONE,                           \
      "How long requests took, to the last byte of the answer.")                                   \
    X(AUTH_FAILURES, "paddock_auth_failures_total", COUNTER, NONE, NONE,                           \
      "Requests without a valid key.")                                                             \
    X(RELOADS, "paddock_config_reloads_total", COUNTER, RESULT, NONE,                              \
      "Reloads of the configuration by result.")                                                   \
    X(LOG_DROPPED, "paddock_log_dropped_total", COUNTER, NONE, NONE,                               \
      "Log lines that could not be written.")                                                      \
    X(AUDIT_EVENTS, "paddock_audit_events_total", COUNTER, NONE, NONE, "Events in the audit log.") \
    X(AUDIT_LOST, "paddock_audit_lost_total", COUNTER, NONE, NONE,                                 \
      "Events that could not be written to the audit log.")                                        \
    X(MEMORY, "process_resident_memory_bytes", GAUGE, NONE, NONE, "Memory of the server.")         \
    X(VIRTUAL, "process_virtual_memory_bytes", GAUGE, NONE, NONE, "Address space of the server.")  \
    X(FDS, "process_open_fds", GAUGE, NONE, NONE, "Open descriptors of the server.")               \
    X(FDS_MAX, "process_max_fds", GAUGE, NONE, NONE, "Descriptors that the server may open.")      \
    X(THREADS, "process_threads", GAUGE, NONE, NONE, "Threads of the server.")                     \
    X(CPU, "process_cpu_seconds_total", SECONDS, NONE, NONE, "Processor time of the server.")      \
    X(START, "process_start_time_seconds", START_TIME, NONE, NONE,                                 \
      "When the server started, since the epoch.")

enum metric {
#define X(id, ...) METRIC_##id,
    METRICS(X)
#undef X
        METRIC_COUNT
};

/* NULL when there is no memory, which can be passed on as "no metrics". */
struct metrics *metrics_new(void);
void metrics_free(struct metrics *m);

/* Counts. `a` and `b` are indices into the label lists (0 where there is no label); one that is out
 * of range counts as the last value. */
void metrics_add(struct metrics *m, enum metric id, unsigned a, unsigned b, uint64_t n);
#define metrics_count(m, id) metrics_add(m, id, 0, 0, 1)
/* Sets a gauge, or a counter that is kept elsewhere. Microseconds for the types SECONDS and
 * START_TIME. */
void metrics_set(struct metrics *m, enum metric id, unsigned a, unsigned b, uint64_t value);
/* What was counted or set. */
uint64_t metrics_value(struct metrics *m, enum metric id, unsigned a, unsigned b);
/* For a histogram. */
void metrics_observe(struct metrics *m, enum metric id, unsigned a, uint64_t usec);

/* A command has ended: count, duration, and the limit if one was violated. */
void metrics_exec_ended(struct metrics *m, enum process_stop why, uint64_t usec);
/* A request was answered. */
void metrics_request_ended(struct metrics *m, const char *method, size_t method_len, int status,
                           uint64_t usec);
/* The label value of provider number `i`, below METRICS_PROVIDERS_MAX. `name` must stay. Before
 * anybody renders. */
void metrics_name_provider(struct metrics *m, unsigned i, const char *name);

/* Called at the start of each rendering, by whichever thread renders, and possibly by several at
 * once; calls metrics_set. Up to 8; not while others render. 0 or -1. */
typedef void metrics_collector(struct metrics *m, void *arg);
int metrics_collect(struct metrics *m, metrics_collector *collect, void *arg);

/* The text of Prometheus, format 0.0.4. The process's own figures are read here. */
#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"
#define METRICS_MAX  (64u << 10) /* more than it can ever be */
void metrics_render(struct metrics *m, struct buf *out);
