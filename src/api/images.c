/* The store of images at the v1 API (docs/images.md). A tenant sees the images that its patterns
 * mean and may have one of those fetched; what is brought in from a file, removed and pruned is
 * everybody's, and the operator's to do, by an admin key.
 *
 * A pull is answered when it is done; a client that accepts an event stream is told meanwhile. One
 * that goes away ends its pull: what has come stays for the next one. */
#include "api/call.h"
#include "api/handlers.h"
#include "api/sandbox.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "config/config.h"
#include "core/images.h"
#include "wire/image_record.h"
#include "wire/image_ref.h"

#include <fcntl.h>
#include <jansson.h>

#define QUICK        (30 * NS_PER_S)
#define LONG         (3600 * NS_PER_S)
#define LIST_MAX     (32u << 20)
#define ARCHIVE_MAX  (UINT64_C(64) << 30)
#define NAME_MAX_LEN IMAGE_TEXT_MAX

/* --- what is told of an image ---------------------------------------------------------------- */

static bool may_see(const struct call *c, const char *text)
{
    return config_check_image(c->config, c->who.tenant, text, NULL) == 0;
}

/* Names that the caller has no business with are left away; an image without any other is not
 * there for it. Nor is one that has no name, but for the operator: what it is called would say
 * whose it is. False: it is not there. */
static bool make_seen(const struct call *c, json_t *image)
{
    char id[IMAGE_HEX_LEN + 8];
    const char *hex = json_string_value(json_object_get(image, "id"));
    json_t *names = json_object_get(image, "names");

    bool is_anothers = false, has_names = json_array_size(names) > 0;
    snprintf(id, sizeof id, "sha256:%.64s", hex ? hex : "");
    for (size_t i = json_array_size(names); i-- > 0;) {
        const char *name = json_string_value(json_array_get(names, i));
        if (may_see(c, name))
            continue;
        is_anothers = is_anothers || config_is_own_image(name);
        json_array_remove(names, i);
    }
    json_object_set_new(image, "id", json_string(id));
    if (json_array_size(names))
        return true;
    return !is_anothers && may_see(c, id) && (has_names || c->who.role == AUTH_ADMIN);
}

static void put_words(struct json *j, const json_t *image, const char *key)
{
    json_key(j, key);
    json_open(j, '[');
    const json_t *list = json_object_get(image, key);
    for (size_t i = 0; i < json_array_size(list); i++)
        json_cstr(j, json_string_value(json_array_get(list, i)));
    json_close(j, ']');
}

/* Its variables are not told: whoever may use the image asks a sandbox of it. */
static void put_image(struct json *j, const json_t *image)
{
    static const char *const texts[] = {"id", "workdir", "user", "architecture", "created"};
    static const char *const lists[] = {"names", "entrypoint", "cmd", "layers"};

    json_open(j, '{');
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        json_member_str(j, texts[i], json_string_value(json_object_get(image, texts[i])));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        put_words(j, image, lists[i]);
    json_member_uint(j, "size_bytes",
                     (uint64_t)json_integer_value(json_object_get(image, "size_bytes")));
    json_time(j, "used_at", (uint64_t)json_integer_value(json_object_get(image, "used_ms")));
    json_close(j, '}');
}

/* Images and other lines, one after the other, of one request. */
struct taking {
    struct call *c;
    struct json *json;
    const char *wanted; /* the id of the only one, or NULL: all that it may see */
    unsigned count;
};

static int take_image(void *arg, const json_t *line, struct pd_err *e)
{
    struct taking *t = arg;
    json_auto_t *image = json_deep_copy(line);

    (void)e;
    if (image && json_object_get(image, "layers") && make_seen(t->c, image)) {
        put_image(t->json, image);
        t->count++;
    }
    return 0;
}

static int ask_quickly(struct call *c, enum images_verb verb, const char *image, struct taking *t,
                       struct pd_err *e)
{
    struct images_request r = {
        .verb = verb, .image = image, .file = -1, .line = t ? take_image : NULL, .arg = t};
    return images_ask(c->api->sessions, &r, deadline_in(QUICK), e);
}

/* Appends the image that a text means. */
static int tell_one(struct call *c, const char *text, struct json *j, struct pd_err *e)
{
    struct taking t = {.c = c, .json = j};

    if (ask_quickly(c, IMAGES_INSPECT, text, &t, e) < 0)
        return -1;
    return t.count ? 0 : pd_fail(e, PD_NOT_FOUND, "there is no image '%.120s'", text);
}

static int answer_one(struct call *c, int status, const char *text, struct pd_err *e)
{
    auto_buf out = BUF_INIT(LIST_MAX);
    struct json j = JSON_INIT(&out);
    return tell_one(c, text, &j, e) < 0 ? -1 : call_json(c, status, &out);
}

