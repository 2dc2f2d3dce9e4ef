/* Records: the answers of a worker, as length, kind and payload on a pipe. They come from inside of
 * a sandbox, so all of it is hostile: lengths are bounded before memory is taken, enums are
 * checked, and a record is handed out only when every byte of it was good. */
#include "wire/record.h"

#include "base/banned.h"
#include "base/err.h"
#include "wire/codec.h"

#include <errno.h>
#include <poll.h>

#define HEAD (2 * sizeof(uint32_t))

static void field_data(struct codec *c, const uint8_t **data, uint32_t *len, uint32_t max)
{
    field_u32(c, len);
    if (c->out) {
        if (*len > max)
            c->out->overflow = 1;
        else
            buf_put(c->out, *data, *len);
        return;
    }

    if (c->bad || *len > max || c->left < *len) {
        c->bad = 1;
        *len = 0;
        return;
    }

    *data = c->in;
    c->in += *len;
    c->left -= *len;
}

static void visit_entry(struct codec *c, struct record_entry *r)
{
    field_enum(c, &r->type, ENTRY_TYPE_COUNT);
    field_enum(c, &r->mode, 010000);
    field_u32(c, &r->uid);
    field_u32(c, &r->gid);
    field_u64(c, &r->size);
    field_bytes(c, &r->mtime_ns, sizeof r->mtime_ns);
    field_str(c, &r->path, RECORD_PATH_MAX);
    field_str(c, &r->target, RECORD_LINK_MAX);
}

/* Strings in pairs, each with its NUL. */
static int are_pairs(const uint8_t *data, uint32_t len)
{
    unsigned ends = 0;
    for (uint32_t i = 0; i < len; i++)
        ends += !data[i];
    return !len || (!data[len - 1] && ends % 2 == 0);
}

static void visit_detail(struct codec *c, struct record_detail *r)
{
    visit_entry(c, &r->entry);
    field_enum(c, &r->end_type, ENTRY_TYPE_COUNT + 1);
    field_enum(c, &r->end_mode, 010000);
    field_str(c, &r->end_path, RECORD_LINK_MAX);
    field_data(c, &r->attrs, &r->attrs_len, RECORD_ATTRS_MAX);
    if (!c->out && !c->bad && !are_pairs(r->attrs, r->attrs_len))
        c->bad = 1;
}

static void visit_match(struct codec *c, struct record_match *r)
{
    field_str(c, &r->path, RECORD_PATH_MAX);
    field_u64(c, &r->line);
    field_u64(c, &r->column);
    field_u64(c, &r->offset);
    field_str(c, &r->text, RECORD_TEXT_MAX);
}

static void visit_replaced(struct codec *c, struct record_replaced *r)
{
    field_str(c, &r->path, RECORD_PATH_MAX);
    field_u64(c, &r->count);
}

static void visit_event(struct codec *c, struct record_event *r)
{
    field_enum(c, &r->kind, EVENT_KIND_COUNT);
    field_enum(c, &r->is_dir, 2);
    field_str(c, &r->path, RECORD_PATH_MAX);
    field_str(c, &r->path2, RECORD_PATH_MAX);
}

static void visit_port(struct codec *c, struct record_port *r)
{
    field_enum(c, &r->port, 65536);
    field_enum(c, &r->pid, (uint32_t)INT32_MAX);
    field_str(c, &r->address, 63);
    field_str(c, &r->command, 255);
}

static void visit_process(struct codec *c, struct record_process *r)
{
    field_enum(c, &r->pid, (uint32_t)INT32_MAX);
    field_enum(c, &r->parent, (uint32_t)INT32_MAX);
    field_u32(c, &r->uid);
    field_u32(c, &r->threads);
    field_enum(c, &r->state, 127);
    field_u64(c, &r->cpu_ms);
    field_u64(c, &r->memory);
    field_u64(c, &r->age_ms);
    field_str(c, &r->command, RECORD_TEXT_MAX);
}

static void visit_tar_done(struct codec *c, struct record_tar_done *r)
{
    field_u64(c, &r->entries);
    field_u64(c, &r->bytes);
}

