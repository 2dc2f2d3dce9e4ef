/* The reader of event streams (text/event-stream): bytes become lines, whatever their ends, and
 * lines become events. An event lives in the reader until the next call. */
#include "client/events.h"

#include "base/banned.h"
#include "base/err.h"

void event_reader_done(struct event_reader *r)
{
    buf_done(&r->line);
    buf_done(&r->type);
    buf_done(&r->data);
    buf_done(&r->id);
}

static int is_field(const char *line, size_t name_len, const char *name)
{
    return strlen(name) == name_len && !memcmp(line, name, name_len);
}

/* A line that is not empty. Unknown fields and comments are passed over, as the format says. */
static void take_field(struct event_reader *r, const char *line, size_t len)
{
    const char *colon = memchr(line, ':', len);
    size_t name_len = colon ? (size_t)(colon - line) : len;
    const char *value = colon ? colon + 1 : line + len;

    if (value < line + len && *value == ' ')
        value++;
    size_t value_len = (size_t)(line + len - value);

    if (is_field(line, name_len, "data")) {
        if (r->has_data)
            buf_putc(&r->data, '\n');
        buf_put(&r->data, value, value_len);
        r->has_data = 1;
    } else if (memchr(value, 0, value_len)) {
        return; /* both become C strings */
    } else if (is_field(line, name_len, "event")) {
        buf_clear(&r->type);
        buf_put(&r->type, value, value_len);
    } else if (is_field(line, name_len, "id")) {
        buf_clear(&r->id);
        buf_put(&r->id, value, value_len);
    }
}

static int overflowed(const struct event_reader *r)
{
    return r->line.overflow || r->data.overflow || r->type.overflow || r->id.overflow;
}

/* Ends the line that was collected. 1: with it an event is complete. */
static int take_line(struct event_reader *r)
{
    size_t len = r->line.len;
    if (len) {
        take_field(r, (const char *)r->line.data, len);
        buf_clear(&r->line);
        return 0;
    }

    if (!r->has_data)
        buf_clear(&r->type);
    return r->has_data;
}

int event_reader_next(struct event_reader *r, const char *data, size_t len, size_t *ret_used,
                      struct event *ret, struct pd_err *e)
{
    if (r->is_given) { /* the event before was given away */
        buf_clear(&r->data);
        buf_clear(&r->type);
        r->is_given = r->has_data = 0;
    }

    size_t at = 0;
    while (at < len) {
        if (r->skip_lf && data[at] == '\n') {
            r->skip_lf = 0;
            at++;
            continue;
        }

        r->skip_lf = 0;
        size_t n = 0;
        while (at + n < len && data[at + n] != '\n' && data[at + n] != '\r')
            n++;
        buf_put(&r->line, data + at, n);
        at += n;
        if (at == len || r->line.overflow)
            break;

        r->skip_lf = data[at++] == '\r';
        int complete = take_line(r);
        if (overflowed(r))
            break;
        if (!complete)
            continue;

        const char *type = r->type.len ? buf_cstr(&r->type) : "message";
        const char *id = buf_cstr(&r->id), *text = buf_cstr(&r->data);
        if (!type || !id || !text)
            break;

        r->is_given = 1;
        *ret = (struct event){.type = type, .data = text, .data_len = r->data.len, .id = id};
        *ret_used = at;
        return 1;
    }

    if (overflowed(r))
        return pd_fail(e, PD_PROTOCOL, "the server sent an event of more than %u bytes",
                       EVENT_LINE_MAX);

    *ret_used = at;
    return 0;
}
