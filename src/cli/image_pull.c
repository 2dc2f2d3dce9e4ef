/* paddock image pull: fetches an image from a registry into the store.
 *
 * A layer that the store has is not fetched. Of the others three are under way at a time, the
 * lowest first, each in a process of its own (image_fetch.c): it tells in memory that it shares
 * with this one how far it is, and ends with its layer. This process shows that and waits. When one
 * layer fails no other one comes; what has come of them stays for the next pull. When the image is
 * there, and the store has got too large, others go that nobody has used for long; a pull that
 * fails leaves no more behind than there is room for. */
#include "cli/image.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/options.h"
#include "base/parse.h"
#include "cli/cli.h"
#include "wire/image_ref.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define AT_ONCE    3u
#define CLEAR_LINE "\r\033[K"
#define SHOW_EVERY (NS_PER_S / 5)

/* A layer that is under way. */
struct way {
    pid_t pid; /* 0: none */
    int end;   /* closed when its process ends */
    uint32_t layer;
};

struct pulling {
    struct image_source source;
    const char *name; /* that it has in the store */
    bool quiet, on_terminal, json, missing;
    uint64_t store_max;
    struct image_fetch *fetches; /* one per layer, shared with their processes */
    struct way ways[AT_ONCE];
    const struct image_record *record;
    struct {
        uint64_t done;
        uint32_t state;
    } told[IMAGE_LAYERS_MAX]; /* of each layer, last */
    deadline show_next;
};

static bool is_over(uint32_t state)
{
    return state == IMAGE_DONE || state == IMAGE_SHARED;
}

/* --- telling -------------------------------------------------------------------------------- */

/* How far all of it is: bytes of the layers that the store lacked. */
static void sum(const struct pulling *p, uint64_t *ret_done, uint64_t *ret_all, uint32_t *ret_over)
{
    *ret_done = *ret_all = 0;
    *ret_over = 0;
    for (uint32_t i = 0; i < p->record->layer_count; i++) {
        uint32_t state = p->fetches[i].state;
        *ret_over += is_over(state);
        if (state == IMAGE_SHARED)
            continue;
        *ret_all += p->record->layers[i].size;
        *ret_done += is_over(state) ? p->record->layers[i].size : p->fetches[i].done;
    }
}

static void show_bar(const struct pulling *p, bool is_last)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    uint64_t done, all;
    uint32_t over, layers = p->record->layer_count;

    sum(p, &done, &all, &over);
    unsigned full = all ? (unsigned)(done * WIDTH / all) : WIDTH;
    for (unsigned i = 0; i < WIDTH; i++)
        bar[i] = i < full ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, CLEAR_LINE "layer %u of %u [%s] %.1f of %.1f MB%s",
            over < layers ? over + 1 : layers, layers, bar, (double)done / 1e6, (double)all / 1e6,
            is_last ? "\n" : "");
    (void)fflush(stderr);
}

/* One line for each layer of which there is news. */
static int tell_json(struct pulling *p, struct pd_err *e)
{
    uint64_t done, all;
    uint32_t over;

    sum(p, &done, &all, &over);
    for (uint32_t i = 0; i < p->record->layer_count; i++) {
        const struct image_layer *l = &p->record->layers[i];
        uint32_t state = p->fetches[i].state;
        uint64_t here = p->fetches[i].done;
        if (p->told[i].state == state && p->told[i].done == here)
            continue;
        p->told[i].state = state;
        p->told[i].done = here;
        struct image_news n = {.layer = l->blob,
                               .state = state,
                               .done = is_over(state) ? l->size : here,
                               .total = l->size,
                               .layers = p->record->layer_count,
                               .layers_done = over,
                               .bytes = all,
                               .bytes_done = done};
        if (image_tell_news(&n, e) < 0)
            return -1;
    }
    return 0;
}

