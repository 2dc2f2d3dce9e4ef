/* provider: how boxes are made and talked to, whatever they are made of.
 *
 * A box is what a sandbox runs in: a jail, a container, a virtual machine. A provider makes boxes
 * of one kind and answers for them. The daemon holds a table of providers by name; each session has
 * one of them, until it is moved to another. Nobody calls the functions below but core/box.c, which
 * asks first whether the provider has the capability.
 *
 * Commands run asynchronously: `exec` returns when the request is on its way, and events tell what
 * becomes of it, on the pump's thread. Descriptors are the caller's until a call succeeds; those
 * that cross into the box are duplicated by the kernel.
 *
 * A root is the files of a box under a name. It can outlive its box: a box that is made later with
 * the same name has the same files.
 *
 * After a restart of the daemon a box is found again by its id (adopt), with its commands. */
#pragma once

#include "base/clock.h"
#include "wire/msg.h"

#include <stdbool.h>

#define HEAR_MORE 3u

struct pd_err;
struct pollfd;
struct pump;
struct provider;
struct route_provider;

/* Capabilities that some providers lack. id, bit, name in GET /v1/providers, "provider NAME cannot
 * ...", and what a caller may do instead. */
/* clang-format off */
#define PROVIDER_CAPABILITIES(X)                                                                   \
    X(PAUSE,      0,  "pause",      "freeze a sandbox with its memory",                            \
      "pause it with its files only, or end it")                                                   \
    X(TERMINAL,   1,  "terminal",   "give a command a terminal",                                   \
      "run it without one")                                                                        \
    X(FILES,      2,  "files",      "read or write files from outside",                            \
      "use a command that does it, such as cat")                                                   \
    X(PORTS,      3,  "ports",      "reach ports inside a sandbox",                                \
      "run the client in the sandbox, too")                                                        \
    X(ADOPT,      4,  "adopt",      "take up sandboxes of an earlier server",                      \
      "make another one")                                                                          \
    X(STASH,      5,  "stash",      "keep descriptors for the next server",                        \
      "read the output before the server is restarted")                                            \
    X(SNAPSHOT,   6,  "snapshot",   "copy the files of a sandbox",                                 \
      "download them as an archive and unpack that in another one")                                \
    X(SLEEP,      7,  "sleep",      "keep the files of a sandbox that does not run",               \
      "pause it with its memory, or download them")                                                \
    X(ROOTS,      8,  "roots",      "keep files on disk under a name",                             \
      "download them before the sandbox ends")                                                     \
    X(TREES,      9,  "trees",      "tell the processes of one command from those of others",      \
      "end the sandbox")                                                                           \
    X(USAGE,      10, "usage",      "tell what a sandbox uses",                                    \
      "ask a command in it, such as free or ps")                                                   \
    X(SIGNAL,     11, "signal",     "send a signal other than KILL",                               \
      "kill the command")                                                                          \
    X(BACKGROUND, 12, "background", "run a command in the background",                             \
      "run it in the foreground")                                                                  \
    X(IMAGE,      13, "image",      "make a sandbox from an image",                                \
      "leave `image` away, or name a provider that can")                                            \
    X(DISK,       14, "disk",       "limit the space and the number of a sandbox's files",         \
      "leave `limits.disk_bytes` and `limits.files` away, or name a provider that can")           \
    X(EGRESS,     15, "egress",     "give a sandbox a way to the network, by rules",              \
      "leave `network` away, or name a provider that can")                                        \
    X(LIMITS,     16, "limits",     "limit memory, processes and processor of a sandbox",          \
      "leave `limits` away, or name a provider that can")
/* clang-format on */

enum provider_can {
#define X(id, bit, ...) PROVIDER_##id = 1 << (bit),
    PROVIDER_CAPABILITIES(X)
#undef X
};
#define PROVIDER_CAPABILITY_COUNT 17u

/* Providers embed this as the first member of their own. box_create and box_adopt fill it in. */
struct box {
    struct provider *provider;
    bool root_goes; /* its root is removed when it is destroyed, and need not be free before */
};

/* News for a thread that listens to a box itself. */
enum box_heard {
    BOX_SILENT, /* until the time was over */
    BOX_TOLD,   /* of the command: the event was called */
    BOX_OTHER,  /* one of the caller's descriptors has something */
    BOX_BEYOND, /* something else is the next: it is left to the pump */
};

