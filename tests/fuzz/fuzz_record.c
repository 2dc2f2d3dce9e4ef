/* Records of any bytes. The first byte chooses the kind, the rest is the payload; then all of it is
 * a stream.
 *
 * Properties: nothing is read beyond the payload (it is allocated exactly); what was decoded
 * encodes to the same bytes; a refusal leaves the output alone and is PD_PROTOCOL; both readers of
 * a stream see the same records and end alike. */
#include "base/err.h"
#include "base/fd.h"
#include "wire/record.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_decode(uint32_t kind, const uint8_t *payload, size_t len)
{
    static struct record r, untouched;
    struct pd_err e = {.msg = ""};
    memset(&untouched, 0x5a, sizeof untouched);
    memcpy(&r, &untouched, sizeof r);
    if (record_decode(kind, payload, len, &r, &e) < 0) {
        require(e.code == PD_PROTOCOL && !memcmp(&r, &untouched, sizeof r));
        return;
    }

    auto_buf out = BUF_INIT(2 * RECORD_MAX);
    record_encode(&out, &r);
    require(!out.overflow && out.len == len + 8);
    require(!memcmp(out.data + 8, payload, len));

    const char *name, *value;
    uint32_t pos = 0;
    while (r.kind == RECORD_DETAIL && record_attr_next(&r.detail, &pos, &name, &value))
        require(pos <= r.detail.attrs_len && value + strlen(value) < (const char *)payload + len);
    if (r.kind == RECORD_ERROR)
        require(record_raise(&r, "it", &e) < 0 && (unsigned)e.code < PD_CODE_COUNT);
}

static int stream_of(const uint8_t *data, size_t size)
{
    int p[2];
    require(pipe2(p, O_CLOEXEC) == 0);
    require(fd_write_all(p[1], data, size) == 0);
    close(p[1]);
    return p[0];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size || size > 60000)
        return 0;
    uint8_t *copy = malloc(size);
    require(copy != NULL);
    memcpy(copy, data + 1, size - 1);
    check_decode(data[0] % (RECORD_KIND_COUNT + 1), copy, size - 1);
    free(copy);

    int a = stream_of(data, size), b = stream_of(data, size);
    auto_record_stream s = RECORD_STREAM(b);
    auto_buf scratch = RECORD_SCRATCH;
    for (;;) {
        struct record x, y;
        struct pd_err e = {.msg = ""}, f = {.msg = ""};
        int m = record_read(a, &scratch, &x, 0, &e), n = record_next(&s, &y, 0, &f);
        require(m == n);
        if (m <= 0) {
            require(m == 0 || (e.code == PD_PROTOCOL && f.code == PD_PROTOCOL));
            break;
        }
        auto_buf c = BUF_INIT(2 * RECORD_MAX), d = BUF_INIT(2 * RECORD_MAX);
        record_encode(&c, &x);
        record_encode(&d, &y);
        require(c.len == d.len && !memcmp(c.data, d.data, c.len));
    }
    close(a);
    close(b);
    return 0;
}
