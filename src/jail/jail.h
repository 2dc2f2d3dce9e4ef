/* jail: a jail from its owner's side.
 *
 * An owner talks to a keeper (to make and end jails) and, over a control socket that it made
 * itself, straight to each jail's init (to run commands). Neither is trusted blindly: init's
 * messages come from inside the jail. Every call that waits takes a deadline. */
#pragma once

#include "base/clock.h"
#include "wire/msg.h"

#include <stdbool.h>
#include <sys/types.h>

struct pd_err;

struct keeper;

struct keeper_link {
    int sock;
    uint64_t epoch;
    struct keeper *inside; /* the keeper itself, where it is part of this process; else NULL */
};

/* Connects to a running keeper (socket path), or starts a private one that ends with this process.
 * The latter forks: only for a single-threaded process. */
int keeper_connect(struct keeper_link *l, const char *path, struct pd_err *e);
/* A private one that is part of this process (keeper_start_inside says what that asks for). Calls
 * that wait for it, such as jail_create and jail_destroy, let it work. */
int keeper_take_inside(struct keeper_link *l, struct pd_err *e);
/* As wire_recv from the link. */
int keeper_link_recv(struct keeper_link *l, struct frame *f, deadline d, struct pd_err *e);
/* Says HELLO and waits for the answer: the link has an epoch of its own then. `ret_rung`: the best
 * that this keeper can give (NULL: not wanted). */
int keeper_greet(struct keeper_link *l, enum rung *ret_rung, deadline d, struct pd_err *e);
int keeper_start_private(struct keeper_link *l, struct pd_err *e);
void keeper_link_done(struct keeper_link *l);

struct jail {
    struct wire_id id;
    uint64_t epoch; /* of the keeper link: init drops what older owners still send */
    int control;    /* to init */
    int cgroup_dir; /* of the v2 tree, for the commands' groups; or -1 */
    int devpts;     /* where its terminals are made; or -1 */
    int gate[2];    /* the sockets of its way out, for a gate; or -1 */
    bool is_far;    /* on another machine: its terminals are made there */
    enum rung rung;
    pid_t init_pid;
    uint32_t uid_base;
    unsigned next_group;
    bool on_image; /* its init begins with FACTS */
};

#define JAIL_EMPTY ((struct jail){.control = -1, .cgroup_dir = -1, .devpts = -1, .gate = {-1, -1}})
void jail_done(struct jail *j); /* closes the descriptors; the jail itself stays */

/* Asks for a jail. From now on commands may be sent to j->control: init finds them when it starts.
 * `flags`: CREATE_KEEP or 0. */
int jail_request(struct keeper_link *l, struct jail *j, const struct spec *s, unsigned flags,
                 struct pd_err *e);
/* The same, with a network namespace that the caller made meanwhile (or -1): a private keeper is
 * still starting then, and making one takes as long as everything else. */
int jail_request_in(struct keeper_link *l, struct jail *j, const struct spec *s, unsigned flags,
                    int netns, struct pd_err *e);
/* The same for an owner that chose the id beforehand, to write it down first. */
int jail_request_as(struct keeper_link *l, struct jail *j, struct wire_id id, const struct spec *s,
                    unsigned flags, int netns, struct pd_err *e);
/* A directory that the keeper sent; -1 when it is the place holder for none, which is closed. */
int jail_real_dir(int fd);
/* Tells a box on another machine the size of a command's terminal; also before its EXEC. */
int jail_send_size(struct jail *j, struct wire_id exec, unsigned rows, unsigned cols, deadline d,
                   struct pd_err *e);
/* Takes the keeper's answer to jail_request out of a frame. */
int jail_accept(struct jail *j, struct frame *f, struct pd_err *e);
/* Both, waiting for the answer. */
int jail_create(struct keeper_link *l, struct jail *j, const struct spec *s, unsigned flags,
                deadline d, struct pd_err *e);
/* Ends the jail and waits until every process in it is gone. `ret` may be NULL. */
int jail_destroy(struct keeper_link *l, struct jail *j, int want_stats, struct msg_gone *ret,
                 deadline d, struct pd_err *e);

/* A command. Lists are made with msg_list_writer. */
struct command {
    struct wire_id id;
    struct msg_exec exec;
    int fds[3];
    unsigned flags; /* EXEC_PTY */
    char group[24]; /* its own cgroup, or "" */
    int at_once;    /* a jail that does not read it now is not waited for */
};

/* Sends the command to init; the answer comes as STARTED or ERROR. `own_group`: puts it into a
 * cgroup of its own, so that it can be ended with all its children and nothing else. */
int jail_send_command(struct jail *j, struct command *c, int own_group, struct pd_err *e);
/* Sends a command whose id the caller chose and whose cgroup it made: `procs` is what
 * cgroup_command_create gave, or -1. `extra`: becomes descriptor 3 of the command, or -1. */
int jail_send_prepared(struct jail *j, const struct command *c, int procs, int extra,
                       struct pd_err *e);
int jail_send_signal(struct jail *j, const struct command *c, int signal, deadline d,
                     struct pd_err *e);
/* Tells init that the end of the command is known, and removes its group. */
void jail_forget_command(struct jail *j, const struct command *c);
/* Ends the command's whole tree, whatever it did. Needs own_group. */
int jail_kill_command(struct jail *j, const struct command *c);
/* Sends the command and waits for its end. */
int jail_run(struct jail *j, struct command *c, int own_group, struct msg_exited *ret, deadline d,
             struct pd_err *e);

/* Makes a terminal in the jail's own devpts: the master and the far end. */
int jail_open_terminal(const struct jail *j, int *ret_master, int *ret_slave, struct pd_err *e);
