/* identity: who a jail's processes are on the host.
 *
 * Every jail has 65536 host uids (and gids) of its own. A range is taken by locking one byte of a
 * file that all keepers of the host share; the kernel drops the lock when the keeper is gone, so a
 * crash needs no clean-up. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pd_err;

/* Where the table of ranges is that all keepers of the machine share; root's. */
#define RANGES_DIR "/run/paddock"

#define RANGE_BASE  1073741824u /* above every range that distributions hand out */
#define RANGE_SIZE  65536u
#define RANGE_COUNT 16383u /* the last range ends below 2^31: larger uids upset old programs */
#define RANGE_BLOCK 64u
#define RANGE_NONE  UINT32_MAX

/* Ids inside a jail. */
#define UID_ROOT 0u
#define UID_USER 1000u
#define UID_INIT 60000u /* pid 1: no user code has it */
#define UID_OWNER                                                                                  \
    60001u /* owns the user namespace, so per-user kernel quotas are this jail's own */

/* The host's id of an id inside the jail with the range `slot`. Rootless (RANGE_NONE) there is only
 * one id, the user's own, and inside the builder's user namespace it is UID_USER. */
uint32_t identity_host_id(uint32_t slot, uint32_t inside);
/* Is there no process of this host uid, not even one that has ended and was not waited for? */
bool identity_is_idle(uint32_t host_uid);

/* The ranges of one keeper. The kernel's locks keep keepers apart; within one keeper, which shares
 * a single open file and so never conflicts with itself, the bit maps do. A keeper for many jails
 * locks RANGE_BLOCK ranges at once and keeps them: the kernel searches a file's locks one by one,
 * so thousands of them would make each new one slow. */
struct ranges {
    int fd;
    int by_block;
    uint64_t owned[RANGE_COUNT / 64 + 1]; /* locked by us; a word is a block */
    uint64_t used[RANGE_COUNT / 64 + 1];  /* and belongs to a jail */
};

/* Opens (or makes) the shared file in the run directory. */
int ranges_open(struct ranges *r, const char *run_dir, int by_block, struct pd_err *e);
void ranges_done(struct ranges *r);
/* Takes a free range, or RANGE_NONE with PD_CAPACITY. */
uint32_t range_take(struct ranges *r, struct pd_err *e);
/* The same for a sandbox: passes over ranges whose user still has processes, of a keeper that was
 * killed, because they could reach into the sandbox. */
uint32_t range_take_idle(struct ranges *r, struct pd_err *e);
void range_release(struct ranges *r, uint32_t slot);
/* Takes the range of a host id for as long as the descriptor is open. -errno; -EAGAIN when a keeper
 * has it. */
int range_borrow(uint32_t host_id);

/* Makes a user namespace that maps 0..65535 to the range, created by a process of the range's own
 * UID_OWNER: the kernel charges inotify instances and the like to the creator of a namespace, and
 * a namespace made by root would let one jail use up every jail's and the host's. `proc` is an open
 * /proc. Needs CAP_SETUID and CAP_SETGID. Returns a descriptor of the namespace, or -1. */
int userns_create(int proc, uint32_t slot, struct pd_err *e);
/* A user namespace for an idmapped mount: `on_disk` (uid and gid) appears as `host_uid`, everything
 * else as nobody. */
int userns_create_single(int proc, uint32_t on_disk_uid, uint32_t on_disk_gid, uint32_t host_uid,
                         struct pd_err *e);
/* Rootless: moves the calling process into a new user namespace in which it is UID_USER. */
int userns_enter_single(struct pd_err *e);
