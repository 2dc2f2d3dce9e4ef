/* record: what a worker in a jail says on its output pipe.
 *
 * A worker (docs/workers.md) is built-in code of init that runs as the sandbox's user and answers
 * in records: a head {len, kind} in host order, then `len` bytes, at most RECORD_MAX. Raw bytes may
 * follow a record, if the operation says so. The reader trusts none of it: the decoder accepts
 * exactly what the encoder makes, every string ends with its NUL and holds no other.
 *
 * Strings of a decoded record point into the buffer that it was read into, and live until that is
 * used again. Names of files are bytes, not text: any but 0. */
#pragma once

#include "base/buf.h"
#include "base/clock.h"

#include <stdint.h>
#include <sys/types.h>

struct pd_err;

/* The one word that goes the other way, on the worker's descriptor 2: all of the new file has come,
 * and it may get its name. */
#define WORKER_COMMIT_WORD 'C'

#define RECORD_MAX       (64u << 10)
#define RECORD_PATH_MAX  (24u << 10) /* longer paths cannot be told */
#define RECORD_LINK_MAX  4095u
#define RECORD_TEXT_MAX  4096u /* of a line that matches */
#define RECORD_VALUE_MAX (60u << 10)
#define RECORD_ATTRS_MAX (16u << 10) /* of a DETAIL, names and values together */

enum record_kind {
    RECORD_ENTRY = 1, /* a file */
    RECORD_MATCH,     /* a line, or with `line` 0 a file */
    RECORD_REPLACED,  /* a file, and how many times */
    RECORD_EVENT,     /* a change that was watched for */
    RECORD_PORT,      /* a socket that listens, or that was connected to */
    RECORD_TAR_DONE,  /* an archive was unpacked */
    RECORD_VALUE,     /* an extended attribute */
    RECORD_MORE,      /* the limit is reached; go on from this cursor ("": cannot go on) */
    RECORD_ERROR,     /* nothing follows */
    RECORD_END,       /* nothing follows, and all went well */
    RECORD_DETAIL,    /* a file, where it leads to, and its attributes: on request */
    RECORD_PROCESS,   /* a process of the sandbox */
    RECORD_KIND_COUNT
};

enum entry_type {
    ENTRY_FILE,
    ENTRY_DIR,
    ENTRY_SYMLINK,
    ENTRY_FIFO,
    ENTRY_SOCKET,
    ENTRY_DEVICE,
    ENTRY_TYPE_COUNT
};
/* "file", "dir", "symlink" ...; of a number that is none, "file". */
const char *entry_type_name(uint32_t type);

enum event_kind {
    EVENT_CREATED,
    EVENT_MODIFIED,
    EVENT_REMOVED,
    EVENT_MOVED,      /* path to path2; or "": away */
    EVENT_ATTRIBUTES, /* mode, owner, times, extended attributes */
    EVENT_OVERFLOW,   /* events were lost: look again */
    EVENT_MARK,       /* no event: what had happened when it was asked for was told; with `is_dir`,
                       * a part of it, and more waits */
    EVENT_KIND_COUNT
};
/* "created", "modified", "removed", "moved", "attributes", "overflow", "mark". */
const char *event_kind_name(uint32_t kind);

struct record_entry {
    uint32_t type; /* enum entry_type */
    uint32_t mode; /* permissions: the low twelve bits */
    uint32_t uid, gid;
    uint64_t size;
    int64_t mtime_ns; /* since the epoch */
    const char *path;
    const char *target; /* of a symbolic link, else "" */
};

/* An entry and what takes more calls to know. */
struct record_detail {
    struct record_entry entry;
    uint32_t end_type;    /* of what a link leads to at last: enum entry_type, or
                           * ENTRY_TYPE_COUNT when it leads nowhere; else the entry's own */
    uint32_t end_mode;    /* its permissions */
    const char *end_path; /* of a link that leads somewhere, where; else "" */
    const uint8_t *attrs; /* NAME 0 VALUE 0 ... */
    uint32_t attrs_len;
};
/* The next attribute, from *pos = 0 on: 1, or 0 behind the last one. */
int record_attr_next(const struct record_detail *r, uint32_t *pos, const char **ret_name,
                     const char **ret_value);

struct record_match {
    const char *path;
    uint64_t line;    /* from 1 */
    uint64_t column;  /* from 1, in bytes */
    uint64_t offset;  /* of the match in the file, from 0 */
    const char *text; /* the line without its end; a long one is cut */
};

struct record_replaced {
    const char *path;
    uint64_t count;
};

struct record_event {
    uint32_t kind; /* enum event_kind */
    uint32_t is_dir;
    const char *path;
    const char *path2; /* or "" */
};

struct record_port {
    uint32_t port;
    uint32_t pid; /* 0: not known */
    const char *address;
    const char *command; /* or "" */
};

struct record_process {
    uint32_t pid, parent; /* parent 0: none that the sandbox sees */
    uint32_t uid;
    uint32_t threads;
    uint32_t state; /* a letter, as of ps(1) */
    uint64_t cpu_ms, memory, age_ms;
    const char *command;
};

struct record_tar_done {
    uint64_t entries, bytes;
};

struct record_value {
    const char *name;
    const uint8_t *data; /* any bytes */
    uint32_t len;
};

struct record_more {
    const char *cursor;
};

struct record_error {
    uint32_t code; /* enum pd_code */
    int32_t sys;
    const char *text;
};

struct record {
    enum record_kind kind;
    union {
        struct record_entry entry;
        struct record_detail detail;
        struct record_match match;
        struct record_replaced replaced;
        struct record_event event;
        struct record_port port;
        struct record_process process;
        struct record_tar_done tar_done;
        struct record_value value;
        struct record_more more;
        struct record_error error;
    };
};

/* Appends head and payload. A string that is too long marks the buf as overflowed, and the bytes in
 * it are then no record. */
void record_encode(struct buf *b, const struct record *r);
/* Decodes the payload of a record of this kind. Pure. 0, or -1 with PD_PROTOCOL. */
int record_decode(uint32_t kind, const uint8_t *payload, size_t len, struct record *ret,
                  struct pd_err *e);

/* A buffer for record_read. */
#define RECORD_SCRATCH BUF_INIT(RECORD_MAX)

/* Reads one record and not a byte more, so that raw bytes can follow. Waits until the deadline,
 * also on a blocking descriptor. Returns 1, or 0 at the end of the stream, or -1: PD_TIMEOUT,
 * PD_PROTOCOL (no record, or the end in the middle of one). After -1 the stream is of no more use.
 */
int record_read(int fd, struct buf *scratch, struct record *ret, deadline d, struct pd_err *e);

/* The same for a stream that holds nothing but records, with far fewer system calls. */
struct record_stream {
    int fd; /* the caller's */
    struct buf in;
    size_t used;
};
#define RECORD_STREAM(descriptor)                                                                  \
    ((struct record_stream){.fd = (descriptor), .in = BUF_INIT(2 * RECORD_MAX)})
void record_stream_done(struct record_stream *s);
#define auto_record_stream __attribute__((cleanup(record_stream_done))) struct record_stream
int record_next(struct record_stream *s, struct record *ret, deadline d, struct pd_err *e);

/* Fills *e from an ERROR record; always returns -1. Any other kind is PD_PROTOCOL: `what` says
 * where it came from. */
int record_raise(const struct record *r, const char *what, struct pd_err *e);
