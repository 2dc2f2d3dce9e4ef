/* Names and bounds of a sandbox's specification: the one place where a limit, a path or a name is
 * judged, for the command line, the API and the keeper alike. */
#include "wire/spec.h"

#include "base/banned.h"
#include "base/err.h"

#include <inttypes.h>
#include <stdbool.h>

static const char *const profile_names[PROFILE_COUNT] = {"strict", "dev", "restricted"};
static const char *const network_names[NETWORK_COUNT] = {"none", "host", "gate"};
static const char *const rung_names[RUNG_COUNT] = {"none", "basic", "full"};

const char *profile_name(enum profile p)
{
    return (unsigned)p < PROFILE_COUNT ? profile_names[p] : "?";
}

const char *network_name(enum network n)
{
    return (unsigned)n < NETWORK_COUNT ? network_names[n] : "?";
}

const char *rung_name(enum rung r)
{
    return (unsigned)r < RUNG_COUNT ? rung_names[r] : "?";
}

static int find_name(const char *what, const char *text, const char *const *names, int count,
                     struct pd_err *e)
{
    char valid[80] = "";
    size_t used = 0;

    for (int i = 0; i < count; i++) {
        if (!strcmp(names[i], text))
            return i;
        used +=
            (size_t)snprintf(valid + used, sizeof valid - used, "%s%s", i ? ", " : "", names[i]);
    }
    return pd_fail(e, PD_INVALID, "%s: '%.40s' is not one of: %s", what, text, valid);
}

int profile_parse(const char *what, const char *text, enum profile *ret, struct pd_err *e)
{
    int i = find_name(what, text, profile_names, PROFILE_COUNT, e);
    if (i < 0)
        return -1;
    *ret = (enum profile)i;
    return 0;
}

int network_parse(const char *what, const char *text, enum network *ret, struct pd_err *e)
{
    int i = find_name(what, text, network_names, NETWORK_COUNT, e);
    if (i < 0)
        return -1;
    *ret = (enum network)i;
    return 0;
}

int rung_parse(const char *what, const char *text, enum rung *ret, struct pd_err *e)
{
    int i = find_name(what, text, rung_names, RUNG_COUNT, e);
    if (i < 0)
        return -1;
    *ret = (enum rung)i;
    return 0;
}

static int check_range(const char *what, uint64_t v, uint64_t min, uint64_t max, struct pd_err *e)
{
    if (v >= min && v <= max)
        return 0;
    return pd_fail(e, PD_INVALID, "%s: %" PRIu64 " is out of range: from %" PRIu64 " to %" PRIu64,
                   what, v, min, max);
}

static int check_path(const char *what, const char *path, struct pd_err *e)
{
    if (path[0] != '/')
        return pd_fail(e, PD_INVALID, "%s: '%.120s' is not an absolute path", what, path);
    if (strlen(path) > SPEC_PATH_MAX)
        return pd_fail(e, PD_INVALID, "%s: the path is longer than %d bytes", what, SPEC_PATH_MAX);
    return 0;
}

/* A target inside the sandbox: no component may be "." or "..", and it may not be the root or one
 * of the mounts that make the jail. Compared by component, because "//proc" is "/proc" as well. */
static int check_target(const char *target, struct pd_err *e)
{
    static const char *const taken[] = {"proc", "sys", "dev"};

    if (check_path("--bind", target, e) < 0)
        return -1;

    unsigned depth = 0;
    for (const char *p = target + strspn(target, "/"); *p; p += strspn(p, "/")) {
        size_t len = strcspn(p, "/");
        if ((len == 1 && p[0] == '.') || (len == 2 && p[0] == '.' && p[1] == '.'))
            return pd_fail(e, PD_INVALID, "--bind: target '%.120s' contains '.' or '..'", target);
        for (size_t i = 0; depth == 0 && i < sizeof taken / sizeof *taken; i++)
            if (len == strlen(taken[i]) && !memcmp(p, taken[i], len))
                return pd_fail(e, PD_INVALID, "--bind: target '%.120s' belongs to the jail itself",
                               target);
        depth++;
        p += len;
    }
    return depth ? 0 : pd_fail(e, PD_INVALID, "--bind: target '/' belongs to the jail itself");
}

