/* serve: the server, in three processes.
 *
 *   guardian   what the user started. Binds, starts a keeper for each provider if none runs, and
 *              again when it has died; passes signals on. Does nothing with what strangers send.
 *   daemon     its child: everything else, without privilege and with a filter on itself. Dies with
 *              the guardian.
 *   keeper     `paddock keeper`, in a session of its own: outlives both, with every sandbox.
 *   gate       `paddock gate`, likewise, where sandboxes may have a way out: ends with the keeper.
 *   changer    `paddockd changer`, beside the gate: uses secrets on behalf of sandboxes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct config;
struct pd_err;

#define SERVE_PATIENCE      (2 * NS_PER_S) /* for a server that is about to end */
#define SERVE_KEEPERS_MAX   16u
#define SERVE_LISTENERS_MAX 65 /* two lists of 32, and the Unix socket */

/* A keeper of one kind. */
struct serve_keeper {
    const char *kind;
    char socket[108];
    int sock; /* connected, or -1 */
    bool is_new;
};

/* The gate, through which sandboxes reach the network, and the changer. */
enum { HELPER_GATE, HELPER_CHANGER, HELPER_COUNT };

struct serve_helper {
    char socket[108]; /* "": there is none */
    int pidfd;        /* of the process; -1: it has to be started */
    uint64_t began, pause,
        due; /* on the clock: its start, how long the next one waits, until when */
};

struct serve {
    struct config *config;
    const char *const *argv; /* flags, for a reload */
    int argc;
    char program[4096];  /* paddock: the keeper is started from it */
    char data_dir[4096]; /* the daemon's own: database, spools, audit log */
    struct serve_keeper keepers[SERVE_KEEPERS_MAX]; /* one for each of `providers` */
    unsigned keeper_count;
    struct serve_helper helpers[HELPER_COUNT];
    pid_t guardian; /* the daemon's parent */
    uid_t uid;      /* the daemon's; ours when we have no privilege */
    gid_t gid;
    int uid_lock; /* while it is open nobody else has the uid; -1 when it is somebody's by name */
    int secrets;  /* the guardian's: credentials that the environment had (secret_env.h); or -1 */
    int listeners[SERVE_LISTENERS_MAX];
    int speaks_tls[SERVE_LISTENERS_MAX];
    unsigned listener_count;
    bool activated; /* the service manager opened them */
    struct tls_context *tls;
};

int cmd_serve(int argc, char **argv);
int cmd_key(int argc, char **argv);
int cmd_cert(int argc, char **argv);
int cmd_config(int argc, char **argv);
int cmd_changer(int argc, char **argv);
int cmd_backend(int argc, char **argv);
extern const char serve_usage[], key_usage[], cert_usage[], config_usage[], changer_help[],
    backend_usage[];

/* backend_cmd.c */
/* Calls `each` with the options of a broker of this kind, without dashes, and their values: what
 * all have, docker's own, or `set` with WORD=VALUE for each setting KIND_WORD. */
struct serve_told {
    void (*each)(void *context, const char *name, const char *value);
    void *context;
};
void serve_backend_options(const struct config *c, const char *kind, const struct serve_told *told);

/* Does this address of `listen` speak TLS? */
bool serve_is_tls(const struct serve *s, const char *address);

/* privileges.c */
/* Finds the user that the daemon runs as, makes its directories and gives them to it. */
int serve_prepare(struct serve *s, struct pd_err *e);
/* Becomes the daemon's user for good. */
int serve_drop(const struct serve *s, struct pd_err *e);
/* The directory of the daemon's data below a state directory. */
void serve_data_dir(const char *state_dir, char *out, size_t size);

/* uid.c */
/* A uid, and a gid of the same number, that nobody else has; the same on every start with this
 * state directory. PD_UNSUPPORTED where there are none to be had. The lock is to stay open. */
int uid_choose(const char *state_dir, uid_t *ret, int *ret_lock, struct pd_err *e);
/* Gives a directory to a user, and what is in it if it was another's. */
int uid_hand_over(const char *dir, uid_t to, gid_t group, struct pd_err *e);

/* guardian.c */
/* The owner of a keeper that answers on this socket; 0 when there is none, or it is root. */
uid_t serve_keeper_owner(const char *path);
/* Connects to the keeper, starting one if there is none (k->is_new). 0, or -1. */
int serve_keeper(const struct serve *s, struct serve_keeper *k, struct pd_err *e);
/* Likewise for every provider. */
int serve_keepers(struct serve *s, struct pd_err *e);
/* Blocks the signals that guardian_run takes, in this process and the daemon that it forks. */
void guardian_block_signals(void);
/* Looks after daemon and keepers until the daemon has ended; its exit status. A keeper that was
 * started for a daemon which could not begin is ended, too. */
int guardian_run(struct serve *s, pid_t daemon);

/* guardian_gate.c */
/* Is there to be a gate? Then it has a socket: where the settings let sandboxes out, or did when
 * those were made that still run. A changer comes with it. */
int helpers_prepare(struct serve *s, struct pd_err *e);
/* Starts those that are missing, when it is time. Before the daemon is there (`first`) those that
 * an earlier server has left are taken over. */
void helpers_start(struct serve *s, bool first);
/* One has ended: the next one has to wait for a moment, and longer each time. */
void helper_ended(struct serve *s, unsigned which);
/* Takes their sockets away, when the keeper has ended. */
void helpers_clean(const struct serve *s);

/* daemon.c: does not return before the end. The exit status. */
int daemon_run(struct serve *s);

/* self_filter.c: system calls that a server has no use for are refused from now on. 0 or -errno. */
int self_filter_load(void);

/* slice.c: threads that are made from now on go before those with more work, when they are woken.
 */
void slice_shorten(void);
