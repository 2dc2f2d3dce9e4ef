/* paddock run --image: what the image says becomes what the command line left open. Its variables
 * come before those of --env, its directory and user hold unless they were given, its own command
 * runs when there is none. */
#include "cli/run.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"
#include "jail/identity.h"
#include "jail/images.h"
#include "jail/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define PASSWD_MAX (1u << 20)

int run_image_user(const char *text, const char *name, uint32_t *ret_uid, uint32_t *ret_gid)
{
    size_t len = strlen(name);

    for (const char *line = text; *line;) {
        size_t end = strcspn(line, "\n");
        uint64_t uid, gid;
        char fields[256];

        /* NAME:PASSWORD:UID:GID:... */
        if (end > len && !strncmp(line, name, len) && line[len] == ':') {
            snprintf(fields, sizeof fields, "%.*s", (int)(end < 255 ? end : 255), line);
            char *at = strchr(fields + len + 1, ':');
            char *group = at ? strchr(at + 1, ':') : NULL;
            char *rest = group ? strchr(group + 1, ':') : NULL;
            if (rest) {
                *group = *rest = 0;
                if (parse_u64("uid", at + 1, 0, RANGE_SIZE - 1, &uid, NULL) == 0 &&
                    parse_u64("gid", group + 1, 0, RANGE_SIZE - 1, &gid, NULL) == 0) {
                    *ret_uid = (uint32_t)uid;
                    *ret_gid = (uint32_t)gid;
                    return 0;
                }
            }
        }
        line += end + (line[end] == '\n');
    }
    return -1;
}

/* The image's /etc/passwd: that of the uppermost layer which has one, through no link. */
static int read_passwd(const int *trees, unsigned count, char *out, size_t size)
{
    struct open_how how = {.flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    struct stat st;

    for (unsigned i = count; i-- > 0;) {
        auto_fd file = (int)syscall(SYS_openat2, trees[i], "etc/passwd", &how, sizeof how);
        if (file < 0 && errno == ENOENT)
            continue;
        if (file < 0 || fstat(file, &st) < 0 || !S_ISREG(st.st_mode))
            return -1;
        ssize_t n = read(file, out, size - 1);
        out[n > 0 ? n : 0] = 0;
        return n < 0 ? -1 : 0;
    }
    return -1;
}

static int find_user(int images, const char *id, const char *name, uint32_t *ret_uid,
                     uint32_t *ret_gid, struct pd_err *e)
{
    struct image_use use;
    char *text = malloc(PASSWD_MAX);

    if (!text)
        return pd_fail(e, PD_CAPACITY, "out of memory");
    int failed = images_use(images, id, &use, e);
    if (!failed) {
        if (read_passwd(use.trees, use.tree_count, text, PASSWD_MAX) < 0 ||
            run_image_user(text, name, ret_uid, ret_gid) < 0)
            failed =
                pd_fail(e, PD_INVALID,
                        "the image's user '%.60s' is not in its /etc/passwd: give --user", name);
        image_use_done(&use);
    }
    free(text);
    return failed;
}

/* As the image says it: nothing, UID, UID:GID or NAME. */
static int take_user(struct run_options *o, int images, const struct image_record *r,
                     struct pd_err *e)
{
    uint32_t uid, gid;

    if (o->user_given || !r->user[0] || geteuid() != 0)
        return 0;
    if (r->user[strspn(r->user, "0123456789:")] == 0)
        return run_parse_user(o, r->user, e) < 0 ? pd_wrap(e, "the image's user") : 0;
    if (find_user(images, r->id, r->user, &uid, &gid, e) < 0)
        return -1;
    if (uid == UID_INIT || uid == UID_OWNER)
        return pd_fail(e, PD_INVALID, "the image's user '%.60s' is %u, the sandbox's own init",
                       r->user, uid);
    o->uid = uid;
    o->gid = gid;
    return 0;
}

static int take_env(struct run_options *o, const struct image_record *r, struct pd_err *e)
{
    if (r->env_count + o->env_count > RUN_ENV_MAX)
        return pd_fail(e, PD_INVALID, "--env: more than %d variables, the image's with them",
                       RUN_ENV_MAX);
    memmove(o->env + r->env_count, o->env, o->env_count * sizeof *o->env);
    memcpy(o->env, r->env, r->env_count * sizeof *o->env);
    o->env_count += r->env_count;
    return 0;
}

static void take_command(struct run_options *o, const struct image_record *r)
{
    static char *words[2 * IMAGE_WORDS_MAX + 1];
    int n = 0;

    if (o->argc)
        return;
    for (uint32_t i = 0; i < r->entrypoint_count; i++)
        words[n++] = (char *)(uintptr_t)r->entrypoint[i];
    for (uint32_t i = 0; i < r->cmd_count; i++)
        words[n++] = (char *)(uintptr_t)r->cmd[i];
    o->argv = words;
    o->argc = n;
}

int run_image_apply(struct run_options *o, struct pd_err *e)
{
    static struct image_record r; /* its strings are used as long as the command runs */
    static struct buf scratch = {.max = 2 * IMAGE_RECORD_MAX};
    static char image[IMAGE_HEX_LEN + 8];
    const char *state, *run;
    char id[IMAGE_HEX_LEN + 1];
    auto_fd lock = -1;

    if (!o->image)
        return 0;
    if (o->spec.root_dir[0])
        return pd_fail(e, PD_INVALID, "--image and --root: give one of them");
    if (keeper_dirs(&state, &run, e) < 0)
        return -1;
    auto_fd images = images_open_locked(state, LOCK_SH, &lock, e);
    if (images < 0 || images_find(images, o->image, id, e) < 0 ||
        images_read(images, id, &scratch, &r, e) < 0)
        return -1;

    if (take_user(o, images, &r, e) < 0 || take_env(o, &r, e) < 0)
        return -1;
    take_command(o, &r);
    if (!o->workdir[0] && r.workdir[0])
        o->workdir = r.workdir;
    snprintf(image, sizeof image, "sha256:%s", id);
    o->spec.image = image;
    return 0;
}
