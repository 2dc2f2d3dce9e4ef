/* paddock template: templates that were built on a server, listed, shown and removed. Building is
 * in template_build.c. */
#include "client/template.h"

#include "base/banned.h"
#include "base/err.h"
#include "client/client.h"
#include "client/table.h"

const char template_usage[] =
    "usage: paddock template build [OPTIONS] [FILE|DIR]\n"
    "       paddock template ls [--json]\n"
    "       paddock template inspect NAME\n"
    "       paddock template rm NAME...\n"
    "       paddock template prune\n\n"
    "Builds a template from a Dockerfile of FROM, RUN, COPY, ENV, WORKDIR, USER, CMD and "
    "ENTRYPOINT\n"
    "(`Dockerfile` in DIR, or here), in a sandbox of the server; CMD and ENTRYPOINT are what its\n"
    "sandboxes run. Lists, shows and removes templates; `prune` deletes what is kept for the next\n"
    "builds. `paddock create --template NAME` makes a sandbox.\n\n"
    "  --name NAME[:TAG]    what it is called; without it, as the directory\n"
    "  --tag TAG            one more tag, any number of times\n"
    "  --context DIR        where COPY finds its files; without it, where the Dockerfile is\n"
    "  --template NAME      begin with this template, whatever FROM says\n"
    "  --start LINE         what its sandboxes run, in place of CMD and ENTRYPOINT\n"
    "  --ready LINE         ends with 0 when that is ready\n"
    "  --memory SIZE, --cpus N, --disk SIZE  limits of the build and of its sandboxes\n"
    "  --no-cache           do every step anew\n"
    "  -q, --quiet          print no more than the template's id\n"
    "  --json               as the server tells it\n";

int template_unknown(const struct options *o, struct pd_err *e)
{
    return pd_fail(e, PD_INVALID, "%.40s is not an option of `paddock template %.40s`", o->name,
                   o->argv[0]);
}

/* /v1/templates/NAME, or without a name. */
static int call(enum http_method method, const char *name, json_t **ret, struct pd_err *e)
{
    auto_buf target = BUF_INIT(HTTP_TARGET_MAX);
    auto_remote *r = remote_new(e);
    if (!r)
        return -1;

    buf_puts(&target, "/v1/templates");
    if (name) {
        buf_putc(&target, '/');
        put_encoded(&target, name);
    }
    struct remote_request q = {.method = method, .target = buf_cstr(&target)};
    if (!q.target)
        return pd_fail(e, PD_INVALID, "the name is too long");
    return remote_call(r, &q, ret, e) < 0 ? -1 : 0;
}

static void put_row(struct table *t, const json_t *one)
{
    auto_buf tags = BUF_INIT(4096);
    char size[16], age[16];
    const json_t *tag;
    size_t i;
    int64_t made = parse_time_ms(json_field(one, "created_at"));
    uint64_t bytes = (uint64_t)json_field_int(one, "size_bytes");

    json_array_foreach(json_object_get(one, "tags"), i, tag)
        buf_printf(&tags, "%s%s", i ? "," : "", json_field(tag, "tag"));
    const char *state = json_field(one, "state"), *base = json_field(one, "base");
    table_put(t, json_field(one, "name"));
    table_put(t, json_field(one, "kind"));
    table_put(t, tags.len && buf_cstr(&tags) ? (const char *)tags.data : NULL);
    table_put(t, *state ? state : NULL);
    format_size(size, bytes);
    table_put(t, bytes ? size : NULL);
    format_age(age, made < 0 ? 0 : (uint64_t)(now_ms() - made) / 1000);
    table_put(t, made < 0 ? NULL : age);
    table_put(t, *base ? base : json_field(one, "profile"));
}

static int list(int argc, char **argv, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);
    json_auto_t *all = NULL;
    const json_t *one;
    size_t i;
    int as_json = 0;

    while (options_next(&o)) {
        if (!options_is(&o, NULL, "--json"))
            return template_unknown(&o, e);
        as_json = 1;
    }
    if (o.at < argc)
        return pd_fail(e, PD_INVALID, "template ls takes no argument");
    if (call(HTTP_GET, NULL, &all, e) < 0)
        return -1;
    if (as_json)
        return print_json(all);

    auto_table t;
    table_init(&t, "NAME KIND TAGS STATE >SIZE >AGE BASE");
    json_array_foreach(json_object_get(all, "templates"), i, one) put_row(&t, one);
    table_fit(&t, STDOUT_FILENO);
    return table_print(&t, stdout) < 0 ? pd_fail(e, PD_CAPACITY, "no memory") : 0;
}

static int inspect(int argc, char **argv, struct pd_err *e)
{
    json_auto_t *one = NULL;
    if (argc != 2 || argv[1][0] == '-')
        return pd_fail(e, PD_INVALID, "template inspect takes the name of a template");
    return call(HTTP_GET, argv[1], &one, e) < 0 ? -1 : print_json(one);
}

static int delete_all(int argc, char **argv, struct pd_err *e)
{
    if (argc < 2 || argv[1][0] == '-')
        return pd_fail(e, PD_INVALID, "template rm takes names of templates");
    for (int i = 1; i < argc; i++)
        if (call(HTTP_DELETE, argv[i], NULL, e) < 0)
            return -1;
    return 0;
}

static int prune(int argc, char **argv, struct pd_err *e)
{
    struct remote_request q = {.method = HTTP_DELETE, .target = "/v1/build-cache"};
    (void)argv;
    if (argc != 1)
        return pd_fail(e, PD_INVALID, "template prune takes no argument");
    auto_remote *r = remote_new(e);
    return r && remote_call(r, &q, NULL, e) >= 0 ? 0 : -1;
}

int cmd_template(int argc, char **argv)
{
    static const struct client_verb verbs[] = {{"build", template_build}, {"ls", list},
                                               {"inspect", inspect},      {"rm", delete_all},
                                               {"prune", prune},          {0}};
    return run_verb(verbs, "paddock template: build, ls, inspect, rm or prune", argc, argv);
}
