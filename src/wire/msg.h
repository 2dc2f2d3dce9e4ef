/* msg: what the frames say. One struct per message, with a pure encoder and a pure decoder.
 *
 * Decoded strings and lists point into the frame's payload and live as long as it does. Decoders
 * accept exactly what encoders produce: every string ends with its NUL and holds no other, every
 * list is bounded, every enum is in range, nothing is left over.
 *
 *   client  -> keeper    HELLO CREATE DESTROY KILL STATS CHECK REMOVE_ROOT KEEP_ROOT COPY_ROOT
 *                        LIST COUNT STASH FETCH DROP IMAGES STEER
 *   keeper  -> client    WELCOME CREATED GONE USAGE LISTED LIST_END COUNTED STASHED DONE ERROR
 *                        PROGRESS TROUBLE STEERED
 *   keeper  -> builder   BUILD PREPARE SWEEP STRIKE CHECK REMOVE_ROOT KEEP_ROOT COPY THAW
 *                        CANCEL STEER
 *   builder -> keeper    BUILT DONE ERROR PROGRESS STEERED
 *   keeper  -> safe      KEEP DROP
 *   safe    -> keeper    KEEP DONE
 *   keeper  -> init      ADOPT
 *   client  -> init      EXEC SIGNAL KILL_TREE RESIZE ACK SYNC
 *   init    -> client    STARTED EXITED EMPTY FACTS SYNCED SYNC_END DONE ERROR
 *
 * An answer has the id of its request. EXITED has the id of its EXEC. */
#pragma once

#include "wire/frame.h"
#include "wire/spec.h"

enum wire_type {
    WIRE_ERROR = 1,   /* msg_error */
    WIRE_DONE,        /* no payload */
    WIRE_HELLO,       /* no payload */
    WIRE_WELCOME,     /* msg_welcome; the head's epoch is the client's from now on */
    WIRE_CREATE,      /* msg_create; fds: init's end of the control socket, the owner's end, and
                       * maybe a network namespace to use */
    WIRE_CREATED,     /* msg_created; fds: jail's cgroup directory (if any), devpts (if any); of one
                       * with NETWORK_GATE its TCP and its DNS socket, too */
    WIRE_DESTROY,     /* msg_destroy */
    WIRE_GONE,        /* msg_gone; answer to DESTROY, or by itself when init has died */
    WIRE_KILL,        /* msg_kill: the processes of one command, and nothing else */
    WIRE_STATS,       /* msg_destroy, of which only the id counts */
    WIRE_USAGE,       /* msg_usage */
    WIRE_REMOVE_ROOT, /* msg_key: deletes a named root, after its jail if that is still ending.
                       * Answered when it is noted, not when it is done */
    WIRE_LIST,        /* no payload */
    WIRE_LISTED,   /* msg_listed, one per jail; fds: the owner's end of the control socket, and as
                    * with CREATED */
    WIRE_LIST_END, /* no payload */
    WIRE_STASH,    /* msg_key; fds to keep */
    WIRE_FETCH,    /* msg_key */
    WIRE_STASHED,  /* answer to FETCH; fds */
    WIRE_DROP,    /* msg_key; to a safe msg_keep, of which kind, key and the id in the head count */
    WIRE_BUILD,   /* msg_build; fds: init's end of the control socket, maybe a network namespace */
    WIRE_BUILT,   /* msg_built; fds: cgroup directory, devpts, lock of the named root or a broker's
                   * pidfd of init, mount namespace; /dev/null stands for what there is not; then the
                   * gate's two */
    WIRE_PREPARE, /* msg_prepare: make namespaces and cgroups for a later BUILD */
    WIRE_SWEEP,   /* msg_sweep: remove what a dead jail leaves */
    WIRE_STRIKE,  /* msg_sweep: thaw and kill a jail that did not die of SIGKILL, or a command */
    WIRE_EXEC,    /* msg_exec; fds: stdin, stdout, stderr, and if flagged cgroup.procs and one
                   * that the command gets as descriptor 3 */
    WIRE_STARTED, /* msg_started */
    WIRE_EXITED,  /* msg_exited, sent until ACKed */
    WIRE_SIGNAL,  /* msg_signal */
    WIRE_ACK,     /* no payload; the head's id is the exec's */
    WIRE_SYNC,    /* no payload */
    WIRE_SYNCED,  /* msg_exited, one per process; `exited` tells if it has ended */
    WIRE_SYNC_END,  /* no payload */
    WIRE_COPY_ROOT, /* msg_copy_root: a new named root, complete when it is answered */
    WIRE_COPY,      /* msg_copy: the keeper's order; fd: pidfd of the init of the jail that uses
                     * `from`, if one does */
    WIRE_THAW,      /* msg_sweep: a jail whose copier died */
    WIRE_KEEP_ROOT, /* msg_key: a keeper that starts must not delete this root of a server's, which
                     * no jail uses for now. Holds until REMOVE_ROOT; on the disk when answered */
    WIRE_COUNT,     /* no payload: how many jails are there? */
    WIRE_COUNTED,   /* msg_counted */
    WIRE_ADOPT,     /* no payload; fd: init's end of the control socket of its owner. Once, and only
                     * for an init that waits */
    /* Of an init in a box that somebody else made; jails know none of these. */
    WIRE_FACTS, /* msg_facts: the first frame after ADOPT, and again before the answer to SYNC */
    WIRE_KILL_TREE, /* msg_tree: SIGKILL to all processes of a command that a holder has */
    WIRE_RESIZE,    /* msg_resize: a terminal that a holder has */
    WIRE_EMPTY,     /* msg_empty; the head's id is the exec's: after an EXITED with TREE_LEFT, its
                     * last process has ended */
    WIRE_PROGRESS,  /* msg_progress, before the answer to a BUILD or CREATE that had the flag TELL:
                     * how far its image has come. May be left out at any time */
    WIRE_CHECK,   /* msg_destroy, to a broker msg_sweep: does the box run, and would a new one from
                   * its image be the same? DONE, or ERROR with what differs */
    WIRE_CANCEL,  /* no payload; the head's id is the BUILD's that is not wanted any more. Has no
                   * answer of its own: that of the BUILD comes earlier. Only to our brokers */
    WIRE_TROUBLE, /* msg_trouble, by itself, to a client whose HELLO had the flag TELL */
    WIRE_IMAGES, /* msg_images; fds: where lines of JSON go, and of some verbs a file. Answered when
                  * it has begun: the lines say the rest, to the last one */
    WIRE_STEER,  /* msg_destroy, of which only the id counts: a jail that was made without a way
                  * out gets one; to a builder, no payload; fd: pidfd of init */
    WIRE_STEERED, /* no payload; fds: the gate's two. Of one that has a way out, again */
    WIRE_KEEP,    /* msg_keep, with descriptors: a record for the next keeper, in the place of the
                   * one with the same key. A box's has its id in the head */
    WIRE_TYPE_COUNT
};

