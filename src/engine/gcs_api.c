/* Requests and lists of Google Cloud Storage. A name of an object is one part of a path, whatever
 * it has, so all of it is percent-encoded. */
#include "engine/gcs_api.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/json.h"
#include "engine/http.h"
#include "engine/rented_text.h"

#include <string.h>

#define PLAIN "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

int gcs_check_bucket(const char *setting, const char *bucket, struct pd_err *e)
{
    size_t len = strlen(bucket);

    if (len >= 3 && len <= 222 &&
        strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == len && bucket[0] != '.' &&
        bucket[0] != '-' && !strstr(bucket, ".."))
        return 0;
    return pd_fail(e, PD_INVALID, "%s = %.80s: use the name of a bucket", setting, bucket);
}

static void object_target(struct buf *out, const char *bucket, const char *name)
{
    buf_printf(out, "/storage/v1/b/%s/o/", bucket);
    http_escape(out, name);
}

void gcs_put_target(struct buf *out, const char *bucket, const char *name, bool only_new)
{
    buf_printf(out, "/upload/storage/v1/b/%s/o?uploadType=media%s&name=", bucket,
               only_new ? "&ifGenerationMatch=0" : "");
    http_escape(out, name);
}

void gcs_get_target(struct buf *out, const char *bucket, const char *name)
{
    object_target(out, bucket, name);
    buf_puts(out, "?alt=media");
}

void gcs_delete_target(struct buf *out, const char *bucket, const char *name)
{
    object_target(out, bucket, name);
}

void gcs_list_target(struct buf *out, const char *bucket, const char *prefix, const char *next)
{
    buf_printf(out, "/storage/v1/b/%s/o?maxResults=1000&prefix=", bucket);
    http_escape(out, prefix);
    if (next[0]) {
        buf_puts(out, "&pageToken=");
        http_escape(out, next);
    }
}

int gcs_read_list(const void *json, size_t len, const char *prefix, char next[GCS_NEXT],
                  gcs_each *each, void *context, struct pd_err *e)
{
    auto_json *j = json_loadb(json, len, 0, NULL);
    const char *more = json_string_value(json_object_get(j, "nextPageToken"));
    json_t *item;
    size_t i;

    next[0] = 0;
    if (!json_is_object(j) || (more && strlen(more) >= GCS_NEXT))
        return pd_fail(e, PD_PROTOCOL, "Cloud Storage's list of objects cannot be read");
    json_array_foreach(json_object_get(j, "items"), i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (!name || strncmp(name, prefix, strlen(prefix)) != 0 || strlen(name) >= GCS_NAME ||
            name[strspn(name, PLAIN)])
            continue;
        if (each(context, name, e) < 0)
            return -1;
    }
    if (more)
        memcpy(next, more, strlen(more) + 1);
    return 0;
}
