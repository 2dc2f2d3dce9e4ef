/* The store of images, from the daemon's side: its provider hands out lines of JSON, which are read
 * here.
 *
 * A sandbox is made from its image at once, because it is nearly always there. When the store lacks
 * it, and the server and the request let it be fetched, that comes first, once, and the box is made
 * again under the same id. What a name means is settled by then; where it has to be asked for each
 * time, the fetching comes first. */
#include "core/images.h"

#include "core/session_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "wire/image_record.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* A creation waits for its image as one of an engine does, and somebody waits for it. */
#define CREATION_PATIENCE (300 * NS_PER_S)

/* The store fetches eight images at a time, for all. */
#define PULLS_PER_TENANT 3u
#define LOOK_EVERY       (NS_PER_S / 4) /* whether whoever waits is still wanted */

static struct provider *find_store(const struct sessions *all)
{
    for (unsigned i = 0; i < all->c.providers->count; i++)
        if (all->c.providers->list[i]->images)
            return all->c.providers->list[i];
    return NULL;
}

static int raise_error(const json_t *error, struct pd_err *e)
{
    const char *name = json_string_value(json_object_get(error, "code"));
    const char *text = json_string_value(json_object_get(error, "message"));
    enum pd_code code = PD_INTERNAL;

    for (int i = 0; name && i < PD_CODE_COUNT; i++)
        if (!strcmp(pd_code_name((enum pd_code)i), name))
            code = (enum pd_code)i;
    return pd_fail(e, code, "%s", text ? text : "the store of images has failed");
}

/* A request on its way. */
struct asking {
    const struct images_request *r;
    uint64_t bytes; /* that have come */
    bool ended;     /* the last line said so; where images come, the one of what has come */
};

static uint64_t number(const json_t *line, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(line, key));
    return n > 0 ? (uint64_t)n : 0;
}

static int take_line(void *arg, const char *text, size_t len, struct pd_err *e)
{
    struct asking *a = arg;
    const struct images_request *r = a->r;
    json_auto_t *line = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(line))
        return pd_fail(e, PD_PROTOCOL, "the store of images writes what is no JSON");

    if (json_object_get(line, "bytes_done"))
        a->bytes = number(line, "bytes_done");
    bool is_end = json_is_true(json_object_get(line, "end"));
    bool adds = r->verb == IMAGES_PULL || r->verb == IMAGES_IMPORT;
    a->ended = is_end || (adds && json_object_get(line, "id"));
    if (is_end)
        return 0;
    const json_t *error = json_object_get(line, "error");
    return error ? raise_error(error, e) : r->line ? r->line(r->arg, line, e) : 0;
}

static bool is_unwanted(void *arg)
{
    const struct asking *a = arg;
    return a->r->is_unwanted && a->r->is_unwanted(a->r->arg);
}

static void count_pull(struct sessions *all, const struct asking *a, int failed)
{
    lock_take(&all->lock);
    *(failed ? &all->stats.image_pulls_failed : &all->stats.images_pulled) += 1;
    all->stats.image_bytes += a->bytes;
    lock_release(&all->lock);
}

/* Credentials, for whoever fetches: a file that has no name and goes with its last reader. */
static int make_login(const char *text, struct pd_err *e)
{
    auto_fd file = memfd_create("login", MFD_CLOEXEC);
    int r = file < 0 ? -errno : fd_write_all(file, text, strlen(text));

    errno = -r;
    return r < 0 ? pd_fail_sys(e, "hand credentials on") : fd_take(&file);
}

static int ask(struct sessions *all, struct provider *p, const struct images_request *r, deadline d,
               struct pd_err *e)
{
    auto_fd login = r->login ? make_login(r->login, e) : -1;
    if (r->login && login < 0)
        return -1;

    bool adds = r->verb == IMAGES_PULL || r->verb == IMAGES_IMPORT;
    lock_take(&all->lock); /* a reload changes it */
    uint64_t store_max = all->c.image_store_max;
    lock_release(&all->lock);
    struct asking a = {.r = r};
    struct box_images q = {.what = {.verb = r->verb,
                                    .missing = r->missing,
                                    .store_max = adds ? store_max : r->max,
                                    .image = r->image ? r->image : "",
                                    .as = r->as ? r->as : ""},
                           .file = r->login ? login : r->file,
                           .line = take_line,
                           .is_unwanted = is_unwanted,
                           .arg = &a};
    int failed = p->images(p, &q, d, e);
    /* Else an older image of the name would be taken for a new one, or what was not done for done.
     */
    if (!failed && !a.ended)
        failed = pd_fail(e, PD_LOST, "the store of images has died over it");
    if (r->verb == IMAGES_PULL)
        count_pull(all, &a, failed);
    return failed;
}

/* Takes one of the tenant's places for pulls; waits for one until the deadline, and asks with the
 * lock of all held whether it is unwanted. */
static struct tenant_count *begin_pull(struct sessions *all, const struct images_request *r,
                                       deadline d, struct pd_err *e)
{
    lock_take(&all->lock);
    struct tenant_count *t = queue_tenant(all, r->tenant);
    bool unwanted = false;
    while (t && t->pulls >= PULLS_PER_TENANT && !unwanted && !all->stopping &&
           !deadline_passed(d)) {
        deadline look = deadline_in(LOOK_EVERY);
        (void)lock_wait(&all->pulled_cond, &all->lock, look < d ? look : d);
        unwanted = r->is_unwanted && r->is_unwanted(r->arg);
    }
    bool has_room = t && t->pulls < PULLS_PER_TENANT;
    if (has_room)
        t->pulls++;
    lock_release(&all->lock);

    if (!t)
        pd_fail(e, PD_CAPACITY, "out of memory");
    else if (!has_room)
        pd_fail(e, PD_CAPACITY, "%u images are being fetched for you: try again when one is there",
                PULLS_PER_TENANT);
    return has_room ? t : NULL;
}

