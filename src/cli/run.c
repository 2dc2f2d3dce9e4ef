/* paddock run: options become the specification of a jail and a command, a provider runs it, and
 * the result becomes an exit status with a line for a person, or one record of JSON. */
#include "cli/run.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/parse.h"
#include "cli/cli.h"
#include "jail/identity.h"
#include "router/command_class.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <sys/wait.h>

const char run_usage[] =
    "usage: paddock run [OPTIONS] [--] COMMAND [ARGUMENT...]\n\n"
    "Runs the command in a sandbox: no network, its own users, processes and files, limits.\n"
    "The exit status is the command's; 128+N when signal N ended it, 124 after a time-out,\n"
    "125 when the sandbox could not be made, 126/127 when the command cannot run or is not "
    "found.\n\n"
    "  --provider jail|local   jail (default), or a plain subprocess without isolation\n"
    "  --mode local|sandbox|auto   the same in other words; auto: local for a command that only\n"
    "                          reads or writes below its directory, else the jail\n"
    "  --profile strict|dev|restricted\n"
    "                          strict (default): no capabilities at all; dev: a root and sudo;\n"
    "                          restricted: strict, and what is written cannot be executed\n"
    "  --name NAME             keep the root file system under this name for the next run\n"
    "  --root DIR              use DIR as the root; what is written goes elsewhere\n"
    "  --image IMAGE           use an image of the store as the root: see `paddock help image`\n"
    "  --bind SRC:DST[:rw]     show a host file or directory inside, read-only unless :rw\n"
    "  --workdir DIR           start there (default /workspace)\n"
    "  --user user|root|UID[:GID]   run as (default user, uid 1000)\n"
    "  --env K=V               set an environment variable\n"
    "  --network none|host     none (default): only a loopback device of its own\n"
    "  --allow HOST[:PORT]     a way out to this name, *.name or network and to no other\n"
    "  --egress off|list|open  list (with --allow): what --allow names; open: everything public\n"
    "  --deny NETWORK[:PORT]   but not there, with --egress open\n"
    "  --allow-private NETWORK these private addresses, too\n"
    "  --egress-host NAME=ADDRESS[:PORT]   where a name is, instead of asking\n"
    "  --resolver ADDRESS[:PORT]   whom to ask for names; default: as /etc/resolv.conf says\n"
    "  --timeout D             end everything after D, such as 500ms, 30s, 5m\n"
    "  --memory S              default 512M\n"
    "  --pids N                processes and threads, default 256\n"
    "  --cpu F                 cores, default 1\n"
    "  --disk S                space in the root, default 1G; without --name the root is in "
    "memory\n"
    "                          and gets at most half of --memory\n"
    "  --files N               files in the root, default 100000\n"
    "  --file-size S           largest file that may be written\n"
    "  --output S              end everything after this much output\n"
    "  --min-isolation none|basic|full   refuse anything weaker\n"
    "  --json                  print one JSON record with the result instead of the output\n";

#define TIMEOUT_MAX (365 * 86400 * NS_PER_S)

static int parse_bind(struct run_options *o, const char *text, struct pd_err *e)
{
    struct spec *s = &o->spec;

    const char *colon = strchr(text, ':');
    if (!colon || colon == text || !colon[1])
        return pd_fail(e, PD_INVALID, "--bind: '%.120s' is not SRC:DST or SRC:DST:rw", text);
    if (s->bind_count == SPEC_BINDS_MAX)
        return pd_fail(e, PD_INVALID, "--bind: more than %d binds", SPEC_BINDS_MAX);

    struct spec_bind *b = &s->binds[s->bind_count];
    char *source = o->paths[s->bind_count][0], *target = o->paths[s->bind_count][1];
    if ((size_t)(colon - text) > SPEC_PATH_MAX || strlen(colon + 1) > SPEC_PATH_MAX)
        return pd_fail(e, PD_INVALID, "--bind: the path is longer than %d bytes", SPEC_PATH_MAX);

    snprintf(target, SPEC_PATH_MAX + 1, "%s", colon + 1);
    char *mode = strchr(target, ':');
    if (mode) {
        *mode++ = 0;
        if (strcmp(mode, "rw") != 0 && strcmp(mode, "ro") != 0)
            return pd_fail(e, PD_INVALID, "--bind: '%.40s' is not one of: ro, rw", mode);
        b->writable = !strcmp(mode, "rw");
    }

    char relative[SPEC_PATH_MAX + 1];
    snprintf(relative, sizeof relative, "%.*s", (int)(colon - text), text);
    /* The keeper may have another working directory: the source becomes absolute here. */
    char *absolute = realpath(relative, NULL);
    if (!absolute || strlen(absolute) > SPEC_PATH_MAX) {
        free(absolute);
        return pd_fail(e, PD_INVALID, "--bind: '%.150s': %s", relative, strerror(errno));
    }

    snprintf(source, SPEC_PATH_MAX + 1, "%s", absolute);
    free(absolute);
    b->source = source;
    b->target = target;
    s->bind_count++;
    return 0;
}

