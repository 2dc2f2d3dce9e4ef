/* How this works: a worker in the sandbox reads the tree and answers with its digest
 * (docs/workers.md). The worker is one of the user's processes, so what it says is a claim; a user
 * who lies here lies about his own files to a counter. */
#include "core/shadow_tree.h"

#include "core/worker_run.h"

#include "base/banned.h"
#include "base/err.h"

#define ENTRIES_MAX "4096"
#define BYTES_MAX   "16777216"
#define TIME_MAX    NS_PER_S

int tree_digest(struct session *s, bool without_hidden, uint8_t ret[PARITY_TREE_SIZE])
{
    const char *const words[] = {
        "digest", "/workspace", ENTRIES_MAX, BYTES_MAX, without_hidden ? "1" : "0", NULL};
    auto_worker w = WORKER_INIT;
    struct record r;
    struct pd_err e;
    if (worker_run_begin(&w, s, -1, NULL, WORKER_LOOKS, words, &e) < 0)
        return -1;

    w.whole = deadline_in(TIME_MAX);
    if (worker_first(&w, &r, &e) < 0)
        return -1;
    w.ended = r.kind == RECORD_MORE || r.kind == RECORD_VALUE;
    if (r.kind == RECORD_MORE)
        return 0;
    if (r.kind != RECORD_VALUE || r.value.len != PARITY_TREE_SIZE)
        return -1;

    memcpy(ret, r.value.data, PARITY_TREE_SIZE);
    return 1;
}