/* Called on the pump's thread, or by `hear`; must not block and must not call back into the
 * provider, except `forget`, and `signal` with deadline 0. `owner` is what was given to create or
 * adopt. */
struct box_events {
    void (*started)(void *owner, struct wire_id command, int pid);
    void (*exited)(void *owner, struct wire_id command, const struct msg_exited *end);
    void (*refused)(void *owner, struct wire_id command, const struct pd_err *why);
    void (*lost)(void *owner, const struct pd_err *why);
    /* The answer to a sync that nobody waits for is complete. */
    void (*synced)(void *owner);
    /* How far the image of a box has come that is being made. On the thread that makes the box,
     * which waits for nothing else: it may take its time. NULL: nobody wants to know. */
    void (*progress)(void *owner, const struct msg_progress *now);
    /* What keeps a provider from making boxes has begun, or is over: `why` is "" then. */
    void (*trouble)(const struct provider *p, const char *why);
    /* Was the box of this owner cancelled before it was asked for? Takes no lock. NULL: never. */
    bool (*is_unwanted)(void *owner);
};

#define GROUP_MISSING 2

struct box_command {
    struct wire_id id; /* of one command at a time; the next may have it after `forget` */
    struct msg_exec exec;
    int fds[4];     /* stdin, stdout, stderr, and descriptor 3 or -1 */
    unsigned flags; /* EXEC_PTY, EXEC_WORKER, EXEC_REACH, EXEC_QUIET of wire/msg.h */
    bool at_once;   /* fails when the box does not read it now, and does not wait */
    /* Number of the group that holds all processes of the command, from 1. One command at a time
     * has it; the next may when group_is_empty. 0: none. */
    unsigned group;
};

struct box_usage {
    uint64_t memory, memory_peak, cpu_usec, pids, oom_kills, pids_refused;
    /* Bytes of the root's file system: what is used and what there may be. 0: unknown. */
    uint64_t disk_used, disk_total;
    bool frozen; /* by the engine of its container, for us or for somebody else */
};

/* The directories of a box in place of a jail's /workspace and /home/user. */
#define BOX_PATH_SIZE    512u
#define BOX_ENVIRON_SIZE 8192u
struct box_place {
    char workspace[BOX_PATH_SIZE], home[BOX_PATH_SIZE];
    char shell[BOX_PATH_SIZE]; /* "": it has none */
    bool has_bash;             /* the shell is bash: it can be prepared */
    bool has_root;             /* commands may be root's */
    /* The image's variables, each with its NUL. What is more than fits is left out. */
    char environ[BOX_ENVIRON_SIZE];
    uint32_t environ_count, environ_bytes;
};

/* A request on a store of images. */
struct box_images {
    struct msg_images what;
    int file; /* an archive to import, or -1 */
    /* Each line of JSON, without its end. -1 with *e: no more is wanted, and that is the result. */
    int (*line)(void *arg, const char *text, size_t len, struct pd_err *e);
    bool (*is_unwanted)(void *arg); /* asked now and then; or NULL */
    void *arg;
};

/* How long the daemon waits for this provider, in nanoseconds. All must be set. */
struct provider_patience {
    uint64_t create, destroy, pause, keep;
};

struct provider {
    const char *name;
    unsigned can; /* of enum provider_can; constant once the provider is in a table */
    struct provider_patience patience;
    uint64_t timeout_ns; /* of a command for which none was asked; 0: the server's */
    /* Its boxes are reached over a link: what a command writes to one stream may arrive after what
     * it wrote to another one later. */
    bool is_far;
    bool needs_image;  /* PROVIDER_IMAGE: makes no box without one */
    const char *image; /* then: of a box for which none was asked; NULL or "": none */
    void *state;
    const struct box_events *events;

    /* ---- every provider ---- */

