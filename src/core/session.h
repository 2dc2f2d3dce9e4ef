/* session: one sandbox and whose it is.
 *
 *   creating -> running <-> paused -> stopping -> gone (killed | expired | failed | lost)
 *
 * One that is paused may be asleep: without a box, its files kept. A session is found by its id,
 * or by (tenant, user_id, thread_id). It is never silently made anew: who asks for one that is gone
 * is told when and why. Sessions are counted: session_unref. */
#pragma once

#include "core/process.h"
#include "core/provider.h"
#include "router/mode.h"
#include "wire/spec.h"

struct sessions;
struct session;

#define SESSION_ID_LEN   20  /* [a-z0-9], fit for a host name */
#define SESSION_NAME_MAX 128 /* user_id, thread_id */
#define METADATA_MAX     (16u << 10)
#define NOTE_MAX         (64u << 10) /* of a session and of a process */

enum session_state {
    SESSION_CREATING,
    SESSION_RUNNING,
    SESSION_PAUSED,
    SESSION_STOPPING,
    SESSION_GONE,
    SESSION_STATE_COUNT
};
const char *session_state_name(enum session_state s);
enum session_end { END_NONE, END_KILLED, END_EXPIRED, END_IDLE, END_FAILED, END_LOST, END_COUNT };
const char *session_end_name(enum session_end e);

/* How one is paused when its life is over: with its processes, or as by session_sleep. Where its
 * files are in memory it keeps both. */
enum { PAUSE_ALL = 1, PAUSE_FILES = 2 };

/* Whoever wants to know how far an image has come: called on the thread that makes the session. */
struct pull_watch {
    void (*told)(void *arg, struct session *s, const char *image, const struct msg_progress *now);
    void *arg;
};

/* When the image of a sandbox is fetched, where its provider has a store of its own. */
enum image_pull { IMAGE_PULL_USUAL, IMAGE_PULL_NEVER, IMAGE_PULL_MISSING, IMAGE_PULL_ALWAYS };

struct session_request {
    const char *tenant;
    const char *made_by;             /* id of the key, or NULL */
    const char *user_id, *thread_id; /* both or none (NULL) */
    const char *template_name;       /* NULL: "default" */
    const char *provider;            /* NULL: the router's choice */
    enum run_mode mode;              /* what its commands may run in */
    const char *metadata;            /* a JSON object of strings, or NULL */
    const char *note;                /* for session_note; NULL: none */
    const char *snapshot; /* id of a snapshot of the tenant: the root starts as its copy; or NULL */
    struct msg_list env;
    const char *cwd;          /* NULL: /workspace */
    const char *policy;       /* "open" (also NULL), "restricted", or JSON */
    const char *network;      /* with NETWORK_GATE: the rules of its way out; see session_network */
    bool keeps_network;       /* says nothing of it: as the snapshot that it is made from */
    struct spec spec;         /* limits, profile; root fields are filled in */
    bool disk_asked;          /* a limit of its files was asked for, not all providers have one */
    bool limits_asked;        /* likewise another limit */
    uint64_t idle_timeout_ms; /* 0: the default */
    uint64_t max_life_ms;     /* 0: the default */
    uint64_t queue_timeout_ms; /* how long it may wait for capacity */
    int pause_at_end;          /* when its life is over it is paused, not ended: enum */
    bool auto_retry;           /* get-or-create: a lost one is made anew, and said so */
    struct pull_watch pull_watch;
    const char *image_from;  /* where its image comes from if that is not its name; or NULL */
    const char *image_login; /* credentials for that, as in core/images.h; or NULL */
    enum image_pull pull;    /* USUAL: as the server does it, which also may forbid it */
    const char *key;         /* Idempotency-Key or NULL */
    uint64_t key_hash;
};

struct session_info {
    char id[SESSION_ID_LEN + 1];
    char tenant[64];
    char made_by[24]; /* id of the key that it was made with, or "" */
    char user_id[SESSION_NAME_MAX + 1], thread_id[SESSION_NAME_MAX + 1]; /* "" when it has none */
    char template_name[64], provider[32], reason[128];
    enum session_state state;
    enum session_end end;
    char end_reason[200];
    enum rung rung;
    struct spec spec; /* without roots; image and options live as long as the session */
    uint64_t created_ms, expires_ms, last_used_ms, ended_ms; /* since the epoch */
    uint64_t idle_timeout_ms, max_life_ms;
    bool from_pool;
    int pause_at_end;
    enum run_mode mode;
    bool asleep;    /* paused without memory: there are files, but no process and no box */
    bool recreated; /* by auto_retry, in place of `replaces` */
    char replaces[SESSION_ID_LEN + 1];
    unsigned processes;
};

