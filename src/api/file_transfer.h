/* file_transfer: whole files between a client and a sandbox, for both doors. files.c.
 *
 * Bytes of plain bodies and answers are moved by the kernel between socket and pipe; memory does
 * not grow with the file. A file changes only after all of it has come: a client that vanishes in
 * the middle changes nothing. `reach`: WORKER_REACH or 0. */
#pragma once

#include "api/worker_request.h"

/* What a file is known by in ETag and If-Match: when it was written, and its size. Quoted. */
#define FILE_TAG_SIZE 64
void file_tag(const struct record_entry *r, char out[FILE_TAG_SIZE]);

/* Answers with the file, or with the range of it that was asked for. 1, with the file's size and
 * the header for it added: the range begins behind the end, and the caller answers 416. */
int file_send(struct call *c, const char *user, unsigned reach, const char *path,
              uint64_t *ret_size, struct pd_err *e);

/* The length of the body, as `write` and `upload` take it; "-" when it is not known. */
#define FILE_LENGTH_SIZE 24
int file_announced(const struct call *c, char out[FILE_LENGTH_SIZE], struct pd_err *e);
/* The body becomes the file, by an operation that commits: all its words. Its entry goes to `j`
 * unless that is NULL. */
int file_receive(struct call *c, const char *user, unsigned reach, const char *const *words,
                 struct json *j, int *ret_replaced, struct pd_err *e);
/* The end of that, for callers that write to the worker's input themselves: call.in is closed, and
 * all of it was right. ret_tag: the new file's, or NULL. */
int file_commit(struct worker_run *w, struct json *j, char ret_tag[FILE_TAG_SIZE],
                int *ret_replaced, struct pd_err *e);
