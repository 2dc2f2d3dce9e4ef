/* Every decoder on any bytes. The first byte chooses the message.
 *
 * Properties: nothing is read beyond the payload (it is allocated exactly); what was decoded
 * encodes to the same bytes; a refusal leaves the output alone and is PD_PROTOCOL; lists have as
 * many words as they say. */
#include "msg_table.h"

#include "base/err.h"
#include "wire/msg.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_list(const struct msg_list *l)
{
    uint32_t pos = 0, n = 0, bytes = 0;
    for (const char *word; (word = msg_list_next(l, &pos)); n++)
        bytes += (uint32_t)strlen(word) + 1;
    require(n == l->count && bytes == l->bytes && n <= MSG_ARGS_MAX);
}

static void check_exec_lists(const struct msg_exec *m)
{
    require(m->argv.count > 0);
    check_list(&m->argv);
    check_list(&m->environ);
}

static void check_facts_lists(const struct msg_facts *m)
{
    check_list(&m->environ);
}

static void check_no_lists(const void *m)
{
    (void)m;
}

#define CHECK_LISTS(m)                                                                             \
    _Generic((m), struct msg_exec *                                                                \
             : check_exec_lists, struct msg_facts *                                                \
             : check_facts_lists, default                                                          \
             : check_no_lists)(m)

#define CHECK(name)                                                                                \
    static void check_##name(const struct buf *in)                                                 \
    {                                                                                              \
        static struct msg_##name m, untouched;                                                     \
        struct pd_err e = {.msg = ""};                                                             \
        memset(&untouched, 0x5a, sizeof untouched);                                                \
        memcpy(&m, &untouched, sizeof m);                                                          \
        if (msg_##name##_decode(in, &m, &e) < 0) {                                                 \
            require(e.code == PD_PROTOCOL && !memcmp(&m, &untouched, sizeof m));                   \
            return;                                                                                \
        }                                                                                          \
        auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);                                                 \
        msg_##name##_encode(&out, &m);                                                             \
        require(!out.overflow && out.len == in->len);                                              \
        require(!out.len || !memcmp(out.data, in->data, out.len));                                 \
        CHECK_LISTS(&m);                                                                           \
    }
MESSAGES(CHECK)
#undef CHECK

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const checks[])(const struct buf *) = {
#define X(name) check_##name,
        MESSAGES(X)
#undef X
    };
    if (!size || size - 1 > WIRE_PAYLOAD_MAX)
        return 0;

    uint8_t *copy = malloc(size - 1);
    if (!copy && size > 1)
        return 0;
    if (size > 1)
        memcpy(copy, data + 1, size - 1);

    struct buf in = {.data = copy, .len = size - 1, .cap = size - 1, .max = size - 1};
    checks[data[0] % (sizeof checks / sizeof *checks)](&in);
    free(copy);
    return 0;
}
