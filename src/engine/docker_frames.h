/* docker_frames: the stream of an exec or attach without a terminal. The engine puts a head of
 * eight bytes before each piece: 1 is standard output, 2 standard error. Pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pd_err;

enum { DOCKER_STDIN, DOCKER_STDOUT, DOCKER_STDERR };

struct docker_frames {
    uint8_t head[8];
    unsigned have; /* bytes of it */
    uint32_t left; /* of the piece that has begun */
};

/* The next part of a piece in these bytes: which stream's, where and how long (0: there is none
 * yet). Returns how many bytes were used, or -1 with PD_PROTOCOL. */
int docker_frames_next(struct docker_frames *f, const uint8_t *data, size_t len, unsigned *ret_kind,
                       const uint8_t **ret_part, size_t *ret_len, struct pd_err *e);
