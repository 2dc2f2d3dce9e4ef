/* How a container on another machine gets our program: the archive of a directory with it and with
 * the key of the link is put in before the container begins, so nothing has to be on that machine
 * and nothing in the image. Its link is an exec, made anew for each connection. */
#include "engine/docker_far.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/json.h"
#include "engine/docker_call.h"
#include "engine/http_stream.h"
#include "wire/start.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PROGRAM_MAX (8u << 20)
#define TAR_BLOCK   512u

/* ---- the archive ---- */

struct entry {
    const char *name, *link; /* link: a hard link to this one */
    unsigned mode;
    char type; /* as tar has them */
    const void *data;
    size_t len;
};

static void put_entry(struct buf *out, const struct entry *t)
{
    static const uint8_t zeros[TAR_BLOCK];
    char head[TAR_BLOCK] = {0};
    unsigned sum = 0;

    snprintf(head, 100, "%s", t->name);
    snprintf(head + 100, 8, "%07o", t->mode);
    snprintf(head + 108, 8, "%07o", 0u);
    snprintf(head + 116, 8, "%07o", 0u);
    snprintf(head + 124, 12, "%011zo", t->len);
    snprintf(head + 136, 12, "%011o", 0u);
    memset(head + 148, ' ', 8);
    head[156] = t->type;
    snprintf(head + 157, 100, "%s", t->link ? t->link : "");
    memcpy(head + 257, "ustar\00000", 8);
    for (unsigned i = 0; i < TAR_BLOCK; i++)
        sum += (unsigned char)head[i];
    snprintf(head + 148, 8, "%06o", sum);

    buf_put(out, head, sizeof head);
    if (t->len)
        buf_put(out, t->data, t->len);
    buf_put(out, zeros, (TAR_BLOCK - t->len % TAR_BLOCK) % TAR_BLOCK);
}

void docker_far_archive(struct buf *out, const struct docker_far *f, const void *program,
                        size_t len)
{
    static const uint8_t end[2 * TAR_BLOCK];
    const struct entry entries[] = {
        {.name = FAR_PLACE "/", .mode = 0755, .type = '5'},
        {.name = FAR_PLACE "/key", .mode = 0400, .type = '0', .data = f->key, .len = sizeof f->key},
        {.name = FAR_PLACE "/box", .mode = 0555, .type = '0', .data = program, .len = len},
        /* Of the profile dev: the shim is the same program under another name. */
        {.name = "opt/paddock/", .mode = 0755, .type = '5'},
        {.name = "opt/paddock/bin/", .mode = 0755, .type = '5'},
        {.name = &INIT_SHIM_DIR "/sudo"[1], .link = FAR_PLACE "/box", .mode = 0555, .type = '1'},
    };

    for (size_t i = 0; i < (f->dev ? 6 : 3); i++)
        put_entry(out, &entries[i]);
    buf_put(out, end, sizeof end);
}

static int read_program(int fd, struct buf *out, struct pd_err *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size <= 0 ||
        st.st_size > (off_t)PROGRAM_MAX)
        return pd_fail(e, PD_INTERNAL, "descriptor %d of a broker is not the program paddock-box",
                       fd);
    uint8_t *at = buf_reserve(out, (size_t)st.st_size);
    if (!at)
        return pd_fail(e, PD_CAPACITY, "no memory for paddock-box");
    while (out->len < (size_t)st.st_size) {
        ssize_t n = pread(fd, at + out->len, (size_t)st.st_size - out->len, (off_t)out->len);
        if (n <= 0)
            return pd_fail_sys(e, "read paddock-box");
        out->len += (size_t)n;
    }
    return 0;
}

int docker_put_box(struct docker *d, const char *name, const struct docker_far *f, deadline t,
                   struct pd_err *e)
{
    static const char *const headers[] = {"Content-Type: application/x-tar", NULL};
    auto_buf program = BUF_INIT(PROGRAM_MAX);
    auto_call c = DOCKER_CALL("PUT", t);

    if (read_program(f->program, &program, e) < 0)
        return -1;
    c.in = BUF_INIT(PROGRAM_MAX + 16 * TAR_BLOCK);
    c.headers = headers;
    docker_far_archive(&c.in, f, program.data, program.len);
    buf_printf(&c.target, "/containers/%s/archive?path=/&noOverwriteDirNonDir=true", name);
    if (docker_ask(d, &c, e) < 0)
        return -1;
    return c.status == 200 ? 0 : docker_refused(&c, "put paddock-box into the container", e);
}

/* ---- the link ---- */

/* An exec is refused where a container has ended, and where it is paused: only the engine's own
 * word on it tells them apart. */
static int why_refused(struct docker *d, const char *name, const struct docker_call *c, deadline t,
                       struct pd_err *e)
{
    struct docker_container now;

    (void)docker_refused(c, "join the container", e);
    if (c->status == 404)
        e->code = PD_NOT_FOUND;
    else if (c->status == 409 && docker_inspect(d, name, &now, t, NULL) == 0 && !now.running)
        e->code = PD_LOST;
    return -1;
}

static int make_exec(struct docker *d, const char *name, char ret_id[65], deadline t,
                     struct pd_err *e)
{
    auto_call c = DOCKER_CALL("POST", t);
    static const char *const words[] = {"/" FAR_PLACE "/box", "join"};
    struct json j = JSON_INIT(&c.in);
    char user[32];

    snprintf(user, sizeof user, "%u:%u", FAR_UID, FAR_UID);
    json_open(&j, '{');
    json_member_bool(&j, "AttachStdin", 1);
    json_member_bool(&j, "AttachStdout", 1);
    json_member_bool(&j, "AttachStderr", 1);
    json_member_cstr(&j, "User", user);
    json_key(&j, "Cmd");
    json_open(&j, '[');
    json_cstr(&j, words[0]);
    json_cstr(&j, words[1]);
    json_close(&j, ']');
    json_close(&j, '}');

    buf_printf(&c.target, "/containers/%s/exec", name);
    if (docker_ask(d, &c, e) < 0)
        return -1;
    return c.status == 201 ? docker_read_exec_id(c.out.data, c.out.len, ret_id, e)
                           : why_refused(d, name, &c, t, e);
}

struct http_stream *docker_join(struct docker *d, const char *name, deadline t, struct pd_err *e)
{
    char id[65], target[128];

    if (make_exec(d, name, id, t, e) < 0)
        return NULL;
    struct http *own = docker_dial(d, e);
    if (!own)
        return NULL;
    snprintf(target, sizeof target, "/v%s/exec/%s/start", d->api, id);
    return http_stream_open(own, target, "{\"Detach\":false,\"Tty\":false}", t, e);
}

int docker_unpause(struct docker *d, const char *name, deadline t, struct pd_err *e)
{
    auto_call c = DOCKER_CALL("POST", t);

    buf_printf(&c.target, "/containers/%s/unpause", name);
    if (docker_ask(d, &c, e) < 0)
        return -1;
    return c.status == 204 || c.status == 404 || c.status == 409 || c.status == 500
               ? 0
               : docker_refused(&c, "resume the container", e);
}