static void end_pull(struct sessions *all, struct tenant_count *t)
{
    lock_take(&all->lock);
    t->pulls--;
    pthread_cond_broadcast(&all->pulled_cond);
    lock_release(&all->lock);
}

/* A pull that may wait for its place until `patience`. */
static int ask_in_turn(struct sessions *all, struct provider *p, const struct images_request *r,
                       deadline patience, deadline d, struct pd_err *e)
{
    struct tenant_count *t = begin_pull(all, r, patience, e);
    if (!t)
        return -1;
    int failed = ask(all, p, r, d, e);
    end_pull(all, t);
    return failed;
}

int images_ask(struct sessions *all, const struct images_request *r, deadline d, struct pd_err *e)
{
    struct provider *p = find_store(all);
    if (p && r->verb == IMAGES_PULL && r->tenant)
        return ask_in_turn(all, p, r, deadline_in(0), d, e);
    return p ? ask(all, p, r, d, e)
             : pd_fail(e, PD_UNSUPPORTED,
                       "no provider of this server has a store of images: that is jail's");
}

bool images_read_news(const json_t *line, struct msg_progress *ret)
{
    if (!json_object_get(line, "layers_done"))
        return false;
    *ret = (struct msg_progress){.layers_done = (uint32_t)number(line, "layers_done"),
                                 .layers = (uint32_t)number(line, "layers"),
                                 .bytes_done = number(line, "bytes_done"),
                                 .bytes = number(line, "bytes")};
    return true;
}

/* --- sandboxes ------------------------------------------------------------------------------ */

/* A session that waits for its image. */
struct waiting {
    struct session *s;
    deadline tell_next;
    bool told_all; /* that every layer is there */
};

/* The store tells of each layer several times a second. Each event is a line of the audit log, so
 * there are two a second, and one that says that all is there. */
static int tell_session(void *arg, const json_t *line, struct pd_err *e)
{
    struct waiting *w = arg;
    struct msg_progress now;

    (void)e;
    if (!images_read_news(line, &now))
        return 0;
    bool all = now.layers_done == now.layers;
    if (w->told_all || (!all && !deadline_passed(w->tell_next)))
        return 0;

    w->told_all = all;
    w->tell_next = deadline_in(NS_PER_S / 2);
    session_note_pull(w->s, &now);
    return 0;
}

static bool nobody_wants(void *arg)
{
    const struct waiting *w = arg;
    return atomic_load(&w->s->unwanted);
}

/* What has another source is kept under the name of the image that the sandbox is made from. */
static int fetch(struct session *s, const struct session_request *made_by, bool missing,
                 struct pd_err *e)
{
    const char *from = made_by->image_from, *image = s->info.spec.image;
    struct waiting w = {.s = s};
    struct images_request r = {.verb = IMAGES_PULL,
                               .tenant = s->info.tenant,
                               .image = from ? from : image,
                               .as = from ? image : NULL,
                               .login = made_by->image_login,
                               .missing = missing,
                               .file = -1,
                               .line = tell_session,
                               .is_unwanted = nobody_wants,
                               .arg = &w};
    deadline d = deadline_in(CREATION_PATIENCE);

    /* Of several that want the same image the later ones find it there when it is their turn. */
    return ask_in_turn(s->all, s->provider, &r, d, d, e);
}

/* By its id an image is there or it is not: registries know no ids. */
static bool is_id(const char *image)
{
    return !strncmp(image, "sha256:", 7) && image_is_hex(image + 7);
}

/* What would be ignored is refused. */
static int check_pull(const struct session *s, enum image_pull asked, struct pd_err *e)
{
    if (asked == IMAGE_PULL_USUAL || asked == IMAGE_PULL_NEVER)
        return 0;
    if (!s->provider->images)
        return pd_fail(e, PD_UNSUPPORTED,
                       "pull: provider %s fetches images as the setting image_pull says, whatever "
                       "a request wants",
                       s->provider->name);
    if (s->all->c.image_pull <= IMAGE_PULL_NEVER)
        return pd_fail(e, PD_DENIED, "pull: this server fetches no images: image_pull is never");
    return 0;
}

int images_make_box(struct session *s, const struct session_request *r, struct pd_err *e)
{
    const char *image = s->info.spec.image;
    enum image_pull usual = s->all->c.image_pull;
    if (check_pull(s, r->pull, e) < 0)
        return -1;

    enum image_pull how = r->pull == IMAGE_PULL_USUAL ? usual : r->pull;
    bool fetches = s->provider->images && image[0] && !is_id(image) && usual > IMAGE_PULL_NEVER &&
                   how > IMAGE_PULL_NEVER;
    if (!fetches)
        return sessions_make_box(s, e);

    if (how == IMAGE_PULL_ALWAYS && !strchr(image, '@'))
        return fetch(s, r, false, e) < 0 ? -1 : sessions_make_box(s, e);
    if (sessions_make_box(s, e) == 0)
        return 0;
    return e->code != PD_NOT_FOUND || fetch(s, r, true, e) < 0 ? -1 : sessions_make_box(s, e);
}
