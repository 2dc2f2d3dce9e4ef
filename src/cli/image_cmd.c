/* paddock image: brings images into the store, lists and removes them (docs/images.md). */
#include "cli/image.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/options.h"
#include "base/parse.h"
#include "cli/cli.h"
#include "jail/jail.h"
#include "jail/keeper.h"
#include "wire/image_ref.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>

const char image_usage[] =
    "usage: paddock image pull [--registry URL] [--auth FILE] [--name NAME] [--quiet] IMAGE\n"
    "       paddock image import [--name NAME] FILE|DIR|-\n"
    "       paddock image ls\n"
    "       paddock image inspect IMAGE\n"
    "       paddock image rm IMAGE...\n"
    "       paddock image prune [--max SIZE]\n\n"
    "Brings images into the store, from a registry, from a file that `docker save` or `podman\n"
    "save` has written, or from an OCI layout, as a directory or a tar of one; lists, shows and\n"
    "removes them. IMAGE is a name, an id or the first 12 characters of one. `paddock run --image\n"
    "IMAGE` runs a command in it.\n\n"
    "  --registry URL    where the registry is, such as http://127.0.0.1:5000; otherwise https is\n"
    "                    spoken with the registry of the name, at public addresses alone\n"
    "  --auth FILE       credentials of registries, as `docker login` writes them; -: a file that "
    "is\n"
    "                    the standard input\n"
    "  --missing         only if the store has no image of this name\n"
    "  --store-max SIZE  with pull and import: if the store holds more than this afterwards, "
    "images\n"
    "                    that nobody uses go, the one that was used longest ago first\n"
    "  -q, --quiet       do not tell how far it is\n"
    "  --name NAME       give it this name, such as tool:1\n"
    "  --max SIZE        the same for what the store holds now\n"
    "  --json            lines of JSON, for programs\n"
    "  --end             with --json: the last line says that this was all, {\"end\":true}\n";

#define PLAN_MAX       (IMAGE_RECORDS_MAX * (IMAGE_RECORD_MAX + 4))
#define LIST_MAX       (1u << 20)      /* more lines than there are images */
#define ALONE_PATIENCE (20 * NS_PER_S) /* less than the API's with a removal */
#define LOOK_EVERY_MS  100

struct words {
    const char *name;
    uint64_t max;
    bool json, end, has_max; /* end: a last line says that this was all */
    int argc;                /* what is left of them */
    char **argv;
};

static int read_plan(int file, struct buf *plan, struct pd_err *e)
{
    const char *const words[] = {"plan", NULL};
    struct image_reader reader;

    return image_reader_start(&reader, words, file, e) < 0 ? -1
                                                           : image_reader_read(&reader, plan, e);
}

int image_keep(int images, const struct image_record *r, const char *name, struct pd_err *e)
{
    if (images_keep(images, r, e) < 0 || (name && images_name(images, name, r->id, e) < 0))
        return -1;
    for (uint32_t i = 0; !name && i < r->name_count; i++)
        if (images_name(images, r->names[i], r->id, e) < 0)
            return -1;
    return 0;
}

static int import_one(struct keeper_link *keeper, const char *state, int file,
                      const struct image_record *r, const struct words *w, struct pd_err *e)
{
    auto_fd lock = -1;
    auto_fd images = images_open_locked(state, LOCK_SH, &lock, e);
    if (images < 0)
        return -1;

    images_layer_drop(images, NULL);
    for (uint32_t i = 0; i < r->layer_count; i++) {
        int there = images_has_layer(images, r->layers[i].diff);
        if (!w->json)
            fprintf(stderr, "layer %u of %u: %.12s %s\n", i + 1, r->layer_count, r->layers[i].diff,
                    there ? "is there" : "is unpacked");
        if (image_layer_make(keeper, images, state, file, &r->layers[i], e) < 0)
            return -1;
        struct image_news news = {.layer = r->layers[i].diff,
                                  .state = there ? IMAGE_SHARED : IMAGE_DONE,
                                  .done = r->layers[i].size,
                                  .total = r->layers[i].size,
                                  .layers_done = i + 1,
                                  .layers = r->layer_count};
        if (w->json && image_tell_news(&news, e) < 0)
            return -1;
    }
    if (image_keep(images, r, w->name, e) < 0)
        return -1;
    image_tell_kept(w->json, r->id, w->name ? w->name : r->name_count ? r->names[0] : NULL);
    return 0;
}

