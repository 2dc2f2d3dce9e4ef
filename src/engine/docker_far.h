/* docker_far: containers of an engine on another machine, as paddock-box needs them. */
#pragma once

#include "base/clock.h"

struct docker;
struct http_stream;
struct pd_err;

/* A stream to the far end of the link in a container, by an exec of `paddock-box join`; what it
 * carries is docker_frames'. NULL: PD_NOT_FOUND or PD_LOST when there is no such container any
 * more, or it has ended; anything else may pass. */
struct http_stream *docker_join(struct docker *d, const char *name, deadline t, struct pd_err *e);
/* Lets a container go on that was paused; fine when it was not. */
int docker_unpause(struct docker *d, const char *name, deadline t, struct pd_err *e);
