/* Any command line, and a secret put into it where one would be.
 *
 * Properties: nothing is read beyond the text (it is allocated exactly); what comes out is the text
 * with pieces replaced, so it is bounded; a known key never comes through where it stands as a word
 * of its own, whatever is around it. */
#include "base/buf.h"
#include "telemetry/redact.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void run(const char *text, size_t len, struct buf *out)
{
    char *exact = malloc(len ? len : 1);
    if (!exact)
        return;
    memcpy(exact, text, len);
    redact(exact, len, out);
    free(exact);
    require(!out->overflow && out->len <= len + 10 * (len + 1));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char key[] = " ghp_0123456789abcdefghijABCDEFGHIJ ";
    if (size > 2000 || memmem(data, size, key + 1, sizeof key - 3))
        return 0;
    auto_buf out = BUF_INIT(1u << 20), with = BUF_INIT(1u << 20), text = BUF_INIT(1u << 20);
    run((const char *)data, size, &out);

    size_t at = size ? data[0] % (size + 1) : 0;
    (void)buf_put(&text, data, at);
    (void)buf_puts(&text, key);
    (void)buf_put(&text, data + at, size - at);

    run((const char *)text.data, text.len, &with);
    require(!memmem(with.data, with.len, key + 1, sizeof key - 3));
    return 0;
}
