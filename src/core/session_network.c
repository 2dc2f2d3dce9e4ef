/* The way out of a session: its rules, which are text (gate/rules.h), and when the gate is told.
 *
 * The rules are the session's and are in its row; the sockets that the gate serves are its box's.
 * So every box that a session gets, made or adopted, is told to the gate with the rules of the
 * moment, and is taken from it before the box ends. A box without a way out, which most have, costs
 * nothing of this; it gets one when its session is given rules for the first time. That is written
 * down first, so that a box which has a way out is always one whose gate is told. */
#include "core/egress.h"
#include "core/secrets.h"
#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "telemetry/audit.h"
#include "telemetry/log.h"

#define CHANGE_PATIENCE (5 * NS_PER_S)
#define SETTLE_PATIENCE (250 * NS_PER_MS)
#define NO_RULES        "layer off\n"

/* The sandbox and its box, so that a record can be told of one, and no box is taken for another. */
static void gate_id(const struct session *s, char out[GATE_ID_MAX + 1])
{
    char box[33];
    wire_id_text(s->box_id, box);
    snprintf(out, GATE_ID_MAX + 1, "%s.%s", s->info.id, box);
}

static bool has_way_out(struct session *s)
{
    lock_take(&s->lock);
    bool has = s->info.spec.network == NETWORK_GATE && s->all->c.egress;
    lock_release(&s->lock);
    return has;
}

/* A copy of the rules of the moment, or NULL. */
static char *copy_rules(struct session *s)
{
    lock_take(&s->lock);
    char *text = strdup(s->network ? s->network : NO_RULES);
    lock_release(&s->lock);
    return text;
}

int session_open_network(struct session *s, struct box *box, struct pd_err *e)
{
    char id[GATE_ID_MAX + 1];
    int fds[2];

    if (!has_way_out(s))
        return 0;
    if (box_way_out(box, fds, e) < 0)
        return -1;
    gate_id(s, id);

    char *rules = copy_rules(s);
    int r = egress_add(s->all->c.egress, id, s->info.tenant, rules ? rules : NO_RULES, fds[0],
                       fds[1], e);

    /* Whoever has changed them meanwhile found no box to tell the gate of. */
    char *now = copy_rules(s);
    if (r == 0 && rules && now && strcmp(rules, now) != 0)
        r = egress_change(s->all->c.egress, id, now, deadline_in(CHANGE_PATIENCE), e);
    free(rules);
    free(now);
    return r;
}

void session_close_network(struct session *s)
{
    char id[GATE_ID_MAX + 1];

    if (!has_way_out(s))
        return;
    gate_id(s, id);
    egress_remove(s->all->c.egress, id);
}

char *session_network(struct session *s)
{
    lock_take(&s->lock);
    char *text = strdup(s->network && s->info.spec.network == NETWORK_GATE ? s->network : NO_RULES);
    lock_release(&s->lock);
    return text;
}

/* Gives the session other rules, and says what it had before; its row follows. */
static int replace_rules(struct session *s, const char *rules, char **ret_before, struct pd_err *e)
{
    char *text = strdup(rules);
    if (!text)
        return pd_fail(e, PD_CAPACITY, "no memory for the rules");

    lock_take(&s->lock);
    char *before = s->network;
    s->network = text;
    lock_release(&s->lock);
    if (session_store(s, e) == 0) {
        *ret_before = before;
        return 0;
    }

    lock_take(&s->lock);
    s->network = before;
    lock_release(&s->lock);
    free(text);
    return -1;
}

static int store_way_out(struct session *s, enum network network, struct pd_err *e)
{
    lock_take(&s->lock);
    s->info.spec.network = network;
    lock_release(&s->lock);
    return session_store(s, e);
}

/* Gives one that was made without a way out one whose rules allow nothing yet; one that sleeps has
 * it with its next box. Its end takes the box, and then its sockets from the gate: not before we
 * let go of the box. *ret_is_bare: its box is older than its way out. */
