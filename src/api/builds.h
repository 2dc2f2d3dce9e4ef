/* templates: what both doors share about templates that were built (build/templates.h). */
#pragma once

#include "api/call.h"
#include "build/templates.h"

/* A name for a new build: not one of the server's own templates. PD_CONFLICT. */
int template_check_name(struct call *c, const char *name, struct pd_err *e);
/* The limits of a build or of a sandbox: the server's defaults with these (0: the default), within
 * the tenant's ceilings. */
void template_limits(const struct call *c, uint64_t cpu_milli, uint64_t memory, uint64_t disk,
                     uint64_t files, struct limits *ret);
/* A plan of the caller's that begins with an image of the store, or with a template: a name, maybe
 * with a tag, or the server's default one (both NULL). With the field that is wrong. */
int template_plan_begin(struct call *c, struct build_plan *p, const char *image,
                        const char *template, const struct limits *limits, struct pd_err *e);
/* Appends the steps: the member `name`, an array of objects, whose member `files` is that of COPY.
 */
void template_plan_steps(struct fields *f, const char *name, const char *files,
                         struct build_plan *p);
/* Texts of commands that it leaves running. */
int template_plan_end(struct build_plan *p, const char *start, const char *ready, struct pd_err *e);

/* The templates that the caller has built, as members of a list. */
int templates_put_built(struct call *c, struct json *j, struct pd_err *e);
/* The body of the request becomes a file under this hash. */
int template_take_files(struct call *c, const char *hash, bool check_digest, struct pd_err *e);

/* The variables and the directory of a sandbox of a template: what the request says beats what the
 * template says. `env` has the request's, and gets those of both. */
void template_apply(const struct template_use *u, struct session_request *r,
                    struct msg_list_writer *env);
