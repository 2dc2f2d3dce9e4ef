/* One session: what is known of it, its row in the store, the numbers of its commands' groups, its
 * list of processes and its environment. What it may become is in session_life.c. */
#include "core/session.h"

#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/json.h"
#include "policy/policy.h"

const char *session_state_name(enum session_state s)
{
    static const char *const names[] = {"creating", "running", "paused", "stopping", "gone"};
    return (unsigned)s < SESSION_STATE_COUNT ? names[s] : "unknown";
}

const char *session_end_name(enum session_end e)
{
    static const char *const names[] = {NULL, "killed", "expired", "idle", "failed", "lost"};
    return (unsigned)e < END_COUNT ? names[e] : NULL;
}

/* ---- life ---- */

struct session *session_new(struct sessions *all, struct provider *provider)
{
    struct session *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    atomic_init(&s->refs, 1);
    s->all = all;
    s->provider = provider;
    snprintf(s->info.provider, sizeof s->info.provider, "%s", provider ? provider->name : "");
    s->env = MSG_LIST_WRITER_INIT;
    s->process_tail = &s->processes;
    s->info.spec = SPEC_DEFAULT;
    s->groups[0] = 1; /* number 0 means none */
    lock_init(&s->lock, LOCK_SESSION);
    lock_init(&s->store_lock, LOCK_ROW);
    cond_init(&s->changed);
    prepared_init(&s->prepared);
    rw_init(&s->box_use, LOCK_BOX, NULL);
    return s;
}

int session_set_spec(struct session *s, const struct spec *spec)
{
    if ((spec->image[0] && !(s->image = strdup(spec->image))) ||
        (spec->options[0] && !(s->options = strdup(spec->options))))
        return -1;

    s->info.spec = *spec;
    s->info.spec.image = s->image ? s->image : "";
    s->info.spec.options = s->options ? s->options : "";
    return 0;
}

struct session *session_ref(struct session *s)
{
    atomic_fetch_add(&s->refs, 1);
    return s;
}

void session_unref(struct session *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    session_unref(s->maker);

    free(s->other_root);
    free(s->arm);
    msg_list_writer_done(&s->env);
    policy_done(&s->policy);
    prepared_done(&s->prepared);
    contexts_done(s->contexts);
    free(s->policy_text);
    free(s->network);
    free(s->refusals);
    free(s->image);
    free(s->options);
    free(s->metadata);
    free(s->note);
    free(s->samples.ring);
    for (unsigned i = 0; i < GROUPS / 64; i++)
        free(s->group_blocks[i]);
    free(s->key);

    lock_done(&s->lock);
    lock_done(&s->store_lock);
    pthread_cond_destroy(&s->changed);
    rw_done(&s->box_use);
    free(s);
}

/* Of a paused one: as it would be if it were resumed now. */
static uint64_t expiry(const struct session *s)
{
    uint64_t now = time_now_ms();
    int paused = s->info.state == SESSION_PAUSED && now > s->paused_at_ms;
    uint64_t life = s->info.created_ms + s->info.max_life_ms + (paused ? now - s->paused_at_ms : 0);
    uint64_t idle = (paused ? now : s->info.last_used_ms) + s->info.idle_timeout_ms;
    return life < idle ? life : idle;
}

void session_get(struct session *s, struct session_info *ret)
{
    lock_take(&s->lock);
    *ret = s->info;
    ret->expires_ms = expiry(s);
    ret->processes = s->running - s->looking;
    lock_release(&s->lock);

    ret->spec.root_dir = ret->spec.root_name = "";
}

char *session_metadata(struct session *s)
{
    return strdup(s->metadata ? s->metadata : "{}");
}

char *session_policy(struct session *s)
{
    return strdup(s->policy_text ? s->policy_text : "open");
}

int session_must(const struct session *s, enum provider_can bit, struct pd_err *e)
{
    return provider_must(s->provider, bit, e);
}

uint64_t session_exec_timeout(const struct session *s, uint64_t usual)
{
    return s->provider && s->provider->timeout_ns ? s->provider->timeout_ns : usual;
}

char *session_note(struct session *s)
{
    lock_take(&s->lock);
    char *copy = strdup(s->note ? s->note : "");
    lock_release(&s->lock);
    return copy;
}

