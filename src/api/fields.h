/* fields: reading the JSON object that a client sent, member by member, each one checked.
 *
 *     struct fields f;
 *     if (fields_parse(&f, body.data, body.len, 0, e) == 0) {
 *         fields_str(&f, "command", FIELD_REQUIRED, 1, 65536, &command);
 *         fields_seconds(&f, "timeout_s", FIELD_OPTIONAL, 0, 86400 * NS_PER_S, &timeout_ns);
 *         struct fields *limits = fields_object(&f, "limits", FIELD_OPTIONAL);
 *         fields_u64(limits, "pids", FIELD_OPTIONAL, 2, 32768, &pids);
 *     }
 *     if (fields_finish(&f, e) < 0) ... fields_bad(&f) names the member ...
 *     ...
 *     fields_done(&f);        (or declare it as `auto_fields f = {0};`)
 *
 * Errors accumulate: the first one wins, later calls do nothing, and fields_finish tells. So a
 * handler reads everything in a row and checks once. fields_finish also refuses members that nobody
 * asked for, in nested objects too; hence a member that only matters in some case is still to be
 * asked for (fields_has) in every case.
 *
 * Every getter returns 1 when the member was there and fine, and only then writes *ret; else 0: it
 * is absent (or null, which is the same for an optional one), or there was an error. Strings belong
 * to the fields and live until fields_done; they are valid UTF-8 without NUL. `f` may be NULL, an
 * object that is absent: then nothing in it is there, nor required. `name` must be a literal, or
 * outlive f. A struct fields is used by one thread and is not copied. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "wire/msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FIELDS_DEPTH_MAX  8     /* nested objects and arrays, the outermost one included */
#define FIELDS_VALUES_MAX 16384 /* in all: memory is bounded by more than the body's size */
#define FIELDS_KNOWN_MAX  40    /* members that one object may be asked for */
#define FIELDS_PATH_MAX   128

enum field_need { FIELD_OPTIONAL, FIELD_REQUIRED };
enum field_kind {
    FIELD_ABSENT, /* or null */
    FIELD_STRING,
    FIELD_NUMBER,
    FIELD_BOOL,
    FIELD_OBJECT,
    FIELD_ARRAY
};

struct json_t;

/* Private; here so that it can live on a stack. */
struct fields {
    struct json_t *object; /* owned by the outermost one */
    struct fields *root;   /* the outermost one */
    struct fields *next;   /* the root's list of nested ones, which it frees */
    char path[FIELDS_PATH_MAX];
    const char *known[FIELDS_KNOWN_MAX];
    unsigned known_count;
    /* Of the root alone: */
    unsigned flags;
    bool failed;
    struct pd_err err;
    char bad[FIELDS_PATH_MAX];
};

/* Reads the whole text: one object, UTF-8, no member twice, no NUL, nothing behind it, nested and
 * counted within the bounds above. Else -1 with PD_INVALID that says where. No text at all is an
 * empty object with FIELDS_MAY_BE_EMPTY, else refused. After a failure, fields_finish repeats it
 * and fields_done is fine. */
#define FIELDS_MAY_BE_EMPTY 1u
/* Members that nobody asks for are left alone, as protobuf's JSON has it. */
#define FIELDS_OPEN 2u
int fields_parse(struct fields *f, const void *text, size_t len, unsigned flags, struct pd_err *e);
void fields_done(struct fields *f);
#define auto_fields __attribute__((cleanup(fields_done))) struct fields

/* A string of `min` to `max` bytes. */
int fields_str(struct fields *f, const char *name, enum field_need need, size_t min, size_t max,
               const char **ret);
/* The same for a password: no error repeats a part of it. */
int fields_secret(struct fields *f, const char *name, enum field_need need, size_t min, size_t max,
                  const char **ret);
/* A whole number; 3.0 is one, too. */
int fields_u64(struct fields *f, const char *name, enum field_need need, uint64_t min, uint64_t max,
               uint64_t *ret);
/* The same for those that may be below 0. */
int fields_i64(struct fields *f, const char *name, enum field_need need, int64_t min, int64_t max,
               int64_t *ret);
/* A number of seconds with decimals, as nanoseconds or milliseconds (rounded). Bounds likewise. */
int fields_seconds(struct fields *f, const char *name, enum field_need need, uint64_t min_ns,
                   uint64_t max_ns, uint64_t *ret_ns);
int fields_seconds_ms(struct fields *f, const char *name, enum field_need need, uint64_t min_ms,
                      uint64_t max_ms, uint64_t *ret_ms);
/* A number with decimals, as thousandths (rounded). Bounds likewise. */
int fields_milli(struct fields *f, const char *name, enum field_need need, uint64_t min,
                 uint64_t max, uint64_t *ret);
int fields_bool(struct fields *f, const char *name, enum field_need need, bool *ret);
/* One of `names` (ends with NULL); *ret is its index. */
int fields_enum(struct fields *f, const char *name, enum field_need need, const char *const *names,
                unsigned *ret);
/* A file mode: a string of one to four octal digits, "0644". */
int fields_mode(struct fields *f, const char *name, enum field_need need, uint32_t *ret);
/* Standard base64 with padding, at most `max` bytes when decoded, appended to `out`. */
int fields_base64(struct fields *f, const char *name, enum field_need need, size_t max,
                  struct buf *out);
/* An array of `min` to `max` strings of at most `item_max` bytes each, added to `out`. */
int fields_str_list(struct fields *f, const char *name, enum field_need need, size_t min,
                    size_t max, size_t item_max, struct msg_list_writer *out);
/* An object of strings, added to `set` as NAME=VALUE. Names are [A-Za-z_][A-Za-z0-9_]*. With
 * `unset`, a null value is fine and adds the name there. */
int fields_env(struct fields *f, const char *name, enum field_need need,
               struct msg_list_writer *set, struct msg_list_writer *unset);
/* An object of strings (at most `max`, keys of 1 to 128 bytes), appended to `out` as compact JSON
 * of at most `max_bytes`. */
int fields_strings(struct fields *f, const char *name, enum field_need need, size_t max,
                   size_t max_bytes, struct buf *out);
/* A member of any kind, appended to `out` as compact JSON of at most `max_bytes`. */
int fields_json(struct fields *f, const char *name, enum field_need need, size_t max_bytes,
                struct buf *out);
/* A nested object, to be read in the same way; freed with f. NULL when it is absent. */
struct fields *fields_object(struct fields *f, const char *name, enum field_need need);
/* The i-th object of an array of at most `max`, likewise. NULL: there is none, and no more. */
struct fields *fields_item(struct fields *f, const char *name, size_t max, size_t i);

/* The kind of the member. Counts as asked for. */
enum field_kind fields_kind(struct fields *f, const char *name);
#define fields_has(f, name) (fields_kind(f, name) != FIELD_ABSENT)
/* Whether it is there and null, where that is not the same as absent. */
bool fields_is_null(struct fields *f, const char *name);
/* Refuses a member for a reason of the handler's own: "NAME: TEXT". Returns 0, as a getter does. */
int fields_refuse(struct fields *f, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* 0, or -1 with the first error. May be called again. */
int fields_finish(struct fields *f, struct pd_err *e);
/* The same for this object alone: its unknown members are refused, also when the text is open. */
int fields_finish_object(struct fields *f, struct pd_err *e);
/* The full name of the member that the error is about, such as "limits.pids"; NULL when there is
 * no error, or none of a single member. */
const char *fields_bad(const struct fields *f);