static void visit_value(struct codec *c, struct record_value *r)
{
    field_str(c, &r->name, 255);
    field_data(c, &r->data, &r->len, RECORD_VALUE_MAX);
}

static void visit_more(struct codec *c, struct record_more *r)
{
    field_str(c, &r->cursor, RECORD_PATH_MAX);
}

static void visit_error(struct codec *c, struct record_error *r)
{
    field_enum(c, &r->code, PD_CODE_COUNT);
    field_bytes(c, &r->sys, sizeof r->sys);
    field_str(c, &r->text, sizeof((struct pd_err *)0)->msg - 1);
}

static void visit(struct codec *c, struct record *r)
{
    switch (r->kind) {
    case RECORD_ENTRY:
        visit_entry(c, &r->entry);
        return;
    case RECORD_DETAIL:
        visit_detail(c, &r->detail);
        return;
    case RECORD_MATCH:
        visit_match(c, &r->match);
        return;
    case RECORD_REPLACED:
        visit_replaced(c, &r->replaced);
        return;

    case RECORD_EVENT:
        visit_event(c, &r->event);
        return;
    case RECORD_PORT:
        visit_port(c, &r->port);
        return;
    case RECORD_PROCESS:
        visit_process(c, &r->process);
        return;
    case RECORD_TAR_DONE:
        visit_tar_done(c, &r->tar_done);
        return;
    case RECORD_VALUE:
        visit_value(c, &r->value);
        return;

    case RECORD_MORE:
        visit_more(c, &r->more);
        return;
    case RECORD_ERROR:
        visit_error(c, &r->error);
        return;
    case RECORD_END:
        return;
    default:
        c->bad = 1;
    }
}

void record_encode(struct buf *b, const struct record *r)
{
    struct codec c = {.out = b};
    struct record copy = *r;
    uint32_t head[2] = {0, r->kind};
    size_t start = b->len;

    buf_put(b, head, sizeof head);
    visit(&c, &copy);

    if (c.bad || b->overflow || b->len - start - HEAD > RECORD_MAX) {
        b->overflow = 1;
        return;
    }

    head[0] = (uint32_t)(b->len - start - HEAD);
    memcpy(b->data + start, head, sizeof head);
}

int record_decode(uint32_t kind, const uint8_t *payload, size_t len, struct record *ret,
                  struct pd_err *e)
{
    struct codec c = {.in = payload, .left = len};
    struct record r = {.kind = (enum record_kind)kind};

    if (len > RECORD_MAX)
        return pd_fail(e, PD_PROTOCOL, "record of %zu bytes: at most %u", len, RECORD_MAX);

    visit(&c, &r);
    if (c.bad || c.left)
        return pd_fail(e, PD_PROTOCOL, "malformed record of kind %u and %zu bytes", kind, len);

    *ret = r;
    return 0;
}

/* Reads what is there, waiting for the first byte. Bytes, 0 at the end, -1. */
static ssize_t read_some(int fd, void *out, size_t size, deadline d, struct pd_err *e)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int n = poll(&p, 1, deadline_poll_ms(d));
        if (n == 0)
            return pd_fail(e, PD_TIMEOUT, "no answer of the sandbox before the deadline");
        if (n < 0 && errno != EINTR)
            return pd_fail_sys(e, "wait for a record");

        ssize_t got = n < 0 ? -1 : read(fd, out, size);
        if (got >= 0)
            return got;
        if (errno != EINTR && errno != EAGAIN)
            return pd_fail_sys(e, "read a record");
    }
}

static int check_head(const uint32_t head[2], struct pd_err *e)
{
    if (head[0] > RECORD_MAX || head[1] == 0 || head[1] >= RECORD_KIND_COUNT)
        return pd_fail(e, PD_PROTOCOL, "no record: kind %u, %u bytes", head[1], head[0]);
    return 0;
}

static int cut_off(struct pd_err *e)
{
    return pd_fail(e, PD_PROTOCOL, "the sandbox ended its answer in the middle of a record");
}

