/* What registries say: no bytes break a reader, and what is read is clean. The first byte chooses.
 */
#include "base/err.h"
#include "engine/registry_text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_line(const char *text)
{
    for (; *text; text++)
        if (*text < ' ' || *text > '~')
            abort();
}

/* An address that was read reads the same again. */
static void address(const char *text)
{
    static struct registry_url a, b;
    static char whole[sizeof a.base + sizeof a.target];

    if (registry_url_read(text, "https://own.example", &a, NULL) < 0)
        return;
    check_line(a.base);
    check_line(a.target);
    if (a.target[0] != '/' || strchr(a.base, '@'))
        abort();
    memcpy(whole, a.base, strlen(a.base));
    memcpy(whole + strlen(a.base), a.target, strlen(a.target) + 1);
    if (strlen(whole) < REGISTRY_URL_MAX &&
        (registry_url_read(whole, NULL, &b, NULL) < 0 || strcmp(a.base, b.base) != 0 ||
         strcmp(a.target, b.target) != 0))
        abort();
}

static void challenge(const char *text)
{
    static struct challenge c;
    if (challenge_read(text, &c, NULL) < 0)
        return;
    check_line(c.realm);
    check_line(c.service);
    if (c.kind == CHALLENGE_NONE || (c.kind == CHALLENGE_BEARER && !c.realm[0]))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char out[REGISTRY_TOKEN_MAX + 1];
    if (!size)
        return 0;

    char *text = malloc(size);
    if (!text)
        return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    if (data[0] % 4 == 0)
        address(text);
    else if (data[0] % 4 == 1)
        challenge(text);
    else if (data[0] % 4 == 2 && token_read(text, size - 1, out, NULL) == 0)
        check_line(out);
    else if (data[0] % 4 == 3 &&
             credentials_read(text, size - 1, "docker.io", out, sizeof out, NULL) == 0)
        check_line(out);
    free(text);
    return 0;
}