/* The archive at a path; of a directory one that is made of it. -1. */
static int open_archive(const char *state, const char *path, struct pd_err *e)
{
    struct stat st;
    auto_fd file = !strcmp(path, "-") ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                                      : open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    if (file < 0 || fstat(file, &st) < 0)
        return pd_fail(e, PD_INVALID, "'%.150s': %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        auto_fd lock = -1;
        auto_fd images = images_open_locked(state, LOCK_SH, &lock, e);
        int packed = images < 0 ? -1 : image_dir_pack(file, images, e);
        return packed < 0 ? pd_wrap(e, "'%.100s'", path) : packed;
    }
    if (!S_ISREG(st.st_mode))
        return pd_fail(e, PD_INVALID, "'%.100s' is neither a file nor a directory", path);
    return fd_take(&file);
}

static int plan_import(const char *state, const struct words *w, int *ret_file, struct buf *plan,
                       struct image_record *r, struct pd_err *e)
{
    struct image_ref ref;
    size_t at = 0;
    unsigned count = 0;

    if (w->name && image_ref_parse(w->name, &ref, e) < 0)
        return -1;
    if (w->name && ref.digest[0]) /* which is a registry's to say */
        return pd_fail(e, PD_INVALID, "--name: '%.80s': a name without a digest is wanted",
                       w->name);
    if ((*ret_file = open_archive(state, w->argv[0], e)) < 0)
        return -1;
    if (read_plan(*ret_file, plan, e) < 0)
        return pd_wrap(e, "'%.60s'", w->argv[0]);

    for (int more = 1; more; count += more > 0)
        if ((more = image_plan_next(plan, &at, r, e)) < 0)
            return -1;
    if (!count)
        return pd_fail(e, PD_INVALID, "'%.100s' holds no image", w->argv[0]);
    if (w->name && count > 1)
        return pd_fail(e, PD_INVALID, "--name: '%.80s' holds %u images", w->argv[0], count);
    return 0;
}

static int import(const char *state, const struct words *w, struct pd_err *e)
{
    auto_buf plan = BUF_INIT(PLAN_MAX);
    auto_fd file = -1;
    struct keeper_link keeper = {.sock = -1};
    struct image_record *r = calloc(1, sizeof *r);
    struct pd_err ignored;
    size_t at = 0;

    if (!r)
        return pd_fail(e, PD_CAPACITY, "out of memory");
    int failed =
        plan_import(state, w, &file, &plan, r, e) < 0 || keeper_start_private(&keeper, e) < 0;
    while (!failed && image_plan_next(&plan, &at, r, e) > 0)
        failed = import_one(&keeper, state, file, r, w, e) < 0 ||
                 image_make_room(state, w->max, r->id, e) < 0;
    if (failed) /* layers of it may be there */
        (void)image_make_room(state, w->max, "", &ignored);
    keeper_link_done(&keeper);
    free(r);
    return failed ? -1 : 0;
}

static void put_line(const char *id, const char *name, void *arg)
{
    auto_buf scratch = BUF_INIT(2 * IMAGE_RECORD_MAX);
    struct image_record *r = calloc(1, sizeof *r);

    if (r && images_read(*(int *)arg, id, &scratch, r, NULL) == 0)
        printf("%-50s %.12s  %3u layers  %s\n", name[0] ? name : "<none>", id, r->layer_count,
               r->created);
    free(r);
}

static int take_words(struct words *w, const char *what, int argc, char **argv, struct pd_err *e)
{
    struct options o = {.argc = argc, .argv = argv, .at = 1};
    bool imports = !strcmp(what, "import"), prunes = !strcmp(what, "prune");
    const char *value;

    while (options_next(&o)) {
        bool name = imports && !strcmp(o.name, "--name");
        bool max =
            (imports && !strcmp(o.name, "--store-max")) || (prunes && !strcmp(o.name, "--max"));
        if (!strcmp(o.name, "--json") || !strcmp(o.name, "--end")) {
            *(o.name[2] == 'j' ? &w->json : &w->end) = true;
            continue;
        }
        if (!name && !max)
            return pd_fail(e, PD_INVALID, "unknown option '%.40s': valid %s", o.name,
                           imports  ? "are --name, --store-max, --json, --end"
                           : prunes ? "are --max, --json, --end"
                                    : "are --json, --end");
        if (!(value = options_value(&o, e)))
            return -1;
        if (name)
            w->name = value;
        else if (parse_size(o.name, value, 0, UINT64_MAX, &w->max, e) < 0)
            return -1;
        w->has_max = w->has_max || max;
    }
    w->argc = argc - o.at;
    w->argv = argv + o.at;
    return 0;
}

