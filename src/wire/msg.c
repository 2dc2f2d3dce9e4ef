/* Payloads of messages. Each message has one visit function that names its fields in order. With a
 * codec that writes it encodes, with one that reads it decodes, so the two cannot drift apart. What
 * is read is bounded and checked field by field, and handed out only when all of it was good. */
#include "wire/msg.h"

#include "base/banned.h"
#include "base/err.h"
#include "wire/codec.h"

#include <stdbool.h>

static void field_id(struct codec *c, struct wire_id *v)
{
    field_bytes(c, v->bytes, sizeof v->bytes);
}

static void field_list(struct codec *c, struct msg_list *l)
{
    field_u32(c, &l->count);
    field_u32(c, &l->bytes);
    if (c->out) {
        buf_put(c->out, l->text, l->bytes);
        return;
    }

    uint32_t nuls = 0;
    if (!c->bad && l->bytes <= c->left && l->count <= MSG_ARGS_MAX)
        for (uint32_t i = 0; i < l->bytes; i++)
            nuls += c->in[i] == 0;

    if (c->bad || l->bytes > c->left || l->count > MSG_ARGS_MAX || nuls != l->count ||
        (l->bytes && c->in[l->bytes - 1] != 0)) {
        c->bad = 1;
        *l = (struct msg_list){.text = ""};
        return;
    }

    l->text = (const char *)c->in;
    c->in += l->bytes;
    c->left -= l->bytes;
}

/* Those fields that every version has. */
static void field_spec_base(struct codec *c, struct spec *s)
{
    uint32_t profile = s->profile, network = s->network, rung = s->min_rung;

    field_enum(c, &profile, PROFILE_COUNT);
    field_enum(c, &network, NETWORK_COUNT);
    field_enum(c, &rung, RUNG_COUNT);
    s->profile = (enum profile)profile;
    s->network = (enum network)network;
    s->min_rung = (enum rung)rung;

    field_u64(c, &s->limits.memory);
    field_u64(c, &s->limits.pids);
    field_u64(c, &s->limits.cpu_milli);
    field_u64(c, &s->limits.disk);
    field_u64(c, &s->limits.files);

    field_str(c, &s->root_dir, SPEC_PATH_MAX);
    field_str(c, &s->root_name, SPEC_NAME_MAX);
}

static void field_spec_binds(struct codec *c, struct spec *s)
{
    field_enum(c, &s->bind_count, SPEC_BINDS_MAX + 1);
    for (uint32_t i = 0; !c->bad && i < s->bind_count; i++) {
        uint32_t writable = (uint32_t)s->binds[i].writable;
        field_str(c, &s->binds[i].source, SPEC_PATH_MAX);
        field_str(c, &s->binds[i].target, SPEC_PATH_MAX);
        field_enum(c, &writable, SPEC_BIND_IDS + 1);
        s->binds[i].writable = (int)writable;
    }
}

static void field_spec(struct codec *c, struct spec *s)
{
    field_spec_base(c, s);
    field_str(c, &s->image, SPEC_IMAGE_MAX);
    field_str(c, &s->options, SPEC_OPTIONS_MAX);
    field_spec_binds(c, s);
}

static void visit_error(struct codec *c, struct msg_error *m)
{
    field_enum(c, &m->code, PD_CODE_COUNT);
    field_i32(c, &m->sys);
    field_str(c, &m->text, sizeof((struct pd_err *)0)->msg - 1);
}

static void visit_welcome(struct codec *c, struct msg_welcome *m)
{
    field_enum(c, &m->rung, RUNG_COUNT);
    field_u32(c, &m->layout);
    field_str(c, &m->instance, MSG_NAME_MAX);
    field_str(c, &m->missing, 255);
}

static void visit_create(struct codec *c, struct msg_create *m)
{
    field_spec(c, &m->spec);
}

static void visit_created(struct codec *c, struct msg_created *m)
{
    field_enum(c, &m->rung, RUNG_COUNT);
    field_i32(c, &m->init_pid);
    field_u32(c, &m->uid_base);
    field_str(c, &m->name, MSG_NAME_MAX);
}

static void visit_destroy(struct codec *c, struct msg_destroy *m)
{
    field_id(c, &m->jail);
    field_enum(c, &m->want_stats, 2);
}

static void visit_gone(struct codec *c, struct msg_gone *m)
{
    field_id(c, &m->jail);
    field_enum(c, &m->how, GONE_COUNT);
    field_u64(c, &m->oom_kills);
    field_u64(c, &m->pids_refused);
    field_u64(c, &m->memory_peak);
    field_u64(c, &m->cpu_usec);
    field_str(c, &m->why, MSG_WHY_MAX);
}

static void visit_progress(struct codec *c, struct msg_progress *m)
{
    field_u32(c, &m->layers_done);
    field_u32(c, &m->layers);
    field_u64(c, &m->bytes_done);
    field_u64(c, &m->bytes);
}

static void visit_trouble(struct codec *c, struct msg_trouble *m)
{
    field_str(c, &m->text, MSG_WHY_MAX);
}

