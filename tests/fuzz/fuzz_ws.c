/* The first byte says who speaks and how the rest, a stream of frames, is cut into pieces.
 *
 * Properties: pieces of any size give the same messages and the same refusal; every message,
 * encoded anew, is decoded to the same; text is UTF-8; nothing is larger than the limit. */
#include "base/err.h"
#include "net/ws.h"

#include <stdlib.h>
#include <string.h>

#define MESSAGE_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_encoded(const struct ws_message *m, int from_client)
{
    static const uint8_t mask[4] = {1, 0x80, 0, 0xfe};
    auto_buf b = BUF_INIT(1 << 16);

    if (m->opcode == WS_CLOSE) {
        auto_buf reason = BUF_INIT(200);
        buf_put(&reason, m->data, m->len);
        /* A reason with NULs cannot be given to the encoder as text. */
        if (m->len && memchr(m->data, 0, m->len))
            return;
        require(!ws_close_encode(&b, m->code, buf_cstr(&reason), from_client ? mask : NULL));
    } else {
        require(!ws_encode(&b, m->opcode, m->data, m->len, from_client ? mask : NULL));
    }

    struct ws_decoder d;
    struct ws_message again;
    struct pd_err e;
    size_t used;
    ws_decoder_init(&d, from_client, MESSAGE_MAX);
    require(ws_decode(&d, b.data, b.len, &used, &again, &e) == 1 && used == b.len);
    require(again.opcode == m->opcode && again.len == m->len && again.code == m->code);
    require(!m->len || !memcmp(again.data, m->data, m->len));
    ws_decoder_done(&d);
}

/* All that a stream says, one after the other. */
static void decode(const uint8_t *data, size_t len, size_t step, int from_client, struct buf *out)
{
    struct ws_decoder d;
    struct pd_err e = {.msg = ""};
    ws_decoder_init(&d, from_client, MESSAGE_MAX);

    for (size_t at = 0; at < len;) {
        size_t piece = len - at < step ? len - at : step, used;
        struct ws_message m;
        int r = ws_decode(&d, data + at, piece, &used, &m, &e);

        if (r < 0) {
            require(d.error && e.msg[0]);
            buf_printf(out, "!%u", d.error);
            break;
        }

        require(used <= piece && (r == 1 || used == piece) && !d.error);
        at += used;
        if (r == 0)
            continue;
        require(used > 0 || piece == 0);
        require(m.len <= (m.opcode >= WS_CLOSE ? WS_CONTROL_MAX : MESSAGE_MAX));
        require(m.opcode != WS_CONTINUATION && (m.opcode <= WS_BINARY || m.opcode >= WS_CLOSE));
        require((m.opcode != WS_TEXT && m.opcode != WS_CLOSE) || utf8_is_valid(m.data, m.len));
        buf_printf(out, "%d %u %zu:", (int)m.opcode, m.code, m.len);
        buf_put(out, m.data, m.len);
        check_encoded(&m, from_client);
    }

    ws_decoder_done(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size || size > 1 << 16)
        return 0;
    int from_client = data[0] & 1;
    size_t step = 1 + (data[0] >> 1) % 20;
    auto_buf whole = BUF_INIT(8 << 20);
    auto_buf pieces = BUF_INIT(8 << 20);
    decode(data + 1, size - 1, size, from_client, &whole);
    decode(data + 1, size - 1, step, from_client, &pieces);
    require(!whole.overflow && whole.len == pieces.len);
    require(!whole.len || !memcmp(whole.data, pieces.data, whole.len));
    return 0;
}