int session_set_note(struct session *s, const char *note, struct pd_err *e)
{
    if (strlen(note) > NOTE_MAX)
        return pd_fail(e, PD_TOO_LARGE, "a note is longer than %u bytes", NOTE_MAX);
    char *copy = strdup(note);
    if (!copy)
        return pd_fail(e, PD_CAPACITY, "no memory for a note");

    lock_take(&s->lock);
    int r = s->info.state == SESSION_PAUSED && !s->lost ? 0 : session_usable(s, e);
    if (r == 0) {
        char *old = s->note;
        s->note = copy;
        copy = old;
    }

    lock_release(&s->lock);

    free(copy);
    return r < 0 ? -1 : session_store(s, e);
}

int session_usable(struct session *s, struct pd_err *e)
{
    char when[32];
    if (s->lost && s->info.state < SESSION_STOPPING)
        return pd_fail(e, PD_SESSION_LOST,
                       "sandbox %s was lost: %.150s; use PUT /v1/sessions with "
                       "auto_retry, or create another",
                       s->info.id, s->lost_why);

    switch (s->info.state) {
    case SESSION_RUNNING:
        return 0;
    case SESSION_PAUSED:
        return pd_fail(e, PD_PAUSED, "sandbox %s is paused: POST /v1/sandboxes/%s/resume first",
                       s->info.id, s->info.id);
    case SESSION_CREATING:
        return pd_fail(e, PD_CONFLICT, "sandbox %s is still being made", s->info.id);
    default:
        break;
    }

    time_format_ms(s->info.ended_ms ? s->info.ended_ms : time_now_ms(), when);

    switch (s->info.end) {
    case END_EXPIRED:
    case END_IDLE:
        return pd_fail(e, PD_SESSION_EXPIRED, "sandbox %s expired at %s: %.120s", s->info.id, when,
                       s->info.end_reason);
    case END_KILLED:
        return pd_fail(e, PD_NOT_FOUND, "sandbox %s was ended at %s: %.120s", s->info.id, when,
                       s->info.end_reason);
    default:
        return pd_fail(e, PD_SESSION_LOST,
                       "sandbox %s was lost at %s: %.120s; use PUT /v1/sessions with auto_retry, "
                       "or create another",
                       s->info.id, when, s->info.end_reason);
    }
}

int session_no_box(struct session *s, struct pd_err *e)
{
    lock_take(&s->lock);
    int r = session_usable(s, e);
    lock_release(&s->lock);
    return r < 0 ? -1 : pd_fail(e, PD_SESSION_LOST, "the sandbox is gone");
}

void session_touch(struct session *s)
{
    lock_take(&s->lock);
    session_used(s);
    lock_release(&s->lock);
}

void session_attend_begin(struct session *s)
{
    lock_take(&s->lock);
    s->attended++;
    session_used(s);
    lock_release(&s->lock);
}

void session_attend_end(struct session *s)
{
    lock_take(&s->lock);
    s->attended--;
    session_used(s);
    lock_release(&s->lock);
}

/* ---- numbers of command groups ---- */

static uint64_t group_bit(unsigned group)
{
    return 1ull << group % 64;
}

static uint64_t group_owner(const struct session *s, unsigned group)
{
    const struct group_block *b = s->group_blocks[group / 64];
    return b ? b->owner[group % 64] : 0;
}

static unsigned group_kills(const struct session *s, unsigned group)
{
    const struct group_block *b = s->group_blocks[group / 64];
    return b ? b->kills[group % 64] : 0;
}

/* NULL without memory. */
static struct group_block *group_block_make(struct session *s, unsigned group)
{
    struct group_block **b = &s->group_blocks[group / 64];
    if (!*b)
        *b = calloc(1, sizeof **b);
    return *b;
}

static bool group_give(struct session *s, unsigned group, uint64_t owner)
{
    struct group_block *b = group_block_make(s, group);
    if (!b)
        return false;

    b->owner[group % 64] = owner;
    s->groups[group / 64] |= group_bit(group);
    return true;
}

unsigned group_take(struct session *s, uint64_t owner)
{
    for (unsigned i = 0; i < GROUPS / 64; i++)
        if (~s->groups[i]) {
            unsigned group = i * 64 + (unsigned)__builtin_ctzll(~s->groups[i]);
            return group_give(s, group, owner) ? group : 0;
        }
    return 0;
}

void group_adopt(struct session *s, unsigned group, uint64_t owner)
{
    if (!group || group >= GROUPS || group_give(s, group, owner))
        return;

    /* Nobody's then: it is free when it is empty. */
    s->groups[group / 64] |= group_bit(group);
    s->lingering[group / 64] |= group_bit(group);
}