int spec_check_root_name(const char *name, struct pd_err *e)
{
    size_t len = strlen(name);
    int bad = len > SPEC_NAME_MAX || name[0] == '.' || name[0] == '-';

    for (size_t i = 0; i < len && !bad; i++)
        bad = !((name[i] >= 'a' && name[i] <= 'z') || (name[i] >= '0' && name[i] <= '9') ||
                name[i] == '-' || name[i] == '_' || name[i] == '.');

    if (bad)
        return pd_fail(e, PD_INVALID,
                       "--name: '%.64s' is not a name: up to %d of a-z 0-9 . _ -, not starting "
                       "with . or -",
                       name, SPEC_NAME_MAX);
    return 0;
}

int spec_check_image(const char *image, struct pd_err *e)
{
    size_t len = strlen(image);
    bool bad = len > SPEC_IMAGE_MAX || image[0] == '-';

    for (size_t i = 0; i < len && !bad; i++)
        bad = image[i] <= ' ' || image[i] > '~';

    if (bad)
        return pd_fail(e, PD_INVALID,
                       "image: '%.64s' is not a reference: up to %u printable characters without "
                       "spaces, not starting with -",
                       image, SPEC_IMAGE_MAX);
    return 0;
}

/* A kept root is an image, too, and belongs to its sandbox alone. Whatever registry, tag or digest
 * is put around it: the last part of the repository tells. */
static int check_image_is_public(const char *image, struct pd_err *e)
{
    const char *slash = memrchr(image, '/', strcspn(image, "@"));
    const char *name = slash ? slash + 1 : image;

    if (strncasecmp(name, SPEC_ROOT_IMAGES, strlen(SPEC_ROOT_IMAGES)) == 0)
        return pd_fail(e, PD_DENIED,
                       "image '%.80s': repositories %s* hold the files of sandboxes, each for its "
                       "own: ask for another image",
                       image, SPEC_ROOT_IMAGES);
    return 0;
}

/* Only the shape: the provider reads it. */
static int check_options(const char *options, struct pd_err *e)
{
    size_t len = strlen(options);

    if (len > SPEC_OPTIONS_MAX)
        return pd_fail(e, PD_INVALID, "options: %zu bytes, at most %u", len, SPEC_OPTIONS_MAX);
    if (len && (options[0] != '{' || options[len - 1] != '}'))
        return pd_fail(e, PD_INVALID, "options: '%.40s' is not a JSON object", options);
    return 0;
}

int spec_check(const struct spec *s, struct pd_err *e)
{
    const struct limits *l = &s->limits;

    if ((unsigned)s->profile >= PROFILE_COUNT || (unsigned)s->network >= NETWORK_COUNT ||
        (unsigned)s->min_rung >= RUNG_COUNT)
        return pd_fail(e, PD_INVALID, "profile %u, network %u or isolation %u does not exist",
                       s->profile, s->network, s->min_rung);

    if (check_range("memory", l->memory, SPEC_MEMORY_MIN, SPEC_MEMORY_MAX, e) < 0 ||
        check_range("pids", l->pids, SPEC_PIDS_MIN, SPEC_PIDS_MAX, e) < 0 ||
        check_range("cpu", l->cpu_milli, SPEC_CPU_MIN, SPEC_CPU_MAX, e) < 0 ||
        check_range("disk", l->disk, SPEC_DISK_MIN, SPEC_DISK_MAX, e) < 0 ||
        check_range("files", l->files, SPEC_FILES_MIN, SPEC_FILES_MAX, e) < 0)
        return -1;

    if (s->root_dir[0] && check_path("--root", s->root_dir, e) < 0)
        return -1;
    if (s->root_name[0] && spec_check_root_name(s->root_name, e) < 0)
        return -1;
    if (spec_check_image(s->image, e) < 0 || check_image_is_public(s->image, e) < 0 ||
        check_options(s->options, e) < 0)
        return -1;

    if (s->bind_count > SPEC_BINDS_MAX)
        return pd_fail(e, PD_INVALID, "--bind: %u binds, at most %d", s->bind_count,
                       SPEC_BINDS_MAX);
    for (uint32_t i = 0; i < s->bind_count; i++)
        if (check_path("--bind", s->binds[i].source, e) < 0 ||
            check_target(s->binds[i].target, e) < 0)
            return -1;
    return 0;
}
