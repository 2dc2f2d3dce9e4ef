/* DNS messages, as questions of a sandbox and as answers of a resolver: every question gets an
 * answer that fits and that can be read as the answer to it. */
#include "base/banned.h"
#include "gate/question.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct ip all[DNS_ADDRESSES_MAX];
    uint8_t out[DNS_MESSAGE_MAX];
    struct question q;
    struct reply r;

    for (unsigned i = 0; i < DNS_ADDRESSES_MAX; i++)
        all[i] = ip_of_v4((const uint8_t[]){1, 2, 3, (uint8_t)i});
    if (question_read(data, size, &q) == ASKED) {
        size_t len = question_answer(&q, DNS_OK, all, DNS_ADDRESSES_MAX, 5, "why", out);
        if (len > sizeof out || (!q.has_edns && len > 512))
            abort();
        if (q.has_name && q.type == DNS_A && q.name[0] &&
            (!reply_read(out, len, q.id, q.name, DNS_A, &r) || !r.count))
            abort();
        struct question again;
        if (question_read(out, len, &again) != ASKED_NOTHING)
            abort();
    }

    if (size >= 2) {
        uint16_t id = (uint16_t)(data[0] << 8 | data[1]);
        if (reply_read(data, size, id, "a.example", DNS_AAAA, &r) && r.count > DNS_ADDRESSES_MAX)
            abort();
    }
    return 0;
}