int images_list_get(struct call *c, struct pd_err *e)
{
    auto_buf out = BUF_INIT(LIST_MAX);
    struct json j = JSON_INIT(&out);
    struct taking t = {.c = c, .json = &j};

    if (call_no_query(c, e) < 0)
        return -1;
    json_open(&j, '{');
    json_key(&j, "images");
    json_open(&j, '[');
    if (ask_quickly(c, IMAGES_LIST, "", &t, e) < 0)
        return -1;
    json_close(&j, ']');
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

static int take_seen(void *arg, const json_t *line, struct pd_err *e)
{
    struct taking *t = arg;
    json_auto_t *image = json_deep_copy(line);

    (void)e;
    if (image && json_object_get(image, "layers") && make_seen(t->c, image))
        t->count++;
    return 0;
}

int call_check_image_id(struct call *c, const char *image, struct pd_err *e)
{
    struct taking t = {.c = c};
    struct images_request r = {
        .verb = IMAGES_INSPECT, .image = image, .file = -1, .line = take_seen, .arg = &t};

    if (images_ask(c->api->sessions, &r, deadline_in(QUICK), e) < 0)
        return e->code == PD_NOT_FOUND || e->code == PD_UNSUPPORTED ? 0 : -1;
    return t.count ? 0 : pd_fail(e, PD_NOT_FOUND, "there is no image '%.120s'", image);
}

int image_get(struct call *c, struct pd_err *e)
{
    if (call_no_query(c, e) < 0 || call_check_image(c, c->var[0], e) < 0)
        return -1;
    return answer_one(c, 200, c->var[0], e);
}

/* --- pulling --------------------------------------------------------------------------------- */

struct pulling {
    struct call *c;
    char id[IMAGE_HEX_LEN + 8]; /* what came of it */
    bool streams, begun, failed;
};

static void give_event(struct pulling *p, struct buf *out)
{
    struct pd_err e;

    if (!p->begun) {
        reply_header(p->c->r, "Cache-Control", "no-store");
        p->failed = reply_begin(p->c->r, 200, "text/event-stream", REPLY_CHUNKED, &e) < 0;
        p->begun = true;
    }
    buf_puts(out, "\n\n");
    if (!p->failed && (out->overflow || reply_write(p->c->r, out->data, out->len, &e) < 0))
        p->failed = true;
}

static int take_news(void *arg, const json_t *line, struct pd_err *e)
{
    struct pulling *p = arg;
    const char *id = json_string_value(json_object_get(line, "id"));

    if (id)
        snprintf(p->id, sizeof p->id, "%s", id);
    if (id || !p->streams)
        return 0;

    auto_buf out = BUF_INIT(8192);
    char *text = json_dumps(line, JSON_COMPACT);
    if (text)
        buf_printf(&out, "event: image.pull\ndata: %s", text);
    free(text);
    give_event(p, &out);
    return p->failed ? pd_fail(e, PD_CONFLICT, "the client has gone away") : 0;
}

static bool has_left(void *arg)
{
    const struct pulling *p = arg;
    return p->failed || request_is_abandoned(p->c->r);
}

/* The last event: the image, or why there is none. */
static int end_stream(struct pulling *p, const struct buf *image, const struct pd_err *why)
{
    auto_buf out = BUF_INIT(LIST_MAX);
    struct json j = JSON_INIT(&out);
    struct pd_err ignored;

    if (why) {
        buf_puts(&out, "event: error\ndata: ");
        json_open(&j, '{');
        json_key(&j, "error");
        json_open(&j, '{');
        json_member_cstr(&j, "code", pd_code_name(why->code));
        json_member_cstr(&j, "message", why->msg);
        json_close(&j, '}');
        json_close(&j, '}');
    } else {
        buf_puts(&out, "event: image\ndata: ");
        buf_put(&out, image->data, image->len);
    }
    give_event(p, &out);
    if (p->failed || reply_end(p->c->r, &ignored) < 0)
        reply_abort(p->c->r);
    return why ? -1 : 0;
}

static int pull(struct pulling *p, const char *image, bool missing, struct buf *out,
                struct pd_err *e)
{
    struct json j = JSON_INIT(out);
    struct images_request r = {.verb = IMAGES_PULL,
                               .tenant = p->c->who.tenant,
                               .image = image,
                               .missing = missing,
                               .file = -1,
                               .line = take_news,
                               .is_unwanted = has_left,
                               .arg = p};

    if (images_ask(p->c->api->sessions, &r, deadline_in(LONG), e) < 0)
        return -1;
    return tell_one(p->c, image, &j, e);
}

/* Whether the operator and the tenant's patterns let it be fetched. */
static int check_pull(struct call *c, const char *image, struct pd_err *e)
{
    struct image_ref ref;

    if (image_ref_parse(image, &ref, e) < 0) {
        snprintf(c->field, sizeof c->field, "image");
        return -1;
    }
    if (c->config->image_pull == CONFIG_PULL_NEVER)
        return pd_fail(e, PD_DENIED, "this server fetches no images: image_pull is never");
    return call_check_image(c, image, e);
}

int images_pull(struct call *c, struct pd_err *e)
{
    static const char *const pulls[] = {"missing", "always", NULL};
    auto_buf body = BUF_INIT(API_BODY_MAX), out = BUF_INIT(LIST_MAX);
    auto_fields f = {0};
    const char *image = NULL;
    unsigned how = 1;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0)
        return -1;
    fields_str(&f, "image", FIELD_REQUIRED, 1, SPEC_IMAGE_MAX, &image);
    fields_enum(&f, "pull", FIELD_OPTIONAL, pulls, &how);
    if (call_finish(c, &f, e) < 0 || check_pull(c, image, e) < 0)
        return -1;
    snprintf(c->summary, sizeof c->summary, "%.200s", image);

    struct pulling p = {.c = c, .streams = call_accepts(c, "text/event-stream")};
    int failed = pull(&p, image, how == 0, &out, e);
    if (p.begun)
        return end_stream(&p, &out, failed ? e : NULL);
    return failed ? -1 : call_json(c, 200, &out);
}