    int (*create)(struct provider *p, struct wire_id id, const struct spec *s, void *owner,
                  struct box **ret, deadline d, struct pd_err *e);
    /* The box that is being made under this id is not wanted any more: its `create` fails soon, and
     * with nothing left of it. Must not wait; the owner's is_unwanted is true before. NULL: nothing
     * takes so long here. */
    void (*cancel)(struct provider *p, struct wire_id id);
    /* Ends the box with all its processes and frees it, whatever the outcome. Its root stays. */
    int (*destroy)(struct box *b, deadline d, struct pd_err *e);
    /* How many boxes there are, also those that nobody here knows. NULL: it cannot tell. */
    int (*count)(struct provider *p, unsigned *ret, deadline d, struct pd_err *e);
    int (*exec)(struct box *b, const struct box_command *c, struct pd_err *e);
    /* A thread listens itself, in the pump's place, for as long as one command takes. hear_begin
     * says whether it may, because one does at a time; the box is not freed until hear_end. `hear`
     * waits for news of that command, for the caller's descriptors (at most HEAR_MORE), or until
     * the deadline, and calls the events of that command alone. NULL: nobody can but the pump. */
    bool (*hear_begin)(struct box *b);
    enum box_heard (*hear)(struct box *b, struct wire_id command, struct pollfd *more,
                           unsigned count, deadline d);
    void (*hear_end)(struct box *b);
    /* SIGKILL to the command: with PROVIDER_TREES to all processes of its group, and to nothing
     * else. Returns when it was sent to all of them; their end is told by events. Not for the
     * pump's thread. */
    int (*kill)(struct box *b, struct wire_id command, unsigned group, struct pd_err *e);
    /* Holds the processes of a group, or lets them go on. When it has returned 0 for `held`, none
     * of them does anything until it is let go, but die. Waits a moment at most. Whoever was
     * stopped by a signal is afterwards, too. NULL: nobody can be held. */
    int (*hold)(struct box *b, unsigned group, bool held, struct pd_err *e);
    /* The end of the command is stored: the provider may forget it. -1: the box has not heard it
     * and is not waited for. Then its next sync tells the end again. */
    int (*forget)(struct box *b, struct wire_id command);
    /* Tells the state of every command again, by `started` and `exited`. Deadline 0: does not wait,
     * `synced` comes at the end. */
    int (*sync)(struct box *b, deadline d, struct pd_err *e);
    /* How well this box is isolated, and the best that boxes of this provider have. */
    enum rung (*rung)(const struct box *b);
    enum rung (*best)(struct provider *p);
    /* Fills *ret and returns true when the box's places are not those of a jail. NULL: they are. */
    bool (*place)(struct box *b, struct box_place *ret);
    /* Is it well? Otherwise the error says what is wrong. */
    int (*health)(struct provider *p, struct pd_err *e);
    void (*free)(struct provider *p);

    /* ---- by capability; NULL without it ---- */

    /* PROVIDER_ADOPT. PD_NOT_FOUND when there is no such box any more. Events come from the first
     * sync on. */
    int (*adopt)(struct provider *p, struct wire_id id, void *owner, struct box **ret,
                 struct pd_err *e);
    /* PROVIDER_ADOPT. Ends every box that exists and was neither created nor adopted by this
     * daemon. */
    void (*end_strangers)(struct provider *p);
    /* PROVIDER_SIGNAL. To the command's first process. Waits until the deadline for a box that is
     * slow to read; deadline 0: does not wait. */
    int (*signal)(struct box *b, struct wire_id command, int signal, deadline d, struct pd_err *e);
    /* PROVIDER_TREES. Is nothing left in the group, so that another command may have its number?
     * GROUP_MISSING when no command ever had it. */
    int (*group_is_empty)(struct box *b, unsigned group);
    /* PROVIDER_TERMINAL. The near end is read and written; the far end is for `exec`. */
    int (*terminal)(struct box *b, int *ret_near, int *ret_far, struct pd_err *e);
    /* PROVIDER_TERMINAL. `near` is what `terminal` gave. Must not wait. */
    int (*resize)(struct box *b, struct wire_id command, int near, uint16_t rows, uint16_t cols,
                  struct pd_err *e);
    /* PROVIDER_PAUSE. */
    int (*pause)(struct box *b, bool paused, deadline d, struct pd_err *e);
    /* PROVIDER_USAGE. */
    int (*usage)(struct box *b, struct box_usage *ret, struct pd_err *e);
    /* PROVIDER_EGRESS. Gives the sockets of the box's way out, which the caller owns then: the one
     * that gets its TCP connections, the one for its DNS questions. A box that was made without
     * network gate gets one now, while it runs. */
    int (*way_out)(struct box *b, int ret[2], struct pd_err *e);