static int parse_root(struct run_options *o, const char *text, struct pd_err *e)
{
    char *absolute = realpath(text, NULL);
    if (!absolute)
        return pd_fail(e, PD_INVALID, "--root: '%.150s': %s", text, strerror(errno));
    snprintf(o->root, sizeof o->root, "%s", absolute);
    free(absolute);
    o->spec.root_dir = o->root;
    return 0;
}

int run_parse_user(struct run_options *o, const char *text, struct pd_err *e)
{
    if (!strcmp(text, "user") || !strcmp(text, "root")) {
        o->uid = o->gid = text[0] == 'r' ? UID_ROOT : UID_USER;
        return 0;
    }

    char uid[16];
    uint64_t u, g;
    size_t len = strcspn(text, ":");
    snprintf(uid, sizeof uid, "%.*s", (int)(len < sizeof uid ? len : sizeof uid - 1), text);
    const char *gid = text[len] ? text + len + 1 : uid;
    if (len >= sizeof uid || parse_u64("--user", uid, 0, RANGE_SIZE - 1, &u, e) < 0 ||
        parse_u64("--user", gid, 0, RANGE_SIZE - 1, &g, e) < 0)
        return pd_fail(e, PD_INVALID,
                       "--user: '%.40s' is not one of: user, root, UID, UID:GID (0 to %u)", text,
                       RANGE_SIZE - 1);

    if (u == UID_INIT || u == UID_OWNER)
        return pd_fail(e, PD_INVALID, "--user: %u is the sandbox's own init", (unsigned)u);

    o->uid = (uint32_t)u;
    o->gid = (uint32_t)g;
    return 0;
}

static int parse_env(struct run_options *o, const char *text, struct pd_err *e)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text)
        return pd_fail(e, PD_INVALID, "--env: '%.60s' is not NAME=VALUE", text);
    if (o->env_count == RUN_ENV_MAX)
        return pd_fail(e, PD_INVALID, "--env: more than %d variables", RUN_ENV_MAX);
    o->env[o->env_count++] = text;
    return 0;
}

static int parse_provider(struct run_options *o, const char *text, struct pd_err *e)
{
    if (strcmp(text, "jail") != 0 && strcmp(text, "local") != 0)
        return pd_fail(e, PD_INVALID, "--provider: '%.40s' is not one of: jail, local", text);
    o->provider_given = true;
    o->provider = !strcmp(text, "local") ? PROVIDER_LOCAL : PROVIDER_JAIL;
    return 0;
}

static int parse_mode(struct run_options *o, const char *text, struct pd_err *e)
{
    o->mode = run_mode_of(text);
    return o->mode ? 0
                   : pd_fail(e, PD_INVALID, "--mode: '%.40s' is not one of: " RUN_MODE_LIST, text);
}

/* The list's own copy of the name, or NULL. */
static const char *find_name(const char *name, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(name, list[i]))
            return list[i];
    return NULL;
}

static int check_known(const char *name, struct pd_err *e)
{
    static const char *const with_value[] = {
        "--provider", "--profile",   "--name",          "--timeout", "--memory",
        "--pids",     "--cpu",       "--disk",          "--files",   "--env",
        "--bind",     "--root",      "--workdir",       "--user",    "--network",
        "--output",   "--file-size", "--min-isolation", "--mode",    "--image"};

    if (find_name(name, with_value, sizeof with_value / sizeof *with_value) ||
        run_egress_knows(name))
        return 0;
    return pd_fail(
        e, PD_INVALID,
        "unknown option '%.20s': --provider --mode --profile --name --timeout "
        "--memory --pids --cpu --disk --files --env --bind --root --image --workdir --user "
        "--network --allow --egress --output --file-size --min-isolation --json are "
        "valid",
        name);
}

