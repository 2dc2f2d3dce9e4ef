/* What a changer reads: any text of changes, any loan, and any answer of a host, in any pieces.
 *
 * Properties: a value of a secret that is put into an answer does not come out, wherever it is cut;
 * as many bytes come out as went in; what is no part of the value stays; a header without a
 * placeholder is left alone. */
#include "base/buf.h"
#include "change/changes.h"
#include "wire/gate_msg.h"

#include <stdlib.h>
#include <string.h>

#define VALUE "v4lue-of-4-secret"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

/* The input with the value in it, passed on in pieces whose lengths are the input's bytes. */
static void pass(const uint8_t *data, size_t size)
{
    struct blank b = {0};
    auto_buf text = BUF_INIT(1u << 16), out = BUF_INIT(1u << 16);
    size_t at = size ? data[0] % (size + 1) : 0;

    buf_put(&text, data, at);
    buf_puts(&text, VALUE);
    buf_put(&text, data + at, size - at);
    require(blank_add(&b, VALUE, strlen(VALUE)) == 0);
    for (size_t done = 0, i = 0; done < text.len; i++) {
        size_t step = size ? 1 + data[i % size] % 24u : text.len;
        if (step > text.len - done)
            step = text.len - done;
        require(blank_pass(&b, text.data + done, step, false, &out));
        done += step;
    }
    require(blank_pass(&b, NULL, 0, true, &out));
    require(out.len == text.len && !memmem(out.data, out.len, VALUE, strlen(VALUE)));
    for (size_t i = 0; i < out.len; i++)
        require(out.data[i] == text.data[i] || out.data[i] == '*');
    blank_done(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct changes c;
    if (size > 4000)
        return 0;
    pass(data, size);

    struct gate_lend lend;
    struct gate_moved moved;
    struct buf frame = {.data = (uint8_t *)(uintptr_t)data, .len = size, .max = size};
    (void)gate_lend_decode(&frame, &lend, NULL);
    (void)gate_moved_decode(&frame, &moved, NULL);

    char *text = calloc(1, size + 1);
    auto_buf out = BUF_INIT(1u << 20);
    if (!text)
        return 0;
    memcpy(text, data, size);
    if (changes_parse(text, &c, NULL) == 0)
        for (unsigned i = 0; i < c.count; i++)
            require(changes_apply(&c, c.items[i].host, c.items[i].port, c.items[i].placeholder,
                                  strlen(c.items[i].placeholder), &out));
    free(text);
    return 0;
}
