/* Requests to a driver: `ID CRC BASE64`, a line each. The checksum is of the bytes that the base64
 * stands for, so a line that was cut or joined is noticed and left out. */
#include "core/context_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/base64.h"
#include "base/json.h"

#include <inttypes.h>

/* As zlib's and binascii's, four bits at a time. */
static uint32_t crc32(const uint8_t *p, size_t len)
{
    static const uint32_t table[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
        0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
        0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
    };
    uint32_t crc = ~UINT32_C(0);

    for (size_t i = 0; i < len; i++) {
        crc = table[(crc ^ p[i]) & 15] ^ crc >> 4;
        crc = table[(crc ^ p[i] >> 4) & 15] ^ crc >> 4;
    }
    return ~crc;
}

/* Of a language that has no JSON: the code, and behind it the variables. */
static int put_plain(const char *id, const struct execution_request *r, struct buf *out)
{
    buf_printf(out, "%s %08" PRIx32 " ", id, crc32((const uint8_t *)r->code, r->code_len));
    base64_encode(out, r->code, r->code_len);
    if (r->env.count) {
        buf_putc(out, ' ');
        base64_encode(out, r->env.text, r->env.bytes);
    }
    return buf_putc(out, '\n');
}

static void put_variables(struct json *j, const struct msg_list *env)
{
    uint32_t pos = 0;
    json_key(j, "env");
    json_open(j, '{');
    for (const char *v; (v = msg_list_next(env, &pos));) {
        char name[REQUEST_NAME_MAX + 1];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(v, "="), v);
        json_member_cstr(j, name, v + strcspn(v, "=") + 1);
    }
    json_close(j, '}');
}

/* Of JSON, as a line. */
static int put_json(const char *id, const struct buf *text, struct buf *out)
{
    if (text->overflow)
        return -1;
    buf_printf(out, "%s %08" PRIx32 " ", id, crc32(text->data, text->len));
    base64_encode(out, text->data, text->len);
    return buf_putc(out, '\n');
}

/* What makes a copy a context of its own. */
static void put_fresh(struct json *j, const struct fork_request *how)
{
    json_key(j, "fresh");
    json_open(j, '{');
    put_variables(j, how->env);
    json_key(j, "cwd");
    json_open(j, '[');
    json_cstr(j, how->cwd);
    for (unsigned i = 0; how->any_cwd && context_elsewhere[i]; i++)
        json_cstr(j, context_elsewhere[i]);
    json_close(j, ']');
    json_close(j, '}');
}

int request_fork(const char *id, const struct fork_request *how, struct buf *out)
{
    auto_buf text = BUF_INIT(8 * CODE_MAX);
    struct json j = JSON_INIT(&text);
    json_open(&j, '{');
    json_member_cstr(&j, "op", "fork");
    if (how->force)
        json_member_bool(&j, "force", true);
    if (how->fetches)
        json_member_bool(&j, "fetch", true);
    if (how->env)
        put_fresh(&j, how);
    json_close(&j, '}');
    return put_json(id, &text, out);
}

/* The request `settle`, with an id of its own. */
static int put_settle(const struct context *c, struct buf *out)
{
    auto_buf text = BUF_INIT(64);
    char id[ID_SANDBOX_LEN + 16] = "settle-";
    id_sandbox(id + strlen(id));
    /* Without JSON the id says it. */
    if (c->language->plain)
        return put_plain(id, &(struct execution_request){.code = ""}, out);
    buf_printf(&text, "{\"op\":\"settle\"}");
    return put_json(id, &text, out);
}

void context_settle(const struct context *c, struct process *p)
{
    auto_buf line = BUF_INIT(256);
    struct pd_err ignored;

    if (!atomic_exchange(&p->is_interrupted, false) || !c->language->settles)
        return;
    if (put_settle(c, &line) == 0)
        (void)process_send(p, line.data, line.len, NULL, 0, deadline_in(SEND_PATIENCE), &ignored);
}

int request_import(const char *id, const char *modules, struct buf *out)
{
    auto_buf text = BUF_INIT(8192);
    struct json j = JSON_INIT(&text);
    json_open(&j, '{');
    json_member_cstr(&j, "op", "import");
    json_key(&j, "modules");
    json_open(&j, '[');
    for (size_t n; *modules; modules += n + (modules[n] == ',')) {
        n = strcspn(modules, ",");
        json_str(&j, modules, n);
    }
    json_close(&j, ']');
    json_close(&j, '}');
    return put_json(id, &text, out);
}

int request_run(const struct context *c, const char *id, const struct execution_request *r,
                struct buf *out)
{
    if (c->language->plain)
        return put_plain(id, r, out);

    auto_buf text = BUF_INIT(8 * CODE_MAX);
    struct json j = JSON_INIT(&text);
    json_open(&j, '{');
    json_member_cstr(&j, "op", "run");
    json_key(&j, "code");
    json_str(&j, r->code, r->code_len);
    if (r->env.count)
        put_variables(&j, &r->env);
    if (!strcmp(c->language->name, "bridge"))
        json_member_cstr(&j, "kernel", c->language_name);
    json_close(&j, '}');
    return put_json(id, &text, out);
}
