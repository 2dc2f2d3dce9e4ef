/* What somebody says who dials a box. The first byte says how it is cut into pieces.
 *
 * Properties: pieces of any size give the same payload and the same answers; nothing is open
 * without the target; what is remembered and what is answered is bounded. */
#include "base/err.h"
#include "box/dialled.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void play(const uint8_t *data, size_t len, size_t step, struct buf *out)
{
    static const char target[] = "/link/00112233445566778899aabbccddeeff";
    struct dialled d;
    int r = 0;

    dialled_begin(&d, target);
    for (size_t at = 0; at < len && r >= 0;) {
        size_t piece = len - at < step ? len - at : step, used, n = 0;
        const uint8_t *payload = NULL;
        r = dialled_next(&d, data + at, piece, &used, &payload, &n);
        require(used <= piece && (r > 0 || used == piece));
        require(r <= 0 || (d.is_open && n <= DIALLED_MESSAGE_MAX));
        require(!d.is_open || memmem(data, at + used, target, sizeof target - 1) != NULL);
        if (r > 0)
            buf_put(out, payload, n);
        at += used;
    }
    require(d.out.len <= DIALLED_FRAME + 8192u && (r >= 0 || d.over));
    buf_puts(out, r < 0 ? "!" : ".");
    if (d.out.len)
        buf_put(out, d.out.data, d.out.len);
    dialled_end(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size || size > 1 << 16)
        return 0;
    auto_buf whole = BUF_INIT(1 << 20), pieces = BUF_INIT(1 << 20);
    play(data + 1, size - 1, size, &whole);
    play(data + 1, size - 1, 1 + data[0] % 40, &pieces);
    require(whole.len == pieces.len && (!whole.len || !memcmp(whole.data, pieces.data, whole.len)));
    return 0;
}
