/* keeper_state: what the keeper remembers (keeper.c has what it does with it). Not for others. */
#pragma once

#include "base/clock.h"
#include "jail/builder.h"
#include "jail/cgroup.h"
#include "jail/identity.h"
#include "jail/keeper.h"
#include "jail/keeper_kind.h"
#include "wire/msg.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#define BUCKETS     1024u
#define SIGNALS     65 /* numbers go to 64 */
#define COPIERS_MAX 3u
#define WORKERS_MAX (17u + COPIERS_MAX)
#define KITS_MAX    16u
#define KITS_RECENT 16u /* creations by which the keeper judges what will be asked for next */
/* Kinds of kits: the complete ones by profile, plain ones, and complete ones on an image, by its
 * place in the keeper's table and by profile. */
#define KIT_PLAIN        PROFILE_COUNT
#define KIT_IMAGES       4u
#define KIT_ON_IMAGE     (KIT_PLAIN + 1u)
#define KIT_KINDS        (KIT_ON_IMAGE + KIT_IMAGES * PROFILE_COUNT)
#define QUEUE_MAX        1024u
#define STASH_MAX        16384u
#define OUT_MAX          8192u /* frames that may wait for one client */
#define DEATHS_KEPT      64u
#define HELD_FILES       8u /* a guardian, a daemon, what a list needs, and some for a worker */
#define CHORES_MAX       8192u
#define CHORE_TRIES      20u
#define CHORE_TRIES_LAST 3u /* of a keeper that is to end */
#define CHORE_RETRY      (NS_PER_S)
#define CREATE_MAX       (WIRE_PAYLOAD_MAX - 256u) /* a BUILD says a little more than its CREATE */
#define RESTART_AFTER    NS_PER_S
#define DOUBLINGS_MAX    5u /* of that, for a worker that dies again and again */
#define STOPPING_PAUSE   (50 * NS_PER_MS)
#define EARLY_DEATHS_MAX 3u
#define BUILD_PATIENCE   (20 * NS_PER_S)
#define PULL_PATIENCE    (300 * NS_PER_S) /* of an engine that may have to fetch an image */
#define CANCEL_PATIENCE  (3 * NS_PER_S)   /* for the end of a build that nobody wants any more */
#define SWEEP_PATIENCE   (30 * NS_PER_S)
#define COPY_PATIENCE    (600 * NS_PER_S) /* the longest that a client may have */
#define LAST_SWEEP       (15 * NS_PER_S)
#define SWEEP_RETRY      (NS_PER_S)
#define IMAGES_AT_ONCE   12u
#define IMAGES_QUICK     4u              /* of these: for requests that fetch nothing */
#define WHY_PATIENCE     (20 * NS_PER_S) /* for the reason of an end */
#define STRIKE_AFTER     (100 * NS_PER_MS)
#define UNDEAD_AFTER     (5 * NS_PER_S)
/* Kits are made when nobody has asked for anything for this long: making one takes as much time as
 * a jail, and would take it from the command that was just started. */
#define QUIET (2 * NS_PER_MS)
/* What a new jail's first command has to itself, if half of the kits are there: its owner does not
 * say when it has begun. With builders at work a start takes two or three times as long. */
#define FIRST_COMMAND (20 * NS_PER_MS)
#define REAP_AFTER    (20 * NS_PER_MS)

enum source_kind {
    SOURCE_NONE,
    SOURCE_SIGNAL,
    SOURCE_LISTENER,
    SOURCE_CLIENT,
    SOURCE_WORKER,
    SOURCE_INIT,
    SOURCE_SAFE
};

/* First member of everything that epoll points to. */
struct source {
    enum source_kind kind;
};

struct out_frame {
    struct out_frame *next;
    struct wire_head head;
    struct buf payload;
    int fds[WIRE_FDS_MAX];
    unsigned fd_count;
};

struct client {
    struct source source;
    struct client *next;
    int sock;
    uint64_t serial; /* 0: closed, to be freed when the current events are done */
    uint64_t epoch;
    int limited; /* not the keeper's own user: it may not have the host's files and network */
    bool wants_trouble;
    struct out_frame *out_first, **out_last;
    unsigned out_count;
    /* The list that it asked for, and is sent as fast as it reads. */
    int list_wanted;      /* waits until another client has its own */
    uint64_t list_serial; /* 0: none is being sent */
    unsigned list_bucket;
    struct wire_id list_request;
};