/* Exactly `len` bytes. 1, 0 when the end came before the first one, -1. */
static int read_exactly(int fd, void *out, size_t len, deadline d, struct pd_err *e)
{
    size_t have = 0;
    while (have < len) {
        ssize_t n = read_some(fd, (uint8_t *)out + have, len - have, d, e);
        if (n < 0)
            return -1;
        if (n == 0)
            return have ? cut_off(e) : 0;
        have += (size_t)n;
    }
    return 1;
}

int record_read(int fd, struct buf *scratch, struct record *ret, deadline d, struct pd_err *e)
{
    uint32_t head[2];

    int r = read_exactly(fd, head, sizeof head, d, e);
    if (r <= 0)
        return r;
    if (check_head(head, e) < 0)
        return -1;

    buf_clear(scratch);
    uint8_t *room = buf_reserve(scratch, head[0] ? head[0] : 1);
    if (!room)
        return pd_fail(e, PD_CAPACITY, "no memory for a record");

    r = read_exactly(fd, room, head[0], d, e);
    if (r <= 0)
        return r < 0 ? -1 : cut_off(e);

    scratch->len = head[0];
    return record_decode(head[1], room, head[0], ret, e) < 0 ? -1 : 1;
}

void record_stream_done(struct record_stream *s)
{
    buf_done(&s->in);
    s->used = 0;
}

int record_next(struct record_stream *s, struct record *ret, deadline d, struct pd_err *e)
{
    struct buf *b = &s->in;

    for (;;) {
        size_t left = b->len - s->used;
        uint32_t head[2];
        if (left >= HEAD) {
            memcpy(head, b->data + s->used, sizeof head);
            if (check_head(head, e) < 0)
                return -1;
            if (left >= HEAD + head[0]) {
                const uint8_t *payload = b->data + s->used + HEAD;
                s->used += HEAD + head[0];
                return record_decode(head[1], payload, head[0], ret, e) < 0 ? -1 : 1;
            }
        }

        if (s->used) {
            memmove(b->data, b->data + s->used, left);
            b->len = left;
            s->used = 0;
        }

        /* A whole record and its head fit behind what is left of one. */
        uint8_t *room = buf_reserve(b, RECORD_MAX - HEAD);
        if (!room)
            return pd_fail(e, PD_CAPACITY, "no memory for records");
        ssize_t n = read_some(s->fd, room, RECORD_MAX - HEAD, d, e);
        if (n < 0)
            return -1;
        if (n == 0)
            return b->len ? cut_off(e) : 0;
        b->len += (size_t)n;
    }
}

int record_raise(const struct record *r, const char *what, struct pd_err *e)
{
    if (r->kind != RECORD_ERROR)
        return pd_fail(e, PD_PROTOCOL, "%s: an answer of kind %u, which makes no sense", what,
                       (unsigned)r->kind);

    pd_fail(e, (enum pd_code)r->error.code, "%s", r->error.text);
    if (e)
        e->sys = r->error.sys;
    return -1;
}

int record_attr_next(const struct record_detail *r, uint32_t *pos, const char **ret_name,
                     const char **ret_value)
{
    if (*pos >= r->attrs_len)
        return 0;

    const char *name = (const char *)r->attrs + *pos, *value = name + strlen(name) + 1;
    *pos += (uint32_t)(strlen(name) + strlen(value) + 2);
    *ret_name = name;
    *ret_value = value;
    return 1;
}

const char *entry_type_name(uint32_t type)
{
    static const char *const names[ENTRY_TYPE_COUNT] = {"file", "dir",    "symlink",
                                                        "fifo", "socket", "device"};
    return names[type < ENTRY_TYPE_COUNT ? type : ENTRY_FILE];
}

const char *event_kind_name(uint32_t kind)
{
    static const char *const names[EVENT_KIND_COUNT] = {
        "created", "modified", "removed", "moved", "attributes", "overflow", "mark"};
    return names[kind < EVENT_KIND_COUNT ? kind : EVENT_OVERFLOW];
}
