/* gcs_api: what is said to Google Cloud Storage (JSON API v1, objects of one bucket), and what its
 * lists mean. Pure: no calls are made here. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>

struct pd_err;

#define GCS_NAME 256u /* of an object that is taken from a list, with its NUL */
#define GCS_NEXT 2048u

/* Is this what a bucket may be called? PD_INVALID names the setting. */
int gcs_check_bucket(const char *setting, const char *bucket, struct pd_err *e);

/* Paths. `only_new`: refused with 412 where there is one of this name. */
void gcs_put_target(struct buf *out, const char *bucket, const char *name, bool only_new);
void gcs_get_target(struct buf *out, const char *bucket, const char *name); /* its content */
void gcs_delete_target(struct buf *out, const char *bucket, const char *name);
/* Names that begin with `prefix`, a page at a time; `next` is "" or what the last answer said. */
void gcs_list_target(struct buf *out, const char *bucket, const char *prefix, const char *next);

/* -1 with *e ends the list. */
typedef int gcs_each(void *context, const char *name, struct pd_err *e);
/* Calls it for each name that begins with `prefix` and is plain. `next` is "" behind the last page.
 */
int gcs_read_list(const void *json, size_t len, const char *prefix, char next[GCS_NEXT],
                  gcs_each *each, void *context, struct pd_err *e);
