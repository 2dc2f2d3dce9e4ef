/* `paddock route`: which provider a sandbox would get and why, asked of the server. Nothing is
 * made.
 */
#include "base/banned.h"
#include "base/err.h"
#include "client/client.h"

#include <stdbool.h>

const char route_usage[] =
    "usage: paddock route [--explain] [--provider NAME] [--user USER] [--template NAME]\n"
    "                     [--image REF] [--command LINE] [--json]\n\n"
    "Says which provider would make a sandbox, and why. Nothing is made.\n\n"
    "  --explain        every step of the decision\n"
    "  --provider NAME  as if the request named it\n"
    "  --user USER      as if it were for this user: shares and rules may go by it\n"
    "  --template NAME  as if it were from this template\n"
    "  --image REF      as if it had this image\n"
    "  --command LINE   the cheapest one for this command line, by what it is about to do\n"
    "  --json           as JSON\n";

struct route_asked {
    const char *provider, *user, *template_name, *image, *command;
    bool explain, json;
};

static int read_options(struct options *o, struct route_asked *ret, struct pd_err *e)
{
    while (options_next(o)) {
        const char **text = options_is(o, NULL, "--provider")   ? &ret->provider
                            : options_is(o, NULL, "--user")     ? &ret->user
                            : options_is(o, NULL, "--template") ? &ret->template_name
                            : options_is(o, NULL, "--image")    ? &ret->image
                            : options_is(o, NULL, "--command")  ? &ret->command
                                                                : NULL;
        if (text) {
            if (!(*text = options_value(o, e)))
                return -1;
            continue;
        }

        if (options_is(o, NULL, "--explain"))
            ret->explain = true;
        else if (options_is(o, NULL, "--json"))
            ret->json = true;
        else
            return usage_unknown(o, e);
        if (options_no_value(o, e) < 0)
            return -1;
    }

    int count;
    char **rest = options_arguments(o, &count);
    if (count)
        return pd_fail(e, PD_INVALID, "route: '%.60s' is too much: see `paddock help route`",
                       rest[0]);
    return 0;
}

static void put_query(struct buf *b, const char *name, const char *value)
{
    if (!value)
        return;
    buf_printf(b, "%c%s=", memchr(b->data, '?', b->len) ? '&' : '?', name);
    put_encoded(b, value);
}

static int print_route(const json_t *answer)
{
    const json_t *steps = json_object_get(answer, "steps"), *line;
    size_t i;

    json_array_foreach(steps, i, line)
    {
        if (print_line(json_string_value(line) ? json_string_value(line) : "") < 0)
            return -1;
    }
    if (json_array_size(steps))
        return 0; /* the last step is the result */

    auto_buf b = BUF_INIT(4096);
    buf_printf(&b, "%s (isolation %s): %s", json_field(answer, "provider"),
               json_field(answer, "isolation"), json_field(answer, "reason"));
    const char *text = buf_cstr(&b);
    return text ? print_line(text) : -1;
}

int cmd_route(int argc, char **argv)
{
    struct pd_err e;
    struct options o = OPTIONS_INIT(argc, argv);
    struct route_asked asked = {0};

    o.mixed = 1;
    if (read_options(&o, &asked, &e) < 0)
        return usage_fail(&e);

    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    json_auto_t *answer = NULL;
    buf_puts(&b, "/v1/route");
    put_query(&b, "provider", asked.provider);
    put_query(&b, "user_id", asked.user);
    put_query(&b, "template", asked.template_name);
    put_query(&b, "image", asked.image);
    put_query(&b, "command", asked.command);
    put_query(&b, "explain", asked.explain ? "true" : NULL);

    auto_remote *r = remote_new(&e);
    if (!r || remote_get(r, buf_cstr(&b), &answer, &e) < 0)
        return client_fail(&e);
    return (asked.json ? print_json(answer) : print_route(answer)) < 0 ? EXIT_FAILED : 0;
}