/* Only a jail can honour it. The name is kept: the text of an option is gone with the next one. */
static void note_jail_only(struct run_options *o, const char *name)
{
    static const char *const list[] = {"--profile", "--name", "--memory",  "--pids",
                                       "--cpu",     "--disk", "--files",   "--bind",
                                       "--root",    "--user", "--network", "--image"};
    const char *found = find_name(name, list, sizeof list / sizeof *list);
    if (found)
        o->jail_only = found;
    else if (run_egress_knows(name))
        o->jail_only = "--allow";
}

static int parse_name(struct run_options *o, const char *text, struct pd_err *e)
{
    if (!text[0])
        return pd_fail(e, PD_INVALID, "--name: the name is empty");
    o->spec.root_name = text;
    return 0;
}

static int parse_workdir(struct run_options *o, const char *text, struct pd_err *e)
{
    if (text[0] != '/' || strlen(text) > SPEC_PATH_MAX)
        return pd_fail(e, PD_INVALID, "--workdir: '%.120s' is not an absolute path", text);
    o->workdir = text;
    return 0;
}

/* `name` is one of those that check_known lets pass. */
static int parse_value(struct run_options *o, const char *name, const char *v, struct pd_err *e)
{
    struct limits *l = &o->spec.limits;

    if (run_egress_knows(name))
        return run_egress_parse(&o->egress, name, v, e);
    if (!strcmp(name, "--provider"))
        return parse_provider(o, v, e);
    if (!strcmp(name, "--mode"))
        return parse_mode(o, v, e);
    if (!strcmp(name, "--profile"))
        return profile_parse(name, v, &o->spec.profile, e);
    if (!strcmp(name, "--network"))
        return network_parse(name, v, &o->spec.network, e);
    if (!strcmp(name, "--min-isolation"))
        return rung_parse(name, v, &o->spec.min_rung, e);
    if (!strcmp(name, "--timeout"))
        return parse_duration(name, v, TIMEOUT_MAX, &o->timeout_ns, e);

    if (!strcmp(name, "--memory"))
        return parse_size(name, v, SPEC_MEMORY_MIN, SPEC_MEMORY_MAX, &l->memory, e);
    if (!strcmp(name, "--disk"))
        return parse_size(name, v, SPEC_DISK_MIN, SPEC_DISK_MAX, &l->disk, e);
    if (!strcmp(name, "--pids"))
        return parse_u64(name, v, SPEC_PIDS_MIN, SPEC_PIDS_MAX, &l->pids, e);
    if (!strcmp(name, "--files"))
        return parse_u64(name, v, SPEC_FILES_MIN, SPEC_FILES_MAX, &l->files, e);
    if (!strcmp(name, "--cpu"))
        return parse_milli(name, v, SPEC_CPU_MIN, SPEC_CPU_MAX, &l->cpu_milli, e);
    if (!strcmp(name, "--output"))
        return parse_size(name, v, 1, UINT64_MAX / 1024, &o->output, e);
    if (!strcmp(name, "--file-size"))
        return parse_size(name, v, 1, UINT64_MAX / 1024, &o->file_size, e);

    if (!strcmp(name, "--env"))
        return parse_env(o, v, e);
    if (!strcmp(name, "--bind"))
        return parse_bind(o, v, e);
    if (!strcmp(name, "--root"))
        return parse_root(o, v, e);
    if (!strcmp(name, "--image")) {
        o->image = v;
        return 0;
    }
    if (!strcmp(name, "--user")) {
        o->user_given = true;
        return run_parse_user(o, v, e);
    }
    if (!strcmp(name, "--name"))
        return parse_name(o, v, e);
    return parse_workdir(o, v, e);
}

static int parse_one(struct run_options *o, struct options *opts, struct pd_err *e)
{
    const char *name = opts->name;
    if (!strcmp(name, "--json")) {
        o->json = 1;
        return options_no_value(opts, e);
    }

    if (check_known(name, e) < 0)
        return -1;
    note_jail_only(o, name);
    const char *v = options_value(opts, e);
    return v ? parse_value(o, name, v, e) : -1;
}

