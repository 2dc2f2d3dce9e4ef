/* paddock image: brings images into the store, lists and removes them (docs/images.md). */
#include "cli/image.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/options.h"
#include "cli/cli.h"
#include "jail/jail.h"
#include "jail/keeper.h"
#include "wire/image_ref.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>

const char image_usage[] =
    "usage: paddock image pull [--registry URL] [--auth FILE] [--quiet] IMAGE\n"
    "       paddock image import [--name NAME] FILE|DIR\n"
    "       paddock image ls\n"
    "       paddock image inspect IMAGE\n"
    "       paddock image rm IMAGE...\n"
    "       paddock image prune\n\n"
    "Brings images into the store, from a registry, from a file that `docker save` or `podman "
    "save`\n"
    "has written, or from an OCI layout, as a directory or a tar of one; lists, shows and removes "
    "them. IMAGE is a name, "
    "an\n"
    "id or the first 12 characters of one. `paddock run --image IMAGE` runs a command in it.\n\n"
    "  --registry URL  where the registry is, such as http://127.0.0.1:5000; otherwise https is\n"
    "                  spoken with the registry of the name, at public addresses alone\n"
    "  --auth FILE     credentials of registries, as `docker login` writes them\n"
    "  -q, --quiet     do not tell how far it is\n"
    "  --name NAME     give it this name, such as tool:1\n";

#define PLAN_MAX (IMAGE_RECORDS_MAX * (IMAGE_RECORD_MAX + 4))

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
                      const struct image_record *r, const char *name, struct pd_err *e)
{
    auto_fd lock = -1;
    auto_fd images = images_open_locked(state, LOCK_SH, &lock, e);
    if (images < 0)
        return -1;

    images_layer_drop(images, NULL);
    for (uint32_t i = 0; i < r->layer_count; i++) {
        int there = images_has_layer(images, r->layers[i].diff);
        fprintf(stderr, "layer %u of %u: %.12s %s\n", i + 1, r->layer_count, r->layers[i].diff,
                there ? "is there" : "is unpacked");
        if (image_layer_make(keeper, images, state, file, &r->layers[i], e) < 0)
            return -1;
    }
    if (image_keep(images, r, name, e) < 0)
        return -1;
    printf("sha256:%s %s\n", r->id, name ? name : r->name_count ? r->names[0] : "<none>");
    return 0;
}

