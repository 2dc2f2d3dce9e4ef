/* Foreign bytes on their way to a terminal, and an event stream cut into pieces.
 *
 * Properties: what the filter passes has no control byte but those it names and whole colour
 * sequences, and does not depend on how the bytes were cut; the same holds for the events of a
 * stream; what is escaped for tables has no control byte at all. */
#include "base/err.h"
#include "client/events.h"
#include "client/text.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void filter(struct buf *out, const uint8_t *data, size_t size, size_t piece)
{
    struct text_filter f = {0};
    for (size_t at = 0; at < size; at += piece)
        text_filter(&f, out, data + at, size - at < piece ? size - at : piece);
    text_filter_end(&f, out);
    require(!out->overflow && f.count == 0);
}

static void check_clean(const uint8_t *p, size_t len, int is_stream)
{
    for (size_t i = 0; i < len; i++) {
        if (is_stream && p[i] == 0x1b) {
            require(i + 1 < len && p[++i] == '[');
            do
                require(++i < len);
            while (p[i] != 0 && strchr("0123456789;:", p[i]));
            require(p[i] == 'm');
            continue;
        }
        require(p[i] >= 0x20 ? p[i] != 0x7f : is_stream && p[i] && strchr("\n\r\t\b", p[i]));
        require(!(p[i] == 0xc2 && i + 1 < len && p[i + 1] < 0xa0));
    }
}

static void read_events(struct buf *out, const uint8_t *data, size_t size, size_t piece)
{
    auto_event_reader r = EVENT_READER_INIT;

    for (size_t at = 0; at < size; at += piece) {
        const char *p = (const char *)data + at;
        size_t left = size - at < piece ? size - at : piece;

        while (left) {
            struct pd_err e = {.msg = ""};
            struct event v;
            size_t used = 0;
            int got = event_reader_next(&r, p, left, &used, &v, &e);

            if (got < 0) { /* an id or a type of more than it can be */
                require(e.code == PD_PROTOCOL);
                buf_puts(out, "refused");
                return;
            }
            require(used <= left && (got || used == left));

            if (got) {
                require(strlen(v.type) > 0 && v.data[v.data_len] == 0);
                buf_printf(out, "<%s|%s|", v.type, v.id);
                buf_put(out, v.data, v.data_len);
                buf_puts(out, ">");
            }
            p += used;
            left -= used;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 4096)
        return 0;
    size_t piece = data[0] % 16 + 1u;
    data++;
    size--;

    auto_buf whole = BUF_INIT(1u << 20), cut = BUF_INIT(1u << 20), cell = BUF_INIT(1u << 20);
    filter(&whole, data, size, size + 1);
    filter(&cut, data, size, piece);
    require(whole.len == cut.len && (!cut.len || !memcmp(whole.data, cut.data, cut.len)));
    check_clean(whole.data, whole.len, 1);
    text_escape(&cell, data, size);
    check_clean(cell.data, cell.len, 0);

    require(!cell.overflow && text_width(cell.data, cell.len) <= cell.len);
    buf_clear(&whole);
    buf_clear(&cut);
    read_events(&whole, data, size, size + 1);
    read_events(&cut, data, size, piece);
    require(whole.len == cut.len && (!cut.len || !memcmp(whole.data, cut.data, cut.len)));
    return 0;
}
