/* codec: how wire formats are written and read, for msg.c and record.c.
 *
 * Each format is described once, by a function that visits its fields in order with a `struct
 * codec`. The codec either appends or reads, so encoder and decoder cannot drift apart. Integers
 * travel in host order: both ends are the same machine. A read that does not fit marks the codec as
 * bad and gives zeros; one check at the end is enough. */
#pragma once

#include "base/buf.h"

#include <stdint.h>
#include <string.h>

struct codec {
    struct buf *out; /* encoding when set */
    const uint8_t *in;
    size_t left;
    int bad;
};

static inline void field_bytes(struct codec *c, void *value, size_t len)
{
    if (c->out) {
        buf_put(c->out, value, len);
    } else if (c->bad || c->left < len) {
        c->bad = 1;
        memset(value, 0, len);
    } else {
        memcpy(value, c->in, len);
        c->in += len;
        c->left -= len;
    }
}

static inline void field_u32(struct codec *c, uint32_t *v)
{
    field_bytes(c, v, sizeof *v);
}

static inline void field_i32(struct codec *c, int32_t *v)
{
    field_bytes(c, v, sizeof *v);
}

static inline void field_u64(struct codec *c, uint64_t *v)
{
    field_bytes(c, v, sizeof *v);
}

/* An enum travels as u32 and must be below `count`. */
static inline void field_enum(struct codec *c, uint32_t *v, uint32_t count)
{
    field_u32(c, v);
    if (!c->out && *v >= count)
        c->bad = 1;
}

/* A string: length without the NUL, the bytes, the NUL. */
static inline void field_str(struct codec *c, const char **v, uint32_t max)
{
    if (c->out) {
        size_t len = strlen(*v);
        uint32_t told = (uint32_t)len;
        if (len > max) {
            c->out->overflow = 1;
            return;
        }
        buf_put(c->out, &told, sizeof told);
        buf_put(c->out, *v, len + 1);
        return;
    }
    uint32_t len = 0;
    field_u32(c, &len);
    if (c->bad || len > max || c->left <= len || memchr(c->in, 0, (size_t)len + 1) != c->in + len) {
        c->bad = 1;
        *v = "";
        return;
    }
    *v = (const char *)c->in;
    c->in += len + 1;
    c->left -= len + 1;
}