/* May it run without isolation? The reason is kept either way. */
static bool is_harmless(struct run_options *o)
{
    char here[PATH_MAX];
    const char *workspace = o->workdir[0] ? o->workdir : getcwd(here, sizeof here);
    struct command_verdict v = {.what = COMMAND_UNKNOWN, .reason = "its directory is not known"};

    if (o->jail_only || o->spec.min_rung > RUNG_NONE) {
        snprintf(o->mode_reason, sizeof o->mode_reason, "only a jail has %s",
                 o->jail_only ? o->jail_only : "--min-isolation");
        return false;
    }

    if (workspace)
        command_classify_argv((const char *const *)o->argv, workspace, &v);
    for (unsigned i = 0; i < o->env_count; i++)
        if (!command_variable_is_harmless(o->env[i])) {
            v.what = COMMAND_UNKNOWN;
            snprintf(v.reason, sizeof v.reason, "'%.60s' is a variable that programs go by",
                     o->env[i]);
        }
    snprintf(o->mode_reason, sizeof o->mode_reason, "%s: %s", command_class_name(v.what), v.reason);
    return v.what <= COMMAND_WRITES;
}

/* --mode chooses the provider, once all options and the command are known. */
static int apply_mode(struct run_options *o, struct pd_err *e)
{
    if (!o->mode)
        return 0;
    if (o->provider_given)
        return pd_fail(e, PD_INVALID, "--mode and --provider say the same: give one of them");

    bool local = o->mode == MODE_LOCAL;
    snprintf(o->mode_reason, sizeof o->mode_reason, "mode %s was asked for",
             run_mode_name(o->mode));
    if (o->mode == MODE_AUTO)
        local = is_harmless(o);
    o->provider = local ? PROVIDER_LOCAL : PROVIDER_JAIL;
    return 0;
}

static int parse(struct run_options *o, int argc, char **argv, struct pd_err *e)
{
    struct options opts = {.argc = argc, .argv = argv, .at = 1};

    o->spec = SPEC_DEFAULT;
    o->workdir = "";
    o->uid = o->gid = UID_USER;
    while (options_next(&opts))
        if (parse_one(o, &opts, e) < 0)
            return -1;

    o->argv = argv + opts.at;
    o->argc = argc - opts.at;
    if (run_image_apply(o, e) < 0)
        return -1;
    if (!o->argc || !o->argv[0][0])
        return pd_fail(e, PD_INVALID,
                       "no command: paddock run [OPTIONS] [--] COMMAND, see `paddock help run`");

    if (apply_mode(o, e) < 0)
        return -1;
    if (o->provider == PROVIDER_LOCAL) {
        if (o->spec.min_rung > RUNG_NONE)
            return pd_fail(e, PD_ISOLATION,
                           "--provider local has isolation 'none', '%s' was asked for",
                           rung_name(o->spec.min_rung));
        if (o->jail_only)
            return pd_fail(e, PD_INVALID,
                           "--provider local is a plain subprocess: it has no %s, leave it away",
                           o->jail_only);
    }

    if (o->egress.given && o->spec.network == NETWORK_HOST)
        return pd_fail(e, PD_INVALID,
                       "--network host has no rules: leave it away, or --allow and --egress");
    if (run_egress_check(&o->egress, e) < 0)
        return -1;
    if (o->egress.given && (!o->egress.mode_given || o->egress.mode != EGRESS_OFF))
        o->spec.network = NETWORK_GATE;
    return spec_check(&o->spec, e);
}

static int exit_status(const struct run_result *r)
{
    if (r->stopped_by && !strcmp(r->stopped_by, STOP_TIMEOUT))
        return 124;
    return WIFSIGNALED(r->status) ? 128 + WTERMSIG(r->status) : WEXITSTATUS(r->status);
}

static void put_capture(struct json *j, const char *key, const struct capture *c)
{
    auto_buf text = BUF_INIT(2 * CAPTURE_MAX);
    capture_text(c, &text);
    json_key(j, key);
    json_str(j, text.data ? text.data : (const uint8_t *)"", text.len);
}