struct session *session_ref(struct session *s);
void session_unref(struct session *s);
void session_get(struct session *s, struct session_info *ret);
/* Copies of the metadata's JSON and of the policy as it was asked for ("open", "restricted", or
 * JSON), to be freed. */
char *session_metadata(struct session *s);
char *session_policy(struct session *s);
/* The rules of its way out: one layer in the format of gate/rules.h, "layer off" where it has none.
 * A copy, to be freed; NULL without memory. */
char *session_network(struct session *s);
/* Other rules, which hold when it returns 0: connections that they do not allow are cut.
 * One that was made without a way out gets it now; PD_PAUSED while its box stands still,
 * PD_UNSUPPORTED where there can be none. PD_CAPACITY: they are stored, and the gate could not be
 * told yet. On any session that is not gone. */
int session_set_network(struct session *s, const char *rules, struct pd_err *e);
/* What it was refused on its way out. `session_refusals` gives those since the mark, the same ones
 * counted together, the oldest first: what the gate has told or tells in a moment. -1: it has no
 * way out. */
#define REFUSALS_KEPT 32u
struct refusal {
    char host[256]; /* the name, or the address */
    char why[96];
    unsigned port, times;
};
uint64_t session_refusals_mark(struct session *s);
int session_refusals(struct session *s, uint64_t mark, struct refusal ret[REFUSALS_KEPT]);
/* Can the session's provider do it? Else PD_UNSUPPORTED, with what to do instead. For doors that
 * promise something which is done later. */
int session_must(const struct session *s, enum provider_can bit, struct pd_err *e);
/* The time-out of a command for which none was asked: the provider's own, or `usual`. */
uint64_t session_exec_timeout(const struct session *s, uint64_t usual);
/* A text that somebody above the session layer keeps with the session: stored, and never looked
 * into. "" if there is none; a copy, to be freed (NULL without memory). Setting one is stored when
 * it returns 0; PD_TOO_LARGE beyond NOTE_MAX. On any session that is not gone. */
char *session_note(struct session *s);
int session_set_note(struct session *s, const char *note, struct pd_err *e);

/* How a command was placed that asked for a mode, or whose session is in mode auto. */
struct placement {
    enum run_mode mode; /* MODE_NONE: nothing was asked for */
    enum rung rung;
    char provider[32];
    char reason[200];
};
/* Starts a command. With a key that was used before, gives the process of the first time and sets
 * *ret_known. Fails with PD_SESSION_*, PD_PAUSED, PD_POLICY, PD_CAPACITY, PD_INVALID. A command
 * that init refuses (not found ...) is a process that ended at once: see process_info.refused. */
int session_start(struct session *s, const struct process_request *r, struct process **ret,
                  bool *ret_known, struct pd_err *e);
/* By pid in the sandbox, or by id (32 hex digits). PD_NOT_FOUND. */
struct process *session_find_process(struct session *s, const char *pid_or_id, struct pd_err *e);
/* Every process, oldest first: calls `each` with a held process; stops when it returns non-zero. */
void session_each_process(struct session *s, int (*each)(struct process *p, void *arg), void *arg);

/* A call of init's file worker (docs/workers.md): runs as the user and streams through pipes.
 * *ret_in: its input, or -1 when not wanted; *ret_out: its output; *ret_go: one byte 'C' commits.
 * The call ends by session_worker_end, which closes all three; `abort` kills it first. */
struct worker_call {
    struct session *session;
    struct process *process;
    int in, out, go;
};
/* WORKER_REACH: where the user may become root (profile dev), it may do what root may; what it
 * makes is the user's all the same. WORKER_MOVES: session_move's own, for which nobody waits.
 * WORKER_LOOKS: nobody's use of the sandbox, which stays as idle as it was: the server's own looks,
 * and those of clients who say so. PD_CONFLICT while it moves. */