#define MSG_ARGS_MAX    4096u
#define MSG_KEY_MAX     127u
#define MSG_NAME_MAX    39u
#define MSG_IMAGE_MAX   767u
#define MSG_MISSING_MAX 511u
#define MSG_WHY_MAX     255u

/* A list of strings in a frame. msg_list_next walks it. */
struct msg_list {
    const char *text; /* count strings, each with its NUL */
    uint32_t count;
    uint32_t bytes;
};
/* The string at *pos (start with 0), or NULL at the end. */
const char *msg_list_next(const struct msg_list *l, uint32_t *pos);

struct msg_error {
    uint32_t code; /* enum pd_code */
    int32_t sys;
    const char *text;
};

struct msg_welcome {
    uint32_t rung;   /* the best that this keeper can give */
    uint32_t layout; /* enum cgroup_layout */
    const char *instance;
    const char *missing; /* why it is not RUNG_FULL; "" when it is */
};

/* Flag in the head: the jail outlives the client that made it, and the keeper has a copy of its
 * control socket for the next one. Without it the jail ends when its owner closes that socket. */
#define CREATE_KEEP 1u
/* Flags in the heads of CREATE and BUILD: PROGRESS is understood. Peers that know neither are told
 * nothing, and tell nothing. */
#define CREATE_TELL 2u
#define BUILD_TELL  1u
/* Flag in the head of HELLO: TROUBLE is understood. */
#define HELLO_TELL 1u
/* Flag in the heads of BUILT, CREATED and LISTED: the box is on another machine, and a stand-in has
 * init's end of its control socket. Its terminals are made there. */
#define BOX_IS_FAR 2u

struct msg_create {
    struct spec spec;
};

/* Flag in the head of BUILT and CREATED: its root is on top of an image, so its init begins with
 * FACTS. */
#define BUILT_ON_IMAGE 1u
struct msg_created {
    uint32_t rung;
    int32_t init_pid; /* in the keeper's pid namespace */
    uint32_t uid_base;
    const char *name; /* of the jail's cgroup directory */
};

/* Flag in the head of DESTROY: only a jail that is not made yet, whose CREATE then fails when
 * nothing is left of it. Not answered. */
#define DESTROY_UNMADE 1u
/* Its root, a server's, is removed next: it may still be mounted when GONE comes. */
#define DESTROY_WITH_ROOT 2u