static void visit_kill(struct codec *c, struct msg_kill *m)
{
    field_id(c, &m->jail);
    field_str(c, &m->group, MSG_NAME_MAX);
}

static void visit_usage(struct codec *c, struct msg_usage *m)
{
    field_u64(c, &m->memory);
    field_u64(c, &m->memory_peak);
    field_u64(c, &m->cpu_usec);
    field_u64(c, &m->pids);
    field_u64(c, &m->oom_kills);
    field_u64(c, &m->pids_refused);
    field_u64(c, &m->disk_used);
    field_u64(c, &m->disk_total);
    field_enum(c, &m->frozen, 2);
}

static void visit_listed(struct codec *c, struct msg_listed *m)
{
    field_id(c, &m->jail);
    field_enum(c, &m->undead, 2);
    field_i32(c, &m->init_pid);
}

static void visit_counted(struct codec *c, struct msg_counted *m)
{
    field_u32(c, &m->jails);
}

static void visit_key(struct codec *c, struct msg_key *m)
{
    field_str(c, &m->key, MSG_KEY_MAX);
}

static void visit_images(struct codec *c, struct msg_images *m)
{
    field_enum(c, &m->verb, IMAGES_VERB_COUNT);
    field_enum(c, &m->missing, 2);
    field_u64(c, &m->store_max);
    field_str(c, &m->image, MSG_IMAGE_MAX);
    field_str(c, &m->as, MSG_IMAGE_MAX);
}

static void visit_keep(struct codec *c, struct msg_keep *m)
{
    field_enum(c, &m->kind, KEEP_COUNT);
    field_str(c, &m->key, MSG_KEY_MAX);
    field_str(c, &m->name, MSG_NAME_MAX);
    field_str(c, &m->root, SPEC_NAME_MAX);
    field_enum(c, &m->rung, RUNG_COUNT);
    field_enum(c, &m->on_image, 2);
    field_i32(c, &m->pid);
    field_u64(c, &m->number);
}

static void visit_build(struct codec *c, struct msg_build *m)
{
    field_u32(c, &m->slot);
    field_enum(c, &m->waits, 2);
    field_str(c, &m->name, MSG_NAME_MAX);
    field_spec(c, &m->spec);
}

static void visit_built(struct codec *c, struct msg_built *m)
{
    field_enum(c, &m->rung, RUNG_COUNT);
    field_enum(c, &m->named, 2);
    field_enum(c, &m->has_mntns, 2);
    field_i32(c, &m->init_pid);
}

static void visit_prepare(struct codec *c, struct msg_prepare *m)
{
    field_u32(c, &m->slot);
    field_str(c, &m->name, MSG_NAME_MAX);
}

static void visit_sweep(struct codec *c, struct msg_sweep *m)
{
    field_str(c, &m->name, MSG_NAME_MAX);
    field_str(c, &m->group, MSG_NAME_MAX);
}

static void visit_copy_root(struct codec *c, struct msg_copy_root *m)
{
    field_id(c, &m->jail);
    field_u64(c, &m->patience);
    field_str(c, &m->from, SPEC_NAME_MAX);
    field_str(c, &m->to, SPEC_NAME_MAX);
}

static void visit_copy(struct codec *c, struct msg_copy *m)
{
    field_str(c, &m->from, SPEC_NAME_MAX);
    field_str(c, &m->to, SPEC_NAME_MAX);
    field_str(c, &m->jail, MSG_NAME_MAX);
    field_enum(c, &m->freeze, 2);
    field_i32(c, &m->init_pid);
    field_u64(c, &m->patience);
}

static void visit_exec(struct codec *c, struct msg_exec *m)
{
    field_u32(c, &m->uid);
    field_u32(c, &m->gid);
    field_u64(c, &m->file_size);
    field_str(c, &m->cwd, SPEC_PATH_MAX);
    field_list(c, &m->argv);
    field_list(c, &m->environ);
    if (!c->out && m->argv.count == 0)
        c->bad = 1;
}

static void visit_started(struct codec *c, struct msg_started *m)
{
    field_i32(c, &m->pid);
}

static void visit_exited(struct codec *c, struct msg_exited *m)
{
    field_i32(c, &m->pid);
    field_enum(c, &m->exited, 2);
    field_i32(c, &m->status);
    field_enum(c, &m->disk_full, 2);
    field_enum(c, &m->tree, TREE_COUNT);
    field_u64(c, &m->cpu_usec);
    field_u64(c, &m->max_rss);
}

static void visit_empty(struct codec *c, struct msg_empty *m)
{
    field_enum(c, &m->tree, TREE_COUNT);
}

static void visit_tree(struct codec *c, struct msg_tree *m)
{
    field_id(c, &m->exec);
}

static void visit_resize(struct codec *c, struct msg_resize *m)
{
    field_id(c, &m->exec);
    field_enum(c, &m->rows, 65536);
    field_enum(c, &m->cols, 65536);
}

