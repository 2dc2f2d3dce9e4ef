/* A store that keeps nothing. The rows of a store are for the next daemon, and a library has none:
 * they would end with the process, and while it runs nobody reads them. So every call succeeds. */
#include "lib/lib.h"

#include "base/banned.h"
#include "store/store.h"

static int put_session(struct store *s, const struct session_row *r, struct pd_err *e)
{
    (void)s, (void)r, (void)e;
    return 0;
}

static int delete_by_name(struct store *s, const char *id, struct pd_err *e)
{
    (void)s, (void)id, (void)e;
    return 0;
}

static int each_session(struct store *s, int (*each)(const struct session_row *r, void *arg),
                        void *arg, struct pd_err *e)
{
    (void)s, (void)each, (void)arg, (void)e;
    return 0;
}

static int put_process(struct store *s, const struct process_row *r, struct pd_err *e)
{
    (void)s, (void)r, (void)e;
    return 0;
}

static int delete_process(struct store *s, const uint8_t id[16], struct pd_err *e)
{
    (void)s, (void)id, (void)e;
    return 0;
}

static int each_process(struct store *s, int (*each)(const struct process_row *r, void *arg),
                        void *arg, struct pd_err *e)
{
    (void)s, (void)each, (void)arg, (void)e;
    return 0;
}

static int put_snapshot(struct store *s, const struct snapshot_row *r, struct pd_err *e)
{
    (void)s, (void)r, (void)e;
    return 0;
}

static int each_snapshot(struct store *s, int (*each)(const struct snapshot_row *r, void *arg),
                         void *arg, struct pd_err *e)
{
    (void)s, (void)each, (void)arg, (void)e;
    return 0;
}

static int put_key(struct store *s, const struct key_row *r, struct pd_err *e)
{
    (void)s, (void)r;
    return pd_fail(e, PD_UNSUPPORTED, "a library has no keys");
}

static int touch_key(struct store *s, const char *id, uint64_t last_used_ms, struct pd_err *e)
{
    (void)s, (void)id, (void)last_used_ms, (void)e;
    return 0;
}

static int each_key(struct store *s, int (*each)(const struct key_row *r, void *arg), void *arg,
                    struct pd_err *e)
{
    (void)s, (void)each, (void)arg, (void)e;
    return 0;
}

static int put_value(struct store *s, const char *name, const void *data, size_t len,
                     struct pd_err *e)
{
    (void)s, (void)data, (void)len;
    return pd_fail(e, PD_UNSUPPORTED, "value '%.60s': a library keeps none", name);
}

static ptrdiff_t get_value(struct store *s, const char *name, void *out, size_t size,
                           struct pd_err *e)
{
    (void)s, (void)out, (void)size;
    return pd_fail(e, PD_NOT_FOUND, "there is no value '%.60s'", name);
}

static int64_t version(struct store *s)
{
    (void)s;
    return 1;
}

static void store_memory_free(struct store *s)
{
    free(s);
}

struct store *store_memory_new(struct pd_err *e)
{
    struct store *s = calloc(1, sizeof *s);
    if (!s) {
        pd_fail(e, PD_CAPACITY, "no memory");
        return NULL;
    }

    *s = (struct store){.put_session = put_session,
                        .delete_session = delete_by_name,
                        .each_session = each_session,
                        .put_process = put_process,
                        .delete_process = delete_process,
                        .each_process = each_process,
                        .put_snapshot = put_snapshot,
                        .delete_snapshot = delete_by_name,
                        .each_snapshot = each_snapshot,
                        .put_key = put_key,
                        .touch_key = touch_key,
                        .each_key = each_key,
                        .put_value = put_value,
                        .get_value = get_value,
                        .version = version,
                        .free = store_memory_free};
    return s;
}
