/* multipart: reads multipart/form-data as it comes, in pieces of any size. Pure.
 *
 *     struct multipart m;
 *     multipart_init(&m, boundary);
 *     while (there are bytes) {
 *         event = multipart_next(&m, data, len, &used, &slice, e);
 *         data += used, len -= used;
 *         ...
 *     }
 *     if (!m.done) it was cut off
 *
 * The contents of parts are not kept: they are handed on as slices of what came (or of the
 * boundary, when that turned out to be none). What is kept is bounded: one boundary, and the
 * headers of one part. Wherever the input is cut, the events are the same, except for where data is
 * cut.
 *
 * Strict where programs differ: lines end with CRLF, headers are not folded, a boundary is
 * followed by nothing but blanks. Text before the first boundary and behind the last one is
 * ignored, as the standard has it. */
#pragma once

#include "base/buf.h"
#include "net/http.h"

struct pd_err;

#define MULTIPART_BOUNDARY_MAX 70u         /* as the standard has it */
#define MULTIPART_HEAD_MAX     (16u << 10) /* of one part: a path may be 4 KiB, escaped thrice */

enum multipart_event {
    MULTIPART_MORE, /* nothing, so far */
    MULTIPART_PART, /* a part begins: m->name, m->filename */
    MULTIPART_DATA, /* some of its contents, at least a byte */
    MULTIPART_PART_END,
    MULTIPART_END, /* the last boundary */
};

struct multipart {
    int state;
    int done;
    char delimiter[MULTIPART_BOUNDARY_MAX + 5]; /* CRLF, "--", the boundary */
    size_t delimiter_len;
    size_t matched; /* bytes of it that were the last ones of what came */
    size_t head_len;
    /* Of the part, when it begins; both with a NUL behind and none inside. `name` "" when it has
     * none. %22, %0D and %0A in a file name are what they stand for; it is UTF-8. */
    const char *name, *filename; /* filename NULL: not given */
    char head[MULTIPART_HEAD_MAX + 1];
};

/* The boundary in a Content-Type such as "multipart/form-data; boundary=x": 1; 0 when the type is
 * another one; -1 when it has none, or no proper one. */
int multipart_boundary(struct slice content_type, char ret[MULTIPART_BOUNDARY_MAX + 1],
                       struct pd_err *e);
void multipart_init(struct multipart *m, const char *boundary);
/* Takes from data[0..len), len not 0. *ret_used: how many bytes were taken; it may be
 * that none were, and the next call goes on. *ret_data is written with MULTIPART_DATA. Returns the
 * event or -1 with PD_INVALID, or PD_TOO_LARGE for the headers; then nothing more is to be had. */
int multipart_next(struct multipart *m, const char *data, size_t len, size_t *ret_used,
                   struct slice *ret_data, struct pd_err *e);