/* --- the operator's -------------------------------------------------------------------------- */

/* What has come, to be read alone: strangers' bytes are looked at in a jail that gets this. */
static int take_archive(struct call *c, struct pd_err *e)
{
    char place[4200], again[40];
    uint64_t most = c->config->image_store_max ? c->config->image_store_max : ARCHIVE_MAX;

    snprintf(place, sizeof place, "%s/server", c->config->state_dir);
    auto_fd file = open(place, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0)
        return pd_fail_sys(e, "make a file for the archive");
    if (request_read_into(c->r, file, most, NULL, e) < 0)
        return -1;
    snprintf(again, sizeof again, "/proc/self/fd/%d", file);
    int fd = open(again, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? pd_fail_sys(e, "open the archive") : fd;
}

struct brought {
    char ids[IMAGE_RECORDS_MAX][IMAGE_HEX_LEN + 8];
    unsigned count;
};

static int note_brought(void *arg, const json_t *line, struct pd_err *e)
{
    struct brought *b = arg;
    const char *id = json_string_value(json_object_get(line, "id"));

    (void)e;
    if (id && b->count < IMAGE_RECORDS_MAX)
        snprintf(b->ids[b->count++], sizeof *b->ids, "%s", id);
    return 0;
}

int images_import(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"name", NULL};
    auto_buf out = BUF_INIT(LIST_MAX);
    struct json j = JSON_INIT(&out);
    struct brought b = {.count = 0};
    char name[NAME_MAX_LEN] = "";

    if (call_query_check(c, allowed, e) < 0 || call_query(c, "name", name, sizeof name, e) < 0)
        return -1;
    auto_fd file = take_archive(c, e);
    if (file < 0)
        return -1;
    struct images_request r = {
        .verb = IMAGES_IMPORT, .image = name, .file = file, .line = note_brought, .arg = &b};
    if (images_ask(c->api->sessions, &r, deadline_in(LONG), e) < 0)
        return -1;

    json_open(&j, '{');
    json_key(&j, "images");
    json_open(&j, '[');
    /* One that a later image of the archive has displaced is not there any more. */
    for (unsigned i = 0; i < b.count; i++)
        if (tell_one(c, b.ids[i], &j, e) < 0 && e->code != PD_NOT_FOUND)
            return -1;
    json_close(&j, ']');
    json_close(&j, '}');
    return call_json(c, 201, &out);
}

int image_delete(struct call *c, struct pd_err *e)
{
    if (call_no_query(c, e) < 0 || ask_quickly(c, IMAGES_REMOVE, c->var[0], NULL, e) < 0)
        return -1;
    return call_empty(c);
}

static int put_removed(void *arg, const json_t *line, struct pd_err *e)
{
    const char *id = json_string_value(json_object_get(line, "removed"));

    (void)e;
    if (id)
        json_cstr(arg, id);
    return 0;
}

int images_prune_post(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), out = BUF_INIT(LIST_MAX);
    auto_fields f = {0};
    struct json j = JSON_INIT(&out);
    struct images_request r = {
        .verb = IMAGES_PRUNE, .image = "", .file = -1, .line = put_removed, .arg = &j};

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;
    fields_u64(&f, "max_bytes", FIELD_OPTIONAL, 1, UINT64_MAX / 2, &r.max);
    if (call_finish(c, &f, e) < 0)
        return -1;

    json_open(&j, '{');
    json_key(&j, "removed");
    json_open(&j, '[');
    if (images_ask(c->api->sessions, &r, deadline_in(QUICK), e) < 0)
        return -1;
    json_close(&j, ']');
    json_close(&j, '}');
    return call_json(c, 200, &out);
}
