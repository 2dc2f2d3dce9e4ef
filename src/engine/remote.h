/* remote: what a backend on somebody else's machines is to its broker.
 *
 * A backend is one file and one row: it says how a box is made, found, ended and reached by the API
 * of its engine. All else is here and the same for each of them: the keeper's requests, names, the
 * lease, orphans, the end of the keeper, the processes that stand for a box on this machine
 * (far_box.h), and `paddock backend check`.
 *
 * To add one:
 *
 *   src/engine/NAME.c            a `struct remote` with what it needs, and its functions
 *   src/engine/remote_kinds.c    a row
 *   src/jail/keeper_kind.c       a row like that of kubernetes
 *   src/provider/providers.c     a row with CAN_FAR, its patience and is_far
 *   src/config/                  settings NAME_WORD: the broker is given each that is not empty, as
 *                                `--set WORD=VALUE` (broker_setting)
 *
 * **What a box is.** A machine, container or pod in which `paddock-box run` is started
 * (docs/link.md):
 *
 *   /.../paddock-box run key=FILE|- box=LINK lease=SECONDS [profile=dev]
 *
 * plan->program is that program's file, plan->link its box id, plan->key the 32 bytes of its key.
 * With `key=-` it waits for the key at a socket of its own, where `paddock-box key` hands over what
 * it reads from its standard input; so the key need not stand in any engine's records.
 * Where `paddock-box join` can be run in the box, or its port be dialled, there is its link.
 *
 * **Nothing is made twice.** A box has one name, plan->name, which follows from the keeper and the
 * sandbox. An answer that got lost is no answer: the box is looked for, by name or label, before
 * anything is repeated. Where the engine has no names that are unique, all that are found but one
 * are ended. Whatever create leaves behind when it fails is ended by the caller.
 *
 * **Nothing costs money unwatched.** What a keeper has left behind that was killed with all its
 * brokers is ended by the next broker; what an engine made after its broker gave up is found by its
 * label, a second later or up to five minutes; and each box ends itself when nobody was heard for
 * the length of its lease. Where the engine has an end of its own (deadline, time to live) a
 * backend asks for it, too.
 *
 * **Credentials** are read in open(), by the broker and by each carrier: from the file that a
 * setting names, or from the environment. They are in no other process, in no command line, and in
 * no error text.
 *
 * **What an engine answers** is believed as far as JSON goes: sizes are bounded, strings are
 * checked before they become names, URLs or headers; redirects are not followed. Parsers are pure
 * functions in a file of their own, with vectors and a fuzz target. */
#pragma once

#include "base/clock.h"
#include "engine/broker.h"
#include "wire/spec.h"

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct byte_stream;
struct far_box;
struct pd_err;
struct remote_kind;

#define REMOTE_PLACE_MAX 1024u
#define REMOTE_NAME_MAX  63u /* a DNS label */
#define REMOTE_BOX_MAX   64u
#define REMOTE_KEY       32u
#define REMOTE_PROGRAM   (8u << 20) /* the most that paddock-box may have */

/* One opened backend: its own struct has this as the first member. `config` and `is_wanted` are
 * filled in by remote_open. */
struct remote {
    const struct remote_kind *kind;
    const struct broker_config *config;
    bool (*is_wanted)(void *context); /* or NULL: see remote_is_wanted */
    void *wanted_context;
};

/* A box to be made. The spec was checked (remote_check_spec, then the kind's own). */
struct remote_plan {
    const char *instance, *box; /* labels: whose, and which */
    char name[REMOTE_NAME_MAX + 1];
    const struct spec *spec;
    int program; /* a file: paddock-box (remote_read_program) */
    char link[33];
    uint8_t key[REMOTE_KEY];
    uint32_t lease; /* s */
};

/* What there is of a box. */
struct remote_state {
    char place[REMOTE_PLACE_MAX]; /* what reach needs: one word without blanks, no credential */
    char box[REMOTE_BOX_MAX];     /* its label */
    bool running;                 /* or it is about to */
    char why[160]; /* of one that has ended, in words: evicted, out of memory ...; or "" */
};

/* -1 with *e ends the list. */
typedef int remote_each(void *context, const struct remote_state *s, struct pd_err *e);
/* One line of a check: what was looked at, and what was found. */
typedef void remote_tell(void *context, const char *name, const char *value);

struct remote_kind {
    const char *name;
    enum rung rung;   /* the isolation of its boxes */
    bool needs_image; /* it makes no box without one */
    /* The words of `--set`, up to a NULL; NULL: it takes none. */
    const char *const *settings;

    /* Reads settings and credentials; PD_INVALID names the one that is wrong, and the remedy. It
     * makes no call that waits. NULL with *e. */
    struct remote *(*open)(const struct broker_config *c, struct pd_err *e);
    void (*close)(struct remote *r); /* NULL is fine */

