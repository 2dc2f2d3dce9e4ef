/* What Google answers, and what a box that calls is told: the first byte says to what. Properties:
 * what is read is of the form that it has to have before it becomes a part of a path or a header;
 * words for people can be shown. */
#include "base/err.h"
#include "box/caller.h"
#include "engine/cloudrun_api.h"
#include "engine/google_federation.h"
#include "engine/google_keys.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_id(const char *id)
{
    require(id[0] && strlen(id) < CLOUDRUN_ID && !strpbrk(id, "/?#% \r\n") && id[0] != '.');
}

static void check_plain(const char *text)
{
    for (; *text; text++)
        require(*text >= ' ' && *text < 127);
}

static int check_one(void *context, const struct cloudrun_execution *x, struct pd_err *e)
{
    (void)context, (void)e;
    check_id(x->id);
    check_plain(x->why);
    require(x->box[0] && x->owner[0]);
    return 0;
}

static void check_text(const char *text)
{
    struct caller c;

    if (caller_read_place(text, &c, NULL) == 0)
        require(c.host[0] && c.port[0] >= '0' && !strpbrk(c.host, " []\r\n"));
    if (caller_read_pin(text, &c, NULL) == 0)
        require(c.pin[0] == 4 && strlen(text) == 2 * (size_t)CALLER_PIN);
}

/* What is read becomes a part of requests; the text behind the first line is what its source gives.
 */
static void check_federation(const char *text, size_t len)
{
    static struct google_federation f;
    static char subject[GOOGLE_SUBJECT];
    const char *line = memchr(text, '\n', len);
    size_t head = line ? (size_t)(line - text) : len;

    if (google_federation_read(text, head, &f, NULL) < 0)
        return;
    require(!f.file[0] != !f.source.base[0] && f.token.base[0] && f.token.target[0] == '/');
    require(!strpbrk(f.token.target, " \r\n") && !strpbrk(f.source.target, " \r\n"));
    require(f.life >= 600 && f.life <= GOOGLE_IMPERSONATE_MOST);
    for (unsigned i = 0; i < f.header_count; i++)
        require(strchr(f.headers[i], ':') && !strpbrk(f.headers[i], "\r\n"));
    if (line && google_subject_read(&f, line + 1, len - head - 1, subject, NULL) == 0)
        require(subject[0] && !strpbrk(subject, " \r\n"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct google_account a;
    static char token[GOOGLE_TOKEN];
    struct pd_err e = {.msg = ""};
    struct cloudrun_operation o;
    struct cloudrun_execution x;
    struct cloudrun_job job;
    char next[CLOUDRUN_NEXT], text[300];
    unsigned life;

    if (!size)
        return 0;
    const void *rest = data + 1;
    size_t len = size - 1;
    switch (data[0] % 9) {
    case 0:
        if (cloudrun_read_list(rest, len, next, check_one, NULL, &e) == 0)
            require(strlen(next) < sizeof next);
        break;
    case 1:
        if (cloudrun_read_execution(rest, len, &x, &e) == 0)
            check_id(x.id);
        break;
    case 2:
        if (cloudrun_read_operation(rest, len, &o, &e) == 0 && o.execution[0])
            check_id(o.execution);
        check_plain(e.msg);
        break;
    case 3:
        if (cloudrun_read_job(rest, len, &job, &e) == 0)
            check_plain(job.image);
        break;
    case 4:
        if (google_token_read(rest, len, token, &life, &e) == 0)
            require(google_is_token(token) && !strpbrk(token, " \r\n"));
        break;
    case 7:
        check_federation(rest, len);
        break;
    case 8:
        if (google_impersonated_read(rest, len, token, &e) == 0)
            require(google_is_token(token));
        break;
    case 5:
        if (google_account_read(rest, len, &a, &e) == 0)
            require(a.email[0] && !strpbrk(a.email, "\" \r\n"));
        break;
    default:
        snprintf(text, sizeof text, "%.*s", (int)(len < 290 ? len : 290), (const char *)rest);
        check_text(text);
    }
    return 0;
}