struct msg_destroy {
    struct wire_id jail;
    uint32_t want_stats;
};

enum gone_how { GONE_DESTROYED, GONE_DIED, GONE_UNDEAD, GONE_COUNT };

struct msg_gone {
    struct wire_id jail;
    uint32_t how;
    uint64_t oom_kills, pids_refused, memory_peak, cpu_usec;
    const char *why; /* what the backend knows of the end, for people; or "" */
};

struct msg_kill {
    struct wire_id jail;
    const char *group; /* of the command */
};

struct msg_usage {
    uint64_t memory, memory_peak, cpu_usec, pids, oom_kills, pids_refused;
    uint64_t disk_used, disk_total; /* of the root; 0: unknown */
    uint32_t frozen;                /* 1: by the engine of its container */
};

struct msg_listed {
    struct wire_id jail;
    uint32_t undead;
    int32_t init_pid;
};

/* Those that LIST would tell, but for other clients' that end with them. */
struct msg_counted {
    uint32_t jails;
};

struct msg_key {
    const char *key;
};

/* What a keeper leaves to the next one: itself (its instance and epoch), a box, or what a client
 * has stashed. What a kind does not have is empty. */
enum keep_kind { KEEP_SELF, KEEP_BOX, KEEP_STASH, KEEP_COUNT };
struct msg_keep {
    uint32_t kind;
    const char *key;  /* of the stash; each kind has its own */
    const char *name; /* the instance; the box's name */
    const char *root; /* the box's named root, or "" */
    uint32_t rung;
    uint32_t on_image;
    int32_t pid;
    uint64_t number; /* the epoch */
};

struct msg_build {
    uint32_t slot;  /* which host uid range */
    uint32_t waits; /* the socket is the keeper's: init waits there for ADOPT */
    const char *name;
    struct spec spec;
};

struct msg_built {
    uint32_t rung;
    uint32_t named;     /* the root's lock is no place holder */
    uint32_t has_mntns; /* nor is the mount namespace */
    int32_t init_pid;
};

/* What is to become of the store of images: a `paddock image` with --json. The file is the archive
 * of an import. Where a registry is, and its password, the keeper was told when it began. */
enum images_verb {
    IMAGES_PULL,
    IMAGES_IMPORT,
    IMAGES_LIST,
    IMAGES_INSPECT,
    IMAGES_REMOVE,
    IMAGES_PRUNE,
    IMAGES_VERB_COUNT
};
struct msg_images {
    uint32_t verb;
    uint32_t missing;   /* PULL: only if there is none of the name */
    uint64_t store_max; /* what the store may hold afterwards; 0: anything */
    const char *image;  /* a name or an id; of an import a name or "" */
    const char *as;     /* PULL: the name that it has here, or "": the same */
};

/* An image on its way: layers that are complete, bytes that have come. `bytes` counts the layers
 * whose size is known so far, so it may grow. */
/* What keeps the keeper from making jails; "": nothing does any more. */
struct msg_trouble {
    const char *text;
};

struct msg_progress {
    uint32_t layers_done, layers;
    uint64_t bytes_done, bytes;
};

struct msg_prepare {
    uint32_t slot;
    const char *name;
};

struct msg_sweep {
    const char *name;
    const char *group; /* STRIKE: of one command, or "" */
};

struct msg_copy_root {
    struct wire_id jail; /* that uses `from` and stands still meanwhile; all zero: none does */
    uint64_t patience;   /* ns from now on; then the copy is given up */
    const char *from, *to;
};

struct msg_copy {
    const char *from, *to;
    const char *jail; /* name of the cgroup of the jail that uses `from`, or "" */
    uint32_t freeze;  /* it does not stand still yet */
    int32_t init_pid;
    uint64_t patience;
};

#define EXEC_PTY    1u  /* the three descriptors are one terminal: make it the controlling one */
#define EXEC_CGROUP 2u  /* a fourth descriptor is the command's cgroup.procs */
#define EXEC_QUIET  4u  /* no STARTED: a client that waits for the end is woken once */
#define EXEC_WORKER 8u  /* argv is an operation that init has built in (docs/workers.md) */
#define EXEC_EXTRA  16u /* one more descriptor, the last, becomes descriptor 3 of the command */
#define EXEC_REACH  32u /* of a worker in profile dev: may do what sandbox root may, as the user */

struct msg_exec {
    uint32_t uid, gid;
    uint64_t file_size;   /* RLIMIT_FSIZE, 0 = none */
    const char *cwd;      /* absolute */
    struct msg_list argv; /* at least one */
    struct msg_list environ;
};

