/* execution: running code in a context for a client, as a stream of lines or as one answer. What
 * v1 and the E2B door share. */
#pragma once

#include "api/call.h"
#include "core/context_json.h"

enum execution_shape { SHAPE_LINES, SHAPE_EVENTS }; /* NDJSON, or server-sent events */

struct execution_answer {
    struct context *context;
    struct execution *execution;
    bool owned; /* this request has submitted it */
    bool keeps; /* it goes on when the client leaves */
    enum execution_form form;
    enum execution_shape shape;
    uint64_t keepalive_ns;  /* a line after so much silence */
    const uint64_t *offset; /* where to begin, or NULL */
    uint64_t output_max;    /* bytes of each output in one answer */
};

/* The execution as it comes. -1 before the answer has begun, and when the sandbox has gone. */
int execution_stream(struct call *c, const struct execution_answer *a, struct pd_err *e);
/* The whole of it in one answer. `waits`: when it has ended; otherwise as it is now. */
int execution_whole(struct call *c, const struct execution_answer *a, bool waits, struct pd_err *e);
