/* session_state: what sessions are made of. For the session layer alone. Processes:
 * process_state.h.
 * Locks and their order are in base/lock.h. */
#pragma once

#include "base/err.h"
#include "base/lock.h"
#include "core/box.h"
#include "core/changes.h"
#include "core/context.h"
#include "core/image_pool.h"
#include "core/kept.h"
#include "core/prepared.h"
#include "core/process_state.h"
#include "core/ready_ends.h"
#include "core/session_life.h"
#include "core/sessions.h"
#include "core/shadow.h"
#include "policy/policy.h"
#include "store/store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define SANDBOX_UID_ROOT  0u
#define SANDBOX_UID_USER  1000u
#define PROCESSES_RUNNING 200u /* at a time, per session */
#define PROCESSES_KEPT    128u /* that have ended, per session */
#define GROUPS            512u
#define STATE_MAX         (64u << 10)

/* session_samples.c */
struct samples {
    struct session_sample *ring; /* NULL until there is one */
    unsigned count, next;
    bool taking;        /* somebody is just asking the provider */
    uint64_t cpu_usec;  /* at the last one, */
    uint64_t since_ns;  /* which was then: by the clock */
    uint64_t paused_ns; /* since when it is paused: that time does not count */
    uint64_t due_ns;    /* when its controller takes the next; 0: not known yet */
};

/* The owners and killers of 64 command groups. Few sandboxes ever have more than these at a time,
 * and there may be ten thousand sandboxes: the blocks are made when they are needed. */
struct group_block {
    uint64_t owner[64]; /* a process's serial */
    uint8_t kills[64];
};

struct session {
    atomic_uint refs;
    struct sessions *all;
    struct session *next;                         /* in its bucket */
    struct session *next_of_thread, *next_of_key; /* likewise, while it is owned; names_list */
    struct wire_id box_id; /* another one after each sleep; under the lock from then on */
    char *metadata;
    char root_name[SPEC_NAME_MAX + 1];
    char *image, *options;        /* of info.spec; NULL: "" */
    struct pull_watch pull_watch; /* of its maker's thread alone, while it is being made */
    char *key;
    uint64_t key_hash;
    char *arm;               /* of the experiment that it was made in, or NULL */
    _Atomic uint64_t shadow; /* shadow.c's mark; 0: it has none */
    struct policy policy;
    char *policy_text;
    char *network;   /* rules of its way out, or NULL; under the lock once it runs */
    bool owes_trust; /* rules came while it was paused: core/secrets.h */
    /* The last refusals, the n-th of all at n % REFUSALS_KEPT; NULL until there is one. Under the
     * lock, as their number. */
    struct refusal *refusals;
    uint64_t refusal_count;
    /* Under sessions.lock: */
    bool superseded;                 /* another session has its thread */
    bool owned;                      /* somebody's: found and listed; session_step's */
    struct tenant_count *counts_for; /* whose place it has, or NULL; session_step's */

    /* Of info.provider; changed by session_move.c alone. NULL: it is not configured (any more). */
    struct provider *_Atomic provider;
    /* It lived when its provider was last configured: it is told as lost, and its row stays. */
    bool stranded;
    /* session_move.c's. Under the lock: calls wait; where roots of it may be left, as PROVIDER:ROOT
     * with commas between them, or NULL. */
    bool moving;
    char *other_root;
    /* The session that the box was made for before it came here, counted; set by whoever changes
     * this one. */
    struct session *maker;
    struct session *_Atomic heir; /* who is told of the box that was this one's */
    struct rw_lock box_use;
    struct box *box;

    struct lock store_lock; /* its row is being written */
    bool unstored;          /* and never again */

