/* paddock image pull: fetches an image from a registry into the store.
 *
 *   registry ─▶ paddock-remote registry, nobody ─▶ here: bounds ─▶ blobs/HEX.part ─▶ image_layer.c
 *
 * A layer that the store has is not fetched. What has come of another one is kept in a file that is
 * locked while somebody fetches it, so that two who want the same layer fetch it once; whoever
 * finds such a file goes on where it ends. Whether the bytes are right, is found out where they are
 * unpacked; a file whose bytes are not is deleted. */
#include "cli/image.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/options.h"
#include "cli/cli.h"
#include "jail/jail.h"
#include "wire/image_ref.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>

#define CHUNK      (256u << 10)
#define CLEAR_LINE "\r\033[K"
#define SHOW_EVERY (NS_PER_S / 5)

struct pulling {
    const char *state;
    const char *ref;
    const char *registry; /* its address, or "-" */
    int auth;             /* a file with credentials, or -1 */
    bool quiet, on_terminal;
    struct keeper_link keeper;
    uint64_t done, all; /* bytes of layers that the store lacks */
    uint32_t layer, layers;
    deadline show_next;
};

static void show(struct pulling *p, bool is_last)
{
    if (p->quiet || !p->on_terminal || (!is_last && !deadline_passed(p->show_next)))
        return;

    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    unsigned full = p->all ? (unsigned)(p->done * WIDTH / p->all) : WIDTH;
    for (unsigned i = 0; i < WIDTH; i++)
        bar[i] = i < full ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, CLEAR_LINE "layer %u of %u [%s] %.1f of %.1f MB%s", p->layer, p->layers, bar,
            (double)p->done / 1e6, (double)p->all / 1e6, is_last ? "\n" : "");
    (void)fflush(stderr);
    p->show_next = deadline_in(SHOW_EVERY);
}

