/* audit: who ran what, where, and what came of it.
 *
 * Append-only JSON lines in STATE_DIR/audit.log (mode 0600), outside of every sandbox:
 *
 *     {"time":"2026-01-02T03:04:05.678Z","tenant":"default","key":"k1","request":"8f3a",
 *      "sandbox":"abc","action":"exec","command":"ls -l","user":"user","result":"ok",
 *      "exit_code":0,"duration_ms":12.345}
 *
 * A line is one write, and is in the file when audit_write returns (kill-safe, not
 * power-loss-safe). At `max_bytes` the file becomes audit.log.1, that audit.log.2, ... of which
 * `keep` are kept.
 *
 * Writing cannot fail as far as the caller is concerned: when the disk is full or the file cannot
 * be opened, the event is lost, counted (audit_lost, METRIC_AUDIT_LOST) and the log says so once;
 * the next event tries again, and when it works, a line {"action":"audit.lost","count":N} tells of
 * the gap. Any thread; a short lock. `a` may be NULL: then nothing is written. */
#pragma once

#include "wire/msg.h"

#include <stdbool.h>
#include <stdint.h>

struct audit;
struct buf;
struct metrics;
struct pd_err;
struct gate_record;

#define AUDIT_COMMAND_MAX 4096 /* bytes of a command that are written; the rest is cut */
#define AUDIT_SCAN_MAX    (16u << 20)

struct audit_config {
    const char *state_dir;
    int enabled;
    uint64_t max_bytes;
    unsigned keep;
    struct metrics *metrics; /* or NULL */
};

/* How far an image has come. */
struct audit_pull {
    const char *image;
    uint64_t layers_done, layers, bytes_done, bytes;
};

/* NULL members are left out. Nothing here is secret: there is no place for variables or stdin, and
 * the command goes through redact(). */
struct audit_event {
    const char *tenant, *key_id, *request_id, *sandbox;
    const char *action;   /* "exec", "create", "files.write" ... */
    const char *command;  /* a line, a path ... */
    struct msg_list argv; /* or words; ignored when there is a command */
    const char *user;
    const char *result; /* "ok" or the name of an error's code */
    int has_exit;
    int exit_code;
    const char *stopped_by;
    uint64_t duration_us; /* 0: left out */
    const struct audit_pull *pull;
    const struct gate_record *egress; /* a connection of the sandbox, or a question */
    uint64_t number;                  /* of that one: it grows */
};

/* Opens the file. Fails when the directory is not there; a file that cannot be opened is lost
 * lines, not a failure. */
struct audit *audit_new(const struct audit_config *c, struct pd_err *e);
void audit_free(struct audit *a);
/* After a reload: enabled, max_bytes and keep. */
void audit_reconfigure(struct audit *a, const struct audit_config *c);

void audit_write(struct audit *a, const struct audit_event *event);
uint64_t audit_lost(struct audit *a);

/* Which events: NULL is any. `action`: one, or with a dot at its end a family of them ("file."). */
struct audit_query {
    const char *tenant, *sandbox, *key, *action, *result;
    unsigned limit;
    const char *cursor; /* of the search before, whose older events these are; or NULL */
    bool newest_first;
};
#define AUDIT_CURSOR_SIZE 48
/* Appends the last `limit` events that fit, as a JSON array. *ret_next: the cursor for older ones;
 * "" when there are none. There may be fewer than `limit`, or none, and a cursor all the same: at
 * most AUDIT_SCAN_MAX bytes are read at a time. PD_INVALID: the cursor is none. Events that were
 * written, and files that were put aside meanwhile, change nothing in what a cursor means. */
int audit_search(struct audit *a, const struct audit_query *q, struct buf *out,
                 char ret_next[AUDIT_CURSOR_SIZE], struct pd_err *e);

/* Appends the last `limit` events of a sandbox as a JSON array, the newest last; fewer when `out`
 * is full or they lie further back than AUDIT_SCAN_MAX bytes. An id that is none gives []. Reads
 * the file, at most so much of it. */
int audit_read(struct audit *a, const char *sandbox, unsigned limit, struct buf *out,
               struct pd_err *e);
