/* Times and hex digits from outside, and preview tokens.
 *
 * Properties: a time that is read and written again is the same instant, in the one spelling of
 * ours; a refusal leaves the out-parameter alone; hex that is read and written again is the same
 * but for its case; a token that is accepted is the very one that was signed. */
#include "access/ids.h"
#include "access/preview.h"
#include "base/err.h"
#include "store/store.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BOX       "abcdefghij0123456789"
#define PORT      8080
#define NOW       UINT64_C(1767323045678)
#define UNTOUCHED UINT64_C(0x5a5a5a5a5a5a5a5a)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static ptrdiff_t known_secret(struct store *s, const char *name, void *out, size_t size,
                              struct pd_err *e)
{
    (void)s, (void)name, (void)e;
    memset(out, 'k', size);
    return (ptrdiff_t)size;
}

static void times(const char *text)
{
    uint64_t ms = UNTOUCHED, again = 0;
    struct pd_err e = {0};
    if (time_parse_ms("t", text, &ms, &e)) {
        require(ms == UNTOUCHED && e.code == PD_INVALID && memchr(e.msg, 0, sizeof e.msg));
        return;
    }
    char written[TIME_TEXT_LEN + 1];
    time_format_ms(ms, written);
    require(strlen(written) == TIME_TEXT_LEN);
    require(time_parse_ms("t", written, &again, NULL) == 0 && again == ms);
}

static void any_time(uint64_t ms)
{
    char written[TIME_TEXT_LEN + 1], twice[TIME_TEXT_LEN + 1];
    uint64_t again = 0;
    time_format_ms(ms, written);
    require(time_parse_ms("t", written, &again, NULL) == 0);
    require(again == ms || (ms > again && again == UINT64_C(253402300799999)));
    time_format_ms(again, twice);
    require(strcmp(written, twice) == 0);
}

static void hex(const char *text)
{
    size_t len = strlen(text) / 2;
    uint8_t *bytes = malloc(len + 1);
    char *back = malloc(2 * len + 1);
    require(bytes && back);
    if (hex_decode(text, bytes, len) == 0) {
        hex_encode(bytes, len, back);
        require(strcasecmp(back, text) == 0);
    }
    free(bytes);
    free(back);
}

static void tokens(const char *text)
{
    struct store store = {.get_value = known_secret};
    struct preview *p = preview_new(&store, NULL);
    char right[PREVIEW_TOKEN_MAX + 1];
    char tenant[ID_TENANT_MAX + 1];
    uint64_t expires;
    require(p && preview_sign(p, "acme-2_x", BOX, PORT, NOW, 60000, right, &expires, NULL) == 0);
    require(preview_check(p, right, BOX, PORT, NOW, tenant, NULL) == 0);

    struct pd_err e = {0};
    if (preview_check(p, text, BOX, PORT, NOW, tenant, &e) == 0)
        require(strcmp(text, right) == 0);
    else
        require(memchr(e.msg, 0, sizeof e.msg) != NULL);
    preview_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    require(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    times(text);
    hex(text);
    tokens(text);
    (void)id_is_sandbox(text);
    (void)id_is_key(text);
    (void)id_is_tenant(text);

    if (size >= sizeof(uint64_t)) {
        uint64_t ms;
        memcpy(&ms, data, sizeof ms);
        any_time(ms);
        any_time(ms % UINT64_C(253402300800000));
    }
    free(text);
    return 0;
}