struct kit_name {
    char name[MSG_NAME_MAX + 1];
    uint32_t slot;
};

struct worker {
    struct source source;
    pid_t pid;
    int sock;
    int builds, sweeps, copies; /* one that copies does nothing else */
    int gone;                   /* its socket is closed; SIGCHLD comes */
    enum wire_type busy;        /* what it was asked, 0 = idle */
    struct wire_id request;
    uint64_t asked_at, started_at, patience;
    unsigned early_deaths;
    uint64_t ended_at;
    deadline deadline, restart_at;
    struct kit_name kits[KITS_MAX + 1]; /* one more: the one being prepared */
    unsigned kit_count;
    int prepare_failed;
    struct chore *chore; /* that it is busy with, or NULL */
};

enum jail_state {
    JAIL_QUEUED,
    JAIL_BUILDING,
    JAIL_KIT, /* complete, and nobody's yet */
    JAIL_RUNNING,
    JAIL_DYING,
    JAIL_UNDEAD,
    JAIL_DEAD
};

struct kjail {
    struct source source;       /* of pidfd */
    struct kjail *next;         /* in its bucket, by id */
    struct kjail *pid_next;     /* in its bucket, by pid */
    struct kjail *queue_next;   /* waiting for a builder */
    struct kjail *watched_next; /* dying, undead or dead */
    struct kjail *kit_next;     /* complete kits, also those that are being built */
    struct wire_id id;
    enum jail_state state;
    uint64_t client;
    int keep;
    bool tell;   /* its client understands PROGRESS */
    bool is_far; /* `pid` is its stand-in's, which is a process of this machine's */
    char name[MSG_NAME_MAX + 1];
    uint32_t slot;
    pid_t pid;
    uint32_t rung;
    bool on_image; /* its root is, so its init begins with FACTS */
    int control, init_end, netns, devpts, lock;
    int gate[2];       /* the sockets of its way out, or -1: for the gate, and the next one */
    int group;         /* its cgroup directory, of a kind that has its own */
    int pidfd;         /* of an init that is nobody's child here; else -1 */
    int adopt;         /* of a complete kit: the socket on which its init waits; else -1 */
    unsigned kit_kind; /* of a complete kit */
    struct timespec names_at; /* of one on an image: when names of images had last changed */
    int mntns; /* kept until it is swept: taking the mounts down is not for whoever waits for the
                  end */
    struct buf payload; /* the CREATE, until it is built */
    char *root_name;    /* NULL: none */
    int doomed, struck, wants_strike, want_stats;
    bool root_goes;  /* its root is removed next: it need not be free when the end is told */
    bool owes_error; /* it is ended before its client had it, who hears that when it is gone */
    bool owes_gone;  /* it died, and its client hears of it when the backend has said why */
    uint64_t listed; /* the last list that it was told in */
    deadline deadline, sweep_after;
    uint64_t destroy_client;
    struct wire_id destroy_request;
};

/* Something that may take a moment and is therefore a worker's, asked for by a client. */
struct chore {
    struct chore *next;
    enum wire_type type; /* WIRE_KILL, _REMOVE_ROOT, _KEEP_ROOT, _COPY_ROOT, _THAW, _CHECK,
                         _STEER */
    uint64_t client;
    struct wire_id request;
    char jail[MSG_NAME_MAX + 1];
    char what[MSG_KEY_MAX + 1]; /* the command's group; the root's name */
    unsigned tries;
    deadline not_before;
    /* WIRE_COPY_ROOT: what becomes of `what`, the jail that uses it (all zero: none), whether it
     * was stopped for this, when to give up. WIRE_STEER: its jail. */
    char to[SPEC_NAME_MAX + 1];
    struct wire_id jail_id;
    int froze;
    deadline until;
};

struct stash {
    struct stash *next;
    char key[MSG_KEY_MAX + 1];
    int fds[WIRE_FDS_MAX];
    unsigned fd_count;
};

