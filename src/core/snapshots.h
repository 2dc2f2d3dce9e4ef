/* snapshots: copies of a sandbox's files, to start other sandboxes from.
 *
 * A snapshot is a root in the store of roots ("sn-ID") and a row. The row comes first and goes
 * last, and says what was going on: a daemon that dies in between removes at its next start what
 * was half made or half removed. Snapshots belong to a tenant and outlive their sandbox. A name
 * belongs to one snapshot of a tenant at a time: given again it moves on, and the older snapshot
 * keeps its id.
 *
 * Layers are snapshots of which no client hears: what a step of a template's build has made
 * (build/templates.h). They have a key in place of a name, and a note.
 *
 * Only roots on disk can be copied: PD_UNSUPPORTED otherwise, with a text that says what to set. */
#pragma once

#include "core/session.h"

struct buf;
struct sessions;

#define SNAPSHOT_NAME_MAX 127
#define LAYERS_MAX        256u /* of a tenant */

/* Kept in the database. */
enum snapshot_kind { SNAPSHOT_OF_CLIENT = 0, SNAPSHOT_LAYER = 1 };

struct snapshot_info {
    char id[SESSION_ID_LEN + 1];
    char tenant[64];
    char name[SNAPSHOT_NAME_MAX + 1]; /* "": it has none (any more) */
    char sandbox[SESSION_ID_LEN + 1]; /* where it is from; may be gone */
    char template_name[64];           /* the sandbox's, as the next */
    char provider[32];
    enum profile profile;
    enum snapshot_kind kind;
    uint64_t created_ms;
};

/* Copies the session's files; its processes stand still meanwhile, whatever the outcome. From
 * running, paused or asleep. `name`: NULL or "" for none. PD_CAPACITY at the tenant's limit, and
 * PD_NO_SPACE, leave nothing behind. May take as long as copying its files takes (two minutes at
 * most: PD_TIMEOUT). */
int session_snapshot(struct session *s, const char *name, struct snapshot_info *ret,
                     struct pd_err *e);
/* By id, or by name. PD_NOT_FOUND also for another tenant's. An id is tried first. */
int snapshots_find(struct sessions *all, const char *tenant, const char *id_or_name,
                   struct snapshot_info *ret, struct pd_err *e);
/* Up to `limit`, newest first. `sandbox`, `name`, `cursor`: only those, or NULL. *ret_next as of
 * sessions_list. */
int snapshots_list(struct sessions *all, const char *tenant, const char *sandbox, const char *name,
                   const char *cursor, unsigned limit, struct snapshot_info *ret,
                   unsigned *ret_count, char ret_next[64], struct pd_err *e);
/* It is not found from now on. Sandboxes that are being made from it are made all the same: its
 * files go when the last copy is done. */
int snapshot_delete(struct sessions *all, const char *tenant, const char *id_or_name,
                    struct pd_err *e);

/* The same for layers: made like a snapshot, with a note; found by key, the youngest, with a copy
 * of the note appended; those of a tenant, the youngest first; deleted by id. */
int session_layer(struct session *s, const char *key, const char *note, struct snapshot_info *ret,
                  struct pd_err *e);
int layer_find(struct sessions *all, const char *tenant, const char *key, struct snapshot_info *ret,
               struct buf *ret_note, struct pd_err *e);
unsigned layers_list(struct sessions *all, const char *tenant,
                     struct snapshot_info ret[LAYERS_MAX]);
int layer_delete(struct sessions *all, const char *tenant, const char *id, struct pd_err *e);

/* A new session by `r` (as sessions_create, with its queue and its key) whose files are a copy of
 * those of `s`. Where r says nothing of environment (none set) or directory, those of `s` hold.
 * r->snapshot must be NULL. */
int session_fork(struct session *s, const struct session_request *r, struct session **ret,
                 struct pd_err *e);