    /* PROVIDER_IMAGE. Does the box run, and would a new one from its image be the same? Asks the
     * engine, so it takes a moment; any failure says that nobody should be given this box. */
    int (*check)(struct box *b, deadline d, struct pd_err *e);

    /* A request on the provider's own store of images, until it is done or the deadline: any
     * failure is told as a line, too. NULL: its images are an engine's, or it has none. */
    int (*images)(struct provider *p, const struct box_images *r, deadline d, struct pd_err *e);

    /* PROVIDER_ROOTS. Deletes a root that no box uses. */
    int (*remove_root)(struct provider *p, const char *root_name, struct pd_err *e);
    /* PROVIDER_SLEEP. The root is to outlive its box, restarts of the provider and of the machine,
     * until remove_root. Called before the last box that uses it is destroyed. */
    int (*keep_root)(struct provider *p, const char *root_name, deadline d, struct pd_err *e);
    /* PROVIDER_SNAPSHOT. Makes root `to`, a copy of root `from`, complete or not at all. `b`: the
     * box that uses `from`, whose processes stand still meanwhile and go on whatever the outcome
     * (unless it was paused before), or NULL when none does. PD_NOT_FOUND: there is no `from`.
     * PD_CONFLICT: another box uses `from`, or `to` exists. PD_NO_SPACE: the disk is full. At the
     * deadline the copy is given up and PD_TIMEOUT. Not for the pump's thread. */
    int (*copy_root)(struct provider *p, struct box *b, const char *from, const char *to,
                     deadline d, struct pd_err *e);

    /* PROVIDER_STASH. Descriptors that outlive the daemon, by key. */
    int (*stash)(struct provider *p, const char *key, const int *fds, unsigned count,
                 struct pd_err *e);
    int (*fetch)(struct provider *p, const char *key, int *ret_fds, unsigned max,
                 unsigned *ret_count, deadline d, struct pd_err *e);
    void (*drop)(struct provider *p, const char *key);
};

/* ---- capabilities ---- */

struct provider_capability {
    unsigned bit;
    const char *name;    /* as GET /v1/providers says it */
    const char *cannot;  /* "provider NAME cannot ..." */
    const char *instead; /* what a caller may do */
};
extern const struct provider_capability provider_capabilities[PROVIDER_CAPABILITY_COUNT];

/* 0 if the provider has the capability; else PD_UNSUPPORTED with a text that names the provider and
 * says what to do instead. `p` NULL: a session's provider is not configured any more. */
int provider_must(const struct provider *p, enum provider_can bit, struct pd_err *e);
bool provider_has(const struct provider *p, enum provider_can bit);

/* ---- the table ---- */

#define PROVIDERS_MAX     16u
#define PROVIDER_NAME_MAX 31u

/* The providers of a server. The first one is the default. Owns them. Does not change once sessions
 * use it, so it is read without a lock. */
struct provider_table {
    struct provider *list[PROVIDERS_MAX];
    unsigned count;
};

/* Takes `p` over. Fails with PD_INTERNAL, and frees it, when a function is missing that every
 * provider or one of its capabilities needs; with PD_INVALID when the name is taken. */
int provider_table_add(struct provider_table *t, struct provider *p, struct pd_err *e);
/* NULL when there is none of that name. */
struct provider *provider_table_find(const struct provider_table *t, const char *name);
/* The index of the provider, or t->count for one that is not in it. */
unsigned provider_table_index(const struct provider_table *t, const struct provider *p);
/* The provider for a request that names it, or the default for NULL and "auto". PD_INVALID with the
 * valid names when there is none. */
struct provider *provider_table_choose(const struct provider_table *t, const char *name,
                                       struct pd_err *e);
void provider_table_done(struct provider_table *t);
/* As the router sees them; `ret` has room for PROVIDERS_MAX. Returns how many there are. */
unsigned provider_table_describe(const struct provider_table *t, struct route_provider *ret);
/* The same for a sandbox of this specification: how well it would be isolated, and which of them
 * cannot make it. */
unsigned provider_table_describe_for(const struct provider_table *t, const struct spec *spec,
                                     struct route_provider *ret);
/* The image of a box that is made so: the one that was asked for, else the provider's; "": none. */
const char *provider_image(const struct provider *p, const struct spec *spec);
