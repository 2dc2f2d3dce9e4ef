/* A SOCKS5 proxy that says anything, in any pieces.
 *
 * Properties: what is wanted next always fits and is never more than its answer has; an end is an
 * end; a connection counts as made only after a reply that says so, and then every byte of its
 * answers was wanted by the protocol: nothing of the host's was taken. */
#include "gate/socks.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct socks s;
    struct socks_target to = {.port = 443};
    enum socks_step step = SOCKS_SAY;
    uint8_t last[SOCKS_IN_MAX] = {0};
    size_t last_len = 0;
    if (size < 2)
        return 0;

    to.name = data[0] & 1 ? "a.example" : NULL;
    to.user = data[0] & 2 ? "user" : NULL;
    to.password = data[0] & 4 ? "password" : NULL;
    size_t most = 1 + data[1] % 32u;
    data += 2;
    size -= 2;

    require(socks_begin(&s, &to));
    require(s.out_len && s.out_len <= sizeof s.out);
    while (size && step != SOCKS_DONE && step != SOCKS_BAD) {
        size_t n = socks_wants(&s);
        require(n && n <= SOCKS_IN_MAX);
        if (step == SOCKS_SAY)
            last_len = 0;
        n = n < most ? n : most;
        n = n < size ? n : size;
        require(last_len + n <= sizeof last);
        memcpy(last + last_len, data, n);
        last_len += n;
        step = socks_take(&s, data, n);
        data += n;
        size -= n;
        require(step != SOCKS_SAY || (s.out_len && s.out_len <= sizeof s.out));
    }
    if (step == SOCKS_DONE) {
        size_t whole = last[3] == 1 ? 10 : last[3] == 4 ? 22 : 7u + last[4];
        require(last[0] == 5 && last[1] == 0 && last_len == whole && !socks_wants(&s));
        require(socks_take(&s, data, 0) == SOCKS_BAD);
    }
    if (step == SOCKS_BAD)
        require(s.why && !socks_wants(&s));
    return 0;
}