static int show(struct pulling *p, bool is_last, struct pd_err *e)
{
    if (!is_last && !deadline_passed(p->show_next))
        return 0;
    p->show_next = deadline_in(SHOW_EVERY);
    if (p->json)
        return tell_json(p, e);
    if (!p->quiet && p->on_terminal)
        show_bar(p, is_last);
    return 0;
}

/* --- layers --------------------------------------------------------------------------------- */

static _Noreturn void become_fetcher(struct pulling *p, int images, uint32_t layer, pid_t parent)
{
    struct image_fetch *tell = &p->fetches[layer];

    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent)
        _exit(1);
    int failed = image_fetch_layer(&p->source, images, &p->record->layers[layer], tell, &tell->why);
    _exit(failed ? 1 : 0);
}

static int start_layer(struct pulling *p, int images, struct way *w, uint32_t layer,
                       struct pd_err *e)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "make a pipe");
    auto_fd near = ends[0], far = ends[1];

    pd_fail(&p->fetches[layer].why, PD_LOST, "layer %.12s: whoever fetched it died",
            p->record->layers[layer].blob);
    pid_t self = getpid(), pid = fork();
    if (pid < 0)
        return pd_fail_sys(e, "start a process for a layer");
    if (pid == 0) {
        fd_done(&near);
        become_fetcher(p, images, layer, self);
    }
    fd_done(&far); /* the fetcher alone has it: it ends with him */
    *w = (struct way){.pid = pid, .end = fd_take(&near), .layer = layer};
    return 0;
}

static int end_layer(struct pulling *p, struct way *w, struct pd_err *e)
{
    int status = 0;

    while (waitpid(w->pid, &status, 0) < 0 && errno == EINTR)
        ;
    fd_done(&w->end);
    w->pid = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    *e = p->fetches[w->layer].why;
    return -1;
}

/* Another layer has failed. One that is here already is unpacked to its end; of the others what has
 * come stays. */
static void give_up(struct pulling *p, int images)
{
    struct pd_err ignored;
    bool any = false;

    for (unsigned i = 0; i < AT_ONCE; i++)
        if (p->ways[i].pid && p->fetches[p->ways[i].layer].state != IMAGE_UNPACKS)
            kill(p->ways[i].pid, SIGKILL);
    for (unsigned i = 0; i < AT_ONCE; i++)
        if (p->ways[i].pid) {
            (void)end_layer(p, &p->ways[i], &ignored);
            any = true;
        }
    if (any)
        images_layer_drop(images, NULL); /* of one that has just begun to unpack */
}

/* The next layer that is neither there nor under way. */
static int start_more(struct pulling *p, int images, uint32_t *next, struct pd_err *e)
{
    for (unsigned i = 0; i < AT_ONCE; i++) {
        while (*next < p->record->layer_count && p->fetches[*next].state == IMAGE_SHARED)
            ++*next;
        if (*next == p->record->layer_count)
            return 0;
        if (p->ways[i].pid)
            continue;
        if (!p->quiet && !p->on_terminal)
            fprintf(stderr, "layer %u of %u: %.12s is fetched\n", *next + 1, p->record->layer_count,
                    p->record->layers[*next].blob);
        if (start_layer(p, images, &p->ways[i], (*next)++, e) < 0)
            return -1;
    }
    return 0;
}

/* What is small where it comes from may be large here: the disk is not to learn that first. */
static int check_unpacked(const struct pulling *p, int images, struct pd_err *e)
{
    uint64_t size = 0;

    for (uint32_t i = 0; i < p->record->layer_count; i++)
        if (is_over(p->fetches[i].state))
            size += images_layer_size(images, p->record->layers[i].diff);
    return !p->store_max || size <= p->store_max ? 0 : image_too_large(size, p->store_max, e);
}

static int end_some(struct pulling *p, int images, const struct pollfd *list, struct pd_err *e)
{
    for (unsigned i = 0; i < AT_ONCE; i++)
        if (list[i].revents &&
            (end_layer(p, &p->ways[i], e) < 0 || check_unpacked(p, images, e) < 0))
            return -1;
    return 0;
}

