/* client_events: reads an event stream (text/event-stream), piece by piece. Pure. */
#pragma once

#include "base/buf.h"

struct pd_err;

#define EVENT_LINE_MAX (4u << 20)

/* One event. The strings live until the next call. */
struct event {
    const char *type; /* "message" unless given */
    const char *data; /* lines joined by \n */
    size_t data_len;
    const char *id; /* the last one seen, or "" */
};

struct event_reader {
    struct buf line, type, data, id;
    int has_data, skip_lf, is_given;
};

#define EVENT_READER_INIT                                                                          \
    ((struct event_reader){.line = BUF_INIT(EVENT_LINE_MAX),                                       \
                           .type = BUF_INIT(256),                                                  \
                           .data = BUF_INIT(EVENT_LINE_MAX),                                       \
                           .id = BUF_INIT(256)})
void event_reader_done(struct event_reader *r);
#define auto_event_reader __attribute__((cleanup(event_reader_done))) struct event_reader

/* Takes from data[0..len) up to the end of the next event. Returns 1 with *ret and the bytes used,
 * 0 when all was used and no event is complete, -1 (PD_PROTOCOL) when a line is too long. An event
 * that the stream's end cut off is never given. */
int event_reader_next(struct event_reader *r, const char *data, size_t len, size_t *ret_used,
                      struct event *ret, struct pd_err *e);
