/* A piece may be cut anywhere, and so may its head: what is not complete is remembered. */
#include "engine/docker_frames.h"

#include "base/banned.h"
#include "base/err.h"

#include <string.h>

#define PART_MOST (1u << 20) /* what is told at once, so that it fits an int */

int docker_frames_next(struct docker_frames *f, const uint8_t *data, size_t len, unsigned *ret_kind,
                       const uint8_t **ret_part, size_t *ret_len, struct pd_err *e)
{
    size_t used = 0;

    *ret_len = 0;
    if (f->left == 0) {
        used = sizeof f->head - f->have < len ? sizeof f->head - f->have : len;
        memcpy(f->head + f->have, data, used);
        f->have += (unsigned)used;
        if (f->have < sizeof f->head)
            return (int)used;
        if (f->head[0] > DOCKER_STDERR || f->head[1] || f->head[2] || f->head[3])
            return pd_fail(e, PD_PROTOCOL, "the engine's stream has no frames");
        f->have = 0;
        f->left = (uint32_t)f->head[4] << 24 | (uint32_t)f->head[5] << 16 |
                  (uint32_t)f->head[6] << 8 | f->head[7];
    }

    size_t part = len - used < f->left ? len - used : f->left;
    part = part < PART_MOST ? part : PART_MOST;
    *ret_kind = f->head[0];
    *ret_part = data + used;
    *ret_len = part;
    f->left -= (uint32_t)part;
    return (int)(used + part);
}