struct keeper {
    const struct keeper_config *config;
    const struct keeper_kind *kind;
    int rootless;
    bool has_ranges; /* a jail has a range of host ids, its slot */
    int init_file;   /* the program init, for workers that are programs; or -1 */
    int box_file;    /* paddock-box, for those whose boxes may be far; or -1 */
    int secrets;     /* credentials that its environment had, for brokers (secret_env.h); or -1 */
    char instance[32];
    struct builder_config builder_config, sweeper_config, copier_config;
    struct ranges ranges;
    struct cgroup_host cgroups;
    int cgroups_known;
    int epoll, signals, listener, null;
    int safe;         /* what the next keeper is left, keeper_safe.c; or -1 */
    int safe_process; /* a pidfd of the one that has its place, if this keeper started it; or -1 */
    struct source signal_source, listener_source, safe_source;
    uint64_t epoch, next_serial, next_name, next_list;
    int held[HELD_FILES]; /* descriptors that nobody may use up; -1 where one is lent */
    struct rlimit files;  /* what the keeper was started with, and its jails have */
    struct client *clients;
    unsigned client_count;
    struct worker workers[WORKERS_MAX];
    unsigned worker_count;
    struct kjail *jails[BUCKETS], *pids[BUCKETS], *watched, *queue_first, *queue_last;
    unsigned jail_count, undead_count, queued;
    struct chore *chores;
    unsigned chore_count;
    pid_t image_pids[IMAGES_AT_ONCE]; /* 0: none */
    struct stash *stashes[BUCKETS];
    unsigned stash_count;
    struct {
        pid_t pid;
        uint64_t at;
    } deaths[DEATHS_KEPT];
    unsigned death_next;
    struct kjail *kits;
    unsigned char recent[KITS_RECENT]; /* which kits the last creations wanted */
    unsigned recent_next;
    char kit_images[KIT_IMAGES][SPEC_IMAGE_MAX + 1]; /* that were used lately; "": none */
    deadline kits_at;                                /* no complete kit is made before this */
    deadline quiet_at, reap_at;
    deadline first_command_at; /* while the jail `newest` lives; else 0 */
    struct wire_id newest;
    int stopping, stop_begun;
    char trouble[MSG_WHY_MAX + 1]; /* why workers die as soon as they start; "": they do not */
    struct frame in;
};

struct keeper *keeper_new(const struct keeper_config *c, struct pd_err *e);
void keeper_free(struct keeper *k);
/* The keeper's view of its cgroups, for reading; opened when first asked for. */
const struct cgroup_host *keeper_cgroups(struct keeper *k);
/* A descriptor of a box's cgroup directory, or -errno. */
int jail_group_open(struct keeper *k, const struct kjail *j);
void keeper_next_name(struct keeper *k, char ret[MSG_NAME_MAX + 1]);
/* A child that nobody knows has died: a failed build, or an init whose BUILT is still under way. */
void keeper_note_death(struct keeper *k, pid_t pid);
/* Did it die since? */
int keeper_early_death(struct keeper *k, pid_t pid, uint64_t since);
/* Remembers cgroups and a range that belong to no jail, so that they are swept. */
void keeper_abandon(struct keeper *k, const char *name, uint32_t slot);

/* Has epoll tell of this descriptor. 0, or -1 with errno. */
int keeper_watch(struct keeper *k, int fd, struct source *s);
/* Gives up the descriptors that the keeper holds back, for a moment in which one more is needed
 * than there are; and takes up as many again as can be had. */
void files_lend(struct keeper *k);
void files_hold(struct keeper *k);

/* keeper_clients.c */
/* Sends, or queues when the client's socket is full; too long a queue closes the client. */
void client_send(struct keeper *k, struct client *c, struct wire_head head,
                 const struct buf *payload, const int *fds, unsigned fd_count);
/* For news that nobody misses: not when the client has no room for them. */
void client_send_or_drop(struct client *c, struct wire_head head, const struct buf *payload);
void client_send_error(struct keeper *k, struct client *c, struct wire_id id,
                       const struct pd_err *e);
void client_send_done(struct keeper *k, struct client *c, struct wire_id id);
void client_flush(struct keeper *k, struct client *c);
struct client *client_find(struct keeper *k, uint64_t serial);
struct client *client_add(struct keeper *k, int sock);
void client_accept(struct keeper *k);
void client_close(struct keeper *k, struct client *c);
void client_collect(struct keeper *k); /* frees the closed ones */
/* LIST: one client's list at a time is sent, as far as its socket takes it: no descriptor is copied
 * for one that waits. list_go_on returns 0 when there is more to send; lists_go_on begins the next
 * client's. */
void list_request(struct keeper *k, struct client *c, struct wire_id id);
int list_go_on(struct keeper *k, struct client *c);
void lists_go_on(struct keeper *k);