void group_linger(struct session *s, unsigned group, uint64_t owner)
{
    if (group && group_owner(s, group) == owner)
        s->lingering[group / 64] |= group_bit(group);
}

void group_release(struct session *s, unsigned group, uint64_t owner)
{
    if (!group || (owner && group_owner(s, group) != owner))
        return;
    if (group_kills(s, group)) { /* the controller looks again */
        s->lingering[group / 64] |= group_bit(group);
        return;
    }

    if (s->group_blocks[group / 64])
        s->group_blocks[group / 64]->owner[group % 64] = 0;
    s->groups[group / 64] &= ~group_bit(group);
    s->lingering[group / 64] &= ~group_bit(group);
}

void groups_forget(struct session *s)
{
    for (unsigned g = 1; g < GROUPS; g++) {
        struct group_block *b = s->group_blocks[g / 64];
        if (b)
            b->owner[g % 64] = 0;

        /* Somebody may be about to kill what is in it, in whatever box there is by then: the
         * controller gives the number free later. */
        if (group_kills(s, g)) {
            s->groups[g / 64] |= group_bit(g);
            s->lingering[g / 64] |= group_bit(g);
        } else {
            s->groups[g / 64] &= ~group_bit(g);
            s->lingering[g / 64] &= ~group_bit(g);
        }
    }
}

bool group_kill_begin(struct session *s, unsigned group, uint64_t owner)
{
    if (!group || group_owner(s, group) != owner || group_kills(s, group) == UINT8_MAX)
        return false;

    struct group_block *b = group_block_make(s, group);
    if (!b)
        return false;
    b->kills[group % 64]++;
    return true;
}

void group_kill_end(struct session *s, unsigned group)
{
    s->group_blocks[group / 64]->kills[group % 64]--;
}

/* ---- processes ---- */

void session_add_process(struct session *s, struct process *p)
{
    *s->process_tail = process_ref(p);
    s->process_tail = &p->next;
}

void session_remove_process(struct session *s, struct process *p)
{
    struct process **at = &s->processes;
    while (*at && *at != p)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = p->next;
    if (!p->next)
        s->process_tail = at;
    process_unref(p);
}

struct process *session_process_by_id(struct session *s, struct wire_id id)
{
    struct process *found = NULL;

    lock_take(&s->lock);

    for (struct process *p = s->processes; p && !found; p = p->next)
        if (wire_id_equal(p->id, id))
            found = process_ref(p);
    lock_release(&s->lock);
    return found;
}

struct process *session_find_process(struct session *s, const char *pid_or_id, struct pd_err *e)
{
    struct process *found = NULL;
    int found_running = 0;

    lock_take(&s->lock);

    for (struct process *p = s->processes; p; p = p->next) {
        char hex[33], pid[16];
        if (p->unseen)
            continue;
        wire_id_text(p->id, hex);
        lock_take(&p->lock);
        snprintf(pid, sizeof pid, "%d", p->pid);
        int running = process_is_live(p);
        lock_release(&p->lock);
        if (strcmp(hex, pid_or_id) != 0 && (pid[0] == '0' || strcmp(pid, pid_or_id) != 0))
            continue;
        /* Pids are used again: the youngest is meant, and one that runs before one that ended. */
        if (!found || running >= found_running) {
            process_unref(found);
            found = process_ref(p);
            found_running = running;
        }
    }

    lock_release(&s->lock);

    if (!found)
        pd_fail(e, PD_NOT_FOUND, "sandbox %s has no process '%.40s': GET .../processes lists them",
                s->info.id, pid_or_id);
    return found;
}

void session_each_process(struct session *s, int (*each)(struct process *p, void *arg), void *arg)
{
    struct process **all = NULL;
    unsigned count = 0;

    lock_take(&s->lock);

    for (struct process *p = s->processes; p; p = p->next)
        count += !p->unseen;
    all = calloc(count ? count : 1, sizeof *all);
    count = 0;

    for (struct process *p = s->processes; p && all; p = p->next)
        if (!p->unseen)
            all[count++] = process_ref(p);
    lock_release(&s->lock);

    int stop = 0;
    for (unsigned i = 0; i < count && all; i++) {
        stop = stop || each(all[i], arg);
        process_unref(all[i]);
    }

    free(all);
}