enum { WORKER_INPUT = 1, WORKER_COMMIT = 2, WORKER_REACH = 4, WORKER_MOVES = 8, WORKER_LOOKS = 16 };
int session_worker(struct session *s, const struct msg_list *argv, const char *user, unsigned flags,
                   struct worker_call *ret, struct pd_err *e);
void session_worker_end(struct worker_call *c, int abort);

/* The environment (a JSON object of strings) and the directory of the session's next command. */
int session_get_env(struct session *s, struct buf *ret_json, char *ret_cwd, size_t size);
int session_set_env(struct session *s, const struct msg_list *set, const struct msg_list *unset,
                    const char *cwd, struct pd_err *e);

/* Notes that somebody uses it: the idle clock starts anew. */
void session_touch(struct session *s);
/* A request that uses it begins, or ends: meanwhile it is not idle. */
void session_attend_begin(struct session *s);
void session_attend_end(struct session *s);
int session_extend(struct session *s, uint64_t idle_timeout_ms, uint64_t expires_in_ms,
                   struct pd_err *e);
/* Sets when its life ends; the idle time-out is left alone. Of a paused one the clocks stand still:
 * what `at_ms` leaves from now on is what it has left when it is resumed. So who wakes one whose
 * life was over (pause_at_end) calls this first, then session_resume. `only_extend`: an earlier
 * time than the one it has changes nothing, and is no error. */
int session_expire_at(struct session *s, uint64_t at_ms, bool only_extend, struct pd_err *e);
/* Freezes every process. PD_UNSUPPORTED where nothing can be frozen. Pausing what is paused (or
 * asleep) is fine, as is resuming what runs. */
int session_pause(struct session *s, struct pd_err *e);
/* Takes the box and every process away and keeps the files: paused, and `asleep`. From running or
 * paused; of one that is asleep already nothing changes. PD_UNSUPPORTED when its files are in
 * memory. Takes as long as the end of a sandbox does. */
int session_sleep(struct session *s, struct pd_err *e);
/* Thaws, or makes a new box on the files of one that is asleep, with the same environment and
 * directory. When that fails it sleeps on. Changes of one session (these, snapshots and forks) wait
 * for each other. */
int session_resume(struct session *s, struct pd_err *e);
int session_usage(struct session *s, uint64_t *ret_memory, uint64_t *ret_memory_peak,
                  uint64_t *ret_cpu_usec, uint64_t *ret_pids, struct pd_err *e);
/* A sample of what a session used, taken from time to time. */
struct session_sample {
    uint64_t at_ms;         /* since the epoch */
    uint32_t cpu_milli_pct; /* thousandths of a percent of one core, since the sample before:
                             * 100000 is one core fully used; a sandbox of two may have 200000 */
    uint64_t memory, memory_limit, disk_used, disk_total; /* bytes; of the disk 0: unknown */
};
/* Those taken in [from_ms, to_ms] (to_ms 0: until now), oldest first; when there are more than
 * `max`, the latest. The controller takes one every 5 s of a running session, 60 are kept, and a
 * fresh one is taken here if the last is older than 1 s. Paused ones have what there was. They are
 * not stored: a new daemon begins anew. */
unsigned session_samples(struct session *s, uint64_t from_ms, uint64_t to_ms,
                         struct session_sample *ret, unsigned max);
/* Ends it and waits until everything is gone. Ending one that is gone is fine. */
int session_end(struct session *s, enum session_end why, const char *reason, struct pd_err *e);
/* Moves a session that runs to another provider: its files in /workspace, /home/user and /tmp, its
 * directory and its variables. Nothing of it may run (PD_CONFLICT), unless MOVE_GIVE_UP ends what
 * does. When it fails the session is where it was, with all its files; where it is already nothing
 * happens. Calls that come meanwhile wait, for 300 s at most. PD_ISOLATION when the new box
 * isolates less than `need`, or less than the session's mode says. */
enum {
    MOVE_GIVE_UP = 1,
    MOVE_RAISE = 2, /* only if the session isolates less than `need` when its turn has come */
};
struct session_goal {
    struct provider *to;
    enum rung need; /* the least isolation that will do */
    unsigned flags;
    const char *reason; /* why, as the session says it from then on */
};
int session_move(struct session *s, const struct session_goal *goal, struct pd_err *e);
