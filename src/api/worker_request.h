/* worker_request: a worker of a sandbox on behalf of a request, and what requests about files
 * share. See core/worker_run.h. */
#pragma once

#include "api/call.h"
#include "core/worker_run.h"

#define FILE_JSON_MAX (8u << 20) /* of an answer that lists things */

/* worker_run_begin for a request: given up when its client leaves, unless must_finish is set. */
int worker_begin(struct worker_run *w, struct call *c, const char *user, unsigned flags,
                 const char *const *words, struct pd_err *e);
/* The request's body becomes the worker's input, which then ends. A worker that does not want it
 * all is asked why. */
int worker_feed(struct worker_run *w, struct pd_err *e);
/* ---- what requests about files have in common ---- */

/* The parameter `path`, absolute; a relative one is below /workspace. With `fallback` it may be
 * missing. Noted for the audit log. */
int file_query_path(struct call *c, const char *fallback, char out[FILE_PATH_SIZE],
                    struct pd_err *e);
/* For the audit log. */
void file_note(struct call *c, const char *what, const char *path);
/* The parameter `user`: "user" unless given. */
#define FILE_USER_SIZE 8
int file_query_user(struct call *c, char out[FILE_USER_SIZE], struct pd_err *e);
/* Runs an operation that answers with one ENTRY, and answers with it. It is given up when the
 * client leaves, if it may take so long that `long_ns` is set; else it is finished in any case. */
int file_answer_entry(struct call *c, const char *user, int status, const char *const *words,
                      uint64_t long_ns, struct pd_err *e);
void file_entry_json(struct json *j, const struct record_entry *r);
void file_match_json(struct json *j, const struct record_match *m);