/* Until one of the layers under way is over: 1; 0 when none is under way; -1. */
static int wait_for_layers(struct pulling *p, int images, struct pd_err *e)
{
    struct pollfd list[AT_ONCE + 1] = {{.fd = -1}};
    unsigned count = 0;

    for (unsigned i = 0; i < AT_ONCE; i++) {
        list[i] = (struct pollfd){p->ways[i].pid ? p->ways[i].end : -1, POLLIN, 0};
        count += p->ways[i].pid != 0;
    }
    /* Whoever wanted to be told has gone away: then nobody wants the image. */
    list[AT_ONCE] = (struct pollfd){p->json ? STDOUT_FILENO : -1, 0, 0};
    if (!count)
        return 0;

    if (poll(list, AT_ONCE + 1, deadline_poll_ms(deadline_in(SHOW_EVERY))) < 0 && errno != EINTR)
        return pd_fail_sys(e, "wait for layers");
    if (list[AT_ONCE].revents & (POLLERR | POLLHUP))
        return pd_fail(e, PD_CONFLICT, "nobody waits for the image any more");
    return end_some(p, images, list, e) < 0 || show(p, false, e) < 0 ? -1 : 1;
}

static int pull_layers(struct pulling *p, int images, struct pd_err *e)
{
    uint32_t next = 0;
    int more = 1;

    for (uint32_t i = 0; i < p->record->layer_count; i++)
        if (images_has_layer(images, p->record->layers[i].diff)) {
            p->fetches[i].state = IMAGE_SHARED;
            if (!p->quiet && !p->on_terminal)
                fprintf(stderr, "layer %u of %u: %.12s is there\n", i + 1, p->record->layer_count,
                        p->record->layers[i].blob);
        }

    while (more > 0)
        more = start_more(p, images, &next, e) < 0 ? -1 : wait_for_layers(p, images, e);
    give_up(p, images);
    return more < 0 ? -1 : show(p, true, e);
}

/* --- the image ------------------------------------------------------------------------------ */

static int read_plan(struct pulling *p, struct buf *plan, struct image_record *r, struct pd_err *e)
{
    const char *const words[] = {"registry", "plan", p->source.ref, p->source.registry, NULL};
    struct image_reader puller;
    size_t at = 0;

    if (image_puller_start(&puller, words, p->source.auth, e) < 0 ||
        image_reader_read(&puller, plan, e) < 0)
        return -1;
    int more = image_plan_next(plan, &at, r, e);
    if (more < 0)
        return -1;
    return more && at == plan->len
               ? 0
               : pd_fail(e, PD_PROTOCOL, "the fetcher of images wrote no record");
}

/* What is packed takes no less room when it is unpacked. */
static int check_size(const struct pulling *p, struct pd_err *e)
{
    uint64_t size = 0;

    for (uint32_t i = 0; i < p->record->layer_count; i++)
        size += p->record->layers[i].size;
    return !p->store_max || size <= p->store_max ? 0 : image_too_large(size, p->store_max, e);
}

static int fetch_image(struct pulling *p, const struct image_record *r, struct pd_err *e)
{
    size_t size = IMAGE_LAYERS_MAX * sizeof *p->fetches;
    auto_fd lock = -1;
    auto_fd images = images_open_locked(p->source.state, LOCK_SH, &lock, e);
    if (images < 0 || check_size(p, e) < 0)
        return -1;

    p->fetches = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p->fetches == MAP_FAILED)
        return pd_fail_sys(e, "share memory with who fetches");
    images_layer_drop(images, NULL);
    int failed = pull_layers(p, images, e) < 0 ? -1 : image_keep(images, r, p->name, e);
    munmap(p->fetches, size);
    return failed;
}

