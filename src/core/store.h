/* store: what must survive the daemon. Acknowledged means stored.
 *
 * Calls are safe from any thread. Rows are plain data; strings in rows that are given to a callback
 * live only during it. */
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
};

struct process_row {
    uint8_t id[16];
    const char *session; /* its id */
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
};

struct key_row {
    const char *id;   /* public part, shown in lists */
    uint8_t hash[32]; /* SHA-256 of the key */
    const char *tenant, *label;
    uint64_t created_ms, last_used_ms, revoked_ms; /* 0: not */
};

struct store {
    void *state;
    /* Inserts or replaces. */
    int (*put_session)(struct store *s, const struct session_row *r, struct pd_err *e);
    int (*delete_session)(struct store *s, const char *id,
                          struct pd_err *e); /* its processes, too */
    int (*each_session)(struct store *s, int (*each)(const struct session_row *r, void *arg),
                        void *arg, struct pd_err *e);
    /* Cheap: kill-safe, not necessarily power-loss-safe. */
    int (*put_process)(struct store *s, const struct process_row *r, struct pd_err *e);
    int (*delete_process)(struct store *s, const uint8_t id[16], struct pd_err *e);
    int (*each_process)(struct store *s, int (*each)(const struct process_row *r, void *arg),
                        void *arg, struct pd_err *e);
    int (*put_key)(struct store *s, const struct key_row *r, struct pd_err *e);
    int (*each_key)(struct store *s, int (*each)(const struct key_row *r, void *arg), void *arg,
                    struct pd_err *e);
    /* Small named values: server secret, schema, ... Returns the length, -1 with PD_NOT_FOUND. */
    int (*put_value)(struct store *s, const char *name, const void *data, size_t len,
                     struct pd_err *e);
    ptrdiff_t (*get_value)(struct store *s, const char *name, void *out, size_t size,
                           struct pd_err *e);
    void (*free)(struct store *s);
};