    struct lock lock;
    pthread_cond_t changed;
    enum life life; /* session_step's, as info.state and info.asleep */
    struct session_info info;
    bool lost;              /* the provider said so; its controller ends it */
    atomic_bool looked_at;  /* by one controller at a time: it may just have changed providers */
    atomic_bool unwanted;   /* it is being made, and its end was asked for */
    struct session *target; /* what it moves to, while that is made; the mover's */
    char lost_why[200];
    _Atomic uint64_t changed_last; /* the number of its last note; changes.c */
    uint64_t use_noted_ms;         /* when a use was last noted there */
    unsigned attended;             /* requests in progress: it is not idle */
    /* Somebody is pausing, waking or copying it: whoever wants to, or to end it, waits. */
    bool changing;
    char *note;
    uint64_t paused_at_ms;
    struct samples samples;
    struct process *processes, **process_tail;
    unsigned running;
    unsigned looking;  /* of those, how many nobody is told of: WORKER_LOOKS */
    unsigned starting; /* of those: whose streams are just being made */
    unsigned ending;   /* of those: workers that have answered, and are about to end */
    /* Numbers of command groups: which are taken, which have lost their command but not all of its
     * children, whose each is, and whether somebody is just killing what is in it: such a one is
     * not given to another command. */
    uint64_t groups[GROUPS / 64], lingering[GROUPS / 64];
    struct group_block *group_blocks[GROUPS / 64]; /* NULL: none of these was ever taken */
    uint64_t next_serial;
    bool shell_busy;
    struct msg_list_writer env; /* NAME=VALUE */
    char cwd[SPEC_PATH_MAX];
    uint64_t shell_version; /* of env and cwd: another one whenever they change */
    struct prepared prepared;
    struct contexts *_Atomic contexts; /* NULL until there is one */
    uint64_t oom_seen, pids_seen;
    /* kept.c: bytes of output, and the tenant that they count for; without a lock. */
    _Atomic uint64_t kept;
    struct tenant_count *_Atomic kept_by;
    bool needs_sync; /* adopted while it was paused: asked when it is resumed */
    enum { SYNC_NONE, SYNC_ASKED, SYNC_TOLD } sync; /* adopted: has the box told of its commands? */
    deadline sync_due;
    /* Differs from its row; what differs may be on its way there, which is not yet in it. */
    enum { DIRTY_NOT, DIRTY, DIRTY_ON_ITS_WAY } dirty;
};
_Static_assert(sizeof(struct session) < 7232, "ten thousand of them shall fit into 150 MiB");

struct queue_entry {
    struct queue_entry *next;
    const char *tenant;
    bool may_start;
    pthread_cond_t cond;
};

struct tenant_count {
    struct tenant_count *next;
    char name[64];
    unsigned live;         /* sandboxes that have a place */
    unsigned let_in;       /* creations that hold one for theirs */
    unsigned pulls;        /* of images, under way; images.c */
    _Atomic uint64_t kept; /* bytes of output; kept.c */
};

/* recorder.c: a queue of processes that something is to be done about, and its thread. */
struct recorder {
    struct sessions *all;
    struct lock lock;
    pthread_cond_t cond;
    struct process *first, **last;
    deadline wake; /* when the thread, asleep, will look by itself; 0: it is awake */
    bool stopping;
    pthread_t thread;
};

/* controller.c, boxes.c: the thread that looks at a provider's sessions, and what it alone knows.
 */
struct controller {
    struct sessions *all;
    unsigned place; /* its provider's, in the table */
    pthread_t thread;
    bool due;                 /* it is to look now; under sessions.lock, as */
    unsigned boxes;           /* how many there were when it last counted */
    uint64_t samples_rest_ns; /* it takes no samples until then */
    uint64_t boxes_wrong_at;  /* at this step the boxes did not match; 0: they did */
    uint64_t boxes_due_ns;    /* when they are counted next */
};

#define SESSION_BUCKETS 4096u
#define POOL_FILLERS    4u /* at most; see sessions_start */
/* What is kept ready: one kind per profile, and those for code, whose interpreter waits; each
 * without a way out and with one, whose rules allow nothing until it is taken. */
#define POOL_OUT   PROFILE_COUNT
#define POOL_CODE  (2 * PROFILE_COUNT)
#define POOL_KINDS (POOL_CODE + 2)

