/* init: pid 1 of a jail.
 *
 * It starts commands, reaps everything, and reports how commands ended. It runs as a uid that no
 * user code has, with SETUID, SETGID and KILL in its own user namespace and nothing else, is not
 * dumpable, and holds no secret: all it has is its end of the control socket. One thread, one poll
 * loop, nothing in it blocks.
 *
 * Peers: the owner (descriptor 3, from birth) may ask for anything. In the profile `dev` there is a
 * listening socket inside the jail as well; whoever connects there is the `sudo` shim and may only
 * run one command, as root or user, and signal that. */
#pragma once

#include "wire/msg.h"
#include "wire/start.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#define INIT_PROCESSES_MAX 1024u
#define INIT_PEERS_MAX     33u /* the owner and 32 running sudo commands */

enum init_mode { INIT_STRICT, INIT_DEV, INIT_SINGLE };

/* A command and what is known of it. Kept until its peer has acknowledged the end. */
struct process {
    struct wire_id id;
    uint64_t peer; /* serial of the peer that started it */
    pid_t pid;
    int exited;
    bool failed;     /* it never ran: told as an error, and then forgotten (runner.c) */
    int told;        /* its end was sent in this epoch */
    int unlisted;    /* the SYNC that is being answered has not got to it */
    pid_t holder;    /* its parent, of whom its end is heard; or 0: init is that (holder.c) */
    bool was_copied; /* what is below it may be another command by now (worker_join.c) */
    struct msg_exited end;
};

struct peer {
    int sock;
    uint64_t serial; /* 0 = free; the owner has 1 */
    uint64_t epoch;
    /* A reply that did not fit the socket. While there is one, the peer's requests wait. */
    struct wire_head out_head;
    struct buf out;
    int out_waiting;
    int syncing; /* a list did not fit; likewise */
    struct wire_id sync_id;
    int full; /* something waits: ask poll for room */
};

struct init {
    enum init_mode mode;
    uint64_t memory_limit, process_limit; /* of every command; 0 = cgroups do it */
    struct peer peers[INIT_PEERS_MAX];
    uint64_t next_serial;
    int sudo_listener;
    int signals; /* signalfd: SIGCHLD */
    struct process *processes;
    unsigned process_count, process_room;
    struct frame in; /* reused for every request */
    int retry;       /* the kernel had no memory for a frame */

    struct runner *runner; /* that waits for the next command, or has waited; or NULL */
    bool was_plain;        /* the owner's last EXEC was a plain one: another may follow */
    bool may_wait;         /* a runner: it is the beginning, or such a one was acknowledged */

    struct buf facts; /* as the FACTS frame has them; empty: none are told */

    /* Of a box that somebody else made; all zero in a jail. */
    const struct foreign *foreign;
    bool awaits; /* the owner's socket is a door's, or none: only ADOPT is heard there */
    bool ending; /* whoever started init has told it to end */
    int refused; /* errno of a system call without which it cannot go on */
};

/* Facts of such a box that init needs at every command. */
struct foreign {
    pid_t parent; /* may end init by SIGTERM; 0: from outside of its pid namespace */
    /* Of /proc/self/oom_score_adj: the score is raised while a command is born, which inherits it,
     * so that the kernel chooses commands before init. -1: it cannot be. */
    int oom_file;
    char oom_own[12], oom_command[12];
};

/* peers.c: the protocol. `owner` is the owner's socket; SIGCHLD must be blocked. 0 or -1. */
int init_begin(struct init *in, enum init_mode mode, int owner);
/* In `dev`: listens for the shim, which is the only way to root there, because no_new_privs makes a
 * setuid sudo powerless. Without the socket there is no sudo. */
void init_listen_for_sudo(struct init *in, bool by_name);
/* Where that is: INIT_SUDO_SOCKET, or `by_name` INIT_SUDO_NAME. Returns the address's length. */
socklen_t init_sudo_address(bool by_name, struct sockaddr_un *ret);
/* Of a kit: waits on the owner's socket, which is the keeper's until then, for ADOPT, and has the
 * socket that it brings as the owner's. -1 when anything else comes, or the keeper is gone. */
int init_await_owner(struct init *in);
/* Closes the owner's socket and forgets what was said there. From now on the socket that is put in
 * its place brings ADOPT, and then the owner is another. */
void init_await_another(struct init *in);
/* Tells the owner what was found out at birth. */
void init_tell_facts(struct init *in);
/* Waits for something to do (-1: without end), and does it. -1 when the owner is gone, or a door
 * that it waits at, or when init is to end. */
int init_turn(struct init *in, int timeout_ms);
/* Whether this peer may start a command with this request. 0, or -1 with the reason. */
int init_may_exec(const struct init *in, const struct peer *p, const struct msg_exec *m,
                  struct pd_err *e);
/* Ends the commands and frees everything; for tests, which outlive their init. */
void init_end(struct init *in);

/* holder.c. Does a command with these flags get one? */
bool holder_is_needed(const struct init *in, unsigned flags);
/* Forks; in the holder, `start` starts the command, and what it says is told to init. 0; or -1 when
 * there can be none. */
struct holder_told {
    pid_t pid;        /* of the command; -1: it did not start */
    const char *step; /* that failed, and errno */
    int sys;
};
typedef struct holder_told holder_start(void *arg);
int holder_fork(const struct init *in, holder_start *start, void *arg, pid_t *ret_holder,
                struct holder_told *ret, struct pd_err *e);
/* SIGKILL to a command, and where it has a holder to all that it has forked; of one that was copied
 * only to its group. */
int holder_kill(const struct process *p);

/* exec.c: starts the command of a request. The frame's descriptors become its stdio. Returns its
 * pid, and its holder's or 0; or -1 with the reason (not found, not executable, no such directory,
 * limits). With EXEC_WORKER it is a worker (worker.h). */
pid_t init_spawn(struct init *in, const struct msg_exec *m, struct frame *f, unsigned flags,
                 pid_t *ret_holder, struct pd_err *e);
/* The id of the command of which such a request makes a copy, as text; NULL: it makes none. */
const char *init_joins_from(const struct msg_exec *m, unsigned flags);

/* processes.c: the table of commands. */
struct process *process_find(struct init *in, struct wire_id id, uint64_t peer);
struct process *process_add(struct init *in, struct wire_id id, uint64_t peer, pid_t pid);
/* Makes room for one more. 0 or -1. */
int process_reserve(struct init *in);
void process_remove(struct init *in, struct process *p);
/* Reaps every child that has ended; strangers (orphans) are forgotten, commands get their record.
 */
void processes_reap(struct init *in);

/* box.c: init's main in a box that somebody else made; argv as start.h has it. */
int box_main(int argc, char **argv);