/* Forgets the oldest that have ended, with their output; those that nobody sees at once. */
void session_trim(struct session *s)
{
    struct process *gone = NULL;

    lock_take(&s->lock);
    unsigned kept = 0;
    for (struct process *p = s->processes; p; p = p->next)
        kept += !p->unseen;

    for (struct process *p = s->processes, *next; p; p = next) {
        next = p->next;
        /* A process that is held has not been read to its end: a request is to be answered. */
        bool is_held = atomic_load(&p->refs) > 1;
        /* Those of contexts are let go by these. */
        bool stays =
            p->unseen ? is_held && !p->driver : kept <= PROCESSES_KEPT || p->driver || is_held;
        if (stays || !process_is_settled(p))
            continue;
        kept -= !p->unseen;
        process_ref(p);
        session_remove_process(s, p);
        p->next = gone;
        gone = p;
    }

    lock_release(&s->lock);

    while (gone) {
        struct process *p = gone;
        struct pd_err e;
        gone = p->next;
        p->next = NULL;
        process_discard_output(p);
        if (p->stored)
            (void)s->all->c.store->delete_process(s->all->c.store, p->id.bytes, &e);
        process_unref(p);
    }
}

/* ---- environment ---- */

int session_get_env(struct session *s, struct buf *ret_json, char *ret_cwd, size_t size)
{
    struct json j = JSON_INIT(ret_json);

    lock_take(&s->lock);
    struct msg_list env = msg_list_of(&s->env);
    snprintf(ret_cwd, size, "%s", s->cwd);
    json_open(&j, '{');
    uint32_t pos = 0;
    for (const char *v; (v = msg_list_next(&env, &pos));) {
        char name[260];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(v, "="), v);
        json_key(&j, name);
        json_cstr(&j, v + strcspn(v, "=") + 1);
    }

    json_close(&j, '}');
    lock_release(&s->lock);
    return ret_json->overflow ? -1 : 0;
}

int session_check_variables(const struct session *s, const struct msg_list *env, struct pd_err *e)
{
    uint32_t pos = 0;
    for (const char *v; (v = msg_list_next(env, &pos));) {
        char name[260];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(v, "="), v);
        if (policy_check_variable(&s->policy, name, e) < 0)
            return -1;
    }

    return 0;
}

/* Of one that is paused, too, for what its next command finds. */
static int change_env(struct session *s, bool may_be_paused, const struct msg_list *set,
                      const struct msg_list *unset, const char *cwd, struct pd_err *e)
{
    struct msg_list_writer merged = MSG_LIST_WRITER_INIT;
    int bad = 0;
    if (session_check_variables(s, set, e) < 0)
        return -1;
    if (cwd && (cwd[0] != '/' || strlen(cwd) >= SPEC_PATH_MAX))
        return pd_fail(e, PD_INVALID, "cwd '%.100s': must be an absolute path", cwd);

    lock_take(&s->lock);
    bool is_paused = s->info.state == SESSION_PAUSED && !s->lost;
    if (!(may_be_paused && is_paused) && session_usable(s, e) < 0) {
        lock_release(&s->lock);
        return -1;
    }

    struct msg_list before = msg_list_of(&s->env);
    uint32_t pos = 0;
    for (const char *v; (v = msg_list_next(&before, &pos));) {
        int dropped = env_find(set, v) != NULL;
        uint32_t at = 0;
        for (const char *u; (u = msg_list_next(unset, &at));)
            dropped |= !strncmp(u, v, strlen(u)) && v[strlen(u)] == '=';
        if (!dropped)
            bad |= msg_list_add(&merged, v);
    }

    pos = 0;

    for (const char *v; (v = msg_list_next(set, &pos));)
        bad |= msg_list_add(&merged, v);
    if (merged.text.len > STATE_MAX)
        bad = 1;
    if (!bad) {
        struct msg_list_writer old = s->env;
        s->env = merged;
        merged = old;
        s->shell_version++;
        if (cwd)
            memcpy(s->cwd, cwd, strlen(cwd) + 1);
    }

    lock_release(&s->lock);

    msg_list_writer_done(&merged);
    return bad ? pd_fail(e, PD_TOO_LARGE, "the environment is longer than %u bytes", STATE_MAX)
               : session_store(s, e);
}

int session_set_env(struct session *s, const struct msg_list *set, const struct msg_list *unset,
                    const char *cwd, struct pd_err *e)
{
    return change_env(s, false, set, unset, cwd, e);
}

int session_give_env(struct session *s, const struct msg_list *set, const struct msg_list *unset,
                     struct pd_err *e)
{
    return change_env(s, true, set, unset, NULL, e);
}