struct msg_started {
    int32_t pid; /* in the jail */
};

struct msg_exited {
    int32_t pid;
    uint32_t exited;    /* 0 in SYNCED: still running */
    int32_t status;     /* as wait(2) gives it */
    uint32_t disk_full; /* no space or no files were left in the root when it ended */
    uint32_t tree;      /* enum tree_left, of a command that a holder has */
    uint64_t cpu_usec;
    uint64_t max_rss;
};

/* What is left of a command's processes where init holds them together, because there is no cgroup.
 * With a cgroup it is always TREE_EMPTY, and the cgroup tells. FORCED: some could not be caught in
 * time, and all processes of the box's user were ended with them. */
enum tree_left { TREE_EMPTY, TREE_LEFT, TREE_FORCED, TREE_COUNT };

struct msg_empty {
    uint32_t tree; /* TREE_EMPTY or TREE_FORCED */
};

struct msg_tree {
    struct wire_id exec;
};

struct msg_resize {
    struct wire_id exec;
    uint32_t rows, cols; /* at most 65535 */
};

struct msg_signal {
    struct wire_id exec;
    int32_t signal;
};

/* How init tells its processes apart: user and root by uid, or all with init's own. */
enum facts_mode { FACTS_STRICT, FACTS_DEV, FACTS_SINGLE, FACTS_MODE_COUNT };
enum facts_shell { FACTS_NO_SHELL, FACTS_SH, FACTS_BASH, FACTS_SHELL_COUNT };

/* What init found at its birth in a box that somebody else made. Claims of a box: to be shown, and
 * used for its own commands alone. */
struct msg_facts {
    uint32_t mode;
    uint32_t uid, gid;       /* of `user`: what an EXEC for it has to say */
    uint32_t root;           /* uid 0 can be given as well */
    uint32_t shell_kind;     /* enum facts_shell */
    uint32_t cgroups;        /* 0: none seen, 1, 2 */
    const char *shell;       /* absolute path, or "" */
    const char *home;        /* of `user` */
    const char *workspace;   /* where commands begin */
    const char *machine;     /* as uname -m has it */
    const char *missing;     /* what this box lacks, for people; "" when nothing */
    struct msg_list environ; /* the image's */
};

/* Encoders append to an empty buf; overflow shows there. Decoders return 0, or -1 with
 * PD_PROTOCOL. */
#define MSG_CODEC(name)                                                                            \
    void msg_##name##_encode(struct buf *b, const struct msg_##name *m);                           \
    int msg_##name##_decode(const struct buf *b, struct msg_##name *ret, struct pd_err *e)
MSG_CODEC(error);
MSG_CODEC(welcome);
MSG_CODEC(create);
MSG_CODEC(created);
MSG_CODEC(destroy);
MSG_CODEC(gone);
MSG_CODEC(kill);
MSG_CODEC(usage);
MSG_CODEC(listed);
MSG_CODEC(counted);
MSG_CODEC(key);
MSG_CODEC(keep);
MSG_CODEC(build);
MSG_CODEC(built);
MSG_CODEC(prepare);
MSG_CODEC(sweep);
MSG_CODEC(copy_root);
MSG_CODEC(copy);
MSG_CODEC(exec);
MSG_CODEC(started);
MSG_CODEC(exited);
MSG_CODEC(signal);
MSG_CODEC(empty);
MSG_CODEC(tree);
MSG_CODEC(resize);
MSG_CODEC(facts);
MSG_CODEC(progress);
MSG_CODEC(trouble);
MSG_CODEC(images);
#undef MSG_CODEC

/* A spec as a server stores it, with the version of this format in front; reads also what servers
 * wrote that had none. The strings of *ret belong to the buffer. PD_UNSUPPORTED for a later
 * version, PD_PROTOCOL for what is no spec. */
void spec_store(struct buf *b, const struct spec *s);
int spec_restore(const struct buf *b, struct spec *ret, struct pd_err *e);

/* Appends a string to a list that is being encoded. */
struct msg_list_writer {
    struct buf text;
    uint32_t count;
};
#define MSG_LIST_WRITER_INIT ((struct msg_list_writer){.text = BUF_INIT(WIRE_PAYLOAD_MAX)})
int msg_list_add(struct msg_list_writer *w, const char *text);
struct msg_list msg_list_of(const struct msg_list_writer *w);
void msg_list_writer_done(struct msg_list_writer *w);

/* The payload of an ERROR frame. */
void msg_error_put(struct buf *b, const struct pd_err *e);
/* Fills *e from an ERROR frame (a malformed one is PD_PROTOCOL). Always returns -1. */
int msg_error_raise(const struct frame *f, struct pd_err *e);