static void visit_facts(struct codec *c, struct msg_facts *m)
{
    field_enum(c, &m->mode, FACTS_MODE_COUNT);
    field_u32(c, &m->uid);
    field_u32(c, &m->gid);
    field_enum(c, &m->root, 2);
    field_enum(c, &m->shell_kind, FACTS_SHELL_COUNT);
    field_enum(c, &m->cgroups, 3);
    field_str(c, &m->shell, SPEC_PATH_MAX);
    field_str(c, &m->home, SPEC_PATH_MAX);
    field_str(c, &m->workspace, SPEC_PATH_MAX);
    field_str(c, &m->machine, MSG_NAME_MAX);
    field_str(c, &m->missing, MSG_MISSING_MAX);
    field_list(c, &m->environ);
}

static void visit_signal(struct codec *c, struct msg_signal *m)
{
    field_id(c, &m->exec);
    field_i32(c, &m->signal);
}

/* The decoder works on a copy and hands it out only when all of it was good. */
#define CODEC(name)                                                                                \
    void msg_##name##_encode(struct buf *b, const struct msg_##name *m)                            \
    {                                                                                              \
        struct codec c = {.out = b};                                                               \
        struct msg_##name copy = *m;                                                               \
        visit_##name(&c, &copy);                                                                   \
    }                                                                                              \
    int msg_##name##_decode(const struct buf *b, struct msg_##name *ret, struct pd_err *e)         \
    {                                                                                              \
        struct codec c = {.in = b->data, .left = b->len};                                          \
        struct msg_##name m = {0};                                                                 \
        visit_##name(&c, &m);                                                                      \
        if (c.bad || c.left)                                                                       \
            return pd_fail(e, PD_PROTOCOL, "malformed %s message of %zu bytes", #name, b->len);    \
        *ret = m;                                                                                  \
        return 0;                                                                                  \
    }
CODEC(error)
CODEC(welcome)
CODEC(create)
CODEC(created)
CODEC(destroy)
CODEC(gone)
CODEC(kill)
CODEC(usage)
CODEC(listed)
CODEC(counted)
CODEC(key)
CODEC(keep)
CODEC(build)
CODEC(built)
CODEC(prepare)
CODEC(sweep)
CODEC(copy_root)
CODEC(copy)
CODEC(exec)
CODEC(started)
CODEC(exited)
CODEC(signal)
CODEC(empty)
CODEC(tree)
CODEC(resize)
CODEC(facts)
CODEC(progress)
CODEC(trouble)
CODEC(images)

/* ---- a spec in a row ---- */

/* In front of what is stored. Rows of servers that had no versions begin with a profile, which is a
 * small number. */
#define STORED_MARK    0x73700000u
#define STORED_VERSION 1u

void spec_store(struct buf *b, const struct spec *s)
{
    struct codec c = {.out = b};
    struct spec copy = *s;
    uint32_t version = STORED_MARK | STORED_VERSION;

    field_u32(&c, &version);
    field_spec(&c, &copy);
}

int spec_restore(const struct buf *b, struct spec *ret, struct pd_err *e)
{
    struct codec c = {.in = b->data, .left = b->len}, begin = c;
    struct spec s = {.image = "", .options = ""};
    uint32_t version = 0;

    field_u32(&c, &version);
    bool marked = (version & ~0xffffu) == STORED_MARK;
    if (marked && (version & 0xffffu) != STORED_VERSION)
        return pd_fail(e, PD_UNSUPPORTED,
                       "a specification of version %u: this server knows version %u; start the "
                       "newer server again",
                       version & 0xffffu, STORED_VERSION);

    if (marked) {
        field_spec(&c, &s);
    } else {
        c = begin;
        field_spec_base(&c, &s);
        field_spec_binds(&c, &s);
    }

    if (c.bad || c.left)
        return pd_fail(e, PD_PROTOCOL, "a stored specification of %zu bytes is damaged", b->len);
    *ret = s;
    return 0;
}

const char *msg_list_next(const struct msg_list *l, uint32_t *pos)
{
    if (*pos >= l->bytes)
        return NULL;

    const char *s = l->text + *pos;
    *pos += (uint32_t)strlen(s) + 1;
    return s;
}

int msg_list_add(struct msg_list_writer *w, const char *text)
{
    if (w->count >= MSG_ARGS_MAX || buf_put(&w->text, text, strlen(text) + 1) < 0)
        return -1;
    w->count++;
    return 0;
}

struct msg_list msg_list_of(const struct msg_list_writer *w)
{
    return (struct msg_list){.text = w->text.data ? (const char *)w->text.data : "",
                             .count = w->count,
                             .bytes = (uint32_t)w->text.len};
}

void msg_list_writer_done(struct msg_list_writer *w)
{
    buf_done(&w->text);
    w->count = 0;
}

void msg_error_put(struct buf *b, const struct pd_err *e)
{
    struct msg_error m = {.code = e->code, .sys = e->sys, .text = e->msg};
    msg_error_encode(b, &m);
}

int msg_error_raise(const struct frame *f, struct pd_err *e)
{
    struct msg_error m = {.text = ""};
    if (msg_error_decode(&f->payload, &m, e) < 0)
        return -1;

    pd_fail(e, (enum pd_code)m.code, "%s", m.text);
    if (e)
        e->sys = m.sys;
    return -1;
}
