/* lib: libpaddock's own. include/paddock.h is what others see.
 *
 * A library is counted: every handle that somebody holds, and every call in progress, keeps it. So
 * paddock_close ends what runs and never pulls anything from under a call. */
#pragma once

#define PADDOCK_API __attribute__((visibility("default")))
#include <paddock.h>

#include "base/err.h"
#include "base/lock.h"
#include "core/provider.h"
#include "core/sessions.h"
#include "wire/ceilings.h"

#include <signal.h>
#include <stdatomic.h>

#define LIB_TENANT "local"

struct pump;
struct store;
struct worker_run;

struct spool_place {
    char path[512]; /* the directory; "" when there is none */
    int lock;       /* it is ours while this is open */
};

/* The program that holds the jails. */
struct keeper_process {
    char program[4096];
    struct lock lock; /* of what follows */
    pid_t pid;        /* 0: none */
    int sock;         /* a copy of our end; or -1 */
    int link;         /* our end, which is the provider's */
    ino_t inode;      /* of both: the provider's may be closed, and its number another's */
    int closing;
};

struct paddock {
    struct paddock *next; /* in the list of open libraries, for forks */
    atomic_uint refs;
    atomic_int closing; /* paddock_close was called */
    atomic_int forked;  /* this is a child of the process that opened it */
    struct keeper_process keeper;
    struct spool_place place;
    struct pump *pump;
    struct store *store;
    struct provider_table providers;
    struct sessions *sessions;
    struct limits limits;     /* of sandboxes that ask for none */
    struct ceilings ceilings; /* the most that one may ask for */
};

struct paddock_sandbox {
    struct paddock *lib;
    struct session *session;
};

struct paddock_process {
    struct paddock *lib;
    struct process *process;
};

/* Cancelling closes the far end: a thread that waits on the near one sees it hang up. */
struct paddock_cancel {
    int near;
    atomic_int far;
};

/* library.c */
struct paddock *lib_ref(struct paddock *p);
void lib_unref(struct paddock *p);
/* A call on the library itself begins, and holds it until lib_unref. -1: it is closed. */
int lib_begin(struct paddock *p, struct paddock_error *e);
/* May it be used? Otherwise -1. For calls on a handle, which holds it. */
int lib_usable(struct paddock *p, struct paddock_error *e);
struct paddock_sandbox *lib_sandbox(struct paddock *p, struct session *s, struct paddock_error *e);
struct paddock_process *lib_process(struct paddock *p, struct process *held,
                                    struct paddock_error *e);
/* The descriptor that hangs up, or -1. */
int lib_cancel_fd(const struct paddock_cancel *c);
int lib_is_cancelled(const struct paddock_cancel *c);

/* answer.c */
/* Both return -1. With `cancel` used, the reason is that, whatever `why` says. */
int lib_fail(struct paddock_error *e, const struct pd_err *why);
int lib_fail_or_cancelled(struct paddock_error *e, const struct pd_err *why,
                          const struct paddock_cancel *cancel);
int lib_refuse(struct paddock_error *e, enum pd_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* A struct of the caller's, of his size, as one of ours: what he does not know is zero. -1 when its
 * size makes no sense. `from` may be NULL. */
int lib_take(void *to, size_t size, const void *from, const char *what, struct paddock_error *e);
/* The other way; `to` begins with its size, which stays. */
int lib_give(void *to, const void *from, size_t size, const char *what, struct paddock_error *e);
/* "NAME=VALUE"s, or any strings, with NULL behind; list may be NULL. */
int lib_list(const char *const *list, const char *what, int pairs, struct msg_list_writer *ret,
             struct paddock_error *e);

/* A write to a pipe whose reader is gone must not end the host by SIGPIPE. */
struct pipe_guard {
    sigset_t old;
    int was_pending;
};
void pipe_guard_begin(struct pipe_guard *g);
void pipe_guard_end(struct pipe_guard *g);

/* keeper_process.c */
int keeper_process_init(struct keeper_process *k, const char *program, struct pd_err *e);
/* For the provider: starts the program, and gives a socket to it. */
int keeper_process_start(void *keeper_process, struct pd_err *e);
/* In a child that the host forked: closes its copies, which would keep the keeper alive. */
void keeper_process_leave(struct keeper_process *k);
/* Ends it, and waits for that. */
void keeper_process_end(struct keeper_process *k);
void keeper_process_done(struct keeper_process *k);

/* spool_place.c */
/* Makes the directory, and removes those of processes that died. */
int spool_place_make(struct spool_place *s, const char *base, struct pd_err *e);
void spool_place_remove(struct spool_place *s);

/* store_memory.c: a store that keeps nothing but says that it did. To be freed by its `free`. */
struct store *store_memory_new(struct pd_err *e);