/* What a registry sends of a layer, behind what is there. */
static int take_blob(struct pulling *p, struct image_reader *from, int part, uint64_t have,
                     uint64_t size, struct pd_err *e)
{
    static uint8_t bytes[CHUNK];

    for (;;) {
        ssize_t n = read(from->out, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return pd_fail_sys(e, "read what the registry sends");
        if (n == 0)
            return 0;

        if ((uint64_t)n > size - have)
            return pd_fail(e, PD_INVALID,
                           "the registry sends more than the %" PRIu64 " bytes of it", size);
        int w = fd_write_all(part, bytes, (size_t)n);
        errno = -w;
        if (w < 0)
            return pd_fail_sys(e, "keep what the registry sends");
        have += (uint64_t)n;
        p->done += (uint64_t)n;
        show(p, false);
    }
}

static int fetch(struct pulling *p, int part, const struct image_layer *l, struct pd_err *e)
{
    struct image_reader puller;
    struct stat st;
    char from[24];

    if (fstat(part, &st) < 0)
        return pd_fail_sys(e, "look at what has come of the layer");
    uint64_t have = (uint64_t)st.st_size <= l->size ? (uint64_t)st.st_size : 0;
    if (ftruncate(part, (off_t)have) < 0 || lseek(part, (off_t)have, SEEK_SET) < 0)
        return pd_fail_sys(e, "go on with what has come of the layer");
    p->done += have;
    if (have == l->size)
        return 0;

    snprintf(from, sizeof from, "%" PRIu64, have);
    const char *const words[] = {"registry", "blob", p->ref, p->registry, l->blob, from, NULL};
    if (image_puller_start(&puller, words, p->auth, e) < 0)
        return -1;
    struct pd_err reason;
    int failed = take_blob(p, &puller, part, have, l->size, e);
    if (image_reader_finish(&puller, &reason) < 0 && !failed) {
        *e = reason;
        failed = -1;
    }
    if (!failed && fstat(part, &st) == 0 && (uint64_t)st.st_size != l->size)
        failed = pd_fail(e, PD_INVALID, "the registry sends less than the %" PRIu64 " bytes of it",
                         l->size);
    return failed;
}

static int pull_layer(struct pulling *p, int images, const struct image_layer *l, struct pd_err *e)
{
    auto_fd part = images_part_open(images, l->blob, e);
    if (part < 0)
        return -1;

    /* Somebody else may have been quicker, while this waited. */
    int failed = images_has_layer(images, l->diff) ? 0 : fetch(p, part, l, e);
    if (failed)
        return pd_wrap(e, "layer %.12s", l->blob);
    failed = image_layer_make(&p->keeper, images, p->state, part, l, e);
    images_part_drop(images, l->blob);
    return failed;
}

static int pull_layers(struct pulling *p, int images, const struct image_record *r,
                       struct pd_err *e)
{
    p->layers = r->layer_count;
    for (uint32_t i = 0; i < r->layer_count; i++)
        p->all += images_has_layer(images, r->layers[i].diff) ? 0 : r->layers[i].size;

    for (uint32_t i = 0; i < r->layer_count; i++) {
        bool there = images_has_layer(images, r->layers[i].diff);
        p->layer = i + 1;
        if (!p->quiet && !p->on_terminal)
            fprintf(stderr, "layer %u of %u: %.12s %s\n", i + 1, r->layer_count, r->layers[i].blob,
                    there ? "is there" : "is fetched");
        if (!there && pull_layer(p, images, &r->layers[i], e) < 0)
            return -1;
    }
    show(p, true);
    return 0;
}

static int read_plan(struct pulling *p, struct buf *plan, struct image_record *r, struct pd_err *e)
{
    const char *const words[] = {"registry", "plan", p->ref, p->registry, NULL};
    struct image_reader puller;
    size_t at = 0;

    if (image_puller_start(&puller, words, p->auth, e) < 0 ||
        image_reader_read(&puller, plan, e) < 0)
        return -1;
    int more = image_plan_next(plan, &at, r, e);
    if (more < 0)
        return -1;
    return more && at == plan->len
               ? 0
               : pd_fail(e, PD_PROTOCOL, "the fetcher of images wrote no record");
}

static int pull(struct pulling *p, const struct image_record *r, struct pd_err *e)
{
    auto_fd lock = -1;
    auto_fd images = images_open_locked(p->state, LOCK_SH, &lock, e);
    if (images < 0)
        return -1;

    images_layer_drop(images, NULL);
    return pull_layers(p, images, r, e) < 0 ? -1 : image_keep(images, r, p->ref, e);
}

static int read_options(struct pulling *p, int argc, char **argv, struct pd_err *e)
{
    struct options o = {.argc = argc, .argv = argv, .at = 1};
    struct image_ref ref;
    const char *value;

    while (options_next(&o)) {
        if (!strcmp(o.name, "--quiet") || !strcmp(o.name, "-q")) {
            p->quiet = true;
            continue;
        }
        if (strcmp(o.name, "--registry") != 0 && strcmp(o.name, "--auth") != 0)
            return pd_fail(e, PD_INVALID,
                           "unknown option '%.40s': valid are --registry, --auth, --quiet", o.name);
        if (!(value = options_value(&o, e)))
            return -1;
        if (!strcmp(o.name, "--registry"))
            p->registry = value;
        else if ((p->auth = open(value, O_RDONLY | O_CLOEXEC)) < 0)
            return pd_fail(e, PD_INVALID, "--auth: '%.150s': %s", value, strerror(errno));
    }
    if (argc - o.at != 1)
        return pd_fail(e, PD_INVALID, "image pull wants one IMAGE");
    p->ref = argv[o.at];
    return image_ref_parse(p->ref, &ref, e);
}

int image_pull(const char *state, int argc, char **argv, struct pd_err *e)
{
    auto_buf plan = BUF_INIT(IMAGE_RECORD_MAX + 4);
    struct pulling p = {.state = state, .registry = "-", .auth = -1, .keeper = {.sock = -1}};
    struct image_record *r = calloc(1, sizeof *r);

    if (!r)
        return pd_fail(e, PD_CAPACITY, "out of memory");
    p.on_terminal = isatty(STDERR_FILENO);
    signal(SIGPIPE, SIG_IGN);
    int failed = read_options(&p, argc, argv, e) < 0 || read_plan(&p, &plan, r, e) < 0 ||
                 keeper_start_private(&p.keeper, e) < 0 || pull(&p, r, e) < 0;
    if (!failed)
        printf("sha256:%s %s\n", r->id, p.ref);
    keeper_link_done(&p.keeper);
    fd_done(&p.auth);
    free(r);
    return failed ? -1 : 0;
}
