/* log: what a build says, a line an entry, on disk and bounded: the first BUILD_LOG_BYTES and
 * BUILD_LOG_ENTRIES, then one entry that says so. It can be read while it is written. */
#pragma once

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

struct pd_err;

#define BUILD_LOG_BYTES   (1u << 20)
#define BUILD_LOG_ENTRIES 10000u
#define BUILD_LINE_MAX    4096u

struct build_log {
    int fd;
    uint64_t bytes;
    unsigned entries;
    int full;
};

/* A new one; `dir` is where they are. */
int build_log_open(struct build_log *l, int dir, const char *id, struct pd_err *e);
void build_log_done(struct build_log *l);
void build_log_remove(int dir, const char *id);
/* An entry: of text without control characters and no longer than BUILD_LINE_MAX. What cannot be
 * written is left out. */
void build_log_put(struct build_log *l, const char *level, const char *step, const void *text,
                   size_t len);
void build_log_printf(struct build_log *l, const char *level, const char *step, const char *fmt,
                      ...) __attribute__((format(printf, 4, 5)));

/* Calls `each` for at most `limit` entries from the `from`-th on, and returns how many there were.
 * Nothing where there is no log. */
unsigned build_log_read(int dir, const char *id, unsigned from, unsigned limit,
                        void (*each)(void *arg, uint64_t ms, const char *level, const char *step,
                                     const char *text),
                        void *arg);
