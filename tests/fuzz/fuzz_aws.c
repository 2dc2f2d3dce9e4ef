/* What AWS and its credential endpoints answer: no bytes break a reader, and what is read can
 * become a part of a header, a path or an address. The first byte chooses. */
#include "base/err.h"
#include "engine/aws_keys.h"
#include "engine/ecs_api.h"
#include "engine/elb_api.h"
#include "engine/xml_text.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_line(const char *text)
{
    for (; *text; text++)
        if (*text <= ' ' || *text > '~')
            abort();
}

static void check_words(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ')
            abort();
}

static void keys(const uint8_t *data, size_t size, int kind)
{
    static struct aws_keys k;
    int r = kind == 0 ? aws_keys_read_json(data, size, &k, NULL)
            : kind == 1
                ? aws_keys_read_profile((const char *)data, size, "default", false, &k, NULL)
                : aws_keys_read_profile((const char *)data, size, "b", true, &k, NULL);

    if (r < 0)
        return;
    if (!k.id[0] || !k.secret[0])
        abort();
    check_line(k.id);
    check_line(k.secret);
    check_line(k.token);
}

static void url(const char *text)
{
    char base[280], target[1024];

    if (aws_container_url(text, base, target, NULL) < 0)
        return;
    check_line(base);
    check_line(target);
    if (target[0] != '/' || strchr(base, '@') || strchr(base + 8, '/'))
        abort();
}

static int check_task(void *context, const struct ecs_task *t, struct pd_err *e)
{
    struct in6_addr a;
    char words[160];

    (void)context;
    (void)e;
    check_line(t->arn);
    check_words(t->why);
    check_words(t->stop_code);
    if (strncmp(t->arn, "arn:", 4) != 0)
        abort();
    if (t->address[0] && inet_pton(AF_INET, t->address, &a) != 1 &&
        inet_pton(AF_INET6, t->address, &a) != 1)
        abort();
    ecs_say_end(t, words, sizeof words);
    return 0;
}

static void tasks(const uint8_t *data, size_t size)
{
    static struct ecs_page page;
    struct ecs_task t;

    (void)ecs_read_tasks(data, size, check_task, NULL, NULL);
    if (ecs_read_run(data, size, &t, NULL) == 0)
        check_task(NULL, &t, NULL);
    if (ecs_read_list(data, size, &page, NULL) == 0)
        for (unsigned i = 0; i < page.count; i++)
            check_line(page.arns[i]);
}

static void refusal(const uint8_t *data, size_t size)
{
    struct aws_refusal r;
    enum elb_health h;
    char why[64];
    struct pd_err e;

    aws_read_refusal(400, data, size, &r);
    check_words(r.code);
    check_words(r.message);
    if (aws_fail(400, &r, "x", &e) != -1 || !e.msg[0])
        abort();
    (void)aws_is_passing(400, &r);
    (void)elb_read_health((const char *)data, size, &h, why, sizeof why, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char role[129];

    if (!size)
        return 0;
    char *text = malloc(size);
    if (!text)
        return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    switch (data[0] % 7) {
    case 0:
    case 1:
    case 2:
        keys(data + 1, size - 1, data[0] % 7);
        break;
    case 3:
        url(text);
        break;
    case 4:
        tasks(data + 1, size - 1);
        break;
    case 5:
        refusal(data + 1, size - 1);
        break;
    default:
        if (aws_role_read(text, size - 1, role, NULL) == 0 && (check_line(role), strchr(role, '/')))
            abort();
        (void)aws_time_read(text);
    }
    free(text);
    return 0;
}
