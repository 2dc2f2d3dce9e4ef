/* session_life: what a sandbox is just now, and what it may become. For the session layer alone.
 *
 *   new ----> filling -> warming -> ready            kept warm, nobody's: pool.c
 *    |           |          |         |
 *    |           `-> spoilt <'        |
 *    |                 |              |
 *    `-----------------|----> creating ----> running <-> paused <-> asleep
 *                      |       |     |          |          |          |
 *                      |       | cancelled -----|          |          |
 *                      v       v                v          v          v
 *                     discarding             stopping <---------------'
 *                         |                     |
 *                     discarded                gone
 *
 * A sandbox that is being made belongs to whoever makes it. Its end is only asked for meanwhile
 * (cancelled, or spoilt in the pool), and the maker, who finds that out at his last step, takes it
 * away. So there is one owner of the box at every moment, and a sandbox whose end was told never
 * runs.
 *
 * What is counted: a sandbox takes a place (of the server and of its tenant) when a request gets
 * it, and gives it back when it is gone or discarded. session_step() alone does both. */
#pragma once

#include "core/session.h"

enum life {
    LIFE_NEW,        /* in no table yet */
    LIFE_FILLING,    /* the pool makes its box */
    LIFE_WARMING,    /* the pool runs something in it */
    LIFE_SPOILT,     /* the pool is to take it away */
    LIFE_READY,      /* waits in the pool, or an earlier daemon left it half made */
    LIFE_CREATING,   /* a request makes it, or has taken it from the pool */
    LIFE_CANCELLED,  /* its end was asked for: its maker is to take it away */
    LIFE_RUNNING,    /* anybody who may can use it */
    LIFE_PAUSED,     /* its processes stand still */
    LIFE_ASLEEP,     /* it has files, but no box */
    LIFE_STOPPING,   /* it is being taken away */
    LIFE_GONE,       /* it is remembered */
    LIFE_DISCARDING, /* it is being taken away, and nobody's: its creation failed */
    LIFE_DISCARDED,
    LIFE_COUNT
};
const char *life_name(enum life l);

/* Is it being made, by somebody who will look at it once more? */
bool life_is_making(enum life l);
/* Is it being taken away, or asked to be? */
bool life_is_ending(enum life l);
bool life_is_over(enum life l);
/* Is it somebody's, so that it is found and listed? */
bool life_is_owned(enum life l);
/* As clients see it, and as the row in the store says. */
enum session_state life_state(enum life l);

/* Every change of a session's life, of `owned`, of info.state and of the counts. With the session's
 * lock held, and with sessions.lock where the step changes who finds it or what is counted: to or
 * from anything but running, paused, asleep and stopping. -1, and nothing has changed: the step is
 * not one of those above, which is a mistake of the caller (a test build aborts). */
int session_step(struct session *s, enum life to);