/* Whoever reads the list slowly, as with a pager, keeps nobody from the store: it is written when
 * the lock is gone. (With --json it is a program that reads, and each line goes out at once.) */
static int list_images(int images, const struct words *w, struct pd_err *e)
{
    static char list[LIST_MAX];

    (void)setvbuf(stdout, list, _IOFBF, sizeof list);
    return w->json ? image_tell_all(images, e) : images_list(images, put_line, &images, e);
}

static int inspect(int images, const char *text, struct pd_err *e)
{
    char id[IMAGE_HEX_LEN + 1];
    return images_find(images, text, id, e) < 0 ? -1 : image_tell_one(images, id, e);
}

static int prune(int images, struct words *w, struct pd_err *e)
{
    if (images_prune(images, image_tell_removed, &w->json, e) < 0)
        return -1;
    return w->has_max ? images_shrink(images, w->max, "", image_tell_removed, &w->json, e) : 0;
}

/* All of them, whatever becomes of each; the last error is what is told. */
static int remove_images(int images, const struct words *w, struct pd_err *e)
{
    int failed = 0;

    images_layer_drop(images, NULL);
    for (int i = 0; i < w->argc; i++) {
        if (failed)
            (void)cli_fail(e);
        failed = images_remove(images, w->argv[i], e) < 0 || failed;
    }
    return failed ? -1 : 0;
}

/* The store alone, for a program: it is told before it gives up that it has to come again, because
 * what it asked for must not happen later, behind its back. */
static int open_alone(const char *state, int *ret_lock, struct pd_err *e)
{
    struct pollfd reader = {STDOUT_FILENO, 0, 0};
    deadline end = deadline_in(ALONE_PATIENCE);

    for (;;) {
        int images = images_open_locked(state, LOCK_EX | LOCK_NB, ret_lock, e);
        if (images >= 0 || e->sys != EWOULDBLOCK)
            return images;
        if (deadline_passed(end))
            return pd_fail(e, PD_CONFLICT, "images are being fetched: try again");
        if (poll(&reader, 1, LOOK_EVERY_MS) > 0)
            return pd_fail(e, PD_CONFLICT, "nobody waits for it any more");
    }
}

static int do_words(const char *state, const char *what, struct words *w, struct pd_err *e)
{
    bool removes = !strcmp(what, "prune") || !strcmp(what, "rm");
    auto_fd lock = -1;

    if (!strcmp(what, "import")) {
        signal(SIGPIPE, SIG_IGN); /* a jail that refuses a layer tells why */
        return import(state, w, e);
    }
    auto_fd images = removes && w->json
                         ? open_alone(state, &lock, e)
                         : images_open_locked(state, removes ? LOCK_EX : LOCK_SH, &lock, e);
    if (images < 0)
        return -1;
    if (!strcmp(what, "ls"))
        return list_images(images, w, e);
    if (!strcmp(what, "inspect"))
        return inspect(images, w->argv[0], e);
    return !strcmp(what, "prune") ? prune(images, w, e) : remove_images(images, w, e);
}

/* How many words each wants: at least, at most. */
static const struct {
    const char *what;
    int least, most;
} commands[] = {
    {"import", 1, 1}, {"ls", 0, 0}, {"inspect", 1, 1}, {"rm", 1, 4096}, {"prune", 0, 0},
};

static int check_words(const char *what, const struct words *w, struct pd_err *e)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(what, commands[i].what) && w->argc >= commands[i].least &&
            w->argc <= commands[i].most)
            return 0;
    return pd_fail(e, PD_INVALID,
                   "'%.40s': valid are: image pull IMAGE, image import FILE|DIR, image ls, image "
                   "inspect IMAGE, image rm IMAGE..., image prune",
                   what);
}

static bool wants_json(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--json"))
            return true;
    return false;
}

int cmd_image(int argc, char **argv)
{
    struct pd_err e;
    struct words w = {.name = NULL};
    const char *state, *run, *what = argc > 1 ? argv[1] : "";
    int failed;

    if (keeper_dirs(&state, &run, &e) < 0)
        return cli_fail(&e);
    if (!strcmp(what, "pull"))
        failed = image_pull(state, argc - 1, argv + 1, &e);
    else
        failed = (argc > 1 && take_words(&w, what, argc - 1, argv + 1, &e) < 0) ||
                 check_words(what, &w, &e) < 0 || do_words(state, what, &w, &e) < 0;
    if (failed && wants_json(argc, argv))
        image_tell_error(&e);
    else if (w.end)
        printf("{\"end\":true}\n");
    return failed ? cli_fail(&e) : 0;
}