struct sessions {
    struct sessions_config c;
    int spool_dir;
    struct lock name_lock;
    pthread_cond_t name_cond;     /* one is given back */
    struct name_hold *name_holds; /* one creation per key, or per thread */
    struct lock lock;
    struct session *by_id[SESSION_BUCKETS];
    struct session *by_thread[SESSION_BUCKETS], *by_key[SESSION_BUCKETS];
    unsigned live, let_in; /* the same of all tenants */
    struct tenant_count *tenants;
    struct queue_entry *queue;
    unsigned queue_len;
    pthread_cond_t pulled_cond; /* a tenant has a pull less under way */
    /* pool.c */
    struct session *pool[POOL_KINDS][64];
    unsigned pool_count[POOL_KINDS];  /* ready, */
    unsigned pool_making[POOL_KINDS]; /* being made, */
    unsigned pool_target[POOL_CODE];  /* to be ready */
    uint64_t pool_wanted_ms[POOL_CODE], pool_missed_ms[POOL_CODE];
    bool pool_code_out;    /* the last one who wanted one for code wanted a way out, too */
    bool pool_code_missed; /* and found none; none was made since */
    uint64_t pool_failed_ms, pool_taken_at;
    pthread_cond_t pool_cond;
    atomic_bool pool_owes; /* one was taken, of which the pool was not told yet */
    struct image_pool image_pool;
    struct recorder recorders[PROVIDERS_MAX]; /* one for each provider, and at least one */
    atomic_bool prepare_shells;
    struct kept kept;
    struct changes changes;
    struct attendants attendants;
    struct controller controllers[PROVIDERS_MAX]; /* one for each provider, and at least one */
    struct ready_ends_set ready_ends;
    pthread_t fillers[POOL_FILLERS];
    unsigned recorder_count, controller_count, filler_count; /* threads that were started */
    bool stopping;
    pthread_cond_t control_cond;
    uint64_t surplus_due_ns; /* when the oldest that are gone are forgotten next; under the lock */
    struct sessions_stats stats; /* under lock */
    uint64_t egress_number;     /* of the last connection that was told; of the thread that tells */
    atomic_uint_fast64_t steps; /* that sandboxes have taken; boxes.c */
    struct shadows *shadows;    /* shadow.c; NULL: without a router there are none */
    /* snapshots.c */
    struct lock snapshot_lock;
    struct snapshot *snapshots; /* newest first */
    unsigned snapshots_to_go;
    struct copying *copying;    /* roots that are being copied */
    pthread_cond_t copied_cond; /* one is done */
};

/* adopt.c: a command that a box does not know has never been started: it is forgotten. After sync.
 */
void session_settle(struct session *s);

/* adopt_rows.c: makes sessions and processes of the store's rows; each is in its table. */
int sessions_load_rows(struct sessions *all, struct pd_err *e);

/* sessions.c: a thread that no signal comes to. As pthread_create. */
int sessions_start_thread(pthread_t *t, void *(*f)(void *), void *arg);

/* recorder.c, session.c: forgets the oldest that have ended. */
void recorders_init(struct sessions *all);
int recorders_start(struct sessions *all, struct pd_err *e);
void recorders_stop(struct sessions *all); /* asks them to; tasks that are not due stay */
void recorders_join(struct sessions *all);
void recorders_drop(struct sessions *all);
void recorders_done(struct sessions *all);
void recorder_wake(struct sessions *all); /* kept.due is set */
void session_trim(struct session *s);

/* session_shell.c: what a command's environment is, and what a shell command leaves. */
int shell_script(const char *command, bool is_bash, struct buf *out);
/* Can this line tell its state, by that script? */
bool shell_tells(const char *command, bool is_bash);
/* The script of a shell that waits for its line in this directory, and the text that it waits for.
 */
int shell_prepared_script(const char *cwd, struct buf *out);
int shell_line(const char *command, struct buf *out);
/* Where the box's commands live, if not where a jail's do: then true. */
bool session_place(struct session *s, struct box_place *ret);
/* Is its box on another machine, reached over a link? */
bool session_is_far(struct session *s);
/* A path that is given in a jail's terms, in the box's own: what was /workspace or /home/user is
 * elsewhere. `place` NULL: it is copied. -1 when there is no room. */
int place_path(const struct box_place *place, const char *path, char *out, size_t size);
/* `place` as session_place gave it, or NULL. */
int session_environment(const struct session *s, const struct process_request *r,
                        const struct box_place *place, struct msg_list_writer *out);
/* Pure: reads what the script's trap wrote into the directory and NAME=VALUE strings. */
int shell_state_parse(const char *text, size_t len, char *ret_cwd, size_t cwd_size,
                      struct msg_list_writer *ret_env, struct pd_err *e);