/* keeper_requests.c */
void client_request(struct keeper *k, struct client *c, struct frame *f);
/* It has closed its socket: its jails end, but for those that are to be kept. */
void client_gone(struct keeper *k, struct client *c);
/* `cgroup_dir` is not kept: with thousands of jails every descriptor counts. */
void jail_send_created(struct keeper *k, struct client *c, const struct kjail *j, int cgroup_dir);
void jail_send_gone(struct keeper *k, struct kjail *j, enum gone_how how);
/* To the client of one whose death was not told yet, with the reason or "". */
void jail_tell_why(struct keeper *k, struct kjail *j, const char *why);
void jail_doom(struct keeper *k, struct kjail *j);

/* Are there descriptors for one jail more, with those that are being made, and the reserve? */
int jail_files_suffice(const struct keeper *k);

/* keeper_kits.c: jails that wait complete, and which kits there should be. */
void kits_begin(struct keeper *k);
/* Gives the jail that was asked for the kit that fits it, if there is one. -1: it must be built. */
int kit_adopt(struct keeper *k, struct kjail *j, const struct spec *s);
/* Is there one that fits? */
int kit_is_there(struct keeper *k, const struct spec *s);
/* Does this builder have kits to make? */
int kits_lacking(struct keeper *k, const struct worker *w);
/* Before this no kit is made: somebody has just asked, or has been given a jail. */
deadline kits_quiet_at(struct keeper *k);
/* Has an idle builder make one of them. */
void kits_refill(struct keeper *k, struct worker *w);
/* A kit was built, or could not be. */
void kit_built(struct kjail *j);
void kit_failed(struct keeper *k, struct worker *w, const struct kjail *j);
/* It is no kit any more. */
void kit_leave(struct keeper *k, struct kjail *j);

/* keeper_images.c: what is asked of the store of images, each a process of its own. */
void images_request(struct keeper *k, struct client *c, const struct frame *f);
/* One of them has died: was it one? */
bool images_reaped(struct keeper *k, pid_t pid);

/* keeper_workers.c */
/* In a child: the name, the signals and the limits that a process has which the keeper starts. */
void keeper_child_begin(const struct keeper *k, const char *title);
int worker_start(struct keeper *k, struct worker *w);
/* How long it may take for the answer to such a request; then it is killed and replaced. */
uint64_t worker_patience(const struct worker *w, enum wire_type type);
/* Gives an idle worker a request. -1 when it is dead; nothing was asked then. */
int worker_send(struct worker *w, enum wire_type type, struct wire_id id, const struct buf *payload,
                const int *fds, unsigned fd_count);
void worker_kill(const struct worker *w);
void worker_close(struct keeper *k, struct worker *w);
struct worker *worker_by_pid(struct keeper *k, pid_t pid);
void worker_build(struct keeper *k, struct worker *w, struct kjail *j);
/* Has the build of a doomed jail given up soon, where one can take long. */
void worker_cancel(struct keeper *k, const struct kjail *j);
void worker_prepare(struct keeper *k, struct worker *w);
void worker_sweep(struct worker *w, struct kjail *j, enum wire_type type);
void worker_reply(struct keeper *k, struct worker *w, struct frame *f);
/* `status`: what waitpid says of its end. */
void worker_lost(struct keeper *k, struct worker *w, int status);
/* When a worker that is gone is started again; DEADLINE_NONE: never. */
deadline worker_due(const struct keeper *k, const struct worker *w);
/* Starts one again that is gone, or later if that fails. */
void worker_try(struct keeper *k, struct worker *w);
/* It could not be started, or died at once. */
void worker_failed(struct keeper *k, struct worker *w, const char *why);
/* It lives, and did not die as soon as it started. */
void worker_settled(struct keeper *k, struct worker *w);
/* Is nobody left who sweeps, because they die as soon as they start? */
int sweepers_given_up(const struct keeper *k);
/* Tells a client that wants to know what is wrong with the workers, or that nothing is any more. */
void client_send_trouble(struct keeper *k, struct client *c);
/* Are workers needed? Also by a keeper that stops, while there is something to sweep. */
int workers_wanted(const struct keeper *k);

struct kjail *jail_new(struct keeper *k, struct wire_id id);
/* Takes the frame's descriptors and payload and puts the jail at the end of the queue. */
struct kjail *jail_add(struct keeper *k, struct frame *f, const struct client *c,
                       const char *root_name, struct pd_err *e);
