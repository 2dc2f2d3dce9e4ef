/* What Daytona answers, and what a client says for it: the first byte says which. Properties: what
 * is read is of the form that it has to have before it becomes a part of a URL, a header, a path or
 * a Dockerfile; words for people can be shown. */
#include "base/err.h"
#include "engine/daytona_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_words(const char *words)
{
    for (; *words; words++)
        require(*words >= ' ' && *words < 127);
}

static void check_url(const struct rented_url *u)
{
    require(!strncmp(u->base, "https://", 8) || !strncmp(u->base, "http://", 7));
    require(!strpbrk(u->base, "\r\n @?#") && !strpbrk(u->path, "\r\n @?#") &&
            !strstr(u->path, ".."));
}

static void check_sandbox(const struct daytona_sandbox *s)
{
    require(rented_is_id(s->id));
    check_words(s->why);
    if (s->toolbox.base[0])
        check_url(&s->toolbox);
}

static int check_listed(void *context, const struct daytona_sandbox *s, struct pd_err *e)
{
    (void)context, (void)e;
    check_sandbox(s);
    require(s->owner[0] && s->box[0]);
    return 0;
}

static void check_git(const char *text)
{
    struct daytona_git g;
    char url[DAYTONA_URL];

    if (daytona_options_read(text, url, NULL) == 0)
        require(strlen(url) < sizeof url);
    if (daytona_git_read(text, &g, NULL) == 0) {
        require(g.name[0] && g.name[0] != '.' && g.name[0] != '-' && !strchr(g.name, '/'));
        require(g.host[0] && !strpbrk(g.url, "\r\n @?#\"\\"));
        require(daytona_git_allowed(&g, g.host) && !daytona_git_allowed(&g, "x"));
    }
    if (daytona_is_image(text))
        require(text[0] && !strpbrk(text, " \r\n\\$\"'#"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pd_err e = {.msg = ""};
    struct daytona_sandbox s;
    struct daytona_preview p;
    char text[600], cursor[DAYTONA_CURSOR];
    bool used;

    if (!size)
        return 0;
    const uint8_t *at = data + 1;
    size_t len = size - 1;
    switch (data[0] % 6) {
    case 0:
        if (daytona_read_sandbox(at, len, &s, &e) == 0)
            check_sandbox(&s);
        break;
    case 1:
        if (daytona_read_list(at, len, check_listed, NULL, cursor, &e) == 0)
            require(!cursor[0] || rented_is_token(cursor));
        break;
    case 2:
        if (daytona_read_preview(at, len, &p, &e) == 0) {
            check_url(&p.url);
            require(!p.token[0] || rented_is_token(p.token));
        }
        break;
    case 3:
        require(daytona_read_executed(at, len, "try", &e) == 0 || e.msg[0]);
        break;
    case 4:
        (void)daytona_read_port(at, len, &used, &e);
        break;
    default:
        snprintf(text, sizeof text, "%.*s", (int)(len < 590 ? len : 590), (const char *)at);
        check_git(text);
    }
    return 0;
}
