/* The stream of an exec: no bytes break the reader of its head or of its frames, and what frames
 * carry does not depend on where they are cut. */
#include "base/buf.h"
#include "base/err.h"
#include "engine/docker_frames.h"
#include "engine/http_stream.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What standard output is of it, and whether it was broken off. */
static int unpack(const uint8_t *data, size_t size, size_t step, struct buf *out)
{
    struct docker_frames f = {.have = 0};

    for (size_t at = 0; at < size;) {
        size_t len = size - at < step ? size - at : step, part_len = 0;
        unsigned kind = 0;
        const uint8_t *part = NULL;
        int used = docker_frames_next(&f, data + at, len, &kind, &part, &part_len, NULL);
        if (used < 0)
            return -1;
        if (used == 0 || (size_t)used > len || part_len > len)
            abort();
        if (part_len && kind == DOCKER_STDOUT)
            buf_put(out, part, part_len);
        at += (size_t)used;
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int status = 0, len = http_head_read(data, size, &status);

    if (len > 0 && ((size_t)len > size || status < 100 || status > 999))
        abort();

    auto_buf whole = BUF_INIT(1 << 20), cut = BUF_INIT(1 << 20);
    int a = unpack(data, size, size, &whole), b = unpack(data, size, 3, &cut);
    if (a != b || whole.len != cut.len ||
        (whole.len && memcmp(whole.data, cut.data, whole.len) != 0))
        abort();
    return 0;
}
