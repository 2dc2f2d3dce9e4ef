/* templates: what tenants have built to make sandboxes from.
 *
 * A template is a name of a tenant's, with builds. A build has a row; while it is under way it has
 * a thread and a sandbox of the tenant, made and used by the calls that clients use, so that
 * limits, rates of the queue, rules of the way out and the audit log hold for it. What it leaves is
 * a layer (core/snapshots.h), which sandboxes of the template start as a copy of. Tags are words of
 * which each leads to one build of its template; `default` is meant where none is named.
 *
 *   waiting    it is known, and files may be sent for it
 *   building   it has its turn, or waits for it
 *   ready      there is a layer
 *   failed     it says why. So are those that were under way when a daemon ended
 *
 * Of what is left of builds a tenant has LAYERS_KEPT layers that no build needs: those are what
 * steps of the next build may begin with.
 *
 * Safe from any thread. */
#pragma once

#include "build/plan.h"
#include "core/session.h"

struct files;
struct sessions;
struct store;
struct templates;

#define BUILD_ID_LEN     36 /* a UUID */
#define BUILD_TAGS_MAX   32u
#define BUILD_TAGS_SIZE  (BUILD_TAGS_MAX * 64 + 1)
#define BUILDS_MAX       200u /* rows of a tenant */
#define BUILDS_FAILED    10u  /* of a template that are remembered */
#define BUILDS_QUEUED    20u  /* of a tenant that are under way or wait for their turn */
#define BUILDS_OF_TENANT 2u   /* that run at once */
#define BUILDS_AT_ONCE   4u   /* of all tenants */
#define LAYERS_KEPT      16u
#define BUILD_TIME_NS    (3600 * NS_PER_S)

enum build_state { BUILD_WAITING = 0, BUILD_BUILDING = 1, BUILD_READY = 2, BUILD_FAILED = 3 };
const char *build_state_name(enum build_state s); /* as clients see it: error for the last */

struct build_info {
    char id[BUILD_ID_LEN + 1];
    char template_id[SESSION_ID_LEN + 1];
    char tenant[64], name[64];
    char tags[BUILD_TAGS_SIZE]; /* one a line; those that lead to it, once it is ready */
    char made_by[24], provider[32];
    char base[SPEC_IMAGE_MAX + 32];
    char snapshot[SESSION_ID_LEN + 1]; /* the layer, or "" */
    char step[24], message[400];       /* of one that failed */
    enum build_state state;
    enum profile profile;
    uint64_t cpu_milli, memory, size; /* size: bytes that its files take; 0: not known */
    uint64_t created_ms, updated_ms, finished_ms;
};

struct templates_config {
    struct sessions *sessions;
    struct store *store;
    const struct provider_table *providers;
    const char *state_dir; /* logs and files are below it, in builds/ */
};
struct templates *templates_new(const struct templates_config *c, struct pd_err *e);
/* Takes up the rows; of builds that were under way nothing is left but what they say. After
 * sessions_adopt. */
int templates_adopt(struct templates *t, struct pd_err *e);
/* Ends what is under way and waits for it, 10 s at most. */
void templates_stop(struct templates *t);
void templates_free(struct templates *t);

/* ---- finding ---- */

/* Up to `limit` builds of a tenant, the newest first; `template_id` NULL: of all. */
unsigned builds_list(struct templates *t, const char *tenant, const char *template_id,
                     struct build_info *ret, unsigned limit);
/* By the template's id or name, whatever its builds are: the newest one. PD_NOT_FOUND. */
int template_newest(struct templates *t, const char *tenant, const char *id_or_name,
                    struct build_info *ret, struct pd_err *e);
int build_find(struct templates *t, const char *tenant, const char *id_or_name, const char *build,
               struct build_info *ret, struct pd_err *e);
/* What ID or NAME, maybe with :TAG, leads to: a build that is ready. PD_NOT_FOUND says which tags
 * there are. */
int template_resolve(struct templates *t, const char *tenant, const char *text,
                     struct build_info *ret, struct pd_err *e);

/* What sandboxes of a build begin with. */
struct template_use {
    struct build_info build;
    struct build_context context;
    uint64_t disk, files; /* limits that it was built with */
    char *start, *ready;  /* or NULL */
};
void template_use_done(struct template_use *u);
#define auto_use __attribute__((cleanup(template_use_done))) struct template_use
int template_use(struct templates *t, const char *tenant, const char *text,
                 struct template_use *ret, struct pd_err *e);
/* Starts what such a sandbox is to run, and waits until it is ready, or for START_PATIENCE. What
 * fails is logged: the sandbox is there. */
#define START_PATIENCE_NS (20 * NS_PER_S)
void template_start(struct session *s, const struct template_use *u);

/* ---- changing ---- */

/* A build that waits. `tags`: none mean "default". PD_INVALID, PD_CAPACITY. */
int build_new(struct templates *t, const char *tenant, const char *made_by, const char *name,
              const struct msg_list *tags, uint64_t cpu_milli, uint64_t memory,
              struct build_info *ret, struct pd_err *e);
/* Gives one that waits its plan, which is taken over whatever the outcome. PD_CONFLICT: it waits no
 * more. PD_RATE: the tenant has too many under way. */
int build_start(struct templates *t, const char *tenant, const char *id_or_name, const char *build,
                struct build_plan *plan, struct pd_err *e);
/* Ends one that is under way, which is a failure. Returns at once. */
int build_cancel(struct templates *t, const char *tenant, const char *id_or_name, const char *build,
                 struct pd_err *e);
/* The tags lead to the build that `target` leads to. */
int tags_assign(struct templates *t, const char *tenant, const char *target,
                const struct msg_list *tags, struct build_info *ret, struct pd_err *e);
/* PD_NOT_FOUND when there is no such template; tags that there are not are fine. */
int tags_remove(struct templates *t, const char *tenant, const char *name,
                const struct msg_list *tags, struct pd_err *e);
/* With all builds; those that are under way are ended. Sandboxes made of it go on. */
int template_delete(struct templates *t, const char *tenant, const char *id_or_name,
                    struct pd_err *e);
/* A page of what a build has said; see build_log_read. The build was found. */
unsigned build_log_entries(struct templates *t, const char *build, unsigned from, unsigned limit,
                           void (*each)(void *arg, uint64_t ms, const char *level, const char *step,
                                        const char *text),
                           void *arg);
/* What is sent for builds; see files.h. */
struct files *templates_files(struct templates *t);
/* Deletes what is kept for the next builds of a tenant alone. */
void templates_forget_cache(struct templates *t, const char *tenant);
bool build_has_tag(const struct build_info *i, const char *tag);
