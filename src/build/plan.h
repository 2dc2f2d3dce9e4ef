/* plan: what a build is to do: where it begins, its steps, and what it leaves running.
 *
 * A plan comes from a stranger, so plan_add_step checks each step by itself, and says what is wrong
 * with it. All here is pure but for memory: no file, no sandbox.
 *
 * Keys say whether a step was done before. The key of a step is the digest of the key before it,
 * the step's kind, its words, and the digest of the files that it copies. So it also stands for the
 * variables, the user and the directory that hold there, because the steps before have made those.
 */
#pragma once

#include "base/buf.h"
#include "base/sha256.h"
#include "wire/msg.h"
#include "wire/spec.h"

#include <stdbool.h>

#define PLAN_STEPS_MAX 256u
#define PLAN_ARGS_MAX  256u
#define PLAN_ARG_MAX   (64u << 10)
#define PLAN_TEXT_MAX  (1u << 20) /* all words of all steps */
#define PLAN_USER_MAX  32u
#define PLAN_ENV_MAX   (64u << 10)

/* COPY has the words SOURCE, DESTINATION, OWNER or "", MODE or ""; RUN: COMMAND, maybe a USER; ENV:
 * NAME, VALUE, NAME ...; WORKDIR and USER: one word. */
enum step_kind { STEP_RUN, STEP_COPY, STEP_ENV, STEP_WORKDIR, STEP_USER, STEP_KIND_COUNT };
const char *step_kind_name(enum step_kind k);

struct build_step {
    enum step_kind kind;
    struct msg_list_writer args;
    char files[SHA256_HEX_SIZE];  /* COPY: under which hash they were sent */
    char digest[SHA256_HEX_SIZE]; /* COPY: of what was sent; the runner's */
    bool force;                   /* from here on nothing is taken from earlier builds */
};

/* What holds for a command of a build, and for those of a sandbox made from it. */
struct build_context {
    struct msg_list_writer env; /* NAME=VALUE, each name once */
    char user[PLAN_USER_MAX];   /* "user" or "root" */
    char workdir[SPEC_PATH_MAX];
};
#define BUILD_CONTEXT_INIT                                                                         \
    ((struct build_context){.env = MSG_LIST_WRITER_INIT, .user = "user", .workdir = "/home/user"})
void build_context_done(struct build_context *c);
/* Appends it as JSON; reads what that has written. -1: no memory, or it is none. */
int build_context_write(const struct build_context *c, struct buf *out);
int build_context_read(struct build_context *c, const char *text);
/* Sets a variable; PD_TOO_LARGE. */
int build_context_set(struct build_context *c, const char *name, const char *value,
                      struct pd_err *e);

struct build_plan {
    /* One of them, or none (then it begins as a sandbox of the profile does). */
    char image[SPEC_IMAGE_MAX + 1];
    char *image_from, *image_login; /* as in a session_request, or NULL */
    char snapshot[24];
    char base[SPEC_IMAGE_MAX + 32]; /* what it begins with, for people and for keys */
    enum profile profile;
    struct limits limits;
    char *network; /* rules of the way out, or NULL */
    char made_by[24];
    struct build_context context; /* at the beginning */
    struct build_step steps[PLAN_STEPS_MAX];
    unsigned count;
    size_t text; /* bytes of words so far */
    char *start, *ready;
    bool force;
};
struct build_plan *plan_new(void);
void plan_free(struct build_plan *p); /* NULL is fine */
static inline void plan_done(struct build_plan **p)
{
    plan_free(*p);
}
#define auto_plan __attribute__((cleanup(plan_done))) struct build_plan *

/* `type` in any case; `files`: 64 hex digits, or NULL. PD_INVALID, PD_TOO_LARGE. */
int plan_add_step(struct build_plan *p, const char *type, const struct msg_list *args,
                  const char *files, bool force, struct pd_err *e);

/* The key of step `n` (from 0), from the key before it; and of where all begins, and of the end. */
void plan_key_base(const struct build_plan *p, char ret[SHA256_HEX_SIZE]);
void plan_key_step(const struct build_step *s, const char *before, char ret[SHA256_HEX_SIZE]);
void plan_key_end(const struct build_plan *p, const char *before, char ret[SHA256_HEX_SIZE]);

/* [A-Za-z0-9] and then [A-Za-z0-9._-], at most 63. */
bool plan_is_name(const char *text, size_t len);
/* `path` from `workdir` on, without ".", ".." and double slashes. PD_INVALID: too long. */
int plan_path(const char *workdir, const char *path, char ret[SPEC_PATH_MAX], struct pd_err *e);
/* The part of a source before its first pattern ("*?[{"), by whole components: what a client has
 * packed is below it. "": all of it. PD_INVALID when it leaves its directory. */
int plan_source(const char *source, char ret[SPEC_PATH_MAX], struct pd_err *e);
