/* Creating a sandbox on a terminal: while its image is fetched, one line says how far it is. The
 * server is asked for events, and answers with them only if there is something to tell of. */
#include "client/client.h"

#include "base/banned.h"
#include "base/err.h"
#include "client/events.h"
#include "client/text.h"

#include <jansson.h>
#include <stdbool.h>

#define CLEAR_LINE "\r\033[K"

/* An answer that is being read. */
struct creation {
    json_t *made;
    bool failed; /* the server's error is the caller's */
};

static void show(const json_t *pull)
{
    const char *image = json_field(pull, "image");
    json_int_t done = json_field_int(pull, "bytes_done"), bytes = json_field_int(pull, "bytes");
    auto_buf name = BUF_INIT(4096);

    text_escape(&name, image, strnlen(image, 100));
    fprintf(stderr, CLEAR_LINE "pulling %s: %lld/%lld layers", buf_cstr(&name),
            (long long)json_field_int(pull, "layers_done"),
            (long long)json_field_int(pull, "layers"));
    if (bytes > 0 && done >= 0 && done <= bytes)
        fprintf(stderr, ", %d%% of %.1f MB", (int)((double)done * 100 / (double)bytes),
                (double)bytes / 1e6);
    (void)fflush(stderr);
}

static int take_event(struct creation *c, const struct event *v, struct pd_err *e)
{
    json_t *data = json_loadb(v->data, v->data_len, JSON_ALLOW_NUL, NULL);
    if (!data)
        return pd_fail(e, PD_PROTOCOL, "the server tells of a creation in what is not JSON");

    if (!strcmp(v->type, "created") && !c->made) {
        c->made = data;
        return 0;
    }
    if (!strcmp(v->type, "image.pull"))
        show(data);
    else if (!strcmp(v->type, "error"))
        c->failed = remote_error(data, 500, e) < 0;
    json_decref(data);
    return c->failed ? -1 : 0;
}

static int read_events(struct remote *r, struct creation *c, struct pd_err *e)
{
    auto_event_reader reader = EVENT_READER_INIT;
    char bytes[4096];
    ssize_t n;

    while ((n = remote_read(r, bytes, sizeof bytes, e)) > 0) {
        size_t used;
        for (const char *at = bytes; n > 0; at += used, n -= (ssize_t)used) {
            struct event v;
            int got = event_reader_next(&reader, at, (size_t)n, &used, &v, e);
            if (got < 0 || (got > 0 && take_event(c, &v, e) < 0))
                return -1;
        }
    }
    if (n == 0 && !c->made)
        return pd_fail(e, PD_LOST, "the server left before the sandbox was made");
    return n < 0 ? -1 : 0;
}

int create_on_terminal(struct remote *r, struct remote_request *q, json_t **ret, struct pd_err *e)
{
    struct creation c = {0};
    q->accept = "application/json, text/event-stream";
    if (remote_begin(r, q, e) < 0 || remote_answer(r, e) < 0)
        return -1;

    int result;
    if (!strncmp(remote_header(r, "Content-Type"), "text/event-stream", 17)) {
        result = read_events(r, &c, e);
        fputs(CLEAR_LINE, stderr);
    } else {
        result = remote_json(r, &c.made, e);
    }

    if (result < 0)
        json_decref(c.made);
    else
        *ret = c.made;
    return result;
}
