/* json: writing JSON text into a buf. Reading is another module's business.
 *
 * The writer keeps the commas right; the caller keeps the nesting right. Overflow shows in the
 * buf, as always. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

struct json {
    struct buf *out;
    int need_comma;
    bool ascii; /* whatever is beyond ASCII is escaped */
};

#define JSON_INIT(buf) ((struct json){.out = (buf)})

void json_open(struct json *j, char bracket);  /* '{' or '[' */
void json_close(struct json *j, char bracket); /* '}' or ']' */
void json_key(struct json *j, const char *key);

/* A string. Bytes that are no valid UTF-8 become U+FFFD. Control characters are escaped, those from
 * U+0080 on too, and U+2028 and U+2029, where some programs end a line. */
void json_str(struct json *j, const void *text, size_t len);
/* The same in pieces, none of which ends inside a character. */
void json_str_begin(struct json *j);
void json_str_more(struct json *j, const void *text, size_t len);
void json_str_end(struct json *j);
void json_cstr(struct json *j, const char *text); /* NULL is written as null */
void json_int(struct json *j, int64_t v);
void json_uint(struct json *j, uint64_t v);
void json_bool(struct json *j, int v);
void json_none(struct json *j);
/* A number with three decimals, given in thousandths. */
void json_milli(struct json *j, uint64_t thousandths);

/* A member: its key and its value. */
void json_member_cstr(struct json *j, const char *key, const char *text);
void json_member_int(struct json *j, const char *key, int64_t v);
void json_member_uint(struct json *j, const char *key, uint64_t v);
void json_member_bool(struct json *j, const char *key, int v);
void json_member_milli(struct json *j, const char *key, uint64_t thousandths);