/* Takes over the state that the process left; true when it was good. */
bool session_take_state(struct session *s, struct process *p);
const char *env_find(const struct msg_list *l, const char *name);

/* session_start.c */
/* The ends of streams that the sandbox gets. Closed when the request is on its way. */
struct far_ends {
    int fd[4];
};
#define FAR_ENDS_NONE ((struct far_ends){{-1, -1, -1, -1}})
void far_ends_done(struct far_ends *f);
int session_make_pipe(int *ret_near, int *ret_far, bool near_reads, struct pd_err *e);
/* The pipes of a request, or its terminal. */
int session_make_streams(struct process *p, const struct process_request *r, struct far_ends *far,
                         struct pd_err *e);
/* Sends the request to the box. */
int session_send(struct process *p, const struct process_request *r, uint32_t uid,
                 const struct far_ends *far, struct pd_err *e);

/* session.c */
/* May the session's policy have these variables set? */
int session_check_variables(const struct session *s, const struct msg_list *env, struct pd_err *e);
/* `provider`: NULL for adopt.c, which finds it. */
struct session *session_new(struct sessions *all, struct provider *provider);
/* The specification, with copies of its image and options. Once, before anybody else has the
 * session. -1 without memory. */
int session_set_spec(struct session *s, const struct spec *spec);
/* Writes its row. Rows are written one after the other, each as the session is when its turn comes:
 * no older one replaces a newer. */
int session_store(struct session *s, struct pd_err *e);
/* Takes the step as soon as the row says so. PD_CONFLICT when its end was asked for meanwhile. */
int session_store_step(struct session *s, enum life to, struct pd_err *e);
/* The error of one whose end was asked for while it was being made. With the lock held. -1. */
int session_fail_cancelled(const struct session *s, struct pd_err *e);
/* Deletes its row; none is written any more. */
int session_unstore(struct session *s, struct pd_err *e);
int session_usable(struct session *s, struct pd_err *e); /* with its lock held */
/* There is no box to ask: says why. -1. Without its lock. */
int session_no_box(struct session *s, struct pd_err *e);
/* All with the lock held. 0: none is free. */
unsigned group_take(struct session *s, uint64_t owner);
/* The number that a command of an earlier daemon has. */
void group_adopt(struct session *s, unsigned group, uint64_t owner);
/* The command has ended, and processes of it are left: the controller looks when they have, too. */
void group_linger(struct session *s, unsigned group, uint64_t owner);
/* None of them belongs to a command any more; one that is just being killed stays taken. */
void groups_forget(struct session *s);
void group_release(struct session *s, unsigned group, uint64_t owner); /* 0: whosever it is */
/* Is it still this one's? Then it stays so until group_kill_end. */
bool group_kill_begin(struct session *s, unsigned group, uint64_t owner);
void group_kill_end(struct session *s, unsigned group);
struct process *session_process_by_id(struct session *s, struct wire_id id);
void session_add_process(struct session *s, struct process *p); /* both with the lock held */
void session_remove_process(struct session *s, struct process *p);
/* Waits for nobody: marks, and leaves the rest to the controller. */
void session_mark_lost(struct session *s, const char *why);
/* Has the root of one that is gone deleted. -1: not now; its name stays in the row. */
int session_remove_root(struct session *s);
extern const struct box_events session_box_events;

/* session_end.c: takes away what ran in it; `forget`: the rows, too, because the session stays. */
void session_bury(struct session *s, bool forget);
/* The maker of a sandbox gives it up: it has failed, or its end was asked for meanwhile. Nothing of
 * it stays, but that it is gone if it was cancelled. */
void session_abandon(struct session *s, const char *reason);
/* Takes away one whose end was asked for, and that nobody makes: an earlier daemon did. */
void session_finish_end(struct session *s);
/* As session_end, but 1 at once when somebody is changing, making or ending the session. */
int session_end_unless_changing(struct session *s, enum session_end why, const char *reason,
                                struct pd_err *e);
