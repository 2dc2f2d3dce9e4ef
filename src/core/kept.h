/* kept: how much output of commands is kept on the disk, and what is forgotten when it is too much.
 *
 * Bytes are counted for each sandbox, each tenant and the server. Beyond a limit the recorder
 * forgets the output of the commands that ended first, and if that is not enough, the oldest output
 * of those that run. Until it has done so nobody may grow by much: beyond a quarter more than the
 * limit every stream keeps KEPT_LEAST bytes, and one whose reader must not miss a byte waits. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct process;
struct session;
struct sessions;
struct stream;

#define KEPT_PER_SANDBOX (256ull << 20)
#define KEPT_PER_TENANT  (2ull << 30)
#define KEPT_IN_ALL      (16ull << 30)
#define KEPT_LEAST       (64ull << 10)

/* Of the server. */
struct kept {
    _Atomic uint64_t limit[3]; /* of a sandbox, a tenant, and all together */
    _Atomic uint64_t bytes;
    _Atomic uint64_t forgotten; /* outputs, since the start */
    atomic_bool due;            /* something is to be forgotten; the recorders' */
    _Atomic uint64_t next;      /* and not before this; theirs */
    atomic_bool taken;          /* one of them is at it */
};

/* 0: the default; that of the whole server is at most half of the disk that `dir` is on. */
void kept_set_limits(struct kept *k, uint64_t sandbox, uint64_t tenant, uint64_t all, int dir);
/* Before the command's first byte: finds the counter of its tenant, if the sandbox has one. Takes
 * sessions.lock. */
void kept_begin(struct process *p);
/* The stream's spool has grown or shrunk. With the process's lock held. */
void kept_count(struct stream *s);
/* Is so much kept that this stream may not grow? With the process's lock held. */
bool kept_is_too_much(const struct stream *s);
/* Its files are deleted, with the process's lock held. */
void kept_drop(struct process *p);
/* A recorder's: forgets until every limit is kept to. Asks no provider. */
void kept_trim(struct sessions *all);