static int print_json(const struct run_options *o, const struct run_result *r)
{
    /* Every byte may become six. */
    auto_buf out = BUF_INIT(16u * CAPTURE_MAX);
    struct json j = JSON_INIT(&out);
    int signaled = WIFSIGNALED(r->status);

    json_open(&j, '{');
    json_key(&j, "exit_code");
    json_int(&j, exit_status(r));
    json_key(&j, "signal");
    if (signaled)
        json_int(&j, WTERMSIG(r->status));
    else
        json_none(&j);

    put_capture(&j, "stdout", &r->out);
    put_capture(&j, "stderr", &r->err);
    json_key(&j, "stdout_truncated");
    json_bool(&j, capture_truncated(&r->out));
    json_key(&j, "stderr_truncated");
    json_bool(&j, capture_truncated(&r->err));
    json_key(&j, "timed_out");
    json_bool(&j, r->stopped_by && !strcmp(r->stopped_by, STOP_TIMEOUT));
    json_key(&j, "stopped_by");
    json_cstr(&j, r->stopped_by);
    json_key(&j, "execution_time_ms");
    json_milli(&j, r->time_ns / 1000);
    json_key(&j, "cpu_time_ms");
    json_milli(&j, r->cpu_usec);
    json_key(&j, "max_rss_bytes");
    json_uint(&j, r->max_rss);
    json_key(&j, "process_id");
    json_int(&j, r->process_id);
    if (o->mode) {
        json_key(&j, "mode");
        json_cstr(&j, run_mode_name(o->mode));
    }
    json_key(&j, "provider");
    json_cstr(&j, r->provider);
    json_key(&j, "isolation");
    json_cstr(&j, rung_name(r->rung));
    json_key(&j, "reason");
    json_cstr(&j, o->mode ? o->mode_reason : r->reason);
    if (o->spec.network == NETWORK_GATE)
        run_network_json(&r->network, &j);
    json_close(&j, '}');
    buf_putc(&out, '\n');

    if (out.overflow || fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout) != 0) {
        fputs("paddock: the result could not be written\n", stderr);
        return 125;
    }
    return exit_status(r);
}

/* One line for a person: what stopped the command and what can be done about it. */
static void explain_stop(const struct run_options *o, const struct run_result *r)
{
    if (!r->stopped_by)
        return;

    const struct limits *l = &o->spec.limits;
    fprintf(stderr, "paddock: stopped by %s: ", r->stopped_by);
    if (!strcmp(r->stopped_by, STOP_TIMEOUT))
        fprintf(stderr, "--timeout of %" PRIu64 ".%03u s passed; all its processes were ended\n",
                o->timeout_ns / NS_PER_S, (unsigned)(o->timeout_ns / NS_PER_MS % 1000));
    else if (!strcmp(r->stopped_by, STOP_OOM))
        fprintf(stderr, "--memory of %" PRIu64 " MiB was used up\n", l->memory >> 20);
    else if (!strcmp(r->stopped_by, STOP_PIDS))
        fprintf(stderr, "--pids of %" PRIu64 " processes and threads was reached\n", l->pids);
    else if (!strcmp(r->stopped_by, STOP_OUTPUT))
        fprintf(stderr, "--output of %" PRIu64 " bytes was reached\n", o->output);
    else if (!strcmp(r->stopped_by, STOP_SYSCALL))
        fputs("a system call of another architecture\n", stderr);
    else
        fputs("a limit of --disk, --files or --file-size was reached\n", stderr);
}

int cmd_run(int argc, char **argv)
{
    static struct run_options o;
    static struct run_result r;
    struct pd_err e;

    if (parse(&o, argc, argv, &e) < 0)
        return cli_fail(&e);

    if (o.json && (capture_init(&r.out) < 0 || capture_init(&r.err) < 0)) {
        pd_fail(&e, PD_CAPACITY, "no memory for the output");
        return cli_fail(&e);
    }

    int failed = o.provider == PROVIDER_LOCAL ? run_locally(&o, &r, &e) : run_in_jail(&o, &r, &e);
    if (failed)
        return cli_fail(&e);

    if (o.json)
        return print_json(&o, &r);
    run_network_explain(&r.network);
    explain_stop(&o, &r);
    return exit_status(&r);
}