/* Asks for the end of one that is being made, and does not wait. Nothing happens to any other. */
void session_cancel(struct session *s, enum session_end why, const char *reason);
/* session_pause.c: changes of one session happen one after the other. */
int session_begin_change(struct session *s, struct pd_err *e);
void session_end_change(struct session *s);
/* The controller's: its life is over, and it is to be paused then. 0: it is, or it is not due any
 * more, or somebody is just changing it; -1: it cannot be. */
int session_pause_at_end(struct session *s, struct pd_err *e);
/* adopt.c's: an earlier daemon was putting it to sleep, or waking it: it sleeps. */
void session_finish_sleep(struct session *s, struct box *box);
/* session_judge.c: may the command run where the session is? Moves the session if it has to.
 * PD_ISOLATION, PD_INVALID with what to do otherwise. `ret_place` (or NULL): how it is placed. */
int session_judge(struct session *s, const struct process_request *r, struct judgement *ret,
                  struct placement *ret_place, struct pd_err *e);
/* Does it still hold? With the lock held. */
bool judgement_holds(const struct session *s, const struct judgement *j);
/* How often a command is judged again because what a judgement relied on has changed. */
#define JUDGE_TRIES 8u
#define JUDGED_TOO_OFTEN                                                                           \
    "the place, the directory or the variables of sandbox %s changed again and again while a "     \
    "command was judged that depends on them: try again"

/* session_network.c: tells the gate of the box, which the session is about to have, and that it is
 * about to end. Nothing happens where there is no way out. */
int session_open_network(struct session *s, struct box *box, struct pd_err *e);
/* One from the pool has a tenant and rules now. */
int session_take_network(struct session *s, struct pd_err *e);
void session_close_network(struct session *s);
/* As session_set_env, also of one that is paused. */
int session_give_env(struct session *s, const struct msg_list *set, const struct msg_list *unset,
                     struct pd_err *e);

/* session_move.c */
/* The session that an event is for of the box that was made for this one. It lives as long as the
 * box does. */
static inline struct session *session_heir(struct session *s)
{
    struct session *heir = atomic_load(&s->heir);
    return heir ? heir : s;
}
/* Waits until it has moved. With its lock held, which is given up meanwhile. */
int session_await_move(struct session *s, struct pd_err *e);
/* Deletes the roots that moves have left, of this daemon or an earlier one: all of them, for
 * whoever changes it; those of one provider, for that one's controller; or those of all, for
 * whoever has ended it. Those that cannot be deleted now stay. */
void session_finish_move(struct session *s);
void session_finish_move_at(struct session *s, const struct provider *at);
void session_finish_moves(struct session *s);
/* session_samples.c */
/* The controller's: takes one when it is due, `every` so often. */
void samples_look(struct controller *c, struct session *s, uint64_t every);
/* How often each of so many sessions has its turn. */
uint64_t samples_every(size_t sessions);
void samples_rebase(struct session *s, uint64_t cpu_usec); /* another box; with the lock held */
void samples_pause(struct session *s, bool paused);        /* with the lock held */
/* snapshots.c */
struct snapshot;
/* The root that a new session of this request starts with, or NULL; to be given back. */
struct snapshot *snapshot_hold(struct sessions *all, const char *tenant, const char *id,
                               struct pd_err *e);
void snapshot_release(struct sessions *all, struct snapshot *held);
struct provider *snapshot_provider(const struct snapshot *held);
/* The rules of the way out that its sandbox had, or NULL. */
const char *snapshot_rules(const struct snapshot *held);
int snapshot_copy(struct sessions *all, const struct snapshot *held, const char *to,
                  struct pd_err *e);
/* Copies the session's root, whatever it is doing; its processes stand still meanwhile. */
int session_copy_root(struct session *s, const char *to, struct pd_err *e);
/* May roots be copied here? */
int snapshots_possible(const struct sessions *all, const struct provider *p, struct pd_err *e);
int snapshots_load(struct sessions *all, struct pd_err *e);
/* Removes what is to go at this provider; its controller's. */
void snapshots_sweep(struct sessions *all, const struct provider *at);

/* sessions_list.c: "CREATED_MS-ID" of the last one that was given. */
int session_read_cursor(const char *text, uint64_t *ret_ms, const char **ret_id, struct pd_err *e);

/* sessions.c */
unsigned sessions_bucket(const char *text); /* of a hash table */
struct session **sessions_place(struct sessions *all, const char *id);
/* Puts a new one into the table, or takes one from the pool: found from now on if the step says so.
 * -1: it was lost meanwhile. */
