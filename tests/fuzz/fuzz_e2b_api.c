/* What E2B answers: the first byte says to what. Properties: what is read is of the form that it
 * has to have before it becomes a part of a URL or a header; words for people can be shown. */
#include "base/err.h"
#include "engine/e2b_api.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static int check_listed(void *context, const struct e2b_listed *s, struct pd_err *e)
{
    (void)context, (void)e;
    require(rented_is_id(s->id) && s->owner[0] && s->box[0]);
    return 0;
}

static void check_url(const char *text)
{
    struct rented_url u;

    if (rented_url_read("x", text, &u, NULL) < 0)
        return;
    require(!strncmp(u.base, "https://", 8) || !strncmp(u.base, "http://", 7));
    require(!strpbrk(u.base, "\r\n @?#") && !strpbrk(u.path, "\r\n @?#") && !strstr(u.path, ".."));
    require(!u.path[0] || u.path[0] == '/');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pd_err e = {.msg = ""};
    struct e2b_sandbox s;
    char words[100], text[300];

    if (!size)
        return 0;
    if (data[0] % 4 == 0 && e2b_read_sandbox(data + 1, size - 1, &s, &e) == 0) {
        require(rented_is_id(s.id) && (!s.token[0] || rented_is_token(s.token)));
        require((!s.traffic[0] || rented_is_token(s.traffic)) &&
                (!s.domain[0] || rented_is_host(s.domain)));
    } else if (data[0] % 4 == 1) {
        (void)e2b_read_list(data + 1, size - 1, check_listed, NULL, &e);
    } else if (data[0] % 4 == 2) {
        require(e2b_read_start(data + 1, size - 1, &e) == 0 || e.msg[0]);
    } else {
        snprintf(text, sizeof text, "%.*s", (int)(size - 1 < 290 ? size - 1 : 290),
                 (const char *)data + 1);
        check_url(text);
    }

    rented_words(data + 1, size - 1, "secret", words, sizeof words);
    require(!strstr(words, "secret"));
    for (const char *c = words; *c; c++)
        require(*c >= ' ' && *c < 127);
    return 0;
}
