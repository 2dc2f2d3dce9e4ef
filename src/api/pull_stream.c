/* A creation as an event stream. The head of the answer goes out with the first news of a pull: a
 * sandbox whose image is there already is answered as JSON, and so is a refusal before that.
 *
 * Events come on the request's own thread, which waits for the provider meanwhile. A client that
 * has gone away is not written to again; its sandbox is made, as without events. */
#include "api/sandbox.h"

#include "base/banned.h"
#include "base/json.h"

static void give(struct pull_stream *p, struct buf *out)
{
    struct pd_err e;
    buf_puts(out, "\n\n");
    if (!p->failed && (out->overflow || reply_write(p->c->r, out->data, out->len, &e) < 0))
        p->failed = true;
}

static void told(void *arg, struct session *s, const char *image, const struct msg_progress *now)
{
    struct pull_stream *p = arg;
    struct session_info i;
    struct pd_err e;
    session_get(s, &i);

    if (!p->begun) {
        reply_header(p->c->r, "Cache-Control", "no-store");
        p->failed = reply_begin(p->c->r, 200, "text/event-stream", REPLY_CHUNKED, &e) < 0;
        p->begun = true;
    }

    auto_buf out = BUF_INIT(8192);
    struct json j = JSON_INIT(&out);
    buf_puts(&out, "event: image.pull\ndata: ");
    json_open(&j, '{');
    json_member_cstr(&j, "id", i.id);
    json_member_cstr(&j, "image", image);
    json_member_uint(&j, "layers_done", now->layers_done);
    json_member_uint(&j, "layers", now->layers);
    json_member_uint(&j, "bytes_done", now->bytes_done);
    json_member_uint(&j, "bytes", now->bytes);
    json_close(&j, '}');
    give(p, &out);
}

void pull_stream_init(struct pull_stream *p, struct call *c, struct session_request *r)
{
    *p = (struct pull_stream){.c = c};
    if (call_accepts(c, "text/event-stream"))
        r->pull_watch = (struct pull_watch){.told = told, .arg = p};
}

static void put_error(struct buf *out, const struct pd_err *e)
{
    struct json j = JSON_INIT(out);
    buf_puts(out, "event: error\ndata: ");
    json_open(&j, '{');
    json_key(&j, "error");
    json_open(&j, '{');
    json_member_cstr(&j, "code", pd_code_name(e->code));
    json_member_cstr(&j, "message", e->msg);
    json_key(&j, "details");
    json_open(&j, '{');
    json_close(&j, '}');
    json_close(&j, '}');
    json_close(&j, '}');
}

int pull_stream_end(struct pull_stream *p, struct session *s, const struct queue_place *place,
                    const struct pd_err *e)
{
    auto_buf out = BUF_INIT(64u << 10);
    struct json j = JSON_INIT(&out);
    struct pd_err ignored;

    if (s) {
        buf_puts(&out, "event: created\ndata: ");
        sandbox_json(&j, s, place);
    } else {
        put_error(&out, e);
    }

    give(p, &out);
    if (p->failed || reply_end(p->c->r, &ignored) < 0)
        reply_abort(p->c->r);
    return s ? 0 : -1;
}