int sessions_register(struct session *s, enum life to);
/* Takes it out of the table. */
void sessions_forget(struct session *s);

/* sessions_create.c */
/* An event of the session `owner`, and for whoever made the request. */
void session_note_pull(void *owner, const struct msg_progress *now);
/* A new one with an id and the name of its root; in no table yet. NULL without memory. */
struct session *sessions_prepare(struct sessions *all, struct provider *provider,
                                 const struct spec *spec);
/* sessions_create, and with `fork_of` the files are a copy of that one's. */
int sessions_create_from(struct sessions *all, const struct session_request *r,
                         struct session *fork_of, struct session **ret, bool *ret_known,
                         struct queue_place *ret_place, struct pd_err *e);
int sessions_make_box(struct session *s, struct pd_err *e);
/* The same with a patience of the caller's own, in nanoseconds. */
int sessions_make_box_in(struct session *s, uint64_t patience, struct pd_err *e);

/* Longer than a creation may take, with a copy of files. */
#define MAKE_PATIENCE (300 * NS_PER_S)

/* sessions_names.c */
/* Puts a session into the tables by thread and key, or takes it out: session_step's, as `owned`.
 * With the lock of all held; its names do not change meanwhile. */
void names_list(struct session *s);
void names_unlist(struct session *s);
/* A reference to the session that was made with this key, or NULL. */
struct session *sessions_look_for_key(struct sessions *all, const char *tenant, const char *key);
/* The youngest of that thread, as an older one is gone; or NULL. */
struct session *sessions_look_for_thread(struct sessions *all, const char *tenant,
                                         const char *user_id, const char *thread_id);
/* The key and the thread of a creation; on the stack of the thread that creates. */
struct name_hold {
    struct name_hold *next;
    const struct session_request *r;
};
/* Two requests with one key, or for one thread, at the same moment: the second finds what the first
 * has made. It may take minutes, so nobody else waits: names are compared, not their hashes. */
int names_hold(struct sessions *all, struct name_hold *h, struct pd_err *e);
void names_release(struct sessions *all, const struct name_hold *h);

/* pool.c */
struct session *pool_take(struct sessions *all, const struct provider *provider,
                          const struct session_request *r);
/* Takes one that is about to end out of the pool. Is the pool's reference the caller's now? With
 * the lock of all held. */
bool pool_drop(struct session *s);
void *pool_main(void *sessions);
/* Is it still as the pool left it, and not lost? */
bool pool_is_ready(struct session *s);
/* The next step of one that a pool makes, unless it was lost. */
int pool_step(struct session *s, enum life to, struct pd_err *e);
void pool_set_targets(struct sessions *all); /* as few as are always kept; with the lock held */
unsigned pool_filling(const struct sessions *all); /* how many are being made; likewise */
/* boxes.c: counts the boxes of the controller's provider when it is time, and compares. */
void boxes_look(struct controller *c);
/* controller.c */
void controllers_init(struct sessions *all);
int controllers_start(struct sessions *all, struct pd_err *e);
void controllers_join(struct sessions *all);
void controllers_wake(struct sessions *all); /* all of them */
void controller_wake(struct session *s);     /* its own; without a session's lock */
/* Its provider. NULL: there is none in the table. */
struct provider *controller_provider(const struct controller *c);
/* Every session, held; with the lock held. */
struct session **sessions_hold_all(struct sessions *all, size_t *ret_count);
void queue_wake(struct sessions *all);                    /* with the lock held */
bool queue_try(struct sessions *all, const char *tenant); /* true: let in, without waiting */
int queue_enter(struct sessions *all, const char *tenant, uint64_t timeout_ms,
                struct queue_place *ret, struct pd_err *e);
void queue_leave(struct sessions *all, const char *tenant); /* let in, but it has failed */
/* Both with the lock held. A tenant's counts are made when it is first seen, and kept; NULL without
 * memory. What one that was let in holds is given back, for queue_wake or for its sandbox. */
struct tenant_count *queue_tenant(struct sessions *all, const char *tenant);
void queue_give_back(struct sessions *all, struct tenant_count *t);
