/* way: a connection to the far end of a link, not blocking: of somebody in the box, whose bytes are
 * the link's, or of somebody who dialled it, with a WebSocket around them (dialled.h). */
#pragma once

#include "box/dialled.h"

#include <sys/types.h>

struct way {
    int fd;                  /* -1: none */
    struct dialled *dialled; /* NULL: somebody in the box */
    const uint8_t *raw;      /* bytes that came, the caller's */
    size_t len;              /* how many of them are not looked at */
};

/* Takes the descriptor over. `target` is for dialled_begin; NULL: somebody in the box. -1 without
 * memory: it is closed. */
int way_open(struct way *w, int fd, const char *target);
void way_close(struct way *w);

/* Receives into `room`, which must stay until way_next gives 0. False when the other end is gone.
 */
bool way_hear(struct way *w, uint8_t *room, size_t size);
/* The next piece of the link's in what was received: 1, 0 when there is no more, -1 when the
 * connection is to be closed. */
int way_next(struct way *w, const uint8_t **ret, size_t *ret_len);

/* Can anything of the link's be sent yet? */
bool way_is_open(const struct way *w);
/* Sends; how many bytes were taken, 0 when there is no room, -1 when the other end is gone. */
ssize_t way_say(struct way *w, const uint8_t *data, size_t len);
/* Sends what is left of earlier. False when the other end is gone. */
bool way_flush(struct way *w);
/* Is something left? */
bool way_waits(const struct way *w);