static int pull(struct pulling *p, struct image_record *r, struct pd_err *e)
{
    auto_buf plan = BUF_INIT(IMAGE_RECORD_MAX + 4);

    struct pd_err ignored;

    p->record = r;
    if (read_plan(p, &plan, r, e) < 0)
        return -1;
    if (fetch_image(p, r, e) < 0) { /* layers of it are there, and others wait for room */
        (void)image_make_room(p->source.state, p->store_max, "", &ignored);
        return -1;
    }
    return image_make_room(p->source.state, p->store_max, r->id, e);
}

/* With --missing: is there one of the name? */
static bool is_there(const struct pulling *p, char ret_id[IMAGE_HEX_LEN + 1])
{
    struct pd_err ignored;
    auto_fd lock = -1;
    auto_fd images = images_open_locked(p->source.state, LOCK_SH, &lock, &ignored);
    return images >= 0 && images_resolve(images, p->name, ret_id, &ignored) == 0;
}

static int take_option(struct pulling *p, struct options *o, struct pd_err *e)
{
    const char *value;

    if (!strcmp(o->name, "--quiet") || !strcmp(o->name, "-q")) {
        p->quiet = true;
        return 0;
    }
    if (!strcmp(o->name, "--json") || !strcmp(o->name, "--missing")) {
        *(o->name[2] == 'j' ? &p->json : &p->missing) = true;
        return 0;
    }
    bool auth = !strcmp(o->name, "--auth"), max = !strcmp(o->name, "--store-max");
    bool name = !strcmp(o->name, "--name");
    if (!auth && !max && !name && strcmp(o->name, "--registry") != 0)
        return pd_fail(e, PD_INVALID,
                       "unknown option '%.40s': valid are --registry, --auth, --name, --missing, "
                       "--store-max, --json, --quiet",
                       o->name);
    if (!(value = options_value(o, e)))
        return -1;
    if (max)
        return parse_size("--store-max", value, 0, UINT64_MAX, &p->store_max, e);
    if (name)
        p->name = value;
    else if (!auth)
        p->source.registry = value;
    else if (!strcmp(value, "-") && (p->source.auth = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)) < 0)
        return pd_fail(e, PD_INVALID, "--auth -: standard input is closed");
    else if (!strcmp(value, "-"))
        return 0;
    else if ((p->source.auth = open(value, O_RDONLY | O_CLOEXEC)) < 0)
        return pd_fail(e, PD_INVALID, "--auth: '%.150s': %s", value, strerror(errno));
    return 0;
}

static int read_options(struct pulling *p, int argc, char **argv, struct pd_err *e)
{
    struct options o = {.argc = argc, .argv = argv, .at = 1};
    struct image_ref ref;

    while (options_next(&o))
        if (take_option(p, &o, e) < 0)
            return -1;
    if (argc - o.at != 1)
        return pd_fail(e, PD_INVALID, "image pull wants one IMAGE");
    p->source.ref = argv[o.at];
    if (!p->name)
        p->name = p->source.ref;
    else if (image_ref_parse(p->name, &ref, e) < 0)
        return -1;
    p->on_terminal = isatty(STDERR_FILENO);
    p->quiet = p->quiet || p->json;
    return image_ref_parse(p->source.ref, &ref, e);
}

int image_pull(const char *state, int argc, char **argv, struct pd_err *e)
{
    struct pulling p = {.source = {.state = state, .registry = "-", .auth = -1}};
    struct image_record *r = calloc(1, sizeof *r);

    if (!r)
        return pd_fail(e, PD_CAPACITY, "out of memory");
    signal(SIGPIPE, SIG_IGN);
    int failed = read_options(&p, argc, argv, e);
    if (!failed && !(p.missing && is_there(&p, r->id)))
        failed = pull(&p, r, e);
    if (!failed)
        image_tell_kept(p.json, r->id, p.name);
    fd_done(&p.source.auth);
    free(r);
    return failed ? -1 : 0;
}
