/* store: what must survive the daemon. Acknowledged means stored: when a put returns 0, the row is
 * there after kill -9 of the daemon. A loss of power may cost the last seconds of sessions and
 * processes (the sandboxes are gone then anyway), never a key or a value.
 *
 * Calls are safe from any thread. Rows are plain data; strings in rows that are given to a callback
 * live only during it. NULL strings in a row that is put count as "".
 *
 * Failures: PD_NO_SPACE (disk full), PD_CAPACITY (busy, out of memory; try again), PD_INTERNAL (the
 * disk, a damaged or read-only file; the text says what to do). A failed call has changed nothing,
 * and the next one starts afresh: when the disk has room again, nothing needs a restart. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pd_err;

struct session_row {
    const char *id;                           /* SESSION_ID_LEN characters */
    uint8_t box_id[16];                       /* the provider's */
    const char *tenant, *user_id, *thread_id; /* "" when there is none */
    const char *template_name, *provider, *reason, *policy, *metadata;
    const char *env; /* NAME=VALUE strings, each with its NUL */
    size_t env_len;
    const char *cwd;
    const void *spec; /* encoded, opaque to the store */
    size_t spec_len;
    const char *root_name;
    const char *key; /* Idempotency-Key or "" */
    uint64_t key_hash;
    const char *replaces; /* id of the session that this one was made in place of, or "" */
    int state, end;       /* enum session_state, enum session_end */
    const char *end_reason;
    uint64_t created_ms, expires_ms, last_used_ms, ended_ms;
    uint64_t idle_timeout_ms, max_life_ms, paused_ms;
    int from_pool, rung;
    const char *note; /* opaque */
    int pause_at_end, asleep;
    int mode;               /* enum run_mode */
    const char *arm;        /* of the experiment that it was made in, or "" */
    const char *other_root; /* that a move may have left, as PROVIDER:ROOT; or "" */
    const char *network;    /* rules of its way out, or "" */
    const char *made_by;    /* id of the key, or "" */
};

struct process_row {
    uint8_t id[16];
    const char *session; /* its id; never changes */
    const char *command; /* for people */
    const char *key;
    uint64_t key_hash;
    unsigned group;
    int pid;
    int flags; /* the session layer's */
    int exited, status, stop;
    uint64_t started_ms, ended_ms, deadline_ms; /* deadline 0: none */
    uint64_t duration_us, cpu_usec, max_rss, spool_max;
    const char *why; /* why it could not be started, or "" */
    int why_code;
    const char *note; /* opaque */
};

struct snapshot_row {
    const char *id, *tenant;
    const char *name; /* or "" */
    const char *sandbox, *template_name, *provider;
    int profile, state, kind; /* state and kind: the session layer's */
    uint64_t created_ms;
    const char *note; /* opaque */
};

/* One build of a template. A template is the builds that have its id. */
struct build_row {
    const char *id, *template_id, *tenant, *name;
    const char *tags; /* lines */
    const char *made_by, *provider, *base, *settings;
    const char *snapshot; /* what it made, or "" */
    const char *step, *message;
    int state, profile; /* state: the build layer's */
    uint64_t cpu_milli, memory, size;
    uint64_t created_ms, updated_ms, finished_ms;
};

struct key_row {
    const char *id;   /* public part, shown in lists */
    uint8_t hash[32]; /* SHA-256 of the key */
    const char *tenant, *label;
    uint64_t created_ms, expires_ms, last_used_ms, revoked_ms; /* 0: not */
    int role;                                                  /* enum auth_role */
};

struct store {
    void *state;
    /* Inserts or replaces. */
    int (*put_session)(struct store *s, const struct session_row *r, struct pd_err *e);
    /* Its processes, too. Deleting what is not there is fine, here and below. */
    int (*delete_session)(struct store *s, const char *id, struct pd_err *e);
    /* The each_* calls give every row, oldest first, until the callback returns non-zero (the call
     * itself still returns 0). The callback may call the store: no lock is held. A row that is put
     * or deleted meanwhile may be seen or not. */
    int (*each_session)(struct store *s, int (*each)(const struct session_row *r, void *arg),
                        void *arg, struct pd_err *e);
    /* Cheap: kill-safe, not power-loss-safe. */
    int (*put_process)(struct store *s, const struct process_row *r, struct pd_err *e);
    int (*delete_process)(struct store *s, const uint8_t id[16], struct pd_err *e);
    int (*each_process)(struct store *s, int (*each)(const struct process_row *r, void *arg),
                        void *arg, struct pd_err *e);
    /* As those of sessions; kill-safe. */
    int (*put_snapshot)(struct store *s, const struct snapshot_row *r, struct pd_err *e);
    int (*delete_snapshot)(struct store *s, const char *id, struct pd_err *e);
    int (*each_snapshot)(struct store *s, int (*each)(const struct snapshot_row *r, void *arg),
                         void *arg, struct pd_err *e);
    /* The same for builds. */
    int (*put_build)(struct store *s, const struct build_row *r, struct pd_err *e);
    int (*delete_build)(struct store *s, const char *id, struct pd_err *e);
    int (*each_build)(struct store *s, int (*each)(const struct build_row *r, void *arg), void *arg,
                      struct pd_err *e);
    /* Inserts, or changes the label and the times. A revoked key stays revoked, whoever puts it
     * again: two processes write keys. */
    int (*put_key)(struct store *s, const struct key_row *r, struct pd_err *e);
    /* Notes when a key was last used; cheap, as put_process. */
    int (*touch_key)(struct store *s, const char *id, uint64_t last_used_ms, struct pd_err *e);
    int (*each_key)(struct store *s, int (*each)(const struct key_row *r, void *arg), void *arg,
                    struct pd_err *e);
    /* Small named values: server secret, schema, ... Returns the length, -1 with PD_NOT_FOUND, or
     * with PD_TOO_LARGE when it does not fit. */
    int (*put_value)(struct store *s, const char *name, const void *data, size_t len,
                     struct pd_err *e);
    ptrdiff_t (*get_value)(struct store *s, const char *name, void *out, size_t size,
                           struct pd_err *e);
    /* A number that differs from the last one when another process has written to the store in
     * between. Costs a few microseconds. -1 on failure. */
    int64_t (*version)(struct store *s);
    void (*free)(struct store *s);
};
