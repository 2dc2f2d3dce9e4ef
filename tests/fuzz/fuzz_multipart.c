/* The first byte says how to cut the rest, which is a form with the boundary "b", or, if its
 * highest bit is set, a Content-Type.
 *
 * Properties: wherever it is cut, the events are the same, with the same data; no event has more
 * data than what came; a boundary that is found is one that the parser can look for. */
#include "base/buf.h"
#include "base/err.h"
#include "net/multipart.h"
#include "net/utf8.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

/* Events as bytes: each with its kind in front, data that follows data joined to it. */
static void read_events(const char *data, size_t len, size_t step, struct buf *out)
{
    static struct multipart m;
    struct pd_err e;
    int last = -1;
    size_t idle = 0;
    multipart_init(&m, "b");

    for (size_t at = 0; at < len;) {
        size_t piece = len - at < step ? len - at : step, used;
        struct slice found = {NULL, 0};
        int event = multipart_next(&m, data + at, piece, &used, &found, &e);
        require(used <= piece);
        idle = used ? 0 : idle + 1;
        require(idle < 3);
        at += used;
        if (event == MULTIPART_MORE)
            continue;
        if (event != MULTIPART_DATA || last != MULTIPART_DATA)
            buf_printf(out, "<%d>", event);
        last = event;
        if (event < 0)
            return;

        if (event == MULTIPART_DATA) {
            require(found.len && found.len <= at);
            buf_put(out, found.at, found.len);
        }

        if (event == MULTIPART_PART) {
            require(utf8_is_valid(m.name, strlen(m.name)));
            require(!m.filename || utf8_is_valid(m.filename, strlen(m.filename)));
            require(strlen(m.name) < MULTIPART_HEAD_MAX);
            buf_printf(out, "%s|%s", m.name, m.filename ? m.filename : "");
        }
    }

    require(m.done == (last == MULTIPART_END));
}

static void check_boundary(const char *data, size_t len)
{
    static struct multipart m;
    char boundary[MULTIPART_BOUNDARY_MAX + 1];
    struct pd_err e;
    if (multipart_boundary((struct slice){data, len}, boundary, &e) != 1)
        return;
    size_t n = strlen(boundary);
    require(n && n <= MULTIPART_BOUNDARY_MAX && !memchr(boundary, '\r', n));
    multipart_init(&m, boundary);
    require(m.delimiter_len == n + 4);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size || size > 1 << 19)
        return 0;
    size_t step = 1 + data[0] % 32;
    const char *text = (const char *)data + 1;
    size--;
    if (data[0] & 128) {
        check_boundary(text, size);
        return 0;
    }

    auto_buf whole = BUF_INIT(8 << 20);
    auto_buf pieces = BUF_INIT(8 << 20);
    read_events(text, size, size + 1, &whole);
    read_events(text, size, step, &pieces);
    require(whole.len == pieces.len && (!whole.len || !memcmp(whole.data, pieces.data, whole.len)));
    return 0;
}