    /* What it cannot give besides what no remote kind can; or NULL. PD_UNSUPPORTED names it. */
    int (*check_spec)(const struct remote *r, const struct spec *s, struct pd_err *e);
    /* Makes the box and waits until it can be reached. Asks remote_is_wanted while it waits. When
     * it fails because the engine ended the box, the error is PD_LOST with the engine's reason. */
    int (*create)(struct remote *r, const struct remote_plan *p, struct remote_state *ret,
                  deadline t, struct pd_err *e);
    /* PD_NOT_FOUND when there is none; its text may say why, for people. */
    int (*find)(struct remote *r, const char *instance, const char *box, struct remote_state *ret,
                deadline t, struct pd_err *e);
    /* Ends the box, with all doubles, for good. Fine when there is none. */
    int (*end)(struct remote *r, const char *instance, const char *box, deadline t,
               struct pd_err *e);
    /* Each box of a keeper that the engine still has or bills, ended ones included. */
    int (*each)(struct remote *r, const char *instance, remote_each *each, void *context,
                deadline t, struct pd_err *e);
    /* A stream to `paddock-box join` in the box, or to its port. The carrier calls this for each
     * connection of the link. NULL: PD_NOT_FOUND or PD_LOST when there is no such box any more, or
     * it has ended; anything else may pass. */
    struct byte_stream *(*reach)(struct remote *r, const char *place, deadline t, struct pd_err *e);

    /* Where an engine ends its boxes after a time: has it wait for as long as the lease again. The
     * carrier calls this three times in the length of a lease, in a process of its own, as long as
     * its connection to the box lasts; reach is to do the same. NULL: there is no such time. */
    int (*renew)(struct remote *r, const char *place, deadline t, struct pd_err *e);

    /* Tries credentials and permissions, and tells what it found. -1 with what is wrong and the
     * remedy. One box is made and ended behind it, by the caller. */
    int (*check)(struct remote *r, remote_tell *tell, void *context, deadline t, struct pd_err *e);

    /* Instead of all this: a broker that has its own way with the keeper's requests, as docker's,
     * most of whose boxes are on this machine. Only open, close and reach are used beside it. */
    void (*serve)(const struct broker_config *c, int sock, int init_fd);
    int (*tell)(const struct broker_config *c); /* likewise for a check; its exit status */
};

/* ---- the table (remote_kinds.c) ---- */

/* NULL when there is none of that name, or behind the last one. */
const struct remote_kind *remote_kind_find(const char *name);
const struct remote_kind *remote_kind_at(unsigned i);

/* ---- for backends ---- */

/* False when nobody waits for the box any more: the keeper has sent a CANCEL, or is gone. Fits
 * http_request.is_wanted, with the remote as its context. */
bool remote_is_wanted(void *remote);
/* The name of a box: "paddock-" and what follows from both, at most 63 of a-z 0-9 -. Another box
 * has another name, also where the names of sandboxes have characters that are left out. */
void remote_name(const char *instance, const char *box, char out[REMOTE_NAME_MAX + 1]);
/* The words that `paddock-box run` is started with, behind "run": how many. `text` is where they
 * are; `key` is FILE or "-". */
#define REMOTE_WORDS 4u
struct remote_words {
    char text[REMOTE_WORDS][80];
    unsigned count;
};
void remote_run_words(const struct remote_plan *p, const char *key, struct remote_words *ret);
/* The whole program paddock-box, for a backend that puts it in by itself. */
int remote_read_program(int fd, struct buf *out, struct pd_err *e);
/* Refuses what no box elsewhere has: files of this machine, roots that outlive the box, networks of
 * this machine, more isolation than the kind's, a profile that only a jail holds. */
int remote_check_spec(const struct remote_kind *k, const struct spec *s, struct pd_err *e);
/* A small file, such as one with a credential, without the line break at its end. `what` names the
 * setting in errors. A directory, a link to nowhere or more than `max` bytes are PD_INVALID. */
int remote_read_file(const char *what, const char *path, struct buf *out, struct pd_err *e);

/* ---- for programs ---- */

/* Opens the kind of the configuration. NULL with *e. */
struct remote *remote_open(const struct broker_config *c, struct pd_err *e);
void remote_close(struct remote *r); /* NULL is fine */

/* How the link of a box is brought up; far_box_start, but for tests. */
typedef pid_t remote_start_link(const struct far_box *b, int *ret_process, deadline t,
                                struct pd_err *e);
/* Serves the keeper until it closes its socket; then ends all its boxes. */
void remote_serve(const struct broker_config *c, int sock, int init_fd, int box_fd,
                  remote_start_link *start);
/* Says what the backend is and has, in lines "NAME VALUE", then makes one box and ends it; what is
 * wrong is a line "error TEXT". `image` is what that box is made from, or "". Returns the status of
 * the program. */
int remote_check(const struct broker_config *c, const char *image);