static int get_way_out(struct session *s, bool *ret_is_bare, struct pd_err *e)
{
    struct pd_err ignored;

    lock_take(&s->lock);
    bool is_asleep = s->info.state == SESSION_PAUSED && s->info.asleep;
    int usable = is_asleep ? 0 : session_usable(s, e);
    lock_release(&s->lock);
    if (usable < 0)
        return -1;

    if (!s->all->c.egress)
        return pd_fail(e, PD_UNSUPPORTED, "this server gives sandboxes no way to the network");
    if (provider_must(s->provider, PROVIDER_EGRESS, e) < 0)
        return -1;

    int r = store_way_out(s, NETWORK_GATE, e);
    rw_read(&s->box_use);
    *ret_is_bare = s->box && !s->info.spec.image[0];
    if (r == 0 && s->box)
        r = session_open_network(s, s->box, e);
    rw_release(&s->box_use);
    if (r < 0)
        (void)store_way_out(s, NETWORK_NONE, &ignored);
    return r;
}

int session_set_network(struct session *s, const char *rules, struct pd_err *e)
{
    char id[GATE_ID_MAX + 1];

    if (egress_check_rules(rules, e) < 0 || session_begin_change(s, e) < 0)
        return -1;

    bool had_one = has_way_out(s);
    if (!had_one && !strncmp(rules, NO_RULES, strlen(NO_RULES))) {
        session_end_change(s);
        return 0;
    }

    char *before = NULL;
    bool is_bare = false;
    int r = had_one ? 0 : get_way_out(s, &is_bare, e);
    if (r == 0)
        r = replace_rules(s, rules, &before, e);
    gate_id(s, id);
    if (r == 0)
        r = egress_change(s->all->c.egress, id, rules, deadline_in(CHANGE_PATIENCE), e);
    session_end_change(s);
    if (r == 0)
        r = session_give_secrets(s, before, is_bare, e);
    free(before);
    if (r == 0)
        log_info("session.network", "id=%s", s->info.id);
    return r;
}

/* ---- what the gate tells ---- */

static void note_refusal(struct session *s, const struct gate_record *r)
{
    lock_take(&s->lock);
    if (!s->refusals)
        s->refusals = calloc(REFUSALS_KEPT, sizeof *s->refusals);
    if (s->refusals) {
        struct refusal *n = &s->refusals[s->refusal_count++ % REFUSALS_KEPT];
        snprintf(n->host, sizeof n->host, "%s", r->name[0] ? r->name : r->address);
        snprintf(n->why, sizeof n->why, "%s", r->why);
        n->port = r->port;
        n->times = 1;
    }
    lock_release(&s->lock);
}

void sessions_note_egress(struct sessions *all, const char *sandbox, const struct gate_record *r)
{
    struct pd_err e;
    struct session *s = sessions_find_any(all, sandbox, &e);
    uint64_t now = time_now_ms() * 1000;

    /* Microseconds, so that they grow over a restart, too. */
    all->egress_number = now > all->egress_number ? now : all->egress_number + 1;
    if (!s)
        return; /* of one that is forgotten by now, or never was */

    audit_write(all->c.audit, &(struct audit_event){.tenant = s->info.tenant,
                                                    .sandbox = sandbox,
                                                    .action = "egress",
                                                    .result = gate_result_name(r->result),
                                                    .duration_us = r->usec,
                                                    .egress = r,
                                                    .number = all->egress_number});
    if (r->result == GATE_REFUSED || r->result == GATE_CUT)
        note_refusal(s, r);
    session_unref(s);
}

uint64_t session_refusals_mark(struct session *s)
{
    lock_take(&s->lock);
    uint64_t mark = s->refusal_count;
    lock_release(&s->lock);
    return mark;
}

/* Counts it with the same one, or adds it. */
static int count_refusal(struct refusal *list, int count, const struct refusal *n)
{
    for (int i = 0; i < count; i++)
        if (list[i].port == n->port && !strcmp(list[i].host, n->host)) {
            list[i].times++;
            return count;
        }
    list[count] = *n;
    return count + 1;
}

int session_refusals(struct session *s, uint64_t mark, struct refusal ret[REFUSALS_KEPT])
{
    int count = 0;

    if (!has_way_out(s))
        return -1;
    egress_settle(s->all->c.egress, deadline_in(SETTLE_PATIENCE));

    lock_take(&s->lock);
    uint64_t end = s->refusal_count;
    if (end - mark > REFUSALS_KEPT)
        mark = end - REFUSALS_KEPT;
    for (; s->refusals && mark < end; mark++)
        count = count_refusal(ret, count, &s->refusals[mark % REFUSALS_KEPT]);
    lock_release(&s->lock);
    return count;
}
