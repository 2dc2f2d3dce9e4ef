/* A file at an address of its own: a link or a frame of the console can send neither its login's
 * proof nor a key, so it is given a ticket, which is good once. What comes is saved and never
 * shown: an address of this server would be a page of this server. */
#include "api/file_transfer.h"
#include "api/handlers.h"

#include "access/tickets.h"
#include "base/banned.h"
#include "base/json.h"

#define NAME_MAX_BYTES 255u

int files_ticket(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"path", "user", NULL};
    char path[FILE_PATH_SIZE], text[TICKET_LEN + 1];
    struct ticket what = {.path = path, .observes = c->observes};
    auto_buf out = BUF_INIT(1024);
    struct json j = JSON_INIT(&out);

    if (call_query_check(c, allowed, e) < 0 || file_query_path(c, NULL, path, e) < 0 ||
        file_query_user(c, what.user, e) < 0)
        return -1;

    uint64_t now = time_now_ms();
    snprintf(what.sandbox, sizeof what.sandbox, "%s", c->sandbox);
    if (tickets_make(c->api->tickets, &c->who, &what, now, text, e) < 0)
        return -1;

    /* Of this origin, so that it may be opened under whatever name the server was reached. */
    char url[TICKET_LEN + 32];
    snprintf(url, sizeof url, "/v1/tickets/%s", text);
    reply_header(c->r, "Cache-Control", "no-store");
    json_open(&j, '{');
    json_member_cstr(&j, "url", url);
    json_time(&j, "expires_at", now + TICKET_LIFE_MS);
    json_close(&j, '}');
    explicit_bzero(text, sizeof text);
    return call_json(c, 201, &out);
}

int ticket_admit(struct call *c, struct pd_err *e)
{
    return tickets_take(c->api->tickets, c->var[0], time_now_ms(), &c->who, &c->ticket, e);
}

/* The name that the file is saved under, as RFC 6266 writes any bytes. */
static void name_header(struct call *c, const char *path)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    auto_buf text = BUF_INIT(64 + 3 * NAME_MAX_BYTES);

    buf_puts(&text, "attachment; filename*=UTF-8''");
    for (unsigned i = 0; name[i] && i < NAME_MAX_BYTES; i++)
        if (strchr(plain, name[i]))
            buf_putc(&text, (uint8_t)name[i]);
        else
            buf_printf(&text, "%%%02X", (uint8_t)name[i]);
    reply_header(c->r, "Content-Disposition", buf_cstr(&text) ? (char *)text.data : "attachment");
}

int ticket_get(struct call *c, struct pd_err *e)
{
    static const char behind[] =
        "{\"error\":{\"code\":\"invalid\",\"message\":\"the range begins behind the end of the "
        "file\",\"details\":{\"field\":\"Range\"}}}";
    uint64_t size;

    if (call_no_query(c, e) < 0)
        return -1;

    file_note(c, "", c->ticket.path);
    name_header(c, c->ticket.path);
    reply_header(c->r, "Cache-Control", "no-store");
    reply_header(c->r, "Content-Security-Policy", "default-src 'none'; sandbox");
    int r = file_send(c, c->ticket.user, 0, c->ticket.path, &size, e);
    if (r == 1)
        (void)reply(c->r, 416, "application/json", behind, sizeof behind - 1);
    return r < 0 ? -1 : 0;
}
