/* `paddock mv`: a sandbox goes to another provider, with its files, its directory and its
 * variables. */
#include "base/banned.h"
#include "base/err.h"
#include "client/client.h"

#include <stdbool.h>

const char mv_usage[] =
    "usage: paddock mv [--give-up] [--json] ID PROVIDER\n\n"
    "Moves a sandbox that runs to another provider of the server: the files in /workspace\n"
    "and /home/user, the directory and the variables. Nothing of it may run meanwhile.\n\n"
    "  --give-up  end what runs in it\n"
    "  --json     print the sandbox as JSON\n";

struct move_asked {
    const char *id, *provider;
    bool give_up, json;
};

static int read_options(struct options *o, struct move_asked *ret, struct pd_err *e)
{
    while (options_next(o)) {
        bool *flag = options_is(o, NULL, "--give-up") ? &ret->give_up
                     : options_is(o, NULL, "--json")  ? &ret->json
                                                      : NULL;
        if (!flag)
            return usage_unknown(o, e);
        *flag = true;
        if (options_no_value(o, e) < 0)
            return -1;
    }

    int count;
    char **rest = options_arguments(o, &count);
    if (count != 2)
        return pd_fail(e, PD_INVALID, "mv: which sandbox, and where to? paddock mv ID PROVIDER");
    ret->id = rest[0];
    ret->provider = rest[1];
    return check_id(ret->id, e);
}

int cmd_mv(int argc, char **argv)
{
    struct pd_err e;
    struct options o = OPTIONS_INIT(argc, argv);
    struct move_asked asked = {0};

    o.mixed = 1;
    if (read_options(&o, &asked, &e) < 0)
        return usage_fail(&e);

    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    json_auto_t *body =
        json_pack("{s:s, s:b}", "provider", asked.provider, "give_up", (int)asked.give_up);
    json_auto_t *answer = NULL;
    buf_printf(&b, "/v1/sandboxes/%s/move", asked.id);
    if (!body) {
        pd_fail(&e, PD_INVALID, "mv: the provider's name is not UTF-8");
        return usage_fail(&e);
    }

    struct remote_request q = {
        .method = HTTP_POST, .target = buf_cstr(&b), .json = body, .is_patient = 1};
    auto_remote *r = remote_new(&e);
    if (!r || remote_call(r, &q, &answer, &e) < 0)
        return client_fail(&e);
    if (asked.json)
        return print_json(answer) < 0 ? EXIT_FAILED : 0;

    buf_clear(&b);
    buf_printf(&b, "%s (isolation %s)", json_field(answer, "provider"),
               json_field(answer, "isolation"));
    return print_line(buf_cstr(&b)) < 0 ? EXIT_FAILED : 0;
}
