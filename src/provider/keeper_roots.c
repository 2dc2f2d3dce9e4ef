/* Requests on roots and images, which the keeper has a worker do. */
#include "provider/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"

#define COPY_GRACE (5 * NS_PER_S)
/* The keeper writes the removal down and answers; the removal itself comes later. */
#define REMOVE_PATIENCE (5 * NS_PER_S)

/* Waits for the answer: a keeper that dies before it has read this would leave files of which
 * nobody knows any more. */
int keeper_remove_root(struct provider *base, const char *root_name, struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_key m = {.key = root_name};

    msg_key_encode(&out, &m);
    return have_keeper_do(base->state, WIRE_REMOVE_ROOT, &out, deadline_in(REMOVE_PATIENCE), e);
}

int keeper_keep_root(struct provider *base, const char *root_name, deadline d, struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_key m = {.key = root_name};

    msg_key_encode(&out, &m);
    return have_keeper_do(base->state, WIRE_KEEP_ROOT, &out, d, e);
}

int keeper_copy_root(struct provider *base, struct box *box, const char *from, const char *to,
                     deadline d, struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    uint64_t now = clock_now();
    struct msg_copy_root m = {.patience = d > now ? d - now : 0, .from = from, .to = to};

    if (box)
        m.jail = ((const struct keeper_box *)box)->jail.id;
    msg_copy_root_encode(&out, &m);

    /* The keeper gives up at the deadline and says so: only then is it known that there is no copy.
     */
    deadline answer = d > DEADLINE_NONE - COPY_GRACE ? DEADLINE_NONE : d + COPY_GRACE;
    return have_keeper_do(base->state, WIRE_COPY_ROOT, &out, answer, e);
}

int keeper_check(struct box *box, deadline d, struct pd_err *e)
{
    const struct keeper_box *b = (const struct keeper_box *)box;
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_destroy m = {.jail = b->jail.id};

    msg_destroy_encode(&out, &m);
    return have_keeper_do(b->provider, WIRE_CHECK, &out, d, e);
}