void jail_dequeue(struct keeper *k, struct kjail *j);
struct kjail *jail_find(struct keeper *k, struct wire_id id);
struct kjail *jail_by_pid(struct keeper *k, pid_t pid);
void jail_set_pid(struct keeper *k, struct kjail *j, pid_t pid);
/* Puts a jail on the list of those that need attention. */
void jail_watch(struct keeper *k, struct kjail *j);
/* Has its death told: by SIGCHLD if it is our child, by its pidfd otherwise. 0 or -errno: -EBADF
 * when that is none. */
int jail_watch_init(struct keeper *k, struct kjail *j);
/* Only a child keeps its number until it is waited for: another init is signalled by its pidfd. */
void jail_signal_init(const struct keeper *k, const struct kjail *j, int number);
/* Its processes are gone: closes its descriptors; what is left is swept. */
void jail_release_root(struct kjail *j);
void jail_set_dead(struct keeper *k, struct kjail *j);
/* Is there one that was asked for, and has not ended? */
int jails_living(const struct keeper *k);
int jail_is_being_swept(const struct keeper *k, const struct kjail *j);
/* Swept, or never made: frees the range and the record. */
void jail_forget(struct keeper *k, struct kjail *j);

/* keeper_chores.c: a client's KILL, REMOVE_ROOT, KEEP_ROOT, CHECK and STATS. */
void stats_request(struct keeper *k, struct client *c, const struct frame *f);
void chore_request(struct keeper *k, struct client *c, const struct frame *f);
/* A keeper that starts has no jails: roots of a server's jails are what another one left, unless
 * they are marked (KEEP_ROOT). */
void chores_for_old_roots(struct keeper *k);
/* A worker is done with its chore, or dead (no frame). */
void chore_done(struct keeper *k, struct worker *w, struct frame *f);
void chore_send(struct keeper *k, struct worker *w, struct chore *c);
int chores_pending(const struct keeper *k);
/* Gives one that is due: copying is for workers that do nothing else, removing for those that
 * sweep, the rest for all others. */
struct chore *chore_take(struct keeper *k, const struct worker *w);
void chore_add(struct keeper *k, struct chore *c);
deadline chore_next_due(const struct keeper *k);
void chore_free(struct chore *c);

/* Is this a root that an unprivileged server may do with as it likes? */
int root_is_servers(const char *name);

/* keeper_steer.c: a client's STEER. */
void steer_request(struct keeper *k, struct client *c, const struct frame *f);
/* Is a worker at a STEER of the same jail? Two in one namespace would be in each other's way, so
 * this one is left until that one has answered. */
bool steer_is_begun(const struct keeper *k, const struct chore *c);
/* -1: nothing was sent. */
int steer_send(struct keeper *k, struct worker *w, struct chore *c);
/* `e`: why it failed, or NULL; else `f` is the worker's answer. */
void steer_done(struct keeper *k, struct chore *c, struct frame *f, const struct pd_err *e);

/* keeper_copy.c: a client's COPY_ROOT. */
void copy_request(struct keeper *k, struct client *c, const struct frame *f);
/* -1: nothing was sent. */
int copy_send(struct keeper *k, struct worker *w, struct chore *c);
/* `e`: why it failed, or NULL. `died`: the worker did. */
void copy_done(struct keeper *k, struct chore *c, const struct pd_err *e, int died);
/* Gives up the copies of this client, or all (0): kills who copies, forgets what waits. */
void copies_end(struct keeper *k, uint64_t client);

/* keeper_safe.c: what this keeper leaves to the next one. */
/* Takes over what the last one has left, if it did: before workers, who are told the name. */
void safe_find(struct keeper *k);
/* A box elsewhere that is to be kept is there; the first one begins a safe. Like those below, but
 * for safe_drop_jail, it begins another where the safe does not hear within a second, which the
 * keeper then waits for, and which is told the keeper's state as it is now. */
void safe_tell_jail(struct keeper *k, const struct kjail *j);
void safe_drop_jail(struct keeper *k, const struct kjail *j);
void safe_tell_stash(struct keeper *k, const struct stash *s);
void safe_drop_stash(struct keeper *k, const char *key);
void safe_tell_self(struct keeper *k);
/* Its socket has news: it is gone. */
void safe_heard(struct keeper *k);
/* The keeper ends; a safe with nothing in it does, too. */
void safe_end(struct keeper *k);

struct stash *stash_find(struct keeper *k, const char *key);
int stash_add(struct keeper *k, const char *key, struct frame *f);
void stash_remove(struct keeper *k, struct stash *s);