/* The archive at a path; of a directory one that is made of it. -1. */
static int open_archive(const char *state, const char *path, struct pd_err *e)
{
    struct stat st;
    auto_fd file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

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

static int import(const char *state, const char *path, const char *name, struct pd_err *e)
{
    auto_buf plan = BUF_INIT(PLAN_MAX);
    auto_fd file = open_archive(state, path, e);
    struct keeper_link keeper = {.sock = -1};
    struct image_record *r = calloc(1, sizeof *r);
    struct image_ref ref;
    size_t at = 0;
    unsigned count = 0;

    if (!r)
        return pd_fail(e, PD_CAPACITY, "out of memory");
    int failed = 0;
    if (file < 0)
        failed = -1;
    else if (name && image_ref_parse(name, &ref, e) < 0)
        failed = -1;
    else if (name && ref.digest[0]) /* which is a registry's to say */
        failed = pd_fail(e, PD_INVALID, "--name: '%.80s': a name without a digest is wanted", name);
    else if (read_plan(file, &plan, e) < 0)
        failed = pd_wrap(e, "'%.60s'", path);

    for (int more = 1; !failed && more; count += more > 0) {
        more = image_plan_next(&plan, &at, r, e);
        failed = more < 0 ? -1 : 0;
    }
    if (!failed && !count)
        failed = pd_fail(e, PD_INVALID, "'%.100s' holds no image", path);
    if (!failed && name && count > 1)
        failed = pd_fail(e, PD_INVALID, "--name: '%.80s' holds %u images", path, count);
    if (!failed)
        failed = keeper_start_private(&keeper, e);

    at = 0;
    while (!failed && image_plan_next(&plan, &at, r, e) > 0)
        failed = import_one(&keeper, state, file, r, name, e);
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

static void put_pruned(const char *id, void *arg)
{
    (void)arg;
    printf("sha256:%s\n", id);
}

static void put_words(struct json *j, const char *key, const char *const *words, uint32_t count)
{
    json_key(j, key);
    json_open(j, '[');
    for (uint32_t i = 0; i < count; i++)
        json_cstr(j, words[i]);
    json_close(j, ']');
}

static int put_record(int images, const char *text, struct pd_err *e)
{
    auto_buf scratch = BUF_INIT(2 * IMAGE_RECORD_MAX), out = BUF_INIT(4 * IMAGE_RECORD_MAX);
    struct image_record *r = calloc(1, sizeof *r);
    char id[IMAGE_HEX_LEN + 1];
    struct json j = JSON_INIT(&out);

    if (!r)
        return pd_fail(e, PD_CAPACITY, "out of memory");
    if (images_find(images, text, id, e) < 0 || images_read(images, id, &scratch, r, e) < 0) {
        free(r);
        return -1;
    }

    json_open(&j, '{');
    json_key(&j, "id");
    json_cstr(&j, id);
    put_words(&j, "env", r->env, r->env_count);
    put_words(&j, "entrypoint", r->entrypoint, r->entrypoint_count);
    put_words(&j, "cmd", r->cmd, r->cmd_count);
    json_key(&j, "workdir");
    json_cstr(&j, r->workdir);
    json_key(&j, "user");
    json_cstr(&j, r->user);
    json_key(&j, "architecture");
    json_cstr(&j, r->platform);
    json_key(&j, "created");
    json_cstr(&j, r->created);
    json_key(&j, "layers");
    json_open(&j, '[');
    for (uint32_t i = 0; i < r->layer_count; i++)
        json_cstr(&j, r->layers[i].diff);
    json_close(&j, ']');
    json_close(&j, '}');
    printf("%.*s\n", (int)out.len, (const char *)out.data);
    free(r);
    return 0;
}

static int cmd_import(const char *state, int argc, char **argv, struct pd_err *e)
{
    struct options o = {.argc = argc, .argv = argv, .at = 1};
    const char *name = NULL;

    while (options_next(&o)) {
        if (strcmp(o.name, "--name") != 0)
            return pd_fail(e, PD_INVALID, "unknown option '%.40s': --name is valid", o.name);
        if (!(name = options_value(&o, e)))
            return -1;
    }
    if (argc - o.at != 1)
        return pd_fail(e, PD_INVALID, "image import wants one FILE or DIR");
    signal(SIGPIPE, SIG_IGN); /* a jail that refuses a layer tells why */
    return import(state, argv[o.at], name, e);
}

int cmd_image(int argc, char **argv)
{
    struct pd_err e;
    const char *state, *run, *what = argc > 1 ? argv[1] : "";
    auto_fd lock = -1;

    if (keeper_dirs(&state, &run, &e) < 0)
        return cli_fail(&e);
    if (!strcmp(what, "import"))
        return cmd_import(state, argc - 1, argv + 1, &e) < 0 ? cli_fail(&e) : 0;

    if (!strcmp(what, "pull"))
        return image_pull(state, argc - 1, argv + 1, &e) < 0 ? cli_fail(&e) : 0;

    bool prunes = !strcmp(what, "prune") && argc == 2;
    bool removes = prunes || (!strcmp(what, "rm") && argc > 2);
    if (!removes && (argc != 2 || strcmp(what, "ls") != 0) &&
        (argc != 3 || strcmp(what, "inspect") != 0)) {
        pd_fail(
            &e, PD_INVALID,
            "'%.40s': valid are: image pull IMAGE, image import FILE|DIR, image ls, image inspect "
            "IMAGE, image rm IMAGE..., image prune",
            what);
        return cli_fail(&e);
    }

    auto_fd images = images_open_locked(state, removes ? LOCK_EX : LOCK_SH, &lock, &e);
    if (images < 0)
        return cli_fail(&e);
    if (!removes) {
        int *arg = &images;
        int r =
            argc == 2 ? images_list(images, put_line, arg, &e) : put_record(images, argv[2], &e);
        return r < 0 ? cli_fail(&e) : 0;
    }

    if (prunes)
        return images_prune(images, put_pruned, NULL, &e) < 0 ? cli_fail(&e) : 0;
    int status = 0;
    images_layer_drop(images, NULL);
    for (int i = 2; i < argc; i++)
        if (images_remove(images, argv[i], &e) < 0)
            status = cli_fail(&e);
    return status;
}
