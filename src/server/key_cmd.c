/* paddock key: makes, lists and revokes API keys in the server's database, whether the server runs
 * or not. Root becomes the owner of the database first. */
#include "access/auth.h"
#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/parse.h"
#include "client/client.h"
#include "config/config.h"
#include "server/serve.h"
#include "store/sqlite.h"
#include "store/store.h"

#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIFE_MAX_NS (UINT64_C(10) * 366 * 86400 * NS_PER_S)

extern char **environ;

const char key_usage[] =
    "usage: paddock key create [--tenant NAME] [--label TEXT] [--admin | --reader] [--expires "
    "TIME]\n"
    "                          [--state-dir DIR]\n"
    "       paddock key list [--state-dir DIR]\n"
    "       paddock key revoke ID [--state-dir DIR]\n\n"
    "Keys of the server whose state is in DIR, running or not. A key is shown when it is made and\n"
    "never again: only its hash is kept. A tenant sees its own sandboxes alone. A key made with\n"
    "--admin may also change the router's rules and make keys, which concern all tenants; one "
    "made\n"
    "with --reader may look, and nothing else. With --expires, such as 30d, a key is refused "
    "after\n"
    "that time; otherwise it is good until it is revoked.\n";

/* The database belongs to the server's user; what root writes there must, too. */
static int become_owner(const char *dir, struct pd_err *e)
{
    struct stat st;

    if (stat(dir, &st) < 0)
        return pd_fail_sys(e, "no server has run here yet: %.150s", dir);

    if (geteuid() != 0 || st.st_uid == 0)
        return 0;

    gid_t gid = st.st_gid;
    if (setgroups(1, &gid) < 0 || setresgid(gid, gid, gid) < 0 ||
        setresuid(st.st_uid, st.st_uid, st.st_uid) < 0)
        return pd_fail_sys(e, "become uid %u", (unsigned)st.st_uid);
    return 0;
}

static int show_key(const struct auth_key *k, void *arg)
{
    char made[TIME_TEXT_LEN + 1];

    (void)arg;
    time_format_ms(k->created_ms, made);
    printf("%-18s %-16s %-24s %-8s %s\n", k->id, k->tenant, made,
           k->revoked_ms                                     ? "revoked"
           : k->expires_ms && k->expires_ms <= time_now_ms() ? "expired"
           : k->role == AUTH_OPERATOR                        ? "valid"
                                                             : auth_role_name(k->role),
           k->label ? k->label : "");
    return 0;
}

static int run(struct auth *a, const char *what, const char *id, const char *tenant,
               const char *label, enum auth_role role, uint64_t expires_ms, struct pd_err *e)
{
    char key[ID_KEY_LEN + 1], made[AUTH_ID_LEN + 1];

    if (!strcmp(what, "list")) {
        printf("%-18s %-16s %-24s %-8s %s\n", "ID", "TENANT", "CREATED", "STATE", "LABEL");
        return auth_list(a, show_key, NULL, e);
    }

    if (!strcmp(what, "revoke"))
        return auth_revoke(a, id, e);

    if (auth_create(a, tenant, label, role, expires_ms, key, made, e) < 0)
        return -1;
    printf("%s\n", key);
    return 0;
}

int cmd_key(int argc, char **argv)
{
    struct pd_err e;
    struct options o = OPTIONS_INIT(argc, argv);
    const char *tenant = "default", *label = NULL, *state = NULL;
    enum auth_role role = AUTH_OPERATOR;
    uint64_t life = 0;

    o.mixed = 1;
    while (options_next(&o)) {
        bool admin = options_is(&o, NULL, "--admin");
        if (admin || options_is(&o, NULL, "--reader")) {
            if (role != AUTH_OPERATOR && role != (admin ? AUTH_ADMIN : AUTH_READER)) {
                pd_fail(&e, PD_INVALID, "key: --admin or --reader, not both");
                return usage_fail(&e);
            }
            role = admin ? AUTH_ADMIN : AUTH_READER;
            if (options_no_value(&o, &e) < 0)
                return usage_fail(&e);
            continue;
        }

        const char *v = options_value(&o, &e);
        if (!v)
            return usage_fail(&e);

        if (options_is(&o, NULL, "--tenant"))
            tenant = v;
        else if (options_is(&o, NULL, "--label"))
            label = v;
        else if (options_is(&o, NULL, "--state-dir"))
            state = v;
        else if (options_is(&o, NULL, "--expires")) {
            if (parse_duration("--expires", v, LIFE_MAX_NS, &life, &e) < 0)
                return usage_fail(&e);
        } else {
            (void)usage_unknown(&o, &e);
            return usage_fail(&e);
        }
    }

    int count;
    char **words = options_arguments(&o, &count);
    const char *what = count > 0 ? words[0] : "";
    bool revoke = !strcmp(what, "revoke");

    if ((!revoke && strcmp(what, "list") != 0 && strcmp(what, "create") != 0) ||
        count != (revoke ? 2 : 1)) {
        pd_fail(&e, PD_INVALID, "key: create, list or revoke ID");
        return usage_fail(&e);
    }
    if ((role != AUTH_OPERATOR || life) && strcmp(what, "create") != 0) {
        pd_fail(&e, PD_INVALID,
                "key: --admin, --reader and --expires are for `paddock key create`");
        return usage_fail(&e);
    }

    struct config_input in = {.environ = (const char *const *)environ};
    struct config *c = config_load(&in, &e);
    if (!c)
        return usage_fail(&e);

    char dir[4096];
    serve_data_dir(state ? state : c->state_dir, dir, sizeof dir);
    struct store *store = NULL;
    struct auth *a = NULL;

    int r = become_owner(dir, &e);
    if (r == 0 && (!(store = store_sqlite_open(dir, 0, &e)) || !(a = auth_new(store, NULL, &e))))
        r = -1;
    if (r == 0)
        r = run(a, what, revoke ? words[1] : NULL, tenant, label, role,
                life ? time_now_ms() + life / NS_PER_MS : 0, &e);

    auth_free(a);
    if (store)
        store->free(store);
    config_free(c);
    return r < 0 ? client_fail(&e) : 0;
}
