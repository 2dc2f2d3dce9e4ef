/* log: what the program has to say, one line per event, on stderr.
 *
 *     log_info("session.start", "id=%s provider=%s ms=%d", id, provider, ms);
 *
 *     2026-01-02T03:04:05.678Z info session.start request=8f3a id=abc provider=jail ms=12
 *     {"time":"2026-01-02T03:04:05.678Z","level":"info","event":"session.start",...,"ms":12}
 *
 * The event's name comes first and is stable. The format is a list of `key=value` words with one
 * blank between them; values are printf conversions and text. What a conversion brings in is
 * foreign: a value with blanks, quotes or strange bytes is quoted and escaped, so nothing that a
 * client sent can look like another field or another line. A NULL for %s is written as "-" (null).
 * There is no way to write a secret: pass its id.
 *
 * A line is one write(2) of at most LOG_LINE_MAX bytes (longer ones are cut). Logging never fails
 * and hardly blocks: a reader that does not read is waited for 50 ms, once; after that, and when
 * the disk is full or the reader has gone, lines are dropped and counted, and once writing works
 * again a line `log.dropped count=N` says so. Any thread may log. This is the one module with
 * state of its own. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define LOG_LINE_MAX    4096 /* PIPE_BUF: a pipe takes it whole or not at all */
#define LOG_REQUEST_MAX 40

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };
enum log_format { LOG_FORMAT_TEXT, LOG_FORMAT_JSON };

/* Where to and how; before it, text of level info and above goes to stderr. `fd` stays the
 * caller's and open. Ignores SIGPIPE for the whole program: a log reader that goes away must not
 * end it. Not while other threads log. */
void log_setup(int fd, enum log_level level, enum log_format format);
/* May be changed at any time. */
void log_set_level(enum log_level level);
void log_set_format(enum log_format format);

/* Lines of this thread carry `request=ID` until log_request(NULL). The id is copied, and cut. */
void log_request(const char *id);

/* Lines that were lost since the start. */
uint64_t log_dropped(void);

void log_write(enum log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int log_wanted(enum log_level level);

/* Arguments are not evaluated when nobody wants the line. */
#define log_at(level, event, ...)                                                                  \
    do {                                                                                           \
        if (log_wanted(level))                                                                     \
            log_write(level, event, __VA_ARGS__);                                                  \
    } while (0)
#define log_debug(event, ...) log_at(LOG_LEVEL_DEBUG, event, __VA_ARGS__)
#define log_info(event, ...)  log_at(LOG_LEVEL_INFO, event, __VA_ARGS__)
#define log_warn(event, ...)  log_at(LOG_LEVEL_WARN, event, __VA_ARGS__)
#define log_error(event, ...) log_at(LOG_LEVEL_ERROR, event, __VA_ARGS__)

/* The time in UTC as "2026-01-02T03:04:05.678Z". `ret` has room for 25 bytes. */
void log_time(uint64_t ms_since_epoch, char ret[25]);
