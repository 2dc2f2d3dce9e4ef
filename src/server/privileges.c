/* What a server does with privilege before it gives it up: choosing the user that it becomes, and
 * making the directories that this user needs. serve_drop is the point of no return. */
#include "server/serve.h"

#include "base/banned.h"
#include "base/err.h"
#include "config/config.h"
#include "telemetry/log.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

void serve_data_dir(const char *state_dir, char *out, size_t size)
{
    snprintf(out, size, "%s/server", state_dir);
}

/* A keeper that runs has given its socket and its jails' cgroups to one user: until it ends, the
 * daemon is that user. An earlier version's was nobody. */
static int become_owner(struct serve *s)
{
    uid_t owner = serve_keeper_owner(s->keepers[0].socket);
    if (!owner)
        return 0;

    const struct passwd *p = getpwuid(owner);
    s->uid = owner;
    s->gid = p ? p->pw_gid : (gid_t)owner;
    return 1;
}

/* Nobody has set a user, and there is no `paddock`. */
static int find_own_user(struct serve *s, struct pd_err *e)
{
    int had = become_owner(s);
    if (had && getpwuid(s->uid)) {
        log_info("server.user", "uid=%u why=%s", (unsigned)s->uid, "the keeper that runs is its");
        return 0;
    }

    uid_t uid;
    if (uid_choose(s->config->state_dir, &uid, &s->uid_lock, e) == 0) {
        if (!had)
            s->uid = uid;
        s->gid = (gid_t)s->uid;
        return 0;
    }
    if (e->code != PD_UNSUPPORTED)
        return -1;

    /* Other programs may run as nobody, and the keeper's socket is this user's. */
    const struct passwd *p = getpwnam("nobody");
    log_warn("server.user", "user=%s why=%s remedy=%s", "nobody", e->msg,
             "adduser --system paddock");
    if (!p)
        return pd_fail(e, PD_INVALID, "user 'nobody' does not exist: adduser --system paddock");
    s->uid = p->pw_uid;
    s->gid = p->pw_gid;
    return 0;
}

static int find_user(struct serve *s, struct pd_err *e)
{
    const char *name = s->config->user;

    s->uid = geteuid();
    s->gid = getegid();
    s->uid_lock = -1;
    if (s->uid != 0)
        return 0;

    const struct passwd *p = name[0] ? getpwnam(name) : getpwnam("paddock");
    if (!p && !name[0])
        return find_own_user(s, e);
    if (!p)
        return pd_fail(e, PD_INVALID, "user '%.60s' does not exist: adduser --system %.60s", name,
                       name);
    if (p->pw_uid == 0)
        return pd_fail(e, PD_INVALID, "user '%.60s' is root: choose one without privilege", name);

    s->uid = p->pw_uid;
    s->gid = p->pw_gid;
    return 0;
}

/* Makes a directory with its parents. `open_up`: others may pass through, but not look. */
static int make_dir(const char *path, int open_up, struct pd_err *e)
{
    char part[4096];

    size_t len = strlen(path);
    if (len == 0 || len >= sizeof part)
        return pd_fail(e, PD_INVALID, "directory '%.100s'", path);

    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != 0)
            continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, i == len ? 0711 : 0755) < 0 && errno != EEXIST)
            return pd_fail_sys(e, "make %s", part);
    }

    struct stat st;
    if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
        return pd_fail(e, PD_INVALID, "'%.150s' is not a directory", path);
    if (open_up && (st.st_mode & 0011) != 0011 && chmod(path, (st.st_mode & 07777) | 0011) < 0)
        return pd_fail_sys(e, "open %s up", path);
    return 0;
}

int serve_prepare(struct serve *s, struct pd_err *e)
{
    int root = geteuid() == 0;

    serve_data_dir(s->config->state_dir, s->data_dir, sizeof s->data_dir);
    if (make_dir(s->config->state_dir, root, e) < 0 || make_dir(s->config->run_dir, root, e) < 0)
        return -1;
    if (find_user(s, e) < 0)
        return -1;

    if (mkdir(s->data_dir, 0700) < 0 && errno != EEXIST)
        return pd_fail_sys(e, "make %.200s", s->data_dir);
    return root ? uid_hand_over(s->data_dir, s->uid, s->gid, e) : 0;
}

int serve_drop(const struct serve *s, struct pd_err *e)
{
    if (geteuid() == 0 && (setgroups(1, &s->gid) < 0 || setresgid(s->gid, s->gid, s->gid) < 0 ||
                           setresuid(s->uid, s->uid, s->uid) < 0 || setuid(0) == 0))
        return pd_fail_sys(e, "become uid %u", (unsigned)s->uid);

    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return pd_fail_sys(e, "set no_new_privs");
    return 0;
}
