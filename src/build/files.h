/* files: what clients send for COPY: archives by a hash that the client says, each tenant's for
 * itself. How they got here is of no importance to builds: a key of a step has the digest of what
 * was sent, not the hash that it was sent under.
 *
 * A file is sent under a name of its own and renamed when all of it is there. A tenant has at most
 * FILES_OF_TENANT bytes of them: the oldest make room. Whoever sends one without a key brings a
 * permit, 256 random bits in the address, good for an hour and one file; they are in memory only.
 */
#pragma once

#include "base/sha256.h"

#include <stdbool.h>
#include <stdint.h>

struct pd_err;
struct files;

#define FILE_BYTES_MAX  (UINT64_C(1) << 30)
#define FILES_OF_TENANT (UINT64_C(4) << 30)
#define PERMIT_LEN      64
#define PERMITS_MAX     512u
#define PERMITS_TENANT  128u /* the tenant's oldest makes room */
#define PERMIT_LIFE_MS  UINT64_C(3600000)

/* `dir`: where they are, kept by the caller. What was not sent to its end is deleted. */
struct files *files_new(int dir, struct pd_err *e);
void files_free(struct files *f);

bool files_is_hash(const char *text);
bool files_has(struct files *f, const char *tenant, const char *hash);
/* For reading, PD_NOT_FOUND. With the digest of what is in it, unless that is NULL. */
int files_open(struct files *f, const char *tenant, const char *hash,
               char ret_digest[SHA256_HEX_SIZE], struct pd_err *e);

/* One that is being sent: a descriptor for writing; then finish, or drop. `digest`, or NULL: what
 * it has to have. */
struct sending {
    int fd;
    char name[96];
};
int files_begin(struct files *f, const char *tenant, struct sending *s, struct pd_err *e);
int files_finish(struct files *f, const char *tenant, const char *hash, bool check_digest,
                 struct sending *s, struct pd_err *e);
void files_drop(struct files *f, struct sending *s);

int permits_make(struct files *f, const char *tenant, const char *hash, char ret[PERMIT_LEN + 1],
                 struct pd_err *e);
/* Takes it, which is none any more. PD_UNAUTHENTICATED. */
int permits_take(struct files *f, const char *permit, char ret_tenant[64],
                 char ret_hash[SHA256_HEX_SIZE], struct pd_err *e);
